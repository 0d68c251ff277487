"""Base classes of emissions: the log-density of one observation in one state, its parameters, their
priors and starts.

Parameters are natural everywhere but in θ: a dict of named arrays, whose first axis counts the
states unless the name is in `shared`. Priors are densities of the natural parameters, without
Jacobian, so that the posterior mode does not depend on the parametrisation. A prior that is not
given takes its scale from the data, once, by `with_data`; hyperparameters that were given stay.
"""

import copy
import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Inexact, Int
from numpy import ndarray
from numpy.typing import ArrayLike
from scipy.cluster import vq

from ..._runtime import (
    AnyFlags,
    AnyTuple,
    Array,
    Arrays,
    Module,
    PyTree,
    Scalar,
    Shape,
    StepNumbers,
    UnaryFunction,
    call_traced,
    jax,
    jnp,
    numpy_of,
    silence,
    static,
)
from ...objectives import as_stored

Parameters = Mapping[str, Arrays]
Observations = Float[ndarray, "steps channels"]
Past = Float[ndarray, "past channels"]  # observations before a step, in the same sequence
Row = Float[ndarray, " channels"]  # the observation of one step
Lengths = Int[ndarray, " sequences"]
StepFlags = Bool[ndarray, " steps"]
LogDensities = Inexact[Arrays, "steps states"]
Means = Float[Array, "steps states channels"]


class Constraint(NamedTuple):
    """Bijection between an unconstrained array and a natural parameter.

    Parameters
    ----------
    natural : callable
        Function from the unconstrained array to the parameter, in JAX; ours compute arrays of NumPy
        in NumPy, with any leading axes, and are analytic.
    unconstrained : callable
        Function from the parameter to the unconstrained array, in NumPy or JAX.
    entries : callable, optional
        Function from the shape of the parameter to a boolean array, true for entries that θ holds.
        The default is all.
    legal : callable, optional
        Function from the parameter to booleans, true for entries, rows or matrices in the domain.
        The default is finite numbers.
    domain : str, default: "finite"
        Domain in words, for messages.
    leading : bool, default: True
        Whether `natural` takes arrays of NumPy with further leading axes.

    Examples
    --------
    >>> import leaveout as lo
    >>> float(lo.emissions.POSITIVE.unconstrained(1.0))
    0.0
    """

    natural: UnaryFunction
    unconstrained: Callable[[ndarray], ArrayLike]
    # marks as many entries as θ has
    entries: Callable[[Shape], AnyFlags] = lambda shape: np.ones(shape, bool)
    # tells which entries, rows or matrices are in the domain
    legal: Callable[[ndarray], AnyFlags | np.bool_] = np.isfinite
    domain: str = "finite"  # name of the domain in messages
    leading: bool = True  # whether arrays of NumPy may have further leading axes


def _log_ratios(p: ndarray) -> ndarray:
    # keeps a last entry of zero finite
    return np.log(p[..., :-1]) - np.log(np.maximum(p[..., -1:], 1e-300))


def but_last(shape: Shape) -> AnyFlags:
    """Mark all entries but the last of each row."""
    return np.broadcast_to(np.arange(shape[-1]) < shape[-1] - 1, shape)


def with_last(ratios: Arrays) -> Arrays:
    """Append the log-ratio of the last entry, zero."""
    return numpy_of(ratios).concatenate([ratios, np.zeros((*ratios.shape[:-1], 1))], -1)


def _simplex(ratios: Arrays) -> Arrays:
    return numpy_of(ratios).exp(log_simplex(with_last(ratios)))


def log_simplex(logits: Arrays) -> Arrays:
    """Logarithms of the probabilities of logits, over the last axis."""
    if not isinstance(logits, ndarray):
        return jax.nn.log_softmax(logits, axis=-1)
    shifted = logits - logits.real.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


Constraints = dict[str, Constraint]
REAL = Constraint(lambda v: v, lambda v: v)
POSITIVE = Constraint(
    lambda v: numpy_of(v).exp(v),
    np.log,
    legal=lambda v: (v > 0) & (v < np.inf),
    domain="positive and finite",
)
PROBABILITY = Constraint(
    lambda v: 1 / (1 + numpy_of(v).exp(-v)),
    lambda p: np.log(p) - np.log1p(-p),
    legal=lambda p: (p >= 0) & (p <= 1),
    domain="between zero and one",
)
SIMPLEX = Constraint(  # over the last axis, against the last entry
    _simplex,
    _log_ratios,
    but_last,
    lambda p: (p >= 0).all(-1) & np.isclose(p.sum(-1), 1),
    "probabilities that sum to one in each row",
)


