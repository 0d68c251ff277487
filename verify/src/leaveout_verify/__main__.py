"""`python -m leaveout_verify heart.cert.json data.parquet`.

Print how many claims are accepted, rejected and undecided.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence

from .problem import Problem, read
from .proof import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a certificate.

    0 if every fold of the plan is accepted, 1 if one or the data are rejected, 2 if some are open.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if len(arguments) != 2:
        print(
            "usage: python -m leaveout_verify CERTIFICATE.json DATA.parquet|.csv|.npz",
            file=sys.stderr,
        )
        return 2
    began = time.perf_counter()
    try:
        problem = read(*arguments)
    except (OSError, ValueError, ImportError) as error:
        print(f"rejected: {error}", file=sys.stderr)
        return 1
    verdicts = verify(problem)
    count = Counter(verdict.status for verdict in verdicts)
    line = ", ".join(
        f"{count[status]} {status}" for status in ("accepted", "rejected", "undecided")
    )
    print(f"{line}; {time.perf_counter() - began:.1f} s")
    for fold, verdict in zip(problem.folds, verdicts, strict=True):
        if verdict.status != "accepted":
            beyond = (
                f", beyond its error by {verdict.beyond:.3g}"
                if verdict.status == "rejected"
                else ""
            )
            print(f"fold {fold.number}: {verdict.status}{beyond}")
    print(
        f"claims on {len(verdicts)} of the {problem.planned} folds of the plan, errors up to {largest_error(problem):.2g}"
    )
    complete = len(verdicts) == problem.planned and not count["undecided"]
    return 1 if count["rejected"] else 0 if complete else 2


def largest_error(problem: Problem) -> float:
    """Return the largest error that a fold claims."""
    return max(fold.error for fold in problem.folds)


if __name__ == "__main__":
    sys.exit(main())
