"""Expected log predictive density of left-out units, from one set of draws.

    elpd_o = log p(y_o | y_seen) = log Z(w_o with the held-out units at 1) − log Z(w_o)

With nothing but the held-out units left out, the first normaliser is that of the posterior itself.
The same weights give a second estimate, the weighted mean of p(y_o | θ). Where k̂ of the weights is
high, or the two differ, the next proposal is tried: the draws, their mixture with moved draws, a
multivariate t. A fold for which none will do is flagged, and sampled anew if the caller gives
`refit`.
"""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from ... import RESULTS, Estimate, Plan
from ...developer import (
    File,
    FloatArray,
    IntArray,
    Lines,
    NamedValues,
    PlanLike,
    PrintedTexts,
    Rng,
    conventional,
    count,
    display_name,
    elpd_data,
    float64,
    join_remarks,
    keeping,
    label_texts,
    plan_reader,
    record,
    share,
)
from ...validation import Interrupted
from .fold_estimator import FoldEstimator, LogDensities, error_of_batches
from .importance import MAX_K, WeightedDraws
from .posterior import Posterior
from .predictions import PosteriorPredictions, predict_left_out
from .sampled import Integrated

# share of folds whose draws cannot be weighed as they are, beyond which sampled effects of groups
# may be why
MANY = 0.3
PROPOSALS = "draws", "mixture", "t", "refit"  # in the order in which they are tried


def _no_numbers() -> FloatArray:
    return np.zeros(0)


