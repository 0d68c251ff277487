"""Fits whose Hessian is never formed: the same refits by conjugate gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import leaveout as lo
from leaveout.objectives.batch_functions import function
from leaveout.optimize.hessian_products import Solve, sketch
from tests.helpers import OBJECTIVES, flat, minimiser

NAMES = ["logistic", "multinomial", "hidden Markov"]
SLOWLY = [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
_fits: dict[str, lo.Fit] = {}


def by_products(name: str) -> lo.Fit:
    if name not in _fits:
        _fits[name] = lo.fit(OBJECTIVES[name](), curvature="products")
    return _fits[name]


@pytest.mark.parametrize("name", NAMES)
def test_fit_and_solve(name):
    fit = by_products(name)
    dense = lo.anchor(fit.objective, fit.parameters, curvature="dense")
    assert (
        fit.quadratic.factor is None
        and fit.decrement < 1e-6
        and abs(fit.value - dense.value) < 1e-10 * abs(dense.value)
    )
    vectors = np.random.default_rng(0).standard_normal((fit.num_params, 2))
    vectors -= (
        dense.quadratic.null_space.T @ np.linalg.lstsq(dense.quadratic.null_space.T, vectors)[0]
    )  # off flat directions, whose curvature is arbitrary
    np.testing.assert_allclose(fit.solve(vectors), dense.solve(vectors), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        fit.solve(vectors[:, 0]), dense.solve(vectors[:, 0]), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("name", SLOWLY)
def test_exact_is_the_refit(name):
    fit = by_products(name)
    plan = lo.random_subsets(fit.objective.num_units, 0.1, 3, rng=1)
    got, certified = (
        lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10)),
        lo.cross_validate(fit, plan),
    )
    scores = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10)).losses
    sums = lambda losses: np.array(
        [np.nansum(losses[plan.indptr[k] : plan.indptr[k + 1]]) for k in range(3)]
    )
    assert (np.abs(sums(certified.losses) - sums(scores)) <= certified.error + 1e-9).all()
    for k, weights in enumerate(plan.matrix()):
        row = jax.tree.map(lambda leaf, k=k: leaf[k], got)
        want = minimiser(fit.objective, fit.theta, weights)
        np.testing.assert_allclose(
            flat(fit.objective.parameters.unconstrained(row)), want, rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize(
    "refit", [lo.InfinitesimalJackknife(), lo.InfinitesimalJackknife(2), lo.NewtonStep()]
)
@pytest.mark.parametrize("name", SLOWLY)
def test_strategies_agree_with_a_factor(name, refit):
    fit = by_products(name)
    dense = lo.anchor(fit.objective, fit.parameters, curvature="dense")
    plan = lo.random_subsets(fit.objective.num_units, 0.1, 3, rng=1)
    one, other = (lo.cross_validate(f, plan, strategy=refit) for f in (fit, dense))
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-5, atol=1e-7)


def saddle() -> lo.Objective:
    loss = lambda theta, weights: (
        jnp.sum(weights) * (theta["a"] ** 2 - theta["b"] ** 2 + theta["b"] ** 4) / 2
    )
    return lo.Objective(lambda theta, weights: jnp.sum(loss(theta, weights)), num_units=10)


def test_refused():
    theta = {"a": np.zeros(3), "b": np.zeros(3)}
    with pytest.raises(ValueError, match="not positive definite"):
        lo.anchor(saddle(), theta, curvature="products")
    with pytest.raises(
        ValueError, match='curvature must be "auto", "dense", "products" or "rows"; got \'sparse\''
    ):
        lo.fit(saddle(), theta, curvature="sparse")
    with pytest.raises(ValueError, match="not finite"):
        lo.anchor(
            lo.Objective(lambda theta, w: jnp.sum(theta["a"]) * jnp.inf, 10),
            {"a": np.ones(3)},
            curvature="products",
        )
    with pytest.raises(ValueError, match=r"is not formed; use Fit\.solve"):
        _ = by_products("logistic").hessian


@pytest.mark.slow
def test_more_parameters_than_fit_in_a_matrix():
    """Of 120 rows and 14,001 parameters the Hessian is that of the rows; a fold against
    scikit-learn.
    """
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 14_000)) / np.sqrt(14_000)
    y = (rng.random(120) < 1 / (1 + np.exp(-X @ rng.standard_normal(14_000) * 3))).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)))
    assert fit.quadratic.factor.shape == (120, 120)
    plan = lo.kfold(120, 4, rng=0)
    got = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    train = np.setdiff1d(np.arange(120), plan.index[plan.indptr[0] : plan.indptr[1]])
    host = LogisticRegression(C=10.0, tol=1e-10, max_iter=10_000, solver="newton-cg").fit(
        X[train], y[train]
    )
    np.testing.assert_allclose(got["coef"][0], host.coef_[0], atol=1e-6)


def test_solves_learn_from_those_before():
    """Columns that nearly repeat one another under a small penalty: what two solves went along is
    H's own inverse on its span, and later solves, also of a refit's Hessian, take fewer products to
    the same accuracy."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((300, 8)), 10, axis=1) + 0.01 * rng.standard_normal((300, 80))
    y = (rng.random(300) < 0.5).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)), curvature="products")
    dense = lo.anchor(fit.objective, fit.parameters, curvature="dense")
    with jax.enable_x64(True):
        inside = np.asarray(fit.quadratic.whiten(np.asarray(fit.quadratic.whiten(dense.hessian)).T))
        directions, images, _ = fit.quadratic.learned_inverse
        np.testing.assert_allclose(directions @ inside, images, atol=1e-6 * np.abs(images).max())
        np.testing.assert_allclose(directions @ images.T, np.eye(len(directions)), atol=1e-6)
        np.testing.assert_allclose(
            fit.quadratic.learned_inverse.about(images),
            directions,
            atol=1e-6 * np.abs(directions).max(),
        )
        weights = np.ones(300)
        weights[:30] = 0.0
        F, b = function(fit.objective, fit.theta, weights), rng.standard_normal((1, fit.num_params))
        own = np.array(
            [
                fit.quadratic.whiten(F.products(fit.vector)(fit.quadratic.unwhiten(e)))
                for e in np.eye(fit.num_params)
            ]
        )
        counts = []
        for learnt in (None, fit.quadratic.learned_inverse):
            solve = Solve(
                F.of, fit.quadratic.coordinates, fit.quadratic.null_space, learnt, keep=10_000
            )
            u = solve(fit.vector[None], b, np.zeros(1, int), 1e-10)
            np.testing.assert_allclose(
                u[0], np.linalg.solve(own, b[0]), rtol=1e-6, atol=1e-7 * np.abs(u).max()
            )
            counts.append(len(solve.directions))
        assert counts[1] < 0.7 * counts[0]


