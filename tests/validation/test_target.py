"""The loss in a target population: weights by SciPy and scikit-learn, standard errors by closed
forms, by estimating equations written out, and by the bootstrap; distances by all pairs.
"""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mean_squared_error, r2_score, roc_auc_score

import leaveout as lo
from leaveout.validation.target import training_distances

rng = np.random.default_rng(0)
N = 300
TABLE = pd.DataFrame(
    {
        "age": rng.normal(50.0, 10.0, N),
        "dose": rng.normal(size=N),
        "sex": rng.choice(["F", "M"], N, p=[0.3, 0.7]),
        "arm": rng.choice([0, 1, 2], N),
    }
)
TABLE["y"] = 0.1 * TABLE["age"] + TABLE["dose"] + (1 + TABLE["arm"]) * rng.normal(size=N)
FIT = lo.fit(lo.GLM("y ~ age + dose + sex", TABLE, "squared"))
CV = lo.cross_validate(FIT, lo.leave_one_out(), audit=0)
LOSSES = CV.per_unit().to_numpy()
NEW = pd.DataFrame(
    {
        "age": rng.normal(56.0, 9.0, 200),
        "dose": rng.normal(0.3, 1.0, 200),
        "sex": rng.choice(["F", "M"], 200),
    }
)


def balanced(Z, m):
    """Weights of entropy balancing, of mean one, by SciPy's minimum of the dual."""
    C = (Z - m) / Z.std(0)
    dual = lambda v: (np.log(np.mean(np.exp(C @ v))), scipy.special.softmax(C @ v) @ C)
    w = np.exp(C @ scipy.optimize.minimize(dual, np.zeros(C.shape[1]), jac=True, tol=1e-12).x)
    return w / w.mean()


def test_margins_are_met_by_the_weights_of_entropy_balancing():
    target = CV.target(margins={"age": 55.0, "age ** 2": 3150.0, "sex": {"F": 0.5, "M": 0.5}})
    Z = np.c_[TABLE["age"], TABLE["age"] ** 2, TABLE["sex"] == "F"]
    weights = balanced(Z, [55.0, 3150.0, 0.5])
    np.testing.assert_allclose(target.weights, weights, rtol=1e-5)
    np.testing.assert_allclose(target.weights @ Z / N, [55.0, 3150.0, 0.5], rtol=1e-9)
    assert target.mean == pytest.approx(np.average(LOSSES, weights=weights), rel=1e-6)
    assert target.effective_n == pytest.approx(weights.sum() ** 2 / (weights @ weights), rel=1e-5)
    assert [*target.table.index] == ["age", "age ** 2", "sex_F", "sex_M"]
    np.testing.assert_allclose(target.table["weighted"], target.table["target"], rtol=1e-9)
    np.testing.assert_allclose(target.weigh(TABLE), target.weights, rtol=1e-9)


def test_one_margin_of_levels_is_poststratification():
    shares = {0: 0.6, 1: 0.3, 2: 0.1}
    known = CV.target(margins={"arm": shares})
    sample = CV.target(margins={"arm": pd.Series(shares)}, n=500)
    by_arm = pd.Series(LOSSES).groupby(TABLE["arm"])
    share = pd.Series(shares)
    mean = share @ by_arm.mean()
    expected = TABLE["arm"].map(share / by_arm.size() * N)
    np.testing.assert_allclose(known.weights, expected, rtol=1e-10)
    assert known.mean == pytest.approx(mean, rel=1e-10)
    variance = share**2 @ (by_arm.var() / by_arm.size())
    assert known.se == pytest.approx(np.sqrt(variance), rel=0.02)
    between = share @ (by_arm.mean() - mean) ** 2 / 500
    assert sample.se**2 - known.se**2 == pytest.approx(between, rel=1e-8)
    assert sample.mean == known.mean


def test_levels_without_a_share_do_not_count():
    women = CV.target(margins={"sex": {"F": 1.0, "M": 0.0}, "dose": 0.1})
    assert (women.weights[TABLE["sex"] == "M"] == 0).all()
    assert women.weights @ TABLE["dose"] / women.weights.sum() == pytest.approx(0.1)


