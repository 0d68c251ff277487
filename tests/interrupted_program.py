"""A program that runs a verb again and again, kills it at random moments, and compares what comes
of it in the end.

    python -m tests.interrupted_program KILLS [VERB ...]
        a line each: how often it was killed, and whether the same came of it

Children are forked, which is quick, and safe as long as nothing has imported JAX; of a model that
needs it each is a program of its own.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import leaveout as lo
from leaveout._runtime import checkpoint as _checkpoint
from leaveout.diagnostics import prediction_intervals as _prediction
from leaveout.extensions.leakage import _fits, _run
from leaveout.sklearn import OneFitSearchCV, cross_validate
from leaveout.validation import batches as _walk
from leaveout.validation.cross_validate import fold_thetas

ENDED = (
    os.WEXITED | os.WNOHANG | os.WNOWAIT
)  # asks whether a child ended, and lets it be asked again
rng = np.random.default_rng(0)
N = 900
X = rng.standard_normal((N, 3))
y = (X[:, 0] + rng.standard_normal(N) > 0) * 1.0
FIT = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
LINEAR = lo.fit(
    lo.GLM(X, X @ np.arange(3.0) + rng.standard_normal(N), "squared", lo.penalties.Ridge(1.0))
)
PIPELINE = make_pipeline(StandardScaler(), SelectKBest(k=2), LogisticRegression())
TABLES = "SELECT count(*) FROM sqlite_master WHERE name = 'steps'"
TOGETHER, ALONE = lo.kfold(N, 180, rng=0), lo.leave_one_out(N)
LEVELS = {
    "size": 30,
    "levels": 9,
    "num_boot": 40,
    "train": np.arange(300),
    "test": np.arange(300, 400),
}
INJECTED = {
    "groups": np.arange(N) // 6,
    "loss": "mse",
    "injection": lo.leakage.Injection(num_levels=5, num_boot=20),
}


def values(estimate: lo.Estimate) -> list:
    audit = (
        [] if estimate.audit is None else [estimate.audit.drop(columns="reason").to_numpy(float)]
    )
    parts = estimate.losses, estimate.error, estimate.result, estimate.proved, estimate.baseline
    return [*parts, *audit, estimate.metrics[["value", "error"]].to_numpy().ravel()]


def path(**more):
    penalties = [
        *map(lo.penalties.Ridge, (0.1, 1.0)),
        lo.penalties.per_weight(lo.penalties.Ridge(1.0)),
    ]
    return [
        part
        for each in lo.path(FIT.objective, penalties, TOGETHER, **more).estimates
        for part in values(each)
    ]


def leakage(**more):
    found = lo.leakage.leakage_corrected(
        Ridge(), X, y, leakage=lo.leakage.RecordLeakage(0.05), **INJECTED, **more
    )
    return [found.table().to_numpy(), found.per_cluster.to_numpy(float)]


def blocks(**more):
    found = lo.leakage.binomial_block_bootstrap(Ridge(), X, y, direction="both", **LEVELS, **more)
    return [found.losses, found.variance]


def nested(**more):
    found = lo.validation.nested(FIT, num_folds=6, num_repeats=6, **more)
    return [np.array([found.low, found.high])]


def interval(**more):
    found = lo.interval(LINEAR, X[:300] + 0.5, **more)
    return [found.to_numpy(), np.array(found.attrs["widened"])]


def influence(**more):
    estimate = lo.cross_validate(FIT, TOGETHER, strategy=lo.NewtonStep(), audit=0)
    found = lo.influence(estimate, prediction=X[0], num_pairs=30, **more)
    named = found.rows.select_dtypes("number"), found.parameters, found.pairs
    return [table.to_numpy(float) for table in named]


def tuned(build, space, plan, **more):
    found = lo.tune(build, space, plan, **more)
    return [
        found.trials.select_dtypes("number").to_numpy(float),
        *values(found.estimate),
        np.array(found.optimism),
    ]


def ridges(**more):
    build = lambda **penalty: FIT.objective.under(lo.penalties.Ridge([*penalty.values()]))
    return tuned(
        build, dict.fromkeys("abc", (1e-2, 1e4)), lo.kfold(N, 10, rng=0), metric="auc", **more
    )


def network(**more):
    """A model without a closed form, whose penalty is chosen."""
    import jax.numpy as jnp

    loss = lambda theta, datum: (datum[3] - jnp.tanh(datum[:3] @ theta["in"]) @ theta["out"]) ** 2
    start = {"in": np.eye(3, 2) + 0.1, "out": np.ones(2)}

    def build(alpha):
        penalty = lambda theta: alpha * (jnp.sum(theta["in"] ** 2) + jnp.sum(theta["out"] ** 2))
        return lo.Separable(loss, np.c_[X, y][:200], penalty, start)

    return tuned(
        build,
        {"alpha": (1e-2, 1e2)},
        lo.kfold(200, 20, rng=0),
        num_trials=8,
        num_outer_folds=0,
        **more,
    )


def asked(**more):
    build = lambda alpha, loss: lo.GLM(X, y, loss, lo.penalties.Ridge(alpha))
    space = {"alpha": (1e-2, 1e4), "loss": ["logistic", "probit"]}
    return tuned(
        build, space, TOGETHER, strategy=lo.Certified(), sampler="optuna", num_trials=12, **more
    )


def folds(**more):
    found = cross_validate(PIPELINE, X, y, cv=20, scoring=["roc_auc", "accuracy"], **more)
    return [scores for name, scores in found.items() if name.startswith("test_")]


def search(**more):
    grid = {"C": [0.1, 1.0, 10.0], "fit_intercept": [True, False]}
    found = OneFitSearchCV(LogisticRegression(), grid, scoring="roc_auc", cv=20, **more).fit(X, y)
    return [found.cv_results_[name] for name in ("mean_test_score", "mean_approximation_error")]


def chain(**more):
    series = np.random.default_rng(1).standard_normal(150) + 2.0 * (np.arange(150) // 30 % 2)
    fit = lo.fit(lo.HMM(series, lo.emissions.Gaussian(), 2), num_starts=2)
    return values(
        lo.cross_validate(
            fit,
            lo.random_subsets(150, 0.1, 60),
            strategy=lo.Exact(),
            evaluate="squared_error",
            **more,
        )
    )


def crf(**more):
    """Sentences of three labels."""
    random = np.random.default_rng(2)
    lengths = random.integers(3, 9, 60)
    scores = random.standard_normal((lengths.sum(), 3))
    labels = (scores + random.gumbel(size=scores.shape)).argmax(1)
    fit = lo.fit(lo.CRF(labels, lengths, scores=scores))
    return values(lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact(), **more))


def posterior(**more):
    """Draws of a posterior that is almost normal."""
    z = np.random.default_rng(3).standard_normal((1000, len(FIT.vector)))
    found = lo.bayes.elpd(
        lo.bayes.from_posterior(FIT.quadratic.at(z), FIT), lo.kfold(N, 60, rng=0), **more
    )
    return [found.losses, found.table().select_dtypes("number").to_numpy(float)]


VERBS = {
    "metrics": lambda **more: values(
        lo.cross_validate(FIT, TOGETHER, metric=("mse", "brier"), **more)
    ),
    "score": lambda **more: values(
        lo.cross_validate(
            FIT, TOGETHER, strategy=lo.Certified(0.5), evaluate="squared_error", **more
        )
    ),
    "rows": lambda **more: values(lo.cross_validate(FIT, ALONE, **more)),
    "predict": lambda **more: [lo.cross_predict(FIT, TOGETHER, **more)],
    "parameters": lambda checkpoint=None: [
        fold_thetas(FIT, TOGETHER, lo.Certified(), "fold_parameters", checkpoint)
    ],
    "path": path,
    "leakage": leakage,
    "blocks": blocks,
    "nested": nested,
    "interval": interval,
    "optuna": asked,
    "folds": folds,
    "search": search,
}
COMPILED = {
    "chain": chain,
    "crf": crf,
    "posterior": posterior,
    "influence": influence,
    "ridges": ridges,
    "network": network,
}


def attempt(verb: str, file: Path, out: Path, seconds: float | None) -> bool:
    """One child, killed so many seconds after it has begun if it is still there, or left alone: was
    it?
    """
    begun = file.with_suffix(".begun")
    begun.unlink(missing_ok=True)
    if verb in COMPILED:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.interrupted_program", "0", verb, file, out]
        ).pid
    elif not (child := os.fork()):
        alone(VERBS[verb], file, out)
    if seconds is not None:
        while not begun.exists() and not os.waitid(os.P_PID, child, ENDED):
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if status and not os.WIFSIGNALED(status):
        sys.exit(f"a child ended with {status}")
    return os.WIFSIGNALED(status)


def alone(verb: Callable[..., list], file: Path, out: Path) -> None:
    """A child's life."""
    file.with_suffix(".begun").touch()
    found = verb(checkpoint=file)
    with out.with_suffix(".part").open("wb") as stream:
        np.savez(stream, *found)
    out.with_suffix(".part").replace(out)
    os._exit(0)


