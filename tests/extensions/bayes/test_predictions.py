"""Predictive distributions of left-out units against closed forms.

A regression, a beta-binomial, counts of a rate.
"""

import pickle
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import leaveout as lo
from leaveout.extensions.bayes.predictions import (
    PosteriorPredictions,
    _passes,
    summarise_predictive,
)
from tests.extensions.bayes.test_elpd import (
    GROUP,
    counts,
    intercept_loss,
    intercept_prior,
    rate_loss,
    rate_prior,
    regression,
)
from tests.extensions.bayes.test_posterior import normal_draws, normal_loss, normal_prior

ROWS = lo.leave_one_out(30)


@pytest.mark.parametrize("outlier", [0.0, 8.0])
def test_normal_responses(outlier):
    """Mean, interval, PIT, CRPS and R² of a regression with variance one, whose outlier is weighed
    by moved draws.
    """
    posterior, _ = regression(outlier=outlier)
    X, y = np.asarray(posterior.objective.design), posterior.objective.y
    estimate = lo.bayes.elpd(posterior, ROWS)
    assert (estimate.proposal[0] == "mixture") == (outlier > 0)
    found = estimate.predict(level=0.9)
    own = [np.delete(np.arange(30), k) for k in range(30)]
    inverse = [np.linalg.inv(np.eye(2) + X[s].T @ X[s]) for s in own]
    mean = np.array([X[k] @ inverse[k] @ X[s].T @ y[s] for k, s in enumerate(own)])
    sd = np.sqrt([1 + X[k] @ inverse[k] @ X[k] for k in range(30)])
    z, table = (y - mean) / sd, found.table
    assert np.allclose(table["mean"], mean, atol=0.12) and (table["y"] == y).all()
    assert np.allclose(table["pit"], stats.norm.cdf(z), atol=0.03)
    assert np.allclose(table["low"], mean - 1.645 * sd, atol=0.2) and np.allclose(
        table["high"], mean + 1.645 * sd, atol=0.2
    )
    crps = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert np.allclose(table["crps"], crps, atol=0.1)
    scores = found.scores
    assert scores.loc["crps"].to_numpy() == pytest.approx(
        [crps.mean(), crps.std(ddof=1) / np.sqrt(30)], rel=0.03
    )
    assert scores.loc["coverage", "value"] == pytest.approx(np.mean(np.abs(z) <= 1.645), abs=0.07)
    # Bayesian bootstrap, as loo::loo_R2 does
    w = np.random.default_rng(0).dirichlet(np.ones(30), 4000)
    r2 = 1 - w @ (y - mean) ** 2 / (w @ y**2 - (w @ y) ** 2)
    assert scores.loc["r2", "value"] == pytest.approx(
        1 - np.sum((y - mean) ** 2) / np.sum((y - y.mean()) ** 2), abs=0.02
    )
    assert scores.loc["r2", "se"] == pytest.approx(r2.std(), rel=0.35)
    assert "30 of 30" in str(found) and "of 90% hold" in str(found)


def test_beta_binomial():
    """Zeros and ones of one chance with a flat prior.

    The chance of each left-out one, and Brier's score.
    """
    y = (np.arange(30) < 21).astype(float)
    chance = np.random.default_rng(0).beta(1 + y.sum(), 1 + 30 - y.sum(), (4, 500))
    loss = lambda theta, y: -y * jnp.log(theta["p"]) - (1 - y) * jnp.log1p(-theta["p"])
    posterior = lo.bayes.from_posterior({"p": chance}, loss, y, transforms={"p": "logit"})
    found = lo.bayes.elpd(posterior, ROWS).predict(
        lambda key, theta, y: jax.random.bernoulli(key, theta["p"])
    )
    p = (1 + y.sum() - y) / 31
    assert (
        np.allclose(found.table["mean"], p, atol=0.04)
        and "crps" not in found.table
        and "Brier" in str(found)
    )
    assert found.scores.loc["brier", "value"] == pytest.approx(np.mean((y - p) ** 2), abs=0.01)
    assert np.all(
        np.where(y == 0, found.table["pit"] < 1 - p + 0.05, found.table["pit"] > 1 - p - 0.05)
    )


