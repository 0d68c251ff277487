"""Is the certificate honest? This program compares reported with true errors on problems that were
built to break it.

    python benchmarks/certificate.py [--quick] [--seed N] [kind ...]
    python benchmarks/certificate.py --proofs 20000

The second form has proved refits of fresh problems of 186 kinds checked by `leaveout_verify`, in
ball arithmetic and with no allowance; it exits with 1 if one is rejected.

The opponent is a refit that shares no code with the library (`tests.oracles`), of fresh problems
(`tests.problems.kinds`). A fold's true error is Σ |loss − true loss| over what it scores. The table
counts, among folds that have a refit:

    beyond       the true error is above the reported one, proved or estimated
    missed
    the loss is off by more than a tenth of a (naive) standard error per scored unit and by more
    than twice
                 the reported error, and the fold is not flagged
    no answer    the loss is NaN or refused, or the fold is flagged without being wrong
"""

import argparse
import time
import warnings

import jax
import pandas as pd
import repository  # noqa: F401  puts the tests in reach
from tests.problems.certificate import LARGEST, SECOND, demands, study, table
from tests.problems.kinds import KINDS
from tests.problems.proofs import check_proofs

import leaveout as lo


def proofs(count: int, seed: int) -> int:
    """Print the verdicts on proved refits, and what is rejected; returns the exit status."""
    total, by_kind, rejected = check_proofs(count, seed)
    for kind, verdicts in sorted(by_kind.items()):
        if (
            verdicts["undecided"]
            or verdicts["rejected"]
            or 10 * verdicts["unproved"] > verdicts.total()
        ):
            print(", ".join(kind), dict(verdicts))
    for kind, plan, fold, beyond, error in rejected:
        print(
            f"REJECTED {', '.join(kind)}: {plan}, refit {fold}: beyond its error of {error:.3g} by {beyond:.3g}"
        )
    print(
        ", ".join(f"{number} {status}" for status, number in total.items()),
        f"of {len(by_kind)} kinds, seed {seed}",
    )
    return int(bool(rejected))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", choices=[[], *KINDS], metavar="kind", help=f"any of: {'; '.join(KINDS)}"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="four small problems, or one, of each kind but the largest",
    )
    parser.add_argument("--seed", type=int, default=0, help="another draw of every problem")
    parser.add_argument(
        "--proofs", type=int, default=0, help="verify so many proved refits, and nothing else"
    )
    args = parser.parse_args()
    if args.proofs:
        raise SystemExit(proofs(args.proofs, args.seed or int(time.time())))
    warnings.simplefilter("ignore")
    pd.set_option("display.width", 200, "display.max_columns", 20, "display.max_rows", 100)
    names = args.kinds or [name for name in KINDS if not (args.quick and name == LARGEST)]
    # compiling is most of a short run
    jax.config.update("jax_disable_most_optimizations", args.quick)
    by_kind = study(names, args.seed, args.quick, {"default": lo.Certified()})["default"]
    print(table(by_kind).to_string(float_format="{:.4g}".format))
    second = [name for name in SECOND if name in names]
    if second:
        newton = study(second, args.seed, args.quick, {"newton": lo.NewtonStep()})["newton"]
        print(f"\nNewtonStep()\n{table(newton).to_string(float_format='{:.4g}'.format)}")
    print(
        f"\n{sum(len(folds.true) for folds in by_kind.values())} folds of {len(by_kind)} kinds, seed {args.seed}"
    )
    for asked, got, fine in demands(by_kind):
        print(f"{'met   ' if fine else 'NOT MET'}  {asked}: {got}")


if __name__ == "__main__":
    main()
