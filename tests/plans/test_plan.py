"""Plans: what they leave out, what they score, and what they refuse."""

import copy
import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_predict,
    cross_val_score,
)

import leaveout as lo


def test_leave_one_out_is_cheap_and_right():
    plan = lo.leave_one_out(5)
    np.testing.assert_array_equal(plan.matrix(), 1 - np.eye(5))
    assert lo.leave_one_out(10**6).index.nbytes == 8 * 10**6


@pytest.mark.parametrize(
    "plan",
    [
        lo.kfold(23, 5),
        lo.kfold(23, 5, rng=0),
        lo.groups(np.arange(23) % 4),
        lo.blocks(23, 5),
        lo.from_splits(GroupKFold(3).split(np.zeros(23), groups=np.arange(23) % 7), 23),
    ],
)
def test_partitions_score_every_unit_once(plan):
    assert np.array_equal(np.sort(plan.index[plan.held]), np.arange(23))
    assert np.all(plan.weight == 0)


def test_buffers_are_dropped_but_not_scored():
    plan = lo.blocks(12, 4, buffer=2)
    middle = slice(plan.indptr[1], plan.indptr[2])
    assert set(plan.index[middle][plan.held[middle]]) == {4, 5, 6, 7}
    assert set(plan.index[middle]) == {2, 3, 4, 5, 6, 7, 8, 9}


def test_leave_future_out():
    plan = lo.leave_future_out(8, 5, horizon=2)
    assert plan.num_refits == 3
    first = slice(plan.indptr[0], plan.indptr[1])
    assert set(plan.index[first]) == {5, 6, 7}
    assert set(plan.index[first][plan.held[first]]) == {5, 6}


def test_bootstrap_weights_are_counts():
    plan = lo.bootstrap(30, 50, rng=1)
    matrix = plan.matrix()
    np.testing.assert_array_equal(matrix.sum(1), 30)
    np.testing.assert_array_equal(plan.held, plan.weight == 0)
    assert not np.array_equal(matrix[0], matrix[1])


def test_splitters_of_scikit_learn():
    splits = list(ShuffleSplit(4, test_size=5, train_size=10, random_state=0).split(np.zeros(20)))
    plan = lo.from_splits(splits, 20)
    for k, (train, test) in enumerate(splits):
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        assert set(plan.index[mine][plan.held[mine]]) == set(test)
        assert set(np.flatnonzero(plan.matrix()[k])) == set(train)
    assert (
        lo.from_splits(RepeatedKFold(n_splits=3, n_repeats=2).split(np.zeros(9)), 9).num_refits == 6
    )


def test_seeds_and_sizes():
    a, b = lo.random_subsets(100, 0.1, 3, rng=4), lo.random_subsets(100, 0.1, 3, rng=4)
    np.testing.assert_array_equal(a.index, b.index)
    assert np.all(np.diff(a.indptr) == 10)
    runs = lo.contiguous(100, 0.1, 5, rng=0)
    assert runs.serial and all(
        np.all(np.diff(run) == 1) for run in np.split(runs.index, runs.indptr[1:-1])
    )


