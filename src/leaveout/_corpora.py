"""Tagged sentences in columns, as of CoNLL: one word a line, sentences apart by blank lines."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Tagged(NamedTuple):
    """Words and labels of all sentences, one after another, the length of each sentence, and the number of its document, where
    the file tells documents apart."""

    words: np.ndarray
    labels: np.ndarray
    lengths: list[int]
    documents: list[int] | None = None


class Corpus(NamedTuple):
    """The sentences to learn from, and two further sets."""

    train: Tagged
    dev: Tagged
    test: Tagged


def read_conll(file: str | Path | Iterable[str], word: int = 0, label: int = -1) -> Tagged:
    """The sentences of a file in columns, by the numbers of the columns of words and labels (−1 is the last).

    `file` is a path, or the lines themselves. Columns are apart by tabs or, where a line has none, by spaces. Lines that
    begin with "# " (comments of CoNLL-U) or "-DOCSTART-", and the multi-word and empty tokens of CoNLL-U, are left out; where
    "-DOCSTART-" or "# newdoc" begin documents, `documents` has one number a sentence, as `lo.groups` takes them.

    Raises ValueError on lines without those columns, and on a file without sentences.
    """
    if not isinstance(file, (str, Path)):
        return parse(file, getattr(file, "name", "the lines"), word, label)
    with open(file, encoding="utf-8-sig") as lines:
        return parse(lines, str(file), word, label)


def parse(lines: Iterable[str], name: str, word: int, label: int) -> Tagged:
    words: list[str] = []
    labels: list[str] = []
    lengths: list[int] = []
    documents: list[int] = []
    before, document = 0, 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            if len(words) > before:
                lengths.append(len(words) - before)
                documents.append(document)
            before = len(words)
            continue
        columns = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
        token = columns[0]
        document += line.startswith(("# newdoc", "-DOCSTART-"))
        if line.startswith(("# ", "-DOCSTART-")) or (len(columns) == 10 and token[:1].isdigit() and not token.isdigit()):
            continue
        if not (-len(columns) <= word < len(columns) and -len(columns) <= label < len(columns)):
            raise ValueError(f"read_conll: line {number} of {name} has {len(columns)} columns, not those of word and label.")
        words.append(columns[word])
        labels.append(columns[label].strip())
    if len(words) > before:
        lengths.append(len(words) - before)
        documents.append(document)
    if not lengths:
        raise ValueError(f"read_conll: {name} has no sentences.")
    return Tagged(np.array(words, object), np.array(labels, object), lengths, documents if document else None)
