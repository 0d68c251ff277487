"""Output of the commands, and their exits on unusable input."""

import os
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

INTERRUPT_EXIT_CODE = 130  # exit code after Ctrl-C
console = Console(highlight=False, soft_wrap=True, markup=False)
TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text("utf-8"))
words: list[str] = []  # arguments of the current command
# errors of the input, not of the library
INPUT = ValueError, TypeError, RuntimeError, ArithmeticError, OSError, ImportError, MemoryError


class Commands(TyperGroup):
    """Commands that end in one line on standard error, with exit code 2; 1 for a fault of the
    library; 130 on Ctrl-C.

    The module of a command is imported when the command is called. On Ctrl-C the results so far
    come first. With LEAVEOUT_TRACEBACK set, an exception that is neither usage nor a message of the
    library is raised as it is.
    """

    def resolve_command(self, ctx, args: list[str]):
        name, _, arguments = super().resolve_command(ctx, args)
        subapp = typer.Typer(add_completion=False)
        subapp.command(name)(getattr(import_module(f".{name}", __package__), str(name)))
        self.commands[str(name)] = command = typer.main.get_command(subapp)
        return name, command, arguments

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            partial = getattr(interrupt, "partial", None)
            # a result, not an array
            if hasattr(partial, "_repr_html_") or hasattr(partial, "verdict"):
                console.print(str(partial))
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            has_checkpoint = command is not None and any(
                option.name == "checkpoint" for option in command.params
            )
            advice = (
                "; with --checkpoint FILE the same command goes on from there"
                if has_checkpoint
                else ""
            )
            _say(f"{getattr(interrupt, 'told', 'stopped')}{advice}.")
            raise typer.Exit(INTERRUPT_EXIT_CODE) from None

    def main(self, *args, **options):
        arguments = options.get("args", args[0] if args else None)
        words[:] = ["leaveout", *(sys.argv[1:] if arguments is None else arguments)]
        console.quiet = "--json" in words
        try:
            code = super().main(*args, **options | {"standalone_mode": False})
        except typer.Abort:
            code = 1
        except Exception as error:
            code = _report_end(error)
        # its own process, in which threads may still run
        if code == INTERRUPT_EXIT_CODE and sys.stdout is sys.__stdout__:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(INTERRUPT_EXIT_CODE)
        sys.exit(code if isinstance(code, int) else 0)


def _report_end(error) -> int:
    """Print how a command ended, and return its exit code."""
    if hasattr(error, "format_message"):  # errors of options, whose class is internal to typer
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            path = getattr(getattr(error, "ctx", None), "command_path", "leaveout")
            _say(f"{message.rstrip('.')}{'' if message.endswith('?') else ';'} see {path} --help.")
        return 2
    if isinstance(error, Unusable):
        _say(str(error))
        return 2
    if os.environ.get("LEAVEOUT_TRACEBACK"):
        raise error
    if isinstance(error, MemoryError):
        _say("this needs more memory than there is; use fewer rows or columns.")
        return 2
    if isinstance(error, INPUT):
        _say(str(error) or type(error).__name__)
        return 2
    _say(
        f"a fault of leaveout, {type(error).__name__}: {error}; please report it. LEAVEOUT_TRACEBACK=1 shows where it is."
    )
    return 1


class Unusable(Exception):
    """Unusable input; its text is the printed line."""


@contextmanager
def one_line(where: str) -> Iterator[None]:
    """End with the library's message on bad input, preceded by `where`, the source of the input."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, Unusable) as error:
        fail(where + str(error))


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """End with one line if the file cannot be written."""
    try:
        yield
    except OSError as error:
        fail(f"{file}: it could not be written ({error.strerror}); name another file.")


@contextmanager
def warnings_as_notes() -> Iterator[list[str]]:
    """Collect the texts of the warnings for users, each once, in a list that is complete at the
    end.
    """
    notes: list[str] = []
    with warnings.catch_warnings(record=True, action="always") as caught:
        yield notes
    notes += dict.fromkeys(
        str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)
    )


def join_notes(*notes: str) -> str:
    """Join the notes that are not empty."""
    return "; ".join(filter(None, notes))


def print_notes(*notes: str) -> None:
    """Print each note that is not empty, once, on a line."""
    for note in dict.fromkeys(filter(None, notes)):
        console.print(note)


def table_of(*headings: str, words: tuple[str, ...] = (), **options) -> Table:
    """Make a table for the console: columns of `words` wrap, others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", **options)
    for heading in headings:
        table.add_column(
            heading, justify="left" if heading in words else "right", no_wrap=heading not in words
        )
    return table


def abbreviate(names: Sequence[str], count: int = 5) -> str:
    """Join the first names, with … if there are more."""
    return f"{', '.join(names[:count])}{', …' if len(names) > count else ''}"


def fail(message: str) -> NoReturn:
    """End with one line on standard error, and exit code 2."""
    raise Unusable(message)


def _say(message: str) -> None:
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
