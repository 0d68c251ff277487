"""Sums over all configurations of a field, by passes over its tree of cliques, in NumPy.

Everything is an array `[numbers, lanes]`, or `[numbers, lanes, tangents]`. A stack has the
potentials of the sites, those of the edges, and then a message for each clique. On the way up, a
clique's table is A times the stack, with a sparse 0/1 matrix A; summing out its own sites r leaves
a message over its separator s:

    a = A stack,      m(s) = log Σ_r exp a(r, s),      P(r | s) = exp(a(r, s) − m(s)).

At the roots m is log Z. On the way down, belief(r, s) = P(r | s) belief(s), and the entries of the
stack have the marginals Aᵀ belief. So P determines everything. Its tangents are those of a,
centred, Ṗ = P (ȧ − Σ_r P ȧ), and no exponential is computed twice.

Cliques at one height that sum out equally many configurations are one step. Tables too large for a
matrix are added up, and summed over, as arrays of many axes.
"""

import collections
import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

from .._runtime import AnyTuple, ArrayList, Shape, silence
from ..objectives import PerLane
from .elimination import Clique, Scopes, best_scopes, clique_tree, neighbours

Array = np.ndarray
Edges = Int[Array, "edges 2"]

MAX_MATRIX_ENTRIES = 2**16  # entries of a table above which it has no matrix
PASS_TABLE_ENTRIES = 2**23  # numbers in all tables of the lanes of a pass
MEMORY = 4.0 * 2**30  # default limit of memory in bytes

Stack = Float[Array, "numbers lanes"]
Tangent = Float[Array, "numbers lanes tangents"]


class Narrow:
    """Cliques whose tables `[configurations, separators]`, side by side, are small enough for a
    matrix.
    """

    reads: Any
    configurations: int
    writes: slice
    rows: Array
    first_edge: int
    adjoint: Any
    adjoint_without_edges: Any

    def __init__(
        self, reads: scipy.sparse.csr_array, configurations: int, writes: slice, edges: slice
    ):
        self.reads = reads
        self.configurations = configurations
        self.writes = writes
        rows = np.unique(reads.indices)
        of_edges = (rows >= edges.start) & (rows < edges.stop)
        self.rows = np.concatenate([rows[~of_edges], rows[of_edges]])
        self.first_edge = int(np.sum(~of_edges))
        self.adjoint = scipy.sparse.csr_array(scipy.sparse.csr_array(reads.T)[self.rows])
        # without the edges, whose marginals are not always needed
        self.adjoint_without_edges = self.adjoint[: self.first_edge]

    @property
    def entries(self) -> int:
        return self.reads.shape[0]

    def up(self, stack: Array, table: Array) -> None:
        table[:] = (self.reads @ stack.reshape(len(stack), -1)).reshape(table.shape)

    def down(self, belief: Array, out: Array, edges: bool) -> None:
        if edges:
            rows = self.rows
            adjoint = self.adjoint
        else:
            rows = self.rows[: self.first_edge]
            adjoint = self.adjoint_without_edges
        out[rows] = (adjoint @ belief.reshape(self.entries, -1)).reshape(-1, *out.shape[1:])


class CliquePass(NamedTuple):
    """One large clique; `inputs` are the places of the messages that it reads, and their shapes.

    A shape has a 1 for every site that is not in the message.
    """

    shape: Shape
    configurations: int
    writes: slice
    inputs: list[tuple[slice, Shape]]

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    def up(self, stack: Array, table: Array) -> None:
        table[:] = 0.0
        grid = table.reshape(*self.shape, *stack.shape[1:])
        for place, shape in self.inputs:
            grid += stack[place].reshape(*shape, *stack.shape[1:])

    def down(self, belief: Array, out: Array, edges: bool) -> None:
        table = belief.reshape(*self.shape, *out.shape[1:])
        for place, shape in self.inputs:
            absent = tuple(axis for axis, size in enumerate(shape) if size != self.shape[axis])
            out[place] = table.sum(absent).reshape(-1, *out.shape[1:])


