"""First and second moments of what a chain's paths count, each sequence by itself.

    s(z) = (1{z_T = k}, 1{z_1 = k}, #{t : z_{t−1} = j, z_t = k})        "end", "start", "transition", `[params]`

Given everything seen, a path is a Markov chain that can be drawn from its end, z_{t−1} | z_t ~ Q_t(·| z_t) with
Q_t(j | k) ∝ p(z_{t−1} = j | x_1, …, x_{t−1}) exp φ(j, k). With S_{>t} what is counted after t,

    G_t(k, d)     = E[1{z_t = k} S_{>t, d}],      G_{t−1}(j, d) = Σ_k Q_t(j | k) (G_t(k, d) + p(z_t = k) 1{d = (j, k)}),
    E[s sᵀ]       = C + Cᵀ + diag E[s],           C_{(j, k), d} = Σ_t Q_t(j | k) G_t(k, d):

one pass from the end, of two products of matrices a step (Mann & McCallum 2007 have the recursion for entropies).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .chain import TINY, Layout, Posterior


def _rows(found: Posterior, transition: Array, layout: Layout, ends: Array, unit: Array, count: int) -> tuple:
    """What the recursions read, row by row: Q `[lanes, K, K]`, posterior states, ends, starts, and where a start writes."""
    starts = jnp.asarray(layout.starts)
    step = jnp.exp(transition - jnp.max(transition))
    before = jnp.concatenate([jnp.zeros_like(found.filtered[:1]), found.filtered[:-1]])
    joint = before[..., None] * step
    origin = joint / jnp.maximum(joint.sum(-2, keepdims=True), TINY)
    origin = jnp.where(starts[..., None, None], 0.0, origin)
    return origin, found.states, jnp.asarray(ends), starts, jnp.where(starts, unit, count)


def expected_counts(
    found: Posterior,
    transition: Float[Array, "states states"],
    layout: Layout,
    ends: Bool[Array, "rows lanes"],
    unit: Int[Array, "rows lanes"],
    count: int,
) -> Float[Array, "sequences params"]:
    """`E[s]` of each of `count` sequences; `unit` is the sequence at each place."""

    def back(carry, x):
        last, pairs, out = carry
        origin, states, end, _, write = x
        last = jnp.where(end[:, None], states, last)
        pairs = jnp.where(end[:, None, None], 0.0, pairs) + origin * states[:, None]
        whole = jnp.concatenate([last, states, pairs.reshape(len(pairs), -1)], 1)
        return (last, pairs, out.at[write].set(whole)), None

    lanes, K = found.states.shape[1:]
    init = (jnp.zeros((lanes, K)), jnp.zeros((lanes, K, K)), jnp.zeros((count + 1, 2 * K + K * K)))
    xs = _rows(found, transition, layout, ends, unit, count)
    return jax.lax.scan(back, init, xs, reverse=True)[0][2][:-1]


def covariance(
    found: Posterior,
    transition: Float[Array, "states states"],
    layout: Layout,
    ends: Bool[Array, "rows lanes"],
    unit: Int[Array, "rows lanes"],
    worth: Float[Array, " sequences"],
) -> Float[Array, "params params"]:
    """`Σ_n worth_n Cov(s_n)` over sequences."""
    count, (lanes, K) = len(worth), found.states.shape[1:]
    eye = jnp.eye(K)
    origin, states, end, start, write = _rows(found, transition, layout, ends, unit, count)
    weigh = jnp.asarray(worth).at[unit].get(mode="fill", fill_value=0.0)

    def back(carry, x):
        ahead, pairs, first, out = carry
        origin, states, end, start, write, weigh = x
        fresh = jnp.concatenate([states[:, :, None] * eye, jnp.zeros((lanes, K, K * K))], 2)
        ahead = jnp.where(end[:, None, None], fresh, ahead)  # [lanes, state, end or transition]
        total = ahead.sum(1)
        out = out.at[write].set(jnp.concatenate([total[:, :K], states, total[:, K:]], 1))
        first = first + jnp.einsum("l,lke->ke", jnp.where(start, weigh, 0.0), ahead)
        pairs = pairs + jnp.einsum("ljk,lke->kje", weigh[:, None, None] * origin, ahead)
        both = origin * states[:, None]
        counted = (eye[None, :, :, None] * both[:, None]).reshape(lanes, K, K * K)
        ahead = jnp.einsum("ljk,lke->lje", origin, ahead) + jnp.pad(counted, ((0, 0), (0, 0), (K, 0)))
        return (ahead, pairs, first, out), None

    wide = K + K * K
    init = (jnp.zeros((lanes, K, wide)), jnp.zeros((K, K, wide)), jnp.zeros((K, wide)), jnp.zeros((count + 1, K + wide)))
    xs = (origin, states, end, start, write, weigh)
    (_, pairs, first, out), _ = jax.lax.scan(back, init, xs, reverse=True)
    mean = out[:-1]
    rows = jnp.concatenate([first, jnp.swapaxes(pairs, 0, 1).reshape(K * K, wide)])  # start, transition
    cross = jnp.concatenate([jnp.zeros((K, wide)), rows])
    cross = jnp.insert(cross, jnp.full(K, K), 0.0, axis=1)  # nothing is counted after an end, a start after nothing
    return cross + cross.T + jnp.diag(worth @ mean) - mean.T @ (worth[:, None] * mean)
