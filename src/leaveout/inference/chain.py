"""Sums over all paths of a chain of discrete states, from potentials.

    log Z = log Σ_z Π_t exp(φ_t(z_{t−1}, z_t) + ℓ_t(z_t))
    ∂ log Z/∂ℓ_t(k) = p(z_t = k),      ∂ log Z/∂φ_t(j, k) = p(z_{t−1} = j, z_t = k)

Several sequences are one chain that starts anew: where a step starts, the state before it does not
matter. The steps are laid out in `[rows, lanes]`, a scan down the rows taking all lanes along. A
lane begins where a sequence does. Inside, states come before lanes, `[rows, states, lanes]`.

Where no potential is −∞ the recursions run in probabilities that are normalised at every step
(Rabiner 1989); structural zeros need logarithms.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Scalar, Shaped
from numpy import ndarray

from .._runtime import Arrays, Module, SequenceLengths, StepNumbers, TwoCounts, static
from ..objectives import aligned_copy
from .lanes import SMALLEST_NORMALISER

RowLanes = Float[Array, "rows lanes"]

__all__ = [
    "Layout",
    "Potentials",
    "StatePosterior",
    "best_path",
    "layout",
    "log_partition",
    "posterior",
]
__dir__ = __all__.copy

MAX_SCAN_LANES = 128  # lanes of one scan; more lanes go in parts


class Layout(Module):
    """Places of the steps of several sequences in a table of rows and lanes.

    Parameters
    ----------
    place : array of int, `[rows, lanes]`
        The number of the step at each place; padding has the number of steps or more.
    starts : array of bool, `[rows, lanes]`
        Whether a sequence starts at that place.
    inverse : array of int, `[steps]`
        The place of each step in the table, counted row by row.
    zeros : bool
        Whether a potential may be −∞.

    See Also
    --------
    layout : The quickest layout for given lengths.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import chain
    >>> chain.layout(np.array([3, 2])).shape
    (3, 2)
    """

    place: Int[Arrays, "rows lanes"]
    starts: Bool[Arrays, "rows lanes"]
    inverse: StepNumbers
    zeros: bool = static()

    @property
    def shape(self) -> TwoCounts:
        """Numbers of rows and of lanes."""
        rows, lanes = self.place.shape
        return rows, lanes

    def arrange(self, steps: Arrays, fill: float = 0.0) -> Array:
        """Lay out an array over the steps.

        Parameters
        ----------
        steps : array, `[steps, ...]`
            The array.
        fill : float, default 0
            The value at places of padding.

        Returns
        -------
        array, `[rows, lanes, ...]`
            The table.
        """
        return jnp.asarray(steps).at[self.place].get(mode="fill", fill_value=fill)

    def restore(self, laid: Array) -> Array:
        """Put an array over rows and lanes back into the order of the steps.

        Parameters
        ----------
        laid : array, `[rows, lanes, ...]`
            The table.

        Returns
        -------
        array, `[steps, ...]`
            The array over the steps.
        """
        return laid.reshape(laid.shape[0] * laid.shape[1], *laid.shape[2:])[self.inverse]

    def lay_out(self, steps: ndarray, fill: float = 0) -> Shaped[ndarray, "rows lanes ..."]:
        """Lay out data of the steps in NumPy.

        Parameters
        ----------
        steps : ndarray, `[steps, ...]`
            The data.
        fill : float, default 0
            The value at places of padding.

        Returns
        -------
        ndarray, `[rows, lanes, ...]`
            The table.
        """
        padding = np.full((1, *steps.shape[1:]), fill, steps.dtype)
        return aligned_copy(np.concatenate([steps, padding])[self.place])

    def slots(self, lengths: SequenceLengths) -> Int[ndarray, "sequences longest"]:
        """Find the places of the steps of each sequence.

        Parameters
        ----------
        lengths : array of int, `[sequences]`
            The length of each sequence.

        Returns
        -------
        array of int, `[sequences, longest]`
            The places, counted row by row; −1 is padding.
        """
        step = np.arange(int(lengths.max()))
        place = (np.cumsum(lengths) - lengths)[:, None] + step
        inside = step < lengths[:, None]
        return np.where(inside, self.inverse[np.minimum(place, len(self.inverse) - 1)], -1).astype(
            np.int32
        )

    def side_by_side(self, real: Bool[Array, "longest some"]) -> "Layout":
        """Lay out some sequences alone, one in each lane.

        Parameters
        ----------
        real : array of bool, `[longest, some]`
            True where a sequence has a step.

        Returns
        -------
        Layout
            The layout.
        """
        starts = ~real | (jnp.arange(len(real)) == 0)[:, None]
        return Layout(jnp.where(real, 0, 1), starts, np.zeros(1, np.int32), self.zeros)


def layout(
    lengths: SequenceLengths,
    zeros: bool = False,
    parts: int = 1,
) -> Layout:
    """Find the quickest layout of sequences of given lengths.

    Parameters
    ----------
    lengths : array of int, `[sequences]`
        The length of each sequence.
    zeros : bool, default False
        Whether a potential may be −∞.
    parts : int, default 1
        The number of parts in which sums may be computed, if sequences are short enough.

    Returns
    -------
    Layout
        The layout.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import chain
    >>> chain.layout(np.array([3, 2])).place
    array([[0, 3],
           [1, 4],
           [2, 5]], dtype=int32)
    """
    lengths = np.asarray(lengths)
    total = int(lengths.sum())
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    bins = _pack_lanes(lengths, max(int(lengths.max()), -(-total // (MAX_SCAN_LANES * parts))))
    rows = max(int(lengths[members].sum()) for members in bins)
    lanes = len(bins)
    if parts > 1 and lanes > MAX_SCAN_LANES:
        lanes = -(-lanes // MAX_SCAN_LANES) * MAX_SCAN_LANES
    place = np.full((rows, lanes), total)
    for lane, members in enumerate(bins):
        steps = np.concatenate([first[n] + np.arange(lengths[n]) for n in members])
        place[: len(steps), lane] = steps
    starts = np.isin(place, np.append(first, total))
    inverse = np.empty(total, np.int32)
    real = place.reshape(-1) < total
    inverse[place.reshape(-1)[real]] = np.flatnonzero(real)
    return Layout(place.astype(np.int32), starts, inverse, zeros)


def _pack_lanes(lengths: ndarray, capacity: int) -> list[list[int]]:
    """Pack sequences into as few lanes as first-fit finds, the longest first."""
    bins: list[list[int]] = []
    free_rows: list[int] = []
    for n in np.argsort(-lengths, kind="stable"):
        lane = next((i for i, room in enumerate(free_rows) if room >= lengths[n]), None)
        if lane is None:
            lane = len(bins)
            bins.append([])
            free_rows.append(capacity)
        bins[lane].append(int(n))
        free_rows[lane] -= int(lengths[n])
    return bins


class Potentials(NamedTuple):
    """Log-potentials of a chain.

    Parameters
    ----------
    initial : array, `[states]`
        The log-potential of the first state of a sequence.
    transition : array, `[states, states]`
        The log-potential of a move from row to column.
    emission : array, `[rows, lanes, states]`
        The log-likelihood of each step in each state.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import chain
    >>> layout = chain.layout(np.array([3]))
    >>> chain.Potentials(
    ...     np.zeros(2), np.zeros((2, 2)), layout.arrange(np.zeros((3, 2)))
    ... ).emission.shape
    (3, 1, 2)
    """

    initial: Float[Array, " states"]
    transition: Float[Array, "states states"]
    emission: Float[Array, "rows lanes states"]


class StatePosterior(NamedTuple):
    """Results of a forward and a backward pass.

    Parameters
    ----------
    log_normaliser : array, `[rows, lanes]`
        What each step adds to log Z.
    states : array, `[rows, lanes, states]`
        The probability of each state given all observations.
    filtered : array, `[rows, lanes, states]`
        The probability of each state given the observations up to its step.
    initial : array, `[states]`
        The expected counts of first states, weighted by `worth`.
    transition : array, `[states, states]`
        The expected counts of moves, weighted by `worth`.

    See Also
    --------
    posterior : The function that returns this.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import chain
    >>> layout = chain.layout(np.array([3]))
    >>> potentials = chain.Potentials(
    ...     np.zeros(2), np.zeros((2, 2)), layout.arrange(np.zeros((3, 2)))
    ... )
    >>> chain.posterior(potentials, layout).transition.round(3).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    log_normaliser: RowLanes  # their sum is log Z
    states: Float[Array, "rows lanes states"]  # p(z_t | x)
    filtered: Any  # p(z_t | x_1, …, x_t), [rows, lanes, states], if it is wanted
    initial: Float[Array, " states"]
    transition: Float[Array, "states states"]


