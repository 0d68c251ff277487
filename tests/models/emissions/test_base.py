"""Emissions against SciPy's densities, direct sums, finite differences and their own draws."""

import functools
import re
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln
from scipy import stats

import leaveout as lo
from leaveout.models import emissions
from leaveout.models.emissions import (
    Autoregressive,
    Binomial,
    Categorical,
    EventCounts,
    Gaussian,
    NegativeBinomial,
    NeuralAutoregressive,
    Poisson,
    _base,
    autoregressive,
    gaussian,
)

rng = np.random.default_rng(0)
LENGTHS = np.array([70, 50])
T = LENGTHS.sum()
REAL = 100 + np.array([1.0, 5.0]) * (
    rng.standard_normal((T, 2)) + np.repeat([[-2.0], [2.0]], T // 2, axis=0)
)
WALK = np.array([1.0, 3.0]) * rng.standard_normal((T, 2)).cumsum(axis=0)
COUNTS = rng.poisson(rng.gamma(3.0, 2.0, (T, 2))).astype(float)
SEASON = np.arange(T) % 3
PEOPLE = 0.5 + rng.random(T)
PLACES = np.stack([np.sin(np.arange(T)), 3000 + 400 * rng.standard_normal(T)], axis=1)
A, B = np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([[1.0, -0.5], [-0.5, 4.0]])

THREE = np.stack([A, B, A + B])

CASES = {
    "gaussian, diagonal": (Gaussian(), REAL),
    "gaussian, one channel": (Gaussian(), REAL[:, :1]),
    "gaussian, full": (Gaussian("full"), REAL),
    "gaussian, spherical": (Gaussian("spherical"), REAL),
    "gaussian, tied": (Gaussian("tied"), REAL),
    "gaussian, number": (Gaussian(2.0), REAL),
    "gaussian, matrix": (Gaussian(A), REAL),
    "gaussian, matrices": (Gaussian([A, B, A + B]), REAL),
    "poisson": (Poisson(), COUNTS[:, :1]),
    "poisson, two channels": (Poisson(), COUNTS),
    "negative binomial": (NegativeBinomial(), COUNTS[:, :1]),
    "negative binomial, two channels": (NegativeBinomial(), COUNTS),
    "poisson, regressors": (Poisson(exposure=PEOPLE, covariates=PLACES), COUNTS[:, :1]),
    "poisson, two channels, covariates": (Poisson(covariates=PLACES), COUNTS),
    "negative binomial, two channels, regressors": (
        NegativeBinomial(exposure=PEOPLE, covariates=PLACES),
        COUNTS,
    ),
    "negative binomial, exposure": (NegativeBinomial(exposure=PEOPLE), COUNTS[:, :1]),
    "binomial": (Binomial(60), COUNTS[:, :1]),
    "binomial, two channels": (Binomial([40, 60]), COUNTS),
    "categorical": (Categorical(6), np.minimum(COUNTS[:, :1], 5)),
    "autoregressive, order 0": (Autoregressive(0, skip=2), WALK),
    "autoregressive": (Autoregressive(1), WALK),
    "autoregressive, full": (Autoregressive(2, "full"), WALK),
    "autoregressive, tied": (Autoregressive(2, "tied"), WALK),
    "autoregressive, diagonal": (Autoregressive(1, "diagonal", skip=3), WALK),
    "autoregressive, matrices": (Autoregressive(1, [A, B, A + B]), WALK),
    "neural autoregressive": (NeuralAutoregressive(3, 2, "spherical"), WALK),
    "event counts": (EventCounts(SEASON), COUNTS[:, :1]),
}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@functools.cache
def case(name, seed=0, missing=False):
    """The emission at the data's scale, its data, the steps with a density, and parameters to start
    from.
    """
    emission, x = CASES[name]
    if missing:
        x = x.copy()
        x[5], x[80, 0] = np.nan, np.nan
    emission = emission.with_data(x)
    observed = emission.has_density(x, LENGTHS)
    data = emission.prepare(x, LENGTHS)
    start = emission.initial(data, observed, emission.num_states or 3, seed)
    return emission, x, data, observed, {**start, **emission.fixed}


@jax.jit
def densities(emission, parameters, data):
    return emission.log_densities(parameters, data)


def unconstrained(emission, parameters):
    return {
        name: constraint.unconstrained(jnp.asarray(parameters[name]))
        for name, constraint in emission.free.items()
    }


def natural(emission, theta):
    return {
        **{name: constraint.natural(theta[name]) for name, constraint in emission.free.items()},
        **emission.fixed,
    }


def by_scipy(name, emission, x, parameters):
    """The log-densities of all steps in all states, from SciPy."""
    p = {key: np.asarray(value) for key, value in parameters.items()}
    family = name.split(",")[0]
    states = emission.num_states or 3
    channels = x.shape[1]

    def covariance(k):
        value = p["covariance"] if "covariance" in emission.shared else p["covariance"][k]
        return value if value.ndim == 2 else np.diag(value * np.ones(channels))

    def normal(mean, k):
        return stats.multivariate_normal(np.zeros(channels), covariance(k)).logpdf(x - mean)

    def lagged(lag):
        return np.concatenate([np.zeros((lag, channels)), x[:-lag]])

    def linear(k):
        steps = (lagged(m + 1) @ p["coefficients"][k, m].T for m in range(emission.lags))
        return sum(steps, np.zeros_like(x)) + p["bias"][k]

    def network(k):
        inner = (
            sum(lagged(m + 1) @ p["input_weights"][k, m].T for m in range(emission.lags))
            + p["input_bias"][k]
        )
        return np.tanh(inner) @ p["output_weights"][k].T + p["output_bias"][k]

    def expected(mean):
        """Mean counts of all steps, `[T, R]`."""
        linear = np.zeros((T, 1))
        if "coefficients" in p:
            linear = (PLACES - PLACES.mean(axis=0)) @ p["coefficients"].reshape(2, -1)
        at_risk = PEOPLE if "exposure" in name or "regressors" in name else np.ones(T)
        return at_risk[:, None] * np.exp(linear) * mean

    def negative_binomial(k):
        size = p["size"][k]
        return stats.nbinom(size, size / (size + expected(p["mean"][k]))).logpmf(x).sum(axis=1)

    def event(k):
        rate = p["rate"] * p["seasonal"][SEASON]
        return (
            np.log(convolved(x[:, 0], rate, p["excess_shape"], p["excess_rate"]))
            if k
            else stats.poisson(rate).logpmf(x[:, 0])
        )

    density = {
        "gaussian": lambda k: normal(p["mean"][k], k),
        "poisson": lambda k: stats.poisson(expected(p["rate"][k])).logpmf(x).sum(axis=1),
        "negative binomial": negative_binomial,
        "binomial": lambda k: (
            stats.binom(emission.trials, p["probability"][k]).logpmf(x).sum(axis=1)
        ),
        "categorical": lambda k: np.log(p["probability"][k][x[:, 0].astype(int)]),
        "autoregressive": lambda k: normal(linear(k), k),
        "neural autoregressive": lambda k: normal(network(k), k),
        "event counts": event,
    }[family]
    return np.stack([density(k) for k in range(states)], axis=1)


def convolved(x, rate, shape, b):
    """The density of a Poisson plus a negative binomial count, summed over the excess."""
    out = []
    for count, r in zip(x.astype(int), np.broadcast_to(rate, x.shape), strict=True):
        excess = np.arange(count + 1)
        out.append(
            np.sum(
                stats.poisson(r).pmf(count - excess) * stats.nbinom(shape, b / (1 + b)).pmf(excess)
            )
        )
    return np.array(out)


@pytest.mark.parametrize("name", CASES)
def test_densities_are_scipys(name):
    emission, x, data, observed, parameters = case(name)
    got = np.asarray(densities(emission, parameters, data))
    expected = np.where(observed[:, None], by_scipy(name, emission, x, parameters), 0.0)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
    one_by_one = jax.jit(emissions.AbstractEmission.log_densities)(emission, parameters, data)
    np.testing.assert_allclose(got, one_by_one, rtol=1e-9, atol=1e-9)


COUNTING = [
    name
    for name in CASES
    if name.split(",")[0] in ("poisson", "negative binomial", "binomial", "categorical")
    and not name.endswith(("regressors", "covariates", "exposure"))  # of so many steps only
]


@pytest.mark.parametrize("name", COUNTING)
def test_densities_of_counts_sum_to_one(name):
    emission, x, _, _, parameters = case(name)
    upper = (
        [6]
        if name == "categorical"
        else np.broadcast_to(emission.trials + 1, x.shape[1])
        if "bin" in name[:3]
        else None
    )
    upper = [200] * x.shape[1] if upper is None else upper
    grid = np.stack(np.meshgrid(*(np.arange(u, dtype=float) for u in upper)), -1).reshape(
        -1, x.shape[1]
    )
    data = emission.prepare(grid, np.array([len(grid)]))
    np.testing.assert_allclose(
        np.exp(densities(emission, parameters, data)).sum(axis=0), 1, rtol=1e-9
    )


@pytest.mark.parametrize(
    "emission",
    [Gaussian(), Autoregressive(2, "full"), NeuralAutoregressive(2, 1, "diagonal")],
    ids=lambda e: type(e).__name__,
)
def test_densities_of_numbers_integrate_to_one(emission):
    series = WALK[:, :1]
    lags = emission.reach
    start = emission.initial(
        emission.prepare(series, np.array([T])), emission.has_density(series, np.array([T])), 2, 0
    )
    grid = np.linspace(-150, 150, 20001)
    sequences = np.stack([np.full_like(grid, 2.0), np.full_like(grid, -3.0), grid])[2 - lags :].T
    x, lengths = sequences.reshape(-1, 1), np.full(len(grid), lags + 1)
    density = np.exp(
        emission.log_densities({**start, **emission.fixed}, emission.prepare(x, lengths))
    )
    last = density[emission.has_density(x, lengths)]
    np.testing.assert_allclose(np.trapezoid(last, grid, axis=0), 1, rtol=1e-8)


def test_events_sum_to_one_and_match_the_convolution():
    length = 640
    emission = EventCounts(np.arange(length) % 2)
    for rate, shape, b in [
        (15.0, 2.0, 0.1),
        (0.01, 0.3, 2.0),
        (200.0, 8.0, 0.05),
        (30.0, 0.05, 40.0),
        (2.0, 50.0, 9.0),
    ]:
        parameters = {
            "rate": jnp.asarray(rate),
            "seasonal": jnp.asarray([0.7, 1.3]),
            "excess_shape": jnp.asarray(shape),
            "excess_rate": jnp.asarray(b),
        }
        table = np.asarray(emission.by_season(parameters, length))
        for season, factor in enumerate((0.7, 1.3)):
            counts = np.arange(length)
            background, excess = (
                stats.poisson(rate * factor).pmf(counts),
                stats.nbinom(shape, b / (1 + b)).pmf(counts),
            )
            both = np.convolve(background, excess)[:length]
            usual = both > 1e-290
            np.testing.assert_allclose(
                table[season, :, 0], stats.poisson(rate * factor).logpmf(counts), rtol=1e-9
            )
            np.testing.assert_allclose(
                table[season, usual, 1], np.log(both[usual]), rtol=1e-9, atol=1e-9
            )
            if b >= 0.1:  # the tail of the others is longer than the table
                np.testing.assert_allclose(np.exp(table[season]).sum(axis=0), 1, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_coordinates_there_and_back(name):
    emission, _, _, _, parameters = case(name)
    theta = unconstrained(emission, parameters)
    back = natural(emission, theta)
    for key in emission.free:
        np.testing.assert_allclose(back[key], parameters[key], rtol=1e-10)
        moved = jax.vmap(emission.free[key].natural)(jnp.stack([theta[key], theta[key] + 0.3]))
        np.testing.assert_allclose(
            moved[1], emission.free[key].natural(theta[key] + 0.3), rtol=1e-12
        )
        np.testing.assert_allclose(
            emission.free[key].unconstrained(moved[1]), theta[key] + 0.3, rtol=1e-9, atol=1e-9
        )


ALIKE = {
    "gaussian, one channel",
    "gaussian, number",
    "gaussian, matrices",
    "poisson",
    "binomial",
    "autoregressive, matrices",
    "negative binomial",
    "negative binomial, exposure",
    "poisson, two channels, covariates",
    "gaussian, matrix",
    "autoregressive, tied",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.slow if name in ("event counts", "autoregressive, full") else ()
        )
        for name in CASES
        if name not in ALIKE
    ],
)
@pytest.mark.slow_for("gaussian, diagonal", "gaussian, full", "negative binomial, two channels")
def test_derivatives(name):
    """The gradient, and the second and third derivative along a line, by finite differences.

    And no LAPACK inside.
    """
    emission, _, data, observed, parameters = case(name, missing=True)
    assert not observed[5] and not observed[80]
    theta, shape = ravel_pytree(unconstrained(emission, parameters))
    weights = jnp.asarray(
        np.where(observed, 1.0, 0.0)[:, None]
        * np.random.default_rng(1).random((T, emission.num_states or 3))
    )

    def loss(v):
        p = natural(emission, shape(v))
        return -jnp.sum(weights * emission.log_densities(p, data)) - emission.log_prior(p)

    line = jnp.asarray(np.random.default_rng(2).standard_normal(theta.shape)) / np.sqrt(theta.size)
    slope = lambda f: lambda s: jax.jvp(f, (s,), (jnp.ones_like(s),))[1]
    along = lambda s: loss(theta + s * line)
    orders = [along, slope(along), slope(slope(along)), slope(slope(slope(along)))]
    value = jax.jit(lambda s: jnp.stack([f(s) for f in orders]))
    h, at = 2e-3, value(jnp.zeros(()))
    below, above = (value(-2 * h) - 8 * value(-h)), (8 * value(h) - value(2 * h))
    difference = (below + above) / (12 * h)
    np.testing.assert_allclose(
        difference[:3], at[1:], rtol=1e-6, atol=1e-7 * abs(np.asarray(at)).max()
    )
    gradient = jax.jit(jax.grad(loss))
    assert np.isfinite(gradient(theta)).all() and float(gradient(theta) @ line) == pytest.approx(
        float(at[1]), rel=1e-9
    )
    assert not re.search(
        "cholesky|triangular_solve|\\blu\\b|eigh", str(jax.make_jaxpr(jax.grad(loss))(theta))
    )


