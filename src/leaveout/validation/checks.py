"""Checks of a cross-validation: problems, certain or possible, each with a code, as a linter
reports them.

    LO1xx  the data: copies, ids, a row that is most of the loss, columns that repeat one another,
    classes that a refit lacks,
           rows of one unit, transformers that were fitted with the response, columns that a host
           dropped
    LO2xx  the plan: rows in time order, few independent units, folds of groups or of runs whose
    standard error is over rows LO3xx  the refits: LO300 + the code in `RESULTS`; LO300 itself if
    only the error is too large

A missed problem costs less than a false alarm. A problem that is only possible is therefore
reported only with a second sign of it.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import linalg
from numpy.random import default_rng

from .._runtime import (
    RESULTS,
    Indices,
    NumpyArray,
    Strings,
    TwoNumbers,
    TwoTexts,
    UnitNumbers,
    float64,
    is_pandas,
    level_numbers,
    pd,
)
from ..data import label_texts
from ..objectives import PerUnit
from ..optimize import Fit, zero_combinations
from ..plans import Plan, RefitRows
from .held_out_predictions import repeats
from .scoring import predictions
from .standard_errors import independent

ROWS = 200_000  # largest number of rows that are compared with one another
VALUES = 10  # least number of values of a column that measures something; fewer are kinds
NATURAL = 10  # ratio of copies to those expected by chance that counts as not by chance
IDS = 20  # least number of whole numbers in a column that is named like an id
# share of the loss of one unit that is reported, and the least ratio to its equal share
HEAVY_SHARE = 0.3
FAIR = 10
# kinds of equal rows at least; partners of a row; kinds that are asked for near ones
MIN_EQUAL_KINDS = 10
MAX_PARTNERS = 4
MAX_KINDS = 5000
# ratio of likeness to that of near rows that no curve explains; standard errors of both
LIKENESS_RATIO = 3
SURER = 4.0
BETWEEN = 0.1  # share of the held-out rows whose refits see the row before and the row after
BY_CHANCE = 1e-3  # probability that residuals are as much alike within random folds
# the same of nearest rows, which folds leave out together more often than by chance
ALIKE_BY_CHANCE = 0.01
CERTAIN_CORRELATION = 3.0  # standard errors from which a correlation is certain
# number of independent units below which standard errors are rough (Sivula and others, arXiv
# 2008.10296)
FEW_UNITS = 100
ID = re.compile(
    r"(.*[^a-z])?(id|ids|uid|uuid|guid)|id[^a-z].*|index|idx|rownum|row number|unnamed: \d+"
)
CLOCK = re.compile(
    r"(.*[^a-z])?(t|time|date|datetime|timestamp|year|years|month|week|day|days|hour)([^a-z].*)?"
)


class Check(NamedTuple):
    """One problem that the checks of an estimate found.

    Attributes
    ----------
    code : str
        The code, such as "LO101". `lo.validation.CHECKS` lists all codes with their severities and
        remedies.
    severity : str
        "error" (a number is not to be trusted), "warning" or "info".
    reason : str
        What was found.
    remedy : str
        What to do about it.

    See Also
    --------
    Estimate.checks : The checks of a cross-validation.

    Examples
    --------
    >>> import leaveout as lo
    >>> print(
    ...     lo.validation.Check(
    ...         "LO202",
    ...         "info",
    ...         "20 independent units",
    ...         "take the standard error for a rough number",
    ...     )
    ... )
    LO202 info: 20 independent units; take the standard error for a rough number
    """

    code: str
    severity: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.severity}: {'; '.join(filter(None, (self.reason, self.remedy)))}"


def by_severity(check: Check) -> tuple[int, str]:
    """Put errors first, then warnings."""
    return ("error", "warning", "info").index(check.severity), check.code


def _split_message(code: RESULTS) -> TwoTexts:
    """Split the message of a code into a reason and its last part, the remedy."""
    if not code:
        return "the error is above a tenth of the standard error", "use Exact()"
    reason, _, remedy = code.message.rpartition("; ")
    return (reason, remedy) if reason else (remedy, "")


EXACT_ADVICE = (
    "Exact() made them already: scale the columns, drop those that others tell, or add a penalty"
)
GRAVE = RESULTS.not_converged, RESULTS.undetermined, RESULTS.nonfinite, RESULTS.missed


def _severity(code: RESULTS) -> str:
    if code in GRAVE:
        return "error"
    if code == RESULTS.kink:
        return "info"
    return "warning"


CHECKS: dict[str, TwoTexts] = {  # severity and remedy of every finding
    "LO101": ("warning", "drop copies, or keep them in one fold by lo.groups"),
    "LO102": (
        "warning",
        "leave it out of the features; if it names what rows share, lo.groups leaves that out whole",
    ),
    "LO103": ("warning", "look at that row first: without it the answer may be another"),
    "LO104": ("info", "drop one, or read their coefficients together; predictions are not harmed"),
    "LO105": ("warning", "stratify the folds, or merge classes"),
    "LO106": ("warning", "leave out whole what the rows are of, by lo.groups"),
    "LO107": (
        "error",
        "take lo.sklearn.cross_validate, which fits transformers anew in every fold",
    ),
    "LO108": ("error", "scale the columns, or give the host a smaller tol="),
    "LO201": ("warning", "leave out lo.blocks with a buffer, or lo.leave_future_out"),
    "LO202": ("info", "take the standard error for a rough number"),
    "LO203": (
        "warning",
        "name what rows share, by lo.groups or lo.from_splits(..., groups=), or their times, by times=",
    ),
    **{f"LO{300 + code}": (_severity(code), _split_message(code)[1]) for code in RESULTS},
}


def check(code: str, reason: str) -> Check:
    """Build a `Check` from its code and the reason; severity and remedy belong to the code."""
    severity, remedy = CHECKS[code]
    return Check(code, severity, reason, remedy)


def codes_to_mute(caller: str, mute: Collection[str]) -> Strings:
    """Return the codes to mute; ValueError on a code that does not exist."""
    codes = (mute,) if isinstance(mute, str) or not isinstance(mute, Collection) else tuple(mute)
    wrong = [code for code in codes if code not in [*CHECKS]]
    if wrong:
        raise ValueError(
            f"{caller}: codes are {', '.join(CHECKS)}; got {', '.join(map(repr, wrong))}."
        )
    return codes


def with_all_columns(fit: Fit) -> Any:
    """Return the model with the columns that a penalty holds too."""
    return getattr(getattr(fit.objective, "whole", None), "model", fit.objective)


def reader_of(fit: Fit) -> Any:
    """Return the function that builds the columns of new rows.

    None if these are the data as they are.
    """
    return getattr(getattr(with_all_columns(fit), "labels", None), "read", None)


def of_data(fit: Fit, plan: Plan) -> list[Check]:
    """Check the rows and columns of the model."""
    finders = {
        "LO101": _check_copies,
        "LO102": _check_identifiers,
        "LO104": _check_collinear,
        "LO105": _check_classes,
        "LO106": _check_units,
        "LO107": _check_transformers,
        "LO108": _check_dropped_columns,
        "LO201": _check_time_order,
        "LO203": _check_fold_dependence,
    }
    reasons = {code: find(fit, plan) for code, find in finders.items()}
    return [check(code, reason) for code, reason in reasons.items() if reason]


def of_losses(
    losses: PerUnit,
    weight: PerUnit,
    plan: Plan,
    names: Callable[[], "pd.Index"],
    unit_kind: str,
) -> list[Check]:
    """Check the losses of units, or the joint losses of refits, with these names."""
    size = np.nan_to_num(np.abs(losses) * weight)
    share = size / max(size.sum(), 1e-300)
    n = np.count_nonzero(weight > 0)
    heaviest = int(share.argmax())
    checks = []
    if share[heaviest] > max(HEAVY_SHARE, FAIR / n):
        checks.append(
            check(
                "LO103",
                f"{unit_kind} {label_texts(names()[[heaviest]])[0]} is {share[heaviest]:.0%} of the loss",
            )
        )
    if unit_kind == "row":
        units = independent(losses, weight, plan)
        if units.enough and units.units < FEW_UNITS:
            checks.append(
                check(
                    "LO202",
                    f"the standard error is over {units.units} independent units, fewer than {FEW_UNITS}",
                )
            )
    return checks


def of_refits(
    flagged: Indices,
    result: Int[NumpyArray, " refits"],
    plan: Plan,
    strategy: str = "",
) -> list[Check]:
    """Report the codes of the flagged refits and, as information, of the refits that cross a kink.

    Advice to use the strategy that was used is left out.
    """
    codes = np.where(result[flagged] == RESULTS.kink, RESULTS.successful, result[flagged])
    refits = {code: flagged[codes == code] for code in RESULTS} | {
        RESULTS.kink: np.flatnonzero(result == RESULTS.kink)
    }
    checks = [
        check(
            f"LO{300 + code}",
            f"{_refit_list(numbers, plan.refit_names)}: {_split_message(code)[0]}",
        )
        for code, numbers in refits.items()
        if len(numbers)
    ]
    is_exact = strategy.startswith("Exact(")
    return [
        finding._replace(remedy=EXACT_ADVICE)
        if is_exact and "Exact()" in finding.remedy
        else finding
        for finding in checks
    ]


def _refit_list(refits: Indices, names: "pd.Index") -> str:
    shown = ", ".join(label_texts(names[refits[:8]]))
    return f"{len(refits)} refit{'s' if len(refits) > 1 else ''} ({shown}{', …' if len(refits) > 8 else ''})"


# copies


def _check_copies(fit: Fit, plan: Plan) -> str:
    """Find held-out rows whose own refit sees a copy, unless there are so few kinds of rows that
    they are equal by chance.
    """
    units = fit.objective.units
    offset = getattr(fit.objective, "offset", None)
    features = list(units.features().values())
    if not features or plan.num_units > ROWS:
        return ""
    parts = offset, units.modelled
    offsets, response = (
        [] if part is None else list(np.reshape(part, (len(part), -1)).T) for part in parts
    )
    columns = features + offsets + response
    num_responses = len(response)
    kinds = _kinds(columns)
    copied_rows = _sees_copy(kinds, plan)
    if not copied_rows.size:
        return ""
    # the number by chance, by the columns that measure something: for independent columns or, if
    # that is more (polynomials and splines of one column), what follows from how often different
    # rows agree in all features; the last columns are no features
    n = len(columns[0])
    last = len(columns) - num_responses
    rows = np.unique(kinds, return_index=True)[1]
    measured = [len(np.unique(column)) >= VALUES for column in columns]
    equal_shares = [
        _alike_share(column) if is_measured else 1.0
        for column, is_measured in zip(columns, measured, strict=True)
    ]
    features = [
        column[rows]
        for column, is_measured in zip(columns[:last], measured, strict=False)
        if is_measured
    ]
    joint_share = 0.0
    if features and len(rows) > 1:
        joint_share = _alike_share(_kinds(features)) * math.prod(equal_shares[last:])
    if copied_rows.size <= NATURAL * n * (n - 1) * max(math.prod(equal_shares), joint_share):
        return ""
    if copied_rows.size <= NATURAL * n * (n - 1) * _one_column_apart(
        columns, rows, _alike_share(kinds)
    ):
        return ""
    return f"{len(copied_rows)} rows are seen by their own refits in a copy: the folds leak"


def _one_column_apart(
    columns: list[PerUnit], rows: Int[NumpyArray, " kinds"], equal_share: float
) -> float:
    """Estimate the share of pairs that are equal by chance from those that differ in one column
    alone, as scores do.

    If a share a of different rows agree in the column, a/(1 − a) times as many pairs agree in it
    too. Copies of one record are equal in all columns, so that nearly no pair differs in just one.
    """
    if len(rows) < 2:
        return 0.0
    shares = np.array([_alike_share(column[rows]) for column in columns])
    # columns of fewest values that are looked at, each with the cost of sorting the rows
    max_columns = 20
    chance_share = 0.0
    for j in np.argsort(-shares)[:max_columns]:
        if 0 < shares[j] < 1:
            other_columns = columns[:j] + columns[j + 1 :]
            excess = _alike_share(_kinds(other_columns)) - equal_share if other_columns else 0.0
            chance_share = max(chance_share, excess * shares[j] / (1 - shares[j]))
    return chance_share


def _sees_copy(label: UnitNumbers, plan: Plan) -> Indices:
    """Mark the held-out rows whose own refit sees another row of their kind."""
    size = np.bincount(label)
    if size.max() == 1:
        return np.zeros(0, int)
    distinct, where = np.unique(plan.refit * len(size) + label[plan.index], return_inverse=True)
    out = np.bincount(where, plan.weight == 0, len(distinct))[where]
    return np.unique(plan.index[plan.held & (size[label[plan.index]] > out)])


def _check_units(fit: Fit, plan: Plan) -> str:
    """Find rows of one unit: rows equal in all features, whose residuals are more alike than those
    of near rows.

    There must be more of them than independent columns would give by chance. Such units were
    measured several times without change. If the model only misses a curve, near rows are as much
    alike.
    """
    features = list(fit.objective.units.features().values())
    if (
        not features
        or plan.num_units > ROWS
        or not any(len(np.unique(column)) >= VALUES for column in features)
    ):
        return ""
    label = _kinds(features)
    copied_rows = _sees_copy(label, plan)
    chance = math.prod(map(_alike_share, features))
    if (
        len(np.unique(label[copied_rows])) < MIN_EQUAL_KINDS
        or _alike_share(label) <= NATURAL * chance
    ):
        return ""
    residuals = _residuals(fit)
    if residuals is None:
        return ""
    order = np.argsort(label, kind="stable")
    pairs = np.concatenate(
        [np.stack([order[:-lag], order[lag:]], 1) for lag in range(1, MAX_PARTNERS + 1)]
    )
    correlation, error = _correlation(residuals, *pairs[label[pairs[:, 0]] == label[pairs[:, 1]]].T)
    if not correlation > SURER * error:
        return ""
    # one row of each of some kinds with one row of each of the nearest other kinds, by features in
    # standard deviations
    rows = np.unique(label, return_index=True)[1]
    z = _standardised(features)[rows]
    sample = default_rng(0).permutation(len(rows))[:MAX_KINDS]
    nearest = scipy.spatial.cKDTree(z).query(z[sample], MAX_PARTNERS + 1)[1][:, 1:]
    near_correlation, near_error = _correlation(
        residuals, np.repeat(rows[sample], MAX_PARTNERS), rows[nearest.ravel()]
    )
    if not (
        correlation - max(near_correlation, 0.0) > SURER * math.hypot(error, near_error)
        and correlation > LIKENESS_RATIO * near_correlation
    ):
        return ""
    return (
        f"{len(copied_rows)} rows have all features of others that their own refits see, and residuals that correlate "
        f"{correlation:.2f} (of the nearest other rows {near_correlation:.2f}), as if they were of one unit"
    )


def _standardised(columns: list[PerUnit]) -> Float[NumpyArray, "units columns"]:
    return np.stack([(column - column.mean()) / max(column.std(), 1e-300) for column in columns], 1)


def _nearest_pairs(columns: list[PerUnit]) -> Int[NumpyArray, "2 pairs"]:
    """Pair rows that are nearest to one another, of many rows a sample.

    Among equal rows chance decides.
    """
    rng = default_rng(0)
    max_products = 10**8  # largest number of products for a search that no tree shortens
    z = _standardised(columns)
    sample = rng.permutation(len(z))[: max_products // z.size]
    tree = scipy.spatial.cKDTree(np.column_stack([z, 1e-9 * rng.standard_normal(len(z))]))
    nearest = lambda rows: tree.query(tree.data[rows], 2)[1][:, 1]
    partner = nearest(sample)
    mutual = nearest(partner) == sample
    return np.unique(np.sort([sample, partner], axis=0)[:, mutual], axis=1)


def _correlation(
    residuals: PerUnit, first: Int[NumpyArray, " pairs"], second: Int[NumpyArray, " pairs"]
) -> TwoNumbers:
    """Return the correlation of the residuals of pairs, and its standard error under no
    correlation.
    """
    a = residuals[first]
    b = residuals[second]
    size = max(float(np.sum(a**2 + b**2)) / 2, 1e-300)
    return float(a @ b) / size, float(np.sqrt(np.sum((a * b) ** 2))) / size


def _kinds(columns: list[PerUnit]) -> UnitNumbers:
    """Number the kinds of rows, so that equal rows have one number.

    Rows are compared by their projections on a random direction, summed column by column: a product
    of matrices would round equal rows differently.
    """
    value = np.zeros(len(columns[0]))
    for column, share in zip(columns, default_rng(0).standard_normal(len(columns)), strict=True):
        value += share * column
    return level_numbers(value)


def _alike_share(values: PerUnit | UnitNumbers) -> float:
    """Return the share of pairs of units that have equal values."""
    count = np.unique(values, return_counts=True)[1]
    n = len(values)
    return float(count @ (count - 1)) / (n * (n - 1))


# columns


def _words(name: str) -> str:
    """Write a name in lower case, with its words separated."""
    return re.sub(r"[_\s.\-]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).strip().lower()


def is_identifier(name: str, column: PerUnit) -> bool:
    """Tell whether a column holds whole numbers, and is named like an id.

    Parameters
    ----------
    name : str
        The name of the column.
    column : array, shape (units,)
        Its values, which may be scaled.

    Returns
    -------
    bool
        Whether the words of the name are those of an id, and the values whole multiples of their
        least step, 20 at least.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> (
    ...     lo.validation.is_identifier("patient_id", np.arange(30.0)),
    ...     lo.validation.is_identifier("age", np.arange(30.0)),
    ... )
    (True, False)
    """
    if not ID.fullmatch(_words(name)):
        return False
    values = np.unique(column)
    if len(values) < IDS:
        return False
    # whole multiples of the least step, as the column may be scaled
    steps = (values - values[0]) / np.diff(values).min()
    return bool(steps[-1] < 1e9 and np.abs(steps - np.round(steps)).max() < 1e-3)


def _check_identifiers(fit: Fit, plan: Plan) -> str:
    """Find columns of whole numbers that are named like ids."""
    features = fit.objective.units.features()
    names = [name for name, column in features.items() if is_identifier(name, column)]
    if not names:
        return ""
    count = len(np.unique(features[names[0]]))
    return f"{_quote_names(names)} among the features: an id, by its name and its {count} values of {fit.objective.num_units} rows"


def _check_collinear(fit: Fit, plan: Plan) -> str:
    """Find columns that the others predict almost exactly.

    A column that is predicted exactly has no coefficient of its own; the fit reports it.
    """
    features = {
        name: column
        for name, column in fit.objective.units.features().items()
        if np.ptp(column) > 0
    }
    n = fit.objective.num_units
    count = len(features)
    max_column_products = 10**9  # largest number of products for the comparison of columns
    if not 2 <= count <= n - 2 or count**2 * n > max_column_products:
        return ""
    z = _standardised(list(features.values()))
    value, vector = linalg.eigh(z.T @ z / n)
    if value[0] < 1e-13 * count:
        return ""
    inflation = (vector**2 / value).sum(1)
    # variance of a coefficient, relative to that of a column orthogonal to the others
    variance_inflation = 1e5
    names = [
        name
        for name, factor in zip(features, inflation, strict=True)
        if factor > variance_inflation
    ]
    if not names:
        return ""
    return f"{_quote_names(names)}: each is told by the other columns but for {1 / inflation.max():.0e} of its variance"


def _check_dropped_columns(fit: Fit, plan: Plan) -> str:
    """Find columns that a host's cut of singular values removed, though they are no sum of the
    others.
    """
    objective = fit.objective
    cut = getattr(objective, "cut", 0.0)
    features = objective.units.features()
    if not cut or not len(fit.quadratic.null_space):
        return ""
    null = linalg.qr(fit.quadratic.null_space[:, : len(features)].T)[0]
    centred = np.stack([column - column.mean() for column in features.values()], 1)
    combinations, scale = zero_combinations(centred, 1e-9)
    combinations = linalg.qr(combinations / scale[:, None])[0]  # in the units of the columns
    # of what the host leaves out beyond these
    share = linalg.norm(null - combinations @ (combinations.T @ null), axis=1)
    # most of a direction of length one
    names = [name for name, size in zip(features, share, strict=True) if size > 0.5]
    if not names:
        return ""
    return f"the host dropped {_quote_names(names)}: its tol={cut:g} cuts singular values below that share of the largest column's"


def _quote_names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (
        f", … ({len(names)} in all)" if len(names) > 5 else ""
    )


def _check_classes(fit: Fit, plan: Plan) -> str:
    """Find classes that a refit leaves out whole."""
    target = fit.objective.units.target
    if not fit.objective.units.classes or target is None:
        return ""
    kinds, label, size = np.unique(target, return_inverse=True, return_counts=True)
    if size.min() > np.diff(plan.indptr).max():  # no refit leaves out so many
        return ""
    is_out = plan.weight == 0
    key, count = np.unique(
        plan.refit[is_out] * len(kinds) + label[plan.index[is_out]], return_counts=True
    )
    lost_keys = key[count == size[key % len(kinds)]]
    if not len(lost_keys):
        return ""
    lost_classes = np.unique(lost_keys % len(kinds))
    listed = ", ".join(
        f"{kinds[k]:g} ({size[k]} row{'s' if size[k] > 1 else ''})" for k in lost_classes[:5]
    )
    refits = _refit_list(np.unique(lost_keys // len(kinds)), plan.refit_names)
    suffix = ", …" if len(lost_classes) > 5 else ""
    return f"{refits}: all rows of class {listed}{suffix} are left out"


def _check_transformers(fit: Fit, plan: Plan) -> str:
    """Name the transformers before a host's model that were fitted with the response."""
    return getattr(reader_of(fit), "supervised", "")


