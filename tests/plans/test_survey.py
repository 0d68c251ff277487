"""Replicate weights of surveys: the formulas, balance, and what a file brings."""

import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from leaveout.plans.survey import _hadamard

STRATA = np.repeat([3, 1, 2], [6, 4, 8])
CLUSTERS = np.repeat(np.arange(9) % 4, 2)


def test_hadamard_matrices_are_orthogonal():
    reached = [order for order in range(4, 100, 4) if _hadamard(order) is not None]
    assert len(reached) == 22  # all but 52 and 92
    for order in (1, 2, *reached):
        found = _hadamard(order)
        assert np.array_equal(found @ found.T, order * np.eye(order)) and (found[:, 0] == 1).all()


def test_the_jackknife_leaves_out_every_cluster():
    weights = lo.survey.jkn(STRATA, CLUSTERS)
    size = pd.Series(CLUSTERS).groupby(STRATA).nunique()
    assert weights.shape == (18, size.sum()) and weights.scale == 1
    for column, rscale in zip(weights.to_numpy().T, weights.rscales, strict=True):
        (of,) = {STRATA[k] for k in np.flatnonzero(column == 0)}
        n = size[of]
        assert len(set(CLUSTERS[column == 0])) == 1 and rscale == (n - 1) / n
        np.testing.assert_allclose(column[(of == STRATA) & (column > 0)], n / (n - 1))
        np.testing.assert_array_equal(column[of != STRATA], 1)
    one = lo.survey.jk1(CLUSTERS)
    np.testing.assert_array_equal(one, lo.survey.jkn(np.zeros(18), CLUSTERS))
    assert one.scale == 0.75 and (one.rscales == 1).all()
    assert lo.survey.jkn(STRATA).shape == (18, 18)


@pytest.mark.parametrize("strata", [1, 3, 4, 7, 12])
def test_half_samples_are_balanced(strata):
    label = np.repeat(np.arange(strata), 6)
    cluster = np.tile([5, 5, 5, 2, 2, 2], strata)
    weights = lo.survey.brr(label, cluster)
    psus = weights.to_numpy()[::3] - 1
    assert set(np.unique(psus)) == {-1, 1} and weights.scale == 1 / weights.shape[1]
    np.testing.assert_array_equal(psus[::2], -psus[1::2])
    np.testing.assert_array_equal(psus[::2] @ psus[::2].T, weights.shape[1] * np.eye(strata))
    np.testing.assert_array_equal(psus.sum(axis=1), 0)
    fay = lo.survey.fay(label, cluster, 0.4)
    np.testing.assert_allclose(fay.to_numpy() - 1, 0.6 * (weights.to_numpy() - 1))
    np.testing.assert_allclose(fay.scale, weights.scale / 0.36)


def test_half_samples_give_the_variance_of_a_stratified_mean():
    y = np.random.default_rng(0).standard_normal(14)
    label = np.repeat(np.arange(7), 2)
    fit = lo.fit(lo.GLM(np.ones((14, 1)), y, "squared", intercept=False))
    want = np.sum(np.diff(y.reshape(7, 2)) ** 2) / 14**2
    for weights in (lo.survey.brr(label), lo.survey.fay(label), lo.survey.jkn(label)):
        np.testing.assert_allclose(lo.survey.replicates(fit, weights, mse=True).iloc[0, 0], want)


def test_the_bootstrap_draws_one_cluster_fewer():
    weights = lo.survey.bootstrap(STRATA, CLUSTERS, 400, rng=1)
    psus = pd.DataFrame(weights.to_numpy()).groupby([STRATA, CLUSTERS]).first()
    for _, own in psus.groupby(level=0):
        n = len(own)
        np.testing.assert_allclose(own.sum(), n)
        np.testing.assert_allclose(own * (n - 1) / n, np.round(own * (n - 1) / n))
    assert weights.scale == 1 / 399 and abs(psus.to_numpy().mean() - 1) < 0.02
    plain = lo.survey.bootstrap(None, CLUSTERS, 30)
    assert plain.shape == (18, 30) and (plain.groupby(CLUSTERS).std() == 0).all(axis=None)
    assert not lo.survey.bootstrap(STRATA, rng=None).equals(lo.survey.bootstrap(STRATA, rng=None))


