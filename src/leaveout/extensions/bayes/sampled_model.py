"""Models by the functions of their latent variables, and the posteriors that are made of them and
draws.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from ...developer import (
    Arrays,
    NamedArrays,
    NamedValues,
    NumpyArray,
    PyTree,
    Shape,
    codes,
    compile_static,
    float64,
    jax,
    jnp,
    map_arrays,
    record,
    unflatten,
    unravel,
)
from .coordinates import NamedDraws, coordinate_names, listed, pick_draws
from .posterior import Posterior, check_posterior
from .responses import draw_by_jax
from .sampled import Conditional, Integrated, Sampled

# evenly spaced places over 24 standard deviations, which tell integrals of several modes
PLACES = 401


@record
class SampledModel:
    """A model of units that are independent given its latent variables, as a host or a caller gives
    it.

    Attributes
    ----------
    latent : dict of tuple
        Shapes of the latent variables by name.
    num_units : int
        Number of units.
    unconstrain : callable
        Maps the name of the calling function and draws by name to unconstrained draws,
        `[draws, ...]`.
    constrain : callable
        Maps the unconstrained variables of one draw to parameters by name, in JAX.
    densities : callable
        Maps the name of the effect that is integrated out, or None, to the `densities` of
        `Sampled`.
    data : pytree of arrays
        Data of `densities`.
    note : str
        What is printed beside the posterior.
    response : array, or None
        Response of each unit, if it is one number.
    draw_responses : callable or None
        Maps a key and the unconstrained variables of one draw, effects too, to drawn responses of
        all units.
    """

    latent: dict[str, Shape]
    num_units: int
    unconstrain: Callable[[str, NamedArrays], NamedValues]
    constrain: Callable[[Any], NamedValues]
    densities: Callable[[str | None], Callable[..., Conditional]]
    data: Any = ()
    note: str = ""
    response: NumpyArray | None = None
    draw_responses: Callable[[Any, Any], Any] | None = None

    def posterior(
        self, caller: str, draws: NamedDraws, integrate: Mapping[str, ArrayLike] | None
    ) -> Posterior:
        """Combine the model with draws of it."""
        effect = effect_name(caller, integrate, set(self.latent))

        free = lambda caller, draws: self.unconstrain(
            caller, pick_draws(caller, draws, self.latent)
        )

        @float64
        def to_theta(caller: str, draws: NamedArrays) -> NumpyArray:
            variables = free(caller, draws)
            leaves = [
                np.reshape(variables[name], (len(variables[name]), -1))
                for name in sorted(variables)
                if name != effect
            ]
            return np.concatenate(leaves, 1).astype(float)

        @float64
        def to_parameters(u: NumpyArray) -> Any:
            parameters = jax.vmap(lambda v: self.constrain(unravel(v, like) | start))(u)
            return vector_or_names(
                {name: np.asarray(leaf) for name, leaf in parameters.items() if name != effect}
            )

        theta = to_theta(caller, draws.arrays)
        unconstrained = free(caller, draws.arrays)
        like = map_arrays(
            lambda leaf: np.asarray(np.mean(leaf, 0, dtype=np.float64)), unconstrained
        )
        start = {effect: like.pop(effect)} if effect else {}
        facts = self.densities(effect), self.data, self.num_units, like
        objective = Sampled(*facts)
        if effect and integrate:
            place = _places(caller, integrate[effect], effect, start[effect].shape, self.num_units)
            present, code = np.unique(place, return_inverse=True)
            spread = np.std(unconstrained[effect], 0, dtype=np.float64)
            effect_facts = code, present, start[effect], np.where(spread > 0, spread, 1.0)
            candidate = Integrated(*facts, *effect_facts, False)
            points = [unflatten(theta[k], like) for k in (0, -1)]
            _check_groups(caller, effect, candidate, place, points[0])
            objective = Integrated(
                *facts, *effect_facts, all(_is_quadratic(candidate, point) for point in points)
            )
        simulate = None
        of_all = self.draw_responses
        if self.response is not None and of_all is not None:
            simulate = draw_by_jax(
                lambda key, u, units: of_all(key, u)[units], objective, like, effect
            )
        posterior = Posterior(
            objective,
            theta,
            draws.chains,
            like,
            to_theta,
            to_parameters,
            coordinate_names(like),
            note=self.note,
            response=self.response,
            simulate=simulate,
        )
        if isinstance(objective, Integrated) and not objective.quadratic:
            _check_integrals(caller, effect, objective, posterior)
        return check_posterior(caller, posterior)


def vector_or_names(theta: NamedValues) -> Any:
    """Return parameters as functions of the caller read them.

    By name, or the one vector without a name.
    """
    return theta.get("", theta)


def effect_name(caller: str, integrate: Any, latent: set[str]) -> str | None:
    """Return the name of the latent variable that is integrated out, if any.

    ValueError if it is none of the model's.
    """
    integrated = {} if integrate is None else integrate
    if not isinstance(integrated, Mapping) or len(integrated) > 1 or integrated.keys() - latent:
        got = type(integrated).__name__
        if isinstance(integrated, Mapping):
            got = ", ".join(map(str, integrated))
        raise ValueError(
            f"{caller}: integrate gives the group of each unit by the name of one of {listed(latent)}, as "
            f"{{name: groups}}; got {got}."
        )
    if len(integrated) == len(latent):
        raise ValueError(
            f"{caller}: the model has no parameter whose draws could be weighed, but {listed(integrated)}."
        )
    return next(iter(integrated), None)


def _places(
    caller: str, groups: ArrayLike, effect: str, shape: Shape, num_units: int
) -> NumpyArray:
    """Return the place of each unit's effect among the effects."""
    code, levels = codes(caller, "integrate", groups)
    place = code
    if (
        levels.dtype.kind in "iu"
        and levels[0] >= 0
        and (levels[-1] < np.prod(shape) or len(levels) != np.prod(shape))
    ):
        # numbers of the effects; as many other numbers as effects are their labels
        place = levels[code].astype(int)
    if len(shape) != 1:
        raise ValueError(
            f"{caller}: integrate takes one number a group; {effect!r} has the shape {shape}."
        )
    if len(place) != num_units:
        raise ValueError(
            f"{caller}: integrate gives {len(place)} groups, one a unit; there are {num_units} units."
        )
    if place.min() < 0 or place.max() >= shape[0]:
        bounds = f"groups are 0 to {shape[0] - 1}; got {place.min()} to {place.max()}"
        raise ValueError(f"{caller}: {effect!r} has {shape[0]} numbers, so {bounds}.")
    return place


