"""First and second moments of the counts of a chain's paths, for each sequence by itself.

    s(z) = (1{z_T = k}, 1{z_1 = k}, #{t : z_{t−1} = j, z_t = k})
    "end", "start", "transition", `[params]`

Given everything seen, a path is a Markov chain that can be drawn from its end, z_{t−1} | z_t ~
Q_t(·| z_t) with Q_t(j | k) ∝ p(z_{t−1} = j | x_1, …, x_{t−1}) exp φ(j, k). With S_{>t} the counts
after t,

    G_t(k, d)     = E[1{z_t = k} S_{>t, d}],
    G_{t−1}(j, d) = Σ_k Q_t(j | k) (G_t(k, d) + p(z_t = k) 1{d = (j, k)}),
    E[s sᵀ]       = C + Cᵀ + diag E[s],           C_{(j, k), d} = Σ_t Q_t(j | k) G_t(k, d):

one pass from the end, with two products of matrices a step (Mann & McCallum 2007 have the recursion
for entropies). Sums of features of the steps are counted in the same way.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._runtime import Arrays, readable
from .chain import Layout, StatePosterior
from .lanes import SMALLEST_NORMALISER
from .sparse import SparseFeatures

__all__ = [
    "covariance",
    "memory",
]
__dir__ = __all__.copy


def _origin(
    before: Float[Array, "*steps states"], transition: Array
) -> Float[Array, "*steps states states"]:
    """Distributions Q_t of the state that each state has come from; zero at starts."""
    joint = before[..., None] * jnp.exp(transition - jnp.max(transition))
    return joint / jnp.maximum(joint.sum(-2, keepdims=True), SMALLEST_NORMALISER)


def memory(lanes: int, sequences: int, K: int, F: int) -> float:
    """Estimate the bytes that `covariance` takes.

    Parameters
    ----------
    lanes : int
        The number of lanes of the layout.
    sequences : int
        The number of sequences.
    K : int
        The number of states.
    F : int
        The number of features.

    Returns
    -------
    float
        The bytes.

    Examples
    --------
    >>> from leaveout.inference import moments
    >>> moments.memory(1, 1, 2, 0)
    752.0
    """
    wide = K + K * K + F * K
    return 8.0 * (
        F * K * wide + K * F * F + 2 * lanes * K * wide + sequences * wide + (wide + K) ** 2
    )


@readable
def covariance(
    posterior: StatePosterior,
    transition: Float[Array, "states states"],
    layout: Layout,
    ends: Bool[Arrays, "rows lanes"],
    unit: Int[Arrays, "rows lanes"],
    worth: Float[Arrays, " sequences"],
    features: Float[Arrays, "places features"] | SparseFeatures | None = None,
) -> Float[Array, "params params"]:
    """Compute Σ_n worth_n Cov(s_n) over the sequences.

    Parameters
    ----------
    posterior : StatePosterior
        The posterior of the chain.
    transition : array, `[states, states]`
        The log-potential of a move from row to column.
    layout : Layout
        The places of the steps.
    ends : array of bool, `[rows, lanes]`
        Whether a sequence ends at that place.
    unit : array of int, `[rows, lanes]`
        The sequence at each place.
    worth : array, `[sequences]`
        The weight of each sequence.
    features : array, `[places, features]`, or SparseFeatures, optional
        Features of the steps at all places. With these, s has Σ_t x_t[f] 1{z_t = k} as well.

    Returns
    -------
    array, `[params, params]`
        The sum of the covariances.

    References
    ----------
    G. S. Mann and A. McCallum, Efficient computation of entropy gradient for semi-supervised
    conditional random fields, NAACL 2007.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from leaveout.inference import chain, moments
    >>> layout = chain.layout(np.array([3]))
    >>> transition = np.zeros((2, 2))
    >>> potentials = chain.Potentials(np.zeros(2), transition, np.zeros((3, 1, 2)))
    >>> ends = np.array([[False], [False], [True]])
    >>> with jax.enable_x64(True):
    ...     posterior = chain.posterior(potentials, layout)
    ...     moments.covariance(
    ...         posterior, transition, layout, ends, np.zeros((3, 1), int), np.ones(1)
    ...     )[0, 0].round(3).item()
    0.25
    """
    count = len(worth)
    rows, lanes, K = posterior.states.shape
    F = 0 if features is None else features.shape[1]
    eye = jnp.eye(K)
    wide = K + K * K + F * K
    weigh = jnp.asarray(worth).at[unit].get(mode="fill", fill_value=0.0)
    by_row = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(rows, lanes, -1), features)

    def step_back(carry, x):
        later_counts, sums, out = carry
        origin, states, end, start, write, weigh, step_features = x
        fresh = jnp.concatenate([states[:, :, None] * eye, jnp.zeros((lanes, K, wide - K))], 2)
        # [lanes, state, end or transition or weight]
        later_counts = jnp.where(end[:, None, None], fresh, later_counts)
        if F:
            step_features = _dense(step_features)
            weighed = weigh[:, None] * step_features
            same = jnp.einsum("lk,lf,lg->kfg", states, weighed, step_features)
            sums["weight"] += jnp.einsum("lf,lke->fke", weighed, later_counts)
            sums["same"] += same
            feature_counts = (states[:, :, None] * step_features[:, None])[..., None] * eye[:, None]
            later_counts += jnp.pad(
                feature_counts.reshape(lanes, K, F * K), ((0, 0), (0, 0), (K + K * K, 0))
            )
        total = later_counts.sum(1)
        out = out.at[write].set(jnp.concatenate([total[:, :K], states, total[:, K:]], 1))
        sums["start"] += jnp.einsum("l,lke->ke", jnp.where(start, weigh, 0.0), later_counts)
        sums["pair"] += jnp.einsum("ljk,lke->kje", weigh[:, None, None] * origin, later_counts)
        move_counts = (eye[None, :, :, None] * (origin * states[:, None])[:, None]).reshape(
            lanes, K, K * K
        )
        later_counts = jnp.einsum("ljk,lke->lje", origin, later_counts) + jnp.pad(
            move_counts, ((0, 0), (0, 0), (K, F * K))
        )
        return (later_counts, sums, out), None

    shapes = {"start": (K, wide), "pair": (K, K, wide), "weight": (F, K, wide), "same": (K, F, F)}
    sums = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    starts = jnp.asarray(layout.starts)
    # p(z_{t−1} | x_1, …, x_{t−1}), zero at starts
    before = jnp.concatenate([jnp.zeros((1, lanes, K)), posterior.filtered[:-1]])
    origin = _origin(jnp.where(starts[..., None], 0.0, before), transition)
    write = jnp.where(starts, unit, count)
    xs = origin, posterior.states, jnp.asarray(ends), starts, write, weigh, by_row
    (_, sums, out), _ = jax.lax.scan(
        step_back,
        (jnp.zeros((lanes, K, wide)), sums, jnp.zeros((count + 1, K + wide))),
        xs,
        reverse=True,
    )
    mean = out[:-1]
    return _square(sums, worth @ mean) - mean.T @ (worth[:, None] * mean)


def _square(
    sums: dict[str, Array], mean: Float[Arrays, " params"]
) -> Float[Array, "params params"]:
    """Second moments `E[s sᵀ]`, from counts at a step times counts after it or at it."""
    K, wide = sums["start"].shape
    F = len(sums["weight"])
    pairs = jnp.swapaxes(sums["pair"], 0, 1).reshape(K * K, wide)
    cross = jnp.concatenate(
        [jnp.zeros((K, wide)), sums["start"], pairs, sums["weight"].reshape(F * K, wide)]
    )
    # nothing is counted after an end, a start after nothing
    cross = jnp.insert(cross, jnp.full(K, K), 0.0, axis=1)
    counts = 2 * K + K * K
    once = jnp.diag(jnp.where(jnp.arange(K + wide) < counts, mean, 0.0))
    features = jnp.einsum("kfg,kl->fkgl", sums["same"], jnp.eye(K)).reshape(F * K, F * K)
    return cross + cross.T + once.at[counts:, counts:].add(features)


def _dense(
    features: Float[Array, "lanes features"] | SparseFeatures,
) -> Float[Array, "lanes features"]:
    if not isinstance(features, SparseFeatures):
        return features
    lane = jnp.arange(len(features.columns))[:, None]
    return (
        jnp.zeros((len(lane), features.number))
        .at[lane, features.columns]
        .add(features.values, mode="drop")
    )
