"""Joblib's workers make the numbers of one process, however many there are, and whatever happens to
one of them.
"""

import os
import pickle
import signal
import threading
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import leaveout as lo
from leaveout._runtime import parallel as _workers
from leaveout.validation import batches as _walk

N = 300
rng = np.random.default_rng(0)
X = rng.standard_normal((N, 3))
Y = (X[:, 0] + rng.standard_normal(N) > 0) * 1.0
FIT = lo.fit(lo.GLM(X, Y, "logistic", lo.penalties.Ridge(1.0)))
PLAN = lo.kfold(N, 60, rng=0)
HERE = os.getpid()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Many batches, which are sent after the first."""
    monkeypatch.setattr(_walk, "CAPACITY", 2**10)
    monkeypatch.setattr(_workers, "STARTING", 0.0)
    monkeypatch.setattr(_workers, "PORTION", 0.0)


@pytest.fixture
def two():
    """Two processes."""
    with joblib.parallel_config("loky", n_jobs=2):
        yield


def squared(held, seen, parameters):
    """A loss of one's own."""
    return (
        Y[held] - 1 / (1 + np.exp(-(X[held] @ parameters["coef"] + parameters["intercept"])))
    ) ** 2


class Dies:
    """A loss that takes its process along when it is first asked for in another one.

    Or whenever it is.
    """

    def __init__(self, file: Path | None):
        self.file, self.here = file, os.getpid()

    def __call__(self, held, seen, parameters):
        if os.getpid() != self.here and (self.file is None or not self.file.exists()):
            if self.file is not None:
                self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return squared(held, seen, parameters)


def values(found) -> list:
    """All numbers of a result."""
    if isinstance(found, lo.Estimate):
        audit = [] if found.audit is None else [found.audit.drop(columns="reason").to_numpy(float)]
        metrics = found.metrics[["value", "error"]].to_numpy()[2:].ravel()
        return [
            found.losses,
            found.error,
            found.result,
            found.proved,
            found.baseline,
            metrics,
            *audit,
        ]
    if isinstance(found, dict):
        return [part for name, part in found.items() if "time" not in name]
    return [found]


def same(one, other):
    for a, b in zip(values(one), values(other), strict=True):
        np.testing.assert_array_equal(a, b)


def minima(model, **more):
    """Of a fit from four starts."""
    found = lo.fit(model, num_starts=4, **more).minima
    return np.r_[found.value, found.theta.ravel(), found.reached]


VERBS = {
    "starts": lambda: minima(lo.GLM(X, Y, lo.losses.Binomial("cauchit"))),
    "starts of what JAX derives": lambda: minima(network().objective, rng=1),
    "losses": lambda: lo.cross_validate(FIT, PLAN, metric=("mse", "brier")),
    "a loss of one's own": lambda: lo.cross_validate(FIT, PLAN, strategy=lo.NewtonStep(), evaluate=squared),
    "predictions": lambda: lo.cross_predict(FIT, PLAN),
    "parameters": lambda: lo.fold_parameters(FIT, PLAN, strategy=lo.Exact())["coef"],
    "a tuned penalty": lambda: lo.tune(
        lambda a: FIT.objective.under(lo.penalties.Ridge(a)),
        {"a": (0.1, 10.0)},
        PLAN,
        strategy=lo.Certified(),
        sampler="optuna",
        num_trials=3,
    ).trials.to_numpy(),
    "a path": lambda: lo.path(FIT.objective, [0.1, 1.0], PLAN).table().to_numpy(),
    "nested": lambda: np.array([lo.validation.nested(FIT, num_folds=4, num_repeats=2).high]),
    "leakage": lambda: lo.leakage.leakage_corrected(
        LogisticRegression(), X, Y, groups=np.arange(N) // 3, leakage=lo.leakage.RecordLeakage(0.05), loss="brier",
        injection=lo.leakage.Injection(num_levels=4, num_boot=20),
    ).table().to_numpy(),
}  # fmt: skip


