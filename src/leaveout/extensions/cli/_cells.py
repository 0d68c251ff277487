"""Cells of a text file: numbers are read by one convention for the whole file, and labels stay as
they are written.

A cell such as 0,126 or 1.234,5 proves its decimal sign; 50.914 may be fifty or fifty thousand. A
sign that one column proves holds for the whole file, and contradictory columns are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

import leaveout as lo

from ._console import abbreviate, fail

pd = lo.developer.pd

NAMES = {",": "commas", ".": "points", "'": "apostrophes", " ": "spaces"}
OTHER = {",": ".", ".": ","}
# largest number of digits of a whole number; longer ones are ids, which floats would merge
MAX_NUMBER_DIGITS = 15
OPEN = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # either decimals or thousands
ZEROS = re.compile(r"0\d+")
LONG_DIGITS = re.compile(rf"\d{{{MAX_NUMBER_DIGITS + 1},}}")
CURRENCY = r"^([+-]?)\s?[$€£¥]\s?|\s?[$€£¥]$"
SPACES = "\u00a0\u202f\u2009"  # spaces between thousands


@dataclass(frozen=True)
class Convention:
    """Options for how numbers are written; the cells decide if these are not given.

    Attributes
    ----------
    decimal
        The sign before the decimals of all numbers, . or , where the file does not show it.
    thousands
        The sign between thousands of all numbers, such as . or ,
    encoding
        Of the text of a CSV file, such as latin-1.
    na
        Cells that are missing values, with commas between, beside NA and the like.
    """

    decimal: Literal[",", "."] | None = None
    thousands: Literal[",", ".", "'", " "] | None = None
    encoding: str = "utf-8"
    na: str | None = None

    def __post_init__(self) -> None:
        if self.decimal is not None and self.decimal == self.thousands:
            fail(
                f"--decimal {self.decimal!r} --thousands {self.thousands!r}: one sign cannot stand for both."
            )

    @property
    def point(self) -> str:
        """The decimal sign: the given one, else the one that is not the sign between thousands."""
        return self.decimal or (OTHER.get(self.thousands or ",") or ".")


BY_THE_FILE = Convention()


def is_numeric(column: pd.Series | pd.Index) -> bool:
    """Tell whether a column holds numbers, or true and false."""
    return pd.api.types.is_numeric_dtype(column)


def pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Return the pattern of a number in a convention."""
    integer = (
        r"\d+" if thousands is None else rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)"
    )
    point = re.escape(decimal)
    return re.compile(rf"[+-]?(?:{integer}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?")


WAYS = {mark: pattern(mark, opposite) for mark, opposite in OTHER.items()}


@dataclass
class Signs:
    """Decimal signs and signs between thousands that a column proves, and ambiguous ones, with a
    cell for each.
    """

    decimal: dict[str, str] = field(default_factory=dict)
    thousands: dict[str, str] = field(default_factory=dict)
    either: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_column(cls, cells: Iterable[str]) -> "Signs":
        """Read the signs of a column."""
        signs = cls()
        for cell in cells:
            marks = [sign for sign in cell if sign in OTHER]
            if not marks:
                continue
            if marks[0] != marks[-1] or len(marks) > 1:
                signs.thousands.setdefault(marks[0], cell)
                signs.decimal.setdefault(OTHER[marks[0]], cell)
            else:
                (signs.either if OPEN.fullmatch(cell) else signs.decimal).setdefault(marks[0], cell)
        return signs


Reread = Callable[[list[str]], "pd.DataFrame"]  # reads columns of the file again, as text


