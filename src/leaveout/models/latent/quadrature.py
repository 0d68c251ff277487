"""Marginal likelihood of clusters with random effects of their own, and its slopes, batched over
clusters and refits.

A cluster has rows j with predictors η_j = e_j + a_jᵀb, b ~ N(0, I) in q dimensions, and weights ω_j
inside the integral:

    f = −log ∫ exp(−h(b)) φ(b) db,      h(b) = Σ_j ω_j ℓ(η_j, τ, y_j),

by Laplace's approximation about the mode b̂ of h + ½|b|², or by adaptive Gauss–Hermite quadrature
with nodes

    b_k = b̂ + L⁻ᵀz_k,      M = I + Σ_j ω_j ℓ″_j a_j a_jᵀ = L Lᵀ,

(Pinheiro and Chao 2006). Laplace's approximation is the rule of one node. Both are exact for a
Gaussian response. The slopes are those of the approximation itself, including the changes of b̂ and
M: with node weights π_k, h's gradient G_k at the nodes, Ḡ = Σ π_k G_k and M̄ = ∂f/∂M,

    s_j = a_jᵀM̄a_j,   v_j = ω_jℓ‴_j s_j,   r = M⁻¹(Ḡ + Σ_j v_j a_j)
    ∂f/∂e_j = Σ_k π_kω_jℓ′_jk + v_j − ω_jℓ″_j a_jᵀr
    ∂f/∂a_j = Σ_k π_kω_jℓ′_jk b_k + (v_j − ω_jℓ″_j a_jᵀr) b̂ + 2ω_jℓ″_j M̄a_j − ω_jℓ′_j r
    ∂f/∂τ   = Σ_jk π_kω_j ∂ℓ_jk + Σ_j ω_j s_j ∂ℓ″_j − Σ_j ω_j (a_jᵀr) ∂ℓ′_j.

Arrays are `[..., rows]` of rows sorted by cluster, `[..., clusters]`, and have components (of a, b,
M) in front.
"""

import functools
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._runtime import (
    HALF_LOG_TAU,
    ArrayFunction,
    ArrayList,
    FloatArray,
    IntArray,
    NumpyArray,
    Shape,
    record,
    silence,
)
from .modes import ValueAndSteps, newton
from .responses import Orders, Response, ResponseRows

# Nodes of an integral over one effect, and a smaller number that must agree with them. Otherwise
# the integral is summed at even distances: their reach from the mode, the first and the largest
# number of intervals, the change of the logarithm at which halving ends, and the change at the
# largest number from which the result is NaN.
RULE_NODES = 25
CHECK_NODES = 15
RULE_AGREEMENT = 1e-6
REACH = 9.0
INTERVALS = 64
MAX_INTERVALS = 2**15
STAYS = 1e-10
MODE_DISPLACEMENT = 1e-6


class RaggedRows(NamedTuple):
    """Rows sorted by cluster: the cluster of each row, and the first row of each cluster."""

    cluster: IntArray
    first: IntArray

    @staticmethod
    def from_sizes(sizes: IntArray) -> "RaggedRows":
        return RaggedRows(
            np.repeat(np.arange(len(sizes)), sizes),
            np.r_[0, np.cumsum(sizes)[:-1]].astype(int),
        )

    @property
    def sizes(self) -> IntArray:
        """Number of rows of each cluster."""
        return np.diff(np.r_[self.first, len(self.cluster)])

    def total(self, of_rows: NumpyArray) -> NumpyArray:
        """Sum over the rows of each cluster."""
        return np.add.reduceat(of_rows, self.first, axis=-1)


class ClusterSlopes(NamedTuple):
    """Values f of each cluster `[..., clusters]`, their derivatives, and the modes.

    The derivatives are ∂f/∂e `[..., rows]`, ∂f/∂a `[q, ..., rows]`, and each row's share of ∂f/∂τ
    `[shared, ..., rows]`.
    """

    value: FloatArray
    e: FloatArray
    a: FloatArray
    tau: FloatArray
    b: FloatArray


class ClusterMode(NamedTuple):
    """b̂ `[q, ..., clusters]`, L, and the predictors there with ℓ, ℓ′, ℓ″ and ℓ‴."""

    b: FloatArray
    low: FloatArray
    eta: FloatArray
    orders: Orders


