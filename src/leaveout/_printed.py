"""Results that are printed as lines `name  text`; notebooks, pages and Markdown show the same as a table."""

import html
from typing import Any


def kind_of(objective: Any) -> str:
    """The kind of model, by the name that users know: of one that stands in for another, that one's."""
    kind = type(objective)
    return getattr(kind, "shown", kind.__name__)


class Printed:
    """What is told by lines of a name and a text each."""

    def _lines(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(f"{name:<16}{text}" for name, text in self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self._lines()
        )
        return f"<table>{rows}</table>"

    def to_markdown(self) -> str:
        """The printed lines as a table in Markdown."""
        cell = lambda text: html.escape(text, quote=False).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
        return "\n".join(["| | |", "|---|---|", *(f"| {cell(name)} | {cell(text)} |" for name, text in self._lines())])
