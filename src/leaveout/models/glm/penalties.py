"""Penalties on the coefficients (never on the intercept), added once to the summed loss.

Ridge(α)         α/2 ‖coef‖²                       α a number, or one a coefficient
Quadratic(M)     ½ coefᵀ M coef
M symmetric, positive semidefinite: Laplacians, stratified models
Lasso(α)         α Σ |coef|                        α a number, or one a coefficient
ElasticNet(α, ρ) α (ρ Σ |coef| + (1 − ρ)/2 ‖coef‖²)
GroupLasso(α, groups)  α Σ_g √|g| ‖coef_g‖
Box(low, high)   low ≤ coef ≤ high, by default not negative
PseudoHuber(α, δ)  α Σ δ² (√(1 + (c/δ)²) − 1)      a smooth stand-in for the lasso
a + b            sums;  any JAX function of the coefficients
per_weight(R)
Σ_n w_n s_n · R: for hosts that average the loss, whose penalty shrinks as rows leave
per_row(R)       Σ_n w_n · R: for hosts that divide a weighted sum by the number of rows
"""

import abc
import copy
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import Array, Scalar, compile_static, is_traced, jax, jnp, numpy_of, pd
from ...linalg import AnyShape, Norms
from ...objectives import PerRefit, as_stored
from .loss import Number
from .losses import Straight
from .penalty import (
    AbstractCurved,
    AbstractPenalty,
    CurvedTerms as CurvedTerms,
    Custom,
    PenaltyLike as PenaltyLike,
    PerFeature as PerFeature,
    PerWeight,
    Sum,
    Zero,
    resolve as resolve,
    terms_of as terms_of,
)

__all__ = [
    "AbstractPenalty",
    "Box",
    "Custom",
    "ElasticNet",
    "GroupLasso",
    "Lasso",
    "PerWeight",
    "PseudoHuber",
    "Quadratic",
    "Ridge",
    "Sum",
    "Zero",
    "per_row",
    "per_weight",
]
__dir__ = __all__.copy


Model = TypeVar("Model")


class Ridge(AbstractPenalty):
    """Ridge penalty, `α/2 ‖coef‖²`, or `½ Σ α_i coef_i²` for one α a coefficient.

    Parameters
    ----------
    alpha : float or array, shape (features,), default: 1.0
        Strength α, zero or more.

    Raises
    ------
    ValueError
        If α is negative or not finite.

    See Also
    --------
    ElasticNet, Quadratic

    Examples
    --------
    >>> import leaveout as lo
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 2.0, 4.0])
    >>> lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(2.0))).parameters["coef"].round(3)
    array([1.])
    """

    alpha: AnyShape
    quadratic = True

    def __init__(self, alpha: ArrayLike = 1.0):
        self.alpha = _not_negative("Ridge: alpha", alpha)

    def __call__(self, coef: Array) -> Array:
        return 0.5 * jnp.sum(self.alpha * coef**2)

    def second(self, features: int) -> ndarray:
        xp = numpy_of(self.alpha)
        return xp.diag(xp.broadcast_to(self.alpha, (features,)))

    def diagonal(self, features: int) -> PerFeature | None:
        return np.broadcast_to(self.alpha, features)

    def check(self, features: int) -> None:
        _check_length("Ridge", self.alpha, features)


