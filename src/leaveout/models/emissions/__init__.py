"""Emissions: the density of an observation given the state of a hidden Markov model.

An emission of your own needs its parameters, a log-density of one step in one state, and starts; a
prior keeps the fit off the boundary:

    class ZeroInflatedPoisson(AbstractEmission):
        @property
        def free(self):
            return {"rate": POSITIVE, "absent": PROBABILITY}

        def log_density(self, parameters, datum):
            rate, absent, x = parameters["rate"], parameters["absent"], datum[0]
            present = jnp.log1p(-absent) + x * jnp.log(rate) - rate - gammaln(x + 1)
            return jnp.where(x == 0, jnp.logaddexp(jnp.log(absent), present), present)

        def log_prior(self, parameters):
            rate, absent = parameters["rate"], parameters["absent"]
            return jnp.sum(jnp.log(rate) - 0.1 * rate + 0.5 * jnp.log(absent) + 0.5 *
            jnp.log1p(-absent))

        def initial(self, data, observed, num_states, seed):
            spread = np.exp(0.5 * np.random.default_rng(seed).standard_normal(num_states))
            return {"rate": data[observed].mean() * spread, "absent": np.full(num_states, 0.1)}

`prepare` checks and transforms the data; `means` and `draw` are for predictions and simulations.
See AbstractEmission.
"""

from ..._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
