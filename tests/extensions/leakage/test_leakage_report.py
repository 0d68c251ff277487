"""The report: against enumeration and designs whose truth is known, refused where it must be, and
on wrong input.
"""

import functools
import itertools
import pickle
import re
import time

import matplotlib

matplotlib.use("agg")
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeRegressor

import leaveout as lo
from leaveout._runtime import parallel as _workers
from leaveout.extensions.leakage import (
    _blocks,
    _leakage_report,
    _page,
    _splits,
    _study,
    _variance as _errors,
)
from leaveout.extensions.leakage._fits import LeastSquares
from leaveout.leakage import (
    Injection,
    Linkage,
    RecordLeakage,
    largest_leakage_share,
    leakage_corrected,
    leakage_report,
    leakage_slope_test,
)

QUIET = pytest.mark.filterwarnings("ignore:leakage_corrected:UserWarning")
QUICK = Injection(num_boot=4, num_levels=4)
FITTED = ("purge", "coarser", "both", "imputed", "unmated")


def copies(seed=0, size=300, copied=80, noise=0.01):
    """A split of which some tested rows are copied into training.

    X says nothing of y, so that one neighbour's loss is 2.
    """
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(2 * size, 5)), rng.normal(size=2 * size)
    X[size : size + copied] = X[:copied] + noise * rng.normal(size=(copied, 5))
    y[size : size + copied] = y[:copied]
    pairs = pd.DataFrame(
        {"left": np.arange(copied), "right": size + np.arange(copied), "match_probability": 1.0}
    )
    return X, y, [(np.arange(size), np.arange(size, 2 * size))], pairs


@functools.lru_cache
def linked(seed=0, number=24, size=8, doubtful=20):
    """Clusters of which some records are filed alone, each with two candidates for its cluster, of
    probability .6 and .3.
    """
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(number), size)
    lost = rng.choice(len(person), doubtful, replace=False)
    filed = person.copy()
    filed[lost] = number + np.arange(doubtful)
    rows = []
    for c in range(number):
        rows += [(a, b, 0.99) for a, b in itertools.combinations(np.flatnonzero(filed == c), 2)]
    for record in lost:
        other = (person[record] + rng.integers(1, number)) % number
        rows += [(record, mate, 0.45) for mate in np.flatnonzero(filed == person[record])]
        rows += [(record, mate, 0.2) for mate in np.flatnonzero(filed == other)]
    X = 2 * rng.normal(size=(number, 2))[person] + 0.3 * rng.normal(size=(len(person), 2))
    y = rng.normal(size=number)[person] + 0.2 * rng.normal(size=len(person))
    return (
        X,
        y,
        filed,
        Linkage.from_pairs(
            pd.DataFrame(rows, columns=["left", "right", "match_probability"]), len(y)
        ),
    )


def audit(model, X, y, cv, pairs, **more):
    linkage = Linkage.from_duplicates(pairs, len(y))
    return leakage_report(
        model, X, y, linkage=linkage, cv=cv, scoring="mse", injection=QUICK, **more
    )


def test_one_neighbour_without_its_copies():
    """Trained without the copies the loss of a copied row is that of its second neighbour.

    The others keep theirs.
    """
    copied = 30
    X, y, cv, pairs = copies(copied=copied)
    report = audit(KNeighborsRegressor(1), X, y, cv, pairs)
    train, test = cv[0]
    fit = lambda rows: (
        (KNeighborsRegressor(1).fit(X[rows], y[rows]).predict(X[test]) - y[test]) ** 2
    )
    naive, clean = fit(train), fit(train[copied:])
    assert report.answers["naive"].score == pytest.approx(naive.mean())
    assert naive[:copied].max() < 1e-12 and report.answers["naive"].exposed == pytest.approx(0.1)
    # the control trains on the copies, so these keep their loss of zero: what is left is the loss
    # of copied rows
    assert report.answers["purge"].correction == pytest.approx(clean[:copied].sum() / 300)
    assert report.answers["unmated"].score == pytest.approx(naive[copied:].mean())
    assert (
        report.recommended == "purge" and report.table.low["purge"] < 2 < report.table.high["purge"]
    )
    np.testing.assert_allclose(report.rows["carries"].sum(), report.answers["purge"].correction)
    assert (
        sorted(report.rows.index) == list(range(300, 300 + copied))
        and (report.rows["mate"] == report.rows.index - 300).all()
    )
    for name in ("coarser", "both", "imputed", "extrapolated"):
        assert report.table.refusal[name]
    assert "inject" in report.table.refusal["extrapolated"]


