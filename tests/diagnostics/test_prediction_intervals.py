"""Intervals for a new response: the paper's, by refits from scratch and by MAPIE; what they cover; what is refused."""

import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, PoissonRegressor, Ridge, RidgeClassifier
from sklearn.model_selection import KFold, LeaveOneOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import leaveout as lo
from tests.helpers import fitted

rng = np.random.default_rng(0)
N = 60
X, Z = rng.standard_normal((N, 3)), rng.standard_normal((15, 3))
Y = X @ [1.0, -0.5, 0.0] + rng.standard_t(3, N)
COUNTS = rng.poisson(np.exp(0.7 + 0.5 * X[:, 0])).astype(float)
LABELS = np.repeat(np.arange(12), [1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 5, 5])


def scratch(folds, x=X, y=Y, new=Z):
    """Predictions of new rows without the fold of each unit, `[rows, units]`, and how far these are from the unit itself."""
    means, distance = np.zeros((len(new), len(y))), np.zeros(len(y))
    for fold in folds:
        host = LinearRegression().fit(np.delete(x, fold, 0), np.delete(y, fold))
        means[:, fold], distance[fold] = host.predict(new)[:, None], np.abs(y[fold] - host.predict(x[fold]))
    return means, distance


def ranked(values, level):
    return np.sort(values, axis=-1)[..., int(np.ceil(level * (values.shape[-1] + 1))) - 1]


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_they_are_the_papers(level):
    fit = lo.from_sklearn(LinearRegression().fit(X, Y), X, Y)
    plan = lo.kfold(N, 7, seed=1)
    for folds, how in (([[i] for i in range(N)], {}), (np.split(plan.index, plan.indptr[1:-1]), {"plan": plan})):
        means, distance = scratch(folds)
        found = lo.interval(fit, Z, level, **how)
        np.testing.assert_allclose(found.high, ranked(means + distance, level), rtol=1e-10)
        np.testing.assert_allclose(found.low, -ranked(distance - means, level), rtol=1e-10)
        wide = lo.interval(fit, Z, level, "minmax", **how)
        np.testing.assert_allclose(wide.high, means.max(1) + ranked(distance, level), rtol=1e-10)
        np.testing.assert_allclose(wide.low, means.min(1) - ranked(distance, level), rtol=1e-10)
    np.testing.assert_allclose(found.prediction, LinearRegression().fit(X, Y).predict(Z), rtol=1e-12)
    ten = lo.interval(fit, Z, level, "cv+")
    pd.testing.assert_frame_equal(ten, lo.interval(fit, Z, level, plan=lo.kfold(N, 10, seed=0)))
    assert ten.attrs["method"] == "CV+" and ten.attrs["at_least"] == max(0, 2 * level - 1 - np.sqrt(2 / N))


@pytest.mark.parametrize("host", [LinearRegression(), Ridge(3.0), PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=1000)])
@pytest.mark.parametrize("splits", [LeaveOneOut(), KFold(6)])
@pytest.mark.parametrize("method", ["plus", "minmax"])
def test_they_are_mapies(host, splits, method):
    regression = pytest.importorskip("mapie.regression")
    y = COUNTS if isinstance(host, PoissonRegressor) else Y
    theirs = regression.CrossConformalRegressor(host, confidence_level=0.9, method=method, cv=splits)
    _, ends = theirs.fit_conformalize(X, y).predict_interval(Z)
    fit = lo.from_sklearn(host.fit(X, y), X, y)
    ours = lo.interval(fit, Z, 0.9, method, plan=lo.from_splits(splits.split(X), N), refit=lo.Exact())
    np.testing.assert_allclose(ours[["low", "high"]], ends[:, :, 0], atol=1e-6)


def weighted(values, weight, level):
    """The least value that `level` of the weight lies at or below, one by one."""
    order = sorted(range(len(values)), key=lambda k: values[k])
    total = 0.0
    for k in order:
        total += weight[k]
        if total >= level - 1e-12:
            return values[k]
    return np.inf


