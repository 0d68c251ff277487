"""Measure how the library is laid out, named and written, and compare each measure with its goal.

    python tools/house.py             # print the table
    python tools/house.py --types     # run pyright as well, which takes half a minute
    python tools/house.py --calls     # follow two calls as well, which takes ten seconds
    python tools/house.py --write     # put the table into CONTRIBUTING.md

The table stands in CONTRIBUTING.md under "Measures", between two markers. Without `--types` and
`--calls` the figures that they measure are those that stand there. Pyright comes with
`pip install "leaveout[release]"`. The exit status is 1 if a measure misses its goal and is worse
than it stands there: a goal that is not reached yet is come nearer to, never left further behind.

Tokens of code are counted without comments, docstrings, blanks, layout and commas before a closing
bracket; an f-string is one. So neither packing nor formatting changes their number.
"""

import argparse
import ast
import inspect
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
        ("functions in a leave-one-out of a GLM", 150),
        ("files in it", 20),
        ("crossings between files in it", None),
    ],
    [
        ("functions in ten folds of an HMM", 140),
        ("files in these", 22),
        ("crossings between files in these", None),
    ],
]
# Pronouns, participles and particles that stand where a noun of the field should stand.
PRIVATE_WORDS = frozenset(
    [
        "told",
        "said",
        "asked",
        "made",
        "found",
        "given",
        "known",
        "own",
        "mine",
        "some",
        "each",
        "here",
        "there",
        "at",
        "of",
        "beside",
        "apart",
        "further",
        "left",
        "kept",
        "bent",
        "turned",
        "pulled",
        "moved",
        "lost",
        "shaky",
        "near",
        "far",
        "anew",
        "whole",
        "every",
        "both",
        "rest",
        "other",
        "others",
        "more",
        "few",
        "what",
        "how",
        "many",
        "wanted",
        "meant",
        "posed",
        "taken",
        "tried",
        "looked",
        "stood",
        "drawn",
        "named",
        "let",
        "now",
        "then",
        "than",
        "thing",
        "things",
        "one",
        "those",
        "these",
        "that",
        "this",
        "it",
        "its",
        "so",
        "such",
        "ahead",
        "back",
    ]
)
# kinds of tokens, from Python 3.12 on
FSTRING_START = getattr(tokenize, "FSTRING_START", None)
FSTRING_END = getattr(tokenize, "FSTRING_END", None)
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
        if self.goal is None:
            return True
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def holds(self) -> bool:
        """Whether the goal is met, or the value is no worse than it stands in CONTRIBUTING.md."""
        stands = written_value(self.name)
        if self.met or np.isnan(self.value) or np.isnan(stands):
            return True
        shown = float(self.form.format(self.value).strip(" %").replace(",", ""))
        return shown >= stands if self.at_least else shown <= stands

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


def holds_number(node: ast.AST) -> bool:
    """Whether a number stands in an expression."""
    return any(is_number(part) for part in ast.walk(node))


def constants(tree: ast.Module) -> list[str]:
    """Names of the numeric constants of a module and of its classes.

    They are numbers, expressions of numbers, and tuples, tables and calls with numbers whose names
    are in capitals.
    """
    names = []
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and (
                is_number(node.value) or (target.id.isupper() and holds_number(node.value))
            ):
                names.append(target.id)
    return names


def docstring_lines(nodes: list[ast.AST]) -> set[int]:
    """Lines of docstrings."""
    lines: set[int] = set()
    for node in nodes:
        documented = isinstance(node, ast.Module | ast.ClassDef | Function)
        if documented and ast.get_docstring(node) is not None:
            lines |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def tokens_of_code(text: str, nodes: list[ast.AST]) -> int:
    """Number of tokens: no comments, docstrings, layout, commas before a closing bracket."""
    docstrings = docstring_lines(nodes)
    count = 0
    depth = 0  # of f-strings, each of which is one token
    last = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NO_CODE or token.start[0] in docstrings:
            continue
        if token.type == FSTRING_END:
            depth -= 1
            continue
        if depth == 0:
            count += 1 - (last == "," and token.string in ")]}")
            last = token.string
        if token.type == FSTRING_START:
            depth += 1
    return count


