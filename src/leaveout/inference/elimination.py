"""From a graph to a tree of cliques: in which order sites are summed out, and the tables that this takes.

Eliminating site v makes a table over v and the neighbours that it then has, and joins these neighbours to one another.
The order decides how large the tables become: the largest spans `width + 1` sites. Finding the best order is NP-hard; the
heuristics here are tried, and the one with the fewest table entries is taken. Cliques that lie within others are merged
with them, and so are small ones, since a call costs as much as a few hundred numbers.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import scipy.sparse
from jaxtyping import Int
from scipy.sparse.csgraph import reverse_cuthill_mckee

LARGEST = 2**22  # entries of one table
SMALL = 2**6  # entries up to which cliques are merged although that makes more entries

Graph = list[set[int]]  # the neighbours of each site
Scopes = dict[int, set[int]]  # by site, in the order of elimination: the neighbours that it then has


@dataclass
class Clique:
    """One table: over the sites that are summed out here, and those of the separator, which go up to the parent.

    Sites are in the order of their elimination. `sites` and `edges` number the potentials that are multiplied in here.
    """

    eliminated: list[int]
    separator: list[int]
    parent: int  # number in the list of cliques, children first; −1 at a root
    sites: list[int] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)

    @property
    def scope(self) -> list[int]:
        return self.eliminated + self.separator


def neighbours(num_sites: int, edges: Int[np.ndarray, "edges 2"]) -> Graph:
    graph: Graph = [set() for _ in range(num_sites)]
    for s, t in edges.tolist():
        graph[s].add(t)
        graph[t].add(s)
    return graph


def clique_tree(scopes: Scopes, edges: Int[np.ndarray, "edges 2"], num_states: int) -> list[Clique]:
    """The cliques, children first, every site's and edge's potential in the smallest that has it."""
    cliques = _merged(scopes, num_states)
    _place(cliques, edges)
    return cliques


def best_scopes(graph: Graph, num_states: int) -> Scopes:
    """Of the order whose tables have the fewest entries.

    Raises ValueError where even that makes a table that is too large.
    """
    best: Scopes | None = None
    entries, width = np.inf, len(graph)
    for scopes, complete in _orders(graph, num_states):
        widest = max(map(len, scopes.values()), default=0)
        if complete:
            width = min(width, widest)
        if complete and not _too_large(widest, num_states):
            total = sum(num_states ** (len(scope) + 1) for scope in scopes.values())
            if total < entries:
                best, entries = scopes, total
    if best is None:
        _refuse(width, num_states)
    return best


def _too_large(width: int, num_states: int) -> bool:
    return width + 1 > np.log(LARGEST) / np.log(max(num_states, 2)) + 1e-9


def _refuse(width: int, num_states: int) -> NoReturn:
    bytes_ = 8 * float(num_states) ** min(width + 1, 100)
    size = (
        f"{bytes_ / 2**20:,.0f} MiB" if bytes_ < 2**50 else f"10^{np.log10(8) + np.log10(num_states) * (width + 1):.0f} bytes"
    )
    raise ValueError(
        f"MRF: exact inference on this graph needs a table over {width + 1} sites (width {width}) of {num_states} states, "
        f"{size} for one table alone; the limit is {LARGEST:,} entries. Take fewer states, fewer edges (neighbours that share "
        "a border rather than a corner, or the nearest few), larger areas, or parts of the graph as fields of their own."
    )


def _orders(graph: Graph, num_states: int) -> Iterator[tuple[Scopes, bool]]:
    """Scopes by several heuristics, and whether each was carried through."""
    yield _greedy(graph, num_states, _fill)
    yield _greedy(graph, num_states, lambda graph, v: len(graph[v]), carry_on=True)
    sites = np.array([(s, t) for s, near in enumerate(graph) for t in near], np.int64).reshape(-1, 2)
    matrix = scipy.sparse.csr_matrix((np.ones(len(sites), np.int8), (sites[:, 0], sites[:, 1])), [len(graph)] * 2)
    along = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    for order in (along, along[::-1]):
        yield _given(graph, num_states, order.tolist())


def _fill(graph: Graph, v: int) -> tuple[int, int]:
    """Edges that eliminating v adds, and its degree."""
    near = graph[v]
    return sum(len(near) - 1 - len(near & graph[u]) for u in near) // 2, len(near)


def _greedy(graph: Graph, num_states: int, cost: Callable[[Graph, int], object], carry_on: bool = False) -> tuple[Scopes, bool]:
    """The cheapest site next, whatever that leads to. Given up once a table is too large, unless it is to `carry_on`."""
    graph = [set(near) for near in graph]
    known = [cost(graph, v) for v in range(len(graph))]
    heap = [(known[v], v) for v in range(len(graph))]
    heapq.heapify(heap)
    scopes: Scopes = {}
    while heap:
        now, v = heapq.heappop(heap)
        if v in scopes or now != known[v]:
            continue
        near = graph[v]
        if not carry_on and _too_large(len(near), num_states):
            return scopes, False
        rest = len(graph) - len(scopes)
        if carry_on and len(near) == rest - 1:  # the site of least degree has all others for neighbours: so have they
            return _rest(graph, scopes), True
        scopes[v] = near
        _join(graph, v)
        for u in near if carry_on else near.union(*(graph[u] for u in near)):
            known[u] = cost(graph, u)
            heapq.heappush(heap, (known[u], u))
    return scopes, True


def _rest(graph: Graph, scopes: Scopes) -> Scopes:
    """A complete graph, in any order."""
    left = [v for v in range(len(graph)) if v not in scopes]
    return {**scopes, **{v: set(left[at + 1 :]) for at, v in enumerate(left)}}


def _given(graph: Graph, num_states: int, order: list[int]) -> tuple[Scopes, bool]:
    graph = [set(near) for near in graph]
    scopes: Scopes = {}
    for v in order:
        if _too_large(len(graph[v]), num_states):
            return scopes, False
        scopes[v] = graph[v]
        _join(graph, v)
    return scopes, True


def _join(graph: Graph, v: int) -> None:
    """Take v out, and make its neighbours one another's."""
    for u in graph[v]:
        graph[u] |= graph[v]
        graph[u] -= {u, v}