@pytest.mark.parametrize("seed", range(8))
def test_duplicates_are_corrected_or_refused(seed):
    """The true loss is 2. Where all copies are listed it is in the interval.

    Where a third is not, no answer is given.
    """
    X, y, cv, pairs = copies(seed)
    whole = audit(KNeighborsRegressor(1), X, y, cv, pairs)
    wide = 2 * (whole.table.high["purge"] - whole.table.score["purge"])
    assert (
        whole.recommended == "purge"
        and abs(whole.table.score["purge"] - 2) < wide
        and whole.table.score["naive"] < 1.8
    )
    partly = audit(KNeighborsRegressor(1), X, y, cv, pairs.iloc[: 50 + seed])
    assert partly.recommended is None and "not listed" in partly.verdict
    row, neighbour = partly.verdict.split("such as ")[1].split(",")[0].split(" with ")
    assert int(row) - 300 == int(neighbour) >= 50 + seed  # a pair that is a copy
    if seed == 0:
        sure = audit(KNeighborsRegressor(1), X, y, cv, pairs.iloc[:50], listed=1.0)
        assert sure.recommended == "purge" and not sure.doubt


@pytest.mark.parametrize("kind", ["few", "dense", "scores", "wide"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_near_by_chance_are_no_unlisted_copies(kind, seed):
    """All copies are listed.

    Others are near one another where rows are dense, of few values, or copies differ much.
    """
    rng, size = np.random.default_rng(seed), 200
    X, y = rng.normal(size=(2 * size, 3)), rng.normal(size=2 * size)
    copied, noise = (6, 0.08) if kind == "few" else (40, 0.1)
    if kind == "dense":
        X[np.r_[copied:size, size + copied : 2 * size]] *= 0.15
        X[:copied] *= 3
    elif kind == "scores":
        X, noise = np.clip(np.floor(1 + rng.gamma(1, 0.7, (2 * size, 5))), 1, 5), 0.0
    elif kind == "wide":
        noise = 0.3
    X[size : size + copied] = X[:copied] + noise * rng.normal(size=(copied, X.shape[1]))
    pairs = pd.DataFrame(
        {"left": np.arange(copied), "right": size + np.arange(copied), "match_probability": 0.95}
    )
    report = audit(
        KNeighborsRegressor(1), X, y, [(np.arange(size), np.arange(size, 2 * size))], pairs
    )
    assert not report.doubt and report.recommended is not None


def test_what_learns_nothing_from_mates_is_not_corrected():
    X, y, filed, linkage = linked()
    report = leakage_report(
        DummyRegressor(strategy="constant", constant=0.0),
        X,
        y,
        linkage=linkage,
        groups=filed,
        scoring="mse",
        answers=FITTED,
    )
    for name in ("purge", "coarser", "both"):
        assert report.answers[name].correction == pytest.approx(0, abs=1e-12)
        assert report.answers[name].score == pytest.approx(np.mean(y**2))


def test_rows_of_a_cluster_share_a_fold_and_the_others_stay():
    rng = np.random.default_rng(0)
    fold, clusters = rng.integers(0, 4, 200), rng.integers(0, 60, 200)
    moved = _splits.nearest_folds(fold, clusters)
    assert all(len(np.unique(moved[clusters == c])) == 1 for c in range(60))
    assert np.bincount(moved).max() <= _splits.MAX_FOLD_RATIO * 50
    whole = np.repeat(np.arange(40), 5)
    # nothing must change
    np.testing.assert_array_equal(_splits.nearest_folds(whole % 4, whole), whole % 4)
    # of every cluster one row is cut off: it stays
    pieces = np.where(np.arange(200) % 5 == 0, 40 + whole, whole)
    np.testing.assert_array_equal(_splits.nearest_folds(whole % 4, pieces), whole % 4)
    assert _splits.nearest_folds(fold, np.minimum(clusters, 5)) is None  # one of 180 rows


@pytest.mark.parametrize("most", [6, 12, 1000])
def test_joins_are_the_likeliest_first_and_none_too_large(most):
    rng = np.random.default_rng(1)
    filed = rng.permutation(np.repeat(np.arange(50), 2))
    left, right = (rng.integers(0, 100, 120) for _ in range(2))
    p = rng.random(120)
    found = _splits.join_capped(filed, left, right, p, most)
    sizes = {frozenset(np.flatnonzero(filed == c)) for c in range(50)}
    for k in np.argsort(-p):  # by hand
        a, b = (next(s for s in sizes if row in s) for row in (left[k], right[k]))
        if a != b and len(a) + len(b) <= most:
            sizes = sizes - {a, b} | {a | b}
    assert {frozenset(np.flatnonzero(found == c)) for c in np.unique(found)} == sizes
    if most == 1000:
        np.testing.assert_array_equal(
            found, _blocks.components(50, filed[left], filed[right])[filed]
        )


@pytest.mark.parametrize("seed", range(5))
def test_controls_drop_as_many_others_from_clusters_of_like_size(seed):
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(60), np.r_[np.full(40, 4), np.full(20, 16)])
    train = np.sort(rng.choice(len(clusters), 400, replace=False))
    drop = np.isin(clusters, [41, 42, 45]) & (rng.random(len(clusters)) < 0.5)
    others = _splits.like_size(drop, train, clusters, np.random.default_rng(seed))
    inside = np.isin(np.arange(len(clusters)), train)
    assert (
        others.sum() == (drop & inside).sum() and not (others & drop).any() and inside[others].all()
    )
    assert (clusters[others] >= 40).mean() > 0.8 and len(np.unique(clusters[others])) <= 6
    # rows of every cluster are dropped: the others of these clusters are left
    half = rng.random(len(clusters)) < 0.45
    spare = _splits.like_size(half, train, clusters, np.random.default_rng(seed))
    assert spare.sum() == (half & inside).sum() and not (spare & half).any() and inside[spare].all()


def test_a_variance_over_drawn_clusters_is_a_sum_over_pairs():
    rng = np.random.default_rng(2)
    influence, partitions = rng.normal(size=30), rng.integers(0, 12, (7, 30))
    found = _errors.over_units(influence, partitions)
    share = np.array([np.bincount(own)[own] for own in partitions]) / 30
    together = partitions[:, :, None] == partitions[:, None, :]
    by_hand = np.mean(
        [
            influence @ (same / (1 - h)[:, None]) @ influence
            for same, h in zip(together, share, strict=True)
        ]
    )
    assert found.value == pytest.approx(by_hand)
    single = _errors.over_units(influence, np.arange(30)[None])
    assert single.value == pytest.approx(
        np.sum(influence**2) * 30 / 29
    ) and single.freedom == pytest.approx(29)


def test_the_mean_of_clusters_has_the_interval_of_students_t():
    """A constant prediction.

    The score is a mean, its interval Student's over clusters of equal size, as trained on nothing.
    """
    rng = np.random.default_rng(3)
    person = np.repeat(np.arange(30), 5)
    y = rng.normal(size=30)[person] + 0.01 * rng.normal(size=150)
    pairs = pd.DataFrame(
        [
            (a, b, 1.0)
            for c in range(30)
            for a, b in itertools.combinations(range(5 * c, 5 * c + 5), 2)
        ]
    )
    model = DummyRegressor(strategy="constant", constant=0.0)
    report = leakage_report(
        model, np.zeros((150, 1)), y, linkage=Linkage.from_pairs(pairs, 150), scoring="mse"
    )
    means = (y**2).reshape(30, 5).mean(1)
    row = report.table.loc["naive"]
    assert row.score == pytest.approx(means.mean()) and row.se_data == pytest.approx(
        means.std(ddof=1) / 30**0.5
    )
    # records differ a little
    assert row.high - row.score == pytest.approx(stats.t.ppf(0.975, 29) * row.se_data, rel=0.01)
    assert report.recommended == "naive" and "nothing to correct" in report.verdict


def test_what_training_adds_is_a_sum_over_pairs_of_folds():
    """By a loop of scikit-learn's fits without each pair of four folds."""
    X, y, filed, linkage = linked(3)
    folds = [np.flatnonzero(filed % 4 == k) for k in range(4)]
    cv = [(np.setdiff1d(np.arange(len(y)), rows), rows) for rows in folds]
    linkage = Linkage.from_pairs([(0, 1, 0.0)], len(y))
    report = leakage_report(
        LinearRegression(), X, y, linkage=linkage, groups=filed, cv=cv, scoring="mse", answers=()
    )

    def lost(k, without):
        train = np.setdiff1d(np.arange(len(y)), np.concatenate([folds[j] for j in {k, without}]))
        return np.sum(
            (LinearRegression().fit(X[train], y[train]).predict(X[folds[k]]) - y[folds[k]]) ** 2
        ) / len(y)

    assert report.answers["naive"].score == pytest.approx(sum(lost(k, k) for k in range(4)))
    moved = {(i, j): lost(i, j) - lost(i, i) for i, j in itertools.permutations(range(4), 2)}
    mean = np.mean(list(moved.values()))
    by_hand = sum((moved[i, j] - mean) * (moved[j, i] - mean) for i, j in moved)
    assert by_hand > 0 and _errors.as_trained(
        report.answers["naive"].fold_effects
    ) == pytest.approx(by_hand)
    across = np.array([[np.nan, 1.0, -2.0], [-3.0, np.nan, 0.0], [4.0, 0.0, np.nan]])
    assert _errors.as_trained(across) == 0.0 and _errors.as_trained(-across.T) == 0.0
    assert _errors.as_trained(np.where(np.eye(4, dtype=bool), np.nan, 0.3)) == pytest.approx(
        0.0, abs=1e-12
    )


def everything(model, seed=0, scoring="neg_mean_squared_error", classes=False, **more):
    X, y, filed, linkage = linked(seed)
    y = (y > 0).astype(int) if classes else y
    arguments = {"linkage": linkage, "groups": filed, "scoring": scoring, "answers": FITTED}
    return leakage_report(model, X, y, **arguments | more)


@functools.cache
def nearest():
    """The report of nearest neighbours, which several tests read."""
    return everything(KNeighborsRegressor(1))


@QUIET
def test_labels_say_which_row_is_which():
    X, y, filed, linkage = linked()
    names = pd.Index([f"r{k}" for k in range(len(y))])
    frame, response = pd.DataFrame(X, names), pd.Series(y, names)
    shuffled = np.random.default_rng(4).permutation(len(y))
    arguments = {"linkage": linkage, "scoring": "mse", "answers": FITTED}
    plain = leakage_report(DecisionTreeRegressor(), X, y, groups=filed, **arguments)
    named = leakage_report(
        DecisionTreeRegressor(),
        frame,
        response.iloc[shuffled],
        groups=pd.Series(filed, names).iloc[shuffled],
        **arguments,
    )
    assert plain.table.drop(columns=["refusal"]).equals(named.table.drop(columns=["refusal"]))
    assert list(named.rows.index) == [f"r{k}" for k in plain.rows.index] and set(
        named.rows["mate"]
    ) <= set(names)


@QUIET
def test_more_is_better_and_ratios_have_intervals():
    report = everything(LogisticRegression(), scoring="roc_auc", classes=True)
    assert report.more_is_better and "more is better" in str(report)
    row = report.table.loc["purge"]
    assert (
        row.low < row.score < row.high and row.correction_low < row.correction < row.correction_high
    )
    flipped = nearest().table
    loss = everything(KNeighborsRegressor(1), scoring="mse").table
    np.testing.assert_allclose(flipped.score.iloc[:4], -loss.score.iloc[:4])
    np.testing.assert_allclose(flipped.correction_low.iloc[1:4], -loss.correction_high.iloc[1:4])


@QUIET
def test_it_is_printed_pickled_and_drawn():
    report = everything(LinearRegression())
    start = time.perf_counter()
    text = str(report)
    assert (
        time.perf_counter() - start < 1
        and "believe" in text
        and report.to_markdown().count("|") > 20
    )
    again = pickle.loads(pickle.dumps(report))
    assert again.table.equals(report.table) and again.verdict == report.verdict
    ax = report.plot()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert (
        sum("*" in label for label in labels) == 1
        and len(labels) == 1 + (report.table.refusal.iloc[1:] == "").sum()
    )


@QUIET
def test_numbers_repeat_whoever_fits_and_after_a_stop(tmp_path, monkeypatch):
    whole = everything(DecisionTreeRegressor(max_features=1))
    # seconds of work that are left, below which other processes are no gain
    monkeypatch.setattr(_workers, "STARTING", 0.0)
    two = everything(DecisionTreeRegressor(max_features=1), n_jobs=2)
    assert whole.table.equals(two.table)
    fitted, most = _study._predict_batch, 60

    def stops(*given):
        nonlocal most
        most -= 1
        if most < 0:
            raise KeyboardInterrupt
        return fitted(*given)

    monkeypatch.setattr(_study, "_predict_batch", stops)
    file = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt, match="is done") as stop:
        everything(DecisionTreeRegressor(max_features=1), checkpoint=file)
    partial = stop.value.partial
    assert partial.table.score["naive"] == whole.table.score["naive"]
    assert "stopped" in partial.table.refusal["unmated"]
    most = 10**6
    resumed = everything(DecisionTreeRegressor(max_features=1), checkpoint=file)
    assert resumed.table.equals(whole.table)


