"""Conventions of all public functions: seeds and generators, names of arguments."""

import copy
import inspect
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from docstrings import public

import leaveout as lo
from leaveout._runtime.namespaces import words

X = np.random.default_rng(0).normal(size=(20, 2))
FIT = lo.fit(lo.GLM(X, X[:, 0] ** 2, "squared"))


def test_every_seed_has_its_generator_and_every_strategy_its_name():
    results = "leakage.LeakageResult", "tuning.Tuning"  # they name the seed that was taken
    for name, value in public().items():
        if inspect.isfunction(value) or (
            inspect.isclass(value) and not issubclass(value, Exception)
        ):
            names = inspect.signature(value).parameters
            drawn = "seed" in names and "emissions" not in name and name not in results
            assert not drawn or "rng" in names, name
            assert (
                "AbstractRefit" not in str(names["refit"].annotation) if "refit" in names else True
            ), name


def test_a_generator_draws_a_seed_that_is_named():
    one, two = np.random.default_rng(3), np.random.default_rng(3)
    plans = [lo.kfold(20, 4, rng=one), lo.kfold(20, 4, rng=two), lo.kfold(20, 4, rng=two)]
    seed = int(np.random.default_rng(3).integers(2**31))
    assert all(
        np.array_equal(plan.matrix(), lo.kfold(20, 4, rng=seed).matrix()) for plan in plans[:2]
    )
    assert not np.array_equal(plans[1].matrix(), plans[2].matrix())  # the generator moved on
    assert f"rng={seed}" in repr(plans[0]) and "Generator" not in repr(plans[0])
    assert np.array_equal(
        lo.kfold(20, 4, rng=np.int64(5)).matrix(), lo.kfold(20, 4, rng=5).matrix()
    )


