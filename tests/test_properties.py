"""Laws of the public verbs, on problems that hypothesis makes.

Few shapes, so that little is compiled.
"""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import leaveout as lo
from tests import oracles

N, P = 24, 2
EXACT = lo.Exact()
ORACLES = {"logistic": oracles.LOGISTIC, "poisson": oracles.POISSON}

law = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
numbers = lambda low, high: st.floats(low, high, allow_subnormal=False, width=32)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def problems(draw, *losses):
    """A loss, rows, responses and weights.

    Ties, columns of zeros and rows of weight zero are among them.
    """
    loss = draw(st.sampled_from(losses or sorted(ORACLES)))
    X = draw(hnp.arrays(np.float64, (N, P), elements=numbers(-3, 3)))
    y = draw(
        hnp.arrays(
            np.float64, N, elements=st.integers(0, 1 if loss == "logistic" else 9).map(float)
        )
    )
    weight = draw(hnp.arrays(np.float64, N, elements=st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0])))
    weight[:2] = 1.0  # somebody is there
    return loss, X, y, weight


@st.composite
def plans(draw):
    kind, seed = draw(st.sampled_from(("leave one out", "folds", "bootstrap"))), draw(seeds)
    if kind == "leave one out":
        return lo.leave_one_out(N)
    return lo.kfold(N, 4, rng=seed) if kind == "folds" else lo.bootstrap(N, 4, rng=seed)


def fitted(loss, X, y, weight):
    """A ridge of one on every coefficient, so that there is a minimiser whatever the data."""
    return lo.fit(
        lo.GLM(X, y, loss, lo.penalties.Ridge(1.0), sample_weight=weight, intercept=False)
    )


def least_squares(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, P)) + rng.normal()
    return X, X @ rng.normal(size=P) + rng.standard_t(3, N), rng.gamma(2.0, 0.5, N)


def close(a, b, tolerance=1e-6):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@law
@given(problems(), plans())
def test_refits_are_those_of_numpy(problem, plan):
    """Parameters, losses and predictions of `Exact` from scratch.

    The default is as near as it says.
    """
    loss, X, y, weight = problem
    fit = fitted(*problem)
    oracle = oracles.Rows(X, y, ORACLES[loss], oracles.ridge(1.0), weight=weight)
    theta, reached = oracles.refits(oracle, np.zeros(P), plan)
    assert reached.all()
    wanted = np.where(plan.held, oracle.scores(theta, plan), np.nan)
    cv = lo.cross_validate(fit, plan, strategy=EXACT)
    close(lo.fold_parameters(fit, plan, strategy=EXACT)["coef"], theta)
    close(cv.losses, wanted)
    default = lo.cross_validate(fit, plan)
    off = np.bincount(plan.refit, np.where(plan.held, np.abs(default.losses - wanted), 0.0))
    assert np.all(
        (off <= default.error + 1e-7) | np.isin(np.arange(plan.num_refits), default.flagged())
    )


@law
@given(problems(), plans())
def test_predictions_are_means_over_the_refits_that_leave_a_unit_out(problem, plan):
    fit = fitted(*problem)
    coef = lo.fold_parameters(fit, plan, strategy=EXACT)["coef"]
    total, times = np.zeros(N), np.zeros(N)
    for k, n in zip(plan.refit[plan.held], plan.index[plan.held], strict=True):
        total[n] += problem[1][n] @ coef[k]
        times[n] += 1
    wanted = np.where(times > 0, total / np.maximum(times, 1), np.nan)
    close(lo.cross_predict(fit, plan, strategy=EXACT, kind="link"), wanted)


@law
@given(problems(), seeds)
def test_rows_in_another_order(problem, seed):
    loss, *data = problem
    order = np.random.default_rng(seed).permutation(N)
    one, other = fitted(loss, *data), fitted(loss, *(part[order] for part in data))
    close(other.parameters["coef"], one.parameters["coef"])
    close(lo.diagnostics.leverage(other), lo.diagnostics.leverage(one)[order])
    losses = [
        lo.cross_validate(fit, lo.leave_one_out(), strategy=EXACT).losses for fit in (one, other)
    ]
    close(losses[1], losses[0][order])
    close(lo.diagnostics.cooks_distance(other), lo.diagnostics.cooks_distance(one)[order])


@law
@given(problems(), seeds)
def test_a_plan_in_another_order(problem, seed):
    """Entries within a refit, and refits within the plan."""
    fit, rng = fitted(*problem), np.random.default_rng(seed)
    plan = lo.kfold(N, 4, rng=seed)
    refits = rng.permutation(4)
    entries = np.concatenate(
        [rng.permutation(np.arange(plan.indptr[k], plan.indptr[k + 1])) for k in refits]
    )
    indptr = np.r_[0, np.cumsum(np.diff(plan.indptr)[refits])]
    other = lo.Plan(indptr, plan.index[entries], plan.weight[entries], plan.held[entries], N)
    for strategy in (EXACT, lo.NewtonStep()):
        cv, again = (lo.cross_validate(fit, p, strategy=strategy) for p in (plan, other))
        close(again.losses, cv.losses[entries], 1e-8)
        assert again.mean == pytest.approx(cv.mean, rel=1e-8)
    close(again.error, cv.error[refits])