PRIORS = {
    "gaussian, diagonal": {"mean": lambda v, f: stats.norm(f.mean, f.sd).logpdf(v)},
    "gaussian, full": {
        "covariance": lambda v, f: [
            stats.invwishart(float(f.freedom), f.scale).logpdf(m) for m in v
        ]
    },
    "gaussian, spherical": {
        "covariance": lambda v, f: stats.invgamma(f.shape, scale=f.scale).logpdf(v)
    },
    "gaussian, one channel": {
        "covariance": lambda v, f: stats.invgamma(f.shape, scale=f.scale).logpdf(v)
    },
    "poisson, two channels": {
        "rate": lambda v, f: stats.gamma(f.shape, scale=1 / f.rate).logpdf(v)
    },
    "poisson, two channels, covariates": {
        "coefficients": lambda v, f: stats.norm(0, f.sd).logpdf(v)
    },
    "negative binomial": {"size": lambda v, f: stats.gamma(f.shape, scale=1 / f.rate).logpdf(v)},
    "binomial": {"probability": lambda v, f: stats.beta(f.a, f.b).logpdf(v)},
    "categorical": {
        "probability": lambda v, f: [
            stats.dirichlet(np.full(6, f.concentration)).logpdf(p) for p in v
        ]
    },
    "autoregressive": {
        "coefficients": lambda v, f: [
            stats.matrix_normal(
                np.eye(2), np.diag(f.sd[:, 0] ** 2) / f.sd[0, 0] ** 2, np.diag(f.sd[0] ** 2)
            ).logpdf(m[0])
            for m in v
        ],
        "bias": lambda v, f: stats.norm(0, f.sd).logpdf(v),
    },
}


