"""Are held-out losses right? Losses, and their reported errors, against refits from scratch that
share no code with the library.

    python benchmarks/refits.py [ridge bounds rounded smooth nested philadelphia cells groups]
        [--problems 40]

ridge          ridge regression against numpy.linalg.solve
bounds
coefficients that are not negative, beside a ridge or none, rows of weights whose logarithms have a
standard
               deviation of 2: every row left out, and five folds, against SciPy's nnls (squares)
               and L-BFGS-B (logistic, its losses to 1e-6)
rounded
losses with rounded kinks under such weights, every row left out, against SciPy's BFGS (losses to
1e-5) smooth
additive models at their λ, and at a hundredth and a hundred times it, against SciPy's trust-region
Newton method nested         the optimism of a chosen λ, against λ chosen again in every refit
philadelphia
a Gaussian field: violent crimes of 2018 in 384 tracts, exposure their mean of 2006–2017, BYM2;
every site left
               out, 20 of them against refits from scratch by a dense implementation
               (`tests.oracles.dense_fields`)
cells
3,000 of a grid of 50 by 60, Poisson counts of a Leroux field (φ = 0.9, τ = 4), exposures uniform on
(1, 8) groups         a site left out with its automatic group of ten, under three structures

Times are processor seconds of one thread, and of the wall: on a busy machine these differ.
"""

import time

import numpy as np
import pandas as pd
import repository  # noqa: F401  puts the tests in reach
import scipy
from sklearn.linear_model import Ridge
from speed.common import main, show, squared_data
from tests.oracles.dense_fields import Dense, unconstrained

import leaveout as lo
from leaveout.data.datasets import philadelphia


def not_negative(
    X: np.ndarray, y: np.ndarray, w: np.ndarray, ridge: float, loss: str
) -> tuple[np.ndarray, float]:
    """The minimiser by SciPy, its columns scaled."""
    seen, scale = w > 0, np.sqrt(w @ X**2 + ridge)
    X, y, w, p = X[seen] / scale, y[seen], w[seen], X.shape[1]
    penalty = np.sqrt(ridge) / scale
    if loss == "squared":
        center, level, root = w @ X / w.sum(), w @ y / w.sum(), np.sqrt(w)
        rows = np.concatenate([root[:, None] * (X - center), np.diag(penalty)])
        coef = scipy.optimize.nnls(rows, np.append(root * (y - level), np.zeros(p)))[0]
        return coef / scale, level - center @ coef

    def F(v: np.ndarray) -> tuple[float, np.ndarray]:
        eta = X @ v[:p] + v[p]
        slope = w * (1 / (1 + np.exp(-eta)) - y)
        value = w @ (np.logaddexp(0, eta) - y * eta) + 0.5 * np.sum((penalty * v[:p]) ** 2)
        return value, np.append(X.T @ slope + penalty**2 * v[:p], slope.sum())

    options = {"maxiter": 10**5, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 60}
    limits = [(0, None)] * p + [(None, None)]
    found = scipy.optimize.minimize(
        F, np.zeros(p + 1), jac=True, bounds=limits, method="L-BFGS-B", options=options
    ).x
    return found[:p] / scale, found[p]


