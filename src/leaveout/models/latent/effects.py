"""Random effects as data: grouping factors, the effects that vary over their levels, and formulas
of both.

    y ~ x + (1 + x | patient) + (1 | hospital)

as in lme4 and bambi: the terms before the bar vary over the levels of the factor behind it, with an
intercept unless there is a
0. `a/b` is a and b within a, `a:b` the pairs of levels in the data, and `||` marks effects that do
   not correlate. Formulaic
reads the fixed part and the terms before bars.
"""

import itertools
from re import fullmatch, sub
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float, Int

from ..._runtime import (
    ArrayList,
    FloatArray,
    NamedValues,
    NumpyArray,
    PerRow,
    RowNumbers,
    Shape,
    Strings,
    TwoArrays,
    TwoCounts,
    record,
)
from ...data import (
    codes,
    floats,
    frame_of,
    index_of,
    match_labels,
    pandas_of,
    reading,
    response,
)
from .responses import ResponseRows

FreeValues = Float[NumpyArray, "... free"]


class Bar(NamedTuple):
    """Bar of a formula: `(effects | factor)`, or with `||`."""

    effects: str
    factor: str
    is_correlated: bool


class EffectBlock(NamedTuple):
    """Effects of one bar of a formula.

    The factor, columns by name `[rows, effects]`, and the sizes of correlated groups.
    """

    factor: str
    columns: Strings
    design: Float[NumpyArray, "rows effects"]
    sizes: Shape


@record
class GroupingFactor:
    """Grouping factor: the level of each row, and the columns of its effects, of about unit size.

    The covariance of effects is Λ Λᵀ. Only the entries of Λ at `row`, `column` are free, those of
    effects that correlate.
    """

    name: str
    code: RowNumbers
    levels: NumpyArray
    columns: Strings
    design: Float[NumpyArray, "effects rows"]
    scale: Float[NumpyArray, " effects"]  # factor that maps the given columns to these
    row: Int[NumpyArray, " free"]
    column: Int[NumpyArray, " free"]

    @property
    def q(self) -> int:
        return len(self.columns)

    def root(self, free: FreeValues) -> Float[NumpyArray, "... effects effects"]:
        """Λ."""
        out = np.zeros((*free.shape[:-1], self.q, self.q))
        out[..., self.row, self.column] = free
        return out

    def rotate(self, free: FreeValues, design: NumpyArray) -> Float[NumpyArray, "effects ... rows"]:
        """Compute Λᵀz of rows `[effects, rows]`."""
        out = np.zeros((self.q, *free.shape[:-1], design.shape[-1]))
        for k, (i, j) in enumerate(zip(self.row, self.column, strict=True)):
            out[j] += free[..., k, None] * design[i]
        return out

    def by_free(
        self, slopes: Float[NumpyArray, "effects ... rows"], design: NumpyArray
    ) -> Float[NumpyArray, "free ... rows"]:
        """Return each row's slopes in the free entries, from those in Λᵀz."""
        free_slopes = np.empty((len(self.row), *slopes.shape[1:]))
        for k, (i, j) in enumerate(zip(self.row, self.column, strict=True)):
            free_slopes[k] = design[i] * slopes[j]
        return free_slopes

    def information(
        self, free: Float[NumpyArray, " free"], weight: PerRow
    ) -> Float[NumpyArray, "free free"]:
        """Information ½ tr(V⁻¹ ∂V V⁻¹ ∂V) on the free entries from rows of these weights, as if
        there were no other factor.
        """
        root = self.root(free)
        count = len(self.levels)
        i = self.row
        j = self.column
        C = np.array(
            [
                [np.bincount(self.code, weight * a * b, count) for a in self.design]
                for b in self.design
            ]
        ).T
        S = np.linalg.solve(np.eye(self.q) + C @ (root @ root.T), C)  # (C⁻¹ + ΛΛᵀ)⁻¹ of each level
        across = S @ root
        root_information = root.T @ across
        information = (
            S[:, i[:, None], i] * root_information[:, j[:, None], j]
            + across[:, i[:, None], j] * across[:, i, j[:, None]]
        )
        return information.sum(0)

    def covariance(self, free: FreeValues, unit: float) -> Float[NumpyArray, "... effects effects"]:
        """Covariance of the effects, in units of the given columns."""
        root = self.root(free) * (self.scale * unit)[:, None]
        return root @ root.swapaxes(-1, -2)

    def free(self, covariance: Any, unit: float) -> Float[NumpyArray, " free"]:
        """Return the free entries of Λ of a covariance, which may be singular."""
        scales = self.scale * unit
        entries = np.reshape(np.asarray(covariance, float), (-1,))
        if entries.size != self.q**2 or not np.isfinite(entries).all():
            raise ValueError(
                f"Mixed: the covariance of {self.name} must be [{self.q}, {self.q}] numbers; got {covariance}."
            )
        scaled = entries.reshape(self.q, self.q) / np.outer(scales, scales)
        if not np.allclose(scaled, scaled.T):
            raise ValueError(
                f"Mixed: the covariance of {self.name} must be symmetric; got {covariance}."
            )
        return _semidefinite(scaled, self.name)[self.row, self.column]

    @property
    def diagonal(self) -> NumpyArray:
        """True for the free entries of Λ on its diagonal."""
        return self.row == self.column


