"""The result of a scan.

The fit, the mean of the losses with its errors, and the losses, in memory or in files.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...developer import (
    Lines,
    Matrix,
    NamedArrays,
    NamedValues,
    PrintedResult,
    RowFlags,
    display_name,
    record,
)
from .passes import LeftOutRows, PerRow, atomic_file, sum_losses


@record
class Scan(PrintedResult):
    """Fit of rows in batches, and its leave-one-out.

    `lo.scan` returns it. Its other properties are `losses`, `error` and `proved`, `[rows]`, which
    are None where the losses went to files. The loss of a row whose prediction the other rows do
    not determine is NaN, and its error infinite.

    Attributes
    ----------
    count : int
        The number of rows.
    folder : Path or None
        The folder of the Parquet files of the losses.
    audit : DataFrame or None
        The rows that were refitted to the end.
    passes : int
        The number of passes over the data.
    groups : ndarray or None
        The labels of the groups that were left out.
    model, fitted, factor, totals, every
        The model of the first rows, the minimiser, the factor of the Hessian, sums over the losses,
        and the losses.

    See Also
    --------
    scan : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(50.0)
    >>> found = lo.scan(x[:, None], np.sin(x), "squared", audit=0)
    >>> round(found.mean, 3), found.lost
    (0.27, 0)
    """

    model: Any  # model of the first rows, with names, loss and penalty
    count: int
    fitted: NamedArrays
    factor: Matrix
    totals: Float[np.ndarray, "10"]
    every: NamedArrays | None
    folder: Path | None
    audit: pd.DataFrame | None = None
    passes: int = 0
    groups: np.ndarray | None = None

    @property
    def parameters(self) -> NamedValues:
        """The parameters `{"intercept", "coef"}`, as in a fit of `lo.GLM`."""
        return {
            name: np.asarray(part)
            for name, part in self.model.parameters.natural(self.fitted["theta"]).items()
        }

    @property
    def hessian(self) -> Matrix:
        """The Hessian ∇²F at the minimiser, the intercept last."""
        return self.factor @ self.factor.T

    @property
    def losses(self) -> PerRow | None:
        """The held-out loss of each row; None if the losses went to files."""
        return None if self.every is None else self.every["loss"]

    @property
    def error(self) -> PerRow | None:
        """Bound of the error of each loss against the exact refit."""
        return None if self.every is None else self.every["error"]

    @property
    def proved(self) -> RowFlags | None:
        """Whether the error of each row is proved; otherwise it is an estimate."""
        return None if self.every is None else self.every["proved"]

    @property
    def mean(self) -> float:
        """The mean held-out loss, weighted by `sample_weight` if there is one."""
        return float(self.fitted["level"] + self.totals[2] / self.totals[1])

    @property
    def se(self) -> float:
        """The standard error of `mean`, as if rows, or groups, were independent."""
        n, total, first, square, second, third = self.totals[:6]
        mean = first / total
        return float(
            np.sqrt(max(n / max(n - 1, 1) * (third - 2 * mean * second + mean**2 * square), 0.0))
            / total
        )

    @property
    def approximation_error(self) -> float:
        """Bound of the error of `mean` against exact refits.

        Infinite if the error of some row is unknown.
        """
        if self.totals[9] == 0:
            return float(self.totals[6] / self.totals[1])
        return np.inf

    @property
    def no_update(self) -> float:
        """The mean loss of the fit itself, on rows that it has seen."""
        return float(self.fitted["level"])

    @property
    def lost(self) -> int:
        """The number of rows or groups without a known error, which are not in the mean."""
        return int(self.totals[7])

    def replace_rows(self, rows: LeftOutRows, better: LeftOutRows, level: float) -> "Scan":
        """Return a copy with other losses and errors of some rows, also in their files.

        Parameters
        ----------
        rows, better : rows
            The rows as they are, and as they become.
        level : float
            The mean loss of the fit.

        Returns
        -------
        Scan
            The changed copy.
        """
        if self.every is not None:
            for name, column in self.every.items():
                column[better.row] = getattr(better, name)
        elif len(better.row):
            for file in self.files():
                _rewritten(file, better)
        return replace(
            self, totals=self.totals - sum_losses(rows, level) + sum_losses(better, level)
        )

    def files(self) -> list[Path]:
        """List the Parquet files of the losses, in order.

        Returns
        -------
        list of Path
            The files.
        """
        if self.folder is None:
            return []
        return sorted(self.folder.glob("[0-9]*.parquet"))

    def _facts(self) -> Lines:
        description = f"{display_name(self.model)}, {len(self.factor)} parameters, {self.count} rows, {self.passes} passes over them"
        mean = f"{self.mean:.6g} ± {self.se:.2g} a row, {self.model.scale}"
        audit = ""
        if self.audit is not None and len(self.audit):
            audit = f"{len(self.audit)} {self._unit}s refitted to the end, {int(self.audit.beyond.sum())} beyond their error"
        dependence = "rows independent; usually optimistic"
        if self.groups is not None:
            dependence = f"over {len(self.groups)} groups"
        return [
            ("model", description),
            ("held-out loss", f"{mean} (SE {dependence})"),
            ("approximation", self._approximation),
            ("no update", f"{self.no_update:.6g}"),
            ("audit", audit),
            ("losses", str(self.folder or "in memory")),
            ("checks", self._check_text),
        ]

    @property
    def _unit(self) -> str:
        return "row" if self.groups is None else "group"

    @property
    def _check_text(self) -> str:
        messages = []
        unknown = int(self.totals[9])
        whys = {
            "the others do not determine what they predict": self.lost - unknown,
            "nothing is known of their refits, whose losses may be large; see lo.GLM on rows with them": unknown,
        }
        for why, count in whys.items():
            if count:
                number = f"1 {self._unit} is" if count == 1 else f"{count} {self._unit}s are"
                messages.append(f"{number} not in the mean: {why}")
        # share of a standard error of the mean
        if np.isfinite(self.approximation_error) and self.approximation_error > 0.1 * self.se:
            messages.append(
                f"errors are large beside the standard error, as where some {self._unit}s are far from all others; see the audit"
            )
        return "; ".join(messages) or "none"

    @property
    def _approximation(self) -> str:
        if np.isinf(self.approximation_error):
            return f"not certified: the errors of some {self._unit}s are not known (see checks)"
        total = int(self.totals[0])
        count = int(self.totals[8])
        status = {0: "estimated", total: "proved"}.get(
            count, f"{count} of {total} {self._unit}s proved, the others estimated"
        )
        return f"± {self.approximation_error:.1g} on that mean, {status}"


def _rewritten(file: Path, better: LeftOutRows) -> None:
    """Rewrite a file with new losses and errors of some rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    row = table.column("row").to_numpy()
    places = np.flatnonzero((better.row >= row[0]) & (better.row <= row[-1]))
    if not places.size:
        return
    columns = {
        name: np.array(table.column(name).to_numpy()) for name in ("loss", "error", "proved")
    }
    for name in columns:
        columns[name][better.row[places] - row[0]] = getattr(better, name)[places]
    with atomic_file(file) as partial:
        pq.write_table(pa.table({"row": row} | columns, schema=table.schema), partial)