class Quadratic(AbstractPenalty):
    """Quadratic penalty, `½ coefᵀ M coef`: graph Laplacians, stratified models.

    Parameters
    ----------
    matrix : array, shape (features, features)
        Matrix M, symmetric and positive semidefinite.

    Raises
    ------
    ValueError
        If the matrix is not square, not symmetric or not finite.

    See Also
    --------
    Ridge

    Examples
    --------
    Two coefficients that should be close to each other:

    >>> import leaveout as lo
    >>> penalty = lo.penalties.Quadratic([[1.0, -1.0], [-1.0, 1.0]])
    >>> float(penalty(np.array([1.0, 3.0])))
    2.0
    """

    matrix: Float[ndarray, "features features"]
    quadratic = True

    def __init__(self, matrix: ArrayLike):
        if is_traced(matrix):
            traced: Any = jnp.asarray(matrix, float)
            self.matrix = traced  # its properties are checked where it has values
            return
        m = np.asarray(matrix, float)
        if m.ndim != 2 or m.shape[0] != m.shape[1]:
            raise ValueError(f"Quadratic: the matrix must be square; got shape {m.shape}.")
        if not np.isfinite(m).all():
            raise ValueError("Quadratic: the matrix holds NaN or infinite values.")
        if not np.allclose(m, m.T, rtol=1e-10, atol=1e-12 * np.abs(m).max(initial=0)):
            raise ValueError("Quadratic: the matrix must be symmetric; give (M + M.T) / 2.")
        self.matrix = as_stored((m + m.T) / 2)

    def __call__(self, coef: Array) -> Array:
        return 0.5 * jnp.sum(coef * (coef @ self.matrix))

    def second(self, features: int) -> ndarray:
        return self.matrix

    def check(self, features: int) -> None:
        if len(self.matrix) != features:
            raise ValueError(
                f"Quadratic: M is {self.matrix.shape}, but there are {features} coefficients."
            )


class AbstractKinked(AbstractCurved):
    """Penalty with terms that have kinks, of the weights `steepness`.

    Without these it is quadratic.
    """

    @property
    @abc.abstractmethod
    def steepness(self) -> AnyShape:
        """Weights of the kinks, a number or one a coefficient or group."""

    @property
    def has_kinks(self) -> bool:
        return bool(is_traced(self.steepness) or np.any(self.steepness > 0))

    @property
    def quadratic(self) -> bool:
        return not self.has_kinks


class AbstractAbsolute(AbstractKinked):
    """Penalty with a term `steepness_j |coef_j|` for each coefficient, of the strength `alpha`.

    Parameters
    ----------
    alpha : float or array, shape (features,)
        Strength, zero or more.
    """

    alpha: AnyShape

    def kinks(self, features: int) -> PerFeature:
        return numpy_of(self.steepness).broadcast_to(self.steepness, (features,)).copy()

    def check(self, features: int) -> None:
        _check_length(type(self).__name__, self.alpha, features)


class Lasso(AbstractAbsolute):
    """Lasso penalty, `α Σ |coef|`, or `Σ α_i |coef_i|` for one α a coefficient. Some coefficients
    are exactly zero.

    It is supported for `lo.Cox`, and for `lo.GLM` with a convex loss of one output.

    Parameters
    ----------
    alpha : float or array, shape (features,), default: 1.0
        Strength α, zero or more.

    Raises
    ------
    ValueError
        If α is negative or not finite.

    See Also
    --------
    ElasticNet, GroupLasso
    PseudoHuber : Smooth penalty of a similar shape.

    Examples
    --------
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=40)
    >>> lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(4.0))).parameters["coef"].round(2)
    array([1.94, 0.  , 0.  ])
    """

    def __init__(self, alpha: ArrayLike = 1.0):
        self.alpha = _not_negative("Lasso: alpha", alpha)

    def __call__(self, coef: Array) -> Array:
        return jnp.sum(self.alpha * jnp.abs(coef))

    @property
    def steepness(self) -> AnyShape:
        return self.alpha


