"""Results are sent to other processes.

What is printed there, and told in tables, is what was printed here.
"""

import ast
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from leaveout._runtime.results import PrintedResult

N = 60


def results():
    """One of every kind that a verb returns."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((N, 2)), columns=["age", "dose"])
    y = X["age"] + rng.standard_normal(N)
    model = lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0))
    fit, plan = lo.fit(model), lo.kfold(N, 6, rng=0)
    cv, build = (
        lo.cross_validate(fit, plan, metric="mse"),
        lambda a: model.under(lo.penalties.Ridge(a)),
    )
    other = lo.cross_validate(lo.fit(build(50.0)), plan)
    classes = lambda a: lo.GLM(X, y > 0, "logistic", lo.penalties.Ridge(a))
    huber = lo.GLM(X, y, lo.losses.PseudoHuber(0.5))
    return {
        "Fit": fit,
        "Plan": plan,
        "Estimate": cv,
        "Interval": cv.interval(),
        "nested": lo.validation.nested(fit),
        "Comparison": lo.compare({"a": cv, "b": other}),
        "Influence": lo.influence(lo.cross_validate(fit, lo.leave_one_out())),
        "intervals": lo.interval(fit, X.iloc[:4]),
        "covariance": lo.covariance(fit),
        "ridge path": lo.path(model, [0.1, 1.0, 10.0], lo.leave_one_out()),
        "path side by side": lo.path(huber, [0.1, 1.0], lo.leave_one_out()),
        "path one by one": lo.path(model, [0.1, 1.0], plan),
        "Tuning": lo.tune(build, {"a": (0.1, 10.0)}, plan),
        "Tuning by a metric": lo.tune(
            classes, {"a": (0.1, 10.0)}, plan, metric="auc", num_trials=6
        ),
        "checks": cv.checks(),
    }


@pytest.fixture(scope="module")
def made():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return results()


def test_what_they_hold_comes_along(made):
    back = pickle.loads(pickle.dumps(made))
    assert (
        list(back["Comparison"].estimates) == ["a", "b"]
        and back["Comparison"].estimates["a"].mean == made["Estimate"].mean
    )
    for name in ("ridge path", "path side by side", "path one by one"):
        pd.testing.assert_frame_equal(back[name].table(), made[name].table())
        assert back[name].best.value == made[name].best.value and back[name].fits[0] is None
        np.testing.assert_array_equal(
            back[name].estimates[1].losses, made[name].estimates[1].losses
        )
        assert back[name].one_standard_error.value == made[name].one_standard_error.value
    for name in ("Tuning", "Tuning by a metric"):
        assert (
            back[name].hyper == made[name].hyper
            and back[name].optimism == made[name].optimism
            and back[name].fit is None
        )
        pd.testing.assert_frame_equal(back[name].trials, made[name].trials)
    assert back["intervals"].attrs == made["intervals"].attrs
    again = lo.cross_validate(back["Fit"], back["Plan"])
    np.testing.assert_array_equal(again.losses, made["Estimate"].losses)


USE = """
import pickle, sys
import matplotlib; matplotlib.use("agg")
import leaveout as lo
results = pickle.load(open(sys.argv[1], "rb"))
print(repr({name: str(result) for name, result in results.items()}))
cv = results["Estimate"]
cv.plot(), cv.report(sys.argv[2]), cv.table()
held = lo.cross_predict(cv.fit, cv.plan, strategy=lo.Exact())
again = lo.cross_validate(cv.fit, cv.plan, metric="mse")
means = again.mean, cv.metrics.loc["mse", "value"], again.metrics.loc["mse", "value"], cv.interval(method="nested").low
print(repr((held.tolist(), *map(float, means), len(cv.checks()))))
"""


def test_another_process_prints_the_same_and_an_estimate_goes_on_there(made, tmp_path):
    cv, page = made["Estimate"], tmp_path / "report.html"
    (tmp_path / "results.pickle").write_bytes(pickle.dumps(made))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USE, tmp_path / "results.pickle", page],
        capture_output=True,
        text=True,
        check=True,
    )
    printed, estimated = map(ast.literal_eval, done.stdout.splitlines())
    for name, result in made.items():
        assert printed[name] == str(result), name
    held, mean, kept, again, low, count = estimated
    np.testing.assert_array_equal(held, lo.cross_predict(cv.fit, cv.plan, strategy=lo.Exact()))
    assert (mean, kept, again) == (
        cv.mean,
        cv.metrics.loc["mse", "value"],
        cv.metrics.loc["mse", "value"],
    ) and page.stat().st_size > 10**4
    assert low == cv.interval(method="nested").low and count == len(cv.checks())


def test_an_estimate_goes_without_its_data_on_request(made):
    cv = made["Estimate"]
    bare = cv.without_data()
    back = pickle.loads(pickle.dumps(bare))
    assert (
        back.fit is None
        and back.call is None
        and str(back) == str(cv)
        and back.checks() == cv.checks()
    )
    assert (
        len(pickle.dumps(bare)) < len(pickle.dumps(cv))
        and pickle.loads(pickle.dumps(cv)).fit is not None
    )
    assert made["Tuning"].all_trials[0].estimate.fit is not None
    assert pickle.loads(pickle.dumps(made["Tuning"])).all_trials[0].estimate.fit is None


def test_functions_of_ones_own_stay_behind():
    """No pickle takes a function that was made in another; what came of it can be sent."""
    x = np.random.default_rng(0).standard_normal(30)
    model = lambda a: lo.GLM(x[:, None], x + x**2, lambda eta, y: a * (y - eta) ** 2)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(model)
    found = lo.path(model(1.0), [0.1, 1.0], lo.kfold(k=3))
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_a_space_follows_the_longest_name_of_a_line():
    class Lines(PrintedResult):
        def _lines(self):
            return [("neg_mean_squared_error", "1"), ("of_16_characters", "2"), ("mean", "3")]

    assert str(Lines()).splitlines() == [
        "neg_mean_squared_error 1",
        "of_16_characters 2",
        "mean" + " " * 12 + "3",
    ]
