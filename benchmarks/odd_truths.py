"""True held-out losses of odd input, which share nothing with the library, and what a result is worth beside them.

Three ways to a truth: Decimal arithmetic of 60 digits (stated problems whose answer is unique), the host's own refit of every
fold (whose rank is the host's affair), and dense algebra beside the host, which says how far rounding lets the host's number
be known. `judged` compares an estimate with such losses fold by fold, `value` one number with another.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, getcontext
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

import leaveout as lo

getcontext().prec = 60
SLACK = 1e-8  # of 1 + |loss|: what rounding may do to any two numbers
Array = np.ndarray


@dataclass
class Tally:
    """What was found: folds (or numbers) compared, and three kinds of fault, with one line about the first ones."""

    folds: int = 0
    wrong: int = 0  # a number beyond its reported error, and no word about it
    alarms: int = 0  # the audit calls a right number wrong
    refused: int = 0  # no number, where the host has one
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        parts = (self.folds + other.folds, self.wrong + other.wrong, self.alarms + other.alarms, self.refused + other.refused)
        return Tally(*parts, (self.notes + other.notes)[:5])

    @property
    def faults(self) -> int:
        return self.wrong + self.alarms + self.refused


def told(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, and its warnings in one text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, "\n".join(str(one.message) for one in caught)


# folds


class Training(NamedTuple):
    """A refit of a plan: its rows, as often as they count; the rows that it scores, and the places of their losses."""

    rows: Array
    held: Array
    places: Array


def trainings(plan: lo.Plan) -> Iterator[Training]:
    for start, stop in zip(plan.indptr[:-1], plan.indptr[1:], strict=True):
        times = np.ones(plan.num_units, int)
        times[plan.index[start:stop]] = plan.weight[start:stop]
        places = start + np.flatnonzero(plan.held[start:stop])
        yield Training(np.repeat(np.arange(plan.num_units), times), plan.index[places], places)


class Truth(NamedTuple):
    """Losses, one an entry of a plan, NaN where none is scored and infinite where none exists; how far rounding lets each be
    known; and which of them depend on a tolerance, so that no number is as good as the host's."""

    losses: Array
    slack: Array
    ambiguous: Array

    @staticmethod
    def of(plan: lo.Plan, fold: Callable[[Training], tuple[Array, Array, bool]]) -> "Truth":
        """Put together by folds: the losses of one, their slack, and whether they are ambiguous."""
        losses, slack = np.full((2, len(plan.index)), np.nan)
        ambiguous = np.zeros(len(plan.index), bool)
        for training in trainings(plan):
            losses[training.places], slack[training.places], ambiguous[training.places] = fold(training)
        return Truth(losses, slack, ambiguous)


def judged(cv: lo.Estimate, truth: Truth, name: str = "") -> Tally:
    """An estimate of pointwise losses beside the true ones, a fold at a time.

    A fold is wrong where the sum of |loss − truth| is above the error that is reported for it and the slack, and it is not
    flagged; refused where a row has no loss though the truth is finite and hangs on no tolerance.
    """
    plan = cv.plan
    refit = plan.refit
    total = lambda v: np.bincount(refit, np.where(plan.held, v, 0.0), plan.num_refits)
    answered = np.isfinite(cv.losses)
    compared = answered & plan.held & ~np.isnan(truth.losses)
    with np.errstate(invalid="ignore"):
        off = total(np.where(compared, np.abs(cv.losses - truth.losses), 0.0))
    size = np.where(np.isfinite(truth.losses), np.abs(truth.losses), 0.0)
    allowed = np.nan_to_num(cv.error) * (1 + 1e-6) + total(SLACK * (1 + size) + np.nan_to_num(truth.slack))
    right = off <= allowed
    flagged = np.zeros(plan.num_refits, bool)
    flagged[np.asarray(cv.flagged(), int)] = True
    wrong = ~right & ~flagged
    missing = total(1.0 * (~answered & np.isfinite(truth.losses) & ~truth.ambiguous)) > 0
    alarmed = cv.result == lo.RESULTS.missed
    if cv.audit is not None:
        alarmed[np.asarray(cv.audit["refit"][cv.audit["beyond"].astype(bool)], int)] = True
    alarms = alarmed & right & ~missing
    notes = []
    for word, which in (("wrong", wrong), ("alarm", alarms), ("refused", missing)):
        if which.any():
            k = int(np.argmax(np.where(which, off, -1.0)))
            ours, true = (np.nansum(v[refit == k]) for v in (cv.losses, truth.losses))
            sums = f"loss {ours:.6g} ± {cv.error[k]:.2g}, truth {true:.6g}, off by {off[k]:.2g}"
            said = f"{lo.RESULTS(int(cv.result[k])).name}{', proved' if np.any(cv.proved[k : k + 1]) else ''}"
            notes.append(f"{word} {name}: {which.sum()} of {plan.num_refits}, as fold {k}: {sums}; {said}")
    return Tally(plan.num_refits, int(wrong.sum()), int(alarms.sum()), int(missing.sum()), notes)


