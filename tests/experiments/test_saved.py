"""Finished parts of an experiment are read back at the same commit, and at no other."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def saved(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    sys.modules.pop("saved", None)
    import saved

    monkeypatch.setattr(sys, "argv", ["experiments/example.py", "--save"])
    monkeypatch.setattr(saved, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(saved, "PARTS", tmp_path / "parts")
    monkeypatch.setattr(saved, "commit", lambda: "abc")
    monkeypatch.setattr(saved, "is_current", lambda commit: commit == "abc")
    yield saved
    sys.modules.pop("saved", None)


def computed(saved, value):
    """The part's value, and whether it was computed rather than read back."""
    calls = []
    result = saved.part("table", "AR(1), 2 %", lambda: calls.append(value) or value)
    return result, bool(calls)


def test_a_finished_part_is_read_back(saved):
    assert computed(saved, 1) == (1, True)
    assert computed(saved, 2) == (1, False)


def test_a_part_of_another_commit_is_computed_again(saved, monkeypatch):
    computed(saved, 1)
    monkeypatch.setattr(saved, "is_current", lambda commit: False)
    assert computed(saved, 2) == (2, True)


@pytest.mark.parametrize("arguments", [["--save", "--afresh"], []])
def test_parts_are_computed_again(saved, monkeypatch, arguments):
    computed(saved, 1)
    monkeypatch.setattr(sys, "argv", ["experiments/example.py", *arguments])
    assert computed(saved, 2) == (2, True)


def test_the_cost_of_a_table_is_that_of_its_parts_also_of_those_read_back(saved, monkeypatch):
    times = iter([(0.0, 0.0), (100.0, 150.0), (100.0, 150.0), (120.0, 160.0)])
    monkeypatch.setattr(saved, "clock", lambda: saved.Cost(*next(times)))
    for key in ("one", "two"):
        saved.part("table", key, lambda: None)
    saved.COSTS.clear()
    for key in ("one", "two"):
        saved.part("table", key, lambda: None)
    saved.save("table", [{"a": 1}])
    record = json.loads((saved.RESULTS / "table.json").read_text(encoding="utf-8"))
    assert (record["seconds"], record["processor seconds"]) == (120, 160)
    assert record["commit"] == "abc" and record["command"] == "python experiments/example.py"


def test_what_was_computed_with_changes_is_never_read_back(saved):
    import importlib

    module = importlib.reload(saved)
    assert not module.is_current("0123abcd and changes")
