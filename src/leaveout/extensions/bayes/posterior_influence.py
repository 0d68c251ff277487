"""Influence of left-out units on the summaries of a posterior, by the weights that give their
elpd.
"""

from typing import Any

import numpy as np
import pandas as pd

from ... import leave_one_out
from ...developer import (
    ArrayFunction,
    NumpyArray,
    PlanLike,
    call_traced,
    leaves_of,
    map_arrays,
    plan_reader,
)
from .fold_estimator import FoldEstimator, FoldResult
from .posterior import Posterior


def posterior_influence(
    posterior: Posterior, plan: PlanLike | None, prediction: Any
) -> pd.DataFrame:
    """Tabulate how means and standard deviations of the parameters, or of a prediction, change in
    every fold.
    """
    if plan is None:
        plan = leave_one_out()
    plan = plan_reader("influence", posterior.objective).resolve(plan)
    if prediction is not None and not callable(prediction):
        raise TypeError(
            f"influence: prediction must be a function of the parameters; got {type(prediction).__name__}."
        )
    names, watch = _summaries(posterior, prediction)
    estimates = FoldEstimator(posterior, plan, False).estimate()
    if estimates.stopped.size:
        raise KeyboardInterrupt
    results = estimates.results
    values_at_draws = watch(posterior.draws)

    def fold_moments(fold: FoldResult) -> NumpyArray:
        """Moments by the draws of a fold."""
        theta = fold.draws.theta
        values = values_at_draws
        if theta is not posterior.draws:
            values = watch(theta)
        return _moments(values, fold.draws.weight)

    moments = np.stack([fold_moments(fold) for fold in results])
    baseline = _moments(values_at_draws, np.ones(len(values_at_draws)))
    # an intercept that the model has not is zero
    varies = baseline[1] > np.sqrt(np.finfo(float).eps) * np.abs(baseline[0])
    if not varies.any():
        raise ValueError(
            "influence: the prediction is the same at all draws; it must be a function of the parameters."
        )
    names = [name for name, varying in zip(names, varies, strict=True) if varying]
    baseline = baseline[:, varies]
    moments = moments[..., varies]
    shift = (moments[:, 0] - baseline[0]) / baseline[1]
    ratio = moments[:, 1] / baseline[1]
    most = np.argmax(np.abs(shift), 1)
    table = pd.DataFrame(
        {"moved": shift[np.arange(len(shift)), most], "parameter": np.asarray(names, object)[most]}
    )
    columns = {f"mean[{name}]": shift[:, k] for k, name in enumerate(names)}
    columns |= {f"sd[{name}]": ratio[:, k] for k, name in enumerate(names)}
    columns["pareto_k"] = [fold.k for fold in results]
    columns["good"] = [fold.accepted for fold in results]
    return table.assign(**columns).set_index(plan.refit_names)


def _moments(values: NumpyArray, weight: NumpyArray) -> NumpyArray:
    """Mean and standard deviation of weighted columns, `[2, columns]`."""
    share = weight / weight.sum(dtype=np.float64)
    mean = share @ values
    return np.stack([mean, np.sqrt(share @ (values - mean) ** 2)])


def _summaries(posterior: Posterior, prediction) -> tuple[list[str], ArrayFunction]:
    """Name the numbers that are watched, and return the function that computes them at many
    places.
    """
    if prediction is not None:

        def predict_one(theta, k: int) -> float:
            number = np.asarray(
                call_traced(
                    "influence: prediction",
                    prediction,
                    map_arrays(lambda leaf: leaf[k], theta),
                )
            )
            if number.ndim or number.dtype.kind not in "biuf" or not np.isfinite(number):
                if number.ndim:
                    got = f"shape {number.shape}"
                else:
                    got = repr(number.item())
                raise ValueError(f"influence: prediction must return one finite number; got {got}.")
            return float(number)

        return ["prediction"], lambda u: np.array(
            [
                [predict_one(parameters, k)]
                for parameters in [posterior.named(u)]
                for k in range(len(u))
            ]
        )
    first = posterior.named(posterior.draws[:1])
    leaves = dict.values if isinstance(first, dict) else leaves_of
    stack = lambda tree: np.concatenate(
        [np.reshape(leaf, (len(leaf), -1)) for leaf in leaves(tree)], 1
    )
    by_name = first.items() if isinstance(first, dict) else [("theta", stack(first))]
    names = [
        f"{name}{list(index) if index else ''}"
        for name, leaf in by_name
        for index in np.ndindex(np.shape(leaf)[1:])
    ]
    return names, lambda u: stack(posterior.named(u))
