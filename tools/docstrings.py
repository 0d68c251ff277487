"""The docstrings of the library: which there are, and what those of public names lack.

`tests/test_docstrings.py` fails where a public name lacks something. `tools/house.py` counts.
"""

import ast
import enum
import inspect
import re
import types
from importlib import import_module
from operator import attrgetter
from pathlib import Path

from numpydoc.docscrape import get_doc_object
from numpydoc.validate import validate

import leaveout as lo

SOURCE = Path(__file__).parents[1] / "src" / "leaveout"
MODULES = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
INFERENCE = ("chain", "clique", "moments")  # modules to call; those beside them serve these
NAMESPACES = (  # public names that hold others
    *(
        "datasets",
        "emissions",
        "leakage",
        "losses",
        "models",
        "penalties",
        "plot",
        "sklearn",
        "tuning",
        "validation",
    ),
    *(f"inference.{module}" for module in INFERENCE),
)
PRONOUN = re.compile(
    r"^(What|Of|That|Those|The same|Some|None|As|Where|Which|How it|And|From where)\b"
)
RULES = {  # of numpydoc; beside these, the summary is one line that begins with a capital
    *(
        "GL03",
        "GL06",
        "GL07",
        "GL08",
        "PR01",
        "PR02",
        "PR03",
        "PR04",
        "PR07",
        "RT03",
        "SS01",
        "SS02",
        "SS03",
    ),
}


def docstrings(path: Path) -> list[tuple[str, int, str]]:
    """The name, the line and the text of each docstring of a file."""
    found = []

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = (
                f"{name}.{child.name}"
                if isinstance(child, ast.ClassDef | ast.FunctionDef)
                else name
            )
            if isinstance(child, DOCUMENTED) and (text := ast.get_docstring(child)):
                found.append((inner, child.body[0].lineno - 1, text))
            walk(child, inner)

    tree = ast.parse((SOURCE / path).read_text())
    module = ".".join(("leaveout", *path.with_suffix("").parts))
    if text := ast.get_docstring(tree):
        found.append((module, 0, text))
    walk(tree, module)
    return found


def opening_with_a_pronoun(found: list[tuple[str, int, str]]) -> list[tuple[str, str]]:
    """The name and the first line of each docstring that opens with a pronoun."""
    return [(name, text.split("\n")[0]) for name, _, text in found if PRONOUN.match(text)]


def public() -> dict[str, object]:
    """Every public callable and property by its name below `leaveout`.

    Functions, classes, and what classes of ours define.
    """
    found = {}
    for module in INFERENCE:
        import_module(f"leaveout.inference.{module}")
    spaces = {"": lo, **{f"{name}.": attrgetter(name)(lo) for name in NAMESPACES}}
    for prefix, space in spaces.items():
        names = getattr(space, "__all__", None) or [
            name for name in vars(space) if not name.startswith("_")
        ]
        for name in names:
            value = getattr(space, name)
            shared = prefix in ("losses.", "penalties.") and name not in ("per_row", "per_weight")
            # functions that these modules share with others of the library
            if shared and not inspect.isclass(value):
                continue
            if (
                not callable(value)
                or not getattr(value, "__module__", "").startswith("leaveout")
                or value in found.values()
            ):
                continue
            home = (
                space.__name__
                if prefix.startswith("inference.")
                else space.__name__.rpartition(".")[0]
            )
            if not prefix or value.__module__.startswith(home):
                found[prefix + name] = value
    kinds = types.FunctionType | property | classmethod | staticmethod
    for name, value in list(found.items()):
        for member, part in vars(value).items() if inspect.isclass(value) else ():
            field = member in vars(value).get("__annotations__", ())  # a function that is a default
            if not (member.startswith("_") or field) and isinstance(part, kinds):
                found[f"{name}.{member}"] = getattr(value, member)
    return found


def lacks(name: str, value: object) -> set[str]:
    """The rules of numpydoc, and the sections, that the docstring of a public name does not
    meet.
    """
    text, owner = inspect.getdoc(value) or "", name.rpartition(".")[0]
    member = owner not in ("", *NAMESPACES)
    # nobody calls these
    fixed = inspect.isclass(value) and issubclass(value, BaseException | enum.Enum)
    # a sentence; or that of what is overridden
    if isinstance(value, property) or fixed or (member and not value.__doc__):
        return set() if text else {"GL08"}
    document = get_doc_object(value, config={"show_class_members": False})
    errors, doc = {code for code, _ in validate(document)["errors"]} & RULES, document
    signature = inspect.signature(value)
    takes = any(part not in ("self", "cls", "_") for part in signature.parameters)
    if inspect.isclass(value) and doc["Attributes"] and not doc["Parameters"]:
        errors -= {"PR01", "PR02", "PR03"}
        takes = False
    if takes and not doc["Parameters"]:
        errors.add("Parameters")
    if not inspect.isclass(value) and signature.return_annotation not in (None, "None"):
        errors |= set() if doc["Returns"] or doc["Yields"] else {"Returns"}
    if not member and not inspect.isabstract(value) and not doc["Examples"]:
        errors.add("Examples")
    return errors
