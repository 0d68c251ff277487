"""The anchor of every refit: θ̂ = argmin F(θ, 1), its gradient, and H = ∇²F(θ̂, 1), factorised once.

`fit` minimises and ends in Newton steps; `anchor` takes a θ that another program found. Either way H must
be positive definite, and how far θ is from stationary is kept as the Newton decrement √(gᵀH⁻¹g), whose
half square is the loss still to be gained.
"""

import functools
import inspect
import warnings
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int, PyTree, Scalar

from ._objective import AbstractLinearPredictor, AbstractObjective, float64, ravel, stored, unravel
from ._progress import Slow
from ._results import RESULTS

STEPS = 100  # Newton steps before a minimisation counts as not converged
LARGE = 2000  # parameters beyond which one Hessian, or its eigenvalues, take a while
WARN, REFUSE = 1e-2, 1.0  # decrements at which `anchor` warns and raises


class IndefiniteHessianError(ValueError):
    """The curvature at θ̂ is not positive definite: θ̂ is a saddle, or the data do not determine every parameter."""


class Fit(eqx.Module):
    """An objective, its stationary point θ̂, and the factor of its curvature there. All NumPy, frozen.

    `value` is F(θ̂, 1), `decrement` is √(gᵀH⁻¹g), and `result` a code of `RESULTS`.
    """

    objective: AbstractObjective
    theta: PyTree
    value: Float[np.ndarray, ""]
    gradient: Float[np.ndarray, " params"]
    factor: Float[np.ndarray, "params params"]  # H = factor @ factor.T, lower triangular
    whitener: Float[np.ndarray, "params params"]  # factor⁻¹: ‖whitener @ g‖² = gᵀH⁻¹g
    gauge: Float[np.ndarray, "flat params"]  # flat directions, scaled to the size of the curvature
    decrement: Float[np.ndarray, ""]
    result: Int[np.ndarray, ""]
    starts: Float[np.ndarray, " starts"] | None = None  # F at the minimum that each start of `fit` reached

    @property
    def parameters(self) -> PyTree:
        """θ̂ in its natural parametrisation."""
        return _natural(self.objective, self.theta)

    @property
    def num_params(self) -> int:
        return len(self.gradient)

    @property
    def hessian(self) -> Float[np.ndarray, "params params"]:
        """`H = ∇²F(θ̂, 1)`, curvature along flat directions added."""
        return self.factor @ self.factor.T

    def solve(self, vector: Float[np.ndarray, "params ..."]) -> Float[np.ndarray, "params ..."]:
        """`H⁻¹ vector`, from the stored factor."""
        return scipy.linalg.cho_solve((self.factor, True), vector)

    @functools.cached_property
    def leverage(self) -> Float[np.ndarray, " units"]:
        """`tr(U_i H⁻¹ U_iᵀ)` of every unit's linear predictor, without its curvature ℓ″."""
        with jax.enable_x64(True):
            return np.asarray(_leverage(self.objective, self.whitener))

    @functools.cached_property
    def influence(self) -> Float[np.ndarray, "units params"]:
        """`L⁻¹ ∂²F/∂θ∂w_n` of every unit: minus it, times δ, is what the infinitesimal jackknife moves θ̂ by, whitened."""
        with jax.enable_x64(True):
            return np.asarray(_influence(self.objective, self.theta, self.whitener))

    def __repr__(self) -> str:
        return (
            f"Fit({type(self.objective).__name__}, {self.objective.num_units} units, {self.num_params} parameters, "
            f"decrement {self.decrement:.1e}{self._agreement()})"
        )

    def _agreement(self) -> str:
        """How many of several starts reached this minimum."""
        if self.starts is None or len(self.starts) < 2:
            return ""
        same = np.sum(self.starts - self.value < 1e-6 * max(1.0, abs(float(self.value))))
        return f", reached from {same} of {len(self.starts)} starts"


@eqx.filter_jit
def _influence(objective: AbstractObjective, theta: PyTree, whitener: Array) -> Array:
    by_weight = jax.grad(lambda w, v: objective.loss(unravel(v, theta), w))
    ones, start = jnp.ones(objective.num_units), ravel(theta)
    along = lambda direction: jax.jvp(lambda v: by_weight(ones, v), (start,), (direction,))[1]
    return jax.lax.map(along, whitener).T  # L⁻¹ J: derivatives along the rows of L⁻¹


