"""Fitted hidden Markov models of hmmlearn as they are: hmmlearn's objective, priors included, at
its own parameters.

The fixed points of its EM are stationary points of the log-likelihood plus, up to a constant, for
state k in R channels

    initial, transition, emissionprob    Σ (α − 1) log p
    means, covars: "full"                −½ (c₀ log |Σ_k| + tr((Ψ + λ d_k d_kᵀ) Σ_k⁻¹)),
    d_k = mean_k − means_prior
                   "tied"                −½ (c₀ log |Σ| + tr((Ψ + λ Σ_k d_k d_kᵀ) Σ⁻¹))
                   "diag"
                   −½ Σ_r (c₀ log v_kr + (Ψ + λ d_kr²) / v_kr), and "spherical" with one v_k

where λ = means_weight, Ψ = covars_prior (added to every entry of a matrix), and c₀ =
max(covars_weight − 1, 0), for matrices max(covars_weight − R, 0).
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ... import HMM, Fit, anchor, emissions, fit
from ...developer import (
    AnyShape,
    NamedArrays,
    NumpyArray,
    Scalar,
    Shape,
    inverse,
    jnp,
    warn,
)
from ...models import Dirichlet
from ...validation import IndefiniteHessianError

SUPPORTED_MODELS = "GaussianHMM, PoissonHMM and CategoricalHMM"
BOUNDARY_PROBABILITY = 1e-6  # probability below which it is at the boundary


class HostEmission(NamedTuple):
    """Emission of a host model, its parameters, and whether their prior is flat."""

    emission: emissions.AbstractEmission
    parameters: NamedArrays
    flat: bool


def from_hmmlearn(
    model: Any,
    x: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    drop: Literal["observation", "step", "sequence"] = "observation",
) -> Fit:
    """Take a fitted GaussianHMM, PoissonHMM or CategoricalHMM of hmmlearn, on the data it was
    fitted on.

    Its priors are taken over as they are, its states keep their order, and parameters that its
    `params` left alone stay fixed. Held fixed as well are the initial distribution of one sequence
    under a flat `startprob_prior`, which has no interior optimum, and, at zero, initial and
    transition probabilities below 1e-6: EM arrives there if the likelihood has its maximum on the
    boundary, and never leaves a zero. The printed result states their number.

    hmmlearn stops early by default (`tol=1e-2, n_iter=10`), and under priors it stops where the
    likelihood without them no longer rises, whatever `tol >= 0` (a negative one goes on). A warning
    then states how far from stationary its parameters are, and `lo.fit(fit.objective, theta0=fit)`
    goes on from there. If they are so far that the curvature is not positive definite, this
    function goes on itself, with a warning (the states may then change their order).

    Parameters
    ----------
    model : GaussianHMM, PoissonHMM or CategoricalHMM
        Fitted model.
    x : array-like, shape (steps, channels)
        Observations, as hmmlearn takes them.
    lengths : array-like of int, optional
        Lengths of the sequences; by default one sequence.
    drop : {"observation", "step", "sequence"}, default: "observation"
        Unit that is left out: a step's observation, while its state stays in the chain; its
        observation and its state; or a whole sequence.

    Returns
    -------
    Fit
        The fit at the model's parameters.

    Raises
    ------
    TypeError
        On other models.
    sklearn.exceptions.NotFittedError
        If the model is not fitted.
    ValueError
        If the model does not fit the data, a prior is no density, or emission probabilities are
        zero.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> from hmmlearn.hmm import PoissonHMM
    >>> x = np.array([1, 0, 2, 1, 0, 9, 8, 10, 7, 9, 1, 1, 0, 2, 8, 9, 7, 1, 0, 1])[:, None]
    >>> model = PoissonHMM(2, n_iter=500, tol=1e-10, random_state=0).fit(x)
    >>> fit = lo.from_hmmlearn(model, x)
    >>> np.round(np.sort(fit.parameters["rate"]), 1)
    array([0.8, 8.3])
    """
    from sklearn.utils.validation import check_is_fitted

    name = type(model).__name__
    if name not in EMISSIONS or not type(model).__module__.startswith("hmmlearn."):
        raise TypeError(
            f"from_hmmlearn: {name} is not supported. Supported are {SUPPORTED_MODELS}; for other emissions write one, "
            "see lo.emissions, and fit lo.HMM."
        )
    check_is_fitted(model, ("startprob_", "transmat_"))
    objective, theta = _describe_host(model, EMISSIONS[name](model), x, lengths, drop)
    try:
        return anchor(objective, theta, throw=False)
    except IndefiniteHessianError:
        return _continue_fit(model, objective, theta)


def _describe_host(
    model,
    host: HostEmission,
    x: ArrayLike,
    lengths: ArrayLike | None,
    drop: Literal["observation", "step", "sequence"],
) -> tuple[HMM, NamedArrays]:
    """Return the objective that the host minimises, and the host's parameters."""
    sequences = 1 if lengths is None else np.size(lengths)
    K = model.n_components
    start = np.asarray(model.startprob_, float)
    moves = np.asarray(model.transmat_, float)
    never = np.flatnonzero(~np.isclose(moves.sum(1), 1))
    if never.size:
        raise ValueError(
            f"from_hmmlearn: state {never[0]} is never left, so that its transitions are unknown; take fewer states."
        )
    prior = Dirichlet(
        _concentrations(model, "startprob", (K,)), _concentrations(model, "transmat", (K, K))
    )
    flat = host.flat and np.all(prior.initial == 1) and np.all(prior.transition == 1)
    held_start = "s" not in model.params or (sequences == 1 and np.all(prior.initial == 1))
    hmm_prior = None if flat else prior
    initial = start if held_start else _free_or_zero(start)
    transition = _free_or_zero(moves) if "t" in model.params else moves
    objective = HMM(
        x,
        host.emission,
        K,
        lengths=lengths,
        drop=drop,
        prior=hmm_prior,
        initial=initial,
        transition=transition,
    )
    return objective, {
        part: value
        for part, value in {**host.parameters, "initial": start, "transition": moves}.items()
        if part in {**objective.states.free, **host.emission.free}
    }


