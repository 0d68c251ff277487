"""Designs that do not determine every coefficient.

Fitted as their hosts fit them, predicted where the data say anything.
"""

import numpy as np
import pytest
import sklearn
import statsmodels.api as sm
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures

import leaveout as lo

RNG = np.random.default_rng(0)
N = 60
# the last level has one row
LEVEL = RNG.permutation(np.repeat([0, 1, 2, 3, 4], [20, 20, 11, 8, 1]))
Y = LEVEL / 3 + RNG.standard_normal(N)
SPREAD = RNG.standard_normal((N, 3)) * [1.0, 100.0, 1e-2]


def repeated() -> np.ndarray:
    return np.c_[SPREAD, 2 * SPREAD[:, 1], SPREAD[:, 0] - SPREAD[:, 2], np.zeros(N)]


def one_hot() -> np.ndarray:
    return np.c_[np.eye(5)[LEVEL], SPREAD[:, :1]]


def polynomial() -> np.ndarray:
    return PolynomialFeatures(5).fit_transform(np.c_[LEVEL % 3, SPREAD[:, 0]])


DESIGNS = {
    "repeated columns": (repeated, 4),
    "levels and intercept": (one_hot, 6),
    "polynomials of three values": (polynomial, 15),
}


def left(plan: lo.Plan):
    """Each refit's weights of all units, and its held-out units, with their places in
    `plan.index`.
    """
    for k in range(plan.num_refits):
        mine = np.arange(plan.indptr[k], plan.indptr[k + 1])
        weights = np.ones(plan.num_units)
        weights[plan.index[mine]] = plan.weight[mine]
        yield weights, mine[plan.held[mine]]


def agree_with_the_host(cv: lo.Estimate, design: np.ndarray, loss, atol: float) -> None:
    """Losses are the host's where a row lies in the span of what remains, and NaN, flagged, where
    it does not; of least squares of a host they are the host's everywhere."""
    whole = np.c_[design / np.maximum(np.abs(design).max(0), 1e-300), np.ones(len(design))]
    for k, (weights, place) in enumerate(left(cv.plan)):
        keep, units = weights > 0, cv.plan.index[place]
        rank = np.linalg.matrix_rank(whole[keep])
        known = np.array(
            [np.linalg.matrix_rank(np.r_[whole[keep], whole[[i]]]) == rank for i in units]
        )
        np.testing.assert_allclose(cv.losses[place][known], loss(weights, units)[known], atol=atol)
        if cv.fit.objective.cut or cv.fit.objective.least_norm:
            np.testing.assert_allclose(cv.losses[place], loss(weights, units), atol=atol)
            continue
        assert np.isnan(cv.losses[place][~known]).all()
        if not known.all():
            assert cv.result[k] == lo.RESULTS.undetermined and k in cv.flagged()
        assert np.isfinite(cv.error[k]) or not known.any()


@pytest.mark.parametrize(
    "name",
    ["levels and intercept", *(pytest.param(n, marks=pytest.mark.slow) for n in [*DESIGNS][::2])],
)
def test_least_squares_is_the_hosts(name):
    make, rank = DESIGNS[name]
    X = make()
    host = LinearRegression().fit(X, Y)
    ours, taken = lo.fit(lo.GLM(X, Y, "squared")), lo.from_sklearn(host, X, Y)
    assert (
        ours.rank == taken.rank == rank
        and f"of rank {rank}" in repr(ours)
        and ours.decrement < 1e-6
    )
    np.testing.assert_allclose(ours.parameters["coef"], host.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.parameters["intercept"], host.intercept_, atol=1e-6)
    constant = sm.add_constant(X, has_constant="add")
    theirs = np.linalg.lstsq(constant, Y, rcond=1e-12)[0]
    np.testing.assert_allclose(
        lo.fit(lo.GLM(constant, Y, "squared", intercept=False)).parameters["coef"],
        theirs,
        atol=1e-6,
    )

    def loss(weights, units):
        refit = LinearRegression().fit(X[weights > 0], Y[weights > 0], weights[weights > 0])
        return 0.5 * (Y[units] - refit.predict(X[units])) ** 2

    agree_with_the_host(lo.cross_validate(taken, lo.leave_one_out()), X, loss, 1e-6)
    for plan in (lo.kfold(N, 5), lo.groups(LEVEL), lo.bootstrap(N, 4, rng=0)):
        agree_with_the_host(lo.cross_validate(ours, plan), X, loss, 1e-6)


