"""The complete data's expected log-density of a hidden Markov model, and its derivatives in θ.

    Q(θ) = Σ_rk n_rk log e_r(k) + Σ_k n_k log π_k + Σ_jk n_jk log A_jk + log p(θ)

n are expected counts: of distinct observations r in each state, of first states, and of moves. At
the counts of θ itself ∇F = −∇Q (Fisher's identity), and ∇²F = −∇²Q − Σ ∂n/∂θ ∂log/∂θ, the complete
data's curvature without the information that is lost as the states are hidden (Louis 1982).

First derivatives of the library's emissions come from complex steps, `Im f(θ + ih)/h`, which are
exact to rounding (Squire & Trapp 1998), taken in one parameter of all states at once; second ones
from differences of these. JAX derives the emissions of a user.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from ..._runtime import (
    Array,
    Arrays,
    Module,
    NamedArrays,
    NamedValues,
    PyTree,
    Scalar,
    Shape,
    TwoArrays,
    cached_on,
    compile_static,
    float64,
    jax,
    jnp,
    silence,
    slices,
    static,
)
from ...objectives import STENCIL, DiagonalBlocks, Matrix, Vector, leaves_of, map_arrays, unravel
from ..emissions._base import AbstractEmission, AbstractWithPrior, times

COMPLEX_STEP = 1e-100  # length of a complex step
DIFFERENCE = (
    1e-3  # step of differences of first derivatives, whose error goes with its fourth power
)
SAMPLE = 2**10  # steps that tell whether observations repeat
TABLE_ENTRIES = 2**22  # numbers in the tables of one group of complex steps
Numbers = ndarray  # real or complex


class ExpectedCounts(NamedTuple):
    """Expected counts of a batch of refits: of the statistics of the observations of each state, of
    first states and of moves.
    """

    seen: Numbers  # [refits, states, statistics]
    first: Numbers  # [refits, states]
    moves: Numbers  # [refits, states, states]


class CompleteData:
    """Distinct observations of a chain, and Q as a function of θ, a vector for each refit."""

    def __init__(self, hmm: Any):
        self.emission = hmm.emission
        self.states = hmm.states
        self.num_states = hmm.num_states
        self.has_prior = hmm.states.prior is not None
        self.parts = dict[str, tuple[slice, Shape]]()
        start = 0
        for name, shape in hmm.parts:
            self.parts[name] = slice(start, start + int(np.prod(shape))), shape
            start += int(np.prod(shape))
        self.num_params = start
        place = lambda name: np.arange(start)[self.parts[name][0]]
        stacked = lambda names: np.concatenate([np.zeros(0, int), *map(place, names)])
        names = [name for name in self.parts if name in self.emission.free]
        shared = [n for n in names if n in self.emission.shared or not hmm.separate_states]
        self.chain = stacked(name for name in self.parts if name not in names)
        self.shared = stacked(shared)
        self.by_state = np.concatenate(
            [np.zeros((self.num_states, 0), int)]
            + [place(name).reshape(self.num_states, -1) for name in names if name not in shared],
            1,
        )
        # the parameter of each state that a complex step changes
        self.places = np.concatenate(
            [self.by_state.T, np.repeat(self.shared[:, None], self.num_states, axis=1)]
        )
        # the step of each parameter, and the one state whose densities it changes
        self.step_of = np.full(start, -1)
        self.step_of[self.places] = np.arange(len(self.places))[:, None]
        self.state_of = np.full(start, -1)
        self.state_of[self.by_state] = np.arange(self.num_states)[:, None]
        self._read(hmm)

    def _read(self, hmm) -> None:
        """Find the distinct observations, and the row of each step among them."""
        leaves = leaves_of(hmm.data)
        size = lambda leaf: int(np.prod(leaf.shape[1:]))
        rows = np.concatenate([leaf.reshape(len(leaf), size(leaf)) for leaf in leaves], 1)
        self.code = distinct = np.arange(len(rows))
        sample = rows[:SAMPLE]
        if len(np.unique(sample, axis=0)) < len(sample) // 2 + 1:
            _, distinct, code = np.unique(rows, axis=0, return_index=True, return_inverse=True)
            self.code = code.reshape(-1)
        self.data = map_arrays(lambda leaf: leaf[distinct], hmm.data)
        self.num_rows = len(distinct)
        self.statistics = self.emission.statistics(self.data)

    def seen(self, expected: Numbers) -> Numbers:
        """Sums of the statistics over steps that are `expected` `[refits, states, rows]`."""
        return expected if self.statistics is None else expected @ self.statistics

    def densities(self, points: Numbers) -> Numbers:
        """Log-densities of the distinct observations, `[refits, states, rows]`."""
        tables = self.tables(points)
        return tables if self.statistics is None else tables @ self.statistics.T

    def stepped_densities(self, point: Vector, params: ndarray) -> Numbers:
        """Log-densities after a complex step in one of some parameters, each of a refit's own: a
        step in one parameter of all states is each of theirs, in its state's row.
        """
        steps, place = np.unique(self.step_of[params], return_inverse=True)
        densities = self.densities(point + self._directions()[steps])[place]
        state = self.state_of[params, None]
        densities.imag[(state >= 0) & (state != np.arange(self.num_states))] = 0.0
        return densities

    def _directions(self) -> Numbers:
        """Complex steps, and none at the end, for parameters without an emission."""
        directions = np.zeros((len(self.places) + 1, self.num_params), complex)
        directions[np.arange(len(self.places))[:, None], self.places] = 1j * COMPLEX_STEP
        return directions

    def tables(self, points: Numbers) -> Numbers:
        """Compute the coefficients of the statistics, `[refits, states, statistics]`."""
        parameters = {name: self.natural(points, name) for name in self.emission.free}
        with silence("all"):
            return self.emission.tables(parameters, self.data)

    def natural(self, points: Numbers, name: str) -> Numbers:
        """Return a natural parameter of the emission, of each refit."""
        constraint = self.emission.free[name]
        place, shape = self.parts[name]
        part = points[:, place].reshape(len(points), *shape)
        with silence("all"):
            if constraint.leading:
                return constraint.natural(part)
            return np.array([constraint.natural(value) for value in part])

    def parameters(self, point: Vector) -> NamedArrays:
        """Natural parameters of the emission at one θ, free and fixed."""
        free = {name: self.natural(point[None], name)[0] for name in self.emission.free}
        return {**free, **self.emission.fixed}

    def prior(self, points: Numbers) -> ndarray:
        """Log-density of the prior of the emission's parameters."""
        total = np.zeros(len(points))
        if self.has_prior:
            with silence("all"):
                for name, prior in self.emission.prior.items():
                    total += prior(self.natural(points, name)).reshape(len(points), -1).sum(1)
        return total

    def emission_slopes(self, points: Numbers, seen: Numbers) -> Numbers:
        """Derivatives of the emission's part of Q at given counts, without the prior, at a point
        for each or at one.
        """
        out = np.zeros((self.num_params, len(seen)))
        once = len(points) == 1
        if self.emission.closed_slopes:
            for k, point in enumerate(points):
                counts = slice(None) if once else slice(k, k + 1)
                slopes = self.emission.slopes(self.parameters(point), self.data, seen[counts])
                for name, slope in slopes.items():
                    same = np.broadcast_to(point, (len(slope), self.num_params))
                    out[self.parts[name][0], counts] = self._pull(same, name, slope).T
            return out.T
        directions = self._directions()[:-1, None]
        size = TABLE_ENTRIES // max(1, len(self.places) * seen[0].size)
        for group in slices(len(points), size):
            steps = points[group] + directions
            tables = self.tables(steps.reshape(-1, self.num_params))
            slopes = _finite(tables.imag / COMPLEX_STEP).reshape(*steps.shape[:2], *seen.shape[1:])
            counts = slice(None) if once else group
            np.add.at(out[:, counts], self.places, np.einsum("grkf,rkf->gkr", slopes, seen[counts]))
        return out.T

    def _pull(self, points: Numbers, name: str, slope) -> Numbers:
        """Derivatives in a part of θ, from those of each refit in the natural parameter, or from a
        function of that, if it is a sum of terms of its entries or rows.
        """
        place, shape = self.parts[name]
        terms = slope if callable(slope) else lambda value: slope * value
        # entries of a row that are not alone in the natural parameter
        mixed = self.natural(points[:1], name).shape[1:] != shape
        out = np.empty((len(points), *shape))
        for k in range(shape[-1] if mixed else 1):
            direction = np.zeros(shape)
            if mixed:
                direction[..., k] = COMPLEX_STEP
            else:
                direction[...] = COMPLEX_STEP
            steps = points.astype(complex)
            steps[:, place] += 1j * direction.ravel()
            changes = _finite(np.asarray(terms(self.natural(steps, name))).imag / COMPLEX_STEP)
            if mixed:
                out[..., k] = changes.reshape(*out.shape[:-1], -1).sum(-1)
            else:
                out = changes.reshape(out.shape)
        return out.reshape(len(points), -1)

    def prior_slopes(self, points: Numbers) -> Numbers:
        """Derivatives of the log-density of the prior of the emission's parameters."""
        out = np.zeros((len(points), self.num_params))
        if self.has_prior:
            with silence("all"):
                for name, prior in self.emission.prior.items():
                    out[:, self.parts[name][0]] = self._pull(points, name, prior)
        return out

    def bend(self, point: Vector, seen: Numbers) -> TwoArrays:
        """Second derivatives of the emission's part of Q at counts `[states, statistics]`: in the
        parameters of each state, `[states, size, size]`, and rows of what states share.
        """
        closed = None
        if not self.shared.size:
            closed = self.emission.curvature(self.parameters(point), self.data, seen.T)

        def slopes(places: ndarray) -> ndarray:
            length = DIFFERENCE * np.maximum(1.0, np.abs(point[places]))
            points = np.repeat(point[None], 4, axis=0)
            points[:, places] += np.array(STENCIL[0])[:, None] * length
            values = self.prior_slopes(points)
            if closed is None:
                values = values + self.emission_slopes(points, np.repeat(seen[None], 4, axis=0))
            # the places of one group belong to different states
            scale = np.ones(self.num_params)
            if len(places) > 1:
                scale[self.by_state] = length[:, None]
            else:
                scale[:] = length
            return np.array(STENCIL[1]) @ values / scale

        K, size = self.by_state.shape
        blocks = np.zeros((K, size, size))
        for k in range(size):
            if self.shared.size:
                rows = [slopes(self.by_state[state, [k]]) for state in range(K)]
            else:
                rows = [slopes(self.by_state[:, k])] * K
            for state, row in enumerate(rows):
                blocks[state, k] = row[self.by_state[state]]
        if closed is not None:
            blocks -= closed
        shared = np.array([slopes(place) for place in self.shared[:, None]])
        return (blocks + blocks.swapaxes(1, 2)) / 2, shared.reshape(-1, self.num_params)

    # the distribution of states

    def logs(self, points: Numbers) -> tuple[Numbers, Numbers]:
        """Logarithms of the initial distribution and of the transition matrix of each refit."""
        parts = {}
        for name in self.states.free:
            place, shape = self.parts[name]
            parts[name] = points[:, place].reshape(len(points), *shape)
        shapes = (len(points), self.num_states), (len(points), self.num_states, self.num_states)
        initial, transition = self.states.logs(parts)
        return np.broadcast_to(initial, shapes[0]), np.broadcast_to(transition, shapes[1])

    def chain_slopes(self, points: Numbers) -> Numbers:
        """Derivatives of the logarithms, `[refits, chain, states + states²]`."""
        directions = COMPLEX_STEP * (np.arange(self.num_params) == self.chain[:, None])
        steps = (points[:, None] + 1j * directions).reshape(-1, self.num_params)
        initial, transition = self.logs(steps)
        K = self.num_states
        slopes = np.concatenate([initial, transition.reshape(len(steps), K * K)], 1)
        return _finite(slopes.imag / COMPLEX_STEP).reshape(len(points), len(self.chain), K + K * K)

    def with_prior(self, counts: ExpectedCounts) -> ndarray:
        """Counts of first states and moves, with those of the prior, `[refits, logarithms]`."""
        pairs = zip(("initial", "transition"), counts[1:], strict=True)
        total = [
            (part + self.states.pseudo_counts(name)).reshape(len(part), -1) for name, part in pairs
        ]
        return np.concatenate(total, 1)

    def log_prior(self, points: Numbers) -> ndarray:
        """Log-density of the prior of each refit."""
        total = self.prior(points)
        for name, logs in zip(("initial", "transition"), self.logs(points), strict=True):
            pseudo = np.broadcast_to(self.states.pseudo_counts(name), logs.shape)
            total = total + times(pseudo, logs).reshape(len(points), -1).sum(1)
        return total

    def slopes(self, points: Numbers, counts: ExpectedCounts) -> Numbers:
        """Gradients of Q at given counts."""
        out = self.emission_slopes(points, counts.seen) + self.prior_slopes(points)
        out[:, self.chain] += np.einsum(
            "rcf,rf->rc", self.chain_slopes(points), self.with_prior(counts)
        )
        return out

    def hessian(self, point: Vector, counts: ExpectedCounts) -> Matrix:
        """Second derivatives of Q at the counts of one refit."""
        out = np.zeros((self.num_params, self.num_params))
        blocks, rows = self.bend(point, counts.seen[0])
        out[self.by_state[:, :, None], self.by_state[:, None]] = blocks
        out[self.shared] = rows
        out[:, self.shared] = rows.T
        out[np.ix_(self.chain, self.chain)] = self.chain_bend(point, counts)
        return out

    def chain_bend(self, point: Vector, counts: ExpectedCounts) -> Numbers:
        """Second derivatives of Q in the parameters of the distribution of states."""
        K = self.num_states
        total = self.with_prior(counts)[0]
        slopes = self.chain_slopes(point[None])[0]
        initial, transition = (np.exp(log[0]) for log in self.logs(point[None]))
        # Σ_k n_k ∇² log p_k = −Σ_k n_k Σ_l p_l ∇ log p_l ∇ log p_lᵀ, for log-ratios
        first = total[:K].sum() * initial
        moves = total[K:].reshape(K, K).sum(1)[:, None] * transition
        if self.states.stationary:
            first = 0.0 * first
        curvature = (slopes * np.concatenate([first, moves.ravel()])) @ slopes.T
        if self.states.stationary:
            return self._stationary(point, total[:K]) - curvature
        return -curvature

    def _stationary(self, point: Vector, first: Numbers) -> Numbers:
        """Second derivatives of the stationary distribution's part of Q, by differences."""
        rows = []
        for place in self.chain:
            moves = np.zeros((4, self.num_params))
            moves[:, place] = DIFFERENCE * np.array(STENCIL[0])
            slopes = self.chain_slopes(point + moves)[..., : self.num_states] @ first
            rows.append(np.array(STENCIL[1]) @ slopes / DIFFERENCE)
        return (np.array(rows) + np.array(rows).T) / 2

    def lost_information(self, point: Vector, tangents: ExpectedCounts) -> Numbers:
        """Sum of the tangents of counts along each direction times the derivatives of their
        logarithms, `[directions, params]`.
        """
        out = self.emission_slopes(point[None], tangents.seen)
        flat = [part.reshape(len(part), -1) for part in tangents[1:]]
        out[:, self.chain] += np.concatenate(flat, 1) @ self.chain_slopes(point[None])[0].T
        return out

    def blocks(self, point: Vector, counts: ExpectedCounts) -> tuple[DiagonalBlocks, ...]:
        """Diagonal blocks of −∇²Q: of each state, of what states share, and of their
        distribution.
        """
        by_state, rows = self.bend(point, counts.seen[0])
        return (
            DiagonalBlocks(self.by_state, -by_state),
            DiagonalBlocks(self.shared[None], -rows[None][:, :, self.shared]),
            DiagonalBlocks(self.chain[None], -self.chain_bend(point, counts)[None]),
        )


