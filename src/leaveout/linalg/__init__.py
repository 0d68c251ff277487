"""Rows of linear predictors, dense, sparse, mapped to memory and on a device; factors.

The theorem that encloses a refit.
"""

from .._runtime.namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
