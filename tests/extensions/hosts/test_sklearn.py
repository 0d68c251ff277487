"""Hosts: zero gradient at their parameters, and a fold's exact refit is the host's own refit on
that fold.
"""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel, SelectKBest, VarianceThreshold, f_regression
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LassoLars,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler, TargetEncoder
from sklearn.svm import LinearSVC

import leaveout as lo
from leaveout.extensions.hosts.sklearn import describe, with_parameters

pytestmark = pytest.mark.filterwarnings("ignore:l1_ratios? parameter is only used")  # before 1.8

rng = np.random.default_rng(0)
N = 120
X = rng.standard_normal((N, 4)) + 0.5
ETA = X @ np.array([0.5, -0.4, 0.2, 0.0])
Y = {
    "real": ETA + rng.standard_normal(N),
    "heavy": ETA + 0.5 * np.random.default_rng(6).standard_t(2, N),
    "count": rng.poisson(np.exp(ETA)).astype(float),
    "positive": rng.gamma(2.0, np.exp(ETA) / 2) + 1e-3,
    "binary": np.where(rng.random(N) < 1 / (1 + np.exp(-ETA)), "yes", "no"),
    "three": np.array(["a", "b", "c"])[
        np.argmax(np.c_[ETA, X[:, 0], X[:, 1]] + rng.gumbel(size=(N, 3)), axis=1)
    ],
}
WEIGHT = rng.gamma(2.0, 0.5, N)
TIGHT = {"tol": 1e-10, "max_iter": 10_000}
ATTRIBUTES, MIXED = {"use_legacy_attributes": False}, {}
if "use_legacy_attributes" not in LogisticRegressionCV().get_params():  # older than 1.8
    ATTRIBUTES, MIXED = {}, {"penalty": "elasticnet"}
HOSTS = {
    "LinearRegression": (LinearRegression(), "real"),
    "Ridge": (Ridge(2.0), "real"),
    "Ridge, no intercept": (Ridge(2.0, fit_intercept=False), "real"),
    "LogisticRegression": (LogisticRegression(C=0.5, **TIGHT), "binary"),
    "LogisticRegression, no penalty": (LogisticRegression(C=np.inf, **TIGHT), "binary"),
    "LogisticRegression, class weights": (
        LogisticRegression(class_weight={"yes": 2.0, "no": 0.7}, **TIGHT),
        "binary",
    ),
    "LogisticRegression, balanced": (
        LogisticRegression(class_weight="balanced", **TIGHT),
        "binary",
    ),
    "LogisticRegression, multinomial": (LogisticRegression(C=0.5, **TIGHT), "three"),
    "LogisticRegression, multinomial, balanced": (
        LogisticRegression(class_weight="balanced", **TIGHT),
        "three",
    ),
    "PoissonRegressor": (
        PoissonRegressor(alpha=0.3, solver="newton-cholesky", tol=1e-12, max_iter=1000),
        "count",
    ),
    "TweedieRegressor": (
        TweedieRegressor(power=1.5, alpha=0.3, solver="newton-cholesky", tol=1e-12, max_iter=999),
        "positive",
    ),
    "HuberRegressor": (HuberRegressor(alpha=0.1, tol=1e-9, max_iter=5000), "heavy"),
    "RidgeClassifier": (RidgeClassifier(2.0, class_weight={"yes": 2.0, "no": 0.7}), "binary"),
    "RidgeClassifier, no intercept": (RidgeClassifier(2.0, fit_intercept=False), "binary"),
    "TweedieRegressor, identity": (
        TweedieRegressor(
            power=0, alpha=0.3, link="identity", tol=1e-12, max_iter=9999, solver="newton-cholesky"
        ),
        "real",
    ),
    "TweedieRegressor, no intercept": (
        TweedieRegressor(
            power=2,
            alpha=0.1,
            fit_intercept=False,
            solver="newton-cholesky",
            tol=1e-12,
            max_iter=999,
        ),
        "positive",
    ),
    "HuberRegressor, no intercept": (
        HuberRegressor(alpha=0.1, fit_intercept=False, tol=1e-9, max_iter=5000),
        "heavy",
    ),
    "GammaRegressor": (
        GammaRegressor(alpha=0.3, solver="newton-cholesky", tol=1e-12, max_iter=1000),
        "positive",
    ),
}


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.slow_for("HuberRegressor, no intercept-True")
def test_exact_is_the_hosts_own_refit(name, weighted):
    host, target = HOSTS[name]
    y, weight = Y[target], WEIGHT if weighted else None
    fit = lo.from_sklearn(clone(host).fit(X, y, weight), X, y, sample_weight=weight)
    slack = 20.0 if name.startswith("HuberRegressor") else 1.0  # its L-BFGS stops early
    assert fit.decrement < 1e-5 * slack
    plan = lo.kfold(N, 4, rng=1)
    got = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
    predicted = lo.cross_predict(fit, plan, strategy=lo.Exact(1e-10))
    for k, w in enumerate(plan.matrix()):
        keep = w > 0
        again = clone(host).fit(X[keep], y[keep], None if weight is None else weight[keep])
        coef = again.coef_[0] if np.ndim(again.coef_) > 1 and len(again.coef_) == 1 else again.coef_
        np.testing.assert_allclose(got["coef"][k], coef, atol=2e-5 * slack)
        if name.startswith("RidgeClassifier"):
            np.testing.assert_allclose(
                predicted[~keep], again.decision_function(X[~keep]), atol=1e-6
            )
        elif target in ("binary", "three"):
            want = again.predict_proba(X[~keep])
            np.testing.assert_allclose(
                predicted[~keep], want[:, 1] if target == "binary" else want, atol=1e-5
            )
        else:
            np.testing.assert_allclose(
                predicted[~keep], again.predict(X[~keep]), rtol=1e-4, atol=1e-5 * slack
            )


