"""Measures that users name.

Values by scikit-learn on held-out predictions of refits, standard errors by hand.
"""

import re

import numpy as np
import pytest
import sklearn.metrics as M
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import get_scorer, make_scorer
from sklearn.model_selection import KFold, cross_val_predict, cross_val_score

import leaveout as lo
from leaveout.validation.metrics import METRICS

N = 90
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
TWO = (X[:, 0] + RNG.normal(size=N) > 0.3).astype(int)
THREE = np.clip(np.round(X[:, 0] + 0.7 * RNG.normal(size=N)), -1, 1).astype(int) + 1
COUNT = RNG.poisson(np.exp(0.5 * X[:, 0] + 1)) + 0.5
KF = KFold(3, shuffle=True, random_state=0)
PLAN = lo.from_splits(list(KF.split(X)), N)
LOGISTIC, POISSON = (
    LogisticRegression(tol=1e-10, max_iter=1000),
    PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=2000),
)
CALLED = ["adjusted_rand_score", "positive_likelihood_ratio", "d2_log_loss_score"]
OF_TWO = ["accuracy", "average_precision", "balanced_accuracy", "f1", "f1_macro", "jaccard", "matthews_corrcoef",
          "neg_brier_score", "neg_log_loss", "r2", "roc_auc", *CALLED]  # fmt: skip
OF_THREE = ["f1_weighted", "neg_log_loss", "roc_auc_ovo", "roc_auc_ovr", "top_k_accuracy"]
OF_NUMBERS = ["neg_mean_poisson_deviance", "neg_mean_gamma_deviance", "r2", "neg_root_mean_squared_error", "neg_max_error",
              "neg_mean_absolute_percentage_error", "neg_median_absolute_error", "d2_absolute_error_score"]  # fmt: skip
EVERY = [(LOGISTIC, TWO, name) for name in OF_TWO] + [(LOGISTIC, THREE, name) for name in OF_THREE]
EVERY += [(POISSON, COUNT, name) for name in OF_NUMBERS]
SHORT = {
    "log_loss": M.log_loss, "rmse": M.root_mean_squared_error, "mape": M.mean_absolute_percentage_error,
    "mae": M.mean_absolute_error, "pinball": M.mean_pinball_loss, "poisson_deviance": M.mean_poisson_deviance,
    "gamma_deviance": M.mean_gamma_deviance,
    "d2_poisson": lambda y, p: M.d2_tweedie_score(y, p, power=1), "d2_gamma": lambda y, p: M.d2_tweedie_score(y, p, power=2),
    "top_k": M.top_k_accuracy_score, "matthews": M.matthews_corrcoef, "kappa": M.cohen_kappa_score,
}  # fmt: skip


def held(host, y, method):
    p = cross_val_predict(host, X, y, cv=KF, method=method)
    return p[:, 1] if p.ndim > 1 and p.shape[1] == 2 else p


def measured(host, y, metric, **more):
    return lo.cross_validate(
        lo.from_sklearn(host.fit(X, y), X, y),
        PLAN,
        strategy=lo.Exact(),
        metric=metric,
        audit=0,
        **more,
    )


