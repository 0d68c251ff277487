"""Bounds of rounding.

What they take for granted of functions, and what they say of sums, factors and losses.
"""

import numpy as np
import pytest
import scipy
from flint import arb, arb_mat, ctx

import leaveout as lo
from leaveout.linalg.rounding import FUNCTION, UNIT, Rounding
from tests.problems.proofs import LOSSES, VERIFIER

FUNCTIONS = {
    "exp": (np.exp, lambda x: x.exp(), (-700, 700)),
    "log": (np.log, lambda x: x.log(), (1e-300, 1e3)),
    "log1p": (np.log1p, lambda x: x.log1p(), (1e-300, 1.0)),
    "expm1": (np.expm1, lambda x: x.expm1(), (-30, 30)),
    "erfcx": (scipy.special.erfcx, lambda x: (x * x).exp() * x.erfc(), (1e-300, 1e3)),
}


@pytest.fixture(autouse=True)
def _digits():
    before, ctx.prec = ctx.prec, 2500
    yield
    ctx.prec = before


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_four_units_of_the_last_place(name):
    function, exact, (low, high) = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    x = (
        np.exp(rng.uniform(np.log(low), np.log(high), 800))
        if low > 0
        else rng.uniform(low, high, 800)
    )
    for at, found in zip(x.tolist(), function(x).tolist(), strict=True):
        true = exact(arb(at))
        assert abs(arb(found) - true) <= 8 * UNIT * abs(true), (name, at)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_within_what_is_allowed_for_them(name):
    """ℓ, ℓ′ and ℓ″ as the library computes them, against balls."""
    assert VERIFIER.exists()
    from leaveout_verify.losses import NAMED

    from leaveout.validation.certificate_file import named_loss

    rng = np.random.default_rng(1)
    loss = LOSSES[name][0]
    loss = lo.losses.resolve(loss) if isinstance(loss, str) else loss
    says = named_loss(loss)
    exact = NAMED[says.pop("name")](**says)
    wide = {"probit": 30.0, "cloglog": 5.0}.get(name, 25.0)
    eta = np.r_[rng.uniform(-wide, wide, 200), rng.normal(size=200)]
    y = (
        np.tile([0.0, 1.0], 200)
        if name in ("logistic", "probit", "cloglog")
        else rng.poisson(2.0, 400) + (name == "gamma")
    )
    found = loss.derivatives(eta, 1.0 * y, (0, 1, 2))
    sizes = [loss.terms(order, np.abs(part), eta, 1.0 * y) for order, part in enumerate(found)]
    for k in range(400):
        true = exact.taylor(arb(eta[k]), arb(float(y[k])))
        for order in range(3):
            allowed = FUNCTION * arb(float(sizes[order][k])) + arb(1e-300)
            assert abs(arb(float(found[order][k])) - true[order]) <= allowed, (k, order)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6])
def test_bounds_of_predictors_norms_and_gradients(spread):
    """Columns that nearly repeat one another.

    Each bound holds against arithmetic of many digits.
    """
    rng = np.random.default_rng(0)
    X, theta, slope = rng.normal(size=(40, 4)), rng.normal(size=4), rng.normal(size=40)
    X[:, 1] = X[:, 0] + spread * X[:, 1]
    H = X.T @ X
    factor = np.linalg.cholesky(H)
    R, scale = scipy.linalg.lapack.dtrtri(factor, lower=1)[0], np.linalg.norm(factor, axis=1)
    root = float(np.linalg.norm(np.abs(R) @ scale))
    off = (40 + 4 * 4 + 8) * UNIT * root**2
    rounding = Rounding(40, 4, root, off, float(np.abs(theta) @ scale))
    exact = lambda array: arb_mat([[arb(float(v)) for v in row] for row in np.atleast_2d(array)])
    true = exact(X).transpose() * exact(X)
    B = exact(R) * true * exact(R).transpose() - exact(np.eye(4))
    assert sum((b * b for b in B.entries()), arb(0)) <= off**2
    length = np.sqrt(np.sum((X @ R.T) ** 2, axis=1)) * rounding.growth
    solved = true.solve(exact(X.T))
    for i in range(40):
        k = sum((arb(float(X[i, j])) * solved[j, i] for j in range(4)), arb(0))
        assert k <= length[i] ** 2
    allowed = rounding.predictor(length, np.abs(X @ theta))
    for mine, own, bound in zip(
        X @ theta, (exact(X) * exact(theta[:, None])).entries(), allowed, strict=True
    ):
        assert abs(arb(float(mine)) - own) <= bound
    pulled = (exact(R) * (exact(X).transpose() * exact(slope[:, None]))).entries()
    apart = [arb(float(v)) - w for v, w in zip((slope @ X) @ R.T, pulled, strict=True)]
    assert (
        sum((v * v for v in apart), arb(0)) <= rounding.gradient(float(np.abs(slope) @ length)) ** 2
    )
