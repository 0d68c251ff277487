"""Answers of a fit by itself: its parameters by name, and their table.

The covariance is that of `covariance`, of the kind that is usual in the model's field.
"""

from typing import Any

import pandas as pd
from numpy.typing import ArrayLike

from .._runtime import HeadedTable
from ..models.glm import kinks
from ..optimize import Fit
from ..validation.named_parameters import name_parameters, natural_names
from .covariance import covariance

__all__ = ["coefficients", "natural_names", "summary"]


def coefficients(fit: Fit) -> pd.Series:
    """Return the natural parameters of a fit, one number each, by name."""
    parameters = name_parameters(fit)
    values = parameters.values_of(fit.vector[None])[0]
    return pd.Series(values, pd.Index(parameters.names), name="coef")


def summary(fit: Fit, level: float, kind: Any, groups: ArrayLike | None) -> HeadedTable:
    """Tabulate the natural parameters of a fit with the standard errors of its field; without any
    where a penalty holds some at its kinks.
    """
    if kind is not None or groups is not None or kinks(fit.objective) is None:
        return covariance(fit, kind, groups=groups).summary(level)
    table = HeadedTable(pd.DataFrame(coefficients(fit)))
    table.heading = [("standard errors", "none: the penalty holds parameters at its kinks")]
    return table
