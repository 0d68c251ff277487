"""Influence: the effect of rows, folds and pairs of them on a fit, by refits without them.

And the measures of textbooks.
"""
