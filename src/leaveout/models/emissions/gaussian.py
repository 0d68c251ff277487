"""Gaussian emissions, `x_t | z_t = k ~ N(mean_k, covariance_k)`, and the covariances of Gaussian
noise.

A covariance is `[K, R, R]` ("full"), `[R, R]` for all states ("tied"), variances `[K, R]`
("diagonal") or `[K]` ("spherical"), or held fixed: one variance `[]`, or `[R, R]`, or `[K, R, R]`.
Free matrices live in θ as their Cholesky factor with the logarithm of its diagonal, row by row.
XLA's calls of LAPACK on the CPU can deadlock inside a compiled loop over folds, so matrices are
inverted by sweeps of elementwise operations, and differentiated by matrix products.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Inexact
from numpy import linalg, ndarray
from numpy.random import Generator, default_rng
from numpy.typing import ArrayLike

from ..._runtime import (
    AnyFlags,
    Array,
    Arrays,
    Module,
    NamedArrays,
    PyTree,
    StepNumbers,
    TwoArrays,
    jax,
    jnp,
    make_on_first_call,
    numpy_of,
    static,
)
from ...objectives import LOG_DENSITY, as_stored
from ._base import (
    POSITIVE,
    REAL,
    AbstractPrior,
    AbstractWithPrior,
    Choice,
    Constraint,
    Constraints,
    InverseGamma,
    Lengths,
    LogDensities,
    Means,
    Normal,
    Numbers,
    Observations,
    Parameters,
    Past,
    Priors,
    Row,
    StepFlags,
    check,
    clusters,
)

COVARIANCES = "diagonal", "full", "spherical", "tied"
LOG_TAU = math.log(2 * math.pi)
MatrixArray = Float[Array, "... n n"]
SKEW = 1e-6  # largest asymmetry by rounding of a matrix whose diagonal is one


def _sweeps(
    matrix: MatrixArray,
) -> tuple[MatrixArray, MatrixArray]:
    """Compute the inverse and the Cholesky factor of positive definite matrices by sweeping column
    after column.
    """
    rows = jnp.arange(matrix.shape[-1])

    def sweep(a, j):
        is_pivot = rows == j
        column = jnp.sum(jnp.where(is_pivot, a, 0.0), -1)
        pivot = jnp.sum(jnp.where(is_pivot, column, 0.0), -1, keepdims=True)
        # the part not yet swept is the Schur complement
        factor = jnp.where(rows >= j, column, 0.0) / jnp.sqrt(pivot)
        c = jnp.where(is_pivot, -1.0, column)
        swept = (
            jnp.where(is_pivot | is_pivot[:, None], 0.0, a)
            - c[..., :, None] * c[..., None, :] / pivot[..., None]
        )
        return swept, factor

    swept, columns = jax.lax.scan(sweep, matrix, rows)
    return -swept, jnp.moveaxis(columns, 0, -1)


def inverse(matrix: Arrays) -> tuple[Arrays, Arrays]:
    """Compute the inverse and the log-determinant of positive definite matrices."""
    if not isinstance(matrix, ndarray):
        return _swept_inverse(matrix)
    sign, log_det = linalg.slogdet(matrix)
    return linalg.inv(matrix), log_det + np.log(sign)


@make_on_first_call
def _swept_inverse() -> Any:
    @jax.custom_jvp
    def swept(matrix: MatrixArray) -> tuple[MatrixArray, Float[Array, "..."]]:
        precision, factor = _sweeps(matrix)
        return precision, 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), -1)

    @swept.defjvp
    def _(primals, tangents):
        (matrix,) = primals
        (change,) = tangents
        precision, log_det = swept(matrix)
        return (precision, log_det), (
            -precision @ change @ precision,
            jnp.sum(precision * change, (-2, -1)),
        )

    return swept


def _covariance(vector: Arrays) -> Arrays:
    xp = numpy_of(vector)
    size = (math.isqrt(8 * vector.shape[-1] + 1) - 1) // 2
    rows, columns = np.tril_indices(size)
    place = np.full((size, size), vector.shape[-1])
    place[rows, columns] = np.arange(vector.shape[-1])
    lower = xp.concatenate([vector, xp.zeros((*vector.shape[:-1], 1))], -1)[..., place]
    factor = xp.where(np.eye(size, dtype=bool), xp.exp(lower), lower)
    return factor @ xp.swapaxes(factor, -1, -2)


def _log_cholesky(matrix: Float[ndarray, "... n n"]) -> Float[ndarray, "... entries"]:
    size = matrix.shape[-1]
    factors = np.full(matrix.shape, np.nan)
    for place in np.ndindex(matrix.shape[:-2]):
        with contextlib.suppress(linalg.LinAlgError):
            factors[place] = linalg.cholesky(matrix[place])
    diagonal = np.eye(size, dtype=bool)
    lower = np.where(diagonal, np.log(np.where(diagonal, factors, 1.0)), factors)
    return lower[(..., *np.tril_indices(size))]


def _symmetric(matrix: ndarray) -> AnyFlags | np.bool_:
    scale = np.sqrt(np.abs(np.diagonal(matrix, axis1=-2, axis2=-1)))
    skew = np.abs(matrix - np.swapaxes(matrix, -1, -2))
    return (skew <= SKEW * scale[..., :, None] * scale[..., None, :]).all((-2, -1))


# positive definite matrices, over the last two axes
MATRIX = Constraint(
    _covariance,
    _log_cholesky,
    lambda shape: np.tril(np.ones(shape, bool)),
    _symmetric,
    "symmetric, positive definite and finite",
)


class InverseWishart(AbstractPrior):
    """`−½ (ν + R + 1) log |Σ| − ½ tr(Ψ Σ⁻¹)`, ν degrees of freedom and scale Ψ `[R, R]`."""

    signed = "scale"

    freedom: Numbers
    scale: Numbers

    def __call__(self, value: Arrays) -> Arrays:
        precision, log_det = inverse(value)
        channels = value.shape[-1]
        trace = (self.scale * precision).sum((-2, -1))
        return -0.5 * ((self.freedom + channels + 1) * log_det + trace)


class CovarianceKind(Module):
    """Kind of a covariance, and its value if it is fixed."""

    kind: str = static()
    value: Float[ndarray, "..."] | None

    def __init__(self, emission: str, covariance: "str | ArrayLike"):
        if isinstance(covariance, str):
            if covariance not in COVARIANCES:
                raise ValueError(
                    f"{emission}: covariance must be one of {', '.join(COVARIANCES)}, or an array; got {covariance!r}."
                )
            self.kind = covariance
            self.value = None
            return
        value = as_stored(covariance)
        if value.ndim not in (0, 2, 3) or (value.ndim and value.shape[-1] != value.shape[-2]):
            raise ValueError(
                f"{emission}: a fixed covariance is a number, [channels, channels] or [states, channels, channels]; "
                f"got shape {list(value.shape)}."
            )
        matrices = value if value.ndim else value[None, None]
        symmetric = np.allclose(matrices, np.swapaxes(matrices, -1, -2), rtol=1e-10, atol=0)
        if not (
            np.isfinite(matrices).all() and symmetric and (linalg.eigvalsh(matrices) > 0).all()
        ):
            raise ValueError(
                f"{emission}: a fixed covariance must be symmetric, positive definite and finite; got\n{value}"
            )
        self.kind = {0: "spherical", 2: "tied", 3: "full"}[value.ndim]
        self.value = value

    @property
    def matrices(self) -> bool:
        return self.kind in ("full", "tied")

    @property
    def free(self) -> Constraints:
        if self.value is not None:
            return {}
        return {"covariance": MATRIX if self.matrices else POSITIVE}

    @property
    def fixed(self) -> NamedArrays:
        if self.value is None:
            return {}
        return {"covariance": self.value}

    @property
    def shared(self) -> frozenset[str]:
        if self.kind == "tied" or (self.value is not None and self.value.ndim == 0):
            return frozenset({"covariance"})
        return frozenset()

    def check(self, emission: str, x: Observations) -> None:
        """Raise ValueError if the data do not fit the fixed value, or cannot distinguish a free one
        from zero.
        """
        channels = x.shape[1]
        if self.value is not None:
            if self.value.ndim and self.value.shape[-1] != channels:
                raise ValueError(
                    f"{emission}: the covariance is for {self.value.shape[-1]} channels, the data have {channels}."
                )
            return
        for channel in range(channels):
            seen = x[~np.isnan(x[:, channel]), channel]
            if len(seen) and np.ptp(seen) == 0:
                raise ValueError(
                    f"{emission}: channel {channel} is constant ({seen[0]:g}), so its variance would be zero; "
                    "leave the channel out, or give a fixed covariance."
                )

    def precision(self, covariance: Arrays, channels: int) -> tuple[Arrays, Arrays]:
        """Compute the inverse of the covariance, `[..., R, R]` or its diagonal `[..., R]`, and its
        log-determinant `[...]`.
        """
        if self.matrices:
            return inverse(covariance)
        variance = covariance
        if self.kind == "spherical":
            variance = covariance[..., None] * np.ones(channels)
        return 1 / variance, numpy_of(variance).log(variance).sum(-1)

    def log_density(
        self, residual: Inexact[Arrays, "... channels"], covariance: Arrays
    ) -> Inexact[Arrays, "..."]:
        """`−½ (rᵀ Σ⁻¹ r + log |2πΣ|)`.

        Residuals `[..., K, R]` for a covariance with a state axis, else `[..., R]`.
        """
        precision, log_det = self.precision(covariance, residual.shape[-1])
        einsum = numpy_of(residual).einsum
        if precision.ndim < 2 or not self.matrices:
            square = einsum("...r,...r,...r->...", precision, residual, residual)
        elif precision.ndim == 2:
            square = ((residual @ precision) * residual).sum(-1)
        else:
            square = einsum("...kr,krs,...ks->...k", residual, precision, residual)
        return -0.5 * (square + log_det + residual.shape[-1] * LOG_TAU)

    def start(
        self,
        residual: Observations,
        labels: StepNumbers,
        num_states: int,
    ) -> NamedArrays:
        """Compute the covariance of the residuals in each cluster, shrunk a little towards that of
        all.
        """
        if self.value is not None:
            return {}
        channels = residual.shape[1]
        total = residual.T @ residual / len(residual)
        total = np.diag(np.maximum(np.diag(total), 1e-300)) * 0.5 + 0.5 * total
        if self.kind == "tied":
            return {"covariance": total}
        inside = [residual[labels == k] for k in range(num_states)]
        worth = channels + 1
        full = np.stack([(r.T @ r + worth * total) / (len(r) + worth) for r in inside])
        variances = np.diagonal(full, axis1=1, axis2=2)
        return {
            "covariance": {
                "full": full,
                "diagonal": variances,
                "spherical": variances.mean(1),
            }[self.kind]
        }

    def noise(
        self, parameters: Mapping[str, Arrays], state: int, channels: int, rng: Generator
    ) -> ndarray:
        """Draw the noise of one observation in a state."""
        value = np.asarray(parameters["covariance"])
        if "covariance" not in self.shared:
            value = value[state]
        normal = rng.standard_normal(channels)
        if self.matrices:
            return linalg.cholesky(value) @ normal
        return np.sqrt(value) * normal


def centre(x: ndarray) -> ndarray:
    """Compute the mean of each channel, zero without observations."""
    seen = x[~np.isnan(x).any(axis=1)]
    if len(seen):
        return seen.mean(0)
    return np.zeros(x.shape[1])


def squares(x: ndarray, about: ndarray | float) -> ndarray:
    """Compute the mean square of each channel about a point.

    One if that is zero or nothing is observed.
    """
    seen = x[~np.isnan(x).any(axis=1)]
    square = np.mean((seen - about) ** 2, 0) if len(seen) else np.zeros(x.shape[1])
    return np.where(square > 0, square, 1.0)


class AbstractGaussian(AbstractWithPrior):
    """Gaussian noise about a mean."""

    score = LOG_DENSITY

    covariance: CovarianceKind

    def scale_prior(self, square: ndarray) -> dict[str, AbstractPrior]:
        """Return the prior of the covariance: two pseudo-observations of a tenth of each channel's
        squared scale.

        It is `InverseGamma(1, s²/10)` for a variance and, for a matrix, the inverse Wishart with
        these margins, which has `R + 1` degrees of freedom and the scale `diag(s²)/5`.
        """
        if self.covariance.value is not None:
            return {}
        if self.covariance.matrices:
            return {"covariance": InverseWishart(len(square) + 1.0, np.diag(square) / 5)}
        if self.covariance.kind == "spherical":
            square = square.mean()
        return {"covariance": InverseGamma(1.0, square / 10)}

    @property
    def fixed(self) -> Parameters:
        return self.covariance.fixed

    @property
    def shared(self) -> frozenset[str]:
        return self.covariance.shared


class Gaussian(AbstractGaussian):
    """Gaussian emission, `x_t | z_t = k ~ N(mean_k, covariance_k)`, in R channels.

    Parameters of K states are `mean` [K, R], and `covariance` [K, R, R] for "full", [R, R] for
    "tied" (one for all states), variances [K, R] for "diagonal" and [K] for "spherical". By default
    a mean has the prior Normal(m, 3s), a variance InverseGamma(1, s²/10) and a matrix
    InverseWishart(R + 1, diag(s²)/5), where m and s are the data's mean and standard deviation.

    Parameters
    ----------
    covariance : {"full", "tied", "diagonal", "spherical"} or array, default: "diagonal"
        Kind of covariance; or an array that is held fixed: a variance, [R, R] or [K, R, R].
    prior : {"default"}, dict or None, default: "default"
        Priors, such as `{"mean": (m, s), "covariance": (a, b)}`. None makes one or all of them
        flat; then a variance has no interior optimum when a state holds one point.

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.Gaussian("spherical").free)
    ['mean', 'covariance']
    """

    def __init__(self, covariance: "str | ArrayLike" = "diagonal", prior: Choice = "default"):
        self.covariance = CovarianceKind("Gaussian", covariance)
        value = self.covariance.value
        if value is None or not value.ndim:
            self._choose_prior(prior)
        else:
            self._choose_prior(prior, value.shape[-1])

    def default_prior(self, x: Observations) -> Priors:
        mean = centre(x)
        square = squares(x, mean)
        return {"mean": Normal(mean, 3 * np.sqrt(square)), **self.scale_prior(square)}

    @property
    def free(self) -> Constraints:
        return {"mean": REAL, **self.covariance.free}

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        check(x, np.isfinite(x), "Gaussian", "finite")
        self.covariance.check("Gaussian", x)
        return np.where(np.isnan(x), 0.0, x)

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        return self.statistics(data) @ self.table(parameters, data).T

    def statistics(self, data: PyTree) -> Any:
        # an exponential family: 1, x and xxᵀ, centred against cancellation
        x = data - data.mean(0)
        i, j = self._pairs(x.shape[1])
        return numpy_of(x).concatenate([np.ones((len(x), 1)), x, x[:, i] * x[:, j]], axis=1)

    def table(self, parameters: Parameters, data: PyTree) -> Any:
        mean = parameters["mean"] - data.mean(0)
        xp = numpy_of(mean)
        states, channels = mean.shape
        precision, log_det = self.covariance.precision(parameters["covariance"], channels)
        i, j = self._pairs(channels)
        if self.covariance.matrices:
            precision = xp.broadcast_to(precision, (states, channels, channels))
            weight = precision[:, i, j] * np.where(i == j, 0.5, 1.0)
            first = xp.einsum("krs,ks->kr", precision, mean)
        else:
            weight = xp.broadcast_to(precision, (states, channels)) / 2
            first = precision * mean
        constant = -0.5 * ((first * mean).sum(1) + log_det + channels * LOG_TAU)
        return xp.concatenate([constant[:, None], first, -weight], 1)

    def _pairs(self, channels: int) -> TwoArrays:
        """Pairs of channels whose products the log-density depends on."""
        if self.covariance.matrices:
            return np.tril_indices(channels)
        return np.arange(channels), np.arange(channels)

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        x = np.asarray(data)[observed]
        labels = clusters(x, num_states, seed)
        alone = default_rng(seed).choice(len(x), num_states)
        mean = np.stack(
            [
                x[labels == k].mean(0) if (labels == k).any() else x[alone[k]]
                for k in range(num_states)
            ]
        )
        return {"mean": mean, **self.covariance.start(x - mean[labels], labels, num_states)}

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        mean = parameters["mean"]
        return numpy_of(mean).broadcast_to(mean, (len(data), *mean.shape))

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: Generator
    ) -> Row:
        mean = np.asarray(parameters["mean"])[state]
        return mean + self.covariance.noise(parameters, state, len(mean), rng)
