"""True held-out losses in sixty digits, or by the host's own refits. Nothing of the library is
used.

A truth comes in one of three ways: Decimal arithmetic of sixty digits, for problems whose answer is
unique; the host's own refit of every fold, whose rank is the host's affair; and dense algebra
beside the host, which bounds what rounding may do to the host's number. A plan is read by its
attributes `indptr`, `index`, `weight`, `held` and `num_units`.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal, getcontext
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

getcontext().prec = 60
Array = np.ndarray


class Training(NamedTuple):
    """A refit of a plan: its rows, as often as they count.

    The rows that it scores, and the places of their losses.
    """

    rows: Array
    held: Array
    places: Array


def trainings(plan: Any) -> Iterator[Training]:
    for start, stop in zip(plan.indptr[:-1], plan.indptr[1:], strict=True):
        times = np.ones(plan.num_units, int)
        times[plan.index[start:stop]] = plan.weight[start:stop]
        places = start + np.flatnonzero(plan.held[start:stop])
        yield Training(np.repeat(np.arange(plan.num_units), times), plan.index[places], places)


class Truth(NamedTuple):
    """Losses, one an entry of a plan, NaN where none is scored and infinite where none exists; how
    far rounding lets each be known; and which of them depend on a tolerance, so that no number is
    as good as the host's."""

    losses: Array
    slack: Array
    ambiguous: Array

    @staticmethod
    def of(plan: Any, fold: Callable[[Training], tuple[Array, Array, bool]]) -> "Truth":
        """Put together by folds: the losses of one, their slack, and whether they are ambiguous."""
        losses, slack = np.full((2, len(plan.index)), np.nan)
        ambiguous = np.zeros(len(plan.index), bool)
        for training in trainings(plan):
            losses[training.places], slack[training.places], ambiguous[training.places] = fold(
                training
            )
        return Truth(losses, slack, ambiguous)


# least squares as scikit-learn solves them


def host_truth(
    host: Any, X: Array, y: Array, weight: Array | None = None
) -> Callable[[Any], Truth]:
    """Half the squared errors of scikit-learn's LinearRegression, refitted by itself.

    Its rank is by its own tolerance: a fold with a singular value within a factor of ten of the cut
    is ambiguous. Where no singular value is cut and some are small, or columns lie far from zero,
    the numbers are those of sixty digits; else rounding is judged by dense algebra beside the host,
    the same minimum-norm solution by NumPy's singular values.
    """
    exactly = squares_fold(X, y, 0.0, weight, None, host.fit_intercept)

    def fold(training: Training) -> tuple[Array, Array, bool]:
        rows, held = training.rows, training.held
        w = None if weight is None else weight[rows]
        other, relative = minimum_norm(X[rows], y[rows], w, X[held], host.tol, host.fit_intercept)
        near = bool(np.any((relative > host.tol / 10) & (relative < host.tol * 10)))
        # beside which the host's own predictions lose digits
        far = np.any(np.abs(X.mean(0)) > 1e4 * X.std(0))
        if len(relative) == X.shape[1] and 10 * host.tol < relative.min() < (
            np.inf if far else 1e-2
        ):
            return exactly(training)
        mine = (
            clone(host).fit(X[rows], y[rows])
            if w is None
            else clone(host).fit(X[rows], y[rows], sample_weight=w)
        )
        loss = (y[held] - mine.predict(X[held])) ** 2 / 2
        slack = 10 * np.abs((y[held] - other) ** 2 / 2 - loss)
        return loss, np.where(near, 0.0, slack), near

    return lambda plan: Truth.of(plan, fold)


def minimum_norm(
    X: Array, y: Array, w: Array | None, new: Array, cut: float, intercept: bool
) -> tuple[Array, Array]:
    """Predictions at new rows, and the singular values of the centred rows over the largest."""
    w = np.ones(len(y)) if w is None else w
    middle, level = (w @ X / w.sum(), w @ y / w.sum()) if intercept else (0.0, 0.0)
    root = np.sqrt(w)[:, None]
    U, s, V = np.linalg.svd(root * (X - middle), full_matrices=False)
    relative = s / max(s.max(initial=0.0), 1e-300)
    keep = relative > cut
    coef = V[keep].T @ ((U[:, keep].T @ (root[:, 0] * (y - level))) / s[keep])
    return level + (new - middle) @ coef, relative


# sixty digits


def digits(numbers: Any) -> Array:
    """Numbers as they are, without rounding: an array of Decimals."""
    array = np.asarray(numbers, float)
    return np.array([Decimal(v) for v in array.ravel().tolist()], dtype=object).reshape(array.shape)


def solve(A: Array, b: Array) -> Array:
    """A⁻¹ b by elimination with pivots."""
    A, b = A.copy(), b.copy()
    n = len(b)
    for k in range(n):
        pivot = k + int(np.argmax([abs(v) for v in A[k:, k]]))
        A[[k, pivot]], b[[k, pivot]] = A[[pivot, k]], b[[pivot, k]]
        factor = A[k + 1 :, k] / A[k, k]
        A[k + 1 :, k:] = A[k + 1 :, k:] - np.multiply.outer(factor, A[k, k:])
        b[k + 1 :] = b[k + 1 :] - factor * b[k]
    x = np.empty(n, dtype=object)
    for k in reversed(range(n)):
        x[k] = (b[k] - (A[k, k + 1 :] @ x[k + 1 :] if k + 1 < n else 0)) / A[k, k]
    return x


def squares_truth(X: Array, y: Array, *more: Any, **options: Any) -> Callable[[Any], Truth]:
    """The losses of `squares_fold` in every fold of a plan."""
    return lambda plan: Truth.of(plan, squares_fold(X, y, *more, **options))


