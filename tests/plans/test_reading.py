"""What a call is given as a plan: numbers of folds, splitters, labels of rows, cases."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

import leaveout as lo


def fit_of(kind, X, y):
    if kind == "classes":
        return lo.fit(lo.GLM(X, y > 0, "logistic", lo.penalties.Ridge(1.0)))
    return lo.fit(lo.GLM(X, y, "squared"))


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_numbers_of_folds_and_splitters_are_plans(kind):
    random = np.random.default_rng(1)
    X, y = random.normal(size=(60, 2)), random.normal(size=60)
    fit, group = fit_of(kind, X, y), random.integers(0, 9, 60)
    same = lambda a, b: np.testing.assert_allclose(a.per_unit(), b.per_unit(), rtol=1e-12)
    drawn = lo.stratified(y > 0, k=5) if kind == "classes" else lo.kfold(k=5)
    same(lo.cross_validate(fit, 5), lo.cross_validate(fit, drawn))
    splitter = StratifiedKFold(4) if kind == "classes" else KFold(4)
    splits = list(splitter.split(X, y > 0))
    for plan in (splitter, splits, iter(splits)):
        same(lo.cross_validate(fit, plan), lo.cross_validate(fit, lo.from_splits(splits, 60)))
    np.testing.assert_array_equal(
        lo.cross_predict(fit, splitter), lo.cross_predict(fit, lo.from_splits(splits, 60))
    )
    by_group = lo.cross_validate(fit, GroupKFold(3), groups=group)
    same(lo.cross_validate(fit, 3, groups=group), lo.cross_validate(fit, lo.groups(group, k=3)))
    assert "over 9 groups" in by_group.standard_error.kind
    with pytest.raises(ValueError, match="needs groups; give one label a unit"):
        lo.cross_validate(fit, GroupKFold(3))
    for wrong in ("loo", 2.5, None, True):
        with pytest.raises(TypeError, match="a Plan, such as"):
            lo.cross_validate(fit, wrong)
    with pytest.raises(TypeError, match="a Plan has its own"):
        lo.cross_validate(fit, drawn, groups=group)


def test_groups_of_a_splitter_are_matched_by_labels():
    random = np.random.default_rng(2)
    index = pd.Index([f"u{k}" for k in range(30)])
    X = pd.DataFrame(random.normal(size=(30, 2)), index=index)
    fit, group = (
        lo.fit(lo.GLM(X, random.normal(size=30), "squared")),
        pd.Series(np.arange(30) % 6, index=index),
    )
    mixed = lo.cross_validate(fit, GroupKFold(3), groups=group.sample(frac=1, random_state=0))
    np.testing.assert_array_equal(
        mixed.per_unit(), lo.cross_validate(fit, GroupKFold(3), groups=group).per_unit()
    )


def test_a_series_is_cut_into_successive_folds():
    random = np.random.default_rng(3)
    fit = lo.fit(
        lo.HMM(random.normal(3.0 * (np.arange(60) // 10 % 2), 1.0), lo.emissions.Gaussian(), 2)
    )
    assert lo.cross_validate(fit, 5, audit=0).plan.call == "lo.blocks(60, k=5)"


def test_models_of_subjects_take_labels_of_rows():
    random = np.random.default_rng(4)
    subject = np.array([f"s{k:02d}" for k in np.repeat(random.permutation(12), 5)])
    index = pd.Index([f"row {k}" for k in range(60)])
    x = random.normal(size=60)
    data = pd.DataFrame({"y": x + random.normal(size=60), "x": x, "s": subject}, index=index)
    data["y"] += data["s"].map(dict(zip(np.unique(subject), random.normal(size=12), strict=True)))
    fit = lo.fit(lo.Mixed("y ~ x + (1 | s)", data, drop="s"))
    single = lo.cross_validate(fit, lo.leave_one_out(12))
    for labels in (subject, data["s"], data["s"].sample(frac=1, random_state=0)):
        cv = lo.cross_validate(fit, lo.groups(labels))
        np.testing.assert_allclose((cv.mean, cv.se), (single.mean, single.se), rtol=1e-9)
    half = lo.cross_validate(fit, lo.groups(np.where(subject < "s06", "a", "b")))
    assert half.plan.num_refits == 2 and half.plan.num_units == 12
    with pytest.raises(ValueError, match="parts of the fit's 12 units"):
        lo.cross_validate(fit, lo.groups(np.arange(60) % 7))
    chains = lo.fit(
        lo.HMM(
            random.normal(size=60),
            lo.emissions.Gaussian(),
            1,
            lengths=[20, 10, 15, 15],
            drop="sequence",
        )
    )
    whole, rows = (
        lo.cross_validate(chains, p)
        for p in (lo.leave_one_out(4), lo.groups(np.repeat([0, 1, 2, 3], [20, 10, 15, 15])))
    )
    np.testing.assert_allclose(rows.losses, whole.losses)


def test_cases_are_whole():
    X, y = np.arange(6.0)[:, None], np.array([0.0, 1.0, 3.0, 2.0, 5.0, 4.0])
    half = lo.fit(lo.GLM(X, y, "squared", sample_weight=[1, 1, 1.5, 1, 1, 1]))
    with pytest.raises(ValueError, match="must be whole numbers"):
        lo.cross_validate(half, lo.leave_one_out(cases=True))
    single = lo.fit(lo.GLM(X, y, "squared"))
    with pytest.raises(ValueError, match="each of 5 units"):
        lo.cross_validate(single, lo.leave_one_out(5, cases=True))
    ones, rows = (
        lo.cross_validate(single, plan)
        for plan in (lo.leave_one_out(6, cases=True), lo.leave_one_out(6))
    )
    np.testing.assert_allclose(ones.losses, rows.losses, rtol=1e-12)
    with pytest.raises(ValueError, match=r"refit 0 scores unit 1, which has weight 0\.5"):
        lo.cross_validate(single, lo.Plan([0, 1], [1], [0.5], [True], 6))


N = 24
RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(N, 2))
Y = X[:, 0] + RANDOM.normal(size=N)
SICK = RANDOM.random(N) < 1 / (1 + np.exp(-X[:, 0]))
DRAWS = (Y.sum() / (N + 1) + RANDOM.normal(size=(200, 1)) / np.sqrt(N + 1)) * 1.0


def linear():
    return lo.fit(lo.GLM(X, Y, "squared"))


def logistic():
    return lo.fit(lo.GLM(X, SICK, "logistic", lo.penalties.Ridge(1.0)))


def posterior():
    loss = lambda theta, y: 0.5 * (y - theta[0]) ** 2
    return lo.bayes.from_posterior(DRAWS, loss, Y, log_prior=lambda theta: -0.5 * theta[0] ** 2)


def additive():
    return lo.Additive([lo.terms.s("x", k=5)], {"x": X[:, 0]}, Y)


def tuned(plan):
    model = lambda alpha: lo.GLM(X, Y, "squared", lo.penalties.Ridge(alpha))
    return lo.tune(
        model, {"alpha": (0.1, 10.0)}, plan, num_trials=3, num_outer_folds=0
    ).estimate.mean


VERBS = {
    "cross_validate": lambda plan: lo.cross_validate(linear(), plan).per_unit(),
    "cross_predict": lambda plan: lo.cross_predict(linear(), plan),
    "fold_parameters": lambda plan: lo.fold_parameters(linear(), plan)["coef"],
    "functional": lambda plan: (
        lo.diagnostics.functional(linear(), plan, lambda p: p["coef"][0]).standard_error
    ),
    "interval": lambda plan: lo.interval(linear(), X, plan=plan),
    "path": lambda plan: lo.path(lo.GLM(X, Y, "squared"), [0.1, 1.0], plan).best.mean,
    "path of bands": lambda plan: lo.path(lo.tuning.BandedRidge(X, Y), [0.1, 1.0], plan).losses,
    "tune": tuned,
    "tune of bands": lambda plan: (
        lo.tune(lo.tuning.BandedRidge(X, Y), (0.1, 10.0), plan, num_trials=3).losses
    ),
    "smooth": lambda plan: lo.smooth(additive(), plan).edf,
    "curves": lambda plan: lo.tuning.curves(lo.fit(additive()), plan),
    "validate": lambda plan: lo.clinical.validate(logistic(), plan=plan).table,
    "stability": lambda plan: lo.clinical.stability(logistic(), plan=plan).table,
    "calibration": lambda plan: lo.clinical.calibration(logistic(), plan=plan).curve,
    "elpd": lambda plan: lo.bayes.elpd(posterior(), plan).elpd,
    "influence": lambda plan: lo.influence(posterior(), plan),
    "sklearn": lambda plan: lo.sklearn.cross_validate(LinearRegression(), X, Y, cv=plan)[
        "test_score"
    ],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", VERBS)
def test_verbs_give_plans_their_units(verb):
    plans = lo.kfold(k=4, rng=3), lo.kfold(N, k=4, rng=3)
    if verb == "tune of bands" or verb == "smooth":
        plans = lo.leave_one_out(), lo.leave_one_out(N)
    if verb in ("stability", "calibration"):
        plans = lo.bootstrap(num_resamples=5), lo.bootstrap(N, num_resamples=5)
    unbound, bound = (np.asarray(VERBS[verb](plan)).tolist() for plan in plans)
    assert str(unbound) == str(bound)


TABLE = pd.DataFrame(
    {
        "x": X[:, 0],
        "y": Y,
        "sick": 1.0 * SICK,
        "time": np.arange(N) + 1.0,
        "site": np.repeat(list("abcd"), 6),
        "w": np.arange(N) % 3 + 1.0,
    },
    index=[f"u{k}" for k in RANDOM.permutation(N)],
)
OF_TABLES = {
    "GLM": lambda: lo.GLM("y ~ x", TABLE, "squared"),
    "lasso": lambda: lo.GLM("y ~ x", TABLE, "squared", lo.penalties.Lasso(0.5)),
    "Regression": lambda: lo.Regression("y ~ x", TABLE, "gaussian"),
    "Cox": lambda: lo.Cox("Surv(time, sick) ~ x", TABLE),
    "Mixed": lambda: lo.Mixed("y ~ x + (1 | site)", TABLE),
    "sites of Mixed": lambda: lo.Mixed("y ~ x + (1 | site)", TABLE, drop="site"),
    "Additive": lambda: lo.Additive("y ~ s(x, k=5)", TABLE),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", OF_TABLES)
def test_columns_of_the_table_of_a_formula_have_names(model):
    fit = lo.fit(OF_TABLES[model]())
    named = lo.cross_validate(fit, lo.groups("site"), audit=0)
    given = lo.cross_validate(fit, lo.groups(TABLE["site"]), audit=0)
    np.testing.assert_array_equal(named.losses, given.losses)
    assert named.plan.call == "lo.groups('site')" and named.plan.num_refits == 4
    two = lo.cross_validate(fit, 2, groups="site", audit=0)
    assert two.plan.num_refits == 2 and len(np.unique(two.plan.clusters)) == 4


def test_names_of_no_column_are_refused():
    with pytest.raises(ValueError, match=r"labels names the column 'site'.*table\['site'\]"):
        lo.cross_validate(linear(), lo.groups("site"))
    fit = lo.fit(OF_TABLES["GLM"]())
    with pytest.raises(ValueError, match="no column is named 'clinic'; there are"):
        lo.cross_validate(fit, lo.groups("clinic"))
    calls = {
        "covariance: groups": lambda: lo.covariance(fit, "cluster", groups="sites"),
        "covariance: strata": lambda: lo.covariance(fit, "JKn", strata="sites"),
        "interval: groups": lambda: lo.interval(fit, TABLE, groups="sites"),
        "interval: new_groups": lambda: lo.interval(fit, TABLE, groups="site", new_groups="sites"),
        "predict: offset": lambda: lo.predict(fit, TABLE, offset="sites"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name}: no column is named 'sites'; .* site"):
            call()


def hosts():
    """The same regression of a formula, a frame, and two hosts, one of which drops rows."""
    import statsmodels.formula.api as smf
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    table = TABLE.assign(y=TABLE["y"].where(np.arange(N) % 7 > 0))
    columns = make_column_transformer(("passthrough", ["x"]))
    host = make_pipeline(columns, LinearRegression()).fit(TABLE, TABLE["y"])
    numbered = TABLE.assign(number=pd.factorize(TABLE["site"])[0])[["x", "number"]]
    return {
        "formula": (lo.fit(lo.GLM("y ~ x", TABLE, "squared")), "site", TABLE["site"]),
        "frame": (
            lo.fit(lo.GLM(numbered, TABLE["y"], "squared")),
            "number",
            numbered["number"],
        ),
        "from_sklearn": (lo.from_sklearn(host, TABLE, TABLE["y"]), "site", TABLE["site"]),
        "from_statsmodels": (
            lo.from_statsmodels(smf.ols("y ~ x", table).fit()),
            "site",
            table["site"][table["y"].notna()],
        ),
        "MixedLM": (
            lo.from_statsmodels(smf.mixedlm("y ~ x", TABLE, groups="site").fit()),
            "site",
            TABLE["site"].to_numpy(),
        ),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", ["formula", "frame", "from_sklearn", "from_statsmodels", "MixedLM"]
)
def test_columns_of_hosts_and_frames_have_names(kind):
    fit, name, labels = hosts()[kind]
    calls = [
        lambda groups: lo.cross_validate(fit, lo.groups(groups), audit=0).losses,
        lambda groups: lo.cross_predict(fit, 2, groups=groups),
        lambda groups: lo.covariance(fit, "CRV3", groups=groups),
    ]
    if kind != "MixedLM":
        calls += [
            lambda groups: lo.covariance(fit, "cluster", groups=groups),
            lambda groups: (
                lo.covariance(fit, "cluster", groups=[groups, groups])
                if isinstance(groups, str)
                else lo.covariance(fit, "cluster", groups=groups)
            ),
        ]
    if kind in ("formula", "from_sklearn"):
        calls.append(lambda groups: lo.interval(fit, TABLE, groups=groups, level=0.5))
        calls.append(
            lambda groups: lo.interval(fit, TABLE, groups=groups, new_groups=groups, level=0.5)
        )
    for call in calls:
        np.testing.assert_allclose(call(name), call(labels), rtol=1e-12, atol=1e-14)


def test_offsets_of_new_rows_have_names():
    fit = lo.fit(lo.GLM("sick ~ x", TABLE, "poisson", offset="w"))
    np.testing.assert_array_equal(
        lo.predict(fit, TABLE, offset="w"), lo.predict(fit, TABLE, offset=TABLE["w"])
    )


def test_stratified_takes_the_response_of_the_fit():
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    X = RANDOM.normal(size=(60, 2))
    y = np.where(np.arange(60) % 3 == 0, "ill", "well")
    fit = lo.fit(lo.GLM(pd.DataFrame(X), y, "logistic", lo.penalties.Ridge(1.0)))
    for repeats in (1, 3):
        plan = lo.stratified(k=5, num_repeats=repeats)
        bound = lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0).plan
        labelled = lo.stratified(y, 5, num_repeats=repeats)
        np.testing.assert_array_equal(bound.matrix(), labelled.matrix())
        for _, test in plan.split(X, y):
            assert (y[test] == "ill").sum() == 4
    host = LogisticRegression()
    scores = [lo.sklearn.cross_val_score, cross_val_score]
    ours, theirs = (score(host, X, y, cv=lo.stratified(k=5)) for score in scores)
    np.testing.assert_allclose(ours, theirs)
    assert (
        lo.cross_validate(fit, 5, audit=0).mean
        == lo.cross_validate(fit, lo.stratified(k=5), audit=0).mean
    )
    assert StratifiedKFold(5).get_n_splits() == lo.stratified(k=5).get_n_splits(X, y)
    assert (
        lo.cross_validate(lo.fit(OF_TABLES["GLM"]()), lo.stratified("site", 2)).plan.num_refits == 2
    )
    with pytest.raises(ValueError, match="no response; give their classes as y="):
        next(lo.stratified(k=5).split(X))
    with pytest.raises(TypeError, match=r"k= must be given; .* y="):
        lo.stratified(5)


def test_units_are_those_of_the_fit():
    sites = lo.fit(OF_TABLES["sites of Mixed"]())
    assert lo.cross_validate(sites, lo.leave_one_out(), audit=0).plan.num_units == 4
    lengths = [10, 8, 6]
    chains = {
        drop: lo.fit(lo.HMM(Y, lo.emissions.Gaussian(), 1, lengths=lengths, drop=drop))
        for drop in ("step", "sequence")
    }
    for drop, units in {"step": N, "sequence": 3}.items():
        assert lo.cross_validate(chains[drop], lo.leave_one_out(), audit=0).plan.num_units == units
    five = lo.cross_validate(chains["step"], 5, audit=0).plan
    np.testing.assert_array_equal(five.index, np.arange(N))  # one after the other
    weighted = lo.fit(lo.GLM("y ~ x", TABLE, "squared", sample_weight="w"))
    cases = lo.cross_validate(weighted, lo.leave_one_out(cases=True), strategy=lo.Exact())
    named = lo.cross_validate(weighted, lo.leave_one_out(cases="w"), strategy=lo.Exact())
    np.testing.assert_array_equal(cases.losses, named.losses)
    with pytest.raises(ValueError, match="from 2 to 3"):
        lo.cross_validate(chains["sequence"], lo.kfold(k=4))


def test_rows_that_a_host_drops_leave_an_unbound_plan():
    import statsmodels.formula.api as smf

    table = TABLE.assign(y=TABLE["y"].where(np.arange(N) % 7 > 0))
    fit = lo.from_statsmodels(smf.ols("y ~ x", table).fit())
    assert fit.objective.num_units == N - 4
    for plan in (lo.leave_one_out(), lo.kfold(k=4), lo.bootstrap(num_resamples=3)):
        assert lo.cross_predict(fit, plan).shape == (N - 4,)
    with pytest.warns(UserWarning, match="4 of the plan's 24 units"):
        by_site = lo.cross_validate(fit, lo.groups(table["site"]))
    assert by_site.plan.num_units == N - 4
