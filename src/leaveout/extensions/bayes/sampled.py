"""Objectives of sampled models: units that are independent given θ, or given θ and an effect of
their group.

    F(θ, w) = −Σ_n w_n log p(y_n | θ) − log p(θ)

Latent effects z are integrated out, group by group:

    F(θ, w) = −Σ_g log ∫ Π_{i∈g} p(y_i | θ, z_g)^{w_i} p(z_g | θ) dz_g − log p(θ)

Each integral over one number z_g is in closed form where all log densities are quadratic in z.
Others are sums over nodes around the highest mode, the farther apart the farther they are from it,
so that they reach heavy tails.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from ...developer import (
    LOG_LIKELIHOOD,
    AbstractObjective,
    Array,
    Arrays,
    PyTree,
    Scalar,
    UnitNumbers,
    jax,
    jnp,
    static,
)
from ...models import Costs, Parameters, Units
from .coordinates import coordinate_names

# nodes of an integral over u, z = mode + spread sinh u: a Gaussian to 6e-8, a t of 3 degrees to
# 3e-7
EFFECT_NODES = 41
WIDTH = 0.3
# places over the range of all effects from which modes are looked for, beside the mean of the draws
# of each
MODE_STARTS = 9
DRAWN = 15  # nodes, one standard deviation apart, one of which is drawn
# Newton steps to the mode of a log-concave integrand, which needs fewer than ten from the mean of
# the draws
MAX_MODE_STEPS = 12
LAST_STEP = (
    1e-5  # length of a step in standard deviations that is the last: its square is what remains
)
# length of a step in standard deviations of the integrand, beyond which it is cut
LONGEST_MOVE = 5.0
UnitWeights = Float[Arrays, " units"]


class Conditional(NamedTuple):
    """Log densities given one value z_g a group.

    Of the units, of the effects of the groups, and of θ.
    """

    units: Any
    effects: Any
    prior: Any


class Sampled(AbstractObjective):
    """Objective of units that are independent given θ.

    `densities` maps (θ, data) to a `Conditional` without effects.
    """

    densities: Callable[..., Conditional]
    data: PyTree
    size: int = static()
    like: PyTree

    @property
    def num_units(self) -> int:
        return self.size

    @property
    def units(self) -> Units:
        return Units(score=LOG_LIKELIHOOD)

    @property
    def parameters(self) -> Parameters:
        return Parameters(start=lambda seed: self.like, names=lambda: coordinate_names(self.like))

    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        losses, prior = self.terms(theta, weights)
        return jnp.sum(losses) - prior

    def terms(self, theta: PyTree, weights: UnitWeights) -> tuple[Float[Array, " blocks"], Scalar]:
        """Losses of blocks of units that are independent given θ, and the log density of θ."""
        conditional = self.densities(theta, self.data)
        return -jnp.where(weights == 0, 0.0, weights * conditional.units), conditional.prior

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: Int[Arrays, " width"],
        held: Float[Arrays, " width"],
    ) -> Array:
        return -self.densities(theta, self.data).units.at[index].get(mode="clip")


class Integrated(Sampled):
    """Objective of a conditional model whose effects are integrated out.

    `densities` maps (θ, data, all effects) to a `Conditional`. `code` is the group of each unit,
    among the groups that have units, and `present` the places of their effects. Their modes are
    looked for from `start`, the mean of the draws, whose standard deviations are `scale`.
    `quadratic` says whether log densities of units and effects are quadratic in the effects.
    """

    code: UnitNumbers
    present: Int[ndarray, " groups"]
    start: Float[ndarray, " effects"]
    scale: Float[ndarray, " effects"]
    quadratic: bool = static()

    def terms(self, theta: PyTree, weights: UnitWeights) -> tuple[Float[Array, " blocks"], Scalar]:
        return -self.log_marginals(theta, weights), self.densities(
            theta, self.data, jnp.asarray(self.start)
        ).prior

    score = AbstractObjective.score

    @property
    def costs(self) -> Costs:
        # so many that the arrays of a node stay in a cache
        return Costs(lanes=max(1, 2**14 // self.size), work=1000.0 * self.size)

    def _height(self, theta: PyTree, weights: UnitWeights) -> Callable[[Array], Array]:
        """Return the log integrand of each group, a function of its effect."""

        def height(z: Array) -> Array:
            conditional = self.densities(
                theta, self.data, jnp.asarray(self.start).at[self.present].set(z)
            )
            units = jnp.where(weights > 0, weights * conditional.units, 0.0)
            return conditional.effects[self.present] + jnp.zeros(len(self.present)).at[
                self.code
            ].add(units)

        return height

    def _peaks(self, theta: PyTree, weights: UnitWeights) -> tuple[Array, Array]:
        """Return the mode of each integrand and its standard deviation there, without their
        derivatives by θ.
        """
        ones = jnp.ones(len(self.present))
        centre, scale = self._start_and_scale
        height = self._height(*jax.lax.stop_gradient((theta, weights)))
        # without its units an effect lies where effects lie, and not near its own draws
        grid = jnp.linspace(jnp.min(centre - 2 * scale), jnp.max(centre + 2 * scale), MODE_STARTS)
        places = jnp.concatenate(
            [centre[None], jnp.broadcast_to(grid[:, None], (MODE_STARTS, len(centre)))]
        )
        best = jnp.argmax(jnp.nan_to_num(jax.vmap(height)(places), nan=-jnp.inf), 0)
        start = jnp.take_along_axis(places, best[None], axis=0)[0]
        # groups do not share z, so one direction gives all slopes
        slope = lambda z: jax.jvp(height, (z,), (ones,))[1]

        def newton(state: Any) -> Any:
            step, z, _, _ = state
            g, h = jax.jvp(slope, (z,), (ones,))
            root = jnp.where(h < 0, jnp.sqrt(jnp.where(h < 0, -h, 1.0)), 1 / scale)
            move = jnp.clip(g / root, -LONGEST_MOVE, LONGEST_MOVE)
            return step + 1, z + move / root, 1 / root, jnp.max(jnp.abs(move))

        unfinished = lambda state: (state[0] < MAX_MODE_STEPS) & (state[3] > LAST_STEP)
        return jax.lax.while_loop(
            unfinished, newton, (0, start, scale, jnp.asarray(jnp.inf, start.dtype))
        )[1:3]

    @property
    def _start_and_scale(self) -> tuple[Array, Array]:
        """The mean and the standard deviation of the draws of each group's effect."""
        return jnp.asarray(self.start)[self.present], jnp.asarray(self.scale)[self.present]

    def log_marginals(self, theta: PyTree, weights: UnitWeights) -> Float[Array, " groups"]:
        """Logarithm of the integral of each group."""
        height = self._height(theta, weights)
        if self.quadratic:
            start, scale = self._start_and_scale
            low, middle, high = jax.vmap(lambda step: height(start + step * scale))(
                jnp.array([-1.0, 0.0, 1.0])
            )
            precision = 2 * middle - low - high
            return (
                middle
                + (high - low) ** 2 / (8 * precision)
                + 0.5 * jnp.log(2 * np.pi / precision)
                + jnp.log(scale)
            )
        # where nodes lie changes the integral by its quadrature error only
        mode, spread = self._peaks(theta, weights)
        u = WIDTH * (np.arange(EFFECT_NODES) - EFFECT_NODES // 2)
        heights = jax.vmap(lambda node: height(mode + spread * node))(jnp.asarray(np.sinh(u)))
        return jax.scipy.special.logsumexp(
            heights + np.log(WIDTH * np.cosh(u))[:, None], axis=0
        ) + jnp.log(spread)

    def draw_effects(
        self, key: Array, theta: PyTree, weights: UnitWeights
    ) -> Float[Array, " effects"]:
        """Draw the effect of each group given θ and its units that weigh.

        One is drawn of nodes one standard deviation apart, whose first place is random. Sums over
        such nodes are the integrals of a Gaussian to 5e-9, wherever they begin, so draws have the
        density of the integrand.
        """
        height = self._height(theta, weights)
        mode, spread = self._peaks(theta, weights)
        first, choice = jax.random.split(key)
        nodes = mode + spread * (
            jax.random.uniform(first, mode.shape) - 0.5 + jnp.arange(DRAWN)[:, None] - DRAWN // 2
        )
        node = jax.random.categorical(choice, jax.vmap(height)(nodes), axis=0)
        return (
            jnp.asarray(self.start)
            .at[self.present]
            .set(jnp.take_along_axis(nodes, node[None], axis=0)[0])
        )
