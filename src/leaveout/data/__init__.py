"""Readers of arguments and files: arrays, frames and labels; CoNLL files; data sets."""

from .._runtime.namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