def _finite(slopes: ndarray) -> ndarray:
    return np.where(np.isfinite(slopes), slopes, 0.0)


class DerivedData(CompleteData):
    """Complete data whose emission is written in JAX."""

    def __init__(self, hmm: Any):
        super().__init__(hmm)
        self.statistics = None
        places = {name: part for name, part in self.parts.items() if name in self.emission.free}
        like = {name: np.zeros(shape) for name, (_, shape) in places.items()}
        numbers = np.arange(self.num_params)
        self.columns = np.concatenate(
            [numbers[:0], *(numbers[place] for place, _ in places.values())]
        )
        self.model = UserEmission(self.emission, self.data, like, self.has_prior)

    def tables(self, points: Numbers) -> Numbers:
        thetas = points[:, self.columns]
        if not np.iscomplexobj(points):
            return np.asarray(_tables(self.model, thetas))
        real, slopes = _table_slopes(self.model, thetas.real, thetas.imag / COMPLEX_STEP)
        return np.asarray(real) + 1j * COMPLEX_STEP * np.asarray(slopes)

    def prior(self, points: Numbers) -> ndarray:
        return np.asarray(_priors(self.model, points[:, self.columns])).real

    def emission_slopes(self, points: Numbers, seen: Numbers) -> Numbers:
        points = np.broadcast_to(points, (len(seen), self.num_params))
        return self._spread(_slopes(self.model, points[:, self.columns], seen, 0.0))

    def prior_slopes(self, points: Numbers) -> Numbers:
        zeros = np.zeros((len(points), self.num_states, self.num_rows))
        return self._spread(_slopes(self.model, points[:, self.columns], zeros, 1.0))

    def _spread(self, slopes: Array) -> Numbers:
        out = np.zeros((len(slopes), self.num_params))
        out[:, self.columns] = slopes
        return out


