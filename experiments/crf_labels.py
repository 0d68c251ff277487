"""Style C: labels of a treebank left out, at random and in blocks.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), appendix G.2: derived
there, not measured. A CRF of 17 parts of speech on frozen scores (as in `crf_size.py`), its first
`--sentences` sentences; each fold loses a share of all labels, at random or in runs of successive
ones, and each held-out label is scored given those that are kept.

    LEAVEOUT_DATA=… python experiments/crf_labels.py [--sentences 2000] [--folds 10] [--share 0.1]
"""

import argparse
import time

import numpy as np
import pandas as pd
from crf_size import treebank

import leaveout as lo


def blocks(n: int, share: float, folds: int, size: int) -> lo.Plan:
    """Runs of `size` labels that begin at random, in each fold until the share is out."""
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(folds):
        starts = rng.choice(n - size, round(share * n / size), replace=False)
        rows.append(np.unique((starts[:, None] + np.arange(size)).ravel()))
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    index = np.concatenate(rows)
    return lo.Plan(indptr, index, np.zeros(len(index)), np.ones(len(index), bool), n, serial=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.1)
    options = parser.parse_args()
    codes, lengths, scores = treebank()
    steps = int(np.sum(lengths[: options.sentences]))
    crf = lo.CRF(codes[:steps], lengths[: options.sentences], scores=scores[:steps], drop="label")
    start = time.perf_counter()
    fit = lo.fit(crf)
    print(
        f"{steps:,} labels of {options.sentences:,} sentences, D = {fit.num_params}; fit {time.perf_counter() - start:.0f} s"
    )
    plans = {
        "at random": lo.random_subsets(steps, options.share, options.folds, rng=0),
        "blocks of 5": blocks(steps, options.share, options.folds, 5),
        "blocks of 20": blocks(steps, options.share, options.folds, 20),
    }
    rows = []
    for name, plan in plans.items():
        exact = None
        for refit in (lo.Exact(), lo.Certified(), lo.InfinitesimalJackknife(), lo.NoUpdate()):
            start = time.perf_counter()
            cv = lo.cross_validate(fit, plan, strategy=refit)
            seconds = time.perf_counter() - start
            exact = cv if exact is None else exact
            own, truth = (
                np.add.reduceat(x.losses, plan.indptr[:-1]) / np.diff(plan.indptr)
                for x in (cv, exact)
            )
            row = {
                "left out": name,
                "refit": type(refit).__name__,
                "loss a label": cv.mean,
                "error of a fold": np.mean(np.abs(own - truth)),
            }
            row |= {
                "relative": np.mean(np.abs(own - truth) / truth),
                "±": np.mean(cv.error / np.diff(plan.indptr)),
            }
            rows.append(row | {"flagged": len(cv.flagged()), "s a fold": seconds / options.folds})
            print(
                pd.DataFrame(rows[-1:]).to_string(
                    index=False, header=False, float_format="{:.4g}".format
                ),
                flush=True,
            )
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.4g}".format))


if __name__ == "__main__":
    main()
