"""Losses with links, losses with parameters of their own, and Cox's partial likelihood, against
what they should be.
"""

import itertools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import integrate, optimize, stats
from statsmodels.genmod.families import links

import leaveout as lo
from leaveout.linalg.design import DenseDesign
from tests.helpers import cox, fitted, flat, glm, minimiser, regression

F, L = sm.families, lo.losses
COUNTS = np.arange(400.0)


def value(loss, eta, y, *own):
    with jax.enable_x64(True):
        return float(loss(jnp.array(eta), *(jnp.array(tau) for tau in own), jnp.array(y)))


@pytest.mark.parametrize(
    "loss, own, density",
    [
        (L.InverseGaussian(2.5), (), lambda y: stats.invgauss(np.exp(0.3) / 2.5, scale=2.5).pdf(y)),
        (L.Gamma(2.5), (), lambda y: stats.gamma(2.5, scale=np.exp(0.3) / 2.5).pdf(y)),
        (
            L.NegativeBinomial(0.7),
            (),
            lambda y: stats.nbinom(1 / 0.7, 1 / (1 + 0.7 * np.exp(0.3))).pmf(y),
        ),
        (
            L.NegativeBinomialDispersion(),
            ([np.log(0.7)],),
            lambda y: stats.nbinom(1 / 0.7, 1 / (1 + 0.7 * np.exp(0.3))).pmf(y),
        ),
        (
            L.NegativeBinomialDispersion(True),
            ([np.log(0.7)],),
            lambda y: stats.nbinom(np.exp(0.3) / 0.7, 1 / 1.7).pmf(y),
        ),
        (
            L.Beta(),
            ([np.log(4.0)],),
            lambda y: stats.beta(*(4 * np.r_[1, np.exp(-0.3)] / (1 + np.exp(-0.3)))).pdf(y),
        ),
        (L.GaussianScale(), ([np.log(2.0)],), lambda y: stats.norm(0.3, 2.0).pdf(y)),
        (
            L.GammaShape(),
            ([np.log(2.5)],),
            lambda y: stats.gamma(2.5, scale=np.exp(0.3) / 2.5).pdf(y),
        ),
    ],
    ids=lambda part: (
        type(part).__name__ if isinstance(part, (L.AbstractLoss, L.AbstractSharedLoss)) else ""
    ),
)
def test_losses_are_the_negative_logs_of_densities(loss, own, density):
    whole = isinstance(loss, (L.NegativeBinomial, L.NegativeBinomialDispersion))
    for y in (1.0, 3.0, 0.0) if whole else (0.2, 0.7, 0.95):
        np.testing.assert_allclose(value(loss, 0.3, y, *own), -np.log(density(y)), rtol=1e-9)
    if whole:
        assert abs(sum(np.exp(-value(loss, 0.3, y, *own)) for y in COUNTS[:120]) - 1) < 1e-8


def test_ordinal_probabilities():
    loss, tau = L.Ordinal(4), [-0.5, np.log(0.8), np.log(1.1)]
    cut = np.r_[-np.inf, -0.5, 0.3, 1.4, np.inf]
    want = np.diff(1 / (1 + np.exp(-(cut - 0.6))))
    np.testing.assert_allclose(
        [value(loss, 0.6, float(k), tau) for k in range(4)], -np.log(want), rtol=1e-12
    )
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            loss.inverse_link(jnp.array([0.6]), jnp.array(tau))[0], want, rtol=1e-12
        )
        slope = jax.jit(jax.vmap(jax.grad(loss), (None, None, 0)))(
            jnp.array(300.0), jnp.array(tau), jnp.arange(4.0)
        )
    # far away it stays finite, and linear
    np.testing.assert_allclose(slope, [1, 1, 1, 0], atol=1e-12)


