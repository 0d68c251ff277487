"""Runs that are stopped, killed, and go on."""

import functools
import io
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import FitFailedWarning
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import leaveout as lo
import leaveout.sklearn as from_one_fit
from leaveout._runtime import checkpoint as _checkpoint
from leaveout._runtime.fingerprint import fingerprint
from leaveout.extensions.cli import app
from leaveout.extensions.leakage import _run
from leaveout.validation import batches as _walk
from tests._runtime.fingerprinted import WORDS, N, X, Y, counted, logistic, rng

PLAN = lo.kfold(N, 30, rng=0)
LEAKAGE = {"groups": np.arange(N) // 4, "leakage": lo.leakage.RecordLeakage(0.05), "loss": "mse"}
MODEL = lo.GLM(X, Y, "logistic", lo.penalties.Ridge(1.0))
SPACE = {"a": (1e-2, 1e3)}
PIPELINE = make_pipeline(StandardScaler(), SelectKBest(k=1), LogisticRegression())
NAMES = np.where(Y > 0, "ill", "well").astype(object)
ONE_AFTER_ANOTHER = """
metrics score rows predict parameters path leakage blocks nested interval optuna folds search influence ridges
"""
ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(lo.__file__).parents[1])}


def network() -> lo.Fit:
    """A model without a closed form, whose batches are made in threads."""
    loss = lambda theta, datum: (datum[2] - jnp.tanh(datum[:2] @ theta["in"]) @ theta["out"]) ** 2
    penalty = lambda theta: 0.5 * jnp.sum(theta["in"] ** 2) + 0.5 * jnp.sum(theta["out"] ** 2)
    start = {"in": 0.1 * rng.standard_normal((2, 3)), "out": np.ones(3)}
    return lo.fit(lo.Separable(loss, np.c_[X, Y], penalty, start), num_starts=1)


def killed(kills: int, *verbs: str) -> list[str]:
    words = [sys.executable, "-m", "tests.interrupted_program", str(kills), *verbs]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env=ENVIRONMENT, cwd=ROOT
    )
    return done.stdout.splitlines()


