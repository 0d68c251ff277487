"""Result of a strategy: a batch of refits."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Shared(NamedTuple):
    """Common part of the errors of single rows.

    It has their losses without each group of probes, the error of the mean for other reasons, and the number of probes.
    """

    draws: Float[np.ndarray, "refits groups"]
    left: float
    probes: int


@dataclass(frozen=True, eq=False)
class RefitBatch:
    """Batch of refits.

    `make` returns the raveled θ, and is called when it is asked for. `error` is the absolute error of each refit's summed
    held-out loss, `proved` says whether it is proved, and `result` is the code. `scores` are the held-out losses, if they came
    along. `ball` returns whitened centres and radii around them in which the exact refits lie. `moved` is the length of each
    first step, `gradients` the number of gradients that all took, `shared` the common part of otherwise independent errors.
    `at` maps whitened u to θ where the fit's own coordinates do not.
    """

    make: Callable[[], Float[np.ndarray, "refits params"]]
    error: Float[np.ndarray, " refits"]
    result: Int[np.ndarray, " refits"]
    scores: Float[np.ndarray, "refits ..."] | None = None
    proved: Bool[np.ndarray, " refits"] | None = None
    ball: Callable[[], tuple[Float[np.ndarray, "refits rank"], Float[np.ndarray, " refits"]]] | None = None
    moved: Float[np.ndarray, " refits"] | None = None
    gradients: float = 0.0
    shared: Shared | None = None
    at: Callable[[Float[np.ndarray, "refits rank"]], Float[np.ndarray, "refits params"]] | None = None

    @functools.cached_property
    def theta(self) -> Float[np.ndarray, "refits params"]:
        return self.make()
