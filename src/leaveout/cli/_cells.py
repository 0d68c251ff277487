"""Cells of a text file: numbers are read by one convention for the whole file, and labels stay as
they are written.

A cell such as 0,126 or 1.234,5 proves its decimal sign; 50.914 may be fifty or fifty thousand. A
sign that one column proves holds for the whole file, and contradictory columns are refused.
"""

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pandas as pd

from ._console import fail
from ._options import option

NAMES = {",": "commas", ".": "points", "'": "apostrophes", " ": "spaces"}
OTHER = {",": ".", ".": ","}
SEPARATORS = tuple(NAMES)  # signs between thousands
# largest number of digits of a whole number; longer ones are ids, which floats would merge
MAX_NUMBER_DIGITS = 15
OPEN = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # either decimals or thousands
ZEROS = re.compile(r"0\d+")
LONG = re.compile(rf"\d{{{MAX_NUMBER_DIGITS + 1},}}")
CURRENCY = r"^([+-]?)\s?[$€£¥]\s?|\s?[$€£¥]$"
SPACES = "\u00a0\u202f\u2009"  # spaces between thousands


@dataclass(frozen=True)
class Convention:
    """Options for how numbers are written; the cells decide if these are not given."""

    decimal: Annotated[
        str | None,
        option(
            "The sign before the decimals of all numbers, . or , where the file does not show it.",
            choices=(*OTHER,),
        ),
    ] = None
    thousands: Annotated[
        str | None,
        option("The sign between thousands of all numbers, such as . or ,", choices=SEPARATORS),
    ] = None
    encoding: Annotated[str, option("Of the text of a CSV file, such as latin-1.")] = "utf-8"
    na: Annotated[
        str | None,
        option("Cells that are missing values, with commas between, beside NA and the like."),
    ] = None

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


def pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Return the pattern of a number in a convention."""
    whole = r"\d+" if thousands is None else rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)"
    point = re.escape(decimal)
    return re.compile(rf"[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?")


WAYS = {mark: pattern(mark, other) for mark, other in OTHER.items()}


@dataclass
class Signs:
    """Decimal signs and signs between thousands that a column proves, and ambiguous ones, with a
    cell for each.
    """

    decimal: dict[str, str] = field(default_factory=dict)
    thousands: dict[str, str] = field(default_factory=dict)
    either: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Iterable[str]) -> "Signs":
        """Read the signs of a column."""
        found = cls()
        for cell in cells:
            marks = [sign for sign in cell if sign in OTHER]
            if not marks:
                continue
            if marks[0] != marks[-1] or len(marks) > 1:
                found.thousands.setdefault(marks[0], cell)
                found.decimal.setdefault(OTHER[marks[0]], cell)
            else:
                (found.either if OPEN.fullmatch(cell) else found.decimal).setdefault(marks[0], cell)
        return found


Reread = Callable[[list[str]], pd.DataFrame]  # reads columns of the file again, as text


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
    words = [
        name
        for name in frame
        if not pd.api.types.is_numeric_dtype(frame[name]) and not labels(name)
    ]
    floats = [
        name for name in frame if pd.api.types.is_float_dtype(frame[name]) and not labels(name)
    ]
    told = convention.decimal or convention.thousands
    ways = [pattern(convention.point, convention.thousands)] if told else WAYS.values()
    columns = reread([*words, *floats]) if told and (words or floats) else frame[words]
    texts = {
        name: cells for name in columns if (cells := _match_cells(columns[name], ways)) is not None
    }
    if told:
        frame[columns.columns] = columns  # those that are no numbers in this convention stay text
        decided = {name: (convention.point, convention.thousands) for name in texts}
    else:
        if texts or (mark != "," and floats and all(_thousandths(frame[name]) for name in floats)):
            texts |= {name: cells.dropna().str.strip() for name, cells in reread(floats).items()}
        signs = {name: Signs.of(cells.unique()) for name, cells in texts.items()}
        found = _decimal_signs(signs, used, mark, notes)
        decided = {
            name: (sign, OTHER[sign])
            for name, sign in found.items()
            if name in words or sign == ","
        }
        decided |= {name: (".", None) for name in words if signs.get(name) == Signs()}
    for name, (decimal, thousands) in decided.items():
        plain = (
            texts[name]
            if thousands is None
            else texts[name].str.replace(thousands, "", regex=False)
        )
        frame[name] = pd.to_numeric(plain.str.replace(decimal, ".", regex=False)).reindex(
            frame.index
        )
    return frame


def _decimal_signs(
    signs: dict[str, Signs], used: Container[str], mark: str, notes: list[str]
) -> dict[str, str]:
    """Decide the decimal sign of each column that has signs and is numeric by the convention of the
    file, and note it.
    """
    own = [name for name in signs if name in used]
    proved = {
        sign: name
        for name in reversed([*own, *(set(signs) - set(own))])
        for sign in signs[name].decimal
    }
    groups = {sign for name in signs for sign in signs[name].thousands}
    for name in own:
        for sign in signs[name].decimal:
            other = next((each for each in own if OTHER[sign] in signs[each].decimal), None)
            if other is not None:
                _refuse({name: signs[name].decimal[sign], other: signs[other].decimal[OTHER[sign]]})
    either = {sign: name for name in own for sign in signs[name].either}
    found: dict[str, str] = {}
    guessed: list[str] = []
    for name, each in signs.items():
        decimal = next(iter(each.decimal), None)
        for sign, cell in each.either.items():
            # "1,234" in quotes is a thousand, unless a column proves otherwise
            separates_cells = mark == "," == sign
            open_sign = name in own and not separates_cells and sign not in groups
            if open_sign and sign not in (decimal, *proved) and OTHER[sign] in proved:
                _refuse(
                    {
                        name: cell,
                        proved[OTHER[sign]]: signs[proved[OTHER[sign]]].decimal[OTHER[sign]],
                    }
                )
            if name in own and not proved and OTHER[sign] in either and mark != ",":
                _refuse(
                    {
                        name: cell,
                        either[OTHER[sign]]: signs[either[OTHER[sign]]].either[OTHER[sign]],
                    }
                )
            decimal = decimal or (
                sign if sign in proved or not (proved or separates_cells) else OTHER[sign]
            )
            if not proved and mark != ",":
                guessed.append(name)
        if decimal is not None:
            found[name] = decimal
    for sign in OTHER:
        marked = [
            name for name in found if sign in signs[name].thousands or sign in signs[name].either
        ]
        thousands = [name for name in marked if found[name] != sign]
        open_ones = [name for name in guessed if found.get(name) == sign]
        sure = [name for name in found if found[name] == sign == "," and name not in open_ones]
        if thousands:
            way = "" if proved else f": --decimal '{sign}' if they are not"
            notes.append(
                f"{NAMES[sign]} in {_some(thousands)} read as separators of thousands{way}"
            )
        if sure:
            notes.append(f"commas in {_some(sure)} read as decimal points")
        if open_ones:
            notes.append(
                f"{NAMES[sign]} in {_some(open_ones)} read as decimal points: --thousands '{sign}' if they are not"
            )
    return found


def _refuse(cells: dict[str, str]) -> None:
    """End if columns contradict one another."""
    said = " and ".join(f"{cell!r} in {name}" for name, cell in cells.items())
    fail(
        f"numbers are written in two ways, or thousands cannot be told from decimals: {said}; say how the file writes them by "
        "--decimal and --thousands, such as --decimal ',' --thousands '.', or write all alike."
    )


def _match_cells(column: pd.Series, ways: Iterable[re.Pattern[str]]) -> pd.Series | None:
    """Return the filled cells without spaces around them.

    None if one is not a number in these conventions.
    """
    filled = column.dropna().astype(str).str.strip().str.replace(f"[{SPACES}]", " ", regex=True)
    filled = filled.str.replace(CURRENCY, r"\1", regex=True)
    known = np.zeros(len(filled), bool)
    for way in ways:
        known |= filled.str.fullmatch(way.pattern).to_numpy(bool)
    return filled if len(filled) and known.all() else None


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
        LONG.search(content) is not None
        or re.search(r"(?:^|[,;\t\"' ])0\d", content, re.MULTILINE) is not None
    )
    whole = [
        name
        for name in frame
        if pd.api.types.is_numeric_dtype(frame[name]) and _is_whole(frame[name])
    ]
    if not odd or not whole:
        return frame
    padded = []
    for name, cells in reread(whole).items():
        filled = cells.dropna().str.strip()
        zeros = filled.str.fullmatch(ZEROS.pattern).any()
        long = filled.str.fullmatch(LONG.pattern).any()
        if long or (zeros and filled.nunique() > frame[name].nunique()):
            frame[name] = filled.reindex(frame.index)
        elif zeros:
            padded.append(str(name))
    if padded:
        notes.append(
            f"{_some(padded)} read as numbers, though zeros stand before them as in labels"
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
            pd.api.types.is_numeric_dtype(column)
            or not column.map(lambda cell: isinstance(cell, str) or pd.isna(cell)).all()
        ):
            continue
        bare = column.str.strip()
        bare = bare.mask(bare == "")
        levels = bare.dropna().unique()
        if (merged := column.nunique() - len(levels)) > 0:
            frame[name] = bare
            notes.append(f"spaces around labels of {name} left out, which makes {merged} fewer")
        elif not bare.equals(column):
            frame[name] = bare
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
    if pd.api.types.is_numeric_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return column
    number = pd.to_numeric(column, errors="coerce")
    if number.isna().any() or column.astype(str).str.fullmatch(LONG.pattern).any():
        return column
    if number.nunique() == column.nunique():
        return number
    return column


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
