"""Modules of public names, which are imported when they are used."""

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# rooms whose names a user may look for at the root; the last one that has a name is named
ROOMS = (
    *("developer", "emissions", "losses", "penalties", "sklearn", "terms", "survey"),
    *("tuning", "validation", "bayes", "clinical", "diagnostics"),
)

NEEDS_JAX = (
    "Random fields, conditional random fields, lo.Regression, lo.tune by gradients, and functions and emissions of your own "
    "need JAX, which is not installed: pip install 'leaveout[jax]'."
)


def words() -> dict[str, dict[str, str]]:
    """Return the words of other libraries by their kind, with what stands for them here."""
    import tomllib  # only where a name is wrong

    return tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))


def nearest(word: str, answers: Mapping[str, str]) -> str:
    """Return the answer to the nearest word, empty if none is near."""
    import difflib  # only where a name is wrong

    near = difflib.get_close_matches(word, answers, 1, 0.75)
    return "".join(answers[word] for word in near)


def place_of(name: str, room_of: Callable[[str], Any], names: list[str]) -> str:
    """Say where a name stands that the root lacks, or which of its `names` is near."""
    places = {word: f"lo.{room}.{word}" for room in ROOMS for word in room_of(room).__all__}
    places |= {word: f"lo.{word}" for word in names} | words()["names"]
    return nearest(
        name.lower(), {word.lower(): f": it is {place}" for word, place in places.items()}
    )


def attach(module: str, for_users: bool = True) -> Any:
    """Return `__getattr__`, `__dir__` and `__all__` of a module, by the imports of its stub.

    What it hands out for users has signatures that can be read. No name is that of a module beside
    the stub, unless it is that module.
    """
    path = Path(str(sys.modules[module].__file__))
    package = module
    if path.stem != "__init__":
        package = module.rpartition(".")[0]
    homes = {
        alias.name: "." * node.level + (node.module or "")
        for node in ast.parse(path.with_suffix(".pyi").read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = sorted(homes)

    def hand_out(name: str):
        if name not in homes:
            place = ""
            if name[0] != "_":  # which Python asks for
                place = nearest(name, {word: f": it is {word}" for word in names})
            raise AttributeError(f"module {module!r} has no attribute {name!r}{place}")
        home = _import(homes[name], package)
        if name in vars(home):
            value = vars(home)[name]
        else:
            value = _import(f"{home.__name__}.{name}")
        if for_users:
            from .signatures import readable  # once a name is used, for it imports NumPy

            readable(value)
        vars(sys.modules[module])[name] = value
        return value

    return hand_out, names.copy, names


def _import(name: str, package: str | None = None) -> ModuleType:
    """Import a module; ImportError that says what to install if it needs JAX, which is missing."""
    try:
        return import_module(name, package)
    except ModuleNotFoundError as error:
        check_missing(error)
        raise


def check_missing(error: ModuleNotFoundError) -> None:
    """Raise ImportError that says what to install, if JAX is what is missing."""
    if (error.name or "").partition(".")[0] in ("jax", "jaxlib", "equinox"):
        raise ImportError(NEEDS_JAX) from None
