"""The objective F(θ, w).

Its contract, closed forms, batches of refits, folds that are runs of units.
"""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__, for_users=False)
