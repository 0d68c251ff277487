"""Columns far from zero, and nearly collinear ones.

Numbers do not depend on where a column begins, and the proofs hold.
"""

import warnings
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge

import leaveout as lo
from leaveout.models.glm.orthogonal import OrthogonalGLM, product

N = 30


def inverse(matrix):
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for c in range(size):
        pivot = next(r for r in range(c, size) if rows[r][c])
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [value / rows[c][c] for value in rows[c]]
        for r in range(size):
            if r != c and rows[r][c]:
                rows[r] = [a - rows[r][c] * b for a, b in zip(rows[r], rows[c], strict=True)]
    return [row[size:] for row in rows]


def exact(X, y):
    """Left-out losses and leverages of least squares with an intercept, in rational arithmetic."""
    rows, y = (
        [[Fraction(1), *map(Fraction, row)] for row in X.tolist()],
        [Fraction(value) for value in y.tolist()],
    )
    size = range(len(rows[0]))
    known = inverse([[sum(row[i] * row[j] for row in rows) for j in size] for i in size])
    pulled = [sum(row[j] * value for row, value in zip(rows, y, strict=True)) for j in size]
    coef = [sum(known[i][j] * pulled[j] for j in size) for i in size]
    leverage = [sum(row[i] * known[i][j] * row[j] for i in size for j in size) for row in rows]
    residual = [
        value - sum(a * b for a, b in zip(row, coef, strict=True))
        for row, value in zip(rows, y, strict=True)
    ]
    return [(r / (1 - h)) ** 2 / 2 for r, h in zip(residual, leverage, strict=True)], leverage


def wampler():
    x = np.arange(21.0)
    noise = [
        759,
        -2048,
        2048,
        -2048,
        2523,
        -2048,
        2048,
        -2048,
        1838,
        -2048,
        2048,
        -2048,
        1838,
        -2048,
        2048,
        -2048,
        2523,
    ]
    return x[:, None] ** np.arange(1, 6), sum(x**k for k in range(6)) + np.array(
        [*noise, -2048, 2048, -2048, 759.0]
    )


def longley():
    """Columns like those of an economy: two that grow together, and the year."""
    rng = np.random.default_rng(0)
    year = np.arange(1947.0, 1963.0)
    product = np.round(2.3e5 + 2.1e4 * (year - 1947) + 2e3 * rng.standard_normal(16))
    deflator = np.round(np.sqrt(product) / 5 + 0.05 * rng.standard_normal(16), 1)
    return np.column_stack([product, deflator, year]), np.round(
        5e4 + 0.03 * product + 300 * rng.standard_normal(16)
    )


@pytest.mark.parametrize("table", [wampler, longley])
def test_losses_are_those_of_rational_arithmetic_and_proved(table):
    X, y = table()
    fit = lo.fit(lo.GLM(X, y, "squared"))
    truth, leverage = exact(X, y)
    cv = lo.cross_validate(fit, lo.leave_one_out())
    off = np.array(
        [
            float(abs(Fraction(loss) - true))
            for loss, true in zip(cv.per_unit().tolist(), truth, strict=True)
        ]
    )
    assert isinstance(fit.objective, OrthogonalGLM) and cv.proved.all()
    assert (off <= cv.error).all() and (cv.error <= 1e-7 * np.array(truth, float)).all()
    np.testing.assert_allclose(lo.diagnostics.leverage(fit), np.array(leverage, float), rtol=1e-10)


def test_products_are_rounded_once():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 9)) * 10.0 ** rng.integers(-3, 4, 9)
    basis = rng.standard_normal((9, 3))
    basis[0] = -(rows[0, 1:] @ basis[1:]) / rows[0, 0]  # the first row's sums cancel
    found, error = product(rows, basis)
    for i in range(6):
        for j in range(3):
            true = sum(
                Fraction(a) * Fraction(b)
                for a, b in zip(rows[i].tolist(), basis[:, j].tolist(), strict=True)
            )
            assert abs(Fraction(found[i, j]) - true) <= abs(true) * Fraction(2.0**-53) + Fraction(
                error[i, j]
            )
            assert error[i, j] < 1e-24 * np.abs(rows[i]).max() * np.abs(basis[:, j]).max() * 1e3


def dyadic(rng):
    x = np.round(rng.standard_normal(N) * 2.0**18) / 2.0**18
    z = rng.standard_normal(N)
    return x, z, x + z + rng.standard_normal(N)


def from_statsmodels(X, y):
    sm = pytest.importorskip("statsmodels.api")
    return lo.from_statsmodels(sm.OLS(y, sm.add_constant(X)).fit())


