"""The loss with no leakage, from the losses at all levels of injection: solve b = A e for e."""

from dataclasses import field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import linalg
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from ...developer import FloatArray, Measure, NumpyArray, record

GRID = 81  # number of values of λ


class Shape(NamedTuple):
    """Shape of a curve: not rising with leakage, or (`rising`) not falling, between two bounds
    (None: no bound).
    """

    rising: bool = False
    low: float | None = 0.0
    high: float | None = None


def shape_of(measure: Measure) -> Shape:
    """Return the shape of a measure's curve as a function of the leakage."""
    return Shape(measure.more_is_better, measure.low, measure.high)


@record
class Curve:
    """Loss by the number of leaked records, from `solve_curve`.

    Attributes
    ----------
    values : ndarray, `[counts]` or `[counts, counts]`
        The loss e; for both directions by both numbers.
    lam : float
        The strength of the trend filter.
    weights : ndarray, `[levels]`
        The weights of the linear solution, ê₀ ≈ weights @ b, which is equal where no constraint is
        active.
    residual : float
        The norm ‖A e − b‖.
    order : int
        The order of the trend filter.

    See Also
    --------
    solve_curve : Make it.

    Examples
    --------
    >>> import leaveout as lo
    >>> A = lo.leakage.binomial_matrix([0.0, 0.3, 0.6, 1.0], 3)
    >>> curve = lo.leakage.solve_curve(A, A @ [4.0, 3.0, 2.0, 1.0], lam=1e-6)
    >>> curve.values.round(2)
    array([4., 3., 2., 1.])
    """

    values: Float[NumpyArray, "*counts"]
    lam: float
    weights: Float[NumpyArray, " levels"]
    residual: float
    order: int

    @property
    def estimate(self) -> float:
        """ê₀, the loss with no leakage."""
        return float(self.values.flat[0])


def solve_curve(
    A: ArrayLike | tuple[ArrayLike, ArrayLike],
    b: ArrayLike,
    covariance: ArrayLike | None = None,
    *,
    order: int = 2,
    lam: float | None = None,
    monotone: bool = True,
    upper: float | None = None,
    linear: bool = True,
) -> Curve:
    """Solve A e = b for a smooth curve e that, if `monotone`, is non-increasing, non-negative and
    at most `upper`.

    Parameters
    ----------
    A : array_like, `[levels, counts]`, or a pair of them
        The probabilities of the numbers of leaked records. A pair `(A_train, A_test)` is for the
        two-directional system A_train E A_testᵀ = b (Algorithm 3), with E[c, d] the loss with c
        leaked records among those trained on and d among those tested on. Its Kronecker product is
        never formed.
    b : array_like, `[levels]` or `[levels_train, levels_test]`
        The losses.
    covariance : array_like, `[levels, levels]`, optional
        The covariance of b.
    order : int, default 2
        The order of the trend filter.
    lam : float, optional
        Its strength λ, else chosen by UPRE. A pair needs one.
    monotone : bool, default True
        Whether e is non-increasing and non-negative.
    upper : float, optional
        The largest value of e.
    linear : bool, default True
        Whether a pair uses that a mean loss is linear in what it is tested on, E[c, d] = (1 − d/m)
        E[c, 0] + (d/m) E[c, m].

    Returns
    -------
    Curve
        The curve, whose first value is the loss with no leakage.

    Raises
    ------
    ValueError
        If shapes do not fit, numbers are NaN, there are fewer levels than `order + 1`, or the
        covariance is missing or not symmetric.

    Examples
    --------
    >>> import leaveout as lo
    >>> A = lo.leakage.binomial_matrix([0.0, 0.3, 0.6, 1.0], 3)
    >>> round(lo.leakage.solve_curve(A, A @ [4.0, 3.0, 2.0, 1.0], lam=1e-6).estimate, 2)
    4.0
    """
    if order not in (1, 2, 3, 4):
        raise ValueError(f"solve_curve: order must be 1, 2, 3 or 4; got {order}.")
    if isinstance(A, tuple):
        if lam is None:
            raise ValueError("solve_curve: with two directions lam= is needed; UPRE is for one.")
        train, test = (_finite("A", part, 2) for part in A)
        b = _finite("b", b, 2)
        lam = _strength(lam)
        if b.shape != (len(train), len(test)):
            raise ValueError(
                f"solve_curve: b must be {(len(train), len(test))}, levels of the two sides; got {b.shape}."
            )
        along = System(train, order)
        share = np.arange(test.shape[1]) / (test.shape[1] - 1)
        # linear in d, E has two curves in c: least squares over the test side, b ≈ A_train F
        # (A_test both)ᵀ
        if linear:
            basis = np.column_stack([1 - share, share])
            rows = b @ linalg.pinv(test @ basis).T
        else:
            basis = np.eye(test.shape[1])
            rows = System(test, order).linear(b.T, lam).T
        F = along.linear(rows, lam)
        # on the test clusters' own records; for other records more of them in training may be
        # harmful
        if monotone:
            M = np.vstack([train, np.sqrt(lam) * differences(train.shape[1], order)])
            padding = np.zeros(len(M) - len(train))
            for d in range(1 if linear else F.shape[1]):
                F[:, d] = nonincreasing(M, np.concatenate([rows[:, d], padding]))
        E = F @ basis.T
        return Curve(E, lam, np.zeros(0), float(linalg.norm(train @ E @ test.T - b)), order)
    system = System(_finite("A", A, 2), order)
    losses = _finite("b", b, 1)
    if len(losses) != len(system.A):
        raise ValueError(
            f"solve_curve: b must have one loss a row of A, {len(system.A)}; got {len(losses)}."
        )
    if lam is None and covariance is None:
        raise ValueError(
            "solve_curve: give covariance=, the covariance of b, by which λ is chosen, or lam=."
        )
    noise = None
    if covariance is not None:
        noise = _finite("covariance", covariance, 2)
    if noise is not None and (noise.shape != (len(losses),) * 2 or not np.allclose(noise, noise.T)):
        raise ValueError(
            f"solve_curve: covariance must be symmetric, {(len(losses),) * 2}; got {noise.shape}."
        )
    shape = Shape(high=upper) if monotone else None
    if lam is not None:
        return system.solve(losses, _strength(lam), shape)
    assert noise is not None
    return system.solve(losses, system.choose(losses, noise), shape)


