"""A neural tagger whose CRF layer was not trained to the end: the first source document's figures 2 and 5, on WNUT 2017.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), section 5 and appendix L.2: a bidirectional
LSTM over word embeddings and a convolution over characters (Ma & Hovy 2016) makes the scores of a CRF, everything trained
by Adam with early stopping. Then the network is frozen and the CRF layer goes on, by Adam, for 60 epochs; after some of
them `--folds` sentences are left out, one at a time.

    pip install torch==2.13.0
    LEAVEOUT_DATA=… python experiments/crf_inexact.py [--glove glove.6B.100d.txt] [--out out] [--epochs 25] [--folds 500]

What the network makes of the sentences is kept in `out`, and used from there if it is there. `Certified` refits to the
minimiser, from wherever Adam stopped; "exact" is `Exact()` from the minimiser, which is one whatever Adam did. The figure
has probabilities of held-out sentences, IJ against exact, and the error against the gradient's norm and Adam's seconds.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import leaveout as lo

CHECKED = (1, 3, 6, 12, 25, 60)  # epochs after which sentences are left out
CERTIFIED = 10  # sentences that Certified refits: far from the minimum each takes many gradients
CHARACTERS = 24  # of a word


class Layer(nn.Module):
    """A linear-chain CRF with the names of pytorch-crf."""

    batch_first = True

    def __init__(self, labels: int):
        super().__init__()
        self.start_transitions = nn.Parameter(torch.empty(labels).uniform_(-0.1, 0.1))
        self.end_transitions = nn.Parameter(torch.empty(labels).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(labels, labels).uniform_(-0.1, 0.1))

    def forward(self, scores: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`−Σ log p(tags)` over the batch."""
        own = scores.gather(2, tags[..., None])[..., 0] * mask
        moves = self.transitions[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]
        last = tags.gather(1, mask.sum(1, keepdim=True).long() - 1)[:, 0]
        known = own.sum(1) + moves.sum(1) + self.start_transitions[tags[:, 0]] + self.end_transitions[last]
        sums = self.start_transitions + scores[:, 0]
        for t in range(1, scores.shape[1]):
            on = torch.logsumexp(sums[:, :, None] + self.transitions, 1) + scores[:, t]
            sums = torch.where(mask[:, t, None] > 0, on, sums)
        return (torch.logsumexp(sums + self.end_transitions, 1) - known).sum()


class Tagger(nn.Module):
    """Scores of labels from words and their characters."""

    def __init__(self, vectors: torch.Tensor, counts: torch.Tensor, characters: int, labels: int, hidden: int = 100):
        super().__init__()
        self.counts = counts  # of each word in training: one seen c times is taken as unknown with probability 1/(1 + c)
        self.words = nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=0)
        self.characters = nn.Embedding(characters, 25, padding_idx=0)
        self.convolution = nn.Conv1d(25, 50, 3, padding=1)
        self.shape = nn.Embedding(6, 8)
        self.drop = nn.Dropout(0.5)
        self.rnn = nn.LSTM(vectors.shape[1] + 58, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, labels)

    def forward(self, words: torch.Tensor, letters: torch.Tensor, shapes: torch.Tensor) -> torch.Tensor:
        batch, steps, width = letters.shape
        if self.training:
            words = torch.where(torch.rand(words.shape) * (1 + self.counts[words]) < 1, 1, words)
        inside = nn.functional.dropout(self.characters(letters.view(batch * steps, width)), 0.2, self.training).transpose(1, 2)
        spelt = torch.relu(self.convolution(inside)).amax(2).view(batch, steps, -1)
        x = self.drop(torch.cat([self.words(words), spelt, self.shape(shapes)], 2))
        return self.out(self.drop(self.rnn(x)[0]))


def shape(word: str) -> int:
    kinds = (word.isdigit(), word.isupper(), word.istitle(), word.islower(), not any(c.isalnum() for c in word))
    return next((k + 1 for k, kind in enumerate(kinds) if kind), 0)


class Coded:
    """A set of sentences in numbers, padded by batches."""

    def __init__(self, tagged: Any, words: dict[str, int], letters: dict[str, int], names: list[str]):
        ends = np.cumsum(tagged.lengths)
        self.lengths = np.array(tagged.lengths)
        self.labels = np.array([names.index(label) if label in names else 0 for label in tagged.labels])
        self.tags = tagged.labels
        self.sentences = []
        for start, end in zip(ends - tagged.lengths, ends, strict=True):
            own = [str(word) for word in tagged.words[start:end]]
            word = torch.tensor([words.get(w.lower(), 1) for w in own])
            spelt = torch.zeros(len(own), CHARACTERS, dtype=torch.long)
            for t, w in enumerate(own):
                spelt[t, : min(len(w), CHARACTERS)] = torch.tensor([letters.get(c, 1) for c in w[:CHARACTERS]])
            form = torch.tensor([shape(w) for w in own])
            self.sentences.append((word, spelt, form, torch.tensor(self.labels[start:end])))

    def batch(self, chosen: Any) -> list[torch.Tensor]:
        """Words, characters, shapes, labels and mask of some sentences."""
        parts = [
            nn.utils.rnn.pad_sequence(part, batch_first=True) for part in zip(*(self.sentences[n] for n in chosen), strict=True)
        ]
        mask = torch.arange(parts[0].shape[1]) < torch.tensor(self.lengths[list(chosen)])[:, None]
        return [*parts, mask]


