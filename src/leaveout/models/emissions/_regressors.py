"""Factors by which the mean counts of all states are multiplied: a population at risk, and covariates."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from ..._runtime.jax import Module, static
from ...data.arrays import Names, match_labels, numbers, places
from ...objectives.objective import as_stored
from ._base import Constraint, Parameters
from ._priors import Normal


class Regressors(Module):
    """Factors of means, `mean_t = exposure_t · exp((c_t − c̄)ᵀ b) · mean_k`; all states share b, and c̄ is the mean of c."""

    exposure: Float[np.ndarray, " steps"] | None
    covariates: Float[np.ndarray, "steps covariates"] | None  # centred
    emission: str = static()
    names: Names = static()  # labels of the steps or sites, if there are any

    def __init__(self, emission: str, exposure: ArrayLike | None, covariates: ArrayLike | None):
        self.emission = emission
        self.names, exposure, covariates = match_labels(emission, exposure=exposure, covariates=covariates)
        self.exposure = None if exposure is None else self._read_exposure(exposure)
        self.covariates = None if covariates is None else self._read_covariates(covariates)
        counts = [len(array) for array in (self.exposure, self.covariates) if array is not None]
        if len(set(counts)) > 1:
            raise ValueError(f"{emission}: exposure has {counts[0]} numbers, but covariates have {counts[1]} rows.")

    def _read_exposure(self, exposure: ArrayLike) -> np.ndarray:
        array = numbers(self.emission, "exposure", exposure)
        if array.ndim != 1 or array.dtype == bool:
            raise ValueError(
                f"{self.emission}: exposure must be one number a step or site; got {array.dtype} of shape {array.shape}."
            )
        wrong = ~(np.isfinite(array) & (array > 0))
        if wrong.any():
            raise ValueError(
                f"{self.emission}: exposure must be positive and finite; got {wrong.sum()} other values, the first "
                f"{array[wrong][0]:g} at step or site {np.flatnonzero(wrong)[0]}."
            )
        return as_stored(array)

    def _read_covariates(self, covariates: ArrayLike) -> np.ndarray:
        array = numbers(self.emission, "covariates", covariates)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2 or not np.isfinite(array).all():
            raise ValueError(
                f"{self.emission}: covariates must be finite numbers, one row a step or site; got an array of "
                f"{array.dtype}, shape {list(array.shape)}{'' if array.dtype.kind not in 'f' else ', perhaps with NaN'}."
            )
        array = np.asarray(array, np.float64)
        constant = np.flatnonzero(np.ptp(array, axis=0) == 0) if len(array) else np.arange(array.shape[1])
        if constant.size:
            raise ValueError(
                f"{self.emission}: covariates must vary; column {constant[0]} does not. The states have "
                "levels of their own: leave an intercept out."
            )
        return as_stored(array - array.mean(axis=0))

    def match_labels(self, caller: str, index: Any) -> "Regressors":
        """Put the regressors into the order of the data's labels, if both have labels.

        If there are fewer rows than data, they serve every sequence or field.
        """
        own = self.names.index
        if own is None or index is None or len(own) != len(index):
            return self
        order = places(self.emission, "exposure or covariates", own, f"x of the {caller}", index)
        if order is None:
            return self
        parts = [part for part in ("exposure", "covariates") if getattr(self, part) is not None]
        where = lambda regressors: [getattr(regressors, part) for part in parts]
        return eqx.tree_at(where, self, [as_stored(array[order]) for array in where(self)])

    def __bool__(self) -> bool:
        return self.exposure is not None or self.covariates is not None

    @property
    def free(self) -> dict[str, Constraint]:
        """Free parameters: `coefficients`, in standard deviations of their covariates."""
        if self.covariates is None:
            return {}
        scale = jnp.std(jnp.asarray(self.covariates), axis=0)
        wide = lambda value: scale if value.ndim == 1 else scale[:, None]
        return {"coefficients": Constraint(lambda v: v / wide(v), lambda b: b * wide(b))}

    @property
    def shared(self) -> frozenset[str]:
        return frozenset(self.free)

    def prior(self, channels: int) -> dict[str, Normal]:
        """Normal prior with mean zero and standard deviation `2.5 / (standard deviation of the covariate)`."""
        if self.covariates is None:
            return {}
        sd = 2.5 / self.covariates.std(axis=0)
        return {"coefficients": Normal(0.0, sd if channels == 1 else sd[:, None])}

    def prepare(self, steps: int, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Return log exposure `[steps]` and covariates `[steps, C]`, if given, repeated over sequences or fields."""
        found = {}
        for name, array in (("exposure", self.exposure), ("covariates", self.covariates)):
            if array is None:
                continue
            if not (len(array) == steps or (lengths == len(array)).all()):
                what = f"exposure has {len(array)} numbers" if name == "exposure" else f"covariates have {len(array)} rows"
                raise ValueError(f"{self.emission}: {what}, but the data have {steps} steps or sites.")
            found[name] = np.resize(np.log(array) if name == "exposure" else array, (steps, *array.shape[1:]))
        return found

    def at_risk(self, steps: int) -> Float[np.ndarray, " steps"]:
        return np.ones(steps) if self.exposure is None else np.resize(self.exposure, steps)

    @staticmethod
    def log_factor(parameters: Parameters, data: dict) -> Float[Array, "*steps channels"]:
        """Compute the logarithm of the factor of all states' means; the last axis is one if channels share it."""
        log = jnp.asarray(data["exposure"])[..., None] if "exposure" in data else jnp.zeros(1)
        if "covariates" in data:
            b = jnp.asarray(parameters["coefficients"])
            log = log + data["covariates"] @ (b[:, None] if b.ndim == 1 else b)
        return log

    def start(self, counts: np.ndarray, data: dict, observed: np.ndarray) -> dict[str, np.ndarray]:
        """Fit the coefficients of a Poisson regression without states, `[C]`, or `[C, R]` for several channels."""
        if self.covariates is None:
            return {}
        c = np.asarray(data["covariates"])[observed]
        if not len(counts):
            return {"coefficients": np.zeros((c.shape[1], *counts.shape[1:]))}
        from sklearn.linear_model import PoissonRegressor

        scale, risk = (
            np.asarray(jnp.std(jnp.asarray(self.covariates), axis=0)),
            np.exp(np.asarray(data.get("exposure", np.zeros(len(observed)))))[observed],
        )
        fitted = [
            PoissonRegressor(alpha=1e-4, max_iter=300).fit(c / scale, y / risk, sample_weight=risk / risk.mean()).coef_ / scale
            for y in counts.T
        ]
        return {"coefficients": fitted[0] if len(fitted) == 1 else np.stack(fitted, axis=1)}

    def row(self, parameters: Parameters, step: int) -> Float[np.ndarray, " channels"]:
        """Return the factor of one step, for draws."""
        data = {}
        for name, array in (("exposure", self.exposure), ("covariates", self.covariates)):
            if array is not None:
                if step >= len(array):
                    what = "is no exposure" if name == "exposure" else "are no covariates"
                    raise ValueError(f"{self.emission}: there {what} for step {step}; those of {len(array)} steps were given.")
                data[name] = np.log(array[step]) if name == "exposure" else array[step]
        return np.exp(np.asarray(self.log_factor(parameters, data)))
