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
from jaxtyping import Array, Float, PyTree, Scalar

from .._objective import ravel, unravel
from .clique import pair_marginals


def climb(field: Any, parameters: dict[str, Any], num_steps: int, tol: float = 0.0) -> tuple[dict[str, np.ndarray], list[float]]:
    """Natural parameters after the steps, and F before each of them and at the end."""
    theta = field.unconstrained(parameters)
    values = []
    for step in range(num_steps + 1):
        values.append(float(_loss(field, theta)))
        if step == num_steps or (step and values[-2] - values[-1] < tol):
            break
        states, agreement = _expected(field, theta)
        found = scipy.optimize.minimize(
            lambda v, q, a: [np.asarray(part) for part in _minus_expected(field, unravel(jnp.asarray(v), theta), q, a)],
            np.asarray(ravel(theta)),
            args=(states, agreement),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-7},
        )
        theta = jax.tree.map(np.asarray, unravel(jnp.asarray(found.x), theta))
    return jax.tree.map(np.asarray, field.natural(theta)), values


@eqx.filter_jit
def _loss(field: Any, theta: PyTree) -> Scalar:
    return field.loss(theta, jnp.ones(field.num_units))


@eqx.filter_jit
def _expected(field: Any, theta: PyTree) -> tuple[Float[Array, "fields sites states"], Float[Array, " edges"]]:
    """State probabilities where observed, and the expected number of fields in which the ends of an edge agree."""
    seen = field._seen(jnp.ones(field.dense.size), field._densities(theta))
    states, pairs = pair_marginals(seen, field._coupled(theta), field.tree)
    return states * field.dense[..., None], jnp.trace(pairs, axis1=-2, axis2=-1).sum(0)


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
