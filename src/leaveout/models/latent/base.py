"""Data of a mixed model, and F by the engine that its factors need."""

from typing import Any, Self

import numpy as np
from jaxtyping import Float

from ..._runtime.jax import PyTree, static
from ...data.arrays import Names
from ...objectives.closed_form import AbstractClosedForm, Points, State, ValueAndGradient, Weights
from .crossed import CrossedFactors
from .effects import GroupingFactor
from .grouped import OneFactor
from .responses import ResponseRows

ROWS = "row"


class AbstractMixedModel(AbstractClosedForm):
    """Base of mixed models, with the parts that their engine, tables and boundary use."""

    engine: Any = static()
    data: ResponseRows = static()
    factors: tuple[GroupingFactor, ...] = static()
    whole: tuple[GroupingFactor, ...] = static()  # the factors before entries of Λ were held at zero
    transform: Float[np.ndarray, "coefficients coefficients"]
    unit: float = static()
    code: Any = static()  # the unit of each row
    num: int = static()
    drop: str = static()
    joint: bool = static()
    quadrature: int = static()
    names: tuple[str, ...] = static()
    levels: tuple[Any, ...] = static()
    labels: Names = static()
    spec: Any = static()

    def with_factors(self, factors: tuple[GroupingFactor, ...]) -> Self:
        """Copy the model with other entries of Λ free.

        Parameters
        ----------
        factors : tuple of Factor
            Factors, whose free entries are those of Λ.

        Returns
        -------
        AbstractMixed
            The model, which shares its data with this one.
        """
        new = object.__new__(type(self))
        for name, value in vars(self).items():
            object.__setattr__(new, name, value)
        object.__setattr__(new, "factors", factors)
        object.__setattr__(new, "engine", self._make_engine(factors))
        return new

    def _make_engine(self, factors: tuple[GroupingFactor, ...]) -> Any:
        """Make the engine that computes F."""
        if len(factors) == 1:
            return OneFactor.of(self.data, factors[0], self.quadrature, self.drop != ROWS)
        return CrossedFactors.of(self.data, factors, self.code)

    @property
    def _num_held(self) -> int:
        """Number of entries of Λ that are held at zero."""
        return sum(len(full.row) - len(own.row) for full, own in zip(self.whole, self.factors, strict=True))

    # F

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        with np.errstate(all="ignore"):
            return self.engine.look(theta, np.asarray(weights, np.float64), state)

    def jacobian(self, theta: PyTree) -> Float[np.ndarray, "units params"]:
        return self.engine.jacobian(np.asarray(theta)) if hasattr(self.engine, "jacobian") else super().jacobian(theta)
