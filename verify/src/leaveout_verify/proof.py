"""The proof that a claim is true, or false, of the exact minimiser, by balls of 128 bits and more.

For any matrix R let z_i = R x_i, and let |R (KP + Σ W_i a_i x_i x_iᵀ) Rᵀ − I| ≤ δ for some weights
W and K and numbers a ≥ 0. A refit has weights w and κ. With μ = 1 − δ − Σ max(W_i − w_i, 0)
a_i |z_i|², a candidate t, the gradient g there, and ℓ_i″ ≥ s a_i within |z_i| r of every x_iᵀt +
o_i whose w_i > 0:

    |R g| < r m,  m = μ min(1, s, κ/K)
    ⟹   the refit has one minimiser, and |x_iᵀθ − x_iᵀt| ≤ |z_i| |R g| / m.

The proof is in the README. Coefficients at a kink or a bound are held: R has rows of zeros for
them, and the refit is the minimiser of all if the conditions of Karush, Kuhn and Tucker hold for
every point within the proved distance. Where least squares have no penalty and no unique minimiser,
the claim is on that of least norm, whose rank is decided by rational numbers.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from flint import arb, arb_mat, ctx, fmpq, fmpq_mat

from .problem import Fold, Problem

Array = np.ndarray
PRECISIONS = (128, 320, 1280)  # bits; more for what fewer leave undecided
# least μ with which a refit is checked by the R of all rows; others get an R of their own
SHARED = 0.3
FAR = 1e9  # predictors, of losses that have an exponential, beyond which float64 finds no minimiser
ENTRIES = 200_000  # predictors of rows and refits that are held as balls at a time
UP, DOWN = 1 + 1e-12, 1 - 1e-12  # more than the rounding of the float64 sums that they multiply

above = lambda balls: UP * np.array([float(ball.abs_upper()) for ball in balls])
below = lambda balls: DOWN * np.array([float(ball.lower()) for ball in balls])
matrix = lambda numbers: arb_mat(*np.shape(numbers), [arb(v) for v in np.ravel(numbers).tolist()])
lengths = lambda numbers, axis: UP * np.sqrt(np.sum(np.square(numbers), axis))


class Verdict(NamedTuple):
    """What is proved of the claim on a fold: "accepted", "rejected" or "undecided".

    `beyond` is how far the losses are from the exact ones, less the claimed error.
    """

    status: str
    beyond: float = float("nan")


UNDECIDED = Verdict("undecided")


def whitener(X: Array, weight: Array, penalty: Array) -> Array:
    """Return R with R A Rᵀ ≈ I for A = P + Σ weight x xᵀ, by QR of the rows."""
    if not X.shape[1]:
        return np.zeros((0, 0))
    scale = np.sqrt((X**2).T @ weight + np.diag(penalty))
    scale[scale == 0] = 1
    values, vectors = np.linalg.eigh(penalty)
    rows = [np.sqrt(weight)[:, None] * X, np.sqrt(np.maximum(values, 0))[:, None] * vectors.T]
    T = np.linalg.qr(np.concatenate(rows) / scale, mode="r")
    diagonal = np.abs(np.diag(T))
    if not diagonal.min() > 1e-15 * diagonal.max():
        raise np.linalg.LinAlgError("not of full rank")
    return np.linalg.inv(T).T / scale


class Reference:
    """R, the z_i, and δ, for the weights W and curvatures a of some refit, whose coefficients that
    are not `free` are held.

    `tilt` is the slope a_j sign(θ_j) of the kinks beside the free coefficients.
    """

    def __init__(
        self,
        problem: Problem,
        weight: Array,
        times: float,
        curvature: Array,
        free: Array | None = None,
        tilt: Array | None = None,
    ):
        X, n, p = problem.X, *problem.X.shape
        free = np.ones(p, bool) if free is None else free
        self.free, self.tilt = free, np.zeros(p) if tilt is None else tilt
        self.weight, self.times, self.R = weight, times, np.zeros((free.sum(), p))
        self.R[:, free] = whitener(
            X[:, free], weight * curvature, times * problem.penalty[np.ix_(free, free)]
        )
        share = weight * curvature * np.sum((X @ self.R.T) ** 2, axis=1)
        # any a will do, and a row that carries nothing needs no bound
        self.a = np.where(share > 1e-9, curvature, 0.0)
        self.X, self.R_balls, self.P = matrix(X), matrix(self.R), matrix(problem.penalty)
        Z = self.X * self.R_balls.transpose()
        count = len(self.R)
        factors = [arb(w) * arb(a) for w, a in zip(weight.tolist(), self.a.tolist(), strict=True)]
        weighted = arb_mat(n, count, [factors[k // count] * v for k, v in enumerate(Z.entries())])
        B = Z.transpose() * weighted + self.R_balls * self.P * self.R_balls.transpose() * arb(times)
        self.delta = float(lengths(above((B - matrix(np.eye(count))).entries()), 0))
        self.length = lengths(above(Z.entries()).reshape(n, count), 1)
        self.Z = np.array([float(v) for v in Z.entries()]).reshape(n, count)

    def mu(self, fold: Fold) -> float:
        lost = np.maximum(self.weight[fold.rows] - fold.weights, 0.0)
        return DOWN * (1 - self.delta * UP) - UP**3 * float(
            lost @ (self.a[fold.rows] * self.length[fold.rows] ** 2)
        )

    def without(self, folds: Sequence[Fold], gradients: Array) -> Array:
        """Steps for whitened gradients [columns, folds], by about the inverse of each refit's own
        matrix.
        """
        out = gradients.copy()
        for k, fold in enumerate(folds):
            lost = (self.weight[fold.rows] - fold.weights) * self.a[fold.rows]
            some = self.Z[fold.rows][lost != 0]
            inner = np.diag(1 / lost[lost != 0]) - some @ some.T
            out[:, k] += some.T @ np.linalg.solve(inner, some @ gradients[:, k])
        return out


def stay(problem: Problem, theta: Array) -> None:
    """Raise LinAlgError where predictors run away, as without a minimiser."""
    if problem.exponential and not np.abs(problem.X @ theta).max(initial=0) < FAR:
        raise np.linalg.LinAlgError("no minimiser is near")


def minimise(problem: Problem, weight: Array, times: float, theta: Array) -> tuple[Array, Array]:
    """Take Newton steps in float64, halved where they overshoot.

    Return θ and every ℓ″ there. Nothing of it is believed.
    """
    slopes = lambda theta: problem.loss.slopes(problem.X @ theta + problem.offset, problem.y)
    gradient = lambda theta: (
        problem.X.T @ (weight * slopes(theta)[0]) + times * problem.penalty @ theta
    )
    for _ in range(200):
        g = gradient(theta)
        R = whitener(problem.X, weight * slopes(theta)[1], times * problem.penalty)
        step, size = R.T @ (R @ g), 1.0
        while size > 1e-6 and not gradient(theta - size * step) @ step >= -0.5 * (g @ step):
            size /= 2
        theta = theta - size * step
        stay(problem, theta)
        if np.abs(problem.X @ step).max() < 1e-9:
            break
    return theta, slopes(theta)[1]


def check(
    problem: Problem, reference: Reference, folds: Sequence[Fold], theta: Array
) -> list[Verdict]:
    """Check folds that share a reference, from the candidates `theta` [columns, folds]."""
    verdicts, n, last = [UNDECIDED] * len(folds), len(problem.y), np.inf
    weights = np.stack([problem.weights(fold) for fold in folds], axis=1)
    times, mu = (
        np.array([fold.times for fold in folds]),
        np.array([reference.mu(fold) for fold in folds]),
    )
    eta = lambda theta: problem.X @ theta + problem.offset[:, None]
    for _ in range(60):  # float64 steps while they shrink
        slope, _ = problem.loss.slopes(eta(theta), problem.y[:, None])
        smooth = problem.X.T @ (weights * slope) + times * (
            problem.penalty @ theta + reference.tilt[:, None]
        )
        gradient = reference.R @ smooth
        theta = theta - reference.R.T @ reference.without(folds, gradient)
        size = np.abs(gradient).max(initial=0)
        if not 1e-15 < size < 0.9 * last:
            break
        last = size
    points, open_ = matrix(theta), np.arange(len(folds))
    y = [arb(v) for v in problem.y.tolist()]
    for _ in range(9):
        count = len(open_)
        predictors = (reference.X * points).entries()
        if problem.offset.any():
            predictors = [
                e + arb(o)
                for e, o in zip(predictors, np.repeat(problem.offset, count).tolist(), strict=True)
            ]
        w = weights[:, open_].ravel().tolist()
        slopes = [
            problem.loss.taylor(e, y[i // count])[1] * v if v else arb(0)
            for i, (e, v) in enumerate(zip(predictors, w, strict=True))
        ]
        pull = reference.X.transpose() * arb_mat(n, count, slopes)
        kappa = arb_mat(
            count,
            count,
            [
                arb(times[k]) if j == i else arb(0)
                for i, k in enumerate(open_)
                for j in range(count)
            ],
        )
        tilt = matrix(np.repeat(reference.tilt[:, None], count, 1))
        white = reference.R_balls * (pull + (reference.P * points + tilt) * kappa)
        size = lengths(above(white.entries()).reshape(-1, count), 0)
        for k, j in enumerate(open_):
            own = predictors[k::count]
            distance = enclose(problem, reference, weights[:, j], own, size[k], mu[j], times[j], y)
            theta_of_fold = points.entries()[k::count]
            if problem.kinked and not optimal(
                problem, reference, weights[:, j], times[j], theta_of_fold, own, distance, y
            ):
                continue
            if np.isfinite(distance):
                near = {
                    i: own[i] + arb(0, UP**2 * reference.length[i] * distance)
                    for i in folds[j].held.tolist()
                }
                verdicts[j] = judge(problem, folds[j], near)
        left = np.array(
            [
                k
                for k, j in enumerate(open_)
                if verdicts[j] is UNDECIDED or verdicts[j].status == "undecided"
            ],
            int,
        )
        if not left.size:
            break
        gradient = np.array([float(v) for v in white.entries()]).reshape(-1, count)[:, left]
        open_, entries = open_[left], np.array(points.entries(), object).reshape(-1, count)[:, left]
        step = reference.R.T @ reference.without([folds[j] for j in open_], gradient)
        points = arb_mat(
            [
                [(v - arb(float(s))).mid() for v, s in zip(*pair, strict=True)]
                for pair in zip(entries, step, strict=True)
            ]
        )
    return verdicts


def enclose(
    problem: Problem,
    reference: Reference,
    weight: Array,
    eta: list[arb],
    size: float,
    mu: float,
    times: float,
    y: list[arb],
) -> float:
    """Return a bound of |u| for the minimiser t + Rᵀu, or infinity if none is proved.

    `size` is |R g|.
    """
    if not (mu > 0 and (weight >= 0).all() and times >= 0):
        return np.inf
    radius, least = 3 * size / mu + 1e-300, 1.0
    for i in np.flatnonzero((weight > 0) & (reference.a > 0)):
        around = eta[i] + arb(0, UP * reference.length[i] * radius)
        low = float(problem.loss.taylor(around, y[i])[2].lower())
        if not low > 0:  # or NaN
            return np.inf
        least = min(least, DOWN * low / reference.a[i])
    m = DOWN**2 * mu * min(least, times / reference.times if problem.penalty.any() else 1.0)
    return UP * size / m if m > 0 and size < DOWN * radius * m else np.inf


def held_at(problem: Problem, theta: Array) -> Array:
    """Which coefficients are at a kink or a bound."""
    return ((problem.slope > 0) & (theta == 0)) | (theta == problem.low) | (theta == problem.high)


def minimise_kinked(
    problem: Problem, weight: Array, times: float, theta: Array
) -> tuple[Array, Array]:
    """Take proximal Newton steps by coordinate descent in float64.

    Return θ and every ℓ″ there. Nothing of it is believed.
    """
    X, a = problem.X, times * problem.slope
    theta = np.clip(theta, problem.low, problem.high)
    for _ in range(50):
        slope, curvature = problem.loss.slopes(X @ theta + problem.offset, problem.y)
        H = (X.T * (weight * curvature)) @ X + times * problem.penalty
        goal, pull = theta.copy(), X.T @ (weight * slope) + times * problem.penalty @ theta
        scale = np.sqrt(np.maximum(np.diag(H), 0.0))
        for _ in range(100):
            largest = 0.0
            for j in np.flatnonzero(scale):
                target = goal[j] - pull[j] / H[j, j]
                target = np.sign(target) * max(abs(target) - a[j] / H[j, j], 0.0)
                target = min(max(target, problem.low[j]), problem.high[j])
                largest = max(largest, abs(target - goal[j]) * scale[j])
                pull += H[:, j] * (target - goal[j])
                goal[j] = target
            if largest < 1e-13:
                break
        free = ~held_at(problem, goal)
        polished = goal.copy()
        polished[free] -= np.linalg.solve(H[np.ix_(free, free)], (pull + a * np.sign(goal))[free])
        inside = (
            (polished > problem.low)
            & (polished < problem.high)
            & ((a == 0) | (polished * goal > 0))
        )
        goal = polished if inside[free].all() else goal
        step, size = goal - theta, 1.0

        def along(point: Array, step: Array = step) -> float:
            slope, _ = problem.loss.slopes(X @ point + problem.offset, problem.y)
            smooth = X.T @ (weight * slope) + times * problem.penalty @ point
            return float(smooth @ step + a @ (np.sign(point + 1e-12 * step) * step))

        # where rounding decides signs of slopes, and Newton's steps converge
        short = np.abs(X @ step).max(initial=0) < 1e-6
        fall = abs(along(theta))
        while not short and size > 1e-6 and along(theta + size * step) > 0.5 * fall:
            size /= 2
        # the sum of a start and a step is not an end itself
        theta = goal if size == 1 else theta + size * step
        stay(problem, theta)
        if np.abs(X @ step).max(initial=0) < 1e-11:
            break
    return theta, problem.loss.slopes(X @ theta + problem.offset, problem.y)[1]


def optimal(
    problem: Problem,
    reference: Reference,
    weight: Array,
    times: float,
    theta: list[arb],
    eta: list[arb],
    distance: float,
    y: list[arb],
) -> bool:
    """Whether each point within `distance` fulfils the conditions of kinks and bounds.

    No coefficient may move downhill.
    """
    if not np.isfinite(distance):
        return False
    spread = UP**2 * lengths(reference.R, 0) * distance
    theta = [v + arb(0, s) for v, s in zip(theta, spread.tolist(), strict=True)]
    for j in np.flatnonzero(reference.free):
        low, high, tilt = float(problem.low[j]), float(problem.high[j]), float(reference.tilt[j])
        inside = (low == -np.inf or theta[j] > arb(low)) and (
            high == np.inf or theta[j] < arb(high)
        )
        if not inside or (problem.slope[j] > 0 and not theta[j] * arb(tilt) > 0):
            return False
    held = np.flatnonzero(~reference.free)
    if not held.size:
        return True
    slopes = [arb(0)] * len(y)
    for i in np.flatnonzero(weight):
        around = eta[i] + arb(0, UP**2 * reference.length[i] * distance)
        slopes[i] = problem.loss.taylor(around, y[i])[1] * arb(float(weight[i]))
    pull = matrix(problem.X[:, held].T) * arb_mat(len(y), 1, slopes)
    pull = pull + matrix(problem.penalty[held]) * arb_mat(len(theta), 1, theta) * arb(times)
    for j, gradient in zip(held.tolist(), pull.entries(), strict=True):
        value, a = float(theta[j].mid()), arb(times) * arb(float(problem.slope[j]))
        rises = value >= problem.high[j] or gradient + (a if value >= 0 else -a) > 0
        falls = value <= problem.low[j] or gradient + (a if value > 0 else -a) < 0
        if not (rises and falls):
            return False
    return True


def judge(problem: Problem, fold: Fold, eta: dict[int, arb]) -> Verdict:
    """Compare a claim with balls around the exact predictors of the rows that are held out."""
    exact = (problem.loss.taylor(eta[i], arb(float(problem.y[i])))[0] for i in fold.held.tolist())
    total = sum(
        (
            abs(value - arb(claimed))
            for value, claimed in zip(exact, fold.losses.tolist(), strict=True)
        ),
        arb(0),
    )
    beyond = total - arb(fold.error)
    status = (
        "accepted"
        if beyond <= 0
        else "rejected"
        if beyond > 0 or not np.isfinite(fold.error)
        else "undecided"
    )
    return Verdict(status, float(beyond.mid()))


def least_norm(problem: Problem, fold: Fold) -> Verdict:
    """Check the least-squares fit of least norm, the intercept's not counted, of any rank.

    Rational numbers decide the rank.
    """
    weight, own = problem.weights(fold), problem.X.shape[1] - problem.intercept
    kept = np.flatnonzero(weight > 0).tolist()
    exact = lambda v: fmpq(*map(int, float(v).as_integer_ratio()))
    w = {i: exact(weight[i]) for i in kept}
    mean = lambda values: (
        sum((w[i] * values[i] for i in kept), fmpq(0)) / sum(w.values(), fmpq(0))
        if problem.intercept
        else fmpq(0)
    )
    rows = [[exact(v) for v in row[:own]] for row in problem.X]
    middle = [mean([row[j] for row in rows]) for j in range(own)]
    rows = [[v - m for v, m in zip(row, middle, strict=True)] for row in rows]
    target = [exact(y) - exact(o) for y, o in zip(problem.y, problem.offset, strict=True)]
    level = mean(target)
    reduced, rank = fmpq_mat([rows[i] for i in kept]).rref()
    basis = reduced.tolist()[:rank]
    # the rows kept are those columns times the basis
    pivots = [next(j for j, v in enumerate(row) if v != 0) for row in basis]
    F = arb_mat([[arb(v) for v in row] for row in basis])
    C = arb_mat([[arb(rows[i][j]) for j in pivots] for i in kept])
    WC = arb_mat([[arb(w[i] * rows[i][j]) for j in pivots] for i in kept])
    short = (C.transpose() * WC).solve(
        WC.transpose() * arb_mat([[arb(target[i] - level)] for i in kept])
    )
    theta = F.transpose() * (F * F.transpose()).solve(short)
    found = (arb_mat([[arb(v) for v in rows[i]] for i in fold.held.tolist()]) * theta).entries()
    return judge(
        problem,
        fold,
        {
            i: e + arb(level + exact(problem.offset[i]))
            for i, e in zip(fold.held.tolist(), found, strict=True)
        },
    )


def alone(problem: Problem, fold: Fold, theta: Array) -> Verdict:
    """Check a fold by an R of its own or, for least squares without a penalty, as the fit of least
    norm.
    """
    weight = problem.weights(fold)
    with suppress(np.linalg.LinAlgError, ZeroDivisionError):
        if problem.kinked:
            theta, curvature = minimise_kinked(problem, weight, fold.times, theta)
            held = held_at(problem, theta)
            reference = Reference(
                problem,
                weight,
                fold.times,
                curvature,
                ~held,
                np.where(held, 0, problem.slope * np.sign(theta)),
            )
            return check(problem, reference, [fold], theta[:, None])[0]
        theta, curvature = minimise(problem, weight, fold.times, theta)
        (found,) = check(
            problem, Reference(problem, weight, fold.times, curvature), [fold], theta[:, None]
        )
        if found.status != "undecided":
            return found
    with suppress(ZeroDivisionError):
        if problem.squared and not (problem.penalty.any() or problem.kinked):
            return least_norm(problem, fold)
    return UNDECIDED


@np.errstate(all="ignore")  # of float64, of which nothing is believed
def verify(problem: Problem) -> list[Verdict]:
    """Check every claim of a certificate; one verdict for each fold, in order."""
    verdicts, before = [UNDECIDED] * len(problem.folds), ctx.prec
    # a hint that is of no use
    if problem.exponential and not np.abs(problem.X @ problem.theta).max(initial=0) < FAR:
        problem = problem._replace(theta=np.zeros_like(problem.theta))
    try:
        for ctx.prec in PRECISIONS:
            wanting = [k for k, verdict in enumerate(verdicts) if verdict.status == "undecided"]
            if not wanting:
                break
            theta = problem.theta
            try:
                if problem.kinked:
                    raise np.linalg.LinAlgError(
                        "coefficients that are held differ from refit to refit"
                    )
                theta, curvature = minimise(problem, problem.weight, problem.times, theta)
                reference = Reference(problem, problem.weight, problem.times, curvature)
                near = [k for k in wanting if reference.mu(problem.folds[k]) > SHARED]
            except np.linalg.LinAlgError:
                near = []
            size = max(1, ENTRIES // len(problem.y))
            for some in (near[start : start + size] for start in range(0, len(near), size)):
                found = check(
                    problem,
                    reference,
                    [problem.folds[k] for k in some],
                    np.repeat(theta[:, None], len(some), 1),
                )
                for k, verdict in zip(some, found, strict=True):
                    verdicts[k] = verdict
            for k in wanting:
                if verdicts[k].status == "undecided":
                    verdicts[k] = alone(problem, problem.folds[k], theta)
    finally:
        ctx.prec = before
    return verdicts