def test_padded_batches_hold_every_entry():
    plan = lo.bootstrap(50, 7, rng=0)
    seen = np.zeros(len(plan.index), bool)
    for refits, place, rows in plan._batches(2000, 4, 100):
        seen[place[place >= 0]] = True
        dense = np.ones((len(refits), 51))
        np.put_along_axis(dense, rows.index, rows.weight, axis=1)
        np.testing.assert_array_equal(dense[:, :50], plan.matrix()[refits])
    assert seen.all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: lo.leave_one_out(1), "of 2 or more; got 1"),
        (lambda: lo.kfold(5, 9), "k must be a whole number from 2 to 5"),
        (lambda: lo.random_subsets(10, 1.5, 3), "between 0 and 1"),
        (lambda: lo.groups([0, 0, 0]), "all labels are equal"),
        (lambda: lo.groups([0.0, np.nan, 1.0]), "NaN"),
        (lambda: lo.groups(np.array(["a", None, "b"], dtype=object)), "NaN|one label"),
        (lambda: lo.from_splits([(np.arange(5), np.arange(0))], 5), "test set of split 0 is empty"),
        (lambda: lo.from_splits([(np.arange(5), np.arange(2))], 5), "both train and test"),
        (lambda: lo.from_splits([(np.arange(9), np.array([9]))], 5), "outside"),
        (lambda: lo.Plan([0, 2], [1, 1], [0, 0], [True, True], 4), "twice"),
        (lambda: lo.Plan([0, 2], [0, 1], [0, 0], [True, True], 2), "leave out every unit"),
        (lambda: lo.Plan([0, 1, 1], [0], [0], [True], 3), "empty folds"),
        (lambda: lo.Plan([0, 1], [0], [np.nan], [True], 3), "finite"),
        (lambda: lo.Plan([0, 1], [7], [0], [True], 3), r"\[0, 3\)"),
        (lambda: lo.Plan([0, 1], [-1], [0], [True], 3), r"\[0, 3\)"),
        (
            lambda: lo.Plan([0, 2], [1, 2], [0, 1.5], [True, True], 4),
            "refit 0 scores unit 2, which has weight 1.5",
        ),
        (
            lambda: lo.Plan([0, 2], [1, 2], [1.5, 2.0], [True, True], 4),
            "refit 0 scores unit 1, which has weight 1.5",
        ),
        (lambda: lo.from_splits([(np.arange(-1, 3), np.array([4]))], 5), "outside"),
    ],
)
def test_bad_plans(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def scored_and_dropped(plan, k):
    mine = slice(plan.indptr[k], plan.indptr[k + 1])
    return set(plan.index[mine][plan.held[mine]].tolist()), set(
        plan.index[mine][~plan.held[mine]].tolist()
    )


def test_what_is_scored_and_what_is_dropped_only():
    """Every constructor that drops more than it scores, both sides and the ends."""
    plan = lo.blocks(12, 4, buffer=2)
    assert [scored_and_dropped(plan, k) for k in range(3)] == [
        ({0, 1, 2, 3}, {4, 5}),
        ({4, 5, 6, 7}, {2, 3, 8, 9}),
        ({8, 9, 10, 11}, {6, 7}),
    ]
    plan = lo.leave_future_out(8, 5, horizon=2)
    assert [scored_and_dropped(plan, k) for k in range(3)] == [
        ({5, 6}, {7}),
        ({6, 7}, set()),
        ({7}, set()),
    ]
    path = np.c_[np.arange(8), np.arange(1, 9)]  # nine sites in a row
    assert scored_and_dropped(lo.neighbourhoods(path, 1, buffer=2), 4) == ({3, 4, 5}, {1, 2, 6, 7})
    plan = lo.from_splits([(np.array([0, 0, 1, 2]), np.array([3, 4]))], 6)
    # unit 0 weighs two, unit 5 is in neither
    assert scored_and_dropped(plan, 0) == ({3, 4}, {0, 5})
    np.testing.assert_array_equal(plan.matrix(), [[2, 1, 1, 0, 0, 0]])


def test_a_part_of_a_plan_keeps_its_weights():
    plan = lo.Plan(
        [0, 2, 5, 7], [0, 3, 1, 2, 4, 3, 4], [0, 2, 0, 0.5, 0, 3, 0], [1, 0, 1, 0, 0, 0, 1], 5
    )
    some = plan.some(np.array([0, 2]))
    np.testing.assert_array_equal(some.matrix(), plan.matrix()[[0, 2]])
    assert [scored_and_dropped(some, k)[0] for k in range(2)] == [{0}, {4}]
    for turned in ([2, 0], [1, 1, 0], [-1], [False, True, True]):
        np.testing.assert_array_equal(plan.some(np.array(turned)).matrix(), plan.matrix()[turned])
    units = np.array([0, 2, 3, 4])  # without unit 1, the second refit scores none, and goes
    only = plan._only(units)
    np.testing.assert_array_equal(only.matrix(), plan.matrix()[[0, 2]][:, units])
    assert [scored_and_dropped(only, k)[0] for k in range(2)] == [{0}, {3}]
    # no refit scores anything: those with units stay
    unscored = lo.Plan([0, 1, 2], [0, 1], [2.0, 3.0], [False, False], 3)
    np.testing.assert_array_equal(unscored._only(np.array([0, 2])).matrix(), [[2, 1]])


@pytest.mark.parametrize("cases", [False, True])
@pytest.mark.parametrize("units", [np.ones(5), "a", 1, 2.5])
def test_numbers_of_units_that_are_none(units, cases):
    with pytest.raises(
        ValueError, match="leave_one_out: num_units must be a whole number of 2 or more"
    ):
        lo.leave_one_out(units, cases=cases)


def test_what_a_plan_prints():
    text = str(
        lo.Plan(
            [0, 2, 5, 7], [0, 3, 1, 2, 4, 3, 4], [0, 2, 0, 0, 0, 3, 0], [1, 0, 1, 0, 0, 0, 1], 5
        )
    )
    assert "every unit 0–1 times" in text and "0.667 units a refit that are not scored" in text
    assert "up to 3 of units that are seen more than once" in text
    assert "2–3 units each" in text and "every unit by itself" in text
    text = str(lo.kfold(12, 3))
    assert (
        "every unit 1 time" in text
        and "1 times" not in text
        and "dropped" not in text
        and "seen more" not in text
    )


def test_defaults_drop_nothing_more():
    path = np.c_[np.arange(8), np.arange(1, 9)]
    assert scored_and_dropped(lo.neighbourhoods(path, 1), 4) == ({3, 4, 5}, set())
    assert scored_and_dropped(lo.blocks(12, 4), 1) == ({4, 5, 6, 7}, set())


def test_padding_is_no_unit():
    """Padding is not held, weighs one, has a number that no unit has, and no entry of the plan."""
    # 44 units, padded to a width of six
    plan = lo.groups(np.repeat(np.arange(10), [1, 3, 5, 5, 5, 5, 5, 5, 5, 5]))
    ((refits, place, rows),) = plan._batches(10**6, 1, 1, uniform=True)
    padding = place < 0
    np.testing.assert_array_equal((~padding).sum(1), np.diff(plan.indptr)[refits])
    assert padding.sum() == 60 - 44 and np.all(rows.index[padding] == 44)
    assert (
        not rows.held[padding].any()
        and np.all(rows.weight[padding] == 1)
        and np.all(rows.weight[~padding] == 0)
    )
    assert sorted(place[~padding].tolist()) == list(range(44))
    assert np.bincount(rows.index[rows.held], minlength=45).tolist() == [1] * 44 + [0]


def test_groups_are_clusters():
    np.testing.assert_array_equal(lo.groups(list("baab")).clusters, [1, 0, 0, 1])


@pytest.mark.parametrize(
    "splits", [[[0], [1]], [0, 1, 0], list("aba"), [([0, 1], [2], [3])], [(0, 1)]]
)
def test_what_is_no_pair_of_train_and_test_is_refused(splits):
    with pytest.raises(TypeError, match=r"split 0 must be a pair .*lo\.groups\(labels\)"):
        lo.from_splits(splits, 4)


def test_splits_of_groups_or_of_a_series_say_so():
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(15), 12)
    X = rng.normal(size=(15, 2))[g] + 0.1 * rng.normal(size=(180, 2))
    y = 2.0 * rng.normal(size=15)[g] + 0.2 * rng.normal(size=180)
    fit, splits = lo.fit(lo.GLM(X, y, "squared")), list(GroupKFold(5).split(X, y, g))
    theirs = lo.from_splits(splits, 180, groups=pd.Series(g).astype(str).to_numpy())
    cv, plain = (
        lo.cross_validate(fit, plan, strategy=lo.Exact())
        for plan in (theirs, lo.from_splits(splits, 180))
    )
    sums = np.bincount(g, cv.per_unit() - cv.mean)
    assert cv.se == pytest.approx(np.sqrt(15 / 14 * np.sum(sums**2)) / 180, rel=1e-9)
    assert (cv.mean, "over 15 groups" in str(cv)) == (plain.mean, True) and plain.se < 0.5 * cv.se
    assert "LO203" in [each.code for each in plain.checks()] and "LO203" not in [
        each.code for each in cv.checks()
    ]

    days = pd.date_range("2020-01-01", periods=180)
    rolling = list(TimeSeriesSplit(6).split(X))
    series = lo.from_splits(rolling, 180, times=days)
    assert series.serial and series.clusters is None
    told = lo.cross_validate(fit, series, strategy=lo.Exact())
    assert "blocks of" in told.standard_error.kind
    labelled = lo.from_splits(rolling, 180, times=pd.Series(days, index=days))
    assert labelled._match_labels("fit", days[::-1].sort_values()).columns == {}
    noise = lo.fit(
        lo.GLM(pd.DataFrame(rng.normal(size=(180, 2)), index=days), rng.normal(size=180), "squared")
    )
    for plan in (lo.from_splits(rolling, 180), lo.from_splits(KFold(5).split(X))):
        said = [
            each
            for each in lo.cross_validate(noise, plan, strategy=lo.Exact()).checks()
            if each.code == "LO203"
        ]
        assert len(said) == 1 and "runs of rows in time order" in said[0].reason
    for plan in (lo.kfold(k=5), lo.leave_one_out(), series):
        assert "LO203" not in [
            each.code for each in lo.cross_validate(noise, plan, strategy=lo.Exact()).checks()
        ]
    own = pd.Series(g, index=[f"r{k}" for k in range(180)])
    mixed = [
        (train[own.index], test[own.index])
        for train, test in ((own != k, own == k) for k in range(15))
    ]
    swapped = lo.from_splits(mixed, 180, groups=own[::-1])
    np.testing.assert_array_equal(swapped.clusters, g)
    assert swapped.names.equals(own.index)


