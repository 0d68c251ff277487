"""How many leaked records a training set holds, as matrices of probabilities.

A training set of n records is drawn from T̂, a share p of which belongs to the test clusters, and from V̂, the injected
ones. With `e_c` the loss when exactly c of the n are leaked, the losses at all levels of injection are `b = A e`, and
each row of A is the distribution of c at one level (second source document, Eq. 3–5).
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ._solve import differences, nonincreasing

NEGLIGIBLE = 1e-18  # probabilities below it are left out of convolutions
TAIL = 12  # standard deviations (and as many counts) from the mean, beyond which they all are


def binomial_matrix(p: ArrayLike, n: int) -> Float[np.ndarray, "levels counts"]:
    """`A_ij = P(Binomial(n, p_i) = j)`, `[len(p), n + 1]`: every record is leaked with probability `p_i` (Eq. 5).

    Raises ValueError where n is not a whole number ≥ 1 or p is outside [0, 1].
    """
    n, p = _whole("binomial_matrix: n", n, 1), np.atleast_1d(np.asarray(p, np.float64))
    if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"binomial_matrix: p must be probabilities, one a level; got {_worst(p, (p >= 0) & (p <= 1))}.")
    return stats.binom.pmf(np.arange(n + 1), n, p[:, None])


def stratified_matrix(
    levels: ArrayLike,
    n: int,
    p_train: float,
    p_test: float = 0.0,
    *,
    pool_train: int | None = None,
    pool_test: int | None = None,
) -> Float[np.ndarray, "levels counts"]:
    """Row j: the leaked records among exactly j drawn from V̂ and n − j from T̂,

        Binomial(j, 1 − p_test) ∗ Binomial(n − j, p_train),

    which is `j + Binomial(n − j, p_train)` where V̂ is clean. With the sizes of the pools the draws are without
    replacement, and the laws hypergeometric with `p · pool` marked records (between two whole numbers, their mixture).

    Returns `[len(levels), n + 1]`. Raises ValueError where p is outside [0, 1), `p_train + p_test ≥ 1`, a level is
    outside 0…n or a pool is too small.
    """
    n = _whole("stratified_matrix: n", n, 1)
    check_probabilities("stratified_matrix", p_train, p_test)
    drawn = np.atleast_1d(np.asarray(levels))
    if drawn.ndim != 1 or not np.all(drawn == np.floor(drawn)) or drawn.min() < 0 or drawn.max() > n:
        raise ValueError(f"stratified_matrix: levels must be whole numbers from 0 to n = {n}; got {levels!r}.")
    for name, pool, most in (("pool_train", pool_train, n - drawn.min()), ("pool_test", pool_test, drawn.max())):
        if pool is not None and pool < most:
            raise ValueError(f"stratified_matrix: {name} = {pool} holds fewer than the {most} records that a level draws.")
    A = np.zeros((len(drawn), n + 1))
    for row, j in zip(A, drawn.astype(int), strict=True):
        start, leaked = _marked(n - j, p_train, pool_train)
        first, injected = _marked(j, 1 - p_test, pool_test)
        both = np.convolve(leaked, injected)
        row[start + first : start + first + len(both)] = both
    return A


def residual_profile(
    levels: ArrayLike,
    b: ArrayLike,
    n: int,
    candidates: ArrayLike | None = None,
    *,
    order: int = 2,
    lam: float = 0.0,
    monotone: bool = False,
) -> pd.DataFrame:
    """The search for an unknown p₀ (Algorithms 2 and 4), which cannot find it: the objective at each candidate p̂₀.

        min_e ‖A(p̂₀) e − b‖² + λ ‖D e‖²,      A(p̂₀)_i = Binomial(n, p̂₀ + (1 − p̂₀) p′_i),      e₀ ≥ … ≥ e_n ≥ 0 if monotone

    `levels` are the injected probabilities p′. Returns a table of `p0`, `objective`, `estimate` (ê₀ there).

    Why no minimum marks p₀. Write S(p)_{k,c} = P(k + Binomial(n − k, p) = c). To be leaked a record is injected or, if
    not, was leaked before, so A(p) = A(0) S(p). S is triangular with diagonal (1 − p)^(n − k) > 0, hence invertible for
    p < 1: all A(p) share one column space, that of the polynomials of degree n in p′, and the unregularised residual
    is the same for every p̂₀. Further, S(p) is a family of stochastic matrices whose rows rise with k (each remaining
    record is leaked or not by its own coin), so S e is non-increasing and non-negative if e is. And
    Sᵈ: D_q S(p) = (1 − p)^q S_{n−q}(p) D_q for differences of order q, where S_{n−q} is a mean over later entries with
    column sums at most 1/(1 − p): ‖D_q S e‖ ≤ (1 − p)^(q − ½) ‖D_q e‖ ≤ ‖D_q e‖. Lastly S(p₂) = S(p₁) S(p) for
    1 − p₂ = (1 − p₁)(1 − p). So whatever e attains at p₂, S(p) e attains at p₁ ≤ p₂ with the same fit and no larger
    penalty: *the objective never falls as p̂₀ grows, whatever b is*, and its minimum is at p̂₀ = 0.
    """
    levels, b = (np.atleast_1d(np.asarray(x, np.float64)) for x in (levels, b))
    if levels.shape != b.shape or levels.ndim != 1 or not np.isfinite(b).all():
        raise ValueError(f"residual_profile: give one finite loss a level; got shapes {levels.shape} and {b.shape}.")
    p0 = np.linspace(0, 0.5, 11) if candidates is None else np.atleast_1d(np.asarray(candidates, np.float64))
    if not np.all((p0 >= 0) & (p0 < 1)):
        raise ValueError(f"residual_profile: candidates must lie in [0, 1); got {_worst(p0, (p0 >= 0) & (p0 < 1))}.")
    D = np.sqrt(lam) * differences(n + 1, order)
    rows = []
    for p in p0:
        M = np.vstack([binomial_matrix(p + (1 - p) * levels, n), D])
        target = np.concatenate([b, np.zeros(len(D))])
        e = nonincreasing(M, target) if monotone else np.linalg.lstsq(M, target, rcond=None)[0]
        rows.append({"p0": p, "objective": float(np.sum((M @ e - target) ** 2)), "estimate": e[0]})
    return pd.DataFrame(rows)


def check_probabilities(caller: str, p_train: ArrayLike, p_test: ArrayLike) -> None:
    """Raise unless both lie in [0, 1) with a sum below one, in every fold."""
    train, test = np.broadcast_arrays(*(np.atleast_1d(np.asarray(p, np.float64)) for p in (p_train, p_test)))
    for name, p in (("p_train", train), ("p_test", test)):
        inside = (p >= 0) & (p < 1)
        if not inside.all():
            raise ValueError(f"{caller}: {name} must lie in [0, 1); got {_worst(p, inside)}.")
    if np.any(train + test >= 1):
        bad = np.flatnonzero(train + test >= 1)
        where = "" if len(train) == 1 else f" in folds {', '.join(map(str, bad[:5]))}"
        raise ValueError(
            f"{caller}: p_train + p_test must be below 1{where}; got {train[bad[0]]:g} + {test[bad[0]]:g}. Then V̂ holds no "
            "more of the test clusters than T̂ does, and nothing can be told apart."
        )


def _marked(draws: int, p: float, pool: int | None) -> tuple[int, NDArray[np.float64]]:
    """The law of the marked records among `draws`, from the first count with a probability worth keeping."""
    reach = TAIL * (np.sqrt(draws * p * (1 - p)) + 1)
    counts = np.arange(max(0, int(draws * p - reach)), min(draws, int(draws * p + reach) + 1) + 1)
    if pool is None:
        law = stats.binom.pmf(counts, draws, p)
    else:
        low = int(np.floor(p * pool + 1e-9))
        share = max(p * pool - low, 0.0)
        law = (1 - share) * _hypergeometric(counts, pool, low, draws)
        if share > 0:
            law = law + share * _hypergeometric(counts, pool, low + 1, draws)
    kept = np.flatnonzero(law > NEGLIGIBLE)
    return int(counts[kept[0]]), law[kept[0] : kept[-1] + 1]


def _hypergeometric(counts: NDArray[np.int64], pool: int, marked: int, draws: int) -> NDArray[np.float64]:
    return np.asarray(stats.hypergeom.pmf(counts, pool, marked, draws))


def _whole(name: str, value: int, low: int) -> int:
    if int(value) != value or value < low:
        raise ValueError(f"{name} must be a whole number, {low} or more; got {value}.")
    return int(value)


def _worst(p: NDArray[np.float64], inside: NDArray[np.bool_]) -> str:
    return ", ".join(f"{value:g}" for value in p[~inside][:3]) if p.ndim == 1 else f"shape {p.shape}"
