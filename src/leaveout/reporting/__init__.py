"""Plots, and pages in HTML."""