def bounds(problems: int) -> None:
    for loss, slack in (("squared", 1e-9), ("logistic", 1e-6)):
        folds, proved, wrong, moved, worst = 0, 0, 0, 0, 0.0
        for seed in range(problems):
            rng = np.random.default_rng(seed)
            n, p, ridge = (
                int(rng.integers(30, 80)),
                int(rng.integers(4, 16)),
                float(rng.choice([0.0, 0.3, 5.0])),
            )
            ridge = max(ridge, 0.3 * (loss == "logistic"))
            X = rng.standard_normal((n, p)) + rng.choice([0.0, 1.0]) * rng.standard_normal((n, 1))
            eta = X @ rng.standard_normal(p) / 2
            y = (
                (eta + rng.logistic(size=n) > 0).astype(float)
                if loss == "logistic"
                else eta + rng.standard_normal(n)
            )
            w = np.exp(2 * rng.standard_normal(n))
            model = lo.GLM(
                X, y, loss, lo.penalties.Ridge(ridge) + lo.penalties.Box(), sample_weight=w
            )
            fit = lo.fit(model)
            for plan in (lo.leave_one_out(n), lo.kfold(n, 5, rng=seed)):
                found = lo.cross_validate(fit, plan)
                for k, own in enumerate(plan.matrix()):
                    coef, intercept = not_negative(X, y, w * own, ridge, loss)
                    mine = slice(plan.indptr[k], plan.indptr[k + 1])
                    at, eta = plan.index[mine], X[plan.index[mine]] @ coef + intercept
                    told = (
                        0.5 * (y[at] - eta) ** 2
                        if loss == "squared"
                        else np.logaddexp(0, eta) - y[at] * eta
                    )
                    off = np.abs(found.losses[mine] - told).sum()
                    folds, proved = folds + 1, proved + int(found.proved[k])
                    wrong += int(
                        found.proved[k] and off > found.error[k] + slack * (1 + told.sum())
                    )
                    moved += int(np.any((coef > 1e-9) != (fit.parameters["coef"] > 0)))
                    worst = max(worst, off)
        print(
            f"not negative, {loss}: {folds} folds of {problems} problems, in {moved} of them others at zero than in the "
            f"fit, {proved} proved, {wrong} of these off by more than was said, largest difference {worst:.1g}"
        )


