"""Is the certificate honest? Reported against true error of the held-out loss, on problems built to break it.

True errors are against refits from scratch by another optimiser (SciPy's trust-exact or BFGS to the floor).
    python benchmarks/certificate.py [refits a problem]
"""

import functools
import sys
import warnings
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.optimize
from jax.flatten_util import ravel_pytree

import leaveout as lo


def problems() -> Iterator[tuple[str, Callable[[], lo.Fit], dict[str, lo.Plan]]]:
    """A name, a fit, and the plans to try on it."""

    def data(n, p, scale, seed, heavy=False):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n, p)) * (rng.standard_t(2, (n, 1)) if heavy else 1.0)
        eta = X @ rng.standard_normal(p) * scale / np.sqrt(p)
        return rng, X, eta

    def logit(n, p, scale, alpha, seed, **kind):
        rng, X, eta = data(n, p, scale, seed, **kind)
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
        return lo.GLM(X, y, "logistic", lo.penalties.Ridge(alpha))

    def plans(n, seed=0, k=12):
        labels = np.random.default_rng(seed).integers(0, k, n)
        return {"loo": lo.leave_one_out(n), "groups": lo.groups(labels), "bootstrap": lo.bootstrap(n, 12, seed=seed)}

    yield "logistic, easy", lambda: lo.fit(logit(300, 8, 1.0, 1.0, 0)), plans(300)
    yield "logistic, p = n/3", lambda: lo.fit(logit(240, 80, 2.0, 1.0, 1)), plans(240)
    yield "logistic, p > n/2", lambda: lo.fit(logit(150, 110, 2.0, 0.5, 2)), plans(150)
    yield "logistic, nearly separable", lambda: lo.fit(logit(200, 10, 8.0, 1e-2, 3)), plans(200)
    yield "logistic, heavy-tailed rows", lambda: lo.fit(logit(300, 10, 1.0, 1.0, 4, heavy=True)), plans(300)
    yield "logistic, not converged", lambda: _early(logit(300, 8, 1.0, 1.0, 5)), plans(300)

    def rare():
        rng, X, eta = data(300, 5, 1.0, 6)
        rare = np.zeros(300)
        rare[:25] = 1.0
        rare[280:282] = 1.0
        y = (rng.random(300) < 1 / (1 + np.exp(-eta - rare))).astype(float)
        return lo.fit(lo.GLM(np.c_[X, rare], y, "logistic", lo.penalties.Ridge(0.1)))

    rare_labels = np.r_[np.zeros(25, int), 1 + np.random.default_rng(0).integers(0, 12, 275)]
    yield "logistic, a fold with 93 % of a coefficient", rare, {"groups": lo.groups(rare_labels), "loo": lo.leave_one_out(300)}

    def poisson(seed=7):
        rng, X, eta = data(250, 6, 1.5, seed)
        return lo.fit(lo.GLM(X, rng.poisson(np.exp(eta)).astype(float), "poisson", lo.penalties.Ridge(0.3)))

    yield "poisson", poisson, plans(250)

    def gamma():
        rng, X, eta = data(200, 6, 1.0, 8)
        offset, weight = rng.standard_normal(200) / 3, rng.gamma(2.0, 0.5, 200)
        y = rng.gamma(2.0, np.exp(eta + offset) / 2.0)
        return lo.fit(lo.GLM(X, y, lo.losses.Gamma(2.0), lo.penalties.Ridge(0.3), sample_weight=weight, offset=offset))

    yield "gamma, weights and offset", gamma, plans(200)

    def huber(loss):
        rng, X, eta = data(200, 6, 1.0, 9)
        return lo.fit(lo.GLM(X, eta + rng.standard_t(1.5, 200), loss, lo.penalties.Ridge(0.1)))

    yield "huber", lambda: huber("huber"), plans(200)
    yield "pseudo-huber", lambda: huber("pseudo_huber"), plans(200)

    def lasso():
        rng, X, _ = data(200, 15, 1.0, 10)
        y = (rng.random(200) < 1 / (1 + np.exp(-3 * X[:, 0]))).astype(float)
        return lo.fit(lo.GLM(X, y, "logistic", lo.penalties.PseudoHuber(200.0, 0.02)))

    yield "logistic, penalty not quadratic", lasso, plans(200)

    def link(name):
        rng, X, eta = data(200, 5, 1.5, 11)
        return lo.fit(lo.GLM(X, (rng.random(200) < 1 / (1 + np.exp(-eta))).astype(float), name, lo.penalties.Ridge(0.1)))

    yield "probit", lambda: link("probit"), plans(200)
    yield "cloglog", lambda: link("cloglog"), plans(200)

    def multinomial():
        rng, X, eta = data(200, 5, 1.0, 12)
        y = np.argmax(np.c_[eta, X[:, 0], X[:, 1]] + rng.gumbel(size=(200, 3)), axis=1)
        return lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(0.5)))

    yield "multinomial", multinomial, plans(200)

    def averaged():
        rng, X, eta = data(200, 5, 1.0, 13)
        return lo.fit(lo.GLM(X, rng.poisson(np.exp(eta)).astype(float), "poisson", lo.per_weight(lo.penalties.Ridge(0.5))))

    yield "poisson, mean loss", averaged, plans(200)
    sys.path.insert(0, "tests")
    from helpers import toy_hmm

    hmm = {"blocks": lo.blocks(60, 5), "single": lo.leave_one_out(60), "subsets": lo.random_subsets(60, 0.1, 20, seed=1)}
    yield "toy hidden Markov model", lambda: lo.fit(toy_hmm()), hmm


