"""What becomes of runs whose machine fails: killed, interrupted, short of disk or memory, with
damaged files, in threads, after a fork, in other modes of Python and another locale.

    python benchmarks/faults.py [part ...] [--quick]

Parts: killed, journal, files, disk, writers, interrupts, workers, memory, threads, forks, programs,
data, modes. Each runs in a process of its own, and its rows are kept in out/faults.json. Without
names only parts that are not there yet run; named ones run again. At the end results/faults.md and
the table of docs/long-runs.md are written. --quick has two or
three trials of each kind in three minutes, and writes nothing. Exits with 1 if something was lost
without a word: another number, a hang, an end that says nothing.

A number is the same if all its bits are. "Refused" is an error that names the file or the cause.
Disks are small tmpfs, which only root can mount; others get a limit on the size of files.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import argparse
import collections
import contextlib
import hashlib
import itertools
import json
import locale
import multiprocessing
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import joblib
import numpy as np
import pandas as pd
import repository
from sklearn.linear_model import LogisticRegression, Ridge
from tests import interrupted_program as program

import leaveout as lo
from leaveout._runtime import parallel

ROOT = repository.ROOT
KEPT = ROOT / "out/faults.json"
PAGES = ROOT / "benchmarks/results/faults.md", ROOT / "docs/long-runs.md"
MARKS = "<!-- faults: python benchmarks/faults.py -->", "<!-- end of faults -->"
PATIENCE = 180.0  # seconds after which a call counts as hanging
PROMPT = 3.0  # seconds within which Ctrl-C ends a call, on a machine that does other things too
SAME, OTHER, HANGS = "same digits", "OTHER DIGITS", "HANGS"
MODELS = {"GLM": "rows", "HMM": "chain", "CRF": "crf", "posterior": "posterior"}
CALLS: dict[str, Callable[..., list]] = program.VERBS | program.COMPILED
GOOD = (SAME, "refused", "warned", "error", "in time", "not run")
Outcomes = Iterator[tuple[str, str]]  # what was done, what came of it


class Answer(NamedTuple):
    """What a process says of a call: the hash of its numbers, its warnings or its error."""

    digest: str
    warnings: list[str]
    error: str


def digest_of(values: list) -> str:
    """Hash of all bits of a result."""
    digest = hashlib.sha256()
    for value in values:
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def answer(call: Callable[[], list]) -> Answer:
    """Call, and note what comes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            digest, error = digest_of(call()), ""
        except Exception as raised:
            digest, error = "", f"{type(raised).__name__}: {raised}"
    ours = [str(entry.message) for entry in caught if entry.category is UserWarning]
    return Answer(digest, ours, error)


def judge(reply: Answer, digest: str, *words: str) -> str:
    """Say in a few words what came, where an error or a warning has to name one of `words`."""
    if reply.error:
        named = any(word in reply.error for word in words)
        kind = reply.error.partition(":")[0]
        if named and kind.startswith("ended"):
            return f"error of the process, {kind}"
        if named:
            return f"refused: {kind}"
        return f"ERROR THAT NAMES NOTHING: {reply.error[:150]}"
    if reply.digest != digest:
        return OTHER
    if any(word in message for message in reply.warnings for word in words):
        return f"warned, {SAME}"
    return SAME


def ask(
    name: str, *flags: str, file: Path | None = None, limit: int = 0, **environment: str
) -> Answer:
    """Let a process of its own make a call, within `limit` bytes of memory more than it has."""
    words = [sys.executable, *flags, __file__, "--call", name, str(file or ""), str(limit)]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=os.environ | environment,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        return Answer(HANGS, [], "")
    if done.stdout.startswith("{"):
        return Answer(**json.loads(done.stdout.splitlines()[0]))
    last = next(iter(done.stderr.strip().splitlines()[-1:]), "")
    return Answer("", [], f"ended by {done.returncode}: {last}")


def judge_process(reply: Answer, digest: str, *words: str) -> str:
    """As `judge`, of a process that may hang."""
    return HANGS if reply.digest == HANGS else judge(reply, digest, *words)


def serve(name: str, file: str, limit: str) -> None:
    """Make one call in this process, and print what came."""
    locale.setlocale(locale.LC_ALL, "")
    if file:
        program.write_many_steps()
    if int(limit):
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + int(limit), size + int(limit)))
    call = OTHER_CALLS.get(name) or CALLS[name]
    options = {"checkpoint": Path(file)} if file else {}
    print(json.dumps(answer(lambda: call(**options))._asdict()), flush=True)


