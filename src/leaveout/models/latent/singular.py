"""Variances at zero and perfect correlations: the entries of Λ that are held, and the refits in which they would leave zero.

    F(Σ) = F(ΛΛᵀ),      ∂F/∂Λ = 2GΛ,      G = ∂F/∂Σ

F does not change with the sign of a column of Λ. It is therefore even in a pivot at zero, with a minimum there if G is positive
semidefinite on the null space of Σ, and a saddle otherwise. Columns of such pivots are held at zero, so that no refit ends on a
saddle. A pivot would leave zero in a refit where G, on the effects of these pivots, has a negative eigenvalue; as GΛ = 0 at the
minimum, these effects determine the sign of G.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from .base import AbstractMixedModel
from .effects import GroupingFactor
from .grouped import split

ZERO_DEVIATION = 1e-4  # standard deviation, relative to the predictor's usual size, that counts as zero

Pivots = Bool[np.ndarray, " effects"]


def roots(model: AbstractMixedModel, theta: Any) -> list[Float[np.ndarray, "effects effects"]]:
    """Return Λ of each factor."""
    parts = split(np.asarray(theta)[None], model.data, model.factors)
    return [factor.root(free[0]) for factor, free in zip(model.factors, parts.free, strict=True)]


def _at_zero(factor: GroupingFactor, root: Float[np.ndarray, "effects effects"]) -> Pivots:
    """True for the free pivots that are at zero."""
    free = np.zeros(factor.q, bool)
    free[factor.row[factor.diagonal]] = True
    return free & (np.abs(np.diag(root)) < ZERO_DEVIATION)


def warning(model: AbstractMixedModel, theta: Any) -> str:
    """Name effects that vary so much that clusters may be separated; "" if there are none."""
    far = list[str]()
    separated_deviation = 10.0  # standard deviation in logits from which clusters look separated
    for factor, root in zip(model.factors, roots(model, theta), strict=True):
        far += [
            f"{factor.columns[i]} by {factor.name}" for i in np.flatnonzero(np.linalg.norm(root, axis=1) > separated_deviation)
        ]
    if far and model.data.response.title in ("binomial", "ordinal"):
        wide = f"Mixed: {', '.join(far)} varies by more than {separated_deviation:g} logits"
        return f"{wide}: are clusters separated? There may be no maximum."
    return ""


def drop_zero_pivots(model: AbstractMixedModel, theta: Any) -> tuple[Any, Any, str] | None:
    """Return the model without the columns of Λ whose pivots are at zero.

    None if there are none, or if F would fall as they left zero.
    """
    theta, at, kept, said = np.array(theta, np.float64), model.data.design.shape[1], list[GroupingFactor](), list[str]()
    for factor, root in zip(model.factors, roots(model, theta), strict=True):
        zero = _at_zero(factor, root)
        theta[at + np.flatnonzero(factor.diagonal & zero[factor.column])] = 0.0
        at += len(factor.row)
        free = ~zero[factor.column]
        kept.append(replace(factor, row=factor.row[free], column=factor.column[free]))
        said += _describe_pivots(factor, root, zero)
    if not said:
        return None
    simpler, found = model.with_factors(tuple(kept)), model.parameters.natural(theta)
    start = simpler.parameters.unconstrained(found)
    if leaving(simpler, start, start[None], np.ones((1, model.num_units))).any():
        return None
    what = f"{'; '.join(said)} at the maximum of the likelihood: held there, in every refit too."
    return simpler, found, f"{what} Refits that would leave it are flagged."


def _describe_pivots(factor: GroupingFactor, root: Float[np.ndarray, "effects effects"], zero: Pivots) -> list[str]:
    nothing = zero & (np.linalg.norm(root, axis=1) < ZERO_DEVIATION)
    said = [f"the variance of {factor.columns[i]} by {factor.name} is zero" for i in np.flatnonzero(nothing)]
    if (zero & ~nothing).any():
        said.append(f"the effects of {factor.name} are perfectly correlated")
    return said


def leaving(
    model: AbstractMixedModel, like: Any, thetas: Float[np.ndarray, "refits params"], weights: Float[np.ndarray, "refits units"]
) -> Bool[np.ndarray, " refits"]:
    """Tell for which refits F would fall if an entry that is held at zero left it."""
    del like
    whole, pushed = model.with_factors(model.whole), np.empty((len(thetas), 0))
    parts, missing = split(thetas, model.data, model.factors), list[Pivots]()
    pivot_difference = 1e-3  # step of pivots from zero, for the slope of F in their squares
    for full, own, free in zip(model.whole, model.factors, parts.free, strict=True):
        root = own.root(free)
        missing.append(np.isin(np.arange(full.q), np.setdiff1d(full.column, own.column)))
        root[:, missing[-1], missing[-1]] = pivot_difference
        pushed = np.concatenate([pushed, root[:, full.row, full.column]], axis=1)
    value, gradient, _ = whole.look(np.concatenate([parts.z, pushed, parts.tau], axis=1), weights)
    found = np.zeros(len(thetas), bool)
    slope_noise = 1e-10  # relative error of slopes of F
    slack = slope_noise * (1 + np.abs(value)) / (2 * pivot_difference)
    slopes = split(gradient, model.data, model.whole).free
    for full, zero, slope in zip(model.whole, missing, slopes, strict=True):
        G = full.root(slope / (2 * pivot_difference))
        G = G + np.tril(G, -1).swapaxes(1, 2)
        if zero.any():
            found |= np.linalg.eigvalsh(G[:, zero][:, :, zero])[:, 0] < -slack
    return found
