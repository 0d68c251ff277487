"""Covariances from refits.

R's figures, refits from scratch, what a refit does not determine, and the proved errors.
"""

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy

import leaveout as lo
from tests.helpers import fitted, minimiser

R = Path(os.environ.get("LEAVEOUT_DATA", "nowhere")) / "reference" / "jackknife"
needs_r = pytest.mark.skipif(
    not R.is_dir(), reason="needs reference/jackknife in the folder named by LEAVEOUT_DATA"
)
FEATURES = ["ell", "meals", "mobility"]
MODELS = {
    "logit": ("wide", "logistic"),
    "linear": ("api00", "squared"),
    "poisson": ("api00", "poisson"),
}
CLOSE = lo.Exact(1e-12)
DESIGNS = (
    "clus_JK1",
    "strat_JKn",
    "paired_BRR",
    "paired_Fay",
    "clus_bootstrap",
    "clus_subbootstrap",
)


def school_fit(design: str, model: str, weighted: bool = True) -> tuple[pd.DataFrame, lo.Fit]:
    name = {"clus": "apiclus1", "strat": "apistrat", "paired": "apipaired"}[design]
    data = pd.read_csv(R / f"{name}.csv")
    y, loss = MODELS[model]
    return data, lo.fit(
        lo.GLM(
            data[FEATURES], data[y].astype(float), loss, sample_weight=data.pw if weighted else None
        )
    )


def assert_same_as_r(found: pd.DataFrame, table: str, **keys) -> None:
    """Compare with a covariance that R printed, by differences as shares of standard errors."""
    rows = pd.read_csv(R / table)
    rows = rows[np.logical_and.reduce([rows[name] == value for name, value in keys.items()])]
    want = np.zeros((4, 4))
    want[rows.i - 1, rows.j - 1] = rows["cov"]
    order, se = ["intercept", *FEATURES], np.sqrt(np.diag(want))
    assert (np.abs(found.loc[order, order] - want) / np.outer(se, se)).to_numpy().max() < 1e-11


@needs_r
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("design", DESIGNS)
def test_the_figures_of_svyglm(design, model):
    data, fit = school_fit(design.split("_")[0], model)
    factors, scales = (
        pd.read_csv(R / f"factors_{design}.csv"),
        pd.read_csv(R / f"scales_{design}.csv"),
    )
    for mse in (True, False):
        found = lo.survey.replicates(
            fit, factors, scale=scales.scale[0], rscales=scales.rscales, mse=mse, strategy=CLOSE
        )
        assert_same_as_r(found, "svyglm_vcov.csv", design=design, model=model, mse=mse)
        assert found.proved and (found.errors < 1e-8 * found.standard_errors).all()
    made = {
        "clus_JK1": lambda: lo.survey.jk1(data.dnum),
        "strat_JKn": lambda: lo.survey.jkn(data.stype),
        "paired_BRR": lambda: lo.survey.brr(data.stratum, data.dnum),
        "paired_Fay": lambda: lo.survey.fay(data.stratum, data.dnum),
    }
    if design in made:
        weights = made[design]()
        assert weights.shape == factors.shape
        np.testing.assert_allclose(weights.scale, scales.scale[0])
        assert lo.survey.replicates(fit, weights).dof.iloc[0] == {
            "clus_JK1": 14,
            "strat_JKn": 197,
        }.get(design, 7)
    if design in ("clus_JK1", "strat_JKn"):  # half-samples are not unique
        assert_same_as_r(
            lo.survey.replicates(fit, weights, strategy=CLOSE),
            "svyglm_vcov.csv",
            design=design,
            model=model,
            mse=False,
        )


@needs_r
@pytest.mark.filterwarnings("ignore:covariance. 15 groups")
@pytest.mark.parametrize("model", MODELS)
def test_the_figures_of_clusters(model):
    data, fit = school_fit("clus", model, weighted=False)
    for kind in ("CRV3", "CRV3J", *(("CR2", "CR3") if model == "linear" else ())):
        assert_same_as_r(
            lo.covariance(fit, kind, groups=data.dnum, strategy=CLOSE),
            "clusters_vcov.csv",
            model=model,
            kind=kind,
        )
    jk1 = lo.covariance(fit, "JK1", groups=data.dnum, strategy=CLOSE)
    assert_same_as_r(jk1, "clusters_vcov.csv", model=model, kind="CRV3J")
    counts = pd.read_csv(R / "counts_vcovBS.csv")[[str(k) for k in data.dnum]].T.to_numpy(float)
    found = lo.survey.replicates(fit, counts, scale=1 / (counts.shape[1] - 1), strategy=CLOSE)
    assert_same_as_r(found, "clusters_vcov.csv", model=model, kind="vcovBS")
    if model == "linear":
        assert_same_as_r(
            lo.covariance(fit, "HC3-exact"), "clusters_vcov.csv", model=model, kind="HC3"
        )


