"""hmmlearn as a host.

Zero gradient at its parameters, its likelihood and posterior, and its own refits.
"""

import numpy as np
import pytest
import scipy.optimize
from sklearn.exceptions import NotFittedError

import leaveout as lo
from leaveout import RESULTS
from leaveout.objectives.objective import ravel, unflatten

host = pytest.importorskip("hmmlearn.hmm", reason="hmmlearn has no wheel for this Python")
variational = pytest.importorskip("hmmlearn.vhmm")

rng = np.random.default_rng(0)
T, LENGTHS = 300, [120, 100, 80]
STATES = (np.cumsum(rng.random(T) < 0.08) + (np.arange(T) >= 120)) % 2
REAL = np.c_[np.where(STATES, 1.5, -1.0), np.where(STATES, 0.0, 2.0)] + rng.standard_normal(
    (T, 2)
) * [1.0, 0.7]
COUNTS = rng.poisson(np.where(STATES, 9.0, 2.0))[:, None]
SYMBOLS = np.where(rng.random(T) < 0.8, 2 * STATES, rng.integers(0, 3, T))[:, None]
# else it stops where the likelihood without the priors falls
TIGHT = {"tol": -np.inf, "n_iter": 300, "random_state": 0}
PRIOR = {"means_prior": 0.3, "means_weight": 2.0, "covars_prior": 0.5, "covars_weight": 4.0}


def gaussian(kind, **kwargs):
    return lambda: (host.GaussianHMM(2, kind, **TIGHT, **kwargs), REAL)


HOSTS = {
    "Poisson": lambda: (host.PoissonHMM(2, **TIGHT), COUNTS),
    "diag": gaussian("diag"),
}
MORE = {
    "full, priors": gaussian(
        "full", **PRIOR, startprob_prior=2.0, transmat_prior=np.array([[3.0, 1.5], [1.0, 2.0]])
    ),
    "categorical": lambda: (
        host.CategoricalHMM(2, emissionprob_prior=np.array([2.0, 1.0, 1.5]), **TIGHT),
        SYMBOLS,
    ),
    **{kind: gaussian(kind) for kind in ("spherical", "tied", "full")},
    **{f"{kind}, priors": gaussian(kind, **PRIOR) for kind in ("diag", "spherical", "tied")},
    "covariances held": gaussian("full", params="stm"),
    "tied covariances held": gaussian("tied", params="stm", means_weight=1.0),
    "chain held": gaussian("diag", params="mc"),
    "categorical, flat": lambda: (host.CategoricalHMM(2, **TIGHT), SYMBOLS),
    "two channels of counts": lambda: (host.PoissonHMM(2, **TIGHT), np.c_[COUNTS, COUNTS[::-1]]),
}


