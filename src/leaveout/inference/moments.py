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
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .chain import TINY, Layout, Posterior
from .sparse import Sparse

COLUMNS = 2**26  # numbers that the recursion leaves for the products after it


def _rows(
    found: Posterior, transition: Array, layout: Layout, ends: Array | np.ndarray, unit: Array | np.ndarray, count: int
) -> tuple:
    """What the recursions read, row by row: Q `[lanes, K, K]`, posterior states, ends, starts, and where a start writes."""
    starts = jnp.asarray(layout.starts)
    return _origins(found, transition, layout), found.states, jnp.asarray(ends), starts, jnp.where(starts, unit, count)


def _origins(found: Posterior, transition: Array, layout: Layout) -> Float[Array, "rows lanes states states"]:
    """Q_t: where each state has come from; zero at starts."""
    step = jnp.exp(transition - jnp.max(transition))
    before = jnp.concatenate([jnp.zeros_like(found.filtered[:1]), found.filtered[:-1]])
    joint = before[..., None] * step
    origin = joint / jnp.maximum(joint.sum(-2, keepdims=True), TINY)
    return jnp.where(jnp.asarray(layout.starts)[..., None, None], 0.0, origin)


def expected_counts(
    found: Posterior,
    transition: Float[Array, "states states"],
    layout: Layout,
    ends: Bool[Array | np.ndarray, "rows lanes"],
    unit: Int[Array | np.ndarray, "rows lanes"],
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
    ends: Bool[Array | np.ndarray, "rows lanes"],
    unit: Int[Array | np.ndarray, "rows lanes"],
    worth: Float[Array, " sequences"],
    features: Float[Array | np.ndarray, "places features"] | Sparse | None = None,
) -> Float[Array, "params params"]:
    """`Σ_n worth_n Cov(s_n)` over sequences; with features, dense or `Sparse` over all places, s has `Σ_t x_t[f] 1{z_t = k}`
    as well."""
    count, (rows, lanes, K) = len(worth), found.states.shape
    F = 0 if features is None else features.shape[1]
    eye, wide = jnp.eye(K), K + K * K + F * K
    weigh = jnp.asarray(worth).at[unit].get(mode="fill", fill_value=0.0)
    by_row = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(rows, lanes, -1), features)

    def back(carry, x):
        ahead, sums, out = carry
        origin, states, end, start, write, weigh, own = x
        fresh = jnp.concatenate([states[:, :, None] * eye, jnp.zeros((lanes, K, wide - K))], 2)
        ahead = jnp.where(end[:, None, None], fresh, ahead)  # [lanes, state, end or transition or weight]
        if F:
            own = _dense(own)
            weighed = weigh[:, None] * own
            same = jnp.einsum("lk,lf,lg->kfg", states, weighed, own)
            sums["weight"] = sums["weight"] + jnp.einsum("lf,lke->fke", weighed, ahead)
            sums["same"] = sums["same"] + same
            here = (states[:, :, None] * own[:, None])[..., None] * eye[:, None]
            ahead = ahead + jnp.pad(here.reshape(lanes, K, F * K), ((0, 0), (0, 0), (K + K * K, 0)))
        total = ahead.sum(1)
        out = out.at[write].set(jnp.concatenate([total[:, :K], states, total[:, K:]], 1))
        sums["start"] = sums["start"] + jnp.einsum("l,lke->ke", jnp.where(start, weigh, 0.0), ahead)
        sums["pair"] = sums["pair"] + jnp.einsum("ljk,lke->kje", weigh[:, None, None] * origin, ahead)
        both = (eye[None, :, :, None] * (origin * states[:, None])[:, None]).reshape(lanes, K, K * K)
        ahead = jnp.einsum("ljk,lke->lje", origin, ahead) + jnp.pad(both, ((0, 0), (0, 0), (K, F * K)))
        return (ahead, sums, out), None

    shapes = {"start": (K, wide), "pair": (K, K, wide), "weight": (F, K, wide), "same": (K, F, F)}
    sums = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    xs = (*_rows(found, transition, layout, ends, unit, count), weigh, by_row)
    (_, sums, out), _ = jax.lax.scan(
        back, (jnp.zeros((lanes, K, wide)), sums, jnp.zeros((count + 1, K + wide))), xs, reverse=True
    )
    mean = out[:-1]
    return _square(sums, worth @ mean) - mean.T @ (worth[:, None] * mean)


