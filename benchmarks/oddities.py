"""Odd and ill-posed input: is a wrong number ever told without a word?

Every kind (`odd_rows`, `odd_files`, `odd_uses`) draws a small problem at random that is ordinary for its user and awkward
for a library: more columns than rows, dummies of every level, labels such as "01", unsorted dates, hosts that stopped early.
What leaveout says is compared with a truth that shares nothing with it: Decimals of sixty digits, the host's own refits, dense
algebra (`odd_truths`). The table counts of each kind

    wrong        a number beyond its reported error and rounding, not flagged, and no warning
    alarms       right losses that the audit calls wrong
    refused      no number, or an exception, where the host has a refit that hangs on no tolerance

    python benchmarks/oddities.py [--quick] [--draws N] [--seed N] [kind ...]

It exits with status 1 if any of these is not zero.
"""

import argparse
import sys
import time
import warnings

import jax
import numpy as np
import odd_files
import odd_rows
import odd_uses
import pandas as pd
from odd_truths import Tally, attempted
from threadpoolctl import threadpool_limits

KINDS = odd_rows.KINDS | odd_files.KINDS | odd_uses.KINDS
DRAWS, FEW = 50, 4


def study(names: list[str], draws: int, seed: int) -> dict[str, Tally]:
    """What was found of each kind. A draw of a kind is the same whichever others are asked for."""
    found = {}
    for name in names:
        began, tally = time.process_time(), Tally()
        for draw in range(draws):
            rng = np.random.default_rng([seed, draw, *name.encode()])
            part = attempted("the kind itself", lambda rng=rng, name=name: KINDS[name](rng))
            part.notes = [f"draw {draw}: {note}" for note in part.notes]
            tally += part
        found[name] = tally
        print(f"{name}: {time.process_time() - began:.1f} s", file=sys.stderr)
    return found


def table(found: dict[str, Tally]) -> pd.DataFrame:
    rows = {name: (one.folds, one.wrong, one.alarms, one.refused) for name, one in found.items()}
    rows["all"] = tuple(map(sum, zip(*rows.values(), strict=True)))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["folds", "wrong", "alarms", "refused"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"any of: {'; '.join(KINDS)}")
    parser.add_argument("--quick", action="store_true", help=f"{FEW} draws of each kind that compiles little")
    parser.add_argument("--draws", type=int, help=f"problems of each kind; {DRAWS}, or {FEW}")
    parser.add_argument("--seed", type=int, default=0, help="others")
    args = parser.parse_args()
    if unknown := set(args.kinds) - KINDS.keys():
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of the time
    names = args.kinds or [name for name in KINDS if not (args.quick and name in odd_uses.LONG)]
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = study(names, args.draws or (FEW if args.quick else DRAWS), args.seed)
    pd.set_option("display.max_rows", 200, "display.width", 200)
    for name, tally in found.items():
        for note in tally.notes:
            print(f"{name}: {note}")
    print(table(found).to_string())
    faults = sum(tally.faults for tally in found.values())
    print(f"{len(found)} kinds, seed {args.seed}: {'nothing wrong' if not faults else f'{faults} FAULTS'}")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