@pytest.mark.parametrize("name", PRIORS)
def test_priors_are_scipys_up_to_a_constant(name):
    emission, _, _, _, first = case(name)
    second = case(name, seed=1)[-1]
    for key, density in PRIORS[name].items():
        prior = emission.prior[key]
        change = np.sum(density(second[key], prior)) - np.sum(density(first[key], prior))
        assert change == pytest.approx(
            np.sum(prior(second[key]) - prior(first[key])), rel=1e-9, abs=1e-9
        )
    assert float(emission.log_prior(first)) == pytest.approx(
        sum(np.sum(p(first[n])) for n, p in emission.prior.items())
    )
    kinds = {key: type(emission.prior[key]).__name__.removesuffix("Prior") for key in emission.free}
    assert all(f"{key} ~ {kind}(" in emission.prior_note for key, kind in kinds.items())


def test_priors_are_chosen_by_parameter():
    x = 7 * COUNTS[:, :1]
    assert float(Poisson(prior=None).with_data(x).log_prior({"rate": np.ones(3)})) == 0
    assert Poisson(prior=None).prior_note == "rate flat"
    given = Poisson(prior={"rate": (3, 0.5)}).with_data(x)
    assert given.prior_note == "rate ~ Gamma(3, 0.5)"
    assert Poisson().with_data(x).prior["rate"].rate == pytest.approx(1 / x.mean())
    half = NegativeBinomial(prior={"size": None}).with_data(x)
    assert "size flat" in half.prior_note and half.prior["mean"].rate == pytest.approx(1 / x.mean())
    paper = Autoregressive(2, prior={"coefficients": (1, 1), "bias": (0, 1)}).with_data(WALK)
    at_zero = {"bias": np.ones((3, 2)), "coefficients": np.zeros((3, 2, 2, 2))}
    assert float(paper.log_prior(at_zero)) == -0.5 * (6 + 6)


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_means(name):
    emission, x, data, _, parameters = case(name)
    step, state, many = 60, 1, 2000
    generator, own = np.random.default_rng(3), jax.tree.map(np.asarray, parameters)
    draws = np.stack([emission.draw(own, state, step, x[:step], generator) for _ in range(many)])
    mean = np.asarray(emission.means(parameters, data))[step, state]
    assert draws.shape == (many, x.shape[1])
    if name == "categorical":
        draws = (draws == np.arange(6)).astype(float)
    error = draws.std(axis=0) / np.sqrt(many)
    assert (abs(draws.mean(axis=0) - mean) < 4.5 * error + 1e-9).all()
    assert np.asarray(emission.means(parameters, data)).shape == (
        T,
        emission.num_states or 3,
        draws.shape[1],
    )


