"""Batched fits against scikit-learn's own, and what is drawn, injected and scored."""

import joblib
import numpy as np
import pytest
from scipy.optimize import lsq_linear
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeCV,
)
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import leaveout as lo
from leaveout.extensions.leakage._hinge import HingeFits
from leaveout.extensions.leakage._hosts import Estimator, make_learner, prepare
from leaveout.extensions.leakage._injection import (
    FoldInjection,
    Injection,
    make_folds,
    plan_injection,
)
from leaveout.extensions.leakage._models import LeakageFold
from leaveout.leakage import InjectedSplits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)) * [1.0, 2.0, 0.5] + 1.0
Y = X @ [1.0, -0.5, 2.0] + RNG.normal(size=300)
C = np.where(Y + 2 * RNG.normal(size=300) > Y.mean(), "yes", "no")
EXACT = {"tol": 1e-11, "max_iter": 20_000}
CASES = [
    (LinearRegression(), Y, "mse"),
    (LinearRegression(fit_intercept=False), Y, "absolute"),
    (Ridge(3.0), Y, "squared"),
    (make_pipeline(StandardScaler(), Ridge(3.0)), Y, "huber"),
    (LogisticRegression(C=0.5, **EXACT), C, "logistic"),
    (LogisticRegression(fit_intercept=False, **EXACT), C, "zero_one"),
    (make_pipeline(StandardScaler(), LogisticRegression(**EXACT)), C, "brier"),
    (LinearSVC(**EXACT), C, "zero_one"),
    (SVC(kernel="linear", tol=1e-9), C, "zero_one"),
    (make_pipeline(StandardScaler(), SVC(C=0.1, kernel="linear", tol=1e-9)), C, "zero_one"),
    (KNeighborsRegressor(3), Y, "mse"),
    (KNeighborsClassifier(4), C, "brier"),
    (KNeighborsClassifier(5), C, "zero_one"),
]


