"""Compares reported with true errors of the held-out loss, on the problems of
`tests.problems.kinds`.

True errors are against refits that share no code with the library (`tests.oracles`). A fold's true
error is Σ |loss − true loss| over what it scores. This module uses the library, so it is no oracle.
"""

import sys
import time
from typing import NamedTuple

import numpy as np
import pandas as pd

import leaveout as lo
from tests import oracles
from tests.problems.kinds import KINDS, Kind, Problem

ROUNDING = 1e-8  # of 1 + |loss|: what both numbers may lack
LARGEST = "p = 1,000"
SECOND = (LARGEST, "multinomial")  # where one Newton step is looked at too


class Folds(NamedTuple):
    """Of every fold that has a refit, `[folds]`.

    `summed` is |Σ (loss − true loss)|, of which `reported` speaks.
    """

    true: np.ndarray
    summed: np.ndarray
    reported: np.ndarray
    rounding: np.ndarray
    allowed: np.ndarray  # a tenth of a standard error a scored unit
    proved: np.ndarray
    flagged: np.ndarray
    answered: np.ndarray
    other: np.ndarray  # says that there is a lower minimum elsewhere


class Truth(NamedTuple):
    """The losses of one plan, `[entries]` or `[refits]`, which refits were reached, and the scale
    of the losses.
    """

    losses: np.ndarray
    reached: np.ndarray
    scale: float


def truth(problem: Problem, plan: lo.Plan) -> Truth:
    theta, reached = oracles.refits(problem.oracle, problem.start, plan)
    losses = problem.oracle.scores(theta, plan)
    still = problem.oracle.scores(np.broadcast_to(problem.start, theta.shape), plan)
    scored = still if len(still) == len(reached) else still[plan.held]
    return Truth(losses, reached, float(np.std(scored)) / np.sqrt(min(len(scored), plan.num_units)))


def compared(estimate: lo.Estimate | None, known: Truth, plan: lo.Plan) -> Folds:
    """What one estimate says, beside the truth; None where the library refused."""
    count = len(known.reached)
    refit = oracles.refit_of(plan)[plan.held]
    joint = len(known.losses) == count and not np.all(np.diff(plan.indptr) == 1)
    gather = (lambda v: v) if joint else (lambda v: np.bincount(refit, v[plan.held], count))
    width = np.ones(count) if joint else np.bincount(refit, minlength=count)
    losses = np.full(len(known.losses), np.nan) if estimate is None else np.asarray(estimate.losses)
    difference = losses - known.losses
    true = gather(np.abs(difference))
    none = np.zeros(count, bool)
    flagged, other = none.copy(), none
    if estimate is not None:
        flagged[np.asarray(estimate.flagged(), int)] = True
        code = getattr(lo.RESULTS, "other_minimum", None)
        other = np.asarray(estimate.result) == code if code is not None else none
    found = Folds(
        true,
        np.abs(gather(difference)),
        np.full(count, np.nan) if estimate is None else np.asarray(estimate.error),
        ROUNDING * (1 + gather(np.abs(known.losses))),
        0.1 * known.scale * width + 1e-6,
        np.asarray(getattr(estimate, "proved", none), bool),
        flagged,
        np.isfinite(true),
        other,
    )
    return Folds(*(part[known.reached] for part in found))


def examine(
    kind: Kind, rng: np.random.Generator, plans: int | None, *strategies: lo.developer.AbstractRefit
) -> list[Folds]:
    """One problem of a kind under each strategy, on so many of its plans."""
    found: list[list[Folds]] = [[] for _ in strategies]
    problem = kind.make(rng)
    for plan in problem.plans[:plans]:
        known = truth(problem, plan)
        for mine, strategy in zip(found, strategies, strict=True):
            try:
                estimate = lo.cross_validate(problem.fit, plan, strategy=strategy)
            except (RuntimeError, ValueError) as refused:
                print(f"refused: {refused}", file=sys.stderr)
                estimate = None
            mine.append(compared(estimate, known, plan))
    return [joined(parts) for parts in found]


