"""What a call is given as a plan: numbers of folds, splitters, labels of rows, cases."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

import leaveout as lo


def fit_of(kind, X, y):
    if kind == "classes":
        return lo.fit(lo.GLM(X, y > 0, "logistic", lo.penalties.Ridge(1.0)))
    return lo.fit(lo.GLM(X, y, "squared"))


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_numbers_of_folds_and_splitters_are_plans(kind):
    random = np.random.default_rng(1)
    X, y = random.normal(size=(60, 2)), random.normal(size=60)
    fit, group = fit_of(kind, X, y), random.integers(0, 9, 60)
    same = lambda a, b: np.testing.assert_allclose(a.per_unit(), b.per_unit(), rtol=1e-12)
    drawn = lo.stratified(y > 0, 5, seed=0) if kind == "classes" else lo.kfold(60, 5, seed=0)
    same(lo.cross_validate(fit, 5), lo.cross_validate(fit, drawn))
    splitter = StratifiedKFold(4) if kind == "classes" else KFold(4)
    splits = list(splitter.split(X, y > 0))
    for plan in (splitter, splits, iter(splits)):
        same(lo.cross_validate(fit, plan), lo.cross_validate(fit, lo.from_splits(splits, 60)))
    np.testing.assert_array_equal(
        lo.cross_predict(fit, splitter), lo.cross_predict(fit, lo.from_splits(splits, 60))
    )
    by_group = lo.cross_validate(fit, GroupKFold(3), groups=group)
    same(by_group, lo.cross_validate(fit, 3, groups=group))
    assert "over 9 groups" in by_group.standard_error.kind
    with pytest.raises(ValueError, match="needs groups; give one label a unit"):
        lo.cross_validate(fit, GroupKFold(3))
    for wrong in ("loo", 2.5, None, True):
        with pytest.raises(TypeError, match="a Plan, such as"):
            lo.cross_validate(fit, wrong)
    with pytest.raises(TypeError, match="a Plan has its own"):
        lo.cross_validate(fit, drawn, groups=group)


def test_groups_of_a_splitter_are_matched_by_labels():
    random = np.random.default_rng(2)
    index = pd.Index([f"u{k}" for k in range(30)])
    X = pd.DataFrame(random.normal(size=(30, 2)), index=index)
    fit, group = (
        lo.fit(lo.GLM(X, random.normal(size=30), "squared")),
        pd.Series(np.arange(30) % 6, index=index),
    )
    mixed = lo.cross_validate(fit, GroupKFold(3), groups=group.sample(frac=1, random_state=0))
    np.testing.assert_array_equal(
        mixed.per_unit(), lo.cross_validate(fit, GroupKFold(3), groups=group).per_unit()
    )


def test_a_series_is_cut_into_successive_folds():
    random = np.random.default_rng(3)
    fit = lo.fit(
        lo.HMM(random.normal(3.0 * (np.arange(60) // 10 % 2), 1.0), lo.emissions.Gaussian(), 2)
    )
    assert lo.cross_validate(fit, 5, audit=0).plan.call == "lo.kfold(60, 5)"


def test_models_of_subjects_take_labels_of_rows():
    random = np.random.default_rng(4)
    subject = np.array([f"s{k:02d}" for k in np.repeat(random.permutation(12), 5)])
    index = pd.Index([f"row {k}" for k in range(60)])
    x = random.normal(size=60)
    data = pd.DataFrame({"y": x + random.normal(size=60), "x": x, "s": subject}, index=index)
    data["y"] += data["s"].map(dict(zip(np.unique(subject), random.normal(size=12), strict=True)))
    fit = lo.fit(lo.Mixed("y ~ x + (1 | s)", data, drop="s"))
    single = lo.cross_validate(fit, lo.leave_one_out(12))
    for labels in (subject, data["s"], data["s"].sample(frac=1, random_state=0)):
        cv = lo.cross_validate(fit, lo.groups(labels))
        np.testing.assert_allclose((cv.mean, cv.se), (single.mean, single.se), rtol=1e-9)
    half = lo.cross_validate(fit, lo.groups(np.where(subject < "s06", "a", "b")))
    assert half.plan.num_refits == 2 and half.plan.num_units == 12
    with pytest.raises(ValueError, match="parts of the fit's 12 units"):
        lo.cross_validate(fit, lo.groups(np.arange(60) % 7))
    chains = lo.fit(
        lo.HMM(
            random.normal(size=60),
            lo.emissions.Gaussian(),
            1,
            lengths=[20, 10, 15, 15],
            drop="sequence",
        )
    )
    whole, rows = (
        lo.cross_validate(chains, p)
        for p in (lo.leave_one_out(4), lo.groups(np.repeat([0, 1, 2, 3], [20, 10, 15, 15])))
    )
    np.testing.assert_allclose(rows.losses, whole.losses)


def test_cases_are_whole():
    X, y = np.arange(6.0)[:, None], np.array([0.0, 1.0, 3.0, 2.0, 5.0, 4.0])
    half = lo.fit(lo.GLM(X, y, "squared", sample_weight=[1, 1, 1.5, 1, 1, 1]))
    with pytest.raises(ValueError, match="no whole numbers"):
        lo.cross_validate(half, lo.leave_one_out(cases=True))
    single = lo.fit(lo.GLM(X, y, "squared"))
    with pytest.raises(ValueError, match="for 5 units"):
        lo.cross_validate(single, lo.leave_one_out(5, cases=True))
    ones, rows = (
        lo.cross_validate(single, plan)
        for plan in (lo.leave_one_out(6, cases=True), lo.leave_one_out(6))
    )
    np.testing.assert_allclose(ones.losses, rows.losses, rtol=1e-12)
    with pytest.raises(ValueError, match=r"refit 0 scores unit 1, which has weight 0\.5"):
        lo.cross_validate(single, lo.Plan([0, 1], [1], [0.5], [True], 6))
