"""Hidden Markov chains: their states, F and its parts, results of a fit for its own data, and
forecasts.

The states have an initial distribution and a transition matrix, each free or fixed, and priors of
these.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator, default_rng
from numpy.typing import ArrayLike

from ..._runtime import (
    AnyFlags,
    AnyTuple,
    Module,
    NamedArrays,
    PyTree,
    Shape,
    StepNumbers,
    Strings,
    UnitVectors,
    silence,
    slices,
    static,
)
from ...inference.lanes import ChainSums, has_stationary, stationary
from ...objectives import (
    AbstractClosedForm,
    DiagonalBlocks,
    Entries,
    HeldOutLosses,
    Matrices,
    Points,
    RefitFlags,
    RefitPoints,
    Scored,
    State,
    UnitWeights,
    ValueAndGradient,
    Vector,
    Weights,
    float64,
    map_arrays,
    ravel,
    unflatten,
)
from ..emissions._base import (
    SIMPLEX,
    AbstractEmission,
    Lengths,
    Observations,
    Parameters,
    Past,
    StepFlags,
    log_simplex,
    with_last,
)
from .complete_data import Numbers, complete_data
from .expected_counts import (
    chain_posterior,
    densities_at,
    evaluate,
    held_out_losses,
    hessian,
    jacobian,
    observation_weights,
    regressors,
)
from .hidden import IDLE_STATE_COUNT, AbstractHiddenStates, entries, mixture

Array = np.ndarray
StateMasks = Bool[Array, "*rows states"]


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
    >>> lo.developer.models.Dirichlet(transition=1.5).initial
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

    initial: Float[Array, " states"] | None  # held fixed
    transition: Float[Array, "states states"] | None
    prior: Dirichlet | None
    # probabilities held at zero because the fit put them there
    edge: dict[str, AnyFlags] | None
    number: int = static()
    stationary: bool = static()
    masks: AnyTuple = static()  # free probabilities by name, if others are zero

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
                f"HMM: prior must be 'default', None or lo.developer.models.Dirichlet(...); got {prior!r}."
            )
        if prior is None:
            self.prior = None
        else:
            self.prior = _concentrations(Dirichlet() if isinstance(prior, str) else prior, number)

    @property
    def free(self) -> dict[str, Shape]:
        """Parts of θ of the latent chain, with their natural shapes."""
        K = self.number
        free: dict[str, Shape] = {}
        if K > 1 and self.initial is None and not self.stationary:
            free["initial"] = (K,)
        if K > 1 and self.transition is None:
            free["transition"] = K, K
        return free

    @property
    def support(self) -> dict[str, StateMasks]:
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
        return all(array is None or _is_symmetric(np.asarray(array, float)) for array in arrays)

    def logs(self, theta: PyTree) -> tuple[Numbers, Numbers]:
        """Compute the logarithms of the initial distribution and of the transition matrix; the
        parts of θ may have leading axes.
        """
        with silence("divide"):
            if "transition" in self.free:
                transition = self._logs("transition", theta)
            else:
                transition = np.log(np.ones((1, 1)) if self.transition is None else self.transition)
            if "initial" in self.free:
                return self._logs("initial", theta), transition
            if self.stationary and self.number > 1:
                return np.log(stationary(np.exp(transition))), transition
            return np.log(np.ones(1) if self.initial is None else self.initial), transition

    def _logs(self, name: str, theta: PyTree) -> Numbers:
        ratios = np.asarray(theta[name])
        if name not in self.support:
            return np.asarray(log_simplex(with_last(ratios)))
        free = self.support[name]
        last = _last(free)
        logits = np.full((*ratios.shape[:-1], *free.shape), -np.inf, ratios.dtype)
        logits[..., last] = 0.0
        logits[..., free & ~last] = ratios
        return np.asarray(log_simplex(logits))

    def to_unconstrained(self, name: str, value: Array) -> Array:
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

    def pseudo_counts(self, name: str) -> Array | float:
        """Counts of first states or moves that the prior adds."""
        if self.prior is None or name not in self.free:
            return 0.0
        return np.where(
            self.support.get(name, True), np.asarray(getattr(self.prior, name)) - 1, 0.0
        )

    def start(self, seed: int) -> NamedArrays:
        """Return natural parameters to start a fit from, with persistent states."""
        K = self.number
        rng = default_rng(seed)
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
        words = {"initial": "initial", "transition": "transition rows"}
        concentrations = {name: np.asarray(getattr(self.prior, name)) for name in self.free}
        texts = {
            name: f"{a.flat[0]:g}" if np.ptp(a) == 0 else str(a.tolist())
            for name, a in concentrations.items()
        }
        return "; ".join(f"{words[name]} ~ Dirichlet({text})" for name, text in texts.items())


def _last(free: StateMasks) -> StateMasks:
    """Find the last free entry of each row."""
    return free & (np.cumsum(free[..., ::-1], -1)[..., ::-1] == 1)


def _read_distribution(
    name: str, value: ArrayLike, shape: Shape, words: Strings
) -> tuple[Array | None, StateMasks | None]:
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
    array = np.asarray(value, float)
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
        array = np.asarray(getattr(prior, name), float)
        if array.shape not in ((), shape) or not (np.isfinite(array) & (array >= 1)).all():
            raise ValueError(
                f"HMM: Dirichlet {name} must be a number or {list(shape)}, 1 or more; got {array.tolist()}."
            )
        return np.array(np.broadcast_to(array, shape))

    return Dirichlet(checked("initial", (K,)), checked("transition", (K, K)))


def _is_symmetric(array: Array) -> bool:
    """Tell whether no permutation of the states changes an array."""
    if array.ndim == 1:
        return bool(np.ptp(array) == 0)
    off = array[~np.eye(len(array), dtype=bool)]
    if off.size:
        return bool(np.ptp(off) == 0 and np.ptp(np.diag(array)) == 0)
    return True


class AbstractHiddenChain(AbstractHiddenStates, AbstractClosedForm):
    """Objective whose hidden states form chains.

    `F(θ, w)` as in `hmm`, from the densities of an emission.
    """

    latent = ("initial", "transition")
    difference = 2e-3

    x: Observations
    dense: StepFlags  # whether the step has a density
    sequence: StepNumbers
    position: StepNumbers  # position of each step in its sequence
    lengths: Lengths
    states: States
    parts: AnyTuple = static()  # names and shapes of the parts of θ
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

    @property
    def num_params(self) -> int:
        """Number of free parameters."""
        return sum(int(np.prod(shape)) for _, shape in self.parts)

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        evaluation = evaluate(self, theta, weights)
        gradient = -complete_data(self).slopes(theta, evaluation.counts)
        return -evaluation.log_z - complete_data(self).log_prior(theta), gradient, None

    def losses(
        self, theta: Points, weights: Weights, index: Entries, held: Scored, state: State = None
    ) -> HeldOutLosses:
        if not self.joint:
            units = np.minimum(index, self.num_units - 1)
            if self.drop != "step":
                return evaluate(self, theta, weights, units).losses
            # in the whole chain
            sums, densities = chain_posterior(self, theta, observation_weights(self, weights))
            return held_out_losses(self, sums, densities, units)
        if self.drop == "sequence":
            return super().losses(theta, weights, index, held, state)
        full = self._with_held(weights, index, held)
        seen = observation_weights(self, weights)
        # without the steps that follow
        extended = np.where(full > weights, observation_weights(self, full), seen)
        (without, _), (complete, _) = (chain_posterior(self, theta, w) for w in (seen, extended))
        return (without.log_normaliser - complete.log_normaliser).sum(1)

    def steepest(
        self, theta: Points, weights: Weights, index: Entries, held: Scored, state: State = None
    ) -> Points:
        full = self._with_held(weights, index, held)
        return self.look(theta, full)[1] - self.look(theta, weights)[1]

    def hessians(self, theta: Points, weights: Weights, state: State = None) -> Matrices:
        return np.array([hessian(self, *refit) for refit in zip(theta, weights, strict=True)])

    @float64
    def jacobian(self, theta: PyTree) -> UnitVectors:
        return jacobian(self, ravel(theta))

    @float64
    def preconditioner(self, theta: PyTree, weights: UnitWeights) -> tuple[DiagonalBlocks, ...]:
        vector = ravel(theta)
        counts = evaluate(self, vector[None], np.asarray(weights)[None]).counts
        return complete_data(self).blocks(vector, counts)

    def predictions(
        self, theta: Points, weights: Weights, index: Entries, kind: str, state: State = None
    ) -> Float[Array, "lanes width ..."]:
        self.check_kind(kind, "steps")
        sums, _ = chain_posterior(self, theta, observation_weights(self, weights))
        place = np.minimum(index, self.num_steps - 1)
        states = sums.states_at(place)
        if kind == "state":
            return states
        determined = np.take_along_axis(regressors(self, weights) > 0, place, axis=1)
        means = np.array([self._means(*refit) for refit in zip(theta, states, place, strict=True)])
        means = np.where(determined[..., None], means, np.nan)
        return means[..., 0] if means.shape[2] == 1 else means

    def _means(self, vector: Vector, states: Array, steps: Array) -> Array:
        """Mean observations of some steps from the probabilities of their states."""
        template = {name: np.zeros(shape) for name, shape in self.parts}
        parameters = self.emission_parameters(unflatten(vector, template))
        data = map_arrays(lambda leaf: leaf[steps], self.data)
        return np.asarray(self.means(states, parameters, data))

    def runs(self, theta: PyTree, first: Array, length: Array) -> "RunLosses":
        """Return the losses of left-out runs of steps, a `RunLosses`, at any θ."""
        return RunLosses(self, first, length)

    def posterior_at(self, theta: PyTree, weights: Array | None = None) -> ChainSums:
        """Run the passes at one θ."""
        if weights is None:
            weights = np.ones(self.num_units)
        if self.drop == "sequence":
            weights = weights[self.sequence]
        visible = observation_weights(self, np.asarray(weights, float)[None])
        return chain_posterior(self, ravel(theta)[None], visible)[0]

    @float64
    def visits(self, theta: PyTree) -> Float[Array, "units states"]:
        """Compute the expected visits of every state by each unit, a step or a sequence."""
        steps = np.where(self.dense[:, None], self.posterior_at(theta).states[0], 0.0)
        if self.local:
            return np.add.reduceat(steps, np.cumsum(self.lengths) - self.lengths, axis=0)
        return steps

    @float64
    def _warning(self, theta: PyTree) -> str:
        """Describe states that explain nothing and parameters on a boundary, after a fit.

        Or return "".
        """
        natural_parameters = map_arrays(np.asarray, self.parameters.natural(theta))
        visited = self.visits(theta).sum(0)
        sentences = [
            f"State {k} explains nothing (expected visits {visited[k]:.2g} of {self.dense.sum()} steps): take fewer states."
            for k in np.flatnonzero(visited < IDLE_STATE_COUNT)
        ]
        # the level of an autoregression may drift
        spread = np.nanvar(np.diff(self.x, axis=0) if self.emission.reach else self.x, 0)
        free = {name: natural_parameters[name] for name in (*self.states.free, *self.emission.free)}
        return " ".join(
            filter(None, (*sentences, self.on_boundary(free, spread, self.states.support)))
        )


class RunLosses:
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

    def __init__(
        self,
        chain: AbstractHiddenChain,
        first: Int[Array, " folds"],
        length: Int[Array, " folds"],
    ):
        self.chain = chain
        self.length = length
        self.step = np.minimum(first + np.arange(length.max())[:, None], chain.num_steps - 1)
        self.before = first - 1

    def __call__(
        self, points: Points
    ) -> tuple[Float[Array, "lanes folds width"] | None, Float[Array, "lanes folds"]]:
        size = self.chain.costs.lanes or 1
        groups = (points[part] for part in slices(len(points), size))
        losses, joint = zip(*map(self._group_losses, groups), strict=True)
        return None if losses[0] is None else np.concatenate(losses), np.concatenate(joint)

    def _group_losses(self, points: Points) -> tuple[Array | None, Array]:
        chain = self.chain
        visible = observation_weights(chain, np.ones((len(points), chain.num_steps)))
        sums, densities = chain_posterior(chain, points, visible)
        initial, transition = (np.exp(log) for log in complete_data(chain).logs(points))
        starts = np.equal(chain.position, 0)[self.step][..., None]
        width, folds = self.step.shape
        unseen = np.empty((width, len(points), folds, chain.num_states))
        evidence_ahead = sums.evidence_ahead
        p = sums.filtered[:, self.before]
        for k in range(width):
            p = np.where(starts[k], initial[:, None] * p.sum(2, keepdims=True), p @ transition)
            unseen[k] = p
        for k in reversed(range(width)):
            last = np.equal(self.length - 1, k)[:, None]
            evidence = evidence_ahead[:, self.step[k]]
            p = evidence if k == width - 1 else np.where(last, evidence, p)
            unseen[k] *= p
            p = np.where(starts[k], p @ initial[..., None], p @ transition.swapaxes(1, 2))
        total = unseen.sum(-1, keepdims=True)
        normaliser = sums.log_normaliser[:, self.step]
        seen = np.where(np.arange(width)[:, None] < self.length, normaliser, 0.0).sum(1)
        joint = np.log(total[0, ..., 0]) - seen
        if width == 1:
            return None, joint
        steps = np.broadcast_to(self.step.ravel(), (len(points), width * folds))
        likelihoods = densities_at(chain, densities, steps)
        likelihoods = likelihoods.reshape(len(points), width, folds, -1).swapaxes(0, 1)
        return -np.moveaxis(mixture(unseen / total, likelihoods), 0, -1), joint


@float64
def leaving(
    hmm: AbstractHiddenChain,
    like: PyTree,
    thetas: RefitPoints,
    weights: Float[Array, "refits units"],
) -> RefitFlags:
    """Tell for which refits F would fall if a probability left the zero at which the fit holds it.

    The derivative is `∂F/∂p_jk − Σ_l p_jl ∂F/∂p_jl`, as the others of the row shrink in proportion.
    At a minimum it is not negative (Karush, Kuhn & Tucker).
    """
    barely = 1e-8  # a probability that stands for zero, where logarithms are taken
    counts = evaluate(hmm, thetas, weights, barely=barely).counts
    falls = np.zeros(len(thetas), bool)
    for name, expected in (("initial", counts.first), ("transition", counts.moves)):
        edge = (hmm.states.edge or {}).get(name, False)
        slopes = expected.sum(-1, keepdims=True) - expected / barely
        falls |= (edge & (slopes < 0)).reshape(len(thetas), -1).any(1)
    return falls


def futures(
    hmm: AbstractHiddenChain, theta: PyTree, horizon: int
) -> Float[Array, "draws horizon channels"]:
    """Draw the steps after the last one, many times.

    ValueError if an observation that they regress on is missing.
    """
    natural_parameters = hmm.parameters.natural(theta)
    rng = default_rng(0)
    steps = len(hmm.x)
    first = hmm.posterior_at(theta).filtered[0, -1] @ natural_parameters["transition"]
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
    first: Float[Array, " states"],
    past: Past,
    first_step: int,
    num_steps: int,
    rng: Generator,
) -> tuple[Observations, StepNumbers]:
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
