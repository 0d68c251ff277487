"""A posterior that was sampled: its draws, and its density as the objective F of the library.

    p(θ | y) ∝ exp(−F(θ, 1)),      F(θ, w) = −Σ_n w_n log p(y_n | θ) − log p(θ)

θ is unconstrained, so the density of constrained parameters is multiplied by the Jacobian of their transforms
(`coordinates`). Draws and F must belong together; two identities of every posterior show whether they do,

    E[∂F/∂θ_j] = 0,      E[(θ_j − E θ_j) ∂F/∂θ_j] = 1.
"""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from .._runtime.conventions import conventional, warn
from .._runtime.jax import Arrays, PyTree, call_traced, compile_static, float64, jax, jnp
from .._runtime.results import RESULTS, PrintedResult
from ..data.arrays import codes
from ..models.glm.losses import Squared
from ..objectives.batch_functions import LinearBatch, derive_batch, whole
from ..objectives.closed_form import AbstractClosedForm
from ..objectives.objective import (
    LOG_DENSITY,
    LOG_LIKELIHOOD,
    LOG_PROBABILITY,
    AbstractObjective,
    display_name,
    map_arrays,
    padded_weights,
    ravel,
    repeatable,
    unflatten,
    unravel,
)
from ..optimize.fit import Fit, fit as minimise
from ..optimize.hessian_factor import IndefiniteHessianError
from ..plans.plan import CAPACITY
from .coordinates import DrawCoordinates, read_draws
from .responses import DrawResponses, read_by_functions, responses_of
from .sampled import Conditional, Integrated, Sampled

