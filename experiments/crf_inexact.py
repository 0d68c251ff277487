"""Taggers whose CRF layer was not trained to the end: the first source document's figures 2 and 5.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), section 5 and appendix
L.2: a network makes the scores of a CRF, everything trained by Adam with early stopping. Then the
network is frozen and the CRF layer goes on, by Adam in batches of 31, for 60 epochs; after some of
them `--folds` sentences are left out, one at a time.

    LEAVEOUT_DATA=… python experiments/crf_inexact.py [entities speech] [--folds 500]
    [--refits 12] [--out out] [--save] [--quick]

    entities   of WNUT 2017, its 3,394 sentences, by the document's network (`crf_network.py`; no
               GloVe); the CRF layer goes on from where it was trained with the network
    speech     parts of speech of an English treebank: a hidden layer over indicators of words,
               endings, shapes and neighbours learns on the other sentences, and the CRF layer, from
               zero, on a thousand that it has not seen

`--ridge` is the α of a ridge penalty on the CRF layer, which is part of F: without one, transitions
that never occur have no minimum. `--damping` is added to the diagonal of H, as in the document.
`Certified` refits to the minimiser, from wherever Adam stopped; "exact" is `Exact()` from the
minimiser, which is one whatever Adam did; `--refits` of them are made from zero too, by SciPy's
L-BFGS on an F that is not the library's. The figures have probabilities of held-out sentences, IJ
and no update against exact, and the error against the gradient's norm and Adam's seconds.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import crf_network
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pandas as pd
import saved
import scipy.optimize
from crf_features import indicators, matrix
from crf_network import BATCH, Layer, Padded
from jax.flatten_util import ravel_pytree
from matplotlib.ticker import NullFormatter
from sklearn.neural_network import MLPClassifier

import leaveout as lo

CHECKED = (1, 3, 6, 12, 25, 60)  # epochs after which sentences are left out
PANELS = (1, 6, 25, 60)  # of figure 2
HELD_OUT = ("dev", "test")
COLOURS = {"no update": "0.6", "IJ": "C3", "Certified": "C0"}


class Text(NamedTuple):
    """A CRF on frozen scores, and where its layer starts."""

    crf: lo.CRF
    padded: Padded  # its scores and labels
    start: Layer
    measure: Callable[[str, Any], float]  # of a part's labels, by parameters
    unit: str  # of the measure
    network: dict[str, Any]  # what is told of it


# the two networks and their sentences


def speech(given: argparse.Namespace) -> Text:
    corpus = lo.datasets.ud_english()
    size = 100 if given.quick else 1000
    chosen = np.sort(
        np.random.default_rng(0).choice(len(corpus.train.lengths), size, replace=False)
    )
    inside = np.isin(np.repeat(np.arange(len(corpus.train.lengths)), corpus.train.lengths), chosen)
    scores, network = saved.part("tagger", "network", lambda: hidden_layer(corpus, inside, given))
    names, codes = np.unique(corpus.train.labels, return_inverse=True)
    lengths, K = np.asarray(corpus.train.lengths)[chosen], len(names)
    accuracy = lambda part, labels: lo.developer.models.token_accuracy(part.labels, labels)
    for name in HELD_OUT:
        labels = names[scores[name].argmax(1)]
        network[f"network, {name}"] = accuracy(getattr(corpus, name), labels)
    start = Layer(np.zeros(K), np.zeros(K), np.zeros((K, K)))
    measure = measured(corpus, scores, names, accuracy)
    return text(
        codes[inside], lengths, scores["train"], start, measure, "accuracy", network, given.ridge
    )


def hidden_layer(
    corpus: lo.datasets.Corpus, inside: np.ndarray, given: argparse.Namespace
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Scores of labels at words of the chosen sentences and the other parts.

    Only labels of the rest were learned from.
    """
    rows = indicators(corpus.train)
    counts = pd.Series([name for row in rows for name in row]).value_counts()
    known = {str(name): k for k, name in enumerate(counts.index[: given.indicators])}
    design = matrix(rows, known)
    model = MLPClassifier(
        given.hidden,
        batch_size=256,
        early_stopping=True,
        n_iter_no_change=3,
        max_iter=2 if given.quick else 30,
        random_state=0,
    )
    model.fit(design[~inside], corpus.train.labels[~inside])
    designs = {"train": design[inside]}
    for name in HELD_OUT:
        designs[name] = matrix(indicators(getattr(corpus, name)), known)
    scores = {
        name: np.log(np.maximum(model.predict_proba(part), 1e-12)) for name, part in designs.items()
    }
    return scores, {"learned from, words": int(np.sum(~inside)), "epochs": model.n_iter_}


