"""Hidden Markov models: leave observations, steps or whole sequences out.

    "observation"   F(θ, w) = −log Σ_z π(z_1) Π_t A(z_{t−1}, z_t) Π_t e_t(z_t)^{w_t} − log p(θ)
    "step"          F(θ, w) = −log Σ_z π(z_1)^{w_1} Π_t A(z_{t−1}, z_t)^{w_{t−1} w_t} e_t(z_t)^{w_t} + log Z(θ, w) − log p(θ)
    "sequence"      F(θ, w) = −Σ_n w_n log p(x_n; θ) − log p(θ)

Ghosh et al. (2020), "Approximate cross-validation for structured models": equations 4 and 5, algorithm 2. Z is the sum
over paths without the emissions: cut at a step of weight zero, the latent chain of "step" is no longer normalised. A
missing observation has weight zero always. Scores are taken in the whole chain, the held-out observation unseen:

    −log p(x_t | everything seen; θ) = −log Σ_k p(z_t = k | everything seen) e_t(k).
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar
from numpy.typing import ArrayLike

from .._objective import Costs, Parameters, Units, float64, ravel, stored, unravel
from . import _explain, _future, _information, _series
from ._hidden import KINDS, AbstractHiddenStates, mixture, times
from ._states import Dirichlet, States
from .chain import Layout, Potentials, layout, log_partition, posterior
from .emissions._base import AbstractEmission

LANES = 2**10  # numbers that a step of the scan takes along, by measurement
TANGENTS = 2**18  # numbers that one array of a group of tangents of a Hessian holds

STYLES = {
    "observation": "a held-out step loses its observation, its state stays in the chain",
    "step": "a held-out step loses its observation and its state; scores are taken in the whole chain",
    "sequence": "whole sequences are left out",
}


class HMM(AbstractHiddenStates):
    """A hidden Markov model of one or several sequences.

    `x` is `[steps]` or `[steps, channels]`, NumPy, Series or DataFrame; NaN is missing. `lengths` are those of the
    sequences, one after another in `x`. `drop` says what a unit is and what leaving it out means (above). `prior` is
    "default" (`Dirichlet()`, and the emission's own), a `Dirichlet`, or None: maximum likelihood. `initial` is "free",
    "stationary" (that of the transition matrix) or a distribution `[K]`; `transition` is "free" or a matrix `[K, K]`
    held fixed. An array of NaN and zeros holds the zeros only, as for states that follow one another. `score` is
    "pointwise", one loss a unit, or "joint", one a fold.

    `fit(...).parameters` is `{"initial": [K], "transition": [K, K] (from row to column), ...}` and the emission's own.

    Raises ValueError on infinite values, lengths that do not add up, and models that the data cannot determine.
    """

    latent: ClassVar[tuple[str, ...]] = ("initial", "transition")

    x: Float[np.ndarray, "steps channels"]
    data: PyTree  # what the emission made of x, laid out
    dense: Bool[np.ndarray, " steps"]  # has it a density?
    sequence: Int[np.ndarray, " steps"]
    position: Int[np.ndarray, " steps"]  # within its sequence
    lengths: Int[np.ndarray, " sequences"]
    slots: Int[np.ndarray, "sequences longest"] | None  # where each sequence stands in the layout
    layout: Layout
    emission: AbstractEmission
    states: States
    drop: str = eqx.field(static=True)
    joint: bool = eqx.field(static=True)
    shapes: tuple = eqx.field(static=True)  # of the emission's free parameters
    num_params: int = eqx.field(static=True)
    apart: bool = eqx.field(static=True)  # have states many parameters of their own, as in `_information`?
    by_parts: bool = eqx.field(static=True)  # is the Hessian put together from theirs?
    labels: _series.Labels = eqx.field(static=True)

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
        if not isinstance(emission, AbstractEmission):
            raise TypeError(f"HMM: emission must be an object such as lo.emissions.Gaussian(); got {emission!r}.")
        if not isinstance(num_states, int | np.integer) or num_states < 1:
            raise ValueError(f"HMM: num_states must be a whole number, 1 or more; got {num_states!r}.")
        if emission.num_states not in (None, num_states):
            raise ValueError(f"HMM: {type(emission).__name__} has {emission.num_states} states; got num_states={num_states}.")
        for name, value, known in (("drop", drop, tuple(STYLES)), ("score", score, ("pointwise", "joint"))):
            if value not in known:
                raise ValueError(f"HMM: {name} must be one of {', '.join(map(repr, known))}; got {value!r}.")
        self.drop, self.joint = drop, score == "joint"
        x, self.labels = _series.read(x)
        self.x, self.lengths = stored(x), _series.read_lengths(lengths, len(x))
        if drop == "sequence" and len(self.lengths) < 2:
            raise ValueError('HMM: drop="sequence" needs several sequences; give their lengths=.')
        self.states = States(int(num_states), initial, transition, prior)
        if prior is None and len(self.lengths) == 1 and "initial" in self.states.free:
            raise ValueError(
                "HMM: with one sequence and no prior a free initial distribution has no interior optimum: all its mass goes "
                'to one state. Choose initial="stationary", initial=[...] (a distribution), or a prior.'
            )
        self.emission = emission.matched("HMM", self.labels.index).with_data(x)
        data, self.dense = self.emission.prepare(x, self.lengths), self.emission.has_density(x, self.lengths)
        start = self.emission.initial(data, self.dense, self.num_states, 0)
        self.shapes = tuple((name, np.shape(start[name])) for name in self.emission.free)
        self._check_size()
        self.layout = layout(self.lengths, self.num_states, self.states.zeros)
        self.sequence = np.repeat(np.arange(len(self.lengths)), self.lengths).astype(np.int32)
        first = np.cumsum(self.lengths) - self.lengths
        self.position = (np.arange(len(x)) - first[self.sequence]).astype(np.int32)
        self.data = jax.tree.map(lambda leaf: _laid(leaf, self.layout), data)
        steps = first[:, None] + np.arange(self.lengths.max())
        inside = np.arange(self.lengths.max()) < self.lengths[:, None]
        slots = np.where(inside, self.layout.inverse[np.minimum(steps, len(x) - 1)], -1).astype(np.int32)
        self.slots = slots if drop == "sequence" else None
        theta = self._unconstrained({**self.states.start(0), **start})
        self.num_params = sum(map(np.size, theta.values()))
        self.apart = _information.apart(self, theta)
        self.by_parts = self.apart and _information.fits(self, theta)

    def _check_size(self) -> None:
        count = len(self._names())
        if self.dense.sum() < self.num_states or (self.states.prior is None and self.dense.sum() * self.x.shape[1] < count):
            raise ValueError(
                f"HMM: {self.dense.sum() * self.x.shape[1]} observations cannot determine {count} parameters of "
                f"{self.num_states} states; take fewer states{'' if self.states.prior else ', or a prior'}."
            )

    # parameters

    @property
    def parameters(self):
        return Parameters(
            natural=self._natural,
            unconstrained=self._unconstrained,
            start=self._start,
            canonical=self._canonical,
            names=self._names,
            shares=self._shares,
            warning=self._warning,
            held=self._held,
        )

    def _natural(self, theta):
        initial, transition = (jnp.exp(log) for log in self.states.logs(theta))
        return {"initial": initial, "transition": transition, **self.emitted(theta)}

    @property
    def latent_shapes(self):
        return self.states.free

    def latent_unconstrained(self, name, value):
        return self.states.unconstrained(name, value)

    def latent_names(self, name):
        return self.states.names(name)

    @float64
    def _start(self, seed):
        data = jax.tree.map(lambda leaf: np.asarray(leaf)[self.layout.inverse], self.data)
        own = self.emission.initial(data, self.dense, self.num_states, seed)
        return self._unconstrained({**self.states.start(seed), **own})

    @float64
    def _canonical(self, theta):
        """States in the emission's order, where nothing that is held fixed, nor the prior, tells them apart."""
        if not self.states.exchangeable:
            return theta
        found = self._natural(jax.tree.map(jnp.asarray, theta))
        own = {name: found[name] for name in (*self.emission.free, *self.emission.fixed)}
        order = self.emission.order(own)
        chain = {"initial": found["initial"][order], "transition": found["transition"][order][:, order]}
        return self._unconstrained({**chain, **self.emission.permute(own, order)})

    # F

    @property
    def num_states(self) -> int:
        return self.states.number

    @property
    def num_units(self) -> int:
        return len(self.lengths) if self.drop == "sequence" else len(self.dense)

    def _log_densities(self, theta: PyTree) -> Float[Array, "rows lanes states"]:
        return self.emission.log_densities(self.emitted(theta), self.data).reshape(*self.layout.shape, self.num_states)

    def _seen(self, weights: Array) -> Float[Array, " steps"]:
        """Weights of the observations: zero for the missing, and for those whose regressors are left out."""
        return jnp.where(self.dense, weights, 0.0) * self.regressors(weights)

    def regressors(self, weights: Array) -> Float[Array, " steps"]:
        """The product of the weights of each step's regressors, zero where there are none."""
        product, seen = jnp.ones(len(self.dense)), jnp.where(jnp.isnan(self.x).any(1), 0.0, weights)
        for lag in range(1, self.emission.reach + 1):
            product = product * jnp.where(self.position >= lag, jnp.concatenate([jnp.zeros(lag), seen[:-lag]]), 0.0)
        return product

    def _tempered(self, theta: PyTree, weights: Array) -> Float[Array, "rows lanes states states"]:
        """Log transitions times `w_{t−1} w_t`, the initial ones times `w_1`."""
        initial, transition = self.states.logs(theta)
        before = jnp.concatenate([jnp.ones(1), weights[:-1]])
        both = self.layout.arrange(jnp.where(self.position == 0, weights, before * weights))[..., None, None]
        steps = jnp.where(jnp.asarray(self.layout.starts)[..., None, None], initial[None], transition)
        return times(both, steps)

    def _whole(self, theta: PyTree, weights: Array) -> tuple[Potentials, Float[Array, "rows lanes states"]]:
        """The whole chain with weighted emissions; and the emissions without weights."""
        return self._chain(theta, self._seen(weights))

    def _chain(self, theta: PyTree, seen: Array) -> tuple[Potentials, Float[Array, "rows lanes states"]]:
        """The same, by the weights of the emissions themselves."""
        densities = self._log_densities(theta)
        weighted = times(self.layout.arrange(seen)[..., None], densities)
        return Potentials(*self.states.logs(theta), weighted), densities

    def loss(self, theta, weights):
        if self.drop == "sequence":
            worth = self.layout.arrange(jnp.asarray(weights)[self.sequence])
            whole, _ = self._whole(theta, jnp.ones(len(self.dense)))
            return -log_partition(whole, worth, self.layout) - self._log_prior(theta)
        whole, _ = self._whole(theta, weights)
        if self.drop == "observation":
            return -log_partition(whole, None, self.layout) - self._log_prior(theta)
        steps = self._tempered(theta, weights)
        seen_and_unseen = jnp.stack([whole.emission, jnp.zeros_like(whole.emission)])
        both = jax.vmap(lambda e: log_partition(Potentials(None, steps, e), None, self.layout))(seen_and_unseen)
        return both[1] - both[0] - self._log_prior(theta)

    def _log_prior(self, theta: PyTree) -> Scalar:
        if self.states.prior is None:
            return jnp.zeros(())
        return self.states.log_prior(theta) + self.emission.log_prior(self.emitted(theta))

    def score(self, theta, weights, index, held):
        if self.drop == "sequence":
            if self.joint:
                return super().score(theta, weights, index, held)
            return -posterior(*self._sequences(theta, index)).log_normaliser.sum(0)
        whole, densities = self._whole(theta, weights)
        if self.joint:
            asked = jnp.zeros_like(weights).at[index].max(held, mode="drop")
            seen = jnp.where(asked > 0, self._seen(jnp.maximum(weights, asked)), self._seen(weights))  # not what follows
            known = self._chain(theta, seen)[0]
            return log_partition(whole, None, self.layout) - log_partition(known, None, self.layout)
        found = posterior(whole, self.layout)
        return -mixture(self._listed(found.states, index), self._listed(densities, index))

    def _listed(self, laid: Array, index: Array) -> Array:
        """The listed steps of an array that is laid out; any for padding."""
        flat = laid.reshape(-1, *laid.shape[2:])
        inverse = jnp.asarray(self.layout.inverse)
        return flat[inverse if len(index) == len(inverse) else inverse.at[index].get(mode="clip")]

    def _sequences(self, theta: PyTree, index: Array) -> tuple[Potentials, Layout]:
        """The potentials of the listed sequences alone, one to a lane."""
        slots = jnp.asarray(self.slots).at[index].get(mode="clip").T
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[slots.reshape(-1)], self.data)
        densities = self.emission.log_densities(self.emitted(theta), data).reshape(*slots.shape, self.num_states)
        real = slots >= 0
        dense = real & jnp.asarray(self.dense).at[self.layout.place].get(mode="clip").reshape(-1)[slots]
        starts = ~real | (jnp.arange(len(slots)) == 0)[:, None]
        lanes = Layout(jnp.where(real, 0, 1), starts, np.zeros(1, np.int32), False, self.layout.zeros)
        return Potentials(*self.states.logs(theta), times(dense[..., None], densities)), lanes

    def perturbation(self, theta, index, delta):
        if self.drop != "sequence" or len(index) == self.num_units:
            return super().perturbation(theta, index, delta)
        potentials, lanes = self._sequences(theta, index)
        worth = jnp.broadcast_to(jnp.where(index < self.num_units, delta, 0.0), lanes.place.shape)
        return -log_partition(potentials, worth, lanes)

    def hessian(self, theta, weights):
        if self.by_parts:
            return _information.hessian(self, theta, weights)
        return self._hessian(lambda theta: self.loss(theta, weights), theta)

    def preconditioner(self, theta, weights):
        return _information.complete(self, theta, weights) if self.apart else ()

    def hessian_change(self, theta, index, delta):
        if self.drop != "sequence" or len(index) == self.num_units:
            return super().hessian_change(theta, index, delta)
        return self._hessian(lambda theta: self.perturbation(theta, index, delta), theta)

    def _hessian(self, function: Any, theta: PyTree) -> Float[Array, "params params"]:
        """Forward over reverse."""
        vector = ravel(theta)
        hessian = self.along(jax.grad(lambda v: function(unravel(v, theta))), vector, np.arange(len(vector)))
        return (hessian + hessian.T) / 2

    def along(self, function: Any, vector: Array, entries: Int[Array, "some ..."]) -> Float[Array, "some ..."]:
        """Derivatives of a function of the raveled θ by some of its entries, or by sums of several, a group of tangents at a
        time."""
        size = max(1, TANGENTS // (self.layout.place.size * self.num_states))
        derivative = lambda i: jax.jvp(function, (vector,), (jnp.zeros_like(vector).at[i].set(1.0),))[1]
        if not len(entries):
            return jnp.zeros((0, *jax.eval_shape(function, vector).shape))
        return jax.lax.map(derivative, jnp.asarray(entries), batch_size=min(size, len(entries)))

    def predict(self, theta, weights=None, index=None, kind="response"):
        """For the core, of some units; for users `predict(fit)`, the same as `predictive_means`, or with kind="state" as
        `state_probabilities`."""
        if index is None:
            return (self.state_probabilities if kind == "state" else self.predictive_means)(theta, weights)
        if self.drop == "sequence" or kind not in ("response", "state"):
            raise ValueError(
                f'HMM: predictions are of steps, kind "response" (means) or "state"; got {kind!r} with drop={self.drop!r}.'
            )
        states = self._listed(posterior(self._whole(theta, weights)[0], self.layout).states, index)
        if kind == "state":
            return states
        steps = self.layout.shape
        data = jax.tree.map(lambda leaf: self._listed(leaf.reshape(*steps, *leaf.shape[1:]), index), self.data)
        means = jnp.einsum("tk,tkr->tr", states, self.emission.means(self.emitted(theta), data))
        known = jnp.asarray(self.regressors(weights) > 0).at[index].get(mode="clip")
        means = jnp.where(known[:, None], means, jnp.nan)
        return means[:, 0] if means.shape[1] == 1 else means

    # what the core asks of a model

    @property
    def _unit_names(self) -> Any:
        return None if self.drop == "sequence" else self.labels.index

    @property
    def units(self):
        if self.drop == "sequence":
            return Units(observed=self._observed(), kinds=KINDS)
        names = self._unit_names
        target = self.x[:, 0] if self.x.shape[1] == 1 else None
        later = None if self.joint or not self.emission.reach else self._scorable
        return Units(names=names, serial=True, observed=self._observed(), kinds=KINDS, scorable=later, target=target)

    @property
    def costs(self):
        """By steps, also where units are sequences; as many refits share a pass as about fill a vector register and leave the
        cache alone."""
        lanes = int(np.clip(LANES // (self.layout.shape[1] * self.num_states), 4, 256))
        return Costs(lanes, 4.0 * len(self.dense) * self.num_params)

    @property
    def local(self):
        return self.drop == "sequence"

    def _observed(self) -> Bool[np.ndarray, " units"] | None:
        """Units with something to score; None where all have."""
        if self.drop == "sequence":
            units = np.bincount(self.sequence, self.dense, len(self.lengths)) > 0
        else:
            units = np.asarray(self.dense)
        return None if units.all() else units

    def _scorable(self, refit, index, weight):
        """Of an autoregression: steps whose regressors are left."""
        found = np.ones(len(index), bool)
        here, left = refit.astype(np.int64) * self.num_units + index, weight == 0
        for lag in range(1, self.emission.reach + 1):
            found = found & ~((self.position[index] >= lag) & np.isin(here - lag, here[left]))
        return found

    @property
    def note(self):
        style = f'drop="{self.drop}": {STYLES[self.drop]}{self.states.zero_note}'
        if self.emission.reach and self.drop != "sequence":
            style += f"; so do the {self.emission.reach} steps after it, which have it as a regressor, and they are not scored"
            style += "" if self.joint else ", nor are held-out steps of which a regressor is held out"
        if self.states.prior is None:
            return f"{style}. Maximum likelihood, no prior."
        return f"{style}. Prior: {'; '.join(filter(None, (self.states.note, self.emission.prior_note)))}."

    @float64
    def _warning(self, theta: PyTree) -> str:
        """A sentence that names states that explain nothing and parameters on a boundary, after a fit; or nothing."""
        return _explain.warning(self, jax.tree.map(jnp.asarray, theta))

    @float64
    def _held(self, theta):
        """Without a prior: probabilities of zero."""
        return _explain.held(self, jax.tree.map(jnp.asarray, theta))

    @float64
    def _shares(self, theta):
        """Expected visits of every state while a unit is observed."""
        return _explain.visits(self, jax.tree.map(jnp.asarray, theta))

    # for users

    @float64
    def log_likelihood(self, parameters: Any) -> float:
        """`log p(x; θ)`, of a `Fit` or its natural parameters, without the prior."""
        return float(_explain.log_likelihood(self, self._unconstrained(parameters)))

    @float64
    def decode(self, parameters: Any) -> Any:
        """The most probable path of states, by Viterbi."""
        return self.labels.series(np.asarray(_explain.decoded(self, self._unconstrained(parameters))), "state")

    @float64
    def state_probabilities(self, parameters: Any, weights: ArrayLike | None = None) -> Any:
        """`p(z_t = k | everything seen)`, `[steps, states]`; `weights`, one a unit, say what is seen (all, by default)."""
        weights = _series.read_weights("HMM", weights, self.num_units, self._unit_names)
        states = np.asarray(_explain.smoothed(self, self._unconstrained(parameters), weights))
        return self.labels.frame(states, range(self.num_states))

    @float64
    def predictive_means(self, parameters: Any, weights: ArrayLike | None = None) -> Any:
        """The mean observation of every step given everything seen, dressed as `x` came; of symbols their probabilities,
        `[steps, symbols]`."""
        weights = _series.read_weights("HMM", weights, self.num_units, self._unit_names)
        return self.labels.channels(np.asarray(_explain.expected(self, self._unconstrained(parameters), weights)))

    @float64
    def simulate(self, parameters: Any, num_steps: int, seed: int = 0) -> tuple[np.ndarray, Int[np.ndarray, " steps"]]:
        """A sequence drawn from the model, `[steps]` or `[steps, channels]`, and its states."""
        found = self._natural(self._unconstrained(parameters))
        nothing, rng = np.zeros((0, self.x.shape[1])), np.random.default_rng(seed)
        x, states = _future.draw(self.emission, found, np.asarray(found["initial"]), nothing, 0, num_steps, rng)
        return (x[:, 0] if self.labels.columns is None else x), states

    @float64
    def forecast(self, parameters: Any, horizon: int, level: float = 0.9) -> Any:
        """A DataFrame of mean, lower and upper (central interval) for the steps after the last, by simulation; for several
        channels under one heading each; of symbols the probability of each. ValueError where a regressor is missing."""
        return _future.forecast(self, self._unconstrained(parameters), horizon, level)


def _laid(leaf: np.ndarray, where: Layout) -> np.ndarray:
    padded = np.concatenate([leaf, np.zeros((1, *np.shape(leaf)[1:]), np.asarray(leaf).dtype)])
    return np.asarray(jnp.array(padded[where.place.reshape(-1)]))
