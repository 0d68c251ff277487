"""How smooth the terms of an additive model are: λ by neighbourhood cross-validation, or by restricted likelihood.

Both go down an exact slope in ρ = log λ (`_criterion`) by SciPy's L-BFGS-B in boxes of two e-folds to each side, as `tune`
does, within bounds beyond which a term is as wiggly, or as straight, as it can be.

The least of a criterion is a lucky one. So λ is chosen again in every refit o, of the data that it sees: to first order,

    ρ_o = ρ̂ + (∂²V/∂ρ²)⁻¹ Σ_n (1 − w_on) ∂²V/∂ρ∂w_n,

the second derivatives by differences of the exact first ones, two looks at V a penalty; and the losses at ρ_o by theirs.
"""

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float

from ._criterion import Looked, Minimum, Neighbourhoods, Penalised, Restricted, minimum
from ._estimate import Estimate, Printed
from ._evaluate import adapted, cross_validate
from ._fit import Fit, fit as fitted
from ._hyper import shared
from ._jax import float64
from ._plan import Plan
from ._progress import Slow
from ._search import LONGEST, descended
from .models._bases import against
from .models.additive import Additive
from .refit import Exact, NewtonStep

Array = np.ndarray
Method = Literal["NCV", "REML"]
EDGE = (
    1e-5  # of a direction's own curvature: a penalty that weighs less beside the rows, or more than one over it, is at an end
)
APART = 0.01  # e-folds between the looks that tell second derivatives
FINE = 3e-2  # of the slope at which `tune` stops: λ to 1e-4 on the tests' data
FLAT = 1e-6  # of the largest curvature in ρ: directions below it do not move
BEGIN = 3.0  # of ρ: fewer functions than half are wanted more often than more
LOOKS = 200
LARGE = 0.1  # of a standard error, by which the criterion may be off the certified loss


class Nested(NamedTuple):
    """What came of choosing λ again in every refit: the mean loss, how much more that is than with one λ for all, every loss by
    the plan's entries, and λ of each refit."""

    mean: float
    optimism: float
    losses: Float[Array, " entries"]
    smoothing: pd.DataFrame


class Choice(NamedTuple):
    """What leaving a unit out does to ρ̂, to first order, and what that does to θ̂."""

    by_unit: Float[Array, "units smooths"]
    by_rho: Float[Array, "smooths params"]

    def moves(self, plan: Plan) -> Float[Array, "refits smooths"]:
        """Of ρ̂, by the refits of a plan: two e-folds at most, beyond which a first order says little."""
        left = scipy.sparse.csr_array((1 - plan.weight, plan.index, plan.indptr), shape=(plan.num_refits, plan.num_units))
        return np.clip(left @ self.by_unit, -LONGEST, LONGEST)


class Second(NamedTuple):
    """V at ρ̂, ∂²V/∂ρ², ∂²V/∂w∂ρ, and the losses on either side along each ρ."""

    here: Looked
    curvature: Float[Array, "smooths smooths"]
    change: Float[Array, "units smooths"]
    sides: list[tuple[Array, Array]]


class Found(NamedTuple):
    """ρ, the criterion there, and how the way down ended."""

    rho: Float[Array, " smooths"]
    value: float
    ended: str


