"""Were names all that changed? The program compares the syntax trees of two versions of the
library, module by module.

    python tools/renamed.py OLD [NEW]

Each is a revision of git or a folder that holds src/leaveout; NEW is the working tree by default.

Local names (variables, parameters, functions and imports inside functions, lambdas and
comprehensions) are numbered in the order in which they appear in their scope, and their numbers
must be equal. Comments, docstrings and layout do not count. Attributes, keywords, strings, fields
and methods of classes, functions and constants of modules must be equal, or change by the map
that is printed: what is referred to (an attribute, a keyword, a string) may change only as a
field, parameter or function changed where it is declared. What the package exports, and the
parameters of its functions, keep their names. The exit status is 1 if anything else differs.
"""

import argparse
import ast
import io
import subprocess
import symtable
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/leaveout"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
# fields that say nothing of what a program does
SILENT = ("ctx", "kind", "type_comment", "type_ignores")
DECLARED = ("field", "parameter", "global")  # a name where it is declared
REFERRED = ("attribute", "keyword", "string")  # a name where it is referred to


class Token(NamedTuple):
    """An entry of a syntax tree.

    Its kind, its value, the line on which it stands, and the class or function around it.
    """

    kind: str
    value: object
    line: int
    around: str


class Scope:
    """A module, class, function, lambda or comprehension, as the compiler sees it.

    Parameters
    ----------
    table : the compiler's table of names of the scope
    parent : the scope around it; None for a module
    """

    def __init__(self, table: symtable.SymbolTable, parent: "Scope | None" = None) -> None:
        self.table = table
        self.parent = parent
        self.inner = iter(table.get_children())
        # of names that are bound here, in the order in which they appear
        self.numbers: dict[str, int] = {}

    @property
    def type(self) -> str:
        """What kind of scope it is: "module", "class" or "function"."""
        return self.table.get_type()

    def open(self) -> "Scope":
        """The next scope inside this one."""
        return Scope(next(self.inner), self)

    def binds(self, name: str) -> bool:
        """Whether a name is bound in this scope."""
        return name in self.table.get_identifiers() and self.table.lookup(name).is_local()

    def resolve(self, name: str) -> tuple[str, "Scope | None"]:
        """The kind of a name, and the function's scope that binds it if it is local."""
        scope = self
        if name in self.table.get_identifiers() and self.table.lookup(name).is_global():
            return "global", None
        while scope is not None and (
            not scope.binds(name) or (scope is not self and scope.type == "class")
        ):
            scope = scope.parent
        if scope is None or scope.type == "module":
            return "global", None
        if scope.type == "class":
            return "field", None
        return "local", scope


def foreign_names(module: ast.Module) -> set[str]:
    """Names that modules of other packages, and what is imported from them, have in a module."""
    names = set()
    for node in ast.walk(module):
        foreign = isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and not node.level
        )
        if foreign and "leaveout" not in ast.unparse(node):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return names