def test_weights_of_a_file_become_factors():
    file = pd.DataFrame(
        {"w": [2.0, 4.0], "w1": [0.0, 8.0], "w2": [4.0, 0.0], "x": 1.0}, index=["a", "b"]
    )
    found = lo.survey.read(file, "w", "w", scale=0.5, rscales=[1, 2])
    np.testing.assert_array_equal(found, [[0, 2], [2, 0]])
    assert list(found.index) == ["a", "b"] and list(found.columns) == ["w1", "w2"]
    assert found.scale == 0.5 and found.rscales.tolist() == [1, 2]
    np.testing.assert_array_equal(lo.survey.read(file, "w1", scale=1), file[["w1"]])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: lo.survey.jk1([1, 1]), "jk1: at least two clusters"),
        (lambda: lo.survey.jk1([1, np.nan]), "clusters holds 1 missing"),
        (
            lambda: lo.survey.jkn(["a", "a", "b"]),
            "jkn: stratum b has 1 cluster; at least two are needed in each: merge it",
        ),
        (lambda: lo.survey.jkn([1, 1], [1, 2, 3]), "one label a unit; got 2 and 3"),
        (
            lambda: lo.survey.brr(["a", "a", "a"]),
            "brr: stratum a has 3 clusters; 2 are needed in each: pair them",
        ),
        (lambda: lo.survey.fay([1, 1], rho=1.0), "rho must be a number from 0 to below 1; got 1.0"),
        (lambda: lo.survey.bootstrap([1, 2, 2]), "bootstrap: stratum 1 has 1 cluster"),
        (
            lambda: lo.survey.jkn(pd.Series([1, 1], ["a", "b"]), pd.Series([1, 2], ["b", "c"])),
            "the same labels",
        ),
        (
            lambda: lo.survey.read(pd.DataFrame({"w": [1.0]}), "rep", scale=1),
            "no column begins with 'rep'",
        ),
        (
            lambda: lo.survey.read(pd.DataFrame({"r": [1.0]}), "r", "w", scale=1),
            "no column is named 'w'",
        ),
        (
            lambda: lo.survey.read(pd.DataFrame({"w": [0.0], "r": [1.0]}), "r", "w", scale=1),
            "row 0 has weight zero",
        ),
        (
            lambda: lo.survey.read(pd.DataFrame({"r": [-1.0]}), "r", scale=1),
            "finite and not negative",
        ),
        (
            lambda: lo.survey.read(pd.DataFrame({"r": [1.0]}), "r", scale=1, rscales=[1, 2]),
            "rscales must be 1 numbers",
        ),
        (lambda: lo.survey.fay([1, 1], rho="a"), "rho must be a number from 0 to below 1; got 'a'"),
    ],
)
def test_what_is_no_design_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
    with pytest.raises(TypeError, match="give strata, clusters, or both"):
        lo.survey.bootstrap(None)
    with pytest.raises(TypeError, match="frame must be a DataFrame"):
        lo.survey.read(np.eye(2), "r", scale=1)


def test_strata_and_clusters_are_matched_by_their_labels():
    strata, clusters = (
        pd.Series(list("sstttt"), list("abcdef")),
        pd.Series([1, 2, 3, 4, 5, 6], list("abcdef")),
    )
    swapped, plain = clusters[::-1], lo.survey.jkn(strata, clusters)
    pd.testing.assert_frame_equal(lo.survey.jkn(strata, swapped), plain)
    # an array goes by the rows of the argument with labels
    of_clusters = lo.survey.jkn(strata.to_numpy()[::-1], swapped)
    np.testing.assert_array_equal(of_clusters.loc[strata.index], plain)
