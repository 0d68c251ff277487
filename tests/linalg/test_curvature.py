"""Factors answer as the matrices do, and with NaN where these are not positive definite."""

import numpy as np
import pytest

from leaveout.linalg.curvature import Curvature


def gram(size, seed):
    """A positive definite matrix whose parameters have units of their own."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((size + 3, size)) * 10.0 ** rng.integers(-2, 3, size)
    return rows.T @ rows


@pytest.mark.parametrize("size", [1, 4, 70])
def test_answers_are_those_of_the_matrices(size):
    matrices = np.stack([gram(size, seed) for seed in range(3)])
    right = matrices @ np.random.default_rng(0).standard_normal((3, size, 2))
    curvature = Curvature.of(matrices)
    assert curvature.definite.all()
    np.testing.assert_allclose(
        matrices @ curvature.solve(right), right, rtol=1e-8, atol=1e-8 * np.abs(right).max()
    )
    alone = Curvature.of(matrices[1])
    np.testing.assert_allclose(curvature.solve(right)[1], alone.solve(right[1]), rtol=1e-6)
    np.testing.assert_allclose(curvature.step(right[..., 0]), curvature.solve(right)[..., 0])
    np.testing.assert_allclose(curvature.logdet, np.linalg.slogdet(matrices)[1])
    np.testing.assert_allclose(
        curvature.root @ matrices @ curvature.root.swapaxes(1, 2),
        np.broadcast_to(np.eye(size), matrices.shape),
        atol=1e-8,
    )


def test_a_matrix_without_a_factor_answers_nan_and_the_others_answer():
    good = gram(3, 0)
    repeated = good.copy()
    repeated[2] = repeated[1]
    repeated[:, 2] = repeated[:, 1]
    repeated[2, 2] += 1e-15 * repeated[2, 2]
    matrices = np.stack([good, repeated, -good, np.full((3, 3), np.nan)])
    curvature = Curvature.of(matrices)
    np.testing.assert_array_equal(curvature.definite, [True, False, False, False])
    for answer in (curvature.solve(matrices), curvature.root, curvature.logdet[:, None, None]):
        np.testing.assert_array_equal(np.isfinite(answer).all((1, 2)), curvature.definite)
    assert not Curvature.of(repeated).definite
    assert curvature.take(np.array([0])).definite.all()
