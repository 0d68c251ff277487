"""Options of the commands: each is written once, and checked before anything is computed."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typer import Argument, CallbackParam, Option, models

import leaveout as lo

from ._console import fail

REFITS = {
    "certified": "Certified",
    "exact": "Exact",
    "newton": "NewtonStep",
    "ij": "InfinitesimalJackknife",
    "none": "NoUpdate",
}
PICTURES = ".png", ".pdf", ".svg"
PAGES = ".html", ".htm"
# what a docstring says of an option: its name, its flags if they are others, and its help
DESCRIPTION = re.compile(r"(?m)^(\w+)(?: : (--.+))?\n((?: {4}.+\n?)+)")


def option(
    text: str, *flags: str, choices: Sequence[str] = (), least: int | None = None
) -> models.OptionInfo:
    """Make an option of one of the choices, or of a number that is not less than the least.

    `{}` in its help is the choices.
    """

    def check(param: CallbackParam, value):
        if choices and value is not None and value not in choices:
            fail(f"{param.opts[0]} {value}: it must be one of {', '.join(choices)}.")
        if least is not None and value < least:
            fail(f"{param.opts[0]} {value}: give {least} or more.")
        return value

    limited = bool(choices) or least is not None
    return Option(*flags, help=text.format(", ".join(choices)), callback=check if limited else None)


def option_of(kind: Any, text: str, *flags: str) -> Any:
    """Return a type as one of an option: text where there are choices, a file that is written where
    it is a path.
    """
    if kind == Path | None:
        return Annotated[kind, output_file(text, *flags)]
    literals = [literal for literal in (kind, *get_args(kind)) if get_origin(literal) is Literal]
    choices = [choice for literal in literals for choice in get_args(literal)]
    if choices:
        kind = str | None if type(None) in get_args(kind) else str
    return Annotated[kind, option(text, *flags, choices=choices)]


class OptionsOf:
    """Options of a command that are parameters of a verb, with the verb's types, choices and
    defaults; their help is given.
    """

    def __init__(self, verb: Callable[..., Any], **texts: str | models.OptionInfo) -> None:
        parameters = inspect.signature(verb).parameters
        kinds = get_type_hints(verb)
        self.options: dict[str, tuple[Any, Any]] = {}
        for name, text in texts.items():
            kind = kinds[name]
            if isinstance(text, str):
                kind = option_of(kind, text)
            else:
                kind = Annotated[kind, text]
            self.options[name] = kind, parameters[name].default


def kinds_of(described: Any) -> dict[str, Any]:
    """Return the types of parameters, or of the fields of a class: those of which the docstring
    tells are options.
    """
    kinds = get_type_hints(described, include_extras=True)
    entries = {
        name: (text, flags.split())
        for part in reversed(getattr(described, "__mro__", (described,)))
        for name, flags, text in DESCRIPTION.findall(str(inspect.getdoc(part)))
    }
    for name, (text, flags) in entries.items():
        kinds[name] = option_of(kinds[name], " ".join(text.split()), *flags)
    return kinds


def command(omit: str = "", **defaults) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function. It has an option for each parameter of the function.

    A parameter that is a dataclass stands for the options among its fields, except those of `omit`,
    and one with `OptionsOf` for a dictionary of these. The `defaults` replace those of such
    options. A file that is read is not written.
    """

    def make(function: Callable[..., None]) -> Callable[..., None]:
        hints = kinds_of(function)
        options: dict[str, tuple[Any, Any]] = {}
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            verbs = [
                metadata
                for metadata in getattr(hints[name], "__metadata__", ())
                if isinstance(metadata, OptionsOf)
            ]
            if verbs:
                new_options = verbs[0].options
                groups[name] = dict, list(new_options)
            elif isinstance(kind := hints[name], type) and is_dataclass(kind):
                kinds = kinds_of(kind)
                chosen = [
                    field for field in fields(kind) if get_origin(kinds[field.name]) is Annotated
                ]
                new_options = {
                    field.name: (kinds[field.name], field.default)
                    for field in chosen
                    if field.name not in omit.split()
                }
                groups[name] = kind, list(new_options)
            else:
                new_options = {name: (hints[name], parameter.default)}
            options |= new_options
        paths = {
            name: kind.__metadata__[0]
            for name, (kind, _) in options.items()
            if kind.__origin__ in (Path, Path | None)
        }

        def run(**arguments) -> None:
            files = {name: arguments[name] for name in paths if arguments[name] is not None}
            read = {file.resolve() for name, file in files.items() if not paths[name].callback}
            for name, file in files.items():
                if paths[name].callback and file.resolve() in read:
                    fail(f"{file}: it is the file that is read; name another.")
            for name, (group, names) in groups.items():
                arguments[name] = group(
                    **{option_name: arguments.pop(option_name) for option_name in names}
                )
            function(**arguments)

        runner: Any = run
        runner.__doc__ = str(inspect.getdoc(function)).partition("\n\nParameters\n")[0]
        runner.__name__ = function.__name__
        runner.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=defaults.get(name, default),
                    annotation=kind,
                )
                for name, (kind, default) in options.items()
            ]
        )
        return run

    return make


