"""Marginal likelihood with one grouping factor: a sum of integrals over its levels (`quadrature`),
for many refits.

    F(θ, w) = Σ_g w_g f_g(θ)
    if clusters are left out: a weight of two is a second copy
    F(θ, w) = Σ_g f_g(θ, ω = w of its rows)    if rows are left out

θ is (z, λ, τ): coefficients in coordinates in which the columns of the design are orthogonal, the
free entries of Λ, and the response's own.
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..._runtime import ArrayList, NumpyArray, ThreeArrays, TwoArrays, join, record, slices
from ...objectives import STENCIL, Costs
from .base import AbstractEngine, DesignRegressions
from .effects import GroupingFactor, split
from .quadrature import (
    RULE_NODES,
    Clusters,
    ClusterSlopes,
    RaggedRows,
    Rule,
    backward,
    forward,
    marginal_losses,
)
from .responses import ResponseRows

# numbers of rows, nodes and refits that are computed together: about the size of a cache
NODE_ENTRIES = 2**17
# nodes for each effect in scores, by the number of effects; with more effects those of the fit
SCORE_NODES = {
    1: RULE_NODES,
    2: 7,
    3: 5,
}


def _num_nodes(rule: Rule | None) -> int:
    return 1 if rule is None else rule.nodes.shape[1]


@record
class OneFactor(AbstractEngine):
    """Rows sorted by the levels of one factor."""

    model_rows: ResponseRows
    sorted_rows: ResponseRows
    factor: GroupingFactor
    design: NDArray[np.float64]  # design of the effects, sorted
    order: NDArray[np.int64]  # the rows' numbers, sorted
    rows: RaggedRows
    rule: Rule | None
    scoring: Rule | None
    outer_weights: bool  # whether weights stand outside of the integrals, one for each level

    @staticmethod
    def build(
        data: ResponseRows, factor: GroupingFactor, quadrature: int, outer_weights: bool
    ) -> "OneFactor":
        order = np.argsort(factor.code, kind="stable")
        rows = RaggedRows.from_sizes(np.bincount(factor.code, minlength=len(factor.levels)))
        rule = None
        if quadrature != 1:
            rule = Rule.product(factor.q, quadrature)
        if data.response.quadratic:
            nodes = 1
        else:
            nodes = max(quadrature, SCORE_NODES.get(factor.q, 1))
        scoring = rule
        if nodes != quadrature:
            scoring = Rule.product(factor.q, nodes)
        return OneFactor(
            data,
            data.select_rows(order),
            factor,
            factor.design[:, order],
            order,
            rows,
            rule,
            scoring,
            outer_weights,
        )

    @property
    def data(self) -> ResponseRows:
        return self.model_rows

    @property
    def num_clusters(self) -> int:
        return len(self.rows.first)

    def make_clusters(self, theta: NumpyArray, omega: NumpyArray | float = 1.0) -> Clusters:
        """Make the clusters at θ `[refits, params]`, with rows of weight ω `[refits or 1,
        rows]`.
        """
        parts = split(theta, self.sorted_rows, (self.factor,))
        data = self.sorted_rows
        e = data.offset + parts.z @ data.design.T
        a = self.factor.rotate(parts.free[0], self.design)
        weights = np.broadcast_to(omega * data.size, e.shape)
        return Clusters(
            data.response, self.rows, e, a, parts.tau.T[:, :, None], data.y, weights, data.fixed
        )

    def gather_clusters(
        self,
        theta: NumpyArray,
        lane: NumpyArray,
        cluster: NumpyArray,
        omega: NumpyArray | float = 1.0,
    ) -> tuple[Clusters, NumpyArray, NumpyArray]:
        """Gather the listed clusters, each at the θ of a refit, with the given weights of their
        rows, by default one.

        Returns them with the places of their rows among the sorted ones, and the number in the list
        of each row's cluster.
        """
        ragged, place = self._gather_rows(cluster)
        parts = split(theta, self.sorted_rows, (self.factor,))
        data = self.sorted_rows.select_rows(place)
        row_lane = lane[ragged.cluster]
        e = data.offset + np.einsum("np,np->n", data.design, parts.z[row_lane])
        a = np.zeros((self.factor.q, len(place)))
        for k, (i, j) in enumerate(zip(self.factor.row, self.factor.column, strict=True)):
            a[j] += parts.free[0][row_lane, k] * self.design[i, place]
        tau = parts.tau.T[:, row_lane]
        clusters = Clusters(data.response, ragged, e, a, tau, data.y, data.size * omega, data.fixed)
        return clusters, place, ragged.cluster

    def look(self, theta: NumpyArray, weights: NumpyArray, state: NumpyArray | None) -> ThreeArrays:
        """Compute F, its gradients, and the modes `[refits, effects · clusters]`."""
        if self.outer_weights and len(theta) > 1 and (theta == theta[0]).all():
            start = None if state is None else state[:1]
            value, gradient, modes = self.cluster_gradients(theta[:1], start)
            return weights @ value[0], weights @ gradient[0], np.repeat(modes, len(theta), 0)
        size = NODE_ENTRIES // (len(self.order) * _num_nodes(self.rule))
        parts = [self._evaluate(theta[k], weights[k], state, k) for k in slices(len(theta), size)]
        return join(parts)

    @property
    def costs(self) -> Costs:
        return Costs(work=50.0 * len(self.order) * _num_nodes(self.rule))

    def _inner_weights(self, weights: NDArray) -> NDArray | float:
        """Weights ω of the sorted rows inside the integrals."""
        return 1.0 if self.outer_weights else weights[:, self.order]

    @functools.cached_property
    def model_order(self) -> NDArray:
        """The place of each row among the sorted ones."""
        return np.argsort(self.order)

    def _gather_rows(self, cluster: NDArray) -> tuple[RaggedRows, NDArray]:
        """Gather the rows of the listed clusters, with their places among the sorted ones."""
        ragged = RaggedRows.from_sizes(self.rows.sizes[cluster])
        offset = self.rows.first[cluster] - ragged.first
        return ragged, np.arange(len(ragged.cluster)) + offset[ragged.cluster]

    def _start(self, state: NDArray | None, chunk: slice) -> NDArray | None:
        if state is None:
            return None
        return np.moveaxis(state[chunk].reshape(-1, self.factor.q, self.num_clusters), 1, 0)

    def _slopes(
        self, theta: NDArray, omega: NDArray | float, state: NDArray | None, chunk: slice
    ) -> tuple[ClusterSlopes, NDArray]:
        """Slopes of the clusters, and the modes, `[refits, effects · clusters]`."""
        slopes = self.make_clusters(theta, omega).slopes(self.rule, self._start(state, chunk))
        return slopes, np.moveaxis(slopes.b, 0, 1).reshape(len(theta), -1)

    def _evaluate(self, theta, weights, state, chunk):
        slopes, modes = self._slopes(theta, self._inner_weights(weights), state, chunk)
        value = slopes.value
        outer = 1.0
        if self.outer_weights:
            value = value * weights
            outer = weights[:, self.rows.cluster]
        of_free = np.sum(self.factor.by_free(slopes.a, self.design) * outer, -1)
        of_tau = np.sum(slopes.tau * outer, -1)
        of_z = (slopes.e * outer) @ self.sorted_rows.design
        return value.sum(1), np.concatenate([of_z, of_free.T, of_tau.T], 1), modes

    def cluster_gradients(
        self, theta: NumpyArray, state: NumpyArray | None = None, omega: NumpyArray | float = 1.0
    ) -> ThreeArrays:
        """Compute f of every cluster `[refits, clusters]`, its gradients `[refits, clusters,
        params]`, and the modes.
        """
        slopes, modes = self._slopes(theta, omega, state, slice(None))
        total = self.rows.total
        of_z = [total(slopes.e * column) for column in self.sorted_rows.design.T]
        of_free = map(total, self.factor.by_free(slopes.a, self.design))
        return slopes.value, np.stack([*of_z, *of_free, *map(total, slopes.tau)], -1), modes

    def jacobian(self, theta: NumpyArray) -> NumpyArray:
        """Compute `∂²F/∂θ∂w_n` at weights one.

        For clusters these are their gradients. For rows they are differences in the weight of each
        row, for the rows at one place of all clusters together.
        """
        if self.outer_weights:
            return self.cluster_gradients(theta[None])[1][0]
        place = np.arange(len(self.order)) - self.rows.first[self.rows.cluster]
        out = np.empty((len(self.order), theta.size))
        state = self.cluster_gradients(theta[None])[2]
        # step of the fourth-order differences by a row's weight that give ∂²F/∂θ∂w_n
        row_weight_difference = 0.02
        for k in range(place.max() + 1):
            rows = place == k
            slopes = [
                self.cluster_gradients(
                    theta[None], state, (1.0 + row_weight_difference * step * rows)[None]
                )[1][0]
                for step in STENCIL[0]
            ]
            derivative = np.tensordot(STENCIL[1], slopes, 1) / row_weight_difference
            out[self.order[rows]] = derivative[self.rows.cluster[rows]]
        return out

    def joint(
        self,
        theta: NumpyArray,
        weights: NumpyArray,
        lane: NumpyArray,
        cluster: NumpyArray,
        state: NumpyArray | None,
    ) -> NumpyArray:
        """Compute −log of the density of the listed clusters as new ones, each at the θ of a
        refit.
        """
        return self._by_chunks(
            cluster,
            lambda chunk: self.gather_clusters(theta, lane[chunk], cluster[chunk])[0].score(
                self.scoring
            ),
        )

    def pointwise(
        self,
        theta: NumpyArray,
        weights: NumpyArray | None,
        lane: NumpyArray,
        cluster: NumpyArray,
        state: NumpyArray | None,
    ) -> NumpyArray:
        """Compute the sum over the rows of each cluster of −log of a row's own density."""

        def chunk_losses(chunk):
            clusters, place, row_cluster = self.gather_clusters(theta, lane[chunk], cluster[chunk])
            losses = marginal_losses(
                self.sorted_rows.select_rows(place),
                clusters.e,
                np.sum(clusters.a**2, 0),
                clusters.tau,
            )
            return np.bincount(row_cluster, losses, minlength=len(cluster[chunk]))

        return self._by_chunks(cluster, chunk_losses)

    def conditional(
        self,
        theta: NumpyArray,
        weights: NumpyArray | None,
        lane: NumpyArray,
        unit: NumpyArray,
        state: NumpyArray | None,
    ) -> NumpyArray:
        """Compute −log p(y_i | seen rows of its cluster) of listed rows, each in a refit.

        By default all others are seen.
        """
        return self._row_difference(
            theta, weights, lane, unit, lambda clusters, cluster: clusters.score(self.scoring)
        )

    def modes(self, theta: NumpyArray) -> NumpyArray:
        """Modes given all data, `[effects, clusters]`."""
        return self.make_clusters(theta[None]).mode().b[:, 0]

    def alone(
        self, theta: NumpyArray, unit: NumpyArray, joint: bool, start: NumpyArray
    ) -> TwoArrays:
        """Leave each listed unit out by itself: the change of F, and the loss of the unit, which
        joint losses of rows are not.

        The search for modes begins at `start`, as of `modes`.
        """
        batch = theta[None]
        lane = np.zeros(len(unit), int)

        def change_and_loss(clusters: Clusters, cluster: NDArray) -> NDArray:
            mode = clusters.mode(start[:, cluster])
            change = clusters.value(self.rule, mode)
            loss = change
            if joint == self.outer_weights:
                loss = clusters.score(self.scoring, mode)
            return np.stack([change, loss])

        if not self.outer_weights:
            changes, losses = self._row_difference(batch, None, lane, unit, change_and_loss)
            return changes, losses
        changes, losses = self._by_chunks(
            unit,
            lambda chunk: change_and_loss(
                self.gather_clusters(batch, lane[chunk], unit[chunk])[0], unit[chunk]
            ),
        )
        return changes, losses if joint else self.pointwise(batch, None, lane, unit, None)

    def _row_difference(
        self,
        theta: NDArray,
        weights: NDArray | None,
        lane: NDArray,
        unit: NDArray,
        function: Callable[[Clusters, NDArray], NDArray],
    ) -> NDArray:
        """Compute the difference of f with and without a row."""
        cluster = self.rows.cluster[self.model_order[unit]]

        def value(chunk, seen):
            omega = self._omega(weights, lane[chunk], cluster[chunk], unit[chunk], seen)
            clusters, _, _ = self.gather_clusters(theta, lane[chunk], cluster[chunk], omega)
            return function(clusters, cluster[chunk])

        return self._by_chunks(cluster, lambda chunk: value(chunk, True) - value(chunk, False))

    def _omega(
        self, weights: NDArray | None, lane: NDArray, cluster: NDArray, unit: NDArray, seen: bool
    ) -> NDArray:
        """Return the weights of the rows of listed clusters, with a weight of one for the given
        unit.
        """
        ragged, place = self._gather_rows(cluster)
        itself = self.order[place] == unit[ragged.cluster]
        if weights is None:
            return np.where(itself, float(seen), 1.0)
        omega = weights[lane[ragged.cluster], self.order[place]]
        return np.where(itself, 1.0, omega) if seen else omega

    def _by_chunks(self, cluster: NDArray, function) -> NDArray:
        """Apply a function to the listed clusters in parts that fit into memory."""
        if not len(cluster):
            return np.zeros(0)
        sizes = self.rows.sizes[cluster] * _num_nodes(self.scoring)
        part = np.cumsum(sizes) // (8 * NODE_ENTRIES)
        chunks = np.split(np.arange(len(cluster)), np.flatnonzero(np.diff(part)) + 1)
        return np.concatenate([function(chunk) for chunk in chunks], -1)

    def predictors(
        self, theta: NumpyArray, weights: NumpyArray, state: NumpyArray | None = None
    ) -> ThreeArrays:
        omega = weights[:, self.rows.cluster if self.outer_weights else self.order]
        clusters = self.make_clusters(theta, omega)
        mode = clusters.mode()
        spread = np.sum(forward(np.take(mode.low, self.rows.cluster, -1), clusters.a) ** 2, 0)
        mean = np.empty_like(mode.eta)
        variance = np.empty_like(mode.eta)
        mean[:, self.order] = mode.eta
        variance[:, self.order] = spread
        return mean, variance, clusters.tau

    def covariances(self, theta: NumpyArray) -> TwoArrays:
        """Covariance of all rows' predictors given β and all data at θ `[params]`, `[rows, rows]`.

        And ωℓ″ of each row.
        """
        clusters = self.make_clusters(theta[None])
        mode = clusters.mode()
        row_cluster = self.rows.cluster
        whitened = forward(np.take(mode.low, row_cluster, -1), clusters.a)[:, 0]
        model_order = self.model_order
        across = np.where(row_cluster[:, None] == row_cluster, whitened.T @ whitened, 0.0)
        curvature = clusters.omega * mode.orders[2]
        return across[np.ix_(model_order, model_order)], curvature[0, model_order]

    def regressions(
        self, theta: NumpyArray, weights: NumpyArray, state: NumpyArray | None = None
    ) -> DesignRegressions:
        clusters = self.make_clusters(theta, self._inner_weights(weights))
        mode = clusters.mode(self._start(state, slice(None)))
        row_cluster = self.rows.cluster
        X = self.sorted_rows.design
        weight = clusters.omega * mode.orders[2]
        columns = X.T[:, None]
        cross_products = self.rows.total(clusters.a[:, None] * (weight * columns))
        effects = np.take(backward(mode.low, forward(mode.low, cross_products)), row_cluster, -1)
        residual = columns - np.sum(clusters.a[:, None] * effects, 0)
        unit = self.order
        outer: NDArray | float = 1.0
        if self.outer_weights:
            unit = row_cluster
            outer = weights[:, row_cluster]
        return DesignRegressions(
            mode.eta[:, self.model_order], X, unit, outer, weight, effects, residual
        )

    def by_loadings(self, slopes: NumpyArray) -> NumpyArray:
        return np.sum(self.factor.by_free(slopes, self.design), -1).T

    def effects(self, theta: NumpyArray, codes: ArrayList, designs: ArrayList) -> TwoArrays:
        """Mean and variance of `zᵀu` given all data, at θ `[params]`, for rows with these levels.

        −1 is a new level.
        """
        mode = self.make_clusters(theta[None]).mode()
        seen = codes[0] >= 0
        (free,) = split(theta[None], self.sorted_rows, (self.factor,)).free
        a = self.factor.rotate(free[0], designs[0])
        level = np.where(seen, codes[0], 0)
        mean = np.sum(a * mode.b[:, 0, level], 0)
        variance = np.sum(forward(mode.low[:, :, 0, level], a) ** 2, 0)
        return np.where(seen, mean, 0.0), np.where(seen, variance, np.sum(a**2, 0))