@pytest.mark.filterwarnings("ignore:The design matrix is rank-deficient")
def test_statsmodels_pseudo_inverse_is_taken_as_it_is():
    results = sm.OLS(Y, sm.add_constant(one_hot())).fit()
    fit = lo.from_statsmodels(results)
    assert fit.rank == 6 and fit.num_params == 7
    np.testing.assert_allclose(fit.parameters["coef"], results.params)
    cv = lo.cross_validate(fit, lo.leave_one_out())
    h = results.get_influence().hat_matrix_diag
    known = h < 1 - 1e-9
    np.testing.assert_allclose(
        cv.per_unit()[known], 0.5 * (results.resid[known] / (1 - h[known])) ** 2, rtol=1e-8
    )
    (last,) = np.flatnonzero(~known)
    theirs = sm.OLS(np.delete(Y, last), np.delete(sm.add_constant(one_hot()), last, 0)).fit()
    assert cv.per_unit()[last] == pytest.approx(
        0.5 * (Y[last] - theirs.predict(sm.add_constant(one_hot())[[last]])[0]) ** 2
    )


def test_logistic_regression_of_levels_is_the_hosts():
    level = np.where(LEVEL == 4, 3, LEVEL)
    X, y = np.c_[np.eye(4)[level], SPREAD[:, 0]], np.arange(N) % 2
    host = LogisticRegression(C=np.inf, tol=1e-11, max_iter=2000)
    host.fit(X, y)

    def loss(weights, units):
        refit = LogisticRegression(C=np.inf, tol=1e-11, max_iter=2000).fit(
            X[weights > 0], y[weights > 0], weights[weights > 0]
        )
        return -refit.predict_log_proba(X[units])[np.arange(len(units)), y[units]]

    taken, ours = lo.from_sklearn(host, X, y), lo.fit(lo.GLM(X, y, "logistic"))
    np.testing.assert_allclose(taken.parameters["coef"], host.coef_[0])
    np.testing.assert_allclose(taken.value, ours.value, rtol=1e-9)
    assert taken.rank == ours.rank == 5 and ours.num_params == 6
    agree_with_the_host(lo.cross_validate(taken, lo.kfold(k=4), strategy=lo.Exact()), X, loss, 1e-5)
    agree_with_the_host(
        lo.cross_validate(ours, lo.groups(level), strategy=lo.Exact()), X, loss, 1e-5
    )


def test_parameters_of_refits_are_of_least_norm_too():
    X, plan = repeated(), lo.kfold(N, 5)
    found = lo.fold_parameters(lo.fit(lo.GLM(X, Y, "squared")), plan)
    for k, (weights, _) in enumerate(left(plan)):
        host = LinearRegression().fit(X[weights > 0], Y[weights > 0])
        np.testing.assert_allclose(found["coef"][k], host.coef_, atol=1e-6)


def test_predictions_exist_where_they_are_determined():
    X = one_hot()
    fit, plan = lo.fit(lo.GLM(X, Y, "squared")), lo.kfold(N, 5)
    with pytest.warns(
        UserWarning,
        match="1 of 60 held-out predictions are missing, such as that of 50: .* do not determine",
    ):
        found = lo.cross_predict(fit, plan)
    assert np.array_equal(np.isnan(found), LEVEL == 4)
    cv = lo.cross_validate(fit, plan, metric="mse")
    assert cv.metrics.loc["mse", "value"] == pytest.approx(2 * np.nanmean(cv.per_unit()))
    assert (cv.result == lo.RESULTS.undetermined).sum() == 1 and cv.approximation_error < 1e-8
    assert "not in the mean 1 held-out losses that do not exist" in str(cv)