@record
class System:
    """Linear system with one matrix A and order of differences, factorised once, so that each b and
    λ is cheap.

    With e = P a + R z, P the polynomials that D annihilates and R a right inverse of D, the penalty
    is λ‖z‖²; P's part is projected out, and the rest is a ridge regression, diagonal in the
    singular vectors of `M = (I − Π) A R`.
    """

    A: FloatArray
    order: int
    parts: dict[str, FloatArray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        levels, counts = self.A.shape
        if levels <= self.order or counts <= self.order:
            raise ValueError(
                f"solve_curve: a trend filter of order {self.order} needs {self.order + 1} levels or more; got {levels}."
            )
        P = np.asarray(
            np.polynomial.legendre.legvander(np.linspace(-1, 1, counts), self.order - 1), float
        )
        R = right_inverse(counts, self.order)
        Q, triangle = linalg.qr(self.A @ P)
        if np.min(np.abs(np.diag(triangle))) < 1e-10 * np.max(np.abs(triangle)):
            raise ValueError(
                "solve_curve: the levels are too alike to tell a trend; inject more at the top level."
            )
        AR = self.A @ R
        U, s, Vt = linalg.svd(AR - Q @ (Q.T @ AR), full_matrices=False)
        keep = s > 1e-12 * s[0]
        U = U[:, keep]
        s = s[keep]
        Vt = Vt[keep]
        first = linalg.solve(triangle.T, P[0])  # ê₀ = P₀ a + R₀ z, a = triangle⁻¹ Qᵀ (b − A R z)
        along = (R[0] - first @ (Q.T @ AR)) @ Vt.T
        self.parts.update(
            P=P, R=R, Q=Q, triangle=triangle, AR=AR, U=U, s=s, Vt=Vt, first=first, along=along
        )

    def choose(self, b: FloatArray, noise: FloatArray) -> float:
        """Choose λ by UPRE."""
        U = self.parts["U"]
        s = self.parts["s"]
        grid = np.geomspace(1e4 * s[0] ** 2, max(1e-4 * s[-1] ** 2, 1e-16 * s[0] ** 2), GRID)
        shrinkage = s**2 / (s**2 + grid[:, None])  # [λ, singular values]
        spread = np.einsum("ij,ik,kj->j", U, noise, U)
        risk = ((1 - shrinkage) ** 2) @ (U.T @ b) ** 2 + 2 * shrinkage @ spread
        # 0.5: share of UPRE's standard deviation within which risks count as equal; the smoothest
        # curve is taken
        close = 0.5 * np.sqrt(2 * np.sum(spread**2))
        return float(grid[np.argmax(risk <= risk.min() + close)])

    def weights(self, lam: float) -> FloatArray:
        """Return the row of H_λ that gives ê₀."""
        q = self.parts
        return q["Q"] @ q["first"] + q["U"] @ (q["s"] / (q["s"] ** 2 + lam) * q["along"])

    def linear(self, b: FloatArray, lam: float) -> FloatArray:
        """Compute `H_λ b`; b may have columns."""
        q = self.parts
        z = q["Vt"].T @ ((q["s"] / (q["s"] ** 2 + lam)) * (q["U"].T @ b).T).T
        return q["P"] @ linalg.solve(q["triangle"], q["Q"].T @ (b - q["AR"] @ z)) + q["R"] @ z

    def solve(self, b: FloatArray, lam: float, shape: Shape | None) -> Curve:
        """Solve for one curve; a score that rises with leakage is negated."""
        e = self.linear(b, lam)
        if shape is not None:
            rising, low, high = shape
            sign = -1.0 if rising else 1.0
            if not rising:
                floor = low
                roof = high
            else:
                floor, roof = (None if x is None else -x for x in (high, low))
            f = sign * e
            inside = (
                np.all(np.diff(f) <= 0)
                and (floor is None or f[-1] >= floor)
                and (roof is None or f[0] <= roof)
            )
            if not inside:
                M = np.vstack([self.A, np.sqrt(lam) * differences(self.A.shape[1], self.order)])
                e = sign * nonincreasing(
                    M, np.concatenate([sign * b, np.zeros(len(M) - len(b))]), roof, floor
                )
        return Curve(
            e, float(lam), self.weights(lam), float(linalg.norm(self.A @ e - b)), self.order
        )


def nonincreasing(
    M: FloatArray, r: FloatArray, upper: float | None = None, lower: float | None = 0.0
) -> FloatArray:
    """Solve `min ‖M e − r‖` over e₀ ≥ e₁ ≥ … ≥ lower and e₀ ≤ upper.

    This is non-negative least squares for the steps down from e₀, e = lower + Σ_{k ≥ j} x_k.
    Without a lower bound, one is chosen so low that it is not attained. A third axis of M is for
    several curves between the same bounds.
    """
    if lower is None:
        floor = float(r.min())
        depth = float(np.ptp(r)) + 1e-9
        while True:
            depth *= 8
            e = nonincreasing(M, r, upper, floor - depth)
            if np.min(e[-1]) > floor - depth:
                return e
    steps = np.cumsum(M, 1).reshape(len(M), -1)  # M times the upper triangle of ones
    scale = linalg.norm(steps, axis=0)
    scale[scale == 0] = 1.0
    r = r - lower * M.reshape(len(M), -1).sum(1)
    x = nnls(steps / scale, r, maxiter=50 * steps.shape[1])[0] / scale
    # as the problem is convex, the bound is attained: Σ x = upper − lower
    if upper is not None and x.sum() > upper - lower:
        # 1e5: weight of an exact equation, relative to the largest entry of the others
        room = upper - lower
        weight = 1e5 * np.abs(steps).max()
        tight = np.vstack([steps, np.full((1, steps.shape[1]), weight)]) / scale
        x = nnls(tight, np.append(r, weight * room), maxiter=50 * steps.shape[1])[0] / scale
        x *= min(1.0, room / x.sum())
    return lower + np.cumsum(x.reshape(M.shape[1:])[::-1], 0)[::-1]


def differences(size: int, order: int) -> Float[NumpyArray, "rows size"]:
    """Return D, the matrix of differences of the given order, `[size − order, size]`."""
    return np.diff(np.eye(size), order, axis=0)


def right_inverse(size: int, order: int) -> Float[NumpyArray, "size rows"]:
    """Return R with `D R = I`, zero in its last `order` rows, by repeated sums from the end."""
    R = np.eye(size)
    for k in range(order):
        n = size - k
        R = R @ np.tril(np.ones((n, n - 1)), -1)
    return (-1.0) ** order * R[::-1, ::-1]


def _strength(lam: float) -> float:
    if not (np.isfinite(lam) and lam >= 0):
        raise ValueError(f"solve_curve: lam must be finite and not negative; got {lam}.")
    return max(float(lam), 1e-300)


def _finite(name: str, value: ArrayLike, ndim: int) -> FloatArray:
    array = np.asarray(value, float)
    misshapen = array.ndim != ndim or not array.size
    if misshapen or not np.isfinite(array).all():
        problem = "NaN or infinity"
        if misshapen:
            problem = f"shape {array.shape}"
        raise ValueError(f"solve_curve: {name} must be finite, with {ndim} axes; got {problem}.")
    return array