@record
class PosteriorEstimate(Estimate):
    """The elpd of every fold of a plan, with Pareto's k̂, the gap between two estimates, and
    Monte-Carlo errors.

    `lo.bayes.elpd` returns it. It is an `Estimate` whose losses are −elpd, so that `lo.compare`
    takes it beside fits.

    Attributes
    ----------
    pareto_k : ndarray, `[refits]`
        k̂ of the weights whose mean is the estimate; trusted below 0.7. Weights of a mixture are at
        most twice those of the draws: it is the smaller of both.
    raw_k : ndarray, `[refits]`
        k̂ of the draws as they are, which PSIS-LOO reports.
    gap : ndarray, `[refits]`
        Absolute difference between the ratio of normalisers and the weighted mean of the predictive
        density.
    effective : ndarray, `[refits]`
        Effective number of draws.
    proposal : ndarray of str, `[refits]`
        What was weighed: "draws", "mixture" (with moved draws), "t" or "refit".
    sampling_error : float
        Monte-Carlo standard error of `elpd`, over errors that folds share.
    loss_error : ndarray
        Monte-Carlo standard error of each loss, in the order of `losses`; `error` has that of the
        summed losses of each refit.
    draws : int
        Number of draws of the posterior.
    posterior : Posterior or None
        The posterior; a pickled estimate has none.
    folds : list of WeightedDraws
        Draws of the posterior given what each fold sees, and their weights.

    See Also
    --------
    elpd : Make one.
    compare : Compare it with other posteriors and fits.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=20)
    >>> draws = y.sum() / 21 + rng.normal(size=(2000, 1)) / 21**0.5
    >>> loss = lambda theta, y: 0.5 * (y - theta[0]) ** 2 + 0.5 * np.log(2 * np.pi)
    >>> posterior = lo.bayes.from_posterior(
    ...     draws, loss, y, log_prior=lambda theta: -0.5 * theta[0] ** 2
    ... )
    >>> found = lo.bayes.elpd(posterior, lo.leave_one_out())
    >>> bool(found.pareto_k.max() < 0.7), len(found.flagged())
    (True, 0)
    """

    pareto_k: FloatArray = field(default_factory=_no_numbers)
    raw_k: FloatArray = field(default_factory=_no_numbers)
    gap: FloatArray = field(default_factory=_no_numbers)
    effective: FloatArray = field(default_factory=_no_numbers)
    proposal: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, "<U8"))
    sampling_error: float = np.nan
    loss_error: FloatArray = field(default_factory=_no_numbers)
    draws: int = 1
    posterior: Posterior | None = None
    folds: list[WeightedDraws] = field(default_factory=list)

    @property
    def _count(self) -> int:
        """The folds or units that have an elpd.

        Or the cases that they stand for, where single cases are left out.
        """
        return round(float(self._weight[np.isfinite(self._unit_losses)].sum()))

    @property
    def elpd(self) -> float:
        """Summed log predictive density of the folds; or of the units, or their cases, if each is
        scored by itself.

        Flagged folds, whose weights have no mean that can be trusted, are not in the sum.
        """
        return -self.mean * self._count

    @property
    def elpd_se(self) -> float:
        """Standard error of `elpd` over new data, by what is independent in the plan."""
        return self.se * self._count

    @property
    def approximation_error(self) -> float:
        """Monte-Carlo standard error of `mean`."""
        return self.sampling_error / max(self._count, 1)

    def flagged(self, threshold: float = 0.1) -> IntArray:
        """List the refits whose weights are not to be trusted by any proposal.

        Parameters
        ----------
        threshold : float, default 0.1
            Not used: k̂ and the gap decide.

        Returns
        -------
        ndarray of int
            The numbers of the refits.
        """
        return np.flatnonzero(self.result != RESULTS.successful)

    @conventional
    @float64
    def predict(
        self,
        simulate: Any = None,
        level: float = 0.95,
        *,
        response: ArrayLike | None = None,
        rng: Rng = 0,
    ) -> PosteriorPredictions:
        """Predict the response of every left-out unit, and compare: mean, interval, PIT, CRPS or
        Brier score, R².

        The predictive distribution of a unit is that of responses drawn at the weighted draws which
        give its fold's elpd.

        Parameters
        ----------
        simulate : callable, or predictive draws, optional
            `simulate(key, theta, datum)`, which draws the response of one unit in JAX; `theta` and
            `datum` are those of `unit_loss`, and an effect that is integrated out is drawn from its
            prior. Or predictive draws `[draws, units]` at the draws of the posterior, such as
            `idata.posterior_predictive`; units whose fold weighs moved draws are then not
            predicted. Models of PyMC and NumPyro, regressions and generalised linear models need
            neither.
        level : float, default 0.95
            Share of the predictive distribution between the ends of an interval.
        response : array_like, shape (units,), optional
            Response of each unit; by default that of the model, or of the data: the array, or its
            "y".
        rng : int, numpy.random.Generator or None, default 0
            Random numbers of the drawn responses, and of ties of the PIT.

        Returns
        -------
        PosteriorPredictions
            The predictions, with their `table`.

        Raises
        ------
        ValueError
            If there is nothing to draw responses from, or responses are missing, of another shape,
            or more than two classes.
        TypeError
            If a function is given for a model of the library.

        Examples
        --------
        >>> import jax
        >>> import numpy as np
        >>> import leaveout as lo
        >>> rng = np.random.default_rng(0)
        >>> y = rng.normal(size=20)
        >>> draws = y.sum() / 21 + rng.normal(size=(2000, 1)) / 21**0.5
        >>> loss = lambda theta, y: 0.5 * (y - theta[0]) ** 2 + 0.5 * np.log(2 * np.pi)
        >>> posterior = lo.bayes.from_posterior(
        ...     draws, loss, y, log_prior=lambda theta: -0.5 * theta[0] ** 2
        ... )
        >>> found = lo.bayes.elpd(posterior, lo.leave_one_out())
        >>> predicted = found.predict(lambda key, theta, y: theta[0] + jax.random.normal(key))
        >>> bool(predicted.table["pit"].between(0, 1).all())
        True
        """
        if self.unit_weight is not None:
            raise ValueError(
                "predict: the plan leaves out single cases of units; leave out whole units, as lo.leave_one_out()."
            )
        if self.posterior is None:
            raise ValueError(
                "predict: this estimate has no posterior, as one that was pickled; call lo.bayes.elpd again."
            )
        seed = count("predict: rng", rng, 0)
        return predict_left_out(self, simulate, share("predict: level", level), response, seed)

    def without_data(self) -> "PosteriorEstimate":
        return replace(cast(PosteriorEstimate, super().without_data()), posterior=None, folds=[])

    def __getstate__(self) -> NamedValues:
        return vars(self.without_data())  # functions of a density cannot be pickled

    @conventional
    def table(self) -> pd.DataFrame:
        """Tabulate the scored units of every refit, or the refits where losses are joint.

        Returns
        -------
        DataFrame
            The columns of `Estimate.table`, whose `error` is the Monte-Carlo standard error of the
            `elpd` in the same row, and `pareto_k`, `raw_k`, `gap`, `ess` and `proposal` of the
            refit. The `group` is that which leaves, if groups do. A flagged refit has no elpd.
        """
        table = super().table()
        result = table.pop("result")
        table.insert(table.columns.get_loc("loss"), "elpd", -table["loss"])
        table["error"] = np.append(self.loss_error, np.nan)[self._rows[0]]
        columns = {
            "pareto_k": self.pareto_k,
            "raw_k": self.raw_k,
            "gap": self.gap,
            "ess": self.effective,
            "proposal": self.proposal,
        }
        return table.assign(**self._of_refits(columns), result=result)

    def _numbers(self) -> Lines:
        plan = self.plan
        se = self.standard_error
        bad = int(np.sum(self.raw_k >= MAX_K))
        count = self._count
        error = ""
        if np.isfinite(se.value):
            error = f" ± {se.value * count:.3g}"
        if self.joint:
            terms = "folds, joint"
        else:
            terms = "cases"
            if self.unit_weight is None:
                terms = "units"
        used = ", ".join(
            f"{np.sum(self.proposal == name)} by {name}"
            for name in PROPOSALS
            if name in self.proposal
        )
        flagged = self.flagged()
        total = plan.num_refits
        names = label_texts(plan.refit_names[flagged[:8]])
        flagged_names = ""
        if len(flagged):
            flagged_names = f": {', '.join(names)}{', …' if len(flagged) > 8 else ''}"
        elpd = ""
        if count:
            elpd = f"{self.elpd:.6g}{error} of {count} {terms} (SE {se.kind})"
        missing = ""
        if len(flagged):
            missing = f"not available: {len(flagged)} of {total} folds cannot be weighed; integrate=…, refit= or more draws"
        lines = [
            ("model", self.labels.objective),
            ("refits", f"{total} of {plan.widths} each, by importance sampling"),
            ("elpd", missing or elpd),
            ("of the others", elpd if missing else ""),
            ("Monte Carlo", f"± {self.sampling_error:.2g} on that sum" if count else ""),
            ("parameters", f"{self.effective_parameters:.3g} effective"),
            (
                "Pareto k",
                f"{bad} of {total} above {MAX_K} as drawn, {np.sum(self.pareto_k >= MAX_K)} as estimated",
            ),
            ("proposals", used),
            ("flagged", f"{len(flagged)} of {total}{flagged_names}" if len(flagged) else "none"),
        ]
        return [(name, text) for name, text in lines if text]

    @property
    def effective_parameters(self) -> float:
        """Summed difference between the log density of the units within the posterior and left
        out.
        """
        return float(np.nansum(self._weight * (self._unit_losses - self.average(self.baseline))))

    def to_arviz(self) -> Any:
        """Convert to ArviZ's `ELPDData` of kind "loo", for `arviz.compare`. Needs ArviZ.

        Returns
        -------
        ELPDData
            The elpd, its standard error, the pointwise values and Pareto's k̂ of each fold.

        Raises
        ------
        ValueError
            If a fold has no elpd, or units stand for several cases.
        ImportError
            If ArviZ is not installed.
        """
        if self.unit_weight is not None:
            raise ValueError(
                "to_arviz: units stand for several cases, which ArviZ does not know of; lo.compare does."
            )
        if self._missing:
            raise ValueError(
                f"to_arviz: {self._missing} units have no held-out density; ArviZ needs one of each."
            )
        if self.joint:
            names = self.plan.refit_names
            k = self.pareto_k
        else:
            names = self.names()
            k = self.average(np.where(self._places.held, self.pareto_k[self._places.refit], np.nan))
        losses = self._unit_losses
        baseline = self.average(self.baseline)
        # units that the plan scores
        scored = np.isfinite(losses)
        return elpd_data(
            losses[scored],
            baseline[scored],
            names[scored],
            self.se,
            suspect=len(self.flagged()) > 0,
            k=k[scored],
            draws=self.draws,
        )


