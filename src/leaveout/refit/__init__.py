"""Refits in batches: the strategies, the rungs that they use, and the error of each refit against
the exact one.
"""

from .._runtime.namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