@record
class Parts:
    """Parts of θ of some refits, each `[refits, part]`."""

    z: FloatArray
    free: tuple[FloatArray, ...]
    tau: FloatArray


def split(theta: NumpyArray, data: ResponseRows, factors: tuple[GroupingFactor, ...]) -> Parts:
    """Split θ `[refits, params]` into its parts."""
    p = data.design.shape[1]
    ends = np.cumsum([p, *(len(factor.row) for factor in factors)])
    free = tuple(theta[:, a:b] for a, b in itertools.pairwise(ends))
    return Parts(theta[:, :p], free, theta[:, theta.shape[1] - data.response.num_shared :])


def _semidefinite(matrix: NumpyArray, name: str) -> NumpyArray:
    """Cholesky factor of a semidefinite matrix, with columns of zeros for zero pivots."""
    low = np.zeros_like(matrix)
    remainder = matrix.copy()
    for j in range(len(matrix)):
        if remainder[j, j] < -1e-8 * max(1.0, matrix[j, j]):
            raise ValueError(f"Mixed: the covariance of {name} has a negative eigenvalue.")
        if remainder[j, j] > 1e-14 * max(matrix[j, j], 1e-300):
            low[j:, j] = remainder[j:, j] / np.sqrt(remainder[j, j])
            remainder -= np.outer(low[:, j], low[:, j])
    return low


def bars(formula: str) -> tuple[str, list[Bar]]:
    """Split a formula into the part without bars, and its bars."""
    fixed_part = ""
    effect_bars = list[Bar]()
    depth = 0
    start = 0
    for k, letter in enumerate(formula):
        if letter == "(":
            if depth == 0:
                start = k
            depth += 1
        elif letter == ")":
            depth -= 1
            if depth < 0:
                raise ValueError(
                    f"Mixed: formula {formula!r} closes a parenthesis that it did not open."
                )
            if depth == 0:
                inside = formula[start + 1 : k]
                if "|" in inside:
                    fixed_part += "\0"
                    effect_bars += _bar(formula, inside)
                else:
                    fixed_part += formula[start : k + 1]
        elif depth == 0:
            fixed_part += letter
    if depth or "|" in fixed_part:
        raise ValueError(
            f"Mixed: formula {formula!r}: write what varies by a factor in parentheses, as (1 + x | patient)."
        )
    fixed_part = sub(
        r"\s+", " ", sub(r"\+\s*\0|\0\s*\+", "", fixed_part).replace("\0", "1")
    ).strip()
    return (fixed_part + " 1" if fixed_part.endswith("~") else fixed_part), effect_bars


def _bar(formula: str, inside: str) -> list[Bar]:
    effects, factor = (part.strip() for part in inside.split("|", 1))
    correlated = not factor.startswith("|")
    factor = factor.lstrip("|").strip()
    parts = [part.strip() for part in factor.split("/")]
    if not effects or not all(parts) or "|" in factor or not fullmatch(r"[\w.:\s/`]+", factor):
        raise ValueError(
            f"Mixed: formula {formula!r}: ({inside}) is no (effects | factor), a factor being a, a:b or a/b."
        )
    return [Bar(effects, ":".join(parts[: k + 1]), correlated) for k in range(len(parts))]


