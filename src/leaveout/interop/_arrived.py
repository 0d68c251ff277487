"""The fit of a host whose solver may have stopped before its minimum."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .._runtime.jax import PyTree, float64
from ..models.glm.active_coefficients import kinks
from ..objectives.objective import AbstractObjective, leaves_of
from ..optimize.fit import REFUSE, WARN, Fit, fit, standing, unsettled
from ..optimize.hessian_factor import warn

ITERATED = "raise max_iter or scale the columns"  # what its user can do


@float64
def arrived(caller: str, objective: AbstractObjective, theta: PyTree, stopped: Callable[[], bool], way: str = ITERATED) -> Fit:
    """The fit at a host's θ̂; where its solver stopped early, at the minimum to which Newton's method goes on from there, with a
    warning of how far that is.

    A host may also be far from a minimum as it was fitted on other data: `stopped` is asked only there, and says whether it
    was on these. Raises ValueError where it was not.
    """
    found, left = standing(objective, theta)
    if left <= WARN:
        warn(found.objective.parameters.warning(found.theta))
        return found
    if left > REFUSE and not stopped():
        raise ValueError(unsettled(objective, left).replace("anchor:", f"{caller}:", 1))
    ended = fit(objective, theta, num_starts=1)
    kinked = kinks(objective) is not None
    fall = left**2 / 2 if kinked else float(found.value - ended.value)
    apart = _apart(theta, ended.parameters)
    said = f"its loss would still fall by {fall:.2g}"
    warn(f"{caller}: the solver stopped before its minimum: {said}; what follows is of the minimum{apart}; {way}.")
    return noted(ended, f"the host's solver stopped before its minimum: {said}; this is of the minimum{apart}")


def _apart(theta: PyTree, there: PyTree) -> str:
    """By how much a number of the host's is off."""
    both = [np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves_of(each)]) for each in (theta, there)]
    if len(both[0]) != len(both[1]):
        return ""
    return f", from which the host's parameters are off by up to {np.abs(both[0] - both[1]).max(initial=0):.2g}"


def noted(found: Fit, remark: str) -> Fit:
    """The fit, whose results say this, where its model has remarks."""
    model: Any = found.objective
    if not remark or "remark" not in vars(model):
        return found
    model, known = copy.copy(model), copy.copy(found)
    vars(model)["remark"] = "; ".join(filter(None, (model.remark, remark)))
    vars(known)["objective"] = model
    return known


def is_repeated(again: Callable[[], Any], theta: np.ndarray) -> bool:
    """Does the host, fitted again to these data, stop where it did? Then it was fitted on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            there = np.ravel(np.asarray(again(), float))
        except (ValueError, TypeError, RuntimeError, np.linalg.LinAlgError):
            return False
    own = np.ravel(np.asarray(theta, float))
    return there.shape == own.shape and bool(np.allclose(there, own, rtol=1e-6, atol=1e-9 * np.abs(own).max(initial=0)))