def test_new_rows_weigh_by_the_odds_of_a_logistic_regression():
    target = CV.target(NEW)
    columns = lambda table: np.c_[table["age"], table["dose"], table["sex"] == "M"].astype(float)
    X = np.r_[columns(TABLE), columns(NEW)]
    is_new = np.repeat([0, 1], [N, 200])
    host = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(X, is_new)
    odds = np.exp(host.decision_function(X[:N]))
    np.testing.assert_allclose(target.weights, odds / odds.mean(), rtol=1e-3)
    assert "200 new rows" in str(target)
    assert "and that of the weights" in str(target)


def stacked(losses, Z, new, is_known=False):
    """Standard error by the sandwich of all estimating equations, with numerical derivatives; the
    contributions of units are those of units left out.
    """
    rows = np.c_[np.ones(len(Z) + len(new)), np.r_[Z, new]]
    s = np.repeat([0.0, 1.0], [len(Z), len(new)])
    loss = np.r_[losses, np.zeros(len(new))]
    scale = rows.std(0) + (rows.std(0) == 0)
    rows = (rows - np.r_[0.0, rows[:, 1:].mean(0)]) / scale

    def equations(theta):
        eta = rows @ theta[:-1]
        scores = (s - scipy.special.expit(eta))[:, None] * rows
        return np.c_[scores, (1 - s) * np.exp(eta) * (loss - theta[-1])]

    solution = scipy.optimize.root(
        lambda theta: equations(theta).mean(0), np.zeros(rows.shape[1] + 1), tol=1e-12
    ).x
    bread = scipy.optimize.approx_fprime(solution, lambda theta: equations(theta).sum(0), 1e-6)
    contributions = np.linalg.solve(bread, equations(solution).T)[-1]
    p = scipy.special.expit(rows @ solution[:-1])
    curvature = (p * (1 - p))[:, None] * rows
    odds = (1 - s) * p / (1 - p)
    leverage = np.einsum("ij,ji->i", curvature, np.linalg.solve(rows.T @ curvature, rows.T))
    contributions /= np.where(s == 0, 1 - leverage - odds / odds.sum(), 1.0)
    parts = [contributions[s == 0], contributions[s == 1]][: 1 if is_known else 2]
    return solution[-1], np.sqrt(sum(np.sum((part - part.mean()) ** 2) for part in parts))


def test_the_standard_error_is_that_of_all_estimating_equations():
    columns = lambda table: np.c_[table["age"], table["dose"], table["sex"] == "M"].astype(float)
    mean, error = stacked(LOSSES, columns(TABLE), columns(NEW))
    target = CV.target(NEW)
    assert target.mean == pytest.approx(mean, rel=1e-5)
    assert target.se == pytest.approx(error, rel=0.003)
    known = CV.target(NEW, n=np.inf)
    _, error_of_units = stacked(LOSSES, columns(TABLE), columns(NEW), is_known=True)
    assert known.se == pytest.approx(error_of_units, rel=0.003)
    assert known.se < target.se


@pytest.mark.parametrize("kind", ["rows", "margins"])
def test_the_standard_error_is_that_of_a_bootstrap_of_everything(kind):
    draws = np.random.default_rng(1)
    X = TABLE[["age", "dose"]].to_numpy()
    new = NEW[["age", "dose"]].to_numpy()

    def weigh(rows, new):
        if kind == "rows":
            odds = LogisticRegression(C=np.inf).fit(
                np.r_[X[rows], new] / [10, 1], np.repeat([0, 1], [N, len(new)])
            )
            return np.exp(odds.decision_function(X[rows] / [10, 1]))
        return balanced(X[rows], new.mean(0))

    means = []
    for _ in range(150):
        rows, others = draws.integers(N, size=N), draws.integers(len(new), size=len(new))
        means.append(np.average(LOSSES[rows], weights=weigh(rows, new[others])))
    arguments = {"X_new": NEW, "data": TABLE[["age", "dose"]]}
    if kind == "margins":
        arguments = {"margins": NEW[["age", "dose"]].mean().to_dict(), "n": len(NEW)}
    target = CV.target(**arguments)
    assert target.mean == pytest.approx(
        np.average(LOSSES, weights=weigh(np.arange(N), new)), rel=0.01
    )
    assert target.se == pytest.approx(np.std(means), rel=0.2)


