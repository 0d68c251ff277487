"""Gaussian fields against the same written out again, dense (`tests.oracles.dense_fields`), and
sums over responses.
"""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy import integrate

import leaveout as lo
from leaveout.linalg.sparse_cholesky import pattern
from leaveout.models.latent import leave_one_out as _latent_alone
from leaveout.models.latent.quadrature import marginal_losses
from tests.oracles.dense_fields import Dense, unconstrained


def grid(a, b):
    i = np.arange(a * b).reshape(a, b)
    return np.r_[np.c_[i[:, :-1].ravel(), i[:, 1:].ravel()], np.c_[i[:-1].ravel(), i[1:].ravel()]]


def data(family, edges, n, seed=0):
    rng = np.random.default_rng(seed)
    x, exposure = rng.standard_normal(n), rng.uniform(1, 8, n)
    R = np.zeros((n, n))
    R[edges[:, 0], edges[:, 1]] = R[edges[:, 1], edges[:, 0]] = -1
    R -= np.diag(R.sum(1))
    u = np.linalg.solve(
        np.linalg.cholesky(3 * (0.9 * R + 0.1 * np.eye(n))).T, rng.standard_normal(n)
    )
    eta = 0.2 + 0.3 * x + u
    if family == "poisson":
        return rng.poisson(exposure * np.exp(eta)).astype(float), x, {"exposure": exposure}
    if family == "binomial":
        trials = rng.integers(1, 9, n).astype(float)
        return (
            rng.binomial(trials.astype(int), 1 / (1 + np.exp(-eta))).astype(float),
            x,
            {"trials": trials},
        )
    return eta + 0.4 * rng.standard_normal(n), x, {}


def both(family, structure, edges=None, n=20, **more):
    """The field, and the dense one; covariates as they are standardised have other coefficients."""
    edges = grid(4, 5) if edges is None else edges
    y, x, extra = data(family, edges, n)
    return (
        lo.GaussianField(y, edges, x, family=family, structure=structure, **extra, **more),
        Dense(
            y,
            edges,
            np.c_[np.ones(n), x],
            family,
            structure,
            prior=more.get("prior", True) is not None,
            **extra,
        ),
    )


def as_dense(field, dense, theta):
    """θ of the dense field."""
    return unconstrained(field.parameters.natural(theta), dense.names)


def answering(field, y):
    """The same field of another response."""
    other = copy.copy(field)
    vars(other).pop("engine", None)
    vars(other)["y"] = y
    return other


SPARSE = {
    "grid": (grid(6, 7), 42),
    "star": (np.c_[np.zeros(20, int), np.arange(1, 21)], 21),
    "none": (np.zeros((0, 2), int), 9),
    "two paths, a site alone": (np.array([[0, 1], [1, 2], [2, 3], [5, 6], [6, 7]]), 9),
    "all": (np.array([(i, j) for i in range(8) for j in range(i)]), 8),
    "crossed": (np.array([(i, 40 + (i * 7 + k) % 5) for i in range(40) for k in range(2)]), 45),
}


@pytest.mark.parametrize("share", [0.0, 0.9])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_factors(name, share):
    edges, n = SPARSE[name]
    rng = np.random.default_rng(0)
    lower = scipy.sparse.coo_array(
        (rng.uniform(-1, 1, len(edges)), (edges.max(1), edges.min(1))), shape=(n, n)
    ).tocsr()
    matrices = [
        lower
        + lower.T
        + scipy.sparse.diags_array(rng.uniform(1, 2, n) + abs(lower + lower.T).sum(1))
        for _ in range(3)
    ]
    # of "crossed" one side is eliminated first
    known = pattern(matrices[0], np.arange(int(share * n)))
    factor, right = (
        known.factor(np.array([known.values(m) for m in matrices])),
        rng.standard_normal((3, n, 2)),
    )
    for k, dense in enumerate(m.toarray() for m in matrices):
        assert factor.logdet[k] == pytest.approx(np.linalg.slogdet(dense)[1])
        np.testing.assert_allclose(
            factor.inverse[k], np.linalg.inv(dense)[known.row, known.column], atol=1e-13
        )
        np.testing.assert_allclose(
            factor.solve(right)[k], np.linalg.solve(dense, right[k]), atol=1e-12
        )
    values = known.values(matrices[0])
    # the first is not lost
    spoilt = np.array([values, -values, np.full_like(values, np.nan), np.full_like(values, np.inf)])
    assert np.array_equal(np.isfinite(known.factor(spoilt).logdet), [True, False, False, False])


