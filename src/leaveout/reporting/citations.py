"""What to cite for a result.

The theorem behind its errors, the papers whose methods it uses, and software.
"""

import dataclasses
import sys
from importlib.metadata import version
from importlib.resources import files
from re import M, S, findall, sub
from typing import Any

from .._runtime import Lines, PrintedResult, Texts

THEOREM = "Errors are proved, as “The idea” in the documentation and leaveout.linalg.enclosure_theorem say."


@dataclasses.dataclass(frozen=True, repr=False)
class Citations(PrintedResult):
    """Citations of a result.

    A sentence on the theorem, if errors are proved, and entries of BibTeX by their keys.
    """

    theorem: str
    entries: Texts

    def _facts(self) -> Lines:
        lines = []
        if self.theorem:
            lines = [("theorem", self.theorem)]
        for key, entry in self.entries.items():
            part = {
                name: sub("[{}]", "", text) for name, text in findall(r"(\w+) = \{(.*)\}", entry)
            }
            where = [
                part[name]
                for name in ("journal", "booktitle", "publisher", "howpublished")
                if name in part
            ]
            where += [part[name] for name in ("volume", "pages", "year") if name in part]
            lines.append(
                (
                    key,
                    f"{part['author'].replace(' and ', '; ')}. {part['title']}. {', '.join(where)}.",
                )
            )
        return lines

    @property
    def bibtex(self) -> str:
        """The entries, for a file of BibTeX."""
        return "\n".join(self.entries.values()) + "\n"


def cite(result: Any) -> Citations:
    """Say what to cite for a result: theorems, papers and software that it used.

    Parameters
    ----------
    result : Fit, Estimate, Comparison, Influence, table of `interval`, or any other result
        What is to be published.

    Returns
    -------
    Citations
        Prints one line a reference. `bibtex` holds the entries for a file of BibTeX.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.eye(8)[:, :2], np.arange(8.0), "squared"))
    >>> found = lo.cite(lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NewtonStep()))
    >>> [key for key in found.entries if key not in ("jax2018", "harris2020", "virtanen2020")]
    ['leaveout', 'pregibon1981', 'rad2020', 'shlomo2024']
    >>> found.bibtex.partition(",")[0]
    '@software{leaveout'
    """
    software = "@software{leaveout,\n  author = {The leaveout developers},\n  title = {leaveout: one fit, every fold},"
    software += f"\n  howpublished = {{version {version('leaveout')}}},\n}}"
    used = {
        *findall(r"\w+", " ".join(_names(result))),
        "numpy",
        "scipy",
        *({"jax"} & sys.modules.keys()),
    }
    entries = {"leaveout": software}
    for entry in findall(
        r"^@.*?^\}", files(__package__).joinpath("references.bib").read_text("utf-8"), M | S
    ):
        keywords = findall(r"keywords = \{(.*)\}", entry)[0].split(", ")
        if used & set(keywords):
            entries[findall(r"\{(\w+),", entry)[0]] = sub(r"\n  keywords = .*", "", entry)
    return Citations(THEOREM if _is_proved(result) else "", entries)


def _names(result) -> list[str]:
    """List the names of what a result used.

    Strategy, model, penalty, plan, measures, and those of the results in it.
    """
    labels = getattr(result, "labels", None)
    attributes = getattr(result, "attrs", {})
    texts = [getattr(labels, name, None) for name in ("objective", "refit")]
    texts += [attributes.get(name) for name in ("objective", "refit", "method", "score")]
    texts += [getattr(result, name, None) for name in ("method", "refit", "call")] + [
        *getattr(result, "measured", ())
    ]
    several = getattr(result, "estimates", ())
    parts = [
        getattr(result, name, None)
        for name in ("estimate", "fit", "objective", "penalty", "whole", "plan")
    ]
    if isinstance(several, dict):
        several = several.values()
    parts += several
    ours = [part for part in parts if type(part).__module__.startswith(__name__.partition(".")[0])]
    return [
        type(result).__name__,
        *(text for text in texts if isinstance(text, str)),
        *(x for part in ours for x in _names(part)),
    ]


def _is_proved(result) -> bool:
    """Return whether a theorem bounds the errors of all refits of a result."""
    if "proved" in getattr(result, "attrs", {}):
        return bool(result.attrs["proved"])
    proved = getattr(result, "proved", None)
    return proved is not None and len(proved) > 0 and bool(proved.all())
