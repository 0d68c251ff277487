"""A tagger whose CRF layer was not trained to the end: the first source document's figures 2 and 5,
on an English treebank.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), section 5 and appendix
L.2: a network makes the scores of a CRF, everything trained by Adam with early stopping. Then the
network is frozen and the CRF layer goes on, by Adam in batches of 31, for 60 epochs; after some of
them `--folds` sentences are left out, one at a time.

Its network (two bidirectional LSTM over GloVe vectors and characters) and its text (CoNLL-2003) are
not to be had here. This one has a hidden layer over indicators of words, endings, shapes and
neighbours, and finds parts of speech: it learns on the treebank's other sentences, by Adam with
early stopping, and the CRF layer, from zero, on `--sentences` that it has not seen.

    LEAVEOUT_DATA=… python experiments/crf_inexact.py [--sentences 1000] [--folds 500] [--certified
    20] [--out out] [--save]

What the network makes of the sentences is kept in `out`, and used from there if it is there.
`Certified` refits to the minimiser, from wherever Adam stopped; "exact" is `Exact()` from the
minimiser, which is one whatever Adam did; `--refits` of them are made by SciPy's L-BFGS from zero
too. The figures have probabilities of held-out sentences, IJ and no update against exact, and the
error against the gradient's norm and Adam's seconds.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import saved
import scipy.optimize
from crf_features import indicators, matrix
from jax.flatten_util import ravel_pytree
from matplotlib.ticker import NullFormatter
from sklearn.neural_network import MLPClassifier

import leaveout as lo

CHECKED = (1, 3, 6, 12, 25, 60)  # epochs after which sentences are left out
PANELS = (1, 6, 25, 60)  # of figure 2
BATCH = 31  # sentences, the document's
COLOURS = {"no update": "0.6", "IJ": "C3", "Certified": "C0"}


def network(
    corpus: lo.datasets.Corpus, chosen: np.ndarray, most: int, hidden: int
) -> dict[str, np.ndarray]:
    """Scores of labels at words of the chosen sentences and the other parts.

    Only labels of the rest were learned from.
    """
    rows = indicators(corpus.train)
    counts = pd.Series([name for row in rows for name in row]).value_counts()
    known = {str(name): k for k, name in enumerate(counts.index[:most])}
    design, inside = matrix(rows, known), steps(corpus.train, chosen)
    model = MLPClassifier(
        hidden, batch_size=256, early_stopping=True, n_iter_no_change=3, max_iter=30, random_state=0
    )
    start = time.perf_counter()
    model.fit(design[~inside], corpus.train.labels[~inside])
    sizes = f"{np.sum(~inside):,} words, {len(known):,} indicators, {hidden} hidden, {len(model.classes_)} labels"
    print(
        f"network: {sizes}; {model.n_iter_} epochs, {time.perf_counter() - start:.0f} s", flush=True
    )
    others = {
        name: matrix(indicators(part), known)
        for name, part in (("dev", corpus.dev), ("test", corpus.test))
    }
    designs = {"train": design[inside]} | others
    return {
        name: np.log(np.maximum(model.predict_proba(own), 1e-12)) for name, own in designs.items()
    }


def steps(tagged: lo.datasets.Tagged, chosen: np.ndarray) -> np.ndarray:
    """Which words are of the chosen sentences?"""
    return np.isin(np.repeat(np.arange(len(tagged.lengths)), tagged.lengths), chosen)


class Sentences:
    """F of a CRF as a function of a vector, compiled once."""

    def __init__(self, crf: lo.CRF):
        self.crf, self.ones = crf, np.ones(crf.num_units)
        with jax.enable_x64(True):
            self.start, unravel = ravel_pytree(jax.tree.map(jnp.asarray, crf.parameters.start(0)))
            self.both = jax.jit(jax.value_and_grad(lambda v, w: crf.loss(unravel(v), w)))
            self.value = jax.jit(lambda v, w: crf.loss(unravel(v), w))
            self.unravel = unravel

    def losses(self, vectors: np.ndarray, units: np.ndarray) -> np.ndarray:
        """−log p of a sentence's labels under each vector."""
        none, own = np.zeros(self.crf.num_units), np.eye(self.crf.num_units)[units]
        with jax.enable_x64(True):
            return np.array(
                [
                    float(self.value(v, w) - self.value(v, none))
                    for v, w in zip(vectors, own, strict=True)
                ]
            )

    def from_zero(self, units: np.ndarray) -> np.ndarray:
        """Losses of left-out sentences after refits by SciPy's L-BFGS, which know nothing of any
        fit.
        """
        options, found = {"gtol": 1e-7, "ftol": 0.0, "maxiter": 5000, "maxfun": 10_000}, []
        with jax.enable_x64(True):
            for w in self.ones - np.eye(self.crf.num_units)[units]:
                down = lambda v, w=w: [np.asarray(part) for part in self.both(v, w)]
                found.append(
                    scipy.optimize.minimize(
                        down, self.start, jac=True, method="L-BFGS-B", options=options
                    ).x
                )
        return self.losses(np.array(found), units)

    def refitted(self, fit: lo.Fit, plan: lo.Plan, refit: lo.developer.AbstractRefit) -> np.ndarray:
        """Losses of left-out sentences after refits whose errors nobody asks for."""
        found, vectors = lo.fold_parameters(fit, plan, strategy=refit), []
        for k in range(len(plan)):
            theta = self.crf.parameters.unconstrained(
                jax.tree.map(lambda leaf, k=k: leaf[k], found)
            )
            vectors.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)]))
        return self.losses(np.array(vectors), plan.index)


