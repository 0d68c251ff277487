"""Ratios of normalisers Z(w) = ∫ exp(−F(θ, w)) dθ by importance sampling.

    A(w) = log Z(w) − log Z(1) = log E[exp(F(θ, 1) − F(θ, w)) | posterior]

The draws are used as they are; or half of them moved to where the posterior goes when units leave,
by the affine map between the Gaussians at the two modes,

    T θ = m_w + L_w⁻ᵀ Lᵀ (θ − m),      H = L Lᵀ,  H_w = L_w L_wᵀ

and weighted by the density of the mixture, exp(−F(x, 1))/2 + exp(−F(T⁻¹x, 1)) |L_w|/|L| / 2; or
draws of a multivariate t at the fold's mode join them. Weights are smoothed by Pareto's
distribution (PSIS), whose k̂ says whether their mean can be trusted.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Float32
from numpy import linalg
from scipy.special import logsumexp

from ... import Fit
from ...developer import (
    Curvature,
    NumpyArray,
    RefitUnits,
    TwoArrays,
    fit_pareto,
    functions,
    newton,
    silence,
    whole,
)
from .posterior import CHECKED_DRAWS, Draws, Posterior, batch_means

# degrees of freedom of the t, whose tails are heavier than those of posteriors of more than a few
# units
FREEDOM = 7
FINITE_K = 0.5  # Pareto's k below which weights have a variance
# standard deviation of log weights below which their mean is nearly normal; unlike k̂ it does not
# select by errors
EVEN_SPREAD = 0.3
FLAT = 1e-9  # difference of log weights that is rounding
# log weight, beside the largest, below which none is in a tail
LEAST = np.log(np.finfo(float).tiny)
FEWEST_OF_TAIL = 5  # weights to which a Pareto distribution is fitted
GOOD_K = 0.2  # k̂ below which k is below that, as its own error is about 0.1
# Pareto's k̂ from which on means of weights are not to be trusted, however many (Vehtari et al.,
# 2024)
MAX_K = 0.7
# effective draws below which neither k̂ nor an error can be told; silent errors came to 0.7 there
MIN_EFFECTIVE = 50
# k̂ over the effective share of draws from which on mass may be missed; silent errors came to 1.3
# there
K_OF_SHARE = 1.4
# difference of two estimates of one elpd from which on neither is; silent errors below it were 0.07
# at most
MAX_GAP = 0.1
PerSet = Float[NumpyArray, " *sets"]
SetDraws = Float[NumpyArray, "*sets draws"]
SetPlaces = Float[NumpyArray, "*sets places"]


class WeightedDraws(NamedTuple):
    """Draws with weights that sum to one; in single precision, as every fold has as many as there
    are draws.

    `places` returns the draws, so that moved ones take no memory.
    """

    places: Callable[[], Draws]
    weight: Float32[NumpyArray, " draws"]

    @property
    def theta(self) -> Draws:
        """The draws."""
        return self.places()


class Smoothed(NamedTuple):
    """Log weights with their tails smoothed, and k̂ of each set."""

    log_weights: SetDraws
    k: PerSet


def smooth(log_weights: SetDraws, efficiency: float) -> Smoothed:
    """Smooth the tails of sets of weights by Pareto's distribution (PSIS).

    The scale of the weights stays.
    """
    count = log_weights.shape[-1]
    tail = int(np.ceil(min(count / 5, 3 * np.sqrt(count / efficiency))))
    sets = np.array(log_weights.reshape(-1, count))
    k = np.array([_smooth_tail(row, tail) for row in sets])
    return Smoothed(sets.reshape(log_weights.shape), k.reshape(log_weights.shape[:-1]))


def _smooth_tail(log_weights: Float[NumpyArray, " draws"], tail: int) -> float:
    """Smooth the largest of one set of weights in place, and return k̂.

    Weights that are equal to rounding need none.
    """
    largest = log_weights.max()
    if not np.isfinite(largest):
        return np.inf
    top = np.argpartition(log_weights, -tail - 1)[-tail - 1 :]
    top = top[np.argsort(log_weights[top])]
    scaled = log_weights[top] - largest
    if scaled[0] > -FLAT:
        return -np.inf
    cutoff = max(scaled[0], LEAST)
    above = scaled > cutoff
    excess = np.exp(scaled[above]) - np.exp(cutoff)
    if len(excess) < FEWEST_OF_TAIL:
        return np.inf
    n = len(excess)
    k, scale = fit_pareto(excess)
    k = (n * k + 5) / (n + 10)  # a prior of ten numbers at k = 1/2
    if not (np.isfinite(k) and scale > 0):
        return np.inf
    # of the exponential distribution
    quantiles = -np.log1p(-np.arange(0.5, n) / n)
    quantiles = scale * (np.expm1(k * quantiles) / k if k else quantiles)
    log_weights[top[above]] = largest + np.minimum(np.log(quantiles + np.exp(cutoff)), 0.0)
    return float(k)


def max_k(draws: int) -> float:
    """Pareto's k̂ from which on the mean of so many weights is not to be trusted (Vehtari et al.,
    2024).
    """
    return float(min(1 - 1 / np.log10(draws), MAX_K))


def log_mean(log_values: NumpyArray) -> NumpyArray:
    """Logarithm of the mean of exponentials over the first axis."""
    top = log_values.max(0)
    top = np.where(np.isfinite(top), top, 0.0)
    with silence("divide"):
        return top + np.log(np.exp(log_values - top).mean(0))


class Normaliser(NamedTuple):
    """Estimates of A(w) = log mean r from sets of weights r.

    `influence` holds the means of r / mean r − 1 over batches of draws, and `effective` is the
    number of draws that the weights are worth. `share` is that number over the number of draws, if
    draws are independent.
    """

    value: PerSet
    k: PerSet
    influence: Float[NumpyArray, "*sets batches"]
    effective: PerSet
    share: PerSet


def summarise(
    log_weights: SetPlaces, posterior: Posterior
) -> tuple[Normaliser, SetPlaces, SetPlaces]:
    """Estimate A, and return the smoothed weights over their mean, and the logarithms.

    The places of one draw are averaged.
    """
    smoothed, k = smooth(log_weights, posterior.efficiency)
    count = log_weights.shape[-1]
    draws = len(posterior.draws)
    top = smoothed.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with silence("over", "invalid", "divide"):
        ratio = np.exp(smoothed - top)
        mean = ratio.mean(-1, keepdims=True)
        value = top + np.log(mean)
        ratio /= mean
    square = lambda values: np.einsum("...i,...i->...", values, values)
    paired = by_draw(ratio, draws) - 1
    means = means_of_batches(paired, posterior)
    by_chain = means.reshape(*k.shape, posterior.chains, -1).mean(-1)
    plain = (square(paired) / draws - paired.mean(-1) ** 2) / draws
    batched = np.max(
        [
            values.var(-1, ddof=1) / values.shape[-1]
            for values in (means, by_chain)
            if values.shape[-1] > 1
        ],
        0,
    )
    with silence("divide", "invalid"):
        share = count**2 / square(ratio) / draws
        effective = share * draws * np.where(batched > plain, plain / batched, 1.0)
    return Normaliser(value[..., 0], k, means, effective, share), ratio, smoothed - value


def by_draw(values: SetPlaces, draws: int) -> SetDraws:
    """Average the places that belong to one draw."""
    if values.shape[-1] == draws:
        return values
    return values.reshape(*values.shape[:-1], -1, draws).mean(-2)


def means_of_batches(values: SetDraws, posterior: Posterior) -> Float[NumpyArray, "*sets batches"]:
    """Means over batches of draws."""
    return np.moveaxis(
        batch_means(np.moveaxis(values, -1, 0), posterior.chains, posterior.batches), 0, -1
    )


class GaussianProposal(NamedTuple):
    """A Gaussian by its mean and the lower factor of its precision."""

    mean: NumpyArray
    factor: NumpyArray

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the factor."""
        return float(np.log(np.diag(self.factor)).sum())

    def map_from(self, other: "GaussianProposal", theta: NumpyArray) -> NumpyArray:
        """Map draws of another Gaussian to draws of this one."""
        return self.mean + self.unwhiten(other.factor.T @ (theta - other.mean).T).T

    def log_student(self, theta: NumpyArray) -> NumpyArray:
        """Logarithm of the density of the multivariate t about this Gaussian."""
        z = (theta - self.mean) @ self.factor
        size = len(self.mean)
        log_density = (
            scipy.stats.multivariate_t.logpdf(z, np.zeros(size), np.eye(size), FREEDOM)
            + self.log_det
        )
        return np.reshape(log_density, len(theta))

    def students(self, count: int) -> Draws:
        """Draw from the multivariate t about this Gaussian, always by the same random numbers."""
        rng = np.random.default_rng(0)
        size = len(self.mean)
        z = (
            rng.standard_normal((count, size))
            * np.sqrt(FREEDOM / rng.chisquare(FREEDOM, count))[:, None]
        )
        return self.mean + self.unwhiten(z.T).T

    def unwhiten(self, z: NumpyArray) -> NumpyArray:
        """Map columns of standard normals to deviations from the mean."""
        return scipy.linalg.solve_triangular(self.factor, z, trans="T", lower=True)


