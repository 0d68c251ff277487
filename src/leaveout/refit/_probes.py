"""Single rows left out where there are too many parameters for a matrix: one step each, by
leverages estimated from probes.

With s about √(ω ℓ″), K = X H⁻¹Xᵀ and v of random signs, s_j² K_jj is the mean of v_j s_j (K (s ∘
v))_j (M. F. Hutchinson 1990), whose variance Σ_{k≠j} s_j² K_jk² s_k² is small where rows are about
orthogonal. Nearly all of it is removed by two numbers of known means, the first terms of a series:
with A = s X P⁻¹Xᵀ s, its diagonal a taken off, and t = 1/(1 + a),

    v_j t_j (A (t ∘ v))_j,  mean 0,      v_j t_j (A (t ∘ A (t ∘ v)))_j,  mean t_j² Σ_k A_jk² t_k

(control variates: on random sparse rows they leave a hundredth of the variance). A row's loss after
its one step

    f(h) = ℓ(η + h p / (1 − h b)),      p, b the parts of ω ℓ′ and ω ℓ″ that leave

is estimated with h from all probes, minus its bias by the jackknife over groups of probes. The
jackknife also gives the error of the mean of many rows, which share probes. The error of the step
itself is estimated from rows that are refitted to convergence, some at random and those with the
longest steps. All of this is estimated; nothing is proved.
"""

import functools
import itertools
from typing import NamedTuple, cast

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from .._runtime.jax import cached_on
from .._runtime.results import RESULTS
from ..linalg.design import weight_terms
from ..optimize.fit import Fit
from ..plans.plan import RefitRows
from ._refit_batch import CommonError, RefitBatch
from ._wide import MAX_WIDE_NEWTON_STEPS, WideModel, exactly, settle_wide, wide

Array = np.ndarray
# probes in a group; least and largest number of groups
SIZE = 8
FEWEST = 8
MOST = 64
PROBE_RESIDUAL = 1e-3  # residual, relative to the right side, at which a solve for a probe ends
# standard errors of the probes that are added to the error of a row, and of the mean
SAFETY = 5.0
SAFE = 3.0
# numbers of rows, random and of longest steps, that are refitted, and of their steps after the
# first
RANDOM = 32
LONGEST = 8
FEW = 2
TWICE = 2.0  # factor on the largest error of the step in these rows


def by_probes(fit: Fit) -> bool:
    """Tell whether single rows are estimated by probes.

    H is not formed, and they change their own terms only.
    """
    wide_model = wide(fit)
    return (
        wide_model is not None
        and wide_model.model.separate
        and wide_model.model.design.shape[0] == wide_model.units
    )


def alone(fit: Fit, rows: RefitRows) -> bool:
    """Tell whether a batch is estimated by probes.

    Every refit leaves out one row, or a part of its weight.
    """
    return rows.index.shape[1] == 1 and bool((rows.weight <= 1).all()) and by_probes(fit)


def _light(count: Int[np.ndarray, " params"]) -> Bool[np.ndarray, " params"]:
    """Mark the columns with fewest entries, which A uses."""
    order = np.argsort(count, kind="stable")
    out = np.zeros(len(count), bool)
    # largest number of products for A_jk²; the fullest columns are left out of A
    out[order[np.cumsum(count[order].astype(float) ** 2) <= 4e8]] = True
    return out


class ProbedLeverages(NamedTuple):
    """Estimates from a number of groups of probes.

    There are h of all rows, from all probes and without each group, with its standard error. For
    the refitted rows there are their predictors and the errors of their losses. `step_curvature` is
    the difference of η from one step in units of λ², `error_factor` the factor by which errors are
    larger than estimated, `distance_left` the error of the mean after the step, and `deviation` the
    standard deviation of losses.
    """

    h: Float[np.ndarray, " units"]
    without: Float[np.ndarray, "groups units"]
    spread: Float[np.ndarray, " units"]
    known_units: Int[np.ndarray, " selected"]
    exact: Float[np.ndarray, " selected"]
    unsure: Float[np.ndarray, " selected"]
    step_curvature: float
    error_factor: float
    distance_left: float
    deviation: float