LINKED = [
    (L.Squared("log"), F.Gaussian(links.Log())),
    (L.Poisson("sqrt"), F.Poisson(links.Sqrt())),
    (L.Poisson("identity"), F.Poisson(links.Identity())),
    (L.Gamma(1.0, "inverse"), F.Gamma(links.InversePower())),
    (L.InverseGaussian(1.0, "inverse_squared"), F.InverseGaussian(links.InverseSquared())),
    (
        L.NegativeBinomial(0.6, L.links.NegativeBinomialLink(0.6)),
        F.NegativeBinomial(links.NegativeBinomial(0.6), alpha=0.6),
    ),
    (L.Tweedie(1.6), F.Tweedie(links.Log(), var_power=1.6)),
    (L.Tweedie(2.4, 1.0, L.links.Power(-1.4)), F.Tweedie(links.Power(-1.4), var_power=2.4)),
    (L.QuasiPoisson(), F.Poisson()),
    *[
        (L.QuasiBinomial(1.0, ours), F.Binomial(theirs()))
        for ours, theirs in {
            "logit": links.Logit,
            "probit": links.Probit,
            "cloglog": links.CLogLog,
            "loglog": links.LogLog,
            "cauchit": links.Cauchy,
            "log": links.Log,
            "log_complement": links.LogC,
            "identity": links.Identity,
        }.items()
    ],
]


@pytest.mark.parametrize("loss, family", LINKED, ids=lambda part: type(part).__name__)
def test_links_means_and_deviances_are_statsmodels(loss, family):
    mean = np.array([0.2, 0.45, 0.8])
    y = np.array([0.5, 0.3, 0.9])
    eta = np.asarray(family.link(mean))
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(loss.inverse_link(jnp.asarray(eta)), mean, rtol=1e-10)
        np.testing.assert_allclose(loss.variance(mean), family.variance(mean), rtol=1e-12)
        losses = np.array([value(loss, e, v) for e, v in zip(eta, y, strict=True)])
        saturated = np.array(
            [value(loss, e, v) for e, v in zip(np.asarray(family.link(y)), y, strict=True)]
        )
        half = [family.deviance(y[[k]], mean[[k]]) / 2 for k in range(3)]
        np.testing.assert_allclose(losses - saturated, half, rtol=1e-8, atol=1e-10)


def test_quasi_losses_and_tweedie_are_deviances_over_the_dispersion():
    for loss in (
        L.QuasiPoisson(2.0),
        L.QuasiBinomial(2.0),
        L.Tweedie(1.0, 2.0),
        L.Tweedie(1.5, 2.0),
        L.Tweedie(2.0, 2.0),
    ):
        np.testing.assert_allclose(
            value(loss, 0.0, 0.5 if "Binomial" in type(loss).__name__ else 1.0), 0, atol=1e-12
        )
        slope = lambda loss, y: float(jax.jit(jax.grad(loss))(0.1, y))
        with jax.enable_x64(True):
            plain = type(loss)(loss.power, 1.0) if isinstance(loss, L.Tweedie) else type(loss)(1.0)
            np.testing.assert_allclose(slope(loss, 0.4), slope(plain, 0.4) / 2, rtol=1e-12)
    fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0), L.QuasiPoisson(2.0)))
    assert "no −log density" in str(
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NoUpdate())
    )


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(L.NegativeBinomial(0.6), marks=pytest.mark.slow),
        *(L.Tweedie(1.3), L.QuasiPoisson(2.0), L.QuasiBinomial(3.0)),
        *(L.Binomial(), L.Poisson(), L.Gamma(2.0), L.Squared(), L.PseudoHuber(0.7)),
    ],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.slow_for("Tweedie")
