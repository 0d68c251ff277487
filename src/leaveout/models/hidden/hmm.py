"""Hidden Markov models: leave observations, steps or whole sequences out.

    "observation"   F(θ, w) = −log Σ_z π(z_1) Π_t A(z_{t−1}, z_t) Π_t e_t(z_t)^{w_t} − log p(θ)
    "step"
    F(θ, w) = −log Σ_z π(z_1)^{w_1} Π_t A(z_{t−1}, z_t)^{w_{t−1} w_t} e_t(z_t)^{w_t} + log Z(θ, w) −
    log p(θ) "sequence"      F(θ, w) = −Σ_n w_n log p(x_n; θ) − log p(θ)

Ghosh et al. (2020), "Approximate cross-validation for structured models": equations 4 and 5,
algorithm 2. Z is the sum over paths without the emissions, as the latent chain of "step" is not
normalised when it is cut at a step of weight zero. A missing observation always has weight zero.
Scores are computed in the whole chain with the held-out observation unseen:

    −log p(x_t | everything seen; θ) = −log Σ_k p(z_t = k | everything seen) e_t(k).
"""

from importlib.util import find_spec
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import (
    Array,
    Arrays as Arrays,
    NamedValues,
    PyTree,
    Rng,
    StepNumbers,
    Texts,
    conventional,
    static,
)
from ...data import check_times
from ...inference.lanes import best_path
from ...objectives import (
    Costs,
    Parameters,
    UnitIndex,
    UnitWeights,
    as_stored,
    float64,
    map_arrays,
    ravel,
)
from .. import emissions
from ..emissions._base import AbstractEmission, times
from . import hidden_chain as _hidden_chain
from .complete_data import complete_data, separate_states
from .expected_counts import densities_at, is_long, observation_weights, regressors
from .hidden import (
    BOUNDARY_SHARE,
    GivenParameters,
    SeriesLabels,
    Shape,
    Steps,
    Table,
    entries,
    read_lengths,
    read_series,
    read_weights,
)
from .hidden_chain import AbstractHiddenChain, Dirichlet, States

PASS_ENTRIES = 2**18  # numbers in one array of a pass, by measurement


