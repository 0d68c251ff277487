"""Intervals and sets for a new response: the papers', by refits from scratch and by MAPIE.

What they cover; what is refused.
"""

import functools
import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from flint import arb
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.linear_model import (
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
)
from sklearn.model_selection import KFold, LeaveOneOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import leaveout as lo
from leaveout.diagnostics import prediction_intervals
from tests.helpers import fitted
from tests.oracles.balls import Refits

rng = np.random.default_rng(0)
N = 60
X, Z = rng.standard_normal((N, 3)), rng.standard_normal((15, 3))
Y = X @ [1.0, -0.5, 0.0] + rng.standard_t(3, N)
COUNTS = rng.poisson(np.exp(0.7 + 0.5 * X[:, 0])).astype(float)
LABELS = np.repeat(np.arange(12), [1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 5, 5])


def scratch(folds, x=X, y=Y, new=Z):
    """Predictions of new rows without the fold of each unit, `[rows, units]`, and how far these are
    from the unit itself.
    """
    means, distance = np.zeros((len(new), len(y))), np.zeros(len(y))
    for fold in folds:
        host = LinearRegression().fit(np.delete(x, fold, 0), np.delete(y, fold))
        means[:, fold], distance[fold] = (
            host.predict(new)[:, None],
            np.abs(y[fold] - host.predict(x[fold])),
        )
    return means, distance


def ranked(values, level):
    return np.sort(values, axis=-1)[..., int(np.ceil(level * (values.shape[-1] + 1))) - 1]


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_they_are_the_papers(level):
    fit = lo.from_sklearn(LinearRegression().fit(X, Y), X, Y)
    plan = lo.kfold(N, 7, rng=1)
    for folds, how in (
        ([[i] for i in range(N)], {}),
        (np.split(plan.index, plan.indptr[1:-1]), {"plan": plan}),
    ):
        means, distance = scratch(folds)
        found = lo.interval(fit, Z, level=level, **how)
        np.testing.assert_allclose(
            found.high, ranked(means + distance, level), rtol=1e-10, atol=1e-11
        )
        np.testing.assert_allclose(
            found.low, -ranked(distance - means, level), rtol=1e-10, atol=1e-11
        )
        wide = lo.interval(fit, Z, level=level, method="minmax", **how)
        np.testing.assert_allclose(
            wide.high, means.max(1) + ranked(distance, level), rtol=1e-10, atol=1e-11
        )
        np.testing.assert_allclose(
            wide.low, means.min(1) - ranked(distance, level), rtol=1e-10, atol=1e-11
        )
    np.testing.assert_allclose(
        found.prediction, LinearRegression().fit(X, Y).predict(Z), rtol=1e-12
    )
    ten = lo.interval(fit, Z, level=level, method="cv+")
    pd.testing.assert_frame_equal(
        ten, lo.interval(fit, Z, level=level, plan=lo.kfold(N, 10, rng=0))
    )
    assert ten.attrs["method"] == "CV+" and ten.attrs["at_least"] == max(
        0, 2 * level - 1 - np.sqrt(2 / N)
    )


@pytest.mark.parametrize(
    "host", [LinearRegression(), Ridge(3.0), PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=1000)]
)
@pytest.mark.parametrize("splits", [LeaveOneOut(), KFold(6)])
@pytest.mark.parametrize("method", ["plus", "minmax"])
def test_they_are_mapies(host, splits, method):
    regression = pytest.importorskip("mapie.regression")
    y = COUNTS if isinstance(host, PoissonRegressor) else Y
    theirs = regression.CrossConformalRegressor(
        host, confidence_level=0.9, method=method, cv=splits
    )
    _, ends = theirs.fit_conformalize(X, y).predict_interval(Z)
    fit = lo.from_sklearn(host.fit(X, y), X, y)
    ours = lo.interval(
        fit,
        Z,
        level=0.9,
        method=method,
        plan=lo.from_splits(splits.split(X), N),
        strategy=lo.Exact(),
    )
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
    found = lo.interval(fit, Z, level=0.8, groups=LABELS)
    high = [weighted(row + distance, weight, 0.8) for row in means]
    low = [-weighted(distance - row, weight, 0.8) for row in means]
    np.testing.assert_allclose(found[["low", "high"]], np.transpose([low, high]), rtol=1e-9)
    wide = lo.interval(fit, Z, level=0.8, method="minmax", groups=pd.Series(LABELS))
    np.testing.assert_allclose(wide.high, means.max(1) + weighted(distance, weight, 0.8), rtol=1e-9)
    assert found.attrs["method"] == "leave-one-group-out jackknife+" and found.attrs[
        "at_least"
    ] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "refit", [lo.Certified(), lo.NewtonStep(), lo.InfinitesimalJackknife(), lo.NoUpdate()], ids=repr
)
def test_they_hold_what_exact_refits_give(refit):
    """Two rows of a high leverage move the refits: their own error is in the ends."""
    x = np.r_[X, [[4.0, 0, 0], [0, -5.0, 0]]]
    y = np.r_[COUNTS, 3.0, 9.0]
    fit = lo.fit(lo.GLM(x, y, "poisson"))
    for how in ({}, {"method": "minmax"}, {"plan": lo.kfold(N + 2, 5, rng=0)}):
        exact = lo.interval(fit, Z, strategy=lo.Exact(), **how)
        found = lo.interval(fit, Z, strategy=refit, **how)
        assert (found.low <= exact.low + 1e-9).all() and (found.high >= exact.high - 1e-9).all()
        assert exact.attrs["widened"] < 1e-6 < found.attrs["widened"] and exact.attrs["proved"]
        assert found.attrs["proved"] or not isinstance(refit, lo.Certified)
        # as far again may the reported refits be off
        assert (exact.low - found.low).max() <= 2 * found.attrs["widened"]