def value(name: str, got: Any, truth: Any, slack: float = 1e-7, error: Any = 0.0, said: bool = False) -> Tally:
    """Numbers beside the true ones: wrong where one is beyond its error and nothing was said, refused where it is none."""
    got, truth, error = (np.atleast_1d(np.asarray(part, float)) for part in (got, truth, error))
    if got.shape != truth.shape:
        return Tally(1, wrong=1, notes=[f"wrong {name}: shape {got.shape}, truth {truth.shape}"])
    with np.errstate(invalid="ignore"):
        off = np.abs(got - truth) - np.nan_to_num(error)
        bad = ~(off <= slack * (1 + np.abs(truth))) & np.isfinite(got) & ~(got == truth)
    bad &= not said
    none = ~np.isfinite(got) & np.isfinite(truth) & (not said)
    notes = []
    for word, which in (("wrong", bad), ("refused", none)):
        if which.any():
            k = int(np.argmax(which))
            notes.append(f"{word} {name}: {got.flat[k]:.8g} for {truth.flat[k]:.8g}")
    return Tally(1, int(bad.any()), 0, int(none.any()), notes)


def holds(name: str, fine: bool, got: Any = "") -> Tally:
    """A statement that must be true; a false one counts as a wrong number."""
    return Tally(1, wrong=int(not fine), notes=[] if fine else [f"wrong {name}: {str(got)[:200]}"])


def attempted(name: str, call: Callable[[], Tally]) -> Tally:
    """What a call finds; an exception is a refusal."""
    try:
        return call()
    except Exception as error:
        return Tally(1, refused=1, notes=[f"refused {name}: {type(error).__name__}: {str(error)[:300]}"])


def each_plan(fit: Callable[[], lo.Fit], plans: list[lo.Plan], truth: Callable[[lo.Plan], Truth], **options: Any) -> Tally:
    """The estimates of all plans beside their truths."""
    found = Tally()
    for plan in plans:
        name = f"{plan.num_refits} refits"
        found += attempted(
            name, lambda plan=plan, name=name: judged(lo.cross_validate(fit(), plan, **options), truth(plan), name)
        )
    return found


# least squares as scikit-learn solves them


def host_truth(host: Any, X: Array, y: Array, weight: Array | None = None) -> Callable[[lo.Plan], Truth]:
    """Half the squared errors of scikit-learn's LinearRegression, refitted by itself.

    Its rank is by its own tolerance: a fold with a singular value within a factor of ten of the cut is ambiguous. Where no
    singular value is cut and some are small, or columns lie far from zero, the numbers are those of sixty digits; else rounding
    is judged by dense algebra beside the host, the same minimum-norm solution by NumPy's singular values.
    """
    exactly = squares_fold(X, y, 0.0, weight, None, host.fit_intercept)

    def fold(training: Training) -> tuple[Array, Array, bool]:
        rows, held = training.rows, training.held
        w = None if weight is None else weight[rows]
        other, relative = minimum_norm(X[rows], y[rows], w, X[held], host.tol, host.fit_intercept)
        near = bool(np.any((relative > host.tol / 10) & (relative < host.tol * 10)))
        far = np.any(np.abs(X.mean(0)) > 1e4 * X.std(0))  # beside which the host's own predictions lose digits
        if len(relative) == X.shape[1] and 10 * host.tol < relative.min() < (np.inf if far else 1e-2):
            return exactly(training)
        mine = clone(host).fit(X[rows], y[rows]) if w is None else clone(host).fit(X[rows], y[rows], sample_weight=w)
        loss = (y[held] - mine.predict(X[held])) ** 2 / 2
        slack = 10 * np.abs((y[held] - other) ** 2 / 2 - loss)
        return loss, np.where(near, 0.0, slack), near

    return lambda plan: Truth.of(plan, fold)