@record
class Rule:
    """Nodes z `[q, nodes]` and log weights of φ(b)-free integrals.

    `log ∫ exp(−g) ≈ log Σ_k exp(c_k − g(b_k)) − log |L|`.
    """

    nodes: FloatArray
    log_weight: FloatArray

    @staticmethod
    @functools.cache
    def product(q: int, count: int) -> "Rule":
        """Build the product rule of `count` nodes in each dimension, for the standard normal
        density.
        """
        z, w = np.polynomial.hermite_e.hermegauss(count)
        nodes = np.array(list(itertools.product(z, repeat=q))).reshape(-1, q).T
        log = np.array(
            [sum(part) for part in itertools.product(np.log(w / np.sqrt(2 * np.pi)), repeat=q)]
        )
        return Rule(nodes, log + 0.5 * np.sum(nodes**2, 0))


def cholesky(M: NumpyArray) -> NumpyArray:
    """Compute the Cholesky factor L of small matrices `[q, q, ...]`, by columns."""
    q = len(M)
    low = np.zeros_like(M)
    for i in range(q):
        low[i, i] = np.sqrt(_subtract_products(M[i, i], low[i, :i], low[i, :i]))
        for j in range(i + 1, q):
            low[j, i] = _subtract_products(M[j, i], low[j, :i], low[i, :i]) / low[i, i]
    return low


def forward(low: NumpyArray, v: NumpyArray) -> NumpyArray:
    """Compute L⁻¹v."""
    x: ArrayList = []
    for i in range(len(low)):
        x.append(_subtract_products(v[i], low[i, :i], x) / low[i, i])
    return np.array(x)


def backward(low: NumpyArray, v: NumpyArray) -> NumpyArray:
    """Compute L⁻ᵀv."""
    x: ArrayList = []
    for i in reversed(range(len(low))):
        x.insert(0, _subtract_products(v[i], low[i + 1 :, i], x) / low[i, i])
    return np.array(x)


def _subtract_products(
    v: NumpyArray, a: Iterable[NumpyArray], b: Iterable[NumpyArray]
) -> NumpyArray:
    """Compute v − Σ aᵢbᵢ, without NumPy's sums, whose calls would take most of the time for one
    effect.
    """
    for a_i, b_i in zip(a, b, strict=True):
        v = v - a_i * b_i
    return v


