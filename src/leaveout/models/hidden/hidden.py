"""Models of hidden states.

Readers of sequences and fields, results in the type of the data, and the parameters.
"""

from abc import abstractmethod
from collections.abc import Collection, Hashable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Inexact
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import (
    AnyFlags,
    AnyTuple,
    Array,
    Arrays,
    NamedArrays,
    NamedValues,
    PyTree,
    Shape,
    Strings,
    Texts,
    jax,
    numpy_of,
    silence,
    static,
    warn,
)
from ...data import Names, count, floats, index_of, numbers, pandas_of, places
from ...objectives import AbstractObjective, PerUnit, Units, as_stored, float64
from ..emissions._base import (
    POSITIVE,
    PROBABILITY,
    REAL,
    SIMPLEX,
    AbstractEmission,
    Constraint,
    Lengths,
    Observations,
    Parameters,
    StepFlags,
)
from ..emissions.gaussian import MATRIX

Steps = ndarray | pd.Series  # one value for each step or site, in the type of the data
Table = ndarray | pd.DataFrame  # several values
PREDICTIONS = "response", "state"  # kinds of predictions
# share of a usual value below which a probability, a rate or a variance is at the boundary
BOUNDARY_SHARE = 1e-6
IDLE_STATE_COUNT = 1.0  # expected observations below which a state explains nothing
# domains of the parameters of the states' distribution
LATENT = {
    "initial": SIMPLEX,
    "transition": SIMPLEX,
    "coupling": REAL,
    "external": REAL,
}


@runtime_checkable
class HasParameters(Protocol):
    """Object that has natural parameters, as a `Fit` has."""

    @property
    def parameters(self) -> NamedArrays: ...


GivenParameters = NamedArrays | dict[str, ArrayLike] | HasParameters


class SeriesLabels(Names):
    """Labels of the steps and of the channels."""

    columns: Any | None

    def __init__(self, index: pd.Index | None, columns: pd.Index | None, name: Hashable = None):
        super().__init__(index, name=name)
        self.columns = columns

    def units(self, drop: str) -> pd.Index | None:
        """Labels of the units if these are steps; None if they are sequences."""
        return None if drop == "sequence" else self.index

    def series(self, values: ndarray, name: Hashable = None) -> Steps:
        """Return one value a step: a Series if the data came as a Series or DataFrame."""
        if self.index is None:
            return values
        return pd.Series(values, index=self.index, name=name)

    def frame(self, values: ndarray, columns: Collection[Any]) -> Table:
        """Return several values a step."""
        if self.index is None:
            return values
        return pd.DataFrame(values, index=self.index, columns=columns)

    def channels(self, values: ndarray) -> Steps | Table:
        """Return values of channels in the type of the data.

        The shape is `[steps, channels]`, or `[steps]` if the data had no axis of channels. If the
        means are probabilities of symbols, there is a column for each symbol.
        """
        if values.shape[1] != (1 if self.columns is None else len(self.columns)):
            return self.frame(values, range(values.shape[1]))
        if self.columns is None:
            return self.series(values[:, 0], self.name)
        return self.frame(values, self.columns)

    def forecast_table(
        self, steps: int, parts: Mapping[Hashable, Float[ndarray, "horizon channels"]]
    ) -> pd.DataFrame:
        """Table of the steps after the data, a column for each part.

        Several channels have a group of columns each.
        """
        index = self._later(steps, len(next(iter(parts.values()))))
        channel_table = lambda r: pd.DataFrame(
            {name: value[:, r] for name, value in parts.items()}, index=index
        )
        if self.columns is None or len(self.columns) == 1:
            return channel_table(0)
        return pd.concat(
            {column: channel_table(r) for r, column in enumerate(self.columns)}, axis=1
        )

    def _later(self, steps: int, horizon: int) -> pd.Index:
        """Return labels of the steps after the data; a regular index is continued."""
        if isinstance(self.index, pd.DatetimeIndex | pd.PeriodIndex):
            frequency = getattr(self.index, "freq", None) or (
                pd.infer_freq(self.index) if len(self.index) > 2 else None
            )
            if frequency is not None:
                span = pd.period_range
                if isinstance(self.index, pd.DatetimeIndex):
                    span = pd.date_range
                return span(self.index[-1], periods=horizon + 1, freq=frequency)[1:]
        elif self.index is not None and self.index.dtype.kind in "iuf" and len(self.index) > 1:
            gaps = np.diff(np.asarray(self.index))
            if (gaps == gaps[0]).all():
                return pd.Index(
                    self.index[-1] + gaps[0] * np.arange(1, horizon + 1), name=self.index.name
                )
        return pd.RangeIndex(steps, steps + horizon)