@dataclass(frozen=True, eq=False, repr=False)
class Smoothing(Printed):
    """What came of `smooth`: the model under the λ that were chosen, its fit, and how that was come by."""

    fit: Fit
    method: Method
    value: float
    ended: str
    looks: int
    plan: Plan | None
    criterion: Any
    rho: Float[Array, " smooths"]
    bounds: Float[Array, "smooths 2"]

    @property
    def model(self) -> Additive:
        assert isinstance(self.fit.objective, Additive)
        return self.fit.objective

    @property
    def smoothing(self) -> dict[str, float]:
        """λ of each penalty, by name."""
        return self.model.smoothing

    @functools.cached_property
    def edf(self) -> pd.Series:
        """Effective degrees of freedom of each smooth term: those of H⁻¹ Σ ω ℓ″ x xᵀ that are its coefficients'."""
        here = self._here
        share = 1 - np.einsum("pq,qp->p", here.root.T @ here.root, here.penalty)
        return pd.Series({name: float(share[span].sum()) for name, (_, span) in self.model.smooths.items()}, name="edf")

    @functools.cached_property
    def _here(self) -> Minimum:
        return minimum(self.criterion.model, self.rho, self.fit.vector)

    @functools.cached_property
    def estimate(self) -> Estimate:
        """`cross_validate` of the fit, certified: at the λ that all the data chose."""
        if self.plan is None:
            raise ValueError("smooth: there was no plan; lo.cross_validate(found.fit, plan) takes one.")
        return cross_validate(self.fit, self.plan)

    @functools.cached_property
    def _apart(self) -> str:
        """What is to be said where the criterion's Newton steps have another loss than exact refits, by which its slopes, and
        all that is made of them, are of little worth."""
        e = self.estimate
        if self.method != "NCV" or abs(self.value - e.mean) <= LARGE * e.scale + e.approximation_error:
            return ""
        return (
            f"one Newton step a refit makes that loss {self.value:.6g}, not {e.mean:.6g}: λ was chosen by another loss than it "
            "has, and what choosing it again costs is not known; look at heavy and far rows, take smaller neighbourhoods"
        )

    @functools.cached_property
    def nested(self) -> Nested:
        """λ chosen again in every refit, to first order; a λ at a bound stays there. ValueError where λ was not chosen by a
        held-out loss; warns where one Newton step is not about what refits are."""
        criterion = self._chosen()
        if self._apart:
            warnings.warn(f"smooth: {self._apart}.", stacklevel=3)
        here, plan, sides = self._second.here, criterion.plan, self._second.sides
        low, high = self.bounds.T
        rho = self.rho + self.choice.moves(plan)
        moved = (np.clip(rho, low, high) - self.rho)[plan.refit]
        assert here.losses is not None
        losses = here.losses.copy()
        for j, (up, down) in enumerate(sides):
            straight, bent = (up - down) / (2 * APART), (up + down - 2 * here.losses) / APART**2
            losses += moved[:, j] * straight + 0.5 * moved[:, j] ** 2 * bent
        mean = float(criterion.share @ np.nan_to_num(losses))
        optimism = mean - here.value
        table = pd.DataFrame(np.exp(np.clip(rho, low, high)), columns=list(self.smoothing))
        return Nested(mean, optimism, losses, table)

    @functools.cached_property
    def choice(self) -> "Choice":
        """How ρ̂ and θ̂ go with what is left out. ValueError where λ was not chosen by a held-out loss."""
        self._chosen()
        here, data = self._here, self.criterion.model
        by_rho = np.zeros((len(self.rho), len(here.theta)))
        for j, (matrix, (a, b)) in enumerate(zip(data.matrices, data.spans, strict=True)):
            by_rho[j] = -np.exp(self.rho[j]) * here.solve(np.pad(matrix @ here.theta[a:b], (a, len(here.theta) - b)))
        return Choice(self._second.change @ self._inverse, by_rho)

    @property
    def _inverse(self) -> Float[Array, "smooths smooths"]:
        """(∂²V/∂ρ²)⁻¹, of what is not at a bound."""
        low, high = self.bounds.T
        return _inverse(self._second.curvature, (self.rho > low) & (self.rho < high))

    def _chosen(self) -> Neighbourhoods:
        if self.method != "NCV":
            raise ValueError("smooth: λ by REML is not chosen by a held-out loss: .estimate is as it is.")
        return self.criterion

    @functools.cached_property
    def _second(self) -> "Second":
        """Second derivatives at ρ̂."""
        count = len(self.rho)
        looks = [[self.criterion(self.rho + sign * APART * np.eye(count)[j]) for sign in (1, -1)] for j in range(count)]
        curvature = np.array([(up.slope - down.slope) / (2 * APART) for up, down in looks])
        change = [(up.by_weight - down.by_weight) / (2 * APART) for up, down in looks]
        sides = [(up.losses, down.losses) for up, down in looks]
        return Second(self.criterion(self.rho), (curvature + curvature.T) / 2, np.stack(change, axis=1), sides)

    @property
    def at_bound(self) -> list[str]:
        """Penalties that were chosen at an end of their range: terms without a bend, or without a penalty."""
        return [name for name, r, (low, high) in zip(self.smoothing, self.rho, self.bounds, strict=True) if r in (low, high)]

    def _lines(self) -> list[tuple[str, str]]:
        many = [f"{name} {value:.4g}" for name, value in self.smoothing.items()]
        by = "neighbourhood cross-validation, one Newton step a refit" if self.method == "NCV" else "restricted likelihood"
        lines = [
            ("model", f"{type(self.model).__name__} ({type(self.model.loss_function).__name__}), {self.model.num_units} units"),
            ("smoothed by", f"{by}: {self.looks} looks, {self.ended}"),
            ("λ", ", ".join(many)),
            ("at a bound", ", ".join(self.at_bound)),
            ("degrees", ", ".join(f"{name} {value:.3g}" for name, value in self.edf.items())),
        ]
        if self.plan is not None:
            e = self.estimate
            se = f" ± {e.se:.2g}" if np.isfinite(e.se) else ""
            lines += [("held-out loss", f"{e.mean:.6g}{se} a unit at this λ, {e.score} ({e._approximation()})")]
        if self.method == "NCV":
            lines += [("check", self._apart), ("nested", "" if self._apart else self._chosen_again())]
        return [(name, text) for name, text in lines if text]

    def _chosen_again(self) -> str:
        told = f"{self.estimate.mean + self.nested.optimism:.6g}: λ chosen again in every refit"
        assert self.plan is not None
        held = ", λ at a bound held there" if self.at_bound else ""
        far = int(np.sum(np.abs(self.choice.moves(self.plan)).max(1) >= LONGEST))
        held += f", which says little of {far} refits, where λ goes {LONGEST:g} e-folds or more" if far else ""
        return f"{told} ({self.nested.optimism:.2g} more, to first order{held})"


