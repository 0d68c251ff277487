"""Hessians of hidden Markov models put together by parts, against plain automatic differentiation of the loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import flat

import leaveout as lo
from leaveout.models import _information, _moments
from leaveout.models.emissions._base import Constraint

LENGTHS = [13, 7, 22, 9, 16, 5, 30, 8]
STEPS = sum(LENGTHS)
CIRCLE = np.array([[np.nan, np.nan, 0], [0, np.nan, np.nan], [np.nan, 0, np.nan]])
EMISSIONS = {
    "gaussian": (lo.emissions.Gaussian, {}),
    "full": (lambda: lo.emissions.Gaussian(covariance="full"), {}),
    "tied": (lambda: lo.emissions.Gaussian(covariance="tied"), {}),
    "autoregressive": (lambda: lo.emissions.Autoregressive(2, covariance="diagonal"), {}),
    "neural": (lambda: lo.emissions.NeuralAutoregressive(3, 1), {}),
    "poisson": (lo.emissions.Poisson, {"prior": None}),
    "negative binomial": (lo.emissions.NegativeBinomial, {"initial": "stationary"}),
    "categorical": (lambda: lo.emissions.Categorical(4), {"transition": CIRCLE}),
    "fixed chain": (lo.emissions.Poisson, {"initial": np.full(3, 1 / 3), "transition": 0.7 * np.eye(3) + 0.1}),
}


def series(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if name in ("poisson", "negative binomial", "fixed chain"):
        x = rng.poisson(3.0, (STEPS, 1)).astype(float)
    elif name == "categorical":
        x = rng.integers(0, 4, (STEPS, 1)).astype(float)
    else:
        x = rng.standard_normal((STEPS, 2))
        x[3, 1] = np.nan
    x[40] = np.nan
    return x


def both(hmm, seed=1):
    """By parts, and by differentiating the loss twice, at random weights of which one is zero."""
    weights = np.random.default_rng(2).uniform(0, 2, hmm.num_units)
    weights[1] = 0.0
    start = hmm.initial(seed)
    with jax.enable_x64(True):
        theta = jax.tree.map(jnp.asarray, start)
        found = eqx.filter_jit(hmm.hessian)(theta, jnp.asarray(weights))
        _, unravel = jax.flatten_util.ravel_pytree(theta)
        plain = jax.jit(jax.hessian(lambda v: hmm.loss(unravel(v), jnp.asarray(weights))))(jnp.asarray(flat(start)))
        return np.asarray(found), np.asarray(plain)


CASES = [(name, drop, 2**26) for name in EMISSIONS for drop in ("sequence", "observation")]
CASES += [(name, "sequence", 700) for name in ("autoregressive", "fixed chain")]  # in several groups of columns
QUICK = {("autoregressive", "sequence", 700), ("fixed chain", "observation", 2**26)}
CASES = [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize(("name", "drop", "columns"), CASES)
def test_hessian_by_parts(name, drop, columns, monkeypatch):
    monkeypatch.setattr(_information, "MANY", 1)
    monkeypatch.setattr(_moments, "COLUMNS", columns)
    make, chain = EMISSIONS[name]
    hmm = lo.HMM(series(name), make(), 3, lengths=LENGTHS, drop=drop, **chain)
    assert hmm.by_parts
    found, plain = both(hmm)
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-9 * np.abs(plain).max())


def test_many_parameters_go_by_parts_by_themselves():
    hmm = lo.HMM(np.random.default_rng(0).standard_normal((240, 6)), lo.emissions.Autoregressive(3), 5, lengths=[24] * 10)
    assert hmm.by_parts
    found, plain = both(hmm)
    np.testing.assert_allclose(found, plain, rtol=1e-8, atol=1e-9 * np.abs(plain).max())


class Ordered(lo.emissions.AbstractEmission):
    """Means that are told apart by their order: each state's depends on what stands for those before it."""

    @property
    def free(self):
        natural = lambda v: jnp.cumsum(jnp.concatenate([v[:1], jnp.exp(v[1:])]), 0)
        return {"mean": Constraint(natural, lambda m: jnp.concatenate([m[:1], jnp.log(jnp.diff(m, axis=0))]))}

    def log_density(self, parameters, datum):
        return -0.5 * jnp.sum((datum - parameters["mean"]) ** 2)

    def initial(self, data, observed, num_states, seed):
        return {"mean": np.linspace(-1, 1, num_states)[:, None]}


def test_states_that_share_their_coordinates_do_not(monkeypatch):
    monkeypatch.setattr(_information, "MANY", 1)
    hmm = lo.HMM(np.random.default_rng(0).standard_normal(STEPS), Ordered(), 3, lengths=LENGTHS)
    assert not hmm.by_parts
    found, plain = both(hmm)
    np.testing.assert_allclose(found, plain, atol=1e-9 * np.abs(plain).max())