def adam(sentences: Sentences, epochs: int, rate: float) -> Iterator[tuple[float, Any]]:
    """Adam from zero on F in batches: seconds and natural parameters after every epoch."""
    rng, n = np.random.default_rng(1), sentences.crf.num_units
    slope = lambda v, w: np.asarray(sentences.both(v, w)[1])
    with jax.enable_x64(True):
        slope(sentences.start, sentences.ones)  # compiled
    theta, first, second = np.asarray(sentences.start), 0.0, 0.0
    spent, step = 0.0, 0
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in np.array_split(rng.permutation(n), max(1, n // BATCH)):
            weights, step = np.zeros(n), step + 1
            weights[batch] = n / len(batch)
            with jax.enable_x64(True):
                g = slope(theta, weights)
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            theta = theta - rate * first / (1 - 0.9**step) / (
                np.sqrt(second / (1 - 0.999**step)) + 1e-8
            )
        spent += time.perf_counter() - start
        with jax.enable_x64(True):
            natural = sentences.crf.parameters.natural(sentences.unravel(jnp.asarray(theta)))
        yield spent, natural


def look(
    sentences: Sentences, fit: lo.Fit, plan: lo.Plan, certified: int, exact: np.ndarray
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One row of the table, and the losses of the held-out sentences."""
    row: dict[str, Any] = {
        "gradient": float(np.linalg.norm(fit.gradient)),
        "decrement": float(fit.decrement),
    }
    here = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fit.theta)])
    found = {
        "exact": exact,
        "no update": sentences.losses(np.tile(here, (len(plan), 1)), plan.index),
    }
    start = time.process_time()
    found["IJ"] = sentences.refitted(fit, plan, lo.InfinitesimalJackknife())
    row["seconds, IJ"], start = time.process_time() - start, time.process_time()
    few = lo.cross_validate(
        fit, alone(plan.index[:certified], plan.num_units), strategy=lo.Certified(), audit=0
    )
    row["seconds, Certified"], row["flagged, Certified"] = (
        time.process_time() - start,
        len(few.flagged()),
    )
    found["Certified"] = few.losses
    for name in COLOURS:
        true = exact[: len(found[name])]
        row[f"error, {name}"] = float(np.mean(np.abs(np.exp(-found[name]) - np.exp(-true))))
        row[f"of the loss, {name}"] = float(np.mean(np.abs(found[name] - true)))
        row[f"of the mean, {name}"] = float(np.abs(np.mean(found[name] - true)))
    return row, found


def alone(units: np.ndarray, num_units: int) -> lo.Plan:
    """Each of these left out by itself."""
    return lo.Plan(
        np.arange(len(units) + 1), units, np.zeros(len(units)), np.ones(len(units), bool), num_units
    )


def figure2(looks: dict[int, dict[str, np.ndarray]], out: Path) -> None:
    shown = [epoch for epoch in PANELS if epoch in looks]
    figure, axes = plt.subplots(
        1,
        len(shown),
        figsize=(3 * len(shown), 3.4),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for ax, epoch in zip(axes[0], shown, strict=True):
        exact = np.exp(-looks[epoch]["exact"])
        ax.plot([0, 1], [0, 1], "k--", lw=0.8)
        for name, marker in (("no update", "^"), ("IJ", ".")):
            ax.plot(
                exact,
                np.exp(-looks[epoch][name]),
                marker,
                ms=4,
                color=COLOURS[name],
                mfc="none",
                alpha=0.7,
                label=name,
            )
        ax.set(title=f"epoch {epoch}", xlabel="exact")
    axes[0, 0].set_ylabel("p(labels of a held-out sentence)")
    axes[0, 0].legend(frameon=False)
    saved.picture(figure, "tagger_figure2", dpi=80, colours=32)
    figure.savefig(out / "tagger_figure2.png", dpi=130)


def figure5(rows: list[dict[str, Any]], out: Path) -> None:
    table = pd.DataFrame(rows)
    figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained", sharey=True)
    for ax, column in zip(axes, ("seconds of Adam", "gradient"), strict=True):
        for name, colour in COLOURS.items():
            ax.plot(table[column], table[f"error, {name}"], "o-", ms=4, color=colour, label=name)
        ax.set(xscale="log", yscale="log", xlabel=column)
        ax.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("mean error of p(held-out labels)")
    axes[1].legend(frameon=False)
    saved.picture(figure, "tagger_figure5", dpi=80, colours=32)
    figure.savefig(out / "tagger_figure5.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument(
        "--sentences", type=int, default=1000, help="that the CRF layer is trained on"
    )
    parser.add_argument("--folds", type=int, default=500)
    parser.add_argument("--certified", type=int, default=20, help="of these by Certified")
    parser.add_argument(
        "--refits", type=int, default=5, help="of these from zero, to check what is called exact"
    )
    parser.add_argument("--indicators", type=int, default=20_000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1e-2, help="Adam's, of the CRF layer")
    parser.add_argument(
        "--damping",
        type=float,
        default=1e-2,
        help="α of the ridge penalty that goes with the CRF layer",
    )
    saved.add_option(parser)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    corpus, rng = lo.datasets.ud_english(), np.random.default_rng(0)
    chosen = np.sort(rng.choice(len(corpus.train.lengths), given.sentences, replace=False))
    kept = given.out / f"crf_inexact_{given.sentences}_{given.indicators}_{given.hidden}.npz"
    if not kept.exists():
        np.savez(kept, **network(corpus, chosen, given.indicators, given.hidden))
    every = dict(np.load(kept))
    names, codes = np.unique(corpus.train.labels, return_inverse=True)
    lengths, inside = np.asarray(corpus.train.lengths)[chosen], steps(corpus.train, chosen)
    crf = lo.CRF(
        codes[inside],
        lengths,
        scores=every["train"],
        num_labels=len(names),
        penalty=lo.penalties.Ridge(given.damping),
    )
    held = {
        name: lo.CRF(
            np.zeros(len(part.labels), int), part.lengths, scores=every[name], num_labels=len(names)
        )
        for name, part in (("dev", corpus.dev), ("test", corpus.test))
    }
    right = lambda name, theta: lo.developer.models.token_accuracy(
        getattr(corpus, name).labels, names[held[name].decode(theta)]
    )
    start = time.perf_counter()
    fit, sentences = lo.fit(crf), Sentences(crf)
    plan = alone(rng.choice(crf.num_units, given.folds, replace=False), crf.num_units)
    exact = sentences.refitted(fit, plan, lo.Exact())
    took = time.perf_counter() - start
    told = {
        "sentences": crf.num_units,
        "words": len(crf.codes),
        "D": fit.num_params,
        "folds": len(plan),
        "exact, s": took,
    }
    for name in held:
        told[f"network, {name}"] = lo.developer.models.token_accuracy(
            getattr(corpus, name).labels, names[every[name].argmax(1)]
        )
        told[f"minimum, {name}"] = right(name, fit.parameters)
    told |= {
        "loss": exact.mean(),
        "SE": exact.std(ddof=1) / np.sqrt(len(exact)),
        "certified": given.certified,
        "refits": given.refits,
    }
    told["refits' difference"] = float(
        np.max(np.abs(sentences.from_zero(plan.index[: given.refits]) - exact[: given.refits]))
    )
    print(", ".join(f"{key} {value:.5g}" for key, value in told.items()), flush=True)
    rows, looks = [], {}
    for epoch, (spent, natural) in enumerate(adam(sentences, given.epochs, given.rate), 1):
        if epoch not in CHECKED:
            continue
        with warnings.catch_warnings():
            # that the layer is not stationary is what this is about
            warnings.simplefilter("ignore", UserWarning)
            early = lo.anchor(crf, natural, throw=False)
        row, looks[epoch] = look(sentences, early, plan, given.certified, exact)
        rows.append(
            {"epoch": epoch, "seconds of Adam": spent, **row, "dev accuracy": right("dev", natural)}
        )
        print(", ".join(f"{name} {value:.3g}" for name, value in rows[-1].items()), flush=True)
    row, looks[0] = look(sentences, fit, plan, given.certified, exact)
    whole = [
        *rows,
        {
            "epoch": "minimum",
            "seconds of Adam": np.nan,
            **row,
            "dev accuracy": told["minimum, dev"],
        },
    ]
    print(pd.DataFrame(whole).T.to_string(float_format="{:.3g}".format))
    saved.save("tagger", whole, **told)
    figure2(looks, given.out)
    figure5(rows, given.out)


if __name__ == "__main__":
    main()
