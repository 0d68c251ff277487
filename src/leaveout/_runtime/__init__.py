"""JAX, compiled programs, checkpoints, interrupts, parallel steps, progress, codes and printed
lines of results.
"""