@pytest.mark.parametrize(
    "known, message",
    [
        (dict(groups=np.zeros(6)), "at least two groups"),
        (dict(groups=np.arange(5)), "groups must be one a unit, 6; got 5"),
        (dict(times=np.r_[0:3, 2:5]), "times repeat, as 2"),
        (dict(times=[0, 1, 2, 5, 4, 6]), "unit 4 is before unit 3"),
        (dict(times=[0, 1, 2, 3, 4, np.nan]), "1 missing"),
        (dict(times=np.arange(6), groups=np.arange(6)), "not both"),
    ],
)
def test_what_is_known_of_splits_is_checked(known, message):
    with pytest.raises(ValueError, match=message):
        lo.from_splits([(np.arange(3), np.arange(3, 6))], 6, **known)


def test_drawn_folds_are_not_said_to_be_of_groups():
    rng, found = np.random.default_rng(0), 0
    for seed in range(30):
        y = rng.standard_t(3, size=60) ** 3
        cv = lo.cross_validate(
            lo.fit(lo.GLM(rng.normal(size=(60, 2)), y, "squared")),
            lo.kfold(60, 2 + seed % 5, rng=seed),
        )
        found += "LO203" in [each.code for each in cv.checks()]
    assert found == 0


def test_folds_of_several_groups_are_noticed_whatever_their_means():
    """The mean of three groups may be that of any rows: nearest rows tell."""
    labels, missed = np.repeat(np.arange(15), 8), 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((15, 2))[labels] + 0.1 * rng.standard_normal((120, 2))
        y = 2.0 * rng.standard_normal(15)[labels] + 0.2 * rng.standard_normal(120)
        plan = lo.from_splits(GroupKFold(5).split(X, y, labels), 120)
        codes = [
            check.code
            for check in lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), plan, audit=0).checks()
        ]
        missed += "LO203" not in codes
    assert missed == 0


