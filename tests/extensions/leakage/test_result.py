"""Scores in the leakage estimator: sign, bounds, errors, intervals.

When it stops, refuses, goes on, is compared.
"""

import pickle

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, make_scorer, mean_squared_error, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

import leaveout as lo
from leaveout._runtime import parallel as _workers
from leaveout.extensions.leakage import _run
from leaveout.extensions.leakage._hosts import make_learner, prepare
from leaveout.extensions.leakage._injection import Injection, make_folds, plan_injection, unshown
from leaveout.extensions.leakage._pool import PooledSystem
from leaveout.extensions.leakage._scoring import predict_for_score, resolve_score
from leaveout.extensions.leakage._solve import Shape
from leaveout.extensions.leakage._spread import left_out, units
from leaveout.extensions.leakage._variance import InfluenceSpread, TrainingInfluence
from leaveout.leakage import RecordLeakage, SplitLeakage, leakage_corrected

QUIET = pytest.mark.filterwarnings("ignore:leakage_corrected:UserWarning")
SMALL = lo.leakage.Injection(num_boot=12, num_levels=6)


def clusters(seed=0, number=16, size=12):
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(number), size)
    X = 2 * rng.normal(size=(number, 2))[label] + 0.5 * rng.normal(size=(len(label), 2))
    return (
        X,
        X @ [1.0, -1.0] + rng.normal(size=number)[label] + 0.2 * rng.normal(size=len(label)),
        label,
    )


X, Y, LABEL = clusters()
CLASS = (np.median(Y) < Y) * 1
NOISY = np.random.default_rng(3).permutation(len(CLASS))[:30]
CLASS[NOISY] = 1 - CLASS[NOISY]
LEAK = RecordLeakage(0.005, 0.05)
COMMON = {"groups": LABEL, "leakage": LEAK, "injection": SMALL}


@pytest.mark.parametrize(
    "model, y, scoring, loss, offset",
    [
        (KNeighborsClassifier(3), CLASS, "accuracy", "zero_one", 1.0),
        (LogisticRegression(), CLASS, "neg_brier_score", "brier", 0.0),
        (KNeighborsRegressor(3), Y, "neg_mean_absolute_error", "absolute", 0.0),
        (Ridge(), Y, make_scorer(mean_squared_error, greater_is_better=False), "mse", 0.0),
    ],
)
def test_a_score_is_its_loss_turned_over(model, y, scoring, loss, offset):
    score = leakage_corrected(model, X, y, scoring=scoring, **COMMON)
    cost = leakage_corrected(model, X, y, loss=loss, **COMMON)
    unit = 0.5 if loss == "brier" else 1.0  # ours of two classes counts both
    assert score.naive == pytest.approx(offset - unit * cost.naive)
    np.testing.assert_allclose(score.solved.values, offset - unit * cost.solved.values, atol=1e-9)
    assert np.all(np.diff(score.solved.values) >= -1e-12) and score.correction == pytest.approx(
        -unit * cost.correction
    )
    for name in ("se_data", "se_mc"):
        assert getattr(score, name) == pytest.approx(unit * getattr(cost, name), rel=1e-6)
    assert score.slope_test.fall == pytest.approx(unit * cost.slope_test.fall)
    told = score.interval(), cost.interval()
    assert told[0].low == pytest.approx(offset - unit * told[1].high)
    assert "at most" in str(score) and "score" in str(score) and "at least" in str(cost)


def area(y, p):
    return 1 - roc_auc_score(y, p)


def test_the_area_rises_with_leakage_and_has_an_error():
    arguments = {"groups": LABEL, "leakage": RecordLeakage(0.02), "injection": SMALL, "cv": 2}
    score = leakage_corrected(LogisticRegression(), X, CLASS, scoring="roc_auc", **arguments)
    cost = leakage_corrected(
        LogisticRegression(), X, CLASS, loss=area, response="predict_proba", **arguments
    )
    np.testing.assert_allclose(score.solved.values, 1 - cost.solved.values, atol=1e-9)
    assert (
        score.se_data > 0
        and np.isnan(cost.se_data)
        and np.all(np.diff(score.solved.values) >= -1e-12)
    )
    assert score.influence @ np.ones(len(X)) == pytest.approx(0, abs=1e-9)
    assert (
        np.isnan(cost.interval().low)
        and cost.influence is None
        and "takes no sample_weight" in str(cost._over)
    )


