"""Steps computed by joblib's workers, if there are any: `with joblib.parallel_config("loky",
n_jobs=8)`, "dask", "ray".

The result of a step depends neither on its worker nor on the number of workers, and results come
back in order. Without workers everything is computed here. A function travels pickled, once, by
value if it is the user's own, and workers of one machine share its arrays. If a worker dies, others
get its items.
"""

import collections
import contextlib
import functools
import itertools
import os
import pickle
import sys
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy import ndarray

from .checkpoint import StepResult, keep, making, num_saved_steps, read_step
from .interrupt import side_by_side
from .lazy_jax import cached_on, carry_settings, jax

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

STARTING = 3.0  # seconds to start other processes; less work stays here
PORTION = 0.5  # seconds of work that are sent to a process at once
MAX_WORKER_DEATHS = 3  # largest number of deaths of workers without a result in between

Item = TypeVar("Item")
PartResult = TypeVar("PartResult")
RemainingCount = Callable[[int], float]  # number of remaining items after so many

_unpacked: dict[str, Any] = {}
_unpacking = threading.RLock()


def steps(
    make: Callable[[Item], StepResult],
    items: Iterable[Item],
    threads: int = 1,
    jobs: int | None = None,
) -> Generator[tuple[Item, StepResult], None, None]:
    """Yield the result of `make` for each item, in order.

    Read it from the checkpoint if it is there, else keep it.
    """
    num_saved = num_saved_steps()
    remaining = iter(items)
    for item in itertools.islice(remaining, num_saved):
        yield item, read_step()
    count = len(items) - num_saved if isinstance(items, Sized) else np.inf
    for item, result in over(
        make, remaining, threads=threads, jobs=jobs, remaining_count=lambda done: count - done
    ):
        keep(result)
        yield item, result


def over(
    make: Callable[[Item], PartResult],
    items: Iterable[Item],
    *,
    threads: int = 1,
    jobs: int | None = None,
    remaining_count: RemainingCount | None = None,
) -> Iterator[tuple[Item, PartResult]]:
    """Yield `make(item)` of every item, in order, computed in threads or by joblib's workers.

    `jobs` is the number of workers, by default what joblib was configured with. If
    `remaining_count` is given, items are computed here until the work that remains, as timed on the
    first ones, takes long enough for sending to pay; else they are sent at once.
    """
    number = workers(jobs)
    remaining = iter(items)
    size = 1
    if number < 2 or _are_threads():
        if number > 1:
            threads = number
        yield from side_by_side(_step(make), remaining, threads)
        return
    if remaining_count is not None:
        mean_seconds = 0.0
        local_step = _step(make)
        for done, item in enumerate(remaining, 1):
            start = time.perf_counter()
            with single_threaded():
                result = local_step(item)
            mean_seconds += (time.perf_counter() - start - mean_seconds) / done
            yield item, result
            if mean_seconds * remaining_count(done) > STARTING:
                break
        else:
            return
        size = max(1, round(PORTION / mean_seconds))
    yield from _by_workers(make, remaining, jobs, size, number)


def workers(jobs: int | None = None) -> int:
    """Number of joblib's workers; one if joblib was not configured."""
    if jobs is None and "joblib" not in sys.modules:
        return 1
    import joblib

    return joblib.effective_n_jobs(jobs)


def _are_threads() -> bool:
    """Tell whether workers are threads of this process, to which nothing has to be sent."""
    import joblib

    return getattr(joblib.parallel.get_active_backend()[0], "supports_sharedmem", False)


def single_threaded() -> contextlib.AbstractContextManager[object]:
    """Limit matrix products to one thread: with more, their last digit may differ."""
    return _blas().limit(limits=1)


@functools.cache
def _blas() -> "ThreadpoolController":
    """Return the controller of the libraries that multiply matrices."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _step(make: Callable[[Item], PartResult]) -> Callable[[Item], PartResult]:
    """Wrap `make` for another thread: in double precision, on the device chosen here.

    No part of it is a step of its own in the checkpoint.
    """

    @carry_settings
    def compute(item: Item) -> PartResult:
        with making():
            return make(item)

    return compute


class _Waiting:
    """Items that workers have not returned yet."""

    def __init__(self, items: Iterator[Any]):
        self.items = items
        self.out = collections.deque[Any]()
        self.lock = threading.Lock()
        self.is_closed = False

    def __iter__(self) -> Iterator[Any]:
        """Hand out items to any thread of joblib."""
        while True:
            with self.lock:
                item = self if self.is_closed else next(self.items, self)
                if item is self:
                    return
                self.out.append(item)
            yield item

    def remaining(self) -> "_Waiting":
        """Return all items that were not returned, or not handed out."""
        with self.lock:
            self.is_closed = True
            return _Waiting(itertools.chain(self.out, self.items))


def _by_workers(
    make: Callable[[Item], PartResult],
    items: Iterator[Item],
    jobs: int | None,
    size: int,
    number: int,
) -> Iterator[tuple[Item, PartResult]]:
    """Yield `make(item)` of every item, computed by joblib's workers, and recover if some of these
    die.
    """
    import joblib

    parcel = _Parcel(make)
    waiting = _Waiting(items)
    tries = 0
    while True:
        pool = joblib.Parallel(
            jobs, return_as="generator", batch_size=size, pre_dispatch=2 * size * number
        )
        outcomes = pool(joblib.delayed(_compute)(parcel, item) for item in waiting)
        try:
            for outcome in outcomes:
                item = waiting.out.popleft()
                tries = 0
                for message, category in outcome.warning_list:
                    warnings.warn(message, category, stacklevel=1)
                if outcome.error is not None:
                    raise _WorkerError(outcome.error)
                yield item, outcome.value
            return
        except _WorkerError as raised:
            raise raised.error from None
        except Exception as error:  # each backend raises its own errors
            tries += 1
            if tries == MAX_WORKER_DEATHS:
                raise RuntimeError(
                    f"joblib's workers ended {MAX_WORKER_DEATHS} times with nothing made in between "
                    f"({type(error).__name__}: {error}): "
                    "is there memory for so many? With checkpoint=FILE the same call goes on from here."
                ) from error
            waiting = waiting.remaining()
        finally:
            # joblib warns of a generator that is not exhausted
            with warnings.catch_warnings(action="ignore"):
                outcomes.close()


class _WorkerError(Exception):
    """Error that the function itself raised in a worker, rather than the worker's failure."""

    def __init__(self, error: Exception):
        self.error = error


