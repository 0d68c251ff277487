"""The theorem and its rungs, part by part.

Each figure against one worked out by hand, or in more digits.
"""

import itertools

import numpy as np
import pytest
import scipy.special
from sklearn.linear_model import LogisticRegression

import leaveout as lo
from leaveout.linalg import enclosure_theorem as _proved
from leaveout.models.glm import losses
from leaveout.optimize import fit as _fit
from leaveout.refit import _anchor as anchors, _enclosure, _linear as linear
from leaveout.validation import scoring as _asked

PLAN = lo.leave_one_out(60)


def some(seed=0, n=60, p=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, (rng.random(n) < scipy.special.expit(X[:, 0])) * 1.0


def test_a_ball_is_tight_for_one_row():
    """F″ is 1.5 where it is thought to be 2.

    A gradient of one leads 1/1.5 away, and a step of 1/2 leaves the rest.
    """
    gap = _proved.Gaps(np.array([[0.5]]), np.array([[0.5]]))
    slope, radius = np.array([1 / np.sqrt(2)]), np.array([10.0])
    found = _proved.ball(gap, np.array([[2.0]]), np.array([[0.5]]), slope, radius)
    assert found.distance == pytest.approx(np.sqrt(2) / 1.5) and found.after == pytest.approx(
        np.sqrt(2) * (1 / 1.5 - 1 / 2)
    )
    assert np.isinf(
        _proved.ball(gap, np.array([[2.0]]), np.array([[0.5]]), slope, np.array([0.9])).distance
    )


@pytest.mark.parametrize("loss", [losses.Binomial(), losses.Poisson(), losses.Huber(1.0)])
def test_secants_stay_within_their_gaps(loss):
    eta, reach = np.linspace(-3, 3, 31)[None], np.array([[0.01], [0.3], [1.0]])
    y = np.full(31, 1.0)
    here, curvature = loss.derivatives(eta, y, (1, 2))
    gap = _proved.gaps(
        loss, y, eta, _proved.CurvatureBounds(curvature, curvature), reach + 0 * eta, curvature
    )
    for share in (-1.0, -0.5, 0.5, 1.0):
        (there,) = loss.derivatives(eta + share * reach, y, (1,))
        secant = (there - here) / (share * reach)
        assert (secant >= curvature - gap.below - 1e-12).all() and (
            secant <= curvature + gap.beyond + 1e-12
        ).all()


HILLS = {  # losses whose ℓ″ has one hill: the domain of η, and y
    "probit": (losses.Binomial("probit"), (-9.0, 9.0), (0.0, 1.0)),
    "cloglog": (losses.Binomial("cloglog"), (-30.0, 4.0), (0.0, 1.0)),
    "loglog": (losses.Binomial("loglog"), (-4.0, 30.0), (0.0, 1.0)),
    "log": (losses.Binomial("log"), (-30.0, 0.0), (0.0, 1.0)),
    "log_complement": (losses.Binomial("log_complement"), (-30.0, 0.0), (0.0, 1.0)),
    "identity": (losses.Binomial("identity"), (0.0, 1.0), (0.0, 1.0)),
    "quasi": (losses.QuasiBinomial(2.0, "cloglog"), (-30.0, 4.0), (0.0, 1.0)),
    "sqrt": (losses.Poisson("sqrt"), (0.0, 9.0), (0.0, 1.0, 7.0)),
    "sqrt, below zero": (losses.Poisson("sqrt"), (-9.0, 0.0), (1.0, 7.0)),
    "counts, identity": (losses.Poisson("identity"), (0.0, 9.0), (0.0, 1.0, 7.0)),
    "quasi-Poisson, sqrt": (losses.QuasiPoisson(2.0, "sqrt"), (0.0, 9.0), (0.0, 1.0, 7.5)),
    "inverse": (losses.Gamma(2.5, "inverse"), (0.0, 9.0), (0.2, 7.0)),
    "inverse_squared": (losses.InverseGaussian(2.5, "inverse_squared"), (0.0, 9.0), (0.2, 7.0)),
}


@pytest.mark.parametrize("name", HILLS)
def test_curvatures_of_one_hill(name):
    """Closed forms are what JAX derives; ℓ″ rises up to its peak and falls from there on."""
    loss, (low, high), responses = HILLS[name]
    eta = low + (high - low) * np.sort(
        np.r_[np.linspace(0.002, 0.998, 397), np.geomspace(1e-6, 1e-3, 20)]
    )
    for y in responses:
        y = np.full_like(eta, y)
        found = loss.derivatives(eta, y, (0, 1, 2, 3))
        by_jax = losses.AbstractLoss.derivatives(Bare(loss), eta, y, (0, 1, 2, 3))
        for order, (mine, theirs) in enumerate(zip(found, by_jax, strict=True)):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-8, err_msg=f"order {order}")
        rises = np.diff(found[2]) / (np.abs(found[2][1:]) + np.abs(found[2][:-1]) + 1e-300)
        peak = loss.peak(y)
        assert (rises[eta[1:] <= peak[1:]] >= -1e-12).all() and (
            rises[eta[:-1] >= peak[1:]] <= 1e-12
        ).all()


