"""The first source document's tagger: two bidirectional LSTM over words and their characters, and a
CRF layer on top.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), appendix L.2. Sizes
are those printed there: 50 hidden units in each direction, characters embedded in 50 dimensions, 30
filters of width 3 padded by 2, dropout of a quarter with one mask along a sentence between the
LSTM, batches of 31 sentences, Adam, early stopping by the loss on the development set. GloVe is
not to be had here: word embeddings, of 300 dimensions too, are learned with the network, those of
words that occur once as one.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import leaveout as lo

BATCH = 31  # sentences, the document's
HIDDEN, FILTERS, WIDTH, CHARACTERS, WORDS = 50, 30, 3, 50, 300
LETTERS, LONGEST_WORD = 96, 20  # printable ASCII, of which a blank stands for all others; 0 pads
DROPPED = 0.25


class Padded(NamedTuple):
    """Sentences as arrays of one length, a row for each."""

    inputs: tuple[np.ndarray, ...]  # words and characters, or scores
    labels: np.ndarray
    inside: np.ndarray  # False is padding

    def rows(self, chosen: np.ndarray) -> "Padded":
        """Some of them, as long as the longest of these, in eights: few programs are compiled."""
        longest = self.inside[chosen].sum(1).max()
        length = min(-(-longest // 8) * 8, self.inside.shape[1])
        cut = lambda array: array[chosen, :length]
        return Padded(
            tuple(cut(array) for array in self.inputs), cut(self.labels), cut(self.inside)
        )


class Layer(NamedTuple):
    """Parameters of a CRF, as `lo.CRF` names them."""

    end: jax.Array
    start: jax.Array
    transition: jax.Array


def padded(inputs: tuple[np.ndarray, ...], codes: np.ndarray, lengths: np.ndarray) -> Padded:
    """One row a word to one row a sentence."""
    inside = np.arange(-(-max(lengths) // 8) * 8) < np.asarray(lengths)[:, None]

    def spread(array: np.ndarray) -> np.ndarray:
        filled = np.zeros((*inside.shape, *array.shape[1:]), array.dtype)
        filled[inside] = array
        return filled

    return Padded(tuple(spread(array) for array in inputs), spread(codes), inside)


def losses(layer: Layer, scores: jax.Array, labels: jax.Array, inside: jax.Array) -> jax.Array:
    """−log p of the labels of each sentence."""

    def forward(alpha: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        score, here = step
        top = alpha.max(1, keepdims=True)
        after = jnp.log(jnp.exp(alpha - top) @ moves) + top + score
        return jnp.where(here[:, None], after, alpha), None

    moves = jnp.exp(layer.transition)
    steps = jnp.swapaxes(scores, 0, 1)[1:], inside.T[1:]
    alpha = jax.lax.scan(forward, layer.start + scores[:, 0], steps)[0]
    emitted = jnp.take_along_axis(scores, labels[:, :, None], axis=2)[:, :, 0]
    moved = layer.transition[labels[:, :-1], labels[:, 1:]]
    last = jnp.take_along_axis(labels, inside.sum(1)[:, None] - 1, axis=1)[:, 0]
    path = layer.start[labels[:, 0]] + layer.end[last]
    path += jnp.sum(emitted * inside, axis=1) + jnp.sum(moved * inside[:, 1:], axis=1)
    return jax.nn.logsumexp(alpha + layer.end, axis=1) - path


def dropped(array: jax.Array, key: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
    """With a mask of this shape, and as it is without a key."""
    if key is None:
        return array
    return array * jax.random.bernoulli(key, 1 - DROPPED, shape) / (1 - DROPPED)


class LSTM(eqx.Module):
    """One layer, a copy for each direction."""

    inputs: jax.Array
    state: jax.Array
    bias: jax.Array

    def __init__(self, columns: int, key: jax.Array):
        first, second = jax.random.split(key)
        draw = lambda key, rows: (
            jax.random.uniform(key, (2, rows, 4 * HIDDEN), minval=-1, maxval=1) / np.sqrt(HIDDEN)
        )
        self.inputs, self.state = draw(first, columns), draw(second, HIDDEN)
        # gates that forget begin open
        self.bias = jnp.zeros((2, 1, 4 * HIDDEN)).at[:, :, HIDDEN : 2 * HIDDEN].set(1.0)

    def __call__(self, x: jax.Array, inside: jax.Array) -> jax.Array:
        """States of both directions; the backward one waits at zero in the padding."""

        def step(carry: tuple, now: tuple) -> tuple:
            hidden, cell = carry
            fed, here = now
            enter, forget, new, leave = jnp.split(
                fed + jnp.einsum("dbh,dhg->dbg", hidden, self.state) + self.bias, 4, axis=-1
            )
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            cell = cell * here
            hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (hidden, cell), hidden

        both = lambda array: jnp.stack([array, array[:, ::-1]])
        fed = jnp.einsum("dbtc,dcg->tdbg", both(x), self.inputs)
        here = jnp.transpose(both(inside), (2, 0, 1))[..., None]
        zero = jnp.zeros((*fed.shape[1:3], HIDDEN))
        forward, backward = jnp.transpose(
            jax.lax.scan(step, (zero, zero), (fed, here))[1], (1, 2, 0, 3)
        )
        return jnp.concatenate([forward, backward[:, ::-1]], axis=-1)


class Network(eqx.Module):
    """Words and characters to scores of labels, and the CRF layer."""

    words: jax.Array
    characters: jax.Array
    filters: jax.Array
    filter_bias: jax.Array
    layers: tuple[LSTM, LSTM]
    output: jax.Array
    output_bias: jax.Array
    crf: Layer

    def __init__(self, num_words: int, num_labels: int, key: jax.Array):
        keys = jax.random.split(key, 6)
        self.words = 0.1 * jax.random.normal(keys[0], (num_words, WORDS))
        self.characters = 0.1 * jax.random.normal(keys[1], (LETTERS, CHARACTERS))
        self.filters = jax.random.normal(keys[2], (WIDTH, CHARACTERS, FILTERS)) / np.sqrt(
            WIDTH * CHARACTERS
        )
        self.filter_bias = jnp.zeros(FILTERS)
        self.layers = LSTM(WORDS + FILTERS, keys[3]), LSTM(2 * HIDDEN, keys[4])
        self.output = jax.random.normal(keys[5], (2 * HIDDEN, num_labels)) / np.sqrt(2 * HIDDEN)
        self.output_bias = jnp.zeros(num_labels)
        self.crf = Layer(*(jnp.zeros(num_labels),) * 2, jnp.zeros((num_labels, num_labels)))

    def scores(
        self,
        words: jax.Array,
        characters: jax.Array,
        inside: jax.Array,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Scores of labels; with a key some parts are dropped, as in training."""
        keys = [None] * 4 if key is None else jax.random.split(key, 4)
        embedded = self.characters[characters] * (characters > 0)[..., None]
        embedded = dropped(embedded, keys[0], embedded.shape)
        embedded = jnp.pad(embedded, [(0, 0)] * 2 + [(WIDTH - 1, WIDTH - 1), (0, 0)])
        places = LONGEST_WORD + WIDTH - 1
        filtered = sum(embedded[:, :, k : k + places] @ self.filters[k] for k in range(WIDTH))
        x = jnp.concatenate([self.words[words], filtered.max(2) + self.filter_bias], axis=-1)
        x = dropped(x, keys[1], x.shape)
        for layer, key in zip(self.layers, keys[2:], strict=True):
            x = dropped(layer(x, inside), key, (len(words), 1, 2 * HIDDEN))
        return x @ self.output + self.output_bias


