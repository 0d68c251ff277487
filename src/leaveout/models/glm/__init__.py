"""Generalised linear models: losses, links, penalties, families, and their rows."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, ["losses", "penalties"])
