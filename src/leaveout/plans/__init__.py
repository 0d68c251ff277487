"""Plans: which units weigh what in each refit, and which are scored; graphs of units.

Replicate weights of surveys.
"""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__, for_users=False)
