"""Everyday pipelines of scikit-learn, by `lo.sklearn` and by scikit-learn itself.

    python benchmarks/everyday.py [--quick] [--only WORD]

25 pipelines on six data sets, each by five folds, ten times five folds, leave-one-out and a grid of
twenty in five folds: processor time of scikit-learn over ours, the largest difference of a score,
and which way the folds were refitted. Both take turns. Folds of leave-one-out that the host refits
are timed on 24 of them and extrapolated, for both. Writes benchmarks/results/everyday.md.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from benchmarks.speed.common import main
from sklearn import datasets
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    ElasticNet,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    LeaveOneOut,
    RepeatedKFold,
    RepeatedStratifiedKFold,
    StratifiedKFold,
    cross_validate,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

import leaveout as lo

SAMPLE = 24  # folds of leave-one-out that are timed where the host refits them
RESULT = Path(__file__).parent / "results" / "everyday.md"
C, ALPHA = np.geomspace(0.01, 10, 20), np.geomspace(0.01, 100, 20)


class Pipeline(NamedTuple):
    name: str
    data: str
    host: Any
    parameter: str
    values: Any
    scoring: str | None = None


def adult(rows: int = 6000) -> tuple[Any, np.ndarray]:
    frame = lo.datasets.adult().iloc[:rows]
    return frame.drop(columns="income"), (frame["income"] == ">50K").to_numpy().astype(int)


def heart() -> tuple[Any, np.ndarray]:
    frame = lo.datasets.heart_uci()
    return frame.drop(columns=["hospital", "num"]).to_numpy(float), (
        frame["num"] > 0
    ).to_numpy().astype(int)


def digits() -> tuple[Any, np.ndarray]:
    X, y = datasets.load_digits(return_X_y=True)
    return X[:700], y[:700]


DATA: dict[str, Callable[[], tuple[Any, np.ndarray]]] = {
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "digits": digits,
    "heart": heart,
    "adult": adult,
}
ENCODED = make_column_transformer(
    (StandardScaler(), ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]),
    (
        OneHotEncoder(handle_unknown="ignore"),
        ["workclass", "education", "marital_status", "occupation", "sex"],
    ),
)
logistic, scaled = (
    LogisticRegression(max_iter=1000),
    lambda host: make_pipeline(StandardScaler(), host),
)
PIPELINES = [
    Pipeline("scaled logistic", "breast cancer", scaled(logistic), "logisticregression__C", C),
    Pipeline(
        "scaled logistic, log loss",
        "breast cancer",
        scaled(logistic),
        "logisticregression__C",
        C,
        "neg_log_loss",
    ),
    Pipeline(
        "scaled logistic, AUC",
        "breast cancer",
        scaled(logistic),
        "logisticregression__C",
        C,
        "roc_auc",
    ),
    Pipeline("linear support vectors", "breast cancer", scaled(LinearSVC()), "linearsvc__C", C),
    Pipeline(
        "selected, logistic",
        "breast cancer",
        make_pipeline(SelectKBest(k=10), scaled(logistic)),
        "selectkbest__k",
        range(5, 25),
    ),
    Pipeline("kernel", "breast cancer", scaled(SVC()), "svc__C", C),
    Pipeline("ridge", "diabetes", Ridge(), "alpha", ALPHA, "neg_mean_squared_error"),
    Pipeline(
        "least squares",
        "diabetes",
        scaled(LinearRegression()),
        "linearregression__tol",
        np.geomspace(1e-9, 1e-6, 20),
        "neg_mean_absolute_error",
    ),
    Pipeline(
        "scaled ridge",
        "diabetes",
        scaled(Ridge()),
        "ridge__alpha",
        ALPHA,
        "neg_root_mean_squared_error",
    ),
    Pipeline(
        "lasso",
        "diabetes",
        Lasso(0.05),
        "alpha",
        np.geomspace(0.01, 1, 20),
        "neg_mean_squared_error",
    ),
    Pipeline(
        "elastic net",
        "diabetes",
        scaled(ElasticNet(0.5)),
        "elasticnet__alpha",
        np.geomspace(0.05, 5, 20),
        "neg_mean_squared_error",
    ),
    Pipeline(
        "Huber",
        "diabetes",
        scaled(HuberRegressor()),
        "huberregressor__alpha",
        np.geomspace(1e-5, 1, 20),
        "neg_mean_squared_error",
    ),
    Pipeline(
        "Poisson",
        "diabetes",
        scaled(PoissonRegressor()),
        "poissonregressor__alpha",
        np.geomspace(0.01, 10, 20),
        "neg_mean_squared_error",
    ),
    Pipeline(
        "squares of columns, ridge",
        "diabetes",
        make_pipeline(PolynomialFeatures(2), scaled(Ridge())),
        "pipeline__ridge__alpha",
        ALPHA,
        "neg_mean_squared_error",
    ),
    Pipeline(
        "neighbours of a number",
        "diabetes",
        scaled(KNeighborsRegressor()),
        "kneighborsregressor__n_neighbors",
        range(1, 21),
        "neg_mean_squared_error",
    ),
    Pipeline(
        "boosting of a number",
        "diabetes",
        GradientBoostingRegressor(n_estimators=15, random_state=0),
        "max_depth",
        [1, 2, 3, 4] * 5,
        "neg_mean_squared_error",
    ),
    Pipeline("multinomial", "wine", scaled(logistic), "logisticregression__C", C),
    Pipeline("naive Bayes", "wine", GaussianNB(), "var_smoothing", np.geomspace(1e-12, 1e-6, 20)),
    Pipeline(
        "ridge classifier", "wine", scaled(RidgeClassifier()), "ridgeclassifier__alpha", ALPHA
    ),
    Pipeline(
        "network",
        "wine",
        scaled(MLPClassifier((8,), max_iter=40, random_state=0)),
        "mlpclassifier__alpha",
        np.geomspace(1e-5, 1, 20),
    ),
    Pipeline("neighbours", "digits", KNeighborsClassifier(), "n_neighbors", range(1, 21)),
    Pipeline(
        "forest",
        "digits",
        RandomForestClassifier(10, random_state=0),
        "min_samples_leaf",
        range(1, 21),
    ),
    Pipeline(
        "imputed, logistic",
        "heart",
        make_pipeline(SimpleImputer(), scaled(logistic)),
        "pipeline__logisticregression__C",
        C,
    ),
    Pipeline(
        "tree", "heart", DecisionTreeClassifier(random_state=0), "max_leaf_nodes", range(2, 22)
    ),
    Pipeline(
        "encoded, logistic", "adult", make_pipeline(ENCODED, logistic), "logisticregression__C", C
    ),
]
EXTRA = [
    Pipeline(
        "each class by a logistic",
        "wine",
        OneVsRestClassifier(scaled(logistic)),
        "estimator__logisticregression__C",
        C,
    ),
    Pipeline(
        "boosting",
        "heart",
        HistGradientBoostingClassifier(max_iter=15),
        "max_leaf_nodes",
        range(4, 24),
    ),
    Pipeline(
        "stochastic gradients",
        "breast cancer",
        scaled(SGDClassifier(random_state=0)),
        "sgdclassifier__alpha",
        np.geomspace(1e-5, 1, 20),
    ),
]


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def turns(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float, Any, Any]:
    """Time both in turns, short ones more often; the least of each."""
    slow, want = seconds(theirs)
    fast, found = seconds(ours)
    for _ in range(int(np.clip(0.8 // max(slow, 1e-3), 0 if slow > 1.5 else 1, 20))):
        slow, fast = min(slow, seconds(theirs)[0]), min(fast, seconds(ours)[0])
    return slow, fast, want, found


def apart(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference of scores, relative to the largest of them or to one."""
    return float(np.abs(got - want).max() / max(1.0, np.abs(want).max()))


