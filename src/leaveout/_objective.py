"""What is minimised: one weighted objective `F(θ, w)`, bound to its data.

    F(θ, w) = −log p(data; θ, w) − log p(θ),      w = 1 is the full fit, w_n = 0 leaves unit n out.

An objective is a pytree of float64 arrays, so that a second data set of the same shape, or another value of a hyperparameter,
compiles nothing anew. Its author writes `loss`; everything else has a default and is overridden where the model knows better.
"""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ._design import Predictors
from ._jax import Array, Arrays as Arrays, Module, PyTree, Scalar, float64 as float64, jax, jnp, static, traced
from ._printed import kind_of
from ._read import Names, matched, numbers, on_device
from ._resident import is_finite

LINE = 64  # bytes


def room(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """An array, to be filled, that begins at a cache line: JAX then uses it where it is in every call."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def aligned(value: Any) -> np.ndarray:
    """A copy that begins there."""
    array = np.asarray(value)
    out = room(array.shape, array.dtype)
    out[...] = array
    return out


def stored(value: Any) -> np.ndarray:
    """A float64 array as we keep it."""
    return aligned(np.asarray(value, np.float64))


def leaves_of(theta: PyTree) -> list:
    """The arrays of a tree; of an array alone, as linear models have, without JAX."""
    return [theta] if isinstance(theta, np.ndarray) else jax.tree.leaves(theta)


def mapped(function: Callable, theta: PyTree) -> PyTree:
    """A tree of what a function makes of the arrays of one; without JAX of those of linear models, an array or a dict."""
    if isinstance(theta, np.ndarray | np.generic):
        return function(theta)
    if type(theta) is dict:
        return {name: mapped(function, theta[name]) for name in sorted(theta)}
    return jax.tree.map(function, theta)


def ravel(theta: PyTree) -> Any:
    """The arrays of a tree in one, `[params]`."""
    return theta.ravel() if isinstance(theta, np.ndarray) else jax.flatten_util.ravel_pytree(theta)[0]


def unravel(vector: Float[Array, " params"], like: PyTree) -> PyTree:
    """The vector in the shape of `like`: a template passed as data, since a stored closure would recompile."""
    return jax.flatten_util.ravel_pytree(like)[1](vector)


def placed(vector: np.ndarray, like: PyTree) -> PyTree:
    """The same outside compiled code, by NumPy: JAX would run a program for every leaf."""
    if isinstance(like, np.ndarray):
        return vector if like.ndim == 1 else vector.reshape(like.shape)
    leaves, tree = jax.tree.flatten(like)
    parts = np.split(vector, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    return jax.tree.unflatten(tree, [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)])


class Blocks(NamedTuple):
    """Blocks of one size on the diagonal of a matrix over the raveled parameters, and the entries that each is of."""

    entries: Int[Array, "blocks size"]
    matrices: Float[Array, "blocks size size"]


def _same(theta: PyTree) -> PyTree:
    return theta


def _sizes(theta: PyTree) -> int:
    return sum(np.size(leaf) for leaf in leaves_of(theta))


LOG_DENSITY, LOG_PROBABILITY = "−log density", "−log probability"  # scores that are normalised


class Distribution(NamedTuple):
    """What a model predicts of a response beside its mean: its dispersion in refits, of (rows, raveled θ `[refits, params]`)
    `[refits, 1]`; scores by name, of mean, dispersion and y; and what is to be said of them."""

    dispersion: Callable[[Any, np.ndarray], np.ndarray]
    scores: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]]
    said: str = ""


@dataclass(frozen=True)
class Units:
    """What a model knows of the units that it can leave out; an array has one entry a unit."""

    names: Any = None  # the caller's labels, a pandas index
    serial: bool | None = False  # do neighbours depend on one another, so that standard errors must go by blocks? None: unknown
    blocks: Int[np.ndarray, " units"] | None = None  # of neighbours, where these are not the next in order
    observed: Bool[np.ndarray, " units"] | None = None  # which have an observation; the others are never scored
    # (refits, units, weights) of left-out entries -> which have a loss there, where that depends on what else is left out
    scorable: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None
    weight: Float[np.ndarray, " units"] | None = None  # in the mean loss, where units differ
    target: Float[np.ndarray, " units"] | None = None  # what predictions are measured against
    response: np.ndarray | None = None  # what losses are of, where that is not `target`
    kinds: tuple[str, ...] = ("response", "link")  # of predictions
    classes: int = 0  # of the target, where it is the number of one
    distribution: Callable[[], Distribution | None] = lambda: None  # of the target, where one is asked for
    # (fit, data of other units, kind, offset) -> their predictions, where the model has some
    predict_new: Callable[[Any, Any, str, Any], Any] | None = None
    features: Callable[[], Mapping[str, np.ndarray]] = dict  # columns of numbers by name, of rows
    score: str = ""  # what a held-out loss is: `LOG_DENSITY`, `LOG_PROBABILITY`, or what else; "" where that is not known

    @property
    def repeatable(self) -> bool:
        """Is a weight of two a unit seen twice? Where units depend on one another it only sharpens F."""
        return not self.serial

    def scored(
        self, refit: Int[np.ndarray, " entries"], index: Int[np.ndarray, " entries"], weight: Float[np.ndarray, " entries"]
    ) -> Bool[np.ndarray, " entries"]:
        """Which of the units that refits leave out, by the numbers of refits and units, have a loss there."""
        found = np.ones(len(index), bool) if self.observed is None else np.asarray(self.observed)[index]
        return found if self.scorable is None else found & self.scorable(refit, index, weight)


@dataclass(frozen=True)
class Parameters:
    """How θ is read, started and spoken of: functions, each with a default for models that have nothing to say.

    `natural(theta)`           θ as users see it: rates, probabilities, coefficients; traceable by JAX
    `unconstrained(natural)`   its inverse
    `start(seed)`              a start for `fit`; None where the user gives one
    `canonical(theta)`         θ with interchangeable parts (states) in a standard order
    `names()`                  of the raveled parameters, for messages; may be empty
    `symmetries(theta)`        `[flat, params]`, orthonormal directions in which F never changes: projected out of every solve
    `penalty_curvature(theta)` `[params]`, what a penalty adds to the diagonal of ∇²F(θ, 1): scales H where it is not formed
    `shares(theta)`            `[units, parts]`, of how many observations a unit speaks for each part of the model (a state, a
                               class), or None: a refit that is left less than half an observation of one is flagged
    `warning(theta)`           what a user should know of a fit that came out there: parameters on a boundary, idle states
    `limit(theta)`             why F has no minimum where a fit came out: a value that no parameter reaches; "" where it has
    `at_limit(theta)`          θ `[params]` that is on its way there, with what runs put so near to the limit that losses are
                               those of the limit: it stays there, and a refit is finished in the others
    `held(theta)`              where a fit ran to a boundary: the model that holds parameters there, natural parameters to
                               start it from, and what it holds, in words; else None
    `leaving(objective, like, thetas, weights)`  of some refits, raveled θ `[refits, params]` and `[refits, units]`: would F
                               fall if a parameter that the fit holds on a boundary left it? None where none is held
    `kinks()`                  what `_kinks` needs to know of a penalty that has some; None where F is smooth
    `by_rows()`                the same model in as many coordinates as there are units; None where there is no such form
    """

    natural: Callable[[PyTree], PyTree] = _same
    unconstrained: Callable[[PyTree], PyTree] = _same
    start: Callable[[int], PyTree] | None = None
    canonical: Callable[[PyTree], PyTree] = _same
    names: Callable[[], list[str]] = list
    symmetries: Callable[[PyTree], Float[np.ndarray, "flat params"]] = lambda theta: np.zeros((0, _sizes(theta)))
    penalty_curvature: Callable[[PyTree], Float[Array, " params"]] = lambda theta: jnp.zeros(_sizes(theta))
    shares: Callable[[PyTree], Float[np.ndarray, "units parts"] | None] = lambda theta: None
    warning: Callable[[PyTree], str] = lambda theta: ""
    limit: Callable[[PyTree], str] = lambda theta: ""
    at_limit: Callable[[Float[np.ndarray, " params"]], Float[np.ndarray, " params"]] = _same
    held: "Callable[[PyTree], tuple[AbstractObjective, PyTree, str] | None]" = lambda theta: None
    leaving: Callable[..., Bool[np.ndarray, " refits"]] | None = None
    kinks: Callable[[], Any] = lambda: None
    by_rows: Callable[[], Any] = lambda: None


class Costs(NamedTuple):
    """What a pass over the data costs, where a model knows better than the core."""

    lanes: int | None = None  # refits that share a pass
    work: float | None = None  # operations of one gradient, if not about four for each unit and parameter
    # (a θ, first units, lengths) of runs of units -> a pass near that θ that says of each, left out, the losses of its units,
    # None where these are one, and the joint one by which F falls; or None
    runs: Callable[[PyTree, np.ndarray, np.ndarray], Callable[[PyTree], tuple[Array | None, Array]] | None] | None = None
    # the same objective of one of few numbers of units, for which programs are compiled: those behind its own say nothing
    padded: "Callable[[], AbstractObjective] | None" = None
    arrays: Callable[[], Any] | None = None  # F by array code, an `AbstractByArrays`


class AbstractObjective(Module):
    """A weighted objective `F(θ, w)` bound to its data; θ is a pytree of unconstrained arrays.

    What only some models have is handed over in small records, made anew when asked for: they are no part of the pytree.
    """

    @property
    @abc.abstractmethod
    def num_units(self) -> int:
        """How many units can be left out."""

    @abc.abstractmethod
    def loss(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Scalar:
        """`F(θ, w)`."""

    def score(
        self, theta: PyTree, weights: Float[Array, " units"], index: Int[Arrays, " width"], held: Float[Arrays, " width"]
    ) -> Array:
        """The held-out loss of the listed units given all that are seen, `[width]`, or one joint number, `[]`.

        An `index` as long as there are units lists them all in order; `index == num_units` is padding, whose value is ignored.
        The default is the joint loss `F(θ, w with the held units at 1) − F(θ, w)`; it integrates to one over all held units.
        """
        whole = weights.at[index].max(held, mode="drop")
        return self.loss(theta, whole) - self.loss(theta, weights)

    def perturbation(self, theta: PyTree, index: Int[Arrays, " width"], delta: Float[Arrays, " width"]) -> Scalar:
        """`F(θ, 1 + δ) − F(θ, 1)`, δ zero off `index`. Override it where only the listed units matter."""
        ones = jnp.ones(self.num_units)
        return self.loss(theta, ones.at[index].add(delta, mode="drop")) - self.loss(theta, ones)

    def jacobian(self, theta: PyTree) -> Float[Array, "units params"]:
        """`∂²F/∂θ∂w_n` at weights one, of every unit. Override it where units' gradients can be had together."""
        by_weight = jax.grad(lambda w, v: self.loss(unravel(v, theta), w))
        ones, start = jnp.ones(self.num_units), ravel(theta)
        along = lambda direction: jax.jvp(lambda v: by_weight(ones, v), (start,), (direction,))[1]
        return jax.lax.map(along, jnp.eye(len(start))).T

    def hessian(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Float[Array, "params params"]:
        """`∇²F(θ, w)` over the raveled parameters."""
        return jax.hessian(lambda vector: self.loss(unravel(vector, theta), weights))(ravel(theta))

    def hessian_change(
        self, theta: PyTree, index: Int[Arrays, " width"], delta: Float[Arrays, " width"]
    ) -> Float[Array, "params params"]:
        """`∇²F(θ, 1 + δ) − ∇²F(θ, 1)`. Override it where only the listed units matter."""
        ones = jnp.ones(self.num_units)
        return self.hessian(theta, ones.at[index].add(delta, mode="drop")) - self.hessian(theta, ones)

    def preconditioner(self, theta: PyTree, weights: Float[Arrays, " units"]) -> tuple[Blocks, ...]:
        """Blocks of a matrix like `∇²F(θ, w)` that costs far less, together of every parameter once; none where there is no
        such thing. Descent goes by it far from a minimum, where a Hessian would soon be out of date."""
        del theta, weights
        return ()

    def subset(self, units: Int[np.ndarray, " some"]) -> "AbstractObjective | None":
        """The same objective of these units alone, if F is a sum of one term a unit and of something quadratic: how F bends
        can then be told from a sample. None otherwise."""
        del units
        return None

    def predict(self, theta: PyTree, weights: Float[Arrays, " units"], index: Int[Arrays, " width"], kind: str) -> Array:
        """Predictions of the listed units, given what is seen, of one of `units.kinds`."""
        raise NotImplementedError(
            f"cross_predict needs a model with predictions; {type(self).__name__} has none. "
            "Use cross_validate(..., evaluate=) or fold_parameters()."
        )

    def __repr__(self) -> str:
        try:
            known = len(self.parameters.names())
            return f"{type(self).__name__}({self.num_units} units{f', {known} parameters' if known else ''})"
        except Exception:  # without its arrays, as inside JAX, or half made
            return super().__repr__()

    @property
    def units(self) -> Units:
        """What is known of the units: labels, which depend on one another, which are missing, their weights in the mean."""
        return Units(serial=None)

    @property
    def parameters(self) -> Parameters:
        """How θ is read, started and spoken of."""
        return Parameters()

    @property
    def costs(self) -> Costs:
        """What a pass over the data costs."""
        return Costs()

    @property
    def predictors(self) -> Predictors | None:
        """The model as data, if it is convex losses of linear predictors beside a quadratic: its refits then need no compiler,
        and their errors are proved."""
        return None

    @property
    def convex(self) -> bool:
        """Is F convex in θ? Then `fit` needs one start, and separation can be named."""
        return False

    @property
    def pointwise(self) -> bool:
        """Does `score` return one loss a unit, rather than one joint number?"""
        return type(self).score is not AbstractObjective.score

    @property
    def local(self) -> bool:
        """Does `perturbation` look at the listed units only?"""
        return type(self).perturbation is not AbstractObjective.perturbation

    @property
    def note(self) -> str:
        """A sentence that the printed result should carry."""
        return ""


def padded_weights(objective: AbstractObjective, weights: Float[np.ndarray, "*refits units"]) -> np.ndarray:
    """Weights of the units of an objective that is padded, by those of its own: the others weigh one."""
    beyond = objective.num_units - weights.shape[-1]
    return np.concatenate([weights, np.ones((*weights.shape[:-1], beyond))], axis=-1) if beyond else weights


def called(objective: AbstractObjective) -> str:
    """The kind of model, and its loss where it has one of ours."""
    loss = getattr(objective, "loss_function", None)
    return kind_of(objective) + (f" ({type(loss).__name__})" if isinstance(loss, Module) else "")


def repeatable(objective: AbstractObjective) -> AbstractObjective:
    """The objective as programs are compiled for it: where the model knows how, of one of few numbers of units."""
    padded = objective.costs.padded
    return objective if padded is None else padded()


class Separable(AbstractObjective):
    """`F(θ, w) = Σ_n w_n unit_loss(θ, data_n) + penalty(θ)`: units independent given θ.

    `unit_loss(theta, datum)` is written for one unit, by JAX; `data` is an array or a pytree of arrays
    whose first axis counts the units. A unit's held-out loss is its `unit_loss`.
    """

    unit_loss: Callable[[PyTree, PyTree], Scalar]
    penalty: Callable[[PyTree], Scalar] | None
    data: PyTree
    theta0: PyTree
    names: Names = static()

    def __init__(
        self,
        unit_loss: Callable[[PyTree, PyTree], Scalar],
        data: PyTree,
        penalty: Callable[[PyTree], Scalar] | None = None,
        theta0: PyTree = None,
    ):
        self.unit_loss, self.penalty = unit_loss, penalty
        leaves, tree = ([data], None) if isinstance(data, list) else jax.tree.flatten(data)
        self.names, *leaves = matched("Separable", **{f"data[{k}]": leaf for k, leaf in enumerate(leaves)})
        leaves = [_checked_data(leaf) for leaf in leaves]
        self.data = leaves[0] if tree is None else jax.tree.unflatten(tree, leaves)
        sizes = {len(leaf) for leaf in jax.tree.leaves(self.data)}
        if len(sizes) != 1:
            raise ValueError(f"Separable: the arrays of data must have one length; got lengths {sorted(sizes)}.")
        self.theta0 = theta0

    def __getstate__(self) -> dict[str, Any]:
        """In another process no setting of JAX cuts these numbers to float32."""
        return vars(self) | {"data": jax.tree.map(np.asarray, self.data)}

    @property
    def num_units(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def loss(self, theta, weights):
        total = weights @ self._losses(theta, self.data)
        return total if self.penalty is None else total + traced("Separable: penalty", self.penalty, theta)

    def _losses(self, theta: PyTree, data: PyTree) -> Float[Array, " some"]:
        each = lambda datum: traced("Separable: unit_loss", self.unit_loss, theta, datum)
        return jax.vmap(each)(jax.tree.map(lambda x: jnp.asarray(x, float), data))  # what is on a device may be in float32

    def score(self, theta, weights, index, held):
        del weights, held  # independent units: what else is seen does not matter
        datum = jax.tree.map(lambda x: jnp.asarray(x).at[index].get(mode="clip"), self.data)
        return self._losses(theta, datum)

    def perturbation(self, theta, index, delta):
        losses = self.score(theta, None, index, None)
        return jnp.where(index < self.num_units, delta, 0.0) @ losses

    def hessian_change(self, theta, index, delta):
        return jax.hessian(lambda vector: self.perturbation(unravel(vector, theta), index, delta))(ravel(theta))

    @property
    def units(self):
        return Units(names=self.names.index)

    @property
    def parameters(self):
        return Parameters(start=None if self.theta0 is None else lambda seed: self.theta0)


DEPENDENCE = {"unknown": None, "independent": False, "serial": True}  # and what Units.serial says of it


class Objective(AbstractObjective):
    """A user's two functions: `loss(theta, weights)` and, if losses are wanted unit by unit, `score`.

    `score(theta, weights, index)` returns the held-out loss of the units in `index` given all units of
    positive weight. Without it a fold's loss is one number, the joint `F(θ, w with held := 1) − F(θ, w)`.
    `dependence` says what standard errors may go by: "independent" units, or "serial" ones, whose neighbours depend on one
    another; of "unknown" ones there is none, unless the plan has groups or blocks.
    """

    loss_function: Callable[[PyTree, Array], Scalar]
    size: int = static()
    score_function: Callable[[PyTree, Array, Array], Array] | None
    dependence: str = static()

    def __init__(
        self,
        loss: Callable[[PyTree, Array], Scalar],
        num_units: int,
        score: Callable[[PyTree, Array, Array], Array] | None = None,
        dependence: Literal["unknown", "independent", "serial"] = "unknown",
    ):
        if not callable(loss):
            raise TypeError(f"Objective: loss must be a function of (theta, weights); got {type(loss).__name__}.")
        if int(num_units) != num_units or num_units < 2:
            raise ValueError(f"Objective: num_units must be a whole number, 2 or more; got {num_units}.")
        if dependence not in DEPENDENCE:
            raise ValueError(f"Objective: dependence must be one of {', '.join(map(repr, DEPENDENCE))}; got {dependence!r}.")
        self.loss_function, self.size, self.score_function, self.dependence = loss, int(num_units), score, dependence

    @property
    def units(self):
        return Units(serial=DEPENDENCE[self.dependence])

    @property
    def num_units(self) -> int:
        return self.size

    @property
    def pointwise(self):
        return self.score_function is not None

    def loss(self, theta, weights):
        return traced("Objective: loss", self.loss_function, theta, weights)

    def score(self, theta, weights, index, held):
        if self.score_function is None:
            return super().score(theta, weights, index, held)
        return traced("Objective: score", self.score_function, theta, weights, jnp.minimum(index, self.size - 1))


class AbstractLinearPredictor(AbstractObjective):
    """Units that see θ only through a few linear predictors:

        F(θ, w) = Σ_n ω_n(w) ℓ(η_n, y_n) + κ(w) R(θ),      η_n = U_n θ ∈ R^outputs.

    A fold's Hessian differs from the full one by the rows `U_n` it touches.
    """

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """Linear predictors of a unit."""

    @property
    @abc.abstractmethod
    def low_rank(self) -> bool:
        """Does leaving units out change F only in their own terms (κ = 1, and no weight but their own)?"""

    @property
    @abc.abstractmethod
    def smooth(self) -> bool:
        """Is ℓ known to be twice continuously differentiable?"""

    @abc.abstractmethod
    def rows(self, index: Int[Arrays, " width"]) -> Float[Array, "width outputs params"]:
        """`U_n` of the listed units (any row for padding)."""

    @abc.abstractmethod
    def derivative(self, theta: PyTree, index: Int[Arrays, " width"], order: int) -> Array:
        """`ω_n(1)` times the derivative of ℓ of the given order in η, `[width]` or `[width, outputs, …]`."""

    @abc.abstractmethod
    def crossings(self, start: PyTree, end: PyTree) -> Scalar:
        """Units whose ℓ″ jumps between two parameters; zero for smooth losses."""


def _checked_data(leaf: Any) -> Arrays:
    """Float64 in memory; what is on a device stays there, as it is."""
    there = on_device("Separable", "data", leaf)
    if there is not None and is_finite(there):
        return there
    array = np.asarray(numbers("Separable", "data", leaf), np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"data hold {np.sum(~np.isfinite(array))} values that are NaN or infinite; drop or impute them.")
    return stored(array)
