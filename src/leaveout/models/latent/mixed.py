"""Mixed models by their marginal likelihood: rows, or whole clusters, left out.

    y_i | u ~ family(η_i),      η_i = x_iᵀβ + o_i + Σ_f z_ifᵀu_f,level(i),
    u_f,level ~ N(0, Σ_f),      Σ_f = Λ_f Λ_fᵀ

    F(θ, w) = −log ∫ Π_i p(y_i | u)^{w_i} dP(u),      θ = (β, Λ, the family's own)

or, by REML of a Gaussian response, F + ½ log|XᵀV⁻¹X|, whose minimum over β is the restricted
likelihood. F is exact for Gaussian responses, by Laplace's approximation for others, or, with one
grouping factor, by adaptive Gauss–Hermite quadrature (`grouped`, `crossed`). Two questions are
possible, and they differ:

    drop="row"
    a row is left out, and scored given the seen rows of its clusters: −log p(y_i | everything seen;
    θ) drop="patient"   a cluster is left out with all its rows, and scored as a new one

Λ is not restricted to diagonals above zero: F does not change with the sign of a column, so that a
variance at zero is an ordinary minimum in Λ. Entries that the fit puts at zero are held there in
every refit, and refits in which they would leave zero are flagged (`singular`).
"""

import functools
from dataclasses import replace
from typing import Any, Literal, Self, cast

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Bool, Float
from numpy import linalg, ndarray
from numpy.typing import ArrayLike, NDArray

from ..._runtime import (
    HALF_LOG_TAU,
    AnyTuple,
    Array,
    Arrays as Arrays,
    HeadedTable,
    ListedUnits,
    ListedValues,
    NamedValues,
    PyTree,
    RowNumbers,
    Strings,
    TwoArrays,
    UnitVectors,
    conventional,
    float64,
    silence,
    static,
)
from ...data import (
    Names,
    count,
    frame_of,
    match_columns,
    match_labels,
    named_column,
    numbers,
    pandas_of,
    share,
    stateful_remark,
)
from ...objectives import (
    AbstractObjective,
    Costs,
    DiagonalBlocks,
    Parameters,
    Points,
    RefitFlags,
    RefitPoints,
    RefitValues,
    State,
    UnitIndex,
    Units,
    UnitWeights,
    ValueAndGradient,
    Vector,
    Weights,
    one_by_one,
)
from ..glm import all_finite, column, design, losses, new_rows
from .base import AbstractLatentModel, jacobian_by_differences
from .crossed import CrossedFactors
from .effects import (
    EffectBlock,
    GroupingFactor,
    Parts,
    align_groupings,
    array_blocks,
    factor_codes,
    factors,
    level_clusters,
    read_formula,
    split,
)
from .grouped import OneFactor
from .modes import ValueAndSteps, newton
from .quadrature import marginal_means
from .responses import Response, ResponseRows, read_response, ways

ROWS = "row"
MAX_NODES = 400  # largest number of nodes of a cluster
# standard deviation, relative to the predictor's usual size, that counts as zero
ZERO_DEVIATION = 1e-4
TABLE_DIFFERENCE = 1e-4