def check(x: ndarray, inside: ndarray, emission: str, domain: str) -> None:
    """Raise ValueError if an observed entry of x is outside the emission's domain.

    NaN is missing and accepted.
    """
    outside = ~np.isnan(x) & ~inside
    if outside.any():
        step = int(np.flatnonzero(outside.reshape(len(x), -1).any(1))[0])
        first = x[step][outside[step]].flat[0]
        raise ValueError(
            f"{emission}: observations must be {domain}; got {outside.sum()} other values, the first {first:g} at step {step}. "
            "A missing value is NaN."
        )


def times(weights: Any, logs: Any) -> Any:
    """Compute `w log p`, zero if both are zero, as a zero probability to the power of zero is
    one.
    """
    xp = numpy_of(logs)
    return weights * xp.where((weights == 0) & ~xp.isfinite(logs), 0.0, logs)


class AbstractEmission(Module):
    """Density of an observation given the state.

    An emission of your own defines `free`, `log_density` and `initial`, and `log_prior` for a
    prior. Parameters are natural: a dict of arrays, whose first axis counts the states, unless all
    states share them.
    """

    @property
    @abstractmethod
    def free(self) -> Constraints:
        """Free parameters by name, each with its `Constraint`."""

    @abstractmethod
    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        """Compute the log-density of one step's datum in one state, by JAX.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of the state, without the axis of states.
        datum : pytree
            Data of the step, as `prepare` returns them.

        Returns
        -------
        scalar
            The log-density.
        """

    @abstractmethod
    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        """Return natural parameters from which a fit starts.

        Parameters
        ----------
        data : pytree
            Data of all steps, as `prepare` returns them.
        observed : array of bool, shape (steps,)
            True for steps that have a density.
        num_states : int
            Number of states.
        seed : int
            Seed of the random numbers.

        Returns
        -------
        dict of array
            Natural parameters.
        """

    def log_prior(self, parameters: Parameters) -> Scalar | float:
        """Compute the log-density of the prior of the natural parameters, up to a constant. The
        default is flat.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.

        Returns
        -------
        scalar
            The log-density.
        """
        return 0.0

    @property
    def score(self) -> str:
        """Score that −log of the density is.

        `LOG_DENSITY`, `LOG_PROBABILITY`, or "" where the emission does not say.
        """
        return ""

    @property
    def prior_note(self) -> str:
        """Prior in words, for printed results."""
        if type(self).log_prior is not AbstractEmission.log_prior:
            return f"{type(self).__name__}'s own"
        return f"{', '.join(self.free)} flat"

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        """Return the data that `log_density` takes, after a check of the domain.

        A step with NaN is missing. Its values arrive here as NaN and must leave as legal numbers.

        Parameters
        ----------
        x : array of float, shape (steps, channels)
            Observations.
        lengths : array of int, shape (sequences,)
            Lengths of the sequences.

        Returns
        -------
        pytree of array
            Data, whose first axis is the steps.

        Raises
        ------
        ValueError
            If observations lie outside the domain.
        """
        check(x, np.isfinite(x), type(self).__name__, "finite")
        return np.where(np.isnan(x), 0.0, x)

    def match_labels(self, caller: str, index: pd.Index | None) -> "AbstractEmission":
        """Copy the emission with its data on steps, such as an exposure, in the order of the labels
        of the steps.

        Parameters
        ----------
        caller : str
            Name of the model, for messages.
        index : pandas.Index or None
            Labels of the steps.

        Returns
        -------
        AbstractEmission
            The emission.
        """
        return self

    def with_data(self, x: Observations) -> "AbstractEmission":
        """Copy the emission with the hyperparameters that its default prior takes from the scale of
        the data.

        It is called once, before `prepare`. Hyperparameters stay as they are when data are left
        out.

        Parameters
        ----------
        x : array of float, shape (steps, channels)
            Observations.

        Returns
        -------
        AbstractEmission
            The emission.
        """
        return self

    def has_density(self, x: Observations, lengths: Lengths) -> StepFlags:
        """Tell which steps have a density: those observed in all channels, with observed
        regressors. Others have weight zero.

        Parameters
        ----------
        x : array of float, shape (steps, channels)
            Observations.
        lengths : array of int, shape (sequences,)
            Lengths of the sequences.

        Returns
        -------
        array of bool, shape (steps,)
            True for steps with a density.
        """
        return ~np.isnan(x).any(axis=1)

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        """Compute `log_density` of every step in every state. Override it if tables or matrix
        products are faster.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.
        data : pytree
            Data of all steps.

        Returns
        -------
        array of float, shape (steps, states)
            The log-densities.
        """
        axes = {name: None if name in self.shared else 0 for name in parameters}
        caller = f"{type(self).__name__}.log_density"

        def density(state: Parameters, datum: PyTree) -> Scalar:
            value = call_traced(caller, self.log_density, state, datum)
            if jnp.shape(value):
                raise ValueError(
                    f"{caller} must return one number for each step, whose channels are an array; got shape {value.shape}."
                )
            return value

        return jax.vmap(jax.vmap(density, (axes, None)), (None, 0))(parameters, data)

    def statistics(self, data: PyTree) -> Float[ndarray, "steps statistics"] | None:
        """Return numbers of each step of which its log-densities are sums, weighted by the
        coefficients that `table` returns; None, the default, if that has the log-densities.

        Parameters
        ----------
        data : pytree
            Data of all steps.

        Returns
        -------
        array of float, shape (steps, statistics), or None
            The statistics.
        """
        return None

    def table(self, parameters: Parameters, data: PyTree) -> Any:
        """Compute the coefficients of the statistics in the log-densities of each state, in NumPy.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states, real or complex.
        data : pytree
            Data of all steps.

        Returns
        -------
        array, shape (states, statistics)
            The coefficients; without statistics, the log-densities of the steps.
        """
        return self.log_densities(parameters, data).T

    def tables(self, parameters: Parameters, data: PyTree) -> Any:
        """Compute `table` of many sets of free parameters, the first axis of each array.

        Parameters
        ----------
        parameters : dict of array
            Sets of the free parameters.
        data : pytree
            Data of all steps.

        Returns
        -------
        array, shape (sets, states, statistics)
            The coefficients.
        """
        sets = len(next(iter(parameters.values())))
        if self.shared & set(self.free):
            return np.array(
                [
                    self.table(
                        {**{name: value[k] for name, value in parameters.items()}, **self.fixed},
                        data,
                    )
                    for k in range(sets)
                ]
            )
        # the sets as so many more states
        states = {name: value.reshape(-1, *value.shape[2:]) for name, value in parameters.items()}
        for name, value in self.fixed.items():
            states[name] = value if name in self.shared else np.concatenate([value] * sets)
        table = self.table(states, data)
        return table.reshape(sets, -1, table.shape[1])

    def weigh(self, weights: Array, logs: Array) -> Array:
        """Weigh log-densities: the contribution of observations to the log-potentials of their
        states, zero at weight zero.

        Parameters
        ----------
        weights : array of float
            Weights of the observations.
        logs : array of float
            Log-densities.

        Returns
        -------
        array of float
            Products of the two, zero where the weight is zero.
        """
        return times(weights, logs)

    closed_slopes: ClassVar[bool] = False  # whether `slopes` is there

    def slopes(self, parameters: Parameters, data: PyTree, expected: ndarray) -> Parameters:
        """Differentiate `Σ_t expected_{kt} log e_t(k)` in the natural parameters, where these are
        many.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.
        data : pytree
            Data of all steps.
        expected : array of float, shape (..., states, steps)
            Expected observations of each state, or many such arrays.

        Returns
        -------
        dict of array
            Derivatives in the free parameters, of each such array.
        """
        raise NotImplementedError

    def curvature(
        self, parameters: Parameters, data: PyTree, expected: Float[ndarray, "steps states"]
    ) -> Float[ndarray, "states own own"] | None:
        """Compute `−Σ_t expected_{tk} ∇² log e_t(k)` in the unconstrained parameters of each state
        k.

        Parameters that states share are left out; the others are raveled by name, in alphabetical
        order. Override the method if there are many parameters and a closed form.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.
        data : pytree
            Data of all steps.
        expected : array of float, shape (steps, states)
            Expected observations of each state, or the sums of `statistics` over these.

        Returns
        -------
        array of float, shape (states, own, own), or None
            The curvature; None if differentiation is to find it.
        """
        return None

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        """Compute the mean observation of every step in every state.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.
        data : pytree
            Data of all steps.

        Returns
        -------
        array of float, shape (steps, states, channels)
            The means.

        Raises
        ------
        NotImplementedError
            If the emission defines none; predictions need them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no means(); predictions need them.")

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: np.random.Generator
    ) -> Row:
        """Draw one observation in a state.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.
        state : int
            State.
        step : int
            Number of the step.
        past : array of float, shape (past, channels)
            Observations before it in the same sequence, the most recent one last.
        rng : numpy.random.Generator
            Random numbers.

        Returns
        -------
        array of float, shape (channels,)
            The observation.

        Raises
        ------
        NotImplementedError
            If the emission defines none; simulations and forecasts need it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no draw(); simulations and forecasts need it."
        )

    @property
    def shared(self) -> frozenset[str]:
        """Names of parameters that all states share, which have no axis of states."""
        return frozenset()

    @property
    def fixed(self) -> Parameters:
        """Natural parameters that are held fixed. All methods get them beside the free ones."""
        return {}

    @property
    def reach(self) -> int:
        """Number of later steps that have an observation among their regressors.

        The order of an autoregression.
        """
        return 0

    @property
    def num_states(self) -> int | None:
        """Number of states if the emission is for one number only, else None."""
        return None

    def order(self, parameters: Parameters) -> Int[Arrays, " states"]:
        """Return the canonical order of the states: by the first number of the first free parameter
        that has an axis of states.

        States that a fixed parameter distinguishes keep their order.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.

        Returns
        -------
        array of int, shape (states,)
            The order.
        """
        for name, value in self.fixed.items():
            if name not in self.shared:
                return np.arange(len(value))
        name = next(name for name in self.free if name not in self.shared)
        value = np.asarray(parameters[name])
        return np.argsort(value.reshape(len(value), -1)[:, 0], kind="stable")

    def permute(self, parameters: Parameters, order: Int[Arrays, " states"]) -> Parameters:
        """Put the states into another order.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters of all states.
        order : array of int, shape (states,)
            Order of the states.

        Returns
        -------
        dict of array
            Natural parameters in this order.
        """
        return {
            name: value if name in self.shared else value[order]
            for name, value in parameters.items()
        }