def bad_input() -> list:
    """Names of the errors that bad input gets, each of which has to match its message."""
    from tests import test_bad_input

    found = []
    for test in ("test_messages", "test_plans_are_checked"):
        (mark,) = getattr(test_bad_input, test).pytestmark
        for make, kind, message in mark.args[1]:
            try:
                make()
                found.append(np.array("nothing"))
            except kind as error:
                found.append(np.array([kind.__name__, bool(re.search(message, str(error)))]))
    return found


def command() -> list:
    """What the command line prints of rows."""
    from typer.testing import CliRunner

    from leaveout.extensions.cli import app

    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.csv"
        pd.DataFrame(program.X[:90], columns=["I", "i", "c"]).assign(y=program.y[:90]).to_csv(rows)
        words = f"glm {rows} --target y --loss LOGISTIC --l2 1 --plan kfold:5".split()
        done = CliRunner().invoke(app, words)
    if done.exit_code:
        raise RuntimeError(done.output)
    return [np.frombuffer(done.output.encode(), np.uint8)]


def large() -> list:
    """A leave-one-out that needs some hundred megabytes."""
    random = np.random.default_rng(0)
    X = random.standard_normal((4000, 500))
    y = (X[:, 0] + random.standard_normal(4000) > 0) * 1.0
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(10.0)))
    return [lo.cross_validate(fit, lo.leave_one_out(), audit=0).losses]


OTHER_CALLS: dict[str, Callable[..., list]] = {
    "bad input": bad_input,
    "command": command,
    "large": large,
}


# Files


@contextlib.contextmanager
def disk(kilobytes: int) -> Iterator[Path | None]:
    """A small disk; None where none can be mounted."""
    with TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@contextlib.contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """A limit on the size of files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def saved(folder: Path, name: str = "metrics") -> tuple[Path, str]:
    """A whole checkpoint in many steps, and the hash of its numbers."""
    program.write_many_steps()
    file = folder / "run.ckpt"
    return file, digest_of(CALLS[name](checkpoint=file))


def forget_half(file: Path) -> None:
    """Leave the first half of the steps."""
    with contextlib.closing(sqlite3.connect(file)) as base:
        base.execute("DELETE FROM steps WHERE number >= (SELECT max(number) / 2 FROM steps)")
        base.commit()


def resume(file: Path, digest: str, name: str = "metrics") -> str:
    """What comes of a run that goes on with a file."""
    before = file.read_bytes() if file.is_file() else b""
    reply = answer(lambda: CALLS[name](checkpoint=file))
    outcome = judge(reply, digest, str(file))
    if outcome.startswith("refused") and before and file.read_bytes() != before:
        return "REFUSED, AND THE FILE CHANGED"
    return outcome


def killed(quick: bool) -> Outcomes:
    """SIGKILL at random moments, again and again, until it is through."""
    kills = 2 if quick else 20
    for model, verb in MODELS.items():
        words = [sys.executable, "-m", "tests.interrupted_program", str(kills), verb]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        line = re.search(r"times, (\d+) between .* steps: (.*)", done.stdout)
        label = f"{model}: killed (SIGKILL) at random moments, gone on with the checkpoint"
        if line is None or line[2] != "same":
            outcome = f"{OTHER}: {done.stdout} {done.stderr[-300:]}"
        else:
            outcome = f"{SAME}, {line[1]} of them killed between two steps"
        for _ in range(kills):
            yield label, outcome


def journal(quick: bool) -> Outcomes:
    """SQLite's file beside a checkpoint is lost, as where only the latter is copied."""
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        _, digest = saved(folder)
        for k in range(3 if quick else 20):
            file = folder / f"{k}.ckpt"
            program.attempt("metrics", file, folder / "out.npz", rng.uniform(0.05, 0.6))
            file.with_name(f"{file.name}-journal").unlink(missing_ok=True)
            yield "killed, and the journal beside the checkpoint removed", resume(file, digest)


def files(quick: bool) -> Outcomes:
    """Checkpoints that are damaged, of another run, or no files."""
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        file, digest = saved(folder)
        whole = file.read_bytes()
        forget_half(file)
        half = file.read_bytes()
        for content in (whole, half):
            size = len(content)
            lengths = [1, 15, 16, 99, 100, 512, 4095, 4096, 4097, size // 2, size - 4096, size - 1]
            lengths += rng.integers(1, size, 0 if quick else 40).tolist()
            for length in lengths[::3] if quick else lengths:
                file.write_bytes(content[:length])
                yield "checkpoint cut to 1 byte … all but one", resume(file, digest)
            file.write_bytes(b"")
            yield "checkpoint cut to 0 bytes", resume(file, digest)
            for place in rng.integers(0, 8 * size, 5 if quick else 200):
                flipped = bytearray(content)
                flipped[place // 8] ^= 1 << (place % 8)
                file.write_bytes(flipped)
                yield "one random bit of a checkpoint flipped", resume(file, digest)
            for start in rng.integers(0, size // 512, 2 if quick else 50):
                blank = bytearray(content)
                blank[512 * start : 512 * (start + 1)] = bytes(len(blank[512 * start :][:512]))
                file.write_bytes(blank)
                yield "a sector of 512 bytes of zeros in a checkpoint", resume(file, digest)
        for change in ("0.0.1, format 2", "9.9.9, format 3"):
            file.write_bytes(whole)
            with contextlib.closing(sqlite3.connect(file)) as base:
                hashes = json.loads(base.execute("SELECT of FROM run").fetchone()[0])
                hashes["version of leaveout"] = change
                base.execute("UPDATE run SET of = ?", [json.dumps(hashes)])
                base.commit()
            yield "checkpoint of another version", resume(file, digest)
        for number in range(2):
            file.write_bytes(whole)
            other = ("rows", "score")[number]
            yield "checkpoint of another call", resume(file, "", other)
        file.write_bytes(whole)
        with contextlib.closing(sqlite3.connect(file)) as base:
            base.execute("DELETE FROM steps WHERE number = 5")
            base.commit()
        yield "a step removed from a checkpoint", resume(file, digest)
        os.mkfifo(folder / "pipe")
        for special in (Path(os.devnull), Path("/dev/full"), folder / "pipe", folder):
            outcome = judge(
                answer(lambda f=special: CALLS["metrics"](checkpoint=f)), digest, str(special)
            )
            yield "/dev/null, /dev/full, a pipe or a folder as checkpoint", outcome


def disk_parts(quick: bool) -> Outcomes:
    """Disks that are full, or cannot be written."""
    with TemporaryDirectory() as name:
        whole, digest = saved(Path(name))
        sizes = np.linspace(8, whole.stat().st_size / 1024, 3 if quick else 12).astype(int)
        for kilobytes in sizes:
            with disk(int(kilobytes)) as folder:
                if folder is None:
                    yield "disk full in the middle", "not run: only root can mount a small disk"
                else:
                    file = folder / "run.ckpt"
                    yield "disk full in the middle", resume(file, digest)
                    shutil.copy(file, Path(name) / "copy.ckpt")
                    outcome = resume(Path(name) / "copy.ckpt", digest)
                    yield "what a full disk holds, gone on with elsewhere", outcome
            file = Path(name) / "limited.ckpt"
            with largest_file(1024 * int(kilobytes)):
                yield "limit on the size of files (RLIMIT_FSIZE)", resume(file, digest)
            yield "what is in such a file, gone on with", resume(file, digest)
            file.unlink()
        program._checkpoint.PAUSE = 2.0
        with disk(8) as folder:
            if folder is not None:
                yield "disk full at the last write only", resume(folder / "run.ckpt", digest)
        for state in ("none yet", "half", "whole"):
            with disk(4096) as folder:
                label = "read-only folder; the checkpoint new, half or whole"
                if folder is None:
                    yield label, "not run: only root can mount a small disk"
                    continue
                file = folder / "run.ckpt"
                if state != "none yet":
                    shutil.copy(whole, file)
                if state == "half":
                    forget_half(file)
                subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
                yield label, resume(file, digest)


def writers(quick: bool) -> Outcomes:
    """Several processes, and threads, with one checkpoint at once."""
    with TemporaryDirectory() as name:
        _, digest = saved(Path(name))
        context = multiprocessing.get_context("fork")
        for k in range(2 if quick else 20):
            file = Path(name) / f"{k}.ckpt"
            queue: Any = context.Queue()
            run = lambda file=file, queue=queue: queue.put(
                answer(lambda: CALLS["metrics"](checkpoint=file))
            )
            processes = [context.Process(target=run) for _ in range(3)]
            for process in processes:
                process.start()
            outcomes = [judge(queue.get(timeout=PATIENCE), digest, str(file)) for _ in processes]
            for process in processes:
                process.join()
            for outcome in outcomes:
                yield "three processes with one checkpoint", outcome
            if SAME not in outcomes:
                yield "three processes with one checkpoint", "NONE WENT THROUGH"
            yield "the checkpoint that they leave", resume(file, digest)


# Ctrl-C


def more_calls() -> dict[str, Callable[..., list]]:
    """Calls that take long, besides those that are killed."""
    X, y = program.X, program.y
    rows = lo.datasets.breast_cancer()
    table = pd.DataFrame(X, columns=list("abc")).assign(y=y)
    plan = lo.kfold(program.N, 60, rng=0)
    groups = np.arange(program.N) // 6
    sums = lambda found: [part.select_dtypes("number").to_numpy(float) for part in found]
    estimates = lambda: {
        name: lo.cross_validate(
            lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(a))), lo.kfold(program.N, 10)
        )
        for name, a in (("one", 1.0), ("other", 9.0))
    }
    return {
        "fit": lambda **more: [
            lo.fit(lo.HMM(X[:, 0], lo.emissions.Gaussian(), 3), num_starts=6, **more).vector
        ],
        "cooks_distance": lambda **more: [lo.diagnostics.cooks_distance(program.FIT, **more)],
        "dfbetas": lambda **more: sums([lo.diagnostics.dfbetas(program.FIT, **more)]),
        "studentized_residuals": lambda **more: [
            lo.diagnostics.studentized_residuals(program.LINEAR, **more)
        ],
        "leakage_slope_test": lambda **more: [
            np.array(lo.leakage.leakage_slope_test(Ridge(), X, y, groups=groups, **more).fall)
        ],
        "cross_val_score": lambda **more: [
            lo.sklearn.cross_val_score(program.PIPELINE, X, y, cv=40, **more)
        ],
        "cross_val_predict": lambda **more: [
            lo.sklearn.cross_val_predict(program.PIPELINE, X, y, cv=40, **more)
        ],
        "validate": lambda **more: sums(
            [lo.clinical.validate(program.FIT, num_resamples=300, **more).table]
        ),
        "compare, nested": lambda: sums([lo.compare(estimates(), method="nested")]),
        "smooth": lambda: [
            lo.smooth(
                lo.Additive("y ~ s(a) + s(b) + s(c)", table, loss="logistic"), plan
            ).fit.vector
        ],
        "from_sklearn": lambda: [
            lo.cross_validate(
                lo.from_sklearn(LogisticRegression(max_iter=5000).fit(*rows), *rows),
                lo.leave_one_out(),
                strategy=lo.Exact(),
            ).losses
        ],
    }


def interrupted(call: Callable[[], list], seconds: float) -> tuple[str, float]:
    """Press Ctrl-C after so many seconds of a call: what came, and how long that took."""
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    clock = threading.Timer(seconds, press)
    clock.start()
    outcome, ended = "through before", 0.0
    try:
        call()
        clock.cancel()
        clock.join()
        ended = time.perf_counter()
    except KeyboardInterrupt:
        outcome, ended = "in time", time.perf_counter()
    except Exception as error:
        outcome = f"ANOTHER ERROR: {type(error).__name__}: {error}"[:200]
    delay = 0.0
    if pressed:
        delay = ended - pressed[0]
    return outcome, delay


def interrupts(quick: bool) -> Outcomes:
    """Ctrl-C at random moments of every verb; then the same call again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program.write_many_steps()
    rng = np.random.default_rng(0)
    calls = CALLS | more_calls()
    names = [*calls][::4] if quick else [*calls]
    longest = 0.0
    for name in names:
        call = calls[name]
        call()
        start = time.perf_counter()
        digest = digest_of(call())
        seconds = time.perf_counter() - start
        keeps = name not in ("compare, nested", "smooth", "from_sklearn")
        trials = 0
        tries = 0
        with TemporaryDirectory() as folder:
            while trials < (1 if quick else 2) and tries < 20:
                tries += 1
                options = {}
                if keeps:
                    options = {"checkpoint": Path(folder) / f"{tries}.ckpt"}
                moment = rng.uniform(0, 0.9 * seconds)
                outcome, delay = interrupted(partial(call, **options), moment)
                if outcome == "through before":
                    continue
                trials += 1
                longest = max(longest, delay)
                if outcome == "in time" and delay > PROMPT:
                    outcome = f"LATE: {delay:.1f} s ({name})"
                yield "Ctrl-C (SIGINT) at random moments of each call", outcome
                again = judge(answer(partial(call, **options)), digest)
                yield "the same call afterwards, with its checkpoint", again
        print(f"{name}: {seconds:.2f} s, interrupted {trials} times, {longest:.2f} s at most")
        if not trials:
            yield "Ctrl-C (SIGINT) at random moments of each call", f"not run: {name} is too short"


# Workers, memory, threads, forks


def deadly(file: Path | None) -> Callable[..., np.ndarray]:
    """A loss that takes its process along where it is first asked for elsewhere, or always.

    It travels by value, as it is no name of a module.
    """
    home, X, y = os.getpid(), program.X, program.y

    def loss(held: Any, seen: Any, parameters: Any) -> np.ndarray:
        if os.getpid() != home and (file is None or not file.exists()):
            if file is not None:
                file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.asarray((y[held] - X[held] @ parameters["coef"]) ** 2)

    return loss


def workers(quick: bool) -> Outcomes:
    """Workers of joblib and of Dask that are killed."""
    program.write_many_steps()
    parallel.STARTING = parallel.PORTION = 0.0  # work is sent at once
    plan = lo.kfold(program.N, 60, rng=0)

    def call(loss: Callable[..., np.ndarray], **more: Any) -> list:
        return program.values(
            lo.cross_validate(
                program.FIT, plan, strategy=lo.NewtonStep(), evaluate=loss, audit=3, **more
            )
        )

    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "there").touch()
        digest = digest_of(call(deadly(folder / "there")))
        for k in range(1 if quick else 5):
            with joblib.parallel_config("loky", n_jobs=2):
                reply = answer(lambda k=k: call(deadly(folder / f"joblib {k}")))
            outcome = judge(reply, digest)
            yield (
                "a worker of joblib killed",
                outcome if (folder / f"joblib {k}").exists() else "NOBODY DIED",
            )
        with joblib.parallel_config("loky", n_jobs=2):
            reply = answer(lambda: call(deadly(None), checkpoint=folder / "dying.ckpt"))
        yield "workers of joblib killed again and again", judge(reply, digest, "workers ended")
        try:
            from distributed import Client, LocalCluster
        except ImportError:
            yield "a worker of Dask killed", "not run: no Dask"
            return
        for k in range(1 if quick else 3):
            with (
                LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
                Client(cluster),
                joblib.parallel_config("dask"),
            ):
                reply = answer(partial(call, deadly(folder / f"dask {k}")))
            outcome = judge(reply, digest)
            if not (folder / f"dask {k}").exists():
                outcome = "NOBODY DIED"
            yield "a worker of Dask killed", outcome


def memory(quick: bool) -> Outcomes:
    """A limit on memory, from far too little to nearly enough."""
    for name, label in (("large", "GLM of 4,000 × 500"), ("crf", "CRF, with JAX")):
        whole = ask(name)
        megabytes = (20, 60, 120, 200, 400, 800)
        for limit in megabytes[1::3] if quick else megabytes:
            reply = ask(name, limit=limit * 2**20)
            words = ["MemoryError", "memory", "allocat", "bad_alloc", "RESOURCE_EXHAUSTED"]
            words += ["map segment", "pthread_create"]  # of the loader, and of JAX's compiler
            yield (
                f"{label}: 20 to 800 MB of memory (RLIMIT_AS)",
                judge_process(reply, whole.digest, *words),
            )


def threads(quick: bool) -> Outcomes:
    """Two calls at once in one process."""
    single = {name: digest_of(CALLS[verb]()) for name, verb in MODELS.items()}
    pairs = [*itertools.combinations_with_replacement(MODELS, 2)]
    for one, other in pairs[::4] if quick else pairs:
        outcomes: dict[int, str] = {}

        def run(place: int, name: str, outcomes: dict[int, str] = outcomes) -> None:
            outcomes[place] = judge(answer(CALLS[MODELS[name]]), single[name])

        runners = [threading.Thread(target=run, args=pair) for pair in enumerate((one, other))]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join(PATIENCE)
        for place in range(2):
            yield "two threads that call at once, each pair of models", outcomes.get(place, HANGS)


def forks(quick: bool) -> Outcomes:
    """Processes that are forked before and after JAX has run."""
    context = multiprocessing.get_context("fork")
    names = [*MODELS][::2] if quick else [*MODELS]
    digests = {name: ask(MODELS[name]).digest for name in names}

    def of_child(name: str) -> str:
        queue: Any = context.Queue()
        child = context.Process(target=lambda: queue.put(answer(CALLS[MODELS[name]])))
        child.start()
        try:
            return judge(queue.get(timeout=PATIENCE), digests[name], "forked")
        except Exception:
            child.kill()
            return HANGS

    for name in names:
        yield "multiprocessing by fork, before JAX ran", of_child(name)
    CALLS["crf"]()
    for _ in range(1 if quick else 3):
        for name in names:
            yield "multiprocessing by fork, after JAX ran", of_child(name)


# Caches, modes


def programs(quick: bool) -> Outcomes:
    """The cache of compiled programs: not writable, or poisoned."""
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as name:
        cache = Path(name) / "cache"
        digest = ask("crf", LEAVEOUT_CACHE=str(cache)).digest
        kept = {file: file.read_bytes() for file in cache.rglob("*") if file.is_file()}
        label = "compiled programs"
        yield (
            f"{label}: read from the cache",
            judge_process(ask("crf", LEAVEOUT_CACHE=str(cache)), digest),
        )
        yield f"{label}: no cache", judge_process(ask("crf", LEAVEOUT_CACHE="off"), digest)

        def poison(change: Callable[[bytes], bytes], files: list[Path]) -> str:
            shutil.rmtree(cache)
            for file, content in kept.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(change(content) if file in files else content)
            reply = ask("crf", LEAVEOUT_CACHE=str(cache))
            return judge_process(reply, digest, "does not hold", "compiled program", "cache")

        def flip(content: bytes) -> bytes:
            flipped = bytearray(content)
            place = int(rng.integers(0, 8 * max(len(content), 1)))
            if flipped:
                flipped[place // 8] ^= 1 << (place % 8)
            return bytes(flipped)

        every = [*kept]
        changes: dict[str, Callable[[bytes], bytes]] = {
            "all files empty": lambda content: b"",
            "all files cut in half": lambda content: content[: len(content) // 2],
            "all files random bytes": lambda content: rng.bytes(len(content)),
        }
        for what, change in changes.items():
            yield f"{label}: {what}", poison(change, every)
        for _ in range(1 if quick else 6):
            yield f"{label}: one bit of every file flipped", poison(flip, every)
        if quick:
            return
        with disk(64) as folder:
            if folder is not None:
                reply = ask("crf", LEAVEOUT_CACHE=str(folder))
                yield (
                    f"{label}: cache on a full disk",
                    judge_process(reply, digest, "cannot be written"),
                )
                subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
                reply = ask("crf", LEAVEOUT_CACHE=str(folder))
                yield (
                    f"{label}: cache not writable",
                    judge_process(reply, digest, "cannot be written"),
                )
        reply = ask("crf", LEAVEOUT_CACHE=os.devnull)
        yield f"{label}: cache not writable", judge_process(reply, digest, "cannot be written")


def data(quick: bool) -> Outcomes:
    """The cache of data sets: poisoned, empty, not readable."""
    name = "heart_failure/heart.csv"
    try:
        content = lo.datasets.path(name).read_bytes()
    except FileNotFoundError:
        yield "data set poisoned", "not run: no data (LEAVEOUT_DATA)"
        return
    digest = hashlib.sha256(content).hexdigest()
    call = lambda: [np.frombuffer(lo.datasets.path(name).read_bytes(), np.uint8)]
    digest = digest_of(call())
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        os.environ["LEAVEOUT_DATA"] = folder
        file = Path(folder) / name
        file.parent.mkdir()
        for _ in range(2 if quick else 20):
            flipped = bytearray(content)
            flipped[int(rng.integers(len(content)))] ^= 1
            file.write_bytes(flipped)
            yield "a bit of a data set flipped in its folder", judge(answer(call), digest, name)
        file.write_bytes(content[:1000])
        yield "a data set cut", judge(answer(call), digest, name)


def turkish(folder: str) -> dict[str, str]:
    """The environment of the Turkish locale, compiled into a folder if it is not there."""
    try:
        locale.setlocale(locale.LC_ALL, "tr_TR.UTF-8")
        locale.setlocale(locale.LC_ALL, "C")
    except locale.Error:
        target = Path(folder) / "tr_TR.UTF-8"
        words = ["localedef", "-i", "tr_TR", "-f", "UTF-8", target]
        if (
            shutil.which("localedef") is None
            or subprocess.run(words, capture_output=True).returncode > 1
        ):
            return {}
    return {"LC_ALL": "tr_TR.UTF-8", "LOCPATH": folder}


def modes(quick: bool) -> Outcomes:
    """`python -O`, `-OO`, and a locale where I and i are other letters and a comma is the point."""
    names = MODELS | {"bad input": "bad input", "the command line": "command"}
    if quick:
        names = {name: names[name] for name in ("GLM", "bad input", "the command line")}
    with TemporaryDirectory() as folder:
        there = turkish(folder)
        kinds = {"python -O": (["-O"], {}), "python -OO": (["-OO"], {})}
        if there:
            kinds["Turkish locale (tr_TR.UTF-8)"] = ([], there)
        else:
            yield "Turkish locale (tr_TR.UTF-8)", "not run: no such locale"
        for call in names.values():
            plain = ask(call)
            for kind, (flags, environment) in kinds.items():
                reply = ask(call, *flags, **environment)
                outcome = judge_process(reply, plain.digest)
                if plain.error:
                    outcome = f"FAILS ANYWAY: {plain.error}"
                yield f"{kind}: four models, bad input, the command line", outcome


PARTS: dict[str, Callable[[bool], Outcomes]] = {
    "killed": killed,
    "journal": journal,
    "files": files,
    "disk": disk_parts,
    "writers": writers,
    "interrupts": interrupts,
    "workers": workers,
    "memory": memory,
    "threads": threads,
    "forks": forks,
    "programs": programs,
    "data": data,
    "modes": modes,
}


def run(name: str, quick: bool) -> dict[str, dict[str, int]]:
    """Run a part: how often each outcome came of what was done."""
    counts: dict[str, collections.Counter] = {}
    start = time.perf_counter()
    for label, outcome in PARTS[name](quick):
        counts.setdefault(label, collections.Counter())[outcome] += 1
        if not outcome.startswith(GOOD):
            print(f"  {label}: {outcome}", flush=True)
    print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return {label: dict(outcomes) for label, outcomes in counts.items()}


def table(results: dict[str, dict[str, dict[str, int]]]) -> str:
    """The rows of all parts."""
    rows = [
        {
            "what was done": label,
            "times": sum(outcomes.values()),
            "what came": "; ".join(f"{count} {outcome}" for outcome, count in outcomes.items()),
        }
        for part in PARTS
        for label, outcomes in results.get(part, {}).items()
    ]
    return pd.DataFrame(rows).to_markdown(index=False)


def write(text: str) -> None:
    """Put the table into the pages that show it."""
    PAGES[0].write_text(
        f"# Faults under load\n\nMade by `python benchmarks/faults.py`.\n\n{text}\n"
    )
    before, _, rest = PAGES[1].read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGES[1].write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


def main() -> None:
    """Run parts, keep their rows, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a few trials of each kind")
    options = parser.parse_args()
    if unknown := set(options.part) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    results = {}
    if KEPT.exists() and not options.quick:
        results = json.loads(KEPT.read_text())
    todo = options.part or [name for name in PARTS if name not in results]
    for name in todo:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            results[name] = pool.submit(run, name, options.quick).result()
        if not options.quick:
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(results, indent=1))
    print(table(results))
    if not options.quick:
        write(table(results))
    outcomes = {o for part in results.values() for counts in part.values() for o in counts}
    if bad := sorted(o for o in outcomes if not o.startswith(GOOD)):
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--call"]:
        serve(*sys.argv[2:])
    else:
        main()
