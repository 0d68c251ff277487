"""Labels are data: rows of one label belong together wherever they stand, and a permuted argument
changes nothing.
"""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GroupKFold

import leaveout as lo
from leaveout.data.arrays import match_labels

rng = np.random.default_rng(0)
N = 40
LABELS = pd.Index([f"row {k}" for k in rng.permutation(N)], name="who")
X = pd.DataFrame(rng.standard_normal((N, 2)), index=LABELS, columns=["a", "b"])
ETA = 0.7 * X["a"] - 0.4 * X["b"]
COUNTS = pd.Series(rng.poisson(np.exp(ETA)), index=LABELS, name="y")
WEIGHT = pd.Series(rng.gamma(4.0, 0.25, N), index=LABELS)
OFFSET = pd.Series(rng.standard_normal(N) / 3, index=LABELS)
TIME = pd.Series(np.ceil(4 * rng.exponential(np.exp(-ETA))), index=LABELS)
EVENT = pd.Series(rng.random(N) < 0.8, index=LABELS)
STRATA = pd.Series(np.where(np.arange(N) % 2, "up", "down"), index=LABELS)
SERIES = pd.Series(
    rng.poisson(np.where(np.arange(N) // 10 % 2, 9.0, 2.0)),
    index=pd.date_range("2024-01-01", periods=N),
)
RISK = pd.Series(rng.uniform(0.5, 2.0, N), index=SERIES.index)
SITES = pd.Index(list("abcdefghij"))
RING = np.stack([np.arange(10), (np.arange(10) + 1) % 10], 1)
CASES = pd.Series(rng.poisson(np.r_[np.full(5, 3.0), np.full(5, 12.0)]), index=SITES)
PEOPLE = pd.Series(rng.uniform(0.5, 2.0, 10), index=SITES)
TAGS = pd.Series(rng.integers(0, 2, N), index=pd.RangeIndex(100, 100 + N))
SCORES = pd.DataFrame(rng.standard_normal((N, 2)), index=TAGS.index)
RIDGE = lo.penalties.Ridge(0.5)


def shuffled(value, seed=1):
    return value.sample(frac=1, random_state=seed)


def ordinary(value):
    return value


def glm(of):
    return lo.GLM(X, of(COUNTS), "poisson", RIDGE, sample_weight=of(WEIGHT), offset=of(OFFSET))


def multinomial(of):
    return lo.GLM(X, of(STRATA), "multinomial", RIDGE, sample_weight=of(WEIGHT))


def regression(of):
    return lo.Regression(
        X, of(COUNTS), "negative_binomial", RIDGE, sample_weight=of(WEIGHT), offset=of(OFFSET)
    )


def cox(of):
    return lo.Cox(X, of(TIME), of(EVENT), RIDGE, strata=of(STRATA), offset=of(OFFSET))


def hmm(of):
    return lo.HMM(SERIES, lo.emissions.Poisson(exposure=of(RISK), covariates=of(RISK**2)), 2)


def negative_binomial_hmm(of):
    return lo.HMM(SERIES, lo.emissions.NegativeBinomial(exposure=of(RISK)), 2)


def mrf(of):
    return lo.MRF(CASES, RING, lo.emissions.Poisson(exposure=of(PEOPLE)), 2, coupling=0.4)


def fields(of):
    return lo.MRF(
        pd.DataFrame([CASES, CASES + 1], index=["one", "two"]),
        RING,
        lo.emissions.Poisson(exposure=of(PEOPLE)),
        2,
        coupling=0.4,
    )


def crf(of):
    return lo.CRF(TAGS, [N], scores=of(SCORES), features=of(SCORES**2), drop="label", penalty=RIDGE)


def separable(of):
    data = {"x": X["a"], "y": of(COUNTS)}
    return lo.Separable(
        lambda theta, row: (row["y"] - theta["slope"] * row["x"]) ** 2,
        data,
        theta0={"slope": np.zeros(())},
    )


MODELS = [
    glm,
    multinomial,
    regression,
    cox,
    hmm,
    negative_binomial_hmm,
    mrf,
    fields,
    crf,
    separable,
]


@pytest.mark.parametrize("model", MODELS)
def test_permuting_labelled_arguments_changes_nothing(model):
    whole, other = model(ordinary), model(shuffled)
    for mine, theirs in zip(
        *(map(np.asarray, _leaves(objective)) for objective in (whole, other)), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert other.units.names.equals(whole.units.names)


def _leaves(objective):
    return [leaf for leaf in jax.tree.leaves(objective) if not callable(leaf)]


def test_a_permuted_y_changes_no_result():
    one, two = (lo.fit(glm(of)) for of in (ordinary, shuffled))
    plan = lo.leave_one_out(N)
    a, b = (lo.cross_validate(fit, plan) for fit in (one, two))
    np.testing.assert_array_equal(a.losses, b.losses)
    pd.testing.assert_frame_equal(a.table(), b.table())
    assert (
        lo.diagnostics.dfbetas(two).index.equals(LABELS)
        and a.table()["unit"].tolist() == LABELS.tolist()
    )
    by_position = lo.fit(lo.GLM(X.to_numpy(), shuffled(COUNTS), "poisson", RIDGE))
    assert abs(by_position.value - lo.fit(lo.GLM(X, COUNTS, "poisson", RIDGE)).value) > 1


CODE = LABELS.to_series().str[-1]


def mixed(of):
    code = CODE.astype(int)
    y = ETA + OFFSET + code**2 % 7 + (code * 4 % 5) * X["a"]
    return lo.Mixed(X, of(y), groups={"k": of(CODE)}, slopes=of(X[["a"]]))


def crossed(of):
    code = CODE.astype(int)
    y = ETA + OFFSET + code**2 % 7 + 3 * (STRATA == "up")
    return lo.Mixed(X, of(y), groups=of(pd.DataFrame({"k": CODE, "s": STRATA})), offset=of(WEIGHT))


def additive(of):
    return lo.Additive(
        [lo.terms.s("a", k=4)],
        {"a": X["a"], "z": X["b"].to_numpy(), "y": of(COUNTS), "w": of(WEIGHT)},
        "y",
        sample_weight="w",
    )


@pytest.mark.parametrize("model", [mixed, crossed, additive])
def test_groupings_slopes_and_columns_of_a_table_follow_their_labels(model):
    held = [
        lo.cross_validate(lo.fit(model(of)), lo.groups(of(STRATA)), strategy=lo.NewtonStep())
        for of in (ordinary, shuffled)
    ]
    np.testing.assert_allclose(held[0].per_unit(), held[1].per_unit(), rtol=1e-9)
    assert model(shuffled).units.names.equals(LABELS)


def test_new_rows_of_a_mixed_model_follow_their_labels():
    fit = lo.fit(mixed(ordinary))
    new, groups = X.head(5), CODE.head(5)
    one, two = (
        fit.objective.predict(fit, data=(new, of(groups), of(new[["a"]])))
        for of in (ordinary, shuffled)
    )
    pd.testing.assert_frame_equal(one, two)


@pytest.mark.parametrize(
    "model", [glm, multinomial, regression, cox, hmm, mrf, crf, separable, mixed, crossed, additive]
)
def test_other_labels_are_refused(model):
    def renamed(value):
        index = value.index
        return value.set_axis(pd.Index([f"other {k}" for k in range(len(index))]))

    with pytest.raises(
        ValueError, match=r"do not have the same labels: only .* such as .*by position"
    ):
        model(renamed)


def test_what_has_no_labels_is_taken_by_position():
    plain = glm(lambda value: value.to_numpy())
    counted = glm(lambda value: value.reset_index(drop=True))
    lists = glm(lambda value: value.tolist())
    for other in (plain, counted, lists):
        np.testing.assert_array_equal(other.y, glm(ordinary).y)
        assert other.units.names.equals(LABELS)
    # y is the first with names
    first = lo.GLM(X.reset_index(drop=True), COUNTS, "poisson", sample_weight=shuffled(WEIGHT))
    np.testing.assert_array_equal(first.sample_weight, WEIGHT)
    assert lo.GLM(X.to_numpy(), COUNTS.to_numpy(), "poisson").units.names is None


def test_a_default_index_in_another_order_is_one_of_labels():
    frame, y = X.reset_index(drop=True), COUNTS.reset_index(drop=True)
    np.testing.assert_array_equal(lo.GLM(frame, shuffled(y), "poisson").y, y)


def test_labels_that_are_there_twice():
    twice = pd.Index(["a", "b", "b"])
    x, y = pd.Series([1.0, 2.0, 3.0], twice), pd.Series([4.0, 5.0, 6.0], twice)
    assert match_labels("here", x=x, y=y)[2] is y
    with pytest.raises(
        ValueError, match=r"here: y and x have the same labels, but some are there twice, as 'b'"
    ):
        match_labels("here", x=x, y=y[::-1])
    several = pd.MultiIndex.from_product([[1, 2], ["u", "v"]])
    x, y = pd.Series(np.arange(4), several), pd.Series(np.arange(4), several)
    np.testing.assert_array_equal(match_labels("here", x=x, y=shuffled(y))[2], np.arange(4))


@pytest.mark.parametrize("of", [ordinary, shuffled])
def test_groups_follow_their_labels(of):
    fit = lo.fit(glm(ordinary))
    groups = pd.Series(np.arange(N) // 8, index=LABELS)
    want, got = lo.groups(groups.to_numpy()), lo.groups(of(groups))
    a, b = lo.cross_validate(fit, want), lo.cross_validate(fit, got)
    np.testing.assert_allclose(a.per_unit(), b.per_unit(), rtol=1e-9)
    assert a.se == pytest.approx(b.se) and b.plan.names.equals(LABELS)
    predicted = lo.cross_predict(fit, want), lo.cross_predict(fit, got)
    np.testing.assert_allclose(*predicted, rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"cross_validate: plan and fit do not have the same labels"
    ):
        lo.cross_validate(fit, lo.groups(groups.set_axis(range(1, N + 1))))
    np.testing.assert_array_equal(
        lo.cross_validate(fit, lo.groups(groups.reset_index(drop=True))).plan.clusters, groups
    )


def test_splits_by_labelled_truths():
    fit = lo.fit(glm(ordinary))
    tests = [pd.Series(np.arange(N) % 4 == k, index=LABELS) for k in range(4)]
    want = lo.from_splits([(~test.to_numpy(), test.to_numpy()) for test in tests], N)
    got = lo.from_splits(
        [(shuffled(~test, k), shuffled(test, k + 5)) for k, test in enumerate(tests)], N
    )
    np.testing.assert_array_equal(
        got._match_labels("here", fit.objective.units.names).matrix(), want.matrix()
    )


def test_nodes_of_a_graph_are_sites():
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph([(SITES[s], SITES[t]) for s, t in RING[::-1]])
    field = lo.MRF(CASES, graph, lo.emissions.Poisson(), 2, coupling=0.4)
    want = lo.MRF(CASES, RING, lo.emissions.Poisson(), 2, coupling=0.4)
    pairs = lambda edges: {tuple(sorted(pair)) for pair in edges.tolist()}
    assert pairs(field.edges) == pairs(want.edges)
    named = lo.MRF(CASES, np.asarray(SITES)[RING], lo.emissions.Poisson(), 2, coupling=0.4)
    np.testing.assert_array_equal(named.edges, want.edges)
    plan = lo.neighbourhoods(graph, 1)
    # a refit a node, in the order of the graph
    rows = lambda plan: sorted(map(tuple, plan.matrix()))
    assert rows(plan._match_labels("here", SITES)) == rows(lo.neighbourhoods(RING, 1))
    with pytest.raises(ValueError, match="the graph and x do not have the same labels"):
        lo.MRF(CASES.rename({"a": "z"}), graph, lo.emissions.Poisson(), 2, coupling=0.4)
    with pytest.raises(ValueError, match="edges name site 'j', which the data do not have"):
        lo.MRF(
            CASES.rename({"j": "z"}),
            np.asarray(SITES)[RING],
            lo.emissions.Poisson(),
            2,
            coupling=0.4,
        )
    with pytest.raises(ValueError, match="several sites of the data are called 'a'"):
        lo.MRF(
            CASES.rename({"j": "a"}),
            np.asarray(SITES)[RING],
            lo.emissions.Poisson(),
            2,
            coupling=0.4,
        )


def test_units_of_several_fields_are_pairs():
    names = fields(ordinary).units.names
    assert names[0] == ("one", "a") and names[-1] == ("two", "j") and len(names) == 20


def test_hosts_are_read_by_labels():
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    hosts = [
        (LinearRegression(), ETA + 1.0),
        (PoissonRegressor(alpha=0.1, tol=1e-10), COUNTS),
        (LogisticRegression(tol=1e-10), STRATA),
        (make_pipeline(StandardScaler(), PoissonRegressor(alpha=0.1, tol=1e-10)), COUNTS),
    ]
    for host, y in hosts:
        host.fit(X, y, **({} if hasattr(host, "steps") else {"sample_weight": WEIGHT}))
        weight = None if hasattr(host, "steps") else WEIGHT
        want = lo.from_sklearn(host, X, y, weight)
        got = lo.from_sklearn(
            host, X[["b", "a"]], shuffled(y), None if weight is None else shuffled(weight, 4)
        )
        assert got.value == want.value and got.objective.units.names.equals(LABELS), host
        with pytest.raises(ValueError, match="do not have the same labels"):
            lo.from_sklearn(host, X, y.set_axis(range(1, N + 1)))
    with pytest.raises(
        ValueError, match="does not have the columns that the estimator was fitted on: b, c"
    ):
        lo.from_sklearn(hosts[0][0], X.rename(columns={"b": "c"}), ETA)


def test_statsmodels_rows_keep_their_labels():
    api = pytest.importorskip("statsmodels.api")
    fit = lo.from_statsmodels(
        api.GLM(COUNTS, api.add_constant(X), family=api.families.Poisson()).fit()
    )
    assert lo.cross_validate(fit, lo.leave_one_out(N)).table()["unit"].tolist() == LABELS.tolist()


def test_pictures_name_units_by_their_labels():
    pytest.importorskip("matplotlib")
    fit = lo.fit(glm(ordinary))
    cv = lo.cross_validate(fit, lo.leave_one_out(N))
    for ax in (lo.plot.losses(cv), lo.plot.leverage(fit, cv), lo.plot.influence(fit)):
        assert {text.get_text() for text in ax.texts} <= set(LABELS) and ax.texts


def test_weights_of_steps_and_of_models_under_other_labels():
    model = hmm(ordinary)
    parameters = lo.fit(model).parameters
    seen = pd.Series(np.arange(N) % 3 > 0, index=SERIES.index).astype(float)
    want = model.state_probabilities(parameters, seen.to_numpy())
    pd.testing.assert_frame_equal(model.state_probabilities(parameters, shuffled(seen)), want)
    other = lo.fit(lo.GLM(X[::-1], COUNTS, "poisson", RIDGE))
    both = {
        name: lo.cross_validate(fit, lo.kfold(N, 4))
        for name, fit in (("one", lo.fit(glm(ordinary))), ("two", other))
    }
    with pytest.raises(ValueError, match="compare: the models number their units in another order"):
        lo.compare(both)


def test_other_labels_compile_nothing_anew():
    renamed = lambda value: value.set_axis(range(50, 50 + len(value)))
    models = [
        lambda of: lo.GLM(of(X), of(COUNTS), "poisson", RIDGE),
        lambda of: lo.Regression(of(X), of(COUNTS), "negative_binomial", RIDGE),
        lambda of: lo.Cox(of(X), of(TIME), of(EVENT), RIDGE),
        lambda of: lo.HMM(of(SERIES), lo.emissions.Poisson(exposure=of(RISK)), 2),
        lambda of: lo.CRF(of(TAGS), [N], scores=of(SCORES), drop="label"),
    ]
    for model in models:
        assert jax.tree.structure(model(renamed)) == jax.tree.structure(model(ordinary))


def test_clusters_that_may_leak_follow_their_labels():
    model, drawn = Ridge(1.0), lo.leakage.Injection(num_boot=2)
    of = lambda y, groups: lo.leakage.leakage_corrected(
        model,
        X,
        y,
        groups=groups,
        leakage=lo.leakage.RecordLeakage(p_train=0.05, p_test=0.0),
        injection=drawn,
    )
    pairs = pd.Series(np.arange(N) // 2, LABELS)
    assert of(shuffled(OFFSET), shuffled(pairs, 2)).naive == of(OFFSET, pairs).naive
    slope = lambda y, groups: lo.leakage.leakage_slope_test(
        model, X, y, groups=groups, injection=drawn
    )
    assert str(slope(shuffled(OFFSET), shuffled(pairs, 2))) == str(slope(OFFSET, pairs))
    with pytest.raises(ValueError, match="groups and X do not have the same labels"):
        of(OFFSET, pairs.set_axis(range(1, N + 1)))


DAYS = pd.date_range("2024-01-01", periods=N)
TIMES = {  # that do not rise, or are there twice, and what is said of them
    "dates": (DAYS[rng.permutation(N)], r"stands after a later one.*sort_index"),
    "periods": (DAYS.to_period("D")[::-1], r"stands after a later one.*sort_index"),
    "days": (pd.Index(DAYS[::-1].date), r"stands after a later one.*sort_index"),
    "twice": (DAYS.floor("2D"), "is there twice"),
}


@pytest.mark.parametrize("index, message", TIMES.values(), ids=list(TIMES))
def test_times_that_do_not_rise_are_refused_where_order_counts(index, message):
    x = pd.Series(SERIES.to_numpy(float), index=index)
    with pytest.raises(ValueError, match=f"HMM: .*{message}"):
        lo.HMM(x, lo.emissions.Gaussian(), 2)
    fit = lo.fit(lo.GLM(X.set_axis(index), pd.Series(ETA.to_numpy(), index), "squared"))
    for plan in (lo.blocks(N, 8), lo.contiguous(N, 0.2, 3), lo.leave_future_out(N, 30, 1)):
        with pytest.raises(ValueError, match=f"cross_validate: .*{message}"):
            lo.cross_validate(fit, plan)
    with pytest.raises(ValueError, match=f"covariance: .*{message}"):
        lo.covariance(fit, "HAC", maxlags=2)
    lo.cross_validate(fit, lo.kfold(N, 5), strategy=lo.NoUpdate())  # to which order is nothing
    lo.covariance(fit, "HC0")


def test_times_rise_in_each_sequence():
    x = pd.Series(SERIES.to_numpy(float), index=DAYS[:20].append(DAYS[:20]))
    lo.HMM(x, lo.emissions.Gaussian(), 2, lengths=[20, 20])
    with pytest.raises(ValueError, match="is there twice"):
        lo.HMM(x, lo.emissions.Gaussian(), 2, lengths=[25, 15])


CLUSTER = pd.Series(np.arange(40) // 5, LABELS)


def labelled_fit():
    rng = np.random.default_rng(31)
    X = pd.DataFrame(rng.normal(size=(40, 2)), LABELS, ["a", "b"])
    return lo.fit(
        lo.GLM(X, X.a + 2 * rng.normal(size=8)[CLUSTER.to_numpy()] + rng.normal(size=40), "squared")
    )


def plan_with(clusters):
    units = np.arange(40)
    return lo.Plan(
        np.arange(0, 41, 8), units, np.zeros(40), np.ones(40, bool), 40, clusters=clusters
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda splits, g: lo.from_splits(splits, 40, groups=g),
        lambda splits, g: lo.from_splits(
            [(truths(a)[::-1], truths(b)[::-1]) for a, b in splits], 40, groups=g
        ),
        lambda splits, g: plan_with(g),
    ],
)
def test_numbers_of_units_stay_while_labels_beside_them_are_matched(make):
    fit, units = labelled_fit(), np.arange(40)
    splits = [(np.delete(units, test), test) for test in np.split(units, 5)]
    want = lo.cross_validate(
        fit, lo.from_splits(splits, 40, groups=CLUSTER.to_numpy()), strategy=lo.Exact(), audit=0
    )
    for groups in (CLUSTER, shuffled(CLUSTER, 3), CLUSTER.to_numpy()):
        got = lo.cross_validate(fit, make(splits, groups), strategy=lo.Exact(), audit=0)
        np.testing.assert_allclose(got.per_unit(), want.per_unit())
        assert got.se == pytest.approx(want.se)


def truths(units):
    return pd.Series(np.isin(np.arange(40), units), LABELS)


def test_splits_by_labels_and_groups_by_labels_in_one_call():
    fit, units = labelled_fit(), np.arange(40)
    splits = [(np.delete(units, test), test) for test in np.split(units, 5)]
    want = lo.cross_validate(
        fit, lo.from_splits(splits, 40, groups=CLUSTER), strategy=lo.Exact(), audit=0
    )
    turned = [(shuffled(truths(train), 4), shuffled(truths(test), 4)) for train, test in splits]
    got = lo.cross_validate(fit, turned, strategy=lo.Exact(), audit=0, groups=shuffled(CLUSTER, 5))
    np.testing.assert_allclose(got.per_unit(), want.per_unit())
    assert got.se == pytest.approx(want.se)


def test_times_of_splits_rise_in_the_order_of_the_fit():
    fit, splits = labelled_fit(), [(np.arange(20), np.arange(20, 40))]
    days = pd.Series(pd.date_range("2020-01-01", periods=40), LABELS)
    got = lo.cross_validate(
        fit, lo.from_splits(splits, 40, times=days[::-1]), strategy=lo.Exact(), audit=0
    )
    assert got.plan.serial and np.isfinite(got.per_unit()[20:]).all()
    back = days.set_axis(LABELS[::-1])
    with pytest.raises(ValueError, match="times must rise from unit to unit"):
        lo.cross_validate(fit, lo.from_splits(splits, 40, times=back), strategy=lo.Exact())


def test_strata_go_by_labels_beside_groups_without_any():
    fit, strata = labelled_fit(), CLUSTER // 4
    want = lo.covariance(fit, "JKn", groups=CLUSTER, strata=strata)
    got = lo.covariance(fit, "JKn", groups=CLUSTER.to_numpy(), strata=shuffled(strata, 6))
    np.testing.assert_allclose(got, want)


def test_scikit_learns_calls_refuse_labels_in_another_order_than_those_of_y():
    y = pd.Series(np.arange(40.0), LABELS)
    with pytest.raises(ValueError, match="groups has the labels of y in another order"):
        lo.sklearn.cross_validate(
            LinearRegression(), np.ones((40, 1)), y, groups=shuffled(CLUSTER, 1), cv=GroupKFold(4)
        )


def test_groups_and_slopes_of_new_rows_go_by_name():
    rng = np.random.default_rng(4)
    X, slopes = (
        pd.DataFrame(rng.normal(size=(60, 2)), columns=list(names)) for names in ("ab", "uv")
    )
    groups = pd.DataFrame({"g": np.arange(60) % 6, "h": np.arange(60) // 10})
    effect, other = 2 * rng.normal(size=(2, 6))
    fit = lo.fit(
        lo.Mixed(X, X.a + effect[groups.g] + other[groups.h] + rng.normal(size=60), groups=groups),
        num_starts=1,
    )
    want = lo.predict(fit, (X, groups))
    np.testing.assert_allclose(lo.predict(fit, (X[["b", "a"]], groups[["h", "g"]])), want)
    with pytest.raises(ValueError, match="groups must be 'g', 'h'; got 'g', 'k'"):
        lo.predict(fit, (X, groups.rename(columns={"h": "k"})))
    sloped = (
        effect[groups.g]
        + other[groups.g] * slopes.u
        + other[groups.g][::-1] * slopes.v
        + rng.normal(size=60)
    )
    with_slopes = lo.fit(lo.Mixed(X, sloped, groups=groups.g, slopes=slopes), num_starts=1)
    new = lo.predict(with_slopes, (X, groups.g, slopes[["v", "u"]]))
    np.testing.assert_allclose(new, lo.predict(with_slopes, (X, groups.g, slopes)))


def test_places_to_predict_have_the_columns_of_the_data():
    rng = np.random.default_rng(1)
    points, new = (
        pd.DataFrame(rng.normal(size=(n, 2)) * [1, 100], columns=["x", "y"]) for n in (40, 50)
    )
    want = lo.validation.nearest_neighbour_matched(points, new, 4)
    got = lo.validation.nearest_neighbour_matched(points, new[["y", "x"]], 4)
    assert (got.note, got.index.tolist()) == (want.note, want.index.tolist())
    with pytest.raises(
        ValueError, match="new_points has the columns 'east', 'y', points has 'x', 'y'"
    ):
        lo.validation.nearest_neighbour_matched(points, new.rename(columns={"x": "east"}), 4)


@pytest.mark.parametrize("key", ["b", "coef"])
def test_parameters_of_own_models_may_have_any_name(key):
    fit = lo.fit(
        lo.Separable(
            lambda th, r: (r["y"] - r["x"] * th[key][0]) ** 2,
            {"x": WEIGHT, "y": ETA},
            theta0={key: np.zeros(1)},
        )
    )
    assert lo.covariance(fit, "CRV3", groups=np.arange(N) % 20).index.tolist() == [f"{key}[0]"]
    assert lo.survey.replicates(fit, lo.survey.jk1(np.arange(N) % 20)).index.tolist() == [
        f"{key}[0]"
    ]


def test_offset_and_trials_of_mixed_models_by_the_name_of_a_column():
    rows = np.arange(N)
    data = pd.DataFrame({"c": COUNTS, "a": X["a"], "g": rows % 8, "n": 3 + rows % 4, "le": OFFSET})
    data["s"] = np.minimum(COUNTS, data.n) / data.n
    for formula, family, name, column in (
        ("c ~ a + (1 | g)", "poisson", "offset", "le"),
        ("s ~ a + (1 | g)", "binomial", "trials", "n"),
    ):
        ours, truth = (
            lo.Mixed(formula, data, family, **{name: value}) for value in (column, data[column])
        )
        theta = ours.parameters.start(0)
        assert float(ours.loss(theta, np.ones(ours.num_units))) == float(
            truth.loss(theta, np.ones(ours.num_units))
        )
        with pytest.raises(ValueError, match="no column is named 'q'; there are c, a, g"):
            lo.Mixed(formula, data, family, **{name: "q"})
    with pytest.raises(TypeError, match=r"offset='le' is a name, .* give data\['le'\]"):
        lo.GLM(X, COUNTS, "poisson", offset="le")


def test_refits_are_called_by_the_groups_that_they_leave_out():
    states = np.array([f"state {k}" for k in range(8)])[CLUSTER.to_numpy()]
    fit = lo.fit(lo.GLM(X.to_numpy(), COUNTS.to_numpy(), "poisson"))
    cv = lo.cross_validate(fit, lo.groups(states), strategy=lo.NoUpdate(), audit=0)
    assert cv.table().group.tolist()[:6] == ["state 0"] * 5 + ["state 1"]
    assert (
        lo.influence(cv, strategy=lo.NewtonStep(), num_pairs=0).rows.index.tolist()
        == np.unique(states).tolist()
    )
    cv.result[3] = lo.RESULTS.not_converged
    (check,) = [check for check in dataclasses.replace(cv).checks() if check.code == "LO303"]
    assert check.reason.startswith("1 refit (state 3): ")
    days = lo.cross_validate(
        fit, lo.groups(pd.Series(states, SERIES.index)), strategy=lo.NoUpdate(), audit=0
    )
    assert days.names().equals(SERIES.index) and days.table().unit.tolist() == SERIES.index.tolist()


def test_sequences_are_called_by_the_labels_of_a_plan():
    fit = lo.fit(
        lo.HMM(SERIES.to_numpy(), lo.emissions.Poisson(), 2, lengths=[10] * 4, drop="sequence"),
        num_starts=1,
    )
    cv = lo.cross_validate(
        fit, lo.groups(np.repeat(list("dbca"), 10)), strategy=lo.NoUpdate(), audit=0
    )
    assert cv.names().tolist() == list("dbca")
    assert cv.table()[["group", "unit"]].to_numpy().tolist() == [
        ["d", "d"],
        ["b", "b"],
        ["c", "c"],
        ["a", "a"],
    ]