class _Linear:
    """Arithmetic of probabilities."""

    inside = staticmethod(jnp.exp)
    logarithm = staticmethod(jnp.log)
    outside = staticmethod(lambda p: p)
    times = staticmethod(jnp.multiply)
    over = staticmethod(lambda p, c: p * (1 / jnp.maximum(c, SMALLEST_NORMALISER)))
    unity = 1.0
    zero = 0.0

    @staticmethod
    def total(p, axis=0):
        return jnp.sum(p, axis)

    @staticmethod
    def through(p, matrix):
        """Compute `Σ_j p_j M_jk`, for `[states, lanes]` and `[states, states, lanes or 1]`."""
        unroll_states = 4  # states up to which a matrix product is written out
        if len(p) > unroll_states:
            if matrix.shape[-1] == 1:
                return matrix[..., 0].T @ p
            return jnp.einsum("jl,jkl->kl", p, matrix)
        out = p[0] * matrix[0]
        for j in range(1, len(p)):
            out += p[j] * matrix[j]
        return out


class _Logarithmic:
    """Arithmetic of log-probabilities."""

    inside = staticmethod(lambda x: x)
    logarithm = staticmethod(lambda x: x)
    outside = staticmethod(jnp.exp)
    times = staticmethod(jnp.add)
    over = staticmethod(lambda p, c: p - jnp.where(jnp.isfinite(c), c, 0.0))
    unity = 0.0
    zero = -jnp.inf

    @staticmethod
    def total(p, axis=0):
        top = _finite(jax.lax.stop_gradient(jnp.max(p, axis, keepdims=True)))
        # `where` is used twice, as log has no derivative at zero
        value = jnp.sum(jnp.exp(p - top), axis)
        positive = value > 0
        return jnp.where(
            positive, jnp.log(jnp.where(positive, value, 1.0)), -jnp.inf
        ) + jnp.squeeze(top, axis)

    @staticmethod
    def through(p, matrix):
        return _Logarithmic.total(p[:, None] + matrix, 0)