def about(draws: NumpyArray, weight: NumpyArray | None = None) -> GaussianProposal:
    """Return the Gaussian of the moments of draws."""
    spread = np.atleast_2d(np.cov(draws.T, aweights=weight))
    gaussian = _gaussian(mean := np.average(draws, 0, weight), linalg.pinv(spread))
    if gaussian is not None:
        return gaussian
    return GaussianProposal(mean, np.diag(1 / draws.std(0)))


def _gaussian(mean: NumpyArray, precision: NumpyArray) -> GaussianProposal | None:
    curvature = Curvature.of(precision, 0.0)
    if curvature.definite and np.isfinite(mean).all():
        return GaussianProposal(mean, curvature.factor)
    return None


def gaussian_of(posterior: Posterior) -> GaussianProposal:
    """Return the Gaussian at the mode of a posterior, or about its draws where there is none."""
    fit = posterior.mode
    return (None if fit is None else _gaussian(fit.vector, fit.hessian)) or about(posterior.draws)


def gaussians_of_refits(posterior: Posterior, weights: RefitUnits) -> list[GaussianProposal | None]:
    """Return the Gaussians at the modes of refits, or by a step from the mean of the draws.

    None where there is none.
    """
    fit = posterior.mode
    if fit is None:
        moments = _about_draws(posterior, weights)
    else:
        moments = _at_modes(fit, weights)
    return [_gaussian(mean, precision) for mean, precision in zip(*moments, strict=True)]


