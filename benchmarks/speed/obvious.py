"""Two models as one writes them first, with autograd through Python loops: the opponents of
`chains.py loops` and `fields.py obvious`.

The chain is that of `lo.HMM(x, lo.emissions.Autoregressive(0), K)` with its default priors, in the
same coordinates:

    θ = [bias, initial log-ratios, transition log-ratios],      x_t | z_t = k ~ N(bias_k, 1)

The field is that of `lo.MRF(x, edges, lo.emissions.Poisson(prior=None), 2, coupling=β,
drop="site")`, summed by variable elimination with Python factors; θ are its log-rates. This is a
module of two programs, not a program.
"""

from collections.abc import Callable

import autograd
import autograd.numpy as np
import numpy
import scipy.optimize
from autograd.scipy.special import logsumexp
from scipy.special import gammaln


def chain_objective(x: numpy.ndarray, states: int) -> Callable:
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


def chain_hessian(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    """`∂²F/∂θ∂θ`."""
    return autograd.hessian(loss, 0)(theta, w)


def influence(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    """`∂²F/∂θ∂w`, `[params, units]`."""
    return autograd.jacobian(autograd.grad(loss, 0), 1)(theta, w)


def refit(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    """The minimiser of `F(·, w)` by SciPy's BFGS from θ."""
    function = autograd.value_and_grad(loss, 0)
    return scipy.optimize.minimize(function, theta, args=(w,), jac=True, method="BFGS").x


Factor = tuple[tuple[int, ...], numpy.ndarray]  # the sites, and the table of logarithms


def product(factors: list[Factor], scope: tuple[int, ...]) -> numpy.ndarray:
    """The sum of log-tables over all sites of the scope."""
    total = 0.0
    for sites, table in factors:
        order = [s for s in scope if s in sites]
        moved = np.transpose(table, [sites.index(s) for s in order])
        total = total + np.reshape(moved, [2 if s in sites else 1 for s in scope])
    return total


def eliminated(factors: list[Factor], order: list[int]) -> list[Factor]:
    """What is left when the sites have been summed out in this order."""
    for site in order:
        mine = [factor for factor in factors if site in factor[0]]
        factors = [factor for factor in factors if site not in factor[0]]
        rest = tuple(sorted({s for sites, _ in mine for s in sites} - {site}))
        table = product(mine, (site, *rest))
        top = numpy.max(autograd.tracer.getval(table), axis=0)
        factors.append((rest, top + np.log(np.sum(np.exp(table - top), axis=0))))
    return factors


def log_sum(factors: list[Factor], order: list[int]) -> float:
    return sum(table for _, table in eliminated(factors, order))


def field_objective(
    x: numpy.ndarray, edges: numpy.ndarray, beta: float, order: list[int]
) -> Callable:
    """`F(θ, w)` of style B, without prior."""
    constant = gammaln(x + 1)

    def fields(theta, w, emission):
        rates = np.exp(theta)
        singles = [
            ((s,), w[s] * emission * (x[s] * theta - rates - constant[s])) for s in range(len(x))
        ]
        return singles + [((s, t), w[s] * w[t] * beta * np.eye(2)) for s, t in edges.tolist()]

    return lambda theta, w: (
        log_sum(fields(theta, w, 0.0), order) - log_sum(fields(theta, w, 1.0), order)
    )


def field_hessian(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    return autograd.hessian(loss, 0)(theta, w)


def query(factors: list[Factor], order: list[int], site: int) -> numpy.ndarray:
    """`p(z_s)` by elimination of all others: an E-step asks for each site in turn."""
    left = eliminated(factors, [s for s in order if s != site])
    table = sum(table for _, table in left)
    return numpy.exp(table - numpy.logaddexp.reduce(table))