@pytest.mark.parametrize("name", CASES)
def test_starts_are_legal_and_reproducible(name):
    emission, _, data, observed, parameters = case(name, missing=True)
    again = case.__wrapped__(name, missing=True)[-1]
    other = case(name, seed=5, missing=True)[-1]
    for key in emission.free:
        assert np.isfinite(parameters[key]).all()
        np.testing.assert_array_equal(parameters[key], again[key])
    assert any(not np.array_equal(parameters[key], other[key]) for key in emission.free)
    assert np.isfinite(densities(emission, parameters, data)).all()
    few = emission.initial(data, observed & (np.cumsum(observed) < 3), emission.num_states or 3, 0)
    assert np.isfinite(densities(emission, {**few, **emission.fixed}, data)).all()


def test_the_order_of_states():
    emission, *_, parameters = case("poisson")
    order = np.asarray(emission.order(parameters))
    assert (np.diff(np.asarray(emission.permute(parameters, order)["rate"])) > 0).all()
    # states that a fixed parameter tells apart stay
    for name in ("event counts", "gaussian, matrices"):
        emission, *_, parameters = case(name)
        assert np.asarray(emission.order(parameters)).tolist() == list(
            range(emission.num_states or 3)
        )


def test_autoregressions_never_look_across_sequences_or_gaps():
    x = WALK.copy()
    x[20, 1] = np.nan
    emission = Autoregressive(2)
    dense = emission.has_density(x, LENGTHS)
    assert np.flatnonzero(~dense).tolist() == [0, 1, 20, 21, 22, 70, 71]
    assert emission.reach == 2 and Gaussian().reach == 0
    data = emission.prepare(x, LENGTHS)
    np.testing.assert_array_equal(data["past"][75], x[[74, 73]])
    assert not data["past"][[0, 1, 21, 22, 70, 71]].any() and np.isfinite(data["x"]).all()
    np.testing.assert_array_equal(data["past"][20], x[[19, 18]])  # it can be predicted
    assert np.flatnonzero(~Autoregressive(0, skip=2).has_density(x, LENGTHS)).tolist() == [
        0,
        1,
        20,
        70,
        71,
    ]


