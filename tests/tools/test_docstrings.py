"""Docstrings: their examples run, and those of public names are complete."""

import doctest
import inspect
import io
import sys

import numpy as np
import pytest
from docstrings import MODULES, SOURCE, docstrings, lacks, namespaces, public

import leaveout as lo

EXAMPLES = [path for path in MODULES if ">>> " in (SOURCE / path).read_text()]


class Runner(doctest.DocTestRunner):
    """Runs examples; those that need a package that is not installed are noted, and end there."""

    lacking: tuple[str, ...] = ()

    def report_unexpected_exception(self, out, test, example, exc_info):
        error = exc_info[1]
        extra = isinstance(error, ImportError) and not (error.name or "").startswith("leaveout")
        if extra or str(error).startswith("datasets:"):
            self.lacking += (f"{test.name.rpartition('.')[2]}: {str(error)[:80]}",)
        else:
            super().report_unexpected_exception(out, test, example, exc_info)


def not_fetched(*_, **__):
    raise OSError("tests fetch nothing")


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
@pytest.mark.slow_for(
    "inference/chain.py",
    "inference/moments.py",
    "extensions/hosts/hmmlearn.py",
    "extensions/hosts/skglm.py",
    "reporting/plot.py",
    "reporting/report.py",
)
def test_examples_run(path, monkeypatch):
    monkeypatch.setattr("pooch.retrieve", not_fetched)
    runner, out = Runner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS), io.StringIO()
    for name, line, text in docstrings(path):
        lacked = len(runner.lacking)
        example = doctest.DocTestParser().get_doctest(
            text, {"lo": lo, "np": np}, name, str(path), line
        )
        failed = runner.run(example, out=out.write).failed if example.examples else 0
        assert not failed or len(runner.lacking) > lacked, out.getvalue()
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
    if runner.lacking:
        pytest.skip("; ".join(runner.lacking))


def test_public_names_are_documented():
    found = {
        name: sorted(lacking) for name, value in public().items() if (lacking := lacks(name, value))
    }
    assert not found, f"incomplete docstrings: {found}"


@pytest.mark.parametrize("name", namespaces())
def test_a_public_module_lists_its_public_names_alone(name):
    space = namespaces()[name]
    assert [entry for entry in dir(space) if not entry.startswith("__")] == sorted(space.__all__)
    assert not [entry for entry in space.__all__ if not inspect.getdoc(getattr(space, entry))]
