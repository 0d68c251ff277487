"""Refits that share no code with the library: a damped Newton method for many folds at once, and
losses written out again.

An oracle is a function F of each fold's parameters, `[folds, params]`, with its gradient and its
Hessian, and the losses of the held-out units. The wanted refit is the local minimum that descent
from θ̂ reaches. Where F is not convex, SciPy's trust-region method must reach the same minimum, or
the fold counts as undecided.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize
from scipy.special import expit, gammaln, log_ndtr

STEPS = 300
SMALL = 1e-13  # of F: a decrement from which on full steps are taken, until rounding stops them
NARROW = 20  # parameters up to which x xᵀ of every row is kept


class Loss(NamedTuple):
    """ℓ(η, y), ℓ′ and ℓ″, elementwise."""

    value: Callable
    first: Callable
    second: Callable


def _mills(z):
    return np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))


def _probit_second(eta, y):
    z = (2 * y - 1) * eta
    return _mills(z) * (_mills(z) + z)


def _rate(eta):
    return np.exp(np.minimum(eta, 500.0))


def _odds(eta):
    """u / (eᵘ − 1), u = e^η: of the complementary log-log link."""
    u = np.clip(_rate(eta), 1e-300, 500.0)
    return u / np.expm1(u)


def _cloglog(eta, y):
    return np.where(y > 0.5, -np.log(-np.expm1(-np.clip(_rate(eta), 1e-300, 700.0))), _rate(eta))


def _cloglog_second(eta, y):
    u = np.clip(_rate(eta), 1e-300, 500.0)
    # by its series where two ones would cancel
    near = np.where(u < 1e-4, u / 2 + u**2 / 12, u / -np.expm1(-u) - 1)
    return np.where(y > 0.5, _odds(eta) * near, _rate(eta))


def gamma(shape: float) -> Loss:
    constant = lambda y: -(shape - 1) * np.log(y) - shape * np.log(shape) + gammaln(shape)
    return Loss(
        lambda e, y: shape * (y * _rate(-e) + e) + constant(y),
        lambda e, y: shape * (1 - y * _rate(-e)),
        lambda e, y: shape * y * _rate(-e),
    )


def negative_binomial(dispersion: float) -> Loss:
    size = 1 / dispersion
    constant = lambda y: gammaln(size) + gammaln(y + 1) - gammaln(y + size)
    share = lambda e: expit(e - np.log(size))  # μ / (μ + size)
    return Loss(
        lambda e, y: (
            constant(y) + (y + size) * np.logaddexp(0, e - np.log(size)) - y * (e - np.log(size))
        ),
        lambda e, y: (y + size) * share(e) - y,
        lambda e, y: (y + size) * share(e) * (1 - share(e)),
    )


def huber(delta: float = 1.345) -> Loss:
    far = lambda r: np.abs(r) > delta
    return Loss(
        lambda e, y: np.where(far(e - y), delta * np.abs(e - y) - delta**2 / 2, (e - y) ** 2 / 2),
        lambda e, y: np.clip(e - y, -delta, delta),
        lambda e, y: 1.0 * ~far(e - y),
    )


def pseudo_huber(delta: float = 1.345) -> Loss:
    root = lambda r: np.sqrt(1 + (r / delta) ** 2)
    return Loss(
        lambda e, y: delta**2 * (root(e - y) - 1),
        lambda e, y: (e - y) / root(e - y),
        lambda e, y: root(e - y) ** -3.0,
    )


def student(freedom: float) -> Loss:
    half = (freedom + 1) / 2
    return Loss(
        lambda e, y: half * np.log1p((e - y) ** 2 / freedom),
        lambda e, y: 2 * half * (e - y) / (freedom + (e - y) ** 2),
        lambda e, y: 2 * half * (freedom - (e - y) ** 2) / (freedom + (e - y) ** 2) ** 2,
    )


LOGISTIC = Loss(  # y is 0 or 1; by the sign, as differences lose a weight of 10⁶ its digits
    lambda e, y: np.logaddexp(0, (1 - 2 * y) * e),
    lambda e, y: (1 - 2 * y) * expit((1 - 2 * y) * e),
    lambda e, y: expit(e) * expit(-e),
)
POISSON = Loss(
    lambda e, y: _rate(e) - y * e + gammaln(y + 1),
    lambda e, y: _rate(e) - y,
    lambda e, y: _rate(e) + 0 * y,
)
PROBIT = Loss(
    lambda e, y: -log_ndtr((2 * y - 1) * e),
    lambda e, y: -(2 * y - 1) * _mills((2 * y - 1) * e),
    _probit_second,
)
CLOGLOG = Loss(_cloglog, lambda e, y: np.where(y > 0.5, -_odds(e), _rate(e)), _cloglog_second)
SQUARED_HINGE = Loss(  # y is −1 or 1; flat beyond the margin
    lambda e, y: np.maximum(1 - y * e, 0) ** 2 / 2,
    lambda e, y: -y * np.maximum(1 - y * e, 0),
    lambda e, y: 1.0 * (y * e < 1),
)


def ridge(alpha) -> Loss:
    """As a penalty: a function of each coefficient, its derivatives and the sum of its values."""
    return Loss(
        lambda t: 0.5 * (alpha * t**2).sum(-1), lambda t: alpha * t, lambda t: alpha + 0 * t
    )


def pseudo_huber_penalty(alpha: float, delta: float) -> Loss:
    root = lambda t: np.sqrt(1 + (t / delta) ** 2)
    return Loss(
        lambda t: (alpha * delta**2 * (root(t) - 1)).sum(-1),
        lambda t: alpha * t / root(t),
        lambda t: alpha * root(t) ** -3.0,
    )


def weights_of(plan) -> np.ndarray:
    """`[refits, units]`"""
    dense = np.ones((len(plan.indptr) - 1, plan.num_units))
    dense[refit_of(plan), plan.index] = plan.weight
    return dense


def refit_of(plan) -> np.ndarray:
    """The refit of each entry."""
    return np.repeat(np.arange(len(plan.indptr) - 1), np.diff(plan.indptr))


def _as_given(w: np.ndarray) -> np.ndarray:
    return w


def _once(w: np.ndarray) -> np.ndarray:
    return np.ones(len(w))


@dataclass(frozen=True)
class Rows:
    """Σ_n w_n s_n ℓ(x_nᵀθ + o_n, y_n) + k(w) R(θ).

    `weigh` makes row weights of w s, `times` makes k.
    """

    X: np.ndarray
    y: np.ndarray
    loss: Loss
    penalty: Loss
    weight: Any = 1.0
    offset: Any = 0.0
    weigh: Callable = _as_given
    times: Callable = _once
    convex: bool = True

    def bound(self, plan) -> Callable:
        w = self.weigh(weights_of(plan) * self.weight)
        times = self.times(weights_of(plan) * self.weight)

        def function(theta, folds, order):
            eta, mine, k = theta @ self.X.T + self.offset, w[folds], times[folds, None]
            value = (mine * self.loss.value(eta, self.y)).sum(1) + k[:, 0] * self.penalty.value(
                theta
            )
            if order == 0:
                return value
            gradient = (mine * self.loss.first(eta, self.y)) @ self.X + k * self.penalty.first(
                theta
            )
            hessian = self._hessian(mine * self.loss.second(eta, self.y))
            hessian[:, *np.diag_indices(theta.shape[1])] += k * self.penalty.second(theta)
            return value, gradient, hessian

        return function

    def _hessian(self, curvature: np.ndarray) -> np.ndarray:
        p = self.X.shape[1]
        if p <= NARROW:
            return (curvature @ np.einsum("np,nq->npq", self.X, self.X).reshape(-1, p * p)).reshape(
                -1, p, p
            )
        return np.stack([(self.X.T * c) @ self.X for c in curvature])

    def scores(self, theta: np.ndarray, plan) -> np.ndarray:
        """The loss of every entry of the plan."""
        offset = np.broadcast_to(self.offset, self.y.shape)[plan.index]
        eta = np.einsum("ep,ep->e", self.X[plan.index], theta[refit_of(plan)]) + offset
        return self.loss.value(eta, self.y[plan.index])


@dataclass(frozen=True)
class Classes:
    """Σ_n w_n (log Σ_k e^{x_nᵀθ_k} − x_nᵀθ_y) + α/2 ‖θ‖², θ `[classes, features]` in one row."""

    X: np.ndarray
    y: np.ndarray
    alpha: float
    convex: bool = True

    def _eta(self, theta: np.ndarray) -> np.ndarray:
        return np.einsum("np,fkp->fnk", self.X, theta.reshape(len(theta), -1, self.X.shape[1]))

    def bound(self, plan) -> Callable:
        w, hot = weights_of(plan), np.eye(int(self.y.max()) + 1)[self.y]
        squares = np.einsum("np,nq->npq", self.X, self.X)

        def function(theta, folds, order):
            eta = self._eta(theta)
            top = eta.max(-1, keepdims=True)
            total = np.exp(eta - top).sum(-1, keepdims=True)
            loss = (np.log(total) + top)[..., 0] - (eta * hot).sum(-1)
            value = (w[folds] * loss).sum(1) + 0.5 * self.alpha * (theta**2).sum(1)
            if order == 0:
                return value
            share = np.exp(eta - top) / total
            slope = w[folds][..., None] * (share - hot)
            gradient = (
                np.einsum("fnk,np->fkp", slope, self.X).reshape(theta.shape) + self.alpha * theta
            )
            bent = w[folds][..., None, None] * (
                share[..., None] * np.eye(hot.shape[1]) - share[..., None] * share[..., None, :]
            )
            hessian = np.einsum("fnkl,npq->fkplq", bent, squares, optimize=True).reshape(
                *theta.shape, -1
            )
            return value, gradient, hessian + self.alpha * np.eye(theta.shape[1])

        return function

    def scores(self, theta: np.ndarray, plan) -> np.ndarray:
        eta = np.einsum(
            "ep,ekp->ek",
            self.X[plan.index],
            theta.reshape(len(theta), -1, self.X.shape[1])[refit_of(plan)],
        )
        top = eta.max(1)
        return (
            np.log(np.exp(eta - top[:, None]).sum(1))
            + top
            - eta[np.arange(len(eta)), self.y[plan.index]]
        )


@functools.cache
def _compiled(function: Callable, order: int) -> Callable:
    every = (function, jax.grad(function), jax.hessian(function))[: order + 1]
    return jax.jit(
        jax.vmap(lambda theta, w, data: tuple(f(theta, w, data) for f in every), (0, 0, None))
    )


@functools.cache
def _scored(function: Callable) -> Callable:
    return jax.jit(jax.vmap(function, (0, 0, None)))


@dataclass(frozen=True)
class Written:
    """A likelihood written out in JAX: `loss(theta, w, data)` is F, `score(theta, w, data)` the
    loss of every unit; where it is None a fold has one joint loss, what F loses when the held-out
    units are in it."""

    loss: Callable
    score: Callable | None
    data: Any
    convex: bool = False

    def bound(self, plan) -> Callable:
        w = weights_of(plan)

        def function(theta, folds, order):
            size = 1 if len(folds) == 1 else len(w)  # few shapes to compile
            fill = np.r_[folds, np.repeat(folds[:1], size - len(folds))]
            where = np.r_[np.arange(len(folds)), np.zeros(size - len(folds), int)]
            with jax.enable_x64(True):
                parts = _compiled(self.loss, order)(theta[where], w[fill], self.data)
            found = [np.array(part)[: len(folds)] for part in parts]
            return found if order else found[0]

        return function

    def scores(self, theta: np.ndarray, plan) -> np.ndarray:
        w = weights_of(plan)
        with jax.enable_x64(True):
            if self.score is not None:
                return np.asarray(_scored(self.score)(theta, w, self.data))[
                    refit_of(plan), plan.index
                ]
            back = w.copy()
            back[refit_of(plan)[plan.held], plan.index[plan.held]] = 1.0
            both = [
                np.asarray(_compiled(self.loss, 0)(theta, weights, self.data)[0])
                for weights in (back, w)
            ]
        return both[0] - both[1]


def refits(oracle, start: np.ndarray, plan) -> tuple[np.ndarray, np.ndarray]:
    """The parameters of every refit of a plan, `[refits, params]`, and whether a minimiser was
    reached, as it was meant.
    """
    function = oracle.bound(plan)
    theta, reached = descend(function, np.repeat(start[None], len(plan.indptr) - 1, 0))
    return theta, reached if oracle.convex else reached & _agreed(function, start, theta)


def descend(function: Callable, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Damped Newton steps from `start`, every fold by itself, and whether each came to a
    minimum.
    """
    theta, last = start.copy(), np.full(len(start), np.inf)
    reached, left = np.zeros(len(start), bool), np.arange(len(start))
    for _ in range(STEPS):
        if not len(left):
            break
        value, gradient, hessian = function(theta[left], left, 2)
        step, definite = _direction(hessian, gradient)
        decrement = np.sum(gradient * step, axis=1)
        level = np.maximum(1.0, np.abs(value))
        near = decrement < SMALL * level
        size = np.ones(len(left))
        far = np.flatnonzero(~near)
        size[far] = _backtracked(
            function, theta[left[far]], left[far], step[far], value[far], decrement[far]
        )
        rounding = near & ~((decrement > 0) & (decrement < last[left] / 4))
        stuck = size == 0
        reached[left] = definite & (rounding | (stuck & (decrement < 1e-10 * level)))
        last[left[near]] = decrement[near]
        go = ~(rounding | stuck)
        theta[left[go]] -= size[go, None] * step[go]
        left = left[go]
    reached[left] = False
    return theta, reached


