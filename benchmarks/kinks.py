"""Penalties with kinks and bounds: a lasso's path beside scikit-learn's LassoCV(cv=5), and what is proved against refits.

    python benchmarks/kinks.py [path|bounds|rounded ...] [--rows 10000 --columns 1000 --alphas 100] [--exact 40] [--problems 40]

path    processor time of both on the same cores, the alpha that each chooses, and that of exact leave-one-out on some random
        rows at the alphas around ours, by refits of scikit-learn's Lasso
        and losses that `lo.path` calls proved against these refits: how many are off by more than was said
bounds  coefficients that are not negative, beside a ridge or none, rows of weights whose logarithms have a standard deviation
        of 2: every row left out, and five folds, against refits by SciPy's nnls (squares) and L-BFGS-B (logistic, its losses
        to 1e-6)
rounded losses with rounded kinks under such weights, every row left out, against SciPy's BFGS (losses to 1e-5)
"""

import argparse
import time
import warnings

import numpy as np
import scipy
from sklearn.linear_model import Lasso, LassoCV

import leaveout as lo


def problem(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, coef = rng.standard_normal((n, p)), np.zeros(p)
    coef[:50] = 0.2 * rng.standard_normal(50)
    return X, X @ coef + rng.standard_normal(n)


def timed(run):
    start = time.process_time()
    return run(), time.process_time() - start


def exact(X: np.ndarray, y: np.ndarray, alpha: float, rows: np.ndarray) -> np.ndarray:
    """Held-out losses of rows by refits from the whole fit."""
    n, losses = len(y), []
    host = Lasso(alpha / n, tol=1e-10, max_iter=10**5, warm_start=True).fit(X, y)
    start = host.coef_.copy()
    for i in rows:
        keep = np.arange(n) != i
        host.coef_ = start.copy()
        host.set_params(alpha=alpha / (n - 1)).fit(X[keep], y[keep])
        losses.append(0.5 * (y[i] - host.predict(X[[i]])[0]) ** 2)
    return np.array(losses)


def not_negative(X: np.ndarray, y: np.ndarray, w: np.ndarray, ridge: float, loss: str) -> tuple[np.ndarray, float]:
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
    found = scipy.optimize.minimize(F, np.zeros(p + 1), jac=True, bounds=limits, method="L-BFGS-B", options=options).x
    return found[:p] / scale, found[p]


def bounds(problems: int) -> None:
    for loss, slack in (("squared", 1e-9), ("logistic", 1e-6)):
        folds, proved, wrong, moved, worst = 0, 0, 0, 0, 0.0
        for seed in range(problems):
            rng = np.random.default_rng(seed)
            n, p, ridge = int(rng.integers(30, 80)), int(rng.integers(4, 16)), float(rng.choice([0.0, 0.3, 5.0]))
            ridge = max(ridge, 0.3 * (loss == "logistic"))
            X = rng.standard_normal((n, p)) + rng.choice([0.0, 1.0]) * rng.standard_normal((n, 1))
            eta = X @ rng.standard_normal(p) / 2
            y = (eta + rng.logistic(size=n) > 0).astype(float) if loss == "logistic" else eta + rng.standard_normal(n)
            w = np.exp(2 * rng.standard_normal(n))
            model = lo.GLM(X, y, loss, lo.penalties.Ridge(ridge) + lo.penalties.Box(), sample_weight=w)
            fit = lo.fit(model)
            for plan in (lo.leave_one_out(n), lo.kfold(n, 5, seed=seed)):
                found = lo.cross_validate(fit, plan)
                for k, own in enumerate(plan.matrix()):
                    coef, intercept = not_negative(X, y, w * own, ridge, loss)
                    mine = slice(plan.indptr[k], plan.indptr[k + 1])
                    at, eta = plan.index[mine], X[plan.index[mine]] @ coef + intercept
                    told = 0.5 * (y[at] - eta) ** 2 if loss == "squared" else np.logaddexp(0, eta) - y[at] * eta
                    off = np.abs(found.losses[mine] - told).sum()
                    folds, proved = folds + 1, proved + int(found.proved[k])
                    wrong += int(found.proved[k] and off > found.error[k] + slack * (1 + told.sum()))
                    moved += int(np.any((coef > 1e-9) != (fit.parameters["coef"] > 0)))
                    worst = max(worst, off)
        print(
            f"not negative, {loss}: {folds} folds of {problems} problems, in {moved} of them others at zero than in the "
            f"fit, {proved} proved, {wrong} of these off by more than was said, largest difference {worst:.1g}"
        )


def smooth(kind: str, width: float, eta: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
            n, p, width, ridge = 40, int(rng.integers(2, 8)), float(rng.choice([0.03, 0.1])), float(rng.choice([0.1, 1.0]))
            X = rng.standard_normal((n, p))
            y = X @ rng.standard_normal(p) + rng.standard_normal(n)
            y, w = np.sign(y) if kind == "hinge" else y, np.exp(2 * rng.standard_normal(n))
            fit = lo.fit(lo.GLM(X, y, loss(width), lo.penalties.Ridge(ridge), sample_weight=w, intercept=False))
            found = lo.cross_validate(fit, lo.leave_one_out(n))
            for i in range(n):
                own = np.where(np.arange(n) == i, 0.0, w)

                def F(v: np.ndarray, own=own, X=X, y=y, width=width, ridge=ridge, kind=kind) -> tuple[float, np.ndarray]:
                    value, slope = smooth(kind, width, X @ v, y)
                    return own @ value + 0.5 * ridge * v @ v, X.T @ (own * slope) + ridge * v

                theta = scipy.optimize.minimize(F, np.zeros(p), jac=True, method="BFGS", options={"gtol": 1e-7}).x
                off = abs(found.losses[i] - smooth(kind, width, X[i] @ theta, y[i])[0])
                folds, proved, worst = folds + 1, proved + int(found.proved[i]), max(worst, off)
                wrong += int(found.proved[i] and off > found.error[i] + 1e-5)
        print(
            f"rounded, {kind}: {folds} folds of {problems} problems, {proved} proved, {wrong} of these off by more than was "
            f"said, largest difference {worst:.1g}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["path", "bounds", "rounded"])
    for name, default in (("rows", 10_000), ("columns", 1_000), ("alphas", 100), ("exact", 40), ("problems", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if "bounds" in asked.parts:
        bounds(asked.problems)
    if "rounded" in asked.parts:
        rounded(asked.problems)
    if "path" in asked.parts:
        path(asked)


def path(asked: argparse.Namespace) -> None:
    X, y = problem(asked.rows, asked.columns)
    theirs, seconds = timed(lambda: LassoCV(cv=5, alphas=asked.alphas).fit(X, y))
    alphas = theirs.alphas_ * asked.rows
    print(f"LassoCV(cv=5): {seconds:.1f} s of processor time, alpha {theirs.alpha_ * asked.rows:.4g}")
    model = lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0))
    path, seconds = timed(lambda: lo.path(model, alphas, lo.leave_one_out(asked.rows)))
    best = int(np.flatnonzero(path.values == path.best.value)[0])
    print(f"lo.path, leave-one-out: {seconds:.1f} s of processor time, alpha {path.best.value:.4g}")
    rows = np.sort(np.random.default_rng(1).choice(asked.rows, min(asked.exact, asked.rows), replace=False))
    around, total, wrong, proved = range(max(best - 2, 0), min(best + 3, len(alphas))), [], 0, 0
    for k in around:
        found, told = path.points[k].estimate, exact(X, y, alphas[k], rows)
        off, known = np.abs(found.losses[rows] - told), found.proved[rows]
        wrong, proved = wrong + int(np.sum(off[known] > found.error[rows][known] + 1e-6)), proved + int(known.sum())
        total.append(np.mean(told - found.losses[rows]) + found.mean)
        print(
            f"  alpha {alphas[k]:.4g}: mean {found.mean:.6f}, by the refits {total[-1]:.6f}, said to be off by "
            f"{found.approximation_error:.1g} at most; estimated losses within their error: "
            f"{np.mean(off[~known] <= found.error[rows][~known] + 1e-6) if (~known).any() else 1:.0%}"
        )
    print(f"exact leave-one-out, by the differences of {len(rows)} rows: alpha {alphas[around[int(np.argmin(total))]]:.4g}")
    print(f"proved: {proved} losses, {wrong} off by more than was said")


if __name__ == "__main__":
    main()