class FieldLabels(Names):
    """Labels of the sites, and of the fields if there are several, as the caller named them."""

    fields: Any | None
    single: bool

    def __init__(self, index: pd.Index | None, fields: pd.Index | None, single: bool):
        super().__init__(index)
        self.fields = fields
        self.single = single

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldLabels) and self.single == other.single

    def __hash__(self) -> int:
        return hash(self.single)

    def units(self, drop: str) -> pd.Index | None:
        """Labels of the units: sites, pairs of a field and a site, or fields."""
        if drop == "field" or self.index is None:
            return self.fields if drop == "field" else None
        if self.fields is None:
            return self.index
        return pd.MultiIndex.from_product([self.fields, self.index])

    def sites(self, values: ndarray) -> Steps:
        """Return one value a site.

        A Series if the data came as a Series, without an axis of fields if the data had none.
        """
        if self.single:
            values = values[0]
        if self.index is None or not self.single:
            return values
        return pd.Series(values, index=self.index, name="state")

    def states(self, values: ndarray) -> Table:
        """Return one value for each site and state."""
        if self.single:
            values = values[0]
        if self.index is None or not self.single:
            return values
        return pd.DataFrame(values, index=self.index, columns=range(values.shape[-1]))


def read_series(x: ArrayLike) -> tuple[Observations, SeriesLabels]:
    """Read the data as float64, with NaN where missing or masked, and their labels."""
    index = index_of(x)
    x = pandas_of("HMM", "x", x)
    columns = x.columns if isinstance(x, pd.DataFrame) else None
    shape = np.shape(x)
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        raise ValueError(
            f"HMM: x must be [steps] or [steps, channels], a channel or more, sequences end to end (lengths=); got shape {shape}."
        )
    if shape[0] < 2:
        raise ValueError(f"HMM: at least two steps are needed; got {shape[0]}.")
    if shape[0] < shape[-1] and len(shape) == 2:
        warn(
            f"HMM: x of shape {shape} is read as {shape[0]} steps of {shape[1]} channels; sequences go end to end, with lengths=."
        )
    if len(shape) == 2 and columns is None:
        columns = pd.RangeIndex(shape[1])
    array = np.array(numbers("HMM", "x", x), float).reshape(shape[0], -1)
    if np.isinf(array).any():
        t, r = np.argwhere(np.isinf(array))[0]
        raise ValueError(
            f"HMM: x holds {np.isinf(array).sum()} infinite values, the first at step {t}, channel {r}."
        )
    if np.isnan(array).any(1).all():
        raise ValueError("HMM: every step of x is missing (NaN).")
    return array, SeriesLabels(index, columns, getattr(x, "name", None))