def _square(sums: dict[str, Array], mean: Float[Array, " params"]) -> Float[Array, "params params"]:
    """`E[s sᵀ]`, from what was counted at a step times what was counted after it or at once."""
    K, wide = sums["start"].shape
    F = len(sums["weight"])
    pairs = jnp.swapaxes(sums["pair"], 0, 1).reshape(K * K, wide)
    cross = jnp.concatenate([jnp.zeros((K, wide)), sums["start"], pairs, sums["weight"].reshape(F * K, wide)])
    cross = jnp.insert(cross, jnp.full(K, K), 0.0, axis=1)  # nothing is counted after an end, a start after nothing
    counts = 2 * K + K * K
    once = jnp.diag(jnp.where(jnp.arange(K + wide) < counts, mean, 0.0))
    features = jnp.einsum("kfg,kl->fkgl", sums["same"], jnp.eye(K)).reshape(F * K, F * K)
    return cross + cross.T + once.at[counts:, counts:].add(features)


def spread_of_sums(
    found: Posterior,
    transition: Float[Array, "states states"],
    layout: Layout,
    terms: Float[Array, "states own places"],
    worth: Float[Array, "rows lanes"],
    count: int,
) -> Float[Array, "states own states own"]:
    """`Σ_n worth_n Cov(s_n)`, `s = Σ_t terms[z_t, :, t]` where each state has entries of its own: some columns at a time,
    the same recursion, all steps' products after it. `worth` is one number for each of `count` sequences at all its steps."""
    (rows, lanes, K), own = found.states.shape, terms.shape[1]
    width = int(np.clip(COLUMNS // (rows * lanes * K), 1, own))
    groups = -(-own // width)
    origin, states = _origins(found, transition, layout), found.states.reshape(-1, K)
    real = jnp.asarray(layout.starts) & (jnp.asarray(layout.place) < len(layout.inverse))
    first = jnp.nonzero(real.reshape(-1), size=count, fill_value=rows * lanes)[0]
    weigh = worth.reshape(-1)

    def columns(i, sums):
        out, mean = sums
        k, at = i // groups, jnp.minimum(i % groups * width, own - width)
        mine = jax.lax.dynamic_slice(terms, (k, at, 0), (1, width, rows * lanes))[0].T
        expected = jnp.take(states, k, axis=1)[:, None] * mine

        def back(ahead, x):
            origin, expected, weigh = x
            here = ahead.at[:, k].add(expected)
            return jnp.einsum("ljk,lkd->ljd", origin, here), (weigh[:, None, None] * ahead, here.sum(1))

        xs = (origin, expected.reshape(rows, lanes, width), worth)
        _, (ahead, total) = jax.lax.scan(back, jnp.zeros((lanes, K, width)), xs, reverse=True)
        cross = jnp.einsum("ket,tkd->ked", terms, ahead.reshape(-1, K, width))
        same = jnp.take(terms, k, axis=0) @ (weigh[:, None] * expected)
        cross = cross.at[k].add(0.5 * same)
        out = jax.lax.dynamic_update_slice(out, cross[:, :, None], (0, 0, k, at))
        total = total.reshape(-1, width).at[first].get(mode="fill", fill_value=0.0)
        return out, jax.lax.dynamic_update_slice(mean, total[:, None], (0, k, at))

    init = jnp.zeros((K, own, K, own)), jnp.zeros((count, K, own))
    out, mean = jax.lax.fori_loop(0, K * groups, columns, init)
    mean = mean.reshape(count, -1)
    weigh = weigh.at[first].get(mode="fill", fill_value=0.0)
    out = out.reshape(K * own, K * own)
    return (out + out.T - mean.T @ (weigh[:, None] * mean)).reshape(K, own, K, own)


def _dense(features: Float[Array, "lanes features"] | Sparse) -> Float[Array, "lanes features"]:
    if not isinstance(features, Sparse):
        return features
    lane = jnp.arange(len(features.columns))[:, None]
    return jnp.zeros((len(lane), features.number)).at[lane, features.columns].add(features.values, mode="drop")
