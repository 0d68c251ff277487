"""Regressions whose rows have effects of the levels of factors, which are absorbed.

    F(β, w) = min_α Σ_n w_n s_n ℓ(η_n, y_n),      η_n = x_nᵀβ + d_nᵀα + o_n,

with d_n the indicators of the row's levels. With e = w s ℓ′, W = diag(w s ℓ″), A = DᵀWD and x̃_n =
x_n − XᵀWD A⁻¹ d_n,

    ∇F = Σ e_n x_n,      ∇²F = Σ W_n x̃_n x̃_nᵀ = XᵀWX − XᵀWD A⁻¹ DᵀWX,      ∂²F/∂β∂w_n = s_n ℓ′_n x̃_n

are what remains of all parameters when α is eliminated, and so are minimisers, refits and
covariances. A is diagonal for one factor, and sparse for several. The effects of a refit come from
Newton steps −s, shortened to log(1 + M|s|)/M where |ℓ‴| ≤ M ℓ″, which for Poisson and s < 0 ends in
one step.

A level has no effect where no row with a weight pulls it up, or none down: where none is left, for
counts where all y are zero, for events where all are alike. Its rows then count nowhere.
"""

import copy
import itertools
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from ..._runtime import float64, level_numbers, members_by_label, pd, silence, warn
from ...data import (
    codes,
    index_of,
    join_remarks,
    match_labels,
    named_column,
    pandas_of,
    split_outside,
    under_labels,
)
from ...linalg import Proposal, anywhere, decrements, iterate, pattern, weight_terms
from ...objectives import AbstractClosedForm, Costs, Parameters, as_stored, one_by_one
from . import losses, penalties
from .loss import members_of
from .rows import column, new_rows

FAR = 700.0  # a linear predictor at which a loss only rises or falls, and e^η is finite
# share of the diagonal of A that is added to it where a refit leaves sums of effects open
RIDGE = 1e-13
LAST_MOVE = 1e-7  # largest change of log ℓ″ by a Newton step after which none is taken


