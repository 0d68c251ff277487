"""A cross-validation, or several side by side, as one page that needs nothing else: no network, no server, no Python.

Text by Jinja2, which escapes whatever comes from data; pictures by Vega-Lite, whose program, from vl-convert, goes into the
page. Tables are data that a few lines of script sort, search and hand out as CSV.
"""

import datetime
import hashlib
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ._checks import Check
from ._compare import compare
from ._estimate import Estimate
from ._read import written

TEMPLATE = Path(__file__).parent / "data" / "report.html"
MOST, POINTS, BARS = 20_000, 2_000, 15  # rows in a table, points in a picture, rows named in one
MODELS = 12  # whose losses stand side by side in a table
HOSTS = ("numpy", "scipy", "pandas", "scikit-learn", "jax", "statsmodels", "glum", "hmmlearn")
MODEL = {"field": "model", "type": "nominal", "sort": None, "title": None}  # down the side
BLUE, ORANGE, RED, GREY = "#1f5fa8", "#c05a00", "#b3261e", "#767676"

Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table that can be sorted, searched and downloaded by its `name`."""

    name: str
    title: str
    note: str
    frame: pd.DataFrame

    @property
    def data(self) -> dict[str, Any]:
        """Its columns, which of them hold numbers, and its rows, as JSON has them."""
        frame = self.frame
        kinds = [pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind) for kind in frame.dtypes]
        columns = [_cells(frame.iloc[:, k]) for k in range(frame.shape[1])]
        return {"columns": list(map(str, frame.columns)), "numbers": kinds, "rows": list(zip(*columns, strict=True))}


def _cells(column: pd.Series) -> list[Any]:
    dates = pd.api.types.is_datetime64_any_dtype(column)
    return written(pd.Index(column)) if dates else [_plain(value) for value in column]


def _plain(value: Any) -> Any:
    """A value as JSON has it: nothing where a number is not known."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return str(value)


@dataclass(frozen=True)
class Figure:
    """A picture in Vega-Lite, what it shows, and how to read it."""

    name: str
    title: str
    caption: str
    layers: list[dict[str, Any]]
    height: int = 320

    @property
    def spec(self) -> dict[str, Any]:
        """The picture as wide as the page."""
        axis = {
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": "#e4e4e4",
            "labelLimit": 160,
        }
        config = {"axis": axis, "legend": {"labelFontSize": 12, "title": None, "orient": "top"}, "view": {"stroke": None}}
        size = {"width": "container", "height": self.height, "autosize": {"type": "fit-x", "contains": "padding"}}
        return {"description": f"{self.title}. {self.caption}", **size, "config": config, "layer": self.layers}


@dataclass(frozen=True)
class Page:
    """All that a report says."""

    title: str
    question: str
    answers: list[tuple[str, str, str]]  # what, how much, and how sure
    checks: list[tuple[str, Check]]  # and of which models
    muted: str
    figures: list[Figure]
    tables: list[Table]
    printed: dict[str, Lines]
    calls: list[str]
    notes: list[str] = field(default_factory=list)


