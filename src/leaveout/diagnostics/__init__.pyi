"""The public names of diagnostics that are not at the package's root."""

from .dependent_groups import auto_groups as auto_groups
from .functions_of_parameters import functional as functional
from .measures import (
    cooks_distance as cooks_distance,
    dfbetas as dfbetas,
    leverage as leverage,
    studentized_residuals as studentized_residuals,
)
from .result import Influence as Influence