CASES = [
    (f, s)
    for f in ("poisson", "binomial", "gaussian")
    for s in ("bym2", "leroux", "car", "icar", "matern")
]


@pytest.mark.parametrize(("family", "structure"), CASES)
def test_f_and_its_gradient(family, structure):
    field, dense = both(family, structure)
    rng = np.random.default_rng(1)
    theta, w = (
        field._start(0) + 0.3 * rng.standard_normal(len(field._start(0))),
        rng.uniform(0, 2, 20),
    )
    w[[3, 7]] = 0
    natural = field.parameters.natural(theta)
    at, start = (as_dense(field, dense, v) for v in (theta, field._start(0)))
    value, gradient, _ = field.look(theta[None], w[None])
    other = field.look(field._start(0)[None], w[None])[0]
    # up to the prior's constant, and weights of |Q| on what it is of
    np.testing.assert_allclose(
        value - other, dense.value(at, w) - dense.value(start, w), rtol=1e-8, atol=1e-7
    )
    for k, step in enumerate(1e-5 * np.eye(len(theta))):
        ends = [field.look((theta + sign * step)[None], w[None])[0][0] for sign in (1, -1)]
        assert gradient[0, k] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-5)
    np.testing.assert_allclose(field.parameters.unconstrained(natural), theta, atol=1e-10)
    fresh = field.look(
        np.stack([theta, theta + 0.1]),
        np.stack([w, w]),
        field.look((theta + 1)[None], w[None])[2].repeat(2, 0),
    )
    # wherever the mode is looked for from
    np.testing.assert_allclose(fresh[0][0], value[0], rtol=1e-12)
    np.testing.assert_allclose(fresh[1][0], gradient[0], atol=1e-9)


slowly = lambda *case: pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "structure"),
    [("poisson", "bym2"), slowly("binomial", "leroux"), slowly("gaussian", "matern")],
)
def test_refits_are_those_from_scratch(family, structure):
    field, dense = both(family, structure)
    fit = lo.fit(field, num_starts=1)
    at = unconstrained(fit.parameters, dense.names)
    exact = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact(), audit=0).losses
    certified = lo.cross_validate(fit, lo.leave_one_out())
    assert (np.abs(certified.losses - exact) <= certified.error + 1e-9).all()
    for site in (0, 7):
        w = np.ones(20)
        w[site] = 0
        theta = dense.refit(at, w)
        assert dense.value(theta, w) <= dense.value(at, w) + 1e-9
        assert exact[site] == pytest.approx(dense.score(theta, w, site), abs=2e-5)


@pytest.mark.parametrize("family", ["poisson", "binomial", "gaussian"])
def test_scores_are_densities(family):
    field, _ = both(family, "leroux")
    theta, w = field._start(0)[None] + 0.4, np.ones((1, 20))
    w[0, [4, 5]] = 0  # a neighbour unseen as well

    def density(y):
        at = answering(field, np.where(np.arange(20) == 4, y, field.y))
        return np.exp(
            -marginal_losses(
                at.engine.data.select_rows(np.array([4])), mean[0], variance[0], tau[:, 0]
            )[0]
        )

    mean, variance, tau, _ = field._conditional_moments(theta, w, np.array([[4]]), None)
    assert density(field.y[4]) == pytest.approx(
        np.exp(-field.losses(theta, w, np.array([[4]]), np.ones((1, 1), bool))[0, 0])
    )
    if family == "gaussian":
        total = integrate.quad(density, -40, 40, points=[0.0])[0]
    else:
        total = sum(
            density(float(k))
            for k in range(int(field.trials[4]) + 1 if family == "binomial" else 400)
        )
    assert total == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("family", "structure"), [("poisson", "bym2"), ("binomial", "matern"), ("gaussian", "icar")]
)
def test_one_pass_leaves_every_site_out(family, structure):
    edges = grid(8, 14)
    y, x, extra = data(family, edges, 112)
    field = lo.GaussianField(y, edges, x, family=family, structure=structure, **extra)
    theta, ones, some = field._start(0)[None] + 0.2, np.ones((1, 112)), np.arange(0, 112, 5)
    at = field.engine.mode(theta, ones)
    exactly = lambda some: field._alone(at, some)
    ring = _latent_alone.rings(at, some, exactly)
    for got, want, close in zip(
        _latent_alone.alone(at, ring), exactly(some), _latent_alone.CLOSE_BY, strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1.5 * close, rtol=0)
    w = np.ones((len(some), 112))
    w[np.arange(len(some)), some] = 0
    np.testing.assert_allclose(
        exactly(some).joint,
        at.value[0] - field.look(np.repeat(theta, len(some), 0), w)[0],
        atol=1e-9,
    )


