"""Count the functions and files of the library that a warm cross-validation passes through.

    python tools/call_path.py [--functions]

For a leave-one-out of a logistic regression and ten folds of a hidden Markov model, prints how many
functions of the library are called, in how many files, and how often a call goes from one file to
another. The first two calls, which compile programs and fill caches, are not counted. `--functions`
lists the functions by file, with the number of their calls.
"""

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np

import leaveout as lo

SOURCE = str(Path(lo.__file__).parent)


class Passage(NamedTuple):
    """Functions of the library that a call went through.

    Parameters
    ----------
    calls : Counter
        Number of calls of each function, by file and qualified name. Comprehensions and lambdas are
        not counted.
    crossings : int
        Number of calls that a function in another file made.
    """

    calls: Counter[tuple[str, str]]
    crossings: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of functions, files, and crossings between files."""
        return len(self.calls), len({file for file, _ in self.calls}), self.crossings


def passage(call: Callable[[], object]) -> Passage:
    """Record which functions of the library a call goes through, the third time that it is made."""
    call()
    call()
    calls: Counter[tuple[str, str]] = Counter()
    crossings = 0

    def record(frame: FrameType, event: str, _: object) -> None:
        nonlocal crossings
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(SOURCE):
            return
        if not frame.f_code.co_name.startswith("<"):
            calls[file, frame.f_code.co_qualname] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):
            caller = caller.f_back
        crossings += caller is not None and caller.f_code.co_filename != file

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return Passage(calls, crossings)


def passages() -> dict[str, Passage]:
    """Record the two calls."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(200, 5)), (random.random(200) < 0.5) * 1.0
    series = np.concatenate([random.normal(size=100), random.normal(3, 1, 100)])
    glm = lo.fit(lo.GLM(x, y, "logistic", lo.penalties.Ridge(1.0)))
    hmm = lo.fit(lo.HMM(series, lo.emissions.Gaussian(), 2))
    return {
        "leave-one-out of a GLM": passage(lambda: lo.cross_validate(glm, lo.leave_one_out(200))),
        "ten folds of an HMM": passage(lambda: lo.cross_validate(hmm, lo.blocks(k=10))),
    }


def main() -> None:
    """Print the counts, and the functions if they are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--functions", action="store_true", help="list the functions and the number of their calls"
    )
    given = parser.parse_args()
    for name, found in passages().items():
        print("{}: {} functions in {} files, {} crossings".format(name, *found.counts))
        if given.functions:
            for (file, function), count in sorted(found.calls.items()):
                print(f"    {count:6}  {Path(file).relative_to(SOURCE)}  {function}")


if __name__ == "__main__":
    main()
