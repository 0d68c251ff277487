"""Rows in batches: fit, losses and proofs are those of all rows in memory, wherever these are and
whoever reads them.
"""

import os
import pickle
import signal
import threading
import time
import tracemalloc

import fsspec
import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import scipy

import leaveout as lo
from leaveout.extensions.out_of_core import (
    batches as _batches,
    pass_runner as _runner,
    passes as _passes,
    row_refits as _iterated,
)

N, P, ALPHA = 900, 4, 0.7
RIDGE = lo.penalties.Ridge(ALPHA)
NAMES = [f"c{j}" for j in range(P)]


BLOCK = _batches.DENSE_BLOCK


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts of 250 rows, read 80 at a time."""
    monkeypatch.setattr(_batches, "PART_ROWS", 250)
    monkeypatch.setattr(_batches, "DENSE_BLOCK", 80 * (P + 1))


def table(loss="logistic", n=N, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_normal((n, P)), columns=NAMES)
    eta = 0.5 * frame.to_numpy() @ rng.standard_normal(P)
    y = {
        "logistic": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
        "squared": eta + rng.standard_normal(n),
        "poisson": rng.poisson(np.exp(eta)),
        "huber": eta + rng.standard_t(2, n),
    }[loss]
    return frame.assign(
        y=y, w=rng.lognormal(size=n) * (rng.random(n) > 0.1), o=0.1 * rng.standard_normal(n)
    )


def parquet(folder, frame, files=3, rows=130):
    for k, some in enumerate(np.array_split(np.arange(len(frame)), files)):
        part = pa.Table.from_pandas(frame.iloc[some], preserve_index=False)
        pq.write_table(part, folder / f"{k}.parquet", row_group_size=rows)
    return str(folder / "*.parquet")


VALUES = {
    "logistic": lambda eta, y: np.logaddexp(0, eta) - y * eta,
    "squared": lambda eta, y: 0.5 * (y - eta) ** 2,
    "poisson": lambda eta, y: np.exp(eta) - y * eta + scipy.special.gammaln(y + 1),
    "huber": lambda eta, y: np.where(
        abs(y - eta) <= 1.345, 0.5 * (y - eta) ** 2, 1.345 * (abs(y - eta) - 1.345 / 2)
    ),
}
SLOPES = {
    "logistic": lambda eta, y: scipy.special.expit(eta) - y,
    "squared": lambda eta, y: eta - y,
    "poisson": lambda eta, y: np.exp(eta) - y,
    "huber": lambda eta, y: np.clip(eta - y, -1.345, 1.345),
}


def refitted(frame, loss, out):
    """The held-out loss of one row, by SciPy from nothing."""
    x, y = np.c_[frame[NAMES], np.ones(len(frame))], frame.y.to_numpy(float)
    w, o = frame.w.to_numpy() * (np.arange(len(y)) != out), frame.o.to_numpy()

    def look(theta):
        eta = x @ theta + o
        ridge = ALPHA * np.append(theta[:-1], 0)
        return w @ VALUES[loss](eta, y) + 0.5 * ridge @ theta, x.T @ (
            w * SLOPES[loss](eta, y)
        ) + ridge

    options = {"gtol": 1e-10, "maxiter": 1000}
    theta = scipy.optimize.minimize(
        look, np.zeros(P + 1), jac=True, method="BFGS", options=options
    ).x
    return VALUES[loss](x[out] @ theta + o[out], y[out])


@pytest.mark.parametrize("loss", list(VALUES))
def test_losses_are_those_of_refits_from_nothing(loss, tmp_path):
    frame = table(loss)
    found = lo.scan(parquet(tmp_path, frame), "y", loss, RIDGE, sample_weight="w", offset="o")
    rows = np.random.default_rng(1).choice(N, 12, replace=False)
    exact = np.array([refitted(frame, loss, row) for row in rows])
    assert (np.abs(found.losses[rows] - exact) <= found.error[rows] + 1e-6).all()
    fit = lo.fit(lo.GLM(frame[NAMES], frame.y, loss, RIDGE, sample_weight=frame.w, offset=frame.o))
    whole = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact())
    # what two decrements leave
    np.testing.assert_allclose(found.parameters["coef"], fit.parameters["coef"], rtol=1e-8)
    np.testing.assert_allclose(found.hessian, fit.hessian, rtol=1e-8, atol=1e-8)
    off = np.abs(found.losses - whole.losses)
    assert (off <= found.error + whole.error + 1e-12).all()
    assert abs(found.mean - whole.mean) <= found.approximation_error + whole.approximation_error
    np.testing.assert_allclose([found.se, found.no_update], [whole.se, whole.no_update], rtol=1e-3)
    assert found.lost == 0 and (loss == "huber" or found.approximation_error <= 0.011 * found.se)
    assert (
        len(found.audit) == 5
        and not found.audit.beyond.any()
        and np.isfinite(found.audit.exact).all()
    )


def kinds(frame, folder):
    """The same rows from everywhere."""
    import dask.array as da
    import dask.dataframe as dd

    name = parquet(folder, frame)
    columns = frame[NAMES].to_numpy()
    columns.tofile(folder / "rows")
    beside = {"sample_weight": frame.w.to_numpy(), "offset": frame.o.to_numpy()}
    named = {"sample_weight": "w", "offset": "o"}
    return {
        "files": (name, "y", named),
        "dataset": (ds.dataset(str(folder), exclude_invalid_files=True), "y", named),
        "map": (
            np.memmap(folder / "rows", float, "r", shape=columns.shape),
            frame.y.to_numpy(),
            beside,
        ),
        "array": (columns, frame.y, beside),
        "frame of Dask": (dd.read_parquet(name), "y", named),
        "array of Dask": (da.from_array(columns, chunks=(170, 2)), frame.y.to_numpy(), beside),
    }


def alike(a, b, tol=1e-10):
    np.testing.assert_allclose(b.losses, a.losses, rtol=tol, atol=tol)
    np.testing.assert_allclose(b.error, a.error, rtol=1e-6, atol=tol)
    np.testing.assert_allclose([b.mean, b.se, b.no_update], [a.mean, a.se, a.no_update], rtol=tol)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Dask's own
def test_wherever_the_rows_are(tmp_path):
    frame = table()
    found = {
        kind: lo.scan(data, y, "logistic", RIDGE, audit=0, **more)
        for kind, (data, y, more) in kinds(frame, tmp_path).items()
    }
    for one in found.values():  # in other parts, so that other rows may be refitted
        assert (
            np.abs(one.losses - found["files"].losses) <= one.error + found["files"].error + 1e-10
        ).all()
        np.testing.assert_allclose(
            [one.mean, one.se, one.no_update],
            [found["files"].mean, found["files"].se, one.no_update],
            1e-5,
        )
    with joblib.parallel_config("threading", n_jobs=2):
        other = lo.scan(
            str(tmp_path / "*.parquet"),
            "y",
            "logistic",
            RIDGE,
            audit=0,
            sample_weight="w",
            offset="o",
        )
    assert np.array_equal(found["files"].losses, other.losses) and found["files"].mean == other.mean


def test_rows_of_a_map_are_opened_by_other_processes(tmp_path):
    """By the name of the file and where they stand in it."""
    np.arange(5000.0).tofile(tmp_path / "rows")
    whole = np.memmap(tmp_path / "rows", float, "r", offset=80, shape=(900, 4))
    for part in _batches.open_parts(whole, np.arange(900.0), None, None, None).parts:
        again = pickle.loads(pickle.dumps(part.rows))
        assert isinstance(again.x, np.memmap) and np.array_equal(again.x, part.rows.x)
        assert again.x[0, 0] == 10 + 4 * part.start


def test_losses_go_to_files(tmp_path):
    frame = table("huber")  # of which one row needs a closer look
    frame.loc[417, NAMES[0]] = 60.0
    name = parquet(tmp_path, frame)
    run = lambda **more: lo.scan(name, "y", "huber", RIDGE, sample_weight="w", offset="o", **more)
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / ".0000003.parquet.77.part").write_bytes(b"by a process that died")
    memory, files = run(rtol=1e-4), run(rtol=1e-4, out=tmp_path / "losses")
    assert len(list((tmp_path / "losses").iterdir())) == 9
    table_ = pq.read_table(tmp_path / "losses").to_pandas()
    assert files.losses is None and len(files.files()) == 9 and (table_.row == np.arange(N)).all()
    for name, own in {
        "loss": memory.losses,
        "error": memory.error,
        "proved": memory.proved,
    }.items():
        assert np.array_equal(table_[name], own), name
    assert files.mean == memory.mean and "losses" in str(files)
    with pytest.raises(ValueError, match="of another scan"):
        lo.scan(
            frame[NAMES].to_numpy(), frame.y.to_numpy(), "huber", RIDGE, out=tmp_path / "losses"
        )


def test_rows_that_little_is_proved_of_are_refitted():
    """A row that carries a coefficient nearly alone."""
    frame = table()
    frame[NAMES[0]] *= 1e-3
    frame.loc[300, NAMES[0]] = 40.0
    x, y = frame[NAMES].to_numpy(), frame.y.to_numpy()
    found = lo.scan(x, y, "logistic", RIDGE)
    exact = refitted(frame.assign(w=1.0, o=0.0), "logistic", 300)
    assert abs(found.losses[300] - exact) <= found.error[300] + 1e-6 and found.error[300] < 1e-6


def test_estimates_count_rounding():
    """Of squared loss the next term is zero.

    Of a response around 10⁹ three digits can be proved.
    """
    frame = table("squared", 40)
    x, y = frame[NAMES].to_numpy(), frame.y.to_numpy()
    found = lo.scan(x, y + 1e9, "squared", RIDGE, audit=0, rtol=1e-5)
    exact = np.empty(40)
    for out in range(40):
        rest = np.arange(40) != out
        mean, z = x[rest].mean(0), x[rest] - x[rest].mean(0)
        coef = np.linalg.solve(z.T @ z + ALPHA * np.eye(P), z.T @ (y[rest] - y[rest].mean()))
        exact[out] = 0.5 * (y[out] - y[rest].mean() - (x[out] - mean) @ coef) ** 2
    assert (abs(found.losses - exact) <= found.error).all() and found.error.max() < 1e-2


def far_out(spread, n=400):
    """Weights over ten orders of magnitude, and a column of 1e7 and a little noise."""
    rng = np.random.default_rng(0)
    x, heavy = rng.standard_normal((n, 3)), 10 ** rng.uniform(-5, 5, n)
    y = (rng.random(n) < scipy.special.expit(0.5 * x[:, 0] + x[:, 1])) * 1.0
    return x * [spread, 1, 1], np.array([1e7, 0, 0]), y, heavy


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_what_rounding_hides_has_no_minimiser_and_few_passes(loss, monkeypatch):
    """Steps by what is left of the Hessian lower F no more, and there is no end of them. In memory
    columns are centred.
    """
    x, center, y, heavy = far_out(0.5)
    x, more = x + center, {"sample_weight": heavy}
    runs, look = [], _runner.PassRunner.evaluate
    monkeypatch.setattr(
        _runner.PassRunner, "evaluate", lambda self, theta: runs.append(self) or look(self, theta)
    )
    with pytest.raises(
        lo.validation.IndefiniteHessianError, match=r"Of x0 the mean is so large .* centre them"
    ):
        lo.scan(x, y, loss, RIDGE, **more)
    assert 0 < runs[0].passes < 50
    found, exact = (
        lo.cross_validate(lo.fit(lo.GLM(z, y, loss, RIDGE, **more)), lo.leave_one_out())
        for z in (x, x - center)
    )
    assert (
        found.proved.all()
        and (np.abs(found.losses - exact.losses) <= found.error + exact.error).all()
    )


def test_the_minimum_of_the_first_block_is_of_the_columns_as_given(monkeypatch):
    """Where it is fitted in other coordinates.

    Columns centred, or fewer rows than columns in their place.
    """
    rng, starts, descend = np.random.default_rng(0), [], _runner.PassRunner._descend
    monkeypatch.setattr(_batches, "DENSE_BLOCK", 2**16)
    monkeypatch.setattr(
        _runner.PassRunner,
        "_descend",
        lambda self, start: starts.append(start) or descend(self, start),
    )
    for x in (rng.normal([1e5, 0.0], 1.0, (60, 2)), rng.standard_normal((60, 500))):
        y = x[:, 1] + rng.standard_normal(60)
        found = lo.scan(x, y, "squared", RIDGE, audit=0)
        exact = lo.cross_validate(
            lo.fit(lo.GLM(x - x.mean(axis=0), y, "squared", RIDGE)), lo.leave_one_out()
        )
        assert (np.abs(found.losses - exact.losses) <= found.error + exact.error).all()
        theta = lo.fit(lo.GLM(x, y, "squared", RIDGE)).parameters
        np.testing.assert_allclose(starts[-1], [*theta["coef"], theta["intercept"]], rtol=1e-6)


def test_beside_rounding_errors_are_what_they_are_said_to_be():
    """The same column, spread enough.

    Against refits in which it is centred, where the minimum is the same.
    """
    x, center, y, heavy = far_out(300.0)
    found = lo.scan(x + center, y, "logistic", RIDGE, sample_weight=heavy)
    fit = lo.fit(lo.GLM(x, y, "logistic", RIDGE, sample_weight=heavy))
    exact = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact())
    assert (
        found.lost == 0
        and (np.abs(found.losses - exact.losses) <= found.error + exact.error + 1e-12).all()
    )
    assert found.passes < 50 and not found.audit.beyond.any()


def test_a_row_that_the_first_block_predicts_absurdly():
    """Where that block has its minimum, F is beyond what Newton's steps come down from."""
    frame = table("poisson", 300)
    frame.loc[299, NAMES] = 60 * np.sign(frame[NAMES].corrwith(frame.y))
    found = lo.scan(frame[NAMES].to_numpy(), frame.y.to_numpy(), "poisson", RIDGE, audit=0)
    exact = refitted(frame.assign(w=1.0, o=0.0), "poisson", 7)
    assert abs(found.losses[7] - exact) <= found.error[7] + 1e-6


