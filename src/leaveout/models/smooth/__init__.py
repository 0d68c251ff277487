"""Additive models: terms and bases."""
