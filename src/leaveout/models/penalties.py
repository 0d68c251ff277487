"""Penalties on the coefficients (never on the intercept), added once to the summed loss.

Ridge(α)         α/2 ‖coef‖²                       α a number, or one a coefficient
Quadratic(M)     ½ coefᵀ M coef                    M symmetric, positive semidefinite: Laplacians, stratified models
PseudoHuber(α, δ)  α Σ δ² (√(1 + (c/δ)²) − 1)      a smooth stand-in for the lasso
a + b            sums;  any JAX function of the coefficients
per_weight(R)    Σ_n w_n s_n · R: for hosts that average the loss, whose penalty shrinks as rows leave
per_row(R)       Σ_n w_n · R: for hosts that divide a weighted sum by the number of rows
"""

import abc
import copy
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._jax import Array, Module, Scalar, followed, jax, jnp, numpy_of, static
from .._objective import stored, traced

Model = TypeVar("Model")
PROBES = 32  # of the diagonal of a penalty's Hessian


class Bent(NamedTuple):
    """`Σ_j weight_j ψ(rows_jᵀ coef)`, ψ(t) = √(1 + t²) − 1."""

    rows: Float[np.ndarray, "terms features"]
    weight: Float[np.ndarray, " terms"]


class AbstractPenalty(Module):
    """A function of the coefficients, `[features]` or `[outputs, features]`."""

    @abc.abstractmethod
    def __call__(self, coef: Array) -> Scalar:
        """The penalty's value."""

    @property
    @abc.abstractmethod
    def quadratic(self) -> bool:
        """Is its third derivative zero?"""

    def check(self, features: int) -> None:
        """Raise where the penalty does not fit so many features."""

    def times(self, weights: Array, weighted: Array) -> Array | np.ndarray:
        """How many times it is added to a loss of these weights `w`, `weighted` being `w s`."""
        del weights, weighted
        return np.ones(())

    def second(self, features: int) -> np.ndarray:
        """The Hessian of what of it is quadratic, `[features, features]`."""
        raise NotImplementedError(f"{type(self).__name__} is not known to be quadratic.")

    def bent(self, features: int) -> Bent | None:
        """What of it is not; None where that is not known to be such a sum."""
        return Bent(np.zeros((0, features)), np.zeros(0)) if self.quadratic else None

    def __add__(self, other: "AbstractPenalty") -> "Sum":
        return Sum((self, resolve(other)))


class Zero(AbstractPenalty):
    """No penalty."""

    def __call__(self, coef):
        return jnp.zeros(())

    def second(self, features):
        return np.zeros((features, features))

    @property
    def quadratic(self):
        return True


class Ridge(AbstractPenalty):
    """`α/2 ‖coef‖²`, or `½ Σ α_i coef_i²` for one α a coefficient."""

    alpha: Float[np.ndarray, "..."]

    def __init__(self, alpha: ArrayLike = 1.0):
        self.alpha = _not_negative("Ridge: alpha", alpha)

    def __call__(self, coef):
        return 0.5 * jnp.sum(self.alpha * coef**2)

    def second(self, features):
        xp = numpy_of(self.alpha)
        return xp.diag(xp.broadcast_to(self.alpha, (features,)))

    @property
    def quadratic(self):
        return True

    def check(self, features):
        if self.alpha.ndim and self.alpha.shape != (features,):
            raise ValueError(
                f"Ridge: alpha must be a number or one number a coefficient, shape ({features},); got {self.alpha.shape}."
            )


class Quadratic(AbstractPenalty):
    """`½ coefᵀ M coef`, M symmetric and positive semidefinite, `[features, features]`."""

    matrix: Float[np.ndarray, "features features"]

    def __init__(self, matrix: ArrayLike):
        if followed(matrix):
            known: Any = jnp.asarray(matrix, float)
            self.matrix = known  # what it must be is seen where it has values
            return
        m = np.asarray(matrix, np.float64)
        if m.ndim != 2 or m.shape[0] != m.shape[1]:
            raise ValueError(f"Quadratic: the matrix must be square; got shape {m.shape}.")
        if not np.isfinite(m).all():
            raise ValueError("Quadratic: the matrix holds NaN or infinite values.")
        if not np.allclose(m, m.T, rtol=1e-10, atol=1e-12 * np.abs(m).max(initial=0)):
            raise ValueError("Quadratic: the matrix must be symmetric; give (M + M.T) / 2.")
        self.matrix = stored((m + m.T) / 2)

    def __call__(self, coef):
        return 0.5 * jnp.sum(coef * (coef @ self.matrix))

    def second(self, features):
        del features
        return self.matrix

    @property
    def quadratic(self):
        return True

    def check(self, features):
        if len(self.matrix) != features:
            raise ValueError(f"Quadratic: M is {self.matrix.shape}, but there are {features} coefficients.")