def test_a_row_that_nothing_else_determines_has_no_loss():
    frame = table().assign(alone=0.0)
    frame.loc[123, "alone"] = 1.0
    found = lo.scan(frame[[*NAMES, "alone"]].to_numpy(), table("squared").y.to_numpy(), "squared")
    assert np.flatnonzero(np.isnan(found.losses)).tolist() == [123] and np.isinf(found.error[123])
    assert found.lost == 1 and np.isfinite(found.mean) and "1 row is not in the mean" in str(found)


def test_what_is_missing_is_named_by_batch_and_row(tmp_path):
    frame = table(n=20_000)
    frame.loc[13_717, "c2"] = np.nan
    name = parquet(tmp_path, frame, files=4, rows=20)
    with pytest.raises(
        ValueError,
        match=r"'c2' is nan in row 13717 \(row 17 of batch 685 of 1000, row group 185 of 2.parquet",
    ):
        lo.scan(name, "y", "logistic", RIDGE, columns=NAMES)
    frame = table(n=500)
    with pytest.raises(ValueError, match=r"weight -1 in row 310 \(row 60 of batch 1 of 2"):
        w = np.where(np.arange(500) == 310, -1.0, 1.0)
        lo.scan(frame[NAMES].to_numpy(), frame.y.to_numpy(), "logistic", RIDGE, sample_weight=w)
    with pytest.raises(ValueError, match=r"rows 490 to 499: the .* loss needs y"):
        lo.scan(
            frame[NAMES].to_numpy(),
            frame.y.where(frame.index != 490, 3).to_numpy(),
            "logistic",
            RIDGE,
        )


