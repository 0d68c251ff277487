"""Effects that are integrated out.

The integral in closed form, and what cannot be integrated group by group.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array

import leaveout as lo

pytestmark = pytest.mark.filterwarnings("ignore:.*draws are not those of the density")
CODE = np.array([0, 0, 1, 3, 3])  # no unit is of group 2
RNG = np.random.default_rng(0)
DATA = {"y": 100 + RNG.normal(size=5), "g": CODE}
DRAWS = {"mu": 100 + RNG.normal(0, 0.3, 200), "a": 100 + 0.1 * RNG.normal(size=(200, 4))}


def unit_loss(theta, datum):
    return 0.5 * (datum["y"] - theta["a"][datum["g"]]) ** 2 + 0.5 * jnp.log(2 * jnp.pi)


def log_prior(theta):
    return -0.5 * (theta["mu"] - 100) ** 2


def centred(theta, value):
    return -0.5 * ((value - theta["mu"]) / 0.1) ** 2 - jnp.log(0.1) - 0.5 * jnp.log(2 * jnp.pi)


def of(groups=CODE, draws=DRAWS):
    return lo.bayes.from_posterior(
        draws,
        unit_loss,
        DATA,
        log_prior=log_prior,
        integrate={"a": groups},
        effect_log_prior=centred,
    )


def test_effects_far_from_zero_and_groups_without_units():
    posterior = of()
    cov = np.eye(5) + 0.01 * (CODE[:, None] == CODE)
    truth = [
        stats.multivariate_normal.logpdf(DATA["y"], np.full(5, mu), cov) - 0.5 * (mu - 100) ** 2
        for mu in DRAWS["mu"]
    ]
    assert np.allclose(
        posterior.value, -np.array(truth), rtol=1e-9
    ) and posterior.blocks.tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(("effect", "error"), [(stats.logistic, 1e-4), (stats.norm, 1e-9)])
def test_integrals_and_their_derivatives_with_and_without_closed_form(effect, error):
    log_density = {
        stats.logistic: lambda x: -x - 2 * jnp.log1p(jnp.exp(-x)),
        stats.norm: jax.scipy.stats.norm.logpdf,
    }[effect]
    prior = lambda theta, z: log_density(z - theta["mu"])
    posterior = lo.bayes.from_posterior(
        DRAWS, unit_loss, DATA, log_prior=log_prior, integrate={"a": CODE}, effect_log_prior=prior
    )
    assert posterior.objective.quadratic == (effect is stats.norm)
    z, weights = np.linspace(80.0, 120.0, 40_001), np.array([1.0, 0.0, 1.0, 1.0, 1.0])

    def F(mu):
        groups = [
            effect.pdf(z, mu) * stats.norm.pdf(DATA["y"][rows, None], z).prod(0)
            for rows in ([0], [2], [3, 4])
        ]
        return -np.log(np.trapezoid(groups, z)).sum() + 0.5 * (mu - 100) ** 2

    some, step = posterior.draws[:3], 1e-4
    value, slope = posterior.looks(some, weights)
    assert np.allclose(value, [F(mu) for mu in some[:, 0]], rtol=0, atol=error)
    assert np.allclose(posterior.values(some, weights), value, rtol=1e-12)
    by_difference = [(F(mu + step) - F(mu - step)) / (2 * step) for mu in some[:, 0]]
    assert np.allclose(slope[:, 0], by_difference, rtol=0, atol=max(error, 1e-7))


@pytest.mark.parametrize(
    "weights",
    [[1, 1, 0, 1, 1], [0, 0, 1, 1, 1], [0, 2, 1, 1, 1], [1, 1, 1, 0.5, 1], [1, 1, 2, 1, 1]],
)
def test_groups_leave_by_their_integrals_only_as_a_whole(weights):
    posterior, weights = of(), np.array(weights, float)
    found = posterior.values_without(posterior.draws, csr_array(1 - weights[None]))
    assert np.allclose(found, posterior.values(posterior.draws, weights), rtol=1e-12)


def test_heavy_tails_and_several_modes():
    """An effect far from the others has its density among them when its units leave."""
    rng = np.random.default_rng(1)
    code = np.arange(12) % 3
    data = {"y": np.array([0.3, -0.4, 20.0])[code] + 0.1 * rng.normal(size=12), "g": code}
    draws = {
        "mu": 100 + rng.normal(size=(4, 500)),
        "a": np.array([0.3, -0.4, 20.0]) + rng.normal(size=(4, 500, 3)),
    }
    of_effect = lambda theta, z: jax.scipy.stats.t.logpdf(z, 3.0)
    given = {"log_prior": log_prior, "integrate": {"a": code}}
    posterior = lo.bayes.from_posterior(draws, unit_loss, data, effect_log_prior=of_effect, **given)
    z, mu = np.linspace(-60, 60, 60_001), posterior.draws[0, 0]
    each = stats.norm.logpdf(data["y"][:, None], z)
    for weights in (np.ones(12), 1.0 * (code < 2), 1.0 * (np.arange(12) < 3)):
        heights = [stats.t.logpdf(z, 3) + weights[code == g] @ each[code == g] for g in range(3)]
        true = sum(
            np.log(np.trapezoid(np.exp(height - height.max()), z)) + height.max()
            for height in heights
        )
        assert np.allclose(
            posterior.values(posterior.draws[:1], weights), 0.5 * (mu - 100) ** 2 - true, atol=1e-5
        )
    several = lambda theta, z: jnp.logaddexp(-0.5 * z**2, -0.5 * (z - 12) ** 2)
    with pytest.raises(ValueError, match="several modes or a very heavy tail"):
        lo.bayes.from_posterior(draws, unit_loss, data, effect_log_prior=several, **given)


def test_what_cannot_be_integrated_is_refused():
    with pytest.raises(ValueError, match="a unit depends on the number of another group"):
        of(groups=np.array([0, 0, 1, 2, 2]))
    with pytest.raises(ValueError, match="groups are 0 to 3; got 1 to 4"):
        of(groups=CODE + 1)
    with pytest.raises(ValueError, match="4 groups, one a unit; there are 5 units"):
        of(groups=CODE[1:])
    with pytest.raises(ValueError, match=r"one number a group; 'a' has the shape \(4, 2\)"):
        of(draws=DRAWS | {"a": np.stack([DRAWS["a"]] * 2, axis=2)})
    with pytest.raises(ValueError, match="got list"):
        lo.bayes.from_posterior(DRAWS, unit_loss, DATA, integrate=[0, 1])
    with pytest.raises(ValueError, match="no parameter whose draws could be weighed, but a"):
        lo.bayes.from_posterior(DRAWS, unit_loss, DATA, integrate={"a": CODE})