@pytest.mark.parametrize(
    "refit", [lo.Certified(), lo.Exact(), lo.NewtonStep(), lo.InfinitesimalJackknife()]
)
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
@pytest.mark.slow_for("gaussian-refit1", "poisson-refit1", "poisson-refit3")
def test_a_refit_whose_sites_leave_a_coefficient_open_has_no_loss(family, refit):
    edges = grid(5, 6)
    y, _, _ = data(family, edges, 30)
    y[2] = np.nan  # without a response, it tells nothing of the coefficient
    fit = lo.fit(
        lo.GaussianField(y, edges, (np.arange(30) < 3) * 1.0, family=family, structure="icar")
    )
    out = [[0, 1], [0, 5], [0, 1, 7]]
    plan = lo.from_splits([(np.setdiff1d(np.arange(30), some), some) for some in out], 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = lo.cross_validate(fit, plan, strategy=refit).table().query("refit >= 0")
    lost = table.refit != 1
    assert (table.result[lost] == "undetermined").all() and table.loss[lost].isna().all()
    assert (table.result[~lost] == "successful").all() and table.loss[~lost].notna().all()


def test_islands_and_components():
    """Two pieces and two sites alone: each piece sums to zero, and has variances of its own."""
    edges = np.r_[grid(3, 4), 12 + grid(2, 3)]
    for structure in ("icar", "bym2", "leroux"):
        field, dense = both("poisson", structure, edges, 20)
        theta, w = field._start(0), np.ones(20)
        w[12:18] = 0  # a whole component unseen
        ours = field.look(np.stack([theta, theta + 0.3]), np.stack([w, w]))[0]
        theirs = [dense.value(as_dense(field, dense, theta + move), w) for move in (0, 0.3)]
        np.testing.assert_allclose(np.diff(ours), np.diff(theirs), atol=1e-7)
        if structure == "icar":
            u = field.engine.mode(theta[None], np.ones((1, 20))).u[0, :20]
            np.testing.assert_allclose([u[:12].sum(), u[12:18].sum()], 0, atol=1e-9)
    with pytest.raises(ValueError, match="neighbour of every site"):
        both("poisson", "car", edges, 20)


def test_predictions_missing_sites_and_labels():
    edges = grid(5, 6)
    y, x, extra = data("poisson", edges, 30)
    names = [f"tract {k}" for k in range(30)]
    y[[2, 9]] = np.nan
    frame = pd.DataFrame({"deprivation": x}, index=names)
    field = lo.GaussianField(
        pd.Series(y, names), edges, frame, exposure=pd.Series(extra["exposure"], names)[::-1]
    )
    fit = lo.fit(field, num_starts=1)
    assert field.parameters.names()[:2] == ["intercept", "deprivation"] and "2 sites" in field.note
    estimate = lo.cross_validate(fit, lo.kfold(k=5))
    assert (
        np.isnan(np.asarray(estimate.per_unit())[[2, 9]]).all()
        and np.isfinite(np.delete(np.asarray(estimate.per_unit()), [2, 9])).all()
    )
    surface = field.smoothed(fit)
    assert list(surface.index) == names and (surface.sd > 0).all()
    mean = np.asarray(lo.cross_predict(fit, lo.kfold(k=5)))
    assert np.corrcoef(np.delete(mean, [2, 9]), np.delete(y, [2, 9]))[0, 1] > 0.4
    rebuilt = lo.anchor(field, fit.parameters)
    assert rebuilt.decrement < 1e-4
    for unit in (2, 9):  # whatever is written there
        other = answering(field, np.where(np.arange(30) == unit, 1e6, field.y))
        assert field.loss(fit.theta, np.ones(30)) == pytest.approx(
            other.loss(fit.theta, np.ones(30)), rel=1e-14
        )


def test_areas_of_geopandas():
    geopandas, shapely = pytest.importorskip("geopandas"), pytest.importorskip("shapely")
    areas = geopandas.GeoDataFrame(
        geometry=[shapely.box(j, i, j + 1, i + 1) for i in range(3) for j in range(4)]
    )
    y = np.arange(12) % 5
    field = lo.GaussianField(y, areas, structure="leroux")
    pairs = {tuple(pair) for pair in np.sort(field.edges, axis=1).tolist()}
    diagonal = {(0, 5), (1, 4), (6, 11)}
    assert {tuple(pair) for pair in grid(3, 4).tolist()} | diagonal <= pairs and len(
        pairs
    ) == 17 + 12


BAD = {
    "counts 0, 1": lambda y, e: lo.GaussianField(y + 0.5, e),
    "above trials": lambda y, e: lo.GaussianField(np.full(9, 2.0), e, family="binomial"),
    "end of its range": lambda y, e: lo.GaussianField(0 * y, e),
    "positive and finite": lambda y, e: lo.GaussianField(y, e, exposure=y * 0),
    "goes with family": lambda y, e: lo.GaussianField(y, e, trials=y + 1),
    "constant": lambda y, e: lo.GaussianField(y, e, np.ones(9)),
    "repeat one another": lambda y, e: lo.GaussianField(
        y, e, np.c_[np.arange(9), 2 * np.arange(9)]
    ),
    "infinite values": lambda y, e: lo.GaussianField(np.where(y == 1, np.inf, y), e),
    "three are needed": lambda y, e: lo.GaussianField(np.where(np.arange(9) > 1, np.nan, y), e),
    "structure must be": lambda y, e: lo.GaussianField(y, e, structure="cars"),
    "family must be": lambda y, e: lo.GaussianField(y, e, family="gamma"),
    "the graph has none": lambda y, e: lo.GaussianField(y, e[:0]),
    "all values of y": lambda y, e: lo.GaussianField(0 * y, e, family="gaussian"),
    r"X must be \[9, features\]": lambda y, e: lo.GaussianField(y, e, np.arange(8.0)),
    "prior must be": lambda y, e: lo.GaussianField(y, e, prior="flat"),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_is_said(message):
    with pytest.raises(ValueError, match=message):
        BAD[message](np.arange(9.0), grid(3, 3))


@pytest.mark.slow
def test_ugly_numbers():
    """Exposures over ten orders of magnitude, a site whose count is a million times the others'.

    And no field at all.
    """
    edges = grid(5, 6)
    rng = np.random.default_rng(0)
    exposure = 10 ** rng.uniform(-3, 7, 30)
    y = rng.poisson(exposure * 0.01).astype(float)
    fit = lo.fit(lo.GaussianField(y, edges, exposure=exposure), num_starts=1)
    exact, certified = (
        lo.cross_validate(fit, lo.leave_one_out(), strategy=refit)
        for refit in (lo.Exact(), lo.Certified())
    )
    assert (
        np.isfinite(exact.losses).all()
        and (np.abs(exact.losses - certified.losses) <= certified.error + 1e-7).all()
    )
    flat = lo.GaussianField(np.full(30, 7.0), edges, structure="leroux")
    fit = lo.fit(flat, num_starts=1)
    assert 0 < fit.parameters["sd"] < 0.2  # kept off zero
    # no number for what overflows
    assert np.isinf(flat.look(np.array([[800.0, 0.0, 0.0]]), np.ones((1, 30)))[0]).all()


def test_maps_and_influence():
    """Every site in the colour of its effect; coefficients go by the names of their columns."""
    names = pd.Index([f"tract {k}" for k in range(30)])
    y, x, extra = data("poisson", grid(5, 6), 30)
    frame = pd.DataFrame({"deprivation": x}, index=names)
    fit = lo.fit(lo.GaussianField(pd.Series(y, names), grid(5, 6), frame, **extra), num_starts=1)
    cv, at = (
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NoUpdate()),
        np.random.default_rng(0).random((30, 2)),
    )
    axes = lo.plot.field(fit, at, cv, num_named=3)
    drawn = next(group for group in axes.collections if len(group.get_offsets()) == 30)
    np.testing.assert_array_equal(drawn.get_array(), fit.objective.smoothed(fit).effect)
    assert {text.get_text() for text in axes.texts} == set(names[np.argsort(-cv.per_unit())[:3]])
    told = lo.influence(
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.InfinitesimalJackknife(), audit=0),
        num_pairs=0,
    )
    assert "deprivation" in told.parameters and len(told.parameters) == 30
