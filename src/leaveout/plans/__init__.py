"""Plans: which units weigh what in each refit, and which are scored; graphs of units.

Replicate weights of surveys.
"""
