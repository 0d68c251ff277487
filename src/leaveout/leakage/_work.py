"""The fits that answers ask for: each made once, side by side without a barrier, kept in a checkpoint."""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import joblib
import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from .._checkpoint import again, keep, there
from .._progress import Slow
from ._fits import CAPACITY, AbstractLearner
from ._hosts import Estimator, Refitted

WORTH = 2.0  # seconds of fitting that is left, below which starting workers is no gain


class Ask(NamedTuple):
    """A fit to some rows, and the rows that it is to predict."""

    train: Int[np.ndarray, " trained"]
    test: Int[np.ndarray, " tested"]


@dataclass(eq=False)
class Work:
    """Predictions for what is asked, `work(asks)`; the same training rows are fitted once for the same rows to predict.

    `made` counts fits. The random numbers of a learner's own depend on `seed` only, so they are common to all fits.
    """

    learner: AbstractLearner
    n_jobs: int | None
    seed: int
    bar: Slow = field(default_factory=lambda: Slow("fits", 0))
    made: int = 0
    found: dict[bytes, NDArray[np.float64]] = field(default_factory=dict, repr=False)

    def __call__(self, asks: list[Ask]) -> list[NDArray[np.float64]]:
        names = [_name(ask) for ask in asks]
        new = {name: ask for name, ask in zip(names, asks, strict=True) if name not in self.found}
        for name, predicted in zip(new, self._predicted(list(new.values())), strict=True):
            self.found[name] = predicted
            self.made += 1
            self.bar.advance()
        return [self.found[name] for name in names]

    def _predicted(self, asks: list[Ask]) -> Iterator[NDArray[np.float64]]:
        """What is in the checkpoint, then what is not, each as soon as it is there."""
        done = min(there(), len(asks))
        for _ in range(done):
            yield again()["predicted"]
        for predicted in self._fitted(asks[done:]):
            keep({"predicted": predicted})
            yield predicted

    def _fitted(self, asks: list[Ask]) -> Iterator[NDArray[np.float64]]:
        if isinstance(self.learner, Refitted):
            yield from _refitted(self.learner, asks)
        elif isinstance(self.learner, Estimator) and len(asks) > 1 and joblib.effective_n_jobs(self.n_jobs) > 1:
            one = functools.partial(_one, self.learner, self.seed)
            yield from joblib.Parallel(n_jobs=self.n_jobs, return_as="generator")(joblib.delayed(one)(ask) for ask in asks)
        else:
            yield from (_one(self.learner, self.seed, ask) for ask in asks)


def _refitted(learner: Refitted, asks: list[Ask]) -> Iterator[NDArray[np.float64]]:
    """Many at once, as refits of one fit."""
    step = max(1, CAPACITY // max(learner.cost, 1) // 64)
    for start in range(0, len(asks), step):
        some = asks[start : start + step]
        rows = np.unique(np.concatenate([ask.test for ask in some]))
        times = np.stack([np.bincount(ask.train, minlength=learner.glm.num_units) for ask in some])
        shared, _ = learner.counted(times, rows, np.zeros((len(some), 0), np.int64))
        for predicted, ask in zip(shared, some, strict=True):
            yield predicted[np.searchsorted(rows, ask.test)]


def _one(learner: AbstractLearner, seed: int, ask: Ask) -> NDArray[np.float64]:
    return learner(ask.train[None], ask.test, np.zeros((1, 0), np.int64), np.array([seed]))[0][0]


def _name(ask: Ask) -> bytes:
    return b"".join(hashlib.blake2b(rows.tobytes(), digest_size=16).digest() for rows in ask)
