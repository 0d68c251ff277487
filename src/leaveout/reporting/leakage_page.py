"""Page of the report on leaking clusters.

Answers with their intervals, the effect of every cut, and the rows behind it.
"""

import numpy as np
import pandas as pd

from ..extensions.leakage._report_result import LeakageReport
from .page import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    MODEL,
    ORANGE,
    PURPLE,
    RED,
    Figure,
    Page,
    PageTable,
    axis,
    bars,
    colored,
    data_of,
    layer,
    reference,
    rules,
    tooltip,
)

# rows in a table, rows named in a picture
MOST = 20_000
BARS = 15
COLORS = GREY, BLUE, GREEN, ORANGE, PURPLE, BROWN, RED  # colours of the answers in their order


def page_of(report: LeakageReport, title: str) -> Page:
    """Build the page of a report, with the origin of each number."""
    answers = report.table.rename_axis("answer").reset_index()
    rows = report.rows.rename_axis("row").reset_index()
    if len(rows) > MOST:
        remainder = f" The {MOST} that carry most; LeakageReport.rows has all {len(rows)}."
    else:
        remainder = ""
    note = (
        "Tested rows that may have mates in training: the likeliest mate and the probability of that pair, the probability of "
        f"any mate in training, and what the row adds to the correction.{remainder}"
    )
    tables = [
        PageTable(
            "answers",
            "Answers",
            "Each beside what it takes for granted, or why there is none.",
            answers,
        )
    ]
    if len(rows):
        tables += [PageTable("rows", "Rows that carry the inflation", note, rows.head(MOST))]
    else:
        tables += []
    return Page(
        title or f"{report.scoring} on new clusters, where links between records are uncertain",
        "What is the score on entities that the model has not seen, once their records in the training sets are taken out?",
        _answers(report),
        None,
        "",
        [_answer_figure(report), *_cuts(report), *_row_figures(report)],
        tables,
        {"": report._lines()},
        [
            f"linkage = lo.leakage.Linkage(...)  # {report.links}",
            f"report = lo.leakage.leakage_report(estimator, X, y, linkage=linkage, {report.arguments})  # {report.learner}",
            *(
                f"# fingerprint of {name}: {value[:16]}"
                for name, value in report.facts.items()
                if name in ("response", "links", "folds")
            ),
        ],
        [f"Verdict: {report.verdict}"],
    )


def _answers(report: LeakageReport) -> list[tuple[str, str, str]]:
    level = f"{report.level:.0%} interval"
    if report.more_is_better:
        better = "more is better"
    else:
        better = "less is better"
    naive = report.table.loc["naive"]
    cards = [
        (
            "As filed (naive)",
            f"{naive.score:.5g}",
            f"{_between(naive, level)}; {report.scoring}, {better}",
        )
    ]
    if np.isfinite(naive.exposed):
        cards.append(
            (
                "Exposed",
                f"{naive.exposed:.2g}",
                "of the tested records are expected to have a mate in training",
            )
        )
    if report.recommended is None:
        return [("On new clusters", "no answer", "see the verdict"), *cards]
    row = report.table.loc[report.recommended]
    correction = (
        f"{row.correction:.3g}",
        f"{row.correction_low:.3g} to {row.correction_high:.3g}, {level}, paired over clusters",
    )
    return [
        (
            "On new clusters",
            f"{row.score:.5g}",
            f"{_between(row, level)}; answer: {report.recommended}",
        ),
        ("Correction", *correction),
        *cards,
    ]


def _between(row: pd.Series, level: str) -> str:
    if np.isfinite(row.low):
        return f"{row.low:.4g} to {row.high:.4g}, {level}"
    return "no interval: all records score alike"


def _answer_figure(report: LeakageReport) -> Figure:
    table = report.table[report.table.refusal == ""]
    frame = table.drop(columns=["assumption", "refusal"]).assign(model=list(table.index))
    frame["told"] = np.where(frame.model == report.recommended, "believed", "not believed")
    data = data_of(frame)
    hint = tooltip(
        model="answer",
        score="score",
        low="from",
        high="to",
        correction="correction",
        exposed="exposed",
    )
    place = {
        "x": axis("score", report.scoring),
        "y": MODEL,
        "color": colored("told", **{"believed": ORANGE, "not believed": BLUE}),
        "tooltip": hint,
    }
    dots = layer(data, "point", place, filled=True, size=80)
    filed = reference(float(report.table.score["naive"]), strokeDash=[4, 4])
    text = f"Dots with their {report.level:.0%} intervals; the dashed line is the score as filed."
    return Figure(
        "beside",
        "Answers side by side",
        text,
        [filed, rules(data, "low", "high", BLUE, 2), dots],
        34 * len(frame) + 50,
    )


def _cuts(report: LeakageReport) -> list[Figure]:
    """Plot the score at every cut, from the score as filed to the cut at which nothing is
    exposed.
    """
    naive = report.answers["naive"]
    points = [
        curve.assign(model=name, score=naive.score + curve.difference)
        for name, curve in report.curves.items()
    ]
    if not points:
        return []
    frame = pd.concat(points, ignore_index=True)
    frame["least"], frame["most"] = frame.score - 2 * frame.se, frame.score + 2 * frame.se
    names = list(report.curves)
    color = colored("model", **{name: COLORS[list(report.answers).index(name)] for name in names})
    hint = tooltip(
        model="answer",
        cut="cut",
        exposed="exposed",
        score="score",
        correction="correction, enlarged",
        se="SE",
    )
    shared = {
        "x": axis("exposed", "tested records expected to have a mate in training"),
        "color": color,
    }
    data = data_of(frame)
    height = {"y": axis("least", ""), "y2": {"field": "most"}}
    errors = layer(data, "rule", shared | height, strokeWidth=1)
    place = shared | {"y": axis("score", report.scoring)}
    dots = layer(data, "point", place | {"tooltip": hint}, filled=True, size=60)
    answered = [name for name in names if not report.table.refusal[name]]
    ends = [(name, naive.exposed, naive.score) for name in answered] + [
        (name, 0.0, report.answers[name].score) for name in answered
    ]
    lines = data_of(pd.DataFrame(ends, columns=["model", "exposed", "score"]))
    line = layer(lines, "line", place, strokeWidth=1, strokeDash=[2, 3])
    text = (
        "Each dot is a cut: training does without the records whose pairs with tested ones are as probable as that. Bars are "
        "two standard errors of the difference from the score as filed; dotted lines go on to where no mate is left."
    )
    return [Figure("cuts", "What every cut did", text, [line, errors, dots], 360)]


def _row_figures(report: LeakageReport) -> list[Figure]:
    rows = report.rows.head(BARS)
    if rows.empty or rows.carries.isna().any():
        return []
    frame = rows.assign(
        label=[str(name) for name in rows.index], mate=[str(name) for name in rows.mate]
    )
    hint = tooltip(
        label="row",
        carries="adds to the correction",
        probability="of the likeliest pair",
        exposed="exposed",
    )
    hint.insert(1, {"field": "mate", "title": "likeliest mate", "type": "nominal"})
    across = axis("carries", "adds to the correction", scale={"zero": True})
    text = f"The {len(frame)} rows that add most, of {len(report.rows)} that may have mates in training."
    return [bars("carried", "Rows that carry the inflation", text, frame, across, hint)]
