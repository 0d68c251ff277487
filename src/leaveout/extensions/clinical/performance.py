"""Measures of predictions on weighted rows, of many refits at once: those of rms, of calibration
curves, and of survival.

With the linear predictor η, y of two classes, weights w of sum n, ℓ the log likelihood and a, b the
logistic recalibration of y on η (Harrell, Regression Modeling Strategies, 2015):

    Dxy = 2 AUC − 1,   R2 = (1 − e^(−LR/n)) / (1 − e^(−D₀/n)),   Intercept = a,   Slope = b,
    D = (LR − 1)/n,   U = (2ℓ(a + bη) − 2ℓ(η) − 2)/n,   Q = D − U,   B = mean (y − p)²,
    g = mean |bη_i − bη_j|,   gp the same of probabilities

LR is the likelihood ratio of the recalibrated fit, D₀ the null deviance. A curve c of y on p,
lowess or a logistic regression on a restricted cubic spline of η, has E_max = max |c(p) − p| and
E_avg, the mean. For Cox's model D, U and R2 are those of the partial likelihood, in units of its
null deviance. With Ĝ the censoring's Kaplan–Meier estimate, each death before t weighs 1/Ĝ(T−) and
each unit alive at t 1/Ĝ(t) (Graf et al. 1999 for Brier's score, Uno et al. 2007 for areas), and
each pair of Uno's concordance (2011) 1/Ĝ(T−)². Where data do not define a measure, such as rows of
one class, it is NaN.
"""

import abc
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import linalg
from scipy import special

from ... import Cox, Fit
from ...developer import (
    LEAST_PROBABILITY,
    LOG_PROBABILITY,
    AnyPair,
    AnyShape,
    BoolArray,
    Concordance,
    Lanes,
    LaneState,
    Lines,
    NamedNumbers,
    NamedValues,
    NumpyArray,
    PerRow,
    PrintedTable,
    Proposal,
    Ranking,
    RefitPoints,
    StepResult,
    TwoNumbers,
    anywhere,
    areas,
    dot,
    everyone_or,
    iterate,
    kind_of,
    level_numbers,
    objective_of,
    optional,
    predictions,
    record,
    silence,
    slices,
    solve_each,
    thresholds,
    unit_weights,
    whole,
    without_values,
)

PerPoint = Float[NumpyArray, " points"]
Points = Float[NumpyArray, "refits rows"]
PerRefit = Float[NumpyArray, " refits"]
Measures = dict[str, PerRefit]
NEWTON_STEPS = 30  # steps of a recalibration, which takes five, before it counts as separated
NEWTON_TOL = 1e-8  # last step of Newton's method, whose square is then rounding
# relative difference up to which linear predictors of equal rows may differ by rounding
TIE = 1e-13
KNOTS = 0.05, 0.275, 0.5, 0.725, 0.95  # quantiles at which Harrell places five knots
AT_A_TIME = 2**16  # numbers of refits times rows that stay in a cache
IBS_GRID = 50  # times at most at which Brier's score is integrated
NO_RISKS = (
    "a risk until a time, and what is measured of it, needs every unit at risk from zero; this Cox model has entry times. "
    "lo.clinical.validate and lo.clinical.internal_external measure its concordance, slope and explained deviance."
)
# quantiles of the times of events at which survival is measured by default
EVENT_QUANTILES = 0.25, 0.5, 0.75


@record
class PerformanceTable(PrintedTable):
    """Base of results that tell how a fit predicts: a table, and the level of its intervals."""

    table: pd.DataFrame
    fit: Fit
    level: float

    def _lines(self) -> Lines:
        objective = self.fit.objective
        model = (
            f"{kind_of(objective)}, {self.fit.num_params} parameters, {objective.num_units} units"
        )
        return [("model", model), *super()._lines()]


def until(time: float | None) -> str:
    """Name the time of a risk, where there is one, for a sentence."""
    return "" if time is None else f" until {time:g}"


