"""The authors' demonstration of the first source document, by their program and by ours.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020). Their public code,
github.com/SoumyaTGhosh/structured-infinitesimal-jackknife, draws 1,500 steps of two Gaussian states
in two channels with unit covariance, fits means under N(0, I) and transitions under Dirichlet(1.1)
in log-odds coordinates, and leaves a tenth out, at random or in a block.

    git clone https://github.com/SoumyaTGhosh/structured-infinitesimal-jackknife out/structij
    python experiments/authors_toy.py [--code out/structij] [--quick] [--save] [--afresh]

It needs autograd and scikit-learn. Their data, folds, fit, jackknife and refit are run as they
stand, but for `np.int`, which NumPy no longer has. Ours takes the same data and folds.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import saved

import leaveout as lo

STATES, CHANNELS, SHARE = 2, 2, 10
STRATEGIES = {
    "no update": lo.NoUpdate(),
    "IJ": lo.InfinitesimalJackknife(),
    "exact": lo.Exact(),
}


class Refits(NamedTuple):
    """Parameters and held-out losses by way, and seconds of the fit and of each way."""

    parameters: dict[str, np.ndarray]
    losses: dict[str, np.ndarray]
    seconds: dict[str, float]


def timed(compute: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = compute()
    return time.perf_counter() - start, value


def in_order(initial: np.ndarray, transition: np.ndarray, means: np.ndarray) -> np.ndarray:
    """All probabilities and means, states in the order of their first mean."""
    order = np.argsort(means[:, 0])
    return np.concatenate(
        [initial[order], transition[np.ix_(order, order)].ravel(), means[order].ravel()]
    )


def by_their_program(model: Any, lwcv: Any, length: int, fold: np.ndarray) -> Refits:
    def natural(packed: np.ndarray) -> np.ndarray:
        parameters = model.unpack_params(packed)
        return in_order(parameters["pi0"], parameters["A"], parameters["phi"].T)

    ones, weights = np.ones(length), np.ones(length)
    weights[fold] = 0
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "no update": lambda theta: theta,
        "IJ": lambda theta: lwcv(model, theta, length, fold).compute_params_acv(),
        "exact": lambda theta: model.fit(weights, init_params=theta),
    }
    seconds, parameters, losses = {}, {}, {}
    seconds["fit"], theta = timed(lambda: model.fit(ones))
    for name, way in ways.items():
        seconds[name], refit = timed(lambda way=way: way(theta))
        parameters[name] = natural(refit)
        losses[name] = model.loss_at_missing_timesteps(weights, refit)
    return Refits(parameters, losses, seconds)


def by_ours(x: np.ndarray, fold: np.ndarray) -> Refits:
    fold = np.sort(fold)
    plan = lo.from_splits([(np.setdiff1d(np.arange(len(x)), fold), fold)], len(x))
    model = lo.HMM(
        x,
        lo.emissions.Autoregressive(0, prior={"bias": (0, 1)}),
        STATES,
        prior=lo.developer.models.Dirichlet(1.1, 1.1),
    )
    seconds, parameters, losses = {}, {}, {}
    seconds["fit"], fit = timed(lambda: lo.fit(model))
    for name, strategy in STRATEGIES.items():
        lo.cross_validate(fit, plan, strategy=strategy)  # compiles
        seconds[name], estimate = timed(
            lambda strategy=strategy: lo.cross_validate(fit, plan, strategy=strategy)
        )
        refit = lo.fold_parameters(fit, plan, strategy=strategy)
        values = (np.asarray(refit[key])[0] for key in ("initial", "transition", "bias"))
        parameters[name] = in_order(*values)
        losses[name] = estimate.losses - 0.5 * CHANNELS * np.log(2 * np.pi)  # theirs have none
    return Refits(parameters, losses, seconds)


def compared(code: Path, length: int) -> list[dict[str, Any]]:
    vars(np)["int"] = int
    sys.path.insert(0, str(code))
    from structij.lwcv import LWCV
    from structij.models.hidden_markov_model import HMM
    from structij.utils import genSyntheticDataset, get_indices_in_held_out_fold

    rows = []
    for folds in ("i.i.d.", "contiguous"):
        x = genSyntheticDataset(K=STATES, T=length, N=1, D=CHANNELS)[0]
        fold = get_indices_in_held_out_fold(length, SHARE, folds == "contiguous")
        theirs = by_their_program(HMM(x, {"K": STATES, "precision": None}), LWCV, length, fold)
        ours = by_ours(x[0], fold)
        exact = theirs.losses["exact"]
        for name in STRATEGIES:
            row: dict[str, Any] = {"folds": folds, "left out": len(fold), "way": name}
            for program, refits in (("theirs", theirs), ("ours", ours)):
                error = np.abs(refits.losses[name] - exact) / np.abs(exact)
                row[f"mean loss, {program}"] = refits.losses[name].mean()
                row[f"error, {program}"] = error.mean()
                row[f"seconds, {program}"] = refits.seconds[name]
            row["parameters differ by"] = np.abs(
                theirs.parameters[name] - ours.parameters[name]
            ).max()
            row["losses differ by"] = np.abs(theirs.losses[name] - ours.losses[name]).max()
            rows.append(row)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--code", type=Path, default=Path("out/structij"))
    parser.add_argument("--quick", action="store_true", help="200 steps")
    saved.add_option(parser)
    arguments = parser.parse_args()
    steps = 200 if arguments.quick else 1_500
    table = saved.part("authors_toy", str(steps), lambda: compared(arguments.code, steps))
    print(pd.DataFrame(table).to_string(index=False, float_format="{:.3g}".format))
    saved.save("authors_toy", table, steps=steps)
