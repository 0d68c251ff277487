"""Additive models beside mgcv, certificates of their refits, and what their intervals cover.

    python benchmarks/smooth.py mgcv                 criterion at its λ, its λ, times; R's data are in LEAVEOUT_DATA/latent
    python benchmarks/smooth.py large                100,000 rows, five smooth terms, 10,000 neighbourhoods
    python benchmarks/smooth.py certificate          held-out losses and their errors against exact refits by SciPy
    python benchmarks/smooth.py nested               optimism, by λ chosen again in every refit
    python benchmarks/smooth.py coverage [--draws 200]   intervals of smooth terms under autocorrelated errors

mgcv 1.8-41 under R 4.2.2: `gam(y ~ s(x, k = 40), family =, method = "NCV", nei =)`, every row left out with
h rows to each side.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import scipy

import leaveout as lo

CASES = {  # of R's data: criterion at its λ where it was printed, seconds of the whole fit
    "200_binomial_5": (246.4126386, 0.07),
    "500_poisson_8": (1288.481081, 0.25),
    "2000_binomial_20": (None, 1.12),
}


def timed(run, times=1):
    """What it returns, and the median processor time."""
    took = []
    for _ in range(times):
        start = time.process_time()
        found = run()
        took.append(time.process_time() - start)
    return found, float(np.median(took))


def against_mgcv():
    folder = Path(os.environ["LEAVEOUT_DATA"]) / "latent"
    for case, (criterion, seconds) in CASES.items():
        n, family, h = (int(part) if part.isdigit() else part for part in case.split("_"))
        data = pd.read_csv(next(folder.glob(f"ncv_{case}.csv*")))
        S, b = (pd.read_csv(folder / f"{name}_{case}.csv").to_numpy() for name in ("S", "b"))
        X, y, plan = data.iloc[:, 4:].to_numpy(), data["y"].to_numpy(), lo.blocks(n, 1, buffer=h)
        loss = {"binomial": "logistic", "poisson": "poisson"}[family]
        eta, pulled = np.c_[np.ones(n), X] @ b[:, 0], S @ b[1:, 0]
        mean = 1 / (1 + np.exp(-eta)) if family == "binomial" else np.exp(eta)
        sp = float(pulled @ (X.T @ (y - mean)) / (pulled @ pulled))  # λ at which the slope is zero at its coefficients
        saturated = 0.0 if family == "binomial" else float(np.sum(y - scipy.special.xlogy(y, y) + scipy.special.gammaln(y + 1)))
        deviance = lambda mean, n=n, saturated=saturated: 2 * (n * mean - saturated)
        fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Quadratic(sp * S)))
        step, exact = (deviance(lo.cross_validate(fit, plan, refit, audit=0).mean) for refit in (lo.NewtonStep(), lo.Exact()))
        model = lo.Additive("y ~ s(x, k=40)", data[["x", "y"]], loss=loss)
        units = _units(np.asarray(model.design)[:, :-1], model.penalty.matrices[0], X, S)
        found, took = timed(lambda model=model, plan=plan: lo.smooth(model, plan), 9)
        ours = found.rho[0] - units
        print(f"{case}: at mgcv's λ one step {step:.10g}, exact {exact:.10g}", end="")
        print("" if criterion is None else f"; mgcv {criterion:.10g}, relative {abs(step / criterion - 1):.1e}")
        here = deviance(found.value)
        print(f"  log λ {ours:.5f}, mgcv {np.log(sp):.5f}, apart {ours - np.log(sp):.1e}; criterion there {here:.10g}", end="")
        print(f", lower by {step - here:.1e}")
        finished, _ = timed(lambda model=model, plan=plan: lo.smooth(model, plan, exact=True))
        print(f"  finished by exact refits: log λ {finished.rho[0] - units:.5f}")
        print(
            f"  whole fit {took:.4f} s of processor time, {found.looks} looks; mgcv {seconds} s, {seconds / took:.1f} times it"
        )


def _units(design, penalty, X, S):
    """log of by how much our penalty is smaller than R's of the same functions."""
    turn = np.linalg.lstsq(np.c_[X, np.ones(len(X))], design, rcond=None)[0][:-1]
    return np.log(np.trace(turn.T @ S @ turn) / np.trace(penalty))


