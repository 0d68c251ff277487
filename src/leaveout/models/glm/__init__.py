"""Generalised linear models: losses, links, penalties, families, and their rows."""

from ..._runtime.namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