@pytest.mark.parametrize(
    "name",
    ["gaussian, full", "gaussian, tied", "categorical", "event counts", "autoregressive, full"],
)
def test_every_parameter_has_a_name(name):
    """AIC and BIC count them: of K probabilities K − 1, of a matrix its lower triangle."""
    emission, x = CASES[name]
    hmm = lo.HMM(x, emission, emission.num_states or 3, lengths=LENGTHS)
    assert len(hmm.parameters.names()) == hmm.num_params == len(set(hmm.parameters.names()))


def test_an_autoregression_of_the_papers_size_has_its_number_of_parameters():
    emission = Autoregressive(5)
    x = np.random.default_rng(0).standard_normal((300, 12))
    start = emission.initial(
        emission.prepare(x, np.array([300])), emission.has_density(x, np.array([300])), 16, 0
    )
    assert sum(start[name].size for name in emission.free) == 11712


KNOWN = {
    "order 2": lambda: Autoregressive(2, THREE),
    "order 0": lambda: Autoregressive(0),
    "neural": lambda: NeuralAutoregressive(2, 2, A),
}


@pytest.mark.parametrize("name", KNOWN)
def test_curvatures_of_autoregressions_are_those_of_their_densities(name, monkeypatch):
    monkeypatch.setattr(autoregressive, "STEPS_AT_A_TIME", 8)
    emission, x = KNOWN[name]().with_data(WALK), WALK[:20].copy()
    x[9, 1] = np.nan
    data = emission.prepare(x, np.array([20]))
    own = emission.initial(data, emission.has_density(x, np.array([20])), 3, 0)
    own = {name: value + 0.3 * rng.standard_normal(value.shape) for name, value in own.items()}
    expected = rng.uniform(0, 2, (20, 3))
    found = emission.curvature({**own, **emission.fixed}, data, expected)
    for k in range(3):
        of_one, unravel = ravel_pytree({name: jnp.asarray(value[k]) for name, value in own.items()})

        def total(v, k=k, unravel=unravel):
            at = {
                name: jnp.asarray(value).at[k].set(unravel(v)[name]) for name, value in own.items()
            }
            return -jnp.sum(expected * emission.log_densities({**at, **emission.fixed}, data))

        plain = jax.jit(jax.hessian(total))(of_one)
        np.testing.assert_allclose(found[k], plain, rtol=1e-10, atol=1e-10 * np.abs(plain).max())
    assert type(emission)(1, covariance="full").curvature({}, data, expected) is None


