"""Cross-validation with scikit-learn's calls and results, from one fit, and the error of each
score.
"""

from ._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