def _at_modes(fit: Fit, weights: NumpyArray) -> TwoArrays:
    """Descend by Newton steps from the mode.

    Where they end need not be exact, as weights make up for it.
    """
    F = functions(fit.objective, fit.theta, whole(weights))
    lanes = np.arange(len(weights))
    _, theta, converged, _ = newton(
        F, np.tile(fit.vector, (len(weights), 1)), lanes, fit.quadratic.null_space
    )
    theta = np.where(converged[:, None] & np.isfinite(theta), theta, fit.vector)
    return theta, F.hessian(theta, lanes)


def _about_draws(posterior: Posterior, weights: NumpyArray) -> TwoArrays:
    """Take one Newton step from the mean of the draws, by the change of F alone, from the precision
    of the draws.

    F is differentiated along the axes of the draws, by differences of its gradients.
    """
    gaussian = about(posterior.draws)
    step = 1e-3  # of differences, in standard deviations of the draws
    axes = gaussian.unwhiten(step * np.eye(len(gaussian.mean))).T
    points = gaussian.mean + np.concatenate([axes, -axes])
    rows = np.concatenate([np.ones((1, weights.shape[1])), weights])
    lanes = np.repeat(np.arange(len(rows)), len(points))
    # as many rows as were checked find the program that checked them
    padded = np.resize(rows, (max(CHECKED_DRAWS, len(rows)), weights.shape[1]))
    F = functions(posterior.objective, posterior.like, whole(padded))
    slopes = F.look(np.tile(points, (len(rows), 1)), lanes)[1].reshape(len(rows), *points.shape)
    slope = slopes.mean(1)
    above, below = np.split(slopes, 2, axis=1)
    hessians = gaussian.factor @ (above - below) / (2 * step)
    precision = gaussian.factor @ gaussian.factor.T
    precisions = precision + hessians[1:] - hessians[:1]
    precisions = np.where(linalg.eigvalsh(precisions)[:, :1, None] > 0, precisions, precision)
    return gaussian.mean - linalg.solve(precisions, (slope[1:] - slope[:1])[..., None])[
        ..., 0
    ], precisions


def normaliser(posterior: Posterior) -> Normaliser | None:
    """Estimate log Z(1) by a t about the draws.

    None if the draws say otherwise, as those of several modes may.
    """
    gaussian = about(posterior.draws)
    theta = gaussian.students(len(posterior.draws))
    log_weights = -posterior.values(theta) - gaussian.log_student(theta)
    estimate, _, _ = summarise(log_weights, posterior)
    by_bridge = bridge(log_weights, -posterior.value - gaussian.log_student(posterior.draws))
    if abs(estimate.value - by_bridge) < MAX_GAP:
        return estimate
    return None


def bridge(ratio: Float[NumpyArray, " draws"], refit_ratio: Float[NumpyArray, " others"]) -> float:
    """Estimate A(w) from log ratios F(θ, 1) − F(θ, w) at draws of both posteriors (Meng and Wong,
    1996).
    """
    s = np.log(len(ratio))
    t = np.log(len(refit_ratio))
    value = float(log_mean(ratio))
    # the iteration is a contraction; a few dozen reach the tolerance where draws overlap
    for _ in range(1000):
        above = logsumexp(ratio - np.logaddexp(t + ratio - value, s)) - s
        below = logsumexp(-np.logaddexp(t + refit_ratio - value, s)) - t
        if abs(above - below - value) < 1e-9:
            break
        value = above - below
    return float(value)