def test_inverses_by_sweeps():
    root = rng.standard_normal((4, 7, 7))
    matrices = root @ np.swapaxes(root, 1, 2) + 0.1 * np.eye(7)
    precision, log_det = gaussian.inverse(jnp.asarray(matrices))
    np.testing.assert_allclose(precision, np.linalg.inv(matrices), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrices)[1], rtol=1e-10)
    np.testing.assert_allclose(
        gaussian._sweeps(jnp.asarray(matrices))[1],
        np.linalg.cholesky(matrices),
        rtol=1e-8,
        atol=1e-10,
    )


@pytest.mark.parametrize(
    "prior",
    [
        gaussian.InverseWishart(4.0, A),
        _base.Normal([0.0, 1.0], 2.0),
        _base.DirichletPrior([1.0, 2.0]),
    ],
)
def test_priors_print_their_numbers(prior):
    assert str(prior) in (
        "InverseWishart(4, array of shape [2, 2])",
        "Normal([0, 1], 2)",
        "Dirichlet([1, 2])",
    )


def broken(x, value, where=(3, 0)):
    x = x.copy()
    x[where] = value
    return x


def prepare(emission, x, lengths=LENGTHS):
    return emission.with_data(x).prepare(x, lengths)


ONE = COUNTS[:, :1]
BAD = [
    (
        lambda: prepare(Poisson(), broken(ONE, -1.0)),
        r"Poisson: observations must be counts .* the first -1 at step 3",
    ),
    (
        lambda: prepare(NegativeBinomial(), broken(ONE, 0.5)),
        "NegativeBinomial: observations must be counts",
    ),
    (
        lambda: prepare(EventCounts(SEASON), broken(ONE, np.inf)),
        "EventCounts: observations must be counts",
    ),
    (
        lambda: prepare(Binomial(10), broken(np.minimum(ONE, 10), 11.0)),
        "at most the number of trials, 10; got 1 other",
    ),
    (
        lambda: prepare(Binomial([10, 5, 3]), COUNTS),
        "3 numbers of trials, but the data have 2 channels",
    ),
    (
        lambda: prepare(Categorical(5), broken(np.minimum(ONE, 4), 5.0)),
        "symbols 0, …, 4; got 1 other",
    ),
    (lambda: prepare(Categorical(5), COUNTS), "one channel; got 2"),
    (lambda: prepare(Gaussian(), broken(REAL, np.inf)), "Gaussian: observations must be finite"),
    (
        lambda: prepare(Autoregressive(1), broken(WALK, -np.inf)),
        "Autoregressive: observations must be finite",
    ),
    (lambda: prepare(EventCounts(SEASON[:-1]), ONE), "season has 119 steps, the data have 120"),
    (
        lambda: prepare(EventCounts(SEASON), np.where(SEASON == 1, 0.0, ONE[:, 0])[:, None]),
        "above zero was observed in season 1",
    ),
    (lambda: EventCounts(np.ones((3, 2), int)), "season must be integers, one a step"),
    (lambda: EventCounts([0.5, 1.0]), "season must be integers"),
    (lambda: EventCounts(SEASON, future=[7]), "future holds a season that the data do not have"),
    (
        lambda: EventCounts(SEASON).draw(case("event counts")[-1], 0, T, ONE, rng),
        "no season is known for step 120",
    ),
    (lambda: prepare(Autoregressive(60), WALK), "more than 60 steps; sequence 1 has 50"),
    (lambda: Autoregressive(-1), "order must be a whole number of 0 or more"),
    (lambda: Autoregressive(3, skip=2), "skip must be at least the order, 3"),
    (lambda: NeuralAutoregressive(0), "hidden must be a whole number of 1 or more"),
    (lambda: Gaussian([[1.0, 2.0], [2.0, 1.0]]), "must be symmetric, positive definite"),
    (lambda: Gaussian([[1.0, 0.5], [0.0, 1.0]]), "must be symmetric, positive definite"),
    (lambda: Gaussian(-1.0), "must be symmetric, positive definite"),
    (lambda: Gaussian([1.0, 2.0]), r"got shape \[2\]"),
    (lambda: Gaussian("diag"), "covariance must be one of diagonal, full, spherical, tied"),
    (lambda: prepare(Gaussian(np.eye(3)), REAL), "covariance is for 3 channels, the data have 2"),
    (lambda: prepare(Gaussian(), np.stack([REAL[:, 0], np.ones(T)], 1)), "channel 1 is constant"),
    (lambda: Categorical(1), "num_symbols must be a whole number of 2 or more"),
    (lambda: Binomial(0), "trials must be a positive integer"),
    (
        lambda: Poisson(prior={"mean": (1, 1)}),
        r"prior for \['mean'\], but the free parameters are \['rate'\]",
    ),
    (lambda: Poisson(prior={"rate": (-1, 1)}), "Gamma prior: shape must be positive and finite"),
    (lambda: Poisson(prior="flat"), 'prior must be "default", None'),
    (
        lambda: prepare(Poisson(exposure=PEOPLE[1:]), ONE),
        "exposure has 119 numbers, but the data have 120 steps",
    ),
    (
        lambda: prepare(NegativeBinomial(covariates=PLACES[1:]), ONE),
        "NegativeBinomial: covariates have 119 rows, but the data",
    ),
    (
        lambda: Poisson(exposure=PEOPLE, covariates=PLACES[1:]),
        "exposure has 120 numbers, but covariates have 119 rows",
    ),
    (lambda: Poisson(covariates=np.ones((T, 1))), "covariates must vary; column 0 does not"),
    (
        lambda: Poisson(covariates=np.where(PLACES > 0, PLACES, np.nan)),
        "covariates must be finite numbers",
    ),
    (lambda: Poisson(exposure=-PEOPLE), "exposure must be positive and finite"),
    (
        lambda: Poisson(covariates=PLACES).draw(case("poisson, regressors")[-1], 0, T, ONE, rng),
        "there are no covariates for step 120",
    ),
]