@QUIET
def test_a_fit_of_ours_is_refitted_and_agrees_with_the_estimator():
    X, y, filed, linkage = linked()
    arguments = {"linkage": linkage, "groups": filed, "scoring": "mse", "answers": FITTED}
    ours = leakage_report(
        lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1e-9))), X, y, **arguments
    )
    theirs = leakage_report(LinearRegression(), X, y, **arguments)
    np.testing.assert_allclose(
        ours.table.score.iloc[:4].astype(float),
        theirs.table.score.iloc[:4].astype(float),
        rtol=1e-5,
    )


@QUIET
def test_rates_alone_leave_the_extrapolated_answer():
    X, y, filed, _ = linked(doubtful=4)
    arguments = {"scoring": "mse", "injection": QUICK, "linkage": Linkage.from_rates(0.95, 0.95)}
    report = leakage_report(KNeighborsRegressor(3), X, y, groups=filed, **arguments)
    assert all(
        "only rates" in report.table.refusal[name]
        for name in ("purge", "coarser", "imputed", "unmated")
    )
    assert report.recommended in ("extrapolated", None)
    with pytest.raises(ValueError, match="give groups="):
        leakage_report(KNeighborsRegressor(3), X, y, **arguments)


@pytest.mark.parametrize(
    ("more", "error", "match"),
    [
        ({"linkage": RecordLeakage(0.1)}, TypeError, "Linkage.*got RecordLeakage"),
        ({"linkage": None}, TypeError, "got NoneType"),
        ({"level": 1.0}, ValueError, "level must lie between 0 and 1; got 1.0"),
        ({"num_draws": 1}, ValueError, "num_draws must be a whole number of 2 or more; got 1"),
        ({"scoring": "no such"}, ValueError, "no such"),
        ({"groups": np.zeros(3)}, ValueError, "groups"),
        ({"groups": None, "cv": [(np.arange(100), np.arange(90, 192))]}, ValueError, "both sides"),
        ({"linkage": Linkage.from_pairs([(0, 500, 0.5)])}, ValueError, "rows"),
    ],
)
def test_what_is_wrong_is_said(more, error, match):
    with pytest.raises(error, match=match):
        everything(LinearRegression(), **more)
    with pytest.raises(ValueError, match="NaN"):
        leakage_report(
            LinearRegression(),
            np.zeros((3, 1)),
            [1.0, np.nan, 2.0],
            linkage=Linkage.from_pairs([(0, 1, 0.5)]),
        )


