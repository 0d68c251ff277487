"""Every check fires where it should, on data made for it, and is silent where it should not."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

N = 120


def clean(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.standard_normal((n, 3)), columns=["age", "dose", "price index"])
    return X, pd.Series(X.sum(axis=1) + rng.standard_normal(n), name="cost")


def series(share, n=N, seed=0, dates=True):
    """A regression whose noise remembers a share of what it was."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(n)
    for t in range(1, n):
        noise[t] += share * noise[t - 1]
    index = (
        pd.date_range("2001-01-31", periods=n, freq="ME", name="month")
        if dates
        else pd.RangeIndex(n)
    )
    X = pd.DataFrame({"dose": rng.standard_normal(n)}, index=index)
    return X, X["dose"] + noise


def told(X, y, plan=None, loss="squared", penalty=None, **more):
    plan = lo.leave_one_out(len(y)) if plan is None else plan
    return lo.cross_validate(lo.fit(lo.GLM(X, y, loss, penalty)), plan, **more)


def codes(*args, **more):
    return [found.code for found in told(*args, **more).checks()]


def test_clean_data_say_nothing():
    for seed in range(5):
        X, y = clean(seed=seed)
        for plan in (
            lo.leave_one_out(N),
            lo.kfold(N, 5, rng=seed),
            lo.bootstrap(N, 20, rng=seed),
        ):
            assert codes(X, y, plan) == []
    assert "checks          none" in str(told(*clean()))


@pytest.mark.parametrize("size", [3e7, 1.0])
def test_columns_that_a_host_dropped(size):
    from sklearn.linear_model import LinearRegression

    X, y = clean()
    X["time"] = (
        1.7e9 + size * np.random.default_rng(1).random(N) if size > 1 else X["age"] - 2 * X["dose"]
    )
    host = LinearRegression().fit(X, y)
    found = lo.cross_validate(lo.from_sklearn(host, X, y), lo.leave_one_out()).checks()
    if size > 1:
        (check,) = [check for check in found if check.code == "LO108"]
        assert (
            check.severity == "error"
            and "'age', 'dose', 'price index': " in check.reason
            and "tol=1e-06" in check.reason
        )
    else:  # a sum of the others
        assert not found
    exact = LinearRegression(tol=1e-15).fit(X, y)
    assert not lo.cross_validate(lo.from_sklearn(exact, X, y), lo.leave_one_out()).checks()


def test_copies_across_folds():
    X, y = clean()
    twice = np.r_[np.arange(N), np.arange(7)]
    X, y = X.iloc[twice].reset_index(drop=True), y.iloc[twice].reset_index(drop=True)
    (found,) = told(X, y).checks()
    assert (
        found.code == "LO101"
        and found.severity == "warning"
        and found.reason.startswith("14 rows ")
    )
    assert codes(X, y, lo.groups(twice)) == []
    shared = lo.cross_validate(lo.fit(lo.Regression(X, y, "gaussian")), lo.kfold(k=10, rng=1))
    assert [each.code for each in shared.checks()] == ["LO101"]
    offset = np.r_[np.zeros(N), np.ones(7)]  # the same but for an offset
    fit = lo.fit(lo.GLM(X, y, "squared", offset=offset))
    assert lo.cross_validate(fit, lo.leave_one_out()).checks() == []


@pytest.mark.parametrize("again", [1, 5, 12])
def test_every_copy_is_counted_however_products_round(again):
    X, y = lo.datasets.diabetes()
    twice = np.r_[np.arange(442), np.arange(again)]
    found = told(np.asarray(X)[twice], np.asarray(y)[twice]).checks()
    assert [each.reason.split(" rows")[0] for each in found if each.code == "LO101"] == [
        str(2 * again)
    ]


def test_columns_made_of_one_are_equal_together():
    """Powers of an age in years know all of one another: rows of equal age are no copies."""
    rng = np.random.default_rng(0)
    age, sex = rng.integers(20, 80, 400), rng.integers(0, 2, 400)
    X = pd.DataFrame({"age": age, "age2": age**2.0, "age3": age**3.0, "sex": sex})
    assert "LO101" not in codes(X, rng.integers(0, 2, 400), loss="logistic")
    assert "LO101" not in codes(X, rng.poisson(age / 20.0), loss="poisson")
    X["dose"] = rng.standard_normal(400)
    X[:12] = X[12:24].to_numpy()
    assert "LO101" in codes(X, np.r_[np.ones(24), rng.integers(0, 2, 376)], loss="logistic")