class ElasticNet(AbstractAbsolute):
    """Elastic-net penalty, `α (ρ Σ |coef| + (1 − ρ)/2 ‖coef‖²)`.

    It is supported for `lo.Cox`, and for `lo.GLM` with a convex loss of one output.

    Parameters
    ----------
    alpha : float or array, shape (features,), default: 1.0
        Strength α, zero or more.
    l1_ratio : float, default: 0.5
        Share ρ of the lasso, from 0 to 1.

    Raises
    ------
    ValueError
        If α is negative or not finite, or the share is not between 0 and 1.

    See Also
    --------
    Ridge, Lasso

    Examples
    --------
    >>> import leaveout as lo
    >>> float(lo.penalties.ElasticNet(2.0, l1_ratio=0.25)(np.array([1.0, -2.0])))
    5.25
    """

    l1_ratio: Number

    def __init__(self, alpha: ArrayLike = 1.0, l1_ratio: float = 0.5):
        self.alpha = _not_negative("ElasticNet: alpha", alpha)
        self.l1_ratio = _not_negative("ElasticNet: l1_ratio", l1_ratio)
        if self.l1_ratio.ndim or (not is_traced(self.l1_ratio) and self.l1_ratio > 1):
            raise ValueError(
                f"ElasticNet: l1_ratio must be one number from 0 to 1; got {l1_ratio!r}."
            )

    def __call__(self, coef: Array) -> Array:
        share = self.l1_ratio
        return jnp.sum(self.alpha * (share * jnp.abs(coef) + 0.5 * (1 - share) * coef**2))

    @property
    def steepness(self) -> AnyShape:
        return self.alpha * self.l1_ratio

    def second(self, features: int) -> ndarray:
        strength = self.alpha * (1 - self.l1_ratio)
        return numpy_of(strength).diag(numpy_of(strength).broadcast_to(strength, (features,)))


class GroupLasso(AbstractKinked):
    """Group-lasso penalty, `α Σ_g c_g ‖coef_g‖`: coefficients of a group are zero together.

    It is supported for `lo.GLM` with a convex loss of one output, alone or beside `Ridge`.

    Parameters
    ----------
    alpha : float
        Strength α, zero or more.
    groups : array, shape (features,)
        Label of the group of each coefficient.
    weights : array, shape (groups,), optional
        Weight c of each group, in the order of sorted labels. The default is √|g|, |g| the number
        of coefficients in the group.

    Raises
    ------
    ValueError
        If α or a weight is negative, labels are missing, or there is not one weight for each group.

    See Also
    --------
    Lasso

    References
    ----------
    M. Yuan and Y. Lin, "Model selection and estimation in regression with grouped variables", *J.
    R. Stat. Soc. B* 68, 2006.

    Examples
    --------
    >>> import leaveout as lo
    >>> penalty = lo.penalties.GroupLasso(1.0, ["a", "a", "b"])
    >>> round(float(penalty(np.array([3.0, 4.0, 2.0]))), 3)
    9.071
    """

    alpha: Number
    member: Bool[ndarray, "groups features"]
    weights: Float[ndarray, " groups"]

    def __init__(self, alpha: float, groups: ArrayLike, weights: ArrayLike | None = None):
        self.alpha = _not_negative("GroupLasso: alpha", alpha)
        if self.alpha.ndim:
            raise ValueError(
                f"GroupLasso: alpha must be one number; got {alpha!r}. Use weights, one a group."
            )
        labels = np.asarray(groups)
        if labels.ndim != 1 or not labels.size or pd.isna(labels).any():
            raise ValueError(
                f"GroupLasso: groups must be one label a coefficient, and none missing; got shape {labels.shape}."
            )
        levels, code, size = np.unique(labels, return_inverse=True, return_counts=True)
        self.member = code == np.arange(len(levels))[:, None]
        if weights is None:
            weights = np.sqrt(size)
        self.weights = _not_negative("GroupLasso: weights", weights).reshape(-1)
        if self.weights.shape != (len(levels),):
            raise ValueError(
                f"GroupLasso: weights must be one a group, of {len(levels)}; got shape {self.weights.shape}."
            )

    def __call__(self, coef: Array) -> Array:
        return (
            jnp.sum(self.weights * jnp.sqrt(jnp.sum(jnp.where(self.member, coef**2, 0.0), 1)))
            * self.alpha
        )

    def norms(self, features: int) -> Norms | None:
        positive = np.asarray(self.weights > 0)
        return Norms(self.alpha * self.weights[positive], self.member[positive])

    @property
    def steepness(self) -> AnyShape:
        return self.alpha * self.weights

    def check(self, features: int) -> None:
        if self.member.shape[1] != features:
            raise ValueError(
                f"GroupLasso: groups has {self.member.shape[1]} labels, but there are {features} coefficients."
            )


