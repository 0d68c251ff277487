"""Functions of the parameters.

Closed forms of the jackknife, refits from scratch, bootstrap intervals, what is refused.
"""

import numpy as np
import pandas as pd
import pytest
import scipy
import scipy.stats

import leaveout as lo
from tests.helpers import fitted, minimiser

rng = np.random.default_rng(3)
N = 100
FRAME = pd.DataFrame({"treated": rng.integers(0, 2, N), "age": rng.standard_normal(N)})
ILL = (rng.logistic(size=N) < FRAME.treated + 0.5 * FRAME.age).astype(float)
SITE = np.array([f"s{k:02d}" for k in np.arange(N) % 22])
FIT = lo.fit(lo.GLM(FRAME, ILL, "logistic"))


def odds_ratio(parameters):
    return np.exp(parameters["coef"][0])


def effect(parameters, refit):
    with_, without = (refit.predict(FRAME.assign(treated=level)) for level in (1, 0))
    return np.average(with_ - without, weights=refit.weights)


def test_the_jackknife_of_a_mean_squared():
    """Quenouille's correction makes the square of a mean unbiased, and Tukey's variance is in
    closed form.
    """
    y = rng.standard_normal(40) + 2
    fit = lo.fit(lo.GLM(np.ones((40, 1)), y, "squared", intercept=False))
    found = lo.diagnostics.functional(
        fit, lo.leave_one_out(), lambda parameters: parameters["coef"][0] ** 2
    )
    np.testing.assert_allclose(found.corrected, y.mean() ** 2 - y.var(ddof=1) / 40, rtol=1e-10)
    alone = np.array([np.delete(y, k).mean() ** 2 for k in range(40)])
    np.testing.assert_allclose(
        found.standard_error, np.sqrt(39 / 40 * np.sum((alone - alone.mean()) ** 2))
    )
    np.testing.assert_allclose(found.bias, 39 * (alone.mean() - y.mean() ** 2), rtol=1e-9)
    reach = scipy.stats.t(39).ppf(0.975) * found.standard_error
    np.testing.assert_allclose(found.interval, (y.mean() ** 2 - reach, y.mean() ** 2 + reach))
    delta = lo.diagnostics.functional(
        fit,
        lo.leave_one_out(),
        lambda parameters: parameters["coef"][0] ** 2,
        interval="delta",
        level=0.9,
    )
    half = scipy.stats.t(39).ppf(0.95) * 2 * y.mean() * y.std(ddof=1) / np.sqrt(40)
    np.testing.assert_allclose(delta.high - delta.estimate, half, rtol=1e-6)


def test_an_average_treatment_effect_by_refits_from_scratch():
    """The mean over units is over those that a refit sees, too."""
    found = lo.diagnostics.functional(FIT, lo.groups(SITE), effect)
    values = []
    for site in np.unique(SITE):
        some = site != SITE
        theta = minimiser(FIT.objective, FIT.theta, some.astype(float))
        ends = [
            scipy.special.expit(np.column_stack([FRAME.assign(treated=level), np.ones(N)]) @ theta)
            for level in (1, 0)
        ]
        values.append(np.mean((ends[0] - ends[1])[some]))
    np.testing.assert_allclose(found.replicates["f"], values, atol=1e-9)
    assert list(found.replicates.index) == list(np.unique(SITE)) and found.dof == 21
    np.testing.assert_allclose(
        found.standard_error, np.sqrt(21 / 22 * np.sum((values - np.mean(values)) ** 2)), rtol=1e-7
    )
    surveyed = lo.diagnostics.functional(FIT, lo.survey.jk1(SITE), effect)
    np.testing.assert_allclose(
        surveyed.table.drop(columns="error"), found.table.drop(columns="error"), rtol=1e-6
    )
    delta = lo.diagnostics.functional(FIT, lo.groups(SITE), effect, interval="delta")
    assert 0.7 < (delta.high - delta.low) / (found.high - found.low) < 1.3


def test_a_parameter_by_name_is_that_of_the_covariance():
    found = lo.diagnostics.functional(FIT, lo.groups(SITE), "treated")
    want = lo.covariance(FIT, "jackknife", groups=SITE, strategy=lo.Exact())
    np.testing.assert_allclose(found.standard_error, want.standard_errors["treated"])
    assert found.error < 1e-7 and "treated" in str(found) and "t of 21 degrees" in str(found)
    several = lo.diagnostics.functional(
        FIT, lo.groups(SITE), lambda p: {"a": p["coef"][0], "b": p["intercept"]}
    )
    assert list(several.table.index) == ["a", "b"] and several.estimate.shape == (2,)
    np.testing.assert_allclose(several.table.loc["a"], found.table.loc["treated"], rtol=1e-5)
    assert list(
        lo.diagnostics.functional(FIT, lo.groups(SITE), lambda p: p["coef"]).table.index
    ) == [
        "f[0]",
        "f[1]",
    ]


