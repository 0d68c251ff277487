"""Bad input never gives a number silently."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from tests.helpers import fitted, glm

rng = np.random.default_rng(0)
X = rng.standard_normal((40, 3))
Y = (rng.random(40) < 0.5).astype(float)


def broken(value, where=(3, 1)):
    bad = X.copy()
    bad[where] = value
    return bad


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.GLM(broken(np.nan), Y, "logistic"),
            ValueError,
            r"1 NaN or infinite values, in columns \[1\]",
        ),
        (lambda: lo.GLM(broken(np.inf), Y, "logistic"), ValueError, "NaN or infinite"),
        (lambda: lo.GLM(X, np.r_[np.nan, Y[1:]], "logistic"), ValueError, "y holds 1 NaN"),
        (
            lambda: lo.GLM(X, Y, "logistic", sample_weight=np.r_[np.inf, Y[1:]]),
            ValueError,
            "sample_weight holds 1",
        ),
        (
            lambda: lo.GLM(X, Y, "logistic", sample_weight=-np.ones(40)),
            ValueError,
            "must not be negative",
        ),
        (lambda: lo.GLM(X, Y[:-1], "logistic"), ValueError, "one value for each of the 40 rows"),
        (
            lambda: lo.GLM(X, Y, "logistic", offset=np.ones(3)),
            ValueError,
            "offset must have one value",
        ),
        (lambda: lo.GLM(X[:, 0], Y, "logistic"), ValueError, "reshape"),
        (lambda: lo.GLM(X, Y + 1, "logistic"), ValueError, r"logistic loss needs y in \[0, 1\]"),
        (lambda: lo.GLM(X, -Y, "poisson"), ValueError, "Poisson loss needs y not negative"),
        (lambda: lo.GLM(X, Y, "gamma"), ValueError, "gamma loss needs y positive"),
        (lambda: lo.GLM(X, np.zeros(40), "multinomial"), ValueError, "one class only"),
        (lambda: lo.GLM(X, Y, "logits"), ValueError, "no loss is called 'logits'; choose one of"),
        (lambda: lo.GLM(X, Y, 3), TypeError, "loss must be a name"),
        (lambda: lo.GLM(X, Y, "logistic", 0.5), TypeError, "penalty must be None"),
        (
            lambda: lo.GLM(X, Y, "logistic", lo.penalties.Quadratic(np.eye(5))),
            ValueError,
            "3 coefficients",
        ),
        (
            lambda: (
                lo.GLM(X.astype(str), Y, "squared").num_units
                and lo.GLM([["a"], ["b"]], [0, 1], "squared")
            ),
            TypeError,
            "Encode",
        ),
        (
            lambda: lo.GLM(pd.DataFrame(X, columns=list("aab")), Y, "logistic"),
            ValueError,
            "duplicate column names",
        ),
        (lambda: lo.penalties.Ridge(-1.0), ValueError, "not negative"),
        (lambda: lo.penalties.Quadratic([[1.0, 2.0], [0.0, 1.0]]), ValueError, "symmetric"),
        (
            lambda: lo.penalties.Ridge(1.0) + lo.penalties.per_weight(lo.penalties.Ridge(1.0)),
            TypeError,
            "around the whole sum",
        ),
        (lambda: lo.losses.Huber(0.0), ValueError, "positive"),
        (lambda: lo.losses.Binomial("arctan"), ValueError, "link must be"),
        (lambda: lo.fit(X), TypeError, "must be an objective"),
        (lambda: lo.cross_validate(Y, lo.leave_one_out(40)), TypeError, "must be a Fit"),
        (
            lambda: lo.cross_validate(fitted("logistic"), lo.leave_one_out(7)),
            ValueError,
            "plan is for 7 units, but the fit has 60",
        ),
        (
            lambda: lo.cross_validate(fitted("logistic"), np.arange(60)),
            TypeError,
            "must be a Plan|a Plan, such as",
        ),
        (
            lambda: lo.cross_validate(fitted("logistic"), lo.leave_one_out(60), strategy="exact"),
            TypeError,
            "strategy must be one",
        ),
        (
            lambda: lo.cross_predict(fitted("logistic"), lo.leave_one_out(60), kind="odds"),
            ValueError,
            "'response', 'link'",
        ),
        (
            lambda: lo.cross_predict(fitted("separable"), lo.leave_one_out(40)),
            NotImplementedError,
            "has none",
        ),
        (
            lambda: lo.cross_validate(fitted("logistic"), lo.leave_one_out(60), metric="gini"),
            ValueError,
            "metric must be among",
        ),
        (lambda: lo.InfinitesimalJackknife(3), ValueError, "1 or 2"),
        (lambda: lo.Exact(tol=2.0), ValueError, "between 0 and 1"),
        (lambda: lo.Certified(rtol=0.0), ValueError, "between 0 and 1"),
        (lambda: lo.Objective(3, 10), TypeError, "function of"),
        (lambda: lo.fit(lo.Objective(lambda t, w: jnp.sum(w * t**2), 10)), ValueError, "theta0="),
        (
            lambda: lo.fit(glm("logistic"), {"coef": np.zeros(5)}),
            ValueError,
            "coef must have shape",
        ),
        (
            lambda: lo.fit(glm("logistic"), {"slope": np.zeros(3)}),
            ValueError,
            "'intercept', 'coef'",
        ),
        (
            lambda: lo.compare({"one": lo.cross_validate(fitted("logistic"), lo.kfold(60, 3))}),
            ValueError,
            "two or more",
        ),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_integers_and_booleans_are_converted_not_truncated():
    whole = np.round(3 * X).astype(int)
    a = lo.fit(lo.GLM(whole, Y.astype(bool), "logistic", lo.penalties.Ridge(1))).parameters
    b = lo.fit(lo.GLM(whole.astype(float), Y, "logistic", lo.penalties.Ridge(1.0))).parameters
    np.testing.assert_array_equal(a["coef"], b["coef"])
    lo.fit(lo.GLM(X > 0, Y, "logistic", lo.penalties.Ridge(1.0)))
    with pytest.warns(UserWarning, match="decrement"):  # whole-number parameters too
        assert (
            lo.anchor(
                glm("squared"), {"coef": np.zeros(3, int), "intercept": 0}, throw=False
            ).theta.dtype
            == np.float64
        )


def test_nearly_collinear_columns_are_refused():
    near = pd.DataFrame(
        np.c_[X, 2 * X[:, 0] - X[:, 1] + 1e-8 * X[:, 0] * X[:, 1]], columns=list("abcd")
    )
    with pytest.raises(
        lo.validation.IndefiniteHessianError,
        match=r"not positive definite.*Drop a column, add a penalty",
    ):
        lo.fit(lo.GLM(near, Y, "logistic"))


def test_columns_that_are_constant_but_for_a_little_are_centred():
    near, part = np.ones(40) + 1e-8 * X[:, 0] * X[:, 1], lo.leave_one_out(40)
    fits = [lo.fit(lo.GLM(np.c_[X, column], Y, "logistic")) for column in (near, 1e8 * (near - 1))]
    one, other = (lo.cross_validate(fit, part) for fit in fits)
    assert one.proved.all() and (np.abs(one.losses - other.losses) <= one.error + other.error).all()
    np.testing.assert_allclose(
        fits[0].parameters["coef"], fits[1].parameters["coef"] * [1, 1, 1, 1e8], rtol=1e-6
    )


@pytest.mark.parametrize("column", [np.ones(40), 2 * X[:, 0] - X[:, 1]])
def test_constant_and_collinear_columns(column):
    once, twice = (lo.fit(lo.GLM(design, Y, "logistic")) for design in (X, np.c_[X, column]))
    assert "of rank 4" in repr(twice) and twice.value == pytest.approx(float(once.value))
    assert lo.fit(lo.GLM(np.c_[X, column], Y, "logistic", lo.penalties.Ridge(0.1))).decrement < 1e-6


def test_perfect_separation():
    with pytest.raises((RuntimeError, lo.validation.IndefiniteHessianError), match="separated"):
        lo.fit(lo.GLM(X, (X[:, 0] > 0).astype(float), "logistic"))


def test_an_anchor_far_from_stationary():
    objective = glm("logistic", lo.penalties.Ridge(0.5))
    theta = lo.fit(objective).parameters
    near = {"coef": theta["coef"] + 0.02, "intercept": theta["intercept"]}
    with pytest.warns(UserWarning, match="decrement"):
        lo.anchor(objective, near)
    far = {"coef": theta["coef"] + 2, "intercept": theta["intercept"]}
    with pytest.raises(ValueError, match=r"decrement.*throw=False"):
        lo.anchor(objective, far)
    with pytest.warns(UserWarning):
        assert lo.anchor(objective, far, throw=False).decrement > 1


def test_a_row_that_alone_determines_a_coefficient_has_no_loss():
    lone = np.c_[X, np.eye(40)[:, 5]]
    fit = lo.fit(lo.GLM(lone, rng.poisson(3.0, 40) + 1.0, "poisson"))
    for refit in (lo.Certified(), lo.NewtonStep(), lo.Exact()):
        cv = lo.cross_validate(fit, lo.leave_one_out(40), strategy=refit)
        assert (
            np.isnan(cv.losses[5]) and cv.result[5] == lo.RESULTS.undetermined and 5 in cv.flagged()
        )
        assert np.isfinite(np.delete(cv.losses, 5)).all() and np.isfinite(cv.mean)
        assert "leverage 1" in str(cv) and "do not exist" in str(cv)
    lone_group = lo.groups(np.r_[np.zeros(10), np.ones(30)])  # by a factor, not by Woodbury
    assert (
        lo.cross_validate(fit, lone_group, strategy=lo.Exact()).result[0] == lo.RESULTS.undetermined
    )


@pytest.mark.slow
def test_a_fold_that_removes_a_class_or_a_group():
    y = np.r_[np.ones(6), np.zeros(34)]
    labels = np.r_[np.zeros(6), 1 + np.arange(34) % 3]
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    for refit in (lo.Certified(), lo.Exact()):
        cv = lo.cross_validate(fit, lo.groups(labels), strategy=refit)
        assert (
            cv.result[0] == lo.RESULTS.not_converged
            and 0 in cv.flagged()
            and np.isnan(cv.losses[cv.plan.held][:6]).all()
        )
        assert "without a class, a group" in str(cv)
    three = lo.fit(lo.GLM(X, labels.clip(0, 2), "multinomial", lo.penalties.Ridge(1.0)))
    assert (
        lo.cross_validate(three, lo.groups(labels), strategy=lo.Exact()).result[0]
        == lo.RESULTS.not_converged
    )


def test_a_step_across_a_kink_is_flagged():
    def hinge_squared(eta, y):  # ℓ″ jumps at η = 0
        return 0.5 * (y - eta) ** 2 + jnp.where(eta > 0, eta**2, 0.0)

    fit = lo.fit(
        lo.GLM(X, X[:, 0] + rng.standard_normal(40), hinge_squared),
        {"coef": np.zeros(3), "intercept": 0.1},
    )
    plan = lo.leave_one_out(40)
    eta = np.c_[X, np.ones(40)] @ np.r_[fit.parameters["coef"], fit.parameters["intercept"]]
    theta = lo.fold_parameters(fit, plan, strategy=lo.NewtonStep())
    moved = np.einsum("np,kp->kn", X, theta["coef"]) + theta["intercept"][:, None]
    crossed = np.flatnonzero(((moved > 0) != (eta > 0)).any(1))
    cv = lo.cross_validate(fit, plan, strategy=lo.NewtonStep())
    assert len(crossed) and set(np.flatnonzero(cv.result == lo.RESULTS.kink)) == set(crossed)
    assert (
        np.abs(
            lo.cross_validate(fit, plan).losses
            - lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10)).losses
        ).max()
        < 1e-6
    )


def test_a_smooth_function_of_the_users_own_is_not_flagged():
    mine = lambda eta, y: jnp.logaddexp(0.0, eta) - y * eta
    own = lo.fit(lo.GLM(X, Y, mine, lo.penalties.Ridge(1.0)))
    ours = lo.fit(lo.GLM(X, Y, "logistic", lo.penalties.Ridge(1.0)))
    a, b = (lo.cross_validate(f, lo.leave_one_out(40)) for f in (own, ours))
    assert (np.abs(a.losses - b.losses) <= a.error + b.error).all()
    assert not len(a.flagged()) and not a.proved.any() and b.proved.all()


def test_missing_data_of_a_separable_objective():
    with pytest.raises(ValueError, match="NaN or infinite"):
        lo.Separable(lambda t, x: (x - t) ** 2, np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="one length"):
        lo.Separable(lambda t, x: (x[0] - t) ** 2, (np.ones(3), np.ones(4)))


def test_a_loss_that_nothing_moves_has_no_error():
    """As where a fold scores nothing, however far its refit may be."""
    x = np.random.default_rng(0).standard_normal(40)
    objective = lo.Separable(lambda t, x: jnp.log1p((x - t) ** 2), x, theta0=np.zeros(()))
    plan = lo.kfold(40, 5)
    plan = dataclasses.replace(plan, held=plan.held & (plan.refit != 2))
    for refit in (lo.Certified(), lo.NewtonStep(), lo.Exact()):
        cv = lo.cross_validate(lo.fit(objective), plan, strategy=refit)
        assert cv.error[2] == 0.0 and (cv.error[[0, 1, 3, 4]] > 0).all(), refit


def test_a_saddle_is_refused():
    objective = lo.Objective(lambda t, w: jnp.sum(w) * (t["a"] ** 2 - t["b"] ** 2), 10)
    with pytest.raises(lo.validation.IndefiniteHessianError, match="smallest eigenvalue"):
        lo.anchor(objective, {"a": np.zeros(()), "b": np.zeros(())})


DAYS = pd.date_range("2024-01-01", periods=40)
MASKED = np.ma.masked_array(Y, np.arange(40) == 3)
DIGITS = pd.Categorical(Y.astype(int).astype(str))
NOT_NUMBERS = {
    "dates": (DAYS, r"datetime.*set one as the index"),
    "spans": (DAYS - DAYS[0], r"timedelta.*count the time in a unit"),
    "complex": (Y + 1j, r"complex.*Take the real part"),
    "text": (np.where(Y > 0, "yes", "no"), r"string.*Encode"),
    "digits that are text": (Y.astype(int).astype(str), r"string.*astype\(float\)"),
    "categories of text": (pd.Series(DIGITS), r"categor.*Encode"),
    "categories of numbers": (pd.Categorical(Y.astype(int)), r"categor.*Encode.*astype\(float\)"),
    "objects": (np.array([*Y[1:], "many"], object), r"mixed.*Encode"),
}
PLACES = {
    "X": lambda value: lo.GLM(pd.DataFrame({"a": X[:, 0], "b": value}), Y, "logistic"),
    "y": lambda value: lo.GLM(X, value, "squared"),
    "sample_weight": lambda value: lo.GLM(X, Y, "logistic", sample_weight=value),
    "offset": lambda value: lo.Regression(X, Y, "negative_binomial", offset=value),
    "time": lambda value: lo.Cox(X, value, Y),
    "x": lambda value: lo.HMM(value, lo.emissions.Poisson(), 2),
    "exposure": lambda value: lo.emissions.Poisson(exposure=value),
    "covariates": lambda value: lo.emissions.NegativeBinomial(covariates=value),
    "scores": lambda value: lo.CRF(
        Y.astype(int), [40], scores=pd.DataFrame({0: Y, 1: value}), drop="label"
    ),
    "data": lambda value: lo.Separable(lambda theta, row: (row - theta) ** 2, value),
}


@pytest.mark.parametrize("what", NOT_NUMBERS)
@pytest.mark.parametrize("name", PLACES)
def test_what_holds_no_numbers_is_refused(name, what):
    value, message = NOT_NUMBERS[what]
    with pytest.raises(
        TypeError, match=rf"{name} must hold numbers; these columns do not: .*{message}"
    ):
        PLACES[name](value)


def test_what_is_masked_is_missing():
    with pytest.raises(ValueError, match="y holds 1 NaN"):
        lo.GLM(X, MASKED, "logistic")
    with pytest.raises(ValueError, match="sample_weight holds 1 NaN"):
        lo.GLM(X, Y, "logistic", sample_weight=MASKED)
    with pytest.raises(ValueError, match="X holds 1 NaN"):
        lo.GLM(np.ma.masked_array(X, np.arange(120).reshape(40, 3) == 7), Y, "logistic")
    with pytest.raises(ValueError, match="NaN or infinite"):
        lo.Separable(lambda theta, x: (x - theta) ** 2, MASKED)
    for labels in (
        MASKED,
        np.array(["a", None] * 20, object),
        pd.Series([1, pd.NA] * 20, dtype="Int64"),
        DAYS.where(Y > 0),
    ):
        with pytest.raises(
            ValueError,
            match=r"labels holds \d+ missing labels \(NaN, None or masked\), the first at place",
        ):
            lo.groups(labels)
    with pytest.raises(ValueError, match="y holds 1 missing labels"):
        lo.GLM(X, np.array(["a", "b", None, "a"] + ["b"] * 36, object), "multinomial")


def test_what_holds_numbers_is_converted_as_hosts_do():
    whole = pd.array(Y.astype(int), dtype="Int64")
    for same in (
        pd.Categorical(Y).astype(float),
        whole,
        list(Y),
        Y.astype(object),
        Y.astype(np.float32),
        Y > 0,
    ):
        np.testing.assert_array_equal(lo.GLM(X, same, "logistic").y, Y)
    labels = lo.GLM(X, DIGITS, "multinomial")
    assert labels.classes == ("0", "1") and lo.groups(DIGITS).num_refits == 2
    mixed = np.array([1, "1"] * 20, object)  # a number and a text are two labels
    assert lo.groups(mixed).num_refits == 2 and lo.groups(DAYS).num_refits == 40


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.Plan([0, 1], [1.5], [0.0], [True], 4),
            TypeError,
            r"Plan: index must be whole numbers; got .* in it 1\.5",
        ),
        (lambda: lo.Plan([0, 0.5], [1], [0.0], [True], 4), TypeError, "Plan: indptr must be whole"),
        (
            lambda: lo.Plan([0, 1], [1], [1.5], [True], 4),
            ValueError,
            "refit 0 scores unit 1, which has weight 1.5",
        ),
        (
            lambda: lo.Plan([0, 1], [1], [0j], [True], 4),
            TypeError,
            "Plan: weight must hold numbers",
        ),
        (
            lambda: lo.Plan([0, 1], [1], [0.0], [0.3], 4),
            TypeError,
            "Plan: held must be true or false",
        ),
        (
            lambda: lo.Plan([0, 1], [1], [0.0], [True], 4.5),
            ValueError,
            "num_units must be a whole number",
        ),
        (
            lambda: lo.Plan([0, 1], [1], [0.0], [True], 4, clusters=np.zeros(3)),
            ValueError,
            "clusters must be one label a unit",
        ),
        (lambda: lo.leave_one_out("ten"), ValueError, "must be a whole number"),
        (
            lambda: lo.from_splits([([0.5, 1.0], [2])], 3),
            TypeError,
            "the sets of split 0 must be whole numbers",
        ),
        (
            lambda: lo.from_splits([(Y > 0, Y == 0)], 39),
            ValueError,
            "truths must be one a unit, 39",
        ),
    ],
)
def test_plans_are_checked(make, error, message):
    with pytest.raises(error, match=message):
        make()


ODD = (None, float("nan"), "all", [], {}, object(), -1)


def arguments():
    """Of verbs and results: what is called, by one argument, and what of the odd ones it takes."""
    fit, plan = fitted("logistic"), lo.kfold(60, 4)
    cv = lo.cross_validate(fit, plan)
    found, verb = lo.influence(cv), lambda **given: lo.cross_validate(fit, plan, **given)
    edges = np.array([[k, k + 1] for k in range(9)])
    return {
        "cross_validate: audit": (lambda bad: verb(audit=bad), ()),
        "cross_validate: evaluate": (lambda bad: verb(evaluate=bad), (None,)),
        "cross_validate: metric": (lambda bad: verb(metric=bad), (None, [], {})),
        "path: audit": (lambda bad: lo.path(fit.objective, [1.0], plan, audit=bad), ()),
        "compare: ": (lambda bad: lo.compare(bad), ()),
        "compare: give": (lambda bad: lo.compare({"a": cv, "b": bad}), ()),
        "interval: level": (lambda bad: cv.interval(bad), ()),
        "flagged: threshold": (lambda bad: cv.flagged(bad), ()),
        "checks: ": (lambda bad: cv.checks(mute=bad), ([], {})),
        "report: path": (lambda bad: cv.report(bad), ("all",)),
        "leverage: ": (lo.diagnostics.leverage, ()),
        "studentized_residuals: ": (lo.diagnostics.studentized_residuals, ()),
        "top: num_rows": (lambda bad: found.top(bad), ()),
        "Influence: by": (lambda bad: found.column(bad), ()),
        "fit: num_starts": (lambda bad: lo.fit(fit.objective, num_starts=bad), (None,)),
        "fit: rng": (lambda bad: lo.fit(fit.objective, rng=bad), (None, [])),
        "GLM: parameters": (lambda bad: lo.anchor(fit.objective, bad), ()),
        "kfold: rng": (lambda bad: lo.kfold(60, 4, rng=bad), (None, [])),
        "contiguous: fraction": (lambda bad: lo.contiguous(60, bad, 3), ()),
        "contiguous: num_folds": (lambda bad: lo.contiguous(60, 0.1, bad), ()),
        "blocks: size": (lambda bad: lo.blocks(60, bad), ()),
        "bootstrap: num_resamples": (lambda bad: lo.bootstrap(60, bad), ()),
        "from_splits: ": (lambda bad: lo.from_splits(bad, 60), ("all",)),
        "neighbourhoods: num_sites": (
            lambda bad: lo.neighbourhoods(edges, 1, num_sites=bad),
            (None,),
        ),
        "Exact: tol": (lambda bad: lo.Exact(bad), ()),
        "Certified: rtol": (lambda bad: lo.Certified(bad), ()),
        "Gamma: shape": (lambda bad: lo.losses.Gamma(bad), ()),
        "Ridge: alpha": (lambda bad: lo.penalties.Ridge(bad), ([],)),
    }


def test_odd_arguments_are_refused_by_the_name_of_the_call():
    """What was called, what came; no message of Python's own."""
    for name, (call, taken) in arguments().items():
        for bad in ODD:
            if any(bad is each or bad == each for each in taken):
                continue
            with pytest.raises((ValueError, TypeError)) as raised:
                call(bad)
            assert str(raised.value).startswith(name), (name, bad, raised.value)


