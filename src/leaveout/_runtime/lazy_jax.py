"""JAX, imported when something has to be derived or compiled, compiled programs, and frozen classes
that are trees to JAX.

Models in closed form need none of it: `jax`, `jnp` and `jspecial` are placeholders of modules that
are imported on first use.

JAX caches compiled code under a hash of the program's text, and each process traces and lowers the
program anew to get that text. For a hidden Markov model this takes longer than everything else.
`Program` keeps the text itself (StableHLO, by `jax.export`), under a hash of all its inputs: this
package's source, the versions of the packages that trace it, JAX's settings, the classes and
constants of the arguments, the shapes of their arrays. A program is kept only if all of these are
this package's own, as other code may depend on values outside the hash. Compiled code is JAX's own
cache: an executable that XLA's CPU client has loaded cannot be saved again (in JAX 0.10 the copy
lacks functions, or returns other numbers).
"""

import abc
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import inspect
import os
import pickle
import platform
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
)

import numpy as np
import platformdirs
import scipy
from jaxtyping import Shaped
from numpy import ndarray

from .conventions import log, warn
from .fingerprint import fingerprint
from .interrupt import run_in_thread
from .namespaces import check_missing

P = ParamSpec("P")
R = TypeVar("R")
CachedValue = TypeVar("CachedValue")
ExportedCall = tuple[Any, Any]

KEEPING = True  # whether programs are kept; off in tests, which trace to check shapes
MAX_EXPORTED_BYTES = 2**26  # bytes of programs that are kept; those unused for longest go first
TRUSTED_MODULES = (
    *("abc", "builtins", "collections", "copyreg", "functools", "types", "typing"),
    *("equinox", "jax", "jaxlib", "jaxtyping", "leaveout", "numpy"),
)
# Options of XLA's compiler for CPUs: chains compile in less than half the time, most run as fast,
# and Hessians by half slower
QUICK_COMPILATION = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
}
# settings of JAX's cache, which do not affect programs
CACHE_SETTINGS = "jax_compilation_cache", "jax_persistent_cache"
TRACING = "jax", "jaxlib", "equinox", "numpy"  # packages that a program depends on
DEBUGGING = "jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks"