def _check_groups(
    caller: str, effect: str, objective: Integrated, place: NumpyArray, theta: PyTree
) -> None:
    """ValueError unless densities of units and effects depend on the effect of their own group
    alone, and the prior on none.

    Effects of some groups are changed: those whose number has a certain binary digit, so that any
    two groups differ once.
    """
    old = objective.start
    size = len(objective.start)
    new = old + np.random.default_rng(0).standard_normal(size)
    changed = np.arange(size) >> np.arange(max(1, int(size - 1).bit_length()))[:, None] & 1 > 0
    conditionals = _conditionals(
        objective, theta, np.concatenate([old[None], new[None], np.where(changed, new, old)])
    )
    units, effects, prior = conditionals
    same = lambda values, differs: np.allclose(
        values[2:], np.where(differs, values[1], values[0]), rtol=1e-9, atol=1e-9, equal_nan=True
    )
    if effects.shape[1:] != (size,) or not same(effects, changed):
        raise ValueError(
            f"{caller}: {effect!r} cannot be integrated out: its numbers are not independent given the others."
        )
    if not (same(units, changed[:, place]) and np.allclose(prior, prior[0])):
        raise ValueError(
            f"{caller}: {effect!r} cannot be integrated out: a unit depends on the number of another group than integrate "
            "says, or another latent variable depends on it. Labels that are no whole numbers are numbered in sorted order."
        )