def root_of(node: ast.AST) -> ast.AST:
    """The expression whose attribute, or attribute's attribute, a node is."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def is_stored(node: ast.Attribute) -> bool:
    """Whether a value is assigned to an attribute."""
    return isinstance(node.ctx, ast.Store)


class Row:
    """The syntax tree of a module as a row of tokens."""

    def __init__(self, text: str) -> None:
        self.tokens: list[Token] = []
        # numbers of scopes, in the order in which their names appear
        self.scopes: dict[Scope, int] = {}
        self.line = 0
        self.around: list[str] = []
        module = ast.parse(text)
        self.foreign = foreign_names(module)
        self.visit(module, Scope(symtable.symtable(text, "module", "exec")))

    def write(self, kind: str, value: object) -> None:
        """Add a token."""
        self.tokens.append(Token(kind, value, self.line, ".".join(self.around)))

    def name(self, name: str, scope: Scope) -> None:
        """Add a name that is bound or read in a scope."""
        kind, binder = scope.resolve(name)
        if binder is None:
            self.write(kind, name)
            return
        number = self.scopes.setdefault(binder, len(self.scopes))
        self.write(kind, (number, binder.numbers.setdefault(name, len(binder.numbers))))

    def visit_all(self, nodes: Iterable[ast.AST | None], scope: Scope) -> None:
        """Add the tokens of several nodes."""
        nodes = list(nodes)
        self.write("count", len(nodes))
        for node in nodes:
            self.visit(node, scope)

    def visit(self, node: object, scope: Scope) -> None:
        """Add the tokens of a node, those that stand in the scope around a function or class first,
        as the compiler does.
        """
        if isinstance(node, list):
            self.visit_all(node, scope)
            return
        if not isinstance(node, ast.AST):
            self.write("value", node)
            return
        self.line = getattr(node, "lineno", self.line)
        self.write("node", type(node).__name__)
        if isinstance(node, Function | ast.Lambda):
            self.function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self.name(node.name, scope)
            self.visit_all(node.bases, scope)
            self.visit_all(node.keywords, scope)
            self.visit_all(node.decorator_list, scope)
            self.body(node, scope.open())
        elif isinstance(node, Comprehension):
            self.visit(node.generators[0].iter, scope)
            self.comprehension(node, scope.open())
        else:
            self.fields(node, scope)

    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope
    ) -> None:
        """Add a function: its name, defaults, annotations and decorators stand in the scope around
        it.
        """
        parameters = [
            *node.args.posonlyargs,
            *node.args.args,
            node.args.vararg,
            *node.args.kwonlyargs,
            node.args.kwarg,
        ]
        if not isinstance(node, ast.Lambda):
            self.name(node.name, scope)
        self.visit_all(node.args.defaults, scope)
        self.visit_all(node.args.kw_defaults, scope)
        if not isinstance(node, ast.Lambda):
            self.visit_all((part.annotation for part in parameters if part is not None), scope)
            self.visit(node.returns, scope)
            self.visit_all(node.decorator_list, scope)
        inner = scope.open()
        self.write(
            "count", (len(node.args.posonlyargs), len(node.args.args), len(node.args.kwonlyargs))
        )
        self.around.append(getattr(node, "name", "lambda"))
        for part in parameters:
            if part is None:
                self.write("value", None)
            else:
                self.name(part.arg, inner)
                if not isinstance(node, ast.Lambda):
                    self.write("parameter", part.arg)
        self.around.pop()
        self.body(node, inner)

    def body(self, node: ast.AST, scope: Scope) -> None:
        """Add what a function or class does, without its docstring."""
        statements = node.body
        self.around.append(getattr(node, "name", "lambda"))
        if isinstance(statements, list):
            self.visit_all(statements[ast.get_docstring(node, clean=False) is not None :], scope)
        else:
            self.visit(statements, scope)
        self.around.pop()

    def comprehension(self, node: ast.AST, scope: Scope) -> None:
        """Add a comprehension; what its first `for` runs over stands in the scope around it."""
        for k, part in enumerate(node.generators):
            self.visit(part.target, scope)
            if k:
                self.visit(part.iter, scope)
            self.visit_all(part.ifs, scope)
            self.write("value", part.is_async)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.visit_all(values, scope)

    def fields(self, node: ast.AST, scope: Scope) -> None:
        """Add any other node."""
        if isinstance(node, ast.Module):
            self.body(node, scope)
        elif isinstance(node, ast.Name):
            self.name(node.id, scope)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.write("string", node.value)
        elif isinstance(node, ast.Constant):
            self.write("value", repr(node.value))
        elif isinstance(node, ast.Call):
            self.call(node, scope)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                self.name(name, scope)
        elif isinstance(node, ast.alias):
            self.alias(node, scope)
        else:
            for field, value in ast.iter_fields(node):
                self.field(node, field, value, scope)

    def field(self, node: ast.AST, field: str, value: object, scope: Scope) -> None:
        """Add a field of a node."""
        binds = isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping)
        if field in SILENT:
            return
        if field == "attr":
            self.attribute(node, scope)
        elif field == "arg":
            self.write("keyword", value)
        elif binds and field in ("name", "rest") and value is not None:
            self.name(value, scope)
        else:
            self.visit(value, scope)

    def attribute(self, node: ast.Attribute, scope: Scope) -> None:
        """Add the name of an attribute.

        Those of what is imported from elsewhere, such as `np.add.at`, are not ours to rename.
        """
        root = root_of(node)
        if self.is_foreign(node, scope):
            self.write("value", node.attr)
        elif node.value is root and ast.unparse(root) in ("self", "cls") and is_stored(node):
            self.write("field", node.attr)
        else:
            self.write("attribute", node.attr)

    def is_foreign(self, node: ast.AST, scope: Scope) -> bool:
        """Whether an expression is an attribute of what is imported from elsewhere, or that."""
        root = root_of(node)
        if not isinstance(root, ast.Name) or root.id not in self.foreign:
            return False
        return scope.resolve(root.id)[0] == "global"

    def call(self, node: ast.Call, scope: Scope) -> None:
        """Add a call; keywords of functions that are imported from elsewhere are not ours.

        Those that are handed on, by `partial` and `replace`, may be.
        """
        hands_on = ast.unparse(node.func).endswith(("partial", "replace"))
        foreign = self.is_foreign(node.func, scope) and not hands_on
        kind = "value" if foreign else "keyword"
        self.visit(node.func, scope)
        self.visit_all(node.args, scope)
        for keyword in node.keywords:
            self.line = keyword.lineno
            self.write(kind if keyword.arg else "value", keyword.arg)
            self.visit(keyword.value, scope)

    def alias(self, node: ast.alias, scope: Scope) -> None:
        """Add an import: the name in the module from which it comes, and the one that it has here
        if that is another.
        """
        self.write("attribute", node.name)
        bound = node.asname or node.name.split(".")[0]
        if bound != "*" and scope.type == "function":
            self.name(bound, scope)
        else:
            self.write("global", bound)


class Comparison:
    """What differs between two versions: a map of names, by the kind of what they name, and
    differences that are no renames.

    Parameters
    ----------
    old, new : mapping from str to str
        Texts of the modules of the two versions, by their paths.
    """

    def __init__(self, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        self.renames: dict[str, Counter[tuple[str, str]]] = {
            kind: Counter() for kind in (*DECLARED, *REFERRED)
        }
        self.differences = [
            f"{path}: in one version alone" for path in sorted(old.keys() ^ new.keys())
        ]
        self.places: dict[tuple[str, str], str] = {}
        self.local_renames = 0
        exported = exports(old)
        for path in sorted(old.keys() & new.keys()):
            if old[path] != new[path]:
                self.compare(path, Row(old[path]), Row(new[path]), exported)
        declared = set().union(*(self.renames[kind] for kind in DECLARED))
        for kind in REFERRED:
            for pair in self.renames[kind]:
                if pair not in declared:
                    self.differences.append(
                        f"{self.places[pair]}: {kind} {pair[0]!r} is {pair[1]!r}, and nothing so named was renamed"
                    )
        self.find_left_behind(new)

    def find_left_behind(self, new: Mapping[str, str]) -> None:
        """Note the keywords that still have a name which nothing declares any more."""
        gone = {old for kind in ("field", "parameter") for old, _ in self.renames[kind]}
        if not gone:
            return
        tokens = [(path, token) for path, text in new.items() for token in Row(text).tokens]
        gone -= {token.value for _, token in tokens if token.kind in DECLARED}
        for path, token in tokens:
            if token.kind == "keyword" and token.value in gone:
                place = f"{path}:{token.line} ({token.around})"
                self.differences.append(
                    f"{place}: keyword {token.value!r}: nothing has that name any more"
                )

    def compare(self, path: str, old: Row, new: Row, exported: set[str]) -> None:
        """Compare one module of the two versions."""
        if len(old.tokens) != len(new.tokens):
            self.differences.append(
                f"{path}: {len(old.tokens)} entries of the syntax tree are {len(new.tokens)}"
            )
        for before, after in zip(old.tokens, new.tokens, strict=False):
            if before.kind == after.kind and before.value == after.value:
                continue
            place = f"{path}:{after.line} ({after.around})"
            if before.kind != after.kind or before.kind not in self.renames:
                self.differences.append(
                    f"{place}: {before.kind} {before.value!r} is {after.kind} {after.value!r}"
                )
                return  # what follows differs for this alone
            pair = (before.value, after.value)
            self.renames[before.kind][pair] += 1
            self.places.setdefault(pair, place)
            owner = before.around.split(".")
            hidden = any(part.startswith("_") and not part.startswith("__") for part in owner)
            if before.kind == "parameter" and owner[0] in exported and not hidden:
                self.differences.append(
                    f"{place}: {before.value!r}, a parameter of what the package exports, is {after.value!r}"
                )
            if before.kind == "global" and before.value in exported:
                self.differences.append(
                    f"{place}: {before.value!r}, which the package exports, is {after.value!r}"
                )


def exports(texts: Mapping[str, str]) -> set[str]:
    """Names that packages export.

    Those that a stub or an `__init__` imports, and those of `__all__`.
    """
    names = set()
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and Path(path).stem == "__init__":
                names |= {alias.asname or alias.name for alias in node.names}
            if isinstance(node, ast.Assign) and [
                ast.unparse(target) for target in node.targets
            ] == ["__all__"]:
                names |= {
                    part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)
                }
    return names


def texts(version: str | None) -> dict[str, str]:
    """Texts of the library's modules, by path, of a folder, of a revision, or of the working tree
    if `version` is None.
    """
    folder = ROOT if version is None else Path(version)
    if (folder / PACKAGE).is_dir():
        paths = [
            path
            for path in sorted((folder / PACKAGE).rglob("*.py*"))
            if path.suffix in (".py", ".pyi")
        ]
        return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}
    archive = subprocess.run(
        ["git", "archive", version, PACKAGE], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = [member for member in files if member.name.endswith((".py", ".pyi"))]
        return {member.name: files.extractfile(member).read().decode() for member in members}


def main() -> None:
    """Compare two versions, print the map of names, and say what else differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="a revision of git, or a folder that holds src/leaveout")
    parser.add_argument("new", nargs="?", help="the same; the working tree by default")
    options = parser.parse_args()
    comparison = Comparison(texts(options.old), texts(options.new))
    for kind, pairs in comparison.renames.items():
        for (old, new), count in sorted(pairs.items()):
            print(f"{kind:10s} {old} -> {new}  ({count})")
    print("\n".join(comparison.differences) or "nothing but names differs")
    sys.exit(bool(comparison.differences))


if __name__ == "__main__":
    main()
