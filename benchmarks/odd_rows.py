"""Odd rows and columns: ranks, scales, weights, leverages, tails; one function a kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import repository  # noqa: F401  puts the tests in reach
import scipy.interpolate
from sklearn.base import clone
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import KFold, LeaveOneOut, cross_validate
from tests.oracles.exact import (
    GAMMA,
    LOGISTIC,
    POISSON,
    Training,
    Truth,
    glm_truth,
    host_truth,
    squares_truth,
    trainings,
)
from tests.problems.tally import Tally, attempted, each_plan, judged, told, value

import leaveout as lo

Array = np.ndarray
Generator = np.random.Generator


def plans(rng: Generator, n: int, resamples: int = 6) -> list[lo.Plan]:
    """Rows, five groups, a bootstrap."""
    seed = int(rng.integers(2**31))
    return [
        lo.leave_one_out(n),
        lo.groups(rng.permutation(np.arange(n) % 5)),
        lo.bootstrap(n, resamples, rng=seed),
    ]


def response(rng: Generator, X: Array) -> Array:
    spread = np.std(X, axis=0)
    return (X / np.where(spread > 0, spread, 1.0)) @ rng.standard_normal(
        X.shape[1]
    ) + rng.standard_normal(len(X))


def least_squares(
    rng: Generator, X: Array, y: Array | None = None, weight: Array | None = None, **options: Any
) -> Tally:
    """`LinearRegression` of these rows, under every plan, and by scikit-learn's call."""
    host = LinearRegression(**options)
    y = response(rng, X) if y is None else y
    mine = clone(host).fit(X, y, sample_weight=weight)
    fit = lambda: lo.from_sklearn(mine, X, y, sample_weight=weight)
    wide, long = np.asarray(X, float), np.asarray(y, float)
    return each_plan(fit, plans(rng, len(y)), host_truth(host, wide, long, weight))


def few_rows(rng: Generator) -> Tally:
    return least_squares(rng, rng.standard_normal((20, 33)))


def few_rows_no_intercept(rng: Generator) -> Tally:
    return least_squares(rng, rng.standard_normal((16, 24)), fit_intercept=False)


def one_more_row(rng: Generator) -> Tally:
    """n = p + 1: with the intercept, as many coefficients as rows."""
    return least_squares(rng, rng.standard_normal((14, 13)))


def about_as_many(rng: Generator) -> Tally:
    return least_squares(rng, rng.standard_normal((16, 16 - int(rng.integers(-1, 4)))))


def near_square(rng: Generator) -> Tally:
    return least_squares(rng, rng.standard_normal((30, 28)))


def few_rows_scored(rng: Generator) -> Tally:
    """The same by scikit-learn's call: scores of folds, and their errors."""
    n, p = 24, int(rng.choice([23, 24, 40]))
    X = rng.standard_normal((n, p))
    y = response(rng, X)
    call = {
        "cv": LeaveOneOut() if rng.random() < 0.5 else KFold(8),
        "scoring": "neg_mean_squared_error",
    }
    ours, said = told(lambda: lo.sklearn.cross_validate(LinearRegression(), X, y, **call))
    truth = cross_validate(LinearRegression(), X, y, **call)["test_score"]
    return value(
        "scores", ours["test_score"], truth, 1e-6, ours["approximation_error"], "refit" in said
    )


def few_rows_parameters(rng: Generator) -> Tally:
    """The coefficients of every refit, of minimum norm as the host's are."""
    X = rng.standard_normal((16, int(rng.choice([15, 16, 24]))))
    y = response(rng, X)
    plan = lo.groups(rng.permutation(np.arange(16) % 4))
    found = lo.fold_parameters(lo.from_sklearn(LinearRegression().fit(X, y), X, y), plan)
    truth = np.array([LinearRegression().fit(X[t.rows], y[t.rows]).coef_ for t in trainings(plan)])
    return value("coefficients", found["coef"], truth, 1e-6)


