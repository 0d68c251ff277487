"""Parts of a run, made one by one and merged: the numbers of one process."""

import itertools
import sqlite3
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from leaveout.validation import batches

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 3))
Y = (X[:, 0] + rng.standard_normal(60) > 0) * 1.0
FRAME = pd.DataFrame(X, [f"row {k}" for k in range(60)], ["dose", "age", "level"])
COUNTS = rng.poisson(np.repeat([1.0, 8.0, 1.0], 20))
EDGES = np.c_[np.arange(11), np.arange(1, 12)]
GRAPH = np.r_[EDGES, [[0, 5], [3, 9]]]
MODELS = {
    "logistic": lambda: lo.GLM(X, Y, "logistic", lo.penalties.Ridge(1.0)),
    "named": lambda: lo.GLM(FRAME, np.where(Y > 0, "ill", "well"), "logistic"),
    "multinomial": lambda: lo.GLM(
        X, rng.integers(0, 3, 60), "multinomial", lo.penalties.Ridge(1.0)
    ),
    "lasso": lambda: lo.GLM(X, Y, "logistic", lo.penalties.Lasso(0.02)),
    "HMM": lambda: lo.HMM(COUNTS, lo.emissions.Poisson(), 2),
    "MRF": lambda: lo.MRF(
        COUNTS[15:27], GRAPH, lo.emissions.Poisson(), 2, coupling=0.5, drop="site"
    ),
    "CRF": lambda: lo.CRF(Y.astype(int), [6] * 10, scores=np.c_[X[:, 0], X[:, 1]]),
}
PLANS = {
    "leave-one-out": lo.leave_one_out(),
    "folds": lo.kfold(k=7, rng=1),
    "groups": lo.groups(np.repeat(list("abcdef"), 10)),
    "subsets": lo.random_subsets(fraction=0.2, num_folds=9),
    "blocks": lo.blocks(size=5),
}
STRATEGIES = {
    "Certified": lo.Certified(),
    "Exact": lo.Exact(),
    "jackknife": lo.InfinitesimalJackknife(),
}
CASES = [
    *itertools.product(["logistic"], PLANS, ["Certified"], [3]),
    *itertools.product(["logistic"], ["groups"], ["Exact", "jackknife"], [3]),
    ("logistic", "folds", "Certified", 1),
    ("multinomial", "folds", "Certified", 2),
    ("logistic", "folds", "Certified", 8),
    ("named", "folds", "Certified", 2),
    ("lasso", "folds", "Certified", 2),
    ("HMM", "folds", "jackknife", 2),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("HMM", "blocks", "Certified", 2),
            ("HMM", "subsets", "Exact", 3),
            ("MRF", "leave-one-out", "Certified", 2),
            ("CRF", "folds", "Exact", 2),
        )
    ),
]


@pytest.fixture(autouse=True)
def many_batches(monkeypatch):
    monkeypatch.setattr(batches, "CAPACITY", 2**7)


def part_files(folder, fit, plan, count, first=0, **options):
    files = [folder / f"{k}.ckpt" for k in range(first, count + first)]
    for k, file in enumerate(files, first):
        lo.cross_validate(fit, plan, part=(k, count), checkpoint=file, **options)
    return files


