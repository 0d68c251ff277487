"""Groups of a fit's own posterior correlations, by brute force from the joint posterior
covariance.
"""

import numpy as np
import pandas as pd
import pytest
from scipy import linalg, optimize, special

import leaveout as lo
from tests.helpers import fitted, glm
from tests.models.latent.test_field import data, grid


def joint(field, theta):
    """The covariance of all linear predictors, from the inverse of the precision of β and of all
    that is latent.
    """
    latent, at = field.engine.latent, field.engine.full_mode(theta)
    X, Z = latent.data.design, latent.columns(at.refits, np.arange(len(latent.data.y)))[0].T
    Q = sum(
        c * term.toarray() for c, term in zip(at.refits.c[0], latent.incidence.terms, strict=True)
    )
    W, A = np.where(field.observed, at.losses[2][0], 0.0)[:, None], np.c_[X, Z]
    precision = A.T @ (W * A)
    precision[X.shape[1] :, X.shape[1] :] += Q
    if latent.field.constraint is not None:  # what is left of the space where it sums to zero
        B = np.c_[np.zeros((len(latent.field.constraint), X.shape[1])), latent.field.constraint]
        free = np.linalg.svd(B)[2][len(B) :].T
        return A @ free @ np.linalg.inv(free.T @ precision @ free) @ (A @ free).T
    return A @ np.linalg.inv(precision) @ A.T


def brute(C, size):
    share = np.abs(C) / np.sqrt(np.outer(np.diag(C), np.diag(C)))
    return [
        set(sorted(range(len(C)), key=lambda j, i=i: (i != j, -round(share[i, j], 9), j))[:size])
        for i in range(len(C))
    ]


@pytest.mark.parametrize(
    ("family", "structure"),
    [("poisson", "bym2"), ("binomial", "leroux"), ("gaussian", "matern"), ("poisson", "icar")],
)
def test_the_same_as_by_brute_force(family, structure):
    edges = grid(5, 6)
    y, x, extra = data(family, edges, 30)
    y[4] = np.nan
    fit = lo.fit(
        lo.GaussianField(y, edges, x, family=family, structure=structure, **extra), num_starts=1
    )
    plan, wanted = lo.diagnostics.auto_groups(fit, 5), brute(joint(fit.objective, fit.vector), 5)
    assert plan.num_refits == 29  # that are observed
    for k, unit in enumerate(np.delete(np.arange(30), 4)):
        row = slice(*plan.indptr[k : k + 2])
        assert set(plan.index[row]) == wanted[unit] and plan.index[row][
            plan.held[row]
        ].tolist() == [unit]
    if structure == "leroux":
        estimate = lo.cross_validate(fit, plan, audit=0)
        assert np.isfinite(np.delete(estimate.per_unit(), 4)).all() and estimate.mean > 0


def joint_of_effects(model, fit):
    """The same of a mixed model.

    Effects and coefficients as SciPy finds them, all of their precision inverted.
    """
    X, P = model.data.design @ np.linalg.inv(model.transform), fit.parameters
    Z = np.hstack(
        [
            (f.design / f.scale[:, None] * (f.code == k)).T
            for f in model.factors
            for k in range(len(f.levels))
        ]
    )
    blocks = [np.linalg.inv(P[f"covariance[{f.name}]"]) for f in model.factors for _ in f.levels]
    y, Q = model.data.y, linalg.block_diag(*blocks)
    mean, bend = np.exp, np.exp
    if model.data.response.title == "binomial":
        mean, bend = special.expit, lambda eta: special.expit(eta) * special.expit(-eta)
    slope = lambda u: Z.T @ (mean(X @ P["coef"] + Z @ u) - y) + Q @ u
    curved = lambda u: Z.T @ (bend(X @ P["coef"] + Z @ u)[:, None] * Z) + Q
    u = optimize.root(slope, np.zeros(Z.shape[1]), jac=curved, tol=1e-12).x
    A, W = np.hstack([X, Z]), bend(X @ P["coef"] + Z @ u)
    precision = A.T @ (W[:, None] * A)
    precision[X.shape[1] :, X.shape[1] :] += Q
    return A @ np.linalg.inv(precision) @ A.T


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("poisson", "(1 + x | p)"),
        ("binomial", "(1 | p) + (1 | h)"),
        ("poisson", "(1 + x | p) + (1 | h)"),
    ],
)
def test_of_rows_of_a_mixed_model(family, form):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {"x": rng.standard_normal(150), "p": rng.integers(0, 12, 150), "h": rng.integers(0, 5, 150)}
    )
    eta = (
        0.5 * frame.x
        + rng.standard_normal(12)[frame.p]
        + 0.8 * rng.standard_normal(12)[frame.p] * frame.x
    )
    eta += 0.7 * rng.standard_normal(5)[frame.h]
    frame["y"] = (
        rng.poisson(np.exp(eta))
        if family == "poisson"
        else (rng.logistic(size=150) < 2 * eta).astype(float)
    )
    model = lo.Mixed(f"y ~ x + {form}", frame, family)
    fit = lo.fit(model, num_starts=1)
    C = joint_of_effects(model, fit)
    np.testing.assert_allclose(model.predictor_covariance(fit.vector), C, rtol=1e-7, atol=1e-9)
    plan = lo.diagnostics.auto_groups(fit, 6)
    assert [
        set(plan.index[a:b]) for a, b in zip(plan.indptr, plan.indptr[1:], strict=False)
    ] == brute(C, 6)
    clusters = lo.fit(lo.Mixed(f"y ~ x + {form}", frame, family, drop="p"), num_starts=1)
    with pytest.raises(TypeError, match='drop="row"'):
        lo.diagnostics.auto_groups(clusters, 3)


def test_of_a_penalised_linear_predictor():
    model = glm("poisson", lo.penalties.Ridge(0.4))
    fit = lo.fit(model)
    X = np.asarray(model.design)
    plan, wanted = (
        lo.diagnostics.auto_groups(fit, 4),
        brute(X @ np.linalg.inv(fit.hessian) @ X.T, 4),
    )
    assert [
        set(plan.index[a:b]) for a, b in zip(plan.indptr, plan.indptr[1:], strict=False)
    ] == wanted
    signed = lo.diagnostics.auto_groups(fit, 40, absolute=False)
    assert (signed.index != lo.diagnostics.auto_groups(fit, 40).index).any() and (
        signed.index[::40] == np.arange(60)
    ).all()


def test_models_without_a_gaussian_predictor_are_refused():
    for name in ("hidden Markov", "multinomial", "closed form"):
        with pytest.raises(TypeError, match="one Gaussian linear predictor a unit"):
            lo.diagnostics.auto_groups(fitted(name), 3)
    with pytest.raises(TypeError, match="must be a Fit"):
        lo.diagnostics.auto_groups(glm("poisson"), 3)
    with pytest.raises(ValueError, match="size"):
        lo.diagnostics.auto_groups(fitted("ridge"), 60)