class Box(AbstractCurved):
    """Bounds `low ≤ coef ≤ high` on the coefficients; by default coefficients are not negative.

    They are supported for `lo.Cox`, and for `lo.GLM` with a convex loss of one output, alone or
    beside `Ridge`, `Lasso` or `ElasticNet`.

    Parameters
    ----------
    low : float or array, shape (features,), default: 0.0
        Lower bound, `-inf` for none.
    high : float or array, shape (features,), default: inf
        Upper bound, `inf` for none.

    Raises
    ------
    ValueError
        If a lower bound is above the upper one, or bounds are NaN.

    Examples
    --------
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 2))
    >>> y = X[:, 0] - X[:, 1]
    >>> lo.fit(lo.GLM(X, y, "squared", lo.penalties.Box() + lo.penalties.Ridge(0.1))).parameters[
    ...     "coef"
    ... ].round(2)
    array([0.58, 0.  ])
    """

    low: AnyShape
    high: AnyShape
    has_kinks = True
    quadratic = False

    def __init__(self, low: ArrayLike = 0.0, high: ArrayLike = np.inf):
        self.low = _read_bound("low", low)
        self.high = _read_bound("high", high)
        if self.low.ndim and self.high.ndim and self.low.shape != self.high.shape:
            raise ValueError(f"Box: low has shape {self.low.shape}, and high {self.high.shape}.")
        if (
            np.any(self.low > self.high)
            or np.any(self.low == np.inf)
            or np.any(self.high == -np.inf)
        ):
            raise ValueError(
                f"Box: low must not be above high, nor hold inf, nor high -inf; got {low!r} and {high!r}."
            )

    def __call__(self, coef: Array) -> Array:
        return jnp.where(jnp.all((coef >= self.low) & (coef <= self.high)), 0.0, jnp.inf)

    def bounds(self, features: int) -> tuple[PerFeature, PerFeature]:
        return np.broadcast_to(self.low, features).copy(), np.broadcast_to(
            self.high, features
        ).copy()

    def check(self, features: int) -> None:
        _check_length("Box", self.low, features, "low")
        _check_length("Box", self.high, features, "high")


class Tilted(AbstractPenalty):
    """Penalty that equals a penalty with kinks near a solution: `½ Σ ridge_j coef_j² + slopeᵀ
    coef + Σ_g weight_g ‖coef_g‖`.

    It acts on coefficients whose signs are known, or on groups that are not zero.

    Parameters
    ----------
    whole : AbstractPenalty
        The penalty with kinks.
    slope : array, shape (features,)
        Slopes of the kinks, whose signs are those of the coefficients.
    ridge : array, shape (features,)
        Strengths of the ridge.
    weight : array, shape (groups,)
        Weights of the norms of groups.
    member : array of bool, shape (groups, features)
        True for the coefficients of each group.

    Examples
    --------
    >>> import leaveout as lo
    >>> nothing = np.zeros(0), np.zeros((0, 2), bool)
    >>> penalty = lo.penalties.Tilted(
    ...     lo.penalties.Lasso(1.0), np.array([1.0, -1.0]), np.zeros(2), *nothing
    ... )
    >>> float(penalty(np.array([2.0, -3.0])))
    5.0
    """

    whole: AbstractPenalty
    slope: PerFeature
    ridge: PerFeature
    weight: Float[ndarray, " groups"]
    member: Bool[ndarray, "groups features"]
    quadratic = False

    def __call__(self, coef: Array) -> Array:
        lengths = jnp.sqrt(jnp.sum(jnp.where(self.member, coef**2, 0.0), 1))
        return jnp.sum(self.slope * coef + 0.5 * self.ridge * coef**2) + jnp.sum(
            self.weight * lengths
        )

    def norms(self, features: int) -> Norms | None:
        if len(self.weight):
            return Norms(self.weight, self.member)
        return None

    def second(self, features: int) -> ndarray:
        return np.diag(self.ridge)

    def curved_terms(self, features: int) -> CurvedTerms | None:
        tilted = bool(self.slope.any())
        return CurvedTerms(self.slope[None][:tilted], np.ones(int(tilted)), Straight())

    def __repr__(self) -> str:
        return repr(self.whole)