def same(a: lo.Estimate, b: lo.Estimate) -> bool:
    names = "losses", "error", "result", "proved", "baseline"
    return all(
        np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in names
    ) and str(a) == str(b)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A checkpoint, of runs in many steps."""
    monkeypatch.setattr(_walk, "CAPACITY", 2**8)
    return tmp_path / "run.ckpt"


def test_a_killed_run_goes_on_to_the_same_numbers():
    lines = killed(2, "metrics", "leakage", "folds")
    assert len(lines) == 3 and all(line.endswith("steps: same") for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize("verb", ONE_AFTER_ANOTHER.split())
def test_killed_a_hundred_times(verb):
    (line,) = killed(100, verb)
    assert line.endswith("steps: same"), line
    assert int(line.split("times, ")[1].split()[0]) > 2, line  # were killed between two steps


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["chain", "crf", "posterior", "network"])
def test_killed_many_times_and_compiled_each(verb):
    (line,) = killed(20, verb)
    assert line.endswith("steps: same"), line


def interrupting(calls: list, when: int):
    """A score that is interrupted at one of its calls."""

    def evaluate(held, seen, parameters):
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return (Y[held] - X[held] @ parameters["coef"]) ** 2

    return evaluate


def test_what_is_done_before_an_interrupt_says_that_it_is_a_part(file):
    fit, score = logistic(), interrupting([], 0)
    whole = lo.cross_validate(fit, PLAN, evaluate=score)
    with pytest.raises(
        lo.validation.Interrupted, match=r"stopped after \d+ of 30 refits.*sys.last_value.partial"
    ) as error:
        lo.cross_validate(fit, PLAN, evaluate=interrupting([], 150))
    part = error.value.partial
    made = part.result != lo.RESULTS.interrupted
    assert 0 < made.sum() < 30 and isinstance(error.value, KeyboardInterrupt)
    kept = made[PLAN.refit]
    np.testing.assert_array_equal(part.losses[kept], whole.losses[kept])
    assert (
        np.isnan(part.losses[~kept]).all()
        and np.isinf(part.error[~made]).all()
        and not part.proved[~made].any()
    )
    assert part.mean == pytest.approx(whole.losses[kept].mean()) and set(
        np.flatnonzero(~made)
    ) <= set(part.flagged())
    assert part.no_update == pytest.approx(whole.baseline[kept].mean())
    assert (
        f"{made.sum()} of 30 refits were made" in str(part)
        and "refits not made" in part.summary().index
    )
    assert (part.table().result == "interrupted").sum() == (~kept).sum()
    with pytest.raises(ValueError, match="'part' was stopped"):
        lo.compare({"part": part, "whole": whole})
    with pytest.raises(ValueError, match="stopped before all its refits"):
        part.interval()
    assert "stopped" not in str(whole) and "refits not made" not in whole.summary().index


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 1.0])
def test_an_interrupted_run_goes_on(file, monkeypatch, share):
    """In what no update loses, among the refits, in the audit."""
    fit = logistic()

    def calls(checkpoint=None, last=0):
        monkeypatch.setenv("CALLS", "0")
        monkeypatch.setenv("LAST", str(last))
        try:
            return lo.cross_validate(fit, PLAN, evaluate=counted, checkpoint=checkpoint), int(
                os.environ["CALLS"]
            )
        except KeyboardInterrupt:
            return None, int(os.environ["CALLS"])

    whole, count = calls()
    last = round(share * (count - 1))
    assert calls(file, last)[0] is None
    found, rest = calls(file)
    assert same(found, whole) and rest < count - last / 3 and calls(file)[1] <= 2


def test_a_checkpoint_of_another_run_is_refused(file, monkeypatch):
    fit, f = logistic(), {"checkpoint": file}
    first = lo.cross_validate(fit, PLAN, **f)
    moved = np.where(np.arange(N) == 7, 1 - Y, Y)
    others = {
        "model or data, fit": lambda: lo.cross_validate(logistic(y=moved), PLAN, **f),
        "plan": lambda: lo.cross_validate(fit, lo.kfold(k=30, rng=1), **f),
        "refit": lambda: lo.cross_validate(fit, PLAN, strategy=lo.Certified(0.02), **f),
        "evaluate": lambda: lo.cross_validate(fit, PLAN, evaluate="squared_error", **f),
        "metric": lambda: lo.cross_validate(fit, PLAN, metric="mse", **f),
        "audit": lambda: lo.cross_validate(fit, PLAN, audit=0, **f),
        "verb, refit, kind, judged, evaluate, metric, audit": lambda: lo.cross_predict(
            fit, PLAN, **f
        ),
        "verb": lambda: lo.leakage.leakage_slope_test(Ridge(), X, Y, groups=LEAKAGE["groups"], **f),
    }
    for what, other in others.items():
        with pytest.raises(
            ValueError,
            match=f"checkpoint=.*run.ckpt is of another run: other {what}.*remove it, or name",
        ):
            other()
    assert same(lo.cross_validate(fit, PLAN, **f), first)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9.9")
    with pytest.raises(ValueError, match="other version of leaveout;"):
        lo.cross_validate(fit, PLAN, **f)


def test_what_is_no_whole_checkpoint_is_refused_and_left_alone(file, tmp_path):
    fit = logistic()
    whole = lo.cross_validate(fit, PLAN, checkpoint=file)
    blob = file.read_bytes()
    place = blob.index(b"losses.npy") + 200
    damages = {
        "text": b"a,b\n1,2\n" * 400,
        "cut": blob[: len(blob) // 2],
        "cut off at its end": blob[:-4096],
        "flipped": blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :],
    }
    for name, damaged in damages.items():
        file.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"checkpoint=.*is no checkpoint, or is damaged \(.*\); remove it"
        ):
            print(name, lo.cross_validate(fit, PLAN, checkpoint=file))
        assert file.read_bytes() == damaged, name
    file.write_bytes(b"")  # killed before anything was written, or cut
    with pytest.warns(UserWarning, match="run.ckpt is empty: the run begins anew"):
        assert same(lo.cross_validate(fit, PLAN, checkpoint=file), whole)
    assert same(lo.cross_validate(fit, PLAN, checkpoint=file), whole)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE mine (x)")
    base.close()
    wrong = (
        (other, "of something else"),
        (tmp_path, "is no file on a disk"),
        (os.devnull, "is no file on a disk"),
        (tmp_path / "no" / "run", "there is no folder"),
    )
    for path, what in wrong:
        with pytest.raises(ValueError, match=what):
            lo.cross_validate(fit, PLAN, checkpoint=path)


def test_a_score_that_calls_a_verb_is_no_step_of_its_own(file):
    fit, other = logistic(), logistic(2.0)

    def distant(held, seen, parameters):
        lo.cross_validate(other, lo.kfold(k=2), strategy=lo.NewtonStep(), audit=0)
        return np.abs(Y[held] - parameters["coef"][0])

    first, again = (
        lo.cross_validate(fit, lo.kfold(k=3), evaluate=distant, checkpoint=file) for _ in range(2)
    )
    np.testing.assert_array_equal(first.losses, again.losses)


def test_nothing_is_unpickled(file):
    """Even where whoever made the file knew how to sign it."""
    fit = logistic()
    lo.cross_validate(fit, PLAN, checkpoint=file)

    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    stream = io.BytesIO()
    np.savez(stream, parts=np.array([Evil()], object))
    with sqlite3.connect(file) as base:
        base.execute("UPDATE steps SET arrays = ? WHERE number = 0", [stream.getvalue()])
    base.close()
    with pytest.raises(ValueError, match="is not what was written"):
        lo.cross_validate(fit, PLAN, checkpoint=file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_checkpoint.Journal, "_digest", lambda self, blob: "signed")
        with sqlite3.connect(file) as base:
            base.execute("UPDATE steps SET digest = 'signed'")
        base.close()
        with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
            lo.cross_validate(fit, PLAN, checkpoint=file)


K = 2.0


def test_what_a_function_uses_is_part_of_it(monkeypatch):
    adding = lambda k: lambda x: x + k
    given = lambda k: functools.partial(adding(1), k)
    own = type("Own", (), {"__call__": lambda self, x: x + 1, "__module__": "mine"})
    other = type("Own", (), {"__call__": lambda self, x: x + 2, "__module__": "mine"})
    for one, two in (
        (adding(1), adding(2)),
        (given(1), given(2)),
        (own(), other()),
        (lambda x: x + 1, lambda x: x - 1),
    ):
        assert fingerprint(one) == fingerprint(one) != fingerprint(two)
    assert (
        fingerprint(adding(X))
        == fingerprint(adding(X.copy()))
        != fingerprint(adding(X.astype(np.float32)))
    )
    by_name = lambda x: x + K
    before = fingerprint(by_name)
    monkeypatch.setitem(globals(), "K", 3.0)
    assert fingerprint(by_name) != before
    assert fingerprint(lo.losses.Gamma(1.0)) != fingerprint(lo.losses.Gamma(2.0))
    plan = lo.kfold(9, 3)
    before = fingerprint(plan)
    assert len(plan.refit) == 9 and fingerprint(plan) == before != fingerprint(
        lo.kfold(9, 3, rng=1)
    )


def test_a_fingerprint_is_that_of_another_process():
    """Where strings hash to other numbers."""
    code = "from leaveout._runtime.fingerprint import fingerprint\n"
    code += "from tests._runtime.fingerprinted import WORDS, counted, logistic\n"
    code += "print(fingerprint(WORDS), fingerprint(logistic().objective), fingerprint(counted))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT | {"PYTHONHASHSEED": "7"},
    )
    assert done.stdout.split() == [
        fingerprint(WORDS),
        fingerprint(logistic().objective),
        fingerprint(counted),
    ]


def test_what_cannot_be_known_again_is_said(file):
    with pytest.raises(TypeError, match="checkpoint must be the name of a file; got 3"):
        lo.cross_validate(logistic(), PLAN, checkpoint=3)
    lock = threading.Lock()
    evaluate = lambda held, seen, parameters: np.zeros(len(held)) if lock else None
    with pytest.raises(
        TypeError,
        match=r"checkpoint= needs to know evaluate again .*, which it cannot .*leave it out",
    ):
        lo.cross_validate(logistic(), PLAN, evaluate=evaluate, checkpoint=file)
    assert not file.exists()


def test_a_file_serves_one_run_at_a_time(file):
    fit = logistic()

    def evaluate(held, seen, parameters):
        with pytest.raises(ValueError, match="is in use by another process; name another file"):
            lo.cross_validate(fit, PLAN, checkpoint=file)
        return np.zeros(len(held))

    assert lo.cross_validate(fit, lo.kfold(k=2), evaluate=evaluate, checkpoint=file).mean == 0


def interrupt(*words):
    raise KeyboardInterrupt


class Interrupting:
    """A database that is interrupted when it is written for the last time."""

    in_transaction = True
    execute = interrupt

    def __init__(self, base: sqlite3.Connection):
        self.close = base.close


@pytest.mark.filterwarnings("ignore:.*is empty")
@pytest.mark.parametrize("moment", ["check", "close"])
def test_ctrl_c_while_the_file_is_opened_or_closed_leaves_it_free(moment, file, monkeypatch):
    fit, close = logistic(), _checkpoint.Journal.close
    whole = lo.cross_validate(fit, PLAN)

    def interrupted_close(self):
        self.base = Interrupting(self.base)
        close(self)

    with monkeypatch.context() as patch:
        change = {"check": interrupt, "close": interrupted_close}[moment]
        patch.setattr(_checkpoint.Journal, moment, change)
        with pytest.raises(KeyboardInterrupt) as kept:
            lo.cross_validate(fit, PLAN, checkpoint=file)
    assert same(lo.cross_validate(fit, PLAN, checkpoint=file), whole)
    assert kept.value.__traceback__ is not None  # it holds what was interrupted, as sys.last_value


def test_a_full_disk_is_told_and_the_run_goes_on(file, monkeypatch):
    fit, add = logistic(), _checkpoint.Journal._digest
    whole = lo.cross_validate(fit, PLAN)

    def full(self, blob):
        if self.position == 3:
            raise sqlite3.OperationalError("database or disk is full")
        return add(self, blob)

    monkeypatch.setattr(_checkpoint.Journal, "_digest", full)
    with pytest.warns(UserWarning, match="cannot be written .*disk is full.*is not kept"):
        assert same(lo.cross_validate(fit, PLAN, checkpoint=file), whole)
    monkeypatch.undo()


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of the size of files")
def test_a_disk_that_is_full_at_the_end_is_told(file):
    """Steps of the last two seconds are written when the file is closed."""
    import resource

    fit = logistic()
    whole = lo.cross_validate(fit, PLAN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, limits[1]))
    try:
        with pytest.warns(UserWarning, match="cannot be written .*is not kept"):
            assert same(lo.cross_validate(fit, PLAN, checkpoint=file), whole)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.warns(UserWarning, match="is empty"):
        assert same(lo.cross_validate(fit, PLAN, checkpoint=file), whole)


def test_a_run_goes_on_where_there_are_other_cores(tmp_path, monkeypatch):
    fit, file = network(), tmp_path / "run.ckpt"
    monkeypatch.setattr(_walk, "PARALLEL_OPERATIONS", 0.0)
    monkeypatch.setattr(_walk, "cores", lambda: 3)
    whole = lo.cross_validate(fit, PLAN, checkpoint=file)
    monkeypatch.setattr(_walk, "cores", lambda: 1)
    with sqlite3.connect(file) as base:
        count = base.execute("SELECT count(*) FROM steps").fetchone()[0]
        base.execute("DELETE FROM steps WHERE number >= ?", [count // 2])
    base.close()
    assert count > 4 and same(lo.cross_validate(fit, PLAN, checkpoint=file), whole)


def test_every_verb_gives_what_it_gives_without(file):
    fit, model = logistic(), logistic().objective
    small = {
        "train": np.arange(60),
        "test": np.arange(60, 90),
        "size": 10,
        "levels": 4,
        "num_boot": 6,
    }
    verbs = {
        "cross_predict": lambda **f: lo.cross_predict(fit, PLAN, kind="link", **f),
        "fold_parameters": lambda **f: lo.fold_parameters(fit, PLAN, **f)["coef"],
        "path, rows": lambda **f: str(lo.path(model, [0.1, 1.0], lo.leave_one_out(), **f)),
        "path, ridges": lambda **f: str(
            lo.path(lo.GLM(X, Y, "squared"), [0.1, 1.0], lo.leave_one_out(), **f)
        ),
        "slope": lambda **f: str(
            lo.leakage.leakage_slope_test(Ridge(), X, Y, groups=LEAKAGE["groups"], **f)
        ),
        "to test": lambda **f: (
            lo.leakage.binomial_block_bootstrap(
                Ridge(), X, Y, direction="test", **small, **f
            ).losses
        ),
        "to train": lambda **f: (
            lo.leakage.binomial_block_bootstrap(fit, X, Y, loss="brier", **small, **f).losses
        ),
    }
    for name, verb in verbs.items():
        own = file.with_name(f"{name}.ckpt")
        plain, kept, again = verb(), verb(checkpoint=own), verb(checkpoint=own)
        assert np.array_equal(plain, kept) and np.array_equal(plain, again), name


def by_hyper(a) -> lo.GLM:
    return MODEL.under(lo.penalties.Ridge(a))


def told(found: lo.tuning.Tuning) -> list:
    return [
        found.trials.select_dtypes("number").to_numpy(),
        found.estimate.losses,
        found.optimism,
        str(found),
    ]


def a_network(a):
    loss = lambda theta, datum: (datum[2] - jnp.tanh(datum[:2] @ theta["in"]) @ theta["out"]) ** 2
    penalty = lambda theta: a * jnp.sum(theta["in"] ** 2) + a * jnp.sum(theta["out"] ** 2)
    return lo.Separable(loss, np.c_[X, Y], penalty, {"in": np.eye(2) + 0.1, "out": np.ones(2)})


def told_of(found: lo.diagnostics.Influence) -> list:
    tables = found.rows.drop(columns=["parameter", "result"]), found.parameters, found.pairs
    return [*(table.to_numpy(float) for table in tables), str(found)]


def scored(found: dict) -> list:
    return [values for name, values in found.items() if "time" not in name]


def searched(search: from_one_fit.OneFitSearchCV) -> list:
    return [
        search.fit(X, Y).cv_results_[name]
        for name in ("mean_test_score", "mean_approximation_error")
    ]


GRID = {"C": [0.1, 1.0], "fit_intercept": [True, False]}
LINEAR = lo.GLM(X, X @ [1.0, -1.0], "squared", lo.penalties.Ridge(1.0))
LONG = {
    "fit": lambda **f: [
        *vars((found := lo.fit(a_network(0.1), num_starts=3, **f)).minima).values(),
        found.vector,
        found.quadratic.factor,
    ],
    "nested": lambda **f: [lo.validation.nested(logistic(), num_folds=4, num_repeats=3, **f)],
    "interval": lambda **f: [
        (found := lo.interval(lo.fit(LINEAR), X[:50] + 0.1, **f)).to_numpy(),
        found.attrs,
    ],
    "influence": lambda **f: told_of(
        lo.influence(lo.cross_validate(logistic(), PLAN), prediction=X[0], num_pairs=8, **f)
    ),
    "cooks_distance": lambda **f: [lo.diagnostics.cooks_distance(logistic(), **f)],
    "tune": lambda **f: told(lo.tune(by_hyper, SPACE, PLAN, num_trials=4, **f)),
    "tune, a metric": lambda **f: told(
        lo.tune(by_hyper, SPACE, lo.kfold(k=5), metric="auc", num_trials=6, num_outer_folds=0, **f)
    ),
    "tune, derived": lambda **f: told(
        lo.tune(a_network, SPACE, lo.kfold(k=6), num_trials=4, num_outer_folds=0, **f)
    ),
    "tune, asked": lambda **f: told(
        lo.tune(by_hyper, SPACE, PLAN, strategy=lo.Certified(), sampler="optuna", num_trials=5, **f)
    ),
    "tune, a path": lambda **f: told(
        lo.tune(by_hyper, SPACE, PLAN, sampler="path", num_trials=4, **f)
    ),
    "cross_validate": lambda **f: scored(
        from_one_fit.cross_validate(
            LogisticRegression(), X, Y, scoring=["roc_auc", "accuracy", "neg_log_loss"], **f
        )
    ),
    "cross_validate, a pipeline": lambda **f: scored(
        from_one_fit.cross_validate(
            PIPELINE, X, Y, scoring=["roc_auc", "accuracy"], return_train_score=True, **f
        )
    ),
    "cross_val_score": lambda **f: [from_one_fit.cross_val_score(PIPELINE, X, NAMES, **f)],
    "cross_val_predict": lambda **f: [
        from_one_fit.cross_val_predict(LogisticRegression(), X, Y, method="predict_proba", **f)
    ],
    "cross_val_predict, names": lambda **f: [
        from_one_fit.cross_val_predict(PIPELINE, X, NAMES, **f)
    ],
    "search": lambda **f: searched(
        from_one_fit.OneFitSearchCV(LogisticRegression(), GRID, scoring="roc_auc", **f)
    ),
}


def cut(file: Path, count: int | None = None) -> int:
    """What a kill after so many steps leaves; how many there were."""
    with sqlite3.connect(file) as base:
        before = base.execute("SELECT count(*) FROM steps").fetchone()[0]
        base.execute("DELETE FROM steps WHERE number >= ?", [before if count is None else count])
    base.close()
    return before


def alike(one: list, other: list) -> bool:
    numbers = lambda part: (
        isinstance(part, np.ndarray | float) and np.asarray(part).dtype == np.float64
    )
    return len(one) == len(other) and all(
        np.array_equal(a, b, equal_nan=numbers(a) and numbers(b))
        for a, b in zip(one, other, strict=True)
    )


LONGEST = {
    "tune, derived",
    "tune, a metric",
    "search",
    "tune, asked",
    "cross_validate, a pipeline",
    "cross_val_predict, names",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONGEST else ()) for name in LONG]
)
def test_a_long_verb_goes_on_from_wherever_it_was_killed(name, file, monkeypatch):
    """And what is there is not made again."""
    verb = LONG[name]
    whole = verb()
    assert alike(verb(checkpoint=file), whole)
    total = cut(file)
    for count in {1, total // 2, total - 1}:
        cut(file, count)
        assert alike(verb(checkpoint=file), whole), count
        assert cut(file) == total > 1
    monkeypatch.setattr(_checkpoint.Journal, "add", None)
    assert alike(verb(checkpoint=file), whole)


def test_a_long_verb_of_other_data_is_refused(file):
    fit, estimate = lo.fit(LINEAR), lo.cross_validate(logistic(), PLAN)
    refused = {
        "nested": (
            lambda **f: lo.validation.nested(
                **{"fit": logistic(), "num_repeats": 2, "num_folds": 4} | f
            ),
            {
                "fit": logistic(2.0),
                "num_repeats": 3,
                "num_folds": 5,
                "rng": 1,
                "evaluate": "zero_one",
                "strategy": lo.NewtonStep(),
            },
        ),
        "interval": (
            lambda **f: lo.interval(**{"fit": fit, "X_new": X[:9]} | f),
            {
                "fit": lo.fit(LINEAR.under(lo.penalties.Ridge(2.0))),
                "X_new": X[:8],
                "level": 0.8,
                "method": "minmax",
            },
        ),
        "influence": (
            lambda **f: lo.influence(**{"estimate": estimate, "num_pairs": 4} | f),
            {
                "estimate": lo.cross_validate(logistic(), PLAN, evaluate="zero_one"),
                "prediction": X[0],
                "num_pairs": 5,
                "strategy": lo.Exact(),
            },
        ),
        "tune": (
            lambda **f: lo.tune(
                **{
                    "build": by_hyper,
                    "space": SPACE,
                    "plan": PLAN,
                    "sampler": "path",
                    "num_trials": 3,
                }
                | f
            ),
            {
                "build": lambda a: MODEL.under(lo.penalties.Ridge(2 * a)),
                "space": {"a": (1e-2, 1e2)},
                "plan": lo.kfold(N, 30, rng=1),
                "num_trials": 4,
                "sampler": "gradient",
            },
        ),
        "cross_validate": (
            lambda **f: from_one_fit.cross_validate(
                **{"estimator": LogisticRegression(), "X": X, "y": Y} | f
            ),
            {
                "estimator": LogisticRegression(C=2.0),
                "X": X + 1e-9,
                "y": 1 - Y,
                "cv": 4,
                "scoring": "roc_auc",
            },
        ),
        "fit": (
            lambda **f: lo.fit(**{"objective": MODEL} | f),
            {"objective": LINEAR, "theta0": lo.fit(MODEL).parameters},
        ),
    }
    for name, (verb, others) in refused.items():
        own = file.with_name(f"{name}.ckpt")
        verb(checkpoint=own)
        for argument, value in others.items():
            with pytest.raises(
                ValueError,
                match=f"{name}: checkpoint=.*{name}.ckpt is of another run: other .*; remove it, or",
            ):
                pytest.fail(f"{argument}: {verb(**{argument: value}, checkpoint=own)}")
        verb(checkpoint=own)


@pytest.mark.parametrize("sampler", ["gradient", "optuna", "path"])
def test_what_a_choice_reads_elsewhere_is_part_of_it(sampler, file, tmp_path):
    """Where no code tells it: every objective does."""
    target = tmp_path / "y.npy"
    build = lambda a: lo.GLM(X, np.load(target), "logistic", lo.penalties.Ridge(a))
    choose = lambda: lo.tune(
        build, SPACE, PLAN, sampler=sampler, num_trials=3, num_outer_folds=0, checkpoint=file
    )
    np.save(target, Y)
    first = choose()
    np.save(target, np.where(np.arange(N) == 5, 1 - Y, Y))
    with pytest.raises(
        ValueError, match=r"tune: checkpoint=.* is of another run: other model or data; remove it"
    ):
        choose()
    np.save(target, Y)
    assert alike(told(first), told(choose()))


def test_a_fold_that_failed_is_told_of_again(file):
    """Of what goes on as well: there the fold has no rows of one class."""
    order, pipeline = np.argsort(Y, kind="stable"), make_pipeline(PCA(1), LogisticRegression())
    cv = [(order[: int(N - Y.sum())], order[-9:]), (order[9:], order[:9])]
    for _ in range(2):
        with pytest.warns(FitFailedWarning, match="(?s)the fit of fold 0 failed: .*class"):
            found = from_one_fit.cross_validate(
                pipeline, X, Y, cv=cv, scoring="accuracy", checkpoint=file
            )
        assert np.isnan(found["test_score"]).tolist() == [True, False]


# Ctrl-C


@pytest.fixture(autouse=True)
def listens():
    """Programs that are started in the background do not hear Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_compiled_program_does_not_delay_ctrl_c():
    """Neither the end of the call nor the next one waits for it."""
    running, released = threading.Event(), threading.Event()
    pressed, ends = [], []

    def step():
        running.set()
        ends.append(released.wait(60))

    def slowly(theta, weights):
        jax.debug.callback(step)
        return jnp.sum(weights) * theta["x"] ** 2

    def press():
        if running.wait(60):
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            lo.fit(lo.Objective(slowly, 5), {"x": np.asarray(0.7)})
        assert time.perf_counter() - pressed[0] < 1
        quick = lambda theta, weights: weights @ (theta - jnp.arange(5.0)) ** 2
        assert lo.fit(lo.Objective(quick, 5), 0.0).theta == pytest.approx(2)
        assert not ends  # the program is still running
    finally:
        released.set()
        presser.join()


