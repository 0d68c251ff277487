"""Formulas of generalised linear models, against designs written out and statsmodels' own."""

import numpy as np
import pandas as pd
import pytest
import scipy

import leaveout as lo

formulaic = pytest.importorskip("formulaic")


def table(n=80):
    rng = np.random.default_rng(0)
    data = pd.DataFrame(
        {"x": rng.normal(size=n), "age": rng.uniform(20, 80, n), "site": rng.choice(list("abc"), n)}
    )
    data["m"], data["w"], data["o"] = (
        rng.integers(1, 9, n),
        rng.integers(1, 4, n),
        rng.normal(size=n),
    )
    data["share"] = rng.binomial(data["m"], 1 / (1 + np.exp(-data["x"]))) / data["m"]
    data["well"] = np.where(data["x"] + rng.normal(size=n) > 0, "yes", "no")
    data["count"] = rng.poisson(np.exp(0.3 * data["x"]))
    return data.set_index(pd.Index([f"p{k}" for k in range(n)]))


def test_a_formula_is_its_columns():
    data, rng = table(), np.random.default_rng(1)
    site = pd.get_dummies(data["site"], dtype=float)[["b", "c"]].to_numpy()
    X = np.column_stack([data["x"], site, data[["x"]].to_numpy() * site])
    plan = lo.kfold(80, 5, rng=0)
    ours = lo.fit(lo.GLM("count ~ x * site", data, "poisson", offset="o", weights="w"))
    plain = lo.fit(
        lo.GLM(X, data["count"].to_numpy(), "poisson", offset=data["o"], sample_weight=data["w"])
    )
    np.testing.assert_allclose(
        lo.cross_predict(ours, plan), lo.cross_predict(plain, plan), rtol=1e-9
    )
    assert ours.objective.names == ("x", "site[T.b]", "site[T.c]", "x:site[T.b]", "x:site[T.c]")
    new = data.iloc[rng.permutation(80)[:7]]
    predicted = lo.predict(ours, new, offset=new["o"])
    eta = ours.parameters["intercept"] + X @ ours.parameters["coef"] + data["o"]
    np.testing.assert_allclose(predicted, np.exp(eta[new.index]), rtol=1e-9)
    dot = lo.GLM("x ~ .", data[["x", "age", "o"]], "squared")
    assert dot.names == ("age", "o") and not lo.GLM("x ~ 0 + age", data, "squared").intercept
    wide = lo.fit(lo.Regression("x ~ age", data, "gaussian", weights="w"))
    arrays = lo.Regression(data[["age"]], data["x"], "gaussian", sample_weight=data["w"])
    np.testing.assert_allclose(wide.vector, lo.fit(arrays).vector, atol=1e-8)
    assert lo.Regression("count ~ x", dict(data), "ordinal").outputs > 1


def test_formulas_agree_with_statsmodels():
    sm, smf = pytest.importorskip("statsmodels.api"), pytest.importorskip("statsmodels.formula.api")
    data = table()
    family = sm.families.Binomial()
    theirs = smf.glm(
        "share ~ x + np.log(age) + C(site)", data, family=family, var_weights=data["m"]
    ).fit(tol=1e-12)
    ours = lo.fit(lo.GLM("share ~ x + np.log(age) + C(site)", data, "logistic", trials="m"))
    named = dict(zip(ours.objective.names, ours.parameters["coef"], strict=True)) | {
        "Intercept": ours.parameters["intercept"]
    }
    np.testing.assert_allclose(
        [named[name] for name in theirs.params.index], theirs.params, rtol=1e-6
    )


def test_labels_of_two_classes_are_named():
    data = table()
    fit = lo.fit(lo.GLM("well ~ x", data, "logistic"))
    number = lo.fit(lo.GLM(data[["x"]], data["well"] == "yes", "logistic"))
    np.testing.assert_allclose(fit.vector, number.vector, rtol=1e-10)
    assert "y is 1 where it is yes and 0 where it is no" in str(lo.cross_validate(fit, 5))
    event = lo.fit(lo.GLM("well[no] ~ x", data, "logistic"))
    np.testing.assert_allclose(event.vector, -number.vector, atol=1e-8)
    assert lo.GLM("site ~ x", data, "multinomial").classes == ("a", "b", "c")