@pytest.mark.parametrize(
    "host",
    [
        LogisticRegression(
            solver="liblinear", C=0.3, intercept_scaling=5.0, class_weight={"yes": 2.0}, **TIGHT
        ),
        LogisticRegression(solver="liblinear", C=0.3, l1_ratio=1, intercept_scaling=0.5, **TIGHT),
        LogisticRegression(solver="liblinear", fit_intercept=False, **TIGHT),
        LinearSVC(C=0.1, intercept_scaling=3.0, **TIGHT),
    ],
    ids=["ridge", "lasso", "no intercept", "hinge"],
)
def test_penalised_intercepts_are_the_hosts(host):
    y = Y["binary"]
    fit, plan = lo.from_sklearn(clone(host).fit(X, y), X, y), lo.kfold(N, 20, rng=2)
    got = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
    apart = []
    for k, w in enumerate(plan.matrix()):
        again = clone(host).fit(X[w > 0], y[w > 0])
        ours = with_parameters(again, {name: values[k] for name, values in got.items()})
        apart.append(np.abs(ours.decision_function(X) - again.decision_function(X)).max())
    print(f"largest difference of decision values over 20 folds: {max(apart):.1e}")
    assert max(apart) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_certified_leave_one_out_within_its_error(name):
    host, target = HOSTS[name]
    fit = lo.from_sklearn(clone(host).fit(X, Y[target]), X, Y[target])
    plan = lo.leave_one_out(N)
    certified, exact = (
        lo.cross_validate(fit, plan),
        lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10)),
    )
    assert np.mean(np.abs(certified.losses - exact.losses) > certified.error + 1e-9) < 0.01
    assert abs(certified.mean - exact.mean) <= 0.01 * certified.scale