def test_folds_of_groups_are_noticed_where_features_do_not_tell_groups():
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(15), 8)
    X, y = (
        rng.standard_normal((120, 2)),
        rng.standard_normal(15)[labels] + 0.5 * rng.standard_normal(120),
    )
    plan = lo.from_splits(GroupKFold(15).split(X, y, labels), 120)
    assert "F = " in str(lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), plan).checks())


def test_folds_along_a_feature_are_not_said_to_be_of_groups_where_residuals_are_not_alike():
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = np.sort(rng.standard_normal((120, 1)), axis=0)
        y, order = X[:, 0] + rng.standard_normal(120), rng.permutation(120)
        splits = [(order[order // 24 != k], order[order // 24 == k]) for k in range(5)]
        cv = lo.cross_validate(
            lo.fit(lo.GLM(X, y, "squared")), lo.from_splits(splits, 120), audit=0
        )
        alarms += "LO203" in [check.code for check in cv.checks()]
    assert alarms <= 2


def splits_of(plan):
    """Units that each refit scores, and those that it sees."""
    return [
        (
            np.sort(plan.index[(plan.refit == k) & plan.held]).tolist(),
            np.flatnonzero(weights).tolist(),
        )
        for k, weights in enumerate(plan.matrix())
    ]


def splits_by(splitter, *data):
    return [(test.tolist(), train.tolist()) for train, test in splitter.split(*data)]


def test_stratified_folds_hold_each_class_in_its_share():
    rng = np.random.default_rng(0)
    for y in (
        rng.integers(0, 3, 50),
        np.repeat([3, 1, 2], [20, 5, 9]),
        rng.choice(["b", "a", "c"], 40),
    ):
        plan = lo.stratified(y, k=5, rng=1, num_repeats=3)
        ours = [units for units, _ in splits_of(plan)]
        assert plan.num_refits == 15 and len(set(map(str, ours))) == 15
        theirs = [units for units, _ in splits_by(StratifiedKFold(5), np.zeros(len(y)), y)]
        for repeat in (ours[:5], ours[5:10], ours[10:]):
            assert sorted(map(len, repeat)) == sorted(map(len, theirs))
            for level in np.unique(y):
                counts = [
                    sorted(np.sum(y[units] == level) for units in f) for f in (repeat, theirs)
                ]
                assert counts[0] == counts[1]
        np.testing.assert_array_equal(np.bincount(plan.index), 3)
    y = rng.normal(size=100)
    for units, _ in splits_of(lo.stratified(y, 5, rng=0)):
        np.testing.assert_array_equal(
            np.bincount(np.searchsorted(np.quantile(y, np.arange(1, 10) / 10), y[units])), 2
        )
    index = [f"u{k}" for k in range(6)]
    assert lo.stratified(pd.Series(list("aabbab"), index=index), 2).names.tolist() == index


def test_folds_of_groups_keep_groups_whole_and_have_nearly_equal_sizes():
    g = np.random.default_rng(1).permutation(np.repeat(np.arange(12), np.arange(12) + 1))
    plan = lo.groups(g, 4, num_repeats=5)
    assert plan.num_refits == 20 and len({str(units) for units, _ in splits_of(plan)}) > 15
    for units, seen in splits_of(plan):
        assert not set(g[units]) & set(g[seen]) and abs(len(units) - len(g) / 4) <= 4
    np.testing.assert_array_equal(plan.clusters, np.unique(g, return_inverse=True)[1])


def test_repeats_average_and_keep_the_standard_error_of_units():
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    plan = lo.kfold(40, 4, rng=3, num_repeats=6)
    np.testing.assert_array_equal(np.bincount(plan.index), 6)
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), plan, strategy=lo.Exact())
    loss = np.zeros((6, 40))
    for k, (units, seen) in enumerate(splits_of(plan)):
        A = np.c_[np.ones(40), X]
        loss[k // 4, units] = (
            0.5 * (y - A @ np.linalg.lstsq(A[seen], y[seen], rcond=None)[0])[units] ** 2
        )
    each = loss.mean(0)
    np.testing.assert_allclose(cv.per_unit(), each, rtol=1e-8)
    np.testing.assert_allclose(
        (cv.mean, cv.se), (each.mean(), each.std(ddof=1) / np.sqrt(40)), rtol=1e-8
    )


def test_purged_plans_are_the_definition():
    rng = np.random.default_rng(4)
    time = np.sort(rng.integers(0, 40, 30)).astype(float)
    ends = time + rng.integers(0, 6, 30)
    for tests, embargo in ((1, 0), (1, 3), (2, 2)):
        plan = lo.purged(time, 5, embargo, ends=ends, num_test_blocks=tests)
        chosen = list(itertools.combinations(range(5), tests))
        assert plan.num_refits == len(chosen) and plan.serial
        for (units, seen), blocks in zip(splits_of(plan), chosen, strict=True):
            of = np.arange(30) // 6
            assert units == np.flatnonzero(np.isin(of, blocks)).tolist()
            kept = []
            for i in np.flatnonzero(~np.isin(of, blocks)):
                spans = [(time[of == b].min(), ends[of == b].max()) for b in blocks]
                overlap = any(time[i] <= last and ends[i] >= first for first, last in spans)
                if not overlap and not any(last < time[i] <= last + embargo for _, last in spans):
                    kept.append(i)
            assert seen == kept
    days = pd.Series(pd.date_range("2020", periods=12, tz="UTC"))
    dated, plain = lo.purged(days, 3, pd.Timedelta("2D")), lo.purged(np.arange(12), 3, 2)
    np.testing.assert_array_equal(dated.matrix(), plain.matrix())


def test_rolling_windows():
    theirs = TimeSeriesSplit(4, max_train_size=5, test_size=2).split(np.zeros(13))
    assert splits_of(lo.rolling(13, 5, 2, 2)) == [
        (test.tolist(), train.tolist()) for train, test in theirs
    ]
    assert [units for units, _ in splits_of(lo.rolling(10, 4, 3, 2))] == [[4, 5, 6], [6, 7, 8]]
    grows, rolls = lo.leave_future_out(8, 5, horizon=2), lo.rolling(8, 5, 2)
    np.testing.assert_array_equal(rolls.matrix()[0], grows.matrix()[0])


def wasserstein(points, new, fold):
    """W by definition: the mean gap of sorted distances, for as many of either."""
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    inside = np.where(fold[:, None] == fold, np.inf, apart).min(1)
    wanted = np.linalg.norm(new[:, None] - points, axis=2).min(1)
    return np.abs(np.sort(inside) - np.sort(wanted)).mean()


@pytest.mark.parametrize("clustering", ["hierarchical", "kmeans"])
def test_folds_are_as_far_apart_as_new_places(clustering):
    rng = np.random.default_rng(5)
    points = np.repeat(rng.random((15, 2)), 8, axis=0) + 0.01 * rng.normal(size=(120, 2))
    new = rng.random((120, 2))
    plan = lo.validation.nearest_neighbour_matched(points, new, 5, clustering=clustering)
    fold = plan.refit[np.argsort(plan.index)]
    W, random = wasserstein(points, new, fold), wasserstein(points, new, rng.permutation(120) % 5)
    assert f"W = {W:.3g} " in plan.note and 0.5 * random > W and plan.serial
    assert all(len(set(fold[plan.blocks == b])) == 1 for b in np.unique(plan.blocks))
    even = lo.validation.nearest_neighbour_matched(
        rng.random((120, 2)), new, 5, clustering=clustering
    )
    assert even.blocks is None and sorted(np.bincount(even.refit)) == [24] * 5


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: lo.groups(list("abca"), num_repeats=3), ValueError, "give k="),
        (lambda: lo.stratified([1, 1, 2], 3), ValueError, "k must be a whole number from 2 to 2"),
        (lambda: lo.groups([1, 1, 2], 3), ValueError, "from 2 to 2"),
        (lambda: lo.purged([0, 2, 1], 2), ValueError, "must not fall"),
        (lambda: lo.purged(pd.date_range("2020", periods=4), 2, 3), TypeError, "Timedelta"),
        (lambda: lo.purged(np.arange(4), 2, -1), ValueError, "negative"),
        (lambda: lo.rolling(10, 8, 3), ValueError, "horizon"),
        (
            lambda: lo.validation.nearest_neighbour_matched(np.zeros((9, 2)), np.zeros((9, 3)), 3),
            ValueError,
            "coordinates",
        ),
    ],
)
def test_what_new_plans_refuse(make, error, message):
    with pytest.raises(error, match=message):
        make()