def few_rows_named_score(rng: Generator) -> Tally:
    """A score by name, which is twice the loss."""
    X = rng.standard_normal((16, int(rng.choice([15, 16, 24]))))
    y = response(rng, X)
    truth = host_truth(LinearRegression(), X, y)
    twice = lambda plan: (known := truth(plan))._replace(
        losses=2 * known.losses, slack=2 * known.slack
    )
    fit = lambda: lo.from_sklearn(LinearRegression().fit(X, y), X, y)
    return each_plan(fit, plans(rng, 16), twice, evaluate="squared_error")


def levels(rng: Generator, n: int, number: int) -> Array:
    """Codes that have every level, some of them once."""
    return rng.permutation(
        np.r_[np.arange(number), rng.integers(0, max(number - 2, 1), n - number)]
    )


def one_hot(rng: Generator) -> Tally:
    """Dummies of every level of two factors, with an intercept: the dummy trap twice."""
    X = np.c_[
        np.eye(4)[rng.integers(0, 4, 30)],
        np.eye(3)[rng.integers(0, 3, 30)],
        rng.standard_normal(30),
    ]
    return least_squares(rng, X)


def rare_level(rng: Generator) -> Tally:
    """A level that one row has, its dummy beside all others and an intercept: leverage one."""
    return least_squares(rng, np.c_[np.eye(5)[levels(rng, 30, 5)], rng.standard_normal((30, 2))])


def spline_basis(rng: Generator) -> Tally:
    """B-splines sum to one, and so does the intercept."""
    x = np.sort(rng.random(30))
    knots = np.r_[[0.0] * 4, np.quantile(x, [0.3, 0.6]), [1.0] * 4]
    return least_squares(rng, scipy.interpolate.BSpline.design_matrix(x, knots, 3).toarray())


def collinear(apart: float) -> Callable[[Generator], Tally]:
    def kind(rng: Generator) -> Tally:
        X = rng.standard_normal((24, 4))
        X[:, 3] = X[:, 0] + apart * rng.standard_normal(24)
        return least_squares(rng, X)

    return kind


def repeated_rows(rng: Generator) -> Tally:
    """Fewer distinct rows than columns."""
    return least_squares(rng, rng.standard_normal((7, 9))[levels(rng, 24, 7)])


def nine_distinct_rows(rng: Generator) -> Tally:
    """Resamples of twelve rows have about eight distinct ones, for ten coefficients."""
    X = rng.standard_normal((12, 9))
    y = response(rng, X)
    plan = lo.bootstrap(12, 20, rng=int(rng.integers(2**31)))
    host = LinearRegression()
    return each_plan(
        lambda: lo.from_sklearn(clone(host).fit(X, y), X, y), [plan], host_truth(host, X, y)
    )


def constant_columns(rng: Generator) -> Tally:
    X = rng.standard_normal((24, 5))
    X[:, 1], X[:, 3] = 0.0, 7.0
    return least_squares(rng, X)


def column_scales(rng: Generator) -> Tally:
    return least_squares(rng, rng.standard_normal((24, 5)) * 10.0 ** np.array([-8, -4, 0, 4, 8]))


def leverage_one(rng: Generator) -> Tally:
    """A column that one row alone has: the others leave its coefficient at zero."""
    X = rng.standard_normal((20, 3))
    X[:, 0] = np.arange(20) == int(rng.integers(20))
    return least_squares(rng, X)


def leverage_near_one(rng: Generator) -> Tally:
    X = rng.standard_normal((20, 3))
    X[int(rng.integers(20)), 0] = 10.0 ** rng.uniform(3, 8)
    return least_squares(rng, X)


def weights_apart(rng: Generator) -> Tally:
    X = rng.standard_normal((24, 4))
    return least_squares(rng, X, weight=rng.choice([0.0, 1.0, 1e6], 24, p=[0.2, 0.7, 0.1]))


def weights_lognormal(rng: Generator) -> Tally:
    return least_squares(
        rng, rng.standard_normal((24, 4)), weight=np.exp(3 * rng.standard_normal(24))
    )


