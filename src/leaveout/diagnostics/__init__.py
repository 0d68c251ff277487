"""Influence: the effect of rows, folds and pairs of them on a fit, by refits without them; and the measures of textbooks."""

from .influence import influence as influence
from .measures import (
    cooks_distance as cooks_distance,
    dfbetas as dfbetas,
    leverage as leverage,
    studentized_residuals as studentized_residuals,
)
from .result import Influence as Influence
