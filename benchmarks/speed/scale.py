"""Many rows, columns and targets: time, memory and errors where no matrix of the parameters can be
formed.

    taskset -c 0 python benchmarks/speed/scale.py [sparse folds targets rows cluster parts
    features million] [--quick]

sparse
rows with few entries, each left out, against scikit-learn's fit and SciPy's refits of its objective
folds       folds of many such rows against refits from nothing
targets     banded ridge regression of many targets: `lo.tune` against himalaya's random search
rows
leave-one-out against the number of rows, from Parquet files, from a memory map, in memory
cluster     a scan and refits by workers of Dask and loky, against one process
parts       refits by one and by two tasks of a scheduler, merged, and by workers of loky
features
a CRF on the indicators of experiments/crf_features.py (WNUT 2017, in `LEAVEOUT_DATA`) against
sklearn-crfsuite million
a model of a million parameters whose curvature is a diagonal and forty products, as one writes it
in JAX

Each contestant runs in a process of its own and reports its processor time and its peak memory,
imports included. scikit-learn's fit is at its own tolerance; exact refits are of its objective by
SciPy, down to gradients of 1e-8.

The rows of `targets` stand in six runs, its columns in five bands. The targets' explained variance
(2 to 50 %) falls to the bands in shares of their own, and as many rows again stay unseen. Both
sides choose penalties for each target by the squared error of the held-out runs, himalaya among 20
directions of its Dirichlet prior by 20 scales.
"""

import contextlib
import functools
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import scipy
from common import main, resident, show
from distributed import Client, LocalCluster
from sklearn.linear_model import LogisticRegression

import leaveout as lo

SIZES = {False: (20_000, 100_000, 1e-3), True: (2_000, 13_000, 8e-3)}
ROWS, FOLDS = 50, 5  # rows that are refitted exactly; folds
ALPHA = 1.0
COLUMNS, GROUP = 50, 200_000  # of very many rows; rows of a file
# rows that are taken into memory too; MiB that no scan of files may take
LARGEST, CEILING = 1_000_000, 2000


def data(quick: bool) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """A hundred entries a row, one column in ten that matters, labels of which noise decides one in
    five.
    """
    (n, p, density), rng = SIZES[quick], np.random.default_rng(0)
    X = scipy.sparse.random_array(
        (n, p), density=density, rng=rng, format="csr", data_sampler=rng.standard_normal
    )
    eta = X @ (rng.standard_normal(p) * (rng.random(p) < 0.1))
    return X, (rng.random(n) < 1 / (1 + np.exp(-2 * eta / eta.std()))).astype(float)


def theirs(quick: bool) -> dict[str, Any]:
    """scikit-learn's fit."""
    X, y = data(quick)
    start = time.process_time()
    LogisticRegression(C=1 / ALPHA, max_iter=1000).fit(X, y)
    return {"seconds": time.process_time() - start}


def fitted(quick: bool) -> tuple[lo.Fit, float]:
    """Ours, and its seconds."""
    X, y = data(quick)
    start = time.process_time()
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(ALPHA)))
    return fit, time.process_time() - start


def ours(quick: bool) -> dict[str, Any]:
    """A fit, and every row left out by itself."""
    fit, first = fitted(quick)
    start = time.process_time()
    found = lo.cross_validate(fit, lo.leave_one_out())
    told = {
        "fit": first,
        "seconds": time.process_time() - start,
        "mean": found.mean,
        "se": found.se,
    }
    return told | {
        "off": found.approximation_error,
        "losses": found.losses,
        "error": found.error,
        "printed": str(found),
    }


def folds(quick: bool) -> dict[str, Any]:
    """A fit, and folds of many rows."""
    fit, first = fitted(quick)
    start, _n = time.process_time(), fit.objective.num_units
    found = lo.cross_validate(fit, lo.kfold(k=FOLDS), audit=0)
    return {
        "fit": first,
        "seconds": time.process_time() - start,
        "losses": found.losses,
        "error": found.error,
    }