def _merged(scopes: Scopes, num_states: int) -> list[Clique]:
    """Cliques that lie within their parent, or hold it, are one with it; so are small ones."""
    order = list(scopes)
    position = {v: at for at, v in enumerate(order)}
    eliminated = [[v] for v in order]
    everything = [{v, *scopes[v]} for v in order]
    parent = [min((position[u] for u in scopes[v]), default=-1) for v in order]
    into = list(range(len(order)))

    def owner(at: int) -> int:
        while into[at] != at:
            into[at] = into[into[at]]
            at = into[at]
        return at

    for child, above in enumerate(parent):
        if above < 0:
            continue
        above = owner(above)
        union = everything[child] | everything[above]
        larger = max(len(everything[child]), len(everything[above]))
        if len(union) <= larger or max(num_states, 2) ** len(union) <= SMALL:
            everything[above] = union
            eliminated[above] = eliminated[child] + eliminated[above]
            into[child] = above
    kept = [at for at in range(len(order)) if into[at] == at]
    number = {at: new for new, at in enumerate(kept)}
    cliques = []
    for at in kept:
        own = sorted(eliminated[at], key=position.__getitem__)
        rest = sorted(everything[at] - set(own), key=position.__getitem__)
        cliques.append(Clique(own, rest, number[owner(parent[at])] if parent[at] >= 0 else -1))
    return cliques


def _place(cliques: list[Clique], edges: Int[np.ndarray, "edges 2"]) -> None:
    """Every potential into the smallest clique that has its sites."""
    edge_of = {(min(s, t), max(s, t)): number for number, (s, t) in enumerate(edges.tolist())}
    placed: set[int] = set()
    edges_of: dict[int, list[tuple[int, int]]] = {}
    for s, t in edge_of:
        edges_of.setdefault(s, []).append((s, t))
    left = dict(edge_of)
    for clique in sorted(cliques, key=lambda clique: len(clique.scope)):
        inside = set(clique.scope)
        for site in clique.scope:
            if site not in placed:
                placed.add(site)
                clique.sites.append(site)
            for pair in edges_of.get(site, ()):
                if pair in left and pair[1] in inside:
                    clique.edges.append(left.pop(pair))
