"""Files: rows of a CSV or Parquet file, tables and pictures, with one line on standard error for
unusable input.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import leaveout as lo

from ._cells import BY_THE_FILE, Convention, as_labels, is_numeric, settle, trim_text
from ._console import abbreviate, console, fail, join_notes, writing
from ._options import split_names

pd = lo.developer.pd

PARQUET = ".parquet", ".pq"
EXCEL = ".xlsx", ".xls"
# pandas' name of a column without a name, such as a saved index
NAMELESS = re.compile(r"Unnamed: \d+")
WIDEST = 5000  # largest number of columns; more are a mistake
# marks of missing values beside pandas' NA, nan and null
MISSING = "?", "-", "--", ".", "*", "missing", "unknown"
MARKS = ",;\t"  # separators of cells; the most frequent in the header, commas first
DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
THOUSANDS = re.compile(r"[+-]?\d{1,3}([,.'  ]\d{3})+([,.]\d+)?")


@dataclass(frozen=True)
class Reading(Convention):
    """Options for how the rows of a file are read.

    Attributes
    ----------
    drop_missing : --drop-missing
        Leave rows with missing values out.
    """

    drop_missing: bool = False


@dataclass(frozen=True)
class FileTable:
    """Table of a file: its rows, numbered from 1 as in the file, its name, and remarks."""

    frame: pd.DataFrame
    name: str
    note: str = ""
    columns: tuple[str, ...] = ()  # columns of the file, if there were too many to read
    # columns of labels, and a cell of each that counts as missing, such as NA
    missing_cells: tuple[tuple[str, str], ...] = ()
    # rows left out by the columns that they miss values of
    excluded: dict[str, int] = field(default_factory=dict)

    def column(self, name: str) -> pd.Series:
        """Return a column, or end with the names of the columns."""
        if name not in self.frame.columns:
            fail(f"{self.name} has no column {name!r}; {self.column_list}")
        return self.frame[name]

    def only(self, column: str | None) -> str:
        """Return the named column, else the only one."""
        if column is None and self.frame.shape[1] > 1:
            fail(f"{self.name} has several columns: name one by --column; {self.column_list}")
        if column is None:
            return self.frame.columns[0]
        return column.strip()

    @property
    def column_list(self) -> str:
        return f"it has {abbreviate(list(self.columns or self.frame.columns), 20)}."

    def names(self, option: str, column: str) -> pd.Index:
        """Name the rows by the cells of a column, as text; end if one is empty or there twice."""
        cells = self.column(column)
        if cells.isna().any():
            fail(
                f"{option} {column}: row {cells.index[cells.isna()][0]} of {self.name} has no name there; give each row one."
            )
        names = pd.Index(cells.astype(str))
        if not names.is_unique:
            duplicate = names[names.duplicated()][0]
            fail(
                f"{option} {column}: {duplicate!r} is there twice in {self.name}; name a column of ids, or make one of several."
            )
        return names

    def numbers(self, name: str, way: str) -> np.ndarray:
        """Return a column as numbers, NaN for empty cells.

        `way` is the advice if it has anything else.
        """
        column = self.column(name)
        if isinstance(column.dtype, pd.CategoricalDtype):
            fail(
                f"column {name!r} holds categories, such as {str(column.dropna().iloc[:1].squeeze())!r}; {way}."
            )
        if not (is_numeric(column) or pd.api.types.is_object_dtype(column)):
            column = column.astype(object)  # so that dates and times do not become nanoseconds
        cells = column
        if column.dtype == object:
            cells = column.mask(column.map(lambda value: hasattr(value, "isoformat")), "date")
        number = pd.to_numeric(cells, errors="coerce")
        wrong = np.flatnonzero(column.notna() & number.isna())
        if (
            not len(wrong)
            and (distinct := number[column.notna()].nunique()) < column.nunique()
            and column.dtype.kind not in "biuf"
            and column.astype(str).str.fullmatch(r"0\d+").any()
        ):
            fail(
                f"column {name!r} holds {column.nunique()} labels that are {distinct} numbers, as '01' and '1'; {way}."
            )
        if len(wrong):
            value = str(column.iloc[wrong[0]])
            way = describe_mixture(column) or way
            separated = "write numbers without separators of thousands, or name these by --thousands, and --decimal"
            if THOUSANDS.fullmatch(value):
                way = separated
            if value.strip().lower() in MISSING:
                way = "leave the cell empty where a value is missing"
            if DATE.fullmatch(value.strip()):
                way = f"put the time since a day into a column of numbers, or {way}"
                fail(
                    f"column {name!r} holds dates: {value!r} in row {column.index[wrong[0]]}; {way}."
                )
            fail(f"column {name!r} holds text: {value!r} in row {column.index[wrong[0]]}; {way}.")
        return number.to_numpy(float, na_value=np.nan)


def describe_mixture(column: pd.Series) -> str:
    """Say how many cells are numbers, where most are; empty for any other column."""
    number = pd.to_numeric(column, errors="coerce")
    words = column[column.notna() & number.isna()].astype(str)
    count = int(number.notna().sum())
    if not 0 < len(words) < count:
        return ""
    mark = words.mode()[0]
    places = words.index[words == mark]
    rows = abbreviate([*map(str, places)], 3)
    return f"{count} of {count + len(words)} are numbers, {len(places)} are {mark!r} (rows {rows}): --na {mark!r} if missing"


def is_dates(column: pd.Series) -> bool:
    """Tell whether all filled cells are dates."""
    cells = column.dropna()
    if pd.api.types.is_datetime64_any_dtype(column):
        return True
    return not is_numeric(column) and bool(cells.astype(str).str.fullmatch(DATE.pattern).all())


def shorten_names(names: list[str]) -> str:
    """Join names in a line, the first ones if there are many."""
    max_names_in_line = 12  # largest number of names in a line
    surplus = len(names) - max_names_in_line
    return f"{', '.join(names[:max_names_in_line]) or 'none'}{f', … {surplus} more' if surplus > 0 else ''}"


def content(file: Path, description: str = "a CSV or Parquet file") -> tuple[bytes, str]:
    """Read the bytes of a file, or of standard input for `-`, with its name."""
    if str(file) == "-":
        return sys.stdin.buffer.read(), "standard input"
    if file.is_dir():
        fail(f"{file} is a folder; name a file in it.")
    if not file.exists():
        fail(
            f"{file}: there is no such file; give the path of {description}, or - for standard input."
        )
    try:
        return file.read_bytes(), file.name
    except OSError as error:
        fail(
            f"{file}: it could not be read ({error.strerror}); see to its permissions, or name another file."
        )


def text(data: bytes, name: str, encoding: str = "utf-8") -> str:
    """Decode the text of a file, with or without a byte-order mark."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    if data.startswith((b"\x1f\x8b", b"PK\x03\x04", b"BZh")):
        fail(f"{name}: it is compressed, or a spreadsheet; unpack it, or name it .xlsx.")
    try:
        string = data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        way = (
            "save it as UTF-8, or name its --encoding, such as latin-1"
            if encoding == "utf-8"
            else "name another --encoding"
        )
        fail(
            f"{name}: it could not be read as text in {encoding.upper()} (byte {error.start + 1}); {way}."
        )
    except LookupError:
        fail(
            f"--encoding {encoding}: Python knows no such encoding; name another, such as latin-1 or cp1252."
        )
    if "\0" in string:
        fail(f"{name}: it holds bytes that are no text; give a text file.")
    return string