def factor_codes(data: pd.DataFrame, name: str) -> TwoArrays:
    """Return the level of each row, and the levels; those of pairs `a:b` are text."""
    parts = [part.strip().strip("`") for part in name.split(":")]
    missing = [part for part in parts if part not in data.columns]
    if missing:
        raise ValueError(
            f"Mixed: the data have no column {missing[0]!r}, a grouping factor of the formula."
        )
    if len(parts) == 1:
        return codes("Mixed", parts[0], data[parts[0]])
    for part in parts:
        codes("Mixed", part, data[part])
    joined = data[parts[0]].astype(str)
    for part in parts[1:]:
        joined = joined + ":" + data[part].astype(str)
    return codes("Mixed", name, joined)


@record
class BoundFormula:
    """Formula bound to data.

    The response, the fixed part, the blocks, and the reader of new rows.
    """

    y: Any
    X: pd.DataFrame
    blocks: tuple[EffectBlock, ...]
    codes: dict[str, TwoArrays]
    fixed_part: Any  # formulaic's specification
    # factors, each with formulaic's specification of the terms that vary over it
    effects: tuple[tuple[str, Any], ...]

    def new(self, data: Any) -> tuple[NumpyArray, ArrayList]:
        """Return the rows of the fixed part and of each block for new data."""
        data = pandas_of("Mixed", "data", data)
        X = np.asarray(self.fixed_part.get_model_matrix(data), float)
        return X, [np.asarray(spec.get_model_matrix(data), float) for _, spec in self.effects]


def read_formula(formula: str, data: Any) -> BoundFormula:
    """Read a formula by formulaic.

    Raise a ValueError that quotes the formula if it is not valid.
    """
    left, tilde, right = formula.partition("~")
    if not tilde or not left.strip():
        raise ValueError(f"Mixed: formula {formula!r} must name a response: 'y ~ x + (1 | group)'.")
    fixed, effect_bars = bars(right)
    if not effect_bars:
        raise ValueError(
            f"Mixed: formula {formula!r} has no random effects, as (1 | group); without any take lo.GLM."
        )
    data = frame_of("Mixed", data)
    with reading("Mixed", formula) as model_matrix:
        X = model_matrix(fixed or "1", data, na_action="raise")
        y = response(left.strip(), data, model_matrix)
        designs = [model_matrix(bar.effects, data, na_action="raise") for bar in effect_bars]
    groups = {bar.factor: factor_codes(data, bar.factor) for bar in effect_bars}
    blocks = []
    for bar, design in zip(effect_bars, designs, strict=True):
        terms = design.model_spec.term_slices.values()
        if bar.is_correlated:
            sizes = (design.shape[1],)
        else:
            sizes = tuple(part.stop - part.start for part in terms)
        blocks.append(
            EffectBlock(
                bar.factor, tuple(map(str, design.columns)), np.asarray(design, float), sizes
            )
        )
    specs = tuple(
        (bar.factor, design.model_spec) for bar, design in zip(effect_bars, designs, strict=True)
    )
    return BoundFormula(y, pd.DataFrame(X), tuple(blocks), groups, X.model_spec, specs)


def align_groupings(groups: Any, **arguments: Any) -> tuple[NamedValues, list[Any]]:
    """Match groupings, by name, and other arguments of the same rows by their labels, in the order
    of the first argument.
    """
    if index_of(groups) is None:
        groups = pandas_of("Mixed", "groups", groups)
    if isinstance(groups, pd.DataFrame | dict):
        groupings = {str(name): groups[name] for name in groups}
    else:
        groupings = {str(getattr(groups, "name", None) or "group"): groups}
    _, *aligned = match_labels(
        "Mixed", **arguments, **{f"groups ({name})": labels for name, labels in groupings.items()}
    )
    return dict(zip(groupings, aligned[len(arguments) :], strict=True)), aligned[: len(arguments)]


