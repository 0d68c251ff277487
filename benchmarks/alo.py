"""What the certificate costs: leave-one-out against the same arithmetic written by hand, and first calls against the next.

    python benchmarks/alo.py [rows several first]

rows      single rows of a logistic regression left out, against approximate leave-one-out in blocked NumPy from the same factor
          of H, and against fits of scikit-learn, once, as it stands on; all errors told, the audit apart
several   the same of a multinomial model
first     groups, folds and resamples in a fresh process: the first call, another plan, and the first plan again

Seconds, medians of repeats in turn after a warm-up; every call of ours is of a fresh `Fit`: nothing is kept from before.
"""

import dataclasses

import fresh
import numpy as np
import scipy.linalg
from linear import logistic_data, main, once, race, show
from sklearn.linear_model import LogisticRegression

import leaveout as lo

SIZES = ((1000, 5), (10_000, 50), (100_000, 100), (1_000_000, 50), (20_000, 500), (3000, 1000), (4000, 2000))
BLOCK = 4096  # rows at a time
FIRST = """
import time, numpy as np, leaveout as lo
from linear import logistic_data, logistic_fit
X, y = logistic_data(20_000, 20)
fit, plans = logistic_fit(X, y), {plans}
times = []
for plan in (plans[0], plans[1], plans[0]):
    start = time.perf_counter(); lo.cross_validate(fit, plan); times.append(time.perf_counter() - start)
import json
print(json.dumps(dict(zip(("first call", "another plan", "the first again"), times))))
"""
PLANS = {
    "1,000 groups": "[lo.groups(np.arange(20_000) % 1000), lo.groups(np.arange(20_000) // 20)]",
    "ten folds": "[lo.kfold(20_000, 10, seed=0), lo.kfold(20_000, 10, seed=1)]",
    "200 resamples": "[lo.bootstrap(20_000, 200, seed=0), lo.bootstrap(20_000, 200, seed=1)]",
}


def by_hand(X: np.ndarray, y: np.ndarray, theta: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """η + hℓ′/(1 − hℓ″) of every row, and its loss, from H = L Lᵀ, in blocks of rows."""
    root, out = scipy.linalg.lapack.dtrtri(factor, lower=1)[0].T, np.empty(len(y))
    for start in range(0, len(y), BLOCK):
        x, seen = X[start : start + BLOCK], y[start : start + BLOCK]
        eta = x @ theta
        mu = 1 / (1 + np.exp(-eta))
        z = x @ root
        h = np.einsum("np,np->n", z, z)
        eta += h * (mu - seen) / (1 - h * mu * (1 - mu))
        out[start : start + BLOCK] = np.logaddexp(0, eta) - seen * eta
    return out


def rows() -> None:
    """Leave-one-out of single rows, two strategies, with the share of errors that is proved."""
    table = []
    for n, p in SIZES:
        X, y = logistic_data(n, p)
        fit, plan = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0), intercept=False)), lo.leave_one_out(n)
        ours = lambda refit, audit=0, fit=fit, plan=plan: lo.cross_validate(dataclasses.replace(fit), plan, refit, audit=audit)
        hosts = {
            s: lambda s=s, X=X, y=y: LogisticRegression(solver=s, fit_intercept=False).fit(X, y)
            for s in ("lbfgs", "newton-cholesky")
        }
        runs = {
            "by hand": lambda X=X, y=y, fit=fit: by_hand(X, y, fit.vector, np.asarray(fit.factor)),
            "NewtonStep": lambda ours=ours: ours(lo.NewtonStep()),
            "Certified": lambda ours=ours: ours(lo.Certified()),
            "with audit": lambda ours=ours: ours(lo.Certified(), 5),
        }
        times = race(15 if n * p < 10**6 else 3 if p < 2000 else 1, **runs) | {
            name: once(host)[0] for name, host in hosts.items()
        }
        step, best = ours(lo.NewtonStep()), ours(lo.Certified())
        row = {"n": n, "p": p, "lbfgs": times["lbfgs"], "newton-cholesky": times["newton-cholesky"]}
        row |= {name: times[name] for name in runs} | {
            f"{name} / by hand": times[name] / times["by hand"] for name in list(runs)[1:3]
        }
        row |= {"proved, step": step.proved.mean(), "proved": best.proved.mean()}
        table.append(row | {"step by hand differs": abs(step.losses - runs["by hand"]()).max()})
        print(f"{n:,} x {p:,}: Certified {times['Certified']:.3g} s, by hand {times['by hand']:.3g} s", flush=True)
    show(
        "rows: leave-one-out, logistic, no intercept; targets: NewtonStep 1.5 times by hand; Certified 3, 6 (p = 500), 15",
        table,
    )


