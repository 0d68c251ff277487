"""Results: codes of refits, whose values are the user's messages, and printed lines of a name and a
text.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np

from .arrays import BoolArray, IntArray
from .conventions import lacking_attribute
from .pandas import pd

T = TypeVar("T")
Lines = list[tuple[str, str]]  # printed lines of a name and a text
TABLE_FLOAT = "{:.4g}".format  # numbers of printed tables
TERMINAL_WIDTH = 80  # characters of a line


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a record: a frozen dataclass that is equal to itself only, and prints as its
    base does, or else as its fields.
    """
    return dataclass(frozen=True, eq=False, repr=cls.__repr__ is object.__repr__)(cls)


class CodeWithText(enum.IntEnum):
    """A number with a text in `message`."""

    message: str

    def __new__(cls, code: int, message: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        return member


class RESULTS(CodeWithText):
    """Outcome of one refit. `RESULTS(code).message` explains it and names a remedy.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.RESULTS(0).name, lo.RESULTS.kink.message
    ('successful', 'the step crosses a point where the loss is not twice differentiable')
    """

    successful = 0, ""
    uncertified = (
        1,
        "the error of this refit could not be bounded by a small number; use Exact() for it",
    )
    kink = 2, "the step crosses a point where the loss is not twice differentiable"
    not_converged = (
        3,
        "no minimiser was reached: what is left may not determine every parameter, as without a class, a group or a state, or "
        "where classes do not overlap; add a penalty or a prior, or merge the folds",
    )
    undetermined = (
        4,
        "the remaining data do not determine every parameter (leverage 1): held-out units that depend on such a one have no "
        "loss; add a penalty, drop the column, or draw the effects of groups that leave whole: lo.Mixed('… + (1 | group)')",
    )
    nonfinite = (
        5,
        "the loss or its gradient is not finite at the refit; check the data of this fold",
    )
    emptied = (
        6,
        "the fold holds all that is known of a state or class: its parameters come from the prior or penalty alone; "
        "take smaller folds, or fewer states",
    )
    other_minimum = (
        7,
        "F has a lower minimum elsewhere, among those that the fit's starts found, than where descent from the fit led; "
        "its held-out loss is that of the refit reported; Estimate.elsewhere has those at the lower one",
    )
    missed = (
        8,
        "an audit, which repeats refits exactly by another way, found its error larger than reported; use Exact()",
    )
    leaving = (
        9,
        "a probability, or a variance, that is zero in the fit, where its data put it, would leave zero in this fold: F falls "
        "that way; the refit reported holds it, and so does its held-out loss; a prior keeps probabilities off zero",
    )
    interrupted = (
        10,
        "not made: the run was stopped before; with checkpoint= the same call goes on from there",
    )
    heavy_weights = (
        11,
        "the importance weights of this fold have no mean that can be trusted: Pareto's k is 0.7 or more, or large for so few "
        "effective draws, or two estimates of its elpd differ by 0.1 or more; integrate out effects of groups that leave, or "
        "give lo.bayes.elpd your sampler as refit=; of a fold that was sampled anew, take more draws",
    )


class SettledBy(CodeWithText):
    """The rung that gave a refit of a linear predictor its error, in words."""

    unknown = -1, "no rung"
    one_step = 0, "one step"
    next_term = 1, "the next term"
    products = 2, "products of rows"
    sample = 3, "a sample of rows"
    steps = 4, "steps"
    conjugate_gradients = 5, "conjugate gradients"
    newton = 6, "Newton's method"


# refits that do not exist
NO_REFIT_CODES = RESULTS.undetermined, RESULTS.not_converged, RESULTS.nonfinite


def among(result: IntArray, codes: Iterable[RESULTS]) -> BoolArray:
    """Mark the refits that have one of the given codes."""
    listed = np.zeros(len(RESULTS), bool)
    listed[list(codes)] = True
    return listed[result]


def kind_of(objective: Any) -> str:
    """Name of the kind of model, as users know it.

    A stand-in has the name of the model that it stands in for.
    """
    kind = type(objective)
    return getattr(kind, "shown", kind.__name__)


def lines_as_text(lines: Iterable[tuple[str, str]], width: int = 15) -> str:
    """Write lines of a name and a text, one below the other.

    Names have at least `width` characters.
    """
    return "\n".join(f"{name:<{width}} {text}" for name, text in lines)


def lines_as_html(lines: Iterable[tuple[str, str]]) -> str:
    """Write lines of a name and a text as a table of HTML."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in lines
    )
    return f"<table>{rows}</table>"


def text_within(
    frame: "pd.DataFrame", main: Sequence[str], optional: Sequence[str], digits: int
) -> tuple[str, list[str]]:
    """Write a table with its main columns, and the optional ones that fit on a line; return those
    that do not.

    Long names of rows are cut in the middle.
    """
    number = f"{{:.{digits}g}}".format
    wide = len(frame[list(main)].to_string(index=False, float_format=number).partition("\n")[0])
    half = max(TERMINAL_WIDTH - wide - 3, 8) // 2
    names = [
        name if len(name) <= 2 * half + 1 else f"{name[:half]}…{name[-half:]}"
        for name in map(_row_name, frame.index)
    ]
    plain = pd.DataFrame(frame).set_axis(names)
    shown = list(main)
    omitted = list[str]()
    for name in optional:
        line = plain[[*shown, name]].to_string(float_format=number).partition("\n")[0]
        (shown if len(line) <= TERMINAL_WIDTH else omitted).append(name)
    return plain[shown].to_string(
        float_format=number, max_rows=pd.options.display.max_rows
    ), omitted


def _row_name(label: object) -> str:
    if isinstance(label, tuple):
        return ", ".join(map(str, label))
    return str(label)


class PrintedResult:
    """Base of results that print as lines of a name and a text. Notebooks, pages and Markdown show
    them as a table.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name) or name.startswith("_"):
                return object.__getattribute__(self, name)  # raises what it raised before
            raise lacking_attribute(type(self), name)

    def _facts(self) -> Lines:
        """Return the lines; one without a text is not printed."""
        raise NotImplementedError

    def _lines(self) -> Lines:
        return [(name, text) for name, text in self._facts() if text]

    def __str__(self) -> str:
        return lines_as_text(self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return lines_as_html(self._lines())

    def to_markdown(self) -> str:
        """Format the printed lines as a table in Markdown.

        Returns
        -------
        str
            The table.
        """
        cell = lambda text: (
            escape(text, quote=False).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
        )
        return "\n".join(
            [
                "| | |",
                "|---|---|",
                *(f"| {cell(name)} | {cell(text)} |" for name, text in self._lines()),
            ]
        )


class PagedResult(PrintedResult):
    """Base of printed results that `report` writes by a module of their own; `_page_module` is the
    name under which `providers` knows it.
    """

    _page_module: ClassVar[str]


class AbstractPosterior(PrintedResult):
    """Base of posteriors, of which `influence` is computed by a module that `providers` knows."""


class PrintedTable(PrintedResult):
    """Base of results that print as a few lines, and a table of numbers under them."""

    table: "pd.DataFrame"

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self._shown().to_string(float_format=TABLE_FLOAT)}"

    __repr__ = __str__

    def _shown(self) -> "pd.DataFrame":
        """Return the table without the columns that hold nothing."""
        return self.table.dropna(axis=1, how="all")

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self._shown().to_html(float_format=TABLE_FLOAT)

    def to_markdown(self) -> str:
        """Format the printed lines, and the table, as tables in Markdown.

        Returns
        -------
        str
            The tables.
        """
        shown = self._shown()
        cells = [["", *map(str, shown.columns)], ["---"] * (1 + shown.shape[1])]
        number = lambda value: TABLE_FLOAT(value) if isinstance(value, float) else str(value)
        cells += [
            [str(name), *map(number, row)] for name, *row in shown.astype(object).itertuples()
        ]
        escaped = [[escape(cell, quote=False).replace("|", "\\|") for cell in row] for row in cells]
        return (
            super().to_markdown() + "\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in escaped)
        )