def test_groups_weigh_alike_whatever_their_size():
    fit = lo.fit(lo.GLM(X, Y, "squared"))
    means, distance = scratch([np.flatnonzero(g == LABELS) for g in range(12)])
    weight = 1 / 13 / np.bincount(LABELS)[LABELS]
    found = lo.interval(fit, Z, 0.8, groups=LABELS)
    high = [weighted(row + distance, weight, 0.8) for row in means]
    low = [-weighted(distance - row, weight, 0.8) for row in means]
    np.testing.assert_allclose(found[["low", "high"]], np.transpose([low, high]), rtol=1e-9)
    wide = lo.interval(fit, Z, 0.8, "minmax", groups=pd.Series(LABELS))
    np.testing.assert_allclose(wide.high, means.max(1) + weighted(distance, weight, 0.8), rtol=1e-9)
    assert found.attrs["method"] == "leave-one-group-out jackknife+" and found.attrs["at_least"] == pytest.approx(0.6)


@pytest.mark.parametrize("refit", [lo.Certified(), lo.NewtonStep(), lo.InfinitesimalJackknife(), lo.NoUpdate()], ids=repr)
def test_they_hold_what_exact_refits_give(refit):
    """Two rows of a high leverage move the refits: their own error is in the ends."""
    x = np.r_[X, [[4.0, 0, 0], [0, -5.0, 0]]]
    y = np.r_[COUNTS, 3.0, 9.0]
    fit = lo.fit(lo.GLM(x, y, "poisson"))
    for how in ({}, {"method": "minmax"}, {"plan": lo.kfold(N + 2, 5, seed=0)}):
        exact = lo.interval(fit, Z, refit=lo.Exact(), **how)
        found = lo.interval(fit, Z, refit=refit, **how)
        assert (found.low <= exact.low + 1e-9).all() and (found.high >= exact.high - 1e-9).all()
        assert exact.attrs["widened"] < 1e-6 < found.attrs["widened"] and exact.attrs["proved"]
        assert found.attrs["proved"] or not isinstance(refit, lo.Certified)
        assert (exact.low - found.low).max() <= 2 * found.attrs["widened"]  # as far again may the reported refits be off


def test_of_losses_with_parameters_of_their_own_errors_are_estimated():
    """A Gaussian's scale does not move the mean."""
    own = lo.interval(lo.fit(lo.Regression(X, Y, "gaussian")), Z, refit=lo.Exact())
    plain = lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z)
    np.testing.assert_allclose(own, plain, atol=1e-6)
    assert not own.attrs["proved"] and plain.attrs["proved"]


def share_covered(draw, grouped, level=0.9, repeats=40):
    """Of five new responses a data set."""
    hits = []
    for seed in range(repeats):
        x, y, labels = draw(np.random.default_rng(seed))
        fit = lo.fit(lo.GLM(x[:-5], y[:-5], "squared"))
        found = lo.interval(fit, x[-5:], level, groups=labels[:-5] if grouped else None)
        hits.append((found.low <= y[-5:]) & (y[-5:] <= found.high))
    return np.mean(hits)


def alike(rng, groups=12, size=3):
    """Rows of groups that share an effect; the last five are of new groups."""
    labels = np.r_[np.repeat(np.arange(groups), size), groups + np.arange(5)]
    x = rng.standard_normal((len(labels), 2))
    return x, x.sum(1) + 2 * rng.standard_normal(groups + 5)[labels] + 0.3 * rng.standard_normal(len(labels)), labels


def heavy(rng, n=36, p=8):
    """A quarter as many parameters as rows, and errors of no variance."""
    x = rng.standard_normal((n, p))
    return x, x.sum(1) + rng.standard_t(2, n), np.arange(n)


def test_they_cover():
    """Within three standard errors of 90 %, half as much again as those of 200 responses, since five share a fit."""
    slack = 3 * 1.5 * np.sqrt(0.9 * 0.1 / 200)
    assert abs(share_covered(heavy, False) - 0.9) < slack
    assert share_covered(alike, True) > 0.9 - slack


def test_rows_whose_refit_does_not_exist_are_infinitely_far_off():
    """Two levels of one row each: without it nothing is known of theirs."""
    x = np.c_[X, np.arange(N) == 4, np.arange(N) == 9].astype(float)
    new = np.c_[Z, np.zeros((len(Z), 2))]
    fit = lo.fit(lo.GLM(x, Y, "squared"))
    with pytest.warns(UserWarning, match="interval: 2 of 60 refits do not exist"):
        found = lo.interval(fit, new)
    means, distance = scratch([[i] for i in range(N)], x, Y, new)
    distance[[4, 9]] = np.inf
    np.testing.assert_allclose(found.high, ranked(means + distance, 0.9), rtol=1e-9)
    with pytest.warns(UserWarning, match="do not exist"):
        assert np.isinf(lo.interval(fit, new, method="minmax")[["low", "high"]]).all(axis=None)
    ridge = lo.fit(lo.GLM(rng.standard_normal((10, 20)), Y[:10], "squared", lo.penalties.Ridge(1.0)))
    assert np.isfinite(lo.interval(ridge, np.zeros((2, 20)), 0.5)).all(axis=None)