MODELS = {
    "GLM": lambda **words: lo.GLM(X, X[:, 0] > 0, "logistic", **words),
    "Regression": lambda **words: lo.Regression(X, X[:, 0], "gaussian", **words),
    "Cox": lambda **words: lo.Cox(X, np.arange(20.0) + 1, np.ones(20), **words),
    "Mixed": lambda **words: lo.Mixed(X, X[:, 0], groups=np.arange(20) % 5, **words),
    "Additive": lambda **words: lo.Additive(
        "y ~ s(x)", pd.DataFrame({"x": X[:, 0], "y": X[:, 1]}), **words
    ),
    "GaussianProcess": lambda **words: lo.GaussianProcess(X, X[:, 0], **words),
    "HMM": lambda **words: lo.HMM(2, lo.emissions.Gaussian(), X, **words),
    "fit": lambda **words: lo.fit(FIT.objective, **words),
}
WORDS = {
    "C": "Ridge(1 / C)",
    "alpha": "Ridge(alpha)",
    "cv": "cross_validate(fit, 5)",
    "n_jobs": "parallel_config",
}
WORDS |= {
    "fit_intercept": "it is intercept=",
    "max_iter": "at the minimum",
    "link": "link='identity'",
    "scoring": "metric=",
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("model", MODELS)
def test_words_of_other_libraries_get_a_pointer(model, word):
    with pytest.raises(TypeError, match=f"^{model}: it takes no {word}=: ") as error:
        MODELS[model](**{word: 1})
    assert WORDS[word] in str(error.value)


ESTIMATE = lo.cross_validate(FIT, lo.leave_one_out(), audit=0)
CALLS_OF_OTHERS = {
    "interval: it takes no alpha=: it is level=.": lambda: lo.interval(FIT, X, alpha=0.1),
    "covariance: it takes no cluster=: it is groups=.": lambda: lo.covariance(FIT, cluster=1),
    "cross_predict: it takes no method=: it is kind=.": lambda: lo.cross_predict(FIT, 5, method=1),
    "bootstrap: it takes no n_resamples=: it is num_res": lambda: lo.bootstrap(n_resamples=9),
    "cross_validate: it takes no seed=: the plan draws": lambda: lo.cross_validate(FIT, 5, seed=1),
    "kfold: it takes no num_repeat=: it is num_repeats=.": lambda: lo.kfold(k=5, num_repeat=2),
    "blocks: it takes no zz=: there are num_units=, size=": lambda: lo.blocks(zz=1),
    "cross_validate: plan must be given, such as lo.leave": lambda: lo.cross_validate(FIT),
    "GLM: loss must be given, such as 'squared', as in GLM(X, y,": lambda: lo.GLM(X, X[:, 0]),
    "tune: space and plan must be given, as in tune(build, sp": lambda: lo.tune(FIT),
    "where compare(estimates) has 1; estimates have names": lambda: lo.compare(ESTIMATE, ESTIMATE),
    "3 arguments stand by position, where interval(fit, X_new) has 2; name": lambda: lo.interval(
        FIT, X, 0.9
    ),
    "bootstrap: a plan takes no fit": lambda: lo.bootstrap(FIT, 100),
    "groups of a column are lo.groups('site')": lambda: lo.cross_validate(FIT, "site"),
}


@pytest.mark.parametrize("message", CALLS_OF_OTHERS)
def test_calls_of_other_libraries_are_answered_by_ours(message):
    with pytest.raises(TypeError, match=re.escape(message)):
        CALLS_OF_OTHERS[message]()


def test_an_estimator_is_sent_to_where_it_is_taken():
    from sklearn.linear_model import LinearRegression

    for call in (lo.cross_validate, lo.fit):
        with pytest.raises(TypeError, match=r"lo.from_sklearn\(estimator, X, y\)"):
            call(LinearRegression(), X, X[:, 0])


@pytest.mark.parametrize("kind", ["Fit", "Estimate"])
def test_attributes_of_other_libraries_are_answered_by_ours(kind):
    result = {"Fit": FIT, "Estimate": ESTIMATE}[kind]
    for name, answer in words()[kind].items():
        with pytest.raises(AttributeError, match=re.escape(f"'{name}': it is {answer}")):
            getattr(result, name)
        if not answer.startswith("lo."):
            assert hasattr(result, re.match(r"\w+", answer)[0])
    near = {"Fit": ("coeff", "coef"), "Estimate": ("per_units", "per_unit")}[kind]
    with pytest.raises(AttributeError, match=f"'{near[0]}': it is {near[1]}"):
        getattr(result, near[0])
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        result.zzz
    assert copy.copy(result) is not result and not hasattr(result, "_nothing")


def test_none_differs_from_call_to_call():
    plans = [lo.bootstrap(40, 9, rng=None).matrix() for _ in range(2)]
    assert not np.array_equal(*plans)
    assert np.array_equal(lo.bootstrap(40, 9).matrix(), lo.bootstrap(40, 9, rng=0).matrix())


def test_a_seed_and_odd_random_numbers_are_refused():
    with pytest.raises(TypeError, match="kfold: it takes no seed=: it is rng="):
        lo.kfold(k=4, **{"seed": 0})
    with pytest.raises(
        TypeError,
        match=r"InjectedSplits: rng must be a whole number, a NumPy Generator or None; got 'a'",
    ):
        lo.leakage.InjectedSplits(0.1, rng="a")


CALLS = {
    "table": lambda cv: cv.table(),
    "summary": lambda cv: cv.summary(),
    "compare": lambda cv: lo.compare(
        {"one": cv, "two": lo.cross_validate(cv.fit, cv.plan, strategy=lo.NewtonStep())}
    ),
    "interval": lambda cv: lo.interval(cv.fit, LABELLED[:3]),
    "predict": lambda cv: lo.predict(cv.fit, LABELLED[:3]),
    "influence": lambda cv: lo.influence(cv).top(3),
}
LABELLED = pd.DataFrame(X, columns=["a", "b"], index=[f"p{k}" for k in range(20)])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:compare")
def test_tables_are_of_the_chosen_kind(name):
    cv = lo.cross_validate(lo.fit(lo.GLM(LABELLED, X[:, 0] ** 2, "squared")), lo.leave_one_out(20))
    plain = CALLS[name](cv)
    with lo.config(output="polars"):
        found = CALLS[name](cv)
        assert "units" in str(cv)  # what the library itself makes of its tables stays as it was
    assert isinstance(found, pl.DataFrame) and isinstance(CALLS[name](cv), pd.DataFrame | pd.Series)
    labels = (
        [] if isinstance(plain.index, pd.RangeIndex) and not plain.index.name else list(plain.index)
    )
    assert not labels or found[:, 0].to_list() == labels
    numbers = (
        plain.to_frame().select_dtypes("number")
        if isinstance(plain, pd.Series)
        else plain.select_dtypes("number")
    )
    for column in numbers:
        assert np.array_equal(
            found[column].to_numpy(), numbers[column].to_numpy(), equal_nan=True
        ), column


def test_a_kind_stays_until_it_is_changed_and_unknown_ones_are_refused():
    try:
        lo.config(output="polars")
        assert isinstance(lo.covariance(FIT), pl.DataFrame)
    finally:
        lo.config(output="pandas")
    assert isinstance(lo.covariance(FIT), pd.DataFrame)
    with pytest.raises(
        ValueError, match="config: output must be 'pandas', 'polars', 'pyarrow'; got 'dask'"
    ):
        lo.config(output="dask")


def test_the_logger_says_what_is_done_and_nothing_is_printed(caplog, capsys):
    with caplog.at_level("INFO", "leaveout"):
        lo.cross_validate(FIT, lo.leave_one_out(20), strategy=lo.NewtonStep())
    assert [record.getMessage() for record in caplog.records] == ["20 refits by NewtonStep()"]
    assert capsys.readouterr() == ("", "")