class Upward(NamedTuple):
    """Results of a pass upward.

    Log Z `[lanes]`, and the conditional probabilities P of every step.
    """

    log_partition: PerLane
    conditionals: ArrayList


class Downward(NamedTuple):
    """Marginals in the places of the potentials, with those of edges or without, and the beliefs in
    every step's separators.
    """

    marginals: Stack
    separators: ArrayList
    edges: bool


class GraphSums:
    """Sums of one kind over the configurations of one graph and number of states.

    Equal for equal graphs, so that nothing is compiled anew.
    """

    def __init__(self, kind: str, num_sites: int, edges: Edges, num_states: int):
        self.num_sites = num_sites
        self.num_edges = len(edges)
        self.num_states = num_states
        self.key = kind, num_sites, num_states, edges.tobytes()
        self.sites = slice(0, num_sites * num_states)
        self.edges = slice(self.sites.stop, self.sites.stop + len(edges) * num_states**2)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphSums) and self.key == other.key

    def __getnewargs__(self) -> AnyTuple:
        """Return the arguments, which stand for these sums in files and other processes."""
        return self.num_sites, np.frombuffer(self.key[3], int).reshape(-1, 2), self.num_states

    def __reduce__(self) -> AnyTuple:
        return type(self), self.__getnewargs__()


