"""Refits in batches: the strategies, the rungs that they use, and the error of each refit against
the exact one.
"""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__, for_users=False)
