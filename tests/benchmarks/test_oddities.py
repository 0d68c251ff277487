"""The programme of odd input: it finds nothing where nothing is wrong, and finds what is."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import leaveout as lo
from leaveout.validation.estimate import Repetition
from tests.oracles.exact import squares_truth
from tests.problems.tally import judged

PROGRAMS = Path(__file__).parents[2] / "benchmarks"
# The program, whose forty kinds have names of their own, with one more, which raises.
RAISING = """
import oddities
from oddities import KINDS, odd_files, odd_rows, odd_uses
parts = odd_rows.KINDS, odd_files.KINDS, odd_uses.KINDS
assert len(KINDS) == sum(map(len, parts)) >= 40 and {*odd_uses.LONG} <= KINDS.keys()
oddities.KINDS["raises"] = lambda rng: 1 / 0
oddities.main()
"""


def program(*words):
    return subprocess.run([sys.executable, *words], cwd=PROGRAMS, capture_output=True, text=True)


def test_kinds_that_are_right():
    done = program(
        "oddities.py",
        "--draws",
        "2",
        "--seed",
        "1",
        "float32 input",
        "ridge, many columns",
        "decimal commas",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    header, *rows, last = done.stdout.splitlines()
    assert (
        header.split() == ["folds", "wrong", "alarms", "refused"]
        and last == "3 kinds, seed 1: nothing wrong"
    )
    folds = [int(row.split()[-4]) for row in rows]
    assert len(rows) == 4 and all(folds) and folds[-1] == sum(folds[:-1]), done.stdout
    assert rows[-1].split()[-3:] == ["0", "0", "0"]


@pytest.fixture(scope="module")
def known():
    """An estimate by groups, and its truth in sixty digits."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2, 12, 2))[0], rng.standard_normal(12)
    cv = lo.cross_validate(
        lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(0.5))), lo.groups(np.arange(12) % 4)
    )
    return cv, squares_truth(X, y, 0.5)(cv.plan)


def counts(cv, truth):
    found = judged(cv, truth)
    return found.folds, found.wrong, found.alarms, found.refused


def test_right_losses_have_no_fault(known):
    assert counts(*known) == (4, 0, 0, 0)


def test_a_loss_beyond_its_error_is_wrong_unless_flagged(known):
    cv, truth = known
    off = cv.losses + np.where(cv.plan.refit == 1, 1e-3, 0.0)
    assert counts(replace(cv, losses=off), truth) == (4, 1, 0, 0)
    flagged = np.where(np.arange(4) == 1, lo.RESULTS.uncertified, 0)
    assert counts(replace(cv, losses=off, result=flagged), truth) == (4, 0, 0, 0)


def test_a_number_without_a_truth_is_wrong(known):
    cv, truth = known
    assert counts(cv, truth._replace(losses=np.full_like(truth.losses, np.inf))) == (4, 4, 0, 0)


def test_an_alarm_of_the_audit_about_a_right_loss_is_false(known):
    cv, truth = known
    alarm = Repetition(2, "drawn", 1.0, 1.0, 0.0, 0.0, beyond=True)
    assert counts(replace(cv, repetitions=(alarm,)), truth) == (4, 0, 1, 0)


def test_a_missing_loss_is_a_refusal_unless_the_truth_hangs_on_a_tolerance(known):
    cv, truth = known
    gone = replace(cv, losses=np.where(cv.plan.refit == 3, np.nan, cv.losses))
    assert counts(gone, truth) == (4, 0, 0, 1)
    assert counts(gone, truth._replace(ambiguous=cv.plan.refit == 3)) == (4, 0, 0, 0)


def test_kinds_have_their_own_names_and_an_exception_is_a_refusal_with_which_the_program_fails():
    done = program("-c", RAISING, "--draws", "2", "raises")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout and "1 kinds, seed 0: 2 FAULTS" in done.stdout
