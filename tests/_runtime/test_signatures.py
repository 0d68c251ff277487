"""Signatures of public names can be read, and nothing but what is printed of them changes."""

import contextlib
import functools
import inspect
import pickle
import typing

import pytest
import sklearn.base
from docstrings import public
from numpy.typing import ArrayLike
from sklearn.linear_model import Ridge

import leaveout as lo
from leaveout._runtime.signatures import readable


@pytest.fixture(scope="module")
def signatures():
    texts = {}
    for name, value in public().items():
        with contextlib.suppress(ValueError, TypeError):  # properties, and exceptions of C
            texts[name] = str(inspect.signature(value))
    return texts


def test_no_public_signature_is_long(signatures):
    assert len(signatures) > 500
    assert not {name: len(text) for name, text in signatures.items() if len(text) > 600}


def test_no_public_signature_names_modules(signatures):
    paths = ("typing.", "numpy._", "collections.abc.", "leaveout.", " at 0x")
    texts = {name: text for name, text in signatures.items() if not name.startswith("inference")}
    assert not {name: text for name, text in texts.items() if any(path in text for path in paths)}


def test_types_go_by_their_names(signatures):
    assert signatures["cross_validate"].startswith(
        "(fit: Fit, plan: Plan | int | splitter, *, strategy: AbstractRefit | None = None"
    )
    assert "average: 'pooled' | 'fold' | 'repeat' | None = None" in signatures["cross_validate"]
    assert signatures["cross_validate"].endswith("-> Estimate")
    assert signatures["GLM"].startswith(
        "(X: ArrayLike, y: Any, loss: str | AbstractLoss | callable, penalty: AbstractPenalty"
    )
    assert signatures["emissions.Constraint"].startswith(
        "(natural: callable, unconstrained: callable, entries: callable = "
    )
    assert (
        signatures["Plan"].startswith("(indptr: ndarray, index: ndarray, ")
        and "<lambda>" in signatures["models.Parameters"]
    )


def test_annotations_and_defaults_stay():
    hints, signature = (
        typing.get_type_hints(lo.cross_validate),
        inspect.signature(lo.cross_validate),
    )
    assert hints["fit"] is lo.Fit and hints["return"] is lo.Estimate
    assert signature.parameters["strategy"].default is None
    assert signature.parameters["audit"].default == 5
    signature.bind(None, 5, audit=0)


def test_a_result_is_readable_once_its_function_is():
    class Result:
        def summary(
            self, X: ArrayLike | None, side: typing.Literal["low", "high"] | None = None
        ) -> None: ...

    def verb() -> Result | None: ...

    Result.__module__ = Result.summary.__module__ = verb.__module__ = "leaveout.example"
    assert readable(verb) is verb
    assert str(inspect.signature(verb)) == "() -> Result | None"
    shown = "(self, X: ArrayLike | None, side: 'low' | 'high' | None = None) -> None"
    assert str(inspect.signature(Result.summary)) == shown


def test_subclasses_and_wrappers_have_signatures_of_their_own():
    class Mine(lo.GLM):
        def __init__(self, rows: int):
            self.rows = rows

    @functools.wraps(lo.fit)
    def call(*args, **named):
        return lo.fit(*args, **named)

    assert str(inspect.signature(Mine)) == "(rows: int)"
    assert inspect.signature(call) == inspect.signature(lo.fit)
    assert pickle.loads(pickle.dumps(lo.fit)) is lo.fit


def test_scikit_learn_clones_what_it_searches():
    search = lo.sklearn.OneFitSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, verbose=0)
    assert (
        repr(sklearn.base.clone(search))
        == repr(search)
        == "OneFitSearchCV(estimator=Ridge(), param_grid={'alpha': [0.1, 1.0]})"
    )
