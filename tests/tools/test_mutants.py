"""The list of faults is up to date: what each one changes is there, once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import mutants


@pytest.mark.parametrize("fault", mutants.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_made(fault):
    path = mutants.ROOT / "src" / "leaveout" / fault.file
    assert mutants.faulty(fault, path.read_text()) != path.read_text()
    assert all((mutants.ROOT / "tests" / name).exists() for name in fault.tests.split())


def test_what_is_gone_is_said_loudly():
    with pytest.raises(LookupError, match="occurs 0 times"):
        mutants.faulty(mutants.Fault("gone", "_plan.py", "no such text", "", "test_plan.py"), "some text")