def report(
    found: Estimate | Mapping[str, Estimate], path: str | os.PathLike, *, title: str = "", notes: Sequence[str] = ()
) -> Path:
    """Write an estimate, or several `{name: estimate}` compared, to one page `path`, and return where it is.

    It holds the question, the answer with its errors, what checks say, pictures, the rows in a table that can be sorted,
    searched and downloaded, the audit, and how to do it again; nothing of it is fetched when it is looked at. `title` goes
    above it, `notes` below the answer.

    Needs Jinja2 and vl-convert (`pip install 'leaveout[report]'`). Raises what `compare` raises on estimates that cannot be
    compared, ValueError on a name that does not end in .html.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"report: path must be the name of a file; got {path!r}.")
    file = Path(path)
    if file.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"report: the page is HTML, so its name must end in .html; got {file.name!r}.")
    if isinstance(found, Mapping) and len(found) == 1:
        (found,) = found.values()
    if not isinstance(found, Estimate | Mapping):
        raise TypeError(f"report: give an Estimate, or several as {{name: estimate}}; got {type(found).__name__}.")
    page = _of_one(found, title) if isinstance(found, Estimate) else _of_several(dict(found), title)
    page.notes.extend(note for note in notes if note and note not in page.notes)
    file.write_text(_rendered(page), encoding="utf-8")
    return file


def _rendered(page: Page) -> str:
    try:
        import jinja2
        import vl_convert
    except ImportError:
        raise ImportError("report needs Jinja2 and vl-convert: pip install 'leaveout[report]'.") from None
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template.policies["json.dumps_kwargs"] = {"allow_nan": False}  # which browsers could not read
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    now = datetime.datetime.now().astimezone().isoformat(" ", "minutes")
    return template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        page=page, script=script, now=now, versions=_versions()
    )


def _versions() -> Lines:
    """Of what was there to compute with."""
    used = [name for name in HOSTS if name.replace("scikit-learn", "sklearn") in sys.modules]
    known = {name: importlib.metadata.version(name) for name in ("leaveout", *used)}
    return [*known.items(), ("Python", platform.python_version()), ("machine", f"{platform.system()} {platform.machine()}")]


# one estimate


def _of_one(found: Estimate, title: str) -> Page:
    plan, model = found.plan, found.labels.get("objective", "").partition(",")[0]
    asked = f"Each of {plan.num_refits} refits leaves out {plan.widths}, and is asked for what it left out."
    rows, missing = _rows(found)
    what = f"The {len(rows)} of largest loss; Estimate.table() has the other {missing}." if missing else ""
    tables = [Table("rows", "Refits" if found.joint else "Rows", f"{what} A dash is what is not known.".strip(), rows)]
    if found.audit is not None and len(found.audit):
        tables.append(Table("audit", "Audit", f"{found.labels.get('audit', '')}.", found.audit))
    return Page(
        title or f"{model or 'A model'} on data that it has not seen",
        f"What does the model lose on data that it has not seen? {asked}",
        _answers(found),
        [("", each) for each in found.checks()],
        ", ".join(found.mute),
        _pictures(found),
        tables,
        {"": found._facts()} | ({} if found.fit is None else {"The fit": found.fit._lines()}),
        _calls(found),
        list(filter(None, [found.labels.get("note", "")])),
    )


def _pictures(found: Estimate) -> list[Figure]:
    """Of units: none where losses are joint, or there are none."""
    if found.joint or _units(found).empty:
        return []
    return [_against(found), _carried(found), *([_in_order(found)] if _is_series(found) else [])]


def _is_series(found: Estimate) -> bool:
    return bool(found.plan.serial and found.plan.blocks is None and not found.joint)


def _answers(found: Estimate) -> list[tuple[str, str, str]]:
    se, error = found.standard_error, found.approximation_error
    unit = "a refit, joint" if found.joint else "a unit"
    try:
        known = found.interval()
        interval = (f"{known.low:.4g} to {known.high:.4g}", f"for the mean on new units, method {known.method!r}")
    except ValueError as none:
        interval = ("not available", str(none).partition(": ")[2])
    plus = f" ± {se.value:.2g}" if np.isfinite(se.value) else ""
    proved = found._approximation().partition(", ")[2]
    metrics = [(name, f"{found.metrics[name]:.5g}", found._metric(name).partition(" ")[2]) for name in found.metrics]
    return [
        ("Held-out loss", f"{found.mean:.5g}{plus}", f"{unit}{', ' if found.score else ''}{found.score}; SE: {se.kind}"),
        ("95 % interval", *interval),
        ("Approximation", f"± {error:.1g}" if np.isfinite(error) else "not certified", proved or "see the checks"),
        ("With no update", f"{found.no_update:.5g}", "of data that the model was fitted to: too low"),
        *metrics,
    ]


def _calls(found: Estimate) -> list[str]:
    """What to call for the same numbers, and by what to know the same data."""
    asked = "".join(f", {part}" for part in filter(None, [found.labels.get("asked", "")]))
    settings = "" if found.fit is None else found.fit.settings
    plan = found.plan.call or f"lo.Plan(...)  # {found.plan.num_refits} refits of {found.plan.widths} each"
    lines = [
        f"fit = lo.fit(...)  # {'; '.join(filter(None, (found.labels.get('objective', ''), settings)))}",
        f"plan = {plan}",
        f"cv = lo.cross_validate(fit, plan, lo.{found.labels.get('refit', 'Certified()')}{asked})",
    ]
    if found.response is not None:
        number = hashlib.sha256(np.ascontiguousarray(found.response, np.float64).tobytes()).hexdigest()[:16]
        lines.append(f"# the response, {found.plan.num_units} units as float64, has the SHA-256 {number}…")
    return lines


def _rows(found: Estimate) -> tuple[pd.DataFrame, int]:
    """The rows of largest loss, and how many there are beside them."""
    table = found.table()
    table.insert(table.columns.get_loc("no_update") + 1, "rise", table["loss"] - table["no_update"])
    table = table.sort_values("loss", ascending=False, kind="stable", na_position="first")
    first = ["unit", "loss", "no_update", "rise", "refit", "error", "result"]
    return table[[name for name in first if name in table]].head(MOST), max(0, len(table) - MOST)


def _units(found: Estimate) -> pd.DataFrame:
    """Every unit with a loss: its label, its loss held out and not, and whether a refit that leaves it out is flagged."""
    plan, names = found.plan, found.names()
    words = written(names)
    flagged = np.zeros(plan.num_units, bool)
    flagged[plan.index[plan.held & np.isin(plan.refit, found.flagged())]] = True
    label = words if names.is_unique else [f"{name} (row {k})" for k, name in enumerate(words)]
    held, none = found.per_unit(), found.averaged(found.baseline)
    told = np.where(flagged, "flagged", "not flagged")
    units = pd.DataFrame(
        {"place": _places(names), "label": label, "loss": held, "none": none, "rise": held - none, "told": told}
    )
    units["share"] = np.abs(held) * found._weight / max(np.nansum(np.abs(held) * found._weight), 1e-300)
    return units[np.isfinite(held) & np.isfinite(none)]


def _places(names: pd.Index) -> Any:
    """Where units stand in their order: at their times, as browsers read these in their own zone; else by their numbers."""
    times = names.to_timestamp() if isinstance(names, pd.PeriodIndex) else names
    if not isinstance(times, pd.DatetimeIndex) or times.hasnans:
        return np.arange(len(names))
    return [time.isoformat() for time in times.tz_localize(None)]


def _values(frame: pd.DataFrame) -> dict[str, Any]:
    return {"values": [{name: _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]}


def _axis(name: str, title: str, **more: Any) -> dict[str, Any]:
    return {"field": name, "type": "quantitative", "title": title, "scale": {"zero": False, "nice": True}, **more}


def _told(**names: str) -> list[dict[str, str]]:
    """What is said of a point: its fields by their titles."""
    words, number = {"type": "nominal"}, {"type": "quantitative", "format": ".5g"}
    kinds = dict.fromkeys(("label", "told", "model"), words)
    return [{"field": name, "title": title, **kinds.get(name, number)} for name, title in names.items()]


SAID = {"label": "row", "loss": "held-out loss", "none": "no update", "rise": "rise"}


def _against(found: Estimate) -> Figure:
    units = _units(found)
    flagged = units.index[units["told"] == "flagged"]
    if cut := len(units) > POINTS:
        most, others = units["rise"].nlargest(POINTS // 2).index, units.sample(POINTS // 2, random_state=0).index
        units = units.loc[[*{*flagged[: POINTS // 2], *most, *others}]].sort_index()
    low, high = units[["loss", "none"]].min().min(), units[["loss", "none"]].max().max()
    line = {
        "data": {"values": [{"none": low, "loss": low}, {"none": high, "loss": high}]},
        "mark": {"type": "line", "color": GREY},
    }
    color = {"field": "told", "type": "nominal", "scale": {"domain": ["not flagged", "flagged"], "range": [BLUE, RED]}}
    place = {"x": _axis("none", "loss with no update"), "y": _axis("loss", "held-out loss")}
    points = {
        "data": _values(units.drop(columns="share")),
        "mark": {"type": "point", "filled": True, "size": 36, "opacity": 0.65},
        "encoding": place | {"color": color if len(flagged) else {"value": BLUE}, "tooltip": _told(**SAID, told="its refit")},
    }
    shown = f" Shown are {len(units)} rows: those that rise most, flagged ones, and others at random." if cut else ""
    text = f"Above the line a row loses more when the model has not seen it: how far, is its influence on its own loss.{shown}"
    return Figure("against", "What each row loses by being left out", text, [line | {"encoding": place}, points], 360)


def _carried(found: Estimate) -> Figure:
    units = _units(found).nlargest(BARS, "share")
    total = units["share"].sum()
    bars = {
        "data": _values(units),
        "mark": {"type": "bar", "color": BLUE},
        "encoding": {
            "y": {"field": "label", "type": "nominal", "sort": None, "title": None},
            "x": _axis("share", "share of the loss", scale={"zero": True}, axis={"format": ".1%", "tickCount": 5}),
            "tooltip": [*_told(**SAID), {"field": "share", "title": "share", "type": "quantitative", "format": ".2%"}],
        },
    }
    of = int(np.isfinite(found.per_unit()).sum())
    text = f"The {len(units)} rows of largest loss, of {of}, are {total:.0%} of it all."
    return Figure("carried", "Which rows carry the loss", text, [bars], 22 * len(units) + 40)


def _in_order(found: Estimate, model: str = "") -> Figure:
    units, name = _units(found), found.names().name
    some = units.iloc[:: -(-len(units) // POINTS)]
    dated = not pd.api.types.is_numeric_dtype(units["place"])
    across = {"type": "temporal", "title": name} if dated else {"title": "unit, in order"}
    place = {"x": _axis("place", "") | across, "y": _axis("loss", "held-out loss"), "tooltip": _told(**SAID)}
    thin = f" One in {-(-len(units) // POINTS)} is shown." if len(some) < len(units) else ""
    mark = {"type": "line", "color": BLUE, "strokeWidth": 1, "point": {"filled": True, "size": 16, "color": BLUE}}
    text = f"Runs of large losses are times that the model does not know.{thin}"
    title = "Losses in order" + (f", {model}" if model else "")
    return Figure("order", title, text, [{"data": _values(some), "mark": mark, "encoding": place}], 240)


# several


def _of_several(found: dict[str, Estimate], title: str) -> Page:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = compare(found)
    said = [*(str(each.message) for each in caught), *(each.labels.get("note", "") for each in found.values())]
    first = found[table.index[0]]
    rows = pd.DataFrame({"unit": first.names() if not first.joint else np.arange(first.plan.num_refits)})
    losses = pd.DataFrame({str(name): found[name].per_unit() for name in table.index[:MODELS]})
    rows = pd.concat([rows, losses], axis=1)
    what = f"The held-out loss of every unit under {'each model' if len(found) <= MODELS else f'the best {MODELS} models'}."
    cut = f" The first {MOST} of {len(rows)}." if len(rows) > MOST else ""
    models = table.drop(columns="kind" if len(set(table["kind"])) == 1 else []).rename_axis("model").reset_index()
    return Page(
        title or "Which model loses least on data that it has not seen",
        f"Which of {len(found)} models loses least on data that they have not seen? All are asked for the same units.",
        _compared(table, first),
        _together(found),
        ", ".join(sorted({code for each in found.values() for code in each.mute})),
        [_means(table, found), _differences(table), *([_in_order(first, str(table.index[0]))] if _is_series(first) else [])],
        [Table("models", "Models", "The lowest mean first.", models), Table("rows", "Rows", what + cut, rows.head(MOST))],
        {str(name): each._facts() for name, each in found.items()},
        [line for name, each in found.items() for line in (f"# {name}", *_calls(each))],
        [*filter(None, dict.fromkeys(said))],
    )


def _compared(table: pd.DataFrame, first: Estimate) -> list[tuple[str, str, str]]:
    best, second = table.iloc[0], table.iloc[1]
    plus = lambda se: f" ± {se:.2g}" if np.isfinite(se) else ""
    score = first.score or "a loss that is not known by name"
    sure = f"it is worse than {table.index[0]} with probability {second.worse:.2g}" if np.isfinite(second.worse) else ""
    return [
        ("Lowest mean", str(table.index[0]), f"{best['mean']:.5g}{plus(best.se)} a unit, {score}; SE: {best.kind}"),
        ("Next", str(table.index[1]), f"{second['mean']:.5g}{plus(second.se)} a unit"),
        ("Difference", f"{second.difference:.4g}{plus(second.se_difference)}", f"paired, unit by unit; {sure}".rstrip("; ")),
        (
            "Approximation",
            f"± {second.approximation_error:.1g}",
            "on that difference, for refits that were not made to the end",
        ),
    ]


def _together(found: dict[str, Estimate]) -> list[tuple[str, Check]]:
    """What checks say, once for all models of which they say it."""
    of: dict[Check, list[str]] = {}
    for name, estimate in found.items():
        for each in estimate.checks():
            of.setdefault(each, []).append(str(name))
    order = sorted(of, key=lambda each: (("error", "warning", "info").index(each.severity), each.code))
    return [("all models" if len(of[each]) == len(found) else ", ".join(of[each]), each) for each in order]


def _bars(values: dict[str, Any], low: str, high: str, color: str, width: int) -> dict[str, Any]:
    place = {
        "x": _axis(low, ""),
        "x2": {"field": high},
        "y": MODEL,
    }
    return {"data": values, "mark": {"type": "rule", "color": color, "strokeWidth": width}, "encoding": place}


def _means(table: pd.DataFrame, found: dict[str, Estimate]) -> Figure:
    own = [found[name] for name in table.index]
    frame = table[["mean", "se"]].assign(
        model=list(map(str, table.index)), error=[e.approximation_error for e in own], none=[e.no_update for e in own]
    )
    for low, high, by in (("low", "high", "se"), ("least", "most", "error")):
        frame[low], frame[high] = (frame["mean"] + sign * frame[by].replace(np.inf, np.nan).fillna(0.0) for sign in (-1, 1))
    values = _values(frame)
    told = _told(model="model", mean="held-out loss", se="standard error", error="approximation", none="no update")
    dot = lambda name, **mark: {
        "data": values,
        "mark": {"type": "point", "size": 60, **mark},
        "encoding": {"x": _axis(name, "loss a unit"), "y": MODEL, "tooltip": told},
    }
    layers = [
        _bars(values, "low", "high", BLUE, 1),
        _bars(values, "least", "most", ORANGE, 6),
        dot("none", color=GREY, filled=False),
        dot("mean", color=BLUE, filled=True),
    ]
    text = "Dots are held-out losses, thin lines their standard errors, thick ones the refits' errors; rings have no update."
    return Figure("means", "Held-out losses", text, layers, 34 * len(table) + 40)


def _differences(table: pd.DataFrame) -> Figure:
    frame = table.iloc[1:][["difference", "se_difference", "worse"]].assign(model=list(map(str, table.index[1:])))
    half = frame["se_difference"].fillna(0.0)
    values = _values(frame.assign(low=frame["difference"] - half, high=frame["difference"] + half))
    told = _told(model="model", difference="difference", se_difference="standard error", worse="P(worse)")
    place = {"x": _axis("difference", f"above {table.index[0]}"), "y": MODEL, "tooltip": told}
    dots = {"data": values, "mark": {"type": "point", "filled": True, "size": 60, "color": BLUE}, "encoding": place}
    zero = {"data": {"values": [{"at": 0.0}]}, "mark": {"type": "rule", "color": GREY}, "encoding": {"x": _axis("at", "")}}
    text = "How much more each loses than the best, on the same units, and the standard error of that: two of these are a sign."
    return Figure(
        "differences",
        "Differences from the best",
        text,
        [zero, _bars(values, "low", "high", BLUE, 1), dots],
        34 * len(frame) + 40,
    )
