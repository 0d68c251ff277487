"""Least squares under Lasso(α) or ElasticNet(α, ρ), every row left out by itself, for many α along one path.

With X the columns times the roots of the sample weights, an intercept among them, S those that are active at α, σ their signs,
A = X_SᵀX_S + ridge, r the residuals, h_i = x_iᵀA⁻¹x_i, a = αρ and g = −Xᵀr, leaving row i out makes, while S and σ stay,

    t_i = r_i/(1 − h_i),      β_j − t_i V_ij, j ∈ S,      g_j + t_i M_ij, j ∉ S,      V = X_S A⁻¹,  M = X − V X_SᵀX,

the residual, the coefficients and the gradient. They stay where these keep their signs, and |g_j + t_i M_ij| ≤ a: then t_i is
proved. Elsewhere each parameter that leaves zero, or goes there, moves the residual by what it does alone (`refit._margins`),
and that is an estimate. From one α to the next h changes by the columns that come and go: h(S ∪ J) = h(S) + Σ_j (M_J
C^{-½})_ij², C = A_JJ − X_JᵀX_S A⁻¹X_SᵀX_J. α and S are scikit-learn's, by coordinate descent on XᵀX, brought to the end.
"""

import functools
from collections.abc import Iterator

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from ._kinks import TIED
from ._plan import Plan
from ._proved import ROUNDING
from ._ridge import applies as is_least_squares
from .models.penalties import AbstractPenalty, ElasticNet, Lasso
from .refit._anchor import SINGULAR
from .refit._stacked import Settled

Array = np.ndarray
TURNS = 50  # that the active columns may change by at an α before it is given up
WIDE = 10_000  # active columns times those that may change: beyond it a few rows tell which of them do, and nothing is proved
DRAWN = 500  # of these rows
MANY = 250  # active columns beyond which a few rows tell by how much losses are off, and float32 the leverages
SAMPLED, SAFETY, SINGLE = 200, 3.0, 1e-5  # of these rows; of what they tell; what float32 loses
TOGETHER = 10  # α whose residuals, and leverages, are a product
ANEW = 0.5  # of the columns, that come and go: then leverages are made anew


def applies(objective: object, named: list[AbstractPenalty], plan: Plan) -> bool:
    """Is it such a path?"""
    if not named or not all(isinstance(each, Lasso | ElasticNet) and each.kinked and not each.alpha.ndim for each in named):
        return False
    if not is_least_squares(objective) or len({_ratio(each) for each in named}) > 1:
        return False
    weight = objective.sample_weight  # type: ignore[attr-defined]
    return bool((plan.weight == 0).all() and plan.held.all() and (weight is None or (weight > 0).all()))


def _ratio(penalty: AbstractPenalty) -> float:
    return float(penalty.l1_ratio) if isinstance(penalty, ElasticNet) else 1.0


class Rows:
    """The columns times the roots of weights, and their products."""

    def __init__(self, objective):
        self.root = np.ones(objective.num_units) if objective.sample_weight is None else np.sqrt(objective.sample_weight)
        offset = 0.0 if objective.offset is None else objective.offset
        self.free = objective.design.shape[1] - objective.num_features  # columns without a penalty
        x = np.asarray(objective.design)
        self.x = x if objective.sample_weight is None else x * self.root[:, None]
        self.y = self.root * (objective.y - offset)
        self.gram, self.pull = self.x.T @ self.x, self.x.T @ self.y
        self.largest, self.length = np.maximum(self.x.max(0), -self.x.min(0)), np.sqrt(np.einsum("np,np->n", self.x, self.x))

    @functools.cached_property
    def single(self) -> Float[Array, "units params"]:
        """The columns in float32."""
        return np.asarray(self.x, np.float32)

    def path(self, alphas: Float[Array, " alphas"], ratio: float) -> Float[Array, "alphas features"]:
        """Coefficients of falling α by coordinate descent, of columns less what the intercept takes of them."""
        from sklearn.linear_model import enet_path

        x, y = self.x, self.y
        if self.free:
            one = x[:, -1] / np.linalg.norm(x[:, -1])
            x, y = x[:, :-1] - np.multiply.outer(one, one @ x[:, :-1]), y - one * (one @ y)
        gram = x.T @ x
        more = {"precompute": gram, "Xy": x.T @ y, "tol": 1e-5, "max_iter": 10_000}
        return enet_path(x, y, l1_ratio=ratio, alphas=alphas / len(y), **more)[1].T


