"""Names of the natural parameters, as one row of numbers. Those that a refit does not determine are
NaN; the others stay.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import linalg, ndarray

from .._runtime import RESULTS, Array, ArrayFunction, PyTree, compile_static, jax, jnp
from ..models.glm import GLM, AbsorbedGLM, OrthogonalGLM, kinks
from ..objectives import (
    GRADIENT_DIFFERENCE,
    AbstractClosedForm,
    AbstractObjective,
    Vector,
    leaves_of,
    ravel,
    unravel,
)
from ..optimize import Fit
from ..plans import Plan
from ..refit import inverse_root, refit_across, undetermined_directions
from .scoring import natural

# share of a parameter's standard deviation along an undetermined direction: a thousand times its
# rounding error
TOUCHED = 1e-6


class NamedParameters(NamedTuple):
    """Names of the natural parameters, with their values as a function of raveled θ and their
    derivatives at θ̂.

    The values are `[refits, natural]`. `slope` is None where the natural parameters are θ itself.
    """

    names: list[str]
    values_of: ArrayFunction
    slope: Float[ndarray, "natural params"] | None


def name_parameters(fit: Fit) -> NamedParameters:
    """Name the natural parameters of a fit.

    Those of a generalised linear model are θ, and need no JAX.
    """
    objective = fit.objective
    if isinstance(objective, OrthogonalGLM):
        basis = objective.basis
        return NamedParameters(objective.parameters.names(), lambda thetas: thetas @ basis.T, basis)
    if isinstance(objective, GLM | AbsorbedGLM):
        return NamedParameters(objective.parameters.names(), lambda thetas: thetas, None)

    def values_of(thetas: ndarray) -> ndarray:
        leaves = leaves_of(natural(fit, thetas))
        return np.concatenate([np.reshape(leaf, (len(thetas), -1)) for leaf in leaves], 1)

    if isinstance(objective, AbstractClosedForm):  # central differences, since `natural` is NumPy's
        steps = GRADIENT_DIFFERENCE * np.maximum(1.0, np.abs(fit.vector)) * np.eye(fit.num_params)
        slope = (values_of(fit.vector + steps) - values_of(fit.vector - steps)).T / (
            2 * np.diag(steps)
        )
    else:
        slope = np.asarray(_natural_jacobian(objective, fit.theta, jnp.asarray(fit.vector)))
    return NamedParameters(natural_names(fit), values_of, slope)


def natural_names(fit: Fit) -> list[str]:
    """Name the natural parameters by the paths of their arrays and the indices in these;
    coefficients by their features.
    """
    names: list[str] = []
    # of columns; a model of one's own may call anything so
    features = getattr(fit.objective, "names", ())
    for name, leaf in _named_arrays(fit.parameters):
        shape = np.shape(leaf)
        if name == "coef" and isinstance(features, tuple | list) and shape == (len(features),):
            names += features
        elif shape:
            names += [f"{name or 'theta'}{list(index)}" for index in np.ndindex(shape)]
        else:
            names.append(name or "theta")
    return names


class PartialRefit(NamedTuple):
    """A refit whose units leave some directions open.

    One of its minimisers, and what all of them have in common.
    """

    theta: Vector
    error: float  # Newton's last step
    free: Float[ndarray, "null params"]
    values: Float[ndarray, " natural"]  # natural parameters, NaN where they are not determined


def partial_refits(
    fit: Fit, plan: Plan, result: ndarray, parameters: NamedParameters | None = None
) -> dict[int, PartialRefit]:
    """Refit across the directions that are open in refits of the code "undetermined", by their
    numbers.
    """
    refits: dict[int, PartialRefit] = {}
    if fit.quadratic.predictors is None or fit.quadratic.factor is None or kinks(fit.objective):
        return refits
    for k in np.flatnonzero(result == RESULTS.undetermined).tolist():
        if parameters is None:
            parameters = name_parameters(fit)
        (weights,) = plan.some(np.array([k])).matrix()
        null = undetermined_directions(fit, weights)
        refitted = refit_across(fit, weights, null)
        if refitted.converged[0]:
            free = fit.quadratic.unwhiten(null)
            along, root = (
                part if parameters.slope is None else part @ parameters.slope.T
                for part in (free, inverse_root(fit))
            )
            touched = linalg.norm(along, axis=0) > TOUCHED * linalg.norm(root, axis=0)
            values = np.where(touched, np.nan, parameters.values_of(refitted.theta)[0])
            refits[k] = PartialRefit(refitted.theta[0], float(refitted.size[0]), free, values)
    return refits


def _named_arrays(parameters: PyTree) -> list[tuple[str, Any]]:
    """Arrays of a tree with their paths.

    Dicts of arrays, as models in closed form have, are read without JAX.
    """
    if isinstance(parameters, dict) and all(
        isinstance(leaf, ndarray | np.generic) for leaf in parameters.values()
    ):
        return sorted(parameters.items())
    return [
        (".".join(str(getattr(part, "key", getattr(part, "idx", part))) for part in path), leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]
    ]


@compile_static
def _natural_jacobian(objective: AbstractObjective, like: PyTree, theta: Array) -> Array:
    return jax.jacfwd(
        lambda v: ravel(jax.tree.map(jnp.asarray, objective.parameters.natural(unravel(v, like))))
    )(theta)
