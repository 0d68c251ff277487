"""Hidden Markov chains: F and its parts, results of a fit for its own data, and forecasts."""

import copy
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Scalar

from ..._runtime.jax import Module, PyTree, compile_static, static
from ...inference.chain import Layout, Posterior, Potentials, best_path, log_partition, posterior
from ...objectives.objective import Arrays, aligned_copy, float64, padded_weights, unravel
from ...plans.plan import PADDED_FROM, few_more, few_size
from ..emissions._base import AbstractEmission, Parameters, times
from .hidden import IDLE_STATE_COUNT, AbstractHiddenStates, mixture
from .states import States


class AbstractHiddenChain(AbstractHiddenStates):
    """Objective whose hidden states form chains: `F(θ, w)` as in `hmm`, from the densities of an emission."""

    latent: ClassVar[tuple[str, ...]] = ("initial", "transition")

    sequence: Int[np.ndarray, " steps"]
    position: Int[np.ndarray, " steps"]  # position of each step in its sequence
    lengths: Int[np.ndarray, " sequences"]
    slots: Int[np.ndarray, "sequences longest"] | None  # places of each sequence in the layout
    layout: Layout
    states: States
    apart: bool  # whether each state's emission depends on its own part of θ only

    @property
    def num_states(self) -> int:
        return self.states.number

    @property
    def num_units(self) -> int:
        return len(self.lengths) if self.drop == "sequence" else len(self.dense)

    @functools.cached_property
    def padded_chain(self) -> "AbstractHiddenChain":
        """Pad the chain to one of few numbers of steps and sequences, so that few programs are compiled.

        Padding has no effect on results, as padded steps are not part of the chain.
        """
        size = few_size if len(self.dense) <= PADDED_FROM else int
        steps, sequences = size(len(self.dense)), size(len(self.lengths))
        if (steps, sequences) == (len(self.dense), len(self.lengths)):
            return self
        missing = {"x": np.nan, "dense": False, "sequence": 0, "position": 0}
        found: dict[str, Any] = {name: _longer(getattr(self, name), steps, value) for name, value in missing.items()}
        found |= {"lengths": _longer(self.lengths, sequences, 0), "layout": self.layout.pad_to(steps)}
        found |= {"slots": None if self.slots is None else _longer(self.slots, sequences, -1)}
        padded = copy.copy(self)
        vars(padded).update(found)
        return padded

    def log_densities(self, theta: PyTree) -> Float[Array, "rows lanes states"]:
        return self.emission.log_densities(self.emission_parameters(theta), self.data).reshape(
            *self.layout.shape, self.num_states
        )

    def observation_weights(self, weights: Array | np.ndarray) -> Float[Array, " steps"]:
        """Weights of the observations: zero for the missing, and for those whose regressors are left out."""
        return jnp.where(self.dense, weights, 0.0) * self.regressors(weights)

    def regressors(self, weights: Array | np.ndarray) -> Float[Array, " steps"]:
        """Product of the weights of each step's regressors, zero for steps without regressors."""
        product, seen = jnp.ones(len(self.dense)), jnp.where(jnp.isnan(self.x).any(1), 0.0, weights)
        for lag in range(1, self.emission.reach + 1):
            product = product * jnp.where(self.position >= lag, jnp.concatenate([jnp.zeros(lag), seen[:-lag]]), 0.0)
        return product

    def _temper(self, theta: PyTree, weights: Arrays) -> Float[Array, "rows lanes states states"]:
        """Log transitions times `w_{t−1} w_t`, the initial ones times `w_1`."""
        initial, transition = self.states.logs(theta)
        before = jnp.concatenate([jnp.ones(1), weights[:-1]])
        both = self.layout.arrange(jnp.where(self.position == 0, weights, before * weights))[..., None, None]
        steps = jnp.where(jnp.asarray(self.layout.starts)[..., None, None], initial[None], transition)
        return times(both, steps)

    def whole(self, theta: PyTree, weights: Array | np.ndarray) -> tuple[Potentials, Float[Array, "rows lanes states"]]:
        """Return the whole chain with weighted emissions, and the emissions without weights."""
        return self.chain(theta, self.observation_weights(weights))

    def chain(self, theta: PyTree, visible: Array) -> tuple[Potentials, Float[Array, "rows lanes states"]]:
        """Potentials of the chain and log-densities, where `visible` weighs each observation."""
        densities = self.log_densities(theta)
        weighted = times(self.layout.arrange(visible)[..., None], densities)
        return Potentials(*self.states.logs(theta), weighted), densities

    def loss(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Scalar:
        if self.drop == "sequence":
            worth = self.layout.arrange(jnp.asarray(weights)[self.sequence])
            whole, _ = self.whole(theta, jnp.ones(len(self.dense)))
            return -log_partition(whole, worth, self.layout) - self.log_prior(theta)
        whole, _ = self.whole(theta, weights)
        if self.drop == "observation":
            return -log_partition(whole, None, self.layout) - self.log_prior(theta)
        steps = self._temper(theta, weights)
        seen_and_unseen = jnp.stack([whole.emission, jnp.zeros_like(whole.emission)])
        both = jax.vmap(lambda e: log_partition(Potentials(None, steps, e), None, self.layout))(seen_and_unseen)
        return both[1] - both[0] - self.log_prior(theta)

    def runs(self, theta: PyTree, first: np.ndarray, length: np.ndarray) -> "Apart":
        """Return the losses of left-out runs of steps, an `Apart`, at any θ."""
        del theta
        return Apart(self, first, length, int(length.max()))

    def log_prior(self, theta: PyTree) -> Scalar:
        if self.states.prior is None:
            return jnp.zeros(())
        return self.states.log_prior(theta) + self.emission.log_prior(self.emission_parameters(theta))

    def take_steps(self, layout_steps: Array, index: Arrays) -> Array:
        """Select the listed steps of an array in the layout; any step for padding."""
        flat = layout_steps.reshape(-1, *layout_steps.shape[2:])
        inverse = jnp.asarray(self.layout.inverse)
        return flat[inverse if len(index) == len(inverse) else inverse.at[index].get(mode="clip")]

    def alone(self, theta: PyTree, index: Arrays) -> tuple[Potentials, Layout]:
        """Return the potentials of the listed sequences, one in each lane."""
        slots = jnp.asarray(self.slots).at[index].get(mode="clip").T
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[slots.reshape(-1)], self.data)
        densities = self.emission.log_densities(self.emission_parameters(theta), data).reshape(*slots.shape, self.num_states)
        real = slots >= 0
        dense = real & jnp.asarray(self.dense).at[self.layout.place].get(mode="clip").reshape(-1)[slots]
        return Potentials(*self.states.logs(theta), times(dense[..., None], densities)), self.layout.side_by_side(real)

    def along(
        self, function: Callable[[Array], Array], vector: Array, entries: Int[Array | np.ndarray, "some ..."]
    ) -> Float[Array, "some ..."]:
        """Differentiate a function of the raveled θ by some of its entries, or by sums of several.

        The tangents are computed in groups.
        """
        tangent_entries = 2**18  # numbers in one array of a group of tangents of a Hessian
        size = max(1, tangent_entries // (self.layout.place.size * self.num_states))
        derivative = lambda i: jax.jvp(function, (vector,), (jnp.zeros_like(vector).at[i].set(1.0),))[1]
        if not len(entries):
            return jnp.zeros((0, *jax.eval_shape(function, vector).shape))
        return jax.lax.map(derivative, jnp.asarray(entries), batch_size=min(size, len(entries)))


def _longer(array: np.ndarray, count: int, value: float) -> np.ndarray:
    """Extend an array to so many rows by rows of one value."""
    beyond = [(0, count - len(array)), *[(0, 0)] * (array.ndim - 1)]
    return aligned_copy(np.pad(array, beyond, constant_values=value))


class Apart(Module):
    """Losses of runs of steps whose observations are left out, of all runs in one pass; a run has `length` steps from `first`.

    The results are the held-out loss of every step of a run (any value behind its end), and the joint loss of the run, by which
    F falls. For runs of one step only the joint losses are returned. They are zero where an observation is missing.

        p(z_t = k | the rest) ∝ (α A^{t−a+1})_k (A^{b−t} β)_k,    −log p(x_a…x_b | the rest) = log α A^{b−a+1} β − Σ log c_t

    α is the filtered distribution before the run, β what is ahead of its last step b, and c normalises each step.
    """

    chain: AbstractHiddenChain
    first: Int[Arrays, " folds"]
    length: Int[Arrays, " folds"]
    width: int = static()

    def __call__(self, theta: PyTree) -> tuple[Float[Array, "folds width"] | None, Float[Array, " folds"]]:
        chain, length = self.chain, self.length
        whole, densities = chain.whole(theta, jnp.ones(len(chain.dense)))
        found = posterior(whole, chain.layout)
        laid = found.filtered, found.ahead, found.log_normaliser, densities
        filtered, ahead, normaliser, densities = map(chain.layout.restore, laid)
        initial, transition = (jnp.exp(log) for log in chain.states.logs(theta))
        at = jnp.arange(self.width)
        step = jnp.minimum(self.first + at[:, None], len(chain.dense) - 1)
        starts = (jnp.asarray(chain.position) == 0)[step][..., None]

        def forward(p, starts):
            p = jnp.where(starts, initial * p.sum(1, keepdims=True), p @ transition)
            return p, p

        def back(p, x):
            at, step, starts = x
            p = jnp.where((at == length - 1)[:, None], ahead[step], p)
            return jnp.where(starts, (p @ initial)[:, None], p @ transition.T), p

        _, left = jax.lax.scan(forward, filtered[self.first - 1], starts)
        _, right = jax.lax.scan(back, jnp.ones_like(left[0]), (at, step, starts), reverse=True)
        unseen = left * right
        total = unseen.sum(-1, keepdims=True)
        losses = -mixture((unseen / total).reshape(-1, chain.num_states), densities[step].reshape(-1, chain.num_states))
        seen = jnp.where(at[:, None] < length, normaliser[step], 0.0).sum(0)
        return None if self.width == 1 else losses.reshape(step.shape).T, jnp.log(total[0, :, 0]) - seen


@compile_static
def log_likelihood(hmm: AbstractHiddenChain, theta: PyTree) -> Scalar:
    return log_partition(hmm.whole(theta, jnp.ones(len(hmm.dense)))[0], None, hmm.layout)


def _posterior(hmm: AbstractHiddenChain, theta: PyTree, weights: Array | np.ndarray) -> Posterior:
    steps = weights[hmm.sequence] if hmm.drop == "sequence" else weights
    return posterior(hmm.whole(theta, steps)[0], hmm.layout)


def of_steps(function: Callable[..., Array]) -> Callable[..., np.ndarray]:
    """Compile a function of a chain, θ and perhaps weights that has a result for every step."""

    @functools.wraps(function)
    def called(hmm: AbstractHiddenChain, theta: PyTree, *weights: Any) -> np.ndarray:
        given = (padded_weights(hmm.padded_chain, np.asarray(of_units)) for of_units in weights)
        return np.asarray(function(hmm.padded_chain, theta, *given))[: len(hmm.dense)]

    return called


@of_steps
@compile_static
def smoothed_states(hmm: AbstractHiddenChain, theta: PyTree, weights: Array | np.ndarray) -> Float[Array, "steps states"]:
    return hmm.layout.restore(_posterior(hmm, theta, weights).states)


@of_steps
@compile_static
def filtered_states(hmm: AbstractHiddenChain, theta: PyTree) -> Float[Array, "steps states"]:
    return hmm.layout.restore(_posterior(hmm, theta, jnp.ones(hmm.num_units)).filtered)


@of_steps
@compile_static
def expected_observations(
    hmm: AbstractHiddenChain, theta: PyTree, weights: Array | np.ndarray
) -> Float[Array, "steps channels"]:
    states = _posterior(hmm, theta, weights).states.reshape(-1, hmm.num_states)
    means = hmm.means(states, hmm.emission_parameters(theta), hmm.data)
    known = hmm.regressors(jnp.ones(len(hmm.dense)) if hmm.drop == "sequence" else weights) > 0
    return jnp.where(known[:, None], means[hmm.layout.inverse], jnp.nan)


@of_steps
@compile_static
def decode_path(hmm: AbstractHiddenChain, theta: PyTree) -> Int[Array, " steps"]:
    whole, _ = hmm.whole(theta, jnp.ones(len(hmm.dense)))
    initial, transition = hmm.states.logs(theta)
    return best_path(initial, transition, hmm.layout.restore(whole.emission), jnp.asarray(hmm.position) == 0)


def visits(hmm: AbstractHiddenChain, theta: PyTree) -> Float[np.ndarray, "units states"]:
    """Compute the expected visits of every state by each unit, a step or a sequence."""
    steps = np.where(hmm.dense[:, None], smoothed_states(hmm, theta, np.ones(hmm.num_units)), 0.0)
    if hmm.drop != "sequence":
        return steps
    return np.add.reduceat(steps, np.cumsum(hmm.lengths) - hmm.lengths, axis=0)


def warning(hmm: AbstractHiddenChain, theta: PyTree) -> str:
    """Describe states that explain nothing, and parameters on a boundary."""
    found, visited = jax.tree.map(np.asarray, hmm.parameters.natural(theta)), visits(hmm, theta).sum(0)
    sentences = [
        f"State {k} explains nothing (expected visits {visited[k]:.2g} of {hmm.dense.sum()} steps): take fewer states."
        for k in np.flatnonzero(visited < IDLE_STATE_COUNT)
    ]
    # the level of an autoregression may drift
    spread = np.nanvar(np.diff(hmm.x, axis=0) if hmm.emission.reach else hmm.x, axis=0)
    free = {name: found[name] for name in (*hmm.states.free, *hmm.emission.free)}
    return " ".join(filter(None, (*sentences, hmm.on_boundary(free, spread, hmm.states.support))))


@float64
def leaving(
    hmm: AbstractHiddenChain,
    like: PyTree,
    thetas: Float[np.ndarray, "refits params"],
    weights: Float[np.ndarray, "refits units"],
) -> Bool[np.ndarray, " refits"]:
    """Tell for which refits F would fall if a probability left the zero at which the fit holds it.

    The derivative is `∂F/∂p_jk − Σ_l p_jl ∂F/∂p_jl`, as the others of the row shrink in proportion. At a minimum it is not
    negative (Karush, Kuhn & Tucker).
    """
    some = few_more(len(thetas))
    refits = thetas[some], padded_weights(hmm.padded_chain, weights)[some]
    return np.asarray(_least_multipliers(hmm.padded_chain, like, refits))[: len(thetas)] < 0


@compile_static
def _least_multipliers(hmm: AbstractHiddenChain, like: PyTree, refits: tuple[Arrays, Arrays]) -> Float[Array, " refits"]:
    barely = 1e-8  # a probability that stands for zero, where logarithms are taken

    def one(args):
        theta, least = unravel(args[0], like), []
        for name, log in zip(hmm.latent, hmm.states.logs(theta), strict=True):
            if name in hmm.states.edge:
                edge = hmm.states.edge[name]
                given = lambda p, name=name: eqx.tree_at(lambda m: getattr(m.states, name), hmm, p, is_leaf=lambda x: x is None)
                p = jnp.where(edge, barely, jnp.exp(log))
                slope = jax.grad(lambda p, given=given: given(p).loss(theta, args[1]))(p)
                room = jnp.sum(p * slope, -1, keepdims=True)
                least.append(jnp.min(jnp.where(edge, slope - room, jnp.inf)))
        return jnp.min(jnp.stack(least))

    return jax.lax.map(one, refits, batch_size=hmm.costs.lanes)


def futures(hmm: AbstractHiddenChain, theta: PyTree, horizon: int) -> Float[np.ndarray, "draws horizon channels"]:
    """Draw the steps after the last one, `FUTURE_DRAWS` times."""
    found, rng, steps = hmm.parameters.natural(theta), np.random.default_rng(0), len(hmm.x)
    first = filtered_states(hmm, theta)[-1] @ np.asarray(found["transition"])
    past = recent(hmm.x, hmm.emission.reach)
    future_draws = 2000  # number of draws of the future
    return np.stack([draw(hmm.emission, found, first, past, steps, horizon, rng)[0] for _ in range(future_draws)])


def recent(x: Float[np.ndarray, "steps channels"], reach: int) -> Float[np.ndarray, "reach channels"]:
    """Return the observations that the first step ahead regresses on; ValueError if one is missing."""
    past = x[len(x) - reach :]
    missing = len(x) - reach + np.flatnonzero(np.isnan(past).any(axis=1))
    if missing.size:
        raise ValueError(
            f"forecast: the steps ahead regress on the last {reach}, of which {missing.tolist()} are missing (NaN). Fill them, "
            f"or cut the series after the last {reach} steps in a row that are observed."
        )
    return past


def draw(
    emission: AbstractEmission,
    parameters: Parameters,
    first: Float[np.ndarray, " states"],
    past: Float[np.ndarray, "past channels"],
    at: int,
    num_steps: int,
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "steps channels"], Int[np.ndarray, " steps"]]:
    """Draw steps from `at` on and their states, the first of which has the distribution `first`."""
    found = {name: np.asarray(value) for name, value in parameters.items()}
    transition, K = found["transition"], len(first)
    own = {name: value for name, value in found.items() if name not in ("initial", "transition")}
    steps, states = np.concatenate([past, np.empty((num_steps, past.shape[1]))]), np.empty(num_steps, int)
    chances = first
    for t in range(num_steps):
        states[t] = rng.choice(K, p=chances / chances.sum())
        chances = transition[states[t]]
        now = len(past) + t
        steps[now] = emission.draw(own, states[t], at + t, steps[max(0, now - max(emission.reach, 1)) : now], rng)
    return steps[len(past) :], states