@QUIET
@pytest.mark.parametrize("scoring", ["roc_auc", "average_precision", "f1", "balanced_accuracy"])
def test_other_clusters_records_among_the_tested_are_taken_out(scoring):
    """T's classes are told by x, V's by −x, and T̂ is clean.

    The score on V is known, that on V̂ lies between the two.
    """
    rng, found, naive, truth = np.random.default_rng(1), [], [], []
    for seed in range(4):
        n, q = 800, 0.25
        x, y = rng.normal(size=(2 * n, 1)), np.zeros(2 * n)
        true = np.repeat([0, 1], n)
        true[n : n + round(q * n)] = 0
        y = (
            rng.random(2 * n) < 1 / (1 + np.exp(-3 * x[:, 0] * np.where(true == 0, 1.0, -0.2)))
        ) * 1
        cv = [(np.arange(n), np.arange(n, 2 * n))]
        injection = lo.leakage.Injection(num_boot=6, num_levels=4, train_size=300, top=20)
        result = leakage_corrected(
            LogisticRegression(), x, y, groups=np.repeat([0, 1], n), leakage=RecordLeakage(0.0, q), scoring=scoring,
            injection=injection, cv=cv, rng=seed,
        )  # fmt: skip
        own = np.flatnonzero(true == 1)
        model = LogisticRegression().fit(x[:n], y[:n])
        found.append(result.solved.estimate)
        naive.append(result.naive)
        score = resolve_score(scoring, model, y)
        truth.append(
            score(y[own] * 1.0, predict_for_score(model, x[own], np.array([0, 1]), score.needs))
        )
    error = np.std(np.subtract(found, truth), ddof=1) / 2 + 0.01
    assert (
        abs(np.mean(found) - np.mean(truth))
        < 3 * error
        < abs(np.mean(naive) - np.mean(truth)) * 1.5
    )


def test_what_is_more_is_better_is_never_taken_for_a_loss():
    with pytest.raises(
        ValueError,
        match=r"loss=accuracy_score: more of it is better: 1 for perfect predictions.*scoring=",
    ):
        leakage_corrected(LogisticRegression(), X, CLASS, loss=accuracy_score, **COMMON)
    with pytest.raises(TypeError, match="scikit-learn's scorers go by scoring="):
        leakage_corrected(
            LogisticRegression(), X, CLASS, loss=make_scorer(accuracy_score), **COMMON
        )
    with pytest.raises(ValueError, match="give loss= or scoring=, not both"):
        leakage_corrected(
            LogisticRegression(), X, CLASS, loss="zero_one", scoring="accuracy", **COMMON
        )
    with pytest.raises(ValueError, match="d2_absolute_error_score: T̂'s records in V̂"):
        leakage_corrected(Ridge(), X, Y, scoring="d2_absolute_error_score", **COMMON)
    with pytest.raises(ValueError, match="sensitivity: roc_auc is no mean over records"):
        leakage_corrected(
            LogisticRegression(), X, CLASS, scoring="roc_auc", cv=2, **COMMON
        ).sensitivity()


def test_influence_is_what_a_weight_does_to_the_naive_value():
    """Of a record that is tested twice the naive mean changes by its influence, to first order in
    1/n.
    """
    result = leakage_corrected(
        Ridge(), X, Y, loss="mse", **{**COMMON, "leakage": RecordLeakage(0.02)}
    )
    n, influence = len(Y), result.naive_influence
    losses = np.zeros(n)
    for part, run in zip(result.plan, result.runs, strict=True):
        losses[part.fold.test] = run.record[0] / run.times[0]
    np.testing.assert_allclose(influence, (losses - losses.mean()) / n, atol=1e-12)


def test_what_training_adds_is_what_leaving_pairs_of_folds_out_does():
    folds, _ = make_folds("test", X, Y, LABEL, 3, 0)
    plan = plan_injection(folds, Injection(), 0)
    task = prepare("test", Ridge(), X, Y, "mse", "auto")
    learner = make_learner(Ridge(), task, None)
    moved = left_out(_run.FitWork(plan, learner, task.measure, task.codes))
    off = lambda rows, test: (
        np.sum((Y[test] - Ridge().fit(X[rows], Y[rows]).predict(X[test])) ** 2) / len(Y)
    )
    for i, j in ((0, 1), (2, 1)):
        less = np.setdiff1d(folds[i].train, folds[j].test)
        assert moved[i, j] == pytest.approx(
            off(less, folds[i].test) - off(folds[i].train, folds[i].test)
        )
    # no partition
    assert left_out(_run.FitWork(plan[:2], learner, task.measure, task.codes)) is None


