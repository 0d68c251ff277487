"""Replicate weights of surveys: factors on the weights of the units, one column a replicate.

    cov = scale Σ_r rscale_r (θ_r − c)(θ_r − c)ᵀ,      c the mean of the replicates' θ_r, or θ̂

θ_r is the fit with its weights times column r. A primary sampling unit (PSU) is a cluster of units
that were drawn together, and clusters are counted within strata. With n_h PSUs in stratum h and R
replicates,

    JK1        0 for one PSU, n/(n − 1) for the others; scale (n − 1)/n
    JKn        0 for one PSU, n_h/(n_h − 1) for the others of its stratum; rscale (n_h − 1)/n_h
    BRR
    2 for one PSU of each stratum of two and 0 for the other, by a Hadamard matrix; scale 1/R
    Fay        2 − ρ and ρ in place of 2 and 0; scale 1/(R (1 − ρ)²)
    bootstrap  n_h/(n_h − 1) times the count among n_h − 1 PSUs drawn with replacement; scale 1/(R −
    1)

The formulas are those of Wolter, *Introduction to Variance Estimation* (2007), and of Rao, Wu &
Yue, Survey Methodology 18,
1992. R's survey has the same.
"""

import functools

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike, NDArray

from .._runtime import FloatArray, IntArray, Rng, conventional
from ..data import (
    codes,
    count,
    floats,
    generator,
    index_of,
    match_labels,
    named_column,
    pandas_of,
)

Factors = NDArray[np.floating]


class ReplicateWeights(pd.DataFrame):
    """Factors on the weights of the units, `[units, replicates]`, with the scales of their
    covariance.

    The functions of `lo.survey` return it. It is a DataFrame, so `weights.to_numpy()` is the
    matrix.

    Attributes
    ----------
    scale : float
        The common factor of the sum over replicates.
    rscales : array of float, `[replicates]`
        The factor of each replicate.

    Examples
    --------
    >>> import leaveout as lo
    >>> weights = lo.survey.jk1(["a", "a", "b", "c"])
    >>> weights.shape, round(weights.scale, 4)
    ((4, 3), 0.6667)
    """

    _metadata = ["scale", "rscales"]  # noqa: RUF012  pandas copies attributes of these names
    scale: float
    rscales: FloatArray

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame


def jk1(clusters: ArrayLike) -> ReplicateWeights:
    """Leave out every cluster of a design without strata (JK1).

    Parameters
    ----------
    clusters : array-like, `[units]`
        The cluster of each unit. `range(n)` makes every unit one.

    Returns
    -------
    ReplicateWeights
        One replicate a cluster.

    Raises
    ------
    ValueError
        If a label is missing, or there is one cluster only.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.survey.jk1(["a", "a", "b", "c"]).to_numpy()
    array([[0. , 1.5, 1.5],
           [0. , 1.5, 1.5],
           [1.5, 0. , 1.5],
           [1.5, 1.5, 0. ]])
    """
    code, levels = codes("survey.jk1", "clusters", clusters)
    n = len(levels)
    if n < 2:
        raise ValueError("survey.jk1: at least two clusters are needed; all labels are equal.")
    factors = np.where(code[:, None] == np.arange(n), 0.0, n / (n - 1))
    return _weights(factors, levels, (n - 1) / n, np.ones(n), index_of(clusters))


def jkn(strata: ArrayLike, clusters: ArrayLike | None = None) -> ReplicateWeights:
    """Leave out every cluster of a stratified design (JKn).

    Parameters
    ----------
    strata : array-like, `[units]`
        The stratum of each unit.
    clusters : array-like, `[units]`, optional
        The cluster of each unit, within its stratum. By default every unit is one.

    Returns
    -------
    ReplicateWeights
        One replicate a cluster.

    Raises
    ------
    ValueError
        If a label is missing, or a stratum has one cluster only.

    Examples
    --------
    >>> import leaveout as lo
    >>> weights = lo.survey.jkn(["s", "s", "t", "t"])
    >>> weights.to_numpy(), weights.rscales
    (array([[0., 2., 1., 1.],
           [2., 0., 1., 1.],
           [1., 1., 0., 2.],
           [1., 1., 2., 0.]]), array([0.5, 0.5, 0.5, 0.5]))
    """
    labels, stratum, psu, psu_stratum, names = _design("survey.jkn", strata, clusters)
    size = np.bincount(psu_stratum)
    is_left_out = psu[:, None] == np.arange(len(psu_stratum))
    same = stratum[:, None] == psu_stratum
    factors = np.where(
        is_left_out, 0.0, np.where(same, (size / np.maximum(size - 1, 1))[psu_stratum], 1.0)
    )
    return _weights(factors, names, 1.0, ((size - 1) / size)[psu_stratum], labels)