def read(
    file: Path,
    used: Collection[str | None] = (),
    as_text: Callable[[str], bool] = lambda _: False,
    convention: Convention = BY_THE_FILE,
) -> FileTable:
    """Read the rows of a CSV file (commas, semicolons or tabs), of Parquet, or of either on
    standard input for `-`.

    Columns without a name, such as a saved index, are left out with a remark. From a CSV file with
    more columns than any model has, only those that are `used` are read. Columns of labels are read
    unchanged, `as_text`.
    """
    data, name = content(file)
    notes: list[str] = []
    header: list[str] = []
    missing_cells = []
    missing = split_names(convention.na)
    excel = file.suffix.lower() in EXCEL
    if not (excel or data.startswith(b"PAR1") or file.suffix.lower() in PARQUET):
        lines = _from_header(text(data, name, convention.encoding), notes)
        mark, header = _header(lines, name)
        frame, parse = _csv(lines, name, mark, header, used, as_text, missing)
        reread = lambda columns: parse(columns, dtype=str)
        used_columns = set(filter(None, used)) if used and "." not in used else set(frame.columns)
        frame = settle(frame, reread, as_text, used_columns, (mark, convention), notes)
        frame = as_labels(frame, reread, lines, notes)
        gaps = [column for column in frame if as_text(column) and frame[column].isna().any()]
        for column, cells in parse(gaps, dtype=str, keep_default_na=False).items() if gaps else ():
            words = cells[frame[column].isna() & (cells.str.strip() != "")]
            missing_cells += [(str(column), cell) for cell in words.iloc[:1]]
    else:
        kind, extra = ("Excel", "excel") if excel else ("Parquet", "parquet")
        try:
            table = io.BytesIO(data)
            frame = (
                pd.read_excel(table, na_values=missing)
                if excel
                else pd.read_parquet(table).replace(missing, np.nan)
            )
        except ImportError as error:
            fail(f"{name}: {kind} needs pip install 'leaveout[{extra}]' ({error}).")
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            fail(f"{name}: it could not be read as {kind} ({error}).")
    frame = frame.rename(columns=str).set_axis(pd.RangeIndex(1, len(frame) + 1))
    nameless = [column for column in frame.columns if NAMELESS.fullmatch(column)]
    if nameless:
        notes.append(
            f"{len(nameless)} columns without names left out"
            if len(nameless) > 1
            else "a column without a name left out"
        )
        frame = frame.drop(columns=nameless)
    if frame.empty:
        fail(f"{name}: a header and no rows.")
    frame = trim_text(frame, notes)
    columns = tuple(map(str.strip, header)) if len(header) > WIDEST else ()
    return FileTable(frame, name, join_notes(*notes), columns, tuple(missing_cells))


