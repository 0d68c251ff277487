"""Posteriors by draws and a density: functions in JAX, or one of the library's models."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import scipy
from numpy import ndarray
from numpy.typing import ArrayLike

import leaveout as lo

from ... import Fit
from ...developer import (
    HALF_LOG_TAU,
    LOG_DENSITY,
    LOG_LIKELIHOOD,
    LOG_PROBABILITY,
    AbstractObjective,
    ActiveGLM,
    AnyFunction,
    NamedArrays,
    NamedValues,
    UnaryFunction,
    call_traced,
    conventional,
    display_name,
    float64,
    function_name,
    jax,
    jnp,
    map_arrays,
    ravel,
    unflatten,
)
from .coordinates import DrawCoordinates, NamedDraws, by_column, listed, pick_draws, read_draws
from .posterior import Posterior, check_posterior
from .responses import DrawResponses, draw_by_jax, responses_of
from .sampled import Conditional, Sampled
from .sampled_model import SampledModel, effect_name, vector_or_names


@conventional
@float64
def from_posterior(
    draws: Any,
    log_density: Any,
    data: Any = None,
    *,
    log_prior: UnaryFunction | None = None,
    transforms: Mapping[Any, str] | None = None,
    integrate: Mapping[str, ArrayLike] | None = None,
    effect_log_prior: Callable[[Any, Any], Any] | None = None,
) -> Posterior:
    """Take a posterior that was sampled, by its draws and its density.

    The density is given by two functions in JAX, or by one of the library's models. exp(−F) must be
    the posterior that was sampled, which is checked at the draws: a prior or a Jacobian that is
    missing is warned of.

    Parameters
    ----------
    draws : InferenceData, DataTree, Dataset, dict of arrays, or array
        Draws of the parameters: ArviZ data with a group `posterior`; arrays by name, `[draws, ...]`
        or `[chains, draws, ...]`, of which those are taken that the functions read; a frame whose
        columns have names; or one array `[draws, params]` or `[chains, draws, params]`.
    log_density : callable, AbstractObjective or Fit
        `unit_loss(theta, datum)`, the −log density of one unit in JAX. `theta` holds the parameters
        of one draw as they were sampled, by name or as one vector. Or a model such as `lo.GLM(X, y,
        "poisson", lo.penalties.Ridge(1.0))`, whose F is minus the log posterior of its
        unconstrained parameters; or a fit of it.
    data : array or pytree of arrays, optional
        Data of `unit_loss`, whose first axis counts the units; a frame is a dict of its named
        columns.
    log_prior : callable, optional
        Log prior density of the parameters of `unit_loss`, a function of theta in JAX. Without it
        the prior is flat.
    transforms : dict of str, optional
        "log", "logit", "softmax" or "stick_breaking" by the name of each parameter that is
        positive, between 0 and 1, or a simplex. The density is given in the parameters themselves;
        their Jacobian is added.
    integrate : dict of array, optional
        Latent effects that are integrated out, one number a group: the group of each unit, 0, 1, …,
        by the name of the effect. `unit_loss` reads `theta[name][group]`. Effects are standard
        normal, and `log_prior` must leave them out.
    effect_log_prior : callable, optional
        Log prior density of one effect, a function of (theta, value), in place of the standard
        normal.

    Returns
    -------
    Posterior
        The posterior.

    Raises
    ------
    ValueError
        If draws are of the wrong shape, too few, NaN or outside their domain; if names or numbers
        of parameters do not match; if the density is zero or not a number at a draw; or if it falls
        where draws are many, as with the wrong sign.
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
    from_pymc : Take a model of PyMC.
    from_stan : Take a model of Stan.

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
    >>> posterior = lo.bayes.from_posterior(
    ...     {"rate": rate},
    ...     unit_loss,
    ...     y,
    ...     log_prior=lambda theta: -theta["rate"],
    ...     transforms={"rate": "log"},
    ... )
    >>> posterior.chains, posterior.names
    (4, ['rate'])
    """
    caller = "from_posterior"
    named_draws = read_draws(caller, draws)
    functions = {"log_prior": log_prior, "effect_log_prior": effect_log_prior}
    if isinstance(log_density, Fit | AbstractObjective):
        arguments = {"data": data, "transforms": transforms, "integrate": integrate} | functions
        for name, value in arguments.items():
            if value is not None:
                raise TypeError(
                    f"{caller}: {name} goes with a function unit_loss; the model has its own."
                )
        return check_posterior(
            caller, _of_model(caller, named_draws.arrays, named_draws.chains, log_density)
        )
    if not callable(log_density):
        raise TypeError(
            f"{caller}: log_density must be a function unit_loss(theta, datum), a model or a fit; got "
            f"{type(log_density).__name__}."
        )
    for name, value in functions.items():
        if not (value is None or callable(value)):
            raise TypeError(f"{caller}: {name} must be a function; got {type(value).__name__}.")
    if effect_log_prior is not None and not integrate:
        raise TypeError(f"{caller}: effect_log_prior is that of effects which integrate= names.")
    if data is None:
        raise TypeError(
            f"{caller}: unit_loss needs data=, arrays whose first axis counts the units."
        )
    data = _read_data(caller, data)
    names = _parameter_names(named_draws.arrays, log_density, log_prior, data)
    _try_at_one_draw(named_draws, names, log_density, data)
    effect = effect_name(caller, integrate, names)
    coordinates = DrawCoordinates.read(caller, names - {effect}, transforms or {})
    y = data
    if isinstance(data, Mapping):
        y = data.get("y")
    model = SampledModel(
        latent={name: named_draws.arrays[name].shape[1:] for name in names},
        num_units=len(jax.tree.leaves(data)[0]),
        unconstrain=coordinates.unconstrain,
        constrain=coordinates.constrain,
        densities=lambda effect: _densities(
            log_density, log_prior, coordinates, effect, effect_log_prior
        ),
        data=data,
        note="the prior is flat" if log_prior is None else "",
        response=y if isinstance(y, ndarray) and y.ndim == 1 else None,
    )
    posterior = model.posterior(caller, named_draws, integrate)

    def simulate_by(simulate: AnyFunction) -> DrawResponses:
        def responses(key: Any, u: Any, units: Any) -> Any:
            theta = vector_or_names(coordinates.constrain(u))
            unit_data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[units], data)
            draw = lambda key, datum: _call_for_number(
                "predict: simulate", simulate, key, theta, datum
            )
            return jax.vmap(draw)(jax.random.split(key, len(units)), unit_data)

        return draw_by_jax(responses, cast(Sampled, posterior.objective), posterior.like, effect)

    return replace(posterior, simulate_by=simulate_by)


def _call_for_number(description: str, function: AnyFunction, *args):
    """Call a user's function under tracing; TypeError unless it returns one real number."""
    result = call_traced(description, function, *args)
    with contextlib.suppress(TypeError, ValueError):  # of what is no array
        number = jnp.asarray(result)
        if not number.shape and number.dtype.kind in "biuf":
            return number * 1.0
    kind = (
        f"{result.dtype} of shape {result.shape}"
        if isinstance(result, jax.Array | ndarray)
        else type(result).__name__
    )
    raise TypeError(
        f"{description}, {function_name(function)!r}, must return one real number; got {kind}."
    )


