"""Self-contained pages: they need no network, no server and no Python.

Jinja2 writes the text, and escapes everything that comes from data. The pictures are those of
`plot`, as SVG whose marks tell their numbers under the pointer. A short script sorts and searches
tables, and downloads them as CSV.
"""

import datetime
import importlib.metadata
import io
import platform
import sys
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from .._runtime import Lines, NamedValues, UnaryFunction, optional, record
from ..data import is_number, label_texts as worded
from ..validation.checks import Check
from . import plot
from .questions import Card

TEMPLATE = Path(__file__).parent / "report.html"
HOSTS = "numpy", "scipy", "pandas", "scikit-learn", "jax", "statsmodels", "glum", "hmmlearn"
PAGE_WIDTH = 7.0  # inches
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"


@record
class PageTable:
    """A table that can be sorted, searched and downloaded by its `name`."""

    name: str
    title: str
    note: str
    frame: pd.DataFrame

    @property
    def data(self) -> NamedValues:
        """Return the columns, which of them hold numbers, and the rows, for JSON."""
        frame = self.frame
        kinds = [is_number(kind) for kind in frame.dtypes]
        columns = [_cells(frame.iloc[:, k]) for k in range(frame.shape[1])]
        return {
            "columns": list(map(str, frame.columns)),
            "numbers": kinds,
            "rows": list(zip(*columns, strict=True)),
        }


def _cells(column: pd.Series) -> list[Any]:
    if pd.api.types.is_datetime64_any_dtype(column):
        return worded(pd.Index(column))
    return [_plain(value) for value in column]


def _plain(value: Any):
    """Convert a value to JSON; None if a number is not finite."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return str(value)


@record
class Figure:
    """Picture on axes that are handed to `draw`, with its title and an explanation.

    `marks` tell under the pointer what their columns and their index are, if these have a name. The
    first two columns are where they are, and not told if their names are "x" and "y".
    """

    name: str
    title: str
    caption: str
    draw: UnaryFunction
    marks: pd.DataFrame | None = None
    height: float = 4.0  # inches

    @property
    def svg(self) -> str:
        """Draw the picture, as an element of the page."""
        from matplotlib import figure, rc_context

        settings: dict[Any, Any] = {
            "axes.spines.right": False,
            "axes.spines.top": False,
            "svg.fonttype": "none",
            "svg.hashsalt": self.name,
            "text.parse_math": False,
        }
        file = io.BytesIO()
        hints = []
        with rc_context(settings):
            canvas = figure.Figure((PAGE_WIDTH, self.height), layout="constrained")
            ax = canvas.subplots()
            self.draw(ax)
            if self.marks is not None:
                y = self.marks.iloc[:, 1]
                marks = self.marks[y.between(*sorted(ax.get_ylim()))]
                hints = _hints(marks)
                ax.autoscale(False)
                ax.plot(marks.iloc[:, 0], marks.iloc[:, 1], "o", alpha=0, gid="marks", zorder=9)
            canvas.savefig(file, format="svg", transparent=True)
        ElementTree.register_namespace("", SVG)
        ElementTree.register_namespace("xlink", XLINK)
        root = ElementTree.fromstring(file.getvalue())  # noqa: S314 (Matplotlib's)
        root.attrib |= {"role": "img", "aria-label": self.title}
        marked = root.iterfind(f".//*[@id='marks']//{{{SVG}}}use")
        for mark, hint in zip(marked, hints, strict=True):
            ElementTree.SubElement(mark, f"{{{SVG}}}title").text = hint
        for group in root.iter(f"{{{SVG}}}g"):
            group.attrib.pop("id", None)  # pictures of one page have the same
        for metadata in root.findall(f"{{{SVG}}}metadata"):
            root.remove(metadata)
        return ElementTree.tostring(root, "unicode")


def _hints(marks: pd.DataFrame) -> list[str]:
    """Write what each mark tells, one fact a line."""
    facts = marks.drop(columns=["x", "y"], errors="ignore")
    facts = facts.reset_index(drop=marks.index.name is None)
    return [
        "\n".join(
            f"{name}: {value:.5g}" if isinstance(value, float) else f"{name}: {value}"
            for name, value in row.items()
        )
        for row in facts.to_dict("records")
    ]


def row_bars(title: str, caption: str, rows: pd.DataFrame) -> Figure:
    """Draw the first column as a bar for each row, whose end tells what is known of it."""
    rows = rows.rename_axis("row")
    marks = rows.copy()
    marks.insert(1, "y", np.arange(len(rows)))
    draw = partial(plot.bars, rows.iloc[:, 0], rows.columns[0])
    return Figure("carried", title, caption, draw, marks, 0.28 * len(rows) + 0.8)


@record
class Page:
    """The content of a report."""

    title: str
    question: str
    first: list[Card]  # answers to read first, and to remember
    answers: list[Card]  # name, value and error of each answer
    # with the names of their models; None if there are no checks
    checks: list[tuple[str, Check]] | None
    muted: str
    figures: list[Figure]
    tables: list[PageTable]
    printed: dict[str, Lines]
    calls: list[str]
    notes: list[str] = field(default_factory=list)
    pictures_first: bool = False  # whether pictures stand above what is known and checked


def write_page(page: Page, file: Path, notes: Sequence[str]) -> Path:
    """Write the page, with more notes, and return its path."""
    page.notes.extend(note for note in notes if note and note not in page.notes)
    with optional("report needs Jinja2 and Matplotlib: pip install 'leaveout[report]'."):
        import jinja2
        import matplotlib  # noqa: F401
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template.policies["json.dumps_kwargs"] = {"allow_nan": False}  # browsers cannot read NaN
    used = [name for name in HOSTS if name.replace("scikit-learn", "sklearn") in sys.modules]
    versions = [(name, importlib.metadata.version(name)) for name in ("leaveout", *used)]
    versions += [
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    text = template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        page=page,
        now=datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        versions=versions,
    )
    file.write_text(text, encoding="utf-8")
    return file
