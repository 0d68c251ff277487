"""The oracles are right.

Derivatives against differences, minimisers against SciPy. They import nothing of the library.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize

import leaveout as lo
from tests import oracles
from tests.problems.kinds import HOSTS

LOSSES = {name: oracle for name, (_, oracle) in HOSTS.items()} | {"student": oracles.student(3.0)}


def response_for(name: str, rng: np.random.Generator) -> np.ndarray:
    binary = rng.integers(0, 2, 40)
    if "squared hinge" in name:
        return 2.0 * binary - 1
    if name in ("logistic", "probit", "cloglog"):
        return 1.0 * binary
    return (
        rng.gamma(2.0, 1.0, 40)
        if name in ("gamma", "huber", "pseudo-huber", "student")
        else 1.0 * rng.poisson(2.0, 40)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_of_the_losses(name):
    rng, loss, h = np.random.default_rng(0), LOSSES[name], 1e-5
    y, eta = response_for(name, rng), rng.normal(size=40)
    first = (loss.value(eta + h, y) - loss.value(eta - h, y)) / (2 * h)
    second = (loss.first(eta + h, y) - loss.first(eta - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.first(eta, y), first, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(loss.second(eta, y), second, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in HOSTS if name != "squared hinge"])
def test_values_are_those_of_the_library(name):
    import jax

    rng = np.random.default_rng(1)
    y, eta = response_for(name, rng), rng.normal(size=40)
    theirs = lo.GLM(np.zeros((40, 1)), y, HOSTS[name][0]).loss_function
    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(theirs))(eta, y)
    np.testing.assert_allclose(LOSSES[name].value(eta, y), values, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("oracle", ["rows", "classes"])
def test_refits_are_minima(oracle):
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    if oracle == "rows":
        made, size = (
            oracles.Rows(X, 1.0 * (y > 0), oracles.LOGISTIC, oracles.ridge(0.1), offset=0.3),
            3,
        )
    else:
        made, size = oracles.Classes(X, y, 0.1), 9
    plan = lo.bootstrap(30, 3, rng=0)
    theta, reached = oracles.refits(made, np.zeros(size), plan)
    function = made.bound(plan)
    assert reached.all()
    for k in range(3):
        value = lambda v, k=k: function(v[None], np.array([k]), 0)[0]
        found = scipy.optimize.minimize(
            value, np.zeros(size), method="BFGS", options={"gtol": 1e-7}
        )
        np.testing.assert_allclose(theta[k], found.x, atol=1e-4)
        assert value(theta[k]) <= found.fun + 1e-12


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parent / "oracles").glob("*.py")), ids=lambda file: file.stem
)
def test_oracles_import_nothing_of_the_library(file):
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "write the whole name of the module"
            names.add(node.module)
    ours = {name for name in names if name.split(".")[0] in ("leaveout", "tests")}
    assert all(name.startswith("tests.oracles.") for name in ours), ours