def test_groups_that_leave_whole_are_what_the_standard_error_sums():
    single = lo.cross_validate(FIT, lo.leave_one_out(), audit=0)
    twice = pd.concat([TABLE, TABLE], ignore_index=True).assign(person=np.tile(np.arange(N), 2))
    fit = lo.fit(lo.GLM("y ~ age + dose + sex", twice, "squared"))
    pairs = lo.cross_validate(fit, lo.groups("person"), audit=0)
    for arguments in ({"margins": {"age": 54.0}}, {"X_new": NEW}):
        one = single.target(**arguments)
        both = pairs.target(**arguments)
        assert both.se == pytest.approx(one.se, rel=0.05)
        assert "300 groups" in both.standard_error.kind
        assert both.interval().method == "clusters"


def test_sample_weights_are_the_weights_that_are_changed():
    weights = np.where(TABLE["arm"] == 0, 2.0, 1.0)
    fit = lo.fit(lo.GLM("y ~ age", TABLE, "squared", sample_weight=weights))
    cv = lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    target = cv.target(margins={"sex": {"F": 0.5, "M": 0.5}})
    is_woman = (TABLE["sex"] == "F").to_numpy()
    halves = [
        np.average(cv.per_unit()[part], weights=weights[part]) for part in (is_woman, ~is_woman)
    ]
    assert target.mean == pytest.approx(np.mean(halves))
    same = cv.target(margins={"age": np.average(TABLE["age"], weights=weights)})
    assert same.mean == pytest.approx(cv.mean)


@pytest.mark.parametrize("arguments", [{"X_new": NEW}, {"margins": {"age": 54.0}}])
def test_only_the_ratios_of_sample_weight_count(arguments):
    """A logistic regression of weighted units against new rows would weigh these less."""
    targets = []
    for scale in (1.0, 10.0):
        weight = scale * np.where(TABLE["arm"] == 0, 2.0, 1.0)
        fit = lo.fit(lo.GLM("y ~ age + dose + sex", TABLE, "squared", sample_weight=weight))
        targets.append(lo.cross_validate(fit, lo.leave_one_out(), audit=0).target(**arguments))
    one, ten = targets
    assert ten.mean == pytest.approx(one.mean, rel=1e-9)
    assert ten.se == pytest.approx(one.se, rel=1e-6)
    assert ten.effective_n == pytest.approx(one.effective_n, rel=1e-6)


@pytest.mark.parametrize("arguments", [{"X_new": NEW}, {"margins": {"age": 54.0}}])
def test_cases_are_copies_of_rows(arguments):
    cases = 1 + TABLE["arm"].to_numpy()
    copies = TABLE.loc[np.repeat(TABLE.index, cases)].reset_index(drop=True)
    counted = lo.GLM("y ~ age + dose + sex", TABLE, "squared", sample_weight=cases)
    counted = lo.cross_validate(lo.fit(counted), lo.leave_one_out(cases=True), audit=0)
    copied = lo.fit(lo.GLM("y ~ age + dose + sex", copies, "squared"))
    want = lo.cross_validate(copied, lo.leave_one_out(), audit=0).target(**arguments)
    target = counted.target(**arguments)
    assert target.mean == pytest.approx(want.mean, rel=1e-6)
    assert target.se == pytest.approx(want.se, rel=1e-4)
    assert target.effective_n == pytest.approx(want.effective_n, rel=1e-6)


def test_metrics_are_of_the_bases_of_the_estimate():
    fit = lo.fit(lo.GLM("y ~ bs(age, df=8)", TABLE, "squared"))
    for bases in ("refit", "frozen"):
        cv = lo.cross_validate(fit, 10, metric="rmse", bases=bases, audit=0)
        same = cv.target(margins={"age": TABLE["age"].mean()}, metric="rmse")
        assert same.measured["rmse"].value == pytest.approx(cv.measured["rmse"].value, rel=1e-9)


