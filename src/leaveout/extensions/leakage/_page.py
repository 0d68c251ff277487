"""Page of the report on leaking clusters.

Answers with their intervals, the effect of every cut, and the rows behind it.
"""

from functools import partial

import numpy as np
import pandas as pd

from ...developer import DRAWN_BARS, TABLE_ROWS, Card, Figure, Page, PageTable, row_bars
from ...plot import forest
from ._plot import leakage_report
from ._report_result import LeakageReport


def page_of(report: LeakageReport, title: str) -> Page:
    """Build the page of a report, with the origin of each number."""
    answers = report.table.rename_axis("answer").reset_index()
    rows = report.rows.rename_axis("row").reset_index()
    remainder = ""
    if len(rows) > TABLE_ROWS:
        remainder = f" The {TABLE_ROWS} that carry most; LeakageReport.rows has all {len(rows)}."
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
        tables += [PageTable("rows", "Rows that carry the inflation", note, rows.head(TABLE_ROWS))]
    return Page(
        title or "How well does this model predict a new cluster, where links are uncertain?",
        f"The score is {report.scoring}. What is it once records of the tested clusters are taken out of the training sets?",
        [],
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


def _answers(report: LeakageReport) -> list[Card]:
    level = f"{report.level:.0%} interval"
    better = "less is better"
    if report.more_is_better:
        better = "more is better"
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
    frame = report.table[report.table.refusal == ""].rename(columns={"score": "estimate"})
    draw = partial(
        forest,
        frame.assign(low=frame.low.fillna(frame.estimate), high=frame.high.fillna(frame.estimate)),
        reference=float(report.table.score["naive"]),
        marked=report.recommended,
        label=report.scoring,
    )
    text = (
        f"Squares with their {report.level:.0%} intervals; the dashed line is the score as filed"
        f"{', orange the answer that is believed' if report.recommended else ''}."
    )
    return Figure("beside", "Answers side by side", text, draw, height=0.32 * len(frame) + 1.2)


def _cuts(report: LeakageReport) -> list[Figure]:
    """Plot the score at every cut, from the score as filed to the cut at which nothing is
    exposed.
    """
    if not report.curves:
        return []
    naive = report.answers["naive"]
    marks = [
        pd.DataFrame(
            {
                "exposed": curve.exposed,
                "score": naive.score + curve.difference,
                "answer": name,
                "cut": curve.cut,
                "correction, enlarged": curve.correction,
                "SE": curve.se,
            }
        )
        for name, curve in report.curves.items()
    ]
    text = (
        "Each dot is a cut: training does without the records whose pairs with tested ones are as probable as that. Bars are "
        "two standard errors of the difference from the score as filed; lines go on to the answers, where no mate is left."
    )
    return [
        Figure(
            "cuts",
            "What every cut did",
            text,
            partial(leakage_report, report),
            pd.concat(marks, ignore_index=True),
            4.8,
        )
    ]


def _row_figures(report: LeakageReport) -> list[Figure]:
    rows = report.rows.head(DRAWN_BARS)
    if rows.empty or rows.carries.isna().any():
        return []
    frame = rows[["carries", "mate", "probability", "exposed"]].set_axis(list(map(str, rows.index)))
    frame.columns = [
        "adds to the correction",
        "likeliest mate",
        "probability of the likeliest pair",
        "exposed",
    ]
    text = f"The {len(rows)} rows that add most, of {len(report.rows)} that may have mates in training."
    return [row_bars("Rows that carry the inflation", text, frame)]
