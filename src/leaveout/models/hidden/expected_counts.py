"""Passes over a hidden Markov chain: F, expected counts and held-out losses of many refits, and
tangents of these along every parameter.

Each refit has its own θ and weights of the units. The passes are those of `inference.lanes`, or
compiled loops over the steps (`inference.compiled`) where numba is installed, the chain is long and
observations are left out.
"""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..._runtime import (
    ArrayList,
    ArrayTuple,
    ListedValues,
    NamedValues,
    TwoArrays,
    UnitVectors,
    cached_on,
    silence,
    slices,
)
from ...inference.compiled import Loops, loops
from ...inference.lanes import ChainSums, RefitSteps, chain_sums, sum_by_row
from ...objectives import STENCIL, Matrix, PerUnit, Vector
from ..emissions._base import times
from .complete_data import COMPLEX_STEP, ExpectedCounts, Numbers, complete_data
from .hidden import mixture

Array = np.ndarray

LONG_CHAIN = 2**12  # steps beyond which loops are compiled
RARE = 1e-30  # least probability with which four steps without a normaliser cannot underflow
COUNT_DIFFERENCE = 1e-4  # step of differences of counts, whose error goes with its fourth power
TANGENT_ENTRIES = 2**18  # numbers in one array of a group of tangents
UnitWeights = Float[Array, "refits units"]
Units = Int[Array, "refits width"]


class ChainEvaluation(NamedTuple):
    """log Z of each refit, its expected counts, and the losses of the units that were asked for,
    given what the refit sees (of steps, in the latent chain of F).
    """

    log_z: Numbers
    counts: ExpectedCounts
    losses: ListedValues


def observation_weights(hmm: Any, weights: UnitWeights) -> RefitSteps:
    """Weights of the observations.

    Zero for the missing, and for those whose regressors are left out.
    """
    visible = np.where(hmm.dense, weights, 0.0)
    return visible * regressors(hmm, weights) if hmm.emission.reach else visible


def regressors(hmm: Any, weights: UnitWeights) -> RefitSteps:
    """Product of the weights of each step's regressors, zero for steps without regressors."""
    product = np.ones_like(weights)
    seen = np.where(np.isnan(hmm.x).any(1), 0.0, weights)
    for lag in range(1, hmm.emission.reach + 1):
        earlier = np.zeros_like(seen)
        earlier[:, lag:] = seen[:, :-lag]
        product = product * np.where(hmm.position >= lag, earlier, 0.0)
    return product


def chain_posterior(
    hmm: Any, points: Numbers, visible: Numbers, densities: Numbers | None = None, **moves: Any
) -> tuple[ChainSums, Numbers]:
    """Run the passes of each refit, where `visible` weighs each observation; return the
    log-densities of the distinct observations, `[refits, states, rows]`, too.
    """
    if densities is None:
        densities = complete_data(hmm).densities(points)
    return _chain(hmm, points, densities, visible, **moves), densities


def _chain(
    hmm,
    points: Numbers,
    densities: Numbers,
    visible: Numbers,
    *,
    barely: float = 0.0,
    **moves,
) -> ChainSums:
    complete = complete_data(hmm)
    logs = dict(zip(hmm.latent, complete.logs(points), strict=True))
    if barely:
        for name, edge in hmm.states.edge.items():
            logs[name] = np.where(edge, np.log(barely), logs[name])
    starts = hmm.position == 0
    moves |= {"code": complete.code, "weight": visible, "zeros": hmm.states.zeros}
    return chain_sums(*logs.values(), densities, starts, **moves)


def densities_at(hmm: Any, densities: Numbers, steps: Units) -> Numbers:
    """Log-densities of some steps of each refit, `[refits, width, states]`."""
    rows = complete_data(hmm).code[steps]
    return densities.swapaxes(1, 2)[np.arange(len(steps))[:, None], rows]


def held_out_losses(hmm: Any, sums: ChainSums, densities: Numbers, steps: Units) -> Numbers:
    """Losses of some steps of each refit given what it sees."""
    return -mixture(sums.states_at(steps), densities_at(hmm, densities, steps))