def test_what_bases_learn_from_all_rows_is_said():
    data = table()
    fit = lo.fit(lo.GLM("count ~ bs(age, df=4)", data, "poisson"))
    assert "bs(...) stays as made of all rows" in str(lo.cross_validate(fit, 5, bases="frozen"))
    assert "bs(...) learned anew from the rows of each refit" in str(lo.cross_validate(fit, 5))
    assert "stays as made" in str(fit.objective.note)
    with pytest.raises(ValueError, match="bases must be 'refit' or 'frozen'"):
        lo.cross_validate(fit, 5, bases="anew")
    fixed = "count ~ bs(age, knots=[50], lower_bound=0, upper_bound=100)"
    assert "stays" not in str(lo.cross_validate(lo.fit(lo.GLM(fixed, data, "poisson")), 5))


FOLD = np.arange(80) % 5
SPLITS = [(np.flatnonzero(k != FOLD), np.flatnonzero(k == FOLD)) for k in range(5)]
BASES = {
    "splines": ("count ~ bs(age, df=6) + C(site)", None),
    "splines under a ridge": ("count ~ bs(age, df=6) + x", lo.penalties.Ridge(2.0)),
    "spreads under a ridge": ("count ~ scale(age) + x", lo.penalties.Ridge(2.0)),
    "spreads under a lasso": ("count ~ scale(age) + scale(x)", lo.penalties.Lasso(6.0)),
    "an interaction": ("count ~ center(age):x", None),
    "natural splines": ("count ~ cr(age, df=4)", None),
}


def by_refits(formula, data, penalty, loss):
    """Held-out losses of one formula made and fitted in every fold, boundary knots at the ends of
    all rows.
    """
    ends = f", lower_bound={float(data.age.min())!r}, upper_bound={float(data.age.max())!r})"
    bounded = formula.replace("df=6)", f"df=6{ends}").replace("df=4)", f"df=4{ends}")
    out = np.zeros(len(data))
    for seen, held in SPLITS:
        fit = lo.fit(lo.GLM(bounded, data.iloc[seen], loss, penalty))
        mean = lo.predict(fit, data.iloc[held]).to_numpy()
        y = data["count"].to_numpy()[held]
        out[held] = (
            (y - mean) ** 2 / 2
            if loss == "squared"
            else mean - y * np.log(mean) + scipy.special.gammaln(y + 1)
        )
    return out


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_bases_are_learned_in_every_fold(name, loss):
    formula, penalty = BASES[name]
    data = table().reset_index(drop=True)
    plan, truth = lo.from_splits(SPLITS, 80), by_refits(formula, data, penalty, loss)
    fit = lo.fit(lo.GLM(formula, data, loss, penalty))
    score = "log_density" if loss == "poisson" else None
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact(), metric="mse", evaluate=score)
    np.testing.assert_allclose(exact.per_unit(), truth, rtol=1e-6, atol=1e-7)
    certified = lo.cross_validate(fit, plan, evaluate=score)
    off = np.abs(np.bincount(FOLD, certified.per_unit()) - np.bincount(FOLD, truth))
    assert (off <= certified.error + 1e-6).all() and certified.audit is None
    if loss == "squared":
        assert exact.metrics.loc["mse", "value"] == pytest.approx(2 * truth.mean())
    frozen = lo.cross_validate(
        fit, plan, strategy=lo.Exact(), bases="frozen", evaluate=score
    ).per_unit()
    assert np.abs(frozen - exact.per_unit()).max() > 1e-5
    if loss == "squared":
        predicted = lo.cross_predict(fit, plan, strategy=lo.Exact())
        np.testing.assert_allclose(
            (data["count"] - predicted) ** 2 / 2, truth, rtol=1e-6, atol=1e-7
        )