SLOW = ("starts of what JAX derives", "a tuned penalty", "a path", "nested", "leakage")


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=pytest.mark.slow if verb in SLOW else ()) for verb in VERBS]
)
@pytest.mark.slow_for("starts")
def test_two_make_the_numbers_of_one(verb, monkeypatch):
    alone, sent, elsewhere = VERBS[verb](), [], _workers._by_workers
    monkeypatch.setattr(
        _workers, "_by_workers", lambda *given: sent.append(given) or elsewhere(*given)
    )
    assert not sent
    with joblib.parallel_config("loky", n_jobs=2):
        same(VERBS[verb](), alone)
    assert sent


def test_as_three_do_and_threads():
    alone = VERBS["losses"]()
    for backend, jobs in (("loky", 3), ("threading", 3), ("loky", 1)):
        with joblib.parallel_config(backend, n_jobs=jobs):
            same(VERBS["losses"](), alone)


def test_a_killed_worker_changes_nothing(two, tmp_path):
    file = tmp_path / "killed"
    call = lambda dies: lo.cross_validate(
        FIT, PLAN, strategy=lo.NewtonStep(), evaluate=dies, audit=3
    )
    found = call(Dies(file))
    assert file.exists()
    same(found, lo.cross_validate(FIT, PLAN, strategy=lo.NewtonStep(), evaluate=squared, audit=3))


@pytest.mark.slow
def test_workers_that_die_again_and_again_are_told_of(two, tmp_path, monkeypatch):
    """And what was done before is kept."""
    monkeypatch.setattr(_workers, "MAX_WORKER_DEATHS", 2)
    with pytest.raises(RuntimeError, match="ended 2 times with nothing made"):
        lo.cross_validate(
            FIT, PLAN, strategy=lo.NewtonStep(), evaluate=Dies(None), checkpoint=tmp_path / "run"
        )