def weights_and_few_rows(rng: Generator) -> Tally:
    return least_squares(rng, rng.standard_normal((16, 22)), weight=np.exp(rng.standard_normal(16)))


def large_response(rng: Generator) -> Tally:
    X = rng.standard_normal((24, 4))
    y = 1e12 + response(rng, X)
    fit = lambda: lo.from_sklearn(LinearRegression().fit(X, y), X, y)
    return each_plan(fit, plans(rng, 24), rounded(squares_truth(X, y), 1e12))


def rounded(truth: Callable[[lo.Plan], Truth], size: float) -> Callable[[lo.Plan], Truth]:
    """A truth of residuals that are differences of numbers so large.

    These have a unit in the last place.
    """

    def known(plan: lo.Plan) -> Truth:
        exact = truth(plan)
        off = 64 * np.finfo(float).eps * size
        return exact._replace(slack=off * (np.sqrt(2 * np.abs(exact.losses)) + off))

    return known


def shifted_columns(rng: Generator) -> Tally:
    """X + 1e8: a year in seconds, beside a spread of one."""
    X = 1e8 + rng.standard_normal((24, 3))
    return least_squares(rng, X, response(rng, X - 1e8))


def easting(rng: Generator) -> Tally:
    """statsmodels' OLS, whose constant is a column, on metres from far away."""
    import statsmodels.api as sm

    X = np.c_[4.5e6 + 1e3 * rng.standard_normal(24), rng.standard_normal(24)]
    y = response(rng, X - [4.5e6, 0.0])
    fit = lambda: lo.from_statsmodels(sm.OLS(y, sm.add_constant(X)).fit())
    return each_plan(fit, plans(rng, 24), squares_truth(X, y))


def polynomial(rng: Generator) -> Tally:
    """Powers of a number between one and three, up to the eighth."""
    X = (1 + 2 * rng.random(30))[:, None] ** np.arange(1, 9)
    y = response(rng, X[:, :1])
    return each_plan(
        lambda: lo.fit(lo.GLM(X, y, "squared")), [lo.leave_one_out(30)], squares_truth(X, y)
    )


def ridge_far_from_zero(rng: Generator) -> Tally:
    X = np.c_[2.45e6 + rng.standard_normal(24), rng.standard_normal((24, 2))]
    y = response(rng, X - [2.45e6, 0.0, 0.0])
    fit = lambda: lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(0.5)))
    return each_plan(fit, plans(rng, 24), squares_truth(X, y, 0.5))


def ridge_by_rows(rng: Generator) -> Tally:
    """So many columns that the matrix of the rows takes their place."""
    X = rng.standard_normal((12, 520)) + 1e4 * (np.arange(520) == 3)
    y = response(rng, X[:, :2])
    fit = lambda: lo.from_sklearn(Ridge(50.0).fit(X, y), X, y)
    return each_plan(fit, [lo.leave_one_out(12)], squares_truth(X, y, 50.0))


def single_precision(rng: Generator) -> Tally:
    """float32 rows and responses: the numbers are those of float64 arithmetic on them."""
    X = rng.standard_normal((24, 3)).astype(np.float32)
    y = response(rng, X).astype(np.float32)
    exact = X.astype(float), y.astype(float)
    fit = lambda: lo.from_sklearn(LinearRegression().fit(*exact), X, y)
    return each_plan(fit, plans(rng, 24), squares_truth(*exact))


def whole_response(rng: Generator) -> Tally:
    X = rng.integers(-3, 4, (24, 3))
    y = rng.integers(0, 9, 24).astype(rng.choice(["int8", "int64", "uint8"]))
    exact = X.astype(float), y.astype(float)
    return each_plan(
        lambda: lo.from_sklearn(LinearRegression().fit(X, y), X, y),
        plans(rng, 24),
        squares_truth(*exact),
    )


def offset_of_a_million(rng: Generator) -> Tally:
    X, offset = rng.standard_normal((24, 3)), 1e6 + rng.standard_normal(24)
    y = offset + response(rng, X)
    fit = lambda: lo.fit(lo.GLM(X, y, "squared", offset=offset))
    return each_plan(fit, plans(rng, 24), rounded(squares_truth(X, y, offset=offset), 1e6))