class Minimum:
    """The minimiser at one α: its active columns, A⁻¹, and what leaving out needs."""

    def __init__(self, rows: Rows, theta: Float[Array, " params"], a: float, ridge: float):
        self.rows, self.a, self.ridge, self.converged = rows, a, ridge, False
        free = np.zeros(len(rows.gram), bool)
        free[len(free) - rows.free :] = True
        sign = np.where(free, 0.0, np.sign(theta))
        for _ in range(TURNS):
            active = np.flatnonzero(free | (sign != 0))
            own = rows.gram[np.ix_(active, active)] + np.diag(np.where(free[active], 0.0, ridge))
            try:
                factor = scipy.linalg.cho_factor(own, lower=True)
            except np.linalg.LinAlgError:
                return
            found = scipy.linalg.cho_solve(factor, rows.pull[active] - a * sign[active])
            self.gradient = rows.gram[:, active] @ found - rows.pull
            leaving = active[found * sign[active] < 0]
            joining = np.flatnonzero((sign == 0) & ~free & (np.abs(self.gradient) > a * (1 + TIED)))
            if not (leaving.size or joining.size):
                break
            sign[leaving] = 0.0
            sign[joining] = -np.sign(self.gradient[joining])
        else:
            return
        self.active, self.sign, self.coef, self.converged = active, sign[active], found, True
        self.others, self.factor = np.flatnonzero((sign == 0) & ~free), factor

    @functools.cached_property
    def inverse(self) -> Float[Array, "active active"]:
        """A⁻¹."""
        half = scipy.linalg.lapack.dpotri(self.factor[0], lower=1)[0]
        return np.tril(half) + np.tril(half, -1).T

    @property
    def many(self) -> bool:
        """Are so many columns active that a sample of rows tells which others move?"""
        return len(self.active) > MANY

    @property
    def theta(self) -> Float[Array, " params"]:
        out = np.zeros(len(self.rows.gram))
        out[self.active] = self.coef
        return out

    def changed(self, before: "Minimum | None") -> tuple[Array, Float[Array, " some"]] | None:
        """W and signs ±, with which h is that of `before` + Σ ± (xᵀW)²; None where too many columns come and go for it."""
        if before is None or self.ridge != before.ridge:
            return None
        coming, going = np.setdiff1d(self.active, before.active), np.setdiff1d(before.active, self.active)
        if len(coming) + len(going) > ANEW * len(self.active):
            return None
        parts = [part._beside(more) for part, more in ((before, coming), (self, going))]
        return np.concatenate(parts, axis=1), np.repeat([1.0, -1.0], [len(coming), len(going)])

    def _beside(self, more: Int[Array, " more"]) -> Float[Array, "params more"]:
        """W of some more columns, which add Σ (xᵀW)² to h."""
        gram, out = self.rows.gram, np.zeros((len(self.rows.gram), len(more)))
        if more.size:
            along = scipy.linalg.cho_solve(self.factor, gram[np.ix_(self.active, more)])
            left = gram[np.ix_(more, more)] - gram[np.ix_(more, self.active)] @ along + self.ridge * np.eye(len(more))
            root = scipy.linalg.solve_triangular(np.linalg.cholesky(left), np.eye(len(more)), lower=True).T
            out[more], out[self.active] = root, -along @ root
        return out

    def leverage(self) -> Float[Array, " units"]:
        """h."""
        own = self.rows.x[:, self.active]
        return np.einsum("ns,ns->n", own @ self.inverse, own)

    def sampled(self, t: Float[Array, " units"]) -> tuple[Array, Array, Bool[Array, " units"]]:
        """What `left_out` says, told by what the parameters do of some rows: about b₁ t + b₂ t |t| of all. What is left of it
        is, where t is large, in proportion to |t|^{3/2}: more parameters move, and each by more."""
        rows, active, others = self.rows, self.active, self.others
        some = np.random.default_rng(0).choice(len(t), min(SAMPLED, len(t)), replace=False)
        x, mine = rows.x[some], t[some]
        move, size = np.zeros((2, len(some)))
        along = scipy.linalg.cho_solve(self.factor, x[:, active].T).T
        h = np.einsum("us,us->u", along, x[:, active])
        beside = x[:, others] - along @ rows.gram[np.ix_(active, others)]
        gradient, value = self.gradient[others] + mine[:, None] * beside, self.coef - mine[:, None] * along
        spread = lambda right: np.sum(scipy.linalg.solve_triangular(self.factor[0], right, lower=True) ** 2, axis=0)
        unit, column = np.nonzero(np.abs(gradient) > self.a)
        if unit.size:
            listed, each = np.unique(column, return_inverse=True)
            bent = np.diag(rows.gram)[others[listed]] + self.ridge - spread(rows.gram[np.ix_(active, others[listed])])
            beyond = gradient[unit, column] - self.a * np.sign(gradient[unit, column])
            _moved(move, size, unit, beside[unit, column], bent[each], beyond, h, -1.0)
        unit, column = np.nonzero((value * self.sign <= 0) & (self.sign != 0))
        if unit.size:
            listed, each = np.unique(column, return_inverse=True)
            bent = spread(np.eye(len(active))[:, listed])
            _moved(move, size, unit, along[unit, column], bent[each], value[unit, column], h, 1.0)
        drawn, level = np.stack([t, t * np.abs(t)], axis=1), max(float(np.sqrt(np.mean(t**2))), 1e-300)
        bend, length = np.linalg.lstsq(drawn[some], move, rcond=None)[0], level * np.maximum(np.abs(t) / level, 1.0) ** 1.5
        share = np.sqrt(np.mean(((move - drawn[some] @ bend) / length[some]) ** 2))
        return t + drawn @ bend, (SAFETY * share + SINGLE) * length, np.zeros(len(t), bool)

    def left_out(
        self, residual: Float[Array, " units"], h: Float[Array, " units"]
    ) -> tuple[Array, Array, Bool[Array, " units"]]:
        """The residual of every row from a refit without it, how far that may be off, and where it is proved."""
        rows, active, t = self.rows, self.active, residual / (1 - h)
        if self.many:
            return self.sampled(t)
        move, size = np.zeros((2, len(t)))
        level, coef = np.abs(self.gradient[self.others]), np.abs(self.coef)
        across = rows.gram[np.ix_(active, self.others)]
        inside, penalised, spread = self.inverse @ across, self.sign != 0, np.sqrt(np.diag(self.inverse))
        taken = np.einsum("sj,sj->j", across, inside)
        far = float(np.max(np.abs(t) * np.sqrt(np.maximum(h, 0.0))))
        reach = np.abs(t).max() * rows.largest[self.others] + far * np.sqrt(np.maximum(taken, 0.0))
        slack = TIED * self.a
        close, near = self._within(level + reach, coef - far * spread, slack)
        whole = len(active) * (close.size + near.size) <= WIDE
        data = rows.x if whole else rows.single
        if not whole:  # by what a few rows do
            some = np.random.default_rng(0).choice(len(t), min(DRAWN, len(t)), replace=False)
            x, weight = rows.x[some][:, active], np.abs(t[some, None])
            reach = np.max(weight * np.abs(rows.x[np.ix_(some, self.others)] - x @ inside), axis=0, initial=0.0)
            close, near = self._within(level + reach, coef - np.max(weight * np.abs(x @ self.inverse), axis=0), slack)
        if close.size:
            j = self.others[close]
            beside = data[:, j] - data[:, active] @ inside[:, close].astype(data.dtype)
            gradient = self.gradient[j] + t[:, None] * beside
            unit, column = np.nonzero(np.abs(gradient) > self.a - slack)
            beyond = gradient[unit, column] - self.a * np.sign(gradient[unit, column])
            bent = (rows.gram[j, j] + self.ridge - taken[close])[column]
            _moved(move, size, unit, beside[unit, column], bent, beyond, h, -1.0)
        if near.size:
            along = data[:, active] @ self.inverse[:, near].astype(data.dtype)
            value = self.coef[near] - t[:, None] * along
            unit, column = np.nonzero((value * self.sign[near] <= 0) & penalised[near])
            _moved(move, size, unit, along[unit, column], spread[near][column] ** 2, value[unit, column], h, 1.0)
        return t + move, size if whole else np.maximum(size, size.mean()), (size == 0) & whole

    def _within(self, level: Float[Array, " others"], least: Float[Array, " active"], slack: float) -> tuple[Array, Array]:
        """Which others may reach a, and which active ones zero."""
        return np.flatnonzero(level >= self.a - slack), np.flatnonzero((least <= 0) & (self.sign != 0))