def test_what_spans_the_same_is_not_learned_again():
    data = table().assign(z=lambda d: np.sin(d.age))
    formula = "count ~ center(age) + scale(x) + poly(z, 3)"
    cv = lo.cross_validate(
        lo.fit(lo.GLM(formula, data, "squared")), lo.leave_one_out(), strategy=lo.Exact()
    )
    assert (
        "center(...), scale(...), poly(...) spans the same columns" in str(cv)
        and cv.audit is not None
    )
    for k in (0, 40):
        again = lo.fit(lo.GLM(formula, data.drop(data.index[k]), "squared"))
        mean = lo.predict(again, data.iloc[[k]]).iloc[0]
        assert cv.losses[k] == pytest.approx((data["count"].iloc[k] - mean) ** 2 / 2, rel=1e-8)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda d: lo.GLM("count ~ nothing", d, "poisson"),
            ValueError,
            "formula 'count ~ nothing' cannot be read",
        ),
        (lambda d: lo.GLM("count ~ x + (1 | site)", d, "poisson"), ValueError, r"lo\.Mixed"),
        (lambda d: lo.GLM("~ x", d, "poisson"), ValueError, "must name a response"),
        (
            lambda d: lo.GLM("count ~ x", d.to_numpy(), "poisson"),
            TypeError,
            "data must be a DataFrame",
        ),
        (lambda d: lo.GLM("site ~ x", d, "logistic"), ValueError, "y has 3 labels"),
        (
            lambda d: lo.GLM("count ~ x", d, "poisson", trials="m"),
            ValueError,
            "binomial proportions",
        ),
        (
            lambda d: lo.GLM("count ~ x", d, "poisson", weights="w", sample_weight="w"),
            ValueError,
            "two names of one",
        ),
        (lambda d: lo.GLM("count ~ x", d.assign(x=np.nan), "poisson"), ValueError, "dropna"),
    ],
)
def test_what_formulas_refuse(make, error, message):
    with pytest.raises(error, match=message):
        make(table())


def test_a_survival_formula_is_its_columns():
    rng, n = np.random.default_rng(0), 60
    data = pd.DataFrame(
        {
            "age": rng.normal(size=n),
            "sex": rng.choice(["f", "m"], n),
            "site": rng.choice(["a", "b", "c"], n),
        }
    )
    data = data.assign(
        start=rng.uniform(0, 1, n),
        weight=rng.uniform(0.5, 2, n),
        status=rng.integers(1, 3, n),
        far=rng.random(n),
    )
    data["stop"] = data.start + rng.exponential(size=n)
    X = data[["age"]].assign(male=(data.sex == "m").astype(float))
    site, event = data.site + (data.far > 0.5).astype(str), (data.status == 2).astype(float)
    pairs = [
        (
            lo.Cox(
                "Surv(start, stop, status == 2) ~ age + C(sex) + strata(site, far > 0.5)",
                data,
                weights="weight",
            ),
            lo.Cox(X, data.stop, event, strata=site, entry=data.start, sample_weight=data.weight),
        ),
        (
            lo.Cox(
                "Surv(stop, status == 2) ~ age + sex",
                data,
                entry="start",
                offset="far",
                strata="site",
            ),
            lo.Cox(X, data.stop, event, entry=data.start, offset=data.far, strata=data.site),
        ),
    ]
    for ours, columns in pairs:
        fit, known = lo.fit(ours), lo.fit(columns)
        np.testing.assert_allclose(fit.parameters["coef"], known.parameters["coef"], rtol=1e-9)
        losses = [lo.cross_validate(each, lo.kfold(k=4, rng=1)).losses for each in (fit, known)]
        np.testing.assert_allclose(*losses, rtol=1e-9)
    plain = lo.fit(lo.Cox("Surv(stop, status == 2) ~ age + bs(far, 4) + sex", data))
    np.testing.assert_allclose(
        lo.predict(plain, data.head(3)),
        np.exp(plain.objective.design[:3] @ plain.vector),
        rtol=1e-9,
    )
    assert "bs(...) stays as made of all rows" in plain.objective.note
    dotted = lo.Cox(
        "Surv(stop, status == 2) ~ . + strata(site)", data.drop(columns=["start", "weight"])
    )
    assert sorted(dotted.names) == ["age", "far", "sex[T.m]"]