def pseudo_inverse(rng: Generator) -> Tally:
    """statsmodels solves by a pseudo-inverse.

    Dummies of every level and a constant have a refit, of minimum norm.
    """
    import statsmodels.api as sm

    X = np.c_[np.ones(30), np.eye(4)[levels(rng, 30, 4)], rng.standard_normal(30)]
    y = response(rng, X[:, 1:])

    def fold(training: Training) -> tuple[Array, Array, bool]:
        mine = sm.OLS(y[training.rows], X[training.rows]).fit()
        loss = (y[training.held] - mine.predict(X[training.held])) ** 2 / 2
        return loss, 1e-9 * (1 + loss), False

    fit = lambda: lo.from_statsmodels(sm.OLS(y, X).fit())
    return each_plan(fit, plans(rng, 30), lambda plan: Truth.of(plan, fold))


# ridge


def ridge(
    rng: Generator, X: Array, alpha: float, y: Array | None = None, weight: Array | None = None
) -> Tally:
    y = response(rng, X) if y is None else y
    fit = lambda: lo.from_sklearn(
        Ridge(alpha, solver="svd").fit(X, y, weight), X, y, sample_weight=weight
    )
    size = float(np.max(np.abs(y)))
    return each_plan(fit, plans(rng, len(y), 4), rounded(squares_truth(X, y, alpha, weight), size))


def ridge_far_below(rng: Generator) -> Tally:
    """A penalty of one beside curvatures of 1e14, and more columns than rows."""
    X = 1e7 * rng.standard_normal((12, 20))
    return ridge(rng, X, 1.0, 1e6 + 100 * rng.standard_normal(12))


def ridge_many_columns(rng: Generator) -> Tally:
    return ridge(rng, rng.standard_normal((12, 200)), float(10.0 ** rng.uniform(-3, 3)))


def ridge_tiny(rng: Generator) -> Tally:
    return ridge(
        rng,
        rng.standard_normal((14, int(rng.choice([4, 13, 20])))),
        float(10.0 ** rng.uniform(-12, -6)),
    )


def ridge_collinear(rng: Generator) -> Tally:
    X = rng.standard_normal((16, 4))
    X[:, 3] = X[:, 0] + 10.0 ** rng.uniform(-10, -4) * rng.standard_normal(16)
    return ridge(rng, X, float(10.0 ** rng.uniform(-8, 0)))


def ridge_column_scales(rng: Generator) -> Tally:
    return ridge(rng, rng.standard_normal((16, 5)) * 10.0 ** np.array([-8, -4, 0, 4, 8]), 1.0)


def ridge_weights(rng: Generator) -> Tally:
    weight = rng.choice([0.0, 1.0, 1e6], 16, p=[0.2, 0.7, 0.1])
    return ridge(rng, rng.standard_normal((16, 4)), 0.1, weight=weight)


def path_of_tiny_penalties(rng: Generator) -> Tally:
    """Many penalties in one call, the least of them almost nothing.

    A twin column, or more columns than rows.
    """
    X = rng.standard_normal((14, int(rng.choice([4, 20]))))
    X[:, 1] = X[:, 0] + 1e-5 * rng.standard_normal(14)
    y = response(rng, X)
    alphas = [1e-8, 1e-4, 1.0, 100.0]
    found = Tally()
    for plan in plans(rng, 14, 4):
        path = lo.path(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0)), alphas, plan)
        for alpha, cv in zip(alphas, path.estimates, strict=True):
            found += judged(cv, squares_truth(X, y, alpha)(plan), f"alpha {alpha:g}")
    return found


# other losses


def predicted(eta: Array, rng: Generator) -> Array:
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-np.clip(eta, -30, 30)))).astype(float)