class Mixed(AbstractLatentModel):
    """Mixed model, by its marginal likelihood; units are rows or clusters.

        y_i | u ~ family(η_i),      η_i = x_iᵀβ + o_i + Σ_f z_ifᵀu_f,level(i),
        u_f,level ~ N(0, Σ_f)

    It is fitted by maximum likelihood, or by REML. `fit(...).parameters` is `{"coef",
    "covariance[patient]", …}` and the family's own: `scale`, `shape`, `dispersion`, `thresholds`.

    Parameters
    ----------
    formula : str or array, shape (rows, features)
        Formula as lme4 and bambi write it, such as "y ~ x + (1 + x | patient) + (1 | hospital)"; or
        columns of the fixed part.
    data : DataFrame or array, shape (rows,)
        Table of a formula; or the response, beside an array.
    family : str or loss of lo.losses, default: "gaussian"
        "gaussian", "binomial" (y zero or one), "poisson", "gamma", "negative_binomial", "ordinal";
        or a convex loss that has a closed form, such as `lo.losses.Binomial("probit")`.
    drop : str, default: "row"
        Unit that is left out: "row", or the name of a grouping factor.
    score : {"pointwise", "joint"}, optional
        Joint density of a cluster's rows (of rows: one number a refit), or one density a row,
        summed over those of a cluster. The default is "pointwise" for rows and "joint" for
        clusters.
    method : {"ML", "REML"}, default: "ML"
        Maximum likelihood or, for a Gaussian response, restricted maximum likelihood. Every refit
        is by the same method.
    quadrature : int, default: 1
        Number of nodes for each effect of a cluster; 1 is Laplace's approximation. More need a
        single grouping factor.
    groups : array, dict or DataFrame, optional
        Labels of the levels of each row, beside arrays; a dict or a DataFrame holds several
        groupings. Every level has an intercept.
    slopes : array, shape (rows, effects), optional
        Columns whose coefficients vary between levels, beside arrays and one grouping.
    offset : array, shape (rows,), or str, optional
        Constants o that are added to the linear predictors. With a formula the name of a column
        will do.
    trials : array, shape (rows,), or str, optional
        Denominators of binomial proportions y. With a formula the name of a column will do.
    intercept : bool, default: True
        Whether the fixed part of arrays has an intercept.

    Raises
    ------
    ValueError
        If values or labels are missing, columns of the fixed part are combinations of one another,
        y lies outside the domain, or the levels do not identify a variance.
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

    data: ResponseRows = static()
    factors: tuple[GroupingFactor, ...] = static()
    # the factors before entries of Λ were held at zero
    full_factors: tuple[GroupingFactor, ...] = static()
    transform: Float[ndarray, "coefficients coefficients"]
    unit: float = static()
    code: Any = static()  # the unit of each row
    num: int = static()
    drop: str = static()
    joint: bool = static()
    restricted: bool = static()
    quadrature: int = static()
    names: Strings = static()
    levels: AnyTuple = static()
    labels: Names = static()
    spec: Any = static()

    @float64
    def __init__(
        self,
        formula: str | ArrayLike,
        data: Any,
        family: Any = "gaussian",
        *,
        drop: str = ROWS,
        score: Literal["pointwise", "joint"] | None = None,
        method: Literal["ML", "REML"] = "ML",
        quadrature: int = 1,
        groups: Any = None,
        slopes: Any = None,
        offset: ArrayLike | str | None = None,
        trials: ArrayLike | str | None = None,
        intercept: bool = True,
    ):
        if isinstance(formula, str):
            self._refuse(groups=groups, slopes=slopes)
            self.spec = read_formula(formula, data)
            y = self.spec.y
            X = self.spec.X
            blocks = self.spec.blocks
            codes_by_name = self.spec.codes
            frame = frame_of("Mixed", data)
            offset = named_column(frame, offset)
            trials = named_column(frame, trials)
            intercept = False
        else:
            self.spec = None
            frame = None
            X = formula
            y = data
            if groups is None:
                raise ValueError(
                    "Mixed: give groups=, one label a row, or a formula with random effects, as (1 | group)."
                )
            groupings, (X, y, slopes, offset, trials) = align_groupings(
                groups, X=X, y=y, slopes=slopes, offset=offset, trials=trials
            )
            blocks, codes_by_name = array_blocks(groupings, slopes, np.shape(X)[0])
        self._bind(
            X,
            y,
            family,
            blocks,
            codes_by_name,
            drop,
            score,
            method,
            quadrature,
            offset,
            trials,
            intercept,
        )
        self.labels.table = frame

    @classmethod
    def of(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        family: Any,
        blocks: tuple[EffectBlock, ...],
        known: dict[str, TwoArrays],
        drop: str = ROWS,
        method: str = "ML",
    ) -> Self:
        """Make a model from blocks of effects and the levels of their factors, for a host that
        reads them itself.

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
        method : {"ML", "REML"}, default: "ML"
            Maximum likelihood, or restricted maximum likelihood.

        Returns
        -------
        Mixed
            The model.
        """
        new = object.__new__(cls)
        object.__setattr__(new, "spec", None)
        new._bind(X, y, family, blocks, known, drop, None, method, 1, None, None, False)
        return new

    def _bind(
        self,
        X,
        y,
        family,
        blocks,
        codes_by_name,
        drop,
        score,
        method,
        quadrature,
        offset,
        trials,
        intercept,
    ):
        self.labels, X, y, offset, trials = match_labels(
            "Mixed", X=X, y=y, offset=offset, trials=trials
        )
        y, self.levels = _ordinal_levels(family, y)
        response = read_response(family, y)
        if self.spec is not None and not response.loss.intercept:
            X = X.drop(columns="Intercept", errors="ignore")
        X, self.names = _design(X, intercept and response.loss.intercept)
        n = len(X)
        y = column("Mixed", "y", y, n)
        response.loss.check(y)
        if method not in ("ML", "REML") or (method == "REML" and not response.quadratic):
            raise ValueError(
                f'Mixed: method is "ML" or, for a Gaussian response, "REML"; got {method!r} for {response.title}.'
            )
        self.restricted = method == "REML"
        if (y == y[0]).all():
            raise ValueError(f"Mixed: y is {y[0]:g} in every row: there is nothing to tell.")
        self.factors = self.full_factors = factors(blocks, codes_by_name)
        self.unit = float(y.std()) if response.quadratic else 1.0
        self.data, self.transform = self._data(X, y, response, offset, trials)
        self.quadrature = count("Mixed: quadrature", quadrature, 1, 101)
        self.joint = drop != ROWS if score is None else score == "joint"
        self._check(drop, score)
        self.drop = drop
        units = {ROWS: (np.arange(n), n)}
        units |= {factor.name: (factor.code, len(factor.levels)) for factor in self.factors}
        self.code, self.num = units[drop]
        for factor in self.factors:
            self._check_levels(factor)
        self.engine  # noqa: B018  raises for factors that the engine does not support

    @staticmethod
    def _refuse(**arguments) -> None:
        for name, value in arguments.items():
            if value is not None:
                raise ValueError(
                    f"Mixed: {name}= goes with arrays; a formula says it by (… | group)."
                )

    def _check(self, drop: str, score: str | None) -> None:
        choices = [ROWS, *(factor.name for factor in self.factors)]
        if drop not in choices:
            raise ValueError(
                f"Mixed: drop must be one of {', '.join(map(repr, choices))}; got {drop!r}."
            )
        if score not in (None, "pointwise", "joint"):
            raise ValueError(f'Mixed: score must be "pointwise" or "joint"; got {score!r}.')
        if self.quadrature > 1 and len(self.factors) > 1:
            raise ValueError(
                "Mixed: quadrature= is for one grouping factor; with several leave it at 1, Laplace's approximation."
            )
        nodes = self.quadrature ** self.factors[0].q
        if nodes > MAX_NODES:
            raise ValueError(
                f"Mixed: {self.quadrature} nodes in {self.factors[0].q} effects are {nodes} a cluster; take fewer."
            )

    def _check_levels(self, factor: GroupingFactor) -> None:
        """Raise ValueError if the levels of a factor do not identify its variance."""
        count = np.bincount(factor.code)
        y = self.data.y
        if len(count) < 2:
            raise ValueError(
                f"Mixed: {factor.name} has one level: no variance can be told from it. Two or more are needed."
            )
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

    def _data(
        self, X: ndarray, y: ndarray, response: Response, offset, trials
    ) -> tuple[ResponseRows, ndarray]:
        """Return the rows in coordinates of unit size, and the matrix that maps coefficients in
        these to the natural ones.
        """
        n = len(y)
        unit = self.unit
        shift = np.zeros(n) if offset is None else column("Mixed", "offset", offset, n)
        size = np.ones(n)
        fixed = np.full(n, np.log(unit))
        if trials is not None:
            size = column("Mixed", "trials", trials, n)
            if response.title != "binomial" or (size <= 0).any():
                raise ValueError(
                    "Mixed: trials must be positive, and are for binomial proportions."
                )
            fixed = ways(size * y, size) / size
        length = linalg.norm(X, axis=0)
        Q, R = linalg.qr(X / np.where(length > 0, length, 1.0))
        # residual of a column, relative to its size, below which it is a combination of the columns
        # before it
        collinear_share = 1e-10
        poor = np.flatnonzero(np.abs(np.diag(R)) <= collinear_share)
        if poor.size or len(R) < X.shape[1]:
            name = self.names[int(poor[0]) if poor.size else -1]
            raise ValueError(
                f"Mixed: column {name!r} of the fixed part is zero, or a combination of those before it: leave it out."
            )
        transform = linalg.solve(R, np.eye(len(R))) / length[:, None] * np.sqrt(n) * unit
        return ResponseRows(
            Q * np.sqrt(n), shift / unit, y / unit, size, fixed, response
        ), transform

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
            # of 96 small problems of five families, none had a second minimum inside
            usual_starts=1,
            canonical=self._canonical,
            names=self._names,
            undetermined=self._undetermined,
            warning=self._warning,
            limit=lambda theta: self.data.response.loss.limit(self._parts(theta).tau[0]).replace(
                "lo.losses.Poisson()", 'family="poisson"'
            ),
            held=self._without_zero_pivots,
            leaving=type(self)._leaving if self._num_held else None,
        )

    def _parts(self, theta) -> Parts:
        """Split θ `[params]` into its parts."""
        return split(np.asarray(theta)[None], self.data, self.factors)

    def _natural(self, theta):
        parts = self._parts(theta)
        response = self.data.response
        parameters = {"coef": self.transform @ parts.z[0]}
        for factor, free in zip(self.factors, parts.free, strict=True):
            parameters[f"covariance[{factor.name}]"] = factor.covariance(free[0], self.unit)
        shared = response.loss.natural(parts.tau[0])
        return parameters | {
            name: value * self.unit if response.quadratic else value
            for name, value in shared.items()
        }

    def _to_unconstrained(self, natural):
        response = self.data.response
        coef = np.asarray(natural["coef"], float)
        if coef.shape != (len(self.names),):
            raise ValueError(
                f"Mixed: coef must be {len(self.names)} numbers ({', '.join(self.names)}); got shape {coef.shape}."
            )
        free = [
            factor.free(natural[f"covariance[{factor.name}]"], self.unit) for factor in self.factors
        ]
        shared = {
            name: np.asarray(value) / self.unit if response.quadratic else value
            for name, value in natural.items()
        }
        return np.concatenate(
            [linalg.solve(self.transform, coef), *free, response.loss.unconstrained(shared)]
        )

    def _names(self):
        free = [
            f"Λ[{factor.name}: {factor.columns[i]}{'' if i == j else f', {factor.columns[j]}'}]"
            for factor in self.factors
            for i, j in zip(factor.row, factor.column, strict=True)
        ]
        return [*self.names, *free, *(f"τ[{k}]" for k in range(self.data.response.num_shared))]

    def _canonical(self, theta):
        """Change the signs of columns of Λ so that no diagonal is below zero.

        F does not change with them.
        """
        theta = np.array(theta, float)
        first = self.data.design.shape[1]
        for factor in self.factors:
            free = theta[first : first + len(factor.row)]
            sign = np.ones(factor.q)
            sign[factor.column[factor.diagonal]] = np.where(free[factor.diagonal] < 0, -1.0, 1.0)
            free *= sign[factor.column]
            first += len(factor.row)
        return theta

    def _start(self, seed):
        """Start from approximate coefficients of the model without random effects, and standard
        deviations around one half.

        A seed draws the deviations around one half.
        """
        data = self.data
        rng = np.random.default_rng(seed)
        first, tau = data.response.start(data.y)
        z = _without_effects(data, first, tau)
        draws = (
            np.exp(0.7 * rng.standard_normal(len(f.row))) if seed else np.ones(len(f.row))
            for f in self.factors
        )
        free = [
            np.where(f.diagonal, 0.5 * draw, 0.0)
            for f, draw in zip(self.factors, draws, strict=True)
        ]
        return np.concatenate([z, *free, tau])

    def preconditioner(self, theta: PyTree, weights: UnitWeights) -> tuple[DiagonalBlocks, ...]:
        """Approximate ∇²F by the information on β, on each factor's Λ alone and, by the rows'
        scores at the modes, on τ.

        Parameters
        ----------
        theta : array, shape (params,)
            Unconstrained parameters.
        weights : array of float, shape (units,)
            Weight of each unit, which is taken for one.

        Returns
        -------
        tuple of Blocks
            One block with all parameters.
        """
        theta = np.asarray(theta, float)
        response = self.data.response
        data = self.data
        regressions = self.engine.regressions(theta[None], np.ones((1, self.num)))
        eta = regressions.eta[0]
        parts = self._parts(theta)
        tau = parts.tau[0][:, None]
        weight = data.size * response.orders(eta, tau, data.y, (2,))[0]
        blocks = [
            factor.information(free[0], weight)
            for factor, free in zip(self.factors, parts.free, strict=True)
        ]
        (scores,) = response.shared_derivatives(eta, tau, data.y, (0,))
        scores = scores + response.constant(tau, data.y)[1]
        scores -= np.average(scores, axis=1, weights=data.size)[:, None]
        block = scipy.linalg.block_diag(
            regressions.information[0], *blocks, (data.size * scores) @ scores.T
        )
        return (DiagonalBlocks(np.arange(len(theta))[None], block[None]),)

    # variances at zero

    @property
    def _num_held(self) -> int:
        """Number of entries of Λ that are held at zero."""
        return sum(
            len(full.row) - len(factor.row)
            for full, factor in zip(self.full_factors, self.factors, strict=True)
        )

    def _with_factors(self, factors: tuple[GroupingFactor, ...]) -> Self:
        """Copy the model with other entries of Λ free, those of the given factors.

        The copy shares its data with this one.
        """
        new = object.__new__(type(self))
        vars(new).update(
            {name: value for name, value in vars(self).items() if name != "engine"}
            | {"factors": factors}
        )
        if isinstance(self.engine, CrossedFactors):
            vars(new)["engine"] = CrossedFactors.build(
                self.data, factors, self.code, self.engine.latent.incidence
            )
        return new

    def _roots(self, theta) -> list[Float[ndarray, "effects effects"]]:
        """Return Λ of each factor."""
        parts = self._parts(theta)
        return [factor.root(free[0]) for factor, free in zip(self.factors, parts.free, strict=True)]

    def _warning(self, theta) -> str:
        """Name effects that vary so much that clusters may be separated; "" if there are none."""
        # standard deviation in logits from which clusters look separated
        separated_deviation = 10.0
        wide_effects = [
            f"{factor.columns[i]} by {factor.name}"
            for factor, root in zip(self.factors, self._roots(theta), strict=True)
            for i in np.flatnonzero(linalg.norm(root, axis=1) > separated_deviation)
        ]
        if wide_effects and self.data.response.title in ("binomial", "ordinal"):
            wide = f"Mixed: {', '.join(wide_effects)} varies by more than {separated_deviation:g} logits"
            return f"{wide}: are clusters separated? There may be no maximum."
        return ""

    def _without_zero_pivots(self, theta) -> tuple[Any, Any, str] | None:
        """Return the model without the columns of Λ whose pivots are at zero.

        F does not change with the sign of a column of Λ. It is therefore even in a pivot at zero,
        with a minimum there or a saddle. Columns of such pivots are held at zero, so that no refit
        ends on a saddle. None if there are none, or if F would fall as they left zero.
        """
        theta = np.array(theta, float)
        first = self.data.design.shape[1]
        free_factors = list[GroupingFactor]()
        reasons = list[str]()
        for factor, root in zip(self.factors, self._roots(theta), strict=True):
            zero = np.zeros(factor.q, bool)
            zero[factor.row[factor.diagonal]] = True
            zero &= np.abs(np.diag(root)) < ZERO_DEVIATION
            theta[first + np.flatnonzero(factor.diagonal & zero[factor.column])] = 0.0
            first += len(factor.row)
            free = ~zero[factor.column]
            free_factors.append(replace(factor, row=factor.row[free], column=factor.column[free]))
            nothing = zero & (linalg.norm(root, axis=1) < ZERO_DEVIATION)
            reasons += [
                f"the variance of {factor.columns[i]} by {factor.name} is zero"
                for i in np.flatnonzero(nothing)
            ]
            if (zero & ~nothing).any():
                reasons.append(f"the effects of {factor.name} are perfectly correlated")
        if not reasons:
            return None
        simpler = self._with_factors(tuple(free_factors))
        parameters = self.parameters.natural(theta)
        start = simpler.parameters.unconstrained(parameters)
        if simpler._leaving(start, start[None], np.ones((1, self.num_units))).any():
            return None
        text = f"{'; '.join(reasons)} at the maximum of the likelihood: held there, in every refit too."
        return simpler, parameters, f"{text} Refits that would leave it are flagged."

    def _leaving(
        self,
        like,
        thetas: RefitPoints,
        weights: Float[ndarray, "refits units"],
    ) -> RefitFlags:
        """Tell for which refits F would fall if an entry that is held at zero left it.

        As F(Σ) = F(ΛΛᵀ), ∂F/∂Λ = 2GΛ with G = ∂F/∂Σ. A pivot would leave zero where G, on the
        effects of such pivots, has a negative eigenvalue; as GΛ = 0 at the minimum, these effects
        determine the sign of G.
        """
        full_model = self._with_factors(self.full_factors)
        loadings = np.empty((len(thetas), 0))
        parts = split(thetas, self.data, self.factors)
        missing = list[Bool[ndarray, " effects"]]()
        pivot_difference = 1e-3  # step of pivots from zero, for the slope of F in their squares
        for full, factor, free in zip(self.full_factors, self.factors, parts.free, strict=True):
            root = factor.root(free)
            missing.append(np.isin(np.arange(full.q), np.setdiff1d(full.column, factor.column)))
            root[:, missing[-1], missing[-1]] = pivot_difference
            loadings = np.concatenate([loadings, root[:, full.row, full.column]], 1)
        value, gradient, _ = full_model.look(
            np.concatenate([parts.z, loadings, parts.tau], 1), weights
        )
        falls = np.zeros(len(thetas), bool)
        slope_noise = 1e-10  # relative error of slopes of F
        slack = slope_noise * (1 + np.abs(value)) / (2 * pivot_difference)
        slopes = split(gradient, self.data, self.full_factors).free
        for full, zero, slope in zip(self.full_factors, missing, slopes, strict=True):
            G = full.root(slope / (2 * pivot_difference))
            G = G + np.tril(G, -1).swapaxes(1, 2)
            if zero.any():
                falls |= linalg.eigvalsh(G[:, zero][:, :, zero])[:, 0] < -slack
        return falls

    # F

    @functools.cached_property
    def engine(self) -> OneFactor | CrossedFactors:
        if len(self.factors) == 1:
            return OneFactor.build(self.data, self.factors[0], self.quadrature, self.drop != ROWS)
        return CrossedFactors.build(self.data, self.factors, self.code)

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        value, gradient, state = super().look(theta, weights, state)
        if not self.restricted:
            return value, gradient, state
        fixed = len(self.transform) * HALF_LOG_TAU + linalg.slogdet(self.transform)[1]
        with silence("all"):
            restricted_value, slope = self.engine.restricted(
                np.asarray(theta, float), np.asarray(weights, float), state
            )
        return value + restricted_value - fixed, gradient + slope, state

    def jacobian(self, theta: PyTree) -> UnitVectors:
        jacobian = super().jacobian(theta)
        if not self.restricted:
            return jacobian
        by_weight = lambda points, state: (
            self.engine.restricted_by_weight(points, np.ones((len(points), self.num))),
            None,
        )
        return jacobian + jacobian_by_differences(by_weight, np.asarray(theta, float))

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        held: Bool[ndarray, "refits width"],
        state: State = None,
    ) -> RefitValues:
        held = np.asarray(held, bool) & (index < self.num)
        lane, place = np.nonzero(held)
        unit = index[lane, place]
        if self.drop == ROWS and self.joint:
            look = super().look  # of a density at the parameters of the refit
            value, _, _ = look(theta, self._with_held(weights, index, held), state)
            return value - look(theta, weights, state)[0]
        out = np.zeros(held.shape)
        out[lane, place] = self._unit_losses(theta, weights, lane, unit, state)
        return out

    def _unit_losses(self, theta, weights, lane, unit, state):
        """Compute the losses of listed units, each in a refit."""
        if self.drop == ROWS:
            return self.engine.conditional(theta, weights, lane, unit, state)
        losses = self.engine.joint if self.joint else self.engine.pointwise
        return losses(theta, weights, lane, unit, state)

    @property
    def costs(self) -> Costs:
        separable = len(self.factors) == 1 or (self.data.response.quadratic and self.pointwise)
        separable &= not self.restricted or self.drop == ROWS or self.engine.outer_weights
        costs = self.engine.costs._replace(separate=len(self.factors) == 1, falls=True)
        return costs._replace(runs=self._runs if separable else None)

    def _runs(self, like, first: ndarray, length: ndarray):
        """Return the pass over the data that computes the fall of F by leaving out single units, or
        runs of clusters.
        """
        if (length > 1).any() and (
            self.drop == ROWS or not self.joint or not self.engine.outer_weights
        ):
            return None
        engine: Any = self.engine
        start = engine.modes(np.asarray(like))
        ends = np.cumsum(length)
        run = np.repeat(np.arange(len(first)), length)
        place = np.arange(ends[-1]) - np.repeat(ends - length, length)
        unit = first[run] + place

        def unit_changes(theta: ndarray) -> tuple[ndarray | None, ndarray]:
            changes, unit_losses = engine.alone(np.asarray(theta), unit, self.joint, start)
            joint = np.bincount(run, changes, len(first))
            if self.restricted:
                joint += engine.restricted_alone(np.asarray(theta), unit, run, self.num)
            if not self.pointwise:
                return None, joint
            losses = np.zeros((len(first), int(length.max())))
            losses[run, place] = unit_losses
            return losses, joint

        return one_by_one(unit_changes)

    @property
    def pointwise(self) -> bool:
        return not (self.drop == ROWS and self.joint)

    def predictions(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        kind: str,
        state: State = None,
    ) -> ListedValues:
        """Predict the response of rows, or their linear predictors, given the seen rows of their
        clusters.

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
        return self.unit * super().predictions(theta, weights, index, kind, state)

    def predictor_covariance(self, theta: Vector) -> Float[ndarray, "units units"] | None:
        if self.drop == ROWS:
            return super().predictor_covariance(theta)
        return None

    @property
    def _row_units(self) -> RowNumbers:
        return self.code

    @property
    def units(self) -> Units:
        rows = self.drop == ROWS
        y = self.data.y * self.unit
        outer_weights = self.engine.outer_weights
        facts: NamedValues = {
            "serial": not outer_weights,
            "score": self.data.response.loss.scale(y),
            "predict_new": self._predict_new,
        }
        if rows:
            blocks = None if outer_weights else self.factors[0].code
            return Units(names=self.labels.index, target=y, blocks=blocks, **facts)
        (levels,) = (f.levels for f in self.factors if f.name == self.drop)
        return Units(
            names=pd.Index(levels, name=self.drop),
            blocks=None if outer_weights else level_clusters(self.factors, self.drop),
            rows=self.code,
            row_names=self.labels.index,
            **facts,
        )

    def _predict_new(self, fit, data, kind, offset):
        """Predict the mean responses of new rows; new levels are averaged over the population."""
        if kind != "response":
            raise ValueError(
                f"predict: Mixed predicts the response of new rows, a mean over effects; got kind={kind!r}."
            )
        table = self._predict_rows(fit, data, 0.9, False, offset)
        if "mean" in table:
            return table["mean"].rename("prediction")
        return table

    # for users

    def _vector(self, fit) -> ndarray:
        """Return θ of a fit of the model."""
        if not isinstance(getattr(fit, "objective", None), AbstractObjective):
            raise TypeError(f"Mixed: give the Fit, from lo.fit; got {type(fit).__name__}.")
        theta = np.asarray(fit.vector, float)
        if theta.shape != (len(self.parameters.names()),):
            raise ValueError(
                "Mixed: the fit is of another model: take fit.objective, of which this is a method."
            )
        return theta

    def _predict_rows(self, fit, data, level: float, new: bool, offset) -> pd.DataFrame:
        """Predict means of rows, with intervals.

        A mean response is averaged over the effects given θ̂, η ~ N(m, aᵀM⁻¹a). Its interval is
        that of the predictor, whose variance adds the uncertainty of θ̂ to first order (Kass and
        Steffey 1989):

            v = aᵀM⁻¹a + dᵀH⁻¹d,      d = ∂m/∂θ.
        """
        share("predict: level", level)
        theta = self._vector(fit)
        X, designs, codes, index = self._read_rows(data)
        if new:
            codes = [np.full(len(X), -1) for _ in codes]
        shift = self._shift(data, offset, len(X))

        def predictors(theta: NDArray) -> tuple[NDArray, NDArray]:
            mean, variance = self.engine.effects(theta, codes, designs)
            z = theta[: len(self.names)]
            return shift / self.unit + X @ (self.transform @ z) / self.unit + mean, variance

        mean, variance = predictors(theta)
        steps = TABLE_DIFFERENCE * np.maximum(1.0, np.abs(theta))
        slopes = [
            (predictors(theta + step)[0] - predictors(theta - step)[0]) / (2 * step.sum())
            for step in np.diag(steps)
        ]
        tau = self._parts(theta).tau[0][:, None]
        response = self.data.response
        middle = marginal_means(response, mean, variance, tau) * self.unit
        variance = variance + np.sum(fit.quadratic.whiten(np.array(slopes).T) ** 2, 1)
        if middle.ndim > 1:
            return pd.DataFrame(middle, index=index, columns=list(self.levels))
        half_width = scipy.special.ndtri(0.5 + level / 2) * np.sqrt(variance)
        ends = [response.mean(mean + sign * half_width, tau) * self.unit for sign in (-1, 1)]
        return pd.DataFrame(
            {"mean": middle, "lower": np.minimum(*ends), "upper": np.maximum(*ends)}, index=index
        )

    def _shift(self, data, offset, n: int) -> NDArray:
        if offset is not None:
            return column("predict", "offset", offset, n)
        if data is None:
            return self.data.offset * self.unit
        if self.data.offset.any():
            raise ValueError("predict: the model has an offset: give that of the rows, offset=.")
        return np.zeros(n)

    def _read_rows(self, data) -> tuple[NDArray, list[NDArray], list[NDArray], Any]:
        """Read columns of the coefficients, columns of the effects of each factor, levels (−1 if
        new), and labels.
        """
        if data is None:
            X = self.data.design @ linalg.inv(self.transform) * self.unit
            return (
                X,
                [f.design for f in self.factors],
                [f.code for f in self.factors],
                self.labels.index,
            )
        if self.spec is not None:
            data = pandas_of("predict", "data", data)
            X, blocks = self.spec.new(data)
            names = [str(name) for name in self.spec.X.columns]
            if self.names:
                X = X[:, [names.index(name) for name in self.names]]
            else:
                X = np.zeros((len(data), 0))
            raw = {
                f.name: np.hstack(
                    [
                        b
                        for (name, _), b in zip(self.spec.effects, blocks, strict=True)
                        if name == f.name
                    ]
                ).T
                for f in self.factors
            }
            codes_by_name = {f.name: factor_codes(data, f.name) for f in self.factors}
            index = getattr(data, "index", None)
        else:
            if not isinstance(data, tuple) or len(data) not in (2, 3):
                raise TypeError(
                    "predict: the model was made of arrays: give data=(X, groups) or (X, groups, slopes)."
                )
            ones = self.names[:1] == ("Intercept",)
            slopes = data[2] if len(data) == 3 else None
            if slopes is not None and self.factors[0].columns[1:2] != ("z0",):
                like = pd.DataFrame(columns=list(self.factors[0].columns[1:]))
                slopes = match_columns("predict", "slopes", slopes, "the fit's slopes", like)
            groupings, (new, slopes) = align_groupings(data[1], X=data[0], slopes=slopes)
            names = [factor.name for factor in self.factors]
            if sorted(groupings) == sorted(names):
                groupings = {name: groupings[name] for name in names}
            elif len(names) > 1:
                raise ValueError(
                    f"predict: groups must be {', '.join(map(repr, names))}; got {', '.join(map(repr, groupings))}."
                )
            covariates = np.asarray(new_rows("predict", new, self.names[ones:], False))
            X = covariates
            if ones:
                X = np.insert(covariates, 0, 1.0, axis=1)
            blocks, codes_by_name = array_blocks(groupings, slopes, len(X))
            codes_by_name = dict(zip(names, codes_by_name.values(), strict=True))
            raw = {name: block.design.T for name, block in zip(names, blocks, strict=True)}
            index = getattr(new, "index", None)
        designs = [raw[f.name] * f.scale[:, None] for f in self.factors]
        codes = []
        for factor in self.factors:
            code, levels = codes_by_name[factor.name]
            # −1 if unknown
            codes.append(pd.Index(factor.levels).get_indexer(pd.Index(levels))[code])
        return X, designs, codes, index

    @float64
    def predict(
        self,
        theta: PyTree,
        weights: UnitWeights | None = None,
        index: UnitIndex | None = None,
        kind: str = "response",
        *,
        data: Any = None,
        level: float = 0.9,
        new: bool = False,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Predict the mean response of rows, with a central interval of its posterior.

        The posterior is that of the effects and, to first order, of the parameters. Levels that the
        fit has seen are known by their conditional modes. Other levels, and all of them if `new`,
        are drawn from the population.

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
            New rows: a table with the columns of the formula; for arrays `(X, groups)` or `(X,
            groups, slopes)`. The default is all rows of the model.
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
            return self._predict_rows(theta, data, level, new, offset)
        return super().predict(theta, cast(ndarray, weights), index, kind)

    @conventional
    @float64
    def components(self, fit: Any) -> pd.DataFrame:
        """Return the variance components: variance, standard deviation and correlations of the
        effects of each factor.

        Parameters
        ----------
        fit : Fit
            Fit of this model.

        Returns
        -------
        pandas.DataFrame
            A row for each effect of each factor, with its correlations with the effects before it;
            and, for a Gaussian response, a row for the residual.
        """
        theta = self._vector(fit)
        rows = []
        for factor, free in zip(self.factors, self._parts(theta).free, strict=True):
            covariance = factor.covariance(free[0], self.unit)
            sd = np.sqrt(np.diag(covariance))
            with silence("invalid", "divide"):
                correlation = covariance / np.outer(sd, sd)
            together = factor.root(np.ones(len(factor.row))) != 0
            for i, name in enumerate(factor.columns):
                before = {
                    factor.columns[j]: float(correlation[i, j]) for j in range(i) if together[i, j]
                }
                rows.append((factor.name, name, covariance[i, i], sd[i], before))
        if self.data.response.quadratic:
            scale = float(self.parameters.natural(theta)["scale"])
            rows.append(("Residual", "", scale**2, scale, {}))
        table = pd.DataFrame(rows, columns=["factor", "effect", "variance", "sd", "before"])
        partners = list(dict.fromkeys(name for before in table.pop("before") for name in before))
        for name in partners:
            table[f"correlation with {name}"] = [row[4].get(name, np.nan) for row in rows]
        return table

    @conventional
    @float64
    def coefficients(self, fit: Any) -> pd.DataFrame:
        """Return the coefficients with standard errors, from the curvature of F in all parameters,
        as `lo.covariance` has them.

        Parameters
        ----------
        fit : Fit
            Fit of this model.

        Returns
        -------
        pandas.DataFrame
            A row for each coefficient, under lines that say what the standard errors are.
        """
        theta = self._vector(fit)
        p = len(self.names)
        across = np.zeros((p, len(theta)))
        across[:, :p] = self.transform
        error = np.sqrt(np.sum(fit.quadratic.whiten(across) ** 2, 1))
        estimate = self.transform @ theta[:p]
        z = estimate / error
        columns = {
            "estimate": estimate,
            "se": error,
            "z": z,
            "P>|z|": 2 * scipy.special.ndtr(-np.abs(z)),
        }
        table = HeadedTable(pd.DataFrame(columns, index=pd.Index(self.names, name="coefficient")))
        table.heading = [
            (
                "standard errors",
                "nonrobust: model-based, by the observed information of all parameters",
            ),
            ("clusters", "none but the model's own"),
            ("degrees of freedom", "none: normal distribution"),
        ]
        return table

    @conventional
    @float64
    def modes(self, fit: Any) -> pd.DataFrame:
        """Return the conditional modes of the effects of every level, and the standard deviations
        of their posteriors at θ̂.

        Parameters
        ----------
        fit : Fit
            Fit of this model.

        Returns
        -------
        pandas.DataFrame
            A row for each effect of each level.
        """
        theta = self._vector(fit)
        tables = []
        for k, factor in enumerate(self.factors):
            count = len(factor.levels)
            codes = [np.full(count, -1) for _ in self.factors]
            codes[k] = np.arange(count)
            for j, name in enumerate(factor.columns):
                designs = [np.zeros((grouping.q, count)) for grouping in self.factors]
                designs[k][j] = factor.scale[j] * self.unit
                mean, variance = self.engine.effects(theta, codes, designs)
                columns = {
                    "factor": factor.name,
                    "level": factor.levels,
                    "effect": name,
                    "mode": mean,
                    "sd": np.sqrt(variance),
                }
                tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True)

    @property
    def note(self) -> str:
        if self.data.response.quadratic:
            method = "exact"
        else:
            method = "Laplace"
            if self.quadrature > 1:
                method = f"{self.quadrature} nodes an effect"
        if self.drop == ROWS:
            scoring = "a row left out is scored given what is seen of its clusters"
        else:
            by = "the sum over its rows of their own densities"
            if self.joint:
                by = "the joint density of its rows"
            scoring = f"a {self.drop} left out is scored as a new one, by {by}"
            if not self.engine.outer_weights:
                scoring += ", given everything seen of the others"
        singles = [(f, np.sum(np.bincount(f.code) == 1)) for f in self.factors]
        alone = "".join(
            f" {count} of {len(f.levels)} levels of {f.name} have one row."
            for f, count in singles
            if count
        )
        zero = ""
        if self._num_held:
            zero = f" {self._num_held} entries of Λ held at zero."
        formulas = []
        if self.spec is not None:
            parts = [self.spec.fixed_part, *(spec for _, spec in self.spec.effects)]
            formulas = [part.formula for part in parts]
        remark = stateful_remark(" + ".join(map(str, formulas)))
        remark = f" {remark[:1].upper()}{remark[1:]}." if remark else ""
        kind = "Restricted" if self.restricted else "Marginal"
        return f'drop="{self.drop}": {scoring}. {kind} likelihood ({method}), no prior.{zero}{alone}{remark}'