def vectors(words: dict[str, int], glove: Path | None, size: int) -> torch.Tensor:
    """Word vectors at random, or those of a GloVe file where it has them."""
    table = 0.1 * torch.randn(len(words) + 2, size)
    found = 0
    if glove is not None:
        for line in glove.open(encoding="utf-8"):
            word, *numbers = line.rstrip().split(" ")
            if word in words and len(numbers) == size:
                table[words[word]] = torch.tensor([float(number) for number in numbers])
                found += 1
    print(f"word vectors: {len(words)} words, {found} of them from GloVe" + ("" if glove else " (no file given: all learned)"))
    table[0] = 0
    return table


@torch.no_grad()
def scores_of(tagger: Tagger, data: Coded) -> np.ndarray:
    """Emission scores of all sentences, one after another."""
    tagger.eval()
    out: list[Any] = [None] * len(data.sentences)
    order = np.argsort(data.lengths)
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        words, letters, forms, _, _ = data.batch(chosen)
        for n, own in zip(chosen, tagger(words, letters, forms), strict=True):
            out[n] = own[: data.lengths[n]].numpy()
    return np.concatenate(out)


def f1(layer: Layer, scores: np.ndarray, data: Coded, names: list[str]) -> float:
    crf = lo.CRF(np.zeros(len(scores), int), data.lengths, scores=scores, num_labels=len(names))
    found = crf.decode({name: getattr(layer, theirs).detach().numpy() for name, theirs in WEIGHTS.items()})
    return lo.entity_f1(data.tags, np.asarray(names, object)[found], data.lengths)


WEIGHTS = {"start": "start_transitions", "end": "end_transitions", "transition": "transitions"}


