"""Hidden Markov models and Markov random fields."""

from ..._runtime.jax import ensure_jax

ensure_jax()
