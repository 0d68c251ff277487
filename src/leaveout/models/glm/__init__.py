"""Generalised linear models: losses, links, penalties, families, and their rows."""