CHOSEN = {
    "RidgeCV": (RidgeCV([0.1, 1.0, 10.0]), "real", lambda cv: Ridge(cv.alpha_)),
    "RidgeClassifierCV": (
        RidgeClassifierCV([0.1, 1.0, 10.0], class_weight={"yes": 2.0, "no": 0.7}),
        "binary",
        lambda cv: RidgeClassifier(cv.alpha_, class_weight=cv.class_weight),
    ),
    "LogisticRegressionCV": (
        LogisticRegressionCV(
            Cs=[0.1, 1.0],
            l1_ratios=(0,),
            **ATTRIBUTES,
            scoring="neg_log_loss",
            **TIGHT,
        ),
        "binary",
        lambda cv: LogisticRegression(C=np.ravel(cv.C_)[0], **TIGHT),
    ),
    "LogisticRegressionCV, class weights": (
        LogisticRegressionCV(
            Cs=[0.1, 1.0],
            l1_ratios=(0,),
            **ATTRIBUTES,
            scoring="neg_log_loss",
            class_weight={"a": 2.0, "b": 0.5, "c": 1.0},
            **TIGHT,
        ),
        "three",
        lambda cv: LogisticRegression(C=np.ravel(cv.C_)[0], class_weight=cv.class_weight, **TIGHT),
    ),
}


@pytest.mark.parametrize("weighted", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHOSEN)
def test_penalties_that_were_chosen_on_all_rows(name, weighted):
    host, target, fixed = CHOSEN[name]
    y, weight = Y[target], WEIGHT if weighted else None
    chosen = clone(host).fit(X, y, sample_weight=weight)
    fit = lo.from_sklearn(chosen, X, y, weight)
    assert fit.decrement < 1e-5 and "chosen on all rows" in fit.objective.note
    plan = lo.kfold(N, 3, rng=0)
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):
        again = fixed(chosen).fit(
            X[w > 0], y[w > 0], sample_weight=None if weight is None else weight[w > 0]
        )
        np.testing.assert_allclose(coef[k], np.squeeze(again.coef_), atol=2e-5)


def test_balanced_class_weights_of_a_ridge_classifier_are_recomputed_in_every_fold():
    host = RidgeClassifier(2.0, class_weight="balanced")
    fit = lo.from_sklearn(clone(host).fit(X, Y["binary"]), X, Y["binary"])
    assert fit.decrement < 1e-6
    plan = lo.kfold(N, 3, rng=0)
    coef = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for k, w in enumerate(plan.matrix()):
        np.testing.assert_allclose(
            coef[k], np.ravel(clone(host).fit(X[w > 0], Y["binary"][w > 0]).coef_), atol=1e-8
        )


def test_the_scale_of_huber_is_refitted():
    host = HuberRegressor(tol=1e-9, max_iter=5000)
    fit = lo.from_sklearn(clone(host).fit(X, Y["heavy"]), X, Y["heavy"])
    plan = lo.kfold(N, 3, rng=0)
    scale = lo.fold_parameters(fit, plan, strategy=lo.Exact())["scale"]
    for k, w in enumerate(plan.matrix()):
        np.testing.assert_allclose(
            scale[k], clone(host).fit(X[w > 0], Y["heavy"][w > 0]).scale_, rtol=1e-4
        )


def test_ridge_is_exact_to_rounding():
    host = Ridge(0.8).fit(X, Y["real"])
    fit = lo.from_sklearn(host, X, Y["real"])
    got = lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.NewtonStep())
    for j in range(0, N, 10):
        keep = np.arange(N) != j
        design = np.c_[X[keep], np.ones(N - 1)]
        beta = np.linalg.solve(
            design.T @ design + 0.8 * np.diag([1, 1, 1, 1, 0]), design.T @ Y["real"][keep]
        )
        np.testing.assert_allclose(got[j], np.r_[X[j], 1] @ beta, rtol=1e-12)
    certified = lo.cross_validate(fit, lo.leave_one_out())
    assert certified.approximation_error < 1e-9 and not len(certified.flagged())


def test_pipeline_and_frame():
    frame = pd.DataFrame(X, columns=list("abcd"))
    host = make_pipeline(StandardScaler(), LogisticRegression(**TIGHT)).fit(frame, Y["binary"])
    fit = lo.from_sklearn(host, frame, Y["binary"])
    assert "transformers stay as fitted" in str(lo.cross_validate(fit, lo.kfold(k=5)))