STACKED = ["a"] * 5 + ["b"] * 4


def seen_and_scored(plan):
    scored = [plan.index[(plan.refit == k) & plan.held].tolist() for k in range(len(plan))]
    return plan.matrix().astype(bool), scored


@pytest.mark.parametrize(
    "make, origins",
    [
        (lambda **more: lo.leave_future_out(9, 2, 1, **more), range(2, 5)),
        (lambda **more: lo.rolling(9, 2, 1, **more), range(2, 5)),
    ],
)
def test_the_future_of_stacked_series_is_the_end_of_each(make, origins):
    step, window = np.r_[:5, :4], 2
    for more in (
        dict(groups=STACKED),
        dict(groups=STACKED, times=step),
        dict(groups=pd.Series(STACKED)),
    ):
        plan = make(**more)
        seen, scored = seen_and_scored(plan)
        for k, t in enumerate(origins):
            before = (step < t) & ((step >= t - window) | ("future" in plan.call))
            np.testing.assert_array_equal(seen[k], before)
            assert scored[k] == np.flatnonzero(step == t).tolist()


def test_units_of_one_time_are_one_step():
    seen, scored = seen_and_scored(lo.leave_future_out(6, 1, times=np.repeat([3, 5, 9], 2)))
    assert seen.sum(1).tolist() == [2, 4] and scored == [[2, 3, 4, 5], [4, 5]]


