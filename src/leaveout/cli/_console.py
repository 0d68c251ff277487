"""Where the commands print, and how they end on an input that they cannot use."""

from typing import NoReturn

import typer
from rich.console import Console

console = Console(highlight=False, soft_wrap=True)


def fail(message: str) -> NoReturn:
    """One line on standard error, and exit code 2."""
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)
