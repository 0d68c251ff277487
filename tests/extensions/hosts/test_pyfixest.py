"""pyfixest's regressions: coefficients, CRV1 and CRV3 are its own.

pyfixest is not among the packages that the tests install, so that most environments skip this.
"""

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

pyfixest = pytest.importorskip("pyfixest", reason="needs pyfixest: pip install pyfixest")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def data():
    """Thirty states in six years; one has no counts, and one row lacks a number."""
    rng = np.random.default_rng(0)
    state, year = np.divmod(np.arange(180), 6)
    data = pd.DataFrame({"state": state, "year": year, "w": rng.gamma(2, 1, 180)})
    data["a"] = rng.standard_normal(180) + state / 20
    data["b"] = rng.standard_normal(180)
    data["y"] = rng.poisson(np.exp(0.5 + 0.3 * data.a)) * 1.0
    data.loc[state == 4, "y"] = 0.0
    data.loc[7, "a"] = np.nan
    return data


@pytest.mark.parametrize("kind", ["CRV1", "CRV3"])
@pytest.mark.parametrize("formula", ["y ~ a + b | state + year", "y ~ a + b | state", "y ~ a + b"])
@pytest.mark.parametrize("name", ["feols", "feols, weights", "fepois"])
def test_its_own_numbers(data, name, formula, kind):
    options = {"weights": "w"} if "weights" in name else {}
    if name == "fepois":
        options = {"iwls_tol": 1e-12}
    model = getattr(pyfixest, name.partition(",")[0])(
        formula, data, vcov={kind: "state"}, fixef_tol=1e-12, **options
    )
    fit = lo.from_pyfixest(model)
    names = {"intercept": "Intercept"}
    covariance = lo.covariance(
        fit,
        {"CRV1": "cluster"}.get(kind, kind),
        groups="state",
        small_sample="pyfixest",
        strategy=lo.Exact(1e-10) if kind == "CRV3" else None,
    )
    coef, errors = (
        part.rename(names)[model.coef().index] for part in (fit.coef, covariance.standard_errors)
    )
    np.testing.assert_allclose(coef, model.coef(), rtol=1e-6)
    np.testing.assert_allclose(errors, model.se(), rtol=1e-5)


def test_what_is_not_supported(data):
    instrument = data.dropna().assign(z=data.b + data.w)
    with pytest.raises(TypeError, match="Feiv is not supported"):
        lo.from_pyfixest(pyfixest.feols("y ~ a | b ~ z", instrument))
    with pytest.raises(ValueError, match="the formula has the columns"):
        lo.from_pyfixest(pyfixest.feols("y ~ a + c", data.assign(c=2 * data.a)))
    with pytest.raises(TypeError, match="Supported are Feols, Fepois of pyfixest"):
        lo.from_pyfixest(data)