def _from_header(content: str, notes: list[str]) -> str:
    """Leave out lines above the header, such as a title.

    They have one cell, where all that follow have several.
    """
    lines = [line for line in content.split("\n", 30)[:30] if line.strip()]
    enough = 3  # lines alike, from which the first of them is a header
    starts = []
    for mark in MARKS:
        with suppress(csv.Error):  # a cell that is too long
            sizes = [len(row) for row in csv.reader(lines, delimiter=mark)]
            start = next((k for k, size in enumerate(sizes) if size > 1), len(lines))
            if len(lines) == len(sizes) >= start + enough and len(set(sizes[start:])) == 1:
                starts.append(start)
    start = min(starts, default=0)  # decimal commas are no separators
    if start:
        notes.append(f"{start} line{'s' if start > 1 else ''} above the header left out")
        return content[content.index(lines[start]) :]
    return content


def _header(content: str, name: str) -> tuple[str, list[str]]:
    """Find the separator of the cells, and return it with the checked cells of the header."""
    first = next(filter(str.strip, io.StringIO(content)), "").rstrip("\r\n")
    if not first:
        fail(f"{name}: it is empty; give CSV with a header.")

    def cells(mark: str) -> list[str]:
        try:
            return next(csv.reader([first], delimiter=mark, skipinitialspace=True))
        except csv.Error:  # a cell that is too long
            return [first]

    mark = max(MARKS, key=lambda mark: len(cells(mark)))
    header = cells(mark)
    names = [cell.strip() for cell in header]
    duplicates = [column for column, count in Counter(filter(None, names)).items() if count > 1]
    if duplicates:
        fail(
            f"{name}: columns that share a name: {', '.join(map(repr, duplicates[:5]))}; rename them."
        )
    filled = pd.Series(list(filter(None, names)), dtype=object)
    if np.isfinite(pd.to_numeric(filled, errors="coerce").astype(float)).all():  # or there are none
        fail(
            f"{name}: its first line, {mark.join(names)[:40]!r}, is no header; put one with the columns' names above it."
        )
    return mark, header