def _is_quadratic(objective: Integrated, theta: PyTree) -> bool:
    """Whether the log density of each unit and each effect is quadratic in the effect, to rounding,
    near the draws and far.
    """
    # three determine it, and the others try it
    steps = np.array([-1.0, 0.0, 1.0, -2.5, 3.0, -30.0, 20.0])[:, None]
    conditionals = _conditionals(objective, theta, objective.start + steps * objective.scale)
    for low, middle, high, *trials in (conditionals.units, conditionals.effects):
        expected = (
            middle + steps[3:] * (high - low) / 2 + steps[3:] ** 2 * (high + low - 2 * middle) / 2
        )
        if not np.allclose(trials, expected, rtol=1e-11, atol=1e-10):
            return False
    return True


def _check_integrals(
    caller: str, effect: str | None, objective: Integrated, posterior: Posterior
) -> None:
    """ValueError if integrals of groups with all their units, or none, are not those over evenly
    spaced places.
    """
    step = np.linspace(-12, 12, PLACES)[:, None]
    centre = objective.start.mean()
    half_width = objective.scale.max() + np.ptp(objective.start)
    n = objective.num_units
    blocks = np.arange(len(objective.present))
    error = 0.0
    for theta in posterior.draws[[0, -1]]:
        for weights, z in (
            (np.ones(n), objective.start + step * objective.scale),
            (np.zeros(n), centre + step / 4 * half_width),
        ):
            conditional = _conditionals(
                objective,
                unflatten(theta, posterior.like),
                np.broadcast_to(z, (PLACES, len(objective.start))),
            )
            heights = conditional.effects[:, objective.present]
            np.add.at(
                heights.T,
                objective.code,
                (weights * np.where(weights > 0, conditional.units, 0.0)).T,
            )
            log_step = np.log((z[1] - z[0]) * np.ones(len(objective.start)))[objective.present]
            fine, coarse = (
                logsumexp(heights[::stride], axis=0) + log_step + np.log(stride)
                for stride in (1, 2)
            )
            reliable = np.abs(fine - coarse) < 1e-4  # elsewhere places are too few to tell
            _, losses = posterior.evaluate(theta[None], weights, blocks)
            error = max(error, np.abs(losses[0] + fine)[reliable].max(initial=0.0))
    if error > 0.01:
        raise ValueError(
            f"{caller}: {effect!r} cannot be integrated out: an integral is off by {error:.2g}, as an effect has several "
            "modes or a very heavy tail. Leave integrate out."
        )


def _conditionals(objective: Integrated, theta: PyTree, z: NumpyArray) -> Conditional:
    """Evaluate the densities at some places of all effects, by one program."""
    conditional = _all_conditionals(objective, theta, np.resize(z, (PLACES, z.shape[1])))
    return Conditional(*(np.asarray(values)[: len(z)] for values in conditional))


@compile_static
def _all_conditionals(objective: Integrated, theta: PyTree, z: Arrays) -> Conditional:
    return jax.vmap(lambda effects: objective.densities(theta, objective.data, effects))(z)


def densities_by_name(
    log_probs: Callable[[NamedValues], NamedValues], unit: str
) -> Callable[[str | None], Any]:
    """Return `SampledModel.densities` by the element-wise log densities of all variables, and the
    name of the units'.
    """

    def of_effect(effect: str | None) -> Callable[..., Conditional]:
        def densities(u, data, z=None) -> Conditional:
            log_densities = dict(log_probs(u if effect is None else {**u, effect: z}))
            units = log_densities.pop(unit)
            effects = None if effect is None else log_densities.pop(effect)
            return Conditional(
                units.reshape(len(units), -1).sum(1),
                effects,
                sum((jnp.sum(values) for values in log_densities.values()), 0.0),
            )

        return densities

    return of_effect


def unit_variable(caller: str, seen: list[str], observed: str | None) -> str:
    """Return the observed variable whose entries are the units."""
    if not seen:
        raise ValueError(
            f"{caller}: the model observes no array, and so has no units; give it the data. A potential has none."
        )
    if observed is None and len(seen) != 1:
        raise ValueError(
            f"{caller}: name the variable whose entries are the units, observed=; of {', '.join(seen)}."
        )
    if observed is not None and observed not in seen:
        raise ValueError(
            f"{caller}: {observed!r} is no observed variable; the model has {', '.join(seen)}."
        )
    return seen[0] if observed is None else observed
