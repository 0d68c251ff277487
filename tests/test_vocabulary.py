"""One word for one thing, on every public signature (CONTRIBUTING, *Words of calls*)."""

import inspect

import pandas as pd
import pytest

import leaveout as lo
from leaveout import RESULTS

# what calls return, and what only the library makes
RECORDS = {
    *("Estimate", "Fit", "Influence", "Linkage", "Path", "PerTarget", "Plan", "Smoothing", "Trial"),
    *("BlockBootstrap", "Curve", "LeakageReport", "LeakageResult", "SlopeTest", "Tuning"),
}
NAMESPACES = ("bayes", "clinical", "diagnostics", "leakage", "plot", "survey", "terms", "tuning")
# parameters that no call takes, with the word that stands in their place
OTHERS = {
    "B": "num_resamples",
    "cov_type": "kind",
    "found": "estimate",
    "n_splits": "k",
    "n_repeats": "num_repeats",
    "repeats": "num_repeats",
    "random_state": "rng",
    "seed": "rng",
    "alpha_level": "level",
    "confidence": "level",
}
# whole numbers that are no counts: sizes, orders, limits and numbers of a thing
NO_COUNTS = {
    *("k", "size", "start", "horizon", "window", "step", "buffer", "radius", "order", "n"),
    *("audit", "embargo", "hidden", "maxlags", "n_jobs", "quadrature", "skip", "which", "channel"),
    *("levels", "top", "train_size", "pool_train", "pool_test", "pre_dispatch", "verbose"),
}


def public_calls():
    """Public functions, and classes that users make, with their signatures by dotted names."""
    calls = {}
    for namespace in ("", *NAMESPACES):
        module = getattr(lo, namespace) if namespace else lo
        for name in module.__all__:
            value = getattr(module, name)
            if value is RESULTS or not callable(value) or inspect.ismodule(value):
                continue
            if inspect.isclass(value) and (issubclass(value, pd.DataFrame) or name in RECORDS):
                continue
            calls[f"{namespace}.{name}".lstrip(".")] = inspect.signature(value)
    return calls


CALLS = public_calls()


@pytest.mark.parametrize("name", CALLS)
def test_no_other_word(name):
    for word, ours in OTHERS.items():
        assert word not in CALLS[name].parameters, f"{name}: {word} is {ours}"
    for word in ("cv", "n_jobs", "scoring"):  # scikit-learn's, where its own calls are imitated
        assert word not in CALLS[name].parameters or name.startswith("leakage"), name


@pytest.mark.parametrize("name", [name for name in CALLS if "rng" in CALLS[name].parameters])
def test_random_numbers_are_repeated(name):
    parameter = CALLS[name].parameters["rng"]
    assert parameter.kind is parameter.KEYWORD_ONLY
    assert parameter.default == 0


@pytest.mark.parametrize("name", [name for name in CALLS if "strategy" in CALLS[name].parameters])
def test_a_strategy_is_named_and_has_one_default(name):
    parameter = CALLS[name].parameters["strategy"]
    assert parameter.kind is parameter.KEYWORD_ONLY
    assert parameter.default is None


@pytest.mark.parametrize("name", CALLS)
def test_the_fit_stands_first_and_the_plan_second(name):
    parameters = CALLS[name].parameters
    by_position = [
        word
        for word, parameter in parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if "fit" in parameters:
        assert by_position[0] == "fit"
        assert "plan" not in by_position or by_position[1] == "plan", name


@pytest.mark.parametrize("name", CALLS)
def test_counts_say_so(name):
    for word, parameter in CALLS[name].parameters.items():
        default = parameter.default
        is_count = type(default) is int or str(parameter.annotation) in ("int", "int | None")
        if is_count and word not in NO_COUNTS | {"rng"}:
            assert word.startswith(("num_", "max_", "min_")), f"{name}: {word}"


def test_the_root_is_a_table_of_contents():
    assert len(dir(lo)) <= 80


def test_a_fit_has_answers_alone():
    """What refits need of it stands in `fit.quadratic`."""
    fit = lo.fit(lo.GLM([[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 2.0, 4.0], "squared"))
    answers = {"coef", "covariance", "parameters", "predict", "rank", "summary", "to_markdown"}
    facts = {"decrement", "gradient", "hessian", "num_params", "objective", "result", "solve"}
    origin = {"host_errors", "minima", "quadratic", "theta", "value", "vector"}
    assert {name for name in dir(fit) if name[0] != "_"} == answers | facts | origin
