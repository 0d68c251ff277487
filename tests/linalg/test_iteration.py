"""The one loop: lanes go their own ways, and end where they should."""

import numpy as np
import pytest

from leaveout.linalg.iteration import (
    Proposal,
    SharedFactors,
    anywhere,
    decrements,
    iterate,
)

ENDS = np.array([-3.0, 0.5, 40.0])


def quartic(theta, lanes):
    """(θ − a)² + (θ − a)⁴ of each lane."""
    d = theta - ENDS[lanes, None]
    return np.sum(d**2 + d**4, axis=1), 2 * d + 4 * d**3


def newton(state, lanes):
    step = state.gradient / (2 + 12 * (state.theta - ENDS[lanes, None]) ** 2)
    length = decrements(step, state.gradient)
    return Proposal(step, length, length <= 1e-8)


def test_lanes_end_apart_from_one_another():
    """A finished lane is looked at no more."""
    looks = np.zeros(3, int)

    def look(theta, lanes):
        looks[lanes] += 1
        return quartic(theta, lanes)

    start = np.array([[-3.0], [0.6], [-60.0]])
    state, converged = iterate(look, newton, start)
    assert converged.all() and (np.diff(looks) > 0).all()
    np.testing.assert_allclose(state.theta[:, 0], ENDS, atol=1e-9)


def test_a_step_that_rises_is_halved():
    """Steps on parabolas that go too far by more than half."""
    look = lambda theta, lanes: (np.sum((theta - ENDS[lanes, None]) ** 2, axis=1), theta)

    def propose(state, lanes):
        step = 2.2 * (state.theta - ENDS[lanes, None])
        return Proposal(step, np.abs(step[:, 0]))

    falls = lambda state, value, gradient: value < state.value
    state, converged = iterate(look, propose, np.ones((3, 1)), falls, most=60)
    assert not converged.any()
    np.testing.assert_allclose(state.theta[:, 0], ENDS, atol=1e-9)


def test_a_lane_ends_where_it_has_no_value_or_no_step():
    def look(theta, lanes):
        value, gradient = quartic(theta, lanes)
        return np.where(ENDS[lanes] > 10, np.nan, value), gradient

    def propose(state, lanes):
        step = np.where(ENDS[lanes, None] < 0, np.nan, newton(state, lanes).step)
        length = decrements(step, state.gradient)
        return Proposal(step, length, length <= 1e-8)

    state, converged = iterate(look, propose, np.ones((3, 1)))
    np.testing.assert_array_equal(converged, [False, True, False])
    assert state.theta[0, 0] == 1.0 and state.theta[2, 0] == 1.0


class Curvatures(SharedFactors):
    """Second derivatives of the quartics, and how often each was computed."""

    def __init__(self, reuse):
        super().__init__(3, reuse)
        self.second = np.ones((3, 1))
        self.times = np.zeros(3, int)

    def renew(self, theta, lanes):
        self.second[lanes] = 2 + 12 * (theta - ENDS[lanes, None]) ** 2
        self.times[lanes] += 1

    def solve(self, gradient, lanes):
        return gradient / self.second[lanes]


@pytest.mark.parametrize("reuse", [0.0, 0.3])
def test_factors_serve_as_long_as_steps_shrink(reuse):
    factors = Curvatures(reuse)
    looks = np.zeros(3, int)

    def look(theta, lanes):
        looks[lanes] += 1
        return quartic(theta, lanes)

    def propose(state, lanes):
        proposal = factors.propose(state, lanes)
        return proposal._replace(end=proposal.length <= 1e-9)

    state, converged = iterate(look, propose, ENDS[:, None] + 1.5, anywhere)
    assert converged.all()
    np.testing.assert_allclose(state.theta[:, 0], ENDS, atol=1e-8)
    if reuse:
        assert (factors.times < looks).all() and (factors.times > 1).all()
    else:
        np.testing.assert_array_equal(factors.times, looks)
