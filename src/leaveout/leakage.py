"""The loss on new clusters if the known clusters have errors.

Inject more leakage, and extrapolate to none.
"""

from .extensions.leakage import __all__ as __all__, __dir__ as __dir__, __getattr__ as __getattr__
