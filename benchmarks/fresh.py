"""What only a fresh process can tell: peak memory, and the time to a first answer. For the other benchmarks."""

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import leaveout as lo

COLD = """
import time; times = [time.perf_counter()]
tick = lambda: times.append(time.perf_counter())
import leaveout as lo; tick()
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler; tick()
X, y = lo.datasets.breast_cancer(); tick()
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y); tick()
for call in range(2):
    fit = lo.from_sklearn(model, X, y); tick()
    print(lo.cross_validate(fit, lo.leave_one_out(len(y)))); tick()
import json, numpy as np
names = "importing", "sklearn", "data", "sklearn's fit", "from_sklearn", "certified loo", "from_sklearn again", "loo again"
print(json.dumps({"to the answer": times[6] - times[0], **dict(zip(names, np.diff(times)))}))
"""


def run(code: str) -> dict[str, float]:
    """What a fresh Python process, in this folder, prints last, as JSON."""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def cold() -> dict[str, float]:
    """Seconds from the import to the printed leave-one-out of breast_cancer, and its parts."""
    return run(COLD)


def command(rows: int = 200) -> None:
    """`leaveout glm` on a file of so many rows, in a process of its own."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 4))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        np.savetxt(file, np.c_[X, X[:, 0] > rng.logistic(size=rows)], delimiter=",", header="a,b,c,d,y", comments="")
        asked = [
            sys.executable,
            "-c",
            "from leaveout.cli import app; app()",
            "glm",
            file,
            "--target",
            "y",
            "--loss",
            "logistic",
        ]
        subprocess.run(asked, capture_output=True, check=True)


def peak_memory(n: int, p: int) -> dict[str, float]:
    """Resident memory of certified leave-one-out, logistic, in units of X; see `_memory`."""
    return run(f"import fresh; fresh._memory({n}, {p})")


def _memory(n: int, p: int) -> None:
    """Growth to the peak in lo.cross_validate, with compiling and again without."""
    import linear  # which imports this file

    start = _resident("VmRSS")
    X, y = linear.logistic_data(n, p)
    fit, plan = linear.logistic_fit(X, y), lo.leave_one_out(n)
    out = {"copy": fit.objective.design.nbytes / X.nbytes}
    for call in ("first", "again"):
        grown = growth(lambda: lo.cross_validate(fit, plan))
        out |= {call: grown / X.nbytes, f"{call}, whole": (_resident("VmHWM") - start) / X.nbytes}
    print(json.dumps(out))


def growth(run: Callable[[], object]) -> int:
    """Bytes of resident memory at the peak of a call, above those before it.

    The peak so far is forgotten (clear_refs) and freed memory given back (malloc_trim) first: ru_maxrss would be the
    parent's peak, or that of what ran before.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    run()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])