@conventional
@float64
def elpd(
    posterior: Posterior,
    plan: PlanLike,
    *,
    score: Literal["joint", "pointwise"] = "joint",
    groups: ArrayLike | None = None,
    refit: Callable[[np.ndarray], Any] | None = None,
    checkpoint: File | None = None,
) -> PosteriorEstimate:
    """Estimate the expected log predictive density of what a plan leaves out, from the draws of one
    posterior.

    The elpd of a fold is a ratio of normalisers, log Z(w_o with the scored units at 1) − log
    Z(w_o), which weighs draws by exp(F(θ, 1) − F(θ, w_o)). Draws are taken as they are if k̂ of
    these weights is below 0.2, where they surely have a variance; for leave-one-out this is
    PSIS-LOO. For other folds moved draws join them, which lie where the fold's posterior does, and
    if that will not do, draws of a multivariate t at its mode do. An estimate by S draws is
    accepted at k̂ < min(1 − 1 / log₁₀ S, 0.7), for the t at k̂ < 0.5, with k̂ below 1.4 times the
    effective share of the draws, a gap below 0.1 between two estimates of the same fold, and 50
    effective draws or more. Where the density of a fold has mass in places where no draw comes, as
    beyond an edge that only a left-out unit sets, the t lies wide about the draws, and nothing else
    is accepted. Folds for which none is accepted are sampled anew if `refit` is given, and flagged
    otherwise.

    Parameters
    ----------
    posterior : Posterior
        The posterior, from `lo.bayes.from_posterior`, `lo.bayes.from_numpyro` or
        `lo.bayes.from_pymc`.
    plan : Plan, int or splitter
        The units to leave out, such as `lo.leave_one_out()` or `lo.groups(labels)`, as in
        `lo.cross_validate`.
    score : {"joint", "pointwise"}, default "joint"
        Of a fold with several scored units, their joint density given all that is seen, or the
        density of each of them.
    groups : array-like, optional
        Labels of groups for a number of folds or a splitter, as in `lo.cross_validate`.
    refit : callable, optional
        Function of the numbers of the units that a fold sees, which returns draws of that posterior
        in the form that `lo.bayes.from_posterior` got. It is called for folds that are not
        accepted.
    checkpoint : path, optional
        A file that keeps the folds for which the draws as they are will not do, so that a call that
        was stopped goes on.

    Returns
    -------
    PosteriorEstimate
        The elpd of each fold, with k̂, gap, effective number of draws and Monte-Carlo error.

    Raises
    ------
    ValueError
        If plan and posterior count other units, the score is pointwise and the units are not
        independent given θ, or `checkpoint` belongs to another run.
    TypeError
        If the arguments are not a posterior and a plan.
    Interrupted
        On Ctrl-C. Its `partial` is the result with the folds that were estimated before.
    ImportError
        If ArviZ is not installed.

    See Also
    --------
    from_posterior : Take draws and a density.
    compare : Compare models.
    influence : How posterior summaries change.

    References
    ----------
    A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry, Pareto smoothed importance
    sampling, 2024.

    X.-L. Meng and W. H. Wong, Simulating ratios of normalizing constants via a simple
    identity, 1996.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = rng.poisson(np.exp(X[:, 0]))
    >>> fit = lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(1.0)))
    >>> draws = fit.quadratic.at(
    ...     rng.normal(size=(4, 500, 3))
    ... )  # of the Gaussian at the mode, which is near the posterior
    >>> found = lo.bayes.elpd(lo.bayes.from_posterior(draws, fit), lo.leave_one_out())
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> round(found.mean, 1), round(cv.mean, 1)
    (1.5, 1.5)
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(
            "elpd: the first argument must be a Posterior, from lo.bayes: from_posterior, from_numpyro, from_pymc or from_stan; got "
            f"{type(posterior).__name__}. Of a fit it is lo.cross_validate(fit, plan, evaluate='log_density')."
        )
    if not isinstance(score, str) or score not in ("joint", "pointwise"):
        raise ValueError(f"elpd: score must be 'joint' or 'pointwise'; got {score!r}.")
    if refit is not None and not callable(refit):
        raise TypeError(
            f"elpd: refit must be a function of the numbers of the units that are seen; got {type(refit).__name__}."
        )
    plan = plan_reader("elpd", posterior.objective).resolve(plan, groups)
    count = plan.num_refits
    scored = np.bincount(plan.refit, plan.held, count)
    if not scored.all():
        plan = plan.some(np.flatnonzero(scored))
        count = plan.num_refits
        scored = scored[scored > 0]
    cases = None
    if plan.of_cases:
        cases = _cases(posterior, plan)
    pointwise = score == "pointwise" and scored.max() > 1
    if pointwise and posterior.unit_losses is None:
        raise ValueError(
            "elpd: score='pointwise' needs units that are independent given θ; ask for score='joint'."
        )
    estimator = FoldEstimator(posterior, plan, pointwise)
    identity = {
        "model or data": posterior.objective,
        "draws": (posterior.draws, posterior.chains, posterior.constant),
        "plan": plan,
        "score": score,
        "refit": refit,
    }
    with keeping("elpd", checkpoint, identity):
        estimates = estimator.estimate()
        if refit is not None and not estimates.stopped.size:
            estimates = estimator.resample_folds(estimates, refit)
    results, raw_k, within, stopped = estimates
    accepted = np.array([fold.accepted for fold in results])
    result = np.where(accepted, RESULTS.successful, RESULTS.heavy_weights).astype(int)
    accepted[stopped] = False
    result[stopped] = RESULTS.interrupted
    scores = [fold.scores for fold in results]
    values = np.concatenate([densities.value for densities in scores])
    errors = np.concatenate([densities.error for densities in scores])
    fold_of_score = np.repeat(np.arange(count), [len(densities.value) for densities in scores])
    # no mean of weights that cannot be trusted is an elpd
    values[~accepted[fold_of_score]] = np.nan
    single = pointwise or scored.max() == 1  # a score of every held-out entry of the plan
    unit = fold_of_score
    if single:
        unit = plan.scored_units
    if cases is None:
        weight = np.ones(len(unit))
    else:
        weight = cases[unit]
    weight = weight * accepted[fold_of_score]
    # units that several folds score are averaged
    weight /= np.maximum(np.bincount(unit, accepted[fold_of_score])[unit], 1.0)
    numbers = np.stack([-values, -within, errors])
    if single:
        entries = np.full((3, len(plan.index)), np.nan)
        entries[:, plan.held] = numbers
        numbers = entries
    losses, baseline, loss_error = numbers
    notes = [posterior.note]
    if (
        scored.max() > 1
        and np.mean(raw_k >= MAX_K) > MANY
        and not isinstance(posterior.objective, Integrated)
    ):
        notes.append(
            "many folds move the posterior far; if groups have effects, integrate them out"
        )
    units = posterior.objective.units
    response = units.modelled
    if response is not None:
        response = np.asarray(response)
    title = (
        f"{display_name(posterior.objective)}, {plan.num_units} units, {len(posterior.draws)} draws"
    )
    estimate = PosteriorEstimate(
        losses=losses,
        error=np.array([densities.error_of_sum for densities in scores]),
        loss_error=loss_error,
        result=result,
        plan=plan,
        baseline=baseline,
        proved=np.zeros(count, bool),
        score=posterior.score,
        response=response,
        classes=units.classes > 0,
        labels=PrintedTexts(title, "importance sampling", join_remarks(*notes)),
        pareto_k=np.array([fold.k for fold in results]),
        raw_k=raw_k,
        gap=np.array([abs(fold.ratio - fold.mean) for fold in results]),
        effective=np.array([fold.effective for fold in results]),
        proposal=np.array([fold.proposal for fold in results]),
        draws=len(posterior.draws),
        posterior=posterior,
        folds=[fold.draws for fold in results],
        sampling_error=_error_of_sum(scores, weight),
        unit_weight=cases,
    )
    if stopped.size:
        raise Interrupted(
            f"elpd: stopped after {count - stopped.size} of {count} folds", lambda: estimate
        )
    return estimate


def _error_of_sum(scores: list[LogDensities], weight: Float[np.ndarray, " scores"]) -> float:
    """Monte-Carlo standard error of a weighted sum of the scores of all folds."""
    weights = np.split(weight, np.cumsum([len(densities.value) for densities in scores])[:-1])
    parts = [
        (w[w > 0], densities.influence[w > 0], densities.fold_influence[w > 0])
        for w, densities in zip(weights, scores, strict=True)
    ]
    return float(
        error_of_batches(
            np.sum([w @ influence for w, influence, _ in parts], 0),
            *(w @ influence for w, _, influence in parts),
        )
    )


def _cases(posterior: Posterior, plan: Plan) -> FloatArray:
    """Return the number of cases of each unit.

    ValueError if folds leave out other than one case, or cases of no density.
    """
    cases = np.asarray(posterior.objective.units.weight, float)
    left_out_cases = (cases[plan.index] * (1 - plan.weight))[plan.held]
    if len(left_out_cases) != plan.num_refits or not np.allclose(left_out_cases, 1.0):
        raise ValueError(
            "elpd: a refit that leaves out a part of a unit must score one of its cases: leave_one_out(cases=True)."
        )
    if np.any(np.asarray(posterior.constant) < 0):
        raise ValueError(
            "elpd: units are counts of trials, none of which has a density of its own; give a row for each trial."
        )
    return cases
