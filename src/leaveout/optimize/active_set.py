"""Minimiser of F under a penalty with kinks or bounds: the parameters that these hold, and the
smooth model on the others.

    F(θ, w) = L(θ, w) + κ(w) Σ_j a_j |θ_j|,      low ≤ θ ≤ high
    |∇_jL| ≤ κ a_j where θ_j = 0,
    ∇_jL ≥ −κ a_j sign θ_j where θ_j = low_j, ≤ where it is high_j,      = elsewhere

or under Σ_g a_g ‖θ_g‖, with ‖∇_gL‖ ≤ κ a_g where θ_g = 0. Each round minimises a quadratic model of
L beside the penalty: by scikit-learn's coordinate descent, by descent on one group after another
(`linalg.group_norms`), or, where there are bounds, by an active set (`linalg.bounds`). When the
held parameters no longer change, Newton's method on the others arrives, and the conditions of
Karush, Kuhn and Tucker decide whether the active set was right.
"""

import warnings
from functools import cache, partial
from typing import NamedTuple, cast

import numpy as np
import scipy
from jaxtyping import Bool, Float

from .._runtime import Indices, MakeArray, NumpyArray, PyTree, TwoArrays, kind_of, silence
from ..linalg import (
    Curvature,
    Lanes,
    LaneState,
    PerUnit,
    Proposal,
    SparseDesign,
    descend_by_groups,
    excess,
    gates,
    iterate,
    resting,
    segments,
    solve_box,
    weight_terms,
)
from ..models.glm import (
    PRODUCTS_FROM,
    AbstractRegression,
    DualGLM,
    FullCox,
    FullModel,
    PerPlace,
    Places,
    kinks,
    ridge_strengths,
)
from ..objectives import ONE, AbstractObjective, LinearBatch, Vector, constant, function
from .hessian_factor import far_out
from .newton import newton

OnSubset = Float[NumpyArray, " some"]
# distance, relative to a_j, at which a gradient counts as at the edge of its interval
TIE_DISTANCE = 1e-9
# columns from which a matrix of fewer rows takes their place: theirs takes a tenth of a second
MANY_COLUMNS = 500
# sparse rows from which a matrix of all of them takes more than products: half a gigabyte
MANY_ROWS = 8_000
ROUNDS = 100  # largest number of rounds of coordinate descent and line search
# violations, relative to the largest a, at which Newton's method is tried
TOLERANCES = 1e-4, 1e-7, 1e-10
CANCELLED_PRODUCT = 1e-6  # least share of a column's product with itself that elimination may leave


class ActiveMinimiser(NamedTuple):
    """Minimiser with all its parameters, the places and signs of those that are not held, and F
    there.
    """

    theta: Vector
    place: Places
    sign: PerPlace
    point: "ActivePoint"


class NoMinimiser(RuntimeError):
    """Raised if no minimiser is found."""


def restrict_to_active(
    objective: AbstractObjective, theta: PyTree = None
) -> tuple[AbstractObjective, PyTree]:
    """Model on the parameters that the minimiser does not hold at zero, and natural parameters to
    start it from.

    Returns the objective itself, and theta, if F is smooth.
    """
    restriction = kinks(objective)
    if restriction is None:
        return objective, theta
    kinked = restriction.whole
    start = None
    if theta is not None:
        start = np.asarray(objective.parameters.unconstrained(theta), float)
        if len(start) < len(kinked.slope):
            start = None
    try:
        minimiser = minimise_with_kinks(kinked, np.ones(objective.num_units), start)
    except NoMinimiser as error:
        raise NoMinimiser(f"{error} {far_out(objective)}".rstrip()) from None
    if not len(minimiser.place):
        raise ValueError(
            "fit: the penalty holds every coefficient at zero or a bound, and there is no intercept: nothing is left to refit. "
            "Take a smaller alpha, or wider bounds."
        )
    simpler = kinked.restrict(
        minimiser.place, minimiser.sign, minimiser.theta, _describe_active(kinked, minimiser)
    )
    return simpler, simpler.parameters.natural(minimiser.theta)


