"""Commands of the command line, `leaveout COMMAND`."""

from typing import Annotated

import typer

import leaveout as lo

from ._console import TABLES, Commands, console

COMMANDS = TABLES["commands"]
app: typer.Typer = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
for name, summary in COMMANDS.items():
    app.command(name, help=summary)(lambda: None)


def _print_version(version: bool) -> None:
    if version:
        console.print(f"leaveout {lo.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """One fit, every fold.

    Cross-validation of smooth models without refitting them fold by fold.
    """
