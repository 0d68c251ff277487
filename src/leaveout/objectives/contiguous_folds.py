"""Folds that are runs of successive units: the scores of all folds, and their derivatives, by one
pass over the data.

    F(θ, w_o) = F(θ, 1) − s_o(θ),      s_o(θ) = −log p(the units of fold o | all others; θ)

where the units of fold o have weight zero and F is a negative log-likelihood: leaving them out
removes their joint score and nothing else. If the `costs.runs` of a model gives the scores of all
folds together, the same pass, pushed forward along two directions, gives their first and second
derivatives. For a closed form they are central differences.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .._runtime.jax import Array, PyTree, compile_static, jax, jnp
from ..plans.plan import RefitRows, few_more
from .closed_form import AbstractClosedForm
from .objective import AbstractObjective, Arrays, Lanes, Vector, repeatable, size_of, unravel

Scores = tuple[np.ndarray, np.ndarray]  # scores of units, and joint scores of folds
# scores of runs at a θ, from the model
RunScores = Callable[[PyTree], tuple[Arrays | None, Arrays]]
Directions = tuple[np.ndarray, np.ndarray, np.ndarray]  # raveled θ, and two directions from each


@dataclass(frozen=True, eq=False)
class Runs:
    """Folds that are runs of units from `first` on, none longer than `width`; θ is raveled, in the
    shape of `like`.

    `told` evaluates the runs at a θ, and may repeat the last run.
    """

    objective: AbstractObjective
    like: PyTree
    scores_at: RunScores
    first: Int[np.ndarray, " folds"]
    width: int

    def scores(self, theta: Vector) -> Scores:
        """Held-out loss of every unit of each run `[folds, width]`, and the joint scores s_o
        `[folds]`.

        Entries behind the end of a run or without an observation have an arbitrary value.
        """
        if isinstance(self.objective, AbstractClosedForm):
            return self._alike(self.scores_at(theta))
        return self._alike(_scores(self.scores_at, self.like, theta))

    def place_scores(
        self,
        values: Float[np.ndarray, "lanes width"],
        rows: RefitRows,
        lanes: Lanes | slice = slice(None),
    ) -> Float[np.ndarray, "lanes entries"]:
        """Move values of the units of runs to the places of a batch's entries, zero where not
        scored.
        """
        place = np.clip(rows.index[lanes] - self.first[lanes, None], 0, self.width - 1)
        return np.where(rows.held[lanes], np.take_along_axis(values, place, axis=1), 0.0)

    def shape_losses(
        self, losses: Float[np.ndarray, "folds entries"]
    ) -> Float[np.ndarray, "folds ..."]:
        """Return losses in the shape that the model gives: one for each fold if they are joint."""
        return losses if self.objective.pointwise else losses[:, 0]

    def derivatives(self, directions: Directions) -> Iterator[tuple[Scores, Scores]]:
        """Yield derivatives of the scores at each θ, along its first direction, and along both."""
        if isinstance(self.objective, AbstractClosedForm):
            scores = lambda theta: np.concatenate(
                [part.reshape(len(self.first), -1) for part in self.scores(theta)], axis=1
            )
            for pair in _differences(scores, directions, self.objective.difference):
                first, second = ((part[:, :-1], part[:, -1]) for part in pair)
                yield first, second
            return
        for group, count in self._groups(len(directions[0])):
            pair = _directional_derivatives(
                self.scores_at, self.like, tuple(part[group] for part in directions)
            )
            for k in range(count):
                first, second = jax.tree.map(lambda part, k=k: part[k], pair)
                yield self._alike(first), self._alike(second)

    def bends(self, directions: Directions) -> Float[np.ndarray, "some params"]:
        """Compute ∇³F(θ, 1) along both directions, at each θ."""
        if isinstance(self.objective, AbstractClosedForm):
            objective = self.objective
            ones = np.ones((1, objective.num_units))
            start = objective.look(directions[0][:1], ones)[2]
            slope = lambda theta: objective.look(theta[None], ones, start)[1][0]
            pairs = _differences(slope, directions, objective.difference)
            return np.array([second for _, second in pairs])
        pieces = [
            np.asarray(
                _third_derivatives(
                    self.objective, self.like, tuple(part[group] for part in directions)
                )
            )[:count]
            for group, count in self._groups(len(directions[0]))
        ]
        return np.concatenate(pieces)

    def _alike(self, result: tuple[Arrays | None, Arrays]) -> Scores:
        """Convert scores to NumPy.

        For runs of one unit the joint scores are the losses, if the model gives no others.
        """
        joint = np.asarray(result[1])[: len(self.first)]
        if result[0] is None:
            return joint[:, None], joint
        return np.asarray(result[0])[: len(self.first)], joint

    def _groups(self, count: int) -> Iterator[tuple[Int[np.ndarray, " group"], int]]:
        """Split `count` places into groups of one size, for one program; return the number of real
        places too.

        The last place is repeated to fill a group.
        """
        params = size_of(self.like)
        # units times derivatives that one call pushes forward: the fastest size
        size = max(1, min(2**16 // self.objective.num_units, params * (params + 1) // 2))
        for start in range(0, count, size):
            yield np.minimum(np.arange(start, start + size), count - 1), min(size, count - start)


def runs(objective: AbstractObjective, like: PyTree, rows: RefitRows) -> Runs | None:
    """Return the folds of a batch as `Runs`.

    None unless all are runs of weight zero that the model evaluates together.
    """
    if objective.costs.runs is None or rows.index.shape[1] >= objective.num_units:
        return None
    real = rows.index < objective.num_units
    if rows.weight[real].any():
        return None
    first = rows.index.min(1)
    length = real.sum(1)
    last = np.where(real, rows.index, -1).max(1)
    if (last - first + 1 != length).any():
        return None
    padded = repeatable(objective)
    lanes = few_more(len(first))
    assert padded.costs.runs is not None
    scores_at = padded.costs.runs(
        like, first[lanes].astype(np.int32), length[lanes].astype(np.int32)
    )
    if scores_at is None:
        return None
    return Runs(padded, like, scores_at, first, int(length.max()))


def _differences(
    function: Callable[[np.ndarray], np.ndarray], directions: Directions, length: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Derivatives of a function at each θ along its first direction and along both, by central
    differences.

    The function is evaluated once at each place along one of them.
    """
    cache: dict[bytes, np.ndarray] = {}

    def evaluate(theta: np.ndarray) -> np.ndarray:
        key = np.round(theta, 12).tobytes()
        if key not in cache:
            cache[key] = function(theta)
        return cache[key]

    for theta, a, b in zip(*directions, strict=True):
        a = length * a
        b = length * b
        up = evaluate(theta + a)
        down = evaluate(theta - a)
        middle = evaluate(theta)
        if np.array_equal(a, b):
            second = up + down - 2 * middle
        else:
            second = 0.5 * (
                function(theta + a + b) + function(theta - a - b) + 2 * middle - up - down
            )
            second = second - 0.5 * (evaluate(theta + b) + evaluate(theta - b))
        yield (up - down) / (2 * length), second / length**2


@compile_static
def _scores(answer: RunScores, like: PyTree, theta: Arrays):
    return answer(unravel(jnp.asarray(theta), like))


def _both_derivatives(
    function: Callable[[Array], PyTree], directions: Directions
) -> tuple[PyTree, PyTree]:
    """Derivatives at each θ along its first direction, and along both."""
    return jax.vmap(
        lambda v, a, b: jax.jvp(lambda v: jax.jvp(function, (v,), (a,))[1], (v,), (b,))
    )(*directions)


@compile_static
def _directional_derivatives(answer: RunScores, like: PyTree, directions: Directions):
    return _both_derivatives(lambda v: answer(unravel(v, like)), directions)


@compile_static
def _third_derivatives(objective: AbstractObjective, like: PyTree, directions: Directions):
    ones = np.ones(objective.num_units)
    return _both_derivatives(
        jax.grad(lambda v: objective.loss(unravel(v, like), ones)), directions
    )[1]