def _refit(X: Any, y: np.ndarray, out: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The held-out losses of the minimiser of scikit-learn's objective without some rows, by its
    gradients alone.
    """
    seen = np.delete(np.arange(len(y)), out)
    rows, target = X[seen], y[seen]

    def look(theta: np.ndarray) -> tuple[float, np.ndarray]:
        eta = rows @ theta[:-1] + theta[-1]
        left = scipy.special.expit(eta) - target
        value = np.sum(np.logaddexp(0, eta) - target * eta) + 0.5 * ALPHA * theta[:-1] @ theta[:-1]
        return value, np.append(rows.T @ left + ALPHA * theta[:-1], left.sum())

    options = {"gtol": 1e-8, "ftol": 0.0, "maxiter": 5000, "maxcor": 30}
    theta = scipy.optimize.minimize(look, start, jac=True, method="L-BFGS-B", options=options).x
    eta = X[out] @ theta[:-1] + theta[-1]
    return np.logaddexp(0, eta) - y[out] * eta


def exact(quick: bool) -> dict[str, Any]:
    """Some rows, left out one by one."""
    X, y = data(quick)
    host = LogisticRegression(C=1 / ALPHA, max_iter=1000, tol=1e-6).fit(X, y)
    start = np.append(host.coef_[0], host.intercept_)
    rows = np.random.default_rng(7).choice(len(y), ROWS, replace=False)
    began = time.process_time()
    losses = np.array([_refit(X, y, rows[[k]], start)[0] for k in range(ROWS)])
    return {"seconds": time.process_time() - began, "rows": rows, "losses": losses}


def exact_folds(quick: bool) -> dict[str, Any]:
    """Folds of many rows, each refitted."""
    X, y = data(quick)
    start, plan, losses = np.zeros(X.shape[1] + 1), lo.kfold(len(y), FOLDS, rng=0), []
    began = time.process_time()
    for k in range(FOLDS):
        losses.append(_refit(X, y, plan.index[plan.indptr[k] : plan.indptr[k + 1]], start))
    return {"seconds": time.process_time() - began, "losses": np.concatenate(losses)}


def _told(run: Callable, size: Any, pipe: Any) -> None:
    found = run(size)
    pipe.send(found | {"GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9})


def alone(run: Callable, size: Any) -> dict[str, Any]:
    """What a contestant tells from a process of its own, of its size.

    Quick or not, or a number of rows.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_told, args=(run, size, there))
    process.start()
    found = here.recv()
    process.join()
    return found


def sparse(quick: bool) -> None:
    """Leave-one-out against scikit-learn's fit, and against refits of its objective."""
    n, p, density = SIZES[quick]
    peer, mine, refits = alone(theirs, quick), alone(ours, quick), alone(exact, quick)
    off, error = (
        np.abs(mine["losses"][refits["rows"]] - refits["losses"]),
        mine["error"][refits["rows"]],
    )
    print(f"\n{mine['printed']}")
    rows = [
        {"what": "scikit-learn's fit", "seconds": peer["seconds"], "GB": peer["GB"]},
        {
            "what": "our fit",
            "seconds": mine["fit"],
            "fits of theirs": mine["fit"] / peer["seconds"],
        },
        {
            "what": "leave-one-out",
            "seconds": mine["seconds"],
            "fits of theirs": mine["seconds"] / peer["seconds"],
        },
        {
            "what": "both",
            "seconds": mine["fit"] + mine["seconds"],
            "GB": mine["GB"],
            "target": 20.0,
        },
        {
            "what": f"{ROWS} refits",
            "seconds": refits["seconds"],
            "fits of theirs": refits["seconds"] / peer["seconds"],
        },
    ]
    rows[3]["fits of theirs"] = rows[3]["seconds"] / peer["seconds"]
    show(f"sparse: logistic, {n} x {p}, density {density:g}, processor time", rows)
    told = {
        "mean": mine["mean"],
        "se": mine["se"],
        "± / SE": mine["off"] / mine["se"],
        "target": 0.1,
    }
    told |= {
        "within their error": f"{np.sum(off <= error)} of {ROWS}",
        "largest off": off.max(),
        "its median": np.median(off),
    }
    signed = mine["losses"][refits["rows"]] - refits["losses"]
    told |= {"mean of these off, in SE of it": signed.mean() / (signed.std() / np.sqrt(ROWS))}
    show("sparse: errors", [told])


