"""Metrics of labels as functions of the table of classes, whose cells are means over rows.

With T the shares of rows by true and predicted class, `t` its diagonal, `a` its row sums and `b` its column sums:
precision t/b, recall t/a, F_β (1 + β²) t/(β² a + b), Jaccard t/(a + b − t); a ratio of nothing is 0, as in scikit-learn, which
is asked itself for every other metric, but takes milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn.metrics as metrics
from numpy.typing import NDArray

from ._score import quietly

Shares = NDArray[np.float64]
RATIOS: dict[Callable, Callable[[Shares, Shares, Shares, float], tuple[Shares, Shares]]] = {
    metrics.precision_score: lambda t, a, b, beta: (t, b),
    metrics.recall_score: lambda t, a, b, beta: (t, a),
    metrics.f1_score: lambda t, a, b, beta: (2 * t, a + b),
    metrics.fbeta_score: lambda t, a, b, beta: ((1 + beta**2) * t, beta**2 * a + b),
    metrics.jaccard_score: lambda t, a, b, beta: (t, a + b - t),
}


@dataclass(frozen=True)
class Table:
    """Which cell of the table a row is in, `[rows, classes²]`, and `sign` times a metric of the cells."""

    metric: Callable[..., float]
    given: dict[str, Any]
    sign: float
    labels: NDArray

    def cells(self, y: NDArray, code: NDArray) -> NDArray[np.float64]:
        count = len(self.labels)
        return np.eye(count**2)[(y * count + code).astype(int)]

    def __call__(self, cells: NDArray[np.float64]) -> float:
        table = np.maximum(cells, 0.0).reshape(len(self.labels), -1)
        return self.sign * self._value(table)

    def _value(self, table: NDArray[np.float64]) -> float:
        right, true, said = np.diag(table), table.sum(1), table.sum(0)
        if self.metric is metrics.balanced_accuracy_score and not self.given:
            return float((right[true > 0] / true[true > 0]).mean())
        if self.metric is metrics.matthews_corrcoef and not self.given:
            whole = table.sum()
            spread = (whole**2 - true @ true) * (whole**2 - said @ said)
            return float((right.sum() * whole - true @ said) / np.sqrt(spread)) if spread > 0 else 0.0
        if self.metric in RATIOS and self.given.keys() <= {"average", "pos_label", "beta"}:
            return self._ratio(right, true, said)
        y, predicted = (self.labels[part.ravel()] for part in np.indices(table.shape))
        seen = table.ravel() > 0
        return float(quietly(self.metric, y[seen], predicted[seen], sample_weight=table.ravel()[seen], **self.given))

    def _ratio(self, right: Shares, true: Shares, said: Shares) -> float:
        average, there = self.given.get("average", "binary"), true + said > 0
        if average == "binary":
            sought = self.given.get("pos_label", 1)
            there = self.labels == sought
        right, true, said = right[there], true[there], said[there]
        if average == "micro":
            right, true, said = (np.array([part.sum()]) for part in (right, true, said))
        above, below = RATIOS[self.metric](right, true, said, self.given.get("beta", 1.0))
        ratio = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
        return float(true @ ratio / true.sum() if average == "weighted" and true.sum() > 0 else ratio.mean())
