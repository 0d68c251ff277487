"""Forward and backward passes over the steps of chains in NumPy, for many refits at once.

    log Z = log Σ_z π(z_1) Π_t A(z_{t−1}, z_t)^{c_t} exp ℓ_t(z_t)

The steps of all sequences, one after another, are cut into segments of one length that run side by
side. A first pass multiplies the matrices of each segment, doubling (Hillis & Steele 1986) gives
the distribution above each segment and the evidence below it, and a second pass goes down and up
again. A step that starts a sequence forgets the state before. Inside, arrays are `[rows, refits,
states, segments]`.

Results are analytic functions of the potentials. Complex potentials whose imaginary parts are tiny
therefore carry tangents along, exact to rounding (Squire & Trapp 1998). Where no potential is −∞
the recursions run in probabilities that are normalised at every step (Rabiner 1989); structural
zeros need logarithms.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

__all__ = ["ChainSums", "best_path", "chain_sums", "has_stationary", "stationary"]
__dir__ = __all__.copy

SMALLEST_NORMALISER = 1e-300  # a normaliser that underflows makes log Z infinite
Numbers = Shaped[np.ndarray, "..."]  # real or complex


class _Linear:
    """Arithmetic of probabilities."""

    inside = staticmethod(np.exp)
    logarithm = staticmethod(np.log)
    times = staticmethod(np.multiply)
    product = staticmethod(np.matmul)
    unity = 1.0
    zero = 0.0

    @staticmethod
    def outside(p: Numbers) -> Numbers:
        return p

    @staticmethod
    def total(p: Numbers, axis: Any) -> Numbers:
        return p.sum(axis, keepdims=True)

    @staticmethod
    def over(p: Numbers, c: Numbers) -> Numbers:
        return p * (1 / np.where(c.real < SMALLEST_NORMALISER, SMALLEST_NORMALISER, c))


class _Logarithmic:
    """Arithmetic of log-probabilities."""

    outside = staticmethod(np.exp)
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
    def total(p: Numbers, axis: Any) -> Numbers:
        top = finite(p.real.max(axis, keepdims=True))
        return np.log(np.exp(p - top).sum(axis, keepdims=True)) + top

    @staticmethod
    def over(p: Numbers, c: Numbers) -> Numbers:
        return p - np.where(np.isfinite(c), c, 0.0)

    @staticmethod
    def product(a: Numbers, p: Numbers) -> Numbers:
        return _Logarithmic.total(a[..., None] + p[..., None, :, :], -2)[..., 0, :]


ARITHMETIC: dict[bool, Any] = {False: _Linear, True: _Logarithmic}  # if potentials may be −∞


class ChainSums(NamedTuple):
    """Results of a forward and a backward pass.

    Parameters
    ----------
    log_normaliser : array, `[refits, steps]`
        What each step adds to log Z.
    states : array, `[refits, steps, states]`
        The probability of each state given all observations.
    filtered : array, `[refits, steps, states]`
        The probability of each state given the observations up to its step.
    ahead : array, `[refits, steps, states]`
        The likelihood of later observations given the state, by their likelihood given the
        observations so far.
    initial : array, `[refits, states]`
        The expected counts of first states, weighted by `worth`.
    transition : array, `[refits, states, states]`
        The expected counts of moves, weighted by `worth`.

    See Also
    --------
    chain_sums : The function that returns this.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import lanes
    >>> starts = np.array([True, False, False])
    >>> sums = lanes.chain_sums(np.zeros((1, 2)), np.zeros((1, 2, 2)), np.zeros((1, 3, 2)), starts)
    >>> sums.transition.round(3).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """

    log_normaliser: Numbers
    states: Numbers
    filtered: Numbers
    ahead: Numbers
    initial: Numbers
    transition: Numbers


class _Segments:
    """Potentials in rows and segments, without the factor that all states of a step share."""

    def __init__(
        self,
        initial: Numbers,
        transition: Numbers,
        emission: Numbers,
        starts: Bool[np.ndarray, " steps"],
        power: Float[np.ndarray, "refits steps"] | None,
        zeros: bool,
    ):
        self.arithmetic = ARITHMETIC[zeros]
        inside = self.arithmetic.inside
        self.steps = emission.shape[1]
        self.rows = -(-self.steps // max(1, 2 * math.isqrt(self.steps)))
        top = finite(emission.real.max(-1))
        self.top = top
        self.emission = self.lay(inside(emission - top[..., None]), self.arithmetic.unity)
        self.starts = self.lay(starts[None], True)[:, 0]
        self.columns = [np.flatnonzero(row) for row in self.starts]
        self.initial = inside(initial)[:, None, :, None]
        self.matrix = inside(transition)
        self.matrices = None  # of each step, where they differ
        if power is not None:
            logs = np.where(starts[:, None, None], initial[:, None, None], transition[:, None])
            weighed = np.where(power[..., None, None] == 0, 0.0, power[..., None, None] * logs)
            self.matrices = self.lay(inside(weighed), self.arithmetic.unity)

    def lay(self, steps: Numbers, fill: Any) -> Numbers:
        """Lay out `[refits, steps, ...]` as `[rows, refits, ..., segments]`."""
        beyond = -self.steps % self.rows
        padding = np.full((len(steps), beyond, *steps.shape[2:]), fill, steps.dtype)
        padded = np.concatenate([steps, padding], axis=1)
        cut = padded.reshape(len(steps), -1, self.rows, *steps.shape[2:])
        return np.ascontiguousarray(np.moveaxis(cut, (2, 1), (0, -1)))

    def restore(self, laid: Numbers) -> Numbers:
        """Put an array `[rows, refits, ..., segments]` back into the order of the steps."""
        cut = np.moveaxis(laid, (-1, 0), (1, 2))
        return cut.reshape(len(cut), -1, *cut.shape[3:])[:, : self.steps]

    def forward(self, p: Numbers, row: int) -> Numbers:
        """Move distributions `[refits, some, states, segments]` on to the states of a row."""
        arithmetic = self.arithmetic
        if self.matrices is not None:
            return arithmetic.total(
                arithmetic.times(self.matrices[row][:, None], p[..., None, :]), -3
            )[..., 0, :, :]
        moved = arithmetic.product(self.matrix.swapaxes(1, 2)[:, None], p)
        columns = self.columns[row]
        if len(columns):
            before = arithmetic.total(p[..., columns], -2)
            moved[..., columns] = arithmetic.times(self.initial, before)
        return moved

    def backward(self, evidence: Numbers, row: int) -> Numbers:
        """Take evidence of the states of a row, `[refits, states, segments]`, to the row above."""
        arithmetic = self.arithmetic
        if self.matrices is not None:
            return arithmetic.total(arithmetic.times(self.matrices[row], evidence[:, None]), -2)[
                ..., 0, :
            ]
        moved = arithmetic.product(self.matrix, evidence)
        columns = self.columns[row]
        if len(columns):
            start = arithmetic.times(self.initial[:, 0], evidence[..., columns])
            moved[..., columns] = arithmetic.total(start, -2)
        return moved

    def down(self, p: Numbers, row: int) -> tuple[Numbers, Numbers]:
        """Distributions after a row, and their normalisers."""
        joint = self.arithmetic.times(self.forward(p, row), self.emission[row][:, None])
        c = self.arithmetic.total(joint, (1, 2))
        return self.arithmetic.over(joint, c), c

    def ends(self) -> tuple[Numbers, Numbers]:
        """Distributions above each segment and evidence below it, `[refits, states, segments]`."""
        arithmetic = self.arithmetic
        refits, K, segments = self.emission.shape[1:]
        eye = np.where(np.eye(K) > 0, arithmetic.unity, arithmetic.zero)
        product = np.broadcast_to(eye[:, :, None], (refits, K, K, segments))
        for row in range(self.rows):
            product, _ = self.down(product, row)
        # the product of all segments up to each, and of all from each on
        upto = onward = np.moveaxis(product, -1, 1)
        normalised = lambda m: arithmetic.over(m, arithmetic.total(m, (2, 3)))
        distance = 1
        while distance < segments:
            joined = normalised(arithmetic.product(upto[:, :-distance], upto[:, distance:]))
            upto = np.concatenate([upto[:, :distance], joined], axis=1)
            joined = normalised(arithmetic.product(onward[:, :-distance], onward[:, distance:]))
            onward = np.concatenate([joined, onward[:, -distance:]], axis=1)
            distance *= 2
        flat = np.full((refits, 1, K), arithmetic.inside(-np.log(K)))
        one = np.full((refits, 1, K), arithmetic.unity)
        above = arithmetic.total(upto[:, :-1], 2)[:, :, 0]
        above = arithmetic.over(above, arithmetic.total(above, 2))
        below = arithmetic.total(onward[:, 1:], 3)[..., 0]
        return (
            np.moveaxis(np.concatenate([flat, above], axis=1), 1, 2),
            np.moveaxis(np.concatenate([below, one], axis=1), 1, 2),
        )


def chain_sums(
    initial: Numbers,
    transition: Numbers,
    emission: Numbers,
    starts: Bool[np.ndarray, " steps"],
    *,
    power: Float[np.ndarray, "refits steps"] | None = None,
    worth: Float[np.ndarray, "refits steps"] | None = None,
    zeros: bool = False,
) -> ChainSums:
    """Run the forward and the backward pass over all sequences of each refit.

    Parameters
    ----------
    initial : array, `[refits, states]`
        The log-potential of the first state of a sequence.
    transition : array, `[refits, states, states]`
        The log-potential of a move from row to column.
    emission : array, `[refits, steps, states]`
        The log-likelihood of each step in each state.
    starts : array of bool, `[steps]`
        Whether a sequence starts at that step.
    power : array, `[refits, steps]`, optional
        The power of each step's move or, where it starts a sequence, of its initial potential.
    worth : array, `[refits, steps]`, optional
        The weight of each step's move or start in the expected counts; one by default.
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
    ...     np.log([[[0.9, 0.1], [0.5, 0.5]]]),
    ...     np.array([True, False]),
    ... )
    >>> sums.states[0].round(2)
    array([[0.9 , 0.1 ],
           [0.74, 0.26]])
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        segments = _Segments(initial, transition, emission, starts, power, zeros)
        arithmetic = segments.arithmetic
        p, below = segments.ends()
        p = p[:, None]
        before = np.empty_like(segments.emission, np.result_type(p, segments.emission))
        filtered = np.empty_like(before)
        normaliser = np.empty_like(before[:, :, :1])
        for row in range(segments.rows):
            before[row] = p[:, 0]
            p, c = segments.down(p, row)
            filtered[row] = p[:, 0]
            normaliser[row] = c[:, 0]
        ahead = np.empty_like(before)
        emitted = np.empty_like(before)
        evidence = arithmetic.over(
            below, arithmetic.total(arithmetic.times(filtered[-1], below), 1)
        )
        for row in reversed(range(segments.rows)):
            ahead[row] = evidence
            emitted[row] = arithmetic.over(
                arithmetic.times(segments.emission[row], evidence), normaliser[row]
            )
            evidence = segments.backward(emitted[row], row)
        filtered, ahead, states = (
            segments.restore(arithmetic.outside(laid))
            for laid in (filtered, ahead, arithmetic.times(filtered, ahead))
        )
        moves = np.ones((len(states), segments.steps)) if worth is None else worth
        first = np.einsum("rt,rtk->rk", np.where(starts, moves, 0.0), states)
        moves = segments.lay(np.where(starts, 0.0, moves), 0.0)
        return ChainSums(
            segments.restore(arithmetic.logarithm(normaliser))[..., 0] + segments.top,
            states,
            filtered,
            ahead,
            first,
            _moves(segments, before, emitted, moves),
        )