@functools.lru_cache(maxsize=32)
def _densities(
    unit_loss: Any,
    log_prior: Any,
    coordinates: DrawCoordinates,
    effect: str | None,
    effect_log_prior: Any,
):
    """Return the densities of (u, data, effects), the same function for other data, so that nothing
    is compiled anew.
    """

    def densities(u, data, z=None) -> Conditional:
        theta = vector_or_names(coordinates.constrain(u))
        parameters = theta
        if effect is not None:
            parameters = {**theta, effect: z}
        losses = jax.vmap(
            lambda datum: _call_for_number(
                "from_posterior: unit_loss", unit_loss, parameters, datum
            )
        )(data)
        prior = 0.0
        if log_prior is not None:
            prior = _call_for_number("from_posterior: log_prior", log_prior, theta)
        effect_prior = effect_log_prior or (lambda theta, z: -0.5 * z**2 - HALF_LOG_TAU)
        effect_density = lambda value: _call_for_number(
            "from_posterior: effect_log_prior", effect_prior, theta, value
        )
        effects = None
        if effect is not None:
            effects = jax.vmap(effect_density)(z)
        return Conditional(-losses, effects, prior + coordinates.log_jacobian(u))

    return densities


def _read_data(caller: str, data):
    """Store data as arrays that keep their types.

    ValueError if their lengths differ or values are missing.
    """
    data = by_column(data)
    data = jax.tree.map(np.asarray, np.asarray(data) if isinstance(data, list | tuple) else data)
    leaves = jax.tree.leaves(data)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(sizes) != 1 or min(sizes) < 2:
        raise ValueError(
            f"{caller}: arrays of data must have one length, 2 units or more; got {sorted(sizes)}."
        )
    if any(leaf.dtype.kind not in "iubf" or not np.isfinite(leaf).all() for leaf in leaves):
        raise ValueError(
            f"{caller}: data hold values that are no numbers, NaN or infinite; drop or impute them."
        )
    return jax.tree.map(lambda leaf: leaf if leaf.dtype.kind in "iub" else leaf.astype(float), data)