class _Later:
    """Module that is imported when one of its names is used."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str):
        if self._name == "jax":
            ensure_jax()
        else:
            _ensure_programs()
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import jax.scipy.special as jspecial
    from jax import Array
    from jaxtyping import Scalar

    PyTree: TypeAlias = Any  # jaxtyping's own is unknown to type checkers
else:
    jax = _Later("jax")
    jnp = _Later("jax.numpy")
    jspecial = _Later("jax.scipy.special")
    Array = PyTree = Any
    Scalar = Shaped[Any, ""]
Arrays = Array | ndarray  # compiled functions accept both
NUMPY = ndarray | np.generic | float  # types that need no JAX
FORKED = (
    "This process was forked from one that had used JAX, whose threads do not live on in it, so that it would hang. Start "
    "processes by spawn: multiprocessing.get_context('spawn'), ProcessPoolExecutor(mp_context=…), joblib's 'loky'; and let "
    "workers of a server, such as Gunicorn's with --preload, make their first fit or prediction after the fork."
)

_forked: list[bool] = []  # true if JAX was used before this process was forked
_unregistered: list[type] = []
_registering = threading.Lock()
# `waiting`: the outermost scope of double precision of this thread, if it began without JAX
_scope = threading.local()


def _note_fork() -> None:
    """Note whether JAX had started the threads of its programs before this process was forked."""
    if getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", bool)():
        _forked.append(True)


os.register_at_fork(after_in_child=_note_fork)


def ensure_jax() -> None:
    """Import JAX if it is not imported yet, register classes as trees, and enter double precision
    if it is waiting.

    Raises
    ------
    ImportError
        If JAX is not installed.
    """
    try:
        import jax.flatten_util
    except ModuleNotFoundError as error:
        check_missing(error)
        raise

    _set_up_cache()
    if _unregistered:
        with _registering:
            for cls in _unregistered:
                _register(cls)
            _unregistered.clear()
    waiting = getattr(_scope, "waiting", None)
    if waiting is not None:
        _scope.waiting = None
        waiting.enter_context(jax.enable_x64(True))


def _ensure_programs() -> None:
    """Import JAX to run its programs; RuntimeError in a forked process where they would hang."""
    if _forked:
        raise RuntimeError(FORKED)
    ensure_jax()


@cache
def _set_up_cache() -> Path | None:
    """Set up the folder in which compiled programs are kept for other processes, and return it;
    None if none are kept.

    The folder is named by the environment variable `LEAVEOUT_CACHE`, else it is in the user's
    cache; "off" keeps nothing. A folder that the caller has chosen for JAX stays. Two processes may
    write at once.
    """
    import jax

    chosen = os.environ.get("LEAVEOUT_CACHE") or platformdirs.user_cache_dir("leaveout")
    if chosen == "off" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return None
    folder = Path(chosen) / "programs" / _host()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:  # a home that is not writable
        warn(
            f"Compiled programs are not kept for other processes, as {folder} cannot be written ({error.strerror}): each "
            "process compiles them again, to the same numbers. LEAVEOUT_CACHE names another folder, or none, by 'off'."
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # bytes of compiled programs that are kept
    # JAX locks the folder with this setting
    jax.config.update("jax_compilation_cache_max_size", 2**30)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # seconds of compiling from which a program is saved
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    return folder / "traced"


def _host() -> str:
    """Name of the machine's instruction set, for which programs are compiled.

    Machines may share a home.
    """
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else [platform.processor()]
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def _double() -> Iterator[None]:
    """Double precision, in which a density or a probability may underflow to zero, whatever the
    caller's `np.seterr`.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(np.errstate(under="ignore"))
        if "jax" in sys.modules:
            ensure_jax()
            stack.enter_context(jax.enable_x64(True))
        elif getattr(_scope, "waiting", None) is None:
            _scope.waiting = stack
            stack.callback(setattr, _scope, "waiting", None)
        yield


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` in double precision, if it uses JAX, and restore the caller's setting."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _double():
            return function(*args, **kwargs)

    return wrapped


class CachedValues:
    """Values that functions computed from their owner, beside its fields. Copies have none, and
    equal each other.
    """

    def __init__(self, owner: int = 0):
        self.owner = owner
        self.by_function = dict[Callable, Any]()

    def __eq__(self, other: object) -> bool:
        return True

    def __reduce__(self) -> tuple[type, tuple]:
        return CachedValues, ()

    @staticmethod
    def of(owner: Any) -> "CachedValues":
        """Return those of an object, none at first, and where it is a copy of another."""
        with _values_lock:
            values = vars(owner).get("cached values")
            if values is None or values.owner != id(owner):
                values = vars(owner)["cached values"] = CachedValues(id(owner))
        return values


_values_lock = threading.Lock()


def cached_on(make: Callable[[Any], CachedValue]) -> Callable[[Any], CachedValue]:
    """Decorate a function of one object, so that its value is computed once and cached beside the
    fields of the object, with which it is freed.
    """
    lock = threading.RLock()

    @wraps(make)
    def cached(fit):
        values = CachedValues.of(fit).by_function
        with lock:  # batches run in parallel
            if make not in values:
                values[make] = float64(make)(fit)
        return values[make]

    return cached


def carry_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Prepare `function` for another thread: in double precision and on the device chosen here.

    Settings of JAX belong to a thread.
    """
    config: Any = jax.config if "jax" in sys.modules else None
    device = None if config is None else config.jax_default_device
    if device is None:
        return float64(function)

    @wraps(function)
    def on_device(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.default_device(device):
            return function(*args, **kwargs)

    return float64(on_device)


def numpy_of(value: Any) -> Any:
    """Return NumPy for arrays of NumPy, `jax.numpy` for those of JAX."""
    return np if isinstance(value, NUMPY) else jnp


def is_traced(value: Any) -> bool:
    """Tell whether a value contains a traced array, which has no value yet."""
    return "jax" in sys.modules and any(
        isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)
    )


def special_of(value: Any) -> Any:
    """Return SciPy's special functions for arrays of NumPy, JAX's for its own."""
    if isinstance(value, NUMPY):
        return scipy.special
    return jspecial


def function_name(function: Any) -> str:
    """Name of a function, or of the class of what is called."""
    return getattr(function, "__name__", type(function).__name__)


def call_traced(description: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a user's function.

    TypeError if it takes other arguments, or, with the line, asks for values under tracing.
    """
    errors = jax.errors
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except ValueError:  # a builtin without a signature
        pass
    except TypeError:
        signature = inspect.signature(function)
        count = len(args) + len(kwargs)
        raise TypeError(
            f"{description}, {function_name(function)!r}, is called with {count} arguments; it takes {signature}."
        ) from None
    try:
        return function(*args, **kwargs)
    except (
        errors.ConcretizationTypeError,
        errors.TracerArrayConversionError,
        errors.TracerIntegerConversionError,
    ) as error:
        lines = traceback.extract_tb(error.__traceback__)[1:]
        line = lines[0] if lines else None
        where = f" (line {line.lineno} of {line.filename}: {line.line})" if line is not None else ""
        raise TypeError(
            f"{description}, {function_name(function)!r}, must be written in JAX{where}. There an array has no value yet that NumPy, "
            "math, float() or an `if` could ask for: call jax.numpy instead of numpy (jnp.exp for np.exp), and write "
            "jnp.where(condition, a, b) for `if`."
        ) from None


def make_on_first_call(make: Callable[[], Callable[P, R]]) -> Callable[P, R]:
    """Return the function that `make()` returns, created at the first call."""
    make = cache(make)

    @wraps(make)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        _ensure_programs()
        return make()(*args, **kwargs)

    return called


def compile_static(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` for the shapes of its arrays and the values of all else, as Equinox's
    `filter_jit` does.

    Ctrl-C does not wait for it.
    """
    program = Program(function, _set_up_cache)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        _ensure_programs()
        import jax  # not the placeholder, which looks for the module at every name

        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return program.nested(*args, **kwargs)
        place = _place(leaves)
        if place is not None:
            leaves, tree = jax.tree.flatten(_put_tree((args, kwargs), place))
        config: Any = jax.config  # settings by `with` apply to the caller's thread only
        double = config.jax_enable_x64
        device = config.jax_default_device

        def run() -> R:
            with jax.enable_x64(double), jax.default_device(device):
                return jax.block_until_ready(program(leaves, tree))

        return run_in_thread(run)

    return called


class Program:
    """Program `function(*args, **more)`, compiled for the shapes of its arrays and the values of
    all else.

    Its traced text is kept in `folder()`. Where that is None the same text is compiled, for this
    process: results do not depend on what is kept.
    """

    def __init__(self, function: Callable[..., Any], folder: Callable[[], Path | None]):
        self.function = function
        self.folder = folder
        self.by_key = dict[Hashable, Callable | None]()

    @cached_property
    def jitted(self) -> Callable[..., Any]:
        """The function as Equinox traces and compiles it."""
        import equinox

        jit: Any = equinox.filter_jit  # its types do not list the options of JAX
        return jit(self.function, compiler_options=_quick_compilation())

    @cached_property
    def nested(self) -> Callable[..., Any]:
        """The function within another program, whose options hold."""
        import equinox

        return equinox.filter_jit(self.function)

    def __call__(self, leaves: list[Any], tree: Any) -> Any:
        """Run the program of arguments that are flattened to `leaves`."""
        import jax

        folder = self.folder()
        array = jax.Array
        config = cast(Any, jax.config)

        def run_jitted() -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return self.jitted(*args, **kwargs)

        if not KEEPING or any(getattr(config, name) for name in DEBUGGING):
            return run_jitted()
        if any(
            device.platform != "cpu"
            for leaf in leaves
            if isinstance(leaf, array)
            for device in leaf.devices()
        ):
            return run_jitted()
        # shape, dtype and weak type for which a program is compiled; a constant by its type and
        # value
        kinds = ndarray, np.generic, array
        is_array = [isinstance(leaf, kinds) for leaf in leaves]
        shapes = tuple(
            (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False))
            if numeric
            else (type(leaf), leaf)
            for leaf, numeric in zip(leaves, is_array, strict=True)
        )
        arrays = [leaf for leaf, numeric in zip(leaves, is_array, strict=True) if numeric]
        key = (
            tree,
            shapes,
            config.jax_enable_x64,
            config.jax_default_device,
            config.jax_default_matmul_precision,
        )
        try:
            is_known = key in self.by_key
        except TypeError:  # a constant without a hash
            return run_jitted()
        if not is_known:
            described = [
                ("array", *map(str, shape)) if numeric else shape[1]
                for shape, numeric in zip(shapes, is_array, strict=True)
            ]
            constants = [
                None if numeric else leaf for leaf, numeric in zip(leaves, is_array, strict=True)
            ]
            self.by_key[key] = self._load_or_trace(folder, tree, described, constants, arrays)
        program = self.by_key[key]
        return run_jitted() if program is None else program(arrays)

    def _load_or_trace(
        self, folder: Path | None, tree, described: list, constants: list, arrays: list
    ) -> Callable | None:
        """The kept program, or the function traced now and kept; None if it cannot be named or
        exported.

        Of the leaves of its arguments, `described` has the arrays by shape and dtype, and
        `constants` has None in their place.
        """
        if jax.default_backend() != "cpu" or cast(Any, jax.config).jax_default_device is not None:
            return None
        try:
            made_of = self.function, jax.tree.unflatten(tree, described)
            name = fingerprint((_surroundings(), _settings(), made_of), trusted=TRUSTED_MODULES)
        except TypeError:
            return None
        name = f"{self.function.__name__}-{name}"
        program = None if folder is None else _read(folder / name)
        if program is None:
            log.debug("a program is traced: %s", self.function.__name__)
            program = self._export(tree, constants, arrays)
            if folder is not None:
                _write(folder / name, program)
        exported, like = program
        if exported is None:
            return None
        run = _compile(exported, name.replace("-", "_"), arrays)
        structure = jax.tree.structure(like)
        return lambda arrays: jax.tree.unflatten(structure, run(arrays))

    def _export(self, tree, constants: list, arrays: list) -> ExportedCall:
        """Exported program, and a tree in the shape of its result; a pair of None if it cannot be
        exported.

        A program that calls back to Python, for example, cannot.
        """
        structures = list[Any]()

        def flat(arrays: Iterable) -> list:
            iterator = iter(arrays)
            args, kwargs = jax.tree.unflatten(
                tree, [next(iterator) if leaf is None else leaf for leaf in constants]
            )
            leaves, structure = jax.tree.flatten(self.function(*args, **kwargs))
            structures.append(structure)
            return leaves

        flat.__name__ = self.function.__name__  # JAX caches compiled code by this name
        try:
            exported = jax.export.export(jax.jit(flat))(arrays)
        except (ValueError, NotImplementedError):
            return None, None
        return dataclasses.replace(exported, _get_vjp=None), jax.tree.unflatten(
            structures[0], range(structures[0].num_leaves)
        )


def _compile(exported, name: str, arrays: list) -> Callable[[list], Any]:
    """Compile an exported program under its name. Compiled code of another name, in this one's
    file, is replaced.
    """

    def compiled() -> Any:
        def call(arrays: list):
            return exported.call(arrays)

        call.__name__ = name
        return jax.jit(call).lower(arrays).compile(_quick_compilation())

    with contextlib.suppress(Exception):  # code of another program may have results of other shapes
        program = compiled()
        if program.runtime_executable().hlo_modules()[0].name == f"jit_{name}":
            return program
    for file in Path(cast(Any, jax.config).jax_compilation_cache_dir or os.devnull).glob(
        f"jit_{name}-*-cache"
    ):
        _say_replaced(file)
        file.unlink(missing_ok=True)
    return compiled()


@cache
def _quick_compilation() -> dict[str, Any] | None:
    """Options of XLA under which programs are compiled; None if this version does not know them."""
    try:
        jax.jit(lambda: 0.0, compiler_options=QUICK_COMPILATION).lower().compile()
    except Exception:  # whose class differs between versions
        return None
    return QUICK_COMPILATION


@cache
def _surroundings() -> list[str]:
    """Hash of this package's source, and the versions of the packages that trace and compile."""
    source = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        source.update(f"{file.relative_to(root)}:".encode() + file.read_bytes())
    return [sys.version, source.hexdigest(), *map(importlib.metadata.version, TRACING)]


