"""The estimator of the source document (Algorithms 1 and 3): independent draws with replacement at
every level.

At level p′ every record trained on comes from V̂ with probability p′, else from T̂; then the number
of leaked records is `Binomial(n, p₀ + (1 − p₀) p′)`. Test sets are drawn in the same way if leakage
goes the other way. Use `leakage_corrected`; this estimator is for comparison with the document.
"""

import functools
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import linalg, ndarray
from numpy.random import Generator, default_rng
from numpy.typing import ArrayLike, NDArray

from ... import Fit
from ...developer import (
    File,
    FloatArray,
    IntArray,
    Lines,
    Measure,
    PrintedResult,
    Rng,
    Slow,
    StepResult,
    conventional,
    count,
    keeping,
    match_labels,
    read_or_make,
    record,
)
from ..hosts.sklearn import SklearnEstimator
from ._binomial import binomial_matrix, check_probabilities
from ._fits import FIT_BATCH_ENTRIES, AbstractLearner
from ._hosts import make_learner, prepare
from ._scoring import Loss
from ._solve import Curve, differences, nonincreasing, solve_curve

Direction = Literal["train", "test", "both"]


@record
class BlockBootstrap(PrintedResult):
    """The linear system of the block bootstrap with binomial injection.

    Attributes
    ----------
    levels : ndarray, `[levels]`
        The injected probabilities p′.
    losses : ndarray, `[levels]`, or `[train levels, test levels]` for both directions
        The mean losses.
    variance : ndarray
        The variance of one draw's loss at each level.
    A : ndarray, or a pair
        The matrices.
    num_boot : int
        The draws a level.
    direction : {"train", "test", "both"}
        The direction of leakage.

    See Also
    --------
    binomial_block_bootstrap : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> levels = np.array([0.0, 0.3, 0.6, 1.0])
    >>> A = lo.leakage.binomial_matrix(levels, 3)
    >>> system = lo.leakage.BlockBootstrap(levels, A @ [4.0, 3.0, 2.0, 1.0], np.ones(4), A, 10)
    >>> round(system.solve(lam=1e-6).estimate, 2)
    4.0
    """

    levels: Float[ndarray, " levels"]
    losses: Float[ndarray, "levels ..."]
    variance: Float[ndarray, "levels ..."]
    A: Any
    num_boot: int
    direction: Direction = "train"

    def _facts(self) -> Lines:
        curve = self.solve()
        direction = {"train": "V̂ into T̂", "test": "T̂ into V̂", "both": "both ways"}[self.direction]
        size = len(curve.values) - 1
        lines = [
            (
                "bootstrap",
                f"{len(self.levels)} levels of {self.num_boot} draws; leakage {direction}, up to {size} records",
            ),
            (
                "naive",
                f"{self.losses.flat[0]:.5g} ± {np.sqrt(self.variance.flat[0] / self.num_boot):.2g} (Monte Carlo)",
            ),
        ]
        error = ""
        # levels are drawn by themselves: Theorem 3.2, with the weights of this solution
        if self.direction != "both":
            error = f" ± {np.sqrt(np.sum(curve.weights**2 * self.variance) / self.num_boot):.2g} (Monte Carlo)"
        lines.append(("no leak", f"{curve.estimate:.5g}{error}, the loss by solve()"))
        if self.direction == "train":
            points = np.unique(np.round(np.linspace(0, size, 5)).astype(int))
            values = ", ".join(f"{point} of {size}: {curve.values[point]:.4g}" for point in points)
            lines.append(("leaked records", values))
        return lines

    def solve(
        self,
        *,
        order: int = 2,
        lam: float = 0.1,
        monotone: bool = True,
        linear: bool | None = None,
        upper: float | None = None,
        squared: bool = True,
    ) -> Curve:
        """Solve the system for ê with a trend filter.

        Parameters
        ----------
        order : int, default 2
            The order of the trend filter.
        lam : float, default 0.1
            Its strength.
        monotone : bool, default True
            Whether e is non-increasing and non-negative.
        linear : bool, optional
            Whether e is linear in the records tested on, as a mean loss is (§5); by default for
            directions "test" and "both".
        upper : float, optional
            The largest value of e.
        squared : bool, default True
            Whether the norms are squared.

        Returns
        -------
        Curve
            The curve.
        """
        if linear is None:
            linear = self.direction != "train"
        one_sided = self.direction != "both"
        if one_sided and linear:  # in the number of leaked records (§5), with two parameters
            share = np.arange(self.A.shape[1]) / (self.A.shape[1] - 1)
            inverse = linalg.pinv(self.A @ np.column_stack([np.ones(len(share)), share]))
            start, slope = inverse @ self.losses
            e = start + slope * share
            return Curve(e, np.inf, inverse[0], float(linalg.norm(self.A @ e - self.losses)), 2)
        if one_sided and not squared:
            return solve_unsquared(self.A, self.losses, order, lam, monotone)
        return solve_curve(
            self.A,
            self.losses,
            order=order,
            lam=lam,
            monotone=monotone,
            upper=upper,
            linear=linear,
        )