# of the host; before scikit-learn 1.9 it kept directions of condition 1e9
ROUNDING = 1e-12
if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9):
    ROUNDING = 1e-6
WIDTHS = {
    "wide": lambda X: X,
    "as many": lambda X: X[:, :59],
    "one less": lambda X: X[:, :58],
    "copies of rows": lambda X: X[np.r_[:55, :5]],
    "repeated but for 1e-6": lambda X: np.c_[X[:, :5], X[:, 0] + 3e-7 * X[:, 9]],
    "a thousandth of that": lambda X: np.c_[X[:, :5], X[:, 0] + 3e-10 * X[:, 9]],
    "near the host's cut": lambda X: np.c_[X[:, :5], X[:, 0] + 2e-6 * X[:, 9]],
    "apart in one row": lambda X: np.c_[X[:, :5], X[:, 0] + 1e-5 * (np.arange(N) == 7)],
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", WIDTHS)
def test_linear_regression_is_refitted_as_its_host_does(name, weighted):
    """Where refits are not determined, or a host's own tolerance for rank counts.

    Losses and coefficients.
    """
    if name == "apart in one row" and ROUNDING > 1e-12:
        pytest.skip(
            "cut at rounding, refits without that row are not determined, as their codes say"
        )
    rng = np.random.default_rng(4)
    X = WIDTHS[name](rng.standard_normal((N, 100)))
    weight = rng.gamma(2.0, 1.0, N) if weighted else None
    fit = lo.from_sklearn(LinearRegression().fit(X, Y, weight), X, Y, weight)
    for plan in (lo.leave_one_out(N), lo.kfold(N, 7, rng=0), lo.bootstrap(N, 3, rng=0)):
        cv, theta = lo.cross_validate(fit, plan), lo.fold_parameters(fit, plan)["coef"]
        for k, (times, place) in enumerate(left(plan)):
            omega = times if weight is None else times * weight
            host, units = (
                LinearRegression().fit(X[omega > 0], Y[omega > 0], omega[omega > 0]),
                plan.index[place],
            )
            exact = 0.5 * (Y[units] - host.predict(X[units])) ** 2
            np.testing.assert_allclose(cv.losses[place], exact, rtol=1e-6, atol=1e-9)
            assert abs((cv.losses[place] - exact).sum()) <= cv.error[k] + ROUNDING * exact.sum()
            np.testing.assert_allclose(theta[k], host.coef_, rtol=1e-4, atol=1e-5)
        assert not cv.audit.beyond.any()


def test_a_ridge_far_below_the_curvature_is_resolved():
    rng = np.random.default_rng(0)
    X, y = 1e7 * rng.standard_normal((12, 20)), 1e6 + 100 * rng.standard_normal(12)
    cv = lo.cross_validate(
        lo.from_sklearn(Ridge(1.0, solver="svd").fit(X, y), X, y), lo.leave_one_out()
    )
    for i in range(12):
        x, t = (np.delete(part, i, 0) for part in (X, y))
        center = x - x.mean(0)
        inverse = np.linalg.solve(center @ center.T + np.eye(11), t - t.mean())
        exact = 0.5 * (y[i] - t.mean() - (X[i] - x.mean(0)) @ center.T @ inverse) ** 2
        assert (
            cv.losses[i] == pytest.approx(exact, rel=1e-6)
            and abs(cv.losses[i] - exact) <= cv.error[i] + 1e-7 * exact
        )
    assert not cv.audit.beyond.any()


@pytest.mark.parametrize("kind", ["squared", "logistic"])
@pytest.mark.parametrize("noise", [0.0, 1e-12])
def test_the_audit_is_right_where_columns_repeat_one_another(kind, noise):
    rng = np.random.default_rng(0)
    X = np.c_[np.eye(4)[rng.integers(0, 4, N)], rng.standard_normal(N)]
    X = np.c_[X, X[:, 4] + noise * rng.standard_normal(N)]
    y = Y if kind == "squared" else (rng.random(N) < 0.5) * 1.0
    fit = lo.fit(lo.GLM(X, y, kind))
    for refit in (lo.Certified(), lo.Exact()):
        cv = lo.cross_validate(fit, lo.leave_one_out(), strategy=refit)
        assert not cv.audit.beyond.any() and cv.audit.exact.notna().all() and "LO308" not in str(cv)


def test_of_more_columns_than_rows_the_refits_are_of_least_norm():
    X = RNG.standard_normal((12, 30))
    host = LinearRegression().fit(X, Y[:12])
    fit = lo.from_sklearn(host, X, Y[:12])
    np.testing.assert_allclose(
        lo.fit(lo.GLM(X, Y[:12], "squared")).parameters["coef"], host.coef_, atol=1e-8
    )
    assert fit.rank == 12
    twice = np.r_[X[:6], X[:6]]  # each row has a copy that stays
    cv = lo.cross_validate(
        lo.fit(lo.GLM(twice, Y[:12], "squared", intercept=False)), lo.leave_one_out()
    )
    np.testing.assert_allclose(cv.per_unit(), 0.5 * (Y[:12] - np.roll(Y[:12], 6)) ** 2)


def test_what_stands_on_the_curvature_is_its_pseudo_inverse():
    X = one_hot()
    fit, whole = lo.fit(lo.GLM(X, Y, "squared")), np.c_[one_hot(), np.ones(N)]
    np.testing.assert_allclose(fit.hessian, whole.T @ whole, atol=1e-9)
    hat = whole @ np.linalg.pinv(whole)
    np.testing.assert_allclose(whole @ fit.solve(whole.T), hat, atol=1e-9)
    np.testing.assert_allclose(lo.diagnostics.leverage(fit), np.diag(hat), atol=1e-9)
    inverse = fit.solve(np.eye(7))
    np.testing.assert_allclose(inverse @ fit.hessian @ inverse, inverse, atol=1e-9)
    dropped = lo.fit(lo.GLM(X[:, 1:], Y, "squared"))  # the same model, determined
    usual = LEVEL < 4
    np.testing.assert_allclose(
        lo.diagnostics.cooks_distance(fit)[usual],
        lo.diagnostics.cooks_distance(dropped)[usual],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        lo.diagnostics.dfbetas(fit).to_numpy()[usual, 5],
        lo.diagnostics.dfbetas(dropped).to_numpy()[usual, 4],
        rtol=1e-6,
    )
    zeros = lo.diagnostics.dfbetas(lo.fit(lo.GLM(repeated(), Y, "squared"))).to_numpy()
    assert (zeros[:, 5] == 0).all() and np.isfinite(zeros).all()


def test_classes_of_a_multinomial_share_what_is_not_determined():
    y = np.where(LEVEL < 4, RNG.integers(0, 3, N), 1)
    X = np.c_[np.eye(4)[np.minimum(LEVEL, 3)], SPREAD[:, 0]]
    free, penalised = (
        lo.fit(lo.GLM(X, y, "multinomial")),
        lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(0.5))),
    )
    assert free.rank == 2 * 5 and penalised.rank == 18 - 1
    dropped = lo.fit(lo.GLM(X[:, 1:], y, "multinomial"))
    np.testing.assert_allclose(free.value, dropped.value, rtol=1e-10)
    ours, theirs = (
        lo.cross_validate(fit, lo.kfold(k=4), strategy=lo.Exact()) for fit in (free, dropped)
    )
    np.testing.assert_allclose(ours.losses, theirs.losses, atol=1e-6)