class UserEmission(Module):
    """An emission in JAX, with its data and a template of its parameters."""

    emission: AbstractEmission
    data: PyTree
    like: PyTree
    has_prior: bool = static()

    def natural(self, vector: Any) -> NamedValues:
        """Return all natural parameters."""
        parts = unravel(vector, self.like)
        free = self.emission.free
        parameters = {name: free[name].natural(parts[name]) for name in free}
        return parameters | {k: jnp.asarray(value) for k, value in self.emission.fixed.items()}

    def table(self, vector: Arrays) -> Any:
        """Compute the log-densities of the observations."""
        return self.emission.log_densities(self.natural(vector), self.data).T

    def prior(self, vector: Arrays) -> Any:
        """Compute the log-density of the prior."""
        return self.emission.log_prior(self.natural(vector)) if self.has_prior else jnp.zeros(())

    def expected(self, vector: Arrays, seen: Arrays, prior: float) -> Scalar:
        """Compute the emission's part of Q, and some of the prior."""
        table = jnp.where(seen == 0, 0.0, self.table(vector))
        return jnp.sum(seen * table) + prior * self.prior(vector)


@float64
@compile_static
def _tables(model: UserEmission, thetas: Arrays) -> Array:
    return jax.vmap(model.table)(thetas)


@float64
@compile_static
def _table_slopes(model: UserEmission, thetas: Arrays, directions: Arrays) -> tuple[Array, Array]:
    return jax.vmap(lambda v, along: jax.jvp(model.table, (v,), (along,)))(thetas, directions)