def codes_of(tagged: lo.datasets.Tagged, vocabulary: dict[str, int]) -> tuple[np.ndarray, ...]:
    """Codes of words, and of the characters of each."""
    letters = np.zeros((len(tagged.words), LONGEST_WORD), np.int32)
    for row, word in zip(letters, tagged.words, strict=True):
        codes = [ord(letter) - 31 for letter in word[:LONGEST_WORD]]
        row[: len(codes)] = [code if 0 < code < LETTERS else 1 for code in codes]
    words = np.array([vocabulary.get(word.lower(), 0) for word in tagged.words], np.int32)
    return words, letters


def batches(sentences: Padded, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Of sentences about as long as each other, in random order."""
    lengths = sentences.inside.sum(1)
    order = np.argsort(lengths * rng.uniform(0.9, 1.1, len(lengths)))
    parts = np.array_split(order, max(1, len(order) // BATCH))
    return (parts[k] for k in rng.permutation(len(parts)))


@eqx.filter_jit
def scored(network: Network, sentences: Padded, key: jax.Array | None) -> tuple:
    """Scores, and losses of sentences."""
    scores = network.scores(*sentences.inputs, sentences.inside, key)
    return scores, losses(network.crf, scores, sentences.labels, sentences.inside)


def evaluated(network: Network, sentences: Padded) -> tuple[np.ndarray, float]:
    """Scores of all words of all sentences, one after another, and the mean loss."""
    order, size = np.argsort(sentences.inside.sum(1), kind="stable"), 4 * BATCH
    scores = [None] * len(order)
    total = 0.0
    for start in range(0, len(order), size):
        # the last batch is filled up by its first sentences
        chosen = np.resize(order[start : start + size], size)
        part = sentences.rows(chosen)
        found, values = scored(network, part, None)
        real = min(size, len(order) - start)
        total += float(values[:real].sum())
        for k in range(real):
            scores[chosen[k]] = np.asarray(found[k])[part.inside[k]]
    return np.concatenate(scores), total / len(order)


def trained(
    training: Padded, development: Padded, network: Network, epochs: int, patience: int
) -> tuple[Network, list[dict[str, float]]]:
    """The network of the epoch with the least loss on the development set, and what each epoch
    brought.
    """
    optimiser = optax.adam(1e-3)
    state, rng, key = (
        optimiser.init(eqx.filter(network, eqx.is_array)),
        np.random.default_rng(0),
        jax.random.key(1),
    )

    @eqx.filter_jit
    def step(network: Network, state: optax.OptState, part: Padded, key: jax.Array) -> tuple:
        mean = lambda network: jnp.mean(scored(network, part, key)[1])
        value, slope = eqx.filter_value_and_grad(mean)(network)
        move, state = optimiser.update(slope, state)
        return eqx.apply_updates(network, move), state, value

    best, history, start = network, [], time.perf_counter()
    for epoch in range(1, epochs + 1):
        values = []
        for chosen in batches(training, rng):
            key, own = jax.random.split(key)
            network, state, value = step(network, state, training.rows(chosen), own)
            values.append(value)
        loss = evaluated(network, development)[1]
        history.append(
            {"epoch": epoch, "training": float(np.mean(values)), "development": loss}
            | {"seconds": time.perf_counter() - start}
        )
        print(", ".join(f"{name} {value:.4g}" for name, value in history[-1].items()), flush=True)
        least = min(range(len(history)), key=lambda k: history[k]["development"])
        if least == len(history) - 1:
            best = network
        elif len(history) - 1 - least >= patience:
            break
    return best, history


def learned(
    corpus: lo.datasets.Corpus, names: np.ndarray, epochs: int
) -> tuple[dict[str, np.ndarray], Layer, dict[str, list]]:
    """Scores of all words of each part, the CRF layer, and the history of training."""
    words, counts = np.unique([word.lower() for word in corpus.train.words], return_counts=True)
    vocabulary = {str(word): k for k, word in enumerate(words[counts > 1], 1)}
    parts = {
        name: padded(codes_of(part, vocabulary), np.searchsorted(names, part.labels), part.lengths)
        for name, part in corpus._asdict().items()
    }
    network = Network(len(vocabulary) + 1, len(names), jax.random.key(0))
    network, history = trained(parts["train"], parts["dev"], network, epochs, patience=5)
    scores = {name: evaluated(network, part)[0] for name, part in parts.items()}
    layer = jax.tree.map(np.asarray, network.crf)
    weights = sum(leaf.size for leaf in jax.tree.leaves(network))
    return scores, layer, {"words known": len(vocabulary), "weights": weights, "history": history}
