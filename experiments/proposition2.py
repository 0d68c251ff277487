"""Proposition 2 of the first source document with its constants computed, beside the true errors of
inexact fits.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), section 4 and appendix
K. The infinitesimal jackknife from Θ, somewhere on the way to the fit Θ̂, is held to miss
cross-validation by at most C ‖Θ − Θ̂‖ + ε_IJ, with

    C = L_ℓ (1 + L_g/λ + L_H mean_o ‖g_o(Θ̂)‖),      g_o = Σ_{t∈o} ∂²F/∂Θ∂w_t,

λ the least eigenvalue of ∇²F, L_H the Lipschitz constant of its inverse, L_g that of g_o, L_ℓ that
of a fold's loss, on a ball around Θ̂ that holds Θ. Here L_g is that of the whole sum g_o, which the
proof needs: the document's, of a single g_t, would have to be taken |o| times. L_ℓ has to hold
where the jackknife lands too, which may be outside of the ball.

    LEAVEOUT_DATA=… python experiments/proposition2.py [logistic counts] [--out out]
                                                              [--quick] [--save] [--afresh]

logistic
569 tumours, 31 coefficients, ridge penalty, every row left out: constants by inequalities that hold
on the whole
            ball, so the bound is proved
counts
the event counts of `hmm_dodgers.py`, ten blocks of 200 of 10,000 steps, eleven parameters
            The constants are the largest at five places (Θ̂, Θ, the middle, two at random on the
            sphere), by differences, L_ℓ also where the jackknife lands: they may be too small, so
            the bound is an estimate.

"By fold" is the same inequality with each fold's own L_ℓ and L_g in place of the largest.
"""

import argparse
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import saved
from hmm_dodgers import SCHEMES, fold_weights, model, raveled, stops, subset
from scipy.optimize import minimize

import leaveout as lo
from leaveout.objectives.objective import unflatten

Vector = np.ndarray
STEP = 1e-5  # of central differences in parameters
WEIGHT_STEP = 1e-3  # and in weights


class Constants(NamedTuple):
    """Of a ball: λ, L_H, and for each fold L_g, L_ℓ and ‖g_o(Θ̂)‖."""

    least: float
    inverse: float
    moves: Vector
    losses: Vector
    slopes: Vector

    def printed(self) -> float:
        return self.losses.max() * (
            1 + self.moves.max() / self.least + self.inverse * self.slopes.mean()
        )

    def by_fold(self) -> float:
        return float(
            np.mean(self.losses * (1 + self.moves / self.least + self.inverse * self.slopes))
        )


def row(
    what: str,
    step: int,
    away: float,
    found: Constants,
    jackknife: float,
    optimum: float,
    exact: float,
) -> dict[str, Any]:
    """One stop; without positive λ the assumption fails and there is no bound."""
    off, good = abs(optimum - exact), found.least > 0
    line = {
        "problem": what,
        "step": step,
        "‖Θ − Θ̂‖": away,
        "λ": found.least,
        "L_ℓ": found.losses.max(),
    }
    line |= {"L_g": found.moves.max(), "L_H": found.inverse, "mean ‖g‖": found.slopes.mean()}
    line |= {
        "C": found.printed() if good else np.nan,
        "C by fold": found.by_fold() if good else np.nan,
    }
    line |= {"bound": line["C"] * away + off, "bound by fold": line["C by fold"] * away + off}
    return line | {"true error": abs(jackknife - exact), "ε_IJ": off, "exact loss": exact}


# constants that are proved