def above(objective: AbstractObjective, theta: PyTree, least: PyTree) -> float:
    """Excess of F at θ over F at its minimiser, both given in natural parameters; 0 if F is smooth.

    For smooth F the decrement measures this. Parameters beyond their bounds count as on them.
    """
    restriction = kinks(objective)
    if restriction is None:
        return 0.0
    kinked = restriction.whole
    ones = np.ones(objective.num_units)
    vectors = [
        np.asarray(objective.parameters.unconstrained(vector), float) for vector in (theta, least)
    ]
    if len(vectors[0]) < len(kinked.slope):  # a model on some of the parameters
        return 0.0
    value, lowest = (
        look(kinked, ones, np.clip(vector, *kinked.bounds)).value for vector in vectors
    )
    return max(value - lowest - TIE_DISTANCE * TIE_DISTANCE * abs(lowest), 0.0)


def dual_form(objective: AbstractObjective, curvature: str, caller: str) -> AbstractObjective:
    """Return the model in coordinates of its rows if `curvature` is "rows", or "auto" and rows are
    fewer, and not so many that products with sparse rows cost less; else itself.
    """
    ridge = ridge_strengths(objective) if curvature in ("rows", "auto") else None
    if curvature == "rows" and ridge is None:
        description = kind_of(objective)
        if isinstance(objective, AbstractRegression):
            description = f"{description}, {objective.penalty!r}"
        raise TypeError(
            f'{caller}: curvature="rows" is for a lo.GLM under lo.penalties.Ridge, above zero; got {description}.'
        )
    if ridge is None:
        return objective
    model = cast(AbstractRegression, objective)
    rows = model.num_units
    has_products = len(ridge) > PRODUCTS_FROM and isinstance(model.design, SparseDesign)
    is_large = rows > MANY_ROWS and has_products and not model.classes
    if curvature == "auto" and (len(ridge) < MANY_COLUMNS or rows >= len(ridge) or is_large):
        return objective
    return DualGLM(model)


def at_zeros(objective: AbstractObjective, theta: Vector) -> tuple[AbstractObjective, PerPlace]:
    """Model on the parameters that are not held at a minimiser, and the minimiser in it.

    Unchanged if there are no kinks.
    """
    restriction = kinks(objective)
    if restriction is None:
        return objective, theta
    place, sign = _active(restriction.whole, theta)
    minimiser = ActiveMinimiser(
        theta, place, sign, look(restriction.whole, np.ones(objective.num_units), theta)
    )
    return restriction.whole.restrict(
        place, sign, theta, _describe_active(restriction.whole, minimiser)
    ), theta[place]


def without(caller: str, objective: AbstractObjective) -> None:
    """Raise TypeError if the penalty has kinks, for a verb that cannot handle them."""
    if kinks(objective) is not None:
        raise TypeError(
            f"{caller}: it is not there for an l1 penalty or bounds, which hold parameters, and let them go, from refit to "
            "refit; cross_validate, cross_predict, fold_parameters, compare and path are."
        )


def _describe_active(model: FullModel, minimiser: ActiveMinimiser) -> str:
    """Count the coefficients that are not held in a sentence, and name the one nearest to being
    released.
    """
    theta = minimiser.theta
    a = minimiser.point.a
    limits = np.stack(model.bounds)
    if model.norms is not None:
        length = model.norms.lengths(minimiser.theta)
        text = f"{int((length > 0).sum())} of {len(length)} penalised groups are not zero"
        margin = np.where(
            length > 0,
            np.inf,
            1
            - model.norms.lengths(minimiser.point.gradient)
            / (minimiser.point.kappa * model.norms.weight),
        )
        if np.isinf(margin).all():
            return text
        g = int(np.argmin(margin))
        name = f"that of {model.parameter_name(int(np.argmax(model.norms.member[g])))}"
        if margin[g] <= TIE_DISTANCE:
            return f"{text}; {name} is at a tie: whether it is zero is within rounding"
        return f"{text}; {name} is nearest to joining, its gradient {margin[g]:.2g} of alpha off"
    text = ""
    if a.any():
        text = f"{int((theta[a > 0] != 0).sum())} of {int((a > 0).sum())} penalised coefficients are not zero"
    if np.isfinite(limits).any():
        within = np.isfinite(limits).any(0)
        at_bounds = f"{int((theta == limits).any(0).sum())} of {int(within.sum())} coefficients with bounds are at one"
        text = f"{text}, {at_bounds}" if text else at_bounds
    held = at_rest(model, theta)
    if not held.any():
        return text
    least, most = gates(model, theta, minimiser.point.kappa)
    distance = np.minimum(minimiser.point.gradient - least, most - minimiser.point.gradient)
    margin = np.divide(
        distance,
        minimiser.point.unit,
        out=np.full(len(a), np.inf),
        where=held & (minimiser.point.unit > 0),
    )
    j = int(np.argmin(margin))
    if margin[j] <= TIE_DISTANCE:
        where = "zero" if theta[j] == 0 and a[j] > 0 else "there"
        return f"{text}; {model.parameter_name(j)} is at a tie: whether it is {where} is within rounding"
    if not a[j] > 0:
        return f"{text}; {model.parameter_name(j)} is nearest to leaving its bound"
    return f"{text}; {model.parameter_name(j)} is nearest to joining, its gradient {margin[j]:.2g} of alpha off"


