"""Clusters of the observations to start a fit from."""

import warnings

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster import vq

SUBSAMPLE, STEPS = 5000, 30


def clusters(x: Float[np.ndarray, "steps features"], num_states: int, seed: int) -> Int[np.ndarray, " steps"]:
    """k-means labels of standardised rows, its centres found on a subsample; rows too few for k-means are dealt out."""
    rng = np.random.default_rng(seed)
    if len(x) <= num_states:
        return rng.permutation(num_states)[: len(x)]
    sd = x.std(axis=0)
    z = (x - x.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
    some = z if len(z) <= SUBSAMPLE else z[rng.choice(len(z), SUBSAMPLE, replace=False)]
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):  # fewer distinct rows than states leave a cluster empty
        warnings.simplefilter("ignore", UserWarning)
        centres, _ = vq.kmeans2(some, num_states, STEPS, minit="++", rng=rng)
    return vq.vq(z, centres)[0].astype(int)
