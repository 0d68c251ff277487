"""Gaussian processes of a few thousand points, by the exact likelihood, with every row left out by itself in closed form.

    y_n = μ + f(x_n) + noise,   f ~ GP(0, σ² k(r)),   r² = Σ_d (Δ_d / ℓ_d)²,   noise ~ N(0, s²)

    F(θ, w) = ½ βᵀβ̃ + ½ log|M| + Σ w_n (log s + ½ log 2π) − log p(θ),   M = I + S K S,  S = diag(√w) / s

with β = M⁻¹S(y − μ) and β̃ = S(y − μ): weights multiply log-likelihoods, as in every model of latent Gaussian variables, so
that a row of weight zero has no effect. With α = Sβ and A = S M⁻¹ S, ∂F/∂c = ½ tr(A ∂K) − ½ αᵀ∂K α, and leaving out row n
alone lowers F by

    s_n = −log N(y_n; y_n − α_n / A_nn, 1 / A_nn)        (Rasmussen & Williams 2006, section 5.4.2)
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from ..._runtime.jax import PyTree, static
from ...data.arrays import Names, match_labels, numbers
from ...objectives.closed_form import GRADIENT_DIFFERENCE, AbstractClosedForm, Points, State, ValueAndGradient, Weights
from ...objectives.objective import LOG_DENSITY, Costs, Parameters, Units, as_stored
from ..glm.rows import new_rows

Array = np.ndarray


def _matern12(r):
    return np.exp(-r), np.exp(-r) / np.maximum(r, 1e-150)


def _matern32(r):
    own = np.sqrt(3) * r
    return (1 + own) * np.exp(-own), 3 * np.exp(-own)


def _matern52(r):
    own = np.sqrt(5) * r
    return (1 + own + own**2 / 3) * np.exp(-own), 5 / 3 * (1 + own) * np.exp(-own)


def _rbf(r):
    own = np.exp(-0.5 * r**2)
    return own, own


# k(r), and −k′(r) / r
KERNELS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
}


class ProcessFactor(NamedTuple):
    """Factorised covariance at one θ and w, from which all results are computed."""

    K: Float[Array, "rows rows"]
    bend: Float[Array, "rows rows"]  # σ² times −k′(r) / r
    S: Float[Array, " rows"]
    inverse: Float[Array, "rows rows"]  # M⁻¹
    beta: Float[Array, " rows"]
    value: float


class GaussianProcess(AbstractClosedForm):
    """Gaussian-process regression with a constant mean.

    A unit is a row. Its held-out loss is −log p(y_n | all rows that are seen). `fit(...).parameters` is `{"mean", "sd",
    "length", "noise_sd"}`, where "length" is a number or `[features]`. An evaluation takes time with the cube of the rows.
    Default priors are Gamma(2, 2 / sd(y)) for standard deviations and Gamma(2, 1 / sd(x)) for lengths, whose modes are half of
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
        If values are missing or infinite, a column or the response is constant, or there are more than 10,000 rows.

    Examples
    --------
    >>> import leaveout as lo
    >>> x = np.linspace(0, 1, 15)[:, None]
    >>> lo.GaussianProcess(x, np.sin(6 * x[:, 0]), kernel="rbf").num_units
    15
    """

    X: Float[Array, "rows features"]
    y: Float[Array, " rows"]
    spread: Float[Array, " lengths"]
    kernel: str = static()
    flat: bool = static()
    names: Names = static()
    columns: tuple[str, ...] = static()

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
            raise ValueError(f"GaussianProcess: kernel must be one of {', '.join(map(repr, KERNELS))}; got {kernel!r}.")
        if not (prior is None or (isinstance(prior, str) and prior == "default")):
            raise ValueError(f"GaussianProcess: prior must be 'default' or None; got {prior!r}.")
        self.names, X, y = match_labels("GaussianProcess", X=X, y=y)
        count = 1 if np.ndim(X) < 2 else np.shape(X)[1]
        self.columns = tuple(map(str, X.columns)) if hasattr(X, "columns") else tuple(f"x{j}" for j in range(count))
        self.X, self.y = _read(X, y)
        deviation = self.X.std(0)
        self.spread = as_stored(deviation if ard else [np.sqrt(np.mean(deviation**2))])
        self.kernel, self.flat = kernel, prior is None

    @property
    def num_units(self) -> int:
        return len(self.y)

    @property
    def units(self) -> Units:
        return Units(names=self.names.index, serial=None, target=self.y, score=LOG_DENSITY, predict_new=self._predict_new)

    def _predict_new(self, fit, X, kind, offset):
        """Compute the means of f + μ at new rows, k(x, X) (K + σ²I)⁻¹ (y − μ) + μ."""
        del kind  # the link is the identity
        if offset is not None:
            raise ValueError("predict: the model has no offset, but one was given.")
        labels, X = match_labels("predict", X=X)
        rows = np.asarray(new_rows("predict", X, self.columns, False))
        at = self._factorise(fit.vector, np.ones(self.num_units))
        assert at is not None
        lengths = np.broadcast_to(np.exp(fit.vector[2:-1]), rows.shape[1:])
        apart = scipy.spatial.distance.cdist(rows / lengths, self.X / lengths)
        covariance = np.exp(2 * fit.vector[1]) * KERNELS[self.kernel](apart)[0]
        return pd.Series(fit.vector[0] + covariance @ (at.S * at.beta), index=labels.index, name="prediction")

    @property
    def parameters(self) -> Parameters:
        several = [f"length[{k}]" for k in range(len(self.spread))] if len(self.spread) > 1 else ["length"]
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=lambda seed: np.array([self.y.mean(), *np.log([0.7 * self.y.std(), *self.spread, 0.5 * self.y.std()])]),
            names=lambda: ["mean", "sd", *several, "noise_sd"],
            limit=self._limit,
        )

    def _limit(self, theta: Float[Array, " params"]) -> str:
        noiseless = 1e-6  # deviation of the noise, relative to that of y, that counts as none
        if theta[-1] > np.log(noiseless * self.y.std()):
            return ""
        return (
            "GaussianProcess: the noise goes to zero, where the density has no bound: rows that are there twice with one and "
            "the same y do that. Drop the copies."
        )

    def _natural(self, theta):
        length = np.exp(theta[2:-1])
        one = {"mean": np.asarray(theta[0]), "sd": np.exp(theta[1]), "noise_sd": np.exp(theta[-1])}
        return one | {"length": length if len(self.spread) > 1 else length[0]}

    def _to_unconstrained(self, names_by_key):
        lengths = np.broadcast_to(np.asarray(names_by_key["length"], float), self.spread.shape)
        return np.array(
            [float(names_by_key["mean"]), *np.log([float(names_by_key["sd"]), *lengths, float(names_by_key["noise_sd"])])]
        )

    @functools.cached_property
    def _apart(self) -> Float[Array, "lengths rows rows"]:
        """Compute squared distances along every feature with a length of its own."""
        square = lambda x: np.maximum(scipy.spatial.distance.cdist(x, x, "sqeuclidean"), 0.0)
        return np.stack([square(self.X[:, [k]]) for k in range(self.X.shape[1])] if len(self.spread) > 1 else [square(self.X)])

    def _factorise(self, theta: Float[Array, " params"], weights: Float[Array, " rows"]) -> ProcessFactor | None:
        """Factorise the covariance at θ; None if it is not finite or not positive definite."""
        shares = np.exp(-2 * theta[2:-1])
        if not np.isfinite(shares).all():
            return None
        k, bend = KERNELS[self.kernel](np.sqrt(np.einsum("d,dij->ij", shares, self._apart)))
        variance = np.exp(2 * theta[1])
        S, K = np.sqrt(weights) * np.exp(-theta[-1]), variance * k
        M = S[:, None] * K * S
        M[np.diag_indices(len(M))] += 1
        if not np.isfinite(M).all():
            return None
        factor, failed = scipy.linalg.lapack.dpotrf(M, lower=True)
        if failed:
            return None
        inverse = scipy.linalg.lapack.dpotri(factor, lower=True)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        right = S * (self.y - theta[0])
        beta = inverse @ right
        value = 0.5 * beta @ right + np.log(np.diag(factor)).sum()
        value += weights.sum() * (theta[-1] + 0.5 * np.log(2 * np.pi)) + self._prior(theta)[0]
        return ProcessFactor(K, variance * bend, S, inverse, beta, float(value))

    def _prior(self, theta: Float[Array, " params"]) -> tuple[float, Float[Array, " params"]]:
        """Compute −log p and its gradient; lengths and deviations are independent, each Gamma(2, rate)."""
        slope = np.zeros(len(theta))
        if self.flat:
            return 0.0, slope
        sd = float(self.y.std())
        process_prior_rate = 2.0  # rate of the prior of standard deviations, on the scale of y
        rates = np.array([process_prior_rate / sd, *(1 / self.spread), process_prior_rate / sd])
        grown = rates * np.exp(theta[1:])
        slope[1:] = grown - 1
        return float(np.sum(grown - theta[1:])), slope

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        with np.errstate(all="ignore"):
            found = [self._look(one, w) for one, w in zip(theta, np.asarray(weights, float), strict=True)]
        return np.array([value for value, _ in found]), np.array([slope for _, slope in found]), None

    def _look(self, theta: Float[Array, " params"], weights: Float[Array, " rows"]) -> tuple[float, Float[Array, " params"]]:
        at = self._factorise(theta, weights)
        if at is None:
            return np.inf, np.zeros(len(theta))
        alpha, A = at.S * at.beta, at.S[:, None] * at.inverse * at.S
        pull = A - np.outer(alpha, alpha)
        slope = self._prior(theta)[1]
        slope[0] -= alpha.sum()
        slope[1] += np.sum(pull * at.K)
        lengths = np.exp(-2 * theta[2:-1])
        slope[2:-1] += [0.5 * share * np.sum(pull * at.bend * apart) for share, apart in zip(lengths, self._apart, strict=True)]
        slope[-1] += weights.sum() - len(self.y) + np.trace(at.inverse) - at.beta @ at.beta
        return at.value, slope

    def _conditional(self, theta: Array, weights: Array) -> tuple[Float[Array, "refits rows"], Float[Array, "refits rows"]]:
        """Compute means and variances of f + μ given the seen rows."""
        mean, variance = np.full((2, len(theta), len(self.y)), np.nan)
        with np.errstate(all="ignore"):
            for k, (one, w) in enumerate(zip(theta, np.asarray(weights, float), strict=True)):
                at = self._factorise(one, w)
                if at is not None:
                    half = at.K * at.S
                    mean[k] = one[0] + half @ at.beta
                    variance[k] = np.diag(at.K) - np.einsum("ij,ij->i", half @ at.inverse, half)
        return mean, np.maximum(variance, 0.0)

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        state: State = None,
    ) -> Float[np.ndarray, "refits ..."]:
        some = np.minimum(index, self.num_units - 1)
        mean, variance = (np.take_along_axis(part, some, axis=1) for part in self._conditional(theta, weights))
        return _gaussian(self.y[some] - mean, variance + np.exp(2 * theta[:, -1:]))

    def predictions(
        self, theta: Points, weights: Weights, index: Int[np.ndarray, "refits width"], kind: str, state: State = None
    ) -> Float[np.ndarray, "refits width"]:
        return np.take_along_axis(self._conditional(theta, weights)[0], np.minimum(index, self.num_units - 1), axis=1)

    def jacobian(self, theta: PyTree) -> Float[np.ndarray, "units params"]:
        """Compute ∂²F/∂θ∂w, by central differences of ∂F/∂w_n = E[−log p(y_n | f)] over f given all rows.

        Parameters
        ----------
        theta : array of float, shape (params,)
            Parameters.

        Returns
        -------
        array of float, shape (rows, params)
            The mixed derivatives.
        """
        found, ones = np.empty((self.num_units, len(theta))), np.ones((1, self.num_units))
        for k in range(len(theta)):
            step = GRADIENT_DIFFERENCE * max(1.0, abs(theta[k])) * np.eye(len(theta))[k]
            ends = []
            for at in (theta + step, theta - step):
                mean, variance = self._conditional(at[None], ones)
                ends.append(at[-1] + 0.5 * np.exp(-2 * at[-1]) * ((self.y - mean[0]) ** 2 + variance[0]))
            found[:, k] = (ends[0] - ends[1]) / (2 * step[k])
        return found

    def predictor_covariance(self, theta: Float[np.ndarray, " params"]) -> Float[np.ndarray, "units units"] | None:
        """Covariance of the linear predictors of all rows, given all data; the prior of the constant mean is flat.

        Parameters
        ----------
        theta : array of float, shape (params,)
            Parameters.

        Returns
        -------
        array of float, shape (rows, rows)
            The matrix.
        """
        at = self._factorise(theta, np.ones(self.num_units))
        assert at is not None
        half = at.K * at.S
        rest = np.ones(self.num_units) - half @ at.inverse @ at.S
        return at.K - half @ at.inverse @ half.T + np.outer(rest, rest) / (at.S @ at.inverse @ at.S)

    @property
    def costs(self) -> Costs:
        return Costs(lanes=1, work=4.0 * self.num_units**3, runs=self._runs)

    def _runs(self, like: Any, first: Array, length: Array) -> Any:
        """Return the pass over the data that computes the exact changes by leaving out each single row."""
        del like
        if (length > 1).any():
            return None
        first = np.asarray(first, np.int64)

        def told(theta: Float[Array, " params"]) -> tuple[Array, Array]:
            with np.errstate(all="ignore"):
                at = self._factorise(theta, np.ones(self.num_units))
            if at is None:
                return np.full((len(first), 1), np.nan), np.full(len(first), np.nan)
            own = (at.S**2 * np.diag(at.inverse))[first]
            loss = _gaussian((at.S * at.beta)[first] / own, 1 / own)
            return loss[:, None], loss

        return told


def _gaussian(apart: Array, variance: Array) -> Array:
    return 0.5 * (apart**2 / variance + np.log(2 * np.pi * variance))


def _read(X: Any, y: Any) -> tuple[Float[Array, "rows features"], Float[Array, " rows"]]:
    X, y = (np.asarray(numbers("GaussianProcess", name, value), float) for name, value in (("X", X), ("y", y)))
    X = X[:, None] if X.ndim == 1 else X
    max_process_rows = 10_000  # largest number of rows, whose covariance takes 800 megabytes
    if y.ndim != 1 or X.ndim != 2 or len(X) != len(y) or not 3 <= len(y) <= max_process_rows:
        raise ValueError(
            f"GaussianProcess: X must be [rows, features] and y [rows], of 3 to {max_process_rows} rows; got shapes "
            f"{list(X.shape)} and {list(y.shape)}."
        )
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise ValueError("GaussianProcess: X and y must be finite; drop or impute what is missing.")
    if np.ptp(y) == 0 or (np.ptp(X, axis=0) == 0).any():
        raise ValueError("GaussianProcess: y, or a column of X, is constant.")
    return as_stored(X), as_stored(y)
