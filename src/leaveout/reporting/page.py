"""Self-contained pages: they need no network, no server and no Python.

Jinja2 writes the text, and escapes everything that comes from data. Vega-Lite, whose program from
vl-convert is part of the page, draws the pictures. A short script sorts and searches tables, and
downloads them as CSV.
"""

import datetime
import importlib.metadata
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..data.arrays import label_texts as worded
from ..validation.checks import Check

TEMPLATE = Path(__file__).parent / "report.html"
HOSTS = "numpy", "scipy", "pandas", "scikit-learn", "jax", "statsmodels", "glum", "hmmlearn"
# rows of a picture, one for each model
MODEL: dict[str, str | None] = {"field": "model", "type": "nominal", "sort": None, "title": None}
BLUE = "#1f5fa8"
ORANGE = "#c05a00"
RED = "#b3261e"
GREY = "#767676"
GREEN = "#2e7d32"
PURPLE = "#6a3d9a"
BROWN = "#8a6d00"
# the same colours on dark screens
DARK = {
    BLUE: "#8ab8f0",
    ORANGE: "#ffa657",
    RED: "#ff9388",
    GREY: "#9a9a9a",
    GREEN: "#8fd694",
    PURPLE: "#c8a6ef",
    BROWN: "#dcc06a",
}

Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class PageTable:
    """A table that can be sorted, searched and downloaded by its `name`."""

    name: str
    title: str
    note: str
    frame: pd.DataFrame

    @property
    def data(self) -> dict[str, Any]:
        """Return the columns, which of them hold numbers, and the rows, for JSON."""
        frame = self.frame
        kinds = [
            pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)
            for kind in frame.dtypes
        ]
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


def _plain(value: Any) -> Any:
    """Convert a value to JSON; None if a number is not finite."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return str(value)


@dataclass(frozen=True)
class Figure:
    """Picture in Vega-Lite, with its title and an explanation."""

    name: str
    title: str
    caption: str
    layers: list[dict[str, Any]]
    height: int = 320

    @property
    def spec(self) -> dict[str, Any]:
        """Return the picture at the width of the page."""
        axis = {
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": "#e4e4e4",
            "labelLimit": 160,
            "labelSeparation": 6,
        }
        config = {
            "background": "transparent",
            "axis": axis,
            "legend": {"labelFontSize": 12, "title": None, "orient": "top"},
            "view": {"stroke": None},
        }
        size = {
            "width": "container",
            "height": self.height,
            "autosize": {"type": "fit-x", "contains": "padding"},
        }
        return {
            "description": f"{self.title}. {self.caption}",
            **size,
            "config": config,
            "layer": self.layers,
        }


@dataclass(frozen=True)
class Page:
    """The content of a report."""

    title: str
    question: str
    answers: list[tuple[str, str, str]]  # name, value and error of each answer
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
    try:
        import jinja2
        import vl_convert
    except ImportError:
        raise ImportError(
            "report needs Jinja2 and vl-convert: pip install 'leaveout[report]'."
        ) from None
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template.policies["json.dumps_kwargs"] = {"allow_nan": False}  # browsers cannot read NaN
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
        "</script", "<\\/script"
    )
    used = [name for name in HOSTS if name.replace("scikit-learn", "sklearn") in sys.modules]
    versions = [(name, importlib.metadata.version(name)) for name in ("leaveout", *used)]
    versions += [
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    text = template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        page=page,
        script=script,
        dark_colors=DARK,
        now=datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        versions=versions,
    )
    file.write_text(text, encoding="utf-8")
    return file


def data_of(frame: pd.DataFrame) -> dict[str, Any]:
    return {
        "values": [
            {name: _plain(value) for name, value in row.items()} for row in frame.to_dict("records")
        ]
    }


def axis(name: str, title: str, **options: Any) -> dict[str, Any]:
    return {
        "field": name,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False, "nice": True},
        **options,
    }


def tooltip(**names: str) -> list[dict[str, str]]:
    """Build the tooltip of a point, with its fields by their titles."""
    words = {"type": "nominal"}
    number = {"type": "quantitative", "format": ".5g"}
    kinds = dict.fromkeys(("label", "told", "model", "strategy"), words)
    return [
        {"field": name, "title": title, **kinds.get(name, number)} for name, title in names.items()
    ]


def layer(
    data: dict[str, Any], mark: str, encoding: dict[str, Any], **style: Any
) -> dict[str, Any]:
    """Build one layer of a picture.

    Marks of one kind and style, one for each row of the data, or for each pair of them.
    """
    return {"data": data, "mark": {"type": mark} | style, "encoding": encoding}


def rules(data: dict[str, Any], low: str, high: str, color: str, width: int) -> dict[str, Any]:
    return layer(
        data,
        "rule",
        {"x": axis(low, ""), "x2": {"field": high}, "y": MODEL},
        color=color,
        strokeWidth=width,
    )


def reference(*values: float, **style: Any) -> dict[str, Any]:
    """Build grey lines across a picture."""
    return layer(
        {"values": [{"at": value} for value in values]},
        "rule",
        {"x": axis("at", "")},
        color=GREY,
        **style,
    )


def colored(name: str, **colors: str) -> dict[str, Any]:
    """Colour marks by the words in a field."""
    return {
        "field": name,
        "type": "nominal",
        "scale": {"domain": list(colors), "range": list(colors.values())},
    }


def bars(
    name: str,
    title: str,
    caption: str,
    frame: pd.DataFrame,
    across: dict[str, Any],
    hint: list[dict[str, str]],
) -> Figure:
    """Draw a bar for each row, named by its `label`."""
    place = {
        "y": {"field": "label", "type": "nominal", "sort": None, "title": None},
        "x": across,
        "tooltip": hint,
    }
    return Figure(
        name,
        title,
        caption,
        [layer(data_of(frame), "bar", place, color=BLUE)],
        22 * len(frame) + 40,
    )
