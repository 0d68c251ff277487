"""Tables of parameters in the reference: types and defaults from signatures, what each is from the
sentences of the docstring that name it. Docstrings with sections of their own are left alone; what
the others have in common is said here, once."""

import importlib
import inspect
import re

import griffe

COMMON = {
    "X": "rows by columns, NumPy or a frame",
    "y": "the response of each row",
    "fit": "of `lo.fit`, `lo.anchor` or `lo.from_…`",
    "plan": "what is left out",
    "refit": "the strategy, `lo.Certified()` unless told otherwise",
    "estimator": "a fitted estimator of the other library, or one to be fitted",
    "estimate": "of `lo.cross_validate`",
    "estimates": "of `lo.cross_validate`, by name",
    "exact": "the same with `lo.Exact()`",
    "objective": "the model with its data",
    "num_units": "how many units there are: rows, steps, sites or whole sequences",
    "seed": "of the random draws",
    "groups": "the group of each row",
    "labels": "the label of each unit",
    "cv": "a number of folds, a splitter, or pairs of rows, as in scikit-learn",
    "ax": "axes to draw on; a new figure without",
    "found": "what the verb of that name returned",
    "level": "of the intervals",
    "n_jobs": "processes side by side",
    "checkpoint": "a file that keeps what is done, for the same call to go on from",
    "intercept": "is there one?",
    "sample_weight": "a weight for each row",
    "offset": "added to each row's linear predictor",
    "link": "by name, or one of `lo.losses.links`",
    "theta": "parameters by name, as `fit.parameters` has them",
    "remark": "a sentence that printed results carry",
    "num_states": "how many hidden states there are",
    "fraction": "the share of units that a fold leaves out",
    "lengths": "of the sequences that stand in one another's wake",
}


def described(name: str, text: str) -> str:
    """The sentence, or part of one, that begins with it; what is common to all calls.

    The first that names it.
    """
    sentences = re.split(r"(?<=[.;])\s+", re.sub(r"\s+", " ", text))
    begin = [part for part in sentences if re.match(rf"`\*{{0,2}}{name}[`=]", part)]
    named = [part for part in sentences if re.search(rf"`\*{{0,2}}{name}\b", part)]
    return [*begin, *([COMMON[name]] if name in COMMON else []), *named, ""][0].rstrip(".; ")


class Tables(griffe.Extension):
    """A section of parameters behind every public docstring that has none."""

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        for module in [pkg, *_modules(pkg)]:
            for found in module.members.values():
                if (
                    not found.is_alias
                    and found.docstring
                    and (found.is_function or (found.is_class and not _result(found)))
                ):
                    _tabled(found)


def _modules(module):
    for inner in module.modules.values():
        if not inner.is_alias:
            yield inner
            yield from _modules(inner)


def _result(found) -> bool:
    """Is it what a verb returns? Nobody calls it."""
    return any(str(base).endswith("Printed") for base in found.bases)


KINDS = (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)


def _tabled(found) -> None:
    text = found.docstring.value
    if any(section.kind in KINDS for section in found.docstring.parsed):
        return
    rows = [
        griffe.DocstringParameter(
            part.name,
            description=described(part.name, text),
            annotation=part.annotation,
            value=part.default,
        )
        for part in found.parameters
        if part.name not in ("self", "cls", "_")
    ] or list(_fields(found, text))
    if rows and not found.name.startswith("_"):
        found.docstring.parsed.append(griffe.DocstringSectionParameters(rows))


def _fields(found, text):
    """Of classes whose parameters are made from their fields, as they run."""
    if not found.is_class or found.name.startswith(("_", "Abstract")):
        return
    made = getattr(importlib.import_module(found.module.path), found.name)
    if issubclass(made, (BaseException, int, dict)):
        return
    for name, part in inspect.signature(made).parameters.items():
        field = found.members.get(name)
        value = None if part.default is part.empty else repr(part.default)
        yield griffe.DocstringParameter(
            name,
            description=described(name, text),
            annotation=field and field.annotation,
            value=value,
        )
