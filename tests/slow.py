"""Cases of a test that are slow, by the names that stand at the test: `slow_for("gamma")`."""

import pytest


def mark_slow_cases(cases):
    """Mark the named ones among all cases of a test function; a name without a case is an error."""
    marker = cases[0].get_closest_marker("slow_for")
    if marker is None:
        return
    by_name = {case.callspec.id: case for case in cases if hasattr(case, "callspec")}
    unknown = sorted(set(marker.args) - by_name.keys())
    if unknown:
        raise pytest.UsageError(f"{cases[0].nodeid}: slow_for names no case of the test: {unknown}")
    for name in marker.args:
        by_name[name].add_marker("slow")
