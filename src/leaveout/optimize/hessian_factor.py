"""Cholesky factor of H at θ̂, or an error that names the parameters which make H indefinite."""

import numpy as np
from numpy import linalg

from .._runtime import NumpyArray, PyTree, kind_of
from ..linalg import Curvature
from ..objectives import AbstractLinearPredictor, AbstractObjective, Function, as_stored
from .hessian_products import Scaling, least_curvature, scaling, whitened_null_space
from .newton import LARGE_NUM_PARAMETERS, Flat


class IndefiniteHessianError(ValueError):
    """Raised if the curvature at θ̂ is not positive definite.

    θ̂ is a saddle, or the data do not determine every parameter.
    """


def cholesky(
    hessian: NumpyArray, objective: AbstractObjective, theta: PyTree, caller: str
) -> NumpyArray:
    """Factor H. Its definiteness is judged with the diagonal scaled to one, so that units of
    measurement do not matter.
    """
    curvature = Curvature.of(hessian, 1e-13 if len(hessian) > LARGE_NUM_PARAMETERS else 1e-9)
    if curvature.definite:
        return curvature.factor
    diagonal = np.diag(hessian)
    scale = np.sqrt(diagonal if (diagonal > 0).all() else np.ones(len(hessian)))
    values, vectors = linalg.eigh(hessian / np.multiply.outer(scale, scale))
    curvature = Curvature.of(hessian, 0.0)
    if curvature.definite and values[0] > 1e-13 * len(hessian):
        return curvature.factor
    remedy = ""
    if caller == "anchor" and not isinstance(objective, AbstractLinearPredictor):
        shift = -linalg.eigvalsh(hessian)[0]
        remedy = f" A damping= larger by {shift:.3g} makes the matrix of the steps definite."
    raise indefinite(objective, theta, caller, float(values[0]), vectors[:, 0], remedy)


def indefinite(
    objective: AbstractObjective,
    theta: PyTree,
    caller: str,
    least: float,
    vector: NumpyArray,
    remedy: str = "",
) -> IndefiniteHessianError:
    names = objective.parameters.names()
    if len(names) != len(vector):
        names = [f"parameter {i}" for i in range(len(vector))]
    dominant = ", ".join(
        f"{names[i]} ({vector[i]:+.2f})"
        for i in np.argsort(-np.abs(vector))[:3]
        if abs(vector[i]) > 0.05
    )
    message = (
        f"{caller}: the Hessian of {kind_of(objective)} at theta is not positive definite: its smallest eigenvalue "
        f"(the diagonal scaled to about one) is {least:.2g}, along {dominant}. Constant or collinear columns and separated "
        "classes do this; so does a saddle. Drop a column, add a penalty (a prior), fit longer, or start elsewhere."
        f"{remedy}"
    )
    return IndefiniteHessianError(
        f"{message} {far_out(objective) or objective.parameters.warning(theta)}".rstrip()
    )


def far_out(objective: AbstractObjective) -> str:
    """Sentence that names columns whose mean is so large beside their spread that float64 takes
    them for a second intercept.
    """
    x = getattr(objective, "design", None)
    names = getattr(objective, "names", ())
    if not (getattr(objective, "intercept", False) and isinstance(x, NumpyArray)):
        return ""
    x = x[:, : len(names)]
    # spread of a column, relative to its mean, that float64 hardly tells from an intercept
    constant_column_spread = 3e-6
    columns = np.flatnonzero(
        (np.ptp(x, 0) > 0) & (np.std(x, 0) < constant_column_spread * np.abs(np.mean(x, 0)))
    )
    if not columns.size:
        return ""
    listed = ", ".join([*(names[j] for j in columns[:3]), *(["…"] if len(columns) > 3 else [])])
    return (
        f"Of {listed} the mean is so large beside the spread that in float64 they are nearly collinear with the intercept: "
        "centre them, X - X.mean(axis=0)."
    )


def check_finite(
    objective: AbstractObjective, theta: PyTree, caller: str, *parts: NumpyArray | float
) -> None:
    """Raise ValueError if F or its derivatives are not finite, RuntimeError if θ ran to a limit
    that is not a minimiser.
    """
    if limit := objective.parameters.limit(theta):
        raise RuntimeError(f"{caller}: {limit}")
    if not all(np.isfinite(part).all() for part in parts):
        raise ValueError(
            f"{caller}: the loss of {kind_of(objective)} (F = {float(parts[0]):.4g}), its gradient or its Hessian is not "
            f"finite at theta. {far_out(objective) or 'Give another start, fit(..., theta0=).'}"
        )


def coordinates(
    objective: AbstractObjective, F: Function, theta: NumpyArray, caller: str
) -> tuple[Scaling, Flat]:
    """Return coordinates in which an H that is not formed is about the identity, and the flat
    directions.
    """
    whitener = scaling(objective, F, theta)
    null_space = as_stored(whitened_null_space(objective, F.to_tree(theta), whitener))
    if not objective.convex:
        least, vector = least_curvature(F, theta, whitener, null_space)
        if least <= 0:
            direction = whitener.unwhiten(vector)
            raise indefinite(
                objective, F.to_tree(theta), caller, least, direction / linalg.norm(direction)
            )
    return whitener, null_space