@pytest.mark.parametrize("loss", ["squared", "poisson", "pseudo-huber"])
@pytest.mark.parametrize("refit", [lo.Certified(), lo.Exact()], ids=["certified", "exact"])
def test_ends_that_are_proved_hold_those_of_300_bits(loss, refit):
    """Without any allowance: ends of exact refits, to their last digit, lie inside."""
    draw = np.random.default_rng(5)
    x, new = (
        draw.normal(size=(30, 3)) * [1.0, 30.0, 0.01],
        draw.normal(size=(12, 3)) * [1.0, 30.0, 0.01],
    )
    y = (
        1.0 * draw.poisson(np.exp(0.5 * x[:, 0]))
        if loss == "poisson"
        else x @ [1.0, 0.1, 10.0] + draw.normal(size=30)
    )
    exact = Refits(x, y, loss, 0.3 * np.eye(3))
    own = lo.losses.PseudoHuber(1.0) if loss == "pseudo-huber" else loss
    fit = lo.fit(lo.GLM(x, y, own, lo.penalties.Ridge(0.3), intercept=False))
    mean = (
        (lambda values: [v.exp() for v in values]) if loss == "poisson" else lambda values: values
    )
    thetas = [exact(1.0 * (np.arange(30) != k), fit.vector) for k in range(30)]
    residual = [
        abs(mean(exact.predict(x[[k]], theta))[0] - arb(y[k])) for k, theta in enumerate(thetas)
    ]
    at = [mean(exact.predict(new, theta)) for theta in thetas]
    found, rank = lo.interval(fit, new, level=0.8, strategy=refit), int(np.ceil(0.8 * 31)) - 1
    assert found.attrs["proved"] and found.attrs["widened"] < (
        1e-7 if isinstance(refit, lo.Exact) else 0.5
    )
    by_size = lambda values: sorted(values, key=lambda ball: ball.mid())
    for j in range(12):
        high = by_size([at[k][j] + residual[k] for k in range(30)])[rank]
        low = -by_size([residual[k] - at[k][j] for k in range(30)])[rank]
        assert arb(float(found.low[j])) <= low <= high <= arb(float(found.high[j]))
    wide = lo.interval(fit, new, level=0.8, method="minmax", strategy=refit)
    for j in range(12):
        far, each = by_size(residual)[rank], by_size([at[k][j] for k in range(30)])
        assert (
            arb(float(wide.low[j])) <= each[0] - far <= each[-1] + far <= arb(float(wide.high[j]))
        )


def test_of_losses_with_parameters_of_their_own_errors_are_estimated():
    """A Gaussian's scale does not move the mean."""
    own = lo.interval(lo.fit(lo.Regression(X, Y, "gaussian")), Z, strategy=lo.Exact())
    plain = lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z)
    np.testing.assert_allclose(own, plain, atol=1e-6)
    assert not own.attrs["proved"] and plain.attrs["proved"]


def share_covered(draw, grouped, level=0.9, repeats=40):
    """Of five new responses a data set."""
    hits = []
    for seed in range(repeats):
        x, y, labels = draw(np.random.default_rng(seed))
        fit = lo.fit(lo.GLM(x[:-5], y[:-5], "squared"))
        found = lo.interval(fit, x[-5:], level=level, groups=labels[:-5] if grouped else None)
        hits.append((found.low <= y[-5:]) & (y[-5:] <= found.high))
    return np.mean(hits)


def alike(rng, groups=12, size=3):
    """Rows of groups that share an effect; the last five are of new groups."""
    labels = np.r_[np.repeat(np.arange(groups), size), groups + np.arange(5)]
    x = rng.standard_normal((len(labels), 2))
    return (
        x,
        x.sum(1)
        + 2 * rng.standard_normal(groups + 5)[labels]
        + 0.3 * rng.standard_normal(len(labels)),
        labels,
    )


