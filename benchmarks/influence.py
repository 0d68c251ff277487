"""Influence measures of statsmodels and ours against refits of every row: the largest relative error of each.

    python benchmarks/influence.py

The measures are those of docs/regression.md, written out here over statsmodels' own refits without each row. Errors are
relative to the root mean square of the truth.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from statsmodels.genmod.families import links
from statsmodels.stats.outliers_influence import OLSInfluence

import leaveout as lo

N = 60
rng = np.random.default_rng(0)
X = np.c_[np.ones(N), rng.standard_normal((N, 3))]
ETA = X @ [0.3, 0.6, -0.4, 0.2]
WEIGHT = rng.gamma(4.0, 0.25, N)
BINARY = (rng.random(N) < 1 / (1 + np.exp(-ETA))).astype(float)
F = sm.families
MODELS: dict[str, Callable[[Any], Any]] = {
    "OLS": lambda k: sm.OLS((ETA + rng_noise)[k], X[k]).fit(),
    "WLS": lambda k: sm.WLS((ETA + rng_noise)[k], X[k], weights=WEIGHT[k]).fit(),
    "Poisson": lambda k: sm.GLM(COUNT[k], X[k], F.Poisson()).fit(tol=1e-13),
    "logistic": lambda k: sm.GLM(BINARY[k], X[k], F.Binomial()).fit(tol=1e-13),
    "probit": lambda k: sm.GLM(BINARY[k], X[k], F.Binomial(links.Probit())).fit(tol=1e-13),
    "gamma, log": lambda k: sm.GLM(POSITIVE[k], X[k], F.Gamma(links.Log())).fit(tol=1e-13),
    "gamma, log, weights": lambda k: sm.GLM(POSITIVE[k], X[k], F.Gamma(links.Log()), var_weights=WEIGHT[k]).fit(tol=1e-13),
}
rng_noise, COUNT, POSITIVE = rng.standard_normal(N), rng.poisson(np.exp(ETA)).astype(float), rng.gamma(2.0, np.exp(ETA) / 2)


def truth(host: Callable[[Any], Any]) -> dict[str, np.ndarray]:
    """The measures from refits, with the observed information by statsmodels' own Hessian."""
    whole = host(slice(None))
    linear = not hasattr(whole.model, "family")
    weight = whole.model.weights if linear else whole.model.iweights
    information = (
        X.T @ (np.asarray(weight)[:, None] * X) if linear else -whole.model.hessian(whole.params, scale=1.0, observed=True)
    )
    known = not linear and type(whole.model.family).__name__ in ("Poisson", "Binomial")
    curvature = np.asarray(weight) if linear else whole.model.hessian_factor(whole.params, scale=1.0, observed=True)
    inverse = np.linalg.inv(information)
    h = np.abs(curvature) * np.einsum("np,pq,nq->n", X, inverse, X)
    out: dict[str, list] = {"cook": [], "dfbetas": [], "studentised": []}
    for i in range(N):
        again = host(np.arange(N) != i)
        step = again.params - whole.params
        scale, left = (1.0, 1.0) if known else (whole.scale, again.scale)
        mean = X[i] @ again.params if linear else again.predict(X[[i]])[0]
        variance = 1.0 if linear else float(whole.model.family.variance(mean))
        out["cook"].append(step @ information @ step / (X.shape[1] * scale))
        out["dfbetas"].append(-step / np.sqrt(left * np.diag(inverse)))
        spread = left * variance / (1 - h[i])
        out["studentised"].append(np.sqrt(np.broadcast_to(weight, N)[i] / spread) * (whole.model.endog[i] - mean))
    return {"leverage": h} | {name: np.array(values) for name, values in out.items()}


def theirs(whole: Any) -> dict[str, Callable[[], np.ndarray]]:
    linear = not hasattr(whole.model, "family")
    influence = OLSInfluence(whole) if linear else whole.get_influence()  # WLS has no get_influence of its own
    return {
        "leverage": lambda: influence.hat_matrix_diag,
        "cook": lambda: influence.cooks_distance[0],
        "dfbetas": lambda: influence.dfbetas,
        "studentised": lambda: influence.resid_studentized_external if linear else influence.resid_studentized,
    }


def ours(whole: Any) -> dict[str, Callable[[], np.ndarray]]:
    fit = lo.from_statsmodels(whole)
    return {
        "leverage": lambda: lo.leverage(fit),
        "cook": lambda: lo.cooks_distance(fit),
        "dfbetas": lambda: lo.dfbetas(fit).to_numpy(),
        "studentised": lambda: lo.studentized_residuals(fit),
    }


def main() -> None:
    rows = []
    for name, host in MODELS.items():
        want = truth(host)
        for program, make in (("statsmodels", theirs), ("leaveout", ours)):
            row: dict[str, Any] = {"model": name, "program": program}
            measures = make(host(slice(None)))
            for measure, value in want.items():
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        error = np.abs(np.asarray(measures[measure]()) - value).max() / np.sqrt(np.mean(value**2))
                    row[measure] = f"{error:.1e}"
                except Exception as reason:
                    row[measure] = type(reason).__name__
            rows.append(row)
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
