"""A posterior that was sampled: its draws, and its density as the objective F of the library.

    p(θ | y) ∝ exp(−F(θ, 1)),      F(θ, w) = −Σ_n w_n log p(y_n | θ) − log p(θ)

θ is unconstrained, so the density of constrained parameters is multiplied by the Jacobian of their
transforms (`coordinates`). Draws and F must belong together; two identities of every posterior show
whether they do,

    E[∂F/∂θ_j] = 0,      E[(θ_j − E θ_j) ∂F/∂θ_j] = 1.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import sparse

from ... import RESULTS, Fit, fit as minimise
from ...developer import (
    CAPACITY,
    LOG_LIKELIHOOD,
    AbstractObjective,
    AbstractPosterior,
    AnyFunction,
    AnyPair,
    ArrayList,
    Arrays,
    Indices,
    Lines,
    NamedArrays,
    NumpyArray,
    PerUnit,
    PyTree,
    TwoArrays,
    UnitNumbers,
    compile_static,
    display_name,
    float64,
    functions,
    jax,
    jnp,
    join,
    join_remarks,
    map_arrays,
    record,
    silence,
    unflatten,
    unravel,
    warn,
    weight_terms,
    whole,
)
from ...models import AbstractClosedForm
from ...validation import IndefiniteHessianError
from .responses import DrawResponses
from .sampled import Integrated, Sampled

Draws = Float[NumpyArray, "draws params"]
Places = Float[NumpyArray, "places params"]
# batches of draws, as few as tell a variance to a tenth, so that they are long beside the memory of
# most chains
BATCHES = 50
# batches beyond which intervals of 1.96 errors do not gain a third of a per cent any more
MAX_BATCHES = 200
# length of a batch, in draws that are worth one, beside which the memory of chains is short
BATCH_LENGTH = 10
# numbers of an array that stays in a processor's cache with the other temporaries of a density
CACHED = 2**14
# draws together from which programs run in vector instructions, whether or not their arrays stay in
# the cache
MIN_VECTOR_DRAWS = 16
# fewest places of one call of a program: to compile it for fewer takes longer than these
MIN_PLACES = 256
CHECKED_DRAWS = 1000  # draws, evenly spaced, at which draws and density are compared
# error of an identity that warns: so many standard errors, and so large a share of its size for
# draws of the density
IDENTITY_ERRORS = 6.0
LARGE = 0.3


@record
class Posterior(AbstractPosterior):
    """A posterior by its draws and its density; `lo.bayes.from_posterior` returns it.

    Attributes
    ----------
    objective : AbstractObjective
        F(θ, w), the negative logarithm of the unnormalised density when units weigh w.
    draws : array of float, shape (draws, params)
        Unconstrained draws, those of one chain after those of another.
    chains : int
        Number of chains.
    like : pytree of arrays
        Shape of θ.
    unconstrain : callable
        Maps the name of the calling function and arrays of draws by name, as the caller has them,
        to unconstrained draws.
    named : callable
        Maps unconstrained draws to parameters as the caller has them, by name or as one vector.
    names : list of str
        Names of the coordinates of θ.
    known_fit : Fit or None
        The mode, if the caller gave a fit.
    note : str
        What is printed beside it.
    score : str
        Name of the losses of units.
    constant : float, or array of float, shape (units,)
        What is added to F for each unit, so that losses are −log densities.
    response : array of float, shape (units,), or None
        Response of each unit, if it is known which part of the data this is.
    simulate : callable or None
        Draws responses, where the model says how.
    simulate_by : callable or None
        Maps a function of the caller, which draws the response of one unit, to one that draws
        responses.

    See Also
    --------
    from_posterior : Make one.
    elpd : Leave units out of it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import leaveout as lo
    >>> y = np.array([0.1, -0.4, 1.2, 0.7])
    >>> draws = 0.32 + 0.447 * np.random.default_rng(0).standard_normal((2000, 1))
    >>> posterior = lo.bayes.from_posterior(
    ...     draws,
    ...     lambda theta, y: 0.5 * (y - theta[0]) ** 2 + 0.919,
    ...     y,
    ...     log_prior=lambda theta: -0.5 * theta[0] ** 2,
    ... )
    >>> posterior.draws.shape, posterior.objective.num_units
    ((2000, 1), 4)
    """

    objective: AbstractObjective
    draws: Draws
    chains: int
    like: Any
    unconstrain: Callable[[str, NamedArrays], NumpyArray]
    named: Callable[[NumpyArray], Any]
    names: list[str]
    known_fit: Fit | None = None
    note: str = ""
    score: str = LOG_LIKELIHOOD
    constant: float | NumpyArray = 0.0
    response: NumpyArray | None = None
    simulate: DrawResponses | None = None
    simulate_by: Callable[[AnyFunction], DrawResponses] | None = None

    @cached_property
    def mode(self) -> Fit | None:
        """The fit at the mode nearest to the mean of the draws.

        None if the density has none, as in funnels, or is an integral: draws tell its Gaussian at
        less than the search costs.
        """
        if self.known_fit is not None or isinstance(self.objective, Integrated):
            return self.known_fit
        natural = self.objective.parameters.natural(unflatten(self.draws.mean(0), self.like))
        try:
            # a mode that is doubtful is not used
            with warnings.catch_warnings(action="ignore"):
                fit = minimise(self.objective, map_arrays(np.asarray, natural), num_starts=1)
        except (RuntimeError, IndefiniteHessianError, ValueError):
            return None
        matches = (
            fit.objective.num_units == self.objective.num_units
            and fit.num_params == self.draws.shape[1]
        )
        if matches and fit.quadratic.factor is not None and int(fit.result) == RESULTS.successful:
            return fit
        return None

    @cached_property
    def value(self) -> Float[NumpyArray, " draws"]:
        """F(θ, 1) at every draw."""
        return self.values(self.draws)

    @cached_property
    def efficiency(self) -> float:
        """Effective over actual number of draws, of the mean of a parameter that mixes as most do.

        One at most.
        """
        means = batch_means(self.draws, self.chains)
        batched = means.var(0, ddof=1) / len(means)
        ratio = self.draws.var(0) / len(self.draws) / np.where(batched > 0, batched, 1.0)
        # below a hundredth the tail of weights no longer follows it
        return float(np.clip(np.median(ratio), 0.01, 1.0))

    @property
    def batches(self) -> int:
        """Number of batches of draws whose means are nearly independent."""
        return int(np.clip(len(self.draws) * self.efficiency / BATCH_LENGTH, 4, MAX_BATCHES))

    @cached_property
    def _predictors(self) -> Any:
        return self.objective.predictors

    @float64
    def values(self, theta: Draws, weights: PerUnit | None = None) -> NumpyArray:
        """Evaluate F(·, w) at many θ.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit.

        Returns
        -------
        array of float, shape (places,)
            F; infinite where it has no value.
        """
        if weights is None:
            weights = np.ones(self.objective.num_units)
        return self.evaluate(theta, weights, np.zeros(0, int))[0]

    @float64
    def values_without(
        self, theta: Places, away: sparse.csr_array
    ) -> Float[NumpyArray, "sets places"]:
        """Evaluate F at many θ, each without some sets of units.

        Losses of blocks of units are used where they are known and leave as a whole.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        away : sparse array, shape (sets, units)
            One minus the weight of each unit, by set.

        Returns
        -------
        array of float, shape (sets, places)
            F of every set at every place; infinite where it has no value.
        """
        n = self.objective.num_units
        sizes = np.bincount(self.blocks)
        if not len(theta):
            return np.zeros((away.shape[0], 0))
        share = away @ sparse.csr_array(
            (np.ones(n), self.blocks, np.arange(n + 1)), shape=(n, len(sizes))
        )
        size = sizes[share.indices]
        parts = isinstance(self.objective, Integrated) and not np.isin(away.data, (0, 1)).all()
        if (
            self.block_losses is None
            or parts
            or np.any((size > 1) & (share.data > 0) & (share.data < size))
        ):
            return self._values_of_sets(theta, 1 - away.toarray())
        share.data = share.data / size
        blocks, column = np.unique(share.indices, return_inverse=True)
        if theta is self.draws:
            value = self.value
            losses = self.block_losses[:, blocks]
        else:
            value, losses = self.values_and_losses(theta, blocks)
        block_share = sparse.csr_array(
            (share.data, column, share.indptr), shape=(away.shape[0], len(blocks))
        )
        with silence("invalid"):  # a block of density zero
            values = value - block_share @ losses.T
        if (zero := np.flatnonzero(~np.isfinite(value))).size:  # what leaves may be why
            values[:, zero] = self._values_of_infinite(theta[zero], share)
        return values

    def _values_of_infinite(self, theta: NumpyArray, share: sparse.csr_array) -> NumpyArray:
        """Evaluate F without some sets of blocks where some blocks have no density."""
        losses = self.values_and_losses(theta, np.arange(share.shape[1]))[1]
        never = ~np.isfinite(losses)
        finite = np.where(never, 0.0, losses)
        values = (
            self.values(theta, np.zeros(self.objective.num_units))
            + finite.sum(1)
            - share @ finite.T
        )
        return np.where(never.sum(1) > (share == 1).astype(float) @ never.T, np.inf, values)

    def _values_of_sets(self, theta: NumpyArray, weights: NumpyArray) -> NumpyArray:
        """Evaluate F at many θ, each with some sets of weights, `[sets, places]`."""
        sets, place = np.unique(weights, axis=0, return_inverse=True)
        if not isinstance(self.objective, AbstractClosedForm):
            return np.stack([self.values(theta, set_weights) for set_weights in sets])[
                place.ravel()
            ]
        values = np.concatenate([self.objective.values(part, sets) for part in self._parts(theta)])
        return (values + sets @ np.broadcast_to(self.constant, self.objective.num_units)).T[
            place.ravel()
        ]

    @float64
    def values_and_losses(
        self, theta: Draws, blocks: Indices
    ) -> tuple[Float[NumpyArray, " draws"], Float[NumpyArray, "draws some"]]:
        """Evaluate F(·, 1) and the losses of some blocks of units at many θ, in one pass;
        `block_losses` says if there are any.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        blocks : array of int, shape (some,)
            Blocks of units.

        Returns
        -------
        value : array of float, shape (places,)
            F.
        losses : array of float, shape (places, some)
            −log density of each block.
        """
        weight = self.objective.units.weight
        value, losses = self.evaluate(theta, np.ones(self.objective.num_units), blocks)
        constant = np.broadcast_to(self.constant, self.objective.num_units)[blocks]
        return value, losses * (1.0 if weight is None else np.asarray(weight)[blocks]) + constant

    def evaluate(self, theta: NumpyArray, weights: NumpyArray, blocks: NumpyArray) -> TwoArrays:
        """Evaluate F(·, w), and the losses of some blocks as the objective counts them."""
        objective = self.objective
        losses = np.zeros((len(theta), 0))
        constant = np.sum(weights * self.constant)
        if isinstance(objective, AbstractClosedForm):
            value = self._values_of_sets(theta, weights[None])[0] - constant
            if blocks.size:
                index = np.broadcast_to(blocks, (len(theta), len(blocks)))
                losses = objective.losses(
                    theta, np.tile(weights, (len(theta), 1)), index, index >= 0
                )
        elif self._predictors is not None:
            value, losses = self._of_predictors(theta, weights, blocks)
        else:
            value, losses = self._by_program(theta, weights, blocks)
        return np.fmin(value, np.inf) + constant, losses

    def _by_program(self, theta: NumpyArray, weights: NumpyArray, blocks: NumpyArray) -> TwoArrays:
        """Evaluate F and the losses of some blocks by few programs of JAX."""
        objective = self.objective
        n = objective.num_units
        index = None
        columns: NumpyArray | slice = slice(len(blocks))
        if isinstance(objective, Sampled):
            columns = blocks  # of all blocks, whose losses F is made of
        elif blocks.size:
            index = np.resize(blocks, 2 ** int(np.ceil(np.log2(len(blocks)))))
        power = lambda places: 2 ** int(np.log2(max(1, places)))
        size = power(min(max(CACHED // n, MIN_VECTOR_DRAWS), CAPACITY // 4 // n))
        count = max(size, power(min(MIN_PLACES, CAPACITY // n)))
        pieces = []
        for start in range(0, len(theta), count):
            places = np.resize(theta[start : start + count], (count, theta.shape[1]))
            value, losses = _values_and_losses(objective, self.like, places, weights, index, size)
            pieces.append((value, np.asarray(losses)[:, columns]))
        value, losses = (np.concatenate(part)[: len(theta)] for part in zip(*pieces, strict=True))
        return value, losses

    def _parts(self, theta: NumpyArray) -> ArrayList:
        """Split many θ into parts whose densities fit into memory."""
        size = max(1, CAPACITY // self.objective.num_units)
        return np.split(theta, range(size, len(theta), size))

    def _of_predictors(
        self, theta: NumpyArray, weights: NumpyArray, units: NumpyArray
    ) -> TwoArrays:
        """Evaluate F and the losses of some units of a model of linear predictors."""
        model = self._predictors
        omega, kappa = model.weigh(weights[None])
        values = ArrayList()
        losses = ArrayList()
        for points in self._parts(theta):
            eta = model.eta(points)
            with silence("over", "invalid"):
                (row_losses,) = model.loss.derivatives(eta, model.y, (0,))
                values.append(
                    weight_terms(omega, row_losses).sum(1) + kappa * model.penalty_terms(points)[0]
                )
                if units.size and model.unit_loss is not model.loss:
                    (row_losses,) = model.unit_loss.derivatives(
                        eta[:, : self.objective.num_units], model.y, (0,)
                    )
                losses.append(row_losses[:, units])
        return np.concatenate(values), np.concatenate(losses)

    @float64
    def looks(self, theta: Draws, weights: PerUnit) -> AnyPair:
        """Evaluate F(·, w) and its gradient at many θ.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit.

        Returns
        -------
        value : array of float, shape (places,)
            F.
        gradient : array of float, shape (places, params)
            Its gradients.
        """
        rows = lambda points: whole(np.broadcast_to(weights, (len(points), len(weights))))
        look = lambda points: functions(self.objective, self.like, rows(points)).look(
            points, np.arange(len(points))
        )
        value, slope = join([look(points) for points in self._parts(theta)])
        return value + np.sum(weights * self.constant), slope

    @cached_property
    def blocks(self) -> UnitNumbers:
        """Block of each unit.

        Units of different blocks are independent given θ, if F has such terms at all.
        """
        if isinstance(self.objective, Integrated):
            return self.objective.code
        return np.arange(self.objective.num_units)

    @cached_property
    def block_losses(self) -> Float[NumpyArray, "draws blocks"] | None:
        """−log density of every block of units at every draw; None if F has no such terms.

        F(θ, w) must differ from F(θ, 1) by the losses of units that leave, which is tried at two
        draws and three sets of them. Groups whose effects are integrated out are independent
        anyway.
        """
        integrated = isinstance(self.objective, Integrated)
        if not (integrated or self.objective.pointwise or self._predictors is not None):
            return None
        blocks = np.unique(self.blocks)
        trial_draws = np.array([0, len(self.draws) - 1])
        # likely in vain
        doubtful = (
            isinstance(self.objective, AbstractClosedForm)
            or self.objective.units.serial is not False
        )
        value, losses = self.values_and_losses(
            self.draws[trial_draws] if doubtful else self.draws, blocks
        )
        trial_losses = losses[[0, -1]]
        rng = np.random.default_rng(0)
        n = losses.shape[1]
        for share in () if integrated else (1 / n, 0.2, 0.5):  # one unit, some, and half of them
            weights = np.ones(n)
            weights[rng.choice(n, max(1, int(share * n)), replace=False)] = 0.0
            change = self.values(self.draws[trial_draws], weights) - self.values(
                self.draws[trial_draws]
            )
            size = np.abs(trial_losses).sum(1)
            if not np.allclose(
                change, -trial_losses @ (1 - weights), rtol=0, atol=1e-9 * float(size.max() + 1)
            ):
                return None
        if doubtful:
            value, losses = self.values_and_losses(self.draws, blocks)
        vars(self)["value"] = value  # the same pass gave it
        return losses

    @property
    def unit_losses(self) -> Float[NumpyArray, "draws units"] | None:
        """−log p(y_n | θ) of every unit at every draw.

        None if units depend on one another given θ.
        """
        losses = self.block_losses
        if losses is not None and losses.shape[1] == self.objective.num_units:
            return losses
        return None

    def losses_at(self, theta: Places, units: Indices) -> Float[NumpyArray, "places some"]:
        """Evaluate −log p(y_n | θ) of some units at many θ, where `unit_losses` are known.

        Parameters
        ----------
        theta : array of float, shape (places, params)
            Unconstrained parameters.
        units : array of int, shape (some,)
            Units.

        Returns
        -------
        array of float, shape (places, some)
            The losses.
        """
        assert self.block_losses is not None
        if theta is self.draws:
            return self.block_losses[:, units]
        return self.values_and_losses(theta, units)[1]

    def _facts(self) -> Lines:
        shown = 12  # names that are printed
        chains = ""
        if self.chains > 1:
            chains = f" in {self.chains} chains"
        names = ", ".join(self.names[:shown]) + (", …" if len(self.names) > shown else "")
        return [
            ("model", f"{display_name(self.objective)}, {self.objective.num_units} units"),
            ("draws", f"{len(self.draws)}{chains}"),
            ("parameters", f"{self.draws.shape[1]}, unconstrained: {names}"),
            ("note", self.note),
        ]

    def __repr__(self) -> str:
        return str(self)


@compile_static
def _values_and_losses(
    objective: AbstractObjective,
    like: PyTree,
    theta: Arrays,
    weights: Arrays,
    blocks: Arrays | None,
    size: int,
) -> tuple[Arrays, Arrays]:
    def evaluate(v: Any) -> Any:
        tree = unravel(v, like)
        if isinstance(objective, Sampled):
            losses, prior = objective.terms(tree, weights)
            return jnp.sum(losses) - prior, losses
        losses = jnp.zeros(1)
        if blocks is not None:
            losses = objective.score(tree, jnp.asarray(weights), blocks, jnp.ones(len(blocks)))
        return objective.loss(tree, weights), losses

    return jax.lax.map(evaluate, theta, batch_size=size)


def check_posterior(caller: str, posterior: Posterior) -> Posterior:
    """Compare draws and density by identities of posteriors.

    ValueError if the density does not exist there.
    """
    draws = posterior.draws
    n = posterior.objective.num_units
    spread = draws.std(0)
    equal = np.ptp(draws, 0) <= 1e-12 * np.abs(draws).max(0)  # to rounding, of transforms too
    if equal.any():
        raise ValueError(
            f"{caller}: all draws of {posterior.names[int(np.argmax(equal))]!r} are equal."
        )
    rows = np.unique(np.linspace(0, len(draws) - 1, CHECKED_DRAWS).astype(int))
    value, slope = posterior.looks(draws[rows], np.ones(n))
    if not (np.isfinite(value).all() and np.isfinite(slope).all()):
        raise ValueError(
            f"{caller}: the density is zero, or its logarithm or gradient not a number, at {np.sum(~np.isfinite(value))} of "
            f"{len(value)} draws: does it have the parameters and the data of the model that was sampled?"
        )
    away = draws[rows] - draws[rows].mean(0)
    product = away * slope

    def error(values: NumpyArray) -> NumpyArray:
        """Monte-Carlo standard error of means over draws, by batches of successive draws."""
        means = batch_means(values, posterior.chains)
        return np.maximum(means.std(0, ddof=1) / np.sqrt(len(means)), 1e-12)

    size = product.mean(0)
    shift = slope.mean(0) * spread
    wrong = (np.abs(size - 1) > IDENTITY_ERRORS * error(product)) & (np.abs(size - 1) > LARGE)
    wrong |= (np.abs(shift) > IDENTITY_ERRORS * error(slope * spread)) & (np.abs(shift) > LARGE / 3)
    if (
        wrong.any()
        and np.isposinf(posterior.values(draws[rows] + away[::-1] - np.roll(away, 1, 0))).any()
    ):
        note = "the density has an edge, where identities fail that compare it with the draws"
        return replace(posterior, note=join_remarks(posterior.note, note))
    if product.mean() < 0:
        raise ValueError(
            f"{caller}: the density falls where draws are many: unit_loss is −log density, and log_prior the log of the prior."
        )
    if wrong.any():
        place = int(np.argmax(wrong))
        warn(
            f"{caller}: the draws are not those of the density, as {posterior.names[place]!r} shows: E[θ ∂F/∂θ] is {size[place]:.3g} "
            "instead of 1 about the mean. Look for another prior, a transform without its Jacobian, or chains that have not "
            "converged."
        )
    return posterior


def batch_means(
    values: Float[NumpyArray, "draws ..."], chains: int, batches: int = BATCHES
) -> NumpyArray:
    """Means over successive batches of draws, `[batches, ...]`.

    The last draws of a chain may be left over.
    """
    length = len(values) // chains
    size = max(1, length // -(-batches // chains))
    count = length // size
    by_chain = values[: chains * length].reshape(chains, length, *values.shape[1:])[
        :, : count * size
    ]
    return by_chain.reshape(chains * count, size, *values.shape[1:]).mean(1)