def _ordinal_levels(family, y) -> tuple[Any, tuple]:
    """Return y, as numbers of levels for an ordinal family, and the levels."""
    if not (isinstance(family, str) and losses.name_among(family, ("ordinal",)) == "ordinal"):
        return y, ()
    categories = getattr(y, "cat", y)
    if getattr(categories, "ordered", False):
        used, codes = np.unique(np.asarray(categories.codes), return_inverse=True)
        levels = tuple(np.asarray(categories.categories)[used])
    else:
        array = numbers("Mixed", "y", y)
        all_finite("Mixed", "y", array)
        values, codes = np.unique(array, return_inverse=True)
        levels = tuple(values.tolist())
    return pd.Series(codes.astype(float), index=getattr(y, "index", None)), levels


def _design(X, intercept: bool) -> tuple[ndarray, Strings]:
    """Return the fixed part, with the intercept first if there is one."""
    if hasattr(X, "columns") and not len(X.columns):
        return np.zeros((len(X), 0)), ()
    columns, names = design("Mixed", X, False)
    if not isinstance(columns, ndarray):
        raise TypeError("Mixed: X is sparse; give X.toarray().")
    if not intercept:
        return np.array(columns), names
    return np.insert(columns, 0, 1.0, axis=1), ("Intercept", *names)


def _without_effects(data: ResponseRows, first: float, tau: ndarray) -> ndarray:
    """Approximate the coefficients without random effects by a few Newton steps."""
    Q = data.design

    def look(z: ndarray) -> ValueAndSteps:
        loss, slope, curvature = data.response.orders(
            data.offset + Q @ z, tau[:, None], data.y, (0, 1, 2)
        )
        hessian = (Q.T * (data.size * curvature)) @ Q + 1e-6 * len(Q) * np.eye(len(z))
        return data.size @ loss, lambda fresh: linalg.solve(hessian, Q.T @ (data.size * slope))

    return newton(look, Q.T @ np.full(len(Q), first) / len(Q), most=12)[0]
