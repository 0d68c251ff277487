"""Compiled programs are found again by what they are made of, and say the same; by nothing less."""

import os

import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout._runtime import exported_programs as _programs, jax as _jax
from leaveout._runtime.fingerprint import Foreign, fingerprint
from leaveout.models.hidden.hidden_chain import log_likelihood


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_programs, "KEEPING", True)
    return tmp_path / "traced"


def chain(x, states=2, **more):
    return lo.HMM(np.asarray(x, float), lo.emissions.Poisson(**more), states).padded_chain


def asked(program, hmm):
    """As a process would that has just begun: nothing is known but what the folder holds."""
    theta = hmm.parameters.start(0)
    with jax.enable_x64(True):
        return np.asarray(program((hmm, theta), {}))


def fresh(folder):
    return _programs.Program(log_likelihood.__wrapped__, lambda: folder)


X = np.arange(12) % 5


def test_what_is_found_says_what_was_compiled(folder, monkeypatch):
    first = asked(fresh(folder), chain(X))
    kept = list(folder.iterdir())
    assert len(kept) == 1
    monkeypatch.setattr(_programs.Program, "_export", lambda *args: pytest.fail("traced again"))
    monkeypatch.setattr(_programs.Program, "anew", property(lambda self: pytest.fail("traced again")))
    assert asked(fresh(folder), chain(X)) == first
    other = asked(fresh(folder), chain(X[::-1].copy()))  # data of the same shapes
    monkeypatch.undo()
    plain = _programs.Program(log_likelihood.__wrapped__, lambda: None)
    assert (asked(plain, chain(X)), asked(plain, chain(X[::-1].copy()))) == (first, other)
    assert list(folder.iterdir()) == kept


def test_another_shape_constant_setting_or_source_is_another_program(folder, monkeypatch):
    asked(fresh(folder), chain(X))
    asked(fresh(folder), chain(X, states=3))
    assert len(list(folder.iterdir())) == 2
    with jax.default_matmul_precision("float32"):
        asked(fresh(folder), chain(X))
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(_programs, "_surroundings", lambda: ["another source"])
    asked(fresh(folder), chain(X))
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"damaged", None], ids=["empty", "no pickle", "cut"])
def test_a_damaged_file_is_made_anew(folder, damage):
    first = asked(fresh(folder), chain(X))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert asked(fresh(folder), chain(X)) == first
    assert len(file.read_bytes()) > len(whole) // 2


def test_code_of_others_is_never_kept(folder):
    class Mine(lo.emissions.Poisson):
        pass

    hmm = lo.HMM(X.astype(float), Mine(), 2).padded_chain
    assert np.isfinite(asked(fresh(folder), hmm))
    program = _programs.Program(lambda scale, x: scale(x), lambda: folder)
    assert program((lambda x: 2 * x, np.ones(2)), {}).tolist() == [2, 2]
    assert not folder.exists()


def test_code_that_calls_back_is_not_kept_and_not_traced_twice(folder, monkeypatch):
    def double(x):
        return jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct((2,), np.float32), x)

    monkeypatch.setattr(_programs, "TRUSTED_MODULES", (*_programs.TRUSTED_MODULES, __name__))
    ones = np.ones(2, np.float32)
    assert _programs.Program(double, lambda: folder)((ones,), {}).tolist() == [2, 2]
    monkeypatch.setattr(_programs.Program, "_export", lambda *args: pytest.fail("traced again"))
    assert _programs.Program(double, lambda: folder)((ones,), {}).tolist() == [2, 2]


def test_functions_that_share_a_name_are_told_apart():
    def lambdas():
        return (lambda x: x + 1, lambda x: x - 1)

    trusted = {"builtins", __name__.split(".")[0]}
    assert len({fingerprint(each, trusted=trusted) for each in lambdas()}) == 2
    assert fingerprint(lambdas()[0], trusted=trusted) == fingerprint(lambdas()[0], trusted=trusted)
    with pytest.raises(Foreign, match="lambdas"):
        fingerprint(lambdas()[0], trusted={"builtins"})
    with pytest.raises(Foreign):
        fingerprint(type("Active", (lo.emissions.Poisson,), {"__module__": "leaveout"}), trusted={"builtins", "leaveout"})


def test_the_programs_used_longest_ago_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(_programs, "MAX_EXPORTED_BYTES", 25)
    for k in range(4):
        (tmp_path / str(k)).write_bytes(b"0123456789")
        os.utime(tmp_path / str(k), (k, k))
    _programs._forget(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"2", "3"}


def test_a_caller_who_debugs_gets_what_is_traced(folder):
    with jax.debug_nans(True):
        asked(fresh(folder), chain(X))
    assert not folder.exists()
    assert _jax._set_up_cache() is not None
