"""Models of NumPyro: their densities against closed forms, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

import leaveout as lo

numpyro = pytest.importorskip("numpyro", reason="NumPyro is not installed")
dist = numpyro.distributions
pytestmark = pytest.mark.filterwarnings("ignore:.*draws are not those of the density")

RNG = np.random.default_rng(0)
GROUP = np.repeat(np.arange(5), 4)
Y = RNG.normal(size=20)
DRAWS = {
    "mu": RNG.normal(0, 0.3, 400),
    "tau": RNG.gamma(4, 0.2, 400),
    "z": RNG.normal(size=(400, 5)),
}


def hierarchy(y, centred=False):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", 5):
        z = numpyro.sample("z", dist.Normal(mu, tau) if centred else dist.Normal(0, 1))
    numpyro.factor("favour", -0.1 * mu**2)
    numpyro.sample("y", dist.Normal(z[GROUP] if centred else mu + tau * z[GROUP], 1), obs=y)


def log_prior(mu, tau):
    return stats.norm.logpdf(mu, 0, 2) + stats.halfnorm.logpdf(tau) + np.log(tau) - 0.1 * mu**2


def test_densities_of_units_and_priors():
    posterior = lo.bayes.from_numpyro(hierarchy, DRAWS, Y)
    mu, tau, z = (DRAWS[name] for name in ("mu", "tau", "z"))
    each = stats.norm.logpdf(Y, mu[:, None] + tau[:, None] * z[:, GROUP])
    assert np.allclose(-posterior.unit_losses, each, rtol=1e-12)
    weights = np.where(np.arange(20) < 3, 0.0, 1.0)
    truth = -(each @ weights) - log_prior(mu, tau) - stats.norm.logpdf(z).sum(1)
    assert np.allclose(posterior.values(posterior.draws, weights), truth, rtol=1e-12)
    assert posterior.names[:2] == ["mu", "tau"] and np.allclose(posterior.draws[:, 1], np.log(tau))
    named = posterior.named(posterior.draws)
    assert all(np.allclose(named[name], DRAWS[name]) for name in DRAWS)


def test_a_sampler_in_single_precision_with_arrays_of_numpy():
    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)

    x = np.linspace(-1, 1, 20)
    jax.clear_caches()  # before and after, as JAX confuses programs of both precisions
    with jax.enable_x64(False):
        mcmc = numpyro.infer.MCMC(
            numpyro.infer.NUTS(model), num_warmup=100, num_samples=200, progress_bar=False
        )
        mcmc.run(jax.random.PRNGKey(0), x, Y)
        posterior = lo.bayes.from_numpyro(model, mcmc)
        assert len(lo.bayes.elpd(posterior, lo.leave_one_out()).flagged()) == 0
        mcmc.run(jax.random.PRNGKey(1), x, Y)
    jax.clear_caches()
    assert np.allclose(-posterior.unit_losses, stats.norm.logpdf(Y, posterior.draws * x), rtol=1e-6)


def by_hand(theta, datum):
    mean = theta["mu"] + theta["tau"] * theta["z"][datum["g"]]
    return 0.5 * (datum["y"] - mean) ** 2 + 0.5 * jnp.log(2 * jnp.pi)


def prior_by_hand(theta):
    logs = (
        jax.scipy.stats.norm.logpdf(theta["mu"], 0, 2)
        + jax.scipy.stats.norm.logpdf(theta["tau"])
        + jnp.log(2)
    )
    return logs - 0.1 * theta["mu"] ** 2


@pytest.mark.parametrize("centred", [False, True])
def test_integrated_effects_and_gradients(centred):
    own = lo.bayes.from_posterior(
        DRAWS,
        by_hand,
        {"y": Y, "g": GROUP},
        log_prior=prior_by_hand,
        transforms={"tau": "log"},
        integrate={"z": GROUP},
    )
    given = (
        DRAWS | {"z": DRAWS["mu"][:, None] + DRAWS["tau"][:, None] * DRAWS["z"]}
        if centred
        else DRAWS
    )
    found = lo.bayes.from_numpyro(hierarchy, given, Y, centred=centred, integrate={"z": GROUP})
    mu, tau = DRAWS["mu"], DRAWS["tau"]
    cov = np.eye(20) + tau[:, None, None] ** 2 * (GROUP[:, None] == GROUP)
    truth = np.array(
        [
            stats.multivariate_normal.logpdf(Y, np.full(20, m), c)
            for m, c in zip(mu, cov, strict=True)
        ]
    )
    ones = np.ones(20)
    value, slope = found.looks(found.draws, ones)
    assert np.allclose(value, -truth - log_prior(mu, tau), rtol=1e-9)
    assert np.allclose(slope, own.looks(own.draws, ones)[1], rtol=1e-6, atol=1e-8)
    named = found.named(found.draws)
    assert set(named) == {"mu", "tau"} and np.allclose(named["tau"], tau)


def test_responses_are_drawn_with_new_effects():
    found = lo.bayes.from_numpyro(hierarchy, DRAWS, Y, integrate={"z": GROUP})
    assert np.array_equal(found.response, Y)
    at = np.tile(found.draws, (20, 1))
    apart = (
        found.simulate(at, np.array([0, 1, 4]), np.zeros(20), np.random.default_rng(0)) - at[:, :1]
    )
    cov = np.eye(3) + np.mean(DRAWS["tau"] ** 2) * np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    assert np.allclose(apart.mean(0), 0, atol=0.06) and np.allclose(np.cov(apart.T), cov, atol=0.08)
    seen = np.arange(1, 4)  # the rest of the first row's group
    tau2, given = found.named(at)["tau"] ** 2, np.where(np.arange(20) == 0, 0.0, 1.0)
    apart = (
        found.simulate(at, np.array([0, 1, 4]), given, np.random.default_rng(0))[:, 0] - at[:, 0]
    )
    share = tau2 / (1 + len(seen) * tau2)
    z = (apart - share * np.sum(Y[seen] - at[:, :1], axis=1)) / np.sqrt(1 + share)
    assert stats.kstest(z, "norm").pvalue > 0.01


def test_a_positive_effect_brings_its_jacobian():
    """The integral of a Gamma frailty has a closed form."""
    y = np.random.default_rng(1).exponential(size=20)
    rng = np.random.default_rng(2)
    draws = {"a": rng.gamma(20, 0.1, 300), "f": rng.gamma(2, 0.5, (300, 5))}

    def frailty(y):
        a = numpyro.sample("a", dist.Gamma(4, 2))
        f = numpyro.sample("f", dist.Gamma(a, a).expand([5]))
        numpyro.sample("y", dist.Exponential(f[GROUP]), obs=y)

    found = lo.bayes.from_numpyro(frailty, draws, y, integrate={"f": GROUP})
    a, total = draws["a"][:, None], np.bincount(GROUP, y)
    each = gammaln(a + 4) - gammaln(a) + a * np.log(a) - (a + 4) * np.log(a + total)
    prior = stats.gamma.logpdf(draws["a"], 4, scale=0.5) + np.log(draws["a"])
    assert np.allclose(found.values(found.draws, np.ones(20)), -each.sum(1) - prior, atol=1e-4)


def test_refusals():
    with pytest.raises(ValueError, match=r"draws of z are missing; the model has mu, tau, z"):
        lo.bayes.from_numpyro(hierarchy, {name: DRAWS[name] for name in ("mu", "tau")}, Y)
    with pytest.raises(
        ValueError, match=r"draws of 'z' have the shape \(4,\); the model's is \(5,\)"
    ):
        lo.bayes.from_numpyro(hierarchy, DRAWS | {"z": DRAWS["z"][:, :4]}, Y)
    with pytest.raises(ValueError, match="'x' is no observed variable; the model has y"):
        lo.bayes.from_numpyro(hierarchy, DRAWS, Y, observed="x")
    with pytest.raises(ValueError, match=r"one of mu, tau, z, as .* got w"):
        lo.bayes.from_numpyro(hierarchy, DRAWS, Y, integrate={"w": GROUP})
    with pytest.raises(ValueError, match="group"):
        lo.bayes.from_numpyro(hierarchy, DRAWS, Y, integrate={"z": GROUP[::-1]})

    def sampled_rows(y):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        with numpyro.plate("rows", 40, subsample_size=20):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    with pytest.raises(ValueError, match="no units: they are scaled"):
        lo.bayes.from_numpyro(sampled_rows, DRAWS, Y)

    def one_vector(y):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        numpyro.sample("y", dist.MultivariateNormal(mu * jnp.ones(20), jnp.eye(20)), obs=y)

    with pytest.raises(ValueError, match="one density together"):
        lo.bayes.from_numpyro(one_vector, DRAWS, Y)

    def discrete(y):
        k = numpyro.sample("k", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(k, 1), obs=y)

    with pytest.raises(ValueError, match="discrete latent sites"):
        lo.bayes.from_numpyro(discrete, DRAWS, Y)

    def nested(y):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([5]))
        mu = numpyro.sample("mu", dist.Normal(z[0], 1))
        numpyro.sample("y", dist.Normal(mu + z[GROUP], 1), obs=y)

    with pytest.raises(ValueError, match="or another latent variable depends on it"):
        lo.bayes.from_numpyro(nested, DRAWS, Y, integrate={"z": GROUP})
