"""Latent chain of a hidden Markov model: initial distribution and transition matrix, free or fixed, and their prior."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar
from numpy.typing import ArrayLike

from ..._runtime.jax import Module, PyTree, static
from ...inference.chain import has_stationary, stationary
from ..emissions._base import SIMPLEX
from .hidden import entries


class Dirichlet(Module):
    """Dirichlet priors of the initial distribution and of every row of the transition matrix, for `lo.HMM`.

    The default concentration of two is one pseudo-transition of each kind (Laplace's rule).

    Parameters
    ----------
    initial : float or array, shape (states,), default: 2.0
        Concentrations of the initial distribution.
    transition : float or array, shape (states, states), default: 2.0
        Concentrations of the rows of the transition matrix.

    See Also
    --------
    HMM

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.models.Dirichlet(transition=1.5).initial
    2.0
    """

    initial: ArrayLike = 2.0
    transition: ArrayLike = 2.0


class States(Module):
    """Initial distribution and transitions of K states.

    `θ["initial"]` `[K − 1]` and `θ["transition"]` `[K, K − 1]` are log-ratios against the last state. If some probabilities are
    held at zero, they are one vector of log-ratios against the last free state of each row.
    """

    initial: Float[np.ndarray, " states"] | None  # held fixed
    transition: Float[np.ndarray, "states states"] | None
    prior: Dirichlet | None
    edge: dict[str, Bool[np.ndarray, "..."]] | None  # probabilities held at zero because the fit put them there
    number: int = static()
    stationary: bool = static()
    masks: tuple[Any, ...] = static()  # free probabilities by name, if others are zero

    def __init__(self, number: int, initial: ArrayLike, transition: ArrayLike, prior: object):
        self.number, self.edge = number, None
        self.stationary = isinstance(initial, str) and initial == "stationary"
        self.initial, first = _read_distribution("initial", initial, (number,), ("free", "stationary"))
        self.transition, moves = _read_distribution("transition", transition, (number, number), ("free",))
        if self.stationary and self.transition is not None and not has_stationary(self.transition):
            raise ValueError(
                'HMM: initial="stationary" needs a transition matrix all of whose states lead to the first, in the end; got '
                f"{self.transition.tolist()}. Give the initial distribution as an array."
            )
        masks = (("initial", first), ("transition", moves))
        self.masks = tuple((name, (free.shape, tuple(free.ravel().tolist()))) for name, free in masks if free is not None)
        if not (prior is None or isinstance(prior, Dirichlet) or (isinstance(prior, str) and prior == "default")):
            raise ValueError(f"HMM: prior must be 'default', None or lo.models.Dirichlet(...); got {prior!r}.")
        self.prior = None if prior is None else _concentrations(Dirichlet() if isinstance(prior, str) else prior, number)

    @property
    def free(self) -> dict[str, tuple[int, ...]]:
        """Parts of θ of the latent chain, with their natural shapes."""
        K = self.number
        free: dict[str, tuple[int, ...]] = {}
        if K > 1 and self.initial is None and not self.stationary:
            free["initial"] = (K,)
        if K > 1 and self.transition is None:
            free["transition"] = (K, K)
        return free

    @property
    def support(self) -> dict[str, Bool[np.ndarray, "*rows states"]]:
        """Masks of free probabilities, if others are held at zero."""
        return {name: np.array(free).reshape(shape) for name, (shape, free) in self.masks}

    @property
    def zeros(self) -> bool:
        """Whether some probability is held at zero."""
        held = [array for array in (self.initial, self.transition) if array is not None]
        return bool(self.masks) or any(bool((array == 0).any()) for array in held)

    @property
    def exchangeable(self) -> bool:
        """Whether the model is the same for any order of the states."""
        told: list[ArrayLike | None] = [self.initial, self.transition, *self.support.values()]
        if self.prior is not None:
            told += [self.prior.initial, self.prior.transition]
        return all(array is None or _is_symmetric(np.asarray(array, np.float64)) for array in told)

    def logs(self, theta: PyTree) -> tuple[Float[Array, " states"], Float[Array, "states states"]]:
        """Compute the logarithms of the initial distribution and of the transition matrix."""
        K = self.number
        if "transition" in self.free:
            transition = self._logs("transition", theta)
        else:
            transition = jnp.log(jnp.ones((1, 1)) if self.transition is None else self.transition)
        if "initial" in self.free:
            return self._logs("initial", theta), transition
        if self.stationary and K > 1:
            return jnp.log(stationary(jnp.exp(transition))), transition
        return jnp.log(jnp.ones(1) if self.initial is None else self.initial), transition

    def _logs(self, name: str, theta: PyTree) -> Array:
        if name not in self.support:
            return _log_simplex(theta[name])
        free = self.support[name]
        last = _last(free)
        logits = jnp.where(last, 0.0, -jnp.inf).at[np.nonzero(free & ~last)].set(theta[name])
        return jax.nn.log_softmax(logits, axis=-1)

    def to_unconstrained(self, name: str, value: np.ndarray) -> np.ndarray:
        """Compute the part of θ of a natural parameter."""
        if name not in self.support:
            return np.asarray(SIMPLEX.unconstrained(value))
        free = self.support[name]
        last = _last(free)
        logs = np.log(np.where(free, value, 1.0))
        return (logs - np.sum(np.where(last, logs, 0.0), -1, keepdims=True))[free & ~last]

    def names(self, name: str) -> list[str]:
        """Name the entries of a part of θ."""
        free = self.support.get(name, np.ones(self.free[name], bool))
        return entries(name, free & ~_last(free))

    def log_prior(self, theta: PyTree) -> Scalar:
        total = jnp.zeros(())
        if self.prior is not None:
            for name, log in zip(("initial", "transition"), self.logs(theta), strict=True):
                if name in self.free:
                    log = jnp.where(self.support[name], log, 0.0) if name in self.support else log
                    total = total + jnp.sum((getattr(self.prior, name) - 1) * log)
        return total

    def start(self, seed: int) -> dict[str, np.ndarray]:
        """Return natural parameters to start a fit from, with persistent states."""
        K, rng = self.number, np.random.default_rng(seed)
        stay = rng.uniform(0.6, 0.95)
        moves = (1 - stay) * rng.dirichlet(np.full(K, 5.0), K) + stay * np.eye(K)
        return {"initial": np.full(K, 1 / K), "transition": moves}

    @property
    def zero_note(self) -> str:
        """Count of the probabilities held at zero, as text."""
        counts = [f"{np.sum(~free)} {name}" for name, free in self.support.items()]
        return f"; {' and '.join(counts)} probabilities held at zero" if counts else ""

    @property
    def note(self) -> str:
        """The prior, in words."""
        assert self.prior is not None
        words = {"initial": "initial", "transition": "transition rows"}
        return "; ".join(f"{words[name]} ~ Dirichlet({_short(getattr(self.prior, name))})" for name in self.free)


def _log_simplex(ratios: Array) -> Array:
    return jax.nn.log_softmax(jnp.concatenate([ratios, jnp.zeros((*ratios.shape[:-1], 1))], -1), axis=-1)


def _last(free: Bool[np.ndarray, "*rows states"]) -> Bool[np.ndarray, "*rows states"]:
    """Find the last free entry of each row."""
    return free & (np.cumsum(free[..., ::-1], -1)[..., ::-1] == 1)


def _read_distribution(
    name: str, value: ArrayLike, shape: tuple[int, ...], words: tuple[str, ...]
) -> tuple[np.ndarray | None, Bool[np.ndarray, "*rows states"] | None]:
    """Read a distribution.

    Returns its values if it is held fixed as a whole; for an array of NaN (free) and zeros, returns its free entries.
    """
    if isinstance(value, str):
        if value not in words:
            raise ValueError(f"HMM: {name} must be {' or '.join(map(repr, words))} or an array; got {value!r}.")
        return None, None
    array = np.asarray(value, np.float64)
    free = np.isnan(array)
    if array.shape == shape and free.any(-1).all() and (array[~free] == 0).all():
        return None, None if free.all() else free
    if array.shape != shape or not (array >= 0).all() or not np.allclose(array.sum(-1), 1, atol=1e-8):
        rows = " in each row" if len(shape) > 1 else ""
        raise ValueError(
            f"HMM: {name} must be probabilities {list(shape)} that sum to one{rows}, or NaN where free and zero elsewhere; "
            f"got {array.tolist()}."
        )
    return array / array.sum(-1, keepdims=True), None


def _concentrations(prior: Dirichlet, K: int) -> Dirichlet:
    def checked(name, shape):
        array = np.asarray(getattr(prior, name), np.float64)
        if array.shape not in ((), shape) or not (np.isfinite(array) & (array >= 1)).all():
            raise ValueError(f"HMM: Dirichlet {name} must be a number or {list(shape)}, 1 or more; got {array.tolist()}.")
        return np.array(np.broadcast_to(array, shape))

    return Dirichlet(checked("initial", (K,)), checked("transition", (K, K)))


def _is_symmetric(array: np.ndarray) -> bool:
    """Tell whether no permutation of the states changes an array."""
    if array.ndim == 1:
        return bool(np.ptp(array) == 0)
    off = array[~np.eye(len(array), dtype=bool)]
    return bool(np.ptp(off) == 0 and np.ptp(np.diag(array)) == 0) if off.size else True


def _short(concentration: np.ndarray) -> str:
    return f"{concentration.flat[0]:g}" if np.ptp(concentration) == 0 else str(np.asarray(concentration).tolist())
