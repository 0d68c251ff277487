"""Formulas, read by formulaic, and their calls that learn knots, means or spreads from all rows.

A refit of the same columns does not leave out what such calls have learned; results say so.
`cross_validate` makes the columns of a formula of one linear predictor anew, from the rows of each
refit.
"""

import contextlib
import difflib
import functools
import re
import warnings
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from .._runtime import (
    AnyFunction,
    BoolArray,
    FloatArray,
    NamedNumbers,
    NamedValues,
    TwoTexts,
    is_pandas,
    optional,
    pd,
)
from .arrays import pandas_of

LEVEL = re.compile(r"""^(\w+)\[\s*(['"]?)(.+?)\2\s*\]$""")  # y['yes'], as bambi writes an event
EVERY_COLUMN = re.compile(r"(?:^|[\s+])\.(?:$|[\s+-])")  # the dot of y ~ .

# functions of patsy and formulaic that learn from the rows
STATEFUL = "impute|bs|cr|cc|cs|te|scale|standardize|center|poly|hashed|qcut"
CALL = re.compile(
    rf"(?<![\w.])(?:pd\.)?({STATEFUL})\(|(?:\.|\bnp\.)(mean|median|std|var|min|max|sum|quantile|percentile|rank)\("
)


# calls whose columns span the same beside an intercept
SAME_SPAN = "center", "scale", "standardize", "poly"


def stateful_remark(formula: str, exceptions: Collection[str] = ()) -> str:
    """Describe the calls of a formula that learn from all rows, but for `exceptions`.

    Empty if there are none.
    """
    names = dict.fromkeys(f"{name}(...)" for name, _ in _calls(formula) if name not in exceptions)
    if not names:
        return ""
    return f"the formula's {', '.join(names)} stays as made of all rows: what it learned is not left out"


def join_remarks(*remarks: str) -> str:
    """Join the remarks that are not empty."""
    return "; ".join(filter(None, remarks))


def _calls(formula: str) -> list[TwoTexts]:
    """Return the names and texts of the calls of a formula that learn from rows."""
    calls = [(*_parse_call(formula, call), call.start()) for call in CALL.finditer(formula)]
    return [(name, formula[start:end]) for name, end, start in calls if name]


def _parse_call(formula: str, call: re.Match[str]) -> tuple[str, int]:
    """Return the name of a call, empty if its arguments leave nothing to learn, and the place where
    it ends.
    """
    depth = 1
    end = call.end()
    while end < len(formula) and depth:
        depth += {"(": 1, ")": -1}.get(formula[end], 0)
        end += 1
    arguments = formula[call.end() : end]
    fixed = all(
        f"{word}=" in arguments.replace(" ", "") for word in ("knots", "lower_bound", "upper_bound")
    )
    return ("" if fixed else call[1] or call[2]), end


def _impute(values, _state: NamedNumbers | None = None) -> FloatArray:
    """Fill missing numbers by the median of the others."""
    column = np.asarray(values, float)
    state = {} if _state is None else _state
    return np.where(
        np.isnan(column), state.setdefault("median", float(np.nanmedian(column))), column
    )


@functools.cache
def _own_calls() -> NamedValues:
    """Return the calls that formulas have beside those of formulaic: `impute(x)`."""
    from formulaic.utils.stateful_transforms import stateful_transform

    return {"impute": stateful_transform(_impute)}


class FormulaColumns(NamedTuple):
    """Response and columns of a formula, formulaic's specification of these, and the table they are
    from.
    """

    y: "pd.Series"
    X: "pd.DataFrame"
    spec: Any
    data: "pd.DataFrame"


@contextlib.contextmanager
def reading(caller: str, formula: str) -> Iterator[AnyFunction]:
    """Give formulaic's function that reads columns.

    ValueError that quotes the formula if it is not valid.
    """
    with optional(
        f"{caller}: formulas need formulaic: pip install 'leaveout[formula]'; or give arrays."
    ):
        from formulaic import model_matrix
        from formulaic.errors import DataMismatchWarning, FormulaicError
    try:
        yield model_matrix
    except (
        DataMismatchWarning,
        FormulaicError,
        AttributeError,
        KeyError,
        ValueError,
        SyntaxError,
        TypeError,
        NameError,
    ) as error:
        lacking = ""
        if "null values" in str(error):
            lacking = " Leave these rows out, data.dropna(), or fill them in."
        reason = str(error).partition(" They are being")[0]
        raise ValueError(
            f"{caller}: formula {formula!r} cannot be read: {reason}{lacking}"
        ) from error