def test_metrics_are_weighted():
    table = TABLE.assign(ill=(rng.random(N) < scipy.special.expit(TABLE["dose"])) * 1.0)
    fit = lo.fit(lo.GLM("ill ~ dose + age", table, "logistic"))
    cv = lo.cross_validate(fit, lo.kfold(k=5), audit=0)
    margins = {"age": 54.0, "dose": 0.2}
    target = cv.target(margins=margins, metric=["auc", "brier"])
    predicted = lo.cross_predict(fit, lo.kfold(k=5))
    auc = roc_auc_score(table["ill"], predicted, sample_weight=target.weights)
    assert target.measured["auc"].value == pytest.approx(auc)
    brier = np.average((table["ill"] - predicted) ** 2, weights=target.weights)
    assert target.measured["brier"].value == pytest.approx(brier)
    of_loss = lo.cross_validate(fit, lo.kfold(k=5), evaluate="squared_error").target(
        margins=margins
    )
    assert target.measured["brier"].standard_error == pytest.approx(of_loss.se, rel=1e-4)
    low, high = target.interval(0.9, metric="auc")[:2]
    assert low < auc < high
    with pytest.raises(ValueError, match=r"metric must be one of .*auc.*; got 'rmse'"):
        target.interval(metric="rmse")
    numbers = CV.target(margins=margins, metric=["rmse", "r2"])
    y, mean = TABLE["y"], lo.cross_predict(FIT, lo.leave_one_out())
    error = mean_squared_error(y, mean, sample_weight=numbers.weights)
    assert numbers.measured["rmse"].value == pytest.approx(np.sqrt(error))
    score = r2_score(y, mean, sample_weight=numbers.weights)
    assert numbers.measured["r2"].value == pytest.approx(score)
    with pytest.raises(ValueError, match="takes no sample_weight"):
        CV.target(margins=margins, metric=lambda y, mean: float(np.max(np.abs(y - mean))))


@pytest.mark.parametrize(
    ("margins", "message"),
    [
        ({"age": 90.0, "dose": 0.0}, r"margins age of 90 \(at best 8"),
        ({"age": 50.0, "age ** 2": 2500.0}, r"age \*\* 2 of 2500 \(at best"),
        ({"sex": {"F": 0.4, "M": 0.5, "X": 0.1}}, "sex_X of 0.1"),
        ({"sex": {"F": 0.4, "X": 0.6}}, "'sex' must be shares.* of all its levels.*scored units"),
        ({"sex": {"F": 0.4, "M": 0.4}}, "sum to 1; they sum to 0.8"),
        ({"sex": {"F": 1.0, "M": 0.0}}, "only select units"),
        ({"weight": 80.0}, "no column is named 'weight'"),
        ({"sex": 0.5}, "must hold numbers; these columns do not: 'sex'"),
    ],
)
def test_margins_that_cannot_be_met_are_named(margins, message):
    with pytest.raises((ValueError, TypeError), match=message):
        CV.target(margins=margins)


def test_rows_outside_the_support_are_named():
    far = NEW.copy()
    far.index = [f"p{k}" for k in range(len(far))]
    far.loc[["p3", "p7"], "age"] = 150.0
    with pytest.raises(ValueError, match=r"2 of 200 rows of X_new .*\['p3', 'p7'\]"):
        CV.target(far)
    data = TABLE[["age", "sex"]]
    with pytest.raises(ValueError, match=r"1 of 200 rows .*\[4\]"):
        CV.target(NEW.assign(sex=np.where(NEW.index == 4, "X", NEW["sex"])), data=data)
    with pytest.raises(ValueError, match=r"1 of 200 rows .*\[5\]"):
        CV.target(NEW.assign(sex=NEW["sex"].where(NEW.index != 5)), data=data)
    with pytest.raises(ValueError, match=r"weighed by holds 1 NaN .* the first in row 2"):
        CV.target(NEW.assign(age=NEW["age"].where(NEW.index != 2)), data=data)
    old = NEW.assign(age=TABLE["age"].max() + 1 + rng.random(len(NEW)))
    with pytest.raises(ValueError, match="no common support"):
        CV.target(old, data=data)


def test_arguments_that_do_not_go_together_are_refused():
    for arguments in (
        {},
        {"X_new": NEW, "margins": {"age": 55.0}},
        {"margins": {"age": 55.0}, "distance": True},
        {"margins": {"age": 55.0}, "n": -3},
    ):
        with pytest.raises(ValueError, match="target: give X_new"):
            CV.target(**arguments)
    joint = lo.cross_validate(FIT, 5, evaluate=lambda held, seen, parameters: 1.0, audit=0)
    with pytest.raises(ValueError, match="not joint ones"):
        joint.target(margins={"age": 55.0})
    with pytest.raises(ValueError, match="give data=, a DataFrame with a row for each of the 300"):
        CV.target(margins={"age": 55.0}, data=TABLE[:10])
    groups = np.arange(N) % 30
    mixed = lo.fit(lo.Mixed("y ~ dose + (1 | group)", TABLE.assign(group=groups)))
    of_groups = lo.cross_validate(mixed, lo.groups("group"), audit=0)
    with pytest.raises(ValueError, match="give data="):  # the table holds the response
        of_groups.target(TABLE)
    assert np.isfinite(of_groups.target(NEW, data=TABLE[["age"]]).se)
    with pytest.raises(ValueError, match="it refits the model, and this estimate has no fit"):
        CV.without_data().target(margins={"age": 55.0}, data=TABLE, metric="rmse")


