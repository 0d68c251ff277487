"""The loss on new clusters if the known clusters have errors.

Inject more leakage, and extrapolate to none.
"""

from ._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
