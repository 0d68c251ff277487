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
    b_{t−1} = M (ε_t ∘ (β_t ∘ v_t + b_t)) + (M ∘ U) (ε_t ∘ β_t).

(J. Lafferty, A. McCallum and F. Pereira, Conditional random fields, 2001; terms of starts and ends
are part of emissions.)

Results of the passes at a few θ are kept for all products there.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int

from ...inference.chain import SMALLEST_NORMALISER
from ...objectives.closed_form import AbstractByArrays

Vector = Float[np.ndarray, " params"]
Shapes = dict[str, tuple[int, ...]]
Steps = Float[np.ndarray, "steps states"]
Table = Float[np.ndarray, "states states"]
Weight = Float[np.ndarray, " steps"]


class StepOrder(NamedTuple):
    """Order of the steps: the first ones of all sequences, then the second ones, and so on."""

    # numbers of the steps, as they stand in all sequences one after another
    order: Int[np.ndarray, " steps"]
    bounds: list[int]  # first step of each time, and the end
    unit: Int[np.ndarray, " steps"]  # sequence of each step
    last: Int[np.ndarray, " sequences"]  # last step of each sequence

    @property
    def moves(self) -> list[tuple[slice, slice]]:
        """Slices of the steps that moves come from and lead to, time by time."""
        spans = zip(self.bounds, self.bounds[1:], self.bounds[2:], strict=False)
        return [
            (slice(start, start + stop - middle), slice(middle, stop))
            for start, middle, stop in spans
        ]


def order_steps(lengths: Int[np.ndarray, " sequences"]) -> StepOrder:
    """Order the steps of sequences of given lengths."""
    longest_first = np.argsort(-lengths, kind="stable")
    first = (np.cumsum(lengths) - lengths)[longest_first]
    active = [int(np.count_nonzero(lengths > t)) for t in range(int(lengths.max()))]
    bounds = np.concatenate([[0], np.cumsum(active)])
    order = np.concatenate([first[:count] + t for t, count in enumerate(active)])
    unit = np.concatenate([longest_first[:count] for count in active])
    last = bounds[lengths[longest_first] - 1] + np.arange(len(lengths))
    return StepOrder(order, bounds.tolist(), unit, last)


class PassResult(NamedTuple):
    """Results of a forward and a backward pass."""

    where: StepOrder
    matrix: Table  # M divided by its largest entry
    log_normaliser: Weight  # contribution of each step to log Z
    forward: Steps  # α
    backward: Steps  # β
    own: Steps  # ε
    ahead: Steps  # ε ∘ β
    states: Steps  # p(z_t | x)

    def pairs(self, weight: Weight) -> Table:
        """Sum `Σ_t weight_t p(z_{t−1}, z_t | x)`."""
        return self.matrix * _pair_counts(self.where, self.forward, weight[:, None] * self.ahead)

    def along(self, emission: Steps, transition: Table, weight: Weight) -> tuple[Steps, Table]:
        """Compute the change of `states` and `pairs(weight)` along a direction of the
        potentials.
        """
        turned = self.matrix * transition
        a = self.forward * emission
        b = np.zeros_like(emission)
        for before, here in self.where.moves:
            a[here] += (a[before] @ self.matrix + self.forward[before] @ turned) * self.own[here]
        inner = self.backward * emission
        for before, here in reversed(self.where.moves):
            inner[here] += b[here]
            inner[here] *= self.own[here]
            b[before] = inner[here] @ self.matrix.T + self.ahead[here] @ turned.T
        b *= self.forward
        change = a * self.backward
        change += b
        mean = change.sum(1, keepdims=True)
        change -= mean * self.states
        a -= mean * self.forward
        ahead = weight[:, None] * self.ahead
        inner *= weight[:, None]
        both = _pair_counts(self.where, a, ahead) + _pair_counts(self.where, self.forward, inner)
        return change, self.matrix * both + turned * _pair_counts(self.where, self.forward, ahead)


def _pair_counts(where: StepOrder, before: Steps, here: Steps) -> Table:
    return sum(
        (before[past].T @ here[now] for past, now in where.moves),
        np.zeros((before.shape[1], here.shape[1])),
    )


def forward_backward(where: StepOrder, emission: Steps, transition: Table) -> PassResult:
    """Run the forward–backward pass; a normaliser that underflows makes log Z infinite."""
    top = emission.max(1)
    peak = transition.max()
    own = np.exp(emission - top[:, None])
    matrix = np.exp(transition - peak)
    forward = np.empty_like(own)
    total = np.empty(len(own))
    start = slice(0, where.bounds[1])
    for before, here in [(None, start), *where.moves]:
        alpha = forward[here]
        alpha[:] = own[here] if before is None else (forward[before] @ matrix) * own[here]
        total[here] = alpha.sum(1)
        alpha /= np.maximum(total[here], SMALLEST_NORMALISER)[:, None]
    own /= np.maximum(total, SMALLEST_NORMALISER)[:, None]
    backward = np.ones_like(own)
    ahead = np.empty_like(own)
    for before, here in reversed(where.moves):
        np.multiply(own[here], backward[here], out=ahead[here])
        np.matmul(ahead[here], matrix.T, out=backward[before])
    np.multiply(own[start], backward[start], out=ahead[start])
    with np.errstate(divide="ignore"):
        log_normaliser = np.log(total) + top
    log_normaliser[where.bounds[1] :] += peak
    return PassResult(
        where, matrix, log_normaliser, forward, backward, own, ahead, forward * backward
    )