class Probes:
    """Groups of probes, drawn on demand; the first groups are the same for every caller."""

    def __init__(self, wide_model: WideModel):
        self.wide_model = wide_model
        self.groups = list[tuple[Array, ...]]()
        weight = wide_model.curvature
        # least curvature with which rows are probed, relative to the mean
        self.scale = np.sqrt(np.maximum(weight, 1e-2 * max(float(weight.mean()), 1e-300)))
        penalty_curvature = wide_model.kappa * wide_model.penalty_diagonal
        self.inverse = np.where(
            _light(np.diff(wide_model.transpose.indptr)),
            1 / np.where(penalty_curvature > 0, penalty_curvature, wide_model.diagonal),
            0.0,
        )
        self.size = self.scale**2 * (wide_model.squares.T @ self.inverse)  # a
        self.second = self._second()
        self.leverages = functools.cache(self._leverages)

    def _second(self) -> Float[np.ndarray, " units"]:
        """Compute t_j² Σ_k A_jk² t_k."""
        t = 1 / (1 + self.size)
        rows = (
            scipy.sparse.diags_array(self.scale)
            @ self.wide_model.x
            @ scipy.sparse.diags_array(np.sqrt(self.inverse))
        )
        rows.eliminate_zeros()
        transpose = rows.T.tocsr()
        out = np.zeros(self.wide_model.units)
        # upper bound of the entries of A
        counts = np.maximum(np.asarray((rows != 0) @ np.diff(transpose.indptr)), 1)
        # number of entries of A computed at a time
        bounds = np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum(), 2**22))
        for start, stop in itertools.pairwise(np.unique(np.r_[bounds, self.wide_model.units])):
            block = rows[start:stop] @ transpose
            block.data = block.data**2 * t[block.indices]
            out[start:stop] = block.sum(1)
        return t**2 * (out - self.size**2 * t)

    def _draw(self) -> tuple[Array, ...]:
        """Draw one more group.

        The means of the three numbers, and of their products with one another.
        """
        wide_model = self.wide_model
        rng = np.random.default_rng(len(self.groups))
        x, transpose = wide_model.single
        single = lambda part: part.astype(np.float32)[:, None]
        v = rng.choice(np.array([-1.0, 1.0], np.float32), (wide_model.units, SIZE))
        s, t, a = single(self.scale), single(1 / (1 + self.size)), single(self.size)
        solved = wide_model.solve(
            transpose @ (s * v),
            wide_model.curvature[:, None],
            np.array([wide_model.kappa]),
            PROBE_RESIDUAL,
        )
        first = v * s * (x @ solved)
        off_diagonal_image = lambda u: (
            s * (x @ (single(self.inverse) * (transpose @ (s * u)))) - a * u
        )
        image = off_diagonal_image(t * v)
        terms = np.stack(
            [first, v * t * image, v * t * off_diagonal_image(t * image) - single(self.second)]
        )
        wide_model.products += 3 * SIZE
        return terms.mean(2, dtype=float), np.einsum(
            "ink,jnk->ijn", terms, terms, dtype=float
        ) / SIZE

    def upto(self, rtol: float) -> ProbedLeverages:
        """Draw groups until the error of the mean of all rows is at most `rtol` of its standard
        error; return estimates.
        """
        for count in range(FEWEST, MOST + 1):
            while len(self.groups) < count:
                self.groups.append(self._draw())
            # error of the mean, in its standard errors, that is always allowed to probes
            if self._error(count) <= max(rtol, 0.1):
                break
        return self.leverages(count)

    def _means(self, count: int) -> tuple[Array, Array, Array]:
        """Leverages h by the first groups, without each of them, and their standard errors."""
        means, moments = (np.array(part) for part in zip(*self.groups[:count], strict=True))
        mean = means.mean(0)
        moment = moments.mean(0)
        covariance = (moment - mean[:, None] * mean).sum(-1)  # sum over all rows
        share = np.r_[1.0, -np.linalg.lstsq(covariance[1:, 1:], covariance[1:, 0], rcond=1e-10)[0]]
        group_means = np.einsum("i,gin->gn", share, means)
        middle = group_means.mean(0)
        square = np.einsum("i,j,ijn->n", share, share, moment) - middle**2
        spread = np.sqrt(np.maximum(square, 0.0) / (count * SIZE - 1))
        without = middle + (middle - group_means) / (count - 1)
        return tuple(np.maximum(part, 0.0) / self.scale**2 for part in (middle, without, spread))  # type: ignore[return-value]

    def _error(self, count: int) -> float:
        """Error of the mean loss of all rows, in its standard errors."""
        h, without, _ = self._means(count)
        everyone = np.arange(self.wide_model.units)
        losses, draws = (
            self.losses(part, everyone, self.wide_model.omega) for part in (h, without)
        )
        scored = self.wide_model.omega > 0
        spread = np.sqrt(
            (count - 1) / count * np.sum((draws[:, scored].mean(1) - draws[:, scored].mean()) ** 2)
        )
        return float(SAFE * spread / max(losses[scored].std() / np.sqrt(scored.sum()), 1e-300))

    def step(
        self,
        h: Array,
        units: Int[np.ndarray, " selected"],
        lost_weight: Float[np.ndarray, " selected"],
    ) -> tuple[Array, Array]:
        """Predictor η after one step, and 1 − h b, the curvature left along the row."""
        wide_model = self.wide_model
        slope = weight_terms(lost_weight, wide_model.slope[units])
        curvature = weight_terms(
            lost_weight,
            wide_model.curvature[units]
            / np.where(wide_model.omega[units] > 0, wide_model.omega[units], 1.0),
        )
        kept_share = 1 - h * curvature
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                kept_share > 0, wide_model.eta[units] + h * slope / kept_share, np.nan
            ), kept_share

    def losses(
        self,
        h: Array,
        units: Int[np.ndarray, " selected"],
        lost_weight: Float[np.ndarray, " selected"],
    ) -> Array:
        """Losses f(h) of some rows."""
        return self.wide_model.model.unit_loss.derivatives(
            self.step(h, units, lost_weight)[0], self.wide_model.model.y[units], (0,)
        )[0]

    def _leverages(self, count: int) -> ProbedLeverages:
        h, without, spread = self._means(count)
        wide_model, rng = self.wide_model, np.random.default_rng(0)
        units = np.flatnonzero(wide_model.omega > 0)
        length = self.length(h, units, wide_model.omega[units])
        random = rng.choice(units, min(RANDOM, len(units)), replace=False)
        longest = units[np.argsort(-np.nan_to_num(length, nan=np.inf), kind="stable")[:LONGEST]]
        refit_units = np.concatenate([random, np.setdiff1d(longest, random)])
        exact_h, exact, step, last = _refit_rows(self, refit_units)
        lengths = self.length(exact_h, refit_units, wide_model.omega[refit_units])
        with np.errstate(divide="ignore", invalid="ignore"):
            step_curvature = TWICE * float(
                np.nanmax(
                    np.where(lengths > 0, np.abs(exact - step) / lengths**2, 0.0), initial=0.0
                )
            )
        y, ell = (
            wide_model.model.y[refit_units],
            lambda eta, y: wide_model.model.unit_loss.derivatives(eta, y, (0,))[0],
        )
        exact_losses = ell(exact, y)
        step_errors = (ell(exact, y) - ell(step, y))[: len(random)]
        mean_error = abs(float(step_errors.mean())) + TWICE * float(
            step_errors.std() / np.sqrt(len(random))
        )
        deviation = float(np.nanstd(self.losses(h, units, wide_model.omega[units])))
        estimates = ProbedLeverages(
            h,
            without,
            spread,
            refit_units,
            exact,
            np.abs(ell(exact, y) - ell(exact - last, y)),
            step_curvature,
            1.0,
            mean_error,
            deviation,
        )
        reported, error, _ = self.judge(estimates, random, wide_model.omega[random])
        ratios = np.abs(reported - exact_losses[: len(random)]) / np.maximum(error, 1e-300)
        return estimates._replace(
            error_factor=max(1.0, float(ratios[np.isfinite(error)].max(initial=0.0)))
        )

    def length(
        self,
        h: Array,
        units: Int[np.ndarray, " selected"],
        lost_weight: Float[np.ndarray, " selected"],
    ) -> Float[np.ndarray, " selected"]:
        """Length λ of one step."""
        kept_share = self.step(
            h[units] if len(h) == self.wide_model.units else h, units, lost_weight
        )[1]
        row_h = h[units] if len(h) == self.wide_model.units else h
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                kept_share > 0,
                np.abs(weight_terms(lost_weight, self.wide_model.slope[units]))
                * np.sqrt(row_h / kept_share),
                np.nan,
            )

    def judge(
        self,
        leverages: ProbedLeverages,
        units: Int[np.ndarray, " selected"],
        lost_weight: Float[np.ndarray, " selected"],
    ) -> tuple[Array, Array, Array]:
        """Losses of some rows, their errors, and the losses without each group of probes."""
        row_h = leverages.h[units]
        count = len(leverages.without)
        draws = self.losses(leverages.without[:, units], units, lost_weight)
        middle = self.losses(row_h, units, lost_weight)
        reported = count * middle - (count - 1) * draws.mean(0)
        width = SAFETY * leverages.spread[units]
        ends = [
            self.losses(np.maximum(row_h + sign * width, 0.0), units, lost_weight)
            for sign in (1, -1)
        ]
        eta, _ = self.step(row_h, units, lost_weight)
        step_error = leverages.step_curvature * self.length(leverages.h, units, lost_weight) ** 2
        y = self.wide_model.model.y[units]
        with np.errstate(invalid="ignore"):
            step_errors = [
                np.abs(
                    self.wide_model.model.unit_loss.derivatives(eta + sign * step_error, y, (0,))[0]
                    - middle
                )
                for sign in (1, -1)
            ]
            error = leverages.error_factor * (
                np.max(np.abs(np.array(ends) - reported), axis=0) + np.maximum(*step_errors)
            )
        return reported, np.where(np.isfinite(error) & np.isfinite(reported), error, np.inf), draws


