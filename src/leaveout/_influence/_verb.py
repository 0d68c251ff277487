"""What leaving units out does to the loss, the parameters and a prediction, from the refits of an estimate.

With u_k = Lᵀ(θ̂_k − θ̂) of refit k, H = L Lᵀ, and r_k no less than how far u_k is from that of the exact refit,

    Cook's distance   D_k = ‖u_k‖² / (p φ̂), off by (2 ‖u_k‖ r_k + r_k²) / (p φ̂) at most
    a parameter       (θ̂_k − θ̂)_j / √(φ̂_k (H⁻¹)_jj), off by r_k / √φ̂_k at most (φ̂ as in `cooks_distance`; of many refits
                      that of the whole fit)
    the others        (F(θ̂_k, w_k) − F(θ̂, w_k)) / Σ w_k: what is left is fitted better without the units by that
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from .._asked import natural, reach
from .._checkpoint import File, Told, keeping
from .._estimate import Estimate
from .._evaluate import DEFAULT, known, refitted
from .._fit import Fit
from .._functions import functions, weights_of, work
from .._jax import float64, jax
from .._named import named
from .._plan import CAPACITY, Batch, Plan
from .._printed import kind_of
from .._read import numbers, pandas_of
from .._results import RESULTS, among
from .._stopping import stoppable
from ..models.linear import AbstractRegression
from ..refit import AbstractRefit, Refitted
from ._measures import dispersion, dispersions, formed, spread
from ._pairs import pairs_of
from ._result import Influence

Array = np.ndarray
Watched = Callable[[Array], Array]  # raveled θ of some refits -> a number each
CHEAP = 5e9  # operations, below which every refit looks at all that is left: at F, and at its own dispersion
LOST = (RESULTS.undetermined, RESULTS.not_converged, RESULTS.nonfinite)


@float64
def influence(
    estimate: Estimate,
    refit: AbstractRefit = DEFAULT,
    *,
    prediction: Any = None,
    pairs: int | None = None,
    checkpoint: File | None = None,
) -> Influence:
    """What each refit of a cross-validation says of the units that it leaves out: what they do to the loss, to the parameters,
    and to a prediction.

    `estimate` is one of `cross_validate`, of any plan; its refits are made once more, by `refit` (default `Certified()`), for
    their parameters, and how far these may be off stands beside each figure.
    `prediction` is a function of the natural parameters of one refit that returns a number, or, of `lo.GLM` and
    `lo.Regression`, one row of features, whose mean response is told (its offset zero). All changes are what leaving the units
    out changes: `dfbetas` has the other sign.

    Of the `pairs` refits (20 if not given, 0 for none) that move the fit most, raise the loss most, or are of highest leverage,
    all pairs are left out together: two that mask each other move the fit by more than both do alone.
    `checkpoint` names a file that keeps what is done: a call that was killed goes on from there, to the same numbers.

    Raises TypeError where there is no estimate, or no Hessian that is formed; ValueError where the estimate has lost its fit,
    the prediction is no number, pairs are asked of a plan that gives units other weights than zero, or `checkpoint` is of
    another run; `Interrupted` on Ctrl-C.
    """
    fit, plan = _checked(estimate, refit)
    parts = estimate.losses, estimate.error, estimate.result, estimate.baseline
    of = known(fit, plan, refit, estimate=parts, prediction=prediction, pairs=pairs)
    with stoppable("influence"), keeping("influence", checkpoint, of):
        return _made(estimate, fit, plan, refit, prediction, pairs)


def _made(estimate: Estimate, fit: Fit, plan: Plan, refit: AbstractRefit, prediction: Any, pairs: int | None) -> Influence:
    watched = None if prediction is None else _watched(fit, prediction)
    found = Moves(fit, plan, refit, watched)
    own, whole = named(fit), float(dispersion(fit)[0])
    phi, size = dispersions(fit, plan, found.theta) if found.cheap else np.full(len(plan), whole), fit.rank * whole
    now = own.at(fit.vector[None])[0]
    away = (own.at(found.theta) - now) / spread(fit, own.slope) / np.sqrt(phi)[:, None]
    table = _losses(estimate).assign(cook=found.length**2 / size, cook_error=found.off * (2 * found.length + found.off) / size)
    table["moved"], table["parameter"] = _largest(away, own.names)
    table["moved_error"] = found.off / np.sqrt(phi)
    if found.others is not None:
        table["others"] = found.others
    if watched is not None:
        table["prediction"], table["prediction_error"] = found.value, found.value_error
    table["result"] = np.array([code.name for code in RESULTS])[estimate.result]
    index = _index(estimate)
    table.index = index
    together, note = pairs_of(fit, plan, table, found, size, pairs, lambda some: Moves(fit, some, refit))
    many = "" if found.cheap else "of so many refits standard errors go by the dispersion of the whole fit"
    said = "; ".join(filter(None, (note, many)))
    return Influence(estimate, table, pd.DataFrame(away, index=index, columns=own.names), together, repr(refit), said)


class Moves:
    """Where every refit of a plan leads: θ, how far from θ̂ (`u`, whitened, and its `length`), and by how much that may be
    `off`; the change of the prediction that is watched, and of F a unit of what is left, where that is cheap."""

    def __init__(self, fit: Fit, plan: Plan, refit: AbstractRefit, watched: Watched | None = None):
        count = plan.num_refits
        self.fit, self.plan, self.watched = fit, plan, watched
        self.theta = np.full((count, fit.num_params), np.nan)
        self.off, self.value, self.value_error = np.full((3, count), np.nan)
        self.cheap = work(fit.objective, fit.num_params) * count <= CHEAP
        self.others = np.full(count, np.nan) if self.cheap else None
        self.now = np.nan if watched is None else watched(fit.vector[None])[0]
        refitted("influence", fit, plan, refit, self._told, self._merge)
        self.u = (self.theta - fit.vector) @ np.asarray(fit.factor)
        self.length = np.linalg.norm(self.u, axis=1)

    def _told(self, batch: Batch, done: Refitted) -> Told:
        fit, exists = self.fit, ~among(done.result, LOST)
        theta = np.where(exists[:, None], done.theta, fit.vector)
        told = {"off": _off(fit, done, theta)}
        if self.watched is not None:
            values = self.watched(theta)
            told |= {"value": values - self.now, "value_error": reach(fit, done, values, self.watched)}
        if self.others is not None:
            told["others"] = _others(fit, batch, theta)
        where = {name: np.where(exists, values, np.nan) for name, values in told.items()}
        return where | {"theta": np.where(exists[:, None], theta, np.nan)}

    def _merge(self, batch: Batch, told: Told) -> None:
        for name in told.keys() & vars(self).keys():
            getattr(self, name)[batch.refits] = told[name]


def _off(fit: Fit, done: Refitted, theta: Float[Array, "refits params"]) -> Float[Array, " refits"]:
    """How far, whitened, each refit may be from the exact one."""
    if done.ball is None:
        return np.full(len(theta), np.inf)
    center, radius = done.ball()
    far = np.linalg.norm(center - fit.back(theta - fit.vector), axis=1) + radius
    return np.where(np.isfinite(far), far, np.inf)


def _others(fit: Fit, batch: Batch, theta: Float[Array, "refits params"]) -> Float[Array, " refits"]:
    """The change of F of what is left, a unit."""
    F, n = functions(fit.objective, fit.theta, batch.rows), fit.objective.num_units
    out, size = np.empty(len(theta)), max(1, CAPACITY // n)
    for start in range(0, len(theta), size):
        lanes = np.arange(start, min(start + size, len(theta)))
        before = F.look(np.tile(fit.vector, (len(lanes), 1)), lanes)[0]
        seen = weights_of(batch.rows, n, lanes).sum(1)
        out[lanes] = (F.look(theta[lanes], lanes)[0] - before) / seen
    return out


def _checked(estimate: Estimate, refit: AbstractRefit) -> tuple[Fit, Plan]:
    if not isinstance(estimate, Estimate):
        raise TypeError(
            "influence: the first argument must be an Estimate, from lo.cross_validate(fit, plan); got "
            f"{type(estimate).__name__}."
        )
    if estimate.fit is None:
        raise ValueError(
            "influence: this estimate has no fit, as one that was pickled has none; make it again by lo.cross_validate, or "
            "give it back: dataclasses.replace(estimate, fit=fit)."
        )
    if not isinstance(refit, AbstractRefit):
        raise TypeError(f"influence: refit must be a strategy such as lo.Exact(); got {refit!r}.")
    formed(estimate.fit, "influence")
    return estimate.fit, estimate.plan


def _watched(fit: Fit, prediction: Any) -> Watched:
    """The prediction of some refits."""
    if not callable(prediction):
        return _of_row(fit, prediction)

    def at(thetas: Array) -> Array:
        tree = natural(fit, thetas)
        return np.array([_number(prediction(jax.tree.map(lambda leaf, k=k: leaf[k], tree))) for k in range(len(thetas))])

    return at


def _number(value: Any) -> float:
    found = np.asarray(value, np.float64)
    if found.size != 1:
        raise ValueError(f"influence: prediction must return one number; got shape {found.shape}.")
    return float(found.ravel()[0])


def _of_row(fit: Fit, row: Any) -> Watched:
    """The mean response of a row of features."""
    objective = fit.objective
    if not isinstance(objective, AbstractRegression) or objective.classes or objective.levels:
        raise TypeError(
            "influence: prediction can be a row of features where the model is a lo.GLM or lo.Regression of one mean; got "
            f"{kind_of(objective)}. Give a function of the parameters that returns a number."
        )
    x, q = _features(objective, row), objective.design.shape[1]

    def at(thetas: Array) -> Array:
        eta, inverse = thetas[:, :q] @ x, objective.loss_function.inverse_link
        if not objective.own:
            return np.asarray(inverse(eta))
        shared: Any = inverse
        return np.array([_number(shared(eta[k : k + 1], thetas[k, q:])) for k in range(len(thetas))])

    return at


def _features(objective: AbstractRegression, row: Any) -> Float[Array, " coefficients"]:
    """A row of the design, from a labelled or a plain one."""
    row = pandas_of("influence", "prediction", row)
    if isinstance(row, pd.DataFrame) and len(row) == 1:
        row = row.iloc[0]
    if isinstance(row, pd.Series) and set(map(str, row.index)) != set(map(str, range(len(row)))):
        row = row.rename(index=str)
        if sorted(row.index) != sorted(objective.names):
            raise ValueError(
                f"influence: the row for prediction must have the features of the model, {', '.join(objective.names[:8])}; got "
                f"{', '.join(row.index[:8])}."
            )
        row = row[list(objective.names)].infer_objects()
    x = np.asarray(numbers("influence", "prediction", row), np.float64)
    x = x[0] if x.ndim == 2 and len(x) == 1 else x
    if x.shape != (objective.num_features,) or not np.isfinite(x).all():
        raise ValueError(
            f"influence: prediction must be one row of {objective.num_features} finite features; got shape {x.shape}."
        )
    return np.append(x, 1.0) if objective.intercept else x


def _losses(estimate: Estimate) -> pd.DataFrame:
    """Of every refit: units left out, its mean held-out loss, that with no update, the rise, its share of the summed sizes of
    losses, and how far its summed loss may be off."""
    at, weight, count = estimate._at, estimate._weight, estimate.plan.num_refits
    scored = at.held & np.isfinite(estimate.losses)
    refit, unit, loss, before = at.refit[scored], at.unit[scored], estimate.losses[scored], estimate.baseline[scored]
    times, own = np.bincount(unit, minlength=len(weight))[unit], weight[unit]
    summed = lambda each: np.bincount(refit, each, count)
    mass = summed(own)
    mean = lambda each: np.where(mass > 0, summed(own * each) / np.where(mass > 0, mass, 1.0), np.nan)
    size = summed(own * np.abs(loss) / times)
    share = size / size.sum() if size.sum() > 0 else np.zeros(count)
    found = {"units": np.diff(estimate.plan.indptr), "loss": mean(loss), "no_update": mean(before), "rise": mean(loss - before)}
    return pd.DataFrame(found | {"share": share, "error": estimate.error})


def _largest(away: Float[Array, "refits params"], names: list[str]) -> tuple[Array, Array]:
    """The parameter that each refit moves most, in standard errors."""
    most = np.argmax(np.nan_to_num(np.abs(away), nan=-1.0), axis=1)
    value = away[np.arange(len(away)), most]
    return value, np.where(np.isnan(value), "", np.asarray(names, object)[most])


def _index(estimate: Estimate) -> pd.Index:
    """Units by their labels where each is left out by itself, else the numbers of refits."""
    plan = estimate.plan
    alone = len(plan.index) == plan.num_refits and len(np.unique(plan.index)) == plan.num_refits
    if not alone:
        return pd.RangeIndex(plan.num_refits, name="refit")
    names = estimate.names()[plan.index]
    return names.rename("unit" if names.name is None else names.name)
