"""Models of lifelines, against its own refits; `make test-hosts` installs it."""

import warnings

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

lifelines = pytest.importorskip("lifelines")


def table(n: int = 120, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    data = pd.DataFrame(
        {
            "age": rng.normal(size=n),
            "dose": rng.normal(2.0, 3.0, n),
            "site": rng.choice(["a", "b"], n),
        }
    )
    died, left = rng.exponential(np.exp(-0.7 * data.age - 0.1 * data.dose)), rng.exponential(2.0, n)
    data = data.assign(time=np.ceil(8 * np.minimum(died, left)), died=(died <= left).astype(int))
    return data.assign(start=data.time * rng.uniform(0.0, 0.6, n), weight=rng.integers(1, 4, n))


PLAN = lo.kfold(120, 20, rng=0)
KINDS = {
    "plain": ({}, {}),
    "strata": ({}, {"strata": ["site"]}),
    "weights and entry": ({}, {"weights_col": "weight", "entry_col": "start"}),
    "formula": ({}, {"formula": "age + dose:age"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_cox_models_left_out_are_the_hosts_refits(kind):
    data, (made, given) = table(), KINDS[kind]
    used = [
        "age",
        "dose",
        "time",
        "died",
        *given.get("strata", []),
        *[given[k] for k in given if k.endswith("_col")],
    ]
    data = data[used]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = lifelines.CoxPHFitter(**made).fit(
            data, "time", "died", fit_options={"precision": 1e-12}, **given
        )
        fit = lo.from_lifelines(whole, data)
        found = lo.fold_parameters(fit, PLAN, strategy=lo.Exact(1e-10))["coef"]
        assert float(fit.value) == pytest.approx(-whole.log_likelihood_, rel=1e-9)
        for fold in range(20):
            seen = data[PLAN.matrix()[fold] > 0]
            again = lifelines.CoxPHFitter(**made).fit(
                seen, "time", "died", fit_options={"precision": 1e-12}, **given
            )
            np.testing.assert_allclose(found[fold], again.params_, atol=1e-6)


def test_a_penalizer_is_that_of_the_standard_deviations():
    data = table()[["age", "dose", "time", "died"]]
    fit = lo.from_lifelines(lifelines.CoxPHFitter(penalizer=0.2).fit(data, "time", "died"), data)
    assert fit.decrement < 1e-3 and "standard deviations of all rows" in fit.objective.note
    with pytest.raises(TypeError, match="l1 part"):
        lo.from_lifelines(
            lifelines.CoxPHFitter(penalizer=0.2, l1_ratio=0.5).fit(data, "time", "died"), data
        )
    with pytest.raises(TypeError, match="KaplanMeierFitter is not supported"):
        lo.from_lifelines(lifelines.KaplanMeierFitter(), data)


@pytest.mark.parametrize("name", ["WeibullAFTFitter", "LogNormalAFTFitter"])
@pytest.mark.parametrize("given", [{}, {"ancillary": True}, {"entry_col": "start"}], ids=str)
def test_accelerated_models_left_out_are_the_hosts_refits(name, given):
    data = table()[["age", "dose", "time", "died", *[given[k] for k in given if k == "entry_col"]]]
    make = lambda rows: getattr(lifelines, name)().fit(rows, "time", "died", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = make(data)
        fit = lo.from_lifelines(whole, data)
        assert float(fit.value) == pytest.approx(-whole.log_likelihood_, rel=1e-6)
        found = lo.cross_validate(fit, PLAN)
        losses = found.per_unit()
        for fold in range(0, 20, 5):
            held = PLAN.matrix()[fold] == 0
            again = make(data[~held])
            truth = -again.score(data[held], scoring_method="log_likelihood") * held.sum()
            assert abs(losses[held].sum() - truth) <= found.error[fold] + 1e-3


def test_a_penalizer_of_an_accelerated_model_grows_with_the_rows():
    data = table()[["age", "dose", "time", "died"]]
    fit = lo.from_lifelines(
        lifelines.WeibullAFTFitter(penalizer=0.1).fit(data, "time", "died"), data
    )
    assert fit.decrement < 1e-2 and "standard deviations of all rows" in fit.objective.note
    weights = np.ones(120)
    weights[:5] = 0.0
    change = float(fit.objective.loss(fit.theta, weights)) - float(fit.value)
    told = float(fit.objective.perturbation(fit.theta, np.arange(5), -np.ones(5)))
    assert change == pytest.approx(told, rel=1e-5)  # in float32, as JAX has it here


@pytest.mark.parametrize("made", [{}, {"penalizer": 0.1}], ids=str)
def test_rows_of_a_time_varying_fitter_leave_by_subject(made):
    data = table()[["age", "dose", "start", "time", "died"]].assign(subject=np.arange(120) // 2)
    given = {"id_col": "subject", "event_col": "died", "start_col": "start", "stop_col": "time"}
    fit = lo.from_lifelines(lifelines.CoxTimeVaryingFitter(**made).fit(data, **given), data)
    assert fit.decrement < 1e-3
    if not made:
        coef = lo.fold_parameters(fit, lo.groups(data["subject"]), strategy=lo.Exact())["coef"]
        refit = lifelines.CoxTimeVaryingFitter().fit(
            data[2:], fit_options={"precision": 1e-12}, **given
        )
        np.testing.assert_allclose(coef[0], refit.params_, atol=1e-6)