CHECKED_DRAWS = 1000  # draws, evenly spaced, at which draws and density are compared
# error of an identity that warns: so many standard errors, and so large a share of its size for draws of the density
SURE, LARGE = 6.0, 0.3


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(PrintedResult):
    """A posterior by its draws and its density; `lo.from_posterior` returns it.

    Attributes
    ----------
    objective : AbstractObjective
        F(θ, w), the negative logarithm of the unnormalised density when units weigh w.
    draws : array of float, shape (draws, params)
        Unconstrained draws, those of one chain after those of another.
    chains : int
        Number of chains.
    like : pytree of arrays
        Shape of θ.
    unconstrain : callable
        Maps arrays of draws by name, as the caller has them, to unconstrained draws.
    named : callable
        Maps unconstrained draws to parameters by name, as the caller has them.
    names : list of str
        Names of the coordinates of θ.
    known_fit : Fit or None
        The mode, if the caller gave a fit.
    note : str
        What is printed beside it.
    score : str
        Name of the losses of units.
    constant : float
        What is added to the loss of a unit, so that it is a −log density.
    response : array of float, shape (units,), or None
        Response of each unit, if it is known which part of the data this is.
    simulate : callable or None
        Draws responses, where the model says how.
    constrain : callable or None
        Maps a key and one unconstrained draw to the parameters that the caller's functions read, in JAX; effects that are
        integrated out are drawn.

    See Also
    --------
    from_posterior : Make one.
    elpd : Leave units out of it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import leaveout as lo
    >>> y = np.array([0.1, -0.4, 1.2, 0.7])
    >>> draws = 0.32 + 0.447 * np.random.default_rng(0).standard_normal((2000, 1))
    >>> posterior = lo.from_posterior(draws, lambda theta, y: 0.5 * (y - theta[0]) ** 2 + 0.919, y,
    ...                               log_prior=lambda theta: -0.5 * theta[0] ** 2)
    >>> posterior.draws.shape, posterior.objective.num_units
    ((2000, 1), 4)
    """

    objective: AbstractObjective
    draws: Float[np.ndarray, "draws params"]
    chains: int
    like: Any
    unconstrain: Callable[[dict[str, np.ndarray]], np.ndarray]
    named: Callable[[np.ndarray], dict[str, np.ndarray]]
    names: list[str]
    known_fit: Fit | None = None
    note: str = ""
    score: str = LOG_LIKELIHOOD
    constant: float = 0.0
    response: np.ndarray | None = None
    simulate: DrawResponses | None = None
    constrain: Callable[[Any, Any], Any] | None = None

    @functools.cached_property
    def mode(self) -> Fit | None:
        """The fit at the mode nearest to the mean of the draws; None if the density has none, as in funnels."""
        if self.known_fit is not None:
            return self.known_fit
        start = unflatten(self.draws.mean(0), self.like)
        natural = map_arrays(np.asarray, self.objective.parameters.natural(start))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a mode that is doubtful is not used
                found = minimise(self.objective, natural, num_starts=1)
        except (RuntimeError, IndefiniteHessianError, ValueError):
            return None
        fits = found.objective.num_units == self.objective.num_units and found.num_params == self.draws.shape[1]
        return found if fits and found.factor is not None and int(found.result) == RESULTS.successful else None

    @functools.cached_property
    def value(self) -> Float[np.ndarray, " draws"]:
        """F(θ, 1) at every draw."""
        return self.values(self.draws, np.ones(self.objective.num_units))

    @functools.cached_property
    def efficiency(self) -> float:
        """Effective over actual number of draws, of the mean of a parameter that mixes as most do; one at most."""
        means = batch_means(self.draws, self.chains)
        batched = means.var(0, ddof=1) / len(means)
        ratio = self.draws.var(0) / len(self.draws) / np.where(batched > 0, batched, 1.0)
        return float(np.clip(np.median(ratio), 0.01, 1.0))  # below a hundredth the tail of weights no longer follows it

    @functools.cached_property
    def _predictors(self) -> Any:
        return self.objective.predictors

    @float64
    def values(self, theta: Float[np.ndarray, "draws params"], weights: Float[np.ndarray, " units"]) -> np.ndarray:
        """Evaluate F(·, w) at many θ.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit.

        Returns
        -------
        array of float, shape (places,)
            F; infinite where it has no value.
        """
        if self._predictors is not None or isinstance(self.objective, AbstractClosedForm):
            return self.looks(theta, weights)[0]
        found = repeatable(self.objective)
        size = max(1, CAPACITY // (4 * found.num_units))  # a quarter of a batch, as densities have several temporaries
        out = np.asarray(_values(found, self.like, theta, padded_weights(found, weights), min(size, len(theta))))
        return np.where(np.isnan(out), np.inf, out)

    @float64
    def looks(self, theta: Float[np.ndarray, "draws params"], weights: Float[np.ndarray, " units"]) -> tuple[Any, Any]:
        """Evaluate F(·, w) and its gradient at many θ.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit.

        Returns
        -------
        value : array of float, shape (places,)
            F.
        gradient : array of float, shape (places, params)
            Its gradients.
        """
        size = max(1, CAPACITY // self.objective.num_units)
        pieces = [self._look(theta[k : k + size], weights) for k in range(0, len(theta), size)]
        return np.concatenate([value for value, _ in pieces]), np.concatenate([slope for _, slope in pieces])

    def _look(self, theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, n = whole(np.broadcast_to(weights, (len(theta), len(weights)))), self.objective.num_units
        if self._predictors is not None:
            return LinearBatch(self._predictors, rows, n).look(theta, np.arange(len(theta)))
        return derive_batch(self.objective, self.like, rows).look(theta, np.arange(len(theta)))

    @property
    def blocks(self) -> Int[np.ndarray, " units"]:
        """Block of each unit: units of different blocks are independent given θ, if F has such terms at all."""
        return self.objective.code if isinstance(self.objective, Integrated) else np.arange(self.objective.num_units)

    @functools.cached_property
    def block_losses(self) -> Float[np.ndarray, "draws blocks"] | None:
        """−log density of every block of units at every draw; None if F has no such terms.

        F(θ, w) must differ from F(θ, 1) by the losses of blocks that leave, which is tried at two draws and three sets of them.
        """
        found = self._block_losses(self.draws)
        if found is None:
            return None
        rng, n, some = np.random.default_rng(0), found.shape[1], np.array([0, len(self.draws) - 1])
        for share in (1 / n, 0.2, 0.5):  # one block, some, and half of them
            weights = np.ones(n)
            weights[rng.choice(n, max(1, int(share * n)), replace=False)] = 0.0
            units = weights[self.blocks]
            change = self.values(self.draws[some], units) - self.values(self.draws[some], np.ones(len(units)))
            size = np.abs(found[some]).sum(1)
            if not np.allclose(change, -found[some] @ (1 - weights), rtol=0, atol=1e-9 * float(size.max() + 1)):
                return None
        return found

    @property
    def unit_losses(self) -> Float[np.ndarray, "draws units"] | None:
        """−log p(y_n | θ) of every unit at every draw; None if units depend on one another given θ."""
        found = self.block_losses
        return found if found is not None and found.shape[1] == self.objective.num_units else None

    def losses_at(self, theta: np.ndarray, units: np.ndarray) -> np.ndarray | None:
        """Evaluate −log p(y_n | θ) of some units at many θ.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        units : array of int, shape (some,)
            Units.

        Returns
        -------
        array of float, shape (places, some), or None
            The losses; None if units depend on one another given θ.
        """
        return None if self.unit_losses is None else np.asarray(self._block_losses(theta))[:, units]

    @float64
    def _block_losses(self, theta: np.ndarray) -> np.ndarray | None:
        model, n = self._predictors, self.objective.num_units
        if model is not None:
            size = max(1, CAPACITY // n)
            etas = (model.eta(theta[k : k + size])[:, :n] for k in range(0, len(theta), size))
            return np.concatenate([model.unit_loss.derivatives(eta, model.y, (0,))[0] for eta in etas])
        if not self.objective.pointwise and not isinstance(self.objective, Integrated):
            return None
        if isinstance(self.objective, AbstractClosedForm):
            every, ones = np.broadcast_to(np.arange(n), (len(theta), n)), np.ones((len(theta), n))
            found = self.objective.losses(theta, ones, every, ones > 0)
            return found if found.shape == every.shape else None
        size = max(1, CAPACITY // (4 * n))
        return np.asarray(_block_losses(self.objective, self.like, theta, min(size, len(theta))))

    def _lines(self) -> list[tuple[str, str]]:
        shown = 12  # names that are printed
        chains = f" in {self.chains} chains" if self.chains > 1 else ""
        names = ", ".join(self.names[:shown]) + (", …" if len(self.names) > shown else "")
        lines = [
            ("model", f"{display_name(self.objective)}, {self.objective.num_units} units"),
            ("draws", f"{len(self.draws)}{chains}"),
            ("parameters", f"{self.draws.shape[1]}, unconstrained: {names}"),
            ("note", self.note),
        ]
        return [(name, text) for name, text in lines if text]

    def __repr__(self) -> str:
        return str(self)


@compile_static
def _values(objective: AbstractObjective, like: PyTree, theta: Arrays, weights: Arrays, size: int) -> Arrays:
    return jax.lax.map(lambda v: objective.loss(unravel(v, like), weights), theta, batch_size=size)


@compile_static
def _block_losses(objective: AbstractObjective, like: PyTree, theta: Arrays, size: int) -> Arrays:
    ones, every = jnp.ones(objective.num_units), jnp.arange(objective.num_units)

    def one(v: Any) -> Any:
        tree = unravel(v, like)
        if isinstance(objective, Integrated):
            return -objective.log_marginals(tree, ones)
        return objective.score(tree, ones, every, ones)

    return jax.lax.map(one, theta, batch_size=size)


@conventional
@float64
def from_posterior(
    draws: Any,
    log_density: Any,
    data: Any = None,
    *,
    log_prior: Callable[[Any], Any] | None = None,
    transforms: Mapping[Any, str] | None = None,
    parameters: Iterable[str] | None = None,
    integrate: Mapping[str, ArrayLike] | None = None,
    effect_log_prior: Callable[[Any, Any], Any] | None = None,
) -> Posterior:
    """Take a posterior that was sampled, by its draws and its density.

    The density is given by two functions in JAX, or by one of the library's models. exp(−F) must be the posterior that was
    sampled, which is checked at the draws: a prior or a Jacobian that is missing is warned of.

    Parameters
    ----------
    draws : InferenceData, DataTree, Dataset, dict of arrays, or array
        Draws of the parameters: ArviZ data with a group `posterior`; arrays by name, `[draws, ...]` or `[chains, draws, ...]`;
        or one array `[draws, params]` or `[chains, draws, params]`.
    log_density : callable, AbstractObjective or Fit
        `unit_loss(theta, datum)`, the −log density of one unit in JAX. `theta` holds the parameters of one draw as they were
        sampled, by name or as one vector. Or a model such as `lo.GLM(X, y, "poisson", lo.penalties.Ridge(1.0))`, whose F is
        minus the log posterior of its unconstrained parameters; or a fit of it.
    data : array or pytree of arrays, optional
        Data of `unit_loss`, whose first axis counts the units.
    log_prior : callable, optional
        Log prior density of the parameters of `unit_loss`, a function of theta in JAX. Without it the prior is flat.
    transforms : dict of str, optional
        "log", "logit", "softmax" or "stick_breaking" by the name (or the column) of each parameter that is positive, between 0
        and 1, or a simplex. The density is given in the parameters themselves; their Jacobian is added.
    parameters : iterable of str, optional
        Names of the parameters among the draws; by default those that `unit_loss` and `log_prior` read.
    integrate : dict of array, optional
        Latent effects that are integrated out, one number a group: the group of each unit, 0, 1, …, by the name of the effect.
        `unit_loss` reads `theta[name][group]`. Effects are standard normal, and `log_prior` must leave them out.
    effect_log_prior : callable, optional
        Log prior density of one effect, a function of (theta, value), in place of the standard normal.

    Returns
    -------
    Posterior
        The posterior.

    Raises
    ------
    ValueError
        If draws are of the wrong shape, too few, NaN or outside their domain; if names or numbers of parameters do not match;
        if the density is zero or not a number at a draw; or if it falls where draws are many, as with the wrong sign.
    TypeError
        If the density is neither functions nor a model.

    Warns
    -----
    UserWarning
        If the draws are not those of the density.

    See Also
    --------
    elpd : Leave units out.
    from_numpyro : Take a model of NumPyro.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(1)
    >>> y = rng.poisson(3.0, 40)
    >>> rate = rng.gamma(1 + y.sum(), 1 / (1 + 40), (4, 1000))
    >>> import jax.numpy as jnp
    >>> from jax.scipy.special import gammaln
    >>> unit_loss = lambda theta, y: theta["rate"] - y * jnp.log(theta["rate"]) + gammaln(y + 1)
    >>> posterior = lo.from_posterior({"rate": rate}, unit_loss, y, log_prior=lambda theta: -theta["rate"],
    ...                               transforms={"rate": "log"})
    >>> posterior.chains, posterior.names
    (4, ['rate'])
    """
    caller = "from_posterior"
    found = read_draws(caller, draws)
    if isinstance(log_density, Fit | AbstractObjective):
        given = {"data": data, "log_prior": log_prior, "transforms": transforms, "integrate": integrate}
        for name, value in given.items():
            if value is not None:
                raise TypeError(f"{caller}: {name} goes with a function unit_loss; the model has its own.")
        return check_posterior(caller, _of_model(caller, found.arrays, found.chains, log_density))
    if not callable(log_density):
        raise TypeError(
            f"{caller}: log_density must be a function unit_loss(theta, datum), a model or a fit; got "
            f"{type(log_density).__name__}."
        )
    if data is None:
        raise TypeError(f"{caller}: unit_loss needs data=, arrays whose first axis counts the units.")
    data = _read_data(caller, data)
    names = _parameter_names(caller, found.arrays, log_density, log_prior, data, parameters)
    effects = {str(name): codes(caller, "integrate", value)[0] for name, value in (integrate or {}).items()}
    if len(effects) > 1 or effects.keys() - names:
        known = ", ".join(sorted(names))
        raise ValueError(f"{caller}: integrate takes one effect, of the parameters {known}; got {', '.join(effects)}.")
    shared = {name: found.arrays[name] for name in names - effects.keys()}
    at = DrawCoordinates(caller, shared, transforms or {})
    num, facts = len(jax.tree.leaves(data)[0]), (at.like, tuple(at.names()))
    ((effect, code),) = effects.items() if effects else (("", None),)
    densities = _densities(log_density, log_prior, at, effect, effect_log_prior)
    objective: AbstractObjective = Sampled(densities, data, num, *facts)
    if code is not None:
        if len(code) != num:
            raise ValueError(f"{caller}: integrate gives {len(code)} groups, one a unit; the data have {num} units.")
        objective = Integrated(densities, data, num, *facts, code, int(code.max()) + 1)
    to_theta = lambda draws: at.unconstrain({name: draws[name] for name in shared})
    note, named = "the prior is flat" if log_prior is None else "", lambda u: _by_name(at, u)
    theta, names_of_theta = to_theta(found.arrays), at.names()
    own = Posterior(objective, theta, found.chains, at.like, to_theta, named, names_of_theta, None, note)
    y = data.get("y") if isinstance(data, Mapping) else data
    y = y if isinstance(y, np.ndarray) and y.ndim == 1 else None
    constrain = read_by_functions(at, effect, objective) if effect_log_prior is None else None
    return check_posterior(caller, replace(own, response=y, constrain=constrain))


@functools.lru_cache(maxsize=32)
def _densities(unit_loss: Any, log_prior: Any, at: DrawCoordinates, effect: str, effect_log_prior: Any) -> Any:
    """Return the densities of (u, data, effects), the same function for other data, so that nothing is compiled anew."""

    def densities(u: Any, data: Any, z: Any = None) -> Conditional:
        theta = at.constrain(u)
        given = theta if z is None else {**theta, effect: z}
        each = jax.vmap(lambda datum: call_traced("from_posterior: unit_loss", unit_loss, given, datum))(data)
        prior = 0.0 if log_prior is None else call_traced("from_posterior: log_prior", log_prior, theta)
        own = effect_log_prior or (lambda theta, z: -0.5 * z**2 - 0.5 * np.log(2 * np.pi))
        effects = None if z is None else jax.vmap(lambda value: own(theta, value))(z)
        return Conditional(-each, effects, prior + at.log_jacobian(u))

    return densities


def _read_data(caller: str, data: Any) -> Any:
    """Store data as arrays that keep their types; ValueError if their lengths differ or values are missing."""
    data = jax.tree.map(np.asarray, np.asarray(data) if isinstance(data, list | tuple) else data)
    leaves = jax.tree.leaves(data)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(sizes) != 1 or min(sizes) < 2:
        raise ValueError(f"{caller}: arrays of data must have one length, 2 units or more; got {sorted(sizes)}.")
    if any(leaf.dtype == object or not np.isfinite(np.asarray(leaf, float)).all() for leaf in leaves):
        raise ValueError(f"{caller}: data hold values that are no numbers, NaN or infinite; drop or impute them.")
    return jax.tree.map(lambda leaf: leaf if leaf.dtype.kind in "iub" else leaf.astype(np.float64), data)


class _Reading(dict[str, Any]):
    """Parameters that record which of them are read."""

    def __init__(self, given: Mapping[str, Any]):
        super().__init__(given)
        self.read = set[str]()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def _parameter_names(
    caller: str, draws: dict[str, np.ndarray], unit_loss: Any, log_prior: Any, data: Any, given: Iterable[str] | None
) -> set[str]:
    """Return the names of the parameters: those given, or those that the functions read."""
    if "" in draws:
        if given is not None:
            raise TypeError(f"{caller}: parameters names draws by name; these are one array.")
        return {""}
    if given is not None:
        names = {given} if isinstance(given, str) else set(map(str, given))
        if names - draws.keys() or not names:
            raise ValueError(f"{caller}: parameters are {', '.join(sorted(names))}; the draws have {', '.join(sorted(draws))}.")
        return names
    read = set[str]()

    def call(first: dict[str, Any], datum: Any) -> Any:
        theta = _Reading(first)
        found = unit_loss(theta, datum), (0.0 if log_prior is None else log_prior(theta))
        read.update(theta.read if theta.read else first)
        return found

    one = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), tree)
    try:
        jax.eval_shape(call, one(draws), one(data))
    except KeyError as error:
        raise ValueError(
            f"{caller}: the density reads the parameter {error}, which the draws lack; they have {', '.join(sorted(draws))}."
        ) from error
    return read & draws.keys()


def _by_name(at: DrawCoordinates, u: np.ndarray) -> dict[str, np.ndarray]:
    """Convert unconstrained draws to parameters by name, those of one array by its columns."""
    found = jax.tree.map(np.asarray, jax.vmap(lambda v: at.constrain(unravel(v, at.like)))(u))
    return {f"theta[{k}]": column for k, column in enumerate(found.T)} if at.by_column else found


def _of_model(caller: str, draws: dict[str, np.ndarray], chains: int, given: Any) -> Posterior:
    """Take draws of the parameters of one of the library's models: its θ as one array, or its natural parameters by name."""
    known, objective = (given, given.objective) if isinstance(given, Fit) else (None, given)
    start = objective.parameters.start
    if known is not None:
        like = known.theta
    elif start is not None:
        like = start(0)
    else:
        like = draws[""][0] * 0.0 if "" in draws else {name: array[0] * 0.0 for name, array in draws.items()}
    like = map_arrays(lambda leaf: np.asarray(leaf, np.float64), like)
    size, names = len(np.ravel(ravel(like))), objective.parameters.names()
    natural = lambda v: objective.parameters.natural(unflatten(v, like))

    def to_theta(draws: dict[str, np.ndarray]) -> np.ndarray:
        if "" in draws:
            if draws[""].shape[1:] != (size,):
                of = f": {', '.join(names[:12])}" if names else ""
                got = draws[""].shape[1]
                raise ValueError(f"{caller}: {display_name(objective)} has {size} parameters{of}; the draws have {got}.")
            return np.ascontiguousarray(draws[""])
        own = natural(np.asarray(ravel(like)))
        wanted = set(own) if isinstance(own, Mapping) else set()
        if not wanted or wanted - draws.keys():
            raise ValueError(
                f"{caller}: the parameters of {display_name(objective)} are {', '.join(sorted(wanted)) or 'one array'}; the "
                f"draws have {', '.join(sorted(draws))}."
            )
        wrong = [name for name in wanted if np.shape(own[name]) != draws[name].shape[1:]]
        if wrong:
            what = f"{draws[wrong[0]].shape[1:]} for {np.shape(own[wrong[0]])}"
            raise ValueError(f"{caller}: draws of {wrong[0]!r} have another shape than the model's, {what}.")
        back = objective.parameters.unconstrained
        each = ({name: draws[name][s] for name in wanted} for s in range(len(next(iter(draws.values())))))
        return np.stack([np.asarray(ravel(map_arrays(np.asarray, back(one)))) for one in each])

    def named(u: np.ndarray) -> dict[str, np.ndarray]:
        each = [natural(v) for v in u]
        if not isinstance(each[0], Mapping):
            return {names[k] if names else f"theta[{k}]": column for k, column in enumerate(u.T)}
        return {str(name): np.stack([np.asarray(one[name]) for one in each]) for name in each[0]}

    listed = list(names) if len(names) == size else [f"theta[{k}]" for k in range(size)]
    score, constant, note = _density_of(caller, objective)
    own = Posterior(objective, to_theta(draws), chains, like, to_theta, named, listed, known, note, score, constant)
    return replace(own, response=objective.units.target, simulate=responses_of(objective, like))


def _density_of(caller: str, objective: AbstractObjective) -> tuple[str, float, str]:
    """Return the name of a model's losses, what they lack of a −log density, and a note; ValueError if they are none."""
    score = objective.units.score
    if score in (LOG_DENSITY, LOG_PROBABILITY, ""):
        return score or LOG_LIKELIHOOD, 0.0, objective.note
    if isinstance(getattr(objective, "loss_function", None), Squared):
        return LOG_DENSITY, 0.5 * np.log(2 * np.pi), "squared loss is that of a normal response of variance one"
    if score.startswith(LOG_DENSITY):  # of a parameter that the caller gave
        return LOG_DENSITY, 0.0, objective.note
    raise ValueError(f"{caller}: the loss of {display_name(objective)} is {score}, no −log density; see lo.Regression.")


def check_posterior(caller: str, posterior: Posterior) -> Posterior:
    """Compare draws and density by identities of posteriors; ValueError if the density does not exist there."""
    objective, draws, n = posterior.objective, posterior.draws, posterior.objective.num_units
    weight = objective.units.weight
    if weight is not None and not np.all(np.asarray(weight) == 1):
        raise ValueError(f"{caller}: units with weights have no density of their own; leave sample_weight and trials out.")
    spread = draws.std(0)
    if (spread == 0).any():
        raise ValueError(f"{caller}: all draws of {posterior.names[int(np.argmin(spread))]!r} are equal.")
    some = np.unique(np.linspace(0, len(draws) - 1, CHECKED_DRAWS).astype(int))
    value, slope = posterior.looks(draws[some], np.ones(n))
    if not (np.isfinite(value).all() and np.isfinite(slope).all()):
        raise ValueError(
            f"{caller}: the density is zero, or its logarithm or gradient not a number, at {np.sum(~np.isfinite(value))} of "
            f"{len(value)} draws: does it have the parameters and the data of the model that was sampled?"
        )
    away = draws[some] - draws[some].mean(0)
    product, error = away * slope, lambda each: np.maximum(batch_error(each, posterior.chains), 1e-12)
    if product.mean() < 0:
        raise ValueError(
            f"{caller}: the density falls where draws are many: unit_loss is −log density, and log_prior the log of the prior."
        )
    size, shift = product.mean(0), slope.mean(0) * spread
    wrong = (np.abs(size - 1) > SURE * error(product)) & (np.abs(size - 1) > LARGE)
    wrong |= (np.abs(shift) > SURE * error(slope * spread)) & (np.abs(shift) > LARGE / 3)
    if wrong.any():
        name = posterior.names[int(np.argmax(wrong))]
        warn(
            f"{caller}: the draws are not those of the density, as {name!r} shows: E[θ ∂F/∂θ] is {size[np.argmax(wrong)]:.3g} "
            "instead of 1 about the mean. Look for another prior, a transform without its Jacobian, or chains that have not "
            "converged."
        )
    return posterior


def batch_error(each: Float[np.ndarray, "draws ..."], chains: int) -> np.ndarray:
    """Monte-Carlo standard error of means over draws, by batches of successive draws that are as long as they are many."""
    means = batch_means(each, chains)
    return means.std(0, ddof=1) / np.sqrt(len(means))


def batch_means(each: Float[np.ndarray, "draws ..."], chains: int) -> np.ndarray:
    """Means over successive batches of draws, `[batches, ...]`; the last draws of a chain may be left over."""
    length = len(each) // chains
    size = max(1, int(np.sqrt(length)))
    count = length // size
    by_chain = each[: chains * length].reshape(chains, length, *each.shape[1:])[:, : count * size]
    return by_chain.reshape(chains * count, size, *each.shape[1:]).mean(1)