def test_a_row_of_weight_zero_is_not_there():
    weight = np.r_[0.0, 0.0, rng.gamma(2.0, 1.0, N - 2)]
    found = lo.interval(lo.fit(lo.GLM(X, Y, "squared", sample_weight=weight)), Z)
    without = lo.interval(lo.fit(lo.GLM(X[2:], Y[2:], "squared", sample_weight=weight[2:])), Z)
    np.testing.assert_allclose(found, without, rtol=1e-9)


def test_memory_is_not_that_of_all_predictions():
    n, m = 1000, 5000
    x, new = rng.standard_normal((n, 2)), rng.standard_normal((m, 2))
    fit = lo.fit(lo.GLM(x, x[:, 0] + rng.standard_normal(n), "squared"))
    tracemalloc.start()
    lo.interval(fit, new)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < n * m * 8 / 2


# new rows

FRAME = pd.DataFrame(X, columns=["a", "b", "c"], index=[f"row {k}" for k in range(N)]).assign(
    city=np.resize(["Ulm", "Bonn", "Kiel"], N), time=rng.uniform(1, 3, N), cost=Y, visits=COUNTS
)
NEW = pd.DataFrame(Z, columns=["a", "b", "c"], index=[f"new {k}" for k in range(len(Z))]).assign(
    city=np.resize(["Kiel", "Ulm"], len(Z)), time=np.linspace(1, 2, len(Z))
)
FIT = lo.fit(lo.GLM(FRAME[["a", "b", "c"]], FRAME.cost, "squared"))
BINARY = lo.fit(lo.GLM(X, (Y > 0).astype(float), "logistic"))


def test_columns_are_matched_by_name_and_rows_keep_theirs():
    fit, want = FIT, lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z)
    found = lo.interval(fit, NEW[["city", "c", "a", "b"]])
    assert list(found.index) == list(NEW.index) and list(found.columns) == ["prediction", "low", "high"]
    np.testing.assert_allclose(found, want, rtol=1e-12)
    np.testing.assert_allclose(lo.interval(fit, Z), want, rtol=1e-12)
    np.testing.assert_allclose(lo.interval(lo.fit(lo.GLM(X, Y, "squared")), NEW[["a", "b", "c"]]), want, rtol=1e-12)
    labels = pd.Series(LABELS, index=FRAME.index)
    by_label = lo.interval(fit, NEW, 0.8, groups=labels.sample(frac=1.0, random_state=0))
    np.testing.assert_allclose(by_label, lo.interval(fit, NEW, 0.8, groups=LABELS), rtol=1e-12)


