"""Who may import whom, read off the import statements."""

import ast
from pathlib import Path

import jax
import numpy as np
from helpers import OBJECTIVES

import leaveout as lo

SOURCE = Path(__file__).parents[1] / "src" / "leaveout"
CORE = {
    "_results",
    "_plan",
    "_objective",
    "_products",
    "_starts",
    "_rank",
    "_definite",
    "_fit",
    "_minima",
    "_curvature",
    "_certificate",
    "_acceleration",
    "_descent",
    "_sampling",
    "_screen",
    "_refit",
    "_estimate",
    "_errors",
    "_undetermined",
    "_metrics",
    "_evaluate",
}
MAY_IMPORT = {
    "_results": set(),
    "_progress": set(),
    "_acceleration": set(),
    "_read": set(),
    "_graph": {"_read"},
    "_plan": {"_graph", "_read"},
    "_objective": {"_read"},
    "_corpora": set(),
    "datasets": {"_corpora"},
    "_minimise": {"_objective"},
    "_products": {"_objective", "_minimise", "_progress"},
    "_starts": {"_objective", "_minimise", "_progress"},
    "_fit": {"_objective", "_results", "_minimise", "_products", "_starts", "_rank", "_definite"},
    "_definite": {"_objective", "_minimise"},
    "_rank": {"_objective", "_minimise"},
    "_minima": {"_plan", "_objective", "_fit", "_minimise", "_certificate"},
    "_curvature": {"_plan", "_objective", "_products", "_fit"},
    "_certificate": {"_plan", "_objective", "_fit", "_results", "_curvature"},
    "_descent": {"_plan", "_objective", "_fit", "_minimise", "_results", "_curvature", "_certificate", "_acceleration"},
    "_sampling": {"_plan", "_objective", "_fit", "_certificate"},
    "_screen": {"_plan", "_fit", "_curvature", "_certificate", "_descent", "_sampling"},
    "_refit": {
        "_plan",
        "_objective",
        "_products",
        "_fit",
        "_results",
        "_curvature",
        "_certificate",
        "_descent",
        "_sampling",
        "_screen",
    },
    "_errors": {"_plan", "_results"},
    "_estimate": {"_plan", "_results", "_errors", "plot"},
    "_undetermined": {"_plan", "_objective", "_minimise", "_fit", "_results", "_curvature", "_descent"},
    "_metrics": {"_plan", "_fit"},
    "_evaluate": {*CORE, "_progress"},
    "influence": {"_evaluate", "_fit", "_objective", "_plan", "_refit", "models"},
    "plot": {"_read", "_estimate", "_evaluate", "_fit", "_plan", "_refit", "influence"},
    "leakage": {"_evaluate", "_fit", "_plan", "_refit", "_progress", "models", "leakage", "plot"},
    "models": {"_graph", "_design", "_objective", "_read", "models"},
    "interop": {"models", "_fit", "_definite", "_read", "interop"},
    "cli": {""},  # the public names only
}


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
    assert len(files) > 12
    for path in files:
        module = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        allowed = MAY_IMPORT[module]
        if module == "cli":
            assert all(not name.startswith("_") for name in imports(path)), path
        else:
            assert imports(path) <= allowed, (path, imports(path) - allowed)


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