def of_a_factor(X, y):
    sm = pytest.importorskip("statsmodels.api")
    return lo.from_statsmodels(
        sm.OLS(y, np.column_stack([X, np.arange(N) < N // 2, np.arange(N) >= N // 2])).fit()
    )


def of_dummies_and_a_constant(X, y):
    columns = np.column_stack([X, np.ones(N), np.eye(3)[np.arange(N) % 3]])
    return lo.fit(lo.GLM(columns, y, "squared", intercept=False))


WAYS = {
    "GLM": lambda X, y: lo.fit(lo.GLM(X, y, "squared")),
    "ridge": lambda X, y: lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(np.array([0.0, 1.0])))),
    "LinearRegression": lambda X, y: lo.from_sklearn(LinearRegression().fit(X, y), X, y),
    "statsmodels": from_statsmodels,
    "factor": of_a_factor,
    "dummies and a constant": of_dummies_and_a_constant,
}


@pytest.mark.parametrize("way", WAYS)
@hypothesis.settings(max_examples=4, deadline=None, derandomize=True)
@hypothesis.given(st.integers(0, 99), st.integers(0, 26), st.integers(-3, 3), st.booleans())
def test_numbers_do_not_depend_on_where_a_column_begins(way, seed, power, scale, exactly):
    x, z, y = dyadic(np.random.default_rng(seed))
    a, b = (2.0**power, 2.0**scale) if exactly else (1.1 * 10.0 ** (power / 4), 1.7)
    if way == "ridge":
        b = 1.0
    fits = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels itself loses digits far out
        for column in (x, a + b * x):
            fits.append(WAYS[way](np.column_stack([column, z]), y))
    tolerance = 1e-9 + (0.0 if exactly else 1000 * 2.2e-16 * a / np.std(b * x))
    first, second = (lo.cross_validate(fit, lo.leave_one_out()) for fit in fits)
    for measure in (lo.diagnostics.leverage, lo.diagnostics.cooks_distance):
        assert np.abs(measure(fits[0]) - measure(fits[1])).max() < tolerance
    assert np.abs(first.per_unit() - second.per_unit()).max() < tolerance and second.proved.all()


@pytest.mark.parametrize("penalty", [None, lo.penalties.Ridge(np.array([0.0, 2.0]))])
def test_every_verb_speaks_of_the_columns_as_given(penalty):
    x, z, y = dyadic(np.random.default_rng(1))
    weight, shift = 1.0 + np.arange(N) % 3, 2.0**22
    far, near = (
        lo.fit(lo.GLM(np.column_stack([column, z]), y, "squared", penalty, sample_weight=weight))
        for column in (x + shift, x)
    )
    assert isinstance(far.objective, OrthogonalGLM) and not isinstance(
        near.objective, OrthogonalGLM
    )
    close = lambda a, b: np.testing.assert_allclose(
        np.asarray(a, float), np.asarray(b, float), rtol=1e-7, atol=1e-9
    )
    close(far.parameters["coef"], near.parameters["coef"])
    close(
        far.parameters["intercept"] + shift * far.parameters["coef"][0],
        near.parameters["intercept"],
    )
    new = np.array([[0.3, 0.1], [-2.0, 1.5]])
    close(lo.predict(far, new + np.array([shift, 0.0])), lo.predict(near, new))
    for plan in (lo.kfold(N, 5), lo.bootstrap(N, 4)):
        close(lo.cross_predict(far, plan), lo.cross_predict(near, plan))
    close(
        lo.fold_parameters(far, lo.kfold(k=5))["coef"],
        lo.fold_parameters(near, lo.kfold(k=5))["coef"],
    )
    for kind in ("nonrobust", "HC3"):
        close(
            lo.covariance(far, kind).summary().iloc[:2, :2],
            lo.covariance(near, kind).summary().iloc[:2, :2],
        )
    close(lo.diagnostics.dfbetas(far).iloc[:, :2], lo.diagnostics.dfbetas(near).iloc[:, :2])
    row = [
        lo.influence(
            lo.cross_validate(fit, lo.leave_one_out()), prediction=new[0] + np.array([a, 0.0])
        )
        for fit, a in ((far, shift), (near, 0))
    ]
    close(row[0].rows["prediction"], row[1].rows["prediction"])
    assert far.objective.units.features()["x0"][0] == x[0] + shift


@pytest.mark.parametrize("has_constant", [True, False], ids=["a constant", "two factors"])
def test_losses_of_dependent_columns_beside_one_far_from_zero_are_determined(has_constant):
    """An easting beside all dummies and a constant, or beside two factors.

    The space of the columns is well-posed.
    """
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    factor, easting = np.eye(4)[np.arange(N) % 4], 1e3 * rng.standard_normal(N)
    others = np.ones((N, 1)) if has_constant else np.eye(3)[np.arange(N) // 4 % 3]
    y = 0.002 * easting + np.arange(N) % 4 + rng.standard_normal(N)
    Q = np.linalg.qr(np.column_stack([factor, others[:, 1:], easting / 1e3]))[0]
    press = ((y - Q @ (Q.T @ y)) / (1 - (Q**2).sum(1))) ** 2 / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels speaks of the rank
        fit = lo.from_statsmodels(
            sm.OLS(y, np.column_stack([factor, others, easting + 4.5e6])).fit()
        )
    cv = lo.cross_validate(fit, lo.leave_one_out())
    assert cv.proved.all()
    np.testing.assert_allclose(cv.per_unit(), press, rtol=0, atol=1e-9)


def test_a_row_that_alone_determines_a_column_is_left_out_as_the_host_does():
    sm = pytest.importorskip("statsmodels.api")
    x, z, y = dyadic(np.random.default_rng(2))
    X = np.column_stack([np.ones(N), x + 2.0**20, z, np.arange(N) == 3])
    cv = lo.cross_validate(lo.from_statsmodels(sm.OLS(y, X).fit()), lo.leave_one_out())
    rest = np.arange(N) != 3
    coef = np.linalg.lstsq(np.column_stack([np.ones(N), x, z])[rest], y[rest], rcond=None)[0]
    off = abs(cv.per_unit()[3] - (y[3] - coef @ [1.0, x[3], z[3]]) ** 2 / 2)
    assert off < 1e-3 and off <= cv.error[3] and not cv.proved[3]


def test_sklearn_ridge_is_centred():
    x, z, y = dyadic(np.random.default_rng(3))
    X = np.column_stack([x + 2.0**24, z])
    near = lo.fit(lo.GLM(np.column_stack([x, z]), y, "squared", lo.penalties.Ridge(0.5)))
    far = lo.from_sklearn(Ridge(0.5).fit(X, y), X, y)
    cv = lo.cross_validate(far, lo.leave_one_out())
    assert cv.proved.all() and cv.mean == pytest.approx(
        lo.cross_validate(near, lo.leave_one_out()).mean, rel=1e-9
    )
