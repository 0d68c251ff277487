"""Page of a clinical prediction model: what a clinician reads first, then optimism, stability, the equation, and TRIPOD+AI."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from ..diagnostics.calibration import Calibration, calibration
from ..diagnostics.covariance import covariance
from ..diagnostics.decision_curve import DecisionCurve, decision_curve
from ..diagnostics.internal_external import InternalExternal, internal_external
from ..diagnostics.internal_validation import Validation, validate
from ..diagnostics.performance import Continuous, Survival, performance
from ..diagnostics.stability import Stability, stability
from ..models.glm.penalty import Zero
from ..optimize.fit import Fit
from ..validation.estimate import Estimate
from ..validation.named_parameters import name_parameters
from .page import BLUE, GREY, MODEL, ORANGE, Figure, Lines, Page, PageTable, axis, data_of, layer, rules, tooltip

BINS = 40  # bars of the predictions below the calibration curve
PATIENTS = 400  # patients whose range over resamples is drawn
LEAST_BENEFIT = -0.05  # net benefit below which a curve is not drawn, as in most papers
Z95 = float(scipy.stats.norm.ppf(0.975))
# items of TRIPOD+AI (Collins et al., BMJ 2024): what each asks for, and the part of this page that tells it, if any does
ITEMS = (
    ("1", "Title", ""),
    ("2", "Abstract", ""),
    ("3a–c", "Background: context, rationale, known health inequalities", ""),
    ("4", "Objectives", ""),
    ("5a–b", "Source and dates of the data", ""),
    ("6a–c", "Setting, eligibility, treatments", ""),
    ("7", "Preparation of the data", ""),
    ("8a–c", "Outcome: definition, assessors, blinding", ""),
    ("9a–c", "Predictors: choice, definition, assessors", "names only: Model equation"),
    ("10", "Sample size: how it was arrived at", "the number: The answer"),
    ("11", "Missing data: how they were handled", "counts only: The answer"),
    ("12a", "How the data were used for development and evaluation", "How to do it again"),
    ("12b", "How predictors enter: form, scaling, transformations", ""),
    ("12c", "Type of model, building steps, internal validation", "Model equation; Optimism; How to do it again"),
    ("12d", "Differences between centres: how they were estimated", "Centres"),
    ("12e", "Measures and pictures of performance", "Pictures; Optimism"),
    ("12f", "Updating of the model", ""),
    ("12g", "How predictions are calculated", "Model equation"),
    ("13", "Class imbalance: methods, recalibration", ""),
    ("14", "Fairness: approaches and their rationale", ""),
    ("15", "Output of the model, and thresholds for classification", "Pictures: Net benefit"),
    ("16", "Differences between the data of development and evaluation", "Centres"),
    ("17", "Ethical approval", ""),
    ("18a–e", "Funding, conflicts of interest, protocol, registration, sharing of data", ""),
    ("18f", "Sharing of code", "How to do it again"),
    ("19", "Involvement of patients and the public", ""),
    ("20a–b", "Flow and characteristics of participants", "counts only: The answer"),
    ("20c", "Comparison of predictors between development and evaluation", ""),
    ("21", "Participants and events of each analysis", "The answer; Centres"),
    ("22", "The full model", "Model equation"),
    ("23a", "Performance with confidence intervals", "The answer; Optimism"),
    ("23b", "Performance by centre", "Centres"),
    ("24", "Results of updating", ""),
    ("25", "Interpretation, with fairness", ""),
    ("26", "Limitations", ""),
    ("27a–c", "Use of the model: poor or missing input, users, further research", ""),
)


def page_of(
    estimate: Estimate,
    title: str,
    calls: list[str],
    *,
    centres: ArrayLike | None,
    excluded: Mapping[str, int] | None,
    thresholds: ArrayLike | None,
    B: int,
) -> Page:
    """Build the page of an estimate, whose held-out predictions are judged, from further refits of its fit."""
    fit = estimate.fit
    if fit is None:
        raise ValueError("report: kind='clinical' needs the fit of the estimate, which this one has lost.")
    measure: Any = performance("report", fit)
    if isinstance(measure, Continuous):
        raise TypeError("report: kind='clinical' is for a response of two classes or lo.Cox; the response here is a number.")
    validated, stable = validate(fit, B=B), stability(fit, B=B)
    curve, decisions = calibration(estimate), decision_curve(estimate, thresholds)
    across = None if centres is None else internal_external(fit, centres)
    name = "AUC" if "AUC" in validated.table.index else "C"
    events = float(np.sum(measure.case * (measure.risk[:, 2] if isinstance(measure, Survival) else measure.y)))
    until = "" if curve.time is None else f" until {curve.time:g}"
    figures = [_calibration_figure(curve, until), _decision_figure(decisions, until)]
    figures += [] if across is None else [_forest(across, "C", "Discrimination"), _forest(across, "slope", "Calibration slope")]
    figures += [_stability_figure(stable, until)]
    tables = [PageTable("optimism", "Optimism", _optimism_note(validated), _optimism(validated))]
    if across is not None:
        text = "Each centre is predicted by a refit without it. Columns that end in _se are standard errors."
        tables += [PageTable("centres", "Centres", text, across.centres.round(4).rename_axis("centre").reset_index())]
    equation, note = _equation(fit, measure, curve.time)
    items = pd.DataFrame(ITEMS, columns=["item", "asks for", "on this page"])
    if across is None:
        items["on this page"] = items["on this page"].str.replace(r"(; )?Centres$", "", regex=True)
    about = (
        "Items of TRIPOD+AI (Collins et al., BMJ 2024). An item without a part of this page is for its authors to report "
        "elsewhere."
    )
    tables += [PageTable("equation", "Model equation", note, equation), PageTable("items", "TRIPOD+AI", about, items)]
    printed: dict[str, Lines] = {"All that is known of the cross-validation": estimate._facts(), "The fit": fit._lines()}
    printed |= {"Resamples": validated._lines(), "Net benefit": decisions._lines()}
    more = [f"centres=...  # {len(across.centres)} labels"] if across is not None else []
    return Page(
        title or "Does this prediction model hold for patients that it has not seen?",
        f"A model of {fit.num_params} parameters predicts the risk of an event{until}: how well does it tell patients apart, "
        "can its risks be taken at their word, and would decisions by it do more good than harm?",
        _answers(measure.case.sum(), events, name, validated, curve, decisions, across, excluded),
        [("", each) for each in estimate.checks()],
        ", ".join(estimate.mute),
        figures,
        tables,
        printed,
        [*calls, f"lo.report({', '.join(['cv', repr('page.html'), 'kind=' + repr('clinical'), f'B={B}', *more])})"],
        pictures_first=True,
    )


def _answers(
    patients: float,
    events: float,
    name: str,
    validated: Validation,
    curve: Calibration,
    decisions: DecisionCurve,
    across: InternalExternal | None,
    excluded: Mapping[str, int] | None,
) -> list[tuple[str, str, str]]:
    """Write the cards: who is in the data and who is not, discrimination, calibration, net benefit, a new centre."""
    left = "; ".join(f"{count} left out: {why}" for why, count in (excluded or {}).items())
    row, slope, large = validated.table.loc[name], curve.table.loc["slope"], curve.table.loc["large"]
    best = decisions.table["net_benefit"] > np.maximum(decisions.table["all"], 0)
    said = [
        (
            "Patients",
            f"{patients:g}, {events:g} with the event",
            left or "all rows that were given; none is said to be left out",
        ),
        (
            f"Discrimination ({name})",
            f"{row['index.corrected']:.3f}",
            f"{row.low:.3f} to {row.high:.3f} ({validated.level:.0%}), corrected for optimism; on its own patients "
            f"{row['index.orig']:.3f}. One half is chance",
        ),
        (
            "Calibration slope",
            f"{slope.estimate:.2f}",
            f"{slope.low:.2f} to {slope.high:.2f}, of held-out predictions. One is ideal; below it risks are too extreme",
        ),
        (
            "Calibration in the large",
            f"{large.estimate:.2f}",
            f"{large.low:.2f} to {large.high:.2f}, of held-out predictions. Zero is ideal; above it risks are too low",
        ),
        (
            "Net benefit",
            _runs(decisions.table.index[best], best.to_numpy(), decisions.table.index.to_numpy()),
            "thresholds of risk at which treating by the model beats treating all and treating none, by its estimate",
        ),
        (
            "Brier score",
            f"{_brier(validated):.3f}",
            "corrected for optimism; the mean squared error of risks, of which zero is best",
        ),
    ]
    if across is not None:
        pooled = across.table.loc["C"]
        ends = f"{pooled.pi_low:.2f} to {pooled.pi_high:.2f}" if np.isfinite(pooled.pi_low) else "not known"
        said.append(
            (
                "A new centre (C)",
                ends,
                f"95 % prediction interval; pooled over {pooled.k:.0f} centres {pooled.estimate:.3f}, {pooled.low:.3f} to "
                f"{pooled.high:.3f}",
            )
        )
    return said


def _brier(validated: Validation) -> float:
    corrected = validated.table["index.corrected"]
    return float(corrected[next(name for name in corrected.index if name in ("B", "IBS") or name.startswith("Brier"))])


def _runs(useful: Sequence[float], best: np.ndarray, thresholds: np.ndarray) -> str:
    """Write the thresholds at which the model is best, as runs of neighbours."""
    if not len(useful):
        return "nowhere"
    starts, ends = np.flatnonzero(np.diff(np.r_[False, best, False].astype(int))).reshape(-1, 2).T
    return ", ".join(
        f"{thresholds[a]:.2g}" if b - a == 1 else f"{thresholds[a]:.2g} to {thresholds[b - 1]:.2g}"
        for a, b in zip(starts, ends, strict=True)
    )


def _optimism(validated: Validation) -> pd.DataFrame:
    """Tabulate the measures to four decimals, in words."""
    words = {"index.orig": "apparent", "index.corrected": "corrected"}
    return validated.table.rename(columns=words).round(4).rename_axis("measure").reset_index()


def _optimism_note(validated: Validation) -> str:
    flagged = validated.flagged
    lost = int((~flagged["used"]).sum())
    what = f"{lost} of {validated.plan.num_refits} resamples have no refit and leave every mean. " if lost else ""
    return (
        f"Apparent measures, the mean over {validated.plan.num_refits} bootstrap resamples on their own rows and on all rows, "
        f"the difference, and what is left. {what}Column n counts the resamples that define a measure."
    )


def _equation(fit: Fit, measure: Any, time: Any) -> tuple[pd.DataFrame, str]:
    """Tabulate the coefficients with standard errors, and write how a risk is computed from them."""
    known = name_parameters(fit)
    value, se, note = known.at(fit.vector[None])[0], np.full(len(known.names), np.nan), ""
    try:
        se = np.sqrt(np.diag(covariance(fit, "nonrobust")))
    except (TypeError, ValueError) as error:
        note = f" No standard errors: {str(error).partition(': ')[2]}"
    ratio = "hazard ratio" if isinstance(measure, Survival) else "odds ratio"
    slope = np.array([name != "intercept" for name in known.names])
    exp = lambda x: np.where(slope, np.exp(x), np.nan)
    table = pd.DataFrame(
        {
            "term": known.names,
            "coefficient": value,
            "se": se,
            ratio: exp(value),
            "low": exp(value - Z95 * se),
            "high": exp(value + Z95 * se),
        }
    )
    if not isinstance(measure, Survival):
        how = "Risk = 1/(1 + e^(−η)), η the sum of the coefficients times the terms, with the intercept."
    else:
        base = measure.own[1][0][:, np.searchsorted(measure.grid, time)]
        base = f"{base[0]:.6g}" if np.ptp(base) == 0 else "that of the patient's stratum"
        how = f"Risk until {time:g} = 1 − e^(−H e^η), η the sum of the coefficients times the terms, H = {base}."
    plain = isinstance(getattr(fit.objective, "penalty", Zero()), Zero)
    shrunk = "" if plain else " A penalty shrinks the coefficients, which the standard errors do not count."
    return table, f"{how} Standard errors are of the inverse information; low and high are 95 % limits.{shrunk}{note}"


def _calibration_figure(found: Calibration, until: str) -> Figure:
    curve = found.curve
    shares = {"values": [0, 0.2, 0.4, 0.6, 0.8, 1]}
    place = {"x": axis("predicted", f"predicted risk{until}"), "y": axis("observed", "observed share", axis=shares)}
    told = tooltip(predicted="predicted", observed="observed", low="from", high="to")
    number, edge = np.histogram(found.predicted, BINS, (0, 1))
    high = 0.12 * number / max(number.max(), 1)
    bars = data_of(pd.DataFrame({"predicted": edge[:-1], "end": edge[1:], "observed": -0.14, "top": high - 0.14, "n": number}))
    area = place | {"y": axis("low", "observed share", axis=shares), "y2": {"field": "high"}}
    rect = place | {
        "x2": {"field": "end"},
        "y2": {"field": "top"},
        "tooltip": tooltip(predicted="from", end="to", n="patients"),
    }
    layers = [
        layer({"values": [{"predicted": 0, "observed": 0}, {"predicted": 1, "observed": 1}]}, "line", place, color=GREY),
        layer(data_of(curve), "area", area, color=BLUE, opacity=0.2),
        layer(data_of(curve), "line", place | {"tooltip": told}, color=BLUE, strokeWidth=2),
        layer(bars, "rect", rect, color=GREY),
    ]
    text = (
        f"The observed share of events by held-out predicted risk, with its {found.level:.0%} band. On the grey line risks are "
        "right; below it they are too high. Bars are numbers of patients."
    )
    return Figure("calibration", "Calibration: can risks be taken at their word?", text, layers, 380)


def _decision_figure(found: DecisionCurve, until: str) -> Figure:
    table = found.table.reset_index()
    lines = [("by the model", "net_benefit", BLUE), ("treat all", "all", ORANGE), ("treat none", "none", GREY)]
    place = {"x": axis("threshold", f"threshold of risk{until} above which one treats"), "y": axis("value", "net benefit")}
    of = lambda column: table.assign(value=table[column])[table[column] >= LEAST_BENEFIT]
    band = place | {"y": axis("low", "net benefit"), "y2": {"field": "high"}}
    kept = of("net_benefit").assign(low=lambda rows: rows["low"].clip(lower=LEAST_BENEFIT))
    layers = [layer(data_of(kept[["threshold", "low", "high"]]), "area", band, color=BLUE, opacity=0.2)]
    scale = {"domain": [name for name, _, _ in lines], "range": [color for _, _, color in lines]}
    told = tooltip(model="strategy", threshold="threshold", value="net benefit")
    for name, column, _ in lines:
        color = {"field": "model", "type": "nominal", "scale": scale}
        data = data_of(of(column)[["threshold", "value"]].assign(model=name))
        layers.append(layer(data, "line", place | {"color": color, "tooltip": told}, strokeWidth=2))
    text = (
        "Net benefit is the share of patients treated rightly, less those treated for nothing at the odds of the threshold. At "
        f"a threshold where the blue curve is highest, deciding by the model does most good. The band is {found.level:.0%}, "
        "over patients, for held-out predictions."
    )
    return Figure("decision", "Net benefit: would decisions by it do good?", text, layers, 320)


def _forest(across: InternalExternal, measure: str, title: str) -> Figure:
    frame = across.forest(measure).reset_index(names="model")
    frame["model"] = frame["model"].map(str)
    summary = frame["model"].isin(["pooled", "new centre"])
    told = tooltip(model="centre", estimate=title.lower(), low="from", high="to")
    place = {"x": axis("estimate", title.lower()), "y": MODEL, "tooltip": told}
    own, pooled = data_of(frame[~summary]), data_of(frame[frame["model"] == "pooled"])
    new = data_of(frame[frame["model"] == "new centre"])
    layers = [
        rules(own, "low", "high", BLUE, 1),
        layer(own, "point", place, filled=True, size=60, color=BLUE, shape="square"),
        rules(pooled, "low", "high", ORANGE, 2),
        layer(pooled, "point", place, filled=True, size=110, color=ORANGE, shape="diamond"),
        rules(new, "low", "high", ORANGE, 6),
    ]
    text = (
        f"Each centre predicted by the others, {across.level:.0%} intervals; pooled by random effects; the thick bar is where "
        "that of a new centre is expected."
    )
    return Figure(f"forest-{measure}", f"{title} by centre", text, layers, 34 * len(frame) + 40)


def _stability_figure(found: Stability, until: str) -> Figure:
    units = found.units.sample(min(PATIENTS, len(found.units)), random_state=0)
    data = data_of(units[["prediction", "low", "high", "mape"]])
    told = tooltip(prediction="predicted risk", low="from", high="to", mape="mean difference")
    place = {"x": axis("prediction", f"predicted risk{until}"), "y": axis("low", "risk by resamples"), "y2": {"field": "high"}}
    diagonal = {"values": [{"prediction": 0, "low": 0}, {"prediction": 1, "low": 1}]}
    line = {"x": axis("prediction", ""), "y": axis("low", "")}
    layers = [
        layer(data, "rule", place | {"tooltip": told}, color=BLUE, opacity=0.5),
        layer(diagonal, "line", line, color=GREY),
    ]
    some = f" Shown are {len(units)} of {len(found.units)} patients, at random." if len(units) < len(found.units) else ""
    text = (
        f"For each patient, where {found.level:.0%} of the risks by {len(found.predictions)} resampled models lie. The mean "
        f"difference from the risk of the model is {found.table.loc['mape', 'mean']:.3f} for a patient on average, and "
        f"{found.table.loc['mape', 'max']:.3f} for the least stable.{some}"
    )
    return Figure("stability", "Stability: would other patients have made another model?", text, layers, 320)
