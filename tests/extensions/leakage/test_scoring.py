"""Scores: against scikit-learn's own, weights by repeated rows, influences by nudged weights.

And what they do to the curve.
"""

import pickle

import numpy as np
import pytest
from sklearn import metrics
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import get_scorer, make_scorer
from sklearn.svm import LinearSVC

from leaveout.extensions.leakage._scoring import predict_for_score, resolve_score

RNG = np.random.default_rng(0)
N = 90
X = RNG.normal(size=(N, 3))
NUMBER = np.exp(0.4 * (X @ [1.0, -0.5, 0.3] + RNG.normal(size=N)))
TWO = np.where(X[:, 0] + RNG.normal(size=N) > 0.3, "yes", "no")
THREE = np.array(["a", "b", "c"])[
    np.clip(np.round(X[:, 0] + 0.7 * RNG.normal(size=N)), -1, 1).astype(int) + 1
]
WEIGHT = RNG.integers(0, 4, N).astype(float)

NUMBERS = ["r2", "explained_variance", "neg_mean_squared_error", "neg_mean_absolute_error", "neg_root_mean_squared_error",
           "neg_mean_absolute_percentage_error", "neg_mean_squared_log_error", "neg_root_mean_squared_log_error",
           "neg_mean_poisson_deviance", "neg_mean_gamma_deviance"]  # fmt: skip
BETA = make_scorer(metrics.fbeta_score, beta=2.0, average="macro", pos_label=None)
CLASSES = ["accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "jaccard_macro",
           "matthews_corrcoef", "f1_micro", "jaccard_weighted", BETA, make_scorer(metrics.cohen_kappa_score), "neg_log_loss",
           "neg_brier_score", "d2_log_loss_score"]  # fmt: skip
OF_TWO = ["roc_auc", "average_precision", make_scorer(metrics.f1_score, pos_label="no"),
          make_scorer(metrics.average_precision_score, pos_label="no", response_method="predict_proba")]  # fmt: skip
OF_THREE = ["roc_auc_ovr", "roc_auc_ovr_weighted"]
ONLY_01 = ["neg_brier_score", "average_precision", "f1"]
EVERY = (
    [(Ridge(), np.maximum(NUMBER, 0.2), name) for name in NUMBERS]
    + [(LogisticRegression(), TWO, name) for name in CLASSES + OF_TWO if name not in ONLY_01]
    + [(LogisticRegression(), (TWO == "yes") * 1, name) for name in ONLY_01]
    + [(LogisticRegression(), THREE, name) for name in CLASSES + OF_THREE]
    + [
        (RandomForestClassifier(5, random_state=0), TWO, "roc_auc"),
        (LinearSVC(), TWO == "yes", "average_precision"),
    ]
)


class Positive(LinearRegression):
    """Predictions that every metric takes."""

    def predict(self, X):
        return np.exp(np.clip(super().predict(X), -3, 2))


@pytest.mark.parametrize(
    "estimator, y, name", EVERY, ids=lambda value: value if isinstance(value, str) else ""
)
def test_scores_are_scikit_learns_and_influences_are_slopes_in_the_weights(estimator, y, name):
    model = (Positive() if estimator.__class__ is Ridge else estimator).fit(X[:40], y[:40])
    score, scorer = resolve_score(name, model, y), get_scorer(name)
    target, prediction = score.target(y), predict_for_score(model, X, np.unique(y), score.needs)
    theirs = lambda weight: scorer(model, X, y, sample_weight=weight)
    assert score.more_is_better and score(target, prediction) == pytest.approx(
        theirs(np.ones(N)), rel=1e-9
    )
    assert score(target, prediction, WEIGHT) == pytest.approx(theirs(WEIGHT), rel=1e-9)
    repeated = np.repeat(np.arange(N), WEIGHT.astype(int))
    assert score(target[repeated], prediction[repeated]) == pytest.approx(theirs(WEIGHT), rel=1e-9)
    influence = score.influence(target, prediction, WEIGHT)
    assert abs(influence @ WEIGHT) < 1e-6
    for i in np.flatnonzero(WEIGHT)[::13]:
        off = 1e-4 * (np.arange(N) == i)
        slope = (theirs(WEIGHT + off) - theirs(WEIGHT - off)) / 2e-4
        assert influence[i] == pytest.approx(slope * WEIGHT.sum(), abs=2e-5)
    assert pickle.loads(pickle.dumps(score))(target, prediction) == score(target, prediction)