def test_rows_of_few_kinds_are_equal_by_chance():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "sex": rng.integers(0, 2, 400),
            "stage": rng.integers(1, 5, 400),
            "age": rng.integers(20, 60, 400),
        }
    )
    assert codes(X, rng.integers(0, 2, 400), loss="logistic") == []


def test_scores_of_few_values_are_equal_by_chance():
    """Nine scores from 1 to 10 of one disease.

    Most of the well have ones, and rows that differ in one score are as common.
    """
    rng = np.random.default_rng(0)
    ill = rng.random(600) < 0.35
    severity = np.where(ill, 5.0, 0.4)[:, None] * rng.gamma(3, 1 / 3, (600, 1))
    X = np.clip(np.floor(1 + severity * rng.gamma(2, 0.5, (600, 9))), 1, 10)
    assert len(np.unique(X, axis=0)) < 550 and min(len(np.unique(column)) for column in X.T) == 10
    assert "LO101" not in codes(X, ill * 1, loss="logistic")
    X[300:330], ill[300:330] = X[:30], ill[:30]
    # with a measurement beside the scores, copies are copies
    X = np.c_[X, rng.standard_normal(600)]
    assert "LO101" not in codes(X, ill * 1, loss="logistic")
    X[300:330] = X[:30]
    assert "LO101" in codes(X, ill * 1, loss="logistic")


def test_ids_among_the_features():
    X, y = clean()
    rng = np.random.default_rng(1)
    for name in ("id", "patient_id", "PatientID", "Unnamed: 0", "index", "id nr"):
        (found,) = told(X.assign(**{name: rng.permutation(N) + 1000}), y).checks()
        assert (
            found.code == "LO102"
            and repr(name) in found.reason
            and f"{N} values of {N} rows" in found.reason
        )
    persons = X.assign(person_id=rng.integers(0, 40, N))
    assert codes(persons, y) == ["LO102"]
    scaled = X.assign(person_id=(persons["person_id"] - 7.3) / 3.1)
    assert codes(scaled, y) == ["LO102"]
    assert (
        codes(X.assign(fluid=rng.permutation(N), humid=np.arange(N) % 30, id_rate=rng.random(N)), y)
        == []
    )
    assert codes(X.assign(state_id=rng.integers(0, 2, N)), y) == []


def test_one_row_carries_the_loss():
    X, y = clean()
    y.iloc[17] = 1e3
    (found,) = told(
        X.set_axis([f"p{k}" for k in range(N)]), y.set_axis([f"p{k}" for k in range(N)])
    ).checks()
    assert found.code == "LO103" and found.reason.startswith("row p17 is ")
    size = np.abs(told(X, y).per_unit())
    assert f"{size.max() / size.sum():.0%}" in found.reason
    small = clean(12)  # of a dozen rows one is often a third
    assert "LO103" not in codes(*small)


def test_columns_that_repeat_one_another():
    X, y = clean()
    fahrenheit = X.assign(celsius=10 * X["age"] + 15)
    fahrenheit["fahrenheit"] = (1.8 * fahrenheit["celsius"] + 32) + 1e-3 * np.random.default_rng(
        2
    ).standard_normal(N)
    found = told(fahrenheit.drop(columns="age"), y).checks()
    assert [each.code for each in found] == ["LO104"] and "'celsius', 'fahrenheit'" in found[
        0
    ].reason
    columns = fahrenheit.drop(columns="age")
    others = np.c_[np.ones(N), columns.drop(columns="celsius")]
    left = columns["celsius"] - others @ np.linalg.lstsq(others, columns["celsius"], rcond=None)[0]
    assert f"{left.var(ddof=0) / columns['celsius'].var(ddof=0):.0e}" in found[0].reason
    powers = pd.DataFrame({f"age^{k}": X["age"] ** k for k in range(1, 5)})
    assert codes(powers, y) == []
    assert codes(X.assign(same=X["age"]), y) == []  # wholly: that the fit says itself


