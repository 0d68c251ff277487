"""Approximate sums over all configurations of a field by messages along its edges: Bethe's and the
tree-reweighted ones.

With weights ρ of the edges, one for Bethe's free energy (Yedidia, Freeman & Weiss 2005), for the
other the shares of spanning trees that hold an edge (Wainwright, Jaakkola & Willsky 2005), a fixed
point of

    λ_s = φ_s + Σ_t ρ_st m_ts,
    m_ts(k) = log Σ_j exp(φ_ts(j, k)/ρ_st + λ_t(j) − m_st(j)) + const

has beliefs b_s ∝ exp λ_s, b_st(j, k) ∝ exp(φ_st(j, k)/ρ_st + λ_s(j) − m_ts(j) + λ_t(k) − m_st(k)),
and there

    log Z = Σ_s log Σ_k exp λ_s(k) + Σ_st ρ_st log Σ_jk b_s(j) b_t(k) exp(φ_st(j, k)/ρ_st − m_ts(j)
    − m_st(k))

is stationary in the messages. Its derivatives by the potentials are the beliefs, and theirs come
from the linearised fixed point, a symmetric map. On trees everything is exact. The tree-reweighted
log Z is convex in φ, has one value, and is not below the exact one. Bethe's is mostly nearer, but
may have several fixed points; the one reached from uniform messages is taken. If messages do not
settle, all results are NaN.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int
from scipy.sparse.csgraph import minimum_spanning_tree

from .._runtime import AnyTuple
from ..objectives import Flags, PerLane
from .passes import Downward, Edges, GraphSums, Stack, Tangent

Array = np.ndarray

MAX_MESSAGE_ROUNDS = 5000
TREES = 64


class FixedPoint(NamedTuple):
    """Fixed point: log Z, the beliefs of sites and edges, and the origins of messages.

    The origin of a message is `P(j | k)`, the distribution of the state that it comes from.
    """

    log_partition: PerLane
    sites: Float[Array, "sites states lanes"]
    edges: Float[Array, "edges states states lanes"]
    origin: Float[Array, "messages states states lanes"]


class Messages(GraphSums):
    """Approximate sums for one graph, number of states and kind, with the interface of `Passes`."""

    def __init__(self, num_sites: int, edges: Edges, num_states: int, kind: str):
        edges = np.ascontiguousarray(edges, int)
        super().__init__(kind, num_sites, edges, num_states)
        self.entries = 2 * len(edges) * num_states**2 + num_sites * num_states
        edge_weights = spanning(num_sites, edges) if kind == "trw" else np.ones(len(edges))
        self.weights = np.tile(edge_weights, 2)[:, None, None]
        # site at which each message starts; messages against the direction of the edges come second
        self.start = np.concatenate([edges[:, 0], edges[:, 1]])
        self.end = np.roll(self.start, len(edges))
        where = self.end, np.arange(2 * len(edges))
        self.into = scipy.sparse.csr_array(
            (self.weights.ravel(), where), shape=(num_sites, 2 * len(edges))
        )

    def __getnewargs__(self) -> AnyTuple:
        return *super().__getnewargs__(), self.key[0]

    @property
    def lanes(self) -> int:
        loopy_table_entries = 2**21  # numbers in the tables of the lanes of one call
        return max(1, loopy_table_entries // self.entries)

    def log_partition(self, potentials: Stack) -> PerLane:
        return self._find_fixed_point(potentials).log_partition

    def run(self, potentials: Stack, *, edges: bool) -> tuple[FixedPoint, Downward]:
        # computed with the marginals of sites in any case
        point = self._find_fixed_point(potentials)
        lanes = potentials.shape[1]
        return point, Downward(
            np.concatenate([point.sites.reshape(-1, lanes), point.edges.reshape(-1, lanes)]),
            [],
            True,
        )

    def tangents(
        self, point: FixedPoint, down: Downward, change: Tangent, *, edges: bool
    ) -> Tangent:
        """Change of the beliefs along a change of the potentials, by the linearised fixed point."""
        shape = change.shape[1:]
        of_sites, psi = self._parts(change.reshape(len(change), -1))
        # repeat the beliefs of a lane for each of its tangents
        spread = lambda part: np.repeat(part, shape[1], -1)
        sites = spread(point.sites)
        pairs = spread(point.edges)
        origin = spread(point.origin)

        def step(m: Array) -> Array:
            out = self._out(self._total(of_sites, m), m)
            update = np.einsum("djkl,djkl->dkl", origin, psi + out[:, :, None])
            return update - update.mean(1, keepdims=True)

        m, good = self._iterate(
            step, np.zeros((2 * self.num_edges, self.num_states, of_sites.shape[-1]))
        )
        total = self._total(of_sites, m)
        site_change = sites * (total - np.sum(sites * total, 1, keepdims=True))
        result = np.zeros_like(change).reshape(len(change), -1)
        result[self.sites] = site_change.reshape(-1, site_change.shape[-1])
        if edges:
            out = self._out(total, m)
            pair_change = (
                psi[: self.num_edges] + out[: self.num_edges, :, None] + out[self.num_edges :, None]
            )
            pair_change = pairs * (pair_change - np.sum(pairs * pair_change, (1, 2), keepdims=True))
            result[self.edges] = pair_change.reshape(-1, pair_change.shape[-1])
        return np.where(good, result, np.nan).reshape(change.shape)

    def walk(self, *args: object, **kwargs: object) -> Int[Array, "draws sites"]:
        raise ValueError(
            "MRF: configurations are drawn, and the most probable one is found, by exact inference only; take "
            'inference="exact", on part of the graph if need be, or the largest of state_probabilities().'
        )

    def _find_fixed_point(self, potentials: Stack) -> FixedPoint:
        of_sites, psi = self._parts(potentials)
        top = of_sites.max(1, keepdims=True)  # keeps the digits of densities in the thousands
        top = np.where(np.isneginf(top), 0.0, top)
        of_sites = of_sites - top

        def step(m: Array) -> Array:
            update = _log_sum(psi + self._out(self._total(of_sites, m), m)[:, :, None])
            return update - update.mean(1, keepdims=True)

        m, good = self._iterate(
            step, np.zeros((2 * self.num_edges, self.num_states, potentials.shape[1]))
        )
        total = self._total(of_sites, m)
        site_normalisers = _log_sum(total)
        out = self._out(total - site_normalisers[:, None], m)
        logs = psi + out[:, :, None]
        origin = np.exp(logs - _log_sum(logs)[:, None])
        pairs = logs[: self.num_edges] + out[self.num_edges :, None]
        of_pairs = _log_sum(pairs.reshape(self.num_edges, -1, pairs.shape[-1]))
        log_partition = (site_normalisers + top[:, 0]).sum(0) + (
            self.weights[: self.num_edges, 0] * of_pairs
        ).sum(0)
        nan_mask = np.where(good, 0.0, np.nan)
        beliefs = (
            np.exp(total - site_normalisers[:, None]) + nan_mask,
            np.exp(pairs - of_pairs[:, None, None]) + nan_mask,
        )
        return FixedPoint(log_partition + nan_mask, *beliefs, origin + nan_mask)

    def _parts(self, potentials: Array) -> tuple[Array, Array]:
        """Potentials φ of sites, and φ/ρ of messages `[messages, from, to, lanes]`."""
        K = self.num_states
        lanes = potentials.shape[1]
        of_edges = potentials[self.edges].reshape(-1, K, K, lanes)
        psi = np.concatenate([of_edges, of_edges.swapaxes(1, 2)]) / self.weights[..., None]
        return potentials[self.sites].reshape(-1, K, lanes), psi

    def _total(self, of_sites: Array, m: Array) -> Array:
        """Compute λ, the sum of each site's potential and the messages to it."""
        return of_sites + (self.into @ m.reshape(len(m), -1)).reshape(of_sites.shape)

    def _out(self, total: Array, m: Array) -> Array:
        """Compute λ at the start of each message, without the message that goes back."""
        return total[self.start] - np.roll(m, self.num_edges, 0)

    def _iterate(self, step, m: Array) -> tuple[Array, Flags]:
        """Iterate `step` from m until all lanes have settled.

        Return its fixed point and which lanes have settled.
        """
        change = np.zeros(m.shape[-1])
        message_damping = 0.25  # share of the last messages that each step keeps
        message_tolerance = 1e-12  # relative change at which messages have settled
        steps_between_checks = 10  # steps between two checks of convergence
        for count in range(MAX_MESSAGE_ROUNDS):
            new = step(m)
            if count % steps_between_checks == 0:
                change = np.abs(new - m).max((0, 1), initial=0.0) / (
                    1.0 + np.abs(new).max((0, 1), initial=0.0)
                )
                if not (change > message_tolerance).any():  # NaN stays what it is
                    return new, change <= message_tolerance
            m = message_damping * m + (1.0 - message_damping) * new
        return m, change <= message_tolerance


def _log_sum(logs: Array) -> Array:
    top = logs.max(1, keepdims=True)
    top = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(logs - top).sum(1)) + top.squeeze(1)


def spanning(num_sites: int, edges: Edges) -> Float[Array, " edges"]:
    """Share of spanning trees that hold each edge.

    Trees are drawn such that each takes edges that few had, until every edge was in one.
    """
    times = np.zeros(len(edges))
    count = 0
    number = scipy.sparse.csr_array(
        (np.arange(1, len(edges) + 1), edges.T), shape=(num_sites, num_sites)
    )
    while len(edges) and (count < TREES or not times.all()):
        weights = scipy.sparse.csr_array(
            (1.0 + times[number.data - 1], number.indices, number.indptr), shape=number.shape
        )
        tree = minimum_spanning_tree(weights).tocoo()
        times[np.asarray(number[tree.row, tree.col]).ravel() - 1] += 1
        count += 1
    return times / max(count, 1)


@functools.lru_cache(maxsize=16)
def messages(num_sites: int, edges: bytes, num_states: int, kind: str) -> Messages:
    return Messages(num_sites, np.frombuffer(edges, np.int64).reshape(-1, 2), num_states, kind)