def step_powers(hmm: Any, weights: UnitWeights) -> RefitSteps:
    """Powers of moves between steps with weights, w_{t−1} w_t, and of first states, w_1."""
    before = np.insert(weights[:, :-1], 0, 1.0, axis=1)
    return np.where(hmm.position == 0, weights, before * weights)


def evaluate(
    hmm: Any,
    points: Numbers,
    weights: UnitWeights,
    units: Units | None = None,
    *,
    barely: float = 0.0,
    densities: Numbers | None = None,
) -> ChainEvaluation:
    """Evaluate the refits at their θ, real or after complex steps, with the losses of `units`.

    Probabilities that the fit holds at zero are `barely` above it.
    """
    if units is None:
        units = np.zeros((len(points), 0), int)
    compiled = compiled_passes(hmm)
    if compiled is not None and not np.iscomplexobj(points):
        return compiled(points, weights, units)
    moves: NamedValues = {"barely": barely}
    worth: float | Array = 1.0
    if hmm.drop == "sequence":
        visible = observation_weights(hmm, np.ones((len(points), hmm.num_steps)))
        worth = moves["worth"] = weights[:, hmm.sequence]
    else:
        visible = observation_weights(hmm, weights)
    if hmm.drop == "step":
        moves["power"] = step_powers(hmm, weights)
    sums, densities = chain_posterior(hmm, points, visible, densities, **moves)
    log_z = (worth * sums.log_normaliser).sum(1)
    counts = ExpectedCounts(complete_data(hmm).seen(sums.emission), sums.initial, sums.transition)
    if hmm.drop == "sequence":
        losses = np.take_along_axis(-sequence_evidence(hmm, sums), units, 1)
    else:
        losses = held_out_losses(hmm, sums, densities, units)
    if hmm.drop == "step":
        # the latent chain is not normalised when it is cut
        cut = _chain(hmm, points, densities, np.zeros_like(visible), **moves)
        log_z = log_z - cut.log_normaliser.sum(1)
        counts = ExpectedCounts(
            counts.seen, counts.first - cut.initial, counts.moves - cut.transition
        )
    return ChainEvaluation(log_z, counts, losses)


def sequence_evidence(hmm: Any, sums: ChainSums) -> Numbers:
    """Log-likelihood of each sequence, `[refits, sequences]`."""
    return np.add.reduceat(sums.log_normaliser, np.flatnonzero(hmm.position == 0), axis=1)