def test_runs_and_blocks_stay_within_their_series():
    seen, scored = seen_and_scored(lo.blocks(9, 2, buffer=1, groups=STACKED))
    assert (
        scored == [[0, 1], [2, 3], [4], [5, 6], [7, 8]]
        and seen[2].tolist() == [True] * 3 + [False] * 2 + [True] * 4
    )
    plan = lo.contiguous(9, 0.4, 20, groups=STACKED, rng=1)
    for units in seen_and_scored(plan)[1]:
        first, second = [u for u in units if u < 5], [u for u in units if u >= 5]
        assert len(first) == len(second) == 2 and np.diff(first) == 1 == np.diff(second)
    time = np.r_[:5, :4]
    seen, scored = seen_and_scored(lo.purged(time, 3, groups=STACKED))
    assert sorted(np.concatenate(scored)) == list(range(9))
    assert all(not seen[k][np.isin(time, time[units])].any() for k, units in enumerate(scored))


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: lo.leave_future_out(9, 4, groups=STACKED),
            "start must be a whole number from 1 to 3; got 4",
        ),
        (
            lambda: lo.leave_future_out(9, 1, groups=STACKED[:8]),
            "must be one a unit, 9; got 8 and 9",
        ),
        (lambda: lo.leave_future_out(9, 1, times=np.r_[:5, :4]), "times must not fall"),
        (
            lambda: lo.rolling(9, 1, groups=STACKED, times=list("abcdeabcd")),
            "times must be numbers or dates; got string",
        ),
        (lambda: lo.purged(np.r_[:5, :4], 2), "groups= are the series"),
    ],
)
def test_series_that_cannot_be_read_are_refused(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_a_plan_of_one_series_does_not_fit_several():
    x = np.random.default_rng(0).poisson(4, 30)
    fit = lo.fit(lo.HMM(x, lo.emissions.Poisson(), 2, lengths=[15, 15]), num_starts=1)
    with pytest.raises(ValueError, match="30 steps for one series, but the fit has 2"):
        lo.cross_validate(fit, lo.leave_future_out(30, 20, 1), strategy=lo.NoUpdate())
    plan = lo.leave_future_out(30, 13, 1, groups=np.repeat([0, 1], 15))
    found = lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0)
    assert found.plan.index[found.plan.held].tolist() == [13, 28, 14, 29]


