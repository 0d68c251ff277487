"""Newton's method, BFGS, Hessian products, active sets, starts, and the fit."""
