"""Bases of smooth functions `f(x) = b(x)ᵀβ`, each with the matrices S of its roughness `βᵀSβ`.

name  functions of x                                                            S
tp    thin-plate splines, cut to the leading eigenvectors of their kernel
∫ of all squared second derivatives
cr    natural cubic splines by their values at knots                            ∫ f″²
cc    the same, periodic                                                        ∫ f″²
ps    cubic B-splines on even knots
squared second differences of coefficients
re    one for each level
I: independent random effects
mrf   one for each site of a graph
the graph's Laplacian

(S. N. Wood, *Thin plate regression splines*, JRSS B 65, 2003; P. Eilers and B. Marx, *Flexible
smoothing with B-splines*, 1996.) Splines are SciPy's. Beyond the data `cr` and `ps` are linear;
`cc` is periodic.
"""

from collections.abc import Callable
from functools import partial
from math import pi
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float
from numpy import linalg

from ..._runtime import NumpyArray, PerRow, TwoNumbers, largest_first, record
from ...data import codes
from ...plans import adjacency, read_edges

Coordinates = Float[NumpyArray, "rows axes"]
Square = Float[NumpyArray, "size size"]
Design = Float[NumpyArray, "rows size"]
MAX_DENSE_POINTS = 400  # points up to which all eigenvectors of a kernel are found
MAX_KERNEL_POINTS = 2000  # largest number of points of a thin-plate kernel; more are thinned


@record
class Basis:
    """Basis: `design` maps columns of data to `[rows, size]`.

    `penalties` are matrices `[size, size]`.
    """

    design: Callable[..., Design]
    penalties: tuple[Square, ...]


def spread(caller: str, x: PerRow, k: int) -> Float[NumpyArray, " knots"]:
    """Place knots at quantiles of the values."""
    values = np.unique(x)
    if len(values) < k:
        raise ValueError(
            f"{caller}: {len(values)} distinct values are fewer than k = {k}; give k={max(3, len(values))} or less."
        )
    return np.quantile(values, np.linspace(0, 1, k))


def cubic(caller: str, x: PerRow, k: int, period: TwoNumbers | None, cyclic: bool) -> Basis:
    """Build the bases `cr` and `cc`.

    The second derivative of a cubic spline is linear between knots, so the integral of its square
    is a sum.
    """
    if cyclic and period is not None:
        knots = np.linspace(*period, k)
    else:
        knots = spread(caller, x, k)
    values = np.vstack([np.eye(k - 1), np.eye(k - 1)[:1]]) if cyclic else np.eye(k)
    spline = scipy.interpolate.CubicSpline(
        knots, values, bc_type="periodic" if cyclic else "natural"
    )
    h = np.diff(knots)
    curvatures = spline(knots, 2)
    mass = np.zeros((k, k))
    j = np.arange(k - 1)
    mass[j, j] += h / 3
    mass[j + 1, j + 1] += h / 3
    mass[j, j + 1] = mass[j + 1, j] = h / 6
    evaluate = _around if cyclic else _straight
    return Basis(
        partial(evaluate, spline, knots[0], knots[-1]),
        (curvatures.T @ mass @ curvatures,),
    )


def _around(spline, low: float, high: float, x: NumpyArray) -> NumpyArray:
    """Evaluate a periodic cubic spline."""
    return spline(np.where((x < low) | (x > high), low + np.mod(x - low, high - low), x))


def _straight(spline, low: float, high: float, x: NumpyArray) -> NumpyArray:
    """Evaluate a cubic spline that is linear outside the knots."""
    inside = np.clip(x, low, high)
    value = spline(inside)
    out = x != inside
    value[out] += spline(inside[out], 1) * (x - inside)[out, None]
    return value


