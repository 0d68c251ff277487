"""Terms of additive models: formulas, and terms bound to data.

Formulaic reads formulas. Python's own parser reads calls in them such as `s(x, k=20)`, whose names
are columns and whose values are literals.
"""

import ast
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..._runtime import (
    ArrayList,
    ArrayTuple,
    NumpyArray,
    PerRow,
    Shape,
    Strings,
    TwoNumbers,
    record,
)
from ...data import codes, count, floats, is_number, match_labels, pandas_of
from . import bases as bases
from .bases import Design

__all__ = ["s", "te", "ti"]
__dir__ = __all__.copy

Kind = Literal["tp", "cr", "cc", "ps", "re", "mrf"]
KINDS: tuple[Kind, ...] = ("tp", "cr", "cc", "ps", "re", "mrf")
LABELS = "re", "mrf"  # bases whose column holds labels
MIN_BASIS_SIZE = {"tp": 3, "cr": 3, "cc": 4, "ps": 5}


@record
class Smooth:
    """Smooth function of columns, from `lo.terms.s`, `lo.terms.te` or `lo.terms.ti`."""

    call: str
    columns: Strings
    k: Shape
    bs: Strings
    by: str | None = None
    period: TwoNumbers | None = None
    edges: Any = None

    @property
    def label(self) -> str:
        call = f"{self.call}({', '.join(self.columns)})"
        return call if self.by is None else f"{call}:{self.by}"

    def __repr__(self) -> str:
        return self.label


def s(
    *columns: str,
    k: int | None = None,
    bs: Kind = "tp",
    by: str | None = None,
    period: TwoNumbers | None = None,
    edges: Any = None,
) -> Smooth:
    """Define a smooth function of one column, or of two or three columns in the same unit, for
    `lo.Additive`.

    Parameters
    ----------
    *columns : str
        Names of columns, or expressions of columns such as "log(x)".
    k : int, optional
        Number of basis functions. The default is 10 for one column and 30 for more. "re" and "mrf"
        take none.
    bs : {"tp", "cr", "cc", "ps", "re", "mrf"}, default: "tp"
        Basis. "tp" are thin-plate splines, "cr" cubic splines, "cc" periodic cubic splines, "ps"
        P-splines, "re" a random effect of each level, "mrf" an effect of each site of a graph,
        close to those of its neighbours.
    by : str, optional
        Column of numbers that multiplies the function; or of labels, which have a function and a λ
        each.
    period : tuple of float, optional
        Lowest and highest value of a period, for "cc".
    edges : optional
        Edges of the graph, for "mrf", in any form that `lo.neighbourhoods` takes.

    Returns
    -------
    Smooth
        The term, for a list of terms.

    Raises
    ------
    ValueError
        If the basis is not known, or the arguments do not go together.
    TypeError
        If columns are not given by name.

    See Also
    --------
    te, ti, Additive

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.terms.s("x"), lo.terms.s("day", bs="cc", period=(0, 7)), lo.terms.s("x", by="group")
    (s(x), s(day), s(x):group)
    """
    if bs not in KINDS:
        raise ValueError(f"s: bs must be one of {', '.join(map(repr, KINDS))}; got {bs!r}.")
    if not columns or (len(columns) > 1 and bs != "tp"):
        raise ValueError(
            f"s: bs={bs!r} takes one column; got {len(columns)}. Use te() for products."
        )
    if period is not None and (bs != "cc" or not period[0] < period[1]):
        raise ValueError(
            f"s: period=(low, high) goes with bs='cc', low below high; got {period!r}, bs={bs!r}."
        )
    if edges is not None and bs != "mrf":
        raise ValueError(f"s: edges= go with bs='mrf'; got bs={bs!r}.")
    if k is None:
        k = 10 if len(columns) == 1 else 30
    elif bs in LABELS:
        raise ValueError(f"s: bs={bs!r} has a function a level, and takes no k.")
    least = MIN_BASIS_SIZE.get(bs, 0)
    return Smooth(
        "s", _check_columns("s", columns), (count("s: k", k, least),), (bs,), by, period, edges
    )


