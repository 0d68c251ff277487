"""What weights mean: c times them is the same data for every measure, table and standard error.

Or they are cases.
"""

import numpy as np
import pytest

import leaveout as lo
from leaveout.objectives.unit_weights import unit_weights

rng = np.random.default_rng(3)
N = 48
X, CENTRE = rng.normal(size=(N, 2)), np.arange(N) % 3
COUNT = rng.integers(0, 4, N)
TIME, EVENT = rng.exponential(np.exp(-X[:, 0])) + 0.01, (rng.random(N) < 0.7) * 1.0
CLASS, NUMBER = (X[:, 0] + rng.normal(size=N) > 0) * 1.0, X[:, 0] + rng.normal(size=N)
FOLDS, DRAWN = lo.kfold(N, 4, rng=0), lo.bootstrap(N, 4, rng=0)
MODELS = {
    "classes": lambda rows, w, c: lo.GLM(
        X[rows], CLASS[rows], "logistic", lo.penalties.Ridge(c), sample_weight=w
    ),
    "number": lambda rows, w, c: lo.GLM(
        X[rows], NUMBER[rows], "squared", lo.penalties.Ridge(c), sample_weight=w
    ),
    "survival": lambda rows, w, c: lo.Cox(
        X[rows], TIME[rows], EVENT[rows], lo.penalties.Ridge(c), sample_weight=w, ties="breslow"
    ),
}
TABLES = {
    "validation": lambda fit, cv: lo.clinical.validate(fit, plan=DRAWN, num_curves=0).table.iloc[
        :, :5
    ],
    "centres": lambda fit, cv: lo.clinical.internal_external(fit, CENTRE).table,
    "calibration": lambda fit, cv: lo.clinical.calibration(cv).table,
    "its curve": lambda fit, cv: lo.clinical.calibration(cv).curve,
    "apparent calibration": lambda fit, cv: lo.clinical.calibration(fit).table,
    "stability": lambda fit, cv: lo.clinical.stability(fit, plan=DRAWN).table,
    "metrics": lambda fit, cv: cv.metrics.loc[list(cv.measured), "standard_error"],
    "Cook": lambda fit, cv: lo.diagnostics.cooks_distance(fit),
    "covariance": lambda fit, cv: lo.covariance(fit, "nonrobust"),
    "moves": lambda fit, cv: lo.influence(cv, strategy=lo.Exact(1e-10), num_pairs=0).rows[
        ["cook", "moved", "others"]
    ],
    "net benefit": lambda fit, cv: lo.clinical.decision_curve(cv, [0.3, 0.5]).table,
}
METRICS = {"classes": ["auc", "brier", "f1"], "number": ["rmse", "r2"], "survival": ["concordance"]}


@pytest.mark.parametrize("kind", MODELS)
def test_weights_times_a_constant_are_the_same_data(kind):
    w = rng.uniform(0.3, 3, N) * (1 if kind == "survival" else np.arange(N) % 7 > 0)
    tables = []
    for c in (1.0, 0.01 if kind == "number" else 100.0):
        fit = lo.fit(MODELS[kind](slice(None), w * c, c))
        cv = lo.cross_validate(fit, FOLDS, strategy=lo.Exact(1e-10), metric=METRICS[kind], audit=0)
        tables.append(
            {
                name: table(fit, cv)
                for name, table in TABLES.items()
                if (kind, name) != ("number", "net benefit")
            }
        )
    for name, table in tables[0].items():
        np.testing.assert_allclose(tables[1][name], table, rtol=2e-6, atol=1e-9, err_msg=name)


