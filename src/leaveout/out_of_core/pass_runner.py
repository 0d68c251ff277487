"""The passes of a scan over its parts, in order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from .._runtime.checkpoint import StepResult, again, keep, making, read_or_make, there
from .._runtime.progress import Slow
from ..linalg.enclosure_theorem import RadiusTable
from ..linalg.rounding import Rounding, condition, factor_error
from ..models.glm.glm import GLM
from ..models.glm.loss import AbstractLoss
from ..objectives.batch_functions import ONE
from ..optimize.fit import fit
from ..optimize.hessian_factor import IndefiniteHessianError, cholesky
from ..optimize.newton import NewtonResult, factorise, newton
from .batches import Batches
from .map_parts import Pass, over
from .passes import (
    SUMS,
    LeftOutRows,
    PassFit,
    beginning,
    leave_rows_out,
    looked_together,
    sample_of,
    sums,
    survey,
    worst,
)
from .result import Scan

Array = np.ndarray

Together = Callable[[StepResult, StepResult], StepResult]


class PassRunner:
    """The passes of a scan in order; each is a step that `checkpoint` keeps."""

    def __init__(self, rows: Batches, model: GLM, folder: Path | None):
        self.rows = rows
        self.model = model
        self.folder = folder
        predictors = model.predictors
        assert predictors is not None
        self.loss: AbstractLoss = model.loss_function
        self.penalty = np.asarray(predictors.penalty)
        self.passes = 0
        self.cache: dict[str, Any] = {}

    def add_up(
        self,
        function: Callable[..., StepResult],
        label: str,
        *given: Any,
        together: Together | None = None,
    ) -> StepResult:
        """Run a pass over all parts, and add up or combine the results."""
        together = together or (
            lambda one, other: (
                {name: one[name] + part for name, part in other.items()} if one else other
            )
        )

        def make() -> StepResult:
            total: StepResult = {}
            with Slow(label, len(self.rows.parts)) as bar:
                for told in over(
                    self.rows, Pass(function, self.model.intercept, (self.loss, *given))
                ):
                    total = together(total, told)
                    bar.advance()
            return total

        self.passes += 1
        return read_or_make(make)

    def at(self, theta: Float[Array, " params"]) -> StepResult:
        """Return F, its gradient and its Hessian at θ."""
        if not self.cache or not np.array_equal(self.cache["theta"], theta):
            told = self.add_up(sums, "fit", theta)
            pushed = self.penalty @ theta
            self.cache = {
                "theta": theta.copy(),
                "weight": told["weight"],
                "level": told["value"] / told["weight"],
            }
            value = told["value"] + 0.5 * theta @ pushed
            self.cache |= {
                "value": value if value == value else np.inf,
                "gradient": told["gradient"] + pushed,
            }
            self.cache |= {"hessian": told["hessian"] + self.penalty}
        return self.cache

    def look(self, theta: Array, lanes: Array) -> tuple[Array, Array]:
        """Return F and its gradient, with the signature that `newton` needs."""
        del lanes
        found = self.at(theta[0])
        return np.reshape(found["value"], 1), found["gradient"][None]

    def hessian(self, theta: Array, lanes: Array) -> Array:
        del lanes
        return self.at(theta[0])["hessian"][None].copy()

    def _descend(self, start: Float[Array, " params"]) -> NewtonResult:
        return newton(self, start[None], ONE, np.zeros((0, self.model.design.shape[1])))  # type: ignore[arg-type]

    def left_out(
        self, rtol: float, audit: int
    ) -> tuple[Scan, PassFit, LeftOutRows, Int[Array, " rows"]]:
        """Fit, and leave out every row.

        Return the scan, the fit, the rows for a closer look, and those for the audit.
        """
        own = np.asarray(self.model.parameters.start(0))

        def begin() -> StepResult:
            """Return the minimiser of the first block, if it has one."""
            try:
                return {
                    "start": np.asarray(
                        self.model.parameters.unconstrained(fit(self.model).parameters)
                    )
                }
            except (RuntimeError, IndefiniteHessianError):
                return {"start": own}

        start = read_or_make(begin)["start"]
        if factorise(self.at(start)["hessian"]) is None:
            start = own
        found = self._descend(start)
        if not found.converged[0] and not np.array_equal(start, own):
            found = self._descend(own)
        fitted = self.at(found.theta[0])
        factor = cholesky(fitted["hessian"], self.model, fitted["theta"], "scan")
        if not found.converged[0]:
            raise RuntimeError(
                f"scan: no minimiser was reached (F = {float(fitted['value']):.6g}, largest parameter "
                f"{np.abs(fitted['theta']).max():.3g}): are the data perfectly separated? Add a penalty, such as "
                "lo.penalties.Ridge(1.0)."
            )
        root = scipy.linalg.lapack.dtrtri(factor, lower=1)[0]
        scale = np.linalg.norm(factor, axis=1)
        n = self.rows.count
        p = len(root)
        known = float(condition(root, scale))
        off = factor_error(known, n, p)
        bulk = float(np.abs(fitted["theta"]) @ scale)
        rounding = Rounding(n, p, known**0.5, off, bulk)
        at = PassFit(
            fitted["theta"], root, root @ fitted["gradient"], rounding, float(fitted["level"])
        )
        seen = self.add_up(survey, "proofs", at, together=looked_together)
        at = at._replace(
            noise=float(seen["noise"]),
            table=RadiusTable.from_tally(self.loss, seen["tally"], float(seen["lost"])),
        )
        at = at._replace(tolerance=rtol * float(np.sqrt(seen["square"]) / fitted["weight"]))
        at = at._replace(sample=sample_of(seen) if "row" in seen else None)
        wanted = np.sort(
            np.random.default_rng(0).choice(
                self.rows.count, min(audit, self.rows.count), replace=False
            )
        )
        kinds = {"loss": float, "error": float, "proved": bool}
        every = (
            {name: np.empty(self.rows.count, kind) for name, kind in kinds.items()}
            if self.folder is None
            else None
        )
        several = list[LeftOutRows]()
        total = np.zeros(SUMS)
        file = lambda number: (
            None if self.folder is None else str(self.folder / f"{number:07}.parquet")
        )
        each = [(wanted, file(part.number)) for part in self.rows.parts]
        self.passes += 1
        with Slow("rows", self.rows.count) as bar:
            for part, told in zip(self.rows.parts, self._parts(at, each), strict=True):
                for name, own in (every or {}).items():
                    own[part.start : part.start + part.count] = told[f"every {name}"]
                total += told["sums"]
                own_rows = LeftOutRows(*(told[name] for name in LeftOutRows._fields))
                several = [worst(LeftOutRows.join([*several, own_rows]), wanted)]
                bar.advance(part.count)
        for left_behind in (
            () if self.folder is None else self.folder.glob(beginning(Path("*.parquet"), "*").name)
        ):
            left_behind.unlink()  # a file of a worker that died
        return (
            Scan(self.model, self.rows.count, fitted, factor, total, every, self.folder),
            at,
            several[0],
            wanted,
        )

    def _parts(self, at: PassFit, each: list[tuple]) -> Iterator[StepResult]:
        """Yield the result of each part; parts in the checkpoint are not computed again."""
        first = min(there(), len(self.rows.parts))
        yield from (again() for _ in range(first))
        made = over(
            self.rows, Pass(leave_rows_out, self.model.intercept, (self.loss, at), each), first
        )
        while True:
            with making():
                told = next(made, None)
            if told is None:
                return
            keep(told)
            yield told
