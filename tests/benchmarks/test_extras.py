"""A fresh environment of a target of `make` holds all that its programs import."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# need other versions; a program leaves out those that it lacks, and says so
OPPONENTS = {"adelie", "randalo", "torch"}
# tests of these are skipped where they are missing: hosts and samplers have `make test-hosts`
ELSEWHERE = {
    *(
        "bridgestan",
        "geopandas",
        "lifelines",
        "nemos",
        "numpyro",
        "pgmpy",
        "pymc",
        "shapely",
        "sksurv",
    ),
}
FOLDERS = ("benchmarks", "tests", "tools", "experiments")
OURS = {"leaveout", "leaveout_verify", "speed", *FOLDERS} | {
    path.stem for part in FOLDERS for path in (ROOT / part).rglob("*.py")
}
BROUGHT = {"fsspec": "dask", "xarray": "arviz"}  # by another package


def extra(name):
    """The distributions of an extra, of the extras that it names, and what extras of others
    bring.
    """
    requirements, names = (
        list(PROJECT["dependencies"]) + list(PROJECT["optional-dependencies"][name]),
        set(),
    )
    while requirements:
        package, _, more = re.match(r"([\w.-]+)(\[([^\]]*)\])?", requirements.pop()).groups()
        if package == "leaveout":
            requirements += [
                line
                for other in more.split(",")
                for line in PROJECT["optional-dependencies"][other.strip()]
            ]
        names |= {normal(package), *map(normal, (more or "").split(","))}
    return names


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(files):
    """The packages that files import, at their heads or in functions, by module and file."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            yield from ((name.partition(".")[0], file.name) for name in names)


@pytest.mark.parametrize("target", ["bench", "test"])
def test_extras_hold_what_programs_import(target):
    folders = {"bench": ["benchmarks", "tests/problems", "verify/src"], "test": ["tests", "tools"]}[
        target
    ]
    present, distributions = extra(target), packages_distributions()
    missing = {}
    for module, file in imported(
        path for folder in folders for path in (ROOT / folder).rglob("*.py")
    ):
        if module in set(sys.stdlib_module_names) | OURS | OPPONENTS or (
            target == "test" and module in ELSEWHERE
        ):
            continue
        if not present & {
            normal(name)
            for name in [module, BROUGHT.get(module, module), *distributions.get(module, [])]
        }:
            missing.setdefault(module, file)
    assert not missing


def test_programs_run_as_fast_as_they_can():
    """What the library uses where it is installed, and nobody imports.

    Without numba chains take four times as long.
    """
    assert extra("bench") & extra("test") >= {"numba", "faiss-cpu"}


def test_developers_have_both():
    assert extra("dev") >= extra("test") | extra("bench")
