"""A Markov random field as one writes it first: variable elimination with Python factors, autograd through it. For
benchmarks/fields.py.

The model is that of `lo.MRF(x, edges, lo.emissions.Poisson(prior=None), 2, coupling=β, drop="site")`: θ are log-rates.
"""

from collections.abc import Callable

import autograd
import autograd.numpy as np
import numpy
from scipy.special import gammaln

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


def objective(x: numpy.ndarray, edges: numpy.ndarray, beta: float, order: list[int]) -> Callable:
    """`F(θ, w)` of style B, without prior."""
    constant = gammaln(x + 1)

    def fields(theta, w, emission):
        rates = np.exp(theta)
        singles = [((s,), w[s] * emission * (x[s] * theta - rates - constant[s])) for s in range(len(x))]
        return singles + [((s, t), w[s] * w[t] * beta * np.eye(2)) for s, t in edges.tolist()]

    return lambda theta, w: log_sum(fields(theta, w, 0.0), order) - log_sum(fields(theta, w, 1.0), order)


def hessian(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    return autograd.hessian(loss, 0)(theta, w)


def influence(loss: Callable, theta: numpy.ndarray, w: numpy.ndarray) -> numpy.ndarray:
    """`∂²F/∂θ∂w`, `[params, units]`."""
    return autograd.jacobian(autograd.grad(loss, 0), 1)(theta, w)


def query(factors: list[Factor], order: list[int], site: int) -> numpy.ndarray:
    """`p(z_s)` by elimination of all others: an E-step asks for each site in turn."""
    left = eliminated(factors, [s for s in order if s != site])
    table = sum(table for _, table in left)
    return numpy.exp(table - numpy.logaddexp.reduce(table))