Numbers = Any  # a number or an array of hyperparameters, which is stored as an array of NumPy


class AbstractPrior(Module):
    """Density of one parameter, from one number or array for each field, which may have leading
    axes.
    """

    signed: ClassVar[str] = ""  # the field that need not be positive, if there is one

    def __init__(self, *numbers: ArrayLike):
        prior = type(self).__name__.removesuffix("Prior")
        names = [field.name for field in dataclasses.fields(self)]
        if len(numbers) != len(names):
            raise TypeError(f"{prior} prior: give {', '.join(names)}; got {len(numbers)} values.")
        for name, value in zip(names, numbers, strict=True):
            array = as_stored(value)
            if name != self.signed and not (np.isfinite(array).all() and (array > 0).all()):
                raise ValueError(f"{prior} prior: {name} must be positive and finite; got {array}.")
            setattr(self, name, array)

    @abstractmethod
    def __call__(self, value: Arrays) -> Arrays:
        """Compute the log-density up to a constant, of each entry or matrix."""

    def __str__(self) -> str:
        shown = [_short(getattr(self, field.name)) for field in dataclasses.fields(self)]
        return f"{type(self).__name__.removesuffix('Prior')}({', '.join(shown)})"


def _short(array: ndarray) -> str:
    """Write a number, a few numbers, or the shape of an array."""
    if array.ndim == 0:
        return f"{array:.4g}"
    if array.ndim == 1 and len(array) < 4:
        return f"[{', '.join(f'{entry:.4g}' for entry in array)}]"
    return f"array of shape {list(array.shape)}"


