"""What came of asking which units carry the answer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .._estimate import Estimate, Printed
from .._read import count as count_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 3
ROUNDING = 1e-12  # of the largest change


@dataclass(frozen=True, eq=False, repr=False)
class Influence(Printed):
    """What leaving out the units of every refit does, one row a refit; of single units the index is their labels.

    `rows`: `units`, how many are left out; `loss`, their mean held-out loss, `no_update`, that of the fit, `rise`, the
    difference; `share` of the summed sizes of all losses; `error` of their summed loss; `cook`, ‖θ̂_k − θ̂‖²_H / (p φ̂), and by
    how much that may be off; `moved`, the change of the `parameter` that changes most, in standard errors, and what it may be
    off by; `others`, the change of the objective a unit of those left (not of large data); `prediction`, its change, and what
    this may be off by; `result` of the refit. `parameters`: the changes of all of them, in standard errors. `pairs`: of some
    refits, `joint`, Cook's distance without both, `sum`, that of their moves added up, and `times` as far as both alone.
    """

    estimate: Estimate
    rows: pd.DataFrame
    parameters: pd.DataFrame
    pairs: pd.DataFrame
    refit: str
    note: str = ""

    def table(self) -> pd.DataFrame:
        """`rows`: one a refit."""
        return self.rows.copy()

    def top(self, count: int = 10, by: str = "cook") -> pd.DataFrame:
        """The rows of the largest sizes of a column, or of the change of a parameter, first."""
        values = self.column(by)
        size = values.abs().to_numpy(float)
        most = count_of("top: count", count, 0)
        return self.rows.iloc[[k for k in np.argsort(-size, kind="stable") if not np.isnan(size[k])][:most]]

    def column(self, by: str) -> pd.Series:
        """Numbers of all refits, by the name of a column or of a parameter."""
        known = self.rows.select_dtypes("number")
        if not isinstance(by, str) or (by not in known and by not in self.parameters):
            named = ", ".join(map(repr, [*known.columns, *self.parameters.columns[:8]]))
            raise ValueError(f"Influence: by must be a column of numbers, or a parameter: {named}; got {by!r}.")
        return known[by] if by in known else self.parameters[by]

    @property
    def masked(self) -> pd.DataFrame:
        """Pairs that mask each other."""
        return self.pairs[self.pairs["masked"].astype(bool)]

    def plot(self, ax: "Axes | None" = None, *, by: str = "cook", named: int = 5) -> "Axes":
        """A column, or the change of a parameter, of every refit; the largest are named. Needs matplotlib."""
        from ..plot import influence

        return influence(self, ax, by=by, named=named)

    def _lines(self) -> list[tuple[str, str]]:
        rows, plan = self.rows, self.estimate.plan
        most = lambda by: self.top(SHOWN, by).iterrows() if by in rows else ()
        told = lambda by, text: "; ".join(f"{name}: {text(row)}" for name, row in most(by))
        moved = lambda row: f"{row['parameter']} by {row['moved']:+.2g}"
        lines = [
            ("model", f"{self.estimate.labels.get('objective', '')}, {plan.num_units} units"),
            ("refits", f"{plan.num_refits}, named by {rows.index.name}, {self.refit}"),
            ("the loss", told("share", lambda row: f"{row['share']:.0%} of it, {row['rise']:+.3g} held out")),
            ("the fit", self._off("cook", told("cook", lambda row: f"Cook's distance {row['cook']:.2g}"))),
            ("a parameter", self._off("moved", told("moved", moved), " standard errors")),
            ("the prediction", self._off("prediction", told("prediction", lambda row: f"{row['prediction']:+.3g}"))),
            ("masked", self._masked()),
            ("not known", self._unknown()),
            ("note", self.note),
        ]
        return [(name, text) for name, text in lines if text]

    def _off(self, column: str, said: str, unit: str = "") -> str:
        """With what the refits may be off by, all of them."""
        if not said:
            return ""
        worst = self.rows[f"{column}_error"].max()
        most = self.rows[column].abs().max()
        near = "to rounding" if worst <= ROUNDING * most else f"± {worst:.1g} at most"
        known = near if np.isfinite(worst) else "not certified: some refits' errors are not known"
        return f"{said}{',' if unit else ''}{unit} ({known})"

    def _masked(self) -> str:
        masked = self.masked
        if not len(self.pairs):
            return ""
        pairs = "; ".join(
            f"{row.first} and {row.second}: Cook's distance {row.joint:.2g} together, "
            f"{row.cook_first:.2g} and {row.cook_second:.2g} alone"
            for row in masked.head(SHOWN).itertuples()
        )
        more = f" ({len(masked)} in all)" if len(masked) > SHOWN else ""
        return f"{pairs}{more}" if pairs else f"no pair, of {len(self.pairs)} that were left out together"

    def _unknown(self) -> str:
        count = int(self.rows["cook"].isna().sum())
        return f"{count} refits do not exist: see estimate.flagged()" if count else ""
