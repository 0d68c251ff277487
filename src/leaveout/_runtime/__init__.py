"""JAX and arrays, exported programs, checkpoints, interrupts, parallel steps, progress, display, result codes."""
