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
from numpy import linalg

from ..._runtime import (
    ArrayList,
    Indices,
    NumpyArray,
    Shape,
    SubsetValues,
    join,
    largest_first,
    silence,
    slices,
)
from ...linalg import Lanes, LaneState, Proposal, anywhere, iterate, solve_each, without_values
from .laplace import LaplaceMode, times
from .quadrature import marginal_losses

NearPairs = Float[NumpyArray, "some near"]

# numbers of rows in determinants and slopes; factor on these for the rows that enter to first order
NEAR_ROWS = 32, 64, 128
RING = 3
# largest errors of a loss and of F in the rows with most correlation outside their ring
CLOSE_BY = 2e-5, 3e-4
MAX_COVARIANCE_ROWS = 5000  # largest number of rows whose covariances are formed
# largest number of Newton steps, and length of the last
MAX_RING_STEPS = 12
LAST_STEP_LENGTH = 1e-10


class RowsAlone(NamedTuple):
    """Results of leaving rows out one by one.

    −log p(y_s | the others), and F less F without the row.
    """

    losses: SubsetValues
    joint: SubsetValues


class Rings(NamedTuple):
    """Rows, each followed by those most correlated with it; the first `num_near` are solved for."""

    rows: Int[NumpyArray, "some ring"]
    num_near: int


Exactly = Callable[[Indices], RowsAlone]


def alone(mode: LaplaceMode, rings: Rings) -> RowsAlone:
    """Leave rows out one by one, from the mode of a batch of one; NaN where it has no mode."""
    rows = rings.rows[:, 0]
    if not np.isfinite(mode.value[0]):
        return RowsAlone(*np.full((2, len(rows)), np.nan))
    covariance = mode.latent.covariance(mode, np.arange(len(mode.eta[0])))
    rows_left_out_at_a_time = 256  # rows that are left out at a time
    with silence("all"):
        data = mode.latent.data
        (third,) = data.response.orders(mode.eta, mode.refits.tau, data.y, (3,))
        tilt = times(mode.refits.weights, third)[0] * np.diag(covariance)
        tilt_product = covariance @ tilt
        chunks = (
            rings._replace(rows=rings.rows[part])
            for part in slices(len(rows), rows_left_out_at_a_time)
        )
        parts = [_leave_out(mode, covariance, chunk, tilt, tilt_product) for chunk in chunks]
    return join(parts)


def rings(mode: LaplaceMode, rows: Indices, exactly: Exactly) -> Rings | None:
    """Choose for each row the rows most correlated with it, as many as make a pass accurate enough.

    Accuracy is judged by `exactly` on the rows with most correlation outside their ring. None if no
    number of rows suffices.
    """
    C = mode.latent.covariance(mode, np.arange(len(mode.eta[0])))
    share = np.abs(C[rows]) / np.sqrt(np.diag(C))
    share[np.arange(len(rows)), rows] = np.inf
    ranking = largest_first(share)[:, : RING * NEAR_ROWS[-1]]
    probed_factors = 8  # number of such rows that are checked
    for num_near in NEAR_ROWS:
        reached = np.take_along_axis(C[rows], ranking[:, :num_near], axis=1)
        beyond = np.sum(np.abs(C[rows]), 1) - np.abs(reached).sum(1)
        probes = largest_first(beyond)[:probed_factors]
        ring = ranking[:, : RING * num_near]
        estimates = alone(mode, Rings(ring[probes], min(num_near, len(C))))
        references = exactly(rows[probes])
        errors = [np.abs(a - b).max() for a, b in zip(estimates, references, strict=True)]
        if errors[0] <= CLOSE_BY[0] and errors[1] <= CLOSE_BY[1]:
            return Rings(ring, min(num_near, len(C)))
        if num_near >= len(C):
            break
    return None


