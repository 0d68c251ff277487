"""The contract of a model.

An objective F(θ, w) with records of its units, its parameters and its costs.
"""

from ..objectives.closed_form import AbstractClosedForm as AbstractClosedForm
from ..objectives.objective import (
    AbstractLinearPredictor as AbstractLinearPredictor,
    Costs as Costs,
    Parameters as Parameters,
    Units as Units,
)
