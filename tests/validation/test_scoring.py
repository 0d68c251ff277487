"""Scores by name against their definitions on refits from scratch.

What cannot be compared is refused.
"""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy
from sklearn.linear_model import LinearRegression

import leaveout as lo
from leaveout.validation.compare import tail_index
from tests.helpers import cox, glm, regression, toy_hmm

N = 40


def least_squares(weights=None):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((N, 2))
    y = X @ [1.0, -0.5] + 2 + rng.standard_normal(N) * 3
    return X, y, lo.fit(lo.GLM(X, y, "squared", sample_weight=weights))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "plan", [lo.leave_one_out(N), lo.kfold(N, 5, rng=0), lo.bootstrap(N, 4, rng=0)]
)
def test_normal_scores_take_the_variance_of_what_a_refit_sees(plan, weighted):
    weights = np.random.default_rng(5).gamma(2.0, 1.0, N) if weighted else None
    X, y, fit = least_squares(weights)
    density, crps = (
        lo.cross_validate(fit, plan, evaluate=name) for name in ("log_density", "crps")
    )
    for k in range(plan.num_refits):
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        rest = np.ones(N) if weights is None else weights.copy()
        rest[plan.index[mine]] *= plan.weight[mine]
        host = LinearRegression().fit(X, y, rest)
        sigma = np.sqrt(np.average((y - host.predict(X)) ** 2, weights=rest))
        at = np.flatnonzero(plan.held[mine]) + mine.start
        unit = plan.index[at]
        z = (y[unit] - host.predict(X[unit])) / sigma
        np.testing.assert_allclose(
            density.losses[at], -scipy.stats.norm.logpdf(z) + np.log(sigma), rtol=1e-9
        )
        known = (
            z * (2 * scipy.special.ndtr(z) - 1) + 2 * scipy.stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
        )
        np.testing.assert_allclose(crps.losses[at], sigma * known, rtol=1e-9)


NODES = np.linspace(-12, 12, 161)  # of t: y = t, or exp(t / 2), by the trapezoid rule