def array_blocks(
    names_by_key: NamedValues, slopes: Any, n: int
) -> tuple[tuple[EffectBlock, ...], dict[str, TwoArrays]]:
    """Build blocks from arrays.

    An intercept for each grouping and, for a single grouping, slopes.
    """
    if slopes is not None and len(names_by_key) > 1:
        raise ValueError("Mixed: slopes= go with one grouping; for several write a formula.")
    codes_by_name = {
        name: codes("Mixed", f"groups ({name})", labels) for name, labels in names_by_key.items()
    }
    wrong = {name: len(code) for name, (code, _) in codes_by_name.items() if len(code) != n}
    if wrong or not codes_by_name:
        raise ValueError(
            f"Mixed: groups must give one label for each of the {n} rows; got {wrong or 'none'}."
        )
    design = np.ones((n, 1))
    columns = ("Intercept",)
    if slopes is not None:
        names = tuple(map(str, getattr(slopes, "columns", ())))
        slope_columns = floats("Mixed", "slopes", slopes)
        if slope_columns.ndim == 1:
            slope_columns = slope_columns[:, None]
        if slope_columns.shape[0] != n or slope_columns.ndim != 2:
            raise ValueError(
                f"Mixed: slopes must be [{n}, effects]; got shape {slope_columns.shape}."
            )
        design = np.hstack([design, slope_columns])
        columns = (*columns, *(names or (f"z{j}" for j in range(slope_columns.shape[1]))))
    return tuple(
        EffectBlock(name, columns, design, (len(columns),)) for name in codes_by_name
    ), codes_by_name


def factors(
    blocks: tuple[EffectBlock, ...], codes_by_name: dict[str, TwoArrays]
) -> tuple[GroupingFactor, ...]:
    """Build the grouping factors, each with all its blocks."""
    grouping_factors = []
    for name, (code, levels) in codes_by_name.items():
        factor_blocks = [block for block in blocks if block.factor == name]
        columns = tuple(column for block in factor_blocks for column in block.columns)
        design = np.hstack([block.design for block in factor_blocks]).T
        if not np.isfinite(design).all():
            raise ValueError(
                f"Mixed: effects of {name} hold {np.sum(~np.isfinite(design))} NaN or infinite values; drop or impute."
            )
        if len(set(columns)) < len(columns):
            raise ValueError(
                f"Mixed: {name} has the same effect twice: {', '.join(columns)}. Write (0 + x | {name}) beside (1 | {name})."
            )
        size = np.sqrt(np.mean(design**2, 1))
        if (size == 0).any():
            raise ValueError(
                f"Mixed: the effect {columns[int(np.argmin(size))]!r} of {name} is zero in every row."
            )
        pairs = list[TwoCounts]()
        first = 0
        for width in (width for block in factor_blocks for width in block.sizes):
            pairs += [(first + i, first + j) for i in range(width) for j in range(i + 1)]
            first += width
        grouping_factors.append(
            GroupingFactor(
                name,
                code.astype(int),
                levels,
                columns,
                design / size[:, None],
                1 / size,
                *np.array(pairs).T,
            )
        )
    return tuple(grouping_factors)


def level_clusters(
    grouping_factors: tuple[GroupingFactor, ...], name: str
) -> Int[NumpyArray, " levels"]:
    """Label the levels of one factor by which of them share effects of the other factors, directly
    or through further levels.

    If fewer than `MIN_CLUSTER_GROUPS` groups remain, every level is a group of its own, and the
    other effects count as given.
    """
    (target,) = [f for f in grouping_factors if f.name == name]
    neighbours = [f for f in grouping_factors if f.name != name]
    count = len(target.levels)
    ends = count + np.cumsum([0, *(len(factor.levels) for factor in neighbours)])
    row = np.tile(target.code, len(neighbours))
    column = np.concatenate(
        [end + factor.code for end, factor in zip(ends, neighbours, strict=False)]
    )
    graph = scipy.sparse.csr_array((np.ones(len(row)), (row, column)), shape=(ends[-1], ends[-1]))
    groups, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    # least number of groups of clusters without common effects for standard errors
    min_cluster_groups = 20
    if groups >= min_cluster_groups:
        return label[:count]
    return np.arange(count)