@pytest.mark.slow
def test_learners_are_compared_over_the_same_clusters():
    a, b = nearest(), everything(LinearRegression())
    table = lo.compare({"one": a, "line": b})
    best, other = table.index
    difference = a.table.score["both"] - b.table.score["both"]
    assert abs(table.difference[other]) == pytest.approx(abs(difference))
    change = a.answers["both"].influence - b.answers["both"].influence
    moved = a.answers["naive"].fold_effects - b.answers["naive"].fold_effects
    variance = _errors.over_units(
        change[a.tested], a.clusters[:, a.tested]
    ).value + _errors.as_trained(moved)
    assert table.se_difference[other] == pytest.approx(variance**0.5)
    # more is better
    assert table["mean"][best] == max(a.table.score["both"], b.table.score["both"])
    purged = lo.compare({"one": a.by("purge"), "line": b.by("purge")})
    assert purged["mean"].max() == max(a.table.score["purge"], b.table.score["purge"])
    with pytest.raises(ValueError, match="another answer"):
        lo.compare({"one": a.by("purge"), "line": b})
    with pytest.raises(ValueError, match=r"another.*folds"):
        lo.compare({"one": a, "line": everything(LinearRegression(), seed=1)})
    with pytest.raises(
        ValueError,
        match=r"no answer is called 'extrapolated'.*there are naive, purge, coarser, both",
    ):
        a.by("extrapolated")


