"""`leaveout crf TRAIN.conll` cross-validates a conditional random field of tagged sentences, every
sentence left out once.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse

import leaveout as lo

from ._console import console, fail, print_notes, table_of, warnings_as_notes
from ._files import content, save, text
from ._options import FoldOptions, OptionsOf, Report, command, option
from ._table import page

pd = lo.developer.pd

ENTITY = re.compile(r"O|[BI]-.+")


COLUMNS = OptionsOf(
    lo.datasets.read_conll,
    word="The column of the words; 0 is the first, -1 the last.",
    label="The column of the labels.",
)


@command(omit="score seed metric")
def crf(
    train: Annotated[
        Path,
        typer.Argument(
            help="Sentences in columns, one word a line, a blank line after each sentence; - is standard input.",
            readable=False,
        ),
    ],
    columns: Annotated[dict[str, Any], COLUMNS],
    features: Annotated[
        int, option("How many indicators of words to keep, the most frequent ones.", least=1)
    ] = 100,
    penalty: float = 1.0,
    folds: Annotated[
        int, option("Folds of sentences, at random; 0 leaves out one sentence at a time.", least=0)
    ] = 0,
    limit: Annotated[int, option("Use the first so many sentences only; 0 uses all.", least=0)] = 0,
    worst: Annotated[
        int, option("How many of the sentences that surprise most to print.", least=0)
    ] = 5,
    *,
    fold_options: FoldOptions,
    out: Path | None = None,
    report: Report = None,
) -> None:
    """Cross-validate a linear-chain conditional random field of tagged sentences.

    Its features are indicators: the word, its shape, its ending, and the words beside it. The loss
    is −log p of a held-out sentence's labels. The result also has the share of labels that are
    decoded correctly, held out and on the training data, and, if the labels are BIO tags, the F1 of
    entities. The sentences with the highest losses are often mistakes in the labels.

    leaveout crf tagged.txt --folds 10 --report report.html

    leaveout crf tagged.txt --word 0 --label -1 --features 500 --penalty 0.5 --worst 10 --out sentences.csv

    Parameters
    ----------
    penalty
        α of the ridge penalty α/2 ‖θ‖² on all weights.
    out
        A CSV file for the losses of all sentences.
    """
    if not (np.isfinite(penalty) and penalty > 0):
        fail(f"--penalty {penalty:g}: it must be positive.")
    data, name = content(train, "sentences in columns")
    lines = io.StringIO(text(data, name))
    lines.name = name  # type: ignore[attr-defined]
    tagged = lo.datasets.read_conll(lines, **columns)
    if 0 < limit < len(tagged.lengths):
        steps = int(np.sum(tagged.lengths[:limit]))
        tagged = lo.datasets.Tagged(
            tagged.words[:steps], tagged.labels[:steps], tagged.lengths[:limit]
        )
    n = len(tagged.lengths)
    if n < 2:
        fail(
            f"{name}: it holds one sentence only; give one word a line, and a blank line after each sentence."
        )
    x, names = indicators(tagged.words, tagged.lengths, features)
    model = lo.CRF(tagged.labels, tagged.lengths, features=x, penalty=lo.penalties.Ridge(penalty))
    plan = lo.kfold(k=folds) if folds else lo.leave_one_out()
    with warnings_as_notes() as notes:
        fit = lo.fit(model)
        cv = fold_options.cross_validate(fit, plan)
        held_out = model.join(
            lo.cross_predict(fit, plan, strategy=fold_options.strategy, kind="label")
        )
    kinds = set(tagged.labels)
    description = f"{name}: {n} sentences, {len(tagged.words)} words, {len(kinds)} labels; {len(names)} indicators"
    console.print(f"{description}\n{cv}")
    entity = all(ENTITY.fullmatch(str(label)) for label in kinds)
    for heading_of_line, predicted in (("held out", held_out), ("no update", model.decode(fit))):
        line = f"{heading_of_line:<16}{lo.developer.models.token_accuracy(tagged.labels, predicted):.2%} of labels decoded rightly"
        if entity:
            line += f", F1 of entities {lo.developer.models.entity_f1(tagged.labels, predicted, tagged.lengths):.2%}"
        console.print(line)
    losses = cv.per_unit().to_numpy()
    if worst:
        first = np.cumsum(tagged.lengths) - tagged.lengths
        heading = "words, with label and decoded label where they differ"
        table = table_of(
            "sentence", "loss", heading, words=(heading,), title="The sentences that surprise most"
        )
        for k in np.argsort(-np.where(np.isfinite(losses), losses, -np.inf))[:worst]:
            of_sentence = range(first[k], first[k] + tagged.lengths[k])
            wrong = {
                t: f" ({tagged.labels[t]}, not {held_out[t]})"
                for t in of_sentence
                if tagged.labels[t] != held_out[t]
            }
            sentence = " ".join(f"{tagged.words[t]}{wrong.get(t, '')}" for t in of_sentence)
            if len(sentence) >= 300:
                sentence = sentence[:297] + "…"
            table.add_row(str(k), f"{losses[k]:.2f}", sentence)
        console.print(table)
    print_notes(*notes)
    rows = pd.DataFrame(
        {
            "words": tagged.lengths,
            "loss": losses,
            "no_update": cv.baseline[np.argsort(cv.plan.index)],
        }
    )
    save(rows.rename_axis("sentence"), out, "Losses")
    page(cv, report, [description], fold_options.title)


def indicators(
    words: np.ndarray, lengths: list[int], most: int
) -> tuple[sparse.csr_array, list[str]]:
    """Build the most frequent indicators of words, shapes, endings and neighbours, `[steps,
    indicators]`.
    """
    ends = np.cumsum(lengths)
    first = np.isin(np.arange(len(words)), ends - lengths)
    last = np.isin(np.arange(len(words)), ends - 1)
    table = pd.DataFrame(
        {
            "word": [str(word).lower() for word in words],
            "ending": [str(word)[-3:].lower() for word in words],
            "shape": [_shape(str(word)) for word in words],
        }
    )
    table["before"] = table["word"].shift(1).where(~first, "(start)")
    table["after"] = table["word"].shift(-1).where(~last, "(end)")
    long = pd.concat([name + "=" + table[name] for name in table], axis=1).to_numpy().ravel()
    codes, names = pd.factorize(long)
    selection = np.argsort(-np.bincount(codes), kind="stable")[:most]
    place = np.full(len(names), -1)
    place[selection] = np.arange(len(selection))
    row = np.repeat(np.arange(len(words)), table.shape[1])
    column = place[codes]
    inside = column >= 0
    entries = np.ones(inside.sum()), (row[inside], column[inside])
    return sparse.csr_array(entries, shape=(len(words), len(selection))), [
        str(names[k]) for k in selection
    ]


def _shape(word: str) -> str:
    """Return the shape of a word.

    Xxxx for a name, ddd for a number and so on, with shortened runs.
    """
    letters = re.sub(r"[A-Z]", "X", re.sub(r"[a-z]", "x", re.sub(r"[0-9]", "d", word)))
    return re.sub(r"(.)\1{2,}", r"\1\1", letters)[:6]
