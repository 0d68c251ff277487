"""Transforms: their inverse, and the determinant of their Jacobian by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leaveout.posteriors.coordinates import TRANSFORMS, DrawCoordinates, coordinate_names

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
        jacobian = jax.jacobian(free)(jnp.asarray(u))
        assert np.isclose(transform.log_jacobian(jnp.asarray(u)), np.linalg.slogdet(jacobian)[1])


def test_columns_and_names():
    rng = np.random.default_rng(0)
    columns = DrawCoordinates("test", {"": np.abs(rng.normal(size=(5, 3)))}, {1: "log"})
    draws = np.abs(rng.normal(size=(5, 3)))
    u = columns.unconstrain({"": draws})
    assert np.allclose(u[:, 1], np.log(draws[:, 1])) and np.array_equal(u[:, ::2], draws[:, ::2])
    with jax.enable_x64(True):
        assert np.allclose(columns.constrain(u[0]), draws[0]) and np.isclose(columns.log_jacobian(u[0]), u[0, 1])
    named = {"b": rng.normal(size=(5, 2)), "a": rng.dirichlet(np.ones(3), 5)}
    found = DrawCoordinates("test", named, {"a": "softmax"})
    free = found.unconstrain(named)
    assert coordinate_names({name: leaf[0] for name, leaf in free.items()}) == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert found == DrawCoordinates("test", named, {"a": "softmax"}) and found != DrawCoordinates("test", named, {})