def named_column(table: Any, value: Any, caller: str = "data") -> Any:
    """Return a column of a table, if an argument is a name, and otherwise the argument."""
    if not isinstance(value, str):
        return value
    table = pandas_of(caller, "data", table)
    if not is_pandas(table, "DataFrame"):
        raise ValueError(
            f"{caller} names the column {value!r}, but the data have no names of columns; give the column itself, as "
            f"table[{value!r}]."
        )
    if value in table:
        return table[value]
    names = [str(column) for column in table.columns]
    near = difflib.get_close_matches(value, names) or names[:8]
    raise ValueError(f"{caller}: no column is named {value!r}; there are {', '.join(near)}.")


def frame_of(caller: str, data: Any) -> "pd.DataFrame":
    """Return the table of a formula as a DataFrame."""
    if isinstance(data, dict):
        data = pd.DataFrame(data)
    else:
        data = pandas_of(caller, "data", data)
    if not is_pandas(data, "DataFrame"):
        raise TypeError(
            f"{caller}: with a formula, data must be a DataFrame; got {type(data).__name__}."
        )
    return data


def read_columns(caller: str, formula: str, data: Any) -> FormulaColumns:
    """Read a formula `y ~ x + C(site)`.

    Its columns have an `Intercept` unless it says otherwise.
    """
    lhs, tilde, rhs = (part.strip() for part in formula.partition("~"))
    if not tilde or not lhs or "|" in rhs:
        way = ""
        if "|" in rhs:
            way = "; (1 | group) is for lo.Mixed"
        raise ValueError(
            f"{caller}: formula {formula!r} must name a response and columns: 'y ~ x + C(site)'{way}."
        )
    data = frame_of(caller, data)
    with reading(caller, formula) as model_matrix:
        table = data
        if EVERY_COLUMN.search(rhs):
            table = data.drop(columns=lhs.strip("`"))
        X = model_matrix(rhs, table, na_action="raise", context=_own_calls())
        return FormulaColumns(
            response(lhs, data, model_matrix), pd.DataFrame(X), X.model_spec, data
        )


class SurvivalColumns(NamedTuple):
    """Times, events, entry times and strata of a formula, its columns and their specification, and
    the table.
    """

    time: "pd.Series"
    event: "pd.Series"
    entry: "pd.Series | None"
    strata: "pd.Series | None"
    X: "pd.DataFrame"
    spec: Any
    data: "pd.DataFrame"


def read_survival(formula: str, data: Any) -> SurvivalColumns:
    """Read a formula `Surv(time, event) ~ x + strata(site)`, or one of `Surv(start, stop,
    event)`.
    """
    lhs, _, rhs = (part.strip() for part in formula.partition("~"))
    match = re.fullmatch(r"Surv\((.+)\)", lhs, re.DOTALL)
    arguments = split_outside(match[1], ",") if match else []
    terms = split_outside(rhs, "+")
    within = [
        inner
        for term in terms
        if (strata_match := re.fullmatch(r"strata\((.+)\)", term))
        for inner in split_outside(strata_match[1], ",")
    ]
    rhs = " + ".join(term for term in terms if not re.fullmatch(r"strata\((.+)\)", term))
    if len(arguments) not in (2, 3) or not rhs or re.search(r"\bstrata\(", rhs):
        raise ValueError(
            f"Cox: formula {formula!r} must be 'Surv(time, event) ~ x + strata(site)', or of Surv(start, stop, event), "
            "with columns, and each strata(...) a term of its own."
        )
    data = frame_of("Cox", data)
    with reading("Cox", formula) as model_matrix:
        column = lambda name: (
            data[name.strip("`")] if name.strip("`") in data.columns else data.eval(name)
        )
        *begins, time, event = (column(name) for name in arguments)
        strata = None
        if within:
            labels = pd.concat([column(name) for name in within], axis=1)
            if labels.isna().any(axis=None):
                raise ValueError("its strata have null values.")
            strata = labels.iloc[:, 0]
            if len(within) > 1:
                strata = labels.apply(tuple, axis=1)
        used = [
            name
            for name in map(str, data.columns)
            if re.search(rf"\b{re.escape(name)}\b", " ".join([lhs, *within]))
        ]
        table = data
        if EVERY_COLUMN.search(rhs):
            table = data.drop(columns=used)
        X = model_matrix(rhs, table, na_action="raise")
        columns = pd.DataFrame(X).drop(columns="Intercept", errors="ignore")
        entry = begins[0] if begins else None
        return SurvivalColumns(time, event, entry, strata, columns, X.model_spec, data)


