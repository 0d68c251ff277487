"""Likelihoods written out again for the oracles: Cox's, losses with parameters of their own, and
models with hidden states.

Each model has F(θ, w, data) of a vector θ in its own parametrisation, up to a constant, and the
losses of all units given the units that w leaves in. Hidden states are summed over by a plain
forward pass, or by listing every configuration.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp


def cox(theta, w, data):
    """Breslow's partial likelihood, rows in falling order of time, no ties."""
    X, event, alpha = data
    eta = X @ theta
    top = jnp.max(eta)
    at_risk = jnp.cumsum(w * jnp.exp(eta - top))
    dies = w * event
    log_risk = jnp.log(jnp.where(dies > 0, at_risk, 1.0)) + top
    return jnp.sum(dies * (log_risk - eta)) + 0.5 * alpha * theta @ theta


def partial_likelihood(
    theta, keep, X, time, event, *, ties="efron", sample_weight=None, entry=None, strata=None
):
    """−log partial likelihood of the units in `keep` from lists of all risk sets.

    Those who die together share a weight.
    """
    keep, died, eta, total = np.asarray(keep, bool), np.asarray(event, bool), X @ theta, 0.0
    s = np.ones(len(X)) if sample_weight is None else sample_weight
    entered = np.full(len(X), -np.inf) if entry is None else entry
    stratum = np.zeros(len(X)) if strata is None else strata
    risk = s * np.exp(eta)
    for label, t in itertools.product(np.unique(stratum), np.unique(time[died])):
        at_risk = keep & (stratum == label) & (entered < t) & (t <= time)
        dies = at_risk & (time == t) & died
        count = dies.sum()
        if not count:
            continue
        total -= (s * eta)[dies].sum()
        together, dying = risk[at_risk].sum(), risk[dies].sum()
        for k in range(count):
            share = k / count if ties == "efron" else 0.0
            total += s[dies].mean() * np.log(together - share * dying)
    return total


def _rows(unit):
    """F and the units' losses of a sum over rows, from the loss of all rows."""

    def loss(theta, w, data):
        X, y, alpha, *more = data
        weight, features = (more[0] if more else 1.0), X.shape[1]
        return jnp.sum(w * weight * unit(theta, X, y)) + 0.5 * jnp.sum(
            alpha * theta[:features] ** 2
        )

    return loss, lambda theta, w, data: unit(theta, data[0], data[1])


def _ordinal(theta, X, y):
    """θ: coefficients, the first threshold, the logs of the gaps."""
    eta, own = X @ theta[: X.shape[1]], theta[X.shape[1] :]
    cut = own[0] + jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(own[1:]))])
    below = jnp.concatenate(
        [jax.nn.sigmoid(cut[None] - eta[:, None]), jnp.ones((len(eta), 1))], axis=1
    )
    probability = jnp.diff(below, axis=1, prepend=0.0)
    return -jnp.log(jnp.take_along_axis(probability, y[:, None], axis=1)[:, 0])


def _negative_binomial(theta, X, y):
    eta, size = X @ theta[:-1], jnp.exp(-theta[-1])
    constant = gammaln(size) + gammaln(y + 1) - gammaln(y + size)
    return constant + (y + size) * jnp.log(size + jnp.exp(eta)) - size * jnp.log(size) - y * eta


def _beta(theta, X, y):
    mean, precision = jax.nn.sigmoid(X @ theta[:-1]), jnp.exp(theta[-1])
    a, b = mean * precision, (1 - mean) * precision
    return (
        gammaln(a)
        + gammaln(b)
        - gammaln(precision)
        - (a - 1) * jnp.log(y)
        - (b - 1) * jnp.log(1 - y)
    )


ordinal, ordinal_score = _rows(_ordinal)
negative_binomial, negative_binomial_score = _rows(_negative_binomial)
beta, beta_score = _rows(_beta)


def _gaussian(x, mean, variance):
    return -0.5 * (x - mean) ** 2 / variance - 0.5 * jnp.log(2 * jnp.pi * variance)


def _unseen(total):
    """−log p(x_t | what w sees) of every t, where the weight of t is zero.

    What seeing it changes in −log p(seen).
    """
    return lambda theta, w, data: jax.vmap(
        lambda one: total(theta, jnp.maximum(w, one), data) - total(theta, w, data)
    )(jnp.eye(len(w)))