def read_fields(x: ArrayLike) -> tuple[Float[ndarray, "fields sites channels"], FieldLabels]:
    """Read the data as float64, with NaN where missing."""
    index = index_of(x)
    fields = None
    x = pandas_of("MRF", "x", x)
    if isinstance(x, pd.DataFrame):  # rows are fields and columns sites
        index = x.columns
        fields = x.index
    shape = np.shape(x)
    if len(shape) not in (1, 2, 3) or 0 in shape:
        raise ValueError(
            f"MRF: x must be [sites], [fields, sites] or [fields, sites, channels], none empty; got shape {shape}."
        )
    array = np.array(numbers("MRF", "x", x), float)
    single = array.ndim == 1
    if single:
        array = array[None, :, None]
    elif array.ndim == 2:
        array = array[..., None]
    if array.shape[1] < 2:
        raise ValueError(f"MRF: at least two sites are needed; got {array.shape[1]}.")
    if np.isinf(array).any():
        f, s, _ = np.argwhere(np.isinf(array))[0]
        raise ValueError(
            f"MRF: x holds {np.isinf(array).sum()} infinite values, the first in field {f} at site {s}."
        )
    if np.isnan(array).any(-1).all():
        raise ValueError("MRF: every observation in x is missing (NaN).")
    return as_stored(array), FieldLabels(index, fields, single)


def read_weights(
    model: str, weights: ArrayLike | None, num_units: int, names: pd.Index | None
) -> PerUnit:
    """Read the weights of the units, one by default, in the units' order by their labels."""
    index = index_of(weights)
    if names is not None and index is not None and len(index) == num_units:
        order = places(model, "weights", index, "x", names)
        weights = weights if order is None else weights.iloc[order]  # type: ignore[union-attr]
    array = np.ones(num_units) if weights is None else floats(model, "weights", weights)
    if array.shape != (num_units,) or not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(
            f"{model}: weights must be {num_units} numbers, one a unit, finite, not negative; "
            f"got {_describe_weights(array, num_units)}."
        )
    return array


def _describe_weights(weights: ndarray, num_units: int) -> str:
    """Describe the error in an array of weights."""
    if weights.shape != (num_units,):
        return f"shape {list(weights.shape)}"
    first = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
    return f"{weights[first]:g} for unit {first}"


def read_parameters(
    model: str,
    parameters: GivenParameters,
    shapes: dict[str, Shape],
    optional: Collection[str] = (),
) -> NamedArrays:
    """Read natural parameters of these shapes from a `Fit` or a dict; more may be `optional`."""
    mapping = getattr(parameters, "parameters", parameters)
    if (
        not isinstance(mapping, dict)
        or set(shapes) - set(mapping)
        or set(mapping) - {*shapes, *optional}
    ):
        got = sorted(mapping) if isinstance(mapping, dict) else type(mapping).__name__
        raise ValueError(f"{model}: parameters are {sorted(shapes)}; got {got}.")
    values = {name: np.asarray(mapping[name], float) for name in shapes}
    for name, shape in shapes.items():
        if values[name].shape != shape:
            raise ValueError(
                f"{model}: {name} must have shape {list(shape)}; got {list(values[name].shape)}."
            )
    return values


def read_lengths(model: str, lengths: ArrayLike | None, steps: int, size_text: str) -> Lengths:
    """Read the lengths of the sequences in the data; without them there is one sequence."""
    if lengths is None:
        return np.array([steps])
    array = np.asarray(lengths)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        raise ValueError(
            f"{model}: lengths must be whole numbers, one for each sequence; got {lengths!r}."
        )
    empty = np.flatnonzero(array < 1)
    if empty.size:
        raise ValueError(
            f"{model}: lengths must be positive integers; sequence {empty[0]} has length {array[empty[0]]} ({empty.size} are "
            "empty): drop empty ones."
        )
    if array.sum() != steps:
        raise ValueError(f"{model}: lengths add up to {array.sum()}, but {size_text}.")
    return array.astype(int)