def test_rows_that_do_not_belong_are_taken_out_again_exactly():
    """V̂ holds a share q of T's rows and T̂ a share p of V's.

    With weights (1 − p)/(1 − p − q) and −q/(1 − p − q) it is V.
    """
    p, q, n = 0.1, 0.3, 100
    own, alien = RNG.integers(0, 40, (2, n))  # rows of V and of T
    test = np.r_[np.repeat(own, 7), np.repeat(alien, 3)]
    train = np.r_[np.repeat(alien, 9), np.repeat(own, 1)]
    reach = 1 - p - q
    weight = np.r_[
        np.full(len(test), (1 - p) / reach / len(test)),
        np.full(len(train), -q / reach / len(train)),
    ]
    rows = np.r_[test, train]
    classes = ["roc_auc", "f1_macro", "matthews_corrcoef", "accuracy", "average_precision"]
    for y, names in ((TWO == "yes", classes), (NUMBER, ["r2", "neg_root_mean_squared_error"])):
        model = (Ridge() if y is NUMBER else LogisticRegression()).fit(X[40:], y[40:])
        for name in names:
            score = resolve_score(name, model, y)
            target, prediction = (
                score.target(y),
                predict_for_score(model, X, np.unique(y), score.needs),
            )
            mixed = score(target[rows], prediction[rows], weight)
            assert mixed == pytest.approx(score(target[own], prediction[own]), rel=1e-9), name


def test_the_area_is_the_share_of_pairs_in_order():
    score = resolve_score("roc_auc", LinearSVC(), TWO)
    y, p, w = np.r_[1.0, 1, 0, 0, 0], np.r_[0.9, 0.4, 0.4, 0.2, 0.9], np.r_[1.0, 2, 1, 3, 2]
    pairs = [(w[i] * w[j], (p[i] > p[j]) + 0.5 * (p[i] == p[j])) for i in (0, 1) for j in (2, 3, 4)]
    assert score(y, p, w) == pytest.approx(sum(a * b for a, b in pairs) / sum(a for a, _ in pairs))


def top_share(y, p):
    return float(np.mean(y[np.argsort(-p)[:10]] == "yes"))


def median(y, mu, sample_weight=None):
    return float(np.median(np.abs(y - mu)))


LOGISTIC, RIDGE, SVC = LogisticRegression(), Ridge(), LinearSVC()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (("auc", LOGISTIC, TWO), ValueError, "neither a scorer of scikit-learn's"),
        ((top_share, LOGISTIC, TWO), TypeError, "make_scorer"),
        (("roc_auc", RIDGE, NUMBER), TypeError, "is of classes; Ridge predicts numbers"),
        (("roc_auc", LOGISTIC, THREE), ValueError, "use 'roc_auc_ovr'"),
        (("average_precision", LOGISTIC, TWO), ValueError, "pos_label='yes'"),
        (("f1", LOGISTIC, TWO), ValueError, "pos_label='yes'"),
        (("neg_log_loss", SVC, TWO), TypeError, "needs predict_proba, which LinearSVC has not"),
        ((None, object(), TWO), TypeError, "a score of its own"),
    ],
)
def test_what_is_no_score(arguments, error, message):
    with pytest.raises(error, match=message):
        resolve_score(*arguments)


@pytest.mark.parametrize(
    "score, ask, message",
    [
        (
            resolve_score("roc_auc", SVC, TWO),
            lambda score: score(np.ones(4), np.ones(4)),
            "rows of both classes",
        ),
        (
            resolve_score(make_scorer(median), RIDGE, NUMBER),
            lambda score: score.influence(NUMBER, X[:, 0]),
            "does not change",
        ),
        (
            resolve_score("neg_max_error", RIDGE, NUMBER),
            lambda score: score.influence(NUMBER, X[:, 0]),
            "no sample_weight",
        ),
        (
            resolve_score("neg_max_error", RIDGE, NUMBER),
            lambda score: score(NUMBER, X[:, 0], WEIGHT),
            "no sample_weight",
        ),
        (
            resolve_score("d2_absolute_error_score", RIDGE, NUMBER),
            lambda score: score(NUMBER, X[:, 0], -WEIGHT),
            "cannot be taken out",
        ),
    ],
)
def test_what_cannot_be_asked(score, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(score)


def test_an_estimators_own_score():
    assert (
        resolve_score(None, Ridge(), NUMBER).name == "r2"
        and resolve_score(None, LinearSVC(), TWO).name == "accuracy"
    )
    assert (
        resolve_score(make_scorer(metrics.max_error, greater_is_better=False), Ridge(), NUMBER).name
        == "neg_max_error"
    )
    assert not resolve_score("zero_one", LinearSVC(), TWO).more_is_better


def test_a_function_of_the_callers_own_is_pickled_by_its_name():
    score = resolve_score(make_scorer(lambda y, mu: -np.ptp(y - mu)), Ridge(), NUMBER)
    back = pickle.loads(pickle.dumps(score))
    assert back.name == score.name
    with pytest.raises(TypeError, match="was not kept when this was pickled"):
        back(NUMBER, NUMBER)