def classes(
    rng: Generator, X: Array, y: Array, C: float, folds: list[lo.Plan], weight: Array | None = None
) -> Tally:
    """`LogisticRegression` with a penalty 1/C, against sixty digits."""
    if len(np.unique(y)) < 2:
        y[:2] = [0.0, 1.0]
    host = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(
        X, y, weight
    )
    theta = np.r_[host.coef_[0], host.intercept_]
    fit = lambda: lo.from_sklearn(host, X, y, sample_weight=weight)
    return each_plan(fit, folds, glm_truth(LOGISTIC, X, y, 1 / C, theta, weight))


def small_plans(rng: Generator, n: int) -> list[lo.Plan]:
    return [lo.leave_one_out(n), lo.groups(rng.permutation(np.arange(n) % 4))]


def dummies_of_classes(rng: Generator) -> Tally:
    """statsmodels' logit of dummies of every level and a constant.

    Coefficients are not unique, predictions are.
    """
    import statsmodels.api as sm

    level = rng.permutation(np.arange(36) % 3)
    X = np.c_[np.ones(36), np.eye(3)[level], rng.standard_normal(36)]
    y = predicted(0.5 * level + X[:, -1], rng)
    y[:12], level_of = np.resize([0.0, 1.0], 12), np.argmax(X[:, 1:4], axis=1)
    for k in range(3):  # both answers in every level, often
        y[np.flatnonzero(level_of == k)[:4]] = [0.0, 1.0, 0.0, 1.0]
    family = sm.families.Binomial()
    (results, _) = told(lambda: sm.GLM(y, X, family=family).fit(tol=1e-12, maxiter=200))
    b = results.params
    if not results.converged or np.abs(b).max() > 50:
        return Tally()  # the classes do not overlap: there is no minimum, and the host found none
    full = X[:, 2:]  # a basis of the same space
    theta = np.r_[b[2] - b[1], b[3] - b[1], b[4], b[0] + b[1]]
    return each_plan(
        lambda: lo.from_statsmodels(results),
        small_plans(rng, 36),
        glm_truth(LOGISTIC, full, y, 0.0, theta),
    )


def near_separation(rng: Generator) -> Tally:
    """Classes that hardly overlap, or do not.

    The small penalty alone keeps the coefficients finite.
    """
    X = rng.standard_normal((16, 2))
    y = (X[:, 0] + 0.1 * rng.standard_normal(16) > 0).astype(float)
    return classes(rng, X, y, float(10.0 ** rng.uniform(0, 4)), small_plans(rng, 16))


def separated_without_penalty(rng: Generator) -> Tally:
    """One row alone keeps the classes apart from being separable: its own refit does not exist."""
    x = np.sort(rng.standard_normal(16))
    y = (np.arange(16) >= 8).astype(float)
    y[3] = 1.0
    X = x[:, None]
    (fit, _) = told(lambda: lo.fit(lo.GLM(X, y, "logistic")))
    truth = glm_truth(
        LOGISTIC, X, y, 0.0, np.r_[fit.parameters["coef"], fit.parameters["intercept"]]
    )
    return each_plan(lambda: fit, [lo.leave_one_out(16)], truth)


def logistic_tails(rng: Generator) -> Tally:
    """Linear predictors of hundreds."""
    X = np.c_[rng.standard_normal(16), 10.0 ** rng.uniform(1, 3) * rng.standard_normal(16)]
    return classes(rng, X, predicted(X[:, 0] + X[:, 1] / 50, rng), 1.0, small_plans(rng, 16))


def logistic_weights(rng: Generator) -> Tally:
    X = rng.standard_normal((16, 2))
    return classes(
        rng,
        X,
        predicted(X[:, 0], rng),
        1.0,
        small_plans(rng, 16),
        np.exp(3 * rng.standard_normal(16)),
    )


def logistic_column_scales(rng: Generator) -> Tally:
    X = rng.standard_normal((16, 3)) * [1e-4, 1.0, 1e4]
    return classes(rng, X, predicted(1e4 * X[:, 0] + X[:, 1], rng), 1.0, small_plans(rng, 16))


def logistic_shifted(rng: Generator) -> Tally:
    X = rng.standard_normal((16, 2)) + np.array([0.0, 1e5])
    return classes(rng, X, predicted(X[:, 0], rng), 1.0, small_plans(rng, 16))