def entities(given: argparse.Namespace) -> Text:
    corpus = lo.datasets.wnut17()
    if given.quick:
        corpus = corpus._replace(train=first_sentences(corpus.train, 200))
    names, codes = np.unique(corpus.train.labels, return_inverse=True)
    scores, start, network = saved.part(
        "entities", "network", lambda: crf_network.learned(corpus, names, given.network_epochs)
    )
    f1 = lambda part, labels: lo.developer.models.entity_f1(part.labels, labels, part.lengths)
    measure = measured(corpus, scores, names, f1)
    for name in HELD_OUT:
        network[f"network, {name}"] = measure(name, start._asdict())
    lengths = corpus.train.lengths
    return text(codes, lengths, scores["train"], start, measure, "F1", network, given.ridge)


def first_sentences(tagged: lo.datasets.Tagged, size: int) -> lo.datasets.Tagged:
    words = int(np.sum(tagged.lengths[:size]))
    return lo.datasets.Tagged(tagged.words[:words], tagged.labels[:words], tagged.lengths[:size])


def measured(
    corpus: lo.datasets.Corpus,
    scores: dict[str, np.ndarray],
    names: np.ndarray,
    measure: Callable[[lo.datasets.Tagged, np.ndarray], float],
) -> Callable[[str, Any], float]:
    """The measure of a part's labels that are decoded by parameters of the CRF."""
    held = {}
    for name in HELD_OUT:
        lengths = getattr(corpus, name).lengths
        zeros = np.zeros(len(scores[name]), int)
        held[name] = lo.CRF(zeros, lengths, scores=scores[name], num_labels=len(names))
    return lambda name, theta: measure(getattr(corpus, name), names[held[name].decode(theta)])


def text(
    codes: np.ndarray,
    lengths: np.ndarray,
    scores: np.ndarray,
    start: Layer,
    measure: Callable[[str, Any], float],
    unit: str,
    network: dict[str, Any],
    ridge: float,
) -> Text:
    K = scores.shape[1]
    crf = lo.CRF(codes, lengths, scores=scores, num_labels=K, penalty=lo.penalties.Ridge(ridge))
    padded = crf_network.padded((scores.astype(float),), codes, lengths)
    return Text(crf, padded, start, measure, unit, network)


# losses of sentences, not by the library


def losses_of(padded: Padded, layers: Layer, units: np.ndarray) -> np.ndarray:
    """−log p of each unit's labels under the layer of the same row."""
    part = padded.rows(units)
    rows = jax.tree.map(lambda array: array[:, None], (*part.inputs, part.labels, part.inside))
    with jax.enable_x64(True):
        layers = jax.tree.map(jnp.asarray, layers)
        return np.asarray(jax.jit(jax.vmap(crf_network.losses))(layers, *rows))[:, 0]