rng = np.random.default_rng(5)
N = 120
X = rng.standard_normal((N, 2))
Y = (rng.random(N) < 1 / (1 + np.exp(0.5 - X[:, 0]))).astype(float)
SITE = np.arange(N) % 24
FIT = lo.fit(lo.GLM(X, Y, "logistic"))


def by_hand(objective, start, columns: np.ndarray) -> np.ndarray:
    return np.array([minimiser(objective, start, column) for column in columns.T])


@pytest.mark.parametrize("mse", [True, False])
def test_any_matrix_of_weights_by_refits_from_scratch(mse):
    weights = np.random.default_rng(2).choice([0.3, 1.0, 1.7], (N, 6))
    weights[:, 4] = 1.0  # a replicate that equals the fit
    rscales = np.array([1.0, 2.0, 0.5, 1.0, 1.0, 0.0])
    thetas = by_hand(FIT.objective, FIT.theta, weights)
    moved = thetas - (FIT.vector if mse else thetas[:5].mean(axis=0))
    found = lo.survey.replicates(FIT, weights, scale=0.25, rscales=rscales, mse=mse, strategy=CLOSE)
    np.testing.assert_allclose(found, 0.25 * (moved * rscales[:, None]).T @ moved, rtol=1e-7)
    np.testing.assert_allclose(found.replicates, thetas, atol=1e-8)
    assert found.proved and len(found.flagged) == 0
    loose = lo.survey.replicates(
        FIT, weights, scale=0.25, rscales=rscales, mse=mse, strategy=lo.Certified(0.1)
    )
    off = (loose.standard_errors - found.standard_errors).abs()
    assert (off > 10 * found.errors).any() and (off <= loose.errors + found.errors).all()
    assert (loose.errors < 0.3 * loose.standard_errors).all()


def test_labels_of_weights_are_matched():
    index = pd.Index([f"p{k}" for k in range(N)])
    fit = lo.fit(lo.GLM(pd.DataFrame(X, index), pd.Series(Y, index), "logistic"))
    weights = lo.survey.jk1(pd.Series(SITE, index).sample(frac=1, random_state=0))
    np.testing.assert_allclose(
        lo.survey.replicates(fit, weights),
        lo.survey.replicates(FIT, lo.survey.jk1(SITE)),
        rtol=1e-5,
    )


def test_errors_hold_the_difference_to_closer_refits():
    close = lo.covariance(FIT, "CRV3", groups=SITE)
    for strategy in (lo.Certified(0.5), lo.NewtonStep(), lo.InfinitesimalJackknife()):
        found = lo.covariance(FIT, "CRV3", groups=SITE, strategy=strategy)
        off = (found.standard_errors - close.standard_errors).abs()
        assert (off <= found.errors + close.errors).all(), strategy


@pytest.mark.parametrize(
    "name", ["Cox", "mixed, clusters", "closed form", "separable", "hidden Markov"]
)
def test_every_model_by_its_refits(name):
    fit = fitted(name)
    n = fit.objective.num_units
    blocks = np.arange(n) * 20 // n
    found = lo.covariance(fit, "CRV3J", groups=blocks)
    refits = lo.fold_parameters(fit, lo.groups(blocks), strategy=lo.Exact())
    values = np.concatenate(
        [np.reshape(leaf, (20, -1)) for _, leaf in sorted(refits.items())], axis=1
    )
    np.testing.assert_allclose(found, np.cov(values.T, bias=True) * 19, rtol=1e-4, atol=1e-9)
    assert not found.proved and (found.errors < 1e-4 * found.standard_errors).all()


def test_what_a_refit_does_not_determine_does_not_count():
    """A dummy of one group is lost with it.

    The other coefficients are not, and no other refit is touched.
    """
    data = np.column_stack([X, SITE == 7])
    y = X @ [1.0, -1.0] + rng.standard_normal(N)
    fit = lo.fit(lo.GLM(pd.DataFrame(data, columns=["a", "b", "site7"]), y, "squared"))
    with pytest.warns(UserWarning, match=r"1 of 24 refits \(7\) do not determine site7"):
        found = lo.covariance(fit, "CRV3", groups=SITE)
    design = np.column_stack([data, np.ones(N)])
    thetas = np.array(
        [np.linalg.lstsq(design[g != SITE], y[g != SITE], rcond=None)[0] for g in range(24)]
    )
    moved = thetas - fit.vector
    moved[7, 2] = 0
    moved[:, 2] *= np.sqrt(24 / 23)
    np.testing.assert_allclose(found, 23 / 24 * moved.T @ moved, rtol=1e-8)
    assert found.flagged.to_dict() == {7: "undetermined"} and not found.proved
    assert np.isnan(found.replicates.loc[7, "site7"]) and found.replicates.drop(
        columns="site7"
    ).notna().all(axis=None)


