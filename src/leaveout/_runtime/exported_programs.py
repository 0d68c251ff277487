"""Cache of traced programs on disk, so that other processes need not trace them again.

JAX caches compiled code under a hash of the program's text, and each process traces and lowers the program anew to get that
text. For a hidden Markov model this takes longer than everything else. This module keeps the text itself (StableHLO, by
`jax.export`), under a hash of all its inputs: this package's source, the versions of the packages that trace it, JAX's
settings, the classes and constants of the arguments, the shapes of their arrays. A program is kept only if all of these are
this package's own, as other code may depend on values outside the hash.

Compiled code is JAX's own cache: an executable that XLA's CPU client has loaded cannot be saved again (in JAX 0.10 the copy
lacks functions, or returns other numbers).
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np

from .fingerprint import fingerprint

ExportedCall = tuple[Any, Any]

KEEPING = True  # off in tests, which trace to check shapes
MAX_EXPORTED_BYTES = 2**26  # bytes of programs that are kept; those unused for longest go first
TRUSTED_MODULES = (
    *("abc", "builtins", "collections", "copyreg", "functools", "types", "typing"),
    *("equinox", "jax", "jaxlib", "jaxtyping", "leaveout", "numpy"),
)
CACHE_SETTINGS = ("jax_compilation_cache", "jax_persistent_cache")  # settings of JAX's cache, which do not affect programs
TRACING = ("jax", "jaxlib", "equinox", "numpy")  # packages that a program depends on
DEBUGGING = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks")


class Program:
    """Program `function(*args, **more)`, compiled for the shapes of its arrays and the values of all else.

    Its traced text is kept in `folder()`.
    """

    def __init__(self, function: Callable[..., Any], folder: Callable[[], Path | None]):
        self.function, self.folder = function, folder
        self.by_key = dict[Hashable, Callable | None]()

    @functools.cached_property
    def anew(self) -> Callable[..., Any]:
        """The function as Equinox traces and compiles it."""
        import equinox

        return equinox.filter_jit(self.function)

    def __call__(self, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        import jax

        folder = self.folder()
        if folder is None or not KEEPING or any(getattr(jax.config, name) for name in DEBUGGING):
            return self.anew(*args, **more)
        leaves, tree = jax.tree.flatten((args, more))
        if any(device.platform != "cpu" for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()):
            return self.anew(*args, **more)
        shapes, config = tuple(map(_shape, leaves)), cast(Any, jax.config)
        key = (tree, shapes, config.jax_enable_x64, config.jax_default_device, config.jax_default_matmul_precision)
        try:
            known = key in self.by_key
        except TypeError:  # a constant without a hash
            return self.anew(*args, **more)
        if not known:
            self.by_key[key] = self._load_or_trace(folder, leaves, tree)
        program = self.by_key[key]
        return self.anew(*args, **more) if program is None else program(list(filter(_array, leaves)))

    def _load_or_trace(self, folder: Path, leaves: list, tree: Any) -> Callable | None:
        """The kept program, or the function traced now and kept; None if it cannot be named or exported."""
        import jax

        if jax.default_backend() != "cpu" or cast(Any, jax.config).jax_default_device is not None:
            return None
        try:
            made_of = self.function, jax.tree.unflatten(tree, map(_token, leaves))
            name = fingerprint((_surroundings(), _settings(), made_of), trusted=TRUSTED_MODULES)
        except TypeError:
            return None
        file = folder / f"{self.function.__name__}-{name}"
        kept = _read(file)
        if kept is None:
            kept = self._export(leaves, tree)
            _write(file, kept)
        exported, like = kept
        if exported is None:
            return None
        run, structure = jax.jit(exported.call), jax.tree.structure(like)
        return lambda arrays: jax.tree.unflatten(structure, run(arrays))

    def _export(self, leaves: list, tree: Any) -> ExportedCall:
        """Exported program, and a tree in the shape of its result; a pair of None if it cannot be exported.

        A program that calls back to Python, for example, cannot.
        """
        import jax

        rest, structures = [None if _array(leaf) else leaf for leaf in leaves], list[Any]()

        def flat(arrays: Iterable) -> list:
            given = iter(arrays)
            args, more = jax.tree.unflatten(tree, [next(given) if leaf is None else leaf for leaf in rest])
            found, structure = jax.tree.flatten(self.function(*args, **more))
            structures.append(structure)
            return found

        flat.__name__ = self.function.__name__  # JAX caches compiled code by this name
        try:
            exported = jax.export.export(jax.jit(flat))(list(filter(_array, leaves)))
        except (ValueError, NotImplementedError):
            return None, None
        return dataclasses.replace(exported, _get_vjp=None), jax.tree.unflatten(structures[0], range(structures[0].num_leaves))


def _array(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, np.ndarray | np.generic | jax.Array)


def _shape(leaf: Any) -> tuple:
    """Shape, dtype and weak type for which a program is compiled; a constant by its type and value."""
    return (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) if _array(leaf) else (type(leaf), leaf)


def _token(leaf: Any) -> Any:
    """Description of an array by its shape and dtype only; anything else as it is."""
    return ("array", *map(str, _shape(leaf))) if _array(leaf) else leaf


@functools.cache
def _surroundings() -> list[str]:
    """Hash of this package's source, and the versions of the packages that trace and compile."""
    source, root = hashlib.blake2b(digest_size=16), Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        source.update(f"{file.relative_to(root)}:".encode() + file.read_bytes())
    return [sys.version, source.hexdigest(), *map(importlib.metadata.version, TRACING)]


def _settings() -> list[str]:
    """Settings of JAX, as this thread sees them, and of XLA."""
    import jax

    set_to = {
        name: getattr(jax.config, name, value)
        for name, value in jax.config.values.items()
        if not name.startswith(CACHE_SETTINGS)
    }
    return [f"{name}={set_to[name]}" for name in sorted(set_to)] + [os.environ.get("XLA_FLAGS", "")]


def _read(file: Path) -> ExportedCall | None:
    """Kept program from a file; None if it cannot be used."""
    try:
        kept = pickle.loads(file.read_bytes())
        os.utime(file)
        return kept
    except Exception:  # such as a damaged file
        return None


def _write(file: Path, keep: ExportedCall) -> None:
    """Write a program whole or not at all, whoever else writes it; do nothing if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as beside:
            beside.write(pickle.dumps(keep))
        os.replace(beside.name, file)
        _forget(file.parent)
    except (OSError, pickle.PicklingError, TypeError, AttributeError):
        return


def _forget(folder: Path) -> None:
    """Delete the programs that were unused for longest, if all together are too large."""
    found = sorted(((file.stat().st_mtime, file.stat().st_size, file) for file in folder.iterdir()), reverse=True)
    for (*_, file), total in zip(found, np.cumsum([size for _, size, _ in found]), strict=True):
        if total > MAX_EXPORTED_BYTES:
            file.unlink(missing_ok=True)
