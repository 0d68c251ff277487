"""Ctrl-C: a call ends within a second, and returns its result so far.

Neither a compiled program nor its compilation can be interrupted. They run in threads beside the
main one, which waits and can stop waiting. A thread without a waiting main thread ends before its
next program.
"""

import collections
import contextlib
import contextvars
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
ThreadResult = TypeVar("ThreadResult")

_told: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("told", default=None)
_beside: list[ThreadPoolExecutor] = []  # one thread, created on demand
os.register_at_fork(after_in_child=_beside.clear)


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
    except KeyboardInterrupt as stop:
        if getattr(stop, "told", "").startswith(f"{caller}: "):
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
    told = _told.get()
    if told is not None and told.is_set():
        raise ThreadStop
    if threading.current_thread() is not threading.main_thread():
        return run()
    if not _beside:
        _beside.append(ThreadPoolExecutor(1))
    try:
        return _beside[0].submit(contextvars.copy_context().run, run).result()
    except KeyboardInterrupt:
        # it is busy, and would delay the next call
        _beside.pop().shutdown(wait=False, cancel_futures=True)
        raise


def side_by_side(
    run: Callable[[Item], ThreadResult], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, ThreadResult]]:
    """Yield `run(item)` of every item, in order, computed in `workers` threads.

    If items are many, the first runs alone, so that programs are compiled once. An error, or
    Ctrl-C, does not wait for threads that still run.
    """
    rest = iter(items)
    some = list(itertools.islice(rest, 2 * workers + 1)) if workers > 1 else []
    first = 1 if len(some) > 2 * workers else 0
    for item in itertools.chain(some[:first], rest if workers == 1 else ()):
        yield item, run(item)
    if workers == 1 or not some:
        return
    told, waiting = threading.Event(), collections.deque[Any]()
    pool = ThreadPoolExecutor(workers, initializer=lambda: _told.set(told))
    try:
        for item in itertools.chain(some[first:], rest):
            waiting.append((item, pool.submit(run, item)))
            if len(waiting) > workers:
                item, made = waiting.popleft()
                yield item, made.result()
        for item, made in waiting:
            yield item, made.result()
    except BaseException:
        told.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