def test_ctrl_c_in_threads(monkeypatch):
    """The rest of what they would do is not waited for."""
    monkeypatch.setattr(_walk, "cores", lambda: 2)
    pressed, calls = [], []

    def evaluate(held, seen, parameters):
        calls.append(1)
        if len(calls) == 300:
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)
        if pressed:
            time.sleep(0.2)
        return np.zeros(len(held))

    with pytest.raises(lo.validation.Interrupted, match=r"stopped after \d+ of 120 refits"):
        lo.cross_validate(
            network(), lo.leave_one_out(N), strategy=lo.NewtonStep(), evaluate=evaluate
        )
    assert time.perf_counter() - pressed[0] < 1


def test_ctrl_c_in_leakage(monkeypatch):
    """In the third draws of the folds."""
    model, more = (
        RandomForestRegressor(3, random_state=0),
        {"injection": lo.leakage.Injection(num_levels=4, num_boot=2000)},
    )
    one_piece, calls, pressed = _run.one_piece, [], []

    def press():
        pressed.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    def pressing(*words):
        calls.append(1)
        if len(calls) == 14:
            threading.Timer(0.05, press).start()
        return one_piece(*words)

    monkeypatch.setattr(_run, "one_piece", pressing)
    with pytest.raises(lo.validation.Interrupted) as error:
        lo.leakage.leakage_corrected(model, X, Y, **LEAKAGE, **more)
    assert time.perf_counter() - pressed[0] < 1
    part = error.value.partial
    draws = part.runs[0].test.shape[1]
    assert (
        1 < draws < 2000
        and f"stopped after {draws} of 2000 draws" in str(part)
        and "i.i.d." in str(part)
    )
    assert all(np.isfinite(run.test).all() and run.test.shape[1] == draws for run in part.runs)


