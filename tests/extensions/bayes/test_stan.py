"""Models with BridgeStan's methods: F of their density and log densities of units."""

import numpy as np
import pytest

import leaveout as lo

RNG = np.random.default_rng(0)
Y = np.append(RNG.normal(size=19), 6.0)


class Normal:
    """`y ~ normal(mean[1], scale)`, `mean ~ normal(0, 1)`, `scale ~ exponential(1)`, as StanModel
    gives it.
    """

    def param_names(self, include_tp=False, include_gq=False):
        return ["mean.1", "scale"] + [f"log_lik.{n}" for n in range(1, 21)] * (
            include_tp and include_gq
        )

    def param_unc_names(self):
        return ["mean.1", "scale"]

    def new_rng(self, seed):
        return seed

    def param_unconstrain(self, theta):
        return np.array([theta[0], np.log(theta[1])])

    def param_constrain(self, u, include_tp=False, include_gq=False, rng=None):
        if u[1] > 5:
            raise RuntimeError("scale is too large")
        scale = np.exp(u[1])
        log_lik = -0.5 * ((Y - u[0]) / scale) ** 2 - u[1] - 0.5 * np.log(2 * np.pi)
        return np.r_[u[0], scale, log_lik] if include_gq else np.array([u[0], scale])

    def log_density_gradient(self, u):
        apart, scale = (Y - u[0]) / np.exp(u[1]), np.exp(u[1])
        # constants are left out
        value = -0.5 * apart @ apart - 20 * u[1] - 0.5 * u[0] ** 2 - scale + u[1]
        return value, np.array([apart.sum() / scale - u[0], apart @ apart - 20 - scale + 1])


@pytest.mark.filterwarnings("ignore:.*draws are not those of the density")
def test_density_and_gradients():
    draws = {
        "mean": RNG.normal(0.3, 0.35, (4, 100, 1)),
        "scale": 1.6 * np.exp(0.16 * RNG.normal(size=(4, 100))),
    }
    found = lo.bayes.from_stan(Normal(), draws)
    weights = np.where(np.arange(20) % 3 == 0, 0.0, 1.0)
    mean, scale = draws["mean"].ravel(), draws["scale"].ravel()
    apart = (Y - mean[:, None]) / scale[:, None]
    value, slope = found.looks(found.draws, weights)
    truth = (
        (0.5 * apart**2 + np.log(scale)[:, None]) @ weights + 0.5 * mean**2 + scale - np.log(scale)
    )
    assert np.array_equal(found.values(found.draws, weights), value)
    assert np.ptp(value - truth) < 1e-9  # constants that Stan leaves out
    assert np.allclose(slope[:, 0], -(apart @ weights) / scale + mean, atol=1e-6)
    assert np.allclose(slope[:, 1], weights.sum() - apart**2 @ weights + scale - 1, atol=1e-6)
    assert np.allclose(
        found.unit_losses, 0.5 * apart**2 + np.log(scale)[:, None] + 0.5 * np.log(2 * np.pi)
    )
    assert found.values(np.array([[0.0, 6.0]]), weights) == np.inf
    named = found.named(found.draws)
    assert list(named) == ["mean[1]", "scale"] and np.allclose(
        named["scale"], draws["scale"].ravel()
    )


def test_refusals():
    with pytest.raises(ValueError, match="no vector 'log_p'"):
        lo.bayes.from_stan(Normal(), {}, log_lik="log_p")
    with pytest.raises(ValueError, match="draws of scale are missing"):
        lo.bayes.from_stan(Normal(), {"mean": RNG.normal(size=(200, 1))})
    with pytest.raises(ValueError, match="draws of 'mean' have the shape"):
        lo.bayes.from_stan(Normal(), {"mean": RNG.normal(size=(200, 2)), "scale": np.ones(200)})