def test_what_is_not_listed_enlarges_the_correction():
    whole, part = nearest(), everything(KNeighborsRegressor(1), listed=(0.8, 0.7, 0.88))
    for name in ("purge", "coarser", "both"):
        assert part.answers[name].correction == pytest.approx(whole.answers[name].correction / 0.8)
        assert whole.table.se_links[name] == 0.0
        # of a Beta law of sd about .046
        share = part.table.se_links[name] / abs(part.table.correction[name])
        assert share == pytest.approx((0.88 - 0.7) / 3.92 / 0.8, rel=0.05)
        curve, answer = whole.curves.get(name), whole.answers[name]
        # the line from the naive score through the means over cuts, to where nothing is exposed
        if curve is not None:
            assert len(curve) == 2 and 0 < curve.removed.iloc[0] < curve.removed.iloc[1] <= 1
            assert answer.correction == pytest.approx(
                curve.difference.mean() / curve.removed.mean()
            )
            assert answer.exposed == pytest.approx(curve.exposed.mean())
    assert part.table.score["naive"] == whole.table.score["naive"]
    with pytest.raises(ValueError, match=r"listed must lie in \(0, 1\]"):
        everything(KNeighborsRegressor(1), listed=1.2)


def test_a_fit_is_made_once_for_what_it_is_to_predict():
    X, y, _, _ = linked()
    work = _study.PredictionWork(LeastSquares(X, y, 0.0, True, False, "response"), 0)
    train, first, second = np.arange(100), np.arange(100, 130), np.arange(130, 160)
    found = work(
        [
            _study.FitRequest(train, first),
            _study.FitRequest(train, second),
            _study.FitRequest(train, first),
        ]
    )
    model = LinearRegression().fit(X[train], y[train])
    for predicted, rows in zip(found, (first, second, first), strict=True):
        np.testing.assert_allclose(predicted, model.predict(X[rows]))
    assert (
        work.num_made == 2
        and len(work([_study.FitRequest(train, second)])) == 1
        and work.num_made == 2
    )


