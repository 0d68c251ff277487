"""Results of a fitted mixed model: variance components, coefficients, conditional modes, predictions of known and new clusters.

A mean response is averaged over the effects given θ̂, η ~ N(m, aᵀM⁻¹a). Its interval is that of the predictor, whose variance
adds the uncertainty of θ̂ to first order (Kass and Steffey 1989):

    v = aᵀM⁻¹a + dᵀH⁻¹d,      d = ∂m/∂θ.
"""

from typing import Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from ...data.arrays import pandas_of, share
from ...objectives.objective import AbstractObjective
from ..glm.rows import column, new_rows
from .base import AbstractMixedModel
from .effects import align_groupings, factor_codes, given_blocks
from .grouped import split
from .quadrature import marginal_means

TABLE_DIFFERENCE = 1e-4


def vector(model: AbstractMixedModel, fit: Any) -> np.ndarray:
    """Return θ of a fit of the model."""
    if not isinstance(getattr(fit, "objective", None), AbstractObjective):
        raise TypeError(f"Mixed: give the Fit, from lo.fit; got {type(fit).__name__}.")
    theta = np.asarray(fit.vector, np.float64)
    if theta.shape != (len(model.parameters.names()),):
        raise ValueError("Mixed: the fit is of another model: take fit.objective, of which this is a method.")
    return theta


def components(model: AbstractMixedModel, fit: Any) -> pd.DataFrame:
    """Build the table of variance components."""
    theta, rows = vector(model, fit), []
    for factor, free in zip(model.factors, split(theta[None], model.data, model.factors).free, strict=True):
        covariance = factor.covariance(free[0], model.unit)
        sd = np.sqrt(np.diag(covariance))
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = covariance / np.outer(sd, sd)
        together = factor.root(np.ones(len(factor.row))) != 0
        for i, name in enumerate(factor.columns):
            before = {factor.columns[j]: float(correlation[i, j]) for j in range(i) if together[i, j]}
            rows.append((factor.name, name, covariance[i, i], sd[i], before))
    if model.data.response.quadratic:
        scale = float(model.parameters.natural(theta)["scale"])
        rows.append(("Residual", "", scale**2, scale, {}))
    table = pd.DataFrame(rows, columns=["factor", "effect", "variance", "sd", "before"])
    named = list(dict.fromkeys(name for before in table.pop("before") for name in before))
    for name in named:
        table[f"correlation with {name}"] = [row[4].get(name, np.nan) for row in rows]
    return table


def coefficients(model: AbstractMixedModel, fit: Any) -> pd.DataFrame:
    """Build the table of coefficients."""
    theta, p = vector(model, fit), len(model.names)
    across = np.zeros((p, len(theta)))
    across[:, :p] = model.transform
    error = np.sqrt(np.sum(fit.whiten(across) ** 2, axis=1))
    estimate = model.transform @ theta[:p]
    return pd.DataFrame(
        {"estimate": estimate, "se": error, "z": estimate / error}, index=pd.Index(model.names, name="coefficient")
    )


def modes(model: AbstractMixedModel, fit: Any) -> pd.DataFrame:
    """Build the table of conditional modes."""
    theta, tables = vector(model, fit), []
    for k, factor in enumerate(model.factors):
        count = len(factor.levels)
        codes = [np.full(count, -1) for _ in model.factors]
        codes[k] = np.arange(count)
        for j, name in enumerate(factor.columns):
            designs = [np.zeros((other.q, count)) for other in model.factors]
            designs[k][j] = factor.scale[j] * model.unit
            mean, variance = model.engine.effects(theta, codes, designs)
            own = {"factor": factor.name, "level": factor.levels, "effect": name, "mode": mean, "sd": np.sqrt(variance)}
            tables.append(pd.DataFrame(own))
    return pd.concat(tables, ignore_index=True)


