"""A progress bar on standard error for what takes more than two seconds, and nothing for what does not."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress

PATIENCE = 2.0  # seconds


class Slow:
    """`with Slow("refits", 1000) as bar: ... bar.advance(10)`."""

    def __init__(self, label: str, total: int):
        self.label, self.total = label, total
        self.start, self.finished = time.monotonic(), 0
        self.bar: Progress | None = None

    def __enter__(self) -> "Slow":
        return self

    def advance(self, count: int = 1) -> None:
        self.finished += count
        if self.bar is None and time.monotonic() - self.start > PATIENCE and self.finished < self.total:
            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(self.label, total=self.total)
            self.bar.start()
        if self.bar is not None:
            self.bar.update(self.task, completed=self.finished)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