def rounded_loss(
    kind: str, width: float, eta: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rounded losses, written out again, and their slopes."""
    over = lambda t: (width * np.logaddexp(0, t / width), scipy.special.expit(t / width))
    if kind == "hinge":
        value, s = over(1 - y * eta)
        return value, -y * s
    low, high = {"quantile": (0.7, 0.3), "epsilon": (1.0, 1.0)}[kind]
    shift = 0.2 * (kind == "epsilon")
    (above, s), (below, r) = over(y - eta - shift), over(eta - y - shift)
    return low * above + high * below, high * r - low * s


def rounded(problems: int) -> None:
    made = {
        "quantile": lambda width: lo.losses.Quantile(0.7, width=width),
        "epsilon": lambda width: lo.losses.EpsilonInsensitive(0.2, width=width),
        "hinge": lambda width: lo.losses.Hinge(width=width),
    }
    for kind, loss in made.items():
        folds, proved, wrong, worst = 0, 0, 0, 0.0
        for seed in range(problems):
            rng = np.random.default_rng(seed)
            n, p, width, ridge = (
                40,
                int(rng.integers(2, 8)),
                float(rng.choice([0.03, 0.1])),
                float(rng.choice([0.1, 1.0])),
            )
            X = rng.standard_normal((n, p))
            y = X @ rng.standard_normal(p) + rng.standard_normal(n)
            y, w = np.sign(y) if kind == "hinge" else y, np.exp(2 * rng.standard_normal(n))
            fit = lo.fit(
                lo.GLM(
                    X, y, loss(width), lo.penalties.Ridge(ridge), sample_weight=w, intercept=False
                )
            )
            found = lo.cross_validate(fit, lo.leave_one_out())
            for i in range(n):
                own = np.where(np.arange(n) == i, 0.0, w)

                def F(
                    v: np.ndarray, own=own, X=X, y=y, width=width, ridge=ridge, kind=kind
                ) -> tuple[float, np.ndarray]:
                    value, slope = rounded_loss(kind, width, X @ v, y)
                    return own @ value + 0.5 * ridge * v @ v, X.T @ (own * slope) + ridge * v

                theta = scipy.optimize.minimize(
                    F, np.zeros(p), jac=True, method="BFGS", options={"gtol": 1e-7}
                ).x
                off = abs(found.losses[i] - rounded_loss(kind, width, X[i] @ theta, y[i])[0])
                folds, proved, worst = folds + 1, proved + int(found.proved[i]), max(worst, off)
                wrong += int(found.proved[i] and off > found.error[i] + 1e-5)
        print(
            f"rounded, {kind}: {folds} folds of {problems} problems, {proved} proved, {wrong} of these off by more than was "
            f"said, largest difference {worst:.1g}"
        )


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
    return (
        rng.gamma(2.0, np.exp(eta) / 2)
        if loss == "gamma"
        else (rng.random(len(eta)) < scipy.special.expit(2 * eta)) * 1.0
    )


def smooth(count=8, n=120):
    """Held-out losses of certified refits, at λ that were chosen and at a hundredth and a hundred
    times these, against refits by SciPy's trust-region Newton method on the rows that are left."""
    said = {True: [0, 0], False: [0, 0]}
    for seed, loss, data in _problems(count, n):
        model = lo.Additive("y ~ s(x) + s(z, bs='cr') + s(g, bs='re')", data, loss=loss)
        chosen = np.array(list(lo.smooth(model, lo.leave_one_out()).smoothing.values()))
        for factor in (0.01, 1.0, 100.0):
            fit = lo.fit(model.smoothed(factor * chosen))
            for plan in (lo.kfold(n, 8, rng=seed), lo.groups(data.g)):
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
    "Gamma": (
        lambda e, y: e + y * np.exp(-e),
        lambda e, y: 1 - y * np.exp(-e),
        lambda e, y: y * np.exp(-e),
    ),
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
    X, y, P = (
        np.asarray(model.design),
        np.asarray(model.y),
        np.pad(model.penalty.second(model.num_features), (0, 1)),
    )
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
    """λ chosen again without every row in turn, and the refit there, against what is said to first
    order.
    """
    from leaveout.tuning.smooth import _least, minimum

    for loss in ("squared", "poisson", "logistic"):
        pairs = []
        for seed in range(count):
            _, _, data = next(
                problem
                for problem in _problems(seed + 1, n)
                if problem[0] == seed and problem[1] == loss
            )
            found = lo.smooth(lo.Additive("y ~ s(x) + s(z)", data, loss=loss), lo.leave_one_out())
            losses = []
            for row in range(n):
                fewer = found.criterion.without(np.arange(n) == row)
                here = minimum(
                    fewer.model, _least(fewer, found.rho, found.bounds).rho, found.fit.vector
                )
                losses.append(fewer.model.derivatives(here.eta, (0,))[0][row])
            exact = lo.cross_validate(
                found.fit, lo.leave_one_out(), strategy=lo.Exact(), audit=0
            ).mean
            pairs.append((np.mean(losses) - exact, found.nested.optimism))
        again, told = np.array(pairs).T
        print(
            f"{loss}: chosen again {np.round(again, 5)}, told {np.round(told, 5)}; means {again.mean():.5f}, {told.mean():.5f}"
        )


def clocked(run):
    cpu, wall = time.process_time(), time.perf_counter()
    found = run()
    return (
        found,
        f"{time.process_time() - cpu:.1f} s processor, {time.perf_counter() - wall:.1f} s wall",
    )


def tracts():
    areas, edges = philadelphia()
    exposure = (
        areas[[f"violent_{year}" for year in range(2006, 2018)]].mean(axis=1).to_numpy() + 0.5
    )
    return areas["violent_2018"].to_numpy(float), edges, exposure


def cells(a=50, b=60):
    i, n, rng = np.arange(a * b).reshape(a, b), a * b, np.random.default_rng(0)
    edges = np.r_[np.c_[i[:, :-1].ravel(), i[:, 1:].ravel()], np.c_[i[:-1].ravel(), i[1:].ravel()]]
    R = np.zeros((n, n))
    R[edges[:, 0], edges[:, 1]] = R[edges[:, 1], edges[:, 0]] = -1
    R -= np.diag(R.sum(1))
    u = np.linalg.solve(
        np.linalg.cholesky(4 * (0.9 * R + 0.1 * np.eye(n))).T, rng.standard_normal(n)
    )
    exposure = rng.uniform(1, 8, n)
    return rng.poisson(exposure * np.exp(0.2 + u)).astype(float), edges, exposure


def left_out(name, y, edges, exposure, **more):
    fit, told = clocked(
        lambda: lo.fit(lo.GaussianField(y, edges, exposure=exposure, structure="bym2"), **more)
    )
    print(f"{name}: fit {told}, {fit.parameters}", flush=True)
    cv, told = clocked(lambda: lo.cross_validate(fit, lo.leave_one_out()))
    print(f"{name}: leave-one-site-out, certified, {told}\n{cv}", flush=True)
    return fit, cv


def against_scratch(fit, cv, y, edges, exposure):
    dense = Dense(y, edges, np.ones((len(y), 1)), "poisson", "bym2", exposure=exposure)
    at, off = unconstrained(fit.parameters, dense.names), []
    tight = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Certified(1e-3), audit=0)
    for site in np.random.default_rng(0).choice(len(y), 20, replace=False):
        w = np.ones(len(y))
        w[site] = 0
        exact = dense.score(dense.refit(at, w), w, site)
        off.append((abs(cv.losses[site] - exact), abs(tight.losses[site] - exact), cv.error[site]))
        print(
            f"  site {site}: {exact:.6f}, off by {off[-1][0]:.1e}, {off[-1][1]:.1e}, said {cv.error[site]:.1e}",
            flush=True,
        )
    worst = np.max(off, axis=0)
    print(
        f"20 sites against refits from scratch: off by at most {worst[0]:.1e}, of rtol=0.001 {worst[1]:.1e}"
    )


