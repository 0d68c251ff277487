"""Plans: which units weigh what in each refit, and which are scored; graphs of units.

Replicate weights of surveys.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, ["survey"])