def test_self_concordance(loss):
    eta = np.linspace(-4, 4, 33)
    with jax.enable_x64(True):
        orders = (
            jax.hessian(loss),
            jax.jacfwd(jax.hessian(loss)),
            jax.jacfwd(jax.jacfwd(jax.hessian(loss))),
        )
        second, third, fourth = (
            jax.jit(jax.vmap(jax.vmap(d, (0, None)), (None, 0))) for d in orders
        )
        y = jnp.array([0.0, 0.3, 1.0])
        M = np.asarray(loss.self_concordance)
        assert np.all(np.abs(third(eta, y)) <= M * np.asarray(second(eta, y)) * (1 + 1e-9))
        assert np.all(
            np.abs(fourth(eta, y))
            <= np.asarray(loss.fourth) * np.asarray(second(eta, y)) * (1 + 1e-9)
        )


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["negative_binomial", "ordinal"])
def test_weight_zero_is_deletion_and_weight_two_is_duplication(loss):
    whole = regression(loss)
    theta, n = whole.parameters.start(0), whole.num_units
    counts = np.r_[2, 0, np.ones(n - 3), 3]
    rows = np.repeat(np.arange(n), counts.astype(int))
    pick = lambda a: None if a is None else np.asarray(a)[rows]
    X = np.asarray(whole.design)[rows][:, : whole.num_features]
    same = lo.Regression(
        X,
        pick(whole.y),
        whole.loss_function,
        whole.penalty,
        sample_weight=pick(whole.sample_weight),
        offset=pick(whole.offset),
    )
    with jax.enable_x64(True):
        ones = jnp.ones(len(rows))
        np.testing.assert_allclose(
            whole.loss(theta, jnp.asarray(counts)), same.loss(theta, ones), rtol=1e-12
        )
        np.testing.assert_allclose(
            whole.hessian(theta, jnp.asarray(counts)), same.hessian(theta, ones), atol=1e-9
        )


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_by_enumeration_with_units_out_and_twice(ties):
    """The partial likelihood written out over risk sets, at 0/1/2 weights."""
    model, theta = cox(ties, 24), np.array([0.4, -0.3, 0.2])
    rng, X, eta = np.random.default_rng(4), None, None  # the data as helpers.cox draws them
    X = rng.standard_normal((24, 3))
    eta = X @ rng.uniform(-1, 1, 3)
    time, event = np.ceil(4 * rng.exponential(np.exp(-eta))), rng.random(24) < 0.8
    counts = rng.integers(0, 3, 24)
    who = np.repeat(np.arange(24), counts)
    risk, total = np.exp(X[who] @ theta), 0.15 * theta @ theta
    for stratum, t in itertools.product((0, 1), np.unique(time)):
        there = who % 2 == stratum
        at_risk, dies = there & (time[who] >= t), there & (time[who] == t) & event[who]
        m = dies.sum()
        total -= np.log(risk[dies]).sum()
        share = np.arange(m) / max(m, 1) if ties == "efron" else np.zeros(m)
        total += np.log(risk[at_risk].sum() - share * risk[dies].sum()).sum()
    with jax.enable_x64(True):
        np.testing.assert_allclose(model.loss(theta, jnp.asarray(counts, float)), total, rtol=1e-11)


@pytest.mark.slow
def test_cox_leave_one_out_and_groups_on_transplant_patients():
    """The Stanford heart transplants.

    Verweij and van Houwelingen's losses by statsmodels' own refits.
    """
    data = sm.datasets.heart.load_pandas().data
    X, time, event = (
        data[["age"]].to_numpy(),
        data["survival"].to_numpy(),
        data["censors"].to_numpy(),
    )
    host = lambda keep: sm.PHReg(time[keep], X[keep], event[keep], ties="efron")
    fit = lo.fit(lo.Cox(X, time, event))
    n = len(time)
    for plan in (lo.leave_one_out(n), lo.groups(np.arange(n) % 7)):
        exact, certified = (
            lo.cross_validate(fit, plan, strategy=refit) for refit in (lo.Exact(), lo.Certified())
        )
        for k in range(0, plan.num_refits, 6):
            keep = plan.matrix()[k] > 0
            beta = host(keep).fit().params
            want = host(keep).loglike(beta) - host(np.ones(n, bool)).loglike(beta)
            np.testing.assert_allclose(exact.losses[k], want, rtol=1e-6)
        assert np.all(np.abs(certified.losses - exact.losses) <= certified.error + 1e-9)