def grouped(quick: bool) -> None:
    """Folds of many rows against refits from nothing."""
    n, p, density = SIZES[quick]
    mine, refits = alone(folds, quick), alone(exact_folds, quick)
    off = np.abs(mine["losses"] - refits["losses"])
    row = {
        "our fit": mine["fit"],
        "ours": mine["seconds"],
        "refits": refits["seconds"],
        "GB": mine["GB"],
    }
    row |= {
        "largest off": off.max(),
        "reported, a fold": mine["error"].max(),
        "losses a fold": n // FOLDS,
    }
    show(f"folds: {FOLDS} of {n} x {p}, density {density:g}, processor time", [row])


def written(n: int) -> Path:
    """Parquet files of so many rows of 50 columns in float32, row groups of 200,000, and the same
    as one file of rows.
    """
    folder = Path(tempfile.gettempdir()) / f"leaveout-rows-{n}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng, beta = np.random.default_rng(0), np.random.default_rng(1).standard_normal(COLUMNS) * 0.3
    names = [f"x{j}" for j in range(COLUMNS)]
    with (folder / "rows.f32").open("wb") as rows, (folder / "y.f32").open("wb") as target:
        for k, start in enumerate(range(0, n, GROUP)):
            x = rng.standard_normal((min(GROUP, n - start), COLUMNS), np.float32)
            y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ beta))).astype(np.float32)
            x.tofile(rows), y.tofile(target)
            table = pa.table([*x.T, y.astype(np.int8)], names=[*names, "y"])
            pq.write_table(table, folder / f"{k:05d}.parquet", compression="zstd")
    (folder / "done").touch()
    return folder


def _scanned(make: Callable[[Path, int], tuple], n: int) -> dict[str, Any]:
    """Seconds, processor's and by the clock, memory beyond what files have in it, and what came."""
    data, target, more = make(written(n), n)
    before, start, clock = resident("RssAnon"), time.process_time(), time.perf_counter()
    with _peak() as peak:
        found = lo.scan(data, target, "logistic", lo.penalties.Ridge(ALPHA), **more)
    seconds, wall = time.process_time() - start, time.perf_counter() - clock
    told = {
        "seconds": seconds,
        "clock": wall,
        "MiB": (peak() - before) / 2**20,
        "in all, MiB": peak() / 2**20,
    }
    told |= {
        "passes": found.passes,
        "mean": found.mean,
        "±": found.approximation_error,
        "se": found.se,
    }
    return told | {"beyond": int(found.audit.beyond.sum()), "lost": found.lost}


