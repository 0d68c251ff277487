"""Model whose penalty has kinks or bounds, a `GLM` or `Cox`, and the smooth model on the
coefficients that are not at them.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + o_n, y_n) + κ(w) (½ Σ_j ridge_j β_j² + Σ_j a_j |β_j|),
    or Σ_g a_g ‖β_g‖ as the last term

Let S be the columns of the coefficients that are at no kink and no bound, and σ their signs. F on
them is smooth, with the penalty `½ Σ_S ridge_j β_j² + Σ_S a_j σ_j β_j`; coefficients at bounds are
part of the offset. It has the minimum of F if the rest of the gradient holds the other coefficients
(|∇_j| ≤ κ a_j at zero), and every β_j keeps its sign and stays between its bounds (Karush, Kuhn &
Tucker). The norms of groups that are not zero are smooth, and ‖∇_g‖ ≤ κ a_g holds the other groups.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from ..._runtime import NamedValues, NumpyArray, RowCoefficients, ThreeArrays, jnp, record, static
from ...data import join_remarks
from ...linalg import Norms, Predictors, SparseDesign
from ...objectives import Vector
from ..survival.cox import Cox
from . import penalties
from .glm import GLM, AbstractRegression

# of parameters of the whole model that no kink and no bound holds
Places = Int[ndarray, " active"]
PerPlace = Float[ndarray, " active"]


@record
class FullModel:
    """The model of all columns.

    Its smooth part as data, and `slope`, a of every parameter, zero where there is no kink.
    """

    model: Any

    @property
    def num_features(self) -> int:
        return len(self.model.names)

    @cached_property
    def slope(self) -> Vector:
        return _append_intercept(self.model, self.model.penalty.kinks(self.num_features))

    @cached_property
    def bounds(self) -> tuple[Vector, Vector]:
        low, high = self.model.penalty.bounds(self.num_features)
        return _append_intercept(self.model, low, -np.inf), _append_intercept(
            self.model, high, np.inf
        )

    @cached_property
    def norms(self) -> Norms | None:
        """Groups of parameters whose norms are penalised."""
        groups = self.model.penalty.norms(self.num_features)
        if groups is None:
            return None
        return groups.pad(len(self.slope) - self.num_features)

    @cached_property
    def ridge(self) -> Vector:
        return _append_intercept(self.model, ridge_of(self.model.penalty, self.num_features))

    @cached_property
    def smooth(self) -> Any:
        ridge = penalties.Ridge(self.ridge[: self.num_features])
        return self.model.under(around(self.model.penalty, ridge)).predictors

    @cached_property
    def largest(self) -> Vector:
        """max_n |x_nj|."""
        return np.maximum(self.model.design.max(0), -self.model.design.min(0))

    def restrict(
        self,
        place: Places,
        sign: PerPlace,
        theta: Vector,
        text: str = "",
    ) -> Any:
        """Restrict the model to some of the parameters, with the given signs.

        The others keep their values in θ.
        """
        fixed_values = theta.copy()
        fixed_values[place] = 0.0
        return self.active_class(self, (place, sign, fixed_values), text)

    @property
    def active_class(self) -> type:
        """Class of the model on some of the parameters."""
        return ActiveGLM

    def spread(self, theta: Any, place: Places, fixed_values: Vector) -> Any:
        """θ of the whole model, from some of its parameters and the values of the others."""
        xp = np if isinstance(theta, ndarray) else jnp
        index = np.full(len(self.slope), len(place))
        index[place] = np.arange(len(place))
        return (
            xp.concatenate([theta, xp.zeros((*theta.shape[:-1], 1))], -1)[..., index] + fixed_values
        )

    def tilt(
        self, place: Places, sign: PerPlace
    ) -> tuple[Float[ndarray, " own"], penalties.AbstractPenalty]:
        """Slopes of the kinks of some coefficients, and the smooth penalty on these."""
        features = place[place < self.num_features]
        slope = self.slope[features] * sign[: len(features)]
        if self.norms is None:
            norms = Norms(np.zeros(0), np.zeros((0, len(features)), bool))
        else:
            norms = self.norms.select(features)
        penalty = self.model.penalty
        return slope, around(
            penalty,
            penalties.Tilted(penalty, slope, self.ridge[features], norms.weight, norms.member),
        )

    def start(self) -> Vector:
        """Start of a fit: every coefficient with a kink at zero, or at the nearest bound."""
        return np.clip(np.where(self.slope > 0, 0.0, self.model.parameters.start(0)), *self.bounds)

    def parameter_name(self, place: int) -> str:
        """Name of a parameter, by its place in θ."""
        return (*self.model.names, "intercept")[place]

    def __getstate__(self) -> NamedValues:
        return {"model": self.model}


@record
class FullCox(FullModel):
    """The Cox model of all columns; its smooth part is a `Cox` under a ridge."""

    @cached_property
    def smooth(self) -> Cox:
        return self.model.under(around(self.model.penalty, penalties.Ridge(self.ridge)))

    @property
    def active_class(self) -> type:
        return ActiveCox


@record
class Columns(Predictors):
    """The model on some of the columns, which also takes θ of all."""

    whole: Predictors

    def unit_predictors(
        self, units: Int[NumpyArray, "refits width"], theta: Float[NumpyArray, "refits params"]
    ) -> Float[NumpyArray, "refits width ..."]:
        if theta.shape[-1] == self.design.shape[1]:
            return super().unit_predictors(units, theta)
        return self.whole.unit_predictors(units, theta)


class ActiveModel:
    """Model on the coefficients that its penalty, one with kinks or bounds, does not hold; natural
    parameters are of all.

    θ has one entry for each of `place`, numbers of the parameters of the whole model; `sign` is
    zero where there is no kink; `rest` has the values of the others, and is zero at `place`.
    """

    whole: Any
    place: Places
    rest: Vector
    summary: str

    def _restrict(
        self,
        full_model: FullModel,
        active: ThreeArrays,
        text: str,
        **new,
    ) -> None:
        """Take the fields of the whole model, but for those that are `new`."""
        model = full_model.model
        place, sign, fixed_values = active
        if fixed_values.any():
            new["offset"] = model.design @ fixed_values
            if model.offset is not None:
                new["offset"] += model.offset
        new |= {"whole": full_model, "place": place, "sign": sign, "rest": fixed_values}
        vars(self).update(vars(model) | new | {"summary": text})

    def under(self, penalty: penalties.PenaltyLike) -> Any:
        """Copy the whole model with another penalty."""
        return self.whole.model.under(penalty)

    def spread(self, theta: Any) -> Any:
        """θ of the whole model."""
        return self.whole.spread(theta, self.place, self.rest)

    @property
    def note(self) -> str:
        return join_remarks(self.summary, super().note)  # type: ignore[misc]


class ActiveGLM(ActiveModel, GLM):
    """A `GLM` on the coefficients that its penalty does not hold."""

    shown = "GLM"
    whole: FullModel = static()
    place: Places
    sign: PerPlace
    rest: Vector
    summary: str = static()

    def __init__(self, full_model: FullModel, active: ThreeArrays, text: str):
        glm = full_model.model
        place, sign, _ = active
        features = place[place < glm.num_features]
        slope, penalty = full_model.tilt(place, sign)
        full_rows = glm.design  # a model with kinks copies its rows into memory
        n = len(full_rows)
        rows = np.zeros((len(full_rows) + 1, len(place)), full_rows.dtype)
        # in the layout of `predictors`, so that one copy of the columns serves both
        rows[n, : len(features)] = slope
        np.take(full_rows, place, axis=1, out=rows[:n], mode="clip")
        names = tuple(glm.names[j] for j in features)
        self._restrict(full_model, active, text, design=rows[:n], penalty=penalty, names=names)

    @property
    def predictors(self) -> Predictors | None:
        model = super().predictors
        if model is None:
            return None
        return Columns(**vars(model), whole=self.whole.smooth)

    @property
    def as_given(self) -> GLM:
        return self.whole.model.as_given

    def _natural(self, theta):
        if theta.shape[-1] != len(self.whole.slope):
            theta = self.spread(theta)
        return self.whole.model._natural(theta)

    def _to_unconstrained(self, parameters):
        return self.whole.model._to_unconstrained(parameters)[..., self.place]

    def new_rows(self, caller: str, X: Any) -> RowCoefficients | SparseDesign:
        return self.whole.model.new_rows(caller, X)


class ActiveCox(ActiveModel, Cox):
    """A `Cox` on the coefficients that its penalty does not hold.

    Losses and predictions also take θ of all.
    """

    shown = "Cox"
    whole: FullCox = static()
    place: Places
    sign: PerPlace
    rest: Vector
    summary: str = static()

    def __init__(self, full_model: FullCox, active: ThreeArrays, text: str):
        cox = full_model.model
        place, sign, _ = active
        design = cox.design[:, place]
        penalty = full_model.tilt(place, sign)[1]
        names = tuple(cox.names[j] for j in place)
        self._restrict(full_model, active, text, design=design, penalty=penalty, names=names)

    def _model_of(self, theta):
        if theta.shape[-1] == len(self.place):
            return self
        return self.whole.smooth

    def _natural(self, theta):
        return {"coef": theta if theta.shape[-1] == len(self.rest) else self.spread(theta)}

    def _to_unconstrained(self, parameters):
        return self.whole.model._to_unconstrained(parameters)[self.place]

    def _predict_new(self, fit, X, kind, offset):
        return self.whole.model._predict_new(fit, X, kind, offset)


class Kinks(NamedTuple):
    """Model of all columns under a penalty with kinks or bounds and, for a fit, the parameters that
    these do not hold.
    """

    whole: FullModel
    place: Places | None = None
    sign: PerPlace | None = None
    rest: Vector | None = None


def kinks(objective: Any) -> Kinks | None:
    """Describe the kinks and bounds in the penalty of an objective; None if F is smooth.

    Raises TypeError if the model or the loss does not support them.
    """
    if isinstance(objective, ActiveGLM | ActiveCox):
        return Kinks(objective.whole, objective.place, objective.sign, objective.rest)
    if not isinstance(objective, AbstractRegression | Cox) or not objective.penalty.has_kinks:
        return None
    if isinstance(objective, Cox):
        full_model = FullCox(objective)
        if full_model.norms is not None:
            raise TypeError(
                "fit: lo.penalties.GroupLasso is for lo.GLM; lo.Cox takes Lasso, ElasticNet, Box and Ridge."
            )
        return Kinks(full_model)
    if isinstance(objective.design, SparseDesign):
        raise TypeError(
            "GLM: an l1 penalty, or a Box, wants dense rows, and X is sparse; give X.toarray(), or lo.penalties.Ridge."
        )
    return Kinks(_full_model(objective))


def _full_model(model) -> FullModel:
    if type(model) is not GLM or model.classes or not model.loss_function.convex:
        kind = type(model).__name__ + (" with several outputs" if model.classes else "")
        raise TypeError(
            "fit: an l1 penalty, or a Box, is supported for lo.Cox, and for lo.GLM with a convex loss of one output; got "
            f"{kind}, {type(model.loss_function).__name__}. Use lo.penalties.Ridge, or the smooth lo.penalties.PseudoHuber."
        )
    full_model = FullModel(model)
    ridge = penalties.Ridge(full_model.ridge[: model.num_features])
    if model.under(around(model.penalty, ridge)).predictors is None:
        raise TypeError(
            f"fit: an l1 penalty, or a Box, needs a loss that declares its self_concordance or the peak of its second "
            f"derivative; {type(model.loss_function).__name__} does not."
        )
    return full_model


def around(
    penalty: penalties.AbstractPenalty, inner: penalties.AbstractPenalty
) -> penalties.AbstractPenalty:
    """Wrap another penalty so that it grows with the weights as this one does."""
    if isinstance(penalty, penalties.PerWeight):
        return penalties.PerWeight(inner, penalty.rows)
    return inner


def ridge_of(penalty: penalties.AbstractPenalty, features: int) -> penalties.PerFeature:
    """Strengths of the ridge `½ Σ_j ridge_j β_j²` beside the kinks.

    TypeError if the rest of the penalty is not a ridge.
    """
    inner = penalty.penalty if isinstance(penalty, penalties.PerWeight) else penalty
    terms = penalties.terms_of(inner)
    kinds = penalties.Ridge | penalties.Quadratic | penalties.Zero
    groups = [term for term in terms if isinstance(term, penalties.GroupLasso)]
    kinked = (
        penalties.GroupLasso if groups else penalties.Lasso | penalties.ElasticNet | penalties.Box
    )
    kinds |= type(None) if len(groups) > 1 else kinked
    second = sum(
        np.asarray(term.second(features)) if isinstance(term, kinds) else np.nan for term in terms
    )
    if np.ndim(second) != 2 or not np.array_equal(second, np.diag(np.diagonal(second))):
        listed = ", ".join(type(term).__name__ for term in terms)
        raise TypeError(
            f"fit: beside an l1 penalty, one GroupLasso or a Box only Ridge is supported, or a Quadratic that is diagonal; "
            f"got {listed}."
        )
    return np.diagonal(second).copy()


def _append_intercept(model, values: penalties.PerFeature, intercept: float = 0.0) -> Vector:
    if getattr(model, "intercept", False):
        return np.append(values, intercept)
    return values
