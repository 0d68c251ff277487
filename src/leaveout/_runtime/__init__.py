"""JAX, compiled programs, checkpoints, interrupts, parallel steps, progress, and printed results.

`__init__.pyi` lists what other rooms take from here; nothing is imported before it is used. The
placeholder `jax` has the name of its module, and is taken from there.
"""

from .namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
