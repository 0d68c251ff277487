"""Predictive distributions of left-out units, by the weighted draws that give their elpd.

    F(t) = Σ_s w_s 1[y_s ≤ t],      y_s ~ p(y | θ_s),   θ_s, w_s draws of p(θ | y_seen), Σ w = 1

    PIT
    Σ_s w_s (1[y_s < y] + u 1[y_s = y]), u uniform: uniform if the model is right, of counts too
    CRPS
    Σ_s w_s |y_s − y| − ½ Σ_s Σ_t w_s w_t |y_s − y_t| / (1 − Σ w²), whose last factor takes the
    pairs s = t out Brier   (p − y)², p = Σ w_s y_s, of a response of zeros and ones
    R²      1 − Σ (y − ŷ)² / Σ (y − ȳ)², ŷ = Σ w_s y_s

Effects that are integrated out are drawn given θ_s and the units of their group that are seen.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float

from ... import Plan
from ...developer import (
    METRICS,
    AnyFunction,
    BoolArray,
    FloatArray,
    IntArray,
    Lines,
    PrintedResult,
    TwoNumbers,
    average_by_unit,
    display_name,
    generator,
    match_labels,
    numbers,
    provided,
    record,
    standard_error,
)
from .coordinates import read_draws
from .posterior import Posterior
from .sampled import Integrated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIT_SIGNIFICANCE = 0.05  # p below which the printed line calls PITs not uniform


@record
class PosteriorPredictions(PrintedResult):
    """Predictive distributions of left-out units, against their responses.

    `PosteriorEstimate.predict` returns it. Printing it shows R², the mean CRPS or Brier score, the
    coverage of the intervals and whether the PIT is uniform.

    Attributes
    ----------
    table : DataFrame
        A row for each left-out unit and refit: its response `y`; `mean`, `low` and `high` of its
        predictive distribution; `pit`; `crps`, or `brier` of a response of zeros and ones; the
        `refit`, and whether it is `flagged`, as its weights cannot be trusted: no score holds such
        a row. NaN where there are no predictive draws.
    level : float
        Share of the predictive distribution between `low` and `high`.
    plan : Plan
        The plan.
    title : str
        Description of the model.
    missing : str
        Why some units have no predictive draws.

    See Also
    --------
    PosteriorEstimate.predict : Make one.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = rng.poisson(np.exp(X[:, 0]))
    >>> fit = lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(1.0)))
    >>> posterior = lo.bayes.from_posterior(fit.quadratic.at(rng.normal(size=(4, 500, 3))), fit)
    >>> found = lo.bayes.elpd(posterior, lo.leave_one_out()).predict(level=0.9)
    >>> found.table.shape, found.table.columns[:6].tolist()
    ((60, 8), ['y', 'mean', 'low', 'high', 'pit', 'crps'])
    """

    table: pd.DataFrame
    level: float
    plan: Plan
    title: str
    missing: str = ""

    def _average(self, values) -> TwoNumbers:
        """Return the mean over units of one number a row, and its standard error by what is
        independent in the plan.
        """
        unit_means = average_by_unit(self._unit, np.asarray(values, float), self.plan.num_units)
        return float(np.nanmean(unit_means)), standard_error(
            unit_means, np.ones(len(unit_means)), self.plan
        ).value

    @property
    def _weighed(self) -> BoolArray:
        """Whether a row has predictive draws, of a fold whose weights are to be trusted."""
        return (self.table["mean"].notna() & ~self.table["flagged"]).to_numpy()

    @property
    def _unit(self) -> IntArray:
        return self.plan.scored_units[self._weighed]

    @property
    def _weighed_table(self) -> pd.DataFrame:
        return self.table[self._weighed]

    @property
    def scores(self) -> pd.DataFrame:
        """R², the mean CRPS or Brier score, and the coverage of the intervals, each with its
        standard error.
        """
        table = self._weighed_table
        score = "brier" if "brier" in table else "crps"
        y = table["y"].to_numpy()
        mean = table["mean"].to_numpy()
        of_rows = {
            "r2": METRICS["r2"].functional.pseudo(y, mean, np.ones(len(y))),  # type: ignore[union-attr]
            score: table[score],
            "coverage": (table["low"] <= y) & (y <= table["high"]),
        }
        rows = {name: self._average(values) for name, values in of_rows.items()}
        if np.ptp(y) == 0:  # responses that do not scatter have no R²
            rows["r2"] = np.nan, np.nan
        return pd.DataFrame.from_dict(rows, "index", columns=["value", "se"])

    @property
    def uniformity(self) -> tuple[float, str]:
        """The p-value of Neyman's smooth test of order two that the PIT is uniform, and what speaks
        most against it.
        """
        pit = self._weighed_table["pit"].to_numpy() - 0.5
        n = len(np.unique(self._unit))
        # of mean zero and variance one where it is uniform
        scaled = np.sqrt(12) * pit, np.sqrt(180) * (pit**2 - 1 / 12)
        place, spread = (mean / np.fmax(se, n**-0.5) for mean, se in map(self._average, scaled))
        message = f"responses lie {'above' if place > 0 else 'below'} the predictions"
        if abs(spread) > abs(place):
            message = f"predictions are too {'sure' if spread > 0 else 'wide'}"
        return float(scipy.stats.chi2.sf(place**2 + spread**2, 2)), message

    def _facts(self) -> Lines:
        table = self._weighed_table
        n = len(self.table)
        flagged = int(self.table["flagged"].sum())
        missing = ""
        if flagged:
            missing = f"; {flagged} are in folds that cannot be weighed"
        lines = [
            ("model", self.title),
            ("predicted", f"{len(table)} of {n} left-out units{missing}{self.missing}"),
        ]
        if len(table):
            p, message = self.uniformity
            (r2, r2_se), (score, score_se), (share, share_se) = self.scores.to_numpy()
            pm = lambda value, se, shown=".4g": (
                f"{value:{shown}}" + (f" ± {se:.2g}" if np.isfinite(se) else "")
            )
            lines += [
                ("R²", pm(r2, r2_se)),
                ("Brier" if "brier" in table else "CRPS", pm(score, score_se)),
                (
                    "intervals",
                    f"of {self.level:.0%} hold {pm(100 * share, 100 * share_se, '.1f')} % of the responses",
                ),
                (
                    "PIT",
                    f"not uniform (p = {p:.1g}): {message}"
                    if p < PIT_SIGNIFICANCE
                    else f"as uniform as expected (p = {p:.2f})",
                ),
            ]
        return lines

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot how often each value of the PIT occurs. Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").pit(self, ax=ax)


def summarise_predictive(
    responses: Float[np.ndarray, " draws"],
    weight: Float[np.ndarray, " draws"],
    y: float,
    level: float,
    u: float,
) -> tuple[float, float, float, float, float]:
    """Return mean, low, high, PIT and CRPS of weighted draws of the response y.

    A share u of ties with y is below it.
    """
    order = np.argsort(responses)
    x = responses[order]
    w = weight[order]
    total = np.cumsum(w)
    low, high = x[
        np.minimum(np.searchsorted(total, [0.5 - level / 2, 0.5 + level / 2]), len(x) - 1)
    ]
    below, until = (w[: np.searchsorted(x, y, side)].sum() for side in ("left", "right"))
    # ½ ΣΣ w w' |x − x'|
    distance = w @ ((x - y) * (2 * total - w - 1))
    pairs = 1 - w @ w
    crps = w @ np.abs(x - y) - (distance / pairs if pairs > 0 else np.nan)
    return float(w @ x), float(low), float(high), float(below + u * (until - below)), float(crps)


def predict_left_out(
    estimate: Any, simulate: Any, level: float, response: Any, seed: int
) -> PosteriorPredictions:
    """Summarise the predictive distribution of every unit that a `PosteriorEstimate` scores."""
    posterior = estimate.posterior
    plan = estimate.plan
    names = estimate.names()
    rng = generator("predict", seed)
    if posterior.block_losses is None:
        raise ValueError(
            "predict: units depend on one another given the parameters, so these alone predict none of them. Effects of groups "
            "may be integrated out of functions of your own: lo.bayes.from_posterior(draws, unit_loss, data, integrate=…)."
        )
    unit = plan.scored_units
    refit = plan.scored_refits
    y = _responses(posterior, names, response)[unit]
    draw = _response_draws(posterior, simulate)
    as_drawn = np.array([fold.theta is posterior.draws for fold in estimate.folds])
    summaries = np.full((len(unit), 5), np.nan)
    ties = rng.random(len(unit))
    binary = np.isin(y, (0, 1)).all()
    for folds in _passes(posterior, plan, as_drawn):
        rows = np.flatnonzero(np.isin(refit, folds))
        part = np.isin(plan.refit, folds)
        weights = np.ones(plan.num_units)
        weights[plan.index[part]] = plan.weight[part]
        units, column = np.unique(unit[rows], return_inverse=True)
        responses = draw(estimate.folds[folds[0]].theta, units, weights, rng)
        if responses is None:
            continue
        if len(bad := np.flatnonzero(~np.isfinite(responses).all(0))):
            raise ValueError(
                f"predict: responses drawn for unit {names[units[bad[0]]]!r} hold NaN or infinity: is simulate defined at "
                "all draws?"
            )
        binary = binary and np.isin(responses, (0, 1)).all()
        for i, j in zip(rows, column, strict=True):
            weight = estimate.folds[refit[i]].weight
            share = weight / weight.sum(dtype=np.float64)
            summaries[i] = summarise_predictive(responses[:, j], share, y[i], level, ties[i])
    table = pd.DataFrame(summaries, names[unit], ["mean", "low", "high", "pit", "crps"])
    if binary:
        table = table.assign(crps=(table["mean"] - y) ** 2).rename(columns={"crps": "brier"})
    table.insert(0, "y", y)
    table = table.assign(refit=refit, flagged=np.isin(refit, estimate.flagged()))
    unpredicted = int((table["mean"].isna() & ~table["flagged"]).sum())
    missing = ""
    if unpredicted:
        missing = f"; {unpredicted} are in folds that weigh moved draws, which only a function simulate serves"
    return PosteriorPredictions(table, level, plan, estimate.labels.objective, missing)


def _passes(posterior: Posterior, plan: Plan, as_drawn: BoolArray) -> list[list[int]]:
    """Group the folds whose responses are drawn together.

    Those at the draws, unless they change the same group of effects.
    """
    passes = list[tuple[list[int], set[int]]]()
    for k in np.flatnonzero(as_drawn):
        changed = plan.index[plan.indptr[k] : plan.indptr[k + 1]]
        blocks = set[int]()
        if isinstance(posterior.objective, Integrated):
            blocks = set(posterior.blocks[changed])
        folds, pass_blocks = next((entry for entry in passes if not entry[1] & blocks), ([], set()))
        if not folds:
            passes.append((folds, pass_blocks))
        folds.append(int(k))
        pass_blocks |= blocks
    return [folds for folds, _ in passes] + [[int(k)] for k in np.flatnonzero(~as_drawn)]


def _responses(posterior: Posterior, names: pd.Index, response) -> FloatArray:
    """Return the response of every unit.

    Labels of a given one are those of the units, if these have some.
    """
    target = posterior.response
    if response is not None:
        target = numbers(
            "predict",
            "response",
            match_labels("predict", units=names.to_series(), response=response)[-1],
        )
    if target is None:
        raise ValueError(
            "predict: give the response of each unit, response=: the data do not say which of them it is."
        )
    y = np.asarray(target, float)
    n = posterior.objective.num_units
    if y.shape != (n,) or not np.isfinite(y).all():
        got = f"{np.sum(~np.isfinite(y))} that are NaN or infinite"
        if y.shape != (n,):
            got = f"shape {y.shape}"
        raise ValueError(f"predict: response must be {n} finite numbers, one a unit; got {got}.")
    if posterior.objective.units.classes > 2:
        raise ValueError(
            "predict: PIT, intervals and CRPS are of numbers; these are of more than two classes."
        )
    return y


def _response_draws(posterior: Posterior, simulate) -> AnyFunction:
    """Return the function that draws responses at some θ.

    Of predictive draws it returns None but at those of the posterior.
    """
    n = posterior.objective.num_units
    size = len(posterior.draws)
    simulate_by = posterior.simulate_by
    title = display_name(posterior.objective)
    if callable(simulate):
        if simulate_by is None:
            raise TypeError(
                f"predict: {title} has no datum for a function simulate; give predictive draws [draws, units]."
            )
        return simulate_by(simulate)
    if simulate is None:
        if posterior.simulate is None:
            advice = (
                "give simulate=, a function (key, theta, datum) in JAX that draws one response, or"
            )
            if simulate_by is None:
                advice = f"{title} draws no responses; give"
            raise ValueError(
                f"predict: {advice} predictive draws [draws, units], such as idata.posterior_predictive."
            )
        return posterior.simulate
    if len(np.unique(posterior.blocks)) < n:
        raise ValueError(
            "predict: predictive draws have effects that have seen what is left out; give a function simulate."
        )
    predictive = getattr(simulate, "posterior_predictive", simulate)
    if isinstance(predictive, pd.DataFrame):
        predictive = predictive.to_numpy()
    arrays = read_draws("predict: simulate", predictive).arrays
    array = next(iter(arrays.values()))
    if len(arrays) > 1 or array.shape != (size, n):
        got = f"arrays {', '.join(arrays)}" if len(arrays) > 1 else array.shape
        raise ValueError(
            f"predict: predictive draws must be one array [{size}, {n}], draws by units; got {got}."
        )
    return lambda theta, units, weights, rng: array[:, units] if theta is posterior.draws else None
