"""The tests' objectives, and the toy hidden Markov model that keeps the core from being shaped for GLMs alone."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import leaveout as lo


class ToyHMM(lo.AbstractObjective):
    """A two-state Gaussian chain, `x` `[T]`. A weight multiplies its step's log emission, so zero means unseen."""

    x: np.ndarray

    @property
    def num_units(self):
        return len(self.x)

    @property
    def serial(self):
        return True

    def _parts(self, theta, weights):
        transition = jax.nn.log_sigmoid(jnp.stack([theta["stay"], -theta["stay"]], 1))
        transition = jnp.stack([transition[0], transition[1][::-1]])
        emission = -0.5 * (jnp.asarray(self.x)[:, None] - theta["mean"]) ** 2 - 0.5 * jnp.log(2 * jnp.pi)
        return transition, emission, weights[:, None] * emission

    def _forward(self, transition, seen):
        def step(a, e):
            predicted = logsumexp(a[:, None] + transition, axis=0)
            return predicted + e, predicted

        first = jnp.full(2, jnp.log(0.5))
        last, predicted = jax.lax.scan(step, first + seen[0], seen[1:])
        return last, jnp.concatenate([first[None], predicted])

    def loss(self, theta, weights):
        transition, _, seen = self._parts(theta, weights)
        last, _ = self._forward(transition, seen)
        prior = 0.5 * jnp.sum(theta["mean"] ** 2) / 9 + 0.5 * jnp.sum((theta["stay"] - 1) ** 2)
        return -logsumexp(last) + prior

    def score(self, theta, weights, index, held):
        transition, emission, seen = self._parts(theta, weights)
        _, predicted = self._forward(transition, seen)

        def back(b, e):
            b = logsumexp(transition + (b + e)[None], axis=1)
            return b, b

        _, rest = jax.lax.scan(back, jnp.zeros(2), seen[1:][::-1])
        state = predicted + jnp.concatenate([rest[::-1], jnp.zeros((1, 2))])
        state = state - logsumexp(state, axis=-1, keepdims=True)
        return -logsumexp(state + emission, axis=-1).at[index].get(mode="clip")

    def initial(self, seed):
        spread = np.random.default_rng(seed).uniform(0.5, 2.0)
        return {"mean": np.array([-spread, spread]), "stay": np.ones(2)}


def toy_hmm(n: int = 60, seed: int = 0) -> ToyHMM:
    rng = np.random.default_rng(seed)
    state = np.cumsum(rng.random(n) < 0.1) % 2
    return ToyHMM(rng.standard_normal(n) + np.where(state, 1.6, -1.6))
