"""What a strategy returns: a batch of refits."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class Refitted:
    """A batch of refits: the absolute error of each one's summed held-out loss, whether it is proved, its code; raveled θ,
    made where it is asked for; the held-out losses, where they came along; where the exact refits lie, whitened centres and
    radii around them; the length of each one's first step; and how many gradients all took."""

    make: Callable[[], Float[np.ndarray, "refits params"]]
    error: Float[np.ndarray, " refits"]
    result: Int[np.ndarray, " refits"]
    scores: Float[np.ndarray, "refits ..."] | None = None
    proved: Bool[np.ndarray, " refits"] | None = None
    ball: Callable[[], tuple[Float[np.ndarray, "refits rank"], Float[np.ndarray, " refits"]]] | None = None
    moved: Float[np.ndarray, " refits"] | None = None
    gradients: float = 0.0

    @functools.cached_property
    def theta(self) -> Float[np.ndarray, "refits params"]:
        return self.make()
