"""Hidden Markov models.

Every style against enumeration, refits from scratch, the paper's propositions, bad input.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import leaveout as lo
from leaveout._runtime.results import RESULTS
from leaveout.models import emissions
from leaveout.models.hidden.expected_counts import observation_weights
from leaveout.models.hidden.hidden_chain import Dirichlet
from leaveout.models.hidden.hmm import HMM
from leaveout.objectives.batch_functions import function
from leaveout.optimize.newton import with_few_hessians
from tests.helpers import flat

GIVEN = {"initial": [0.7, 0.3], "transition": [[0.8, 0.2], [0.35, 0.65]], "rate": [1.5, 5.0]}
GIVEN3 = {
    "initial": [0.5, 0.2, 0.3],
    "transition": [[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.25, 0.25, 0.5]],
    "rate": [1.0, 3.0, 7.0],
}
NORMAL = {
    "initial": [0.7, 0.3],
    "transition": [[0.8, 0.2], [0.35, 0.65]],
    "mean": [[-1.0], [1.5]],
    "covariance": [[0.7], [1.6]],
}
COUNTS = np.array([1.0, 4, 0, 7, 6, 2, 3, 1])


def log_densities(hmm, parameters, x):
    """By SciPy, `[T, K]`, missing steps included."""
    if "rate" in parameters:
        return scipy.stats.poisson.logpmf(np.nan_to_num(x)[:, None], parameters["rate"])
    mean, sd = np.ravel(parameters["mean"]), np.sqrt(np.ravel(parameters["covariance"]))
    return scipy.stats.norm.logpdf(np.nan_to_num(x)[:, None], mean, sd)


def enumerated(parameters, densities, lengths, w, emit, style):
    """log Σ over paths by sequence: emission weights `emit`, step weights `w` (style B only)."""
    initial, transition = np.log(parameters["initial"]), np.log(parameters["transition"])
    out, start = [], 0
    for length in lengths:
        logs = []
        for z in itertools.product(range(len(initial)), repeat=int(length)):
            value = 0.0
            for t in range(length):
                s = start + t
                step = (w[s] * (w[s - 1] if t else 1.0)) if style == "step" else 1.0
                value += (
                    step * (transition[z[t - 1], z[t]] if t else initial[z[0]])
                    + emit[s] * densities[s, z[t]]
                )
            logs.append(value)
        out.append(np.logaddexp.reduce(logs))
        start += length
    return np.array(out)


def oracle(hmm, parameters, x, w):
    """F(θ, w) without its prior."""
    seen = ~np.isnan(x)
    densities = log_densities(hmm, parameters, x)
    if hmm.drop == "sequence":
        return -w @ enumerated(parameters, densities, hmm.lengths, None, seen * 1.0, hmm.drop)
    total = enumerated(parameters, densities, hmm.lengths, w, w * seen, hmm.drop).sum()
    if hmm.drop == "step":
        total -= enumerated(parameters, densities, hmm.lengths, w, 0 * w, hmm.drop).sum()
    return -total


def built(x, parameters, drop="observation", lengths=None, **kwargs):
    emission = (
        emissions.Poisson(prior=None) if "rate" in parameters else emissions.Gaussian(prior=None)
    )
    flat_prior = Dirichlet(initial=1.0, transition=1.0)
    return HMM(
        x,
        emission,
        len(parameters["initial"]),
        lengths=lengths,
        drop=drop,
        prior=flat_prior,
        **kwargs,
    )


def at(hmm, parameters):
    return jax.tree.map(
        np.asarray,
        hmm.parameters.unconstrained({k: np.asarray(v, float) for k, v in parameters.items()}),
    )


CASES = {
    "one sequence": (COUNTS, None, GIVEN),
    "several, missing, three states": (
        np.where(np.arange(8) == 5, np.nan, COUNTS),
        [4, 1, 3],
        GIVEN3,
    ),
    "gaussian, missing": (
        np.where(np.arange(7) == 2, np.nan, COUNTS[:7] / 3 - 1),
        None,
        NORMAL,
    ),
}


@pytest.mark.parametrize("drop", ["observation", "step", "sequence"])
@pytest.mark.parametrize("name", CASES)
def test_enumeration(name, drop):
    x, lengths, parameters = CASES[name]
    if drop == "sequence":
        lengths = lengths or [5, len(x) - 5]
    hmm = built(x, parameters, drop, lengths)
    theta = at(hmm, parameters)
    rng = np.random.default_rng(0)
    for w in (
        np.ones(hmm.num_units),
        rng.uniform(0, 1.5, hmm.num_units),
        (rng.random(hmm.num_units) < 0.6) * 1.0,
    ):
        np.testing.assert_allclose(hmm.loss(theta, w), oracle(hmm, parameters, x, w), rtol=1e-11)


@pytest.mark.parametrize("drop", ["observation", "step"])
@pytest.mark.parametrize("name", CASES)
def test_scores_by_enumeration(name, drop):
    """`−log p(x_t | all that is seen)`.

    A quotient of two sums over paths in the whole chain, both neighbours in it.
    """
    x, lengths, parameters = CASES[name]
    hmm = built(x, parameters, drop, lengths)
    densities, w = log_densities(hmm, parameters, x), np.ones(len(x))
    held = np.array([1, 3, 4])
    w[held] = 0
    seen = w * ~np.isnan(x)
    total = lambda emit: enumerated(
        parameters, densities, hmm.lengths, None, emit, "observation"
    ).sum()
    want = [total(seen) - total(seen + np.eye(len(x))[t]) for t in held]
    index = np.array([*held, len(x)])  # the last is padding
    got = hmm.score(at(hmm, parameters), w, index, np.array([1.0, 1, 1, 0]))
    np.testing.assert_allclose(got[:3], want, rtol=1e-11)
    whole = hmm.score(at(hmm, parameters), w, np.arange(len(x)), 1 - w)
    np.testing.assert_allclose(whole[held], want, rtol=1e-11)
    together = built(x, parameters, drop, lengths, score="joint")
    joint = together.score(at(hmm, parameters), w, index, np.array([1.0, 1, 1, 0]))
    np.testing.assert_allclose(joint, total(seen) - total(~np.isnan(x) * 1.0), rtol=1e-11)


def test_scores_of_sequences(monkeypatch):
    hmm = built(COUNTS, GIVEN, "sequence", [3, 1, 4])
    want = -enumerated(
        GIVEN, log_densities(hmm, GIVEN, COUNTS), [3, 1, 4], None, np.ones(8), "sequence"
    )
    for index in (np.array([2, 0]), np.array([0, 1, 2]), np.array([1, 3])):
        got = hmm.score(at(hmm, GIVEN), np.zeros(3), index, np.ones(len(index)))
        np.testing.assert_allclose(got[index < 3], want[index[index < 3]], rtol=1e-12)


@pytest.mark.parametrize("drop", ["observation", "step"])
def test_held_out_densities_sum_to_one(drop):
    w, total = np.array([1.0, 1, 0, 0, 1, 1, 1, 0]), np.zeros(3)
    for value in range(40):
        hmm = built(np.where(w == 0, value, COUNTS), GIVEN, drop)
        total += np.exp(-hmm.score(at(hmm, GIVEN), w, np.array([2, 3, 7]), np.ones(3)))
    np.testing.assert_allclose(total, 1.0, atol=1e-10)


def test_an_autoregressions_held_out_densities_integrate_to_one():
    """x_t must not remain as a regressor: the steps after it are dropped with it."""
    x, grid = np.random.default_rng(0).standard_normal(9), np.linspace(-9, 9, 91)
    w = np.where(np.arange(9) == 4, 0.0, 1.0)
    parameters = {**GIVEN, "bias": [[0.3], [-0.5]], "coefficients": [[[[0.6]]], [[[-0.4]]]]}
    del parameters["rate"]
    density = []
    for value in grid:
        hmm = HMM(np.where(w == 0, value, x), emissions.Autoregressive(1, prior=None), 2)
        density.append(np.exp(-hmm.score(at(hmm, parameters), w, np.array([4]), np.ones(1))[0]))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-8)
    assert "so do the 1 steps after it" in hmm.note
    np.testing.assert_array_equal(observation_weights(hmm, w[None])[0], [0, 1, 1, 1, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(hmm.units.observed, np.arange(9) > 0)


def test_held_out_observations_are_no_regressors_of_scored_ones():
    """Of a block and of a horizon only the first step, whose regressor is seen, has a loss of its
    own; the joint loss of a block is that of its conditional densities (one state), without that of
    the step after it."""
    x, blocks, future = (
        np.random.default_rng(0).standard_normal(30),
        lo.blocks(30, 5),
        lo.leave_future_out(30, 20, 3),
    )
    hmm = HMM(x, emissions.Autoregressive(1, prior=None), 1)
    fit = lo.fit(hmm, num_starts=1)
    slope, shift = fit.parameters["coefficients"].item(), fit.parameters["bias"].item()
    mean = np.r_[np.nan, shift + slope * x[:-1]]
    alone, first = (
        -scipy.stats.norm.logpdf(x, mean),
        np.isin(np.arange(30) % 5, 0) & (np.arange(30) > 0),
    )
    losses = lo.cross_validate(fit, blocks, strategy=lo.NoUpdate()).losses
    np.testing.assert_allclose(losses, np.where(first, alone, np.nan))
    losses = lo.cross_validate(fit, future, strategy=lo.NoUpdate()).losses
    np.testing.assert_allclose(
        losses,
        np.where(future.held & (future.index == 20 + future.refit), alone[future.index], np.nan),
    )
    assert "nor are held-out steps of which a regressor is held out" in hmm.note
    np.testing.assert_allclose(
        lo.cross_predict(fit, blocks, strategy=lo.NoUpdate()), np.where(first, mean, np.nan)
    )
    gap = (np.arange(30) != 7) * 1.0
    assert np.flatnonzero(np.isnan(hmm.predictive_means(fit, gap))).tolist() == [0, 8]
    missing = HMM(np.where(gap, x, np.nan), emissions.Autoregressive(1, prior=None), 1)
    np.testing.assert_allclose(missing.predictive_means(fit)[[6, 7]], mean[[6, 7]])
    assert np.flatnonzero(np.isnan(missing.predict(fit))).tolist() == [0, 8]
    joint = lo.fit(HMM(x, emissions.Autoregressive(1, prior=None), 1, score="joint"), num_starts=1)
    # silent
    assert np.flatnonzero(
        np.isfinite(lo.cross_predict(joint, blocks, strategy=lo.NoUpdate()))
    ).tolist() == [
        5,
        10,
        15,
        20,
        25,
    ]
    losses = lo.cross_validate(joint, blocks, strategy=lo.NoUpdate()).losses
    # x_0 has no density
    np.testing.assert_allclose(losses, [alone[max(t, 2) : t + 5].sum() for t in range(0, 30, 5)])
    losses = lo.cross_validate(joint, future, strategy=lo.NoUpdate()).losses
    np.testing.assert_allclose(losses, [alone[t : t + 3].sum() for t in range(20, 30)])


def test_proposition_3():
    """A and B agree when the future is left out, and not for a block in the middle."""
    a, b = built(COUNTS, GIVEN), built(COUNTS, GIVEN, "step")
    theta = at(a, GIVEN)
    future, middle = np.array([1.0] * 5 + [0] * 3), np.array([1.0, 1, 1, 0, 0, 1, 1, 1])
    values = np.array([[hmm.loss(theta, w) for w in (future, middle)] for hmm in (a, b)])
    np.testing.assert_allclose(values[0, 0], values[1, 0], rtol=1e-13)
    assert abs(values[0, 1] - values[1, 1]) > 1e-3


def test_a_block_of_weight_zero_is_a_gap_not_a_restart():
    """Around the gap the chain goes on by a power of the transition matrix.

    A missing block is the same as a dropped one.
    """
    w = np.array([1.0, 1, 1, 0, 0, 0, 1, 1])
    hmm = built(COUNTS, GIVEN)
    A, pi = np.array(GIVEN["transition"]), np.array(GIVEN["initial"])
    e = np.exp(log_densities(hmm, GIVEN, COUNTS))
    a = pi * e[0]
    for t in (1, 2):
        a = a @ A * e[t]
    a = a @ np.linalg.matrix_power(A, 4) * e[6] @ A * e[7]
    assert hmm.loss(at(hmm, GIVEN), w) == pytest.approx(-np.log(a.sum()), rel=1e-13)
    missing = built(np.where(w == 0, np.nan, COUNTS), GIVEN)
    assert missing.loss(at(hmm, GIVEN), np.ones(8)) == pytest.approx(-np.log(a.sum()), rel=1e-13)
    np.testing.assert_array_equal(missing.units.observed, w > 0)
    assert hmm.units.observed is None


def simulated(T=60, seed=0, K=2):
    rng = np.random.default_rng(seed)
    state = np.cumsum(rng.random(T) < 0.15) % K
    return rng.poisson(np.array([2.0, 8.0, 15.0])[state]).astype(float)


def normals(T=60, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(T) + np.where(np.cumsum(rng.random(T) < 0.15) % 2, 2.0, -2.0)


MODELS = {
    "observation": lambda: HMM(simulated(), emissions.Poisson(), 2),
    "step": lambda: HMM(simulated(), emissions.Poisson(), 2, drop="step", initial="stationary"),
    "sequence": lambda: HMM(simulated(), emissions.Poisson(), 2, lengths=[5] * 12, drop="sequence"),
    "maximum likelihood": lambda: HMM(
        simulated(), emissions.Poisson(), 2, prior=None, initial="stationary"
    ),
    "gaussian, missing, several": lambda: HMM(
        np.where(np.arange(60) % 17 == 4, np.nan, normals()),
        emissions.Gaussian(),
        2,
        lengths=[25, 35],
    ),
}
_fits = {}


def fitted(name):
    if name not in _fits:
        _fits[name] = lo.fit(MODELS[name](), num_starts=2)
    return _fits[name]


def _pieces(hmm, v, w):
    """F, its gradient and its Hessian at raveled parameters."""
    value, gradient, _ = hmm.look(v[None], w[None])
    return value[0], gradient[0], hmm.hessians(v[None], w[None])[0]


def _jackknife(hmm, theta, index, delta):
    """`∇_θ ∂_δ F`, and the change of F and of its Hessian."""
    ones, real = np.ones(hmm.num_units), index < hmm.num_units
    weights = ones.copy()
    weights[index[real]] += delta[real]
    moved = delta[real] @ hmm.jacobian(theta)[index[real]]
    values, hessians = (
        [function(theta, w) for w in (weights, ones)] for function in (hmm.loss, hmm.hessian)
    )
    return moved, values[0] - values[1], hessians[0] - hessians[1]


def minimiser(fit, w):
    """argmin F(·, w) by SciPy's BFGS, ended by Newton steps."""
    F = lambda v: _pieces(fit.objective, v, w)[:2]
    v = minimize(F, flat(fit.theta), jac=True, method="BFGS", options={"gtol": 1e-4}).x
    for _ in range(4):
        _, gradient, hessian = _pieces(fit.objective, v, w)
        v = v - np.linalg.solve(hessian, gradient)
    return v


