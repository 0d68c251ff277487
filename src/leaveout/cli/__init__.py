"""Commands of the command line, `leaveout COMMAND`."""

from typing import Annotated

import typer

import leaveout as lo

from ._console import OneLine, console
from .compare import compare
from .crf import crf
from .demo import demo
from .glm import glm
from .hmm import hmm
from .influence import influence
from .interval import interval
from .leakage import leakage
from .mrf import mrf
from .report import report
from .tune import tune

app: typer.Typer = typer.Typer(cls=OneLine, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


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
app.command()(glm)
app.command()(compare)
app.command()(tune)
app.command()(interval)
app.command()(influence)
app.command()(report)
app.command()(hmm)
app.command()(mrf)
app.command()(leakage)
app.command()(crf)