def test_a_group_that_separates_is_flagged_and_left_out():
    y = np.where(SITE == 3, 0.0, (X[:, 0] > 0) * 1.0)
    fit = lo.fit(lo.GLM(X[:, :1], y, "logistic"))
    with pytest.warns(UserWarning, match=r"1 of 24 refits \(3\) do not determine x0, intercept"):
        found = lo.covariance(fit, "CRV3", groups=SITE)
    moved = found.replicates.drop(index=3).to_numpy() - fit.vector
    np.testing.assert_allclose(found, 23 / 24 * 24 / 23 * moved.T @ moved)
    assert list(found.flagged.index) == [3]


def test_a_covariance_is_a_frame_and_prints_as_statsmodels_does():
    found = lo.covariance(FIT, "CRV3", groups=SITE)
    table = found.summary(0.9)
    assert list(table) == ["coef", "std err", "t", "P>|t|", "[0.05", "0.95]", "dof", "error"]
    law = scipy.stats.t(23)
    np.testing.assert_allclose(table["P>|t|"], 2 * law.sf(np.abs(FIT.vector / table["std err"])))
    np.testing.assert_allclose(table["0.95]"], FIT.vector + law.ppf(0.95) * table["std err"])
    assert list(lo.covariance(FIT).summary())[2:4] == ["z", "P>|z|"]
    assert type(found.iloc[:1]) is type(found + 1) is pd.DataFrame
    again = pickle.loads(pickle.dumps(found))
    assert again.proved and again.errors.equals(found.errors)
    with pytest.raises(ValueError, match="level must lie between 0 and 1; got 95"):
        found.summary(95)
    with lo.config(output="polars"):
        assert "polars" in type(lo.covariance(FIT)).__module__


def test_what_is_no_matrix_of_weights_is_refused():
    weights = np.random.default_rng(0).uniform(0, 2, (N, 4))
    bad = weights.copy()
    bad[3, 1] = np.nan
    refused = [
        (TypeError, "must be a Fit", (X, weights), {"scale": 1}),
        (TypeError, "mse is True", (FIT, weights), {"scale": 1, "mse": "yes"}),
        (ValueError, "give scale=", (FIT, weights), {}),
        (
            ValueError,
            r"one row a unit, 120, .* got shape \(4, 120\); it has one column a unit: transpose",
            (FIT, weights.T),
            {"scale": 1},
        ),
        (ValueError, "unit 3 has nan in replicate 1", (FIT, bad), {"scale": 1}),
        (ValueError, "unit 0 has -", (FIT, -weights), {"scale": 1}),
        (ValueError, "replicate 0 gives every unit weight zero", (FIT, 0 * weights), {"scale": 1}),
        (
            ValueError,
            "rscales must be 4 numbers, one a replicate",
            (FIT, weights),
            {"scale": 1, "rscales": [1, 2]},
        ),
        (ValueError, "scale must be a positive number", (FIT, weights), {"scale": 0}),
        (ValueError, "scale and rscales must be numbers; got 'a'", (FIT, weights), {"scale": "a"}),
        (ValueError, "one replicate has no spread", (FIT, weights[:, :1]), {"scale": 1}),
    ]
    for error, words, args, named in refused:
        with pytest.raises(error, match=words):
            lo.survey.replicates(*args, **named)
    with pytest.raises(ValueError, match="weights above 1"):
        lo.survey.replicates(fitted("hidden Markov"), np.full((60, 2), 1.5), scale=1)
    apart = np.where(X[:, 0] > 0, 1.0, 0.0)
    near = lo.fit(
        lo.GLM(X[:, :1], np.where(np.arange(N) == np.argmax(X[:, 0]), 0.0, apart), "logistic")
    )
    out = np.ones((N, 2))
    out[np.argmax(X[:, 0])] = 0
    with pytest.raises(ValueError, match="no refit determines the parameters"):
        lo.survey.replicates(near, out, scale=1)


@pytest.mark.slow
def test_rank_one_and_large_plans_agree():
    """Every row by itself equals the same plan as a matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = lo.covariance(FIT, "HC3-exact")
        matrix = lo.survey.replicates(FIT, 1.0 - np.eye(N), scale=1.0, mse=True)
    np.testing.assert_allclose(one, matrix, rtol=1e-9)