@pytest.mark.parametrize("make, message", BAD, ids=[message for _, message in BAD])
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_documented_example_of_ones_own():
    """The zero-inflated Poisson of the docstring is a density, and has what else an emission needs
    by default.
    """
    source = re.search(
        r"\n\n(    class ZeroInflated.*?)\n\n`prepare`", emissions.__doc__, re.DOTALL
    ).group(1)
    scope = {"np": np, "jnp": jnp, "gammaln": gammaln, **vars(emissions)}
    exec(textwrap.dedent(source), scope)
    emission = scope["ZeroInflatedPoisson"]()
    x = broken(np.arange(200.0)[:, None], np.nan)
    data = emission.prepare(x, np.array([200]))
    observed = emission.has_density(x, np.array([200]))
    parameters = {**emission.initial(data, observed, 3, 0), "rate": np.array([1.0, 20.0, 40.0])}
    density = np.exp(emission.log_densities(parameters, np.arange(200.0)[:, None]))
    np.testing.assert_allclose(density.sum(axis=0), 1, rtol=1e-9)
    np.testing.assert_allclose(density[0], 0.1 + 0.9 * np.exp(-parameters["rate"]), rtol=1e-12)
    assert np.isfinite(float(emission.log_prior(parameters))) and not observed[3] and data[3] == 0
    with pytest.raises(NotImplementedError, match=r"ZeroInflatedPoisson has no means\(\)"):
        emission.means(parameters, data)


def test_a_log_density_of_several_numbers_is_refused():
    class Wrong(lo.emissions.AbstractEmission):
        free = {"mean": lo.emissions.REAL}  # noqa: RUF012

        def log_density(self, parameters, datum):
            return -((datum - parameters["mean"]) ** 2)  # one for each channel

        def initial(self, data, observed, num_states, seed):
            return {"mean": np.arange(float(num_states))}

    with pytest.raises(
        ValueError,
        match=r"Wrong.log_density must return one number for each step.*got shape \(1,\)",
    ):
        lo.fit(lo.HMM(np.arange(12.0) % 3, Wrong(), 2))
