"""Internal validation: how fast against loops of refits, and how often its intervals hold the
truth.

    python benchmarks/internal_validation.py [speed] [coverage] [--simulations 1000]
        [--patients 100 200 500]

speed
1,000 bootstrap validations of a logistic regression of 2,000 × 20, by processor time in turns with
scikit-learn's
            loop. The loop refits each resample, and measures the area under the ROC curve, average
            precision, Brier's score, log loss and the recalibrating regression on the resample and
            on all rows; the lean loop measures the area and Brier's score. Also 200 resamples of
            R's lung data under Cox's model, warm and in a fresh process
coverage
95 % intervals for measures of the fitted model on new patients, with 100, 200 and 500 patients and
ten features:
            corrected for optimism by bootstrap and .632+, and apparent. The truth is the measure on
            100,000 fresh patients, by scikit-learn; "too high" is the share of intervals above it,
            "error" the root mean square error
"""

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

import leaveout as lo

FRESH = 100_000  # patients that tell the truth of an area to 0.002
RESAMPLES = 1000
LOOP = 50  # resamples of the loop, whose time is that of as many


def patients(rng: np.random.Generator, n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal features, half of which matter, and one patient in three with the event."""
    X = rng.standard_normal((n, p))
    slopes = np.where(np.arange(p) < p // 2, 0.5, 0.0)
    return X, (rng.random(n) < expit(X @ slopes - 0.9)) * 1.0


def loop(X: np.ndarray, y: np.ndarray, counts: np.ndarray, lean: bool) -> None:
    """Refit every resample by scikit-learn, and measure it on its own rows and on all."""
    for count in counts:
        rows = np.repeat(np.arange(len(y)), count)
        model = LogisticRegression(C=np.inf, max_iter=1000).fit(X[rows], y[rows])
        for own in (rows, slice(None)):
            eta = model.decision_function(X[own])
            p, target = expit(eta), y[own]
            roc_auc_score(target, p)
            brier_score_loss(target, p)
            if not lean:
                average_precision_score(target, p)
                log_loss(target, p)
                LogisticRegression(C=np.inf).fit(eta[:, None], target)


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


LUNG = """
import numpy as np, leaveout as lo
rng = np.random.default_rng(0)
X = rng.standard_normal((213, 4)) * [9, 0.5, 0.7, 13]
time = np.ceil(rng.exponential(np.exp(-X @ [0.01, -0.5, 0.5, 0.0]) * 420)); event = (rng.random(213) < 0.71) * 1.0
fit = lo.fit(lo.Cox(X, time, event))
"""


def speed() -> None:
    X, y = patients(np.random.default_rng(0), 2000, 20)
    fit, plan = lo.fit(lo.GLM(X, y, "logistic")), lo.bootstrap(2000, RESAMPLES)
    counts = plan.matrix().astype(int)[:LOOP]
    calls = {
        "lo.clinical.validate, all measures, 30 of 1,000 with calibration curves": lambda: (
            lo.clinical.validate(fit, plan=plan)
        ),
        "lo.clinical.validate(num_curves=0)": lambda: lo.clinical.validate(
            fit, plan=plan, num_curves=0
        ),
        "scikit-learn's loop": lambda: loop(X, y, counts, False),
        "scikit-learn's lean loop": lambda: loop(X, y, counts, True),
    }
    least = dict.fromkeys(calls, np.inf)
    for _ in range(3):
        for name, call in calls.items():
            least[name] = min(
                least[name], seconds(call) * (RESAMPLES / LOOP if "loop" in name else 1)
            )
    full = least["scikit-learn's loop"]
    print(
        f"\n{RESAMPLES} bootstrap validations, 2,000 × 20, seconds of one processor; times faster than scikit-learn's loop"
    )
    for name, spent in least.items():
        print(f"{name:64} {spent:8.2f} {full / spent:6.1f}")
    lean = least["scikit-learn's lean loop"]
    print(
        f"lo.clinical.validate(num_curves=0) against the lean loop: {lean / least['lo.clinical.validate(num_curves=0)']:.1f} times"
    )
    scope: dict = {}
    exec(LUNG, scope)
    lo.clinical.validate(scope["fit"])
    print(
        f"\nCox, 213 × 4, 200 resamples: {min(seconds(lambda: lo.clinical.validate(scope['fit'])) for _ in range(3)):.2f} s warm",
        end=", ",
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"{LUNG}lo.clinical.validate(fit)"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.2f} s in a fresh process"
    )
    small, y = patients(np.random.default_rng(1), 865, 7)
    fit = lo.fit(lo.GLM(small, y, "logistic"))
    least = min(seconds(lambda: lo.clinical.validate(fit, num_curves=0)) for _ in range(3))
    print(f"200 refits of 865 × 7 with all measures: {least:.2f} s")


def coverage(simulations: int, n: int) -> None:
    fresh, outcome = patients(np.random.default_rng(10**6), FRESH, 10)
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for k in range(simulations):
        X, y = patients(np.random.default_rng(k), n, 10)
        fit = lo.fit(lo.GLM(X, y, "logistic"))
        p = expit(fresh @ fit.parameters["coef"] + fit.parameters["intercept"])
        truth = {"AUC": roc_auc_score(outcome, p), "B": np.mean((outcome - p) ** 2)}
        truth |= {
            "average_precision": average_precision_score(outcome, p),
            "log_loss": log_loss(outcome, p),
        }
        rows = lo.validation.metrics.METRICS["auc"].pseudo(y, X @ fit.parameters["coef"])
        ends = rows.mean() + np.array([0, -1.96, 1.96]) * rows.std(ddof=1) / np.sqrt(n)
        found.setdefault("AUC, apparent, DeLong", []).append((truth["AUC"], *ends))
        for method in ("bootstrap", ".632+"):
            table = lo.clinical.validate(
                fit, method=method, num_resamples=200, num_curves=0, rng=k
            ).table
            for name, value in truth.items():
                row = table.loc[name, ["index.corrected", "low", "high"]]
                found.setdefault(f"{name}, {method}", []).append((value, *row))
    print(
        f"\n95 % intervals for the measures of the fit on new data, {n} patients, 10 features, {simulations} simulations"
    )
    print(f"{'':30} coverage   too high   mean width   mean   bias     error")
    for name, each in found.items():
        truth, value, low, high = np.array(each).T
        held, above = np.mean((low <= truth) & (truth <= high)), np.mean(low > truth)
        bias, error = np.mean(value - truth), np.sqrt(np.mean((value - truth) ** 2))
        print(
            f"{name:30} {held:8.3f} {above:10.3f} {np.mean(high - low):12.3f} {truth.mean():6.3f} {bias:+7.4f} {error:8.4f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", choices=["speed", "coverage", []])
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--patients", type=int, nargs="+", default=[100, 200, 500])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if not given.part or "speed" in given.part:
        speed()
    if not given.part or "coverage" in given.part:
        for number in given.patients:
            coverage(given.simulations, number)