def steps(file: Path) -> int:
    """How many are in the file."""
    if not file.exists() or not file.stat().st_size:
        return 0
    with contextlib.closing(sqlite3.connect(file)) as base:
        return (
            base.execute("SELECT count(*) FROM steps").fetchone()[0]
            if base.execute(TABLES).fetchone()[0]
            else 0
        )


def main(verb: str, kills: int) -> str:
    """How often it was killed in the middle, and whether the same came of it."""
    whole, moments, there = (VERBS | COMPILED)[verb](), np.random.default_rng(kills), []
    with TemporaryDirectory() as folder:
        file, out = Path(folder) / "run.ckpt", Path(folder) / "out.npz"
        attempt(verb, file, out, None)
        seconds = out.stat().st_mtime - file.with_suffix(".begun").stat().st_mtime
        while len(there) < kills:
            if out.exists():  # it was through before: from the start
                out.unlink()
                file.unlink()
            if attempt(verb, file, out, moments.uniform(0, 0.9 * seconds)):
                there.append(steps(file))
        attempt(verb, file, out, None)
        total = steps(file)
        with np.load(out) as found:
            same = [
                np.array_equal(found[f"arr_{k}"], part, equal_nan=True)
                for k, part in enumerate(whole)
            ]
    middle = sum(0 < number < total for number in there)
    came = "same" if all(same) else same
    return f"{verb}: killed {kills} times, {middle} between the first and the last of {total} steps: {came}"


def write_many_steps() -> None:
    """Small batches, each of which is written at once."""
    _checkpoint.PAUSE = 0.0
    _walk.CAPACITY = 2**9
    _run.FIT_BATCH_ENTRIES = _fits.FIT_BATCH_ENTRIES = 2**13
    _prediction.BLOCKS_AT_A_TIME = 1


if __name__ == "__main__":
    write_many_steps()
    if sys.argv[1] == "0":
        alone(COMPILED[sys.argv[2]], *map(Path, sys.argv[3:]))
    for verb in sys.argv[2:] or VERBS:
        print(main(verb, int(sys.argv[1])), flush=True)
