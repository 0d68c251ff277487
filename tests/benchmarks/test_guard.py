"""The guard keeps ratios, and says which call became slower."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "guard.py"


@pytest.fixture
def guard(tmp_path, monkeypatch):
    # which the program sets
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    specification = importlib.util.spec_from_file_location("guard", PROGRAM)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    square = lambda size: lambda: np.ones((size, size)) @ np.ones((size, size))
    monkeypatch.setattr(
        module, "ROWS", {"a product": ("a product", lambda: (square(300), square(300)))}
    )
    monkeypatch.setattr(module, "IN_PROCESSES", {})
    monkeypatch.setattr(module, "KEPT", tmp_path / "guard.json")
    monkeypatch.setattr(module, "SECONDS", 0.2)
    monkeypatch.setattr(sys, "argv", ["guard.py", "--keep"])
    return module


def test_the_same_call_has_the_ratio_one_and_is_kept(guard, capsys):
    guard.main()
    assert 0.5 < json.loads(guard.KEPT.read_text())["a product"]["ratio"] < 2
    assert "a product" in capsys.readouterr().out


def test_a_slower_call_is_named(guard):
    guard.KEPT.write_text(json.dumps({"a product": {"ratio": 0.1, "commit": "abc"}}))
    with pytest.raises(SystemExit, match=r"a product .*was 0\.1 at abc"):
        guard.main()


def test_the_least_of_several_times_counts(guard):
    assert guard.least(
        iter([3.0, 1.0, 2.0] * 99).__next__, iter([2.0, 2.0, 4.0] * 99).__next__
    ) == (1.0, 2.0)
