"""Plots of estimates.

Each function returns its axes. It draws on a new figure of pyplot, which a notebook or `plt.show()`
shows, or on the given axes. No function changes matplotlib's global style.
"""

from ._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
