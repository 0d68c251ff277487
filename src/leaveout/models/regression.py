"""A linear predictor, and a few parameters that all units share.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + o_n, τ, y_n) + R(coef),      θ = (β, τ)

A unit sees θ through x_nᵀβ and τ alone, 1 + own linear predictors with rows U_n = diag(x_nᵀ, I): so leaving it out is as
cheap as in a GLM, and a dispersion or a threshold is left out of with it.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from .._objective import AbstractLinearPredictor, Parameters, Units, float64, ravel, stored, unravel
from .._read import Names, matched, numbers
from . import _shared as shared
from . import penalties
from ._rows import by_weight, column, design, mean_offset, pick, sample_weights, shift, touched


class Regression(AbstractLinearPredictor):
    """A regression whose loss has parameters of its own: negative binomial, beta, ordinal, a scale that is estimated.

    `X`, `penalty`, `sample_weight`, `offset` are as in `lo.GLM`. `loss` is "negative_binomial", "beta", "ordinal",
    "gaussian", "gamma", "huber_scale", or an object of `lo.losses` (`NegativeBinomialDispersion`, `Beta`, `Ordinal`, …).
    For "ordinal", `y` holds numbers, or is an ordered categorical; its thresholds take the place of an intercept.

    `fit(...).parameters` is `{"intercept", "coef"}` and the loss's own: `dispersion`, `precision`, `scale`, `shape` or
    `thresholds`. Own parameters are not penalised.

    Raises ValueError on NaN, infinities, lengths that differ, weights below zero, y outside the domain.
    """

    design: Float[np.ndarray, "units coefficients"]
    y: Float[np.ndarray, " units"]
    sample_weight: Float[np.ndarray, " units"] | None
    offset: Float[np.ndarray, " units"] | None
    loss_function: shared.AbstractSharedLoss
    penalty: penalties.AbstractPenalty
    intercept: bool = eqx.field(static=True)
    levels: tuple = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    remark: str = eqx.field(static=True)
    labels: Names = eqx.field(static=True)

    @float64
    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        loss: str | shared.AbstractSharedLoss,
        penalty: penalties.AbstractPenalty | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        intercept: bool = True,
        remark: str = "",
    ):
        self.penalty, self.remark, self.levels = penalties.resolve(penalty), remark, ()
        self.labels, X, y, sample_weight, offset = matched("Regression", X=X, y=y, sample_weight=sample_weight, offset=offset)
        if isinstance(loss, str) and loss.lower() == "ordinal":
            y, self.levels = _ordered(y)
            loss = shared.Ordinal(len(self.levels))
        self.loss_function = shared.resolve(loss)
        self.intercept = bool(intercept) and self.loss_function.intercept
        self.design, self.names = design(X, self.intercept, "Regression")
        n = len(self.design)
        self.y = column("y", y, n, "Regression")
        self.loss_function.check(self.y)
        self.sample_weight = sample_weights(sample_weight, n, "Regression")
        self.offset = None if offset is None else stored(np.ravel(column("offset", offset, n, "Regression")))
        self.penalty.check(self.num_features)

    @property
    def num_units(self) -> int:
        return self.design.shape[0]

    @property
    def num_features(self) -> int:
        return self.design.shape[1] - self.intercept

    @property
    def parameters(self):
        return Parameters(
            natural=self._natural,
            unconstrained=self._unconstrained,
            start=self._start,
            names=self._names,
            penalty_curvature=self._penalty_curvature,
        )

    def _start(self, seed):
        del seed
        weight = np.ones(self.num_units) if self.sample_weight is None else np.asarray(self.sample_weight)
        start, tau = self.loss_function.start(np.asarray(self.y), weight)
        beta = np.zeros(self.design.shape[1])
        if self.intercept:
            beta[-1] = start - mean_offset(self.offset, weight)
        return {"beta": beta, "own": np.asarray(tau, np.float64)}

    def _natural(self, theta):
        coefficients = {"coef": theta["beta"]}
        if self.intercept:
            coefficients = {"intercept": theta["beta"][-1], "coef": theta["beta"][:-1]}
        return coefficients | self.loss_function.natural(theta["own"])

    def _unconstrained(self, parameters):
        own = list(self.loss_function.natural(np.zeros(self.loss_function.own)))
        wanted = ["coef", *["intercept"] * self.intercept, *own]
        if set(parameters) != set(wanted):
            raise ValueError(f"Regression: parameters are {sorted(wanted)}; got {sorted(parameters)}.")
        coef = np.asarray(parameters["coef"], np.float64)
        if coef.shape != (self.num_features,):
            raise ValueError(f"Regression: coef must have shape {(self.num_features,)}; got {coef.shape}.")
        beta = np.r_[coef, np.asarray(parameters["intercept"], np.float64)] if self.intercept else coef
        return {"beta": beta, "own": np.asarray(self.loss_function.unconstrained(parameters), np.float64)}

    # F and its parts

    def _predictor(self, theta: PyTree, index: Array | slice) -> Array:
        return pick(self.design, index) @ theta["beta"] + shift(self.offset, index)

    def _losses(self, eta: Array, tau: Array, y: Array) -> Array:
        return jax.vmap(self.loss_function, (0, None, 0))(eta, tau, y)

    def loss(self, theta, weights):
        omega = by_weight(weights, self.sample_weight, slice(None))
        eta = jnp.where(omega == 0, 0.0, self._predictor(theta, slice(None)))  # what is out must not overflow
        losses = self._losses(eta, theta["own"], jnp.asarray(self.y))
        total = omega @ jnp.where(omega == 0, 0.0, losses)
        return total + self.penalty.times(weights, omega) * self.penalty(theta["beta"][: self.num_features])

    def _penalty_curvature(self, theta):
        ones = jnp.ones(self.num_units)
        kappa = self.penalty.times(ones, by_weight(ones, self.sample_weight, slice(None)))
        of = lambda v: unravel(v, theta)["beta"][: self.num_features]
        return penalties.curvature(lambda v: kappa * self.penalty(of(v)), ravel(theta))

    def score(self, theta, weights, index, held):
        del weights, held
        return self._losses(self._predictor(theta, index), theta["own"], pick(self.y, index))

    def perturbation(self, theta, index, delta):
        index, delta = touched(index, delta, self.num_units)
        omega = by_weight(delta, self.sample_weight, index)
        value = omega @ self.score(theta, None, index, None)
        if self.low_rank:
            return value
        return value + self.penalty.times(delta, omega) * self.penalty(theta["beta"][: self.num_features])

    def hessian(self, theta, weights):
        omega = by_weight(weights, self.sample_weight, slice(None))
        curvature = jnp.where(omega[:, None, None] == 0, 0.0, omega[:, None, None] * self._derivative(theta, slice(None), 2))
        return _assembled(self.design, curvature) + self.penalty.times(weights, omega) * self._penalty_hessian(theta)

    def hessian_change(self, theta, index, delta):
        index, delta = touched(index, delta, self.num_units)
        omega = by_weight(delta, self.sample_weight, index)
        change = _assembled(pick(self.design, index), omega[:, None, None] * self._derivative(theta, index, 2))
        return change if self.low_rank else change + self.penalty.times(delta, omega) * self._penalty_hessian(theta)

    def _penalty_hessian(self, theta: PyTree) -> Array:
        return jax.hessian(lambda v: self.penalty(v[: self.num_features]))(jnp.concatenate([theta["beta"], theta["own"]]))

    def predict(self, theta, weights, index, kind):
        eta = self._predictor(theta, index)
        return eta if kind == "link" else self.loss_function.inverse_link(eta, theta["own"])

    # the fast path

    @property
    def outputs(self) -> int:
        return 1 + self.loss_function.own

    @property
    def low_rank(self):
        return not isinstance(self.penalty, penalties.PerWeight)

    @property
    def smooth(self):
        return self.loss_function.smooth

    def rows(self, index):
        x = pick(self.design, index)
        own = self.outputs - 1
        top = jnp.pad(x[:, None, :], ((0, 0), (0, 0), (0, own)))
        rest = jnp.pad(jnp.eye(own), ((0, 0), (x.shape[1], 0)))
        return jnp.concatenate([top, jnp.broadcast_to(rest, (len(x), *rest.shape))], axis=1)

    def derivative(self, theta, index, order):
        return by_weight(self._derivative(theta, index, order), self.sample_weight, index)

    def _derivative(self, theta: PyTree, index: Array | slice, order: int) -> Array:
        function = lambda z, y: self.loss_function(z[0], z[1:], y)
        for _ in range(order):
            function = jax.jacfwd(function)
        eta = self._predictor(theta, index)
        z = jnp.concatenate([eta[:, None], jnp.broadcast_to(theta["own"], (len(eta), len(theta["own"])))], axis=1)
        return jax.vmap(function)(z, pick(self.y, index))

    def crossings(self, start, end):
        if self.loss_function.smooth:
            return jnp.zeros(())
        region = jax.vmap(self.loss_function.region, (0, None, 0))
        before, after = (region(self._predictor(t, slice(None)), t["own"], self.y) for t in (start, end))
        return jnp.sum(before != after)

    # what the core asks of a model

    @property
    def units(self):
        return Units(names=self.labels.index, weight=self.sample_weight, target=self.y)

    @property
    def note(self):
        return self.remark

    def _names(self) -> list[str]:
        own = self.loss_function.natural(np.zeros(self.loss_function.own))
        listed = [f"{name} {k}" if np.ndim(value) else name for name, value in own.items() for k in range(np.size(value))]
        return [*self.names, *["intercept"] * self.intercept, *listed]


def _assembled(x: Array, curvature: Array) -> Array:
    """`Σ_n U_nᵀ C_n U_n` of U_n = diag(x_nᵀ, I), C `[units, outputs, outputs]`."""
    across = x.T @ curvature[:, 0, 1:]
    return jnp.block([[x.T @ (curvature[:, 0, :1] * x), across], [across.T, curvature[:, 1:, 1:].sum(0)]])


def _ordered(y: ArrayLike) -> tuple[np.ndarray, tuple]:
    """Numbers of levels 0, 1, … in their order, and the levels."""
    categories: Any = getattr(y, "cat", y)
    if getattr(categories, "ordered", False):
        codes = np.asarray(categories.codes)
        if (codes < 0).any():
            raise ValueError(f"Regression: y holds {np.sum(codes < 0)} missing values.")
        levels, found = np.unique(codes, return_inverse=True)
        return found.astype(float), tuple(np.asarray(categories.categories)[levels].tolist())
    try:
        array = numbers("Regression", "y", y)
    except TypeError as error:
        raise TypeError(
            "Regression: an ordinal y needs an order of its levels: give numbers, or pd.Categorical(..., ordered=True). "
            f"{error}"
        ) from None
    if not np.isfinite(array.astype(float)).all():
        raise ValueError(f"Regression: y holds {np.sum(~np.isfinite(array))} NaN or infinite values.")
    levels, found = np.unique(array, return_inverse=True)
    return found.astype(float), tuple(levels.tolist())
