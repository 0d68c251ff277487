"""Comparison of approximate with exact sums of a field, on parts of its graph that are small enough for both.

A part is a field of its own: its sites, the edges between them, and the observations there. The loss of every observed site is
computed with that one observation left out, at the same parameters, by either kind of sums.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..._runtime.jax import PyTree
from ..._runtime.progress import Slow
from ...inference.clique import Sums, log_partition, marginals, tree
from ...inference.elimination import entries, first_scopes, neighbours
from ...plans.graph import blocks
from .hidden import mixture
from .hidden_field import AbstractHiddenField

MAX_PART_ENTRIES = 2**19  # largest number of entries of all tables of a part
COLUMNS = {  # names in the printed table
    "exact": "mean held-out loss by exact sums",
    "approximate": "by approximate ones",
    "largest": "largest difference of a site's loss",
    "state": "largest difference of a state's probability",
    "log_likelihood": "difference of log p(x)",
}


def against_exact(field: AbstractHiddenField, theta: PyTree) -> pd.DataFrame:
    """Build a table with a row for each part, and one for all: sites, edges, and `COLUMNS`."""
    theta = jax.tree.map(jnp.asarray, theta)
    densities, pairs = field.densities(theta), np.asarray(field.pair_potentials(theta))
    outside = np.broadcast_to(np.asarray(field.outside(theta)), densities.shape[1:])
    rows, losses = [], []
    parts = _parts(field)
    with Slow("parts of the field", len(parts)) as bar:
        for sites, inside, exact in parts:
            edges = _renumber_edges(field.edges[inside], sites)
            near = tree(len(sites), edges, field.num_states, inference=field.inference)
            found = [
                _losses(field, densities[:, sites], field.dense[:, sites], outside[sites], pairs[inside], sums)
                for sums in (exact, near)
            ]
            (one, states, total), (other, beliefs, nearly) = found
            losses.append(np.stack([one, other]))
            rows.append(
                {
                    "sites": len(sites),
                    "edges": len(edges),
                    "exact": one.mean(),
                    "approximate": other.mean(),
                    "largest": abs(one - other).max(),
                    "state": abs(states - beliefs).max(),
                    "log_likelihood": nearly - total,
                }
            )
            bar.advance()
    return pd.DataFrame([*rows, _whole(rows, losses)], index=[*range(len(rows)), "all"])


def _whole(rows: list[dict], losses: list[np.ndarray]) -> dict:
    """Summarise the parts: sums of counts and log-likelihoods, means of losses, and maxima of differences."""
    means = dict(zip(("exact", "approximate"), np.concatenate(losses, axis=1).mean(1), strict=True))
    together = {name: max(row[name] for row in rows) for name in ("largest", "state")}
    return {**{name: sum(row[name] for row in rows) for name in ("sites", "edges", "log_likelihood")}, **means, **together}


def _parts(field: AbstractHiddenField) -> list[tuple[np.ndarray, np.ndarray, Sums]]:
    """Divide the graph into as few blocks of neighbouring sites as exact sums allow; return sites, edges and exact sums."""
    sites, count = field.x.shape[1], 1
    while True:
        label = blocks(field.edges, sites, count)
        found = []
        for part in range(count):
            mine = np.flatnonzero(label == part)
            inside = np.flatnonzero((label[field.edges] == part).all(1))
            edges = _renumber_edges(field.edges[inside], mine)
            if entries(first_scopes(neighbours(len(mine), edges), field.num_states), field.num_states) > MAX_PART_ENTRIES:
                break
            found.append((mine, inside, tree(len(mine), edges, field.num_states)))
        if len(found) == count:
            return found
        count *= 2


def _renumber_edges(edges: Int[np.ndarray, "edges 2"], sites: Int[np.ndarray, " part"]) -> Int[np.ndarray, "edges 2"]:
    return np.searchsorted(sites, edges).reshape(-1, 2)


def _losses(
    field: AbstractHiddenField, densities: jax.Array, dense: np.ndarray, outside: np.ndarray, pairs: np.ndarray, sums: Sums
) -> tuple[Float[np.ndarray, " observed"], Float[np.ndarray, "fields sites states"], float]:
    """Compute the loss of every observed site with that site left out.

    The state probabilities of all sites given all data, and log p(x), are returned beside it.
    """
    weigh = lambda weights, own: field.emission.weigh(jnp.asarray(weights)[..., None], own)
    seen = weigh(dense * 1.0, densities) + outside
    total = log_partition(seen, pairs, sums).sum() - len(seen) * log_partition(jnp.zeros(outside.shape) + outside, pairs, sums)
    losses = []
    for own, there in zip(densities, dense, strict=True):
        held = np.flatnonzero(there)
        weights = there * (1.0 - np.eye(len(there))[held])
        states = marginals(weigh(weights, own) + outside, pairs, sums)[np.arange(len(held)), held]
        losses.append(-np.asarray(mixture(states, own[held])))
    return np.concatenate(losses), np.asarray(marginals(seen, pairs, sums)), float(total)
