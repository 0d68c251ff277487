"""pandas is imported at its first use: fits of arrays and their estimates take none of it."""

import subprocess
import sys

from leaveout._runtime.pandas import is_pandas, pd

ARRAYS = """
import sys
sys.modules["pandas"] = None  # an import raises
import numpy as np, leaveout as lo
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
for y, loss in ((X[:, 0] + rng.normal(size=60) > 0, "logistic"), (X @ [1.0, 2.0, 0.0], "squared")):
    fit = lo.fit(lo.GLM(X, y * 1.0, loss, lo.penalties.Ridge(1.0)))
    for plan in (lo.leave_one_out(), lo.kfold(k=5), lo.groups(np.arange(60) // 6)):
        estimate = lo.cross_validate(fit, plan)
        print(estimate, estimate.mean, estimate.se, estimate.interval())
print("scipy.stats" in sys.modules)
"""


def test_a_fit_of_arrays_needs_none():
    command = [sys.executable, "-c", ARRAYS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


def test_classes_are_told_by_name():
    series = pd.Series([1.0], index=["a"])
    assert is_pandas(series, "Series") and is_pandas(series.index, "Series", "Index")
    assert not is_pandas(series, "DataFrame") and not is_pandas([1.0], "Series")
    assert is_pandas(series.array, "api.extensions.ExtensionArray")
