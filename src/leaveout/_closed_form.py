"""Objectives whose author gives F and its gradient in closed form, on the host, of many refits at once; JAX is never asked.

    look(θ, w, state) → F(θ, w), ∇F(θ, w), state        θ [refits, params], w [refits, units]

`state` is whatever the author would begin the next look at the same refit from, an array with a row for each (the modes of
latent variables); it must change nothing but the work: F and ∇F are functions of (θ, w), to rounding. What else refits ask for
is made of exact gradients by central differences, of steps relative to each parameter (θ should be of about unit scale), unless
the author gives it.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ._jax import PyTree
from ._objective import AbstractObjective
from ._plan import Rows

STEP = 1e-4  # of a parameter, or of one where that is less: central differences of gradients are off by its square
PUSH = 0.02  # of weights, and of what they move θ by: differences along the path of a refit are off by its fourth power
NUMBERS = 2**21  # weights and states that are held together
STENCIL = ((-2, -1, 1, 2), (1 / 12, -8 / 12, 8 / 12, -1 / 12))  # of a first derivative
BENDS = ((-2, -1, 0, 1, 2), (-1 / 12, 16 / 12, -30 / 12, 16 / 12, -1 / 12))  # of a second one

State = np.ndarray | None
Looked = tuple[Float[np.ndarray, " refits"], Float[np.ndarray, "refits params"], State]
Points = Float[np.ndarray, "refits params"]
Weights = Float[np.ndarray, "refits units"]


class AbstractByArrays(abc.ABC):
    """F(·, w) of another objective, by NumPy, where that takes less time than what is derived and compiled."""

    @abc.abstractmethod
    def look(
        self, theta: Float[np.ndarray, " params"], weights: Float[np.ndarray, " units"]
    ) -> tuple[float, Float[np.ndarray, " params"]]:
        """F and its gradient; F infinite where there is none."""

    @abc.abstractmethod
    def product(
        self,
        theta: Float[np.ndarray, " params"],
        weights: Float[np.ndarray, " units"],
        vector: Float[np.ndarray, " params"],
    ) -> Float[np.ndarray, " params"]:
        """∇²F times a vector."""

    @abc.abstractmethod
    def diagonal(self, theta: Float[np.ndarray, " params"]) -> Float[np.ndarray, " params"]:
        """That of ∇²F at weights of one, or about that, positive."""


class AbstractClosedForm(AbstractObjective):
    """An objective by NumPy: θ is one array `[params]`; `parameters.natural` makes of it what users see, a dict of arrays.

    An author writes `look`, and `losses` if losses are wanted unit by unit; `jacobian` and `hessians` where they can be had for
    less than differences of gradients. All take a batch of refits.
    """

    @abc.abstractmethod
    def look(self, theta: Points, weights: Weights, state: State = None) -> Looked:
        """F, its gradients, and what the next look may begin from; F infinite, and no error, where there is none."""

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        state: State = None,
    ) -> Float[np.ndarray, "refits ..."]:
        """The held-out loss of the listed units given all that are seen, or one joint number a refit, which is the default:
        `F(θ, w with the held units at 1) − F(θ, w)`. `index == num_units` is padding."""
        whole = np.concatenate([weights, np.ones((len(weights), 1))], axis=1)
        refit, place = np.nonzero(held)
        whole[refit, index[refit, place]] = np.maximum(whole[refit, index[refit, place]], 1.0)
        return self.look(theta, whole[:, :-1], state)[0] - self.look(theta, weights, state)[0]

    def steepest(
        self,
        theta: Points,
        weights: Weights,
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        state: State = None,
    ) -> Points:
        """Gradients of the sums of those, by central differences: directions in which errors are looked for, so that one of a
        sum much like theirs will do."""
        found = np.empty_like(theta)
        total = lambda at: self._summed(self.losses(at, weights, index, held, state), held)
        for k in range(theta.shape[1]):
            step = np.zeros_like(theta)
            step[:, k] = STEP * np.maximum(1.0, np.abs(theta[:, k]))
            found[:, k] = (total(theta + step) - total(theta - step)) / (2 * step[:, k])
        return found

    @staticmethod
    def _summed(
        losses: Float[np.ndarray, "refits ..."], held: Bool[np.ndarray, "refits width"]
    ) -> Float[np.ndarray, " refits"]:
        return np.where(held, losses, 0.0).sum(1) if losses.ndim > 1 else losses

    def hessians(self, theta: Points, weights: Weights, state: State = None) -> Float[np.ndarray, "refits params params"]:
        """∇²F: central differences of exact gradients."""
        columns = [self._along(theta, weights, state, k) for k in range(theta.shape[1])]
        found = np.stack(columns, axis=2)
        return (found + found.swapaxes(1, 2)) / 2

    def jacobian(self, theta):
        """`∂²F/∂θ∂w_n` at weights one: differences of gradients, which each unit's weight is pushed for."""
        found = []
        for unit in range(self.num_units):
            weights = np.ones((len(STENCIL[0]), self.num_units))
            weights[:, unit] += PUSH * np.array(STENCIL[0])
            slopes = self.look(np.tile(theta, (len(weights), 1)), weights, None)[1]
            found.append(np.array(STENCIL[1]) @ slopes / PUSH)
        return np.array(found)

    def predictions(
        self, theta: Points, weights: Weights, index: Int[np.ndarray, "refits width"], kind: str, state: State = None
    ) -> Float[np.ndarray, "refits width"]:
        """Predictions of the listed units given what is seen, of one of `units.kinds`."""
        raise NotImplementedError(
            f"cross_predict needs a model with predictions; {type(self).__name__} has none. "
            "Use cross_validate(..., evaluate=) or fold_parameters()."
        )

    def predictor_covariance(self, theta: Float[np.ndarray, " params"]) -> Float[np.ndarray, "units units"] | None:
        """The posterior covariance of the units' linear predictors at weights one, where each unit has a Gaussian one."""
        del theta
        return None

    def _along(self, theta: Points, weights: Weights, state: State, k: int) -> Points:
        """The derivative of the gradients by one parameter."""
        step = np.zeros_like(theta)
        step[:, k] = STEP * np.maximum(1.0, np.abs(theta[:, k]))
        ends = [self.look(theta + sign * step, weights, state)[1] for sign in (1.0, -1.0)]
        return (ends[0] - ends[1]) / (2 * step[:, k : k + 1])

    def loss(self, theta, weights):
        return self.look(np.reshape(theta, (1, -1)), np.asarray(weights, float)[None])[0][0]

    def hessian(self, theta, weights):
        return self.hessians(np.reshape(theta, (1, -1)), np.asarray(weights, float)[None])[0]

    def score(self, theta, weights, index, held):
        at = np.reshape(theta, (1, -1)), np.asarray(weights, float)[None]
        return self.losses(*at, np.asarray(index)[None], np.asarray(held, bool)[None])[0]

    def predict(self, theta, weights, index, kind):
        at = np.reshape(theta, (1, -1)), np.asarray(weights, float)[None]
        return self.predictions(*at, np.asarray(index)[None], kind)[0]

    @property
    def local(self):
        return False

    @property
    def pointwise(self):
        return type(self).losses is not AbstractClosedForm.losses


