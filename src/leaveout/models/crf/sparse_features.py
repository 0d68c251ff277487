"""F(θ, w) of a CRF with sparse features, its gradient, and products with its Hessian, in array code.

    F = −Σ_n w_n log p(y_n | x_n; θ) + ½ Σ_i α_i θ_i²,      emissions Xθ, whose transpose gathers the steps

for sequences packed side by side (`inference.step_order`). Results of the passes at a few θ are kept for all products there.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from ...inference.step_order import PassResult, StepOrder, forward_backward, order_steps
from ...objectives.closed_form import AbstractByArrays

Vector = Float[np.ndarray, " params"]
Shapes = dict[str, tuple[int, ...]]


class Indicators(AbstractByArrays):
    """Labels, features and scores of all steps, in their order; `free` are the places of θ among all parameters."""

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
        order, self.shapes = self.where.order, shapes
        self.features, self.codes = features[order], codes[order]
        self.scores = None if scores is None else scores[order]
        self.free, self.alpha = parameters
        self.start = slice(0, self.where.bounds[1])
        cached_places = 4  # places θ whose results are kept: two for each of two threads
        self.at: Callable[[bytes], tuple[PassResult, dict[str, Any], np.ndarray]] = functools.lru_cache(cached_places)(self._at)

    def _parts(self, vector: Vector) -> dict[str, np.ndarray]:
        """Split a vector of free parameters, or a direction, into all parameters by name."""
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        whole = np.zeros(sum(sizes))
        whole[self.free] = vector
        parts = np.split(whole, np.cumsum(sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _emission(self, parts: dict[str, np.ndarray]) -> Float[np.ndarray, "steps labels"]:
        out = self.features @ parts["weights"]
        out[self.start] += parts["start"]
        out[self.where.last] += parts["end"]
        return out

    def _pull(self, states: Float[np.ndarray, "steps labels"], pairs: Float[np.ndarray, "labels labels"]) -> Vector:
        """Multiply by the transpose: from numbers of steps and of pairs of steps to θ."""
        weights = self.features.T @ states
        parts = {"end": states[self.where.last].sum(0), "start": states[self.start].sum(0), "transition": pairs}
        whole = np.concatenate([np.ravel((parts | {"weights": weights})[name]) for name in self.shapes])
        return whole[self.free]

    def _at(self, vector: bytes) -> tuple[PassResult, dict[str, np.ndarray], Float[np.ndarray, "steps labels"]]:
        parts = self._parts(np.frombuffer(vector))
        emission = self._emission(parts)
        if self.scores is not None:
            emission += self.scores
        return forward_backward(self.where, emission, parts["transition"]), parts, emission

    def look(self, theta: Vector, weights: Float[np.ndarray, " sequences"]) -> tuple[float, Vector]:
        """F and its gradient."""
        found, parts, emission = self.at(theta.tobytes())
        weight, each = weights[self.where.unit], np.arange(len(self.codes))
        known, pairs = emission[each, self.codes], found.pairs(weight)
        for before, here in self.where.moves:
            known[here] += parts["transition"][self.codes[before], self.codes[here]]
            np.subtract.at(pairs, (self.codes[before], self.codes[here]), weight[here])
        states = found.states * weight[:, None]
        states[each, self.codes] -= weight
        value = weight @ (found.log_normaliser - known)
        value = float(value + 0.5 * np.sum(self.alpha * theta**2)) if value > -np.inf else np.inf
        return value, self._pull(states, pairs) + self.alpha * theta

    def product(self, theta: Vector, weights: Float[np.ndarray, " sequences"], vector: Vector) -> Vector:
        """Multiply ∇²F by a vector."""
        found, parts, weight = self.at(theta.tobytes())[0], self._parts(vector), weights[self.where.unit]
        states, pairs = found.along(self._emission(parts), parts["transition"], weight)
        states *= weight[:, None]
        return self._pull(states, pairs) + self.alpha * vector

    def diagonal(self, theta: Vector) -> Vector:
        """Diagonal of ∇²F at weights of one, computed as if labels were independent."""
        found = self.at(theta.tobytes())[0]
        p, pairs = found.states, found.pairs(np.ones(len(self.codes)))
        spread = p * (1 - p)
        parts = {"end": spread[self.where.last].sum(0), "start": spread[self.start].sum(0), "transition": pairs}
        parts["weights"] = self.features.power(2).T @ spread
        found = np.concatenate([np.ravel(parts[name]) for name in self.shapes])[self.free] + self.alpha
        # share of the largest curvature given to features without information that have no penalty
        smallest_feature_curvature = 1e-12
        return np.maximum(found, smallest_feature_curvature * found.max())
