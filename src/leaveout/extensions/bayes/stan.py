"""Posteriors of Stan's models, through BridgeStan.

    F(θ, w) = −log p(θ, y) + Σ_n (1 − w_n) log p(y_n | θ)

The first density is the model's, with the Jacobian of its transforms; the others are a generated
quantity, whose gradients are differences. Where the first is zero, F is infinite for all w.
"""

from contextlib import suppress
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ...developer import (
    GRADIENT_DIFFERENCE,
    LOG_LIKELIHOOD,
    LaneEntries,
    NamedArrays,
    NumberAndArray,
    NumpyArray,
    PerUnit,
    Points,
    State,
    UnitNumbers,
    ValueAndGradient,
    Weights,
    conventional,
    silence,
    static,
)
from ...models import AbstractClosedForm, Units
from .coordinates import pick_draws, read_draws
from .posterior import Posterior, check_posterior


class StanDensity(AbstractClosedForm):
    """Density of a Stan model; `places` are those of the log densities of the units among all that
    the model returns.

    `rng` are the random numbers that BridgeStan asks for; log densities do not depend on them.
    """

    model: Any = static()
    rng: Any = static()
    places: UnitNumbers

    @property
    def num_units(self) -> int:
        return len(self.places)

    @property
    def units(self) -> Units:
        return Units(score=LOG_LIKELIHOOD)

    def _log_lik(self, theta: NumpyArray) -> PerUnit:
        try:
            return self.model.param_constrain(
                theta, include_tp=True, include_gq=True, rng=self.rng
            )[self.places]
        except RuntimeError:  # Stan's, where a parameter is out of its domain
            return np.full(len(self.places), -np.inf)

    def _evaluate(self, theta: NumpyArray, reduction: NumpyArray) -> NumberAndArray:
        """Evaluate F, infinite where it has no value, and the gradient of the model's own term."""
        with suppress(RuntimeError):
            density, gradient = self.model.log_density_gradient(np.ascontiguousarray(theta))
            value = self._left_out(theta, reduction) - density
            if np.isfinite(value):
                return value, -gradient
        return np.inf, np.zeros_like(theta)

    def _left_out(self, theta: NumpyArray, reduction: NumpyArray) -> float:
        """Sum the log densities of the units that leave."""
        if reduction.any():
            return float(reduction[reduction != 0] @ self._log_lik(theta)[reduction != 0])
        return 0.0

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        value = np.full(len(theta), np.inf)
        slope = np.zeros_like(theta)
        for k, (point, reduction) in enumerate(zip(theta, 1 - weights, strict=True)):
            value[k], slope[k] = self._evaluate(point, reduction)
            if np.isfinite(value[k]) and reduction.any():
                total = lambda place, reduction=reduction: self._left_out(place, reduction)
                moves = np.diag(GRADIENT_DIFFERENCE * np.maximum(1.0, np.abs(point)))
                with silence("invalid"):  # beside the edge of a domain
                    slope[k] += [
                        (total(point + move) - total(point - move)) / (2 * move.sum())
                        for move in moves
                    ]
        return value, slope, None

    def values(
        self, theta: Points, weights: Float[NumpyArray, "sets units"]
    ) -> Float[NumpyArray, "places sets"]:
        return np.array(
            [[self._evaluate(point, reduction)[0] for reduction in 1 - weights] for point in theta]
        )

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: Int[NumpyArray, "lanes width"],
        held: Bool[NumpyArray, "lanes width"],
        state: State = None,
    ) -> LaneEntries:
        all_losses = np.stack([-self._log_lik(point) for point in theta])
        return np.take_along_axis(all_losses, np.minimum(index, self.num_units - 1), axis=1)


@conventional
def from_stan(model: Any, draws: Any, *, log_lik: str = "log_lik") -> Posterior:
    """Take a posterior that Stan sampled, with its model by BridgeStan.

    F is the model's log density in Stan's unconstrained coordinates. The units are the entries of a
    generated quantity (or a transformed parameter) with the log density of each of them, as R's
    `loo` reads it. Its constants count: write `normal_lpdf`, not `normal_lupdf`.

    Parameters
    ----------
    model : bridgestan.StanModel
        The compiled model with its data.
    draws : InferenceData, DataTree, Dataset, or dict of arrays
        Draws of the parameters, as `arviz.from_cmdstanpy` reads them.
    log_lik : str, default "log_lik"
        Name of the vector of log densities of the units.

    Returns
    -------
    Posterior
        The posterior.

    Raises
    ------
    ValueError
        If the model has no such vector, or draws of a parameter are missing.

    See Also
    --------
    from_posterior : Take draws and a density of your own.

    Examples
    --------
    >>> import leaveout as lo
    >>> def loo(stan_file, data, draws):  # by BridgeStan and CmdStanPy
    ...     import bridgestan
    ...
    ...     return lo.bayes.elpd(
    ...         lo.bayes.from_stan(bridgestan.StanModel(stan_file, data), draws),
    ...         lo.leave_one_out(),
    ...     )
    """
    caller = "from_stan"
    all_labels = model.param_names(include_tp=True, include_gq=True)
    places = np.array(
        [k for k, label in enumerate(all_labels) if label.rpartition(".")[0] == log_lik], int
    )
    if len(places) < 2:
        raise ValueError(
            f"{caller}: the model has no vector {log_lik!r} of the log densities of two units or more."
        )
    labels = [label.split(".") for label in model.param_names()]
    named_draws = read_draws(caller, draws)
    # the last entry of an array tells its shape
    shapes = {name: tuple(map(int, index)) for name, *index in labels}

    def to_theta(caller: str, draws: NamedArrays) -> NumpyArray:
        draws = pick_draws(caller, draws, shapes)
        columns = [
            np.moveaxis(draws[name], 0, -1)[tuple(int(k) - 1 for k in index)]
            for name, *index in labels
        ]
        return np.stack([model.param_unconstrain(row) for row in np.stack(columns, 1)])

    def to_parameters(u: NumpyArray) -> NamedArrays:
        columns = np.stack([model.param_constrain(np.ascontiguousarray(point)) for point in u]).T
        names = [name + (f"[{','.join(index)}]" if index else "") for name, *index in labels]
        return dict(zip(names, columns, strict=True))

    names = model.param_unc_names()
    theta = to_theta(caller, named_draws.arrays)
    objective = StanDensity(model=model, rng=model.new_rng(0), places=places)
    like = np.zeros(len(names))
    return check_posterior(
        caller,
        Posterior(objective, theta, named_draws.chains, like, to_theta, to_parameters, names),
    )
