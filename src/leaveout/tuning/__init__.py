"""Paths over penalties, tuning of hyperparameters by the held-out loss, smoothing parameters."""

from .._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