def _early(objective):
    start = lo.fit(objective).parameters
    rng = np.random.default_rng(0)
    moved = {k: v + 0.03 * rng.standard_normal(np.shape(v)) for k, v in start.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lo.anchor(objective, moved, throw=False)


def exact_losses(fit: lo.Fit, plan: lo.Plan, refits: np.ndarray) -> list[np.ndarray | None]:
    """Held-out losses of refits by SciPy, from θ̂, on F(·, w) itself; None where SciPy finds no minimiser."""
    with jax.enable_x64(True):
        start, unravel = ravel_pytree(jax.tree.map(jnp.asarray, fit.theta))
        F = jax.jit(lambda v, w: fit.objective.loss(unravel(v), w))
        gradient, hessian = jax.jit(jax.grad(F)), jax.jit(lambda v, w: fit.objective.hessian(unravel(v), w))
        score = jax.jit(lambda v, w, i, h: fit.objective.score(unravel(v), w, i, h))
        null_space = np.asarray(fit.objective.parameters.symmetries(fit.theta))
        null_space = null_space.T @ null_space
        out: list[np.ndarray | None] = []
        for k in refits:
            mine = slice(plan.indptr[k], plan.indptr[k + 1])
            w = np.ones(plan.num_units)
            w[plan.index[mine]] = plan.weight[mine]
            as_numpy = functools.partial(_as_numpy, w)
            found = scipy.optimize.minimize(
                as_numpy(F), start, jac=as_numpy(gradient), hess=as_numpy(hessian), method="trust-exact", options={"gtol": 1e-9}
            )
            v = found.x
            for _ in range(8):  # Newton to the floor, from SciPy's point
                v = v - np.linalg.solve(np.asarray(hessian(v, w)) + null_space, np.asarray(gradient(v, w)))
            fine = np.linalg.norm(gradient(v, w)) < 1e-6 and abs(v - found.x).max() < 0.1
            held = plan.held[mine]
            out.append(np.asarray(score(v, w, plan.index[mine], held.astype(float)))[held] if fine else None)
        return out


def _as_numpy(w: np.ndarray, function: Callable) -> Callable:
    return lambda v: np.asarray(function(v, w))


def study(refits: int = 50) -> pd.DataFrame:
    rows = []
    for name, make, plans in problems():
        fit = make()
        for plan_name, plan in plans.items():
            chosen = np.sort(np.random.default_rng(1).permutation(plan.num_refits)[:refits])
            truth = exact_losses(fit, plan, chosen)
            for refit in (lo.Certified(), lo.NewtonStep(), lo.InfinitesimalJackknife(), lo.NoUpdate(), lo.Exact()):
                estimate = lo.cross_validate(fit, plan, refit)
                flagged = set(estimate.flagged())
                for k, exact in zip(chosen, truth, strict=True):
                    if exact is None:
                        continue
                    mine = slice(plan.indptr[k], plan.indptr[k + 1])
                    held = plan.held[mine]
                    losses = estimate.losses[mine][held]
                    rows.append(
                        {
                            "problem": name,
                            "plan": plan_name,
                            "refit": type(refit).__name__,
                            "true": np.abs(losses - exact).sum(),
                            "true_sum": abs(losses.sum() - exact.sum()),
                            "reported": estimate.error[k],
                            "allowed": estimate.scale * held.sum(),
                            "flagged": k in flagged,
                            "result": int(estimate.result[k]),
                        }
                    )
    return pd.DataFrame(rows)


FLOOR = 1e-9  # of a fold's loss: below it both numbers are rounding


def summarise(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Violations (true above reported) and their size, reported over true, and whether `flagged` finds the bad ones."""
    table = table[np.isfinite(table.true)].copy()
    reported = table.reported.clip(lower=FLOOR)
    table["v"] = table.true_sum / reported
    table["violated"] = table.v > 1
    table["ratio"] = np.where(table.true_sum > FLOOR, reported / table.true_sum.clip(lower=1e-300), np.nan)
    table["in_se"] = table.true_sum / table.allowed
    table["bad"] = table.in_se > 1
    table["recall"] = np.where(table.bad, table.flagged, np.nan)
    columns = {"violated": "mean", "v": "max", "ratio": "median", "in_se": "median", "bad": "sum", "recall": "mean"}
    out = table.groupby(by).agg(columns)
    out.insert(0, "folds", table.groupby(by).size())
    names = {
        "v": "worst",
        "ratio": "median reported/true",
        "in_se": "median true/SE",
        "bad": "above 1 SE",
        "recall": "flagged of these",
    }
    return out.rename(columns=names)


if __name__ == "__main__":
    pd.set_option("display.width", 200, "display.max_rows", 500, "display.float_format", "{:.3g}".format)
    table = study(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    print(summarise(table[table.refit == "Certified"], ["problem", "plan"]).to_string(), end="\n\n")
    print(summarise(table, ["refit"]).to_string())
    folds = len(table) // table.refit.nunique()
    print(f"{len(table.problem.unique())} kinds of problem, {folds} folds, each under {len(table.refit.unique())} strategies")
