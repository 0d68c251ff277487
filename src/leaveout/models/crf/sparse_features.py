"""F(θ, w) of a CRF with sparse features, its gradient, and products with its Hessian, in array
code.

    F = −Σ_n w_n log p(y_n | x_n; θ) + ½ Σ_i α_i θ_i²,
    emissions Xθ, whose transpose gathers the steps

The sums over all paths are computed in NumPy, with sequences side by side and the longest first, so
that none is padded:

    α_t = (Mᵀ α_{t−1}) ∘ ε_t,    β_{t−1} = M (ε_t ∘ β_t),    p(z_t | x) = α_t ∘ β_t,
    M = exp(transition),

where ε_t is exp(emission) divided by the normaliser of α_t. Along a direction of the potentials,
v_t of emissions and U of transitions, the scores s of paths change by ṡ and probabilities by their
covariances with it, p(z_t = k) (E[ṡ | z_t = k] − E[ṡ]). Two similar passes compute these: a_t = α_t
∘ E[ṡ up to t | z_t], b_t = β_t ∘ E[ṡ beyond t | z_t],

    a_t = α_t ∘ v_t + (Mᵀ a_{t−1} + (M ∘ U)ᵀ α_{t−1}) ∘ ε_t,
    b_{t−1} = M (ε_t ∘ (β_t ∘ v_t + b_t)) + (M ∘ U) (ε_t ∘ β_t),

and as b begins at −E[ṡ] at the end of a sequence, a_t ∘ β_t + α_t ∘ b_t are these covariances.

(J. Lafferty, A. McCallum and F. Pereira, Conditional random fields, 2001; terms of starts and ends
are part of emissions.)

Results of the passes at a few θ are kept for all products there.
"""

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int

from ..._runtime import (
    NamedArrays,
    NamedValues,
    NumpyArray,
    SequenceLengths,
    Shape,
    StepNumbers,
    largest_first,
    silence,
)
from ...inference.lanes import SMALLEST_NORMALISER
from ...objectives import AbstractByArrays, Vector

StepLabels = Float[NumpyArray, "steps labels"]
Shapes = dict[str, Shape]
Steps = Float[NumpyArray, "steps states"]
Table = Float[NumpyArray, "states states"]
Weight = Float[NumpyArray, " steps"]


class StepOrder(NamedTuple):
    """Order of the steps: the first ones of all sequences, then the second ones, and so on."""

    # numbers of the steps, as they stand in all sequences one after another
    order: StepNumbers
    bounds: list[int]  # first step of each time, and the end
    unit: StepNumbers  # sequence of each step
    last: SequenceLengths  # last step of each sequence
    previous: Int[NumpyArray, " moves"]  # step before each one that is not the first

    @property
    def moves(self) -> list[tuple[slice, slice]]:
        """Slices of the steps that moves come from and lead to, time by time."""
        spans = zip(self.bounds, self.bounds[1:], self.bounds[2:], strict=False)
        return [
            (slice(start, start + stop - middle), slice(middle, stop))
            for start, middle, stop in spans
        ]


def order_steps(lengths: SequenceLengths) -> StepOrder:
    """Order the steps of sequences of given lengths."""
    longest_first = largest_first(lengths)
    first = (np.cumsum(lengths) - lengths)[longest_first]
    active = [int(np.count_nonzero(lengths > t)) for t in range(int(lengths.max()))]
    bounds = np.concatenate([[0], np.cumsum(active)])
    order = np.concatenate([first[:count] + t for t, count in enumerate(active)])
    unit = np.concatenate([longest_first[:count] for count in active])
    last = bounds[lengths[longest_first] - 1] + np.arange(len(lengths))
    previous = np.concatenate(
        [start + np.arange(count) for start, count in zip(bounds, active[1:], strict=False)]
    )
    return StepOrder(order, bounds.tolist(), unit, last, previous)