def test_measures_are_refused_before_anything_is_refitted(monkeypatch):
    monkeypatch.setattr(
        "leaveout.validation.cross_validate.over_refits",
        lambda *_, **options: pytest.fail("refitted"),
    )
    fit, plan = fitted("logistic"), lo.kfold(60, 4)
    for wrong in (
        dict(metric="r3"),
        dict(metric=["mse", "gini"]),
        dict(audit=-1),
        dict(evaluate="rmse"),
    ):
        with pytest.raises(ValueError, match="cross_validate: "):
            lo.cross_validate(fit, plan, **wrong)
    with pytest.raises(ValueError, match="metric='auc' needs a response of classes"):
        lo.cross_validate(fitted("ridge"), lo.kfold(60, 4), metric="auc")


def numpy_call(*given):
    return np.exp(given[-1] * given[0])


def branch(*given):
    return given[0] ** 2 if (given[0] * given[-1]).sum() > 0 else given[0]


def by_math(*given):
    import math

    return math.exp(given[0].sum())


@pytest.mark.parametrize("function", [numpy_call, branch, by_math])
@pytest.mark.parametrize(
    "what, make",
    [
        ("Separable: unit_loss", lambda f: lo.Separable(f, X[:, 0], theta0=np.ones(()))),
        (
            "Separable: penalty",
            lambda f: lo.Separable(lambda t, x: (x - t) ** 2, X[:, 0], f, theta0=np.ones(())),
        ),
        ("Objective: loss", lambda f: lo.Objective(f, 40)),
        ("GLM: loss", lambda f: lo.GLM(X, Y, f)),
        ("penalty", lambda f: lo.GLM(X, Y, "logistic", f)),
    ],
)
def test_functions_that_are_no_jax(what, make, function):
    objective = make(function)
    start = np.ones(()) if what == "Objective: loss" else None
    with pytest.raises(
        TypeError,
        match=rf"{what}, '{function.__name__}', must be written in JAX \(line \d+ of .*jnp\.where",
    ):
        lo.fit(objective, start)


