"""Derivatives of hidden Markov models from expected counts, against automatic differentiation of a
plain scan.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse.linalg

import leaveout as lo
from leaveout.models.emissions._base import Constraint
from leaveout.models.hidden.complete_data import complete_data
from leaveout.models.hidden.expected_counts import evaluate
from leaveout.objectives.batch_functions import ONE, function
from leaveout.objectives.closed_form import ClosedFormBatch
from leaveout.objectives.objective import DiagonalBlocks, unflatten, unravel
from leaveout.optimize import newton as _minimise
from leaveout.optimize.hessian_products import solve_once
from leaveout.optimize.newton import walk
from leaveout.refit import _descent
from tests.helpers import flat

LENGTHS = [13, 7, 22, 9, 16, 5, 30, 8]
STEPS = sum(LENGTHS)
CIRCLE = np.array([[np.nan, np.nan, 0], [0, np.nan, np.nan], [np.nan, 0, np.nan]])
PEOPLE = np.random.default_rng(5).uniform(0.5, 2.0, STEPS)
PLACES = np.random.default_rng(6).standard_normal((STEPS, 2))
THIN = np.array([[1.0, 0.6], [0.6, 0.5]])
EMISSIONS = {
    "gaussian": (lo.emissions.Gaussian, {}),
    "full": (lambda: lo.emissions.Gaussian(covariance="full"), {}),
    "tied": (lambda: lo.emissions.Gaussian(covariance="tied"), {}),
    "autoregressive": (lambda: lo.emissions.Autoregressive(2, covariance="diagonal"), {}),
    "tied autoregressive": (lambda: lo.emissions.Autoregressive(1, covariance="tied"), {}),
    "full autoregressive": (
        lambda: lo.emissions.Autoregressive(2, covariance=[THIN, np.eye(2), 2 * THIN]),
        {},
    ),
    "neural, spherical": (lambda: lo.emissions.NeuralAutoregressive(3, 2, "spherical"), {}),
    "neural": (lambda: lo.emissions.NeuralAutoregressive(3, 2, covariance=THIN), {}),
    "poisson": (lo.emissions.Poisson, {"prior": None}),
    "negative binomial": (lo.emissions.NegativeBinomial, {"initial": "stationary"}),
    "binomial": (lambda: lo.emissions.Binomial(20), {}),
    "covariates": (
        lambda: lo.emissions.NegativeBinomial(exposure=PEOPLE, covariates=PLACES),
        {},
    ),
    "events": (lambda: lo.emissions.EventCounts(np.arange(STEPS) % 4), {"num_states": 2}),
    "categorical": (lambda: lo.emissions.Categorical(4), {"transition": CIRCLE}),
    "fixed chain": (
        lo.emissions.Poisson,
        {"initial": np.full(3, 1 / 3), "transition": 0.7 * np.eye(3) + 0.1},
    ),
}


def series(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if name in ("poisson", "negative binomial", "fixed chain", "binomial", "covariates", "events"):
        x = rng.poisson(3.0, (STEPS, 1)).astype(float)
    elif name == "categorical":
        x = rng.integers(0, 4, (STEPS, 1)).astype(float)
    else:
        x = rng.standard_normal((STEPS, 2))
        x[3, 1] = np.nan
    x[40] = np.nan
    return x


def plain(hmm):
    """F by a scan over the steps in logarithms, a function of raveled θ and weights, in JAX."""
    like = {name: np.zeros(shape) for name, shape in hmm.parts}
    states, starts = hmm.states, hmm.position == 0

    def log(name, part):
        free = states.support.get(name)
        if free is None:
            logits = jnp.concatenate([part, jnp.zeros((*part.shape[:-1], 1))], -1)
            return jax.nn.log_softmax(logits, -1)
        last = free & (np.cumsum(free[..., ::-1], -1)[..., ::-1] == 1)
        logits = jnp.where(last, 0.0, -jnp.inf).at[np.nonzero(free & ~last)].set(part)
        return jax.nn.log_softmax(logits, -1)

    def logs(theta):
        held = jnp.log(jnp.asarray(1.0 if states.transition is None else states.transition))
        moves = log("transition", theta["transition"]) if "transition" in states.free else held
        if "initial" in states.free:
            return log("initial", theta["initial"]), moves
        if not states.stationary:
            return jnp.log(jnp.asarray(states.initial)), moves
        K = hmm.num_states
        system = jnp.eye(K) - jnp.exp(moves).T + 1.0
        return jnp.log(jnp.linalg.solve(system, jnp.ones(K))), moves

    def F(vector, weights):
        theta = unravel(vector, like)
        initial, moves = logs(theta)
        free = hmm.emission.free
        parameters = {name: free[name].natural(theta[name]) for name in free}
        parameters |= {name: jnp.asarray(value) for name, value in hmm.emission.fixed.items()}
        steps = jnp.ones(hmm.num_steps) if hmm.drop == "sequence" else weights
        seen = jnp.where(hmm.dense, steps, 0.0)
        past = jnp.where(jnp.isnan(hmm.x).any(1), 0.0, steps)
        for lag in range(1, hmm.emission.reach + 1):
            earlier = jnp.concatenate([jnp.zeros(lag), past[:-lag]])
            seen = seen * jnp.where(hmm.position >= lag, earlier, 0.0)
        before = jnp.concatenate([jnp.ones(1), steps[:-1]])
        power = (
            jnp.where(starts, steps, before * steps) if hmm.drop == "step" else jnp.ones(len(steps))
        )
        times = lambda w, x: jnp.where(w == 0, 0.0, w * x)

        def partition(emission):
            def step(a, x):
                start, power, e = x
                moved = jax.nn.logsumexp(a[:, None] + times(power, moves), axis=0)
                new = jnp.where(start, times(power, initial), moved) + e
                return new, new

            rows = starts, power, emission
            last = np.cumsum(hmm.lengths) - 1
            chain = jax.lax.scan(step, jnp.zeros(hmm.num_states), rows)[1]
            return jax.nn.logsumexp(chain[last], axis=1)

        densities = hmm.emission.log_densities(parameters, hmm.data)
        log_z = partition(times(seen[:, None], densities))
        value = -(weights @ log_z) if hmm.drop == "sequence" else -log_z.sum()
        if hmm.drop == "step":
            value = value + partition(jnp.zeros_like(densities)).sum()
        if states.prior is not None:
            value = value - hmm.emission.log_prior(parameters)
            for name, part in (("initial", initial), ("transition", moves)):
                shown = jnp.where(states.support.get(name, True), part, 0.0)
                pseudo = states.pseudo_counts(name)
                value = value - jnp.sum(pseudo * shown)
        return value

    return F


def pieces(hmm, seed=1):
    """θ, weights of which one is zero, and F and its derivatives by JAX."""
    weights = np.random.default_rng(2).uniform(0, 2, hmm.num_units)
    weights[1] = 0.0
    vector = flat(hmm.parameters.start(seed))
    F, ones = plain(hmm), np.ones(hmm.num_units)
    with jax.enable_x64(True):
        slope = jax.grad(F)
        value, gradient = jax.jit(jax.value_and_grad(F))(vector, weights)
        hessian = jax.jit(jax.jacfwd(slope))(vector, weights)
        cross = jax.jit(jax.jacfwd(lambda v, w: jax.grad(F, 1)(v, w)))(vector, ones)
    return vector, weights, *map(np.asarray, (value, gradient, hessian, cross))


CASES = [(name, drop) for name in EMISSIONS for drop in ("sequence", "observation", "step")]
QUICK = {("autoregressive", "sequence"), ("tied", "observation"), ("poisson", "step")}
CASES = [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


def close(found, want, rtol=1e-9):
    np.testing.assert_allclose(found, want, rtol=rtol, atol=rtol * np.abs(want).max())


@pytest.mark.parametrize(("name", "drop"), CASES)
@pytest.mark.slow_for("tied-observation", "autoregressive-sequence")
def test_derivatives_are_those_of_a_plain_scan(name, drop):
    make, chain = EMISSIONS[name]
    chain = dict(chain)
    K = chain.pop("num_states", 3)
    hmm = lo.HMM(series(name), make(), K, lengths=LENGTHS, drop=drop, **chain)
    vector, weights, value, gradient, hessian, cross = pieces(hmm)
    found, slope, _ = hmm.look(vector[None], weights[None])
    close(found[0], value, 1e-12)
    close(slope[0], gradient, 1e-10)
    close(hmm.hessians(vector[None], weights[None])[0], hessian)
    if np.isnan(cross).any():  # JAX does not differentiate zero to the power of a weight
        close(
            hmm.jacobian(vector), lo.developer.models.AbstractClosedForm.jacobian(hmm, vector), 1e-5
        )
    else:
        close(hmm.jacobian(vector), cross)


class Ordered(lo.emissions.AbstractEmission):
    """Means that are told apart by their order.

    Each state's depends on what stands for those before it.
    """

    @property
    def free(self):
        natural = lambda v: jnp.cumsum(jnp.concatenate([v[:1], jnp.exp(v[1:])]), 0)
        return {
            "mean": Constraint(
                natural, lambda m: jnp.concatenate([m[:1], jnp.log(jnp.diff(m, axis=0))])
            )
        }

    def log_density(self, parameters, datum):
        return -0.5 * jnp.sum((datum - parameters["mean"]) ** 2)

    def initial(self, data, observed, num_states, seed):
        return {"mean": np.linspace(-1, 1, num_states)[:, None]}


def test_states_that_share_their_coordinates():
    """In an emission of a user, which JAX derives."""
    hmm = lo.HMM(np.random.default_rng(0).standard_normal(STEPS), Ordered(), 3, lengths=LENGTHS)
    assert not hmm.separate_states
    complete = complete_data(hmm)
    assert complete.by_state.size == 0 and len(complete.shared) == 3
    vector, weights, value, gradient, hessian, cross = pieces(hmm)
    found, slope, _ = hmm.look(vector[None], weights[None])
    close(found[0], value, 1e-12)
    close(slope[0], gradient, 1e-10)
    close(hmm.hessians(vector[None], weights[None])[0], hessian)
    close(hmm.jacobian(vector), cross)


@pytest.mark.parametrize("name", ["gaussian", pytest.param("neural", marks=pytest.mark.slow)])
def test_the_preconditioner_is_the_complete_datas(name):
    """Its blocks are derivatives of Q's slopes at the counts of one θ, by differences."""
    make, chain = EMISSIONS[name]
    hmm = lo.HMM(series(name), make(), 3, lengths=LENGTHS, **chain)
    theta = hmm.parameters.start(1)
    vector, ones = flat(theta), np.ones((1, STEPS))
    counts, complete = evaluate(hmm, vector[None], ones).counts, complete_data(hmm)
    slope = lambda v: -complete.slopes(v[None], counts)[0]
    plain = np.array(
        [(slope(vector + e) - slope(vector - e)) / 2e-5 for e in 1e-5 * np.eye(len(vector))]
    )
    parts = hmm.preconditioner(theta, ones[0])
    everywhere = np.concatenate([np.ravel(part.entries) for part in parts])
    np.testing.assert_array_equal(np.sort(everywhere), np.arange(len(vector)))
    for entries, matrices in parts:
        for places, matrix in zip(entries, matrices, strict=True):
            want = plain[np.ix_(places, places)]
            np.testing.assert_allclose(matrix, want, atol=1e-7 * np.abs(plain).max())