@record
class Clusters:
    """Arguments of the integrals, row by row.

    They are e `[..., rows]`, a `[q, ..., rows]`, τ `[shared, ..., rows or 1]`, y `[rows]`, weights
    ω `[..., rows]`, and the part of ℓ that does not depend on θ, `[rows]`.
    """

    response: Response
    rows: RaggedRows
    e: FloatArray
    a: FloatArray
    tau: FloatArray
    y: FloatArray
    omega: FloatArray
    fixed: FloatArray

    def _predictors(self, b: NDArray) -> NDArray:
        """Compute e + aᵀb for b `[q, ..., clusters]`."""
        eta = self.e
        for loading, effect in zip(self.a, b, strict=True):
            eta = eta + loading * np.take(effect, self.rows.cluster, axis=-1)
        return eta

    def _rmatvec(self, of_rows: NDArray) -> NDArray:
        """Sum a_j times numbers of the rows over each cluster."""
        return np.stack([self.rows.total(of_rows * loading) for loading in self.a])

    def _information(self, curvature: NDArray) -> NDArray:
        """Compute I + Σ_j ω_jℓ″_j a_j a_jᵀ."""
        q = len(self.a)
        out = np.empty((q, q, *curvature.shape[:-1], len(self.rows.first)))
        for i in range(q):
            for j in range(i + 1):
                out[i, j] = out[j, i] = self.rows.total(curvature * self.a[i] * self.a[j]) + (
                    i == j
                )
        return out

    def mode(self, start: NumpyArray | None = None) -> ClusterMode:
        """Find the modes by Newton's method from a start, zero by default."""

        def look(b: NumpyArray) -> ValueAndSteps:
            loss, slope, curvature = self.response.orders(
                self._predictors(b), self.tau, self.y, (0, 1, 2)
            )
            low = cholesky(self._information(self.omega * curvature))
            step = backward(low, forward(low, self._rmatvec(self.omega * slope) + b))
            return self.rows.total(self.omega * loss) + 0.5 * np.sum(b**2, 0), lambda fresh: step

        if start is None:
            start = np.zeros((len(self.a), *self.e.shape[:-1], len(self.rows.first)))
        b, _ = newton(look, start)
        eta = self._predictors(b)
        orders = self.response.orders(eta, self.tau, self.y, (0, 1, 2, 3))
        return ClusterMode(b, cholesky(self._information(self.omega * orders[2])), eta, orders)

    def value(self, rule: Rule | None, mode: ClusterMode) -> FloatArray:
        """Compute f of each cluster."""
        return self._value(mode, None if rule is None else _Nodes(self, mode, rule, False))

    def score(self, rule: Rule | None, mode: ClusterMode | None = None) -> FloatArray:
        """Compute f of each cluster by a rule; the modes are found if they are not given.

        A cluster of one effect whose value changes with the number of nodes, as near a narrow step,
        is integrated by even sums.
        """
        if mode is None:
            mode = self.mode()
        values = self.value(rule, mode)
        if rule is None or len(self.a) > 1:
            return values
        coarse_values = self.value(Rule.product(1, CHECK_NODES), mode)
        disagreement = np.abs(coarse_values - values) > RULE_AGREEMENT
        hard = np.asarray(disagreement.reshape(-1, disagreement.shape[-1]).any(0))
        if hard.any():
            values[..., hard] = self._select(hard)._trapezoid_value(mode.b[0][..., hard])
        return values

    def _select(self, selection: NDArray) -> "Clusters":
        """Select clusters."""
        rows = selection[self.rows.cluster]
        tau = self.tau if self.tau.shape[-1] == 1 else self.tau[..., rows]
        parts = (
            self.e[..., rows],
            self.a[..., rows],
            tau,
            self.y[rows],
            self.omega[..., rows],
            self.fixed[rows],
        )
        return Clusters(self.response, RaggedRows.from_sizes(self.rows.sizes[selection]), *parts)

    def _trapezoid_value(self, middle: NDArray) -> NDArray:
        """Compute f of one effect by even sums about the modes.

        H + ½b² has curvature one or more, so tails vanish.
        """

        def log(move: NDArray) -> NDArray:
            b = middle + move
            (loss,) = self.response.orders(
                self._predictors(b[None]), self.tau[:, None], self.y, (0,)
            )
            return -self.rows.total(self.omega * loss) - 0.5 * b**2

        fixed = self.rows.total(
            self.omega * (self.response.constant(self.tau, self.y)[0] + self.fixed)
        )
        return fixed + HALF_LOG_TAU - log_trapezoid(log, np.full(middle.shape, REACH), self.e.size)

    def _value(self, mode: ClusterMode, nodes: "_Nodes | None") -> NDArray:
        fixed = self.omega * (self.response.constant(self.tau, self.y)[0] + self.fixed)
        half = np.sum(np.log(np.einsum("ii...->i...", mode.low)), 0) + self.rows.total(fixed)
        if nodes is not None:
            return half - nodes.log_sum
        return half + self.rows.total(self.omega * mode.orders[0]) + 0.5 * np.sum(mode.b**2, 0)

    def slopes(self, rule: Rule | None, start: NumpyArray | None = None) -> ClusterSlopes:
        """Compute f and its slopes."""
        mode = self.mode(start)
        omega = self.omega
        _, slope, curvature, third = mode.orders
        tau_slope, tau_curvature = self.response.shared_derivatives(
            mode.eta, self.tau, self.y, (1, 2)
        )
        rows = self.rows.cluster
        b = np.take(mode.b, rows, -1)
        nodes = None
        if rule is None:
            node_slope = 0.0
            direct_e = omega * slope
            direct_a = direct_e * b
            direct_tau = (
                omega * self.response.shared_derivatives(mode.eta, self.tau, self.y, (0,))[0]
            )
        else:
            nodes = _Nodes(self, mode, rule, True)
            node_slope = nodes.slope
            direct_e = nodes.e
            direct_a = nodes.a
            direct_tau = nodes.tau
        Mbar = _adjoint(mode.low, nodes)
        push = np.stack(
            [
                sum(np.take(Mbar[i, j], rows, -1) * self.a[j] for j in range(len(self.a)))
                for i in range(len(self.a))
            ]
        )
        s = np.sum(self.a * push, 0)
        v = omega * third * s
        mode_slope = self._rmatvec(v) + node_slope
        r = np.take(backward(mode.low, forward(mode.low, mode_slope)), rows, -1)
        along = np.sum(self.a * r, 0)
        through = v - omega * curvature * along
        e = through + direct_e
        a = through * b + 2 * omega * curvature * push - omega * slope * r + direct_a
        tau = direct_tau + omega * (
            s * tau_curvature - along * tau_slope + self.response.constant(self.tau, self.y)[1]
        )
        return ClusterSlopes(self._value(mode, nodes), e, a, tau, mode.b)