def test_counts_of_a_rate_by_predictive_draws():
    """PIT, interval and CRPS of a Poisson-gamma model.

    Folds that weigh moved draws are not predicted, and said so.
    """
    y, rate, _ = counts(8000)
    y_rep = np.random.default_rng(1).poisson(np.broadcast_to(rate[..., None], (4, 2000, 25)))
    posterior = lo.bayes.from_posterior(
        {"rate": rate}, rate_loss, y, log_prior=rate_prior, transforms={"rate": "log"}
    )
    estimate = lo.bayes.elpd(posterior, lo.leave_one_out())
    found = estimate.predict(
        az.from_dict(posterior={"rate": rate}, posterior_predictive={"y": y_rep})
    )
    table, each = found.table, stats.nbinom(2 + y.sum() - y, 1 - 1 / (len(y) + 1))
    assert np.allclose(table["mean"], each.mean(), atol=0.12)
    assert np.all(table["pit"] > each.cdf(y - 1) - 0.03) and np.all(
        table["pit"] < each.cdf(y) + 0.03
    )
    assert np.all(np.abs(table["low"] - each.ppf(0.025)) <= 1) and np.all(
        np.abs(table["high"] - each.ppf(0.975)) <= 1
    )
    below = each.cdf(np.arange(60)[:, None])
    assert np.allclose(
        table["crps"], np.sum((below - (np.arange(60)[:, None] >= y)) ** 2, axis=0), atol=0.06
    )
    assert estimate.predict(pd.DataFrame(y_rep.reshape(8000, 25))).table.equals(found.table)
    estimate.folds[0] = estimate.folds[0]._replace(places=lambda: posterior.draws + 0.0)
    found = estimate.predict(y_rep)
    assert (
        "24 of 25" in str(found)
        and "1 are in folds" in str(found)
        and found.table["mean"].isna().tolist() == [True] + 24 * [False]
    )


@pytest.mark.parametrize(
    "loss", ["poisson", "negative_binomial", "gamma", "gaussian", "inverse_gaussian", "logistic"]
)
def test_models_draw_their_own_responses(loss):
    """Means and variances of drawn responses are those that the family states."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    mean = np.exp(0.3 * X[:, 0] + 1)
    y = rng.integers(0, 2, 40) if loss == "logistic" else rng.poisson(mean) + 1
    own = {
        "negative_binomial": lo.losses.NegativeBinomial(0.5),
        "gamma": lo.losses.Gamma(shape=3.0),
    }.get(loss, loss)
    model = (
        lo.Regression(X, y, loss)
        if loss == "gaussian"
        else lo.GLM(X, y, own, lo.penalties.Ridge(1.0))
    )
    fit = lo.fit(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # draws are nearly all at the mode
        posterior = lo.bayes.from_posterior(
            fit.vector + 1e-3 * rng.normal(size=(4000, len(fit.vector))), fit
        )
    assert posterior.simulate is not None
    drawn, fitted = (
        posterior.simulate(posterior.draws, np.arange(40), np.ones(40), rng),
        lo.predict(fit, X),
    )
    assert np.allclose(drawn.mean(0), fitted, rtol=0.12)
    variance = (
        np.exp(2 * fit.vector[-1]) if loss == "gaussian" else model.loss_function.variance(fitted)
    )
    assert np.allclose(drawn.var(0), variance, rtol=0.35)


def test_effects_are_drawn_given_what_is_seen_of_their_group():
    """Of 3, 1 and no rows of a group that are seen, against the Gaussian.

    Folds of other groups are drawn together.
    """
    rng = np.random.default_rng(3)
    y = 0.5 + rng.normal(size=8)[GROUP] + rng.normal(size=32)
    draws = {
        "mean": 0.5 + 1e-4 * rng.normal(size=4000),
        "spread": np.exp(1e-4 * rng.normal(size=4000)),
        "z": np.zeros((4000, 8)),
    }
    given = {
        "log_prior": intercept_prior,
        "transforms": {"spread": "log"},
        "integrate": {"z": GROUP},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # draws are made up
        posterior = lo.bayes.from_posterior(
            draws, intercept_loss, {"y": y, "group": GROUP}, **given
        )
    draw = posterior.simulate_by(
        lambda key, theta, row: theta["mean"] + theta["spread"] * theta["z"][row["group"]]
    )
    own = np.flatnonzero(GROUP == 0)
    for left in (own[:1], own[:3], own):
        weights = np.where(np.isin(np.arange(32), left), 0.0, 1.0)
        seen = np.setdiff1d(own, left)
        mean, sd = 0.5 + np.sum(y[seen] - 0.5) / (1 + len(seen)), (1 + len(seen)) ** -0.5
        drawn = draw(posterior.draws, left[:1], weights, rng)[:, 0]
        assert stats.kstest((drawn - mean) / sd, "norm").pvalue > 0.01
    plan, as_drawn = lo.leave_one_out(32), np.arange(32) != 5
    passes = _passes(posterior, plan, as_drawn)
    assert sorted(k for folds in passes for k in folds) == list(range(32)) and [5] in passes
    assert (
        all(len(set(GROUP[folds])) == len(folds) for folds in passes)
        and len(passes) == np.bincount(GROUP).max() + 1
    )


def test_summary_of_weighted_draws():
    """Equal draws, weights on few draws, and the plain sums of the definition."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 5, 60).astype(float), rng.dirichlet(np.ones(60))
    mean, low, high, pit, crps = summarise_predictive(x, w, 2.0, 0.8, 0.25)
    pairs = 0.5 * np.abs(x[:, None] - x) @ w @ w / (1 - w @ w)
    assert crps == pytest.approx(w @ np.abs(x - 2) - pairs) and mean == pytest.approx(w @ x)
    assert pit == pytest.approx(w[x < 2].sum() + 0.25 * w[x == 2].sum())
    assert (
        w[x < low].sum() < 0.1 <= w[x <= low].sum()
        and w[x < high].sum() < 0.9 <= w[x <= high].sum()
    )
    assert np.isnan(summarise_predictive(x, np.eye(60)[3], 2.0, 0.8, 0.25)[-1])
    assert summarise_predictive(np.ones(60), w, 1.0, 0.8, 0.25)[:4] == pytest.approx(
        (1, 1, 1, 0.25)
    )


