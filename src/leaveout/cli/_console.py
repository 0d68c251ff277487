"""Where the commands print, and how they end on an input that they cannot use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console

import leaveout as lo

console = Console(highlight=False, soft_wrap=True)
REFITS: dict[str, lo.AbstractRefit] = {
    "certified": lo.Certified(),
    "exact": lo.Exact(),
    "newton": lo.NewtonStep(),
    "ij": lo.InfinitesimalJackknife(),
    "none": lo.NoUpdate(),
}


@contextmanager
def one_line(where: str = "") -> Iterator[None]:
    """What the library raises on bad input says what to do: its message is the whole output."""
    try:
        yield
    except (ValueError, TypeError) as error:
        fail(where + str(error))


def fail(message: str) -> NoReturn:
    """One line on standard error, and exit code 2."""
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)
