"""Checkpoints: a long run is saved in a file as it goes, and continues from there after it was
killed, to the same numbers.

A call is a sequence of steps, each a function of its arguments and of the steps before it: batches
of refits, repetitions of an audit, draws. A `Journal` keeps the arrays that each step returned, in
order. The same call reads the steps in the file, and computes the rest. The file is a database of
SQLite: whenever the process dies, a step is in it whole or not at all.
"""

import io
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

import numpy as np

from .arrays import NamedValues
from .conventions import warn
from .fingerprint import fingerprint

PAUSE = 2.0  # seconds between commits, and so of work that a crash loses besides the current step
OURS = 0x6C656176  # application id in the header of the file: "leav"
TABLES = "CREATE TABLE run (of TEXT); CREATE TABLE steps (number INTEGER PRIMARY KEY, arrays BLOB, digest TEXT)"

File = str | os.PathLike[str]
StepResult = dict[str, np.ndarray]  # results of a step
NamedTexts = dict[str, str]


class ArrayRecord:
    """Base of dataclasses whose fields are arrays, or None; a step keeps them by name."""

    @property
    def arrays(self) -> StepResult:
        """The arrays by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @classmethod
    def read(cls, arrays: StepResult) -> Self:
        """Make the record from arrays by name, among which there may be others."""
        return cls(**{name: arrays[name] for name in arrays.keys() & cls.__annotations__})


class Journal:
    """Steps of one run, which is identified by a hash of each thing that it depends on.

    Without these `hashes`, the file must exist; it has its own, and is only read.
    """

    def __init__(self, caller: str, file: File, hashes: NamedTexts | None):
        if not isinstance(file, str | os.PathLike):
            raise TypeError(f"{caller}: checkpoint must be the name of a file; got {file!r}.")
        self.name = f"{caller}: checkpoint={os.fspath(file)}"
        self.path = Path(file)
        self.position = 0
        self.commit_time = time.monotonic()
        if not self.path.parent.is_dir():
            raise ValueError(f"{self.name}: there is no folder {self.path.parent}; make it first.")
        exists = self.path.exists()
        if exists and not self.path.is_file():  # a folder, /dev/null
            raise ValueError(f"{self.name} is no file on a disk; name one.")
        mode = "rw" if hashes is None else "rwc"
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        try:
            self.base = sqlite3.connect(address, isolation_level=None, timeout=0, uri=True)
            try:
                self.hashes, self.count = self._open(hashes, exists)
            except BaseException:  # Ctrl-C too, after which the next call opens the file
                self.base.close()
                raise
        except sqlite3.OperationalError as error:
            why = (
                "is in use by another process"
                if "locked" in str(error)
                else f"cannot be opened ({error})"
            )
            raise ValueError(f"{self.name} {why}; name another file.") from error
        except (sqlite3.DatabaseError, TypeError, json.JSONDecodeError) as error:
            raise self._damage_error(str(error)) from error

    def _open(self, hashes: NamedTexts | None, exists: bool) -> tuple[NamedTexts, int]:
        """Open or create the tables; return the hashes, and the number of steps in them."""
        base = self.base
        base.execute("PRAGMA locking_mode = EXCLUSIVE")
        base.execute("BEGIN" if hashes is None else "BEGIN EXCLUSIVE")
        if hashes and not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            if exists:
                warn(f"{self.name} is empty: the run begins anew.")
            base.execute(f"PRAGMA application_id = {OURS}")
            for statement in TABLES.split(";"):
                base.execute(statement)
            base.execute("INSERT INTO run VALUES (?)", [json.dumps(hashes)])
        if base.execute("PRAGMA application_id").fetchone()[0] != OURS:
            raise sqlite3.DatabaseError("a database of something else")
        saved_hashes = json.loads(base.execute("SELECT of FROM run").fetchone()[0])
        self.check(hashes or saved_hashes, saved_hashes)
        count, last = base.execute("SELECT count(*), max(number) FROM steps").fetchone()
        if count != (0 if last is None else last + 1):
            raise sqlite3.DatabaseError("steps are missing")
        return saved_hashes, count

    def check(self, hashes: NamedTexts, saved_hashes: NamedTexts) -> None:
        """Raise ValueError if the run in the file depends on other things."""
        differences = [
            name for name in hashes | saved_hashes if hashes.get(name) != saved_hashes.get(name)
        ]
        if differences:
            raise ValueError(
                f"{self.name} is of another run: other {', '.join(differences)}; remove it, or name another file."
            )

    def _damage_error(self, why: str) -> ValueError:
        return ValueError(
            f"{self.name} is no checkpoint, or is damaged ({why}); remove it, or name another file."
        )

    def next(self) -> StepResult:
        """Take the result of the next step from the file."""
        try:
            blob, digest = self.base.execute(
                "SELECT arrays, digest FROM steps WHERE number = ?", [self.position]
            ).fetchone()
        except (sqlite3.DatabaseError, TypeError) as error:
            raise self._damage_error(f"step {self.position} cannot be read") from error
        if digest != self._digest(blob):
            raise self._damage_error(f"step {self.position} is not what was written")
        self.position += 1
        with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
            return dict(arrays)

    def add(self, result: StepResult) -> None:
        """Add the result of the next step; it is on disk within two seconds."""
        stream = io.BytesIO()
        try:
            np.savez(stream, **result)  # type: ignore[arg-type]
        except ValueError as error:  # Ctrl-C leaves an archive that cannot be closed
            raise error.__context__ or error from None
        blob = stream.getvalue()
        try:
            self.base.execute(
                "INSERT INTO steps VALUES (?, ?, ?)", [self.position, blob, self._digest(blob)]
            )
            self.position += 1
            if time.monotonic() - self.commit_time > PAUSE:
                self.base.execute("COMMIT")
                self.base.execute("BEGIN EXCLUSIVE")
                self.commit_time = time.monotonic()
        except sqlite3.Error as error:  # the run continues if the disk is full
            warn(f"{self.name} cannot be written ({error}): what comes is not kept.")
            _journal.set(None)

    def _digest(self, blob) -> str:
        return fingerprint((self.hashes, self.position, blob))

    def close(self) -> None:
        """Write everything to disk, and close the file."""
        try:
            with suppress(sqlite3.ProgrammingError):  # it was closed before
                if self.base.in_transaction:
                    self.base.execute("COMMIT")
        except sqlite3.Error as error:
            warn(f"{self.name} cannot be written ({error}): what was made last is not kept.")
        finally:
            self.base.close()


_journal: ContextVar[Journal | None] = ContextVar("journal", default=None)


def _hash_dependencies(caller: str, dependencies: NamedValues) -> dict[str, str]:
    """Hash each thing that a run depends on."""
    hashes = {}
    for name, value in dependencies.items():
        try:
            hashes[name] = fingerprint(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise TypeError(
                f"{caller}: checkpoint= needs to know {name} again when it goes on, which it cannot ({error}); leave it out."
            ) from error
    return hashes


@contextmanager
def keeping(
    caller: str,
    file: File | Journal | None,
    dependencies: NamedValues,
    part: slice | None = None,
) -> Iterator[None]:
    """Keep the steps computed inside in a file, for a run that depends on `dependencies` alone, or
    for a part of it: every `part.step`-th batch of refits from `part.start` on.

    Without a file keep nothing; a journal is read.

    Raises ValueError if the file belongs to another run, is not a checkpoint, is damaged or is in
    use.
    """
    if file is None:
        yield
        return
    from importlib.metadata import version

    hashes = {
        "verb": caller,
        "version of leaveout": f"{version('leaveout')}, format 2",  # of the arrays of steps
        **_hash_dependencies(caller, dependencies),
    }
    if part is not None:
        hashes |= {"part": str(part.start), "number of parts": str(part.step)}
    if isinstance(file, Journal):
        journal = file
        journal.check(hashes, journal.hashes)
    else:
        journal = Journal(caller, file, hashes)
    outer_journal = _journal.set(journal)
    try:
        yield
    finally:
        _journal.reset(outer_journal)
        journal.close()


def depends(**dependencies: Any) -> None:
    """Record that the steps from here on also depend on these values. Raises ValueError if they
    were others in the file.
    """
    journal = _journal.get()
    if journal is not None:
        hashes = _hash_dependencies(
            journal.hashes["verb"],
            {name.replace("_", " "): value for name, value in dependencies.items()},
        )
        saved_hashes = read_or_make(
            lambda: {name: np.array(digest) for name, digest in hashes.items()}
        )
        journal.check(hashes, {name: str(digest) for name, digest in saved_hashes.items()})


def num_saved_steps() -> int:
    """Number of the next steps that the file has already."""
    journal = _journal.get()
    return 0 if journal is None else max(journal.count - journal.position, 0)


def read_step() -> StepResult:
    """Result of the next step, read from the file."""
    journal = _journal.get()
    assert journal is not None
    return journal.next()


def keep(result: StepResult) -> None:
    """Keep the result of a step, if there is a file."""
    journal = _journal.get()
    if journal is not None:
        journal.add(result)


@contextmanager
def making() -> Iterator[None]:
    """Mark that a step is being computed, so that no part of it counts as a step of its own."""
    outer_journal = _journal.set(None)
    try:
        yield
    finally:
        _journal.reset(outer_journal)


def read_or_make(make: Callable[[], StepResult]) -> StepResult:
    """Result of a step: read from the file if it is there, else `make()`."""
    if num_saved_steps():
        return read_step()
    if _journal.get() is None:
        return make()
    with making():
        result = make()
    keep(result)
    return result
