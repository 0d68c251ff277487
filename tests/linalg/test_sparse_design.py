"""Sparse rows: the numbers of the dense ones, and no dense copy on the way."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import scipy
from sklearn import linear_model, svm
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import leaveout as lo
import leaveout.sklearn as ls
from leaveout.refit import _linear as linear, _single_rows

N, P = 150, 9
RIDGE = lo.penalties.Ridge(0.7)
REFITS = {
    "certified": lo.Certified(),
    "exact": lo.Exact(),
    "newton": lo.NewtonStep(),
    "jackknife": lo.InfinitesimalJackknife(),
    "none": lo.NoUpdate(),
}


def table(seed=0, n=N, p=P, density=0.25):
    rng = np.random.default_rng(seed)
    X = scipy.sparse.random_array(
        (n, p), density=density, rng=rng, format="csr", data_sampler=rng.standard_normal
    )
    eta = X @ rng.standard_normal(p)
    y = {
        "logistic": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "squared": eta + rng.standard_normal(n),
        "poisson": rng.poisson(np.exp(0.3 * eta)),
        "multinomial": np.digitize(eta + rng.standard_normal(n), [-1, 1]),
        "negative_binomial": rng.poisson(rng.gamma(2.0, size=n) * np.exp(0.3 * eta)),
    }
    return X, y


def alike(a, b, tol=1e-10):
    a, b = np.asarray(a, float), np.asarray(b, float)
    np.testing.assert_allclose(b, a, rtol=tol, atol=tol)


KINDS = [
    (loss, R)
    for loss in ("logistic", "squared", "poisson")
    for R in ("ridge", "averaged", "pseudo_huber")
]
KINDS += [("multinomial", "ridge"), ("multinomial", "averaged")]
QUICK = {("logistic", "averaged"), ("squared", "ridge"), ("poisson", "pseudo_huber")}


@pytest.mark.parametrize(
    ("loss", "penalty"),
    [pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow) for each in KINDS],
)
@pytest.mark.slow_for("logistic-averaged")
def test_every_plan_and_strategy_gives_the_numbers_of_dense_rows(loss, penalty):
    X, y = table()
    given = {"ridge": RIDGE, "averaged": lo.penalties.per_weight(lo.penalties.Ridge(0.01))}
    R = given.get(penalty, lo.penalties.PseudoHuber(0.5, 0.3))
    dense, sparse = (lo.fit(lo.GLM(x, y[loss], loss, R)) for x in (X.toarray(), X))
    alike(dense.vector, sparse.vector)
    plans = lo.leave_one_out(N), lo.kfold(N, 5), lo.bootstrap(N, 4), lo.groups(np.arange(N) // 7)
    for plan in plans:
        for name, refit in REFITS.items():
            one, other = (
                lo.cross_validate(dense, plan, strategy=refit),
                lo.cross_validate(sparse, plan, strategy=refit),
            )
            alike(one.losses, other.losses)
            # products of dense rows are in float32, whose rounding counts
            alike(one.error, other.error, 1e-3)
            assert (one.proved == other.proved).all(), name


def test_every_verb_takes_them():
    X, y = table()
    n, dense = N, X.toarray()
    weight, offset = np.random.default_rng(1).random((2, N)) + 0.5
    fits = lambda loss="logistic", **more: [
        lo.fit(lo.GLM(x, y[loss], loss, RIDGE, **more)) for x in (dense, X)
    ]
    loo, plan = lo.leave_one_out(n), lo.kfold(n, 5)
    both = fits(sample_weight=weight, offset=offset)
    alike(*(lo.cross_predict(fit, loo) for fit in both))
    alike(*(lo.fold_parameters(fit, plan)["coef"] for fit in both))
    alike(
        *(
            lo.influence(lo.cross_validate(fit, loo), prediction=dense[0])
            .table()
            .select_dtypes("number")
            .drop(columns="error")  # of dense rows by products in float32, whose rounding counts
            for fit in both
        )
    )
    alike(
        *(
            lo.path(lo.GLM(x, y["logistic"], "logistic"), [0.1, 1.0, 10.0], loo).table()["mean"]
            for x in (dense, X)
        )
    )
    alike(
        *(
            lo.path(lo.GLM(x, y["squared"], "squared"), [0.1, 1.0, 10.0], loo).table()["mean"]
            for x in (dense, X)
        )
    )
    alike(
        *(
            lo.cross_validate(fit, plan, strategy=lo.InfinitesimalJackknife(order=2)).losses
            for fit in fits(class_weight="balanced")
        )
    )
    linear = fits("squared", sample_weight=weight)
    alike(*(lo.interval(fit, rows[:7]) for fit, rows in zip(linear, (dense, X), strict=True)))
    alike(*(lo.cross_validate(fit, plan, evaluate="crps").losses for fit in linear))
    alike(*(lo.covariance(fit) for fit in linear))
    alike(*(lo.cross_validate(fit, plan).losses for fit in fits(intercept=False)))


def test_tuning_goes_down_the_same_slopes():
    X, y = table()
    model = lambda x: lambda a: lo.GLM(x, y["logistic"], "logistic", lo.penalties.Ridge(a))
    tune = lambda x: lo.tune(
        model(x), {"a": (1e-2, 1e2)}, lo.leave_one_out(), start={"a": 1.0}, num_outer_folds=0
    )
    tuned = [tune(x).best.value for x in (X.toarray(), X)]
    alike(*tuned, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [lo.leave_one_out(N), lo.kfold(N, 5)], ids=("one", "five"))
def test_models_that_jax_derives(rows):
    import jax.numpy as jnp

    X, y = table()
    own = lambda eta, y: jnp.logaddexp(0.0, eta) - y * eta
    a, b = (lo.fit(lo.GLM(x, y["logistic"], own, RIDGE)) for x in (X.toarray(), X))
    alike(lo.cross_validate(a, rows).losses, lo.cross_validate(b, rows).losses)
    a, b = (
        lo.fit(lo.Regression(x, y["negative_binomial"], "negative_binomial", RIDGE))
        for x in (X.toarray(), X)
    )
    alike(lo.cross_validate(a, rows).losses, lo.cross_validate(b, rows).losses, 1e-8)


HOSTS = [
    linear_model.LogisticRegression(tol=1e-10, max_iter=10_000),
    linear_model.LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000),
    linear_model.Ridge(solver="sparse_cg", tol=1e-12),
    linear_model.PoissonRegressor(tol=1e-10, max_iter=10_000),
    svm.LinearSVC(tol=1e-12, max_iter=1_000_000),
]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: type(host).__name__)
def test_hosts_refitted_on_folds(host):
    """Predictors of held-out rows are those of the host's own refit."""
    X, y = table()
    target = y["logistic"] if hasattr(host, "class_weight") else y["poisson"]
    host.fit(X, target)
    fit = lo.from_sklearn(host, X, target)
    assert scipy.sparse.issparse(fit.objective.design.csr)
    found = lo.cross_predict(fit, lo.kfold(k=3), strategy=lo.Exact(), kind="link")
    for out in (
        fold.index[fold.held] for fold in (lo.kfold(N, 3).some(np.array([k])) for k in range(3))
    ):
        own = type(host)(**host.get_params()).fit(
            X[np.delete(np.arange(N), out)], np.delete(target, out)
        )
        alike(X[out] @ own.coef_.ravel() + np.ravel(own.intercept_)[0], found[out], 1e-5)