def test_new_rows_go_through_what_the_host_does():
    columns = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(drop="first"), ["city"]))
    model = make_pipeline(columns, LinearRegression()).fit(FRAME, Y)
    fit = lo.from_sklearn(model, FRAME, Y)
    found = lo.interval(fit, NEW.sample(frac=1.0, axis=1, random_state=0).assign(more="text"))
    np.testing.assert_allclose(found.prediction, model.predict(NEW.reindex(columns=FRAME.columns)), rtol=1e-10)
    assert "transformers stay as fitted" in found.attrs["note"]
    again = lo.interval(pickle.loads(pickle.dumps(fit)), NEW)
    np.testing.assert_allclose(found, again)
    with pytest.raises(ValueError, match="columns are missing: "):  # by the host
        lo.interval(fit, NEW.drop(columns="a"))
    three = ["a", "b", "c"]
    fit = lo.from_sklearn(LinearRegression().fit(FRAME[three], Y), FRAME[three].set_axis(list("xyz"), axis=1).to_numpy(), Y)
    np.testing.assert_allclose(lo.interval(fit, NEW[["c", "b", "a"]]), lo.interval(FIT, NEW), rtol=1e-10)
    with pytest.raises(ValueError, match="X_new lacks columns that the estimator was fitted on: a"):
        lo.interval(fit, NEW.drop(columns="a"))

    results = smf.glm("visits ~ a + np.exp(b) + C(city)", FRAME, family=sm.families.Poisson(), exposure=FRAME.time).fit()
    fit = lo.from_statsmodels(results)
    found = lo.interval(fit, NEW, offset=np.log(NEW.time).sample(frac=1.0, random_state=0))
    np.testing.assert_allclose(found.prediction, results.predict(NEW, exposure=NEW.time), rtol=1e-6)
    assert (found.low < found.prediction).all() and list(found.index) == list(NEW.index)
    with pytest.raises(ValueError, match="has an offset: give that of the new rows"):
        lo.interval(fit, NEW)
    plain = lo.from_statsmodels(sm.OLS(FRAME.cost, sm.add_constant(FRAME[["a", "b"]])).fit())
    want = lo.interval(lo.fit(lo.GLM(X[:, :2], Y, "squared")), Z[:, :2])
    np.testing.assert_allclose(lo.interval(plain, sm.add_constant(NEW[["b", "a"]])), want, rtol=1e-8)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: lo.interval(lo.cross_validate(FIT, lo.leave_one_out(N)), Z), TypeError, r"must be a Fit.*Estimate.interval"),
        (lambda: lo.interval(fitted("ordinal"), Z), TypeError, "has classes, or two values only, without a probability"),
        (lambda: lo.interval((FIT, lo.fit(lo.GLM(X, -Y, "squared"))), Z), ValueError, "of one response"),
        (lambda: lo.interval((BINARY, BINARY), Z), TypeError, "two fits are of quantiles"),
        (lambda: lo.interval(BINARY, Z, inverse=np.exp), TypeError, "not for classes"),
        (lambda: lo.interval(BINARY, Z, score="entropy"), ValueError, "one of lac, aps, raps; got 'entropy'"),
        (lambda: lo.interval(BINARY, Z, raps=(-1.0, 2)), ValueError, "zero or more"),
        (lambda: lo.interval(FIT, Z, inverse=np.square), ValueError, "must be monotone"),
        (lambda: lo.interval(FIT, Z, new_groups=LABELS[:15]), ValueError, "needs groups"),
        (lambda: lo.interval(FIT, Z, groups=LABELS, new_groups=LABELS), ValueError, "60 labels, but there are 15 rows"),
        (lambda: lo.interval(FIT, Z, 0.8, groups=LABELS > 5, new_groups=["?"] * 15), ValueError, "a group of no unit"),
        (lambda: lo.interval(FIT, Z, groups=LABELS, new_groups=LABELS[:15]), ValueError, "there are 1 in group 0"),
        (lambda: lo.interval(fitted("hidden Markov"), Z), TypeError, "rows with a linear predictor.*got ToyHMM"),
        (lambda: lo.interval(fitted("Cox"), Z), TypeError, "got Cox"),
        (
            lambda: lo.interval(lo.from_sklearn(RidgeClassifier().fit(X, Y > 0), X, Y > 0), Z),
            TypeError,
            "without a probability of each",
        ),
        (lambda: lo.interval(FIT, Z, 90), ValueError, "level must lie between 0 and 1; got 90"),
        (lambda: lo.interval(FIT, Z, method="naive"), ValueError, r"one of plus, minmax, cv\+; got 'naive'"),
        (lambda: lo.interval(FIT, Z, 0.99), ValueError, "needs 99 rows or more, left out one by one; there are 60"),
        (lambda: lo.interval(FIT, Z, 0.95, groups=LABELS), ValueError, "needs 19 groups or more.*there are 12"),
        (lambda: lo.interval(FIT, Z, groups=LABELS, plan=lo.kfold(N, 3)), ValueError, "groups or a plan, not both"),
        (lambda: lo.interval(FIT, Z, groups=LABELS[:-1]), ValueError, "the plan is for 59 units, but the fit has 60"),
        (lambda: lo.interval(FIT, Z, plan=lo.bootstrap(N, 5)), ValueError, "holds out every unit once"),
        (lambda: lo.interval(FIT, Z, plan=lo.random_subsets(N, 0.1, 5)), ValueError, "holds out every unit once"),
        (lambda: lo.interval(FIT, Z, plan=lo.blocks(N, 6)), ValueError, "exchangeable"),
        (lambda: lo.interval(FIT, Z, refit="exact"), TypeError, "refit must be a strategy"),
        (lambda: lo.interval(FIT, Z, offset=np.ones(15)), ValueError, "has no offset, but one was given"),
        (lambda: lo.interval(FIT, Z[:, :2]), ValueError, r"X_new must be \[rows, 3\], of one row or more; got shape \(15, 2\)"),
        (lambda: lo.interval(FIT, Z[0]), ValueError, r"got shape \(3,\)"),
        (lambda: lo.interval(FIT, Z[:0]), ValueError, r"got shape \(0, 3\)"),
        (lambda: lo.interval(FIT, NEW[["a", "b"]]), ValueError, "lacks columns that the model was fitted on: c"),
        (lambda: lo.interval(FIT, NEW[["a", "b", "c", "a"]]), ValueError, r"duplicate column names: \['a'\]"),
        (
            lambda: lo.interval(FIT, NEW.assign(a=np.nan)),
            ValueError,
            r"X_new holds 15 NaN or .*in columns \['a'\]",
        ),
        (lambda: lo.interval(FIT, NEW.assign(a="high")), TypeError, "X_new must hold numbers"),
    ],
)
def test_what_there_is_no_interval_of(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_rows_outside_the_span_of_the_data_have_no_ends():
    """Two columns that were always equal, and a row in which they are not: any prediction fits the data as well."""
    fit = lo.fit(lo.GLM(np.c_[X, X[:, 0]], Y, "squared"))
    new = np.c_[Z, Z[:, 0]]
    np.testing.assert_allclose(lo.interval(fit, new), lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z), rtol=1e-8)
    new[3, 3] += 1.0
    with pytest.warns(UserWarning, match="interval: 1 of 15 rows are outside the span of the data"):
        found = lo.interval(fit, new)
    assert np.isinf(found[["low", "high"]]).all(axis=1).tolist() == [k == 3 for k in range(15)]


