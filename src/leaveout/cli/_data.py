"""From a file of rows to a model and a plan, with one line on standard error for whatever cannot be used."""

import csv
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer

import leaveout as lo

from ._console import fail, one_line

PLANS = "loo, kfold:K or groups:COLUMN"
LOSSES = tuple(sorted({name.replace("_", "-") for name in (*lo.losses.NAMED, *lo.losses.SHARED, "ordinal")}))
WIDEST = 5000  # columns of the design: more are surely a mistake


@dataclass(frozen=True)
class Model:
    """What is fitted to the rows of a file."""

    target: str | None = None
    loss: str = "squared"
    l2: float = 0.0
    features: str | None = None
    categorical: str | None = None
    formula: str | None = None
    offset: str | None = None
    weights: str | None = None
    intercept: bool = True


@dataclass(frozen=True)
class Rows:
    """A file as it was read: its rows, their numbers in the file, and what is to be said of them."""

    frame: pd.DataFrame
    name: str
    note: str = ""


def read(file: Path) -> Rows:
    """A CSV or Parquet file, or CSV on standard input for `-`."""
    if str(file) == "-":
        return Rows(_csv(io.StringIO(sys.stdin.read()), "standard input"), "standard input")
    if not file.is_file():
        fail(f"{file}: there is no such file; give the path of a CSV or Parquet file, or - for standard input.")
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            return Rows(pd.read_parquet(file), file.name)
        return Rows(_csv(io.StringIO(file.read_text(encoding="utf-8-sig")), str(file)), file.name)
    except ImportError as error:
        fail(f"{file}: Parquet needs pyarrow: pip install 'leaveout[parquet]' ({error}).")
    except (ValueError, OSError) as error:
        fail(f"{file}: it could not be read as {'Parquet' if file.suffix.lower() in ('.parquet', '.pq') else 'CSV'} ({error}).")


def _csv(text: io.StringIO, name: str) -> pd.DataFrame:
    header = next(csv.reader(text), [])
    twice = sorted({column for column in header if header.count(column) > 1}) if len(header) <= WIDEST else []
    if twice:
        fail(f"{name}: columns that share a name: {', '.join(map(repr, twice[:5]))}; rename them.")
    text.seek(0)
    try:
        frame = pd.read_csv(text, low_memory=False)
    except ValueError as error:  # of pandas' own, all are ValueErrors
        fail(f"{name}: it could not be read as CSV with a header ({error}).")
    if frame.empty:
        fail(f"{name}: a header and no rows.")
    return frame


def complete(rows: Rows, columns: Sequence[str], drop: bool) -> Rows:
    """The rows without missing values in the columns that are used."""
    frame = rows.frame
    used = [column for column in dict.fromkeys(columns) if column in frame.columns]
    missing = frame[used].isna()
    count = missing.sum()
    count = count[count > 0]
    if not len(count):
        return rows
    by = ", ".join(f"{name} ({number})" for name, number in count.head(8).items()) + (", …" if len(count) > 8 else "")
    if not drop:
        fail(f"{rows.name}: missing values in {by}; --drop-missing leaves those rows out, or name other columns by --features.")
    keep = ~missing.any(axis=1)
    if not keep.any():
        fail(f"{rows.name}: every row has a missing value, in {by}; name other columns by --features.")
    return replace(rows, frame=frame[keep], note=f"{int((~keep).sum())} rows with missing values left out")


def columns_of(rows: Rows, model: Model, plan: str = "") -> list[str]:
    """The columns that a model and a plan use; all that are no target, weight or group, if none are named."""
    known = [str(name) for name in rows.frame.columns]
    extra = [model.offset, model.weights, plan.partition(":")[2] if plan.startswith("groups:") else None]
    given = [name for name in extra if name]
    if model.formula:
        used = [name for name in known if name in model.formula]
    else:
        if model.target is None:
            fail(f"name the column to predict by --target; {_has(rows, known)}")
        if not model.features and len(known) > WIDEST:
            fail(f"{rows.name}: {len(known)} columns are too many; name those to use by --features.")
        used = _names(model.features) or [name for name in known if name not in (model.target, *given)]
        used = [*used, model.target, *_names(model.categorical)]
    for name in (*used, *given):
        if name not in rows.frame.columns:
            fail(f"{rows.name} has no column {name!r}; {_has(rows, known)}")
    if model.target in _names(model.features):
        fail(f"--target {model.target} is among --features too.")
    return [*used, *given]


def _has(rows: Rows, known: list[str]) -> str:
    return f"it has {', '.join(known[:20])}{', …' if len(known) > 20 else ''}."


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def objective(rows: Rows, model: Model) -> tuple[Any, str]:
    """The model of the rows, and what is to be said of its target."""
    name = model.loss.lower().replace("-", "_")
    if name.replace("_", "-") not in LOSSES:
        fail(f"--loss {model.loss}: it must be one of {', '.join(LOSSES)}.")
    if not np.isfinite(model.l2) or model.l2 < 0:
        fail(f"--l2 {model.l2}: it must be finite and not negative.")
    intercept = model.intercept
    if model.formula:
        X, y, intercept, target = _by_formula(rows, model.formula)
    else:
        X, target = _design(rows, model), str(model.target)
        y = rows.frame[target]
    y, said = _target(y, target, name)
    with one_line():
        penalty = lo.penalties.Ridge(model.l2) if model.l2 else None
        own = (name in lo.losses.SHARED and name not in lo.losses.NAMED) or name == "ordinal"
        more = {
            "offset": _number(rows, model.offset) if model.offset else None,
            "sample_weight": _number(rows, model.weights) if model.weights else None,
        }
        make = lo.Regression if own else lo.GLM
        return make(X, y, name, penalty, intercept=intercept, **more), said