TEXT = pd.DataFrame({"a": np.arange(192.0), "hue": "red"})


@pytest.mark.parametrize(
    "model", [LinearRegression(), KNeighborsRegressor(1), DecisionTreeRegressor()]
)
def test_words_among_the_features_are_named(model):
    """The call, the column and the way out; a pipeline that encodes words is left alone."""
    _, y, filed, linkage = linked()
    words = {"groups": filed, "linkage": linkage, "scoring": "mse", "answers": ()}
    with pytest.raises(
        TypeError,
        match=r"leakage_report: X must hold numbers; these columns do not: 'hue' .*pd.get_dummies",
    ):
        leakage_report(model, TEXT, y, **words)
    with pytest.raises(TypeError, match="leakage_corrected: X must hold numbers"):
        leakage_corrected(model, TEXT.to_numpy(), y, groups=filed, leakage=RecordLeakage(0.1))
    with pytest.raises(TypeError, match="largest_leakage_share: X must hold numbers"):
        largest_leakage_share(TEXT, groups=filed)
    encoded = make_pipeline(OneHotEncoder(handle_unknown="ignore"), Ridge())
    assert np.isfinite(leakage_report(encoded, TEXT, y, **words).table.score["naive"])


def test_of_a_constant_target_nothing_can_be_learnt():
    X, _, filed, linkage = linked()
    calls = [
        lambda y: leakage_report(
            LinearRegression(), X, y, groups=filed, linkage=linkage, scoring="mse"
        ),
        lambda y: leakage_report(
            LogisticRegression(), X, y.astype(int), groups=filed, linkage=linkage
        ),
        lambda y: leakage_corrected(
            LinearRegression(), X, y, groups=filed, leakage=RecordLeakage(0.1), loss="mse"
        ),
        lambda y: leakage_slope_test(LinearRegression(), X, y, groups=filed, loss="mse"),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"y is 1(\.0)? in all 192 records: there is nothing to learn"
        ):
            call(np.ones(192))