def test_what_cannot_be_scanned(tmp_path):
    frame = table().assign(name="a")
    name, x, y = parquet(tmp_path, frame), frame[NAMES].to_numpy(), frame.y.to_numpy()
    for error, match, run in (
        (TypeError, "hold no numbers: 'name'", lambda: lo.scan(name, "y", "logistic")),
        (ValueError, "no columns 'z'", lambda: lo.scan(name, "z", "logistic", columns=NAMES)),
        (ValueError, "no columns 'c9'", lambda: lo.scan(name, "y", "logistic", columns=["c9"])),
        (
            TypeError,
            "target must be the name of a column",
            lambda: lo.scan(name, y, "logistic", columns=NAMES),
        ),
        (
            ValueError,
            "there is no file",
            lambda: lo.scan(str(tmp_path / "no*.parquet"), "y", "logistic"),
        ),
        (TypeError, "read by lo.GLM", lambda: lo.scan(frame, "y", "logistic")),
        (ValueError, "one number for each of the 900", lambda: lo.scan(x, y[:-1], "logistic")),
        (
            TypeError,
            "got Binomial, PerWeight",
            lambda: lo.scan(x, y, "logistic", lo.penalties.per_weight(RIDGE)),
        ),
        (
            TypeError,
            "got Binomial, PseudoHuber",
            lambda: lo.scan(x, y, "logistic", lo.penalties.PseudoHuber(1.0, 1.0)),
        ),
        (TypeError, "got Multinomial", lambda: lo.scan(x, np.arange(N) % 3, "multinomial", RIDGE)),
        (
            RuntimeError,
            "separated",
            lambda: lo.scan(x[:40], (x[:40, 0] > 0).astype(int), "logistic"),
        ),
        (
            lo.validation.IndefiniteHessianError,
            "scan",
            lambda: lo.scan(np.c_[x, x[:, 0]][:60], y[:60], "logistic"),
        ),
        (ValueError, "two rows", lambda: lo.scan(x[:1], y[:1], "logistic")),
        (ValueError, "is a file", lambda: lo.scan(x, y, "logistic", out=tmp_path / "0.parquet")),
    ):
        with pytest.raises(error, match=match):
            run()