@float64
@compile_static
def _priors(model: UserEmission, thetas: Arrays) -> Array:
    return jax.vmap(model.prior)(thetas)


@float64
@compile_static
def _slopes(model: UserEmission, thetas: Arrays, seen: Arrays, prior: float) -> Array:
    return jax.vmap(jax.grad(model.expected), (0, 0, None))(thetas, seen, prior)


@cached_on
def complete_data(hmm: Any) -> CompleteData:
    """Return Q of a chain: in NumPy for emissions of the library with a prior of each parameter."""
    emission = type(hmm.emission)
    library = emission.__module__.startswith(__name__.partition(".")[0] + ".")
    if library and emission.log_prior is AbstractWithPrior.log_prior:
        return CompleteData(hmm)
    return DerivedData(hmm)


def separate_states(emission: AbstractEmission, theta: PyTree) -> bool:
    """Tell whether natural parameters of each state depend on its own part of θ only. A user's
    emission may order states.
    """
    for name, constraint in emission.free.items():
        if name not in emission.shared:
            before = np.asarray(constraint.natural(np.asarray(theta[name], float)))
            for k in range(len(before)):
                perturbed = np.array(theta[name], float)
                perturbed[k] += 0.1
                if np.delete(before != np.asarray(constraint.natural(perturbed)), k, 0).any():
                    return False
    return True
