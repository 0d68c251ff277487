"""Errors of differences of two models are those of refits from scratch."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy

import leaveout as lo
from leaveout.validation.repeated_folds import draw_counts, random_folds
from tests.helpers import fitted

pytestmark = pytest.mark.filterwarnings("ignore:compare")
N, K = 36, 6
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 4))
Y = X[:, 0] + RNG.standard_normal(N)
LABEL = np.arange(N) // 2
DESIGN = np.column_stack([X, np.ones(N)])
RIDGE = {"none": 0.0, "ridge": 30.0}


def estimates(plan, **options):
    penalties = {"none": lo.penalties.Zero(), "ridge": lo.penalties.Ridge(30.0)}
    return {
        name: lo.cross_validate(lo.fit(lo.GLM(X, Y, "squared", penalty)), plan, **options)
        for name, penalty in penalties.items()
    }


def loss_difference(weight, units, signs):
    """The difference of losses by refits from scratch with these weights."""
    total = 0.0
    for name, sign in signs.items():
        hessian = DESIGN.T @ (weight[:, None] * DESIGN) + RIDGE[name] * np.diag([1, 1, 1, 1, 0])
        theta = np.linalg.solve(hessian, DESIGN.T @ (weight * Y))
        total = total + sign * 0.5 * (Y[units] - DESIGN[units] @ theta) ** 2
    return total


def signs_of(table):
    best, other = table.index
    return other, {other: 1.0, best: -1.0}


@pytest.mark.parametrize("label", [np.arange(N), LABEL], ids=["rows", "groups"])
def test_nested_is_its_formula(label):
    plan = lo.kfold(N, K) if len(np.unique(label)) == N else lo.groups(label, K)
    table = lo.compare(estimates(plan), method="nested", num_repeats=2, rng=3)
    other, signs = signs_of(table)
    folds = random_folds(label, K, 2, 3)
    groups = np.unique(label)
    a, b, everything, outer_moves, sides = [], [], [], [], []
    for fold in folds.fold:
        assert all(len(np.unique(fold[label == g])) == 1 for g in groups)
        for k in range(K):
            units = np.flatnonzero(fold == k)
            alone = loss_difference((fold != k) * 1.0, units, signs)
            sums = np.array([(alone - alone.mean())[label[units] == g].sum() for g in groups])
            count = len(np.unique(label[units]))
            b.append(np.sum(sums**2) / len(units) ** 2 * count / (count - 1))
            others = []
            for j in set(range(K)) - {k}:
                kept = (fold != k) & (fold != j)
                losses = np.full(N, np.nan)
                losses[fold == j] = loss_difference(kept * 1.0, np.flatnonzero(fold == j), signs)
                others.append(losses)
            everything += others
            a.append((np.nanmean(others) - alone.mean()) ** 2)
            sides.append(others)
        outer_moves.append(sides[-K:])
    mse = (K - 1) / K * np.mean(np.subtract(a, b))
    mean = np.nanmean(everything)
    of_groups = lambda losses: np.array([(losses)[label == g].sum() for g in groups])
    sums = np.concatenate([of_groups(losses - mean) for losses in everything])
    sums = sums[np.isfinite(sums)]
    variance = np.sum(sums**2) / (len(sums) - 1)
    least = np.sqrt(variance * len(groups)) / N
    se = max(least, min(np.sqrt(max(mse, 0)), least * np.sqrt(K)))
    assert table.loc[other, "se_difference"] == pytest.approx(se, rel=1e-5)
    moves = []
    for of_repeat in outer_moves:
        centred = np.array(
            [of_groups(losses - np.nanmean(losses)) for others in of_repeat for losses in others]
        )
        moves += [np.var(column[np.isfinite(column)], ddof=1) for column in centred.T]
    size = len(groups) / K
    instability = 2 * len(groups) / (size - 1) * np.mean(moves) / variance
    assert table.loc[other, "instability"] == pytest.approx(instability, rel=1e-5)
    half = scipy.stats.norm.ppf(0.975) * se
    difference = table.loc[other, "difference"]
    ends = table.loc[other, ["low", "high"]].astype(float)
    np.testing.assert_allclose(ends, [difference - half, difference + half], atol=1e-6)


def test_bootstrap_is_a_random_effects_fit():
    table = lo.compare(estimates(lo.kfold(N, K)), method="bootstrap", num_repeats=4, rng=1)
    other, signs = signs_of(table)
    counts = np.repeat(draw_counts(np.arange(N), 4, np.random.default_rng(1)), 2, axis=0)
    assert (counts.sum(1) == N).all()
    means = []
    for count, fold in zip(counts, random_folds(np.arange(N), K, 8, 1).fold, strict=True):
        losses = np.empty(N)
        for k in range(K):
            held = np.flatnonzero(fold == k)
            losses[held] = loss_difference(count * (fold != k), held, signs)
        means.append(np.average(losses, weights=count))
    pairs = np.reshape(means, (4, 2))
    # of one partition; half of the variance within a sample is in that of means of two
    expected = pairs.mean(1).var(ddof=1) + pairs.var(1, ddof=1).mean() / 2
    assert table.loc[other, "se_difference"] == pytest.approx(np.sqrt(expected), rel=1e-5)


def test_conservative_z_is_of_disjoint_halves():
    table = lo.compare(estimates(lo.kfold(N, K)), method="conservative", num_repeats=2, rng=1)
    other, signs = signs_of(table)
    means = []
    for fold in random_folds(np.arange(N), K, 2, 1).fold:
        for half in (range(K // 2), range(K // 2, K)):
            losses = []
            for k in half:
                weight = np.isin(fold, [*half]) * (fold != k)
                losses += [*loss_difference(weight, np.flatnonzero(fold == k), signs)]
            assert len(losses) == N / 2
            means.append(np.mean(losses))
    first, second = np.reshape(means, (2, 2)).T
    expected = np.sqrt(np.mean((first - second) ** 2) / 2)
    assert table.loc[other, "se_difference"] == pytest.approx(expected, rel=1e-5)


def test_corrected_is_nadeau_and_bengios():
    plan = lo.random_subsets(N, 1 / 6, 12, rng=0)
    with pytest.raises(ValueError, match="does not score every unit"):
        lo.compare(estimates(plan), method="nested")
    cv = estimates(plan)
    table = lo.compare(cv, method="corrected", level=0.9)
    best, other = table.index
    means = (cv[other].losses - cv[best].losses).reshape(12, 6).mean(1)
    se = means.std(ddof=1) * np.sqrt(1 / 12 + 6 / 30)
    assert table.loc[other, "se_difference"] == pytest.approx(se, rel=1e-12)
    half = scipy.stats.t.ppf(0.95, 11) * se + table.loc[other, "approximation_error"]
    assert table.loc[other, "high"] - table.loc[other, "low"] == pytest.approx(2 * half)


def test_an_interval_says_what_it_is_and_where_it_is_not_to_be_relied_upon():
    cv = estimates(lo.groups(LABEL))
    text = str(lo.compare(cv, method="nested", num_repeats=2)).replace("\n", " ")
    assert "95% intervals by method='nested', of the difference of the fold refits' risks" in text
    assert "unreliable: instability" in text and "18 independent groups" in text
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((400, 3))
    response = wide @ [1.0, 1.0, 0.0] + rng.standard_normal(400)
    fits = {str(p): lo.fit(lo.GLM(wide[:, :p], response, "squared")) for p in (1, 3)}
    pair = {name: lo.cross_validate(fit, 5) for name, fit in fits.items()}
    table = lo.compare(pair, method="nested", num_repeats=2)
    assert (table.unreliable == "").all() and table.instability["1"] < 0.1
    assert "unreliable" not in str(table)
    usual = lo.compare(pair)
    assert "method" not in usual and "low" not in usual


def test_a_series_is_divided_into_blocks():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((300, 2))
    y = x[:, 0] + rng.standard_normal(300)
    cv = {
        str(p): lo.cross_validate(lo.fit(lo.GLM(x[:, :p], y, "squared")), lo.blocks(300, k=10))
        for p in (1, 2)
    }
    table = lo.compare(cv, method="nested", num_repeats=2)
    assert np.isfinite(table.instability.iloc[1]) and table.se_difference.iloc[1] > 0


def test_folds_are_of_the_size_of_the_plans():
    """Five folds repeated four times are no twenty folds, and two folds no ten."""
    nested = lambda plan: lo.compare(estimates(plan), method="nested", num_repeats=2, rng=3)
    halves = nested(lo.kfold(N, 2)).se_difference.max()
    assert halves == pytest.approx(nested(lo.kfold(N, 3)).se_difference.max(), rel=1e-6)
    once, often = nested(lo.kfold(N, K)), nested(lo.kfold(N, K, num_repeats=3))
    assert often.se_difference.max() == pytest.approx(once.se_difference.max(), rel=1e-6)
    assert once.index[0] == often.index[0]


def test_an_unknown_error_has_no_ends():
    cv = estimates(lo.kfold(N, K))
    cv["none"] = replace(cv["none"], error=np.full(K, np.nan), mean_error=np.nan)
    table = lo.compare(cv, method="corrected")
    assert np.isnan(table.loc[table.index[1], ["low", "high"]].astype(float)).all()
    assert (table.loc[table.index[0], ["low", "high"]].astype(float) == 0).all()


def test_few_groups_make_any_method_unreliable():
    few = {name: cv for name, cv in estimates(lo.groups(np.arange(N) // 4)).items()}
    for method in ("corrected", "nested", "conservative"):
        table = lo.compare(few, method=method, num_repeats=2)
        assert "9 independent groups" in table.unreliable.iloc[1]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: lo.compare(estimates(6), method="nested", num_repeats=0), "num_repeats"),
        (lambda: lo.compare(estimates(6), method="bootstrap", num_repeats=1), "num_repeats"),
        (lambda: lo.compare(estimates(6), method="bates"), "one of nested, bootstrap"),
        (
            lambda: lo.compare(
                {name: cv.without_data() for name, cv in estimates(6).items()}, method="nested"
            ),
            "'none' has no fit|'ridge' has no fit",
        ),
        (
            lambda: lo.compare(
                {"a": estimates(6)["none"], "b": estimates(5)["none"]}, method="nested"
            ),
            "same folds",
        ),
        (
            lambda: lo.compare(estimates(6), method="nested", jacobian={"none": np.ones(N)}),
            "have no jacobian",
        ),
        (
            lambda: lo.compare(estimates(lo.groups(np.arange(N) // 9)), method="nested"),
            "6 independent groups or more",
        ),
        (
            lambda: lo.compare(
                dict.fromkeys("ab", lo.cross_validate(fitted("gamma"), 5)), method="nested"
            ),
            "units of equal weight",
        ),
        (lambda: lo.compare(estimates(6), method="nested", num_repeats=1.5), "num_repeats"),
        (lambda: lo.compare(estimates(6), method="nested", level=95), "level must lie"),
    ],
)
def test_what_there_is_no_interval_of(make, message):
    with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
        warnings.simplefilter("ignore")
        make()