class MeanOfBins(TransformerMixin, BaseEstimator):
    """The mean of the response in three bins of the first column, which no tag tells."""

    def fit(self, X, y=None):
        self.edges_ = np.quantile(X[:, 0], [0.3, 0.6])
        self.mean_ = np.array([y[np.digitize(X[:, 0], self.edges_) == k].mean() for k in range(3)])
        return self

    def transform(self, X):
        return np.c_[self.mean_[np.digitize(X[:, 0], self.edges_)], X]


class Centre(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.mean_ = X.mean(0)
        return self

    def transform(self, X):
        return X - self.mean_


CHOICE = SelectKBest(f_regression, k=2)


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ((CHOICE,), "SelectKBest"),
        ((SelectFromModel(Ridge()),), "SelectFromModel"),
        (
            (FeatureUnion([("a", StandardScaler()), ("b", make_pipeline(Centre(), CHOICE))]),),
            "SelectKBest",
        ),
        ((ColumnTransformer([("a", CHOICE, [0, 1, 2])], remainder="passthrough"),), "SelectKBest"),
        ((MeanOfBins(),), "MeanOfBins"),
        ((StandardScaler(), Centre(), SelectKBest(f_regression, k="all"), VarianceThreshold()), ""),
        ((SelectKBest(lambda X, y: X.var(0), k=2),), ""),
    ],
)
def test_transformers_fitted_with_the_response_are_an_error(steps, name):
    host = make_pipeline(*steps, Ridge()).fit(X, Y["real"])
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        fit = lo.from_sklearn(host, X, Y["real"])
    checks = {check.code: check for check in lo.cross_validate(fit, 4).checks()}
    assert (
        any(f"{name} learned" in str(warning.message) for warning in raised)
        == bool(name)
        == ("LO107" in checks)
    )
    if name:
        assert checks["LO107"].severity == "error" and checks["LO107"].reason.startswith(
            f"{name} learned"
        )
        assert f"{name} learned from the response" in fit.objective.note


def test_encoders_across_folds_are_refused_for_their_reason():
    frame = pd.DataFrame({"k": np.array(list("abcd"))[rng.integers(0, 4, N)], "x": X[:, 0]})
    encode = ColumnTransformer([("k", TargetEncoder(), ["k"])], remainder="passthrough")
    host = GridSearchCV(make_pipeline(encode, Ridge()), {"ridge__alpha": [1.0]}, cv=3).fit(
        frame, Y["real"]
    )
    with pytest.raises(
        TypeError, match="TargetEncoder gives the rows that it is fitted to other values"
    ):
        lo.from_sklearn(host, frame, Y["real"])


def test_names_after_a_selection_before_components():
    frame = pd.DataFrame(X, columns=list("abcd"))
    host = make_pipeline(SelectKBest(f_regression, k=3), PCA(2), LinearRegression()).fit(
        frame, Y["real"]
    )
    with pytest.warns(UserWarning, match="SelectKBest learned"):
        fit = lo.from_sklearn(host, frame, Y["real"])
    assert len(fit.objective.names) == 3 and lo.cross_validate(fit, 4).checks()


def _binary_folds(host, refitted, y=Y["binary"], weight=None):
    """Decisions about held-out rows, by our refits and by the host's."""
    plan = lo.kfold(N, 4, rng=1)
    fit = lo.from_sklearn(host, X, y, weight)
    assert fit.decrement < 1e-2
    ours = lo.cross_predict(fit, plan, strategy=lo.Exact(1e-10), kind="link")
    theirs = np.zeros(N)
    for w in plan.matrix():
        keep = w > 0
        again = refitted().fit(X[keep], y[keep], None if weight is None else weight[keep])
        theirs[~keep] = again.decision_function(X[~keep])
    return fit, ours, theirs


