"""Replicate weights of surveys, and the covariance that follows from them."""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
