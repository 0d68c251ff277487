"""The exact gradient of the held-out loss after one Newton step in the hyperparameters ρ, by one
adjoint solve for each refit.

    θ̂ = argmin F(·, 1; ρ),      θ_o = θ̂ + q_o,      H_o q_o = −∇F(θ̂, w_o; ρ),
    V(ρ) = Σ_o S_o(θ_o; ρ)

With r_o = ∇S_o(θ_o), p_o = H_o⁻¹ r_o and Φ_o(θ; ρ) = p_oᵀ (∇F + ∇²F q_o)(θ, w_o; ρ),

    dV = Σ_o ∂_ρ (S_o − Φ_o) + dθ̂ᵀ Σ_o (r_o − ∇Φ_o),      dθ̂ = −H⁻¹ ∂_ρ ∇F(θ̂, 1; ρ)

JAX derives it in general. For linear predictors under a penalty ½ θᵀP(ρ)θ, if only that has
hyperparameters, it is in arrays

    dV = ⟨dP, G⟩,      G = H⁻¹c θ̂ᵀ − Σ_o p_o θ_oᵀ,      c = Σ_i ω_i ℓ‴_i s_i x_i,
    s_i = Σ_o w_oi (x_iᵀp_o)(x_iᵀq_o)

(S. N. Wood, On neighbourhood cross-validation, arXiv 2404.16490, has the same for smoothers).
Closed forms, which JAX cannot differentiate, are fitted again at a small distance on each side of
every hyperparameter.

Under a penalty with kinks, Σ_j a_j |θ_j| or Σ_g a_g ‖θ_g‖, the loss after one step jumps where
coefficients leave or reach zero. The loss of exact refits has kinks there and no jumps, so V is the
loss of exact refits. With u = σ or θ_g/‖θ_g‖, and H_o restricted to the parameters that a refit
does not hold at zero,

    dθ_o = −κ_o H_o⁻¹ (dP θ_o + u da),      dV = Σ_o ∇S_o(θ_o)ᵀ dθ_o
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import ndarray

from .._runtime import (
    RESULTS,
    Array,
    Arrays,
    EntryValues,
    ListedValues,
    NamedValues,
    NumberAndArray,
    PyTree,
    StepResult,
    call_traced,
    is_traced,
    jax,
    jnp,
    read_or_make,
)
from ..linalg import weight_terms
from ..models.glm import ActiveCox, FullModel, Ridge, kinks
from ..objectives import (
    AbstractClosedForm,
    AbstractObjective,
    Matrix,
    PerUnit,
    Vector,
    fold_weights,
    held_out,
    own_passes,
    unravel,
    weights_of,
)
from ..optimize import at_rest
from ..optimize.fit import Fit, column_curvature, fit as minimum
from ..plans import Batch, Plan
from ..refit import (
    AbstractRefit,
    CertifiedBatch,
    Descent,
    Exact,
    NewtonStep,
    RefitBatch,
    begin,
    first_look,
    linear_cache,
    losses as losses_at,
    refit_active_set as along_zeros,
)
from ..validation.cross_validate import EstimateBuilder
from ..validation.estimate import Estimate
from ..validation.scoring import HeldOutLoss

PerHyper = Float[ndarray, " hyper"]

Build = Callable[..., AbstractObjective]
# function of targets, held-out predictors and weights of all units: the criterion, and its slope in
# each predictor
PooledMeasure = Callable[[ndarray, ndarray, ndarray], NumberAndArray]
Among = ndarray | None  # units to score; None for all
# fields of an estimate that refits fill, without errors
REFIT_FIELDS = "losses", "result", "elsewhere"
# width of a smoothed step of the area, in standard deviations of the predictors
AREA_STEP_WIDTH = 0.1


class SlopeLook(NamedTuple):
    """An estimate without errors, its criterion with the gradient, and the held-out predictors, if
    these are pooled.
    """

    estimate: Estimate
    value: float
    slope: PerHyper
    center: PerUnit | None = None


def build_objective(build: Build, hyper: Mapping[str, Any]) -> AbstractObjective:
    """Build the objective, with numbers as arrays, so that new values compile nothing anew."""
    objective = build(
        **{
            name: np.float64(value) if isinstance(value, float) else value
            for name, value in hyper.items()
        }
    )
    if not isinstance(objective, AbstractObjective):
        description = f"{type(objective).__name__}" + (
            ", give its .objective" if isinstance(objective, Fit) else ""
        )
        raise TypeError(
            f"tune: build must return an objective, such as lo.GLM(...) or lo.Separable(...); got {description}."
        )
    return objective


def shares(estimate: Estimate, among: Among) -> Float[ndarray, " losses"]:
    """Return the weight of each loss in the mean over some units (or refits, for joint losses).

    Over all if `among` is None.
    """
    if estimate.joint:
        if among is None:
            refit_weight = np.ones(estimate.plan.num_refits)
        else:
            refit_weight = among.astype(float)
        return refit_weight / refit_weight.sum()
    weight = estimate._weight
    if among is not None:
        weight = weight * among
    return loss_shares(estimate.plan, weight)


def loss_shares(plan: Plan, weight: PerUnit) -> EntryValues:
    """Return the weight of each loss in the weighted mean over units.

    A unit that is scored often counts once.
    """
    counts = np.bincount(plan.scored_units, minlength=plan.num_units)
    unit_share = weight / np.maximum(counts, 1) / weight[counts > 0].sum()
    return np.where(plan.held, unit_share[plan.index], 0.0)


def mean(estimate: Estimate, among: Among) -> float:
    """Compute the mean loss over the units (or refits) `among`; over all if it is None."""
    if among is None:
        return estimate.mean
    return float(np.where(share := shares(estimate, among), estimate.losses, 0.0) @ share)


class LossSlopes:
    """The held-out losses of a plan after one Newton step, and the gradient of their mean in the
    hyperparameters of `build`.

    Instead of the mean, the criterion may be a metric that is `pooled` over the held-out
    predictors. Programs are compiled once for all calls.
    """

    def __init__(self, build: Build, names: Sequence[str], pooled: PooledMeasure | None = None):
        self.build = build
        self.names = tuple(names)
        self.pooled_criterion = pooled
        self.alone: bool | None = None  # whether hyperparameters enter the penalty alone
        self.constant: ndarray | None = None  # dP/dρ, if it is known to be the same for every ρ

    def __call__(self, fit: Fit, plan: Plan, rho: PerHyper, among: Among = None) -> SlopeLook:
        """Compute the criterion and its gradient at a fit, over the units `among`, or over all."""
        return self.of_groups(fit, plan, rho, [among])[0]

    def of_groups(
        self, fit: Fit, plan: Plan, rho: PerHyper, groups: Sequence[Among]
    ) -> list[SlopeLook]:
        """Compute the criterion and its gradient over each group of units.

        Where arrays suffice, from the same refits.
        """
        if len(groups) > 1 and not self._by_adjoints(fit, rho):
            return [self(fit, plan, rho, among) for among in groups]
        if fit.quadratic.factor is None:
            raise ValueError(
                f"tune: sampler='gradient' forms the Hessian of {fit.num_params} parameters, too many; use sampler='optuna'."
            )
        builder = EstimateBuilder(HeldOutLoss(fit, plan, None), criterion(fit))
        outputs = read_or_make(lambda: self._evaluate(fit, rho, builder, groups))
        fields: NamedValues = {name: outputs[name] for name in outputs.keys() & REFIT_FIELDS}
        estimate = replace(builder.blank, **fields)
        slopes = (
            outputs["slope"]
            if "slope" in outputs
            else [self._by_differences(fit, plan, rho, among) for among in groups]
        )
        values = np.atleast_1d(outputs["value"]).tolist()
        return [
            SlopeLook(estimate, value, slope, outputs.get("center"))
            for value, slope in zip(values, np.reshape(slopes, (len(groups), -1)), strict=True)
        ]

    def _by_adjoints(self, fit: Fit, rho: ndarray) -> bool:
        """Whether the slope is in arrays."""
        model = fit.quadratic.predictors
        separate = (
            model is not None
            and model.separate
            and model.design.outputs == 1
            and model.loss is model.unit_loss
        )
        return separate and kinks(fit.objective) is None and self._alone(rho)

    def _evaluate(
        self,
        fit: Fit,
        rho: ndarray,
        builder: EstimateBuilder,
        groups: Sequence[Among],
    ) -> StepResult:
        """Run the refits; return their results, the criterion, its slope, and the pooled held-out
        predictors.
        """
        among = groups[0]
        if kinks(fit.objective) is not None:
            outputs = self._by_refits(fit, rho, builder, among)
        elif self._by_adjoints(fit, rho):
            outputs = self._by_arrays(fit, rho, builder, groups)
        elif self.pooled_criterion is not None:
            raise ValueError(
                "tune: metric='auc' by gradient needs a GLM whose quadratic penalty alone has hyperparameters; "
                "use sampler='optuna'."
            )
        elif isinstance(fit.objective, AbstractClosedForm):
            outputs = {"value": _one_step_criterion(builder, among)}
        else:
            slope = self._derivative(fit, rho, builder, among)
            outputs = {"value": np.asarray(mean(builder.draft, among)), "slope": slope}
        draft = builder.draft
        arrays = {name: getattr(draft, name) for name in REFIT_FIELDS}
        return outputs | {name: part for name, part in arrays.items() if part is not None}

    def _traceable(self, rho: Array | Sequence[Array]) -> AbstractObjective:
        """Return the objective as a function of hyperparameters."""
        try:
            return call_traced("tune: build", self.build, **dict(zip(self.names, rho, strict=True)))
        except TypeError as error:
            raise TypeError(f"{error} Or use sampler='optuna', which derives nothing.") from error

    def _alone(self, rho: ndarray) -> bool:
        """Whether hyperparameters enter the penalty alone."""

        def inspect(rho: Array) -> None:
            hyper = list(rho)
            model: Any = self._traceable(hyper)
            leaves = jax.tree.leaves(
                [part for name, part in vars(model).items() if name != "penalty"]
            )
            # a function may contain hyperparameters
            self.alone = not any(is_traced(leaf) or callable(leaf) for leaf in leaves)
            if (
                self.alone
                and type(getattr(model, "penalty", None)) is Ridge
                and any(value is model.penalty.alpha for value in hyper)
            ):
                among = np.array([value is model.penalty.alpha for value in hyper])
                self.constant = np.eye(model.num_features)[:, :, None] * among

        if self.alone is None:
            jax.eval_shape(inspect, rho)
        return bool(self.alone)

    # linear predictors under a quadratic penalty

    @cached_property
    def _penalty(self) -> Callable[..., Float[Array, "features features hyper"]]:
        """Return dP/dρ."""

        def second(rho: Array) -> Array:
            model: Any = self._traceable(rho)
            return jnp.asarray(model.penalty.second(model.num_features))

        return jax.jit(jax.jacfwd(second))

    def _by_arrays(
        self,
        fit: Fit,
        rho: ndarray,
        builder: EstimateBuilder,
        groups: Sequence[Among],
    ) -> StepResult:
        model = linear_cache(fit).model
        estimate = builder.blank
        adjoints = [Adjoint(fit) for _ in groups]

        def step(batch: Batch) -> CertifiedBatch:
            """Score a batch after one Newton step."""
            state = first_look(fit, batch.rows)
            codes = np.where(state.metric.kept_share > 0, RESULTS.successful, RESULTS.undetermined)
            unbounded = np.full(len(codes), np.inf)
            scores = losses_at(fit, batch.rows, state.candidates.center)
            builder.add(
                batch, RefitBatch(state.theta, unbounded, codes, scores, step_length=state.first)
            )
            return state

        looks: Iterable[tuple[Batch, CertifiedBatch]] = (
            (batch, step(batch)) for batch in builder.batches
        )
        if self.pooled_criterion is not None:  # all predictors are needed before any slope is known
            looks = list(looks)
            outputs = {"center": _by_unit(estimate.plan, looks)}
            weight = estimate._weight
            weights = [weight if among is None else weight * among for among in groups]
            measured = [
                self.pooled_criterion(model.y, outputs["center"], weight) for weight in weights
            ]
            values = [value for value, _ in measured]
            for batch, state in looks:
                for adjoint, (_, predictor_slope) in zip(adjoints, measured, strict=True):
                    adjoint.add(state, np.where(batch.rows.held, predictor_slope[state.units], 0.0))
        else:
            outputs = {}
            weights = [shares(estimate, among) for among in groups]
            for batch, state in looks:
                (predictor_slope,) = model.unit_loss.derivatives(
                    state.candidates.center, model.y[state.units], (1,)
                )
                for adjoint, share in zip(adjoints, weights, strict=True):
                    adjoint.add(
                        state, np.where(batch.rows.held, share[batch.place] * predictor_slope, 0.0)
                    )
            values = [mean(builder.draft, among) for among in groups]
        change = self.constant
        if change is None:
            change = np.asarray(self._penalty(rho))
        within = slice(len(change))
        slopes = [
            np.einsum("pq,pqh->h", adjoint.slope()[within, within], change) for adjoint in adjoints
        ]
        return outputs | {"value": np.array(values), "slope": np.array(slopes)}

    # refits under a penalty with kinks

    @cached_property
    def _kinks(self) -> Callable[..., tuple[Array, Array, Array]]:
        """Return dP/dρ of the diagonal P, and da/dρ of coefficients and of groups."""

        def parts(rho: Array) -> tuple[Array, Array, Array]:
            model: Any = self._traceable(rho)
            penalty = model.penalty
            features = model.num_features
            norms = penalty.norms(features)
            if norms is None:
                groups = jnp.zeros(0)
            else:
                groups = norms.weight
            return (
                jnp.diagonal(jnp.asarray(penalty.second(features))),
                jnp.asarray(penalty.kinks(features)),
                jnp.asarray(groups),
            )

        return jax.jit(jax.jacfwd(parts))

    def _by_refits(
        self,
        fit: Fit,
        rho: ndarray,
        builder: EstimateBuilder,
        among: Among,
    ) -> StepResult:
        if (
            self.pooled_criterion is not None
            or isinstance(fit.objective, ActiveCox)
            or not self._alone(rho)
        ):
            raise TypeError(
                "tune: sampler='gradient' under an l1 penalty or bounds goes by the loss of a lo.GLM, and wants "
                "hyperparameters in the penalty alone; use sampler='optuna', or lo.path."
            )
        active_model = kinks(fit.objective)
        assert active_model is not None
        kinked = active_model.whole
        share = shares(builder.draft, among)
        slope = np.zeros(len(rho))
        change = [np.asarray(part) for part in self._kinks(rho)]
        for batch in builder.batches:
            rows = batch.rows
            done = along_zeros(criterion(fit), fit, batch.rows, True)
            assert done.scores is not None
            builder.add(batch, done)
            entry_share = np.where(rows.held, share[batch.place], 0.0)
            theta = done.theta
            for k in np.flatnonzero(np.isfinite(theta).all(1)):
                weights = weights_of(rows, fit.objective.num_units, np.array([k]))
                held = rows.held[k]
                slope += _loss_changes(
                    kinked, theta[k], weights, rows.index[k][held], entry_share[k][held], change
                )
        return {"value": np.asarray(mean(builder.draft, among)), "slope": slope}

    # closed forms

    def _by_differences(self, fit: Fit, plan: Plan, rho: ndarray, among: Among) -> PerHyper:
        """Compute the gradient by central differences, from fits that start at this one."""

        def criterion_at(rho: ndarray) -> float:
            objective = build_objective(
                self.build, dict(zip(self.names, rho.tolist(), strict=True))
            )
            nearby_fit = minimum(
                objective, fit.parameters, num_starts=1, curvature=column_curvature(objective)
            )
            return float(
                read_or_make(
                    lambda: {
                        "value": _one_step_criterion(
                            EstimateBuilder(HeldOutLoss(nearby_fit, plan, None), NewtonStep()),
                            among,
                        )
                    }
                )["value"]
            )

        # step of hyperparameters to each side; slopes of closed forms have an error of its square
        steps = 1e-3 * np.diag(rho)
        return np.array(
            [
                (criterion_at(rho + step) - criterion_at(rho - step)) / (2 * step.sum())
                for step in steps
            ]
        )

    # everything else, by JAX

    def _build(self, rho: Array, leaves: Sequence[Arrays]) -> AbstractObjective:
        """Build the objective, with its arrays that do not depend on hyperparameters passed in.

        As constants they would be compiled with every data set.
        """
        traced_leaves, tree = jax.tree.flatten(self._traceable(rho))
        pairs = zip(traced_leaves, leaves, strict=True)
        return jax.tree.unflatten(
            tree,
            [
                traced if is_traced(traced) or not _is_array(traced) else array
                for traced, array in pairs
            ],
        )

    @cached_property
    def _loss_gradients(self) -> Callable[..., Array]:
        """Return r_o, the gradients of the held-out losses."""

        def program(rho, leaves, like, args, chunk):
            objective = self._build(rho, leaves)

            def refit_gradient(a):
                index, weight, held, share, theta = a
                losses = held_out(objective, like, index, weight, held)
                return jax.grad(lambda v: jnp.sum(share * losses(v)))(theta)

            return jax.lax.map(refit_gradient, args, batch_size=chunk)

        return jax.jit(program, static_argnums=4)

    @cached_property
    def _refit_slopes(self) -> Callable[..., tuple[Array, Array]]:
        """Compute the sums of ∂_ρ (S_o − Φ_o) and −∇Φ_o.

        A local objective needs only the listed units.
        """

        def program(rho, leaves, like, vector, args, chunk):
            def refit_slopes(a):
                return jax.grad(lambda rho, v: self._value(rho, leaves, like, v, a), (0, 1))(
                    rho, vector
                )

            return jax.tree.map(
                lambda part: part.sum(0), jax.lax.map(refit_slopes, args, batch_size=chunk)
            )

        return jax.jit(program, static_argnums=5)

    def _value(
        self, rho: Array, leaves: Sequence[Arrays], like: PyTree, v: Array, refit: Sequence[Array]
    ) -> Array:
        """Compute S_o − Φ_o of one refit."""
        objective = self._build(rho, leaves)
        index, weight, held, share, theta, p, q = refit
        scored = jnp.sum(share * held_out(objective, like, index, weight, held)(theta))
        seen = fold_weights(objective, index, weight)
        F = lambda v: objective.perturbation(unravel(v, like), index, weight - 1.0)
        slope = jax.grad(F if objective.local else lambda v: objective.loss(unravel(v, like), seen))
        return scored - p @ sum(jax.jvp(slope, (v,), (q,)))

    @cached_property
    def _common(self) -> Callable[..., tuple[Array, Array]]:
        """Compute the slopes in ρ and θ of `adjoint`ᵀ∇F + tr(∇²F `products`) at weights of one."""

        def program(rho, leaves, like, vector, adjoint, products):
            def value(rho, v):
                objective = self._build(rho, leaves)
                slope = jax.grad(
                    lambda v: objective.loss(unravel(v, like), jnp.ones(objective.num_units))
                )
                curvature_term = lambda pair: pair[0] @ jax.jvp(slope, (v,), (pair[1],))[1]
                trace = 0.0
                if products is not None:
                    trace = jnp.sum(jax.lax.map(curvature_term, (jnp.eye(len(v)), products.T)))
                return adjoint @ slope(v) + trace

            return jax.grad(value, (0, 1))(rho, vector)

        return jax.jit(program)

    def _derivative(
        self,
        fit: Fit,
        rho: ndarray,
        builder: EstimateBuilder,
        among: Among,
    ) -> ndarray:
        share = shares(builder.draft, among)
        size = fit.num_params
        joint = builder.held_out_loss.joint
        leaves = [
            leaf if _is_array(leaf) else np.zeros(()) for leaf in jax.tree.leaves(fit.objective)
        ]
        by_rho = np.zeros(len(rho))
        by_theta = np.zeros(size)
        adjoint = np.zeros(size)
        products = np.zeros((size, size))
        for batch in builder.batches:
            descent, done = _take_step(builder, batch)
            u = descent.candidates.u
            if joint:
                entry_share = share[batch.refits]
            else:
                entry_share = np.where(batch.rows.held, share[batch.place], 0.0)
            chunk = own_passes(fit.objective, batch.rows.index.shape[1])
            args = (*batch.rows[:3], entry_share, done.theta)
            r = np.asarray(self._loss_gradients(rho, leaves, fit.theta, args, chunk))
            p = fit.quadratic.unwhiten(
                descent.metric.solve(fit.quadratic.whiten(r), u, np.arange(len(r)))
            )
            q = fit.quadratic.unwhiten(u)
            sums = self._refit_slopes(rho, leaves, fit.theta, fit.vector, (*args, p, q), chunk)
            by_rho += np.asarray(sums[0])
            by_theta = by_theta + np.asarray(sums[1]) + r.sum(0)
            adjoint += p.sum(0)
            products += q.T @ p
        if fit.objective.local:
            common = self._common(rho, leaves, fit.theta, fit.vector, adjoint, products)
            by_rho -= np.asarray(common[0])
            by_theta -= np.asarray(common[1])
        last = self._common(rho, leaves, fit.theta, fit.vector, fit.solve(by_theta), None)
        return by_rho - np.asarray(last[0])


def criterion(fit: Fit) -> AbstractRefit:
    """Return the strategy whose mean held-out loss the search descends."""
    if kinks(fit.objective) is None:
        return NewtonStep()
    return Exact()


def _loss_changes(
    kinked: FullModel,
    theta: Vector,
    weights: Float[ndarray, "1 units"],
    units: Int[ndarray, " held"],
    share: Float[ndarray, " held"],
    change: Sequence[ndarray],
) -> PerHyper:
    """Return the changes of the losses of one refit, each weighted by `share`."""
    model = kinked.smooth
    norms = kinked.norms
    active = ~at_rest(kinked, theta)
    (omega,), (kappa,) = model.weigh(weights)
    eta = model.eta(theta[None])[0]
    x = model.design.x[:, active]
    curvature = weight_terms(omega, model.loss.derivatives(eta, model.y, (2,))[0])
    hessian = (x.T * curvature) @ x + kappa * np.diag(kinked.ridge[active])
    coef = theta[: len(change[0])]
    gradient_change = change[0] * coef[:, None] + change[1] * np.sign(coef)[:, None]
    if norms is not None:
        hessian += kappa * norms.select(np.flatnonzero(active)).hessian(theta[active][None])[0]
        length = norms.lengths(theta)[:, None]
        group_slope = np.divide(change[2], length, out=np.zeros_like(change[2]), where=length > 0)
        gradient_change += (norms.member.T @ group_slope)[: len(coef)] * coef[:, None]
    slope = model.unit_loss.derivatives(eta[units], model.y[units], (1,))[0]
    adjoint = scipy.linalg.solve(hessian, x[units].T @ (share * slope), assume_a="pos")
    return -kappa * adjoint[: int(active[: len(coef)].sum())] @ gradient_change[active[: len(coef)]]


def _one_step_criterion(builder: EstimateBuilder, among: Among) -> ndarray:
    """Return the criterion, with one Newton step for each refit."""
    for batch in builder.batches:
        _take_step(builder, batch)
    return np.asarray(mean(builder.draft, among))


def _take_step(builder: EstimateBuilder, batch: Batch) -> tuple[Descent, RefitBatch]:
    """Take one Newton step of each refit of any model, and add the losses there to the estimate."""
    descent = begin(builder.held_out_loss.fit, batch.rows, fold_hessians=True)
    candidates = descent.candidates
    refits = RefitBatch(
        lambda: descent.theta, candidates.error, candidates.result, step_length=candidates.first
    )
    builder.add(batch, refits)
    return descent, refits


def _by_unit(plan: Plan, looks: Iterable[tuple[Batch, CertifiedBatch]]) -> PerUnit:
    """Return the held-out predictors, one for each unit."""
    if not (np.bincount(plan.scored_units, minlength=plan.num_units) == 1).all():
        raise ValueError(
            "tune: metric='auc' by gradient needs a plan that scores every unit once; use sampler='optuna'."
        )
    out = np.full(plan.num_units, np.nan)
    for batch, state in looks:
        out[batch.rows.index[batch.rows.held]] = state.candidates.center[batch.rows.held]
    return out


def smoothed_area(
    y: PerUnit,
    eta: PerUnit,
    weight: PerUnit,
) -> NumberAndArray:
    """Compute minus the area under the curve, with steps smoothed over h = `WIDTH` standard
    deviations of the predictors.

        V = −Σ_{i of the upper class} Σ_{j of the lower} w_i w_j σ((η_i − η_j) / (h s)) / ΣΣ w_i
        w_j,      s² = Σ (η − η̄)² / n

    and its slope in each predictor.
    """
    upper = y == y.max()
    if upper.all() or not np.isin(y, (y.min(), y.max())).all():
        raise ValueError("tune: metric='auc' by gradient needs two classes; use sampler='optuna'.")
    most_pairs = 2e7  # of rows of two classes
    if float(upper.sum()) * float((~upper).sum()) > most_pairs:
        raise ValueError(
            f"tune: metric='auc' by gradient compares pairs of rows, {most_pairs:.0e} at most; tune the loss instead."
        )
    mass = np.outer(weight[upper], weight[~upper])
    deviations = eta - eta.mean()
    spread = eta.std()
    z = deviations / (AREA_STEP_WIDTH * spread)
    share = scipy.special.expit(z[upper][:, None] - z[~upper])
    pair_slopes = mass / mass.sum() * share * (1 - share)
    slope = np.zeros(len(y))
    slope[upper] = -pair_slopes.sum(1)
    slope[~upper] = pair_slopes.sum(0)
    slope = (slope - deviations * (slope @ deviations) / (len(y) * spread**2)) / (
        AREA_STEP_WIDTH * spread
    )
    return -float(np.sum(mass * share) / mass.sum()), slope


def _is_array(leaf) -> bool:
    return isinstance(leaf, ndarray | np.generic | jax.Array)


class Adjoint:
    """The sums Σ p_o and Σ p_o q_oᵀ, and the contributions of single rows to s, whitened."""

    def __init__(self, fit: Fit):
        self.fit = fit
        self.anchor = linear_cache(fit)
        rank = len(self.anchor.root)
        self.adjoints = np.zeros(rank)
        self.curvature = np.zeros((rank, rank))
        self.row_terms = np.zeros(self.anchor.units)

    def add(self, state: CertifiedBatch, slope: ListedValues) -> None:
        """Add a batch, given the gradient of the criterion in each held-out predictor."""
        metric = state.metric
        refits = np.arange(len(slope))
        q = state.candidates.u
        if metric.z is not None:
            p = metric.solve(np.einsum("rk,rkp->rp", slope, metric.z), refits)
            row_products = np.einsum("rkp,rp->rk", metric.z, p) * np.einsum(
                "rkp,rp->rk", metric.z, q
            )
        else:
            rows = [
                self.anchor.model.design.whiten(units, self.anchor.root) for units in state.units
            ]
            p = metric.solve(
                np.array([row_slope @ z for row_slope, z in zip(slope, rows, strict=True)]), refits
            )
            row_products = np.array(
                [(z @ adjoint) * (z @ step) for z, adjoint, step in zip(rows, p, q, strict=True)]
            )
        self.row_terms += np.bincount(
            state.units.ravel(), (state.delta * row_products).ravel(), len(self.row_terms)
        )
        self.adjoints += p.sum(0)
        self.curvature += p.T @ q

    def slope(self) -> Matrix:
        """Return G, the gradient of the criterion in P."""
        anchor = self.anchor
        root = self.anchor.root
        (third,) = anchor.model.loss.derivatives(anchor.eta, anchor.model.y, (3,))
        products = root.T @ self.curvature @ root
        x = anchor.model.design
        s = x.forms(products[None])[:, 0] + self.row_terms
        c = x.pull(weight_terms(anchor.weight, third * s)[None])[0]
        return np.outer(self.fit.solve(c) - self.adjoints @ root, anchor.theta) - products