def test_a_class_in_one_fold_only():
    X, _ = clean()
    y = np.where(np.arange(N) == 5, 2, np.arange(N) % 2)
    found = told(X, y, loss="multinomial", penalty=lo.penalties.Ridge(1.0)).checks()
    lacking = next(each for each in found if each.code == "LO105")
    assert "1 refit (5): all rows of class 2 (1 row) are left out" in lacking.reason
    assert codes(X, np.arange(N) % 3, loss="multinomial", penalty=lo.penalties.Ridge(1.0)) == []
    assert "LO105" in codes(
        X, np.arange(N) >= 60, lo.blocks(k=2), loss="logistic", penalty=lo.penalties.Ridge(1.0)
    )


def patients(count, times, share, seed=0):
    """Rows of patients who never change, with a share of the noise that is each one's own."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(count), times)
    columns = {
        "age": rng.integers(20, 80, count),
        "bmi": rng.normal(26, 4, count).round(1),
        "sex": rng.integers(0, 2, count),
    }
    X = pd.DataFrame(columns).iloc[who].reset_index(drop=True)
    noise = share * rng.standard_normal(count)[who] + (1 - share**2) ** 0.5 * rng.standard_normal(
        len(who)
    )
    return X, 0.05 * X["age"] + noise, who


def test_patients_who_never_change():
    X, y, who = patients(150, 4, 0.7)
    for plan in (lo.leave_one_out(600), lo.kfold(600, 10, rng=0)):
        (found,) = told(X, y, plan).checks()
        assert found.code == "LO106" and found.reason.startswith(
            "600 rows have all features of others"
        )
    fit = lo.fit(lo.GLM(X, y, "squared"))
    left = (y - fit.parameters["intercept"] - X @ fit.parameters["coef"]).to_numpy().reshape(150, 4)
    pairs = [(left[:, i], left[:, j]) for i in range(4) for j in range(i)]
    want = sum(a @ b for a, b in pairs) / sum((a @ a + b @ b) / 2 for a, b in pairs)
    assert f"correlate {want:.2f} " in found.reason
    assert codes(X, y, lo.groups(who)) == []
    assert codes(X, y > y.median(), loss="logistic") == ["LO106"]
    for seed in range(5):  # the same patients, who have nothing in common but what the model knows
        assert codes(*patients(150, 4, 0.0, seed)[:2]) == []


@pytest.mark.parametrize(
    "kind",
    [
        "a curve",
        "a wave",
        "an interaction",
        "a parity of a design",
        "points of a design",
        "splines",
    ],
)
def test_equal_rows_that_a_model_is_wrong_about_are_no_patients(kind):
    """Residuals of equal rows are alike where the model misses something.

    So are those of rows that are near.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        age, sex, stage = (
            rng.integers(20, 80, 600),
            rng.integers(0, 2, 600),
            rng.integers(1, 5, 600),
        )
        X = pd.DataFrame({"age": age, "sex": sex, "stage": stage})
        if kind == "a curve":
            mean = 0.01 * (age - 50.0) ** 2
        elif kind == "a wave":
            mean = 3 * np.sin(age / 4)
        elif kind == "an interaction":
            mean = 4.0 * sex * (stage > 2)
        elif kind == "a parity of a design":
            X["dose"], X["age"] = rng.integers(0, 12, 600), rng.integers(0, 2, 600)
            mean = 3.0 * (X["dose"] % 2)
        elif kind == "points of a design":
            X = pd.DataFrame(
                rng.uniform(0, 1, (100, 3))[rng.integers(0, 100, 600)], columns=list("abc")
            )
            mean = 4 * X["a"] * X["b"]
        else:
            X = pd.DataFrame({f"over {k}": np.maximum(age - k, 0.0) for k in range(25, 80, 10)})
            mean = np.exp((age - 50) / 15)
        assert "LO106" not in codes(X, mean + rng.standard_normal(600)), seed


def test_persons_of_the_rand_experiment_come_again():
    """Five years of each, one row a year, whose covariates never change, and nobody's number."""
    statsmodels = pytest.importorskip("statsmodels.api")
    data = statsmodels.datasets.randhie.load_pandas().data
    X = data.drop(columns="mdvis").loc[:, lambda x: x.std() > 0]
    assert "LO106" in codes(
        (X - X.mean()) / X.std(), data["mdvis"], lo.kfold(len(X), 10, rng=0), "poisson", audit=0
    )


