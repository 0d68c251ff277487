"""Linear predictors with any smooth loss and penalty.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀθ + o_n, y_n) + R(coef),      s sample weights, o offsets.

Third source document (T. Shlomo, *Efficient Leave One Out Cross Validation, Part 2*, 2024) with offsets,
weights, several outputs and hosts that average. The intercept, last, is not penalised.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from .._design import Beside, Dense, Loss, Plain, Predictors, Several
from .._objective import AbstractLinearPredictor, Parameters, Units, float64, stored
from .._read import Names, matched, numbers
from . import losses, penalties
from ._rows import by_weight, coded, column, design, mean_offset, pick, sample_weights, shift, touched

SMALL = 2**21  # numbers of all x xᵀ together, below which they are formed
BLOCK = 8192  # rows of the design that are weighted at a time when a Hessian is summed


class GLM(AbstractLinearPredictor):
    """A generalised linear model as an objective: a sum over rows plus the penalty.

    `X` is `[units, features]`, NumPy or a DataFrame, whose names are kept; `y` is `[units]`. `loss` is a
    name (`logistic`, `poisson`, …), an object of `lo.losses`, or a JAX function `(linear_predictor, y) ->
    scalar`; `penalty` an object of `lo.penalties`, a JAX function of the coefficients, or None. A unit is a
    row; leaving it out removes it with all its weight. `class_weight="balanced"` weighs each class by
    `Σw / (K Σ_class w)`, recomputed in every fold.

    `fit(...).parameters` is `{"intercept", "coef"}`: a number and `[features]`, for the multinomial loss
    `[classes]` and `[classes, features]`.

    Labelled arguments are put into the order of X by their labels. Raises ValueError on labels that differ, NaN, infinities,
    lengths that differ, weights below zero, y outside the domain; TypeError on what holds no numbers.
    """

    design: Float[np.ndarray, "units params_per_output"]
    y: Float[np.ndarray, " units"]
    sample_weight: Float[np.ndarray, " units"] | None
    offset: Float[np.ndarray, "units ..."] | None
    class_code: Float[np.ndarray, " units"] | None
    loss_function: losses.AbstractLoss
    penalty: penalties.AbstractPenalty
    intercept: bool = eqx.field(static=True)
    classes: tuple = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    remark: str = eqx.field(static=True)
    labels: Names = eqx.field(static=True)

    @float64
    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        loss: str | losses.AbstractLoss | Callable,
        penalty: penalties.AbstractPenalty | Callable | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        intercept: bool = True,
        class_weight: Literal["balanced"] | None = None,
        remark: str = "",
    ):
        self.loss_function, self.penalty = losses.resolve(loss), penalties.resolve(penalty)
        self.labels, X, y, sample_weight, offset = matched("GLM", X=X, y=y, sample_weight=sample_weight, offset=offset)
        self.design, self.names = design(X, intercept)
        n = len(self.design)
        self.intercept, self.remark = bool(intercept), remark
        multinomial = isinstance(self.loss_function, losses.Multinomial)
        if multinomial:
            labels, codes = coded(y, n)
            self.classes, self.y = tuple(labels.tolist()), stored(codes)
        else:
            self.classes, self.y = (), column("y", y, n)
            self.loss_function.check(self.y)
        self.sample_weight = sample_weights(sample_weight, n)
        if offset is not None and multinomial:
            offset = np.broadcast_to(numbers("GLM", "offset", offset).reshape(n, -1), (n, len(self.classes)))
        self.offset = None if offset is None else column("offset", offset, n)
        if class_weight not in (None, "balanced"):
            raise ValueError(f"GLM: class_weight must be None or 'balanced'; got {class_weight!r}. Use sample_weight.")
        self.class_code = None
        if class_weight:
            labels, codes = coded(self.y, n)
            self.class_code = stored(codes)
        self.penalty.check(self.num_features)

    # the shape of θ: [params_per_output], or [outputs, params_per_output]

    @property
    def num_units(self) -> int:
        return self.design.shape[0]

    @property
    def num_features(self) -> int:
        return self.design.shape[1] - self.intercept

    @property
    def outputs(self) -> int:
        return max(1, len(self.classes))

    @property
    def parameters(self):
        return Parameters(
            natural=self._natural,
            unconstrained=self._unconstrained,
            start=self._start,
            names=self._names,
            symmetries=self._symmetries,
            penalty_curvature=self._penalty_curvature,
        )

    def _start(self, seed):
        del seed  # the usual losses are convex
        theta = np.zeros((len(self.classes), self.design.shape[1]) if self.classes else self.design.shape[1])
        if self.intercept and not self.classes:
            weight = np.ones(self.num_units) if self.sample_weight is None else self.sample_weight
            theta[-1] = self.loss_function.start(np.asarray(self.y), weight) - mean_offset(self.offset, weight)
        return theta

    def _natural(self, theta):
        if not self.intercept:
            return {"intercept": jnp.zeros(theta.shape[:-1]), "coef": theta}
        return {"intercept": theta[..., -1], "coef": theta[..., :-1]}

    def _unconstrained(self, parameters):
        missing = {"coef"} - set(parameters)
        if missing or set(parameters) - {"coef", "intercept"}:
            raise ValueError(f"GLM: parameters are {{'intercept', 'coef'}}; got {sorted(parameters)}.")
        shape = (len(self.classes),) if self.classes else ()
        coef = np.asarray(parameters["coef"], np.float64)
        intercept = np.asarray(parameters.get("intercept", 0.0), np.float64)
        if coef.shape != (*shape, self.num_features):
            raise ValueError(f"GLM: coef must have shape {(*shape, self.num_features)}; got {coef.shape}.")
        if not self.intercept:
            if np.any(intercept != 0):
                raise ValueError("GLM: this model has no intercept, yet one was given.")
            return coef
        return np.concatenate([coef, np.broadcast_to(intercept, shape)[..., None]], axis=-1)

    def _penalty_curvature(self, theta):
        kappa, of = self._effective(jnp.ones(self.num_units))[1], lambda v: self._natural(v.reshape(np.shape(theta)))["coef"]
        return penalties.curvature(lambda v: kappa * self.penalty(of(v)), jnp.asarray(theta).reshape(-1))

    def _symmetries(self, theta):
        """The multinomial's common shift of all intercepts; with no penalty, of every coefficient."""
        if not self.classes:
            return np.zeros((0, len(theta)))
        K, q = theta.shape
        free = range(q) if isinstance(self.penalty, penalties.Zero) else range(q - self.intercept, q)
        basis = np.zeros((len(free), K, q))
        for row, at in enumerate(free):
            basis[row, :, at] = 1 / np.sqrt(K)
        return basis.reshape(len(free), K * q)

    # F and its parts

    def _effective(self, weights: Array) -> tuple[Array, Array | np.ndarray]:
        """`ω(w)` and `κ(w)`."""
        omega = by_weight(weights, self.sample_weight, slice(None))
        kappa = self.penalty.times(weights, omega)
        if self.class_code is not None:
            code = self.class_code.astype(int)
            total = jnp.zeros(self.num_classes).at[code].add(omega)
            seen = jnp.maximum(jnp.sum(total > 0), 1)
            share = jnp.sum(omega) / (seen * jnp.where(total > 0, total, 1.0))
            omega = omega * share[code]
        return omega, kappa

    @property
    def num_classes(self) -> int:
        return len(self.classes) or 2

    def loss(self, theta, weights):
        omega, kappa = self._effective(weights)
        eta = self.design @ theta.T + shift(self.offset)
        out = omega == 0  # a row of weight zero may lie outside the domain of ℓ: it must not reach F, nor its derivatives
        inside = jax.lax.stop_gradient(jnp.full_like(eta, self.loss_function.inside))
        eta = jnp.where(out[:, None] if eta.ndim > 1 else out, inside, eta)
        total = omega @ jax.vmap(self.loss_function)(eta, jnp.asarray(self.y))
        return total + kappa * self.penalty(self._natural(theta)["coef"])

    def hessian(self, theta, weights):
        omega, kappa = self._effective(weights)
        eta = self.design @ theta.T + shift(self.offset)
        curvature = jax.vmap(jax.hessian(self.loss_function))(eta, jnp.asarray(self.y))
        scale = omega.reshape(omega.shape + (1,) * (curvature.ndim - 1))
        curvature = jnp.where(scale == 0, 0.0, scale * curvature)  # [units] or [units, outputs, outputs]
        return _weighted_gram(self.design, curvature) + kappa * self._penalty_hessian(theta)

    def score(self, theta, weights, index, held):
        del weights, held
        return jax.vmap(self.loss_function)(self._predictor(theta, index), pick(self.y, index))

    def perturbation(self, theta, index, delta):
        if self.class_code is not None:  # every row's weight changes with the size of its class
            return super().perturbation(theta, index, delta)
        index, raw = touched(index, delta, self.num_units)
        delta = by_weight(raw, self.sample_weight, index)
        value = delta @ self.score(theta, None, index, None)
        if isinstance(self.penalty, penalties.PerWeight):
            value = value + self.penalty.times(raw, delta) * self.penalty(self._natural(theta)["coef"])
        return value

    def hessian_change(self, theta, index, delta):
        if self.class_code is not None:
            return super().hessian_change(theta, index, delta)
        index, delta = touched(index, delta, self.num_units)
        curvature = self.derivative(theta, index, 2)
        curvature = delta.reshape(delta.shape + (1,) * (curvature.ndim - 1)) * curvature
        if isinstance(index, slice):
            change = _weighted_gram(self.design, curvature)
        else:
            change = _gram(pick(self.design, index), curvature)
        if not isinstance(self.penalty, penalties.PerWeight):
            return change
        omega = by_weight(delta, self.sample_weight, index)
        return change + self.penalty.times(delta, omega) * self._penalty_hessian(theta)

    def _penalty_hessian(self, theta: Array) -> Array:
        return jax.hessian(lambda v: self.penalty(self._natural(v.reshape(theta.shape))["coef"]))(theta.reshape(-1))

    def predict(self, theta, weights, index, kind):
        eta = self._predictor(theta, index)
        return eta if kind == "link" else self.loss_function.inverse_link(eta)

    def _predictor(self, theta: Array, index: Any) -> Array:
        return pick(self.design, index) @ theta.T + shift(self.offset, index)

    # the fast path

    @property
    def low_rank(self):
        return self.class_code is None and not isinstance(self.penalty, penalties.PerWeight)

    @property
    def smooth(self):
        return self.loss_function.smooth

    def rows(self, index):
        x = pick(self.design, index)
        if not self.classes:
            return x[:, None, :]
        return jnp.einsum("kl,nq->nklq", jnp.eye(self.outputs), x).reshape(len(index), self.outputs, -1)

    def derivative(self, theta, index, order):
        function = self.loss_function
        for _ in range(order):
            function = jax.jacfwd(function)
        value = jax.vmap(function)(self._predictor(theta, index), pick(self.y, index))
        return by_weight(value, self.sample_weight, index)

    def crossings(self, start, end):
        if self.loss_function.smooth or self.classes:
            return jnp.zeros(())
        eta0, eta1 = (self.design @ theta + shift(self.offset) for theta in (start, end))
        # ℓ″ at 17 points between: a smooth loss spreads its change over the pieces, a kink makes it in one
        between = eta0 + jnp.linspace(0.0, 1.0, 17)[:, None] * (eta1 - eta0)
        curvature = jax.vmap(jax.vmap(jax.hessian(self.loss_function)), (0, None))(between, self.y)
        spread = curvature.max(0) - curvature.min(0)
        jump = jnp.abs(jnp.diff(curvature, axis=0)).max(0)
        return jnp.sum((jump > 0.5 * spread) & (spread > 0.05 * jnp.abs(curvature).max(0)))

    @property
    def predictors(self):
        function, bent = self.loss_function, self.penalty.bent(self.num_features)
        if not function.convex or bent is None or (self.classes and len(bent.rows)):
            return None
        pad = self.design.shape[1] - self.num_features
        matrix, offset = np.pad(self.penalty.second(self.num_features), (0, pad)), self.offset
        rows: Dense | Several = Dense(self.design)
        own: Loss = function if self.classes else Plain(function)
        loss = own
        if self.classes:
            matrix, rows = np.kron(np.eye(self.outputs), matrix), Several(self.design, self.outputs)
        elif len(bent.rows):
            rows = Dense(np.concatenate([self.design, np.pad(bent.rows, ((0, 0), (0, pad)))]))
            loss = Beside(own, losses.PseudoHuber(1.0), (self.num_units, len(bent.rows)))
            offset = None if offset is None else np.append(offset, np.zeros(len(bent.rows)))
        weigh = functools.partial(type(self)._weigh, self, beside=bent.weight)
        separate = self.class_code is None and not isinstance(self.penalty, penalties.PerWeight)
        return Predictors(rows, 0.0 if offset is None else offset, self.y, own, loss, matrix, weigh, separate)

    def _weigh(self, weights: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ω and κ of many refits, in NumPy; after the units' ω the κ-fold weights of the penalty's rows."""
        omega = weights if self.sample_weight is None else weights * self.sample_weight
        kappa = np.broadcast_to(type(self.penalty).times(self.penalty, weights, omega), len(omega))
        if self.class_code is not None:
            member = self.class_code == np.arange(self.num_classes)[:, None]
            total = omega @ member.T
            seen = np.maximum((total > 0).sum(1, keepdims=True), 1)
            share = omega.sum(1, keepdims=True) / (seen * np.where(total > 0, total, 1.0))
            omega = omega * share[:, self.class_code.astype(int)]
        if len(beside):
            omega = np.concatenate([omega, np.multiply.outer(kappa, beside)], axis=1)
        return omega, kappa

    # what the core asks of a model

    @property
    def convex(self):
        return self.loss_function.convex and not isinstance(self.penalty, penalties.Custom)

    @property
    def units(self):
        return Units(names=self.labels.index, weight=self.sample_weight, target=self.y)

    @property
    def note(self):
        return "; ".join(filter(None, (self.remark, self.loss_function.remark)))

    def _names(self) -> list[str]:
        one = [*self.names, *(["intercept"] if self.intercept else [])]
        return [f"{c}: {name}" for c in self.classes for name in one] if self.classes else one


@jax.custom_batching.custom_vmap
def _weighted_gram(design: Array, curvature: Array) -> Array:
    """`Σ_n U_nᵀ C_n U_n`, summed over blocks of rows so that no second copy of the design is made."""
    n, q = design.shape
    size = min(BLOCK, n)
    if size == n:
        return _gram(design, curvature)

    def add(k, total):
        start = jnp.minimum(k * size, n - size)  # the last block overlaps: rows already counted get weight zero
        fresh = start + jnp.arange(size) >= k * size
        x = jax.lax.dynamic_slice_in_dim(design, start, size)
        c = jax.lax.dynamic_slice_in_dim(curvature, start, size)
        return total + _gram(x, jnp.where(fresh.reshape(fresh.shape + (1,) * (c.ndim - 1)), c, 0.0))

    params = q * (1 if curvature.ndim == 1 else curvature.shape[-1])
    return jax.lax.fori_loop(0, -(-n // size), add, jnp.zeros((params, params)))


@_weighted_gram.def_vmap
def _(axis_size, in_batched, design, curvature):
    """Of many refits: one product of all their curvatures with all x xᵀ, where those fit into memory."""
    n, q = design.shape[-2:]
    if in_batched == [False, True] and curvature.ndim == 2 and n * q * q <= SMALL:
        i, j = np.triu_indices(q)
        place = np.zeros((q, q), int)
        place[i, j] = place[j, i] = np.arange(len(i))
        return (curvature @ (design[:, i] * design[:, j]))[:, place], True
    blocks = jax.vmap(_weighted_gram.fun, [0 if batched else None for batched in in_batched])
    return blocks(design, curvature), True


def _gram(x: Array, curvature: Array) -> Array:
    """`Σ_n U_nᵀ C_n U_n` of rows `x`, for `curvature` `[units]` or `[units, outputs, outputs]`."""
    if curvature.ndim == 1:
        return x.T @ (curvature[:, None] * x)
    params = x.shape[1] * curvature.shape[-1]
    return jnp.einsum("nkl,np,nq->kplq", curvature, x, x, optimize=True).reshape(params, params)
