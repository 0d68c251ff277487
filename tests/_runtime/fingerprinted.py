"""What a run is known again by in another process, which imports no more than this."""

import os

import numpy as np
import pandas as pd

import leaveout as lo

N = 120
rng = np.random.default_rng(0)
X = rng.standard_normal((N, 2))
Y = (X[:, 0] + rng.standard_normal(N) > 0) * 1.0
WORDS = {
    "a": (1, "b", None),
    2: {"x", "y", "z"},
    "c": [np.float32(1), np.arange(3)],
    "d": pd.Index(["a", 1]),
}


def logistic(alpha: float = 1.0, y: np.ndarray = Y) -> lo.Fit:
    return lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(alpha)))


def counted(held, seen, parameters):
    """A score that counts its calls, where nobody looks for what it uses, and is interrupted at one
    of them.
    """
    os.environ["CALLS"] = str(int(os.environ["CALLS"]) + 1)
    if os.environ["CALLS"] == os.environ["LAST"]:
        raise KeyboardInterrupt
    return (Y[held] - X[held] @ parameters["coef"]) ** 2