def groups():
    y, edges, exposure = tracts()
    for structure in ("bym2", "leroux", "matern"):
        fit = lo.fit(
            lo.GaussianField(y, edges, exposure=exposure, structure=structure), num_starts=1
        )
        plan, told = clocked(lambda fit=fit: lo.diagnostics.auto_groups(fit, 10))
        print(f"{structure}: groups of ten in {told}")
        for name, of in (("one site", lo.leave_one_out(len(y))), ("its group", plan)):
            cv, told = clocked(
                lambda fit=fit, of=of: lo.cross_validate(fit, of, strategy=lo.NewtonStep(), audit=0)
            )
            print(f"  {name} left out: {cv.mean:.4f}, {told}", flush=True)


def ridge() -> None:
    """Leave-one-out predictions of ridge regression, α = 1."""
    X, y = squared_data(200, 10)
    design, penalty, truth = np.c_[X, np.ones(200)], np.diag(np.r_[np.ones(10), 0.0]), np.empty(200)
    for i in range(200):
        A, b = np.delete(design, i, 0), np.delete(y, i)
        truth[i] = design[i] @ np.linalg.solve(A.T @ A + penalty, A.T @ b)
    rows = []
    squared_fit = lambda X, y: lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0)))
    for name, fit in (
        ("lo.fit", squared_fit(X, y)),
        ("lo.from_sklearn", lo.from_sklearn(Ridge(1.0).fit(X, y), X, y)),
    ):
        for refit in (lo.NewtonStep(), lo.Exact(), lo.Certified()):
            off = (
                abs(lo.cross_predict(fit, lo.leave_one_out(), strategy=refit) - truth).max()
                / abs(truth).max()
            )
            rows.append(
                {"fit": name, "refit": type(refit).__name__, "relative error": off, "target": 1e-12}
            )
    show(
        "ridge: leave-one-out predictions against refits by numpy.linalg.solve, n = 200, p = 10",
        rows,
    )


def philadelphia_tracts() -> None:
    """Every tract left out, and some again from scratch."""
    data = tracts()
    against_scratch(*left_out("Philadelphia", *data), *data)


PARTS = {
    "ridge": ridge,
    "bounds": bounds,
    "rounded": rounded,
    "smooth": smooth,
    "nested": nested,
    "philadelphia": philadelphia_tracts,
    "cells": lambda: left_out("3,000 cells", *cells(), num_starts=1),
    "groups": groups,
}

if __name__ == "__main__":
    main(PARTS, __doc__, problems=40)
