"""Single rows left out of very many, where a gradient of every refit is not to be had: the next term of the expansion.

After one step with the row's own Hessian (`_linear.one_row`) its predictor still moves by about

    −½ Σ_{i≠j} ω_i ℓ‴_i (z_iᵀu_j)² (z_iᵀz_j) / (1 − h_j ω_j ℓ″_j),      z = L⁻¹x whitened,  u_j the step,

told from a sample of rows, with its standard error, or by all of them, which then corrects. An estimate, and called so; where
the step is long, so that terms after the next would matter, it is not used. In float32: of a small correction 1e-6 is plenty.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    from ._anchor import Anchor
    from ._linear import OneRow

Array = np.ndarray
SIZES = (256, 2048)  # rows in a sample
BLOCK = 2**20  # numbers [units, refits] at a time
SAFETY = 3.0  # standard errors of a sample that are put on top
SHORT = 1.0  # M max k ‖u‖: beyond it the terms after the next are not small


class Term(NamedTuple):
    """The next term of each refit, its standard error, and the sum of its terms' sizes."""

    move: Float[Array, " refits"]
    spread: Float[Array, " refits"]
    size: Float[Array, " refits"]


class Drawn(NamedTuple):
    """ωℓ‴ of every row, and rows drawn in proportion to how large their terms can be, mixed with one draw in five at even odds;
    the odds of these, and they themselves, whitened."""

    third: Float[Array, " units"]
    rows: Int[Array, " drawn"]
    chance: Float[Array, " drawn"]
    z: Float[Array, "drawn rank"]


def drawn(anchor: "Anchor") -> Drawn:
    """Seeded: the same for every call."""
    third = anchor.weight * anchor.model.loss.derivatives(anchor.eta, anchor.model.y, (3,))[0]
    largest = np.abs(third) * anchor.norm**3
    chance = 0.8 * largest / max(largest.sum(), 1e-300) + 0.2 / len(largest)
    chance /= chance.sum()
    index = np.random.default_rng(0).choice(len(chance), max(SIZES), p=chance)
    return Drawn(third, index, chance[index], anchor.whitened(index))


def next_term(anchor: "Anchor", unit: Array, look: "OneRow", size: int | None) -> Term:
    """Of the refits without these rows; from a sample of that size, or from all rows."""
    index, chance, z = (part[:size] for part in anchor.drawn[1:])
    times = 1 / (size * chance) if size else 1.0
    if size is None:
        index = np.arange(len(anchor.eta))
        z = anchor.whitened(index)
    single = lambda array: np.asarray(array, np.float32)
    third = single(times * anchor.drawn.third[index])
    own, rows = single(anchor.whitened(unit)), single(z)
    common, along, kept = (single(part) for part in (z @ anchor.leftover, look.coefficient, look.kept))
    sums = np.zeros((3, len(unit)))
    step = max(1, BLOCK // max(len(unit), 1))
    for start in range(0, len(index), step):
        some = slice(start, start + step)
        gram = rows[some] @ own.T
        term = gram * along - common[some, None]
        term *= term
        term *= gram
        term *= third[some, None]
        term[index[some, None] == unit] = 0.0
        sums += term.sum(0, np.float64), np.square(term).sum(0, np.float64), np.abs(term).sum(0, np.float64)
    return Term(-0.5 * sums[0] / kept, 0.5 * np.sqrt(sums[1]) / kept, 0.5 * sums[2] / kept)


def _far(anchor: "Anchor", look: "OneRow") -> Float[Array, " refits"]:
    """How far the curvature may move on the way: M max k ‖u‖."""
    return anchor.turn * look.moved / np.sqrt(look.kept)


def short(anchor: "Anchor", look: "OneRow") -> Bool[Array, " refits"]:
    """Where the term means something."""
    return _far(anchor, look) < SHORT


def half(anchor: "Anchor", look: "OneRow", term: Term, sampled: bool) -> Float[Array, " refits"]:
    """How far the predictors of refits with a short step may still be off."""
    far = _far(anchor, look)
    if sampled:
        return (np.abs(term.move) + SAFETY * term.spread) * (1 + far * np.exp(far))
    left = 2 * far * np.exp(far) * np.maximum(np.abs(term.move), 0.3 * term.size)
    return np.minimum(left, np.abs(term.move) + term.size)
