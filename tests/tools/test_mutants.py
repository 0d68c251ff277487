"""Every fault of the list can be planted, and the program tells a fault that tests catch from a
change that they cannot.
"""

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
    "all folds of one parity",
    "plan.blocks",
    "np.arange(len(units))",
    "np.arange(len(units)) // 2",
    "test_plan",
)
FOLDS = """
import leaveout as lo

def test_folds():
    assert sorted(lo.blocks(6, k=3).index) == list(range(6))
"""


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (None, mutants.PASSED),
        (FAULT, mutants.FAILED),
        (FAULT._replace(name="no fault", new="np.arange(0, len(units))"), mutants.PASSED),
    ],
    ids=["no fault", "a fault is killed", "a change without effect survives"],
)
def test_the_verdict(fault, status, tmp_path):
    file = tmp_path / "test_folds.py"
    file.write_text(FOLDS)
    assert mutants.run_tests([str(file)], fault)[0] == status


MODULE = """
a = 1

@decorated
def g(size, rate):
    total = size * rate  # the product
    if total > 1:
        total = -total
    return total / 2

b = 2
"""


def planted(old, new, module=MODULE):
    definitions = mutants.definitions(ast.parse(module).body, Path(), "m")
    symbol = next(definition for definition in definitions if definition.name == "g")
    return mutants.plant(FAULT._replace(old=old, new=new), module, symbol)


@pytest.mark.parametrize(
    ("old", "new", "line", "faulty"),
    [
        ("size * rate", "size + rate", "total = size * rate  # the product", "total = size + rate"),
        ("volume*(price)", "price", "total = size * rate  # the product", "total = rate"),
        ("if total > 1: ...", "if total >= 1: ...", "if total > 1:", "if total >= 1:"),
        ("total = -total", "pass", "total = -total", "pass"),
        ("return total / 2", "return total", "return total / 2", "return total"),
    ],
    ids=[
        "an operator",
        "names that are no longer so",
        "a comparison",
        "a statement",
        "two statements' one",
    ],
)
def test_what_stands_once_in_the_syntax_tree_is_changed(old, new, line, faulty):
    assert ast.dump(ast.parse(planted(old, new))) == ast.dump(
        ast.parse(MODULE.replace(line, faulty))
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("no_such(text)", "1", "occurs 0 times"),
        ("total", "size", "occurs [1-9] times"),
        ("b = 2", "b = 3", "occurs 0 times"),
        ("total / 2", "(total / 2)", "changes nothing"),
    ],
)
def test_what_does_not_stand_once_is_an_error(old, new, message):
    with pytest.raises(LookupError, match=message):
        planted(old, new)


def test_an_operator_is_found_after_a_rename():
    module = MODULE.replace("size", "length").replace("total", "area")
    assert "area = length + rate" in planted("total = size * rate", "total = size + rate", module)


def test_symbols_are_found_by_name_alone():
    assert (
        mutants.find("Plan").module.endswith("plan")
        and mutants.find("Plan.__len__").name == "Plan.__len__"
    )
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
    assert 2 < len(some) < len(every) and all(
        "Plan." in one.symbol or "memory map" in one.name for one in some
    )
    drawn = mutants.choose([], 25, 1)
    assert drawn == mutants.choose([], 25, 1) != mutants.choose([], 25, 2)
    assert len(set(drawn)) == 25 and drawn == sorted(drawn, key=faults.FAULTS.index)