def large(n=100_000):
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.uniform(0, 1, (n, 5)), columns=list("abcde"))
    error = scipy.signal.lfilter([0.3], [1, -0.7], rng.standard_normal(n))
    eta = np.sin(6 * data.a) + data.b**2 + np.cos(9 * data.c) / 2 + 0.3 * data.d + error - 0.1
    data["y"] = rng.poisson(np.exp(eta))
    plan, began = lo.blocks(n, 10, buffer=10), time.monotonic()
    formula = "y ~ s(a, k=15) + s(b) + s(c, k=15) + s(d) + s(e)"
    model, bind = timed(lambda: lo.Additive(formula, data, loss="poisson"))
    found, took = timed(lambda: lo.smooth(model, plan))
    print(f"model {bind:.1f} s, λ {took:.1f} s of processor time, {time.monotonic() - began:.0f} s in all; {found.looks} looks")
    _, took = timed(lambda: (found.estimate, found.nested))
    print(f"certified and nested {took:.1f} s of processor time")
    print(found)


def _problems(count, n):
    for seed in range(count):
        rng = np.random.default_rng(seed)
        x, z, g = rng.uniform(0, 1, n), rng.uniform(0, 1, n), rng.integers(0, 12, n)
        eta = np.sin(7 * x) + 2 * (z - 0.5) ** 2 + 0.4 * rng.standard_normal(12)[g]
        for loss in ("squared", "logistic", "poisson", "gamma", "probit"):
            y = _drawn(loss, eta, rng)
            yield seed, loss, pd.DataFrame({"x": x, "z": z, "g": g, "y": y})


def _drawn(loss, eta, rng):
    if loss == "squared":
        return eta + 0.5 * rng.standard_normal(len(eta))
    if loss == "poisson":
        return rng.poisson(np.exp(eta))
    return rng.gamma(2.0, np.exp(eta) / 2) if loss == "gamma" else (rng.random(len(eta)) < scipy.special.expit(2 * eta)) * 1.0


def certificate(count=8, n=120):
    """Held-out losses of certified refits, at λ that were chosen and at a hundredth and a hundred times these, against
    refits by SciPy's trust-region Newton method on the rows that are left."""
    said = {True: [0, 0], False: [0, 0]}
    for seed, loss, data in _problems(count, n):
        model = lo.Additive("y ~ s(x) + s(z, bs='cr') + s(g, bs='re')", data, loss=loss)
        chosen = np.array(list(lo.smooth(model, lo.leave_one_out(n)).smoothing.values()))
        for factor in (0.01, 1.0, 100.0):
            fit = lo.fit(model.smoothed(factor * chosen))
            for plan in (lo.kfold(n, 8, seed=seed), lo.groups(data.g)):
                cv = lo.cross_validate(fit, plan)
                for k in range(plan.num_refits):
                    mine = plan.refit == k
                    truth = _refit(fit, plan.index[mine])
                    off = abs(float(cv.losses[mine].sum()) - truth)
                    proved = bool(cv.proved[k])
                    said[proved][0] += 1
                    said[proved][1] += off > cv.error[k] + 1e-9 * max(1.0, abs(truth))
    for proved, (folds, beyond) in said.items():
        print(f"{'proved' if proved else 'estimated'}: {folds} folds, {beyond} beyond their error")


LIKELIHOODS = {  # ℓ, ℓ′, ℓ″, written out again
    "Squared": (lambda e, y: (e - y) ** 2 / 2, lambda e, y: e - y, lambda e, y: np.ones_like(e)),
    "Poisson": (
        lambda e, y: np.exp(e) - y * e + scipy.special.gammaln(y + 1),
        lambda e, y: np.exp(e) - y,
        lambda e, y: np.exp(e),
    ),
    "Gamma": (lambda e, y: e + y * np.exp(-e), lambda e, y: 1 - y * np.exp(-e), lambda e, y: y * np.exp(-e)),
    "logit": (
        lambda e, y: np.logaddexp(0, e) - y * e,
        lambda e, y: scipy.special.expit(e) - y,
        lambda e, y: scipy.special.expit(e) * scipy.special.expit(-e),
    ),
    "probit": (
        lambda e, y: -scipy.special.log_ndtr((2 * y - 1) * e),
        lambda e, y: -(2 * y - 1) * _mills((2 * y - 1) * e),
        lambda e, y: _mills((2 * y - 1) * e) * ((2 * y - 1) * e + _mills((2 * y - 1) * e)),
    ),
}


def _mills(s):
    return np.exp(-0.5 * s**2 - 0.5 * np.log(2 * np.pi) - scipy.special.log_ndtr(s))