def test_coordinates_keep_off_zero():
    """Where a parameter, or a whole block, has no curvature, or one that is rounding."""
    matrices = np.zeros((3, 4, 4))
    matrices[0], matrices[1] = np.diag([3.0, 0.0, 1.0, 2.0]), np.diag([3.0, -1e-17, 0.0, 2.0])
    root = _minimise._unwhitener((DiagonalBlocks(np.arange(12).reshape(3, 4), matrices),)) @ np.eye(
        12
    )
    flat = [1, 5, 6, 8, 9, 10, 11]
    np.testing.assert_allclose(
        np.diag(root)[flat], 1 / np.sqrt(3.0 * _minimise.SMALLEST_ADDED_CURVATURE)
    )
    np.testing.assert_allclose(
        np.delete(np.diag(root), flat), np.sqrt([1 / 3, 1, 1 / 2, 1 / 3, 1 / 2])
    )
    nothing = _minimise._unwhitener(
        (DiagonalBlocks(np.arange(2)[None], np.zeros((1, 2, 2))),)
    ) @ np.ones(2)
    assert np.isfinite(nothing).all()


def test_coordinates_make_the_preconditioner_the_identity():
    """Blocks that fall into smaller ones, of two sizes.

    Of the second, curvatures without their sign.
    """
    rng = np.random.default_rng(0)
    apart = np.array([[0, 4, 5], [2, 3, 7], [1, 6, 8]])
    matrices, absolute = np.zeros((2, 10, 10)), np.zeros((2, 10, 10))
    matrices[:, 9, 9] = absolute[:, 9, 9] = 4.0
    for k in range(2):
        for here in apart:
            values, vectors = (
                rng.uniform(1, 2, 3) * [1, 1, 1 - 2 * k],
                np.linalg.qr(rng.standard_normal((3, 3)))[0],
            )
            matrices[k][np.ix_(here, here)] = vectors * values @ vectors.T
            absolute[k][np.ix_(here, here)] = vectors * np.abs(values) @ vectors.T
    entries = rng.permutation(20).reshape(2, 10)
    pieces = list(_minimise._split_blocks(DiagonalBlocks(entries, matrices)))
    assert [own.shape for _, own in pieces] == [(2, 1, 1), (6, 3, 3)]
    unwhitener = _minimise._unwhitener((DiagonalBlocks(entries, matrices),))
    root = unwhitener @ np.eye(20)
    np.testing.assert_allclose(unwhitener.T @ np.eye(20), root.T)
    whole = np.zeros((20, 20))
    for mine, matrix in zip(entries, absolute, strict=True):
        whole[np.ix_(mine, mine)] = matrix
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(whole), atol=1e-12)