def test_the_error_of_a_mean_is_that_of_its_clusters():
    value, unit = np.random.default_rng(0).normal(size=12), np.repeat(np.arange(4), 3)
    tested = (value - value.mean()) / 12
    sums = np.bincount(unit, tested)
    assert InfluenceSpread(tested, unit).error == pytest.approx(np.sqrt(4 / 3 * np.sum(sums**2)))
    several = np.array([unit, np.arange(12)])
    assert InfluenceSpread(tested, several).error ** 2 == pytest.approx(
        (
            InfluenceSpread(tested, unit).error ** 2
            + InfluenceSpread(tested, np.arange(12)).error ** 2
        )
        / 2
    )
    assert InfluenceSpread(tested, unit).freedom == pytest.approx(3) and InfluenceSpread(
        tested, np.arange(12)
    ).freedom == pytest.approx(11)
    assert InfluenceSpread(tested, np.repeat([0, 1, 2, 3], [9, 1, 1, 1])).freedom < 3
    change = np.array([0.1, -0.2, 0.05, 0.05])
    both = InfluenceSpread(tested, unit, TrainingInfluence(change, unit))
    assert (
        both.error**2 == pytest.approx(4 / 3 * np.sum((sums + change) ** 2))
        and both.minus(both).error == 0
    )
    moved = np.array([[np.nan, 0.3, 0.1], [0.2, np.nan, 0.0], [0.0, 0.1, np.nan]])
    less = moved - 0.7 / 6
    pairs = 2 * (less[0, 1] * less[1, 0] + less[0, 2] * less[2, 0] + less[1, 2] * less[2, 1])
    crossed = InfluenceSpread(tested, unit, fold_effects=moved)
    assert crossed.error**2 == pytest.approx(4 / 3 * np.sum(sums**2) + max(pairs, 0)) and pairs > 0
    assert (
        crossed.minus(crossed).error == 0
        and crossed.minus(InfluenceSpread(tested, unit, fold_effects=moved / 2)).error > 0
    )


def test_draws_stop_when_they_buy_little():
    wide = leakage_corrected(Ridge(), X, Y, groups=LABEL, leakage=LEAK, loss="mse")
    draws = wide.runs[0].test.shape[1]
    assert (
        20 <= draws <= 200
        and draws % 10 == 0
        and all(run.test.shape[1] == draws for run in wide.runs)
    )
    noise = np.sqrt(wide.solved.weights @ wide.pooled.noise @ wide.solved.weights)
    assert draws == 200 or noise <= wide.se_data / 3
    loose = leakage_corrected(
        Ridge(),
        X,
        Y,
        groups=LABEL,
        leakage=LEAK,
        loss="mse",
        injection=lo.leakage.Injection(tolerance=5.0),
    )
    assert loose.runs[0].test.shape[1] == 20
    tight = leakage_corrected(
        Ridge(),
        X,
        Y,
        groups=LABEL,
        leakage=LEAK,
        loss="mse",
        injection=lo.leakage.Injection(tolerance=1e-4),
    )
    assert tight.runs[0].test.shape[1] == 200
    np.testing.assert_array_equal(tight.runs[0].test[:, :draws], wide.runs[0].test)
    with pytest.raises(ValueError, match="tolerance must be a number above 0"):
        lo.leakage.Injection(tolerance=0.0)


def test_a_checkpoint_of_fewer_draws_is_gone_on_from(tmp_path, monkeypatch):
    call = lambda draws, **more: leakage_corrected(
        DecisionTreeRegressor(max_features=1), X, Y, groups=LABEL, leakage=LEAK, loss="mse",
        injection=lo.leakage.Injection(num_boot=draws, num_levels=5), **more,
    )  # fmt: skip
    whole, made, one_piece = call(14), [], _run.one_piece
    call(6, checkpoint=tmp_path / "run")
    monkeypatch.setattr(
        _run, "one_piece", lambda work, piece: made.append(piece) or one_piece(work, piece)
    )
    more = call(14, checkpoint=tmp_path / "run")
    assert len(made) == 8 * 5 and {piece.start for piece in made} == set(range(6, 14))
    np.testing.assert_array_equal(more.pooled.b, whole.pooled.b)
    assert more.table().equals(whole.table())
    made.clear()
    fewer = call(9, checkpoint=tmp_path / "run")
    assert not made
    np.testing.assert_array_equal(fewer.runs[0].test, whole.runs[0].test[:, :9])