def _inverse(curvature: Float[Array, "smooths smooths"], free: Array) -> Float[Array, "smooths smooths"]:
    """That of the curvature among what is free, nothing along directions that are flat, or bend down."""
    out = np.zeros_like(curvature)
    values, vectors = np.linalg.eigh(curvature[np.ix_(free, free)])
    sharp = values > FLAT * np.abs(values).max(initial=0.0)
    out[np.ix_(free, free)] = (vectors[:, sharp] / values[sharp]) @ vectors[:, sharp].T
    return out


@float64
def smooth(
    model: Additive,
    plan: Plan | None = None,
    method: Method = "NCV",
    *,
    start: Mapping[str, float] | None = None,
    exact: bool = False,
) -> Smoothing:
    """The λ of an additive model by which its held-out loss is least, or its restricted likelihood largest, and the fit there.

    "NCV" takes the refits of `plan`, every one by a Newton step: `lo.leave_one_out(n)` of independent rows,
    `lo.blocks(n, 1, buffer=h)` of a series whose errors depend on one another up to `h` steps apart,
    `lo.neighbourhoods(graph, 0, buffer=r)` of sites, `lo.groups` of clusters. `exact=True` goes on from there by one Newton
    step in log λ of the criterion of exact refits, which hardly moves it. "REML" takes errors for independent, and needs no
    plan; one that is given is cross-validated by.
    `start` is a λ for each penalty.

    The minimum is a local one. What is printed of it: the certified loss at these λ, and `.nested`, the loss with λ chosen
    again in every refit, which is the one to report: the least of a criterion is too good for having been chosen.

    Raises TypeError where the model is no `lo.Additive`; ValueError where the loss has several predictors or parameters of its
    own, terms repeat one another, or a refit does not determine every coefficient; RuntimeError on
    separated data.
    """
    if not isinstance(model, Additive):
        raise TypeError(f"smooth: the first argument must be a lo.Additive; got {type(model).__name__}.")
    if method not in ("NCV", "REML") or (method == "NCV" and plan is None):
        raise ValueError(f"smooth: method is 'NCV', which needs a plan, or 'REML'; got {method!r}, plan={plan!r}.")
    if exact and method != "NCV":
        raise ValueError("smooth: exact=True goes with method='NCV'.")
    plan = None if plan is None else adapted("smooth", model, plan, NewtonStep())
    data = data_of(model)
    begin = _parameters(model)
    if method == "NCV":
        assert plan is not None
        criterion: Any = Neighbourhoods(data, plan, shared(plan, data.weight), begin)
    else:
        criterion = Restricted(data, _profiled(model), begin)
    bounds = _bounds(data)
    found = _least(criterion, _begun(model, data, begin, bounds, start), bounds)
    made = _made(model, method, criterion, plan, found, bounds)
    return _exactly(made) if exact else made


def _made(model: Additive, method: Method, criterion: Any, plan: Plan | None, found: Found, bounds: Array) -> Smoothing:
    chosen = model.smoothed(np.exp(found.rho))
    fit = fitted(chosen, chosen.parameters.natural(criterion.theta))
    return Smoothing(fit, method, found.value, found.ended, criterion.looks, plan, criterion, found.rho, bounds)


