"""Refits."""
