"""Sums over all paths of a chain and all configurations of a graph, with their moments and draws,
from potentials.

Call `chain` for sequences, `clique` for graphs and `moments` for the covariances of counts; the
other modules serve these.
"""

from .._runtime.jax import ensure_jax

ensure_jax()