Arithmetic = type[_Linear] | type[_Logarithmic]


class _Inside:
    """Potentials as the recursions take them, states before lanes, without the factor that all
    states of a step share.
    """

    def __init__(self, potentials: Potentials, layout: Layout):
        initial, transition, emission = potentials
        self.arithmetic: Arithmetic = _Logarithmic if layout.zeros else _Linear
        # whether the matrix multiplies the sum of pairs rather than each pair
        self.late = not layout.zeros
        self.starts = jnp.asarray(layout.starts)
        self.top = _finite(jax.lax.stop_gradient(emission.max(-1)))
        self.e = self.arithmetic.inside(jnp.moveaxis(emission - self.top[..., None], -1, 1))
        self.start = self.arithmetic.inside(initial)[:, None]
        self.matrix = self.arithmetic.inside(transition)[:, :, None]

    def forward(self, top_of: Array) -> tuple[Array, Array, Array]:
        """Distributions before each step and after it, and the normalisers of the latter."""
        arithmetic = self.arithmetic

        def down(p, x):
            start, e = x
            first = arithmetic.times(self.start, arithmetic.total(p))
            moved = jnp.where(start, first, arithmetic.through(p, self.matrix))
            joint = arithmetic.times(moved, e)
            c = arithmetic.total(joint)
            new = arithmetic.over(joint, c)
            return new, (p, new, c)

        return jax.lax.scan(down, top_of, (self.starts, self.e))[1]

    def backward(
        self, evidence: Array, before: Array, filtered: Array, c: Array, weigh: Array
    ) -> tuple[Array, Array]:
        """Weighted sums of pairs of successive states over the steps of each lane, and states."""
        arithmetic = self.arithmetic
        K, lanes = self.e.shape[1:]

        def up(carry, x):
            evidence, count = carry
            start, p, e, c, weigh = x
            emitted_evidence = arithmetic.over(arithmetic.times(e, evidence), c)
            first = arithmetic.total(arithmetic.times(self.start, emitted_evidence))
            moved = arithmetic.through(emitted_evidence, jnp.swapaxes(self.matrix, 0, 1))
            step_evidence = arithmetic.outside(evidence)
            evidence = jnp.where(start, first, moved)
            if self.late:
                return (evidence, count), (step_evidence, emitted_evidence)
            both = arithmetic.times(p[:, None], emitted_evidence[None])
            pairs = arithmetic.outside(arithmetic.times(both, self.matrix)) * weigh
            return (evidence, count + jnp.where(start, 0.0, pairs)), (step_evidence, None)

        none = jnp.zeros((0,) if self.late else (K, K, lanes))
        xs = self.starts, before, self.e, c, weigh
        (_, count), (evidence_ahead, pairs) = jax.lax.scan(up, (evidence, none), xs, reverse=True)
        states = arithmetic.outside(filtered) * evidence_ahead
        if self.late:  # one matrix product for each row takes less time than sums carried along
            rows = jnp.einsum(
                "rjl,rkl->rjk", before * jnp.where(self.starts, 0.0, weigh)[:, None], pairs
            )
            count = jnp.sum(rows, 0)[..., None]
        return count, jnp.moveaxis(states, 1, -1)


