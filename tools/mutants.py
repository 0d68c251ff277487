"""Do the quick tests notice small faults? The program plants each in a copy of the library and runs
the nearest tests on it.

    python tools/mutants.py [word ...]
        faults whose name, symbol or file holds one of the words; all by default
    python tools/mutants.py --sample 25 [--seed 1]     so many of them, drawn at random

`faults.py` lists the faults. The tests must pass without a fault; a fault with which they fail is
"killed". A fault that survives wants a test. The exit status is 1 if any survives.
"""

import argparse
import ast
import copy
import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "leaveout"
PASSED, FAILED = 0, 1  # exit statuses of pytest


class Definition(NamedTuple):
    """A function, method, class or constant.

    Its file, its module, its qualified name and its syntax tree.
    """

    path: Path
    module: str
    name: str
    node: ast.stmt


def definitions(
    body: list[ast.stmt], path: Path, module: str, owner: str = ""
) -> Iterator[Definition]:
    """The functions, classes, methods and constants of a module, with their decorators.

    Not what stands inside functions.
    """
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield Definition(path, module, owner + node.name, node)
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, path, module, f"{owner}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(part, ast.Name):
                        yield Definition(path, module, owner + part.id, node)
        elif isinstance(node, ast.If):
            yield from definitions(node.body + node.orelse, path, module, owner)


