"""Hidden Markov chains: their states, F and its parts, results of a fit for its own data, and
forecasts.

The states have an initial distribution and a transition matrix, each free or fixed, and priors of
these.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Bool, Float, Int, Scalar
from numpy.typing import ArrayLike

from ..._runtime.jax import Module, PyTree, compile_static, static
from ...inference.chain import (
    Layout,
    Potentials,
    StatePosterior,
    best_path,
    has_stationary,
    log_partition,
    posterior,
    stationary,
)
from ...objectives.objective import Arrays, aligned_copy, float64, padded_weights, unravel
from ...plans.plan import PADDED_FROM, few_more, few_size
from ..emissions._base import SIMPLEX, AbstractEmission, Parameters, times, with_last
from .hidden import IDLE_STATE_COUNT, AbstractHiddenStates, entries, mixture


class Dirichlet(Module):
    """Dirichlet priors of the initial distribution and of every row of the transition matrix, for
    `lo.HMM`.

    The default concentration of two is one pseudo-transition of each kind (Laplace's rule).

    Parameters
    ----------
    initial : float or array, shape (states,), default: 2.0
        Concentrations of the initial distribution.
    transition : float or array, shape (states, states), default: 2.0
        Concentrations of the rows of the transition matrix.

    See Also
    --------
    HMM

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.models.Dirichlet(transition=1.5).initial
    2.0
    """

    initial: ArrayLike = 2.0
    transition: ArrayLike = 2.0


class States(Module):
    """Initial distribution and transitions of K states.

    `θ["initial"]` `[K − 1]` and `θ["transition"]` `[K, K − 1]` are log-ratios against the last
    state. If some probabilities are held at zero, they are one vector of log-ratios against the
    last free state of each row.
    """

    initial: Float[np.ndarray, " states"] | None  # held fixed
    transition: Float[np.ndarray, "states states"] | None
    prior: Dirichlet | None
    # probabilities held at zero because the fit put them there
    edge: dict[str, Bool[np.ndarray, "..."]] | None
    number: int = static()
    stationary: bool = static()
    masks: tuple[Any, ...] = static()  # free probabilities by name, if others are zero

    def __init__(self, number: int, initial: ArrayLike, transition: ArrayLike, prior: object):
        self.number = number
        self.edge = None
        self.stationary = isinstance(initial, str) and initial == "stationary"
        self.initial, first = _read_distribution(
            "initial", initial, (number,), ("free", "stationary")
        )
        self.transition, moves = _read_distribution(
            "transition", transition, (number, number), ("free",)
        )
        if self.stationary and self.transition is not None and not has_stationary(self.transition):
            raise ValueError(
                'HMM: initial="stationary" needs a transition matrix all of whose states lead to the first, in the end; got '
                f"{self.transition.tolist()}. Give the initial distribution as an array."
            )
        masks = ("initial", first), ("transition", moves)
        self.masks = tuple(
            (name, (free.shape, tuple(free.ravel().tolist())))
            for name, free in masks
            if free is not None
        )
        if not (
            prior is None
            or isinstance(prior, Dirichlet)
            or (isinstance(prior, str) and prior == "default")
        ):
            raise ValueError(
                f"HMM: prior must be 'default', None or lo.models.Dirichlet(...); got {prior!r}."
            )
        if prior is None:
            self.prior = None
        else:
            self.prior = _concentrations(Dirichlet() if isinstance(prior, str) else prior, number)

    @property
    def free(self) -> dict[str, tuple[int, ...]]:
        """Parts of θ of the latent chain, with their natural shapes."""
        K = self.number
        free: dict[str, tuple[int, ...]] = {}
        if K > 1 and self.initial is None and not self.stationary:
            free["initial"] = (K,)
        if K > 1 and self.transition is None:
            free["transition"] = K, K
        return free

    @property
    def support(self) -> dict[str, Bool[np.ndarray, "*rows states"]]:
        """Masks of free probabilities, if others are held at zero."""
        return {name: np.array(free).reshape(shape) for name, (shape, free) in self.masks}

    @property
    def zeros(self) -> bool:
        """Whether some probability is held at zero."""
        held = [array for array in (self.initial, self.transition) if array is not None]
        return bool(self.masks) or any(bool((array == 0).any()) for array in held)

    @property
    def exchangeable(self) -> bool:
        """Whether the model is the same for any order of the states."""
        arrays: list[ArrayLike | None] = [self.initial, self.transition, *self.support.values()]
        if self.prior is not None:
            arrays += [self.prior.initial, self.prior.transition]
        return all(
            array is None or _is_symmetric(np.asarray(array, np.float64)) for array in arrays
        )

    def logs(self, theta: PyTree) -> tuple[Float[Array, " states"], Float[Array, "states states"]]:
        """Compute the logarithms of the initial distribution and of the transition matrix."""
        K = self.number
        if "transition" in self.free:
            transition = self._logs("transition", theta)
        else:
            transition = jnp.log(jnp.ones((1, 1)) if self.transition is None else self.transition)
        if "initial" in self.free:
            return self._logs("initial", theta), transition
        if self.stationary and K > 1:
            return jnp.log(stationary(jnp.exp(transition))), transition
        return jnp.log(jnp.ones(1) if self.initial is None else self.initial), transition

    def _logs(self, name: str, theta: PyTree) -> Array:
        if name not in self.support:
            ratios = theta[name]
            return (scipy.special if isinstance(ratios, np.ndarray) else jax.nn).log_softmax(
                with_last(ratios), axis=-1
            )
        free = self.support[name]
        last = _last(free)
        logits = jnp.where(last, 0.0, -jnp.inf).at[np.nonzero(free & ~last)].set(theta[name])
        return jax.nn.log_softmax(logits, axis=-1)

    def to_unconstrained(self, name: str, value: np.ndarray) -> np.ndarray:
        """Compute the part of θ of a natural parameter."""
        if name not in self.support:
            return np.asarray(SIMPLEX.unconstrained(value))
        free = self.support[name]
        last = _last(free)
        logs = np.log(np.where(free, value, 1.0))
        return (logs - np.sum(np.where(last, logs, 0.0), -1, keepdims=True))[free & ~last]

    def names(self, name: str) -> list[str]:
        """Name the entries of a part of θ."""
        free = self.support.get(name, np.ones(self.free[name], bool))
        return entries(name, free & ~_last(free))

    def log_prior(self, theta: PyTree) -> Scalar:
        total = jnp.zeros(())
        if self.prior is not None:
            for name, log in zip(("initial", "transition"), self.logs(theta), strict=True):
                if name in self.free:
                    if name in self.support:
                        log = jnp.where(self.support[name], log, 0.0)
                    total = total + jnp.sum((getattr(self.prior, name) - 1) * log)
        return total

    def start(self, seed: int) -> dict[str, np.ndarray]:
        """Return natural parameters to start a fit from, with persistent states."""
        K = self.number
        rng = np.random.default_rng(seed)
        stay = rng.uniform(0.6, 0.95)
        moves = (1 - stay) * rng.dirichlet(np.full(K, 5.0), K) + stay * np.eye(K)
        return {"initial": np.full(K, 1 / K), "transition": moves}

    @property
    def zero_note(self) -> str:
        """Count of the probabilities held at zero, as text."""
        counts = [f"{np.sum(~free)} {name}" for name, free in self.support.items()]
        if counts:
            return f"; {' and '.join(counts)} probabilities held at zero"
        return ""

    @property
    def note(self) -> str:
        """The prior, in words."""
        assert self.prior is not None
        words = {"initial": "initial", "transition": "transition rows"}
        concentrations = {name: np.asarray(getattr(self.prior, name)) for name in self.free}
        texts = {
            name: f"{a.flat[0]:g}" if np.ptp(a) == 0 else str(a.tolist())
            for name, a in concentrations.items()
        }
        return "; ".join(f"{words[name]} ~ Dirichlet({text})" for name, text in texts.items())


def _last(free: Bool[np.ndarray, "*rows states"]) -> Bool[np.ndarray, "*rows states"]:
    """Find the last free entry of each row."""
    return free & (np.cumsum(free[..., ::-1], -1)[..., ::-1] == 1)


def _read_distribution(
    name: str, value: ArrayLike, shape: tuple[int, ...], words: tuple[str, ...]
) -> tuple[np.ndarray | None, Bool[np.ndarray, "*rows states"] | None]:
    """Read a distribution.

    Returns its values if it is held fixed as a whole; for an array of NaN (free) and zeros, returns
    its free entries.
    """
    if isinstance(value, str):
        if value not in words:
            raise ValueError(
                f"HMM: {name} must be {' or '.join(map(repr, words))} or an array; got {value!r}."
            )
        return None, None
    array = np.asarray(value, np.float64)
    free = np.isnan(array)
    if array.shape == shape and free.any(-1).all() and (array[~free] == 0).all():
        return None, None if free.all() else free
    if (
        array.shape != shape
        or not (array >= 0).all()
        or not np.allclose(array.sum(-1), 1, atol=1e-8)
    ):
        rows = " in each row" if len(shape) > 1 else ""
        raise ValueError(
            f"HMM: {name} must be probabilities {list(shape)} that sum to one{rows}, or NaN where free and zero elsewhere; "
            f"got {array.tolist()}."
        )
    return array / array.sum(-1, keepdims=True), None


def _concentrations(prior: Dirichlet, K: int) -> Dirichlet:
    def checked(name, shape):
        array = np.asarray(getattr(prior, name), np.float64)
        if array.shape not in ((), shape) or not (np.isfinite(array) & (array >= 1)).all():
            raise ValueError(
                f"HMM: Dirichlet {name} must be a number or {list(shape)}, 1 or more; got {array.tolist()}."
            )
        return np.array(np.broadcast_to(array, shape))

    return Dirichlet(checked("initial", (K,)), checked("transition", (K, K)))


def _is_symmetric(array: np.ndarray) -> bool:
    """Tell whether no permutation of the states changes an array."""
    if array.ndim == 1:
        return bool(np.ptp(array) == 0)
    off = array[~np.eye(len(array), dtype=bool)]
    if off.size:
        return bool(np.ptp(off) == 0 and np.ptp(np.diag(array)) == 0)
    return True


class AbstractHiddenChain(AbstractHiddenStates):
    """Objective whose hidden states form chains.

    `F(θ, w)` as in `hmm`, from the densities of an emission.
    """

    latent: ClassVar[tuple[str, ...]] = ("initial", "transition")

    x: Float[np.ndarray, "steps channels"]
    data: PyTree  # x as prepared by the emission, in the layout
    dense: Bool[np.ndarray, " steps"]  # whether the step has a density
    sequence: Int[np.ndarray, " steps"]
    position: Int[np.ndarray, " steps"]  # position of each step in its sequence
    lengths: Int[np.ndarray, " sequences"]
    slots: Int[np.ndarray, "sequences longest"] | None  # places of each sequence in the layout
    layout: Layout
    states: States
    # whether each state's emission depends on its own part of θ only
    separate_states: bool = static()

    @property
    def num_states(self) -> int:
        return self.states.number

    @property
    def num_steps(self) -> int:
        return len(self.dense)

    @property
    def num_units(self) -> int:
        if self.drop == "sequence":
            return len(self.lengths)
        return self.num_steps

    @functools.cached_property
    def padded_chain(self) -> "AbstractHiddenChain":
        """Pad the chain to one of few numbers of steps and sequences, so that few programs are
        compiled.

        Padding has no effect on results, as padded steps are not part of the chain.
        """
        size = few_size if self.num_steps <= PADDED_FROM else int
        steps = size(self.num_steps)
        sequences = size(len(self.lengths))
        if (steps, sequences) == (self.num_steps, len(self.lengths)):
            return self

        def pad(name: str, count: int, value: float) -> np.ndarray | None:
            array = getattr(self, name)
            if array is None:
                return None
            beyond = [(0, count - len(array)), *[(0, 0)] * (array.ndim - 1)]
            return aligned_copy(np.pad(array, beyond, constant_values=value))

        of_steps = {"x": np.nan, "dense": False, "sequence": 0, "position": 0}
        attributes: dict[str, Any] = {
            name: pad(name, steps, value) for name, value in of_steps.items()
        }
        attributes |= {
            name: pad(name, sequences, value) for name, value in {"lengths": 0, "slots": -1}.items()
        }
        attributes["layout"] = self.layout.pad_to(steps)
        padded = copy.copy(self)
        vars(padded).update(attributes)
        return padded

    def log_densities(self, theta: PyTree) -> Float[Array, "rows lanes states"]:
        return self.emission.log_densities(self.emission_parameters(theta), self.data).reshape(
            *self.layout.shape, self.num_states
        )

    def observation_weights(self, weights: Array | np.ndarray) -> Float[Array, " steps"]:
        """Weights of the observations.

        Zero for the missing, and for those whose regressors are left out.
        """
        return jnp.where(self.dense, weights, 0.0) * self.regressors(weights)

    def regressors(self, weights: Array | np.ndarray) -> Float[Array, " steps"]:
        """Product of the weights of each step's regressors, zero for steps without regressors."""
        product = jnp.ones(self.num_steps)
        seen = jnp.where(jnp.isnan(self.x).any(1), 0.0, weights)
        for lag in range(1, self.emission.reach + 1):
            product = product * jnp.where(
                self.position >= lag, jnp.concatenate([jnp.zeros(lag), seen[:-lag]]), 0.0
            )
        return product

    def weighted_chain(
        self, theta: PyTree, weights: Array | np.ndarray
    ) -> tuple[Potentials, Float[Array, "rows lanes states"]]:
        """Return the whole chain with weighted emissions, and the emissions without weights."""
        return self.chain(theta, self.observation_weights(weights))

    def chain(
        self, theta: PyTree, visible: Array
    ) -> tuple[Potentials, Float[Array, "rows lanes states"]]:
        """Potentials of the chain and log-densities, where `visible` weighs each observation."""
        densities = self.log_densities(theta)
        weighted = times(self.layout.arrange(visible)[..., None], densities)
        return Potentials(*self.states.logs(theta), weighted), densities

    def loss(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Scalar:
        if self.drop == "sequence":
            worth = self.layout.arrange(jnp.asarray(weights)[self.sequence])
            potentials, _ = self.weighted_chain(theta, jnp.ones(self.num_steps))
            return -log_partition(potentials, worth, self.layout) - self.log_prior(theta)
        potentials, _ = self.weighted_chain(theta, weights)
        if self.drop == "observation":
            return -log_partition(potentials, None, self.layout) - self.log_prior(theta)
        # log transitions times w_{t−1} w_t, the initial ones times w_1
        initial, transition = self.states.logs(theta)
        before = jnp.concatenate([jnp.ones(1), weights[:-1]])
        tempered = self.layout.arrange(jnp.where(self.position == 0, weights, before * weights))[
            ..., None, None
        ]
        starts = jnp.asarray(self.layout.starts)[..., None, None]
        steps = times(tempered, jnp.where(starts, initial[None], transition))
        seen_and_unseen = jnp.stack([potentials.emission, jnp.zeros_like(potentials.emission)])
        log_partitions = jax.vmap(
            lambda e: log_partition(Potentials(None, steps, e), None, self.layout)
        )(seen_and_unseen)
        return log_partitions[1] - log_partitions[0] - self.log_prior(theta)

    def runs(self, theta: PyTree, first: np.ndarray, length: np.ndarray) -> "RunLosses":
        """Return the losses of left-out runs of steps, a `RunLosses`, at any θ."""
        del theta
        return RunLosses(self, first, length, int(length.max()))

    def log_prior(self, theta: PyTree) -> Scalar:
        if self.states.prior is None:
            return jnp.zeros(())
        return self.states.log_prior(theta) + self.emission.log_prior(
            self.emission_parameters(theta)
        )

    def take_steps(self, layout_steps: Array, index: Arrays) -> Array:
        """Select the listed steps of an array in the layout; any step for padding."""
        flat = layout_steps.reshape(-1, *layout_steps.shape[2:])
        inverse = jnp.asarray(self.layout.inverse)
        return flat[inverse if len(index) == len(inverse) else inverse.at[index].get(mode="clip")]

    def alone(self, theta: PyTree, index: Arrays) -> tuple[Potentials, Layout]:
        """Return the potentials of the listed sequences, one in each lane."""
        slots = jnp.asarray(self.slots).at[index].get(mode="clip").T
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[slots.reshape(-1)], self.data)
        densities = self.emission.log_densities(self.emission_parameters(theta), data).reshape(
            *slots.shape, self.num_states
        )
        real = slots >= 0
        dense = (
            real & jnp.asarray(self.dense).at[self.layout.place].get(mode="clip").reshape(-1)[slots]
        )
        return Potentials(
            *self.states.logs(theta), times(dense[..., None], densities)
        ), self.layout.side_by_side(real)

    @float64
    def visits(self, theta: PyTree) -> Float[np.ndarray, "units states"]:
        """Compute the expected visits of every state by each unit, a step or a sequence."""
        steps = np.where(
            self.dense[:, None], smoothed_states(self, theta, np.ones(self.num_units)), 0.0
        )
        if self.local:
            return np.add.reduceat(steps, np.cumsum(self.lengths) - self.lengths, axis=0)
        return steps

    @float64
    def _warning(self, theta: PyTree) -> str:
        """Describe states that explain nothing and parameters on a boundary, after a fit.

        Or return "".
        """
        natural_parameters = jax.tree.map(np.asarray, self.parameters.natural(theta))
        visited = self.visits(theta).sum(0)
        sentences = [
            f"State {k} explains nothing (expected visits {visited[k]:.2g} of {self.dense.sum()} steps): take fewer states."
            for k in np.flatnonzero(visited < IDLE_STATE_COUNT)
        ]
        # the level of an autoregression may drift
        spread = np.nanvar(np.diff(self.x, axis=0) if self.emission.reach else self.x, axis=0)
        free = {name: natural_parameters[name] for name in (*self.states.free, *self.emission.free)}
        return " ".join(
            filter(None, (*sentences, self.on_boundary(free, spread, self.states.support)))
        )

    def along(
        self,
        function: Callable[[Array], Array],
        vector: Array,
        entries: Int[Array | np.ndarray, "some ..."],
    ) -> Float[Array, "some ..."]:
        """Differentiate a function of the raveled θ by some of its entries, or by sums of several.

        The tangents are computed in groups.
        """
        tangent_entries = 2**18  # numbers in one array of a group of tangents of a Hessian
        size = max(1, tangent_entries // (self.layout.place.size * self.num_states))
        derivative = lambda i: jax.jvp(
            function, (vector,), (jnp.zeros_like(vector).at[i].set(1.0),)
        )[1]
        if not len(entries):
            return jnp.zeros((0, *jax.eval_shape(function, vector).shape))
        return jax.lax.map(derivative, jnp.asarray(entries), batch_size=min(size, len(entries)))


class RunLosses(Module):
    """Losses of runs of steps whose observations are left out, of all runs in one pass; a run has
    `length` steps from `first`.

    The results are the held-out loss of every step of a run (any value behind its end), and the
    joint loss of the run, by which F falls. For runs of one step only the joint losses are
    returned. They are zero where an observation is missing.

        p(z_t = k | the rest) ∝ (α A^{t−a+1})_k (A^{b−t} β)_k,
        −log p(x_a…x_b | the rest) = log α A^{b−a+1} β − Σ log c_t

    α is the filtered distribution before the run, β what is ahead of its last step b, and c
    normalises each step.
    """

    chain: AbstractHiddenChain
    first: Int[Arrays, " folds"]
    length: Int[Arrays, " folds"]
    width: int = static()

    def __call__(
        self, theta: PyTree
    ) -> tuple[Float[Array, "folds width"] | None, Float[Array, " folds"]]:
        chain = self.chain
        length = self.length
        potentials, densities = chain.weighted_chain(theta, jnp.ones(chain.num_steps))
        chain_posterior = posterior(potentials, chain.layout)
        laid = (
            chain_posterior.filtered,
            chain_posterior.ahead,
            chain_posterior.log_normaliser,
            densities,
        )
        filtered, evidence_ahead, normaliser, densities = map(chain.layout.restore, laid)
        initial, transition = (jnp.exp(log) for log in chain.states.logs(theta))
        offset = jnp.arange(self.width)
        step = jnp.minimum(self.first + offset[:, None], chain.num_steps - 1)
        starts = (jnp.asarray(chain.position) == 0)[step][..., None]

        def forward(p, starts):
            p = jnp.where(starts, initial * p.sum(1, keepdims=True), p @ transition)
            return p, p

        def step_back(p, x):
            offset, step, starts = x
            p = jnp.where((offset == length - 1)[:, None], evidence_ahead[step], p)
            return jnp.where(starts, (p @ initial)[:, None], p @ transition.T), p

        _, left = jax.lax.scan(forward, filtered[self.first - 1], starts)
        _, right = jax.lax.scan(
            step_back, jnp.ones_like(left[0]), (offset, step, starts), reverse=True
        )
        unseen = left * right
        total = unseen.sum(-1, keepdims=True)
        losses = -mixture(
            (unseen / total).reshape(-1, chain.num_states),
            densities[step].reshape(-1, chain.num_states),
        )
        seen = jnp.where(offset[:, None] < length, normaliser[step], 0.0).sum(0)
        return None if self.width == 1 else losses.reshape(step.shape).T, jnp.log(
            total[0, :, 0]
        ) - seen


@compile_static
def log_likelihood(hmm: AbstractHiddenChain, theta: PyTree) -> Scalar:
    return log_partition(hmm.weighted_chain(theta, jnp.ones(hmm.num_steps))[0], None, hmm.layout)


def _posterior(
    hmm: AbstractHiddenChain, theta: PyTree, weights: Array | np.ndarray
) -> StatePosterior:
    steps = weights[hmm.sequence] if hmm.drop == "sequence" else weights
    return posterior(hmm.weighted_chain(theta, steps)[0], hmm.layout)


def of_steps(function: Callable[..., Array]) -> Callable[..., np.ndarray]:
    """Compile a function of a chain, θ and perhaps weights that has a result for every step."""

    @functools.wraps(function)
    def wrapper(hmm: AbstractHiddenChain, theta: PyTree, *weights: Any) -> np.ndarray:
        unit_weights = (
            padded_weights(hmm.padded_chain, np.asarray(of_units)) for of_units in weights
        )
        return np.asarray(function(hmm.padded_chain, theta, *unit_weights))[: hmm.num_steps]

    return wrapper


@of_steps
@compile_static
def smoothed_states(
    hmm: AbstractHiddenChain, theta: PyTree, weights: Array | np.ndarray
) -> Float[Array, "steps states"]:
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
    has_regressors = (
        hmm.regressors(jnp.ones(hmm.num_steps) if hmm.drop == "sequence" else weights) > 0
    )
    return jnp.where(has_regressors[:, None], means[hmm.layout.inverse], jnp.nan)


@of_steps
@compile_static
def decode_path(hmm: AbstractHiddenChain, theta: PyTree) -> Int[Array, " steps"]:
    potentials, _ = hmm.weighted_chain(theta, jnp.ones(hmm.num_steps))
    initial, transition = hmm.states.logs(theta)
    return best_path(
        initial, transition, hmm.layout.restore(potentials.emission), jnp.asarray(hmm.position) == 0
    )


@float64
def leaving(
    hmm: AbstractHiddenChain,
    like: PyTree,
    thetas: Float[np.ndarray, "refits params"],
    weights: Float[np.ndarray, "refits units"],
) -> Bool[np.ndarray, " refits"]:
    """Tell for which refits F would fall if a probability left the zero at which the fit holds it.

    The derivative is `∂F/∂p_jk − Σ_l p_jl ∂F/∂p_jl`, as the others of the row shrink in proportion.
    At a minimum it is not negative (Karush, Kuhn & Tucker).
    """
    indices = few_more(len(thetas))
    refits = thetas[indices], padded_weights(hmm.padded_chain, weights)[indices]
    return np.asarray(_least_multipliers(hmm.padded_chain, like, refits))[: len(thetas)] < 0


@compile_static
def _least_multipliers(
    hmm: AbstractHiddenChain, like: PyTree, refits: tuple[Arrays, Arrays]
) -> Float[Array, " refits"]:
    barely = 1e-8  # a probability that stands for zero, where logarithms are taken

    def least_multiplier(args):
        theta = unravel(args[0], like)
        least = []
        for name, log in zip(hmm.latent, hmm.states.logs(theta), strict=True):
            if name in hmm.states.edge:
                edge = hmm.states.edge[name]
                with_probabilities = lambda p, name=name: eqx.tree_at(
                    lambda m: getattr(m.states, name), hmm, p, is_leaf=lambda x: x is None
                )
                p = jnp.where(edge, barely, jnp.exp(log))
                slope = jax.grad(
                    lambda p, with_probabilities=with_probabilities: with_probabilities(p).loss(
                        theta, args[1]
                    )
                )(p)
                mean_slope = jnp.sum(p * slope, -1, keepdims=True)
                least.append(jnp.min(jnp.where(edge, slope - mean_slope, jnp.inf)))
        return jnp.min(jnp.stack(least))

    return jax.lax.map(least_multiplier, refits, batch_size=hmm.costs.lanes)


def futures(
    hmm: AbstractHiddenChain, theta: PyTree, horizon: int
) -> Float[np.ndarray, "draws horizon channels"]:
    """Draw the steps after the last one, many times.

    ValueError if an observation that they regress on is missing.
    """
    natural_parameters = hmm.parameters.natural(theta)
    rng = np.random.default_rng(0)
    steps = len(hmm.x)
    first = filtered_states(hmm, theta)[-1] @ np.asarray(natural_parameters["transition"])
    reach = hmm.emission.reach
    past = hmm.x[steps - reach :]  # what the first step ahead regresses on
    missing = steps - reach + np.flatnonzero(np.isnan(past).any(axis=1))
    if missing.size:
        raise ValueError(
            f"forecast: the steps ahead regress on the last {reach}, of which {missing.tolist()} are missing (NaN). Fill them, "
            f"or cut the series after the last {reach} steps in a row that are observed."
        )
    future_draws = 2000  # number of draws of the future
    return np.stack(
        [
            draw(hmm.emission, natural_parameters, first, past, steps, horizon, rng)[0]
            for _ in range(future_draws)
        ]
    )


def draw(
    emission: AbstractEmission,
    parameters: Parameters,
    first: Float[np.ndarray, " states"],
    past: Float[np.ndarray, "past channels"],
    first_step: int,
    num_steps: int,
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "steps channels"], Int[np.ndarray, " steps"]]:
    """Draw steps from `first_step` on and their states, the first of them from `first`."""
    arrays = {name: np.asarray(value) for name, value in parameters.items()}
    transition = arrays["transition"]
    K = len(first)
    emission_parameters = {
        name: value for name, value in arrays.items() if name not in ("initial", "transition")
    }
    steps = np.concatenate([past, np.empty((num_steps, past.shape[1]))])
    states = np.empty(num_steps, int)
    chances = first
    for t in range(num_steps):
        states[t] = rng.choice(K, p=chances / chances.sum())
        chances = transition[states[t]]
        place = len(past) + t
        steps[place] = emission.draw(
            emission_parameters,
            states[t],
            first_step + t,
            steps[max(0, place - max(emission.reach, 1)) : place],
            rng,
        )
    return steps[len(past) :], states