def settle(
    frame: pd.DataFrame,
    reread: Reread,
    labels: Callable[[str], bool],
    used: Container[str],
    way: tuple[str, Convention],
    notes: list[str],
) -> pd.DataFrame:
    """Convert columns of numbers. `way` has the separator of cells and the convention of the
    options.
    """
    mark, convention = way
    text_columns = [name for name in frame if not is_numeric(frame[name]) and not labels(name)]
    float_columns = [
        name for name in frame if pd.api.types.is_float_dtype(frame[name]) and not labels(name)
    ]
    has_convention = convention.decimal or convention.thousands
    patterns = (
        [pattern(convention.point, convention.thousands)] if has_convention else WAYS.values()
    )
    columns = (
        reread([*text_columns, *float_columns])
        if has_convention and (text_columns or float_columns)
        else frame[text_columns]
    )
    texts = {
        name: cells
        for name in columns
        if (cells := _match_cells(columns[name], patterns)) is not None
    }
    if has_convention:
        frame[columns.columns] = columns  # those that are no numbers in this convention stay text
        separators = {name: (convention.point, convention.thousands) for name in texts}
    else:
        if texts or (
            mark != ","
            and float_columns
            and all(_thousandths(frame[name]) for name in float_columns)
        ):
            texts |= {
                name: cells.dropna().str.strip() for name, cells in reread(float_columns).items()
            }
        signs = {name: Signs.of_column(cells.unique()) for name, cells in texts.items()}
        separators = {
            name: (sign, OTHER[sign])
            for name, sign in _decimal_signs(signs, used, mark, notes).items()
            if name in text_columns or sign == ","
        }
        separators |= {name: (".", None) for name in text_columns if signs.get(name) == Signs()}
    for name, (decimal, thousands) in separators.items():
        digits = (
            texts[name]
            if thousands is None
            else texts[name].str.replace(thousands, "", regex=False)
        )
        frame[name] = pd.to_numeric(digits.str.replace(decimal, ".", regex=False)).reindex(
            frame.index
        )
    return frame


def _decimal_signs(
    signs: dict[str, Signs], used: Container[str], mark: str, notes: list[str]
) -> dict[str, str]:
    """Decide the decimal sign of each column that has signs and is numeric by the convention of the
    file, and note it.
    """
    used_columns = [name for name in signs if name in used]
    proofs = {
        sign: name
        for name in reversed([*used_columns, *(set(signs) - set(used_columns))])
        for sign in signs[name].decimal
    }
    thousands_signs = {sign for name in signs for sign in signs[name].thousands}
    for name in used_columns:
        for sign in signs[name].decimal:
            opposite = next(
                (column for column in used_columns if OTHER[sign] in signs[column].decimal), None
            )
            if opposite is not None:
                _refuse(
                    {
                        name: signs[name].decimal[sign],
                        opposite: signs[opposite].decimal[OTHER[sign]],
                    }
                )
    ambiguous = {sign: name for name in used_columns for sign in signs[name].either}
    decimals = {}
    guesses = []
    for name, column_signs in signs.items():
        decimal = next(iter(column_signs.decimal), None)
        for sign, cell in column_signs.either.items():
            # "1,234" in quotes is a thousand, unless a column proves otherwise
            separates_cells = mark == "," == sign
            open_sign = name in used_columns and not separates_cells and sign not in thousands_signs
            if open_sign and sign not in (decimal, *proofs) and OTHER[sign] in proofs:
                _refuse(
                    {
                        name: cell,
                        proofs[OTHER[sign]]: signs[proofs[OTHER[sign]]].decimal[OTHER[sign]],
                    }
                )
            if name in used_columns and not proofs and OTHER[sign] in ambiguous and mark != ",":
                _refuse(
                    {
                        name: cell,
                        ambiguous[OTHER[sign]]: signs[ambiguous[OTHER[sign]]].either[OTHER[sign]],
                    }
                )
            decimal = decimal or (
                sign if sign in proofs or not (proofs or separates_cells) else OTHER[sign]
            )
            if not proofs and mark != ",":
                guesses.append(name)
        if decimal is not None:
            decimals[name] = decimal
    for sign in OTHER:
        marked = [
            name for name in decimals if sign in signs[name].thousands or sign in signs[name].either
        ]
        thousands = [name for name in marked if decimals[name] != sign]
        open_columns = [name for name in guesses if decimals.get(name) == sign]
        comma_columns = [
            name for name in decimals if decimals[name] == sign == "," and name not in open_columns
        ]
        if thousands:
            way = "" if proofs else f": --decimal '{sign}' if they are not"
            notes.append(
                f"{NAMES[sign]} in {abbreviate(thousands)} read as separators of thousands{way}"
            )
        if comma_columns:
            notes.append(f"commas in {abbreviate(comma_columns)} read as decimal points")
        if open_columns:
            notes.append(
                f"{NAMES[sign]} in {abbreviate(open_columns)} read as decimal points: --thousands '{sign}' if they are not"
            )
    return decimals


