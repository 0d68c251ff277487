"""Experiments II and III of the second source document under other readings than its authors':
whole curves beside theirs.

e_c is the loss with c leaked records among a hundred. The authors saved theirs at every c, ten
times, so a reading is right if its curve is theirs, not if one number agrees: `off` is the root
mean square of the differences at 21 counts from 0 to 100, `noise` what the standard errors of both
alone would make of it.

    LEAVEOUT_DATA=… python experiments/b3_readings.py [--draws 2000] [--save]
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import saved
from b3_settings import (
    CENSUS,
    HEART,
    Features,
    Setting,
    census,
    drawn_losses,
    heart,
    indicated,
    theirs,
)
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import leaveout as lo
from leaveout.extensions.leakage._fits import AbstractLearner, MarginFits
from leaveout.extensions.leakage._hinge import HingeFits
from leaveout.extensions.leakage._hosts import Estimator
from leaveout.extensions.leakage._scoring import resolve

COUNTS = np.r_[0:11, 15, 20:101:10]
SLOW = 10  # times fewer draws where scikit-learn fits one at a time
Data = tuple[pd.DataFrame, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]


def ordinal(frame: pd.DataFrame, numbers: list[str], words: list[str]) -> Features:
    """Levels as the numbers 1, 2, … of their order, 0 where missing."""
    codes = [pd.Categorical(frame[word]).codes + 1 for word in words]
    X = np.column_stack([frame[numbers].to_numpy(float), *codes])
    return Features(X, X.shape[1])


def read(
    data: Data, features: Features, learner: AbstractLearner | None = None, zeros: bool = False
) -> Setting:
    """Another learner, or `zeros` where a level is not in the training set, which is what most
    programs take.
    """
    _, y, train, test = data
    X = features.X
    fitted = HingeFits(X, y, 1.0, True, False, "label") if learner is None else learner
    levels = X[:, X.shape[1] if zeros else features.words :]
    return Setting(
        fitted, "zero_one", y, np.flatnonzero(train), np.flatnonzero(test), levels, 100, 10.0
    )


def hosted(features: Features, y: NDArray[np.float64], model: Any) -> Estimator:
    return Estimator(
        make_pipeline(StandardScaler(), model),
        features.X,
        y,
        resolve("zero_one", "auto", y, True),
        None,
    )


def common(data: Data, columns: tuple[list[str], list[str]]) -> Iterator[tuple[str, Setting]]:
    """What can be read otherwise in either experiment."""
    frame, y, *_ = data
    as_levels, X = indicated(frame, *columns), indicated(frame, *columns).X
    as_numbers = ordinal(frame, *columns)
    yield "as the authors' programs", theirs(data, columns)
    yield "zeros where a level is new", read(data, as_levels, zeros=True)
    yield (
        "all columns standardised",
        read(data, as_levels, HingeFits(X, y, 1.0, True, True, "label")),
    )
    yield (
        "standardised, zeros",
        read(data, as_levels, HingeFits(X, y, 1.0, True, True, "label"), zeros=True),
    )
    yield "C = 0.01", read(data, as_levels, HingeFits(X, y, 100.0, True, False, "label"))
    yield "C = 100", read(data, as_levels, HingeFits(X, y, 0.01, True, False, "label"))
    yield "words as ordinals", read(data, as_numbers)
    yield (
        "squared hinge (LinearSVC), standardised, zeros",
        read(data, as_levels, MarginFits("squared_hinge", X, y, 1.0, True, True, "label"), True),
    )
    yield (
        "logistic regression, standardised, zeros",
        read(data, as_levels, MarginFits("logistic", X, y, 1.0, True, True, "label"), True),
    )
    balanced, radial = SVC(kernel="linear", class_weight="balanced"), SVC()
    yield (
        "classes balanced, standardised, zeros",
        read(data, as_levels, hosted(as_levels, y, balanced), True),
    )
    yield (
        "radial kernel, standardised, zeros",
        read(data, as_levels, hosted(as_levels, y, radial), True),
    )


def of_heart(data: Data) -> Iterator[tuple[str, Setting]]:
    """Columns that leave the same 479 and 262 patients, and patients whose cholesterol is zero left
    out.
    """
    frame, y, train, test = data
    yield from common(data, HEART)
    numbers, words = HEART
    # demographics and vital signs
    seven = ["age", "sex", "trestbps", "chol", "fbs", "thalach", "oldpeak"]
    chosen = indicated(frame, seven, [])
    yield "seven columns", read(data, chosen)
    hinge = MarginFits("squared_hinge", chosen.X, y, 1.0, True, True, "label")
    yield "seven, squared hinge, standardised", read(data, chosen, hinge)
    for left in ("cp", "slope", "thal"):
        yield (
            f"without {left}",
            read(data, indicated(frame, numbers, [word for word in words if word != left])),
        )
    kept = frame["chol"].to_numpy() > 0
    yield "without cholesterol of zero", theirs((frame, y, train & kept, test & kept), HEART)


def of_census(data: Data) -> Iterator[tuple[str, Setting]]:
    """Other columns, and persons of unknown occupation left out."""
    frame, y, train, test = data
    yield from common(data, CENSUS)
    numbers, words = CENSUS
    yield "without race", read(data, indicated(frame, numbers, ["occupation"]))
    yield "without occupation", read(data, indicated(frame, numbers, ["race"]))
    yield "schooling in words too", read(data, indicated(frame, numbers, [*words, "education"]))
    yield "with sex", read(data, indicated(frame, numbers, [*words, "sex"]))
    known = frame["occupation"].notna().to_numpy()
    yield "without unknown occupations", theirs((frame, y, train & known, test & known), CENSUS)


def compared(s: Setting, e: NDArray[np.float64], draws: int) -> dict[str, float | str]:
    """Its curve beside the authors' `e` `[counts, trials]`."""
    number = draws // SLOW if isinstance(s.learner, Estimator) else draws
    losses = drawn_losses(s, np.tile(COUNTS, (number, 1)), 0)
    mean, saved = losses.mean(0), e.mean(1)[COUNTS]
    errors = losses.var(0) / number + e.var(1, ddof=1)[COUNTS] / e.shape[1]
    points = {f"e{c}": mean[np.flatnonzero(c == COUNTS)[0]] for c in (0, 1, 10, 50, 100)}
    records = f"{len(s.train)}, {len(s.test)}"
    return points | {
        "off": np.sqrt(np.mean((mean - saved) ** 2)),
        "noise": np.sqrt(errors.mean()),
        "records": records,
    }


