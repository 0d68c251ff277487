"""Conditional random fields, and the measures of tagging."""
