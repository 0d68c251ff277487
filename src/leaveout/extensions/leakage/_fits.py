"""Fits of many small models at once: least squares, ridge and logistic regression, nearest
neighbours, GLMs; else joblib.

A learner takes the training rows of each of a batch of fits and returns predictions for rows that
all fits share (V̂) and for rows of each fit (the rows of T̂ that it left out).

Fits whose training sets differ by few rows, as the levels of one draw do.

Sums over rows are then those of the fit before, minus the rows that left and plus the rows that
came, which is all that least squares needs. For losses of the margin each fit starts from the one
before, in steps

    θ ← θ − H⁻¹ g(θ),

with g its own gradient and H the Hessian of its chain, computed anew only if a step reduces the
decrement gᵀH⁻¹g by too little. Gradients of all fits at one place of their chains are products of
matrices over the rows that they share.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from numpy import linalg
from numpy.typing import NDArray

from ... import losses
from ...developer import (
    BoolArray,
    Curvature,
    FloatArray,
    IntArray,
    Lanes,
    LaneState,
    NumpyArray,
    Proposal,
    RowNumbers,
    SharedFactors,
    anywhere,
    decrements,
    iterate,
    silence,
    workers,
)

SolvedFits = tuple[FloatArray, BoolArray]

FIT_BATCH_ENTRIES = 2**21  # numbers in the largest array of a batch of fits (16 MiB)
SLOW = 0.2  # largest ratio of the roots of successive decrements with an old Hessian
# decrement before the last step, relative to the objective; the step leaves at most a hundredth
FINAL = 1e-11
MAX_CHAIN_NEWTON_STEPS = 60
# variance, relative to a column's second moment, that differences of sums resolve
SMALLEST_VARIANCE_SHARE = 1e-8

Rows = Int[NumpyArray, "fits size"]
SharedColumns = Int[NumpyArray, " shared"]
ExtraRows = Int[NumpyArray, "fits extra"]
Responses = Float[NumpyArray, "fits size"]
Seeds = Int[NumpyArray, " fits"]
Design = Float[NumpyArray, "fits size params"]
RowCounts = Float[NumpyArray, "fits rows"]
Parameters = Float[NumpyArray, "fits params"]
Features = Float[NumpyArray, "fits size features"]
Predictions = tuple[Float[NumpyArray, "fits shared ..."], Float[NumpyArray, "fits extra ..."]]


class AbstractLearner(ABC):
    """Learner that computes many fits in one call, and predicts from each."""

    name: str  # description of the fits, for the printed result
    cost: int  # numbers in memory for each training record of a fit

    @property
    def jobs(self) -> int:
        """Number of processes for the fits."""
        return workers()

    def alone(self) -> "AbstractLearner":
        """Return a copy that works in one process."""
        return self

    @abstractmethod
    def __call__(
        self, train: Rows, shared: SharedColumns, extra: ExtraRows, seeds: Seeds
    ) -> Predictions:
        """Predict by every fit; `seeds` are for learners that draw random numbers."""


@dataclass(eq=False)
class AbstractLinear(AbstractLearner):
    """Linear learner: coefficients by one batched solve, and predictions that are linear in
    them.
    """

    cost = 2
    X: FloatArray
    y: FloatArray
    penalty: float
    intercept: bool
    standardises: bool
    needs: str  # a response or, for two classes, a label, a probability or a decision value

    @abstractmethod
    def solve(self, X: Features, y: Responses) -> FloatArray:
        """Compute coefficients with the intercept last, `[fits, features + 1]`."""

    def response(self, eta: FloatArray) -> FloatArray:
        """Compute predictions from linear predictors."""
        return eta

    def __call__(
        self, train: Rows, shared: SharedColumns, extra: ExtraRows, seeds: Seeds
    ) -> Predictions:
        coef, doubtful = self.together(train)
        # fits whose training sets share too few rows, or whose shared sums are inaccurate
        alone = np.flatnonzero(doubtful)
        for chunk in np.array_split(
            alone, max(1, -(-train[alone].size * 3 * (self.X.shape[1] + 1) // FIT_BATCH_ENTRIES))
        ):
            if len(chunk):
                coef[chunk] = self._fit_separately(train[chunk])
        eta = coef[:, :-1] @ self.X[shared].T + coef[:, -1:]
        outside = np.einsum("fmd,fd->fm", self.X[extra], coef[:, :-1]) + coef[:, -1:]
        return self.response(eta), self.response(outside)

    @abstractmethod
    def together(self, train: Rows) -> SolvedFits:
        """Compute coefficients and intercepts from shared sums, and mark the fits for which these
        are inaccurate.
        """

    def _fit_separately(self, train: Rows) -> FloatArray:
        X = self.X[train]
        y = self.y[train]
        if not self.standardises:
            return self.solve(X, y)
        mean = X.mean(1)
        spread = X.std(1)
        spread[spread == 0] = 1.0
        coef = self.solve((X - mean[:, None]) / spread[:, None], y)
        coef[:, :-1] /= spread
        coef[:, -1] -= np.einsum("fd,fd->f", coef[:, :-1], mean)
        return coef


@dataclass(eq=False)
class LeastSquares(AbstractLinear):
    """Least squares `argmin ‖y − X β − α‖² + penalty ‖β‖²`, by the normal equations of all fits in
    one call.
    """

    def __post_init__(self) -> None:
        self.name = "least squares, batched"
        if self.penalty:
            self.name = "ridge regression, batched"

    def together(self, train: Rows) -> SolvedFits:
        place = lengths(train)
        fits, size = train.shape
        d = self.X.shape[1]
        coef = np.zeros((fits, d + 1))
        # 0.5: share of the fits in chains below which each is computed from its own rows
        if np.mean(place > 0) < 0.5:
            return coef, np.ones(fits, bool)
        U, shift, constant = self._columns
        sums = moments(U, train, place)
        mean = sums[:, :d, -1] / size
        gram = sums[:, :d, :d]
        right = sums[:, :d, d]
        if self.centres:
            gram = gram - size * mean[:, :, None] * mean[:, None]
            right = right - mean * sums[:, d, -1:]
        variance = np.diagonal(gram, axis1=1, axis2=2) / size
        close = np.zeros(fits, bool)
        # differences of sums lose the digits of nearly constant columns
        if self.standardises or not self.penalty:
            close = (
                (variance <= SMALLEST_VARIANCE_SHARE * (U[:, :d] ** 2).mean(0)) & ~constant
            ).any(1)
        gram = gram.copy()
        scale = np.where(constant, 1.0, variance) if self.standardises else 1.0
        gram[:, range(d), range(d)] += self.penalty * scale
        gram[close] = np.eye(d)
        coef[:, :d], doubtful = _solve_stack(gram, right)
        mean_response = 0.0
        if self.intercept:
            mean_response = sums[:, d, -1] / size + shift[d]
        coef[:, d] = mean_response - np.einsum(
            "fd,fd->f", coef[:, :d], (mean + shift[:d]) * self.centres
        )
        return coef, close | (doubtful & (self.penalty == 0))

    @property
    def centres(self) -> bool:
        return self.intercept or self.standardises

    @cached_property
    def _columns(self) -> tuple[NDArray, NDArray, NDArray]:
        """Return features, response and ones, centred if there is an intercept, with the means and
        the constant features.
        """
        U = np.column_stack([self.X, self.y, np.ones(len(self.y))])
        constant = np.ptp(self.X, 0) == 0
        shift = U.mean(0) * np.append(
            np.full(self.X.shape[1], float(self.centres)), [float(self.intercept), 0.0]
        )
        U -= shift
        if self.centres:
            U[:, :-2][:, constant] = 0.0
        return U, shift, constant

    def solve(self, X: Features, y: Responses) -> FloatArray:
        fits, _, d = X.shape
        mean = np.zeros((fits, d))
        centre = np.zeros(fits)
        if self.intercept:
            mean = X.mean(1)
            centre = y.mean(1)
            X = X - mean[:, None]
            y = y - centre[:, None]
        gram = np.matmul(X.transpose(0, 2, 1), X)
        gram[:, range(d), range(d)] += self.penalty
        coef, doubtful = _solve_stack(gram, np.matmul(X.transpose(0, 2, 1), y[..., None])[..., 0])
        # squaring X lost digits that its singular values keep
        for f in np.flatnonzero(doubtful & (self.penalty == 0)):
            coef[f] = linalg.lstsq(X[f], y[f], rcond=None)[0]
        return np.column_stack([coef, centre - np.einsum("fd,fd->f", coef, mean)])


class AbstractClasses(AbstractLinear):
    """Classifier by a loss of the margin plus `½ penalty ‖β‖²`, for all fits at once.

    If a training set has one class only, that class is predicted with probability one.
    """

    @abstractmethod
    def minimise(self, Z: Design, y: Responses) -> FloatArray:
        """Compute coefficients `[fits, params]` for fits with both classes.

        The last column of Z is that of an intercept.
        """

    def response(self, eta: FloatArray) -> FloatArray:
        if self.needs == "decision":
            return eta
        if self.needs == "label":
            return np.where(eta > 0, 1.0, 0.0)
        with silence("over"):
            return 1 / (1 + np.exp(-eta))

    def together(self, train: Rows) -> SolvedFits:
        return np.zeros((len(train), self.X.shape[1] + 1)), np.ones(len(train), bool)

    def solve(self, X: Features, y: Responses) -> FloatArray:
        fits, _, d = X.shape
        Z = X
        if self.intercept:
            Z = np.concatenate([X, np.ones((*X.shape[:2], 1))], 2)
        theta = np.zeros((fits, Z.shape[2]))
        share = y.mean(1)
        mixed = (share > 0) & (share < 1)
        if mixed.any():
            theta[mixed] = self.minimise(Z[mixed], y[mixed])
        if self.intercept:
            coef = theta
        else:
            coef = np.column_stack([theta, np.zeros(fits)])
        coef[~mixed, :d] = 0.0
        coef[~mixed, -1] = np.where(share[~mixed] > 0, np.inf, -np.inf)
        return coef


@dataclass(eq=False)
class MarginFits(AbstractClasses):
    """Classifier by a smooth loss of the margin, by Newton's method with halved steps.

    Under the squared hinge, as in LinearSVC, the intercept is penalised too.
    """

    loss_name: str

    def __post_init__(self) -> None:
        self.logistic = self.loss_name == "logistic"
        self.loss = losses.resolve(self.loss_name)
        self.name = "linear support vectors, batched"
        if self.logistic:
            self.name = "logistic regression, batched"
        self.ridge = np.full(self.X.shape[1] + self.intercept, self.penalty)
        if self.intercept and self.logistic:
            self.ridge[-1] = 0.0

    def together(self, train: Rows) -> SolvedFits:
        fits, size = train.shape
        d = self.X.shape[1]
        coef = np.zeros((fits, d + 1))
        none = np.ones(fits, bool)
        if fits == 1 or not self.logistic or self.standardises > self.intercept:
            return coef, none
        # the rows of all training sets together
        rows = np.flatnonzero(np.bincount(train.ravel(), minlength=len(self.X)))
        # 2**25: numbers in the products of columns
        # rows of all fits together, relative to those of one fit, up to which shared rows are used
        shared_rows_ratio = 4.0
        if len(rows) > shared_rows_ratio * size or len(rows) * (d + 2) ** 2 > 2 * 2**25:
            return coef, none
        place = lengths(train)
        weight = count_rows(train, rows)
        X = self.X[rows]
        y = self.y[rows]
        center = X.mean(0) * self.intercept
        Z = np.column_stack([X - center, np.ones((len(rows), int(self.intercept)))])
        ridge = np.broadcast_to(self.ridge, (fits, Z.shape[1])).copy()
        if self.standardises:
            mean = weight @ Z[:, :d] / size
            variance = weight @ Z[:, :d] ** 2 / size - mean**2
            ridge[:, :d] *= variance
            none = (variance <= SMALLEST_VARIANCE_SHARE * (Z[:, :d] ** 2).mean(0)).any(1)
        positive = weight @ y
        mixed = (positive > 0) & (positive < size)
        if not mixed.all():
            return coef, np.ones(fits, bool)
        theta, failed = FitChains(Z, y, self.loss).solve(weight, ridge, place)
        coef[:, : Z.shape[1]] = theta
        coef[:, d] -= coef[:, :d] @ center
        return coef, failed | (none if self.standardises else False)

    def minimise(self, Z: Design, y: Responses) -> FloatArray:
        """Iterate each fit until its decrement is at rounding."""
        if not self.logistic:
            y = 2 * y - 1

        # at the points that were looked at last, of which accepted ones get a step
        curvature = np.empty(Z.shape[:2])

        def look(theta: NDArray, fits: Lanes) -> tuple[NDArray, NDArray]:
            rows = Z[fits]
            eta = np.matmul(rows, theta[..., None])[..., 0]
            loss, slope, curvature[fits] = self.loss.derivatives(eta, y[fits], (0, 1, 2))
            pull = self.ridge * theta
            value = loss.sum(1) + 0.5 * np.vecdot(pull, theta)
            return value, np.matmul(slope[:, None], rows)[:, 0] + pull

        def propose(state: LaneState, fits: Lanes) -> Proposal:
            rows = Z[fits]
            hessian = np.matmul(rows.transpose(0, 2, 1), curvature[fits][..., None] * rows)
            hessian += np.diag(self.ridge)
            step, _ = _solve_stack(hessian, state.gradient)
            length = decrements(step, state.gradient)
            return Proposal(step, length, length**2 <= 1e-13 * (1 + np.abs(state.value)))

        return iterate(look, propose, np.zeros((len(Z), Z.shape[2])))[0].theta


def _solve_stack(matrix: NDArray, right: NDArray) -> SolvedFits:
    """Compute `matrix⁻¹ right` for a stack; nearly singular matrices are marked, and use the
    pseudo-inverse.

    An empty column gets coefficient zero.
    """
    scale = np.sqrt(np.diagonal(matrix, axis1=1, axis2=2))
    empty = scale <= 1e-150
    scale = np.where(empty, 1.0, scale)
    unit = matrix / (scale[:, :, None] * scale[:, None, :])
    unit[:, range(unit.shape[1]), range(unit.shape[1])] += empty
    # variance inflation of a column beyond which normal equations are not used
    max_variance_inflation = 1e10
    try:
        inverse = linalg.inv(unit)
        # at least one; large where columns are nearly dependent
        spread = np.diagonal(inverse, axis1=1, axis2=2)
        doubtful = ~((spread > 0) & (spread < max_variance_inflation)).all(1)
    except linalg.LinAlgError:
        inverse = np.zeros(unit.shape)
        doubtful = np.ones(len(unit), bool)
    if doubtful.any():
        inverse[doubtful] = linalg.pinv(
            unit[doubtful], rcond=1 / max_variance_inflation, hermitian=True
        )
    return np.matmul(inverse, (right / scale)[..., None])[..., 0] / scale, np.asarray(doubtful)


@dataclass(eq=False)
class Neighbours(AbstractLearner):
    """Nearest neighbours with uniform weights.

    Each record's neighbours among all are sorted once. Those of a fit are the first k of its
    training records, with multiplicity.
    """

    cost = 4
    X: NDArray
    target: Float[NumpyArray, "records outputs"]
    k: int
    kind: str  # response, probability, probabilities or label

    def __post_init__(self) -> None:
        self.name = f"{self.k} nearest neighbours, sorted once"

    def __call__(
        self, train: Rows, shared: SharedColumns, extra: ExtraRows, seeds: Seeds
    ) -> Predictions:
        if train.shape[1] < self.k:
            raise ValueError(
                f"leakage_corrected: {self.k} neighbours need as many records to train on; got {train.shape[1]}."
            )
        inside = []
        outside = []
        for rows, extra_rows in zip(train, extra, strict=True):
            times = np.bincount(rows, minlength=len(self.X))
            inside.append(self._predict(self.order[shared], times))
            outside.append(self._predict(self.order[extra_rows], times))
        return np.array(inside), np.array(outside)

    @cached_property
    def order(self) -> Int[NumpyArray, "records records"]:
        """All records by their distances from each record."""
        from sklearn.metrics import pairwise_distances_chunked

        nearest = lambda distance, _: np.argsort(distance, 1, kind="stable").astype(np.int32)
        return np.concatenate(list(pairwise_distances_chunked(self.X, reduce_func=nearest)))

    def _predict(self, order: NDArray, times: IntArray) -> FloatArray:
        """Predict from the nearest records of each list, and from twice as many if fewer than k of
        them were trained on.
        """
        out = np.zeros((len(order), self.target.shape[1]))
        todo = np.arange(len(order))
        width = 2 * self.k
        while len(todo):
            width = min(max(2 * width, int(2 * self.k * len(times) / times.sum())), len(times))
            nearest = order[todo, :width]
            weight = times[nearest]
            before = np.cumsum(weight, 1) - weight
            used = np.clip(self.k - before, 0, weight)
            enough = used.sum(1) == self.k
            done = todo[enough]
            out[done] = np.einsum("ij,ijc->ic", used[enough], self.target[nearest[enough]]) / self.k
            todo = todo[~enough]
        match self.kind:
            case "label":
                return out.argmax(1) * 1.0
            case "probability":
                return out[:, 1]
            case "response":
                return out[:, 0]
        return out


def lengths(train: Rows) -> Seeds:
    """Number every fit in its chain, from 0."""
    # 0.5: largest share of a training set that changes from one fit of a chain to the next
    close = np.append(False, (train[1:] != train[:-1]).mean(1) <= 0.5)
    number = np.arange(len(train))
    return number - np.maximum.accumulate(np.where(close, 0, number))


def moments(
    U: FloatArray, train: Rows, place: IntArray
) -> Float[NumpyArray, "fits columns columns"]:
    """Compute `Σ u uᵀ` over the rows of every fit."""
    out = np.empty((len(train), U.shape[1], U.shape[1]))
    for f, rows in enumerate(train):
        if place[f] == 0:
            block = U[rows]
            out[f] = block.T @ block
            continue
        changed = np.flatnonzero(rows != train[f - 1])
        added = U[rows[changed]]
        removed = U[train[f - 1][changed]]
        out[f] = out[f - 1] + added.T @ added - removed.T @ removed
    return out


@dataclass(eq=False)
class FitChains:
    """Minima of `Σ_n w_n ℓ(z_nᵀθ, y_n) + ½ Σ_j r_j θ_j²` for many w and r, by chains."""

    Z: FloatArray
    y: FloatArray
    loss: losses.AbstractLoss

    def __post_init__(self) -> None:
        self.upper = np.triu_indices(self.Z.shape[1])
        self.products = self.Z[:, self.upper[0]] * self.Z[:, self.upper[1]]

    def solve(
        self,
        weight: RowCounts,
        ridge: Parameters,
        place: Seeds,
    ) -> tuple[Parameters, BoolArray]:
        """Compute the minima, and mark the fits that were not solved."""
        count, size = ridge.shape
        theta = np.zeros((count, size))
        failed = np.zeros(count, bool)
        inverse = np.zeros((count, size, size))
        solved = np.zeros(count, bool)
        start, at_start, start_failed = self._down(
            weight.mean(0)[None], ridge.mean(0)[None], np.zeros((1, size)), None
        )
        if start_failed[0]:
            return theta, np.ones(count, bool)
        for k in range(place.max() + 1):
            fits = np.flatnonzero(place == k)
            continued = fits[solved[fits - 1]] if k else fits[:0]
            theta[fits] = start
            inverse[fits] = at_start
            theta[continued] = theta[continued - 1]
            inverse[continued] = inverse[continued - 1]
            theta[fits], inverse[fits], failed[fits] = self._down(
                weight[fits], ridge[fits], theta[fits], inverse[fits]
            )
            solved[fits] = ~failed[fits]
        return theta, failed

    def _down(
        self, weight: FloatArray, ridge: FloatArray, theta: FloatArray, inverse: NDArray | None
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Take steps until the decrement is small, with the given inverse Hessians.

        Returns the new inverses, and marks fits whose steps diverge or stall.
        """
        factors = _ChainFactors(self, weight, ridge, inverse)
        total = 1 + weight.sum(1)

        def propose(state: LaneState, fits: Lanes) -> Proposal:
            proposal = factors.propose(state, fits)
            small = proposal.length**2 <= FINAL * total[fits]
            return proposal._replace(end=small, stay=proposal.length > 2 * state.length)

        state, converged = iterate(factors.look, propose, theta, anywhere, MAX_CHAIN_NEWTON_STEPS)
        return state.theta, factors.inverse, ~converged