class _Nodes:
    """Sums over the nodes: the logarithm of the integral and, for slopes, posterior means."""

    def __init__(self, clusters: Clusters, mode: ClusterMode, rule: Rule, slopes: bool):
        spread = [slice(None)] + [None] * (mode.b.ndim - 1)
        offsets = [backward(mode.low, z[tuple(spread)] + 0 * mode.b) for z in rule.nodes.T]
        b = mode.b[:, None] + np.stack(offsets, 1)  # [q, nodes, ..., clusters]
        eta = clusters._predictors(b)
        orders = (0, 1) if slopes else (0,)
        loss, *slope = clusters.response.orders(eta, clusters.tau[:, None], clusters.y, orders)
        log_weight = rule.log_weight.reshape(-1, *[1] * (b.ndim - 2))
        log = log_weight - clusters.rows.total(clusters.omega * loss) - 0.5 * np.sum(b**2, 0)
        highest = log.max(0)
        weight = np.exp(log - highest)
        total = weight.sum(0)
        self.log_sum = highest + np.log(total)
        if not slopes:
            return
        weight /= total
        share = np.take(weight, clusters.rows.cluster, axis=-1) * clusters.omega
        weighted_slope = share * slope[0]
        self.e = weighted_slope.sum(0)
        self.a = np.stack(
            [
                np.sum(weighted_slope * np.take(effect, clusters.rows.cluster, axis=-1), 0)
                for effect in b
            ]
        )
        tau_slope = clusters.response.shared_derivatives(
            eta, clusters.tau[:, None], clusters.y, (0,)
        )[0]
        self.tau = np.sum(share * tau_slope, 1)
        gradient = clusters._rmatvec(weighted_slope) + weight * b  # π_k G_k
        self.slope = gradient.sum(1)
        whitened = np.stack([forward(mode.low, gradient[:, k]) for k in range(len(weight))], 1)
        self.rotations = -np.einsum("ik,jk...->ij...", rule.nodes, whitened)  # −Σ π_k z_k (L⁻¹G_k)ᵀ


def _adjoint(low: NDArray, nodes: _Nodes | None) -> NDArray:
    """Compute ∂f/∂M = ½ L⁻ᵀ S L⁻¹, with S the mirrored lower triangle of I − Σ_k π_k z_k
    (L⁻¹G_k)ᵀ.
    """
    q = len(low)
    S = np.zeros_like(low)
    for i in range(q):
        for j in range(i + 1):
            S[i, j] = S[j, i] = (i == j) + (0.0 if nodes is None else nodes.rotations[i, j])
    half = np.stack([backward(low, S[:, j]) for j in range(q)], 1)  # L⁻ᵀS
    return 0.5 * np.stack([backward(low, half[i]) for i in range(q)], 0)


