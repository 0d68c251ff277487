"""Who may import whom, read off the import statements."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from helpers import OBJECTIVES

import leaveout as lo

SOURCE = Path(__file__).parents[1] / "src" / "leaveout"
LISTED = re.findall(
    r"^      (\w+)(?:\.py|/) ", (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(), re.MULTILINE
)  # the layout that CONTRIBUTING gives, in the order in which modules may import one another
CORE = LISTED[LISTED.index("_proved") : LISTED.index("influence")]


def imports(path: Path) -> set[str]:
    """Our own modules that a file imports, by their first name below `leaveout`."""
    package = ["leaveout", *path.relative_to(SOURCE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("leaveout")):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = [*base, *(node.module or "").split(".")] if node.module else base
            names = [[*full, alias.name] for alias in node.names] if len(full) == 1 else [full]
            found |= {name[1] for name in names if name[0] == "leaveout"}
        if isinstance(node, ast.Import):
            found |= {[*alias.name.split("."), ""][1] for alias in node.names if alias.name.split(".")[0] == "leaveout"}
    return found


def test_imports_run_one_way():
    files = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
    assert {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in files} == set(LISTED) - {"__init__"}
    for path in files:
        module, used = path.relative_to(SOURCE).parts[0].removesuffix(".py"), imports(path)
        if module == "cli":
            assert all(not name.startswith("_") for name in used), path
            continue
        above = set(LISTED[: LISTED.index(module) + 1])
        assert used - {"plot"} <= above, (path, used - above)
        assert "plot" not in used or module in ("_estimate", "_path", "leakage"), path
        assert "models" not in used or module not in CORE, path


def test_an_objective_has_few_members():
    own = [name for name in vars(lo.AbstractObjective) if not name.startswith("_")]
    assert len(own) <= 18, own


def test_records_are_no_leaves():
    for name in ("logistic", "hidden Markov", "separable"):
        objective = OBJECTIVES[name]()
        before = jax.tree.structure(objective)
        assert objective.units and objective.parameters and objective.costs is not None
        assert jax.tree.structure(objective) == before and all(
            isinstance(leaf, np.ndarray) or callable(leaf) for leaf in jax.tree.leaves(objective)
        )


def test_files_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert max(lengths.values()) <= 500, lengths


def test_functions_are_short():
    """Forty lines, from the first statement on: what a user reads of a verb, or in the help of a command, is not its code."""
    long = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                body = node.body[ast.get_docstring(node) is not None :]
                lines = node.end_lineno - body[0].lineno + 1 if body else 0
                if lines > 40:
                    long[f"{path.relative_to(SOURCE).with_suffix('').as_posix()}.{node.name}"] = lines
    assert not long, long


def test_nothing_heavy_is_imported_before_it_is_used():
    heavy = "jax", "equinox", "sklearn", "scipy.linalg", "pandas", "matplotlib"
    asked = f"import sys, leaveout; assert leaveout.__version__; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_the_table_of_contents_is_true():
    for name in lo.__all__:
        assert getattr(lo, name) is not None, name
    assert set(lo.__all__) <= set(dir(lo))
