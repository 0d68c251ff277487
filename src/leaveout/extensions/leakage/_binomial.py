"""Distribution of the number of leaked records in a training set, as matrices of probabilities.

A training set of n records is drawn from T̂, a share p of which belongs to the test clusters, and
from V̂, the injected records. With `e_c` the loss when exactly c of the n are leaked, the losses at
all levels of injection are `b = A e`, and each row of A is the distribution of c at one level.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from ...developer import BoolArray, FloatArray, IntArray, TwoCounts, conventional, count
from ._solve import differences, nonincreasing

NEGLIGIBLE = 1e-18  # probabilities below it are left out of convolutions


def binomial_matrix(p: ArrayLike, n: int) -> Float[np.ndarray, "levels counts"]:
    """Compute the probabilities of the number of leaked records, if each record is leaked
    independently.

    A_ij = P(Binomial(n, p_i) = j), where every record is leaked with probability p_i.

    Parameters
    ----------
    p : array_like, `[levels]`
        The probabilities of leakage.
    n : int
        The number of records.

    Returns
    -------
    ndarray, `[levels, n + 1]`
        The matrix A.

    Raises
    ------
    ValueError
        If n is not a whole number ≥ 1, or p is outside [0, 1].

    See Also
    --------
    stratified_matrix : The same for exact numbers of injected records.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.leakage.binomial_matrix([0.0, 0.5], 2)
    array([[1.  , 0.  , 0.  ],
           [0.25, 0.5 , 0.25]])
    """
    n = count("binomial_matrix: n", n, 1)
    p = np.atleast_1d(np.asarray(p, float))
    inside = (p >= 0) & (p <= 1)
    if p.ndim != 1 or not inside.all():
        raise ValueError(
            f"binomial_matrix: p must be probabilities, one a level; got {_worst(p, inside)}."
        )
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
    """Compute the probabilities of the number of leaked records among exactly j drawn from V̂ and n
    − j drawn from T̂.

    Row j is the law Binomial(j, 1 − p_test) ∗ Binomial(n − j, p_train), which is j + Binomial(n −
    j, p_train) if V̂ is clean. With the sizes of the pools the draws are without replacement. The
    laws are then hypergeometric with p · pool marked records (between two whole numbers, their
    mixture).

    Parameters
    ----------
    levels : array_like of int
        The numbers j drawn from V̂.
    n : int
        The number of records drawn.
    p_train, p_test : float
        The shares of leaked records in T̂ and V̂.
    pool_train, pool_test : int, optional
        The sizes of T̂ and V̂, for draws without replacement.

    Returns
    -------
    ndarray, `[levels, n + 1]`
        The matrix.

    Raises
    ------
    ValueError
        If p is outside [0, 1), `p_train + p_test ≥ 1`, a level is outside 0…n, or a pool is too
        small.

    See Also
    --------
    binomial_matrix : The same for records that are leaked independently.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.leakage.stratified_matrix([0, 1], 2, 0.5)
    array([[0.25, 0.5 , 0.25],
           [0.  , 0.5 , 0.5 ]])
    """
    n = count("stratified_matrix: n", n, 1)
    check_probabilities("stratified_matrix", p_train, p_test)
    counts = np.atleast_1d(np.asarray(levels))
    if counts.ndim != 1 or not np.isin(counts, range(n + 1)).all():
        raise ValueError(
            f"stratified_matrix: levels must be whole numbers from 0 to n = {n}; got {levels!r}."
        )
    for name, pool, needed in (
        ("pool_train", pool_train, n - counts.min()),
        ("pool_test", pool_test, counts.max()),
    ):
        if pool is not None and pool < needed:
            raise ValueError(
                f"stratified_matrix: {name} = {pool} holds fewer than the {needed} records that a level draws."
            )
    A = np.zeros((len(counts), n + 1))
    for row, j in zip(A, counts.astype(int), strict=True):
        start, leaked = _marked_law(n - j, p_train, pool_train)
        first, injected = _marked_law(j, 1 - p_test, pool_test)
        law = np.convolve(leaked, injected)
        row[start + first : start + first + len(law)] = law
    return A


@conventional
def residual_profile(
    levels: ArrayLike | tuple[ArrayLike, ArrayLike],
    b: ArrayLike,
    n: int | TwoCounts,
    candidates: ArrayLike | None = None,
    *,
    order: int = 2,
    lam: float = 0.0,
    monotone: bool = False,
) -> pd.DataFrame:
    """Search for an unknown p₀ by the objective at each candidate, which cannot find it (Algorithms
    2 and 4).

        min_e ‖A(p̂₀) e − b‖² + λ ‖D e‖²,      A(p̂₀)_i = Binomial(n, p̂₀ + (1 − p̂₀) p′_i),
        e₀ ≥ … ≥ e_n ≥ 0 if monotone

    For both directions (Algorithm 4), e is a matrix, with D along both of its axes, falling along
    the first. Then `A_train = Binomial(n, p + (1 − p − q) p′)`, and A_test has p and q exchanged.

    Parameters
    ----------
    levels : array_like, or a pair
        The injected probabilities p′; for both directions a pair, of the records trained on and
        tested on.
    b : array_like, `[levels]` or `[train levels, test levels]`
        The losses.
    n : int, or a pair
        The number of records.
    candidates : array_like, optional
        The candidates p̂₀; for both directions pairs (p, q) of p_train and p_test.
    order : int, default 2
        The order of the differences D.
    lam : float, default 0
        The strength λ.
    monotone : bool, default False
        Whether e falls and is not negative.

    Returns
    -------
    DataFrame
        `p0` (or the pair), `objective`, and `estimate`, which is ê₀ there.

    Notes
    -----
    No minimum marks p₀. Write S(p)_{k,c} = P(k + Binomial(n − k, p) = c). To be leaked, a record is
    injected or, if not, was leaked before, so A(p) = A(0) S(p). S is triangular with diagonal (1 −
    p)^(n − k) > 0, hence invertible for p < 1. All A(p) thus share one column space, that of the
    polynomials of degree n in p′, and the unregularised residual is the same for every p̂₀.
    Further, S(p) is a family of stochastic matrices whose rows rise with k (each remaining record
    is leaked or not by its own coin), so S e is non-increasing and non-negative if e is. And D_q
    S(p) = (1 − p)^q S_{n−q}(p) D_q for differences of order q, where S_{n−q} is a mean over later
    entries with column sums at most 1/(1 − p): ‖D_q S e‖ ≤ (1 − p)^(q − ½) ‖D_q e‖ ≤ ‖D_q e‖.
    Lastly S(p₂) = S(p₁) S(p) for 1 − p₂ = (1 − p₁)(1 − p). So whatever e attains at p₂, S(p) e
    attains at p₁ ≤ p₂ with the same fit and no larger penalty. *The objective never falls as p̂₀
    grows, whatever b is*, and its minimum is at p̂₀ = 0.

    For both directions the same holds with S_{k,c} = P(Binomial(k, 1 − q) + Binomial(n − k, p) = c)
    on the one side and p and q exchanged on the other: eigenvalues (1 − p − q)^k, column sums at
    most 1/(1 − p − q). One side's differences shrink by (1 − p − q)^(order − ½), and the other
    side's mean stretches them by (1 − p − q)^(−½) at most: *no (p, q) has a lower objective than
    (0, 0)*, whatever b is.

    Examples
    --------
    >>> import leaveout as lo
    >>> table = lo.leakage.residual_profile(
    ...     [0.0, 0.3, 0.6, 1.0], [1.0, 0.8, 0.7, 0.5], 2, [0.0, 0.2]
    ... )
    >>> list(table.columns), len(table)
    (['p0', 'objective', 'estimate'], 2)
    """
    two_sided = False
    level_sizes = [(levels, n)]
    if isinstance(levels, tuple) and isinstance(n, tuple):
        two_sided = True
        level_sizes = list(zip(levels, n, strict=True))
    sides = [
        (np.atleast_1d(np.asarray(side, float)), count("residual_profile: n", size, 1))
        for side, size in level_sizes
    ]
    b = np.asarray(b, float)
    shape = tuple(len(side) for side, _ in sides)
    if b.shape != shape or any(side.ndim != 1 for side, _ in sides) or not np.isfinite(b).all():
        raise ValueError(
            f"residual_profile: give one finite loss a level, shape {shape}; got {b.shape}."
        )
    D = [differences(size + 1, order) for _, size in sides]
    if candidates is None:
        line = np.linspace(0, 0.4, 5)
        candidates = [(p, q) for p in line for q in line] if two_sided else np.linspace(0, 0.5, 11)
    pairs = np.atleast_1d(np.asarray(candidates, float))
    # q is zero if leakage goes one way
    pairs = pairs if two_sided else np.column_stack([pairs, np.zeros(len(pairs))])
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(
            f"residual_profile: with leakage both ways candidates must be pairs (p, q); got shape {pairs.shape}."
        )
    inside = np.all(pairs >= 0, 1) & (pairs.sum(1) < 1)
    if not inside.all():
        requirement = "pairs with a sum in [0, 1)" if two_sided else "in [0, 1)"
        raise ValueError(
            f"residual_profile: candidates must lie {requirement}; got {pairs[~inside][0, : 1 + two_sided]}."
        )
    columns = [size + 1 for _, size in sides] + [1] * (2 - len(sides))
    # a second side enters as a Kronecker product
    penalties = [
        np.kron(D[0], np.eye(columns[1])),
        *(np.kron(np.eye(columns[0]), part) for part in D[1:]),
    ]
    penalties = [np.sqrt(lam) * part for part in penalties]
    target = np.concatenate([b.ravel(), np.zeros(sum(map(len, penalties)))])
    rows = []
    for p, q in pairs:
        A = [
            binomial_matrix(s + (1 - p - q) * side, size)
            for s, (side, size) in zip((p, q), sides, strict=False)
        ]
        product = np.kron(*A) if two_sided else A[0]
        M = np.vstack([product, *penalties])
        if monotone:
            e = nonincreasing(M.reshape(-1, *columns), target).ravel()
        else:
            e = np.linalg.lstsq(M, target, rcond=None)[0]
        row = {"p_train": p, "p_test": q} if two_sided else {"p0": p}
        rows.append(
            row | {"objective": float(np.sum((M @ e - target) ** 2)), "estimate": float(e[0])}
        )
    return pd.DataFrame(rows)


def check_probabilities(caller: str, p_train: ArrayLike, p_test: ArrayLike) -> None:
    """Raise unless both lie in [0, 1) with a sum below one, in every fold."""
    train, test = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(p, float)) for p in (p_train, p_test))
    )
    for name, p in (("p_train", train), ("p_test", test)):
        inside = (p >= 0) & (p < 1)
        if not inside.all():
            raise ValueError(f"{caller}: {name} must lie in [0, 1); got {_worst(p, inside)}.")
    if np.any(train + test >= 1):
        bad = np.flatnonzero(train + test >= 1)
        where = ""
        if len(train) != 1:
            where = f" in folds {', '.join(map(str, bad[:5]))}"
        raise ValueError(
            f"{caller}: p_train + p_test must be below 1{where}; got {train[bad[0]]:g} + {test[bad[0]]:g}. Then V̂ holds no "
            "more of the test clusters than T̂ does, and nothing can be told apart."
        )


def _marked_law(draws: int, p: float, pool: int | None) -> tuple[int, FloatArray]:
    """Return the distribution of the marked records among `draws`, from the first count that is not
    negligible.
    """
    # 12: standard deviations (and counts) from the mean beyond which all probabilities are
    # negligible
    width = 12 * (np.sqrt(draws * p * (1 - p)) + 1)
    counts = np.arange(max(0, int(draws * p - width)), min(draws, int(draws * p + width) + 1) + 1)
    if pool is None:
        law = stats.binom.pmf(counts, draws, p)
    else:
        low = int(np.floor(p * pool + 1e-9))
        share = max(p * pool - low, 0.0)
        law = (1 - share) * _hypergeometric(counts, pool, low, draws)
        if share > 0:
            law += share * _hypergeometric(counts, pool, low + 1, draws)
    support = np.flatnonzero(law > NEGLIGIBLE)
    return int(counts[support[0]]), law[support[0] : support[-1] + 1]


def _hypergeometric(counts: IntArray, pool: int, marked: int, draws: int) -> FloatArray:
    """Compute the probabilities of `counts`, which hold all that are not negligible, by the ratios
    of successive ones.
    """
    possible = (counts >= max(0, draws - pool + marked)) & (counts <= min(marked, draws))
    k = counts[possible][:-1].astype(float)
    ratios = (marked - k) * (draws - k) / ((k + 1) * (pool - marked - draws + k + 1))
    logs = np.append(0.0, np.cumsum(np.log(ratios)))
    out = np.zeros(len(counts))
    out[possible] = np.exp(logs - logs.max())
    return out / out.sum()


def _worst(p: FloatArray, inside: BoolArray) -> str:
    if p.ndim == 1:
        return ", ".join(f"{value:g}" for value in p[~inside][:3])
    return f"shape {p.shape}"
