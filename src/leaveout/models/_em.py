"""Expectation–maximisation of a field, with exact expectations.

    E   q = p(z | x; θ) by passes
    M   argmax_θ Σ_s Σ_k q_s(k) log e_s(k; θ) + Σ_{(s,t)} β_st q(z_s = z_t) − fields · log Z(β) + log p(θ)

The maximum is found by BFGS: no sum over configurations enters it but that of Z(β), where β is learned.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, PyTree, Scalar

from .._objective import ravel, unravel
from . import _field

PRECISE = {"gtol": 1e-7}


def climb(
    field: Any, parameters: dict[str, Any], num_steps: int, tol: float = 0.0
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Natural parameters after the steps, and F before each of them and at the end."""
    theta = field.parameters.unconstrained(parameters)
    values = []
    for step in range(num_steps + 1):
        values.append(float(_loss(field, theta)))
        if step == num_steps or (step and values[-2] - values[-1] < tol):
            break
        states, agreement = _field.expected(field, theta)
        states = states * field.dense[..., None]
        start = np.asarray(ravel(theta))
        found = scipy.optimize.minimize(_maximand, start, (field, theta, states, agreement), "BFGS", True, options=PRECISE)
        theta = jax.tree.map(np.asarray, unravel(jnp.asarray(found.x), theta))
    return jax.tree.map(np.asarray, field.parameters.natural(theta)), values


@eqx.filter_jit
def _loss(field: Any, theta: PyTree) -> Scalar:
    return field.loss(theta, jnp.ones(field.num_units))


def _maximand(vector: np.ndarray, field: Any, like: PyTree, states: Array, agreement: Array) -> list[np.ndarray]:
    return [np.asarray(part) for part in _minus_expected(field, unravel(jnp.asarray(vector), like), states, agreement)]


@eqx.filter_jit
def _minus_expected(field: Any, theta: PyTree, states: Array, agreement: Array) -> tuple[Scalar, Array]:
    def value(theta):
        total = jnp.sum(states * jnp.where(states > 0, field._densities(theta), 0.0)) + field._log_prior(theta)
        if field.learned:
            pairs = field._coupled(theta)
            total = total + agreement @ pairs[:, 0, 0] - len(field.x) * field._log_prior_partition(pairs)
        return -total

    result, gradient = jax.value_and_grad(value)(theta)
    return result, ravel(gradient)
