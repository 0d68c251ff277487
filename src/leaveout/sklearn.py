"""Cross-validation with scikit-learn's calls and results, from one fit, and the error of each
score.
"""

from .extensions.sklearn import __all__ as __all__, __dir__ as __dir__, __getattr__ as __getattr__