def heavy(rng, n=36, p=8):
    """A quarter as many parameters as rows, and errors of no variance."""
    x = rng.standard_normal((n, p))
    return x, x.sum(1) + rng.standard_t(2, n), np.arange(n)


def test_they_cover():
    """Within three standard errors of 90 %, half as much again as those of 200 responses, since
    five share a fit.
    """
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
    ridge = lo.fit(
        lo.GLM(rng.standard_normal((10, 20)), Y[:10], "squared", lo.penalties.Ridge(1.0))
    )
    assert np.isfinite(lo.interval(ridge, np.zeros((2, 20)), level=0.5)).all(axis=None)


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
    tracemalloc.start()
    lo.interval(fit, new, method="cv+")  # ten refits, but n residuals a row
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < n * m * 8 / 4


# sets of classes

THREE = rng.integers(0, 3, N)
FEATURES = rng.normal(size=(N, 2)) + np.array([[0, 0], [2, 0], [0, 2]])[THREE]
PLACES = rng.normal(size=(12, 2)) * 1.5 + 0.7
SHAPES = {"three": np.array(["a", "b", "c"])[THREE], "two": np.where(THREE > 0, "yes", "no")}


def paper_score(p, c, score, u=0.0):
    """Score of class c of one row, term by term."""
    if score == "lac":
        return 1 - p[c]
    # those before sum with it to 1 less those after
    before, after = [q for q in p if q > p[c]], [q for q in p if q < p[c]]
    return 1 - sum(after) - u * p[c] + (score == "raps") * 0.1 * max(0, len(before) + 1 - 2)


@functools.cache
def refitted_without(kind, fold):
    """Probabilities of all rows and of new ones by a refit from scratch."""
    seen = np.setdiff1d(np.arange(N), fold)
    host = LogisticRegression(tol=1e-10, max_iter=5000).fit(FEATURES[seen], SHAPES[kind][seen])
    return host.predict_proba(FEATURES), host.predict_proba(PLACES)


def paper_sets(kind, folds, score, level, method="plus", seed=None):
    """Sets of Romano, Sesia & Candès by refits from scratch, one comparison after another."""
    y = SHAPES[kind]
    names = np.unique(y)
    u = (
        np.zeros(N + len(PLACES))
        if seed is None
        else np.random.default_rng(seed).random(N + len(PLACES))
    )
    own, new = np.zeros(N), np.zeros((N, len(PLACES), len(names)))
    for fold in folds:
        of_rows, of_places = refitted_without(kind, tuple(fold.tolist()))
        for i in fold:
            place = int(np.flatnonzero(names == y[i])[0])
            own[i] = paper_score(of_rows[i], place, score, u[i])
        new[fold] = [
            [paper_score(p, c, score, u[N + k]) for c in range(len(names))]
            for k, p in enumerate(of_places)
        ]
    new = new.min(0, keepdims=True) if method == "minmax" else new
    return (own[:, None, None] < new).sum(0) < level * (N + 1)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("score, seed", [("lac", None), ("aps", None), ("aps", 3), ("raps", 3)])
def test_sets_are_the_papers(kind, score, seed):
    y = SHAPES[kind]
    fit = lo.from_sklearn(
        LogisticRegression(tol=1e-10, max_iter=5000).fit(FEATURES, y), FEATURES, y
    )
    new = pd.DataFrame(PLACES, index=[f"place {k}" for k in range(12)])
    plan = lo.kfold(N, 6, rng=1)
    folds = np.split(plan.index, plan.indptr[1:-1])
    for own, method, how in (
        (np.arange(N)[:, None], "plus", {}),
        (folds, "plus", {"plan": plan}),
        (folds, "minmax", {"plan": plan}),
    ):
        found = lo.prediction_sets(
            fit,
            new,
            level=0.8,
            method=method,
            score=score,
            randomized=seed is not None,
            rng=seed or 0,
            strategy=lo.Exact(),
            **how,
        )
        assert (found.to_numpy() == paper_sets(kind, own, score, 0.8, method, seed)).all()
    if kind == "two":
        own = lo.fit(lo.GLM(FEATURES, y, "logistic", lo.penalties.Ridge(1.0)))
        pd.testing.assert_frame_equal(
            lo.prediction_sets(
                own,
                new,
                level=0.8,
                score=score,
                randomized=seed is not None,
                rng=seed or 0,
                plan=plan,
                method="minmax",
            ),
            found,
        )
    assert list(found.columns) == list(np.unique(y)) and list(found.index) == list(new.index)
    assert found.to_numpy().any() and (not found.to_numpy().all() or score == "aps")