# folds


def _takes_rows_as_independent(plan: Plan) -> bool:
    return plan.serial is False and plan.clusters is None and plan.blocks is None


@float64
def _check_fold_dependence(fit: Fit, plan: Plan) -> str:
    """Describe folds whose rows belong together although the plan treats rows as independent; empty
    if there are none.
    """
    single_rows = plan.held.all() and np.bincount(plan.refit).max() == 1
    if not _takes_rows_as_independent(plan) or plan.num_refits < 2 or single_rows:
        return ""
    description = _folds_as_runs(fit, plan) or _folds_as_groups(fit, plan)
    if description:
        return f"the standard error takes rows for independent, but {description}"
    return ""


def _folds_as_runs(fit: Fit, plan: Plan) -> str:
    """Describe folds that are runs of successive rows, if these are in time order or the folds roll
    over them.
    """
    refit = plan.scored_refits
    unit = plan.scored_units
    count = plan.num_refits
    size = np.bincount(refit, minlength=count)
    first = np.full(count, plan.num_units)
    last = np.full(count, -1)
    np.minimum.at(first, refit, unit)
    np.maximum.at(last, refit, unit)
    if np.any((last - first + 1 != size) & (size > 0)):
        return ""
    clock = next(_clocks(fit, plan), "")
    if clock:
        return f"folds are runs of rows in time order, by {clock}"
    follows = (plan.weight == 0) & (plan.index > last[plan.refit])
    number_left_out = np.bincount(plan.refit[follows], minlength=count)
    if number_left_out.any() and np.all(number_left_out == plan.num_units - 1 - last):
        return (
            "each refit leaves out all that follows its fold, as windows that roll over a series do"
        )
    return ""


