"""The rows of linear predictors, and all that a refit of them needs to know: no compiler, plain arrays.

F(θ, w) = Σ_n ω_n(w) ℓ(x_nᵀθ + o_n, y_n) + κ(w) ½ θᵀPθ
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float

Array = np.ndarray


class Loss(Protocol):
    """A convex loss of one linear predictor, in NumPy."""

    @property
    def self_concordance(self) -> float | Float[Array, ""] | None:
        """M of |ℓ‴| ≤ M ℓ″, if there is one."""

    @property
    def ceiling(self) -> float:
        """No ℓ″ is larger."""

    def peak(self, y: Array) -> Array | None:
        """Where ℓ″ is largest, if it has one hill."""

    def derivatives(self, eta: Array, y: Array, orders: tuple[int, ...]) -> tuple[Array, ...]:
        """ℓ and its derivatives in η."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Rows in one array, `[units, params]`."""

    x: Float[Array, "units params"]

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.x.shape[1]

    def predictors(self, theta: Float[Array, "refits params"]) -> Float[Array, "refits units"]:
        """x_nᵀθ of every unit."""
        return theta @ self.x.T

    def pull(self, slope: Float[Array, "refits units"]) -> Float[Array, "refits params"]:
        """Σ_n slope_n x_n."""
        return slope @ self.x

    def bulk(self, theta: Float[Array, " params"]) -> Float[Array, " units"]:
        """Σ_j |x_nj θ_j| of every unit, in blocks of rows."""
        size = max(1, BLOCK // self.shape[1])
        return np.concatenate([np.abs(self.x[k : k + size]) @ np.abs(theta) for k in range(0, len(self.x), size)])

    def rows(self, units: Array) -> Float[Array, "... params"]:
        """x_n of the listed units."""
        return self.x[units]

    def gram(self, weight: Float[Array, "refits units"]) -> Float[Array, "refits params params"]:
        """Σ_n weight_n x_n x_nᵀ: of many refits by one product with all x xᵀ, where those are small."""
        n, p = self.shape
        if len(weight) >= p and n * p * (p + 1) // 2 <= PAIRS:
            i, j = np.triu_indices(p)
            half = weight @ (self.x[:, i] * self.x[:, j])
            out = np.empty((len(weight), p, p))
            out[:, i, j] = out[:, j, i] = half
            return out
        return np.stack([(self.x * w[:, None]).T @ self.x for w in weight])

    def norms(self, root: Float[Array, "params rank"]) -> Float[Array, " units"]:
        """‖rootᵀ x_n‖ of every unit, in blocks of rows."""
        n, size = len(self.x), max(1, BLOCK // max(root.shape))
        return np.concatenate(
            [np.sqrt(np.einsum("np,np->n", z, z)) for z in (self.x[k : k + size] @ root for k in range(0, n, size))]
        )


PAIRS = 2**22  # numbers of all x xᵀ together, below which they are formed
BLOCK = 2**20  # numbers that one block of rows makes


@dataclass(frozen=True, eq=False)
class Predictors:
    """A model of one linear predictor a unit as data.

    `weigh` gives ω and κ of weights `[refits, units]`; `separate` says that ω_n = w_n ω_n(1) and κ = 1, so that leaving units out
    changes their own terms only.
    """

    design: Dense
    offset: Float[Array, " units"] | float
    y: Float[Array, " units"]
    loss: Loss
    penalty: Float[Array, "params params"]
    weigh: Callable[[Array], tuple[Float[Array, "refits units"], Float[Array, " refits"]]]
    separate: bool
