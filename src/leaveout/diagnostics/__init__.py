"""Influence: the effect of rows, folds and pairs of them on a fit, by refits without them.

And the measures of textbooks.
"""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