def large_counts(rng: Generator) -> Tally:
    X = rng.standard_normal((14, 2))
    y = rng.poisson(np.exp(rng.uniform(8, 18) + X @ [0.3, -0.2])).astype(float)
    (fit, _) = told(lambda: lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(0.1))))
    return counts_or_costs(rng, fit, POISSON, X, y, 0.1)


def mostly_zero_counts(rng: Generator) -> Tally:
    """A count or two among zeros, and a small penalty."""
    X = rng.standard_normal((14, 2))
    y = np.zeros(14)
    y[rng.integers(0, 14, 3)] = rng.integers(1, 4, 3)
    (fit, _) = told(lambda: lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(0.01))))
    return counts_or_costs(rng, fit, POISSON, X, y, 0.01)


def tiny_costs(rng: Generator) -> Tally:
    """Gamma responses over twelve orders of magnitude."""
    X = rng.standard_normal((14, 2))
    y = np.exp(rng.uniform(-12, 12) + X @ [0.5, -0.5]) * np.maximum(rng.gamma(0.2, 5.0, 14), 1e-8)
    (fit, _) = told(lambda: lo.fit(lo.GLM(X, y, "gamma", lo.penalties.Ridge(0.1))))
    return counts_or_costs(rng, fit, GAMMA, X, y, 0.1)


def counts_or_costs(
    rng: Generator, fit: lo.Fit, law: Any, X: Array, y: Array, alpha: float
) -> Tally:
    """What the library's loss lacks of the law's, or has beside it, is a constant of each row.

    Seen at θ̂.
    """
    theta = np.r_[fit.parameters["coef"], fit.parameters["intercept"]]
    exact = glm_truth(law, X, y, alpha, theta)
    alone = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NoUpdate(), audit=0).losses
    eta = np.c_[X, np.ones(len(y))] @ theta
    own = np.exp(eta) - y * eta if law is POISSON else eta + y * np.exp(-eta)

    def shifted(plan: lo.Plan) -> Truth:
        known = exact(plan)
        slack = 1e-14 * (np.abs(own) + np.abs(y * eta))[plan.index]
        return Truth(known.losses + (alone - own)[plan.index], slack, known.ambiguous)

    return each_plan(lambda: fit, small_plans(rng, len(y)), shifted)


# kinks


def kinked(rng: Generator, host: Any, X: Array) -> Tally:
    """A lasso or elastic net whose coefficients are not unique; its predictions are."""
    y = response(rng, X)

    def fold(training: Training) -> tuple[Array, Array, bool]:
        mine = clone(host).fit(X[training.rows], y[training.rows])
        loss = (y[training.held] - mine.predict(X[training.held])) ** 2 / 2
        return loss, 1e-5 * (1 + loss), False  # of coordinate descent at its tolerance

    fit = lambda: lo.from_sklearn(clone(host).fit(X, y), X, y)
    return each_plan(
        fit,
        [lo.leave_one_out(len(y)), lo.kfold(len(y), 4, rng=1)],
        lambda plan: Truth.of(plan, fold),
    )


def lasso_repeated(rng: Generator) -> Tally:
    X = rng.standard_normal((20, 4))
    return kinked(rng, Lasso(0.1, tol=1e-12, max_iter=10**6), np.c_[X, X[:, 0]])


def lasso_one_hot(rng: Generator) -> Tally:
    X = np.c_[np.eye(4)[rng.integers(0, 4, 24)], rng.standard_normal(24)]
    return kinked(rng, Lasso(0.05, tol=1e-12, max_iter=10**6), X)


def lasso_many_columns(rng: Generator) -> Tally:
    return kinked(rng, Lasso(0.3, tol=1e-12, max_iter=10**6), rng.standard_normal((18, 40)))


def net_repeated(rng: Generator) -> Tally:
    X = rng.standard_normal((20, 4))
    return kinked(rng, ElasticNet(0.1, l1_ratio=0.7, tol=1e-12, max_iter=10**6), np.c_[X, X[:, :2]])


