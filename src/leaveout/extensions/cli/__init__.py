"""Commands of the command line, `leaveout COMMAND`."""

from typing import Annotated

import typer

import leaveout as lo

from ._console import Commands, console

COMMANDS = {  # in the order of `leaveout --help`; the module of the same name has the rest
    "demo": "Certified leave-one-out of a logistic regression on real data, checked by refitting it.",
    "glm": "Cross-validate a regression of the rows of a file.",
    "compare": "Compare regressions of one file by their held-out loss, over the same rows and folds.",
    "tune": "Choose the ridge penalty of a regression by its held-out loss, or one penalty for each column.",
    "interval": "Compute prediction intervals for the responses of new rows, whatever their distribution, by the jackknife+ "
    "from one fit.",
    "influence": "Show how a regression changes when rows of a file, or folds of them, are left out.",
    "report": "Write one page on how well the other columns predict a column, for rows that the model has not seen.",
    "hmm": "Cross-validate hidden Markov models of a series over the number of states.",
    "mrf": "Cross-validate hidden Markov random fields over numbers of states and couplings.",
    "leakage": "Estimate the score on new clusters, without what leaks between the filed clusters.",
    "crf": "Cross-validate a linear-chain conditional random field of tagged sentences.",
}
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