CERTIFIED = {
    "gamma, log": lambda: glm(L.Gamma(2.0), None, n=90),
    "inverse gaussian": lambda: glm(L.InverseGaussian(3.0), None, n=90),
    "tweedie": lambda: glm(L.Tweedie(1.5), None, n=90, weights=True),
    "loglog": lambda: glm(L.Binomial("loglog"), lo.penalties.Ridge(0.1), n=90),
    "cauchit": lambda: glm(L.Binomial("cauchit"), lo.penalties.Ridge(0.3), n=90),
    "probit": lambda: glm("probit", None, n=90, weights=True),
    "cloglog": lambda: glm("cloglog", lo.penalties.Ridge(0.1), n=90),
    "log": lambda: positive(L.Squared("log")),
    "sqrt": lambda: positive(L.QuasiPoisson(2.0, "sqrt")),
    "inverse": lambda: positive(L.Gamma(1.0, "inverse")),
    "canonical": lambda: positive(L.InverseGaussian(1.0, "inverse_squared")),
    "negative binomial, fixed": lambda: positive(L.NegativeBinomial(0.5, "log")),
    "negative binomial, linear variance": lambda: regression(
        L.NegativeBinomialDispersion(linear=True)
    ),
    "gaussian": lambda: positive("gaussian"),
    "gamma": lambda: positive("gamma"),
    "negative binomial": lambda: fitted("negative binomial, its dispersion").objective,
    "ordinal": lambda: fitted("ordinal").objective,
    "beta": lambda: lo.Regression(*shares(), "beta"),
}


def positive(loss):
    """Numbers about one that any mean suits, with weights.

    A loss by its name has a scale of its own.
    """
    rng = np.random.default_rng(9)
    X = rng.uniform(-1, 1, (90, 2))
    y = rng.gamma(9.0, (1 + 0.3 * X[:, 0] - 0.2 * X[:, 1]) ** -0.5 / 9)
    make = lo.Regression if isinstance(loss, str) else lo.GLM
    return make(X, y, loss, sample_weight=rng.gamma(4.0, 0.25, 90))


def shares():
    rng = np.random.default_rng(8)
    X = rng.standard_normal((90, 2))
    p = 1 / (1 + np.exp(-X @ [0.8, -0.5]))
    return X, rng.beta(4 * p, 4 * (1 - p)).clip(1e-6, 1 - 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CERTIFIED)
def test_certified_is_within_its_error(name):
    """Links that are not canonical, parameters of the loss's own.

    Leave-one-out against an optimiser from scratch.
    """
    fit = lo.fit(CERTIFIED[name]())
    n = fit.objective.num_units
    certified = lo.cross_validate(fit, lo.leave_one_out())
    exact = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact(1e-10))
    wrong = np.abs(certified.losses - exact.losses) > certified.error + 1e-9
    assert wrong.mean() < 0.02 and abs(certified.mean - exact.mean) <= 0.01 * certified.scale
    parameters = lo.fold_parameters(fit, lo.leave_one_out(), strategy=lo.Exact(1e-10))
    for i in (3, 17):
        weights = np.ones(n)
        weights[i] = 0.0
        one = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], parameters)
        one = {
            k: v
            for k, v in one.items()
            if k != "intercept" or np.any(v) or getattr(fit.objective, "intercept", True)
        }
        np.testing.assert_allclose(
            flat(fit.objective.parameters.unconstrained(one)),
            minimiser(fit.objective, fit.theta, weights),
            atol=1e-6,
        )


def test_huber_with_its_scale_has_kinks_and_knows_them():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((60, 2))
    fit = lo.fit(lo.Regression(X, X @ [1.0, -1.0] + rng.standard_t(2, 60), "huber_scale"))
    exact = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact(), audit=0)
    certified = lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    np.testing.assert_allclose(certified.losses, exact.losses, atol=0.1 * certified.scale)
    assert fit.parameters["scale"] > 0