def _continue_fit(model, objective: HMM, theta: NamedArrays) -> Fit:
    """Descend from the parameters at which the host stopped, with a warning in the name of the
    caller.
    """
    name = type(model).__name__
    stopped = f"from_hmmlearn: {name} stopped where the curvature is not positive definite (tol={model.tol:g}, n_iter={model.n_iter})"
    try:
        solution = fit(objective, theta)
    except (IndefiniteHessianError, RuntimeError) as error:
        raise IndefiniteHessianError(
            f"{stopped}; fit it longer first, as by tol=1e-6, n_iter=1000. Going on from there ended in: {error}"
        ) from None
    before, after = (objective.log_likelihood(which) for which in (theta, solution))
    warn(
        f"{stopped}; went on from there, and the log-likelihood rose from {before:.6g} to {after:.6g}."
    )
    return solution


def _free_or_zero(p: NumpyArray) -> NumpyArray:
    return np.where(p < BOUNDARY_PROBABILITY, 0.0, np.nan)


def _concentrations(model, name: str, shape: Shape) -> NumpyArray:
    value = np.broadcast_to(np.asarray(getattr(model, f"{name}_prior"), float), shape)
    if not (value >= 1).all():
        raise ValueError(
            f"from_hmmlearn: {name}_prior below 1 has its mode at zero, where no curvature is; got {value.tolist()}."
        )
    return value