def _settings() -> list[str]:
    """Settings of JAX, as this thread sees them, and of XLA."""
    config = jax.config
    set_to = {
        name: getattr(config, name, value)
        for name, value in config.values.items()
        if not name.startswith(CACHE_SETTINGS)
    }
    return [f"{name}={set_to[name]}" for name in sorted(set_to)] + [os.environ.get("XLA_FLAGS", "")]


def _read(file: Path) -> ExportedCall | None:
    """The program of this name.

    None, with a warning, if the file holds anything else, and None if it cannot be read. A damaged
    program would not only be another one: XLA may end the process.
    """
    try:
        digest, _, program = file.read_bytes().partition(b"\n")
        os.utime(file)
    except OSError:
        return None
    if digest == fingerprint((file.name, program)).encode():
        return pickle.loads(program)  # noqa: S301 (its own folder, which SECURITY.md names)
    _say_replaced(file)
    return None


def _say_replaced(file: Path) -> None:
    warn(f"{file} does not hold the compiled program that it is named after: it is replaced.")


def _write(file: Path, program: ExportedCall) -> None:
    """Write a program whole or not at all, whoever else writes it.

    Do nothing if it cannot be written.
    """
    try:
        pickled = pickle.dumps(program)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as draft:
            draft.write(fingerprint((file.name, pickled)).encode() + b"\n" + pickled)
        os.replace(draft.name, file)
        forget_programs(file.parent)
    except Exception:  # the program is there all the same
        return