@dataclass(eq=False)
class Given:
    """F(·, w) of a batch of refits, by its author; what each began from last is kept beside it."""

    objective: AbstractClosedForm
    like: PyTree
    rows: Rows
    weigh: Callable[[np.ndarray], np.ndarray]  # the weights of some refits, over all units
    known: dict[int, Any] = field(default_factory=dict)  # of a refit, where its next look begins

    def __copy__(self) -> "Given":
        return replace(self, known={})  # each start of a fit goes by its own

    def look(
        self, theta: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"]
    ) -> tuple[Float[np.ndarray, " lanes"], Float[np.ndarray, "lanes params"]]:
        """F and its gradients."""

        def one(theta, some):
            value, gradient, state = self.objective.look(theta, self.weigh(some), self._begun(some))
            if state is not None:
                fine = np.flatnonzero(np.isfinite(value))
                self.known |= {int(some[k]): state[k] for k in fine}
            return np.where(np.isnan(value), np.inf, value), gradient

        return self._grouped(one, lanes, theta)

    def gradient(
        self, theta: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"]
    ) -> Float[np.ndarray, "lanes params"]:
        """∇F alone."""
        return self.look(theta, lanes)[1]

    def hessian(
        self, theta: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"]
    ) -> Float[np.ndarray, "lanes params params"]:
        """∇²F."""
        return self._grouped(
            lambda at, some: (self.objective.hessians(at, self.weigh(some), self._begun(some)),), lanes, theta
        )[0]

    def hessian_changes(self, chunk: int) -> Float[np.ndarray, "lanes params params"]:
        """What ∇²F at `like` changes by from weights of one."""
        del chunk
        at, lanes = self._center(), np.arange(len(self.rows.index))
        ones = np.ones((1, self.objective.num_units))
        return self.hessian(np.repeat(at, len(lanes), axis=0), lanes) - self.objective.hessians(at, ones, self._anchored())

    def products(
        self, theta: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"]
    ) -> Callable[[Float[np.ndarray, "lanes params"]], Float[np.ndarray, "lanes params"]]:
        """∇²F as a function of a vector each."""
        hessian = self.hessian(theta, lanes)
        return lambda vector: np.einsum("lij,lj->li", hessian, vector)

    def losses(
        self, theta: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"]
    ) -> Float[np.ndarray, "lanes ..."]:
        """The held-out losses, zero where not scored: `[lanes, width]`, or `[lanes]` of a joint loss."""

        def one(theta, some):
            held = np.asarray(self.rows.held)[some]
            found = self.objective.losses(theta, self.weigh(some), np.asarray(self.rows.index)[some], held, self._begun(some))
            return (np.where(held, found, 0.0) if found.ndim > 1 else found,)

        return self._grouped(one, lanes, theta)[0]

    def slopes(
        self, theta: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"]
    ) -> Float[np.ndarray, "lanes params"]:
        """Gradients of the sums of those."""

        def one(theta, some):
            held = np.asarray(self.rows.held)[some]
            at = self.weigh(some), np.asarray(self.rows.index)[some], held, self._begun(some)
            return (self.objective.steepest(theta, *at),)

        return self._grouped(one, lanes, theta)[0]

    def around(
        self,
        theta: Float[np.ndarray, "lanes params"],
        moves: Float[np.ndarray, "lanes moves params"],
        lanes: Int[np.ndarray, " lanes"],
    ) -> tuple[Float[np.ndarray, "lanes ..."], Float[np.ndarray, "lanes moves"]]:
        """The losses, and by how much they change along each of some moves, added up without signs."""
        at = self.losses(theta, lanes)
        apart = [np.abs(self.losses(theta + move, lanes) - at).reshape(len(at), -1).sum(1) for move in moves.swapaxes(0, 1)]
        return at, np.stack(apart, axis=1)

    def path(self, direction: Float[np.ndarray, "lanes params"] | None = None) -> Float[np.ndarray, "lanes params"]:
        """Of the paths s ↦ θ̂(1 + s δ): the derivative of ∇F at s = 0; the second one where the first of the path is given."""
        lanes, at = np.arange(len(self.rows.index)), self._center()
        move, (places, shares) = (np.zeros_like(at), STENCIL) if direction is None else (direction, BENDS)

        def one(move, some):
            delta, start = self.weigh(some) - 1.0, self._anchored(len(some))
            slopes = [self.objective.look(at + k * PUSH * move, 1.0 + k * PUSH * delta, start)[1] for k in places]
            return (np.tensordot(shares, slopes, 1) / PUSH ** (1 if direction is None else 2),)

        return self._grouped(one, lanes, np.broadcast_to(move, (len(lanes), at.shape[1])))[0]

    def predictions(
        self, theta: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"], kind: str
    ) -> Float[np.ndarray, "lanes width"]:
        """Predictions of a batch's units."""
        index = np.asarray(self.rows.index)
        one = lambda at, some: (self.objective.predictions(at, self.weigh(some), index[some], kind, self._begun(some)),)
        return self._grouped(one, lanes, theta)[0]

    def _center(self) -> Float[np.ndarray, "1 params"]:
        return np.reshape(np.asarray(self.like, float), (1, -1))

    def _anchored(self, count: int = 1) -> State:
        """Where looks begin of which nothing else is known: where the one at `like`, at weights of one, ended."""
        if -1 not in self.known:
            self.known[-1] = self.objective.look(self._center(), np.ones((1, self.objective.num_units)))[2]
        return None if self.known[-1] is None else np.repeat(self.known[-1], count, axis=0)

    def _begun(self, lanes: Int[np.ndarray, " lanes"]) -> State:
        usual = self._anchored()
        return None if usual is None else np.stack([self.known.get(lane, usual[0]) for lane in lanes.tolist()])

    def _grouped(
        self,
        one: Callable[..., Sequence[np.ndarray]],
        lanes: Int[np.ndarray, " lanes"],
        theta: Float[np.ndarray, "lanes params"],
    ) -> Any:
        """A function of some refits, so many at a time that their weights and states have room."""
        usual = self._anchored()
        each = self.objective.costs.lanes or max(
            1, NUMBERS // (self.objective.num_units + (0 if usual is None else usual.size))
        )
        pieces = [one(theta[k : k + each], lanes[k : k + each]) for k in range(0, max(len(lanes), 1), each)]
        return tuple(np.concatenate(parts) for parts in zip(*pieces, strict=True))