class Indicators(AbstractByArrays):
    """Labels, features and scores of all steps, in their order.

    `free` are the places of θ among all parameters.
    """

    shapes: Shapes
    features: Any
    codes: np.ndarray
    scores: np.ndarray | None
    free: np.ndarray
    alpha: Vector
    start: slice

    def __init__(
        self,
        codes: Int[np.ndarray, " steps"],
        lengths: Int[np.ndarray, " sequences"],
        emissions: tuple["scipy.sparse.csr_array", Float[np.ndarray, "steps labels"] | None],
        shapes: Shapes,
        parameters: tuple[Int[np.ndarray, " params"], Vector],
    ):
        features, scores = emissions
        self.where: StepOrder = order_steps(lengths)
        order = self.where.order
        self.shapes = shapes
        self.features = features[order]
        self.codes = codes[order]
        self.rough_features = self.features.astype(np.float32)
        self.scores = None if scores is None else scores[order]
        self.free, self.alpha = parameters
        self.start = slice(0, self.where.bounds[1])
        cached_places = 4  # places θ whose results are kept: two for each of two threads
        self.at: Callable[[bytes], tuple[PassResult, dict[str, Any], np.ndarray]] = (
            functools.lru_cache(cached_places)(self._at)
        )
        # in single precision sixteen for each thread, or as many as have 2²⁴ entries in each array
        self.together = int(np.clip(2**24 // (len(codes) * shapes["end"][0]), 2, 16))
        self.single: Callable[[bytes], PassResult] = functools.lru_cache(2 * self.together)(
            self._single
        )

    def _parts(self, vector: Vector) -> dict[str, np.ndarray]:
        """Split a vector of free parameters, or a direction, into all parameters by name."""
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        whole = np.zeros(sum(sizes), vector.dtype)
        whole[self.free] = vector
        parts = np.split(whole, np.cumsum(sizes)[:-1])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def _emission(self, parts: dict[str, np.ndarray]) -> Float[np.ndarray, "steps labels"]:
        out = (
            self.rough_features if parts["weights"].dtype == np.float32 else self.features
        ) @ parts["weights"]
        out[self.start] += parts["start"]
        out[self.where.last] += parts["end"]
        return out

    def _pull(
        self, states: Float[np.ndarray, "steps labels"], pairs: Float[np.ndarray, "labels labels"]
    ) -> Vector:
        """Multiply by the transpose: from numbers of steps and of pairs of steps to θ."""
        weights = (self.rough_features if states.dtype == np.float32 else self.features).T @ states
        parts = {
            "end": states[self.where.last].sum(0),
            "start": states[self.start].sum(0),
            "transition": pairs,
        }
        whole = np.concatenate(
            [np.ravel((parts | {"weights": weights})[name]) for name in self.shapes]
        )
        return whole[self.free]

    def _at(
        self, vector: bytes
    ) -> tuple[PassResult, dict[str, np.ndarray], Float[np.ndarray, "steps labels"]]:
        parts = self._parts(np.frombuffer(vector))
        emission = self._emission(parts)
        if self.scores is not None:
            emission += self.scores
        return forward_backward(self.where, emission, parts["transition"]), parts, emission

    def _single(self, vector: bytes) -> PassResult:
        """Results of the passes in single precision, or as they are where that overflows."""
        found = self.at(vector)[0]
        with np.errstate(over="ignore"):
            arrays = [part.astype(np.float32) for part in found[1:]]
        if all(np.isfinite(part).all() for part in arrays):
            return PassResult(found.where, *arrays)
        return found

    def look(self, theta: Vector, weights: Float[np.ndarray, " sequences"]) -> tuple[float, Vector]:
        """F and its gradient."""
        found, parts, emission = self.at(theta.tobytes())
        weight = weights[self.where.unit]
        each = np.arange(len(self.codes))
        known = emission[each, self.codes]
        pairs = found.pairs(weight)
        if (weights != 1).any():  # the step of a refit from there takes products next
            self.single(theta.tobytes())
        for before, here in self.where.moves:
            known[here] += parts["transition"][self.codes[before], self.codes[here]]
            np.subtract.at(pairs, (self.codes[before], self.codes[here]), weight[here])
        states = found.states * weight[:, None]
        states[each, self.codes] -= weight
        value = weight @ (found.log_normaliser - known)
        value = float(value + 0.5 * np.sum(self.alpha * theta**2)) if value > -np.inf else np.inf
        return value, self._pull(states, pairs) + self.alpha * theta

    def product(
        self, theta: Vector, weights: Float[np.ndarray, " sequences"], vector: Vector
    ) -> Vector:
        """Multiply ∇²F by a vector, in the precision of that."""
        parts = self._parts(vector)
        found = (
            self.single(theta.tobytes())
            if vector.dtype == np.float32
            else self.at(theta.tobytes())[0]
        )
        kind = found.own.dtype
        weight = weights[self.where.unit].astype(kind)
        emission = self._emission(parts).astype(kind, copy=False)
        states, pairs = found.along(emission, parts["transition"], weight)
        states *= weight[:, None]
        return (self._pull(states, pairs) + self.alpha * vector).astype(vector.dtype, copy=False)

    def diagonal(self, theta: Vector) -> Vector:
        """Diagonal of ∇²F at weights of one, computed as if labels were independent."""
        found = self.at(theta.tobytes())[0]
        p = found.states
        pairs = found.pairs(np.ones(len(self.codes)))
        spread = p * (1 - p)
        parts = {
            "end": spread[self.where.last].sum(0),
            "start": spread[self.start].sum(0),
            "transition": pairs,
        }
        parts["weights"] = self.features.power(2).T @ spread
        found = (
            np.concatenate([np.ravel(parts[name]) for name in self.shapes])[self.free] + self.alpha
        )
        # share of the largest curvature given to features without information that have no penalty
        smallest_feature_curvature = 1e-12
        return np.maximum(found, smallest_feature_curvature * found.max())
