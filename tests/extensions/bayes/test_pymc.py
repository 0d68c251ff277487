"""Models of PyMC: their densities against closed forms and PyMC's own, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

import leaveout as lo
from leaveout.objectives.objective import unflatten

jax.devices()  # before PyMC's module, which asks for a hundred, and sets JAX to 64 bits
pm = pytest.importorskip("pymc", reason="PyMC is not installed")
pytest.importorskip("pymc.sampling.jax")
# PyTensor's, of BLAS, and draws that are not those of the density
pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(0)
GROUP = np.repeat(np.arange(5), 4)
Y = RNG.normal(size=20)
DRAWS = {
    "mu": RNG.normal(0, 0.3, 400),
    "tau": RNG.gamma(4, 0.2, 400),
    "z": RNG.normal(size=(400, 5)),
}


def hierarchy(centred=False):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", mu, tau, shape=5) if centred else pm.Normal("z", 0, 1, shape=5)
        pm.Deterministic("double", 2 * mu)
        pm.Potential("favour", -0.1 * mu**2)
        pm.Normal("y", z[GROUP] if centred else mu + tau * z[GROUP], 1, observed=Y)
    return model


def log_prior(mu, tau):
    return stats.norm.logpdf(mu, 0, 2) + stats.halfnorm.logpdf(tau) + np.log(tau) - 0.1 * mu**2


def test_densities_of_units_and_priors():
    posterior = lo.bayes.from_pymc(hierarchy(), DRAWS)
    mu, tau, z = (DRAWS[name] for name in ("mu", "tau", "z"))
    each = stats.norm.logpdf(Y, mu[:, None] + tau[:, None] * z[:, GROUP])
    assert np.allclose(-posterior.unit_losses, each, rtol=1e-12)
    weights = np.where(np.arange(20) < 3, 0.0, 1.0)
    truth = -(each @ weights) - log_prior(mu, tau) - stats.norm.logpdf(z).sum(1)
    assert np.allclose(posterior.values(posterior.draws, weights), truth, rtol=1e-12)
    named = posterior.named(posterior.draws)
    assert set(named) == set(DRAWS) and all(np.allclose(named[name], DRAWS[name]) for name in DRAWS)


def test_transforms_are_the_models():
    """An interval with a free end, an ordered vector and a simplex.

    F is PyMC's own log density, by its other back end.
    """
    with pm.Model() as model:
        top = pm.HalfCauchy("top", 1)
        at = pm.Uniform("at", 0, top)
        steps = pm.Normal(
            "steps",
            0,
            1,
            shape=3,
            transform=pm.distributions.transforms.ordered,
            initval=[-1, 0, 1],
        )
        share = pm.Dirichlet("share", np.ones(3))
        pm.Normal("y", at + steps[0] * share[1], 1, observed=Y)
        pm.Normal("other", share[2], 1, observed=[0.3, 0.4])
    rng = np.random.default_rng(0)
    top = rng.gamma(4, 1, 200)
    draws = {"top": top, "at": top * rng.beta(2, 2, 200), "share": rng.dirichlet(np.ones(3), 200)}
    draws["steps"] = np.sort(rng.normal(size=(200, 3)))
    with pytest.raises(ValueError, match="observed=; of y, other"):
        lo.bayes.from_pymc(model, draws)
    posterior, own = lo.bayes.from_pymc(model, draws, observed="y"), model.compile_logp()
    for u, value in zip(posterior.draws[:5], posterior.value, strict=False):
        values = {
            model.rvs_to_values[model[name]].name: leaf
            for name, leaf in unflatten(u, posterior.like).items()
        }
        assert np.isclose(value, -own(values), rtol=1e-12)
    named = posterior.named(posterior.draws)
    assert all(np.allclose(named[name], draws[name]) for name in draws)


@pytest.mark.parametrize("centred", [False, True])
def test_integrated_effects(centred):
    mu, tau = DRAWS["mu"], DRAWS["tau"]
    given = DRAWS | {"z": mu[:, None] + tau[:, None] * DRAWS["z"]} if centred else DRAWS
    found = lo.bayes.from_pymc(hierarchy(centred), given, integrate={"z": GROUP})
    cov = np.eye(20) + tau[:, None, None] ** 2 * (GROUP[:, None] == GROUP)
    truth = np.array(
        [
            stats.multivariate_normal.logpdf(Y, np.full(20, m), c)
            for m, c in zip(mu, cov, strict=True)
        ]
    )
    assert np.allclose(
        found.values(found.draws, np.ones(20)), -truth - log_prior(mu, tau), rtol=1e-9
    )
    named = found.named(found.draws)
    assert set(named) == {"mu", "tau"} and np.allclose(named["tau"], tau)


def test_a_positive_effect_brings_its_jacobian():
    """The integral of a Gamma frailty has a closed form."""
    y, rng = np.random.default_rng(1).exponential(size=20), np.random.default_rng(2)
    draws = {"a": rng.gamma(20, 0.1, 300), "f": rng.gamma(2, 0.5, (300, 5))}
    with pm.Model() as frailty:
        a = pm.Gamma("a", 4, 2)
        pm.Exponential("y", pm.Gamma("f", a, a, shape=5)[GROUP], observed=y)
    found = lo.bayes.from_pymc(frailty, draws, integrate={"f": GROUP})
    a, total = draws["a"][:, None], np.bincount(GROUP, y)
    each = gammaln(a + 4) - gammaln(a) + a * np.log(a) - (a + 4) * np.log(a + total)
    prior = stats.gamma.logpdf(draws["a"], 4, scale=0.5) + np.log(draws["a"])
    assert np.allclose(found.values(found.draws, np.ones(20)), -each.sum(1) - prior, atol=1e-4)


def test_parameters_outside_their_domain_have_no_density():
    """A probability that is linear in x may leave [0, 1].

    There the density is zero, although log p exists for y = 1.
    """
    x, y = np.linspace(0, 1, 20), np.ones(20)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        pm.Bernoulli("y", 0.5 + slope * x, observed=y)
    posterior = lo.bayes.from_pymc(model, {"slope": np.random.default_rng(0).uniform(0, 0.5, 300)})
    assert (
        np.isfinite(posterior.value).all()
        and posterior.values(np.array([[0.6]]), np.ones(20)) == np.inf
    )


def test_refusals():
    model = hierarchy()
    with pytest.raises(TypeError, match=r"must be a pymc\.Model"):
        lo.bayes.from_pymc(DRAWS, model)
    with pytest.raises(ValueError, match=r"draws of tau are missing; the model has mu, tau, z"):
        lo.bayes.from_pymc(model, {name: DRAWS[name] for name in ("mu", "z")})
    with pytest.raises(
        ValueError, match=r"draws of 'z' have the shape \(4,\); the model's is \(5,\)"
    ):
        lo.bayes.from_pymc(model, DRAWS | {"z": DRAWS["z"][:, :4]})
    with pytest.raises(ValueError, match="'favour' is no observed variable; the model has y"):
        lo.bayes.from_pymc(model, DRAWS, observed="favour")
    with pytest.raises(ValueError, match="'z' cannot be integrated out: a unit depends on"):
        lo.bayes.from_pymc(model, DRAWS, integrate={"z": GROUP[::-1]})
    with pm.Model() as discrete:
        pm.Normal("y", pm.Bernoulli("k", 0.5), 1, observed=Y)
    with pytest.raises(ValueError, match="k is discrete"):
        lo.bayes.from_pymc(discrete, DRAWS)
    with pm.Model() as missing:
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.append(Y, np.nan))
    with pytest.raises(ValueError, match="partly missing"):
        lo.bayes.from_pymc(missing, DRAWS)
    with pm.Model() as scaled:
        pm.Normal("y", pm.Normal("mu"), 1, observed=Y, total_size=100)
    with pytest.raises(ValueError, match="total_size"):
        lo.bayes.from_pymc(scaled, DRAWS)
    with pm.Model() as walk:
        pm.GaussianRandomWalk("y", pm.Normal("mu"), 1.0, init_dist=pm.Normal.dist(0, 1), observed=Y)
    with pytest.raises(ValueError, match="one density together"):
        lo.bayes.from_pymc(walk, DRAWS)
    with pm.Model() as walk:
        pm.Normal(
            "y", pm.Normal("mu") + pm.GaussianRandomWalk("z", 1.0, shape=5)[GROUP], 1, observed=Y
        )
    with pytest.raises(ValueError, match="numbers are not independent given the others"):
        lo.bayes.from_pymc(walk, DRAWS, integrate={"z": GROUP})


def test_responses_are_drawn_with_new_effects():
    found = lo.bayes.from_pymc(hierarchy(), DRAWS, integrate={"z": GROUP})
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


def test_elpd_of_a_conjugate_mean():
    """The elpd of every unit and of groups, in closed form."""
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mean"), 1, observed=Y)
    draws = {"mean": Y.sum() / 21 + rng.normal(size=(4, 1000)) / np.sqrt(21)}
    found = lo.bayes.elpd(lo.bayes.from_pymc(model, draws), lo.leave_one_out())
    mean = (Y.sum() - Y) / 20
    assert np.allclose(
        -found.losses, stats.norm.logpdf(Y, mean, np.sqrt(1 + 1 / 20)), atol=0.01
    ) and not len(found.flagged())
    own = lo.bayes.from_posterior(
        draws,
        lambda theta, y: 0.5 * (y - theta["mean"]) ** 2 + 0.5 * jnp.log(2 * jnp.pi),
        Y,
        log_prior=lambda theta: -0.5 * theta["mean"] ** 2,
    )
    assert np.allclose(found.losses, lo.bayes.elpd(own, lo.leave_one_out()).losses, rtol=1e-10)