def test_pipelines_stay_sparse():
    rng = np.random.default_rng(0)
    names = pd.Index([f"d{k}" for k in range(90)])
    docs = pd.Series(
        [" ".join(rng.choice(["aa", "bb", "cc", "dd", "ee"], 5)) for _ in names], names
    )
    y = pd.Series([text.count("bb") > 1 for text in docs], names)
    for words in (CountVectorizer(), TfidfVectorizer()):
        pipe = make_pipeline(words, linear_model.LogisticRegression(tol=1e-10)).fit(docs, y)
        fit = lo.from_sklearn(pipe, docs, y)
        estimate = lo.cross_validate(fit, lo.leave_one_out())
        X = pipe[:-1].transform(docs)
        # the intercept is stored
        assert len(fit.objective.design.data) == X.nnz + 90 and estimate.proved.all()
        assert estimate.table().unit[0] == "d0"
        dense = lo.fit(lo.GLM(X.toarray(), y.to_numpy(float), "logistic", lo.penalties.Ridge(1.0)))
        alike(lo.cross_validate(dense, lo.leave_one_out()).losses, estimate.losses, 1e-4)


def test_columns_of_a_table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.choice(list("xyz"), 120), "b": rng.choice(list("uvw"), 120), "c": rng.random(120)}
    )
    y = frame.c + rng.standard_normal(120)
    coded = make_column_transformer(
        (OneHotEncoder(), ["a", "b"]), ("passthrough", ["c"]), sparse_threshold=1.0
    )
    pipe = make_pipeline(coded, linear_model.Ridge(solver="sparse_cg", tol=1e-12)).fit(frame, y)
    fit = lo.from_sklearn(pipe, frame, y)
    assert len(fit.objective.design.data) < 120 * 5
    alike(pipe.predict(frame[:5]), lo.interval(fit, frame[:5]).prediction, 1e-6)
    alike(
        cross_validate(pipe, frame, y, cv=5)["test_score"],
        ls.cross_validate(pipe, frame, y, cv=5)["test_score"],
        1e-6,
    )