def test_penalties_determine_what_they_see():
    X = repeated()
    ridge = lo.fit(lo.GLM(X, Y, "squared", lo.penalties.Ridge(0.1)))
    assert ridge.rank == 7
    some = lo.fit(lo.GLM(X, Y, "squared", lo.penalties.Ridge([0.0, 0.0, 0.0, 0.0, 0.3, 0.3])))
    # of the directions that no row sees, that of two repeated columns is not penalised either
    assert some.rank == 6
    assert lo.fit(lo.GLM(X, Y, "squared", lo.penalties.PseudoHuber(1.0, 0.1))).rank == 7


def test_a_pipeline_that_repeats_columns():
    X = np.c_[LEVEL % 4, RNG.integers(0, 2, N)]
    pipe = make_pipeline(OneHotEncoder(), LinearRegression()).fit(X, Y)
    fit = lo.from_sklearn(pipe, X, Y)
    assert (fit.num_params, fit.rank) == (7, 5)
    np.testing.assert_allclose(fit.parameters["coef"], pipe[-1].coef_)


def test_rows_of_no_weight_determine_nothing():
    X, weight = one_hot(), (LEVEL != 4) * 1.0
    fit = lo.fit(lo.GLM(X, Y, "squared", sample_weight=weight))
    assert fit.rank == 5
    host, seen = LinearRegression().fit(X, Y, weight), X[weight > 0]
    np.testing.assert_allclose(
        seen @ fit.parameters["coef"] + fit.parameters["intercept"], host.predict(seen)
    )


