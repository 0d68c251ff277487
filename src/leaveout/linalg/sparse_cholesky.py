"""Factors of sparse symmetric matrices of one pattern, many at a time, with determinants, solutions
and entries of the inverse.

A = L Lᵀ is computed over fronts from the leaves of the elimination tree to its roots. A front is a
dense block: columns that share their rows below (a supernode), and these rows (Duff & Reid 1983).
Back down from the roots come the entries of A⁻¹ in the fronts, G_rc = −G_rr T,  G_cc = L_c⁻ᵀL_c⁻¹ −
Tᵀ G_rc,  T = L_r L_c⁻¹ (Takahashi 1973; Erisman & Tinney 1975).

The order is SuperLU's minimum degree. Fronts of one height and shape are computed together, and so
are the matrices of a batch: there is no loop over columns or over matrices.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import linalg, sparse

from .._runtime import (
    ArrayList,
    EntryValues,
    Indices,
    NumpyArray,
    TwoArrays,
    TwoCounts,
    members_by_label,
    record,
)
from .curvature import Squares, cholesky

LaneColumns = Float[NumpyArray, "lanes size columns"]

Entries = Int[NumpyArray, " entries"]
# Stacks of right-hand sides of matrices.
Columns = Float[NumpyArray, "*some k n"]

# two supernodes of at most so many columns are merged if at most this share of the result is zeros
RELAXATION_STEPS = (16, 0.5), (64, 0.2)
# and supernodes of any size, if the second has at most this share more rows than stand below the
# first
ALIKE = 0.3

TRIANGULAR = 64  # columns from which LAPACK takes triangles, one matrix at a time


Front = tuple[int, int, NumpyArray]  # first column, number of columns, rows below


class Group(NamedTuple):
    """Fronts of one shape, none above another, side by side in the workspace."""

    shape: tuple[int, int, int]  # fronts, columns and rows of each
    # columns of each in the workspace, without those of its rows if nothing is added to these
    width: int
    columns: slice  # the columns of all fronts, in the order of elimination
    # rows below the fronts, in the order of elimination; padded with the number of columns
    rows: Int[NumpyArray, "fronts r"]
    span: slice  # place of the fronts in the workspace
    # places in the workspace to which the updated rows are added
    above: Entries
    # the same, if several rows go to one place
    place_sums: "tuple[Int[NumpyArray, ' places'], sparse.csr_array] | None"
    summed_rows: "sparse.csr_array | None"


@record
class Pattern:
    """Pattern of symmetric matrices whose lower entries `(row, column)` may differ from zero.

    Fronts follow `order`.
    """

    size: int
    row: Entries
    column: Entries
    order: Int[NumpyArray, " size"]  # columns, in the order in which they are eliminated
    groups: list[Group]
    place: Entries  # in the workspace
    length: int

    @cached_property
    def times(self) -> EntryValues:
        """Number of times that each entry stands in the matrix.

        Once on the diagonal, twice off it.
        """
        return np.where(self.row == self.column, 1.0, 2.0)

    @cached_property
    def _key(self) -> Entries:
        return self.row * self.size + self.column

    def entries(self, row: Indices, column: Indices) -> Indices:
        """Positions of the entries (row, column) among those of the pattern."""
        return np.searchsorted(
            self._key, np.maximum(row, column) * self.size + np.minimum(row, column)
        )

    def values(self, matrix: "sparse.sparray") -> EntryValues:
        """Entries of a matrix of this pattern."""
        lower = sparse.coo_array(sparse.tril(matrix))
        out = np.zeros(len(self.row))
        np.add.at(out, self.entries(lower.row, lower.col), lower.data)
        return out

    def factor(self, values: Float[NumpyArray, "lanes entries"]) -> "FrontalFactor":
        """Factor each matrix; NaN where it is not positive definite."""
        space = np.zeros((len(values), self.length + 1))  # the last place stands for padding
        space[:, self.place] = values
        logdet = np.zeros(len(values))
        parts = []
        for group in self.groups:
            count, k, r = group.shape
            front = space[:, group.span].reshape(-1, count, k + r, group.width)
            chol = cholesky(front[..., :k, :k])
            logdet += 2 * np.log(np.einsum("...kk->...k", chol)).sum((1, 2))
            triangles = _triangles(chol)
            below = _forward(triangles, front[..., k:, :k].swapaxes(-1, -2)).swapaxes(-1, -2)
            parts.append((triangles, below))
            if r:
                update = _product(-below, below.swapaxes(-1, -2))
                if group.width > k:
                    update += front[..., k:, k:]
                update = update.reshape(len(values), -1)
                if group.place_sums is None:
                    space[:, group.above] += update
                else:
                    space[:, group.place_sums[0]] += (group.place_sums[1] @ update.T).T
        return FrontalFactor(self, parts, logdet)


@record
class FrontalFactor:
    """Factors of a batch of matrices, by fronts: `_triangles`, and the blocks below these."""

    pattern: Pattern
    parts: list[TwoArrays]
    logdet: Float[NumpyArray, " lanes"]

    def whiten(self, right: LaneColumns) -> Float[NumpyArray, "lanes padded columns"]:
        """Compute `L⁻¹ b` for each matrix, in the order of elimination.

        A last row stands for padding.
        """
        lanes, size, width = right.shape
        solution = np.zeros((lanes, size + 1, width))  # the last row stands for padding
        solution[:, :size] = right[:, self.pattern.order]
        for group, (triangles, below) in zip(self.pattern.groups, self.parts, strict=True):
            view = solution[:, group.columns].reshape(lanes, *group.shape[:2], width)
            view[...] = block = _forward(triangles, view)
            if group.rows.size and group.summed_rows is None:
                solution[:, group.rows] -= below @ block
            elif group.rows.size:
                flat = (
                    (below @ block)
                    .reshape(lanes, -1, width)
                    .swapaxes(0, 1)
                    .reshape(group.rows.size, -1)
                )
                solution[:, :size] -= (
                    (group.summed_rows @ flat).reshape(-1, lanes, width).swapaxes(0, 1)
                )
        return solution

    def solve(self, right: LaneColumns) -> LaneColumns:
        """Compute `A⁻¹ b` for each matrix."""
        lanes, size, width = right.shape
        solution = self.whiten(right)
        for group, (triangles, below) in zip(
            self.pattern.groups[::-1], self.parts[::-1], strict=True
        ):
            view = solution[:, group.columns].reshape(lanes, *group.shape[:2], width)
            block = view
            if group.rows.size:
                block = view - below.swapaxes(-1, -2) @ solution[:, group.rows]
            view[...] = _backward(triangles, block)
        out = np.empty_like(right)
        out[:, self.pattern.order] = solution[:, :size]
        return out

    @cached_property
    def inverse(self) -> Float[NumpyArray, "lanes entries"]:
        """Entries of the inverse within the pattern."""
        space = np.empty((len(self.logdet), self.pattern.length + 1))
        space[:, -1] = 0.0
        for group, (triangles, below) in zip(
            self.pattern.groups[::-1], self.parts[::-1], strict=True
        ):
            count, k, r = group.shape
            # a view of the workspace, which is written to
            front = space[:, group.span].reshape(-1, count, k + r, group.width)
            block = _inverse_grams(triangles)
            if r:
                rows_inverse = np.take(space, group.above, axis=1, mode="clip").reshape(
                    -1, count, r, r
                )
                quotient = _backward(triangles, below.swapaxes(-1, -2)).swapaxes(-1, -2)
                between = -(rows_inverse @ quotient)
                block -= quotient.swapaxes(-1, -2) @ between
                front[..., k:, :k] = between
                if group.width > k:
                    front[..., k:, k:] = rows_inverse
                    front[..., :k, k:] = between.swapaxes(-1, -2)
            front[..., :k, :k] = block
        return space[:, self.pattern.place]


def pattern(matrix: "sparse.sparray", first: Indices | None = None) -> Pattern:
    """Pattern of a symmetric matrix with a full diagonal, and fronts of its factor.

    Columns `first` are eliminated first.
    """
    size = matrix.shape[0]
    full = sparse.csr_array(abs(matrix) + sparse.eye_array(size, format="csr"))
    lower = sparse.coo_array(sparse.tril(full))
    lower = lower.row.astype(int), lower.col.astype(int)
    by_row = np.lexsort(lower[::-1])
    row = lower[0][by_row]
    column = lower[1][by_row]
    order, below = _elimination_columns(full, np.zeros(0, int) if first is None else first)
    fronts = _supernodes(below, np.isin(order, [] if first is None else first))
    groups, order, place, length = _laid_out(fronts, order, row, column)
    return Pattern(size, row, column, order, groups, place, length)


def _elimination_columns(
    full: "sparse.csr_array", first: NumpyArray
) -> tuple[NumpyArray, ArrayList]:
    """Columns in the order of elimination, and the rows below each in its factor.

    Children come before their parents and next to them. Columns beside `first` come in the order of
    minimum degree of what is left when those are eliminated.
    """
    size = full.shape[0]
    remaining = np.setdiff1d(np.arange(size), first)
    reduced = full[remaining][:, remaining]
    if first.size:
        reduced = reduced + full[remaining][:, first] @ full[first][:, remaining]
    dominant = sparse.csc_array(
        (np.ones(reduced.nnz), reduced.indices, reduced.indptr), shape=reduced.shape
    )
    dominant = sparse.csc_array(dominant + sparse.diags_array(dominant.sum(0) + 1.0))
    options = {"SymmetricMode": True}
    by_degree = sparse.linalg.splu(
        dominant, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0, options=options
    ).perm_c
    eliminated = np.concatenate([first, remaining[np.argsort(by_degree)]])
    position = np.argsort(eliminated)
    struct: list[set[int]] = []
    children: list[list[int]] = [[] for _ in range(size)]
    indptr = full.indptr
    indices = position[full.indices]
    for step, pivot in enumerate(eliminated):
        neighbours = indices[indptr[pivot] : indptr[pivot + 1]]
        rows = set(neighbours[neighbours > step].tolist()).union(
            *(struct[child] for child in children[step])
        ) - {step}
        struct.append(rows)
        if rows:
            children[min(rows)].append(step)
    post = []
    stack = [step for step in range(size - 1, -1, -1) if not struct[step]]
    while stack:
        post.append(step := stack.pop())
        stack.extend(children[step])
    post = post[::-1]  # children before parents
    place = np.empty(size, int)
    place[post] = np.arange(size)
    return eliminated[post], [
        np.sort(place[list(struct[step])]) if struct[step] else np.zeros(0, int) for step in post
    ]


def _supernodes(below: ArrayList, leaf: Bool[NumpyArray, " size"]) -> list[Front]:
    """Fronts, each by its first column, number of columns and rows below; neighbours are merged if
    that adds few zeros.

    A leaf is merged with its parent only if that adds none.
    """
    fronts: list[Front] = []
    for column, rows in enumerate(below):
        first = column
        k = 1
        while fronts:
            start, width, front_rows = fronts[-1]
            if not (front_rows.size and front_rows[0] < first + k) or start + width != first:
                break
            zeros = width * (k + len(rows) - len(front_rows))
            share = zeros / ((width + k) * (width + k + len(rows)))
            alike = k + len(rows) <= (1 + ALIKE) * len(front_rows)
            few_zeros = alike or any(
                width + k <= most and share <= limit for most, limit in RELAXATION_STEPS
            )
            if zeros and (leaf[start] or not few_zeros):
                break
            fronts.pop()
            first = start
            k = width + k
        fronts.append((first, k, rows))
    return fronts


def _laid_out(
    fronts: list[Front], order: NumpyArray, row: NumpyArray, column: NumpyArray
) -> tuple[list[Group], NumpyArray, NumpyArray, int]:
    """Groups of fronts, the order of columns by groups, the places of a matrix's entries in the
    workspace, and its length.
    """
    front_of = np.repeat(np.arange(len(fronts)), [k for _, k, _ in fronts])  # the front of a column
    height = np.zeros(len(fronts), int)
    for index, (_, _, rows) in enumerate(fronts):
        if rows.size:
            height[front_of[rows[0]]] = max(height[front_of[rows[0]]], height[index] + 1)
    # numbers of rows, so that few shapes of small fronts remain
    padded = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
    count = np.array([len(rows) for _, _, rows in fronts])
    count = np.where(
        count <= padded[-1],
        padded[np.minimum(np.searchsorted(padded, count), len(padded) - 1)],
        count,
    )
    shape = np.column_stack([height, [k for _, k, _ in fronts], count])
    kinds, kind = np.unique(shape, axis=0, return_inverse=True)
    width = shape[:, 1] + np.where(height > 0, shape[:, 2], 0)
    area = (shape[:, 1] + shape[:, 2]) * width
    sorted_by = np.argsort(kind, kind="stable")
    base = np.empty(len(fronts), int)
    base[sorted_by] = np.cumsum(area[sorted_by]) - area[sorted_by]
    columns = np.concatenate(
        [np.arange(fronts[s][0], fronts[s][0] + fronts[s][1]) for s in sorted_by]
    )
    # columns of a group stand together
    position = np.argsort(columns)
    groups = []
    first = 0
    for group in range(len(kinds)):
        members = np.flatnonzero(kind == group)
        _, k, r = kinds[group].tolist()
        rows = np.full((len(members), r), len(order))
        last = first + len(members) * k
        above = np.full((len(members), r, r), area.sum())
        for index, s in enumerate(members if r else ()):
            below = fronts[s][2]
            rows[index, : len(below)] = position[below]
            parent = front_of[below[0]]
            local = _local(fronts[parent], below)
            above[index, : len(below), : len(below)] = (
                base[parent] + local[:, None] * width[parent] + local
            )
        span = slice(int(base[members[0]]), int(base[members[-1]] + area[members[-1]]))
        groups.append(
            Group(
                (len(members), k, r),
                int(width[members[0]]),
                slice(first, last),
                rows,
                span,
                above.ravel(),
                _scatter_sums(above, int(area.sum())),
                _summed_rows(rows, len(order)),
            )
        )
        first = last
    place = np.empty(len(order), int)
    place[order] = np.arange(len(order))
    i = np.maximum(place[row], place[column])
    j = np.minimum(place[row], place[column])
    s = front_of[j]
    return groups, order[columns], base[s] + _entries(fronts, width, s, i, j), int(area.sum())


def _local(front: Front, rows: Indices) -> Indices:
    """Positions of rows in a front."""
    first, k, below = front
    return np.where(rows < first + k, rows - first, k + np.searchsorted(below, rows))


def _entries(
    fronts: list[Front], lengths: NumpyArray, front: NumpyArray, i: NumpyArray, j: NumpyArray
) -> Entries:
    """Positions of entries in the fronts of their columns, of given lengths, row by row."""
    line = np.empty(len(i), int)
    for part, entries in zip(fronts, members_by_label(front, len(fronts)), strict=True):
        line[entries] = _local(part, i[entries])
    return line * lengths[front] + j - np.array([first for first, _, _ in fronts])[front]


def _scatter_sums(
    above: Int[NumpyArray, "fronts r r"], padding: int
) -> "tuple[NumpyArray, sparse.csr_array] | None":
    """Places below the diagonals of fronts to which updated rows are added, and the matrix of the
    sums.
    """
    lower = np.tril(np.ones(above.shape[1:], bool))
    targets = np.flatnonzero((above != padding) & lower)
    places, which = np.unique(above.ravel()[targets], return_inverse=True)
    if len(places) == len(targets):
        return None
    return places, _sums(which, targets, (len(places), above.size))


def _product(
    matrix: Float[NumpyArray, "*some m k"], right: Columns
) -> Float[NumpyArray, "*some m n"]:
    """Multiply matrices, a single column by a row in one pass."""
    if matrix.shape[-1] == 1:
        return np.einsum("...ik,...kj->...ij", matrix, right)
    return matrix @ right


def _summed_rows(rows: Int[NumpyArray, "fronts r"], size: int) -> "sparse.csr_array | None":
    flat = rows.ravel()
    targets = np.flatnonzero(flat != size)
    if len(np.unique(flat[targets])) == len(targets):
        return None
    return _sums(flat[targets], targets, (size, len(flat)))


def _sums(
    row: Int[NumpyArray, " ones"], column: Int[NumpyArray, " ones"], shape: TwoCounts
) -> "sparse.csr_array":
    """Matrix of ones at these places, with short integers."""
    return sparse.csr_array(
        (np.ones(len(row)), (row.astype(np.int32), column.astype(np.int32))), shape=shape
    )


def _triangles(lower: Squares) -> Squares:
    """Return lower triangles as `_forward` and `_backward` take them: small ones are inverted."""
    k = lower.shape[-1]
    if k >= TRIANGULAR:
        return lower
    if k == 1:
        return 1 / lower
    failed = np.isnan(lower[..., -1:, -1:])  # which NumPy may take for singular
    if failed.any():
        return np.where(failed, np.nan, np.linalg.inv(np.where(failed, np.eye(k), lower)))
    return np.linalg.inv(lower)


def _forward(triangles: Squares, right: Columns) -> Columns:
    """Compute L⁻¹b."""
    if triangles.shape[-1] < TRIANGULAR:
        return _product(triangles, right)
    return _solved(triangles, right, 1)


def _backward(triangles: Squares, right: Columns) -> Columns:
    """Compute L⁻ᵀb."""
    if triangles.shape[-1] < TRIANGULAR:
        return triangles.swapaxes(-1, -2) @ right
    return _solved(triangles, right, 0)


def _solved(lower: NumpyArray, right: NumpyArray, transposed: int) -> NumpyArray:
    solution = np.empty_like(right)
    for index in np.ndindex(right.shape[:-2] if right.size else (0,)):
        # in LAPACK's order
        solution[index] = linalg.lapack.dtrtrs(lower[index].T, right[index], trans=transposed)[0]
    return solution


def _inverse_grams(triangles: Squares) -> Squares:
    """Compute L⁻ᵀL⁻¹."""
    k = triangles.shape[-1]
    if k < TRIANGULAR:
        return triangles.swapaxes(-1, -2) @ triangles
    halves = np.array([linalg.lapack.dpotri(matrix.T)[0] for matrix in triangles.reshape(-1, k, k)])
    grams = halves + halves.swapaxes(-1, -2)
    np.einsum("lkk->lk", grams)[...] /= 2
    return grams.reshape(triangles.shape)
