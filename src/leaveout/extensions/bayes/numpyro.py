"""Posteriors of NumPyro's models, through their log densities in JAX."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...developer import AnyFunction, NamedValues, conventional, float64, jax, jnp, optional
from .coordinates import read_draws
from .posterior import Posterior
from .sampled_model import SampledModel, densities_by_name, unit_variable


@conventional
@float64
def from_numpyro(
    model: AnyFunction,
    mcmc: Any,
    *args: Any,
    observed: str | None = None,
    integrate: Mapping[str, ArrayLike] | None = None,
    **kwargs: Any,
) -> Posterior:
    """Take a posterior that NumPyro sampled.

    F is the model's log density in NumPyro's own unconstrained coordinates. The units are the
    entries of an observed site, along its first axis.

    Parameters
    ----------
    model : callable
        The model, as it was given to the kernel, without discrete latent variables.
    mcmc : numpyro.infer.MCMC, or dict of arrays
        The sampler that ran, or draws of the latent sites by name, as `lo.bayes.from_posterior`
        takes them.
    *args : Any
        Arguments of the model; by default those of the last run.
    observed : str, optional
        The observed site whose entries are the units; needed if there are several.
    integrate : dict of array, optional
        A latent site with one number a group that is integrated out: the group of each unit, 0, 1,
        …, by its name.
    **kwargs : Any
        Arguments of the model by name.

    Returns
    -------
    Posterior
        The posterior.

    Raises
    ------
    ValueError
        If no site, or several, could be the units; if draws of a site are missing; if the density
        is that of a sample of the rows; or if effects cannot be integrated out one by one.
    ImportError
        If NumPyro is not installed.

    See Also
    --------
    from_posterior : Take draws and a density of your own.
    from_pymc : Take a model of PyMC.

    Examples
    --------
    >>> import leaveout as lo
    >>> import numpy as np
    >>> import numpyro
    >>> def model(y):
    ...     mean = numpyro.sample("mean", numpyro.distributions.Normal(0, 1))
    ...     numpyro.sample("y", numpyro.distributions.Normal(mean, 1), obs=y)
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=30)
    >>> draws = {"mean": y.sum() / 31 + rng.normal(size=(4, 500)) / 31**0.5}
    >>> found = lo.bayes.elpd(lo.bayes.from_numpyro(model, draws, y), lo.leave_one_out())
    >>> len(found.flagged())
    0
    """
    with optional("from_numpyro needs NumPyro: pip install 'leaveout[numpyro]'."):
        from numpyro import handlers
        from numpyro.infer import util
    caller = "from_numpyro"
    if not callable(model):
        raise TypeError(
            f"{caller}: the first argument must be the model, a function; got {type(model).__name__}."
        )
    if not args and not kwargs:
        args = getattr(mcmc, "_args", ())
        kwargs = getattr(mcmc, "_kwargs", {})
    # of arrays of NumPy JAX confuses programs in double and in single precision
    to_jax = lambda leaf: (
        jnp.asarray(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" else leaf
    )
    args, kwargs = jax.tree.map(to_jax, (args, kwargs))
    seeded = handlers.seed(model, 0)
    trace = lambda: handlers.trace(seeded).get_trace(*args, **kwargs)
    try:
        inspect.signature(model).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"{caller}: give the arguments of the model, from_numpyro(model, draws, X, y): {error}."
        ) from error
    try:
        sites = trace()
    except jax.errors.JaxRuntimeError:  # of arrays that the model holds itself
        jax.clear_caches()
        sites = trace()
    sites = {
        name: site
        for name, site in sites.items()
        if site["type"] == "sample" and not site["infer"].get("is_auxiliary")
    }
    latent = {
        name: np.shape(site["value"]) for name, site in sites.items() if not site["is_observed"]
    }
    if any(sites[name]["fn"].support.is_discrete for name in latent):
        raise ValueError(
            f"{caller}: the model has discrete latent sites, whose density has no gradient; sum them out."
        )
    seen = [name for name in sites if name not in latent and np.ndim(sites[name]["value"])]
    unit = sites[unit_variable(caller, seen, observed)]
    shape = np.shape(unit["fn"].log_prob(unit["value"]))
    if not shape or unit["scale"] is not None:
        wrong = "are scaled, by handlers.scale or a plate that draws some of them"
        if not shape:
            wrong = "have one density together"
        raise ValueError(f"{caller}: the entries of {unit['name']!r} are no units: they {wrong}.")
    draws = read_draws(caller, mcmc)

    def log_probs(u: NamedValues) -> NamedValues:
        filled = handlers.substitute(seeded, substitute_fn=partial(util._unconstrain_reparam, u))
        log_densities, _ = util.compute_log_probs(filled, args, kwargs, {}, sum_log_prob=False)
        for name in latent:  # the Jacobian of a transform belongs to the density of its site
            jacobian = f"_{name}_log_det"
            if (
                jacobian in log_densities
                and log_densities[jacobian].shape == log_densities[name].shape
            ):
                log_densities[name] += log_densities.pop(jacobian)
        return log_densities

    unconstrain = jax.jit(
        jax.vmap(
            lambda draws: {
                name: util.unconstrain_fn(model, args, kwargs, draws)[name] for name in latent
            }
        )
    )

    def constrain(u: NamedValues) -> NamedValues:
        parameters = util.constrain_fn(model, args, kwargs, u)
        return {name: parameters[name] for name in latent}

    def draw_responses(key, u: NamedValues):
        filled = handlers.substitute(
            handlers.seed(model, key), substitute_fn=partial(util._unconstrain_reparam, u)
        )
        distribution = handlers.trace(filled).get_trace(*args, **kwargs)[unit["name"]]["fn"]
        return distribution.expand(shape).sample(jax.random.fold_in(key, 1))

    return SampledModel(
        latent,
        shape[0],
        lambda caller, draws: unconstrain(draws),
        constrain,
        densities_by_name(log_probs, unit["name"]),
        response=np.asarray(unit["value"], float) if np.ndim(unit["value"]) == 1 else None,
        draw_responses=draw_responses,
    ).posterior(caller, draws, integrate)