def test_missing_numbers_of_arrow_and_other_types(tmp_path):
    """Whole numbers with gaps are told as missing.

    Truths, decimals and small floats are numbers.
    """
    frame = table()
    columns = {
        "a": pa.array(frame.c0 > 0),
        "b": pa.array(frame.c1.astype(np.float32)),
        "y": pa.array(frame.y),
    }
    data = ds.dataset(pa.table(columns | {"c": pa.array(np.arange(N) % 5, pa.int8())}))
    found = lo.scan(data, "y", "logistic", RIDGE, columns=["a", "b", "c"])
    x = np.c_[frame.c0 > 0, frame.c1.astype(np.float32), np.arange(N) % 5]
    np.testing.assert_allclose(
        found.parameters["coef"], lo.fit(lo.GLM(x, frame.y, "logistic", RIDGE)).parameters["coef"]
    )
    gaps = pa.array([None if k == 7 else k % 3 for k in range(N)], pa.int64())
    with pytest.raises(ValueError, match="'c' is nan in row 7"):
        lo.scan(ds.dataset(pa.table(columns | {"c": gaps})), "y", "logistic", RIDGE)


def test_a_full_disk_leaves_a_state_that_goes_on(tmp_path, monkeypatch):
    frame = table()
    name, out, calls = parquet(tmp_path, frame), tmp_path / "losses", []
    run = lambda out: lo.scan(
        name, "y", "logistic", RIDGE, columns=NAMES, out=out, checkpoint=tmp_path / "state"
    )
    write, sums = pq.ParquetWriter.write_table, _runner.sums

    def full(writer, *args):
        if len(calls) == 5:
            raise OSError(28, "No space left on device")
        calls.append(args)
        write(writer, *args)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        run(out)
    assert not list(out.glob("*.part"))
    monkeypatch.setattr(pq.ParquetWriter, "write_table", write)
    monkeypatch.setattr(
        _runner, "sums", lambda *args: pytest.fail("the fit was there") or sums(*args)
    )
    done = {file: file.stat().st_mtime_ns for file in out.glob("*.parquet")}
    assert 1 < len(done) < 9
    found = run(out)
    assert all(file.stat().st_mtime_ns == time_ for file, time_ in done.items())
    monkeypatch.setattr(_runner, "sums", sums)
    whole = lo.scan(name, "y", "logistic", RIDGE, columns=NAMES)
    assert found.mean == whole.mean and found.passes == whole.passes
    assert np.array_equal(pq.read_table(out).column("loss").to_numpy(), whole.losses)
    with pytest.raises(ValueError, match="of another run: other out"):
        run(tmp_path / "elsewhere")