def writable(file: Path | None) -> Path | None:
    """Check, as a callback, that the file can be written."""
    if file is None:
        return None
    if not file.parent.is_dir():
        fail(f"{file}: there is no folder {file.parent}; make it first.")
    if file.is_dir():
        fail(f"{file} is a folder; name a file in it.")
    target = file if file.exists() else file.parent
    if not os.access(target, os.W_OK):
        fail(f"{file}: no permission to write there; name another file.")
    return file


def drawable(file: Path | None) -> Path | None:
    """Check, as a callback, that a picture can be drawn into the file."""
    if file is not None and file.suffix.lower() not in PICTURES:
        fail(f"{file}: the name of a picture must end in one of {', '.join(PICTURES)}.")
    if file is not None and importlib.util.find_spec("matplotlib") is None:
        fail("A picture needs Matplotlib: pip install 'leaveout[plot]'.")
    return writable(file)


def pageable(file: Path | None) -> Path | None:
    """Check, as a callback, that a report can be written into the file."""
    if file is not None and file.suffix.lower() not in PAGES:
        fail(f"{file}: the name of a report must end in .html.")
    if file is not None and any(
        importlib.util.find_spec(name) is None for name in ("jinja2", "matplotlib")
    ):
        fail("A report needs Jinja2 and Matplotlib: pip install 'leaveout[report]'.")
    return writable(file)


def split_names(text: str | None) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def input_file(text: str, *flags: str):
    """Make an option for a file that is read."""
    return Option(*flags, help=text, readable=False)


def output_file(text: str, *flags: str, check: Callable[[Path | None], Path | None] = writable):
    """Make an option for a file that is written."""
    return Option(*flags, help=text, readable=False, callback=check)


Data = Annotated[
    Path,
    Argument(help="A CSV file with a header, or Parquet; - is standard input.", readable=False),
]
Table = Annotated[Path | None, output_file("A CSV file for the table.")]
Plot = Annotated[Path | None, output_file("A file for a picture (png, pdf, svg).", check=drawable)]
Report = Annotated[
    Path | None, output_file("A file for a report, a page by itself (html).", check=pageable)
]
Checkpoint = Annotated[
    Path | None,
    output_file(
        "A file that keeps what is done: the same command goes on from there, if it was stopped."
    ),
]


@dataclass(frozen=True)
class FoldOptions:
    """Options of a cross-validation.

    Attributes
    ----------
    score
        Of the held-out rows: {}; the loss itself if not given.
    seed
        Of the folds.
    mute
        Codes of checks not to tell, as LO103,LO202.
    metric
        A measure of held-out predictions, as auc; may be given several times.
    title
        Of the report.
    json : --json
        Print the whole result as one JSON document, and nothing else.
    """

    refit: Annotated[str, option("One of {}.", "--strategy", "--refit", choices=tuple(REFITS))] = (
        "certified"
    )
    score: Literal["log-density", "squared-error", "absolute-error", "zero-one", "crps"] | None = (
        None
    )
    seed: int = 0
    checkpoint: Checkpoint = None
    mute: str | None = None
    metric: list[str] | None = None
    title: str = ""
    json: bool = False

    def __post_init__(self) -> None:
        wrong = [code for code in split_names(self.mute) if code not in lo.validation.CHECKS]
        if wrong:
            fail(f"--mute {', '.join(wrong)}: codes are {', '.join(lo.validation.CHECKS)}.")

    @property
    def strategy(self) -> lo.developer.AbstractRefit:
        return getattr(lo, REFITS[self.refit])()

    def checkpoint_of(self, number: int) -> Path | None:
        """Number the file of the checkpoint for each of several models.

        `run.ckpt`, `run-2.ckpt` and so on.
        """
        file = self.checkpoint
        if file is None or number == 1:
            return file
        return file.with_name(f"{file.stem}-{number}{file.suffix}")

    def cross_validate(self, fit: lo.Fit, folds: lo.Plan, number: int = 1) -> lo.Estimate:
        """Cross-validate the fit of a model, which is one of several by its number."""
        score: Any = None if self.score is None else self.score.replace("-", "_")
        measures: Any = [name.replace("-", "_") for name in self.metric or ()]
        estimate = lo.cross_validate(
            fit,
            folds,
            strategy=self.strategy,
            evaluate=score,
            checkpoint=self.checkpoint_of(number),
            metric=measures,
        )
        return estimate.muted(*split_names(self.mute))


# numbers in the name of a plan
WHOLE = r"(\d+(?:\.0*)?(?:e\+?\d+)?)"
NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"


def whole_number(text: str) -> int:
    """Read a whole number of the name of a plan, such as 1e3."""
    return int(float(text))


def plan_of(
    text: str, plans: str, example: str, schemes: dict[str, Callable[..., lo.Plan]]
) -> lo.Plan:
    """Make a plan from its name, by the first scheme whose pattern matches it.

    The groups of the pattern are its arguments.
    """
    for pattern, scheme in schemes.items():
        if match := re.fullmatch(pattern, text.strip()):
            return scheme(*match.groups())
    return fail(f"it must be {plans}, such as {example}.")