class GammaPrior(AbstractPrior):
    """`(a − 1) log v − b v`, shape a and rate b."""

    shape: Numbers
    rate: Numbers

    def __call__(self, value: Arrays) -> Arrays:
        return (self.shape - 1) * numpy_of(value).log(value) - self.rate * value


class InverseGamma(AbstractPrior):
    """`−(a + 1) log v − b / v`, shape a and scale b."""

    shape: Numbers
    scale: Numbers

    def __call__(self, value: Arrays) -> Arrays:
        return -(self.shape + 1) * numpy_of(value).log(value) - self.scale / value


class Normal(AbstractPrior):
    """`−½ ((v − m) / s)²`, mean m and standard deviation s.

    Of a matrix, the matrix normal with diagonal covariances.
    """

    signed = "mean"

    mean: Numbers
    sd: Numbers

    def __call__(self, value: Arrays) -> Arrays:
        return -0.5 * ((value - self.mean) / self.sd) ** 2


class MatrixNormal(AbstractPrior):
    """Prior of independent entries `[…, lags, R, R]` about c times the identity at the first lag
    and about zero at the others.

    Its logarithm is `−½ ((v − c 1) / s)²`.
    """

    signed = "identity"

    identity: Numbers
    sd: Numbers

    def __call__(self, value: Arrays) -> Arrays:
        centre = np.zeros(value.shape[-3:])
        centre[0] = np.eye(value.shape[-1])
        return -0.5 * ((value - self.identity * centre) / self.sd) ** 2