def bound_names(nodes: list[ast.AST]) -> list[str]:
    """Names that are bound: variables, parameters, functions, attributes of self.

    `left` beside `right`, and `other` of an operator, are English.
    """
    stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    names = [node.id for node in stored if isinstance(node, ast.Name)]
    if names.count("right") >= names.count("left"):
        names = [name for name in names if name != "left"]
    names += [node.name.lstrip("_") for node in nodes if isinstance(node, Function)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg) and node.arg != "other"]
    attributes = [node for node in stored if isinstance(node, ast.Attribute)]
    return names + [
        node.attr.lstrip("_") for node in attributes if ast.unparse(node.value) == "self"
    ]


def is_exception(value: object) -> bool:
    """Whether a value is a class of exceptions, which may lack a signature."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def is_parallel(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names, written out on both sides."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return isinstance(node.targets[0], ast.Tuple)


def lines_of_code(text: str, nodes: list[ast.AST]) -> int:
    """Number of lines that hold code: neither blank, nor a comment, nor part of a docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstring_lines(nodes))


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
    sources = [(library.texts[path], library.nodes[path]) for path in library.files]
    code = sum(lines_of_code(*source) for source in sources)
    tokens = [tokens_of_code(*source) for source in sources]
    is_core = [path.relative_to(SOURCE).parts[0] != "extensions" for path in library.files]
    nodes = [node for _, nodes in sources for node in nodes]
    names = [name for _, nodes in sources for name in bound_names(nodes)]
    private = np.mean([name in PRIVATE_WORDS for name in names])
    conditional = sum(isinstance(node, ast.IfExp) for node in nodes)
    callables = [value for value in public().values() if callable(value)]
    callables = [value for value in callables if not is_exception(value)]
    longest = max(len(str(inspect.signature(value))) for value in callables)
    refit = [path for path in library.files if path.parent.name == "refit"]
    return [
        Measure("tokens of code, core", np.dot(tokens, is_core), 430_000),
        Measure("tokens of code, all", sum(tokens), 610_000),
        Measure("tokens a line", sum(tokens) / code, 9, form="{:.1f}"),
        Measure("private words among bound names", 100 * private, 1, form="{:.1f} %"),
        Measure("conditional expressions per 1,000 lines", 1000 * conditional / code, 20),
        Measure("assignments of several values at once", sum(map(is_parallel, nodes)), 200),
        Measure("numeric constants, in all forms", len(numbers), 350),
        Measure("characters of the longest public signature", longest, 600),
        Measure("files of refit", len(refit), 12),
        Measure("entries in the package's root", entries(), 19),
        Measure("circles of modules, imports inside functions counted", library.circles(), 0),
        Measure("functions per 1,000 lines", 1000 * functions / lines, 70),
        Measure("class names in several modules", several(classes), 6),
        Measure(
            "constants' names in several modules",
            several([name for name in numbers if name.isupper()]),
            5,
        ),
        Measure("docstrings that open with a pronoun", pronouns, 0.2, form="{:.1f} %"),
        Measure(
            "public callables without Parameters, Returns or a run example", len(incomplete), 0
        ),
        Measure("test files that mirror a module", 100 * np.mean(tests), 90, True, "{:.0f} %"),
        Measure("public names at the root", public_names(), 80),
        Measure(TYPES, known(TYPES), 95, at_least=True, form="{:.1f} %"),
        Measure("lines of code, in thousands", code / 1000, None),
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
    """Print the table, and say which measures miss their goals and became worse."""
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
    worse = [measure.name for measure in found if not measure.holds]
    if worse:
        sys.exit(
            f"further from the goal than CONTRIBUTING.md says: {'; '.join(worse)}. Look for what the change makes superfluous; "
            "then --write puts today's figures there, and the commit says what they buy."
        )


if __name__ == "__main__":
    main()