def attempt(
    name: str,
    kind: Kind,
    rng: np.random.Generator,
    plans: int | None,
    *strategies: lo.developer.AbstractRefit,
) -> list[Folds]:
    """The same, and one fold without an answer where the library refuses to fit.

    Every problem has a minimiser.
    """
    try:
        return examine(kind, rng, plans, *strategies)
    except (RuntimeError, lo.validation.IndefiniteHessianError) as refused:
        print(f"{name}: no fit: {refused}", file=sys.stderr)
        nothing, no = np.full(1, np.nan), np.zeros(1, bool)
        return [Folds(*[nothing] * 5, proved=no, flagged=no, answered=no, other=no)] * len(
            strategies
        )


def joined(parts: list[Folds]) -> Folds:
    return Folds(*map(np.concatenate, zip(*parts, strict=True)))


def summary(folds: Folds) -> dict[str, float]:
    """One row of the table."""
    off = folds.answered & (folds.true > folds.reported * (1 + 1e-6) + folds.rounding)
    in_sum = folds.answered & (folds.summed > folds.reported * (1 + 1e-6) + folds.rounding)
    wrong = folds.true > folds.allowed
    missed = folds.answered & wrong & (folds.true > 2 * folds.reported) & ~folds.flagged
    silent = ~folds.answered | (folds.flagged & ~wrong)
    seen = (
        folds.answered & ~folds.proved & (folds.true > folds.rounding) & np.isfinite(folds.reported)
    )
    ratio = folds.reported[seen] / folds.true[seen]
    return {
        "folds": len(off),
        "proved": int(folds.proved.sum()),
        "beyond, proved": int((off & folds.proved).sum()),
        "beyond, estimated": int((off & ~folds.proved).sum()),
        "of these in sum": int(in_sum.sum()),
        "missed": int(missed.sum()),
        "no answer": int(silent.sum()),
        "elsewhere lower": int(folds.other.sum()),
        "reported/true": float(np.median(ratio)) if seen.any() else np.nan,
    }


def study(
    names: list[str], seed: int, quick: bool, strategies: dict[str, lo.developer.AbstractRefit]
) -> dict[str, dict[str, Folds]]:
    """Every fold of the problems of each kind, by strategy and kind; `quick`.

    Of four small problems, or one, and two plans.
    """
    found: dict[str, dict[str, Folds]] = {name: {} for name in strategies}
    for name in names:
        kind, began = KINDS[name], time.monotonic()
        rng = np.random.default_rng([seed, list(KINDS).index(name)])
        plans, times = (2, 4 if kind.small else 1) if quick else (None, kind.times)
        runs = [attempt(name, kind, rng, plans, *strategies.values()) for _ in range(times)]
        for strategy, parts in zip(strategies, zip(*runs, strict=True), strict=True):
            found[strategy][name] = joined(list(parts))
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def table(by_kind: dict[str, Folds]) -> pd.DataFrame:
    return pd.DataFrame({name: summary(folds) for name, folds in by_kind.items()}).T


def demands(by_kind: dict[str, Folds]) -> list[tuple[str, str, bool]]:
    """What was asked of the certificate, what was found, and whether that will do."""
    total = summary(joined(list(by_kind.values())))
    small = [folds for name, folds in by_kind.items() if KINDS[name].small]
    estimated = max(total["folds"] - total["proved"], 1)
    beyond, silent = (
        total["beyond, estimated"] / estimated,
        total["no answer"] / max(total["folds"], 1),
    )
    rows = [
        (
            "proved and beyond: none",
            f"{total['beyond, proved']:.0f} of {total['proved']:.0f}",
            total["beyond, proved"] == 0,
        ),
        (
            "estimated and beyond: < 0.1 %",
            f"{100 * beyond:.3g} % of {estimated:.0f}",
            beyond < 1e-3,
        ),
        ("missed: none", f"{total['missed']:.0f} of {total['folds']:.0f}", total["missed"] == 0),
        ("no answer: < 1 %", f"{100 * silent:.3g} %", silent < 0.01),
        (
            "reported/true of estimates: < 10",
            f"{total['reported/true']:.3g}",
            not total["reported/true"] >= 10,
        ),
    ]
    if small:
        share = float(np.mean(joined(small).proved))
        rows.append(
            ("proved, linear, n ≤ 200, p ≤ 10: ≥ 95 %", f"{100 * share:.3g} %", share >= 0.95)
        )
    return rows
