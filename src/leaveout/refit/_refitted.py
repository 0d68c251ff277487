"""What a strategy returns: a batch of refits."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Shared(NamedTuple):
    """What the errors of single rows have in common: their losses without each group of probes, what of the mean is off for
    another reason, and how many probes there are."""

    draws: Float[np.ndarray, "refits groups"]
    left: float
    probes: int


@dataclass(frozen=True, eq=False)
class Refitted:
    """A batch of refits: the absolute error of each one's summed held-out loss, whether it is proved, its code; raveled θ,
    made where it is asked for; the held-out losses, where they came along; where the exact refits lie, whitened centres and
    radii around them; the length of each one's first step; how many gradients all took; what errors have in common that are
    independent otherwise; and which θ stand at whitened u, where that is not for the fit to say."""

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