slowly = lambda *names: [
    pytest.param(name, marks=pytest.mark.slow if name in names else ()) for name in MODELS
]


@pytest.mark.parametrize(
    "name",
    slowly("observation", "maximum likelihood", "sequence", "gaussian, missing, several", "step"),
)
def test_order_of_accuracy(name):
    """Weights of a few units go 1 → 1 − t.

    Halving t divides the error against an exact refit by 2^order.
    """
    fit = fitted(name)
    n, start, index = fit.objective.num_units, flat(fit.theta), np.array([3, 4, 5])
    errors = []
    for t in (0.1, 0.05):
        w = np.where(np.isin(np.arange(n), index), 1 - t, 1.0)
        exact = minimiser(fit, w)
        moved, _, _ = _jackknife(fit.objective, fit.theta, index, np.full(3, -t))
        _, gradient, hessian = _pieces(fit.objective, start, w)
        steps = [
            0 * start,
            fit.solve(moved),
            np.linalg.solve(hessian, gradient),
            fit.solve(gradient),
        ]
        errors.append([np.linalg.norm(start - step - exact) for step in steps])
    np.testing.assert_allclose(np.log2(errors[0]) - np.log2(errors[1]), [1, 2, 2, 2], atol=0.35)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_exact_is_the_refit(name):
    fit = fitted(name)
    plan = lo.random_subsets(fit.objective.num_units, 0.1, 2, rng=1)
    got = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
    for k, w in enumerate(plan.matrix()):
        own = flat(
            fit.objective.parameters.unconstrained(jax.tree.map(lambda leaf, k=k: leaf[k], got))
        )
        np.testing.assert_allclose(own, minimiser(fit, w), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    slowly("observation", "maximum likelihood", "sequence", "gaussian, missing, several", "step"),
)
def test_derivatives(name):
    """Gradient and Hessian by finite differences.

    `perturbation` and `hessian_change` are differences of the whole.
    """
    fit = fitted(name)
    n, start = fit.objective.num_units, flat(fit.theta) + 0.1
    w = np.random.default_rng(0).uniform(0.5, 1.5, n)
    at_point = lambda v, w: _pieces(fit.objective, v, w)
    _, gradient, hessian = at_point(start, w)
    sides = [[at_point(start + sign * d, w) for sign in (1, -1)] for d in 1e-5 * np.eye(len(start))]
    np.testing.assert_allclose(
        gradient, [(up[0] - down[0]) / 2e-5 for up, down in sides], atol=1e-6, rtol=1e-6
    )
    np.testing.assert_allclose(
        hessian, [(up[1] - down[1]) / 2e-5 for up, down in sides], atol=1e-6, rtol=1e-6
    )
    theta = jax.tree.map(np.asarray, fit.theta)
    moved = np.ones(n)
    moved[[1, 4]] += [-1.0, -0.3]
    _, change, curvature = _jackknife(
        fit.objective, theta, np.array([1, 4, n]), np.array([-1.0, -0.3, 5.0])
    )
    (after, _, bent), (before, _, straight) = (
        at_point(flat(theta), moved),
        at_point(flat(theta), np.ones(n)),
    )
    np.testing.assert_allclose(change, after - before, atol=1e-9)
    np.testing.assert_allclose(curvature, bent - straight, atol=1e-8)