def _refit(fit, out):
    """The loss of rows by a refit without them."""
    model = fit.objective
    kind = type(model.loss_function).__name__
    loss, slope, curvature = LIKELIHOODS[model.loss_function.link if kind == "Binomial" else kind]
    X, y, P = np.asarray(model.design), np.asarray(model.y), np.pad(model.penalty.second(model.num_features), (0, 1))
    keep = np.ones(len(y), bool)
    keep[out] = False
    Xk, yk = X[keep], y[keep]
    found = scipy.optimize.minimize(
        lambda t: loss(Xk @ t, yk).sum() + t @ P @ t / 2,
        fit.vector,
        jac=lambda t: Xk.T @ slope(Xk @ t, yk) + P @ t,
        hess=lambda t: (Xk.T * curvature(Xk @ t, yk)) @ Xk + P,
        method="trust-exact",
        options={"gtol": 1e-9},
    )
    theta = found.x
    for _ in range(3):
        H = (Xk.T * curvature(Xk @ theta, yk)) @ Xk + P
        theta = theta - np.linalg.solve(H, Xk.T @ slope(Xk @ theta, yk) + P @ theta)
    return float(loss(X[out] @ theta, y[out]).sum())


def nested(count=6, n=100):
    """λ chosen again without every row in turn, and the refit there, against what is said to first order."""
    from leaveout.tuning.smooth import _least
    from leaveout.tuning.smoothing_criterion import minimum

    for loss in ("squared", "poisson", "logistic"):
        pairs = []
        for seed in range(count):
            _, _, data = next(problem for problem in _problems(seed + 1, n) if problem[0] == seed and problem[1] == loss)
            found = lo.smooth(lo.Additive("y ~ s(x) + s(z)", data, loss=loss), lo.leave_one_out(n))
            losses = []
            for row in range(n):
                fewer = found.criterion.without(np.arange(n) == row)
                here = minimum(fewer.model, _least(fewer, found.rho, found.bounds).rho, found.fit.vector)
                losses.append(fewer.model.derivatives(here.eta, (0,))[0][row])
            exact = lo.cross_validate(found.fit, lo.leave_one_out(n), lo.Exact(), audit=0).mean
            pairs.append((np.mean(losses) - exact, found.nested.optimism))
        again, told = np.array(pairs).T
        print(
            f"{loss}: chosen again {np.round(again, 5)}, told {np.round(told, 5)}; means {again.mean():.5f}, {told.mean():.5f}"
        )


def coverage(draws):
    """Of 95 % intervals, on average over each term's values: a trend in time and a smooth effect of a random column, errors an
    autoregression of 0.6, 500 rows; every row left out with ten to each side, or by itself."""
    settings = {
        "Gaussian": ("squared", 0.4, 10),
        "Poisson": ("poisson", 0.3, 10),
        "Gaussian, leave-one-out": ("squared", 0.4, 0),
    }
    for name, (loss, sd, h) in settings.items():
        hits = []
        for seed in range(draws):
            hits.append(_covered(seed, loss, sd, h))
            if seed % 50 == 49 or seed == draws - 1:
                mean, error = np.mean(hits, axis=0), np.std(hits, axis=0) / np.sqrt(len(hits))
                each = [f"{what} {m:.3f} ± {e:.3f}" for what, m, e in zip(TOLD, mean, error, strict=True)]
                print(f"{name}, {seed + 1} draws: {', '.join(each)}", flush=True)


TOLD = ("trend", "column", "trend as if independent", "column as if independent")


def _covered(seed, loss, sd, h, n=500):
    rng = np.random.default_rng(seed)
    t, z = np.arange(n) / n, rng.uniform(0, 1, n)
    error = sd * scipy.signal.lfilter([1], [1, -0.6], rng.standard_normal(n + 200))[200:]
    trend, effect = np.sin(2 * np.pi * t) + 0.8 * np.exp(-(((t - 0.6) / 0.12) ** 2)), np.cos(5 * z)
    eta = trend + effect + error
    y = eta if loss == "squared" else rng.poisson(np.exp(1 + eta - sd**2 / 2 / (1 - 0.36)))
    model = lo.Additive("y ~ s(t, k=20) + s(z)", pd.DataFrame({"t": t, "z": z, "y": y}), loss=loss)
    found = lo.smooth(model, lo.blocks(n, 1, buffer=h) if h else lo.leave_one_out(n))
    hits = []
    for fit in (found, found.fit):
        table = lo.tuning.curves(fit)
        for name, at, column, truth in (("s(t)", t, "t", trend), ("s(z)", z, "z", effect)):
            own = table[table.term == name]
            inside = [np.interp(at, own[column], own[end]) for end in ("low", "high")]
            hits.append(np.mean((inside[0] <= truth - truth.mean()) & (truth - truth.mean() <= inside[1])))
    return hits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["mgcv", "large", "certificate", "nested", "coverage"])
    parser.add_argument("--draws", type=int, default=200)
    given = parser.parse_args(sys.argv[1:])
    run = {"mgcv": against_mgcv, "large": large, "certificate": certificate, "nested": nested}
    run.get(given.what, lambda: coverage(given.draws))()
