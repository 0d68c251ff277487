"""The group lasso: fits, refits whose active groups change, and what is proved of them, against proximal gradients."""

import numpy as np
import pytest
from test_kinks import SLOPES, beyond, made

import leaveout as lo
from leaveout._norms import TURN, Norms, descended

SLOPES = {"squared": lambda eta, y: (0.5 * (eta - y) ** 2, eta - y)} | SLOPES


STEEPEST = {"squared": 1.0, "logistic": 0.25, "huber": 1.0, "poisson": 30.0}  # no ℓ″ that is met is larger


def proximal(X, y, w, a, member, loss, ridge=0.0):
    """The minimiser by accelerated proximal gradients (A. Beck and M. Teboulle, 2009), restarted where they turn back; `a` is one
    number a group."""
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
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.GroupLasso(3.0, labels) + lo.penalties.Ridge(0.5), sample_weight=w))
    coef, intercept = proximal(X, y, w, 3.0 * size, member, loss, 0.5)
    zero = np.array([not coef[some].any() for some in member])
    assert 0 < zero.sum() < len(zero)
    np.testing.assert_array_equal(fit.parameters["coef"] == 0, coef == 0)
    np.testing.assert_allclose(fit.parameters["coef"], coef, atol=1e-6)
    np.testing.assert_allclose(fit.parameters["intercept"], intercept, atol=1e-6)
    assert f"{np.sum(~zero)} of {len(zero)} penalised groups are not zero" in str(fit)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_every_refit_is_that_of_proximal_gradients(loss, seed):
    """Refits whose active groups change are the rule here; every loss is within what was proved."""
    rng, n = np.random.default_rng(seed), 30
    X, y, w = made(n=n, p=14, seed=seed, correlated=seed % 2, spread=[0.0, 1.0][seed // 2], loss=loss)
    labels, member, size = grouped(seed, 14)
    alpha = rng.choice([1.0, 2.0, 4.0]) * (1.0 if loss == "logistic" else 2.0)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.GroupLasso(alpha, labels), sample_weight=w))
    active, changed = fit.parameters["coef"] != 0, 0
    for plan in (lo.leave_one_out(n), lo.kfold(n, 4, seed=seed)):
        found, theta = lo.cross_validate(fit, plan), lo.fold_parameters(fit, plan, lo.Exact())
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