def minimum_norm(X: Array, y: Array, w: Array | None, new: Array, cut: float, intercept: bool) -> tuple[Array, Array]:
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


def squares_truth(X: Array, y: Array, *more: Any, **options: Any) -> Callable[[lo.Plan], Truth]:
    """The losses of `squares_fold` in every fold of a plan."""
    return lambda plan: Truth.of(plan, squares_fold(X, y, *more, **options))


def squares_fold(
    X: Array, y: Array, alpha: float = 0.0, weight: Array | None = None, offset: Array | None = None, intercept: bool = True
) -> Callable[[Training], tuple[Array, Array, bool]]:
    """Half the squared errors of argmin Σ w (y − o − a − xᵀb)² / 2 + α/2 ‖b‖², in sixty digits; minimum norm where α is zero
    and rows are fewer than columns, which must be independent then."""
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
    """ℓ(η, y), ℓ′ and ℓ″ of one Decimal, up to what does not depend on η; the part that is left out, of floats."""

    value: Callable[[Decimal, Decimal], Decimal]
    first: Callable[[Decimal, Decimal], Decimal]
    second: Callable[[Decimal, Decimal], Decimal]
    constant: Callable[[Array], Array] = np.zeros_like


def _logistic(eta: Decimal, y: Decimal) -> Decimal:
    m = eta if y > 0 else -eta
    return (1 + (-m).exp()).ln() if m > 0 else (1 + m.exp()).ln() - m


def _share(eta: Decimal) -> Decimal:
    return 1 / (1 + (-eta).exp()) if eta > 0 else eta.exp() / (1 + eta.exp())


LOGISTIC = Law(_logistic, lambda eta, y: _share(eta) - y, lambda eta, y: _share(eta) * (1 - _share(eta)))
POISSON = Law(lambda eta, y: eta.exp() - y * eta, lambda eta, y: eta.exp() - y, lambda eta, y: eta.exp())
GAMMA = Law(lambda eta, y: eta + y * (-eta).exp(), lambda eta, y: 1 - y * (-eta).exp(), lambda eta, y: y * (-eta).exp())


def glm_truth(
    law: Law, X: Array, y: Array, alpha: float, theta: Array, weight: Array | None = None, offset: Array | None = None
) -> Callable[[lo.Plan], Truth]:
    """Losses at argmin Σ w ℓ(o + xᵀb + a, y) + α/2 ‖b‖² in sixty digits, by Newton's method with halved steps from `theta` =
    (b, a); infinite where it does not end, as without a minimum."""
    n, p = X.shape
    full = np.concatenate([digits(X), np.full((n, 1), Decimal(1))], axis=1)
    Y, o = digits(y), digits(np.zeros(n) if offset is None else offset)
    w, ridge = digits(np.ones(n) if weight is None else weight), np.array([Decimal(alpha)] * p + [Decimal(0)])
    each = lambda part, eta, rows: np.array([part(e, v) for e, v in zip(eta, Y[rows], strict=True)], dtype=object)

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
            while (new := F(t - length * step)) > now - length * size / 10**4 and length > Decimal(10) ** -12:
                length /= 2
            t, now = t - length * step, new
        else:
            return np.full(len(training.held), np.inf), np.zeros(len(training.held)), False
        held = training.held
        loss = each(law.value, o[held] + full[held] @ t, held).astype(float)
        return loss + law.constant(np.asarray(y, float)[held]), np.zeros(len(loss)), False

    return lambda plan: Truth.of(plan, fold)
