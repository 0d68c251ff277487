"""Mixed models by their marginal likelihood: rows, or whole clusters, left out.

    y_i | u ~ family(η_i),      η_i = x_iᵀβ + o_i + Σ_f z_ifᵀu_f,level(i),      u_f,level ~ N(0, Σ_f),      Σ_f = Λ_f Λ_fᵀ

    F(θ, w) = −log ∫ Π_i p(y_i | u)^{w_i} dP(u),      θ = (β, Λ, the family's own)

exact for Gaussian responses, by Laplace's approximation for others, or, with one grouping factor, by adaptive Gauss–Hermite
quadrature (`grouped`, `crossed`). Two questions are possible, and they differ:

    drop="row"       a row is left out, and scored given the seen rows of its clusters: −log p(y_i | everything seen; θ)
    drop="patient"   a cluster is left out with all its rows, and scored as a new one

Λ is not restricted to diagonals above zero: F does not change with the sign of a column, so that a variance at zero
is an ordinary minimum in Λ. Entries that the fit puts at zero are held there in every refit, and refits in which they would
leave zero are flagged (`singular`).
"""

from typing import Any, Literal, Self, cast

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from ..._runtime.jax import Array, Arrays as Arrays, PyTree, float64
from ...data.arrays import count, match_labels, numbers
from ...data.formulas import stateful_remark
from ...objectives.closed_form import Points, State, Weights
from ...objectives.objective import Costs, Parameters, Units
from ..glm.rows import all_finite, column, design
from . import singular as singular
from .base import ROWS, AbstractMixedModel
from .crossed import CrossedFactors
from .effects import EffectBlock, GroupingFactor, align_groupings, factors, given_blocks, read_formula, sharing
from .grouped import split
from .quadrature import marginal_means, with_coefficients
from .responses import Response, ResponseRows, response, ways
from .tables import coefficients, components, modes, predict_rows

NODES = 400  # largest number of nodes of a cluster


