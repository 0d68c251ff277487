"""Rows of linear predictors, dense, sparse, mapped to memory and on a device; factors.

The theorem that encloses a refit.
"""