def posterior(
    potentials: Potentials, layout: Layout, worth: RowLanes | None = None
) -> StatePosterior:
    """Run the forward and the backward pass over all sequences.

    Parameters
    ----------
    potentials : Potentials
        The log-potentials.
    layout : Layout
        The places of the steps.
    worth : array, `[rows, lanes]`, optional
        The weight of each sequence, at all its steps, in the expected counts; one by default.

    Returns
    -------
    StatePosterior
        The posterior probabilities, the expected counts and log Z.

    References
    ----------
    L. R. Rabiner, A tutorial on hidden Markov models and selected applications in speech
    recognition, Proceedings of the IEEE 77, 1989.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import chain
    >>> layout = chain.layout(np.array([2]))
    >>> emission = np.log([[0.9, 0.1], [0.5, 0.5]])
    >>> potentials = chain.Potentials(
    ...     np.log([0.5, 0.5]), np.log([[0.8, 0.2], [0.2, 0.8]]), layout.arrange(emission)
    ... )
    >>> np.asarray(chain.posterior(potentials, layout).states[:, 0], np.float64).round(2)
    array([[0.9 , 0.1 ],
           [0.74, 0.26]])
    """
    inside = _Inside(potentials, layout)
    arithmetic = inside.arithmetic
    K, lanes = inside.e.shape[1:]
    # any distribution before a start, no evidence after an end
    top_of = arithmetic.inside(jnp.full((K, lanes), -jnp.log(K)))
    below = arithmetic.inside(jnp.zeros((K, lanes)))
    before, filtered, c = inside.forward(top_of)
    real = layout.place < len(layout.inverse)
    weigh = jnp.where(real, 1.0 if worth is None else worth, 0.0)
    evidence = arithmetic.over(below, arithmetic.total(arithmetic.times(filtered[-1], below)))
    count, states = inside.backward(evidence, before, filtered, c, weigh)
    initial = jnp.sum(jnp.where(inside.starts[..., None], weigh[..., None] * states, 0.0), (0, 1))
    transition = count.sum(-1) * inside.matrix[..., 0] if inside.late else count.sum(-1)
    log_normaliser = jnp.where(real, arithmetic.logarithm(c) + inside.top, 0.0)
    return StatePosterior(
        log_normaliser,
        states,
        arithmetic.outside(jnp.moveaxis(filtered, 1, -1)),
        initial,
        transition,
    )


def _finite(top: Array) -> Array:
    return jnp.where(jnp.isfinite(top), top, 0.0)


@eqx.filter_custom_jvp
def log_partition(potentials: Potentials, worth: RowLanes | None, layout: Layout) -> Scalar:
    """Compute Σ_n worth_n log Z_n over the sequences.

    Its gradient is the posterior. All higher derivatives exist too.

    Parameters
    ----------
    potentials : Potentials
        The log-potentials.
    worth : array, `[rows, lanes]`, or None
        The weight of each sequence, at all its steps; None is one.
    layout : Layout
        The places of the steps.

    Returns
    -------
    scalar
        The sum.

    Examples
    --------
    Two states and three steps have eight paths:

    >>> import numpy as np
    >>> from leaveout.inference import chain
    >>> layout = chain.layout(np.array([3]))
    >>> potentials = chain.Potentials(
    ...     np.zeros(2), np.zeros((2, 2)), layout.arrange(np.zeros((3, 2)))
    ... )
    >>> round(float(np.exp(chain.log_partition(potentials, None, layout))), 3)
    8.0
    """
    return _weigh_evidence(_chunked_sums(potentials, layout, None).log_normaliser, worth)


