"""Functions of the rows of every part, in this process, in joblib's workers, or on a cluster of
Dask.

Results come in the order of the parts, so that sums do not depend on the workers. If a worker dies,
another gets its parts. A cluster reads each part once, and keeps it where there is memory.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...developer import AnyFunction, AnyTuple, over as steps_over
from .batches import Batches, FilePart, fill_part

PassResult = dict[str, np.ndarray]
UNLIMITED = 2**32  # bytes that are taken for the memory of a worker without a limit


class Pass(NamedTuple):
    """Pass over the parts: `function(blocks, *arguments, *part_arguments[part])`.

    The blocks have a column of `ones` on request.
    """

    function: AnyFunction
    ones: bool
    arguments: AnyTuple
    part_arguments: list[AnyTuple] | None = None

    def apply(self, data: Batches, part: FilePart) -> PassResult:
        if self.part_arguments is None:
            extra = ()
        else:
            extra = self.part_arguments[part.number]
        return self.function(data.blocks(part, self.ones), *self.arguments, *extra)


def over(data: Batches, a: Pass, first: int = 0) -> Iterator[PassResult]:
    """Yield the results of a pass over every part from number `first` on, in order."""
    parts = data.parts[first:]
    if data.delayed or _client() is not None:
        yield from _by_dask(data, a, parts)
        return
    for _, result in steps_over(partial(a.apply, _bare(data)), parts):
        yield result


def _bare(data: Batches) -> Batches:
    """Return the data without their parts, which travel one by one.

    Messages still give their number.
    """
    return Batches((), data.roles, False, len(data.parts))


def _client() -> Any:
    """Return the client of a running Dask cluster, if there is one."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


class _HiddenRows:
    """Rows that read themselves, hidden from Dask's inspection."""

    def __init__(self, rows: Any):
        self.rows = rows


def _by_dask(data: Batches, a: Pass, parts: tuple[FilePart, ...]) -> Iterator[PassResult]:
    import dask

    client = _client()
    tasks = _tasks(data, a, parts)
    if client is None:
        yield from dask.compute(*tasks)
        return
    waiting = client.compute(tasks)
    for k in range(len(waiting)):
        # releases the result
        future = waiting[k]
        waiting[k] = None
        yield future.result()


def _tasks(data: Batches, a: Pass, parts: tuple[FilePart, ...]) -> list[Any]:
    """Tasks of Dask for the parts."""
    import dask

    task = dask.delayed(_apply_to_part, pure=False)
    shared = dask.delayed(partial(a.apply, _bare(data)), pure=False, traverse=False)
    rows = [part.rows if data.delayed else _HiddenRows(part.rows) for part in parts]
    return [
        task(shared, replace(part, rows=None), part_rows)
        for part, part_rows in zip(parts, rows, strict=True)
    ]


def keep_in_workers(data: Batches, ones: bool) -> Batches:
    """Let the workers of a cluster keep their parts as checked blocks, if a third of their memory
    holds all; else, or without a cluster, return the data as they are.
    """
    client = _client()
    if client is None:
        return data
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    memory = sum(worker["memory_limit"] or UNLIMITED for worker in workers)
    row_bytes = 8 * (len(data.roles.features) + 4)  # in a block
    if 3 * row_bytes * data.count > memory:
        return data
    blocks = client.persist(_tasks(data, Pass(list, ones, ()), data.parts))
    parts = tuple(replace(part, rows=rows) for part, rows in zip(data.parts, blocks, strict=True))
    return replace(data, parts=parts, delayed=True)


def _apply_to_part(shared: Callable[[FilePart], PassResult], part: FilePart, rows) -> PassResult:
    if isinstance(rows, _HiddenRows):
        return shared(replace(part, rows=rows.rows))
    return shared(fill_part(part, rows))