@contextlib.contextmanager
def _peak() -> Iterator[Callable[[], int]]:
    """The most memory of its own that this process had meanwhile, looked at every hundredth of a
    second.
    """
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            most[0] = max(most[0], resident("RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    yield lambda: most[0]
    stop.set()
    thread.join()


def _parquet(folder: Path, n: int) -> tuple:
    return str(folder / "*.parquet"), "y", {"out": folder / "losses"}


def _map(folder: Path, n: int) -> tuple:
    mapped = lambda name, shape: np.memmap(folder / name, np.float32, "r", shape=shape)
    return (
        mapped("rows.f32", (n, COLUMNS)),
        mapped("y.f32", (n,)),
        {"out": folder / "losses of the map"},
    )


def _memory(folder: Path, n: int) -> tuple:
    x, y, _ = _map(folder, n)
    return np.array(x, float), np.array(y, float), {}


KINDS = {"Parquet": _parquet, "memory map": _map, "in memory": _memory}


def rows(quick: bool) -> None:
    """Time and memory against the number of rows."""
    table = []
    for n in (20_000, 200_000) if quick else (100_000, 1_000_000, 10_000_000):
        for kind, make in KINDS.items():
            if kind == "in memory" and n > LARGEST:
                continue
            told = alone(functools.partial(_scanned, make), n)
            assert told["in all, MiB"] < CEILING or kind == "in memory", told
            table.append({"rows": n, "data": kind, "us a row": 1e6 * told["seconds"] / n} | told)
    show(f"rows: leave-one-out of a logistic regression of {COLUMNS} columns", table)
    for kind in ("Parquet", "memory map"):
        some = [line for line in table if line["data"] == kind]
        slope = np.polyfit(
            *(np.log([line[name] for line in some]) for name in ("rows", "seconds")), 1
        )[0]
        print(f"{kind}: seconds grow with rows to the power of {slope:.3f}")


def _scan(n: int) -> Any:
    """By whoever is at work here."""
    return lo.scan(str(written(n) / "*.parquet"), "y", "logistic", lo.penalties.Ridge(ALPHA))


def _timed(run: Callable[[], Any], client: Client | None = None) -> tuple[Any, dict[str, float]]:
    """What it returns; the seconds that passed, those of the processor here, of a cluster's workers
    and the busiest of them.
    """
    seconds = lambda: [*client.run(time.process_time).values()] if client is not None else [0.0]
    clock, here, there = time.perf_counter(), time.process_time(), seconds()
    found = run()
    told = {"clock": time.perf_counter() - clock, "here": time.process_time() - here}
    each = [max(own, 0.0) for own in np.subtract(seconds(), there)]
    return found, told | {
        "all workers": sum(each),
        "busiest": max(each),
        "at rest": told["here"] + max(each),
    }


def _killed(after: float, pid: int) -> threading.Timer:
    """A process that is killed after so many seconds."""
    timer = threading.Timer(after, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


def _network(n: int, folds: int) -> tuple[lo.Fit, lo.Plan]:
    """A model of one's own, and its refits."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    loss = lambda theta, datum: (
        0.5 * (datum[5] - jnp.tanh(datum[:5] @ theta["in"]) @ theta["out"]) ** 2
    )
    penalty = lambda theta: 0.5 * (jnp.sum(theta["in"] ** 2) + jnp.sum(theta["out"] ** 2))
    start = {"in": 0.3 * rng.standard_normal((5, 8)), "out": np.ones(8)}
    data = np.c_[X, np.sin(X[:, 0]) + X[:, 1] ** 2 + 0.3 * rng.standard_normal(n)]
    return lo.fit(lo.Separable(loss, data, penalty, start), num_starts=1), lo.kfold(n, folds, rng=0)


def _compared(
    run: Callable[[], Any], context: Callable[[], Any], counts: tuple[int, ...]
) -> list[dict[str, Any]]:
    """A call by so many workers of Dask's, by two of which one is killed on the way, and by those
    of loky.
    """
    alone_, rows = run(), list[dict[str, Any]]()

    def add(by: str, client: Client | None = None) -> None:
        found, told = _timed(run, client)
        off = max(np.nanmax(np.abs(found.losses - alone_.losses)), abs(found.mean - alone_.mean))
        rows.append({"by": by} | told | {"largest difference": off, "target": 1e-10})

    add("this process")
    for count in counts:
        cluster_ = LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None)
        with cluster_, Client(cluster_) as client, context():
            run()  # imports, compiles
            add(f"Dask, {count} worker{'s' if count > 1 else ''}", client)
            if count == 2:
                pids = client.run(os.getpid)
                timer = _killed(rows[-1]["clock"] / 2, next(iter(pids.values())))
                add("Dask, one of 2 killed")
                timer.join()
                assert set(client.run(os.getpid).values()) != set(pids.values())
    with joblib.parallel_config("loky", n_jobs=2):
        run()
        add("loky, 2 workers")
    return rows


def cluster(quick: bool) -> None:
    """The same numbers whoever makes them: of a scan, and of refits. `at rest` are the processor
    seconds here and those of the busiest worker, one after the other."""
    n, folds = (400_000, 200) if quick else (2_000_000, 1_000)
    show(
        f"cluster: a scan of {n} rows of {COLUMNS} columns",
        _compared(lambda: _scan(n), contextlib.nullcontext, (1, 2)),
    )
    fit, plan = _network(4_000, folds)
    run = lambda: lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0)
    show(
        f"cluster: {folds} refits of a model of one's own",
        _compared(run, lambda: joblib.parallel_config("dask"), (2,)),
    )


GROWN = {False: (400_000, 40, 400), True: (20_000, 10, 40)}  # rows, columns, folds


def _regression(quick: bool) -> tuple[lo.Fit, lo.Plan]:
    """Folds of which each takes steps of its own."""
    n, p, folds = GROWN[quick]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    y = (rng.random(n) < scipy.special.expit(X[:, 0])) * 1.0
    model = lo.GLM(X, y, "logistic", lo.penalties.Ridge(ALPHA))
    return lo.fit(model), lo.random_subsets(n, 0.2, folds, rng=0)


def _chain(quick: bool) -> tuple[lo.Fit, lo.Plan]:
    """A hidden Markov model, and sets of its steps."""
    n, _, folds = GROWN[quick]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n // 20) + 3 * (rng.random(n // 20) < 0.5)
    fit = lo.fit(lo.HMM(x, lo.emissions.Gaussian(), 2), num_starts=1)
    return fit, lo.random_subsets(len(x), 0.2, folds // 4, rng=0)


MODELS = {"logistic regression": _regression, "hidden Markov model": _chain}


def _part(kind: str, quick: bool, k: int, count: int, file: str, times: Any) -> None:
    """Make a part in a process of its own, and tell how long the fit and the part took."""
    start = time.perf_counter()
    fit, plan = MODELS[kind](quick)
    fitted = time.perf_counter()
    lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0, part=(k, count), checkpoint=file)
    times.put((fitted - start, time.perf_counter() - fitted))


def parts(quick: bool) -> None:
    """One task against two at once, as of a scheduler, and against joblib's two workers.

    The clock counts everything: imports, data, fit, refits.
    """
    context = multiprocessing.get_context("spawn")
    for kind, make in MODELS.items():
        rows = list[dict[str, Any]]()
        fit, plan = make(quick)
        # imports, compiles
        lo.cross_validate(fit, plan.some([0, 1]), strategy=lo.Exact(), audit=0)
        start = time.perf_counter()
        whole = lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0)
        rows.append({"by": "one call", "refits, s": time.perf_counter() - start})
        with joblib.parallel_config("loky", n_jobs=2):
            lo.cross_validate(fit, plan.some([0, 1]), strategy=lo.Exact(), audit=0)
            start = time.perf_counter()
            lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0)
            rows.append({"by": "loky, 2 workers", "refits, s": time.perf_counter() - start})
        for count in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                files = [f"{folder}/{k}.ckpt" for k in range(count)]
                times = context.Queue()
                start = time.perf_counter()
                tasks = [
                    context.Process(target=_part, args=(kind, quick, k, count, file, times))
                    for k, file in enumerate(files)
                ]
                for task in tasks:
                    task.start()
                seconds = [times.get() for _ in tasks]
                for task in tasks:
                    task.join()
                clock = time.perf_counter() - start
                start = time.perf_counter()
                merged = lo.merge(files, fit, plan)  # plans beyond 256 MiB are not in the files
                merging = time.perf_counter() - start
                size = sum(Path(file).stat().st_size for file in files)
            fits, refits = zip(*seconds, strict=True)
            rows.append(
                {
                    "by": f"{count} task{'s' if count > 1 else ''}",
                    "refits, s": max(refits),
                    "fit, s": max(fits),
                    "clock, s": clock,
                    "merge, s": merging,
                    "files, MiB": size / 2**20,
                    "largest difference": np.nanmax(np.abs(merged.losses - whole.losses)),
                }
            )
        show(f"parts: {plan.num_refits} refits of a {kind}", rows)


INDICATORS = {False: (None, 5_000), True: (400, 800)}  # sentences, indicators
LEFT, TENTH = {False: 20, True: 10}, 10  # sentences left out by themselves; folds
C2 = 0.5


def corpus(quick: bool) -> tuple[list, list]:
    """Sentences as crfsuite takes them, and their labels."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
    import crf_features as own

    train = lo.datasets.wnut17().train
    sentences, most = INDICATORS[quick]
    rows = own.indicators(train)
    names = pd.Series([name for row in rows for name in row]).value_counts(sort=True).index[:most]
    known = {str(name): k for k, name in enumerate(names)}
    X, y = own.sentences(rows, train.lengths, known), own.cut(train.labels, train.lengths)
    return X[:sentences], y[:sentences]


def crfsuite(X: list, y: list, tight: bool) -> tuple[Any, float]:
    """Its model, and its seconds.

    At its own tolerance, or at a millionth of what F changes by in ten steps.
    """
    import sklearn_crfsuite

    options = {"delta": 1e-8, "epsilon": 1e-6} if tight else {}
    model = sklearn_crfsuite.CRF(
        c1=0.0,
        c2=C2,
        all_possible_transitions=True,
        all_possible_states=True,
        max_iterations=2000,
        **options,
    )
    start = time.process_time()
    model.fit(X, y)
    return model, time.process_time() - start


def features_theirs(quick: bool) -> dict[str, Any]:
    X, y = corpus(quick)
    told = {}
    for name, tight in (("own", False), ("tight", True)):
        model, seconds = crfsuite(X, y, tight)
        last = model.training_log_.last_iteration
        told |= {name: {"seconds": seconds, "F": last["loss"], "steps": last["num"]}}
    return told


def features_ours(quick: bool) -> dict[str, Any]:
    """A fit of the same objective from nothing, twice, as the first one compiles.

    Sentences and folds left out.
    """
    X, y = corpus(quick)
    objective = lo.from_crfsuite(crfsuite(X[:], y, False)[0], X, y).objective
    seconds = []
    for _ in range(2):
        start = time.process_time()
        fit = lo.fit(objective, curvature="products")
        seconds.append(time.process_time() - start)
    n, told = (
        objective.num_units,
        {"first": seconds[0], "fit": seconds[1], "F": float(fit.value), "params": fit.num_params},
    )
    told["n"] = n
    units = np.random.default_rng(0).choice(n, LEFT[quick], replace=False)
    count = len(units)
    single = lo.Plan(np.arange(count + 1), units, np.zeros(count), np.ones(count, bool), n)
    for name, plan in (("sentences", single), ("folds", lo.kfold(n, TENTH, rng=0))):
        start = time.process_time()
        found = lo.cross_validate(fit, plan, audit=1)
        told[name] = {"seconds": time.process_time() - start, "refits": plan.num_refits}
        told[name] |= {
            "off": found.error.max(),
            "se": found.se,
            "flagged": len(found.flagged()),
            "audit": str(found.audit),
        }
    return told


def features(quick: bool) -> None:
    """A CRF on indicators against crfsuite's fit and refits."""
    peer, mine = alone(features_theirs, quick), alone(features_ours, quick)
    rows = [{"what": f"crfsuite, {name} tolerance", **peer[name]} for name in ("own", "tight")]
    rows += [
        {"what": "our first fit, with compiling", "seconds": mine["first"]},
        {"what": "our next fit", "seconds": mine["fit"]},
    ]
    rows[-1] |= {"F": mine["F"]}
    show(
        f"features: {mine['n']} sentences, {mine['params']} weights, processor time; {mine['GB']:.1f} GB",
        rows,
    )
    each = [
        {
            "what": f"{own['refits']} {name}",
            "seconds": own["seconds"],
            "a refit": own["seconds"] / own["refits"],
            "fits of crfsuite's": own["seconds"] / peer["own"]["seconds"],
            "largest ±": own["off"],
            "flagged": own["flagged"],
        }
        for name in ("sentences", "folds")
        for own in (mine[name],)
    ]
    show("features: left out, compiling included, one audited each", each)
    hours = mine["n"] * mine["sentences"]["seconds"] / mine["sentences"]["refits"] / 3600
    print(f"all {mine['n']} sentences, extrapolated: {hours:.2f} hours")
    print(mine["sentences"]["audit"], mine["folds"]["audit"], sep="\n")


MILLION = {False: 1_000_000, True: 50_000}
ACTIVE = 40  # rows, of which a fold drops two


def designed(quick: bool) -> tuple[np.ndarray, np.ndarray]:
    p, rng = MILLION[quick], np.random.default_rng(0)
    X = rng.standard_normal((ACTIVE, p)) / np.sqrt(p)
    return X, X @ rng.standard_normal(p) * 3 + rng.standard_normal(ACTIVE)


def million_ours(quick: bool) -> dict[str, Any]:
    """A user's objective.

    Forty rows of squared hyperbolic cosines beside a penalty on each parameter of its own.
    """
    import jax.numpy as jnp

    X, y = designed(quick)
    own = np.exp(np.linspace(-1, 1, X.shape[1]))
    unit = lambda theta, row: jnp.log(jnp.cosh(row["x"] @ theta - row["y"]))
    penalty = lambda theta: 0.5 * jnp.sum(own * theta**2)
    objective = lo.Separable(unit, {"x": X, "y": y}, penalty=penalty)
    start = time.process_time()
    fit = lo.fit(objective, np.zeros(X.shape[1]))
    first, began = time.process_time() - start, time.process_time()
    found = lo.cross_validate(fit, lo.kfold(k=20), audit=1)
    told = {
        "fit": first,
        "decrement": float(fit.decrement),
        "folds": time.process_time() - began,
        "losses": found.losses,
    }
    return told | {
        "error": found.error,
        "index": lo.kfold(ACTIVE, 20, rng=0).index,
        "audit": str(found.audit),
    }


def million_exact(quick: bool) -> dict[str, Any]:
    """The same refits in closed coordinates.

    The minimiser lies in the span of forty rows, each divided by the penalty.
    """
    X, y = designed(quick)
    own = np.exp(np.linspace(-1, 1, X.shape[1]))
    gram, plan, losses = (X / own) @ X.T, lo.kfold(ACTIVE, 20, rng=0), []
    for k in range(20):
        held = plan.index[plan.indptr[k] : plan.indptr[k + 1]]
        seen = np.setdiff1d(np.arange(ACTIVE), held)
        inner, target = gram[np.ix_(seen, seen)], y[seen]
        residual = lambda a, inner=inner, target=target: a + np.tanh(inner @ a - target)
        a = scipy.optimize.fsolve(residual, np.zeros(len(seen)), xtol=1e-13)
        losses.append(np.log(np.cosh(gram[np.ix_(held, seen)] @ a - y[held])))
    return {"losses": np.concatenate(losses)}


def million(quick: bool) -> None:
    """A user's objective of a million parameters."""
    mine, exact = alone(million_ours, quick), alone(million_exact, quick)
    off = np.abs(mine["losses"] - exact["losses"]).reshape(20, -1).sum(1)
    row = {
        "fit": mine["fit"],
        "decrement": mine["decrement"],
        "20 folds": mine["folds"],
        "GB": mine["GB"],
    }
    row |= {
        "largest off": off.max(),
        "largest ±": mine["error"].max(),
        "within": f"{np.sum(off <= mine['error'])} of 20",
    }
    show(f"million: {MILLION[quick]} parameters, {ACTIVE} units, processor time", [row])
    print(mine["audit"])


TARGET_SIZES = {False: (10_000, 600), True: (500, 120)}  # targets, rows
RUNS, BANDS, BAND_COLUMNS, ROUNDS = 6, 5, 60, 4
SCALES = np.logspace(0, 6, 20)


def banded_problem(targets: int, n: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    parts = [
        rng.standard_normal((2 * n, BAND_COLUMNS)) * np.linspace(1.5, 0.3, BAND_COLUMNS)
        for _ in range(BANDS)
    ]
    share = rng.dirichlet(np.full(BANDS, 0.5), targets) * rng.uniform(0.02, 0.5, (targets, 1))
    signal = [x @ rng.standard_normal((BAND_COLUMNS, targets)) for x in parts]
    y = sum(f / f.std(0) * np.sqrt(share[:, b]) for b, f in enumerate(signal))
    return parts, y + rng.standard_normal(y.shape) * np.sqrt(1 - share.sum(1))


def targets(quick: bool) -> None:
    from himalaya.ridge import GroupRidgeCV
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import PredefinedSplit

    count, n = TARGET_SIZES[quick]
    parts, y = banded_problem(count, n)
    seen, run = [x[:n] for x in parts], np.repeat(np.arange(RUNS), n // RUNS)
    fresh = lambda coef: (
        0.5 * float(np.mean((y[n:] - np.concatenate(parts, axis=1)[n:] @ coef) ** 2))
    )
    start = time.process_time()
    model, ends = (
        lo.tuning.BandedRidge(dict(enumerate(seen)), y[:n], intercept=False),
        (SCALES[0], SCALES[-1]),
    )
    few = lo.tune(model, ends, lo.groups(run), num_trials=ROUNDS)
    soon = time.process_time() - start
    start = time.process_time()
    mine = lo.tune(model, ends, lo.groups(run))
    ours = time.process_time() - start
    print(f"\n{mine}")
    start = time.process_time()
    options = {"n_iter": 20, "alphas": SCALES, "progress_bar": False}
    groups, cv = np.repeat(np.arange(BANDS), BAND_COLUMNS), PredefinedSplit(run)
    peer = GroupRidgeCV(groups=groups, cv=cv, solver_params=options, random_state=0).fit(
        np.concatenate(seen, axis=1), y[:n]
    )
    theirs = time.process_time() - start
    told = lambda what, found, seconds: {
        "what": what,
        "seconds": seconds,
        "held-out loss": found.mean.mean(),
        "fresh": fresh(found.parameters["coef"].T),
        "of its time": seconds / theirs,
        "target": 0.1,
    }
    best = -peer.cv_scores_.max(0).mean() / 2
    rows = [
        {"what": "himalaya", "seconds": theirs, "held-out loss": best, "fresh": fresh(peer.coef_)},
        told(f"lo.tune, {ROUNDS} rounds", few, soon),
        told("lo.tune", mine, ours),
    ]
    show(
        f"targets: {count} targets, {n} rows in {RUNS} runs, {BANDS} bands of {BAND_COLUMNS} columns",
        rows,
    )
    worst, rng = 0.0, np.random.default_rng(1)
    some = rng.choice(count, min(30, count), replace=False)
    for t in some:
        told = np.empty(n)
        for k in range(RUNS):
            scale, keep = np.repeat(mine.alpha[t], BAND_COLUMNS) ** -0.5, run != k
            x = np.concatenate(seen, axis=1) * scale
            host = Ridge(1.0, fit_intercept=False, solver="svd").fit(x[keep], y[:n][keep, t])
            told[~keep] = 0.5 * (y[:n][~keep, t] - host.predict(x[~keep])) ** 2
        worst = max(worst, abs(told.mean() - mine.mean[t]))
    print(
        f"{len(some) * RUNS} refits by scikit-learn's Ridge: mean losses within {worst:.1g}; said {mine.error[some].max():.1g}"
    )


PARTS = {
    "sparse": sparse,
    "folds": grouped,
    "targets": targets,
    "rows": rows,
    "cluster": cluster,
    "parts": parts,
    "features": features,
    "million": million,
}

if __name__ == "__main__":
    main(PARTS, __doc__, quick=False)
