"""Hessians of hidden Markov models put together by parts, against plain automatic differentiation
of the loss.
"""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse.linalg

import leaveout as lo
from leaveout.inference import chain as inference_chain, moments
from leaveout.inference.chain import log_partition
from leaveout.models.emissions._base import Constraint
from leaveout.models.hidden import information as _information
from leaveout.objectives.batch_functions import ONE, DerivedBatch, function
from leaveout.objectives.objective import DiagonalBlocks
from leaveout.optimize import newton as _minimise
from leaveout.optimize.hessian_products import solve_once
from leaveout.optimize.newton import walk
from leaveout.refit import _descent
from tests.helpers import flat

LENGTHS = [13, 7, 22, 9, 16, 5, 30, 8]
STEPS = sum(LENGTHS)
CIRCLE = np.array([[np.nan, np.nan, 0], [0, np.nan, np.nan], [np.nan, 0, np.nan]])
THIN = np.array([[1.0, 0.6], [0.6, 0.5]])
EMISSIONS = {
    "gaussian": (lo.emissions.Gaussian, {}),
    "full": (lambda: lo.emissions.Gaussian(covariance="full"), {}),
    "tied": (lambda: lo.emissions.Gaussian(covariance="tied"), {}),
    "autoregressive": (lambda: lo.emissions.Autoregressive(2, covariance="diagonal"), {}),
    "full autoregressive": (
        lambda: lo.emissions.Autoregressive(2, covariance=[THIN, np.eye(2), 2 * THIN]),
        {},
    ),
    "neural": (lambda: lo.emissions.NeuralAutoregressive(3, 2, covariance=THIN), {}),
    "poisson": (lo.emissions.Poisson, {"prior": None}),
    "negative binomial": (lo.emissions.NegativeBinomial, {"initial": "stationary"}),
    "categorical": (lambda: lo.emissions.Categorical(4), {"transition": CIRCLE}),
    "fixed chain": (
        lo.emissions.Poisson,
        {"initial": np.full(3, 1 / 3), "transition": 0.7 * np.eye(3) + 0.1},
    ),
}


def series(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if name in ("poisson", "negative binomial", "fixed chain"):
        x = rng.poisson(3.0, (STEPS, 1)).astype(float)
    elif name == "categorical":
        x = rng.integers(0, 4, (STEPS, 1)).astype(float)
    else:
        x = rng.standard_normal((STEPS, 2))
        x[3, 1] = np.nan
    x[40] = np.nan
    return x


def both(hmm, seed=1):
    """By parts, and by differentiating the loss twice, at random weights of which one is zero."""
    weights = np.random.default_rng(2).uniform(0, 2, hmm.num_units)
    weights[1] = 0.0
    start = hmm.parameters.start(seed)
    with jax.enable_x64(True):
        theta = jax.tree.map(jnp.asarray, start)
        found = eqx.filter_jit(hmm.hessian)(theta, jnp.asarray(weights))
        _, unravel = jax.flatten_util.ravel_pytree(theta)
        plain = jax.jit(jax.hessian(lambda v: hmm.loss(unravel(v), jnp.asarray(weights))))(
            jnp.asarray(flat(start))
        )
        return np.asarray(found), np.asarray(plain)


CASES = [
    (name, drop, 2**14)
    for name in EMISSIONS
    for drop in ("sequence", "observation", "one sequence")
]
# in several groups of columns, and of steps
CASES += [(name, "sequence", 8) for name in ("autoregressive", "fixed chain")]
QUICK = {("autoregressive", "sequence", 8), ("tied", "observation", 2**14)}
CASES = [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize(("name", "drop", "columns"), CASES)
@pytest.mark.slow_for("autoregressive-sequence-8")
def test_hessian_by_parts(name, drop, columns, monkeypatch):
    monkeypatch.setattr(moments, "MOMENT_COLUMNS", columns)
    monkeypatch.setattr(moments, "STEP_PRODUCT_ENTRIES", 100 * columns)
    monkeypatch.setattr(inference_chain, "LINKED_FROM", 0.5)
    make, chain = EMISSIONS[name]
    where = (
        {"drop": "observation"} if drop == "one sequence" else {"drop": drop, "lengths": LENGTHS}
    )
    if drop == "one sequence" and "prior" in chain:  # then it tells nothing of where it begins
        where["initial"] = [0.5, 0.3, 0.2]
    # long enough for linked lanes
    x = np.concatenate([series(name)] * 2) if drop == "one sequence" else series(name)
    hmm = lo.HMM(x, make(), 3, **where | chain)
    assert hmm.by_parts and hmm.layout.linked == (drop == "one sequence")
    found, plain = both(hmm)
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-9 * np.abs(plain).max())


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
    hmm = lo.HMM(np.random.default_rng(0).standard_normal(STEPS), Ordered(), 3, lengths=LENGTHS)
    assert hmm.by_parts and not hmm.separate_states
    own, shared, _ = _information.places(hmm, hmm.parameters.start(0))
    assert own.size == 0 and len(shared) == 3
    found, plain = both(hmm)
    np.testing.assert_allclose(found, plain, atol=1e-9 * np.abs(plain).max())


STAND_INS = [(name, drop) for name in EMISSIONS for drop in ("sequence", "observation")]


def complete_data(hmm, theta, weights):
    """−∇² of the expected log-density of path and data, by numbers.

    Expectations from the gradient of log Z.
    """
    _, unravel = jax.flatten_util.ravel_pytree(theta)
    everyone = jnp.ones(len(hmm.dense))
    by_sequence = hmm.drop == "sequence"
    worth = hmm.layout.arrange(weights[hmm.sequence] if by_sequence else everyone)
    seen = everyone if by_sequence else weights
    whole, _ = hmm.weighted_chain(theta, seen)
    counts = jax.jit(jax.grad(lambda potentials: log_partition(potentials, worth, hmm.layout)))(
        whole
    )
    laid = hmm.layout.arrange(hmm.observation_weights(seen))[..., None]

    def minus_expected(v):
        at = unravel(v)
        initial, transition = hmm.states.logs(at)
        total = jnp.sum(jnp.where(laid > 0, laid * counts.emission * hmm.log_densities(at), 0.0))
        for count, log in ((counts.initial, initial), (counts.transition, transition)):
            total = total + jnp.sum(jnp.where(jnp.isfinite(log), count * log, 0.0))
        return -total - hmm.log_prior(at)

    vector = jnp.asarray(flat(theta))
    return jax.jit(jax.grad(minus_expected))(vector), jax.jit(jax.hessian(minus_expected))(vector)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "drop"), STAND_INS)