def test_sketch_is_an_inverse_from_above_and_saves_products():
    """A feature CRF: with all products the sketch gives H⁻¹, with few of them no less than that,
    and solves are shorter.
    """
    rng, K, lengths = np.random.default_rng(0), 3, np.full(60, 4)
    X = (rng.random((lengths.sum(), 20)) < 0.3) * rng.lognormal(1.0, 1.0, (1, 20))
    labels = np.argmax(X @ rng.standard_normal((20, K)) + rng.gumbel(size=(len(X), K)), 1)
    crf = lo.CRF(
        labels, lengths, features=scipy.sparse.csr_array(X), penalty=lo.penalties.Ridge(0.5)
    )
    fit = lo.fit(crf, curvature="products")
    with jax.enable_x64(True):
        F, eye = function(crf, fit.theta), np.eye(fit.num_params)
        whole = np.asarray(jax.jit(crf.hessian)(jax.tree.map(jnp.asarray, fit.theta), jnp.ones(60)))
        inside = fit.quadratic.whiten(whole) * fit.quadratic.scaling.scale[:, None]
        whole = sketch(F, fit.quadratic.scaling, fit.vector, fit.num_params)
        np.testing.assert_allclose(whole.about(eye), np.linalg.inv(inside), atol=2e-4)
        part, most = (
            sketch(F, fit.quadratic.scaling, fit.vector, 15),
            np.linalg.eigvalsh(inside)[-1],
        )
        values = np.linalg.eigvals(part.about(eye) @ inside).real
        assert values.min() > 1 - 1e-3 and values.max() < 0.2 * most
        b, taken = rng.standard_normal((1, fit.num_params)), []
        for known in (None, part):
            solve = Solve(
                F.of, fit.quadratic.coordinates, fit.quadratic.null_space, known, keep=10_000
            )
            u = solve(fit.vector[None], b, np.zeros(1, int), 1e-6)
            np.testing.assert_allclose(u[0], np.linalg.solve(inside, b[0]), atol=1e-4)
            taken.append(len(solve.directions))
        assert taken[1] < 0.7 * taken[0]