class AbstractPerformance(abc.ABC):
    """Measures of a fit's predictions: `predict` predicts every row by some refits, the call
    measures predictions.

    `y` are the responses, or for Cox's model whether a row ended in the event.
    `LIMITS` has the least and largest value of those measures whose intervals cover in simulations,
    by the name's beginning.
    """

    LIMITS: ClassVar[dict[str, TwoNumbers]]
    kind: ClassVar[str] = "link"  # of predictions

    def __init__(self, fit: Fit, are_cases: bool = False):
        self.fit = fit
        self.weights = unit_weights(fit.objective, are_cases)
        self.y = np.asarray(fit.objective.units.target, float)

    @property
    def case(self) -> PerRow:
        """The weight of each row."""
        return self.weights.values

    def predict(self, theta: RefitPoints, weights: Points) -> Any:
        """Predict every row by each refit, whose weights are given."""
        return predictions(self.fit, whole(weights), theta, self.kind)

    def bounds(self, name: str) -> TwoNumbers | None:
        """Return the least and largest value of a measure, None if its interval would not cover."""
        return next((ends for start, ends in self.LIMITS.items() if name.startswith(start)), None)

    def scores(self, prediction: Any) -> Points:
        """Return logits of probabilities, or of risks until the middle of the times.

        Means where the response is a number.
        """
        return prediction

    @property
    def fit_prediction(self) -> Any:
        """The predictions of the fit itself."""
        return self.predict(self.fit.vector[None], np.ones((1, len(self.case))))

    def scores_of_refits(self, refits: Any, theta: Any, weights: Points, held: Any) -> StepResult:
        """Collect the scores of all rows by refits."""
        return {"score": self.scores(self.predict(theta, weights))}

    @abc.abstractmethod
    def __call__(self, prediction: Any, weights: Points, seen: bool) -> Measures:
        """Measure predictions on rows of some weights.

        `seen` tells that the refits were made of these rows.
        """

    def curve_errors(self, prediction: Any, weights: PerRow) -> NamedNumbers:
        """Return E_max and E_avg by each curve, for one refit."""
        return {}

    def no_information(self, prediction: Any, weights: Float[NumpyArray, "1 rows"]) -> NamedNumbers:
        """Measure predictions that are paired with outcomes at random, by permutations of them."""
        rng = np.random.default_rng(0)
        shuffles = 50
        orders = (rng.permutation(len(self.case)) for _ in range(shuffles))
        permuted = lambda order: (
            prediction[:, order]
            if isinstance(prediction, NumpyArray)
            else tuple(part[:, order] for part in prediction)
        )
        draws = [self(permuted(order), weights, False) for order in orders]
        return {name: float(np.nanmean([draw[name][0] for draw in draws])) for name in draws[0]}


def _finite(measures: NamedValues) -> Measures:
    return {name: np.where(np.isfinite(value), value, np.nan) for name, value in measures.items()}