def test_other_processes_make_the_same_draws(monkeypatch):
    monkeypatch.setattr(_workers, "STARTING", 0.0)
    call = lambda jobs: leakage_corrected(
        DecisionTreeRegressor(max_features=1), X, Y, groups=LABEL, leakage=LEAK, loss="mse", n_jobs=jobs,
        injection=lo.leakage.Injection(num_levels=5, tolerance=1.0),
    )  # fmt: skip
    import joblib

    with joblib.parallel_config("threading"):
        two = call(2)
    assert two.table().equals(call(1).table())


def test_results_are_pickled():
    for result in (
        leakage_corrected(LogisticRegression(), X, CLASS, scoring="f1", cv=2, **COMMON),
        leakage_corrected(Ridge(), X, Y, loss=lambda y, mu: np.abs(y - mu), **COMMON),
    ):
        back = pickle.loads(pickle.dumps(result))
        assert back.table().equals(result.table()) and str(back) == str(result)


def test_results_are_compared_over_the_same_clusters():
    ridge, tree = (
        leakage_corrected(model, X, Y, loss="mse", **COMMON)
        for model in (Ridge(), KNeighborsRegressor(2))
    )
    table = lo.compare({"neighbours": tree, "ridge": ridge})
    assert list(table.index) == ["ridge", "neighbours"] and table["difference"].iloc[0] == 0
    row = table.loc["neighbours"]
    assert row["difference"] == pytest.approx(tree.estimate - ridge.estimate)
    paired = tree.spread.minus(ridge.spread)
    assert (
        row["se_difference"] == pytest.approx(paired.error) and 0 < row["approximation_error"] < 1
    )
    assert 0.5 < row["p_worse"] <= 1 and row["se"] == pytest.approx(tree.se_data)
    scores = [
        leakage_corrected(LogisticRegression(C=c), X, CLASS, scoring="roc_auc", cv=2, **COMMON)
        for c in (1e-4, 1.0)
    ]
    assert lo.compare({"a": scores[0], "b": scores[1]})["mean"].is_monotonic_decreasing
    same = lo.compare({"a": ridge, "b": ridge})
    assert same["difference"].abs().max() == 0
    with pytest.raises(ValueError, match="another score"):
        lo.compare({"a": ridge, "b": leakage_corrected(Ridge(), X, Y, loss="absolute", **COMMON)})
    with pytest.raises(ValueError, match="another folds"):
        lo.compare({"a": ridge, "b": leakage_corrected(Ridge(), X, Y, loss="mse", cv=3, **COMMON)})
    estimate = lo.cross_validate(lo.fit(lo.GLM(X, Y, "squared")), lo.kfold(k=5))
    with pytest.raises(TypeError, match=r"results of one kind.*'b': Estimate"):
        lo.compare({"a": ridge, "b": estimate})
    with pytest.raises(ValueError, match="two or more results"):
        lo.compare({"a": ridge})
    with pytest.raises(TypeError, match="pages are of estimates"):
        table.report("page.html")


class Halves:
    """A leakage that is drawn: a share of nothing or of twice as much."""

    mechanism, knows_pairs = "record", True
    left = right = np.zeros(0, np.int64)
    probability = np.zeros(0)

    def shares(self, folds):
        return RecordLeakage(0.005).shares(folds)

    def shares_drawn(self, folds):
        return [RecordLeakage(p).shares(folds) for p in (0.0, 0.01)]

    def mates(self, train, test):
        return np.zeros(len(test))