def one_hot_pipeline(rng: Generator) -> Tally:
    """OneHotEncoder and Lasso by scikit-learn's calls."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    X = rng.integers(0, 3, (24, 2)).astype(str).astype(object)
    y = (X[:, 0] == "1") * 2.0 + rng.standard_normal(24)
    model = make_pipeline(
        OneHotEncoder(handle_unknown="ignore"), Lasso(0.05, tol=1e-12, max_iter=10**6)
    )
    call = {"cv": 4, "scoring": "neg_mean_squared_error"}
    truth = cross_validate(model, X, y, **call)["test_score"]
    found = lambda: lo.sklearn.cross_validate(model, X, y, **call)
    scores = attempted(
        "scores",
        lambda: value(
            "scores", (ours := found())["test_score"], truth, 1e-5, ours["approximation_error"]
        ),
    )
    return scores + attempted(
        "a fit", lambda: Tally(1) if lo.from_sklearn(model.fit(X, y), X, y) else Tally()
    )


KINDS: dict[str, Callable[[Generator], Tally]] = {
    "more columns than rows": few_rows,
    "more columns than rows, no intercept": few_rows_no_intercept,
    "one row more than columns": one_more_row,
    "about as many rows as columns": about_as_many,
    "near square": near_square,
    "few rows, scikit-learn's call": few_rows_scored,
    "few rows, parameters": few_rows_parameters,
    "few rows, a score by name": few_rows_named_score,
    "one-hot with an intercept": one_hot,
    "a level of one row": rare_level,
    "spline basis with an intercept": spline_basis,
    "column repeated to 1e-12": collinear(1e-12),
    "column repeated to 1e-8": collinear(1e-8),
    "column repeated to 1e-6": collinear(1e-6),
    "column repeated to 1e-4": collinear(1e-4),
    "column repeated": collinear(0.0),
    "repeated rows": repeated_rows,
    "bootstrap of nine distinct rows": nine_distinct_rows,
    "constant columns": constant_columns,
    "columns of scales 1e-8 to 1e8": column_scales,
    "leverage one": leverage_one,
    "leverage near one": leverage_near_one,
    "weights 0, 1 and 1e6": weights_apart,
    "log-normal weights": weights_lognormal,
    "log-normal weights, few rows": weights_and_few_rows,
    "responses about 1e12": large_response,
    "columns shifted by 1e8": shifted_columns,
    "an easting in statsmodels": easting,
    "powers up to the eighth": polynomial,
    "ridge, a column far from zero": ridge_far_from_zero,
    "ridge, by the matrix of the rows": ridge_by_rows,
    "float32 input": single_precision,
    "integer input": whole_response,
    "offset of 1e6": offset_of_a_million,
    "statsmodels' pseudo-inverse": pseudo_inverse,
    "ridge far below the curvature": ridge_far_below,
    "ridge, many columns": ridge_many_columns,
    "ridge, tiny": ridge_tiny,
    "ridge, collinear columns": ridge_collinear,
    "ridge, columns of scales 1e-8 to 1e8": ridge_column_scales,
    "ridge, weights 0, 1 and 1e6": ridge_weights,
    "path of tiny penalties": path_of_tiny_penalties,
    "statsmodels' logit of all dummies": dummies_of_classes,
    "logistic near separation": near_separation,
    "logistic separated without a penalty": separated_without_penalty,
    "logistic tails": logistic_tails,
    "logistic, log-normal weights": logistic_weights,
    "logistic, columns of scales 1e-4 to 1e4": logistic_column_scales,
    "logistic, a column shifted by 1e5": logistic_shifted,
    "large counts": large_counts,
    "mostly zero counts": mostly_zero_counts,
    "gamma over many magnitudes": tiny_costs,
    "lasso, a repeated column": lasso_repeated,
    "lasso, one-hot": lasso_one_hot,
    "lasso, many columns": lasso_many_columns,
    "elastic net, repeated columns": net_repeated,
    "one-hot lasso, scikit-learn's call": one_hot_pipeline,
}