class PseudoHuber(AbstractCurved):
    """Pseudo-Huber penalty, `α Σ δ² (√(1 + (coef/δ)²) − 1)`: smooth, and close to `α δ |coef|`
    beyond δ.

    Parameters
    ----------
    alpha : float or array, shape (features,), default: 1.0
        Strength α, zero or more.
    delta : float, default: 1.0
        Coefficient δ about which the penalty turns from squared to linear.

    Raises
    ------
    ValueError
        If α is negative, or δ is not positive.

    See Also
    --------
    Lasso, Ridge

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.penalties.PseudoHuber(1.0, 0.1)(np.array([1.0, -2.0]))), 3)
    0.281
    """

    alpha: AnyShape
    delta: Number
    quadratic = False

    def __init__(self, alpha: ArrayLike = 1.0, delta: float = 1.0):
        self.alpha = _not_negative("PseudoHuber: alpha", alpha)
        self.delta = _not_negative("PseudoHuber: delta", delta)
        if self.delta.ndim or (not is_traced(self.delta) and self.delta == 0):
            raise ValueError(f"PseudoHuber: delta must be one positive number; got {delta}.")

    def __call__(self, coef: Array) -> Array:
        return jnp.sum(self.alpha * self.delta**2 * (jnp.sqrt(1 + (coef / self.delta) ** 2) - 1))

    def curved_terms(self, features: int) -> CurvedTerms | None:
        weight = np.broadcast_to(self.alpha * self.delta**2, features)
        return CurvedTerms((np.eye(features) / self.delta)[weight > 0], weight[weight > 0])


def per_weight(penalty: "AbstractPenalty | Callable[..., Any] | None") -> PerWeight:
    """Multiply a penalty by the total weight of the rows, `Σ_n w_n s_n`.

    F is then Σ_n w_n s_n (ℓ_n + R), the objective of a library that averages the loss. The penalty
    shrinks as rows are left out.

    Parameters
    ----------
    penalty : penalty of lo.penalties, callable or None
        Penalty R; a callable is a JAX function of the coefficients.

    Returns
    -------
    PerWeight
        The penalty.

    Raises
    ------
    TypeError
        If the argument is no penalty.

    See Also
    --------
    per_row : Number of rows, whatever their sample weights.

    Examples
    --------
    >>> import leaveout as lo
    >>> penalty = lo.penalties.per_weight(lo.penalties.Ridge(0.1))
    >>> float(penalty.times(np.ones(3), np.array([1.0, 2.0, 3.0])))
    6.0
    """
    return PerWeight(resolve(penalty))


def per_row(penalty: "AbstractPenalty | Callable[..., Any] | None") -> PerWeight:
    """Multiply a penalty by the number of rows, `Σ_n w_n`, whatever their sample weights.

    F is then Σ_n w_n (s_n ℓ_n + R), the objective of a library that divides a weighted sum of
    losses by the number of rows.

    Parameters
    ----------
    penalty : penalty of lo.penalties, callable or None
        Penalty R; a callable is a JAX function of the coefficients.

    Returns
    -------
    PerWeight
        The penalty.

    Raises
    ------
    TypeError
        If the argument is no penalty.

    See Also
    --------
    per_weight : Total weight, sample weights included.

    Examples
    --------
    >>> import leaveout as lo
    >>> penalty = lo.penalties.per_row(lo.penalties.Ridge(0.1))
    >>> float(penalty.times(np.ones(3), np.array([1.0, 2.0, 3.0])))
    3.0
    """
    return PerWeight(resolve(penalty), rows=True)


