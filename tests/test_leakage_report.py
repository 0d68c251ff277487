"""The report: against enumeration and designs whose truth is known, refused where it must be, and on wrong input."""

import itertools

import matplotlib

matplotlib.use("agg")
import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyRegressor
from sklearn.neighbors import KNeighborsRegressor

import leaveout as lo

QUIET = pytest.mark.filterwarnings("ignore:leakage_corrected:UserWarning")
QUICK = lo.Injection(num_boot=4, num_levels=4)


def copies(seed=0, size=300, copied=80, noise=0.01):
    """A split of which some tested rows are copied into training; X says nothing of y, so that one neighbour's loss is 2."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(2 * size, 5)), rng.normal(size=2 * size)
    X[size : size + copied] = X[:copied] + noise * rng.normal(size=(copied, 5))
    y[size : size + copied] = y[:copied]
    pairs = pd.DataFrame({"left": np.arange(copied), "right": size + np.arange(copied), "match_probability": 1.0})
    return X, y, [(np.arange(size), np.arange(size, 2 * size))], pairs


def linked(seed=0, number=24, size=8, doubtful=20):
    """Clusters of which some records are filed alone, each with two candidates for its cluster, of probability .6 and .3."""
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
    return X, y, filed, pd.DataFrame(rows, columns=["left", "right", "match_probability"])


def audit(model, X, y, cv, pairs, **more):
    linkage = lo.Linkage.from_duplicates(pairs, len(y))
    return lo.leakage_report(model, X, y, linkage=linkage, cv=cv, scoring="mse", injection=QUICK, **more)


def test_one_neighbour_without_its_copies():
    """Trained without the copies the loss of a copied row is that of its second neighbour; the others keep theirs."""
    copied = 30
    X, y, cv, pairs = copies(copied=copied)
    report = audit(KNeighborsRegressor(1), X, y, cv, pairs)
    train, test = cv[0]
    fit = lambda rows: (KNeighborsRegressor(1).fit(X[rows], y[rows]).predict(X[test]) - y[test]) ** 2
    naive, clean = fit(train), fit(train[copied:])
    assert report.answers["naive"].score == pytest.approx(naive.mean())
    assert naive[:copied].max() < 1e-12 and report.answers["naive"].exposed == pytest.approx(0.1)
    # the control trains on the copies, so these keep their loss of zero: what is left is the loss of copied rows
    assert report.answers["purge"].correction == pytest.approx(clean[:copied].sum() / 300)
    assert report.answers["unmated"].score == pytest.approx(naive[copied:].mean())
    assert report.recommended == "purge" and report.table.low["purge"] < 2 < report.table.high["purge"]
    np.testing.assert_allclose(report.rows["carries"].sum(), report.answers["purge"].correction)
    assert sorted(report.rows.index) == list(range(300, 300 + copied)) and (report.rows["mate"] == report.rows.index - 300).all()
    for name in ("coarser", "imputed", "extrapolated"):
        assert report.table.refusal[name]
    assert "injecting" in report.table.refusal["extrapolated"]


@pytest.mark.parametrize("seed", range(8))
def test_duplicates_are_corrected_or_refused(seed):
    """The true loss is 2. Where all copies are listed it is in the interval; where a third is not, no answer is given."""
    X, y, cv, pairs = copies(seed)
    whole = audit(KNeighborsRegressor(1), X, y, cv, pairs)
    wide = 2 * (whole.table.high["purge"] - whole.table.score["purge"])
    assert whole.recommended == "purge" and abs(whole.table.score["purge"] - 2) < wide and whole.table.score["naive"] < 1.8
    partly = audit(KNeighborsRegressor(1), X, y, cv, pairs.iloc[: 50 + seed])
    assert partly.recommended is None and "not listed" in partly.verdict


def test_what_learns_nothing_from_mates_is_not_corrected():
    X, y, filed, pairs = linked()
    linkage = lo.Linkage.from_pairs(pairs, len(y))
    report = lo.leakage_report(
        DummyRegressor(strategy="constant", constant=0.0), X, y, linkage=linkage, groups=filed, scoring="mse", injection=QUICK
    )
    for name in ("purge", "coarser"):
        assert report.answers[name].correction == pytest.approx(0, abs=1e-12)
        assert report.answers[name].score == pytest.approx(np.mean(y**2))