class Bare(losses.AbstractLoss):
    """A loss without its closed forms."""

    loss: losses.AbstractLoss

    def __call__(self, eta, y):
        return self.loss(eta, y)


@pytest.mark.parametrize("name", HILLS)
def test_nothing_is_proved_of_a_ball_that_leaves_the_domain(name):
    """Gaps hold for all secants inside it.

    Where it ends within reach they are too large for any proof.
    """
    loss, (low, high), responses = HILLS[name]
    eta = low + (high - low) * np.linspace(0.02, 0.98, 49)[None]
    edges = [edge for edge in (low, high) if edge in ((0.0, 1.0) if name == "identity" else (0.0,))]
    for y in responses:
        y = np.full(49, y)
        here, curvature = loss.derivatives(eta, y, (1, 2))
        for reach, blur in itertools.product((1e-3, 0.1, 1.0), (0.0, 1e-14)):
            bounds = _proved.CurvatureBounds(curvature, curvature)
            gap = _proved.gaps(loss, y, eta, bounds, reach + 0 * eta, curvature, blur)
            leaves = (
                sum((np.abs(eta - edge) <= reach for edge in edges), np.zeros(eta.shape))
                * (("sqrt" not in name) | (y > 0))
                > 0
            )
            assert (gap.beyond[leaves] > 1e6).all()
            for move in reach * np.r_[-1.0, -0.3, 0.3, 1.0]:
                secant = (loss.derivatives(eta + move, y, (1,))[0] - here) / move
                slack = 1e-9 * (1 + np.abs(secant) + 1 / reach)
                assert (leaves | (secant >= curvature - gap.below - slack)).all()
                assert (leaves | (secant <= curvature + gap.beyond + slack)).all()


def test_a_loss_has_no_bound_across_its_pole():
    """(√μ) The density of a count at η = 0 is zero, whatever it is on either side."""
    loss, one = losses.Poisson("sqrt"), np.ones(1)
    assert np.isinf(_proved.change(loss, one, 0.5 * one, 0.5 * one, 0.9 * one)).all()
    assert np.isfinite(_proved.change(loss, one, 0.5 * one, 0.5 * one, 0.4 * one)).all()
    assert np.isfinite(_proved.change(loss, 0 * one, 0.5 * one, 0.5 * one, 0.9 * one)).all()


def test_every_ball_is_asked_for_where_its_gaps_were_taken(monkeypatch):
    """The radius of a ball is the reach of its gaps, in every rung."""
    seen, gaps, ball = [], _proved.gaps, _proved.ball

    def asked(loss, y, eta, bend, reach, reference, blur):
        seen.append(reach)
        return gaps(loss, y, eta, bend, reach, reference, blur)

    def told(gap, reference, size, slope, radius, more):
        share = size * reference  # w k² a, which is at most one: reach = radius k
        with np.errstate(divide="ignore", invalid="ignore"):
            norm = np.sqrt(np.where(reference * weight > 0, share / (reference * weight), np.nan))
        np.testing.assert_allclose(
            (radius[:, None] * norm)[np.isfinite(norm)], seen[-1][np.isfinite(norm)], rtol=1e-8
        )
        return ball(gap, reference, size, slope, radius, more)

    for rung in (anchors, _enclosure):
        monkeypatch.setattr(rung, "gaps", asked)
        monkeypatch.setattr(rung, "ball", told)
    X, y = some()
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)))
    weight = np.ones(60)
    group = np.arange(60) // 20
    for k in range(3):  # one refit at a time, so that its weights are known
        weight = (group != k) * 1.0
        monkeypatch.setattr(linear, "STEPS", 8 * (k != 1))  # the second goes by Newton's steps
        lo.cross_validate(
            fit,
            lo.from_splits([(np.flatnonzero(group != k), np.flatnonzero(group == k))], 60),
            strategy=lo.Exact(),
        )
    assert len(seen) >= 6