def from_zero(padded: Padded, ridge: float, units: np.ndarray) -> np.ndarray:
    """Losses of left-out sentences after refits by SciPy's L-BFGS, which know nothing of any
    fit.
    """
    with jax.enable_x64(True):
        K = padded.inputs[0].shape[2]
        vector, layer_of = ravel_pytree(Layer(jnp.zeros(K), jnp.zeros(K), jnp.zeros((K, K))))
        arrays = jax.tree.map(jnp.asarray, (*padded.inputs, padded.labels, padded.inside))

        @jax.jit
        def objective(v: jax.Array, w: jax.Array, *arrays) -> tuple[jax.Array, jax.Array]:
            F = lambda v: w @ crf_network.losses(layer_of(v), *arrays) + 0.5 * ridge * jnp.sum(v**2)
            return jax.value_and_grad(F)(v)

        options = {"gtol": 1e-5, "ftol": 0.0, "maxiter": 5000, "maxfun": 10_000, "maxcor": 100}
        layers = []
        for unit in units:
            w = np.ones(len(padded.labels))
            w[unit] = 0.0
            down = lambda v, w=w: [np.asarray(part) for part in objective(v, w, *arrays)]
            end = scipy.optimize.minimize(
                down, np.asarray(vector), jac=True, method="L-BFGS-B", options=options
            )
            layers.append(layer_of(end.x))
    return losses_of(padded, stacked(layers), units)


def stacked(layers: list[Layer]) -> Layer:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)


# fits that were stopped early