def test_the_error_of_the_leakage_is_in_the_interval():
    known = leakage_corrected(
        KNeighborsRegressor(3), X, Y, loss="mse", **{**COMMON, "leakage": RecordLeakage(0.005)}
    )
    drawn = leakage_corrected(
        KNeighborsRegressor(3), X, Y, loss="mse", **{**COMMON, "leakage": Halves()}
    )
    ends = [pool.estimate for pool in (known.sensitivity([0.0, 0.01])).itertuples()]
    assert known.se_p == 0 and drawn.se_p == pytest.approx(np.std(ends, ddof=1), rel=1e-6)
    wide = drawn.interval()
    total = np.sqrt(drawn.se_data**2 + drawn.se_mc**2 + drawn.se_p**2 + drawn.se_extrapolation**2)
    # 16 clusters of one size
    assert (wide.high - wide.low) / 2 == pytest.approx(total * stats.t.ppf(0.975, 15), rel=1e-6)
    assert wide.high - wide.low > known.interval().high - known.interval().low
    assert (
        "(leakage)" in str(drawn)
        and drawn.correction_interval().low < drawn.correction < drawn.correction_interval().high
    )
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        drawn.interval(95)


def test_the_interval_of_a_correction_has_training_and_continuation_in_it():
    """The clusters as tested alone would be too narrow.

    A curve whose continuations part is known that much less.
    """
    result = leakage_corrected(
        KNeighborsRegressor(60), X, Y, loss="mse", **{**COMMON, "leakage": RecordLeakage(0.055)}
    )
    told = np.array([result.extrapolants[name] for name in ("trend filter", "linear", "quadratic")])
    assert (
        result.se_extrapolation == pytest.approx(told.max() - told.min(), rel=1e-12)
        and result.pooled.unseen < 1e-3
    )
    assert (
        "(extrapolation)" in str(result)
        and result.table().value["se_extrapolation"] == result.se_extrapolation
    )
    # clusters of one size, as tested
    over = lambda influence: np.sqrt(np.sum(np.bincount(LABEL, influence) ** 2) * 16 / 15)
    share = result.naive_spread.error / over(result.naive_influence)
    assert share > 1.01
    student = stats.t.ppf(0.975, 15)
    errors = np.hypot(result.se_data, result.se_mc)
    interval, change = result.interval(), result.correction_interval()
    low, high = (
        (result.estimate - interval.low) / student,
        (interval.high - result.estimate) / student,
    )
    assert low == pytest.approx(np.hypot(errors, result.se_extrapolation), rel=1e-6)
    assert high == pytest.approx(
        max(low, errors + (result.ceiling - result.estimate) / student), rel=1e-6
    )
    rows = np.concatenate([part.fold.test for part in result.plan])
    fall = np.concatenate([np.nan_to_num(run.records[0] - run.records[-1]) for run in result.runs])
    falls = np.abs(np.bincount(LABEL[rows], fall))
    # of every cluster, as all have one size; which of them leak is a Poisson number
    mates = result.present_mates
    known = np.linalg.norm([
        share * over(result.influence - result.naive_influence), result.se_extrapolation,
        result.correction * np.linalg.norm(falls) / falls.sum() / np.sqrt(mates),
    ])  # fmt: skip
    assert known < (result.correction - change.low) / student < np.hypot(known, 2 * result.se_mc)
    seen = leakage_corrected(
        KNeighborsRegressor(60), X, Y, loss="mse", **{**COMMON, "leakage": RecordLeakage(1e-5)}
    )
    assert seen.pooled.unseen > 0.1 and seen.se_extrapolation == 0


@pytest.mark.parametrize("rising", [False, True])
@pytest.mark.parametrize("mates, clusters", [(60, 10_000), (60, 20), (8, 10_000), (0.4, 20)])
def test_the_ceiling_is_above_what_first_mates_do_unseen(rising, mates, clusters):
    """A leak of 7.5 %: with 60 mates in all 4.5 are there without injection, and the first of them
    does most of the harm.
    """
    n = 400
    grid, levels = np.arange(n + 1) / n, np.array([0, 3, 8, 16, 32, 64, 120])
    A = np.stack([stats.binom.pmf(np.arange(n + 1) - j, n - j, 0.075) for j in levels])
    sign = -1.0 if rising else 1.0
    losses = sign * (1 + A @ (0.8 * np.exp(-mates * grid) + 0.2 * np.exp(-0.2 * mates * grid)))
    system = PooledSystem(grid, A, losses, 1e-8 * np.eye(7), [A], np.ones(1), [], 3, 1e-14)
    shape = Shape(rising, None, None)
    no_leak, smooth, ceiling = (
        2.0,
        sign * system.solve(shape).estimate,
        sign * system.highest(shape, mates, clusters),
    )
    assert ceiling >= no_leak - 0.01
    if clusters == 20 and mates > 1:
        assert np.isinf(ceiling)  # of 20 clusters, 0.2 have no mate in training
    elif mates > 1:
        assert ceiling < no_leak + 0.6
    else:
        assert ceiling < no_leak + 0.1
    assert (smooth < 1.6) == (mates == 60)
    tight = Shape(rising, *((-1.5, None) if rising else (None, 1.5)))
    assert system.highest(tight, mates, clusters) == sign * 1.5
    flat = PooledSystem(grid, A, np.ones(7), np.zeros((7, 7)), [A], np.ones(1), [], 3, 1e-14)
    assert flat.highest(shape, mates, clusters) == 1