class AbstractHiddenStates(AbstractObjective):
    """Objective whose units are observed through emissions of hidden states."""

    x: Float[ndarray, "... channels"]
    data: PyTree  # x as prepared by the emission
    dense: AnyFlags  # whether there is an observation
    emission: AbstractEmission
    drop: str = static()
    joint: bool = static()
    shapes: AnyTuple = static()  # shapes of the emission's free parameters
    labels: Any = static()  # of the steps or sites
    latent: ClassVar[Strings]  # natural parameters of the states' distribution
    # what is left out by each `drop`; the last leaves whole sequences or fields out
    styles: ClassVar[Texts]

    @property
    @abstractmethod
    def num_states(self) -> int:
        """Number of states."""

    @property
    @abstractmethod
    def latent_shapes(self) -> dict[str, Shape]:
        """Shapes of the free parameters among `latent`."""

    @abstractmethod
    def latent_unconstrained(self, name: str, value: ndarray) -> ndarray:
        """Part of θ for one of the parameters `latent`."""

    @abstractmethod
    def log_likelihood(self, parameters: GivenParameters) -> float:
        """Compute log p(x; θ), without the prior.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The log-likelihood.
        """

    def read_choices(self, emission: object, num_states: object, drop: str, score: str) -> None:
        """Set what is left out and scored.

        Raise TypeError or ValueError if a choice, or the emission, is not valid.
        """
        model = type(self).__name__
        if not isinstance(emission, AbstractEmission):
            raise TypeError(
                f"{model}: emission must be an object such as lo.emissions.Gaussian(); got {emission!r}."
            )
        if model == "HMM" and type(emission).weigh is not AbstractEmission.weigh:
            raise ValueError(
                f"HMM: {type(emission).__name__} is for fields; a chain whose states are seen is a Markov chain: its "
                "transitions are counted."
            )
        count(f"{model}: num_states", num_states, 1)
        if emission.num_states not in (None, num_states):
            raise ValueError(
                f"{model}: {type(emission).__name__} has {emission.num_states} states; got num_states={num_states}."
            )
        for name, value, choices in (
            ("drop", drop, self.styles),
            ("score", score, ("pointwise", "joint")),
        ):
            if value not in choices:
                raise ValueError(
                    f"{model}: {name} must be one of {', '.join(map(repr, choices))}; got {value!r}."
                )
        self.drop = drop
        self.joint = score == "joint"

    def read_emission(
        self,
        emission: AbstractEmission,
        rows: Observations,
        lengths: Lengths,
    ) -> tuple[PyTree, StepFlags, Parameters]:
        """Set the emission; return its data, which steps or sites have a density, and parameters to
        start from.
        """
        self.emission = emission.match_labels(type(self).__name__, self.labels.index).with_data(
            rows
        )
        data = self.emission.prepare(rows, lengths)
        dense = self.emission.has_density(rows, lengths)
        start = self.emission.initial(data, dense, self.num_states, 0)
        self.shapes = tuple((name, np.shape(start[name])) for name in self.emission.free)
        return data, dense, start

    def latent_names(self, name: str) -> list[str]:
        """Names of the entries of a parameter of the states' distribution."""
        return entries(name, np.ones(self.latent_shapes[name], bool))

    def emission_parameters(self, theta: PyTree) -> dict[str, Array]:
        """Return the emission's natural parameters, free and fixed."""
        free = {
            name: constraint.natural(theta[name]) for name, constraint in self.emission.free.items()
        }
        return {**free, **self.emission.fixed}

    @float64
    def _to_unconstrained(self, parameters):
        model = type(self).__name__
        shapes = {**self.latent_shapes, **dict(self.shapes)}
        theta = {}
        for name, value in read_parameters(
            model, parameters, shapes, {*self.latent, *self.emission.fixed}
        ).items():
            emission_constraint = self.emission.free.get(name)
            constraint = LATENT[name] if emission_constraint is None else emission_constraint
            with silence("divide", "invalid"):  # logarithms of zeros are infinite
                coordinates = np.asarray(
                    self.latent_unconstrained(name, value)
                    if emission_constraint is None
                    else emission_constraint.unconstrained(value)
                )
                index = _outside(value, coordinates, constraint)
            if index is not None:
                got = f"{name}{index or ''} = {value[tuple(index)].tolist()}"
                raise ValueError(f"{model}: {name} must be {constraint.domain}; got {got}.")
            theta[name] = coordinates
        return theta

    def _names(self) -> list[str]:
        latent = {name: self.latent_names(name) for name in self.latent_shapes}
        emission = {
            name: entries(name, self.emission.free[name].entries(shape))
            for name, shape in self.shapes
        }
        return [entry for _, entries in sorted({**latent, **emission}.items()) for entry in entries]

    def check_size(self, prior: bool) -> None:
        """Raise ValueError if the data cannot determine the parameters, with or without a `prior`
        of all of them.
        """
        free = len(self._names())
        seen = int(self.dense.sum())
        if seen < self.num_states or (not prior and seen * self.x.shape[-1] < free):
            raise ValueError(
                f"{type(self).__name__}: {seen * self.x.shape[-1]} observations cannot determine {free} parameters of "
                f"{self.num_states} states; take fewer states{'' if prior else ', or a prior'}."
            )

    def check_kind(self, kind: str, targets: str) -> None:
        """Raise ValueError if there are no predictions of this kind."""
        if self.local or kind not in PREDICTIONS:
            raise ValueError(
                f'{type(self).__name__}: predictions are of {targets}, kind "response" (means) or "state"; got {kind!r} with '
                f"drop={self.drop!r}."
            )

    def means(
        self, states: Float[Arrays, "some states"], parameters: NamedValues, data: PyTree
    ) -> Float[Arrays, "some channels"]:
        """Compute the mean observation of each step or site from its state probabilities and the
        emission's parameters.
        """
        means = self.emission.means(parameters, data)
        return numpy_of(means).einsum("tk,tkr->tr", states, means)

    def on_boundary(
        self,
        result: NamedArrays,
        spread: Float[ndarray, " channels"],
        support: NamedValues,
    ) -> str:
        """Name natural parameters at a boundary in a sentence, or return "".

        `support` marks those that are not held there.
        """
        texts = [
            entry
            for name in result
            for entry in near_edge(
                self.emission, name, result[name], spread, support.get(name, True)
            )
        ]
        if texts:
            return f"On the boundary: {', '.join(texts[:5])}{', …' if len(texts) > 5 else ''}; a prior keeps them off it."
        return ""

    @property
    def local(self) -> bool:
        """Whether the units are whole sequences or fields."""
        return self.drop == list(self.styles)[-1]

    @property
    def pointwise(self) -> bool:
        return not self.joint

    @abstractmethod
    def seen_wholes(self) -> Bool[ndarray, " wholes"]:
        """Mark the sequences or fields that have an observation."""

    @property
    def neighbourhood(self) -> NamedValues:
        """Facts about steps or sites as units, for `Units`."""
        return {}

    @property
    def units(self) -> Units:
        names = self.labels.units(self.drop)
        seen = self.seen_wholes() if self.local else np.asarray(self.dense).ravel()
        facts: NamedValues = {
            "kinds": PREDICTIONS,
            "response": self.x,
            "score": self.emission.score,
            "observed": None if seen.all() else seen,  # units with an observation to score
        }
        if self.drop == "sequence":
            chains: Any = self
            facts |= {"rows": chains.sequence, "row_names": chains.labels.index}
        if self.local:
            return Units(names, **facts)
        target = self.x[..., 0].ravel() if self.x.shape[-1] == 1 else None
        return Units(names, serial=True, target=target, **facts, **self.neighbourhood)

    @property
    def num_specified(self) -> int:
        """Number of parameters of the model as specified by the user."""
        return len(self._names())

    def aic(self, parameters: GivenParameters) -> float:
        """Compute Akaike's information criterion, `2 D − 2 log p(x; θ)`.

        D is the number of parameters that were specified. Those that the data put on a boundary,
        where `fit` holds them, count (Zucchini and MacDonald 2009); zeros that the user specified
        do not.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The criterion.
        """
        return 2 * self.num_specified - 2 * self.log_likelihood(parameters)

    def bic(self, parameters: GivenParameters) -> float:
        """Compute the Bayesian information criterion, `D log(number of observations) − 2 log p(x;
        θ)`, with D as in `aic`.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The criterion.
        """
        return self.num_specified * float(np.log(self.dense.sum())) - 2 * self.log_likelihood(
            parameters
        )


