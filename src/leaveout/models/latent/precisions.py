"""Gaussian fields on graphs: their precisions `Q(ψ) = Σ c_k(ψ) Q_k`, and priors of ψ.

R = D − A is the graph's Laplacian, with A the adjacency matrix and D the numbers of neighbours:

    car      Q = (D − ρA) / σ²
    leroux   Q = (φR + (1 − φ)I) / σ²                              Leroux, Lei & Breslow (2000)
    icar     Q = R* / σ², summing to zero on each component        Besag, York & Mollié (1991)
    bym2     x = σ(√(1 − φ) v + √φ u),  v ~ N(0, I),  u of R*
    Riebler et al. (2016): as (x, u), whose precision is sparse
    matern   Q = (κ²I + R)² / (4πκ²σ²),  κ = √8 / range
    Lindgren, Rue & Lindström (2011): of a grid, σ its deviation

R* is R times the geometric mean of its variances, on each component; sites without neighbours are
N(0, 1) (Freni-Sterrantino et al. 2018). Priors are densities of natural parameters: σ ~ Gamma(2,
rate), φ, ρ ~ Beta(2, 2), and of the range, in edges, ∝ r⁻² exp(−c/r), the penalised-complexity
prior in two dimensions (Fuglstad et al. 2019). With these a maximum exists away from the
boundaries.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse, special

from ..._runtime import NumpyArray, Strings, TwoArrays, record
from ...linalg import pattern
from ...plans import Edges, adjacency
from .laplace import Field, Solver

# rate of the prior of the standard deviation, whose mean is one and mode a half on the scale of the
# response
FIELD_PRIOR_RATE = 2.0
# sites up to which eigenvalues are computed once, instead of a factor for each determinant
EIGEN = 800
PsiPoints = Float[NumpyArray, "lanes psi"]
WithGradient = Callable[[NumpyArray], TwoArrays]  # of ψ: a value and its gradient


def natural_of(name: str, value: NumpyArray) -> NumpyArray:
    """Natural parameter from the unconstrained one."""
    if name in SHARES:
        return special.expit(value)
    return np.exp(value)


def unconstrained_of(name: str, value: NumpyArray) -> NumpyArray:
    """Unconstrained parameter from the natural one; the inverse of `natural_of`."""
    if name in SHARES:
        return special.logit(value)
    return np.log(value)


SHARES = "rho", "mixing"  # parameters between zero and one; all others are positive


def _shares(value: NumpyArray) -> TwoArrays:
    """Return a share, and one less it."""
    return special.expit(value), special.expit(-value)


def prior_of(name: str, value: Float[NumpyArray, " lanes"], scale: float) -> TwoArrays:
    """Compute −log of the density of the natural parameter, and its derivative in the unconstrained
    one.
    """
    if name in SHARES:
        share, complement = _shares(value)
        return np.logaddexp(0, value) + np.logaddexp(0, -value), share - complement
    range_prior_rate = 6.0  # c: a range below two edges has probability exp(−3)
    if name == "range":
        inverse = range_prior_rate * np.exp(-value)
        return 2 * value + inverse, 2 - inverse
    deviation = FIELD_PRIOR_RATE / scale * np.exp(value)
    return deviation - value, deviation - 1


@record
class AbstractStructure(ABC):
    """Structure of a field on a graph of edges `[edges, 2]`."""

    edges: Edges
    sites: int
    names: ClassVar[Strings] = ("sd", "mixing")

    @property
    @abstractmethod
    def terms(self) -> "list[sparse.csr_array]":
        """Matrices Q_k."""

    @abstractmethod
    def coefficients(self, psi: PsiPoints) -> TwoArrays:
        """Compute c and ∂c/∂ψ."""

    @property
    def constraint(self) -> NumpyArray | None:
        """Matrix A of the constraint A u = 0."""
        return None

    def field(self, prior: WithGradient | None) -> Field:
        """Return the field in the form of `laplace`."""
        return Field(
            self.terms, self.coefficients, self.logdet, self.constraint, prior, len(self.names)
        )

    _logdet: ClassVar[Any] = None

    @property
    def logdet(self) -> WithGradient | None:
        """Return log|Q| as a function of ψ, if eigenvalues are computed."""
        return self._logdet if self.sites <= EIGEN else None

    @cached_property
    def touching(self) -> "sparse.csr_array":
        return adjacency(self.edges, self.sites)

    @cached_property
    def laplacian(self) -> "sparse.csr_array":
        """The graph's Laplacian R."""
        return sparse.csr_array(sparse.diags_array(self.touching.sum(1)) - self.touching)

    @property
    def eye(self) -> "sparse.csr_array":
        return sparse.eye_array(self.sites, format="csr")

    @cached_property
    def spectrum(self) -> Float[NumpyArray, " sites"]:
        """Eigenvalues of R."""
        return np.maximum(np.linalg.eigvalsh(self.laplacian.toarray()), 0.0)