def forget_programs(folder: Path) -> None:
    """Delete the programs that were unused for longest, if all together are too large."""
    programs = sorted(
        ((file.stat().st_mtime, file.stat().st_size, file) for file in folder.iterdir()),
        reverse=True,
    )
    for (*_, file), total in zip(
        programs, np.cumsum([size for _, size, _ in programs]), strict=True
    ):
        if total > MAX_EXPORTED_BYTES:
            file.unlink(missing_ok=True)


def foreign(device: Any) -> Any:
    """Return the device if its memory is not this machine's own, else None."""
    if device.platform == "cpu" and device == device.client.local_devices()[0]:
        return None
    return device


def _place(leaves: list):
    """Find the foreign device for programs of these arrays; None for this machine's memory, and for
    several devices.

    It is the device of one of the arrays, else the chosen one (`jax.default_device`), else an
    accelerator that JAX has.
    """
    import jax

    kind = jax.Array
    config = cast(Any, jax.config)
    for leaf in leaves:
        if isinstance(leaf, kind) and leaf.committed:
            if len(leaf.devices()) == 1:
                return foreign(*leaf.devices())
            return None
    chosen = config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    return foreign(chosen)


def resident(tree: PyTree) -> PyTree:
    """Move arrays to the device where their programs run.

    Those of a module are sent once, as its fields are never set again.
    """
    return _put_tree(tree, _place(jax.tree.leaves(tree)))