@pytest.mark.parametrize("splits", [LeaveOneOut(), KFold(6)])
@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_are_mapies(score, splits):
    """MAPIE counts to n − 1, the paper to n + 1.

    At 60 rows and 90 % these agree. MAPIE draws its APS scores at random.
    """
    mapie = pytest.importorskip("mapie.classification")
    scores = pytest.importorskip("mapie.conformity_scores")

    class WholeAPS(scores.APSConformityScore):
        def get_conformity_scores(self, y, y_pred, y_enc=None, **_):
            found, self.cutoff = self.get_true_label_cumsum_proba(y, y_pred, self.classes)
            return found

    host = LogisticRegression(tol=1e-10, max_iter=5000)
    kind = scores.LACConformityScore() if score == "lac" else WholeAPS()
    theirs = mapie.CrossConformalClassifier(
        host, confidence_level=0.9, conformity_score=kind, cv=splits
    )
    _, sets = theirs.fit_conformalize(FEATURES, THREE).predict_set(PLACES, agg_scores="crossval")
    fit = lo.from_sklearn(host.fit(FEATURES, THREE), FEATURES, THREE)
    plan = lo.from_splits(splits.split(FEATURES), N)
    ours = lo.prediction_sets(fit, PLACES, level=0.9, plan=plan, score=score, strategy=lo.Exact())
    assert (ours.to_numpy() == sets[:, :, 0]).all() and 0 < ours.to_numpy().mean() < 1


@pytest.mark.parametrize("refit", [lo.Certified(), lo.NewtonStep(), lo.NoUpdate()], ids=repr)
@pytest.mark.parametrize("kind", SHAPES)
def test_sets_hold_those_of_exact_refits(kind, refit):
    y, penalty = SHAPES[kind], lo.penalties.Ridge(0.01)
    y, loss = (y, "multinomial") if kind == "three" else ((y == "yes").astype(float), "logistic")
    fit = lo.fit(lo.GLM(FEATURES, y, loss, penalty))
    for score in ("lac", "aps", "raps"):
        exact = lo.prediction_sets(fit, PLACES, score=score, strategy=lo.Exact())
        found = lo.prediction_sets(fit, PLACES, score=score, strategy=refit)
        assert (found.to_numpy() >= exact.to_numpy()).all()
        assert exact.attrs["widened"] < 1e-6 < found.attrs["widened"] or isinstance(
            refit, lo.Certified
        )


def test_bounds_on_scores_hold_all_probabilities_between():
    p = rng.dirichlet(np.ones(4), 200)
    off = 0.03
    low, high = np.clip(p - off, 0, 1), np.clip(p + off, 0, 1)
    u = rng.random(200)
    for score in ("lac", "aps", "raps"):
        bounds = [
            prediction_intervals._score(*ends, u, score=score, raps=(0.1, 2))
            for ends in ((low, high), (high, low))
        ]
        for _ in range(20):
            moved = np.clip(p + off * rng.uniform(-1, 1, p.shape), 0, 1)
            moved /= moved.sum(1, keepdims=True)
            within = ((moved >= low) & (moved <= high)).all(1)
            value = np.array(
                [
                    [paper_score(row, c, score, v) for c in range(4)]
                    for row, v in zip(moved, u, strict=True)
                ]
            )
            assert ((bounds[0] - 1e-12 <= value) & (value <= bounds[1] + 1e-12))[
                within
            ].all() and within.any()


def test_every_class_is_possible_where_no_refit_exists():
    """Two rows of a level each.

    Without it there is none, so that their scores count as the largest.
    """
    probabilities = prediction_intervals.Probabilities(*np.full((2, 3, 2, 2), np.nan))
    held = prediction_intervals.Held(np.array([0, 1]), np.array([0, 1]), np.full(2, 1 / 3), 2)
    refits = prediction_intervals.Refits(np.full((2, 4), np.nan), np.zeros(2), True)
    for method in ("plus", "minmax"):
        rule = functools.partial(prediction_intervals._score, score="aps", raps=(0.1, 2))
        of = prediction_intervals._sets(BINARY, refits, held, 0.5, method, rule, np.zeros(N))
        assert (of([probabilities], np.zeros(3))[:-1] == 1).all()


# two quantiles, groups of one level each, transforms


