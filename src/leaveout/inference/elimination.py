"""Order in which the sites of a graph are summed out, and the tree of cliques that this needs.

Eliminating site v makes a table over v and its current neighbours, and joins these neighbours to
one another. The order determines how large the tables become: the largest spans `width + 1` sites.
Finding the best order is NP-hard. Least fill, least degree, and reverse Cuthill–McKee both ways are
tried, and the order with the fewest table entries is taken. If these are many, least fill is
repeated with a random handicap of every site, in edges. A few handicaps are drawn anew each time,
and kept if there are no more entries than before. (On the 384 tracts of Philadelphia with three
states: 152 million entries by the best of ten ties broken at random, 55 to 75 million by 200
handicaps; nested dissection has billions.) Cliques that lie within others are merged with them, and
so are small ones, since a call costs as much as a few hundred numbers.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse
from jaxtyping import Int
from numpy import ndarray
from scipy.sparse.csgraph import reverse_cuthill_mckee

from .._runtime import Slow, TwoCounts

Edges = Int[ndarray, "edges 2"]

HOPELESS = 2**40  # entries of one table, beyond which an order is given up
SMALL_TABLES = 2**22  # entries of all tables, up to which no better order is looked for
HANDICAP = 10.0  # largest handicap, in edges
REDRAWN = 0.01, 0.03, 0.1, 0.3  # shares of the handicaps that are drawn anew

Graph = list[set[int]]  # the neighbours of each site
# the neighbours of each site when it is eliminated, in the order of elimination
Scopes = dict[int, set[int]]


@dataclass
class Clique:
    """Table over the sites that are summed out here, and those of the separator, which go up to the
    parent.

    Sites are in the order of their elimination. `sites` and `edges` number the potentials that are
    multiplied in here.
    """

    eliminated_sites: list[int]
    separator: list[int]
    parent: int  # number of the parent in the list of cliques, children first; −1 at a root
    sites: list[int] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)

    @property
    def scope(self) -> list[int]:
        return self.eliminated_sites + self.separator


def neighbours(num_sites: int, edges: Edges) -> Graph:
    graph: Graph = [set() for _ in range(num_sites)]
    for s, t in edges.tolist():
        graph[s].add(t)
        graph[t].add(s)
    return graph


def clique_tree(scopes: Scopes, edges: Edges, num_states: int) -> list[Clique]:
    """Cliques, children first, with every potential of a site or edge in the smallest clique that
    holds it.
    """
    cliques = _merge_cliques(scopes, num_states)
    _place(cliques, edges)
    return cliques


def best_scopes(graph: Graph, num_states: int) -> Scopes:
    """Scopes of the best order found, whose tables have the fewest entries.

    The same in every call.
    """
    best = first_scopes(graph, num_states)
    if SMALL_TABLES < entries(best, num_states) < HOPELESS:
        best = _search_orders(graph, num_states, best)
    return best


def first_scopes(graph: Graph, num_states: int) -> Scopes:
    """Scopes of the best order among the heuristics, before any search."""
    return min(_orders(graph, num_states), key=lambda scopes: entries(scopes, num_states))


def entries(scopes: Scopes, num_states: int) -> int:
    """Number of entries of all tables."""
    return sum(num_states ** (len(scope) + 1) for scope in scopes.values())


def _orders(graph: Graph, num_states: int) -> Iterator[Scopes]:
    """Yield orders by several heuristics.

    Least degree is always carried through, others until a table is hopeless.
    """
    yield _greedy(graph, lambda graph, v: len(graph[v]), None)
    sites = np.array([(s, t) for s, adjacent in enumerate(graph) for t in adjacent], int).reshape(
        -1, 2
    )
    matrix = scipy.sparse.csr_matrix(
        (np.ones(len(sites), np.int8), (sites[:, 0], sites[:, 1])), [len(graph)] * 2
    )
    along = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    most = _most(num_states)
    candidates = [
        _greedy(graph, _fill, most),
        *(_scopes_of_order(graph, order.tolist(), most) for order in (along, along[::-1])),
    ]
    yield from (scopes for scopes in candidates if len(scopes) == len(graph))


def _most(num_states: int) -> int:
    """Largest number of neighbours that a site may have when it is summed out."""
    return int(np.log(HOPELESS) / np.log(max(num_states, 2)))


def _search_orders(graph: Graph, num_states: int, best: Scopes) -> Scopes:
    """Search better orders by random handicaps, from a fixed seed."""
    max_search_sites = 80_000  # largest number of sites that the search sums out
    # largest number of states that the search counts with; with more, the largest table alone would
    # decide
    search_states = 3
    rng = np.random.default_rng(0)
    rounds = max_search_sites // len(graph)
    base = min(num_states, search_states)
    handicap = rng.uniform(0.0, HANDICAP, len(graph))
    fewest = np.inf
    since = 0
    max_idle_trials = 50  # trials in a row without improvement after which the search ends
    with Slow("orders of elimination", rounds) as bar:
        for _ in range(rounds):
            again = rng.random(len(graph)) < rng.choice(REDRAWN)
            trial = np.where(again, rng.uniform(0.0, HANDICAP, len(graph)), handicap)
            scopes = _greedy(
                graph,
                lambda graph, v, trial=trial: _fill(graph, v)[0] + trial[v],
                _most(num_states),
                (base, fewest),
            )
            since += 1
            if len(scopes) == len(graph):
                if entries(scopes, base) != fewest:
                    since = 0
                handicap = trial
                fewest = entries(scopes, base)
                best = min(best, scopes, key=lambda scopes: entries(scopes, num_states))
            bar.advance()
            if since == max_idle_trials:
                break
    return best


def _fill(graph: Graph, v: int) -> TwoCounts:
    """Number of edges that eliminating v adds, and its degree."""
    adjacent = graph[v]
    return sum(len(adjacent) - 1 - len(adjacent & graph[u]) for u in adjacent) // 2, len(adjacent)


def _greedy(
    graph: Graph,
    cost: Callable[[Graph, int], object],
    most: int | None,
    budget: tuple[int, float] = (0, np.inf),
) -> Scopes:
    """Eliminate the cheapest site next, without looking ahead.

    It gives up if a site has more than `most` neighbours, or the tables more entries than a budget
    (states, entries) allows. `most` is None for costs that depend on a site's own neighbours only,
    the fewest first.
    """
    states, remaining_entries = budget
    graph = [set(adjacent) for adjacent in graph]
    costs = [cost(graph, v) for v in range(len(graph))]
    heap = [(priority, v) for v, priority in enumerate(costs)]
    heapq.heapify(heap)
    scopes: Scopes = {}
    while heap:
        priority, v = heapq.heappop(heap)
        if v in scopes or priority != costs[v]:
            continue
        adjacent = graph[v]
        if most is not None and len(adjacent) > most:
            return scopes
        # all others are its neighbours: the graph is complete, and eliminated in any order
        if most is None and len(adjacent) == len(graph) - len(scopes) - 1:
            others = [site for site in range(len(graph)) if site not in scopes]
            return scopes | {site: set(others[k + 1 :]) for k, site in enumerate(others)}
        remaining_entries -= states ** (len(adjacent) + 1)
        if remaining_entries < 0:
            return scopes
        scopes[v] = adjacent
        _join(graph, v)
        for u in adjacent if most is None else adjacent.union(*(graph[u] for u in adjacent)):
            costs[u] = cost(graph, u)
            heapq.heappush(heap, (costs[u], u))
    return scopes


def _scopes_of_order(graph: Graph, order: list[int], most: int) -> Scopes:
    graph = [set(adjacent) for adjacent in graph]
    scopes: Scopes = {}
    for v in order:
        if len(graph[v]) > most:
            return scopes
        scopes[v] = graph[v]
        _join(graph, v)
    return scopes


def _join(graph: Graph, v: int) -> None:
    """Remove v, and join its neighbours to one another."""
    for u in graph[v]:
        graph[u] |= graph[v]
        graph[u] -= {u, v}


def _merge_cliques(scopes: Scopes, num_states: int) -> list[Clique]:
    """Cliques after merging those that lie within their parent, or contain it, and small ones."""
    order = list(scopes)
    position = {v: index for index, v in enumerate(order)}
    eliminated = [[v] for v in order]
    everything = [{v, *scopes[v]} for v in order]
    parent = [min((position[u] for u in scopes[v]), default=-1) for v in order]
    into = list(range(len(order)))

    def owner(index: int) -> int:
        while into[index] != index:
            into[index] = into[into[index]]
            index = into[index]
        return index

    # entries up to which cliques are merged although that makes more entries
    merged_clique_entries = 2**6
    for child, above in enumerate(parent):
        if above < 0:
            continue
        above = owner(above)
        union = everything[child] | everything[above]
        larger = max(len(everything[child]), len(everything[above]))
        if len(union) <= larger or max(num_states, 2) ** len(union) <= merged_clique_entries:
            everything[above] = union
            eliminated[above] = eliminated[child] + eliminated[above]
            into[child] = above
    representatives = [index for index in range(len(order)) if into[index] == index]
    number = {index: new for new, index in enumerate(representatives)}
    cliques = []
    for index in representatives:
        eliminated_sites = sorted(eliminated[index], key=position.__getitem__)
        separator = sorted(everything[index] - set(eliminated_sites), key=position.__getitem__)
        cliques.append(
            Clique(
                eliminated_sites,
                separator,
                number[owner(parent[index])] if parent[index] >= 0 else -1,
            )
        )
    return cliques


def _place(cliques: list[Clique], edges: Edges) -> None:
    """Put every potential into the smallest clique that has its sites."""
    edge_of = {(min(s, t), max(s, t)): number for number, (s, t) in enumerate(edges.tolist())}
    placed = set()
    edges_of: dict[int, list[TwoCounts]] = {}
    for s, t in edge_of:
        edges_of.setdefault(s, []).append((s, t))
    open_edges = dict(edge_of)
    for clique in sorted(cliques, key=lambda clique: len(clique.scope)):
        inside = set(clique.scope)
        for site in clique.scope:
            if site not in placed:
                placed.add(site)
                clique.sites.append(site)
            for pair in edges_of.get(site, ()):
                if pair in open_edges and pair[1] in inside:
                    clique.edges.append(open_edges.pop(pair))