@pytest.mark.parametrize(
    "name",
    ["fit", "nested", "interval", "influence", "cross_validate", "cross_val_predict", "search"],
)
def test_ctrl_c_says_that_the_next_call_goes_on(name, file, monkeypatch):
    add, last = _checkpoint.Journal.add, []

    def stopping(self, told):
        add(self, told)
        last.append(1)
        if len(last) == 2:
            raise KeyboardInterrupt

    caller = {"search": "OneFitSearchCV"}.get(name, name)
    with monkeypatch.context() as patch:
        patch.setattr(_checkpoint.Journal, "add", stopping)
        with pytest.raises(
            lo.validation.Interrupted,
            match=f"{caller}: stopped.*With checkpoint=FILE the next such call goes on",
        ) as stop:
            LONG[name](checkpoint=file)
    assert stop.value.partial is None and "partial" not in str(stop.value) and cut(file) == 2
    assert alike(LONG[name](checkpoint=file), LONG[name]())


def test_ctrl_c_while_a_step_is_written_is_no_error(file, monkeypatch):
    begin = zipfile.ZipFile.open

    def stopping(*arguments, **options):
        part = begin(*arguments, **options)
        raise KeyboardInterrupt(part)

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "open", stopping)
        with pytest.raises(lo.validation.Interrupted):
            LONG["cross_validate"](checkpoint=file)
    assert alike(LONG["cross_validate"](checkpoint=file), LONG["cross_validate"]())


