"""Sums over all paths of a chain and all configurations of a graph, with their moments and draws,
from potentials.

Call `chain` for sequences, `clique` for graphs and `moments` for the covariances of counts; the
other modules serve these.
"""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