class HMM(AbstractHiddenChain):
    """Hidden Markov model of one or several sequences.

        p(x, z; θ) = π(z_1) Π_t A(z_{t−1}, z_t) Π_t e_t(z_t)

    `fit(...).parameters` is `{"initial": [K], "transition": [K, K] (from row to column), ...}` and
    the emission's own.

    Parameters
    ----------
    x : array, Series or DataFrame, shape (steps,) or (steps, channels)
        Observations; NaN is missing.
    emission : emission of lo.emissions
        Distribution of an observation given the state.
    num_states : int
        Number of states K.
    lengths : array of int, shape (sequences,), optional
        Lengths of the sequences, one after another in `x`. The default is one sequence.
    drop : {"observation", "step", "sequence"}, default: "observation"
        Unit that is left out: the observation of a step, whose state stays in the chain; a step
        with its state; or a sequence.
    prior : {"default"}, Dirichlet or None, default: "default"
        "default" is `Dirichlet()` and the emission's own prior; None is maximum likelihood.
    initial : {"free", "stationary"} or array, shape (states,), default: "free"
        Initial distribution: free, the stationary one of the transition matrix, or held fixed. An
        array of NaN and zeros holds the zeros only.
    transition : {"free"} or array, shape (states, states), default: "free"
        Transition matrix: free or held fixed. An array of NaN and zeros holds the zeros only.
    score : {"pointwise", "joint"}, default: "pointwise"
        One loss a unit, or one a refit.

    Raises
    ------
    ValueError
        If values are infinite, lengths do not add up, or the data cannot determine the model.

    See Also
    --------
    lo.emissions, Dirichlet, MRF, CRF

    References
    ----------
    S. Ghosh, W. T. Stephenson, T. D. Nguyen, S. K. Deshpande and T. Broderick, "Approximate
    cross-validation for structured models", *NeurIPS*, 2020.

    Examples
    --------
    >>> import leaveout as lo
    >>> x = np.r_[np.zeros(10), np.ones(10)] + 0.1 * np.arange(20) % 0.3
    >>> model = lo.HMM(x, lo.emissions.Gaussian(), 2)
    >>> model.num_units, model.num_states
    (20, 2)
    """

    styles: ClassVar[Texts] = {
        "observation": "a held-out step loses its observation, its state stays in the chain",
        "step": "a held-out step loses its observation and its state; scores are taken in the whole chain",
        "sequence": "whole sequences are left out",
    }

    labels: SeriesLabels = static()

    @float64
    def __init__(
        self,
        x: ArrayLike,
        emission: AbstractEmission,
        num_states: int,
        *,
        lengths: ArrayLike | None = None,
        drop: Literal["observation", "step", "sequence"] = "observation",
        prior: Literal["default"] | Dirichlet | None = "default",
        initial: Literal["free", "stationary"] | ArrayLike = "free",
        transition: Literal["free"] | ArrayLike = "free",
        score: Literal["pointwise", "joint"] = "pointwise",
    ):
        self.read_choices(emission, num_states, drop, score)
        x, self.labels = read_series(x)
        self.x = as_stored(x)
        self.lengths = read_lengths("HMM", lengths, len(x), f"x has {len(x)} steps")
        check_times("HMM", "x", self.labels.index, self.lengths)
        if drop == "sequence" and len(self.lengths) < 2:
            raise ValueError('HMM: drop="sequence" needs several sequences; give their lengths=.')
        self.states = States(int(num_states), initial, transition, prior)
        if prior is None and len(self.lengths) == 1 and "initial" in self.states.free:
            raise ValueError(
                "HMM: with one sequence and no prior a free initial distribution has no interior optimum: all its mass goes "
                'to one state. Choose initial="stationary", initial=[...] (a distribution), or a prior.'
            )
        self.data, self.dense, start = self.read_emission(emission, x, self.lengths)
        self.check_size(prior is not None)
        self.sequence = np.repeat(np.arange(len(self.lengths)), self.lengths).astype(np.int32)
        first = np.cumsum(self.lengths) - self.lengths
        self.position = (np.arange(len(x)) - first[self.sequence]).astype(np.int32)
        theta = self._to_unconstrained({**self.states.start(0), **start})
        self.parts = tuple((name, np.shape(theta[name])) for name in sorted(theta))
        self.separate_states = separate_states(self.emission, theta)

    # parameters

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=self._start,
            canonical=self._canonical,
            names=self._names,
            shares=self.visits,
            warning=self._warning,
            held=self._hold_zeros,
            leaving=_hidden_chain.leaving if self.states.edge else None,
        )

    @property
    def num_specified(self) -> int:
        return super().num_specified + sum(
            int(where.sum()) for where in (self.states.edge or {}).values()
        )

    def _natural(self, theta):
        initial, transition = (np.exp(log) for log in self.states.logs(theta))
        return {"initial": initial, "transition": transition, **self.emission_parameters(theta)}

    @property
    def latent_shapes(self) -> dict[str, Shape]:
        return self.states.free

    def latent_unconstrained(self, name: str, value: ndarray) -> ndarray:
        return self.states.to_unconstrained(name, value)

    def latent_names(self, name: str) -> list[str]:
        return self.states.names(name)

    @float64
    def _start(self, seed):
        emission_parameters = self.emission.initial(self.data, self.dense, self.num_states, seed)
        return self._to_unconstrained({**self.states.start(seed), **emission_parameters})

    @float64
    def _canonical(self, theta):
        """Put states into the emission's order, unless fixed parameters or the prior distinguish
        them.
        """
        if not self.states.exchangeable:
            return theta
        natural_parameters = map_arrays(np.asarray, self._natural(theta))
        emission_parameters = {
            name: natural_parameters[name] for name in (*self.emission.free, *self.emission.fixed)
        }
        order = np.asarray(self.emission.order(emission_parameters))
        chain = {
            "initial": natural_parameters["initial"][order],
            "transition": natural_parameters["transition"][order][:, order],
        }
        return self._to_unconstrained(
            {**chain, **self.emission.permute(emission_parameters, order)}
        )

    def predict(
        self,
        theta: PyTree,
        weights: UnitWeights | None = None,
        index: UnitIndex | None = None,
        kind: str = "response",
    ) -> Array:
        """Predict observations or states; without `index` it is `predictive_means`, or
        `state_probabilities` for kind "state".

        Parameters
        ----------
        theta : Fit, dict or array of float
            A fit or its natural parameters; for a call with `index` the parameters θ.
        weights : array of float, shape (units,), optional
            Weights of the units that are seen; all by default.
        index : array of int, optional
            Units to predict.
        kind : {"response", "state"}, default: "response"
            Mean observations, or probabilities of the states.

        Returns
        -------
        array, Series or DataFrame
            The predictions.
        """
        if index is None:
            return (self.state_probabilities if kind == "state" else self.predictive_means)(
                theta, weights
            )
        if weights is None:
            weights = np.ones(self.num_units)
        return super().predict(theta, weights, index, kind)

    # the contract of an objective

    def seen_wholes(self) -> Bool[ndarray, " sequences"]:
        return np.bincount(self.sequence, self.dense, len(self.lengths)) > 0

    @property
    def neighbourhood(self) -> NamedValues:
        return {"scorable": None if self.joint or not self.emission.reach else self._scorable}

    @property
    def costs(self) -> Costs:
        """Cost in steps, also where units are sequences."""
        by_runs = self.drop == "observation" and not (
            self.joint or self.emission.reach or self.states.zeros
        )
        lanes = 8 * int(np.clip(PASS_ENTRIES // (8 * self.num_steps * self.num_states), 1, 8))
        work = 4.0 * self.num_steps * self.num_params
        return Costs(lanes, work, self.runs if by_runs else None)

    def _scorable(self, refit, index, weight):
        """Mark steps that can be scored.

        Those whose regressors, in an autoregression, are not left out.
        """
        scorable = np.ones(len(index), bool)
        keys = refit.astype(int) * self.num_units + index
        held_out = weight == 0
        for lag in range(1, self.emission.reach + 1):
            scorable &= ~((self.position[index] >= lag) & np.isin(keys - lag, keys[held_out]))
        return scorable

    @property
    def note(self) -> str:
        style = f'drop="{self.drop}": {self.styles[self.drop]}{self.states.zero_note}'
        if self.emission.reach and self.drop != "sequence":
            style += f"; so do the {self.emission.reach} steps after it, which have it as a regressor, and they are not scored"
            style += (
                "" if self.joint else ", nor are held-out steps of which a regressor is held out"
            )
        if is_long(self) and not find_spec("numba"):
            style += ". Refits of so long a series are quicker with numba: pip install 'leaveout[chains]'"
        if self.states.prior is None:
            return f"{style}. Maximum likelihood, no prior."
        return f"{style}. Prior: {'; '.join(filter(None, (self.states.note, self.emission.prior_note)))}."

    @float64
    def _hold_zeros(self, theta):
        """Return the model that holds initial and transition probabilities at zero, if θ has them
        there.

        Its parameters and a description come with it. None if no probability is at zero, or a prior
        keeps them away from it.
        """
        states = self.states
        natural_parameters = map_arrays(np.asarray, self._natural(theta))
        free = {
            name: states.support.get(name, np.ones(shape, bool))
            for name, shape in states.free.items()
        }
        zero = {
            name: where & (natural_parameters[name] < BOUNDARY_SHARE)
            for name, where in free.items()
        }
        if states.prior is not None or not any(where.any() for where in zero.values()):
            return None
        fixed = {
            "initial": "stationary" if states.stationary else states.initial,
            "transition": states.transition,
        }
        fixed |= {name: np.where(free[name] & ~zero[name], np.nan, 0.0) for name in free}
        # a single state
        fixed = {name: "free" if value is None else value for name, value in fixed.items()}
        simpler = HMM(
            self.labels.channels(self.x),
            self.emission,
            self.num_states,
            lengths=self.lengths,
            drop=self.drop,
            prior=None,
            score="joint" if self.joint else "pointwise",
            **fixed,
        )
        edge = {name: where | (states.edge or {}).get(name, False) for name, where in zero.items()}
        vars(simpler.states)["edge"] = edge
        for name, where in zero.items():
            probabilities = np.where(where, 0.0, natural_parameters[name])
            natural_parameters[name] = probabilities / probabilities.sum(-1, keepdims=True)
        zero_entries = ", ".join(
            entry for name, where in zero.items() for entry in entries(name, where)
        )
        message = f"maximum likelihood puts {zero_entries} at zero: held there, in every refit too. A prior keeps them off it."
        return simpler, natural_parameters, message

    # for users

    @float64
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
        return float(self.posterior_at(self._to_unconstrained(parameters)).log_normaliser.sum())

    @float64
    def decode(self, parameters: GivenParameters) -> Steps:
        """Find the most probable path of states, by the Viterbi algorithm.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        array or Series, shape (steps,)
            The states.
        """
        theta = self._to_unconstrained(parameters)
        visible = observation_weights(self, np.ones((1, self.num_steps)))
        densities = complete_data(self).densities(ravel(theta)[None])
        steps = np.arange(self.num_steps)[None]
        seen = times(visible[..., None], densities_at(self, densities, steps))[0]
        path = best_path(*self.states.logs(theta), seen, self.position == 0)
        return self.labels.series(path, "state")

    @float64
    def state_probabilities(
        self, parameters: GivenParameters, weights: ArrayLike | None = None
    ) -> Table:
        """Compute p(z_t = k | everything seen).

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.
        weights : array of float, shape (units,), optional
            Weights of the units that are seen; all by default.

        Returns
        -------
        array or DataFrame, shape (steps, states)
            The probabilities.
        """
        weights = read_weights("HMM", weights, self.num_units, self.labels.units(self.drop))
        states = self.posterior_at(self._to_unconstrained(parameters), weights).states[0]
        return self.labels.frame(states, range(self.num_states))

    @float64
    def predictive_means(
        self, parameters: GivenParameters, weights: ArrayLike | None = None
    ) -> Steps | Table:
        """Compute the mean observation of every step given everything seen.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.
        weights : array of float, shape (units,), optional
            Weights of the units that are seen; all by default.

        Returns
        -------
        array, Series or DataFrame
            The means, in the type of `x`; for symbols their probabilities, `[steps, symbols]`.
        """
        weights = read_weights("HMM", weights, self.num_units, self.labels.units(self.drop))
        theta = self._to_unconstrained(parameters)
        states = self.posterior_at(theta, weights).states[0]
        means = self.means(states, self.emission_parameters(theta), self.data)
        seen = np.ones(self.num_steps) if self.drop == "sequence" else weights
        determined = regressors(self, seen[None])[0] > 0
        return self.labels.channels(np.where(determined[:, None], np.asarray(means), np.nan))

    @conventional
    @float64
    def simulate(
        self, parameters: GivenParameters, num_steps: int, *, rng: Rng = 0
    ) -> tuple[ndarray, StepNumbers]:
        """Draw a sequence from the model.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.
        num_steps : int
            Number of steps.
        rng : int, numpy.random.Generator or None, default: 0
            Random numbers: a seed, a generator, or None for others in each call.

        Returns
        -------
        tuple of array
            Observations `[steps]` or `[steps, channels]`, and states `[steps]`.
        """
        natural_parameters = self._natural(self._to_unconstrained(parameters))
        nothing = np.zeros((0, self.x.shape[1]))
        x, states = _hidden_chain.draw(
            self.emission,
            natural_parameters,
            np.asarray(natural_parameters["initial"]),
            nothing,
            0,
            num_steps,
            np.random.default_rng(rng),
        )
        return (x[:, 0] if self.labels.columns is None else x), states

    @float64
    def forecast(self, parameters: GivenParameters, horizon: int, level: float = 0.9) -> Table:
        """Forecast the steps after the last one, by simulation.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.
        horizon : int
            Number of steps, one or more.
        level : float, default: 0.9
            Level of the central interval.

        Returns
        -------
        DataFrame
            Mean, lower and upper bound of each step; for several channels under a heading each; for
            symbols the probability of each.

        Raises
        ------
        ValueError
            If the horizon or the level is out of range, or a regressor is missing.
        """
        if not (0 < level < 1 and horizon >= 1):
            raise ValueError(
                f"forecast: horizon must be 1 or more, level between 0 and 1; got {horizon} and {level}."
            )
        draws = _hidden_chain.futures(self, self._to_unconstrained(parameters), horizon)
        if isinstance(self.emission, emissions.Categorical):
            symbols = range(self.emission.num_symbols)
            return self.labels.forecast_table(
                len(self.x), {s: (draws == s).mean(0) for s in symbols}
            )
        lower, upper = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return self.labels.forecast_table(
            len(self.x), {"mean": draws.mean(0), "lower": lower, "upper": upper}
        )