def curvature(
    penalty: Callable[[Array], Scalar], vector: Float[Array, " params"]
) -> Float[Array, " params"]:
    """Compute the diagonal of the Hessian of a penalty.

    It is exact if the penalty is a sum over parameters; otherwise it is estimated by vectors of
    random signs.
    """
    signs = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (32, len(vector))))
    return jnp.mean(
        jax.lax.map(lambda z: z * jax.jvp(jax.grad(penalty), (vector,), (z,))[1], signs), 0
    )


def derivatives(
    penalty: AbstractPenalty, theta: Float[ndarray, "refits features"]
) -> tuple[
    PerRefit,
    Float[ndarray, "refits features"],
    Float[ndarray, "refits features features"],
]:
    """Compute a smooth penalty of each refit, its gradient and its Hessian.

    JAX derives those of a function of the user.
    """
    curved = penalty.curved_terms(theta.shape[1])
    if curved is None:
        values, slopes, curvatures = zip(*(_derived(penalty, coef) for coef in theta), strict=True)
        return np.array(values), np.array(slopes), np.array(curvatures)
    second = penalty.second(theta.shape[1])
    product = theta @ second
    value, slope, curvature = (
        curved.weight * part
        for part in curved.loss.derivatives(theta @ curved.rows.T, np.zeros(()), (0, 1, 2))
    )
    return (
        0.5 * np.sum(product * theta, 1) + value.sum(1),
        product + slope @ curved.rows,
        second + np.einsum("rt,tp,tq->rpq", curvature, curved.rows, curved.rows),
    )


@compile_static
def _derived(penalty: AbstractPenalty, coef: Array) -> tuple[Array, Array, Array]:
    return penalty(coef), jax.grad(penalty)(coef), jax.hessian(penalty)(coef)


def _not_negative(name: str, value):
    if is_traced(value):
        return jnp.asarray(value, float)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a number, or one a coefficient; got {value!r}.")
    array = array.astype(float)
    # the same for one coefficient
    if array.shape == (1,):
        array = array.reshape(())
    if array.ndim > 1 or not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{name} must be finite and not negative; got {value!r}.")
    return array


def _read_bound(name: str, value: ArrayLike) -> AnyShape:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"Box: {name} must be a number, or one a coefficient; got {value!r}.")
    if array.ndim > 1 or np.isnan(array).any():
        raise ValueError(
            f"Box: {name} must be a number or one a coefficient, and no NaN; got {value!r}."
        )
    return array.astype(float)


def _check_length(name: str, alpha, features: int, argument: str = "alpha") -> None:
    if alpha.ndim and alpha.shape != (features,):
        raise ValueError(
            f"{name}: {argument} must be a number or one number a coefficient, shape ({features},); got {alpha.shape}."
        )


def smooth(caller: str, penalty: "AbstractPenalty | Callable[..., Any] | None") -> AbstractPenalty:
    """Resolve a penalty; raise TypeError if it has kinks, which only `lo.GLM` supports."""
    smooth_penalty = resolve(penalty)
    if smooth_penalty.has_kinks:
        raise TypeError(
            f"{caller}: an l1 penalty has kinks, a Box has bounds; they are supported for lo.Cox, and lo.GLM with one output; "
            f"got {smooth_penalty!r}. Use lo.penalties.Ridge, or the smooth lo.penalties.PseudoHuber."
        )
    return smooth_penalty


def under(
    model: Model, penalty: "AbstractPenalty | Callable[..., Any] | None", features: int
) -> Model:
    """Copy the model with another penalty; its data are shared, and not read again."""
    new_model = copy.copy(model)
    new_penalty = resolve(penalty)
    new_penalty.check(features)
    object.__setattr__(new_model, "penalty", new_penalty)
    return new_model