def test_a_fall_is_as_large_as_what_was_reported():
    loss, y = losses.Binomial(), np.ones(3)
    center, half = np.array([3.0, 0.0, -2.0]), np.array([0.1, 0.2, 0.3])
    reported = center - 2.0
    most = _proved.change(loss, y, reported, center, half)
    (told,) = loss.derivatives(reported, y, (0,))
    for share in np.linspace(-1, 1, 9):
        assert (
            np.abs(loss.derivatives(center + share * half, y, (0,))[0] - told) <= most + 1e-12
        ).all()


def test_rounding_of_large_predictors_is_an_error(monkeypatch):
    """Sums of large terms lose digits that no gradient sees, in one step too that is exact
    otherwise.
    """
    X, y = some(0, p=2)
    X[:, 1] += 1e3
    monkeypatch.setattr(_fit, "orthogonal_form", lambda model: None)  # it would have no large terms
    fit = lo.fit(lo.GLM(X, y, "squared"))
    look, anchor = linear.one_row(fit, np.arange(60), np.zeros(60)), anchors.linear_cache(fit)
    bulk = anchor.rounding.bulk * anchor.length  # no less than Σ_j |x_ij θ_j|
    assert (
        (look.half >= 1e-16 * bulk).all() and (look.half <= 1e-11 * bulk).all() and bulk.max() > 10
    )
    assert (look.half >= anchor.rounding.predictor(anchor.length, np.abs(look.center))).all()


@pytest.mark.parametrize("name", ["logistic", "squared", "poisson"])
def test_no_error_is_below_the_rounding_of_the_loss(name):
    loss, y = losses.resolve(name), np.array([0.0, 1.0, 1.0])
    center = np.array([-40.0, 0.3, 35.0])
    (value,) = loss.derivatives(center, y, (0,))
    assert (
        _proved.change(loss, y, center, center, np.zeros(3)) >= 2.0**-53 * value
    ).all() and value.min() > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("short", [0.05, 1e-3, 1e-5])
@pytest.mark.parametrize("plan", [PLAN, lo.kfold(60, 5, rng=0)], ids=["rows", "folds"])
def test_what_a_fit_left_is_no_error(plan, short):
    X, y = some()
    model = lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.5))
    fit = lo.fit(model)
    coef, intercept = (
        np.array(fit.parameters["coef"]) + short,
        float(fit.parameters["intercept"]) - short,
    )
    rough = lo.anchor(model, {"intercept": intercept, "coef": coef}, throw=False)
    told, true = (
        lo.cross_validate(rough, plan),
        lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12)),
    )
    off = np.bincount(plan.refit, np.abs(told.losses - true.losses))
    assert told.proved.all() and (off <= told.error + 1e-10).all()


def test_a_heavy_row_of_high_leverage_lies_in_its_ball():
    X, y = some(1)
    X[5] *= 6.0
    weight = np.ones(60)
    weight[5] = 20.0
    fit = lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(0.3), sample_weight=weight))
    true = lo.cross_predict(fit, PLAN, strategy=lo.Exact(1e-12), kind="link")
    look = linear.one_row(fit, np.arange(60), np.zeros(60))
    kept = 1 - lo.diagnostics.leverage(fit)
    np.testing.assert_allclose(look.kept_share, np.asarray(kept), rtol=1e-6)
    assert (np.abs(look.center - true) <= look.half + 1e-9).all()
    norm, table = anchors.linear_cache(fit).norm, anchors.linear_cache(fit).table
    after = table.ball(look.step_length, look.kept_share, np.ones(60)).after
    with np.errstate(invalid="ignore"):
        assert (
            look.half >= np.where(np.isfinite(after), norm / np.sqrt(look.kept_share) * after, 0.0)
        ).all()