def split_outside(text: str, mark: str) -> list[str]:
    """Split a text at each mark that stands outside of brackets."""
    depth = 0
    parts = [""]
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == mark and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def new_columns(caller: str, formula: str, spec: Any, data: Any) -> "pd.DataFrame":
    """Return the columns of a formula for new rows, without the intercept.

    ValueError for levels that the formula's own rows have not, which formulaic takes for the first.
    """
    table = frame_of(caller, data)
    with reading(caller, formula), warnings.catch_warnings():
        warnings.filterwarnings("error", "Data has categories outside")
        columns = spec.get_model_matrix(table, context=_own_calls())
    return pd.DataFrame(columns).drop(columns="Intercept", errors="ignore")


class FormulaReader(NamedTuple):
    """Columns of a formula for new rows, and for its own rows by what some of these teach."""

    caller: str
    formula: str
    spec: Any
    table: "pd.DataFrame"

    def __call__(self, data: Any) -> "pd.DataFrame":
        return new_columns(self.caller, self.formula, self.spec, data)

    @property
    def learned(self) -> list[TwoTexts]:
        """Names and texts of the calls that can learn anew."""
        names = {call.partition("(")[0] for call in self.spec.transform_state}
        return [(name, text) for name, text in _calls(self.formula) if name in names]

    def learning(self, penalised: bool) -> list[str]:
        """Name the calls, of those that can learn anew, whose columns span something else by what
        they learn.
        """
        terms = [term.strip() for term in self.formula.partition("~")[2].split("+")]
        spanned = SAME_SPAN if "Intercept" in self.spec.column_names and not penalised else ()
        return list(
            dict.fromkeys(
                name for name, text in self.learned if name not in spanned or text not in terms
            )
        )

    def remarks(self, learning: list[str], relearned: bool) -> TwoTexts:
        """Return the remark that all calls keep what they learned, and what is true where those of
        `learning` may be `relearned`.
        """
        same = [name for name, _ in self.learned if name not in learning]
        listed = lambda names: (
            f"the formula's {', '.join(f'{name}(...)' for name in dict.fromkeys(names))}"
        )
        parts = []
        if same:
            parts = [f"{listed(same)} spans the same columns whatever was learned"]
        if learning and relearned:
            parts.append(
                f"{listed(learning)} learned anew from the rows of each refit; boundary knots stay"
            )
        remark = stateful_remark(self.formula, [*same, *(learning if relearned else ())])
        return stateful_remark(self.formula), join_remarks(*parts, remark)

    def learned_from(self, seen: BoolArray) -> "pd.DataFrame":
        """Return the columns of all rows by what the `seen` ones teach. Splines keep their boundary
        knots, of all rows.
        """
        bounds = {
            call: {side: state[side] for side in ("lower_bound", "upper_bound") if side in state}
            for call, state in self.spec.transform_state.items()
        }
        with reading(self.caller, self.formula):
            taught = (
                self.spec.update(transform_state=bounds)
                .get_model_matrix(self.table[seen], context=_own_calls())
                .model_spec
            )
        return self._replace(spec=taught)(self.table)


def response(remainder: str, data: "pd.DataFrame", model_matrix: Any) -> Any:
    """Return the response: a column, an event of it, or a formula's result."""
    event = LEVEL.match(remainder)
    if remainder.strip("`") in data.columns:
        return data[remainder.strip("`")]
    if event and event[1] in data.columns:
        return (data[event[1]].astype(str) == event[3]).astype(float)
    matrix = model_matrix(f"0 + {remainder}", data, na_action="raise")
    if matrix.shape[1] != 1:
        raise ValueError(
            f"its left side {remainder!r} has {matrix.shape[1]} columns; give one of numbers"
        )
    return matrix.iloc[:, 0]