def strange() -> np.ndarray:
    """Sequences of which the longest has a state of its own."""
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [rng.standard_normal((length, 2)) + 3 * (n % 2) for n, length in enumerate(LENGTHS)]
    )
    start = sum(LENGTHS[:6])
    x[start : start + LENGTHS[6]] += np.cumsum(rng.standard_normal((LENGTHS[6], 2)), 0) + 6.0
    return x


@pytest.mark.slow
def test_fits_and_far_refits_by_the_preconditioner(monkeypatch):
    """Also where sequences that a state is made of are left out.

    The minima are those of SciPy's BFGS.
    """
    walked = []
    monkeypatch.setattr(_descent, "walk", lambda *args: walked.append(args) or walk(*args))
    monkeypatch.setattr(_descent, "FAR_REFIT_PARAMETERS", 1)
    hmm = lo.HMM(strange(), lo.emissions.Autoregressive(1), 4, lengths=LENGTHS, drop="sequence")
    seen, plan = [], lo.leave_one_out(len(LENGTHS))
    with monkeypatch.context() as patch:
        patch.setattr(_minimise, "LARGE_NUM_PARAMETERS", 30)
        fit = lo.fit(hmm, num_starts=1)
        patch.setattr(_minimise, "walk", lambda *args: seen.append(args[4]) or walk(*args))
        # from the first of which steps do not contract
        patch.setattr(_minimise, "CLOSE", (1e3, 1e-6))
        np.testing.assert_allclose(lo.fit(hmm, num_starts=1).value, fit.value, rtol=1e-12)
    assert seen == [1e3, 1e-6]
    # by Hessians
    np.testing.assert_allclose(
        lo.fit(hmm, fit.parameters, num_starts=1).value, fit.value, rtol=1e-12
    )
    assert hmm.separate_states and fit.num_params > 30 and fit.decrement < 1e-5
    assert hmm.costs.work == 4 * len(strange()) * fit.num_params  # by steps, not by sequences
    exact, certified = (
        lo.cross_validate(fit, plan, strategy=refit) for refit in (lo.Exact(), lo.Certified())
    )
    assert walked and not len(exact.flagged()) and not len(certified.flagged())
    far = int(np.argmax(LENGTHS))
    weights = np.where(np.arange(len(LENGTHS)) == far, 0.0, 1.0)
    numbers = lambda v: [part[0] for part in hmm.look(v[None], weights[None])[:2]]
    found = scipy.optimize.minimize(numbers, flat(fit.theta), jac=True, options={"gtol": 1e-7})
    truth = float(hmm.score(unflatten(found.x, fit.theta), weights, np.array([far]), np.ones(1))[0])
    np.testing.assert_allclose(exact.losses[far], truth, rtol=1e-6)
    assert abs(certified.losses[far] - truth) <= certified.error[far] + 1e-6 * truth
    learnt, products = _minimise.LBFGSState.newton, []
    product = ClosedFormBatch.products
    monkeypatch.setattr(
        _minimise.LBFGSState, "newton", lambda walk, slope: 3 * learnt(walk, slope)
    )  # too long to lead anywhere
    monkeypatch.setattr(
        ClosedFormBatch,
        "products",
        lambda self, *args: products.append(args) or product(self, *args),
    )
    by_products = lo.cross_validate(fit, plan, strategy=lo.Exact())
    assert products and not len(by_products.flagged())
    np.testing.assert_allclose(by_products.losses[far], truth, rtol=1e-6)