@record
class CAR(AbstractStructure):
    """Conditional autoregression: each site about ρ times the mean of its neighbours."""

    names = ("sd", "rho")

    def __post_init__(self) -> None:
        alone = np.flatnonzero(self.touching.sum(1) == 0)
        if alone.size:
            raise ValueError(
                f"GaussianField: structure='car' needs a neighbour of every site; {alone.size} sites have none, the first is "
                f"{alone[0]}. Use 'leroux' or 'bym2', or link them."
            )

    @property
    def terms(self) -> "list[sparse.csr_array]":
        return [
            sparse.csr_array(sparse.diags_array(self.touching.sum(1))),
            self.touching,
        ]

    def coefficients(self, psi: PsiPoints) -> TwoArrays:
        tau = np.exp(-2 * psi[:, 0])
        rho = special.expit(psi[:, 1])
        c = np.stack([tau, -tau * rho], 1)
        return c, np.stack([-2 * c, np.stack([np.zeros_like(tau), -tau * rho * (1 - rho)], 1)], 2)


@record
class Leroux(AbstractStructure):
    """Leroux's field, between independence and the intrinsic field."""

    @property
    def terms(self) -> "list[sparse.csr_array]":
        return [self.laplacian, self.eye]

    def coefficients(self, psi: PsiPoints) -> TwoArrays:
        tau = np.exp(-2 * psi[:, 0])
        share, complement = _shares(psi[:, 1])
        c = np.stack([tau * share, tau * complement], 1)
        by_share = tau * share * complement
        return c, np.stack([-2 * c, np.stack([by_share, -by_share], 1)], 2)

    def _logdet(self, psi):
        share, complement = _shares(psi[:, 1:])
        eigenvalues = share * self.spectrum + complement
        slope = (share * complement * (self.spectrum - 1) / eigenvalues).sum(1)
        return np.log(eigenvalues).sum(1) - 2 * self.sites * psi[:, 0], np.stack(
            [np.full(len(psi), -2.0 * self.sites), slope], 1
        )


def _solver(matrix: "sparse.csr_array", constraint: NumpyArray) -> Solver:
    nonzeros = pattern(matrix)
    return Solver(nonzeros.factor(nonzeros.values(matrix)[None]), constraint)


@record
class ICAR(AbstractStructure):
    """R* / σ², of variance about σ²."""

    names: ClassVar[Strings] = ("sd",)

    def __post_init__(self) -> None:
        if not len(self.edges):
            raise ValueError(
                "GaussianField: structure='icar' and 'bym2' need edges; the graph has none."
            )

    @cached_property
    def components(self) -> Int[NumpyArray, " sites"]:
        return sparse.csgraph.connected_components(self.touching, directed=False)[1]

    @property
    def constraint(self) -> NumpyArray:
        several = np.flatnonzero(np.bincount(self.components) > 1)
        return (self.components == several[:, None]).astype(float)

    @cached_property
    def scaled_precision(self) -> "sparse.csr_array":
        """R* with a few entries added that are zero on A u = 0 and make it positive definite."""
        raw = self._pin(np.ones(self.sites))
        constraint = self.constraint
        solver = _solver(raw, constraint)
        nonzeros = solver.factor.pattern
        diagonal = solver.entries[0, nonzeros.row == nonzeros.column]
        logs = np.where(constraint.any(0), np.log(np.maximum(diagonal, 1e-300)), 0.0)
        means = np.bincount(self.components, logs) / np.bincount(self.components)
        return self._pin(np.exp(means)[self.components])

    def _pin(self, scale: Float[NumpyArray, " sites"]) -> "sparse.csr_array":
        """Return R times its scale on every component, made positive definite.

        For one site j of each component, a (1 e_jᵀ + e_j 1ᵀ) is added, with a as large as keeps the
        matrix positive definite; it is zero on A u = 0. Sites without neighbours get a one.
        """
        out = sparse.csr_array(sparse.diags_array(scale) @ self.laplacian)
        for number in np.flatnonzero(np.bincount(self.components) > 1):
            members = np.flatnonzero(self.components == number)
            site = members[np.argmax(self.touching.sum(1)[members])]
            ground = sparse.csc_array(
                self.laplacian[members][:, members] + sparse.eye_array(len(members)) * 1e-10
            )
            unit = (members == site).astype(float)
            # about that of R's inverse
            bound = unit @ sparse.linalg.spsolve(ground, unit - 1 / len(members)) + 1e-12
            values = np.full(len(members), scale[site] / (len(members) * bound))
            row = sparse.csr_array(
                (values, (np.full(len(members), site), members)), shape=out.shape
            )
            out = out + row + row.T
        alone = ~self.constraint.any(0)
        return sparse.csr_array(out + sparse.diags_array(alone.astype(float)))

    @property
    def terms(self) -> "list[sparse.csr_array]":
        return [self.scaled_precision]

    def coefficients(self, psi: PsiPoints) -> TwoArrays:
        tau = np.exp(-2 * psi)
        return tau, (-2 * tau)[..., None]

    @property
    def free(self) -> int:
        """Dimensions of the field."""
        return self.sites - len(self.constraint)

    @cached_property
    def constant(self) -> float:
        """log|R*| on A u = 0."""
        return float(_solver(self.scaled_precision, self.constraint).logdet[0])

    @property
    def logdet(self) -> WithGradient | None:
        return self._logdet

    def _logdet(self, psi):
        return self.constant - 2 * self.free * psi[:, 0], np.full_like(psi, -2.0 * self.free)