def test_two_quantiles_are_conformalised():
    """Ends by refits of each quantile from scratch.

    The score is negative where the quantiles lie too far out.
    """
    make = lambda q: lo.GLM(X, Y, lo.losses.Quantile(q, width=0.5))
    fits = tuple(lo.fit(make(q)) for q in (0.1, 0.9))
    plan = lo.kfold(N, 5, rng=2)
    low, high = (np.zeros((len(Z), N)), np.zeros(N)), (np.zeros((len(Z), N)), np.zeros(N))
    for fold in np.split(plan.index, plan.indptr[1:-1]):
        for q, (new, own) in ((0.1, low), (0.9, high)):
            seen = np.setdiff1d(np.arange(N), fold)
            refit = lo.fit(lo.GLM(X[seen], Y[seen], lo.losses.Quantile(q, width=0.5)))
            new[:, fold], own[fold] = (
                lo.predict(refit, Z).to_numpy()[:, None],
                lo.predict(refit, X[fold]),
            )
    error = np.maximum(low[1] - Y, Y - high[1])
    assert error.min() < 0 < error.max()
    found = lo.quantile_interval(*fits, Z, level=0.8, plan=plan, strategy=lo.Exact())
    np.testing.assert_allclose(found.high, ranked(high[0] + error, 0.8), atol=1e-5)
    np.testing.assert_allclose(found.low, -ranked(error - low[0], 0.8), atol=1e-5)
    np.testing.assert_allclose(
        found.prediction, (lo.predict(fits[0], Z) + lo.predict(fits[1], Z)) / 2, rtol=1e-10
    )
    same = lo.quantile_interval(FIT, FIT, Z)  # of one fit twice they are the jackknife+
    np.testing.assert_allclose(same, lo.interval(FIT, Z), rtol=1e-12)


def test_each_group_has_its_own_level():
    """By refits from scratch: only the units of a row's own group count."""
    kind, new = (
        np.where(np.arange(N) % 3 == 0, "few", "many"),
        np.resize(["many", "few", "few"], len(Z)),
    )
    fit = lo.fit(lo.GLM(X, Y, "squared"))
    means, distance = scratch([[i] for i in range(N)])
    found = lo.interval(fit, Z, level=0.9, groups=kind, new_groups=new)
    for name in ("few", "many"):
        own, rows = kind == name, new == name
        np.testing.assert_allclose(
            found.high[rows], ranked((means + distance)[np.ix_(rows, own)], 0.9), rtol=1e-9
        )
        np.testing.assert_allclose(
            found.low[rows], -ranked((distance - means)[np.ix_(rows, own)], 0.9), rtol=1e-9
        )
    assert found.attrs["method"] == "jackknife+ in each group" and found.attrs[
        "at_least"
    ] == pytest.approx(0.8)
    folds = lo.interval(fit, Z, level=0.9, method="cv+", groups=kind, new_groups=new)
    assert folds.attrs["method"] == "CV+ in each group" and folds.attrs["at_least"] == 0.0
    labels = pd.Series(kind, FRAME.index).sample(frac=1.0, random_state=0)
    by_label = lo.interval(FIT, NEW, groups=labels, new_groups=pd.Series(new, NEW.index).iloc[::-1])
    np.testing.assert_allclose(by_label, found, rtol=1e-9)
    sets = lo.prediction_sets(BINARY, Z, level=0.8, groups=kind, new_groups=new)
    alone = lo.prediction_sets(
        BINARY, Z[new == "few"], level=0.8, groups=kind, new_groups=new[new == "few"]
    )
    assert (sets[new == "few"].to_numpy() == alone.to_numpy()).all()


@pytest.mark.parametrize("way", ["function", "host", "falling"])
def test_ends_go_through_a_transform(way):
    logged = lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z)
    if way == "function":
        found = lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z, inverse=np.exp)
    elif way == "host":
        host = TransformedTargetRegressor(LinearRegression(), func=np.log, inverse_func=np.exp)
        model = make_pipeline(StandardScaler(), host).fit(X, np.exp(Y))
        found = lo.interval(pickle.loads(pickle.dumps(lo.from_sklearn(model, X, np.exp(Y)))), Z)
        np.testing.assert_allclose(found.prediction, model.predict(Z), rtol=1e-10)
    else:
        found = lo.interval(lo.fit(lo.GLM(X, -Y, "squared")), Z, inverse=lambda x: np.exp(-x))
    np.testing.assert_allclose(found, np.exp(logged), rtol=1e-8)
    # no number below −1
    beyond = lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z, inverse=lambda x: np.log(x + 1.0))
    assert (beyond.low[logged.low < -1] == -np.inf).all() and (logged.low < -1).any()