def _folds_as_groups(fit: Fit, plan: Plan) -> str:
    """Describe folds whose residuals are more alike than those of random folds.

    Where a fold has several groups, whose mean may be that of any, nearest rows share a fold too
    often and have residuals alike.
    """
    repeat = repeats(plan)
    if repeat is None:
        return ""
    entries = plan.held & (repeat[plan.refit] == 0)
    unit = plan.index[entries]
    fold = level_numbers(plan.refit[entries])
    size = np.bincount(fold)
    within = len(unit) - len(size)
    residuals = _residuals(fit) if 1 < len(size) <= within else None
    if residuals is None or not np.isfinite(residuals := residuals[unit]).all():
        return ""
    means = np.bincount(fold, residuals) / size
    variance_between = size @ (means - residuals.mean()) ** 2 / (len(size) - 1)
    variance_within = np.sum((residuals - means[fold]) ** 2) / within
    ratio = float(variance_between / max(variance_within, 1e-300))
    if scipy.special.fdtrc(len(size) - 1, within, ratio) <= BY_CHANCE:
        return f"residuals are alike within folds (F = {ratio:.3g}), as where whole groups are left out"
    features = [column[unit] for column in fit.objective.units.features().values()]
    max_entries = 10**7  # largest number of entries whose rows are compared
    if not 0 < len(features) * len(unit) <= max_entries:
        return ""
    pairs = _nearest_pairs(features)
    together = pairs[:, np.equal(*fold[pairs])]
    number = together.shape[1]
    # of pairs that random folds leave out together
    share = size @ (size - 1) / len(unit) / (len(unit) - 1)
    if scipy.special.bdtrc(number - 1, pairs.shape[1], share) > BY_CHANCE:
        return ""
    correlation = scipy.stats.kendalltau(*residuals[together], alternative="greater")
    if not correlation.pvalue <= ALIKE_BY_CHANCE:
        return ""
    return (
        f"{number} of {pairs.shape[1]} pairs of nearest rows share a fold and have residuals alike, "
        "as where whole groups are left out"
    )