def counts(rows: np.ndarray, K: int) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """What each path of labels through these steps is made of.

    Ends, starts, transitions, features.
    """
    paths, out = list(itertools.product(range(K), repeat=len(rows))), []
    for path in paths:
        end, start, table, weights = (
            np.zeros(K),
            np.zeros(K),
            np.zeros((K, K)),
            np.zeros((rows.shape[1], K)),
        )
        end[path[-1]], start[path[0]] = 1, 1
        for before, after in itertools.pairwise(path):
            table[before, after] += 1
        for x, label in zip(rows, path, strict=True):
            weights[:, label] += x
        out.append(np.concatenate([end, start, table.ravel(), weights.ravel()]))
    return np.array(out), paths


CERTIFIED, NEWTON, JACKKNIFE = lo.Certified(), lo.NewtonStep(), lo.InfinitesimalJackknife()
FAR = "one step far from its refit: up to 1.2 times what it says (benchmarks/RESULTS.md)"
ROUGH = pytest.mark.xfail(strict=True, reason=FAR)
EITHER = pytest.mark.xfail(
    strict=False, reason=f"{FAR}; by how programs are compiled 1.0 or 1.2 times"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed, strategies",
    [
        (0, (CERTIFIED, NEWTON, JACKKNIFE)),
        (1, (CERTIFIED, JACKKNIFE)),
        pytest.param(1, (NEWTON,), marks=EITHER),
        (2, (CERTIFIED,)),
        pytest.param(2, (NEWTON,), marks=ROUGH),
        pytest.param(2, (JACKKNIFE,), marks=EITHER),
        (3, (CERTIFIED, NEWTON, JACKKNIFE)),
    ],
)
def test_feature_crf_by_products_is_within_its_error(seed, strategies):
    """Sentences and folds of them, left out of a CRF whose Hessian is not formed, against refits by
    SciPy of sums over all paths; features of sizes over orders of magnitude."""
    rng = np.random.default_rng(seed)
    K, lengths = 3, rng.integers(1, 5, 40)
    X = (rng.random((lengths.sum(), 20)) < 0.15) * rng.lognormal(0.0, 1.0 + 0.5 * seed, (1, 20))
    labels = np.argmax(X @ rng.standard_normal((20, K)) + rng.gumbel(size=(len(X), K)), 1)
    crf = lo.CRF(
        labels, lengths, features=scipy.sparse.csr_array(X), penalty=lo.penalties.Ridge(0.5)
    )
    fit = lo.fit(crf, curvature="products")
    cuts = np.split(np.arange(len(X)), np.cumsum(lengths)[:-1])
    made = [(*counts(X[cut], K), tuple(labels[cut].tolist())) for cut in cuts]
    table, first = (
        np.concatenate([each for each, _, _ in made]),
        np.cumsum([0, *(len(each) for each, _, _ in made)]),
    )
    chosen = np.array([each[paths.index(own)] for each, paths, own in made])

    def nll(theta, which):
        weight, paths = np.isin(np.arange(40), which) * 1.0, table @ theta
        top = np.maximum.reduceat(paths, first[:-1])
        each = np.exp(paths - np.repeat(top, np.diff(first)))
        total = np.add.reduceat(each, first[:-1])
        gradient = (each * np.repeat(weight / total, np.diff(first))) @ table - weight @ chosen
        return weight @ (top + np.log(total) - chosen @ theta), gradient

    def refit(kept):
        def look(theta):
            value, gradient = nll(theta, kept)
            return value + 0.25 * theta @ theta, gradient + 0.5 * theta

        options = {"gtol": 1e-9, "ftol": 0.0, "maxiter": 5000}
        return scipy.optimize.minimize(
            look, np.zeros(15 + 20 * K), jac=True, method="L-BFGS-B", options=options
        ).x

    single = lo.Plan(np.arange(4), np.arange(3), np.zeros(3), np.ones(3, bool), 40)
    for plan in (lo.random_subsets(40, 0.2, 3, rng=1), single):
        held = [plan.index[plan.indptr[k] : plan.indptr[k + 1]] for k in range(3)]
        truth = np.array([nll(refit(np.setdiff1d(np.arange(40), out)), out)[0] for out in held])
        for strategy in strategies:
            found = lo.cross_validate(fit, plan, strategy=strategy, audit=0)
            off = np.abs(np.add.reduceat(found.losses, plan.indptr[:-1]) - truth)
            assert (off <= found.error + 1e-6 * (1 + truth)).all() and np.isfinite(
                found.error
            ).all()
