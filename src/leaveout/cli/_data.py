"""The model and the plan of a file of rows; unusable input ends in one line on standard error."""

import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

import leaveout as lo

from ..data.formulas import stateful_remark
from ._cells import parse_labels
from ._console import fail
from ._files import WIDEST, FileTable, shorten_names, split_names

PLANS = "loo, kfold:K or groups:COLUMN"
LOSSES = tuple(sorted({name.replace("_", "-") for name in (*lo.losses.NAMED, *lo.losses.SHARED, "ordinal")}))
CATEGORY = "name it in --categorical, or leave it out by naming others in --features"
NUMBERS = "it must hold numbers"
WORD = re.compile(r"`[^`]+`|[^\W\d][\w.]*|(?<![\w.])\.(?![\w.])")  # names in a formula, and the dot for all others
CATEGORY_CALL = re.compile(r"\bC\(\s*`?([^,)`]+?)`?\s*[,)]")  # columns of labels in a formula
LABELS = ("logistic", "probit", "cloglog")  # losses for two labels


@dataclass(frozen=True)
class Model:
    """Options that describe the model of the rows of a file."""

    target: str | None = None
    loss: str = "squared"
    l2: float = 0.0
    features: str | None = None
    categorical: str | None = None
    formula: str | None = None
    offset: str | None = None
    weights: str | None = None
    intercept: bool = True


def named_columns(model: Model, plan: str) -> set[str]:
    """List every named column; empty if all remaining ones are features."""
    names = {model.target, model.offset, model.weights, _group(plan), *split_names(model.categorical)}
    if model.formula:
        return {*filter(None, names), *_words(model.formula)}
    return {*filter(None, names), *split_names(model.features)} if model.features else set()


def labels(model: Model, plan: str) -> set[str]:
    """List the columns that a model and a plan use as labels, which are read as text."""
    names = {_group(plan), *split_names(model.categorical)}
    left, tilde, _ = (model.formula or "").partition("~")
    if model.loss.lower() in (*LABELS, "multinomial"):
        names |= {left.strip().strip("`") if tilde else model.target}
    return {*filter(None, names), *(CATEGORY_CALL.findall(model.formula) if model.formula else ())}


def _words(formula: str) -> set[str]:
    return {word.strip("`") for word in WORD.findall(formula)}


def columns_of(rows: FileTable, model: Model, plan: str = "") -> list[str]:
    """List the columns that a model and a plan use; without names, all but target, weight and group."""
    known = list(rows.frame.columns)
    extra = [model.offset, model.weights, _group(plan)]
    given = [name for name in extra if name]
    if model.formula:
        words = _words(model.formula)
        used = [name for name in known if "." in words or name in words or name == model.target]
    else:
        if model.target is None:
            fail(f"name the column to predict by --target; {rows.has}")
        used = split_names(model.features) or [name for name in known if name not in (model.target, *given)]
        used = [*used, model.target, *split_names(model.categorical)]
    for name in (*used, *given):
        rows.column(name)
    for option, names in (("--features", split_names(model.features)), ("--categorical", split_names(model.categorical))):
        if model.target in names:
            fail(f"--target {model.target} is among {option} too.")
    return [*used, *given]


def _group(plan: str) -> str | None:
    name, _, column = plan.strip().partition(":")
    return column if name == "groups" else None


def objective(rows: FileTable, model: Model, plan: str) -> tuple[lo.GLM | lo.Regression, str]:
    """Build the model of the rows; return it with remarks on its target."""
    name = model.loss.lower().replace("-", "_")
    if name.replace("_", "-") not in LOSSES:
        fail(f"--loss {model.loss}: it must be one of {', '.join(LOSSES)}.")
    if not np.isfinite(model.l2) or model.l2 < 0:
        fail(f"--l2 {model.l2}: it must be finite and not negative.")
    X, y, intercept = _by_formula(rows, model) if model.formula else (_design(rows, model, plan), None, model.intercept)
    target, said = _target(rows.frame[model.target] if y is None else y, name)
    said = "; ".join(filter(None, (_features_said(list(X), model), said, stateful_remark(model.formula or ""))))
    own = (name in lo.losses.SHARED and name not in lo.losses.NAMED) or name == "ordinal"
    more = {
        "offset": rows.numbers(model.offset, NUMBERS) if model.offset else None,
        "sample_weight": rows.numbers(model.weights, NUMBERS) if model.weights else None,
    }
    make = lo.Regression if own else lo.GLM
    penalty = lo.penalties.Ridge(model.l2) if model.l2 else None
    return make(X, target, name, penalty, intercept=intercept, **more), said