def test_the_preconditioner_is_the_complete_datas(name, drop):
    """Its blocks are those of the Hessian of the expected log-density, whose gradient is that of F
    (Fisher's identity).
    """
    make, chain = EMISSIONS[name]
    hmm = lo.HMM(series(name), make(), 3, lengths=LENGTHS, drop=drop, **chain)
    weights = np.random.default_rng(2).uniform(0, 2, hmm.num_units)
    weights[1] = 0.0
    with jax.enable_x64(True):
        theta = jax.tree.map(jnp.asarray, hmm.parameters.start(1))
        slope, plain = complete_data(hmm, theta, jnp.asarray(weights))
        _, unravel = jax.flatten_util.ravel_pytree(theta)
        own = jax.jit(jax.grad(lambda v: hmm.loss(unravel(v), jnp.asarray(weights))))(
            jnp.asarray(flat(theta))
        )
        parts = hmm.preconditioner(theta, jnp.asarray(weights))
    np.testing.assert_allclose(slope, own, rtol=1e-9, atol=1e-9 * np.abs(own).max())
    everywhere = np.concatenate([np.ravel(part.entries) for part in parts])
    np.testing.assert_array_equal(np.sort(everywhere), np.arange(len(own)))
    for entries, matrices in parts:
        for mine, matrix in zip(np.asarray(entries), matrices, strict=True):
            np.testing.assert_allclose(
                matrix, plain[np.ix_(mine, mine)], rtol=1e-9, atol=1e-9 * np.abs(plain).max()
            )


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
        lo.cross_validate(fit, plan, refit) for refit in (lo.Exact(), lo.Certified())
    )
    assert walked and not len(exact.flagged()) and not len(certified.flagged())
    _, unravel = jax.flatten_util.ravel_pytree(fit.theta)
    far = int(np.argmax(LENGTHS))
    weights = np.where(np.arange(len(LENGTHS)) == far, 0.0, 1.0)
    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(lambda v: hmm.loss(unravel(v), weights)))
        numbers = lambda v: [np.asarray(part) for part in both(v)]
        found = scipy.optimize.minimize(numbers, flat(fit.theta), jac=True, options={"gtol": 1e-7})
        truth = float(hmm.score(unravel(found.x), weights, np.array([far]), np.ones(1))[0])
    np.testing.assert_allclose(exact.losses[far], truth, rtol=1e-6)
    assert abs(certified.losses[far] - truth) <= certified.error[far] + 1e-6 * truth
    learnt, products = _minimise.LBFGSState.newton, []
    product = DerivedBatch.products
    monkeypatch.setattr(
        _minimise.LBFGSState, "newton", lambda walk, slope: 3 * learnt(walk, slope)
    )  # too long to lead anywhere
    monkeypatch.setattr(
        DerivedBatch, "products", lambda self, *args: products.append(args) or product(self, *args)
    )
    by_products = lo.cross_validate(fit, plan, lo.Exact())
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
