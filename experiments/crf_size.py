"""Conditional random fields at the size of CoNLL-2003, and on the whole of an English treebank: H,
J, every sentence out.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), section 5, had 14,987
sentences of up to 113 words, 9 labels, D = 99. Here they are simulated from a CRF on frozen scores;
the treebank's 12,544 sentences with 17 parts of speech (D = 323) have as scores the logarithms of
how often each word has each tag in the other sentences.

    LEAVEOUT_DATA=… python experiments/crf_size.py [conll treebank] [--exact 20]

Times are of the second call, compiling told apart. `--exact` refits so many sentences to the end,
for comparison.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pandas as pd

import leaveout as lo

STRATEGIES = (lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.Certified())


def conll(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sentences of CoNLL-2003's number and lengths (at most 113, median 9), labels drawn from a
    CRF.
    """
    rng = np.random.default_rng(seed)
    lengths = np.minimum(1 + rng.negative_binomial(1.15, 1.15 / (1.15 + 11.2), 14_987), 113)
    lengths[0] = 113
    K = 9
    scores = 1.5 * rng.standard_normal((lengths.sum(), K)) + np.r_[3.0, np.zeros(K - 1)]
    table = rng.standard_normal((K, K))
    labels, before = np.empty(len(scores), int), -1
    noise = rng.gumbel(size=scores.shape)  # each label given the one before it
    starts = np.isin(np.arange(len(scores)), np.cumsum(lengths) - lengths)
    for t in range(len(scores)):
        before = int(np.argmax(scores[t] + noise[t] + (0.0 if starts[t] else table[before])))
        labels[t] = before
    return labels, lengths, scores


def treebank() -> tuple[np.ndarray, list[int], np.ndarray]:
    """Parts of speech, lengths of sentences, and scores from how often a word had each tag in other
    sentences (half an occurrence added)."""
    train = lo.datasets.ud_english().train
    tags, labels = np.unique(train.labels, return_inverse=True)
    words = pd.factorize(pd.Series(train.words).str.lower())[0]
    sentence = np.repeat(np.arange(len(train.lengths)), train.lengths)
    total = np.zeros((words.max() + 1, len(tags)))
    np.add.at(total, (words, labels), 1.0)
    own = pd.DataFrame({"sentence": sentence, "word": words, "label": labels})
    inside = np.zeros((len(words), len(tags)))
    for k in range(len(tags)):
        inside[:, k] = (own["label"] == k).groupby([own["sentence"], own["word"]]).transform("sum")
    counts = total[words] - inside + 0.5 * np.bincount(labels) / len(labels)
    return labels, train.lengths, np.log(counts / counts.sum(1, keepdims=True))


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = jax.block_until_ready(run())
    return time.perf_counter() - start, found


def derivatives(fit: lo.Fit) -> None:
    objective, weights = fit.objective, np.ones(fit.objective.num_units)
    with jax.enable_x64(True):
        hessian, jacobian = eqx.filter_jit(objective.hessian), eqx.filter_jit(objective.jacobian)
        for name, run in (
            ("H", lambda: hessian(fit.theta, weights)),
            ("all of J", lambda: jacobian(fit.theta)),
        ):
            first, _ = timed(run)
            second, _ = timed(run)
            print(f"  {name:<10} {second:6.2f} s   (first call {first:.1f} s)", flush=True)


def sentences(fit: lo.Fit, exact: int, once: bool) -> None:
    n = fit.objective.num_units
    found = {}
    for refit in STRATEGIES[2:] if once else STRATEGIES:
        first, cv = timed(
            lambda refit=refit: lo.cross_validate(fit, lo.leave_one_out(), strategy=refit)
        )
        second = first
        if not once:
            second, cv = timed(
                lambda refit=refit: lo.cross_validate(fit, lo.leave_one_out(), strategy=refit)
            )
        found[repr(refit)] = cv
        print(
            f"  {refit!r:<32} {second:6.1f} s   (first call {first:.1f} s)   loss a sentence {cv.mean:.6f}, "
            f"± {cv.approximation_error:.1e} estimated; SE {cv.se:.3f}; {len(cv.flagged())} flagged",
            flush=True,
        )
    if not exact:
        return
    rise = np.abs(found["Certified()"].losses - found["Certified()"].baseline)
    chosen = np.r_[
        np.argsort(-rise)[: exact // 2],
        np.random.default_rng(0).choice(n, exact - exact // 2, replace=False),
    ]
    plan = lo.Plan(np.arange(exact + 1), chosen, np.zeros(exact), np.ones(exact, bool), n)
    seconds, truth = timed(lambda: lo.cross_validate(fit, plan, strategy=lo.Exact()))
    print(
        f"  Exact(), {exact} sentences, half of them those that change most: {seconds / exact:.2f} s each, compiling included"
    )
    for name, cv in found.items():
        off = np.abs(cv.losses[chosen] - truth.losses)
        share = off / np.maximum(cv.error[chosen], 1e-12)
        print(
            f"    {name:<32} off by {off.mean():.1e} on average, at most {off.max():.1e}, {share.max():.2f} of its own ±"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="*", default=["conll", "treebank"], choices=["conll", "treebank"]
    )
    parser.add_argument("--exact", type=int, default=20)
    parser.add_argument(
        "--once", action="store_true", help="only Certified, and only its first call"
    )
    options = parser.parse_args()
    for what in options.what:
        labels, lengths, scores = conll() if what == "conll" else treebank()
        crf = lo.CRF(labels, lengths, scores=scores)
        longest, median = crf.lengths.max(), int(np.median(crf.lengths))
        print(
            f"\n{what}: {len(crf.lengths):,} sentences, {len(crf.codes):,} words, up to {longest}, median {median}; "
            f"{crf.num_labels} labels, D = {len(crf.parameters.names())}",
            flush=True,
        )
        seconds, fit = timed(lambda crf=crf: lo.fit(crf))
        accuracy = lo.developer.models.token_accuracy(crf.labels_of(), crf.decode(fit))
        print(
            f"  fit        {seconds:6.1f} s with compiling; decrement {fit.decrement:.0e}; {accuracy:.1%} decoded rightly"
        )
        if not options.once:
            derivatives(fit)
        sentences(fit, options.exact, options.once)


if __name__ == "__main__":
    main()