def _features_said(columns: list[str], model: Model) -> str:
    """Describe the columns that became features, and the categories."""
    levels = Counter(name for name in split_names(model.categorical) for column in columns if column.startswith(f"{name}="))
    numbers = [column for column in columns if column.partition("=")[0] not in levels]
    names = [*numbers, *(f"{name} ({count + 1} levels)" for name, count in levels.items())]
    return f"features: {shorten_names(names)}"


def _design(rows: FileTable, model: Model, plan: str) -> pd.DataFrame:
    categorical, parts = split_names(model.categorical), []
    for name in features_of(rows, model, plan):
        if name in categorical:
            _levels(rows, name)
            levels = pd.get_dummies(rows.frame[name].astype(str), prefix=name, prefix_sep="=", dtype=float)
            parts.append(levels.iloc[:, 1:])
        else:
            parts.append(pd.DataFrame({name: rows.numbers(name, CATEGORY)}, index=rows.frame.index))
    X = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=rows.frame.index)
    if X.shape[1] > WIDEST:
        fail(f"{rows.name}: {X.shape[1]} columns with all levels of the categories are too many; name fewer by --features.")
    return X


def new_design(new: FileTable, rows: FileTable, model: Model, plan: str, made: lo.GLM | lo.Regression) -> pd.DataFrame:
    """Build the columns of a model for the rows of a second file."""
    categorical, parts = split_names(model.categorical), []
    for name in features_of(rows, model, plan):
        if name not in categorical:
            parts.append(pd.DataFrame({name: new.numbers(name, CATEGORY)}, index=new.frame.index))
            continue
        known, cells = rows.frame[name].astype(str).unique(), new.column(name).astype(str)
        if len(unknown := sorted(set(cells) - set(known))):
            fail(f"{new.name}: {name!r} has a level that {rows.name} does not have, {unknown[0]!r}: nothing is known of it.")
        parts.append(pd.get_dummies(cells, prefix=name, prefix_sep="=", dtype=float))
    whole = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=new.frame.index)
    return whole.reindex(columns=list(made.names), fill_value=0.0)


def features_of(rows: FileTable, model: Model, plan: str) -> list[str]:
    """Select the columns of features, including categories."""
    others = (model.target, model.offset, model.weights, _group(plan))
    features = split_names(model.features) or [name for name in rows.frame.columns if name not in others]
    return list(dict.fromkeys([*features, *split_names(model.categorical)]))


def _levels(rows: FileTable, name: str) -> None:
    """Check that a category has two levels or more, and not too many."""
    count = rows.frame[name].astype(str).nunique()
    if count < 2:
        fail(f"category {name!r} has one level, {str(rows.frame[name].iloc[0])!r}: it says nothing; leave it out.")
    if count > WIDEST:
        fail(f"category {name!r} has {count} levels: too many; leave it out, or merge levels.")


