"""Bias-reduced covariance of regressions over clusters (CR2), with Satterthwaite's degrees of
freedom. Other losses than squares stand for least squares with weights ℓ″ and residuals −ℓ′/ℓ″.

In whitened rows Z = X L⁻ᵀ, L Lᵀ = XᵀWX, with residuals e and working variances Φ of the units,

    V = L⁻ᵀ [Σ_g a_gᵀ e_g e_gᵀ a_g] L⁻¹,      a_g = A_g W_g Z_g,      A_g B_g A_gᵀ = Φ_g,
    B = (I − H) Φ (I − H)ᵀ

A_g = Φ^½ (Φ^½ B_g Φ^½)^(−½) Φ^½ is clubSandwich's symmetric root. If Φ_g = φ I, B_g − φ I lies in
the span of Q, an orthonormal basis of the columns of Z_g and W_g Z_g, so that the root takes a
matrix of that size and not one of the size of the cluster:

    A_g = I + Q [(QᵀB_gQ / φ)^(−½) − I] Qᵀ

Otherwise B = Φ^(−½) B_g Φ^(−½) shows the directions of leverage one, and Φ^½ B_g Φ^½ = F Fᵀ with
F = Φ B^½. Its rows may differ in size by many powers of ten, as fitted probabilities do: in falling
order and by a pivoted QR, singular values and vectors of F keep their digits. As W_n = 1/Φ_n falls
to zero, the row of a unit in A_g W_g Z_g becomes that of W_g Z_g (I + Z_gᵀ A_g W_g Z_g), the latter
without the unit. Directions of leverage one get zero, the generalised inverse. For a contrast c,
with t_g = Z_gᵀ a_g c, r_g = Z_gᵀ W_g Φ_g a_g c, N = ZᵀWΦWZ and d_g = cᵀ a_gᵀ Φ_g a_g c,

    P_gh = δ_gh d_g − r_gᵀ t_h − t_gᵀ r_h + t_gᵀ N t_h,      d.o.f. = (tr P)² / Σ P_gh²

(Bell & McCaffrey, Survey Methodology 28, 2002; Pustejovsky & Tipton, Journal of Business & Economic
Statistics 36, 2018).
"""

import numpy as np
import scipy
from jaxtyping import Float
from numpy import linalg

from .._runtime import NumpyArray, UnitNumbers, kind_of, level_numbers, members_by_label
from ..data import floats
from ..models.glm import GLM, AbsorbedGLM, Squared, Zero
from ..optimize.fit import Fit, fit as fit_model

# share of a working variance below which the variance of a residual is zero but for rounding
LEVERAGE_ONE = 1e-10
# leverage below which A_g of a unit is that of the limit W_n → 0
NO_LEVERAGE = 1e-8
LEAST_CURVATURE = 1e-100  # where ℓ″ is zero and the score is not, as of Huber's loss


def bias_reduced(
    fit: Fit, label: UnitNumbers, variances: object
) -> tuple[NumpyArray, Float[NumpyArray, " params"]]:
    """Return CR2 of the coefficients and the degrees of freedom of each."""
    model = fit.quadratic.predictors
    root = fit.quadratic.root
    assert model is not None and isinstance(fit.objective, GLM)
    slope, curvature = model.loss.derivatives(model.eta(fit.vector[None])[0], model.y, (1, 2))
    curvature = np.maximum(curvature, LEAST_CURVATURE)
    p = fit.num_params
    w = fit.objective.row_weights * curvature
    residual = -slope / curvature
    if variances is None and not isinstance(fit.objective.loss_function, Squared):
        variances = 1 / np.where(w > 0, w, 1.0)
    phi = _variances(fit, variances)
    weighed = np.flatnonzero(w > 0)
    clusters = [weighed[rows] for rows in members_by_label(level_numbers(label[weighed]))]
    N = np.zeros((p, p))
    for rows in clusters:
        Z = model.design.whiten(rows, root)
        N += (Z * (w[rows] ** 2 * phi[rows])[:, None]).T @ Z
    # of t, r and d
    score = np.empty((len(clusters), p))
    products = np.empty((len(clusters), 3, p, p))
    for g, rows in enumerate(clusters):
        Z = model.design.whiten(rows, root)
        weights = w[rows]
        variance = phi[rows]
        a = _adjusted(Z, weights, variance, N)
        score[g] = a.T @ residual[rows]
        products[g] = (
            Z.T @ a,
            (Z * (weights * variance)[:, None]).T @ a,
            (a * variance[:, None]).T @ a,
        )
    eye = np.eye(p)
    K = np.block([[np.zeros((p, p)), -eye], [-eye, N]])
    dof = np.empty(p)
    for j, c in enumerate(root.T):  # of θ_j = cᵀu
        t = products[:, 0] @ c
        r = products[:, 1] @ c
        d = products[:, 2] @ c @ c
        L = np.hstack([r, t])
        within = np.einsum("gi,ij,gj->g", L, K, L)
        outer = K @ (L.T @ L)
        dof[j] = np.sum(d + within) ** 2 / (np.sum(d**2 + 2 * d * within) + np.sum(outer * outer.T))
    contributions = score @ root
    return contributions.T @ contributions, dof


