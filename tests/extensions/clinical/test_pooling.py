"""Random effects: DerSimonian and Laird by hand, and restricted maximum likelihood by another
optimiser.
"""

import numpy as np
import pytest
from scipy import optimize, stats

from leaveout.extensions.clinical.pooling import pool

CASES = {
    "centres differ": ([0.3, 1.2, 0.7, 2.1, -0.4], [0.2, 0.3, 0.15, 0.5, 0.25]),
    "centres agree": ([0.5, 0.52, 0.48, 0.51], [0.2, 0.3, 0.15, 0.5]),
    "one precise centre": ([0.0, 1.0, 3.0], [0.01, 0.8, 0.9]),
}


@pytest.mark.parametrize("case", CASES)
def test_restricted_likelihood_by_another_optimiser(case):
    t, s = map(np.array, CASES[case])

    def deviance(log_tau2):
        v = s**2 + np.exp(log_tau2)
        mu = np.average(t, weights=1 / v)
        return np.log(v).sum() + np.log((1 / v).sum()) + ((t - mu) ** 2 / v).sum()

    grid = np.linspace(-25, 5, 400)
    best = grid[np.argmin([deviance(x) for x in grid])]
    best = optimize.minimize_scalar(
        deviance, bounds=(best - 0.2, best + 0.2), method="bounded", options={"xatol": 1e-10}
    ).x
    found = pool(t, s)
    np.testing.assert_allclose(found["tau2"], np.exp(best), rtol=1e-5, atol=1e-10)
    a = 1 / (s**2 + found["tau2"])
    k, mu = len(t), a @ t / a.sum()
    knapp = np.sqrt(a @ (t - mu) ** 2 / ((k - 1) * a.sum()))
    np.testing.assert_allclose(
        found[["mu", "se", "hksj_se"]].to_numpy(float), [mu, a.sum() ** -0.5, knapp], rtol=1e-12
    )
    np.testing.assert_allclose(found["high"] - mu, stats.t.ppf(0.975, k - 1) * knapp, rtol=1e-10)
    np.testing.assert_allclose(
        found["pi_high"] - mu,
        stats.t.ppf(0.975, k - 2) * np.sqrt(found["tau2"] + 1 / a.sum()),
        rtol=1e-10,
    )


def test_moments_of_dersimonian_and_laird():
    t, s = map(np.array, CASES["centres differ"])
    w = 1 / s**2
    Q = w @ (t - w @ t / w.sum()) ** 2
    found = pool(t, s, "DL")
    np.testing.assert_allclose(found["tau2"], (Q - 4) / (w.sum() - w @ w / w.sum()), rtol=1e-12)
    np.testing.assert_allclose(found["I2"], 1 - 4 / Q, rtol=1e-12)


def test_centres_without_an_estimate_are_left_out():
    t, s = map(np.array, CASES["centres differ"])
    more = pool(np.append(t, [np.nan, 1.0]), np.append(s, [0.1, np.inf]))
    np.testing.assert_allclose(more.to_numpy(float), pool(t, s).to_numpy(float))
    one = pool(t[:1], s[:1])
    assert one["k"] == 1 and one.drop("k").isna().all() and np.isnan(pool(t[:2], s[:2])["pi_low"])