@pytest.mark.parametrize(
    "loss, side",
    [
        (lo.losses.Squared("log"), "any"),
        (lo.losses.Squared("inverse"), "any"),
        (lo.losses.Tweedie(0.0, 2.5, "identity"), "any"),
        (lo.losses.Gamma(2.5), "positive"),
        (lo.losses.Gamma(4.0, "inverse"), "positive"),
        (lo.losses.InverseGaussian(3.0), "positive"),
        (lo.losses.Tweedie(2.0, 0.4), "positive"),
        (lo.losses.Tweedie(3.0, 0.4), "positive"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nothing has estimated it")
def test_densities_integrate_to_one(loss, side):
    """Over many responses of one row, all held out together, of a fit to other rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 1.5, 30)
    seen = rng.gamma(4.0, np.exp(0.3 * x) / 4)
    asked, slope = (NODES, 1.0) if side == "any" else (np.exp(NODES / 2), np.exp(NODES / 2) / 2)
    X, y = np.r_[x, np.ones(len(asked))][:, None], np.r_[seen, asked]
    weight = np.r_[np.ones(30), np.full(len(asked), 1e-9)]  # so that the fit is near the refit
    offset = np.r_[rng.uniform(0, 0.2, 30), np.full(len(asked), 0.1)]
    fit = lo.fit(lo.GLM(X, y, loss, sample_weight=weight, offset=offset))
    plan = lo.from_splits([(np.arange(30), np.arange(30, len(y)))], len(y))
    cv = lo.cross_validate(fit, plan, strategy=lo.Exact(), evaluate="log_density")
    assert cv.score == "−log density"
    density = np.exp(-cv.losses)
    step = NODES[1] - NODES[0]
    assert step * np.sum(density * slope) == pytest.approx(1.0, rel=1e-6)
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    mean = loss.inverse_link(theta["intercept"][0] + theta["coef"][0, 0] + 0.1)
    # and their mean is the prediction
    assert step * np.sum(density * slope * asked) == pytest.approx(mean, rel=1e-5)


def test_a_shape_that_nothing_has_estimated_is_told():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((N, 2)), rng.gamma(3.0, size=N)
    of = lambda model: lo.cross_validate(
        lo.fit(model), lo.kfold(k=4), strategy=lo.Exact(), evaluate="log_density", audit=0
    )
    free = of(lo.Regression(X, y, "gamma"))
    for name in ("log_density", "crps"):
        with pytest.warns(
            UserWarning,
            match=rf"the {name} of GLM \(Gamma\) is of the shape 1, .* nothing has estimated it",
        ):
            lo.cross_validate(lo.fit(lo.GLM(X, y, "gamma")), lo.kfold(N, 4), evaluate=name)
    shape = lo.fit(lo.Regression(X, y, "gamma")).parameters["shape"]
    with pytest.warns(UserWarning, match="is of the shape"):
        fixed = of(lo.GLM(X, y, lo.losses.Gamma(shape)))
    assert fixed.mean == pytest.approx(free.mean, rel=0.05) and fixed.score == free.score


def integral(cdf, y, whole):
    """∫ (P(Y ≤ t) − 1[y ≤ t])² dt by summing, or by quadrature on both sides of y."""
    if whole:
        t = np.arange(4000)
        return np.sum((cdf(t) - (y <= t)) ** 2)
    below = scipy.integrate.quad(lambda t: cdf(t) ** 2, 0, y, limit=200)[0]
    return (
        below
        + scipy.integrate.quad(lambda t: (1 - cdf(t)) ** 2, y, y + 200 * (1 + y), limit=500)[0]
    )


@pytest.mark.parametrize(
    "name",
    [
        "poisson",
        "NegativeBinomial",
        "gamma shape",
        pytest.param("negative_binomial", marks=pytest.mark.slow),
    ],
)
def test_crps_is_the_integral(name):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, 2))
    mean = np.exp(X @ [0.3, -0.4] + 1)
    counts, sizes = rng.negative_binomial(2, 2 / (2 + mean)).astype(float), rng.gamma(2.0, mean / 2)
    models = {
        "poisson": lambda: lo.GLM(X, counts, "poisson"),
        "NegativeBinomial": lambda: lo.GLM(X, counts, lo.losses.NegativeBinomial(0.5)),
        "negative_binomial": lambda: lo.Regression(X, counts, "negative_binomial"),
        "gamma shape": lambda: lo.Regression(X, sizes, "gamma"),
    }
    fit, plan = lo.fit(models[name]()), lo.kfold(N, 4, rng=1)
    cv = lo.cross_validate(fit, plan, strategy=lo.Exact(), evaluate="crps")
    theta, y = lo.fold_parameters(fit, plan, strategy=lo.Exact()), np.asarray(fit.objective.y)
    for place in range(0, N, 5):
        k, unit = plan.refit[place], plan.index[place]
        mu = np.exp(theta["intercept"][k] + X[unit] @ theta["coef"][k])
        alpha = theta["dispersion"][k] if "dispersion" in theta else 0.5
        shape = theta["shape"][k] if "shape" in theta else 2.0
        law = {
            "poisson": scipy.stats.poisson(mu),
            "gamma": scipy.stats.gamma(shape, scale=mu / shape),
        }.get(name.split()[0], scipy.stats.nbinom(1 / alpha, 1 / (1 + alpha * mu)))
        assert cv.losses[place] == pytest.approx(
            integral(law.cdf, y[unit], "gamma" not in name), rel=1e-5
        )


@pytest.mark.parametrize(
    "model", ["logistic", "multinomial", "poisson", pytest.param("ordinal", marks=pytest.mark.slow)]
)
def test_measures_of_predictions(model):
    objective = regression("ordinal") if model == "ordinal" else glm(model)
    fit, plan = lo.fit(objective), lo.kfold(60, 6, rng=0)
    predicted, y = (
        np.asarray(lo.cross_predict(fit, plan, strategy=lo.Exact())),
        np.asarray(objective.units.target),
    )
    classes = predicted.ndim > 1
    wanted = {
        "squared_error": (((np.eye(3)[y.astype(int)] if classes else y) - predicted) ** 2)
        .reshape(60, -1)
        .sum(1)
    }
    if classes or model == "logistic":
        wanted["zero_one"] = (predicted.argmax(1) if classes else predicted > 0.5) != y
    if not classes:
        wanted["absolute_error"] = np.abs(y - predicted)
    for name, values in wanted.items():
        cv = lo.cross_validate(fit, plan, strategy=lo.Exact(), evaluate=name)
        np.testing.assert_allclose(np.asarray(cv.per_unit()), values, atol=1e-7)
        near = lo.cross_validate(fit, plan, strategy=lo.NewtonStep(), evaluate=name)
        off = np.bincount(plan.refit, np.abs(near.losses - cv.losses))
        assert (
            not near.proved.any()
            and (off <= near.error + cv.error + 1e-9).all()
            and np.isfinite(near.error).all()
        )


@pytest.mark.slow
def test_a_models_own_density_is_its_own_loss():
    for objective in (glm("logistic"), regression("negative_binomial"), toy_hmm()):
        fit, plan = lo.fit(objective), lo.kfold(60, 3)
        if not objective.units.score:
            with pytest.raises(ValueError, match="has no log_density"):
                lo.cross_validate(fit, plan, evaluate="log_density")
            continue
        own, named = (
            lo.cross_validate(fit, plan),
            lo.cross_validate(fit, plan, evaluate="log_density"),
        )
        np.testing.assert_array_equal(own.losses, named.losses)
        np.testing.assert_array_equal(own.proved, named.proved)


@pytest.mark.parametrize(
    "model, name, message",
    [
        (lambda: glm("squared"), "rmse", "must be a function or one of log_density"),
        (lambda: glm("squared"), "zero_one", "needs classes"),
        (lambda: glm("multinomial"), "absolute_error", "needs a response that is a number"),
        (lambda: glm("huber"), "log_density", "no density"),
        (lambda: glm("huber"), "crps", "it is there for squared"),
        (lambda: glm(lo.losses.Tweedie(1.5)), "log_density", "evaluate='squared_error'"),
        (
            lambda: cox(),
            "crps",
            "Cox",
        ),
    ],
)
def test_scores_that_a_model_does_not_have(model, name, message):
    fit = lo.fit(model())
    with pytest.raises(ValueError, match=message):
        lo.cross_validate(fit, lo.leave_one_out(fit.objective.num_units), evaluate=name)


def test_what_cannot_be_compared_is_refused():
    rng = np.random.default_rng(0)
    X, plan = rng.standard_normal((200, 2)), lo.kfold(200, 5)
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    of = lambda loss, y=y, **more: lo.cross_validate(lo.fit(lo.GLM(X, y, loss)), plan, **more)
    with pytest.raises(ValueError, match="other responses, such as"):
        lo.compare({"raw": of("squared"), "log": of("squared", np.log1p(y))})
    with pytest.raises(
        ValueError, match=r"'a' by −log probability; 'b' by half the squared error.*squared_error"
    ):
        lo.compare({"a": of("poisson"), "b": of("squared")})
    with pytest.raises(ValueError, match="a density and a probability have no common scale"):
        lo.compare({"a": of("poisson"), "b": of("squared", evaluate="log_density")})
    own = of("poisson", evaluate=lambda held, seen, found: np.square(y[held]))
    with pytest.warns(UserWarning, match="what the losses of 'own' are is not known"):
        lo.compare({"a": of("poisson"), "own": own})
    table = lo.compare({"a": of("poisson", evaluate="crps"), "b": of("squared", evaluate="crps")})
    assert list(table.index) == ["a", "b"] and "weight" not in table
    assert table.p_worse["b"] == pytest.approx(
        scipy.stats.norm.cdf(table.difference["b"] / table.se_difference["b"])
    )


def distance(X, y, power):
    return lambda held, seen, found: (
        np.abs(y[held] - X[held] @ found["coef"] - found["intercept"]) ** power
    )


@pytest.mark.filterwarnings("ignore:compare. 40 independent units")
def test_losses_of_two_models_of_ones_own_are_not_taken_for_one_score():
    X, y, _ = least_squares()
    start = {"coef": np.zeros(X.shape[1])}
    away = lambda power: lambda theta, row: (row["y"] - row["x"] @ theta["coef"]) ** power
    own = {
        power: lo.fit(lo.Separable(away(power), {"x": X, "y": y}, theta0=start)) for power in (2, 4)
    }
    found = {str(power): lo.cross_validate(fit, lo.kfold(k=5)) for power, fit in own.items()}
    with pytest.warns(UserWarning, match="losses of '2', '4' are is not known"):
        lo.compare(found)


@pytest.mark.filterwarnings("ignore:compare. 40 independent units")
def test_two_functions_are_not_taken_for_one_score():
    X, y, _ = least_squares()
    designs = {"both": X, "one": X[:, :1]}
    plan, fits = (
        lo.kfold(N, 5),
        {name: lo.fit(lo.GLM(x, y, "squared")) for name, x in designs.items()},
    )
    of = lambda *powers: {
        name: lo.cross_validate(fit, plan, evaluate=distance(designs[name], y, power))
        for (name, fit), power in zip(fits.items(), powers, strict=True)
    }
    told = "losses of 'both', 'one' are is not known; they are taken to be of one score, though by other functions"
    with pytest.warns(UserWarning, match=told):
        lo.compare(of(1, 2))
    with warnings.catch_warnings(record=True) as caught:  # one function of other data
        warnings.simplefilter("always")
        lo.compare(of(2, 2))
    assert len(caught) < 2 and not any("function" in str(each.message) for each in caught)
    own = {
        "both": lambda held, seen, found: (y[held] - found["intercept"]) ** 2,
        "one": lambda held, seen, found: abs(y[held] - found["intercept"]),
    }
    with pytest.warns(UserWarning, match=told):
        lo.compare({name: lo.cross_validate(fits[name], plan, evaluate=own[name]) for name in own})


@pytest.mark.filterwarnings("ignore:compare. 40 independent units")
def test_models_that_differ_by_many_standard_errors_are_not_alike():
    """By 3 in summed log density, evenly: the second is worse in every row.

    And by as much, in a few.
    """
    X, y, _ = least_squares()
    fit = lo.fit(lo.GLM(X, y, "squared"))
    found = lo.cross_validate(fit, lo.leave_one_out(), evaluate="log_density")
    worse = lambda more: dataclasses.replace(found, losses=found.losses + more)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sure = lo.compare({"a": found, "b": worse(0.05 + 0.001 * rng.standard_normal(N))})
    assert sure.p_worse["b"] > 0.999 and not any("alike" in str(each.message) for each in caught)
    with pytest.warns(UserWarning, match="'b' and 'a' differ by less than 4 in summed log density"):
        unsure = lo.compare({"a": found, "b": worse(0.05 + 0.5 * (-1.0) ** np.arange(N))})
    assert 0.5 < unsure.p_worse["b"] < 0.97


@pytest.mark.filterwarnings("ignore:compare. ")
def test_a_printed_comparison_keeps_its_columns():
    X, y, _ = least_squares()
    of = lambda a: lo.cross_validate(
        lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(a))),
        lo.leave_one_out(),
        evaluate="log_density",
    )
    table = lo.compare({f"ridge of penalty {a:g}": of(a) for a in (0.1, 10.0, 100.0)})
    first, *rows = str(table).splitlines()
    assert (
        first.split()[:5] == ["mean", "se", "difference", "se_difference", "p_worse"]
        and max(map(len, [first, *rows])) <= 80
    )
    for name, row in zip(table.index, rows, strict=False):
        shown = table.loc[name, ["mean", "se", "difference", "se_difference", "p_worse"]].astype(
            float
        )
        assert row.startswith(name)
        np.testing.assert_allclose(
            list(map(float, row.removeprefix(name).split()[:5])), shown, rtol=1e-5
        )
    assert "SE: rows independent" in repr(table) and "approximation_error" in repr(table)
    less = dataclasses.replace(of(1.0), losses=np.where(np.arange(N) == 3, np.nan, of(1.0).losses))
    assert "missing" in str(lo.compare({"a": of(1.0), "b": less})) and "missing" not in str(table)


@pytest.mark.filterwarnings("ignore:compare. ")
def test_a_comparison_says_what_r_and_arviz_say():
    """Summed differences, zero or less.

    And why a difference is not normal, tails as ArviZ's Pareto k without its prior.
    """
    fit, rng = lo.fit(glm("logistic")), np.random.default_rng(0)
    found = lo.cross_validate(fit, lo.leave_one_out())
    wide = dataclasses.replace(found, losses=found.losses + 1.0 + rng.standard_cauchy(60))
    table = lo.compare(
        {"a": found, "b": dataclasses.replace(found, losses=found.losses + 0.01), "c": wide}
    )
    apart = wide.losses - found.losses
    assert list(table.diagnosis[["a", "b", "c"]]) == [
        "",
        "N < 100; |elpd_diff| < 4",
        "N < 100; heavy tails",
    ]
    assert (
        table.elpd_diff["c"] == pytest.approx(-apart.sum())
        and table.elpd_diff["a"] == table.se_diff["a"] == 0
    )
    assert (
        table.se_diff["c"] == pytest.approx(np.sqrt(60) * apart.std(ddof=1))
        and table.p_worse["b"] > 0.5
    )
    assert "diagnosis of c: N < 100; heavy tails" in str(table)
    stats = pytest.importorskip("arviz.stats.stats")
    x = np.sort(scipy.stats.genpareto.rvs(0.7, size=500, random_state=1))
    count = int(3 * np.sqrt(500))
    k, _ = stats._gpdfit(x[-count:] - x[-count - 1])
    assert tail_index(x) == pytest.approx((k * (count + 10) - 5) / count)
    assert "pareto_k" not in found.to_arviz()


def logged():
    """Models of y and of log y, densities of y by refits from scratch, and a function of the user's
    that scores both.
    """
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 1))
    y = np.exp(1 + 0.6 * X[:, 0] + 0.3 * rng.normal(size=120))

    def density(z, shift):
        def score(held, seen, found):
            mean, scale = found["intercept"] + X[held] @ found["coef"], found["scale"]
            return -scipy.stats.norm.logpdf(z[held], mean, scale) + shift[held]

        return score

    fits = {
        name: lo.fit(lo.Regression(X, z, "gaussian"))
        for name, z in (("raw", y), ("log", np.log(y)))
    }
    scores = {"raw": density(y, 0 * y), "log": density(np.log(y), np.log(y))}
    true = {name: np.empty(120) for name in fits}
    for i in range(120):
        design = np.c_[np.ones(119), np.delete(X, i)]
        for name, z in (("raw", y), ("log", np.log(y))):
            b, squares, *_ = np.linalg.lstsq(design, np.delete(z, i), rcond=None)
            mean, scale = b[0] + b[1] * X[i, 0], np.sqrt(squares[0] / 119)
            true[name][i] = -scipy.stats.norm.logpdf(z[i], mean, scale) + (
                np.log(y[i]) if name == "log" else 0
            )
    return y, fits, scores, true


def test_a_transformed_response_is_compared_by_its_jacobian_or_by_one_function():
    y, fits, scores, true = logged()
    plan, apart = lo.leave_one_out(120), np.mean(true["raw"] - true["log"])
    own = {
        name: lo.cross_validate(fit, plan, strategy=lo.Exact(), evaluate=scores[name])
        for name, fit in fits.items()
    }
    with pytest.warns(
        UserWarning, match=r"other responses.*to be on one scale, that of evaluate=, which is asked"
    ):
        assert lo.compare(own).difference["raw"] == pytest.approx(apart, rel=1e-6)
    plain = {name: lo.cross_validate(fit, plan, strategy=lo.Exact()) for name, fit in fits.items()}
    with pytest.raises(ValueError, match=r"jacobian=\{name: log"):
        lo.compare(plain)
    table = lo.compare(plain, jacobian={"log": pd.Series(-np.log(y))})
    assert table.difference["raw"] == pytest.approx(apart, rel=1e-6)
    np.testing.assert_allclose(table.estimates["log"].per_unit(), true["log"], rtol=1e-6)
    other = own | {
        "log": lo.cross_validate(
            fits["log"], plan, strategy=lo.Exact(), evaluate=lambda *a: scores["log"](*a)
        )
    }
    # by another function: it is taken for one score, and that is said
    with pytest.warns(UserWarning) as caught:
        assert lo.compare(other).difference["raw"] == pytest.approx(apart, rel=1e-6)
    assert any("is not known" in str(one.message) for one in caught)


@pytest.mark.parametrize(
    ("jacobian", "error", "message"),
    [
        ({"c": np.zeros(40)}, ValueError, "jacobian names 'c', which is none of 'a', 'b'"),
        (
            {"a": np.zeros(3)},
            ValueError,
            "jacobian of 'a' must be one a unit, 40; got 3",
        ),
        (
            {"a": np.full(40, np.inf)},
            ValueError,
            "must be finite numbers, log .dz/dy. of every unit",
        ),
        (np.zeros(40), TypeError, "give jacobian by name"),
        ({"squared": np.zeros(40)}, ValueError, "losses of 'squared' are half the squared error"),
    ],
)
def test_jacobians_that_cannot_be(jacobian, error, message):
    X, y, _ = least_squares()
    of = lambda loss: lo.cross_validate(
        lo.fit(lo.GLM(X, y, "squared")), lo.kfold(k=5), evaluate=loss
    )
    with pytest.raises(error, match=message):
        found = {"a": of("log_density"), "b": of("log_density")}
        lo.compare(
            found | ({"squared": of(None)} if "squared" in jacobian else {}), jacobian=jacobian
        )


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:compare. .* independent units", "ignore:compare. the approximation error"
)
def test_losses_of_ones_own_are_not_taken_for_one_score():
    """Of rows, as functions and as classes of one name, of units, of all units.

    And one function under two penalties.
    """
    X, y, _ = least_squares()
    plan, ridge = lo.kfold(N, 5), lo.penalties.Ridge

    class Far(lo.losses.AbstractLoss):
        self_concordance = 1.0
        times: float

        def __call__(self, eta, y):
            return self.times * jnp.logaddexp(eta - y, y - eta)

    square, bent = lambda eta, y: (eta - y) ** 2, lambda eta, y: jnp.logaddexp(eta - y, y - eta)
    unit = lambda power: lambda theta, row: (row["y"] - row["X"] @ theta) ** power
    rows = lambda loss, alpha=1.0: lo.GLM(X, y, loss, ridge(alpha))
    whole = lambda loss: lo.Objective(
        lambda theta, w: jnp.sum(w * loss(X @ theta, y)) + theta @ theta, N
    )
    of = lambda model, *start: lo.cross_validate(lo.fit(model, *start), plan, audit=0)
    separable = lambda power: of(lo.Separable(unit(power), {"X": X, "y": y}), np.ones(X.shape[1]))
    for one, other in (
        (of(rows(square)), of(rows(bent))),
        (of(rows(Far(1.0))), of(rows(Far(2.0)))),
        (of(rows(Far(1.0))), of(rows(bent))),
        (separable(2), separable(4)),
        (of(whole(square), np.ones(X.shape[1])), of(whole(bent), np.ones(X.shape[1]))),
    ):
        with pytest.warns(
            UserWarning,
            match="what the losses of 'a', 'b' are is not known; they are taken to be of one score",
        ):
            lo.compare({"a": one, "b": other})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lo.compare({"a": of(rows(square)), "b": of(rows(square, 9.0))})
    assert not any("is not known" in str(each.message) for each in caught)


def test_differences_of_cases_are_summed_as_those_of_rows():
    rng = np.random.default_rng(0)
    X, y, cases = rng.normal(size=(12, 2)), rng.poisson(2.0, 12), rng.integers(1, 4, 12)
    row = np.repeat(np.arange(12), cases)
    fits = lambda some, **more: [
        lo.fit(lo.GLM(X[some, :p], y[some], "poisson", lo.penalties.Ridge(1.0), **more))
        for p in (1, 2)
    ]
    kinds = (
        (fits(np.arange(12), weights=cases), lo.leave_one_out(cases=True)),
        (fits(row), lo.leave_one_out(len(row))),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few units
        ours, rows = (
            lo.compare(
                {
                    name: lo.cross_validate(f, plan, strategy=lo.Exact())
                    for name, f in zip("ab", some, strict=True)
                }
            )
            for some, plan in kinds
        )
    for column in ("elpd_diff", "se_diff", "pseudo_bma"):
        np.testing.assert_allclose(ours[column], rows[column], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:compare")
def test_stacking_finds_the_mixture_of_lowest_loss():
    """Each of two models knows half of the units: neither is left out.

    One that knows nothing is.
    """
    rng = np.random.default_rng(1)
    half = np.arange(400) % 2 == 0
    X = rng.standard_normal((400, 2))
    y = (rng.random(400) < 1 / (1 + np.exp(-3 * np.where(half, X[:, 0], X[:, 1])))).astype(float)
    plan = lo.kfold(k=5, rng=1)
    parts = {"first": X[:, :1], "second": X[:, 1:], "none": rng.standard_normal((400, 1))}
    found = {
        name: lo.cross_validate(lo.fit(lo.GLM(x, y, "logistic")), plan) for name, x in parts.items()
    }
    table = lo.compare(found)
    assert table.weight.sum() == pytest.approx(1) and table.weight[["first", "second"]].min() > 0.2
    density = {name: np.exp(-cv.per_unit()) for name, cv in found.items()}
    loss = lambda a: -np.mean(np.log(sum(a[name] * density[name] for name in a)))
    best = table.weight.to_dict()
    for name in best:  # no move towards one of them is better
        assert (
            loss({k: 0.99 * v + 0.01 * (k == name) for k, v in best.items()}) >= loss(best) - 1e-9
        )


def test_comparisons_that_say_little_are_told_of():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = (rng.random(60) < 0.5).astype(float)
    of = lambda x: lo.cross_validate(lo.fit(lo.GLM(x, y, "logistic")), lo.kfold(k=5))
    with (
        pytest.warns(UserWarning, match="60 independent units are fewer than 100"),
        pytest.warns(UserWarning, match="less than 4"),
    ):
        lo.compare({"one": of(X[:, :1]), "two": of(X)})


def test_the_printed_result_says_what_the_loss_is():
    fit = lo.fit(glm("squared"))
    assert "a unit, half the squared error (SE" in str(lo.cross_validate(fit, lo.kfold(k=3)))
    assert "a unit, CRPS (SE" in str(lo.cross_validate(fit, lo.kfold(k=3), evaluate="crps"))


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:The inplace keyword"
)
def test_arviz_compares_alike():
    az = pytest.importorskip("arviz")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 3))
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    plan = lo.leave_one_out(150)
    found = {k: lo.cross_validate(lo.fit(lo.GLM(X[:, :k], y, "poisson")), plan) for k in (1, 2, 3)}
    with pytest.warns(UserWarning, match="less than 4"):
        ours = lo.compare(found)
    theirs = az.compare({str(k): cv.to_arviz() for k, cv in found.items()})
    assert [int(name) for name in theirs.index] == list(ours.index)
    np.testing.assert_allclose(theirs["elpd_diff"], 150 * ours.difference, atol=1e-9)
    np.testing.assert_allclose(theirs["weight"], ours.weight, atol=1e-3)
    # theirs divides by n
    np.testing.assert_allclose(theirs["dse"], 150 * ours.se_difference, rtol=0.01)
    with pytest.raises(ValueError, match="to_arviz: ArviZ compares log densities"):
        lo.cross_validate(lo.fit(glm("squared")), lo.kfold(60, 3)).to_arviz()


def test_refits_that_are_not_close_enough_for_another_score_go_on():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 40))
    y = (rng.random(1500) < 1 / (1 + np.exp(-X @ rng.standard_normal(40) / 6))) * 1.0
    fit, plan = lo.fit(lo.GLM(X, y, "logistic")), lo.leave_one_out(1500)
    cv, exact = (
        lo.cross_validate(fit, plan, strategy=refit, evaluate="squared_error")
        for refit in (lo.Certified(), lo.Exact())
    )
    assert (
        not len(cv.flagged())
        and (np.abs(cv.losses - exact.losses) <= cv.error + exact.error + 1e-12).all()
    )


@pytest.mark.parametrize("size", [0.3, 5.0, 500.0, 1e5])
@pytest.mark.parametrize("mean", [0.02, 3.0, 180.0, 4000.0])
def test_crps_of_counts_large_and_small(mean, size):
    """SciPy's ₂F₁ and unscaled Bessel functions overflow from a few hundred on."""
    from leaveout.models.glm.distributions import NEGATIVE_BINOMIAL, POISSON

    laws = scipy.stats.nbinom(size, size / (size + mean)), scipy.stats.poisson(mean)
    t = np.arange(int(laws[0].ppf(1 - 1e-13)) + 10)
    for law, found in zip(laws, (NEGATIVE_BINOMIAL.crps, POISSON.crps), strict=True):
        below = law.cdf(t)
        for y in (0, int(mean), int(law.ppf(0.99))):
            wanted = np.sum((below - (y <= t)) ** 2)
            assert float(
                found(np.array([mean]), np.array([1 / size]), np.array([float(y)]))[0]
            ) == pytest.approx(wanted, rel=1e-8)


def test_one_outlier_does_not_cancel_what_is_left():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 2)), rng.standard_normal(50)
    for size in (1e4, 1e8, 1e12):
        y[7] = size
        fit = lo.fit(lo.GLM(X, y, "squared"))
        cv = lo.cross_validate(fit, lo.leave_one_out(), evaluate="log_density")
        rest = np.arange(50) != 7
        host = LinearRegression().fit(X[rest], y[rest])
        variance = np.mean((y[rest] - host.predict(X[rest])) ** 2)
        wanted = 0.5 * (
            (size - host.predict(X[[7]])[0]) ** 2 / variance + np.log(2 * np.pi * variance)
        )
        assert (
            cv.losses[7] == pytest.approx(wanted, rel=1e-6 if size < 1e12 else 0.1)
            or cv.error[7] > 0.1 * wanted
        )


def test_two_classes_are_scored_alike_whichever_loss():
    """One column of probabilities or two; Brier's score of three classes is another."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 2))
    y, plan = (X[:, 0] + rng.logistic(size=150) > 0).astype(float), lo.kfold(150, 5)
    two = {
        "one": lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)),
        "two": lo.GLM(X, y, "multinomial", lo.penalties.Ridge(0.2)),
    }
    for name in ("squared_error", "absolute_error", "zero_one"):
        a, b = (
            lo.cross_validate(lo.fit(m), plan, strategy=lo.Exact(), evaluate=name)
            for m in two.values()
        )
        assert a.mean == pytest.approx(b.mean, abs=1e-6) and a.score == b.score
    three = lo.cross_validate(lo.fit(glm("multinomial")), lo.kfold(k=3), evaluate="squared_error")
    assert three.score == "Brier score"


def test_the_same_response_under_other_names_or_weights():
    rng = np.random.default_rng(0)
    X, plan = rng.standard_normal((150, 2)), lo.kfold(150, 5)
    kinds = pd.Series(
        pd.Categorical.from_codes(rng.integers(0, 3, 150), ["low", "mid", "high"], ordered=True)
    )
    of = lambda model: lo.cross_validate(lo.fit(model), plan, strategy=lo.NewtonStep(), audit=0)
    ordinal, several = (
        of(lo.Regression(X, kinds, "ordinal")),
        of(lo.GLM(X, kinds, "multinomial", lo.penalties.Ridge(0.1))),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lo.compare({"ordinal": ordinal, "several": several})  # numbered otherwise, the same classes
        single = of(lo.GLM(X.astype(np.float32), (2 * X[:, 0]).astype(np.float32), "squared"))
        lo.compare({"single": single, "double": of(lo.GLM(X, 2 * X[:, 0], "squared"))})
    other = of(lo.GLM(X, np.roll(kinds, 1), "multinomial", lo.penalties.Ridge(0.1)))
    with pytest.raises(ValueError, match="other responses"):
        lo.compare({"ordinal": ordinal, "other": other})
    y, weight = X[:, 0] + rng.standard_normal(150), rng.gamma(1.0, 1.0, 150)
    with pytest.raises(ValueError, match="weigh the units of the mean differently"):
        lo.compare(
            {
                "a": of(lo.GLM(X, y, "squared")),
                "b": of(lo.GLM(X, y, "squared", sample_weight=weight)),
            }
        )
    with pytest.raises(ValueError, match=r"to_arviz: units have other sample_weight"):
        of(lo.GLM(X, y > 0, "logistic", sample_weight=weight)).to_arviz()
    elsewhere = lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), lo.kfold(k=3))
    with pytest.warns(UserWarning, match="plans leave out other units"):
        lo.compare({"a": of(lo.GLM(X[:, :1], y, "squared")), "b": elsewhere})


@pytest.mark.parametrize("kind", ["survival times", pytest.param("chains", marks=pytest.mark.slow)])
@pytest.mark.slow_for("survival times")
def test_responses_of_chains_and_survival_times(kind):
    rng = np.random.default_rng(0)
    x, time = rng.poisson(3.0, 120).astype(float), rng.exponential(1.0, 120)
    models = {
        "survival times": lambda: [
            lo.Cox(x[:, None], v, np.ones(120)) for v in (time, time[::-1].copy())
        ],
        "chains": lambda: [lo.HMM(v, lo.emissions.Poisson(), 2) for v in (x, 2 * x)],
    }
    found = [
        lo.cross_validate(lo.fit(model, num_starts=1), lo.kfold(k=5), strategy=lo.NoUpdate())
        for model in models[kind]()
    ]
    with pytest.raises(ValueError, match="other responses"):
        lo.compare(dict(zip("ab", found, strict=True)))