def test_weights_that_are_worth_few_units_have_no_standard_error():
    target = CV.target(margins={"age": TABLE["age"].nlargest(3).mean()})
    assert target.effective_n < 20
    assert np.isnan(target.se)
    assert "worth" in target.standard_error.kind
    assert "SE not available" in str(target)


def test_data_are_matched_by_labels():
    table = TABLE.set_axis([f"u{k}" for k in range(N)])
    fit = lo.fit(lo.GLM(table[["age", "dose"]], table["y"], "squared"))
    cv = lo.cross_validate(fit, 10, audit=0)
    margins = {"arm": {0: 0.5, 1: 0.3, 2: 0.2}}
    target = cv.target(margins=margins, data=table)
    shuffled = cv.target(margins=margins, data=table.sample(frac=1.0, random_state=1))
    pd.testing.assert_series_equal(target.weights, shuffled.weights)
    again = pickle.loads(pickle.dumps(target))
    assert again.mean == target.mean
    arrays = lo.cross_validate(lo.fit(lo.GLM(TABLE[["age"]].to_numpy(), TABLE["y"], "squared")), 10)
    assert arrays.target(margins={"x0": 53.0}).table.loc["x0", "weighted"] == pytest.approx(53.0)
    assert arrays.target(NEW[["age"]].to_numpy()).weights.shape == (N,)
    assert cv.without_data().target(margins=margins, data=table).mean == target.mean


@pytest.mark.parametrize(
    "plan",
    [
        lo.leave_one_out(),
        lo.kfold(k=7),
        lo.kfold(k=4, num_repeats=2),
        lo.bootstrap(num_resamples=5),
    ],
)
def test_distances_are_to_the_training_set_of_the_refit(plan):
    plan = plan._bind(N)
    points = TABLE[["age", "dose"]].to_numpy()
    apart = scipy.spatial.distance.cdist(points, points)
    counted = np.arange(N) % 3 > 0
    sums, times = np.zeros(N), np.zeros(N)
    for weight, k in zip(plan.matrix(), range(plan.num_refits), strict=True):
        scored = plan.scored_units[plan.scored_refits == k]
        sums[scored] += apart[scored][:, (weight > 0) & counted].min(1)
        times[scored] += 1
    with np.errstate(invalid="ignore"):
        expected = (sums / times)[counted]
        np.testing.assert_allclose(training_distances(points, plan, counted)[counted], expected)


def test_distance_is_a_covariate_and_bounds_the_area_of_applicability():
    cv = lo.cross_validate(FIT, lo.kfold(k=5), audit=0)
    target = cv.target(NEW, data=TABLE[["age", "dose"]], distance=True)
    points = TABLE[["age", "dose"]] / TABLE[["age", "dose"]].std(ddof=0)
    new = NEW[["age", "dose"]] / TABLE[["age", "dose"]].std(ddof=0)
    nearest = scipy.spatial.distance.cdist(new, points).min(1)
    np.testing.assert_allclose(target.new_rows["distance"], nearest)
    training = training_distances(points.to_numpy(), cv.plan, np.ones(N, bool))
    low, high = np.quantile(training, [0.25, 0.75])
    applicable = nearest <= high + 1.5 * (high - low)
    np.testing.assert_array_equal(target.new_rows["applicable"], applicable)
    assert f"{np.sum(~applicable)} of 200 new rows are outside" in str(target)
    assert target.table.loc["distance"].tolist()[:3] == pytest.approx(
        [training.mean(), target.weights @ training / N, nearest.mean()]
    )
    of_places = cv.target(NEW, data=TABLE[["age", "dose"]], distance=["dose"])
    assert of_places.table.loc["distance", "target"] < nearest.mean()


