"""Posteriors of NumPyro's models, through their log densities in JAX."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._runtime.conventions import conventional
from .._runtime.jax import float64, jax, jnp
from ..data.arrays import codes
from ..objectives.objective import AbstractObjective, unravel
from .coordinates import DrawCoordinates, read_draws
from .posterior import Posterior, check_posterior
from .sampled import Conditional, Integrated, Sampled


@conventional
@float64
def from_numpyro(
    model: Callable[..., Any],
    mcmc: Any,
    *args: Any,
    observed: str | None = None,
    integrate: Mapping[str, ArrayLike] | None = None,
    **kwargs: Any,
) -> Posterior:
    """Take a posterior that NumPyro sampled.

    F is the model's log density in NumPyro's own unconstrained coordinates. The units are the entries of an observed site,
    along its first axis.

    Parameters
    ----------
    model : callable
        The model, as it was given to the kernel, without discrete latent variables.
    mcmc : numpyro.infer.MCMC, or dict of arrays
        The sampler that ran, or draws of the latent sites by name, as `lo.from_posterior` takes them.
    *args : Any
        Arguments of the model; by default those of the last run.
    observed : str, optional
        The observed site whose entries are the units; needed if there are several.
    integrate : dict of array, optional
        A latent site with one number a group that is integrated out: the group of each unit, 0, 1, …, by its name.
    **kwargs : Any
        Arguments of the model by name.

    Returns
    -------
    Posterior
        The posterior.

    Raises
    ------
    ValueError
        If no site, or several, could be the units; or if draws of a site are missing.
    ImportError
        If NumPyro is not installed.

    See Also
    --------
    from_posterior : Take draws and a density of your own.

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
    >>> found = lo.elpd(lo.from_numpyro(model, draws, y), lo.leave_one_out(30))
    >>> len(found.flagged())
    0
    """
    try:
        from numpyro import handlers
        from numpyro.infer import util
    except ImportError:
        raise ImportError("from_numpyro needs NumPyro: pip install 'leaveout[numpyro]'.") from None
    caller = "from_numpyro"
    if not args and not kwargs:
        args, kwargs = getattr(mcmc, "_args", ()), getattr(mcmc, "_kwargs", {})
    seeded = handlers.seed(model, 0)
    sites = handlers.trace(seeded).get_trace(*args, **kwargs)
    sites = {name: site for name, site in sites.items() if site["type"] == "sample"}
    latent = {name: site for name, site in sites.items() if not site["is_observed"]}
    seen = [name for name, site in sites.items() if site["is_observed"] and np.ndim(site["value"])]
    if any(site["fn"].support.is_discrete for site in latent.values()):
        raise ValueError(f"{caller}: the model has discrete latent sites, whose density has no gradient; sum them out.")
    if observed is None and len(seen) != 1:
        raise ValueError(f"{caller}: name the site whose entries are the units, observed=; of {', '.join(seen) or 'none'}.")
    unit_site = seen[0] if observed is None else observed
    if unit_site not in seen:
        raise ValueError(f"{caller}: {unit_site!r} is no observed site; the model has {', '.join(seen)}.")
    found = read_draws(caller, mcmc.get_samples(group_by_chain=True) if hasattr(mcmc, "get_samples") else mcmc)
    effects = {str(name): codes(caller, "integrate", value)[0] for name, value in (integrate or {}).items()}
    missing = sorted(latent.keys() - found.arrays.keys())
    if missing or len(effects) > 1 or effects.keys() - latent.keys():
        wrong = (
            f"draws of {', '.join(missing)} are missing" if missing else f"integrate takes one latent site, not {list(effects)}"
        )
        raise ValueError(f"{caller}: {wrong}; the model has {', '.join(latent)}.")
    shared = sorted(latent.keys() - effects.keys())
    one = {name: jnp.asarray(found.arrays[name][0]) for name in latent}
    like = {name: np.asarray(value) for name, value in util.unconstrain_fn(model, args, kwargs, one).items() if name in shared}
    at = DrawCoordinates(caller, {name: leaf[None] for name, leaf in like.items()}, {})

    def densities(u: Any, data: Any, z: Any = None) -> Conditional:
        del data
        params = dict(u) if z is None else {**u, effect: z}
        filled = handlers.substitute(seeded, substitute_fn=functools.partial(util._unconstrain_reparam, params))
        each, _ = util.compute_log_probs(filled, args, kwargs, {}, sum_log_prob=False)
        own = each.pop(unit_site)
        effects = each.pop(effect) if z is not None else None
        return Conditional(own.reshape(len(own), -1).sum(1), effects, sum(jnp.sum(value) for value in each.values()))

    num, names = int(np.shape(sites[unit_site]["fn"].log_prob(sites[unit_site]["value"]))[0]), tuple(at.names())
    objective: AbstractObjective = Sampled(densities, (), num, like, names)
    if effects:
        ((effect, code),) = effects.items()
        if len(code) != num:
            raise ValueError(f"{caller}: integrate gives {len(code)} groups, one a unit; {unit_site!r} has {num} entries.")
        objective = Integrated(densities, (), num, like, names, code, int(code.max()) + 1)

    def to_theta(draws: dict[str, np.ndarray]) -> np.ndarray:
        params = {name: jnp.asarray(draws[name]) for name in latent}
        back = jax.vmap(lambda each: util.unconstrain_fn(model, args, kwargs, each))(params)
        return np.concatenate([np.asarray(back[name]).reshape(len(back[name]), -1) for name in shared], axis=1)

    def named(u: np.ndarray) -> dict[str, np.ndarray]:
        if effects:
            return jax.tree.map(np.asarray, jax.vmap(lambda v: unravel(v, like))(u))
        back = jax.vmap(lambda v: util.constrain_fn(model, args, kwargs, unravel(v, like)))(u)
        return {name: np.asarray(back[name]) for name in shared}

    theta = to_theta(found.arrays)
    return check_posterior(caller, Posterior(objective, theta, found.chains, like, to_theta, named, list(names)))