def _by_formula(rows: FileTable, model: Model) -> tuple[pd.DataFrame, pd.Series, bool]:
    """Return the design, the target and whether there is an intercept. A target that is a column may have labels."""
    try:
        from formulaic import model_matrix
        from formulaic.errors import FormulaicError
    except ImportError:
        fail("--formula needs formulaic: pip install 'leaveout[formula]'.")
    formula = str(model.formula)
    left, tilde, right = formula.partition("~")
    target = left.strip().strip("`") if tilde else model.target
    if target is None or model.target not in (None, target):
        fail(f"--formula {formula!r}: name one column to predict, on its left side or by --target.")
    frame = rows.frame.assign(**{name: parse_labels(rows.frame[name]) for name in rows.frame.columns})
    rows = replace(rows, frame=frame)
    for name in columns_of(rows, model):
        if name != target and (f"C({name}" in formula or not pd.api.types.is_numeric_dtype(rows.frame[name])):
            _levels(rows, name)
    try:
        if target in rows.frame.columns:
            y = rows.frame[target]
            X = model_matrix(right if tilde else left, rows.frame.drop(columns=target), na_action="raise")
        else:
            sides = model_matrix(formula, rows.frame, na_action="raise")
            y, X = sides.lhs, sides.rhs
            if y.shape[1] != 1:
                fail(f"--formula {formula!r}: its left side has {y.shape[1]} columns; give a target of numbers.")
            y = y.iloc[:, 0]
    except (FormulaicError, AttributeError, KeyError, ValueError, SyntaxError, TypeError, NameError) as error:
        fail(f"--formula {formula!r}: it could not be used ({error}); write it as 'y ~ a + C(b)'.")
    if X.shape[1] > WIDEST:
        fail(f"--formula {formula!r}: its {X.shape[1]} columns are too many; name fewer.")
    return pd.DataFrame(X).drop(columns="Intercept", errors="ignore").astype(float), y, "Intercept" in X.columns


def _target(y: pd.Series, loss: str) -> tuple[np.ndarray, str]:
    """Return the target in the form of the loss. Two text labels are 0 and 1, in their order."""
    y = parse_labels(y) if loss in (*LABELS, "multinomial") else y
    text = not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_bool_dtype(y)
    levels = sorted(y.unique(), key=str) if text or loss in LABELS else []
    if loss == "multinomial":
        return (y.astype(str) if text else y).to_numpy(), ""
    if loss in LABELS and len(levels) == 1:
        fail(f"target {y.name!r} has one value only, {levels[0]!r}: nothing to tell apart.")
    if text and loss in LABELS and len(levels) == 2:
        return (y == levels[1]).to_numpy(float), f"{y.name}: 1 is {str(levels[1])!r}, 0 is {str(levels[0])!r}"
    if text and loss in LABELS and pd.to_numeric(y, errors="coerce").notna().all():
        fail(f"target {y.name!r} has {len(levels)} labels, {shorten_names([repr(x) for x in levels])}: write each in one way.")
    if text:
        way = "; --loss multinomial takes labels" if len(levels) > 2 else "; --loss logistic takes two labels"
        return FileTable(y.to_frame(), "").numbers(str(y.name), f"the {loss} loss needs numbers{way}"), ""
    return y.to_numpy(float), ""


def plan_of(text: str, rows: FileTable, seed: int) -> lo.Plan:
    """Make a plan of the rows from its name."""
    name, _, rest = text.strip().partition(":")
    n = len(rows.frame)
    if name == "loo" and not rest:
        return lo.leave_one_out(n)
    if name == "kfold" and rest.isdigit():
        return lo.kfold(n, int(rest), seed=seed)
    if name == "groups":
        return lo.groups(rows.column(rest).astype(str).to_numpy())
    fail(f"it must be {PLANS}, such as kfold:10.")


def lone_levels(rows: FileTable, model: Model, plan: lo.Plan, made: lo.GLM | lo.Regression) -> str:
    """List levels of categories that one refit leaves out whole, so that only a penalty determines their coefficient."""
    fold = np.full(plan.num_units, -1)
    fold[plan.index] = plan.refit
    if model.formula:  # columns of zeros and ones of the design
        columns = zip(made.names, np.asarray(made.design).T, strict=False)  # the intercept, last, has no name
        binary = [(name, column) for name, column in columns if set(np.unique(column)) == {0.0, 1.0}]
        found = [repr(name) for name, column in binary if any(_alone(fold, column == value) for value in (0, 1))]
    else:
        cells = {name: rows.frame[name].astype(str).to_numpy() for name in split_names(model.categorical)}
        found = [
            f"{level!r} of {name!r}"
            for name, column in cells.items()
            for level in np.unique(column)
            if _alone(fold, column == level)
        ]
    return ", ".join(found[:5]) + (", …" if len(found) > 5 else "")


def _alone(fold: np.ndarray, rows: np.ndarray) -> bool:
    return len(np.unique(fold[rows])) == 1