def test_sets_cover():
    """A new response a data set: within two standard errors of the level."""
    hits: dict[str, list[bool]] = {"lac": [], "aps": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 3, 41)
        x = rng.normal(size=(41, 2)) + 1.2 * np.array([[0, 0], [1, 0], [0, 1]])[y]
        fit = lo.fit(lo.GLM(x[:-1], y[:-1], "multinomial", lo.penalties.Ridge(1.0)))
        for score, held in hits.items():
            held.append(
                bool(
                    lo.prediction_sets(
                        fit, x[-1:], level=0.8, score=score, rng=0, randomized=True
                    ).loc[0, y[-1]]
                )
            )
    assert all(abs(np.mean(held) - 0.8) <= 2 * np.sqrt(0.8 * 0.2 / 40) for held in hits.values())


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
    assert list(found.index) == list(NEW.index) and list(found.columns) == [
        "prediction",
        "low",
        "high",
    ]
    np.testing.assert_allclose(found, want, rtol=1e-12)
    np.testing.assert_allclose(lo.interval(fit, Z), want, rtol=1e-12)
    np.testing.assert_allclose(
        lo.interval(lo.fit(lo.GLM(X, Y, "squared")), NEW[["a", "b", "c"]]), want, rtol=1e-12
    )
    labels = pd.Series(LABELS, index=FRAME.index)
    by_label = lo.interval(fit, NEW, level=0.8, groups=labels.sample(frac=1.0, random_state=0))
    np.testing.assert_allclose(
        by_label, lo.interval(fit, NEW, level=0.8, groups=LABELS), rtol=1e-12
    )


