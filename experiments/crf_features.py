"""A conditional random field on sparse indicator features: at least 50,000 weights, beside
sklearn-crfsuite.

WNUT 2017: words, their endings, shapes and neighbours as indicators, a ridge penalty on all
weights. H is never formed: every solve is by conjugate gradients on products with it. `--folds`
sentences are left out, one at a time, by the infinitesimal jackknife; the first `--exact` of them
are also refitted by `Certified`, and to the end. sklearn-crfsuite's objective is the same but for
the weights of starts and ends, which the indicators of first and last words make up for.

    pip install sklearn-crfsuite
    LEAVEOUT_DATA=… python experiments/crf_features.py [--folds 500] [--exact 20] [--most 5000]
"""

import argparse
import re
import time
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

import leaveout as lo


def indicators(tagged: lo.datasets.Tagged) -> list[list[str]]:
    """What is true of each word, by name."""
    words = [str(word) for word in tagged.words]
    ends = set(np.cumsum(tagged.lengths).tolist())
    starts = {0, *ends}
    rows = []
    for t, word in enumerate(words):
        low = word.lower()
        own = [
            "bias",
            f"w={low}",
            f"end2={low[-2:]}",
            f"end3={low[-3:]}",
            f"begin3={low[:3]}",
            f"shape={shape(word)}",
        ]
        own += [
            name
            for name, holds in (
                ("title", word.istitle()),
                ("upper", word.isupper()),
                ("digit", word.isdigit()),
            )
            if holds
        ]
        before, after = t not in starts, t + 1 not in ends
        own += (
            [f"w-1={words[t - 1].lower()}", f"shape-1={shape(words[t - 1])}"]
            if before
            else ["first"]
        )
        own += (
            [f"w+1={words[t + 1].lower()}", f"shape+1={shape(words[t + 1])}"] if after else ["last"]
        )
        rows.append(own)
    return rows


def shape(word: str) -> str:
    letters = re.sub(r"[A-Z]", "X", re.sub(r"[a-z]", "x", re.sub(r"[0-9]", "d", word)))
    return re.sub(r"(.)\1{2,}", r"\1\1", letters)[:8]


def matrix(rows: list[list[str]], known: dict[str, int]) -> scipy.sparse.csr_array:
    pairs = [(t, known[name]) for t, row in enumerate(rows) for name in row if name in known]
    at = np.array(pairs).T
    return scipy.sparse.csr_array(
        (np.ones(len(pairs)), (at[0], at[1])), shape=(len(rows), len(known))
    )


def crfsuite(train, rows, known, alpha: float) -> tuple[Any, float]:
    """sklearn-crfsuite on the same indicators, labels and penalty, and its seconds."""
    import sklearn_crfsuite

    model = sklearn_crfsuite.CRF(
        c1=0.0,
        c2=alpha / 2,
        all_possible_transitions=True,
        all_possible_states=True,
        max_iterations=1000,
    )
    start = time.perf_counter()
    model.fit(sentences(rows, train.lengths, known), cut(train.labels, train.lengths))
    return model, time.perf_counter() - start


def cut(items, lengths) -> list[list]:
    return [
        list(items[end - length : end])
        for end, length in zip(np.cumsum(lengths), lengths, strict=True)
    ]


def sentences(rows, lengths, known) -> list[list[dict[str, float]]]:
    return cut([{name: 1.0 for name in row if name in known} for row in rows], lengths)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folds", type=int, default=500)
    parser.add_argument("--exact", type=int, default=20)
    parser.add_argument(
        "--most", type=int, default=5000, help="indicators that are kept, the most frequent ones"
    )
    parser.add_argument("--alpha", type=float, default=1.0)
    options = parser.parse_args()
    corpus = lo.datasets.wnut17()
    train, rows = corpus.train, indicators(corpus.train)
    names = (
        pd.Series([name for row in rows for name in row])
        .value_counts(sort=True)
        .index[: options.most]
    )
    known = {str(name): k for k, name in enumerate(names)}
    crf = lo.CRF(
        train.labels,
        train.lengths,
        features=matrix(rows, known),
        penalty=lo.penalties.Ridge(options.alpha),
    )
    start = time.perf_counter()
    fit = lo.fit(crf)
    print(
        f"{len(train.lengths):,} sentences, {len(train.words):,} words, {len(known):,} indicators, {fit.num_params:,} weights; "
        f"fit {time.perf_counter() - start:.0f} s, decrement {fit.decrement:.0e}",
        flush=True,
    )
    model, seconds = crfsuite(train, rows, known, options.alpha)
    print(
        f"sklearn-crfsuite: {seconds:.0f} s, {model.training_log_.last_iteration['num']} iterations"
    )
    for name, part in (("development set", corpus.dev), ("test set", corpus.test)):
        own = indicators(part)
        held = lo.CRF(
            np.zeros(len(part.words), int),
            part.lengths,
            features=matrix(own, known),
            num_labels=crf.num_labels,
        )
        ours = crf.names.labels(held.decode(fit.parameters))
        theirs = np.concatenate(
            [np.array(tags) for tags in model.predict(sentences(own, part.lengths, known))]
        )
        values = [
            lo.developer.models.entity_f1(part.labels, found, part.lengths)
            for found in (ours, theirs)
        ]
        print(
            f"F1, {name}: {values[0]:.4f}; sklearn-crfsuite {values[1]:.4f}; {np.mean(ours == theirs):.3%} same labels",
            flush=True,
        )
    chosen = np.random.default_rng(0).choice(len(train.lengths), options.folds, replace=False)
    several = lambda units: lo.Plan(
        np.arange(len(units) + 1),
        units,
        np.zeros(len(units)),
        np.ones(len(units), bool),
        len(train.lengths),
    )
    found = {}
    for refit, units in (
        (lo.Exact(), chosen[: options.exact]),
        (lo.Certified(), chosen[: options.exact]),
        (lo.InfinitesimalJackknife(), chosen),
    ):
        start = time.perf_counter()
        cv = lo.cross_validate(fit, several(units), strategy=refit)
        found[repr(refit)] = cv
        print(
            f"{refit!r}: {len(units)} sentences, {time.perf_counter() - start:.0f} s; loss {cv.mean:.4f}, no update "
            f"{cv.baseline.mean():.4f}; ± {cv.approximation_error:.1e}; SE {cv.se:.3f}; {len(cv.flagged())} flagged",
            flush=True,
        )
    truth = found.pop("Exact()")
    for name, losses, error in (
        ("no update", truth.baseline, None),
        *(
            (name, cv.losses[: options.exact], cv.error[: options.exact])
            for name, cv in found.items()
        ),
    ):
        off = np.abs(losses - truth.losses)
        share = "" if error is None else f", {np.max(off / error):.2f} of its own ±"
        print(f"  {name}: off by {off.mean():.2e} on average, {off.max():.2e} at most{share}")


if __name__ == "__main__":
    main()
