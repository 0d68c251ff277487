"""Cross-validation: batches of refits, scores, metrics, standard errors, intervals, audit,
comparison, checks.
"""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