@pytest.mark.parametrize("groups", [None, SITE])
def test_bca_intervals_of_scipy(groups):
    """SciPy's formulas at our replicates; without bias and acceleration they are the quantiles."""
    y = rng.gamma(1.0, 1.0, N)
    fit = lo.fit(lo.GLM(np.ones((N, 1)), y, "squared", intercept=False))
    cube = lambda parameters: parameters["coef"][0] ** 3
    found = lo.diagnostics.functional(
        fit, lo.bootstrap(N, 400, groups=groups, rng=2), cube, level=0.9
    )
    draws = found.replicates["f"].to_numpy()
    label = np.arange(N) if groups is None else pd.factorize(groups)[0]
    alone = np.array([y[label != k].mean() ** 3 for k in range(label.max() + 1)])
    moved = alone.mean() - alone
    a = np.sum(moved**3) / (6 * np.sum(moved**2) ** 1.5)
    bias = scipy.stats.norm.ppf(np.mean(draws < y.mean() ** 3))
    z = bias + scipy.stats.norm.ppf([0.05, 0.95])
    np.testing.assert_allclose(
        found.interval, np.quantile(draws, scipy.stats.norm.cdf(bias + z / (1 - a * z))), rtol=1e-8
    )
    np.testing.assert_allclose(found.standard_error, draws.std(ddof=1), rtol=1e-8)
    assert found.kind == "BCa" and found.dof is None


def test_what_a_refit_does_not_determine_does_not_count():
    data = FRAME.assign(lone=(SITE == "s03") * 1.0)
    fit = lo.fit(lo.GLM(data, FRAME.age + rng.standard_normal(N), "squared"))
    with pytest.warns(UserWarning, match=r"\(s03\) do not determine lone"):
        found = lo.diagnostics.functional(
            fit, lo.groups(SITE), lambda p: {"age": p["coef"][1], "lone": p["coef"][2]}
        )
    assert found.replicates.loc["s03"].isna().tolist() == [
        False,
        True,
    ] and found.flagged.to_dict() == {"s03": "undetermined"}
    with pytest.warns(UserWarning):
        want = lo.covariance(fit, "jackknife", groups=SITE).standard_errors
    np.testing.assert_allclose(found.standard_error, want[["age", "lone"]])


def test_models_of_other_kinds():
    for name in ("Cox", "closed form"):
        fit = fitted(name)
        found = lo.diagnostics.functional(
            fit,
            lo.leave_one_out(),
            lambda p: next(iter(p.values())).ravel()[0],
        )
        want = lo.covariance(fit, "jackknife").standard_errors
        np.testing.assert_allclose(found.standard_error, want.iloc[0], rtol=1e-7)


def test_what_is_refused():
    refused = [
        (TypeError, "must be a Fit", (FRAME, odds_ratio, lo.groups(SITE)), {}),
        (
            TypeError,
            "f must be a function of the parameters, or the name of one; got int",
            (FIT, lo.groups(SITE), 3),
            {},
        ),
        (
            ValueError,
            "f must be a parameter, one of treated, age, intercept; got 'x9'",
            (FIT, lo.groups(SITE), "x9"),
            {},
        ),
        (ValueError, "f must return a number", (FIT, lo.groups(SITE), lambda p: "one"), {}),
        (
            ValueError,
            "f must return a number, or numbers of one count; got nan",
            (FIT, lo.groups(SITE), lambda p: np.nan),
            {},
        ),
        (ValueError, "f must return a number", (FIT, lo.groups(SITE), lambda p: None), {}),
        (TypeError, "plan must be a Plan.* got Series", (FIT, pd.Series(SITE), odds_ratio), {}),
        (
            ValueError,
            "leave out every unit once",
            (FIT, lo.random_subsets(N, 0.2, 5), odds_ratio),
            {},
        ),
        (
            ValueError,
            "or 'BCa' of a lo.bootstrap; got 'BCa'",
            (FIT, lo.groups(SITE), odds_ratio),
            {"interval": "BCa"},
        ),
        (ValueError, "interval must be", (FIT, lo.groups(SITE), odds_ratio), {"interval": "wald"}),
        (
            ValueError,
            "level must lie between 0 and 1",
            (FIT, lo.groups(SITE), odds_ratio),
            {"level": 95},
        ),
    ]
    for error, words, args, named in refused:
        with pytest.raises(error, match=words):
            lo.diagnostics.functional(*args, **named)
    with pytest.raises(AttributeError):
        _ = lo.diagnostics.functional(FIT, lo.groups(SITE), odds_ratio).nothing


def test_values_go_by_their_names():
    """Not by the order in which a refit's dictionary has them."""
    center = FIT.parameters["coef"][0]

    def named(parameters):
        found = {"a": parameters["coef"][0], "b": parameters["intercept"]}
        return found if found["a"] >= center else dict(reversed(found.items()))

    found = lo.diagnostics.functional(FIT, lo.groups(SITE), named)
    want = lo.diagnostics.functional(FIT, lo.groups(SITE), lambda p: [p["coef"][0], p["intercept"]])
    np.testing.assert_array_equal(found.table, want.table)


def test_the_picture_names_the_group_that_moves_most():
    pytest.importorskip("matplotlib").use("agg")
    y = np.where(SITE == "s05", 1 - FRAME.treated, ILL)
    fit = lo.fit(lo.GLM(FRAME, y, "logistic"))
    ax = lo.plot.folds(fit, lo.groups(SITE), "treated", num_shown=6)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert ax.get_title().startswith("without s05: ") and len(names) == 7 and names[-1] == "all"
    assert "without s05" in (names[0], names[5]) and ax.get_xlabel() == "treated"
    assert lo.plot.folds(fit, lo.groups(SITE), odds_ratio).get_xlabel() == "estimate"
    with pytest.raises(ValueError, match="f must return one number; got 2"):
        lo.plot.folds(fit, lo.groups(SITE), lambda p: p["coef"])
