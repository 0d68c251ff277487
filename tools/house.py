"""Measure how the library is laid out, named and written, and compare each measure with its goal.

    python tools/house.py             # print the table
    python tools/house.py --types     # run pyright as well, which takes half a minute
    python tools/house.py --calls     # follow two calls as well, which takes ten seconds
    python tools/house.py --write     # put the table into CONTRIBUTING.md

The table stands in CONTRIBUTING.md under "Measures", between two markers. Without `--types` and
`--calls` the figures that they measure are those that stand there. Pyright comes with `pip install
"leaveout[release]"`. The exit status is 1 if a goal is missed.
"""

import argparse
import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from docstrings import docstrings, lacks, opening_with_a_pronoun, public
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "leaveout"
TESTS = ROOT / "tests"
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- measures: python tools/house.py --write -->", "<!-- end of measures -->"
TYPES = "types of public names that pyright knows"
# a warm leave-one-out of a logistic regression of 200 rows, and ten folds of a hidden Markov model
# of 200 steps
CALLS = [
    [
        ("functions in a leave-one-out of a GLM", None),
        ("files in it", None),
        ("crossings between files in it", None),
    ],
    [
        ("functions in ten folds of an HMM", None),
        ("files in these", None),
        ("crossings between files in these", None),
    ],
]
NO_CODE = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

Module = tuple[str, ...]  # a module's name below `leaveout`, in parts
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Measure:
    """A measure, as it is now and as it should be.

    Parameters
    ----------
    name : str
        What is measured.
    value : float
        What was found; NaN if it was not measured.
    goal : float or None
        The largest value that is allowed, or the smallest if `at_least`. None if there is no goal.
    at_least : bool, default: False
        Whether the goal is a lower bound.
    form : str, default: "{:,.0f}"
        How the value and the goal are printed.
    """

    name: str
    value: float
    goal: float | None
    at_least: bool = False
    form: str = "{:,.0f}"

    @property
    def met(self) -> bool:
        """Whether the value is within the goal."""
        return self.goal is None or (
            self.value >= self.goal if self.at_least else self.value <= self.goal
        )

    @property
    def row(self) -> str:
        """The measure as a row of a Markdown table."""
        if self.goal is None:
            return f"| {self.name} | {self.form.format(self.value)} | |"
        sign = "≥ " if self.at_least else "≤ " if self.goal else ""
        return f"| {self.name} | {self.form.format(self.value)} | {sign}{self.form.format(self.goal)} |"


class Library:
    """The library's source files, parsed."""

    def __init__(self) -> None:
        self.files = sorted(SOURCE.rglob("*.py"))
        self.texts = {path: path.read_text(encoding="utf-8") for path in self.files}
        self.trees = {path: ast.parse(text) for path, text in self.texts.items()}
        self.nodes = {path: list(ast.walk(tree)) for path, tree in self.trees.items()}
        self.modules = {self.module(path): path for path in self.files}

    @staticmethod
    def module(path: Path) -> Module:
        """Name of the module that a file holds."""
        parts = path.relative_to(SOURCE).with_suffix("").parts
        return parts[:-1] if parts[-1] == "__init__" else parts

    def imports(self, module: Module) -> set[Module]:
        """The modules of the library that a module imports, inside functions too."""
        path, found = self.modules[module], set()
        package = module if path.stem == "__init__" else module[:-1]
        for node in self.nodes[path]:
            if isinstance(node, ast.ImportFrom) and (
                node.level or (node.module or "").split(".")[0] == "leaveout"
            ):
                base = package[: len(package) - node.level + 1] if node.level else ()
                inner = tuple((node.module or "").split(".")) if node.module else ()
                source = (*base, *(inner if node.level else inner[1:]))
                found |= {
                    (*source, alias.name) if (*source, alias.name) in self.modules else source
                    for alias in node.names
                }
            if isinstance(node, ast.Import):
                found |= {
                    tuple(alias.name.split(".")[1:])
                    for alias in node.names
                    if alias.name.startswith("leaveout.")
                }
        return {name for name in found if name and name in self.modules} - {module}

    def circles(self) -> int:
        """Number of the sets of modules that import one another, directly or through others."""
        number = {module: k for k, module in enumerate(self.modules)}
        edges = [
            (number[module], number[name])
            for module in self.modules
            for name in self.imports(module)
        ]
        start, end = np.array(edges).T
        graph = coo_array((np.ones(len(edges)), (start, end)), shape=(len(number), len(number)))
        _, label = connected_components(graph, directed=True, connection="strong")
        return int(np.sum(np.bincount(label) > 1))


def entries() -> int:
    """Number of modules and packages in the package's root."""
    return sum(
        not path.name.startswith("__") and (path.is_dir() or path.suffix == ".py")
        for path in SOURCE.iterdir()
    )


def several(names: list[str]) -> int:
    """Number of names that stand more than once."""
    return sum(count > 1 for count in Counter(names).values())


def is_number(node: ast.AST | None) -> bool:
    """Whether an expression is made of numbers only."""
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    )


def constants(tree: ast.Module) -> list[str]:
    """Names of the numeric constants of a module."""
    names = []
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and is_number(node.value):
            names.append(targets[0].id)
    return names


