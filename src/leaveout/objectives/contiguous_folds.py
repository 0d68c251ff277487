"""Folds that are runs of successive units: the scores of all folds, and their derivatives, by one
pass over the data.

    F(θ, w_o) = F(θ, 1) − s_o(θ),      s_o(θ) = −log p(the units of fold o | all others; θ)

where the units of fold o have weight zero and F is a negative log-likelihood: leaving them out
removes their joint score and nothing else. If the `costs.runs` of a closed form gives the scores of
all folds together, central differences give their first and second derivatives.
"""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Int

from .._runtime import LaneEntries, NumpyArray, ParamRows, PyTree, TwoArrays, record, slices
from ..plans import RefitRows
from .closed_form import AbstractClosedForm
from .objective import AbstractObjective, Lanes, Points, Vector

# scores of runs at many θ, from the model
RunScores = Callable[[Points], tuple[NumpyArray | None, NumpyArray]]
Directions = tuple[NumpyArray, NumpyArray, NumpyArray]  # raveled θ, and two directions from each


@record
class Runs:
    """Folds that are runs of units from `first` on, none longer than `width`; θ is raveled."""

    objective: AbstractClosedForm
    scores_at: RunScores
    first: Int[NumpyArray, " folds"]
    width: int

    def scores(self, theta: Vector) -> TwoArrays:
        """Held-out loss of every unit of each run `[folds, width]`, and the joint scores s_o
        `[folds]`.

        Entries behind the end of a run or without an observation have an arbitrary value.
        """
        losses, joint = self._scores(theta[None])
        return losses[0], joint[0]

    def _scores(self, points: Points) -> TwoArrays:
        losses, joint = self.scores_at(points)
        return (joint[..., None] if losses is None else losses), joint

    def place_scores(
        self,
        values: LaneEntries,
        rows: RefitRows,
        lanes: Lanes | slice = slice(None),
    ) -> Float[NumpyArray, "lanes entries"]:
        """Move values of the units of runs to the places of a batch's entries, zero where not
        scored.
        """
        place = np.clip(rows.index[lanes] - self.first[lanes, None], 0, self.width - 1)
        return np.where(rows.held[lanes], np.take_along_axis(values, place, axis=1), 0.0)

    def shape_losses(
        self, losses: Float[NumpyArray, "folds entries"]
    ) -> Float[NumpyArray, "folds ..."]:
        """Return losses in the shape that the model gives: one for each fold if they are joint."""
        return losses if self.objective.pointwise else losses[:, 0]

    def derivatives(self, directions: Directions) -> Iterator[tuple[TwoArrays, TwoArrays]]:
        """Yield derivatives of the scores at each θ, along its first direction, and along both."""

        def scores(places: Points) -> NumpyArray:
            losses, joint = self._scores(places)
            return np.concatenate([losses, joint[..., None]], 2)

        for pair in _differences(scores, directions, self.objective.difference):
            first, second = ((part[:, :-1], part[:, -1]) for part in pair)
            yield first, second

    def bends(self, directions: Directions) -> ParamRows:
        """Compute ∇³F(θ, 1) along both directions, at each θ."""
        objective = self.objective
        size = objective.costs.lanes or 1
        ones = np.ones((size, objective.num_units))
        start = objective.look(directions[0][:1], ones[:1])[2]

        def slopes(places: Points) -> Points:
            groups = [places[part] for part in slices(len(places), size)]
            starts = [None if start is None else np.repeat(start, len(g), 0) for g in groups]
            looks = (
                objective.look(group, ones[: len(group)], state)
                for group, state in zip(groups, starts, strict=True)
            )
            return np.concatenate([gradient for _, gradient, _ in looks])

        pairs = _differences(slopes, directions, objective.difference)
        return np.array([second for _, second in pairs])


def runs(objective: AbstractObjective, like: PyTree, rows: RefitRows) -> Runs | None:
    """Return the folds of a batch as `Runs`.

    None unless all are runs of weight zero that the model evaluates together.
    """
    if not isinstance(objective, AbstractClosedForm) or objective.costs.runs is None:
        return None
    if rows.index.shape[1] >= objective.num_units:
        return None
    real = rows.index < objective.num_units
    if rows.weight[real].any():
        return None
    first = rows.index.min(1)
    length = real.sum(1)
    last = np.where(real, rows.index, -1).max(1)
    if (last - first + 1 != length).any():
        return None
    scores_at = objective.costs.runs(like, first, length)
    if scores_at is None:
        return None
    return Runs(objective, scores_at, first, int(length.max()))


def _differences(
    function: Callable[[Points], NumpyArray], directions: Directions, length: float
) -> Iterator[TwoArrays]:
    """Derivatives of a function at each θ along its first direction and along both, by central
    differences.

    The function is evaluated at all places together, once at each.
    """
    numbers = {}
    places: list[Vector] = []

    def number(theta: Vector) -> int:
        key = np.round(theta, 12).tobytes()
        if key not in numbers:
            numbers[key] = len(places)
            places.append(theta)
        return numbers[key]

    stencils = []
    for theta, a, b in zip(*directions, strict=True):
        a = length * a
        b = length * b
        ends = [theta, theta + a, theta - a]
        if not np.array_equal(a, b):
            ends += [theta + b, theta - b, theta + a + b, theta - a - b]
        stencils.append([number(end) for end in ends])
    values = function(np.array(places))
    for stencil in stencils:
        middle, up, down, *others = values[stencil]
        second = up + down - 2 * middle
        if others:
            second = 0.5 * (others[2] + others[3] - others[0] - others[1] - second)
        yield (up - down) / (2 * length), second / length**2
