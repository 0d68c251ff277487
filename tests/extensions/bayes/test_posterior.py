"""What `from_posterior` takes and refuses."""

import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

import leaveout as lo


def normal_loss(theta, y):
    return 0.5 * (y - theta[0]) ** 2 + 0.5 * jnp.log(2 * jnp.pi)


def normal_prior(theta):
    return -0.5 * theta[0] ** 2


def normal_draws(shape=(2000, 1), seed=0, n=10):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n)
    return y, y.sum() / (n + 1) + rng.normal(size=shape) / np.sqrt(n + 1)


def test_shapes_of_draws():
    y, draws = normal_draws()
    one = lo.bayes.from_posterior(draws, normal_loss, y, log_prior=normal_prior)
    other = lo.bayes.from_posterior(
        draws.reshape(4, 500, 1), normal_loss, y, log_prior=normal_prior
    )
    assert one.chains == 1 and other.chains == 4 and np.array_equal(one.draws, other.draws)
    assert "2000 in 4 chains" in str(other)


def named_loss(theta, y):
    return 0.5 * (y - theta["mean"]) ** 2 + 0.5 * jnp.log(2 * jnp.pi)


def named_prior(theta):
    return -0.5 * theta["mean"] ** 2


def test_draws_by_name_and_of_arviz():
    y, draws = normal_draws()
    flat, by_chain = (
        {"mean": draws[:, 0]},
        {"mean": draws[:, 0].reshape(4, 500), "other": np.zeros((4, 500, 3))},
    )
    data = az.from_dict(posterior=by_chain)
    found = [
        lo.bayes.from_posterior(each, named_loss, y, log_prior=named_prior)
        for each in (flat, by_chain, data, data.posterior)
    ]
    assert [each.chains for each in found] == [1, 4, 4, 4] and all(
        each.names == ["mean"] for each in found
    )
    assert all(np.array_equal(each.draws, found[0].draws) for each in found)
    frame = pd.DataFrame({"value": y}, index=[f"unit {k}" for k in range(10)][::-1])
    of_frame = lo.bayes.from_posterior(
        pd.DataFrame(flat), lambda theta, row: named_loss(theta, row["value"]), frame
    )
    assert of_frame.names == ["mean"] and np.array_equal(of_frame.unit_losses, found[0].unit_losses)
    array = lo.bayes.from_posterior(
        pd.DataFrame(draws),
        lambda theta, y: normal_loss(theta, y[0]),
        pd.DataFrame(y),
        log_prior=normal_prior,
    )  # columns have no names
    assert array.names == ["theta[0]"]
    with pytest.raises(KeyError, match="values"):  # of the data, not of the draws
        lo.bayes.from_posterior(flat, lambda theta, row: named_loss(theta, row["values"]), frame)
    with pytest.raises(ValueError, match=r"the parts of draws\['mean'\] must have one length"):
        lo.bayes.from_posterior({"mean": [draws[:500, 0], draws[:400, 0]]}, named_loss, y)
    with pytest.raises(ValueError, match="all draws of 'mean' are equal"):
        lo.bayes.from_posterior(
            {"mean": np.full(4000, 0.1)}, named_loss, y, transforms={"mean": "log"}
        )
    with pytest.raises(
        ValueError, match="reads the parameter 'mean', which the draws lack; they have mu"
    ):
        lo.bayes.from_posterior({"mu": draws[:, 0]}, named_loss, y)
    with pytest.raises(ValueError, match="one number of draws"):
        lo.bayes.from_posterior({"mean": draws[:, 0], "sd": draws[:5, 0]}, named_loss, y)


