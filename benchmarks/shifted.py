"""The loss, and intervals for responses, in a target population whose first feature is larger:
bias and coverage of `Estimate.target`, and of `lo.interval` with its weights. Part `target` of
decisions.py.
"""

import warnings
from collections.abc import Callable
from functools import cache, partial

import joblib
import numpy as np
import pandas as pd

import leaveout as lo

THETA = np.array([1.0, -0.5, 0.5])
SHIFT = 0.7  # of the first feature, in standard deviations
FRESH = 100_000
LEVEL = 0.9  # of intervals for responses
SIZES = (100, 300)
NOISE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "even noise": lambda X: np.ones(len(X)),
    "uneven noise": lambda X: 1 + 0.5 * np.abs(X[:, 0]),
}
Tables = dict[str, list[dict]]


def draw(law: str, rng: np.random.Generator, n: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a mean that is no line, with noise whose spread may grow with the first feature."""
    X = rng.standard_normal((n, 3))
    X[:, 0] += shift
    return X, X @ THETA + 0.3 * X[:, 0] ** 2 + NOISE[law](X) * rng.standard_normal(n)


@cache
def fresh(law: str) -> tuple[np.ndarray, np.ndarray]:
    return draw(law, np.random.default_rng(12), FRESH, SHIFT)


def ratio(X: np.ndarray) -> np.ndarray:
    """The true ratio of the densities."""
    return np.exp(SHIFT * X[:, 0] - SHIFT**2 / 2)


def one_loss(law: str, n: int, seed: int) -> list[dict]:
    """What every kind of weights says of the loss of one data set's model."""
    rng = np.random.default_rng(seed)
    X, y = draw(law, rng, n, 0.0)
    X_new, _ = draw(law, rng, n, SHIFT)
    fit = lo.fit(lo.GLM(X, y, "squared"))
    cv = lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    X_fresh, y_fresh = fresh(law)
    risk = np.mean((y_fresh - fit.predict(X_fresh).to_numpy()) ** 2) / 2
    of_sample = {"x0": X_new[:, 0].mean(), "x0 ** 2": np.mean(X_new[:, 0] ** 2)}
    kinds = {
        "margins, known": {"margins": {"x0": SHIFT, "x0 ** 2": 1 + SHIFT**2}},
        "margins of a sample": {"margins": of_sample, "n": n},
        "rows of a sample": {"X_new": X_new},
    }
    rows = [{"weights": "none", "mean": cv.mean, "se": cv.se, "risk": risk, "worth": n}]
    for name, arguments in kinds.items():
        row = {"weights": name, "risk": risk}
        try:
            target = cv.target(**arguments)
        except ValueError:
            rows.append(row)
            continue
        rows.append(row | {"mean": target.mean, "se": target.se, "worth": target.effective_n})
    return rows


def one_interval(law: str, n: int, seed: int) -> list[dict]:
    """Whether intervals for a new row of the target hold its response."""
    warnings.simplefilter("ignore")  # of infinite ends, which are counted
    rng = np.random.default_rng(seed)
    X, y = draw(law, rng, n, 0.0)
    X_new, y_new = draw(law, rng, n, SHIFT)
    fit = lo.fit(lo.GLM(X, y, "squared"))
    new = X_new[:1]
    cv = lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    kinds = {
        "none": {},
        "known": {"sample_weight": ratio(X), "new_weight": ratio(new)},
        "estimated": {"sample_weight": cv.target(X_new[1:])},
    }
    rows = []
    for name, arguments in kinds.items():
        low, high = lo.interval(fit, new, level=LEVEL, **arguments)[["low", "high"]].iloc[0]
        row = {"weights": name, "covered": low <= y_new[0] <= high}
        rows.append(row | {"width": high - low, "infinite": np.isinf(high - low)})
    return rows


def of_losses(part: pd.DataFrame) -> dict:
    """Bias, standard errors and coverage over data sets."""
    error = part["mean"] - part["risk"].mean()
    return {
        "bias": error.mean(),
        "spread": error.std(),
        "mean SE": part["se"].mean(),
        "covered": (error.abs() < 1.96 * part["se"])[part["se"].notna()].mean(),
        "effective n": part["worth"].mean(),
        "no SE": part["se"].isna().mean(),
    }


def of_intervals(part: pd.DataFrame) -> dict:
    return {
        "covered": part["covered"].mean(),
        "median width": part["width"].median(),
        "infinite": part["infinite"].mean(),
    }


def tables(quick: bool, sets: int) -> tuple[Tables, str]:
    """Tables of the loss and of the intervals, by law, size and weights, and what they are of."""
    every = joblib.Parallel(n_jobs=-1)
    found = Tables()
    titles = {
        "The loss in the target, with intervals of 95 %.": (one_loss, of_losses),
        f"Intervals of level {LEVEL:g} for a new response there.": (one_interval, of_intervals),
    }
    for title, (one, summary) in titles.items():
        found[title] = []
        for law in NOISE:
            for n in SIZES[:1] if quick else SIZES:
                runs = every(joblib.delayed(partial(one, law, n))(seed) for seed in range(sets))
                frame = pd.DataFrame([row for run in runs for row in run])
                for name, part in frame.groupby("weights", sort=False):
                    row = {"law": law, "n": n, "weights": name}
                    found[title].append(row | summary(part))
    return found, (
        f"{sets:,} data sets a cell: a coverage of .95 is within {1.96 * (0.0475 / sets) ** 0.5:.3f} by chance. The first of three "
        f"normal features is {SHIFT} standard deviations larger in the target. The truth is the mean risk of the models there."
    )