@pytest.mark.slow
def test_hessian_and_cross_derivatives_equal_those_of_a_python_loop():
    """H and J by plain autodiff, step by step."""
    hmm = HMM(simulated(16), emissions.Poisson(prior=None), 2, prior=Dirichlet(1.0, 1.0))
    x, theta = hmm.x[:, 0], hmm.parameters.start(0)

    def plain(v, w):
        theta = unravel(v)
        log_a = jax.nn.log_softmax(
            jnp.concatenate([theta["transition"], jnp.zeros((2, 1))], 1), axis=1
        )
        log_pi = jax.nn.log_softmax(jnp.append(theta["initial"], 0.0))
        e = jax.scipy.stats.poisson.logpmf(x[:, None], jnp.exp(theta["rate"])) * w[:, None]
        a = log_pi + e[0]
        for t in range(1, len(x)):
            a = jax.nn.logsumexp(a[:, None] + log_a, axis=0) + e[t]
        return -jax.nn.logsumexp(a)

    with jax.enable_x64(True):
        start, unravel = ravel_pytree(jax.tree.map(jnp.asarray, theta))
        w = jnp.ones(len(x))
        wanted = jax.jit(jax.jacfwd(jax.grad(plain, argnums=(0, 1))))(start, w)
        found = hmm.hessian(theta, np.ones(16)), hmm.jacobian(theta).T
        for got, want in zip(found, (wanted[0], wanted[1].T), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_permuted_labels_give_the_same_losses():
    hmm = MODELS["gaussian, missing, several"]()
    theta = fitted("gaussian, missing, several").theta
    natural = hmm.parameters.natural(theta)
    turned = {k: v[::-1] for k, v in natural.items()} | {
        "transition": natural["transition"][::-1, ::-1]
    }
    other = jax.tree.map(np.asarray, hmm.parameters.unconstrained(turned))
    w = np.random.default_rng(0).uniform(0, 1, 60)
    both = [(hmm.loss(t, w), hmm.score(t, w, np.arange(60), 1 - w)) for t in (theta, other)]
    np.testing.assert_allclose(both[0][0], both[1][0], rtol=1e-12)
    np.testing.assert_allclose(both[0][1], both[1][1], rtol=1e-10)
    for start in (theta, other):  # and the canonical order is one, stable under the round trip
        np.testing.assert_allclose(
            flat(hmm.parameters.canonical(start)), flat(theta), rtol=1e-9, atol=1e-9
        )


@pytest.mark.slow
def test_at_an_exact_optimum_one_chord_step_of_leave_sequence_out_is_the_jackknife():
    fit = fitted("sequence")
    for n in range(0, 12, 5):
        moved, _, _ = _jackknife(fit.objective, fit.theta, np.array([n]), -np.ones(1))
        w = np.where(np.arange(12) == n, 0.0, 1.0)
        _, gradient, _ = _pieces(fit.objective, flat(fit.theta), w)
        # but for what a fit leaves
        np.testing.assert_allclose(fit.solve(gradient - fit.gradient), fit.solve(moved), atol=1e-9)


def test_the_prior_is_stated_over_natural_parameters():
    flat_one, default = built(COUNTS, GIVEN), HMM(COUNTS, emissions.Poisson(prior=None), 2)
    theta, w = at(default, GIVEN), np.ones(8)
    logs = np.log(GIVEN["initial"]).sum() + np.log(GIVEN["transition"]).sum()
    assert default.loss(theta, w) - flat_one.loss(theta, w) == pytest.approx(-logs)
    assert (
        "Dirichlet(2)" in default.note
        and "Maximum likelihood" in fitted("maximum likelihood").objective.note
    )


def test_earthquakes_like_published():
    """Zucchini & MacDonald: −log L = 342.3183 for two states, a stationary start."""
    import os

    folder = os.environ.get("LEAVEOUT_DATA", "")
    if not os.path.exists(f"{folder}/hmm_earthquakes/earthquakes.csv"):
        pytest.skip("needs hmm_earthquakes/earthquakes.csv in the folder named by LEAVEOUT_DATA")
    table = pd.read_csv(f"{folder}/hmm_earthquakes/earthquakes.csv").set_index("year")
    hmm = HMM(table["count"], emissions.Poisson(), 2, prior=None, initial="stationary")
    fit = lo.fit(hmm, num_starts=2)
    assert hmm.log_likelihood(fit) == pytest.approx(-342.3183, abs=1e-4)
    assert hmm.aic(fit) == pytest.approx(2 * 342.3183 + 8, abs=1e-3)
    assert hmm.bic(fit) == pytest.approx(2 * 342.3183 + 4 * np.log(107), abs=1e-3)
    np.testing.assert_allclose(fit.parameters["rate"], [15.472, 26.125], atol=2e-3)
    stationary = fit.parameters["initial"]
    np.testing.assert_allclose(stationary @ fit.parameters["transition"], stationary, atol=1e-12)
    assert hmm.decode(fit).index.equals(table.index)
    assert list(hmm.forecast(fit, 3).index) == [2007, 2008, 2009]


def test_what_users_ask():
    index = pd.date_range("2020-01-01", periods=60, freq="D")
    frame = pd.DataFrame({"a": normals(), "b": normals(seed=1)}, index=index)
    hmm = HMM(frame, emissions.Gaussian(), 2)
    fit = lo.fit(hmm, num_starts=2)
    states = hmm.state_probabilities(fit)
    assert states.index.equals(index) and np.allclose(states.sum(axis=1), 1)
    assert (hmm.decode(fit) == states.to_numpy().argmax(1)).mean() > 0.9
    gap = np.where((np.arange(60) > 20) & (np.arange(60) < 30), 0.0, 1.0)
    assert not np.allclose(hmm.state_probabilities(fit.parameters, gap), states)
    means = hmm.predictive_means(fit)
    pd.testing.assert_frame_equal(hmm.predict(fit), means)
    pd.testing.assert_frame_equal(hmm.predict(fit, kind="state"), states)
    assert list(means.columns) == ["a", "b"] and means.index.equals(index)
    x, path = hmm.simulate(fit, 500, rng=0)
    assert x.shape == (500, 2) and set(path) == {0, 1}
    ahead = hmm.forecast(fit, 4, level=0.8)
    assert ahead.index[0] == pd.Timestamp("2020-03-01") and ahead.columns.nlevels == 2
    assert (ahead["a"]["lower"] < ahead["a"]["mean"]).all() and (
        ahead["a"]["mean"] < ahead["a"]["upper"]
    ).all()
    predicted = np.asarray(
        lo.cross_predict(fit, lo.contiguous(60, 0.1, 12, rng=0), strategy=lo.NoUpdate())
    )
    assert predicted.shape == (60, 2) and np.isfinite(predicted).any()
    alone = HMM(simulated(), emissions.Poisson(), 2)
    assert isinstance(alone.predictive_means(GIVEN), np.ndarray) and alone.predictive_means(
        GIVEN
    ).shape == (60,)


@pytest.mark.slow
def test_simulated_parameters_come_back():
    hmm = built(COUNTS, GIVEN)
    x, _ = hmm.simulate(GIVEN, 4000, rng=1)
    fit = lo.fit(HMM(x, emissions.Poisson(), 2), num_starts=2)
    np.testing.assert_allclose(fit.parameters["rate"], GIVEN["rate"], rtol=0.08)
    np.testing.assert_allclose(fit.parameters["transition"], GIVEN["transition"], atol=0.06)


def test_warnings_name_states_and_edges():
    hmm = built(COUNTS, GIVEN)
    idle = {
        "initial": [0.99999, 1e-5],
        "transition": [[1 - 1e-9, 1e-9], [0.5, 0.5]],
        "rate": [3.0, 60.0],
    }
    said = hmm.parameters.warning(at(hmm, idle))
    assert "State 1 explains nothing" in said and "transition[0, 1] = 1e-09" in said
    assert hmm.parameters.warning(at(hmm, GIVEN)) == ""


ALIKE = np.array([[1e8, 1e3 * (1 - 1e-9)], [1e3 * (1 - 1e-9), 0.01]])
EDGES = {
    "scales": ("diagonal", [[1e8, 0.01], [2e8, 0.02]], ""),
    "one state": ("diagonal", [[1e8, 0.01], [1e8, 1e-9]], "covariance[1, 1] = 1e-09;"),
    "every state": (
        "diagonal",
        [[1e8, 1e-9], [1e8, 1e-9]],
        "covariance[0, 1] = 1e-09, covariance[1, 1] = 1e-09;",
    ),
    "full": ("full", [np.diag([1e8, 0.01]), ALIKE], "covariance[1] (smallest eigenvalue "),
    "full, scales": ("full", [np.diag([1e8, 0.01])] * 2, ""),
    "tied": ("tied", ALIKE, "covariance (smallest eigenvalue "),
    "spherical": ("spherical", [1e8, 1e-9], "covariance[1] = 1e-09;"),
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.slow_for("tied")
def test_edges_are_told_from_scales(name):
    kind, covariance, message = EDGES[name]
    x = np.stack([1e4 * normals(), 0.1 * normals(seed=1)], axis=1)
    said = HMM(x, emissions.Gaussian(kind), 2)
    own = {**GIVEN, "mean": [[-2e4, -0.2], [2e4, 0.2]], "covariance": covariance}
    del own["rate"]
    found = said.parameters.warning(at(said, own))
    assert message in found and bool(message) == ("On the boundary" in found)


def test_rates_and_probabilities_at_either_end_are_named():
    rates = HMM(np.stack([COUNTS * 1e7, COUNTS], axis=1), emissions.Poisson(), 2)
    assert (
        rates.parameters.warning(at(rates, {**GIVEN, "rate": [[1e7, 1.0], [6e7, 6.0]]})).count(
            "boundary"
        )
        == 0
    )
    assert "rate[0, 1] = 1e-09" in rates.parameters.warning(
        at(rates, {**GIVEN, "rate": [[1e7, 1e-9], [6e7, 6.0]]})
    )
    shares = HMM(COUNTS, emissions.Binomial(7), 2)
    own = {name: GIVEN[name] for name in ("initial", "transition")}
    assert "probability[1] = 1;" in shares.parameters.warning(
        at(shares, {**own, "probability": [0.3, 1 - 1e-9]})
    )


@pytest.mark.slow
@pytest.mark.parametrize("drop", ["observation", "sequence"])
def test_a_fold_that_holds_every_observation_of_a_state_is_flagged(drop):
    rng = np.random.default_rng(0)
    x = rng.poisson(3.0, 60).astype(float)
    x[24:30] = rng.poisson(60.0, 6)
    lengths = [12] * 5 if drop == "sequence" else None
    fit = lo.fit(lo.HMM(x, lo.emissions.Poisson(), 2, drop=drop, lengths=lengths))
    plan = lo.leave_one_out(5) if drop == "sequence" else lo.blocks(60, 12)
    for refit in (lo.NoUpdate(), lo.Certified()):
        cv = lo.cross_validate(fit, plan, strategy=refit)
        assert [RESULTS(code).name for code in cv.result] == ["successful"] * 2 + ["emptied"] + [
            "successful"
        ] * 2
        assert 2 in cv.flagged() and "all that is known of a state" in str(cv)


def test_what_the_core_is_told():
    one, many = MODELS["observation"](), MODELS["sequence"]()
    assert (
        one.units.serial
        and not one.units.repeatable
        and many.units.repeatable
        and not many.units.serial
    )
    assert one.pointwise and not built(COUNTS, GIVEN, score="joint").pointwise
    assert one.parameters.names() == [
        "initial[0]",
        "rate[0]",
        "rate[1]",
        "transition[0, 0]",
        "transition[1, 0]",
    ]
    assert len(flat(one.parameters.start(0))) == 5 and one.costs.lanes >= 4
    start = one.parameters.start(3)
    again = one.parameters.unconstrained(jax.tree.map(np.asarray, one.parameters.natural(start)))
    np.testing.assert_allclose(flat(again), flat(start), rtol=1e-12, atol=1e-12)


POISSON = emissions.Poisson()
DATED = pd.DataFrame({"time": pd.date_range("2020-01-01", periods=8), "count": COUNTS})
AHEAD = HMM(
    np.where(np.arange(9) == 7, np.nan, np.arange(9.0) ** 2), emissions.Autoregressive(2), 1
)


def likelihood(**changed):
    return built(COUNTS, GIVEN).log_likelihood({**GIVEN, **changed})


BAD = {
    "infinite": (
        lambda: HMM([1.0, np.inf, 2.0], POISSON, 2),
        "infinite values, the first at step 1",
    ),
    "all missing": (lambda: HMM([np.nan, np.nan], POISSON, 1), "every step of x is missing"),
    "one step": (lambda: HMM([3.0], POISSON, 1), "at least two steps"),
    "no numbers": (lambda: HMM(["a", "b", "c"], POISSON, 1), "must hold numbers"),
    "three axes": (lambda: HMM(np.zeros((2, 2, 2)), POISSON, 1), r"\[steps, channels\]"),
    "lengths": (lambda: HMM(COUNTS, POISSON, 2, lengths=[4, 5]), "add up to 9, but x has 8"),
    "lengths of zero": (lambda: HMM(COUNTS, POISSON, 2, lengths=[8, 0]), "positive integers"),
    "one sequence": (lambda: HMM(COUNTS, POISSON, 2, drop="sequence"), "several sequences"),
    "style": (
        lambda: HMM(COUNTS, POISSON, 2, drop="steps"),
        "'observation', 'step', 'sequence'; got 'steps'",
    ),
    "score": (lambda: HMM(COUNTS, POISSON, 2, score="each"), "score must be one of"),
    "states": (lambda: HMM(COUNTS, POISSON, 0), "num_states must be a whole number"),
    "emission": (lambda: HMM(COUNTS, "poisson", 2), "emission must be an object"),
    "two states only": (
        lambda: HMM(COUNTS, emissions.EventCounts(np.zeros(8, int)), 3),
        "EventCounts has 2 states",
    ),
    "no interior": (
        lambda: HMM(simulated(), POISSON, 2, prior=None),
        'no interior optimum.*initial="stationary"',
    ),
    "too few": (
        lambda: HMM(COUNTS[:4], POISSON, 3, prior=None, initial="stationary"),
        "4 observations cannot determine 9",
    ),
    "prior": (lambda: HMM(COUNTS, POISSON, 2, prior="flat"), "prior must be 'default', None"),
    "concentration": (
        lambda: HMM(COUNTS, POISSON, 2, prior=Dirichlet(transition=0.5)),
        "1 or more; got 0.5",
    ),
    "initial": (lambda: HMM(COUNTS, POISSON, 2, initial=[0.5, 0.6]), "sum to one"),
    "unstationary": (
        lambda: HMM(COUNTS, POISSON, 2, transition=np.eye(2), initial="stationary"),
        "states lead to the first",
    ),
    "word": (
        lambda: HMM(COUNTS, POISSON, 2, initial="flat"),
        "'free' or 'stationary' or an array; got 'flat'",
    ),
    "transition": (
        lambda: HMM(COUNTS, POISSON, 2, transition=np.eye(3)),
        r"probabilities \[2, 2\]",
    ),
    "negative": (lambda: HMM([1.0, -1.0, 2.0], POISSON, 1), "counts"),
    "parameters": (lambda: built(COUNTS, GIVEN).decode({"rate": [1.0, 2.0]}), "parameters are"),
    "shape": (
        lambda: built(COUNTS, GIVEN).decode({**GIVEN, "rate": [1.0]}),
        r"rate must have shape \[2\]",
    ),
    "horizon": (lambda: built(COUNTS, GIVEN).forecast(GIVEN, 0), "horizon must be 1 or more"),
    "nothing": (lambda: HMM([], POISSON, 1), "at least two steps are needed; got 0"),
    "no channels": (lambda: HMM(np.ones((5, 0)), POISSON, 1), "a channel or more"),
    "dates": (
        lambda: HMM(DATED, POISSON, 1),
        r"numbers; these columns do not: 'time' \(datetime64.*set one as the index",
    ),
    "dates with a zone": (
        lambda: HMM(DATED["time"].dt.tz_localize("UTC"), POISSON, 1),
        r"'time' \(datetime",
    ),
    "spans": (lambda: HMM(DATED["time"].diff(), POISSON, 1), r"'time' \(timedelta"),
    "complex": (lambda: HMM(COUNTS * 1j, POISSON, 1), r"0 \(complex"),
    "truths": (
        lambda: HMM(np.array([True, None, False], object), POISSON, 1),
        r"0 \(boolean, dtype object",
    ),
    "regressor": (
        lambda: AHEAD.forecast({"bias": [[0.0]], "coefficients": np.full((1, 2, 1, 1), 0.3)}, 2),
        r"\[7\] are miss",
    ),
    "how many weights": (
        lambda: built(COUNTS, GIVEN).predictive_means(GIVEN, [1, 1]),
        r"weights must be 8 .* got shape \[2\]",
    ),
    "weights": (
        lambda: built(COUNTS, GIVEN).state_probabilities(GIVEN, -COUNTS),
        "not negative; got -1 for unit 0",
    ),
    "weight": (
        lambda: built(COUNTS, GIVEN).state_probabilities(GIVEN, COUNTS + np.nan),
        "got nan for unit 0",
    ),
    "rate": (
        lambda: likelihood(rate=[1.0, -2.0]),
        r"rate must be positive and finite; got rate\[1\] = -2",
    ),
    "missing rate": (lambda: likelihood(rate=[np.nan, 1.0]), r"got rate\[0\] = nan"),
    "rows": (
        lambda: likelihood(transition=3 * np.array(GIVEN["transition"])),
        r"sum to one in each row.* transition\[0\] =",
    ),
    "matrix": (
        lambda: HMM(np.stack([COUNTS, COUNTS**2], 1), emissions.Gaussian("tied"), 1).log_likelihood(
            {"mean": [[0.0, 0.0]], "covariance": [[1.0, 2.0], [2.0, 1.0]]}
        ),
        r"covariance must be symmetric, positive definite.* got covariance = \[\[1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_model_is_printed_in_one_line():
    assert repr(HMM(COUNTS, POISSON, 2)) == f"HMM({len(COUNTS)} units, 5 parameters)"
    assert repr(lo.Objective(lambda theta, w: w.sum() * theta**2, 7)) == "Objective(7 units)"


def test_kinds_of_data():
    whole = HMM(pd.Series([1, 2, None, 4], dtype="Int64"), POISSON, 1)
    np.testing.assert_array_equal(np.isnan(whole.x[:, 0]), [False, False, True, False])
    assert HMM(np.array([1, 2, 3]), POISSON, 1).x.dtype == np.float64
    masked = HMM(np.ma.masked_array([1, 999, 3], [False, True, False]), POISSON, 1)
    np.testing.assert_array_equal(masked.x[:, 0], [1, np.nan, 3])
    frame = HMM(
        pd.DataFrame({"a": [True, False, True], "b": pd.array([3, 4, 4], "Int64")}), POISSON, 1
    )
    np.testing.assert_array_equal(frame.x, [[1, 3], [0, 4], [1, 4]])


def test_zeros_on_the_boundary_are_legal():
    assert likelihood(initial=[0.0, 1.0]) == pytest.approx(
        likelihood(initial=[1e-12, 1 - 1e-12]), abs=1e-9
    )
    assert likelihood(initial=[1.0, 0.0]) == pytest.approx(
        likelihood(initial=[1 - 1e-12, 1e-12]), abs=1e-9
    )
    held = built(COUNTS, GIVEN, initial=[1.0, 0.0], transition=[[np.nan, np.nan], [np.nan, 0.0]])
    assert np.isfinite(
        held.log_likelihood({"transition": [[0.4, 0.6], [1.0, 0.0]], "rate": [1.5, 5.0]})
    )


def test_symbols_are_told_by_their_probabilities():
    symbols = pd.Series(np.arange(12) % 3, index=pd.date_range("2020-01-01", periods=12))
    hmm = HMM(symbols, emissions.Categorical(3), 2)
    share = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    parameters = {
        "initial": [0.7, 0.3],
        "transition": [[0.8, 0.2], [0.35, 0.65]],
        "probability": share,
    }
    want = hmm.state_probabilities(parameters).to_numpy() @ share
    for x in (symbols, symbols.to_frame(), symbols.to_numpy()):
        means = HMM(x, emissions.Categorical(3), 2).predictive_means(parameters)
        np.testing.assert_allclose(means, want, rtol=1e-12)
    ahead = hmm.forecast(parameters, 2)
    assert list(ahead.columns) == [0, 1, 2] and ahead.index[0] == pd.Timestamp("2020-01-13")
    last = hmm.state_probabilities(parameters).to_numpy()[-1] @ parameters["transition"]
    np.testing.assert_allclose(ahead.iloc[0], last @ share, atol=0.04)
    np.testing.assert_allclose(ahead.sum(axis=1), 1.0)


@pytest.mark.slow
def test_a_few_hessians_lead_a_large_model_to_its_minimum():
    """What models of thousands of parameters are fitted by, from a start around which F is not
    convex: as low as by BFGS.
    """
    x = 0.3 * np.cumsum(np.random.default_rng(0).standard_normal((300, 2)), axis=0)
    hmm = lo.HMM(x, emissions.NeuralAutoregressive(3), 2)
    start = jax.tree.map(np.asarray, hmm.parameters.start(0))
    with jax.enable_x64(True):
        F, at = function(hmm, start), flat(start)
        assert np.linalg.eigvalsh(F.hessian(at)).min() < -100
        value, vector, converged = with_few_hessians(F, at, np.zeros((0, hmm.num_params)))
        slope = F.look(vector)[1]
    assert converged and np.abs(slope).max() < 1e-5
    np.testing.assert_allclose(value, lo.fit(hmm).value, rtol=1e-10)


def test_sequences_as_rows_are_read_as_channels_with_a_warning():
    rows = np.random.default_rng(0).normal(size=(4, 9))
    with pytest.warns(UserWarning, match=r"read as 4 steps of 9 channels; .* lengths="):
        lo.HMM(rows, emissions.Gaussian(), 2)