def test_copies_across_a_split_are_refused():
    """Near-duplicates on both sides, each record its own cluster.

    Nothing that is injected is like what leaks.
    """
    rng = np.random.default_rng(0)
    train = rng.normal(size=(200, 3))
    test = np.r_[train[:60] + 1e-3 * rng.normal(size=(60, 3)), rng.normal(size=(40, 3))]
    y = (
        np.r_[train[:, 0], test[:, 0]]
        + np.r_[(own := rng.normal(size=200)), own[:60], rng.normal(size=40)]
    )
    call = lambda leakage, groups: leakage_corrected(
        KNeighborsRegressor(1), np.r_[train, test], y, groups=groups, leakage=leakage, loss="mse", injection=SMALL,
        cv=[(np.arange(200), np.arange(200, 300))],
    )  # fmt: skip
    alone = call(RecordLeakage(0.3), np.arange(300))
    assert (
        np.isnan(alone.estimate)
        and alone.unshown == 1
        and "100% of what may leak falls on tested records" in alone.verdict
    )
    assert "agree" not in str(alone) and np.isnan(alone.interval().low)
    with pytest.raises(ValueError, match="compare: a result cannot be corrected"):
        lo.compare({"a": alone, "b": alone})


def test_what_injection_can_show():
    groups = np.repeat(np.arange(12), [4] * 10 + [1, 1])
    folds, _ = make_folds(
        "test", np.zeros((42, 1)), np.zeros(42), groups, [(np.arange(20), np.arange(20, 42))], 0
    )
    assert unshown(folds, RecordLeakage(0.1)) == pytest.approx(2 / 22)

    class Known(Halves):
        left, right = np.array([20, 24]), np.array([21, 0])
        probability = np.array([0.9, 0.9])

        def mates(self, train, test):
            return (np.asarray(test) == 24) * 0.9 + (np.asarray(test) == 20) * 0.3

    # 24 has a cluster, but its mate is on the other side
    assert unshown(folds, Known()) == pytest.approx(0.9 / 1.2)


def test_singletons_have_no_half_to_inject():
    X2, Y2, label = clusters(1, 30)
    few = np.r_[label[:-3], 100, 101, 102]
    result = leakage_corrected(
        KNeighborsRegressor(3),
        X2,
        Y2,
        groups=few,
        leakage=SplitLeakage(0.1),
        loss="mse",
        injection=SMALL,
    )
    drawn = result.plan[0].draw(0, 5)
    alone = np.isin(few[result.plan[0].fold.test], [100, 101, 102])
    assert drawn.score_mask[:, :, alone].all() and 0 < result.unshown < 0.02 and not result.refusal
    assert any("falls on tested records with no mate left" in flag for flag in result.flags)


def test_a_table_by_many_clusters_is_there_at_once():
    import time

    rng, number = np.random.default_rng(0), 4000
    label = np.repeat(np.arange(number), 2)
    X = rng.normal(size=(2 * number, 2))
    result = leakage_corrected(
        LinearRegression(), X, X[:, 0] + rng.normal(size=2 * number), groups=label, leakage=LEAK, loss="mse",
        injection=lo.leakage.Injection(num_boot=20),
    )  # fmt: skip
    began = time.process_time()
    table = result.per_cluster
    assert len(table) == number and time.process_time() - began < 1.0
    weights = table["records"] * table["estimate"].notna()
    assert np.average(table["naive"], weights=table["records"]) == pytest.approx(
        result.naive, rel=0.05
    )
    assert np.average(table["estimate"].fillna(0), weights=weights) == pytest.approx(
        result.estimate, rel=0.3
    )
    assert units(result.plan)[1]
