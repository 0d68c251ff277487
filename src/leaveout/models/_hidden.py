"""What models of hidden states share: an emission's parameters beside those of the states' own distribution."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .._objective import AbstractObjective, float64
from .emissions._base import REAL, SIMPLEX, AbstractEmission, Constraint

Shape = tuple[int, ...]
KINDS = ("response", "state")  # of predictions
LATENT = {"initial": SIMPLEX, "transition": SIMPLEX, "coupling": REAL}  # where parameters of the states' distribution live


class AbstractHiddenStates(AbstractObjective):
    """An objective whose units are seen through emissions of states that are not."""

    dense: eqx.AbstractVar[Bool[np.ndarray, "..."]]  # is there an observation?
    emission: eqx.AbstractVar[AbstractEmission]
    joint: eqx.AbstractVar[bool]
    shapes: eqx.AbstractVar[tuple]  # of the emission's free parameters
    latent: ClassVar[tuple[str, ...]]  # natural parameters of the states' distribution

    @property
    @abc.abstractmethod
    def latent_shapes(self) -> dict[str, Shape]:
        """Those of them that are free."""

    @abc.abstractmethod
    def latent_unconstrained(self, name: str, value: Array) -> Array:
        """The part of θ that stands for one of them."""

    @abc.abstractmethod
    def log_likelihood(self, parameters: Any) -> float:
        """`log p(x; θ)`, of a `Fit` or its natural parameters, without the prior."""

    def latent_names(self, name: str) -> list[str]:
        """What the entries of that part are called."""
        return entries(name, np.ones(self.latent_shapes[name], bool))

    def emitted(self, theta: PyTree) -> dict[str, Array]:
        """The emission's natural parameters, free and fixed."""
        own = {name: constraint.natural(jnp.asarray(theta[name])) for name, constraint in self.emission.free.items()}
        return {**own, **{name: jnp.asarray(value) for name, value in self.emission.fixed.items()}}

    @float64
    def _unconstrained(self, parameters):
        parameters, model = getattr(parameters, "parameters", parameters), type(self).__name__
        shapes = {**self.latent_shapes, **dict(self.shapes)}
        known = {*self.latent, *shapes, *self.emission.fixed}
        if not isinstance(parameters, dict) or set(shapes) - set(parameters) or set(parameters) - known:
            got = sorted(parameters) if isinstance(parameters, dict) else type(parameters).__name__
            raise ValueError(f"{model}: parameters are {sorted(shapes)}; got {got}.")
        theta = {}
        for name, shape in shapes.items():
            value = np.asarray(parameters[name], float)
            if value.shape != shape:
                raise ValueError(f"{model}: {name} must have shape {list(shape)}; got {list(value.shape)}.")
            own = self.emission.free.get(name)
            constraint = LATENT[name] if own is None else own
            with np.errstate(divide="ignore", invalid="ignore"):  # of zeros and the like, infinite
                found = np.asarray(self.latent_unconstrained(name, value) if own is None else own.unconstrained(value))
                at = _outside(value, found, constraint)
            if at is not None:
                got = f"{name}{at or ''} = {value[tuple(at)].tolist()}"
                raise ValueError(f"{model}: {name} must be {constraint.domain}; got {got}.")
            theta[name] = found
        return theta

    def _names(self) -> list[str]:
        latent = {name: self.latent_names(name) for name in self.latent_shapes}
        own = {name: entries(name, self.emission.free[name].entries(shape)) for name, shape in self.shapes}
        return [entry for _, entries in sorted({**latent, **own}.items()) for entry in entries]

    @property
    def pointwise(self):
        return not self.joint

    def aic(self, parameters: Any) -> float:
        """`2 D − 2 log p(x; θ)`."""
        return 2 * len(self._names()) - 2 * self.log_likelihood(parameters)

    def bic(self, parameters: Any) -> float:
        """`D log(number of observations) − 2 log p(x; θ)`."""
        return len(self._names()) * float(np.log(self.dense.sum())) - 2 * self.log_likelihood(parameters)


def _outside(value: np.ndarray, found: np.ndarray, constraint: Constraint) -> list[int] | None:
    """The first entry, or row, or matrix of a natural parameter that is not in its domain, or for which θ has no number."""
    illegal = np.argwhere(np.logical_not(constraint.legal(value))).tolist()
    if illegal:
        return illegal[0]
    if found.size == value.size:
        return next(iter(np.argwhere(np.isnan(found)).tolist()), None)
    lost = np.argwhere(~(found < np.inf)).tolist()  # a matrix not positive definite
    return lost[0][:-1] if lost else None


def entries(name: str, which: Bool[np.ndarray, "..."]) -> list[str]:
    """What the entries of a parameter that `which` says are called."""
    return [name + (str(at) if at else "") for at in np.argwhere(which).tolist()]


def times(weights: Array, logs: Array) -> Array:
    """`w log p`, zero where both are: a zero probability to the power of zero is one."""
    return weights * jnp.where((weights == 0) & ~jnp.isfinite(logs), 0.0, logs)


def mixture(states: Float[Array, "units states"], densities: Float[Array, "units states"]) -> Float[Array, " units"]:
    """`log Σ_k p_k e_k`."""
    top = jax.lax.stop_gradient(densities.max(-1))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(jnp.sum(states * jnp.exp(densities - top[:, None]), -1)) + top
