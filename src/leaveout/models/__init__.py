"""Families of objectives, and the contract that each meets."""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