def brr(strata: ArrayLike, clusters: ArrayLike | None = None) -> ReplicateWeights:
    """Make balanced half-samples of a design of two clusters a stratum (BRR).

    Parameters
    ----------
    strata : array-like, `[units]`
        The stratum of each unit.
    clusters : array-like, `[units]`, optional
        The cluster of each unit, within its stratum. By default every unit is one.

    Returns
    -------
    ReplicateWeights
        As many replicates as the smallest Hadamard matrix has rows that these constructions reach,
        more than there are strata.

    Raises
    ------
    ValueError
        If a label is missing, or a stratum has not two clusters.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.survey.brr(["s", "s", "t", "t", "u", "u"]).to_numpy().mean(axis=1)
    array([1., 1., 1., 1., 1., 1.])
    """
    return _half_samples("survey.brr", strata, clusters, 0.0)


def fay(strata: ArrayLike, clusters: ArrayLike | None = None, rho: float = 0.3) -> ReplicateWeights:
    """Make balanced half-samples that keep every unit (Fay's method).

    Parameters
    ----------
    strata : array-like, `[units]`
        The stratum of each unit.
    clusters : array-like, `[units]`, optional
        The cluster of each unit, within its stratum. By default every unit is one.
    rho : float, default 0.3
        The factor of the clusters that a replicate has less of, from 0 to below 1; the others have
        2 − ρ.

    Returns
    -------
    ReplicateWeights
        The replicates of `brr`, with other factors.

    Raises
    ------
    ValueError
        If a label is missing, a stratum has not two clusters, or `rho` is none.

    Examples
    --------
    >>> import leaveout as lo
    >>> weights = lo.survey.fay(["s", "s", "t", "t"], rho=0.5)
    >>> sorted(set(weights.to_numpy().ravel().tolist())), weights.scale
    ([0.5, 1.5], 1.0)
    """
    if not (isinstance(rho, int | float | np.number) and 0 <= rho < 1):
        raise ValueError(f"survey.fay: rho must be a number from 0 to below 1; got {rho!r}.")
    return _half_samples("survey.fay", strata, clusters, float(rho))


@conventional
def bootstrap(
    strata: ArrayLike | None,
    clusters: ArrayLike | None = None,
    num_replicates: int = 500,
    *,
    rng: Rng = 0,
) -> ReplicateWeights:
    """Draw clusters with replacement within strata, one fewer than there are (Rao, Wu & Yue).

    Parameters
    ----------
    strata : array-like, `[units]`, or None
        The stratum of each unit; None for a design without strata.
    clusters : array-like, `[units]`, optional
        The cluster of each unit, within its stratum. By default every unit is one.
    num_replicates : int, default 500
        The number of replicates.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a whole number repeats them, and None draws others in each call.

    Returns
    -------
    ReplicateWeights
        The replicates.

    Raises
    ------
    ValueError
        If a label is missing, or a stratum has one cluster only.
    TypeError
        If there are neither strata nor clusters.

    Examples
    --------
    >>> import leaveout as lo
    >>> weights = lo.survey.bootstrap(["s"] * 3 + ["t"] * 3, num_replicates=100)
    >>> weights.shape, bool((weights.to_numpy().sum(axis=0) == 6).all())
    ((6, 100), True)
    """
    num_replicates = count("survey.bootstrap: num_replicates", num_replicates, 2)
    draw = generator("survey.bootstrap", rng)
    if strata is None:
        if clusters is None:
            raise TypeError(
                "survey.bootstrap: give strata, clusters, or both; lo.bootstrap(num_resamples=...) draws single units."
            )
        strata = np.zeros(np.shape(pandas_of("survey.bootstrap", "clusters", clusters))[0], int)
    labels, _, psu, psu_stratum, _ = _design("survey.bootstrap", strata, clusters)
    size = np.bincount(psu_stratum)
    psu_factors = np.empty((len(psu_stratum), num_replicates))
    for h, n in enumerate(size):
        psu_factors[psu_stratum == h] = draw.multinomial(
            n - 1, np.full(n, 1 / n), num_replicates
        ).T * (n / (n - 1))
    return _weights(
        psu_factors[psu],
        np.arange(num_replicates),
        1 / (num_replicates - 1),
        np.ones(num_replicates),
        labels,
    )