def test_cases_are_so_many_rows():
    rows = np.repeat(np.arange(N), COUNT)
    heavy = lo.fit(MODELS["classes"](slice(None), COUNT * 1.0, 1.0))
    copies = lo.fit(MODELS["classes"](rows, None, 1.0))
    cases = lo.cross_validate(
        heavy, lo.leave_one_out(cases=True), strategy=lo.Exact(1e-10), metric=["brier", "rmse"]
    )
    alone = lo.cross_validate(
        copies, lo.leave_one_out(), strategy=lo.Exact(1e-10), metric=["brier", "rmse"]
    )
    pairs = {
        "held out": (lo.clinical.calibration(cases).table, lo.clinical.calibration(alone).table),
        "lowess": (
            lo.clinical.calibration(cases, smoother="lowess").table,
            lo.clinical.calibration(alone, smoother="lowess").table,
        ),
        "apparent": (
            lo.clinical.calibration(heavy, cases=True).table,
            lo.clinical.calibration(copies).table,
        ),
        "net benefit": (
            lo.clinical.decision_curve(cases, [0.4]).table,
            lo.clinical.decision_curve(alone, [0.4]).table,
        ),
        "its own": (
            lo.clinical.decision_curve(heavy, [0.4], cases=True).table,
            lo.clinical.decision_curve(copies, [0.4]).table,
        ),
        "errors": (cases.metrics["standard_error"], alone.metrics["standard_error"]),
        "centres": (
            lo.clinical.internal_external(heavy, CENTRE, cases=True).table,
            lo.clinical.internal_external(copies, CENTRE[rows]).table,
        ),
    }
    for name, (ours, truth) in pairs.items():
        np.testing.assert_allclose(ours, truth, rtol=1e-6, atol=1e-8, err_msg=name)
    said = (
        str(lo.clinical.calibration(cases)),
        str(lo.clinical.calibration(lo.cross_validate(heavy, FOLDS))),
    )
    assert f"numbers of cases, {COUNT.sum()} in all" in said[0] and "mean one" in said[1]
    with pytest.raises(ValueError, match="where the plan was made"):
        lo.clinical.calibration(cases, cases=True)


def test_units_of_weight_zero_are_none():
    weights = unit_weights(MODELS["classes"](slice(None), COUNT * 1.0, 1.0))
    assert weights.values[COUNT > 0].mean() == pytest.approx(
        1.0
    ) and weights.scale == pytest.approx(COUNT[COUNT > 0].mean())
    some = np.flatnonzero(COUNT)
    heavy, fewer = (
        lo.fit(MODELS["classes"](rows, COUNT[rows] * 1.0, 1.0)) for rows in (slice(None), some)
    )
    plan = lo.bootstrap(len(some), 4, rng=0)
    weight = np.ones((4, N))
    weight[:, some] = plan.matrix()
    whole = lo.Plan(
        np.arange(5) * N, np.tile(np.arange(N), 4), weight.ravel(), np.zeros(4 * N, bool), N
    )
    found, want = lo.clinical.stability(heavy, plan=whole), lo.clinical.stability(fewer, plan=plan)
    assert len(found.units) == len(some)
    np.testing.assert_allclose(found.table, want.table, rtol=1e-7)


def test_weights_of_proportions_are_trials():
    """As in R: with the weights of a proportion as its trials, or said to be trials, measures are
    those of counts.
    """
    trials, successes = np.full(N, 7.0), np.random.default_rng(1).integers(0, 8, N) * 1.0
    fits = [
        lo.fit(lo.GLM(X, successes / trials, "logistic", **{name: trials}))
        for name in ("trials", "sample_weight")
    ]
    assert all(unit_weights(fit.objective).scale == 1.0 for fit in fits)
    np.testing.assert_allclose(
        lo.diagnostics.cooks_distance(fits[1]), lo.diagnostics.cooks_distance(fits[0]), rtol=1e-9
    )
    eta = X @ fits[0].parameters["coef"] + fits[0].parameters["intercept"]
    p, Z = 1 / (1 + np.exp(-eta)), np.column_stack([X, np.ones(N)])
    truth = np.linalg.inv(Z.T @ (Z * (7 * p * (1 - p))[:, None]))
    np.testing.assert_allclose(lo.covariance(fits[1], "nonrobust"), truth, rtol=1e-6, atol=1e-9)