def _csv(
    content: str,
    name: str,
    mark: str,
    header: list[str],
    used: Collection[str | None],
    as_text: Callable[[str], bool],
    missing: Sequence[str],
) -> tuple[pd.DataFrame, Callable[..., pd.DataFrame]]:
    """Parse the rows of a CSV file; return them with a function that parses columns of it again."""
    wide = len(header) > WIDEST
    if wide and not any(cell.strip() in used for cell in header):
        fail(
            f"{name}: its {len(header)} columns are too many; name those to use, such as by --features."
        )

    def parse(columns: Collection[str | None] | None, **extra_options) -> pd.DataFrame:
        chosen = None if columns is None else lambda column: column.strip() in columns
        part = pd.read_csv(
            io.StringIO(content),
            usecols=chosen,
            sep=mark,
            low_memory=False,
            skipinitialspace=True,
            index_col=False,
            na_values=missing,
            **extra_options,
        )
        return part.set_axis(part.columns.str.strip(), axis=1)

    try:
        with warnings.catch_warnings():
            # warnings of cells that would be lost
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return parse(
                used if wide else None,
                dtype={cell: str for cell in header if as_text(cell.strip())},
            ), parse
    except pd.errors.ParserWarning:
        first = mark.join(map(str.strip, header))[:40]
        fail(
            f"{name}: its first line, {first!r}, has fewer cells than its rows; give each column a name."
        )
    except ValueError as error:  # all errors of pandas are ValueErrors
        fail(f"{name}: it could not be read as CSV with a header ({error}).")


def complete(rows: FileTable, columns: Sequence[str], drop: bool, way: str = "") -> FileTable:
    """Select the rows without missing values in the used columns."""
    used = [column for column in dict.fromkeys(columns) if column in rows.frame.columns]
    missing = rows.frame[used].isna()
    count = missing.sum()
    count = count[count > 0]
    if not len(count):
        return rows
    by = abbreviate([f"{name} ({number})" for name, number in count.items()], 8)
    words = [
        f"{cell!r} in {name} counts as missing; if it is a label, write it in another way"
        for name, cell in rows.missing_cells
    ]
    way = join_notes(way, *words)
    if not drop:
        fail(
            f"{rows.name}: missing values in {by}; --drop-missing leaves those rows out{f', or {way}' if way else ''}."
        )
    keep = ~missing.any(axis=1)
    if not keep.any():
        fail(
            f"{rows.name}: every row has a missing value, in {by}; {way or 'fill them, or drop those columns'}."
        )
    remark = f"{int((~keep).sum())} rows with missing values left out"
    by_column = missing.dot(missing.columns + ", ").str.rstrip(", ")[~keep].value_counts()
    excluded = {f"no {columns}": int(number) for columns, number in by_column.items()}
    return replace(
        rows, frame=rows.frame[keep], note=join_notes(rows.note, remark), excluded=excluded
    )


def save(table: pd.DataFrame, file: Path | None, name: str = "Table") -> None:
    """Write a table, with its index if that has a name."""
    if file is not None:
        with writing(file):
            table.to_csv(file, index=table.index.name is not None)
        console.print(f"{name}: {file}")


def picture(draw: Callable[[], Any], file: Path | None) -> None:
    """Draw axes into a file, without repeated warnings, a window, or the backend of a notebook."""
    if file is None:
        return
    with warnings.catch_warnings(action="ignore", category=UserWarning), writing(file):
        with suppress(ImportError):  # drawing reports a missing library
            import matplotlib

            matplotlib.use("agg")
        figure = draw().get_figure(root=True)
        figure.savefig(file, dpi=150)
        from matplotlib import pyplot

        pyplot.close(figure)
    console.print(f"Picture: {file}")
