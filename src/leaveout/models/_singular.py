"""Variances at zero: what is said of them, what is held, and refits that would leave.

F does not change with the sign of a column of Λ, so that where the data put a pivot at zero F is even in it, and has a minimum
there. Entries below that pivot may turn into the columns behind, F staying as it is: that column is held at zero.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from ._effects import Factor
from ._grouped import split

if TYPE_CHECKING:
    from .mixed import Mixed

EDGE = 1e-4  # of the predictor's usual size: a standard deviation below it is at zero
FAR = 10.0  # logits, the standard deviation from which clusters look separated
NOISE = 1e-9  # nats: what F falls by less is rounding

Pivots = list[tuple[Factor, Float[np.ndarray, "effects effects"], Bool[np.ndarray, " effects"]]]


def pivots(model: "Mixed", theta: Any) -> Pivots:
    """Of each factor Λ, and which of its pivots are at zero."""
    parts = split(np.asarray(theta)[None], model.data, model.factors)
    roots = [factor.root(free[0]) for factor, free in zip(model.factors, parts.free, strict=True)]
    return [(f, root, np.abs(np.diag(root)) < EDGE) for f, root in zip(model.factors, roots, strict=True)]


def warning(model: "Mixed", theta: Any) -> str:
    """Variances at zero, perfect correlations, and variances that no data tell."""
    said, far = list[str](), list[str]()
    for factor, root, zero in pivots(model, theta):
        size = np.linalg.norm(root, axis=1)
        said += [f"the variance of {factor.columns[i]} by {factor.name} is zero" for i in np.flatnonzero(size < EDGE)]
        if (zero & (size >= EDGE)).any():
            said.append(f"the effects of {factor.name} are perfectly correlated")
        far += [f"{factor.columns[i]} by {factor.name}" for i in np.flatnonzero(size > FAR)]
    if far and model.data.response.title in ("binomial", "ordinal"):
        return f"Mixed: {', '.join(far)} varies by more than {FAR:g} logits: are clusters separated? There may be no maximum."
    if not said:
        return ""
    return f"Mixed: {'; '.join(said)} at the maximum: the fit is singular, and stands there; each refit may leave it."


def held(model: "Mixed", theta: Any) -> tuple[Any, Any, str] | None:
    """The model without the columns of Λ whose pivot is at zero while entries below are not; None where there are none."""
    below = lambda f: np.array([np.any((f.column == j) & ~f.diagonal) for j in range(f.q)])
    loose = [zero & below(factor) for factor, _, zero in pivots(model, theta)]
    if not any(part.any() for part in loose):
        return None
    kept, what = [], list[str]()
    for factor, part in zip(model.factors, loose, strict=True):
        free = ~part[factor.column]
        kept.append(replace(factor, row=factor.row[free], column=factor.column[free]))
        what += [f"{factor.columns[j]} by {factor.name}" for j in np.flatnonzero(part)]
    told = f"maximum likelihood puts what {', '.join(what)} varies by beside other effects at zero"
    return model.with_factors(tuple(kept)), model.parameters.natural(np.asarray(theta)), told


def leaving(
    model: "Mixed", like: Any, thetas: Float[np.ndarray, "refits params"], weights: Float[np.ndarray, "refits units"]
) -> Bool[np.ndarray, " refits"]:
    """Would F fall if a variance at zero left it? Where F, even in a pivot of Λ, bends down."""
    at, found = model.data.design.shape[1], np.zeros(len(thetas), bool)
    for factor, _, zero in pivots(model, like):
        for k in at + np.flatnonzero(factor.diagonal)[zero[factor.column[factor.diagonal]]]:
            here, step = thetas.copy(), np.zeros(thetas.shape[1])
            here[:, k], step[k] = 0.0, 10 * EDGE
            found |= model.look(here + step, weights)[0] < model.look(here, weights)[0] - NOISE
        at += len(factor.row)
    return found