def test_times_and_ends_of_purged_plans_are_of_one_kind():
    times = pd.Series(pd.date_range("2024-03-29", periods=6, tz="Europe/Berlin"))
    assert len(lo.purged(times, 3, "1D", ends=times.dt.tz_convert("UTC"))) == 3
    for ends in (times.dt.tz_localize(None), np.arange(6)):
        with pytest.raises(TypeError, match=r"ends\.dt\.tz_localize\(times\.dt\.tz\)"):
            lo.purged(times, 3, ends=ends)


RANDOM = np.random.default_rng(7)
FEATURES = pd.DataFrame(RANDOM.normal(size=(40, 2)), columns=["a", "b"]).assign(
    site=np.arange(40) % 8
)
TARGET = FEATURES["a"].to_numpy() + RANDOM.normal(size=40)
SPLITTERS = {
    "folds": (lo.kfold(k=4), lo.kfold(40, k=4)),
    "each": (lo.leave_one_out(), lo.leave_one_out(40)),
    "buffered": (lo.blocks(size=8, buffer=1), lo.blocks(40, size=8, buffer=1)),
    "sites": (lo.groups("site"), lo.groups(FEATURES["site"])),
    "future": (lo.leave_future_out(start=30, horizon=2), lo.leave_future_out(40, 30, 2)),
}


@pytest.mark.parametrize("name", SPLITTERS)
def test_scikit_learn_takes_a_plan_as_a_splitter(name):
    unbound, bound = SPLITTERS[name]
    folds = [(np.array(seen), np.array(scored)) for scored, seen in splits_of(bound)]
    assert (
        len(bound) == bound.get_n_splits() == unbound.get_n_splits(FEATURES, TARGET) == len(folds)
    )
    for plan in (bound, list(bound), unbound):
        pairs = plan if isinstance(plan, list) else plan.split(FEATURES, TARGET)
        for pair, expected in zip(pairs, folds, strict=True):
            np.testing.assert_array_equal(pair[0], expected[0])
            np.testing.assert_array_equal(pair[1], expected[1])
    scoring = "neg_mean_squared_error"
    search = lambda cv: (
        GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=cv, scoring=scoring)
        .fit(FEATURES, TARGET)
        .cv_results_["mean_test_score"]
    )
    score = lambda cv: cross_val_score(Ridge(), FEATURES, TARGET, cv=cv, scoring=scoring)
    for call in (search, score):
        for plan in (unbound, bound):
            np.testing.assert_array_equal(call(plan), call(folds))
    if name != "future":  # whose folds score some rows only
        predict = lambda cv: cross_val_predict(Ridge(), FEATURES, TARGET, cv=cv)
        np.testing.assert_array_equal(predict(unbound), predict(folds))


