"""Clusters of the observations to start a fit from."""

import warnings

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster import vq


def clusters(x: Float[np.ndarray, "steps features"], num_states: int, seed: int) -> Int[np.ndarray, " steps"]:
    """Label standardised rows by k-means, with centres from a subsample; too few rows are labelled in turn."""
    rng = np.random.default_rng(seed)
    if len(x) <= num_states:
        return rng.permutation(num_states)[: len(x)]
    sd = x.std(axis=0)
    z = (x - x.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
    some = z if len(z) <= 5000 else z[rng.choice(len(z), 5000, replace=False)]
    # a cluster is empty if there are fewer distinct rows than states
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", UserWarning)
        centres, _ = vq.kmeans2(some, num_states, 30, minit="++", rng=rng)
    return vq.vq(z, centres)[0].astype(int)
