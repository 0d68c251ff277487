"""Change of ∇F between θ̂ and a refit, estimated from a sample of units, if a gradient of every
refit costs too much.

For F(θ, w) = Σ_n w_n ℓ_n(θ) + a quadratic, and m units drawn with probabilities p_n,

    ∇F(θ̂ + Δ, 1) = ∇F(θ̂, 1) + HΔ + b(Δ),
    b(Δ) ≈ (1/m) Σ_drawn (½ (∇ℓ_n(θ̂ + Δ) + ∇ℓ_n(θ̂ − Δ)) − ∇ℓ_n(θ̂)) / p_n,

without the part that is odd and of third order in Δ. Only the effect of b on the refit's loss is
computed, b · H⁻¹∇S, which needs one directional derivative for every drawn unit. The contribution
of the left-out units is not sampled.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._runtime.jax import Array, Arrays, cached_on, compile_static, jax, jnp
from ..objectives.batch_functions import held_out, own_passes
from ..objectives.objective import (
    AbstractObjective,
    Lanes,
    PerLane,
    Points,
    ravel,
    unravel,
)
from ..optimize.fit import Fit
from ..plans.plan import RefitRows, few_size

SIZES = 64, 512  # units drawn: few for every refit, more for refits that these do not settle
MIN_SCREENED_REFITS = 200  # number of refits from which sampling saves time


class Sample(NamedTuple):
    """Sampled units, the number of units each stands for, and their whitened gradients at θ̂."""

    objective: AbstractObjective
    weight: Float[np.ndarray, " selected"]  # 1 / (m p) of one draw
    times: Float[np.ndarray, " selected"]  # how often each was drawn
    influence: Float[np.ndarray, "selected params"]


def available(fit: Fit, rows: RefitRows) -> bool:
    """Whether a sample can be drawn and is much cheaper than all units."""
    n = fit.objective.num_units
    if not fit.objective.local or fit.factor is None or int(rows.num_refits) < MIN_SCREENED_REFITS:
        return False
    large = n >= max(10 * fit.num_params, 4 * max(SIZES))
    return bool(
        large and rows.index.shape[1] < n and fit.objective.subset(np.arange(2)) is not None
    )


@cached_on
def samples(fit: Fit) -> tuple[Sample, ...]:
    """Draw units in proportion to their part of the curvature, as estimated from their gradients.

    One draw in five is uniform.
    """
    n = fit.objective.num_units
    size = np.sum(fit.influence**2, 1)
    chance = 0.8 * size / max(size.sum(), 1e-300) + 0.2 / n
    chance /= chance.sum()
    indices = np.random.default_rng(0).choice(n, max(SIZES), p=chance)
    parts = []
    for m in SIZES:
        units, times = np.unique(indices[:m], return_counts=True)
        objective = fit.objective.subset(units)
        assert objective is not None
        parts.append(
            Sample(objective, 1 / (m * chance[units]), times.astype(float), fit.influence[units])
        )
    return tuple(parts)


def whitened_gradients(
    fit: Fit, rows: RefitRows, u: Points, lanes: Lanes, size: int
) -> tuple[Points, PerLane]:
    """Whitened gradients of selected refits' own F at u, without b, and bounds of b's effect on
    their summed losses.

    The bound is the estimate from one of the samples plus three standard errors.
    """
    places = _pad(len(lanes), len(rows.index))
    chunk = max(1, own_passes(fit.objective, rows.index.shape[1]) // 8)
    batch = rows.take(lanes[places])
    gradient, error = _chunked_gradients(
        fit, samples(fit)[size], batch.index, batch.weight, batch.held, u[places], chunk
    )
    return np.asarray(gradient)[: len(lanes)], np.asarray(error)[: len(lanes)]


def _pad(count: int, most: int) -> Int[np.ndarray, " padded"]:
    """Places of some refits, the last of them repeated up to a power of eight, or up to `most`."""
    # least number of refits in one call
    size = min(max(8 ** int(np.ceil(np.log2(max(count, 1)) / 3)), 64), few_size(max(most, count)))
    return np.minimum(np.arange(size), count - 1)


@compile_static
def _chunked_gradients(
    fit: Fit, sample: Sample, index: Arrays, weight: Arrays, held: Arrays, u: Arrays, chunk: int
) -> tuple[Array, Array]:
    m, count = jnp.sum(sample.times), len(sample.times)
    whitener = jnp.asarray(fit.whitener)
    vector = lambda u: ravel(fit.theta) + u @ whitener
    unwhitened = lambda u: unravel(vector(u), fit.theta)
    losses = lambda u: sample.objective.score(
        unwhitened(u), jnp.ones(count), jnp.arange(count), jnp.ones(count)
    )

    def one_refit(args):
        index, weight, held, u = args
        delta = jnp.where(index < fit.objective.num_units, weight - 1.0, 0.0)
        change = ravel(jax.grad(fit.objective.perturbation)(unwhitened(u), index, delta))
        loss = held_out(fit.objective, fit.theta, index, weight, held)
        towards = jax.grad(lambda u: jnp.sum(loss(vector(u))))(u)
        derivatives = jax.vmap(lambda u: jax.jvp(losses, (u,), (towards,))[1])(jnp.stack([u, -u]))
        contributions = (
            derivatives.mean(0) - sample.influence @ towards
        ) * sample.weight  # weight of one draw
        total = jnp.sum(sample.times * contributions)
        spread = jnp.sqrt(m * jnp.sum(sample.times * (contributions - total / m) ** 2) / (m - 1))
        # standard errors of a sample that are added
        return u + whitener @ (fit.gradient + change), jnp.abs(total) + 3.0 * spread

    return jax.lax.map(one_refit, (index, weight, held, u), batch_size=chunk)
