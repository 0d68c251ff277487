"""Conditional random fields, and the measures of tagging."""

from ..._runtime import ensure_jax

ensure_jax()
