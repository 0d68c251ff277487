"""The one contract: names of the core that an extension may import beside the public ones.

`developer.pyi` lists the names by subject; each has its docstring where it is defined. Nothing is
imported before it is used. What stands here may change between versions, as public names may not.
"""

from ._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, False)