def test_a_command_ends_with_what_is_done_and_130(tmp_path):
    rows = "\n".join(f"{x:.4f},{z:.4f},{y:.4f},{k // 4}" for k, (x, z, y) in enumerate(np.c_[X, Y]))
    (tmp_path / "rows.csv").write_text(f"a,b,y,id\n{rows}\n")
    words = "leakage rows.csv --target y --cluster id --precision 0.9 --recall 0.9 --draws 100000 --levels 4"
    code = "from leaveout.extensions.cli import app; app()"
    going = subprocess.Popen(
        [sys.executable, "-c", code, *words.split(), "--checkpoint", "run.ckpt"],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    file = tmp_path / "run.ckpt"
    # some draws are there for good
    while not (file.exists() and file.stat().st_size > 50_000) and going.poll() is None:
        time.sleep(0.05)
    # processor time: others may keep it waiting
    worked, known = psutil.Process(going.pid).cpu_times(), os.times()
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=120)
    ended = os.times()
    spent = (
        ended.children_user + ended.children_system - known.children_user - known.children_system
    )
    assert spent - worked.user - worked.system < 1 and going.returncode == 130
    assert (
        "learner" in out
        and "verdict" in out
        and "of 100000 draws of each fold: this is what these say" in out
    )
    assert (
        "stopped after" in err and "with --checkpoint" in err and len(err.strip().splitlines()) == 1
    )


