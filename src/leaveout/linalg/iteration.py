"""Newton's method, and every method that steps as it does, for many functions side by side.

Every function is a lane, which goes by θ ← θ − t s, t = 1, ½, ¼, …

- `look` gives the values and gradients at points;
- `propose` gives the steps s from there, and says where they are the last ones;
- `accept` says which points are taken, but for the first; for the others t shrinks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime import NumpyArray

Lanes = Int[NumpyArray, " lanes"] | slice
Flags = Bool[NumpyArray, " lanes"]
PerLane = Float[NumpyArray, " lanes"]
Points = Float[NumpyArray, "lanes params"]

EVERYONE = slice(None)
MAX_LOOKS = 100  # looks at a function, halvings included, before it counts as not converged
VALUE_ROUNDING = 1e-12  # relative rounding error of a value
SMALLEST_SHARE = 1e-12  # least share of a step that is tried


class LaneState(NamedTuple):
    """Points of some lanes, values and gradients there, the steps from there (in `propose`, those
    that led there) with their lengths, and the shares t.
    """

    theta: Points
    value: PerLane
    gradient: Points
    step: Points
    length: PerLane
    share: PerLane


class Proposal(NamedTuple):
    """Steps and their lengths, and the lanes that `end` with the step, or `stay` where they are.

    Lanes that do both have arrived. Those whose lengths are not finite stay.
    """

    step: Points
    length: PerLane
    end: Flags | bool = False
    stay: Flags | bool = False


Look = Callable[[Points, Lanes], tuple[PerLane, Points]]
Propose = Callable[[LaneState, Lanes], Proposal]
Accept = Callable[[LaneState, PerLane, Points], Flags]


@np.errstate(invalid="ignore")  # infinite where a value or a gradient is
def descends(state: LaneState, value: PerLane, gradient: Points) -> Flags:
    """Whether values fall enough, or do not rise while the slope along the step falls (Hager and
    Zhang 2005), or are too flat to decide.
    """
    promised = np.einsum("lp,lp->l", state.gradient, state.step)
    falls = value <= state.value - 1e-4 * state.share * promised
    if falls.all():
        return falls
    cancellation_noise = 1e-10  # relative noise of F if terms 1e6 times as large cancel
    level = np.abs(state.value)
    slope = np.abs(np.einsum("lp,lp->l", gradient, state.step))
    # the last digits of F are rounding where the slope has fallen enough
    flattens = (value <= state.value + cancellation_noise * level) & (slope <= 0.8 * promised)
    return falls | flattens | (promised <= VALUE_ROUNDING * level)


def anywhere(state: LaneState, value: PerLane, gradient: Points) -> Flags:
    """Take every point."""
    return value == value


def without_values(theta: Points, lanes: Lanes) -> tuple[PerLane, Points]:
    """Look at nothing, for steps that need no values and compute gradients themselves."""
    return np.zeros(len(theta)), theta


def iterate(
    look: Look,
    propose: Propose,
    start: Points,
    accept: Accept = descends,
    most: int = MAX_LOOKS,
    shrink: float = 0.5,
) -> tuple[LaneState, Flags]:
    """Step from a start until every lane has ended; return where, and the lanes that converged.

    A last step is taken without a look. A lane ends without convergence where no share of a step is
    accepted, or where there is no step.
    """
    count = len(start)
    value, length = np.full((2, count), np.inf)
    step, gradient = np.zeros((2, *start.shape))
    state = LaneState(np.array(start), value, gradient, step, length, np.ones(count))
    converged = np.zeros(count, bool)
    places = np.arange(count)
    for number in range(most):
        lanes = everyone_or(places, count)
        points = LaneState(*(field[lanes] for field in state))
        trial = points.theta - points.share[:, None] * points.step
        value, gradient = look(trial, lanes)
        good = np.isfinite(value)
        if number:
            good &= accept(points, value, gradient)
        going = good
        chosen = EVERYONE
        if np.count_nonzero(good) < len(good):
            state.share[places[~good]] *= shrink
            going = good | (state.share[lanes] > SMALLEST_SHARE) & (number > 0)
            chosen = good
        stepping = everyone_or(places[chosen], count)
        if np.count_nonzero(good):
            fields = trial[chosen], value[chosen], gradient[chosen]
            proposal = propose(
                LaneState(*fields, *(field[stepping] for field in state[3:])), stepping
            )
            stay = proposal.stay | ~np.isfinite(proposal.length)
            ends = proposal.end & ~stay
            if np.count_nonzero(ends):
                fields = fields[0] - np.where(ends[:, None], proposal.step, 0.0), *fields[1:]
            for field, new in zip(state, (*fields, *proposal[:2], 1.0), strict=True):
                field[stepping] = new
            converged[stepping] = proposal.end
            going[chosen] = ~(ends | stay)
        if np.count_nonzero(going) < len(going):
            places = places[going]
            if not len(places):
                break
    return state, converged


def everyone_or(lanes: Int[NumpyArray, " lanes"], count: int) -> Lanes:
    """The lanes, as a slice if they are all of them, which copies nothing."""
    return EVERYONE if len(lanes) == count else lanes


class SharedFactors(ABC):
    """Steps by factors that serve for as long as these shrink by the ratio `reuse`, or are no
    longer than `floor`.

    `present` marks the lanes that have a factor, all of them after their first step, and `fresh`
    those whose last step is by a new one.
    """

    def __init__(self, count: int, reuse: float, floor: float = 0.0):
        self.reuse = reuse
        self.floor = floor
        self.present = np.zeros(count, bool)
        self.fresh = np.zeros(count, bool)

    @abstractmethod
    def renew(self, theta: Points, lanes: NumpyArray) -> None:
        """Compute the factors of some lanes anew."""

    @abstractmethod
    def solve(self, gradient: Points, lanes: NumpyArray) -> Points:
        """Compute steps by the factors; NaN where a factor gives none."""

    def measure(self, step: Points, gradient: Points) -> PerLane:
        """Lengths of steps: by default the decrements."""
        return decrements(step, gradient)

    def propose(self, state: LaneState, lanes: Lanes) -> Proposal:
        """Propose steps for `iterate`."""
        gradient = state.gradient
        lanes = np.arange(len(self.present))[lanes]
        stale = ~self.present[lanes]
        step = np.empty(gradient.shape)
        length = np.empty(len(lanes))
        if not stale.all():
            step = self.solve(gradient, lanes)
            length = self.measure(step, gradient)
            stale |= ~(length <= np.maximum(self.reuse * state.length, self.floor))
        if stale.any():
            self.renew(state.theta[stale], lanes[stale])
            self.present[lanes[stale]] = self.reuse > 0
            step[stale] = self.solve(gradient[stale], lanes[stale])
            length[stale] = self.measure(step[stale], gradient[stale])
        self.fresh[lanes] = stale
        return Proposal(step, length)


def decrements(step: Points, gradient: Points) -> PerLane:
    """√(gᵀs) of steps s = H⁻¹g; zero where rounding makes it imaginary."""
    return np.sqrt(np.maximum(np.einsum("lp,lp->l", gradient, step), 0.0))