def test_where_all_score_alike_there_is_no_interval():
    """A target that is a column of X: every loss is zero, and how far that is off is not seen."""
    X, _, filed, linkage = linked()
    report = leakage_report(
        KNeighborsClassifier(1),
        np.c_[X, 100.0 * (filed % 2)],
        filed % 2,
        groups=filed,
        linkage=linkage,
        scoring="accuracy",
    )
    assert report.table.score["naive"] == 1 and np.isnan(report.table.low["naive"])
    assert "no interval: all tested records score alike" in str(report)
    labels = [text.get_text() for text in report.plot().get_legend().get_texts()]
    told = [words for row in _page._answers(report) for words in row]
    assert "naive: 1" in labels[0] and not any("nan" in words for words in [*labels, *told])


def test_an_empty_table_of_pairs_is_said_to_be_empty():
    X, y, filed, _ = linked()
    report = leakage_report(
        LinearRegression(),
        X,
        y,
        linkage=Linkage.from_duplicates([], 192),
        groups=filed,
        scoring="mse",
        answers=FITTED,
    )
    assert (
        report.recommended == "naive"
        and "the table of pairs is empty; if there are no mates at all" in report.verdict
    )
    assert "nan" not in str(report)


def test_the_price_of_what_is_not_asked_for():
    """No more fits are made than as filed.

    Each answer, asked for, then takes at least what was said of it.
    """
    X, y, filed, linkage = linked()
    call = lambda answers: leakage_report(
        DecisionTreeRegressor(),
        X,
        y,
        linkage=linkage,
        groups=filed,
        scoring="mse",
        answers=answers,
        injection=QUICK,
    )
    before = call(())
    assert (
        before.fits == 15
        and list(before.price.index) == list(_leakage_report.ANSWERS[1:])
        and before.recommended is None
    )
    assert (
        before.verdict == "no answer: none was asked for."
        and "price           fits of what was not asked for: purge" in str(before)
    )
    assert before.price.fits["extrapolated"] == 4 * 4 * 5 and (before.price.seconds > 0).equals(
        before.price.fits > 0
    )
    for name in ("purge", "coarser"):
        assert call((name,)).fits - 15 >= before.price.fits[name] > 0
    # pairs of .45 and .2: a draw takes out less than half of the mates
    refused = call(("imputed",))
    assert (
        refused.fits == 15
        and before.price.fits["imputed"] == 0
        and "of the expected mates" in refused.table.refusal["imputed"]
    )
    assert list(call(FITTED).price.index) == ["extrapolated"]


def test_the_price_is_said_before_it_is_paid(monkeypatch, capsys):
    """On a terminal, after the fits as filed.

    How many there will be, of the answers that are asked for.
    """
    X, y, filed, linkage = linked()
    call = lambda model, answers: leakage_report(
        model, X, y, linkage=linkage, groups=filed, scoring="mse", answers=answers, injection=QUICK
    )
    monkeypatch.setattr(_leakage_report, "ANNOUNCED_SECONDS", 0.0)
    call(DecisionTreeRegressor(), FITTED)
    assert capsys.readouterr().err == ""  # a file is no one
    monkeypatch.setenv("FORCE_COLOR", "1")
    for answers in (("purge",), ("coarser",), FITTED):
        found = call(DecisionTreeRegressor(), answers)
        said, done = re.search(
            r"leakage_report: (\d+) fits or more, about \d+ s; (\d+) are done",
            capsys.readouterr().err,
        ).groups()
        assert int(done) == 15 <= int(said) <= found.fits  # five folds, and ten pairs of them
