"""The fit of a host whose solver may have stopped before its minimum."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .._runtime.conventions import warn
from .._runtime.jax import PyTree, float64
from ..models.glm.active_coefficients import kinks
from ..models.glm.glm import GLM
from ..models.glm.orthogonal import OrthogonalGLM
from ..objectives.objective import AbstractObjective, leaves_of
from ..optimize.fit import REFUSE, WARN, Fit, HostErrors, describe_distance, fit, standing

ITERATION_ADVICE = "raise max_iter or scale the columns"  # advice to the user


@float64
def fit_at_host(
    caller: str,
    objective: AbstractObjective,
    theta: PyTree,
    stopped: Callable[[], bool],
    way: str = ITERATION_ADVICE,
    errors: HostErrors | None = None,
) -> Fit:
    """Fit at a host's θ̂ or, if its solver stopped early, at the minimum that Newton's method
    reaches from there.

    A host may also be far from a minimum because it was fitted on other data. `stopped` is called
    only then, and returns whether the host's solver stopped early on these data. Raises ValueError
    if it did not. `errors` are the standard errors that the host prints.
    """
    found, left = standing(objective, theta)
    found = replace(found, host_errors=errors)

    def at_minimum(model: AbstractObjective) -> Fit:
        return replace(fit(model, theta, num_starts=1), host_errors=errors)

    if left <= WARN:
        warn(found.objective.parameters.warning(found.theta))
        is_minimum = not (isinstance(found.objective, OrthogonalGLM) and len(found.null_space) == 0)
        # as the host's digits are fewer
        return found if is_minimum else at_minimum(found.objective)
    if left > REFUSE and not stopped():
        raise ValueError(describe_distance(objective, left).replace("anchor:", f"{caller}:", 1))
    ended = at_minimum(objective)
    kinked = kinks(objective) is not None
    fall = left**2 / 2 if kinked else float(found.value - ended.value)
    apart = _apart(theta, ended.parameters)
    said = f"its loss would still fall by {fall:.2g}"
    warn(
        f"{caller}: the solver stopped before its minimum: {said}; what follows is of the minimum{apart}; {way}."
    )
    return add_remark(
        ended,
        f"the host's solver stopped before its minimum: {said}; this is of the minimum{apart}",
    )


def fit_at_coefficients(
    caller: str, objective: GLM, estimator: Any, again: Callable[[], Any]
) -> Fit:
    """Fit at the coefficients of a fitted estimator.

    `again` fits it anew to these data, and returns its coefficients.
    """
    coef = np.ravel(estimator.coef_).astype(np.float64)
    if len(coef) != objective.num_features:
        raise ValueError(
            f"{caller}: the estimator has {len(coef)} coefficients, but X has {objective.num_features} columns: it was fitted "
            "on other data."
        )
    intercept = (
        {"intercept": float(np.ravel(estimator.intercept_)[0])} if estimator.fit_intercept else {}
    )
    return fit_at_host(
        caller, objective, {"coef": coef} | intercept, lambda: is_repeated(again, coef)
    )


def _apart(theta: PyTree, there: PyTree) -> str:
    """Describe by how much the host's parameters differ from the minimum."""
    both = [
        np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves_of(each)])
        for each in (theta, there)
    ]
    if len(both[0]) != len(both[1]):
        return ""
    return f", from which the host's parameters are off by up to {np.abs(both[0] - both[1]).max(initial=0):.2g}"


def add_remark(result: Fit, remark: str) -> Fit:
    """Add a remark to the printed results of a fit, if its model has remarks."""
    model: Any = result.objective
    if not remark or "remark" not in vars(model):
        return result
    model = copy.copy(model)
    known = copy.copy(result)
    vars(model)["remark"] = "; ".join(filter(None, (model.remark, remark)))
    vars(known)["objective"] = model
    return known


def is_repeated(again: Callable[[], Any], theta: np.ndarray) -> bool:
    """Tell whether the host, fitted again to these data, ends at the same parameters, and so was
    fitted on them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            there = np.ravel(np.asarray(again(), float))
        except (ValueError, TypeError, RuntimeError, np.linalg.LinAlgError):
            return False
    own = np.ravel(np.asarray(theta, float))
    return there.shape == own.shape and bool(
        np.allclose(there, own, rtol=1e-6, atol=1e-9 * np.abs(own).max(initial=0))
    )
