# ruff: noqa: F821
"""The check of shapes that every test runs under, and the marks of slow cases."""

from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, TypeCheckError

from tests import shapes
from tests.slow import mark_slow_cases


@shapes.checked
def product(
    x: Float[Array, "units features"],
    *more: Int[np.ndarray, "units"],
    theta: Float[Array, "features"],
) -> Float[Array, "units"]:
    return x @ theta if not more else theta


def test_calls_that_agree_pass_and_others_are_named_however_often_they_come():
    x = np.ones((4, 3))
    for _ in range(2):
        assert product(x, theta=jnp.ones(3)).shape == jax.jit(product)(x, theta=x[0]).shape == (4,)
        with pytest.raises(TypeCheckError, match="product"):
            product(x, theta=np.ones(4))
        with pytest.raises(TypeCheckError, match="product"):
            product(x, theta=np.ones(3, int))
        with pytest.raises(TypeCheckError, match="product"):
            product(x, np.zeros(3, int), theta=x[0])
        with pytest.raises(TypeCheckError, match="returned"):
            product(x, np.zeros(4, int), theta=x[0])


@shapes.checked
@dataclass(frozen=True)
class Pair:
    first: Float[np.ndarray, "n"]
    parts: "dict[str, tuple[Int[np.ndarray, 'n'], ...]] | None" = None


def test_fields_and_what_lies_within():
    for _ in range(2):
        Pair(np.ones(3)), Pair(np.ones(3), {"a": (np.ones(3, int),)})
        with pytest.raises(TypeCheckError, match="Pair"):
            Pair(np.ones(3), {"a": (np.ones(4, int),)})


def test_what_states_no_shape_stays_as_it_is():
    def plain(x: int, y: Float[Array, "n"] | float) -> None:
        """Nothing."""

    assert shapes.checked(plain) is plain


class Case:
    """A case of a test as pytest collects it."""

    nodeid = "test_laws.py::test_hessian"

    def __init__(self, name, *slow):
        self.callspec = SimpleNamespace(id=name)
        self.marks = [pytest.mark.slow_for(*slow).mark]

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, name):
        self.marks.append(getattr(pytest.mark, name).mark)


def test_a_mark_of_a_slow_case_names_one():
    cases = [Case(name, "gamma") for name in ("gamma", "poisson")]
    mark_slow_cases(cases)
    assert [case.get_closest_marker("slow") is not None for case in cases] == [True, False]
    with pytest.raises(
        pytest.UsageError, match=r"slow_for names no case of the test: \['probit'\]"
    ):
        mark_slow_cases([Case("gamma", "gamma", "probit")])