def b_splines(caller: str, x: PerRow, k: int) -> Basis:
    low = np.min(x)
    high = np.max(x)
    if not low < high:
        raise ValueError(f"{caller}: x is constant; leave the term out.")
    step = (high - low) / (k - 3)
    spline = scipy.interpolate.BSpline(low + step * np.arange(-3, k + 1), np.eye(k), 3)
    differences = np.diff(np.eye(k), 2, axis=0)
    return Basis(partial(_straight, spline, low, high), (differences.T @ differences,))


def thin_plate(caller: str, x: Coordinates, k: int) -> Basis:
    """Build a thin-plate basis from the k leading eigenvectors U D Uᵀ of the kernel at the data's
    points.
    """
    points = np.unique(x, axis=0)
    d = x.shape[1]
    if len(points) > MAX_KERNEL_POINTS:
        points = _thin(points)
    if d > 3:
        raise ValueError(
            f"{caller}: a thin-plate spline is of three columns at most; got {d}. Use te()."
        )
    if k < d + 2 or len(points) < k:
        raise ValueError(
            f"{caller}: k must lie between {d + 2} and the {len(points)} distinct points that there are; got {k}."
        )
    center = points.mean(0)
    scale = np.maximum(points.std(0).max(), 1e-300)
    points = (points - center) / scale
    kernel = _kernel(points, points)
    if len(points) <= MAX_DENSE_POINTS:
        values, vectors = linalg.eigh(kernel)
        lead = largest_first(np.abs(values))[:k]
        values = values[lead]
        vectors = vectors[:, lead]
    else:
        start = np.linspace(1.0, 2.0, len(points))
        values, vectors = scipy.sparse.linalg.eigsh(kernel, k, which="LM", v0=start, tol=1e-13)
    flat = np.c_[np.ones(len(points)), points]
    free = linalg.qr(vectors.T @ flat, mode="complete")[0][:, d + 1 :]
    inner = vectors @ free
    roughness = free.T @ (values[:, None] * free)
    design = partial(_plate, points, inner, center, scale)
    return Basis(design, (np.pad((roughness + roughness.T) / 2, (0, d + 1)),))


def _thin(points: Float[NumpyArray, "points axes"]) -> Float[NumpyArray, "fewer axes"]:
    """Thin the points: one column to its quantiles, several columns to a random sample."""
    if points.shape[1] == 1:
        return points[np.linspace(0, len(points) - 1, MAX_DENSE_POINTS).round().astype(int)]
    return points[
        np.sort(np.random.default_rng(0).choice(len(points), MAX_KERNEL_POINTS, replace=False))
    ]


