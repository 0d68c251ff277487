"""A progress bar on standard error for what takes more than two seconds, and nothing for what does not."""

import threading
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PATIENCE = 2.0  # seconds
ONE = threading.Lock()  # bars inside a bar would write over it


class Slow:
    """`with Slow("refits", 1000) as bar: ... bar.advance(10)`. A clock shows it, so a long first step is seen as well."""

    def __init__(self, label: str, total: int):
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
        self.bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task(label, total=total)
        self.changing = threading.Lock()
        self.clock: threading.Timer | None = None

    def __enter__(self) -> "Slow":
        someone = self.bar.console.is_terminal or self.bar.console.is_jupyter  # a file is no one
        if someone and ONE.acquire(blocking=False):
            self.clock = threading.Timer(PATIENCE, self._show)
            self.clock.daemon = True
            self.clock.start()
        return self

    def _show(self) -> None:
        with self.changing:
            if self.clock is not None:
                self.bar.start()

    def advance(self, count: int = 1) -> None:
        self.bar.advance(self.task, count)

    def line(self, label: str) -> Callable[..., None]:
        """A line of its own for a part of the whole: `tell("what is known of it")`, at the end `tell(..., done=True)`."""
        task = self.bar.add_task(label, total=1)
        return lambda known, done=False: self.bar.update(task, description=f"{label}: {known}", completed=int(done))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        with self.changing:
            if self.clock is not None:
                self.clock.cancel()
                self.clock = None
                if self.bar.live.is_started:
                    self.bar.stop()
                ONE.release()
