"""The group lasso: fits, refits whose active groups change, and what is proved of them, against
proximal gradients.
"""

import numpy as np
import pytest

import leaveout as lo
from leaveout.linalg.group_norms import TURN, Norms, descend_by_groups
from tests.optimize.test_active_set import SLOPES, beyond, made

SLOPES = {"squared": lambda eta, y: (0.5 * (eta - y) ** 2, eta - y)} | SLOPES


# no ℓ″ that is met is larger
STEEPEST = {"squared": 1.0, "logistic": 0.25, "huber": 1.0, "poisson": 30.0}


def proximal(X, y, w, a, member, loss, ridge=0.0):
    """The minimiser by accelerated proximal gradients (A. Beck and M. Teboulle, 2009), restarted
    where they turn back; `a` is one number a group."""
    Z, seen, own, p = np.c_[X, np.ones(len(X))][w > 0], w[w > 0], y[w > 0], X.shape[1]
    step = 1 / (STEEPEST[loss] * np.linalg.norm(Z * np.sqrt(seen)[:, None], 2) ** 2 + ridge)
    of, penalty = member.astype(float), np.append(np.full(p, ridge), 0.0)
    v = ahead = np.zeros(p + 1)
    momentum = 1.0
    for _ in range(100_000):
        slope = Z.T @ (seen * SLOPES[loss](Z @ ahead, own)[1]) + penalty * ahead
        new = ahead - step * slope
        length = np.sqrt(of @ new[:p] ** 2)
        new[:p] *= np.maximum(1 - step * a / np.maximum(length, 1e-300), 0.0) @ of
        if np.abs(new - ahead).max() <= 1e-13:
            return new[:p], new[p]
        if (ahead - new) @ (new - v) > 0:
            momentum = 1.0
        further = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        v, ahead, momentum = new, new + (momentum - 1) / further * (new - v), further
    raise AssertionError("not reached")


