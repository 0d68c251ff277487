"""Linear predictors with any smooth loss and penalty, and perhaps a few parameters τ that all units
share.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + o_n, τ, y_n) + R(coef),      s sample weights, o offsets,
    θ = (β, τ)

This extends T. Shlomo, *Efficient Leave One Out Cross Validation, Part 2*, 2024, by offsets,
weights, several outputs and hosts that average. The intercept, the last entry of β, is not
penalised, nor is τ.

A unit depends on θ through z_n = U_n θ alone: x_nᵀβ, or one such for each class, or x_nᵀβ and τ,
with U_n = diag(x_nᵀ, I). Leaving a unit out is therefore as cheap with a τ (a dispersion,
thresholds) as without, and changes τ too.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self, cast

import numpy as np
import scipy
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import (
    AnyFunction,
    AnyPair,
    AnyTuple,
    Array,
    Arrays as Arrays,
    NamedValues,
    PyTree,
    RowCoefficients,
    Scalar,
    Shape,
    Strings,
    TwoArrays,
    UnaryFunction,
    UnitFlags,
    float64,
    jax,
    jnp,
    pd,
    static,
)
from ...data import (
    PLAIN,
    FormulaReader,
    Names,
    codes,
    join_remarks,
    match_labels,
    named_column,
    numbers,
    read_columns,
    split_outside,
    stateful_remark,
)
from ...linalg import (
    DenseDesign,
    Loss,
    MappedDesign,
    MultiOutputDesign,
    Predictors,
    Resident,
    SparseDesign,
    StackedLoss,
)
from ...objectives import (
    AbstractLinearPredictor,
    DiagonalBlocks,
    Hessian,
    Parameters,
    PerListed,
    PerUnit,
    UnitIndex,
    Units,
    UnitWeights,
    as_stored,
)
from . import losses, penalties
from .absorbed import absorb_effects
from .gram import gram
from .predictive import ResidualVariance, classes, distribution
from .rows import all_finite, by_name, column, design, new_rows, pick, shift, times

EVERYONE = slice(None)
# columns beyond which the diagonal matrix of a penalty is sparse, as `fit` then uses products
PRODUCTS_FROM = 12_000


class AbstractRegression(AbstractLinearPredictor):
    """Sum of losses of rows plus a penalty.

    The base of `GLM` and `Regression`, which take different losses.
    """

    design: Float[ndarray, "units coefficients"] | SparseDesign | MappedDesign | Resident
    y: PerUnit
    sample_weight: PerUnit | None
    offset: Float[ndarray, "units ..."] | None
    class_code: PerUnit | None
    loss_function: losses.AbstractLoss
    penalty: penalties.AbstractPenalty
    intercept: bool = static()
    classes: AnyTuple = static()
    levels: AnyTuple = static()
    is_balanced: int = static()
    names: Strings = static()
    remark: str = static()
    scale: str = static()
    labels: Names = static()
    # Cut of the host: singular values of the centred rows below this share of the largest count as
    # zero; 0 is rounding alone.
    cut: float = static()
    trials: PerUnit | None  # numbers of trials, which `sample_weight` contains
    # whether the host takes the solution of least norm if a refit's rows leave coefficients open
    least_norm: bool = static()

    def __new__(cls, X: Any = None, y: Any = None, *args: Any, absorb: Any = None, **options: Any):
        """Make a model that absorbs the effects of factors, an `AbsorbedGLM`, where these are
        given.
        """
        if absorb is None and not (isinstance(X, str) and len(split_outside(X, "|")) > 1):
            return super().__new__(cls)
        if cls is not GLM:
            raise TypeError(
                f"{cls.__name__}: effects are absorbed by lo.GLM, under a loss without parameters of its own, such as "
                "lo.losses.NegativeBinomial(2.0)."
            )
        return absorb_effects(cls, X, y, absorb, *args, **options)

    def _bind(
        self,
        X,
        y,
        resolve,
        penalty,
        sample_weight,
        offset,
        intercept,
        class_weight,
        remark,
        trials=None,
        weights=None,
    ):
        """Read the data; `resolve` maps y to the loss, y in the loss's form, and the levels of an
        ordinal y.
        """
        caller = type(self).__name__
        reader = None
        table = None
        if weights is not None and sample_weight is not None:
            raise ValueError(
                f"{caller}: give weights= or sample_weight=, two names of one argument, not both."
            )
        if sample_weight is None:
            sample_weight = weights
        if isinstance(X, str):
            remark = join_remarks(remark, stateful_remark(X))
            columns = read_columns(caller, X, y)
            sample_weight, offset, trials = (
                named_column(columns.data, value) for value in (sample_weight, offset, trials)
            )
            intercept = intercept and "Intercept" in columns.X
            table = columns.data
            reader = FormulaReader(caller, X, columns.spec, table)
            X = columns.X.drop(columns="Intercept", errors="ignore")
            y = columns.y
        self.penalty = penalties.resolve(penalty)
        self.cut = 0.0
        self.least_norm = False
        labels, X, y, sample_weight, offset, trials = match_labels(
            caller, X=X, y=y, sample_weight=sample_weight, offset=offset, trials=trials
        )
        self.loss_function, y, self.levels = resolve(y)
        y, event_labels = _two_labels(caller, y, self.loss_function)
        event = ""
        if event_labels:
            event = f"y is 1 where it is {event_labels[1]!s} and 0 where it is {event_labels[0]!s}"
        table = labels.table if table is None else table
        self.labels = Names(labels.index, reader, event_labels, table, labels.name)
        self.remark = join_remarks(remark, event)
        self.intercept = bool(intercept) and self.loss_function.intercept
        self.design, self.names = design(caller, X, self.intercept)
        n = len(self.design)
        class_labels = ()
        if isinstance(self.loss_function, losses.Multinomial):
            y, class_labels = _class_codes(caller, y, n)
        self.classes = class_labels
        self.y = column(caller, "y", y, n)
        self.loss_function.check(self.y)
        self.scale = self.loss_function.scale(self.y)
        weight = None
        if sample_weight is not None:
            weight = column(caller, "sample_weight", sample_weight, n)
        num_trials = None
        if trials is not None:
            num_trials = column(caller, "trials", trials, n)
            if not isinstance(self.loss_function, losses.Binomial) or (num_trials <= 0).any():
                raise ValueError(
                    f"{caller}: trials must be positive, and are for binomial proportions y."
                )
            weight = num_trials if weight is None else as_stored(num_trials * weight)
        elif weight is not None and _are_trials(self.loss_function, self.y, weight):
            num_trials = np.where(weight > 0, weight, 1.0)
        self.sample_weight = weight
        self.trials = num_trials
        if weight is not None and ((weight < 0).any() or not weight.any()):
            raise ValueError(f"{caller}: sample_weight must not be negative, nor zero everywhere.")
        if offset is not None and self.classes:
            offset = np.broadcast_to(
                numbers(caller, "offset", offset).reshape(n, -1), (n, *self.per_row)
            )
        self.offset = None if offset is None else column(caller, "offset", offset, n, self.per_row)
        if class_weight not in (None, "balanced"):
            raise ValueError(
                f"{caller}: class_weight must be None or 'balanced'; got {class_weight!r}. Use sample_weight."
            )
        class_code = None
        levels = ()
        if class_weight:
            code, levels = _class_codes(caller, self.y, n)
            class_code = as_stored(code)
        self.class_code = class_code
        self.is_balanced = len(levels)
        self.penalty.check(self.num_features)
        _copy_to_memory(self)

    def under(self, penalty: penalties.PenaltyLike) -> Self:
        """Copy the model with another penalty; its data are shared, and not read again."""
        return _copy_to_memory(penalties.under(self, penalty, self.num_features))

    def relearn(self, seen: UnitFlags) -> Self:
        """Copy the model, with the columns of its formula by what the `seen` rows teach."""
        model = copy.copy(self)
        reader = cast(FormulaReader, self.labels.read)
        vars(model)["design"] = design(
            type(self).__name__, reader.learned_from(seen), self.intercept
        )[0]
        return _copy_to_memory(model)

    # the shape of θ: [params], or [outputs, params_per_output]

    @property
    def num_units(self) -> int:
        return self.design.shape[0]

    @property
    def num_features(self) -> int:
        return self.design.shape[1] - self.intercept

    @property
    def per_row(self) -> Shape:
        """Shape of the predictors of one row: a number, or one of each class."""
        return (len(self.classes),) if self.classes else ()

    @property
    def row_weights(self) -> ndarray:
        """Sample weights, one each where there are none."""
        if self.sample_weight is None:
            return np.ones(self.num_units)
        return self.sample_weight

    @property
    def own(self) -> int:
        """Number of parameters that all units share."""
        return self.loss_function.own

    @property
    def outputs(self) -> int:
        return max(1, len(self.classes)) + self.own

    @property
    def parameters(self) -> Parameters:
        loss: Any = self.loss_function
        tau = lambda theta: theta[len(theta) - self.own :]
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=self._start,
            names=self._names,
            symmetries=self._symmetries,
            penalty_curvature=self._penalty_curvature,
            limit=lambda theta: loss.limit(tau(theta)),
            at_limit=lambda theta: (
                np.r_[theta[: -self.own], loss.at_limit(tau(theta))] if self.own else theta
            ),
        )

    def _start(self, seed):
        q = self.design.shape[1]
        if self.classes:
            return np.zeros((len(self.classes), q))
        weight = np.asarray(self.row_weights)
        loss_start = self.loss_function.start(np.asarray(self.y), weight)
        if self.own:
            start, tau = loss_start
        else:
            start = loss_start
            tau = []
        theta = np.r_[np.zeros(q), tau]
        if self.intercept:
            theta[q - 1] = start - (
                0.0 if self.offset is None else np.average(self.offset, weights=weight)
            )
        return theta

    def _natural(self, theta):
        q = self.design.shape[1]
        natural = {"coef": self._coef(theta)} | self.loss_function.natural(theta[q:])
        if self.intercept:
            return {"intercept": theta[..., q - 1]} | natural
        if self.own:
            return natural
        return {"intercept": np.zeros(theta.shape[:-1])} | natural

    def _to_unconstrained(self, parameters):
        caller = type(self).__name__
        shape = self.per_row
        shared = list(self.loss_function.natural(np.zeros(self.own)))
        if not isinstance(parameters, dict) or {*parameters, "intercept"} != {
            "intercept",
            "coef",
            *shared,
        }:
            expected = ", ".join(map(repr, ["intercept", "coef", *shared]))
            got = sorted(parameters) if isinstance(parameters, dict) else type(parameters).__name__
            raise ValueError(f"{caller}: parameters are {{{expected}}}; got {got}.")
        coef = np.asarray(parameters["coef"], float)
        intercept = np.asarray(parameters.get("intercept", 0.0), float)
        if coef.shape != (*shape, self.num_features):
            raise ValueError(
                f"{caller}: coef must have shape {(*shape, self.num_features)}; got {coef.shape}."
            )
        if not self.intercept and np.any(intercept != 0):
            raise ValueError(f"{caller}: this model has no intercept, yet one was given.")
        parts = [coef]
        if self.intercept:
            parts.append(np.broadcast_to(intercept, shape)[..., None])
        if shared:
            parts.append(self.loss_function.unconstrained(parameters))
        return np.concatenate(parts, -1)

    def _names(self) -> list[str]:
        names = [*self.names, *["intercept"] * self.intercept]
        shared = self.loss_function.natural(np.zeros(self.own))
        shared_names = [
            f"{name} {k}" if np.ndim(value) else name
            for name, value in shared.items()
            for k in range(np.size(value))
        ]
        if self.classes:
            return [f"{c}: {name}" for c in self.classes for name in names]
        return [*names, *shared_names]

    def _penalty_curvature(self, theta):
        kappa = self._weigh(jnp.ones(self.num_units), jnp)[1]
        shape = np.shape(theta)
        return penalties.curvature(
            lambda v: kappa * self.penalty(self._coef(v.reshape(shape))), jnp.ravel(theta)
        )

    def _symmetries(self, theta):
        """Flat directions of F.

        Common shifts of a multinomial's intercepts and, without a penalty, of each coefficient.
        """
        if not self.classes:
            return np.zeros((0, len(theta)))
        K, q = theta.shape
        if isinstance(self.penalty, penalties.Zero):
            free = range(q)
        else:
            free = range(q - self.intercept, q)
        return np.concatenate(
            [
                np.zeros((0, K * q)),
                *(np.kron(np.ones((1, K)), np.eye(q)[[j]]) / np.sqrt(K) for j in free),
            ]
        )

    # F and its parts

    def _coef(self, theta: Array) -> Array:
        return theta[..., : self.num_features]

    def _predictor(self, theta: Array, index) -> Array:
        """Compute z of the listed units, `[width]` or `[width, outputs]`."""
        all_rows = isinstance(self.design, SparseDesign) and (
            isinstance(index, slice) or len(index) == self.num_units
        )
        q = self.design.shape[1]
        x = cast(Array, self.design) if all_rows else pick(self.design, index)
        if not self.own:
            return x @ theta.T + shift(self.offset, index)
        eta = x @ theta[:q] + shift(self.offset, index)
        return jnp.concatenate([eta[:, None], jnp.broadcast_to(theta[q:], (len(eta), self.own))], 1)

    def _unit_losses(self, z: Array, index, order: int = 0) -> Array:
        """Compute ℓ of the listed units, or a derivative of it in z."""
        loss: Callable[..., Array] = self.loss_function
        function = loss
        if self.own:
            function = lambda z, y: loss(z[0], z[1:], y)
        for _ in range(order):
            function = jax.jacfwd(function)
        return jax.vmap(function)(z, pick(self.y, index))

    def _times_weight(self, value: Arrays, index) -> Arrays:
        """Multiply values of the listed units, `[width, ...]`, by their sample weights, if there
        are any.
        """
        if self.sample_weight is None:
            return value
        return times(pick(self.sample_weight, index), value)

    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        omega, kappa = self._weigh(weights, jnp)
        z = self._predictor(theta, EVERYONE)
        # a row of weight zero may lie outside the domain of ℓ, and must not enter F or its
        # derivatives
        out = omega == 0
        if z.ndim > 1:
            out = out[:, None]
        z = jnp.where(out, self.loss_function.inside, z)
        return omega @ self._unit_losses(z, EVERYONE) + kappa * self.penalty(self._coef(theta))

    def hessian(self, theta: PyTree, weights: UnitWeights) -> Hessian:
        omega, kappa = self._weigh(weights, jnp)
        curvature = self._unit_losses(self._predictor(theta, EVERYONE), EVERYONE, 2)
        return self._gram(self.design, times(omega, curvature)) + kappa * self._penalty_hessian(
            theta
        )

    def preconditioner(self, theta: PyTree, weights: UnitWeights) -> tuple[DiagonalBlocks, ...]:
        """Blocks of the Hessian for single classes."""
        model = self.predictors
        if not self.classes or model is None:
            return ()
        (omega,), (kappa,) = model.weigh(np.asarray(weights)[None])
        (curvature,) = model.loss.derivatives(model.eta(np.ravel(theta)[None])[0], self.y, (2,))
        blocks = model.design.blocks(omega, curvature)
        entries = np.arange(model.penalty.shape[0]).reshape(self.outputs, -1)
        return (
            DiagonalBlocks(
                entries, blocks + kappa * model.penalty[entries[:, :, None], entries[:, None, :]]
            ),
        )

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: UnitIndex,
        held: PerListed,
    ) -> Array:
        return self._unit_losses(self._predictor(theta, index), index)

    def perturbation(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Scalar:
        if self.class_code is not None:  # every row's weight changes with the size of its class
            return super().perturbation(theta, index, delta)
        index, delta = self._touched_units(index, delta)
        omega = self._times_weight(delta, index)
        value = jnp.asarray(omega @ self._unit_losses(self._predictor(theta, index), index))
        if self.low_rank:
            return value
        return value + self.penalty(self._coef(theta)) * self.penalty.times(delta, omega)

    def hessian_change(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Hessian:
        if self.class_code is not None:
            return super().hessian_change(theta, index, delta)
        index, delta = self._touched_units(index, delta)
        change = self._gram(
            pick(self.design, index), times(delta, self.derivative(theta, index, 2))
        )
        if self.low_rank:
            return change
        return change + self._penalty_hessian(theta) * self.penalty.times(
            delta, self._times_weight(delta, index)
        )

    def _touched_units(self, index: Arrays, delta: Arrays) -> tuple[Any, Arrays]:
        """Return the touched units and their δ, zero for padding; all units are not gathered."""
        n = self.num_units
        if len(index) == n:
            return EVERYONE, delta
        return index, jnp.where(index < n, delta, 0.0)

    def _gram(self, x, curvature: Arrays) -> Array:
        """`Σ_n U_nᵀ C_n U_n` of rows `x`."""
        if not self.own:
            return gram(x, curvature)
        across = (curvature[:, 0, 1:].T @ x).T
        return jnp.block(
            [[gram(x, curvature[:, 0, 0]), across], [across.T, curvature[:, 1:, 1:].sum(0)]]
        )

    def _penalty_hessian(self, theta: Array) -> Array:
        return jax.hessian(lambda v: self.penalty(self._coef(v.reshape(theta.shape))))(
            theta.reshape(-1)
        )

    def predict(
        self,
        theta: PyTree,
        weights: UnitWeights,
        index: UnitIndex,
        kind: str,
    ) -> Arrays:
        z = self._predictor(theta, index)
        if self.own:
            eta, *tau = z[:, 0], theta[self.design.shape[1] :]
        else:
            eta, *tau = (z,)
        if kind == "link":
            return eta
        return self.loss_function.inverse_link(eta, *tau)

    def reading(self, read: UnaryFunction, labels: Names, names: Strings = ()) -> Self:
        """Copy the model for a host that builds its columns from data itself.

        `read` builds those of new rows. `labels` are those of the rows, and `names` those of the
        columns, if these have none yet.
        """
        out = copy.copy(self)
        index = self.labels.index
        if index is None:
            index = labels.index
        classes = getattr(read, "classes", self.labels.classes)
        name = self.labels.name or labels.name
        vars(out)["labels"] = Names(index, read, classes, labels.table, name)
        if names:
            vars(out)["names"] = names + self.names[len(names) :]
        return out

    def new_rows(self, caller: str, X: Any) -> RowCoefficients | SparseDesign:
        """Read rows to be predicted, other than those of the design."""
        if self.labels.read is not None:
            X = self.labels.read(X)
        return self.coordinates(new_rows(caller, X, self.names, self.intercept))

    @property
    def as_given(self) -> Any:
        """The model on the columns as they were given."""
        return self

    def coordinates(self, rows: Any) -> Any:
        """Rows of the columns as given, in the coordinates of θ."""
        return rows

    # the fast path

    @property
    def low_rank(self) -> bool:
        return self.class_code is None and not isinstance(self.penalty, penalties.PerWeight)

    @property
    def smooth(self) -> bool:
        return self.loss_function.smooth

    def rows(self, index: UnitIndex) -> Float[Array, "width outputs params"]:
        x = pick(self.design, index)
        if self.classes:
            return jnp.einsum("kl,nq->nklq", jnp.eye(self.outputs), x).reshape(
                len(index), self.outputs, -1
            )
        identity = jnp.pad(jnp.eye(self.own), ((1, 0), (x.shape[1], 0)))
        return jnp.pad(x[:, None, :], ((0, 0), (0, self.own), (0, self.own))) + identity

    def derivative(self, theta: PyTree, index: UnitIndex | slice, order: int) -> Arrays:
        return self._times_weight(
            self._unit_losses(self._predictor(theta, index), index, order), index
        )

    def crossings(self, start: PyTree, end: PyTree) -> Scalar:
        if self.smooth or self.classes:
            return jnp.zeros(())
        # ℓ″ at 17 points between: the change of a smooth loss is spread over the pieces, that of a
        # kink is in one
        between = jnp.linspace(self._predictor(start, EVERYONE), self._predictor(end, EVERYONE), 17)
        curvature = jax.vmap(lambda z: self._unit_losses(z, EVERYONE, 2))(between)
        if self.own:
            curvature = curvature[..., 0, 0]
        spread = curvature.max(0) - curvature.min(0)
        jump = jnp.abs(jnp.diff(curvature, axis=0)).max(0)
        return jnp.sum((jump > 0.5 * spread) & (spread > 0.05 * jnp.abs(curvature).max(0)))

    @property
    def lines(self) -> DenseDesign | SparseDesign | MappedDesign | Resident:
        """The rows of the design, as refits of them are computed."""
        if isinstance(self.design, ndarray):
            return DenseDesign(self.design)
        return self.design

    @property
    def predictors(self) -> Predictors | None:
        function = self.loss_function
        curved = self.penalty.curved_terms(self.num_features)
        if not function.convex or curved is None or (self.classes and len(curved.rows)):
            return None
        # without these nothing can be proved
        if function.self_concordance is None and function.peak(self.y) is None:
            return None
        pad = self.design.shape[1] - self.num_features
        offset = self.offset
        wide = self.num_features > PRODUCTS_FROM and not self.classes
        diagonal = None
        if wide:
            diagonal = self.penalty.diagonal(self.num_features)
        matrix: Any = self.penalty.second(self.num_features) if diagonal is None else diagonal
        if pad:
            matrix = np.pad(matrix, (0, pad))
        if diagonal is not None:
            matrix = scipy.sparse.diags_array(matrix, format="csr")
        rows: DenseDesign | SparseDesign | MappedDesign | Resident | MultiOutputDesign = self.lines
        loss: Loss = function
        if self.classes:
            matrix = np.kron(np.eye(self.outputs), matrix)
            rows = MultiOutputDesign(self.lines, self.outputs)
        elif len(curved.rows):
            rows = self.lines.below(np.pad(curved.rows, ((0, 0), (0, pad))))
            loss = StackedLoss(function, curved.loss, (self.num_units, len(curved.rows)))
            if offset is not None:
                offset = np.append(offset, np.zeros(len(curved.rows)))
        weigh = partial(self._weigh_rows, penalty_weights=curved.weight)
        norms = self.penalty.norms(self.num_features)
        if norms is not None:
            norms = norms.pad(pad)
        return Predictors(
            rows,
            0.0 if offset is None else offset,
            self.y,
            function,
            loss,
            matrix,
            weigh,
            self.low_rank,
            function.inverse_link,
            norms=norms,
        )

    def _weigh_rows(self, weights: ndarray, penalty_weights: ndarray) -> TwoArrays:
        """Compute ω and κ of many refits.

        ω of the penalty's rows, which is κ times theirs, follows that of the units.
        """
        omega, kappa = self._weigh(weights)
        if len(penalty_weights):
            omega = np.concatenate([omega, np.multiply.outer(kappa, penalty_weights)], 1)
        return omega, kappa

    def _weigh(self, weights, xp=np) -> AnyPair:
        """Compute ω and κ of one refit or of many, in NumPy or in JAX."""
        omega = weights
        if self.sample_weight is not None:
            omega = weights * self.sample_weight
        kappa = xp.broadcast_to(self.penalty.times(weights, omega), omega.shape[:-1])
        if self.class_code is not None:
            member = self.class_code == np.arange(self.is_balanced)[:, None]
            total = omega @ member.T
            seen = xp.maximum((total > 0).sum(-1, keepdims=True), 1)
            share = omega.sum(-1, keepdims=True) / (seen * xp.where(total > 0, total, 1.0))
            omega = omega * share[..., self.class_code.astype(int)]
        return omega, kappa

    # the contract of an objective

    @property
    def convex(self) -> bool:
        return self.loss_function.convex and not isinstance(self.penalty, penalties.Custom)

    def _distribution(self):
        variance = lambda: ResidualVariance(
            self.lines, self.y, self.offset, self.sample_weight, self.loss_function
        )
        if self.class_code is not None:
            return distribution(self.loss_function, self.scale)
        return distribution(self.loss_function, self.scale, variance)

    @property
    def units(self) -> Units:
        observed: NamedValues = {
            "target" if self.loss_function.has_response else "response": self.y
        }
        return Units(
            **observed,
            names=self.labels.index,
            weight=self.sample_weight,
            classes=classes(self.loss_function, len(self.classes), self.scale),
            distribution=self._distribution,
            features=partial(by_name, self.design, self.names),
            score=self.scale,
        ).measured_as(self.labels.response)

    @property
    def note(self) -> str:
        return join_remarks(self.remark, self.loss_function.remark)


def _are_trials(loss: losses.AbstractLoss, y: ndarray, weight: ndarray) -> bool:
    """Tell whether weights of proportions are their numbers of trials, as in R.

    With them successes are whole numbers.
    """
    successes = weight * y
    # proportions are rounded
    return (isinstance(loss, losses.Binomial) and bool((y % 1).any())) and np.allclose(
        successes, np.rint(successes), rtol=0, atol=1e-6
    )


class GLM(AbstractRegression):
    """Generalised linear model: a sum of losses of rows plus a penalty.

        F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀcoef + intercept + o_n, y_n) + R(coef),
        s sample weights, o offsets

    A unit is a row. Leaving it out removes it with all its sample weight. `fit(...).parameters` is
    `{"intercept", "coef"}`: a number and `[features]`, or `[classes]` and `[classes, features]` for
    the multinomial loss.

    Parameters
    ----------
    X : array, DataFrame, sparse matrix or device array, shape (units, features), or str
        Rows. Names of the columns of a DataFrame are kept; an array on a device stays there. Or a
        formula, such as "y ~ x * site + bs(age, 4)", which formulaic reads. What its calls learn,
        such as knots, `cross_validate` and `cross_predict` learn anew from the rows of each refit;
        other functions take what all rows gave. Results say so.
    y : array, shape (units,), or DataFrame
        Responses, or labels of classes for "multinomial"; of a binary loss also two labels, the
        second of which is the event. The table of a formula.
    loss : str, loss of lo.losses or callable
        Name such as "squared", "logistic", "poisson" or "multinomial", or the one of its
        distribution, such as "gaussian" or "binomial"; an object; or a JAX function
        `(linear_predictor, y) -> scalar`.
    penalty : penalty of lo.penalties, callable or None, default: None
        Penalty on the coefficients; a callable is a JAX function of them. The intercept is not
        penalised.
    sample_weight : array, shape (units,), or str, optional
        Weights s, zero or more, or the column of a formula's table. The default is one each.
    offset : array, shape (units,) or (units, classes), or str, optional
        Constants o that are added to the linear predictors, or the column of a formula's table.
    intercept : bool, default: True
        Whether there is an intercept.
    class_weight : {"balanced"} or None, default: None
        "balanced" multiplies the weights of each class by `Σw / (K Σ_class w)`, which is recomputed
        in every refit.
    remark : str, default: ""
        Sentence to print with results.
    trials : array, shape (units,), or str, optional
        Denominators m of binomial proportions y, which multiply the weights: the loss is that of
        one trial.
    weights : array, shape (units,), or str, optional
        Another name of `sample_weight`.
    absorb : str, list of str, array or DataFrame of labels, optional
        Factors whose levels have effects that are eliminated and not returned, as columns of the
        table or as labels of the rows, `[units]` or `[units, factors]`; a formula has them behind a
        bar, "y ~ x | state + year". Under a loss with |ℓ‴| ≤ M ℓ″ for a constant M ("squared",
        which need not be named, "poisson", "logistic", `NegativeBinomial(2.0)`) and no penalty.
        Fits, refits and standard errors of the coefficients are those with a column for each level,
        at the cost of the coefficients alone. Rows of separated levels get weight zero, with a
        warning: those whose counts are all zero, or whose events are all alike. A row is not scored
        by a refit in which its level has no effect left. The model is no `GLM` then, and has no
        intercept. `lo.predict` takes new rows as a table that has the factors by name; those of an
        array are absorb0, absorb1, ….

    Raises
    ------
    ValueError
        If labels of the arguments differ, values are missing or infinite, lengths differ, weights
        are negative, or y lies outside the domain of the loss.
    TypeError
        If an argument holds no numbers.

    See Also
    --------
    Regression : Losses with parameters of their own, such as a dispersion.
    Additive : Smooth functions of columns.
    Cox : Proportional hazards.

    Notes
    -----
    Arguments with labels (Series, DataFrame) are put into the order of X by their labels.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = rng.poisson(np.exp(0.5 * X[:, 0]))
    >>> fit = lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(1.0)))
    >>> fit.parameters["coef"].round(2)
    array([ 0.55, -0.07])
    >>> round(lo.cross_validate(fit, lo.leave_one_out()).mean, 3)
    1.427

    A formula, whose response has two labels:

    >>> import pandas as pd
    >>> data = pd.DataFrame(X, columns=["dose", "age"]).assign(well=np.where(y > 1, "yes", "no"))
    >>> model = lo.GLM("well ~ dose + age", data, "logistic")
    >>> model.names, model.note
    (('dose', 'age'), 'y is 1 where it is yes and 0 where it is no')

    Absorbed effects:

    >>> data = data.assign(count=y, site=np.arange(60) % 12)
    >>> fit = lo.fit(lo.GLM("count ~ dose | site", data, "poisson"))
    >>> fit.objective.note
    '12 effects of site absorbed'
    >>> fit.covariance("CRV3", groups="site").standard_errors.round(3).tolist()
    [0.123]
    """

    @float64
    def __init__(
        self,
        X: ArrayLike | str,
        y: Any,
        loss: str | losses.AbstractLoss | AnyFunction,
        penalty: penalties.AbstractPenalty | AnyFunction | None = None,
        *,
        sample_weight: ArrayLike | str | None = None,
        offset: ArrayLike | str | None = None,
        intercept: bool = True,
        class_weight: Literal["balanced"] | None = None,
        remark: str = "",
        trials: ArrayLike | str | None = None,
        weights: ArrayLike | str | None = None,
        absorb: Any = None,
    ):
        # `__new__` makes another model where effects are absorbed
        resolve = lambda y: (losses.resolve(loss), y, ())
        self._bind(
            X,
            y,
            resolve,
            penalty,
            sample_weight,
            offset,
            intercept,
            class_weight,
            remark,
            trials,
            weights,
        )


class Regression(AbstractRegression):
    """Regression whose loss has parameters of its own, estimated with the coefficients: a
    dispersion, scale, shape, thresholds.

        F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀcoef + intercept + o_n, τ, y_n) + R(coef),
        θ = (intercept, coef, τ)

    `fit(...).parameters` is `{"intercept", "coef"}` and the loss's own: `dispersion`, `precision`,
    `scale`, `shape` or `thresholds`. Parameters of the loss are not penalised. A unit is a row.

    Parameters
    ----------
    X : array, DataFrame or sparse matrix, shape (units, features), or str
        Rows, or a formula, as of `GLM`.
    y : array, shape (units,), or DataFrame
        Responses, or the table of a formula. For "ordinal" they are numbers or an ordered
        categorical; the thresholds take the place of an intercept.
    loss : str or loss of lo.losses
        "negative_binomial", "beta", "ordinal", "gaussian", "gamma", "huber_scale", or an object
        such as `lo.losses.NegativeBinomialDispersion()`.
    penalty : penalty of lo.penalties or None, default: None
        Penalty on the coefficients. It must be smooth.
    sample_weight : array, shape (units,), or str, optional
        Weights s, zero or more, or the column of a formula's table. The default is one each.
    offset : array, shape (units,), or str, optional
        Constants o that are added to the linear predictors, or the column of a formula's table.
    intercept : bool, default: True
        Whether there is an intercept.
    remark : str, default: ""
        Sentence to print with results.
    weights : array, shape (units,), or str, optional
        Another name of `sample_weight`.

    Raises
    ------
    ValueError
        If values are missing or infinite, lengths differ, weights are negative, or y lies outside
        the domain of the loss.
    TypeError
        If the loss has no parameters of its own, or an ordinal y has no order.

    See Also
    --------
    GLM : Losses without parameters of their own.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(80, 1))
    >>> y = 1 + 2 * x[:, 0] + 0.5 * rng.normal(size=80)
    >>> fit = lo.fit(lo.Regression(x, y, "gaussian"))
    >>> {name: np.round(value, 2).tolist() for name, value in fit.parameters.items()}
    {'coef': [1.96], 'intercept': 0.96, 'scale': 0.48}
    """

    @float64
    def __init__(
        self,
        X: ArrayLike | str,
        y: Any,
        loss: str | losses.AbstractSharedLoss,
        penalty: penalties.AbstractPenalty | None = None,
        *,
        sample_weight: ArrayLike | str | None = None,
        offset: ArrayLike | str | None = None,
        intercept: bool = True,
        remark: str = "",
        weights: ArrayLike | str | None = None,
    ):
        ordinal = isinstance(loss, str) and losses.name_among(loss, ("ordinal",)) == "ordinal"
        resolve = _ordinal if ordinal else lambda y: (losses.resolve_shared(loss), y, ())
        self._bind(
            X, y, resolve, penalty, sample_weight, offset, intercept, None, remark, None, weights
        )


def _copy_to_memory(model: Any):
    """Copy rows that are mapped or on a device into memory, where the computation needs them there.

    This is needed for mapped rows that JAX has to see, for coordinate descent, and for models that
    standardise the rows.
    """
    if isinstance(model.design, MappedDesign | Resident):
        derived = isinstance(model.design, MappedDesign) and (
            type(model) is Regression or model.predictors is None
        )
        if (
            derived
            or type(model) not in (GLM, Regression)
            or model.num_features > PRODUCTS_FROM
            or model.penalty.has_kinks
        ):
            vars(model)["design"] = as_stored(model.design)
    return model


def _two_labels(caller: str, y, loss: losses.AbstractLoss) -> tuple[Any, AnyTuple]:
    """Return the two labels of a binary y as zero and one, and the labels.

    Any other y as it is, and none.
    """
    kind = ""
    are_numbers = isinstance(y, ndarray) and y.dtype.kind in PLAIN
    if np.ndim(y) == 1 and isinstance(loss, losses.Binomial) and not are_numbers:
        kind = pd.api.types.infer_dtype(y, skipna=True)
    if kind not in ("string", "categorical"):
        return y, ()
    code, levels = codes(caller, "y", y)
    if len(levels) != 2:
        raise ValueError(
            f"{caller}: y has {len(levels)} labels, and this loss takes two, or numbers; the loss 'multinomial' takes more."
        )
    return code.astype(float), tuple(levels.tolist())


def _class_codes(caller: str, y: ArrayLike, n: int) -> tuple[ndarray, tuple]:
    """Number the class of each unit; return the numbers and the classes."""
    if np.shape(y) != (n,):
        raise ValueError(
            f"{caller}: y must have one value for each of the {n} rows of X; got shape {np.shape(y)}."
        )
    code, classes = codes(caller, "y", y)
    if len(classes) < 2:
        raise ValueError(f"{caller}: y has one class only; two or more are needed.")
    return code, tuple(classes.tolist())


def _ordinal(y: ArrayLike) -> tuple[losses.Ordinal, ndarray, tuple]:
    """Return the ordinal loss, the number of each unit's level, and the levels in order."""
    categories: Any = getattr(y, "cat", y)
    names = None
    if getattr(categories, "ordered", False):
        names = np.asarray(categories.categories)
    if names is not None:
        array = np.where(categories.codes < 0, np.nan, categories.codes)
    else:
        try:
            array = numbers("Regression", "y", y)
        except TypeError as error:
            raise TypeError(
                "Regression: an ordinal y needs an order of its levels: give numbers, or pd.Categorical(..., ordered=True). "
                f"{error}"
            ) from None
    all_finite("Regression", "y", array)
    levels, code = np.unique(array, return_inverse=True)
    labels = levels
    if names is not None:
        labels = names[levels.astype(int)]
    return losses.Ordinal(len(levels)), code.astype(float), tuple(labels.tolist())
