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
        times = race(15 if n * p < 10**6 else 3, **runs) | {name: once(host)[0] for name, host in hosts.items()}
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


def several(n: int = 20_000, p: int = 50, classes: int = 10) -> None:
    """A multinomial model: its fit, and leave-one-out."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    eta = 2 * X @ rng.standard_normal((p, classes)) / np.sqrt(p)
    y = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)
    host = LogisticRegression(tol=1e-8, max_iter=1000)
    make = lambda: lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(1.0)))
    first, fit = once(make)
    times = race(3, lbfgs=lambda: host.fit(X, y), fit=make, loo=lambda: lo.cross_validate(fit, lo.leave_one_out(n)))
    cv = lo.cross_validate(fit, lo.leave_one_out(n))
    row = {"n": n, "p": p, "classes": classes, "scikit-learn lbfgs": times["lbfgs"], "fit, first": first, "fit": times["fit"]}
    row |= {
        "certified loo": times["loo"],
        "target": 3,
        "proved": cv.proved.mean(),
        "error / se": cv.approximation_error / cv.se,
    }
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
