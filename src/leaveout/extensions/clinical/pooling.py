"""Random-effects pooling of estimates t_i with standard errors s_i, such as those of centres.

    μ = Σ a_i t_i / Σ a_i,   a_i = 1/(s_i² + τ²),   se = (Σ a_i)^(−½)

The variance τ² between centres is that of restricted maximum likelihood, by Fisher's scoring on P =
A − A11ᵀA/1ᵀA1,

    τ² ← τ² + (tᵀPPt − tr P) / tr PP,

or DerSimonian and Laird's (1986). Hartung and Knapp's standard error is √(Σ a_i (t_i − μ)² / ((k −
1) Σ a_i)), with k − 1 degrees of freedom. A new centre's value lies in μ ± t_{k−2} √(τ² + se²)
(Higgins, Thompson & Spiegelhalter 2009).
"""

from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

PerCentre = Float[np.ndarray, " centres"]
Tau2 = Literal["REML", "DL"]


def pool(
    value: PerCentre,
    se: PerCentre,
    tau2: Tau2 = "REML",
    level: float = 0.95,
) -> pd.Series:
    """Pool estimates by random effects; NaN where too few centres have a finite estimate and
    standard error.

    The result has `mu`, `tau2`, `Q`, `I2`, `se`, Hartung and Knapp's `hksj_se` with the interval
    from `low` to `high`, the prediction interval from `pi_low` to `pi_high`, and the number `k` of
    centres.
    """
    defined = np.isfinite(value) & np.isfinite(se) & (se > 0)
    t = value[defined]
    s = se[defined]
    k = len(t)
    names = ["mu", "tau2", "Q", "I2", "se", "hksj_se", "low", "high", "pi_low", "pi_high", "k"]
    if k < 2:
        return pd.Series([*[np.nan] * 10, k], names)
    a = 1 / s**2
    Q = np.sum(a * (t - np.average(t, weights=a)) ** 2)
    between = max(0.0, (Q - (k - 1)) / (a.sum() - np.sum(a**2) / a.sum()))
    if tau2 == "REML":
        between = _restricted_likelihood(t, s, between)
    a = 1 / (s**2 + between)
    mu = np.average(t, weights=a)
    mu_se = a.sum() ** -0.5
    hksj = np.sqrt(np.sum(a * (t - mu) ** 2) / ((k - 1) * a.sum()))
    tail = (1 + level) / 2
    half = stats.t.ppf(tail, k - 1) * hksj
    wide = np.nan
    if k > 2:
        wide = stats.t.ppf(tail, k - 2) * np.sqrt(between + mu_se**2)
    inconsistent = 0.0
    if Q > 0:
        inconsistent = max(0.0, 1 - (k - 1) / Q)
    return pd.Series(
        [mu, between, Q, inconsistent, mu_se, hksj, mu - half, mu + half, mu - wide, mu + wide, k],
        names,
    )


def _restricted_likelihood(t: PerCentre, s: PerCentre, start: float) -> float:
    """Return the τ² of the largest restricted likelihood that Fisher's scoring reaches."""
    # steps are of a thousandth to a half of what is left
    between = start
    most_steps = 1000
    tol = 1e-14
    for _ in range(most_steps):
        a = 1 / (s**2 + between)
        total = a.sum()
        mu = np.average(t, weights=a)
        trace = total - np.sum(a**2) / total
        squares = np.sum(a**2) - 2 * np.sum(a**3) / total + (np.sum(a**2) / total) ** 2
        new = max(0.0, between + (np.sum(a**2 * (t - mu) ** 2) - trace) / squares)
        if abs(new - between) <= tol * (new + np.min(s) ** 2):
            return new
        between = new
    return between
