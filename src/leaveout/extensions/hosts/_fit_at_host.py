"""The fit of a host whose solver may have stopped before its minimum."""

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ... import GLM, Fit, fit
from ...developer import (
    REFUSE,
    WARN,
    AbstractObjective,
    HostErrors,
    OrthogonalGLM,
    PyTree,
    describe_distance,
    float64,
    join_remarks,
    kinks,
    leaves_of,
    standing,
    warn,
)

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
    host_fit, decrement = standing(objective, theta)
    host_fit = replace(host_fit, host_errors=errors)

    def at_minimum(model: AbstractObjective) -> Fit:
        return replace(fit(model, theta, num_starts=1), host_errors=errors)

    if decrement <= WARN:
        warn(host_fit.objective.parameters.warning(host_fit.theta))
        is_orthogonal = isinstance(host_fit.objective, OrthogonalGLM)
        if is_orthogonal and len(host_fit.quadratic.null_space) == 0:
            return at_minimum(host_fit.objective)  # as the host's digits are fewer
        return host_fit
    if decrement > REFUSE and not stopped():
        raise ValueError(
            describe_distance(objective, decrement).replace("anchor:", f"{caller}:", 1)
        )
    minimum = at_minimum(objective)
    fall = float(host_fit.value - minimum.value)
    if kinks(objective) is not None:
        fall = decrement**2 / 2
    difference = _describe_difference(theta, minimum.parameters)
    remark = f"its loss would still fall by {fall:.2g}"
    warn(
        f"{caller}: the solver stopped before its minimum: {remark}; what follows is of the minimum{difference}; {way}."
    )
    return add_remark(
        minimum,
        f"the host's solver stopped before its minimum: {remark}; this is of the minimum{difference}",
    )


def kind_of_host(
    caller: str, host, library: str, supported: Iterable[str], fitted: str = "coef_"
) -> str:
    """Return the name of a host's class; TypeError if it is none of the supported ones of a
    library, ValueError if it lacks what it has once it is `fitted`.
    """
    name = type(host).__name__
    home = type(host).__module__.partition(".")[0]
    if name not in supported or home != library:
        raise TypeError(
            f"{caller}: {home}'s {name} is not supported. Supported are {', '.join(supported)} of {library}."
        )
    if getattr(host, fitted, None) is None:
        raise ValueError(f"{caller}: this {name} is not fitted.")
    return name


def fit_at_coefficients(caller: str, objective: GLM, estimator, refit: Callable[[], Any]) -> Fit:
    """Fit at the coefficients of a fitted estimator.

    `refit` fits it anew to these data, and returns its coefficients.
    """
    coef = np.ravel(estimator.coef_).astype(float)
    if len(coef) != objective.num_features:
        raise ValueError(
            f"{caller}: the estimator has {len(coef)} coefficients, but X has {objective.num_features} columns: it was fitted "
            "on other data."
        )
    intercept = (
        {"intercept": float(np.ravel(estimator.intercept_)[0])} if estimator.fit_intercept else {}
    )
    return fit_at_host(
        caller, objective, {"coef": coef} | intercept, lambda: is_repeated(refit, coef)
    )


def _describe_difference(theta: PyTree, minimum: PyTree) -> str:
    """Describe by how much the host's parameters differ from the minimum."""
    vectors = [
        np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves_of(parameters)])
        for parameters in (theta, minimum)
    ]
    if len(vectors[0]) != len(vectors[1]):
        return ""
    return f", from which the host's parameters are off by up to {np.abs(vectors[0] - vectors[1]).max(initial=0):.2g}"


def add_remark(result: Fit, remark: str) -> Fit:
    """Add a remark to the printed results of a fit, if its model has remarks."""
    model: Any = result.objective
    if not remark or "remark" not in vars(model):
        return result
    model = copy.copy(model)
    vars(model)["remark"] = join_remarks(model.remark, remark)
    return replace(result, quadratic=replace(result.quadratic, objective=model))


def is_repeated(refit: Callable[[], Any], theta: np.ndarray) -> bool:
    """Tell whether the host, fitted again to these data, ends at the same parameters, and so was
    fitted on them.
    """
    with warnings.catch_warnings(action="ignore"):
        try:
            repeated = np.ravel(np.asarray(refit(), float))
        except (ValueError, TypeError, RuntimeError, np.linalg.LinAlgError):
            return False
    parameters = np.ravel(np.asarray(theta, float))
    return repeated.shape == parameters.shape and bool(
        np.allclose(repeated, parameters, rtol=1e-6, atol=1e-9 * np.abs(parameters).max(initial=0))
    )