class _Reading(NamedValues):
    """Parameters that record which of them are read."""

    def __init__(self, parameters: Mapping[str, Any]):
        super().__init__(parameters)
        self.read = set[str]()

    def __getitem__(self, name: str):
        self.read.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str):
        raise ValueError(
            f"from_posterior: the density reads the parameter {name!r}, which the draws lack; they have {listed(self)}."
        )

    def get(self, name: str, default=None):
        self.read.add(name)
        return super().get(name, default)


def _parameter_names(draws: NamedArrays, unit_loss, log_prior, data) -> set[str]:
    """Return the names of the parameters that the functions read."""
    if "" in draws:
        return {""}
    read = set[str]()

    def call(first: NamedValues, datum):
        theta = _Reading(first)
        values = unit_loss(theta, datum), (0.0 if log_prior is None else log_prior(theta))
        read.update(theta.read if theta.read else first)
        return values

    first_entries = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), tree)
    try:
        jax.eval_shape(call, first_entries(draws), first_entries(data))
    except TypeError:  # a compiled function reads all
        return set(draws)
    return read & draws.keys()


def _try_at_one_draw(draws: NamedDraws, names: set[str], unit_loss, data) -> None:
    """ValueError, which tells how the draws were read, if `unit_loss` fails at one of them."""
    first = {name: jnp.asarray(draws.arrays[name][0]) for name in names}
    datum = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data)

    def call(theta, datum) -> float:
        call_traced("from_posterior: unit_loss", unit_loss, theta, datum)
        return 0.0  # what it returns is looked at where it is used

    try:
        jax.eval_shape(call, vector_or_names(first), datum)
    except (TypeError, ValueError, IndexError) as error:
        if str(error).startswith("from_posterior"):
            raise
        shapes = ", ".join(
            f"{name or 'theta'} {value.shape}" for name, value in sorted(first.items())
        )
        size = len(next(iter(draws.arrays.values())))
        raise ValueError(
            f"from_posterior: unit_loss fails at one draw, {shapes}: {error}. The draws were read as {size} in {draws.chains} "
            "chains; arrays are [draws, ...] or [chains, draws, ...]."
        ) from error


