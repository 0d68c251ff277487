"""Every fault of the list can be planted, and the program tells a fault that tests catch from a change that they cannot."""

import ast
from pathlib import Path

import faults
import mutants
import pytest


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault):
    definition = mutants.find(fault.symbol)
    text = definition.path.read_text(encoding="utf-8")
    planted = mutants.plant(fault, text, definition)
    ast.parse(planted)
    assert planted != text and mutants.test_files(fault)


def test_no_two_faults_have_one_name():
    assert len({fault.name for fault in faults.FAULTS}) == len(faults.FAULTS)


FAULT = faults.Fault(
    "all folds of one parity", "kfold", "np.arange(n) if rng is None", "np.arange(n) // 2 if rng is None", "test_plan"
)
FOLDS = """
import leaveout as lo

def test_folds():
    assert sorted(lo.kfold(6, 3).index) == list(range(6))
"""


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (None, mutants.PASSED),
        (FAULT, mutants.FAILED),
        (FAULT._replace(name="no fault", new="np.arange(0, n) if seed is None"), mutants.PASSED),
    ],
    ids=["no fault", "a fault is killed", "a change without effect survives"],
)
def test_the_verdict(fault, status, tmp_path):
    file = tmp_path / "test_folds.py"
    file.write_text(FOLDS)
    assert mutants.run_tests([str(file)], fault)[0] == status


def test_a_missing_text_is_an_error():
    with pytest.raises(LookupError, match="occurs 0 times"):
        mutants.plant(FAULT._replace(old="no such text"), "a = 1\n", mutants.Definition(Path(), "plan", "a", 0, 1))


def test_text_outside_the_symbol_does_not_count():
    module = "a = 1\n\n\n@decorated\ndef g():\n    return 1\n\n\nb = 1\n"
    found = {one.name: one for one in mutants.definitions(ast.parse(module).body, Path(), "m")}
    fault = FAULT._replace(old="1", new="2")
    assert mutants.plant(fault, module, found["g"]) == module.replace("return 1", "return 2")
    assert mutants.plant(fault._replace(old="@decorated\n", new=""), module, found["g"]) == module.replace("@decorated\n", "")


def test_symbols_are_found_by_name_alone():
    assert mutants.find("Plan").module.endswith("plan") and mutants.find("Plan.__len__").name == "Plan.__len__"
    several = next(one for one in mutants.package_definitions() if one.name == "SAFETY")
    assert mutants.find(f"{several.module}.SAFETY") == several
    for symbol, message in (
        ("SAFETY", "it names .*, "),
        ("no_such_name", "it names nothing"),
        ("Plan.elsewhere", "names nothing"),
    ):
        with pytest.raises(LookupError, match=message):
            mutants.find(symbol)


def test_stems_of_tests_are_found_by_name_alone():
    assert mutants.test_files(FAULT._replace(tests="test_mutants test_layout")) == [
        "tests/tools/test_mutants.py",
        "tests/test_layout.py",
    ]
    with pytest.raises(LookupError, match="must be one test file; 0"):
        mutants.test_files(FAULT._replace(tests="test_of_nothing"))


def test_words_and_samples_choose_faults():
    every = mutants.choose([], None, 0)
    assert every == list(faults.FAULTS)
    some = mutants.choose(["Plan.", "memory map"], None, 0)
    assert 2 < len(some) < len(every) and all("Plan." in one.symbol or "memory map" in one.name for one in some)
    drawn = mutants.choose([], 25, 1)
    assert drawn == mutants.choose([], 25, 1) != mutants.choose([], 25, 2)
    assert len(set(drawn)) == 25 and drawn == sorted(drawn, key=faults.FAULTS.index)
