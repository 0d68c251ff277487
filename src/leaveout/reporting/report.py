"""Report of a cross-validation, of several side by side, or of leaking clusters, as one
self-contained page.
"""

import hashlib
import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from re import search, sub
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from .._runtime import PagedResult, provided
from ..data import label_texts as worded
from ..models.glm import GLM, links, losses, penalties
from ..optimize import SCALAR
from ..validation.checks import Check, by_severity
from ..validation.compare import compare
from ..validation.estimate import Estimate, plus_minus
from . import plot
from .page import Figure, Page, PageTable, row_bars, write_page
from .questions import Card, choice, first_answer, first_choice, question

TABLE_ROWS = 20_000  # rows in a table
DRAWN_BARS = 15  # rows named in a picture
MODELS = 12  # largest number of models whose losses are in one table


def report(
    estimate: Estimate | PagedResult | Mapping[str, Estimate],
    path: str | os.PathLike[str],
    *,
    kind: Literal["general", "clinical"] = "general",
    title: str = "",
    notes: Sequence[str] = (),
    centres: ArrayLike | None = None,
    excluded: Mapping[str, int] | None = None,
    thresholds: ArrayLike | None = None,
    num_resamples: int = 200,
) -> Path:
    """Write an estimate, a comparison of several, or a `LeakageReport` to one self-contained page.

    The general page opens with the question in the names of the data, and whether the model is
    better than none, by how much and how sure that is. It has the errors, the checks, pictures, a
    table of the rows that can be sorted, searched and downloaded, the audit, and the calls that
    reproduce it. The clinical page is on a model of the risk of an event: discrimination,
    calibration, net benefit and centres, then optimism, stability, the equation of the model, and
    the items of TRIPOD+AI that the page tells. Nothing is fetched when a page is opened.

    Parameters
    ----------
    estimate : Estimate, LeakageReport, or mapping of str to Estimate
        The result; several estimates, `{name: estimate}`, are compared.
    path : path
        The file to write; its name ends in .html.
    kind : {"general", "clinical"}, default "general"
        The kind of page. A clinical one is of one estimate of two classes or of `lo.Cox`.
    title : str, optional
        The title of the page.
    notes : sequence of str, default ()
        Notes below the answer.
    centres : array_like, `[units]`, optional
        On a clinical page: the label of each patient's centre, which is left out whole, as by
        `internal_external`.
    excluded : mapping of str to int, optional
        On a clinical page: patients who are not in the data, by the reason, such as `{"cholesterol
        is missing": 30}`.
    thresholds : array_like, optional
        On a clinical page: the thresholds of risk, as in `decision_curve`.
    num_resamples : int, default 200
        On a clinical page: the number of resamples of `validate` and `stability`.

    Returns
    -------
    Path
        The file that was written. Needs Jinja2 and Matplotlib (`pip install 'leaveout[report]'`).

    Raises
    ------
    ValueError
        If the name does not end in .html, the estimates cannot be compared (as by `compare`), or
        arguments do not go together.
    TypeError
        If there is no page of such a result, or of that kind.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(9.0)[:, None], np.arange(9.0) ** 2, "squared"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = lo.report(lo.cross_validate(fit, lo.leave_one_out()), f"{folder}/page.html")
    >>> page.name
    'page.html'
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"report: path must be the name of a file; got {path!r}.")
    file = Path(path)
    if file.suffix.lower() not in (".html", ".htm"):
        raise ValueError(
            f"report: the page is HTML, so its name must end in .html; got {file.name!r}."
        )
    if isinstance(estimate, Mapping) and len(estimate) == 1:
        (estimate,) = estimate.values()
    parts = {"centres": centres, "excluded": excluded, "thresholds": thresholds}
    if kind not in ("general", "clinical"):
        raise ValueError(f"report: kind must be 'general' or 'clinical'; got {kind!r}.")
    if kind == "clinical" and not isinstance(estimate, Estimate):
        raise TypeError(
            f"report: kind='clinical' is for one Estimate; got {type(estimate).__name__}."
        )
    if kind == "general" and any(value is not None for value in parts.values()):
        raise ValueError("report: centres=, excluded= and thresholds= go with kind='clinical'.")
    if kind == "clinical":
        details = _calls(estimate), null_answer(estimate)  # type: ignore[arg-type]
        page = provided("clinical_page").page_of(
            estimate, title, *details, **parts, num_resamples=num_resamples
        )
    elif isinstance(estimate, PagedResult):
        page = provided(estimate._page_module).page_of(estimate, title)
    elif isinstance(estimate, Estimate):
        page = _of_one(estimate, title)
    elif isinstance(estimate, Mapping) and all(
        isinstance(estimate, Estimate) for estimate in estimate.values()
    ):
        page = _of_several(dict(estimate), title)
    else:
        results: list[Any] = [estimate]
        if isinstance(estimate, Mapping):
            results = list(estimate.values())
        kinds = ", ".join(sorted({type(result).__name__ for result in results}))
        raise TypeError(
            f"report: give an Estimate, or several as {{name: estimate}}, or a LeakageReport; got {kinds}."
        )
    return write_page(page, file, notes)


# one estimate


def _of_one(estimate: Estimate, title: str) -> Page:
    plan = estimate.plan
    model = estimate.labels.objective.partition(",")[0]
    asked = question(estimate)
    task = (
        f"The model, {model or 'an objective'}, is fitted to {plan.num_units} units. Each of {plan.num_refits} refits leaves "
        f"out {plan.widths}, and is asked for what it left out."
    )
    if title:
        task = f"{asked} {task}"
    rows, missing = _rows(estimate)
    remainder = ""
    if missing:
        remainder = f"The {len(rows)} of largest loss; Estimate.table() has the other {missing}."
    tables = [
        PageTable(
            "rows",
            "Refits" if estimate.joint else "Rows",
            f"{remainder} A dash is what is not known.".strip(),
            rows,
        )
    ]
    if estimate.audit is not None and len(estimate.audit):
        tables.append(PageTable("audit", "Audit", f"{estimate.labels.audit}.", estimate.audit))
    figures = []
    if not estimate.joint and len(_units(estimate)):
        figures = [_against(estimate), _row_figure(estimate)]
    if figures and _is_series(estimate):
        figures += [_in_order(estimate)]
    return Page(
        title or asked,
        task,
        [first_answer(estimate)],
        _answers(estimate),
        [("", check) for check in estimate.checks()],
        ", ".join(estimate.mute),
        figures,
        tables,
        {"": estimate._numbers()}
        | ({} if estimate.fit is None else {"The fit": estimate.fit._lines()}),
        _calls(estimate),
        list(filter(None, [estimate.labels.note])),
    )


def _is_series(estimate: Estimate) -> bool:
    return bool(estimate.plan.serial and estimate.plan.blocks is None and not estimate.joint)


def _answers(estimate: Estimate) -> list[Card]:
    se = estimate.standard_error
    error = estimate.approximation_error
    unit = "a unit"
    if estimate.joint:
        unit = "a refit, joint"
    try:
        bounds = estimate.interval()
        interval = (
            f"{bounds.low:.4g} to {bounds.high:.4g}",
            f"for the mean on new units, method {bounds.method!r}",
        )
    except ValueError as none:
        interval = "not available", str(none).partition(": ")[2]
    proved = estimate._approximation().partition(", ")[2]
    missing = estimate._missing
    held = int(estimate._places.held.sum())
    without = ""
    if missing:
        without = f"; {missing} of {held} held-out losses do not exist, and are not in it"
    metrics = [
        (name, f"{metric.value:.5g}", str(metric).partition(" ")[2])
        for name, metric in estimate.measured.items()
    ]
    return [
        (
            "Held-out loss",
            f"{estimate.mean:.5g}{plus_minus(se.value)}",
            f"{unit}{', ' if estimate.score else ''}{estimate.score}; SE: {se.kind}{without}",
        ),
        ("95 % interval", *interval),
        (
            "Approximation",
            f"± {error:.1g}" if np.isfinite(error) else "not certified",
            proved or "see the checks",
        ),
        (
            "With no update",
            f"{estimate.no_update:.5g}",
            "of data that the model was fitted to: too low",
        ),
        *metrics,
    ]


def null_answer(estimate: Estimate) -> list[Card]:
    """Write what no model loses, if the model has such a null."""
    share = ""
    if np.isfinite(estimate.explained):
        share = f"; the model explains {estimate.explained:.1%} of it"
    text = f"the held-out loss of the intercept alone, on the same folds{share}"
    if np.isfinite(estimate.no_model):
        return [("With no model", f"{estimate.no_model:.5g}", text)]
    return []


def _calls(estimate: Estimate, file: str = "data.npz") -> list[str]:
    """Write the calls that give the same numbers, and a checksum of the response. Those of a GLM
    run; `file` has its data.
    """
    labels = estimate.labels
    arguments = labels.asked and f", {labels.asked}"
    settings = ""
    if estimate.fit is not None:
        settings = estimate.fit._settings
    plan = (
        estimate.plan.call
        or f"lo.Plan(...)  # {estimate.plan.num_refits} refits of {estimate.plan.widths} each"
    )
    lines = [
        f"fit = lo.fit(...)  # {'; '.join(filter(None, (labels.objective, settings)))}",
        f"plan = {plan}",
        f"cv = lo.cross_validate(fit, plan, strategy=lo.{labels.refit or 'Certified()'}{arguments})",
    ]
    if "<" not in lines[-1]:  # no function among the measures
        lines[:2] = _calls_of_glm(estimate, file) or lines[:2]
    if estimate.response is not None:
        number = hashlib.sha256(
            np.ascontiguousarray(estimate.response, float).tobytes()
        ).hexdigest()[:16]
        lines.append(
            f"# the response, {estimate.plan.num_units} units as float64, has the SHA-256 {number}…"
        )
    return [*lines, f"print(cv.mean)  # {estimate.mean:.6g}"]


def _calls_of_glm(estimate: Estimate, file: str) -> list[str]:
    """Write the fit of a GLM and its plan, with arrays from a file.

    Nothing for other models, or where a setting is code.
    """
    plan = estimate.plan
    place = "cv.fit.objective.as_given"
    model = getattr(estimate.fit and estimate.fit.objective, "as_given", None)
    if (
        type(model) is not GLM
        or not isinstance(model.design, np.ndarray)
        or model.least_norm
        or model.cut
    ):
        return []
    saved = {"X": "model.design[:, :model.num_features]", "y": "model.y"}
    unit_arrays = [name for name in ("sample_weight", "offset") if getattr(model, name) is not None]
    arrays = (
        ("indptr", "index", "weight", "held", "clusters", "blocks")
        if search("[<']", plan.call or "<")  # arrays, or names of columns
        else ()
    )
    plan_arrays = [name for name in arrays if getattr(plan, name) is not None]
    saved |= {name: f"model.{name}" for name in unit_arrays} | {
        name: f"cv.plan.{name}" for name in plan_arrays
    }
    read = {name: f'{name}=data["{name}"]' for name in saved}
    settings = [
        _call_of(model.loss_function, losses),
        _call_of(model.penalty, penalties),
        *map(read.__getitem__, unit_arrays),
    ]
    settings += ["intercept=False"] * (not model.intercept) + ['class_weight="balanced"'] * bool(
        model.is_balanced
    )
    units = f"num_units={plan.num_units}, serial={plan.serial}"
    lines = [
        "import leaveout as lo",
        "import numpy as np",
        "",
        "# the data as the model saw them; where the estimate is at hand, this line writes them:",
        f'# model = {place}; np.savez("{file}", {", ".join(f"{name}={value}" for name, value in saved.items())})',
        f'data = np.load("{file}")',
        f'fit = lo.fit(lo.GLM(data["X"], data["y"], {", ".join(settings)}))',
        f"plan = lo.Plan({', '.join(map(read.__getitem__, plan_arrays))}, {units})"
        if plan_arrays
        else f"plan = {plan.call}",
    ]
    # objects that have no call, and long arrays
    return [] if search(r"<|\.\.\.", "".join(lines)) else lines


def _call_of(part, room: ModuleType) -> str:
    """Write the call that makes a loss or a penalty of the library.

    "<" for others, and where its fields do not make it.
    """
    has_call = vars(room).get(type(part).__name__) is type(part) and {*vars(part)} <= {
        *inspect.signature(type(part)).parameters
    }
    with np.printoptions(floatmode="unique", threshold=100):
        text = "<"
        if has_call:
            text = sub(r"\b(array|inf)\b", r"np.\1", SCALAR.sub(r"\1", repr(part)))
    prefix = f"lo.{room.__name__.rpartition('.')[2]}"
    return sub(
        r"\b([A-Z]\w*)\(",
        lambda kind: f"{'lo.losses.links' if kind[1] in vars(links) else prefix}.{kind[0]}",
        text,
    )


def _rows(estimate: Estimate) -> tuple[pd.DataFrame, int]:
    """Return the rows of largest loss, and the number of others."""
    table = estimate.table().query("refit >= 0")
    table.insert(table.columns.get_loc("no_update") + 1, "rise", table["loss"] - table["no_update"])
    table = table.sort_values("loss", ascending=False, kind="stable", na_position="first")
    first = ["unit", "group", "loss", "no_update", "rise", "refit", "error", "result"]
    return table[[name for name in first if name in table]].head(TABLE_ROWS), max(
        0, len(table) - TABLE_ROWS
    )


def _units(estimate: Estimate) -> pd.DataFrame:
    """Tabulate every unit with a loss: its share of all, its place, its losses held out and not."""
    names = estimate.names()
    rows = worded(names)
    if not names.is_unique:
        rows = [f"{name} (row {k})" for k, name in enumerate(rows)]
    held = estimate._unit_losses
    none = estimate.average(estimate.baseline)
    sizes = np.abs(held) * estimate._weight
    units = pd.DataFrame(
        {
            "share of the loss": sizes / max(np.nansum(sizes), 1e-300),
            "x": plot.positions(names),
            "held-out loss": held,
            "no update": none,
            "rise": held - none,
        },
        pd.Index(rows, name="row"),
    )
    return units[np.isfinite(held) & np.isfinite(none)]


def _against(estimate: Estimate) -> Figure:
    table = estimate.table()
    label = next(name for name in ("unit", "group", "refit") if name in table)
    marks = table.assign(rise=table["loss"] - table["no_update"])
    marks = marks[["no_update", "loss", "rise", "result"]].set_index(
        pd.Index(worded(pd.Index(table[label])), name="row")
    )
    marks.columns = ["no update", "held-out loss", "rise", "its refit"]
    text = "Above the line a row loses more when the model has not seen it: how far, is its influence on its own loss."
    return Figure(
        "against",
        "What each row loses by being left out",
        text,
        partial(plot.losses, estimate),
        marks.nlargest(plot.DRAWN_POINTS, "rise"),
        5.0,
    )


def _row_figure(estimate: Estimate) -> Figure:
    units = _units(estimate)
    largest = units.nlargest(DRAWN_BARS, "share of the loss")
    total = largest["share of the loss"].sum()
    text = f"The {len(largest)} rows of largest loss, of {len(units)}, are {total:.0%} of it all."
    return row_bars("Which rows carry the loss", text, largest)


def _in_order(estimate: Estimate, model: str = "") -> Figure:
    title = "Losses in order" + (f", {model}" if model else "")
    text = "Runs of large losses are times that the model does not know."

    def draw(ax) -> None:
        """Draw the losses over the units."""
        plot.units_in_order(pd.Series(estimate._unit_losses, estimate.names()), ax)
        ax.set_ylabel("held-out loss")

    marks = _units(estimate).drop(columns="share of the loss").nlargest(plot.DRAWN_POINTS, "rise")
    return Figure("order", title, text, draw, marks, 3.0)


# several


def _of_several(estimates: dict[str, Estimate], title: str) -> Page:
    with warnings.catch_warnings(record=True, action="always") as caught:
        table = compare(estimates)
    notes = [
        *(str(warning.message) for warning in caught),
        *(estimate.labels.note for estimate in estimates.values()),
    ]
    first = estimates[table.index[0]]
    rows = pd.DataFrame({"unit": first.plan.refit_names if first.joint else first.names()})
    losses = pd.DataFrame(
        {str(name): estimates[name]._unit_losses for name in table.index[:MODELS]}
    )
    rows = pd.concat([rows, losses], axis=1)
    rows_note = f"The held-out loss of every unit under {'each model' if len(estimates) <= MODELS else f'the best {MODELS} models'}."
    cut = ""
    if len(rows) > TABLE_ROWS:
        cut = f" The first {TABLE_ROWS} of {len(rows)}."
    ranked = "The lowest mean first."
    if table["missing"].any():
        ranked = "Those that lack fewest losses first, then the lowest mean."
    asked = choice(estimates, first)
    task = "All are asked for the same units, each left out of the model that is asked."
    if title:
        task = f"{asked} {task}"
    models = table.rename_axis("model").reset_index()
    if len(set(table["kind"])) == 1:
        models = models.drop(columns="kind")
    return Page(
        title or asked,
        task,
        [first_choice(estimates, [*table.index]), first_answer(first)],
        _comparison_facts(table, first.score),
        _together(estimates),
        ", ".join(sorted({code for estimate in estimates.values() for code in estimate.mute})),
        [
            _means(table, estimates),
            _differences(table),
            *([_in_order(first, str(table.index[0]))] if _is_series(first) else []),
        ],
        [
            PageTable("models", "Models", ranked, models),
            PageTable("rows", "Rows", rows_note + cut, rows.head(TABLE_ROWS)),
        ],
        {str(name): estimate._numbers() for name, estimate in estimates.items()},
        [
            line
            for k, (name, estimate) in enumerate(estimates.items(), 1)
            for line in (f"# {name}", *_calls(estimate, f"data-{k}.npz"), "")
        ],
        [*filter(None, dict.fromkeys(notes))],
    )


def _comparison_facts(table: pd.DataFrame, score: str) -> list[Card]:
    """Write a card for each of the two best models."""
    cards = []
    first = "Best" if table["missing"].any() else "Lowest mean"
    for rank, (name, model) in zip((first, "Next"), table.iterrows(), strict=False):
        mean = f"{model['mean']:.5g}{plus_minus(model.se)}"
        text = f"{mean} a unit{score and ', '}{score}; SE: {model.kind}"
        cards.append((rank, str(name), text + _without(table, model)))
    return cards


def _without(table: pd.DataFrame, model: pd.Series) -> str:
    """Describe the losses that the mean of a model lacks, if any."""
    if not table["missing"].any():
        return ""
    return f"; of the losses that all models have: this one lacks {model['missing'] or 'none'}"


def _together(estimates: dict[str, Estimate]) -> list[tuple[str, Check]]:
    """List the checks, one entry for all models that share it."""
    models: dict[Check, list[str]] = {}
    for name, estimate in estimates.items():
        for check in estimate.checks():
            models.setdefault(check, []).append(str(name))
    return [
        ("all models" if len(models[check]) == len(estimates) else ", ".join(models[check]), check)
        for check in sorted(models, key=by_severity)
    ]


def _means(table: pd.DataFrame, estimates: dict[str, Estimate]) -> Figure:
    ranked = {str(name): estimates[name] for name in table.index}
    facts = [
        (e.mean, place, e.se, e.approximation_error, e.no_update)
        for place, e in enumerate(ranked.values())
    ]
    columns = ["held-out loss", "y", "standard error", "approximation", "no update"]
    marks = pd.DataFrame(facts, pd.Index(ranked, name="model"), columns)
    text = "Dots are held-out losses, thin lines their standard errors, thick ones the refits' errors; rings have no update."
    if table["missing"].any():
        text += " Here each mean is of all the losses that a model has."
    draw = partial(plot.estimates, ranked)
    return Figure("means", "Held-out losses", text, draw, marks, 0.5 * len(table) + 1.6)


def _differences(table: pd.DataFrame) -> Figure:
    others = table.iloc[1:]
    difference = others["difference"]
    half = others["se_difference"].fillna(0.0)
    frame = pd.DataFrame(
        {"estimate": difference, "low": difference - half, "high": difference + half}
    )
    text = "How much more each loses than the best, on the same units, and the standard error of that: two of these are a sign."
    draw = partial(plot.forest, frame, reference=0.0, label=f"above {table.index[0]}")
    return Figure(
        "differences", "Differences from the best", text, draw, height=0.32 * len(frame) + 1.2
    )
