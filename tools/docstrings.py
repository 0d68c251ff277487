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
        "survey",
        "tuning",
        "validation",
    ),
    *("inference", *(f"inference.{module}" for module in INFERENCE), "losses.links"),
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


def namespaces() -> dict[str, types.ModuleType]:
    """The modules of public names, by what stands before their names below `leaveout`."""
    for module in INFERENCE:
        import_module(f"leaveout.inference.{module}")
    return {"": lo, **{f"{name}.": attrgetter(name)(lo) for name in NAMESPACES}}


def public() -> dict[str, object]:
    """Every public callable and property by its name below `leaveout`.

    Functions, classes, and what classes of ours define.
    """
    found = {}
    for prefix, space in namespaces().items():
        for name in space.__all__:
            value = getattr(space, name)
            ours = callable(value) and getattr(value, "__module__", "").startswith("leaveout")
            if ours and value not in found.values():
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