@functools.cache
def package_definitions() -> tuple[Definition, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        module = ".".join(parts[:-1] if path.stem == "__init__" else parts)
        found += definitions(ast.parse(path.read_text(encoding="utf-8")).body, path, module)
    return tuple(found)


@functools.cache
def definitions_by_last_name() -> defaultdict[str, list[Definition]]:
    """The package's definitions by the last part of their names."""
    found: defaultdict[str, list[Definition]] = defaultdict(list)
    for definition in package_definitions():
        found[definition.name.rpartition(".")[2]].append(definition)
    return found


def find(symbol: str) -> Definition:
    """The one definition that `symbol` names. Raises `LookupError` if there is none, or if there
    are several.
    """
    found = [
        definition
        for definition in definitions_by_last_name()[symbol.rpartition(".")[2]]
        if symbol == definition.name
        or (
            symbol.endswith(f".{definition.name}")
            and f".{definition.module}.{definition.name}".endswith(f".{symbol}")
        )
    ]
    if len(found) != 1:
        places = (
            ", ".join(f"{definition.module}.{definition.name}" for definition in found) or "nothing"
        )
        raise LookupError(
            f"{symbol} must name one function, class, method or constant of the package; it names {places}."
        )
    return found[0]


IDENTIFIERS = ("id", "arg", "attr", "name")  # fields of the syntax tree that hold names
SILENT = ("ctx", "kind", "type_comment")  # fields that say nothing of what a program does
# nodes that stand on a line
LOCATED = ast.expr | ast.stmt | ast.arg | ast.keyword | ast.excepthandler


class Place(NamedTuple):
    """Where a piece of code stands in a syntax tree: the nodes from `start` to `stop` of a field of
    `parent`, or its one node.

    `renames` maps names of the fault to the names that stand there now.
    """

    parent: ast.AST
    field: str
    start: int
    stop: int
    renames: dict[str, str]

    @property
    def nodes(self) -> list[ast.AST]:
        """The nodes that stand there."""
        value = getattr(self.parent, self.field)
        return value[self.start : self.stop] if isinstance(value, list) else [value]

    def put(self, nodes: list[ast.AST]) -> None:
        """Let other nodes stand there."""
        value = getattr(self.parent, self.field)
        if not isinstance(value, list):
            setattr(self.parent, self.field, nodes[0])
            return
        if isinstance(value[self.start], ast.stmt):
            nodes = [ast.Expr(node) if isinstance(node, ast.expr) else node for node in nodes]
        value[self.start : self.stop] = nodes


def code(text: str) -> list[ast.AST]:
    """The statements of a text, or its one expression."""
    statements = ast.parse(textwrap.dedent(text)).body
    if len(statements) == 1 and isinstance(statements[0], ast.Expr):
        return [statements[0].value]
    return list(statements)


def identifiers(nodes: Iterable[ast.AST]) -> set[str]:
    """Names, attributes and keywords of nodes."""
    values = [getattr(node, field, None) for node in nodes for field in IDENTIFIERS]
    return {value for value in values if isinstance(value, str)}


def is_open(body: object) -> bool:
    """Whether statements are written `...`, which stands for any."""
    return (
        isinstance(body, list)
        and len(body) == 1
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and body[0].value.value is ...
    )


def matches(pattern: object, value: object, current: set[str], renames: dict[str, str]) -> bool:
    """Whether a piece of code is `pattern`. A name that is not `current` has been renamed.

    The new one goes into `renames`.
    """
    if isinstance(pattern, list):
        same_length = isinstance(value, list) and len(pattern) == len(value)
        return is_open(pattern) or (
            same_length
            and all(matches(*pair, current, renames) for pair in zip(pattern, value, strict=True))
        )
    if type(pattern) is not type(value):
        return False
    if not isinstance(pattern, ast.AST):
        return pattern == value
    for field, part in ast.iter_fields(pattern):
        present = getattr(value, field, None)
        if field in IDENTIFIERS and isinstance(part, str) and part not in current:
            part = renames.setdefault(part, present)
        if field not in SILENT and not matches(part, present, current, renames):
            return False
    return True


def places(fault: Fault, symbol: ast.Module) -> list[Place]:
    """Where the code that a fault changes stands in its symbol, the one statement of a module."""
    pattern = code(fault.old)
    current = identifiers(ast.walk(symbol))
    stands = []
    for parent in ast.walk(symbol):
        for field, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for start in range(len(nodes) - len(pattern) + 1):
                stop = start + len(pattern)
                renames: dict[str, str] = {}
                if matches(pattern, nodes[start:stop], current, renames):
                    stands.append(Place(parent, field, start, stop, renames))
    return stands


def replacement(fault: Fault, place: Place) -> list[ast.AST]:
    """The code that a fault puts there, in the names and with the statements that stand there
    now.
    """
    nodes = code(fault.new)
    for node in (part for top in nodes for part in ast.walk(top)):
        for field in IDENTIFIERS:
            name = getattr(node, field, None)
            if isinstance(name, str):
                setattr(node, field, place.renames.get(name, name))
    if is_open(getattr(nodes[0], "body", None)):
        nodes[0].body = place.nodes[0].body
    return nodes


def plant(fault: Fault, text: str, definition: Definition) -> str:
    """The module's text with the fault. Raises `LookupError` unless `old` stands once in the
    symbol's syntax tree.
    """
    symbol = ast.Module([copy.deepcopy(definition.node)], [])
    stands = places(fault, symbol)
    if len(stands) != 1:
        raise LookupError(
            f"{fault.symbol}: {fault.name}: {fault.old!r} must occur once; it occurs {len(stands)} times."
        )
    stands[0].put(replacement(fault, stands[0]))
    if ast.dump(symbol) == ast.dump(ast.Module([definition.node], [])):
        raise LookupError(f"{fault.symbol}: {fault.name}: {fault.new!r} changes nothing.")
    lines = text.splitlines(keepends=True)
    first = min(
        node.lineno for node in [definition.node, *getattr(definition.node, "decorator_list", [])]
    )
    planted = textwrap.indent(ast.unparse(symbol), " " * definition.node.col_offset)
    return "".join([*lines[: first - 1], f"{planted}\n", *lines[definition.node.end_lineno :]])


@functools.cache
def all_test_files() -> tuple[Path, ...]:
    """The files of tests, looked for once."""
    return tuple(sorted((ROOT / "tests").rglob("test_*.py")))


def test_files(fault: Fault) -> list[str]:
    """The paths of the tests that must catch a fault. Raises `LookupError` if a stem stands for no
    file, or for several.
    """
    paths = []
    for stem in fault.tests.split():
        found = [
            path
            for path in all_test_files()
            if path.stem == stem.rpartition("/")[2]
            and f"/{path.with_suffix('')}".endswith(f"/{stem}")
        ]
        if len(found) != 1:
            raise LookupError(
                f"{fault.name}: {stem} must be one test file; {len(found)} have the name. Write room/{stem}."
            )
        paths.append(str(found[0].relative_to(ROOT)))
    return paths


def copy_package(fault: Fault | None, folder: Path) -> Path:
    """Copy `src` into `folder`, with the fault planted if there is one."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        definition = find(fault.symbol)
        path = source / definition.path.relative_to(ROOT / "src")
        path.write_text(
            plant(fault, path.read_text(encoding="utf-8"), definition), encoding="utf-8"
        )
    return source


def run_tests(files: list[str], fault: Fault | None = None) -> tuple[int, str]:
    """Run the quick tests of `files` on a copy of the package.

    Pytest's exit status, and what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = copy_package(fault, Path(folder))
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        where = [sys.executable, "-c", "import leaveout; print(leaveout.__file__)"]
        answer = subprocess.run(where, cwd=ROOT, env=environment, capture_output=True, text=True)
        if not answer.stdout.startswith(str(source)):
            raise RuntimeError(f"Python does not import the copy: {answer.stdout}{answer.stderr}")
        options = [
            "-m",
            "pytest",
            "-x",
            "-q",
            "-m",
            "not slow",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
        ]
        run = subprocess.run(
            [sys.executable, *options, *files],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        return run.returncode, run.stdout + run.stderr


def choose(words: list[str], sample: int | None, seed: int) -> list[Fault]:
    """The faults whose name, symbol or file holds one of the words, or a random sample of them in
    the order of the list.
    """
    chosen = [
        fault
        for fault in FAULTS
        if not words
        or any(
            word in f"{find(fault.symbol).path.relative_to(PACKAGE)} {fault.symbol} {fault.name}"
            for word in words
        )
    ]
    if sample is None or sample >= len(chosen):
        return chosen
    return [chosen[k] for k in sorted(random.Random(seed).sample(range(len(chosen)), sample))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="of the name, the symbol or the file of a fault")
    parser.add_argument(
        "--sample", type=int, help="how many of the faults to plant, drawn at random"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    options = parser.parse_args()
    chosen = choose(options.words, options.sample, options.seed)
    for files in dict.fromkeys(tuple(test_files(fault)) for fault in chosen):
        status, printed = run_tests(list(files))
        if status != PASSED:
            raise SystemExit(f"{printed}\n{' '.join(files)} must pass without a fault.")
    survived = 0
    for fault in chosen:
        began = time.monotonic()
        status, printed = run_tests(test_files(fault), fault)
        if status not in (PASSED, FAILED):
            raise SystemExit(
                f"{printed}\n{fault.symbol}: {fault.name}: the tests could not be run."
            )
        survived += status == PASSED
        verdict = "killed  " if status == FAILED else "SURVIVED"
        print(
            f"{verdict}  {time.monotonic() - began:5.1f} s  {fault.symbol}: {fault.name}",
            flush=True,
        )
    print(f"{len(chosen) - survived} of {len(chosen)} faults killed")
    raise SystemExit(survived > 0)


if __name__ == "__main__":
    main()
