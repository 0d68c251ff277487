"""Regression on components, by partial least squares (PLS) or principal components (PCR), refitted
exactly without any rows.

Both need of the rows only Σ w x xᵀ, Σ w x yᵀ, Σ w x and Σ w y, from which a fold takes what its
rows add:

    S = Σ w x xᵀ − N x̄ x̄ᵀ,      C = Σ w x yᵀ − N x̄ ȳᵀ,      N = Σ w,

centred, and scaled if the model scales, within the fold. PLS takes direction after direction from
C, which it deflates (B. S. Dayal and J. F. MacGregor, *Improved PLS algorithms*, Journal of
Chemometrics 11, 1997); of S it needs products with vectors alone, one for each component, for all
folds together. PCR takes the leading eigenvectors of S.

θ are the coefficients times the spread of their column, over that of the target, times √n. What the
sums lose by rounding is estimated: sums that are changed in their last digits are solved too.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int
from numpy import linalg
from numpy.typing import ArrayLike

from ... import losses
from ...developer import (
    AbstractSolved,
    ArrayFunction,
    ArrayList,
    LaneEntries,
    Names,
    NumpyArray,
    PerLane,
    PerUnit,
    Points,
    State,
    Strings,
    UnaryFunction,
    Weights,
    as_stored,
    cached_on,
    column,
    design,
    float64,
    index_of,
    match_labels,
    new_rows,
    pd,
    slices,
    static,
)
from ...models import Parameters, Units

LaneWeights = Float[NumpyArray, "lanes features targets"]
LaneFeatures = Float[NumpyArray, "lanes features"]
# share of a column's squares below which those of a fold have lost digits, and are summed over its
# rows
LOST_SPREAD = 1e-4
LAST_DIGITS = 4 * np.finfo(np.float64).eps  # relative change of sums that stands for their rounding
EMPTY = 1e-13  # share of the first covariances below which those left are rounding
BATCH = 2**22  # numbers of a batch of folds that are in memory together


class CrossProducts(NamedTuple):
    """Rows and targets, less their means over their spreads, and the sums of their products over
    all rows.
    """

    x: Float[NumpyArray, "units features"]
    y: Float[NumpyArray, "units targets"]
    gram: (
        Float[NumpyArray, "features features"] | None
    )  # not formed if there are more columns than rows
    cross: Float[NumpyArray, "features targets"]
    squares: tuple[Float[NumpyArray, " features"], Float[NumpyArray, " targets"]]


class Moments(NamedTuple):
    """Moments of a batch of folds, centred within each.

    C, and S by its products with vectors or, of one fold, by its rows.
    """

    total: PerLane
    mean: tuple[LaneFeatures, Float[NumpyArray, "lanes targets"]]
    cross: LaneWeights
    times: ArrayFunction
    formed: Callable[[], Float[NumpyArray, "lanes features features"]]
    squares: tuple[LaneFeatures, Float[NumpyArray, "lanes targets"]]
    rows: Float[NumpyArray, "rows features"] | None = None


class AbstractComponents(AbstractSolved):
    """Linear regression on components of the columns; subclasses write `directions`."""

    design: Float[NumpyArray, "units features"]
    y: Float[NumpyArray, "units targets"]
    names: Strings = static()
    scales: bool = static()  # whether each fold divides its columns by their spread
    flat: bool = static()  # whether there is one target, without an axis of its own
    labels: Names = static()
    remark: str = static()
    # share of the largest singular value of the components below which one counts as zero
    cut: float = static()
    forms = False  # whether `directions` forms S

    def _bind(self, X: ArrayLike, y: ArrayLike, scales: bool, cut: float, remark: str) -> None:
        caller = type(self).__name__
        self.labels, X, y = match_labels(caller, X=X, y=y)
        rows, self.names = design(caller, X, False)
        if not isinstance(rows, NumpyArray):
            raise TypeError(
                f"{caller}: X must be a dense array in memory; give X.toarray(), if it is not too large for that."
            )
        self.design = rows
        self.flat = np.ndim(y) == 1
        self.scales = scales
        self.cut = cut
        self.remark = remark
        targets = () if self.flat else np.shape(y)[1:]
        self.y = as_stored(column(caller, "y", y, len(rows), targets).reshape(len(rows), -1))

    def directions(self, moments: Moments, scale: LaneFeatures) -> LaneWeights:
        """Coefficients of a batch of folds, of columns times `scale`, whose C is given.

        S is that of the columns.
        """
        raise NotImplementedError

    @property
    def by_rows(self) -> bool:
        """Whether every fold is solved over its own rows."""
        return False

    @property
    def num_units(self) -> int:
        return len(self.design)

    def solve(
        self,
        index: Int[NumpyArray, "lanes width"],
        weight: LaneEntries,
        changed: bool = False,
    ) -> Points:
        sums = _sums(self)[changed]
        n = len(self.design)
        index = np.minimum(index, n - 1)
        delta = weight - 1.0
        p = self.design.shape[1]
        solutions = np.empty((len(index), self.y.shape[1] * (p + 1)))
        batch_size = BATCH // (p * (index.shape[1] + (p if self.forms else 8)))
        for batch in slices(len(index), batch_size):
            row_lanes = lanes = np.arange(len(index))[batch]
            if not self.by_rows:
                moments = _moments(sums, index[lanes], delta[lanes])
                solutions[lanes] = self._coefficients(moments)
                cancelled = [
                    (fold_squares < LOST_SPREAD * total_squares).any(1)
                    for fold_squares, total_squares in zip(
                        moments.squares, sums.squares, strict=True
                    )
                ]
                row_lanes = lanes[(cancelled[0] | cancelled[1]) & self.scales]
            for lane in row_lanes:
                seen = np.ones(n)
                np.add.at(seen, index[lane], delta[lane])
                solutions[lane] = self._coefficients(_moments_of_rows(sums, seen))[0]
        return solutions

    def _coefficients(self, moments: Moments) -> Points:
        """Parameters θ of folds with these moments."""
        sizes = _origin(self)[1::2]
        if self.scales:
            less = moments.total[:, None] - 1.0
            scale, target_scale = (
                np.where(part > 0, np.maximum(part, 0) / less, 1.0) ** -0.5
                for part in moments.squares
            )
        else:
            scale, target_scale = (
                np.broadcast_to(size / size.max(), part.shape)
                for size, part in zip(sizes, moments.squares, strict=True)
            )
        cross = moments.cross * scale[:, :, None] * target_scale[:, None, :]
        coef = (
            self.directions(moments._replace(cross=cross), scale)
            * scale[:, :, None]
            / target_scale[:, None, :]
        )
        level = moments.mean[1] - np.einsum("lp,lpt->lt", moments.mean[0], coef)
        theta = np.concatenate([coef, level[:, None]], 1) * np.sqrt(len(self.design))
        return theta.swapaxes(1, 2).reshape(len(theta), -1)

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=lambda seed: self.solve(np.zeros((1, 0), int), np.zeros((1, 0)))[0],
            names=self._names,
        )

    def _names(self) -> list[str]:
        names = [*self.names, "intercept"]
        if self.flat:
            return names
        return [f"{k}: {name}" for k in range(self.y.shape[1]) for name in names]

    def _natural(self, theta):
        center, spread, middle, size = _origin(self)
        standard_coef = np.reshape(theta, (self.y.shape[1], -1)) / np.sqrt(len(self.design))
        coef = standard_coef[:, :-1] * size[:, None] / spread
        intercept = middle + standard_coef[:, -1] * size - coef @ center
        if self.flat:
            return {"intercept": intercept[0], "coef": coef[0]}
        return {"intercept": intercept, "coef": coef}

    def _to_unconstrained(self, parameters):
        center, spread, middle, size = _origin(self)
        coef = np.asarray(parameters["coef"], float).reshape(len(size), len(spread))
        level = np.reshape(parameters["intercept"], -1) - middle + coef @ center
        standard_coef = np.column_stack([coef * spread, level]) / size[:, None]
        return np.ravel(standard_coef) * np.sqrt(len(self.design))

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: NumpyArray,
        held: NumpyArray,
        state: State = None,
    ) -> NumpyArray:
        units = np.minimum(index, self.num_units - 1)
        return 0.5 * np.sum((self.y[units] - self._predict(theta, units)) ** 2, -1)

    def predictions(
        self, theta: Points, weights: Weights, index: NumpyArray, kind: str, state: State = None
    ) -> NumpyArray:
        values = self._predict(theta, np.minimum(index, self.num_units - 1))
        return values[..., 0] if self.flat else values

    def _predict(
        self, theta: Points, index: NumpyArray
    ) -> Float[NumpyArray, "lanes width targets"]:
        _, _, middle, size = _origin(self)
        standard_coef = theta.reshape(len(theta), len(size), -1) / np.sqrt(self.num_units)
        x = _sums(self)[0].x[index]
        return middle + size * (
            x @ standard_coef[:, :, :-1].swapaxes(1, 2) + standard_coef[:, None, :, -1]
        )

    def reading(self, read: UnaryFunction, labels: Names, names: Strings = ()) -> Self:
        """Copy the model for a host that builds its columns from data itself, as for a `GLM`."""
        out = copy.copy(self)
        index = labels.index if self.labels.index is None else self.labels.index
        vars(out)["labels"] = Names(index, read, table=labels.table, name=labels.name)
        vars(out)["names"] = names or self.names
        return out

    @property
    def units(self) -> Units:
        target = self.y[:, 0] if self.flat else None
        return Units(
            names=self.labels.index,
            target=target,
            features=lambda: dict(zip(self.names, self.design.T, strict=True)),
            predict_new=self._predict_new,
            score=losses.Squared().scale(self.y),
        ).measured_as(self.labels.response)

    def _predict_new(self, fit, X, kind, offset):
        if offset is not None:
            raise ValueError("predict: the model has no offset; give none of new rows.")
        reader = self.labels.read
        rows = np.asarray(
            new_rows("predict", X if reader is None else reader(X), self.names, False)
        )
        parameters = fit.parameters
        predictions = rows @ np.asarray(parameters["coef"]).T + parameters["intercept"]
        if self.flat:
            return pd.Series(predictions, index_of(X), name="prediction")
        return pd.DataFrame(predictions, index_of(X))

    @property
    def note(self) -> str:
        return self.remark


class PartialLeastSquares(AbstractComponents):
    """Partial least squares, as scikit-learn's PLSRegression computes it.

    Of several targets each direction is iterated until it moves by less than √tol.
    """

    count: int = static()
    tol: float = static()
    max_iter: int = static()

    @float64
    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        count: int,
        *,
        scales: bool,
        tol: float,
        max_iter: int,
        remark: str,
    ):
        self._bind(X, y, scales, 0.0, remark)
        self.count = count
        self.tol = tol
        self.max_iter = max_iter

    def directions(self, moments: Moments, scale: NumpyArray) -> NumpyArray:
        cross = moments.cross.copy()
        full_cross = moments.cross
        floor = EMPTY * linalg.norm(cross, axis=1).max(1)
        rotations: ArrayList = []
        loadings: ArrayList = []
        coef = np.zeros_like(cross)
        for _ in range(self.count):
            w = self._weights(cross, floor)
            r = w.copy()
            for direction, loading in zip(rotations, loadings, strict=True):
                r -= direction * np.einsum("lp,lp->l", loading, w)[:, None]
            product = scale * moments.times(scale * r)
            size = np.einsum("lp,lp->l", r, product)
            size = np.where(size > 0, size, np.inf)[:, None]
            loading = product / size
            target_loading = np.einsum("lp,lpt->lt", r, full_cross) / size
            coef += r[:, :, None] * target_loading[:, None, :]
            cross -= (
                np.where(np.isfinite(size), size, 0.0)[:, :, None]
                * loading[:, :, None]
                * target_loading[:, None, :]
            )
            rotations.append(r)
            loadings.append(loading)
        return coef

    def _weights(self, cross: LaneWeights, floor: PerLane) -> NumpyArray:
        """Leading left singular vector of C by the power method, from the first target that is
        left; zero if none is.
        """
        length = linalg.norm(cross, axis=1)
        open_targets = length > floor[:, None]
        toward = np.eye(length.shape[1])[open_targets.argmax(1)]
        w = np.zeros(cross.shape[:2])
        active = open_targets.any(1)
        for _ in range(self.max_iter):
            new = np.einsum("lpt,lt->lp", cross, toward)
            new /= np.maximum(linalg.norm(new, axis=1, keepdims=True), np.finfo(float).tiny)
            change = np.sum((new - w) ** 2, 1)
            w[active] = new[active]
            toward = np.einsum("lpt,lp->lt", cross, w)
            active &= change >= self.tol
            if cross.shape[2] == 1 or not active.any():
                break
        return w


class PrincipalComponents(AbstractComponents):
    """Least squares on the leading principal components.

    `count` is their number, or the least share of the variance that they explain, or None for all.
    """

    count: int | float | None = static()
    forms = True

    @float64
    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        count: int | float | None,
        *,
        scales: bool,
        cut: float,
        remark: str,
    ):
        self._bind(X, y, scales, cut, remark)
        self.count = count

    @property
    def by_rows(self) -> bool:
        return self.design.shape[1] > len(self.design)

    def directions(self, moments: Moments, scale: NumpyArray) -> NumpyArray:
        if moments.rows is None:
            power, axes = linalg.eigh(moments.formed() * scale[:, :, None] * scale[:, None, :])
            power = power[:, ::-1]
            axes = axes[:, :, ::-1]
        else:
            _, root, lines = linalg.svd(moments.rows * scale, full_matrices=False)
            power = root[None] ** 2
            axes = lines.T[None]
        power = np.maximum(power, 0.0)
        leading = np.arange(power.shape[1]) < (power.shape[1] if self.count is None else self.count)
        if isinstance(self.count, float):
            share = np.cumsum(power, 1) / power.sum(1, keepdims=True)
            leading = np.arange(power.shape[1]) <= np.sum(share <= self.count, 1)[:, None]
        floor = max(self.cut, np.finfo(float).eps * max(self.design.shape)) ** 2
        used = leading & (power > floor * power[:, :1])
        inverse = np.where(used[..., None], 1.0 / self._damped(np.where(used, power, 1.0)), 0.0)
        return axes @ (inverse * (axes.swapaxes(1, 2) @ moments.cross))

    def _damped(
        self, power: Float[NumpyArray, "lanes axes"]
    ) -> Float[NumpyArray, "lanes axes targets"]:
        """Eigenvalues by which covariances are divided."""
        return power[..., None]


class SeveralTargets(PrincipalComponents):
    """Least squares of several targets at once, with a ridge or without, one for all targets or one
    for each.
    """

    ridge: Float[NumpyArray, " ..."]

    @float64
    def __init__(self, X: ArrayLike, y: ArrayLike, ridge: ArrayLike, *, cut: float, remark: str):
        self._bind(X, y, False, cut, remark)
        self.count = None
        self.ridge = as_stored(np.asarray(ridge, float))

    def _damped(
        self, power: Float[NumpyArray, "lanes axes"]
    ) -> Float[NumpyArray, "lanes axes targets"]:
        return power[..., None] + self.ridge / _origin(self)[1].max() ** 2


@cached_on
def _origin(model: AbstractComponents) -> tuple[NumpyArray, ...]:
    """Mean and spread of each column and each target over all rows.

    The spread of a constant is one.
    """
    moments = []
    for values in (model.design, model.y):
        mean = values.mean(0)
        spread = values.std(0)
        moments += [mean, np.where(spread > np.finfo(float).eps * np.abs(mean), spread, 1.0)]
    return tuple(moments)


@cached_on
def _sums(model: AbstractComponents) -> tuple[CrossProducts, ...]:
    """Return the sums over all rows as they are, and changed in their last digits."""
    center, spread, middle, size = _origin(model)
    rng = np.random.default_rng(0)
    sums = []
    for error in (0.0, LAST_DIGITS):
        changed = lambda part, around, error=error: (
            part + error * around * rng.standard_normal(part.shape)
        )
        x, y = (
            changed(part, part)
            for part in ((model.design - center) / spread, (model.y - middle) / size)
        )
        lengths = linalg.norm(x, axis=0), linalg.norm(y, axis=0)
        gram = None
        if x.shape[1] <= len(x):
            gram = changed(x.T @ x, np.multiply.outer(lengths[0], lengths[0]))
            gram = (gram + gram.T) / 2
        cross = changed(x.T @ y, np.multiply.outer(*lengths))
        sums.append(CrossProducts(x, y, gram, cross, (lengths[0] ** 2, lengths[1] ** 2)))
    return tuple(sums)


def _moments(
    sums: CrossProducts, index: Int[NumpyArray, "lanes width"], delta: LaneEntries
) -> Moments:
    """Moments of folds: those of all rows with what the weights of the listed rows change."""
    x = sums.x
    y = sums.y
    gram = sums.gram
    x_rows = x[index]
    y_rows = y[index]
    total = len(x) + delta.sum(1)
    x_change = delta[..., None] * x_rows
    scaled = total[:, None]
    mean = (x.sum(0) + x_change.sum(1)) / scaled
    target = (y.sum(0) + np.sum(delta[..., None] * y_rows, 1)) / scaled
    cross = (
        sums.cross
        + x_change.swapaxes(1, 2) @ y_rows
        - (scaled * mean)[:, :, None] * target[:, None, :]
    )
    x_squares = sums.squares[0] + np.sum(x_change * x_rows, 1) - scaled * mean**2
    y_squares = sums.squares[1] + np.sum(delta[..., None] * y_rows**2, 1) - scaled * target**2

    def times(v: NumpyArray) -> NumpyArray:
        product = (v @ x.T) @ x if gram is None else v @ gram
        return (
            product
            + (x_change.swapaxes(1, 2) @ (x_rows @ v[..., None]))[..., 0]
            - scaled * np.sum(mean * v, 1, keepdims=True) * mean
        )

    def formed() -> NumpyArray:
        full_gram = x.T @ x if gram is None else gram
        return (
            full_gram
            + x_change.swapaxes(1, 2) @ x_rows
            - (scaled * mean)[:, :, None] * mean[:, None, :]
        )

    return Moments(total, (mean, target), cross, times, formed, (x_squares, y_squares))


def _moments_of_rows(sums: CrossProducts, weight: PerUnit) -> Moments:
    """Moments of one fold over its own rows, centred before they are multiplied.

    A column that is constant there is zero.
    """
    seen = weight != 0
    total = weight.sum()
    root = np.sqrt(weight[seen])[:, None]
    centred = []
    means = []
    for part in (sums.x[seen], sums.y[seen]):
        means.append(weight[seen] @ part / total)
        centred.append(np.where(part.min(0) == part.max(0), 0.0, root * (part - means[-1])))
    x, y = centred
    squares = np.sum(x**2, 0)[None], np.sum(y**2, 0)[None]
    parts = np.array([total]), (means[0][None], means[1][None]), (x.T @ y)[None]
    return Moments(*parts, lambda v: (v @ x.T) @ x, lambda: (x.T @ x)[None], squares, x)