def _moved(
    move: Array, size: Array, unit: Int[Array, " pairs"], along: Array, bent: Array, beyond: Array, h: Array, side: float
) -> None:
    """Adds how residuals of rows move, each by a parameter that goes by `beyond`/`bent` along a direction which is `along` at
    the row, without it `along`/(1 − h); without the row `bent` is less, for parameters that join, or more."""
    kept = 1 - h[unit]
    bent = bent + side * along**2 / kept
    each = np.divide(along / kept * beyond, bent, out=np.zeros(len(unit)), where=bent > 0)
    np.add.at(move, unit, each)
    np.add.at(size, unit, np.maximum(np.abs(each), 1e-300))


def lassos(objective, penalties: list[AbstractPenalty], plan: Plan) -> Settled:
    """Of every penalty; `plan` leaves out single rows."""
    rows, ratio, unit = Rows(objective), _ratio(penalties[0]), plan.index
    alphas = np.array([float(each.alpha) for each in penalties])  # type: ignore[attr-defined]
    order, count = np.argsort(-alphas), len(alphas)
    start = rows.path(alphas[order], ratio)
    theta, bad = np.zeros((count, len(rows.gram))), np.ones(count, bool)
    losses, error, baseline = np.full((3, count, len(unit)), np.nan)
    proved, before = np.zeros((count, len(unit)), bool), None
    for some in (slice(k, k + TOGETHER) for k in range(0, count, TOGETHER)):
        made = [
            (k, Minimum(rows, np.append(coef, np.zeros(rows.free)), alphas[k] * ratio, alphas[k] * (1 - ratio)))
            for k, coef in zip(order[some].tolist(), start[some], strict=True)
        ]
        made = [(k, own) for k, own in made if own.converged and len(own.active)]
        if not made:
            continue
        residuals = rows.y - np.stack([own.theta for _, own in made]) @ rows.x.T
        leverages = list(_leverages(rows, [own for _, own in made], before))
        before = made[-1][1], leverages[-1]
        for (k, own), residual, h in zip(made, residuals, leverages, strict=True):
            if not (1 - h).min() > SINGULAR:
                continue
            left, half, known = (part[unit] for part in own.left_out(residual, h))
            root, scale = rows.root[unit], np.linalg.norm(own.coef) * rows.length[unit]
            half = half + 16 * ROUNDING * (scale + np.abs(rows.y[unit])) / (1 - h[unit])
            theta[k], bad[k], proved[k] = own.theta, False, known
            losses[k], error[k] = 0.5 * (left / root) ** 2, (np.abs(left) + 0.5 * half) * half / root**2
            baseline[k] = 0.5 * (residual[unit] / root) ** 2
    weight = rows.root[unit] ** 2
    mean = losses @ (weight / weight.sum())
    return Settled(theta, baseline, losses, error, proved, np.zeros_like(proved), None, np.ones(count), mean, bad)


def _leverages(rows: Rows, made: list[Minimum], before: tuple[Minimum, Array] | None) -> Iterator[Float[Array, " units"]]:
    """h at one α after another, by one product with all columns that come and go; in float32 where many are active."""
    changes = [own.changed(last) for last, own in zip([None if before is None else before[0], *made], made, strict=False)]
    listed = [change for change in changes if change is not None]
    rough = any(own.many for own in made)
    data = rows.single if rough else rows.x
    both = np.concatenate([change[0] for change in listed], axis=1) if listed else np.zeros((len(rows.gram), 0))
    square = data @ both.astype(data.dtype)
    np.square(square, out=square)
    end, h = 0, None if before is None else before[1]
    for own, change in zip(made, changes, strict=True):
        if change is None or h is None:
            h = own.leverage()
        else:
            first, end = end, end + len(change[1])
            h = h + square[:, first:end] @ change[1].astype(data.dtype)
        yield h