def grouped(seed=0, p=18):
    """Groups of one to four coefficients, not side by side: labels, members, √ of their sizes."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(p), rng.integers(1, 5, p))[:p])
    member = labels == np.unique(labels)[:, None]
    return labels, member, np.sqrt(member.sum(1))


@pytest.mark.parametrize("loss", SLOPES)
def test_a_fit_is_that_of_proximal_gradients(loss):
    X, y, w = made(loss=loss, spread=0.5, p=18)
    labels, member, size = grouped()
    fit = lo.fit(
        lo.GLM(
            X,
            y,
            loss,
            lo.penalties.GroupLasso(3.0, labels) + lo.penalties.Ridge(0.5),
            sample_weight=w,
        )
    )
    coef, intercept = proximal(X, y, w, 3.0 * size, member, loss, 0.5)
    zero = np.array([not coef[some].any() for some in member])
    assert 0 < zero.sum() < len(zero)
    np.testing.assert_array_equal(fit.parameters["coef"] == 0, coef == 0)
    np.testing.assert_allclose(fit.parameters["coef"], coef, atol=1e-6)
    np.testing.assert_allclose(fit.parameters["intercept"], intercept, atol=1e-6)
    assert f"{np.sum(~zero)} of {len(zero)} penalised groups are not zero" in str(fit)


@pytest.mark.parametrize(
    ("loss", "seed"),
    [
        ("squared", 0),
        ("logistic", 1),
        pytest.param("squared", 3, marks=pytest.mark.slow),
        pytest.param("logistic", 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow_for("squared-0")
def test_every_refit_is_that_of_proximal_gradients(loss, seed):
    """Refits whose active groups change are the rule here; every loss is within what was proved."""
    rng, n = np.random.default_rng(seed), 24
    X, y, w = made(
        n=n, p=10, seed=seed, correlated=seed % 2, spread=[0.0, 1.0][seed // 2], loss=loss
    )
    labels, member, size = grouped(seed, 10)
    alpha = rng.choice([1.0, 2.0, 4.0]) * (1.0 if loss == "logistic" else 2.0)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.GroupLasso(alpha, labels), sample_weight=w))
    active, changed = fit.parameters["coef"] != 0, 0
    for plan in (lo.leave_one_out(n), lo.kfold(n, 4, rng=seed)):
        found, theta = (
            lo.cross_validate(fit, plan),
            lo.fold_parameters(fit, plan, strategy=lo.Exact()),
        )
        assert found.proved.all() and not len(found.flagged())
        refits = [proximal(X, y, w * own, alpha * size, member, loss) for own in plan.matrix()]
        changed += sum(np.any((coef != 0) != active) for coef, _ in refits)
        for k, (coef, intercept) in enumerate(refits):
            np.testing.assert_array_equal(theta["coef"][k] != 0, coef != 0)
            np.testing.assert_allclose(theta["coef"][k], coef, atol=1e-6)
            np.testing.assert_allclose(theta["intercept"][k], intercept, atol=1e-6)
        turn = iter(refits)

        def told(own, held, turn=turn):
            coef, intercept = next(turn)
            return SLOPES[loss](X[held] @ coef + intercept, y[held])[0]

        assert not beyond(found, plan, told).any()
    assert changed > 0


def test_groups_of_one_are_the_lasso():
    X, y, w = made(p=12, spread=0.5)
    one = lo.fit(
        lo.GLM(X, y, "squared", lo.penalties.GroupLasso(6.0, np.arange(12)), sample_weight=w)
    )
    other = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(6.0), sample_weight=w))
    np.testing.assert_allclose(one.parameters["coef"], other.parameters["coef"], atol=1e-10)
    plan = lo.leave_one_out(60)
    mine, its = (lo.cross_validate(fit, plan, strategy=lo.Exact()) for fit in (one, other))
    np.testing.assert_allclose(mine.losses, its.losses, atol=1e-8)
    assert mine.proved.all()


@pytest.mark.parametrize("loss", ["logistic", "huber", "poisson"])
def test_other_plans_and_penalties_that_go_with_the_weights(loss):
    X, y, w = made(n=40, p=9, loss=loss, seed=3)
    labels, member, size = grouped(1, 9)
    penalty = lo.penalties.per_weight(
        lo.penalties.GroupLasso(0.05, labels, 2 * size) + lo.penalties.Ridge(0.01)
    )
    fit = lo.fit(lo.GLM(X, y, loss, penalty, sample_weight=w))
    for plan in (lo.bootstrap(40, 6, rng=0), lo.leave_one_out(40)):
        found = lo.cross_validate(fit, plan)
        assert found.proved.all()

        def told(own, held):
            total = (w * own).sum()
            coef, intercept = proximal(
                X, y, w * own, 0.1 * total * size, member, loss, 0.01 * total
            )
            return SLOPES[loss](X[held] @ coef + intercept, y[held])[0]

        assert not beyond(found, plan, told).any()


@pytest.mark.parametrize(
    "refit",
    [lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.InfinitesimalJackknife(2), lo.NewtonStep()],
)
def test_other_strategies_know_how_far_they_are_off(refit):
    X, y, _ = made(seed=1, n=30, p=12)
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.GroupLasso(4.0, grouped(0, 12)[0])))
    for plan in (lo.leave_one_out(30), lo.kfold(30, 5, rng=0)):
        exact, found = (
            lo.cross_validate(fit, plan, strategy=one, audit=0) for one in (lo.Exact(), refit)
        )
        total = np.bincount(plan.refit, np.abs(found.losses - exact.losses))
        assert np.all(total <= found.error * (1 + 1e-6) + 1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_order_within_unchanged_groups(loss):
    """The weight of a row goes 1 → 1 − t and t is halved; of least squares the norms alone bend."""
    X, y, _ = made(loss=loss, seed=2, p=18)
    fit, off = lo.fit(lo.GLM(X, y, loss, lo.penalties.GroupLasso(2.0, grouped()[0]))), {}
    for t in (0.2, 0.1, 0.05):
        plan = lo.Plan(np.array([0, 1]), np.array([7]), np.array([1 - t]), np.array([False]), 60)
        exact = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-12))["coef"][0]
        np.testing.assert_array_equal(exact != 0, fit.parameters["coef"] != 0)
        for refit in (
            lo.NoUpdate(),
            lo.InfinitesimalJackknife(),
            lo.NewtonStep(),
            lo.InfinitesimalJackknife(2),
        ):
            found = lo.fold_parameters(fit, plan, strategy=refit)["coef"][0]
            off.setdefault(repr(refit), []).append(np.linalg.norm(found - exact))
    for (name, errors), order in zip(off.items(), (1, 2, 2, 3), strict=True):
        np.testing.assert_allclose(
            np.log2(np.divide(errors[:-1], errors[1:])), order, atol=0.4, err_msg=name
        )


def test_a_norm_bends_no_more_than_is_said():
    """Of random moves, in the norm of a random matrix; and the constant is reached."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(300):
        p = int(rng.integers(2, 7))
        label = rng.integers(0, 2, p)
        norms = Norms(rng.uniform(0.5, 2, 2), label == np.arange(2)[:, None]).select(np.arange(p))
        theta, root = (
            rng.standard_normal(p),
            np.linalg.inv(np.linalg.cholesky(np.cov(rng.standard_normal((p, 9))))),
        )
        reach = norms.reach(root)
        radius = rng.uniform(0.05, 0.9) * np.min(norms.lengths(theta) / np.sqrt(reach.groups))
        move = root.T @ rng.standard_normal(p)
        move *= radius / np.sqrt(move @ np.linalg.inv(root.T @ root) @ move)
        assert np.all(norms.lengths(move) <= radius * np.sqrt(reach.groups) * (1 + 1e-9))
        change = norms.hessian((theta + move)[None])[0] - norms.hessian(theta[None])[0]
        share = norms.share(norms.lengths(theta), norms.lengths(move), reach)
        assert (
            np.abs(np.linalg.eigvalsh(root @ change @ root.T)).max() <= share * (1 + 1e-9) + 1e-12
        )
        near = norms.hessian((theta + 1e-5 * move)[None])[0] - norms.hessian(theta[None])[0]
        told = TURN * norms.weight * norms.lengths(1e-5 * move) / norms.lengths(theta) ** 2
        own = [np.abs(np.linalg.eigvalsh(near[np.ix_(some, some)])).max() for some in norms.member]
        assert np.all(own <= told * (1 + 1e-3) + 1e-12)
        largest = max(largest, *np.divide(own, told)[norms.member.sum(1) > 1], 0.0)
    assert largest > 0.95