@log_partition.def_jvp
def _log_partition_jvp(primals, tangents):
    """Derivative by the posterior, in code that is itself differentiable, so that all higher
    derivatives follow.
    """
    potentials, worth, layout = primals
    potential_tangents, worth_tangent, _ = tangents
    sums = _chunked_sums(potentials, layout, worth)
    states = sums.states if worth is None else worth[..., None] * sums.states
    change = jnp.zeros(())
    for expected, tangent in zip(
        (sums.initial, sums.transition, states), potential_tangents, strict=True
    ):
        if tangent is not None:
            change += jnp.sum(expected * tangent)
    if worth_tangent is not None:
        change += jnp.sum(sums.log_normaliser * worth_tangent)
    return _weigh_evidence(sums.log_normaliser, worth), change


def _chunked_sums(potentials: Potentials, layout: Layout, worth: RowLanes | None) -> StatePosterior:
    """Compute what log Z and its gradient need of the posterior, without `filtered`.

    A multiple of `MAX_SCAN_LANES` lanes is taken part by part, so that all arrays fit into a cache.
    """
    rows, lanes = layout.shape

    def sum_part(part: tuple) -> StatePosterior:
        emission, place, starts, worth = part
        where = Layout(place, starts, layout.inverse, layout.zeros)
        part_posterior = posterior(potentials._replace(emission=emission), where, worth)
        return part_posterior._replace(filtered=None)

    arrays = potentials.emission, jnp.asarray(layout.place), jnp.asarray(layout.starts), worth
    if lanes <= MAX_SCAN_LANES or lanes % MAX_SCAN_LANES:
        return sum_part(arrays)
    cut = lambda leaf: jnp.moveaxis(leaf.reshape(rows, -1, MAX_SCAN_LANES, *leaf.shape[2:]), 1, 0)
    sums = jax.lax.map(sum_part, jax.tree.map(cut, arrays))
    join = lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(rows, lanes, *leaf.shape[3:])
    totals = sums.initial.sum(0), sums.transition.sum(0)
    return StatePosterior(join(sums.log_normaliser), join(sums.states), None, *totals)


def _weigh_evidence(log_normaliser: Array, worth: Array | None) -> Scalar:
    return jnp.sum(log_normaliser if worth is None else worth * log_normaliser)


def best_path(
    initial: Float[Array, " states"],
    transition: Float[Array, "states states"],
    emission: Float[Array, "steps states"],
    starts: Bool[Array, " steps"],
) -> Int[Array, " steps"]:
    """Find the most probable path of states.

    Parameters
    ----------
    initial : array, `[states]`
        The log-potential of the first state of a sequence.
    transition : array, `[states, states]`
        The log-potential of a move from row to column.
    emission : array, `[steps, states]`
        The log-likelihood of each step in each state.
    starts : array of bool, `[steps]`
        Whether a sequence starts at that step.

    Returns
    -------
    array of int, `[steps]`
        The state of each step.

    References
    ----------
    A. J. Viterbi, Error bounds for convolutional codes and an asymptotically optimum decoding
    algorithm, IEEE Transactions on Information Theory 13, 1967.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import chain
    >>> emission = np.log([[0.9, 0.1], [0.4, 0.6], [0.9, 0.1]])
    >>> starts = np.array([True, False, False])
    >>> chain.best_path(np.zeros(2), np.log([[0.9, 0.1], [0.1, 0.9]]), emission, starts).tolist()
    [0, 0, 0]
    """

    def forward(best, x):
        start, e = x
        through = best[:, None] + transition
        origin = jnp.where(start, jnp.argmax(best), jnp.argmax(through, 0))
        best = jnp.where(start, jnp.max(best) + initial, jnp.max(through, 0)) + e
        return best, origin

    last, origins = jax.lax.scan(forward, jnp.zeros(len(initial)), (starts, emission))
    _, path = jax.lax.scan(
        lambda z, origin: (origin[z], z), jnp.argmax(last), origins, reverse=True
    )
    return path