@pytest.mark.slow
def test_nothing_of_the_size_of_the_rows_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(_batches, "PART_ROWS", 2**12)
    monkeypatch.setattr(_batches, "DENSE_BLOCK", 2**14)
    peaks, rng = [], np.random.default_rng(0)
    for n in (2**13, 2**13, 2**15):  # the first imports
        rng.standard_normal((n, 8), np.float32).tofile(tmp_path / f"{n}")
        X, y = (
            np.memmap(tmp_path / f"{n}", np.float32, "r", shape=(n, 8)),
            (rng.random(n) < 0.5).astype(float),
        )
        tracemalloc.start()
        lo.scan(X, y, "logistic", RIDGE, out=tmp_path / f"losses{n}", audit=2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.1 * peaks[1] + 2**15, peaks  # of 2**18 bytes a number a row


def test_tallies_make_the_table_of_all():
    """Bins of M k on one grid for all.

    Bounds no lower than those by their own largest, and hardly higher.
    """
    frame = table()
    fit = lo.fit(lo.GLM(frame[NAMES], frame.y, "logistic", RIDGE))
    from leaveout.refit._anchor import linear_cache

    at = linear_cache(fit)
    parts = at.model.loss, at.model.y, at.eta, at.reference, at.weight * at.size, at.norm
    halves = [
        _passes.RadiusTable.tally(parts[0], *(part[some] for part in parts[1:]))
        for some in (slice(400), slice(400, N))
    ]
    made = _passes.RadiusTable.from_tally(at.model.loss, sum(halves))
    slope, kept, grown = 10.0 ** np.arange(-6, 0, 0.5), np.ones(12), np.ones(12)
    own, other = at.table.ball(slope, kept, grown), made.ball(slope, kept, grown)
    known = np.isfinite(own.after)
    ratio = other.after[known] / own.after[known]
    assert known.any() and (ratio > 0.7).all() and (ratio < 1.6).all()
    assert made.scale[0] >= at.norm.max()


@pytest.mark.parametrize("memory", [2**32, 1])
def test_a_cluster_reads_each_part_once_if_its_memory_holds_all(memory, tmp_path, monkeypatch):
    from distributed import Client

    name = parquet(tmp_path, table(n=900), files=3, rows=300)
    run = lambda: lo.scan(name, "y", "logistic", RIDGE, columns=NAMES)
    alone = run()
    reads = []
    read = _batches.Fragment.read

    def count(fragment, *arguments):
        reads.append(fragment)
        return read(fragment, *arguments)

    monkeypatch.setattr(_batches.Fragment, "read", count)
    monkeypatch.setattr(_runner, "UNLIMITED", memory)
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "memory_limit": 0}
    with Client(dashboard_address=":0", **options):
        alike(alone, run())
    first_block, parts = 1, 3
    assert len(reads) == first_block + (parts if memory > 1 else parts * alone.passes)