@conventional
def binomial_block_bootstrap(
    estimator: SklearnEstimator | Fit,
    X: Any,
    y: ArrayLike,
    train: ArrayLike,
    test: ArrayLike,
    *,
    p_train: float = 0.0,
    p_test: float = 0.0,
    direction: Direction = "train",
    size: int = 100,
    levels: int | ArrayLike = 201,
    num_boot: int = 2500,
    loss: Loss = "squared",
    rng: Rng = 0,
    n_jobs: int | None = None,
    checkpoint: File | None = None,
) -> BlockBootstrap:
    """Compute the bootstrap losses of Algorithm 1 or 3 at several probabilities of injection.

    Drawn records are never scored (or, for "test", never trained on).

    Parameters
    ----------
    estimator : estimator or Fit
        A scikit-learn estimator, or the `Fit` of a `GLM`.
    X, y : array_like
        The data.
    train, test : array_like of int
        The rows of T̂ and V̂.
    p_train, p_test : float, default 0
        The shares of leaked records.
    direction : {"train", "test", "both"}, default "train"
        "train": V̂ leaks into T̂; "test": T̂ into V̂ (Algorithm 1); "both" (Algorithm 3).
    size : int, default 100
        The number n′ of records drawn.
    levels : int or array_like, default 201
        The probabilities of injection, or their number from 0 to 1.
    num_boot : int, default 2500
        The draws a level.
    loss : str, loss or callable, default "squared"
        The loss.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    n_jobs : int, optional
        The jobs of joblib.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there.

    Returns
    -------
    BlockBootstrap
        The losses and the linear system.

    Raises
    ------
    ValueError
        If a probability is outside [0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y, rows = X[:, 0] + rng.normal(size=40), np.arange(40)
    >>> system = lo.leakage.binomial_block_bootstrap(
    ...     Ridge(), X, y, rows[:30], rows[30:], size=5, levels=4, num_boot=5
    ... )
    >>> system.losses.shape
    (4,)
    """
    seed = count("binomial_block_bootstrap: rng", rng, 0)
    caller = "binomial_block_bootstrap"
    check_probabilities(caller, p_train, p_test)
    if direction not in ("train", "test", "both"):
        raise ValueError(
            f"{caller}: direction must be 'train', 'test' or 'both'; got {direction!r}."
        )
    _, X, y = match_labels(caller, X=X, y=y)
    task = prepare(caller, estimator, X, y, loss, "auto")
    if not task.measure.per_record:
        raise ValueError(
            f"{caller}: {task.measure.name} is not a mean over records; give a loss of one record."
        )
    sides = [np.asarray(rows, int) for rows in (train, test)]
    if min(map(len, sides)) < 2 or np.intersect1d(sides[0], sides[1]).size:
        raise ValueError(
            f"{caller}: train and test must be two records or more each, with none in common."
        )
    count(f"{caller}: size", size, 2)
    count(f"{caller}: num_boot", num_boot, 2)
    learner = make_learner(estimator, task, n_jobs)
    if np.ndim(levels) == 0:
        injected = np.linspace(0, 1, np.asarray(levels).item())
    else:
        injected = np.asarray(levels, float)
    if injected.ndim != 1 or len(injected) < 3 or not np.all((injected >= 0) & (injected <= 1)):
        raise ValueError(
            f"{caller}: levels must be three or more probabilities, or how many; got {levels!r}."
        )
    job = _Job(learner, task.measure, task.codes, sides[0], sides[1], size, num_boot, seed)
    run_facts = {
        "estimator": estimator,
        "data": (task.X, task.y, *sides),
        "loss": task.measure,
        "refit": task.refit,
        "direction": direction,
        "size": size,
        "levels": injected,
        "draws": num_boot,
        "seed": seed,
    }
    with keeping(caller, checkpoint, run_facts):
        mean, variance = job.inject(direction, injected)
    # injected records of V̂ belong to T with probability p_test, and those of T̂ to V with p_train
    clean_share = 1 - p_train - p_test
    matrices = [
        binomial_matrix(np.minimum(p + clean_share * injected, 1.0), size)
        for p in (p_train, p_test)
    ]
    A = {"train": matrices[0], "test": matrices[1], "both": tuple(matrices)}[direction]
    return BlockBootstrap(injected, mean, variance, A, num_boot, direction)