def predict_rows(model: AbstractMixedModel, fit: Any, data: Any, level: float, new: bool, offset: Any) -> pd.DataFrame:
    """Predict means of rows, with intervals."""
    share("predict: level", level)
    theta = vector(model, fit)
    X, designs, codes, index = _rows(model, data)
    if new:
        codes = [np.full(len(X), -1) for _ in codes]
    shift = _shift(model, data, offset, len(X))

    def at(theta: NDArray) -> tuple[NDArray, NDArray]:
        mean, variance = model.engine.effects(theta, codes, designs)
        z = theta[: len(model.names)]
        return shift / model.unit + X @ (model.transform @ z) / model.unit + mean, variance

    mean, variance = at(theta)
    steps = TABLE_DIFFERENCE * np.maximum(1.0, np.abs(theta))
    slopes = [(at(theta + one)[0] - at(theta - one)[0]) / (2 * one.sum()) for one in np.diag(steps)]
    tau, own = split(theta[None], model.data, model.factors).tau[0][:, None], model.data.response
    middle = marginal_means(own, mean, variance, tau) * model.unit
    variance = variance + np.sum(fit.whiten(np.array(slopes).T) ** 2, axis=1)
    if middle.ndim > 1:
        return pd.DataFrame(middle, index=index, columns=list(model.levels))
    reach = scipy.special.ndtri(0.5 + level / 2) * np.sqrt(variance)
    ends = [own.mean(mean + sign * reach, tau) * model.unit for sign in (-1, 1)]
    return pd.DataFrame({"mean": middle, "lower": np.minimum(*ends), "upper": np.maximum(*ends)}, index=index)


def _shift(model: AbstractMixedModel, data: Any, offset: Any, n: int) -> NDArray:
    if offset is not None:
        return column("predict", "offset", offset, n)
    if data is None:
        return model.data.offset * model.unit
    if model.data.offset.any():
        raise ValueError("predict: the model has an offset: give that of the rows, offset=.")
    return np.zeros(n)


def _rows(model: AbstractMixedModel, data: Any) -> tuple[NDArray, list[NDArray], list[NDArray], Any]:
    """Read columns of the coefficients, columns of the effects of each factor, levels (−1 if new), and labels."""
    if data is None:
        X = model.data.design @ np.linalg.inv(model.transform) * model.unit
        return X, [f.design for f in model.factors], [f.code for f in model.factors], model.labels.index
    if model.spec is not None:
        data = pandas_of("predict", "data", data)
        X, blocks = model.spec.new(data)
        names = [str(name) for name in model.spec.X.columns]
        X = X[:, [names.index(name) for name in model.names]] if model.names else np.zeros((len(data), 0))
        raw = {
            f.name: np.hstack([b for (name, _), b in zip(model.spec.effects, blocks, strict=True) if name == f.name]).T
            for f in model.factors
        }
        known = {f.name: factor_codes(data, f.name) for f in model.factors}
        index = getattr(data, "index", None)
    else:
        if not isinstance(data, tuple) or len(data) not in (2, 3):
            raise TypeError("predict: the model was made of arrays: give data=(X, groups) or (X, groups, slopes).")
        ones = model.names[:1] == ("Intercept",)
        slopes = data[2] if len(data) == 3 else None
        named, (new, slopes) = align_groupings(data[1], X=data[0], slopes=slopes)
        own = np.asarray(new_rows("predict", new, model.names[ones:], False))
        X = np.hstack([np.ones((len(own), 1)), own]) if ones else own
        blocks, known = given_blocks(named, slopes, len(X))
        known = dict(zip([f.name for f in model.factors], known.values(), strict=True))
        raw = {f.name: block.design.T for f, block in zip(model.factors, blocks, strict=True)}
        index = getattr(new, "index", None)
    designs = [raw[f.name] * f.scale[:, None] for f in model.factors]
    codes = [_match_levels(f.levels, *known[f.name]) for f in model.factors]
    return X, designs, codes, index


def _match_levels(levels: NDArray, code: NDArray, result: NDArray) -> NDArray:
    """Match the levels of new rows with the known levels; −1 if unknown."""
    return pd.Index(levels).get_indexer(pd.Index(result))[code]