def test_ordered_categories():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    labels = pd.Categorical(
        rng.choice(["low", "mid", "high"], 40), ["low", "mid", "high"], ordered=True
    )
    model = lo.Regression(X, pd.Series(labels), "ordinal")
    assert model.levels == ("low", "mid", "high")
    np.testing.assert_array_equal(model.y, labels.codes)
    assert np.allclose(
        lo.cross_predict(lo.fit(model), lo.kfold(k=4), strategy=lo.NewtonStep()).sum(axis=1), 1
    )


X0, Y0 = np.random.default_rng(0).standard_normal((30, 2)), np.arange(30.0)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.GLM(X0, Y0, "negative_binomial"),
            ValueError,
            r"use lo.Regression\(X, y, \"negative_binomial\"\)",
        ),
        (lambda: lo.GLM(X0, Y0, "cox"), ValueError, "use lo.Cox"),
        (lambda: lo.GLM(X0, Y0, L.Beta()), TypeError, "use lo.Regression"),
        (
            lambda: lo.GLM(X0, -Y0, "inverse_gaussian"),
            ValueError,
            "inverse Gaussian loss needs y positive",
        ),
        (lambda: lo.GLM(X0, Y0, L.Tweedie(2.5)), ValueError, "needs y positive"),
        (lambda: lo.GLM(X0, -Y0, L.Tweedie(1.5)), ValueError, "needs y not negative"),
        (
            lambda: lo.GLM(X0, -Y0, "quasi_poisson"),
            ValueError,
            "quasi-Poisson loss needs y not negative",
        ),
        (lambda: L.Tweedie(0.5), ValueError, "between 0 and 1"),
        (lambda: L.Gamma(1.0, "logit"), ValueError, "link must be one of identity, log"),
        (lambda: L.links.Power(0.0), ValueError, "not zero"),
        (lambda: L.NegativeBinomial(-1.0), ValueError, "positive and finite"),
        (lambda: L.QuasiBinomial(np.nan), ValueError, "positive and finite"),
        (
            lambda: lo.Regression(X0, Y0, "poisson"),
            ValueError,
            "no loss with parameters of its own is called 'poisson'",
        ),
        (lambda: lo.Regression(X0, Y0, L.Poisson()), TypeError, "Losses without are for lo.GLM"),
        (lambda: lo.Regression(X0, Y0, "beta"), ValueError, "strictly between 0 and 1"),
        (
            lambda: lo.Regression(X0, Y0 + 0.5, "negative_binomial"),
            ValueError,
            "whole and not negative",
        ),
        (lambda: lo.Regression(X0, np.full(30, "a"), "ordinal"), TypeError, "order of its levels"),
        (lambda: lo.Regression(X0, np.r_[np.nan, Y0[1:]], "ordinal"), ValueError, "1 NaN"),
        (lambda: lo.Regression(X0, np.ones(30), "ordinal"), ValueError, "two or more levels"),
        (lambda: lo.Regression(X0, Y0, L.Ordinal(5)), ValueError, "among 0, …, 4"),
        (
            lambda: lo.Regression(X0, np.r_[np.inf, Y0[1:]], "gaussian"),
            ValueError,
            "Regression: y holds 1",
        ),
        (
            lambda: lo.Regression(X0[:5], Y0, "gaussian"),
            ValueError,
            "one value for each of the 5 rows",
        ),
        (
            lambda: lo.Regression(X0, Y0, "gaussian", sample_weight=-Y0),
            ValueError,
            "must not be negative",
        ),
        (
            lambda: lo.anchor(lo.Regression(X0, Y0, "gaussian"), {"coef": np.zeros(2)}),
            ValueError,
            "parameters are",
        ),
        (lambda: L.HuberScale(0.5), ValueError, "1 or more"),
        (lambda: lo.Cox(X0, Y0, Y0 > 3, ties="exact"), ValueError, "'efron' or 'breslow'"),
        (lambda: lo.Cox(X0, -Y0, Y0 > 3), ValueError, "must not be negative"),
        (lambda: lo.Cox(X0, Y0, np.zeros(30)), ValueError, "event must be 1"),
        (lambda: lo.Cox(X0, Y0, Y0), ValueError, "event must be 1"),
        (lambda: lo.Cox(X0, np.r_[np.nan, Y0[1:]], Y0 > 3), ValueError, "Cox: time holds 1 NaN"),
        (lambda: lo.Cox(X0, Y0, Y0 > 3, strata=[1, 2]), ValueError, "one label for each"),
        (
            lambda: lo.anchor(lo.Cox(X0, Y0, Y0 > 3), {"coef": np.zeros(3)}),
            ValueError,
            r"parameters are \{'coef'\}",
        ),
        (
            lambda: lo.penalties.per_row(lo.penalties.Ridge(1.0)) + lo.penalties.Ridge(1.0),
            TypeError,
            "around the whole sum",
        ),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_level_that_only_one_unit_has_is_flagged():
    rng = np.random.default_rng(0)
    y = np.r_[2, rng.integers(0, 2, 39)]
    fit = lo.fit(lo.Regression(rng.standard_normal((40, 2)), y, "ordinal"))
    assert 0 in lo.cross_validate(fit, lo.leave_one_out(), audit=0).flagged()


