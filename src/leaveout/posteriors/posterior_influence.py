"""Influence of left-out units on the summaries of a posterior, by the weights that give their
elpd.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from .._runtime.jax import call_traced
from ..objectives.objective import leaves_of, map_arrays
from ..plans.plan import leave_one_out
from ..refit import AbstractRefit
from ..validation.cross_validate import DEFAULT_REFIT, PlanLike, resolve_plan
from .fold_estimator import FoldEstimator
from .posterior import Posterior


def posterior_influence(
    posterior: Posterior, plan: PlanLike | AbstractRefit, prediction: Any
) -> pd.DataFrame:
    """Tabulate how means and standard deviations of the parameters, or of a prediction, change in
    every fold.
    """
    given = (
        leave_one_out(posterior.objective.num_units) if isinstance(plan, AbstractRefit) else plan
    )
    plan = resolve_plan("influence", posterior.objective, given, DEFAULT_REFIT)
    if prediction is not None and not callable(prediction):
        raise TypeError(
            f"influence: prediction must be a function of the parameters; got {type(prediction).__name__}."
        )
    names, watch = _summaries(posterior, prediction)
    estimates = FoldEstimator(posterior, plan, False).estimate()
    if estimates.stopped.size:
        raise KeyboardInterrupt
    found = estimates.results
    drawn = watch(posterior.draws)
    values = (
        drawn if fold.draws.theta is posterior.draws else watch(fold.draws.theta) for fold in found
    )
    moments = np.stack(
        [
            _moments(*each)
            for each in zip(values, (fold.draws.weight for fold in found), strict=True)
        ]
    )
    now = _moments(drawn, np.ones(len(drawn)))
    # an intercept that the model has not is zero
    varies = now[1] > np.sqrt(np.finfo(float).eps) * np.abs(now[0])
    if not varies.any():
        raise ValueError(
            "influence: the prediction is the same at all draws; it must be a function of the parameters."
        )
    names, now, moments = (
        [name for name, own in zip(names, varies, strict=True) if own],
        now[:, varies],
        moments[..., varies],
    )
    shift, ratio = (moments[:, 0] - now[0]) / now[1], moments[:, 1] / now[1]
    most = np.argmax(np.abs(shift), axis=1)
    table = pd.DataFrame(
        {"moved": shift[np.arange(len(shift)), most], "parameter": np.asarray(names, object)[most]}
    )
    columns = {f"mean[{name}]": shift[:, k] for k, name in enumerate(names)}
    columns |= {f"sd[{name}]": ratio[:, k] for k, name in enumerate(names)}
    own = {"pareto_k": [fold.k for fold in found], "good": [fold.accepted for fold in found]}
    return table.assign(**columns, **own).set_index(plan.refit_names)


def _moments(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mean and standard deviation of weighted columns, `[2, columns]`."""
    share = weight / weight.sum(dtype=np.float64)
    mean = share @ values
    return np.stack([mean, np.sqrt(share @ (values - mean) ** 2)])


def _summaries(
    posterior: Posterior, prediction: Any
) -> tuple[list[str], Callable[[np.ndarray], np.ndarray]]:
    """Name the numbers that are watched, and return the function that computes them at many
    places.
    """
    if prediction is not None:

        def of_one(named: Any, k: int) -> float:
            found = np.asarray(
                call_traced(
                    "influence: prediction", prediction, map_arrays(lambda leaf: leaf[k], named)
                )
            )
            if found.ndim or found.dtype.kind not in "biuf" or not np.isfinite(found):
                got = f"shape {found.shape}" if found.ndim else repr(found.item())
                raise ValueError(f"influence: prediction must return one finite number; got {got}.")
            return float(found)

        return ["prediction"], lambda u: np.array(
            [[of_one(named, k)] for named in [posterior.named(u)] for k in range(len(u))]
        )
    first = posterior.named(posterior.draws[:1])
    leaves = dict.values if isinstance(first, dict) else leaves_of
    stack = lambda tree: np.concatenate(
        [np.reshape(leaf, (len(leaf), -1)) for leaf in leaves(tree)], axis=1
    )
    by_name = first.items() if isinstance(first, dict) else [("theta", stack(first))]
    names = [
        f"{name}{list(at) if at else ''}"
        for name, leaf in by_name
        for at in np.ndindex(np.shape(leaf)[1:])
    ]
    return names, lambda u: stack(posterior.named(u))