def _group_size(hmm) -> int:
    """Number of complex steps that are taken together."""
    return max(1, TANGENT_ENTRIES // (hmm.num_steps * hmm.num_states))


def hessian(hmm: Any, point: Vector, weights: PerUnit) -> Matrix:
    """Compute ∇²F(θ, w)."""
    complete = complete_data(hmm)
    out = np.zeros((len(point), len(point)))
    for k, (params, tangents, counts) in enumerate(_count_tangents(hmm, point, weights)):
        if k == 0:
            out -= complete.hessian(point, counts)
        out[params] -= complete.lost_information(point, tangents)
    return (out + out.T) / 2


def _count_tangents(
    hmm, point: Vector, weights: PerUnit
) -> Iterator[tuple[Array, ExpectedCounts, ExpectedCounts]]:
    """Derivatives of the expected counts along every parameter, in groups, and the counts: by
    complex steps, or by differences, as compiled passes are of real numbers.
    """
    shifts = np.array([1j * COMPLEX_STEP])
    shares = np.array([-1j / COMPLEX_STEP])
    size = _group_size(hmm)
    compiled = compiled_passes(hmm) is not None
    if compiled:
        center = evaluate(hmm, point[None], weights[None]).counts
        shifts = COUNT_DIFFERENCE * np.array(STENCIL[0])
        shares = np.array(STENCIL[1]) / COUNT_DIFFERENCE
        size = 2  # parameters whose four places fill the lanes of a pass
    complete = complete_data(hmm)
    lengths = np.maximum(1.0, np.abs(point)) if compiled else np.ones(len(point))
    order = np.argsort(complete.step_of, kind="stable")  # those of one step next to each other
    densities = None
    for group in slices(len(point), size):
        params = order[group]
        moves = np.multiply.outer(shifts, (np.arange(len(point)) == params[:, None]) * lengths)
        points = (point + moves).reshape(-1, len(point))
        if not compiled:
            densities = complete.stepped_densities(point, params)
        repeated = np.repeat(weights[None], len(points), axis=0)
        counts = evaluate(hmm, points, repeated, densities=densities).counts
        if not compiled:
            center = ExpectedCounts(*(part[:1].real for part in counts))
        parts = (part.reshape(*moves.shape[:2], *part.shape[1:]) for part in counts)
        tangents = (np.tensordot(shares, part, 1).real for part in parts)
        yield params, ExpectedCounts(*((part.T / lengths[params]).T for part in tangents)), center


def jacobian(hmm: Any, point: Vector) -> UnitVectors:
    """Compute ∂²F/∂θ∂w_n at weights one."""
    steps = point + 1j * COMPLEX_STEP * np.eye(len(point))
    groups = (steps[part] for part in slices(len(point), _group_size(hmm)))
    return -np.concatenate([_weight_slopes(hmm, group).imag / COMPLEX_STEP for group in groups]).T


def _weight_slopes(hmm, points: Numbers) -> Numbers:
    """Compute ∂ log Z/∂w_n of every unit at weights one, `[refits, units]`."""
    ones = np.ones((len(points), hmm.num_steps))
    visible = observation_weights(hmm, ones)
    sums, table = chain_posterior(hmm, points, visible)
    if hmm.drop == "sequence":
        return sequence_evidence(hmm, sums)
    densities = densities_at(hmm, table, np.broadcast_to(np.arange(hmm.num_steps), ones.shape))
    slopes = np.where(visible > 0, times(sums.states, densities).sum(2), 0.0)
    total = slopes.copy()
    for lag in range(1, hmm.emission.reach + 1):  # a step is a regressor of later ones
        total[:, :-lag] += np.where(hmm.position >= lag, slopes, 0.0)[:, lag:]
    if hmm.drop == "step":
        emission = times(visible[..., None], densities)
        moves = _move_slopes(hmm, points, emission, sums)
        cut = _chain(hmm, points, table, np.zeros_like(visible))
        moves = moves - _move_slopes(hmm, points, np.zeros_like(emission), cut)
        total = total + moves
        total[:, :-1] += np.where(hmm.position == 0, 0.0, moves)[:, 1:]
    return total


def _move_slopes(hmm, points: Numbers, emission: Numbers, sums: ChainSums) -> Numbers:
    """Compute the expected logarithm of each step's move or first state, `[refits, steps]`."""
    initial, transition = complete_data(hmm).logs(points)
    evidence_ahead = np.exp(emission - sums.log_normaliser[..., None]) * sums.evidence_ahead
    by_state = np.exp(transition) * np.where(np.isfinite(transition), transition, 0.0)
    slopes = np.zeros_like(sums.log_normaliser)
    slopes[:, 1:] = np.einsum(
        "rtj,rjk,rtk->rt", sums.filtered[:, :-1], by_state, evidence_ahead[:, 1:]
    )
    return np.where(hmm.position == 0, times(sums.states, initial[:, None]).sum(2), slopes)


def is_long(hmm: Any) -> bool:
    """Tell whether compiled passes would be quicker."""
    return hmm.drop == "observation" and not hmm.states.zeros and hmm.num_steps > LONG_CHAIN


@cached_on
def compiled_passes(hmm: Any) -> "CompiledPasses | None":
    """Return compiled passes over a chain, where they are quicker and can be had."""
    compiled = loops(hmm.num_states) if is_long(hmm) else None
    return None if compiled is None else CompiledPasses(hmm, compiled)


class CompiledPasses:
    """Passes over a chain, by its steps: the row of the distinct observations of each."""

    def __init__(self, hmm: Any, compiled: Loops):
        self.hmm = hmm
        self.loops = compiled
        self.complete = complete_data(hmm)
        self.code = self.complete.code.astype(np.int32)
        self.starts = hmm.position == 0
        self.room = threading.local()

    def __call__(self, points: Numbers, weights: UnitWeights, units: Units) -> ChainEvaluation:
        densities = self.complete.densities(points)
        initial, transition = self.complete.logs(points)
        groups = slices(len(points), self.loops.lanes)
        parts = [
            self._pass(densities[group], initial[group], transition[group], weight, units[group])
            for group, weight in zip(groups, self._weights(weights, groups), strict=True)
        ]
        log_z, losses, seen, first, moves = map(np.concatenate, zip(*parts, strict=True))
        counts = ExpectedCounts(self.complete.seen(seen), first, moves)
        return ChainEvaluation(log_z, counts, losses)

    def _lay(self, part: Array) -> Array:
        """Put the refits, the last one repeated, into the lanes, which are the last axis."""
        lanes = self.loops.lanes
        if len(part) < lanes:
            part = part[np.minimum(np.arange(lanes), len(part) - 1)]
        return np.ascontiguousarray(np.moveaxis(part, 0, -1))

    def _weights(self, weights: UnitWeights, groups: list[slice]) -> ArrayList:
        """Weights of the observations in lanes, those of the last call if refits are the same."""
        if getattr(self.room, "weights", None) is not weights:
            visible = observation_weights(self.hmm, weights)
            self.room.laid = [self._lay(visible[group]) for group in groups]
            self.room.weights = weights
        return self.room.laid

    def _pass(
        self,
        densities: Numbers,
        initial: Numbers,
        transition: Numbers,
        weight: Float[Array, "steps lanes"],
        units: Units,
    ) -> ArrayTuple:
        """Evaluate a few refits: log Z, losses of the units, and expected counts."""
        count = len(densities)
        lanes = self.loops.lanes
        # an observation whose density is not a number is impossible
        densities = np.where(np.isnan(densities).any(1, keepdims=True), -np.inf, densities)
        top = densities.max(1)
        top = np.where(np.isfinite(top), top, 0.0)
        plain = self._lay(np.exp(densities - top[:, None]).swapaxes(1, 2))
        initial, transition, top = map(self._lay, (np.exp(initial), np.exp(transition), top))
        table = plain
        logs = top
        code = self.code
        tempered = bool(((weight != 0) & (weight != 1)).any())
        if tempered:  # rows for every step, with their weights
            plain = plain[code]
            logs = weight * top[code]
            code = np.arange(len(code), dtype=np.int32)
            table = np.where(weight[:, None] == 0, 1.0, plain ** weight[:, None])
        shared_arguments = (
            transition.reshape(-1),
            self.starts,
            code,
            np.ones(weight.size) if tempered else weight.reshape(-1),
            table.reshape(-1),
        )
        # a step multiplies probabilities by no less than the least transition
        # the steps that are normalised
        mask = 3 if min(initial.min(), transition.min()) > RARE else 0
        states, mixed = self._room(len(initial))
        log_z, seen, moves, first = (
            np.zeros(part.shape) for part in (top[0], table, transition, initial)
        )
        self.loops.forward(
            initial.reshape(-1), *shared_arguments, logs.reshape(-1), mask, states, log_z
        )
        self.loops.backward(
            *shared_arguments,
            plain.reshape(-1),
            mask,
            states,
            mixed,
            *(part.reshape(-1) for part in (seen, moves, first)),
        )
        if tempered:
            by_step = np.moveaxis(seen * weight[:, None], 0, -1)
            seen = np.moveaxis(sum_by_row(by_step, self.code, self.complete.num_rows), -1, 0)
        refit = np.arange(count)[:, None]
        with silence("divide"):
            losses = -np.log(mixed.reshape(-1, lanes)[units, refit]) - top[self.code[units], refit]
        return (
            log_z[:count],
            losses,
            *(
                np.moveaxis(part[..., :count], -1, 0)
                for part in (seen.swapaxes(0, 1), first, moves)
            ),
        )

    def _room(self, num_states: int) -> TwoArrays:
        """Return memory of the passes, once for each thread, as new memory takes half as long as a
        recursion.
        """
        if not hasattr(self.room, "both"):
            size = len(self.code) * self.loops.lanes
            self.room.both = np.empty(size * num_states), np.empty(size)
        return self.room.both