def read(
    frame: pd.DataFrame,
    prefix: str,
    weight: str | None = None,
    *,
    scale: float,
    rscales: ArrayLike | None = None,
) -> ReplicateWeights:
    """Read the replicate weights that a survey's file brings.

    Parameters
    ----------
    frame : DataFrame
        The file.
    prefix : str
        What the names of the columns of replicate weights begin with.
    weight : str, optional
        The column of the weights themselves, by which replicate weights are divided. Without it the
        columns are factors.
    scale : float
        The common factor of the sum over replicates, from the survey's documentation.
    rscales : array-like, `[replicates]`, optional
        The factor of each replicate; one by default.

    Returns
    -------
    ReplicateWeights
        The factors, in the order of the columns.

    Raises
    ------
    ValueError
        If no column begins so, a weight is missing or negative, or a unit of weight zero has a
        replicate weight.

    Examples
    --------
    >>> import pandas as pd
    >>> import leaveout as lo
    >>> file = pd.DataFrame({"w": [2.0, 3.0], "rep1": [0.0, 6.0], "rep2": [4.0, 0.0]})
    >>> lo.survey.read(file, "rep", "w", scale=0.5).to_numpy()
    array([[0., 2.],
           [2., 0.]])
    """
    labels = index_of(frame)
    table = pandas_of("survey.read", "frame", frame)
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"survey.read: frame must be a DataFrame; got {type(frame).__name__}.")
    names = [name for name in table.columns if str(name).startswith(str(prefix)) and name != weight]
    if not names:
        raise ValueError(
            f"survey.read: no column begins with {prefix!r}; there are {', '.join(map(str, table.columns[:8]))}."
        )
    replicate_weights = floats("survey.read", "replicate weights", table[names])
    if weight is None:
        base = np.ones(len(replicate_weights))
    else:
        base = floats("survey.read", "weight", named_column(table, weight, "survey.read"))
    if not (
        np.isfinite(replicate_weights).all()
        and np.isfinite(base).all()
        and (replicate_weights >= 0).all()
        and (base >= 0).all()
    ):
        raise ValueError(
            "survey.read: weights must be finite and not negative; drop the rows where they are not."
        )
    if (zero := (base == 0) & replicate_weights.any(1)).any():
        raise ValueError(
            f"survey.read: row {np.flatnonzero(zero)[0]} has weight zero and replicate weights that are not, which no factor "
            "on zero is; drop it, or give it a small weight."
        )
    scale, replicate_scales = check_scales(
        "survey.read", scale, np.ones(len(names)) if rscales is None else rscales, len(names)
    )
    return _weights(
        replicate_weights / np.where(base > 0, base, 1.0)[:, None],
        names,
        scale,
        replicate_scales,
        labels,
    )


def check_scales(
    caller: str, scale: float, rscales: ArrayLike, replicates: int
) -> tuple[float, FloatArray]:
    """Return the factor of a sum over replicates, and that of each, as numbers.

    Raise ValueError if they are none.
    """
    try:
        common_scale = float(scale)
        replicate_scales = np.asarray(rscales, float)
    except (TypeError, ValueError):
        raise ValueError(
            f"{caller}: scale and rscales must be numbers; got {scale!r} and {rscales!r}."
        ) from None
    if replicate_scales.shape != (replicates,) or not (
        np.isfinite(replicate_scales).all()
        and (replicate_scales >= 0).all()
        and replicate_scales.any()
    ):
        raise ValueError(
            f"{caller}: rscales must be {replicates} numbers, one a replicate, none negative; got {replicate_scales}."
        )
    if not (np.isfinite(common_scale) and common_scale > 0):
        raise ValueError(f"{caller}: scale must be a positive number; got {scale!r}.")
    return common_scale, replicate_scales


def _weights(
    factors: Factors, names: ArrayLike, scale: float, rscales: Factors, labels: pd.Index | None
) -> ReplicateWeights:
    weights = ReplicateWeights(factors, index=labels, columns=list(np.asarray(names, object)))
    weights.scale = float(scale)
    weights.rscales = np.asarray(rscales, float)
    return weights


