"""The drop-in: what scikit-learn's own cross-validation returns, by its own refits.

And errors that cover what is off.
"""

import functools
import logging
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.cluster import KMeans
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.exceptions import FitFailedWarning, UndefinedMetricWarning
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.linear_model import (
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    MultiTaskLasso,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.metrics import (
    get_scorer_names,
    log_loss,
    make_scorer,
    mean_squared_error,
    median_absolute_error,
)
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_predict,
    cross_validate,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import leaveout as lo
from leaveout.extensions.hosts._standardised import StandardisedGLM

N = 90
rng = np.random.default_rng(1)
X = rng.standard_normal((N, 4)) * [1.0, 2.0, 0.5, 1.0] + 0.3
ETA = X @ np.array([0.6, -0.3, 0.5, 0.0])
Y = {
    "real": ETA + rng.standard_normal(N),
    "positive": np.exp(ETA / 2 + 0.3 * rng.standard_normal(N)),
    "count": rng.poisson(np.exp(ETA / 2)).astype(float),
    "two": np.where(ETA + rng.logistic(size=N) > 0, "yes", "no"),
    "bits": (ETA + rng.logistic(size=N) > 0).astype(int),
    "three": np.array(["a", "b", "c"])[
        np.argmax(np.c_[ETA, X[:, 0], X[:, 1]] + rng.gumbel(size=(N, 3)), axis=1)
    ],
}
GROUPS, WEIGHT = np.arange(N) // 9, rng.gamma(2.0, 0.5, N)
TIGHT = {"tol": 1e-10, "max_iter": 100_000}
LOGISTIC, EXACT = LogisticRegression(C=0.5, **TIGHT), lo.Exact(1e-10)
NUMBERS = [
    "r2",
    "neg_mean_squared_error",
    "neg_root_mean_squared_error",
    "neg_mean_absolute_error",
    "neg_max_error",
]
CLASSES = ["accuracy", "neg_log_loss"]
CASES = {  # host, response, splitter, scorers, how far they may differ by the host's own tolerance
    "ridge, folds": (Ridge(2.0), "real", KFold(6, shuffle=True, random_state=0), NUMBERS, 1e-10),
    "ridge, one by one": (
        Ridge(2.0),
        "real",
        LeaveOneOut(),
        ["neg_mean_squared_error", "neg_mean_absolute_error"],
        1e-10,
    ),
    "least squares, in time": (LinearRegression(), "real", TimeSeriesSplit(4), NUMBERS, 1e-10),
    "logistic, groups": (
        LOGISTIC,
        "bits",
        GroupKFold(5),
        [*CLASSES, "neg_brier_score", "roc_auc"],
        1e-7,
    ),
    "logistic, one by one": (LOGISTIC, "two", LeaveOneOut(), ["accuracy"], 1e-7),
    "multinomial, repeated": (
        LOGISTIC,
        "three",
        RepeatedKFold(n_splits=4, n_repeats=2, random_state=0),
        CLASSES,
        1e-7,
    ),
    "balanced": (
        LogisticRegression(class_weight="balanced", **TIGHT),
        "two",
        StratifiedKFold(4),
        [*CLASSES, "f1_macro"],
        1e-7,
    ),
    "Poisson, D²": (
        PoissonRegressor(alpha=0.2, solver="newton-cholesky", tol=1e-12),
        "count",
        ShuffleSplit(5, random_state=0),
        None,
        1e-7,
    ),
    "ridge classifier": (RidgeClassifier(2.0), "two", 5, ["accuracy", "roc_auc"], 1e-10),
    "support vectors": (
        LinearSVC(C=0.1, **TIGHT),
        "bits",
        5,
        ["accuracy", "roc_auc", "average_precision"],
        1e-7,
    ),
    "Huber": (HuberRegressor(alpha=0.1, tol=1e-9, max_iter=5000), "real", 4, None, 2e-5),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow_for("Huber")
def test_scores_are_those_of_scikit_learns_own_refits(name):
    host, target, cv, scoring, tolerance = CASES[name]
    y = Y[target]
    groups = GROUPS if isinstance(cv, GroupKFold) else None
    theirs = cross_validate(
        host, X, y, cv=cv, groups=groups, scoring=scoring, return_train_score=True
    )
    ours = lo.sklearn.cross_validate(
        host, X, y, cv=cv, groups=groups, scoring=scoring, return_train_score=True, strategy=EXACT
    )
    errors = (
        ["approximation_error"]
        if scoring is None
        else [f"approximation_error_{one}" for one in scoring]
    )
    assert set(ours) == set(theirs) | {*errors, "refits"} and ours["refits"] == "from one fit"
    for key in theirs:
        assert ours[key].shape == theirs[key].shape
        if not key.endswith("_time"):
            np.testing.assert_allclose(
                ours[key], theirs[key], rtol=0, atol=tolerance * max(1, np.abs(theirs[key]).max())
            )
    assert all((ours[error] >= 0).all() and (ours[error] < 1e-5).all() for error in errors)


TARGET_LOG = TransformedTargetRegressor(Ridge(0.5), func=np.log, inverse_func=np.exp)
POISSON = PoissonRegressor(alpha=0.2, solver="newton-cholesky", tol=1e-12)
ERRORS = {  # host, response, method
    "ridge": (Ridge(2.0), "real", "predict"),
    "log target": (TARGET_LOG, "positive", "predict"),
    "Poisson": (POISSON, "count", "predict"),
    "two targets": (Ridge(np.array([1.0, 5.0])), ["real", "positive"], "predict"),
    "decisions": (LOGISTIC, "two", "decision_function"),
    "probabilities": (LOGISTIC, "two", "predict_proba"),
    "logarithms": (LOGISTIC, "two", "predict_log_proba"),
    "three classes": (LOGISTIC, "three", "predict_proba"),
    "logarithms of three": (LOGISTIC, "three", "predict_log_proba"),
    "classes apart": (OneVsRestClassifier(LOGISTIC), "three", "predict_proba"),
    "decisions apart": (LinearSVC(C=0.1, **TIGHT), "three", "decision_function"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_predictions_cover_the_hosts_own_refits(name):
    host, target, method = ERRORS[name]
    y = np.stack([Y[one] for one in target], 1) if isinstance(target, list) else Y[target]
    call = functools.partial(
        lo.sklearn.cross_val_predict,
        host,
        X,
        y,
        cv=KFold(15, shuffle=True, random_state=0),
        method=method,
    )
    theirs = cross_val_predict(
        host, X, y, cv=KFold(15, shuffle=True, random_state=0), method=method
    )
    for strategy in (lo.Exact(0.3), lo.Exact(1e-3)):
        predicted, error = call(strategy=strategy, error=True)
        np.testing.assert_array_equal(predicted, call(strategy=strategy))
        gap = np.abs(predicted - theirs)
        assert error.shape == predicted.shape == theirs.shape and np.isfinite(error).all()
        assert np.all(gap <= error + 1e-6), np.max(gap / error)
    predicted, error = call(strategy=EXACT, error=True)
    assert error.max() < 1e-5 and np.abs(predicted - theirs).max() < 1e-5


@pytest.mark.filterwarnings("ignore:Number of classes in training fold")
def test_errors_of_the_hosts_own_refits_are_zero_and_labels_have_none():
    predicted, error = lo.sklearn.cross_val_predict(
        KNeighborsRegressor(3), X, Y["real"], error=True
    )
    assert predicted.shape == error.shape and not error.any()
    with pytest.raises(
        ValueError, match="labels have no error; predictions of method='predict_proba' have"
    ):
        lo.sklearn.cross_val_predict(LOGISTIC, X, Y["two"], error=True)
    # the fold of all of class c is fitted alone, by the host
    order = np.argsort(Y["three"], kind="stable")[::-1]
    first = int((Y["three"] == "c").sum())
    tests = [order[:first], order[first::2], order[first + 1 :: 2]]
    splits = [(np.setdiff1d(np.arange(N), test), test) for test in tests]
    host, more = OneVsRestClassifier(LOGISTIC), {"cv": splits, "method": "predict_proba"}
    call = functools.partial(lo.sklearn.cross_val_predict, host, X, Y["three"], error=True, **more)
    predicted, error = call(strategy=lo.Exact(0.1))
    assert not error[tests[0]].any() and error[order[first:]].all()
    np.testing.assert_allclose(
        predicted[tests[0]], cross_val_predict(host, X, Y["three"], **more)[tests[0]]
    )
    assert np.isposinf(call(strategy=lo.NewtonStep())[1][order[first:]]).all()


LABELS, TARGETS = (
    ["accuracy", "f1_macro", "balanced_accuracy", "matthews_corrcoef"],
    ["real", "positive"],
)
ALL_NUMBERS = [
    "r2",
    "neg_mean_squared_error",
    "neg_root_mean_squared_error",
    "neg_median_absolute_error",
]
PROBABILITIES, LIBLINEAR = (
    ["accuracy", "neg_log_loss", "roc_auc_ovr"],
    LogisticRegression(solver="liblinear", tol=1e-10),
)
STOCHASTIC = {
    "alpha": 0.3,
    "random_state": 0,
    "tol": None,
    "max_iter": 3000,
    "learning_rate": "invscaling",
    "eta0": 0.5,
}
# host of a problem for each class or target, response, scorers, how far scores may differ by the
# host's tolerance
APART = {
    "ridge classifier": (RidgeClassifier(2.0), "three", LABELS, 1e-10),
    "support vectors": (LinearSVC(C=0.1, **TIGHT), "three", LABELS, 1e-10),
    "gradients": (SGDClassifier("log_loss", **STOCHASTIC), "three", PROBABILITIES, 3e-3),
    "logistic": (OneVsRestClassifier(LOGISTIC), "three", PROBABILITIES, 1e-6),
    "penalised intercept": (OneVsRestClassifier(LIBLINEAR), "three", PROBABILITIES, 1e-5),
    "two classes": (OneVsRestClassifier(LOGISTIC), "two", ["accuracy", "neg_log_loss"], 1e-6),
    "scaled": (make_pipeline(StandardScaler(), RidgeClassifier(5.0)), "three", LABELS, 1e-10),
    "scaled inside": (
        OneVsRestClassifier(make_pipeline(StandardScaler(), LOGISTIC)),
        "three",
        PROBABILITIES,
        1e-6,
    ),
    "lasso": (Lasso(0.05, tol=1e-12, max_iter=100_000), TARGETS, ALL_NUMBERS, 1e-8),
    "ridge": (Ridge(np.array([1.0, 5.0])), TARGETS, ALL_NUMBERS, 1e-10),
    "least squares": (
        make_pipeline(StandardScaler(), LinearRegression()),
        TARGETS,
        ALL_NUMBERS,
        1e-10,
    ),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.filterwarnings("ignore:.*is not at a minimum")
def test_each_class_or_target_is_a_problem_of_its_own(name):
    host, target, scoring, tolerance = APART[name]
    y = np.stack([Y[one] for one in target], 1) if isinstance(target, list) else Y[target]
    cv, strategy = KFold(20, shuffle=True, random_state=0), lo.Certified()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = cross_validate(host, X, y, cv=cv, scoring=scoring, return_estimator=True)
        ours = lo.sklearn.cross_validate(host, X, y, cv=cv, scoring=scoring, strategy=strategy)
        predicted = lo.sklearn.cross_val_predict(host, X, y, cv=cv, strategy=EXACT)
    assert ours["refits"] == "from one fit"
    for one in scoring:
        want, got, error = (
            theirs[f"test_{one}"],
            ours[f"test_{one}"],
            ours[f"approximation_error_{one}"],
        )
        there = ~np.isnan(want)  # scikit-learn's log loss needs test rows of every class
        assert not np.isnan(got[there]).any()
        assert (
            np.abs(got - want)[there]
            <= error[there] + tolerance * max(1, np.abs(want[there]).max())
        ).all(), one
        assert there.sum() > 5 and np.median(error[there]) < 0.01
    each = np.empty(y.shape, y.dtype)
    for own, (_, test) in zip(theirs["estimator"], cv.split(X), strict=True):
        each[test] = own.predict(X[test])
    if y.ndim == 1:
        assert (predicted == each).mean() > (0.97 if name == "gradients" else 1 - 1e-9)
    else:
        np.testing.assert_allclose(predicted, each, atol=1e-6)


def test_a_fold_that_lacks_a_class_has_fewer_problems_at_the_host():
    y = np.array(Y["three"], "U1")
    y[:2] = "d"
    splits = [(np.arange(5, N), np.arange(5)), *KFold(9).split(X)]
    for host in (RidgeClassifier(2.0), OneVsRestClassifier(LOGISTIC)):
        ours = lo.sklearn.cross_validate(host, X, y, cv=splits, strategy=EXACT)
        np.testing.assert_allclose(
            ours["test_score"], cross_validate(host, X, y, cv=splits)["test_score"], rtol=1e-12
        )
        assert ours["refits"] == "from one fit"
    with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
        values = [
            predict(RidgeClassifier(2.0), X, y, cv=KFold(9), method="decision_function")
            for predict in (
                cross_val_predict,
                functools.partial(lo.sklearn.cross_val_predict, strategy=EXACT),
            )
        ]
    np.testing.assert_allclose(*values, atol=1e-9)


COARSE = {
    "no update": lo.NoUpdate(),
    "one step of the full fit": lo.InfinitesimalJackknife(),
    "certified": lo.Certified(0.5),
}


@pytest.mark.parametrize("refit", COARSE.values(), ids=COARSE)
@pytest.mark.parametrize("scoring", ["neg_log_loss", "neg_brier_score", "d2_log_loss_score"])
def test_the_error_is_about_how_far_a_coarse_refit_is_off(refit, scoring):
    if scoring not in get_scorer_names():
        pytest.skip("needs scikit-learn 1.8")
    cv = KFold(6, shuffle=True, random_state=3)
    truth = cross_validate(LOGISTIC, X, Y["bits"], cv=cv, scoring=scoring)["test_score"]
    found = lo.sklearn.cross_validate(
        LOGISTIC, X, Y["bits"], cv=cv, scoring=scoring, strategy=refit
    )
    off = np.abs(found["test_score"] - truth)
    assert (off <= found["approximation_error"] + 1e-7).all()
    assert refit is not COARSE["no update"] or (
        off.max() > 1e-3 and found["approximation_error"].max() < 30 * off.max()
    )


PREPARED = {
    "selected": (make_pipeline(SelectKBest(k=2), LOGISTIC), "two"),
    "scaled": (make_pipeline(StandardScaler(), Ridge(5.0)), "real"),
    "scaled target": (
        TransformedTargetRegressor(Ridge(2.0), transformer=QuantileTransformer(n_quantiles=20)),
        "real",
    ),
    "both": (
        make_pipeline(
            StandardScaler(), TransformedTargetRegressor(Ridge(2.0), transformer=StandardScaler())
        ),
        "real",
    ),
}


@pytest.mark.parametrize("name", PREPARED)
def test_what_learns_from_rows_is_fitted_on_the_training_rows(name):
    host, target = PREPARED[name]
    y, cv = Y[target], KFold(6, shuffle=True, random_state=0)
    theirs = cross_validate(host, X, y, cv=cv, return_train_score=True)
    ours = lo.sklearn.cross_validate(host, X, y, cv=cv, return_train_score=True)
    for key in ("test_score", "train_score"):
        np.testing.assert_allclose(ours[key], theirs[key], atol=1e-7)
    assert (ours["approximation_error"] < 1e-8).all() and "transformers" not in ours
    np.testing.assert_allclose(
        lo.sklearn.cross_val_predict(
            host, X, y, cv=cv, **({"method": "predict_proba"} if target == "two" else {})
        ),
        cross_val_predict(
            host, X, y, cv=cv, **({"method": "predict_proba"} if target == "two" else {})
        ),
        atol=1e-6,
    )


STANDARDISED = {
    "ridge": (Ridge(5.0), "real", LeaveOneOut(), "neg_mean_squared_error"),
    "least squares": (LinearRegression(), "real", KFold(5), "r2"),
    "logistic": (LOGISTIC, "bits", LeaveOneOut(), "accuracy"),
    "logistic, in time": (LOGISTIC, "bits", TimeSeriesSplit(4), ["neg_log_loss", "roc_auc"]),
    "balanced": (
        LogisticRegression(C=0.1, class_weight="balanced", **TIGHT),
        "two",
        KFold(4),
        "neg_log_loss",
    ),
    "Poisson": (
        PoissonRegressor(alpha=0.3, solver="newton-cholesky", tol=1e-12),
        "count",
        KFold(5),
        None,
    ),
    "ridge classifier": (RidgeClassifier(5.0), "bits", KFold(5), "average_precision"),
    "multinomial": (LOGISTIC, "three", KFold(4), ["accuracy", "neg_log_loss"]),
    "multinomial, one by one": (LOGISTIC, "three", LeaveOneOut(), "accuracy"),
    "balanced classes": (
        LogisticRegression(C=0.1, class_weight="balanced", **TIGHT),
        "three",
        KFold(4),
        "neg_log_loss",
    ),
    "each against the rest": (OneVsRestClassifier(LOGISTIC), "three", KFold(4), "neg_log_loss"),
}


@pytest.mark.parametrize("name", STANDARDISED)
@pytest.mark.parametrize(
    "before",
    [(StandardScaler(),), (Normalizer(), StandardScaler(with_mean=False))],
    ids=["", "more"],
)
def test_standardising_in_every_fold_is_a_change_of_the_penalty(name, before, monkeypatch):
    model, target, cv, scoring = STANDARDISED[name]
    host, y = make_pipeline(*before, model), Y[target]
    x = np.c_[
        X * [1.0, 40.0, 0.01, 1.0], np.arange(N) == 4, np.full(N, 2.0)
    ]  # a column that is constant in some folds, and one
    theirs = cross_validate(host, x, y, cv=cv, scoring=scoring, return_train_score=True)
    count = []
    monkeypatch.setattr(
        StandardScaler,
        "fit",
        lambda self, *args, fit=StandardScaler.fit: count.append(1) or fit(self, *args),
    )
    ours = lo.sklearn.cross_validate(
        host, x, y, cv=cv, scoring=scoring, return_train_score=True, strategy=EXACT
    )
    alone = name == "least squares"  # the fold without the row that its coefficient is of
    assert len(count) == 1 + alone and "transformers" not in ours
    quick = lo.sklearn.cross_validate(host, x, y, cv=cv, scoring=scoring, strategy=lo.Certified())
    for key in theirs:
        if not key.endswith("_time"):
            np.testing.assert_allclose(ours[key], theirs[key], atol=1e-7, err_msg=key)
        if key.startswith("test_"):
            error = quick[
                "approximation_error" + key[4:] if key != "test_score" else "approximation_error"
            ]
            assert (np.abs(quick[key] - theirs[key]) <= error + 1e-7).all()


def test_one_step_of_the_full_fit_of_standardised_columns():
    host, cv = make_pipeline(StandardScaler(), Ridge(5.0)), KFold(15)
    theirs = cross_validate(host, X, Y["real"], cv=cv)["test_score"]
    ours = lo.sklearn.cross_validate(
        host, X, Y["real"], cv=cv, strategy=lo.InfinitesimalJackknife()
    )
    off = np.abs(ours["test_score"] - theirs)
    assert (off <= ours["approximation_error"]).all() and off.max() > 1e-4


def test_splits_may_be_lists_or_truths():
    pairs = list(KFold(3).split(X))
    want = lo.sklearn.cross_val_score(Ridge(), X, Y["real"], cv=pairs)
    truths = [tuple(np.isin(np.arange(N), part) for part in pair) for pair in pairs]
    for cv in (truths, [tuple(part.tolist() for part in pair) for pair in pairs]):
        np.testing.assert_array_equal(
            lo.sklearn.cross_val_score(Ridge(), X, Y["real"], cv=cv), want
        )
        search = lo.sklearn.OneFitSearchCV(Ridge(), {"alpha": [1.0]}, cv=cv).fit(X, Y["real"])
        assert search.best_score_ == pytest.approx(want.mean())


def test_the_inside_of_standardised_estimators_is_theirs():
    host, cv = make_pipeline(StandardScaler(), Ridge(5.0)), KFold(4)
    scoring = {
        "first": lambda host, X, y: host[-1].coef_[0],
        "scale": lambda host, X, y: host[0].scale_[0],
    }
    for options in ({"return_estimator": True}, {"scoring": scoring}):
        theirs = cross_validate(host, X, Y["real"], cv=cv, **options)
        ours = lo.sklearn.cross_validate(host, X, Y["real"], cv=cv, **options)
        for key in theirs:
            if key.startswith("test"):
                np.testing.assert_allclose(ours[key], theirs[key], atol=1e-10)
        for mine, other in zip(ours.get("estimator", ()), theirs.get("estimator", ()), strict=True):
            np.testing.assert_allclose(mine[0].scale_, other[0].scale_)
            np.testing.assert_allclose(mine[-1].coef_, other[-1].coef_)


def test_the_loss_of_standardised_columns_by_its_formula():
    import jax

    y, ridge, w = Y["bits"].astype(float), 0.7, rng.integers(0, 3, N).astype(float)
    model = StandardisedGLM(X, y, "logistic", lo.penalties.Ridge(ridge), sample_weight=WEIGHT)
    theta = rng.standard_normal(5)
    eta = X @ theta[:4] + theta[4]
    seen = np.repeat(np.arange(N), w.astype(int))
    ratio = X[seen].var(axis=0) / X.var(axis=0)
    want = (w * WEIGHT) @ (np.logaddexp(0, eta) - y * eta) + 0.5 * ridge * ratio @ theta[:4] ** 2
    loss = lambda v: model.loss(v, w)
    with jax.enable_x64(True):
        functions = loss, lambda v: model.hessian(v, w), jax.hessian(loss)
        value, hessian, derived = (jax.jit(function)(theta) for function in functions)
    assert float(value) == pytest.approx(want, rel=1e-12)
    np.testing.assert_allclose(hessian, derived, rtol=1e-9)
    known = model.predictors
    omega, kappa = known.weigh(w[None])
    value = omega[0] @ known.loss.derivatives(known.eta(theta[None])[0], y, (0,))[0]
    assert value == pytest.approx(want, rel=1e-12) and not known.penalty.any() and kappa[0] == 1


def test_the_loss_of_standardised_columns_and_several_classes_by_its_formula():
    import jax

    code, ridge = np.unique(Y["three"], return_inverse=True)[1], np.array([1.0, 3.0, 0.5, 2.0])
    model = StandardisedGLM(X, Y["three"], "multinomial", lo.penalties.Ridge(ridge))
    theta, w = rng.standard_normal((3, 5)), np.ones(N)
    w[:9] = 0
    eta = X @ theta[:, :4].T + theta[:, 4]
    # the mean is zero at the minimum
    ratio, apart = X[9:].var(axis=0) / X.var(axis=0), theta[:, :4] - theta[:, :4].mean(0)
    own = np.log(np.exp(eta).sum(1)) - eta[np.arange(N), code]
    want = w @ own + 0.5 * (ridge * ratio * apart**2).sum()
    with jax.enable_x64(True):
        loss, gradient = jax.jit(jax.value_and_grad(lambda v: model.loss(v, w)))(theta)
        hessian = jax.jit(lambda v: model.hessian(v, w))(theta)
    assert float(loss) == pytest.approx(want, rel=1e-12)
    hessian, gradient = np.asarray(hessian).reshape(15, 15), np.ravel(gradient)
    known = model.predictors
    (omega,), _ = known.weigh(w[None])
    at = known.eta(theta.reshape(1, -1))
    value, slope, curvature = known.loss.derivatives(at, code, (0, 1, 2))
    roots = known.loss.roots(at)
    assert omega @ value[0] == pytest.approx(want, rel=1e-12)
    np.testing.assert_allclose(roots @ roots.swapaxes(-1, -2), curvature, atol=1e-12)
    np.testing.assert_allclose(known.design.gram(omega[None], curvature)[0], hessian, atol=1e-9)
    np.testing.assert_allclose(
        known.design.pull((omega[:, None] * slope[0])[None])[0], gradient, atol=1e-9
    )


def test_frozen_transformers_are_those_of_all_rows_and_it_is_said():
    host, y, cv = (
        make_pipeline(SelectKBest(k=2), StandardScaler(), LOGISTIC),
        Y["two"],
        StratifiedKFold(5),
    )
    with pytest.warns(UserWarning, match="SelectKBest learned from the response of held-out rows"):
        found = lo.sklearn.cross_validate(
            host, X, y, cv=cv, scoring="neg_log_loss", transformers="frozen", strategy=EXACT
        )
    ready = make_pipeline(SelectKBest(k=2), StandardScaler()).fit_transform(X, y)
    theirs = cross_validate(LOGISTIC, ready, y, cv=cv, scoring="neg_log_loss")["test_score"]
    np.testing.assert_allclose(found["test_score"], theirs, atol=1e-7)
    honest = lo.sklearn.cross_validate(host, X, y, cv=cv, scoring="neg_log_loss")
    assert found["transformers"] == "frozen" and np.abs(honest["test_score"] - theirs).max() > 1e-4


def test_transformers_that_learn_nothing_are_not_fitted_again(monkeypatch):
    host = make_pipeline(Normalizer(), FunctionTransformer(np.tanh), Ridge(0.5))
    count = []
    monkeypatch.setattr(
        Ridge,
        "fit",
        lambda self, *args, fit=Ridge.fit, **more: count.append(1) or fit(self, *args, **more),
    )
    found = lo.sklearn.cross_validate(
        host,
        X,
        Y["real"],
        cv=LeaveOneOut(),
        scoring="neg_mean_squared_error",
        transformers="frozen",
    )
    assert len(count) == 1 and "transformers" not in found
    theirs = cross_validate(host, X, Y["real"], cv=LeaveOneOut(), scoring="neg_mean_squared_error")
    np.testing.assert_allclose(found["test_score"], theirs["test_score"], atol=1e-9)


def test_a_fitted_host_is_taken_as_it_is_and_one_fitted_elsewhere_is_not(monkeypatch):
    count = []
    monkeypatch.setattr(
        Ridge,
        "fit",
        lambda self, *args, fit=Ridge.fit, **more: count.append(1) or fit(self, *args, **more),
    )
    here, elsewhere = Ridge(2.0).fit(X, Y["real"]), Ridge(2.0).fit(X[:50], Y["real"][:50])
    changed = Ridge(50.0).fit(X, Y["real"]).set_params(alpha=2.0)
    kept, want = (
        elsewhere.coef_.copy(),
        cross_validate(Ridge(2.0), X, Y["real"], cv=4)["test_score"],
    )
    for host, fits in ((here, 0), (elsewhere, 1), (changed, 1), (Ridge(2.0), 1)):
        count[:] = []
        got = lo.sklearn.cross_val_score(host, X, Y["real"], cv=4, strategy=lo.Certified())
        assert len(count) == fits
        np.testing.assert_allclose(got, want, atol=1e-10)
    np.testing.assert_array_equal(elsewhere.coef_, kept)


def test_a_host_that_stopped_early_is_brought_to_the_minimum():
    early = LogisticRegression(C=10.0, max_iter=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = lo.sklearn.cross_val_score(
            early, X, Y["two"], cv=5, scoring="neg_log_loss", strategy=EXACT
        )
    want = cross_validate(
        LogisticRegression(C=10.0, **TIGHT), X, Y["two"], cv=5, scoring="neg_log_loss"
    )["test_score"]
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_estimators_indices_and_scorers_of_ones_own():
    def several(host, X, y):
        return {"size": len(y), "first": float(host.coef_[0])}

    cv = KFold(5, shuffle=True, random_state=2)
    options = {"cv": cv, "return_estimator": True, "return_indices": True}
    theirs = cross_validate(Ridge(2.0), X, Y["real"], scoring=several, **options)
    ours = lo.sklearn.cross_validate(
        Ridge(2.0), X, Y["real"], scoring=several, strategy=EXACT, **options
    )
    assert set(ours) - set(theirs) == {
        "approximation_error_size",
        "approximation_error_first",
        "refits",
    }
    for key in ("test_size", "test_first"):
        np.testing.assert_allclose(ours[key], theirs[key], atol=1e-10)
    for part in ("train", "test"):
        for mine, other in zip(ours["indices"][part], theirs["indices"][part], strict=True):
            np.testing.assert_array_equal(mine, other)
    for mine, other in zip(ours["estimator"], theirs["estimator"], strict=True):
        np.testing.assert_allclose(mine.predict(X), other.predict(X), atol=1e-10)
        assert mine.score(X, Y["real"]) == pytest.approx(other.score(X, Y["real"]), abs=1e-12)
    median = make_scorer(median_absolute_error, greater_is_better=False)
    named = {"mine": median, "theirs": "r2"}
    ours = functools.partial(lo.sklearn.cross_validate, strategy=EXACT)
    both = [run(Ridge(2.0), X, Y["real"], scoring=named, cv=cv) for run in (cross_validate, ours)]
    for key in ("test_mine", "test_theirs"):
        np.testing.assert_allclose(both[1][key], both[0][key], atol=1e-10)


def test_weights_go_to_the_fit_and_not_to_the_score():
    for host, name in (
        (LOGISTIC, "sample_weight"),
        (make_pipeline(StandardScaler(), LOGISTIC), "logisticregression__sample_weight"),
    ):
        options = {"cv": 4, "scoring": "neg_log_loss", "params": {name: WEIGHT}}
        theirs = cross_validate(host, X, Y["two"], **options)["test_score"]
        ours = lo.sklearn.cross_validate(host, X, Y["two"], strategy=EXACT, **options)["test_score"]
        np.testing.assert_allclose(ours, theirs, atol=1e-7)
        assert (
            np.abs(
                ours - lo.sklearn.cross_val_score(host, X, Y["two"], cv=4, scoring="neg_log_loss")
            ).max()
            > 1e-4
        )


def test_frames_with_text_and_labels():
    frame = pd.DataFrame(X, columns=list("abcd"), index=[f"row {i}" for i in range(N)])
    frame["kind"] = np.array(["u", "v", "w"])[np.arange(N) % 3]
    y = pd.Series(Y["two"], index=frame.index)
    ready = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    host = make_pipeline(ready, LOGISTIC)
    theirs = cross_validate(host, frame, y, cv=5, scoring="neg_log_loss")["test_score"]
    np.testing.assert_allclose(
        lo.sklearn.cross_val_score(host, frame, y, cv=5, scoring="neg_log_loss"), theirs, atol=1e-7
    )
    plain = frame[list("abcd")]
    np.testing.assert_allclose(
        lo.sklearn.cross_val_score(LOGISTIC, plain, y, cv=5, scoring="roc_auc", strategy=EXACT),
        cross_validate(LOGISTIC, plain, y, cv=5, scoring="roc_auc")["test_score"],
    )
    with pytest.raises(ValueError, match=r"another order.*y\.loc"):
        lo.sklearn.cross_validate(LOGISTIC, plain, y[::-1], cv=5)
    with pytest.raises(ValueError, match=r"groups has the labels of X in another order"):
        lo.sklearn.cross_validate(LOGISTIC, plain, y, groups=y[::-1], cv=5)
    with pytest.raises(ValueError, match=r"sample_weight has the labels of X in another order"):
        lo.sklearn.cross_validate(LOGISTIC, plain, y, params={"sample_weight": y[::-1]}, cv=5)


def test_a_column_that_is_constant_in_a_fold_and_a_category_that_it_lacks():
    kind = np.where(np.arange(N) < 5, "rare", "usual")
    frame = pd.DataFrame({"a": X[:, 0], "kind": kind})
    host = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), ["kind"]), remainder="passthrough"
        ),
        Ridge(1.0),
    )
    want = cross_validate(host, frame, Y["real"], cv=KFold(6))["test_score"]
    np.testing.assert_allclose(
        lo.sklearn.cross_val_score(host, frame, Y["real"], cv=KFold(6)), want, atol=1e-9
    )


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
@pytest.mark.parametrize(
    "cv", [LeaveOneOut(), KFold(4, shuffle=True, random_state=0)], ids=["one by one", "folds"]
)
def test_predictions_by_the_fold_that_leaves_a_row_out(method, cv):
    want = cross_val_predict(LOGISTIC, X, Y["three"], cv=cv, method=method)
    got = lo.sklearn.cross_val_predict(
        LOGISTIC, X, Y["three"], cv=cv, method=method, strategy=EXACT
    )
    if method == "predict":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(
            got - got.mean(1, keepdims=True), want - want.mean(1, keepdims=True), atol=1e-5
        )


WIDE = np.random.default_rng(0).standard_normal((12, 20))


@pytest.mark.parametrize("method", ["predict_proba", "predict_log_proba", "decision_function"])
@pytest.mark.parametrize(
    "host", [LOGISTIC, make_pipeline(StandardScaler(), LOGISTIC)], ids=["alone", "pipeline"]
)
def test_columns_of_probabilities_are_all_classes_where_folds_lack_some(method, host):
    order = np.argsort(Y["three"], kind="stable")
    Z, y, every = X[order], Y["three"][order], np.arange(N)
    # this fold lacks a class, which is not the last; the others hold all
    first = np.flatnonzero(y == "b")
    rest = np.setdiff1d(every, first)
    folds = {
        "some": [(np.setdiff1d(every, test), test) for test in (first, rest[::2], rest[1::2])],
        "each": [(np.flatnonzero(y != one), np.flatnonzero(y == one)) for one in "abc"],
    }
    for splits in folds.values():
        with (
            pytest.warns(RuntimeWarning, match="does not match total number")
            if method != "decision_function"
            else (pytest.raises(ValueError, match="Only 2 class/es in training fold, but 3"))
        ):
            warnings.filterwarnings("always" if method != "decision_function" else "ignore")
            ours = lo.sklearn.cross_val_predict(
                host, Z, y, cv=splits, method=method, strategy=EXACT
            )
        if method != "decision_function":
            with pytest.warns(RuntimeWarning):
                theirs = cross_val_predict(host, Z, y, cv=splits, method=method)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["explained_variance", "r2"])
def test_a_share_of_the_variance_of_one_row_is_none(name):
    with (
        pytest.warns(FitFailedWarning),
        pytest.warns(UndefinedMetricWarning, match="less than two samples"),
    ):
        found = lo.sklearn.cross_validate(
            Ridge(2.0), X, Y["real"], cv=LeaveOneOut(), scoring=name, strategy=EXACT
        )
    assert np.isnan(found["test_score"]).all()
    theirs = cross_validate(Ridge(2.0), X, Y["real"], cv=KFold(5), scoring=name)
    ours = lo.sklearn.cross_validate(
        Ridge(2.0), X, Y["real"], cv=KFold(5), scoring=name, strategy=EXACT
    )
    np.testing.assert_allclose(ours["test_score"], theirs["test_score"], rtol=1e-9)


# folds whose rows the others do not determine, or that have a class which the others lack
ALONE = {
    "more columns than rows": (
        LinearRegression(),
        WIDE,
        WIDE[:, 0],
        KFold(6),
        ["neg_mean_squared_error", "neg_max_error"],
    ),
    "a column of one row": (
        LinearRegression(),
        np.c_[X, np.arange(N) == 7],
        Y["real"],
        KFold(9),
        ["r2", "neg_max_error"],
    ),
    "a class": (
        LOGISTIC,
        X[:60],
        np.arange(60) // 20 * (np.arange(60) % 3 > 0),
        KFold(3),
        ["accuracy", "f1_macro"],
    ),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_folds_that_others_do_not_determine_have_a_fit_of_their_own(name):
    host, X, y, cv, scoring = ALONE[name]
    theirs = cross_validate(host, X, y, cv=cv, scoring=scoring)
    ours = lo.sklearn.cross_validate(host, X, y, cv=cv, scoring=scoring, strategy=EXACT)
    for one in scoring:
        np.testing.assert_allclose(ours[f"test_{one}"], theirs[f"test_{one}"], atol=1e-6)
        assert (ours[f"approximation_error_{one}"] < 1e-6).all()
    np.testing.assert_allclose(
        lo.sklearn.cross_val_predict(host, X, y, cv=cv, strategy=EXACT),
        cross_val_predict(host, X, y, cv=cv),
        atol=1e-6,
    )


def test_folds_without_a_fit_have_no_score_and_it_is_said():
    late, cv = (np.arange(60) > 19).astype(int), GroupKFold(3)
    scaled = make_pipeline(QuantileTransformer(n_quantiles=5), LOGISTIC)
    run = lambda host, **more: lo.sklearn.cross_validate(
        host, X[:60], late, cv=cv, groups=np.arange(60) // 20, **more
    )
    for host, scoring, more in (
        (LOGISTIC, ["accuracy"], {"strategy": EXACT}),
        (scaled, ["accuracy", "f1_macro"], {}),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = run(host, scoring=scoring, **more)
        assert any(
            one.category is FitFailedWarning and "one class" in str(one.message) for one in told
        )
        for one in scoring:
            assert (
                np.isnan(found[f"test_{one}"]).sum()
                == np.isnan(found[f"approximation_error_{one}"]).sum()
                == 1
            )
    for host, more in ((LOGISTIC, {"strategy": EXACT}), (scaled, {})):
        with pytest.raises(ValueError, match="one class"):
            run(host, error_score="raise", **more)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert (run(host, error_score=0, **more)["test_score"] == 0).sum() == 1
    with (
        pytest.warns(UndefinedMetricWarning),
        pytest.warns(FitFailedWarning, match="12 of 12 folds.*not defined"),
    ):
        assert np.isnan(
            lo.sklearn.cross_val_score(Ridge(), WIDE, WIDE[:, 0], cv=LeaveOneOut())
        ).all()
    frozen = make_pipeline(StandardScaler(), LinearRegression())
    # of least norm
    found = lo.sklearn.cross_val_predict(frozen, WIDE, WIDE[:, 0], cv=6, transformers="frozen")
    theirs = cross_val_predict(
        LinearRegression(), StandardScaler().fit_transform(WIDE), WIDE[:, 0], cv=6
    )
    np.testing.assert_allclose(found, theirs, atol=1e-10)


def test_r2_of_a_response_that_is_constant_in_a_fold():
    y = np.where(np.arange(N) < 30, 1.0, Y["real"])
    want = cross_validate(Ridge(), X, y, cv=KFold(6))["test_score"]
    np.testing.assert_allclose(
        lo.sklearn.cross_val_score(Ridge(), X, y, cv=KFold(6)), want, atol=1e-10
    )


@pytest.mark.parametrize(
    "host", [LOGISTIC, make_pipeline(StandardScaler(), LOGISTIC)], ids=["logistic", "scaled"]
)
def test_scorers_that_know_no_positive_class_are_told_of_as_scikit_learn_does(host):
    given, why = (
        (host, X, np.where(Y["bits"] == 1, "yes", "no")),
        r"(?s)Scoring failed.*pos_label=1 is not a valid label",
    )
    more = {"cv": 3, "scoring": ["average_precision", "roc_auc"]}
    with pytest.warns(UserWarning, match=why):
        want = cross_validate(*given, **more)
    with (
        pytest.warns(UserWarning, match=why),
        pytest.warns(FitFailedWarning, match="a score that is not defined"),
    ):
        found = lo.sklearn.cross_validate(*given, strategy=EXACT, **more)
    for name in ("average_precision", "roc_auc"):
        np.testing.assert_allclose(found[f"test_{name}"], want[f"test_{name}"], atol=1e-7)
    assert np.isnan(found["test_average_precision"]).all()


def test_scorers_and_fits_that_fail(tmp_path):
    def broken(host, X, y):
        if len(y) < N:
            raise ZeroDivisionError("no")
        return 1.0

    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        found = lo.sklearn.cross_validate(
            Ridge(), X, Y["real"], cv=3, scoring=broken, error_score=-7.0, strategy=EXACT
        )
    assert (found["test_score"] == -7.0).all()
    with pytest.raises(ZeroDivisionError):
        lo.sklearn.cross_validate(
            Ridge(), X, Y["real"], cv=3, scoring=broken, error_score="raise", strategy=EXACT
        )
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        found = lo.sklearn.cross_validate(
            Ridge(),
            X,
            Y["real"],
            cv=3,
            scoring=lambda host, X, y: 1 / 0,
            error_score=-7.0,
            strategy=EXACT,
        )
    assert (found["test_score"] == -7.0).all()
    cut = make_pipeline(
        FunctionTransformer(_fails_on_few), QuantileTransformer(n_quantiles=5), Ridge()
    )
    splits = [(np.arange(20), np.arange(20, N)), (np.arange(20, N), np.arange(15))]
    # kept in a checkpoint, or not
    for options in ({}, {"checkpoint": tmp_path / "run"}):
        with pytest.warns(FitFailedWarning, match="too few"):
            found = lo.sklearn.cross_validate(
                cut, X, Y["real"], cv=splits, scoring="neg_mean_squared_error", **options
            )
        np.testing.assert_array_equal(np.isfinite(found["test_score"]), [False, True])


def _fails_on_few(values):
    if len(values) == 20:
        raise ValueError("too few")
    return values


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.sklearn.cross_validate(
                make_pipeline(StandardScaler(), RandomForestClassifier()),
                X,
                Y["two"],
                transformers="frozen",
            ),
            TypeError,
            "here is none: no other refits of RandomForest",
        ),
        (
            lambda: lo.sklearn.cross_validate(Ridge(), X, Y["real"], transformers="fixed"),
            ValueError,
            "'refit' or 'frozen'",
        ),
        (
            lambda: lo.sklearn.cross_validate(
                Ridge(), X, Y["real"], params={"weight": WEIGHT}, error_score="raise"
            ),
            TypeError,
            "unexpected keyword argument 'weight'",
        ),
        (
            lambda: lo.sklearn.cross_validate(
                LOGISTIC,
                X,
                Y["two"],
                params={"sample_weight": 1.0 * (Y["two"] == "yes")},
                strategy=EXACT,
            ),
            ValueError,
            "class 'no' have sample_weight 0",
        ),
        (
            lambda: lo.sklearn.cross_val_score(Ridge(), X, Y["real"], scoring=["r2"]),
            ValueError,
            "must be one scorer",
        ),
        (
            lambda: lo.sklearn.cross_val_predict(Ridge(), X, Y["real"], cv=ShuffleSplit(3)),
            ValueError,
            "partitions",
        ),
        (
            lambda: lo.sklearn.cross_val_predict(
                Ridge(), X, Y["real"], cv=ShuffleSplit(3), strategy=EXACT
            ),
            ValueError,
            "every row once",
        ),
        (
            lambda: lo.sklearn.cross_validate(Ridge(), X, Y["real"], scoring="no_such"),
            ValueError,
            "no_such",
        ),
        (lambda: lo.sklearn.cross_validate(Ridge(), X[:-1], Y["real"]), ValueError, "inconsistent"),
        (
            lambda: lo.sklearn.OneFitSearchCV(Ridge(), {"alpha": [1.0]}, scoring=["r2"]).fit(
                X, Y["real"]
            ),
            ValueError,
            "multi-metric scoring",
        ),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


SEARCHES = {
    "path": (Ridge(), {"alpha": [0.1, 1.0, 10.0, 100.0]}, "real", "neg_root_mean_squared_error"),
    "path, one by one": (Ridge(), {"alpha": [0.1, 1.0, 10.0]}, "real", "neg_mean_squared_error"),
    "path, classes": (LOGISTIC, {"C": [0.01, 0.1, 1.0]}, "three", "neg_log_loss"),
    "ranks": (LOGISTIC, {"C": [0.01, 0.1, 1.0]}, "two", "roc_auc"),
    "averaged": (
        PoissonRegressor(solver="newton-cholesky", tol=1e-12),
        {"alpha": [0.01, 0.1, 1.0]},
        "count",
        None,
    ),
    "two parameters": (
        Ridge(),
        {"alpha": [1.0, 10.0], "fit_intercept": [True, False]},
        "real",
        None,
    ),
    "scaled": (
        make_pipeline(StandardScaler(), Ridge()),
        {"ridge__alpha": [1.0, 30.0]},
        "real",
        "r2",
    ),
    "scaled, ranks": (
        make_pipeline(StandardScaler(), LOGISTIC),
        {"logisticregression__C": [0.01, 1.0]},
        "bits",
        "roc_auc",
    ),
    "scaled, classes": (
        make_pipeline(StandardScaler(), LOGISTIC),
        {"logisticregression__C": [0.01, 1.0]},
        "three",
        None,
    ),
    "selected": (
        make_pipeline(SelectKBest(f_regression, k=2), Ridge()),
        {"ridge__alpha": [1.0, 30.0]},
        "real",
        "neg_max_error",
    ),
    "of a target": (
        TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp),
        [{"regressor__alpha": [0.1, 10.0]}],
        "positive",
        "neg_mean_squared_error",
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_is_grid_search(name):
    host, grid, target, scoring = SEARCHES[name]
    cv = LeaveOneOut() if "one by one" in name else KFold(5, shuffle=True, random_state=1)
    theirs = GridSearchCV(host, grid, cv=cv, scoring=scoring).fit(X, Y[target])
    ours = lo.sklearn.OneFitSearchCV(host, grid, cv=cv, scoring=scoring, strategy=EXACT).fit(
        X, Y[target]
    )
    assert ours.best_params_ == theirs.best_params_ and ours.best_index_ == theirs.best_index_
    assert set(theirs.cv_results_) <= set(ours.cv_results_)
    for key, values in theirs.cv_results_.items():
        if key.endswith("_test_score"):
            np.testing.assert_allclose(ours.cv_results_[key], values, atol=1e-6, err_msg=key)
    assert (ours.cv_results_["mean_approximation_error"] < 1e-6).all()
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    assert ours.score(X, Y[target]) == pytest.approx(theirs.score(X, Y[target]))


def share_within(y, prediction, sample_weight=None):
    """Share of predictions that are near, which only a call of the scorer gives."""
    return np.average(np.abs(y - prediction) < 0.5, weights=sample_weight)


SCORED = [
    (Ridge(), "alpha", "real", None),
    (Ridge(), "alpha", "real", "neg_root_mean_squared_error"),
    (Ridge(), "alpha", "real", "explained_variance"),
    (Ridge(), "alpha", "real", make_scorer(share_within)),
    (LOGISTIC, "C", "two", "neg_log_loss"),
    (LOGISTIC, "C", "two", "roc_auc"),
    (make_pipeline(StandardScaler(), Ridge()), "ridge__alpha", "real", "r2"),
]


@pytest.mark.parametrize("host, name, target, scoring", SCORED)
def test_a_search_weighs_its_scores_as_grid_search_does(host, name, target, scoring):
    """What is called sample_weight goes to both; that of a step of a pipeline to its fit alone."""
    given = {"sample_weight" if "__" not in name else "ridge__sample_weight": WEIGHT}
    one_fit = functools.partial(lo.sklearn.OneFitSearchCV, strategy=EXACT)
    theirs, ours = (
        kind(host, {name: [0.1, 10.0]}, scoring=scoring, cv=KFold(4)).fit(X, Y[target], **given)
        for kind in (GridSearchCV, one_fit)
    )
    scores = ours.cv_results_["mean_test_score"]
    assert ours.refits_ == "from one fit"
    np.testing.assert_allclose(scores, theirs.cv_results_["mean_test_score"], atol=1e-7)
    plain = one_fit(host, {name: [0.1, 10.0]}, scoring=scoring, cv=KFold(4)).fit(X, Y[target])
    assert np.abs(plain.cv_results_["mean_test_score"] - scores).max() > 1e-3


def test_a_search_routes_weights_as_they_are_asked_for():
    with config_context(enable_metadata_routing=True):
        for scored in (True, False):
            host = Ridge().set_fit_request(sample_weight=True)
            score = make_scorer(mean_squared_error, greater_is_better=False).set_score_request(
                sample_weight=scored
            )
            theirs, ours = (
                kind(host, {"alpha": [0.1, 10.0]}, scoring=score, cv=KFold(4)).fit(
                    X, Y["real"], sample_weight=WEIGHT
                )
                for kind in (GridSearchCV, lo.sklearn.OneFitSearchCV)
            )
            np.testing.assert_allclose(
                ours.cv_results_["mean_test_score"],
                theirs.cv_results_["mean_test_score"],
                rtol=1e-6,
                err_msg=str(scored),
            )


def test_a_search_is_nested_by_scikit_learn():
    grid, cv = {"C": [0.01, 0.1, 1.0]}, KFold(3, shuffle=True, random_state=0)
    search = lambda kind: cross_validate(
        kind(LOGISTIC, grid, cv=4, scoring="neg_log_loss"), X, Y["two"], cv=cv
    )["test_score"]
    np.testing.assert_allclose(search(lo.sklearn.OneFitSearchCV), search(GridSearchCV), atol=1e-7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "host, grid",
    [
        (Ridge(), {"alpha": [0.1, 1.0]}),
        pytest.param(LogisticRegression(), {"C": [0.1, 1.0]}, marks=pytest.mark.slow),
    ],
)
def test_a_search_is_an_estimator(host, grid):
    check_estimator(lo.sklearn.OneFitSearchCV(host, grid))


def test_no_compiler_is_needed():
    code = """
import sys, numpy as np, leaveout as lo
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
X = np.random.default_rng(0).standard_normal((40, 2))
host = make_pipeline(StandardScaler(), LogisticRegression())
found = lo.sklearn.cross_validate(host, X, X[:, 0] > 0.3 * X[:, 1], scoring=["accuracy", "roc_auc"])
lo.sklearn.OneFitSearchCV(host, {"logisticregression__C": [0.1, 1.0]}).fit(X, X[:, 0] > 0)
assert np.isfinite(found["test_roc_auc"]).all() and not {"jax", "equinox"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_log_loss_keeps_off_infinity_as_scikit_learns_does():
    x = np.r_[rng.standard_normal(40), 60.0][:, None]
    y = np.r_[(x[:-1, 0] > rng.logistic(size=40)), False]
    splits = [(np.arange(5, 40), np.r_[0:5, 40]), (np.arange(5, 40), np.arange(5))]
    host = LogisticRegression(C=100.0, **TIGHT)
    want = cross_validate(host, x, y, cv=splits, scoring="neg_log_loss")["test_score"]
    got = lo.sklearn.cross_val_score(host, x, y, cv=splits, scoring="neg_log_loss", strategy=EXACT)
    np.testing.assert_allclose(got, want, atol=1e-5)
    test = splits[0][1]
    p = host.fit(x[splits[0][0]], y[splits[0][0]]).predict_proba(x[test])
    assert p[-1, 0] < np.finfo(float).eps and got[0] == pytest.approx(
        -log_loss(y[test], p), abs=1e-5
    )


def test_what_one_fit_does_not_tell_the_host_fits_itself(monkeypatch):
    def told(*args, **more):
        raise lo.validation.IndefiniteHessianError("the Hessian is not positive definite")

    monkeypatch.setattr("leaveout.extensions.sklearn._validation.fit_host", told)
    host, y = LinearRegression(), Y["real"]
    found = lo.sklearn.cross_validate(host, X, y, cv=3, scoring="r2", strategy=EXACT)
    assert (
        "by the host: one fit does not tell" in found["refits"]
        and "not positive definite" in found["refits"]
    )
    np.testing.assert_allclose(
        found["test_score"], cross_validate(host, X, y, cv=3)["test_score"], rtol=1e-12
    )
    assert (found["approximation_error"] == 0).all()
    predicted = lo.sklearn.cross_val_predict(host, X, y, cv=3, strategy=EXACT)
    np.testing.assert_allclose(predicted, cross_val_predict(host, X, y, cv=3), rtol=1e-12)


BY_HOST = {  # host, response, arguments, a word of the reason
    "forest": (
        RandomForestClassifier(8, random_state=0),
        "three",
        {"scoring": ["accuracy", "f1_macro"]},
        "RandomForest",
    ),
    "boosting": (
        make_pipeline(StandardScaler(), HistGradientBoostingRegressor(max_iter=3)),
        "real",
        {
            "cv": GroupKFold(3),
            "groups": GROUPS,
            "return_estimator": True,
            "return_train_score": True,
            "n_jobs": 1,
        },
        "HistGradient",
    ),
    "kernel": (
        SVC(),
        "two",
        {"scoring": {"a": "roc_auc"}, "return_indices": True, "params": {"sample_weight": WEIGHT}},
        "SVC",
    ),
    "chooses": (RidgeCV(), "real", {"cv": KFold(3)}, "chooses anew"),
    "a search": (GridSearchCV(Ridge(), {"alpha": [0.1, 9.0]}), "real", {"cv": 3}, "chooses anew"),
    "targets under one penalty": (
        MultiTaskLasso(0.1),
        ["real", "positive"],
        {"cv": 12},
        "MultiTaskLasso",
    ),
    "targets, called": (
        Ridge(),
        ["real", "positive"],
        {"cv": 12, "scoring": make_scorer(mean_squared_error)},
        "is called",
    ),
    "no target": (KMeans(2, random_state=0, n_init=1), None, {"cv": 3}, "KMeans"),
    "kinks": (QuantileRegressor(), "real", {"cv": 3}, "kinks of QuantileRegressor"),
    "each against the rest, weighted": (
        RidgeClassifier(class_weight="balanced"),
        "three",
        {"cv": 12},
        "class weights",
    ),
    "classes together": (
        LinearSVC(multi_class="crammer_singer"),
        "three",
        {"cv": 12},
        "multi_class='ovr'",
    ),
    "learns": (make_pipeline(SelectKBest(k=2), LOGISTIC), "two", {"cv": 12}, "learn from the rows"),
    "stochastic": (
        SGDRegressor(random_state=0),
        "real",
        {"cv": LeaveOneOut(), "scoring": "neg_mean_squared_error"},
        "stops before",
    ),
    "early": (LogisticRegression(C=10.0, max_iter=3), "two", {"cv": 30}, "stops before"),
    "called": (
        Ridge(),
        "real",
        {"cv": 12, "scoring": "neg_max_error"},
        "'neg_max_error' is called",
    ),
    "few folds": (LOGISTIC, "two", {"cv": 5}, "its 5 fits of 90 x 4 cost less"),
    "a row twice": (Ridge(), "real", {"cv": [(np.arange(9), np.r_[10, 10, 11])] * 10}, "twice"),
    "on both sides": (
        Ridge(),
        "real",
        {"cv": [(np.arange(9), np.arange(5, 20))] * 10},
        "both train",
    ),
    "fails": (
        LOGISTIC,
        "two",
        {"cv": [(np.arange(N), np.arange(9)), (np.flatnonzero(Y["two"] == "no"), np.arange(9))]},
        "cost less",
    ),
}


@pytest.mark.parametrize("name", BY_HOST)
@pytest.mark.filterwarnings("ignore")
def test_any_estimator_is_refitted_by_the_host_and_it_is_said(name, tmp_path, caplog):
    host, target, given, why = BY_HOST[name]
    if name == "targets under one penalty" and "d2_log_loss_score" not in get_scorer_names():
        pytest.skip("scikit-learn 1.7 cannot score it")
    y = (
        np.stack([Y[one] for one in target], 1)
        if isinstance(target, list)
        else Y[target]
        if target
        else None
    )
    want = cross_validate(host, X, y, **given)
    with caplog.at_level(logging.INFO, "leaveout"):
        found = lo.sklearn.cross_validate(host, X, y, **given)
    assert (
        found["refits"].startswith("by the host: ")
        and why in found["refits"]
        and found["refits"] in caplog.text
    )
    kept = lo.sklearn.cross_validate(host, X, y, checkpoint=tmp_path / "run.ckpt", **given)
    again = lo.sklearn.cross_validate(host, X, y, checkpoint=tmp_path / "run.ckpt", **given)
    for one in (found, kept, again):
        assert set(want) < set(one) and one["refits"] == found["refits"]
        for key in want:
            if key.startswith(("test", "train")):
                np.testing.assert_array_equal(one[key], want[key])
        assert (
            np.nansum([values for key, values in one.items() if key.startswith("approximation")])
            == 0
        )
    if name in ("forest", "boosting", "learns"):
        more = {key: value for key, value in given.items() if key in ("cv", "groups")}
        np.testing.assert_array_equal(
            lo.sklearn.cross_val_predict(host, X, y, **more), cross_val_predict(host, X, y, **more)
        )


def test_one_fit_is_taken_where_it_costs_less():
    where = lambda host, target, **given: lo.sklearn.cross_validate(host, X, Y[target], **given)[
        "refits"
    ]
    assert where(LOGISTIC, "two", cv=10) == where(Ridge(), "real", cv=10) == "from one fit"
    assert (
        where(LOGISTIC, "three", cv=10)
        != where(LOGISTIC, "three", cv=LeaveOneOut())
        == "from one fit"
    )
    grid = {"alpha": np.geomspace(0.1, 10, 6)}
    family, few = (
        lo.sklearn.OneFitSearchCV(Ridge(), {"alpha": grid["alpha"][:k]}, cv=5).fit(X, Y["real"])
        for k in (6, 2)
    )
    assert family.refits_ == "from one fit" != few.refits_


SEARCHED = {
    "forest": (
        RandomForestClassifier(random_state=0),
        {"n_estimators": [2, 5]},
        {},
        "RandomForest",
    ),
    "several scorers": (
        LOGISTIC,
        {"C": [0.1, 1.0]},
        {"scoring": ["accuracy", "roc_auc"], "refit": "roc_auc"},
        "several scorers",
    ),
    "own choice": (LOGISTIC, {"C": [0.1, 1.0]}, {"refit": lambda found: 1}, "choice"),
    "train": (
        LOGISTIC,
        {"C": [0.1, 1.0]},
        {"return_train_score": True, "n_jobs": 1},
        "training scores",
    ),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_any_search_is_grid_search_and_says_so(name):
    host, grid, given, why = SEARCHED[name]
    ours, theirs = (
        kind(host, grid, cv=3, **given).fit(X, Y["two"])
        for kind in (lo.sklearn.OneFitSearchCV, GridSearchCV)
    )
    assert why in ours.refits_ and ours.best_index_ == theirs.best_index_
    for key in theirs.cv_results_:
        if "score" in key and "time" not in key:
            np.testing.assert_array_equal(ours.cv_results_[key], theirs.cv_results_[key])
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_a_search_whose_first_penalty_decides_too_little():
    rng = np.random.default_rng(0)
    wide, y = rng.standard_normal((24, 40)), rng.standard_normal(24)
    grid, host = {"alpha": [1.4e-11, 1e-10, 1e-4, 1.0, 10.0]}, Ridge(solver="svd")
    score = "neg_mean_squared_error"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = (
            lo.sklearn.OneFitSearchCV(host, grid, scoring=score, cv=4)
            .fit(wide, y)
            .cv_results_["mean_test_score"]
        )
    assert np.allclose(
        found,
        GridSearchCV(host, grid, scoring=score, cv=4).fit(wide, y).cv_results_["mean_test_score"],
        rtol=1e-6,
    )


def test_scores_of_several_powers_are_of_other_things():
    y = np.exp(Y["real"])
    host = TweedieRegressor(alpha=0.1, tol=1e-8, max_iter=1000)
    with pytest.warns(UserWarning, match="candidates differ by their power"):
        lo.sklearn.OneFitSearchCV(host, {"power": [1.2, 1.9]}, cv=3).fit(X, y)
    lo.sklearn.OneFitSearchCV(
        host, {"power": [1.2, 1.9]}, cv=3, scoring="neg_mean_absolute_error"
    ).fit(X, y)
    lo.sklearn.OneFitSearchCV(host.set_params(power=1.5), {"alpha": [0.1, 1.0]}, cv=3).fit(X, y)


@pytest.mark.parametrize(
    "more",
    [dict(scoring=["r2", "neg_mean_squared_error"], refit="r2"), dict(return_train_score=True)],
)
def test_a_strategy_does_not_go_with_what_the_host_refits(more):
    search = lo.sklearn.OneFitSearchCV(
        Ridge(), {"alpha": [0.1, 1.0]}, cv=3, strategy=lo.Exact(), **more
    )
    with pytest.raises(
        ValueError,
        match=r"strategy=Exact\(\) is of refits from one fit, but the host refits every fold",
    ):
        search.fit(np.arange(24.0).reshape(12, 2) ** 0.5, np.arange(12.0))
