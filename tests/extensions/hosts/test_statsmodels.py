"""statsmodels as a host.

Zero gradient at its parameters, and a fold's exact refit is its own refit on that fold.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from statsmodels.gam.api import BSplines, GLMGam
from statsmodels.gam.generalized_additive_model import penalized_wls
from statsmodels.genmod.families import links
from statsmodels.miscmodels.ordinal_model import OrderedModel
from statsmodels.othermod.betareg import BetaModel

import leaveout as lo

N = 90
rng = np.random.default_rng(3)
X = np.c_[np.ones(N), rng.uniform(-1, 1, (N, 2))]
ETA = X @ np.array([0.4, 0.5, -0.3])
MEAN = np.exp(ETA)
WEIGHT, FREQUENCY, OFFSET = (
    rng.gamma(4.0, 0.25, N),
    rng.integers(1, 4, N).astype(float),
    0.3 * rng.standard_normal(N),
)
TRIALS = rng.integers(1, 9, N)
P = 1 / (1 + np.exp(-ETA))
Y = {
    "real": ETA + 0.5 * rng.standard_normal(N),
    "count": rng.poisson(MEAN).astype(float),
    "over": rng.negative_binomial(2, 2 / (2 + MEAN)).astype(float),
    "positive": rng.gamma(3.0, MEAN / 3) + 1e-2,
    "binary": (rng.random(N) < P).astype(float),
    "trials": np.c_[rng.binomial(TRIALS, P), TRIALS][:, [0, 1]],
    "share": np.clip(rng.beta(5 * P, 5 * (1 - P)), 1e-4, 1 - 1e-4),
    "levels": np.digitize(ETA + rng.logistic(size=N), [-0.5, 0.4, 1.5]),
}
# links with a domain: data whose refits lie inside it
Y["even"] = (np.random.default_rng(11).random(N) < 0.45 + 0.1 * X[:, 1]).astype(float)
Y["many"] = np.random.default_rng(4).negative_binomial(2, 2 / (6 + X[:, 1])).astype(float)
Y["narrow"] = rng.gamma(40.0, (1 + 0.3 * X[:, 1]) ** -0.5 / 40)
Y["trials"] = np.c_[Y["trials"][:, 0], Y["trials"][:, 1] - Y["trials"][:, 0]].astype(float)
F = sm.families
EVERYTHING, WEIGHTS = ("offset", "var_weights", "freq_weights"), ("var_weights", "freq_weights")
# name: (target, family, what more it takes in this test: an offset could leave the domain of a
# link)
FAMILIES = {
    "gaussian": ("real", F.Gaussian, EVERYTHING),
    "gaussian, log": ("positive", lambda: F.Gaussian(links.Log()), EVERYTHING),
    "gaussian, inverse": ("narrow", lambda: F.Gaussian(links.InversePower()), WEIGHTS),
    "poisson": ("count", F.Poisson, EVERYTHING),
    "poisson, exposure": ("count", F.Poisson, ("exposure", "freq_weights")),
    "poisson, identity": ("count", lambda: F.Poisson(links.Identity()), WEIGHTS),
    "poisson, sqrt": ("count", lambda: F.Poisson(links.Sqrt()), WEIGHTS),
    "gamma, log": ("positive", lambda: F.Gamma(links.Log()), EVERYTHING),
    "gamma, inverse": ("positive", F.Gamma, WEIGHTS),
    "gamma, identity": ("narrow", lambda: F.Gamma(links.Identity()), WEIGHTS),
    "inverse gaussian, log": ("positive", lambda: F.InverseGaussian(links.Log()), EVERYTHING),
    "inverse gaussian, canonical": ("narrow", F.InverseGaussian, WEIGHTS),
    "inverse gaussian, inverse": (
        "narrow",
        lambda: F.InverseGaussian(links.InversePower()),
        WEIGHTS,
    ),
    "inverse gaussian, identity": ("narrow", lambda: F.InverseGaussian(links.Identity()), WEIGHTS),
    "negative binomial": ("over", lambda: F.NegativeBinomial(alpha=0.5), EVERYTHING),
    "negative binomial, identity": (
        "many",
        lambda: F.NegativeBinomial(links.Identity(), alpha=0.5),
        WEIGHTS,
    ),
    "negative binomial, canonical": (
        "over",
        lambda: F.NegativeBinomial(links.NegativeBinomial(0.5), alpha=0.5),
        WEIGHTS,
    ),
    "negative binomial, power": (
        "over",
        lambda: F.NegativeBinomial(links.Power(0.5), alpha=0.5),
        WEIGHTS,
    ),
    "negative binomial, cloglog": (
        "binary",
        lambda: F.NegativeBinomial(links.CLogLog(), alpha=0.5),
        WEIGHTS,
    ),
    "tweedie": ("positive", lambda: F.Tweedie(links.Log(), var_power=1.4), EVERYTHING),
    "tweedie, power": ("narrow", lambda: F.Tweedie(links.Power(-0.4), var_power=1.4), WEIGHTS),
    "binomial, trials": ("trials", F.Binomial, EVERYTHING),
    "probit": ("binary", lambda: F.Binomial(links.Probit()), EVERYTHING),
    "cloglog": ("binary", lambda: F.Binomial(links.CLogLog()), EVERYTHING),
    "loglog": ("binary", lambda: F.Binomial(links.LogLog()), EVERYTHING),
    "cauchit": ("binary", lambda: F.Binomial(links.Cauchy()), WEIGHTS),
    "binomial, log": ("even", lambda: F.Binomial(links.Log()), WEIGHTS),
    "binomial, log complement": ("even", lambda: F.Binomial(links.LogC()), WEIGHTS),
    "binomial, identity": ("even", lambda: F.Binomial(links.Identity()), WEIGHTS),
}
QUICK = (
    "poisson",
    "poisson, identity",
    "gamma, log",
    "inverse gaussian, log",
    "negative binomial",
    "tweedie",
    "binomial, trials",
)
QUICK += ("probit", "cloglog")
MORE = {
    "offset": OFFSET,
    "exposure": 1 + FREQUENCY,
    "var_weights": WEIGHT,
    "freq_weights": FREQUENCY,
}
plan = lo.kfold(N, 3, rng=1)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES]
)
def test_glm_refits_are_its_own(name):
    target, family, more = FAMILIES[name]
    y = Y[target]

    def host(keep):
        extra = {option: MORE[option][keep] for option in more}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of links that are not "safe"
            return sm.GLM(y[keep], X[keep], family(), **extra).fit(tol=1e-13, maxiter=500)

    everyone = np.ones(N, bool)
    fit = lo.from_statsmodels(host(everyone))
    assert fit.decrement < 1e-4
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    predicted = lo.cross_predict(fit, plan, strategy=lo.Exact(1e-10))
    for k, w in enumerate(plan.matrix()):
        again = host(w > 0)
        np.testing.assert_allclose(coef[k], again.params, atol=2e-5)
        shift = {
            option: MORE[option][w == 0] for option in more if option in ("offset", "exposure")
        }
        np.testing.assert_allclose(predicted[w == 0], again.predict(X[w == 0], **shift), rtol=1e-4)


HOSTS = {
    "OLS": lambda keep: sm.OLS(Y["real"][keep], X[keep]).fit(),
    "WLS": lambda keep: sm.WLS(Y["real"][keep], X[keep], weights=WEIGHT[keep]).fit(),
    "Logit": lambda keep: sm.Logit(Y["binary"][keep], X[keep]).fit(disp=0, tol=1e-12),
    "Logit, offset": lambda keep: sm.Logit(Y["binary"][keep], X[keep], offset=OFFSET[keep]).fit(
        disp=0, tol=1e-12
    ),
    "Probit": lambda keep: sm.Probit(Y["binary"][keep], X[keep]).fit(disp=0, tol=1e-12),
    "Probit, offset": lambda keep: sm.Probit(Y["binary"][keep], X[keep], offset=OFFSET[keep]).fit(
        disp=0, tol=1e-12
    ),
    "NegativeBinomial, geometric": lambda keep: sm.NegativeBinomial(
        Y["over"][keep], X[keep], loglike_method="geometric", exposure=1 + FREQUENCY[keep]
    ).fit(disp=0, tol=1e-12, method="newton"),
    "Poisson, exposure": lambda keep: sm.Poisson(
        Y["count"][keep], X[keep], offset=OFFSET[keep], exposure=FREQUENCY[keep]
    ).fit(disp=0, tol=1e-12),
}
RIDGED = {
    "OLS": (0.3, lambda keep: sm.OLS(Y["real"][keep], X[keep])),
    "WLS": (0.3, lambda keep: sm.WLS(Y["real"][keep], X[keep], weights=WEIGHT[keep])),
    "GLM": (
        np.array([0.0, 0.2, 0.4]),
        lambda keep: sm.GLM(Y["count"][keep], X[keep], F.Poisson(), var_weights=WEIGHT[keep]),
    ),
    "GLM, offset": (
        0.1,
        lambda keep: sm.GLM(Y["binary"][keep], X[keep], F.Binomial(), offset=OFFSET[keep]),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if "offset" in n else n for n in HOSTS]
)
def test_linear_and_discrete_models(name):
    fit = lo.from_statsmodels(HOSTS[name](np.ones(N, bool)))
    assert fit.decrement < 1e-6
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):
        np.testing.assert_allclose(coef[k], HOSTS[name](w > 0).params, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if "offset" in n else n for n in RIDGED]
)
def test_regularised_fits_average_over_rows(name):
    alpha, model = RIDGED[name]

    def host(keep):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model(keep).fit_regularized(alpha=alpha, L1_wt=0.0)

    fit = lo.from_statsmodels(host(np.ones(N, bool)), alpha=alpha)
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):
        np.testing.assert_allclose(coef[k], host(w > 0).params, atol=1e-4)


OWN = {
    "negative binomial": (
        "dispersion",
        lambda keep: sm.NegativeBinomial(Y["over"][keep], X[keep], offset=OFFSET[keep]).fit(
            disp=0, maxiter=500, gtol=1e-8
        ),
        lambda params: params[-1],
    ),
    "negative binomial, linear variance": (
        "dispersion",
        lambda keep: sm.NegativeBinomial(Y["over"][keep], X[keep], loglike_method="nb1").fit(
            disp=0, maxiter=500, gtol=1e-8
        ),
        lambda params: params[-1],
    ),
    "beta": (
        "precision",
        lambda keep: BetaModel(Y["share"][keep], X[keep]).fit(disp=0, maxiter=500, gtol=1e-8),
        lambda params: np.exp(params[-1]),
    ),
    "ordinal": (
        "thresholds",
        lambda keep: OrderedModel(Y["levels"][keep], X[keep][:, 1:], distr="logit").fit(
            disp=0, method="bfgs", gtol=1e-7
        ),
        lambda params: np.cumsum(np.r_[params[2], np.exp(params[3:])]),
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow)
        if n in ("negative binomial, linear variance", "beta", "ordinal")
        else n
        for n in OWN
    ],
)
def test_a_models_own_parameters_are_refitted_too(name):
    own, host, of = OWN[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = host(np.ones(N, bool))
        again = [host(w > 0) for w in plan.matrix()]
    fit = lo.fit(lo.from_statsmodels(results).objective)  # its optimiser stops early
    np.testing.assert_allclose(fit.value, -results.llf, rtol=1e-7)
    found = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
    for k, refit in enumerate(again):
        np.testing.assert_allclose(
            found["coef"][k], refit.params[: found["coef"].shape[1]], atol=5e-4
        )
        np.testing.assert_allclose(found[own][k], of(np.asarray(refit.params)), rtol=2e-3)


@pytest.mark.parametrize("ties", [pytest.param("efron", marks=pytest.mark.slow), "breslow"])
def test_proportional_hazards(ties):
    time, event = np.ceil(9 * rng.exponential(1 / MEAN)), (rng.random(N) < 0.8).astype(float)
    strata = rng.integers(0, 2, N)
    host = lambda keep: sm.PHReg(
        time[keep], X[keep][:, 1:], event[keep], ties=ties, strata=strata[keep]
    ).fit()
    fit = lo.from_statsmodels(host(np.ones(N, bool)))
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):
        np.testing.assert_allclose(coef[k], host(w > 0).params, atol=1e-5)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_proportional_hazards_from_an_entry_on(ties):
    """Rows of PHReg are at risk at their entry too, which is here at times of events.

    20 folds refitted by the host.
    """
    time, event = np.ceil(9 * rng.exponential(1 / MEAN)), (rng.random(N) < 0.8).astype(float)
    entry, strata = np.floor(time * rng.random(N)), rng.integers(0, 2, N)
    cut = lambda k: sm.PHReg(
        time[k],
        X[k][:, 1:],
        event[k],
        ties=ties,
        strata=strata[k],
        entry=entry[k],
        offset=X[k][:, 1] / 4,
    ).fit()
    fit, plan = lo.from_statsmodels(cut(np.ones(N, bool))), lo.kfold(N, 20, rng=0)
    assert fit.decrement < 1e-5
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):
        np.testing.assert_allclose(coef[k], cut(w > 0).params, atol=1e-5)


def test_several_classes():
    kind = np.digitize(ETA + X[:, 2] + rng.logistic(size=N), [-0.5, 1.0])
    host = lambda keep: sm.MNLogit(kind[keep], X[keep]).fit(disp=0, tol=1e-12, method="newton")
    fit = lo.from_statsmodels(host(np.ones(N, bool)))
    assert fit.decrement < 1e-8
    predicted = lo.cross_predict(fit, plan, strategy=lo.Exact(1e-10))
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):
        again = host(w > 0)
        np.testing.assert_allclose((coef[k] - coef[k][0])[1:].T, again.params, atol=1e-6)
        np.testing.assert_allclose(predicted[w == 0], again.predict(X[w == 0]), atol=1e-7)


@pytest.mark.parametrize("family", ["Poisson", "Gaussian"])
def test_additive_models_on_their_basis(family):
    y = Y["count" if family == "Poisson" else "real"]
    splines = BSplines(X[:, 1:], df=[6, 5], degree=[3, 3])
    alpha = [0.7, 2.0]
    model = GLMGam(y, np.ones((N, 1)), splines, alpha=alpha, family=getattr(F, family)())
    fit = lo.from_statsmodels(model.fit(tol=1e-13))
    assert fit.decrement < 1e-5 and "knots are not left out" in fit.objective.note
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):  # the host's own iteration, on the rows of the same basis
        keep, beta = w > 0, np.zeros(model.exog.shape[1])
        x, t = model.exog[keep], y[keep]
        for _ in range(60):
            eta = x @ beta
            mean = np.exp(eta) if family == "Poisson" else eta
            weight = mean if family == "Poisson" else np.ones(len(t))
            beta = penalized_wls(
                eta + (t - mean) / weight, x, model.penal.penalty_matrix(), weight
            ).params
        np.testing.assert_allclose(coef[k], beta, atol=1e-6)


def test_formulas_missing_rows_and_names():
    frame = pd.DataFrame({"y": Y["count"], "a": X[:, 1], "b": np.where(X[:, 2] > 0, "up", "down")})
    frame.loc[4, "a"] = np.nan
    fit = lo.from_statsmodels(
        sm.GLM.from_formula("y ~ a * C(b)", frame, family=F.Poisson(), missing="drop").fit()
    )
    assert fit.objective.num_units == N - 1
    assert fit.objective.parameters.names() == ["Intercept", "C(b)[T.up]", "a", "a:C(b)[T.up]"]
    assert "1 rows with missing values" in str(
        lo.cross_validate(fit, lo.kfold(k=3), strategy=lo.NewtonStep())
    )


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.from_statsmodels(
                GLMGam(
                    Y["count"],
                    smoother=BSplines(X[:, 1:2], [6], [3]),
                    alpha=1.0,
                    family=F.Poisson(),
                    freq_weights=FREQUENCY,
                ).fit()
            ),
            TypeError,
            "its own fit ignores them",
        ),
        (lambda: lo.from_statsmodels(3), TypeError, "give the results of a fitted model"),
        (
            lambda: lo.from_statsmodels(sm.RLM(Y["real"], X).fit()),
            TypeError,
            "RLM is not supported",
        ),
        (
            lambda: lo.from_statsmodels(sm.RecursiveLS(Y["real"], X).fit()),
            TypeError,
            "not supported.*OLS, WLS",
        ),
        (
            lambda: lo.from_statsmodels(
                RIDGED["OLS"][1](slice(None)).fit_regularized(alpha=0.3, L1_wt=0)
            ),
            ValueError,
            "alpha=",
        ),
        (
            lambda: lo.from_statsmodels(HOSTS["OLS"](slice(None)), alpha=1.0),
            ValueError,
            "for results of fit_regularized",
        ),
        (
            lambda: lo.from_statsmodels(
                sm.Logit(Y["binary"], X).fit_regularized(alpha=1.0, disp=0)
            ),
            TypeError,
            "l1 penalty",
        ),
        (
            lambda: lo.from_statsmodels(
                sm.GLM(Y["positive"], X, F.Gamma(links.Log())).fit_regularized(alpha=0.1, L1_wt=0),
                alpha=0.1,
            ),
            TypeError,
            "re-estimates its scale",
        ),
        (
            lambda: lo.from_statsmodels(
                sm.OLS(Y["real"], X).fit_regularized(alpha=2.0, L1_wt=1.0), alpha=2.0
            ),
            ValueError,
            "not stationary",
        ),
        (
            lambda: lo.from_statsmodels(
                OrderedModel(Y["levels"], X[:, 1:], distr="probit").fit(disp=0, method="bfgs")
            ),
            TypeError,
            "logit",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_results_that_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("labels", ["names", "numbers", "no frame"])
def test_a_plan_of_all_rows_is_matched_by_label(labels):
    """Hosts drop rows with missing values; a plan of a column of the data has them still."""
    frame = pd.DataFrame({"a": X[:, 1], "y": Y["real"], "clinic": np.arange(N) % 7})
    frame.loc[[3, 17, 30], "a"] = np.nan
    if labels == "names":
        frame.index = [f"patient {i}" for i in range(N)]
    if labels == "no frame":
        results = sm.OLS(
            frame.y.to_numpy(), sm.add_constant(frame[["a"]].to_numpy()), missing="drop"
        ).fit()
    else:
        results = sm.OLS.from_formula("y ~ a", frame).fit()
    used = frame.dropna()
    wanted = np.zeros(len(used))
    for clinic in range(7):
        out = (used.clinic == clinic).to_numpy()
        wanted[out] = sm.OLS.from_formula("y ~ a", used[~out]).fit().predict(used[out])
    fit = lo.from_statsmodels(results)
    with pytest.warns(
        UserWarning, match="3 of the plan's 90 units are not among those of the fit, such as"
    ):
        found = lo.cross_predict(fit, lo.groups(frame.clinic), strategy=lo.Exact())
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    with pytest.warns(UserWarning, match="they leave the plan"):
        estimate = lo.cross_validate(fit, lo.groups(frame.clinic))
    assert list(estimate.names()) == list(used.index) and "SE over 7 groups" in str(estimate)
    alone = lo.cross_validate(fit, lo.groups(used.clinic.to_numpy()))
    assert estimate.se == pytest.approx(alone.se, rel=1e-12)
    with pytest.raises(ValueError, match="the plan is for 90 units, but the fit has 87"):
        lo.cross_predict(fit, lo.groups(frame.clinic.to_numpy()))


@pytest.mark.parametrize(
    "formula, said",
    [
        ("y ~ bs(x, df=5)", "bs(...)"),
        ("y ~ center(x) + scale(z)", "center(...), scale(...)"),
        ("y ~ I(x - np.mean(x)) + z", "mean(...)"),
        ("y ~ bs(x, df=4, knots=[0.5], lower_bound=0, upper_bound=20)", ""),
        ("y ~ np.log(x + 1) + C(k)", ""),
    ],
)
def test_what_a_formula_learned_from_all_rows_is_said(formula, said):
    rng = np.random.default_rng(8)
    data = pd.DataFrame(
        {
            "x": np.sort(rng.exponential(size=40)),
            "z": rng.normal(size=40),
            "k": np.resize(list("ab"), 40),
        }
    )
    data["y"] = np.sin(3 * data.x) + 0.3 * rng.normal(size=40)
    fit = lo.from_statsmodels(smf.ols(formula, data).fit())
    text = " ".join(str(lo.cross_validate(fit, lo.kfold(k=5))).split())
    wanted = f"the formula's {said} stays as made of all rows: what it learned is not left out"
    assert (wanted if said else "the formula's") in text if said else "the formula's" not in text
    assert (wanted in str(fit)) == bool(said)


def _robust_hosts():
    rng = np.random.default_rng(5)
    X = sm.add_constant(rng.standard_normal((40, 2)))
    return (
        X,
        X @ [1.0, 1.0, -0.5] + rng.standard_normal(40),
        rng.uniform(0.5, 2.0, 40),
        np.arange(40) // 4,
    )


def test_independent_errors_and_equations_are_those_of_regressions():
    X, y, variance, cluster = _robust_hosts()
    count = np.floor(np.exp(0.5 * y))
    hosts = {
        "GLS": lambda rows: sm.GLS(y[rows], X[rows], sigma=variance[rows]),
        "GEE": lambda rows: sm.GEE(
            count[rows],
            X[rows],
            cluster[rows],
            family=sm.families.Poisson(),
            weights=variance[rows],
        ),
    }
    for host in hosts.values():
        fit = lo.from_statsmodels(host(slice(None)).fit())
        coef = lo.fold_parameters(fit, lo.groups(cluster), strategy=lo.Exact())["coef"]
        np.testing.assert_allclose(coef[0], host(cluster != 0).fit().params, rtol=1e-6)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (lambda X, y, v, g: sm.QuantReg(y, X).fit(), "its loss has kinks; lo.fit"),
        (lambda X, y, v, g: sm.RLM(y, X).fit(), "Huber's own regression"),
        (lambda X, y, v, g: sm.GLSAR(y, X, 1).fit(), "lo.blocks"),
        (
            lambda X, y, v, g: sm.GLS(y, X, sigma=np.eye(40) + 0.1).fit(),
            "lo.Mixed, lo.GaussianProcess",
        ),
        (
            lambda X, y, v, g: sm.GEE(y, X, g, cov_struct=sm.cov_struct.Exchangeable()).fit(),
            "take Independence",
        ),
        (
            lambda X, y, v, g: sm.GLM(y, X).fit_constrained(np.array([[0, 1, 0]])),
            "fit_constrained are not read",
        ),
        (lambda X, y, v, g: sm.OLS(y, X), "give the results of a fitted model"),
    ],
)
def test_hosts_without_a_loss_are_refused_with_a_way(host, reason):
    with pytest.raises(TypeError, match=reason):
        lo.from_statsmodels(host(*_robust_hosts()))


def test_results_without_data_are_refused_in_words():
    X, y, *_ = _robust_hosts()
    results = sm.OLS(y, X).fit()
    results.remove_data()
    with pytest.raises(ValueError, match=r"hold no data, as remove_data\(\)"):
        lo.from_statsmodels(results)