class Binary(AbstractPerformance):
    """Measures of the probability of the second of two classes."""

    LIMITS = dict.fromkeys(("AUC", "average_precision"), (0.0, 1.0)) | {"Dxy": (-1.0, 1.0)}
    LIMITS |= dict.fromkeys(("B", "log_loss"), (0.0, np.inf)) | dict.fromkeys(
        ("R2", "D", "Q"), (-np.inf, np.inf)
    )

    # the predictions of the last call, and their parts in order
    sorted: AnyPair = (None, [])

    def predict(self, theta, weights):
        if getattr(getattr(self.fit.objective, "loss_function", None), "link", None) == "logit":
            return super().predict(theta, weights)
        p = predictions(self.fit, whole(weights), theta, "response")
        if p.ndim > 2:
            p = p[..., 1]
        return special.logit(np.clip(p, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))

    def __call__(self, prediction, weights, seen):
        if self.sorted[0] is not prediction:  # the same predictions are measured on several rows
            self.sorted = (
                prediction,
                [
                    (
                        part,
                        SortedPredictors(
                            prediction[part], np.broadcast_to(self.y, prediction[part].shape)
                        ),
                    )
                    for part in slices(len(prediction), AT_A_TIME // prediction.shape[1])
                ],
            )
        batches = [predictors.measure(weights[part]) for part, predictors in self.sorted[1]]
        return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    def curve_errors(self, prediction, weights):
        weighted = weights > 0
        errors = {}
        eta = prediction[weighted]
        y = self.y[weighted]
        w = weights[weighted]
        p = special.expit(eta)
        for smoother in ("lowess", "spline"):
            distances = np.abs(curve(eta, y, w, p, smoother, False)[0] - p)
            errors |= {
                f"Emax_{smoother}": float(distances.max()),
                f"Eavg_{smoother}": float(np.average(distances, weights=w)),
            }
        return errors

    def no_information(self, prediction, weights):
        # all pairs of outcomes and predictions: each row counts as both classes, by their shares
        share = np.average(self.y, weights=weights[0])
        outcomes = np.concatenate([np.ones_like(self.y), np.zeros_like(self.y)])[None]
        return {
            name: float(value[0])
            for name, value in SortedPredictors(np.tile(prediction, 2), outcomes)
            .measure(np.concatenate([weights * share, weights * (1 - share)], 1))
            .items()
        }


class SortedPredictors(Ranking):
    """Linear predictors and outcomes in rising order, to be measured on any weights."""

    def __init__(self, eta: Points, y: Points):
        super().__init__(eta, TIE)
        self.y = self.sort(y)

    @silence("all")
    def measure(self, weights: Points) -> Measures:
        """Measure the predictors on weighted rows."""
        x = self.x
        y = self.y
        w = self.sort(weights)
        n = w.sum(1)
        events = dot(w, y)
        auc = areas(self, y, w)
        a, b = logistic(np.stack([np.ones_like(x), x]), y, w)[0].T
        sign = 1 - 2 * y
        line = a[:, None] + b[:, None] * x
        deviance, recalibrated = (
            2 * dot(w, np.maximum(lp, 0) + np.log1p(np.exp(-np.abs(lp))))
            for lp in (sign * x, sign * line)
        )
        share = events / n
        p = special.expit(x)
        null = -2 * n * (special.xlogy(share, share) + special.xlogy(1 - share, 1 - share))
        spread = lambda values: np.abs(gini(values, w))
        cases = np.where(n < 2, np.nan, n)  # weights that sum to one count no cases
        D = (null - recalibrated - 1) / cases
        U = (deviance - recalibrated - 2) / cases
        measures = {
            "Dxy": 2 * auc - 1,
            "R2": np.expm1((recalibrated - null) / n) / np.expm1(-null / n),
            "Intercept": a,
            "Slope": b,
            "D": D,
            "U": U,
            "Q": D - U,
            "B": dot(w, (y - p) ** 2) / n,
            "g": np.abs(b) * spread(x),
            "gp": spread(special.expit(line)),
            "AUC": auc,
            "average_precision": thresholds(self, y, w)[0] / events,
            "log_loss": deviance / (2 * n),
        }
        return _finite(measures)


def scale(least: float, most: float) -> tuple[Any, Any, Any]:
    """Return a transformation of the values between two ends onto the whole line, its inverse, and
    its derivative.
    """
    if np.isfinite(most - least):
        span = most - least
        transform = lambda x: special.logit((x - least) / span)
        inverse = lambda z: least + span * special.expit(z)
        return transform, inverse, lambda x: span / ((x - least) * (most - x))
    if np.isfinite(least):
        return (
            (lambda x: np.log(x - least)),
            (lambda z: least + np.exp(z)),
            (lambda x: 1 / (x - least)),
        )
    if np.isfinite(most):
        return (
            (lambda x: -np.log(most - x)),
            (lambda z: most - np.exp(-z)),
            (lambda x: 1 / (most - x)),
        )
    return (lambda x: x), (lambda z: z), np.ones_like


def gini(x: Points, w: Points) -> PerRefit:
    """Compute the mean |x_i − x_j| of pairs of different cases, for sorted x."""
    n = w.sum(1, keepdims=True)
    balance = 2 * np.cumsum(w, 1) - w - n
    return 2 * np.sum(w * x * balance, 1) / np.where(n < 2, np.nan, n * (n - 1))[:, 0]


@silence("all")
def logistic(
    Z: Float[NumpyArray, "columns refits rows"],
    y: Points,
    w: Points,
    offset: Any = 0.0,
    tol: float = NEWTON_TOL,
) -> tuple[Float[NumpyArray, "refits columns"], Float[NumpyArray, "refits columns columns"]]:
    """Fit small logistic regressions by Newton's method; return coefficients and Hessians, NaN
    where there is no minimum.

    It starts at a slope of one in the second column, where calibrated predictors are, and then anew
    at zero.
    """
    columns, refits = Z.shape[:2]
    best = np.full((refits, columns), np.nan)
    curvature = np.full((refits, columns, columns), np.nan)

    def propose(state: LaneState, places: Lanes) -> Proposal:
        part = everyone_or(lanes[places], refits)
        z = Z[:, part]
        weight = w[part]
        theta = state.theta
        p = special.expit(sum(z[k] * theta[:, k, None] for k in range(columns)) + offset)
        v = weight * p * (1 - p)
        residual = weight * (p - y[part])
        weighted = [v * column for column in z]
        H = np.array(
            [
                [dot(weighted[min(i, j)], z[max(i, j)]) for i in range(columns)]
                for j in range(columns)
            ]
        ).transpose(2, 0, 1)
        curvature[part] = H
        # else the classes are apart
        sound = np.isfinite(H).all((1, 2)) & (v.sum(1) > 1e-9 * weight.sum(1))
        # so that a solution exists
        tiny = 1e-15 * np.trace(H, axis1=1, axis2=2)[:, None, None] * np.eye(columns)
        matrices = np.where(sound[:, None, None], H + tiny, np.eye(columns))
        gradient = np.stack([dot(residual, column) for column in z], 1)
        step = solve_each(matrices, gradient)
        done = (np.abs(step) <= tol * (1 + np.abs(theta - step))).all(1)
        return Proposal(step, v.sum(1), done & sound, ~sound)

    for slope in (1.0, 0.0):
        lanes = np.flatnonzero(np.isnan(best[:, 0]))
        start = np.zeros((len(lanes), columns))
        start[:, 1:2] = slope
        state, converged = iterate(without_values, propose, start, anywhere, NEWTON_STEPS)
        best[lanes[converged]] = state.theta[converged]
    curvature[np.isnan(best[:, 0])] = np.nan
    return best, curvature


def regression(
    Z: Float[NumpyArray, "rows columns"],
    y: PerRow,
    w: PerRow,
    label: Any,
    linear: bool,
    offset: Any = 0.0,
) -> tuple[Float[NumpyArray, " columns"], Float[NumpyArray, "columns columns"]]:
    """Regress outcomes on a few columns.

    Return coefficients and their covariance, a sandwich over labels if there are any.
    """
    if linear:
        H = Z.T @ (Z * w[:, None])
        theta = linalg.lstsq(H, Z.T @ (w * y), rcond=None)[0]
        residual = y - Z @ theta
        freedom = w.sum() - Z.shape[1]
        variance = np.nan
        if freedom > 0:
            variance = (w @ residual**2) / freedom
    else:
        theta, H = (part[0] for part in logistic(Z.T[:, None], y[None], w[None], offset, tol=1e-12))
        residual = y - special.expit(Z @ theta + offset)
        variance = 1.0
    if not np.isfinite(H).all():
        return theta, np.full(H.shape, np.nan)
    inverse = linalg.pinv(H, hermitian=True)
    if label is None:
        return theta, variance * inverse
    code = level_numbers(label)
    slopes = np.stack([np.bincount(code, column) for column in (Z * (w * residual)[:, None]).T], 1)
    groups = len(slopes)
    return theta, inverse @ (slopes.T @ slopes) @ inverse * (
        groups / (groups - 1) if groups > 1 else np.nan
    )


@silence("all")
def curve(
    eta: PerRow,
    y: PerRow,
    w: PerRow,
    grid: PerPoint,
    smoother: str,
    linear: bool,
    label: Any = None,
    z: float = np.nan,
) -> Float[NumpyArray, "3 points"]:
    """Return the curve at some predictions, and the ends of its band of ± z standard errors on the
    scale of η.
    """
    inverse_link = special.expit
    if linear:
        inverse_link = lambda x: x
    if smoother == "lowess":
        return np.stack(
            [lowess_curve(inverse_link(eta), y, w, grid), *np.full((2, len(grid)), np.nan)]
        )
    knots = spline_knots(eta, w)
    theta, cov = regression(spline_basis(eta, knots), y, w, label, linear)
    basis = spline_basis(grid if linear else special.logit(grid), knots)
    middle = basis @ theta
    half = z * np.sqrt(np.einsum("np,pq,nq->n", basis, cov, basis))
    return inverse_link(np.stack([middle, middle - half, middle + half]))


def lowess_curve(p: PerRow, y: PerRow, w: PerRow, grid: PerPoint) -> PerPoint:
    """Compute R's `lowess(p, y, f = 2/3, iter = 0)`, linearly between the rows, NaN outside or
    where weights are not whole.

    A row of weight two is two rows. Raises ImportError without statsmodels.
    """
    with optional("lowess needs statsmodels: pip install 'leaveout[statsmodels]'"):
        from statsmodels.nonparametric.smoothers_lowess import lowess
    times = np.round(w).astype(int)
    if not np.array_equal(times, w):
        return np.full(len(grid), np.nan)
    order = np.argsort(p, kind="stable")
    rows = np.repeat(order, times[order])
    x = p[rows]
    hundredth = 0.01 * np.ptp(x)  # R's delta: points closer than this are interpolated
    with silence("all"), warnings.catch_warnings():
        # statsmodels divides by a zero distance where more tie than a neighbourhood holds
        warnings.simplefilter("ignore")
        smooth = lowess(
            y[rows], x, frac=2 / 3, it=0, delta=hundredth, is_sorted=True, return_sorted=False
        )
    level, first, tied = np.unique(x, return_index=True, return_counts=True)
    alone = tied >= max(int(2 / 3 * len(x) + 1e-7), 2)  # there R has their mean
    mean = np.add.reduceat(y[rows], first) / tied
    return np.interp(grid, level, np.where(alone, mean, smooth[first]), left=np.nan, right=np.nan)


def spline_basis(
    eta: AnyShape, knots: Float[NumpyArray, " knots"]
) -> Float[NumpyArray, "... columns"]:
    """Return a column of ones, η, and the restricted cubic splines of η, which are linear beyond
    the outer knots.
    """
    cube = lambda t: (lambda away: away * away * away)(np.maximum(eta - t, 0.0))
    low = knots[0]
    last = knots[-2]
    end = knots[-1]
    splines = [
        cube(t) - (cube(last) * (end - t) - cube(end) * (last - t)) / (end - last)
        for t in knots[:-2]
    ]
    return np.stack(
        [np.ones_like(eta), eta, *(spline / (end - low) ** 2 for spline in splines)], -1
    )


def spline_knots(eta: PerRow, w: PerRow) -> Float[NumpyArray, " knots"]:
    """Return the knots: quantiles of the linear predictor that differ, or its ends."""
    knots = np.unique(np.quantile(eta, KNOTS, weights=w, method="inverted_cdf"))
    if len(knots) > 2:
        return knots
    return np.linspace(eta.min(), eta.max(), 3)


class Continuous(AbstractPerformance):
    """Measures of a predicted mean."""

    LIMITS: ClassVar = {"R2": (-np.inf, 1.0), "MSE": (0.0, np.inf)}
    kind = "response"

    @silence("all")
    def __call__(self, prediction, weights, seen):
        ranking = Ranking(prediction)
        x = ranking.x
        y = self.y[ranking.order]
        w = ranking.sort(weights)
        mean = lambda values: dot(w, values) / w.sum(1)
        squares = mean((y - x) ** 2)
        level = mean(y)
        centre = mean(x)
        slope = mean((x - centre[:, None]) * y) / mean((x - centre[:, None]) ** 2)
        spread = np.abs(slope) * gini(x, w)
        return {
            "R2": 1 - squares / mean((y - level[:, None]) ** 2),
            "MSE": squares,
            "Intercept": level - slope * centre,
            "Slope": slope,
            "g": spread,
        }


def times_and_grid(
    caller: str, times: Any, died: Float[NumpyArray, " deaths"], last: float
) -> tuple[Float[NumpyArray, " times"], Float[NumpyArray, " grid"]]:
    """Return the times at which survival is measured, by default quartiles of those of events, and
    where it is integrated.
    """
    chosen = np.unique(
        np.quantile(died, EVENT_QUANTILES, method="nearest")
        if times is None
        else np.asarray(times, float)
    )
    if not chosen.size or not np.isfinite(chosen).all() or chosen[0] < 0 or chosen[-1] > last:
        raise ValueError(
            f"{caller}: times must lie between 0 and the last one observed, {last:g}; got {times!r}."
        )
    between = died[(died > chosen[0]) & (died < chosen[-1])]
    if len(between) > IBS_GRID:
        between = np.quantile(between, np.linspace(0, 1, IBS_GRID), method="nearest")
    return chosen, np.union1d(chosen, between)


class Survival(AbstractPerformance):
    """Measures of Cox's model.

    A prediction is the linear predictor, the baseline's cumulative hazard at each time, and the
    cumulative hazard at each unit's own time. The hazards of a stratum of which a refit has no unit
    are NaN.
    """

    LIMITS = (
        dict.fromkeys(("AUC", "C"), (0.0, 1.0))
        | {"Dxy": (-1.0, 1.0)}
        | dict.fromkeys(("Brier", "IBS"), (0.0, np.inf))
    )

    def __init__(self, fit: Fit, times: Any, are_cases: bool = False, caller: str = "validate"):
        super().__init__(fit, are_cases)
        self.model = cast(Cox, fit.objective)
        self.risk = np.asarray(self.model.units.risk)
        self.y = self.risk[:, 2]
        time = np.asarray(self.model.time)
        event = np.asarray(self.model.event) == 1
        if self.model.spans is None:
            self.times, self.grid = times_and_grid(
                caller, times, np.unique(time[event]), time.max()
            )
        else:  # units that enter late have no risk from zero on, nor a measure at a time
            self.times = self.grid = np.zeros(0)
            if times is not None:
                raise ValueError(f"{caller}: {NO_RISKS}")
        self.censoring = Censoring(time, event)
        starts = np.unique(self.model.first)
        self.stratum = np.searchsorted(starts, np.argsort(self.model.order), side="right") - 1
        self.event_stratum = np.searchsorted(starts, self.model.first)
        self.event_time = time[self.model.dead[self.model.begin]]

    def predict(self, theta, weights):
        eta = super().predict(theta, weights)
        steps = self.model.partial(self.model.sums_of(eta, weights))[2]
        strata = np.arange(self.stratum.max() + 1)[:, None, None]
        # [strata, grid, times]
        reached = (self.event_time <= self.grid[:, None]) & (self.event_stratum == strata)
        members = (self.stratum == strata[:, 0]) * 1.0
        defined = np.where(weights @ members.T > 0, 1.0, np.nan)[:, self.stratum]
        base = (
            np.einsum("rt,sgt->rsg", steps, reached.astype(float))[:, self.stratum]
            * defined[:, :, None]
        )
        return eta, base, self.model.over_units(steps, np.zeros_like(steps)) * np.exp(eta) * defined

    def likelihood(
        self, slope: PerRefit, eta: Points, weights: Points
    ) -> tuple[PerRefit, PerRefit]:
        """Compute minus the log partial likelihood of rows of some weights by a multiple of η, and
        its derivative.
        """
        value, gradient, *_ = self.model.partial(
            self.model.sums_of(slope[:, None] * eta, weights / self.case)
        )
        # S of the model's own weights is S times their scale
        scale = self.weights.scale
        deaths = weights @ self.y
        return value / scale - deaths * np.log(scale), np.sum(gradient * eta, 1) / scale

    @property
    def middle(self) -> float:
        """The time until which risks are predicted, of several."""
        return float(self.times[len(self.times) // 2])

    @silence("all")
    def scores(self, prediction):
        hazard = prediction[1][:, :, np.searchsorted(self.grid, self.middle)] * np.exp(
            prediction[0]
        )
        return hazard + np.log(-np.expm1(-hazard))

    def at_time(self, time: float) -> tuple[PerRow, PerRow]:
        """Return whether each unit dies until a time, and its weight.

        1/Ĝ, zero if it is censored before.
        """
        G_own, G = self.censoring(self.case[None], np.array([time]))
        dead = (self.censoring.time <= time) & (self.y == 1)
        late = self.censoring.time > time
        with silence("all"):
            return dead * 1.0, self.case * np.where(
                dead, 1 / G_own[0], np.where(late, 1 / G[0, 0], 0.0)
            )

    @silence("all")
    def __call__(self, prediction, weights, seen):
        eta, base, _ = prediction
        n = weights.sum(1)
        value = lambda slope: self.likelihood(slope, eta, weights)
        null = 2 * value(np.zeros(len(eta)))[0]
        loss, gradient = value(np.ones(len(eta)))
        slope = secant(lambda b: value(b)[1], gradient)
        best = value(slope)[0]
        ratio = null - 2 * best
        D = (ratio - 1) / null
        U = 2 * (loss - best - seen) / null
        ranking = Ranking(eta)
        spread = np.abs(slope) * gini(ranking.x, ranking.sort(weights))
        harrell = np.array(
            [concordance(self.risk, *pair) for pair in zip(eta, weights, strict=True)]
        )
        measures = {
            "Dxy": 2 * harrell - 1,
            "R2": np.expm1(-ratio / n) / np.expm1(-null / n),
            "Slope": slope,
            "D": D,
            "U": U,
            "Q": D - U,
            "g": spread,
            "C": harrell,
        }
        if self.times.size:
            measures |= self._until_times(eta, base, weights)
        return _finite(measures)

    def _until_times(self, eta: Points, base: NumpyArray, weights: Points) -> Measures:
        G_own, G_grid = self.censoring(weights, self.grid)
        last = self.censoring.time <= self.times[-1]
        uno = [np.where(last & (g > 0), self.y / np.where(g > 0, g, 1.0) ** 2, 0.0) for g in G_own]
        marks = zip(uno, eta, weights, strict=True)
        pairs = np.array(
            [concordance(np.column_stack([self.risk[:, :2], u]), *pair) for u, *pair in marks]
        )
        hazard = base * np.exp(eta)[:, :, None]
        time = self.censoring.time
        died = self.y == 1
        measures = {"C_uno": pairs}
        briers = np.empty(G_grid.shape)
        over = lambda G: np.divide(weights, G, out=np.zeros_like(weights), where=weights > 0)
        case = over(G_own)
        for k, t in enumerate(self.grid):
            late = time > t
            dead = (time <= t) & died
            mass = np.where(dead, case, np.where(late, over(G_grid[:, k : k + 1]), 0.0))
            briers[:, k] = dot(mass, (late - np.exp(-hazard[:, :, k])) ** 2) / weights.sum(1)
            if t in self.times:
                ranking = Ranking(hazard[:, :, k], TIE)
                positive = ranking.sort(np.broadcast_to(dead * 1.0, mass.shape))
                area = areas(ranking, positive, ranking.sort(mass))
                # some hazards are not known
                measures[f"AUC({t:g})"] = np.where(np.isnan(briers[:, k]), np.nan, area)
        measures |= {
            f"Brier({t:g})": briers[:, k] for k, t in enumerate(self.grid) if t in self.times
        }
        if len(self.times) > 1:
            measures["IBS"] = np.trapezoid(briers, self.grid, axis=1) / np.ptp(self.times)
        return measures


class Censoring:
    """Kaplan–Meier estimate of the censoring, from weighted units.

    Before each one's time, and at other times.
    """

    def __init__(self, time: PerRow, event: BoolArray):
        self.time = time
        # a death comes before a censoring at its time
        self.level, self.code = np.unique(2 * level_numbers(time) + ~event, return_inverse=True)
        self.order = np.argsort(self.code, kind="stable")
        self.begin = np.searchsorted(self.code[self.order], np.arange(len(self.level)))
        self.at_level = time[self.order[self.begin]]

    def __call__(
        self, weights: Points, times: Float[NumpyArray, " times"]
    ) -> tuple[Points, Float[NumpyArray, "refits times"]]:
        mass = np.add.reduceat(weights[:, self.order], self.begin, axis=1)
        at_risk = np.cumsum(mass[:, ::-1], 1)[:, ::-1]
        leave = np.where(self.level % 2 == 1, mass, 0.0)
        stays = np.cumprod(
            1 - np.divide(leave, at_risk, out=np.zeros_like(mass), where=at_risk > 0), 1
        )
        before = np.pad(stays, ((0, 0), (1, 0)), constant_values=1.0)
        return before[:, self.code], before[:, np.searchsorted(self.at_level, times, side="right")]


def kaplan_meier_influence(time: PerRow, event: PerRow, weight: PerRow, until: float) -> PerRow:
    """Compute the Kaplan–Meier estimate of survival beyond a time plus each row's influence, whose
    weighted mean it is.
    """
    level, code = np.unique(time, return_inverse=True)
    died = np.bincount(code, weight * event)
    at_risk = np.cumsum(np.bincount(code, weight)[::-1])[::-1]
    early = level <= until
    hazard = np.where(early, died / at_risk, 0.0)
    alive = float(np.prod(1 - hazard))
    with silence("all"):  # where all who are at risk die, survival is zero
        inverse_risk = np.where(early, 1 / (at_risk * (1 - hazard)), 0.0)
        past = (
            np.cumsum(hazard * inverse_risk)[code]
            - np.where(early[code], event, 0.0) * inverse_risk[code]
        )
    return alive + np.where(np.isfinite(past), alive * past * weight.sum(), 0.0)


def concordance(risk: Float[NumpyArray, "rows facts"], eta: PerRow, w: PerRow) -> float:
    """Compute the concordance of some weighted units; NaN if no pair is comparable."""
    members = w > 0
    member_risk = risk[members]
    if member_risk[:, 2].max(initial=0) == 0:
        return np.nan
    return Concordance().value(member_risk, eta[members], w[members])


def secant(slope: Callable[[PerRefit], PerRefit], at_one: PerRefit) -> PerRefit:
    """Find the root of each derivative, from its values at one and nearby.

    NaN where there is none.
    """
    x0 = np.ones_like(at_one)
    f0 = at_one
    x1 = np.full_like(x0, 0.9)
    for _ in range(NEWTON_STEPS):
        f1 = slope(x1)
        step = np.where(f1 == f0, 0.0, f1 * (x1 - x0) / (f1 - f0))
        x0 = x1
        f0 = f1
        x1 = x1 - step
        if np.all((np.abs(step) <= NEWTON_TOL * (1 + np.abs(x1))) | ~np.isfinite(x1)):
            break
    return np.where(np.abs(x1 - x0) <= 1e-6 * (1 + np.abs(x1)), x1, np.nan)


def performance(
    caller: str, fit: Fit, times: Any = None, are_cases: bool = False
) -> AbstractPerformance:
    """Return the measures of a fit's kind of response, whose weights may be numbers of cases.

    TypeError if it has none.
    """
    objective = objective_of(caller, fit)
    units = objective.units
    if isinstance(objective, Cox):
        return Survival(fit, times, are_cases, caller)
    if times is not None:
        raise ValueError(f"{caller}: times= is for lo.Cox; got {kind_of(objective)}.")
    if units.target is None or units.classes > 2 or np.ndim(units.target) != 1:
        raise TypeError(
            f"{caller}: needs a response of two classes, a number, or lo.Cox; got {kind_of(objective)}"
            f"{f' of {units.classes} classes' if units.classes > 2 else ''}. lo.cross_validate scores other models."
        )
    if units.classes == 2:
        return Binary(fit, are_cases)
    mean = Continuous(fit, are_cases)
    shares = (
        units.score == LOG_PROBABILITY
        and np.isin(mean.y, (0, 1)).all()
        and 0 < mean.fit_prediction.min() <= mean.fit_prediction.max() < 1
    )
    # of a mixed model, whose mean is a probability
    return Binary(fit, are_cases) if shares else mean
