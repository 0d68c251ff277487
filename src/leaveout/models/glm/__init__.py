"""Generalised linear models: losses, links, penalties, families, and their rows."""

from ..._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__, for_users=False)