def test_rows_of_weight_zero_are_no_training_set():
    counted = np.arange(N) % 2 == 0
    columns = TABLE[["age", "dose"]]
    targets = []
    for rows, weight in ((slice(None), counted * 1.0), (counted, None)):
        model = lo.GLM(columns[rows], TABLE["y"][rows], "squared", sample_weight=weight)
        cv = lo.cross_validate(lo.fit(model), lo.leave_one_out(), audit=0)
        targets.append(cv.target(NEW[["age", "dose"]], distance=True))
    every, without = targets
    np.testing.assert_allclose(every.new_rows["distance"], without.new_rows["distance"])
    assert every.mean == pytest.approx(without.mean, rel=1e-6)
    assert every.se == pytest.approx(without.se, rel=1e-5)


def test_weights_of_the_same_population_change_little():
    other = TABLE.sample(frac=0.5, random_state=3)
    other = other.assign(age=other["age"] + 0.01)
    target = CV.target(other)
    assert abs(target.mean - CV.mean) < 0.5 * CV.se
    assert target.effective_n > 0.95 * N


def test_a_unit_that_alone_meets_a_margin_leaves_no_standard_error():
    data = TABLE.assign(rare=np.where(TABLE.index == 7, "a", "b"))
    target = CV.target(margins={"rare": {"a": 0.01, "b": 0.99}}, data=data)
    assert target.weights[7] == pytest.approx(0.01 * N)
    assert np.isnan(target.se)


@pytest.mark.parametrize("kind", ["category", "bool", "int", "str"])
def test_levels_are_of_any_kind(kind):
    values = {"category": pd.Categorical(TABLE["sex"]), "str": TABLE["sex"]}
    values |= {"bool": TABLE["sex"] == "F", "int": (TABLE["sex"] == "F") * 1.0}
    levels = {"bool": (True, False), "int": (1, 0)}.get(kind, ("F", "M"))
    shares = dict(zip(levels, (0.5, 0.5), strict=True))
    target = CV.target(margins={"level": shares}, data=pd.DataFrame({"level": values[kind]}))
    expected = CV.target(margins={"sex": {"F": 0.5, "M": 0.5}})
    np.testing.assert_allclose(target.weights, expected.weights, rtol=1e-9)


def test_shares_of_what_are_no_levels_name_the_levels():
    with pytest.raises(ValueError, match=r"margins of 'age' must be shares.*Levels are \d+"):
        CV.target(margins={"age": {"<60": 0.5, ">=60": 0.5}})
    with pytest.raises(ValueError, match=r"Levels are '[FM]', '[FM]'\."):
        CV.target(margins={"sex": {"f": 0.5, "m": 0.5}})


def test_constant_columns_do_no_harm():
    data = TABLE[["age"]].assign(one=0.1, zero=0.0)
    expected = CV.target(margins={"age": 54.0})
    target = CV.target(margins={"age": 54.0, "one": 0.1, "zero": 0.0}, data=data)
    np.testing.assert_allclose(target.weights, expected.weights, rtol=1e-9)
    new = NEW.assign(one=0.1, zero=0.0)
    by_rows = CV.target(new, data=data)
    np.testing.assert_allclose(
        by_rows.weights, CV.target(NEW, data=TABLE[["age"]]).weights, rtol=1e-6
    )
    for column in ("one", "zero"):
        with pytest.raises(ValueError, match="200 of 200 rows"):
            CV.target(new.assign(**{column: 1.0}), data=data)


def margin_data():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(50, 9, 80), "sick": rng.random(80) < 0.5})
    table["count"] = rng.integers(0, 2, 80)
    table["y"] = table["age"] / 10 + table["sick"] + rng.normal(size=80)
    return lo.cross_validate(lo.fit(lo.GLM("y ~ age + sick", table, "squared")), lo.kfold(k=5))


@pytest.mark.parametrize("value", [np.nan, np.inf, "old", [1, 2], None])
def test_a_margin_that_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="margin of 'age' must be a mean, or shares of levels"):
        margin_data().target(margins={"age": value})


@pytest.mark.parametrize(
    "margins",
    [{"sick": {"True": 0.7, "False": 0.3}}, {"count": {0.4: 0.5, 1: 0.5}}],
    ids=["texts of truth values", "cut to a whole number"],
)
def test_shares_of_what_only_a_cast_makes_a_level_are_refused(margins):
    """Every text is true, and .4 is cut to 0."""
    with pytest.raises(ValueError, match="scored units have a level without one"):
        margin_data().target(margins=margins)