def squares_fold(
    X: Array,
    y: Array,
    alpha: float = 0.0,
    weight: Array | None = None,
    offset: Array | None = None,
    intercept: bool = True,
) -> Callable[[Training], tuple[Array, Array, bool]]:
    """Half the squared errors of argmin Σ w (y − o − a − xᵀb)² / 2 + α/2 ‖b‖², in sixty digits;
    minimum norm where α is zero and rows are fewer than columns, which must be independent then."""
    n, p = X.shape
    A, target = digits(X), digits(y) - (digits(offset) if offset is not None else 0)
    w, penalty = digits(np.ones(n) if weight is None else weight), Decimal(alpha)

    def fold(training: Training) -> tuple[Array, Array, bool]:
        kept, times = np.unique(training.rows, return_counts=True)
        weights = w[kept] * digits(times)
        kept, weights = kept[weights > 0], weights[weights > 0]
        rows, response, new = A[kept], target[kept], A[training.held]
        one = 1 if intercept else 0
        if p <= len(kept):  # normal equations
            full = np.concatenate([rows, np.full((len(kept), one), Decimal(1))], axis=1)
            gram = full.T @ (weights[:, None] * full)
            gram[range(p), range(p)] += penalty
            theta = solve(gram, full.T @ (weights * response))
            predicted = new @ theta[:p] + (theta[p] if intercept else 0)
        else:  # of the rows, bordered by the intercept
            m = len(kept)
            K = np.full((m + one, m + one), Decimal(1))
            K[:m, :m] = rows @ rows.T
            K[range(m), range(m)] += penalty / weights
            if intercept:
                K[m, m] = Decimal(0)
            dual = solve(K, np.concatenate([response, np.full(one, Decimal(0))]))
            predicted = (new @ rows.T) @ dual[:m] + (dual[m] if intercept else 0)
        loss = (target[training.held] - predicted) ** 2 / 2
        return loss.astype(float), np.zeros(len(loss)), False

    return fold


class Law(NamedTuple):
    """ℓ(η, y), ℓ′ and ℓ″ of one Decimal, up to what does not depend on η.

    The part that is left out, of floats.
    """

    value: Callable[[Decimal, Decimal], Decimal]
    first: Callable[[Decimal, Decimal], Decimal]
    second: Callable[[Decimal, Decimal], Decimal]
    constant: Callable[[Array], Array] = np.zeros_like


def _logistic(eta: Decimal, y: Decimal) -> Decimal:
    m = eta if y > 0 else -eta
    return (1 + (-m).exp()).ln() if m > 0 else (1 + m.exp()).ln() - m


def _share(eta: Decimal) -> Decimal:
    return 1 / (1 + (-eta).exp()) if eta > 0 else eta.exp() / (1 + eta.exp())


LOGISTIC = Law(
    _logistic, lambda eta, y: _share(eta) - y, lambda eta, y: _share(eta) * (1 - _share(eta))
)
POISSON = Law(
    lambda eta, y: eta.exp() - y * eta, lambda eta, y: eta.exp() - y, lambda eta, y: eta.exp()
)
GAMMA = Law(
    lambda eta, y: eta + y * (-eta).exp(),
    lambda eta, y: 1 - y * (-eta).exp(),
    lambda eta, y: y * (-eta).exp(),
)


def glm_truth(
    law: Law,
    X: Array,
    y: Array,
    alpha: float,
    theta: Array,
    weight: Array | None = None,
    offset: Array | None = None,
) -> Callable[[Any], Truth]:
    """Losses at argmin Σ w ℓ(o + xᵀb + a, y) + α/2 ‖b‖² in sixty digits, by Newton's method with
    halved steps from `theta` = (b, a); infinite where it does not end, as without a minimum."""
    n, p = X.shape
    full = np.concatenate([digits(X), np.full((n, 1), Decimal(1))], axis=1)
    Y, o = digits(y), digits(np.zeros(n) if offset is None else offset)
    w, ridge = (
        digits(np.ones(n) if weight is None else weight),
        np.array([Decimal(alpha)] * p + [Decimal(0)]),
    )
    each = lambda part, eta, rows: np.array(
        [part(e, v) for e, v in zip(eta, Y[rows], strict=True)], dtype=object
    )

    def fold(training: Training) -> tuple[Array, Array, bool]:
        kept, times = np.unique(training.rows, return_counts=True)
        weights, rows = w[kept] * digits(times), full[kept]
        F = lambda t: weights @ each(law.value, o[kept] + rows @ t, kept) + (ridge * t) @ t / 2
        t = digits(theta)
        now = F(t)
        for _ in range(60):
            eta = o[kept] + rows @ t
            slope = rows.T @ (weights * each(law.first, eta, kept)) + ridge * t
            curved = rows.T @ ((weights * each(law.second, eta, kept))[:, None] * rows)
            curved[range(p + 1), range(p + 1)] += ridge
            step, length = solve(curved, slope), Decimal(1)
            size = slope @ step
            if size < Decimal(10) ** -36 * (1 + abs(now)):
                t = t - step
                break
            while (new := F(t - length * step)) > now - length * size / 10**4 and length > Decimal(
                10
            ) ** -12:
                length /= 2
            t, now = t - length * step, new
        else:
            return np.full(len(training.held), np.inf), np.zeros(len(training.held)), False
        held = training.held
        loss = each(law.value, o[held] + full[held] @ t, held).astype(float)
        return loss + law.constant(np.asarray(y, float)[held]), np.zeros(len(loss)), False

    return lambda plan: Truth.of(plan, fold)
