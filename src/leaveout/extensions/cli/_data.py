"""The model and the plan of a file of rows; unusable input ends in one line on standard error."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

import leaveout as lo

from ._cells import is_numeric, parse_labels
from ._console import abbreviate, fail, join_notes, one_line
from ._files import WIDEST, FileTable, Reading, complete, is_dates, read, shorten_names
from ._options import WHOLE, option, plan_of, split_names, whole_number

pd = lo.developer.pd

PLANS = "loo, kfold:K or groups:COLUMN"
LOSSES = tuple(
    sorted({name.replace("_", "-") for name in (*lo.losses.NAMED, *lo.losses.SHARED, "ordinal")})
)
CATEGORY = "name it in --categorical, or leave it out by naming others in --features"
NUMBERS = "it must hold numbers"
OTHERS = "name other columns by --features"
# names in a formula, and the dot for all others
WORD = re.compile(r"`[^`]+`|[^\W\d][\w.]*|(?<![\w.])\.(?![\w.])")
CATEGORY_CALL = re.compile(r"\bC\(\s*`?([^,)`]+?)`?\s*[,)]")  # columns of labels in a formula
# columns whose missing values a formula fills
IMPUTED = re.compile(r"\bimpute\(\s*`?([^`)]+?)`?\s*\)")
# columns that are no features
OMISSIONS = {"ids": "", "dates": " (put the time since a day into a column of numbers)"}
LABELS = "logistic", "probit", "cloglog"  # losses for two labels


@dataclass(frozen=True)
class Model:
    """Options that describe a regression of the rows of a file, and its folds.

    Attributes
    ----------
    target
        The column to predict; with --formula its left side.
    l2
        Ridge penalty, l2/2 times the sum of the squared coefficients.
    features
        Columns to use, with commas between; all others if not given.
    categorical
        Columns of categories, with commas between.
    formula
        Instead of these: 'y ~ a + C(b)'. It runs as Python.
    offset
        A column added to the linear predictor.
    weights
        A column of weights.
    positive
        The label of the target that counts as 1, for two classes.
    impute
        Fill missing numbers of features by one of {}, learned in each refit.
    """

    target: str | None = None
    loss: Annotated[str, option(f"One of {', '.join(LOSSES)}.")] = "squared"
    l2: float = 0.0
    plan: Annotated[str, option(f"What is left out: {PLANS}.")] = "loo"
    features: str | None = None
    categorical: str | None = None
    formula: str | None = None
    offset: str | None = None
    weights: str | None = None
    positive: str | None = None
    impute: Literal["median"] | None = None
    intercept: bool = True

    @property
    def group(self) -> str | None:
        """The column of groups that are left out."""
        name, _, column = self.plan.strip().partition(":")
        return column if name == "groups" else None

    @property
    def categories(self) -> list[str]:
        return split_names(self.categorical)

    @property
    def named_columns(self) -> set[str]:
        """Every named column; empty if all remaining ones are features."""
        if not (self.formula or self.features):
            return set()
        return {
            *filter(None, {self.target, self.offset, self.weights, self.group, *self.categories}),
            *(_words(self.formula) if self.formula else split_names(self.features)),
        }

    @property
    def labels(self) -> set[str]:
        """The columns of labels, which are read as text."""
        names = {self.group, *self.categories, *CATEGORY_CALL.findall(self.formula or "")}
        left_side, tilde, _ = (self.formula or "").partition("~")
        if self.loss.lower() in (*LABELS, "multinomial"):
            names |= {left_side.strip().strip("`") if tilde else self.target}
        return {*filter(None, names)}

    def features_of(self, rows: FileTable) -> list[str]:
        """Select the columns of features, including categories."""
        exclusions = (
            self.target,
            self.offset,
            self.weights,
            self.group,
            *itertools.chain(*self.omissions(rows).values()),
        )
        features = split_names(self.features) or [
            name for name in rows.frame.columns if name not in exclusions
        ]
        return list(dict.fromkeys([*features, *self.categories]))

    def omissions(self, rows: FileTable, *other_columns: str | None) -> dict[str, list[str]]:
        """List the ids and dates, columns that are features only where they are named so, and that
        have no other part.
        """
        roles = {self.target, self.group, *self.categories, *other_columns}
        parts = set(rows.frame) if self.formula or self.features else roles
        kinds = {
            "ids": identifiers(rows),
            "dates": [name for name in rows.frame if is_dates(rows.frame[name])],
        }
        return {
            kind: [name for name in names if name not in parts] for kind, names in kinds.items()
        }

    def omission_note(self, rows: FileTable, *other_columns: str | None) -> str:
        """Say which columns are left out, and what they hold."""
        return join_notes(
            *(
                f"left out as {kind}: {shorten_names(names)}{OMISSIONS[kind]}"
                for kind, names in self.omissions(rows, *other_columns).items()
                if names
            )
        )

    def columns_of(self, rows: FileTable) -> list[str]:
        """List the columns that the model and the plan use.

        Without names, all but target, weight and group.
        """
        columns = list(rows.frame.columns)
        extras = [name for name in (self.offset, self.weights, self.group) if name]
        if self.formula:
            words = _words(self.formula)
            used = [
                name for name in columns if "." in words or name in words or name == self.target
            ]
        else:
            if self.target is None:
                fail(f"name the column to predict by --target; {rows.column_list}")
            used = [*self.features_of(rows), self.target]
        for name in (*used, *extras):
            rows.column(name)
        for flag, names in (
            ("--features", split_names(self.features)),
            ("--categorical", self.categories),
        ):
            if self.target in names:
                fail(f"--target {self.target} is among {flag} too.")
        return [*used, *extras]

    def read(self, data: Path, reading: Reading) -> FileTable:
        """Read the complete rows of a file that the model and the plan need."""
        if self.formula and (self.features or self.categorical):
            fail(
                "--formula goes without --features and --categorical: write the columns into it, categories as C(name)."
            )
        if self.formula and self.impute:
            fail("--formula goes without --impute: write impute(name) into it.")
        return self.complete(
            read(data, self.named_columns, self.labels.__contains__, reading), reading
        )

    def complete(self, rows: FileTable, reading: Reading, *other_columns: str) -> FileTable:
        """Select the complete rows that the model, the plan and the other columns need."""
        filled = IMPUTED.findall(self.formula or "")
        if self.impute:
            filled = [name for name in self.features_of(rows) if name not in self.categories]
            rows = replace(
                rows,
                frame=rows.frame.assign(**{name: rows.numbers(name, CATEGORY) for name in filled}),
            )
        return complete(
            rows,
            [name for name in (*self.columns_of(rows), *other_columns) if name not in filled],
            reading.drop_missing,
            f"leaveout glm --impute median fills those of features; {OTHERS}",
        )

    def folds(self, rows: FileTable, seed: int) -> lo.Plan:
        """Make the plan of the rows."""
        n = len(rows.frame)
        with one_line(f"--plan {self.plan}: "):
            return plan_of(
                self.plan,
                PLANS,
                "kfold:10",
                {
                    "loo:?": lambda: lo.leave_one_out(n),
                    f"kfold:{WHOLE}": lambda k: lo.kfold(n, whole_number(k), rng=seed),
                    "groups(?::(.*))?": lambda name: lo.groups(rows.column(name or "").astype(str)),
                },
            )


def identifiers(rows: FileTable) -> list[str]:
    """List columns of whole numbers that are named like ids."""
    numbers = rows.frame.select_dtypes("number").dropna(axis=1)
    return [
        name for name in numbers if lo.validation.is_identifier(name, numbers[name].to_numpy(float))
    ]


def _words(formula: str) -> set[str]:
    return {word.strip("`") for word in WORD.findall(formula)}


def objective(rows: FileTable, model: Model) -> tuple[lo.GLM | lo.Regression, str]:
    """Build the model of the rows; return it with remarks on its features and its target."""
    name = model.loss.lower().replace("-", "_")
    if name.replace("_", "-") not in LOSSES:
        fail(f"--loss {model.loss}: it must be one of {', '.join(LOSSES)}.")
    if not np.isfinite(model.l2) or model.l2 < 0:
        fail(f"--l2 {model.l2}: it must be finite and not negative.")
    is_regression = (name in lo.losses.SHARED and name not in lo.losses.NAMED) or name == "ordinal"
    X = None
    if model.formula:
        target, right_side, frame = _by_formula(rows, model)
        y, remark = _target(frame[target], name, model.positive) if target in frame else (None, "")
        X = f"{target if y is None else f'`{target}`'} ~ {right_side}"
        y = frame if y is None else frame.assign(**{target: y})
    else:
        for category in model.categories:
            _check_levels(rows, category)
        y, remark = _target(rows.frame[model.target], name, model.positive)
        if model.impute:
            terms = [
                f"C(`{name}`)" if name in model.categories else f"impute(`{name}`)"
                for name in model.features_of(rows)
            ]
            X = f"`{model.target}` ~ {' + '.join(terms)}"
            y = rows.frame.assign(**{str(model.target): y})
        else:
            X = _design(rows, model, drop_first=True)
            y = pd.Series(y, X.index, name=model.target)
    with one_line(f"--formula {model.formula!r}: " if model.formula else ""):
        make = lo.Regression if is_regression else lo.GLM
        penalty = lo.penalties.Ridge(model.l2) if model.l2 else None
        offset = rows.numbers(model.offset, NUMBERS) if model.offset else None
        weights = rows.numbers(model.weights, NUMBERS) if model.weights else None
        regression = make(
            X,
            y,
            name,
            penalty,
            intercept=model.intercept,
            offset=offset,
            sample_weight=weights,
        )
    if len(regression.names) > WIDEST:
        fail(
            f"{rows.name}: {len(regression.names)} columns with all levels of the categories are too many; name fewer."
        )
    levels = Counter(
        name
        for name in model.categories
        for column in regression.names
        if column.startswith(f"{name}=")
    )
    numbers = [column for column in regression.names if column.partition("=")[0] not in levels]
    features = shorten_names(
        [*numbers, *(f"{name} ({count + 1} levels)" for name, count in levels.items())]
    )
    return regression, join_notes(f"features: {features}", model.omission_note(rows), remark)


def _design(
    rows: FileTable, model: Model, drop_first: bool, features: list[str] | None = None
) -> pd.DataFrame:
    """Build the columns of the features.

    Numbers, and one of zeros and ones for each level of a category.
    """
    parts = [pd.DataFrame(index=rows.frame.index)]
    for name in features or model.features_of(rows):
        if name in model.categories:
            cells = rows.column(name).astype(str)
            parts.append(
                pd.get_dummies(
                    cells, prefix=name, prefix_sep="=", dtype=float, drop_first=drop_first
                )
            )
        else:
            parts.append(pd.DataFrame({name: rows.numbers(name, CATEGORY)}, index=rows.frame.index))
    return pd.concat(parts, axis=1)


def new_design(
    new: FileTable, rows: FileTable, model: Model, regression: lo.GLM | lo.Regression
) -> pd.DataFrame:
    """Build the columns of a model for the rows of a second file."""
    for name in model.categories:
        levels = rows.frame[name].astype(str).unique()
        if unknown := sorted(set(new.column(name).astype(str)) - set(levels)):
            fail(
                f"{new.name}: {name!r} has a level that {rows.name} does not have, {unknown[0]!r}: nothing is known of it."
            )
    design = _design(new, model, drop_first=False, features=model.features_of(rows))
    return design.reindex(columns=list(regression.names), fill_value=0.0)


def _check_levels(rows: FileTable, name: str) -> None:
    """Check that a category has two levels or more, and not too many."""
    count = rows.frame[name].astype(str).nunique()
    if count < 2:
        fail(
            f"category {name!r} has one level, {str(rows.frame[name].iloc[0])!r}: it says nothing; leave it out."
        )
    if count > WIDEST:
        fail(f"category {name!r} has {count} levels: too many; leave it out, or merge levels.")


def _by_formula(rows: FileTable, model: Model) -> tuple[str, str, pd.DataFrame]:
    """Return the response and the right side of the formula, and the table with categories as
    labels.
    """
    formula = str(model.formula)
    left_side, tilde, right_side = formula.partition("~")
    target = left_side.strip().strip("`") if tilde else model.target
    if target is None or model.target not in (None, target):
        fail(f"--formula {formula!r}: name one column to predict, on its left side or by --target.")
    frame = rows.frame.assign(
        **{name: parse_labels(rows.frame[name]) for name in rows.frame.columns}
    )
    rows = replace(rows, frame=frame)
    for name in model.columns_of(rows):
        if name != target and (f"C({name}" in formula or not is_numeric(rows.frame[name])):
            _check_levels(rows, name)
    return target, right_side if tilde else left_side, frame


def _target(y: pd.Series, loss: str, positive: str | None = None) -> tuple[np.ndarray, str]:
    """Return the target in the form of the loss. Two text labels are 0 and 1, in their order.

    The `positive` one is 1.
    """
    if loss in (*LABELS, "multinomial"):
        y = parse_labels(y)
    text = not is_numeric(y) or pd.api.types.is_bool_dtype(y)
    levels = sorted(y.unique(), key=str) if text or loss in LABELS else []
    if positive is not None:
        is_positive = y.astype(str) == positive
        other_labels = shorten_names(
            [repr(x) for x in sorted(y[~is_positive].astype(str).unique())]
        )
        if loss not in LABELS or not is_positive.any() or is_positive.all():
            fail(
                f"--positive {positive}: it must be one of two labels or more of {y.name!r}, for {', '.join(LABELS)}."
            )
        return is_positive.to_numpy(float), f"{y.name}: 1 is {positive!r}, 0 is {other_labels}"
    if loss == "multinomial":
        if text:
            y = y.astype(str)
        return y.to_numpy(), ""
    if loss in LABELS and len(levels) == 1:
        fail(f"target {y.name!r} has one value only, {levels[0]!r}: nothing to tell apart.")
    if text and loss in LABELS and len(levels) == 2:
        return (y == levels[1]).to_numpy(
            float
        ), f"{y.name}: 1 is {str(levels[1])!r}, 0 is {str(levels[0])!r}"
    if text and loss in LABELS and pd.to_numeric(y, errors="coerce").notna().all():
        fail(
            f"target {y.name!r} has {len(levels)} labels, {shorten_names([repr(x) for x in levels])}: write each in one way."
        )
    if text:
        way = (
            "; --loss multinomial takes labels"
            if len(levels) > 2
            else "; --loss logistic takes two labels"
        )
        return FileTable(y.to_frame(), "").numbers(
            str(y.name), f"the {loss} loss needs numbers{way}"
        ), ""
    return y.to_numpy(float), ""


def lone_levels(
    rows: FileTable, model: Model, plan: lo.Plan, regression: lo.GLM | lo.Regression
) -> str:
    """List levels of categories that one refit leaves out whole, so that only a penalty determines
    their coefficient.
    """
    fold = np.full(plan.num_units, -1)
    fold[plan.index] = plan.refit
    in_one_fold = lambda rows: len(np.unique(fold[rows])) == 1
    if model.formula:  # columns of zeros and ones of the design
        # the intercept, last, has no name
        columns = zip(regression.names, np.asarray(regression.design).T, strict=False)
        binary = [
            (name, column) for name, column in columns if set(np.unique(column)) == {0.0, 1.0}
        ]
        levels = [
            repr(name)
            for name, column in binary
            if any(in_one_fold(column == value) for value in (0, 1))
        ]
    else:
        cells = {name: rows.frame[name].astype(str).to_numpy() for name in model.categories}
        levels = [
            f"{level!r} of {name!r}"
            for name, column in cells.items()
            for level in np.unique(column)
            if in_one_fold(column == level)
        ]
    return abbreviate(levels)