def te(
    *columns: str,
    k: int | Sequence[int] = 5,
    bs: Kind | Sequence[Kind] = "cr",
    by: str | None = None,
) -> Smooth:
    """Define a smooth function of several columns, each in units of its own, for `lo.Additive`.

    Its basis holds the products of the bases of the columns. Every column has a smoothing parameter
    λ of its own.

    Parameters
    ----------
    *columns : str
        Names of two or more columns, or expressions of columns.
    k : int or sequence of int, default: 5
        Number of basis functions, one for all columns or one for each.
    bs : str or sequence of str, default: "cr"
        Basis, one for all columns or one for each: "tp", "cr", "cc", "ps" or "re" (see `s`).
    by : str, optional
        Column of numbers that multiplies the function, or of labels that have a function each.

    Returns
    -------
    Smooth
        The term, for a list of terms.

    Raises
    ------
    ValueError
        If there are fewer than two columns, or `k` or `bs` do not fit them.
    TypeError
        If columns are not given by name.

    See Also
    --------
    s, ti, Additive

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.terms.te("x", "z", k=(5, 8))
    te(x, z)
    """
    return _product("te", columns, k, bs, by)


def ti(
    *columns: str,
    k: int | Sequence[int] = 5,
    bs: Kind | Sequence[Kind] = "cr",
    by: str | None = None,
) -> Smooth:
    """Define the interaction of several columns alone, for `lo.Additive`.

    The function is that of `te` without the functions of single columns. Add `s` of each column
    beside it.

    Parameters
    ----------
    *columns : str
        Names of two or more columns, or expressions of columns.
    k : int or sequence of int, default: 5
        Number of basis functions, one for all columns or one for each.
    bs : str or sequence of str, default: "cr"
        Basis, one for all columns or one for each: "tp", "cr", "cc", "ps" or "re" (see `s`).
    by : str, optional
        Column of numbers that multiplies the function, or of labels that have a function each.

    Returns
    -------
    Smooth
        The term, for a list of terms.

    Raises
    ------
    ValueError
        If there are fewer than two columns, or `k` or `bs` do not fit them.
    TypeError
        If columns are not given by name.

    See Also
    --------
    te, s, Additive

    Examples
    --------
    >>> import leaveout as lo
    >>> terms = ["y", lo.terms.s("x"), lo.terms.s("z"), lo.terms.ti("x", "z")]
    >>> terms[-1]
    ti(x, z)
    """
    return _product("ti", columns, k, bs, by)


def _product(call: str, columns: Strings, k, bs, by: str | None) -> Smooth:
    ks = (k,) * len(columns) if np.ndim(k) == 0 else tuple(k)
    kinds = (bs,) * len(columns) if isinstance(bs, str) else tuple(bs)
    if len(columns) < 2 or not len(ks) == len(kinds) == len(columns):
        raise ValueError(
            f"{call}: it takes two columns or more, and k and bs one for all or one for each; got {columns}."
        )
    if not {*kinds} <= {*KINDS} - {"mrf"}:
        raise ValueError(f"{call}: bs must be among 'tp', 'cr', 'cc', 'ps', 're'; got {bs!r}.")
    sizes = tuple(
        count(f"{call}: k", size, MIN_BASIS_SIZE.get(kind, 1))
        for size, kind in zip(ks, kinds, strict=True)
    )
    return Smooth(call, _check_columns(call, columns), sizes, kinds, by)


def _check_columns(call: str, columns: Strings) -> Strings:
    if not all(isinstance(column, str) for column in columns):
        raise TypeError(f"{call}: columns are named, as {call}('x'); got {columns!r}.")
    return columns


# formulas


@dataclass(frozen=True)
class Formula:
    """Parts of a formula.

    The response, the smooth terms, the rest as a formula, and whether there is an intercept.
    """

    response: str | None
    smooths: tuple[Smooth, ...]
    linear: str
    intercept: bool


def parse(formula: Any) -> Formula:
    """Parse a formula, or a list of terms, each `lo.terms.s(...)` or a piece of a formula.

    Raise ValueError if it is not valid.
    """
    terms = [formula] if isinstance(formula, str | Smooth) else list(formula)
    term_smooths = [term for term in terms if isinstance(term, Smooth)]
    pieces = [piece for piece in terms if not isinstance(piece, Smooth)]
    if not all(isinstance(piece, str) for piece in pieces):
        raise TypeError(
            f"Additive: terms are lo.s(...), lo.te(...) or pieces of a formula; got {pieces!r}."
        )
    if pieces:
        response, text_smooths, linear, intercept = _split(" + ".join(pieces))
    else:
        response = None
        text_smooths = []
        linear = ""
        intercept = True
    smooths = (*text_smooths, *term_smooths)
    duplicates = sorted(
        {
            term.label
            for term in smooths
            if [smooth.label for smooth in smooths].count(term.label) > 1
        }
    )
    if duplicates:
        raise ValueError(f"Additive: the term {duplicates[0]} is there twice.")
    return Formula(response, smooths, linear, intercept)


