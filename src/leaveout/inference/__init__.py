"""Sums over all paths of a chain and all configurations of a graph, with their moments and draws,
from potentials.

Call `chain` for sequences, `clique` for graphs and `moments` for the covariances of counts; the
other modules serve these.
"""

import lazy_loader as _lazy

from .._runtime.jax import ensure_jax

ensure_jax()
__getattr__, __dir__, __all__ = _lazy.attach(__name__, ["chain", "clique", "moments"])