def _refit_rows(
    probes: Probes, units: Int[np.ndarray, " selected"]
) -> tuple[Array, Array, Array, Array]:
    """Refit some rows by solves of their own.

    H, η of their refits, η after one step, and the change by the last step.
    """
    wide_model = probes.wide_model
    right = wide_model.transpose[:, units].toarray().astype(np.float32)
    solved = wide_model.solve(
        right, wide_model.curvature[:, None], np.array([wide_model.kappa]), PROBE_RESIDUAL
    )
    # accurate to the square of the residual, or float32
    h = np.asarray(wide_model.x[units].multiply(solved.T).sum(1)).ravel()
    step, kept_share = probes.step(h, units, wide_model.omega[units])
    slopes = weight_terms(wide_model.omega[units], wide_model.slope[units])
    with np.errstate(divide="ignore", invalid="ignore"):
        start = (
            wide_model.theta
            + np.where(kept_share > 0, slopes / kept_share, 0.0)[:, None] * solved.T
        )
    refits = settle_wide(wide_model, _rows(units), start, steps=FEW)
    return h, refits.center[:, 0], step, refits.center[:, 0] - refits.before[:, 0]


def _rows(units: Int[np.ndarray, " selected"]) -> RefitRows:
    """Batch that leaves out each unit by itself."""
    index = units[:, None]
    return RefitRows(
        index,
        np.zeros(index.shape),
        np.ones(index.shape, bool),
        np.zeros(()),
        np.asarray(len(units)),
    )


