"""Autoregressive emissions: Gaussian noise about a prediction from the observations before, linear
or by a small network.

The first steps of a sequence have no density (the likelihood is conditional on them), nor has a
step with a missing regressor; such steps do not inform the state. `skip` is the number of first
steps without density, at least the order. Give models of different orders the same `skip`, and
their losses are of the same observations.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..._runtime import Arrays, EntryIndex, NamedArrays, PyTree, numpy_of, slices, static
from ...data import count
from ._base import (
    REAL,
    Choice,
    Constraints,
    Lengths,
    LogDensities,
    MatrixNormal,
    Means,
    Normal,
    Observations,
    Parameters,
    Past,
    Priors,
    Row,
    StepFlags,
    check,
    clusters,
)
from .gaussian import AbstractGaussian, CovarianceKind, centre, squares

Array = np.ndarray
StateValues = Float[Array, "... states outputs steps"]
StepLags = Float[Arrays, "steps lags channels"]

STEPS_AT_A_TIME = 4096  # steps in one product of features


class AbstractAutoregression(AbstractGaussian):
    """`x_t | z_t = k, past ~ N(prediction_k(x_{t−1}, …, x_{t−p}), covariance_k)`."""

    lags: int = static()
    skip: int = static()

    def _bind(
        self, order: int, skip: int | None, covariance: "str | ArrayLike", prior: Choice
    ) -> None:
        name = type(self).__name__
        self.lags = count(f"{name}: order", order, 0)
        if skip is not None and skip < order:
            raise ValueError(f"{name}: skip must be at least the order, {order}; got {skip}.")
        self.skip = self.lags if skip is None else int(skip)
        self.covariance = CovarianceKind(name, covariance)
        self._choose_prior(prior)

    @abstractmethod
    def predictions(self, parameters: Parameters, past: StepLags) -> Any:
        """Compute the mean of every step in every state, in NumPy or in JAX, as the past is."""

    @property
    def reach(self) -> int:
        return self.lags

    def has_density(self, x: Observations, lengths: Lengths) -> StepFlags:
        return ~np.isnan(x).any(axis=1) & self._has_regressors(x, lengths, self.skip)

    def _has_regressors(self, x, lengths, skip):
        """Mark steps after the first `skip` of a sequence whose regressors are observed."""
        seen = ~np.isnan(x).any(axis=1)
        complete = np.arange(len(x)) - np.repeat(np.cumsum(lengths) - lengths, lengths) >= skip
        for lag in range(1, self.lags + 1):
            complete[lag:] &= seen[:-lag]
        return complete

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        name = type(self).__name__
        check(x, np.isfinite(x), name, "finite")
        if (np.asarray(lengths) <= self.skip).any():
            short = int(np.flatnonzero(np.asarray(lengths) <= self.skip)[0])
            raise ValueError(
                f"{name}: order {self.lags} (skip {self.skip}) needs sequences of more than {self.skip} steps; "
                f"sequence {short} has {lengths[short]}."
            )
        self.covariance.check(name, x)
        dense = self.has_density(x, lengths)
        filled = np.where(np.isnan(x), 0.0, x)
        past = np.zeros((len(x), self.lags, x.shape[1]))
        for lag in range(1, self.lags + 1):
            past[lag:, lag - 1] = filled[:-lag]
        past[~self._has_regressors(x, lengths, self.lags)] = 0.0
        return {"x": filled, "past": past, "dense": dense.astype(float)}

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        residual = data["x"][:, None] - self.predictions(parameters, data["past"])
        return data["dense"][:, None] * self.covariance.log_density(
            residual, parameters["covariance"]
        )

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        return self.predictions(parameters, data["past"])

    closed_slopes = True

    def slopes(self, parameters: Parameters, data: PyTree, expected: Array) -> Parameters:
        residual = data["x"][:, None] - self.predictions(parameters, data["past"])
        residual = residual.swapaxes(0, 1)
        seen = expected * data["dense"]
        precision = self._precisions(parameters, len(residual), residual.shape[2])
        pull = seen[..., None, :] * np.ascontiguousarray((residual @ precision).swapaxes(1, 2))
        slopes = self.prediction_slopes(parameters, data["past"], pull)
        if self.covariance.value is None:
            by_state = 0.5 * (
                pull @ residual @ precision - seen.sum(-1)[..., None, None] * precision
            )
            if not self.covariance.matrices:
                by_state = np.diagonal(by_state, axis1=-2, axis2=-1)
            if self.covariance.kind == "spherical":
                by_state = by_state.sum(-1)
            if self.covariance.kind == "tied":
                by_state = by_state.sum(-3)
            slopes["covariance"] = by_state
        return slopes

    @abstractmethod
    def prediction_slopes(
        self,
        parameters: Parameters,
        past: Float[Array, "steps lags channels"],
        pull: StateValues,
    ) -> NamedArrays:
        """Differentiate `Σ pull · predictions` in the parameters of the predictions."""

    def curvature(
        self, parameters: Parameters, data: PyTree, expected: Float[Array, "steps states"]
    ) -> Float[Array, "states own own"] | None:
        if self.covariance.value is None:
            return None
        x = data["x"]
        features = np.insert(data["past"].reshape(len(x), self.lags * x.shape[1]), 0, 1.0, axis=1)
        seen = expected * data["dense"][:, None]
        curvatures = []
        for k, precision in enumerate(self._precisions(parameters, seen.shape[1], x.shape[1])):
            state = {name: parameters[name][k] for name in self.free}
            parts = (
                self._curvature(state, precision, x[group], features[group], seen[group, k])
                for group in slices(len(x), STEPS_AT_A_TIME)
            )
            curvatures.append(sum(parts))
        return np.array(curvatures)

    @abstractmethod
    def _curvature(self, parameters, precision, x, features, expected):
        """Compute the curvature of one state `[own, own]`, where steps are `expected`.

        `features` are a one and the past.
        """

    def _precisions(
        self, parameters: Parameters, states: int, channels: int
    ) -> Float[Array, "states channels channels"]:
        precision = self.covariance.precision(parameters["covariance"], channels)[0]
        if not self.covariance.matrices:
            precision = precision[..., None] * np.eye(channels)
        return np.broadcast_to(precision, (states, channels, channels))

    def _clustered(self, data, observed, num_states, seed):
        """Return the steps with a density, those before each, the scale of the channels, and labels
        of clusters.
        """
        use = np.asarray(observed) & (np.asarray(data["dense"]) > 0)
        x = np.asarray(data["x"])[use]
        past = np.asarray(data["past"])[use]
        labels = clusters(np.concatenate([x, past.reshape(len(x), -1)], 1), num_states, seed)
        return x, past, np.sqrt(squares(x, 0.0)), labels

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: np.random.Generator
    ) -> Row:
        """Draw one observation; values before the first of `past` count as zeros."""
        state_parameters = {
            name: np.asarray(parameters[name])[state][None]
            for name in self.free
            if name != "covariance"
        }
        channels = state_parameters[next(iter(state_parameters))].shape[-1]
        before = np.reshape(past, (-1, channels))[::-1][: self.lags]
        recent = np.concatenate([before, np.zeros((self.lags - len(before), channels))])
        return self.predictions(state_parameters, recent[None])[0, 0] + self.covariance.noise(
            parameters, state, channels, rng
        )


def _with_past(pull: StateValues, past: StepLags) -> Array:
    """Sum products of `pull` and the past over steps, `[..., states, lags, outputs, inputs]`."""
    rows = pull.reshape(*pull.shape[:-3], -1, len(past))
    products = rows @ past.reshape(len(past), -1)
    return products.reshape(*pull.shape[:-1], *past.shape[1:]).swapaxes(-3, -2)


def _linear(first: int, outputs: int, lags: int, inputs: int) -> EntryIndex:
    """Return the places of the bias of a linear map, and then of its matrices by lag.

    Its entries are ordered by output and feature, from `first` on.
    """
    place = first + np.arange(outputs * (1 + lags * inputs)).reshape(outputs, -1)
    matrices = place[:, 1:].reshape(outputs, lags, inputs).swapaxes(0, 1)
    return np.concatenate([place[:, 0], matrices.ravel()])


def _ridge(features: Array, response: Array, towards: Array) -> Array:
    """Solve least squares plus `‖W − towards‖²`."""
    gram = features.T @ features + np.eye(features.shape[1])
    return towards + np.linalg.solve(gram, features.T @ (response - features @ towards))


class Autoregressive(AbstractAutoregression):
    """Linear autoregression, `x_t | z_t = k ~ N(Σ_m coefficients_{km} x_{t−m} + bias_k,
    covariance_k)`, lags m = 1, …, order.

    Parameters are `bias` [K, R], `coefficients` [K, order, R, R] (none at order 0, which is a
    Gaussian), and `covariance` as in `Gaussian`. Default priors are in units of each channel's root
    mean square s: `coefficients_{kmij} ~ Normal(1{m = 1, i = j}, s_i/s_j)` and `bias ~ Normal(0,
    s)`. The paper has s = 1: `prior={"coefficients": (1, 1), "bias": (0, 1)}`, a multiple of the
    identity with a standard deviation, and a mean with a standard deviation. A free covariance has
    the priors of `Gaussian`.

    Parameters
    ----------
    order : int
        Number of lags.
    covariance : str or array, default: 1.0
        Kind of covariance, as in `Gaussian`, or a number or array that is held fixed. The default
        suits channels whose innovations have a variance of about one; "diagonal" estimates it.
    skip : int, optional
        Number of first steps of a sequence that have no density, at least the order, which is the
        default. Losses of models of different orders are of the same observations if they have the
        same `skip`.
    prior : {"default"}, dict or None, default: "default"
        Priors by parameter; None makes one or all of them flat.

    Raises
    ------
    ValueError
        If the order is not an integer of zero or more, or `skip` is less than the order.

    See Also
    --------
    Gaussian, NeuralAutoregressive

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.Autoregressive(2, "diagonal").free)
    ['bias', 'coefficients', 'covariance']
    """

    def __init__(
        self,
        order: int,
        covariance: "str | ArrayLike" = 1.0,
        *,
        skip: int | None = None,
        prior: Choice = "default",
    ):
        self._bind(order, skip, covariance, prior)

    def default_prior(self, x: Observations) -> Priors:
        scale = np.sqrt(squares(x, 0.0))
        if self.lags:
            coefficients = {"coefficients": MatrixNormal(1.0, scale[:, None] / scale)}
        else:
            coefficients = {}
        return {
            "bias": Normal(0.0, scale),
            **coefficients,
            **self.scale_prior(squares(x, centre(x))),
        }

    @property
    def free(self) -> Constraints:
        return {
            "bias": REAL,
            **({"coefficients": REAL} if self.lags else {}),
            **self.covariance.free,
        }

    def predictions(self, parameters: Parameters, past: StepLags) -> Any:
        bias = parameters["bias"]
        if not self.lags:
            return numpy_of(bias).broadcast_to(bias, (len(past), *bias.shape))
        states, channels = bias.shape
        matrix = (
            parameters["coefficients"]
            .transpose(1, 3, 0, 2)
            .reshape(self.lags * channels, states * channels)
        )
        return (past.reshape(len(past), -1) @ matrix).reshape(len(past), states, channels) + bias

    def prediction_slopes(
        self,
        parameters: Parameters,
        past: Float[Array, "steps lags channels"],
        pull: StateValues,
    ) -> NamedArrays:
        slopes = {"bias": pull.sum(-1)}
        if self.lags:
            slopes["coefficients"] = _with_past(pull, past)
        return slopes

    def _curvature(self, parameters, precision, x, features, expected):
        channels = x.shape[1]
        gram = (expected[:, None] * features).T @ features
        order = _linear(0, channels, self.lags, channels)
        return np.kron(precision, gram)[order[:, None], order]

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        x, past, scale, labels = self._clustered(data, observed, num_states, seed)
        channels = x.shape[1]
        response = x / scale
        features = np.insert((past / scale).reshape(len(x), -1), 0, 1.0, axis=1)
        walk = np.eye(1 + self.lags * channels, channels, -1)
        weights = np.stack(
            [_ridge(features[labels == k], response[labels == k], walk) for k in range(num_states)]
        )
        residual = (response - np.einsum("tf,tfr->tr", features, weights[labels])) * scale
        bias = weights[:, 0] * scale
        matrices = weights[:, 1:].reshape(num_states, self.lags, channels, channels)
        coefficients = np.swapaxes(matrices, -1, -2) * scale[:, None] / scale
        return {
            "bias": bias,
            **({"coefficients": coefficients} if self.lags else {}),
            **self.covariance.start(residual, labels, num_states),
        }


class NeuralAutoregressive(AbstractAutoregression):
    """Autoregression by a network of one hidden layer.

        x_t | z_t = k ~ N(V_k tanh(Σ_m W_{km} x_{t−m} + c_k) + d_k, covariance_k)

    Parameters are `output_bias` d [K, R], `output_weights` V [K, R, hidden], `input_weights` W [K,
    order, hidden, R], `input_bias` c [K, hidden], and `covariance` as in `Autoregressive`. The
    default prior of the weights and biases is Normal(0, 1) as in the paper (λ = 1), in units of
    each channel's root mean square.

    Parameters
    ----------
    hidden : int
        Number of hidden units.
    order : int, default: 1
        Number of lags, one or more.
    covariance : str or array, default: 1.0
        Kind of covariance, or a number or array that is held fixed, as in `Autoregressive`.
    skip : int, optional
        Number of first steps of a sequence that have no density, at least the order, which is the
        default.
    prior : {"default"}, dict or None, default: "default"
        Priors, such as `{"input_weights": (mean, sd)}`; None makes one or all of them flat.

    Raises
    ------
    ValueError
        If `hidden` or the order is not a positive integer, or `skip` is less than the order.

    See Also
    --------
    Autoregressive

    Examples
    --------
    >>> import leaveout as lo
    >>> sorted(lo.emissions.NeuralAutoregressive(3).free)
    ['input_bias', 'input_weights', 'output_bias', 'output_weights']
    """

    hidden: int = static()

    def __init__(
        self,
        hidden: int,
        order: int = 1,
        covariance: "str | ArrayLike" = 1.0,
        *,
        skip: int | None = None,
        prior: Choice = "default",
    ):
        self.hidden = count("NeuralAutoregressive: hidden", hidden, 1)
        count("NeuralAutoregressive: order", order, 1)
        self._bind(order, skip, covariance, prior)

    def default_prior(self, x: Observations) -> Priors:
        scale = np.sqrt(squares(x, 0.0))
        return {
            "output_bias": Normal(0.0, scale),
            "output_weights": Normal(0.0, scale[:, None]),
            "input_weights": Normal(0.0, 1 / scale),
            "input_bias": Normal(0.0, 1.0),
            **self.scale_prior(squares(x, centre(x))),
        }

    @property
    def free(self) -> Constraints:
        names = "output_bias", "output_weights", "input_weights", "input_bias"
        return {**dict.fromkeys(names, REAL), **self.covariance.free}

    def predictions(self, parameters: Parameters, past: StepLags) -> Any:
        inner = self._inner(parameters, past)
        layer = numpy_of(inner).tanh(inner).swapaxes(0, 1)
        outputs = layer @ parameters["output_weights"].swapaxes(1, 2)
        return outputs.swapaxes(0, 1) + parameters["output_bias"]

    def _inner(self, parameters: Parameters, past: StepLags):
        """Inputs of the hidden units of each step in every state."""
        weights = parameters["input_weights"]
        states, lags, hidden, channels = weights.shape
        matrix = weights.transpose(1, 3, 0, 2).reshape(lags * channels, states * hidden)
        inner = (past.reshape(len(past), -1) @ matrix).reshape(len(past), states, hidden)
        return inner + parameters["input_bias"]

    def prediction_slopes(
        self,
        parameters: Parameters,
        past: Float[Array, "steps lags channels"],
        pull: StateValues,
    ) -> NamedArrays:
        layer = np.tanh(self._inner(parameters, past))
        slope = (1 - layer**2).transpose(1, 2, 0)
        inner = (parameters["output_weights"].swapaxes(1, 2) @ pull) * slope
        return {
            "output_bias": pull.sum(-1),
            "output_weights": pull @ layer.swapaxes(0, 1),
            "input_bias": inner.sum(-1),
            "input_weights": _with_past(inner, past),
        }

    def _curvature(self, parameters, precision, x, features, expected):
        """Compute the negative Hessian of −½ rᵀ Σ⁻¹ r in V, in W, and in both.

        With z = W (1, past), h = tanh z, u = (1, h) and e = Σ⁻¹ (x − V u).
        """
        hidden = parameters["input_bias"].shape[0]
        channels = x.shape[1]
        weights = parameters["input_weights"]
        weighted_output = precision @ parameters["output_weights"]
        matrix = np.moveaxis(weights, 0, 1).reshape(hidden, -1)
        layer = np.tanh(features[:, 1:] @ matrix.T + parameters["input_bias"])
        units = np.insert(layer, 0, 1.0, axis=1)
        slope = 1 - layer**2
        error = (x - layer @ parameters["output_weights"].T - parameters["output_bias"]) @ precision
        layer_slope = error @ parameters["output_weights"]  # ∂/∂h
        layer_curvature = (
            slope[:, :, None] * slope[:, None] * (parameters["output_weights"].T @ weighted_output)
        )
        layer_curvature += np.eye(hidden) * (2 * layer * slope * layer_slope)[:, None]
        summed = lambda a, b: (expected[:, None] * a.reshape(len(x), -1)).T @ b.reshape(len(x), -1)
        outer = lambda a, b: a[:, :, None] * b[:, None]
        width = features.shape[1]
        inside = summed(layer_curvature, outer(features, features)).reshape(
            hidden, hidden, width, width
        )
        meet = summed(units, outer(slope, features)).reshape(1, 1 + hidden, hidden, width)
        between = weighted_output[:, None, :, None] * meet
        missed = summed(error, outer(slope, features)).reshape(channels, hidden, width)
        between[:, 1 + np.arange(hidden), np.arange(hidden)] -= missed
        inside = np.swapaxes(inside, 1, 2).reshape(hidden * width, -1)
        between = between.reshape(channels * (1 + hidden), -1)
        outside = np.kron(precision, summed(units, units))
        hessian = np.block([[inside, between.T], [between, outside]])
        order = np.concatenate(
            [_linear(0, hidden, self.lags, channels), _linear(hidden * width, channels, 1, hidden)]
        )
        return hessian[order[:, None], order]

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        x, past, scale, labels = self._clustered(data, observed, num_states, seed)
        rng = np.random.default_rng(seed)
        channels = x.shape[1]
        size = num_states, self.lags, self.hidden, channels
        inside = rng.standard_normal(size) / np.sqrt(self.lags * channels) / scale
        shift = 0.5 * rng.standard_normal((num_states, self.hidden))
        towards = np.zeros((1 + self.hidden, channels))
        outside = np.zeros((num_states, 1 + self.hidden, channels))
        residual = np.zeros_like(x)
        for k in range(num_states):
            members = labels == k
            layer = np.tanh(np.einsum("tmr,mhr->th", past[members], inside[k]) + shift[k])
            features = np.insert(layer, 0, 1.0, axis=1)
            outside[k] = _ridge(features, x[members] / scale, towards) * scale
            residual[members] = x[members] - features @ outside[k]
        return {
            "output_bias": outside[:, 0],
            "output_weights": np.swapaxes(outside[:, 1:], 1, 2),
            "input_weights": inside,
            "input_bias": shift,
            **self.covariance.start(residual, labels, num_states),
        }
