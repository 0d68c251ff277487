"""Tagged sentences in columns, as in CoNLL's files.

One word a line, sentences separated by blank lines.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Tagged(NamedTuple):
    """Words and labels of all sentences, one after another.

    Attributes
    ----------
    words : array of str
        Words of all sentences.
    labels : array of str
        Label of each word.
    lengths : list of int
        Number of words of each sentence.
    documents : list of int or None
        Number of the document of each sentence; None if the file does not tell documents apart.

    Examples
    --------
    >>> import leaveout as lo
    >>> found = lo.datasets.read_conll(["Ada NAME", "slept O", "", "Yes O"])
    >>> found.lengths, found.labels.tolist()
    ([2, 1], ['NAME', 'O', 'O'])
    """

    words: np.ndarray
    labels: np.ndarray
    lengths: list[int]
    documents: list[int] | None = None


class Corpus(NamedTuple):
    """Annotated sentences in three sets.

    Attributes
    ----------
    train : Tagged
        Sentences to learn from.
    dev : Tagged
        Sentences for development.
    test : Tagged
        Sentences for testing.

    Examples
    --------
    >>> import leaveout as lo
    >>> corpus = lo.datasets.wnut17()
    >>> len(corpus.train.lengths), len(corpus.dev.lengths), len(corpus.test.lengths)
    (3394, 1009, 1287)
    """

    train: Tagged
    dev: Tagged
    test: Tagged


def read_conll(file: str | Path | Iterable[str], word: int = 0, label: int = -1) -> Tagged:
    """Read tagged sentences from a file in columns.

    Columns are separated by tabs or, in a line without one, by spaces. Lines that begin with "# "
    (comments of CoNLL-U) or "-DOCSTART-" are left out, and so are the multi-word and empty tokens
    of CoNLL-U. If "-DOCSTART-" or "# newdoc" begin documents, `documents` has one number a
    sentence, as `lo.groups` takes them.

    Parameters
    ----------
    file : str, path or iterable of str
        Path of the file, or its lines.
    word : int, default: 0
        Column of the words.
    label : int, default: -1
        Column of the labels; −1 is the last.

    Returns
    -------
    Tagged
        The sentences.

    Raises
    ------
    ValueError
        If a line does not have those columns, or the file has no sentences.

    Examples
    --------
    >>> import leaveout as lo
    >>> found = lo.datasets.read_conll(["Ada NAME", "slept O", "", "Yes O"])
    >>> found.words.tolist()
    ['Ada', 'slept', 'Yes']
    """
    if not isinstance(file, (str, Path)):
        return parse(file, getattr(file, "name", "the lines"), word, label)
    with open(file, encoding="utf-8-sig") as lines:
        return parse(lines, str(file), word, label)


def parse(lines: Iterable[str], name: str, word: int, label: int) -> Tagged:
    """Parse the lines of a file in columns; `read_conll` is the public form.

    Parameters
    ----------
    lines : iterable of str
        Lines of the file.
    name : str
        Name of the file, for messages.
    word : int
        Column of the words.
    label : int
        Column of the labels.

    Returns
    -------
    Tagged
        The sentences.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.datasets.parse(["Ada NAME"], "a list", 0, 1).lengths
    [1]
    """
    words: list[str] = []
    labels = []
    lengths = []
    documents = []
    before = 0
    document = 0
    for number, line in enumerate(itertools.chain(lines, [""]), 1):
        if not line.strip():
            if len(words) > before:
                lengths.append(len(words) - before)
                documents.append(document)
            before = len(words)
            continue
        if "\t" in line:
            columns = line.rstrip("\r\n").split("\t")
        else:
            columns = line.split()
        token = columns[0]
        document += line.startswith(("# newdoc", "-DOCSTART-"))
        if line.startswith(("# ", "-DOCSTART-")) or (
            len(columns) == 10 and token[:1].isdigit() and not token.isdigit()
        ):
            continue
        if not (-len(columns) <= word < len(columns) and -len(columns) <= label < len(columns)):
            raise ValueError(
                f"read_conll: line {number} of {name} has {len(columns)} columns, not those of word and label."
            )
        words.append(columns[word])
        labels.append(columns[label].strip())
    if not lengths:
        raise ValueError(f"read_conll: {name} has no sentences.")
    tagged = Tagged(np.array(words, object), np.array(labels, object), lengths)
    if document:
        return tagged._replace(documents=documents)
    return tagged