@cached_on
def _probes(fit: Fit) -> Probes:
    return Probes(cast(WideModel, wide(fit)))


def refit_by_probes(
    fit: Fit, rows: RefitRows, rtol: float, steps: int = MAX_WIDE_NEWTON_STEPS
) -> RefitBatch:
    """Refit single rows by one step with leverages from probes, and to convergence if probes are
    too inaccurate.

    Their θ, computed on demand, is the result of `steps` Newton steps.
    """
    probes = _probes(fit)
    wide_model = cast(WideModel, wide(fit))
    before = wide_model.products
    estimates = probes.upto(rtol)
    units = np.asarray(rows.index)[:, 0]
    weight = np.asarray(rows.weight)[:, 0]
    lost_weight = (1 - weight) * wide_model.omega[units]
    losses, error, draws = probes.judge(estimates, units, lost_weight)
    lengths = np.nan_to_num(probes.length(estimates.h, units, lost_weight), nan=np.inf)
    place = np.searchsorted(np.sort(estimates.known_units), units)
    order = np.argsort(estimates.known_units)
    itself = (
        (place < len(order))
        & (estimates.known_units[order[np.minimum(place, len(order) - 1)]] == units)
        & (weight == 0)
    )
    exact = estimates.exact[order[place[itself]]]
    losses[itself] = wide_model.model.unit_loss.derivatives(
        exact, wide_model.model.y[units[itself]], (0,)
    )[0]
    error[itself] = estimates.unsure[order[place[itself]]] + 1e-9 * (1 + np.abs(losses[itself]))
    result = np.full(len(units), int(RESULTS.successful))
    # largest error of a loss, in standard deviations of losses, that is accepted
    inaccurate = np.flatnonzero(~(error <= 1.0 * estimates.deviation) & ~itself)
    # largest share of rows that are refitted because probes are too inaccurate for them
    inaccurate = inaccurate[np.argsort(-error[inaccurate], kind="stable")][
        : max(RANDOM, int(0.02 * len(units)))
    ]
    if inaccurate.size:
        exact_refits = exactly(fit, rows.take(inaccurate))
        assert exact_refits.scores is not None
        losses[inaccurate], error[inaccurate], result[inaccurate] = (
            exact_refits.scores[:, 0],
            exact_refits.error,
            exact_refits.result,
        )
    settled = np.union1d(np.flatnonzero(itself), inaccurate)
    draws[:, settled] = losses[settled]
    scored = np.where(np.asarray(rows.held), losses[:, None], 0.0)
    make = lambda: settle_wide(wide_model, rows, steps=steps).theta
    shared = CommonError(
        np.where(rows.held, draws.T, 0.0), estimates.distance_left, len(estimates.without) * SIZE
    )
    none = np.zeros(len(units), bool)
    # cost of a product of many vectors side by side, in gradients
    return RefitBatch(
        make,
        error,
        result,
        scored,
        none,
        None,
        lengths,
        0.1 * (wide_model.products - before),
        shared,
    )
