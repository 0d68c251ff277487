"""A conditional random field on sparse indicator features: at least 50,000 weights, beside sklearn-crfsuite.

WNUT 2017: words, their endings, shapes and neighbours as indicators, a ridge penalty on all weights. H is never formed:
every solve is by conjugate gradients on products with it. `--folds` sentences are left out, one at a time, `--exact` of them
refitted to the end for comparison.

    pip install sklearn-crfsuite
    LEAVEOUT_DATA=… python experiments/crf_features.py [--folds 500] [--exact 20] [--most 5000]
"""

import argparse
import re
import time

import numpy as np
import pandas as pd
import scipy.sparse
import sklearn_crfsuite

import leaveout as lo


def indicators(tagged: lo.datasets.Tagged) -> list[list[str]]:
    """What is true of each word, by name."""
    words = [str(word) for word in tagged.words]
    ends = set(np.cumsum(tagged.lengths).tolist())
    starts = {0, *ends}
    rows = []
    for t, word in enumerate(words):
        low = word.lower()
        own = ["bias", f"w={low}", f"end2={low[-2:]}", f"end3={low[-3:]}", f"begin3={low[:3]}", f"shape={shape(word)}"]
        own += [
            name for name, holds in (("title", word.istitle()), ("upper", word.isupper()), ("digit", word.isdigit())) if holds
        ]
        before, after = t not in starts, t + 1 not in ends
        own += [f"w-1={words[t - 1].lower()}", f"shape-1={shape(words[t - 1])}"] if before else ["first"]
        own += [f"w+1={words[t + 1].lower()}", f"shape+1={shape(words[t + 1])}"] if after else ["last"]
        rows.append(own)
    return rows


def shape(word: str) -> str:
    letters = re.sub(r"[A-Z]", "X", re.sub(r"[a-z]", "x", re.sub(r"[0-9]", "d", word)))
    return re.sub(r"(.)\1{2,}", r"\1\1", letters)[:8]


def matrix(rows: list[list[str]], known: dict[str, int]) -> scipy.sparse.csr_array:
    pairs = [(t, known[name]) for t, row in enumerate(rows) for name in row if name in known]
    at = np.array(pairs).T
    return scipy.sparse.csr_array((np.ones(len(pairs)), (at[0], at[1])), shape=(len(rows), len(known)))


def crfsuite(train, test, rows, others, known, alpha: float) -> tuple[float, float]:
    """F1 of sklearn-crfsuite on the same indicators, labels and penalty, and its seconds."""
    cut = lambda items, lengths: [list(part) for part in np.split(np.array(items, object), np.cumsum(lengths)[:-1])]
    sentences = lambda rows, lengths: cut([{name: 1.0 for name in row if name in known} for row in rows], lengths)
    model = sklearn_crfsuite.CRF(
        c1=0.0, c2=alpha / 2, all_possible_transitions=True, all_possible_states=True, max_iterations=500
    )
    start = time.perf_counter()
    model.fit(sentences(rows, train.lengths), cut(list(train.labels), train.lengths))
    seconds = time.perf_counter() - start
    found = np.concatenate([np.array(tags) for tags in model.predict(sentences(others, test.lengths))])
    return lo.entity_f1(test.labels, found, test.lengths), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=500)
    parser.add_argument("--exact", type=int, default=20)
    parser.add_argument("--most", type=int, default=5000, help="indicators that are kept, the most frequent ones")
    parser.add_argument("--alpha", type=float, default=1.0)
    options = parser.parse_args()
    corpus = lo.datasets.wnut17()
    rows, others = indicators(corpus.train), indicators(corpus.dev)
    names = pd.Series([name for row in rows for name in row]).value_counts(sort=True).index[: options.most]
    known = {str(name): k for k, name in enumerate(names)}
    X, Y = matrix(rows, known), matrix(others, known)
    train, dev = corpus.train, corpus.dev
    crf = lo.CRF(train.labels, train.lengths, features=X, penalty=lo.penalties.Ridge(options.alpha))
    start = time.perf_counter()
    fit = lo.fit(crf, curvature="products")
    print(
        f"{len(train.lengths):,} sentences, {len(known):,} indicators, {fit.num_params:,} weights; "
        f"fit {time.perf_counter() - start:.0f} s, decrement {fit.decrement:.0e}",
        flush=True,
    )
    held = lo.CRF(np.zeros(len(dev.words), int), dev.lengths, features=Y, num_labels=crf.num_labels)
    found = crf.names.of(held.decode(fit.parameters))
    theirs, seconds = crfsuite(train, dev, rows, others, known, options.alpha)
    own = lo.entity_f1(dev.labels, found, dev.lengths)
    print(f"F1 on the development set: {own:.4f}; sklearn-crfsuite {theirs:.4f} ({seconds:.0f} s)")
    chosen = np.random.default_rng(0).choice(len(train.lengths), options.folds, replace=False)
    several = lambda units: lo.Plan(
        np.arange(len(units) + 1), units, np.zeros(len(units)), np.ones(len(units), bool), len(train.lengths)
    )
    results = {}
    for refit, units in ((lo.InfinitesimalJackknife(), chosen), (lo.Exact(), chosen[: options.exact])):
        start = time.perf_counter()
        cv = lo.cross_validate(fit, several(units), refit)
        results[type(refit).__name__] = cv
        print(
            f"{refit!r}: {len(units)} sentences, {time.perf_counter() - start:.0f} s; loss {cv.mean:.4f}, no update "
            f"{cv.baseline.mean():.4f}; ± {cv.approximation_error:.1e}; {len(cv.flagged())} flagged",
            flush=True,
        )
    truth = results["Exact"].losses
    for name, losses in (
        ("no update", results["Exact"].baseline),
        ("IJ", results["InfinitesimalJackknife"].losses[: options.exact]),
    ):
        print(f"  {name}: off by {np.abs(losses - truth).mean():.2e} on average, {np.abs(losses - truth).max():.2e} at most")


if __name__ == "__main__":
    main()