@pytest.mark.parametrize("kept", [0.5, 0.04])
def test_what_has_left_holds_no_more(kept):
    """Two equal rows, one of which leaves.

    e^η − yη ends where e^η = y, and the table knows how far a step stays from there.
    """
    for way in np.r_[-1.0, 1.0]:
        for t in way * 10.0 ** np.linspace(-4, -0.3, 60):
            both = np.zeros(2)
            size = np.array([kept, 1 - kept])
            table = _proved.RadiusTable(
                losses.Poisson(), np.ones(2), both, np.ones(2), size, np.ones(2)
            )
            step = np.expm1(t)  # −∇F / F″
            found = table.ball(np.array([np.sqrt(kept) * abs(step)]), np.array([kept]), np.ones(1))
            assert np.sqrt(kept) * abs(t) <= found.distance[0] * (1 + 1e-9)
            assert np.sqrt(kept) * abs(t - step) <= found.after[0] * (1 + 1e-6)


@pytest.mark.parametrize("kept", [0.9, 0.2])
def test_the_table_holds_around_candidates_too(kept):
    """The same from candidates on the way.

    As far as the curvature there may be from the anchor's.
    """
    size = np.array([kept, 1 - kept])
    table = _proved.RadiusTable(
        losses.Poisson(), np.ones(2), np.zeros(2), np.ones(2), size, np.ones(2)
    )
    proved = 0
    for end in np.r_[-1.0, 1.0, -0.5, 0.5] * 0.4 * kept:
        for at in end * (1 + np.r_[-1, 1, -1e-3, 1e-3, -1e-2, 1e-2, -0.1, 0.1, -0.3, 0.3]):
            slope, step = np.sqrt(kept) * abs(np.exp(at) - np.exp(end)), np.exp(end) - np.exp(at)
            found = table.ball(np.array([slope]), np.array([kept]), np.ones(1), np.array([abs(at)]))
            assert np.sqrt(kept) * abs(end - at) <= found.distance[0] * (1 + 1e-9)
            assert np.sqrt(kept) * abs(end - at - step) <= found.after[0] * (1 + 1e-6)
            proved += np.isfinite(found.distance[0])
    assert proved > 3


def test_the_table_reaches_no_further_than_it_was_made_for():
    """C at a candidate is that of twice the radius of the ball around the anchor that holds its
    own.
    """
    table = _proved.RadiusTable(
        losses.Poisson(), np.ones(1), np.zeros(1), np.ones(1), np.ones(1), np.ones(1)
    )
    moved, slope = (
        part.ravel()
        for part in np.meshgrid(np.geomspace(0.01, 0.3, 40), np.geomspace(1e-4, 0.3, 40))
    )
    found = table.ball(slope, np.ones(1600), np.ones(1600), moved)
    known = np.isfinite(found.distance)
    share = found.after[known] / found.distance[known]
    # ℓ″ may be so much more
    assert known.mean() > 0.3 and (share >= np.expm1((moved + found.distance)[known])).all()


@pytest.mark.parametrize("plan", [lo.groups(np.arange(60) % 4), lo.kfold(60, 3, rng=1)])
def test_the_metric_is_the_folds_own(plan):
    X, y = some(2)
    for penalty in (lo.penalties.Ridge(3.0), lo.penalties.per_weight(lo.penalties.Ridge(0.05))):
        fit = lo.fit(lo.GLM(X, y, "logistic", penalty))
        anchor = anchors.linear_cache(fit)
        for k in range(plan.num_refits):
            rows = plan._one(k).rows
            weights = np.ones((1, 60))
            weights[0, rows.index[0]] = rows.weight[0]
            omega, kappa = anchor.model.weigh(weights)
            own = (
                anchor.model.design.gram(omega, anchor.curvature[None])[0]
                + kappa[0] * anchor.model.penalty
            )
            whole = anchor.root @ own @ anchor.root.T
            metric = anchors.FoldMetric(anchor, rows, np.asarray(rows.weight) - 1)
            gradient = np.random.default_rng(k).normal(size=(1, len(whole)))
            np.testing.assert_allclose(
                whole @ metric.solve(gradient, np.arange(1))[0], gradient[0], rtol=1e-7, atol=1e-9
            )
            assert metric.kept_share[0] <= np.linalg.eigvalsh(whole)[0] * (1 + 1e-9)


