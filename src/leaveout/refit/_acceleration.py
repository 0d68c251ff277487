"""Anderson acceleration of the steps of many refits at once.

Steps r(u) = P ∇F(u) with a fixed metric P shrink by the same factor each time. Acceleration also
uses the points that a refit has visited. Among their combinations ū = u − Σ γ_j Δu_j it takes the
one whose linearised step r̄ = r − Σ γ_j Δr_j is least, and steps from there: u ← ū − r̄. On a
quadratic F this is GMRES, which does not require P to be symmetric (D. G. Anderson, J. ACM 12,
1965; H. F. Walker and P. Ni, SIAM J. Numer. Anal. 49, 2011).
"""

import numpy as np
from jaxtyping import Bool

from ..objectives.objective import Lanes, PerLane, Points, RefitPoints

DEPTH = 5  # number of moves in memory


class Acceleration:
    """Last moves of each refit and the changes of its steps, scaled to changes of length one."""

    def __init__(self, u: RefitPoints, step: RefitPoints, state: Bool[np.ndarray, " refits"]):
        """Start from the plain steps at `u`, for refits that have `state`."""
        self.u = u
        self.last_step = step
        self.has_begun = state
        self.moves = np.zeros((len(u), DEPTH, u.shape[1]))
        self.changes = np.zeros_like(self.moves)
        self.count = np.zeros(len(u), int)

    def step(self, lanes: Lanes, u: Points, request: Points) -> tuple[Points, PerLane]:
        """Accelerate the plain steps `request` of refits at `u`.

        Returns the steps, and the contraction ‖Δu − Δr‖ / ‖Δu‖ of the plain steps along the last
        moves, infinite if there was none.
        """
        displacement = u - self.u[lanes]
        changed = request - self.last_step[lanes]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.linalg.norm(displacement - changed, axis=1) / np.linalg.norm(
                displacement, axis=1
            )
            length = np.linalg.norm(changed, axis=1)
            is_valid = self.has_begun[lanes] & np.isfinite(length) & (length > 0)
            pair = lanes[is_valid], self.count[lanes[is_valid]] % DEPTH
            self.moves[pair], self.changes[pair] = (
                displacement[is_valid] / length[is_valid, None],
                changed[is_valid] / length[is_valid, None],
            )
        ratio[~self.has_begun[lanes]] = np.inf
        self.count[lanes[is_valid]] += 1
        self.u[lanes], self.last_step[lanes], self.has_begun[lanes] = u, request, True
        changes = self.changes[lanes]
        gram = changes @ changes.swapaxes(1, 2)
        # least eigenvalue of the correlations of the changes that is used
        weight = np.linalg.pinv(gram, 1e-13, hermitian=True) @ (changes @ request[:, :, None])
        correction = (self.moves[lanes] - changes).swapaxes(1, 2) @ weight
        return request + correction[:, :, 0], ratio