@pytest.mark.slow
def test_workers_of_a_cluster_and_one_that_is_killed(tmp_path, monkeypatch):
    from distributed import Client, LocalCluster

    monkeypatch.setattr(_batches, "DENSE_BLOCK", BLOCK)  # as workers have it

    frame = table(n=60_000)
    name = parquet(tmp_path, frame, files=6, rows=2_000)
    run = lambda: lo.scan(name, "y", "logistic", RIDGE, columns=NAMES)
    alone = run()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        alike(alone, run())
        pids = client.run(os.getpid)
        began = time.monotonic()

        def kill():
            time.sleep(0.4)
            os.kill(next(iter(pids.values())), signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        while thread.is_alive() or time.monotonic() - began < 1:
            alike(alone, run())
        thread.join()
        assert set(client.run(os.getpid).values()) != set(pids.values())
    with joblib.parallel_config("loky", n_jobs=2):
        other = run()
    assert np.array_equal(alone.losses, other.losses)


@pytest.mark.parametrize("loss", ["squared", "probit"])
def test_rows_that_are_worth_most_are_in_the_mean(loss):
    """One that is far from all others, and heavy ones.

    Their losses are the most of the mean, proved or estimated.
    """
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((120, P)), 10.0 ** rng.uniform(-4, 4, 120)
    x[7] *= 1000
    y = x @ np.ones(P) + 5 * rng.standard_normal(120)
    if loss == "probit":
        y = (y > 0) * 1.0
    given = lo.losses.Binomial("probit") if loss == "probit" else loss
    found = lo.scan(x, y, given, lo.penalties.Ridge(1.0), sample_weight=w)
    model = lo.GLM(x, y, given, lo.penalties.Ridge(1.0), sample_weight=w)
    cv = lo.cross_validate(lo.fit(model), lo.leave_one_out(), strategy=lo.Exact())
    assert found.lost == 0 and np.isfinite(found.error).all()
    assert abs(found.mean - cv.mean) <= found.approximation_error + cv.approximation_error
    assert (abs(found.losses - cv.losses) <= found.error + cv.error + 1e-9 * cv.losses).all()


def test_where_nothing_is_known_of_some_rows_nothing_is_certified(monkeypatch):
    """Steps that are cut short leave such rows; a mean without them is none of all."""
    monkeypatch.setattr(_iterated, "MAX_FAR_REFITS", 0)
    monkeypatch.setattr(_iterated, "MAX_PASSES", 1)
    frame = table("poisson", 300)
    frame.loc[299, NAMES] = 60 * np.sign(frame[NAMES].corrwith(frame.y))
    found = lo.scan(frame[NAMES].to_numpy(), frame.y.to_numpy(), "poisson", RIDGE, audit=0)
    assert found.lost > 0 and np.isinf(found.approximation_error)
    assert "not certified" in str(found) and "nothing is known of their refits" in str(found)


def test_a_file_of_text_is_read_and_another_refused(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((50, 3)), columns=["a", "b", "y"])
    table.to_csv(tmp_path / "rows.csv", index=False)
    found = lo.scan(str(tmp_path / "rows.csv"), "y", "squared", audit=0)
    fit = lo.fit(lo.GLM(table[["a", "b"]], table["y"], "squared"))
    assert found.mean == pytest.approx(lo.cross_validate(fit, lo.leave_one_out()).mean, rel=1e-9)
    (tmp_path / "rows.txt").write_text("a b")
    with pytest.raises(ValueError, match="does not read as parquet"):
        lo.scan(str(tmp_path / "rows.txt"), "y", "squared")
    with pytest.raises(TypeError, match="target must be the name of a column"):
        lo.scan(str(tmp_path / "rows.csv"))


def test_files_of_an_object_store(tmp_path):
    """By fsspec, here in its store in memory; a state knows them again."""
    frame, store = table(), fsspec.filesystem("memory")
    for k, some in enumerate(np.array_split(np.arange(N), 3)):
        with store.open(f"/shop/{k}.parquet", "wb") as file:
            pq.write_table(pa.Table.from_pandas(frame.iloc[some]), file, row_group_size=130)
    files = parquet(tmp_path, frame)
    here, *there = (
        lo.scan(name, "y", "logistic", RIDGE, columns=NAMES, checkpoint=tmp_path / file)
        for name, file in (
            (files, "here"),
            ("memory://shop/*.parquet", "there"),
            ("memory://shop/*.parquet", "there"),
            ("memory://shop", "folder"),
        )
    )
    for found in there:
        np.testing.assert_array_equal(found.losses, here.losses)
    with store.open("/shop/2.parquet", "wb") as file:
        pq.write_table(pa.Table.from_pandas(frame.iloc[600:899]), file)
    with pytest.raises(ValueError, match="of another run: other data"):
        lo.scan(
            "memory://shop/*.parquet",
            "y",
            "logistic",
            RIDGE,
            columns=NAMES,
            checkpoint=tmp_path / "there",
        )
    with pytest.raises(ValueError, match="there is no file memory://nowhere/"):
        lo.scan("memory://nowhere/*.parquet", "y")
    store.rm("/shop", recursive=True)


def test_masked_features_are_missing():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    masked = np.ma.array(X, mask=np.arange(100).reshape(50, 2) == 9)
    with pytest.raises(ValueError, match="column 'x1' is nan in row 4"):
        lo.scan(masked, X[:, 0], "squared")
