"""The guard times calls against opponents and against another commit, and says what became
slower.
"""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "guard.py"


@pytest.fixture
def guard(monkeypatch):
    # which the program sets
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    specification = importlib.util.spec_from_file_location("guard", PROGRAM)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    square = lambda: np.ones((300, 300)) @ np.ones((300, 300))
    rows = {"a product": ("a product", lambda: (square, square)), "a fit": ("", lambda: 1 / 0)}
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "IN_PROCESSES", {})
    monkeypatch.setattr(module, "SECONDS", 0.2)
    monkeypatch.setattr(sys, "argv", ["guard.py", "a product"])
    return module


def test_the_same_call_has_the_ratio_one(guard, capsys):
    guard.main()
    (line,) = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("a product")
    )
    assert 0.5 < float(line.split()[3]) < 2


def test_the_least_of_several_times_counts(guard):
    assert guard.least(
        iter([3.0, 1.0, 2.0] * 99).__next__, iter([2.0, 2.0, 4.0] * 99).__next__
    ) == (1.0, 2.0)


def test_a_timer_answers_with_seconds_or_with_what_is_wrong(guard):
    named, seconds, other, again = guard.answers(["a product\n", "\n", "a fit\n", "\n"])
    assert named == "" and "ZeroDivisionError" in other
    assert 0 < float(seconds) < 1 and 0 < float(again) < 1


@pytest.mark.parametrize("ratio", [1.05, 1.2])
def test_a_call_that_is_slower_than_at_a_commit_in_the_sum_of_three_runs_is_named(
    guard, monkeypatch, capsys, ratio
):
    """One run of three is slow by chance; a row that the commit lacks is not compared."""
    began = []

    @contextlib.contextmanager
    def timer(tree):
        began.append(tree)
        seconds = 0.1
        if tree == guard.ROOT:
            seconds *= ratio + (0.1 if len(began) == 1 else -0.05)

        def ask(line):
            if line == "a fit" and tree != guard.ROOT:
                return "AttributeError"
            return "" if line else str(seconds)

        yield ask

    monkeypatch.setattr(guard, "timer", timer)
    monkeypatch.setattr(guard, "worktree", lambda commit: contextlib.nullcontext(Path(commit)))
    monkeypatch.setattr(sys, "argv", ["guard.py", "--against", "abc"])
    if ratio > guard.SLOWER:
        with pytest.raises(SystemExit, match=r"slower than at abc: a product \(1\.2\)"):
            guard.main()
    else:
        guard.main()
    assert len(began) == 2 * guard.RUNS
    printed = capsys.readouterr().out
    assert "1.05" in printed or ratio > 1.1
    assert "a fit" in printed and "not timed: AttributeError" in printed


@pytest.mark.slow
@pytest.mark.skipif(not (PROGRAM.parents[1] / ".git").exists(), reason="needs the repository")
def test_a_commit_is_timed_in_a_process_of_its_own(guard, monkeypatch, capsys):
    monkeypatch.setattr(guard, "RUNS", 1)
    with guard.worktree("HEAD") as tree:
        assert (tree / "src" / "leaveout").is_dir()
        with guard.timer(tree) as ask:
            assert ask("import leaveout") == "" and 0 < float(ask("")) < 60
            assert "KeyError" in ask("what it lacks")
    assert not tree.exists()
