"""The programme of odd input: it finds nothing where nothing is wrong, and finds what is."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def test_kinds_that_are_right():
    import oddities

    found = oddities.study(["float32 input", "ridge, many columns", "decimal commas"], 2, 1)
    table = oddities.table(found)
    assert table.loc["all"].tolist() == [sum(one.folds for one in found.values()), 0, 0, 0], table
    assert all(one.folds for one in found.values())


def test_there_are_forty_kinds_with_names_of_their_own():
    import odd_files
    import odd_rows
    import odd_uses
    import oddities

    assert len(oddities.KINDS) == len(odd_rows.KINDS) + len(odd_files.KINDS) + len(odd_uses.KINDS) >= 40
    assert {*odd_uses.LONG} <= oddities.KINDS.keys()


@pytest.fixture(scope="module")
def known():
    """An estimate by groups, and its truth in sixty digits."""
    import odd_truths

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2, 12, 2))[0], rng.standard_normal(12)
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(0.5))), lo.groups(np.arange(12) % 4))
    return cv, odd_truths.squares_truth(X, y, 0.5)(cv.plan)


def counts(cv, truth):
    import odd_truths

    found = odd_truths.judged(cv, truth)
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
    audit = pd.DataFrame({"refit": [2], "beyond": [True]})
    assert counts(replace(cv, audit=audit), truth) == (4, 0, 1, 0)


def test_a_missing_loss_is_a_refusal_unless_the_truth_hangs_on_a_tolerance(known):
    cv, truth = known
    gone = replace(cv, losses=np.where(cv.plan.refit == 3, np.nan, cv.losses))
    assert counts(gone, truth) == (4, 0, 0, 1)
    assert counts(gone, truth._replace(ambiguous=cv.plan.refit == 3)) == (4, 0, 0, 0)


def test_an_exception_is_a_refusal_and_the_program_fails(monkeypatch, capsys):
    import oddities

    monkeypatch.setitem(oddities.KINDS, "raises", lambda rng: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["oddities.py", "--draws", "2", "raises"])
    with pytest.raises(SystemExit) as ended:
        oddities.main()
    assert ended.value.code == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_frozen_losses_are_compared_to_the_last_digit(capsys):
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
    import frozen

    before = dict(frozen.computed("ridge"))
    assert frozen.compared("ridge", before, dict(before))
    other = before | {"ridge/one/exact/losses": np.nextafter(before["ridge/one/exact/losses"], 9.0)}
    assert not frozen.compared("ridge", before, other)
    assert not frozen.compared("ridge", before, {})