class PassResult(NamedTuple):
    """Results of a forward and a backward pass."""

    step_order: StepOrder
    matrix: Table  # M divided by its largest entry
    log_normaliser: Weight  # contribution of each step to log Z
    forward: Steps  # α
    backward: Steps  # β
    epsilon: Steps  # ε
    epsilon_beta: Steps  # ε ∘ β
    states: Steps  # p(z_t | x)
    moves: Table  # Σ_t p(z_{t−1}, z_t | x), divided by M

    def pairs(self, weight: Weight) -> Table:
        """Sum `Σ_t weight_t p(z_{t−1}, z_t | x)`."""
        return self.matrix * self._weighted_moves(weight)

    def _weighted_moves(self, weight: Weight) -> Table:
        """Sums like `moves`, from these and the steps whose weight is not one."""
        first = self.step_order.bounds[1]
        steps = first + np.flatnonzero(weight[first:] != 1)
        change = (weight[steps] - 1)[:, None] * self.epsilon_beta[steps]
        return self.moves + self.forward[self.step_order.previous[steps - first]].T @ change

    def along(self, emission: Steps, transition: Table, weight: Weight) -> tuple[Steps, Table]:
        """Compute the change of `states`, times the weight of each sequence, and `pairs(weight)`
        along a direction of the potentials.
        """
        matrix_change = self.matrix * transition
        a = self.forward * emission
        for previous, current in self.step_order.moves:
            a[current] += (
                a[previous] @ self.matrix + self.forward[previous] @ matrix_change
            ) * self.epsilon[current]
        last = self.step_order.last
        b = np.zeros_like(emission)
        b[last] = -a[last].sum(1, keepdims=True)
        inner = self.backward * emission
        for previous, current in reversed(self.step_order.moves):
            inner[current] += b[current]
            inner[current] *= self.epsilon[current]
            b[previous] = (
                inner[current] @ self.matrix.T + self.epsilon_beta[current] @ matrix_change.T
            )
        b *= self.forward
        change = a * self.backward
        change += b
        steps = np.flatnonzero(weight != 1)
        for part in (change, a, inner):
            part[steps] *= weight[steps, None]
        pair_change = _pair_counts(self.step_order, a, self.epsilon_beta) + _pair_counts(
            self.step_order, self.forward, inner
        )
        return change, self.matrix * pair_change + matrix_change * self._weighted_moves(weight)


def _pair_counts(step_order: StepOrder, out_of: Steps, into: Steps) -> Table:
    return sum(
        (out_of[previous].T @ into[current] for previous, current in step_order.moves),
        np.zeros((out_of.shape[1], into.shape[1])),
    )


def forward_backward(step_order: StepOrder, emission: Steps, transition: Table) -> PassResult:
    """Run the forward–backward pass; a normaliser that underflows makes log Z infinite."""
    top = reduce(np.maximum, emission.T)
    peak = transition.max()
    epsilon = np.exp(emission - top[:, None])
    matrix = np.exp(transition - peak)
    forward = np.empty_like(epsilon)
    total = np.empty(len(epsilon))
    ones = np.ones(len(matrix))  # whose products are quicker than sums over few states
    start = slice(0, step_order.bounds[1])
    for previous, current in [(None, start), *step_order.moves]:
        alpha = forward[current]
        alpha[:] = epsilon[current]
        if previous is not None:
            alpha *= forward[previous] @ matrix
        np.matmul(alpha, ones, out=total[current])
        alpha /= np.maximum(total[current], SMALLEST_NORMALISER)[:, None]
    epsilon /= np.maximum(total, SMALLEST_NORMALISER)[:, None]
    backward = np.ones_like(epsilon)
    epsilon_beta = np.empty_like(epsilon)
    for previous, current in reversed(step_order.moves):
        np.multiply(epsilon[current], backward[current], out=epsilon_beta[current])
        np.matmul(epsilon_beta[current], matrix.T, out=backward[previous])
    np.multiply(epsilon[start], backward[start], out=epsilon_beta[start])
    with silence("divide"):
        log_normaliser = np.log(total) + top
    log_normaliser[step_order.bounds[1] :] += peak
    return PassResult(
        step_order,
        matrix,
        log_normaliser,
        forward,
        backward,
        epsilon,
        epsilon_beta,
        forward * backward,
        _pair_counts(step_order, forward, epsilon_beta),
    )


