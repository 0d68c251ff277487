"""The objective F(θ, w).

Its contract, closed forms, batches of refits, folds that are runs of units.
"""

from .._runtime.namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