@eqx.filter_jit
def _leverage(objective: AbstractLinearPredictor, whitener: Array) -> Array:
    n, size = objective.num_units, min(8192, objective.num_units)

    def fill(block, out):
        start = jnp.minimum(block * size, n - size)
        z = objective.rows(start + jnp.arange(size)) @ whitener.T
        return jax.lax.dynamic_update_slice_in_dim(out, jnp.sum(z**2, axis=(1, 2)), start, 0)

    return jax.lax.fori_loop(0, -(-n // size), fill, jnp.zeros(n))


@float64
def _natural(objective: AbstractObjective, theta: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, objective.natural(jax.tree.map(jnp.asarray, theta)))


@float64
def fit(objective: AbstractObjective, theta0: PyTree = None, *, num_starts: int = 1, seed: int = 0) -> Fit:
    """Minimise `F(·, 1)` and factorise its curvature there.

    `theta0`, in natural parameters, is the first start; the others (`num_starts` in all) are the
    objective's own, drawn with `seed`, and the lowest minimum is kept. A convex objective needs no
    starts: Newton's method with a line search. Any other goes down by BFGS first.

    Raises `RuntimeError` where no minimiser is reached (complete separation), `IndefiniteHessianError`
    where the data do not determine every parameter.
    """
    _check(objective, "fit")
    if num_starts < 1:
        raise ValueError(f"fit: num_starts must be 1 or more; got {num_starts}.")
    starts = [] if theta0 is None else [_leaves(objective.unconstrained(theta0))]
    while len(starts) < (1 if objective.convex else num_starts):
        starts.append(_leaves(objective.initial(seed + len(starts))))
    runs = []
    with Slow("starts", len(starts)) as bar:
        for theta in starts:
            runs.append(_minimise(objective, theta))
            bar.advance()
    value, vector, converged = min(runs, key=lambda run: run[0] if np.isfinite(run[0]) else np.inf)
    theta = objective.canonical(unravel(jnp.asarray(vector), starts[0]))
    found = replace(_anchor(objective, theta, "fit"), starts=np.array([run[0] for run in runs]))
    if not converged:
        raise RuntimeError(_unconverged(objective, found, float(value), np.asarray(vector)))
    _warn(objective.warning(found.theta))
    return found


def _unconverged(objective: AbstractObjective, found: Fit, value: float, vector: np.ndarray) -> str:
    """Why there is no minimiser, as far as can be told, and the way out."""
    name, largest = type(objective).__name__, np.abs(vector).max(initial=0)
    if found.decrement > WARN:
        what = f"no minimiser of {name} was reached in {STEPS} Newton steps (F = {value:.6g}, decrement {found.decrement:.2g})"
    else:
        what = f"the parameters of {name} run away (largest {largest:.3g}) while the loss hardly falls"
    known = objective.warning(found.theta)
    if known:
        return f"fit: {what}. {known}"
    if objective.convex and (found.decrement > WARN or largest > 1e3 or found.decrement < 1e-6):
        what += ": are the data perfectly separated, or a class or group missing?"
    return f"fit: {what}. Add a penalty (a prior), such as lo.penalties.Ridge(1.0), or give another start, fit(..., theta0=)."


@float64
def anchor(objective: AbstractObjective, theta: PyTree, *, throw: bool = True) -> Fit:
    """A `Fit` at a θ found elsewhere, in natural parameters as `fit.parameters` prints them.

    Every approximation inherits H⁻¹ times the leftover gradient, so a decrement above 0.01 is warned of,
    and one above 1 raises `ValueError` unless `throw=False`.
    """
    _check(objective, "anchor")
    found = _anchor(objective, _leaves(objective.unconstrained(theta)), "anchor")
    if found.decrement > WARN:
        message = (
            f"anchor: theta is not stationary for {type(objective).__name__}: the decrement √(gᵀH⁻¹g) is "
            f"{found.decrement:.3g} (the loss would still fall by about {found.decrement**2 / 2:.2g}). Was it fitted on "
            "these data, with this penalty and these weights? If its solver only stopped early, go on from it: "
            "lo.fit(objective, theta0=theta)."
        )
        if found.decrement > REFUSE and throw:
            raise ValueError(message + " anchor(..., throw=False) takes it as it is.")
        _warn(message)
    _warn(objective.warning(found.theta))
    return found


def _warn(message: str) -> None:
    """A warning that points at the line outside this package that led here."""
    if not message:
        return
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(__package__):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level + 1)


def _check(objective: AbstractObjective, caller: str) -> None:
    if not isinstance(objective, AbstractObjective):
        raise TypeError(
            f"{caller}: the first argument must be an objective such as lo.GLM(...) or lo.Objective(...); "
            f"got {type(objective).__name__}. For a fitted scikit-learn estimator use lo.from_sklearn."
        )


def _leaves(theta: PyTree) -> PyTree:
    def convert(leaf):
        array = np.asarray(leaf)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"parameters must be numbers; got an array of {array.dtype}.")
        if not np.isfinite(array).all():
            raise ValueError("parameters must be finite; theta holds NaN or infinite values.")
        return stored(array)

    return jax.tree.map(convert, theta)