class Passes(GraphSums):
    """Steps of the passes for one graph and number of states.

    `need` is the number of bytes that the pass of derivatives takes, which is the largest: the
    conditional probabilities of all tables and their tangents, two tables more, the stack and its
    tangents. Raises ValueError if that is more than `memory` bytes.
    """

    def __init__(
        self,
        num_sites: int,
        edges: Edges,
        num_states: int,
        memory: float = np.inf,
    ):
        edges = np.ascontiguousarray(edges, int)
        super().__init__("exact", num_sites, edges, num_states)
        scopes = _scopes(num_sites, edges.tobytes(), num_states)
        self.width = max(map(len, scopes.values()))
        cliques = clique_tree(scopes, edges, num_states)
        # entries of all tables from which matrices of the larger ones take too long to build
        max_compiled_entries = 2**21
        if sum(num_states ** len(clique.scope) for clique in cliques) < max_compiled_entries:
            self.wide = MAX_MATRIX_ENTRIES
        else:
            self.wide = min(MAX_MATRIX_ENTRIES, 2**12)
        cliques = _gather_potentials(cliques, edges, self)
        self.entries = sum(num_states ** len(clique.scope) for clique in cliques)
        self.need = 8 * self.lanes * _numbers(cliques, self)
        if self.need > memory:
            _refuse(self, memory)
        builder = _Builder(cliques, edges, self)
        self.steps, self.roots, self.size = builder.steps()
        self.cliques = builder.places()
        recent = 4  # number of passes in the cache
        self.recent: collections.deque[tuple[Stack, Upward, Downward]] = collections.deque(
            maxlen=recent
        )

    @property
    def lanes(self) -> int:
        """Number of fields in one pass."""
        return max(1, PASS_TABLE_ENTRIES // self.entries)

    def _tables(self, lanes: Shape) -> ArrayList:
        """Allocate the tables of all steps in one piece, so that they are contiguous."""
        memory = np.empty((self.entries, *lanes))
        start = 0
        tables = []
        for step in self.steps:
            tables.append(
                memory[start : start + step.entries].reshape(step.configurations, -1, *lanes)
            )
            start += step.entries
        return tables

    def up(self, stack: Stack, *, best: bool = False) -> Upward:
        """Pass upward; fills in the messages of the stack.

        If only the `best` configurations are wanted, it takes maxima instead of sums, and
        conditional probabilities of one and zero.
        """
        conditionals = self._tables(stack.shape[1:])
        for step, conditional in zip(self.steps, conditionals, strict=True):
            step.up(stack, conditional)
            if step.configurations == 1:
                stack[step.writes] = conditional[0]
                conditional[:] = 1.0
                continue
            top = conditional.max(0)
            if best:
                stack[step.writes] = top
                np.equal(
                    np.arange(len(conditional))[:, None, None],
                    conditional.argmax(0),
                    out=conditional,
                )
                continue
            if not np.isfinite(top).all():
                top = np.where(np.isneginf(top), 0.0, top)
            conditional -= top
            np.exp(conditional, out=conditional)
            total = conditional.sum(0)
            with silence("divide"):
                stack[step.writes] = np.log(total) + top
            conditional /= np.where(total == 0, 1.0, total)
        return Upward(stack[self.roots].sum(0), conditionals)

    def down(self, upward: Upward, *, edges: bool) -> Downward:
        """Pass downward: all marginals, those of edges only on request."""
        out = np.zeros((self.size, len(upward.log_partition)))
        out[self.roots] = 1.0
        separators = []
        for step, conditional in zip(
            reversed(self.steps), reversed(upward.conditionals), strict=True
        ):
            separators.append(out[step.writes])
            step.down(conditional * separators[-1], out, edges)
        return Downward(out[: self.edges.stop].copy(), separators[::-1], edges)

    def tangents(self, upward: Upward, down: Downward, change: Tangent, *, edges: bool) -> Tangent:
        """Change of the marginals along a change of the potentials.

        A symmetric linear map, the Hessian of log Z.
        """
        stack = self._stack(change)
        tables = self._tables(change.shape[1:])
        for step, conditional, table in zip(self.steps, upward.conditionals, tables, strict=True):
            step.up(stack, table)
            mean = stack[step.writes] = (conditional[..., None] * table).sum(0)
            table -= mean
        out = np.zeros_like(stack)
        for step, conditional, separator, table in zip(
            *(
                reversed(part)
                for part in (self.steps, upward.conditionals, down.separators, tables)
            ),
            strict=True,
        ):
            table *= separator[..., None]
            table += out[step.writes]
            table *= conditional[..., None]
            step.down(table, out, edges)
        return out[: len(change)]

    def log_partition(self, potentials: Stack) -> PerLane:
        return self.up(self._stack(potentials)).log_partition

    def _stack(self, potentials: Array) -> Array:
        """Stack of the potentials, with memory for the messages."""
        stack = np.empty((self.size, *potentials.shape[1:]))
        stack[: len(potentials)] = potentials
        return stack

    def run(self, potentials: Stack, *, edges: bool) -> tuple[Upward, Downward]:
        """Pass up and down, or reuse the last passes over these potentials.

        Marginals and their tangents are usually needed one after the other.
        """
        for before, up, down in list(self.recent):
            if (
                before.shape == potentials.shape
                and (down.edges or not edges)
                and np.array_equal(before, potentials)
            ):
                return up, down
        up = self.up(self._stack(potentials))
        down = self.down(up, edges=edges)
        if self.entries * potentials.shape[1] <= PASS_TABLE_ENTRIES:
            self.recent.append((potentials, up, down))
        return up, down

    def walk(
        self, potentials: Stack, draws: int, rng: np.random.Generator, *, best: bool = False
    ) -> Int[Array, "draws sites"]:
        """Draw configurations from the roots down, each site given its separator.

        Or find the `best` one.
        """
        upward = self.up(self._stack(potentials), best=best)
        z = np.zeros((draws, self.num_sites), int)
        for step, start, clique in reversed(self.cliques):
            K = self.num_states
            m = len(clique.eliminated_sites)
            place = start + z[:, clique.separator] @ K ** np.arange(len(clique.separator))[::-1]
            chances = np.cumsum(upward.conditionals[step][:, place, 0], 0)
            configuration = np.sum(chances < rng.random(draws) * chances[-1], 0)
            z[:, clique.eliminated_sites] = configuration[:, None] // K ** np.arange(m)[::-1] % K
        return z


@lru_cache(maxsize=16)
def passes(num_sites: int, edges: bytes, num_states: int, memory: float = np.inf) -> Passes:
    """Return the passes over a graph, built once; `edges` are the bytes of int64 `[edges, 2]`."""
    return Passes(num_sites, np.frombuffer(edges, np.int64).reshape(-1, 2), num_states, memory)


@lru_cache(maxsize=16)
def _scopes(num_sites: int, edges: bytes, num_states: int) -> Scopes:
    return best_scopes(
        neighbours(num_sites, np.frombuffer(edges, np.int64).reshape(-1, 2)), num_states
    )


def _numbers(cliques: list[Clique], layout: Passes) -> int:
    """Count the numbers in memory at once for one field and its derivatives."""
    K = layout.num_states
    stack = (
        layout.num_sites * K
        + layout.num_edges * K**2
        + sum(K ** len(clique.separator) for clique in cliques)
    )
    return 2 * layout.entries + 2 * K ** max(len(clique.scope) for clique in cliques) + 2 * stack


def _refuse(layout: Passes, memory: float) -> NoReturn:
    describe_bytes = lambda count: (
        f"{count / 2**30:,.3g} GiB" if count < 2**50 else f"10^{math.log10(count):.0f} bytes"
    )
    if layout.need < 2**50:
        required_gib = math.ceil(layout.need / 2**30 * 10) / 10
    else:
        required_gib = math.inf
    raise ValueError(
        f"MRF: exact inference on this graph needs {describe_bytes(layout.need)}: tables over {layout.width + 1} sites (width "
        f"{layout.width}) of {layout.num_states} states and less, twice where derivatives are taken. The limit is "
        f"{describe_bytes(memory)}. "
        + (
            f"Raise it by memory={required_gib:g} if the machine has as much; take"
            if required_gib < 1024
            else "Take"
        )
        + ' an approximation (inference="bethe" or "trw"), fewer states, fewer edges (neighbours that share a border rather '
        "than a corner, or the nearest few), larger areas, or parts of the graph as fields of their own."
    )


def _is_wide(clique: Clique, layout: Passes) -> bool:
    return bool(clique.eliminated_sites) and layout.num_states ** len(clique.scope) > layout.wide


def _gather_potentials(cliques: list[Clique], edges: Edges, layout: Passes) -> list[Clique]:
    """Gather the potentials of wide cliques in narrow ones that sum nothing out."""
    extra = []
    emptied = []
    # entries of the tables in which potentials of a wide clique are gathered
    gathered_table_entries = 2**8
    for number, clique in enumerate(cliques):
        if not _is_wide(clique, layout):
            emptied.append(clique)
            continue
        position = {site: place for place, site in enumerate(clique.scope)}
        potentials: list[tuple[set[int], list[int], list[int]]] = [
            ({site}, [site], []) for site in clique.sites
        ] + [(set(edges[e].tolist()), [], [e]) for e in clique.edges]
        groups: list[tuple[set[int], list[int], list[int]]] = []
        for sites, of_sites, of_edges in sorted(
            potentials, key=lambda entry: min(position[site] for site in entry[0])
        ):
            if (
                not groups
                or layout.num_states ** len(groups[-1][0] | sites) > gathered_table_entries
            ):
                groups.append((set(), [], []))
            groups[-1][0].update(sites)
            groups[-1][1].extend(of_sites)
            groups[-1][2].extend(of_edges)
        extra += [
            Clique([], sorted(sites, key=position.__getitem__), number, s, e)
            for sites, s, e in groups
        ]
        emptied.append(replace(clique, sites=[], edges=[]))
    shift = len(extra)
    return [
        replace(clique, parent=clique.parent + shift if clique.parent >= 0 else -1)
        for clique in extra + emptied
    ]


class _Builder:
    """Builds steps from cliques: heights, places of the messages in the stack, matrices."""

    def __init__(self, cliques: list[Clique], edges: Edges, layout: Passes):
        self.cliques = cliques
        self.ends = edges
        self.layout = layout
        self.K = layout.num_states
        self.children: list[list[int]] = [[] for _ in cliques]
        height = [0] * len(cliques)
        for number, clique in enumerate(cliques):  # children first
            if clique.parent >= 0:
                self.children[clique.parent].append(number)
                height[clique.parent] = max(height[clique.parent], height[number] + 1)
        groups: dict[tuple[int, int, int], list[int]] = {}
        for number, clique in enumerate(cliques):
            wide = number + 1 if _is_wide(clique, layout) else 0
            groups.setdefault((height[number], len(clique.eliminated_sites), wide), []).append(
                number
            )
        self.groups = [(key[2] > 0, members) for key, members in sorted(groups.items())]
        self.start = [0] * len(cliques)
        self.size = layout.edges.stop
        for _, members in self.groups:
            for number in members:
                self.start[number] = self.size
                self.size += self.K ** len(cliques[number].separator)

    def steps(self) -> tuple[list[Narrow | CliquePass], Int[Array, " roots"], int]:
        steps = [
            self._wide(members[0]) if wide else self._narrow(members)
            for wide, members in self.groups
        ]
        roots = [
            self.start[number] for number, clique in enumerate(self.cliques) if clique.parent < 0
        ]
        return steps, np.array(roots), self.size

    def places(self) -> list[tuple[int, int, Clique]]:
        """Return the step of every clique that sums something out, and the first of its separator's
        configurations there.
        """
        clique_places = []
        for step, (_, members) in enumerate(self.groups):
            first = self.start[members[0]]
            clique_places += [
                (step, self.start[n] - first, self.cliques[n])
                for n in members
                if self.cliques[n].eliminated_sites
            ]
        return clique_places

    def _writes(self, number: int) -> slice:
        return slice(
            self.start[number], self.start[number] + self.K ** len(self.cliques[number].separator)
        )

    def _wide(self, number: int) -> CliquePass:
        clique = self.cliques[number]
        inputs = []
        for child in self.children[number]:
            separator = set(self.cliques[child].separator)
            inputs.append(
                (
                    self._writes(child),
                    tuple(self.K if site in separator else 1 for site in clique.scope),
                )
            )
        shape = (self.K,) * len(clique.scope)
        return CliquePass(
            shape, self.K ** len(clique.eliminated_sites), self._writes(number), inputs
        )

    def _narrow(self, members: list[int]) -> Narrow:
        configurations = self.K ** len(self.cliques[members[0]].eliminated_sites)
        sizes = [self.K ** len(self.cliques[number].separator) for number in members]
        width = sum(sizes)
        before = np.cumsum([0, *sizes[:-1]])
        rows = [np.zeros(0, int)]
        columns = [np.zeros(0, int)]
        for number, size, offset in zip(members, sizes, before, strict=True):
            table_rows = (
                np.arange(configurations)[:, None] * width + offset + np.arange(size)
            ).ravel()
            for column in self._reads(number):
                rows.append(table_rows)
                columns.append(column)
        where = np.concatenate(rows), np.concatenate(columns)
        shape = configurations * width, self.size
        reads = scipy.sparse.csr_array((np.ones(len(where[0])), where), shape=shape)
        writes = slice(self.start[members[0]], self.start[members[0]] + width)
        return Narrow(reads, configurations, writes, self.layout.edges)

    def _reads(self, number: int) -> ArrayList:
        """Return the places in the stack that a clique reads, for each entry of the table."""
        K = self.K
        clique = self.cliques[number]
        axis = {site: position for position, site in enumerate(clique.scope)}
        shape = (K,) * len(clique.scope)

        def place(start: int, sites: list[int]) -> Array:
            total = np.full(shape, start)
            for power, site in enumerate(reversed(sites)):
                digits = np.arange(K).reshape(
                    [K if a == axis[site] else 1 for a in range(len(shape))]
                )
                total += K**power * digits
            return total.ravel()

        places = [place(site * K, [site]) for site in clique.sites]
        places += [
            place(self.layout.edges.start + e * K * K, self.ends[e].tolist()) for e in clique.edges
        ]
        return places + [
            place(self.start[child], self.cliques[child].separator)
            for child in self.children[number]
        ]