class PseudoHuber(AbstractPenalty):
    """`α Σ δ² (√(1 + (coef/δ)²) − 1)`: close to `α δ |coef|` beyond δ, and smooth."""

    alpha: Float[np.ndarray, "..."]
    delta: Float[np.ndarray, ""]

    def __init__(self, alpha: ArrayLike = 1.0, delta: float = 1.0):
        self.alpha, self.delta = _not_negative("PseudoHuber: alpha", alpha), _not_negative("PseudoHuber: delta", delta)
        if self.delta.ndim or (not followed(self.delta) and self.delta == 0):
            raise ValueError(f"PseudoHuber: delta must be one positive number; got {delta}.")

    def __call__(self, coef):
        return jnp.sum(self.alpha * self.delta**2 * (jnp.sqrt(1 + (coef / self.delta) ** 2) - 1))

    def second(self, features):
        return np.zeros((features, features))

    def bent(self, features):
        weight = np.broadcast_to(self.alpha * self.delta**2, features)
        return Bent((np.eye(features) / self.delta)[weight > 0], weight[weight > 0])

    @property
    def quadratic(self):
        return False


class Custom(AbstractPenalty):
    """A user's JAX function of the coefficients."""

    function: Callable[[Array], Scalar]

    def __call__(self, coef):
        return traced("penalty", self.function, coef)

    @property
    def quadratic(self):
        return False


class Sum(AbstractPenalty):
    """A sum of penalties."""

    terms: tuple[AbstractPenalty, ...]

    def __post_init__(self):
        if any(isinstance(term, PerWeight) for term in self.terms):
            raise TypeError("penalties: per_weight goes around the whole sum: per_weight(Ridge(1.0) + Quadratic(M)).")

    def __call__(self, coef):
        return sum((term(coef) for term in self.terms), jnp.zeros(()))

    def second(self, features):
        return sum((term.second(features) for term in self.terms), np.zeros((features, features)))

    def bent(self, features):
        found = [term.bent(features) for term in self.terms]
        return None if None in found else Bent(*map(np.concatenate, zip(*found, strict=True)))

    @property
    def quadratic(self):
        return all(term.quadratic for term in self.terms)

    def check(self, features):
        for term in self.terms:
            term.check(features)


class PerWeight(AbstractPenalty):
    """`Σ_n w_n s_n`, or `Σ_n w_n`, times a penalty; made by `per_weight` and `per_row`."""

    penalty: AbstractPenalty
    rows: bool = static(default=False)

    def __call__(self, coef):
        return self.penalty(coef)

    def times(self, weights, weighted):
        return (weights if self.rows else weighted).sum(-1)

    def second(self, features):
        return self.penalty.second(features)

    def bent(self, features):
        return self.penalty.bent(features)

    @property
    def quadratic(self):
        return self.penalty.quadratic

    def check(self, features):
        self.penalty.check(features)


def per_weight(penalty: "AbstractPenalty | Callable | None") -> PerWeight:
    """The penalty times `Σ_n w_n s_n` (sample weights included): F is Σ_n w_n s_n (ℓ_n + R), as of a host that averages."""
    return PerWeight(resolve(penalty))


def per_row(penalty: "AbstractPenalty | Callable | None") -> PerWeight:
    """The penalty times the number of rows, `Σ_n w_n`, whatever their sample weights."""
    return PerWeight(resolve(penalty), rows=True)


def curvature(penalty: Callable[[Array], Scalar], vector: Float[Array, " params"]) -> Float[Array, " params"]:
    """The diagonal of its Hessian where it is a sum over parameters; else about that, by vectors of random signs."""
    signs = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, len(vector))))
    return jnp.mean(jax.lax.map(lambda z: z * jax.jvp(jax.grad(penalty), (vector,), (z,))[1], signs), axis=0)


def _not_negative(name: str, value: Any) -> Any:
    if followed(value):
        return jnp.asarray(value, float)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a number, or one a coefficient; got {value!r}.")
    array = array.astype(np.float64)
    if array.ndim > 1 or not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{name} must be finite and not negative; got {value!r}.")
    return array


def under(model: Model, penalty: "AbstractPenalty | Callable | None", features: int) -> Model:
    """The same model under another penalty: its data are shared, and not read again."""
    other, found = copy.copy(model), resolve(penalty)
    found.check(features)
    object.__setattr__(other, "penalty", found)
    return other


def resolve(penalty: "AbstractPenalty | Callable | None") -> AbstractPenalty:
    """A penalty from an object of `penalties`, from a JAX function of the coefficients, or none from None."""
    if penalty is None:
        return Zero()
    if isinstance(penalty, AbstractPenalty):
        return penalty
    if callable(penalty):
        return Custom(penalty)
    raise TypeError(
        f"GLM: penalty must be None, a penalty of lo.penalties such as Ridge(1.0), or a function of the coefficients; "
        f"got {type(penalty).__name__}."
    )
