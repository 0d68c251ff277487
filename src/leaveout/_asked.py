"""The loss that is asked for, of a batch of refits: the model's own score, or a user's function; and how far it may be off."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

from ._fit import Fit
from ._functions import fold_weights, own_passes
from ._objective import AbstractLinearPredictor, unravel
from ._plan import Plan, Rows
from .refit import Refitted

DIRECTIONS = 8  # in which a function that nothing is known of is looked at, within what is left to go
SAFETY = 1.5  # times what so few directions say, if there are more
CAPACITY = 2**21  # numbers in all arrays of a batch of refits (16 MiB)

Evaluate = Callable[[NDArray[np.int64], NDArray[np.int64], PyTree], Any]


@dataclass(frozen=True)
class Asked:
    """`evaluate`, if there is one, else the model's own score."""

    fit: Fit
    plan: Plan
    evaluate: Evaluate | None

    @functools.cached_property
    def joint(self) -> bool:
        """One number a refit?"""
        if self.evaluate is None:
            return not self.fit.objective.pointwise
        mine = slice(*self.plan.indptr[:2])
        weight = np.ones(self.plan.num_units)
        weight[self.plan.index[mine]] = self.plan.weight[mine]
        held = self.plan.index[mine][self.plan.held[mine]]
        return np.ndim(self._value(held, weight, _natural_batch(self.fit, flat(self.fit)[None]), 0)) == 0

    def losses(self, rows: Rows, theta: Callable[[], NDArray], known: NDArray | None = None) -> NDArray[np.float64]:
        """Those of a batch, zero where not scored, `[refits, width]` or `[refits]`; `known` if the model's own came along."""
        if self.evaluate is None:
            return scores(self.fit, rows, theta()) if known is None else known
        return self._values(rows, theta())

    def _values(self, rows: Rows, theta: NDArray) -> NDArray[np.float64]:
        natural, joint = _natural_batch(self.fit, theta), self.joint
        out = np.zeros(len(rows.index) if joint else rows.index.shape)
        for k in range(len(out)):
            index, held = np.asarray(rows.index[k]), np.asarray(rows.held[k])
            weight, real = np.ones(self.plan.num_units), index < self.plan.num_units
            weight[index[real]] = np.asarray(rows.weight[k])[real]
            value = self._value(index[held], weight, natural, k)
            if joint:
                out[k] = value
            else:
                out[k, held] = value
        return out

    def _value(self, held: NDArray, weight: NDArray, natural: PyTree, k: int) -> NDArray:
        assert self.evaluate is not None
        parameters = jax.tree.map(lambda leaf: np.asarray(leaf)[k], natural)
        value = np.asarray(self.evaluate(held, np.flatnonzero(weight > 0), parameters), np.float64)
        if value.shape not in ((), (len(held),)):
            raise ValueError(
                f"evaluate must return one loss a held unit, shape ({len(held)},), or one number; got {value.shape}."
            )
        return value

    def error(self, rows: Rows, done: Refitted, losses: NDArray) -> NDArray[np.float64]:
        """How far the summed losses of each refit may be off; infinite where that is not known."""
        if self.evaluate is None:
            return done.error
        each = reach(self.fit, done, losses, lambda theta: self._values(rows, theta))
        return each.reshape(len(each), -1).sum(1)


def reach(fit: Fit, done: Refitted, at: NDArray, function: Callable[[NDArray], NDArray]) -> NDArray[np.float64]:
    """How far any function of θ, which is `at` where the refits are reported, may be from what it is at the exact refits.

    These lie in balls around known centres. Along orthogonal directions of one length a function that is about linear there
    changes by shares of its gradient, whose root sum of squares is the most that it changes by; of some of the directions only,
    drawn at random, that is an estimate. Both ways along each, since a tail may be flat on one side.
    """
    if done.ball is None:
        return np.full(at.shape, np.inf)
    center, radius = done.ball()
    rank, known = center.shape[1], np.isfinite(radius)
    count = min(rank, DIRECTIONS)
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((rank, count)))[0].T
    to_theta = lambda u: parameters_of(fit, u)
    middle = function(to_theta(center))
    squares = np.zeros(at.shape)
    for direction in directions:
        move = np.where(known, radius, 0.0)[:, None] * direction
        both = [np.abs(function(to_theta(center + sign * move)) - middle) for sign in (1, -1)]
        squares += np.maximum(*both) ** 2
    most = np.abs(middle - at) + np.sqrt(squares * rank / count) * (SAFETY if count < rank else 1.0)
    return np.where(known.reshape(-1, *[1] * (at.ndim - 1)) & np.isfinite(most), most, np.inf)


def parameters_of(fit: Fit, u: NDArray) -> NDArray:
    """The raveled θ at whitened displacements."""
    return flat(fit) + np.asarray(fit.unwhiten(u))


def flat(fit: Fit) -> NDArray[np.float64]:
    """θ̂, raveled."""
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(fit.theta)]
    return np.concatenate(leaves)


@eqx.filter_jit
def _natural_batch(fit: Fit, theta: Array) -> PyTree:
    return jax.vmap(lambda v: fit.objective.parameters.natural(unravel(v, fit.theta)))(theta)


def natural(fit: Fit, theta: NDArray[np.float64]) -> PyTree:
    """The natural parameters of many refits, a leading axis for them."""
    return jax.tree.map(np.asarray, _natural_batch(fit, theta))


def chunk(fit: Fit, rows: Rows) -> int:
    """Refits scored at once: linear predictors need their own units only."""
    count, width = rows.index.shape
    if isinstance(fit.objective, AbstractLinearPredictor):  # whose rows are gathered, unless they are all
        return count if width == fit.objective.num_units else min(count, max(1, CAPACITY // (width * fit.num_params)))
    return own_passes(fit.objective, width)


@eqx.filter_jit
def _score_rows(fit: Fit, rows: Rows, theta: Array, size: int) -> Array:
    def one(args):
        index, weight, held, theta = args
        weights = fold_weights(fit.objective, index, weight)
        return fit.objective.score(unravel(theta, fit.theta), weights, index, held.astype(float))

    return jax.lax.map(one, (rows.index, rows.weight, rows.held, theta), batch_size=size)


def scores(fit: Fit, rows: Rows, theta: NDArray | None = None) -> NDArray[np.float64]:
    """The model's own scores of a batch, at θ̂ by default."""
    if theta is None:
        theta = np.broadcast_to(flat(fit), (len(rows.index), fit.num_params))
    return np.asarray(_score_rows(fit, rows, theta, chunk(fit, rows)))


@eqx.filter_jit
def _predict_rows(fit: Fit, rows: Rows, theta: Array, kind: str, size: int) -> Array:
    def one(args):
        index, weight, theta = args
        weights = fold_weights(fit.objective, index, weight)
        return fit.objective.predict(unravel(theta, fit.theta), weights, index, kind)

    return jax.lax.map(one, (rows.index, rows.weight, theta), batch_size=size)


def predictions(fit: Fit, rows: Rows, theta: NDArray, kind: str) -> NDArray[np.float64]:
    """Predictions of a batch's units."""
    return np.asarray(_predict_rows(fit, rows, theta, kind, chunk(fit, rows)))
