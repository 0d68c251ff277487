"""Every row left out by itself with fixed parameters: F without the row and the row's loss, for all
rows by one pass.

Without row s the predictors move by d = −C q, C = Z G Zᵀ their covariance with all rows, and q the
change of slopes beyond first order: q_i = ℓ′_i(η_i + d_i) − ℓ′_i − ℓ″_i d_i, and q_s = −ℓ′_s − ℓ″_s
d_s. With δ_i = ℓ″_i(η_i + d_i) − ℓ″_i, δ_s
= −ℓ″_s,

    F(w − e_s) − F(w) = Σ_{i≠s} [ℓ_i(η_i + d_i) − ℓ_i] − ℓ_s − Σ ℓ′_i d_i − ½ Σ ℓ″_i d_i² − ½ qᵀd +
    ½ log|I + C δ|

and η_s given the others has mean η_s + d_s and variance [(I + Cδ)⁻¹ C]_ss. q is of second order in
d, and falls off with the cube of correlations: it is solved for on the rows most correlated with s,
and the others enter to first order.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .laplace import LaplaceMode, times
from .quadrature import marginal_losses

# numbers of rows in determinants and slopes; factor on these for the rows that enter to first order
NEAR = 32, 64, 128
RING = 3
# largest errors of a loss and of F in the rows with most correlation outside their ring
CLOSE_BY = 2e-5, 3e-4
MAX_COVARIANCE_ROWS = 5000  # largest number of rows whose covariances are formed
# largest number of Newton steps, and length of the last
STEPS = 12
CLOSE = 1e-10


class RowsAlone(NamedTuple):
    """Results of leaving rows out one by one.

    −log p(y_s | the others), and F less F without the row.
    """

    losses: Float[np.ndarray, " some"]
    joint: Float[np.ndarray, " some"]


class Rings(NamedTuple):
    """Rows, each followed by the rows most correlated with it, of which the first `near` are solved
    for.
    """

    rows: Int[np.ndarray, "some ring"]
    near: int


Exactly = Callable[[Int[np.ndarray, " some"]], RowsAlone]


def alone(at: LaplaceMode, rings: Rings) -> RowsAlone:
    """Leave rows out one by one, from the mode of a batch of one; NaN where it has no mode."""
    some = rings.rows[:, 0]
    if not np.isfinite(at.value[0]):
        return RowsAlone(*np.full((2, len(some)), np.nan))
    covariance = at.latent.covariance(at, np.arange(len(at.eta[0])))
    rows_left_out_at_a_time = 256  # rows that are left out at a time
    with np.errstate(all="ignore"):
        data = at.latent.data
        (third,) = data.response.orders(at.eta, at.refits.tau, data.y, (3,))
        tilt = times(at.refits.weights, third)[0] * np.diag(covariance)
        far = covariance @ tilt
        chunks = (
            rings._replace(rows=rings.rows[k : k + rows_left_out_at_a_time])
            for k in range(0, len(some), rows_left_out_at_a_time)
        )
        parts = [_some(at, covariance, chunk, tilt, far) for chunk in chunks]
    return RowsAlone(*map(np.concatenate, zip(*parts, strict=True)))


def rings(at: LaplaceMode, some: Int[np.ndarray, " some"], exactly: Exactly) -> Rings | None:
    """Choose for each row the rows most correlated with it, as many as make a pass accurate enough.

    Accuracy is judged by `exactly` on the rows with most correlation outside their ring. None if no
    number of rows suffices.
    """
    C = at.latent.covariance(at, np.arange(len(at.eta[0])))
    share = np.abs(C[some]) / np.sqrt(np.diag(C))
    share[np.arange(len(some)), some] = np.inf
    every = np.argsort(-share, axis=1, kind="stable")[:, : RING * NEAR[-1]]
    probed_factors = 8  # number of such rows that are checked
    for near in NEAR:
        reached = np.take_along_axis(C[some], every[:, :near], axis=1)
        beyond = np.sum(np.abs(C[some]), axis=1) - np.abs(reached).sum(1)
        tried = np.argsort(-beyond, kind="stable")[:probed_factors]
        rows = every[:, : RING * near]
        found = alone(at, Rings(rows[tried], min(near, len(C))))
        known = exactly(some[tried])
        off = [np.abs(a - b).max() for a, b in zip(found, known, strict=True)]
        if off[0] <= CLOSE_BY[0] and off[1] <= CLOSE_BY[1]:
            return Rings(rows, min(near, len(C)))
        if near >= len(C):
            break
    return None


def _some(
    at: LaplaceMode, C: np.ndarray, rings: Rings, tilt: np.ndarray, far: np.ndarray
) -> RowsAlone:
    """Leave out some of the rows; `tilt` is ℓ‴ v of every row, and `far` is C times it."""
    ring = rings.rows
    near = rings.rows[:, : rings.near]
    some = rings.rows[:, 0]
    across = C[ring[:, :, None], near[:, None, :]]
    own = across[:, : near.shape[1]]
    moved, bend = _solve_near(at, own, near)
    q = _slopes(at, moved, near)
    d = -np.einsum("sij,sj->si", across, q)
    value, first, second = (part[0, ring] for part in at.losses)
    there_value, there_first, there_second = _at(at, at.eta[0, ring] + d, ring, (0, 1, 2))
    data = at.latent.data
    rest = there_value - value
    constant = data.response.constant(at.refits.tau, data.y[some])[0] + data.fixed[some]
    rest[:, 0] = -value[:, 0] - times(at.refits.weights[:, some], constant)[0]
    inner = (rest - first * d - 0.5 * second * d**2).sum(1) - 0.5 * np.einsum(
        "sk,sk->s", q, d[:, : near.shape[1]]
    )
    changed = (there_second - second)[:, near.shape[1] :]  # the others, to first order
    inside = np.eye(near.shape[1]) + own * bend[:, None, :]
    outer = across[:, near.shape[1] :]
    sign, logdet = np.linalg.slogdet(inside)
    turned = np.linalg.solve(inside, np.concatenate([own[:, :, :1], outer.swapaxes(1, 2)], axis=2))
    left = turned[:, 0, 0]
    spread = np.diag(C)[ring[:, near.shape[1] :]]
    # variance from the other rows, given the near ones
    spread = spread - np.einsum("sji,si,sij->sj", outer, bend, turned[:, :, 1:])
    # q of the others
    others = there_first[:, near.shape[1] :] - (first + second * d)[:, near.shape[1] :]
    every = np.concatenate([q, others], axis=1)
    trace = (
        -np.einsum("si,si->s", every, far[ring])
        - np.einsum("si,si->s", tilt[ring], d)
        + (spread * changed).sum(1)
    )
    moved = at.eta[0, some] + d[:, 0] - np.einsum("sj,sj->s", outer[:, :, 0], others)
    grown = (left / own[:, 0, 0]) ** 2
    variance = left - grown * np.einsum("si,si->s", outer[:, :, 0] ** 2, changed)
    loss = marginal_losses(at.latent.data.select_rows(some), moved, variance, at.refits.tau[..., 0])
    return RowsAlone(loss, -(inner + 0.5 * (np.where(sign > 0, logdet, np.nan) + trace)))


def _at(
    at: LaplaceMode, eta: np.ndarray, some: np.ndarray, orders: tuple[int, ...]
) -> list[np.ndarray]:
    """Compute derivatives of the weighted losses of some rows."""
    data = at.latent.data
    found = data.response.orders(eta, at.refits.tau, data.y[some], orders)
    return [times(at.refits.weights[0, some], part) for part in found]


def _solve_near(
    at: LaplaceMode, own: np.ndarray, near: np.ndarray
) -> tuple[Float[np.ndarray, "some near"], Float[np.ndarray, "some near"]]:
    """Solve for d on the near rows by Newton's method.

    Return d and δ there, NaN without convergence.
    """
    first = at.losses[1][0, near[:, 0]]
    curvature = at.losses[2][0, near]
    d = own[:, :, 0] * (first / (1 - curvature[:, 0] * own[:, 0, 0]))[:, None]
    step = np.full_like(d, np.inf)
    for _ in range(STEPS):
        bend = _at(at, at.eta[0, near] + d, near, (2,))[0] - curvature
        bend[:, 0] = -curvature[:, 0]
        if (np.abs(step).max(1) <= CLOSE).all():
            break
        residual = d + np.einsum("sij,sj->si", own, _slopes(at, d, near))
        step = np.linalg.solve(np.eye(d.shape[1]) + own * bend[:, None, :], residual[..., None])[
            ..., 0
        ]
        step = np.nan_to_num(step, posinf=0.0, neginf=0.0)
        d = d - step
    lost = ~(np.abs(step).max(1) <= CLOSE**0.5)
    d[lost] = np.nan
    return d, bend


def _slopes(
    at: LaplaceMode, d: Float[np.ndarray, "some near"], near: np.ndarray
) -> Float[np.ndarray, "some near"]:
    """Compute q at the given moves."""
    first = at.losses[1][0, near]
    second = at.losses[2][0, near]
    q = _at(at, at.eta[0, near] + d, near, (1,))[0] - first - second * d
    q[:, 0] = -(first + second * d)[:, 0]
    return q