def data_of(model: Additive) -> Penalised:
    """A model as arrays."""
    if model.own or model.classes:
        raise ValueError(
            f"smooth: {type(model.loss_function).__name__} has several predictors or parameters of its own: not taken."
        )
    weight = np.ones(model.num_units) if model.sample_weight is None else np.asarray(model.sample_weight)
    offset = 0.0 if model.offset is None else np.asarray(model.offset)
    penalty: Any = model.penalty
    x, y = np.asarray(model.design), np.asarray(model.y)
    return Penalised(x, offset, y, weight, model.loss_function, penalty.matrices, penalty.spans)


def _parameters(model: Additive) -> Array:
    assert model.parameters.start is not None
    return np.asarray(model.parameters.start(0), float)


def _profiled(model: Additive) -> bool:
    """Is there a dispersion to be estimated? ValueError where that is not to be had in closed form."""
    kind = type(model.loss_function).__name__
    if kind != "Squared" and model.loss_function.dispersed:
        raise ValueError(f"smooth: REML of {kind} needs its dispersion, which is not known; use method='NCV'.")
    return kind == "Squared"


def _bounds(data: Penalised) -> Float[Array, "smooths 2"]:
    """Of ρ: where the penalty is next to nothing in its sharpest direction, and all there is in its flattest."""
    root, bounds = np.sqrt(data.weight)[:, None], []
    for matrix, (a, b) in zip(data.matrices, data.spans, strict=True):
        seen = against(matrix, root * data.x[:, a:b])
        bounds.append((np.log(EDGE / seen[-1]), np.log(1 / (EDGE * seen[0]))))
    return np.array(bounds)


def _begun(model: Additive, data: Penalised, theta: Array, bounds: Array, start: Any) -> Array:
    """ρ to begin from: penalties a little larger than the curvature of the losses."""
    if start is not None:
        given = np.array(list(model.smoothed(dict(start)).smoothing.values()))
        rho = np.log(np.maximum(given, 1e-300))
    else:
        (curvature,) = data.derivatives(data.eta(theta), (2,))
        rho = np.full(len(bounds), BEGIN + np.log(max(float(np.average(curvature, weights=data.weight)), 1e-300)))
    return np.clip(rho, *bounds.T)


def _least(criterion: Any, begin: Array, bounds: Array) -> Found:
    """The least value on the way down."""
    seen: dict[bytes, Looked] = {}
    low, high = bounds.T

    def look(x: Array) -> tuple[float, Array]:
        if x.tobytes() not in seen:
            seen[x.tobytes()] = criterion(np.clip(x, low, high))
            bar.advance()
        return seen[x.tobytes()].value, seen[x.tobytes()].slope

    with Slow("looks", LOOKS) as bar:
        first = criterion(begin)
        seen[begin.tobytes()] = first
        ended = descended(look, begin, low, high, _scale(first), FINE)
    best = min(seen, key=lambda key: seen[key].value)
    return Found(np.clip(np.frombuffer(best), low, high), seen[best].value, ended)


def _scale(first: Looked) -> float:
    """The standard error of the criterion, rows taken for independent; of a likelihood, one."""
    if first.losses is None:
        return 1.0
    seen = np.isfinite(first.losses)
    return max(float(np.std(first.losses[seen]) / np.sqrt(seen.sum())), 1e-300)


def _exactly(made: Smoothing) -> Smoothing:
    """One Newton step in ρ of the criterion of exact refits, whose slope is told by differences."""
    criterion, rho = made._chosen(), made.rho

    def value(rho: Array) -> float:
        model = made.model.smoothed(np.exp(rho))
        return cross_validate(fitted(model, made.fit.parameters), criterion.plan, Exact(1e-10), audit=0).mean

    far = 10 * APART
    slope = [(value(rho + far * e) - value(rho - far * e)) / (2 * far) for e in np.eye(len(rho))]
    there = np.clip(rho - np.clip(made._inverse @ slope, -LONGEST, LONGEST), *made.bounds.T)
    ended = f"{made.ended}; then {np.abs(there - rho).max():.2g} e-folds by exact refits"
    return _made(made.model, "NCV", criterion, criterion.plan, Found(there, criterion(there).value, ended), made.bounds)
