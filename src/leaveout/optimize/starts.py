"""Starts of a fit, and the minima of `F(·, 1)` that they lead to.

The first start is the user's or the objective's own. The others are drawn by the objective, with a
seed, if it draws. If not, they are drawn around the first: with normal moves of standard deviation
`√(n / (p |H_jj|))` in each of p parameters, H the curvature at the first start, so that a move
would cost a quadratic F about half a nat a unit; and twice and four times as far in turn.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import field

import numpy as np
from jaxtyping import Float, Int

from .._runtime import (
    ArrayList,
    NumpyArray,
    PyTree,
    Slow,
    StepResult,
    kind_of,
    read_or_make,
    record,
    steps,
    workers,
)
from ..objectives import (
    AbstractObjective,
    Function,
    Vector,
    as_stored,
    function,
    map_arrays,
    ravel,
    unflatten,
)
from .newton import LARGE_NUM_PARAMETERS, Minimisation

# factors of the distance, as a first start in a narrow basin does not show how far off others are
WIDER = 1, 2, 4
STARTS = 4  # default number of starts, if F is not convex and a start is affordable
# nats between values of one minimum: minimisers end at decrements of 1e-5 or less, that is at 5e-11
SAME_MINIMUM = 1e-6
START_ROUNDING = 1e-10  # the same, relative to F


@record
class Minima:
    """Distinct minima of `F(·, 1)`, lowest first: F, raveled θ, and how many starts reached each.

    And the number of starts.
    """

    value: Float[NumpyArray, " minima"]
    theta: Float[NumpyArray, "minima params"]
    reached: Int[NumpyArray, " minima"]
    starts: int

    def __eq__(self, other: object) -> bool:
        """Return True for any other minima.

        Compiled programs ignore them, so a fit with one more compiles nothing anew.
        """
        return isinstance(other, Minima)

    def __hash__(self) -> int:
        return hash(Minima)


def stored_leaves(theta: PyTree) -> PyTree:
    """Convert parameters to finite float64 arrays."""

    def convert(leaf):
        array = np.asarray(leaf)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"parameters must be numbers; got an array of {array.dtype}.")
        if not np.isfinite(array).all():
            raise ValueError("parameters must be finite; theta holds NaN or infinite values.")
        return as_stored(array)

    return map_arrays(convert, theta)


def starts_of(
    objective: AbstractObjective, theta0: PyTree, number: int | None, seed: int
) -> list[PyTree]:
    """List the starts: `theta0` first, if given, then others up to `number`.

    A convex F has one start, whatever `number` is. By default a model whose starts take long has
    one too.
    """
    default_start = lambda seed: stored_leaves(own_start(objective, seed))
    if theta0 is None:
        first = default_start(seed)
    else:
        first = stored_leaves(objective.parameters.unconstrained(theta0))
    usual = 1
    if ravel(first).size <= LARGE_NUM_PARAMETERS:
        usual = objective.parameters.usual_starts
    if objective.convex:
        count = 1
    else:
        count = usual if number is None else number
    if count == 1:
        return [first]
    seeds = range(seed + 1, seed + count)
    if objective.parameters.start is None:
        return [first, *_around(objective, first, seeds)]
    candidates = [first if theta0 is None else default_start(seed), *map(default_start, seeds)]
    if any(not np.array_equal(ravel(candidates[0]), ravel(candidate)) for candidate in candidates):
        return [first, *candidates[1:]]
    fixed = [first, candidates[0]]
    if np.array_equal(ravel(candidates[0]), ravel(first)):
        fixed = [first]
    return [*fixed, *_around(objective, first, seeds[len(fixed) - 1 :])]


def _around(objective: AbstractObjective, first: PyTree, seeds: range) -> Iterator[PyTree]:
    """Yield starts around the first, one a seed."""
    F = function(objective, first)
    centre = np.asarray(ravel(first))
    n = objective.num_units
    curvature = np.abs(np.diag(F.hessian(centre)))
    usual = np.median(curvature[curvature > 0]) if (curvature > 0).any() else float(n)
    flat_start_curvature = 1e-3  # least curvature that moves are scaled by, relative to the median
    scale = np.sqrt(n / (len(centre) * np.maximum(curvature, flat_start_curvature * usual)))
    for k, seed in enumerate(seeds):
        away = (
            WIDER[k % len(WIDER)] * scale * np.random.default_rng(seed).standard_normal(len(centre))
        )
        while not np.isfinite(np.sum(F.look(centre + away)[1])) and np.abs(away).max() > 0:
            away /= 2  # the move leaves the domain of a link, or exponentials overflow
        yield unflatten(centre + away, first)


def cores() -> int:
    """Number of cores that this process may use."""
    import joblib

    return joblib.cpu_count()


@record
class WatchedFunction(Function):
    """F whose values and number of gradients are shown as progress."""

    tell: Callable[..., None]
    looks: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def look(self, vector: Vector) -> tuple[float, Vector]:
        value, gradient = super().look(vector)
        self.tell(f"F = {value:.6g} after {next(self.looks)} gradients")
        return value, gradient


@record
class StartRunner:
    """Descent from a start, given by its number, with a line of progress.

    Contains everything that another process needs.
    """

    starts: ArrayList
    F: Function
    minimise: Callable[[Function, NumpyArray], Minimisation]
    bar: Slow

    def __call__(self, number: int) -> StepResult:
        tell = self.bar.line(f"start {number + 1}")
        solution = self.minimise(
            WatchedFunction(copy.copy(self.F.of), self.F.like, tell), self.starts[number]
        )
        tell(
            f"{'a minimum' if solution.converged else 'no minimum'}, F = {solution.value:.8g}",
            done=True,
        )
        self.bar.advance()
        return {name: np.asarray(part) for name, part in solution._asdict().items()}

    def results(self) -> Iterator[StepResult]:
        """Run every start, and keep the results in the checkpoint.

        One start runs alone, so that programs are compiled once. The others run side by side, or on
        joblib's workers, if it has some.
        """
        count = len(self.starts)
        # the first run decides whether sending the others pays
        alone = 1 if count == 1 or workers() < 2 else 0
        yield from (read_or_make(lambda: self(0)) for _ in range(alone))
        if alone < count:  # else joblib need not be imported
            for _, result in steps(self, range(alone, count), min(count - 1, cores()) or 1):
                yield result


def descended_from(
    starts: ArrayList, F: Function, minimise: Callable[[Function, NumpyArray], Minimisation]
) -> list[Minimisation]:
    """Run the descent from each start, and sort the results, lowest minimum first."""
    runs = []
    with Slow("starts", len(starts)) as bar, warnings.catch_warnings():
        # Newton steps follow
        warnings.filterwarnings("ignore", "The line search algorithm did not converge")
        for result in StartRunner(starts, F, minimise, bar).results():
            runs.append(
                Minimisation(float(result["value"]), result["theta"], bool(result["converged"]))
            )
            # counts runs from the checkpoint or another process
            bar.advance(max(len(runs) - bar.num_done, 0))
    return sorted(runs, key=lambda run: run[0] if np.isfinite(run[0]) else np.inf)


def alone(value: NumpyArray, theta: PyTree) -> Minima:
    """Return the minima of a fit with one start."""
    return Minima(
        np.reshape(np.asarray(value), 1), np.asarray(ravel(theta))[None], np.ones(1, int), 1
    )


def distinct(
    objective: AbstractObjective, runs: list[Minimisation], like: PyTree, starts: int
) -> Minima:
    """Return the distinct minima that runs, lowest first, reached.

    Values that differ by rounding belong to one minimum, whatever the order of interchangeable
    parts.
    """
    minima: list[list] = []  # F, θ and number of runs of each
    for value, vector, converged in runs:
        if not (converged and np.isfinite(value)):
            continue
        if minima and value - minima[-1][0] <= SAME_MINIMUM + START_ROUNDING * abs(value):
            minima[-1][2] += 1
        else:
            minima.append(
                [
                    float(value),
                    np.asarray(ravel(objective.parameters.canonical(unflatten(vector, like)))),
                    1,
                ]
            )
    if minima:
        values, thetas, times = zip(*minima, strict=True)
    else:
        values = ()
        thetas = ()
        times = ()
    return Minima(
        np.array(values),
        np.reshape(thetas, (len(values), ravel(like).size)),
        np.array(times, int),
        starts,
    )


def own_start(objective: AbstractObjective, seed: int) -> PyTree:
    """Return the objective's own start for a seed."""
    start = objective.parameters.start
    if start is None:
        raise ValueError(
            f"fit: {kind_of(objective)} has no start of its own; give one: fit(objective, theta0={{...}})."
        )
    return start(seed)
