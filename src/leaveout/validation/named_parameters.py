"""Names of the natural parameters, as one row of numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._runtime.jax import Array, PyTree, compile_static, jax, jnp
from ..models.glm.glm import GLM
from ..objectives.closed_form import GRADIENT_DIFFERENCE, AbstractClosedForm
from ..objectives.objective import AbstractObjective, leaves_of, ravel, repeatable, unravel
from ..optimize.fit import Fit
from .scoring import natural


class NamedParameters(NamedTuple):
    """Names of the natural parameters, with their values as a function of raveled θ and their derivatives at θ̂.

    The values are `[refits, natural]`. `slope` is None where the natural parameters are θ itself.
    """

    names: list[str]
    at: Callable[[np.ndarray], np.ndarray]
    slope: Float[np.ndarray, "natural params"] | None


def name_parameters(fit: Fit) -> NamedParameters:
    """Name the natural parameters of a fit; those of a generalised linear model are θ, and need no JAX."""
    objective = fit.objective
    if isinstance(objective, GLM):
        return NamedParameters(objective.parameters.names(), lambda thetas: thetas, None)
    names = _name_numbers(jax.tree_util.tree_flatten_with_path(fit.parameters)[0], getattr(objective, "names", ()))
    return NamedParameters(names, lambda thetas: _ravel_leaves(natural(fit, thetas), len(thetas)), _slope(fit))


def _ravel_leaves(tree: PyTree, count: int) -> Float[np.ndarray, "refits natural"]:
    return np.concatenate([np.reshape(leaf, (count, -1)) for leaf in leaves_of(tree)], axis=1)


def _slope(fit: Fit) -> Float[np.ndarray, "natural params"]:
    if isinstance(fit.objective, AbstractClosedForm):  # central differences, since `natural` is NumPy's
        steps = GRADIENT_DIFFERENCE * np.maximum(1.0, np.abs(fit.vector)) * np.eye(fit.num_params)
        ends = [_ravel_leaves(natural(fit, fit.vector + sign * steps), fit.num_params) for sign in (1.0, -1.0)]
        return (ends[0] - ends[1]).T / (2 * np.diag(steps))
    return np.asarray(_natural_jacobian(repeatable(fit.objective), fit.theta, jnp.asarray(fit.vector)))


@compile_static
def _natural_jacobian(objective: AbstractObjective, like: PyTree, theta: Array) -> Array:
    return jax.jacfwd(lambda v: ravel(jax.tree.map(jnp.asarray, objective.parameters.natural(unravel(v, like)))))(theta)


def _name_numbers(leaves: list[tuple[Any, Any]], features: tuple[str, ...]) -> list[str]:
    """Name every number of a tree by the path of its array and its index; coefficients take the names of their features."""
    found: list[str] = []
    for path, leaf in leaves:
        name, shape = ".".join(str(getattr(part, "key", getattr(part, "idx", part))) for part in path), np.shape(leaf)
        if name == "coef" and shape == (len(features),):
            found += features
        else:
            found += [name + (f"[{', '.join(map(str, at))}]" if shape else "") for at in np.ndindex(shape)]
    return found