def lacking(s: Setting, leaked: int, draws: int) -> float:
    """The share of V with a level that no record of a training set with `leaked` records of V
    has.
    """
    rng = np.random.default_rng(0)
    rows = [
        np.r_[
            rng.choice(s.train, s.size - leaked, replace=False),
            rng.choice(s.test, leaked, replace=False),
        ]
        for _ in range(draws)
    ]
    return float(s.unknown(np.array(rows), s.test).mean())


def main(draws: int) -> None:
    for name, data, columns, readings in (
        ("heart", heart(), HEART, of_heart),
        ("census", census(), CENSUS, of_census),
    ):
        e = lo.datasets.b3_bootstraps(name).truth
        rows: dict[str, dict[str, Any]] = {
            "the authors' saved": {f"e{c}": e[c].mean() for c in (0, 1, 10, 50, 100)}
        }
        for label, setting in readings(data):
            rows[label] = compared(setting, e, draws)
        print(
            f"\n{name}: the loss by leaked records, {draws} draws ({draws // SLOW} of the last two of the common ones)"
        )
        new = ", ".join(
            f"{lacking(theirs(data, columns), c, draws):.4f} with {c} leaked"
            for c in (0, 1, 10, 50)
        )
        print(f"share of V with a level that the training set lacks: {new}")
        print(pd.DataFrame(rows).T.fillna("").to_string(float_format="{:.4f}".format), flush=True)
        saved.save(f"b3_readings_{name}", pd.DataFrame(rows).T.reset_index(names="reading"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=2000)
    saved.add_option(parser)
    main(parser.parse_args().draws)
