"""Plots, and pages in HTML."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, ["plot"])
