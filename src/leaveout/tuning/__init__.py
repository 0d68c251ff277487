"""Paths over penalties, tuning of hyperparameters by the held-out loss, smoothing parameters."""
