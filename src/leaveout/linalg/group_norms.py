"""Norms of groups of parameters: a penalty that is smooth where no group is zero, but neither a
quadratic nor a loss of rows.

    h(θ) = Σ_g a_g ‖θ_g‖,      ∇h = a_g u_g,      ∇²h = a_g (I − u_g u_gᵀ)/‖θ_g‖,
    u_g = θ_g/‖θ_g‖

∇²h does not bound itself nearby, as its flat direction turns. But |∇³h[v, v, d]| ≤ (2/√3) a_g
‖v_g‖² ‖d_g‖/‖θ_g‖² (with s and c the sine and the cosine of v_g and u_g, no more than √(s⁴ + 4s²c²)
≤ √(4/3)), so that on moves of ‖d_g‖ ≤ t < ‖θ_g‖

    |vᵀ(∇²h(θ + d) − ∇²h(θ))v| ≤ Σ_g e_g ‖v_g‖²,      e_g = (2/√3) a_g t/(‖θ_g‖ (‖θ_g‖ − t)),

and in the norm of any A ≻ 0 that is no more than C ‖v‖_A², C the lesser of Σ_g e_g ‖(A⁻¹)_gg‖ and
max_g e_g ‖A⁻¹‖. This C is added to that of the rows (`linalg.enclosure_theorem`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import linalg

from .._runtime import NumpyArray
from .bounds import Thetas, Vector

PerGroup = Float[NumpyArray, "... groups"]
TURN = 2 / np.sqrt(3)


class Reach(NamedTuple):
    """Largest ‖v_g‖² of each group over moves ‖v‖_A = 1, and of all groups together."""

    groups: PerGroup
    total: Float[NumpyArray, "..."]


@dataclass(frozen=True, eq=False)
class Norms:
    """The penalty h: weights a of the groups, and the parameters of each group.

    No parameter is in two.
    """

    weight: Float[NumpyArray, " groups"]
    member: Bool[NumpyArray, "groups params"]

    def select(self, place: Int[NumpyArray, " some"]) -> "Norms":
        """Penalty on the parameters `place` where all others are zero."""
        member = self.member[:, place]
        groups = member.any(1)
        return Norms(self.weight[groups], member[groups])

    def pad(self, count: int) -> "Norms":
        """Penalty with `count` further parameters that belong to no group."""
        return Norms(self.weight, np.pad(self.member, ((0, 0), (0, count))))

    def times(self, kappa: float) -> "Norms":
        """Penalty κ h."""
        return Norms(kappa * self.weight, self.member)

    def lengths(self, theta: Thetas) -> PerGroup:
        """Norms ‖θ_g‖."""
        return np.sqrt(theta**2 @ self.member.T)

    def value(self, theta: Thetas) -> Float[NumpyArray, "..."] | float:
        """Evaluate h."""
        return self.lengths(theta) @ self.weight

    def spread(self, part: PerGroup) -> Thetas:
        """Spread one number a group to the group's parameters."""
        return part @ self.member

    def among(self, groups: Bool[NumpyArray, "... groups"]) -> Bool[NumpyArray, "... params"]:
        """Whether each parameter belongs to one of the marked groups."""
        return groups @ self.member

    def pull(self, theta: Thetas) -> Thetas:
        """Compute ∇h, zero for groups that are zero."""
        return theta * self._over(theta, 1)

    def _over(self, theta: Thetas, power: int) -> Thetas:
        length = self.lengths(theta)
        return self.spread(
            np.divide(self.weight, length**power, out=np.zeros_like(length), where=length > 0)
        )

    def hessian(
        self, theta: Float[NumpyArray, "refits params"]
    ) -> Float[NumpyArray, "refits params params"]:
        """Compute ∇²h."""
        together = np.einsum("gp,gq->pq", self.member, self.member, dtype=float)
        out = -np.einsum("rp,rq->rpq", theta * self._over(theta, 3), theta) * together
        np.einsum("rpp->rp", out)[...] += self._over(theta, 1)
        return out

    def reach(self, root: Float[NumpyArray, "... rank params"]) -> Reach:
        """Reach in the norm of A, where rootᵀ root = A⁻¹."""
        largest = lambda params: linalg.norm(root[..., params], 2, axis=(-2, -1)) ** 2
        return Reach(
            np.stack([largest(member) for member in self.member], -1),
            np.asarray(largest(self.member.any(0))),
        )

    def share(
        self,
        length: Float[NumpyArray, "*#refits groups"],
        distance: Float[NumpyArray, "*refits groups"],
        reach: Reach,
    ) -> Float[NumpyArray, "*refits"] | float:
        """Compute C for groups of the given lengths at the reference that are no further than
        `distance` from there.
        """
        clearance = length - distance
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            gap = np.where(
                clearance > 0, TURN * self.weight * distance / (length * clearance), np.inf
            )
            gap[..., self.member.sum(1) == 1] = np.where(clearance > 0, 0.0, np.inf)[
                ..., self.member.sum(1) == 1
            ]
            return np.minimum(np.sum(gap * reach.groups, -1), gap.max(-1) * reach.total)

    def excess(self, gradient: Vector) -> Vector:
        """Compute the part of a gradient that exceeds ‖·‖ ≤ a, group by group."""
        length = self.lengths(gradient)
        factor = np.divide(
            length - self.weight, length, out=np.zeros_like(length), where=length > self.weight
        )
        return gradient * self.spread(factor)


def descend_by_groups(
    gram: Float[NumpyArray, "params params"],
    right: Vector,
    norms: Norms,
    theta: Vector,
    tolerance: float,
) -> Vector:
    """Minimise ½ θᵀGθ − rightᵀθ + h(θ) by descent along one group after another; ungrouped
    parameters follow from the others.

    It ends when the violation of the optimality conditions is below `tolerance` times the largest
    a. The step of a group minimises h plus an upper bound, largest(G_gg) ‖·‖²/2 (Z. Qin, K.
    Scheinberg and D. Goldfarb, *Math. Program. Comput.* 5, 2013).
    """
    is_grouped = norms.member.any(0)
    free = np.flatnonzero(~is_grouped)
    grouped = np.flatnonzero(is_grouped)
    along = linalg.lstsq(
        gram[np.ix_(free, free)], np.c_[gram[np.ix_(free, grouped)], right[free]], rcond=None
    )[0]
    inner = gram[np.ix_(grouped, grouped)] - gram[np.ix_(grouped, free)] @ along[:, :-1]
    current = theta[grouped].copy()
    slope = inner @ theta[grouped] - (right[grouped] - gram[np.ix_(grouped, free)] @ along[:, -1])
    groups = [np.flatnonzero(member) for member in norms.member[:, grouped]]
    curvatures = [
        max(float(linalg.norm(inner[np.ix_(members, members)], 2)), 1e-300) for members in groups
    ]
    group_sweeps = 2000  # sweeps over all groups when h stands beside a quadratic
    for _ in range(group_sweeps):
        change = 0.0
        for members, curvature, a in zip(groups, curvatures, norms.weight.tolist(), strict=True):
            target = current[members] - slope[members] / curvature
            length = float(np.sqrt(target @ target))
            step = (
                target * (max(1 - a / (curvature * length), 0.0) if length > 0 else 0.0)
                - current[members]
            )
            if step.any():
                current[members] += step
                slope += inner[:, members] @ step
                change = max(change, curvature * float(np.abs(step).max()))
        if change <= tolerance * norms.weight.max():
            break
    out = theta.copy()
    out[grouped] = current
    out[free] = along[:, -1] - along[:, :-1] @ current
    return out
