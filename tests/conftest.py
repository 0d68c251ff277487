# ruff: noqa: E402
import ctypes
import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

gc.disable()  # modules and collected tests stay: hardly anything is garbage before the first test

# compiling is most of the time of these tests
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# stages of it, a third less time, and one part a program, half the pages; an XLA that knows no such
# flags ends the process
FEWER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1" and "PYTEST_XDIST_WORKER" not in os.environ:
    # beside those of the caller, such as another processor's
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FEWER}".strip()
    # JAX itself would take half a second more to import
    probe = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.make_cpu_client()"]
    if (
        subprocess.run(
            probe, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, check=False
        ).returncode
        == 0
    ):
        os.environ["XLA_FLAGS"] = flags  # of workers too
# shared by processes side by side
os.environ.setdefault("LEAVEOUT_CACHE", str(Path(__file__).parents[1] / ".pytest_cache"))

import jax
import jaxtyping
import numpy as np
import pytest
import threadpoolctl
from jax._src.lru_cache import LRUCache

from tests import shapes
from tests.slow import mark_slow_cases

# a core a worker: threads that wait for one another's take many times as long
if "PYTEST_XDIST_WORKER" in os.environ:
    threadpoolctl.threadpool_limits(1, "blas")  # of what is loaded, and
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # what will be


SOURCE = Path(__file__).parents[1] / "src" / "leaveout"
UNSHAPED = {"cli", "out_of_core", "sklearn"}  # extensions whose annotations carry no shapes
# modules that warn in their caller's name, which the check's own frames would hide, or carry no
# shapes
UNCHECKED = {
    "data.datasets",
    "extensions.leakage._estimate",
    "extensions.bayes.plot",
    "extensions.clinical.plot",
    "extensions.leakage._plot",
    "reporting.plot",
}
CHECKED = [
    path.relative_to(SOURCE)
    for path in SOURCE.rglob("*.py")
    if path.stem != "__init__" and path.parent != SOURCE
]
MODULES = {
    ".".join(path.with_suffix("").parts) for path in CHECKED if path.parts[1] not in UNSHAPED
}
if not os.environ.get("LEAVEOUT_UNCHECKED"):
    jaxtyping.jaxtyped = shapes.checked  # the decorator that the hook puts at every function
    jaxtyping.install_import_hook(
        [f"leaveout.{module}" for module in sorted(MODULES - UNCHECKED)], "beartype.beartype"
    )

import leaveout as lo
from leaveout._runtime import lazy_jax as _jax

# every test traces: that checks shapes, and sees what it puts in the place of constants
_jax.KEEPING = False

jax.config.update("jax_numpy_dtype_promotion", "standard")

# JAX looks through the whole folder of programs, locked, each time that it saves one: at every
# hundredth that is enough to bound it
evict, SAVED = LRUCache._evict_if_needed, itertools.count()
LRUCache._evict_if_needed = lambda folder, **new: (
    evict(folder, **new) if next(SAVED) % 100 == 0 else None
)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem():
    collected = yield
    if isinstance(collected, list):  # of one test function
        mark_slow_cases(collected)
    return collected


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    try:
        return (yield)
    finally:
        # modules and tests stay to the end: no collection of garbage looks through them again, and
        # through all that programs keep it does so a dozen times, not hundreds
        gc.freeze()
        gc.set_threshold(20_000, 20, 10)
        gc.enable()


@pytest.fixture(autouse=True)
def untouched():
    """The caller's JAX setting is what it was, after every test."""
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before


@pytest.fixture(autouse=True)
def same_draws():
    """Hosts without a random_state draw from NumPy's global generator.

    Every test begins with the same one.
    """
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    yield
    np.random.set_state(before)  # noqa: NPY002


STATM, MAPS = Path("/proc/self/statm"), Path("/proc/self/maps")
MAX_RESIDENT = 2_000  # MB of a worker above which compiled programs go
MAX_GROWTH = 600  # MB by which it grows before they go again
# mapped pages: Linux allows 65,530, beyond which XLA crashes. Counting takes time
MAX_PAGES = 40_000
ENDED = itertools.count()  # tests
cleared = [0.0]  # MB after programs went last


def resident():
    """MB of memory that this process holds."""
    return (
        int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        if STATM.exists()
        else 0.0
    )


@pytest.fixture(autouse=True)
def few_programs():
    """Every compiled program keeps memory and mapped pages."""
    yield
    much = resident() > max(MAX_RESIDENT, cleared[0] + MAX_GROWTH)
    if much or (
        next(ENDED) % 10 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MAX_PAGES
    ):
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # free memory goes back
        cleared[0] = resident()


@pytest.fixture(autouse=True)
def no_pictures():
    """Pyplot keeps figures until they are closed."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def heart():
    """The heart-failure data, where they are to be had."""
    folder = os.environ.get("LEAVEOUT_DATA", "")
    if not os.path.exists(os.path.join(folder, "heart_failure/heart.csv")):
        pytest.skip("needs heart_failure/heart.csv in the folder named by LEAVEOUT_DATA")
    return lo.datasets.heart_failure()
