"""Results that print as lines of a name and a text. Notebooks, pages and Markdown show the same lines as a table."""

import html
from typing import Any


def kind_of(objective: Any) -> str:
    """Name of the kind of model, as users know it; a stand-in has the name of the model that it stands in for."""
    kind = type(objective)
    return getattr(kind, "shown", kind.__name__)


class PrintedResult:
    """Base of results that print as lines of a name and a text."""

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
        """Format the printed lines as a table in Markdown.

        Returns
        -------
        str
            The table.
        """
        cell = lambda text: html.escape(text, quote=False).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
        return "\n".join(["| | |", "|---|---|", *(f"| {cell(name)} | {cell(text)} |" for name, text in self._lines())])
