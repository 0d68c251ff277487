"""Plans: which units weigh what in each refit, and which are scored; graphs of units.

Replicate weights of surveys.
"""

from .._runtime.namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
