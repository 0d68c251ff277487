"""Functions of many refits at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leaveout.objectives import batch_functions


@pytest.mark.parametrize(
    ("size", "chunk", "real", "evaluated"),
    [(8, 2, 3, 4), (8, 2, 8, 8), (7, 2, 7, 8), (5, 1, 2, 2), (4, 4, 1, 4), (1, 4, 1, 1)],
)
def test_refits_behind_the_real_ones_cost_no_pass(size, chunk, real, evaluated):
    seen = []

    def one(objective, like, args):
        jax.debug.callback(lambda x: seen.append(float(x)), args[0])
        return 2 * args[0], jnp.stack([args[0], args[1]])

    x, y = np.arange(size, dtype=np.float32), -np.arange(size, dtype=np.float32)
    double, both = batch_functions._map_refits(one, None, None, (x, y), np.asarray(real), chunk)
    jax.effects_barrier()
    np.testing.assert_array_equal(double[:real], 2 * x[:real])
    np.testing.assert_array_equal(both[:real], np.stack([x, y], 1)[:real])
    assert len(seen) == evaluated
