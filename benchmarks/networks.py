"""Folds of small neural networks, users' own objectives, against L-BFGS from the fit: compiled, in its whitened coordinates.

    python benchmarks/networks.py [folds]

One hidden layer of tanh, squared loss, a ridge on all weights: 11 inputs x 32 units (417 parameters) and 100 x 20 (2,041),
2,000 rows, 100 folds. L-BFGS is SciPy's, of F by JAX in u, H = L Lᵀ, u = Lᵀ(θ − θ̂): the opponent an expert would write. It
stops at the largest slope of 10⁻¹, 10⁻², … of its first at which its losses are as near to those of `Exact` as those of
`Certified`. Seconds of processor time, after a warm-up; *off* is the mean distance of a fold's summed loss from `Exact`.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.optimize

import leaveout as lo
from leaveout.refit import AbstractRefit

ROWS = 2000


def network(theta: dict, row: dict) -> jax.Array:
    hidden = jnp.tanh(row["x"] @ theta["W"] + theta["b"])
    return 0.5 * (row["y"] - hidden @ theta["v"] - theta["c"]) ** 2


def fitted(inputs: int, hidden: int) -> lo.Fit:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, inputs))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(ROWS)
    start = {"W": rng.standard_normal((inputs, hidden)) / np.sqrt(inputs), "b": np.zeros(hidden)}
    start |= {"v": rng.standard_normal(hidden) / np.sqrt(hidden), "c": np.zeros(())}
    ridge = lambda theta: 0.5 * sum(jnp.sum(part**2) for part in theta.values())
    return lo.fit(lo.Separable(network, {"x": X, "y": y}, ridge, theta0=start), num_starts=1)


def opponent(fit: lo.Fit, plan: lo.Plan, share: float) -> np.ndarray:
    """Every fold's summed loss by L-BFGS down to that share of the first slope."""
    objective, root = fit.objective, np.asarray(fit.root)
    place = lambda vector: jax.flatten_util.ravel_pytree(fit.theta)[1](vector)
    F = jax.jit(jax.value_and_grad(lambda vector, w: objective.loss(place(vector), w)))
    each = jax.jit(lambda vector: objective.score(place(vector), jnp.ones(ROWS), jnp.arange(ROWS), jnp.ones(ROWS)))
    out = np.empty(plan.num_refits)
    for fold in range(plan.num_refits):
        held = plan.index[plan.refit == fold]
        w = np.ones(ROWS)
        w[held] = 0.0

        def look(u: np.ndarray, w: np.ndarray = w) -> tuple[float, np.ndarray]:
            value, gradient = F(fit.vector + u @ root, w)
            return float(value), root @ np.asarray(gradient)

        first = np.abs(look(np.zeros(len(root)))[1]).max()
        options = {"gtol": share * first, "ftol": 1e-15, "maxiter": 2000, "maxcor": 20}
        u = scipy.optimize.minimize(look, np.zeros(len(root)), jac=True, method="L-BFGS-B", options=options).x
        out[fold] = np.asarray(each(fit.vector + u @ root))[held].sum()
    return out


def summed(fit: lo.Fit, plan: lo.Plan, refit: AbstractRefit) -> np.ndarray:
    """The same by ours."""
    return np.bincount(plan.refit, lo.cross_validate(fit, plan, refit, audit=0).losses)


def timed(run: Callable[..., np.ndarray], *args: object) -> tuple[float, np.ndarray]:
    start = time.process_time()
    found = run(*args)
    return time.process_time() - start, found


def main(folds: int) -> None:
    table = []
    for inputs, hidden in ((11, 32), (100, 20)):
        fit, plan = fitted(inputs, hidden), lo.kfold(ROWS, folds, seed=0)
        truth = summed(fit, plan, lo.Exact())
        row = {"parameters": fit.num_params, "folds": folds}
        row["first call"], _ = timed(summed, fit, plan, lo.Certified())
        row["Certified"], ours = timed(summed, fit, plan, lo.Certified())
        row["off"] = np.abs(ours - truth).mean()
        with jax.enable_x64(True):
            opponent(fit, lo.kfold(ROWS, folds, seed=0).some(np.arange(1)), 0.5)
            for share in 10.0 ** -np.arange(1, 9):
                row["L-BFGS"], theirs = timed(opponent, fit, plan, share)
                row["its off"] = np.abs(theirs - truth).mean()
                if row["its off"] <= row["off"]:
                    break
        table.append(row | {"times faster": row["L-BFGS"] / row["Certified"], "target": 1})
        print(pd.DataFrame(table).to_string(index=False), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folds", nargs="?", type=int, default=100)
    pd.set_option("display.width", 200, "display.max_columns", 30, "display.float_format", "{:.3g}".format)
    main(parser.parse_args().folds)