def adam(text: Text, ridge: float, epochs: int, rate: float) -> dict[int, tuple[float, Layer]]:
    """Adam on F in batches: seconds and the layer after the epochs that are looked at."""
    rng, n, optimiser, layers = np.random.default_rng(1), text.crf.num_units, optax.adam(rate), {}
    with jax.enable_x64(True):
        layer = jax.tree.map(lambda array: jnp.asarray(array, float), text.start)
        state = optimiser.init(layer)

        @jax.jit
        def step(layer: Layer, state: optax.OptState, scores, labels, inside) -> tuple:
            squares = lambda layer: sum(jnp.sum(leaf**2) for leaf in layer)
            mean = lambda layer: (
                jnp.mean(crf_network.losses(layer, scores, labels, inside))
                + 0.5 * ridge / n * squares(layer)
            )
            move, state = optimiser.update(jax.grad(mean)(layer), state)
            return optax.apply_updates(layer, move), state

        def batches() -> list[Padded]:
            parts = np.array_split(rng.permutation(n), max(1, n // BATCH))
            return [jax.tree.map(lambda array, k=k: array[k], text.padded) for k in parts]

        move = lambda layer, state, part: step(layer, state, *part.inputs, part.labels, part.inside)
        parts, spent = batches(), 0.0
        for part in (parts[0], parts[-1]):  # both sizes, compiled before the clock runs
            jax.block_until_ready(move(layer, state, part))
        for epoch in range(1, epochs + 1):
            start = time.perf_counter()
            for part in parts:
                layer, state = move(layer, state, part)
            jax.block_until_ready(layer)
            spent += time.perf_counter() - start
            if epoch in CHECKED:
                layers[epoch] = spent, jax.tree.map(np.asarray, layer)
            parts = batches()
    return layers


def refitted(
    text: Text, fit: lo.Fit, plan: lo.Plan, refit: lo.developer.AbstractRefit
) -> np.ndarray:
    """Losses of left-out sentences after refits whose errors nobody asks for."""
    parameters = lo.fold_parameters(fit, plan, strategy=refit)
    return losses_of(text.padded, Layer(**parameters), plan.index)


def look(
    text: Text, fit: lo.Fit, plan: lo.Plan, certified: int, exact: np.ndarray
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One row of the table, and the losses of the held-out sentences."""
    row: dict[str, Any] = {
        "gradient": float(np.linalg.norm(fit.gradient)),
        "decrement": float(fit.decrement),
    }
    here = stacked([Layer(**fit.parameters)] * len(plan.index))
    losses = {"exact": exact, "no update": losses_of(text.padded, here, plan.index)}
    start = time.process_time()
    losses["IJ"] = refitted(text, fit, plan, lo.InfinitesimalJackknife())
    row["seconds, IJ"], start = time.process_time() - start, time.process_time()
    few = alone(plan.index[:certified], plan.num_units)
    estimate = lo.cross_validate(fit, few, strategy=lo.Certified(), audit=0)
    row["seconds, Certified"] = time.process_time() - start
    row["flagged, Certified"] = len(estimate.flagged())
    losses["Certified"] = estimate.losses
    for name in COLOURS:
        true = exact[: len(losses[name])]
        apart = np.abs(np.exp(-losses[name]) - np.exp(-true))
        row[f"error, {name}"], row[f"largest, {name}"] = float(apart.mean()), float(apart.max())
        row[f"of the loss, {name}"] = float(np.mean(np.abs(losses[name] - true)))
        row[f"of the mean, {name}"] = float(np.abs(np.mean(losses[name] - true)))
    return row, losses


def alone(units: np.ndarray, num_units: int) -> lo.Plan:
    """Each of these left out by itself."""
    return lo.Plan(
        np.arange(len(units) + 1), units, np.zeros(len(units)), np.ones(len(units), bool), num_units
    )


def figure2(name: str, looks: dict[int, dict[str, np.ndarray]], out: Path) -> None:
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
        for strategy, marker in (("no update", "^"), ("IJ", ".")):
            ax.plot(
                exact,
                np.exp(-looks[epoch][strategy]),
                marker,
                ms=4,
                color=COLOURS[strategy],
                mfc="none",
                alpha=0.7,
                label=strategy,
            )
        ax.set(title=f"epoch {epoch}", xlabel="exact")
    axes[0, 0].set_ylabel("p(labels of a held-out sentence)")
    axes[0, 0].legend(frameon=False)
    saved.picture(figure, f"{name}_figure2", dpi=80, colours=32)
    figure.savefig(out / f"{name}_figure2.png", dpi=130)


def figure5(name: str, rows: list[dict[str, Any]], out: Path) -> None:
    table = pd.DataFrame(rows)
    figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained", sharey=True)
    for ax, column in zip(axes, ("seconds of Adam", "gradient"), strict=True):
        for strategy, colour in COLOURS.items():
            error = table[f"error, {strategy}"]
            ax.plot(table[column], error, "o-", ms=4, color=colour, label=strategy)
        ax.set(xscale="log", yscale="log", xlabel=column)
        ax.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("mean error of p(held-out labels)")
    axes[1].legend(frameon=False)
    saved.picture(figure, f"{name}_figure5", dpi=80, colours=32)
    figure.savefig(out / f"{name}_figure5.png", dpi=130)


def study(name: str, text: Text, given: argparse.Namespace) -> None:
    """The table and both figures of one text."""
    crf, padded = text.crf, text.padded
    plan = alone(
        np.random.default_rng(2).choice(crf.num_units, given.folds, replace=False), crf.num_units
    )
    settings = f"{given.folds} folds, ridge {given.ridge:g}"
    minimum = saved.part(
        name,
        f"minimum, ridge {given.ridge:g}",
        lambda: lo.fit(crf, text.start._asdict()).parameters,
    )
    fit = lo.anchor(crf, minimum)
    exact, seconds = saved.part(
        name, f"exact, {settings}", lambda: timed(lambda: refitted(text, fit, plan, lo.Exact()))
    )
    told = {
        "sentences": crf.num_units,
        "words": len(crf.codes),
        "D": fit.num_params,
        "folds": len(plan),
        "exact, s": seconds,
    }
    told |= text.network | {f"minimum, {part}": text.measure(part, minimum) for part in HELD_OUT}
    told |= {"loss": exact.mean(), "SE": exact.std(ddof=1) / np.sqrt(len(exact))}
    told |= {"certified": given.certified, "refits": given.refits}
    told |= {"ridge": given.ridge, "damping": given.damping}
    again = [
        saved.part(
            name,
            f"from zero, sentence {unit}, ridge {given.ridge:g}",
            lambda unit=unit: from_zero(padded, given.ridge, unit[None])[0],
        )
        for unit in plan.index[: given.refits]
    ]
    told["refits' difference"] = float(np.max(np.abs(again - exact[: given.refits])))
    print({key: value for key, value in told.items() if key != "history"}, flush=True)
    settings = f"{settings}, rate {given.rate:g}"
    layers = saved.part(
        name,
        f"Adam, {given.epochs} epochs, {settings}",
        lambda: adam(text, given.ridge, given.epochs, given.rate),
    )
    settings = f"{settings}, damping {given.damping:g}, {given.certified} certified"
    rows, looks = [], {}
    for epoch, (spent, layer) in layers.items():
        row, looks[epoch] = saved.part(
            name,
            f"after epoch {epoch}, {settings}",
            lambda layer=layer: look(
                text, stopped(crf, layer, given.damping), plan, given.certified, exact
            ),
        )
        dev = {f"dev {text.unit}": text.measure("dev", layer._asdict())}
        rows.append({"epoch": epoch, "seconds of Adam": spent, **row, **dev})
        print(", ".join(f"{key} {value:.3g}" for key, value in rows[-1].items()), flush=True)
    row, looks[0] = saved.part(
        name,
        f"at the minimum, {settings}",
        lambda: look(text, fit, plan, given.certified, exact),
    )
    whole = {"epoch": "minimum", "seconds of Adam": np.nan, **row}
    table = [*rows, whole | {f"dev {text.unit}": told["minimum, dev"]}]
    print(pd.DataFrame(table).T.to_string(float_format="{:.3g}".format))
    losses = {"minimum" if epoch == 0 else epoch: values for epoch, values in looks.items()}
    saved.save(name, table, **told, left_out=plan.index, losses=losses)
    figure2(name, looks, given.out)
    figure5(name, rows, given.out)


def stopped(crf: lo.CRF, layer: Layer, damping: float) -> lo.Fit:
    """A fit where Adam was; that it is not stationary is what this is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return lo.anchor(crf, layer._asdict(), throw=False, damping=damping)


def timed(run: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help=f"of {', '.join(TEXTS)}; both by default")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--folds", type=int, default=500)
    parser.add_argument(
        "--certified", type=int, help="of these by Certified: 5 of entities, 20 of speech"
    )
    parser.add_argument(
        "--refits", type=int, default=12, help="of these from zero, to check what is called exact"
    )
    parser.add_argument("--indicators", type=int, default=20_000, help="of parts of speech")
    parser.add_argument("--hidden", type=int, default=64, help="units, of parts of speech")
    parser.add_argument("--network-epochs", type=int, default=40, help="at most, of entities")
    parser.add_argument("--epochs", type=int, default=60, help="of the CRF layer")
    parser.add_argument("--rate", type=float, help="Adam's, of the CRF layer")
    parser.add_argument("--ridge", type=float, default=1e-2, help="α of the CRF layer's penalty")
    parser.add_argument("--damping", type=float, default=1e-5, help="added to the diagonal of H")
    parser.add_argument("--quick", action="store_true", help="a few sentences, folds and epochs")
    saved.add_option(parser)
    given = parser.parse_args()
    if given.quick:
        given.folds, given.certified, given.refits = 10, 2, 1
        given.epochs, given.network_epochs, given.indicators = 3, 1, 500
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.name or TEXTS:
        text = TEXTS[name]
        choices = {"rate": given.rate or text.rate, "certified": given.certified or text.certified}
        study(text.table, text.make(given), argparse.Namespace(**vars(given) | choices))


class Choice(NamedTuple):
    """What a text has of its own: its table, Adam's rate, and how many refits are certified."""

    table: str
    make: Callable[[argparse.Namespace], Text]
    rate: float
    certified: int


TEXTS = {
    "entities": Choice("entities", entities, 1e-3, 5),
    "speech": Choice("tagger", speech, 1e-2, 20),  # whose layer starts at zero
}

if __name__ == "__main__":
    main()