def test_scikit_learns_verbs():
    X, y = table()
    pipe = make_pipeline(
        StandardScaler(with_mean=False), linear_model.LogisticRegression(tol=1e-10)
    )
    ours, theirs = (
        verb(pipe, X, y["logistic"], cv=4, scoring="neg_log_loss")["test_score"]
        for verb in (ls.cross_validate, cross_validate)
    )
    alike(theirs, ours, 1e-4)
    grid = {"C": [0.1, 1.0, 10.0]}
    ours, theirs = (
        search(linear_model.LogisticRegression(tol=1e-10), grid, cv=4, scoring="neg_log_loss").fit(
            X, y["logistic"]
        )
        for search in (ls.OneFitSearchCV, GridSearchCV)
    )
    alike(theirs.cv_results_["mean_test_score"], ours.cv_results_["mean_test_score"], 1e-4)


def test_kinds_of_sparse_rows():
    X, y = table()
    dense = lo.fit(lo.GLM(X.toarray(), y["logistic"], "logistic", RIDGE)).vector
    names = [f"r{k}" for k in range(N)]
    frame = pd.DataFrame.sparse.from_spmatrix(
        scipy.sparse.csr_matrix(X), names, [f"c{k}" for k in range(P)]
    )
    twice = scipy.sparse.coo_array(
        (np.tile(X.tocoo().data / 2, 2), (np.tile(X.tocoo().row, 2), np.tile(X.tocoo().col, 2))),
        X.shape,
    )
    kinds = (
        X.tocsc(),
        X.tocoo(),
        scipy.sparse.csr_matrix(X),
        X.tolil(),
        frame,
        twice,
        X.astype(np.float32).astype(np.float64),
    )
    for rows in kinds[:-1]:
        alike(dense, lo.fit(lo.GLM(rows, y["logistic"], "logistic", RIDGE)).vector)
    labelled = lo.GLM(frame, pd.Series(y["logistic"], names)[::-1], "logistic", RIDGE)
    assert labelled.names == tuple(frame.columns) and list(labelled.units.names) == names
    alike(dense, lo.fit(labelled).vector)
    counts = scipy.sparse.csr_array(np.round(X.toarray()).astype(np.int8))
    alike(
        *(
            lo.fit(lo.GLM(rows, y["squared"], "squared", RIDGE)).vector
            for rows in (counts.toarray(), counts)
        )
    )


def test_what_was_given_is_left_as_it_was():
    loose = scipy.sparse.csr_array((np.r_[1.0, 1.0, 2.0], np.r_[1, 1, 0], np.r_[0, 2, 3]), (2, 2))
    fit = lo.fit(lo.GLM(loose, [0.0, 1.0], "squared", RIDGE))
    assert not loose.has_canonical_format and len(loose.data) == 3
    assert fit.objective.design.data.tolist() == [2.0, 1.0, 2.0, 1.0]


def test_bad_input():
    X, y = table()
    fit = lo.fit(lo.GLM(X, y["squared"], "squared", RIDGE))
    broken = X.copy()
    broken.data[3] = np.nan
    with pytest.raises(
        ValueError, match=f"1 NaN or infinite values, in columns \\[{X.indices[3]}\\]"
    ):
        lo.GLM(broken, y["squared"], "squared")
    with pytest.raises(TypeError, match="must hold numbers; got a sparse matrix of complex128"):
        lo.GLM(X.astype(complex), y["squared"], "squared")
    with pytest.raises(ValueError, match="one value for each of the 150 rows"):
        lo.GLM(X, y["squared"][:-1], "squared")
    with pytest.raises(ValueError, match=r"X_new must be \[rows, 9\]"):
        lo.interval(fit, X[:3, :4])
    with pytest.raises(ValueError, match="at least two rows"):
        lo.GLM(X[:1], y["squared"][:1], "squared")
    with pytest.raises(TypeError, match="leave out zeros"):
        lo.GLM(
            pd.DataFrame({"a": pd.arrays.SparseArray([1.0, 2.0, 1.0], fill_value=1.0)}),
            np.arange(3.0),
            "squared",
        )
    with pytest.raises(TypeError, match="X must be dense"):
        lo.Cox(X, np.arange(1.0, N + 1), np.ones(N))


@pytest.mark.slow
def test_no_dense_copy_is_made(monkeypatch):
    """40 MB, were they written out.

    All that a fit and its refits take at a time is less than that.
    """
    # numbers in a block of products, of which a user has 100 MB at a time
    monkeypatch.setattr(linear, "PRODUCTS", 2**17)
    monkeypatch.setattr(_single_rows, "PRODUCTS", 2**17)
    n, p = 20_000, 250
    X, _ = table(1, n, p, 0.01)
    y = (np.random.default_rng(1).random(n) < 1 / (1 + np.exp(-X.sum(1)))).astype(float)
    # imports, checks of shapes
    lo.cross_validate(lo.fit(lo.GLM(X[:500], y[:500], "logistic", RIDGE)), lo.leave_one_out())
    tracemalloc.start()
    fit = lo.fit(lo.GLM(X, y, "logistic", RIDGE))
    estimate = lo.cross_validate(fit, lo.leave_one_out())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < n * p * 8, peak
    assert len(estimate.flagged()) == 0