def plans(y: np.ndarray, classes: bool) -> dict[str, Any]:
    one, many = (StratifiedKFold, RepeatedStratifiedKFold) if classes else (KFold, RepeatedKFold)
    folds = one(5, shuffle=True, random_state=0)
    return {
        "5 folds": folds,
        "10 x 5": many(n_splits=5, n_repeats=10, random_state=0),
        "one by one": LeaveOneOut(),
        "grid": folds,
    }


def row(pipeline: Pipeline, plan: str) -> dict[str, Any] | None:
    X, y = DATA[pipeline.data]()
    cv, scoring = plans(y, len(np.unique(y)) < 20)[plan], pipeline.scoring
    if plan == "grid":
        values = {pipeline.parameter: list(pipeline.values)}
        run = lambda kind: lambda: kind(pipeline.host, values, cv=cv, scoring=scoring).fit(X, y)
        slow, fast, want, found = turns(run(lo.sklearn.OneFitSearchCV), run(GridSearchCV))
        key, refits = "mean_test_score", found.refits_
        off = apart(found.cv_results_[key], want.cv_results_[key])
        return {"theirs": slow, "ours": fast, "off": off, "refits": refits}
    if plan == "one by one" and scoring in ("roc_auc", "neg_log_loss"):
        # one row has no ranks, and scikit-learn's log loss wants every class in a fold
        scoring = "accuracy"
    run = lambda call, cv: lambda: call(pipeline.host, X, y, cv=cv, scoring=scoring)
    sampled = [
        pair for k, pair in enumerate(LeaveOneOut().split(X)) if k % (len(y) // SAMPLE) == 0
    ][:SAMPLE]
    if plan != "one by one":
        slow, fast, want, found = turns(run(lo.sklearn.cross_validate, cv), run(cross_validate, cv))
        return {
            "theirs": slow,
            "ours": fast,
            "off": apart(found["test_score"], want["test_score"]),
            "refits": found["refits"],
        }
    slow, part = seconds(run(cross_validate, sampled))
    whole, scale = lo.sklearn.cross_validate, len(y) / len(sampled)
    from leaveout.extensions.sklearn._route import Request, reason_for_host

    why = reason_for_host(pipeline.host, Request(X, y, {}, [scoring], len(y), False, False))
    if why:
        slow, fast, want, found = turns(run(whole, sampled), run(cross_validate, sampled))
        off = apart(found["test_score"], want["test_score"])
        return {
            "theirs": scale * slow,
            "ours": scale * fast,
            "off": off,
            "refits": f"by the host: {why}",
        }
    fast, found = seconds(run(whole, cv))
    rows = [int(test[0]) for _, test in sampled]
    return {
        "theirs": scale * slow,
        "ours": fast,
        "off": apart(found["test_score"][rows], part["test_score"]),
        "refits": found["refits"],
    }


def everyday(quick: bool, only: str) -> None:
    """Every pipeline, or those of one word."""
    warnings.simplefilter("ignore")
    began, rows = time.process_time(), []
    # what is imported late is none of a pipeline's time
    lo.sklearn.cross_validate(Ridge(), *DATA["diabetes"](), cv=20)
    for pipeline in (PIPELINES + EXTRA)[: 3 if quick else None]:
        if only in pipeline.name:
            for plan in ("5 folds", "10 x 5", "one by one", "grid"):
                rows.append(
                    {
                        "data": pipeline.data,
                        "pipeline": pipeline.name,
                        "plan": plan,
                        **row(pipeline, plan),
                    }
                )
                print(
                    {
                        name: value if isinstance(value, str) else round(float(value), 4)
                        for name, value in rows[-1].items()
                    },
                    flush=True,
                )
    table = pd.DataFrame(rows)
    table["times"] = table["theirs"] / table["ours"]
    one = table["refits"] == "from one fit"
    host, runs, kinds = table[~one], len(table), table["pipeline"].nunique()
    share = table["times"]
    said = f"""# Everyday pipelines of scikit-learn

`python benchmarks/everyday.py`: `lo.sklearn` beside scikit-learn, seconds of processor time, one thread, the defaults of both.
*times* is scikit-learn's time over ours, *off* the largest difference of a score, relative to the largest score if that exceeds
one. Leave-one-out by the host is that of {SAMPLE} folds, extrapolated to all. A grid has twenty candidates in five folds, and
one fit of the best.

{runs} runs of {kinds} pipelines on {table["data"].nunique()} data sets: {one.sum()} came from one fit, and these are
{share[one].median():.1f} times as fast at the median, {share[one].min():.2f} at the least. The least of all is
{share.min():.2f}. Scores of the host's refits differ by {host["off"].max():.0e} at most, those from one fit by
{table["off"][one].max():.0e}: the host's own tolerance (an accuracy moves by one row). The program took
{(time.process_time() - began) / 60:.0f} minutes of processor time.

| data | pipeline | plan | theirs, s | ours, s | times | off | refits |
|---|---|---|---|---|---|---|---|
"""
    for each in table.to_dict("records"):
        names = f"{each['data']} | {each['pipeline']} | {each['plan']}"
        numbers = (
            f"{each['theirs']:.3f} | {each['ours']:.3f} | {each['times']:.2f} | {each['off']:.0e}"
        )
        said += f"| {names} | {numbers} | {each['refits'].split(': ')[-1].split(' (')[0]} |\n"
    print(said)
    if not quick and not only:
        RESULT.write_text(said)


if __name__ == "__main__":
    main({"everyday": everyday}, __doc__, quick=False, only="")