def test_estimates_of_large_problems_are_called_so(monkeypatch):
    X, y = some(3)
    fit = lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(0.05)))
    plan = lo.kfold(60, 6, rng=0)
    true, called = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12), audit=0), []
    monkeypatch.setattr(linear, "COSTLY_OPERATIONS", 0.0)
    monkeypatch.setattr(linear, "STEPS", 1)
    for rtol in 10.0 ** -np.arange(1.0, 7.0, 0.25):
        cv = lo.cross_validate(fit, plan, strategy=lo.Certified(float(rtol)), audit=0)
        off = np.bincount(plan.refit, np.abs(cv.losses - true.losses))
        assert (off <= cv.error * (1 + 1e-6) + 1e-9).all()
        called.append(cv.proved.all())
    assert not all(called)


def test_an_estimated_contraction_serves_the_steps_after_it(monkeypatch):
    """Where p is near n nothing is proved, and the products that tell a contraction cost more than
    steps do.
    """
    X, y = some(6, n=120, p=60)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.5)))
    plan, lanes, contraction = lo.leave_one_out(120), [], _enclosure._contraction
    true = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12), audit=0)
    monkeypatch.setattr(linear, "COSTLY_OPERATIONS", 0.0)
    monkeypatch.setattr(linear, "_budget", lambda step: 0.0)
    monkeypatch.setattr(
        _enclosure,
        "_contraction",
        lambda state, some: (lanes.extend(some), contraction(state, some))[1],
    )
    for rtol in (0.1, 1e-2, 1e-4, 1e-6):
        lanes.clear()
        cv = lo.cross_validate(fit, plan, strategy=lo.Certified(rtol), audit=0)
        assert (np.abs(cv.losses - true.losses) <= cv.error * (1 + 1e-6) + 1e-9).all()
        assert (cv.error <= 5 * rtol * cv.scale * (1 + 1e-9)).all()
        assert not cv.proved.all() and len(lanes) <= 1.5 * len(true.error)


def test_the_next_term_is_the_sum_it_says(monkeypatch):
    monkeypatch.setattr(linear.single_rows, "SIZES", (32, 20_000))
    X, y = some(4)
    X[0] *= 5
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.5)))
    anchor, unit = anchors.linear_cache(fit), np.arange(60)
    look = linear.one_row(fit, unit, np.zeros(60))
    z = anchor.whiten(unit)
    G, (third,) = z @ z.T, anchor.model.loss.derivatives(anchor.eta, y, (3,))
    D = G * (anchor.slope / look.kept_share)
    each = third[:, None] * D**2 * G
    np.fill_diagonal(each, 0.0)
    by_hand = -0.5 * each.sum(0) / look.kept_share
    term = linear.single_rows.next_term(anchor, look, None)
    np.testing.assert_allclose(term.move, by_hand, rtol=1e-4, atol=1e-4 * np.abs(by_hand).max())
    sample = linear.single_rows.next_term(anchor, look, 20_000)
    assert (np.abs(sample.move - by_hand) <= 5 * sample.spread + 1e-9).all()
    assert (
        np.median(sample.spread)
        < 0.1 * np.median(np.abs(by_hand) + 1e-12) + 0.1 * np.abs(by_hand).max()
    )


def test_one_rate_without_one_count_is_where_the_next_term_says():
    """e^θ to be fitted to counts, one left out.

    θ = log of a mean in closed form, from small steps to large ones.
    """
    rng = np.random.default_rng(0)
    tight = []
    for scale in 10.0 ** np.linspace(-2, 0.7, 12):
        y, w = rng.poisson(3.0, 30) + 1.0, rng.uniform(0.5, 1.5, 30)
        w[:10] *= scale
        fit = lo.fit(lo.GLM(np.ones((30, 1)), y, "poisson", sample_weight=w, intercept=False))
        anchor, lost = anchors.linear_cache(fit), rng.uniform(0.2, 1.0, 30) * w
        look = linear.one_row(fit, np.arange(30), 1 - lost / w)
        true = np.log((w @ y - lost * y) / (w.sum() - lost))
        center, half = linear.single_rows.settle_rows(anchor, look)
        assert (np.abs(center - true) <= half).all() and (
            half[np.abs(lost) < 0.01 * w.sum()] < np.inf
        ).all()
        np.testing.assert_allclose(
            center - look.center, -0.5 * (look.center - anchor.eta) ** 2, rtol=1e-5, atol=1e-9
        )
        tight.append(half / look.half)
    assert np.median(tight) < 0.2


