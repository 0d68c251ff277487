"""Links that are not canonical: leave-one-out linear predictors against refits by SciPy's root finder.

The error of each way is ‖η_approximate − η_exact‖ / ‖η_exact − η_hat‖, the predictors those of the left-out rows,
with sample weights, offsets and an unpenalised intercept. A demand of benchmarks/linear.py.
"""

import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.stats

import leaveout as lo

normal = scipy.stats.norm
hazard = lambda eta: np.exp(normal.logpdf(eta) - normal.logcdf(eta))
# dℓ/dη, written here from the densities
SLOPES = {
    "probit": lambda eta, y: (1 - y) * hazard(-eta) - y * hazard(eta),
    "cloglog": lambda eta, y: (1 - y) * np.exp(eta) - y * np.exp(eta) / np.expm1(np.exp(eta)),
    "gamma": lambda eta, y: 1 - y * np.exp(-eta),
}


def study(n: int = 120, p: int = 5, seeds: int = 10) -> list[dict]:
    """Medians over data sets, for a weak and a strong signal, and NewtonStep's worst."""
    rows = []
    for name in SLOPES:
        for signal in (0.5, 1.0):
            errors = pd.DataFrame([compare(name, *data(name, n, p, signal, seed)) for seed in range(seeds)])
            numbers = errors.apply(pd.to_numeric, errors="coerce")
            middle = {c: numbers[c].median() if numbers[c].notna().any() else errors[c][0] for c in errors}
            rows.append({"link": name, "sd of Xθ": signal} | middle | {"NewtonStep, worst": numbers["NewtonStep"].max()})
    return rows


def data(name: str, n: int, p: int, signal: float, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    X, weight, offset = rng.standard_normal((n, p)), rng.gamma(4.0, 0.25, n), 0.3 * rng.standard_normal(n)
    eta = signal * X @ rng.standard_normal(p) / np.sqrt(p) + offset
    if name == "gamma":
        return X, rng.gamma(2.0, np.exp(eta) / 2.0), weight, offset
    mean = normal.cdf(eta) if name == "probit" else -np.expm1(-np.exp(eta))
    return X, (rng.random(n) < mean).astype(float), weight, offset


def compare(name: str, X: np.ndarray, y: np.ndarray, weight: np.ndarray, offset: np.ndarray) -> dict[str, float | str]:
    """The relative error of each way to the left-out linear predictors, or why it has none."""
    n = len(y)
    design = np.c_[X, np.ones(n)]

    def solve(s, start):
        equations = lambda theta: design.T @ (s * SLOPES[name](design @ theta + offset, y))
        return scipy.optimize.root(equations, start, tol=1e-13).x

    full = solve(weight, np.zeros(design.shape[1]))
    refits = np.stack([solve(np.where(np.arange(n) == i, 0.0, weight), full) for i in range(n)])
    eta, exact = design @ full + offset, np.sum(design * refits, 1) + offset
    fit, plan = lo.fit(lo.GLM(X, y, name, sample_weight=weight, offset=offset)), lo.leave_one_out(n)
    ours = (lo.NewtonStep(), lo.InfinitesimalJackknife(), lo.Exact())
    found = {type(refit).__name__: lo.cross_predict(fit, plan, refit, "link") for refit in ours}
    found |= dict(statsmodels(name, design, y, weight, offset))
    distance = np.linalg.norm(exact - eta)
    return {k: v if isinstance(v, str) else np.linalg.norm(v - exact) / distance for k, v in found.items()}


def statsmodels(name: str, design: np.ndarray, y: np.ndarray, weight: np.ndarray, offset: np.ndarray) -> Iterator[tuple]:
    """Its left-out linear predictors, by params − d_params of its three influence measures; or why there are none."""
    import statsmodels.api as sm
    from statsmodels.stats.outliers_influence import MLEInfluence

    family = {
        "probit": lambda: sm.families.Binomial(sm.families.links.Probit()),
        "cloglog": lambda: sm.families.Binomial(sm.families.links.CLogLog()),
        "gamma": lambda: sm.families.Gamma(sm.families.links.Log()),
    }[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = sm.GLM(y, design, family, offset=offset, var_weights=weight).fit(tol=1e-12)
        for label, measure in (
            ("sm get_influence()", lambda: fitted.get_influence()),
            ("sm observed=False", lambda: fitted.get_influence(observed=False)),
            ("sm MLEInfluence", lambda: MLEInfluence(fitted)),
        ):
            try:
                yield label, np.sum(design * (fitted.params - measure().d_params), 1) + offset
            except Exception as error:
                yield label, f"cannot: {type(error).__name__}"