@law
@given(problems("logistic"), st.integers(2, N - 1))
def test_weight_zero_is_a_row_that_is_not_there(problem, row):
    loss, X, y, weight = problem
    weight[row], keep = 0.0, np.arange(N) != row
    here, gone = fitted(loss, X, y, weight), fitted(loss, X[keep], y[keep], weight[keep])
    close(here.parameters["coef"], gone.parameters["coef"])
    close(lo.diagnostics.leverage(here)[keep], lo.diagnostics.leverage(gone))
    assert lo.diagnostics.leverage(here)[row] == 0
    close(lo.diagnostics.dfbetas(here).to_numpy()[row], 0)
    losses = [
        lo.cross_validate(fit, lo.leave_one_out(), strategy=EXACT).losses for fit in (here, gone)
    ]
    close(losses[0][keep], losses[1])


@law
@given(problems("poisson"), st.integers(0, N - 1))
def test_weight_two_is_a_row_that_is_there_twice(problem, row):
    loss, X, y, weight = problem
    weight[row] = 1.0
    twice = np.r_[np.arange(N), row]
    double = weight.copy()
    double[row] = 2.0
    heavy, more = fitted(loss, X, y, double), fitted(loss, X[twice], y[twice], weight[twice])
    close(heavy.parameters["coef"], more.parameters["coef"])
    close(lo.diagnostics.leverage(heavy)[row], lo.diagnostics.leverage(more)[[row, N]].sum())
    group = np.arange(N) % 4
    single = lo.cross_validate(heavy, lo.groups(group), strategy=EXACT)
    double_cv = lo.cross_validate(more, lo.groups(group[twice]), strategy=EXACT)
    close(double_cv.per_unit()[:N], single.per_unit())
    close(double_cv.mean, single.mean)


@law
@given(
    problems(),
    st.sampled_from(("X", "y", "weight", "offset")),
    st.integers(0, N - 1),
    st.sampled_from((np.nan, np.inf)),
)
def test_what_is_no_number_is_refused(problem, where, row, what):
    loss, X, y, weight = problem
    data = {"X": X, "y": y, "weight": weight, "offset": np.zeros(N)}
    data[where][row] = what
    with pytest.raises(ValueError, match=r"NaN|infinite|finite"):
        lo.GLM(data["X"], data["y"], loss, sample_weight=data["weight"], offset=data["offset"])


@law
@given(problems())
def test_an_anchor_at_the_minimiser_is_the_fit(problem):
    fit = fitted(*problem)
    again = lo.anchor(fit.objective, fit.parameters)
    close(again.hessian, fit.hessian, 1e-10)
    assert again.decrement < 1e-5
    plan = lo.leave_one_out(N)
    close(
        lo.cross_validate(again, plan, strategy=EXACT).losses,
        lo.cross_validate(fit, plan, strategy=EXACT).losses,
    )


@law
@given(problems())
def test_leverages_are_the_hat_matrix(problem):
    loss, X, _, weight = problem
    fit = fitted(*problem)
    eta = X @ fit.parameters["coef"]
    curvature = weight * ORACLES[loss].second(eta, problem[2])
    hat = X @ np.linalg.solve((X.T * curvature) @ X + np.eye(P), X.T) * curvature
    close(lo.diagnostics.leverage(fit), np.diag(hat))
    assert (
        np.all((lo.diagnostics.leverage(fit) >= 0) & (lo.diagnostics.leverage(fit) <= 1))
        and lo.diagnostics.leverage(fit).sum() <= P
    )


@law
@given(seeds, st.sampled_from((-100.0, 0.5, 30.0)))
def test_a_constant_moves_into_the_intercept(seed, constant):
    X, y, weight = least_squares(seed)
    shift = np.array([constant, 0.0])
    models = [
        lo.GLM(x, y, "squared", lo.penalties.Ridge(0.3), sample_weight=weight)
        for x in (X, X + shift)
    ]
    one, moved = map(lo.fit, models)
    close(moved.parameters["coef"], one.parameters["coef"])
    close(
        moved.parameters["intercept"],
        one.parameters["intercept"] - constant * one.parameters["coef"][0],
    )
    for verb in (
        lo.diagnostics.leverage,
        lo.diagnostics.cooks_distance,
        lo.diagnostics.studentized_residuals,
    ):
        close(verb(moved), verb(one))
    close(
        *(lo.cross_validate(fit, lo.leave_one_out(), strategy=EXACT).losses for fit in (one, moved))
    )