def _leave_out(
    mode: LaplaceMode, C: NumpyArray, rings: Rings, tilt: NumpyArray, tilt_product: NumpyArray
) -> RowsAlone:
    """Leave out some of the rows; `tilt` is ℓ‴ v of every row, and `tilt_product` is C times it."""
    ring = rings.rows
    neighbours = rings.rows[:, : rings.num_near]
    count = neighbours.shape[1]
    rows = rings.rows[:, 0]
    across = C[ring[:, :, None], neighbours[:, None, :]]
    block = across[:, :count]
    q, delta = _changes(mode, _solve_neighbours(mode, block, neighbours), neighbours)
    d = -np.einsum("sij,sj->si", across, q)
    value, first, second = (part[0, ring] for part in mode.losses)
    new_value, new_first, new_second = _weighted_orders(
        mode, mode.eta[0, ring] + d, ring, (0, 1, 2)
    )
    data = mode.latent.data.select_rows(rows)
    loss_change = new_value - value
    constant = data.constant(mode.refits.tau)
    loss_change[:, 0] = -value[:, 0] - times(mode.refits.weights[:, rows], constant)[0]
    inner = (loss_change - first * d - 0.5 * second * d**2).sum(1)
    inner -= 0.5 * np.einsum("sk,sk->s", q, d[:, :count])
    changed = (new_second - second)[:, count:]  # the others, to first order
    inside = np.eye(count) + block * delta[:, None, :]
    outer = across[:, count:]
    sign, logdet = linalg.slogdet(inside)
    solved = linalg.solve(inside, np.concatenate([block[:, :, :1], outer.swapaxes(1, 2)], 2))
    near_variance = solved[:, 0, 0]
    spread = np.diag(C)[ring[:, count:]]
    # variance from the other rows, given the near ones
    spread -= np.einsum("sji,si,sij->sj", outer, delta, solved[:, :, 1:])
    # q of the others
    outer_q = (new_first - (first + second * d))[:, count:]
    full_q = np.concatenate([q, outer_q], 1)
    trace = (
        -np.einsum("si,si->s", full_q, tilt_product[ring])
        - np.einsum("si,si->s", tilt[ring], d)
        + (spread * changed).sum(1)
    )
    mean = mode.eta[0, rows] + d[:, 0] - np.einsum("sj,sj->s", outer[:, :, 0], outer_q)
    grown = (near_variance / block[:, 0, 0]) ** 2
    variance = near_variance - grown * np.einsum("si,si->s", outer[:, :, 0] ** 2, changed)
    loss = marginal_losses(data, mean, variance, mode.refits.tau[..., 0])
    return RowsAlone(loss, -(inner + 0.5 * (np.where(sign > 0, logdet, np.nan) + trace)))


def _weighted_orders(
    mode: LaplaceMode, eta: NumpyArray, rows: NumpyArray, orders: Shape
) -> ArrayList:
    """Compute derivatives of the weighted losses of some rows."""
    data = mode.latent.data
    derivatives = data.response.orders(eta, mode.refits.tau, data.y[rows], orders)
    return [times(mode.refits.weights[0, rows], part) for part in derivatives]


def _solve_neighbours(mode: LaplaceMode, block: NumpyArray, neighbours: NumpyArray) -> NearPairs:
    """Solve for d on the near rows by Newton's method; NaN without convergence."""
    first, second = (part[0, neighbours[:, 0]] for part in mode.losses[1:])

    def propose(state: LaneState, rows: Lanes) -> Proposal:
        q, delta = _changes(mode, state.theta, neighbours[rows])
        residual = state.theta + np.einsum("sij,sj->si", block[rows], q)
        matrices = np.eye(len(q[0])) + block[rows] * delta[:, None, :]
        step = solve_each(matrices, residual)
        length = np.abs(step).max(1)
        return Proposal(step, length, length <= LAST_STEP_LENGTH)

    start = block[:, :, 0] * (first / (1 - second * block[:, 0, 0]))[:, None]
    state, converged = iterate(without_values, propose, start, anywhere, MAX_RING_STEPS)
    remaining = np.where(converged[:, None], 0.0, state.step)
    return np.where(
        (state.length <= LAST_STEP_LENGTH**0.5)[:, None], state.theta - remaining, np.nan
    )


def _changes(
    mode: LaplaceMode, d: NearPairs, neighbours: NumpyArray
) -> tuple[NearPairs, NearPairs]:
    """Compute q and δ at the given moves."""
    first, second = (part[0, neighbours] for part in mode.losses[1:])
    orders = _weighted_orders(mode, mode.eta[0, neighbours] + d, neighbours, (1, 2))
    linear = first + second * d
    q = orders[0] - linear
    q[:, 0] = -linear[:, 0]
    delta = orders[1] - second
    delta[:, 0] = -second[:, 0]
    return q, delta