class BetaPrior(AbstractPrior):
    """`(a − 1) log v + (b − 1) log(1 − v)`."""

    a: Numbers
    b: Numbers

    def __call__(self, value: Arrays) -> Arrays:
        xp = numpy_of(value)
        return (self.a - 1) * xp.log(value) + (self.b - 1) * xp.log1p(-value)


class DirichletPrior(AbstractPrior):
    """`Σ (α − 1) log v` over the last axis, for any sum."""

    concentration: Numbers

    def __call__(self, value: Arrays) -> Arrays:
        return (self.concentration - 1) * numpy_of(value).log(value)


Priors = dict[str, AbstractPrior]
Choice = Mapping[str, AnyTuple | None] | None | Literal["default"]


class AbstractWithPrior(AbstractEmission):
    """Emission with independent priors by parameter, whose `log_density` is that of one step in
    `log_densities`.
    """

    prior: Priors
    adaptive: frozenset[str] = static()

    @abstractmethod
    def default_prior(self, x: Observations) -> Priors:
        """Return the default priors at the data's scale, which is one where nothing is observed."""

    def _choose_prior(self, choice: Choice, channels: int = 1) -> None:
        """Choose the priors by parameter.

        The data will determine the scale of the `adaptive` ones.
        """
        default = self.default_prior(np.full((1, channels), np.nan))
        name = type(self).__name__
        if isinstance(choice, str) and choice != "default":
            raise ValueError(
                f'{name}: prior must be "default", None (flat) or a dict; got {choice!r}.'
            )
        if choice is None:
            choice = dict.fromkeys(default)
        chosen = {} if isinstance(choice, str) else choice
        if unknown := set(chosen) - set(default):
            raise ValueError(
                f"{name}: prior for {sorted(unknown)}, but the free parameters are {list(default)}."
            )
        defaults = {key: prior for key, prior in default.items() if key not in chosen}
        choices = {
            key: type(default[key])(*values) for key, values in chosen.items() if values is not None
        }
        self.prior = {**defaults, **choices}
        self.adaptive = frozenset(defaults)

    def with_data(self, x: Observations) -> AbstractEmission:
        if not self.adaptive:
            return self
        # `prepare` refuses values that are not finite
        scaled = self.default_prior(np.where(np.isfinite(x), x, np.nan))
        out = copy.copy(self)
        vars(out)["prior"] = {
            name: scaled[name] if name in self.adaptive else value
            for name, value in self.prior.items()
        }
        return out

    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        state = {
            name: value if name in self.shared else jnp.asarray(value)[None]
            for name, value in parameters.items()
        }
        return self.log_densities(
            state, jax.tree.map(lambda value: jnp.asarray(value)[None], datum)
        )[0, 0]

    def log_prior(self, parameters: Parameters) -> Scalar | float:
        return sum((prior(parameters[name]).sum() for name, prior in self.prior.items()), 0.0)

    @property
    def prior_note(self) -> str:
        return ", ".join(
            f"{name} ~ {self.prior[name]}" if name in self.prior else f"{name} flat"
            for name in self.free
        )


def clusters(x: Float[ndarray, "steps features"], num_states: int, seed: int) -> StepNumbers:
    """Label standardised rows by k-means, with centres from a subsample.

    Too few rows are labelled in turn.
    """
    rng = np.random.default_rng(seed)
    if len(x) <= num_states:
        return rng.permutation(num_states)[: len(x)]
    sd = x.std(0)
    z = (x - x.mean(0)) / np.where(sd > 0, sd, 1.0)
    sample = z if len(z) <= 5000 else z[rng.choice(len(z), 5000, replace=False)]
    # a cluster is empty if there are fewer distinct rows than states
    with warnings.catch_warnings(), silence("invalid"):
        warnings.simplefilter("ignore", UserWarning)
        centres, _ = vq.kmeans2(sample, num_states, 30, minit="++", rng=rng)
    return vq.vq(z, centres)[0].astype(int)