class Mixed(AbstractMixedModel):
    """Mixed model, by its marginal likelihood; units are rows or clusters.

        y_i | u ~ family(η_i),      η_i = x_iᵀβ + o_i + Σ_f z_ifᵀu_f,level(i),      u_f,level ~ N(0, Σ_f)

    It is fitted by maximum likelihood, not REML. `fit(...).parameters` is `{"coef", "covariance[patient]", …}` and the family's
    own: `scale`, `shape`, `dispersion`, `thresholds`.

    Parameters
    ----------
    formula : str or array, shape (rows, features)
        Formula as lme4 and bambi write it, such as "y ~ x + (1 + x | patient) + (1 | hospital)"; or columns of the fixed part.
    data : DataFrame or array, shape (rows,)
        Table of a formula; or the response, beside an array.
    family : str or loss of lo.losses, default: "gaussian"
        "gaussian", "binomial" (y zero or one), "poisson", "gamma", "negative_binomial", "ordinal"; or a convex loss that has a
        closed form, such as `lo.losses.Binomial("probit")`.
    drop : str, default: "row"
        Unit that is left out: "row", or the name of a grouping factor.
    score : {"pointwise", "joint"}, optional
        Joint density of a cluster's rows (of rows: one number a refit), or one density a row, summed over those of a cluster.
        The default is "pointwise" for rows and "joint" for clusters.
    quadrature : int, default: 1
        Number of nodes for each effect of a cluster; 1 is Laplace's approximation. More need a single grouping factor.
    groups : array, dict or DataFrame, optional
        Labels of the levels of each row, beside arrays; a dict or a DataFrame holds several groupings. Every level has an
        intercept.
    slopes : array, shape (rows, effects), optional
        Columns whose coefficients vary between levels, beside arrays and one grouping.
    offset : array, shape (rows,), optional
        Constants o that are added to the linear predictors.
    trials : array, shape (rows,), optional
        Denominators of binomial proportions y.
    intercept : bool, default: True
        Whether the fixed part of arrays has an intercept.

    Raises
    ------
    ValueError
        If values or labels are missing, columns of the fixed part are combinations of one another, y lies outside the domain,
        or the levels do not identify a variance.
    TypeError
        If an argument holds no numbers, or X is sparse.

    Examples
    --------
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> patient = np.repeat(np.arange(8), 5)
    >>> x = rng.normal(size=(40, 1))
    >>> y = 1 + x[:, 0] + rng.normal(size=8)[patient] + 0.5 * rng.normal(size=40)
    >>> fit = lo.fit(lo.Mixed(x, y, groups=patient))
    >>> fit.parameters["coef"].round(2)
    array([1.79, 0.97])
    """

    @float64
    def __init__(
        self,
        formula: str | ArrayLike,
        data: Any,
        family: Any = "gaussian",
        *,
        drop: str = ROWS,
        score: Literal["pointwise", "joint"] | None = None,
        quadrature: int = 1,
        groups: Any = None,
        slopes: Any = None,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        intercept: bool = True,
    ):
        if isinstance(formula, str):
            self._refuse(groups=groups, slopes=slopes)
            self.spec = read_formula(formula, data)
            y, X, blocks, known = self.spec.y, self.spec.X, self.spec.blocks, self.spec.codes
            intercept = False
        else:
            self.spec, X, y = None, formula, data
            if groups is None:
                raise ValueError("Mixed: give groups=, one label a row, or a formula with random effects, as (1 | group).")
            named, (X, y, slopes, offset, trials) = align_groupings(
                groups, X=X, y=y, slopes=slopes, offset=offset, trials=trials
            )
            blocks, known = given_blocks(named, slopes, np.shape(X)[0])
        self._bind(X, y, family, blocks, known, drop, score, quadrature, offset, trials, intercept)

    @classmethod
    def of(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        family: Any,
        blocks: tuple[EffectBlock, ...],
        known: dict[str, tuple[np.ndarray, np.ndarray]],
        drop: str = ROWS,
    ) -> Self:
        """Make a model from blocks of effects and the levels of their factors, for a host that reads them itself.

        Parameters
        ----------
        X : array, shape (rows, features)
            Columns of the fixed part.
        y : array, shape (rows,)
            Response.
        family : str or loss of lo.losses
            Family of the response.
        blocks : tuple of Block
            Effects by bar.
        known : dict of tuple of array
            Code of each row, and the levels, by the name of the factor.
        drop : str, default: "row"
            Unit that is left out.

        Returns
        -------
        Mixed
            The model.
        """
        new = object.__new__(cls)
        object.__setattr__(new, "spec", None)
        new._bind(X, y, family, blocks, known, drop, None, 1, None, None, False)
        return new

    def _bind(self, X, y, family, blocks, facts, drop, score, quadrature, offset, trials, intercept):
        self.labels, X, y, offset, trials = match_labels("Mixed", X=X, y=y, offset=offset, trials=trials)
        y, self.levels = _ordinal_levels(family, y)
        own = response(family, y)
        if self.spec is not None and not own.intercept:
            X = X.drop(columns="Intercept", errors="ignore")
        X, self.names = _design(X, intercept and own.intercept)
        n = len(X)
        y = column("Mixed", "y", y, n)
        own.check(y)
        if (y == y[0]).all():
            raise ValueError(f"Mixed: y is {y[0]:g} in every row: there is nothing to tell.")
        self.factors = self.whole = factors(blocks, facts)
        self.unit = float(y.std()) if own.quadratic else 1.0
        self.data, self.transform = self._data(X, y, own, offset, trials)
        self.quadrature, self.joint = count("Mixed: quadrature", quadrature, 1, 101), (score or self._usual(drop)) == "joint"
        self._check(drop, score)
        self.drop = drop
        found = next((factor for factor in self.factors if factor.name == drop), None)
        self.code, self.num = (np.arange(n), n) if found is None else (found.code, len(found.levels))
        for factor in self.factors:
            self._check_levels(factor)
        self.engine = self._make_engine(self.factors)

    @staticmethod
    def _refuse(**given: Any) -> None:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"Mixed: {name}= goes with arrays; a formula says it by (… | group).")

    @staticmethod
    def _usual(drop: str) -> str:
        return "pointwise" if drop == ROWS else "joint"

    def _check(self, drop: str, score: str | None) -> None:
        known = [ROWS, *(factor.name for factor in self.factors)]
        if drop not in known:
            raise ValueError(f"Mixed: drop must be one of {', '.join(map(repr, known))}; got {drop!r}.")
        if score not in (None, "pointwise", "joint"):
            raise ValueError(f'Mixed: score must be "pointwise" or "joint"; got {score!r}.')
        if self.quadrature > 1 and len(self.factors) > 1:
            raise ValueError(
                "Mixed: quadrature= is for one grouping factor; with several leave it at 1, Laplace's approximation."
            )
        nodes = self.quadrature ** self.factors[0].q
        if nodes > NODES:
            raise ValueError(
                f"Mixed: {self.quadrature} nodes in {self.factors[0].q} effects are {nodes} a cluster; take fewer."
            )

    def _check_levels(self, factor: GroupingFactor) -> None:
        """Raise ValueError if the levels of a factor do not identify its variance."""
        count, y = np.bincount(factor.code), self.data.y
        if len(count) < 2:
            raise ValueError(f"Mixed: {factor.name} has one level: no variance can be told from it. Two or more are needed.")
        if self.data.response.quadratic and count.max() == 1:
            raise ValueError(
                f"Mixed: every level of {factor.name} has one row: what varies between its levels cannot be told from what "
                "varies within them. Leave it out; of counts it stands for what scatters more than Poisson's."
            )
        means = np.bincount(factor.code, y) / count
        if self.data.response.title == "binomial" and np.isin(means, (0.0, 1.0)).all():
            raise ValueError(
                f"Mixed: y is all zeros or all ones in every level of {factor.name}: the clusters are separated, and the "
                "likelihood grows with their variance without end (approximations of it do not show that). Model clusters, one "
                "row each."
            )

    def _data(self, X: np.ndarray, y: np.ndarray, own: Response, offset: Any, trials: Any) -> tuple[ResponseRows, np.ndarray]:
        """Return the rows in coordinates of unit size, and the matrix that maps coefficients in these to the natural ones."""
        n, unit = len(y), self.unit
        shift = np.zeros(n) if offset is None else column("Mixed", "offset", offset, n)
        size, fixed = np.ones(n), np.full(n, np.log(unit))
        if trials is not None:
            size = column("Mixed", "trials", trials, n)
            if own.title != "binomial" or (size <= 0).any():
                raise ValueError("Mixed: trials must be positive, and are for binomial proportions.")
            fixed = ways(size * y, size) / size
        length = np.linalg.norm(X, axis=0)
        Q, R = np.linalg.qr(X / np.where(length > 0, length, 1.0))
        # residual of a column, relative to its size, below which it is a combination of the columns before it
        collinear_share = 1e-10
        poor = np.flatnonzero(np.abs(np.diag(R)) <= collinear_share)
        if poor.size or len(R) < X.shape[1]:
            name = self.names[int(poor[0])] if poor.size else self.names[-1]
            raise ValueError(
                f"Mixed: column {name!r} of the fixed part is zero, or a combination of those before it: leave it out."
            )
        back = np.linalg.solve(R, np.eye(len(R))) / length[:, None] * np.sqrt(n) * unit
        return ResponseRows(Q * np.sqrt(n), shift / unit, y / unit, size, fixed, own), back

    # parameters

    @property
    def num_units(self) -> int:
        return self.num

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=self._start,
            canonical=self._canonical,
            names=self._names,
            warning=lambda theta: singular.warning(self, theta),
            limit=lambda theta: self.data.response.limit(split(theta[None], self.data, self.factors).tau[0]),
            held=lambda theta: singular.drop_zero_pivots(self, theta),
            leaving=singular.leaving if self._num_held else None,
        )

    def _natural(self, theta):
        parts, own = split(np.asarray(theta)[None], self.data, self.factors), self.data.response
        found = {"coef": self.transform @ parts.z[0]}
        for factor, free in zip(self.factors, parts.free, strict=True):
            found[f"covariance[{factor.name}]"] = factor.covariance(free[0], self.unit)
        named = own.natural(parts.tau[0])
        return found | {name: value * self.unit if own.quadratic else value for name, value in named.items()}

    def _to_unconstrained(self, natural):
        own = self.data.response
        coef = np.asarray(natural["coef"], np.float64)
        if coef.shape != (len(self.names),):
            raise ValueError(
                f"Mixed: coef must be {len(self.names)} numbers ({', '.join(self.names)}); got shape {coef.shape}."
            )
        free = [factor.free(natural[f"covariance[{factor.name}]"], self.unit) for factor in self.factors]
        named = {name: np.asarray(value) / self.unit if own.quadratic else value for name, value in natural.items()}
        return np.concatenate([np.linalg.solve(self.transform, coef), *free, own.unconstrained(named)])

    def _names(self):
        free = [
            f"Λ[{factor.name}: {factor.columns[i]}{'' if i == j else f', {factor.columns[j]}'}]"
            for factor in self.factors
            for i, j in zip(factor.row, factor.column, strict=True)
        ]
        return [*self.names, *free, *(f"τ[{k}]" for k in range(self.data.response.own))]

    def _canonical(self, theta):
        """Change the signs of columns of Λ so that no diagonal is below zero; F does not change with them."""
        theta, at = np.array(theta, np.float64), self.data.design.shape[1]
        for factor in self.factors:
            free = theta[at : at + len(factor.row)]
            sign = np.ones(factor.q)
            sign[factor.column[factor.diagonal]] = np.where(free[factor.diagonal] < 0, -1.0, 1.0)
            free *= sign[factor.column]
            at += len(factor.row)
        return theta

    def _start(self, seed):
        """Start from approximate coefficients of the model without random effects, and standard deviations around one half.

        A seed draws the deviations around one half.
        """
        data, rng = self.data, np.random.default_rng(seed)
        first, tau = data.response.start(data.y)
        z = _without_effects(data, first, tau)
        draws = (np.exp(0.7 * rng.standard_normal(len(f.row))) if seed else np.ones(len(f.row)) for f in self.factors)
        free = [np.where(f.diagonal, 0.5 * draw, 0.0) for f, draw in zip(self.factors, draws, strict=True)]
        return np.concatenate([z, *free, tau])

    # F

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        state: State = None,
    ) -> Float[np.ndarray, "refits ..."]:
        held = np.asarray(held, bool) & (index < self.num)
        lane, place = np.nonzero(held)
        unit = index[lane, place]
        if self.drop == ROWS and self.joint:
            return super().losses(theta, weights, index, held, state)
        out = np.zeros(held.shape)
        out[lane, place] = self._unit_losses(theta, weights, lane, unit, state)
        return out

    def _unit_losses(self, theta, weights, lane, unit, state):
        """Compute the losses of listed units, each in a refit."""
        if self.drop == ROWS:
            return self.engine.conditional(theta, weights, lane, unit, state)
        return (self.engine.joint if self.joint else self.engine.pointwise)(theta, weights, lane, unit, state)

    def steepest(
        self,
        theta: Points,
        weights: Weights,
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        state: State = None,
    ) -> Points:
        """Compute the gradient of F(θ, w with the held at 1) − F(θ, w).

        Parameters
        ----------
        theta : array of float, shape (refits, params)
            Parameters of each refit.
        weights : array of float, shape (refits, units)
            Weights of the units.
        index : array of int, shape (refits, width)
            Units that a refit touches.
        held : array of bool, shape (refits, width)
            True for units that are held out.
        state : optional
            Start of the search for the modes.

        Returns
        -------
        array of float, shape (refits, params)
            The gradients.
        """
        whole = np.concatenate([weights, np.ones((len(weights), 1))], axis=1)
        refit, place = np.nonzero(np.asarray(held, bool))
        whole[refit, index[refit, place]] = 1.0
        return self.look(theta, whole[:, :-1], state)[1] - self.look(theta, weights, state)[1]

    @property
    def costs(self) -> Costs:
        known = len(self.factors) == 1 or (self.data.response.quadratic and self.pointwise)
        return Costs(work=self.engine.work, runs=self._runs if known else None)

    def _runs(self, like: Any, first: np.ndarray, length: np.ndarray) -> Any:
        """Return the pass over the data that computes the fall of F by leaving out single units, or runs of clusters."""
        if (length > 1).any() and (self.drop == ROWS or not self.joint or not self.engine.apart):
            return None
        if isinstance(self.engine, CrossedFactors):
            return lambda theta: self._alone(np.asarray(theta), first)
        ends = np.cumsum(length)
        run, place = np.repeat(np.arange(len(first)), length), np.arange(ends[-1]) - np.repeat(ends - length, length)
        unit = first[run] + place

        def told(theta: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
            at = np.reshape(theta, (1, -1))
            joint = np.bincount(run, self.engine.taken_away(at, unit), len(first))
            if not self.pointwise:
                return None, joint
            losses = np.zeros((len(first), int(length.max())))
            losses[run, place] = self._unit_losses(at, None, np.zeros(len(unit), np.int64), unit, None)
            return losses, joint

        return told

    def _alone(self, theta: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away, losses = self.engine.alone(theta, unit, self.joint)
        return losses[:, None], away

    @property
    def pointwise(self) -> bool:
        return not (self.drop == ROWS and self.joint)

    def predictions(
        self, theta: Points, weights: Weights, index: Int[np.ndarray, "refits width"], kind: str, state: State = None
    ) -> Float[np.ndarray, "refits width"]:
        """Predict the response of rows, or their linear predictors, given the seen rows of their clusters.

        Parameters
        ----------
        theta : array of float, shape (refits, params)
            Parameters of each refit.
        weights : array of float, shape (refits, units)
            Weights of the units.
        index : array of int, shape (refits, width)
            Units to predict.
        kind : {"response", "link"}
            Response or linear predictor.
        state : optional
            Not used.

        Returns
        -------
        array of float, shape (refits, width)
            The means.

        Raises
        ------
        NotImplementedError
            If a unit is a cluster.
        """
        if self.drop != ROWS:
            raise NotImplementedError(
                f"cross_predict: a unit is a {self.drop}, of many rows. Predict rows as of new clusters by Mixed(..., "
                f'drop="row") and the plan lo.groups({self.drop}).'
            )
        mean, variance, tau = self.engine.predictors(theta, weights)
        place = np.minimum(index, self.num - 1)
        mean, variance = (np.take_along_axis(part, place, 1) for part in (mean, variance))
        return mean * self.unit if kind == "link" else marginal_means(self.data.response, mean, variance, tau) * self.unit

    def predictor_covariance(self, theta: Float[np.ndarray, " params"]) -> Float[np.ndarray, "units units"] | None:
        if self.drop != ROWS:
            return None
        own, bend = self.engine.covariances(np.asarray(theta))
        return with_coefficients(own, self.data.design, bend)

    @property
    def units(self) -> Units:
        rows, y, apart = self.drop == ROWS, self.data.y * self.unit, self.engine.apart
        blocks = None if apart else self.factors[0].code if rows else sharing(self.factors, self.drop)
        levels = next((pd.Index(factor.levels, name=self.drop) for factor in self.factors if factor.name == self.drop), None)
        names, score = self.labels.index if rows else levels, self.data.response.scale(y)
        known: dict[str, Any] = {"serial": not apart, "blocks": blocks, "predict_new": self._predict_new}
        return Units(names=names, target=y if rows else None, score=score, **known)

    def _predict_new(self, fit, data, kind, offset):
        """Predict the mean responses of new rows; new levels are averaged over the population."""
        if kind != "response":
            raise ValueError(f"predict: Mixed predicts the response of new rows, a mean over effects; got kind={kind!r}.")
        found = predict_rows(self, fit, data, 0.9, False, offset)
        return found["mean"].rename("prediction") if "mean" in found else found

    # for users

    @float64
    def predict(
        self,
        theta: PyTree,
        weights: Float[Arrays, " units"] | None = None,
        index: Int[Arrays, " width"] | None = None,
        kind: str = "response",
        *,
        data: Any = None,
        level: float = 0.9,
        new: bool = False,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Predict the mean response of rows, with a central interval of its posterior.

        The posterior is that of the effects and, to first order, of the parameters. Levels that the fit has seen are known by
        their conditional modes. Other levels, and all of them if `new`, are drawn from the population.

        Parameters
        ----------
        theta : Fit or array of float
            Fit of this model.
        weights : array of float, optional
            Weights of the units, for a call with `index`.
        index : array of int, optional
            Units of the model to predict; the call then returns an array of their means.
        kind : {"response", "link"}, default: "response"
            Response or linear predictor, for a call with `index`.
        data : DataFrame or tuple, optional
            New rows: a table with the columns of the formula; for arrays `(X, groups)` or `(X, groups, slopes)`. The default is
            all rows of the model.
        level : float, default: 0.9
            Level of the interval.
        new : bool, default: False
            Whether all levels are taken as new.
        offset : array, optional
            Constants that are added to the linear predictors of new rows.

        Returns
        -------
        pandas.DataFrame
            Mean and bounds of the interval for each row.
        """
        if index is None:
            return predict_rows(self, theta, data, level, new, offset)
        return super().predict(theta, cast(np.ndarray, weights), index, kind)

    @float64
    def components(self, fit: Any) -> pd.DataFrame:
        """Return the variance components: variance, standard deviation and correlations of the effects of each factor.

        Parameters
        ----------
        fit : Fit
            Fit of this model.

        Returns
        -------
        pandas.DataFrame
            A row for each effect of each factor, with its correlations with the effects before it; and, for a Gaussian
            response, a row for the residual.
        """
        return components(self, fit)

    @float64
    def coefficients(self, fit: Any) -> pd.DataFrame:
        """Return the coefficients with standard errors, from the curvature of F in all parameters.

        Parameters
        ----------
        fit : Fit
            Fit of this model.

        Returns
        -------
        pandas.DataFrame
            A row for each coefficient.
        """
        return coefficients(self, fit)

    @float64
    def modes(self, fit: Any) -> pd.DataFrame:
        """Return the conditional modes of the effects of every level, and the standard deviations of their posteriors at θ̂.

        Parameters
        ----------
        fit : Fit
            Fit of this model.

        Returns
        -------
        pandas.DataFrame
            A row for each effect of each level.
        """
        return modes(self, fit)

    @property
    def note(self) -> str:
        how = (
            "exact"
            if self.data.response.quadratic
            else f"{self.quadrature} nodes an effect"
            if self.quadrature > 1
            else "Laplace"
        )
        if self.drop == ROWS:
            what = "a row left out is scored given what is seen of its clusters"
        else:
            by = "the joint density of its rows" if self.joint else "the sum over its rows of their own densities"
            what = f"a {self.drop} left out is scored as a new one, by {by}"
            what += "" if self.engine.apart else ", given everything seen of the others"
        single = [f for f in self.factors if (np.bincount(f.code) == 1).any()]
        alone = "".join(
            f" {np.sum(np.bincount(f.code) == 1)} of {len(f.levels)} levels of {f.name} have one row." for f in single
        )
        zero = f" {self._num_held} entries of Λ held at zero." if self._num_held else ""
        formulas = [] if self.spec is None else [self.spec.fixed_part.formula, *(spec.formula for _, spec in self.spec.effects)]
        said = stateful_remark(" + ".join(map(str, formulas)))
        said = f" {said[:1].upper()}{said[1:]}." if said else ""
        return f'drop="{self.drop}": {what}. Marginal likelihood ({how}), no prior.{zero}{alone}{said}'


def _ordinal_levels(family: Any, y: Any) -> tuple[Any, tuple]:
    """Return y, as numbers of levels for an ordinal family, and the levels."""
    if not (isinstance(family, str) and family.lower() in ("ordinal", "cumulative")):
        return y, ()
    categories: Any = getattr(y, "cat", y)
    if getattr(categories, "ordered", False):
        used, found = np.unique(np.asarray(categories.codes), return_inverse=True)
        return pd.Series(found.astype(float), index=getattr(y, "index", None)), tuple(np.asarray(categories.categories)[used])
    array = numbers("Mixed", "y", y)
    all_finite("Mixed", "y", array)
    levels, found = np.unique(array, return_inverse=True)
    return pd.Series(found.astype(float), index=getattr(y, "index", None)), tuple(levels.tolist())


def _design(X: Any, intercept: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the fixed part, with the intercept first if there is one."""
    if hasattr(X, "columns") and not len(X.columns):
        return np.zeros((len(X), 0)), ()
    found, names = design("Mixed", X, False)
    if not isinstance(found, np.ndarray):
        raise TypeError("Mixed: X is sparse; give X.toarray().")
    if not intercept:
        return np.array(found), names
    return np.hstack([np.ones((len(found), 1)), found]), ("Intercept", *names)


def _without_effects(data: ResponseRows, first: float, tau: np.ndarray) -> np.ndarray:
    """Approximate the coefficients without random effects by a few Newton steps, halved if the loss rises."""
    Q, own = data.design, data.response
    z = Q.T @ np.full(len(Q), first) / len(Q)
    at = lambda z, orders: own.orders(data.offset + Q @ z, tau[:, None], data.y, orders)
    step, lowest = np.zeros_like(z), np.inf
    with np.errstate(all="ignore"):
        for _ in range(12):
            loss, slope, bend = at(z - step, (0, 1, 2))
            value = float(data.size @ loss)
            if not value <= lowest:
                step = step / 2
                continue
            z, lowest = z - step, value
            hessian = (Q.T * (data.size * bend)) @ Q + 1e-6 * len(Q) * np.eye(len(z))
            step = np.linalg.solve(hessian, Q.T @ (data.size * slope))
    return z