@pytest.mark.parametrize(
    "shape, said",
    [((1, 1), "expected"), ((0.4, 0.4), "too sure"), ((4, 4), "too wide"), ((3, 1), "above")],
)
def test_words_on_the_pit(shape, said):
    pytest.importorskip("matplotlib").use("agg")
    pit = np.random.default_rng(1).beta(*shape, 200)
    columns = {name: np.ones(200) for name in ("y", "mean", "low", "high", "crps")} | {
        "pit": pit,
        "flagged": np.arange(200) < 3,
    }
    found = PosteriorPredictions(pd.DataFrame(columns), 0.95, lo.leave_one_out(200), "a model")
    assert said in dict(found._lines())[
        "PIT"
    ] and "197 of 200 left-out units; 3 are in folds that cannot be weighed" in str(found)
    assert len(found.plot().patches) > 20 and said in found.plot().get_title()
    assert (found.uniformity[0] < 0.05) == (said != "expected")


def test_predictive_draws_do_not_serve_effects_that_are_integrated_out(monkeypatch):
    posterior, _ = regression()
    folds = lo.bayes.elpd(posterior, lo.groups(np.arange(30) // 3))
    monkeypatch.setitem(vars(posterior), "blocks", np.arange(30) // 3)
    with pytest.raises(ValueError, match="have seen what is left out"):
        folds.predict(np.zeros((4000, 30)))


@pytest.mark.parametrize(
    "simulate, said",
    [
        (lambda key, theta, y: None, "must return one real number; got NoneType"),
        (lambda key, theta, y: "a", "must return one real number; got str"),
        (lambda key, theta, y: (theta[0], y), "must return one real number; got tuple"),
        (lambda key, theta, y: theta, r"must return one real number; got float64 of shape \(1,\)"),
        (lambda theta, y: 0.0, r"is called with 3 arguments; it takes \(theta, y\)"),
    ],
)
def test_functions_that_draw_no_number(simulate, said):
    y, draws = normal_draws()
    estimate = lo.bayes.elpd(
        lo.bayes.from_posterior(draws, normal_loss, y, log_prior=normal_prior), lo.leave_one_out()
    )
    with pytest.raises(TypeError, match=f"^predict: simulate, '<lambda>', {said}"):
        estimate.predict(simulate)


def test_wrong_calls():
    posterior, _ = regression()
    estimate = lo.bayes.elpd(posterior, ROWS)
    with pytest.raises(ValueError, match="level must lie"):
        estimate.predict(level=95)
    with pytest.raises(TypeError, match="has no datum for a function simulate"):
        estimate.predict(lambda key, theta, datum: 0.0)
    with pytest.raises(ValueError, match=r"\[4000, 30\], draws by units"):
        estimate.predict(np.zeros((4000, 29)))
    with pytest.raises(ValueError, match="one a unit; got shape"):
        estimate.predict(response=np.zeros(29))
    with pytest.raises(ValueError, match="1 that are NaN"):
        estimate.predict(response=np.where(np.arange(30) == 3, np.nan, 0.0))
    turned = pd.Series(posterior.response)[::-1]  # of labels in another order
    assert np.array_equal(estimate.predict(response=turned).table["y"], posterior.response)
    # responses that do not scatter
    assert np.isnan(estimate.predict(response=np.ones(30)).scores.loc["r2"]).all()
    with pytest.raises(ValueError, match="predict: rng must be"):
        estimate.predict(rng=-1)
    with pytest.raises(ValueError, match="got arrays a, b"):
        estimate.predict({"a": np.zeros((4000, 30)), "b": np.zeros((4000, 30))})
    again = pickle.loads(pickle.dumps(estimate))
    assert again.elpd == estimate.elpd
    with pytest.raises(ValueError, match="no posterior"):
        again.predict()
