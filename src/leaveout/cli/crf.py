"""`leaveout crf TRAIN.conll` cross-validates a conditional random field of tagged sentences, every sentence left out once."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import scipy
import typer
from rich import box
from rich.table import Table

import leaveout as lo

from ._console import console, fail
from ._files import content, save, split_names, text
from ._options import REFITS, Checkpoint, Mute, Refit, Report, at_least, out_option, protect_input
from ._table import page

ENTITY = re.compile(r"O|[BI]-.+")


def crf(
    train: Annotated[
        Path,
        typer.Argument(
            help="Sentences in columns, one word a line, a blank line after each sentence; - is standard input.", readable=False
        ),
    ],
    word: Annotated[int, typer.Option(help="The column of the words; 0 is the first, -1 the last.")] = 0,
    label: Annotated[int, typer.Option(help="The column of the labels.")] = -1,
    features: Annotated[
        int,
        typer.Option(help="How many indicators of words to keep, the most frequent ones.", callback=at_least("--features", 1)),
    ] = 100,
    penalty: Annotated[float, typer.Option(help="α of the ridge penalty α/2 ‖θ‖² on all weights.")] = 1.0,
    folds: Annotated[
        int,
        typer.Option(
            help="Folds of sentences, at random; 0 leaves out one sentence at a time.", callback=at_least("--folds", 0)
        ),
    ] = 0,
    refit: Refit = "certified",
    limit: Annotated[
        int, typer.Option(help="Use the first so many sentences only; 0 uses all.", callback=at_least("--limit", 0))
    ] = 0,
    worst: Annotated[
        int,
        typer.Option(help="How many of the sentences that surprise most to print.", callback=at_least("--worst", 0)),
    ] = 5,
    checkpoint: Checkpoint = None,
    mute: Mute = None,
    out: Annotated[Path | None, out_option("the losses of all sentences")] = None,
    report: Report = None,
) -> None:
    """Cross-validate a linear-chain conditional random field of tagged sentences.

    Its features are indicators: the word, its shape, its ending, and the words beside it. The loss is −log p of a held-out
    sentence's labels. The result also has the share of labels that are decoded correctly, held out and on the training data,
    and, if the labels are BIO tags, the F1 of entities. The sentences with the highest losses are often mistakes in the labels.

    leaveout crf tagged.txt --folds 10 --report report.html

    leaveout crf tagged.txt --word 0 --label -1 --features 500 --penalty 0.5 --worst 10 --out sentences.csv
    """
    if not (np.isfinite(penalty) and penalty > 0):
        fail(f"--penalty {penalty:g}: it must be positive.")
    protect_input(train, out, report, checkpoint)
    tagged, name = _read(train, word, label, limit)
    if len(tagged.lengths) < 2:
        fail(f"{name}: it holds one sentence only; give one word a line, and a blank line after each sentence.")
    x, names = indicators(tagged.words, tagged.lengths, features)
    model = lo.CRF(tagged.labels, tagged.lengths, features=x, penalty=lo.penalties.Ridge(penalty))
    n = len(tagged.lengths)
    plan = lo.kfold(n, folds, seed=0) if folds else lo.leave_one_out(n)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = lo.fit(model)
        cv = lo.cross_validate(fit, plan, REFITS[refit], checkpoint=checkpoint).muted(*split_names(mute))
        held_out = model.join(lo.cross_predict(fit, plan, REFITS[refit], kind="label"))
    kinds = len(set(tagged.labels))
    console.print(f"{name}: {n} sentences, {len(tagged.words)} words, {kinds} labels; {len(names)} indicators", markup=False)
    console.print(cv, markup=False)
    _measures(tagged, model.decode(fit), held_out)
    _worst(tagged, cv, held_out, worst)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            console.print(str(warning.message), markup=False)
    columns = {"words": tagged.lengths, "loss": cv.per_unit(), "no_update": cv.baseline[np.argsort(plan.index)]}
    save(pd.DataFrame(columns).rename_axis("sentence"), out, "Losses")
    page(cv, report, [f"{name}: {n} sentences, {len(tagged.words)} words, {kinds} labels; {len(names)} indicators"])


def _read(file: Path, word: int, label: int, limit: int) -> tuple[lo.datasets.Tagged, str]:
    data, name = content(file, "sentences in columns")
    lines = io.StringIO(text(data, name))
    lines.name = name  # type: ignore[attr-defined]
    tagged = lo.datasets.read_conll(lines, word, label)
    if not limit or limit >= len(tagged.lengths):
        return tagged, name
    steps = int(np.sum(tagged.lengths[:limit]))
    return lo.datasets.Tagged(tagged.words[:steps], tagged.labels[:steps], tagged.lengths[:limit]), name


def indicators(words: np.ndarray, lengths: list[int], most: int) -> tuple[scipy.sparse.csr_array, list[str]]:
    """Build the most frequent indicators of words, shapes, endings and neighbours, `[steps, indicators]`."""
    ends = np.cumsum(lengths)
    first, last = np.isin(np.arange(len(words)), ends - lengths), np.isin(np.arange(len(words)), ends - 1)
    table = pd.DataFrame({"word": [str(word).lower() for word in words], "ending": [str(word)[-3:].lower() for word in words]})
    table["shape"] = [_shape(str(word)) for word in words]
    table["before"] = table["word"].shift(1).where(~first, "(start)")
    table["after"] = table["word"].shift(-1).where(~last, "(end)")
    long = pd.concat([name + "=" + table[name] for name in table], axis=1).to_numpy().ravel()
    codes, names = pd.factorize(long)
    kept = np.argsort(-np.bincount(codes), kind="stable")[:most]
    place = np.full(len(names), -1)
    place[kept] = np.arange(len(kept))
    row, column = np.repeat(np.arange(len(words)), table.shape[1]), place[codes]
    inside = column >= 0
    entries = (np.ones(inside.sum()), (row[inside], column[inside]))
    return scipy.sparse.csr_array(entries, shape=(len(words), len(kept))), [str(names[k]) for k in kept]


def _shape(word: str) -> str:
    """Return the shape of a word: Xxxx for a name, ddd for a number and so on, with shortened runs."""
    letters = re.sub(r"[A-Z]", "X", re.sub(r"[a-z]", "x", re.sub(r"[0-9]", "d", word)))
    return re.sub(r"(.)\1{2,}", r"\1\1", letters)[:6]


def _measures(tagged: lo.datasets.Tagged, seen: np.ndarray, held_out: np.ndarray) -> None:
    entity = all(ENTITY.fullmatch(str(label)) for label in set(tagged.labels))
    for name, predicted in (("held out", held_out), ("no update", seen)):
        line = f"{name:<16}{lo.models.token_accuracy(tagged.labels, predicted):.2%} of labels decoded rightly"
        line += f", F1 of entities {lo.models.entity_f1(tagged.labels, predicted, tagged.lengths):.2%}" if entity else ""
        console.print(line, markup=False)


def _worst(tagged: lo.datasets.Tagged, cv: lo.Estimate, held_out: np.ndarray, worst: int) -> None:
    if not worst:
        return
    losses = cv.per_unit()
    first = np.cumsum(tagged.lengths) - tagged.lengths
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="The sentences that surprise most", title_justify="left")
    for heading in ("sentence", "loss", "words, with label and decoded label where they differ"):
        table.add_column(heading, justify="left" if heading.startswith("words") else "right")
    for n in np.argsort(-np.where(np.isfinite(losses), losses, -np.inf))[:worst]:
        steps = range(first[n], first[n] + tagged.lengths[n])
        wrong = {t: f" ({tagged.labels[t]}, not {held_out[t]})" for t in steps if tagged.labels[t] != held_out[t]}
        text = " ".join(f"{tagged.words[t]}{wrong.get(t, '')}" for t in steps)
        table.add_row(str(n), f"{losses[n]:.2f}", text if len(text) < 300 else text[:297] + "…")
    console.print(table, markup=False)
