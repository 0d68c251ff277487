"""Page of a clinical prediction model.

What a clinician reads first, then optimism, stability, the equation, and TRIPOD+AI.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from ... import GLM, Cox, Estimate, Fit, covariance
from ...developer import (
    DRAWN_POINTS,
    ActiveGLM,
    Card,
    Figure,
    FormulaReader,
    NamedCounts,
    Page,
    PageTable,
    count,
    kind_of,
    name_parameters,
)
from ...plot import forest
from . import plot
from .calibration import Calibration, calibration
from .decision_curve import DecisionCurve, decision_curve
from .internal_external import IDEAL, InternalExternal, internal_external
from .internal_validation import Validation, validate
from .performance import NO_RISKS, Continuous, Survival, performance, until
from .stability import Stability, stability

Z95 = float(scipy.stats.norm.ppf(0.975))
# what each measure of `lo.clinical.validate` is, in a few words
MEASURES = Path(__file__).parent / "measures.csv"
# items of TRIPOD+AI (Collins et al., BMJ 2024): what each asks for, and the part of this page that
# tells it, if any does
ITEMS = Path(__file__).parent / "tripod_ai.csv"
# how a risk is computed from the sum η under each link, and what e to the power of a coefficient is
RISKS = {
    "logit": ("1/(1 + e^(−η))", "odds ratio"),
    "log": ("e^η", "risk ratio"),
    "cloglog": ("1 − e^(−e^η)", "coefficient"),
    "probit": ("Φ(η), the distribution function of the standard normal", "coefficient"),
    "loglog": ("e^(−e^(−η))", "coefficient"),
    "cauchit": ("1/2 + arctan(η)/π", "coefficient"),
}
CENTRES_NOTE = (
    "Each centre is predicted by a model of the others. Columns that end in SE are standard errors. In the large: zero is "
    "ideal, above it risks are too low in this centre. O/E: events that happened over those that were predicted."
)
ITEMS_NOTE = "Items of TRIPOD+AI (Collins et al., BMJ 2024). What has no part of this page is for its authors to report elsewhere."


def page_of(
    estimate: Estimate,
    title: str,
    calls: list[str],
    null: list[Card],
    *,
    centres: ArrayLike | None,
    excluded: Mapping[str, int] | None,
    thresholds: ArrayLike | None,
    num_resamples: int,
) -> Page:
    """Build the page of an estimate, whose held-out predictions are judged, from further refits of
    its fit.
    """
    fit = estimate.fit
    plan = estimate.plan
    if not isinstance(excluded, Mapping | None):
        raise TypeError(
            f"report: excluded must be counts of patients by the reason, {{reason: count}}; got {excluded!r}."
        )
    excluded = {
        str(reason): count(f"report: excluded[{reason!r}]", number, 0)
        for reason, number in (excluded or {}).items()
    }
    if fit is None:
        raise ValueError(
            "report: kind='clinical' needs the fit of the estimate, which this one has lost."
        )
    cases = plan.of_cases
    measure = performance("report", fit, None, cases)
    if isinstance(measure, Continuous):
        raise TypeError(
            "report: kind='clinical' is for a response of two classes or lo.Cox; the response here is a number."
        )
    if isinstance(measure, Survival) and not measure.times.size:
        raise ValueError(f"report: kind='clinical' shows risks until a time: {NO_RISKS}")
    if not fit.objective.units.repeatable:
        raise TypeError(
            f"report: kind='clinical' shows what resamples of patients make of the model; the units of this "
            f"{kind_of(fit.objective)} depend on one another, and are not drawn one by one. lo.report(cv, path) is its page; "
            "lo.clinical.calibration(cv) and lo.clinical.decision_curve(cv) are parts of this one."
        )
    validated = validate(fit, num_resamples=num_resamples, cases=cases)
    stable = stability(fit, num_resamples=num_resamples, cases=cases)
    curve = calibration(estimate)
    decisions = decision_curve(estimate, thresholds)
    across = None
    if centres is not None:
        across = internal_external(fit, centres, cases=cases)
    labels = getattr(fit.objective, "labels", None)
    classes = getattr(labels, "classes", ()) or getattr(fit.objective, "classes", ())
    event = "the event"
    if len(classes) == 2:
        event = f"“{classes[1]}”"
    population = "patients"
    if plan.clusters is not None:
        population = f"{len(np.unique(plan.clusters))} groups of patients who are held out whole"
    name = "C"
    if "AUC" in validated.table.index:
        name = "AUC"
    figures = [
        _calibration_figure(curve, population),
        _decision_figure(decisions, population),
    ]
    tables = [PageTable("optimism", "Optimism", _optimism_note(validated), _optimism(validated))]
    if across is not None:
        forests = {"C": name, "slope": "Calibration slope", "OE": "Observed over expected events"}
        figures += [_forest(across, key, label) for key, label in forests.items()]
        tables += [PageTable("centres", "Centres", CENTRES_NOTE, _centres(across, name))]
    figures += [_stability_figure(stable)]
    equation, note, is_complete = _equation(fit, measure, curve.time)
    items = pd.read_csv(ITEMS, keep_default_na=False)
    if across is None:
        items["on this page"] = items["on this page"].str.replace(
            r"(; |counts only: |^)Centres$", "", regex=True
        )
    if not is_complete:
        items["on this page"] = items["on this page"].where(
            ~items["item"].isin(["12g", "22"]), "in part: Model equation"
        )
    tables += [
        PageTable("equation", "Model equation", note, equation),
        PageTable("items", "TRIPOD+AI", ITEMS_NOTE, items),
    ]
    printed = {
        "All that is known of the cross-validation": estimate._numbers(),
        "The fit": fit._lines(),
        "Resamples": validated._lines(),
        "Net benefit": decisions._lines(),
    }
    options = {
        "centres=...": centres is not None,
        f"excluded={excluded!r}": excluded,
        "thresholds=...": thresholds is not None,
    }
    arguments = [text for text, is_used in options.items() if is_used]
    return Page(
        title or "Does this prediction model hold for patients that it has not seen?",
        f"A model of {fit.num_params} parameters predicts the risk of {event}{until(curve.time)}. How well does it tell patients "
        "apart, can its risks be taken at their word, and would decisions by it do more good than harm? Risks are judged where "
        "they come from a model that was made without the patient.",
        [],
        [*_answers(measure, name, event, validated, curve, decisions, across, excluded), *null],
        [("", check) for check in estimate.checks()],
        ", ".join(estimate.mute),
        figures,
        tables,
        printed,
        [
            *calls,
            f"lo.report(cv, 'page.html', kind='clinical', {', '.join([f'num_resamples={num_resamples}', *arguments])})",
        ],
        list(filter(None, [decisions.note.partition("; ")[2]])),
        pictures_first=True,
    )


def _number(value: float, digits: int = 2) -> str:
    if np.isfinite(value):
        return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
    return "not known"


def _between(low: float, high: float, digits: int = 2) -> str:
    if np.isfinite(low + high):
        return f"{_number(low, digits)} to {_number(high, digits)}"
    return "no interval"


def _answers(
    measure,
    name: str,
    event: str,
    validated: Validation,
    curve: Calibration,
    decisions: DecisionCurve,
    across: InternalExternal | None,
    excluded: NamedCounts,
) -> list[Card]:
    """Write the cards: who is in the data and who is not, discrimination, calibration, net benefit,
    a new centre.
    """
    patients = measure.case
    events = patients @ measure.y
    exclusions = "; ".join(f"{number} left out: {reason}" for reason, number in excluded.items())
    weighted = ""
    if measure.weights.note:
        weighted = f"{measure.weights.note}; "
    row = validated.table.loc[name]
    slope = curve.table.loc["slope"]
    large = curve.table.loc["large"]
    brier = next(
        key for key in validated.table.index if key in ("B", "IBS") or key.startswith("Brier")
    )
    who = f"{patients.sum():g}, {events:g} ({events / patients.sum():.0%}) with {event}"
    ranked = (
        f"{_between(row.low, row.high, 3)} ({validated.level:.0%}, over patients), corrected for optimism; on its own patients "
        f"{_number(row['index.orig'], 3)}. One half is chance, one is perfect"
    )
    slopes, larges = (
        f"{_between(summary.low, summary.high)} ({curve.level:.0%}), of held-out predictions"
        for summary in (slope, large)
    )
    useful = f"of risk: there the {decisions.level:.0%} band of the net benefit is above treating all and treating none"
    error = "corrected for optimism: the mean squared error of risks, of which zero is best"
    cards = [
        (
            "Patients",
            who,
            weighted + (exclusions or "all rows that were given; none is said to be left out"),
        ),
        (f"Discrimination ({name})", _number(row["index.corrected"], 3), ranked),
        (
            "Calibration slope",
            _number(slope.estimate),
            f"{slopes}. One is ideal; below it risks are too extreme",
        ),
        (
            "Calibration in the large",
            _number(large.estimate),
            f"{larges}, in log odds. Zero is ideal; above it risks are too low",
        ),
        (
            "Useful thresholds",
            _runs(decisions.useful.to_numpy(), decisions.useful.index.to_numpy()),
            useful,
        ),
        ("Brier score", _number(validated.corrected[brier], 3), error),
    ]
    if across is None:
        return cards
    pooled = across.table.loc["C"]
    mean = f"{_number(pooled.estimate, 3)}, {_between(pooled.low, pooled.high, 3)}"
    text = f"{across.level:.0%} prediction interval; on average over {pooled.k:.0f} centres {mean}"
    return [*cards, (f"{name} in a new centre", _between(pooled.pi_low, pooled.pi_high), text)]


def _runs(best: np.ndarray, thresholds: np.ndarray) -> str:
    """Write the thresholds at which the model is best, as runs of neighbours."""
    starts, ends = np.flatnonzero(np.diff(np.r_[False, best, False].astype(int))).reshape(-1, 2).T
    runs = [
        (f"{thresholds[a]:.2g}", f"{thresholds[b - 1]:.2g}")
        for a, b in zip(starts, ends, strict=True)
    ]
    return ", ".join(low if low == high else f"{low} to {high}" for low, high in runs) or "none"


def _optimism(validated: Validation) -> pd.DataFrame:
    """Tabulate the measures to four decimals, and what they are."""
    words = {"index.orig": "apparent", "index.corrected": "corrected"}
    table = validated.table.rename(columns=words).round(4).rename_axis("measure").reset_index()
    descriptions = pd.read_csv(MEASURES, index_col="measure")["what it is"]
    table["what it is"] = [
        descriptions.get(name.partition("(")[0], "") for name in table["measure"]
    ]
    return table


def _optimism_note(validated: Validation) -> str:
    num_missing = int((~validated.flagged["used"]).sum())
    missing_note = ""
    if num_missing:
        missing_note = f"{num_missing} of {validated.plan.num_refits} resamples have no refit and leave every mean. "
    return (
        f"Apparent measures are of the model on its own patients; training and test are means over {validated.plan.num_refits} "
        "models of bootstrap resamples, on their own patients and on all. The difference, optimism, is taken from the apparent "
        f"measure. {missing_note}Column n counts the resamples that tell of a measure; curves are smoothed for 30 at most. The limits "
        f"low and high are of {validated.level:.0%}, for this model and new patients like these."
    )


def _centres(across: InternalExternal, name: str) -> pd.DataFrame:
    words = {
        "n": "patients",
        "C": name,
        "large": "in the large",
        "OE": "O/E",
        "brier": "Brier",
        "logloss": "log loss",
    }
    table = across.centres
    if set(table["result"]) == {"successful"}:
        table = table.drop(columns="result")
    heads = [
        words.get(column.removesuffix("_se"), column.removesuffix("_se"))
        + " SE" * column.endswith("_se")
        for column in table
    ]
    return table.set_axis(heads, axis=1).round(3).rename_axis("centre").reset_index()


def _equation(fit: Fit, measure, time) -> tuple[pd.DataFrame, str, bool]:
    """Tabulate the coefficients with standard errors, write how a risk is computed from them, and
    whether that is all.
    """
    model = fit.objective
    parameters = name_parameters(fit)
    names = parameters.names
    value = parameters.values_of(fit.vector[None])[0]
    if isinstance(model, ActiveGLM):  # its own parameters are those that the penalty does not hold
        value = model.spread(fit.vector)
        model = model.whole.model
        names = model.parameters.names()
    link = ""
    if isinstance(model, GLM):
        link = getattr(model.loss_function, "link", "")
    is_complete = link in RISKS or isinstance(model, Cox)
    offset = ""
    if getattr(model, "offset", None) is not None:
        offset = " and the offset"
    eta = f"η the sum of the coefficients times the terms{', with the intercept' * ('intercept' in names)}{offset}"
    formula, ratio = RISKS.get(link, ("", "coefficient"))
    notes = [f"Risk = {formula}, {eta}."]
    if isinstance(measure, Survival):
        base = measure.fit_prediction[1][0][:, np.searchsorted(measure.grid, time)]
        if np.ptp(base) == 0:
            base = f"{base[0]:.6g}"
        else:
            base = "that of the patient's stratum"
        notes = [f"Risk until {time:g} = 1 − e^(−H e^η), {eta}, H = {base}."]
        ratio = "hazard ratio"
    elif not is_complete:
        notes = [
            "These are the parameters of the model. How it computes a risk from them is not on this page."
        ]
    read = getattr(getattr(model, "labels", None), "read", None)
    if isinstance(read, FormulaReader):
        notes.append(f"The terms are the columns of the formula {read.formula}.")
        if read.learned:
            notes.append("What it learned from the patients, such as knots, is not on this page.")
            is_complete = False
    try:
        errors = covariance(fit)
        se = errors.standard_errors.to_numpy()
        heading = "; ".join(f"{name}: {text}" for name, text in errors.heading)
        notes.append(f"{heading[:1].upper()}{heading[1:]}.")
        notes.append(f"Low and high are 95% limits of the {ratio}, by the normal distribution.")
    except (TypeError, ValueError):
        se = np.full(len(names), np.nan)
        notes.append("There are no standard errors for this model.")
    table = pd.DataFrame({"term": names, "coefficient": value, "se": se})
    shown = lambda x: (
        x if ratio == "coefficient" else np.where(table["term"] == "intercept", np.nan, np.exp(x))
    )
    table[ratio], table["low"], table["high"] = map(
        shown, (value, value - Z95 * se, value + Z95 * se)
    )
    return table, " ".join(notes), is_complete


def _calibration_figure(curves: Calibration, population: str) -> Figure:
    marks = curves.curve[["predicted", "observed", "low", "high"]]
    text = (
        f"The share of patients with the event by their held-out risk, and its {curves.level:.0%} band over {population}. On the "
        "dashed line risks are right; where the curve is below it they are too high. Bars are numbers of patients: upwards with "
        "the event, downwards without."
    )
    return Figure(
        "calibration",
        "Calibration: can risks be taken at their word?",
        text,
        partial(plot.calibration, curves),
        marks.rename(columns={"low": "from", "high": "to"}),
        5.5,
    )


def _decision_figure(decisions: DecisionCurve, population: str) -> Figure:
    marks = decisions.table[["net_benefit", "all"]].reset_index()
    marks.columns = ["threshold", "net benefit", "treat all"]
    text = (
        "Net benefit is the share of all patients who are treated rightly, less the share who are treated for nothing, each of "
        "whom counts the threshold over one less the threshold. Where the blue curve is highest, deciding by the model does "
        f"most good. The band is {decisions.level:.0%}, over {population}, for held-out risks."
    )
    return Figure(
        "decision",
        "Net benefit: would decisions by it do good?",
        text,
        partial(plot.decision_curve, decisions),
        marks,
    )


def _forest(across: InternalExternal, measure: str, label: str) -> Figure:
    frame = across.forest(measure)
    draw = partial(forest, frame, reference=IDEAL[measure], label=label)
    text = (
        f"Each centre predicted by a model of the others, with {across.level:.0%} intervals; pooled by random effects; the "
        "thick bar is where that of a new centre is expected."
    ) + " On the dashed line predictions are right." * bool(np.isfinite(IDEAL[measure]))
    height = 0.32 * len(frame) + 1.5
    return Figure(f"forest-{measure}", f"{label} by centre", text, draw, height=height)


def _stability_figure(stable: Stability) -> Figure:
    text = (
        f"Dots are risks of patients by {len(stable.predictions)} models of resampled patients; {stable.level:.0%} of them lie between "
        "the orange lines. "
        f"They differ from the risk of the model by {stable.table.loc['mape', 'mean']:.3f} for a patient on average, and by "
        f"{stable.table.loc['mape', 'max']:.3f} for the least stable."
    )
    units = stable.units
    units = units.sample(min(DRAWN_POINTS, len(units)), random_state=0)
    marks = units[["prediction", "prediction", "low", "high", "mape"]]
    marks.columns = ["predicted risk", "y", "from", "to", "mean difference"]
    title = "Stability: would other patients have made another model?"
    return Figure("stability", title, text, partial(plot.stability, stable), marks, 5.5)