def at_rest(model: FullModel, theta: Vector) -> Bool[NumpyArray, " params"]:
    """Whether each parameter is where a kink or a bound may hold it."""
    norms = model.norms
    if norms is None:
        return resting(model, theta)
    return norms.among(norms.lengths(theta) == 0)


class ActivePoint(NamedTuple):
    """F at some parameters, with ∇L, the slopes and curvatures of the units, and with a, the ridges
    and κ under the weights.
    """

    value: float
    gradient: Vector
    slope: PerUnit
    curvature: PerUnit
    a: Vector
    ridge: Vector
    kappa: float
    unit: Vector  # scale of a gradient: a or, if that is zero, a bound of the sum over all units


def look(kinked: FullModel, weights: PerUnit, theta: Vector) -> ActivePoint:
    """Compute the value, the gradient and the curvatures of a model with kinks at θ."""
    model = kinked.smooth
    norms = kinked.norms
    if isinstance(kinked, FullCox):
        (value,), (gradient,), (slope,), (kappa,) = model._by_units(theta[None], weights[None])
        curvature = np.zeros(0)
        ridge = kappa * kinked.ridge
    else:
        omega, kappa = (part[0] for part in model.weigh(weights[None]))
        with silence("over", "invalid"):
            derivatives = model.loss.derivatives(model.eta(theta[None])[0], model.y, (0, 1, 2))
            loss, slope, curvature = (weight_terms(omega, part) for part in derivatives)
        ridge = kappa * kinked.ridge
        value = loss.sum() + 0.5 * ridge @ theta**2
        gradient = model.design.pull(slope[None])[0] + ridge * theta
        smallest_unit_curvature = 1e-3  # least curvature of a unit, relative to the mean
        least = smallest_unit_curvature * curvature.sum() / max(omega.sum(), 1e-300)
        curvature = np.maximum(curvature, least * omega)
    a = kappa * kinked.slope
    value = float(value + kappa * _worth(kinked, theta))
    unit = np.where(a > 0, a, np.abs(slope).sum() * kinked.largest)
    if norms is not None:
        unit = np.where(norms.member.any(0), norms.spread(kappa * norms.weight), unit)
    value = value if value == value else np.inf
    return ActivePoint(value, gradient, slope, curvature, a, ridge, float(kappa), unit)


def _worth(model: FullModel, theta: Vector) -> float:
    """Value of the kinked penalty."""
    return float(
        model.slope @ np.abs(theta) + (0.0 if model.norms is None else model.norms.value(theta))
    )


class WeightedProblem:
    """Model under given weights.

    Keeps ∇²L if that is the same at every θ and there are fewer columns than rows.
    """

    def __init__(self, kinked: FullModel, weights: PerUnit):
        self.full_model = kinked
        self.weights = weights
        model = kinked.smooth
        narrow = (
            not isinstance(kinked, FullCox)
            and model.quadratic
            and np.count_nonzero(weights) > len(kinked.slope)
        )
        self.second = cache(partial(constant, model, weights)) if narrow else None


def minimise_with_kinks(
    model: FullModel, weights: PerUnit, start: Vector | None = None
) -> ActiveMinimiser:
    """Minimise F(·, w). Raises `NoMinimiser` if the parameters that are not held are not
    determined.
    """
    theta = model.start() if start is None else start.copy()
    problem = WeightedProblem(model, weights)
    # first tolerance if L is quadratic, as one round then gets nearly all signs right
    quadratic_round_tolerance = 0.1
    for tolerance in (
        TOLERANCES if problem.second is None else (quadratic_round_tolerance, *TOLERANCES)
    ):
        theta = _descend(problem, theta, tolerance)
        minimiser = _minimise_active(problem, theta)
        if minimiser is None:
            theta, changed = _independent(problem, theta)
            if changed:
                minimiser = _minimise_active(problem, theta)
        if minimiser is not None:
            return minimiser
    place = _active(model, theta)[0]
    rows = int((weights > 0).sum())
    raise NoMinimiser(
        f"fit: the coefficients that are not held, {len(place)} of them with {rows} rows, are not determined: are columns "
        "repeated, or is alpha too small? Drop columns, raise alpha, or add a Ridge."
    )


