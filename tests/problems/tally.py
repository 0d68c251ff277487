"""Compares what the library says with the true losses of `tests.oracles.exact`, and counts the
faults.

`judged` compares an estimate fold by fold, `value` one number with another, and `study` runs kinds
of problem many times. This module uses the library, so it is no oracle.
"""

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

import leaveout as lo
from tests.oracles.exact import Truth

SLACK = 1e-8  # of 1 + |loss|: what rounding may do to any two numbers


@dataclass
class Tally:
    """What was found: folds (or numbers) compared, and three kinds of fault, with one line about
    the first ones.
    """

    folds: int = 0
    wrong: int = 0  # a number beyond its reported error, and no word about it
    alarms: int = 0  # the audit calls a right number wrong
    refused: int = 0  # no number, where the host has one
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        parts = (
            self.folds + other.folds,
            self.wrong + other.wrong,
            self.alarms + other.alarms,
            self.refused + other.refused,
        )
        return Tally(*parts, (self.notes + other.notes)[:5])

    @property
    def faults(self) -> int:
        return self.wrong + self.alarms + self.refused


def told(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, and its warnings in one text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, "\n".join(str(one.message) for one in caught)


def judged(cv: lo.Estimate, truth: Truth, name: str = "") -> Tally:
    """An estimate of pointwise losses beside the true ones, a fold at a time.

    A fold is wrong where the sum of |loss − truth| is above the error that is reported for it and
    the slack, and it is not flagged; refused where a row has no loss though the truth is finite and
    hangs on no tolerance.
    """
    plan = cv.plan
    refit = plan.refit
    total = lambda v: np.bincount(refit, np.where(plan.held, v, 0.0), plan.num_refits)
    answered = np.isfinite(cv.losses)
    compared = answered & plan.held & ~np.isnan(truth.losses)
    with np.errstate(invalid="ignore"):
        off = total(np.where(compared, np.abs(cv.losses - truth.losses), 0.0))
    size = np.where(np.isfinite(truth.losses), np.abs(truth.losses), 0.0)
    allowed = np.nan_to_num(cv.error) * (1 + 1e-6) + total(
        SLACK * (1 + size) + np.nan_to_num(truth.slack)
    )
    right = off <= allowed
    flagged = np.zeros(plan.num_refits, bool)
    flagged[np.asarray(cv.flagged(), int)] = True
    wrong = ~right & ~flagged
    missing = total(1.0 * (~answered & np.isfinite(truth.losses) & ~truth.ambiguous)) > 0
    alarmed = cv.result == lo.RESULTS.missed
    if cv.audit is not None:
        alarmed[np.asarray(cv.audit["refit"][cv.audit["beyond"].astype(bool)], int)] = True
    alarms = alarmed & right & ~missing
    notes = []
    for word, which in (("wrong", wrong), ("alarm", alarms), ("refused", missing)):
        if which.any():
            k = int(np.argmax(np.where(which, off, -1.0)))
            ours, true = (np.nansum(v[refit == k]) for v in (cv.losses, truth.losses))
            sums = f"loss {ours:.6g} ± {cv.error[k]:.2g}, truth {true:.6g}, off by {off[k]:.2g}"
            said = f"{lo.RESULTS(int(cv.result[k])).name}{', proved' if np.any(cv.proved[k : k + 1]) else ''}"
            notes.append(
                f"{word} {name}: {which.sum()} of {plan.num_refits}, as fold {k}: {sums}; {said}"
            )
    return Tally(plan.num_refits, int(wrong.sum()), int(alarms.sum()), int(missing.sum()), notes)


def value(
    name: str, got: Any, truth: Any, slack: float = 1e-7, error: Any = 0.0, said: bool = False
) -> Tally:
    """Numbers beside the true ones.

    Wrong where one is beyond its error and nothing was said, refused where it is none.
    """
    got, truth, error = (np.atleast_1d(np.asarray(part, float)) for part in (got, truth, error))
    if got.shape != truth.shape:
        return Tally(1, wrong=1, notes=[f"wrong {name}: shape {got.shape}, truth {truth.shape}"])
    with np.errstate(invalid="ignore"):
        off = np.abs(got - truth) - np.nan_to_num(error)
        bad = ~(off <= slack * (1 + np.abs(truth))) & np.isfinite(got) & ~(got == truth)
    bad &= not said
    none = ~np.isfinite(got) & np.isfinite(truth) & (not said)
    notes = []
    for word, which in (("wrong", bad), ("refused", none)):
        if which.any():
            k = int(np.argmax(which))
            notes.append(f"{word} {name}: {got.flat[k]:.8g} for {truth.flat[k]:.8g}")
    return Tally(1, int(bad.any()), 0, int(none.any()), notes)


def holds(name: str, fine: bool, got: Any = "") -> Tally:
    """A statement that must be true; a false one counts as a wrong number."""
    return Tally(1, wrong=int(not fine), notes=[] if fine else [f"wrong {name}: {str(got)[:200]}"])


def attempted(name: str, call: Callable[[], Tally]) -> Tally:
    """What a call finds; an exception is a refusal."""
    try:
        return call()
    except Exception as error:
        return Tally(
            1, refused=1, notes=[f"refused {name}: {type(error).__name__}: {str(error)[:300]}"]
        )


def each_plan(
    fit: Callable[[], lo.Fit],
    plans: list[lo.Plan],
    truth: Callable[[lo.Plan], Truth],
    **options: Any,
) -> Tally:
    """The estimates of all plans beside their truths."""
    found = Tally()
    for plan in plans:
        name = f"{plan.num_refits} refits"
        found += attempted(
            name,
            lambda plan=plan, name=name: judged(
                lo.cross_validate(fit(), plan, **options), truth(plan), name
            ),
        )
    return found


def study(
    kinds: dict[str, Callable[[np.random.Generator], Tally]], draws: int, seed: int
) -> dict[str, Tally]:
    """What was found of each kind. A draw of a kind is the same whichever others are asked for."""
    found = {}
    for name, kind in kinds.items():
        began, tally = time.process_time(), Tally()
        for draw in range(draws):
            rng = np.random.default_rng([seed, draw, *name.encode()])
            part = attempted("the kind itself", lambda rng=rng, kind=kind: kind(rng))
            part.notes = [f"draw {draw}: {note}" for note in part.notes]
            tally += part
        found[name] = tally
        print(f"{name}: {time.process_time() - began:.1f} s", file=sys.stderr)
    return found


def table(found: dict[str, Tally]) -> pd.DataFrame:
    rows = {name: (one.folds, one.wrong, one.alarms, one.refused) for name, one in found.items()}
    rows["all"] = tuple(map(sum, zip(*rows.values(), strict=True)))
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["folds", "wrong", "alarms", "refused"]
    )