@pytest.mark.parametrize("turned", [False, True])
def test_separation_is_refused_as_before_and_seen_in_refits(turned):
    """Far down a separation all curvature that is left is rounding.

    No minimum was reached there.
    """
    X = np.eye(3)[np.repeat([0, 1, 2], 20)]
    with pytest.raises((RuntimeError, lo.validation.IndefiniteHessianError), match="separated"):
        lo.fit(lo.GLM(X, (np.arange(60) < 20) * 1.0, "logistic"))
    y = np.arange(60) % 2.0
    y[20:40] = np.arange(20) == 3  # without that row, its level is separated
    X = X @ np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0] if turned else X
    fit = lo.fit(lo.GLM(X, y, "logistic", intercept=not turned))
    cv = lo.cross_validate(
        fit, lo.groups(np.where(np.arange(60) == 23, 0, 1 + np.arange(60) % 5)), strategy=lo.Exact()
    )
    assert (
        cv.result[0] == lo.RESULTS.not_converged
        and np.isnan(cv.losses[0])
        and (cv.result[1:] == 0).all()
    )


@pytest.mark.parametrize("kind", ["alone", "in folds"])
def test_refits_beside_one_that_is_undetermined_keep_their_losses(kind):
    """The next term has moved these from where their θ is, which one step made."""
    rng = np.random.default_rng(7)
    X = np.c_[rng.standard_normal((35, 2)), np.arange(35) == 4]
    y = rng.poisson(np.exp(X[:, 0] / 2)).astype(float)
    y[4] = 3.0
    fit, plan = lo.fit(lo.GLM(X, y, "poisson")), lo.leave_one_out(35)
    # of which one loses row 4 and another one, which is predicted all the same
    if kind == "in folds":
        plan = lo.from_splits(
            [
                (np.setdiff1d(np.arange(35), out), out)
                for out in ([3, 4], *([i] for i in range(5, 35)))
            ],
            35,
        )
    found, exact = (
        lo.cross_validate(fit, plan, strategy=refit) for refit in (lo.Certified(), lo.Exact())
    )
    known = np.arange(len(found.error)) != (4 if kind == "alone" else 0)
    assert (
        found.result[~known] == lo.RESULTS.undetermined
        and np.isnan(found.losses[plan.index == 4]).all()
    )
    off = np.add.reduceat(
        np.where(plan.index == 4, 0.0, np.abs(found.losses - exact.losses)), plan.indptr[:-1]
    )
    assert found.proved[known].all() and (off <= found.error + exact.error)[known].all()
    # and the audit finds nothing
    assert (found.result[known] == lo.RESULTS.successful).all()
    if kind == "in folds":
        rest = lo.cross_validate(
            lo.fit(lo.GLM(np.delete(X[:, :2], 4, 0), np.delete(y, 4), "poisson")),
            lo.leave_one_out(),
        )
        assert abs(found.losses[0] - rest.losses[3]) <= found.error[0] + rest.error[3] + 1e-9