# loky's own, of workers that were let go
@pytest.mark.filterwarnings("ignore:Exception in thread ExecutorManagerThread")
def test_errors_and_warnings_come_back(two):
    def says(held, seen, parameters):
        if os.getpid() != HERE:
            warnings.warn("from afar", stacklevel=1)
        return squared(held, seen, parameters)

    def fails(held, seen, parameters):
        if os.getpid() != HERE:
            raise ZeroDivisionError("in a loss")
        return squared(held, seen, parameters)

    with pytest.warns(UserWarning, match="from afar"):
        lo.cross_validate(FIT, PLAN, strategy=lo.NewtonStep(), evaluate=says, audit=0)
    with pytest.raises(ZeroDivisionError, match="in a loss") as raised:
        lo.cross_validate(FIT, PLAN, strategy=lo.NewtonStep(), evaluate=fails, audit=0)
    assert "in fails" in raised.value.__notes__[0]
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be sent to them .* no lock"):
        lo.cross_validate(
            FIT,
            PLAN,
            strategy=lo.NewtonStep(),
            evaluate=lambda *given: squared(*given) if lock else 0.0,
            audit=0,
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception in thread ExecutorManagerThread")
def test_a_stopped_run_goes_on_with_others(tmp_path):
    """By other workers, to the same numbers."""
    file, flag, here = tmp_path / "run", tmp_path / "flag", os.getpid()

    def stopped(held, seen, parameters):
        """The first refit of a worker: Ctrl-C. The caller's refits wait until workers are there."""
        if parameters["coef"].tolist() == known or flag.exists():
            return squared(held, seen, parameters)
        if os.getpid() == here:
            time.sleep(0.2)
        else:
            flag.touch()
            os.kill(here, signal.SIGINT)
            time.sleep(10)
        return squared(held, seen, parameters)

    known = FIT.parameters["coef"].tolist()
    call = lambda **more: lo.cross_validate(
        FIT, PLAN, strategy=lo.NewtonStep(), evaluate=stopped, **more
    )
    with (
        joblib.parallel_config("loky", n_jobs=2),
        pytest.raises(lo.validation.Interrupted, match="stopped after") as stop,
    ):
        call(checkpoint=file)
    made = stop.value.partial.result != lo.RESULTS.interrupted
    assert 0 < made.sum() < 60
    with joblib.parallel_config("loky", n_jobs=3):
        found = call(checkpoint=file)
    same(found, call())
    assert np.array_equal(stop.value.partial.error[made], found.error[made])


def test_what_is_sent():
    """Once where it comes twice, a fit once for all that is made of it.

    An error that no pickle takes by what it says.
    """
    array = np.arange(2e5).reshape(-1, 2)
    sent = pickle.loads(pickle.dumps(_workers._Parcel(lambda k: (array, array[0].sum() + k))))
    assert sent.load() is sent.load() and sent.load()(1)[1] == 2
    assert sum(part.nbytes for part in sent.arrays) < 2 * array.nbytes and len(sent.code) < 2**12
    one, other = (_workers._Parcel(lambda k=k: (k, FIT)).load()() for k in (1, 2))
    assert one[1] is other[1] and one[1] is not FIT and np.array_equal(one[1].vector, FIT.vector)
    assert type(_workers._portable(_Stubborn(1, 2))) is RuntimeError and _workers.workers(1) == 1


class _Stubborn(Exception):
    """Not even by what Dask's workers teach pickle about errors."""

    def __init__(self, one, other):
        super().__init__("so")
        self.lock = threading.Lock()


def test_memory_maps_go_by_their_names(tmp_path):
    rng.standard_normal((1000, 4)).tofile(tmp_path / "rows")
    rows = np.memmap(tmp_path / "rows", float, "r", shape=(1000, 4))
    sent = _workers._Parcel(lambda: rows[10:20])
    assert len(sent.code) < 2**12 and not sent.arrays
    back = sent.load()()
    assert isinstance(back, np.memmap) and np.array_equal(back, rows[10:20])


def network():
    """A model that JAX derives, of functions of one's own."""
    import jax.numpy as jnp

    loss = lambda theta, datum: (
        0.5 * (datum[3] - jnp.tanh(datum[:3] @ theta["in"]) @ theta["out"]) ** 2
    )
    penalty = lambda theta: 0.5 * (jnp.sum(theta["in"] ** 2) + jnp.sum(theta["out"] ** 2))
    start = {"in": np.linspace(-0.5, 0.5, 12).reshape(3, 4), "out": np.ones(4)}
    return lo.fit(lo.Separable(loss, np.c_[X, np.sin(X[:, 0])], penalty, start), num_starts=1)


@pytest.mark.slow
def test_what_jax_derives_is_compiled_there(two):
    fit = network()
    alone = lo.cross_validate(fit, PLAN)
    same(lo.cross_validate(fit, PLAN), alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's own
def test_a_cluster_of_which_a_worker_is_killed(tmp_path):
    from distributed import Client, LocalCluster

    fit, file = network(), tmp_path / "killed"
    alone, own = (
        lo.cross_validate(fit, PLAN),
        lo.cross_validate(FIT, PLAN, strategy=lo.NewtonStep(), evaluate=squared),
    )
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        pids = set(client.run(os.getpid).values())
        with joblib.parallel_config("dask"):
            same(lo.cross_validate(fit, PLAN), alone)
            same(lo.cross_validate(FIT, PLAN, strategy=lo.NewtonStep(), evaluate=Dies(file)), own)
        assert file.exists() and set(client.run(os.getpid).values()) != pids


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception in thread ExecutorManagerThread")
def test_a_scan_of_which_a_worker_is_killed(two, tmp_path):
    """At some moment of several scans."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = pd.DataFrame(rng.standard_normal((40_000, 4)), columns=list("abcd"))
    frame = frame.assign(y=(rng.random(len(frame)) < 0.5) * 1)
    write = lambda name: pq.write_table(
        pa.Table.from_pandas(frame, preserve_index=False), tmp_path / name, row_group_size=1000
    )
    run = lambda name="rows.parquet": lo.scan(
        tmp_path / name, "y", "logistic", lo.penalties.Ridge(1.0)
    )
    write("rows.parquet")
    with joblib.parallel_config("sequential"):
        alone = run()
    pids = set(joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(20)))
    killer = threading.Timer(0.3, os.kill, (max(pids), signal.SIGKILL))
    killer.start()
    while killer.is_alive():
        found = run()
        assert np.array_equal(found.losses, alone.losses) and found.mean == alone.mean
    assert np.array_equal(run().losses, alone.losses)
    assert max(pids) not in joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(20))
    frame.loc[23_456, "c"] = np.nan
    write("missing.parquet")
    with pytest.raises(ValueError, match=r"'c' is nan in row 23456 \(row 456 of batch 23 of 40"):
        run("missing.parquet")