def _split(text: str) -> tuple[str | None, list[Smooth], str, bool]:
    try:
        import formulaic
    except ImportError as error:
        raise ImportError(
            "Additive: formulas need formulaic: pip install 'leaveout[formula]'."
        ) from error
    try:
        parsed = formulaic.Formula(text)
    except Exception as error:
        raise ValueError(
            f"Additive: {text!r} is no formula ({_reason(text, error)}); write it as 'y ~ s(x) + z'."
        ) from error
    sides = parsed if hasattr(parsed, "lhs") else None
    response = None
    if sides is not None:
        response = " + ".join(map(str, sides.lhs))
    terms = list(parsed if sides is None else sides.rhs)
    smooths = [_call_term(term) for term in terms if _is_smooth(term)]
    linear_terms = [str(term) for term in terms if not _is_smooth(term)]
    intercept = "1" in linear_terms
    linear = " + ".join(
        ["1" if intercept else "0", *(term for term in linear_terms if term != "1")]
    )
    return response, smooths, linear if len(linear_terms) > intercept else "", intercept


def _reason(text: str, error: Exception) -> str:
    """Explain why a formula cannot be read.

    The parser does not report columns that are named like a keyword of Python.
    """
    reserved = next(
        (word for word in re.findall(r"[^\W\d]\w*", text) if keyword.iskeyword(word)), None
    )
    if reserved is None:
        return str(error)
    return f"{reserved!r} is a keyword of Python: rename that column"


def _is_smooth(term) -> bool:
    calls = [factor.expr.split("(")[0].strip() in CALLS for factor in term.factors]
    if any(calls) and len(calls) > 1:
        raise ValueError(
            f"Additive: {term} multiplies a smooth term; use by=, as in s(x, by=z), or te(x, z)."
        )
    return any(calls)


def _call_term(term) -> Smooth:
    (factor,) = term.factors
    try:
        call = ast.parse(factor.expr, mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"Additive: {factor.expr!r} could not be read ({_reason(factor.expr, error)})."
        ) from error

    try:
        columns = [
            ast.unparse(column) if not isinstance(column, ast.Constant) else column.value
            for column in call.args
        ]
        options = {
            str(option.arg): _value(option.value, str(option.arg)) for option in call.keywords
        }
    except ValueError as error:
        raise ValueError(
            f"Additive: {term}: its options are numbers, words or lists ({error})."
        ) from error
    try:
        return CALLS[call.func.id](*columns, **options)
    except TypeError as error:
        raise TypeError(f"Additive: {term}: {error}") from error


def _value(node: ast.expr, name: str):
    if name == "by" and not isinstance(node, ast.Constant):
        return ast.unparse(node)
    return ast.literal_eval(node)


CALLS: dict[str, Callable[..., Smooth]] = {"s": s, "te": te, "ti": ti}


