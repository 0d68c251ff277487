"""The second source document's three experiments as its authors ran them: who is trained on whom,
how it is fitted and scored.

M. Barnes, A. Dubrawski, *The Binomial Block Bootstrap Estimator for Evaluating Loss on Dependent
Clusters*. Its text leaves open the columns of the heart disease data, all scales and which support
vector machine. The authors' programs (MIT; on GitHub, mbarnes1/B3, and mbarnes1/LOCCO, its history)
do not: MATLAB's `fitcsvm` with its defaults, on tables. That is the hinge loss, a linear kernel,
C = 1, features as they come and an indicator for each level of every column of words, "missing"
being one. They draw without replacement. A record with a level that its training set lacks is taken
to get the class that most of the training set has, as MATLAB's `predict` has no score for it: with
zeros for its indicators instead, Experiment II does not come out.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import leaveout as lo
from leaveout.extensions.leakage._fits import AbstractLearner, LeastSquares
from leaveout.extensions.leakage._hinge import HingeFits

HOME = ["United-States", "El-Salvador", "Germany", "Mexico", "Philippines", "Puerto-Rico"]
CENSUS = ["age", "education_num", "hours_per_week"], ["race", "occupation"]
HEART = (
    ["age", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"],
    ["sex", "cp", "restecg", "slope", "thal"],
)
BATCH = 256  # fits at a time


class Features(NamedTuple):
    """`X` `[records, columns]`, and from which column on they are indicators of levels."""

    X: NDArray[np.float64]
    words: int


class Setting(NamedTuple):
    """What is trained on what: rows of T and V, n′, the document's λ. `levels` are indicators
    `[records, levels]` whose absence from a training set makes a record's prediction the
    majority's; none if it has no columns."""

    learner: AbstractLearner
    loss: str
    y: NDArray[np.float64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    levels: NDArray[np.float64]
    size: int
    lam: float

    def predict(self, rows: NDArray[np.int64], tested: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of fits to `rows` `[fits, size]` for the records `tested`, `[fits, tested]`."""
        fits = len(rows)
        found, _ = self.learner(rows, tested, np.zeros((fits, 0), np.int64), np.arange(fits))
        return np.where(self.unknown(rows, tested), (self.y[rows].mean(1) > 0.5)[:, None], found)

    def unknown(self, rows: NDArray[np.int64], tested: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the records `tested` have a level that is not in a training set, `[fits,
        tested]`.
        """
        absent = ~self.levels[rows].any(1)
        return (absent @ self.levels[tested].T) > 0

    def losses(
        self, predicted: NDArray[np.float64], tested: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        off = predicted - self.y[tested]
        return off**2 if self.loss == "mse" else (off != 0) * 1.0


def drawn_losses(s: Setting, counts: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """The loss on the rest of V with `counts` `[draws, k]` of n′ records trained on from V,
    likewise `[draws, k]`.

    The k counts of a draw share its random orders of T and V; draws are without replacement.
    """
    draws, k = counts.shape
    step, slot = max(1, BATCH // k), np.arange(s.size)
    out = np.empty((draws, k))
    for start in range(0, draws, step):
        some, rng = counts[start : start + step], np.random.default_rng([seed, start])
        first, leaked = (
            np.array([rng.choice(len(side), s.size, replace=False) for _ in some])[:, None]
            for side in (s.train, s.test)
        )
        taken = slot < some[..., None]
        rows = np.where(taken, s.test[leaked], s.train[first]).reshape(-1, s.size)
        fresh = np.ones((*some.shape, len(s.test)))
        d, c, at = np.nonzero(taken)
        fresh[d, c, leaked[d, 0, at]] = 0.0
        losses = s.losses(s.predict(rows, s.test), s.test).reshape(fresh.shape)
        out[start : start + step] = (losses * fresh).sum(2) / fresh.sum(2)
    return out


def synthetic(seed: int, size: int = 15) -> Setting:
    """Experiment I: slopes 1 and 2 through the origin, x within ±1 and ±10, noise of SD ½, as saved
    by the authors.
    """
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-1, 1, 5000), rng.uniform(-10, 10, 5000)])
    y = x * np.repeat([1.0, 2.0], 5000) + rng.normal(0, 0.5, 10_000)
    learner = LeastSquares(x[:, None], y, 0.0, False, False, "response")
    return Setting(
        learner,
        "mse",
        y,
        np.arange(5000),
        np.arange(5000, 10_000),
        np.zeros((10_000, 0)),
        size,
        0.1,
    )


def census() -> tuple[pd.DataFrame, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Experiment II's persons, incomes above 50,000, T (six countries) and V (India and Canada)."""
    frame = lo.datasets.adult()
    side = [frame["native_country"].isin(home).to_numpy() for home in (HOME, ["India", "Canada"])]
    return frame, (frame["income"] == ">50K").to_numpy() * 1.0, side[0], side[1]


def heart() -> tuple[pd.DataFrame, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Experiment III's 741 patients with all numbers there, heart disease, T (three hospitals) and
    V (Hungary).
    """
    frame = lo.datasets.heart_uci().dropna(subset=HEART[0]).reset_index(drop=True)
    test = (frame["hospital"] == "hungarian").to_numpy()
    return frame, (frame["num"] > 0).to_numpy() * 1.0, ~test, test


def indicated(frame: pd.DataFrame, numbers: list[str], words: list[str]) -> Features:
    """Numbers as they come, then an indicator for each level of each column of words."""
    kinds = frame[words].astype(object).fillna("missing").astype(str)
    levels = pd.get_dummies(kinds).to_numpy(float) if words else np.zeros((len(frame), 0))
    return Features(np.column_stack([frame[numbers].to_numpy(float), levels]), len(numbers))


def theirs(
    data: tuple[pd.DataFrame, NDArray, NDArray, NDArray], columns: tuple[list[str], list[str]]
) -> Setting:
    """Experiment II or III with the authors' learner."""
    frame, y, train, test = data
    X, words = indicated(frame, *columns)
    return Setting(
        HingeFits(X, y, 1.0, True, False, "label"),
        "zero_one",
        y,
        np.flatnonzero(train),
        np.flatnonzero(test),
        X[:, words:],
        100,
        10.0,
    )
