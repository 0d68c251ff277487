"""The functions that a call goes through are counted once each, in their files."""

import call_path
import numpy as np

import leaveout as lo


def test_functions_and_crossings_of_a_plan():
    found = call_path.passage(lambda: lo.groups(np.repeat(np.arange(3), 2)))
    names = {function for _, function in found.calls}
    assert "groups" in names and not any(name.startswith("<") for name in names)
    functions, files, crossings = found.counts
    assert functions == len(found.calls) and 1 <= files <= functions and crossings >= files - 1


def test_warm_calls_alone_are_counted():
    seen = []
    found = call_path.passage(lambda: seen.append(lo.leave_one_out(4)))
    assert len(seen) == 3
    assert {count for (_, name), count in found.calls.items() if name == "leave_one_out"} == {1}