def test_rows_in_time_order_under_random_folds():
    X, y = series(0.7)
    for plan in (lo.leave_one_out(N), lo.kfold(N, 10, rng=0), lo.random_subsets(N, 0.1, 20)):
        (found,) = told(X, y, plan).checks()
        assert found.code == "LO201" and "'month'" in found.reason
    fit = lo.fit(lo.GLM(X, y, "squared"))
    left = y.to_numpy() - (
        X["dose"].to_numpy() * fit.parameters["coef"][0] + fit.parameters["intercept"]
    )
    assert f"correlate {left[1:] @ left[:-1] / (left @ left):.2f}," in found.reason
    for plan in (
        lo.blocks(N, 12, buffer=2),
        lo.leave_future_out(N, 60),
        lo.groups(np.arange(N) // 12),
    ):
        assert "LO201" not in codes(X, y, plan)
    shared = lo.cross_validate(lo.fit(lo.Regression(X, y, "gaussian")), lo.kfold(k=10))
    assert [each.code for each in shared.checks()] == ["LO201"] and found.reason == shared.checks()[
        0
    ].reason
    years = X.reset_index(drop=True).assign(year=1900 + np.arange(N) // 2)
    assert codes(years, y.to_numpy()) == ["LO201"]
    assert codes(years.iloc[::-1], y.to_numpy()[::-1]) == ["LO201"]
    shuffled = np.random.default_rng(3).permutation(N)
    assert codes(X.iloc[shuffled], y.iloc[shuffled]) == []
    assert codes(*series(0.7, dates=False)) == []  # nothing says that it is time
    assert sum(codes(*series(0.0, seed=seed)) == ["LO201"] for seed in range(20)) == 0


def test_few_independent_units():
    X, y = clean()
    (found,) = told(X, y, lo.groups(np.arange(N) % 12)).checks()
    assert (found.code, found.severity) == (
        "LO202",
        "info",
    ) and "12 independent units" in found.reason
    assert codes(*clean(99)) == ["LO202"] and codes(*clean(100)) == []


def test_refits_by_their_codes():
    X, y = clean()
    alone = X.assign(only=(np.arange(N) == 7) * 1.0)
    counts = lo.fit(lo.GLM(alone, np.round(np.abs(y)) + 1, "poisson"))
    (found,) = [
        each
        for each in lo.cross_validate(counts, lo.leave_one_out()).checks()
        if each.code == "LO304"
    ]
    assert (found.code, found.severity) == ("LO304", "error") and found.reason.startswith(
        "1 refit (7): "
    )
    message = lo.RESULTS.undetermined.message
    assert f"{found.reason.partition(': ')[2]}; {found.remedy}" == message
    assert codes(X, y, strategy=lo.NoUpdate()) and set(codes(X, y, strategy=lo.NoUpdate())) <= {
        "LO300",
        "LO301",
    }


def test_codes_are_of_results():
    assert {f"LO{300 + code}" for code in lo.RESULTS} == {
        code for code in lo.validation.CHECKS if code.startswith("LO3")
    }
    assert all(remedy for code, (_, remedy) in lo.validation.CHECKS.items() if code != "LO302")
    # of any model: a chain has no classes to separate, and takes a prior
    said = lo.RESULTS.not_converged.message
    assert "separable" not in said and "a state" in said and "a prior" in said


def test_muting():
    X, y = clean(60)
    y.iloc[17] = 1e3
    cv = told(X.assign(id=np.arange(60)), y)
    assert [each.code for each in cv.checks()] == ["LO102", "LO103", "LO202"]  # the gravest first
    assert (
        [each.code for each in cv.checks(mute=("LO103", "LO202"))]
        == ["LO102"]
        == [each.code for each in cv.muted("LO103", "LO202").checks()]
    )
    quiet = cv.muted("LO103").muted("LO102", "LO202", "LO201")
    assert quiet.checks() == [] and quiet.mean == cv.mean
    assert "checks          none" in str(quiet) and "muted           LO102, LO103, LO202" in str(
        quiet
    )
    assert "muted" not in str(cv) and sum("LO10" in line for line in str(cv).splitlines()) == 2
    for wrong in (lambda: cv.checks(mute=("LO999",)), lambda: cv.muted("copies")):
        with pytest.raises(ValueError, match=r"codes are LO101, .*; got '(LO999|copies)'"):
            wrong()
    assert cv.checks(mute="LO102") == cv.checks(mute=["LO102"])


def test_findings_travel_without_the_data():
    X, y = clean(60)
    cv = told(X.assign(id=np.arange(60)), y)
    for other in (pickle.loads(pickle.dumps(cv.without_data())), copy.deepcopy(cv)):
        assert other.checks() == cv.checks() and str(other) == str(cv)
    local = lambda theta, row: (row - theta) ** 2
    fit = lo.fit(lo.Separable(local, np.arange(30.0), theta0=np.zeros(())))
    kept = pickle.loads(pickle.dumps(lo.cross_validate(fit, lo.kfold(k=3))))
    assert kept.plan.num_refits == 3 and kept.fit is None


def test_models_without_columns_are_checked_too():
    fit = lo.fit(lo.HMM(np.random.default_rng(0).poisson(3.0, 150), lo.emissions.Poisson(), 1))
    cv = lo.cross_validate(fit, lo.leave_one_out())
    assert {each.code for each in cv.checks()} <= {"LO202"}
    joint = lo.Objective(lambda theta, w: w @ (np.arange(12.0) - theta) ** 2, 12)
    cv = lo.cross_validate(lo.fit(joint, np.zeros(())), lo.kfold(k=3))
    assert cv.joint and cv.checks() == []


def test_a_plan_and_a_fit_are_shown():
    X, y = clean()
    plan, fit = lo.kfold(N, 5, rng=3), lo.fit(lo.GLM(X, y, "squared"))
    assert f"lo.kfold({N}, 5, rng=3)" in str(plan) and "array" not in repr(plan)
    assert plan.some(np.array([1])).call == ""
    assert "lo.groups(<Series of 120>)" in repr(lo.groups(pd.Series(np.arange(N) % 7)))
    assert "age, dose, price index, intercept" in str(fit) and repr(fit).startswith(
        "Fit(GLM, 120 units, 4 parameters"
    )
    for shown in (plan, fit, lo.cross_validate(fit, plan)):
        assert (
            shown._repr_html_().startswith("<table>")
            and len(shown.to_markdown().splitlines()) == len(shown._lines()) + 2
        )
    wild = lo.fit(lo.GLM(X.rename(columns={"age": "<script>|"}), y, "squared"))
    assert "<script>" not in wild._repr_html_() and "&lt;script&gt;\\|" in wild.to_markdown()
    buffered = lo.blocks(N, 10, buffer=2)
    assert f"{np.mean(np.diff(buffered.indptr)) - 10:.3g} units a refit that are not scored" in str(
        buffered
    )


@pytest.mark.parametrize("code", [lo.RESULTS.missed, lo.RESULTS.uncertified, lo.RESULTS.successful])
def test_exact_is_not_advised_where_it_made_the_refits(code):
    X, y = clean()
    fit = lo.fit(lo.GLM(X, y, "squared"))
    for strategy, advised in ((lo.Certified(), True), (lo.Exact(), False)):
        found = lo.cross_validate(fit, lo.kfold(k=6), strategy=strategy, audit=0)
        result, error = found.result.copy(), found.error.copy()
        result[2], error[2] = code, 10.0
        (check,) = [
            each
            for each in dataclasses.replace(found, result=result, error=error).checks()
            if each.code == f"LO{300 + code}"
        ]
        assert ("use Exact()" in str(check)) == advised and check.remedy
        assert advised or "Exact() made them already" in check.remedy


def test_windows_that_roll_over_a_series_are_said():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 1))
    fit = lo.fit(lo.GLM(X, X[:, 0] + rng.standard_normal(60), "squared"))
    rolling = [(np.arange(s), np.arange(s, s + 5)) for s in range(20, 60, 5)]
    known = lambda plan: {check.code for check in lo.cross_validate(fit, plan).checks()}
    assert "LO203" in known(lo.from_splits(rolling, 60))
    assert "LO203" not in known(lo.from_splits(rolling, 60, times=np.arange(60)))
    assert "LO203" not in known(lo.kfold(60, 6))


def test_the_page_has_every_code():
    """Those of refits are 300 and more, which one row stands for."""
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    listed = re.findall(r"^\| (LO\d+) \|", page, re.MULTILINE)
    assert listed == [code for code in lo.validation.CHECKS if code <= "LO300"]