def log_trapezoid(log: ArrayFunction, reach: NumpyArray, size: int) -> FloatArray:
    """Compute log ∫ exp(log(x)) dx over ± `reach` by the trapezoidal rule.

    `log` takes x `[nodes, ...]`, and forms `size` numbers for each node.
    """
    node_row_entries = 2**20  # numbers of nodes and rows at a time

    def log_sum(share: NDArray) -> NDArray:
        parts = np.array_split(share, -(-len(share) * size // node_row_entries))
        log_sums = [np.logaddexp.reduce(log(np.multiply.outer(part, reach))) for part in parts]
        return np.logaddexp.reduce(log_sums)

    with silence("all"):
        count = INTERVALS
        total = log_sum(np.linspace(-1, 1, INTERVALS + 1))
        value = total - np.log(count)
        change = np.full(reach.shape, np.inf)
        while change.max(initial=0.0) > STAYS and count < MAX_INTERVALS:
            total = np.logaddexp(total, log_sum((2 * np.arange(count) + 1) / count - 1))
            count *= 2
            previous = value
            value = total - np.log(count)
            change = np.where(value == previous, 0.0, np.abs(value - previous))
    return np.where(change <= MODE_DISPLACEMENT, value, np.nan) + np.log(2 * reach)


def marginal_losses(
    data: ResponseRows, mean: NumpyArray, variance: NumpyArray, tau: NumpyArray
) -> FloatArray:
    """Compute −log ∫ p(y_i | η, τ) N(η; m, v) dη of each row.

    m and v are `[..., rows]`, τ is `[shared, ..., rows or 1]`.
    """
    single_rows = RaggedRows.from_sizes(np.ones(len(data.y), int))
    spread = np.sqrt(np.maximum(variance, 0.0))[None]
    omega = np.broadcast_to(data.size, mean.shape)
    rows = Clusters(data.response, single_rows, mean, spread, tau, data.y, omega, data.fixed)
    rule = None if data.response.quadratic else Rule.product(1, RULE_NODES)
    return rows.score(rule)


def marginal_means(
    response: Response, mean: NumpyArray, variance: NumpyArray, tau: NumpyArray
) -> FloatArray:
    """Compute ∫ E[y | η, τ] N(η; m, v) dη of each row.

    For an ordinal response the last axis has the levels' probabilities.
    """
    if response.quadratic:
        return mean
    spread = np.sqrt(np.maximum(variance, 0.0))
    means, coarse_means = (
        _quadrature_mean(response, mean, spread, tau, nodes) for nodes in (RULE_NODES, CHECK_NODES)
    )
    disagreement = (np.abs(coarse_means - means) > RULE_AGREEMENT * np.abs(means)) & (means > 0)
    hard = disagreement
    if means.ndim > mean.ndim:
        hard = np.asarray(disagreement.any(-1))
    if hard.any():
        hard_tau = np.broadcast_to(tau, (len(tau), *mean.shape))[:, hard]
        means[hard] = _trapezoid_mean(
            response, mean[hard], spread[hard], hard_tau, means[hard].shape
        )
    return means


def _quadrature_mean(
    response: Response, mean: NDArray, spread: NDArray, tau: NDArray, count: int
) -> FloatArray:
    rule = Rule.product(1, count)
    z = rule.nodes[0]
    terms = (
        share * response.mean(mean + spread * node, tau)
        for node, share in zip(z, np.exp(rule.log_weight - 0.5 * z**2), strict=True)
    )
    return np.asarray(sum(terms))


def _trapezoid_mean(
    response: Response, mean: NDArray, spread: NDArray, tau: NDArray, shape: Shape
) -> FloatArray:
    """Expectation over the linear predictor of listed rows, by sums over even nodes.

    The nodes reach as far out as exponentials of the predictor need and do not overflow.
    """

    def log(z: NDArray) -> NDArray:
        alone = z.reshape(len(z), len(mean), -1)[..., 0]
        return np.log(response.mean(mean + spread * alone, tau[:, None])) - 0.5 * z**2

    overflow = 40.0  # deviation of the predictor beyond which the mean of its exponential overflows
    reach = np.broadcast_to(
        (REACH + np.minimum(spread, overflow)).reshape(-1, *[1] * (len(shape) - 1)), shape
    )
    return np.exp(log_trapezoid(log, reach, int(np.prod(shape)))) / np.sqrt(2 * np.pi)


def with_coefficients(covariance: NumpyArray, X: NumpyArray, curvature: NumpyArray) -> FloatArray:
    """Compute the covariance of predictors with the uncertainty of β, whose prior is flat.

    It is `C + R (XᵀWR)⁻¹ Rᵀ`, with C `[rows, rows]` the covariance given β, R = X − C W X and W =
    diag(ℓ″).
    """
    residual = X - covariance @ (curvature[:, None] * X)
    return covariance + residual @ np.linalg.solve(
        X.T @ (curvature[:, None] * residual), residual.T
    )