def assert_same(merged, whole):
    for name in ("losses", "error", "result", "proved", "baseline", "settled_by", "elsewhere"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    assert str(merged) == str(whole)
    np.testing.assert_array_equal([merged.mean, merged.se], [whole.mean, whole.se])
    pd.testing.assert_frame_equal(merged.audit, whole.audit, check_exact=True)
    assert [str(check) for check in merged.checks()] == [str(check) for check in whole.checks()]


@pytest.mark.parametrize(("model", "plan", "strategy", "count"), CASES)
def test_parts_are_one_run(model, plan, strategy, count, tmp_path):
    fit = lo.fit(MODELS[model]())
    options = {"strategy": STRATEGIES[strategy]}
    whole = lo.cross_validate(fit, PLANS[plan], **options)
    files = part_files(tmp_path, fit, PLANS[plan], count, **options)
    assert_same(lo.merge(files), whole)
    assert_same(lo.merge(files[::-1], fit, PLANS[plan]), whole)


def test_more_parts_than_batches_and_another_way_to_count(tmp_path):
    """Some parts are empty, and part K is part 0."""
    fit, plan = lo.fit(MODELS["logistic"]()), lo.kfold(k=3)
    whole = lo.cross_validate(fit, plan)
    assert_same(lo.merge(part_files(tmp_path, fit, plan, 6, first=1)), whole)
    assert_same(lo.merge(str(tmp_path / "*.ckpt")), whole)
    empty = lo.cross_validate(fit, plan, part=(5, 6), checkpoint=tmp_path / "5.ckpt")
    assert (empty.result == lo.RESULTS.interrupted).all() and np.isnan(empty.losses).all()


def test_metrics_and_scores_are_those_of_one_run(tmp_path):
    fit, plan = lo.fit(MODELS["logistic"]()), lo.kfold(k=7)
    options = {
        "evaluate": "squared_error",
        "metric": ["auc", "brier"],
        "average": "fold",
        "audit": 2,
    }
    whole = lo.cross_validate(fit, plan, **options)
    merged = lo.merge(part_files(tmp_path, fit, plan, 2, **options))
    assert_same(merged, whole)
    pd.testing.assert_frame_equal(merged.metrics, whole.metrics, check_exact=True)


def test_a_part_says_that_it_is_one(tmp_path):
    fit, plan = lo.fit(MODELS["logistic"]()), lo.kfold(k=6, rng=1)
    whole = lo.cross_validate(fit, plan)
    part = lo.cross_validate(fit, plan, part=(1, 2), checkpoint=tmp_path / "1.ckpt")
    made = part.result != lo.RESULTS.interrupted
    assert 0 < made.sum() < 6 and "part 1 of 2" in str(part)
    assert "stopped" in str(part) and "LO310" in str(part)
    held = made[part.plan.refit]
    np.testing.assert_array_equal(part.losses[held], whole.losses[held])
    assert np.isnan(part.losses[~held]).all() and np.isinf(part.error[~made]).all()
    with pytest.raises(ValueError, match="stopped"):
        lo.compare({"part": part, "whole": whole})


def test_a_part_that_is_there_is_not_made_again(tmp_path, monkeypatch):
    fit, plan = lo.fit(MODELS["logistic"]()), lo.kfold(k=7)
    (file,) = part_files(tmp_path, fit, plan, 1)
    size = file.stat().st_mtime_ns
    monkeypatch.setattr(batches, "refit_active_set", pytest.fail)
    lo.cross_validate(fit, plan, part=(0, 1), checkpoint=file)
    assert file.stat().st_mtime_ns == size


def test_an_interrupted_part_goes_on(tmp_path, monkeypatch):
    fit, plan = lo.fit(MODELS["logistic"]()), lo.kfold(k=12)
    whole = lo.cross_validate(fit, plan)
    first, second = (tmp_path / f"{k} of 2.ckpt" for k in range(2))
    lo.cross_validate(fit, plan, part=(0, 2), checkpoint=first)
    refit, calls = batches.refit_active_set, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return refit(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "refit_active_set", interrupted)
        with pytest.raises(lo.validation.Interrupted, match="2 of 12 refits"):
            lo.cross_validate(fit, plan, part=(1, 2), checkpoint=second)
        with pytest.raises(ValueError, match="part 1, is not complete: the call that makes it"):
            lo.merge([first, second])
        lo.cross_validate(fit, plan, part=(1, 2), checkpoint=second)
    # batches of two refits, of which one was there
    assert len(calls) == 1 + 3
    assert_same(lo.merge([first, second]), whole)


def test_what_are_not_the_parts_of_one_run_is_refused(tmp_path):
    fit, plan = lo.fit(MODELS["logistic"]()), lo.kfold(k=7)
    a, b, c = part_files(tmp_path, fit, plan, 3)
    other = tmp_path / "other"
    other.mkdir()
    _, plan_file = part_files(other, fit, lo.kfold(k=8), 2)
    refusals = {
        "of 3 parts, these are missing: 0, 2": [b],
        "3.ckpt.*cannot be opened": [a, b, c, tmp_path / "3.ckpt"],
        "is part 1, and so is another": [a, b, b, c],
        "is of another run: other plan, number of parts": [a, plan_file],
        "there are no files": [],
    }
    for message, files in refusals.items():
        with pytest.raises(ValueError, match=f"merge: .*{message}"):
            lo.merge(files)
    assert not (tmp_path / "3.ckpt").exists()
    with pytest.raises(ValueError, match="there are no files"):
        lo.merge(str(tmp_path / "*.none"))
    with pytest.raises(ValueError, match="other model or data"):
        lo.merge([a, b, c], lo.fit(MODELS["lasso"]()))
    with pytest.raises(ValueError, match="of another run: other part, number of parts"):
        lo.cross_validate(fit, plan, checkpoint=a)
    with pytest.raises(ValueError, match="other part"):
        lo.cross_validate(fit, plan, part=(1, 3), checkpoint=a)
    lo.cross_validate(fit, plan, checkpoint=tmp_path / "whole.ckpt")
    with pytest.raises(ValueError, match=r"is no part: lo.cross_validate\(fit, plan, part="):
        lo.merge([tmp_path / "whole.ckpt"])
    for part in ((3, 2), (-1, 2), (0, 0), 1, (0.5, 2), (1, 2, 3)):
        with pytest.raises(ValueError, match="k from 0 to K − 1 or from 1 to K"):
            lo.cross_validate(fit, plan, part=part, checkpoint=a)
    with pytest.raises(ValueError, match="part= needs checkpoint="):
        lo.cross_validate(fit, plan, part=(0, 2))


def test_what_a_file_cannot_hold_is_given(tmp_path):
    """Functions and formulas, which no file holds without pickle."""
    table = FRAME.assign(y=Y)
    fit = lo.fit(lo.GLM("y ~ dose + age", table, "logistic", lo.penalties.Ridge(1.0)))
    score = lambda held, seen, parameters: (Y[held] - parameters["coef"][0]) ** 2
    plan, options = lo.kfold(k=6), {"evaluate": score}
    files = part_files(tmp_path, fit, plan, 2, **options)
    whole = lo.cross_validate(fit, plan, **options)
    with pytest.raises(
        ValueError, match=r"cannot hold fit \(formulaic.*\), evaluate \(builtins.function"
    ):
        lo.merge(files)
    assert_same(lo.merge(files, fit, evaluate=score), whole)
    assert_same(lo.merge(files, fit=fit, plan=plan, evaluate=score), whole)


PARTS = """
import sys
import numpy as np
import leaveout as lo
from leaveout.validation import batches
batches.CAPACITY = 2**7
x = np.random.default_rng(0).standard_normal((60, 3))
fit = lo.fit(lo.GLM(x, (x[:, 0] > 0) * 1.0, "logistic", lo.penalties.Ridge(1.0)))
plan = lo.kfold(k=7)
for k, file in enumerate(sys.argv[1:], 1):
    lo.cross_validate(fit, plan, part=(k, 2), checkpoint=file)
"""


def test_parts_of_another_process(tmp_path):
    """What merges has neither data nor fit."""
    files = [str(tmp_path / f"{k}.ckpt") for k in (1, 2)]
    subprocess.run([sys.executable, "-c", PARTS, *files], check=True)
    space = {}
    exec(PARTS.rpartition("for")[0], space)
    assert_same(lo.merge(files), lo.cross_validate(space["fit"], space["plan"]))


def test_parts_by_workers(tmp_path):
    fit, plan = lo.fit(MODELS["logistic"]()), lo.random_subsets(fraction=0.2, num_folds=30)
    whole = lo.cross_validate(fit, plan)
    with joblib.parallel_config("threading", n_jobs=2):
        assert_same(lo.merge(part_files(tmp_path, fit, plan, 2)), whole)


def test_a_damaged_part_is_named(tmp_path):
    fit, plan = lo.fit(MODELS["logistic"]()), lo.kfold(k=7)
    a, b = part_files(tmp_path, fit, plan, 2)
    with sqlite3.connect(b) as base:
        base.execute("UPDATE steps SET digest = 'other' WHERE number = 0")
    base.close()
    with pytest.raises(ValueError, match=r"1\.ckpt .*step 0 is not what was written"):
        lo.merge([a, b])