def _minimise(objective: AbstractObjective, theta: PyTree) -> tuple[float, np.ndarray, bool]:
    weights = jnp.ones(objective.num_units)
    if not objective.convex:
        start = np.asarray(ravel(theta))
        found = scipy.optimize.minimize(
            lambda v: [np.asarray(part) for part in _value_and_grad(objective, unravel(jnp.asarray(v), theta), weights)],
            start,
            jac=True,
            method="BFGS" if start.size <= 500 else "L-BFGS-B",
            options={"gtol": 1e-6, "maxiter": 2000} if start.size <= LARGE else {"gtol": 1e-6, "ftol": 1e-15, "maxiter": 20000},
        )
        theta = unravel(jnp.asarray(found.x if np.isfinite(found.fun) else start), theta)
        if start.size > LARGE:
            return _chord(objective, theta)
    value, vector, converged, _ = newton(objective, theta, weights, _gauge(objective, theta), None)
    return float(value), np.asarray(vector), bool(converged)


def _chord(objective: AbstractObjective, theta: PyTree) -> tuple[float, np.ndarray, bool]:
    """Newton steps with one Hessian, where many would be too dear: F, the raveled minimiser, converged."""
    weights = jnp.ones(objective.num_units)
    factor = _cholesky(np.asarray(_pieces(objective, theta)[2]), objective, "fit")
    vector, size = np.asarray(ravel(theta)), np.inf
    for _ in range(STEPS):
        value, slope = _value_and_grad(objective, unravel(jnp.asarray(vector), theta), weights)
        step = scipy.linalg.cho_solve((factor, True), np.asarray(slope))
        before, size = size, float(np.sqrt(max(np.asarray(slope) @ step, 0.0)))
        if size > 0.9 * before:  # at the floor, or no contraction
            break
        vector = vector - step
    return float(value), vector, size < 1e-3 * WARN


@eqx.filter_jit
def _value_and_grad(objective: AbstractObjective, theta: PyTree, weights: Array) -> tuple[Scalar, Array]:
    value, gradient = jax.value_and_grad(objective.loss)(theta, weights)
    return value, ravel(gradient)


@eqx.filter_jit
def newton(
    objective: AbstractObjective, theta: PyTree, weights: Array, gauge: Array, factor: Array | None
) -> tuple[Scalar, Array, Array, Scalar]:
    """Newton's method with a backtracking line search from θ, by descent only: F, the raveled minimiser, converged, last step.

    Convergence is judged in one fixed metric (that of `factor`, by default of the Hessian at the start):
    under separation the decrement in the current metric goes to zero while the parameters run away.
    """
    F = lambda v: objective.loss(unravel(v, theta), weights)
    curvature = lambda v: objective.hessian(unravel(v, theta), weights)
    start = ravel(theta)
    if factor is None:
        first = curvature(start)
        first = jnp.linalg.cholesky(first + _gauge_matrix(gauge, first))
        factor = jnp.where(jnp.isfinite(first).all(), first, jnp.eye(len(start)))
    length = lambda d: jnp.linalg.norm(factor.T @ d)

    def step(state):
        v, value, _, _, k = state
        gradient, H = jax.grad(F)(v), curvature(v)
        own = jnp.linalg.cholesky(H + _gauge_matrix(gauge, H))
        definite = jnp.isfinite(own).all()
        d = cho_solve((jnp.where(definite, own, factor), True), gradient)
        slope = gradient @ d
        resolved = slope > 1e-12 * jnp.abs(value)  # else F can no longer tell a good step from a bad one
        enough = lambda s: F(v - s * d) <= value - 1e-4 * s * slope
        s = jax.lax.while_loop(lambda s: resolved & ~enough(s) & (s > 1e-12), lambda s: s / 2, jnp.ones(()))
        new = v - s * d
        size = length(d)
        done = definite & (s == 1) & ((size <= 1e-8 * length(new - start)) | (size <= 1e-11 * jnp.sqrt(jnp.abs(value))))
        return new, F(new), done, size, k + 1

    init = (start, F(start), jnp.array(False), jnp.array(jnp.inf), 0)
    going = lambda state: ~state[2] & (state[4] < STEPS) & jnp.isfinite(state[1])
    vector, value, converged, size, _ = jax.lax.while_loop(going, step, init)
    return value, vector, converged, size


