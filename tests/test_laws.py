"""Laws of an objective, whatever its model."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate
from scipy.special import logsumexp

import leaveout as lo
from tests.helpers import OBJECTIVES, call, fitted, glm, sample_mean, toy_hmm

CRFS = ("conditional random field, sequences", "conditional random field, labels")
MIXED = (
    "mixed, clusters",
    "mixed, rows",
    "mixed, crossed",
    "mixed, restricted",
    "mixed, crossed rows",
)
DEPENDENT = (
    "two functions",
    "Gaussian field",
    "hidden Markov",
    "logistic, balanced",
    "poisson, mean loss",
    "Cox",
    CRFS[1],
    *MIXED[1:],
)
SEPARABLE = [n for n in OBJECTIVES if n not in DEPENDENT]
NO_GLM = (
    "two functions",
    "closed form",
    "Gaussian field",
    "hidden Markov",
    "separable",
    "negative binomial, its dispersion",
    "ordinal",
    "Cox",
    *MIXED,
    *CRFS,
)


def slowly(name: str, *slow: str):
    return pytest.param(name, marks=pytest.mark.slow if name in slow else ())


def deleted(objective: lo.GLM, keep: np.ndarray) -> lo.GLM:
    pick = lambda a: None if a is None else np.asarray(a)[keep]
    X = np.asarray(objective.design)[keep][:, : objective.num_features]
    y = (
        np.asarray(objective.classes)[np.asarray(objective.y, int)]
        if objective.classes
        else np.asarray(objective.y)
    )
    return lo.GLM(
        X,
        y[keep],
        objective.loss_function,
        objective.penalty,
        sample_weight=pick(objective.sample_weight),
        offset=pick(objective.offset),
        intercept=objective.intercept,
        class_weight="balanced" if objective.class_code is not None else None,
    )


@pytest.mark.parametrize(
    "name",
    [
        slowly(
            n,
            "probit",
            "multinomial",
            "gamma",
            "cloglog",
            "ridge",
            "pseudo-huber, penalty not quadratic",
        )
        for n in OBJECTIVES
        if n not in NO_GLM
    ],
)
@pytest.mark.slow_for("logistic")
def test_weight_zero_is_deletion_and_weight_two_is_duplication(name):
    objective, theta = fitted(name).objective, fitted(name).theta
    n = objective.num_units
    for counts in (np.r_[0, 0, np.ones(n - 2)], np.r_[2, 0, np.ones(n - 3), 3]):
        rows = np.repeat(np.arange(n), counts.astype(int))
        same, ones = deleted(objective, rows), np.ones(len(rows))
        np.testing.assert_allclose(
            call(objective.loss, theta, counts), call(same.loss, theta, ones), rtol=1e-12
        )
        np.testing.assert_allclose(
            call(objective.hessian, theta, counts), call(same.hessian, theta, ones), atol=1e-10
        )


@pytest.mark.parametrize(
    "name",
    [
        slowly(
            n,
            "negative binomial, its dispersion",
            "multinomial",
            "ordinal",
            "probit",
            "cloglog",
            "ridge",
            "separable",
            "hidden Markov",
            *CRFS,
        )
        for n in OBJECTIVES
        # of NumPy, without a perturbation of their own
        if n not in ("closed form", "Cox", "Gaussian field", *MIXED)
    ],
)
@pytest.mark.slow_for("gamma", "logistic", "pseudo-huber, penalty not quadratic")
def test_perturbation_and_hessian_change_equal_their_defaults(name):
    fit = fitted(name)
    objective, theta, n = fit.objective, fit.theta, fit.objective.num_units
    # padding must not count
    index, delta = np.array([3, 11, n, n]), np.array([-1.0, 0.7, 5.0, 5.0])
    weights = np.ones(n)
    weights[[3, 11]] += -1.0, 0.7
    change = call(objective.loss, theta, weights) - call(objective.loss, theta, np.ones(n))
    for name, *arguments in (("hessian_change", index, delta), ("hessian", weights)):
        got = call(getattr(objective, name), theta, *arguments)
        default = getattr(lo.developer.AbstractObjective, name).__get__(objective)
        np.testing.assert_allclose(got, call(default, theta, *arguments), atol=1e-8)
    # a width of num_units means all units in order
    for places, changes in ((index, delta), (np.arange(n), weights - 1)):
        got = call(objective.perturbation, theta, places, changes)
        np.testing.assert_allclose(got, change, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        slowly(n, "negative binomial, its dispersion", "ordinal", "probit", CRFS[0])
        for n in SEPARABLE
    ],
)
def test_permuting_units_permutes_scores(name):
    fit = fitted(name)
    order = np.random.default_rng(0).permutation(fit.objective.num_units)
    once = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NewtonStep()).losses
    plan = lo.Plan(
        np.arange(len(order) + 1),
        order,
        np.zeros(len(order)),
        np.ones(len(order), bool),
        len(order),
    )
    np.testing.assert_allclose(
        lo.cross_validate(fit, plan, strategy=lo.NewtonStep()).losses, once[order], rtol=1e-9
    )


def test_batches_do_not_matter(monkeypatch):
    fit = fitted("logistic")
    plan = lo.bootstrap(fit.objective.num_units, 20, rng=2)
    whole = lo.cross_validate(fit, plan, strategy=lo.Exact())
    monkeypatch.setattr("leaveout.validation.batches.CAPACITY", 500)
    pieces = lo.cross_validate(fit, plan, strategy=lo.Exact())
    np.testing.assert_allclose(pieces.losses, whole.losses, rtol=1e-8)


def test_scores_are_normalised_densities():
    for loss, support in (
        (lo.losses.Poisson(), np.arange(200.0)),
        (lo.losses.Binomial("cloglog"), np.array([0.0, 1.0])),
    ):
        with jax.enable_x64(True):
            total = sum(np.exp(-float(loss(jnp.array(0.7), jnp.array(y)))) for y in support)
        assert abs(total - 1) < 1e-10
    with jax.enable_x64(True):
        density = lambda y: np.exp(-float(lo.losses.Gamma(2.5)(jnp.array(0.3), jnp.array(y))))
        assert abs(integrate.quad(density, 0, 60)[0] - 1) < 1e-6


def test_hidden_markov_model_against_enumeration():
    """Loss and score against the sum over all state paths, with weights that are neither zero nor
    one.
    """
    model = toy_hmm(6)
    theta = {"mean": np.array([-1.0, 0.7]), "stay": np.array([1.1, 0.4])}
    weights = np.array([1.0, 0.0, 0.3, 1.0, 0.0, 1.0])
    stay = np.log(1 / (1 + np.exp(-theta["stay"])))
    leave = np.log(1 / (1 + np.exp(theta["stay"])))
    transition = np.array([[stay[0], leave[0]], [leave[1], stay[1]]])
    emission = -0.5 * (np.asarray(model.x)[:, None] - theta["mean"]) ** 2 - 0.5 * np.log(2 * np.pi)
    paths = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T
    path = lambda z: np.log(0.5) + sum(transition[a, b] for a, b in itertools.pairwise(z))
    joint = np.array(
        [path(z) + sum(weights[t] * emission[t, z[t]] for t in range(6)) for z in paths]
    )
    prior = 0.5 * np.sum(theta["mean"] ** 2) / 9 + 0.5 * np.sum((theta["stay"] - 1) ** 2)
    loss = call(model.loss, theta, weights)
    np.testing.assert_allclose(loss, prior - logsumexp(joint), rtol=1e-12)
    got = call(model.score, theta, weights, np.array([1, 4]), np.ones(2))
    for value, t in zip(got, (1, 4), strict=True):
        want = logsumexp(joint) - logsumexp(joint + np.array([emission[t, z[t]] for z in paths]))
        np.testing.assert_allclose(value, want, rtol=1e-12)


def test_map_does_not_depend_on_the_parametrisation():
    by_log = lo.fit(sample_mean()).parameters
    x = np.asarray(sample_mean().data)
    plain = lo.Separable(
        lambda theta, x: (
            0.5 * ((x - theta["mean"]) / theta["scale"]) ** 2 + jnp.log(theta["scale"])
        ),
        x,
        theta0={"mean": np.zeros(()), "scale": np.ones(())},
    )
    np.testing.assert_allclose(
        lo.fit(plain).parameters["scale"], np.exp(by_log["log_scale"]), rtol=1e-8
    )
    np.testing.assert_allclose(np.exp(by_log["log_scale"]), x.std(), rtol=1e-10)


def test_derivatives_of_losses_against_closed_forms():
    eta, y = np.linspace(-3, 3, 7), 1.0
    mu = 1 / (1 + np.exp(-eta))
    with jax.enable_x64(True):
        logistic, poisson = lo.losses.Binomial(), lo.losses.Poisson()
        first = lambda f: jax.jit(jax.vmap(jax.grad(f), (0, None)))(eta, y)
        second = lambda f: first(jax.grad(f))
        third = lambda f: second(jax.grad(f))
        np.testing.assert_allclose(first(logistic), mu - y, rtol=1e-12)
        np.testing.assert_allclose(second(logistic), mu * (1 - mu), rtol=1e-12)
        np.testing.assert_allclose(third(logistic), mu * (1 - mu) * (1 - 2 * mu), rtol=1e-10)
        np.testing.assert_allclose(second(poisson), np.exp(eta), rtol=1e-12)
        for loss in (lo.losses.PseudoHuber(0.8), logistic, poisson, lo.losses.Gamma(2.0)):
            assert np.all(
                np.abs(third(loss)) <= loss.self_concordance * np.asarray(second(loss)) * (1 + 1e-9)
            )
        assert np.isfinite(second(lo.losses.Binomial("cloglog"))).all()
        assert np.isfinite(second(lo.losses.Binomial("probit"))).all()


@pytest.mark.slow
def test_vmapped_equals_looped():
    fit = fitted("hidden Markov")
    plan = lo.blocks(fit.objective.num_units, 7, buffer=1)
    together = lo.cross_validate(fit, plan, strategy=lo.Exact()).losses
    for k in range(plan.num_refits):
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        alone = lo.Plan(
            np.array([0, mine.stop - mine.start]),
            plan.index[mine],
            plan.weight[mine],
            plan.held[mine],
            plan.num_units,
        )
        np.testing.assert_allclose(
            lo.cross_validate(fit, alone, strategy=lo.Exact()).losses, together[mine], rtol=1e-7
        )


def test_a_tuning_loop_compiles_once():
    def trial(alpha):
        fit = lo.fit(glm("logistic", lo.penalties.Ridge(alpha), n=37))
        return lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NewtonStep()).mean

    trial(0.1)
    with jax.enable_x64(True):
        before = _compiled()
    means = [trial(alpha) for alpha in (0.3, 1.0, 3.0)]
    assert len(set(means)) == 3
    assert _compiled() == before


_events: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: _events.append(name))


def _compiled() -> int:
    return sum("backend_compile" in name for name in _events)
