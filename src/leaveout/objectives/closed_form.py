"""Objectives whose author gives F and its gradient in closed form, in NumPy, for many refits at
once, without JAX.

    look(θ, w, state) → F(θ, w), ∇F(θ, w), state        θ [refits, params], w [refits, units]

`state` is an array with a row for each refit from which the next evaluation of that refit may
begin, such as the modes of latent variables. It may save work and must change nothing else: F and
∇F are functions of (θ, w), to rounding. Everything else that refits need comes from central
differences of exact gradients, with steps relative to each parameter (θ should be of about unit
scale), unless the author gives it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from .._runtime import (
    Array,
    ArrayFunction,
    Arrays as Arrays,
    LaneEntries,
    PyTree,
    Scalar,
    UnitVectors,
    cached_on,
    join,
    slices,
)
from ..plans import RefitRows
from .objective import (
    AbstractObjective,
    HeldOutLosses,
    Hessian,
    Lanes,
    Matrices,
    PerLane,
    PerListed,
    PerUnit,
    Points,
    UnitIndex,
    UnitWeights,
    Vector,
    ravel,
)

# step of central differences, relative to a parameter or to one; their error goes with its square
GRADIENT_DIFFERENCE = 1e-4
# step of differences along the path of a refit; their error goes with its fourth power
WEIGHT_DIFFERENCE = 0.02
# step of differences of gradients along a vector, relative to the parameter that it changes most;
# their error goes with its fourth power
PRODUCT_DIFFERENCE = 1e-3
FORMED = 2**8  # parameters up to which ∇²F is formed for its products
# places and weights of a first derivative
STENCIL = (-2, -1, 1, 2), (1 / 12, -8 / 12, 8 / 12, -1 / 12)
# and of a second derivative
SECOND_STENCIL = (-2, -1, 0, 1, 2), (-1 / 12, 16 / 12, -30 / 12, 16 / 12, -1 / 12)

State = ndarray | None
ValueAndGradient = tuple[PerLane, Points, State]
Weights = Float[ndarray, "lanes units"]
Entries = Int[ndarray, "lanes width"]  # the units that each refit lists
Scored = Bool[ndarray, "lanes width"]  # which of them it scores


class AbstractByArrays(ABC):
    """F(·, w) of another objective in NumPy, for models where that is faster than compiled
    derivatives.

    `alpha` is the curvature of its penalty, a diagonal. A thread may ask for products at `together`
    places in turn.
    """

    alpha: Vector
    together: int

    @abstractmethod
    def look(self, theta: Vector, weights: PerUnit) -> tuple[float, Vector]:
        """Evaluate F and its gradient; F is infinite where it has no value."""

    @abstractmethod
    def product(self, theta: Vector, weights: PerUnit, vector: Vector) -> Vector:
        """Multiply ∇²F by a vector."""

    @abstractmethod
    def diagonal(self, theta: Vector) -> Vector:
        """Diagonal of ∇²F at weights of one, exact or approximate, positive."""


class AbstractClosedForm(AbstractObjective):
    """Objective in NumPy; θ is one array `[params]`, and `parameters.natural` turns it into a dict
    of arrays for users.

    Subclasses write `look`, and `losses` if losses are wanted unit by unit. They override
    `jacobian` and `hessians` where these cost less than differences of gradients. All of them take
    a batch of refits.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> class Mean(lo.developer.models.AbstractClosedForm):
    ...     x: np.ndarray
    ...
    ...     @property
    ...     def num_units(self):
    ...         return len(self.x)
    ...
    ...     def look(self, theta, weights, state=None):
    ...         left = self.x - theta
    ...         return (
    ...             0.5 * np.sum(weights * left**2, axis=1),
    ...             -np.sum(weights * left, axis=1, keepdims=True),
    ...             None,
    ...         )
    >>> fit = lo.fit(Mean(np.array([1.0, 2.0, 6.0])), np.zeros(1))
    >>> np.round(fit.parameters, 3)
    array([3.])
    """

    @abstractmethod
    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        """Evaluate F and its gradients for a batch of refits.

        Parameters
        ----------
        theta : array of float, shape (refits, params)
            Parameters of each refit.
        weights : array of float, shape (refits, units)
            Weights of each refit.
        state : array, optional
            Where the evaluation of each refit may begin, a row for each.

        Returns
        -------
        value : array of float, shape (refits,)
            F; infinite, without an error, where it has no value.
        gradient : array of float, shape (refits, params)
            Gradients of F in θ.
        state : array or None
            Where the next evaluation may begin.
        """

    def values(
        self, theta: Points, weights: Float[ndarray, "sets units"]
    ) -> Float[ndarray, "places sets"]:
        """Evaluate F alone at many θ, each with some sets of weights.

        The default takes F from `look`, and begins from the state that the first set leaves.
        Override it where F costs less than its gradient, or F of several sets at one θ less than
        one by one.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Parameters.
        weights : array of float, shape (sets, units)
            Sets of weights.

        Returns
        -------
        array of float, shape (places, sets)
            F of every set at every place; infinite where it has no value.
        """
        objectives = np.empty((len(theta), len(weights)))
        state = None
        for k, row in enumerate(weights):
            objectives[:, k], _, last = self.look(
                theta, np.broadcast_to(row, (len(theta), len(row))), state
            )
            if state is None and np.isfinite(objectives[:, k]).all():
                state = last
        return np.fmin(objectives, np.inf)

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: Entries,
        held: Scored,
        state: State = None,
    ) -> HeldOutLosses:
        """Held-out losses of the listed units given all units that are seen, or one joint number a
        refit.

        The default is the joint loss `F(θ, w with the held units at 1) − F(θ, w)`.

        Parameters
        ----------
        theta : array of float, shape (refits, params)
            Parameters of each refit.
        weights : array of float, shape (refits, units)
            Weights of each refit.
        index : array of int, shape (refits, width)
            Units; `index == num_units` is padding.
        held : array of bool, shape (refits, width)
            True where the unit is scored.
        state : array, optional
            Where the evaluation of each refit may begin.

        Returns
        -------
        array of float, shape (refits, width) or (refits,)
            Losses of the units, or joint losses.
        """
        return (
            self.look(theta, self._with_held(weights, index, held), state)[0]
            - self.look(theta, weights, state)[0]
        )

    @staticmethod
    def _with_held(weights: Weights, index: Entries, held: Scored) -> Weights:
        """Weights with the held units at one."""
        extended = np.concatenate([weights, np.ones((len(weights), 1))], 1)
        refit, place = np.nonzero(held)
        extended[refit, index[refit, place]] = np.maximum(extended[refit, index[refit, place]], 1.0)
        return extended[:, :-1]

    def steepest(
        self,
        theta: Points,
        weights: Weights,
        index: Entries,
        held: Scored,
        state: State = None,
    ) -> Points:
        """Gradients of the summed held-out losses, by central differences unless these are joint
        losses.

        Errors are looked for along these directions only, so the gradient of a similar sum will do.

        Parameters
        ----------
        theta : array of float, shape (refits, params)
            Parameters of each refit.
        weights : array of float, shape (refits, units)
            Weights of each refit.
        index : array of int, shape (refits, width)
            Units; `index == num_units` is padding.
        held : array of bool, shape (refits, width)
            True where the unit is scored.
        state : array, optional
            Where the evaluation of each refit may begin.

        Returns
        -------
        array of float, shape (refits, params)
            A gradient for each refit.
        """
        if not self.pointwise:
            full_weights = self._with_held(weights, index, held)
            return self.look(theta, full_weights, state)[1] - self.look(theta, weights, state)[1]
        gradients = np.empty_like(theta)

        def total(point: Points) -> PerLane:
            losses = self.losses(point, weights, index, held, state)
            if losses.ndim > 1:
                return np.where(held, losses, 0.0).sum(1)
            return losses

        for k in range(theta.shape[1]):
            step = np.zeros_like(theta)
            step[:, k] = GRADIENT_DIFFERENCE * np.maximum(1.0, np.abs(theta[:, k]))
            gradients[:, k] = (total(theta + step) - total(theta - step)) / (2 * step[:, k])
        return gradients

    def hessians(self, theta: Points, weights: Weights, state: State = None) -> Matrices:
        """Compute ∇²F of each refit, by central differences of exact gradients.

        Parameters
        ----------
        theta : array of float, shape (refits, params)
            Parameters of each refit.
        weights : array of float, shape (refits, units)
            Weights of each refit.
        state : array, optional
            Where the evaluation of each refit may begin.

        Returns
        -------
        array of float, shape (refits, params, params)
            Symmetric Hessians.
        """
        step = GRADIENT_DIFFERENCE * np.maximum(1.0, np.abs(theta))
        moves = step * np.eye(theta.shape[1])[:, None]
        ends = np.concatenate([theta + moves, theta - moves])
        # lanes that a cache holds
        slopes = np.empty_like(ends)
        most = self.costs.lanes or 2**15 // self.num_units
        for places in slices(len(ends), most // max(len(theta), 1)):
            part = ends[places]
            lane_weights, start = (
                None if array is None else np.tile(array, (len(part), 1))
                for array in (weights, state)
            )
            slopes[places] = self.look(
                part.reshape(-1, part.shape[2]), np.asarray(lane_weights), start
            )[1].reshape(part.shape)
        derivatives = (
            (slopes[: len(moves)] - slopes[len(moves) :]) / (2 * step.T[..., None])
        ).swapaxes(0, 1)
        return (derivatives + derivatives.swapaxes(1, 2)) / 2

    # step of differences of refits of runs along a direction; their error goes with its square
    difference: ClassVar[float] = 0.05

    def jacobian(self, theta: PyTree) -> UnitVectors:
        """Compute `∂²F/∂θ∂w_n` at weights one, by differences of gradients along the weight of each
        unit.

        Parameters
        ----------
        theta : array of float, shape (params,)
            Parameters.

        Returns
        -------
        array of float, shape (units, params)
            One row a unit.
        """
        rows = []
        for unit in range(self.num_units):
            weights = np.ones((len(STENCIL[0]), self.num_units))
            weights[:, unit] += WEIGHT_DIFFERENCE * np.array(STENCIL[0])
            slopes = self.look(np.tile(theta, (len(weights), 1)), weights)[1]
            rows.append(np.array(STENCIL[1]) @ slopes / WEIGHT_DIFFERENCE)
        return np.array(rows)

    def predictions(
        self, theta: Points, weights: Weights, index: Entries, kind: str, state: State = None
    ) -> Float[ndarray, "lanes width ..."]:
        """Predict the listed units, given all units that are seen.

        Parameters
        ----------
        theta : array of float, shape (refits, params)
            Parameters of each refit.
        weights : array of float, shape (refits, units)
            Weights of each refit.
        index : array of int, shape (refits, width)
            Units to predict.
        kind : str
            One of `units.kinds`.
        state : array, optional
            Where the evaluation of each refit may begin.

        Returns
        -------
        array of float, shape (refits, width)
            Predictions.

        Raises
        ------
        NotImplementedError
            If the model makes no predictions, which is the default.
        """
        raise NotImplementedError(
            f"cross_predict needs a model with predictions; {type(self).__name__} has none. "
            "Use cross_validate(..., evaluate=) or fold_parameters()."
        )

    def predictor_covariance(self, theta: Vector) -> Float[ndarray, "units units"] | None:
        """Posterior covariance of the units' linear predictors at weights one, if each unit has a
        Gaussian one.

        Parameters
        ----------
        theta : array of float, shape (params,)
            Parameters.

        Returns
        -------
        array of float, shape (units, units), or None
            The covariance; None, the default, if the model has no such predictors.
        """
        return None

    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        return self.values(*_one_refit(theta, weights))[0, 0]

    def hessian(self, theta: PyTree, weights: UnitWeights) -> Hessian:
        return self.hessians(*_one_refit(theta, weights))[0]

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: UnitIndex,
        held: PerListed,
    ) -> Array:
        return self.losses(
            *_one_refit(theta, weights), np.asarray(index)[None], np.asarray(held, bool)[None]
        )[0]

    def predict(
        self,
        theta: PyTree,
        weights: UnitWeights,
        index: UnitIndex,
        kind: str,
    ) -> Array:
        return self.predictions(*_one_refit(theta, weights), np.asarray(index)[None], kind)[0]

    @property
    def local(self) -> bool:
        return False

    @property
    def pointwise(self) -> bool:
        return type(self).losses is not AbstractClosedForm.losses


def one_by_one(
    scores: Callable[[Vector], tuple[ndarray | None, ndarray]],
) -> Callable[[Points], tuple[ndarray | None, ndarray]]:
    """Return the scores of runs at many θ, as `Costs.runs` gives, from a function of one θ."""

    def scores_at(points: Points) -> tuple[ndarray | None, ndarray]:
        losses, joint = zip(*map(scores, points), strict=True)
        return None if losses[0] is None else np.array(losses), np.array(joint)

    return scores_at


def _one_refit(theta: PyTree, weights: UnitWeights) -> tuple[Points, Weights]:
    """Write one refit as a batch of refits."""
    return ravel(theta)[None], np.asarray(weights, float)[None]


class AbstractSolved(AbstractClosedForm):
    """Model whose parameters are a known function of the weights, θ̂(w).

    F(θ, w) = ½ ‖θ − θ̂(w)‖², and no refit iterates.
    """

    @abstractmethod
    def solve(self, index: Entries, weight: LaneEntries, changed: bool = False) -> Points:
        """Compute θ̂(w) of a batch of refits, whose listed units have these weights and all others
        one.

        `index == num_units` is padding. If `changed`, the data are changed in their last digits, to
        see what rounding does.
        """

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        weights = np.broadcast_to(weights, (len(theta), self.num_units))
        touched = weights != 1
        order = np.argsort(~touched, 1, kind="stable")[:, : touched.sum(1).max(initial=0)]
        displacement = theta - self.solve(order, np.take_along_axis(weights, order, 1))
        return 0.5 * np.sum(displacement**2, 1), displacement, None

    def hessians(self, theta: Points, weights: Weights, state: State = None) -> Matrices:
        return np.broadcast_to(np.eye(theta.shape[1]), (len(theta), theta.shape[1], theta.shape[1]))


@dataclass(eq=False)
class ClosedFormBatch:
    """F(·, w) of a batch of refits of an `AbstractClosedForm`, with the state of each refit's last
    evaluation.
    """

    objective: AbstractClosedForm
    like: PyTree
    rows: RefitRows
    weigh: ArrayFunction  # returns the weights of some refits over all units
    # state from which the next evaluation of each refit begins
    states: dict[int, Any] = field(default_factory=dict)
    # the last refits that were weighed, and their weights
    weighed: tuple[bytes, ndarray] = (b"", np.zeros((0, 0)))

    def __copy__(self) -> "ClosedFormBatch":
        return replace(self, states={})  # each start of a fit has states of its own

    def weights(self, lanes: Lanes) -> Weights:
        """Weights of some refits over all units."""
        key, weights = self.weighed
        if key != lanes.tobytes() or not lanes.size:
            weights = self.weigh(lanes)
            self.weighed = lanes.tobytes(), weights
        return weights

    def look(self, theta: Points, lanes: Lanes) -> tuple[PerLane, Points]:
        """Evaluate F and its gradients."""

        def evaluate(theta, group):
            unshared = self._unshared
            start = None if unshared else self._start_states(group)
            value, gradient, state = self.objective.look(theta, self.weights(group), start)
            if unshared and np.isfinite(value).all():
                self.states[-1] = state
            if state is not None:
                fine = np.flatnonzero(np.isfinite(value))
                self.states |= {int(group[k]): state[k] for k in fine}
            return np.fmin(value, np.inf), gradient

        return self._by_group(evaluate, lanes, theta)

    def hessian(self, theta: Points, lanes: Lanes) -> Matrices:
        """Compute ∇²F."""
        return self._by_group(
            lambda points, group: self.objective.hessians(
                points, self.weights(group), self._start_states(group)
            ),
            lanes,
            theta,
        )

    def hessian_changes(self, theta: Points, lanes: Lanes) -> Matrices:
        """Compute the change of ∇²F at θ from weights of one."""
        points, place = np.unique(theta, axis=0, return_inverse=True)
        ones = np.ones((len(points), self.objective.num_units))
        whole = self.objective.hessians(points, ones, self._anchor_states(len(points)))
        return self.hessian(theta, lanes) - whole[place]

    def products(self, theta: Points, lanes: Lanes) -> Callable[[Points], Points]:
        """Return, for each refit, the function that multiplies ∇²F by a vector."""
        if theta.shape[1] <= FORMED:
            hessian = self.hessian(theta, lanes)
            return lambda vector: np.einsum("lij,lj->li", hessian, vector)

        def differentiate(points, vectors, group):
            units = np.maximum(1.0, np.abs(points))
            length = np.abs(vectors / units).max(1, keepdims=True) / PRODUCT_DIFFERENCE
            move = vectors / np.where(length > 0, length, 1.0)
            places = np.concatenate([points + k * move for k in STENCIL[0]])
            start = self._start_states(np.tile(group, 4))
            slopes = self.objective.look(places, np.tile(self.weights(group), (4, 1)), start)[1]
            return length * np.tensordot(STENCIL[1], slopes.reshape(4, *points.shape), 1)

        return lambda vectors: self._by_group(differentiate, lanes, theta, vectors)

    def losses(self, theta: Points, lanes: Lanes) -> HeldOutLosses:
        """Held-out losses, zero where not scored.

        `[lanes, width]`, or `[lanes]` for a joint loss.
        """

        def evaluate(theta, group):
            weights, index, held, states = self._entries(group)
            values = self.objective.losses(theta, weights, index, held, states)
            return np.where(held, values, 0.0) if values.ndim > 1 else values

        return self._by_group(evaluate, lanes, theta)

    def slopes(self, theta: Points, lanes: Lanes) -> Points:
        """Gradients of the summed held-out losses."""
        evaluate = lambda theta, group: self.objective.steepest(theta, *self._entries(group))
        return self._by_group(evaluate, lanes, theta)

    def around(
        self, theta: Points, moves: Float[ndarray, "lanes moves params"], lanes: Lanes
    ) -> tuple[HeldOutLosses, Float[ndarray, "lanes moves"]]:
        """Held-out losses, and the sum of their absolute changes along each of the given moves."""
        places = np.concatenate([theta[:, None], theta[:, None] + moves], 1)
        flat = self.losses(places.reshape(-1, theta.shape[1]), np.repeat(lanes, places.shape[1]))
        losses = flat.reshape(*places.shape[:2], -1)
        return flat[:: places.shape[1]], np.abs(losses[:, 1:] - losses[:, :1]).sum(2)

    def path(self, direction: Points | None = None) -> Points:
        """Compute the derivative of ∇F along the path s ↦ θ̂(1 + s δ) at s = 0.

        This is the first derivative, or the second if `direction`, the first derivative of the
        path, is given.
        """
        lanes = np.arange(len(self.rows.index))
        center = self._center()
        order = 1 if direction is None else 2
        places, shares = STENCIL if direction is None else SECOND_STENCIL
        move = np.zeros_like(center) if direction is None else direction

        def evaluate(move, group):
            delta = self.weights(group) - 1.0
            start = self._anchor_states(len(group))
            slopes = [
                self.objective.look(
                    center + k * WEIGHT_DIFFERENCE * move,
                    1.0 + k * WEIGHT_DIFFERENCE * delta,
                    start,
                )[1]
                for k in places
            ]
            return np.tensordot(shares, slopes, 1) / WEIGHT_DIFFERENCE**order

        return self._by_group(evaluate, lanes, np.broadcast_to(move, (len(lanes), center.shape[1])))

    def predictions(
        self, theta: Points, lanes: Lanes, kind: str
    ) -> Float[ndarray, "lanes width ..."]:
        """Predict the units of a batch."""
        index = self.rows.index
        evaluate = lambda points, group: self.objective.predictions(
            points, self.weights(group), index[group], kind, self._start_states(group)
        )
        return self._by_group(evaluate, lanes, theta)

    def _center(self) -> Float[ndarray, "1 params"]:
        return np.asarray(ravel(self.like), float)[None]

    def _anchor_states(self, count: int = 1) -> State:
        """State of the evaluation at `like` with weights of one, from which refits without a state
        of their own begin.
        """
        if -1 not in self.states:
            center = self._center()
            cache = _last_states(self.objective)
            last = cache.get("last")
            if last is None or last[0] != center.tobytes():
                state = self.objective.look(center, np.ones((1, self.objective.num_units)))[2]
                last = cache["last"] = center.tobytes(), state
            self.states[-1] = last[1]
        if self.states[-1] is None:
            return None
        return np.repeat(self.states[-1], count, axis=0)

    @property
    def _unshared(self) -> bool:
        """Whether there is one refit, not evaluated so far, so that no other would gain from the
        state at `like`.
        """
        return not self.states and len(self.rows.index) == 1

    def _start_states(self, lanes: Lanes) -> State:
        usual = self._anchor_states()
        if usual is None:
            return None
        return np.stack([self.states.get(lane, usual[0]) for lane in lanes.tolist()])

    def _entries(self, lanes: Lanes) -> tuple[Weights, Entries, Scored, State]:
        """Weights, units, which of these are scored, and states of some refits."""
        index = self.rows.index[lanes]
        held = self.rows.held[lanes]
        return self.weights(lanes), index, held, self._start_states(lanes)

    def _by_group(self, evaluate: Callable[..., Any], lanes: Lanes, *points: Points):
        """Apply a function to the refits in groups, so that the weights and states of a group fit
        into memory.
        """
        usual = None if self._unshared else self._anchor_states()
        # entries of weights and states that are in memory together
        size = self.objective.costs.lanes or 2**21 // (
            self.objective.num_units + (0 if usual is None else usual.size)
        )
        return join(
            [
                evaluate(*(part[group] for part in (*points, lanes)))
                for group in slices(max(len(lanes), 1), size)
            ]
        )


@cached_on
def _last_states(objective: AbstractClosedForm) -> dict[str, tuple[bytes, State]]:
    """Keep the last θ at which F was evaluated with weights of one, and the state of that, for all
    batches of refits.
    """
    return {}