def _adjusted(
    Z: Float[NumpyArray, "rows params"],
    w: NumpyArray,
    phi: NumpyArray,
    N: Float[NumpyArray, "params params"],
) -> NumpyArray:
    """Compute A_g W_g Z_g of a cluster."""
    target = w[:, None] * Z
    if np.all(phi == phi[0]):
        columns = Z if np.all(w == w[0]) else np.hstack([Z, target])
        Q = linalg.qr(columns)[0]
        inside = Q.T @ Z
        tied = Q.T @ target
        B = (
            np.eye(Q.shape[1])
            - inside @ tied.T
            - tied @ inside.T
            + inside @ (N / phi[0]) @ inside.T
        )
        values, vectors = linalg.eigh((B + B.T) / 2)
        across = Q @ vectors
        positive = values > LEVERAGE_ONE * values.max()
        root = np.zeros_like(values)
        root[positive] = values[positive] ** -0.5
        return target + across @ ((root - 1)[:, None] * (across.T @ target))
    far = (np.sum(Z * target, 1) < NO_LEVERAGE) & np.isclose(w * phi, 1)
    if far.all():
        return target
    adjusted = target.copy()
    if far.any():
        near = ~far
        adjusted[near] = _adjusted(Z[near], w[near], phi[near], N)
        adjusted[far] += target[far] @ (Z[near].T @ adjusted[near])
        return adjusted
    order = np.argsort(-phi)
    deviation = np.sqrt(phi[order])[:, None]
    scaled = Z[order] / deviation
    tied = deviation * target[order]
    B = np.eye(len(phi)) - scaled @ tied.T - tied @ scaled.T + scaled @ N @ scaled.T
    values, vectors = linalg.eigh((B + B.T) / 2)
    positive = values > LEVERAGE_ONE * values.max()
    F = deviation**2 * vectors[:, positive] * np.sqrt(values[positive])
    Q, R, _ = scipy.linalg.qr(F, mode="economic", pivoting=True)
    vectors, sizes, _ = linalg.svd(R)
    vectors = Q @ vectors
    adjusted[order] = deviation * (vectors @ ((vectors.T @ tied) / sizes[:, None]))
    return adjusted


def with_columns(fit: Fit) -> Fit:
    """Return the fit, or one with columns for absorbed effects.

    TypeError unless the model is a GLM of one convex loss without a penalty.
    """
    if isinstance(fit.objective, AbsorbedGLM):
        fit = fit_model(fit.objective.full)
    objective = fit.objective
    plain = (
        isinstance(objective, GLM)
        and objective.outputs == 1
        and objective.predictors is not None
        and isinstance(objective.penalty, Zero)
    )
    if not plain or objective.class_code is not None:  # type: ignore[attr-defined]
        raise TypeError(
            "covariance: CR2 needs a GLM of one convex loss without a penalty; got "
            f"{kind_of(objective)} of another kind. 'CRV3' is for every model."
        )
    return fit


def _variances(fit: Fit, variances: object) -> Float[NumpyArray, " units"]:
    n = fit.objective.num_units
    if variances is None:
        return np.ones(n)
    values = floats("covariance", "working_variance", variances)
    if values.shape != (n,) or not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(
            f"covariance: working_variance must be one positive number a unit, {n}; got shape {values.shape}."
        )
    return values