def _design(
    caller: str, strata: ArrayLike, clusters: ArrayLike | None, size: int | None = None
) -> tuple[pd.Index | None, IntArray, IntArray, IntArray, list[str]]:
    """Return the labels of the units, the stratum and the PSU of each unit, and the stratum and the
    name of each PSU.

    Raises ValueError if a stratum has one PSU, or not `size`.
    """
    labels, strata, clusters = match_labels(caller, strata=strata, clusters=clusters)
    stratum, levels = codes(caller, "strata", strata)
    if clusters is None:
        inside = np.arange(len(stratum))
        psu_levels = np.arange(len(stratum))
    else:
        inside, psu_levels = codes(caller, "clusters", clusters)
    if len(inside) != len(stratum):
        raise ValueError(
            f"{caller}: strata and clusters must be one label a unit; got {len(stratum)} and {len(inside)}."
        )
    pairs, psu = np.unique(stratum * len(psu_levels) + inside, return_inverse=True)
    psu_stratum = pairs // len(psu_levels)
    num_psus = np.bincount(psu_stratum)
    wrong = np.flatnonzero(num_psus < 2 if size is None else num_psus != size)
    if wrong.size:
        if size is None:
            needs = "at least two"
            way = "merge it with another stratum"
        else:
            needs = f"{size}"
            way = "pair them, or use jkn"
        raise ValueError(
            f"{caller}: stratum {levels[wrong[0]]!s} has {num_psus[wrong[0]]} cluster{'s' if num_psus[wrong[0]] != 1 else ''}; "
            f"{needs} are needed in each: {way}."
        )
    names = [
        f"{levels[h]!s} {psu_levels[c]!s}"
        for h, c in zip(psu_stratum, pairs % len(psu_levels), strict=True)
    ]
    return labels.index, stratum, psu.ravel(), psu_stratum, names


def _half_samples(
    caller: str, strata: ArrayLike, clusters: ArrayLike | None, rho: float
) -> ReplicateWeights:
    labels, _, psu, psu_stratum, _ = _design(caller, strata, clusters, 2)
    # the first column is of ones, to which the others are orthogonal
    columns = psu_stratum.max() + 2
    order = 4 * -(-columns // 4)
    while (matrix := _hadamard(order)) is None:
        order += 4
    signs = 1.0 * matrix[:, 1:columns]
    second = np.r_[1, np.diff(psu_stratum)] == 0
    of_psu = np.where(second, -1, 1) * signs[:, psu_stratum]  # [replicates, psus]
    count = len(signs)
    factors = (1 + (1 - rho) * of_psu).T[psu]
    return _weights(factors, np.arange(count), 1 / (count * (1 - rho) ** 2), np.ones(count), labels)


@functools.cache
def _hadamard(order: int) -> IntArray | None:
    """Construct a Hadamard matrix with a first column of ones, by Sylvester's doubling or Paley's
    ways; None if none does.
    """
    if order == 1:
        return np.ones((1, 1), int)
    if order != 2 and order % 4:
        return None
    half = _hadamard(order // 2)
    if half is not None:
        return np.block([[half, half], [half, -half]])
    if _prime(order - 1):  # order − 1 ≡ 3 mod 4: I + S with S skew
        matrix = _bordered(order - 1)
        matrix[1:, 0] = -1
        matrix += np.eye(order, dtype=np.int64)
    # a prime that is 1 mod 4: a symmetric conference matrix
    elif _prime(order // 2 - 1) and order // 2 % 4 == 2:
        core = _bordered(order // 2 - 1)
        matrix = np.kron(core, [[1, 1], [1, -1]]) + np.kron(
            np.eye(len(core), dtype=np.int64), [[1, -1], [-1, -1]]
        )
    else:
        return None
    return matrix * matrix[:, :1]


def _bordered(q: int) -> IntArray:
    """Return the matrix of quadratic characters of differences modulo a prime, within a first row
    and a first column of ones that meet in a zero.
    """
    character = np.full(q, -1)
    character[np.arange(1, q) ** 2 % q] = 1
    character[0] = 0
    matrix = np.pad(scipy.linalg.circulant(character), (1, 0), constant_values=1)
    matrix[0, 0] = 0
    return matrix


def _prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, int(number**0.5) + 1))