def _moves(segments: _Segments, before: Numbers, emitted: Numbers, weight: Numbers) -> Numbers:
    """Sum the expected moves of all steps, `[refits, states, states]`."""
    arithmetic = segments.arithmetic
    count = np.zeros_like(segments.matrix)
    plain = arithmetic is _Linear and segments.matrices is None
    for row, moves in enumerate(weight):
        if plain:  # the matrix multiplies the sum of pairs rather than each pair
            count = count + (before[row] * moves[:, None]) @ emitted[row].swapaxes(1, 2)
            continue
        matrix = segments.matrix[..., None]
        if segments.matrices is not None:
            matrix = segments.matrices[row]
        pairs = arithmetic.times(before[row][:, :, None], emitted[row][:, None])
        pairs = arithmetic.outside(arithmetic.times(pairs, matrix))
        count = count + (pairs * moves[:, None, None]).sum(-1)
    return count * segments.matrix if plain else count


def finite(top: Numbers) -> Numbers:
    """Replace what is not finite by zero."""
    return np.where(np.isfinite(top), top, 0.0)


def best_path(
    initial: Float[np.ndarray, " states"],
    transition: Float[np.ndarray, "states states"],
    emission: Float[np.ndarray, "steps states"],
    starts: Bool[np.ndarray, " steps"],
) -> Int[np.ndarray, " steps"]:
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
        distribution = np.concatenate([distribution, last], axis=-1)
    return distribution / distribution.sum(-1, keepdims=True)


def has_stationary(transition: Float[np.ndarray, "states states"]) -> bool:
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
