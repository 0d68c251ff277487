"""Posteriors: the elpd of models that were sampled, by moved draws, and the influence of units on
posterior summaries.
"""
