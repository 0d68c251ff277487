"""Tests of coefficients over few clusters: sandwiches, and wild bootstraps of the clusters' scores.

With scores s_g, derivatives κ of the rows' terms, c = H⁻¹e_j and random v_g of mean zero and
variance one, a draw moves the coefficient and leaves the clusters' scores

    cᵀ Σ_g v_g s_g,      p_g = v_g cᵀs_g − cᵀ Σ_{n in g} κ_n x_n x_nᵀ H⁻¹ Σ_h v_h s_h,

so that t = cᵀ Σ v_g s_g / √Σ p_g². Least squares: the wild cluster bootstrap (Cameron, Gelbach &
Miller, Review of Economics and Statistics 90, 2008; Roodman, MacKinnon, Nielsen & Webb, Stata
Journal 19, 2019). Other losses: the bootstrap of scores (Kline & Santos, Journal of Econometric
Methods 1, 2012). All is taken at the fit (unrestricted), or where the coefficient is zero
(restricted), whose own t is that of v = 1. The v are ±1 (Rademacher), or one of ±√½, ±1, ±√1.5
(Webb, Canadian Journal of Economics 56, 2023).
"""

import copy
from itertools import product

import numpy as np
import pandas as pd
from numpy import linalg

from ..linalg import weight_terms
from ..objectives import as_stored, ravel
from ..optimize.fit import fit as fit_model

WEIGHTS = {
    "Rademacher": np.array([-1.0, 1.0]),
    "Webb": np.repeat([-1.0, 1.0], 3) * np.tile(np.sqrt([0.5, 1.0, 1.5]), 2),
}
EQUAL = 1 - 1e-9  # share of a statistic from which a draw reaches it


def bootstrap_tests(fit, label, names, num_resamples, rng):
    """Tabulate t, its p-value and the least possible one of the first coefficients by bootstrap.

    `fit` is of a GLM of one output without a penalty, and `label` numbers the clusters of its rows.
    """
    model = getattr(fit.objective, "original", fit.objective)
    groups = np.eye(label.max() + 1)[:, label]
    weights = {}
    for law, values in WEIGHTS.items():
        draws = rng.choice(values, (num_resamples, len(groups)))
        least = 1 / num_resamples
        if len(values) ** len(groups) <= num_resamples:
            draws = np.array([*product(values, repeat=len(groups))])
            least = 2 / len(draws)
        weights[law] = np.vstack([np.ones(len(groups)), draws]), least
    rows = {}
    for place, name in enumerate(names):
        theta = ravel(model.parameters.unconstrained(fit.parameters))
        starts = {"restricted": _without(model, place), "unrestricted": theta}
        for (null, start), (law, (draws, least)) in product(starts.items(), weights.items()):
            (t, *others), size = _statistics(model, start, place, groups, draws)
            if null == "unrestricted":
                t = theta[place] / size
            share = np.mean(np.abs(others) >= EQUAL * abs(t))
            rows[f"{null}, {law}", name] = {"t": t, "P>|t|": max(share, least), "least P": least}
    return pd.DataFrame.from_dict(rows, orient="index")


@np.errstate(all="ignore")
def _statistics(model, theta, place, groups, draws):
    """Return t of each draw, and the standard error by the clusters' scores."""
    predictors = model.predictors
    omega, _ = predictors.full_weights
    derivatives = predictors.loss.derivatives(predictors.eta(theta[None])[0], model.y, (1, 2))
    slope, curvature = (weight_terms(omega, part) for part in derivatives)
    rows = predictors.design.rows(slice(None))
    inverse = linalg.inv((rows.T * curvature) @ rows)
    scores = -groups @ (slope[:, None] * rows)
    shares = scores @ inverse[place]
    along = curvature * (rows @ inverse[place])
    refitted = groups @ (along[:, None] * (rows @ (inverse @ scores.T)))
    remaining = draws * shares - draws @ refitted.T
    return draws @ shares / linalg.norm(remaining, axis=1), linalg.norm(shares)


def _without(model, place):
    """Return the parameters of the fit in which one of them is zero."""
    rows = np.delete(model.lines.rows(slice(None)), place, axis=1)
    theta = np.zeros(rows.shape[1])
    if theta.size:
        reduced = copy.copy(model)
        names = tuple(map(str, range(theta.size)))
        vars(reduced).update(design=as_stored(rows), names=names, intercept=False)
        theta = fit_model(reduced).parameters["coef"]
    return np.insert(theta, place, 0.0)
