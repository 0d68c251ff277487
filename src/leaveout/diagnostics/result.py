"""The result of `influence`."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .._runtime import Lines, conventional, largest_first, provided, record
from ..data import count as count_of
from ..validation.estimate import Estimate, PrintedResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRINTED_UNITS = 3


@record
class Influence(PrintedResult):
    """The influence of the units that each refit leaves out, one row a refit.

    `lo.influence` returns it. For single units the index is their labels.

    Attributes
    ----------
    estimate : Estimate
        The estimate.
    rows : DataFrame
        `units`, the number left out. `loss`, their mean held-out loss; `no_update`, that of the
        fit; `rise`, the difference. `share` of the summed sizes of all losses. `error` of their
        summed loss. `cook`, ‖θ̂_k − θ̂‖²_H / (p φ̂), and how far it may be off. `moved`, the change
        of the `parameter` that changes most, in standard errors √(φ̂H⁻¹)_jj, and how far it may be
        off. `others`, the change of the objective for each remaining unit (not for large data).
        `prediction`, its change, and how far it may be off. `proved`, whether these errors are
        proved for H and φ̂ as they are computed, except that of a prediction by a function.
        `result` of the refit.
    parameters : DataFrame
        The changes of all parameters, in model-based standard errors.
    pairs : DataFrame
        For some pairs of refits: `joint`, Cook's distance without both; `sum`, that of their moves
        added up; and `times`, how much farther the fit moves than by both alone.
    refit, note : str
        The strategy, and a note for the printed result.

    See Also
    --------
    influence : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 2.0, 3.0, 9.0]), "squared")
    ... )
    >>> found = lo.influence(lo.cross_validate(fit, lo.leave_one_out()), num_pairs=0)
    >>> found.column("rise").round(2).tolist()
    [2.62, 0.0, 0.28, 2.08, 10.5]
    """

    estimate: Estimate
    rows: pd.DataFrame
    parameters: pd.DataFrame
    pairs: pd.DataFrame
    refit: str
    note: str = ""

    @conventional
    def table(self) -> pd.DataFrame:
        """Return a copy of `rows`, one row a refit.

        Returns
        -------
        DataFrame
            The copy.
        """
        return self.rows.copy()

    @conventional
    def top(self, num_rows: int = 10, by: str = "cook") -> pd.DataFrame:
        """Return the rows with the largest absolute values of a column, or of the change of a
        parameter, the largest first.

        Parameters
        ----------
        num_rows : int, default 10
            The number of rows.
        by : str, default "cook"
            A column of numbers, or a parameter.

        Returns
        -------
        DataFrame
            The rows.

        Raises
        ------
        ValueError
            If there is no such column or parameter.
        """
        size = self.column(by).abs().to_numpy(float)
        most = count_of("top: num_rows", num_rows, 0)
        return self.rows.iloc[[k for k in largest_first(size) if not np.isnan(size[k])][:most]]

    def column(self, by: str) -> pd.Series:
        """Return the numbers of all refits in a column, or the changes of a parameter.

        Parameters
        ----------
        by : str
            A column of numbers, or a parameter.

        Returns
        -------
        Series
            One number a refit.

        Raises
        ------
        ValueError
            If there is no such column or parameter.
        """
        numbers = self.rows.select_dtypes("number")
        if not isinstance(by, str) or (by not in numbers and by not in self.parameters):
            names = ", ".join(map(repr, [*numbers.columns, *self.parameters.columns[:8]]))
            raise ValueError(
                f"Influence: by must be a column of numbers, or a parameter: {names}; got {by!r}."
            )
        return numbers[by] if by in numbers else self.parameters[by]

    @property
    @conventional
    def masked(self) -> pd.DataFrame:
        """The pairs of refits that mask each other."""
        return self.pairs[self.pairs["masked"].astype(bool)]

    def plot(self, ax: "Axes | None" = None, *, by: str = "cook", num_named: int = 5) -> "Axes":
        """Plot a column, or the change of a parameter, of every refit, with the largest named.
        Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.
        by : str, default "cook"
            A column of numbers, or a parameter.
        num_named : int, default 5
            The number of refits that are named.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").influence(self, ax, by=by, num_named=num_named)

    def _facts(self) -> Lines:
        rows = self.rows
        plan = self.estimate.plan
        most = lambda by: self.top(PRINTED_UNITS, by).iterrows() if by in rows else ()
        describe = lambda by, text: "; ".join(f"{name}: {text(row)}" for name, row in most(by))
        describe_move = lambda row: f"{row['parameter']} by {row['moved']:+.2g}"
        missing = int(rows["cook"].isna().sum())
        masked = self.masked
        masking = "; ".join(
            f"{row.first} and {row.second}: Cook's distance {row.joint:.2g} together, "
            f"{row.cook_first:.2g} and {row.cook_second:.2g} alone"
            for row in masked.head(PRINTED_UNITS).itertuples()
        )
        if len(masked) > PRINTED_UNITS:
            masking += f" ({len(masked)} in all)"
        masking = masking or (
            f"no pair, of {len(self.pairs)} that were left out together" if len(self.pairs) else ""
        )
        return [
            ("model", f"{self.estimate.labels.objective}, {plan.num_units} units"),
            ("refits", f"{plan.num_refits}, named by {rows.index.name}, {self.refit}"),
            (
                "the loss",
                describe(
                    "share", lambda row: f"{row['share']:.0%} of it, {row['rise']:+.3g} held out"
                ),
            ),
            (
                "the fit",
                self._with_error(
                    "cook", describe("cook", lambda row: f"Cook's distance {row['cook']:.2g}")
                ),
            ),
            (
                "a parameter",
                self._with_error(
                    "moved", describe("moved", describe_move), " model-based standard errors"
                ),
            ),
            (
                "the prediction",
                self._with_error(
                    "prediction", describe("prediction", lambda row: f"{row['prediction']:+.3g}")
                ),
            ),
            ("masked", masking),
            (
                "not known",
                f"{missing} refits do not exist: see estimate.flagged()" if missing else "",
            ),
            ("note", self.note),
        ]

    def _with_error(self, column: str, text: str, unit: str = "") -> str:
        """State the error due to the refits."""
        if not text:
            return ""
        worst = self.rows[f"{column}_error"].max()
        most = self.rows[column].abs().max()
        change_rounding = 1e-8  # share of the largest change that counts as rounding
        error = f"± {worst:.1g} at most"
        if worst <= change_rounding * most:
            error = "to rounding"
        if self.rows["proved"].all() and column != "prediction":
            error += ", proved"
        statement = "not certified: some refits' errors are not known"
        if np.isfinite(worst):
            statement = error
        return f"{text}{',' if unit else ''}{unit} ({statement})"
