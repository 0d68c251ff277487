"""Forward and backward passes over the steps of chains in NumPy, for many refits at once.

    log Z = log Σ_z π(z_1) Π_t A(z_{t−1}, z_t)^{c_t} e_t(z_t)^{w_t}

Steps with equal observations share a row of a table of likelihoods. The steps of all sequences, one
after another, are cut into segments of one length that run side by side. A first pass multiplies
the matrices of each segment, doubling (Hillis & Steele 1986) gives the distribution above each
segment and the evidence below it, and a second pass goes down and up again. A step that starts a
sequence forgets the state before. Inside, arrays are `[rows, refits, states, segments]`.

Results are analytic functions of the potentials. Complex potentials whose imaginary parts are tiny
therefore carry tangents along, exact to rounding (Squire & Trapp 1998). Where no potential is −∞
the recursions run in probabilities that are normalised (Rabiner 1989), as often as the least move
demands; structural zeros need logarithms.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from .._runtime import silence

Array = np.ndarray
StepCodes = Int[Array, " steps"]
RefitSteps = Float[Array, "refits steps"]

__all__ = ["ChainSums", "best_path", "chain_sums", "has_stationary", "stationary", "sum_by_row"]
__dir__ = __all__.copy

SMALLEST_NORMALISER = 1e-300  # a normaliser that underflows makes log Z infinite
LEAST_PRODUCT = 1e-100  # of steps without a normaliser, whose tangents are as small again
Numbers = Shaped[Array, "..."]  # real or complex


class _Probabilities:
    """Arithmetic of probabilities."""

    inside = staticmethod(np.exp)
    logarithm = staticmethod(np.log)
    power = staticmethod(np.power)
    times = staticmethod(np.multiply)
    product = staticmethod(np.matmul)
    unity = 1.0
    zero = 0.0

    @staticmethod
    def outside(p: Numbers) -> Numbers:
        return p

    @staticmethod
    def total(p: Numbers, axis) -> Numbers:
        return p.sum(axis, keepdims=True)

    @staticmethod
    def over(p: Numbers, c: Numbers) -> Numbers:
        return p * (1 / np.where(c.real < SMALLEST_NORMALISER, SMALLEST_NORMALISER, c))


class _LogProbabilities:
    """Arithmetic of log-probabilities."""

    outside = staticmethod(np.exp)
    power = staticmethod(np.multiply)
    times = staticmethod(np.add)
    unity = 0.0
    zero = -np.inf

    @staticmethod
    def inside(x: Numbers) -> Numbers:
        return x

    @staticmethod
    def logarithm(x: Numbers) -> Numbers:
        return x

    @staticmethod
    def total(p: Numbers, axis) -> Numbers:
        top = finite(p.real.max(axis, keepdims=True))
        return np.log(np.exp(p - top).sum(axis, keepdims=True)) + top

    @staticmethod
    def over(p: Numbers, c: Numbers) -> Numbers:
        return p - np.where(np.isfinite(c), c, 0.0)

    @staticmethod
    def product(a: Numbers, p: Numbers) -> Numbers:
        return _LogProbabilities.total(a[..., None] + p[..., None, :, :], -2)[..., 0, :]


ARITHMETIC: dict[bool, Any] = {
    False: _Probabilities,
    True: _LogProbabilities,
}  # if potentials may be −∞


@dataclass(frozen=True, eq=False)
class ChainSums:
    """Results of a forward and a backward pass.

    Parameters
    ----------
    log_normaliser : array, `[refits, steps]`
        What each step adds to log Z.
    initial : array, `[refits, states]`
        The derivative of log Z in the initial log-potentials: expected counts of first states.
    transition : array, `[refits, states, states]`
        The derivative in the log-potentials of moves: their expected counts.
    emission : array, `[refits, states, rows]`
        The derivative in the table of log-likelihoods: expected observations of each state.
    segments : object
        The potentials as the recursions take them.
    passed : tuple of array
        The results of the passes in segments: `filtered` and `evidence_ahead`.

    See Also
    --------
    chain_sums : The function that returns this.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import lanes
    >>> starts = np.array([True, False, False])
    >>> sums = lanes.chain_sums(np.zeros((1, 2)), np.zeros((1, 2, 2)), np.zeros((1, 2, 3)), starts)
    >>> sums.transition.round(3).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """

    log_normaliser: Numbers
    initial: Numbers
    transition: Numbers
    emission: Numbers
    segments: "_Segments"
    passed: tuple[Numbers, Numbers]

    @property
    def states(self) -> Numbers:
        """The probability of each state given all observations, `[refits, steps, states]`."""
        return self._restore(self.segments.arithmetic.times(*self.passed))

    @property
    def filtered(self) -> Numbers:
        """The probability of each state given the observations up to its step."""
        return self._restore(self.passed[0])

    @property
    def evidence_ahead(self) -> Numbers:
        """The likelihood of later observations given the state, by their likelihood given the
        observations so far.
        """
        return self._restore(self.passed[1])

    def _restore(self, laid: Numbers) -> Numbers:
        return self.segments.restore(self.segments.arithmetic.outside(laid)).swapaxes(1, 2)

    def states_at(self, steps: Int[Array, "refits width"]) -> Numbers:
        """Find the probabilities of the states of some steps of each refit.

        Parameters
        ----------
        steps : array of int, `[refits, width]`
            The steps.

        Returns
        -------
        array, `[refits, width, states]`
            The probabilities.
        """
        segment, row = np.divmod(steps, self.segments.rows)
        refit = np.arange(len(steps))[:, None]
        parts = (part[row, refit, :, segment] for part in self.passed)
        return self.segments.arithmetic.outside(self.segments.arithmetic.times(*parts))


class _Segments:
    """Potentials in rows and segments, without the factor that all states of a step share."""

    def __init__(
        self,
        initial: Numbers,
        transition: Numbers,
        emission: Numbers,
        starts: Bool[Array, " steps"],
        code: StepCodes,
        weight: RefitSteps,
        power: RefitSteps | None,
        zeros: bool,
    ):
        self.arithmetic = ARITHMETIC[zeros]
        inside = self.arithmetic.inside
        self.steps = len(starts)
        self.rows = -(-self.steps // max(1, 4 * math.isqrt(self.steps // len(emission))))
        length = np.diff(np.flatnonzero(starts), append=self.steps)
        # sequences of one length are the segments, where `ends` would take more products
        if np.ptp(length) == 0 and length[0] <= initial.shape[1] * self.rows:
            self.rows = int(length[0])
        top = finite(emission.real.max(1))
        self.top = weight * top[:, code]
        self.weight = self.lay(weight, 0.0)
        self.emission = self._emissions(inside(emission - top[:, None]), code)
        self.starts = self.lay(starts[None], True)[:, 0]
        self.columns = [np.flatnonzero(row) for row in self.starts]
        self.initial = inside(initial)[:, None, :, None]
        self.matrix = inside(transition)
        self.matrices = None  # of each step, where they differ
        if power is not None:
            logs = np.where(starts, initial[..., None, :, None], transition[..., None])
            exponent = power[:, None, None]
            weighed = np.where(exponent == 0, 0.0, exponent * logs)
            self.matrices = self.lay(inside(weighed), self.arithmetic.unity)
        self.stride = self.rows  # rows between normalisers
        if not zeros:
            factors = self.matrix if self.matrices is None else self.matrices
            least = min(factors.real.min(), self.initial.real.min())
            growth = max(-np.log(least), np.log(2 * factors.shape[1] * factors.real.max()))
            steps = np.nan_to_num(-np.log(LEAST_PRODUCT) / growth)
            self.stride = int(np.clip(steps, 1, self.rows))

    def _emissions(self, table: Numbers, code: StepCodes) -> Numbers:
        """Likelihoods of the steps to the power of their weights, one where these are zero."""
        rows = self.lay(code[None], 0)[:, 0]
        table = np.ascontiguousarray(table)  # `take` would copy it for every row
        emission = np.empty((self.rows, *table.shape[:2], rows.shape[1]), table.dtype)
        for row, out in zip(rows, emission, strict=True):
            table.take(row, axis=2, out=out, mode="clip")
        weight = self.weight[:, :, None]
        if ((weight != 0) & (weight != 1)).any():
            emission = self.arithmetic.power(emission, weight)
        np.copyto(emission, self.arithmetic.unity, where=weight == 0)
        return emission

    def lay(self, steps: Numbers, fill) -> Numbers:
        """Lay out `[refits, ..., steps]` as `[rows, refits, ..., segments]`."""
        padding = np.full((*steps.shape[:-1], -self.steps % self.rows), fill, steps.dtype)
        padded = np.concatenate([steps, padding], -1)
        cut = padded.reshape(*steps.shape[:-1], -1, self.rows)
        return np.ascontiguousarray(np.moveaxis(cut, -1, 0))

    def restore(self, laid: Numbers) -> Numbers:
        """Put an array `[rows, refits, ..., segments]` back into the order of the steps."""
        cut = np.moveaxis(laid, 0, -1)
        return cut.reshape(*cut.shape[:-2], -1)[..., : self.steps]

    def forward(self, p: Numbers, row: int) -> Numbers:
        """Move distributions `[refits, some, states, segments]` on to the states of a row."""
        arithmetic = self.arithmetic
        if self.matrices is not None:
            return arithmetic.total(
                arithmetic.times(self.matrices[row][:, None], p[..., None, :]), -3
            )[..., 0, :, :]
        product = arithmetic.product(self.matrix.swapaxes(1, 2)[:, None], p)
        columns = self.columns[row]
        if len(columns):
            before = arithmetic.total(p[..., columns], -2)
            product[..., columns] = arithmetic.times(self.initial, before)
        return product

    def backward(self, evidence: Numbers, row: int) -> Numbers:
        """Take evidence of the states of a row, `[refits, states, segments]`, to the row above."""
        arithmetic = self.arithmetic
        if self.matrices is not None:
            return arithmetic.total(arithmetic.times(self.matrices[row], evidence[:, None]), -2)[
                ..., 0, :
            ]
        product = arithmetic.product(self.matrix, evidence)
        columns = self.columns[row]
        if len(columns):
            start = arithmetic.times(self.initial[:, 0], evidence[..., columns])
            product[..., columns] = arithmetic.total(start, -2)
        return product

    def distributions(self, p: Numbers) -> Iterator[Numbers]:
        """Yield distributions after each row, up to a factor, from those above the first."""
        for row in range(self.rows):
            p = self.arithmetic.times(self.forward(p, row), self.emission[row][:, None])
            yield p
            if (row + 1) % self.stride == 0:
                p = self.normalised(p, (1, 2))

    def normalised(self, p: Numbers, axis) -> Numbers:
        """Divide by the sums over some axes."""
        return self.arithmetic.over(p, self.arithmetic.total(p, axis))

    def moves(self, before: Numbers, emitted: Numbers, counts: Numbers) -> Numbers:
        """Sum the expected moves over all rows, `[refits, states, states]`."""
        if self.arithmetic is _Probabilities and self.matrices is None:
            return ((before * counts) @ emitted.swapaxes(2, 3)).sum(0) * self.matrix
        arithmetic = self.arithmetic
        matrices = self.matrices
        if matrices is None:
            matrices = np.broadcast_to(self.matrix[..., None], (self.rows, *self.matrix.shape, 1))
        total = np.zeros(self.matrix.shape)
        for parts in zip(before, emitted, counts, matrices, strict=True):
            pairs = arithmetic.times(parts[0][:, :, None], parts[1][:, None])
            pairs = arithmetic.outside(arithmetic.times(pairs, parts[3]))
            total = total + (pairs * parts[2][:, None]).sum(-1)
        return total

    def ends(self) -> tuple[Numbers, Numbers]:
        """Distributions above each segment and evidence below it, `[refits, states, segments]`."""
        arithmetic = self.arithmetic
        refits, K, segments = self.emission.shape[1:]
        uniform = arithmetic.inside(-np.log(K))
        if self.starts[0].all():
            flat = np.full((refits, K, segments), uniform)
            return flat, flat
        eye = np.where(np.eye(K) > 0, arithmetic.unity, arithmetic.zero)
        eyes = np.broadcast_to(eye[:, :, None], (refits, K, K, segments))
        (product,) = deque(self.distributions(eyes), maxlen=1)
        product = np.moveaxis(self.normalised(product, (1, 2)), -1, 1)
        # products of all segments up to each and, transposed, from each on in reverse
        upto = np.concatenate([product, product[:, ::-1].swapaxes(2, 3)])
        distance = 1
        while distance < segments:
            joined = arithmetic.product(upto[:, :-distance], upto[:, distance:])
            joined = self.normalised(joined, (2, 3))
            upto = np.concatenate([upto[:, :distance], joined], 1)
            distance *= 2
        flat = np.full((2 * refits, 1, K), uniform)
        inner = self.normalised(arithmetic.total(upto[:, :-1], 2)[:, :, 0], 2)
        ends = np.concatenate([flat, inner], 1).swapaxes(1, 2)
        return ends[:refits], ends[refits:, :, ::-1]


def chain_sums(
    initial: Numbers,
    transition: Numbers,
    emission: Numbers,
    starts: Bool[Array, " steps"],
    *,
    code: StepCodes | None = None,
    weight: RefitSteps | None = None,
    power: RefitSteps | None = None,
    worth: RefitSteps | None = None,
    zeros: bool = False,
) -> ChainSums:
    """Run the forward and the backward pass over all sequences of each refit.

    Parameters
    ----------
    initial : array, `[refits, states]`
        The log-potential of the first state of a sequence.
    transition : array, `[refits, states, states]`
        The log-potential of a move from row to column.
    emission : array, `[refits, states, rows]`
        The log-likelihood of each distinct observation in each state.
    starts : array of bool, `[steps]`
        Whether a sequence starts at that step.
    code : array of int, `[steps]`, optional
        The row of each step's observation; by default each has its own.
    weight : array, `[refits, steps]`, optional
        The power of each step's likelihood; one by default.
    power : array, `[refits, steps]`, optional
        The power of each step's move or, where it starts a sequence, of its initial potential.
    worth : array, `[refits, steps]`, optional
        The weight of each step's sequence in the expected counts; one by default.
    zeros : bool, default False
        Whether a potential may be −∞.

    Returns
    -------
    ChainSums
        The posterior probabilities, the expected counts and log Z.

    References
    ----------
    W. D. Hillis and G. L. Steele, Data parallel algorithms, Communications of the ACM 29, 1986.

    L. R. Rabiner, A tutorial on hidden Markov models and selected applications in speech
    recognition, Proceedings of the IEEE 77, 1989.

    W. Squire and G. Trapp, Using complex variables to estimate derivatives of real functions, SIAM
    Review 40, 1998.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import lanes
    >>> sums = lanes.chain_sums(
    ...     np.log([[0.5, 0.5]]),
    ...     np.log([[[0.8, 0.2], [0.2, 0.8]]]),
    ...     np.log([[[0.9, 0.5], [0.1, 0.5]]]),
    ...     np.array([True, False]),
    ... )
    >>> sums.states[0].round(2)
    array([[0.9 , 0.1 ],
           [0.74, 0.26]])
    """
    if code is None:
        code = np.arange(len(starts))
    if weight is None:
        weight = np.ones((len(emission), len(starts)))
    with silence("all"):
        segments = _Segments(initial, transition, emission, starts, code, weight, power, zeros)
        arithmetic = segments.arithmetic
        above, below = segments.ends()
        filtered = np.array([p[:, 0] for p in segments.distributions(above[:, None])])
        totals = arithmetic.total(filtered, 2)
        filtered = arithmetic.over(filtered, totals)
        before = np.concatenate([np.full_like(totals[:1], arithmetic.unity), totals[:-1]])
        before[segments.stride :: segments.stride] = arithmetic.unity
        normaliser = arithmetic.over(totals, before)
        likelihoods = arithmetic.over(segments.emission, normaliser)
        emitted = np.empty_like(filtered)
        evidence_ahead = np.empty_like(filtered)
        evidence = arithmetic.over(
            below, arithmetic.total(arithmetic.times(filtered[-1], below), 1)
        )
        for row in reversed(range(segments.rows)):
            evidence_ahead[row] = evidence
            arithmetic.times(likelihoods[row], evidence, out=emitted[row])
            evidence = segments.backward(emitted[row], row)
        visible = segments.weight
        counts = np.ones_like(visible)
        if worth is not None:
            counts = segments.lay(worth, 0.0)
            visible = visible * counts
        if power is not None:
            counts = counts * segments.lay(power, 0.0)
        expected = arithmetic.outside(arithmetic.times(filtered, evidence_ahead))
        segment, place = np.divmod(np.flatnonzero(starts), segments.rows)
        first = (expected[place, ..., segment] * counts[place, :, segment][..., None]).sum(0)
        before = np.concatenate([above[None], filtered[:-1]])
        counts = np.where(segments.starts[:, None], 0.0, counts)[:, :, None]
        moves = segments.moves(before, emitted, counts)
        expected *= visible[:, :, None]
        return ChainSums(
            segments.restore(arithmetic.logarithm(normaliser))[:, 0] + segments.top,
            first,
            moves,
            sum_by_row(segments.restore(expected), code, emission.shape[2]),
            segments,
            (filtered, evidence_ahead),
        )


def sum_by_row(
    steps: Shaped[Array, "refits states steps"], code: StepCodes, rows: int
) -> Shaped[Array, "refits states rows"]:
    """Sum numbers of the steps over those with the same observation.

    Parameters
    ----------
    steps : array, `[refits, states, steps]`
        The numbers.
    code : array of int, `[steps]`
        The row of each step's observation.
    rows : int
        The number of rows.

    Returns
    -------
    array, `[refits, states, rows]`
        The sums.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import lanes
    >>> lanes.sum_by_row(np.array([[[1.0, 2.0, 4.0]]]), np.array([1, 0, 1]), 2)
    array([[[2., 5.]]])
    """
    table = csr_array((np.ones(len(code)), code, np.arange(len(code) + 1)), (len(code), rows))
    return (steps.reshape(-1, len(code)) @ table).reshape(*steps.shape[:2], rows)


def finite(top: Numbers) -> Numbers:
    """Replace what is not finite by zero."""
    return np.where(np.isfinite(top), top, 0.0)


def best_path(
    initial: Float[Array, " states"],
    transition: Float[Array, "states states"],
    emission: Float[Array, "steps states"],
    starts: Bool[Array, " steps"],
) -> StepCodes:
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
    >>> from leaveout.inference import lanes
    >>> emission = np.log([[0.9, 0.1], [0.4, 0.6], [0.9, 0.1]])
    >>> starts = np.array([True, False, False])
    >>> lanes.best_path(np.zeros(2), np.log([[0.9, 0.1], [0.1, 0.9]]), emission, starts).tolist()
    [0, 0, 0]
    """
    steps, K = emission.shape
    origins = np.empty((steps, K), int)
    best = np.zeros(K)
    for t in range(steps):
        if starts[t]:
            origins[t] = best.argmax()
            best = best.max() + initial + emission[t]
        else:
            through = best[:, None] + transition
            origins[t] = through.argmax(0)
            best = through.max(0) + emission[t]
    path = np.empty(steps, int)
    state = best.argmax()
    for t in reversed(range(steps)):
        path[t] = state
        state = origins[t, state]
    return path