def _outside(value: ndarray, result: ndarray, constraint: Constraint) -> list[int] | None:
    """Find the first entry, row or matrix of a natural parameter that is outside its domain or has
    no finite θ.
    """
    illegal = np.argwhere(np.logical_not(constraint.legal(value))).tolist()
    if illegal:
        return illegal[0]
    if result.size == value.size:
        return next(iter(np.argwhere(np.isnan(result)).tolist()), None)
    infinite = np.argwhere(~(result < np.inf)).tolist()  # a matrix not positive definite
    return infinite[0][:-1] if infinite else None


def entries(name: str, which: AnyFlags) -> list[str]:
    """Names of the entries of a parameter where `which` is true, such as `start[0]`."""
    return [name + (str(index) if index else "") for index in np.argwhere(which).tolist()]


def mixture(
    states: Inexact[Arrays, "*units states"], densities: Inexact[Arrays, "*units states"]
) -> Any:
    """Compute `log Σ_k p_k e_k`."""
    xp = numpy_of(densities)
    top = densities.real.max(-1, keepdims=True)
    if xp is not np:
        top = jax.lax.stop_gradient(top)
    top = xp.where(xp.isfinite(top), top, 0.0)
    with silence("divide", "invalid"):
        return xp.log((states * xp.exp(densities - top)).sum(-1)) + top[..., 0]