class _Outcome(NamedTuple):
    """Result of an item in a worker: its value or the error raised, and the warnings issued."""

    value: Any
    error: Exception | None
    warning_list: list[tuple[Warning | str, type[Warning]]]


def _compute(parcel: "_Parcel", item) -> _Outcome:
    """Compute an item in a worker."""
    import joblib

    value = None
    failed = None
    with (
        warnings.catch_warnings(record=True) as caught,
        joblib.parallel_config("sequential"),
        single_threaded(),
    ):
        warnings.simplefilter("always")
        try:
            value = _step(parcel.load())(item)
        except Exception as error:
            failed = _portable(error)
            failed.add_note(f"In one of joblib's workers:\n{traceback.format_exc()}")
    return _Outcome(value, failed, [(str(warning.message), warning.category) for warning in caught])


def _portable(error: Exception) -> Exception:
    """The error itself, or a RuntimeError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (what it wrote itself)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _Parcel:
    """Function, or a part of one, on its way to workers.

    Its arrays are separate, so that joblib shares them, and so do parts that several functions
    share: a worker unpacks and compiles a fit once.
    """

    def __init__(self, make: Any):
        buffers: list[pickle.PickleBuffer] = []
        self.name = uuid.uuid4().hex
        self.parts = dict[str, _Parcel]()
        stream = BytesIO()
        try:
            _pickler(make, self.parts)(stream, 5, buffers.append).dump(make)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"joblib's workers: what they are to make cannot be sent to them ({error}); leave out parallel_config, or see "
                "to it that no lock, open file or generator goes along."
            ) from error
        self.code = stream.getvalue()
        self.arrays = [np.asarray(buffer.raw()) for buffer in buffers]

    def __sizeof__(self) -> int:
        """Size by which Dask decides which objects to put on workers."""
        return (
            len(self.code)
            + sum(part.nbytes for part in self.arrays)
            + sum(map(sys.getsizeof, self.parts.values()))
        )

    def load(self) -> Any:
        """Unpickle a function once in each process; the last few are kept."""
        with _unpacking:
            loaded = _unpacked.pop(self.name, self)
            _unpacked[self.name] = loaded if loaded is not self else _Unpickler(self).load()
            # functions and fits that a worker keeps
            for old in list(_unpacked)[:-4]:
                del _unpacked[old]
            return _unpacked[self.name]


class _Unpickler(pickle.Unpickler):
    """Unpickler that resolves shared parts from those already there or sent along."""

    def __init__(self, parcel: _Parcel):
        super().__init__(BytesIO(parcel.code), buffers=parcel.arrays)
        self.parts = parcel.parts

    def persistent_load(self, name: str):
        return self.parts[name].load()


@cached_on
def _send(part: Any) -> _Parcel:
    return _Parcel(part)


def _pickler(root, parts: dict[str, _Parcel]):
    from cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        """Pickler of memory maps by the names of their files, of fits by themselves, of JAX's
        arrays as NumPy's.
        """

        def persistent_id(self, value) -> str | None:
            if value is root or not getattr(type(value), "__sent_alone__", False):
                return None
            sent = _send(value)
            parts[sent.name] = sent
            return sent.name

        def reducer_override(self, value: Any) -> Any:
            if "jax" in sys.modules and isinstance(value, jax.Array):
                return np.asarray, (np.asarray(value),)
            description = describe_rows(value) if isinstance(value, np.memmap) else value
            if description is value:
                return super().reducer_override(value)
            return map_rows, (description,)

    return Pickler


def describe_rows(array: ndarray) -> Any:
    """Describe contiguous rows of a memory map by file, dtype, offset and shape.

    Any other array is returned itself.
    """
    if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
        return array
    root = array
    address = lambda part: part.__array_interface__["data"][0]
    while isinstance(root.base, np.memmap):
        root = root.base
    return (
        os.fspath(array.filename),
        array.dtype,
        root.offset + address(array) - address(root),
        array.shape,
    )


def map_rows(facts: Any) -> ndarray:
    """Open the array of such a description."""
    if isinstance(facts, ndarray):
        return facts
    file, dtype, offset, shape = facts
    return np.memmap(file, dtype, "r", offset, shape)