class HostGaussian(emissions.Gaussian):
    """Gaussian emissions under hmmlearn's joint prior of mean and covariance, as in the module's
    docstring.
    """

    score = ""

    mean: Float[NumpyArray, "states channels"]  # means_prior
    weight: AnyShape  # λ
    scale: AnyShape  # Ψ
    power: Float[NumpyArray, ""]  # c₀

    def __init__(self, model: Any):
        K, R = np.shape(model.means_)
        kind = model.covariance_type
        matrices = kind in ("full", "tied")
        free = "c" in model.params
        shape = {"full": (K, R, R), "tied": (R, R)}.get(kind, (K, R))
        weight = np.asarray(model.means_weight, float)
        freedom = np.asarray(model.covars_weight, float)
        if freedom.size > 1 or (matrices and weight.size > 1):
            raise ValueError(
                "from_hmmlearn: covars_weight, and means_weight of full and tied covariances, must be numbers."
            )
        covariance = "diagonal" if kind == "diag" else kind
        scale = np.zeros(())
        power = 0.0
        if free:
            scale = np.broadcast_to(np.asarray(model.covars_prior, float), shape)
            dimension = R if matrices else 1
            power = max(float(freedom.reshape(())) - dimension, 0.0)
        else:
            covariance = _matrices(model)[0] if kind == "tied" else _matrices(model)
        super().__init__(covariance, prior=None)
        self.mean = np.array(np.broadcast_to(np.asarray(model.means_prior, float), (K, R)))
        is_number = matrices or weight.size == 1
        weight = weight.reshape(()) if is_number else np.broadcast_to(weight, (K, R))
        self.weight = np.array(weight)
        self.scale = np.array(scale)
        self.power = np.array(power)

    @property
    def flat(self) -> bool:
        return not (np.any(self.weight) or np.any(self.scale) or self.power)

    def start(self, model: Any) -> NamedArrays:
        """Parameters of the model, in the shapes of this library."""
        matrices = _matrices(model)
        kinds = {
            "full": matrices,
            "tied": matrices[0],
            "diagonal": np.diagonal(matrices, axis1=1, axis2=2),
        }
        covariance = kinds.get(self.covariance.kind, matrices[:, 0, 0])
        return {"mean": np.asarray(model.means_, float), "covariance": covariance}

    def log_prior(self, parameters: Mapping[str, Any]) -> Scalar:
        difference = parameters["mean"] - self.mean
        covariance = parameters["covariance"]
        if not self.covariance.matrices:
            variance = covariance if covariance.ndim > 1 else covariance[:, None]
            terms = (
                self.power * jnp.log(variance)
                + (self.scale + self.weight * difference**2) / variance
            )
            return -0.5 * jnp.sum(terms)
        precision, log_det = inverse(covariance)
        square = self.weight * difference[:, :, None] * difference[:, None, :]
        square = self.scale + (jnp.sum(square, 0) if self.covariance.kind == "tied" else square)
        return -0.5 * (jnp.sum(log_det) * self.power + jnp.sum(square * precision))

    @property
    def prior_note(self) -> str:
        if self.flat:
            return "mean flat, covariance flat"
        return "mean and covariance by hmmlearn's means_prior, means_weight, covars_prior and covars_weight"


def _matrices(model) -> Float[NumpyArray, "states channels channels"]:
    """Return the covariance matrix of each state for every kind.

    Hmmlearn repeats "spherical" variances over channels.
    """
    matrices = np.asarray(model.covars_, float)
    return matrices[:: len(matrices) // model.n_components]


def _gaussian(model) -> HostEmission:
    _free(model, "m", "means_")
    emission = HostGaussian(model)
    return HostEmission(emission, emission.start(model), emission.flat)


def _poisson(model) -> HostEmission:
    _free(model, "l", "lambdas_")
    if np.any(model.lambdas_prior) or np.any(model.lambdas_weight):
        raise ValueError(
            "from_hmmlearn: lambdas_prior and lambdas_weight enter hmmlearn's update by the number of all steps, not of a "
            "state's own, which is the mode of no density. Leave them at zero, or fit lo.HMM(x, lo.emissions.Poisson(), ...)."
        )
    rate = np.asarray(model.lambdas_, float)
    _not_zero(
        "lambdas_",
        rate,
        "take fewer states, or fit lo.HMM(x, lo.emissions.Poisson(), ...), whose prior keeps off zero",
    )
    return HostEmission(
        emissions.Poisson(prior=None), {"rate": rate[:, 0] if rate.shape[1] == 1 else rate}, True
    )


def _categorical(model) -> HostEmission:
    _free(model, "e", "emissionprob_")
    probability = np.asarray(model.emissionprob_, float)
    _not_zero(
        "emissionprob_",
        probability,
        "refit with an emissionprob_prior above 1, such as 1.1, which keeps off zero",
    )
    prior = _concentrations(model, "emissionprob", probability.shape)
    flat = bool(np.all(prior == 1))
    emission = emissions.Categorical(
        probability.shape[1], prior=None if flat else {"probability": (prior,)}
    )
    return HostEmission(emission, {"probability": probability}, flat)


def _not_zero(name: str, value: NumpyArray, way_out: str) -> None:
    for place in np.argwhere(value < BOUNDARY_PROBABILITY).tolist():
        raise ValueError(
            f"from_hmmlearn: {name}{place} is {value[*place]:.1g}: the maximum is on the boundary; {way_out}."
        )


def _free(model, letter: str, name: str) -> None:
    if letter not in model.params:
        raise ValueError(
            f"from_hmmlearn: {name} was held fixed (params={model.params!r}), which our emissions cannot do."
        )


EMISSIONS = {"GaussianHMM": _gaussian, "PoissonHMM": _poisson, "CategoricalHMM": _categorical}