@pytest.mark.parametrize(
    "host, y, name", EVERY, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.slow_for("--roc_auc_ovo")
def test_scikit_learns_names_give_its_values(host, y, name):
    if name not in M.get_scorer_names():
        pytest.skip("needs scikit-learn 1.8")
    scorer = get_scorer(name)
    pooled, by_fold = (
        measured(host, y, name, average="pooled"),
        measured(host, y, name, average="fold"),
    )
    predicted = held(
        host, y, "predict_proba" if "predict_proba" in scorer._response_method else "predict"
    )
    truth = scorer._sign * scorer._score_func(y, predicted, **scorer._kwargs)
    assert pooled.metrics.loc[name, "value"] == pytest.approx(truth, rel=1e-5)
    assert by_fold.metrics.loc[name, "value"] == pytest.approx(
        cross_val_score(host, X, y, cv=KF, scoring=name).mean(), rel=1e-5
    )
    assert "mean over 3 folds" in str(by_fold) and (
        0 < pooled.metrics.loc[name, "standard_error"] < 0.5 * N
    ) == (name != "neg_max_error")
    assert 0 <= pooled.metrics.loc[name, "error"] < 1e-3


@pytest.mark.parametrize("name", SHORT)
def test_short_names_keep_the_sign_of_their_function(name):
    host, y = (
        (POISSON, COUNT)
        if not METRICS[name].classes
        else (LOGISTIC, THREE if name == "top_k" else TWO)
    )
    predicted = held(
        host, y, "predict" if METRICS[name].needs in ("response", "label") else "predict_proba"
    )
    assert measured(host, y, name).metrics.loc[name, "value"] == pytest.approx(
        SHORT[name](y, predicted), rel=1e-5
    )


def test_a_function_a_scorer_and_a_dict_of_them():
    share = lambda y, mu: np.mean(np.abs(y - mu) < 2)
    own = {
        "near": share,
        "each": lambda y, mu: np.abs(y - mu),
        "fbeta": make_scorer(M.mean_pinball_loss, alpha=0.9),
    }
    found, predicted = measured(POISSON, COUNT, own), held(POISSON, COUNT, "predict")
    truth = [
        share(COUNT, predicted),
        np.abs(COUNT - predicted).mean(),
        M.mean_pinball_loss(COUNT, predicted, alpha=0.9),
    ]
    np.testing.assert_allclose([found.metrics.loc[name, "value"] for name in own], truth, rtol=1e-5)
    labels = measured(
        LOGISTIC, TWO, [M.f1_score, M.roc_auc_score, lambda y, code: np.mean(y == code)]
    )
    truth = [
        M.f1_score(TWO, held(LOGISTIC, TWO, "predict")),
        M.roc_auc_score(TWO, held(LOGISTIC, TWO, "predict_proba")),
    ]
    np.testing.assert_allclose(labels.metrics["value"][-3:-1], truth)
    assert (
        "of predicted classes" in labels.metrics.loc["<lambda>", "averaged"]
        and "classes" not in labels.metrics.loc["f1_score", "averaged"]
    )
    assert labels.metrics.loc["<lambda>", "value"] == pytest.approx(
        np.mean(held(LOGISTIC, TWO, "predict") == TWO)
    )


@pytest.mark.parametrize("groups", [None, np.arange(N) // 5])
def test_the_jackknife_leaves_out_what_is_independent(groups):
    correlation = lambda y, mu: np.corrcoef(y, mu)[0, 1]
    fit = lo.from_sklearn(POISSON.fit(X, COUNT), X, COUNT)
    plan = lo.leave_one_out(N) if groups is None else lo.groups(groups)
    found, mu = (
        lo.cross_validate(
            fit, plan, strategy=lo.Exact(), metric={"r": correlation, "rmse": "rmse"}
        ),
        lo.cross_predict(fit, plan, strategy=lo.Exact()),
    )
    label = np.arange(N) if groups is None else groups
    count = label.max() + 1
    for name, of in (("r", correlation), ("rmse", M.root_mean_squared_error)):
        left = np.array([of(COUNT[label != g], mu[label != g]) for g in range(count)])
        by_hand = np.sqrt((count - 1) / count * np.sum((left - left.mean()) ** 2))
        assert found.metrics.loc[name, "standard_error"] == pytest.approx(
            by_hand, rel=1e-3 if name == "r" else 0.03
        )
    assert (
        f"jackknife over {count} {'units' if groups is None else 'groups'}"
        in found.metrics.loc["r", "averaged"]
    )
    interval = found.interval(0.9, metric="r")
    assert interval.low < found.metrics.loc["r", "value"] < interval.high and interval.method == (
        "naive" if groups is None else "clusters"
    )


def test_many_units_are_left_out_in_groups():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2000, 1))
    y = x[:, 0] + rng.normal(size=2000)
    fit = lo.fit(lo.GLM(x, y, "squared"))
    root = lambda y, mu: float(np.sqrt(np.mean((y - mu) ** 2)))
    found = lo.cross_validate(fit, lo.kfold(k=5), metric={"called": root, "known": "rmse"})
    assert found.metrics.loc["called", "value"] == pytest.approx(
        found.metrics.loc["known", "value"], rel=1e-12
    )
    assert found.metrics.loc["called", "standard_error"] == pytest.approx(
        found.metrics.loc["known", "standard_error"], rel=0.1
    )
    assert "jackknife over 500 groups of units" in str(found)
    np.testing.assert_allclose(
        found.metrics.loc["called", "error"],
        found.metrics.loc["known", "error"],
        rtol=0.5,
        atol=1e-12,
    )


def test_repeats_are_pooled_one_by_one():
    y = X[:, 0] + RNG.normal(size=N)
    splits = [
        split for seed in range(4) for split in KFold(3, shuffle=True, random_state=seed).split(X)
    ]
    fit = lo.from_sklearn(Ridge().fit(X, y), X, y)
    plan = lo.from_splits(splits, N)
    predicted = [
        cross_val_predict(Ridge(), X, y, cv=KFold(3, shuffle=True, random_state=seed))
        for seed in range(4)
    ]
    ask = lambda average: lo.cross_validate(
        fit, plan, strategy=lo.Exact(), metric="r2", average=average
    )
    assert ask("repeat").metrics.loc["r2", "value"] == pytest.approx(
        np.mean([M.r2_score(y, each) for each in predicted])
    )
    assert "mean over 4 repeats" in str(ask("repeat"))
    assert ask("pooled").metrics.loc["r2", "value"] == pytest.approx(
        M.r2_score(np.tile(y, 4), np.concatenate(predicted))
    )
    with pytest.raises(ValueError, match="average='repeat' needs a plan"):
        lo.cross_validate(fit, lo.random_subsets(N, 0.3, 5, rng=0), metric="r2", average="repeat")


def test_concordance_of_cox_is_harrells():
    time, event = (
        np.round(RNG.exponential(np.exp(-X[:, 0])), 1),
        (RNG.random(N) < 0.7).astype(float),
    )
    fit = lo.fit(lo.Cox(X, time, event))
    risk = np.asarray(lo.cross_predict(fit, PLAN, strategy=lo.Exact(), kind="link"))
    pair = (event[:, None] == 1) & (
        (time[:, None] < time) | ((time[:, None] == time) & (event == 0))
    )
    good = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
    found = lo.cross_validate(fit, PLAN, strategy=lo.Exact(), metric="concordance")
    assert found.metrics.loc["concordance", "value"] == pytest.approx(good[pair].mean(), abs=1e-12)
    default = lo.cross_validate(fit, PLAN, metric="concordance")
    assert (
        abs(default.metrics.loc["concordance", "value"] - good[pair].mean())
        <= default.metrics.loc["concordance", "error"] + 1e-12
    )
    each = np.arange(N)
    left = [
        good[np.ix_(each != i, each != i)][pair[np.ix_(each != i, each != i)]].mean() for i in each
    ]
    assert found.metrics.loc["concordance", "standard_error"] == pytest.approx(
        np.sqrt((N - 1) * np.var(left)), rel=0.03
    )
    with pytest.raises(ValueError, match="whose measure is 'concordance'"):
        lo.cross_validate(fit, PLAN, metric="auc")


@pytest.mark.parametrize(
    "y, metric, message",
    [
        (TWO, "f1_marco", "The nearest names are 'f1_macro'"),
        (COUNT, "f1", "metric='f1' needs a response of classes"),
        (COUNT, "log_loss", "metric='log_loss' needs a response of classes"),
        (COUNT, "adjusted_rand_score", "needs a response of classes"),
        (THREE, "f1", "metric='f1': Target is multiclass"),
        (THREE, "rmse", "needs a response that is a number"),
        (COUNT, "concordance", "needs times and events"),
        (
            COUNT,
            lambda y, mu: np.zeros(3),
            r"must return one number, or one a row, \(90,\); got shape \(3,\)",
        ),
        (COUNT, ["mse", "mse"], "give measures of one name as {name: measure}"),
    ],
)
def test_what_cannot_be_measured(y, metric, message):
    with pytest.raises(ValueError, match=re.escape(message) if "\\" not in message else message):
        measured(POISSON if y is COUNT else LOGISTIC, y, metric)


def test_tune_takes_scikit_learns_names():
    model = lo.GLM(X, TWO, "logistic")
    build = lambda a: model.under(lo.penalties.Ridge(a))
    found = lo.tune(
        build,
        {"a": [0.5, 5.0, 50.0]},
        PLAN,
        strategy=lo.Exact(),
        metric="neg_log_loss",
        num_trials=3,
        sampler="optuna",
        num_outer_folds=0,
    )
    losses = [
        lo.cross_validate(lo.fit(build(a)), PLAN, strategy=lo.Exact()).mean
        for a in found.trials["a"]
    ]
    assert found.hyper["a"] == found.trials["a"][int(np.argmin(losses))]
    np.testing.assert_allclose(found.trials["neg_log_loss"], np.negative(losses), rtol=1e-9)
    with pytest.raises(ValueError, match="greater_is_better"):
        lo.tune(build, {"a": [0.5, 5.0]}, PLAN, metric=lambda y, code: 0.0, sampler="optuna")