@pytest.mark.parametrize("loss", ["logistic", "probit", "cloglog"])
def test_the_row_that_keeps_a_level_from_separation(loss):
    """Steps to nowhere under a loss whose tail is flat at once (cloglog) move the predictors by
    little and less.
    """
    rng = np.random.default_rng(0)
    X, y = np.c_[np.arange(60) % 12 == 0, rng.standard_normal(60)], np.arange(60) % 2.0
    y[::12] = [0.0, 1.0, 1.0, 1.0, 1.0]
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, loss)), lo.leave_one_out())
    assert (
        cv.result[0] == lo.RESULTS.not_converged
        and np.isnan(cv.losses[0])
        and np.isinf(cv.error[0])
    )
    assert (cv.result[1:] == 0).all() and np.isfinite(cv.losses[1:]).all() and np.isfinite(cv.mean)


def test_a_level_that_one_row_keeps_from_separation():
    """Without it the others are so far down their losses that no curvature is left.

    That proves nothing.
    """
    for seed in (17, 21):
        rng = np.random.default_rng(seed)
        X = np.c_[rng.standard_normal((30, 2)), np.arange(30) < 3]
        y = (rng.random(30) < 1 / (1 + np.exp(-X[:, 0]))) * 1.0
        y[:3] = [0.0, 1.0, 1.0]
        weight = np.exp(rng.uniform(0, 3) * rng.standard_normal(30))
        weight[0] = np.exp(rng.uniform(0, 6))
        fit = lo.fit(lo.GLM(X, y, "logistic", sample_weight=weight))
        for refit in (lo.Certified(), lo.Exact()):
            cv = lo.cross_validate(fit, lo.leave_one_out(), strategy=refit)
            assert cv.result[0] == lo.RESULTS.not_converged and np.isnan(cv.losses[0])


def test_a_tiny_ridge_decides_what_the_rows_do_not():
    """Its refits go to their own minimum along those directions, not to where the whole fit has
    them.
    """
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((14, 20)), 10 * rng.standard_normal(14)
    host, plan = Ridge(4e-12, solver="svd"), lo.leave_one_out(14)
    cv = lo.cross_validate(lo.from_sklearn(host.fit(X, y), X, y), plan, audit=14)
    exact = (cross_val_predict(host, X, y, cv=14) - y) ** 2 / 2
    assert (np.abs(cv.losses - exact) <= cv.error + 1e-9 * exact).all() and "LO308" not in str(cv)


def test_a_row_far_out_leaves_what_the_others_determine():
    """One less its leverage is below rounding.

    The others alone tell whether they determine the slope.
    """
    rng = np.random.default_rng(2)
    X = rng.standard_normal((20, 3))
    X[14, 1] = 844168.0
    y = X @ [1.0, 0.5, -1.0] + rng.standard_normal(20)
    host = LinearRegression()
    cv = lo.cross_validate(lo.from_sklearn(host.fit(X, y), X, y), lo.leave_one_out())
    exact = (cross_val_predict(host, X, y, cv=20) - y) ** 2 / 2
    assert (np.abs(cv.losses - exact) <= cv.error + 1e-9 * exact)[
        np.isfinite(cv.losses)
    ].all() and np.isfinite(cv.losses[14])