def test_labels_say_which_row_is_which_unit():
    labelled = FEATURES.set_axis([f"u{k}" for k in range(40)])
    plan = lo.groups(labelled["site"])
    mixed = labelled.sample(frac=1, random_state=0)
    for train, test in plan.split(mixed):
        assert len(set(mixed["site"].iloc[test])) == 1
        assert not set(mixed.index[train]) & set(mixed.index[test])


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: len(lo.kfold(k=4)), AttributeError, "has no units yet.* give num_units= first"),
        (lambda: list(lo.kfold(k=4)), AttributeError, "has no units yet"),
        (lambda: lo.kfold(k=4).matrix(), AttributeError, "has no units yet"),
        (lambda: lo.kfold(k=4).get_n_splits(), AttributeError, "has no units yet"),
        (lambda: lo.kfold(8, k=4).speed, AttributeError, "has no attribute 'speed'"),
        (lambda: list(lo.bootstrap(9, 3)), ValueError, "other weights than 0 and 1"),
        (
            lambda: cross_val_score(Ridge(), FEATURES, TARGET, cv=lo.bootstrap(num_resamples=3)),
            ValueError,
            "other weights than 0 and 1",
        ),
        (
            lambda: list(lo.kfold(9, k=3).split(FEATURES)),
            ValueError,
            "for 9 units, but X has 40 rows",
        ),
        (
            lambda: list(lo.kfold(k=3).split(FEATURES, TARGET, FEATURES["site"])),
            ValueError,
            "on both sides",
        ),
        (
            lambda: list(lo.groups("clinic").split(FEATURES)),
            ValueError,
            "no column is named 'clinic'",
        ),
        (lambda: list(lo.groups("site").split(TARGET)), ValueError, "names the column 'site'"),
        (lambda: list(lo.kfold(k=41).split(FEATURES)), ValueError, "from 2 to 40"),
        (lambda: list(lo.kfold(k=2).split([])), ValueError, "num_units must be"),
        (lambda: lo.kfold(10), TypeError, "k= must be given; .* num_units="),
        (lambda: lo.blocks(20), TypeError, "size= or k= must be given; .* num_units="),
        (lambda: lo.bootstrap(1000), TypeError, "num_resamples= must be given; .* num_units="),
        (lambda: lo.leave_future_out(100), TypeError, "start= must be given; .* num_units="),
        (lambda: lo.random_subsets(9), TypeError, "fraction= and num_folds= must be given;"),
        (lambda: lo.kfold(k=4, folds=3), TypeError, "no folds=: it is k="),
        (lambda: lo.blocks(size=2, groups=np.array(3)), ValueError, "num_units must be"),
        (lambda: lo.bootstrap(num_resamples=2, groups=[]), ValueError, "num_units must be"),
        (lambda: lo.kfold(9, k=3, rng="a"), TypeError, "rng must be a whole number"),
        (lambda: lo.kfold(9, k=3, rng=-1), ValueError, "rng must be a whole number"),
        (lambda: lo.leave_one_out("a", cases=True), ValueError, "num_units must be"),
    ],
)
def test_what_plans_without_units_and_splitters_refuse(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_generator_is_drawn_from_once():
    plan = lo.kfold(k=4, rng=np.random.default_rng(1))
    splits = lo.from_splits(iter(list(lo.kfold(12, k=3))))
    for unbound in (plan, splits, pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        one, two = unbound._bind(12), unbound._bind(12)
        np.testing.assert_array_equal(one.matrix(), two.matrix())
    np.testing.assert_array_equal(plan._bind(12).matrix(), copy.deepcopy(plan)._bind(12).matrix())


def test_columns_give_the_number_of_units():
    series = np.repeat([0, 1], [7, 5])
    plan = lo.blocks(size=3, groups=series)
    assert plan.num_units == 12 and plan.num_refits == 5
    assert lo.leave_one_out(cases=[1, 3, 0]).num_refits == 2
    sizes = [len(test) for _, test in lo.blocks(11, k=3)]
    assert sizes == [4, 4, 3]


def test_plans_say_what_they_are():
    assert str(lo.kfold(500, k=10)).startswith(
        "plan            10 folds of 500 units, shuffled (rng=0)\n"
    )
    assert "30 resamples of 9 units, drawn (rng=2)" in str(lo.bootstrap(9, 30, rng=2))
    assert repr(lo.kfold(k=3)) == "Plan(lo.kfold(k=3): of the units of the fit that takes it)"
    assert "lo.kfold(k=3)" in str(lo.kfold(k=3))


def test_groups_that_a_splitter_is_given_stay_whole():
    g = FEATURES["site"]
    for plan in (lo.groups("site", k=4), lo.groups(g, k=4)):
        assert len(cross_val_score(Ridge(), FEATURES, TARGET, groups=g, cv=plan)) == 4
    splits = lo.leakage.InjectedSplits(0.0, cv=lo.groups(g.to_numpy(), k=4))
    tests = [test for _, test in splits.split(FEATURES.to_numpy(), TARGET, g.to_numpy())]
    assert all(set(map(int, test)) for test in tests) and len(tests) == 4
