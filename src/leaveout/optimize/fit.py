"""The fit that every refit starts from: θ̂ = argmin F(θ, 1), its gradient, and H = ∇²F(θ̂, 1),
factored once.

`fit` minimises and ends in Newton steps; `anchor` takes a θ that another program found. Either way
H must be positive definite. The distance of θ from stationary is measured by the Newton decrement
√(gᵀH⁻¹g); half its square is the fall of F that remains.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import linalg
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from .._runtime.headed_table import HeadedTable
from .._runtime import (
    RESULTS,
    File,
    Lines,
    Module,
    NumpyArray,
    PrintedResult,
    PyTree,
    Rng,
    StepResult,
    conventional,
    float64,
    jnp,
    keeping,
    kind_of,
    pd,
    provided,
    read_or_make,
    record,
    require_memory,
    static,
    stoppable,
    warn,
)
from ..data import count
from ..linalg import Curvature, condition
from ..models.glm import AbsorbedGLM, DualGLM, is_least_squares, orthogonal_form, ridge_strengths
from ..objectives import (
    AbstractClosedForm,
    AbstractLinearPredictor,
    AbstractObjective,
    Function,
    Matrix,
    Vector,
    as_stored,
    display_name,
    function,
    leaves_of,
    map_arrays,
    ravel,
    unflatten,
)
from .active_set import above, dual_form, restrict_to_active
from .bfgs import minimise_by_information
from .hessian_factor import IndefiniteHessianError, check_finite, cholesky, coordinates, far_out
from .hessian_products import (
    decrement_of,
    minimise_by_products,
)
from .newton import Flat, Minimisation, minimise, scaled_flat, with_flat
from .null_space import unseen_directions
from .quadratic import LocalQuadratic
from .starts import (
    STARTS,
    Minima,
    alone,
    descended_from,
    distinct,
    own_start,
    starts_of,
    stored_leaves,
)

# decrements at which `anchor` warns and raises
WARN = 1e-2
REFUSE = 1.0
# share of a parameter's curvature that remains given the others; for repeated columns rounding
# leaves about 1e-15
DOUBTFUL = 1e-10
SCALAR = re.compile(r"array\(([^()\[\]]*)\)")  # a scalar array in a representation
WORDS = 60  # characters of the description of an objective's part
# parameters up to which H is formed (a gigabyte), and its factor is kept in a checkpoint (four
# megabytes)
DENSE = 12_000
KEPT_PARAMETERS = 700
MAX_HESSIAN_BYTES = 2.0**33  # bytes that forming H may take

HessianForm = Literal["auto", "dense", "products", "rows"]


@record
class HostErrors:
    """The standard errors that a host prints.

    Arguments of `covariance`, the scale φ of a model-based one, and t's d.o.f.
    """

    cov_type: str = "nonrobust"
    scale: float = 1.0
    dof: float | None = None
    groups: Any = None
    maxlags: int | None = None
    use_correction: bool | None = None
    cases: bool = False

    def __eq__(self, other: object) -> bool:
        """Return True for any others: compiled programs ignore them."""
        return isinstance(other, HostErrors)

    def __hash__(self) -> int:
        return hash(HostErrors)


class Fit(Module, PrintedResult):
    """Objective with its stationary point θ̂ and the factor of its curvature there.

    `fit`, `anchor` and the functions that read other libraries' fits return it. It is frozen, and
    holds NumPy arrays.

    Attributes
    ----------
    objective : AbstractObjective
        The model with its data.
    theta : pytree of arrays
        θ̂, unconstrained; `parameters` has it in natural parameters.
    value : float
        F(θ̂, 1).
    gradient : array of float, shape (params,)
        ∇F(θ̂, 1), about zero.
    decrement : float
        √(gᵀH⁻¹g).
    result : int
        A code of `RESULTS`.
    quadratic : LocalQuadratic
        F about θ̂, which refits step in.
    minima : Minima
        Distinct minima that the starts of `fit` reached, this one first.
    host_errors : HostErrors or None
        The kind of standard errors that the host of the fit prints, which is the default of
        `covariance`.

    See Also
    --------
    fit : Minimise F.
    cross_validate : Refit without each fold.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> fit = lo.fit(lo.GLM(X, [1.0, 2.0, 2.0, 4.0], "squared"))
    >>> np.round(fit.parameters["coef"], 3), round(float(fit.parameters["intercept"]), 3)
    (array([0.9]), 0.9)
    >>> fit.rank
    2
    """

    quadratic: LocalQuadratic
    value: Float[NumpyArray, ""]
    gradient: Vector
    decrement: Float[NumpyArray, ""]
    result: Int[NumpyArray, ""]
    minima: Minima = static()  # distinct minima that the starts of `fit` reached, this one first
    host_errors: HostErrors | None = static(default=None)
    # is sent to another process once, whatever is computed from it
    __sent_alone__: ClassVar[bool] = True

    @property
    def objective(self) -> AbstractObjective:
        """The model with its data."""
        return self.quadratic.objective

    @property
    def theta(self) -> PyTree:
        """θ̂, unconstrained; `parameters` has it in natural parameters."""
        return self.quadratic.theta

    @property
    def vector(self) -> Vector:
        """θ̂ as one vector."""
        return self.quadratic.vector

    @property
    def parameters(self) -> PyTree:
        """θ̂ in natural parameters, as named arrays."""
        return _natural(self)

    @property
    def coef(self) -> "pd.Series":
        """θ̂ in natural parameters, one number each, by name."""
        return provided("fit_answers").coefficients(self)

    @conventional
    def summary(
        self, level: float = 0.95, *, kind: str | None = None, groups: ArrayLike | None = None
    ) -> "HeadedTable":
        """Tabulate the natural parameters with the standard errors of the model's field, or of
        another kind.

        Parameters
        ----------
        level : float, default 0.95
            The coverage of the intervals.
        kind : str, optional
            Standard errors of another kind, such as "HC3" or "cluster", as in `covariance`.
        groups : array_like, `[units]`, optional
            The labels of the clusters.

        Returns
        -------
        DataFrame
            One row a parameter: `coef`, `std err`, `t` or `z`, the p-value, and the ends of the
            interval. Its printed head says which standard errors these are, and their degrees of
            freedom. Where there are none, as for a lasso, it has `coef` alone, and says why.

        See Also
        --------
        covariance : The covariance of each kind, which has `summary()` too.

        Examples
        --------
        >>> import leaveout as lo
        >>> fit = lo.fit(lo.GLM([[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 2.0, 4.0], "squared"))
        >>> print(fit.summary().iloc[:, :3])
        standard errors    nonrobust: model-based, by the observed information
        clusters           none
        degrees of freedom 2, Student's t
                   coef  std err     t
        x0          0.9   0.2646 3.402
        intercept   0.9    0.495 1.818
        """
        return provided("fit_answers").summary(self, level, kind, groups)

    def covariance(
        self, kind: str | None = None, *, groups: ArrayLike | None = None, **options: Any
    ) -> Any:
        """Estimate the covariance of the natural parameters, as `leaveout.covariance` does.

        Parameters
        ----------
        kind : str, optional
            Such as "HC3", "cluster" or "jackknife"; by default "cluster" with `groups`, else that
            of the model's field.
        groups : array_like, `[units]`, optional
            The labels of the clusters.
        **options
            The other arguments of `leaveout.covariance`.

        Returns
        -------
        Covariance
            The covariance, with `standard_errors` and `summary()`.

        Examples
        --------
        >>> import leaveout as lo
        >>> fit = lo.fit(lo.GLM([[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 2.0, 4.0], "squared"))
        >>> fit.covariance("HC1").standard_errors.round(3).tolist()
        [0.203, 0.213]
        """
        return provided("covariance").covariance(self, kind, groups=groups, **options)

    @conventional
    def predict(
        self, X_new: Any, kind: str | None = None, *, offset: ArrayLike | None = None
    ) -> Any:
        """Predict the response of new rows, as `leaveout.predict` does.

        Parameters
        ----------
        X_new : array_like, `[rows, features]`, or DataFrame
            New rows, as the data of the fit were.
        kind : {"response", "link", "label", "state"}, optional
            What is predicted; the first that the model has by default.
        offset : array_like, `[rows]`, optional
            The offsets of the new rows, where the model has one.

        Returns
        -------
        Series or DataFrame
            One prediction a row, or one column a class, under the labels of `X_new`.

        Examples
        --------
        >>> import leaveout as lo
        >>> fit = lo.fit(lo.GLM([[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 2.0, 4.0], "squared"))
        >>> fit.predict([[10.0]]).round(6).tolist()
        [9.9]
        """
        return provided("predict").predict(self, X_new, kind, offset=offset)

    @property
    def num_params(self) -> int:
        """Number of parameters."""
        return len(self.gradient)

    @property
    def rank(self) -> int:
        """Number of directions of θ, and of absorbed effects, that data and penalties determine.

        `num_params` less the flat ones.
        """
        model = self.objective
        # rows in place of columns
        number = 0
        if isinstance(model, DualGLM):
            number = model.outputs * (len(model.as_given.names) - len(model.names))
        if isinstance(model, AbsorbedGLM):
            number = model.columns.shape[0]
        return self.num_params + number - len(self.quadratic.null_space)

    @property
    def hessian(self) -> Matrix:
        """Hessian `H = ∇²F(θ̂, 1)`. Raises `ValueError` if it is too large to be formed."""
        factor = self.quadratic.factor
        if factor is None:
            raise ValueError(
                f"Fit.hessian: a matrix of {self.num_params} by {self.num_params} is not formed; use Fit.solve."
            )
        return factor @ factor.T - self.quadratic.null_space.T @ self.quadratic.null_space

    @float64
    def solve(self, vector: Float[NumpyArray, "params ..."]) -> Float[NumpyArray, "params ..."]:
        """Compute `H⁻¹ vector`, from the stored factor or by conjugate gradients; nothing along
        flat directions.

        Parameters
        ----------
        vector : array of float, shape (params,) or (params, columns)
            Right side.

        Returns
        -------
        array of float
            The solution, in the shape of `vector`.
        """
        return self.quadratic.solve(vector)

    def __repr__(self) -> str:
        return (
            f"Fit({kind_of(self.objective)}, {self.objective.num_units} units, "
            f"{self.num_params} parameters{self._of_rank}, decrement {self.decrement:.1e}{self._agreement()})"
        )

    def _facts(self) -> Lines:
        names = self.objective.parameters.names() or provided("fit_answers").natural_names(self)
        printed_parameters = 12  # names of parameters in a printed fit
        shown = ", ".join(names[:printed_parameters])
        if len(names) > printed_parameters:
            shown += ", …"
        return [
            ("model", f"{display_name(self.objective)}, {self.objective.num_units} units"),
            ("made of", self._settings),
            ("parameters", f"{self.num_params}{self._of_rank}: {shown}"),
            ("minimum", f"F = {float(self.value):.6g}, decrement {float(self.decrement):.1e}"),
            ("starts", self._agreement().removeprefix(", ")),
            ("note", self.objective.note),
        ]

    @property
    def _settings(self) -> str:
        """Loss, penalty or emission of the objective, in words.

        By its name alone if it takes many.
        """
        parts = {
            name: part for name, part in vars(self.objective).items() if isinstance(part, Module)
        }
        texts = {
            name: SCALAR.sub(r"\1", repr(part))
            for name, part in parts.items()
            if name != "original"
        }
        short = {
            name: text if len(text) <= WORDS else kind_of(parts[name])
            for name, text in texts.items()
            if "\n" not in text
        }
        return ", ".join(f"{name}={text}" for name, text in short.items())

    @property
    def _of_rank(self) -> str:
        """Rank, in words, if the data leave directions undetermined that are not symmetries of the
        model; else "".
        """
        num_symmetries = len(self.objective.parameters.symmetries(self.theta))
        if len(self.quadratic.null_space) > num_symmetries:
            return f" of rank {self.num_params - len(self.quadratic.null_space) + num_symmetries}"
        return ""

    def _agreement(self) -> str:
        """Number of starts that reached this minimum, in words."""
        if self.minima.starts < 2:
            return ""
        num_others = len(self.minima.value) - 1
        text = ""
        if num_others == 1:
            text = ", 1 other minimum"
        elif num_others:
            text = f", {num_others} other minima"
        return f", reached from {self.minima.reached[0]} of {self.minima.starts} starts{text}"


def uncached(fit: Fit) -> Fit:
    """Return the fit without the results that its refits cache beside it."""
    return replace(fit, quadratic=replace(fit.quadratic))


@float64
def _natural(fit: Fit) -> PyTree:
    closed = fit.quadratic.predictors is not None or isinstance(fit.objective, AbstractClosedForm)
    convert = np.array if closed else jnp.asarray
    natural = fit.objective.parameters.natural(map_arrays(convert, fit.theta))
    return map_arrays(np.asarray, natural)


@conventional
@float64
def fit(
    objective: AbstractObjective,
    theta0: PyTree = None,
    *,
    num_starts: int | None = None,
    rng: Rng = 0,
    curvature: HessianForm = "auto",
    checkpoint: File | None = None,
) -> Fit:
    """Minimise `F(·, 1)` and factor its curvature at the minimum.

    The method is Newton's with a line search, preceded by BFGS if F is not convex or a Hessian
    costs many gradients. An `HMM` goes down by L-BFGS in the coordinates of the complete data's
    Hessian, which is expectation–maximisation with memory, and by Newton steps as soon as these
    contract. Beyond 2,000 parameters few Hessians are formed; between them L-BFGS goes on in
    coordinates in which the last one is the identity.

    The lowest minimum is the fit, whichever start led there. `Fit.minima` has all minima found, and
    `cross_validate` compares refits at them. For a particular basin give its θ as `theta0`, with
    `num_starts=1`.

    If rows and penalty of a convex model of linear predictors leave directions undetermined
    (repeated columns, p > n), the minimiser of least norm is taken, without the intercept in the
    norm; `Fit.rank` counts the directions that are determined. Probabilities of a hidden Markov
    model and variances of a mixed model whose maximum likelihood is at zero are held there, with a
    warning. Coefficients that an l1 penalty puts at zero are held there too. The fit's `objective`
    is then the model that holds them.

    Parameters
    ----------
    objective : AbstractObjective
        The model with its data.
    theta0 : pytree of arrays, optional
        First start, in natural parameters; by default the objective's own.
    num_starts : int, optional
        Number of starts; by default four, or one beyond 2,000 parameters, and for a mixed model
        unless that ends at a boundary. A convex F always has one.
        Starts run side by side on the available cores, or on joblib's workers. Starts after the
        first are the objective's own, drawn with `seed`. If it does not draw, they are drawn around
        the first, so far off that F would rise by about half a nat a unit.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    curvature : {"auto", "dense", "products", "rows"}, default: "auto"
        "dense" factors H; "products" uses conjugate gradients on products with H; "auto" does the
        latter beyond 12,000 parameters, and a matrix over the rows, as "rows" does, for a `GLM`
        under a `Ridge` of 500 columns or more than rows.
    checkpoint : str or path, optional
        File that keeps what is done, so that a killed call goes on.

    Returns
    -------
    Fit
        The fit.

    Raises
    ------
    RuntimeError
        If no minimiser is reached, as under complete separation.
    IndefiniteHessianError
        If the data do not determine every parameter otherwise.
    ValueError
        If `checkpoint` belongs to another run.
    Interrupted
        On Ctrl-C.

    See Also
    --------
    anchor : Take parameters that another program found.
    from_sklearn, from_statsmodels : Take a fitted model of another library.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 2))
    >>> y = X[:, 0] + rng.standard_normal(40) > 0
    >>> fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    >>> fit.objective.num_units, fit.num_params
    (40, 3)
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> len(cv.losses)
    40
    """
    seed = count("fit: rng", rng, 0)
    objective, theta0 = restrict_to_active(
        dual_form(_check_objective(objective, "fit"), curvature, "fit"), theta0
    )
    if num_starts is not None:
        num_starts = count("fit: num_starts", num_starts, 1)
    identity = {
        "model or data": objective,
        "theta0": theta0,
        "num_starts": num_starts,
        "seed": seed,
        "curvature": curvature,
    }
    with stoppable("fit"), keeping("fit", checkpoint, identity):
        return _without_cancellation(
            objective, lambda model: _lowest(model, theta0, num_starts, seed, curvature)
        )


def _without_cancellation(objective: AbstractObjective, make: Callable[[Any], Fit]) -> Fit:
    """Make a fit, in other coordinates where float64 loses digits in those of the columns as given
    (`OrthogonalGLM`).
    """
    try:
        fitted = make(objective)
        alternative = None
        if _is_crowded(fitted):
            alternative = orthogonal_form(objective)
    except (RuntimeError, ValueError):
        alternative = orthogonal_form(objective)
        if alternative is None:
            raise
    return fitted if alternative is None else make(alternative)


def _is_crowded(fitted: Fit) -> bool:
    """Tell whether columns of least squares are so nearly collinear, or far from zero, that refits
    lose digits.
    """
    if fitted.quadratic.factor is None or not is_least_squares(fitted.objective):
        return False
    # ‖|L⁻¹| s‖² of a column, from which its rounding errors reach 10⁻¹⁰ of a loss
    crowded_condition = 1e4
    size = condition(fitted.quadratic.root, linalg.norm(fitted.quadratic.factor, axis=1))
    return float(size) > crowded_condition * fitted.num_params


def _lowest(
    objective: AbstractObjective,
    theta0: PyTree,
    num_starts: int | None,
    seed: int,
    curvature: HessianForm,
) -> Fit:
    """Fit at the lowest minimum that a start reaches."""
    starts: list[PyTree] = []

    def start() -> StepResult:
        """Return the starts and, if H is formed, the directions in which F never changes."""
        starts[:] = starts_of(objective, theta0, num_starts, seed)
        if _by_products(objective, starts[0], curvature, "fit"):
            flat = None
        else:
            flat = _known_flat(objective, starts[0])
        if flat is not None and len(flat) > len(objective.parameters.symmetries(starts[0])):
            # the start of least norm, which steps preserve
            starts[:] = [stored_leaves(own_start(objective, seed))]
        record = {"starts": np.stack([np.asarray(ravel(start)) for start in starts])}
        return record if flat is None else record | {"flat": flat}

    def descend(F: Function, start: NumpyArray) -> Minimisation:
        if flat is None:
            return minimise_by_products(objective, F, start)
        if isinstance(objective, AbstractClosedForm):
            solution = minimise_by_information(objective, F, start)
            if solution.converged:
                return solution
            start = solution.theta
        return minimise(objective, F, start, np.ones(objective.num_units), flat)

    record = read_or_make(start)
    if not starts:
        (like,) = starts_of(objective, theta0, 1, seed)
        starts = [unflatten(start, like) for start in record["starts"]]
    flat = record.get("flat")
    runs = descended_from(
        [np.asarray(ravel(start)) for start in starts], function(objective, starts[0]), descend
    )
    single = num_starts is None and objective.parameters.usual_starts == 1
    # if a single start ends at a boundary or no minimum
    with_more_starts = lambda: _lowest(objective, theta0, STARTS, seed, curvature)
    try:
        fitted = _fit_at_end(objective, runs[0], starts[0], flat)
        bounded = objective.parameters.held(fitted.theta)
        if single and (bounded is not None or objective.parameters.warning(fitted.theta)):
            return with_more_starts()
    except (RuntimeError, IndefiniteHessianError) as error:
        if single:
            return with_more_starts()
        bounded = objective.parameters.held(
            objective.parameters.canonical(unflatten(runs[0][1], starts[0]))
        )
        if bounded is None:
            runs = [run for run in runs[1:] if run[2] and np.isfinite(run[0])]
            if not runs:
                raise
            fitted = _fit_at_end(objective, runs[0], starts[0], flat)
            warn(
                f"{error} Of {len(starts)} starts this one went lowest; the lowest minimum of the others is taken."
            )
    if bounded is not None:
        simpler, parameters, message = bounded
        warn(f"fit: {message}")
        return fit(simpler, parameters, num_starts=1, curvature=curvature)
    warn(objective.parameters.warning(fitted.theta))
    return replace(fitted, minima=distinct(objective, runs, starts[0], len(starts)))


def _known_flat(objective: AbstractObjective, theta: PyTree) -> Flat:
    """Return the directions in which F never changes.

    Search for them if H at θ may have more than the symmetries.
    """
    symmetries = np.asarray(objective.parameters.symmetries(theta), float)
    if not (isinstance(objective, AbstractLinearPredictor) and objective.convex):
        return symmetries
    hessian = function(objective, theta).hessian(np.asarray(ravel(theta)))
    curvature = Curvature.of(with_flat(hessian, symmetries), DOUBTFUL)
    if curvature.definite and not getattr(objective, "cut", 0.0):
        return symmetries
    return unseen_directions(objective, theta)


def _separating_column(objective: AbstractObjective) -> str:
    """Name a column whose values in one class are all on one side of those in the others.

    Empty if there is none.
    """
    units = objective.units
    if not units.classes or units.target is None or units.features is None:
        return ""
    for name, column in units.features().items():
        for kind in np.unique(units.target):
            inside = column[units.target == kind]
            outside = column[units.target != kind]
            if (
                np.ptp(column)
                and outside.size
                and (inside.min() >= outside.max() or inside.max() <= outside.min())
            ):
                return name
    return ""


def _fit_at_end(
    objective: AbstractObjective, run: Minimisation, like: PyTree, flat: Flat | None
) -> Fit:
    """Fit at the end of a descent; raise if that is not a minimum."""
    value, vector, converged = run
    theta = map_arrays(np.asarray, objective.parameters.canonical(unflatten(vector, like)))
    if flat is None or len(vector) > KEPT_PARAMETERS:
        fitted = anchored_at(objective, theta, "fit", flat)
    else:
        fitted = _build_fit(
            objective,
            theta,
            read_or_make(lambda: _evaluate_curvature(objective, theta, "fit", flat)),
        )
    if not converged and not (fitted.decrement <= WARN and _has_minimiser(objective)):
        name = kind_of(objective)
        largest = np.abs(vector).max(initial=0)
        if fitted.decrement > WARN:
            problem = f"no minimiser of {name} was reached by Newton's method "
            problem += f"(F = {float(value):.6g}, decrement {fitted.decrement:.2g})"
        else:
            problem = f"the parameters of {name} run away (largest {largest:.3g}) while the loss hardly falls"
        cause = far_out(objective) or objective.parameters.warning(fitted.theta)
        if cause:
            raise RuntimeError(f"fit: {problem}. {cause}")
        if objective.convex and (
            fitted.decrement > WARN or largest > 1e3 or fitted.decrement < 1e-6
        ):
            problem += ": are the data perfectly separated, or a class or group missing"
            target = objective.units.target
            column = _separating_column(objective)
            if column:
                problem += f" (the column {column!r} alone separates the classes)"
            if target is not None and np.ptp(target) == 0:
                problem += f" (the response is {target[0]:g} in every unit)"
            problem += "?"
        way = "Add a penalty (a prior), such as lo.penalties.Ridge(1.0), or give another start, fit(..., theta0=)."
        raise RuntimeError(f"fit: {problem}{'' if problem.endswith('?') else '.'} {way}")
    return fitted


def _has_minimiser(objective: AbstractObjective) -> bool:
    """Tell whether a ridge on every coefficient, and responses that differ, keep all parameters
    finite.
    """
    ridge = ridge_strengths(getattr(objective, "as_given", objective))
    target = objective.units.target
    return ridge is not None and target is not None and np.ptp(target) > 0


@float64
def anchor(
    objective: AbstractObjective,
    theta: PyTree,
    *,
    throw: bool = True,
    curvature: HessianForm = "auto",
    damping: float = 0.0,
) -> Fit:
    """Make a `Fit` at parameters that were found elsewhere.

    Every approximation inherits H⁻¹ times the leftover gradient, so a decrement above 0.01 is
    warned of. Under a penalty with kinks or bounds, √(2 (F(θ) − min F)) counts as a decrement too,
    as θ is not kept for parameters that these hold.

    Parameters
    ----------
    objective : AbstractObjective
        The model with its data.
    theta : pytree of arrays
        Natural parameters, in the form of `fit.parameters`.
    throw : bool, default: True
        Whether a decrement above 1 raises an error rather than a warning.
    curvature : {"auto", "dense", "products", "rows"}, default: "auto"
        As in `fit`.
    damping : float, default: 0
        A number that is added to the diagonal of H, in unconstrained parameters, where H is
        indefinite as far from a minimum. Every step from the fit then uses H + damping · I in place
        of H; F itself, and so refits to the end, are as without.

    Returns
    -------
    Fit
        The fit at θ.

    Raises
    ------
    ValueError
        If `theta` is not stationary: its decrement is above 1. If `damping` is negative, or the
        model is one of linear predictors, whose proofs need H itself.
    IndefiniteHessianError
        If H + damping · I is not positive definite.

    See Also
    --------
    fit : Minimise F.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> model = lo.GLM(np.array([[0.0], [1.0], [2.0], [3.0]]), [1.0, 2.0, 2.0, 4.0], "squared")
    >>> fit = lo.anchor(model, {"intercept": np.array(0.9), "coef": np.array([0.9])})
    >>> bool(fit.decrement < 1e-8)
    True
    """
    if damping:
        if not (np.isfinite(damping) and damping > 0):
            raise ValueError(f"anchor: damping must be 0 or a positive number; got {damping!r}.")
        if isinstance(objective, AbstractLinearPredictor):
            raise ValueError(
                f"anchor: damping={damping:g}, but proofs for {kind_of(objective)} need H itself. Its H is indefinite at "
                "no θ, unless the loss is not convex; lo.penalties.Ridge(...) keeps it away from singular."
            )
    fitted, remainder = standing(objective, theta, curvature, damping)
    if remainder > WARN:
        message = describe_distance(objective, remainder)
        if remainder > REFUSE and throw:
            raise ValueError(message + " anchor(..., throw=False) takes it as it is.")
        warn(message)
    warn(objective.parameters.warning(fitted.theta))
    return fitted


@float64
def standing(
    objective: AbstractObjective,
    theta: PyTree,
    curvature: HessianForm = "auto",
    damping: float = 0.0,
) -> tuple[Fit, float]:
    """Return the fit at a θ found elsewhere, and its decrement."""
    full_model = dual_form(_check_objective(objective, "anchor"), curvature, "anchor")
    objective, least = restrict_to_active(full_model, theta)
    leaves = stored_leaves(objective.parameters.unconstrained(theta))
    if (bounded := objective.parameters.held(leaves)) is not None:
        objective, theta, message = bounded
        warn(f"anchor: {message}")
    fallen = above(full_model, theta, least)

    def make(model: AbstractObjective) -> Fit:
        leaves = stored_leaves(model.parameters.unconstrained(theta))
        if _by_products(model, leaves, curvature, "anchor"):
            if damping:
                raise ValueError(
                    f"anchor: damping={damping:g} is added to the diagonal of H, which is not formed here; "
                    'curvature="dense" forms it.'
                )
            flat = None
        else:
            flat = _known_flat(model, leaves)
        return anchored_at(model, leaves, "anchor", flat, damping)

    fitted = _without_cancellation(objective, make)
    return fitted, max(float(fitted.decrement), np.sqrt(2 * fallen))


def describe_distance(objective: AbstractObjective, remainder: float) -> str:
    """Explain in a message how far a θ is from stationary, and what to do."""
    return (
        f"anchor: theta is not stationary for {kind_of(objective)}: the decrement √(gᵀH⁻¹g) is "
        f"{remainder:.3g} (the loss would still fall by about {remainder**2 / 2:.2g}). Was it fitted on "
        "these data, with this penalty and these weights? If its solver only stopped early, go on from it: "
        "lo.fit(objective, theta0=theta)."
    )


def _check_objective(objective: AbstractObjective, caller: str) -> AbstractObjective:
    if not isinstance(objective, AbstractObjective):
        raise TypeError(
            f"{caller}: the first argument must be an objective such as lo.GLM(...) or lo.Objective(...); "
            f"got {kind_of(objective)}. What another library fitted is read by lo.from_sklearn, lo.from_statsmodels and the like."
        )
    return objective


def _by_products(
    objective: AbstractObjective, theta: PyTree, curvature: HessianForm, caller: str
) -> bool:
    """Tell whether H is left unformed."""
    if curvature not in ("auto", "dense", "products", "rows"):
        raise ValueError(
            f'{caller}: curvature must be "auto", "dense", "products" or "rows"; got {curvature!r}.'
        )
    size = sum(map(np.size, leaves_of(theta)))
    auto = curvature == "auto" and (size > DENSE or objective.costs.formed > MAX_HESSIAN_BYTES)
    if auto or curvature == "products":
        return True
    require_memory(
        caller,
        8.0 * size**2,
        f"the Hessian of {size:,} parameters",
        "curvature='products' forms none",
    )
    return False


def column_curvature(objective: Any) -> HessianForm:
    """Return the `curvature` under which rows do not take the place of columns, as derivatives in
    the penalty ask for.
    """
    if ridge_strengths(objective) is None:
        return "auto"
    if objective.num_features <= DENSE:
        return "dense"
    return "products"


def anchored_at(
    objective: AbstractObjective,
    theta: PyTree,
    caller: str,
    flat: Flat | None,
    damping: float = 0.0,
) -> Fit:
    """Fit at θ without the directions that are known to be flat.

    By Hessian products if `flat` is None.
    """
    theta = map_arrays(np.asarray, theta)
    if flat is not None:
        result = _evaluate_curvature(objective, theta, caller, flat, damping)
        fitted = _build_fit(objective, theta, result)
        return replace(fitted, quadratic=replace(fitted.quadratic, damping=damping))
    F = function(objective, theta)
    vector = np.asarray(ravel(theta))
    value, gradient = F.look(vector)
    check_finite(objective, theta, caller, value, gradient)
    scaling, null_space = coordinates(objective, F, vector, caller)
    decrement = decrement_of(F, scaling, null_space, vector, gradient)
    parts = None, scaling, null_space
    return _build_anchor(objective, theta, value, gradient, parts, decrement)


def _evaluate_curvature(
    objective: AbstractObjective, theta: PyTree, caller: str, flat: Flat, damping: float = 0.0
) -> StepResult:
    """Compute F at θ, its gradient, and a factor of its Hessian, damped."""
    F = function(objective, theta)
    vector = np.asarray(ravel(theta))
    value, gradient = F.look(vector)
    hessian = F.hessian(vector) + damping * np.eye(len(vector))
    check_finite(objective, theta, caller, value, gradient, hessian)
    null_space = as_stored(scaled_flat(flat, hessian))
    # F depends on these directions, but the host's fit ignores them
    if len(null_space) and getattr(objective, "cut", None):
        gradient = gradient - null_space.T @ (linalg.pinv(null_space).T @ gradient)
    if len(null_space):
        hessian += null_space.T @ null_space
    return {
        "value": np.asarray(value),
        "gradient": np.asarray(gradient),
        "null_space": null_space,
        "factor": cholesky(hessian, objective, theta, caller),
    }


def _build_fit(objective: AbstractObjective, theta: PyTree, result: StepResult) -> Fit:
    """Build a fit from F, its gradient and the factor of its Hessian."""
    # so that none is in memory twice
    gradient, factor, null_space = (
        as_stored(result.pop(name)) for name in ("gradient", "factor", "null_space")
    )
    whitener = as_stored(scipy.linalg.lapack.dtrtri(factor, lower=1)[0])
    decrement = float(linalg.norm(whitener @ gradient))
    parts = factor, whitener, null_space
    return _build_anchor(objective, theta, result["value"], gradient, parts, decrement)


def _build_anchor(
    objective: AbstractObjective,
    theta: PyTree,
    value,
    gradient,
    parts: tuple[Any, Any, Any],
    decrement: float,
) -> Fit:
    value = np.asarray(value)
    result = RESULTS.successful if decrement <= WARN else RESULTS.not_converged
    return Fit(
        LocalQuadratic(objective, theta, *parts),
        value,
        gradient,
        np.asarray(decrement),
        np.asarray(result),
        alone(value, theta),
    )