# time


def _check_time_order(fit: Fit, plan: Plan) -> str:
    """Find rows in time order with correlated neighbouring residuals, and refits that see both
    neighbours of a held-out row.
    """
    if not _takes_rows_as_independent(plan):
        return ""
    clock = next(_clocks(fit, plan), "")
    if not clock:
        return ""
    refit = plan.scored_refits
    unit = plan.scored_units
    n = plan.num_units
    is_out = plan.weight == 0
    left_out_entries = plan.refit[is_out] * n + plan.index[is_out]
    sees = lambda neighbour: (
        (neighbour >= 0) & (neighbour < n) & ~np.isin(refit * n + neighbour, left_out_entries)
    )
    if (sees(unit - 1) & sees(unit + 1)).mean() <= BETWEEN:
        return ""
    residuals = _residuals(fit)
    size = 0.0 if residuals is None else float(residuals @ residuals)
    correlation = 0.0
    if residuals is not None and 0 < size < np.inf:
        correlation = float(residuals[1:] @ residuals[:-1]) / size
    if not correlation > CERTAIN_CORRELATION / math.sqrt(plan.num_units):
        return ""
    return f"rows are in time order, by {clock}, and residuals of neighbours correlate {correlation:.2f}, which refits see"


def _clocks(fit: Fit, plan: Plan) -> Iterator[str]:
    """Yield the names of columns, or of the index, that are times of rows and never decrease."""
    # least number of rows that are not in time order by chance
    names = plan.names
    min_ordered_rows = 20
    is_clock = lambda name: name is not None and CLOCK.fullmatch(_words(str(name)))
    candidates = [
        (f"the column {name!r}", pd.Index(column))
        for name, column in fit.objective.units.features().items()
        if is_clock(name)
    ]
    of_time = is_pandas(names, "DatetimeIndex", "PeriodIndex")
    if names is not None and (of_time or is_clock(names.name)):
        text = "their index" if names.name is None else f"their index {str(names.name)!r}"
        candidates.insert(0, (text, names))
    for text, index in candidates:
        ordered = index.is_monotonic_increasing or index.is_monotonic_decreasing
        if ordered and index.nunique() >= min_ordered_rows:
            yield text


@float64
def _residuals(fit: Fit) -> PerUnit | None:
    """Return the residuals of all rows about their mean.

    None if predictions are not single numbers.
    """
    target = fit.objective.units.target
    rows = RefitRows.of_all(fit.objective.num_units, 1)
    if target is None:
        return None
    mean = predictions(fit, rows, fit.vector[None], "response")[0]
    if mean.shape != target.shape:  # several outputs
        return None
    residuals = target - mean
    return residuals - residuals.mean()
