"""elpd against closed forms: normal mean, linear regression, counts of a rate, random intercepts.

And against ArviZ.
"""

import os
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from scipy import integrate, stats
from scipy.special import logsumexp
from sklearn.model_selection import GroupKFold

import leaveout as lo
from leaveout.extensions.bayes import fold_estimator, importance


def regression(n=30, p=2, seed=0, outlier=0.0):
    """Draws of a regression with variance one and prior N(0, I), in four chains, and log p(y_o |
    y_s) in closed form.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    X[0] *= 1 + outlier / 2
    y = X @ rng.normal(size=p) + rng.normal(size=n)
    y[0] += outlier
    cov = np.linalg.inv(np.eye(p) + X.T @ X)
    draws = cov @ X.T @ y + rng.normal(size=(4, 1000, p)) @ np.linalg.cholesky(cov).T
    model = lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0), intercept=False)

    def truth(held, seen):
        own = np.linalg.inv(np.eye(p) + X[seen].T @ X[seen])
        mean = X[held] @ own @ X[seen].T @ y[seen]
        return stats.multivariate_normal(
            mean, X[held] @ own @ X[held].T + np.eye(len(held))
        ).logpdf(y[held])

    return lo.bayes.from_posterior(draws, model), truth


PLANS = {
    "rows": lo.leave_one_out(30),
    "folds": lo.kfold(30, 5, rng=0),
    "neighbours": lo.blocks(30, 3, buffer=2),
    "future": lo.leave_future_out(30, 15, 3),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("outlier", [0.0, 8.0])
def test_linear_regression(plan, outlier):
    posterior, truth = regression(outlier=outlier)
    found = lo.bayes.elpd(posterior, plan)
    true = []
    for k in range(plan.num_refits):
        part = plan.refit == k
        seen = np.setdiff1d(np.arange(30), plan.index[part])
        true.append(truth(plan.index[part & plan.held], seen))
    each = -found.losses[np.isfinite(found.losses)]
    assert not len(found.flagged()) and found.sampling_error < 0.15
    assert np.all(np.abs(each - true) < 6 * found.error + 0.02)
    assert abs(found.elpd - np.sum(true)) < 4 * found.sampling_error
    if outlier and plan is PLANS["rows"]:  # the moved draws of a Gaussian are those of the refit
        assert (
            found.raw_k[0] > 0.6
            and found.proposal[0] == "mixture"
            and abs(each[0] - true[0]) < 0.01
        )


def test_uneven_weights_are_joined_by_moved_draws():
    posterior, _ = regression()
    found = lo.bayes.elpd(posterior, PLANS["rows"])
    spread = posterior.unit_losses.std(0)
    assert (found.raw_k[spread > 0.31] < 0.2).any() and set(found.proposal[spread > 0.31]) == {
        "mixture"
    }
    assert "draws" in found.proposal and found.pareto_k.max() < 0.2


@pytest.mark.slow
def test_stated_errors_are_those_made():
    z = []
    for seed in range(200):
        posterior, truth = regression(n=20, p=3, seed=seed)
        found = lo.bayes.elpd(posterior, lo.leave_one_out())
        true = sum(truth(np.array([k]), np.delete(np.arange(20), k)) for k in range(20))
        z.append((found.elpd - true) / found.sampling_error)
    assert 0.91 < np.mean(np.abs(z) < 1.96) < 0.99 and abs(np.mean(z)) < 0.25


def test_each_unit_of_a_fold():
    posterior, truth = regression(outlier=8.0)
    plan = PLANS["folds"]
    found = lo.bayes.elpd(posterior, plan, score="pointwise")
    for k in range(plan.num_refits):
        held = plan.index[plan.refit == k]
        seen = np.setdiff1d(np.arange(30), held)
        own = [truth(held[[j]], seen) for j in range(len(held))]
        assert np.allclose(-found.losses[plan.refit == k], own, atol=0.06)
    assert not found.joint and found.per_unit().shape == (30,)


def counts(rate_draws=4000, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.poisson(3.0, 25)
    y[0] = 14
    rate = rng.gamma(2.0 + y.sum(), 1 / (1.0 + len(y)), (4, rate_draws // 4))
    true = [
        stats.nbinom.logpmf(y[i], 2 + y.sum() - y[i], 1 - 1 / (len(y) + 1)) for i in range(len(y))
    ]
    return y, rate, np.array(true)


def rate_loss(theta, y):
    return theta["rate"] - y * jnp.log(theta["rate"]) + gammaln(y + 1.0)


def rate_prior(theta):
    return jnp.log(theta["rate"]) - theta["rate"]  # Gamma(2, 1)


def test_rate_of_counts_and_arviz():
    y, rate, true = counts()
    data = az.from_dict(posterior={"rate": rate, "unused": rate[..., None] * np.ones(3)})
    posterior = lo.bayes.from_posterior(
        data, rate_loss, y, log_prior=rate_prior, transforms={"rate": "log"}
    )
    found = lo.bayes.elpd(posterior, lo.leave_one_out())
    assert abs(found.elpd - true.sum()) < 4 * found.sampling_error
    assert np.all(np.abs(-found.losses - true) < 5 * found.error + 1e-6)
    log_likelihood = -posterior.unit_losses.reshape(4, 1000, 25)
    other = az.loo(
        az.from_dict(posterior={"rate": rate}, log_likelihood={"y": log_likelihood}), pointwise=True
    )
    assert abs(other.elpd_loo - found.elpd) < 3 * found.sampling_error
    assert np.allclose(other.pareto_k, found.raw_k, atol=0.1)
    ours = found.to_arviz()
    assert ours["elpd_loo"] == pytest.approx(found.elpd) and ours["se"] == pytest.approx(
        found.elpd_se
    )
    assert ours["p_loo"] == pytest.approx(other.p_loo, abs=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' own, of ArviZ
        table = az.compare({"ours": ours, "theirs": other})
    assert set(table.index) == {"ours", "theirs"}
    assert list(found.table().columns)[:3] == ["refit", "unit", "elpd"] and "0 of 25" in str(found)


def test_beside_fits():
    posterior, _ = regression()
    found = lo.bayes.elpd(posterior, PLANS["rows"])
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = X @ rng.normal(size=2) + rng.normal(size=30)
    cv = lo.cross_validate(lo.fit(lo.Regression(X[:, :1], y, "gaussian")), PLANS["rows"])
    with pytest.warns(UserWarning, match="independent units"):
        table = lo.compare({"posterior": found, "fit": cv})
    assert (
        table.index[0] == "posterior"
        and np.isclose(table["pseudo_bma"].sum(), 1)
        and table["p_worse"]["fit"] > 0.5
    )


GROUP = np.repeat(np.arange(8), 4)


def intercept_loss(theta, row):
    return 0.5 * (
        row["y"] - theta["mean"] - theta["spread"] * theta["z"][row["group"]]
    ) ** 2 + 0.5 * jnp.log(2 * jnp.pi)


def intercept_prior(theta):
    return (
        -0.5 * theta["mean"] ** 2
        - 0.5 * theta["spread"] ** 2
        + 0.5 * jnp.log(2 / jnp.pi)
        - 0.5 * jnp.log(2 * jnp.pi)
    )


@pytest.mark.parametrize(
    "plan, outlier",
    [
        pytest.param(lo.groups(GROUP), 0.0, id="groups"),
        pytest.param(lo.groups(GROUP), 4.0, id="an odd group", marks=pytest.mark.slow),
        pytest.param(lo.kfold(32, 16, rng=1), 4.0, id="parts of groups", marks=pytest.mark.slow),
    ],
)
def test_groups_with_their_effects_integrated_out(plan, outlier):
    """Random intercepts: draws of (mean, spread) from a grid, and the marginal density of all
    rows.
    """
    rng = np.random.default_rng(3)
    y = 0.5 + rng.normal(size=8)[GROUP] + rng.normal(size=32)
    y[GROUP == 0] += outlier
    means, spreads = np.linspace(-3, 4, 141), np.linspace(0.02, 6, 150)

    def density(rows):  # log of the joint density of rows on the grid
        out = stats.norm.logpdf(means)[:, None] + stats.halfnorm.logpdf(spreads)[None]
        for g in np.unique(GROUP[rows]):
            own = rows[GROUP[rows] == g]
            r, v, m = y[own] - means[:, None], 1 + len(own) * spreads**2, len(own)
            square = (r**2).sum(1)[:, None] - spreads**2 / v * (r.sum(1) ** 2)[:, None]
            out = out - 0.5 * (square + np.log(v) + m * np.log(2 * np.pi))
        return out

    def log_z(rows):
        own = density(rows)
        return own.max() + np.log(
            integrate.trapezoid(integrate.trapezoid(np.exp(own - own.max()), spreads), means)
        )

    table = np.exp(density(np.arange(32)) - density(np.arange(32)).max())
    at = rng.choice(table.size, 4000, p=(table / table.sum()).ravel())
    draws = {
        "mean": means[at // 150] + rng.uniform(-0.025, 0.025, 4000),
        "spread": spreads[at % 150] + rng.uniform(-0.02, 0.02, 4000),
        "z": np.zeros((4000, 8)),
    }
    keep = draws["spread"] > 0
    draws = {name: each[keep] for name, each in draws.items()}
    posterior = lo.bayes.from_posterior(
        draws,
        intercept_loss,
        {"y": y, "group": GROUP},
        log_prior=intercept_prior,
        transforms={"spread": "log"},
        integrate={"z": GROUP},
    )
    assert posterior.names == ["mean", "spread"]
    found = lo.bayes.elpd(posterior, plan)
    rows = [
        np.setdiff1d(np.arange(32), plan.index[plan.refit == k]) for k in range(plan.num_refits)
    ]
    true = np.array([log_z(np.arange(32)) - log_z(some) for some in rows])
    assert np.all(np.abs(-found.losses - true) < 5 * found.error + 0.01)
    assert abs(found.elpd - true.sum()) < 4 * found.sampling_error + 0.02


def test_sampled_effects_of_groups_that_leave():
    """Intercepts of groups, y = m + tau z_g + 0.35 noise.

    K of less than 0.7 hides errors of more than one nat.
    """
    rng, group, spread = (
        np.random.default_rng(5),
        np.repeat(np.arange(8), 6),
        np.exp(np.linspace(-4.0, 2.0, 300)),
    )
    y = rng.standard_t(3, 8)[group] + 0.35 * rng.normal(size=48)
    Z = np.column_stack([np.ones(48), np.eye(8)[group]])

    def log_p(rows):  # log of the density of rows and tau on a grid of log tau
        each = [Z[rows] * np.r_[1.0, np.full(8, t)] for t in spread]
        own = [
            stats.multivariate_normal.logpdf(y[rows], cov=X @ X.T + 0.35**2 * np.eye(len(rows)))
            for X in each
        ]
        return np.array(own) + stats.halfnorm.logpdf(spread) + np.log(spread)

    at = rng.choice(300, 2000, p=np.exp(log_p(np.arange(48)) - logsumexp(log_p(np.arange(48)))))
    tau, drawn = spread[at] * np.exp(0.02 * rng.uniform(-0.5, 0.5, 2000)), np.empty((2000, 9))
    for k, t in enumerate(tau):
        X = Z * np.r_[1.0, np.full(8, t)] / 0.35
        precision = np.eye(9) + X.T @ X
        root = np.linalg.cholesky(precision)
        drawn[k] = np.linalg.solve(precision, X.T @ y / 0.35) + np.linalg.solve(
            root.T, rng.normal(size=9)
        )
    posterior = lo.bayes.from_posterior(
        {"m": drawn[:, 0], "z": drawn[:, 1:], "tau": tau},
        lambda theta, row: (
            -jax.scipy.stats.norm.logpdf(
                row["y"], theta["m"] + theta["tau"] * theta["z"][row["g"]], 0.35
            )
        ),
        {"y": y, "g": group},
        log_prior=lambda theta: (
            -0.5 * (theta["m"] ** 2 + jnp.sum(theta["z"] ** 2) + theta["tau"] ** 2)
        ),
        transforms={"tau": "log"},
    )
    found = lo.bayes.elpd(posterior, lo.groups(group))
    total = logsumexp(log_p(np.arange(48)))
    true = np.array([total - logsumexp(log_p(np.flatnonzero(group != g))) for g in range(8)])
    bad = found.result != 0
    assert np.all(np.abs(-found.losses - true)[~bad] < 4 * found.error[~bad]) and bad.sum() == 4
    folds = fold_estimator.FoldEstimator(posterior, lo.groups(group), False).estimate().results
    error = np.abs([fold.ratio for fold in folds] - true)
    worst = np.argmax(error)
    assert (
        error[worst] > 0.9 and found.pareto_k[worst] < 0.5 and found.gap[worst] < 0.1 and bad[worst]
    )
    assert "if groups have effects, integrate them out" in str(found)
    # the elpd of a fold that cannot be weighed does not exist: sums are of the others, and the
    # first line says so
    assert (
        np.isnan(found.losses[bad]).all()
        and abs(found.elpd - true[~bad].sum()) < 4 * found.sampling_error
    )
    lines = dict(found._lines())
    assert lines["elpd"].startswith("not available: 4 of 8 folds cannot be weighed; integrate=…")
    assert f"{found.elpd:.6g}" in lines["of the others"] and "of 4 folds" in lines["of the others"]


def test_a_density_without_a_mode():
    """Centred effects: F falls without end at spread zero, so that the Gaussian of the draws takes
    the mode's place.
    """
    rng = np.random.default_rng(0)
    y = np.array([1.0, -0.6, 0.2, 0.9, -1.1, 1.5])
    grid = np.linspace(1e-3, 15, 4000)
    log_p = stats.norm.logpdf(y[:, None], 0, np.sqrt(1 + grid**2)).sum(0) + stats.halfnorm.logpdf(
        grid, scale=3.0
    )
    p = np.exp(log_p - log_p.max())
    spread = rng.choice(grid, 4000, p=p / p.sum())
    shrink = spread**2 / (1 + spread**2)
    effect = shrink[:, None] * y + np.sqrt(shrink)[:, None] * rng.normal(size=(4000, 6))

    def loss(theta, row):
        return 0.5 * (row["y"] - theta["effect"][row["k"]]) ** 2 + 0.5 * jnp.log(2 * jnp.pi)

    def prior(theta):
        of_effects = jnp.sum(
            -0.5 * (theta["effect"] / theta["spread"]) ** 2 - jnp.log(theta["spread"])
        )
        return of_effects - 0.5 * (theta["spread"] / 3.0) ** 2

    given = {"effect": effect, "spread": spread}
    posterior = lo.bayes.from_posterior(
        given, loss, {"y": y, "k": np.arange(6)}, log_prior=prior, transforms={"spread": "log"}
    )
    assert posterior.mode is None
    found = lo.bayes.elpd(posterior, lo.leave_one_out())
    good = found.result == lo.RESULTS.successful
    for k in np.flatnonzero(good):
        other = np.delete(y, k)
        q = stats.norm.logpdf(other[:, None], 0, np.sqrt(1 + grid**2)).sum(
            0
        ) + stats.halfnorm.logpdf(grid, scale=3.0)
        true = np.log(
            integrate.trapezoid(np.exp(log_p), grid) / integrate.trapezoid(np.exp(q), grid)
        )
        assert abs(-found.losses[k] - true) < 0.15
    assert good.sum() >= 4


def test_bad_folds_are_flagged_and_sampled_anew(monkeypatch):
    monkeypatch.setattr(importance, "MAX_K", -100.0)  # no proposal will do
    posterior, truth = regression()
    plan, calls = PLANS["folds"], []
    assert len(lo.bayes.elpd(posterior, plan).flagged()) == 5 and "heavy_weights" in str(
        lo.bayes.elpd(posterior, plan).table()
    )
    X, y = np.asarray(posterior.objective.design), posterior.objective.y

    def sampler(seen):
        calls.append(seen)
        cov = np.linalg.inv(np.eye(2) + X[seen].T @ X[seen])
        return (
            cov @ X[seen].T @ y[seen]
            + np.random.default_rng(len(calls)).normal(size=(2000, 2)) @ np.linalg.cholesky(cov).T
        )

    found = lo.bayes.elpd(posterior, plan, refit=sampler)
    assert len(calls) == 5 and set(found.proposal) == {"refit"} and not len(found.flagged())
    true = [truth(plan.index[plan.refit == k], calls[k]) for k in range(5)]
    assert np.allclose(-found.losses, true, atol=0.08)
    for wrong, said in (
        ({"b": np.zeros(200)}, "draws of coef, intercept are missing"),
        (np.zeros((200, 3)), r"draws have the shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=f"^elpd: refit: {said}"):
            lo.bayes.elpd(posterior, plan, refit=lambda seen, wrong=wrong: wrong)
    with pytest.raises(
        TypeError, match=r"^elpd: refit, '<lambda>', is called with 1 arguments; it takes \(\)"
    ):
        lo.bayes.elpd(posterior, plan, refit=lambda: 0.0)


def test_two_estimates_that_differ_are_not_accepted():
    """A bridge far from the mode can have a small k̂, and is found by the other estimate alone."""

    def fold(k, gap, effective=100.0, share=1.0):
        known = -3.0 - gap, -3.0, None, k, 0.7, np.zeros(0), effective, share, 3.0, "mixture", None
        return fold_estimator.FoldResult(*known)

    assert (
        fold(0.6, 0.05).accepted and not fold(0.6, 0.45).accepted and not fold(0.6, -0.45).accepted
    )
    assert importance.max_k(400) == 1 - 1 / np.log10(400) and importance.max_k(4000) == 0.7
    assert (
        not fold(0.8, 0.0).accepted
        and not fold(np.nan, 0.0).accepted
        and not fold(0.6, 0.0, 49.0).accepted
    )
    assert not fold(0.6, 0.0, share=0.4).accepted and fold(0.3, 0.0, share=0.4).accepted


def test_smoothing_is_that_of_arviz():
    rng = np.random.default_rng(0)
    for spread in (0.01, 1.0, 5.0):
        log_weights = spread * rng.standard_t(4, size=(3, 1000)) + 100.0
        log_weights[0, :300] = -np.inf
        theirs, k = map(np.asarray, az.psislw(log_weights.copy(), 0.8))
        smoothed = importance.smooth(log_weights, 0.8)
        assert np.allclose(smoothed.k, k, atol=1e-12)
        ours = smoothed.log_weights - logsumexp(smoothed.log_weights, axis=1, keepdims=True)
        assert np.allclose(np.exp(ours), np.exp(theirs), rtol=1e-10, atol=0)
    assert importance.smooth(np.zeros((1, 50)), 1.0).k[0] == -np.inf
    assert importance.smooth(np.full((1, 50), -np.inf), 1.0).k[0] == np.inf


def test_errors_of_pointwise_scores_are_those_of_each_unit():
    """Folds that leave much out.

    Units scored one by one are off by more than their joint density is.
    """
    plan = lo.kfold(30, 2, rng=0, num_repeats=2)
    off, printed, z = [], [], []
    for seed in range(8):
        posterior, truth = regression(outlier=2.0)
        draws = posterior.draws
        noise = (
            np.random.default_rng(seed).normal(size=draws.shape)
            @ np.linalg.cholesky(np.cov(draws.T)).T
        )
        posterior = lo.bayes.from_posterior(
            (draws.mean(0) + noise).reshape(4, 1000, -1), posterior.objective
        )
        found = lo.bayes.elpd(posterior, plan, score="pointwise")
        parts = [plan.index[plan.refit == k] for k in range(4)]
        seen = [np.setdiff1d(np.arange(30), part) for part in parts]
        true = np.concatenate(
            [
                [truth(part[i : i + 1], s) for i in range(15)]
                for part, s in zip(parts, seen, strict=True)
            ]
        )
        off.append(found.elpd - true.sum() / 2)
        printed.append(found.sampling_error)
        z.append((-found.losses - true) / found.loss_error)
    assert (
        0.4 < np.std(off) / np.mean(printed) < 2
        and 0.6 < np.sqrt(np.mean(np.square(z))) < 1.5
        and np.abs(z).max() < 5
    )


def test_weights_whose_largest_are_equal_to_rounding():
    """As those of a mixture are where one of its parts is all there is.

    A Pareto tail of rounding errors is no number.
    """
    steps = np.repeat([-6, -5, -4, -3, -2, 0], [72, 8, 50, 1, 8, 1])
    log_weights = np.r_[steps * 2.0**-47, np.linspace(-11, -1, 1860)]
    log_weights = np.stack([log_weights, np.random.default_rng(0).normal(size=2000)])
    found = importance.smooth(log_weights, 0.9663)
    assert np.isfinite(found.log_weights).all() and np.isfinite(found.k[1])
    assert np.allclose(found.log_weights[0], log_weights[0], atol=1e-6)


def gamma_loss(theta, y):
    return -jax.scipy.stats.gamma.logpdf(y, jnp.exp(theta[0]), scale=jnp.exp(theta[1]))


def test_the_mixture_is_taken_whatever_its_k():
    """The draws miss a part of what half of the data say, and their k̂ of 0.59 is the smaller one
    by chance.
    """
    rng = np.random.default_rng(1)
    y = rng.gamma(2.0, 1.0, 24)
    a, b = (each.ravel() for each in np.meshgrid(np.linspace(-2, 4, 301), np.linspace(-5, 4, 301)))
    each = stats.gamma.logpdf(y[:, None], np.exp(a), scale=np.exp(b))
    log_p = each.sum(0) - 0.125 * (a**2 + b**2)
    p = np.exp(log_p - log_p.max())
    at = rng.choice(len(a), 1000, p=p / p.sum())
    draws = np.column_stack(
        [a[at] + rng.uniform(-0.01, 0.01, 1000), b[at] + rng.uniform(-0.015, 0.015, 1000)]
    )
    plan = lo.groups(rng.permutation(24) % 2)
    found = lo.bayes.elpd(
        lo.bayes.from_posterior(
            draws, gamma_loss, y, log_prior=lambda theta: -0.125 * jnp.sum(theta**2)
        ),
        plan,
    )
    true = [
        logsumexp(log_p) - logsumexp(log_p - each[plan.index[plan.refit == k]].sum(0))
        for k in range(2)
    ]
    assert found.raw_k[1] < 0.7 and found.proposal[1] == "mixture"
    assert (
        not len(found.flagged())
        and np.all(np.abs(-found.losses - true) < 2 * found.error)
        and found.error.max() < 0.02
    )


def cauchy_loss(theta, y):
    return jnp.log(jnp.pi) + jnp.log1p((y - theta[0]) ** 2)


def test_two_modes():
    """A t at one of them misses the other, which the draws have."""
    rng = np.random.default_rng(0)
    y = np.r_[rng.normal(size=6) * 0.7 - 4, rng.normal(size=6) * 0.7 + 4]
    grid = np.linspace(-40, 40, 40001)
    each, prior = stats.cauchy.logpdf(y[:, None], grid), stats.norm.logpdf(grid, 0, 10)
    total = np.cumsum(np.exp(each.sum(0) + prior - (each.sum(0) + prior).max()))
    draws = np.interp(rng.uniform(size=2000), total / total[-1], grid)[:, None]
    posterior = lo.bayes.from_posterior(
        draws, cauchy_loss, y, log_prior=lambda theta: -0.5 * (theta[0] / 10) ** 2
    )
    plan = lo.kfold(12, 3, rng=0)
    found = lo.bayes.elpd(posterior, plan)
    of_fold = [plan.refit == k for k in range(3)]
    integral = lambda rows: logsumexp(each[rows].sum(0) + prior)
    true = np.array(
        [
            integral(np.arange(12)) - integral(np.setdiff1d(np.arange(12), plan.index[own]))
            for own in of_fold
        ]
    )
    good = found.result == lo.RESULTS.successful
    assert np.all(np.abs(-found.losses - true)[good] < 5 * found.error[good]) and list(good) == [
        True,
        False,
        True,
    ]


def test_a_t_between_two_far_modes_has_no_normaliser():
    posterior = lo.bayes.from_posterior(
        np.random.default_rng(0).normal(np.repeat([-50.0, 50.0], 1000), 0.5)[:, None],
        lambda theta, y: 0.0 * y + 2.0 * jnp.minimum((theta[0] - 50) ** 2, (theta[0] + 50) ** 2),
        np.array([1.0, 0.0]),
        log_prior=lambda theta: 2.0 * jnp.minimum((theta[0] - 50) ** 2, (theta[0] + 50) ** 2),
    )
    assert importance.normaliser(posterior) is None


def test_chains_that_have_not_mixed_are_flagged():
    posterior, _ = regression()
    apart = posterior.draws.reshape(4, 1000, 2) + 0.5 * np.arange(4)[:, None, None]
    with pytest.warns(UserWarning, match="have not converged"):
        other = lo.bayes.from_posterior(apart, posterior.objective)
    assert len(lo.bayes.elpd(other, PLANS["rows"]).flagged()) > 15


def test_single_cases_of_units_are_as_rows_of_their_own():
    rng = np.random.default_rng(0)
    X, y, cases = rng.normal(size=(12, 1)), rng.poisson(2.0, 12), rng.integers(1, 4, 12)
    row = np.repeat(np.arange(12), cases)
    model = lo.GLM(X, y, "poisson", lo.penalties.Ridge(1.0), weights=cases)
    each = lo.GLM(X[row], y[row], "poisson", lo.penalties.Ridge(1.0))
    draws = lo.fit(each).quadratic.at(rng.normal(size=(1000, 2)))
    found = lo.bayes.elpd(lo.bayes.from_posterior(draws, model), lo.leave_one_out(cases=True))
    other = lo.bayes.elpd(lo.bayes.from_posterior(draws, each), lo.leave_one_out())
    for name in (
        "elpd",
        "mean",
        "se",
        "elpd_se",
        "effective_parameters",
        "sampling_error",
        "approximation_error",
    ):
        assert getattr(found, name) == pytest.approx(getattr(other, name), rel=1e-6)
    assert np.allclose(found.gap[row], other.gap) and f"of {len(row)} cases" in str(found)
    refits = lo.cross_validate(lo.fit(model), lo.leave_one_out(cases=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few units and models alike
        assert lo.compare({"draws": found, "refits": refits})["se_difference"].max() < 0.1
    with pytest.raises(ValueError, match="single cases"):
        found.predict()
    with pytest.raises(ValueError, match="several cases"):
        found.to_arviz()


def test_parts_of_units_that_are_no_single_case_are_refused():
    rng = np.random.default_rng(0)
    X, trials = rng.normal(size=(12, 1)), np.full(12, 4)
    model = lo.GLM(
        X, rng.binomial(4, 0.4, 12) / 4, "logistic", lo.penalties.Ridge(1.0), weights=trials
    )
    posterior = lo.bayes.from_posterior(
        lo.fit(model).quadratic.at(rng.normal(size=(1000, 2))), model
    )
    with pytest.raises(ValueError, match="a row for each trial"):
        lo.bayes.elpd(posterior, lo.leave_one_out(cases=True))
    with pytest.raises(ValueError, match="score one of its cases"):
        lo.bayes.elpd(posterior, lo.Plan([0, 1], [0], [0.5], [True], 12))


def test_groups_by_name_and_by_a_splitter():
    posterior, _ = regression()
    site = np.array([f"site{k % 12}" for k in range(30)])
    found, other = (
        lo.bayes.elpd(posterior, lo.groups(site)),
        lo.bayes.elpd(posterior, GroupKFold(4), groups=site),
    )
    assert found.table()["group"].tolist() == sorted(set(site)) and other.plan.num_refits == 4
    assert lo.influence(posterior, lo.groups(site)).index.tolist() == sorted(set(site))
    assert other.elpd == pytest.approx(found.elpd, abs=2.0)


def test_wrong_calls():
    posterior, _ = regression()
    with pytest.raises(
        TypeError, match=r"plot.pit: give lo.bayes.elpd\(posterior, plan\).predict\(\)"
    ):
        lo.plot.pit(posterior)
    with pytest.raises(TypeError, match="must be a Posterior"):
        lo.bayes.elpd(lo.fit(posterior.objective), PLANS["rows"])
    with pytest.raises(ValueError, match="score must be"):
        lo.bayes.elpd(posterior, PLANS["rows"], score="sum")
    with pytest.raises(ValueError, match="score must be"):
        lo.bayes.elpd(posterior, PLANS["rows"], score=np.ones(2))
    with pytest.raises(TypeError, match="refit must be a function"):
        lo.bayes.elpd(posterior, PLANS["rows"], refit="yes")
    with pytest.raises(ValueError, match="20 units"):
        lo.bayes.elpd(posterior, lo.leave_one_out(20))


def test_chains_that_disagree_count_for_as_many_draws_as_there_are_chains():
    log_weights = np.repeat([0.0, 0.4, 0.8, 1.2], 1000) + 0.01 * np.random.default_rng(
        0
    ).standard_normal(4000)
    found, _, _ = importance.summarise(log_weights, regression()[0])
    assert found.effective < 4


def edge_loss(theta, y):
    return jnp.where(y > theta[0], y - theta[0], jnp.inf)


@pytest.mark.parametrize(
    "plan", [lo.leave_one_out(12), lo.groups(np.arange(12) // 4)], ids=["rows", "groups"]
)
def test_mass_where_the_posterior_has_none(plan):
    """y − θ is exponential, θ ~ N(0, 1).

    Without the least y, θ may lie above it, where no draw is.
    """
    y = np.sort(np.random.default_rng(3).exponential(size=12)) + 0.2
    y[0] = 0.1
    scale = stats.truncnorm(-np.inf, y[0] - 12, 12, 1)
    draws = scale.rvs((4, 500, 1), random_state=np.random.default_rng(0))
    posterior = lo.bayes.from_posterior(
        draws, edge_loss, y, log_prior=lambda theta: -0.5 * theta[0] ** 2
    )
    assert "the density has an edge" in str(posterior)
    found = lo.bayes.elpd(posterior, plan)
    log_z = lambda y: len(y) ** 2 / 2 + stats.norm.logcdf(y.min() - len(y)) - y.sum()
    parts = [plan.index[plan.refit == k] for k in range(plan.num_refits)]
    error = -found.losses[np.isfinite(found.losses)] - [
        log_z(y) - log_z(np.delete(y, part)) for part in parts
    ]
    right = found.result == 0
    assert right[0] and found.proposal[0] == "t" and right.sum() > plan.num_refits / 4
    assert np.all(np.abs(error[right]) < 5 * found.error[right])


def test_a_stopped_elpd_is_a_part(monkeypatch):
    """Folds that Ctrl-C came before have no elpd, also if the draws as they are would nearly do.

    The others are those of a whole call.
    """
    posterior, plan = regression(outlier=5.0)[0], PLANS["folds"]
    whole, improve, calls = lo.bayes.elpd(posterior, plan), fold_estimator.FoldEstimator.improve, []

    def stopping(self, k, *args):
        calls.append(k)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return improve(self, k, *args)

    monkeypatch.setattr(fold_estimator.FoldEstimator, "improve", stopping)
    for call in (lambda: lo.bayes.elpd(posterior, plan), lambda: lo.influence(posterior, plan)):
        calls.clear()
        with pytest.raises(KeyboardInterrupt) as stop:
            call()
        if isinstance(stop.value, lo.validation.Interrupted):
            part, said = stop.value.partial, str(stop.value)
    assert "elpd: stopped after" in said and "With checkpoint=FILE" in said
    left = part.result == lo.RESULTS.interrupted
    assert (
        0 < left.sum() < 5
        and calls[2] in np.flatnonzero(left)
        and not set(calls[:2]) & set(np.flatnonzero(left))
    )
    assert np.isnan(part.losses[left]).all()
    np.testing.assert_allclose(part.losses[~left], whole.losses[~left], rtol=1e-10)


@pytest.mark.parametrize("score", ["joint", "pointwise"])
def test_a_stopped_elpd_goes_on_from_its_checkpoint(tmp_path, monkeypatch, score):
    """Folds that were improved or sampled anew before Ctrl-C are read, with the draws that
    summaries take.
    """
    posterior, plan = regression(outlier=8.0)[0], PLANS["folds"]
    calls, improve, refused, draws = (
        [],
        fold_estimator.FoldEstimator.improve,
        (0, 1),
        posterior.draws,
    )

    def sample(seen):  # its state is where no hash of it looks
        if os.environ["SAMPLED"] == "stop":
            raise KeyboardInterrupt
        os.environ["SAMPLED"] = (
            "stop" if os.environ["SAMPLED"] == "once" else os.environ["SAMPLED"] + "."
        )
        return np.random.default_rng(len(seen)).choice(draws, 4000)

    call = lambda **more: lo.bayes.elpd(posterior, plan, score=score, refit=sample, **more)
    monkeypatch.setattr(
        fold_estimator.FoldResult,
        "accepted",
        property(lambda self: self.proposal == "refit" or self.k < 1),
    )
    monkeypatch.setattr(
        fold_estimator.FoldEstimator,
        "improve",
        lambda self, k, *args: (
            calls.append(k) or improve(self, k, *args)._replace(k=2.0 if k in refused else 0.1)
        ),
    )
    monkeypatch.setenv("SAMPLED", "")
    whole = call()
    assert os.environ["SAMPLED"] == ".." and len(calls) > 2
    os.environ["SAMPLED"] = "once"
    with pytest.raises(lo.validation.Interrupted, match="elpd: stopped after"):
        call(checkpoint=tmp_path / "run")
    calls.clear()
    os.environ["SAMPLED"] = ""
    again = call(checkpoint=tmp_path / "run")
    assert os.environ["SAMPLED"] == "." and not calls
    for name in ("losses", "error", "loss_error", "pareto_k", "gap", "effective", "proposal"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name), err_msg=name)
    for one, two in zip(again.folds, whole.folds, strict=True):
        np.testing.assert_array_equal(one.theta, two.theta)
        np.testing.assert_array_equal(one.weight, two.weight)
        assert (one.theta is posterior.draws) == (two.theta is posterior.draws)
    with pytest.raises(ValueError, match="is of another run: other plan"):
        lo.bayes.elpd(posterior, PLANS["rows"], score=score, checkpoint=tmp_path / "run")
