"""Cross-validation of posteriors: from draws of NumPyro, PyMC, Stan or of one's own, by weights."""

from ._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