def test_refusals():
    y, draws = normal_draws()
    with pytest.raises(ValueError, match=r"\[chains, draws, params\]"):
        lo.bayes.from_posterior(draws[:, 0], normal_loss, y)
    with pytest.raises(ValueError, match="50 draws are too few"):
        lo.bayes.from_posterior(draws[:50], normal_loss, y)
    with pytest.raises(ValueError, match="1 values that are NaN"):
        lo.bayes.from_posterior(
            np.where(np.arange(2000)[:, None] == 7, np.nan, draws), normal_loss, y
        )
    with pytest.raises(TypeError, match="needs data="):
        lo.bayes.from_posterior(draws, normal_loss)
    with pytest.raises(TypeError, match="must be a function"):
        lo.bayes.from_posterior(draws, "normal", y)
    with pytest.raises(ValueError, match="all draws of"):
        lo.bayes.from_posterior(np.ones((2000, 1)), normal_loss, y)
    with pytest.raises(ValueError, match="transforms are identity, log"):
        lo.bayes.from_posterior(draws, normal_loss, y, transforms={"mean": "exp"})
    with pytest.raises(
        ValueError, match="transforms name 0; parameters of one array have none: give draws by name"
    ):
        lo.bayes.from_posterior(draws, normal_loss, y, transforms={0: "log"})
    with pytest.raises(ValueError, match="transforms name 'sd'; the parameters are mean"):
        lo.bayes.from_posterior({"mean": draws[:, 0]}, named_loss, y, transforms={"sd": "log"})
    with pytest.raises(ValueError, match="values are positive"):
        lo.bayes.from_posterior({"mean": draws[:, 0]}, named_loss, y, transforms={"mean": "log"})
    with pytest.raises(ValueError, match="NaN or infinite"):
        lo.bayes.from_posterior(draws, normal_loss, np.append(y, np.nan))
    with pytest.raises(ValueError, match="falls where draws are many"):
        lo.bayes.from_posterior(draws, lambda theta, y: -normal_loss(theta, y), y)
    with pytest.raises(ValueError, match="density is zero"):
        lo.bayes.from_posterior(
            draws, normal_loss, y, log_prior=lambda theta: jnp.where(theta[0] > 0, 0.0, -jnp.inf)
        )


@pytest.mark.parametrize(
    "given, said",
    [
        (
            {"log_density": lambda theta, y: None},
            "unit_loss, '<lambda>', must return one real number; got NoneType",
        ),
        (
            {"log_density": lambda theta, y: "a"},
            "unit_loss, '<lambda>', must return one real number; got str",
        ),
        (
            {"log_density": lambda theta, y: (theta[0], y)},
            "unit_loss, '<lambda>', must return one real number; got tuple",
        ),
        (
            {"log_density": lambda theta, y: theta - y},
            r"unit_loss, '<lambda>', must .*; got float64 of shape \(1,\)",
        ),
        (
            {"log_density": lambda theta: 0.0},
            r"unit_loss, '<lambda>', is called with 2 arguments; it takes \(theta\)",
        ),
        (
            {"log_prior": lambda theta: -(theta**2)},
            r"log_prior, '<lambda>', must .*; got float64 of shape \(1,\)",
        ),
        (
            {"log_prior": lambda theta, y: 0.0},
            r"log_prior, '<lambda>', is called with 1 arguments; it takes \(theta, y\)",
        ),
        ({"log_prior": 1.0}, "log_prior must be a function; got float"),
        (
            {"effect_log_prior": lambda theta, z: 0.0},
            "effect_log_prior is that of effects which integrate= names",
        ),
        (
            {"transforms": ["log"]},
            r"transforms are given by the names of parameters, .*; got \['log'\]",
        ),
    ],
)
def test_functions_of_another_form(given, said):
    y, draws = normal_draws()
    with pytest.raises(TypeError, match=f"^from_posterior: {said}"):
        lo.bayes.from_posterior(draws, **({"log_density": normal_loss, "data": y} | given))


@pytest.mark.parametrize(
    "draws, loss, data, said",
    [
        (
            {"b": np.ones((500, 4))},
            lambda theta, x: theta["b"] @ x,
            np.ones((9, 3)),
            r"one draw, b \(4,\): .*as 500 in 1 chains",
        ),
        (
            np.ones((500, 4)),
            lambda theta, x: theta["b"],
            np.ones(9),
            r"fails at one draw, theta \(4,\): ",
        ),
        (
            np.ones((500, 4)),
            lambda theta, x: theta[0],
            np.array(["a", "b"]),
            "values that are no numbers",
        ),
        (
            xr.Dataset({"b": ("sample", np.ones(500))}),
            lambda theta, x: theta["b"],
            np.ones(9),
            "dimensions chain and draw; got sa",
        ),
    ],
)
def test_draws_and_data_of_another_shape_or_kind(draws, loss, data, said):
    with pytest.raises(ValueError, match=f"^from_posterior: .*{said}"):
        lo.bayes.from_posterior(draws, loss, data)


def test_draws_of_another_density_warn():
    y, draws = normal_draws()
    with pytest.warns(UserWarning, match="not those of the density"):
        lo.bayes.from_posterior(
            draws, normal_loss, y, log_prior=lambda theta: -50.0 * (theta[0] - 1) ** 2
        )


