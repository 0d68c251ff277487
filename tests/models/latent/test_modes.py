"""Newton's method for modes finds the minima of many convex functions, and gives up where there is
nothing to find.
"""

import numpy as np
import pytest

from leaveout.models.latent.modes import newton


def counted(value, step):
    """A function to look at, and the number of looks so far."""
    looks = []

    def look(u):
        looks.append(u)
        return value(u), lambda fresh: step(u)

    return look, looks


@pytest.mark.parametrize("reuse", [0.0, 0.1])
def test_minima_of_quartics_from_far_away(reuse):
    """(u − a)² + (u − a)⁴ + e^{u − a} of two variables each, for several a at once.

    The gradient is zero at the mode.
    """
    a = np.linspace(-5.0, 5.0, 7)
    slope = lambda d: 2 * d + 4 * d**3 + np.exp(d)
    value = lambda u: np.sum((u - a) ** 2 + (u - a) ** 4 + np.exp(u - a), axis=0)
    look, _ = counted(value, lambda u: slope(u - a) / (2 + 12 * (u - a) ** 2 + np.exp(u - a)))
    found, ended = newton(look, np.full((2, 7), 20.0), reuse)
    assert ended.all()
    np.testing.assert_allclose(slope(found - a), 0.0, atol=1e-11)


def test_a_search_without_values_ends_at_once():
    look, looks = counted(
        lambda u: np.full(u.shape[1:], np.inf), lambda u: np.full(u.shape, np.nan)
    )
    _, ended = newton(look, np.zeros((3, 4)))
    assert not ended.any() and len(looks) == 1


def test_a_search_ends_once_its_halved_steps_are_rounding():
    """A function that is higher everywhere but at the start.

    Steps are halved until they are rounding.
    """
    look, looks = counted(lambda u: np.sum(u != 1.0, axis=0) * 1.0, lambda u: -u)
    found, ended = newton(look, np.ones((1, 1)))
    assert not ended.any() and len(looks) < 60
    np.testing.assert_allclose(found, 1.0, atol=1e-12)
