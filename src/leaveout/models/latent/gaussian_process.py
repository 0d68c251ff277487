"""Gaussian processes of a few thousand points, by the exact likelihood, with every row left out by
itself in closed form.

    y_n = μ + f(x_n) + noise,   f ~ GP(0, σ² k(r)),   r² = Σ_d (Δ_d / ℓ_d)²,   noise ~ N(0, s²)

    F(θ, w) = ½ βᵀβ̃ + ½ log|M| + Σ w_n (log s + ½ log 2π) − log p(θ),
    M = I + S K S,  S = diag(√w) / s

with β = M⁻¹S(y − μ) and β̃ = S(y − μ): weights multiply log-likelihoods, as in every model of
latent Gaussian variables, so that a row of weight zero has no effect. With α = Sβ and A = S M⁻¹ S,
∂F/∂c = ½ tr(A ∂K) − ½ αᵀ∂K α, and leaving out row n alone lowers F by

    s_n = −log N(y_n; y_n − α_n / A_nn, 1 / A_nn)        (Rasmussen & Williams 2006, section 5.4.2)
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from ..._runtime import (
    HALF_LOG_TAU,
    ListedUnits,
    ListedValues,
    MakeArray,
    NumpyArray,
    PerRefitRow,
    PerRow,
    PyTree,
    RowNumbers,
    Strings,
    TwoArrays,
    UnitVectors,
    join,
    largest_first,
    silence,
    slices,
    static,
)
from ...data import Names, floats, match_labels
from ...linalg import cholesky
from ...objectives import (
    LOG_DENSITY,
    AbstractClosedForm,
    Costs,
    Parameters,
    Points,
    RefitValues,
    State,
    Units,
    ValueAndGradient,
    Vector,
    Weights,
    as_stored,
    one_by_one,
)
from ..glm import new_rows
from .base import jacobian_by_differences

PlaceSets = Float[NumpyArray, "places sets"]
PlaceMatrices = Float[NumpyArray, "places rows rows"]
PlaceRows = Float[NumpyArray, "places rows"]


def _matern12(r):
    decay = np.exp(-r)
    return decay, lambda: decay / np.maximum(r, 1e-150)


def _matern32(r):
    distance = np.sqrt(3) * r
    decay = np.exp(-distance)
    return (1 + distance) * decay, lambda: 3 * decay


def _matern52(r):
    distance = np.sqrt(5) * r
    decay = np.exp(-distance)
    return ((distance / 3 + 1) * distance + 1) * decay, lambda: 5 / 3 * (1 + distance) * decay


def _rbf(r):
    decay = np.exp(-0.5 * r**2)
    return decay, lambda: decay


# k(r), and a function that returns −k′(r) / r
KERNELS: dict[str, Callable[[NumpyArray], tuple[NumpyArray, MakeArray]]] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
}
# entries of the covariances that are factorised together, which a cache holds
FACTORISED_ENTRIES = 2**16


class ProcessFactor(NamedTuple):
    """Factorised covariances at some θ and w, from which all results are computed; NaN where there
    is no factor.

    `factor` is that of M with S(y − μ) for a last row, so that its own last row begins with L⁻¹S(y
    − μ), where M = LLᵀ.
    """

    k: Float[NumpyArray, "places pairs"]  # of the pairs of rows in the lower triangle
    kernel_slope: Callable[[], Float[NumpyArray, "places pairs"]]  # −k′(r) / r
    S: PlaceRows
    right: PlaceRows  # S(y − μ)
    factor: Float[NumpyArray, "places one_more one_more"]

    @property
    def terms(self) -> PlaceRows:
        """Terms of ½ βᵀβ̃ + ½ log|M|, of which the first m are those of the first m rows alone."""
        return 0.5 * self.factor[:, -1, :-1] ** 2 + np.log(
            np.einsum("pii->pi", self.factor)[:, :-1]
        )

    def inverse(self) -> tuple[PlaceMatrices, PlaceRows]:
        """Return M⁻¹ and β."""
        triangles = [scipy.linalg.lapack.dpotri(factor[:-1, :-1].T)[0].T for factor in self.factor]
        inverse = np.reshape(triangles, (*self.S.shape, self.S.shape[1]))
        np.einsum("pii->pi", inverse)[:] *= 0.5
        inverse = inverse + inverse.swapaxes(1, 2)  # its upper triangle is that of the factor, zero
        return inverse, np.einsum("pij,pj->pi", inverse, self.right)


class GaussianProcess(AbstractClosedForm):
    """Gaussian-process regression with a constant mean.

    A unit is a row. Its held-out loss is −log p(y_n | all rows that are seen).
    `fit(...).parameters` is `{"mean", "sd", "length", "noise_sd"}`, where "length" is a number or
    `[features]`. An evaluation takes time with the cube of the rows. Default priors are Gamma(2, 2
    / sd(y)) for standard deviations and Gamma(2, 1 / sd(x)) for lengths, whose modes are half of
    sd(y), and sd(x).

    Parameters
    ----------
    X : array or DataFrame, shape (rows, features)
        Rows.
    y : array, shape (rows,)
        Responses.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default: "matern52"
        Kernel of the process.
    ard : bool, default: False
        Whether every feature has a length of its own.
    prior : {"default"} or None, default: "default"
        Priors of the parameters; None is maximum likelihood.

    Raises
    ------
    ValueError
        If values are missing or infinite, a column or the response is constant, or there are more
        than 10,000 rows.

    Examples
    --------
    >>> import leaveout as lo
    >>> x = np.linspace(0, 1, 15)[:, None]
    >>> lo.GaussianProcess(x, np.sin(6 * x[:, 0]), kernel="rbf").num_units
    15
    """

    X: Float[NumpyArray, "rows features"]
    y: PerRow
    spread: Float[NumpyArray, " lengths"]
    kernel: str = static()
    flat: bool = static()
    labels: Names = static()
    columns: Strings = static()

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "matern52",
        ard: bool = False,
        prior: Literal["default"] | None = "default",
    ):
        if kernel not in KERNELS:
            raise ValueError(
                f"GaussianProcess: kernel must be one of {', '.join(map(repr, KERNELS))}; got {kernel!r}."
            )
        if not (prior is None or (isinstance(prior, str) and prior == "default")):
            raise ValueError(f"GaussianProcess: prior must be 'default' or None; got {prior!r}.")
        self.labels, X, y = match_labels("GaussianProcess", X=X, y=y)
        count = 1 if np.ndim(X) < 2 else np.shape(X)[1]
        columns = getattr(X, "columns", [f"x{j}" for j in range(count)])
        self.columns = tuple(map(str, columns))
        self.X, self.y = _read(X, y)
        deviation = self.X.std(0)
        self.spread = as_stored(deviation if ard else [np.sqrt(np.mean(deviation**2))])
        self.kernel = kernel
        self.flat = prior is None

    @property
    def num_units(self) -> int:
        return len(self.y)

    @property
    def units(self) -> Units:
        return Units(
            names=self.labels.index,
            serial=None,
            target=self.y,
            score=LOG_DENSITY,
            predict_new=self._predict_new,
        )

    def _predict_new(self, fit, X, kind, offset):
        """Compute the means of f + μ at new rows, k(x, X) (K + σ²I)⁻¹ (y − μ) + μ."""
        # the link is the identity
        if offset is not None:
            raise ValueError("predict: the model has no offset, but one was given.")
        labels, X = match_labels("predict", X=X)
        rows = np.asarray(new_rows("predict", X, self.columns, False))
        factor = self._factorise(fit.vector[None])
        lengths = np.broadcast_to(np.exp(fit.vector[2:-1]), rows.shape[1:])
        distances = scipy.spatial.distance.cdist(rows / lengths, self.X / lengths)
        covariance = np.exp(2 * fit.vector[1]) * KERNELS[self.kernel](distances)[0]
        return pd.Series(
            fit.vector[0] + covariance @ (factor.S[0] * factor.inverse()[1][0]),
            index=labels.index,
            name="prediction",
        )

    @property
    def parameters(self) -> Parameters:
        lengths = ["length"]
        if len(self.spread) > 1:
            lengths = [f"length[{k}]" for k in range(len(self.spread))]
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=lambda seed: np.array(
                [self.y.mean(), *np.log([0.7 * self.y.std(), *self.spread, 0.5 * self.y.std()])]
            ),
            names=lambda: ["mean", "sd", *lengths, "noise_sd"],
            limit=self._limit,
            at_limit=self._to_limit,
        )

    def _at_end(self, theta: Vector, noise: float, length: float) -> Bool[NumpyArray, " params"]:
        """Mark a deviation of the noise so far below that of y, and lengths so far above those of
        the columns.
        """
        return np.r_[
            False,
            False,
            theta[2:-1] > np.log(self.spread * length),
            theta[-1] < np.log(self.y.std() / noise),
        ]

    def _limit(self, theta: Vector) -> str:
        end = self._at_end(theta, 1e6, 1e4)
        if end[-1]:
            return (
                "GaussianProcess: the noise goes to zero, where the likelihood is highest or, if rows are there twice with one "
                "and the same y, has no bound. Keep the default prior, or drop such copies."
            )
        lengths = ", ".join(np.array(self.parameters.names())[end])
        return lengths and (
            f"GaussianProcess: {lengths} grows without end, to a process that is flat or straight along its column. Keep the "
            "default prior, drop the column, or give another start, fit(..., theta0=)."
        )

    def _to_limit(self, theta: Vector) -> Vector:
        infinity = 1e9  # its inverse square is less than rounding
        ends = np.r_[1, 1, self.spread * infinity, self.y.std() / infinity]
        return np.where(self._at_end(theta, 1e3, 1e3), np.log(ends), theta)

    def _natural(self, theta):
        length = np.exp(theta[2:-1])
        numbers_by_name = {
            "mean": np.asarray(theta[0]),
            "sd": np.exp(theta[1]),
            "noise_sd": np.exp(theta[-1]),
        }
        return numbers_by_name | {"length": length if len(self.spread) > 1 else length[0]}

    def _to_unconstrained(self, names_by_key):
        lengths = np.broadcast_to(np.asarray(names_by_key["length"], float), self.spread.shape)
        return np.array(
            [
                float(names_by_key["mean"]),
                *np.log([float(names_by_key["sd"]), *lengths, float(names_by_key["noise_sd"])]),
            ]
        )

    @cached_property
    def _squares(self) -> Float[NumpyArray, "lengths rows rows"]:
        """Compute squared distances along every feature with a length of its own."""
        parts = [self.X]
        if len(self.spread) > 1:
            parts = [column[:, None] for column in self.X.T]
        return np.maximum([scipy.spatial.distance.cdist(x, x, "sqeuclidean") for x in parts], 0.0)

    def _pairs(
        self, matrices: Float[NumpyArray, "some rows rows"]
    ) -> Float[NumpyArray, "some pairs"]:
        """Return the lower triangles."""
        return matrices.reshape(len(matrices), self.num_units**2).take(self._below, axis=1)

    @cached_property
    def _below(self) -> Int[NumpyArray, " pairs"]:
        """Places of the pairs, row > column, in a flattened square matrix."""
        row, column = np.tril_indices(self.num_units, -1)
        return row * self.num_units + column

    def _factorise(
        self,
        theta: Points,
        weights: PlaceRows | None = None,
        order: RowNumbers | None = None,
    ) -> ProcessFactor:
        """Factorise M at every θ = (μ, log σ, log ℓ, log s), of rows in some order.

        `weights`, if there are any, are already in that order. M is bordered by S(y − μ), so that
        one factorisation gives L and L⁻¹S(y − μ).
        """
        n = self.num_units
        if weights is None:
            weights = np.ones((1, n))
        y = self.y
        squares = self._squares
        if order is not None:
            y = y[order]
            squares = squares[:, order][:, :, order]
        squares = self._pairs(squares)  # [lengths, pairs], without the diagonal
        inverse_squares = np.exp(-2 * theta[:, 2:-1])  # 1/ℓ²
        # of one length, the roots of the squares are taken once, and not at every θ
        if len(squares) > 1:
            r = np.sqrt(inverse_squares @ squares)
        else:
            r = np.sqrt(inverse_squares) * np.sqrt(squares)
        k, kernel_slope = KERNELS[self.kernel](r)
        root = np.sqrt(weights)
        ratio = np.exp(2 * (theta[:, 1:2] - theta[:, -1:]))  # σ²/s²
        S = root * np.exp(-theta[:, -1:])
        right = S * (y - theta[:, :1])
        pairs = ratio * k * self._pairs(root[:, :, None] * root[:, None, :])
        M = np.zeros((len(theta), n + 1, n + 1))
        # The lower triangle, which is all that is read. Rows of M are longer by one than those that
        # `_below` numbers: r·n + c becomes r·(n + 1) + c.
        M.reshape(len(M), (n + 1) ** 2)[:, self._below + self._below // n] = pairs
        M[:, n, :n] = right
        diagonal = np.einsum("pii->pi", M)
        # The last entry has no meaning. It is above bᵀM⁻¹b ≤ |b|², b the last row, as M ≥ I: so
        # there is a factor.
        diagonal[:, :n] = 1 + ratio * weights
        diagonal[:, n] = 1 + 2 * np.sum(right**2, 1)
        return ProcessFactor(k, kernel_slope, S, right, cholesky(M))

    def _prior(self, theta: Points) -> tuple[Float[NumpyArray, " places"], Points]:
        """Compute −log p and its gradient.

        Lengths and deviations are independent, each Gamma(2, rate).
        """
        slope = np.zeros(theta.shape)
        if self.flat:
            return np.zeros(len(theta)), slope
        sd = float(self.y.std())
        process_prior_rate = 2.0  # rate of the prior of standard deviations, on the scale of y
        rates = np.array([process_prior_rate / sd, *(1 / self.spread), process_prior_rate / sd])
        grown = rates * np.exp(theta[:, 1:])
        slope[:, 1:] = grown - 1
        return np.sum(grown - theta[:, 1:], 1), slope

    def _in_parts(self, function: Callable[..., Any], *arrays: NumpyArray) -> Any:
        """Apply a function to as many places as are factorised together."""
        size = FACTORISED_ENTRIES // self.num_units**2
        with silence("all"):
            return join(
                [
                    function(*(array[part] for array in arrays))
                    for part in slices(max(1, len(arrays[0])), size)
                ]
            )

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        value, slope = self._in_parts(
            self._look, np.asarray(theta, float), np.asarray(weights, float)
        )
        return value, slope, None

    def _look(self, theta: Points, weights: Weights) -> tuple[Float[NumpyArray, " places"], Points]:
        factor = self._factorise(theta, weights)
        prior, slope = self._prior(theta)
        inverse, beta = factor.inverse()
        size = weights.sum(1)
        value = factor.terms.sum(1) + size * (theta[:, -1] + HALF_LOG_TAU) + prior
        alpha = factor.S * beta
        diagonal = np.einsum("pii->pi", inverse)
        variance = np.exp(2 * theta[:, 1:2])
        sensitivity = self._pairs(
            factor.S[:, :, None] * inverse * factor.S[:, None, :]
            - alpha[:, :, None] * alpha[:, None, :]
        )
        slope[:, 0] -= alpha.sum(1)
        slope[:, 1] += variance[:, 0] * (
            2 * np.sum(sensitivity * factor.k, 1) + np.sum(factor.S**2 * diagonal - alpha**2, 1)
        )
        slope[:, 2:-1] += (
            variance
            * np.exp(-2 * theta[:, 2:-1])
            * ((sensitivity * factor.kernel_slope()) @ self._pairs(self._squares).T)
        )
        slope[:, -1] += size - self.num_units + diagonal.sum(1) - np.sum(beta**2, 1)
        finite = np.isfinite(value)
        return np.where(finite, value, np.inf), np.where(finite[:, None], slope, 0.0)

    def values(self, theta: Points, weights: Float[NumpyArray, "sets units"]) -> PlaceSets:
        # one factor at each θ gives F of all sets of rows that are seen
        seen = np.asarray(weights) > 0
        if not np.array_equal(seen, weights):
            return super().values(theta, weights)
        size = seen.sum(1)
        order = largest_first(seen.sum(0))
        theta = np.asarray(theta, float)
        if np.array_equal(seen[:, order], np.arange(self.num_units) < size[:, None]):  # nested
            rows = None if seen.all() else order
            terms = self._in_parts(lambda chunk: self._factorise(chunk, order=rows).terms, theta)
            values = np.pad(np.cumsum(terms, 1), ((0, 0), (1, 0)))[:, size]
        else:
            values = self._in_parts(lambda chunk: self._without(chunk, seen), theta)
        with silence("over", "invalid"):
            values = values + size * (theta[:, -1:] + HALF_LOG_TAU) + self._prior(theta)[0][:, None]
        return np.fmin(values, np.inf)

    def _without(self, theta: Points, seen: Bool[NumpyArray, "sets rows"]) -> PlaceSets:
        """Compute ½ βᵀβ̃ + ½ log|M| of some sets of rows, from that of all rows and blocks of
        M⁻¹.
        """
        factor = self._factorise(theta)
        missing = (~seen).sum(1)
        inverse, beta = factor.inverse()
        first = np.argsort(seen, 1, kind="stable")
        values = np.repeat(factor.terms.sum(1)[:, None], len(seen), axis=1)
        for count in np.unique(missing[missing > 0]):
            sets = np.flatnonzero(missing == count)
            for chunk in np.array_split(sets, 1 + len(sets) * count**2 // FACTORISED_ENTRIES):
                values[:, chunk] -= _eliminate(inverse, beta, first[chunk, :count])
        return values

    def _covariance(self, theta: Points, factor: ProcessFactor) -> PlaceMatrices:
        """Covariance of f."""
        correlation = np.zeros((len(theta), self.num_units, self.num_units))
        correlation.reshape(len(correlation), self.num_units**2)[:, self._below] = factor.k
        return np.exp(2 * theta[:, 1])[:, None, None] * (
            correlation + correlation.swapaxes(1, 2) + np.eye(self.num_units)
        )

    def _conditional(self, theta: Points, weights: Weights) -> tuple[PerRefitRow, PerRefitRow]:
        """Compute means and variances of f + μ given the seen rows."""

        def moments(theta: Points, weights: Weights) -> TwoArrays:
            factor = self._factorise(theta, weights)
            inverse, beta = factor.inverse()
            half = self._covariance(theta, factor) * factor.S[:, None, :]
            mean = theta[:, :1] + np.einsum("pij,pj->pi", half, beta)
            reduction = np.einsum("pij,pij->pi", half @ inverse, half)
            return mean, np.maximum(np.exp(2 * theta[:, 1:2]) - reduction, 0.0)

        return self._in_parts(moments, np.asarray(theta, float), np.asarray(weights, float))

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        held: Bool[NumpyArray, "refits width"],
        state: State = None,
    ) -> RefitValues:
        rows = np.minimum(index, self.num_units - 1)
        mean, variance = (
            np.take_along_axis(part, rows, axis=1) for part in self._conditional(theta, weights)
        )
        variance += np.exp(2 * theta[:, -1:])
        return 0.5 * ((self.y[rows] - mean) ** 2 / variance + np.log(2 * np.pi * variance))

    def predictions(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        kind: str,
        state: State = None,
    ) -> ListedValues:
        return np.take_along_axis(
            self._conditional(theta, weights)[0], np.minimum(index, self.num_units - 1), axis=1
        )

    def jacobian(self, theta: PyTree) -> UnitVectors:
        """Compute ∂²F/∂θ∂w, by central differences of ∂F/∂w_n = E[−log p(y_n | f)] over f given all
        rows.

        Parameters
        ----------
        theta : array of float, shape (params,)
            Parameters.

        Returns
        -------
        array of float, shape (rows, params)
            The mixed derivatives.
        """

        def by_weight(
            points: Points, state: State
        ) -> tuple[Float[NumpyArray, "points units"], State]:
            mean, variance = self._conditional(points, np.ones((len(points), self.num_units)))
            square = (self.y - mean) ** 2 + variance
            return points[:, -1:] + 0.5 * np.exp(-2 * points[:, -1:]) * square, None

        return jacobian_by_differences(by_weight, np.asarray(theta, float))

    def predictor_covariance(self, theta: Vector) -> Float[NumpyArray, "units units"] | None:
        """Covariance of the linear predictors of all rows, given all data; the prior of the
        constant mean is flat.

        Parameters
        ----------
        theta : array of float, shape (params,)
            Parameters.

        Returns
        -------
        array of float, shape (rows, rows)
            The matrix.
        """
        factor = self._factorise(theta[None])
        inverse = factor.inverse()[0][0]
        S = factor.S[0]
        K = self._covariance(theta[None], factor)[0]
        half = K * S
        residual = np.ones(self.num_units) - half @ inverse @ S
        return K - half @ inverse @ half.T + np.outer(residual, residual) / (S @ inverse @ S)

    @property
    def costs(self) -> Costs:
        return Costs(
            lanes=max(1, FACTORISED_ENTRIES // self.num_units**2),
            work=4.0 * self.num_units**3,
            runs=self._runs,
        )

    def _runs(self, like, first: NumpyArray, length: NumpyArray):
        """Return the pass over the data that computes the exact changes by leaving out each single
        row.
        """
        if (length > 1).any():
            return None
        index = np.asarray(first, int)[:, None]

        def unit_changes(theta: Vector) -> TwoArrays:
            with silence("all"):
                inverse, beta = self._factorise(theta[None]).inverse()
                loss = _eliminate(inverse, beta, index)[0] + theta[-1] + HALF_LOG_TAU
            return loss[:, None], loss

        return one_by_one(unit_changes)


def _eliminate(
    inverse: PlaceMatrices,
    beta: PlaceRows,
    index: Int[NumpyArray, "sets width"],
) -> PlaceSets:
    """Compute ½ βᵀB⁻¹β − ½ log|B| with B a block of M⁻¹ and β a part, for each set of rows, one row
    after the other.
    """
    block = inverse[:, index[:, :, None], index[:, None, :]]
    remainder = beta[:, index]
    values = np.zeros((len(beta), len(index)))
    for k in range(index.shape[1]):
        pivot = block[..., k, k]
        slopes = block[..., k + 1 :, k] / block[..., k, k, None]
        values += 0.5 * (remainder[..., k] ** 2 / pivot - np.log(pivot))
        remainder[..., k + 1 :] -= slopes * remainder[..., k, None]
        block[..., k + 1 :, k + 1 :] -= slopes[..., :, None] * block[..., k, None, k + 1 :]
    return values


def _read(X, y) -> tuple[Float[NumpyArray, "rows features"], PerRow]:
    X, y = (floats("GaussianProcess", name, value) for name, value in (("X", X), ("y", y)))
    if X.ndim == 1:
        X = X[:, None]
    max_process_rows = 10_000  # largest number of rows, whose covariance takes 800 megabytes
    if y.ndim != 1 or X.ndim != 2 or len(X) != len(y) or not 3 <= len(y) <= max_process_rows:
        raise ValueError(
            f"GaussianProcess: X must be [rows, features] and y [rows], of 3 to {max_process_rows} rows; got shapes "
            f"{list(X.shape)} and {list(y.shape)}."
        )
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise ValueError("GaussianProcess: X and y must be finite; drop or impute what is missing.")
    if np.ptp(y) == 0 or (np.ptp(X, 0) == 0).any():
        raise ValueError("GaussianProcess: y, or a column of X, is constant.")
    return as_stored(X), as_stored(y)