def test_models():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = lo.GLM(X, rng.poisson(np.exp(X[:, 0])), "poisson", lo.penalties.Ridge(1.0))
    fit = lo.fit(model)
    draws = fit.quadratic.at(rng.normal(size=(1000, 3)))
    one = lo.bayes.from_posterior(draws, model)
    other = lo.bayes.from_posterior({"coef": draws[:, :2], "intercept": draws[:, 2]}, fit)
    assert (
        np.array_equal(one.draws, other.draws)
        and one.names == ["x0", "x1", "intercept"]
        and other.mode is fit
    )
    assert np.allclose(one.mode.vector, fit.vector, atol=1e-6)
    weights = np.ones(40)
    weights[3:9] = 0
    change = one.values(draws, weights) - one.value  # losses leave one by one
    assert np.allclose(change, -one.unit_losses[:, 3:9].sum(1))
    with pytest.raises(ValueError, match=r"draws have the shape \(2,\); the model's is \(3,\)"):
        lo.bayes.from_posterior(draws[:, :2], model)
    with pytest.raises(
        ValueError, match="draws of coef, intercept are missing; the model has coef, intercept"
    ):
        lo.bayes.from_posterior({"beta": draws}, model)
    with pytest.raises(TypeError, match="log_prior goes with a function"):
        lo.bayes.from_posterior(draws, model, log_prior=normal_prior)
    with pytest.raises(TypeError, match="effect_log_prior goes with a function"):
        lo.bayes.from_posterior(draws, model, effect_log_prior=lambda theta, z: 0.0)
    with pytest.raises(ValueError, match="weights must be whole numbers"):
        lo.bayes.from_posterior(draws, lo.GLM(X, X[:, 0], "squared", sample_weight=np.arange(40.0)))
    with pytest.raises(ValueError, match="no −log density"):
        lo.bayes.from_posterior(draws, lo.GLM(X, X[:, 0], "huber"))


def test_trials_and_rows_that_stand_for_several():
    rng = np.random.default_rng(0)
    x, trials = rng.normal(size=(12, 1)), rng.integers(1, 9, 12)
    hits = rng.binomial(trials, 0.4)
    fit = lo.fit(lo.GLM(x, hits / trials, "logistic", lo.penalties.Ridge(1.0), trials=trials))
    draws = fit.quadratic.at(rng.normal(size=(1000, 2)))
    posterior = lo.bayes.from_posterior(draws, fit)
    p = 1 / (1 + np.exp(-draws @ np.r_[x.T, np.ones((1, 12))]))
    assert np.allclose(
        -posterior.unit_losses, stats.binom.logpmf(hits, trials, p)
    ) and "trials" in str(posterior)
    weights = np.where(np.arange(12) < 4, 0.0, 1.0)
    assert np.allclose(
        posterior.values(draws, weights) - posterior.value, -posterior.unit_losses[:, :4].sum(1)
    )

    count, y = rng.integers(1, 4, 12), rng.normal(size=12)
    once = lo.GLM(x, y, "squared", lo.penalties.Ridge(1.0), sample_weight=count)
    rows = lo.GLM(
        np.repeat(x, count, axis=0), np.repeat(y, count), "squared", lo.penalties.Ridge(1.0)
    )
    draws = lo.fit(rows).quadratic.at(rng.normal(size=(1000, 2)))
    found = lo.bayes.elpd(lo.bayes.from_posterior(draws, once), lo.leave_one_out())
    truth = lo.bayes.elpd(
        lo.bayes.from_posterior(draws, rows), lo.groups(np.repeat(np.arange(12), count))
    )
    assert np.allclose(found.losses, truth.losses, rtol=1e-8)
    with pytest.raises(ValueError, match="class_weight"):
        lo.bayes.from_posterior(
            draws,
            lo.GLM(x, (y > 0) * 1.0, "logistic", lo.penalties.Ridge(1.0), class_weight="balanced"),
        )


def test_a_second_data_set_compiles_nothing():
    found = []
    for seed in (0, 1):
        y, draws = normal_draws(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(lo.bayes.from_posterior(draws, normal_loss, y, log_prior=normal_prior))
    assert found[0].objective.densities is found[1].objective.densities


def test_some_of_the_draws_compile_as_many_others():
    """A program for each number of places would fill the memory of a long session."""
    y, draws = normal_draws()
    posterior, compiled = lo.bayes.from_posterior(draws, normal_loss, y, log_prior=normal_prior), []
    value = posterior.values(posterior.draws[:513], np.ones(10))
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name)
    )
    for count in (700, 1000):
        found = posterior.values(posterior.draws[:count], np.ones(10))
        assert len(found) == count and np.array_equal(found[:513], value)
    assert not [name for name in compiled if "compile" in name]
