"""The command line: `leaveout demo`, `leaveout hmm`, `leaveout leakage`."""

from typing import Annotated

import typer

import leaveout as lo

from ._console import console
from .demo import demo
from .hmm import hmm
from .leakage import leakage

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"leaveout {lo.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""


app.command()(demo)
app.command()(hmm)
app.command()(leakage)
