"""The weighted objective `F(θ, w)` that a fit minimises, bound to its data.

    F(θ, w) = −log p(data; θ, w) − log p(θ),      w = 1 is the full fit, w_n = 0 leaves unit n out.

An objective is a pytree of float64 arrays, so a second data set of the same shape, or another value
of a hyperparameter, compiles nothing anew. Its author writes `loss`. Everything else has a default,
which a model overrides where it knows better.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from .._runtime import (
    AnyFunction,
    Array,
    ArrayFunction,
    Arrays as Arrays,
    EntryIndex,
    EntryValues,
    Indices,
    Module,
    NamedValues,
    PyTree,
    RowNumbers,
    Scalar,
    Shape,
    Strings,
    ThreeArrayFunction,
    UnitFlags,
    UnitNumbers,
    branches_of,
    call_traced,
    conventional,
    float64 as float64,
    jax,
    jnp,
    kind_of,
    silence,
    static,
)
from ..data import Names, TransformedResponse, count, floats, match_labels, on_device
from ..linalg import (
    PerUnit as PerUnit,
    Predictors,
    RefitPoints as RefitPoints,
    Vector as Vector,
    is_finite,
)

UnitIndex = Int[Arrays, " width"]  # places of the units that a refit lists
UnitWeights = Float[Arrays, " units"]
PerListed = Float[Arrays, " width"]
Hessian = Float[Array, "params params"]

# Arrays of the refits in a batch that are computed together, its lanes, or of all its refits.
Lanes = Int[ndarray, " lanes"]  # their places in the batch
Flags = Bool[ndarray, " lanes"]
PerLane = Float[ndarray, " lanes"]
PerRefit = Float[ndarray, " refits"]
Points = Float[ndarray, "lanes params"]  # parameters, gradients or steps
Matrices = Float[ndarray, "lanes params params"]
Matrix = Float[ndarray, "params params"]
RefitFlags = Bool[ndarray, " refits"]
RefitNumbers = Int[ndarray, " refits"]
RefitValues = Float[ndarray, "refits ..."]  # numbers of each refit, or of each output of it
Displacements = Float[ndarray, "refits rank"]
Selection = Int[ndarray, " selected"]
HeldOutLosses = Float[ndarray, "lanes ..."]  # of the units of each refit, or joint
LINE = 64  # bytes


def room(shape: Shape, dtype: Any = np.float64) -> ndarray:
    """Uninitialised array that begins at a cache line, so that JAX uses its memory in every call
    without a copy.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def aligned_copy(value: Any) -> ndarray:
    """Copy an array to memory that begins at a cache line."""
    array = np.asarray(value)
    out = room(array.shape, array.dtype)
    out[...] = array
    return out


def as_stored(value: Any) -> ndarray:
    """Copy an array as float64 to memory that begins at a cache line, which is how objectives store
    their data.
    """
    return aligned_copy(np.asarray(value, float))


def leaves_of(theta: PyTree) -> list[Any]:
    """Arrays of a tree. Arrays, and dicts and modules of these, are handled without JAX."""
    if type(theta) is dict:
        return [leaf for name in sorted(theta) for leaf in leaves_of(theta[name])]
    if isinstance(theta, Module):
        return [leaf for branch in branches_of(theta).values() for leaf in leaves_of(branch)]
    if isinstance(theta, ndarray | np.generic):
        return [theta]
    return jax.tree.leaves(theta)


def map_arrays(function: AnyFunction, theta: PyTree) -> PyTree:
    """Apply a function to every array of a tree. Arrays, and dicts and modules of these, are
    handled without JAX.
    """
    if isinstance(theta, ndarray | np.generic):
        return function(theta)
    if type(theta) is dict:
        return {name: map_arrays(function, theta[name]) for name in sorted(theta)}
    if isinstance(theta, Module):
        mapped = copy.copy(theta)
        branches = branches_of(theta).items()
        vars(mapped).update({name: map_arrays(function, branch) for name, branch in branches})
        return mapped
    return jax.tree.map(function, theta)


def ravel(theta: PyTree) -> Any:
    """Concatenate the arrays of a tree to one vector, `[params]`."""
    leaves = leaves_of(theta)
    if leaves and all(isinstance(leaf, ndarray | np.generic) for leaf in leaves):
        return np.concatenate([leaf.ravel() for leaf in leaves])
    return jax.flatten_util.ravel_pytree(theta)[0]


