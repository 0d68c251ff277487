"""The objective F(θ, w).

Its contract, closed forms, batches of refits, folds that are runs of units.
"""