def _active(model: FullModel, theta: NumpyArray) -> tuple[Places, PerPlace]:
    place = np.flatnonzero(~at_rest(model, theta))
    return place, np.where(model.slope[place] > 0, np.sign(theta[place]), 0.0)


def _independent(problem: WeightedProblem, theta: NumpyArray) -> tuple[Vector, bool]:
    """Move θ along directions in which F is constant until the active columns are linearly
    independent.

    Returns θ and whether it moved. With all levels of a factor under an l1 penalty the coefficients
    are not unique, but the predictions are.
    """
    kinked = problem.full_model
    theta = theta.copy()
    changed = False
    limits = np.stack(kinked.bounds)
    if (
        kinked.norms is not None
        or isinstance(kinked, FullCox)
        or np.any(np.isfinite(limits) & (limits != 0))
    ):
        return theta, False
    point = look(kinked, problem.weights, theta)
    # least singular value, relative to the largest, of independent columns of length one
    independent_singular_value = 1e-9
    for _ in range(len(theta)):
        place, sign = _active(kinked, theta)
        columns = _scale_columns(kinked, place, np.sqrt(point.curvature), point.ridge)
        length = np.sqrt(np.sum(columns**2, 0))
        if not len(place) or not length.all():
            break
        # as long as it is wide; the rows may be many
        (r,) = scipy.linalg.qr(columns / length, mode="r")
        null = (
            scipy.linalg.null_space(r[: len(place)], rcond=independent_singular_value)
            / length[:, None]
        )
        active_theta = theta[place]
        slope = point.a[place]
        if not null.size or not np.any(null[slope > 0]):
            break
        along = null[:, np.argmax(np.abs(null[slope > 0]).max(0))]
        if (slope * sign) @ along > 0:
            along = -along
        towards = (slope > 0) & (active_theta * along < 0)
        if not towards.any():
            along = -along
            towards = (slope > 0) & (active_theta * along < 0)
        distance = np.divide(
            -active_theta, along, out=np.full(len(active_theta), np.inf), where=towards
        )
        theta[place] = active_theta + distance.min() * along
        theta[place[np.argmin(distance)]] = 0.0
        changed = True
    return theta, changed


def _minimise_active(problem: WeightedProblem, theta: NumpyArray) -> ActiveMinimiser | None:
    """Minimise over the parameters that are not held, keeping their signs; writes into θ.

    The result is the minimiser if the signs and bounds hold there and no other parameter joins;
    else None.
    """
    kinked = problem.full_model
    weights = problem.weights
    second = problem.second
    max_sign_failures = 8  # times that signs may be wrong before coordinate descent goes on
    for _ in range(max_sign_failures):
        place, sign = _active(kinked, theta)
        if len(place):
            F = function(kinked.restrict(place, sign, theta), theta[place], weights).of
            if second is not None and kinked.norms is None and isinstance(F, LinearBatch):
                F.constant = partial(_submatrix, second, place)
            solution = newton(F, theta[place][None], ONE, np.zeros((0, len(place))))
            if not solution.converged[0]:
                return None
            theta[place] = solution.theta[0]
        floor, ceiling = segments(kinked, place, sign)
        wrong = (theta[place] <= floor) | (theta[place] >= ceiling)
        if not wrong.any():
            point = look(kinked, weights, theta)
            if not np.any(np.abs(_beyond(kinked, theta, point)) > TIE_DISTANCE * point.unit):
                return ActiveMinimiser(theta, place, sign, point)
            return None
        theta[place] = np.clip(theta[place], floor, ceiling)
    return None


def _beyond(model: FullModel, theta: NumpyArray, point: ActivePoint) -> Vector:
    """Compute the excess of ∇L over the bounds that hold each resting parameter.

    Zero for parameters that nothing holds.
    """
    if model.norms is None:
        return excess(model, theta, point.gradient, point.kappa)
    beyond = model.norms.times(point.kappa).excess(point.gradient)
    return np.where(at_rest(model, theta), beyond, 0.0)