def test_blocks_descend_to_a_quadratics_minimum():
    rng = np.random.default_rng(0)
    X, label = (
        rng.standard_normal((30, 9)) + rng.standard_normal((30, 1)),
        np.r_[np.repeat(np.arange(4), 2), 9],
    )
    norms = Norms(np.full(4, 5.0), label == np.arange(4)[:, None])
    gram, pull = X.T @ X, X.T @ (X[:, 0] + rng.standard_normal(30))
    theta = descend_by_groups(gram, pull, norms, rng.standard_normal(9), 1e-12)
    slope, length = gram @ theta - pull, norms.lengths(theta)
    assert 0 < (length > 0).sum() < 4
    np.testing.assert_allclose(
        slope[norms.spread((length > 0).astype(float)) > 0],
        -norms.pull(theta)[norms.among(length > 0)],
        atol=1e-8,
    )
    assert np.all(norms.lengths(slope)[length == 0] <= 5) and abs(slope[8]) < 1e-8


def test_a_path_and_what_a_fit_says():
    X, y, _ = made(p=18)
    labels, _, size = grouped()
    model, plan = (
        lo.GLM(X, y, "squared", lo.penalties.GroupLasso(1.0, labels, 3 * size)),
        lo.kfold(60, 4, rng=0),
    )
    path = lo.path(model, [2.0, 5.0, 12.0], plan)
    for point in path.points:
        alone = lo.cross_validate(
            lo.fit(model.under(lo.penalties.GroupLasso(3 * point.value, labels))), plan
        )
        assert point.mean == pytest.approx(alone.mean, abs=1e-6)
    fit = path.points[1].fit
    assert "is nearest to joining, its gradient" in fit.objective.note
    free = lo.fit(
        lo.GLM(
            X,
            y,
            "squared",
            lo.penalties.GroupLasso(8.0, labels, np.where(np.arange(len(size)) == 2, 0.0, size)),
        )
    )
    assert np.all(free.parameters["coef"][labels == np.unique(labels)[2]] != 0)


def test_what_is_refused():
    X, y, _ = made(p=4)
    labels = [0, 0, 1, 1]
    group = lo.penalties.GroupLasso(2.0, labels)
    glm = lambda penalty, loss="squared", target=y: lo.fit(lo.GLM(X, target, loss, penalty))
    for error, match, call in (
        (TypeError, "one GroupLasso", lambda: glm(group + lo.penalties.Lasso(1.0))),
        (TypeError, "one GroupLasso", lambda: glm(group + lo.penalties.Box())),
        (TypeError, "one GroupLasso", lambda: glm(group + group)),
        (TypeError, "one output", lambda: glm(group, "multinomial", np.arange(60) % 3)),
        (
            ValueError,
            "5 labels, but there are 4",
            lambda: glm(lo.penalties.GroupLasso(1.0, [0, 0, 1, 1, 2])),
        ),
        (
            ValueError,
            "one label a coefficient",
            lambda: lo.penalties.GroupLasso(1.0, [0.0, np.nan]),
        ),
        (
            ValueError,
            "alpha must be one number",
            lambda: lo.penalties.GroupLasso([1.0, 2.0], labels),
        ),
        (
            ValueError,
            "must be finite and not negative",
            lambda: lo.penalties.GroupLasso(-1.0, labels),
        ),
        (
            ValueError,
            "one a group, of 2",
            lambda: lo.penalties.GroupLasso(1.0, labels, [1.0, 1.0, 1.0]),
        ),
    ):
        with pytest.raises(error, match=match):
            call()
    empty = glm(lo.penalties.GroupLasso(1e6, labels))
    assert (
        not empty.parameters["coef"].any()
        and lo.cross_validate(empty, lo.leave_one_out()).proved.all()
    )