def _gauge(objective: AbstractObjective, theta: PyTree) -> np.ndarray:
    return np.asarray(objective.symmetries(theta), np.float64)


def _gauge_matrix(gauge: Array, hessian: Array) -> Array:
    """Curvature put along flat directions: steps, being orthogonal to them, do not change."""
    return jnp.mean(jnp.diagonal(hessian)) * gauge.T @ gauge


@eqx.filter_jit
def _pieces(objective: AbstractObjective, theta: PyTree) -> tuple[Scalar, Array, Array]:
    weights = jnp.ones(objective.num_units)
    value, gradient = jax.value_and_grad(objective.loss)(theta, weights)
    return value, ravel(gradient), objective.hessian(theta, weights)


def _anchor(objective: AbstractObjective, theta: PyTree, caller: str) -> Fit:
    theta = jax.tree.map(np.asarray, theta)
    flat = _gauge(objective, theta)
    value, gradient, hessian = (np.asarray(p) for p in _pieces(objective, theta))
    if not (np.isfinite(value) and np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        raise ValueError(
            f"{caller}: the loss of {type(objective).__name__} (F = {float(value):.4g}), its gradient or its Hessian is not "
            "finite at theta; give another start, fit(..., theta0=)."
        )
    gauge = np.sqrt(np.abs(np.diag(hessian)).mean()) * flat
    hessian = hessian + gauge.T @ gauge if len(gauge) else hessian
    factor = stored(_cholesky(hessian, objective, caller))
    del hessian
    whitener = stored(scipy.linalg.lapack.dtrtri(factor, lower=1)[0])
    decrement = float(np.linalg.norm(whitener @ gradient))
    result = RESULTS.successful if decrement <= WARN else RESULTS.not_converged
    return Fit(
        objective,
        theta,
        np.asarray(value),
        gradient,
        factor,
        whitener,
        gauge,
        np.asarray(decrement),
        np.asarray(result),
    )


def _cholesky(hessian: np.ndarray, objective: AbstractObjective, caller: str) -> np.ndarray:
    """The factor of H; H is judged with its diagonal scaled to one, so that units of measurement do not matter."""
    scale = np.sqrt(np.maximum(np.diag(hessian), 0))
    if (scale > 0).all():
        correlation = hessian / scale
        correlation /= scale[:, None]
        try:
            factor = np.linalg.cholesky(correlation)
            pivot = np.diag(factor).min() ** 2
            if (
                pivot > 1e-9
                or (len(factor) > LARGE and pivot > 1e-13)
                or np.linalg.eigvalsh(correlation)[0] > 1e-13 * len(hessian)
            ):
                factor *= scale[:, None]
                return factor
        except np.linalg.LinAlgError:
            pass
    else:
        correlation = hessian
    values, vectors = np.linalg.eigh(correlation)
    names = _parameter_names(objective, len(hessian))
    worst = np.argsort(-np.abs(vectors[:, 0]))[:3]
    dominant = ", ".join(f"{names[i]} ({vectors[i, 0]:+.2f})" for i in worst if abs(vectors[i, 0]) > 0.05)
    raise IndefiniteHessianError(
        f"{caller}: the Hessian of {type(objective).__name__} at theta is not positive definite: its smallest eigenvalue "
        f"(diagonal scaled to one) is {values[0]:.2g}, along {dominant}. Constant or collinear columns and separated "
        "classes do this; so does a saddle. Drop a column, add a penalty (a prior), fit longer, or start elsewhere."
    )


def _parameter_names(objective: AbstractObjective, count: int) -> list[str]:
    names = objective.parameter_names()
    return names if len(names) == count else [f"parameter {i}" for i in range(count)]