def train(tagger: Tagger, layer: Layer, data: Coded, dev: Coded, names: list[str], epochs: int) -> None:
    """Adam over everything, the best epoch on the development set kept."""
    parameters = [*tagger.parameters(), *layer.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=2e-3)
    best, kept = -1.0, None
    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        tagger.train()
        start, total = time.perf_counter(), 0.0
        order = np.argsort(data.lengths + rng.random(len(data.lengths)) * 4)
        batches = np.array_split(order, len(order) // 32)
        for k in rng.permutation(len(batches)):
            words, letters, forms, labels, mask = data.batch(batches[k])
            loss = layer(tagger(words, letters, forms), labels, mask.float())
            optimiser.zero_grad()
            (loss / len(batches[k])).backward()
            nn.utils.clip_grad_norm_(parameters, 5.0)
            optimiser.step()
            total += float(loss.detach())
        for group in optimiser.param_groups:
            group["lr"] *= 0.95
        value = f1(layer, scores_of(tagger, dev), dev, names)
        print(
            f"epoch {epoch + 1:3}: loss {total / len(order):7.3f} a sentence, dev F1 {value:.3f}, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        if value > best:
            best = value
            kept = [{k: v.clone() for k, v in module.state_dict().items()} for module in (tagger, layer)]
    assert kept is not None
    tagger.load_state_dict(kept[0])
    layer.load_state_dict(kept[1])


def padded(scores: np.ndarray, data: Coded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mask = np.arange(data.lengths.max()) < data.lengths[:, None]
    emissions, tags = np.zeros((*mask.shape, scores.shape[1]), np.float32), np.zeros(mask.shape, int)
    emissions[mask], tags[mask] = scores, data.labels
    return emissions, tags, mask


def look(
    layer: Layer, arrays: tuple, plan: lo.Plan, damping: float, exact: np.ndarray
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One row of the table, and the losses of the held-out sentences."""
    penalty = lo.penalties.Ridge(damping)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the layer is not stationary is what this is about
        fit = lo.from_pytorch_crf(layer, *arrays, penalty=penalty, throw=False)
    row: dict[str, Any] = {"gradient": float(np.linalg.norm(fit.gradient)), "decrement": float(fit.decrement)}
    found = {"Exact": exact}
    few = lo.Plan(
        plan.indptr[: CERTIFIED + 1], *(part[:CERTIFIED] for part in (plan.index, plan.weight, plan.held)), len(arrays[1])
    )
    for refit in (lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.Certified()):
        start = time.perf_counter()
        own = few if isinstance(refit, lo.Certified) else plan
        cv = lo.cross_validate(fit, own, refit)
        row["seconds, " + type(refit).__name__] = time.perf_counter() - start
        found[type(refit).__name__] = cv.per_unit()[own.index]
        if isinstance(refit, lo.Certified):
            row["± of Certified"], row["flagged"] = float(cv.error.mean()), len(cv.flagged())
    for name in ("NoUpdate", "InfinitesimalJackknife", "Certified"):
        row["error, " + name] = float(np.mean(np.abs(np.exp(-found[name]) - np.exp(-exact[: len(found[name])]))))
        row["of the loss, " + name] = float(np.mean(np.abs(found[name] - exact[: len(found[name])])))
    return row, found


def picture(looks: list[tuple[int, dict, dict]], file: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, axes = plt.subplots(2, 3, figsize=(11, 7), layout="constrained")
    for axis, (epoch, _, found) in zip(axes.flat[:4], [looks[0], looks[1], looks[len(looks) // 2], looks[-1]], strict=True):
        exact = np.exp(-found["Exact"])
        axis.plot([0, 1], [0, 1], "k--", lw=0.8)
        axis.plot(exact, np.exp(-found["InfinitesimalJackknife"]), "r.", ms=4)
        axis.set(title=f"epoch {epoch}", xlabel="exact", ylabel="IJ")
    rows = pd.DataFrame([row for _, row, _ in looks])
    for axis, column, line in ((axes[1, 1], "gradient", "o"), (axes[1, 2], "seconds of Adam", "o-")):
        for name, size in (("NoUpdate", 9), ("InfinitesimalJackknife", 5), ("Certified", 5)):
            axis.plot(rows[column], rows["error, " + name], line, ms=size, label=name)
        axis.set(xscale="log", yscale="log", xlabel=column, ylabel="mean error of p(held-out labels)")
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[1, 1].legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"picture: {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glove", type=Path)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--folds", type=int, default=500)
    parser.add_argument("--damping", type=float, default=1e-2, help="α of the ridge penalty that goes with the CRF layer")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the batches are small
    corpus = lo.datasets.wnut17()
    names = [str(name) for name in np.unique(corpus.train.labels)]
    words = {word: k + 2 for k, word in enumerate(sorted({str(w).lower() for w in corpus.train.words}))}
    letters = {c: k + 2 for k, c in enumerate(sorted({c for w in corpus.train.words for c in str(w)}))}
    data, dev, test = (Coded(part, words, letters, names) for part in corpus)
    kept = options.out / "crf_inexact.npz"
    if not kept.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        counts = torch.zeros(len(words) + 2)
        counts[0] = torch.inf  # padding stays padding
        for word in corpus.train.words:
            counts[words[str(word).lower()]] += 1
        table = vectors(words, options.glove, options.size)
        tagger, layer = Tagger(table, counts, len(letters) + 2, len(names)), Layer(len(names))
        train(tagger, layer, data, dev, names, options.epochs)
        every = {name: scores_of(tagger, part) for name, part in (("train", data), ("dev", dev), ("test", test))}
        values = ", ".join(f"{f1(layer, every[name], part, names):.3f} {name}" for name, part in (("dev", dev), ("test", test)))
        print(f"F1 of the tagger: {values}", flush=True)
        np.savez(kept, **every)
    every = dict(np.load(kept))
    scores = every["train"]
    arrays = padded(scores, data)
    emissions, tags, mask = (torch.as_tensor(array) for array in arrays)
    fresh = Layer(len(names))  # the CRF layer anew, on the frozen network
    optimiser = torch.optim.Adam(fresh.parameters(), lr=2e-2)
    chosen = np.random.default_rng(0).choice(len(data.lengths), options.folds, replace=False)
    plan = lo.Plan(np.arange(options.folds + 1), chosen, np.zeros(options.folds), np.ones(options.folds, bool), len(mask))
    start = time.perf_counter()
    whole = lo.CRF(data.labels, data.lengths, scores=scores, num_labels=len(names), penalty=lo.penalties.Ridge(options.damping))
    exact = lo.cross_validate(lo.fit(whole), plan, lo.Exact()).per_unit()[plan.index]
    print(f"exact refits: {time.perf_counter() - start:.0f} s, compiling and the fit included", flush=True)
    looks, spent, rng = [], 0.0, np.random.default_rng(1)
    for epoch in range(1, max(CHECKED) + 1):
        start = time.perf_counter()
        for batch in np.array_split(rng.permutation(len(mask)), len(mask) // 128):
            longest = int(data.lengths[batch].max())
            own = [part[batch, :longest] for part in (emissions, tags, mask.float())]
            loss = fresh(*own) + options.damping / 2 * len(batch) / len(mask) * sum((p**2).sum() for p in fresh.parameters())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        spent += time.perf_counter() - start
        if epoch in CHECKED:
            row, found = look(fresh, arrays, plan, options.damping, exact)
            row = {"epoch": epoch, "seconds of Adam": spent, **row, "dev F1": f1(fresh, every["dev"], dev, names)}
            looks.append((epoch, row, found))
            print(", ".join(f"{name} {value:.3g}" for name, value in row.items()), flush=True)
    print(pd.DataFrame([row for _, row, _ in looks]).T.to_string(float_format="{:.3g}".format))
    picture(looks, options.out / "crf_inexact.png")


if __name__ == "__main__":
    main()