class _ChainFactors(SharedFactors):
    """Inverse Hessians of fits, those of the fits before to begin with, and the curvatures at the
    points that were looked at last.
    """

    def __init__(
        self, chains: FitChains, weight: FloatArray, ridge: FloatArray, inverse: NDArray | None
    ):
        super().__init__(len(weight), SLOW)
        self.chains = chains
        self.weight = weight
        self.ridge = ridge
        self.curvature = np.empty(weight.shape)
        self.present[:] = inverse is not None
        if inverse is None:
            inverse = np.zeros((*ridge.shape, ridge.shape[1]))
        self.inverse = inverse.copy()

    def look(self, theta: FloatArray, fits: Lanes) -> tuple[FloatArray, FloatArray]:
        chains = self.chains
        slope, self.curvature[fits] = chains.loss.derivatives(theta @ chains.Z.T, chains.y, (1, 2))
        gradient = (self.weight[fits] * slope) @ chains.Z + self.ridge[fits] * theta
        return np.zeros(len(theta)), gradient

    def renew(self, theta: FloatArray, fits: IntArray) -> None:
        size = theta.shape[1]
        H = np.zeros((len(theta), size, size))
        i, j = self.chains.upper
        mass = self.weight[fits] * self.curvature[fits]
        H[:, i, j] = H[:, j, i] = mass @ self.chains.products
        H[:, range(size), range(size)] += self.ridge[fits]
        self.inverse[fits] = Curvature.of(H).solve(np.broadcast_to(np.eye(size), H.shape))

    def solve(self, gradient: FloatArray, fits: IntArray) -> FloatArray:
        return np.einsum("fij,fj->fi", self.inverse[fits], gradient)


def count_rows(train: Rows, rows: RowNumbers) -> RowCounts:
    """Count how often each of some rows is in every training set."""
    counts = [np.bincount(part, minlength=rows[-1] + 1)[rows] for part in train]
    return np.array(counts, float)