def bowl(curvature: np.ndarray) -> tuple[lo.Objective, dict, np.ndarray]:
    """½ xᵀ A x − bᵀ x with a given spectrum, where it starts, and A."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((len(curvature), len(curvature))))[0]
    A, b = turn * curvature @ turn.T, rng.standard_normal(len(curvature))
    loss = lambda theta, w: 0.5 * theta["x"] @ A @ theta["x"] - b @ theta["x"] + 0 * w.sum()
    return lo.Objective(loss, 5), {"x": np.zeros(len(curvature))}, A


@pytest.mark.parametrize("flat", [0.5, 1e-3])
def test_solves_by_products(flat):
    """Also where one direction is so flat that the first products hardly see it.

    With curvature put along another.
    """
    objective, start, A = bowl(np.append(np.linspace(1, 9, 11), flat))
    plain = SimpleNamespace(whiten=lambda v: 2 * v, unwhiten=lambda u: 2 * u)
    gradient, null = np.random.default_rng(1).standard_normal((3, 12)), np.eye(12)[:1]
    with jax.enable_x64(True):
        F = function(objective, start).of
        u = solve_once(F, plain, null, np.zeros((3, 12)), gradient, np.zeros(3, int), 1e-10)
    np.testing.assert_allclose(u, np.linalg.solve(4 * (A + null.T @ null), gradient.T).T, rtol=1e-7)


def test_solves_end_where_curvature_is_negative():
    objective, start, A = bowl(np.append(np.linspace(1, 9, 11), -0.5))
    plain = SimpleNamespace(whiten=lambda v: v, unwhiten=lambda u: u)
    gradient = np.random.default_rng(1).standard_normal((1, 12))
    with jax.enable_x64(True):
        u = solve_once(
            function(objective, start).of,
            plain,
            np.zeros((0, 12)),
            np.zeros((1, 12)),
            gradient,
            ONE,
            1e-10,
        )
        down = np.linalg.eigh(A)[1][:, :1].T
        alone = solve_once(
            function(objective, start).of,
            plain,
            np.zeros((0, 12)),
            np.zeros((1, 12)),
            down,
            ONE,
            1e-10,
        )
    assert (
        np.isfinite(u).all()
        and np.sum(u * gradient) > 0
        and np.linalg.norm(A @ u[0] - gradient) > 1e-6
    )
    np.testing.assert_allclose(alone, down, rtol=1e-13)


class Inherited(lo.emissions.Gaussian):
    """An emission of a user that has the library's statistics."""