@pytest.mark.parametrize("kind", ["logistic", "weights", "poisson", "gamma", "rough"])
def test_the_next_term_of_all_rows_leaves_what_is_proved(kind):
    """Against refits from scratch; single rows of which all or a part leaves."""
    rng = np.random.default_rng(7)
    X, weight = rng.normal(size=(80, 3)) * [1.0, 2.0, 0.3], np.ones(80)
    eta = X @ [0.5, 0.2, 1.0]
    loss = {"poisson": "poisson", "gamma": "gamma"}.get(kind, "logistic")
    y = {"poisson": rng.poisson(np.exp(eta)), "gamma": rng.gamma(2.0, np.exp(eta) / 2)}.get(
        loss, rng.logistic(size=80) < eta
    )
    if kind == "weights":
        weight = np.exp(rng.normal(size=80))
    fit = lo.fit(lo.GLM(X, y.astype(float), loss, lo.penalties.Ridge(0.5), sample_weight=weight))
    exact, part = fit, 1 - rng.uniform(0.3, 1.0, 80)
    if kind == "rough":
        known = fit.parameters
        fit = lo.anchor(
            fit.objective,
            {"intercept": known["intercept"], "coef": known["coef"] + 1e-4},
            throw=False,
        )
    plan = lo.Plan(np.arange(81), np.arange(80), part, np.zeros(80, bool), 80)
    theta = lo.fold_parameters(exact, plan, strategy=lo.Exact(1e-13))
    true = np.einsum("np,np->n", X, theta["coef"]) + theta["intercept"]
    anchor, look = anchors.linear_cache(fit), linear.one_row(fit, np.arange(80), part)
    z, (third,) = anchor.rows, anchor.model.loss.derivatives(anchor.eta, anchor.model.y, (3,))
    along = look.lost_curvature * (anchor.slope + anchor.curvature * (look.center - anchor.eta))
    gram = z @ z.T
    stays = anchor.weight[:, None] - np.diag(look.lost_curvature)
    by_hand = -0.5 * along**2 * np.sum(stays * third[:, None] * gram**3, axis=0) / look.kept_share
    center, half = linear.single_rows.settle_rows(anchor, look)
    np.testing.assert_allclose(center - look.center, by_hand, rtol=1e-4, atol=1e-7)
    assert (np.abs(center - true) <= half + 1e-11).all()
    assert np.median(half) < 0.3 * np.median(look.half)
    heavier = linear.one_row(fit, np.arange(80), np.full(80, 2.0))
    # rows that gain weight are not what the theorem is of
    assert not linear.single_rows.promising(anchor, heavier).any()


def test_a_function_of_many_directions_has_the_change_of_all():
    """‖u‖-like sums: linear in every coordinate, looked at along eight of forty directions."""
    X, y = some(5, n=200, p=40)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(5.0)))
    direction = np.random.default_rng(3).normal(size=(64, 41))
    rank = 41
    center, radius = np.zeros((1, rank)), np.ones(1)

    class Done:
        theta, parameters_at = fit.vector, None
        ball = staticmethod(lambda: (center, radius))

    to_u = lambda theta: np.asarray(fit.quadratic.back(theta - fit.vector))
    sizes = []
    for d in direction:
        found = _asked.largest_change(fit, Done(), np.zeros(1), lambda theta, d=d: to_u(theta) @ d)
        sizes.append(found[0] / np.linalg.norm(d))
    assert np.median(sizes) >= 1.0


def test_the_shares_of_an_area_have_the_spread_of_a_rank_sum():
    """Mann and Whitney: without ties and signal, Var(area) = (n₁ + n₀ + 1)/(12 n₁ n₀)."""
    from leaveout.validation import metrics as _metrics

    rng = np.random.default_rng(0)
    positive, weight = np.arange(4000) < 400, np.ones(4000)
    values = _metrics.area(positive, rng.random(4000), weight)
    se = values.std(ddof=1) / np.sqrt(4000)
    assert se == pytest.approx(np.sqrt(4001 / (12 * 400 * 3600)), rel=0.1)