def test_an_emission_that_is_no_jax():
    class Mine(lo.emissions.Poisson):
        def log_densities(self, parameters, data):
            return lo.emissions.AbstractEmission.log_densities(self, parameters, data)

        def log_density(self, parameters, datum):
            return np.log(parameters["rate"])

    with pytest.raises(TypeError, match=r"Mine.log_density, 'log_density', must be written in JAX"):
        lo.fit(lo.HMM(np.arange(12) % 5, Mine(), 2))


@pytest.mark.parametrize(
    "penalty", [lo.penalties.Zero(), lo.penalties.Ridge(1.0), lo.penalties.Lasso(1.0)]
)
@pytest.mark.parametrize("loss", ["squared", pytest.param("logistic", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:overflow")
def test_columns_that_are_as_good_as_the_intercept_are_centred_or_named(loss, penalty):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = X[:, 0] + rng.standard_normal(60)
    y = (y > 0).astype(float) if loss == "logistic" else y
    X[:, 1] += 1e8
    X[:, 2] += 1e2
    centred = lo.fit(lo.GLM(X - X.mean(axis=0), y, loss, penalty))
    if isinstance(penalty, lo.penalties.Lasso):
        with pytest.raises(
            (ValueError, RuntimeError),
            match=r"Of x1 the mean is so large .* the intercept: centre them",
        ):
            lo.fit(lo.GLM(X, y, loss, penalty))
        return
    fits = lo.fit(lo.GLM(X, y, loss, penalty)), centred
    found, exact = (lo.cross_validate(fit, lo.leave_one_out(60)) for fit in fits)
    assert (
        found.proved.all()
        and (np.abs(found.losses - exact.losses) <= found.error + exact.error).all()
    )
    np.testing.assert_allclose(fits[0].parameters["coef"], centred.parameters["coef"], rtol=1e-6)


@pytest.mark.parametrize("alpha", [[2.0], np.array([2.0]), np.float64(2.0), np.array(2)])
def test_one_number_however_it_is_wrapped(alpha):
    X, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20.0)
    for kind in (lo.penalties.Ridge, lo.penalties.Lasso):
        known, found = (
            lo.fit(lo.GLM(X, y, "squared", kind(each))).parameters["coef"] for each in (2.0, alpha)
        )
        np.testing.assert_array_equal(found, known)


@pytest.mark.parametrize(
    "dependence, message",
    [("unknown", "is not known.*dependence='independent'"), ("serial", "depend on one another: ")],
)
def test_copies_of_units_that_may_depend_on_one_another_are_refused(dependence, message):
    F = lambda theta, w: jnp.sum(w * (theta - jnp.arange(6.0)) ** 2)
    fit = lambda dependence: lo.fit(lo.Objective(F, 6, dependence=dependence), jnp.zeros(()))
    with pytest.raises(ValueError, match=message):
        lo.cross_validate(fit(dependence), lo.bootstrap(6, 3))
    assert (
        lo.cross_validate(
            fit("independent"), lo.bootstrap(6, 3), strategy=lo.Exact()
        ).plan.num_refits
        == 3
    )


def test_messages_name_what_their_reader_knows():
    frame = pd.DataFrame(
        {"class": X[:, 0], "x": X[:, 1], "y": Y, "g": np.resize(["a", "b", "c", "d"], len(Y))}
    )
    with pytest.raises(ValueError, match="'class' is a keyword of Python: rename that column"):
        lo.Additive("y ~ s(class)", frame)
    with pytest.raises(ValueError, match="make it with 40, one for each row"):
        lo.cross_validate(lo.fit(lo.GLM(X, Y, "squared")), lo.kfold(39, 3))
    hmm = lo.HMM(X[:, 0], lo.emissions.Gaussian(), 1, lengths=[10, 30], drop="sequence")
    with pytest.raises(ValueError, match="make it with 2, one for each sequence"):
        lo.cross_validate(lo.fit(hmm), lo.kfold(40, 3))
    assert (
        "The formula's scale(...) stays as made of all rows"
        in lo.Mixed("y ~ scale(x) + (1 | g)", frame, "gaussian").note
    )
    assert "The formula's" not in lo.Mixed("y ~ x + (1 | g)", frame, "gaussian").note