def _descend(problem: WeightedProblem, theta: NumpyArray, tolerance: float) -> Vector:
    """Descend by Newton's method until the conditions hold to `tolerance`.

    Each step is made by coordinate descent or an active set.
    """
    kinked = problem.full_model
    norms = kinked.norms
    point: ActivePoint
    # gradient, relative to a_j, below which a parameter stays at zero in a round
    kept_at_zero = 0.5
    max_active_share = 0.5  # share of the parameters above which a round takes all of them

    def evaluate(thetas: NumpyArray, lanes: Lanes) -> TwoArrays:
        nonlocal point
        point = look(kinked, problem.weights, thetas[0])
        return np.array([point.value]), thetas

    def propose(state: LaneState, lanes: Lanes) -> Proposal:
        theta = state.theta[0]
        held = at_rest(kinked, theta)
        penalty_slope = point.a * np.sign(theta) + (
            0.0 if norms is None else point.kappa * norms.pull(theta)
        )
        slope = np.where(held, _beyond(kinked, theta, point), point.gradient + penalty_slope)
        largest = float(point.a.max() if norms is None else point.kappa * norms.weight.max())
        size = point.gradient if norms is None else norms.spread(norms.lengths(point.gradient))
        places = np.flatnonzero(
            ~held | (np.abs(size) >= kept_at_zero * (point.a if norms is None else point.unit))
        )
        if not (len(places) < max_active_share * len(theta)):
            places = np.arange(len(theta))
        step = np.zeros(len(theta))
        holds = np.all(np.abs(slope) <= tolerance * (point.unit if largest == 0 else largest))
        if not holds:
            new = _quadratic_step(problem, places, theta[places], point, tolerance)
            step[places] = theta[places] - new
        rise = _worth(kinked, theta - step) - _worth(kinked, theta)
        fall = max(float(point.gradient @ step - point.kappa * rise), 0.0)
        return Proposal(step[None], np.array([fall]), stay=not step.any())

    falls = lambda state, value, _: value <= state.value - 1e-4 * state.share * state.length
    start = np.clip(theta, *kinked.bounds)[None]
    return iterate(evaluate, propose, start, falls, ROUNDS)[0].theta[0]


def _quadratic_step(
    problem: WeightedProblem,
    places: Indices,
    theta: OnSubset,
    point: ActivePoint,
    tolerance: float,
) -> OnSubset:
    """Minimise ½ Σ c (x (d − θ))² + ∇L (d − θ) + a |d| over d, or with a ‖d‖ for groups, between
    bounds if there are any.
    """
    kinked = problem.full_model
    low, high = (part[places] for part in kinked.bounds)
    free = kinked.norms is None and not (np.isfinite(low) | np.isfinite(high)).any()
    if isinstance(kinked, FullCox):
        full_theta = np.zeros(len(point.a))
        full_theta[places] = theta
        active_model = kinked.restrict(places, np.zeros(len(places)), full_theta)
        (gram,) = active_model.hessians(theta[None], problem.weights[None])
        free = False
    elif problem.second is not None:
        gram = _submatrix(problem.second, places)
    elif free:
        return _by_columns(kinked, places, theta, point, tolerance)
    else:
        x = kinked.smooth.design.x[:, places]
        gram = (x.T * point.curvature) @ x + np.diag(point.ridge[places])
    right = gram @ theta - point.gradient[places]
    if kinked.norms is not None:
        return descend_by_groups(
            gram, right, kinked.norms.select(places).times(point.kappa), theta, 0.1 * tolerance
        )
    if not free:
        return solve_box(gram, right, point.a[places], (low, high), theta)
    # Σ c (x θ − z)², z the working response, with θ zero outside `places`; for least squares z is
    # the response
    full_theta = np.zeros(len(point.a))
    root = np.sqrt(point.curvature)
    full_theta[places] = theta
    residual = root * kinked.smooth.design.predictors(full_theta[None])[0]
    size = float(
        np.sum(
            (residual - np.divide(point.slope, root, out=np.zeros(len(root)), where=root > 0)) ** 2
        )
    )
    solution = _by_products(gram, right, point.a[places], theta, size, tolerance)
    if solution is None:
        return _by_columns(kinked, places, theta, point, tolerance)
    return solution


