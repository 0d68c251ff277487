"""`python -m leaveout_verify heart.cert.json data.parquet`: print how many claims are accepted, rejected and undecided."""

import sys
import time
from collections import Counter
from collections.abc import Sequence

from .problem import read
from .proof import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a certificate; 0 if every claim is accepted, 1 if one or the data are rejected, 2 if some are undecided."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if len(arguments) != 2:
        print("usage: python -m leaveout_verify CERTIFICATE.json DATA.parquet|.csv|.npz", file=sys.stderr)
        return 2
    began = time.perf_counter()
    try:
        problem = read(*arguments)
    except (OSError, KeyError, TypeError, ValueError, ImportError) as error:
        print(f"rejected: {error}", file=sys.stderr)
        return 1
    verdicts = verify(problem)
    count = Counter(verdict.status for verdict in verdicts)
    line = ", ".join(f"{count[status]} {status}" for status in ("accepted", "rejected", "undecided"))
    print(f"{line}; {time.perf_counter() - began:.1f} s")
    for k, verdict in enumerate(verdicts):
        if verdict.status != "accepted":
            beyond = f", beyond its error by {verdict.beyond:.3g}" if verdict.status == "rejected" else ""
            print(f"fold {k}: {verdict.status}{beyond}")
    return 1 if count["rejected"] else 2 if count["undecided"] else 0


if __name__ == "__main__":
    sys.exit(main())
