"""What the program of faults says of what comes."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def faults(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "")  # which the program sets
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    specification = importlib.util.spec_from_file_location("load_faults", FOLDER / "faults.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def warns():
    import warnings

    warnings.warn("run.ckpt cannot be written", stacklevel=1)
    return [np.ones(3)]


def raises(message):
    raise ValueError(message)


def test_what_came_is_told_apart(faults):
    digest = faults.digest_of([np.ones(3)])
    came = lambda call: faults.judge(faults.answer(call), digest, "run.ckpt")
    assert came(lambda: [np.ones(3)]) == "same digits"
    assert came(lambda: [np.ones(3) + 1e-16]) == "same digits"
    assert came(lambda: [np.ones(3) + 3e-16]) == came(lambda: [np.ones(4)]) == "OTHER DIGITS"
    assert came(warns) == "warned, same digits"
    assert came(lambda: raises("run.ckpt is damaged")) == "refused: ValueError"
    assert came(lambda: raises("list index out of range")).startswith("ERROR THAT NAMES NOTHING")


def test_a_table_has_a_row_for_what_was_done(faults):
    results = {"killed": {"GLM killed": {"same digits": 20}}, "files": {"cut": {"refused": 2}}}
    lines = faults.table(results).splitlines()
    assert len(lines) == 4 and "20 same digits" in lines[2] and "2 refused" in lines[3]
