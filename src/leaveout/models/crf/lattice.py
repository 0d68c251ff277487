"""Paths of labels through sequences in a layout: their scores, their sums and their posteriors.

    s(z) = start[z_1] + Σ_t e_t(z_t) + Σ_t transition[z_{t−1}, z_t] + end[z_T]

The end belongs to the emission of the last step. θ is `{"start": [K], "end": [K], "transition": [K,
K]}` and, with features, `"weights": [features, K]`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Scalar
from numpy import ndarray

from ..._runtime import Arrays, Module, PyTree, SequenceLengths, StepNumbers, compile_static
from ...inference.chain import (
    Layout,
    Potentials,
    StatePosterior,
    best_path,
    layout,
    log_partition,
    posterior,
)
from ...inference.lanes import SMALLEST_NORMALISER
from ...inference.moments import covariance
from ...inference.sparse import ColumnFeatures, SparseFeatures, to_columns
from ...objectives import ravel, unravel

# numbers of an array that fits into a cache beside ten others (halves a product for 62,848 steps
# and 13 labels)
LATTICE_ENTRIES = 2**17
SCORE_RANGE = 500.0  # difference of scores beyond which probabilities underflow

Places = Float[Array, "rows lanes"]
Scores = Float[Array, "rows lanes labels"]


class SequenceBlock(Module):
    """Sequences in rows and lanes, each from top to bottom."""

    layout: Layout
    labels: Int[Arrays, "rows lanes"]
    ends: Bool[Arrays, "rows lanes"]
    unit: Int[Arrays, "rows lanes"]  # the sequence at each place, by number
    scores: Float[Arrays, "rows lanes labels"] | None
    # features of all places, one after another, dense or sparse
    features: Float[Arrays, "places features"] | SparseFeatures | None
    columns: ColumnFeatures | None = None  # sparse features by column

    @property
    def real(self) -> Bool[Array, "rows lanes"]:
        return jnp.asarray(self.layout.place) < len(self.layout.inverse)

    @property
    def starts(self) -> Bool[Array, "rows lanes"]:
        return jnp.asarray(self.layout.starts)


def lay_out(
    codes: StepNumbers,
    lengths: SequenceLengths,
    num_labels: int,
    scores: Float[ndarray, "steps labels"] | None,
    features: Float[ndarray, "steps features"] | SparseFeatures | None,
) -> tuple[SequenceBlock, Int[ndarray, "sequences longest"]]:
    """Lay out all sequences in few lanes.

    Return the layout and the places of each sequence's steps, with −1 for padding.
    """
    zeros = False
    if scores is not None:
        finite = np.where(np.isfinite(scores), scores, np.nan)
        zeros = bool(np.max(np.nanmax(finite, 1) - np.nanmin(finite, 1)) > SCORE_RANGE)
    where = layout(lengths, zeros, parts=max(1, round(len(codes) * num_labels / LATTICE_ENTRIES)))
    laid = where.lay_out
    last = np.zeros(len(codes), bool)
    last[np.cumsum(lengths) - 1] = True
    sequence = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    by_column = None
    if isinstance(features, SparseFeatures):
        columns = laid(features.columns, features.number).reshape(-1, features.columns.shape[1])
        features = SparseFeatures(
            columns, laid(features.values).reshape(columns.shape), features.number
        )
        by_column = to_columns(features)
    elif features is not None:
        features = laid(features).reshape(-1, features.shape[1])
    scores = None if scores is None else laid(scores)
    block = SequenceBlock(
        where, laid(codes), laid(last), laid(sequence, len(lengths)), scores, features, by_column
    )
    return block, where.slots(lengths)


def flat_directions(K: int) -> Float[ndarray, "flat params"]:
    """Directions of the parameters in which no probability changes.

    These are a shift of all starts, ends or transitions; and u_j − u_k on the transition from j to
    k with −u on starts and u on ends, whose sum over a path is zero.
    """
    eye = np.eye(K)
    none = np.zeros((1, K))
    table = np.zeros((1, K * K))
    shifts = (eye[:, :, None] - eye[:, None, :]).reshape(K, K * K)
    rows = (
        np.c_[none + 1, none, table],
        np.c_[none, none + 1, table],
        np.c_[none, none, table + 1],
        np.c_[eye, -eye, shifts],
    )
    _, size, directions = np.linalg.svd(np.concatenate(rows), full_matrices=False)
    return directions[size > 1e-9 * size[0]]


def emission(theta: PyTree, block: SequenceBlock) -> Scores:
    """Compute the scores of the labels at each step, including that of an end."""
    out = jnp.asarray(block.ends)[..., None] * theta["end"]
    if block.scores is not None:
        out += block.scores
    if block.features is not None:
        weights = theta["weights"]
        if isinstance(block.features, SparseFeatures) and block.columns is not None:
            feature_scores = block.columns.times(block.features, weights)
        else:
            feature_scores = block.features @ weights
        out += feature_scores.reshape(out.shape)
    return out


def _potentials(theta: PyTree, scores: Scores) -> Potentials:
    return Potentials(theta["start"], theta["transition"], scores)


def path(theta: PyTree, block: SequenceBlock, emission: Scores) -> Places:
    """Compute the contribution of each step to the score of the labels.

    The contributions sum to `s(y)`.
    """
    one_hot = _one_hot(theta, block)
    return jnp.where(
        block.real, _scores_of_labels(one_hot, _into(theta, block, one_hot) + emission), 0.0
    )


def log_normaliser(theta: PyTree, block: SequenceBlock) -> Scalar:
    """Compute `Σ log Z` over sequences."""
    return log_partition(_potentials(theta, emission(theta, block)), None, block.layout)


def losses(theta: PyTree, block: SequenceBlock, worth: Places | None) -> Scalar:
    """Compute `−Σ worth log p(y | x)` over sequences.

    `worth` has one number for each sequence at all its steps.
    """
    scores = emission(theta, block)
    label_scores = path(theta, block, scores)
    log_normalisers = log_partition(_potentials(theta, scores), worth, block.layout)
    if worth is not None:
        label_scores = worth * label_scores
    return log_normalisers - jnp.sum(label_scores)


def chain(theta: PyTree, block: SequenceBlock, weights: Places | None = None) -> StatePosterior:
    """Run forward–backward. With weights, labels of positive weight are known."""
    scores = emission(theta, block)
    if weights is not None:
        scores = _mask_scores(theta, block, scores, weights)
    return posterior(_potentials(theta, scores), block.layout)


@compile_static
def marginals(theta: PyTree, block: SequenceBlock) -> Float[Array, "steps labels"]:
    """Compute `p(z_t = k | x)` of all steps, in their order."""
    return block.layout.restore(chain(theta, block).states)


def shares(theta: PyTree, block: SequenceBlock) -> Float[Array, "sequences longest labels"]:
    """Probabilities of the labels of sequences side by side; −1 behind their ends."""
    return jnp.where(block.real[..., None], chain(theta, block).states, -1.0).swapaxes(0, 1)


@compile_static
def decode(theta: PyTree, block: SequenceBlock) -> Int[Array, " steps"]:
    """The most probable labels (Viterbi) of all steps, in their order."""
    scores = block.layout.restore(emission(theta, block))
    starts = block.layout.restore(block.starts)
    return best_path(theta["start"], theta["transition"], scores, starts)


@compile_static
def paths(theta: PyTree, block: SequenceBlock) -> Int[Array, "sequences longest"]:
    """Most probable labels of sequences side by side; −1 behind their ends."""
    best = lambda scores, starts: best_path(theta["start"], theta["transition"], scores, starts)
    return jnp.where(
        block.real, jax.vmap(best, (1, 1), 1)(emission(theta, block), block.starts), -1
    ).T


def known_score(
    theta: PyTree, block: SequenceBlock, weights: Places, worth: Places | None = None
) -> Scalar:
    """Compute `Σ worth M(θ, w)` over sequences, `worth` one or zero."""
    scores = emission(theta, block)
    counts = jnp.where(block.real, 1.0 if worth is None else worth, 0.0)
    masked = _potentials(theta, _mask_scores(theta, block, scores, weights))
    between = _between(theta, block, jnp.where(counts > 0, weights, 1.0))
    return log_partition(masked, counts, block.layout) + between


def spread(
    theta: PyTree,
    block: SequenceBlock,
    worth: Float[Arrays, " sequences"],
    weights: Places | None = None,
) -> Array:
    """Compute `Σ worth ∇² log Z` over sequences.

    With weights, of the sum in which the labels of positive weight are known.
    """
    posteriors = chain(theta, block, weights)
    return covariance(
        posteriors, theta["transition"], block.layout, block.ends, block.unit, worth, block.features
    )


def per_place(block: SequenceBlock, worth: Float[Arrays, " sequences"]) -> Places:
    """Spread numbers of sequences to all their steps."""
    return jnp.asarray(worth).at[block.unit].get(mode="fill", fill_value=0.0)


def known_hessian(
    theta: PyTree, block: SequenceBlock, weights: Places, worth: Float[Array, " sequences"]
) -> Array:
    """Compute `∇² Σ worth M(θ, w)`, which is costly for weights between 0 and 1."""
    weights = jnp.where(per_place(block, worth) > 0, weights, 1.0)
    gradient = jax.grad(lambda vector: _between(unravel(vector, theta), block, weights))
    vector = ravel(theta)
    along = lambda i: jax.jvp(gradient, (vector,), (jnp.zeros_like(vector).at[i].set(1.0),))[1]
    fractions = jnp.any((weights != 0) & (weights != 1))
    rows = jnp.zeros((len(vector), len(vector)))
    rows = jax.lax.fori_loop(
        0, jnp.where(fractions, len(vector), 0), lambda i, rows: rows.at[i].set(along(i)), rows
    )
    return spread(theta, block, worth, weights) + rows


def _mask_scores(theta: PyTree, block: SequenceBlock, scores: Scores, weights: Places) -> Scores:
    """Scores in which only the known label is possible, where the weight is positive."""
    one_hot = _one_hot(theta, block)
    return jnp.where((block.real & (weights > 0))[..., None] & (one_hot == 0), -jnp.inf, scores)


def _between(theta: PyTree, block: SequenceBlock, weights: Places) -> Scalar:
    """Difference between `M(w)` and its value with positive weights replaced by one, from runs of
    one label and of two.
    """
    vertex = jnp.where(weights > 0, 1.0, 0.0)
    single_weight, double_weight = (
        w - v for w, v in zip(_runs(block, weights), _runs(block, vertex), strict=True)
    )
    one_hot = _one_hot(theta, block)
    scores = emission(theta, block)
    into = _into(theta, block, one_hot) + scores
    out = jnp.where(jnp.asarray(block.ends)[..., None], 0.0, _up(one_hot) @ theta["transition"].T)
    single = jax.nn.logsumexp(into + out, axis=-1) - _scores_of_labels(one_hot, into + out)
    top = jax.lax.stop_gradient(into.max(-1, keepdims=True))
    peak = jax.lax.stop_gradient(theta["transition"].max())
    through = jnp.exp(into - top) @ jnp.exp(theta["transition"] - peak)
    beyond = _up(scores + out)
    second = jnp.log(jnp.maximum(through, SMALLEST_NORMALISER)) + top + peak + beyond
    pair = _scores_of_labels(one_hot, into) + _scores_of_labels(
        _up(one_hot), one_hot @ theta["transition"] + beyond
    )
    double = jax.nn.logsumexp(second, axis=-1) - pair
    return jnp.sum(single_weight * single) + jnp.sum(double_weight * double)


def _runs(block: SequenceBlock, weights: Places) -> tuple[Places, Places]:
    """Weights of the runs of one label, and of two, that begin at each step."""
    before = jnp.where(block.starts, 1.0, _down(weights))
    ends = jnp.asarray(block.ends)
    after = jnp.where(ends, 1.0, _up(weights))
    single = before * (1 - weights) * after
    double = before * (1 - weights) * (1 - _up(weights)) * _up(after)
    return jnp.where(block.real, single, 0.0), jnp.where(block.real & ~ends, double, 0.0)


def _one_hot(theta: PyTree, block: SequenceBlock) -> Scores:
    return jax.nn.one_hot(block.labels, len(theta["end"]))


def _scores_of_labels(one_hot: Scores, scores: Scores) -> Places:
    """The scores of the labels that `one_hot` marks; others may be −∞."""
    return jnp.sum(jnp.where(one_hot > 0, scores, 0.0), -1)


def _into(theta: PyTree, block: SequenceBlock, one_hot: Scores) -> Scores:
    """The score of each label after the label before."""
    return jnp.where(block.starts[..., None], theta["start"], _down(one_hot) @ theta["transition"])


def _down(layout_steps: Array) -> Array:
    return jnp.concatenate([jnp.zeros_like(layout_steps[:1]), layout_steps[:-1]])


def _up(layout_steps: Array) -> Array:
    return jnp.concatenate([layout_steps[1:], jnp.zeros_like(layout_steps[:1])])
