"""Families of objectives."""
