"""Newton's method, BFGS, Hessian products, active sets, starts, and the fit."""

from .._runtime.namespaces import attach

__getattr__, __dir__, __all__ = attach(__name__, False)