def by_hand_of_several(X: np.ndarray, y: np.ndarray, theta: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """η + (I − GW)⁻¹ G (p − e_y) of every row, G = U H⁻¹ Uᵀ, W = diag(p) − p pᵀ, and its loss, in blocks of rows."""
    (K, q), size = theta.shape, BLOCK // theta.shape[0]
    inverse = scipy.linalg.lapack.dpotri(factor, lower=1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    columns, out = inverse.reshape(K, q, K, q).transpose(1, 0, 2, 3).reshape(q, -1), np.empty(len(y))
    for start in range(0, len(y), size):
        x, seen = X[start : start + size], y[start : start + size]
        eta, own = x @ theta.T, (np.arange(len(x)), seen)
        p = np.exp(eta - eta.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        G = ((x @ columns).reshape(-1, K * K, q) @ x[:, :, None]).reshape(-1, K, K)
        W, slope = p[:, :, None] * (np.eye(K) - p[:, None, :]), p.copy()
        slope[own] -= 1
        eta += np.linalg.solve(np.eye(K) - G @ W, G @ slope[:, :, None])[:, :, 0]
        top = eta.max(1)
        out[start : start + size] = np.log(np.exp(eta - top[:, None]).sum(1)) + top - eta[own]
    return out


def several(n: int = 20_000, p: int = 50, classes: int = 10) -> None:
    """A multinomial model: its fit, and leave-one-out."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    eta = 2 * X @ rng.standard_normal((p, classes)) / np.sqrt(p)
    y = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)
    host = LogisticRegression(tol=1e-8, max_iter=1000)
    make = lambda: lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(1.0)))
    first, fit = once(make)
    design = np.c_[X, np.ones(n)]
    hand = lambda: by_hand_of_several(design, y, fit.theta, np.asarray(fit.factor))
    ours = lambda refit: lo.cross_validate(dataclasses.replace(fit), lo.leave_one_out(n), refit)
    runs = {"lbfgs": lambda: host.fit(X, y), "fit": make, "hand": hand, "loo": lambda: ours(lo.Certified())}
    times, cv, step = race(3, **runs), ours(lo.Certified()), ours(lo.NewtonStep())
    host = {"coef": host.coef_, "intercept": host.intercept_}
    left = np.linalg.norm(lo.anchor(fit.objective, host).gradient)
    row = {"n": n, "p": p, "classes": classes, "scikit-learn lbfgs": times["lbfgs"], "its gradient": left}
    row |= {"fit, first": first, "fit": times["fit"], "ours": np.linalg.norm(fit.gradient)}
    row |= {"loo by hand": times["hand"], "certified loo": times["loo"], "target": 3, "/ by hand": times["loo"] / times["hand"]}
    row |= {"proved": cv.proved.mean(), "error / se": cv.approximation_error / cv.se}
    row["step by hand differs"] = abs(step.losses - hand()).max()
    show("several: a multinomial model, fitted and single rows left out", [row])


def first() -> None:
    """The first call of a process."""
    table = []
    for name, plans in PLANS.items():
        found = fresh.run(FIRST.replace("{plans}", plans))
        table.append({"plan": name, **found, "first / again": found["first call"] / found["the first again"], "target": 1.5})
    show("first: logistic, 20,000 x 20, in fresh processes", table)


DEMANDS = {demand.__name__: demand for demand in (rows, several, first)}

if __name__ == "__main__":
    main(DEMANDS, __doc__, sized=False)