# on data


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Evaluate a column, or an expression of columns, by pandas.

    Raise KeyError if there is none.
    """
    if name in frame.columns:
        return frame[name]
    try:
        values = frame.eval(name)
    except Exception as error:
        listed = ", ".join(map(str, frame.columns[:8]))
        raise KeyError(
            f"Additive: {name!r} is no column, nor an expression of columns ({error}); there are {listed}."
        ) from error
    if isinstance(values, pd.Series):
        return values
    return pd.Series(values, frame.index)


def frame_of(data: Any, name: str = "data") -> pd.DataFrame:
    """Convert a table of pandas, Polars or Arrow, or a mapping of columns, to a DataFrame with
    matched labels.
    """
    table = pandas_of("Additive", name, data)
    if isinstance(table, dict):
        labels, *columns = match_labels(
            "Additive", **{str(column): part for column, part in table.items()}
        )
        plain = (part.array if isinstance(part, pd.Series) else part for part in columns)
        table = pd.DataFrame(dict(zip(table, plain, strict=True)), index=labels.index)
    if not isinstance(table, pd.DataFrame):
        raise TypeError(
            f"Additive: {name} must be a table with named columns; got {type(data).__name__}."
        )
    if not len(table):
        raise ValueError(f"Additive: {name} has no rows.")
    return table


def _numbers(caller: str, frame: pd.DataFrame, name: str) -> PerRow:
    values = floats(caller, name, column(frame, name))
    if not np.isfinite(values).all():
        raise ValueError(
            f"{caller}: {name!r} holds {np.sum(~np.isfinite(values))} NaN or infinite values; drop or impute."
        )
    return values


def _labels(caller: str, frame: pd.DataFrame, name: str) -> NumpyArray:
    labels = column(frame, name)
    if labels.isna().any():
        raise ValueError(
            f"{caller}: {name!r} holds {labels.isna().sum()} missing labels; drop them, or give them one of their own."
        )
    return np.asarray(labels)


@record
class BoundTerm:
    """Smooth term bound to data.

    Its name, its basis, and the columns in the form that the basis takes.
    """

    label: str
    term: Smooth
    basis: bases.Basis
    columns: ArrayTuple
    level: Any = None  # level of `by`, if that holds labels

    def design(self, frame: pd.DataFrame) -> Design:
        """Design matrix of the term, which times its coefficients is its contribution to the linear
        predictor.
        """
        return self.times(self.basis.design(*_read(self.term, frame)), frame)

    def times(self, design: Design, frame: pd.DataFrame) -> Design:
        """Multiply a design by `by`, or set it to zero where `by` has another label."""
        if self.term.by is None:
            return design
        if self.level is None:
            return design * _numbers(self.label, frame, self.term.by)[:, None]
        return design * (_labels(self.label, frame, self.term.by) == self.level)[:, None]

    @property
    def strengths(self) -> list[str]:
        """Names of the smoothing parameters, one for each λ."""
        several = len(self.basis.penalties) > 1
        return [
            f"{self.label}{k + 1}" if several else self.label
            for k in range(len(self.basis.penalties))
        ]


def _read(term: Smooth, frame: pd.DataFrame) -> ArrayList:
    """Return the columns of a term in the form that its basis takes."""
    if term.call == "s" and term.bs[0] == "tp":
        return [np.column_stack([_numbers(term.label, frame, name) for name in term.columns])]
    readers = [_labels if kind in LABELS else _numbers for kind in term.bs]
    columns = [
        reader(term.label, frame, name) for reader, name in zip(readers, term.columns, strict=True)
    ]
    return [x[:, None] if kind == "tp" else x for x, kind in zip(columns, term.bs, strict=True)]


def bind(term: Smooth, frame: pd.DataFrame) -> list[tuple[BoundTerm, Design]]:
    """Bind a term to data, with its design.

    If `by` holds labels, one term for each. ValueError if the columns do not fit.
    """
    caller = term.label
    columns = _read(term, frame)
    parts = [_basis(caller, term, *entry) for entry in zip(term.bs, term.k, columns, strict=True)]
    if term.call == "ti":
        parts = [
            bases.under(part, bases.summing_to_zero(part.design(x)))
            for part, x in zip(parts, columns, strict=True)
        ]
    if len(parts) > 1:
        parts = [bases.under(part, bases.diagonalise_roughness(part)) for part in parts]
    basis = bases.tensor(parts) if len(parts) > 1 else parts[0]
    design = basis.design(*columns)
    levels = _levels(term, frame)
    free = term.call == "ti" or term.bs == ("re",) or (term.by is not None and levels is None)
    if not free:
        zero = bases.summing_to_zero(design)
        basis = bases.under(basis, zero)
        design = design @ zero
    if len(parts) == 1 and term.bs[0] not in LABELS:
        along = bases.diagonalise_roughness(basis)
        basis = bases.under(basis, along)
        design = design @ along
    bound_term = BoundTerm(caller, term, basis, tuple(columns))
    if levels is None:
        terms = [bound_term]
    else:
        terms = [replace(bound_term, label=f"{caller}[{x}]", level=x) for x in levels]
    scaled = [bases.scale_basis(basis, entry.times(design, frame)) for entry in terms]
    return [
        (replace(entry, basis=scaled_basis), design)
        for entry, (scaled_basis, design) in zip(terms, scaled, strict=True)
    ]


def _levels(term: Smooth, frame: pd.DataFrame) -> NumpyArray | None:
    """Return the levels of `by` if it holds labels, else None."""
    if term.by is None:
        return None
    by = column(frame, term.by)
    if is_number(by):
        return None
    return codes(term.label, term.by, by)[1]


def _basis(caller: str, term: Smooth, kind: str, k: int, x: NumpyArray) -> bases.Basis:
    if kind == "tp":
        return bases.thin_plate(caller, x, k)
    if kind in ("cr", "cc"):
        return bases.cubic(caller, x, k, term.period, cyclic=kind == "cc")
    if kind == "ps":
        return bases.b_splines(caller, x, k)
    if kind == "re":
        return bases.effects(caller, x)
    return bases.markov(caller, x, term.edges)