def logistic() -> list[dict[str, Any]]:
    """|ℓ′| ≤ 1, 0 ≤ ℓ″ ≤ 1/4 and |ℓ‴| ≤ 1/(6√3) of the logistic loss, and ℓ″ at its least within
    the ball.
    """
    X, y = lo.datasets.breast_cancer()
    X = np.asarray(X)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(0)) / X.std(0)])
    n, p = X.shape
    curvature = lambda eta: 1 / (2 + 2 * np.cosh(eta))
    loss = lambda eta, y: np.logaddexp(0, eta) - y * eta
    gradient = lambda theta, w: X.T @ (w * (1 / (1 + np.exp(-X @ theta)) - y)) + theta
    hessian = lambda theta, w: (X.T * (w * curvature(X @ theta))) @ X + np.eye(p)

    def newton(theta: Vector, w: Vector) -> Vector:
        for _ in range(30):
            theta = theta - np.linalg.solve(hessian(theta, w), gradient(theta, w))
        return theta

    path: list[Vector] = []
    F = lambda theta: (loss(X @ theta, y).sum() + theta @ theta / 2, gradient(theta, np.ones(n)))
    options = {"gtol": 1e-10, "ftol": 0.0, "maxiter": 200}
    minimize(
        F,
        np.zeros(p),
        jac=True,
        method="L-BFGS-B",
        callback=lambda v: path.append(v.copy()),
        options=options,
    )
    optimum = newton(path[-1], np.ones(n))
    weights = 1 - np.eye(n)
    exact = np.mean(
        [loss(x @ newton(optimum, w), t) for x, t, w in zip(X, y, weights, strict=True)]
    )

    def jackknife(theta: Vector) -> float:
        residual = 1 / (1 + np.exp(-X @ theta)) - y
        moved = (
            X @ theta + np.sum(X * np.linalg.solve(hessian(theta, np.ones(n)), X.T).T, 1) * residual
        )
        return float(loss(moved, y).mean())

    norms = np.linalg.norm(X, axis=1)
    third = np.linalg.norm((X.T * norms) @ X, 2) / (6 * np.sqrt(3))
    slopes = norms * np.abs(1 / (1 + np.exp(-X @ optimum)) - y)
    rows = []
    for k in spread(path, optimum, 12):
        away = float(np.linalg.norm(path[k] - optimum))
        lowest = curvature(np.abs(X @ optimum) + away * norms)
        least = float(np.linalg.eigvalsh((X.T * lowest) @ X + np.eye(p))[0])
        found = Constants(least, third / least**2, norms**2 / 4, norms, slopes)
        rows.append(
            row("logistic", k + 1, away, found, jackknife(path[k]), jackknife(optimum), exact)
        )
    return rows


def spread(path: list[Vector], optimum: Vector, few: int) -> list[int]:
    """Stops whose distances from the fit are about evenly spaced on a log scale."""
    away = np.log(np.maximum(np.linalg.norm(np.stack(path) - optimum, axis=1), 1e-8))
    wanted = np.linspace(away.max(), away.min(), few)
    return sorted({int(np.argmin(np.abs(away - each))) for each in wanted})


# constants that are the largest of a few


class Problem:
    """The folds of a plan: their slopes, losses and Hessians as functions of raveled parameters."""

    def __init__(self, fit: lo.Fit, plan: lo.Plan):
        self.objective, self.like, self.optimum = fit.objective, fit.theta, raveled(fit.theta)
        self.index = plan.index.reshape(plan.num_refits, -1)
        self.weights = np.array([fold_weights(plan, fold) for fold in range(plan.num_refits)])
        seen = self.objective.units.observed
        # what is missing has no loss
        scored = np.ones(self.index.shape) if seen is None else seen[self.index]
        self.share = scored / scored.sum(1, keepdims=True)

    def hessian(self, v: Vector) -> Vector:
        ones = np.ones(self.objective.num_units)
        return np.asarray(self.objective.hessian(unflatten(v, self.like), ones))

    def slopes(self, v: Vector) -> Vector:
        """Σ ∂²F/∂Θ∂w of each fold, by differences in the weights."""
        left_out = WEIGHT_STEP * (1 - self.weights)
        sides = [
            self.objective.look(np.repeat(v[None], len(left_out), 0), 1 + sign * left_out)[1]
            for sign in (1, -1)
        ]
        return (sides[0] - sides[1]) / (2 * WEIGHT_STEP)

    def losses(self, places: Vector) -> Vector:
        """The mean held-out loss of each fold at a place of its own."""
        held = np.ones(self.index.shape, bool)
        losses = self.objective.losses(places, self.weights, self.index, held)
        return (np.where(self.share > 0, losses, 0.0) * self.share).sum(1)

    def loss_slopes(self, places: Vector) -> Vector:
        """Their gradients, by differences."""
        steps = STEP * np.eye(places.shape[1])
        sides = [[self.losses(places + sign * e) for e in steps] for sign in (1, -1)]
        return (np.array(sides[0]) - np.array(sides[1])).T / (2 * STEP)

    def jackknifed(self, v: Vector) -> Vector:
        """Where the jackknife from `v` lands, fold by fold."""
        return v + np.linalg.solve(self.hessian(v), self.slopes(v).T).T

    def jackknife(self, v: Vector) -> float:
        return float(np.mean(self.losses(self.jackknifed(v))))

    def constants(self, v: Vector, rng: np.random.Generator) -> Constants:
        away = np.linalg.norm(v - self.optimum)
        around = rng.standard_normal((2, len(v)))
        sphere = self.optimum + away * around / np.linalg.norm(around, axis=1, keepdims=True)
        each = [self.local(place) for place in (self.optimum, v, (v + self.optimum) / 2, *sphere)]
        least, inverse, moves, losses = zip(*each, strict=True)
        slopes = np.linalg.norm(self.slopes(self.optimum), axis=1)
        return Constants(min(least), max(inverse), np.max(moves, 0), np.max(losses, 0), slopes)

    def local(self, v: Vector) -> tuple[float, float, Vector, Vector]:
        """λ, L_H, and by fold L_g and L_ℓ at one place.

        Of L_H the norm of all derivatives as one matrix, which is no less.
        """
        hessian = self.hessian(v)
        least = float(np.linalg.eigvalsh(hessian)[0])
        moves, inverse = (
            np.zeros((len(v), *np.shape(self.slopes(v)))),
            np.zeros((len(v), len(v) ** 2)),
        )
        solve = np.linalg.inv(hessian)
        for k, e in enumerate(STEP * np.eye(len(v))):
            moves[k] = (self.slopes(v + e) - self.slopes(v - e)) / (2 * STEP)
            change = (self.hessian(v + e) - self.hessian(v - e)) / (2 * STEP)
            inverse[k] = (solve @ change @ solve).ravel()
        places = [np.broadcast_to(v, moves.shape[1:])] + ([self.jackknifed(v)] if least > 0 else [])
        losses = [np.linalg.norm(self.loss_slopes(place), axis=1) for place in places]
        return (
            least,
            np.linalg.norm(inverse, 2),
            np.linalg.norm(np.moveaxis(moves, 1, 0), 2, (1, 2)),
            np.max(losses, 0),
        )


def sampled(what: str, fit: lo.Fit, plan: lo.Plan, few: int) -> list[dict[str, Any]]:
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact())
    path, rng, rows = stops(fit), np.random.default_rng(0), []
    problem = Problem(fit, plan)
    optimum = problem.jackknife(problem.optimum)
    ours = lo.cross_validate(fit, plan, strategy=lo.InfinitesimalJackknife())
    print(
        f"{what}: the jackknife from Θ̂ by the library {by_fold(ours):.6f}, written out here {optimum:.6f}",
        flush=True,
    )
    vectors = [raveled(theta) for _, theta in path]
    for k in spread(vectors, problem.optimum, few):
        step, v = path[k][0], vectors[k]
        found = problem.constants(v, rng)
        away = float(np.linalg.norm(v - problem.optimum))
        rows.append(row(what, step, away, found, problem.jackknife(v), optimum, by_fold(exact)))
        print(
            pd.DataFrame(rows[-1:]).to_string(
                index=False, header=False, float_format="{:.3g}".format
            ),
            flush=True,
        )
    return rows


def by_fold(cv: lo.Estimate) -> float:
    return float(cv.table().groupby("refit")["loss"].mean().mean())


def counts() -> list[dict[str, Any]]:
    frame = subset("week 11")
    plan = SCHEMES["contiguous"](len(frame), 0.02, 10)
    return sampled("counts", lo.fit(model(frame)), plan, 3 if saved.QUICK else 12)


def picture(table: pd.DataFrame, file: Path) -> None:
    names = list(dict.fromkeys(table["problem"]))
    figure, axes = plt.subplots(
        1, len(names), figsize=(4 * len(names), 3.8), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names, strict=True):
        own = table[table["problem"] == name]
        for column, form in (
            ("bound", "C3s--"),
            ("bound by fold", "C1d--"),
            ("true error", "C0o-"),
        ):
            ax.plot(own["‖Θ − Θ̂‖"], own[column], form, ms=4, label=column)
        ax.axhline(own["ε_IJ"].iloc[0], color="0.5", lw=0.8, label="ε_IJ")
        ax.set(
            xscale="log",
            yscale="log",
            title=name,
            xlabel="‖Θ − Θ̂‖",
            ylabel="error of the mean held-out loss",
        )
        ax.invert_xaxis()
    axes[0, 0].legend(fontsize=8)
    saved.picture(figure, "proposition2")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {"logistic": logistic, "counts": counts}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="logistic counts; both by default")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true", help="counts: three stops")
    saved.add_option(parser)
    given = parser.parse_args()
    # that fits are not stationary is what this is about
    warnings.simplefilter("ignore", UserWarning)
    show = functools.partial(
        pd.DataFrame.to_string, index=False, float_format="{:.3g}".format, na_rep="none"
    )
    rows: list[dict[str, Any]] = []
    for part in given.parts or PARTS:
        rows += saved.part("proposition2", part, PARTS[part])
        table = pd.DataFrame(rows)
        print(show(table), flush=True)
        saved.save("proposition2", table)
        picture(table, given.out / "proposition2.png")


if __name__ == "__main__":
    main()
