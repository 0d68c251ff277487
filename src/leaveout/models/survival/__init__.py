"""Cox's proportional-hazards model."""

from ..._runtime.jax import ensure_jax

ensure_jax()