def _put_tree(tree: PyTree, place) -> PyTree:
    if place is None:
        return tree
    parts, shape = jax.tree.flatten(tree, is_leaf=lambda part: isinstance(part, Module))
    parts = [_twin(part, place) if isinstance(part, Module) else part for part in parts]
    loose = [
        k
        for k, part in enumerate(parts)
        if isinstance(part, ndarray | jax.Array) and not getattr(part, "committed", False)
    ]
    with _double():
        copies = jax.device_put([parts[k] for k in loose], place)
    for k, part in zip(loose, copies, strict=True):
        parts[k] = part
    return jax.tree.unflatten(shape, parts)


_twins: dict[tuple[int, Any], Any] = {}  # copies by module and device


def _twin(module: "Module", place):
    """Copy a module with its arrays on the device, once."""
    key = id(module), place
    if key not in _twins:
        _twins[key] = _copy_module(module, place)
        weakref.finalize(module, _twins.pop, key, None)
    return _twins[key]


def _copy_module(module: "Module", place):
    if hasattr(module, "as_jax_sees_it"):
        return _put_tree(module.as_jax_sees_it(), place)
    out = object.__new__(type(module))
    values = vars(module)
    static_fields = {
        name: field.metadata.get("static") for name, field in _fields(type(module)).items()
    }
    vars(out).update(
        {
            name: values[name] if is_static else _put_tree(values[name], place)
            for name, is_static in static_fields.items()
        }
    )
    return out


