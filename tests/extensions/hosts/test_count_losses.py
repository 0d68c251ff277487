"""Zero-inflated, hurdle and conditional models of statsmodels, against its own refits."""

import warnings

import numpy as np
import pytest
import scipy

import leaveout as lo

pytest.importorskip("statsmodels")
import statsmodels.api as sm
from statsmodels.discrete.conditional_models import ConditionalLogit
from statsmodels.discrete.truncated_model import HurdleCountModel

N = 120


def counts(kind: str):
    """Return a model of some rows."""
    rng = np.random.default_rng(4)
    X, z = sm.add_constant(rng.standard_normal((N, 2))), rng.standard_normal(N)
    offset = rng.uniform(-0.3, 0.3, N)
    y = rng.poisson(np.exp(1.0 + X[:, 1] * 0.4) * rng.gamma(3.0, 1 / 3.0, N))
    y = np.where(rng.random(N) < 1 / (1 + np.exp(0.8 - 0.7 * z)), 0, y).astype(float)
    Z = sm.add_constant(z)
    return {
        "zip": lambda k: sm.ZeroInflatedPoisson(y[k], X[k]),
        "zip, design": lambda k: sm.ZeroInflatedPoisson(
            y[k], X[k], exog_infl=Z[k], offset=offset[k], inflation="probit"
        ),
        "zinb": lambda k: sm.ZeroInflatedNegativeBinomialP(
            y[k], X[k], exog_infl=Z[k], exposure=np.exp(offset[k])
        ),
        "zinb, p=1": lambda k: sm.ZeroInflatedNegativeBinomialP(y[k], X[k], exog_infl=Z[k], p=1),
        "hurdle": lambda k: HurdleCountModel(y[k], X[k]),
        "hurdle, negative binomial": lambda k: HurdleCountModel(y[k], X[k], dist="negbin", p=2),
    }[kind]


def fitted(model, start=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(start_params=start, method="bfgs", gtol=1e-8, maxiter=5000, disp=0)


@pytest.mark.parametrize(
    "kind", ["zip", "zip, design", "zinb", "zinb, p=1", "hurdle", "hurdle, negative binomial"]
)
@pytest.mark.slow_for("zinb", "zip", "zip, design", "hurdle, negative binomial")
def test_counts_left_out_are_the_hosts_refits(kind):
    model = counts(kind)
    whole = fitted(model(np.arange(N)))
    fit = lo.from_statsmodels(whole)
    everyone = model(np.arange(N))
    assert float(fit.value) == pytest.approx(-everyone.loglike(whole.params), rel=1e-10)
    plan = lo.kfold(N, 20, rng=0)
    found = lo.cross_validate(fit, plan, audit=0)
    losses = found.per_unit()
    for fold in (0, 12):
        held = plan.matrix()[fold] == 0
        again = fitted(model(np.flatnonzero(~held)), whole.params).params
        truth = model(np.flatnonzero(~held)).loglike(again) - everyone.loglike(again)
        assert np.abs(losses[held].sum() - truth) <= found.error[fold] + 1e-4


@pytest.mark.parametrize("shifted", [False, True])
def test_groups_of_a_conditional_logit_are_its_units(shifted):
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(40), rng.integers(2, 7, 40))
    n = len(groups)
    X, offset = rng.standard_normal((n, 2)), rng.uniform(-1, 1, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-X[:, 0] - rng.standard_normal(40)[groups]))).astype(float)

    def host(own):
        more = {"offset": offset[own]} if shifted else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ConditionalLogit(y[own], X[own], groups=groups[own], **more)

    whole = host(np.full(n, True))
    fit = lo.from_statsmodels(whole.fit(method="bfgs", gtol=1e-8, disp=0))
    found = lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    assert "of one outcome say nothing" in fit.objective.note
    labels = fit.objective.units.names
    for k in range(0, len(labels), 4):
        own = host(groups != labels[k])
        both = lambda b, own=own: (-own.loglike(b), -own.score(b))
        # the host's solver stops early
        params = scipy.optimize.minimize(both, np.zeros(2), jac=True, tol=1e-9).x
        truth = own.loglike(params) - whole.loglike(params)
        assert abs(found.losses[k].sum() - truth) <= found.error[k] + 1e-5
