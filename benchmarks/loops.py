"""A hidden Markov model as one writes it first: autograd through a Python loop over the steps. For benchmarks/chains.py.

The model is that of `lo.HMM(x, lo.emissions.Autoregressive(0), K)` with its default priors, in the same coordinates:

    θ = [bias, initial log-ratios, transition log-ratios],      x_t | z_t = k ~ N(bias_k, 1)
"""

from collections.abc import Callable

import autograd
import autograd.numpy as np
import numpy
import scipy.optimize
from autograd.scipy.special import logsumexp


def objective(x: numpy.ndarray, states: int) -> Callable:
    """`F(θ, w)`."""
    steps, channels = x.shape
    scale = numpy.sqrt(numpy.mean(x**2, axis=0))
    parts = numpy.cumsum([states * channels, states - 1])

    def log_simplex(ratios):
        logits = np.concatenate([ratios, np.zeros((*ratios.shape[:-1], 1))], axis=-1)
        return logits - logsumexp(logits, axis=-1, keepdims=True)

    def loss(theta, w):
        bias = np.reshape(theta[: parts[0]], (states, channels))
        initial = log_simplex(theta[parts[0] : parts[1]])
        transition = log_simplex(np.reshape(theta[parts[1] :], (states, states - 1)))
        alpha = initial
        for t in range(steps):
            if t:
                alpha = logsumexp(alpha[:, None] + transition, axis=0)
            density = -0.5 * np.sum((x[t] - bias) ** 2, axis=1) - 0.5 * channels * np.log(2 * np.pi)
            alpha = alpha + w[t] * density
        log_prior = np.sum(initial) + np.sum(transition) - 0.5 * np.sum((bias / scale) ** 2)
        return -logsumexp(alpha) - log_prior

    return loss


def hessian(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    """`∂²F/∂θ∂θ`."""
    return autograd.hessian(loss, 0)(theta, w)


def influence(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    """`∂²F/∂θ∂w`, `[params, units]`."""
    return autograd.jacobian(autograd.grad(loss, 0), 1)(theta, w)


def refit(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    """The minimiser of `F(·, w)` by SciPy's BFGS from θ."""
    function = autograd.value_and_grad(loss, 0)
    return scipy.optimize.minimize(function, theta, args=(w,), jac=True, method="BFGS").x
