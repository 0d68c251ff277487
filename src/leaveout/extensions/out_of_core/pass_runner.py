"""The passes of a scan over its parts, in order: functions of the rows of every part, in this
process, in joblib's workers, or on a cluster of Dask.

Results come in the order of the parts, so that sums do not depend on the workers. If a worker dies,
another gets its parts. A cluster reads each part once, and keeps it where there is memory.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from ... import GLM, fit, losses
from ...developer import (
    ONE,
    AnyFunction,
    AnyTuple,
    Curvature,
    NamedArrays,
    NamedValues,
    NewtonResult,
    NumpyArray,
    RadiusTable,
    Rounding,
    RowNumbers,
    Slow,
    StepResult,
    TwoArrays,
    Vector,
    cholesky,
    condition,
    factor_error,
    join,
    keep,
    making,
    newton,
    num_saved_steps,
    over as steps_over,
    read_or_make,
    read_step,
)
from ...validation import IndefiniteHessianError
from .batches import Batches, FilePart, fill_part
from .passes import (
    SUMS,
    LeftOutRows,
    PassFit,
    beginning,
    leave_rows_out,
    merge_surveys,
    sample_of,
    sums,
    survey,
    worst,
)
from .result import Scan

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


Together = Callable[[StepResult, StepResult], StepResult]


class PassRunner:
    """The passes of a scan in order; each is a step that `checkpoint` keeps."""

    def __init__(self, rows: Batches, model: GLM, folder: Path | None):
        self.rows = keep_in_workers(rows, model.intercept)
        self.model = model
        self.folder = folder
        predictors = model.predictors
        assert predictors is not None
        self.loss: losses.AbstractLoss = model.loss_function
        self.penalty = np.asarray(predictors.penalty)
        self.passes = 0
        self.cache: NamedValues = {}
        self.columns: NamedArrays | None = None

    def add_up(
        self,
        function: Callable[..., StepResult],
        label: str,
        *arguments: Any,
        together: Together | None = None,
    ) -> StepResult:
        """Run a pass over all parts, and add up or combine the results."""
        together = together or (
            lambda first, other: (
                {name: first[name] + part for name, part in other.items()} if first else other
            )
        )

        def make() -> StepResult:
            total: StepResult = {}
            with Slow(label, len(self.rows.parts)) as bar:
                for part_result in over(
                    self.rows, Pass(function, self.model.intercept, (self.loss, *arguments))
                ):
                    total = together(total, part_result)
                    bar.advance()
            return total

        self.passes += 1
        return read_or_make(make)

    def evaluate(self, theta: Vector) -> StepResult:
        """Return F, its gradient and its Hessian at θ."""
        if not self.cache or not np.array_equal(self.cache["theta"], theta):
            totals = self.add_up(sums, "fit", theta)
            pushed = self.penalty @ theta
            value = totals["value"] + 0.5 * theta @ pushed
            self.cache = {
                "theta": theta.copy(),
                "weight": totals["weight"],
                "level": totals["value"] / totals["weight"],
                "value": value if value == value else np.inf,
                "gradient": totals["gradient"] + pushed,
                "hessian": totals["hessian"] + self.penalty,
            }
        return self.cache

    def look(self, theta: NumpyArray, lanes: NumpyArray) -> TwoArrays:
        """Return F and its gradient, with the signature that `newton` needs."""
        del lanes
        values = self.evaluate(theta[0])
        return np.reshape(values["value"], 1), values["gradient"][None]

    def hessian(self, theta: NumpyArray, lanes: NumpyArray) -> NumpyArray:
        del lanes
        return self.evaluate(theta[0])["hessian"][None].copy()

    def _descend(self, start: Vector) -> NewtonResult:
        return newton(self, start[None], ONE, np.zeros((0, self.model.design.shape[1])))  # type: ignore[arg-type]

    def fitted(self, rtol: float) -> tuple[Scan, PassFit]:
        """Fit; return a scan without losses, and what later passes need of the fit."""
        default_start = np.asarray(self.model.parameters.start(0))

        def begin() -> StepResult:
            """Return the minimiser of the first block, if it has one."""
            try:
                return {
                    "start": np.asarray(
                        self.model.parameters.unconstrained(fit(self.model).parameters)
                    )
                }
            except (RuntimeError, IndefiniteHessianError):
                return {"start": default_start}

        start = read_or_make(begin)["start"]
        if not Curvature.of(self.evaluate(start)["hessian"]).definite:
            start = default_start
        solution = self._descend(start)
        if not solution.converged[0] and not np.array_equal(start, default_start):
            solution = self._descend(default_start)
        fitted = self.evaluate(solution.theta[0])
        factor = cholesky(fitted["hessian"], self.model, fitted["theta"], "scan")
        if not solution.converged[0]:
            raise RuntimeError(
                f"scan: no minimiser was reached (F = {float(fitted['value']):.6g}, largest parameter "
                f"{np.abs(fitted['theta']).max():.3g}): are the data perfectly separated? Add a penalty, such as "
                "lo.penalties.Ridge(1.0)."
            )
        root = scipy.linalg.lapack.dtrtri(factor, lower=1)[0]
        scale = np.linalg.norm(factor, axis=1)
        n = self.rows.count
        p = len(root)
        condition_number = float(condition(root, scale))
        relative_error = factor_error(condition_number, n, p)
        bulk = float(np.abs(fitted["theta"]) @ scale)
        rounding = Rounding(n, p, condition_number**0.5, relative_error, bulk)
        anchor = PassFit(
            fitted["theta"], root, root @ fitted["gradient"], rounding, float(fitted["level"])
        )
        seen = self.add_up(survey, "proofs", anchor, together=merge_surveys)
        anchor = anchor._replace(
            noise=float(seen["noise"]),
            table=RadiusTable.from_tally(self.loss, seen["tally"], float(seen["lost"])),
            tolerance=rtol * float(np.sqrt(seen["square"]) / fitted["weight"]),
        )
        if "row" in seen:
            anchor = anchor._replace(sample=sample_of(seen))
        total = np.zeros(SUMS)
        return Scan(self.model, n, fitted, factor, total, None, self.folder), anchor

    def left_out(
        self, scan: Scan, anchor: PassFit, audit: int
    ) -> tuple[Scan, LeftOutRows, RowNumbers]:
        """Leave out every row.

        Return the scan, the rows for a closer look, and those for the audit.
        """
        n = self.rows.count
        audit_rows = np.sort(np.random.default_rng(0).choice(n, min(audit, n), replace=False))
        several = list[LeftOutRows]()
        total = np.zeros(SUMS)
        for part_result in self.over_rows(leave_rows_out, anchor, audit_rows):
            total += part_result["sums"]
            own_rows = LeftOutRows(*(part_result[name] for name in LeftOutRows._fields))
            several = [worst(join([*several, own_rows]), audit_rows)]
        return replace(scan, totals=total, every=self.columns), several[0], audit_rows

    def over_rows(
        self, function: AnyFunction, anchor: PassFit, *arguments: Any
    ) -> Iterator[StepResult]:
        """Yield the results of a pass that gives every row its loss, in `columns` or in files."""
        self.columns = None
        if self.folder is None:
            kinds = {"loss": float, "error": float, "proved": bool}
            self.columns = {name: np.empty(self.rows.count, kind) for name, kind in kinds.items()}
        part_arguments = list[AnyTuple]()
        for part in self.rows.parts:
            file = None
            if self.folder is not None:
                file = str(self.folder / f"{part.number:07}.parquet")
            part_arguments.append((*arguments, file))
        self.passes += 1
        losses_pass = Pass(function, self.model.intercept, (self.loss, anchor), part_arguments)
        with Slow("rows", self.rows.count) as bar:
            for part, part_result in zip(self.rows.parts, self._parts(losses_pass), strict=True):
                for name, column in (self.columns or {}).items():
                    column[part.start : part.start + part.count] = part_result[f"every {name}"]
                yield part_result
                bar.advance(part.count)
        if self.folder is not None:
            for file_part in self.folder.glob(beginning(Path("*.parquet"), "*").name):
                file_part.unlink()  # a file of a worker that died

    def _parts(self, losses_pass: Pass) -> Iterator[StepResult]:
        """Yield the result of each part; parts in the checkpoint are not computed again."""
        first = min(num_saved_steps(), len(self.rows.parts))
        yield from (read_step() for _ in range(first))
        results = over(self.rows, losses_pass, first)
        while True:
            with making():
                result = next(results, None)
            if result is None:
                return
            keep(result)
            yield result