def test_densities_integrate_to_one():
    inverse_gaussian = lambda y: np.exp(-value(L.InverseGaussian(2.0), 0.2, y))
    assert abs(integrate.quad(inverse_gaussian, 1e-9, 80)[0] - 1) < 1e-6


@pytest.mark.parametrize("linear", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_counts_that_scatter_less_than_poissons_have_no_dispersion(linear):
    """The fit says so, as the density of scipy does.

    The likelihood of any dispersion is below that of none.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 1))
    y = rng.binomial(6, 0.6 / (1 + np.exp(-X[:, 0])))
    design = np.column_stack([X, np.ones(200)])

    def lowest(dispersion):
        def loss(theta):
            mean = np.exp(design @ theta)
            size = mean / dispersion if linear else np.full(200, 1 / dispersion)
            return -stats.nbinom.logpmf(y, size, size / (size + mean)).sum()

        return optimize.minimize(loss, np.zeros(2)).fun

    poisson = optimize.minimize(
        lambda theta: -stats.poisson.logpmf(y, np.exp(design @ theta)).sum(), np.zeros(2)
    ).fun
    assert all(lowest(dispersion) > poisson for dispersion in (1e-3, 1e-2, 0.1, 1.0))
    with pytest.raises(
        RuntimeError, match=r"dispersion .* goes to zero: .* Take lo\.losses\.Poisson\(\)"
    ):
        lo.fit(lo.Regression(X, y, L.NegativeBinomialDispersion(linear)))


@pytest.mark.parametrize("dispersion", [1e-14, 1e-9, 1e-4, 1 / 17, 1 / 15, 2.0])
def test_the_negative_binomial_is_exact_near_poissons(dispersion):
    """Against products of y factors, log Γ(s + y)/(Γ(s) sʸ) = Σ log(1 + k/s), by the closed form
    and by what JAX derives.
    """
    y, eta = np.array([0.0, 1.0, 7.0, 40.0]), np.array([0.3, -1.0, 2.0, 3.5])
    mean = np.exp(eta)
    rising = np.array([sum(math.log1p(k * dispersion) for k in range(int(count))) for count in y])
    true = (
        (y + 1 / dispersion) * np.log1p(dispersion * mean)
        - y * eta
        - rising
        + [math.lgamma(count + 1) for count in y]
    )
    fixed = L.NegativeBinomial(dispersion).formulas(eta, y)[0]()
    np.testing.assert_allclose(fixed, true, rtol=1e-13, atol=1e-13)
    with jax.enable_x64(True):
        shared = [
            L.NegativeBinomialDispersion()(e, np.log([dispersion]), count)
            for e, count in zip(eta, y, strict=True)
        ]
    np.testing.assert_allclose(shared, true, rtol=1e-13, atol=1e-13)


def test_a_quadratic_has_one_hessian(monkeypatch):
    """Made once a model, for its fit; and the fit is the solution of the normal equations."""
    rng, made, gram = np.random.default_rng(0), [], DenseDesign.gram
    monkeypatch.setattr(
        DenseDesign, "gram", lambda self, *given: made.append(1) or gram(self, *given)
    )
    X, y = rng.standard_normal((50, 3)), rng.standard_normal(50)
    weight = rng.uniform(0.5, 2, 50)
    model = lo.GLM(X, y, "squared", lo.penalties.Ridge(2.0), sample_weight=weight)
    fit = lo.fit(model)
    assert len(made) == 1
    rows, penalty = np.c_[X, np.ones(50)], np.diag([2.0, 2.0, 2.0, 0.0])
    hessian = rows.T @ (weight[:, None] * rows) + penalty
    np.testing.assert_allclose(fit.hessian, hessian, rtol=1e-12)
    np.testing.assert_allclose(
        fit.vector, np.linalg.solve(hessian, rows.T @ (weight * y)), rtol=1e-10
    )
    other = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(5.0), sample_weight=weight))
    np.testing.assert_allclose(other.hessian - fit.hessian, 1.5 * penalty, atol=1e-10)


@pytest.mark.parametrize("linear", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_refit_whose_dispersion_goes_to_zero_has_poissons_loss(linear):
    """One row alone scatters more than Poisson's counts do.

    Without it the likelihood grows towards no dispersion.
    """
    x = np.linspace(-1, 1, 40)
    y = np.round(np.exp(1.5 + 0.5 * x))
    y[20] = 30.0
    fit, plan = (
        lo.fit(lo.Regression(x[:, None], y, L.NegativeBinomialDispersion(linear=linear))),
        lo.kfold(40, 8, rng=0),
    )
    poisson = lo.fit(lo.GLM(x[:, None], y, "poisson"))
    wanted = lo.cross_validate(poisson, plan, strategy=lo.Exact(1e-13))
    (refit,) = plan.refit[(plan.index == 20) & plan.held]
    for strategy in (lo.Certified(), lo.Exact()):
        found = lo.cross_validate(fit, plan, strategy=strategy, audit=0)
        entries = plan.held & (plan.refit == refit)
        np.testing.assert_allclose(
            found.losses[entries], wanted.losses[entries], rtol=0, atol=found.error[refit] + 1e-12
        )
        assert found.result[refit] == lo.RESULTS.successful and found.error[refit] < 1e-4
    assert lo.fold_parameters(fit, plan)["dispersion"][refit] < 1e-12


@pytest.mark.parametrize(
    ("loss", "scale"), [("probit", 1.0), ("cloglog", 1.0), ("logistic", 1e3), ("multinomial", 1e3)]
)
def test_underflow_is_meant_whatever_the_caller_makes_of_it(loss, scale):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = (rng.random(60) < 1 / (1 + np.exp(-X @ [1, -1, 0.5]))).astype(float)
    with np.errstate(all="raise"):
        fit = lo.fit(lo.GLM(X * [scale, 1, 1], y, loss, lo.penalties.Ridge(1.0)))
        cv = lo.cross_validate(fit, lo.leave_one_out())
        assert np.isfinite(cv.mean) and str(cv)


def test_few_rows_in_single_precision_warn_of_nothing():
    """Limits of columns are not those of their precision."""
    x = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    with warnings.catch_warnings(action="error"):
        model = lo.GLM(x, x[:, 0] > 0, "logistic", lo.penalties.Ridge(1.0))
    assert model.num_units == 30