def lines_of_code(text: str, nodes: list[ast.AST]) -> int:
    """Number of lines that hold code: neither blank, nor a comment, nor part of a docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in nodes:
        if (
            isinstance(node, ast.Module | ast.ClassDef | Function)
            and ast.get_docstring(node) is not None
        ):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def mirrors(path: Path) -> bool:
    """Whether a test file stands where the module that it tests stands, and bears its name."""
    folder, name = path.relative_to(TESTS).parent, path.stem.removeprefix("test_")
    places = [
        SOURCE / folder / f"{private}{name}{end}"
        for private in ("", "_")
        for end in (".py", "/__init__.py")
    ]
    return folder != Path() and any(
        place.exists() for place in [*places, ROOT / folder / f"{name}.py"]
    )


def public_names() -> int:
    """Number of names that the package's root exports."""
    tree = ast.parse((SOURCE / "__init__.pyi").read_text(encoding="utf-8"))
    return sum(len(node.names) for node in tree.body if isinstance(node, ast.ImportFrom))


def known_types() -> float:
    """Share of the public symbols whose types pyright knows, in per cent."""
    program = shutil.which("pyright") or sys.exit(
        'pyright is not installed: pip install "leaveout[release]"'
    )
    own = os.environ | {"VIRTUAL_ENV": sys.prefix, "PYTHONPATH": str(SOURCE.parent)}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    command = [program, "--ignoreexternal", "--verifytypes", "leaveout", "--outputjson"]
    found = subprocess.run(
        command, cwd=ROOT, env=own, text=True, stdout=subprocess.PIPE, check=False
    ).stdout
    return 100 * json.loads(found)["typeCompleteness"]["completenessScore"]


def written_value(name: str) -> float:
    """The figure of a measure that stands in CONTRIBUTING.md; NaN if none does."""
    found = re.search(
        rf"^\| {re.escape(name)} \| ([\d.,]+)", GUIDE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return float(found[1].replace(",", "")) if found else float("nan")


def counted_calls() -> dict[str, float]:
    """Functions, files and crossings of the two calls that `call_path.py` follows, by the names of
    their measures.
    """
    import call_path

    counts = [found.counts for found in call_path.passages().values()]
    return {
        name: value
        for names, three in zip(CALLS, counts, strict=True)
        for (name, _), value in zip(names, three, strict=True)
    }


def measures(found: Mapping[str, float] | None = None) -> list[Measure]:
    """Take every measure.

    Parameters
    ----------
    found : mapping from str to float, optional
        Figures of measures that take long, by name. Those that are missing are read from
        CONTRIBUTING.md.

    Returns
    -------
    list of Measure
        The measures, in the order of the table.
    """
    known = lambda name: (found or {}).get(name, written_value(name))
    library = Library()
    classes = [
        node.name
        for tree in library.trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    numbers = [name for tree in library.trees.values() for name in constants(tree)]
    functions = sum(
        isinstance(node, Function) for nodes in library.nodes.values() for node in nodes
    )
    lines = sum(text.count("\n") for text in library.texts.values())
    texts = [
        docstring for path in library.files for docstring in docstrings(path.relative_to(SOURCE))
    ]
    tests = [mirrors(path) for path in TESTS.rglob("test_*.py")]
    pronouns = 100 * len(opening_with_a_pronoun(texts)) / len(texts)
    incomplete = [name for name, value in public().items() if lacks(name, value)]
    code = sum(lines_of_code(library.texts[path], library.nodes[path]) for path in library.files)
    return [
        Measure("entries in the package's root", entries(), 19),
        Measure("circles of modules, imports inside functions counted", library.circles(), 0),
        Measure("functions per 1,000 lines", 1000 * functions / lines, 70),
        Measure("class names in several modules", several(classes), 6),
        Measure("constants' names in several modules", several(numbers), 5),
        Measure("docstrings that open with a pronoun", pronouns, 0.2, form="{:.1f} %"),
        Measure(
            "public callables without Parameters, Returns or a run example", len(incomplete), 0
        ),
        Measure(
            "test files that mirror a module",
            100 * sum(tests) / len(tests),
            90,
            at_least=True,
            form="{:.0f} %",
        ),
        Measure("public names at the root", public_names(), 102),
        Measure(TYPES, known(TYPES), 95, at_least=True, form="{:.1f} %"),
        Measure("lines of code, in thousands", code / 1000, None),
        Measure("numeric constants of modules", len(numbers), None),
        *(Measure(name, known(name), goal) for call in CALLS for name, goal in call),
    ]


def table(found: list[Measure]) -> str:
    """The measures as a Markdown table."""
    return "\n".join(
        ["| measure | now | goal |", "|---|---|---|", *(measure.row for measure in found)]
    )


def written() -> str:
    """The table that stands in CONTRIBUTING.md."""
    return GUIDE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def write(text: str) -> None:
    """Put a table into CONTRIBUTING.md, between the markers."""
    guide = GUIDE.read_text(encoding="utf-8")
    before, rest = guide.split(BEGIN)
    GUIDE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    """Print the table, and say which goals are missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--types", action="store_true", help="run pyright for the share of known types"
    )
    parser.add_argument("--write", action="store_true", help="put the table into CONTRIBUTING.md")
    parser.add_argument(
        "--calls", action="store_true", help="count the functions that two calls go through"
    )
    given = parser.parse_args()
    found = measures(
        ({TYPES: known_types()} if given.types else {}) | (counted_calls() if given.calls else {})
    )
    print(table(found))
    if given.write:
        write(table(found))
    missed = [measure.name for measure in found if not measure.met]
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