class AbsorbedGLM(AbstractClosedForm):
    """`GLM` with absorbed effects; θ are the coefficients of the columns.

    `base` is the model of the columns alone, in which rows of dropped levels have weight zero.
    `level` numbers the levels of all factors, one behind another, and `pulls` marks the rows that
    keep their levels' effects from falling, and from rising, without end. `read` makes the columns
    of new rows.
    """

    base: Any
    level: np.ndarray  # [factors, units]
    pulls: np.ndarray  # [directions, units]
    codes: dict[Any, Any]  # of each factor the number of each label, a Series
    read: Any

    y, note, names, labels, loss_function, penalty, row_weights, trials, outputs, num_units = (
        members_of(
            "base",
            "y",
            "note",
            "names",
            "labels",
            "loss_function",
            "penalty",
            "row_weights",
            "trials",
            "outputs",
            "num_units",
        )
    )
    convex = True

    @property
    def parameters(self):
        return Parameters(
            natural=lambda theta: {"coef": theta},
            unconstrained=self.base.parameters.unconstrained,
            start=lambda seed: np.zeros(len(self.names)),
            names=lambda: list(self.names),
        )

    @property
    def costs(self):
        numbers = 2**22  # in the rows x̃ of the refits of a batch
        lanes = max(1, numbers // (self.num_units * len(self.names)))
        return Costs(lanes=lanes, falls=True, runs=self._runs if len(self.level) == 1 else None)

    def _runs(self, like, first, length):
        """Return the pass over runs of rows without them, by a model that has an effect for each
        level of each run, of the level's other rows.
        """
        count = self.indicators.shape[0]
        fold = np.repeat(np.arange(len(first)), length)
        unit = np.arange(len(fold)) + (first - np.cumsum(length) + length)[fold]
        fold, level = np.divmod(np.unique(fold * count + self.level[0, unit]), count)
        pairs = self.indicators[level]
        rows = pairs.indices
        effect = np.repeat(np.arange(len(level)), np.diff(pairs.indptr))
        place = rows - first[fold[effect]]
        held = np.flatnonzero((place >= 0) & (place < length[fold[effect]]))
        weight = self.row_weights[rows]
        weight[held] = 0.0
        base = copy.copy(self.base)
        vars(base).update(design=self.base.lines.rows(rows), y=self.y[rows], sample_weight=weight)
        if base.offset is not None:
            vars(base)["offset"] = base.offset[rows]
        others = replace(self, base=base, level=effect[None], pulls=self.pulls[:, rows])

        def scores(theta):
            values = []
            for model in (self, others):
                ones = np.ones((1, model.num_units))
                _, omega, eta, _ = model.profile(theta[None], ones)
                values.append(model.indicators @ model.terms(eta, omega, 0)[0][0])
            losses = np.zeros((len(first), length.max()))
            losses[fold[effect[held]], place[held]] = self.loss_function.derivatives(
                eta[0, held], others.y[held], (0,)
            )[0]
            return losses, np.bincount(fold, values[0][level] - values[1])

        return one_by_one(scores)

    @cached_property
    def indicators(self):
        """Indicators of all levels, `[levels, units]`."""
        ones = np.ones(self.level.size)
        places = self.level.ravel(), np.tile(np.arange(self.num_units), len(self.level))
        return sparse.csr_array((ones, places))

    def components(self, counted, factor):
        """Number the sets of levels of the first factor and another one that rows connect."""
        links = self.level[0, counted], self.level[factor, counted]
        shape = 2 * self.indicators.shape[:1]
        graph = sparse.coo_array((np.ones(counted.sum()), links), shape)
        return sparse.csgraph.connected_components(graph, directed=False)[1]

    @cached_property
    def effects(self):
        """Numbers of the effects of each row, `[factors, units]`, −1 where it is zero.

        Of each further factor a level is zero in each set that the first one connects.
        """
        counted = self.row_weights > 0
        free = np.unique(self.level[0, counted])
        for factor in range(1, len(self.level)):
            levels = np.unique(self.level[factor, counted])
            sets = self.components(counted, factor)[levels]
            free = np.r_[free, np.delete(levels, np.unique(sets, return_index=True)[1])]
        number = np.full(self.indicators.shape[0], -1)
        number[free] = np.arange(len(free))
        return number[self.level]

    @cached_property
    def columns(self):
        """Indicators Dᵀ of the levels that have an effect, `[effects, units]`."""
        factor, unit = np.nonzero(self.effects >= 0)
        places = self.effects[factor, unit], unit
        shape = self.effects.max() + 1, self.num_units
        return sparse.csr_array((np.ones(len(unit)), places), shape)

    @cached_property
    def pattern(self):
        """Pattern of A."""
        return pattern(self.columns @ self.columns.T)

    @cached_property
    def pairs(self):
        """Rows that add their curvature to each entry of A, `[entries, units]`."""
        places = []
        for first, second in itertools.combinations_with_replacement(self.effects, 2):
            units = np.flatnonzero(np.minimum(first, second) >= 0)
            places.append((self.pattern.entries(first[units], second[units]), units))
        entries, units = np.concatenate(places, 1)
        shape = len(self.pattern.row), self.num_units
        return sparse.csr_array((np.ones(len(units)), (entries, units)), shape)

    def factor(self, curvature):
        """Factor A of each refit; an effect without curvature stands alone."""
        values = (self.pairs @ curvature.T).T
        diagonal = self.pattern.times == 1
        squares = values[:, diagonal]
        values[:, diagonal] = np.where(squares > 0, squares * (1 + RIDGE), 1.0)
        return self.pattern.factor(values)

    def terms(self, eta, omega, *orders):
        """Derivatives of the rows' terms in η."""
        parts = self.loss_function.derivatives(eta, self.y, orders)
        return [weight_terms(omega, part) for part in parts]

    def loose(self, weights):
        """Mark the levels that have no effect at these weights of rows, `[levels, refits]`."""
        sums = [self.indicators @ (weights * pull).T for pull in self.pulls]
        return np.min(sums, 0) <= 0

    @silence("all")
    def profile(self, theta, weights, state=None):
        """Minimise over the effects of each refit.

        Returns these, the weights ω of the rows that count, η, and whether a refit converged.
        """
        omega = weights * self.row_weights
        omega[(self.indicators.T @ self.loose(omega) > 0).T] = 0.0
        fixed = self.base.lines.predictors(theta)
        if self.base.offset is not None:
            fixed += self.base.offset
        if state is None:
            state = np.zeros((len(theta), self.columns.shape[0]))
            state[:, self.effects[0]] = self.loss_function.start(self.y, self.row_weights)
        concordance = np.max(self.loss_function.self_concordance)
        curvature = np.empty_like(fixed)

        def look(alpha, lanes):
            eta = fixed[lanes] + (self.columns.T @ alpha.T).T
            slope, curvature[lanes] = self.terms(eta, omega[lanes], 1, 2)
            return np.zeros(len(alpha)), (self.columns @ slope.T).T

        def propose(state, lanes):
            step = self.factor(curvature[lanes]).solve(state.gradient[..., None])[..., 0]
            move = concordance * np.abs(step)
            largest = move.max(1)
            if len(self.level) > 1:
                move = len(self.level) * largest[:, None]
            share = np.where(move > 0, np.log1p(move) / move, 1.0)
            length = decrements(step, state.gradient)
            return Proposal(step * share, length, largest <= LAST_MOVE)

        end, converged = iterate(look, propose, state, anywhere)
        return end.theta, omega, fixed + (self.columns.T @ end.theta.T).T, converged

    def look(self, theta, weights, state=None):
        alpha, omega, eta, converged = self.profile(theta, weights, state)
        loss, slope = self.terms(eta, omega, 0, 1)
        value = np.where(converged, loss.sum(1), np.inf)
        return value, self.base.lines.pull(slope), alpha

    def linearise(self, theta, weights, state=None):
        """Return the first two derivatives of the rows' terms in η, the factor of A, and the rows
        without their means over effects, x̃, `[refits, units, params]`.
        """
        _, omega, eta, _ = self.profile(theta, weights, state)
        slope, curvature = self.terms(eta, omega, 1, 2)
        factor = self.factor(curvature)
        x = self.base.lines.rows(slice(None))
        sums = [(self.columns @ (curvature * column).T).T[..., None] for column in x.T]
        means = [(self.columns.T @ factor.solve(part)[..., 0].T).T for part in sums]
        return slope, curvature, factor, x - np.stack(means, -1)

    def hessians(self, theta, weights, state=None):
        _, curvature, _, rows = self.linearise(theta, weights, state)
        return (rows * curvature[..., None]).swapaxes(1, 2) @ rows

    def jacobian(self, theta):
        slope, *_, rows = self.linearise(theta[None], np.ones((1, self.num_units)))
        return slope[0][:, None] * rows[0]

    def leverages(self, theta, root):
        """W_n (‖L⁻¹x̃_n‖² + d_nᵀA⁻¹d_n) of each row, by the entries of A⁻¹ in its pattern."""
        ones = np.ones((1, self.num_units))
        _, curvature, factor, rows = self.linearise(theta[None], ones)
        squares = np.sum((rows[0] @ root.T) ** 2, 1)
        return curvature[0] * (squares + self.pairs.T @ (factor.inverse[0] * self.pattern.times))

    def predictions(self, theta, weights, index, kind, state=None):
        unit = np.minimum(index, self.num_units - 1)
        values = np.take_along_axis(self.profile(theta, weights, state)[2], unit, 1)
        if kind != "link":
            values = self.loss_function.inverse_link(values)
        weight = np.where(unit == index, np.take_along_axis(weights, unit, 1), 1.0)
        refit = np.repeat(np.arange(len(unit)), unit.shape[1])
        is_known = self._scorable(refit, unit.ravel(), weight.ravel())
        return np.where(is_known.reshape(unit.shape), values, np.nan)

    def losses(self, theta, weights, index, held, state=None):
        unit = np.minimum(index, self.num_units - 1)
        eta = np.take_along_axis(self.profile(theta, weights, state)[2], unit, 1)
        return self.loss_function.derivatives(eta, self.y[unit], (0,))[0]

    @property
    def units(self):
        facts = {"scorable": self._scorable, "predict_new": self._predict_new}
        if isinstance(self.loss_function, losses.Squared):
            facts["distribution"] = lambda: None
        return replace(self.base.units, **facts)

    def _predict_new(self, fit, X, kind, offset):
        """Predict rows of levels whose effects the fit has, and NaN of others."""
        if (offset is None) != (self.base.offset is None):
            raise ValueError(
                "predict: give offset=, those of the new rows, if the model has an offset, and only then."
            )
        _, X, offset = match_labels("predict", X_new=X, offset=offset)
        X = pandas_of("predict", "X_new", X)
        missing = [name for name in self.codes if name not in getattr(X, "columns", ())]
        if missing:
            raise ValueError(
                f"predict: X_new must be a table that has the absorbed factors; it lacks {missing}."
            )
        if self.read is None:
            columns = X.drop(columns=list(self.codes))
        else:
            columns = self.read(X)
        eta = new_rows("predict", columns, self.names, False) @ fit.vector
        if offset is not None:
            eta = eta + column("predict", "offset", offset, len(X))
        counted = self.row_weights > 0
        alpha = self.profile(fit.vector[None], np.ones((1, self.num_units)))[0][0]
        effects = np.full(self.indicators.shape[0] + 1, np.nan)  # the last, of unknown levels
        numbers = self.effects[:, counted]
        effects[self.level[:, counted]] = np.where(numbers >= 0, alpha[numbers], 0.0)
        level = np.array(
            [codes.reindex(X[name].tolist(), fill_value=-1) for name, codes in self.codes.items()]
        )
        eta = eta + effects[level].sum(0)
        for factor in range(1, len(level)):
            sets = np.append(self.components(counted, factor), -1)[level]
            eta[sets[0] != sets[factor]] = np.nan
        unknown = np.isnan(eta)
        if unknown.any():
            warn(
                f"predict: {unknown.sum()} rows have levels without an effect in the fit, the first at place {unknown.argmax()}; NaN."
            )
        if kind == "response":
            eta = self.loss_function.inverse_link(eta)
        return under_labels(eta, index_of(X), "prediction")

    def _scorable(self, refit, unit, weight):
        """Mark the left-out rows whose sums of effects the remaining rows determine."""
        levels = self.level[:, unit]
        keys, place = np.unique(refit * self.level.size + levels, return_inverse=True)
        place = place.reshape(levels.shape)
        scorable = np.ones(len(unit), bool)
        for pull in self.pulls * self.row_weights:
            total = (self.indicators @ pull)[levels]
            shares = np.broadcast_to((1 - weight) * pull[unit], place.shape)
            lost = np.bincount(place.ravel(), shares.ravel(), len(keys))
            # of which rounding is less
            scorable &= (total - lost[place] > 1e-12 * total).all(0)
        refits = members_by_label(level_numbers(refit))
        for factor in range(1, len(levels)):
            for entries in refits:
                counted = self.row_weights > 0
                counted[unit[entries]] &= weight[entries] > 0
                sets = self.components(counted, factor)[levels[:, entries]]
                scorable[entries] &= sets[0] == sets[factor]
        return scorable

    @property
    def full(self):
        """The same model with a column for each effect."""
        model = copy.copy(self.base)
        rows = self.base.lines.rows(slice(None))
        vars(model)["design"] = as_stored(np.hstack([rows, self.columns.T.toarray()]))
        effects = tuple(f"effect {k}" for k in range(self.columns.shape[0]))
        vars(model)["names"] = self.names + effects
        return model


@float64
def absorb_effects(build, X, y, absorb, *args, **options):
    """Build the model of a formula's columns, or of X, that absorbs the effects of the formula's
    last part, or of `absorb`.
    """
    if isinstance(X, str):
        X, *parts = split_outside(X, "|")
        if len(parts) + (absorb is not None) > 1:
            raise ValueError(
                "GLM: name absorbed factors once, 'y ~ x | state + year' or absorb=; a formula has two parts."
            )
        absorb = parts[0] if parts else absorb
    if not args:
        options = {"loss": "squared"} | options
    base = build(X, y, *args, **options | {"intercept": False})
    loss = base.loss_function
    is_plain = isinstance(base.penalty, penalties.Zero) and base.class_code is None
    if not is_plain or base.outputs > 1 or loss.self_concordance is None:
        raise ValueError(
            "GLM: effects are absorbed under losses such as 'squared', 'poisson', 'logistic' and lo.losses.NegativeBinomial(2.0), "
            f"without a penalty or class weights; got {loss!r}, {base.penalty!r}. Give columns, C(state)."
        )
    read = base.labels.read
    vars(base)["labels"] = replace(base.labels, read=None)  # no refit learns its columns anew
    factors = _factors(absorb, base)
    numbers = []
    codes_by_factor = {}
    remarks = []
    count = 0
    for name in factors:
        number, labels = codes("GLM", f"absorb ({name})", factors[name])
        numbers.append(number + count)
        # a list, as an index has fewer types than labels
        levels = pd.Series(labels).tolist()
        codes_by_factor[name] = pd.Series(range(count, count + len(levels)), levels)
        count += len(labels)
        remarks.append(f"{len(labels)} effects of {name} absorbed")
    pulls = np.ones((1, base.num_units), bool)
    if np.any(loss.self_concordance):
        ends = loss.derivatives(np.array([[-FAR], [FAR]]), base.y, (1,))[0]
        pulls = np.array([[-1], [1]]) * ends > 0
    model = AbsorbedGLM(base, np.array(numbers), pulls, codes_by_factor, read)
    weights = np.array(base.row_weights)
    separated = weights < 0
    dropped = ~separated
    while dropped.any():
        dropped = model.loose(weights[None])[model.level, 0].any(0) & (weights > 0)
        weights[dropped] = 0.0
        separated |= dropped
    warnings = []
    if separated.any():
        levels = len(np.setdiff1d(model.level[:, separated], model.level[:, weights > 0]))
        warnings.append(
            f"{levels} levels are separated, as all their y are at one end, and have no finite effect: their {separated.sum()} rows "
            "are left out, with weight zero"
        )
        vars(base)["sample_weight"] = as_stored(weights)
    if not weights.any():
        raise ValueError(f"GLM: {warnings[0]}; no row is left.")
    start = np.zeros((1, len(base.names)))
    within = model.linearise(start, np.ones((1, base.num_units)))[3][0, weights > 0]
    size = np.linalg.norm(base.lines.rows(weights > 0), axis=0)
    constant = np.linalg.norm(within, axis=0) <= 1e-9 * size
    if constant.any():
        raise ValueError(
            f"GLM: {', '.join(np.array(base.names)[constant])} do not vary within the levels of {', '.join(map(str, factors))}, whose "
            "effects hold what they explain; leave these columns out."
        )
    if isinstance(loss, losses.Binomial):
        warnings.append(
            "incidental parameters: effects of few rows each make coefficients too large"
        )
    warn("; ".join(f"GLM: {text}" for text in warnings))
    vars(base)["remark"] = join_remarks(base.remark, *remarks, *warnings)
    return model


def _factors(absorb, base):
    """Read the factors as a table, in the order of the rows."""
    if isinstance(absorb, str):
        absorb = [name.strip() for name in absorb.split("+")]
    if isinstance(absorb, list | tuple):
        if not any(np.ndim(part) or isinstance(part, str) for part in absorb):
            absorb = [absorb]  # labels of one factor
        table = base.labels.table
        columns = [named_column(table, column, "GLM: absorb") for column in absorb]
        absorb = {getattr(column, "name", k): column for k, column in enumerate(columns)}
        if len(absorb) < len(columns):
            raise ValueError(
                f"GLM: absorb= has {len(columns)} factors of the names {', '.join(map(str, absorb))}; give each a name of its own, "
                "as in a DataFrame."
            )
    table = pd.DataFrame(absorb)
    # new rows have them by name, which a number would share with features that have none
    table.columns = [name if isinstance(name, str) else f"absorb{name}" for name in table.columns]
    if base.labels.index is not None:
        table = match_labels("GLM", X=pd.Series(0, base.labels.index), absorb=table)[2]
    if len(table) != base.num_units:
        raise ValueError(
            f"GLM: absorb must have one label a row, {base.num_units}; got {len(table)}."
        )
    return table
