"""Cross-validation: batches of refits, scores, metrics, standard errors, intervals, audit, comparison, checks."""