def _direction(hessian: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """H⁻¹g, or |H|⁻¹g where H is not positive definite, and whether it is."""
    try:
        np.linalg.cholesky(hessian)
        return np.linalg.solve(hessian, gradient[..., None])[..., 0], np.ones(len(hessian), bool)
    except np.linalg.LinAlgError:
        broken = ~np.isfinite(hessian).all((1, 2)) | ~np.isfinite(gradient).all(1)
        values, vectors = np.linalg.eigh(
            np.where(broken[:, None, None], np.eye(hessian.shape[1]), hessian)
        )
        worth = np.maximum(np.abs(values), 1e-10 * np.abs(values).max(1, keepdims=True) + 1e-300)
        inner = np.einsum("fpq,fp->fq", vectors, np.where(broken[:, None], 0.0, gradient)) / worth
        return np.einsum("fpq,fq->fp", vectors, inner), (values > 0).all(1) & ~broken


def _backtracked(function, theta, folds, step, value, decrement) -> np.ndarray:
    """The size of each step that lowers F by enough; zero where none does."""
    size, left = np.ones(len(folds)), np.arange(len(folds))
    while len(left):
        with np.errstate(over="ignore", invalid="ignore"):
            after = function(theta[left] - size[left, None] * step[left], folds[left], 0)
        enough = value[left] - 1e-4 * size[left] * decrement[left] + 1e-15 * np.abs(value[left])
        left = left[~(after <= enough)]
        size[left] /= 2
        size[left[size[left] < 1e-12]] = 0.0
        left = left[size[left] > 0]
    return size


def _agreed(function: Callable, start: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Does SciPy's trust-region method come from `start` to the same minimum?"""
    same = np.zeros(len(theta), bool)
    for k in range(len(theta)):
        one = lambda v, part, k=k: function(v[None], np.array([k]), 2)[part][0]
        found = scipy.optimize.minimize(
            lambda v, one=one: one(v, 0),
            start,
            jac=lambda v, one=one: one(v, 1),
            hess=lambda v, one=one: one(v, 2),
            method="trust-exact",
            options={"initial_trust_radius": 0.1, "gtol": 1e-7},
        )
        same[k] = np.abs(found.x - theta[k]).max() < 1e-3 * (1 + np.abs(theta[k]).max())
    return same
