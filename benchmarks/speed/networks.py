"""Folds of small neural networks, users' own objectives, against L-BFGS from the fit.

    OPENBLAS_NUM_THREADS=1 python benchmarks/speed/networks.py [folds] [--sample 12]

One hidden layer of tanh, squared loss, a ridge on all weights, 2,000 rows, 100 folds: 11 inputs x
32 units (417 parameters, ridge 1) and 100 x 20 (2,041, ridge 16: with 1 they interpolate the rows,
and descents end at saddles). L-BFGS is SciPy's, of F by JAX, in θ or in u, H = L Lᵀ, u = Lᵀ(θ −
θ̂), the opponent an expert would write; it goes down some of the folds. Errors (*off*, means) are
of a fold's summed loss, against where L-BFGS in u goes on to from there until no slope is above
10⁻¹⁰. It is stopped, in hindsight, at the largest slope of 10⁻¹, 10⁻¹·⁵, … of its first at which it
is no further off than `Certified`. Minima are those it reaches, beside that of `Certified`. Seconds
are of the processor, a fold.
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

ROWS = 2000
SHARES = 10.0 ** -np.arange(1, 8.5, 0.5)
NETWORKS = ((11, 32, 1.0), (100, 20, 16.0))
# and how many moves it remembers
OPPONENTS = (("in u", 20), ("in u", 100), ("in θ", 20), ("in θ", 100))
END = {"ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000}


def network(theta: dict, row: dict) -> jax.Array:
    hidden = jnp.tanh(row["x"] @ theta["W"] + theta["b"])
    return 0.5 * (row["y"] - hidden @ theta["v"] - theta["c"]) ** 2


def fitted(inputs: int, hidden: int, ridge: float) -> lo.Fit:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, inputs))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(ROWS)
    start = {"W": rng.standard_normal((inputs, hidden)) / np.sqrt(inputs), "b": np.zeros(hidden)}
    start |= {"v": rng.standard_normal(hidden) / np.sqrt(hidden), "c": np.zeros(())}
    penalty = lambda theta: 0.5 * ridge * sum(jnp.sum(part**2) for part in theta.values())
    return lo.fit(lo.Separable(network, {"x": X, "y": y}, penalty, theta0=start), num_starts=1)


class Folds:
    """F of the folds of a plan in coordinates u, and their summed losses, compiled."""

    def __init__(self, fit: lo.Fit, plan: lo.Plan):
        objective, place = fit.objective, jax.flatten_util.ravel_pytree(fit.theta)[1]
        self.fit, self.plan = fit, plan
        self.F = jax.jit(jax.value_and_grad(lambda vector, w: objective.loss(place(vector), w)))
        every = jnp.ones(ROWS), jnp.arange(ROWS), jnp.ones(ROWS)
        self.each = jax.jit(lambda vector: objective.score(place(vector), *every))
        self.F(fit.vector, np.ones(ROWS))

    def look(self, fold: int, root: np.ndarray | None) -> Callable:
        """F by u, the displacement of θ uᵀ root, or by the displacement itself."""
        w = np.ones(ROWS)
        w[self.plan.index[self.plan.refit == fold]] = 0.0

        def look(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.F(self.fit.vector + (u if root is None else u @ root), w)
            return float(value), np.asarray(gradient) if root is None else root @ np.asarray(
                gradient
            )

        return look

    def loss(self, fold: int, vector: np.ndarray) -> float:
        return float(np.asarray(self.each(vector))[self.plan.index[self.plan.refit == fold]].sum())

    def polished(self, fold: int, vector: np.ndarray) -> tuple[float, float]:
        """F and the fold's loss at the minimum beside it."""
        root = np.asarray(self.fit.quadratic.root)
        start = (vector - self.fit.vector) @ np.asarray(self.fit.quadratic.factor)
        options = END | {"gtol": 1e-10, "maxcor": 100, "maxiter": 500}
        found = scipy.optimize.minimize(
            self.look(fold, root), start, jac=True, method="L-BFGS-B", options=options
        )
        return found.fun, self.loss(fold, self.fit.vector + found.x @ root)

    def descended(
        self, fold: int, root: np.ndarray | None, memory: int
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """By L-BFGS from θ̂: seconds to each share of the first slope, and where it was.

        The end, where it came no further.
        """
        look, first, seconds, places = self.look(fold, root), None, [], []

        def timed(u: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal first
            value, gradient = look(u)
            slope = np.abs(gradient).max()
            first = slope if first is None else first
            while len(places) < len(SHARES) and slope <= SHARES[len(places)] * first:
                seconds.append(time.process_time() - start)
                places.append(u.copy())
            return value, gradient

        start, origin = time.process_time(), np.zeros(self.fit.num_params)
        options = END | {"maxcor": memory, "gtol": SHARES[-1] * np.abs(look(origin)[1]).max()}
        end = scipy.optimize.minimize(timed, origin, jac=True, method="L-BFGS-B", options=options).x
        missing = len(SHARES) - len(places)
        seconds, places = (
            seconds + [time.process_time() - start] * missing,
            places + [end] * missing,
        )
        return np.array(seconds), [
            self.fit.vector + (u if root is None else u @ root) for u in places
        ]


def timed(fit: lo.Fit, plan: lo.Plan) -> tuple[float, lo.Estimate]:
    """Seconds a fold of `Certified`, and its estimate."""
    start = time.process_time()
    found = lo.cross_validate(fit, plan, strategy=lo.Certified(), audit=0)
    return (time.process_time() - start) / plan.num_refits, found


def reached(fit: lo.Fit, plan: lo.Plan) -> np.ndarray:
    """θ of its refits."""
    leaves = jax.tree.leaves(lo.fold_parameters(fit, plan, strategy=lo.Certified()))
    return np.concatenate([np.reshape(leaf, (plan.num_refits, -1)) for leaf in leaves], axis=1)


def compared(fit: lo.Fit, folds: int, sample: int) -> pd.DataFrame:
    plan = lo.kfold(ROWS, folds, rng=0)
    looked = np.linspace(0, folds - 1, min(sample, folds)).astype(int)
    some = plan.some(looked)
    table = [{"": "Certified, first call", "folds": folds, "seconds": timed(fit, plan)[0]}]
    table += [{"": "Certified, again", "folds": folds, "seconds": timed(fit, plan)[0]}]
    (seconds, found), theta = timed(fit, some), reached(fit, some)
    with jax.enable_x64(True):
        at = Folds(fit, plan)
        minimum, truth = np.transpose(
            [at.polished(k, vector) for k, vector in zip(looked, theta, strict=True)]
        )
        off = np.abs(np.bincount(some.refit, found.losses) - truth)
        mine = {"": "Certified, again", "folds": len(looked), "seconds": seconds, "off": off.mean()}
        table.append(mine | {"within ±": float((off <= found.error).mean())})
        for where, memory in OPPONENTS:
            row = {"": f"L-BFGS {where}, {memory} moves", "folds": len(looked)}
            row |= opponent(
                at,
                looked,
                np.asarray(fit.quadratic.root) if where == "in u" else None,
                memory,
                off.mean(),
                minimum,
            )
            table.append(
                row
                | {
                    "times slower": row["seconds"] / seconds,
                    "target": 1 if where == "in u" else np.nan,
                }
            )
    return pd.DataFrame(table)


def opponent(
    at: Folds,
    looked: np.ndarray,
    root: np.ndarray | None,
    memory: int,
    enough: float,
    minimum: np.ndarray,
) -> dict[str, float]:
    """L-BFGS stopped where its mean error is `enough`."""
    seconds, errors, apart = [], [], []
    for fold, other in zip(looked, minimum, strict=True):
        taken, places = at.descended(fold, root, memory)
        value, truth = at.polished(fold, places[-1])
        seconds.append(taken)
        errors.append([abs(at.loss(fold, place) - truth) for place in places])
        apart.append(value - other)
    mean = np.mean(errors, axis=0)
    stop = int(np.argmax(mean <= enough)) if (mean <= enough).any() else len(SHARES) - 1
    row = {"seconds": np.mean(seconds, axis=0)[stop], "off": mean[stop], "stopped at": SHARES[stop]}
    return row | {
        "lower minima": np.sum(np.array(apart) < -1e-6),
        "higher": np.sum(np.array(apart) > 1e-6),
    }


def main(folds: int, sample: int) -> None:
    for inputs, hidden, ridge in NETWORKS:
        start = time.process_time()
        fit = fitted(inputs, hidden, ridge)
        seconds = time.process_time() - start
        print(
            f"\n{fit.num_params} parameters, ridge {ridge:g}, F = {fit.value:.4g}, fitted in {seconds:.3g} s"
        )
        print(compared(fit, folds, sample).to_string(index=False, na_rep=""), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folds", nargs="?", type=int, default=100)
    parser.add_argument("--sample", type=int, default=12)
    pd.set_option(
        "display.width", 200, "display.max_columns", 30, "display.float_format", "{:.3g}".format
    )
    main(**vars(parser.parse_args()))