def _number(rows: Rows, name: str) -> np.ndarray:
    column = pd.to_numeric(rows.frame[name], errors="coerce")
    if column.isna().any():
        row = int(np.flatnonzero(column.isna())[0])
        value = rows.frame[name].iloc[row]
        fail(f"column {name!r} holds text: {str(value)!r} in row {row + 1}; name it in --categorical, or leave it out.")
    return column.to_numpy(float)


def _design(rows: Rows, model: Model) -> pd.DataFrame:
    used = columns_of(rows, replace(model, categorical=None))
    features = _names(model.features) or [name for name in used if name not in (model.target, model.offset, model.weights)]
    categorical = _names(model.categorical)
    features = list(dict.fromkeys([*features, *categorical]))
    parts = []
    for name in features:
        if name in categorical:
            levels = pd.get_dummies(rows.frame[name].astype(str), prefix=name, prefix_sep="=", dtype=float)
            if levels.shape[1] < 2:
                fail(f"category {name!r} has one level, {rows.frame[name].iloc[0]!r}: it says nothing; leave it out.")
            parts.append(levels.iloc[:, 1:])
        else:
            parts.append(pd.DataFrame({name: _number(rows, name)}, index=rows.frame.index))
    X = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=rows.frame.index)
    if X.shape[1] > WIDEST:
        fail(f"{rows.name}: {X.shape[1]} columns with all levels of the categories are too many; name fewer by --features.")
    return X


def _by_formula(rows: Rows, formula: str) -> tuple[pd.DataFrame, pd.Series, bool, str]:
    try:
        from formulaic import model_matrix
        from formulaic.errors import FormulaicError
    except ImportError:
        fail("--formula needs formulaic: pip install 'leaveout[formula]'.")
    try:
        sides = model_matrix(formula, rows.frame)
        left, right = sides.lhs, sides.rhs
    except (FormulaicError, AttributeError, KeyError, ValueError, SyntaxError, TypeError, NameError) as error:
        fail(f"--formula {formula!r}: it could not be used ({error}); write it as 'y ~ a + C(b)'.")
    if left.shape[1] != 1:
        fail(f"--formula {formula!r}: its left side has {left.shape[1]} columns; give a target of numbers.")
    intercept = "Intercept" in right.columns
    X = pd.DataFrame(right).drop(columns="Intercept", errors="ignore").astype(float)
    return X, left.iloc[:, 0], intercept, str(left.columns[0])


def _target(y: pd.Series, name: str, loss: str) -> tuple[Any, str]:
    """The target as the loss wants it. Two text labels are 0 and 1, in their order."""
    text = not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_bool_dtype(y)
    levels = sorted(y.unique(), key=str) if text or loss in ("logistic", "probit", "cloglog") else []
    if loss == "multinomial":
        return (y.astype(str) if text else y).to_numpy(), ""
    if loss in ("logistic", "probit", "cloglog") and len(levels) == 1:
        fail(f"target {name!r} has one value only, {levels[0]!r}: nothing to tell apart.")
    if text and loss in ("logistic", "probit", "cloglog") and len(levels) == 2:
        return (y == levels[1]).to_numpy(float), f"{name}: 1 is {str(levels[1])!r}, 0 is {str(levels[0])!r}"
    if text:
        way = "; --loss multinomial takes labels" if len(levels) > 2 else "; --loss logistic takes two labels"
        fail(f"target {name!r} holds text, such as {str(y.iloc[0])!r}; the {loss} loss needs numbers{way}.")
    return y.to_numpy(), ""


def plan_of(text: str, rows: Rows, seed: int) -> lo.Plan:
    name, _, rest = text.strip().partition(":")
    n = len(rows.frame)
    with one_line(f"--plan {text}: "):
        if name == "loo" and not rest:
            return lo.leave_one_out(n)
        if name == "kfold" and rest.isdigit():
            return lo.kfold(n, int(rest), seed=seed)
        if name == "groups" and rest in rows.frame.columns:
            return lo.groups(rows.frame[rest].astype(str).to_numpy())
    if name == "groups":
        fail(f"--plan {text}: there is no column {rest!r}; {_has(rows, list(map(str, rows.frame.columns)))}")
    fail(f"--plan {text}: it must be {PLANS}, such as kfold:10.")


def lone_levels(rows: Rows, model: Model, plan: lo.Plan) -> str:
    """Levels of categories that one refit leaves out whole: without a penalty nothing determines their coefficient."""
    held = [plan.index[plan.indptr[k] : plan.indptr[k + 1]] for k in range(plan.num_refits)]
    fold = np.full(plan.num_units, -1)
    for k, index in enumerate(held):
        fold[index] = k
    found = []
    for name in _names(model.categorical):
        folds = pd.Series(fold, index=rows.frame.index).groupby(rows.frame[name].astype(str)).nunique()
        found += [f"{level!r} of {name!r}" for level in folds.index[folds == 1]]
    return ", ".join(found[:5]) + (", …" if len(found) > 5 else "")


def writable(*files: Path | None) -> None:
    """End where a file could not be written, before anything is computed."""
    for file in files:
        if file is None:
            continue
        if not file.parent.is_dir():
            fail(f"{file}: there is no folder {file.parent}; make it first.")
        if file.is_dir():
            fail(f"{file} is a folder; name a file in it.")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            fail(f"{file}: no permission to write there; name another file.")


FILE = typer.Argument(help="A CSV file with a header, or Parquet; - is CSV on standard input.", readable=False)
