"""Odd and ill-posed input: does the library ever return a wrong number without a warning?

    python benchmarks/oddities.py [--quick] [--draws N] [--seed N] [kind ...]

Every kind (`odd_rows`, `odd_files`, `odd_uses`) draws a small random problem that is ordinary for
its user and awkward for a library: more columns than rows, dummies for every level, labels such as
"01", unsorted dates, hosts that stopped early. The opponent is a truth that shares nothing with the
library: Decimals of sixty digits, the host's own refits, or dense algebra (`tests.oracles.exact`).
The table counts for each kind

    wrong        numbers beyond their reported error and rounding, neither flagged nor warned about
    alarms       right losses that the audit calls wrong
    refused
    missing numbers, or exceptions, where the host has a refit that depends on no tolerance

The exit status is 1 if any of these is not zero.
"""

import argparse
import sys
import warnings

import jax
import odd_files
import odd_rows
import odd_uses
import pandas as pd
import repository  # noqa: F401  puts the tests in reach
from tests.problems.tally import study, table
from threadpoolctl import threadpool_limits

KINDS = odd_rows.KINDS | odd_files.KINDS | odd_uses.KINDS
DRAWS, FEW = 50, 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"any of: {'; '.join(KINDS)}")
    parser.add_argument(
        "--quick", action="store_true", help=f"{FEW} draws of each kind that compiles little"
    )
    parser.add_argument("--draws", type=int, help=f"problems of each kind; {DRAWS}, or {FEW}")
    parser.add_argument("--seed", type=int, default=0, help="others")
    args = parser.parse_args()
    if unknown := set(args.kinds) - KINDS.keys():
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of the time
    names = args.kinds or [name for name in KINDS if not (args.quick and name in odd_uses.LONG)]
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = study(
            {name: KINDS[name] for name in names},
            args.draws or (FEW if args.quick else DRAWS),
            args.seed,
        )
    pd.set_option("display.max_rows", 200, "display.width", 200)
    for name, tally in found.items():
        for note in tally.notes:
            print(f"{name}: {note}")
    print(table(found).to_string())
    faults = sum(tally.faults for tally in found.values())
    print(
        f"{len(found)} kinds, seed {args.seed}: {'nothing wrong' if not faults else f'{faults} FAULTS'}"
    )
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