def near_edge(
    emission: AbstractEmission,
    name: str,
    value: ndarray,
    spread: Float[ndarray, " channels"],
    free: ndarray | bool = True,
) -> list[str]:
    """Describe the entries of a parameter that are at a boundary, and their values.

    `spread` are the variances of the channels; `free` marks the probabilities that are not held.
    """
    constraint = emission.free.get(name, SIMPLEX)
    spread = np.where(spread > 0, spread, 1.0)
    if constraint is MATRIX:
        scaled = value / np.sqrt(spread[:, None] * spread)
        least = np.linalg.eigvalsh(np.where(np.isfinite(scaled), scaled, 0.0))[..., 0]
        return [
            f"{name}{index or ''} (smallest eigenvalue {least[*index]:.1g})"
            for index in np.argwhere(least < BOUNDARY_SHARE).tolist()
        ]
    if constraint is SIMPLEX:
        where = (value < BOUNDARY_SHARE) & free
    elif constraint is POSITIVE:
        where = _small(emission, name, value, spread)
    elif constraint is PROBABILITY:
        where = _small(emission, name, value, spread) | _small(emission, name, 1 - value, spread)
    else:
        return []
    return [f"{name}{index or ''} = {value[*index]:.1g}" for index in np.argwhere(where).tolist()]


def _small(
    emission: AbstractEmission, name: str, value: ndarray, spread: Float[ndarray, " channels"]
) -> AnyFlags:
    """Mark entries of a parameter that are close to zero, at a degenerate state.

    A variance is compared with those of other states in the same channel and with the variance of
    the data, since channels have scales of their own. Rates and probabilities are compared with
    those of other states, or by a further factor `EDGE` with all channels.
    """
    states = value if name in emission.shared else value.max(0)
    if not (value.ndim > 1):
        spread = spread.min()
    return np.asarray(
        value
        < BOUNDARY_SHARE
        * np.maximum(states, spread if name == "covariance" else BOUNDARY_SHARE * value.max())
    )
