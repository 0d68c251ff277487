"""Transformers that were fitted with the response, so that held-out rows have a part in the columns
of the model.

What a step of scikit-learn does is read off its kind: it selects columns, or its tags require a
response. Any other step is fitted again, to the same rows with responses in another order: a step
that then transforms differently has used the response.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectorMixin
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import _safe_indexing, get_tags

PERMUTED_ROWS = 2000  # largest number of rows to which a step is fitted again
PERMUTATIONS = 3  # orders of the response, so that none of them chooses the same columns by chance


class Step(NamedTuple):
    """Fitted transformer, and the columns that it was fitted to."""

    transformer: Any
    X: Any

    @property
    def name(self) -> str:
        return type(self.transformer).__name__


def steps_in(transformer, X) -> Iterator[Step]:
    """Yield the fitted transformers inside pipelines, unions and transformers of columns."""
    if isinstance(transformer, Pipeline):
        for _, step in transformer.steps:
            if step in ("passthrough", None):
                continue
            yield from steps_in(step, X)
            if step is not transformer.steps[-1][1]:
                X = step.transform(X)
    elif isinstance(transformer, ColumnTransformer):
        for _, step, columns in transformer.transformers_:
            if not isinstance(step, str) and np.size(columns):
                yield from steps_in(step, _safe_indexing(X, columns, axis=1))
    elif isinstance(transformer, FeatureUnion):
        for _, step in transformer.transformer_list:
            if not isinstance(step, str):
                yield from steps_in(step, X)
    else:
        yield Step(transformer, X)


def learns_response(step: Step, y) -> bool:
    """Tell whether what a fitted transformer learned depends on the response."""
    transformer = step.transformer
    selects = isinstance(transformer, SelectorMixin)
    if not get_tags(transformer).requires_fit or (selects and transformer.get_support().all()):
        return False
    if type(transformer).__module__.startswith("sklearn.") and not hasattr(
        transformer, "score_func"
    ):
        models = (
            (transformer, getattr(transformer, "estimator", None)) if selects else (transformer,)
        )
        return any(model is not None and get_tags(model).target_tags.required for model in models)
    X, y = _sample(step, y)
    rng = default_rng(0)
    transformed = lambda response: clone(transformer).fit(X, response).transform(X)
    try:
        columns = transformed(y)
        if not _are_equal(columns, transformed(y)):
            return False  # it draws numbers anew
        return any(
            not _are_equal(columns, transformed(rng.permutation(y))) for _ in range(PERMUTATIONS)
        )
    except (TypeError, ValueError):
        return False


def encodes_across_folds(step: Step, y) -> bool:
    """Tell whether a transformer gives the rows that it is fitted to other columns than it gives
    the same rows later.
    """
    X, y = _sample(step, y)
    model = clone(step.transformer)
    return not _are_equal(model.fit_transform(X, y), model.transform(X))


def _sample(step: Step, y) -> tuple[Any, np.ndarray]:
    rows = default_rng(0).permutation(len(y))[:PERMUTED_ROWS]
    return _safe_indexing(step.X, rows), np.asarray(y)[rows]


def _are_equal(first, second) -> bool:
    """Compare transformed rows: sparse or dense numbers, or anything else."""
    if hasattr(first, "toarray"):
        first = first.toarray()
        second = second.toarray()
    first = np.asarray(first)
    second = np.asarray(second)
    if first.shape == second.shape and first.dtype.kind in "biuf":
        return np.allclose(first, second, 1e-9, 1e-12, equal_nan=True)
    return np.array_equal(first, second)