def _chain(initial, transition, emission):
    """−log of the sum over paths, from log-ratios against the last state and log-densities that are
    weighted already.
    """
    log_initial = jax.nn.log_softmax(jnp.append(initial, 0.0))
    log_transition = jax.nn.log_softmax(
        jnp.concatenate([transition, jnp.zeros((len(transition), 1))], 1), axis=1
    )
    step = lambda a, e: (logsumexp(a[:, None] + log_transition, axis=0) + e, None)
    last, _ = jax.lax.scan(step, log_initial + emission[0], emission[1:])
    # and log Dirichlet(2), twice over
    return -logsumexp(last), jnp.sum(log_initial) + jnp.sum(log_transition)


def _gaussian_chain(theta, w, x):
    """θ: initial [1], transition [2], means [2], log-variances [2]."""
    emission = w[:, None] * _gaussian(x[:, None], theta[3:5], jnp.exp(theta[5:7]))
    return _chain(theta[:1], theta[1:3, None], emission)


def gaussian_chain(theta, w, data):
    x, mean, spread, shape, scale = data
    total, prior = _gaussian_chain(theta, w, x)
    means, log_variance = theta[3:5], theta[5:7]
    prior += -0.5 * jnp.sum(((means - mean) / spread) ** 2)
    return total - prior + jnp.sum((shape + 1) * log_variance + scale * jnp.exp(-log_variance))


gaussian_chain_score = _unseen(lambda theta, w, data: _gaussian_chain(theta, w, data[0])[0])


def _poisson_chain(theta, w, x):
    """θ: initial [1], transition [2], log-rates [2]."""
    emission = w[:, None] * (
        x[:, None] * theta[3:5] - jnp.exp(theta[3:5]) - gammaln(x + 1)[:, None]
    )
    return _chain(theta[:1], theta[1:3, None], emission)


def poisson_chain(theta, w, data):
    x, shape, rate = data
    total, prior = _poisson_chain(theta, w, x)
    return total - prior - jnp.sum((shape - 1) * theta[3:5] - rate * jnp.exp(theta[3:5]))


poisson_chain_score = _unseen(lambda theta, w, data: _poisson_chain(theta, w, data[0])[0])


def configurations(sites: int, states: int = 2) -> np.ndarray:
    """All of them, `[states ** sites, sites]`."""
    return np.array(list(itertools.product(range(states), repeat=sites)))


def _field(theta, w, data):
    """−log p(seen) of a Potts field; θ.

    Coupling, means [2]. `agree` counts the edges of equal ends in each configuration.
    """
    x, every, agree = data[:3]
    emission = w[:, None] * _gaussian(x[:, None], theta[1:3], 1.0)
    seen = jnp.where(every == 0, emission[:, 0], emission[:, 1]).sum(1)
    return logsumexp(theta[0] * agree) - logsumexp(theta[0] * agree + seen)


def field(theta, w, data):
    _, _, _, mean, spread = data
    return (
        _field(theta, w, data)
        + 0.5 * theta[0] ** 2
        + 0.5 * jnp.sum(((theta[1:3] - mean) / spread) ** 2)
    )


field_score = _unseen(_field)


def _sequences(theta, data):
    """−log p(labels | features) of sequences of one length; θ.

    Start, end, transition, weights, of two labels.
    """
    features, labels, every, _ = data
    start, end, transition = theta[:2], theta[2:4], theta[4:8].reshape(2, 2)
    scores = features @ theta[8:].reshape(-1, 2)  # [sequences, steps, labels]

    def path(z, own):
        steps = jnp.take_along_axis(own, z[:, None], axis=1)[:, 0]
        return start[z[0]] + end[z[-1]] + jnp.sum(transition[z[:-1], z[1:]]) + jnp.sum(steps)

    of_all = jax.vmap(lambda own: jax.vmap(lambda z: path(z, own))(every))(scores)
    return logsumexp(of_all, axis=1) - jax.vmap(path)(labels, scores)


def sequences(theta, w, data):
    return jnp.sum(w * _sequences(theta, data)) + 0.5 * data[3] * theta @ theta


def sequences_score(theta, w, data):
    return _sequences(theta, data)


def restricted(X, y, V):
    """The generalised least squares estimate, and minus the restricted log likelihood: minus the
    log density of y with β integrated out under a flat prior.
    """
    inverse = np.linalg.inv(V)
    information = X.T @ inverse @ X
    beta = np.linalg.solve(information, X.T @ inverse @ y)
    left, (n, p) = y - X @ beta, X.shape
    logs = np.linalg.slogdet(V)[1] + np.linalg.slogdet(information)[1] + (n - p) * np.log(2 * np.pi)
    return beta, 0.5 * (logs + left @ inverse @ left)