@pytest.mark.parametrize(
    "estimator, y, loss",
    CASES,
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else None,
)
def test_batched_fits_are_the_hosts_own(estimator, y, loss):
    task = prepare("test", estimator, X, y, loss, "auto")
    ours = make_learner(estimator, task, None)
    theirs = Estimator(estimator, X, y, task.measure, None)
    assert type(ours) is not Estimator
    train = RNG.integers(0, 150, (6, 60))  # with repetitions
    shared, own, seeds = np.arange(150, 200), RNG.integers(200, 300, (6, 7)), np.arange(6)
    for a, b in zip(
        ours(train, shared, own, seeds), theirs(train, shared, own, seeds), strict=True
    ):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.parametrize(
    "estimator, y, loss",
    CASES,
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else None,
)
def test_levels_that_share_rows_are_the_hosts_own_fits(estimator, y, loss):
    """Levels of a draw differ by few rows.

    With a rare column, which some training sets lack, and one that is constant.
    """
    rare = np.column_stack([X, np.arange(300) == 7, np.full(300, 3.0)])
    task = prepare("test", estimator, rare, y, loss, "auto")
    ours = make_learner(estimator, task, None)
    theirs = Estimator(estimator, rare, y, task.measure, None)
    fold = LeakageFold(np.arange(220), np.arange(220, 300), np.arange(300) // 10)
    drawn = FoldInjection(fold, 0, "record", np.array([0, 1, 3, 12, 40]), 200, 12, 3).draw(0, 4)
    train, own = drawn.train.reshape(-1, 200), drawn.outside.repeat(5, axis=0)
    made = ours(train, fold.test, own, np.arange(20)), theirs(train, fold.test, own, np.arange(20))
    for a, b in zip(*made, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_chains_give_up_where_a_class_is_alone():
    labels = np.r_[np.zeros(150, int), np.ones(150, int)]
    task = prepare("test", LogisticRegression(), X, labels, "logistic", "auto")
    ours = make_learner(LogisticRegression(), task, None)
    train = np.array(
        [np.arange(100), np.r_[np.arange(1, 100), 200], np.r_[np.arange(2, 100), 200, 201]]
    )
    found, _ = ours(train, np.arange(290, 300), np.zeros((3, 0), int), np.arange(3))
    host = LogisticRegression(**EXACT).fit(X[train[2]], labels[train[2]])
    assert np.all(found[0] == 0) and np.all(found[1] > 0)
    np.testing.assert_allclose(found[2], host.predict_proba(X[290:])[:, 1], atol=2e-6)


@pytest.mark.parametrize(
    "estimator, y, loss",
    [
        (RidgeCV(), Y, "mse"),  # whose penalty is chosen anew in every fit
        (RidgeCV().fit(X, Y), Y, "mse"),
        (Ridge([1.0]), Y, "mse"),
        (PoissonRegressor(), np.abs(Y), "mse"),
        (LogisticRegression(class_weight="balanced"), C, "logistic"),
        (LogisticRegression(C=np.inf), C, "logistic"),
        (LinearSVC(loss="hinge"), C, "zero_one"),
        (SVC(), C, "zero_one"),
        (SVC(kernel="linear", class_weight="balanced"), C, "zero_one"),
        (SVC(kernel="linear", max_iter=100), C, "zero_one"),
        (make_pipeline(StandardScaler(), KNeighborsRegressor(3)), Y, "mse"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else None,
)
def test_what_has_no_batch_is_fitted_by_its_host(estimator, y, loss):
    task = prepare("test", estimator, X, y, loss, "auto")
    assert type(make_learner(estimator, task, None)) is Estimator


@pytest.mark.parametrize("penalty", [30.0, 1.0, 0.01])
def test_support_vectors_attain_the_minimum_whatever_the_scales(penalty):
    # scales apart, columns dependent, one empty
    wide = np.column_stack([100 * X, X[:, :1] > 1, X[:, :1] <= 1, np.zeros(300)])
    for data in (X, wide):
        learner = HingeFits(data, (C == "yes") * 1.0, penalty, True, False, "label")
        train = RNG.integers(0, 300, (5, 60))
        for rows, found in zip(train, learner.solve(data[train], learner.y[train]), strict=True):
            z = (2 * learner.y[rows] - 1)[:, None] * np.column_stack([data[rows], np.ones(60)])
            margin, slope = z @ found - 1, penalty * np.append(found[:-1], 0.0)
            # there the subgradient is known: z where the margin is short, else none
            sure = np.abs(margin) > 1e-5
            free = lsq_linear(z[~sure].T, slope - z[sure & (margin < 0)].sum(0), (0, 1), tol=1e-14)
            assert np.abs(free.fun).max() < 1e-5 * np.abs(z).sum(0).max()
            host = (
                SVC(kernel="linear", C=1 / penalty, tol=1e-6).fit(data[rows], learner.y[rows])
                if data is X
                else None
            )
            if host is not None:
                np.testing.assert_allclose(
                    found[:-1], host.coef_[0], atol=3e-4 * np.abs(found).max()
                )


def test_support_vectors_of_what_is_degenerate_settle_or_say_that_they_do_not():
    rng = np.random.default_rng(3)
    y = np.arange(40) % 2.0
    for data in (
        np.column_stack([y, y]),
        np.zeros((40, 2)),
        1e4 * rng.normal(size=(40, 60)),
        1e-3 * rng.normal(size=(40, 3)),
    ):
        found = HingeFits(data, y, 1.0, True, False, "label").solve(data[None], y[None])[0]
        host = SVC(kernel="linear", tol=1e-8).fit(data, y)
        loss = lambda beta, b, data=data: (
            0.5 * beta @ beta + np.maximum(0, 1 - (2 * y - 1) * (data @ beta + b)).sum()
        )
        assert loss(found[:-1], found[-1]) <= loss(host.coef_[0], host.intercept_[0]) + 1e-6
    with (
        pytest.raises(ArithmeticError, match=r"1 of 1 fits .* did not settle.*StandardScaler"),
        np.errstate(all="ignore"),
    ):
        HingeFits(data * np.nan, y, 1.0, True, False, "label").solve((data * np.nan)[None], y[None])


def test_support_vectors_settle_where_whole_corrections_lead_round_in_a_circle():
    """Whole years and levels of words, of a kind of which one fit in forty thousand did."""
    age = [79, 26, 77, 67, 75, 48, 59, 17, 54, 50, 34, 30, 43, 27, 19, 76, 68, 29, 31, 23]
    school = [14, 14, 8, 6, 15, 9, 13, 3, 12, 16, 5, 3, 3, 11, 8, 8, 13, 7, 12, 13]
    words = np.eye(4)[[3, 2, 1, 1, 1, 1, 3, 0, 1, 2, 0, 1, 3, 2, 1, 2, 0, 2, 3, 2]]
    others = np.eye(6)[[4, 4, 4, 5, 1, 3, 4, 1, 0, 5, 0, 4, 5, 3, 2, 1, 4, 0, 5, 5]]
    data, y = (
        np.column_stack([age, school, words, others]),
        np.r_[np.ones(7), 0, 1, 1, np.zeros(5), 1, 1, 0, 0, 0],
    )
    found = HingeFits(data, y, 1.0, True, False, "label").solve(data[None], y[None])[0]
    host = SVC(kernel="linear", tol=1e-8).fit(data, y)
    loss = lambda beta, b: (
        0.5 * beta @ beta + np.maximum(0, 1 - (2 * y - 1) * (data @ beta + b)).sum()
    )
    assert loss(found[:-1], found[-1]) <= loss(host.coef_[0], host.intercept_[0]) + 1e-6


def test_fewer_records_than_columns_is_the_shortest_solution():
    wide = RNG.normal(size=(40, 12))
    y = wide[:, 0] + RNG.normal(size=40)
    task = prepare("test", LinearRegression(), wide, y, "mse", "auto")
    ours = make_learner(LinearRegression(), task, None)
    train = RNG.permutation(30)[None, :8]
    found, _ = ours(train, np.arange(30, 40), np.zeros((1, 0), int), np.zeros(1, int))
    np.testing.assert_allclose(
        found[0], LinearRegression().fit(wide[train[0]], y[train[0]]).predict(wide[30:]), atol=1e-8
    )


def test_a_training_set_of_one_class_predicts_it():
    y = np.r_[np.zeros(100, int), np.ones(200, int)]
    linear = SVC(kernel="linear")
    cases = [
        (LogisticRegression(), "zero_one"),
        (LinearSVC(), "zero_one"),
        (linear, "zero_one"),
        (LogisticRegression(), "brier"),
    ]
    for estimator, loss in cases:
        task = prepare("test", estimator, X, y, loss, "auto")
        for learner in (
            make_learner(estimator, task, None),
            Estimator(estimator, X, y, task.measure, None),
        ):
            found, _ = learner(
                np.arange(200, 240)[None], np.arange(100), np.zeros((1, 0), int), np.zeros(1, int)
            )
            assert np.all(found == 1.0)


def test_a_glm_of_ours_is_refitted_as_scikit_learn_would():
    model = Ridge(2.0).fit(X, Y)
    fit = lo.from_sklearn(model, X, Y)
    task = prepare("test", fit, X, Y, "mse", "auto")
    ours = make_learner(fit, task, None)
    train = RNG.integers(0, 200, (3, 120))
    shared, own = np.arange(200, 250), np.arange(250, 300).reshape(1, -1).repeat(3, 0)
    host = Estimator(Ridge(2.0), X, Y, task.measure, None)
    for a, b in zip(
        ours(train, shared, own, np.arange(3)), host(train, shared, own, np.arange(3)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)
    logistic = lo.fit(lo.GLM(X, (C == "yes") * 1.0, "logistic", lo.penalties.Ridge(1.0)))
    task = prepare("test", logistic, X, C, "logistic", "auto")
    ours = make_learner(logistic, task, None)
    host = Estimator(LogisticRegression(C=1.0, **EXACT), X, C, task.measure, None)
    for a, b in zip(
        ours(train, shared, own, np.arange(3)), host(train, shared, own, np.arange(3)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)


def folds(sizes=(40, 20)):
    labels = np.repeat(np.arange(sum(sizes) // 5), 5)
    return LeakageFold(np.arange(sizes[0]), np.arange(sizes[0], sum(sizes)), labels)


@pytest.mark.parametrize("mechanism, levels", [("record", [0, 1, 5, 9]), ("split", [0, 1, 3, 4])])
def test_injected_records_never_score_and_levels_share_their_draws(mechanism, levels):
    fold = folds()
    part = FoldInjection(fold, 0, mechanism, np.array(levels), 34, 4, 7)
    drawn = part.draw(3, 9)
    for b in range(6):
        before: set = set()
        assert not set(drawn.outside[b]) & set(drawn.train[b].ravel()) and set(
            drawn.outside[b]
        ) <= set(fold.train)
        for level, j in enumerate(levels):
            rows = drawn.train[b, level]
            assert len(set(rows)) == 34  # without replacement
            injected = set(rows) & set(fold.test)
            scored = set(fold.test[drawn.score_mask[b, level]])
            assert not injected & scored and injected | scored == set(fold.test)
            assert before <= injected
            before = injected
            if mechanism == "record":
                assert len(injected) == j
            else:
                # halves of five
                assert len({fold.clusters[row] for row in injected}) == j and len(injected) == 2 * j
    again = part.draw(5, 6)  # a draw depends on its own number only
    np.testing.assert_array_equal(again.train[0], drawn.train[2])
    np.testing.assert_array_equal(again.score_mask[0], drawn.score_mask[2])


def test_every_record_is_as_likely_to_be_drawn_as_another():
    part = FoldInjection(folds(), 0, "record", np.array([0, 6]), 30, 2, 1)
    drawn = part.draw(0, 3000)
    count = np.bincount(drawn.train[:, 1].ravel(), minlength=60) / 3000
    np.testing.assert_allclose(count[:40], 24 / 40, atol=0.05)
    np.testing.assert_allclose(count[40:], 6 / 20, atol=0.05)


def test_levels_begin_at_zero_and_hold_a_tenth_of_the_test_records():
    labels = np.repeat(np.arange(20), 20)
    made, _ = make_folds("test", X[:1].repeat(400, 0), np.zeros(400), labels, 4, 0)
    plan = plan_injection(made, Injection(), 0)
    assert len(plan) == 4 and all(len(part.levels) == 12 for part in plan)
    assert plan[0].levels[0] == 0 and 10 in plan[0].levels and plan[0].levels[-1] == 50
    assert plan[0].size == 285 and plan[0].num_left == 15


def test_the_folds_do_not_depend_on_how_the_clusters_are_called():
    labels = np.repeat(np.arange(10), 6)
    a, _ = make_folds("test", X[:60], Y[:60], labels, 3, 0)
    assert sorted(len(fold.test) for fold in a) == [18, 18, 24]
    b, _ = make_folds("test", X[:60], Y[:60], labels, 3, 1)
    assert any(not np.array_equal(one.test, other.test) for one, other in zip(a, b, strict=True))


def test_the_splitter_works_in_cross_val_score():
    labels = np.repeat(np.arange(12), 25)
    splits = InjectedSplits(0.2, 4, num_repeats=2, rng=3)
    pairs = list(splits.split(X, Y, labels))
    assert len(pairs) == splits.get_n_splits() == 8
    for train, test in pairs:
        assert not set(train) & set(test) and len(train) == 225 and len(test) == 60
    scores = cross_val_score(Ridge(), X, Y, groups=labels, cv=splits)
    np.testing.assert_array_equal(scores, cross_val_score(Ridge(), X, Y, groups=labels, cv=splits))
    clean = list(InjectedSplits(0.0, 4).split(X, Y, labels))
    for train, test in clean:
        assert not set(labels[train]) & set(labels[test])
    halves = next(InjectedSplits(0.4, 4, mechanism="split").split(X, Y, labels))
    assert len(set(labels[halves[0]]) & set(labels[halves[1]])) == 1


def test_joblib_gives_the_numbers_of_one_process_and_every_level_the_same_seed():
    forest = RandomForestRegressor(3)
    task = prepare("test", forest, X, Y, "mse", "auto")
    train, own, seeds = RNG.integers(0, 200, (4, 50)), np.zeros((4, 0), int), np.array([5, 5, 6, 6])
    train[1] = train[0]
    one = Estimator(forest, X, Y, task.measure, 1)(train, np.arange(200, 230), own, seeds)[0]
    with joblib.parallel_config("threading", n_jobs=2):  # the caller's backend
        two = Estimator(forest, X, Y, task.measure, None)(train, np.arange(200, 230), own, seeds)[0]
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one[0], one[1])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: InjectedSplits(1.0), r"share must lie in \[0, 1\)"),
        (lambda: InjectedSplits(0.1, mechanism="both"), "mechanism must be 'record' or 'split'"),
        (lambda: InjectedSplits(0.1, num_repeats=0), "num_repeats must be a whole number"),
        (lambda: next(InjectedSplits(0.1).split(X, Y)), "give groups="),
        (
            lambda: lo.leakage.Injection(num_levels=3),
            "num_levels must be a whole number of 4 or more",
        ),
        (lambda: lo.leakage.Injection(num_boot=2.5), "num_boot must be a whole number"),
        (lambda: lo.leakage.Injection(mechanism="all"), "mechanism must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
