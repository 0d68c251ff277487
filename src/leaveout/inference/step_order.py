"""Sums over all paths of chains in NumPy, with sequences side by side and the longest first, so that none is padded.

    α_t = (Mᵀ α_{t−1}) ∘ ε_t,    β_{t−1} = M (ε_t ∘ β_t),    p(z_t | x) = α_t ∘ β_t,    M = exp(transition),

where ε_t is exp(emission) divided by the normaliser of α_t. Along a direction of the potentials, v_t of emissions and U of
transitions, the scores s of paths change by ṡ and probabilities by their covariances with it, p(z_t = k)
(E[ṡ | z_t = k] − E[ṡ]). Two similar passes compute these: a_t = α_t ∘ E[ṡ up to t | z_t], b_t = β_t ∘ E[ṡ beyond t | z_t],

    a_t = α_t ∘ v_t + (Mᵀ a_{t−1} + (M ∘ U)ᵀ α_{t−1}) ∘ ε_t,    b_{t−1} = M (ε_t ∘ (β_t ∘ v_t + b_t)) + (M ∘ U) (ε_t ∘ β_t).

(J. Lafferty, A. McCallum and F. Pereira, Conditional random fields, 2001; terms of starts and ends are part of emissions.)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .chain import SMALLEST_NORMALISER

Steps = Float[np.ndarray, "steps states"]
Table = Float[np.ndarray, "states states"]
Weight = Float[np.ndarray, " steps"]


class StepOrder(NamedTuple):
    """Order of the steps: the first ones of all sequences, then the second ones, and so on."""

    order: Int[np.ndarray, " steps"]  # numbers of the steps, as they stand in all sequences one after another
    bounds: list[int]  # first step of each time, and the end
    unit: Int[np.ndarray, " steps"]  # sequence of each step
    last: Int[np.ndarray, " sequences"]  # last step of each sequence

    @property
    def moves(self) -> list[tuple[slice, slice]]:
        """Slices of the steps that moves come from and lead to, time by time."""
        spans = zip(self.bounds, self.bounds[1:], self.bounds[2:], strict=False)
        return [(slice(start, start + stop - middle), slice(middle, stop)) for start, middle, stop in spans]


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
        """Compute the change of `states` and `pairs(weight)` along a direction of the potentials."""
        turned = self.matrix * transition
        a, b = self.forward * emission, np.zeros_like(emission)
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
    return sum((before[past].T @ here[now] for past, now in where.moves), np.zeros((before.shape[1], here.shape[1])))


def forward_backward(where: StepOrder, emission: Steps, transition: Table) -> PassResult:
    """Run the forward–backward pass; a normaliser that underflows makes log Z infinite."""
    top, peak = emission.max(1), transition.max()
    own, matrix = np.exp(emission - top[:, None]), np.exp(transition - peak)
    forward, total = np.empty_like(own), np.empty(len(own))
    start = slice(0, where.bounds[1])
    for before, here in [(None, start), *where.moves]:
        alpha = forward[here]
        alpha[:] = own[here] if before is None else (forward[before] @ matrix) * own[here]
        total[here] = alpha.sum(1)
        alpha /= np.maximum(total[here], SMALLEST_NORMALISER)[:, None]
    own /= np.maximum(total, SMALLEST_NORMALISER)[:, None]
    backward, ahead = np.ones_like(own), np.empty_like(own)
    for before, here in reversed(where.moves):
        np.multiply(own[here], backward[here], out=ahead[here])
        np.matmul(ahead[here], matrix.T, out=backward[before])
    np.multiply(own[start], backward[start], out=ahead[start])
    with np.errstate(divide="ignore"):
        log_normaliser = np.log(total) + top
    log_normaliser[where.bounds[1] :] += peak
    return PassResult(where, matrix, log_normaliser, forward, backward, own, ahead, forward * backward)
