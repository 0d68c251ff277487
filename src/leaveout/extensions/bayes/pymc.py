"""Posteriors of PyMC's models, through their log densities in JAX."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...developer import NamedValues, NumpyArray, conventional, float64, jax, optional, unravel
from .coordinates import read_draws
from .posterior import Posterior
from .responses import draw_effects
from .sampled_model import SampledModel, densities_by_name, unit_variable


@conventional
@float64
def from_pymc(
    model: Any,
    draws: Any,
    *,
    observed: str | None = None,
    integrate: Mapping[str, ArrayLike] | None = None,
) -> Posterior:
    """Take a posterior that PyMC sampled.

    F is the model's log density by PyMC's JAX back end, with the data that the model now holds, in
    PyMC's own unconstrained coordinates. The units are the entries of an observed variable, along
    its first axis. All else that the model says belongs to the prior: other observed variables and
    potentials too. PyMC sets JAX to 64 bits.

    Parameters
    ----------
    model : pymc.Model
        The model, without discrete latent variables.
    draws : InferenceData, DataTree, Dataset, or dict of arrays
        Draws of the free variables, as `pm.sample` returns them.
    observed : str, optional
        The observed variable whose entries are the units; needed if there are several.
    integrate : dict of array, optional
        A latent variable with one number a group that is integrated out: the group of each unit, 0,
        1, …, by its name.

    Returns
    -------
    Posterior
        The posterior.

    Raises
    ------
    ValueError
        If no variable, or several, could be the units; if draws of a variable are missing; if
        observed values are missing; if the density is that of a sample of the rows; or if effects
        cannot be integrated out one by one.
    TypeError
        If the model is not PyMC's.
    NotImplementedError
        If PyMC has no JAX code for an operation of the model.
    ImportError
        If PyMC is not installed.

    See Also
    --------
    from_posterior : Take draws and a density of your own.
    from_numpyro : Take a model of NumPyro.

    Examples
    --------
    >>> import leaveout as lo
    >>> import numpy as np
    >>> import pymc as pm
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=30)
    >>> with pm.Model() as model:
    ...     mean = pm.Normal("mean", 0, 1)
    ...     obs = pm.Normal("y", mean, 1, observed=y)
    >>> draws = {"mean": y.sum() / 31 + rng.normal(size=(4, 500)) / 31**0.5}  # or pm.sample()
    >>> found = lo.bayes.elpd(lo.bayes.from_pymc(model, draws), lo.leave_one_out())
    >>> len(found.flagged())
    0
    """
    caller = "from_pymc"
    with optional("from_pymc needs PyMC: pip install 'leaveout[pymc]'."):
        import pymc
        import xarray
        from pymc.variational.minibatch_rv import MinibatchRandomVariable
        from pytensor.graph.replace import clone_replace
    if not isinstance(model, pymc.Model):
        raise TypeError(
            f"{caller}: the first argument must be a pymc.Model; got {type(model).__name__}."
        )
    if model.discrete_value_vars:
        raise ValueError(
            f"{caller}: {', '.join(value.name for value in model.discrete_value_vars)} is discrete, "
            "so its density has no gradient; sum it out."
        )
    free = model.free_RVs
    values = model.value_vars
    latent = [rv.name for rv in free]
    seen = {rv.name: rv for rv in model.observed_RVs if rv.ndim}
    unit = unit_variable(caller, list(seen), observed)
    terms = [*free, *model.observed_RVs, *model.potentials]
    densities = dict(
        zip([term.name for term in terms], model.logp(vars=terms, sum=False), strict=True)
    )
    wrong = ""
    if not densities[unit].ndim:
        wrong = "have one density together"
    if f"{unit.removesuffix('_observed')}_unobserved" in latent:
        wrong = (
            "are partly missing, and PyMC draws them; build the model of the rows that have them"
        )
    if isinstance(seen[unit].owner.op, MinibatchRandomVariable):
        wrong = "are scaled by total_size; build the model of all rows"
    if wrong:
        raise ValueError(f"{caller}: the entries of {unit!r} are no units: they {wrong}.")

    inputs = [rv.type() for rv in free]
    transforms = [model.rvs_to_transforms[rv] for rv in free]
    forward = [
        t.forward(rv, *rv.owner.inputs) if t else rv for rv, t in zip(free, transforms, strict=True)
    ]
    natural = clone_replace(forward, dict(zip(free, inputs, strict=True)), rebuild_strict=False)
    by_name = lambda graphs: dict(zip(latent, graphs, strict=True))
    shapes = model.eval_rv_shapes()
    y = np.asarray(model.rvs_to_values[seen[unit]].eval())
    unconstrain = jax.vmap(_in_jax(by_name(inputs), by_name(natural)))
    constrain = _in_jax(by_name(values), by_name(model.replace_rvs_by_values(free)))
    effect = next(iter(integrate or {}), None)
    posterior = SampledModel(
        {name: tuple(map(int, shapes[name])) for name in latent},
        len(y),
        lambda caller, draws: unconstrain(draws),
        constrain,
        densities_by_name(_in_jax(by_name(values), densities), unit),
        response=y if y.ndim == 1 else None,
    ).posterior(caller, read_draws(caller, draws), integrate)

    @float64
    def simulate(
        theta: NumpyArray, units: NumpyArray, weights: NumpyArray, rng: np.random.Generator
    ) -> NumpyArray:
        """Draw responses by PyMC itself."""
        effects = draw_effects(posterior.objective, posterior.like, theta, weights, rng)
        effect_by_name = lambda z: {effect: z} if effect else {}
        draws = jax.vmap(lambda v, z: constrain(unravel(v, posterior.like) | effect_by_name(z)))(
            theta, effects
        )
        axes = lambda name, value: [
            "chain",
            "draw",
            *(f"{name} {axis}" for axis in range(value.ndim - 1)),
        ]
        variables = {
            name: (axes(name, value), np.asarray(value)[None]) for name, value in draws.items()
        }
        seed = int(rng.integers(2**31))
        logger = logging.getLogger("pymc.sampling.forward")  # which tells of every fold
        level = logger.level
        try:
            logger.setLevel(logging.WARNING)
            predictive = pymc.sample_posterior_predictive(
                xarray.Dataset(variables),
                model,
                var_names=[unit],
                random_seed=seed,
                progressbar=False,
                extend_inferencedata=False,
            )
        finally:
            logger.setLevel(level)
        return predictive.posterior_predictive[unit].to_numpy()[0][:, units].astype(float)

    if y.ndim > 1:
        return posterior
    return replace(posterior, simulate=simulate)


def _in_jax(inputs: NamedValues, outputs: NamedValues) -> Callable[[NamedValues], NamedValues]:
    """Compile graphs to a function of values by name in JAX.

    A density is zero where its parameters are out of their domain.
    """
    from pytensor.graph.rewriting.utils import rewrite_graph

    jax.devices()  # before PyMC's module, which asks for a hundred of them, by the environment
    flags = os.environ.get("XLA_FLAGS")
    from pymc.sampling.jax import get_jaxified_graph

    if flags is None:
        os.environ.pop("XLA_FLAGS", None)
    else:
        os.environ["XLA_FLAGS"] = flags
    checked = rewrite_graph(
        list(outputs.values()), include=("canonicalize", "local_check_parameter_to_ninf_switch")
    )
    try:
        compiled = get_jaxified_graph(list(inputs.values()), checked)
    except (ValueError, NotImplementedError) as error:
        raise type(error)(
            f"from_pymc: PyMC cannot compile the density of this model in JAX: {error}"
        ) from error
    return lambda u: dict(zip(outputs, compiled(*(u[name] for name in inputs)), strict=True))