def select_lanes(part: Arrays, lanes: "np.ndarray") -> Arrays:
    """Select refits from an array on any device."""
    return part[lanes] if isinstance(part, ndarray) else _gather_lanes(part, lanes)


@compile_static
def _gather_lanes(part: "Array", lanes: "Arrays") -> "Array":
    return part[lanes]


def static(**options: Any) -> Any:
    """Declare a field that is not an array: programs are compiled for its value."""
    return dataclasses.field(metadata={"static": True}, **options)


@dataclass_transform(field_specifiers=(dataclasses.field, static))
class Module(abc.ABC):  # noqa: B024
    """Base of frozen dataclasses that are trees to JAX.

    The fields are the branches, except `static` ones (Equinox's `field(static=True)` works too). An
    `__init__` of a subclass sets each field once. Two modules are equal only if they are the same
    object, as arrays compare by entry.
    """

    _own_init: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # other metaclasses, such as Equinox's, register their classes
        if type(cls) is not abc.ABCMeta:
            return
        cls._own_init = cls._own_init or "__init__" in vars(cls)
        dataclasses.dataclass(init=not cls._own_init, eq=False, repr=False)(cls)
        if hasattr(cls, "__check_init__") or any(
            "converter" in field.metadata for field in _fields(cls).values()
        ):
            raise TypeError(
                f"{cls.__name__}: converters and __check_init__ are Equinox's; write __init__ or __post_init__."
            )
        with _registering:
            _unregistered.append(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if _unregistered and "jax" in sys.modules:
            ensure_jax()
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) or name not in _fields(type(self)):
            raise dataclasses.FrozenInstanceError(
                f"cannot assign to field {name!r} of {type(self).__name__}"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        values = {name: vars(self)[name] for name in _fields(type(self)) if name in vars(self)}
        usual = {name: repr(field.default) for name, field in _fields(type(self)).items()}
        parts = (
            f"{name}={value!r}" for name, value in values.items() if repr(value) != usual[name]
        )
        return f"{type(self).__name__}({', '.join(parts)})"


@cache
def _fields(cls: Any) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(cls)}


def branches_of(module: Module) -> dict[str, Any]:
    """Return the fields of a module that are not static, by name."""
    return {
        name: vars(module)[name]
        for name, field in _fields(type(module)).items()
        if not field.metadata.get("static")
    }


def _register(cls: type) -> None:
    """Register a class as a pytree node."""
    import jax

    if hasattr(cls, "as_jax_sees_it"):  # JAX sees an array in its place
        jax.tree_util.register_pytree_node(
            cls, lambda self: ([self.as_jax_sees_it()], None), lambda _, parts: parts[0]
        )
        return
    static_names = [name for name, field in _fields(cls).items() if field.metadata.get("static")]
    names = [name for name in _fields(cls) if name not in static_names]

    def flatten(self):
        return list(branches_of(self).values()), tuple(vars(self)[name] for name in static_names)

    def unflatten(values, parts):
        self = object.__new__(cls)
        vars(self).update(zip(names, parts, strict=True))
        vars(self).update(zip(static_names, values, strict=True))
        return self

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