class Joint(lo.emissions.Gaussian):
    """An emission whose prior is not one of each parameter."""

    def log_prior(self, parameters):
        return -0.5 * jnp.sum(parameters["mean"] ** 2 / parameters["covariance"])


@pytest.mark.parametrize("emission", [Inherited, Joint])
def test_emissions_that_inherit_from_the_librarys_are_derived(emission):
    x = series("gaussian")
    hmm = lo.HMM(x, emission(), 2, lengths=LENGTHS)
    vector, weights = flat(hmm.parameters.start(0)), np.ones((1, len(x)))
    value, slope, _ = hmm.look(vector[None], weights)
    steps = 1e-5 * np.eye(vector.size)
    ends = [hmm.look(np.stack([vector + s, vector - s]), np.repeat(weights, 2, 0)) for s in steps]
    np.testing.assert_allclose([(v[0] - v[1]) / 2e-5 for v, _, _ in ends], slope[0], atol=1e-5)
    bends = np.array([(g[0] - g[1]) / 2e-5 for _, g, _ in ends])
    np.testing.assert_allclose(hmm.hessians(vector[None], weights)[0], bends, rtol=1e-4, atol=1e-4)
    if emission is Inherited:
        plain = lo.HMM(x, lo.emissions.Gaussian(), 2, lengths=LENGTHS)
        np.testing.assert_allclose(value, plain.look(vector[None], weights)[0], rtol=1e-12)
