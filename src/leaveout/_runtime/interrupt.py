"""Ctrl-C: a call ends within a second, and returns its result so far.

Neither a compiled program nor its compilation can be interrupted. They run in threads beside the
main one, which waits and can stop waiting. A thread without a waiting main thread ends before its
next program.
"""

import collections
import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, TypeVar

Item = TypeVar("Item")
ThreadResult = TypeVar("ThreadResult")

_stop_event: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar(
    "stop_event", default=None
)
_pools: list[ThreadPoolExecutor] = []  # one thread, created on demand
os.register_at_fork(after_in_child=_pools.clear)


class Interrupted(KeyboardInterrupt):
    """Interrupt of a call by Ctrl-C.

    It need not be caught: afterwards it is `sys.last_value`, in a notebook too.

    Attributes
    ----------
    told : str
        How far the call came.
    partial : Any
        The result for what was done so far; None if there is no such result.
    """

    def __init__(self, answer: str, make: Callable[[], Any] | None = None):
        part = (
            ""
            if make is None
            else "; `partial` of this exception (sys.last_value.partial) is what is done so far"
        )
        super().__init__(
            f"{answer}{part}. With checkpoint=FILE the next such call goes on from where this one ended."
        )
        self.told = answer
        self.make = make

    @functools.cached_property
    def partial(self) -> Any:
        """Result for what was done before the interrupt; None if there is none."""
        return None if self.make is None else self.make()


@contextlib.contextmanager
def stoppable(caller: str) -> Iterator[None]:
    """Turn Ctrl-C into `Interrupted` under the name of `caller`, whatever other function runs
    inside it.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if getattr(error, "told", "").startswith(f"{caller}: "):
            raise
        raise Interrupted(f"{caller}: stopped") from None


class ThreadStop(Exception):
    """Raised in a thread for which the main thread no longer waits."""


def run_in_thread(run: Callable[[], ThreadResult]) -> ThreadResult:
    """Run a function that may take long and cannot be interrupted in another thread, for which the
    main thread waits.

    Called from another thread it runs there, or raises `ThreadStop` if the main thread no longer
    waits.
    """
    stop_event = _stop_event.get()
    if stop_event is not None and stop_event.is_set():
        raise ThreadStop
    if threading.current_thread() is not threading.main_thread():
        return run()
    if not _pools:
        _pools.append(ThreadPoolExecutor(1))
    try:
        return _pools[0].submit(contextvars.copy_context().run, run).result()
    except KeyboardInterrupt:
        # it is busy, and would delay the next call
        _pools.pop().shutdown(wait=False, cancel_futures=True)
        raise


def side_by_side(
    run: Callable[[Item], ThreadResult], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, ThreadResult]]:
    """Yield `run(item)` of every item, in order, computed in `workers` threads.

    If items are many, the first runs alone, so that programs are compiled once. An error, or
    Ctrl-C, does not wait for threads that still run.
    """
    remaining = iter(items)
    first_items = list(islice(remaining, 2 * workers + 1)) if workers > 1 else []
    num_alone = 1 if len(first_items) > 2 * workers else 0
    for item in chain(first_items[:num_alone], remaining if workers == 1 else ()):
        yield item, run(item)
    if workers == 1 or not first_items:
        return
    stop_event = threading.Event()
    waiting = collections.deque[Any]()
    pool = ThreadPoolExecutor(workers, initializer=lambda: _stop_event.set(stop_event))
    try:
        for item in chain(first_items[num_alone:], remaining):
            waiting.append((item, pool.submit(run, item)))
            if len(waiting) > workers:
                item, future = waiting.popleft()
                yield item, future.result()
        for item, future in waiting:
            yield item, future.result()
    except BaseException:
        stop_event.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