def stationary(transition: Numbers) -> Numbers:
    """Compute stationary distributions of transition matrices.

    States are eliminated one by one from the last on, which needs no subtraction.

    Parameters
    ----------
    transition : array, `[..., states, states]`
        The probability of a move from row to column.

    Returns
    -------
    array, `[..., states]`
        The distribution p with p = p @ transition.

    See Also
    --------
    has_stationary : Whether the elimination is possible.

    References
    ----------
    W. K. Grassmann, M. I. Taksar and D. P. Heyman, Regenerative analysis and steady state
    distributions for Markov chains, Operations Research 33, 1985.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import lanes
    >>> lanes.stationary(np.array([[0.9, 0.1], [0.3, 0.7]])).round(3)
    array([0.75, 0.25])
    """
    matrix = transition
    columns = []
    for n in range(transition.shape[-1] - 1, 0, -1):
        column = matrix[..., :n, n] / matrix[..., n, :n].sum(-1, keepdims=True)
        columns.append(column)
        matrix = matrix[..., :n, :n] + column[..., None] * matrix[..., n, None, :n]
    distribution = np.ones((*transition.shape[:-2], 1))
    for column in reversed(columns):
        last = (distribution * column).sum(-1, keepdims=True)
        distribution = np.concatenate([distribution, last], -1)
    return distribution / distribution.sum(-1, keepdims=True)


def has_stationary(transition: Float[Array, "states states"]) -> bool:
    """Tell whether every state leads to the first, as the elimination in `stationary` needs.

    Parameters
    ----------
    transition : ndarray, `[states, states]`
        The probability of a move from row to column.

    Returns
    -------
    bool
        True if it does.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import lanes
    >>> lanes.has_stationary(np.eye(2))
    False
    """
    return len(breadth_first_order(csr_array(transition.T), 0, return_predecessors=False)) == len(
        transition
    )