@record
class BYM2(ICAR):
    """Field of which a share φ of the variance is spatial; the latent variables are x, then u."""

    names = ("sd", "mixing")

    @property
    def constraint(self) -> NumpyArray:
        spatial = super().constraint
        return np.hstack([np.zeros_like(spatial), spatial])

    @property
    def terms(self) -> "list[sparse.csr_array]":
        zero = sparse.csr_array((self.sites, self.sites))
        blocks = (
            (self.eye, zero, zero),
            (zero, self.eye, zero),
            (zero, zero, self.eye),
            (zero, zero, self._spatial.scaled_precision),
        )
        return [sparse.csr_array(sparse.block_array([[a, b], [b, d]])) for a, b, d in blocks]

    @cached_property
    def _spatial(self) -> ICAR:
        return ICAR(self.edges, self.sites)

    def coefficients(self, psi: PsiPoints) -> TwoArrays:
        tau = np.exp(-2 * psi[:, 0])
        share, complement = _shares(psi[:, 1])
        odds = share / complement
        ones = np.ones_like(share)
        zeros = np.zeros_like(share)
        c = np.stack([tau / complement, -np.sqrt(tau * share) / complement, odds, ones], 1)
        by_sd = np.stack([-2 * c[:, 0], -c[:, 1], zeros, zeros], 1)
        by_mixing = np.stack(
            [c[:, 0] * share, c[:, 1] * (0.5 * complement + share), odds, zeros], 1
        )
        return c, np.stack([by_sd, by_mixing], 2)

    def _logdet(self, psi):
        value = self._spatial.constant + self.sites * (np.logaddexp(0, psi[:, 1]) - 2 * psi[:, 0])
        slope = np.stack([np.full(len(psi), -2.0), special.expit(psi[:, 1])], 1)
        return value, self.sites * slope


@record
class Matern(AbstractStructure):
    """Matérn field with precision ∝ (κ²I + R)², of smoothness one on a grid."""

    names = ("sd", "range")

    @property
    def terms(self) -> "list[sparse.csr_array]":
        return [self.eye, self.laplacian, sparse.csr_array(self.laplacian @ self.laplacian)]

    def coefficients(self, psi: PsiPoints) -> TwoArrays:
        square = 8 * np.exp(-2 * psi[:, 1])  # κ²
        scale = np.exp(-2 * psi[:, 0]) / (4 * np.pi)
        c = scale[:, None] * np.stack([square, np.full_like(square, 2.0), 1 / square], 1)
        return c, np.stack([-2 * c, c * np.array([-2.0, 0.0, 2.0])], 2)

    def _logdet(self, psi):
        square = 8 * np.exp(-2 * psi[:, 1:])
        value = 2 * np.log(square + self.spectrum).sum(1) - self.sites * (
            np.log(4 * np.pi * square[:, 0]) + 2 * psi[:, 0]
        )
        slope = self.sites * 2 - 4 * (square / (square + self.spectrum)).sum(1)
        return value, np.stack([np.full(len(psi), -2.0 * self.sites), slope], 1)


STRUCTURES: "dict[str, Callable[..., AbstractStructure]]" = {
    "car": CAR,
    "leroux": Leroux,
    "icar": ICAR,
    "bym2": BYM2,
    "matern": Matern,
}