@pytest.mark.parametrize(
    "host",
    [
        LinearSVC(C=0.3, **TIGHT),
        LinearSVC(fit_intercept=False, class_weight={"yes": 2.0, "no": 0.5}, **TIGHT),
    ],
    ids=["intercept", "none, weights of classes"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_support_vectors_of_a_squared_hinge(host, weighted):
    weight = WEIGHT if weighted else None
    fit, ours, theirs = _binary_folds(
        clone(host).fit(X, Y["binary"], weight), lambda: clone(host), weight=weight
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert lo.cross_validate(fit, lo.leave_one_out()).proved.all()


def test_one_class_after_another_is_the_way_out_of_one_against_the_rest():
    everyone = RidgeClassifier(2.0).fit(X, Y["three"])
    with pytest.raises(TypeError, match="for each class c"):
        lo.from_sklearn(everyone, X, Y["three"])
    plan = lo.kfold(N, 4, rng=1)
    fits = [
        lo.from_sklearn(RidgeClassifier(2.0).fit(X, Y["three"] == c), X, Y["three"] == c)
        for c in everyone.classes_
    ]
    ours = np.stack(
        [lo.cross_predict(fit, plan, strategy=lo.Exact(1e-10), kind="link") for fit in fits], axis=1
    )
    for w in plan.matrix():
        again = RidgeClassifier(2.0).fit(X[w > 0], Y["three"][w > 0])
        np.testing.assert_allclose(ours[w == 0], again.decision_function(X[w == 0]), atol=1e-9)


SLOWLY = {"average": True, "tol": None, "max_iter": 4000, "random_state": 0, "alpha": 0.1}
DESCENDED = {  # by gradients of single rows, and the same minimum by another solver
    "log loss": (
        SGDClassifier("log_loss", **SLOWLY),
        "binary",
        LogisticRegression(C=1 / (N * 0.1), **TIGHT),
    ),
    "squared error": (SGDRegressor(**SLOWLY), "real", Ridge(N * 0.1)),
}


@pytest.mark.parametrize("name", DESCENDED)
def test_stochastic_gradients_where_they_arrived(name):
    host, target, same = DESCENDED[name]
    fit = lo.from_sklearn(clone(host).fit(X, Y[target]), X, Y[target])
    assert fit.decrement < 1e-2
    other = lo.from_sklearn(same.fit(X, Y[target]), X, Y[target])
    np.testing.assert_allclose(
        lo.fit(fit.objective).parameters["coef"], other.parameters["coef"], atol=1e-5
    )
    keep = lo.kfold(N, 4, rng=1).matrix()[0] > 0
    again = (Ridge if target == "real" else LogisticRegression)(
        **(
            {"alpha": keep.sum() * 0.1}
            if target == "real"
            else {"C": 1 / (keep.sum() * 0.1), **TIGHT}
        )
    ).fit(X[keep], Y[target][keep])
    coef = lo.fold_parameters(fit, lo.kfold(k=4, rng=1), strategy=lo.Exact(1e-10))["coef"][0]
    np.testing.assert_allclose(coef, np.ravel(again.coef_), atol=1e-5)


def test_a_search_is_taken_at_what_it_chose():
    search = GridSearchCV(
        make_pipeline(Normalizer(), Ridge()), {"ridge__alpha": [0.1, 1.0]}, cv=3
    ).fit(X, Y["real"])
    fit = lo.from_sklearn(search, X, Y["real"])
    assert (
        "GridSearchCV chose {'ridge__alpha':" in fit.objective.note
        and "as fitted" not in fit.objective.note
    )
    plan, best = lo.kfold(N, 3, rng=0), clone(search.best_estimator_)
    predicted = lo.cross_predict(fit, plan, strategy=lo.Exact())
    for w in plan.matrix():
        np.testing.assert_allclose(
            predicted[w == 0], best.fit(X[w > 0], Y["real"][w > 0]).predict(X[w == 0]), atol=1e-9
        )


def test_a_target_that_is_transformed():
    host = TransformedTargetRegressor(Ridge(2.0), func=np.log, inverse_func=np.exp).fit(
        X, Y["positive"]
    )
    fit = lo.from_sklearn(host, X, Y["positive"])
    assert "transformed target" in fit.objective.note
    np.testing.assert_allclose(fit.objective.units.modelled, np.log(Y["positive"]))
    plan = lo.kfold(N, 3, rng=0)
    predicted = lo.cross_predict(fit, plan, strategy=lo.Exact())
    for w in plan.matrix():
        again = clone(host).fit(X[w > 0], Y["positive"][w > 0])
        np.testing.assert_allclose(predicted[w == 0], again.predict(X[w == 0]), rtol=1e-9)
    with pytest.raises(ValueError, match="units of the transformed"):
        lo.cross_validate(fit, plan, evaluate="crps")
    two = np.column_stack([Y["positive"], Y["positive"]])
    with pytest.raises(TypeError, match="several targets"):
        lo.from_sklearn(clone(host).fit(X, two), X, two)


IN_UNITS_OF_Y = {
    "predictions": lambda fit: lo.cross_predict(fit, 4, strategy=lo.Exact()),
    "new rows": lambda fit: lo.predict(fit, X[:3]),
    "metrics": lambda fit: lo.cross_validate(
        fit, 4, metric=["rmse", "mape", "r2", "neg_mean_squared_error"]
    ).metrics["value"][-4:],
    "losses": lambda fit: lo.cross_validate(fit, 4, evaluate="absolute_error").per_unit(),
    "validation": lambda fit: lo.clinical.validate(fit, num_resamples=5).table.iloc[:, :5],
    "calibration": lambda fit: lo.clinical.calibration(lo.cross_validate(fit, 4)).table,
    "stability": lambda fit: lo.clinical.stability(fit, num_resamples=5).units,
    "centres": lambda fit: lo.clinical.internal_external(fit, np.arange(N) % 4).table,
    "influence": lambda fit: lo.influence(
        lo.cross_validate(fit, 4), num_pairs=0, prediction=X[0]
    ).rows["prediction"],
    "intervals": lambda fit: lo.interval(fit, X[:3], level=0.8),
}


@pytest.mark.parametrize("model", [Ridge(0.0), PLSRegression(2)], ids=["a GLM", "components"])
def test_what_is_called_response_is_in_units_of_y_wherever_it_is_read(model):
    """An affine change of y changes no least-squares prediction of y, nor what is computed from
    it.
    """
    y = 3 + 2 * X[:, 0] + Y["real"]
    host = TransformedTargetRegressor(
        model, func=lambda v: (v - 3) / 2, inverse_func=lambda v: 3 + 2 * v
    )
    changed, plain = (
        lo.from_sklearn(host.fit(X, y), X, y),
        lo.from_sklearn(clone(model).fit(X, y), X, y),
    )
    for name, read in IN_UNITS_OF_Y.items():
        if isinstance(model, PLSRegression) and name in ("influence", "intervals"):
            continue
        ours, truth = (np.asarray(read(fit), float) for fit in (changed, plain))
        np.testing.assert_allclose(ours, truth, rtol=1e-6, atol=1e-9, err_msg=name)


def test_a_host_with_the_parameters_of_a_refit_is_the_hosts_own_refit():
    host = HuberRegressor(tol=1e-9, max_iter=5000).fit(X, Y["heavy"])
    keep = np.arange(N) >= 30
    again = clone(host).fit(X[keep], Y["heavy"][keep])
    parameters = {
        "coef": again.coef_,
        "intercept": np.asarray(again.intercept_),
        "scale": np.asarray(again.scale_),
    }
    mine = with_parameters(host, parameters)
    np.testing.assert_array_equal(mine.predict(X), again.predict(X))
    assert mine.scale_ == again.scale_ and host.scale_ != again.scale_


def test_what_a_host_minimises_is_read_before_it_is_fitted():
    host = describe(LogisticRegression(C=0.5, class_weight={0: 2.0}))
    assert (host.loss, host.ridge, host.intercept, host.labels, host.class_weight) == (
        "logistic",
        2.0,
        True,
        True,
        {0: 2.0},
    )
    poisson = describe(PoissonRegressor(alpha=3.0, fit_intercept=False))
    assert (poisson.loss, poisson.ridge, poisson.average, poisson.intercept) == (
        "poisson",
        3.0,
        True,
        False,
    )
    assert describe(LinearSVC(C=4.0)).intercept_scale and describe(LinearSVC(C=4.0)).ridge == 0.25
    assert (
        describe(Ridge(2.0)).choice_note == ""
        and "alpha" in describe(RidgeCV().fit(X, Y["real"])).choice_note
    )
    with pytest.raises(NotFittedError):
        describe(RidgeCV())


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.from_sklearn(LinearSVC(penalty="l1").fit(X, Y["binary"]), X, Y["binary"]),
            TypeError,
            "penalty='l2'",
        ),
        (
            lambda: lo.from_sklearn(SGDClassifier().fit(X, Y["binary"]), X, Y["binary"]),
            TypeError,
            "among log_loss.*not smooth",
        ),
        (
            lambda: lo.from_sklearn(
                SGDClassifier("log_loss", penalty="l1").fit(X, Y["binary"]), X, Y["binary"]
            ),
            TypeError,
            "penalty='l1'.*not smooth",
        ),
        (
            lambda: lo.from_sklearn(
                SGDRegressor(max_iter=2, tol=None, random_state=0).fit(50 * X, Y["real"]),
                50 * X,
                Y["real"][::-1],
            ),
            ValueError,
            "not stationary",
        ),
        (
            lambda: lo.from_sklearn(
                GridSearchCV(Ridge(), {"alpha": [1.0]}, refit=False).fit(X, Y["real"]), X, Y["real"]
            ),
            TypeError,
            "refit=True",
        ),
        (
            lambda: lo.from_sklearn(GridSearchCV(Ridge(), {"alpha": [1.0]}), X, Y["real"]),
            NotFittedError,
            "not fitted",
        ),
        (
            lambda: lo.from_sklearn(LinearSVC(**TIGHT).fit(X, Y["three"]), X, Y["three"]),
            TypeError,
            "y == c.*for each class",
        ),
        (
            lambda: lo.from_sklearn(LassoLars().fit(X, Y["real"]), X, Y["real"]),
            TypeError,
            "Supported are LinearRegression",
        ),
        (lambda: lo.from_sklearn(Ridge(), X, Y["real"]), NotFittedError, "not fitted"),
        (
            lambda: lo.from_sklearn(RidgeClassifier().fit(X, Y["three"]), X, Y["three"]),
            TypeError,
            "two classes; it has 3",
        ),
        (
            lambda: lo.from_sklearn(
                RidgeClassifier(class_weight="balanced").fit(X, Y["binary"], WEIGHT),
                X,
                Y["binary"],
                sample_weight=WEIGHT,
            ),
            TypeError,
            "balanced",
        ),
        (
            lambda: lo.from_sklearn(
                LogisticRegression().fit(X, Y["binary"]), X[:, :3], Y["binary"]
            ),
            ValueError,
            "4 coefficients",
        ),
        (
            lambda: lo.from_sklearn(LogisticRegression().fit(X, Y["binary"]), X, Y["three"]),
            ValueError,
            "never saw",
        ),
        (
            lambda: lo.from_sklearn(LogisticRegression().fit(X, Y["binary"]), X, Y["binary"][::-1]),
            ValueError,
            "not stationary.*theta0=",
        ),
        (
            lambda: lo.from_sklearn(
                LogisticRegression(l1_ratio=1, solver="saga", max_iter=9999, **MIXED).fit(
                    X, Y["three"]
                ),
                X,
                Y["three"],
            ),
            TypeError,
            "one output",
        ),
        (
            lambda: lo.from_sklearn(
                LinearSVC(penalty="l1", dual=False).fit(X, Y["binary"]), X, Y["binary"]
            ),
            TypeError,
            "penalty='l2'",
        ),
    ],
)
def test_hosts_that_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_early_stopped_host_is_taken_to_its_minimum_and_said():
    host = LogisticRegression(C=10.0, max_iter=4, tol=1e-12)
    with pytest.warns(Warning):
        host.fit(X, Y["binary"])
    with pytest.warns(
        UserWarning,
        match=r"stopped before its minimum: its loss would still fall by .* raise max_iter",
    ) as told:
        fit = lo.from_sklearn(host, X, Y["binary"])
    assert (
        len(told) == 1
        and fit.decrement < 1e-6
        and "stopped before its minimum" in fit.objective.note
    )
    tight = lo.from_sklearn(clone(host).set_params(**TIGHT).fit(X, Y["binary"]), X, Y["binary"])
    plan = lo.leave_one_out(N)
    np.testing.assert_allclose(
        lo.cross_validate(fit, plan, strategy=lo.Exact()).losses,
        lo.cross_validate(tight, plan, strategy=lo.Exact()).losses,
        atol=1e-7,
    )