def _submatrix(second: MakeArray, places: Indices) -> Float[NumpyArray, "some some"]:
    return second().take(places, axis=0).take(places, axis=1)


def _by_products(
    gram: NumpyArray,
    right: NumpyArray,
    a: NumpyArray,
    theta: NumpyArray,
    size: float,
    tolerance: float,
) -> OnSubset | None:
    """Minimise ½ dᵀ gram d − rightᵀ d + a |d| by scikit-learn's coordinate descent on products of
    columns.

    Columns without a kink are eliminated first; None if that loses too many digits. Only Σ y² of
    the rows is needed.
    """
    free = a == 0
    out = np.empty(len(a))
    free_gram = gram[np.ix_(free, free)]
    along = Curvature.of(free_gram).solve(np.column_stack([gram[np.ix_(free, ~free)], right[free]]))
    reduced_gram = gram[np.ix_(~free, ~free)] - gram[np.ix_(~free, free)] @ along[:, :-1]
    if not np.all(np.diag(reduced_gram) >= CANCELLED_PRODUCT * np.diag(gram)[~free]):
        return None
    a = a[~free]
    if len(a):
        y = np.sqrt(np.maximum([size - right[free] @ along[:, -1]], 0.0))
        out[~free] = (
            _coordinates(
                np.zeros((1, len(a))),
                y,
                theta[~free] * a,
                tolerance,
                precompute=reduced_gram / np.multiply.outer(a, a),
                Xy=(right[~free] - right[free] @ along[:, :-1]) / a,
                check_input=False,
            )
            / a
        )
    out[free] = along[:, -1] - along[:, :-1] @ out[~free]
    return out


def _by_columns(
    model: FullModel,
    places: Indices,
    theta: OnSubset,
    point: ActivePoint,
    tolerance: float,
) -> OnSubset:
    """Minimise the same by coordinate descent on the rows √c x and √ridge."""
    root = np.sqrt(point.curvature)
    free = point.a[places] == 0
    free_columns, columns = (
        _scale_columns(model, places[mask], root, point.ridge) for mask in (free, ~free)
    )
    target = np.zeros(len(columns))
    target[: len(root)] = np.divide(-point.slope, root, out=np.zeros(len(root)), where=root > 0)
    target += free_columns @ theta[free] + columns @ theta[~free]
    out = np.empty(len(places))
    a = point.a[places][~free]
    q, r = scipy.linalg.qr(free_columns, mode="economic")
    columns /= a
    across = q.T @ columns
    level = q.T @ target
    if len(a):
        if free.any():
            columns = scipy.linalg.blas.dgemm(-1.0, q, across, 1.0, columns, overwrite_c=True)
        precompute = bool(np.count_nonzero(root) + len(columns) - len(root) > len(a))
        solution = _coordinates(
            columns, target - q @ level, theta[~free] * a, tolerance, precompute=precompute
        )
        out[~free] = solution / a
        level = level - across @ solution
    out[free] = scipy.linalg.solve_triangular(r, level)
    return out


def _coordinates(
    x: NumpyArray, y: NumpyArray, start: NumpyArray, tolerance: float, **options
) -> Float[NumpyArray, " columns"]:
    """Solve scikit-learn's lasso with α chosen such that the penalty is Σ |coef|."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import lasso_path

    coordinate_sweeps = 10_000  # largest number of sweeps of coordinate descent
    options |= {
        "coef_init": start,
        "tol": min(1e-2 * tolerance, 1e-6),
        "max_iter": coordinate_sweeps,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the conditions are checked later
        return lasso_path(x, y, alphas=[1 / len(x)], **options)[1][:, 0]


def _scale_columns(model: FullModel, places: Indices, root: PerUnit, ridge: Vector) -> NumpyArray:
    """Return the columns of the rows √c x and, if there are ridges, √ridge, in column-major
    order.
    """
    x = model.smooth.design.x
    if ridge.any():
        ridge_columns = np.diag(np.sqrt(ridge))[places]
    else:
        ridge_columns = np.zeros((len(places), 0))
    out = np.empty((len(places), len(x) + ridge_columns.shape[1]))
    np.multiply(x.take(places, axis=1).T, root, out=out[:, : len(x)])
    out[:, len(x) :] = ridge_columns
    return out.T
