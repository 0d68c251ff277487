"""The whole estimate from the parts of a run, which several processes made.

Part k of K has every K-th batch of refits, from the k-th on. Their steps are put into the order of
one run, and the call that made them is made once more: it reads all refits, and adds what needs all
of them, such as the audit. The file of part 0 holds that call, as far as it can without pickle.
"""

import glob
import itertools
import os
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from .._runtime import File, StepResult, conventional
from .._runtime.checkpoint import Journal
from .._runtime.packing import Lacking, unpack
from .cross_validate import cross_validate
from .estimate import Estimate


class RunParts(Journal):
    """The steps of all parts, in the order of one run; what is added to them is not kept.

    Raises ValueError where the files are not the parts of one run, each once.
    """

    def __init__(self, files: Sequence[File]):
        runs: dict[str, list[StepResult]] = {}
        for file in files:
            with closing(Journal("merge", file, None)) as part:
                k = part.hashes.get("part")
                if k is None:
                    raise ValueError(
                        f"{part.name} is no part: lo.cross_validate(fit, plan, part=(k, K), checkpoint=FILE) makes parts."
                    )
                if not runs:
                    self.name = part.name
                    self.base = part.base
                    self.hashes = part.hashes.copy()
                part.check(self.hashes | {"part": k}, part.hashes)
                if k in runs:
                    raise ValueError(f"{part.name} is part {k}, and so is another of the files.")
                runs[k] = [part.next() for _ in range(part.count)]
                if not runs[k] or "complete" not in runs[k].pop():
                    raise ValueError(
                        f"{part.name}, part {k}, is not complete: the call that makes it goes on with it."
                    )
        del self.hashes["part"]
        numbers = [str(k) for k in range(int(self.hashes.pop("number of parts")))]
        missing = [k for k in numbers if k not in runs]
        if missing:
            raise ValueError(
                f"merge: of {len(numbers)} parts, these are missing: {', '.join(missing)}."
            )
        self.call = runs["0"].pop(0)
        # losses with no update come first, and are the same in all parts
        shared = [step for step in runs["0"] if "result" not in step]
        rounds = itertools.zip_longest(*(runs[k][len(shared) :] for k in numbers))
        refits = filter(None, itertools.chain.from_iterable(rounds))
        self.steps = [*shared, *refits]
        self.count = len(self.steps)
        self.position = 0

    def next(self) -> StepResult:
        """Take the result of the next step."""
        self.position += 1
        return self.steps[self.position - 1]

    def add(self, result: StepResult) -> None:
        """Keep nothing."""


@conventional
def merge(files: Sequence[File] | File, *arguments: Any, **options: Any) -> Estimate:
    """Merge the parts of a cross-validation that were made apart, as by the tasks of a cluster.

    The estimate is that of one call in one process, to the same digits: losses, errors, codes, the
    audit, measures and checks. What needs all refits is made here.

    Parameters
    ----------
    files : list of path, or path
        The files of all parts, `checkpoint` of `cross_validate(fit, plan, part=(k, K),
        checkpoint=FILE)` for each k, in any order; or their pattern, such as "run-*.ckpt".
    *arguments, **options
        Those of `cross_validate`, fit and plan first, where the file of part 0 cannot hold them: a
        model with functions of your own or a formula, more than 256 MiB, a function in `evaluate`.
        Nothing in a file is executed, and no pickle is read.

    Returns
    -------
    Estimate
        What `cross_validate` returns without `part`.

    Raises
    ------
    ValueError
        If a part is missing, is not complete, is there twice, or is of another run, of another
        number of parts, or of another version of leaveout; or if the files cannot hold an argument
        that is not given.

    See Also
    --------
    cross_validate : Make a part.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(30.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], np.sin(x), "squared"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = [os.path.join(folder, f"{k}.ckpt") for k in range(3)]
    ...     for k in range(3):  # each in a process of its own
    ...         _ = lo.cross_validate(fit, lo.kfold(k=10), part=(k, 3), checkpoint=files[k])
    ...     cv = lo.merge(files)
    >>> round(cv.mean, 4) == round(lo.cross_validate(fit, lo.kfold(k=10)).mean, 4)
    True
    """
    names: Any = files
    if isinstance(files, str | os.PathLike):
        names = sorted(glob.glob(os.fspath(files)))
    if not names:
        raise ValueError(f"merge: there are no files {files!r}.")
    parts = RunParts(names)
    call = unpack(parts.call) | {"checkpoint": parts} | options
    for name in ("fit", "plan")[: len(arguments)]:
        del call[name]
    lacking = [f"{name} ({part})" for name, part in call.items() if isinstance(part, Lacking)]
    if lacking:
        raise ValueError(
            f"merge: the files cannot hold {', '.join(lacking)}: give it, as in lo.merge(files, fit, plan)."
        )
    return cross_validate(*arguments, **call)