def test_new_rows_are_predicted_with_their_labels():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 3)), columns=list("abc"))
    new = pd.DataFrame(rng.normal(size=(4, 3)), columns=list("cab"), index=list("wxyz"))
    targets = {
        "binary": X.a > 0.3 * X.b,
        "three": pd.cut(X.a + 0.3 * rng.normal(size=60), 3, labels=["p", "q", "r"]).astype(str),
    }
    for y in targets.values():
        host = LogisticRegression(tol=1e-10, max_iter=9999).fit(X, y)
        found, want = lo.predict(lo.from_sklearn(host, X, y), new), host.predict_proba(new[list("abc")])
        assert list(found.index) == list("wxyz")
        np.testing.assert_allclose(found, want if want.shape[1] > 2 else want[:, 1], atol=1e-6)
        assert want.shape[1] == 2 or list(found.columns) == list(host.classes_)
    lasso = make_pipeline(StandardScaler(), Lasso(0.1, tol=1e-12)).fit(X, X.a)
    np.testing.assert_allclose(lo.predict(lo.from_sklearn(lasso, X, X.a), new), lasso.predict(new[list("abc")]), atol=1e-8)
    counts = lo.fit(lo.GLM(X, np.arange(60) % 4, "poisson", offset=np.ones(60)))
    with pytest.raises(ValueError, match="predict: the model has an offset"):
        lo.predict(counts, new)
    np.testing.assert_allclose(
        lo.predict(counts, new, "link", offset=np.full(4, 2.0)),
        2 + counts.parameters["intercept"] + new[list("abc")] @ counts.parameters["coef"],
        atol=1e-12,
    )


@pytest.mark.parametrize("sparse", [True, False])
def test_coefficients_of_a_pipeline_are_called_as_it_calls_its_columns(sparse):
    rows = pd.DataFrame({"town": list("abcab") * 6, "size": np.arange(30.0) % 7})
    levels = make_column_transformer(
        (OneHotEncoder(sparse_output=sparse), ["town"]), remainder="passthrough", sparse_threshold=1
    )
    host = make_pipeline(levels, Ridge()).fit(rows, rows["size"])
    fit = lo.from_sklearn(host, rows, rows["size"])
    assert fit.objective.parameters.names()[:2] == ["onehotencoder__town_a", "onehotencoder__town_b"]
    np.testing.assert_allclose(lo.predict(fit, rows[:3]), host.predict(rows[:3]), atol=1e-8)