def _refuse(cells: dict[str, str]) -> None:
    """End if columns contradict one another."""
    examples = " and ".join(f"{cell!r} in {name}" for name, cell in cells.items())
    fail(
        f"numbers are written in two ways, or thousands cannot be told from decimals: {examples}; say how the file writes them by "
        "--decimal and --thousands, such as --decimal ',' --thousands '.', or write all alike."
    )


def _match_cells(column: pd.Series, patterns: Iterable[re.Pattern[str]]) -> pd.Series | None:
    """Return the filled cells without spaces around them.

    None if one is not a number in these conventions.
    """
    filled = column.dropna().astype(str).str.strip().str.replace(f"[{SPACES}]", " ", regex=True)
    filled = filled.str.replace(CURRENCY, r"\1", regex=True)
    matches = np.zeros(len(filled), bool)
    for number in patterns:
        matches |= filled.str.fullmatch(number.pattern).to_numpy(bool)
    return filled if len(filled) and matches.all() else None


def _thousandths(column: pd.Series) -> bool:
    """Tell whether all numbers have at most three decimals, and so may be thousands, which their
    text decides.
    """
    values = column.to_numpy(float)
    values = np.abs(values[np.isfinite(values)])
    return bool(
        np.all(
            (values >= 1)
            & (values < 1000)
            & (np.abs(1000 * values - np.round(1000 * values)) < 1e-6)
        )
    )


def as_labels(frame: pd.DataFrame, reread: Reread, content: str, notes: list[str]) -> pd.DataFrame:
    """Return whole numbers that are labels as text.

    Ids of many digits, and numbers with leading zeros.
    """
    odd = (
        LONG_DIGITS.search(content) is not None
        or re.search(r"(?:^|[,;\t\"' ])0\d", content, re.MULTILINE) is not None
    )
    integer_columns = [name for name in frame if is_numeric(frame[name]) and _is_whole(frame[name])]
    if not odd or not integer_columns:
        return frame
    padded = []
    for name, cells in reread(integer_columns).items():
        filled = cells.dropna().str.strip()
        zeros = filled.str.fullmatch(ZEROS.pattern).any()
        long = filled.str.fullmatch(LONG_DIGITS.pattern).any()
        if long or (zeros and filled.nunique() > frame[name].nunique()):
            frame[name] = filled.reindex(frame.index)
        elif zeros:
            padded.append(str(name))
    if padded:
        notes.append(
            f"{abbreviate(padded)} read as numbers, though zeros stand before them as in labels"
        )
    return frame


def _is_whole(column: pd.Series) -> bool:
    if pd.api.types.is_bool_dtype(column):
        return False
    values = column.to_numpy(float, na_value=np.nan)
    values = values[np.isfinite(values)]
    return bool(len(values) and (values == np.round(values)).all())


def trim_text(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Strip the spaces around text, and report labels that differ in capitals only."""
    for name in frame:
        column = frame[name]
        if (
            is_numeric(column)
            or not column.map(lambda cell: isinstance(cell, str) or pd.isna(cell)).all()
        ):
            continue
        bare = column.str.strip()
        bare = bare.mask(bare == "")
        levels = bare.dropna().unique()
        frame[name] = bare
        if (merged := column.nunique() - len(levels)) > 0:
            notes.append(f"spaces around labels of {name} left out, which makes {merged} fewer")
        alike = pd.Series(levels, dtype=object).astype(str).str.casefold()
        if len(levels) <= 1000 and alike.duplicated().any():
            two = [
                str(level)
                for level in levels
                if str(level).casefold() == alike[alike.duplicated()].iloc[0]
            ]
            notes.append(f"{two[0]!r} and {two[1]!r} of {name} are two labels")
    return frame


def parse_labels(column: pd.Series) -> pd.Series:
    """Return labels as numbers if each number is written in one way, else as text.

    Categories stay labels.
    """
    if is_numeric(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return column
    number = pd.to_numeric(column, errors="coerce")
    if (
        number.isna().any()
        or column.astype(str).str.fullmatch(LONG_DIGITS.pattern).any()
        or number.nunique() < column.nunique()
    ):
        return column
    return number