@pytest.mark.parametrize(
    "name", [*HOSTS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_zero_gradient_likelihood_and_posterior(name):
    model, x = {**HOSTS, **MORE}[name]()
    model.fit(x, LENGTHS)
    fit = lo.from_hmmlearn(model, x, LENGTHS, drop="sequence")
    assert fit.decrement < 1e-4
    np.testing.assert_allclose(
        fit.objective.log_likelihood(fit), model.score(x, LENGTHS), rtol=1e-8
    )
    np.testing.assert_allclose(
        fit.objective.state_probabilities(fit), model.predict_proba(x, LENGTHS), atol=1e-8
    )
    np.testing.assert_array_equal(fit.objective.decode(fit), model.predict(x, LENGTHS))


@pytest.mark.slow
def test_exact_is_the_hosts_own_refit():
    model = host.PoissonHMM(2, startprob_prior=2.0, **TIGHT).fit(COUNTS, LENGTHS)
    fit = lo.from_hmmlearn(model, COUNTS, LENGTHS, drop="sequence")
    got = lo.fold_parameters(fit, lo.leave_one_out(3), strategy=lo.Exact())
    ends = np.cumsum(LENGTHS)
    for k, length in enumerate(LENGTHS):
        keep = np.ones(T, bool)
        keep[ends[k] - length : ends[k]] = False
        again = host.PoissonHMM(2, startprob_prior=2.0, init_params="", **TIGHT)
        again.startprob_, again.transmat_, again.lambdas_ = (
            model.startprob_,
            model.transmat_,
            model.lambdas_,
        )
        again.fit(COUNTS[keep], [n for i, n in enumerate(LENGTHS) if i != k])
        np.testing.assert_allclose(got["rate"][k], again.lambdas_[:, 0], atol=1e-4)
        np.testing.assert_allclose(got["transition"][k], again.transmat_, atol=1e-4)


@pytest.mark.slow
def test_zeros_stay_zero_and_one_sequence_holds_its_start():
    """Three states of the earthquakes have their maximum where one transition probability is
    zero.
    """
    x = lo.datasets.earthquakes()[["count"]].to_numpy()
    model = host.PoissonHMM(3, tol=1e-10, n_iter=20000, random_state=3).fit(x)
    zeros = model.transmat_ < 1e-6
    assert zeros.any()
    fit = lo.from_hmmlearn(model, x)
    assert fit.decrement < 1e-3 and fit.num_params == 3 + 6 - zeros.sum()
    np.testing.assert_allclose(fit.parameters["initial"], model.startprob_, rtol=1e-14)
    np.testing.assert_allclose(fit.objective.log_likelihood(fit), model.score(x), rtol=1e-8)
    refits = lo.fold_parameters(fit, lo.blocks(107, 40), strategy=lo.InfinitesimalJackknife())[
        "transition"
    ]
    assert (refits[:, zeros] == 0).all() and (refits[:, ~zeros] > 0).all()
    assert "held at zero" in fit.objective.note


def three_states():
    """Of the earthquakes, as any user would ask for them."""
    counts = lo.datasets.earthquakes().set_index("year")["count"]
    hmm = lo.HMM(counts, lo.emissions.Poisson(), 3, prior=None, initial="stationary")
    with pytest.warns(
        UserWarning, match=r"puts transition\[2, 0\] at zero: held there, in every refit too"
    ):
        return hmm, lo.fit(
            hmm, theta0={"rate": [13.0, 20.0, 30.0], "transition": np.eye(3) * 0.8 + 0.2 / 3}
        )


def test_zeros_of_maximum_likelihood_are_held_and_named():
    hmm, fit = three_states()
    np.testing.assert_allclose(-hmm.log_likelihood(fit), 329.4603, atol=5e-5)
    assert fit.num_params == 8 and fit.parameters["transition"][2, 0] == 0
    assert "1 transition probabilities held at zero" in fit.objective.note
    # Zucchini & MacDonald (2009), table 6.2: nine parameters, whatever the data say of them
    for model in (hmm, fit.objective):
        assert (model.aic(fit), model.bic(fit)) == pytest.approx((676.92, 700.98), abs=0.01)


@pytest.mark.slow
def test_refits_that_would_leave_zero_are_flagged():
    (hmm, fit), plan = three_states(), lo.blocks(107, 20)
    refits = lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0)
    np.testing.assert_array_equal(np.flatnonzero(unheld(hmm, fit, plan.matrix()) > 1e-6), [3])
    assert [k for k in range(6) if refits.result[k] == RESULTS.leaving] == [
        3
    ] and 3 in refits.flagged()
    assert "would leave zero in this fold" in str(refits)


def unheld(hmm, fit, weights):
    """The probability that the fit holds at zero, refitted from scratch on every fold in the model
    that does not.
    """
    transition = np.where(fit.parameters["transition"] == 0, 0.02, fit.parameters["transition"])
    start = fit.parameters | {"transition": transition / transition.sum(1, keepdims=True)}
    theta = hmm.parameters.unconstrained(start)
    look = lambda v, w: [part[0] for part in hmm.look(v[None], w[None])[:2]]
    found = [
        scipy.optimize.minimize(look, ravel(theta), (w,), jac=True, method="BFGS").x
        for w in weights
    ]
    return np.array(
        [hmm.parameters.natural(unflatten(v, theta))["transition"][2, 0] for v in found]
    )


@pytest.mark.slow
def test_criteria_of_four_states_are_published():
    """Zucchini & MacDonald (2009), table 6.2: sixteen parameters, of which six are put at zero."""
    hmm = lo.HMM(
        lo.datasets.earthquakes()["count"],
        lo.emissions.Poisson(),
        4,
        prior=None,
        initial="stationary",
    )
    with pytest.warns(UserWarning, match="at zero"):
        fit = lo.fit(hmm, num_starts=8)
    assert fit.num_params == 10 and fit.objective.num_specified == 16
    assert (fit.objective.aic(fit), fit.objective.bic(fit)) == pytest.approx(
        (687.66, 730.43), abs=0.01
    )


@pytest.mark.parametrize(
    "K, loss", [(2, 342.3183), pytest.param(3, 329.4603, marks=pytest.mark.slow)]
)
def test_maximum_likelihood_of_the_earthquakes(K, loss):
    """Zucchini & MacDonald (2009).

    Three states have their maximum where nothing leads from the last to the first.
    """
    transition = (
        "free"
        if K == 2
        else [[np.nan, np.nan, np.nan], [np.nan, np.nan, np.nan], [0, np.nan, np.nan]]
    )
    counts = lo.datasets.earthquakes()["count"]
    start = {
        "rate": [15.0, 26.0] if K == 2 else [13.0, 20.0, 30.0],
        "transition": np.eye(K) * 0.8 + 0.2 / K,
    }
    hmm = lo.HMM(
        counts, lo.emissions.Poisson(), K, prior=None, initial="stationary", transition=transition
    )
    fit = lo.fit(hmm, theta0=start)
    np.testing.assert_allclose(-hmm.log_likelihood(fit), loss, atol=5e-5)


@pytest.mark.slow
def test_an_early_stopped_model_is_taken_and_said():
    model = host.PoissonHMM(2, random_state=0, n_iter=3, tol=1e-2).fit(COUNTS)
    with pytest.warns(UserWarning, match="not stationary|went on from there"):
        fit = lo.from_hmmlearn(model, COUNTS)
    again = lo.fit(fit.objective, theta0=fit)
    best = host.PoissonHMM(2, **TIGHT).fit(COUNTS)
    assert again.decrement < 1e-6
    np.testing.assert_allclose(
        np.sort(again.parameters["rate"]), np.sort(best.lambdas_[:, 0]), rtol=1e-3
    )


def fitted(model, x=REAL):
    return model.fit(x)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: lo.from_hmmlearn(fitted(host.GMMHMM(2, 2)), REAL),
            TypeError,
            "GMMHMM is not supported.*GaussianHMM",
        ),
        (
            lambda: lo.from_hmmlearn(variational.VariationalGaussianHMM(2), REAL),
            TypeError,
            "not supported",
        ),
        (lambda: lo.from_hmmlearn(3, REAL), TypeError, "int is not supported"),
        (lambda: lo.from_hmmlearn(host.GaussianHMM(2), REAL), NotFittedError, "not fitted"),
        (lambda: lo.from_hmmlearn(fitted(host.GaussianHMM(2)), REAL[:, :1]), ValueError, "shape"),
        (
            lambda: lo.from_hmmlearn(fitted(host.GaussianHMM(2)), REAL, [3, 4]),
            ValueError,
            "add up to 7",
        ),
        (
            lambda: lo.from_hmmlearn(fitted(host.GaussianHMM(2, params="stc")), REAL),
            ValueError,
            "means_ was held fixed",
        ),
        (
            lambda: lo.from_hmmlearn(fitted(host.GaussianHMM(2, startprob_prior=0.5)), REAL),
            ValueError,
            "startprob_prior below 1",
        ),
        (
            lambda: lo.from_hmmlearn(
                fitted(host.PoissonHMM(2, lambdas_prior=2.0, lambdas_weight=1.0), COUNTS), COUNTS
            ),
            ValueError,
            "mode of no density",
        ),
        (
            lambda: lo.from_hmmlearn(
                fitted(host.CategoricalHMM(2, n_features=4), SYMBOLS), SYMBOLS
            ),
            ValueError,
            "on the boundary.*emissionprob_prior",
        ),
    ],
)
def test_hosts_that_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
