"""References of results.

Who is cited for what, and that every entry is well formed and stands for something that exists.
"""

import re

import numpy as np
import pytest

import leaveout as lo

X = np.random.default_rng(0).normal(size=(40, 2))
Y = X[:, 0] + np.random.default_rng(1).normal(size=40)
SOFTWARE = {"leaveout", "harris2020", "virtanen2020", "jax2018"}
FIT = lo.fit(lo.GLM(X, Y > 0, "logistic", lo.penalties.Ridge(1.0)))
PLACES = lo.validation.nearest_neighbour_matched(X, X + 0.1, 5)
RESULTS = {
    "jackknife": (
        lambda: lo.cross_validate(FIT, lo.leave_one_out(), strategy=lo.InfinitesimalJackknife()),
        {"jaeckel1972", "debruyne2008", "giordano2019"},
    ),
    "plan and measure": (
        lambda: lo.cross_validate(FIT, PLACES, metric="auc"),
        {"linnenbrink2024", "ledell2015"},
    ),
    "set": (
        lambda: lo.prediction_sets(FIT, X[:3], score="raps", rng=1, randomized=True),
        {"barber2021", "romano2020", "angelopoulos2021"},
    ),
    "nested": (lambda: lo.validation.nested(FIT, num_repeats=2), {"bates2024"}),
    "penalty": (
        lambda: lo.fit(lo.GLM(X, Y, "squared", lo.penalties.Lasso(1.0))),
        {"tibshirani1996"},
    ),
    "path": (lambda: lo.path(lo.GLM(X, Y, "squared"), [0.1, 1.0], lo.kfold(k=5)), set()),
    "influence": (lambda: lo.influence(lo.cross_validate(FIT, lo.leave_one_out())), {"cook1977"}),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.filterwarnings("ignore")
def test_what_is_used_is_cited_and_nothing_else(name):
    make, keys = RESULTS[name]
    found = lo.cite(make())
    assert set(found.entries) - SOFTWARE == keys and next(iter(found.entries)) == "leaveout"
    assert all(key in str(found) for key in keys) and not re.search(r"[{}\\]", str(found))
    assert found.bibtex.count("@") == len(found.entries) and "keywords" not in found.bibtex
    assert found.bibtex.count("{") == found.bibtex.count("}")


def test_a_comparison_cites_what_each_model_used():
    with pytest.warns(UserWarning):
        found = lo.compare(
            {
                "a": lo.cross_validate(FIT, PLACES),
                "b": lo.cross_validate(FIT, PLACES, strategy=lo.NewtonStep()),
            }
        )
    assert set(found.estimates) == {"a", "b"}
    assert {"vehtari2017", "linnenbrink2024", "pregibon1981"} < set(lo.cite(found).entries)


@pytest.mark.filterwarnings("ignore")
def test_the_theorem_is_told_where_errors_are_proved():
    mixed = lo.fit(lo.Mixed(X, Y, groups=np.arange(40) % 8))
    for fit, proved in ((FIT, True), (mixed, False)):
        cv = lo.cross_validate(fit, lo.kfold(40, 4))
        assert bool(cv.proved.all()) == proved == ("enclosure_theorem" in str(lo.cite(cv)))
