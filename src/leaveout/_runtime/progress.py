"""Progress bar on standard error, with the time left, for calls of more than two seconds."""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

SECONDS_BEFORE_BAR = 2.0  # seconds
ONE = Lock()  # a second bar would overwrite the first


class Slow:
    """Progress bar: `with Slow("refits", 1000) as bar: ... bar.advance(10)`.

    It appears after two seconds, by a clock, so that a long first step is seen as well.
    """

    def __init__(self, label: str, total: int):
        self.label = label
        self.total = total
        self.num_done = 0
        self.changing = Lock()
        self.clock: Timer | None = None

    @functools.cached_property
    def bar(self) -> "Progress":
        """The bar of rich, created when it is first shown."""
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
        )
        times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
        bar = Progress(
            *columns, *times, console=_console(), transient=True, speed_estimate_period=3600
        )
        bar.add_task(self.label, total=self.total, completed=self.num_done)
        return bar

    def __enter__(self) -> "Slow":
        if _has_viewer() and ONE.acquire(blocking=False):
            self.clock = Timer(SECONDS_BEFORE_BAR, self._show)
            self.clock.daemon = True
            self.clock.start()
        return self

    def _show(self) -> None:
        with self.changing:
            if self.clock is not None:
                self.bar.start()

    def advance(self, count: int = 1) -> None:
        self.num_done += count
        if "bar" in vars(self):
            self.bar.update(self.bar.task_ids[0], completed=self.num_done)

    def expect(self, total: int, label: str) -> None:
        """Set a total that is known only now."""
        self.total = total
        self.label = label
        if "bar" in vars(self):
            self.bar.update(self.bar.task_ids[0], total=total, description=label)

    def tell(self, text: str) -> None:
        """Print a line that stays above the bar."""
        if self.clock is not None:
            self.bar.console.print(text, highlight=False, soft_wrap=True)

    def line(self, label: str) -> Callable[..., None]:
        """Add a line for a part of the whole.

        Returns `tell("what is status of it")`, and `tell(..., done=True)` at its end.
        """
        task = self.bar.add_task(label, total=1)
        return lambda status, done=False: self.bar.update(
            task, description=f"{label}: {status}", completed=int(done)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a bar that is never shown, as another process has no terminal."""
        return Slow, (self.label, self.total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        with self.changing:
            if self.clock is not None:
                self.clock.cancel()
                self.clock = None
                if "bar" in vars(self) and self.bar.live.is_started:
                    self.bar.stop()
                ONE.release()


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


def _has_viewer() -> bool:
    """Tell whether a bar is visible: not in a file, nor in a notebook that cannot draw one."""
    forced = {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys()
    if not (forced or "IPython" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())):
        return False  # without importing rich
    console = _console()
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal
