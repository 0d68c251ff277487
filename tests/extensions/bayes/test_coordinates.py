"""Transforms: their inverse, and the determinant of their Jacobian by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leaveout.extensions.bayes.coordinates import TRANSFORMS, DrawCoordinates, coordinate_names

VALUES = {
    "identity": np.array([[0.3, -2.0]]),
    "log": np.array([[0.3, 2.0]]),
    "logit": np.array([[0.3, 0.9]]),
    "softmax": np.array([[0.2, 0.5, 0.3]]),
    "stick_breaking": np.array([[0.7, 0.1, 0.2]]),
}


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_transforms(kind):
    transform, x = TRANSFORMS[kind], VALUES[kind]
    u = transform.unconstrain(x)[0]
    with jax.enable_x64(True):
        assert np.allclose(transform.constrain(jnp.asarray(u)), x[0])
        free = lambda v: transform.constrain(v)[: len(u)]  # the last entry of a simplex follows
        jacobian = jax.jit(jax.jacobian(free))(u)
        assert np.isclose(transform.log_jacobian(jnp.asarray(u)), np.linalg.slogdet(jacobian)[1])


def test_coordinates_by_name():
    rng = np.random.default_rng(0)
    named = {"b": rng.normal(size=(5, 2)), "a": rng.dirichlet(np.ones(3), 5)}
    found = DrawCoordinates.read("test", named, {"a": "softmax"})
    free = found.unconstrain("test", named)
    first = {name: leaf[0] for name, leaf in free.items()}
    assert np.array_equal(free["b"], named["b"])
    with jax.enable_x64(True):
        assert all(
            np.allclose(leaf, named[name][0]) for name, leaf in found.constrain(first).items()
        )
        assert np.isclose(found.log_jacobian(first), np.log(named["a"][0]).sum())
    assert coordinate_names(first) == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert (
        found
        == DrawCoordinates.read("test", named, {"a": "softmax"})
        != DrawCoordinates.read("test", named, {})
    )
