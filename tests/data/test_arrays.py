"""Frames and columns of Polars and Arrow: the same numbers as pandas', by position."""

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pytest import approx
from sklearn.linear_model import Ridge

import leaveout as lo

pl = pytest.importorskip("polars")
rng = np.random.default_rng(0)
N = 40
FRAME = pd.DataFrame(
    {"age": rng.normal(50, 9, N), "dose": rng.uniform(0, 2, N), "visits": rng.poisson(2.0, N)}
)
X, Y = FRAME[["age", "dose"]], FRAME["dose"] + rng.normal(size=N)
CITY = np.resize(["Ulm", "Bonn", "Kiel"], N)
WAYS = {
    "polars": (pl.from_pandas(X), pl.Series("y", Y.to_numpy()), pl.Series(CITY)),
    "arrow": (
        pa.Table.from_pandas(X),
        pa.chunked_array([pa.array(Y)]),
        pa.chunked_array([pa.array(CITY)]),
    ),
}


@pytest.fixture(params=WAYS)
def given(request):
    return WAYS[request.param]


def mean(x, y, plan=None):
    return lo.cross_validate(lo.fit(lo.GLM(x, y, "squared")), plan or lo.kfold(N, 5, rng=0)).mean


def test_regressions_are_the_same(given):
    x, y, city = given
    assert lo.fit(lo.GLM(x, y, "squared")).objective.names == ("age", "dose")
    assert mean(x, y) == approx(mean(X, Y)) and mean(x, y, lo.groups(city)) == approx(
        mean(X, Y, lo.groups(CITY))
    )
    # columns by their names
    found = lo.interval(lo.fit(lo.GLM(x, y, "squared")), x.select(["dose", "age"]))
    wanted = lo.interval(lo.fit(lo.GLM(X, Y, "squared")), X)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    mine, theirs = (
        lo.sklearn.cross_validate(Ridge(1.0), *data, cv=4)["test_score"]
        for data in ((x, y), (X, Y))
    )
    np.testing.assert_allclose(mine, theirs, rtol=1e-10)
    assert lo.fit(lo.GLM(x, city, "multinomial")).objective.classes == ("Bonn", "Kiel", "Ulm")


def test_rows_without_labels_go_by_position(given):
    """An index that is 0, …, n − 1 in another order does not put the rows of what has no index into
    that order.
    """
    x, _, _ = given
    assert mean(x, Y.set_axis(rng.permutation(N))) == approx(mean(X, Y))


def test_series_and_fields(given):
    kind = type(given[1])
    counts = FRAME["visits"].to_numpy()
    column = (
        pl.Series("visits", counts) if kind is pl.Series else pa.chunked_array([pa.array(counts)])
    )
    hmm, field = (
        (lo.HMM(c, lo.emissions.Poisson(), 2) for c in (column, counts)),
        [(k, k + 1) for k in range(N - 1)],
    )
    edges = (
        pl.DataFrame(field, schema=["a", "b"], orient="row")
        if kind is pl.Series
        else pa.table(pd.DataFrame(field))
    )
    mrf = (
        lo.MRF(c, e, lo.emissions.Poisson(exposure=1.0 + np.arange(N)), 2, coupling=1.0)
        for c, e in ((column, edges), (counts, np.array(field)))
    )
    for ours, theirs in (hmm, mrf):
        theta, weights = theirs.parameters.start(0), np.ones(N)
        with jax.enable_x64(True):
            assert float(ours.loss(theta, weights)) == approx(float(theirs.loss(theta, weights)))


def test_what_holds_no_numbers_is_refused():
    with pytest.raises(TypeError, match="GLM: X must hold numbers; these columns do not: 'city'"):
        lo.GLM(pl.DataFrame({"city": CITY}), Y, "squared")
    with pytest.raises(ValueError, match="NaN or infinite values, in columns \\['age'\\]"):
        lo.GLM(pl.DataFrame({"age": [None, *X["age"][1:]]}), Y, "squared")
    with pytest.raises(
        TypeError, match=r"GLM: X is a LazyFrame, whose rows are not there yet; give X.collect\(\)"
    ):
        lo.GLM(pl.from_pandas(X).lazy(), Y, "squared")