def test_columns_of_very_different_sizes_stop_a_host_far_from_its_minimum():
    """Its own advice then is of `max_iter` and of scales, and says by how much the loss would still
    fall.
    """
    columns = X * [1.0, 1e3, 1e-2, 1.0] + [0, 5e3, 0, 0]
    y = (X[:, 0] + X[:, 1] + np.random.default_rng(0).normal(size=N) > 0).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        host = LogisticRegression(max_iter=20).fit(columns, y)
    least = lo.fit(lo.GLM(columns, y, "logistic", lo.penalties.Ridge(1.0)))
    at = np.c_[columns, np.ones(N)] @ np.append(host.coef_, host.intercept_)
    fall = np.logaddexp(0, at).sum() - y @ at + 0.5 * np.sum(host.coef_**2) - float(least.value)
    assert fall > 0.5
    with pytest.warns(UserWarning, match=rf"fall by {re.escape(f'{fall:.2g}')};") as told:
        fit = lo.from_sklearn(host, columns, y)
    assert len(told) == 1
    np.testing.assert_allclose(float(fit.value), float(least.value), rtol=1e-10)
    # it was fitted on other data, which is no early stop
    with pytest.raises(ValueError, match="not stationary"):
        lo.from_sklearn(host, columns, y[::-1])


