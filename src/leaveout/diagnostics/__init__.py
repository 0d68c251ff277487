"""Influence: the effect of rows, folds and pairs of them on a fit, by refits without them; and the measures of textbooks."""