def _of_model(caller: str, draws: NamedArrays, chains: int, model) -> Posterior:
    """Take draws of the parameters of one of the library's models.

    Its θ as one array, or its natural parameters by name.
    """
    fit = None
    objective = model
    if isinstance(model, Fit):
        fit = model
        objective = model.objective
    # the density is one of all coefficients, also of those that are held
    if isinstance(objective, ActiveGLM):
        fit = None
        objective = objective.whole.model
    start = objective.parameters.start
    if fit is not None:
        like = fit.theta
    elif start is not None:
        like = start(0)
    elif "" in draws:
        like = draws[""][0] * 0.0
    else:
        like = {name: array[0] * 0.0 for name, array in draws.items()}
    like = map_arrays(lambda leaf: np.asarray(leaf, float), like)
    size = len(np.ravel(ravel(like)))
    names = objective.parameters.names()
    labels = list(names)
    if len(names) != size:
        labels = [f"theta[{k}]" for k in range(size)]
    natural = lambda v: objective.parameters.natural(unflatten(v, like))

    def to_theta(caller: str, draws: NamedArrays) -> ndarray:
        example = natural(np.asarray(ravel(like)))
        by_name = "" not in draws and isinstance(example, Mapping)
        arrays = pick_draws(
            caller,
            draws,
            {name: np.shape(example[name]) for name in example} if by_name else {"": (size,)},
        )
        if not by_name:
            return np.ascontiguousarray(arrays[""])
        rows = (dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True))
        unconstrain = objective.parameters.unconstrained
        return np.stack(
            [np.asarray(ravel(map_arrays(np.asarray, unconstrain(row)))) for row in rows]
        )

    def to_parameters(u: ndarray):
        rows = [natural(v) for v in u]
        if not isinstance(rows[0], Mapping):
            return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        return {str(name): np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}

    score, constant, note = _density_of(caller, objective)
    simulate = None
    if objective.units.weight is None:
        simulate = responses_of(objective, like)
    return Posterior(
        objective,
        to_theta(caller, draws),
        chains,
        like,
        to_theta,
        to_parameters,
        labels,
        fit,
        note,
        score,
        constant,
        objective.units.target,
        simulate,
    )


def _density_of(caller: str, objective: AbstractObjective) -> tuple[str, Any, str]:
    """Return the name of a model's losses, what they lack of −log densities, and a note.

    ValueError if they are none.
    """
    units = objective.units
    score = units.score
    loss = getattr(objective, "loss_function", None)
    if units.weight is None:
        weight = np.ones(1)
    else:
        weight = np.asarray(units.weight)
    if getattr(objective, "class_code", None) is not None:
        raise ValueError(
            f"{caller}: class_weight changes the weights of other units in every fold; leave it out."
        )
    if (weight < 1).any() or (weight % 1 != 0).any():
        raise ValueError(
            f"{caller}: weights must be whole numbers, of trials or of rows that a unit stands for; other powers of a density "
            "are no densities. Drop rows of weight zero, and leave other weights out."
        )
    if units.weight is not None and isinstance(loss, lo.losses.Binomial):
        successes = weight * np.asarray(units.target)
        if np.allclose(successes, np.rint(successes), rtol=0, atol=1e-6):  # proportions are rounded
            log = scipy.special.gammaln
            ways = log(weight + 1) - log(successes + 1) - log(weight - successes + 1)
            return LOG_PROBABILITY, -ways, "weights are numbers of trials"
    note = "a unit stands for as many equal rows as its weight"
    if (weight == 1).all():
        note = objective.note
    if score in (LOG_DENSITY, LOG_PROBABILITY, ""):
        return score or LOG_LIKELIHOOD, 0.0, note
    if isinstance(loss, lo.losses.Squared):
        return (
            LOG_DENSITY,
            HALF_LOG_TAU * weight,
            "squared loss is that of a normal response of variance one",
        )
    if score.startswith(LOG_DENSITY):  # of a parameter that the caller gave
        return LOG_DENSITY, 0.0, note
    raise ValueError(
        f"{caller}: the loss of {display_name(objective)} is {score}, no −log density; see lo.Regression."
    )