@law
@given(seeds, st.sampled_from((1e-2, 7.0)))
def test_influence_of_least_squares_from_scratch(seed, unit):
    """Against refits by NumPy.

    And another unit of measurement of y, or of a column, changes none of it.
    """
    X, y, weight = least_squares(seed)
    fit = lo.fit(lo.GLM(X, y, "squared", sample_weight=weight, intercept=False))
    solve = lambda keep: np.linalg.lstsq(
        np.sqrt(weight[keep])[:, None] * X[keep], np.sqrt(weight[keep]) * y[keep]
    )[0]
    spread = lambda keep, theta: (
        np.sum(weight[keep] * (y - X @ theta)[keep] ** 2) / (keep.sum() - P)
    )
    full, everyone = solve(np.ones(N, bool)), np.ones(N, bool)
    information = (X.T * weight) @ X
    for i in (0, 11):
        keep = np.arange(N) != i
        left = solve(keep)
        step, scale = left - full, spread(keep, left)
        close(
            lo.diagnostics.cooks_distance(fit)[i],
            step @ information @ step / (P * spread(everyone, full)),
        )
        close(
            lo.diagnostics.dfbetas(fit).to_numpy()[i],
            -step / np.sqrt(scale * np.diag(np.linalg.inv(information))),
        )
        hat = weight[i] * X[i] @ np.linalg.solve(information, X[i])
        close(
            lo.diagnostics.studentized_residuals(fit)[i],
            np.sqrt(weight[i] * (1 - hat) / scale) * (y[i] - X[i] @ left),
        )
    other = lo.fit(
        lo.GLM(X * [1.0, unit], y * unit, "squared", sample_weight=weight, intercept=False)
    )
    close(lo.diagnostics.dfbetas(other).to_numpy(), lo.diagnostics.dfbetas(fit).to_numpy())
    for verb in (
        lo.diagnostics.leverage,
        lo.diagnostics.cooks_distance,
        lo.diagnostics.studentized_residuals,
    ):
        close(verb(other), verb(fit))


@law
@given(problems())
def test_comparisons_are_of_pairs(problem):
    """Whatever the order they are given in; and an estimate does not differ from itself."""
    loss, X, y, weight = problem
    weight = np.maximum(weight, 0.5)
    plan = lo.leave_one_out(N)
    a, b = (
        lo.cross_validate(fitted(loss, x, y, weight), plan, strategy=EXACT)
        for x in (X, X[:, ::-1] ** 2)
    )
    with warnings.catch_warnings():
        # where models are the same any error is above a tenth of nothing
        warnings.simplefilter("ignore", UserWarning)
        table, again = lo.compare({"a": a, "b": b, "c": a}), lo.compare({"b": b, "c": a, "a": a})
    for name, cv in (("a", a), ("b", b), ("c", a)):
        close(table.loc[name, "mean"], cv.mean)
        close(table.loc[name, "difference"], cv.mean - min(a.mean, b.mean))
        close(again.loc[name, "difference"], table.loc[name, "difference"])
    assert table["mean"].is_monotonic_increasing and table["difference"].iloc[0] == 0


@law
@given(st.integers(3, 60), st.integers(2, 9), st.integers(0, 5), seeds)
def test_plans_score_what_they_say(n, size, buffer, seed):
    size = min(size, n - 1)
    for plan in (lo.leave_one_out(n), lo.kfold(n, min(size, n), rng=seed), lo.blocks(n, size)):
        assert np.array_equal(np.sort(plan.index[plan.held]), np.arange(n)) and plan.held.all()
    if size + 2 * buffer < n:
        plan = lo.blocks(n, size, buffer=buffer)
        assert np.array_equal(np.sort(plan.index[plan.held]), np.arange(n))
        for k in range(plan.num_refits):
            mine = slice(plan.indptr[k], plan.indptr[k + 1])
            held = plan.index[mine][plan.held[mine]]
            near = np.arange(max(0, held.min() - buffer), min(n, held.max() + buffer + 1))
            assert np.array_equal(np.sort(plan.index[mine]), near)
    drawn = lo.bootstrap(n, 3, rng=seed)
    assert np.all(drawn.matrix().sum(1) == n) and np.array_equal(drawn.held, drawn.weight == 0)
    for plan in (lo.random_subsets(n, 0.3, 3, rng=seed), lo.contiguous(n, 0.3, 3, rng=seed)):
        assert np.all((plan.matrix() == 0).sum(1) == max(1, round(0.3 * n)))


@law
@given(st.integers(3, 40), seeds)
def test_a_plan_is_its_splits(n, seed):
    """There and back: a bootstrap as pairs of train and test."""
    plan = lo.bootstrap(n, 3, rng=seed)
    splits = [
        (np.repeat(np.arange(n), row.astype(int)), np.flatnonzero(row == 0))
        for row in plan.matrix()
    ]
    again = lo.from_splits(splits, n)
    np.testing.assert_array_equal(again.matrix(), plan.matrix())
    np.testing.assert_array_equal(again.held, plan.held)
