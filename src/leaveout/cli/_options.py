"""Options that several commands have, each checked before anything is computed."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

import leaveout as lo

from ._cells import OTHER, SEPARATORS
from ._console import fail

REFITS: dict[str, lo.AbstractRefit] = {
    "certified": lo.Certified(),
    "exact": lo.Exact(),
    "newton": lo.NewtonStep(),
    "ij": lo.InfinitesimalJackknife(),
    "none": lo.NoUpdate(),
}
SCORES = ("log-density", "squared-error", "absolute-error", "zero-one", "crps")
PICTURES, PAGES = (".png", ".pdf", ".svg"), (".html", ".htm")


def one_of(option: str, choices: Sequence[str]) -> Callable[[str | None], str | None]:
    """Return a callback that checks that the value, if given, is one of the choices."""

    def check(value: str | None) -> str | None:
        return (
            value if value is None or value in choices else fail(f"{option} {value}: it must be one of {', '.join(choices)}.")
        )

    return check


def at_least(option: str, least: int) -> Callable[[int], int]:
    """Return a callback that checks a lower bound of the value."""

    def check(value: int) -> int:
        return value if value >= least else fail(f"{option} {value}: give {least} or more.")

    return check


def writable(file: Path | None) -> Path | None:
    """Check, as a callback, that the file can be written."""
    if file is None:
        return None
    if not file.parent.is_dir():
        fail(f"{file}: there is no folder {file.parent}; make it first.")
    if file.is_dir():
        fail(f"{file} is a folder; name a file in it.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        fail(f"{file}: no permission to write there; name another file.")
    return file


def number_file(file: Path | None, number: int) -> Path | None:
    """Number a file for each of several models: `run.ckpt`, `run-2.ckpt` and so on."""
    return file if file is None or number == 1 else file.with_name(f"{file.stem}-{number}{file.suffix}")


def drawable(file: Path | None) -> Path | None:
    """Check, as a callback, that a picture can be drawn into the file."""
    if file is not None and file.suffix.lower() not in PICTURES:
        fail(f"{file}: the name of a picture must end in one of {', '.join(PICTURES)}.")
    if file is not None and importlib.util.find_spec("matplotlib") is None:
        fail("A picture needs Matplotlib: pip install 'leaveout[plot]'.")
    return writable(file)


def pageable(file: Path | None) -> Path | None:
    """Check, as a callback, that a report can be written into the file."""
    if file is not None and file.suffix.lower() not in PAGES:
        fail(f"{file}: the name of a report must end in .html.")
    if file is not None and any(importlib.util.find_spec(name) is None for name in ("jinja2", "vl_convert")):
        fail("A report needs Jinja2 and vl-convert: pip install 'leaveout[report]'.")
    return writable(file)


def muting(text: str | None) -> str | None:
    """Check, as a callback, codes of checks."""
    wrong = [code for code in (text or "").replace(" ", "").split(",") if code and code not in lo.validation.CHECKS]
    return fail(f"--mute {', '.join(wrong)}: codes are {', '.join(lo.validation.CHECKS)}.") if wrong else text


def protect_input(data: Path, *written: Path | None) -> None:
    """Stop before a command writes over the file that it reads."""
    for file in written:
        if file is not None and file.resolve() == data.resolve():
            fail(f"{file}: it is the file that is read; name another.")


def out_option(what: str) -> typer.models.OptionInfo:
    """Make an option `--out` for a CSV file of the given content."""
    return typer.Option(help=f"A CSV file for {what}.", readable=False, callback=writable)


Data = Annotated[Path, typer.Argument(help="A CSV file with a header, or Parquet; - is standard input.", readable=False)]
Features = Annotated[str | None, typer.Option(help="Columns to use, with commas between; all others if not given.")]
Categorical = Annotated[str | None, typer.Option(help="Columns of categories, with commas between.")]
Score = Annotated[
    str | None,
    typer.Option(
        help=f"Of the held-out rows: {', '.join(SCORES)}; the loss itself if not given.",
        callback=one_of("--score", SCORES),
    ),
]
Seed = Annotated[int, typer.Option(help="Of the folds.")]
Refit = Annotated[str, typer.Option(help=f"One of {', '.join(REFITS)}.", callback=one_of("--refit", tuple(REFITS)))]
Starts = Annotated[int, typer.Option(help="Starts of each fit.", callback=at_least("--starts", 1))]
StartSeed = Annotated[int, typer.Option(help="Of the starts, and of random folds.")]
States = Annotated[str, typer.Option(help="Numbers of states to compare: 2,3,4 or 2-4.")]
Offset = Annotated[str | None, typer.Option(help="A column added to the linear predictor.")]
Weights = Annotated[str | None, typer.Option(help="A column of weights.")]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave rows with missing values out.")]
Decimal = Annotated[
    str | None,
    typer.Option(
        help="The sign before the decimals of all numbers, . or , where the file does not show it.",
        callback=one_of("--decimal", tuple(OTHER)),
    ),
]
Thousands = Annotated[
    str | None,
    typer.Option(
        help="The sign between thousands of all numbers, such as . or ,",
        callback=one_of("--thousands", SEPARATORS),
    ),
]
Table = Annotated[Path | None, out_option("the table")]
RowTable = Annotated[Path | None, out_option("the losses of the rows")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="A file that keeps what is done: the same command goes on from there, if it was stopped.",
        readable=False,
        callback=writable,
    ),
]
Plot = Annotated[Path | None, typer.Option(help="A file for a picture (png, pdf, svg).", readable=False, callback=drawable)]
Report = Annotated[
    Path | None, typer.Option(help="A file for a report, a page by itself (html).", readable=False, callback=pageable)
]
Mute = Annotated[str | None, typer.Option(help="Codes of checks not to tell, as LO103,LO202.", callback=muting)]