@pytest.mark.parametrize("host", [LinearRegression(), Ridge(2.0)])
def test_columns_far_from_zero_are_as_near_it(host):
    """A year in seconds: what a shift of a column does not change must not depend on it."""
    rng = np.random.default_rng(0)
    near, y = rng.standard_normal((24, 3)), rng.standard_normal(24)
    X = 1e8 + near
    near = X - 1e8  # without what the shift has rounded
    plan = lo.kfold(24, 6, rng=0)
    fits = [lo.from_sklearn(host.fit(x, y), x, y) for x in (X, near)]
    far, close = (lo.cross_validate(fit, plan, strategy=lo.Exact()) for fit in fits)
    np.testing.assert_allclose(far.losses, close.losses, rtol=1e-9)
    np.testing.assert_allclose(*(lo.fold_parameters(fit, plan)["coef"] for fit in fits), rtol=1e-8)
    np.testing.assert_allclose(
        *(lo.predict(fit, x[:5]) for fit, x in zip(fits, (X, near), strict=True)), rtol=1e-8
    )
    moved = (
        fits[0].parameters["intercept"]
        + 1e8 * fits[0].parameters["coef"].sum()
        - fits[1].parameters["intercept"]
    )
    assert abs(moved) < 1e-6 * 1e8 * np.abs(fits[0].parameters["coef"]).max()


def test_words_of_scikit_learn_point_to_ours():
    y = Y["real"]
    fit, host = lo.fit(lo.GLM(X, y, "squared")), Ridge().fit(X, y)
    calls = [
        (lambda: lo.cross_validate(fit, cv=5), "lo.sklearn.cross_validate takes cv="),
        (lambda: lo.cross_validate(fit, 5, scoring="r2"), "it is metric="),
        (lambda: lo.kfold(N, n_splits=5), "it is k="),
        (lambda: lo.bootstrap(N, random_state=0), "it is rng="),
        (lambda: lo.cross_validate(host, 5), "lo.sklearn.cross_validate takes this call"),
        (
            lambda: lo.from_sklearn(GaussianProcessRegressor(optimizer=None).fit(X, y), X, y),
            "lo.GaussianProcess fits one",
        ),
        (
            lambda: lo.from_sklearn(
                LinearDiscriminantAnalysis().fit(X, Y["binary"]), X, Y["binary"]
            ),
            "takes any estimator",
        ),
    ]
    for call, way in calls:
        with pytest.raises((TypeError, ValueError), match=re.escape(way)):
            call()