def test_new_rows_go_through_what_the_host_does():
    columns = make_column_transformer(
        (StandardScaler(), ["a", "b"]), (OneHotEncoder(drop="first"), ["city"])
    )
    model = make_pipeline(columns, LinearRegression()).fit(FRAME, Y)
    fit = lo.from_sklearn(model, FRAME, Y)
    found = lo.interval(fit, NEW.sample(frac=1.0, axis=1, random_state=0).assign(more="text"))
    np.testing.assert_allclose(
        found.prediction, model.predict(NEW.reindex(columns=FRAME.columns)), rtol=1e-10
    )
    assert "transformers stay as fitted" in found.attrs["note"]
    again = lo.interval(pickle.loads(pickle.dumps(fit)), NEW)
    np.testing.assert_allclose(found, again)
    with pytest.raises(ValueError, match="columns are missing: "):  # by the host
        lo.interval(fit, NEW.drop(columns="a"))
    three = ["a", "b", "c"]
    fit = lo.from_sklearn(
        LinearRegression().fit(FRAME[three], Y),
        FRAME[three].set_axis(list("xyz"), axis=1).to_numpy(),
        Y,
    )
    np.testing.assert_allclose(
        lo.interval(fit, NEW[["c", "b", "a"]]), lo.interval(FIT, NEW), rtol=1e-10
    )
    with pytest.raises(ValueError, match="X_new lacks columns that the estimator was fitted on: a"):
        lo.interval(fit, NEW.drop(columns="a"))

    results = smf.glm(
        "visits ~ a + np.exp(b) + C(city)", FRAME, family=sm.families.Poisson(), exposure=FRAME.time
    ).fit()
    fit = lo.from_statsmodels(results)
    found = lo.interval(fit, NEW, offset=np.log(NEW.time).sample(frac=1.0, random_state=0))
    np.testing.assert_allclose(found.prediction, results.predict(NEW, exposure=NEW.time), rtol=1e-6)
    assert (found.low < found.prediction).all() and list(found.index) == list(NEW.index)
    with pytest.raises(ValueError, match="has an offset: give that of the new rows"):
        lo.interval(fit, NEW)
    plain = lo.from_statsmodels(sm.OLS(FRAME.cost, sm.add_constant(FRAME[["a", "b"]])).fit())
    want = lo.interval(lo.fit(lo.GLM(X[:, :2], Y, "squared")), Z[:, :2])
    np.testing.assert_allclose(
        lo.interval(plain, sm.add_constant(NEW[["b", "a"]])), want, rtol=1e-8
    )


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.interval(lo.cross_validate(FIT, lo.leave_one_out()), Z),
            TypeError,
            r"must be a Fit.*Estimate.interval",
        ),
        (
            lambda: lo.interval(fitted("ordinal"), Z),
            TypeError,
            "has classes, or two values only, without a probability",
        ),
        (
            lambda: lo.quantile_interval(FIT, lo.fit(lo.GLM(X, -Y, "squared")), Z),
            ValueError,
            "of one response",
        ),
        (lambda: lo.quantile_interval(BINARY, BINARY, Z), TypeError, "is a class"),
        (lambda: lo.interval(BINARY, Z, inverse=np.exp), TypeError, "lo.prediction_sets"),
        (
            lambda: lo.prediction_sets(BINARY, Z, score="entropy"),
            ValueError,
            "one of lac, aps, raps; got 'entropy'",
        ),
        (lambda: lo.prediction_sets(BINARY, Z, raps=(-1.0, 2)), ValueError, "zero or more"),
        (lambda: lo.interval(FIT, Z, inverse=np.square), ValueError, "must be monotone"),
        (lambda: lo.interval(FIT, Z, new_groups=LABELS[:15]), ValueError, "needs groups"),
        (
            lambda: lo.interval(FIT, Z, groups=LABELS, new_groups=LABELS),
            ValueError,
            "60 labels, but there are 15 rows",
        ),
        (
            lambda: lo.interval(FIT, Z, level=0.8, groups=LABELS > 5, new_groups=["?"] * 15),
            ValueError,
            "a group of no unit",
        ),
        (
            lambda: lo.interval(FIT, Z, groups=LABELS, new_groups=LABELS[:15]),
            ValueError,
            "there are 1 in group 0",
        ),
        (
            lambda: lo.interval(fitted("hidden Markov"), Z),
            TypeError,
            "rows with a linear predictor.*got ToyHMM",
        ),
        (lambda: lo.interval(fitted("Cox"), Z), TypeError, "got Cox"),
        (
            lambda: lo.interval(lo.from_sklearn(RidgeClassifier().fit(X, Y > 0), X, Y > 0), Z),
            TypeError,
            "without a probability of each",
        ),
        (
            lambda: lo.interval(FIT, Z, level=90),
            ValueError,
            "level must lie between 0 and 1; got 90",
        ),
        (
            lambda: lo.interval(FIT, Z, method="naive"),
            ValueError,
            r"one of plus, minmax, cv\+; got 'naive'",
        ),
        (
            lambda: lo.interval(FIT, Z, level=0.99),
            ValueError,
            "needs 99 rows or more, left out one by one; there are 60",
        ),
        (
            lambda: lo.interval(FIT, Z, level=0.95, groups=LABELS),
            ValueError,
            "needs 19 groups or more.*there are 12",
        ),
        (
            lambda: lo.interval(FIT, Z, groups=LABELS, plan=lo.kfold(N, 3)),
            ValueError,
            "groups or a plan, not both",
        ),
        (
            lambda: lo.interval(FIT, Z, groups=LABELS[:-1]),
            ValueError,
            "the plan is for 59 units, but the fit has 60",
        ),
        (
            lambda: lo.interval(FIT, Z, plan=lo.bootstrap(N, 5)),
            ValueError,
            "holds out every unit once",
        ),
        (
            lambda: lo.interval(FIT, Z, plan=lo.random_subsets(N, 0.1, 5)),
            ValueError,
            "holds out every unit once",
        ),
        (lambda: lo.interval(FIT, Z, plan=lo.blocks(N, 6)), ValueError, "exchangeable"),
        (lambda: lo.interval(FIT, Z, strategy="exact"), TypeError, "strategy must be one"),
        (
            lambda: lo.interval(FIT, Z, offset=np.ones(15)),
            ValueError,
            "has no offset, but one was given",
        ),
        (
            lambda: lo.interval(FIT, Z[:, :2]),
            ValueError,
            r"X_new must be \[rows, 3\], of one row or more; got shape \(15, 2\)",
        ),
        (lambda: lo.interval(FIT, Z[0]), ValueError, r"got shape \(3,\)"),
        (lambda: lo.interval(FIT, Z[:0]), ValueError, r"got shape \(0, 3\)"),
        (
            lambda: lo.interval(FIT, NEW[["a", "b"]]),
            ValueError,
            "lacks columns that the model was fitted on: c",
        ),
        (
            lambda: lo.interval(FIT, NEW[["a", "b", "c", "a"]]),
            ValueError,
            r"duplicate column names: \['a'\]",
        ),
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
    """Two columns that were always equal, and a row in which they are not.

    Any prediction fits the data as well.
    """
    fit = lo.fit(lo.GLM(np.c_[X, X[:, 0]], Y, "squared"))
    new = np.c_[Z, Z[:, 0]]
    np.testing.assert_allclose(
        lo.interval(fit, new), lo.interval(lo.fit(lo.GLM(X, Y, "squared")), Z), rtol=1e-8
    )
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
        found, want = (
            lo.predict(lo.from_sklearn(host, X, y), new),
            host.predict_proba(new[list("abc")]),
        )
        assert list(found.index) == list("wxyz")
        np.testing.assert_allclose(found, want if want.shape[1] > 2 else want[:, 1], atol=1e-6)
        assert want.shape[1] == 2 or list(found.columns) == list(host.classes_)
    lasso = make_pipeline(StandardScaler(), Lasso(0.1, tol=1e-12)).fit(X, X.a)
    np.testing.assert_allclose(
        lo.predict(lo.from_sklearn(lasso, X, X.a), new), lasso.predict(new[list("abc")]), atol=1e-8
    )
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
    assert fit.objective.parameters.names()[:2] == [
        "onehotencoder__town_a",
        "onehotencoder__town_b",
    ]
    np.testing.assert_allclose(lo.predict(fit, rows[:3]), host.predict(rows[:3]), atol=1e-8)


