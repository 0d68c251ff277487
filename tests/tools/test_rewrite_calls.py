"""Calls are rewritten once, wherever they stand, and nothing else is."""

import pytest
import rewrite_calls

BEFORE = [
    "lo.cross_validate(fit, lo.kfold(9, 3, seed=4), lo.Exact())",
    'lo.validate(fit, "bootstrap", 200, groups=site, curves=0)',
    "lo.functional(fit, lambda p: lo.leverage(fit)[0], lo.groups(site))",
    "lo.influence(cv, lo.Exact(), pairs=3)",
    "lo.influence(posterior, lo.groups(site))",
    "lo.interval(fit, new, 0.8, score='aps', seed=3)",
    "lo.interval((low, high), new)",
    'cv.metrics["auc"] + cv.metric_se["auc"]',
    'cv.metric_interval(0.9)["auc"]',
    "cv.metrics",
    "f\"{cv.metrics['auc']:.2f}\"",
    "lo.Linkage.from_pairs(pairs), lo.leakage_report(model, X, y, draws=4)",
    "dict(cv.metric_se.items()), list(cv.metrics.values())",
    "lo.covariance(fit, cov_type='HC1')",
    "lo.sklearn.cross_validate(model, X, y, cv=3, refit=lo.Exact())",
    "other.cross_validate(fit, plan, lo.Exact())",
    "lo.cross_predict(fit, plan)[:, 1] - lo.leverage(fit)[k] + cv.per_unit().reshape(-1, 1)",
    "lo.cross_predict(fit, plan)[label] + lo.diagnostics.leverage(fit)[k] + cv.per_unit()['a']",
    "lo.fit(model).at(cv.fit.root @ fit.whiten(u)) + fit.quadratic.at(u) + fit.vector",
]
AFTER = [
    "lo.cross_validate(fit, lo.kfold(9, 3, rng=4), strategy=lo.Exact())",
    'lo.clinical.validate(fit, method="bootstrap", num_resamples=200, groups=site, num_curves=0)',
    "lo.diagnostics.functional(fit, lo.groups(site), lambda p: lo.diagnostics.leverage(fit).to_numpy()[0])",
    "lo.influence(cv, strategy=lo.Exact(), num_pairs=3)",
    "lo.influence(posterior, lo.groups(site))",
    "lo.prediction_sets(fit, new, level=0.8, score='aps', rng=3, randomized=True)",
    "lo.quantile_interval(low, high, new)",
    'cv.metrics.loc["auc", "value"] + cv.metrics.loc["auc", "standard_error"]',
    'cv.interval(0.9, metric="auc")',
    'cv.metrics["value"]',
    "f\"{cv.metrics.loc['auc', 'value']:.2f}\"",
    "lo.leakage.Linkage.from_pairs(pairs), lo.leakage.leakage_report(model, X, y, num_draws=4)",
    'dict(cv.metrics["standard_error"].items()), list(cv.metrics["value"].to_list())',
    "lo.covariance(fit, kind='HC1')",
    "lo.sklearn.cross_validate(model, X, y, cv=3, strategy=lo.Exact())",
    "other.cross_validate(fit, plan, lo.Exact())",
    "lo.cross_predict(fit, plan).to_numpy()[:, 1] - lo.diagnostics.leverage(fit).to_numpy()[k] "
    "+ cv.per_unit().to_numpy().reshape(-1, 1)",
    "lo.cross_predict(fit, plan)[label] + lo.diagnostics.leverage(fit)[k] + cv.per_unit()['a']",
    "lo.fit(model).quadratic.at(cv.fit.quadratic.root @ fit.quadratic.whiten(u)) "
    "+ fit.quadratic.at(u) + fit.vector",
]


@pytest.mark.parametrize(("before", "after"), list(zip(BEFORE, AFTER, strict=True)))
def test_a_call_in_code_an_example_and_a_page(before, after):
    code = f"import leaveout as lo\n\nfound = {before}\n"
    rewritten = f"import leaveout as lo\n\nfound = {after}\n"
    assert rewrite_calls.rewrite_python(code) == (rewritten, [])
    assert rewrite_calls.rewrite_python(rewritten) == (rewritten, [])
    page = f"Text.\n\n```python\n{code}```\n"
    assert rewrite_calls.rewrite_markdown(page) == (page.replace(before, after), [])
    example = f'"""Text.\n\n>>> found = {before}\n"""\n'
    assert rewrite_calls.rewrite_python(example)[0] == example.replace(before, after)


def test_imports_follow_their_names():
    code = "from leaveout import GLM, calibration as judge\n\njudge(cv, 'lowess')\n"
    assert rewrite_calls.rewrite_python(code)[0] == (
        "from leaveout import GLM\nfrom leaveout.clinical import calibration as judge\n\n"
        "judge(cv, smoother='lowess')\n"
    )


def test_a_bound_of_an_interval_is_no_module():
    code = "import numpy as np\n\nlo, hi = np.ones(2)\nprint(lo.s)\n"
    assert rewrite_calls.rewrite_python(code)[0] == code


def test_what_cannot_be_decided_is_named():
    code = "import leaveout as lo\n\nlo.cross_validate(*arguments, plan)\n"
    assert rewrite_calls.rewrite_python(code, "a.py") == (code, ["a.py:3: cross_validate(*...)"])


def test_a_variable_that_is_asked_for_places_is_an_array():
    before = "import leaveout as lo\n\nhat, p = lo.leverage(fit), lo.cross_predict(fit, plan)\n"
    after = "import leaveout as lo\n\nhat, p = lo.diagnostics.leverage(fit).to_numpy(), "
    after += "lo.cross_predict(fit, plan).to_numpy()\n"
    uses = "print(hat[i], p[i, 0])\n"
    assert rewrite_calls.rewrite_python(before + uses)[0] == after + uses
    assert rewrite_calls.rewrite_python(after + uses)[0] == after + uses