def unravel(vector: Float[Array, " params"], like: PyTree) -> PyTree:
    """Reshape a vector to the tree `like`. The template is passed as data, since a stored closure
    would be compiled anew.
    """
    return jax.flatten_util.ravel_pytree(like)[1](vector)


def unflatten(vector: ndarray, like: PyTree) -> PyTree:
    """Reshape a vector to the tree `like` by NumPy, outside compiled code.

    JAX would run one program for every leaf.
    """
    if isinstance(like, ndarray):
        if like.ndim == 1:
            return vector
        return vector.reshape(like.shape)
    if type(like) is dict and all(isinstance(leaf, ndarray) for leaf in like.values()):
        names = sorted(like)
        parts = np.split(vector, np.cumsum([like[name].size for name in names])[:-1])
        return {
            name: part.reshape(like[name].shape) for name, part in zip(names, parts, strict=True)
        }
    leaves, tree = jax.tree.flatten(like)
    parts = np.split(vector, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    return jax.tree.unflatten(
        tree, [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    )


class DiagonalBlocks(NamedTuple):
    """Diagonal blocks of one size of a matrix over the raveled parameters, and the parameters that
    belong to each block.
    """

    entries: Int[Arrays, "blocks size"]
    matrices: Float[Arrays, "blocks size size"]


def _same(theta: PyTree) -> PyTree:
    return theta


def size_of(theta: PyTree) -> int:
    """Number of parameters in θ."""
    return sum(np.size(leaf) for leaf in leaves_of(theta))


# names of normalised scores
LOG_DENSITY = "−log density"
LOG_PROBABILITY = "−log probability"
LOG_LIKELIHOOD = "−log likelihood"  # name of a score that its user vouches for: one of these two


class Distribution(NamedTuple):
    """Predictive distribution of a response beside its mean.

    `dispersion` maps (rows, raveled θ `[refits, params]`) to the dispersion of each refit,
    `[refits, 1]`. `scores` holds scores by name, functions of mean, dispersion and y. `draw` draws
    responses by a generator, of a mean and a dispersion each. `note` is a sentence about the
    distribution for printed results.
    """

    dispersion: Callable[[Any, ndarray], ndarray]
    scores: dict[str, ThreeArrayFunction]
    draw: Callable[[np.random.Generator, ndarray, ndarray], ndarray]
    note: str = ""


@dataclass(frozen=True)
class Units:
    """Facts about the units that a model can leave out. Arrays have one entry a unit.

    Models of your own return one from their property `units`; every attribute has a default.

    Parameters
    ----------
    names : pandas.Index, optional
        Labels of the units.
    serial : bool or None, default: False
        True if neighbouring units depend on one another, so that standard errors go by blocks; None
        if unknown.
    blocks : array of int, shape (units,), optional
        Blocks of neighbouring units, where neighbours are not the next in order.
    observed : array of bool, shape (units,), optional
        True for units that have an observation. The others are never scored.
    scorable : callable, optional
        Function of (refits, units, weights) of left-out entries that says which of them have a
        loss, where that depends on what else is left out.
    weight : array of float, shape (units,), optional
        Weight of each unit in the mean loss.
    target : array of float, shape (units,), optional
        Response that predictions are compared with.
    response : array, optional
        Response that the loss is a function of, where it differs from `target`.
    inverse : callable, optional
        Function of means of `response` that returns predictions of `target`, where the model is of
        a function of the target.
    risk : array, shape (units, 3) or (units, 4), optional
        Stratum, place in the order of times, and event of each unit, where predictors order units
        by risk; and the place at which it enters, if units are not all at risk from the beginning.
        Places are whole numbers.
    kinds : tuple of str, default: ("response", "link")
        Kinds of predictions that the model makes.
    classes : int, default: 0
        Number of classes, if `target` is the number of a class.
    distribution : callable, optional
        Function without arguments that returns the predictive distribution of the target, or None.
    predict_new : callable, optional
        Function of (fit, data, kind, offset) that returns predictions of other units, where the
        model has some.
    features : callable, optional
        Function without arguments that returns columns of numbers of the rows, by name.
    score : str, default: ""
        Name of the held-out loss, such as "−log density"; empty if it is not known.
    rows : array of int, shape (rows,), optional
        Unit of each row of the data, where a unit is several rows: plans of rows, such as
        `lo.groups(subject)`, are then taken.
    row_names : pandas.Index, optional
        Labels of these rows.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.developer.models.Units(serial=True).repeatable
    False
    """

    names: Any = None  # labels of the caller, a pandas index
    # whether neighbours depend on one another, so that standard errors go by blocks; None if
    # unknown
    serial: bool | None = False
    # blocks of neighbours, if neighbours are not the next in order
    blocks: UnitNumbers | None = None
    # units that have an observation; others are never scored
    observed: UnitFlags | None = None
    # (refits, units, weights) of left-out entries -> those that have a loss, if that depends on
    # other left-out units
    scorable: ThreeArrayFunction | None = None
    weight: PerUnit | None = None  # weights in the mean loss, if units differ
    target: PerUnit | None = None  # response that predictions are compared with
    # response that the loss is a function of, if that is not `target`
    response: ndarray | None = None
    # from means of the response to predictions of the target
    inverse: ArrayFunction | None = None
    # stratum, place in time, event, entry: of models of risks
    risk: Float[ndarray, "units facts"] | None = None
    kinds: Strings = ("response", "link")  # kinds of predictions
    classes: int = 0  # number of classes, if the target is the number of a class
    # predictive distribution of the target, computed on demand
    distribution: Callable[[], Distribution | None] = lambda: None
    # (fit, data of other units, kind, offset) -> their predictions, if the model has any
    predict_new: Callable[[Any, Any, str, Any], Any] | None = None
    # columns of numbers of the rows, by name
    features: Callable[[], Mapping[str, ndarray]] = dict
    score: str = ""  # name of the held-out loss, such as `LOG_DENSITY`; "" if it is not known
    # unit of each row of the data, if a unit is several rows
    rows: RowNumbers | None = None
    row_names: Any = None  # labels of these rows

    @property
    def repeatable(self) -> bool:
        """Whether a weight of two means a unit that is seen twice. For units that may depend on one
        another it does not.
        """
        return self.serial is False

    @property
    def modelled(self) -> ndarray | None:
        """The response that the loss is a function of."""
        if self.response is None:
            return self.target
        return self.response

    def to_target(self, means: ndarray) -> ndarray:
        """Convert means of the response that the loss is a function of to predictions of the
        target.

        Parameters
        ----------
        means : array of float
            Predicted means, through the inverse link.

        Returns
        -------
        array of float
            Predictions in the units of the target.
        """
        if self.inverse is None:
            return means
        finite = np.isfinite(means)
        predictions = np.full(np.shape(means), np.nan)
        with silence("all"):
            predictions[finite] = self.inverse(means[finite])
        return predictions

    def measured_as(self, original: TransformedResponse | None) -> "Units":
        """Take the response as it was measured, if the model is of a function of it.

        Parameters
        ----------
        original : TransformedResponse or None
            The measured response, and the way back.

        Returns
        -------
        Units
            The same facts, whose `target` is in the units of the measured response.
        """
        if original is None:
            return self
        return replace(self, response=self.target, target=original.values, inverse=original.inverse)

    def scored_entries(
        self,
        refit: EntryIndex,
        index: EntryIndex,
        weight: EntryValues,
    ) -> Bool[ndarray, " entries"]:
        """Find the left-out entries that have a held-out loss.

        Parameters
        ----------
        refit : array of int, shape (entries,)
            Refit of each entry.
        index : array of int, shape (entries,)
            Unit of each entry.
        weight : array of float, shape (entries,)
            Weight of that unit in that refit.

        Returns
        -------
        array of bool, shape (entries,)
            True where the unit is observed and scorable.
        """
        if self.observed is None:
            scored = np.ones(len(index), bool)
        else:
            scored = np.asarray(self.observed)[index]
        if self.scorable is None:
            return scored
        return scored & self.scorable(refit, index, weight)


@dataclass(frozen=True)
class Parameters:
    """How θ is read, started and described.

    Each attribute is a function with a default. A model overrides some of them in its property
    `parameters`. θ is the pytree of unconstrained arrays that F is a function of.

    Parameters
    ----------
    natural : callable
        Maps θ to the parameters that users see: rates, probabilities, coefficients. JAX can trace
        it.
    unconstrained : callable
        Inverse of `natural`.
    start : callable or None
        Maps a seed to a start for `fit`; None if the user has to give one.
    canonical : callable
        Puts interchangeable parts of θ, such as states, into a standard order.
    names : callable
        Returns names of the raveled parameters, for messages; may be empty.
    symmetries : callable
        Maps θ to orthonormal directions `[flat, params]` in which F never changes. They are
        projected out of every solve.
    penalty_curvature : callable
        Maps θ to the share of the penalty in the diagonal of ∇²F(θ, 1), `[params]`. It scales H
        where H is not formed.
    shares : callable
        Maps θ to the number of observations with which each unit informs each part of the model (a
        state, a class), `[units, parts]`, or None. A refit with less than half an observation left
        for a part is flagged.
    undetermined : callable
        Maps units and their weights, `[refits, width]`, to whether a refit with these weights
        leaves a parameter open.
    warning : callable
        Maps a fitted θ to a sentence for the user, on parameters at a boundary or idle states for
        example.
    limit : callable
        Maps θ to the reason why F has no minimum there, a value that no parameter reaches; "" if it
        has one.
    at_limit : callable or None
        Maps a raveled θ on its way to such a limit to one whose losses are those of the limit. A
        refit then stays there in these parameters, and is finished in the others.
    held : callable
        Maps θ to None, or, if the fit ran to a boundary, to the model that holds parameters there,
        natural parameters to start it from, and a description of what it holds.
    usual_starts : int, default: 4
        Number of starts of a fit, unless the user gives one. With 1, four follow if it ends at a
        boundary or at no minimum.
    leaving : callable or None
        Function of (objective, like, thetas `[refits, params]`, weights `[refits, units]`) that
        says for which refits F would fall if a parameter left the boundary on which the fit holds
        it; None if nothing is held.

    Examples
    --------
    A rate that is fitted on the log scale:

    >>> import numpy as np
    >>> import leaveout as lo
    >>> parameters = lo.developer.models.Parameters(natural=np.exp, unconstrained=np.log)
    >>> round(float(parameters.natural(parameters.unconstrained(2.5))), 3)
    2.5
    """

    natural: Callable[[PyTree], PyTree] = _same
    unconstrained: Callable[[PyTree], PyTree] = _same
    start: Callable[[int], PyTree] | None = None
    canonical: Callable[[PyTree], PyTree] = _same
    names: Callable[[], list[str]] = list
    symmetries: Callable[[PyTree], Float[ndarray, "flat params"]] = lambda theta: np.zeros(
        (0, size_of(theta))
    )
    penalty_curvature: Callable[[PyTree], Float[Array, " params"]] = lambda theta: jnp.zeros(
        size_of(theta)
    )
    shares: Callable[[PyTree], Float[ndarray, "units parts"] | None] = lambda theta: None
    undetermined: Callable[[ndarray, ndarray], RefitFlags] = lambda index, weight: np.zeros(
        len(index), bool
    )
    warning: Callable[[PyTree], str] = lambda theta: ""
    limit: Callable[[PyTree], str] = lambda theta: ""
    at_limit: Callable[[Vector], Vector] = _same
    held: "Callable[[PyTree], tuple[AbstractObjective, PyTree, str] | None]" = lambda theta: None
    usual_starts: int = 4
    leaving: Callable[..., RefitFlags] | None = None


class Costs(NamedTuple):
    """Cost of a pass over the data, where a model knows it better than the defaults.

    Parameters
    ----------
    lanes : int, optional
        Number of refits that share a pass over the data.
    work : float, optional
        Operations of one gradient; by default about four for each unit and parameter.
    runs : callable, optional
        Function of (θ, first units, lengths) of runs of units, for closed forms. It returns None,
        or a function of many raveled θ that gives, at each of them and for each run left out, the
        losses of its units (None where the joint score is the loss) and the joint score by which F
        falls.
    arrays : callable, optional
        Returns F in array code, an `AbstractByArrays`.
    formed : float, default 0
        Bytes of memory that forming ∇²F takes, where they are more than a few times its own.
    separate : bool, default: False
        Whether the losses of runs, each at the parameters of its own refit, cost no more than the
        pass of `runs`.
    falls : bool, default: False
        Whether held-out losses are, nearly, what F falls by. At a refit their slope is then that of
        F(·, 1), which is along its displacement to first order.

    See Also
    --------
    AbstractObjective : The objective whose property `costs` returns this.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.developer.models.Costs(lanes=8).lanes
    8
    """

    lanes: int | None = None  # refits that share a pass
    # operations of one gradient, by default about four for each unit and parameter
    work: float | None = None
    # (θ, first units, lengths) of runs of units -> passes at many places near that θ that return,
    # for each run left out, the losses of its units (None for runs of one unit) and the joint score
    # by which F falls; or None
    runs: (
        Callable[
            [PyTree, ndarray, ndarray],
            Callable[[Points], tuple[ndarray | None, ndarray]] | None,
        ]
        | None
    ) = None
    arrays: Callable[[], Any] | None = None  # returns F in array code, an `AbstractByArrays`
    formed: float = 0.0  # bytes that forming ∇²F takes, if they are more than a few times its own
    # whether losses of runs, each at a θ of its own, cost no more than the pass of `runs`
    separate: bool = False
    # whether held-out losses are nearly falls of F, which are steepest along a refit's displacement
    falls: bool = False


class AbstractObjective(Module):
    """Weighted objective `F(θ, w)` bound to its data; θ is a pytree of unconstrained arrays.

    Subclasses write `num_units` and `loss`. Weight zero must mean deletion, for values and for
    derivatives. Records that only some models fill (`units`, `parameters`, `costs`) are built on
    demand and are not part of the pytree.

    See Also
    --------
    Objective : The same from two functions, without a class.
    Separable : Units that are independent given θ.
    AbstractClosedForm : F and its gradient in NumPy.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import leaveout as lo
    >>> class Normal(lo.developer.AbstractObjective):
    ...     x: jnp.ndarray
    ...
    ...     @property
    ...     def num_units(self):
    ...         return len(self.x)
    ...
    ...     def loss(self, theta, weights):
    ...         return weights @ (self.x - theta) ** 2 / 2
    >>> import numpy as np
    >>> fit = lo.fit(Normal(np.array([1.0, 2.0, 6.0])), np.zeros(()))
    >>> round(float(fit.parameters), 3)
    3.0
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if callable(vars(cls).get("loss")):
            cls.loss = float64(cls.loss)  # type: ignore[method-assign]
        if cls._own_init and "__init__" in vars(cls):
            cls.__init__ = conventional(cls.__init__)  # type: ignore[method-assign]

    @property
    @abstractmethod
    def num_units(self) -> int:
        """Number of units that can be left out."""

    @abstractmethod
    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        """Evaluate `F(θ, w)`.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit; zero means that it is left out.

        Returns
        -------
        float
            F, a scalar that JAX can differentiate.
        """

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: UnitIndex,
        held: PerListed,
    ) -> Array:
        """Held-out loss of the listed units given all units that are seen, or one joint number.

        The default is the joint loss `F(θ, w with the held units at 1) − F(θ, w)`, a density over
        all held units together.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit in the refit.
        index : array of int, shape (width,)
            Units to score. An index as long as there are units lists them all in order; `index ==
            num_units` is padding.
        held : array of float, shape (width,)
            One where the unit is scored, else zero.

        Returns
        -------
        array, shape (width,) or ()
            Losses of the units, any value for padding; or the joint loss.
        """
        full_weights = weights.at[index].max(held, mode="drop")
        return self.loss(theta, full_weights) - self.loss(theta, weights)

    def perturbation(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Scalar:
        """Evaluate `F(θ, 1 + δ) − F(θ, 1)`, δ zero off `index`. Override it where only the listed
        units matter.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        index : array of int, shape (width,)
            Units whose weights change; `num_units` for padding.
        delta : array of float, shape (width,)
            Changes of their weights.

        Returns
        -------
        float
            The change of F.
        """
        ones = jnp.ones(self.num_units)
        return self.loss(theta, ones.at[index].add(delta, mode="drop")) - self.loss(theta, ones)

    def jacobian(self, theta: PyTree) -> Float[Arrays, "units params"]:
        """Compute `∂²F/∂θ∂w_n` at weights one for every unit. Override it where the gradients of
        units can be had together.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.

        Returns
        -------
        array of float, shape (units, params)
            One row a unit.
        """
        by_weight = jax.grad(lambda w, v: self.loss(unravel(v, theta), w))
        ones = jnp.ones(self.num_units)
        start = ravel(theta)
        along = lambda direction: jax.jvp(lambda v: by_weight(ones, v), (start,), (direction,))[1]
        return jax.lax.map(along, jnp.eye(len(start))).T

    def hessian(self, theta: PyTree, weights: UnitWeights) -> Hessian:
        """Compute `∇²F(θ, w)` over the raveled parameters.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit.

        Returns
        -------
        array of float, shape (params, params)
            The Hessian.
        """
        return jax.hessian(lambda vector: self.loss(unravel(vector, theta), weights))(ravel(theta))

    def hessian_change(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Hessian:
        """Compute `∇²F(θ, 1 + δ) − ∇²F(θ, 1)`, from `perturbation` where only the listed units
        matter.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        index : array of int, shape (width,)
            Units whose weights change; `num_units` for padding.
        delta : array of float, shape (width,)
            Changes of their weights.

        Returns
        -------
        array of float, shape (params, params)
            The change of the Hessian.
        """
        if self.local:
            change = lambda vector: self.perturbation(unravel(vector, theta), index, delta)
            return jax.hessian(change)(ravel(theta))
        ones = jnp.ones(self.num_units)
        return self.hessian(theta, ones.at[index].add(delta, mode="drop")) - self.hessian(
            theta, ones
        )

    def preconditioner(self, theta: PyTree, weights: UnitWeights) -> tuple[DiagonalBlocks, ...]:
        """Approximate `∇²F(θ, w)` by diagonal blocks that cost far less than the Hessian.

        Descent uses them far from a minimum, where a Hessian would soon be out of date.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit.

        Returns
        -------
        tuple of Blocks
            Blocks that together hold every parameter once; empty if the model has none, which is
            the default.
        """
        return ()

    def subset(self, units: Indices) -> "AbstractObjective | None":
        """Restrict the objective to some units, if F is a sum of one term a unit and a quadratic.

        The curvature of F can then be estimated from a sample of units.

        Parameters
        ----------
        units : array of int, shape (some,)
            Units to keep.

        Returns
        -------
        AbstractObjective or None
            The objective of these units alone; None, the default, if F is no such sum.
        """
        return None

    def predict(
        self,
        theta: PyTree,
        weights: UnitWeights,
        index: UnitIndex,
        kind: str,
    ) -> Arrays:
        """Predict the listed units, given all units that are seen.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit in the refit.
        index : array of int, shape (width,)
            Units to predict.
        kind : str
            One of `units.kinds`.

        Returns
        -------
        array
            Predictions of the units.

        Raises
        ------
        NotImplementedError
            If the model makes no predictions.
        """
        raise NotImplementedError(
            f"cross_predict needs a model with predictions; {type(self).__name__} has none. "
            "Use cross_validate(..., evaluate=) or fold_parameters()."
        )

    def __repr__(self) -> str:
        try:
            count = len(self.parameters.names())
            return f"{type(self).__name__}({self.num_units} units{f', {count} parameters' if count else ''})"
        except Exception:  # without its arrays, as inside JAX, or half constructed
            return super().__repr__()

    @property
    def units(self) -> Units:
        """Facts about the units: labels, dependence, missing observations, weights in the mean."""
        return Units(serial=None)

    @property
    def parameters(self) -> Parameters:
        """How θ is read, started and described."""
        return Parameters()

    @property
    def costs(self) -> Costs:
        """Cost of a pass over the data."""
        return Costs()

    @property
    def predictors(self) -> Predictors | None:
        """The model as data, if it is a convex loss of linear predictors plus a quadratic; else
        None.

        Refits of such a model need no compiler, and their errors are proved.
        """
        return None

    @property
    def convex(self) -> bool:
        """Whether F is convex in θ. Then `fit` needs one start, and separation can be named."""
        return False

    @property
    def pointwise(self) -> bool:
        """Whether `score` returns one loss a unit rather than one joint number."""
        return type(self).score is not AbstractObjective.score

    @property
    def local(self) -> bool:
        """Whether `perturbation` looks at the listed units only."""
        return type(self).perturbation is not AbstractObjective.perturbation

    @property
    def note(self) -> str:
        """Sentence to show with printed results; "" if there is none."""
        return ""


def display_name(objective: AbstractObjective) -> str:
    """Name of the kind of model, with its loss if that is one of this library's."""
    loss = getattr(objective, "loss_function", None)
    return kind_of(objective) + (f" ({type(loss).__name__})" if isinstance(loss, Module) else "")


class Separable(AbstractObjective):
    """Objective of units that are independent given θ: `F(θ, w) = Σ_n w_n unit_loss(θ, data_n) +
    penalty(θ)`.

    A unit's held-out loss is its `unit_loss`.

    Parameters
    ----------
    unit_loss : callable
        Loss of one unit, a function of (theta, datum) written in JAX.
    data : array or pytree of arrays
        Data whose first axis counts the units.
    penalty : callable, optional
        Penalty, a function of theta.
    theta0 : pytree of arrays, optional
        Start of the fit.

    See Also
    --------
    Objective : Units that depend on one another.
    GLM : Linear predictors, whose errors are proved.

    Examples
    --------
    The mean of five numbers, with a squared loss:

    >>> import jax.numpy as jnp
    >>> import leaveout as lo
    >>> x = jnp.array([0.0, 1.0, 2.0, 3.0, 4.0])
    >>> model = lo.Separable(lambda theta, datum: (datum - theta) ** 2, x, theta0=jnp.zeros(()))
    >>> fit = lo.fit(model)
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> round(cv.mean, 3)
    3.125
    """

    unit_loss: Callable[[PyTree, PyTree], Scalar]
    penalty: Callable[[PyTree], Scalar] | None
    data: PyTree
    theta0: PyTree
    labels: Names = static()

    def __init__(
        self,
        unit_loss: Callable[[PyTree, PyTree], Scalar],
        data: PyTree,
        penalty: Callable[[PyTree], Scalar] | None = None,
        theta0: PyTree = None,
    ):
        self.unit_loss = unit_loss
        self.penalty = penalty
        if isinstance(data, list):
            leaves = [data]
            tree = None
        else:
            leaves, tree = jax.tree.flatten(data)
        self.labels, *leaves = match_labels(
            "Separable", **{f"data[{k}]": leaf for k, leaf in enumerate(leaves)}
        )
        leaves = [_checked_data(leaf) for leaf in leaves]
        self.data = leaves[0] if tree is None else jax.tree.unflatten(tree, leaves)
        sizes = {len(leaf) for leaf in jax.tree.leaves(self.data)}
        if len(sizes) != 1:
            raise ValueError(
                f"Separable: the arrays of data must have one length; got lengths {sorted(sizes)}."
            )
        self.theta0 = theta0

    def __getstate__(self) -> NamedValues:
        """Send the data to other processes as NumPy arrays, which no setting of JAX there can round
        to float32.
        """
        return vars(self) | {"data": jax.tree.map(np.asarray, self.data)}

    @property
    def num_units(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        total = jnp.asarray(weights) @ self._losses(theta, self.data)
        if self.penalty is None:
            return total
        return total + call_traced("Separable: penalty", self.penalty, theta)

    def _losses(self, theta: PyTree, data: PyTree) -> Float[Array, " some"]:
        unit_loss = lambda datum: call_traced("Separable: unit_loss", self.unit_loss, theta, datum)
        # data on a device may be in float32
        return jax.vmap(unit_loss)(jax.tree.map(lambda x: jnp.asarray(x, float), data))

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: UnitIndex,
        held: PerListed,
    ) -> Array:
        # units are independent, so the other seen units do not matter
        return self._listed(theta, index)

    def _listed(self, theta: PyTree, index: UnitIndex) -> Float[Array, " width"]:
        return self._losses(
            theta, jax.tree.map(lambda x: jnp.asarray(x).at[index].get(mode="clip"), self.data)
        )

    def perturbation(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Scalar:
        return jnp.where(index < self.num_units, delta, 0.0) @ self._listed(theta, index)

    @property
    def units(self) -> Units:
        return Units(names=self.labels.index)

    @property
    def parameters(self) -> Parameters:
        if self.theta0 is None:
            return Parameters()
        return Parameters(start=lambda seed: self.theta0)


# by the value of `Units.serial`
DEPENDENCE: dict[str, bool | None] = {"unknown": None, "independent": False, "serial": True}


class Objective(AbstractObjective):
    """Objective from two functions of your own: `loss(theta, weights)` and, if losses are wanted
    unit by unit, `score`.

    Without `score` the loss of a fold is one number, the joint loss `F(θ, w with the held units at
    1) − F(θ, w)`.

    Parameters
    ----------
    loss : callable
        F, a function of (theta, weights) written in JAX. Weight zero must mean deletion.
    num_units : int
        Number of units, 2 or more.
    score : callable, optional
        Function of (theta, weights, index): the held-out losses of the units in `index`, given all
        units of positive weight.
    dependence : {"unknown", "independent", "serial"}, default: "unknown"
        Dependence between units, by which standard errors go. Serial units depend on their
        neighbours. For unknown dependence there is no standard error, unless the plan has groups or
        blocks.

    Raises
    ------
    TypeError
        If `loss` is not callable.
    ValueError
        If `num_units` or `dependence` is none of the above.

    See Also
    --------
    Separable : Units that are independent given θ.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import leaveout as lo
    >>> x = jnp.array([0.0, 1.0, 2.0, 3.0, 4.0])
    >>> F = lambda theta, weights: weights @ (x - theta) ** 2
    >>> fit = lo.fit(lo.Objective(F, 5, dependence="independent"), jnp.zeros(()))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> round(cv.mean, 3)
    3.125
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
            raise TypeError(
                f"Objective: loss must be a function of (theta, weights); got {type(loss).__name__}."
            )
        size = count("Objective: num_units", num_units, 2)
        if dependence not in DEPENDENCE:
            raise ValueError(
                f"Objective: dependence must be one of {', '.join(map(repr, DEPENDENCE))}; got {dependence!r}."
            )
        self.loss_function = loss
        self.size = size
        self.score_function = score
        self.dependence = dependence

    @property
    def units(self) -> Units:
        return Units(serial=DEPENDENCE[self.dependence])

    @property
    def num_units(self) -> int:
        return self.size

    @property
    def pointwise(self) -> bool:
        return self.score_function is not None

    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        return call_traced("Objective: loss", self.loss_function, theta, weights)

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: UnitIndex,
        held: PerListed,
    ) -> Array:
        if self.score_function is None:
            return super().score(theta, weights, index, held)
        return call_traced(
            "Objective: score",
            self.score_function,
            theta,
            weights,
            jnp.minimum(index, self.size - 1),
        )


class AbstractLinearPredictor(AbstractObjective):
    """Objective of units that see θ only through a few linear predictors.

        F(θ, w) = Σ_n ω_n(w) ℓ(η_n, y_n) + κ(w) R(θ),      η_n = U_n θ ∈ R^outputs.

    The Hessian of a fold differs from the full one by the rows `U_n` that the fold touches.
    """

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of linear predictors of a unit."""

    @property
    @abstractmethod
    def low_rank(self) -> bool:
        """Whether leaving units out changes F in their own terms only (κ = 1, and no weight but
        their own).
        """

    @property
    @abstractmethod
    def smooth(self) -> bool:
        """Whether ℓ is known to be twice continuously differentiable."""

    @abstractmethod
    def rows(self, index: UnitIndex) -> Float[Array, "width outputs params"]:
        """Rows `U_n` of the listed units; any row for padding.

        Parameters
        ----------
        index : array of int, shape (width,)
            Units.

        Returns
        -------
        array of float, shape (width, outputs, params)
            Their rows.
        """

    @abstractmethod
    def derivative(self, theta: PyTree, index: UnitIndex, order: int) -> Arrays:
        """Compute `ω_n(1)` times the derivative of ℓ in η of the given order.

        Parameters
        ----------
        theta : pytree of arrays
            Unconstrained parameters.
        index : array of int, shape (width,)
            Units.
        order : int
            Order of the derivative.

        Returns
        -------
        array of float, shape (width,) or (width, outputs, …)
            Derivatives of the listed units.
        """

    @abstractmethod
    def crossings(self, start: PyTree, end: PyTree) -> Scalar:
        """Count units whose ℓ″ jumps between two parameters; zero for smooth losses.

        Parameters
        ----------
        start, end : pytree of arrays
            Unconstrained parameters.

        Returns
        -------
        int
            The number of units, a scalar array.
        """


def _checked_data(leaf) -> Arrays:
    """Check that data are finite, and store them as float64 in memory.

    Data on a device stay there as they are.
    """
    resident = on_device("Separable", "data", leaf)
    if resident is not None and is_finite(resident):
        return resident
    array = floats("Separable", "data", leaf)
    if not np.isfinite(array).all():
        raise ValueError(
            f"data hold {np.sum(~np.isfinite(array))} values that are NaN or infinite; drop or impute them."
        )
    return as_stored(array)
