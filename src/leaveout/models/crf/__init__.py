"""Conditional random fields, and the measures of tagging."""

from ..._runtime.jax import ensure_jax

ensure_jax()