@pytest.mark.parametrize(
    ("formula", "more", "message"),
    [
        ("stop ~ age", {}, "Surv\\(time, event\\)"),
        ("Surv(stop) ~ age", {}, "Surv\\(time, event\\)"),
        ("Surv(stop, status) ~ age * strata(site)", {}, "a term of its own"),
        ("Surv(stop, status) ~ strata(site)", {}, "with columns"),
        ("Surv(stop, gone) ~ age", {}, "cannot be read.*gone"),
        ("Surv(stop, status) ~ age + strata(site)", {"strata": "site"}, "give them once"),
        ("Surv(stop, status) ~ age", {"event": [1]}, "names the events itself"),
        ("Surv(stop, status) ~ age", {"weights": "stop", "sample_weight": "stop"}, "not both"),
    ],
)
def test_what_survival_formulas_refuse(formula, more, message):
    data = pd.DataFrame(
        {
            "age": [1.0, 2.0, 3.0],
            "stop": [3.0, 1.0, 2.0],
            "status": [1, 0, 1],
            "site": ["a", "a", "b"],
        }
    )
    with pytest.raises(ValueError, match=message):
        lo.Cox(formula, data, **more)
    with pytest.raises(ValueError, match="strata have null values"):
        lo.Cox("Surv(stop, status) ~ age + strata(site)", data.assign(site=["a", None, "b"]))


def test_refits_that_learned_anew_are_not_iterated_on_the_columns_of_all_rows(monkeypatch):
    data = table()
    fit = lo.fit(lo.GLM("count ~ bs(age, df=6)", data, "squared"))
    where = "leaveout.validation.cross_validate.EstimateBuilder.sharpen"
    monkeypatch.setattr(where, lambda self, estimate: pytest.fail("they were"))
    lo.cross_validate(fit, 5, evaluate="squared_error")


def test_missing_values_are_filled_inside_the_folds():
    data = table().reset_index(drop=True)
    data.loc[::7, "age"] = np.nan
    plan, fit = (
        lo.from_splits(SPLITS, 80),
        lo.fit(lo.GLM("count ~ impute(age) + x", data, "squared")),
    )
    cv, truth = lo.cross_validate(fit, plan, strategy=lo.Exact()), np.zeros(80)
    for seen, held in SPLITS:
        filled = data.fillna({"age": data.age.iloc[seen].median()})
        again = lo.fit(lo.GLM("count ~ age + x", filled.iloc[seen], "squared"))
        truth[held] = (data["count"].iloc[held] - lo.predict(again, filled.iloc[held])) ** 2 / 2
    np.testing.assert_allclose(cv.per_unit(), truth, rtol=1e-8)
    assert "impute(...) learned anew from the rows of each refit" in str(cv)
    whole = lo.fit(lo.GLM("count ~ age + x", data.fillna({"age": data.age.median()}), "squared"))
    np.testing.assert_allclose(whole.parameters["coef"], fit.parameters["coef"])


def test_new_levels_and_missing_values_of_new_rows_are_refused():
    """formulaic takes a level that it has not seen for the first, with a warning."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=40), "sex": ["f", "m"] * 20})
    table["y"] = table["x"] + (table["sex"] == "m") + rng.normal(size=40)
    fit = lo.fit(lo.GLM("y ~ x + sex", table, "squared"))
    estimate = lo.cross_validate(fit, lo.kfold(k=5))
    new = pd.DataFrame({"x": [0.0, 1.0], "sex": ["f", "other"]})
    for use in (fit.predict, lambda rows: lo.predict(fit, rows), estimate.target):
        with pytest.raises(ValueError, match=r"formula 'y ~ x .*categories outside .*'other'"):
            use(new)
        with pytest.raises(ValueError, match=r"formula 'y ~ x .*`sex` is not present"):
            use(new[["x"]])
        with pytest.raises(ValueError, match=r"`sex` contains null .*data.dropna"):
            use(new.assign(sex=[None, "m"]))
