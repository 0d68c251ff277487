"""Records of a mixture of clusters (Eq. 1 of the source document), some filed elsewhere."""

import itertools

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import LeaveOneGroupOut

import leaveout as lo


def test_records_follow_the_laws_that_are_given():
    shares = [0.5, 0.3, 0.2]
    data = lo.leakage.mixture(
        3,
        20_000,
        mislinked=0.2,
        shares=shares,
        cluster_law=lambda rng, k: np.arange(k) * 10.0,
        record_law=lambda rng, phi: (phi[:, None] + rng.normal(size=(len(phi), 1)), 2 * phi),
    )
    np.testing.assert_allclose(np.bincount(data.clusters) / 20_000, shares, atol=0.02)
    np.testing.assert_array_equal(data.y, 20.0 * data.clusters)
    assert abs(np.std(data.X[:, 0] - 10 * data.clusters) - 1) < 0.03
    wrong = data.filed != data.clusters
    assert abs(wrong.mean() - 0.2) < 0.02
    # either of the other two clusters with the same probability
    steps = (data.filed - data.clusters)[wrong] % 3
    assert abs((steps == 1).mean() - 0.5) < 0.03


def test_rates_are_those_of_all_pairs():
    data = lo.leakage.mixture(4, 40, mislinked=0.3, rng=2)
    pairs = list(itertools.combinations(range(40), 2))
    same = np.array([data.clusters[i] == data.clusters[j] for i, j in pairs])
    filed = np.array([data.filed[i] == data.filed[j] for i, j in pairs])
    assert data.precision == pytest.approx((same & filed).sum() / filed.sum())
    assert data.recall == pytest.approx((same & filed).sum() / same.sum())


def test_rates_of_single_records_are_unknown():
    data = lo.leakage.mixture(10_000, 2, mislinked=0.0)
    assert np.isnan(data.precision) and np.isnan(data.recall)
    assert "precision nan" in str(data)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mislinked": 1.0}, r"mislinked must lie in \[0, 1\); got 1.0"),
        ({"mislinked": np.nan}, r"mislinked must lie in"),
        ({"shares": [0.5, 0.4, 0.2]}, r"3 probabilities that sum to 1"),
        ({"shares": [0.5, 0.5]}, r"3 probabilities that sum to 1"),
    ],
)
def test_numbers_that_are_no_probabilities(arguments, words):
    with pytest.raises(ValueError, match=words):
        lo.leakage.mixture(3, 30, **arguments)


def test_shares_of_single_clusters_go_with_folds_of_single_clusters():
    data = lo.leakage.mixture(10, 200, rng=1)
    arguments = {
        "groups": data.filed,
        "leakage": lo.leakage.RecordLeakage(np.full(10, 0.01)),
        "injection": lo.leakage.Injection(num_boot=4, num_levels=4),
    }
    model = LinearRegression()
    with pytest.raises(ValueError, match=r"one for each of 5 folds; got 10\. .*LeaveOneGroupOut"):
        lo.leakage.leakage_corrected(model, data.X, data.y, **arguments)
    result = lo.leakage.leakage_corrected(model, data.X, data.y, **arguments, cv=LeaveOneGroupOut())
    assert np.isfinite(result.naive)


def test_draws_of_links_that_empty_a_test_set_are_refused():
    """In some draws every tested record belongs to a training cluster: a refusal, no failure."""
    data = lo.leakage.mixture(10, 60, mislinked=0.3)
    rng = np.random.default_rng(0)
    left, right = np.triu_indices(60, 1)
    same = data.clusters[left] == data.clusters[right]
    probability = 1 / (1 + np.exp(-rng.normal(np.where(same, 3, -3), np.sqrt(6))))
    pairs = np.column_stack([left, right, probability])[probability > 0.5]
    report = lo.leakage.leakage_report(
        LinearRegression(),
        data.X,
        data.y,
        groups=data.filed,
        scoring="mse",
        linkage=lo.leakage.Linkage.from_pairs(pairs, 60),
        answers=["extrapolated"],
    )
    assert "in a draw of the links: p_test must lie in" in report.answers["extrapolated"].refusal