@pytest.mark.parametrize("tiny", [1e-150, 1e-199, 1e-230, 1e-304])
def test_curvature_next_to_nothing_counts_where_nothing_else_is(tiny):
    """A unit that alone holds a direction has a share of one there, however little its curvature
    is.
    """
    reference, gap = np.array([0.2, tiny]), np.tile([0.02, 0.5 * tiny], (2, 1))
    size = np.array([[0.5, 1 / tiny], [0.5, 1e-3]])
    tau = np.linspace(0.0, 1.0, 1001)[:, None, None]
    least = (tau[..., 0] + np.sum(size * np.maximum(gap - tau * reference, 0.0), axis=-1)).min(0)
    found = _proved.share(gap, reference, size)
    assert (found >= least - 1e-12).all() and found[1] == pytest.approx(least[1], rel=1e-3)


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
@pytest.mark.parametrize("strength", [1.0, 0.02])
def test_wide_refits_without_hessians_are_within_their_estimates(monkeypatch, loss, strength):
    """As many columns as rows, weak penalties.

    Steps with the metric at θ̂ stall, and Hessians are declared dear.
    """
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 60))
    y = np.digitize(
        X[:, 0] + X[:, 1] + rng.logistic(size=60), [-0.7, 0.9] if loss == "multinomial" else [0.0]
    )
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(strength), intercept=False))
    tol = {"tol": 1e-10, "max_iter": 10_000, "fit_intercept": False, "C": 1 / strength}
    true = np.empty(60)
    for k in range(60):
        seen = np.arange(60) != k
        host = LogisticRegression(solver="newton-cholesky", **tol).fit(X[seen], y[seen])
        true[k] = -host.predict_log_proba(X[k : k + 1])[0, y[k]]
    monkeypatch.setattr(linear, "COSTLY_OPERATIONS", 0.0)
    monkeypatch.setattr(linear, "_budget", lambda step: 0.0)
    settled = []

    def counted(state, lanes, enough):
        left = _enclosure.conjugate(state, lanes, enough)
        settled.append((len(lanes), len(left)))
        return left

    monkeypatch.setattr(linear, "conjugate", counted)
    for refit in (lo.Certified(), lo.Certified(1e-5), lo.NewtonStep(), lo.Exact(1e-7)):
        cv = lo.cross_validate(fit, lo.leave_one_out(), strategy=refit, audit=0)
        # scikit-learn's own digits
        assert (np.abs(cv.losses - true) <= cv.error * (1 + 1e-6) + 2e-6).all()
        assert np.isfinite(cv.error).all()
    before, left = np.sum(settled, axis=0)
    assert before > 30 and left < before / 2


def test_candidates_of_conjugate_gradients_are_as_near_as_they_are_said_to_be():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 60))
    fit = lo.fit(
        lo.GLM(
            X,
            (X[:, 0] + rng.logistic(size=60) > 0) * 1.0,
            "logistic",
            lo.penalties.Ridge(0.02),
            intercept=False,
        )
    )
    (batch,) = lo.leave_one_out(60)._batches(10_000, 1, 0)
    seen = []

    def look(state, lanes):
        part = _enclosure.take(state.candidates, lanes)
        seen.append((lanes, part.u, part.radius))
        return part.slope < 1e-7

    state, open_ = _enclosure.conjugate(_enclosure.first_look(fit, batch.rows), np.arange(60), look)
    parts = [np.concatenate(part) for part in zip(*seen, strict=True)]
    lanes, u, radius = (part[~np.isin(parts[0], open_)] for part in parts)
    away = np.linalg.norm(u - state.candidates.u[lanes], axis=1)
    told = away > 1e-4
    assert told.sum() > 50 and (away <= radius)[told].all()
    assert np.median(radius[told] / away[told]) < 20


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_conjugate_gradients_tell_how_near_refits_are_that_rounding_stopped(loss):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 4))
    y = np.digitize(rng.logistic(size=60), [-0.7, 0.9] if loss == "multinomial" else [0.0])
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(1.0)))
    (batch,) = lo.leave_one_out(60)._batches(10_000, 1, 0)
    refits = np.arange(60)
    never = lambda state, lanes: np.zeros(len(lanes), bool)
    state, _ = _enclosure.take_steps(_enclosure.first_look(fit, batch.rows), refits, never, 40)
    assert (state.candidates.slope < 1e-10).all()
    near = lambda state, lanes: state.candidates.radius[lanes] < 1e-9
    assert not _enclosure.conjugate(state, refits, near)[1].size