def test_a_small_group_has_infinite_ends_and_the_others_their_own():
    rng = np.random.default_rng(3)
    X, g = rng.normal(size=(43, 1)), np.r_[np.repeat([0, 1], 20), 2, 2, 2]
    fit = lo.fit(lo.GLM(X, X[:, 0] + rng.normal(size=43), "squared"))
    with pytest.warns(UserWarning, match="level=0.9 needs 9 rows or more of a group: 2 has 3"):
        found = lo.interval(fit, X[:3], level=0.9, groups=g, new_groups=[0, 2, 1])
    alone = lo.interval(fit, X[[0, 2]], level=0.9, groups=g, new_groups=[0, 1])
    np.testing.assert_allclose(found.iloc[[0, 2]], alone)
    assert np.isinf(found.iloc[1][["low", "high"]]).all()
    with pytest.raises(
        ValueError, match="needs 9 rows or more, left out one by one; there are 3 in group 2"
    ):
        lo.interval(fit, X[:1], level=0.9, groups=g, new_groups=[2])


SHIFTED = Z + np.array([0.4, 0.0, 0.0])
RATIO = lambda x: np.exp(0.4 * x[:, 0] - 0.08)


@pytest.mark.parametrize("plan", [None, lo.kfold(k=6)])
def test_known_weights_are_those_of_the_weighted_jackknife(plan):
    """The quantiles of Prinster, Liu & Saria, by sorting all values with infinity."""
    fit = lo.fit(lo.GLM(X, Y, "squared"))
    arguments = {} if plan is None else {"method": "cv+", "plan": plan}
    folds = np.arange(N)[:, None]
    if plan is not None:
        folds = [test for _, test in plan._bind(N)]
    means, distance = scratch(folds, new=SHIFTED)
    table = lo.interval(
        fit, SHIFTED, level=0.8, sample_weight=RATIO(X), new_weight=RATIO(SHIFTED), **arguments
    )
    for k, weight in enumerate(RATIO(SHIFTED)):
        mass = np.append(RATIO(X), weight) / (RATIO(X).sum() + weight)
        ends = []
        for sign in (-1, 1):
            values = np.append(sign * means[k] + distance, np.inf)
            order = np.argsort(values)
            ends.append(sign * values[order][np.searchsorted(np.cumsum(mass[order]), 0.8)])
        np.testing.assert_allclose(table[["low", "high"]].iloc[k], ends, atol=1e-6)
    assert table.attrs["at_least"] == pytest.approx(0.6 - (0 if plan is None else (2 / N) ** 0.5))
    assert "at least 60.0%" in repr(table) or plan is not None


def test_weights_of_one_change_nothing():
    fit = lo.fit(lo.GLM(X, Y, "squared"))
    weighted = lo.interval(fit, Z, sample_weight=np.ones(N), new_weight=np.ones(len(Z)))
    plain = lo.interval(fit, Z)
    np.testing.assert_array_equal(weighted.to_numpy(), plain.to_numpy())
    assert "coverage" in repr(weighted)
    assert "coverage" not in repr(plain)


def test_weights_of_a_target_are_approximate():
    fit = lo.fit(lo.GLM(X, Y, "squared"))
    target = lo.cross_validate(fit, lo.leave_one_out()).target(SHIFTED)
    table = lo.interval(fit, SHIFTED, level=0.6, sample_weight=target)
    known = lo.interval(
        fit, SHIFTED, level=0.6, sample_weight=target.weights, new_weight=target.weigh(SHIFTED)
    )
    np.testing.assert_array_equal(table.to_numpy(), known.to_numpy())
    assert "approximate, since the weights are estimated" in repr(table)
    assert table.attrs["at_least"] == 0.0
    far_row = 60.0 * target.fit.parameters["coef"][None]
    with pytest.warns(UserWarning, match="the ends of 1 of 1 rows are infinite"):
        far = lo.interval(fit, far_row, level=0.8, sample_weight=target)
    assert np.isinf(far[["low", "high"]].to_numpy()).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_weight": np.ones(N)}, "known weights need new_weight="),
        ({"sample_weight": np.ones(3), "new_weight": np.ones(15)}, "one a unit, 60; got 3"),
        ({"sample_weight": -np.ones(N), "new_weight": np.ones(15)}, "of 0 or more"),
        ({"sample_weight": np.ones(N), "new_weight": np.ones(2)}, "one value for each of the 15"),
        ({"sample_weight": np.ones(N), "method": "minmax"}, r"goes with method 'plus' or 'cv\+'"),
        ({"sample_weight": np.ones(N), "groups": LABELS}, "without groups"),
    ],
)
def test_weights_that_do_not_serve_are_refused(arguments, message):
    fit = lo.fit(lo.GLM(X, Y, "squared"))
    with pytest.raises(ValueError, match=message):
        lo.interval(fit, Z, **arguments)