def test_commands_go_on(tmp_path, monkeypatch):
    rows = "\n".join(f"{x:.4f},{z:.4f},{y:.0f}" for x, z, y in np.c_[X, Y])
    (tmp_path / "rows.csv").write_text(f"a,b,y\n{rows}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_walk, "CAPACITY", 2**8)
    run = lambda words: CliRunner().invoke(app, words.split())
    glm = "glm rows.csv --target y --loss logistic --l2 1 --plan kfold:30"
    plain, first = run(glm), run(f"{glm} --checkpoint run.ckpt")
    with monkeypatch.context() as patch:
        patch.setattr(_walk, "fill_undetermined", None)  # nothing is refitted
        again = run(f"{glm} --checkpoint run.ckpt")
    assert plain.exit_code == 0 and plain.output == first.output == again.output
    other = run(f"{glm.replace('--l2 1', '--l2 2')} --checkpoint run.ckpt")
    assert other.exit_code == 2 and "is of another run: other model or data" in other.output
    for words in (
        "tune rows.csv --target y --loss logistic --plan kfold:30 --trials 5",
        "interval rows.csv rows.csv --target a --features b --l2 1",
        "influence rows.csv --target y --loss logistic --l2 1 --plan kfold:30 --pairs 4",
    ):
        name = words.split()[0]
        plain, first = run(words), run(f"{words} --checkpoint {name}.ckpt")
        with monkeypatch.context() as patch:
            patch.setattr(_checkpoint.Journal, "add", None)
            again = run(f"{words} --checkpoint {name}.ckpt")
        assert plain.exit_code == 0 and plain.output == first.output == again.output
        other = run(f"{words} --refit exact --checkpoint {name}.ckpt")
        assert other.exit_code == 2 and "is of another run: other" in other.output
    both = "compare rows.csv --target y --loss logistic --model l2=1 --model l2=2 --plan kfold:30 --checkpoint both.ckpt"
    assert run(both).output == run(both).output and (tmp_path / "both-2.ckpt").exists()

    def stopped(*words, **more):
        raise lo.validation.Interrupted("cross_validate: stopped after 3", lambda: part)

    part = lo.cross_validate(logistic(), PLAN)
    monkeypatch.setattr(lo, "cross_validate", stopped)
    ended = run(glm)
    assert ended.exit_code == 130 and str(part) in ended.output
    assert "Error: cross_validate: stopped after 3; with --checkpoint FILE" in ended.output