@record
class _Job:
    learner: AbstractLearner
    measure: Measure
    y: FloatArray
    train: IntArray
    test: IntArray
    size: int
    num_boot: int
    seed: int

    def inject(self, direction: Direction, levels: FloatArray) -> tuple[NDArray, NDArray]:
        """Compute the means and variances of b over draws of training sets, test sets, or both."""
        test_only = direction == "test"
        two_sided = direction == "both"
        draw_entries = self.size * self.learner.cost + 4 * (
            len(self.test) + two_sided * len(self.train)
        )
        # draws that are kept together
        if test_only:
            step = 64
            sides = self.train, self.test
        else:
            step = max(1, 2 * FIT_BATCH_ENTRIES // draw_entries)
            sides = self.test, self.train
        num_columns = len(levels) if two_sided else 1
        out = np.empty((len(levels), self.num_boot, num_columns))
        with Slow("draws", self.num_boot * len(levels)) as bar:
            for number, level in enumerate(levels):
                rng = default_rng([self.seed, number])
                for start in range(0, self.num_boot, step):
                    draws = range(start, min(start + step, self.num_boot))
                    # a test set has fits of its own
                    groups = [len(draws)]
                    if test_only:
                        groups = [1] * len(draws)
                    rows = np.concatenate(
                        [self._mixture(rng, count, level, *sides) for count in groups]
                    )
                    make_losses = functools.partial(
                        self._losses, direction, rows, draws, number, levels
                    )
                    out[number, draws] = read_or_make(make_losses)["losses"]
                    bar.advance(len(draws))
        if two_sided:
            out = np.moveaxis(out, 1, 2)
        else:
            out = out[..., 0]
        return out.mean(-1), out.var(-1, ddof=1)

    def _losses(
        self, direction: Direction, rows: IntArray, draws: range, number: int, levels: FloatArray
    ) -> StepResult:
        """Compute the mean losses of some draws, `[draws, test levels or one]`."""
        none = np.zeros((len(rows), 0), int)
        if direction == "train":
            losses = self.measure.losses(
                self.y[self.test], self.learner(rows, self.test, none, np.arange(len(rows)))[0]
            )
            place = np.full(len(self.y), len(self.test))
            place[self.test] = np.arange(len(self.test))
            fresh = np.ones((len(rows), len(self.test) + 1), bool)
            np.put_along_axis(fresh, place[rows], False, 1)
            count = fresh[:, :-1].sum(1)  # records of V̂ that a fit was not trained on
            if not count.all():
                raise ValueError(
                    "binomial_block_bootstrap: a training set holds all of V̂, and nothing is left to score; lower size=."
                )
            return {"losses": (np.einsum("fv,fv->f", losses, fresh[:, :-1]) / count)[:, None]}
        if direction == "test":  # fits train on the records of T̂ that were not drawn
            predict = lambda tested, r: self.learner(
                np.setdiff1d(self.train, tested)[None], tested, none[:1], np.array([r])
            )[0]
            mean = [
                self.measure.losses(self.y[tested], predict(tested, r)).mean()
                for tested, r in zip(rows, draws, strict=True)
            ]
            return {"losses": np.array(mean)[:, None]}
        train_rows = np.broadcast_to(self.train, (len(rows), len(self.train)))
        predicted = self.learner(rows, self.test, train_rows, np.arange(len(rows)))
        side_losses = [
            self.measure.losses(self.y[side_rows], side_predictions)
            for side_rows, side_predictions in zip((self.test, train_rows), predicted, strict=True)
        ]
        rng = default_rng([self.seed, number, 1])
        values = np.empty((len(rows), len(levels)))
        # tested on mixtures at all levels of records that it was not trained on
        for f, drawn_rows in enumerate(rows):
            unused_test, unused_train = (
                np.flatnonzero(~np.isin(side, drawn_rows)) for side in (self.test, self.train)
            )
            test_losses = side_losses[0][f, rng.choice(unused_test, self.size)]
            train_losses = side_losses[1][f, rng.choice(unused_train, self.size)]
            values[f] = np.where(
                rng.random(self.size) < levels[:, None], train_losses, test_losses
            ).mean(1)
        return {"losses": values}

    def _mixture(
        self, rng: Generator, count: int, p: float, first: NDArray, second: NDArray
    ) -> IntArray:
        """Draw `size` records with replacement, from `first` with probability p, else from
        `second`.
        """
        injected = rng.random((count, self.size)) < p
        return np.where(
            injected, rng.choice(first, injected.shape), rng.choice(second, injected.shape)
        )


def solve_unsquared(A: ArrayLike, b: ArrayLike, order: int, lam: float, monotone: bool) -> Curve:
    """Minimise ‖A e − b‖ + λ ‖D e‖, norms not squared, as in the authors' code.

    The solution is that with squared norms at the strength μ where μ ‖D e‖ = λ ‖A e − b‖. It is
    found by bisection, since the ratio of the left side to the right rises with μ.

    Parameters
    ----------
    A : array_like, `[levels, counts]`
        The matrix.
    b : array_like, `[levels]`
        The losses.
    order : int
        The order of the differences D.
    lam : float
        The strength λ.
    monotone : bool
        Whether e is non-increasing and non-negative.

    Returns
    -------
    Curve
        The curve.

    Examples
    --------
    >>> import leaveout as lo
    >>> A = lo.leakage.binomial_matrix([0.0, 0.3, 0.6, 1.0], 3)
    >>> round(lo.leakage.solve_unsquared(A, A @ [4.0, 3.0, 2.0, 1.0], 2, 1e-3, True).estimate, 2)
    4.0
    """
    A = np.asarray(A, float)
    b = np.asarray(b, float)
    D = differences(A.shape[1], order)

    def squared_solution(mu: float) -> FloatArray:
        if not monotone:
            return solve_curve(A, b, order=order, lam=mu, monotone=False).values
        return nonincreasing(np.vstack([A, np.sqrt(mu) * D]), np.concatenate([b, np.zeros(len(D))]))

    # bounds of log10 μ
    low = -16.0
    high = 12.0
    for _ in range(40):
        middle = (low + high) / 2
        e = squared_solution(10**middle)
        if 10**middle * linalg.norm(D @ e) < lam * linalg.norm(A @ e - b):
            low = middle
        else:
            high = middle
    return Curve(e, 10**middle, np.zeros(0), float(linalg.norm(A @ e - b)), order)