def _plate(
    points: NumpyArray, inner: NumpyArray, center: NumpyArray, scale: float, x: Coordinates
) -> NumpyArray:
    standard = (x - center) / scale
    kernel_block = 2**21  # entries of a kernel that are computed at a time
    pieces = np.array_split(standard, -(-len(standard) * len(points) // kernel_block))
    values = np.vstack([_kernel(part, points) @ inner for part in pieces])
    return np.hstack([values, np.ones((len(standard), 1)), standard])


def _kernel(
    x: Coordinates, points: Float[NumpyArray, "points axes"]
) -> Float[NumpyArray, "rows points"]:
    r = scipy.spatial.distance.cdist(x, points)
    d = x.shape[1]
    if d == 2:
        return scipy.special.xlogy(r**2, r) / (8 * pi)
    return r**3 / 12 if d == 1 else -r / (8 * pi)


def effects(caller: str, labels: Any) -> Basis:
    """Build a basis of random effects, one for each level. Levels that are not in the data get the
    mean effect, zero.
    """
    _, levels = codes(caller, "x", labels)
    return Basis(partial(_indicators, levels), (np.eye(len(levels)),))


def _indicators(levels: NumpyArray, labels) -> Float[NumpyArray, "rows levels"]:
    return (np.asarray(labels)[:, None] == levels).astype(float)


def markov(caller: str, labels: Any, edges: Any) -> Basis:
    """Build a basis of a Markov random field, one function for each site, also for sites without
    data.

    Raises ValueError for labels that are not sites of the graph.
    """
    if edges is None:
        raise ValueError(f"{caller}: bs='mrf' needs edges=, a graph of the sites.")
    levels = codes(caller, "x", labels)[1]
    pairs, count, names = read_edges(caller, edges, None, None)
    sites = np.arange(count) if names is None else np.asarray(names)
    strangers = levels[~np.isin(levels, sites)]
    if len(strangers):
        raise ValueError(
            f"{caller}: {len(strangers)} levels are no sites of the graph, such as {strangers[0]!r}."
        )
    links = adjacency(pairs, count).toarray()
    return Basis(partial(_sites, caller, sites), (np.diag(links.sum(0)) - links,))


def _sites(caller: str, sites: NumpyArray, labels) -> Float[NumpyArray, "rows sites"]:
    new = np.asarray(labels)[~np.isin(np.asarray(labels), sites)]
    if len(new):
        raise ValueError(f"{caller}: {new[0]!r} is no site of the graph.")
    return _indicators(sites, labels)


def tensor(parts: list[Basis]) -> Basis:
    """Build the products of functions of each part, `[rows, Π sizes]`, with each part's roughness
    summed over the others.
    """
    sizes = [part.penalties[0].shape[0] for part in parts]
    before = np.cumprod([1, *sizes[:-1]])
    after = np.cumprod([1, *sizes[:0:-1]])[::-1]
    penalties = [
        np.kron(np.eye(m), np.kron(penalty, np.eye(n)))
        for part, m, n in zip(parts, before, after, strict=True)
        for penalty in part.penalties
    ]
    return Basis(partial(_products, parts), tuple(penalties))


def _products(parts: list[Basis], *columns: NumpyArray) -> Design:
    product = np.ones((len(columns[0]), 1))
    for part, x in zip(parts, columns, strict=True):
        product = (product[:, :, None] * part.design(x)[:, None, :]).reshape(len(product), -1)
    return product


def under(basis: Basis, matrix: Float[NumpyArray, "size fewer"]) -> Basis:
    """Transform a basis to the functions `b(x)ᵀ matrix`."""
    penalties = (matrix.T @ penalty @ matrix for penalty in basis.penalties)
    return Basis(
        partial(_times, basis, matrix),
        tuple((penalty + penalty.T) / 2 for penalty in penalties),
    )


def _times(basis: Basis, matrix: NumpyArray, *columns) -> Design:
    return basis.design(*columns) @ matrix


def summing_to_zero(design: Design) -> Float[NumpyArray, "size fewer"]:
    """Restrict a basis to functions that sum to zero over the rows, as otherwise a constant could
    belong to any term.
    """
    return linalg.qr(design.sum(0)[:, None], mode="complete")[0][:, 1:]


def diagonalise_roughness(basis: Basis) -> Square:
    """Return the eigenvectors of the penalty on roughness.

    In this basis H stays well conditioned under a heavy penalty, once its diagonal is scaled.
    """
    return linalg.eigh(basis.penalties[0])[1]


def scale_basis(basis: Basis, design: Design) -> tuple[Basis, Design]:
    """Scale columns to mean square one and penalties to a unit at which they balance the rows;
    return basis and design.

    Under λ = 1 and losses of curvature one, half of the functions that a penalty acts on have more
    curvature from it than from the rows.
    """
    size = np.sqrt(np.mean(design**2, 0))
    size[size == 0] = 1.0
    basis = under(basis, np.diag(1 / size))
    design = design / size
    return Basis(
        basis.design,
        tuple(penalty / np.median(against(penalty, design)) for penalty in basis.penalties),
    ), design


def against(penalty: Square, weighed: Design) -> Float[NumpyArray, " seen"]:
    """Compute the curvature of a penalty relative to that of the rows, where both determine
    directions, in rising order.
    """
    gram = weighed.T @ weighed
    gram += np.eye(len(gram)) * 1e-10 * np.trace(gram) / len(gram)
    values = scipy.linalg.eigh(penalty, gram, eigvals_only=True)
    return values[values > 1e-9 * values[-1]]