class Indicators(AbstractByArrays):
    """Labels, features and scores of all steps, in their order.

    `free` are the places of θ among all parameters.
    """

    shapes: Shapes
    features: Any
    codes: NumpyArray
    scores: NumpyArray | None
    free: NumpyArray
    alpha: Vector
    start: slice

    def __init__(
        self,
        codes: StepNumbers,
        lengths: SequenceLengths,
        emissions: tuple["scipy.sparse.csr_array", StepLabels | None],
        shapes: Shapes,
        parameters: tuple[Int[NumpyArray, " params"], Vector],
    ):
        features, scores = emissions
        self.step_order: StepOrder = order_steps(lengths)
        order = self.step_order.order
        self.shapes = shapes
        self.features = features[order]
        self.codes = codes[order]
        self.rough_features = self.features.astype(np.float32)
        self.scores = None if scores is None else scores[order]
        self.free, self.alpha = parameters
        self.start = slice(0, self.step_order.bounds[1])
        cached_places = 4  # places θ whose results are kept: two for each of two threads
        self.passes: Callable[[bytes], tuple[PassResult, NamedValues, NumpyArray]] = lru_cache(
            cached_places
        )(self._run_passes)
        # in single precision sixteen for each thread, or as many as have 2²⁴ entries in each array
        self.together = int(np.clip(2**24 // (len(codes) * shapes["end"][0]), 2, 16))
        self.rough_passes: Callable[[bytes], PassResult] = lru_cache(2 * self.together)(
            self._run_rough_passes
        )

    def _parts(self, vector: Vector) -> NamedArrays:
        """Split a vector of free parameters, or a direction, into all parameters by name."""
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        parameters = np.zeros(sum(sizes), vector.dtype)
        parameters[self.free] = vector
        parts = np.split(parameters, np.cumsum(sizes)[:-1])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def _emission(self, parts: NamedArrays) -> StepLabels:
        weights = parts["weights"]
        out = self._features(weights.dtype) @ weights
        out[self.start] += parts["start"]
        out[self.step_order.last] += parts["end"]
        return out

    def _pull(self, states: StepLabels, pairs: Float[NumpyArray, "labels labels"]) -> Vector:
        """Multiply by the transpose: from numbers of steps and of pairs of steps to θ."""
        return self._join(states, pairs, self._features(states.dtype).T @ states)

    def _join(self, states: NumpyArray, pairs: NumpyArray, weights: NumpyArray) -> Vector:
        """Join sums over steps, pairs of steps and features to a vector of free parameters."""
        parts = {
            "end": states[self.step_order.last].sum(0),
            "start": states[self.start].sum(0),
            "transition": pairs,
            "weights": weights,
        }
        return np.concatenate([np.ravel(parts[name]) for name in self.shapes])[self.free]

    def _features(self, dtype: Any):
        """Features in single or double precision."""
        if dtype == np.float32:
            return self.rough_features
        return self.features

    def _run_passes(self, vector: bytes) -> tuple[PassResult, NamedArrays, StepLabels]:
        parts = self._parts(np.frombuffer(vector))
        emission = self._emission(parts)
        if self.scores is not None:
            emission += self.scores
        return forward_backward(self.step_order, emission, parts["transition"]), parts, emission

    def _run_rough_passes(self, vector: bytes) -> PassResult:
        """Results of the passes in single precision, or as they are where that overflows."""
        passes = self.passes(vector)[0]
        with silence("over"):
            arrays = [part.astype(np.float32) for part in passes[1:]]
        if all(np.isfinite(part).all() for part in arrays):
            return PassResult(passes.step_order, *arrays)
        return passes

    def look(self, theta: Vector, weights: Float[NumpyArray, " sequences"]) -> tuple[float, Vector]:
        """F and its gradient."""
        passes, parts, emission = self.passes(theta.tobytes())
        weight = weights[self.step_order.unit]
        steps = np.arange(len(self.codes))
        label_scores = emission[steps, self.codes]
        pairs = passes.pairs(weight)
        if (weights != 1).any():  # the step of a refit from there takes products next
            self.rough_passes(theta.tobytes())
        first = self.step_order.bounds[1]
        move = np.ravel_multi_index(
            (self.codes[self.step_order.previous], self.codes[first:]), pairs.shape
        )
        label_scores[first:] += parts["transition"].ravel()[move]
        pairs -= np.bincount(move, weight[first:], pairs.size).reshape(pairs.shape)
        states = passes.states.copy()
        states[steps, self.codes] -= 1
        touched = np.flatnonzero(weight != 1)
        states[touched] *= weight[touched, None]
        value = weight @ (passes.log_normaliser - label_scores)
        if value > -np.inf:
            value = float(value + 0.5 * np.sum(self.alpha * theta**2))
        else:
            value = np.inf
        return value, self._pull(states, pairs) + self.alpha * theta

    def product(
        self, theta: Vector, weights: Float[NumpyArray, " sequences"], vector: Vector
    ) -> Vector:
        """Multiply ∇²F by a vector, in the precision of that."""
        parts = self._parts(vector)
        if vector.dtype == np.float32:
            passes = self.rough_passes(theta.tobytes())
        else:
            passes, _, _ = self.passes(theta.tobytes())
        dtype = passes.epsilon.dtype
        weight = weights[self.step_order.unit].astype(dtype)
        emission = self._emission(parts).astype(dtype, copy=False)
        states, pairs = passes.along(emission, parts["transition"], weight)
        return (self._pull(states, pairs) + self.alpha * vector).astype(vector.dtype, copy=False)

    def diagonal(self, theta: Vector) -> Vector:
        """Diagonal of ∇²F at weights of one, computed as if labels were independent."""
        passes = self.passes(theta.tobytes())[0]
        p = passes.states
        spread = p * (1 - p)
        pairs = passes.pairs(np.ones(len(self.codes)))
        diagonal = self._join(spread, pairs, self.features.power(2).T @ spread) + self.alpha
        # share of the largest curvature given to features without information that have no penalty
        smallest_feature_curvature = 1e-12
        return np.maximum(diagonal, smallest_feature_curvature * diagonal.max())
