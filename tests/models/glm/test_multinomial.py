"""Several outputs: refits of multinomial models against Newton's method written here, on problems
that are hard to bound.
"""

import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout.linalg import design as _design
from leaveout.linalg.design import DenseDesign, MultiOutputDesign
from leaveout.linalg.rounding import condition, factor_error
from leaveout.refit import _anchor, _linear as linear

L = lo.losses.Multinomial()
KINDS = (
    *("plain", "weights 1", "weights 2", "weights 3", "weights 0 or 1e6", "row x 1000"),
    *("heavy tails", "rare class", "p near n", "weak penalty"),
)


def value(eta, y):
    top = eta.max(-1)
    return np.log(np.exp(eta - top[:, None]).sum(-1)) + top - eta[np.arange(len(y)), y]


def newton(X, y, w, alpha, start):
    """argmin Σ w ℓ(θ x, y) + ½ Σ alpha θ², θ `[classes, features]`, and whether it was reached.

    Common shifts stay.
    """
    theta, (K, q) = start.copy(), start.shape
    penalty = np.kron(np.eye(K), np.diag(alpha))
    flat = np.kron(np.ones((K, K)), np.diag((alpha == 0) * 1.0))
    F = lambda t: w @ value(X @ t.T, y) + 0.5 * np.sum(alpha * t**2)
    now, last, near = F(theta), np.inf, False
    for _ in range(300):
        eta = X @ theta.T
        p = np.exp(eta - eta.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        g = ((w[:, None] * (p - np.eye(K)[y])).T @ X + alpha * theta).ravel()
        W = w[:, None, None] * (np.eye(K) * p[:, None, :] - p[:, :, None] * p[:, None, :])
        H = np.einsum("nkl,np,nq->kplq", W, X, X, optimize=True).reshape(K * q, K * q) + penalty
        scale = 1 / np.sqrt(np.diag(H) + 1e-300)
        try:
            step = scale * np.linalg.solve(
                scale[:, None] * (H + flat * np.diag(H).mean()) * scale, scale * g
            )
        except np.linalg.LinAlgError:
            return theta, False
        decrement, step = g @ step, step.reshape(K, q)
        near |= decrement < 1e-13 * max(1.0, abs(now))
        if near:  # full steps from here on, until rounding stops them
            if not 0 < decrement < last / 4:
                return theta, True
            theta, last = theta - step, decrement
            continue
        size = 1.0
        while size > 1e-12 and not (
            after := F(theta - size * step)
        ) <= now - 1e-4 * size * decrement + 1e-15 * abs(now):
            size /= 2
        if size <= 1e-12 or not np.isfinite(after):  # F can no longer tell, or there is no way down
            near = decrement < 1e-10 * max(1.0, abs(now))
            if near:
                continue
            return theta, False
        theta, now = theta - size * step, after
    return theta, False


def problem(seed):
    rng = np.random.default_rng(seed)
    kind, K = KINDS[seed % len(KINDS)], 3 + seed // len(KINDS) % 3
    n, p = (60, 30) if kind == "p near n" else (90, 5)
    X = rng.standard_t(2, (n, p)) if kind == "heavy tails" else rng.normal(size=(n, p))
    w, group = np.ones(n), rng.permutation(np.arange(n) % 6)
    if kind.startswith("weights") and kind[-1] in "123":
        w = np.exp(int(kind[-1]) * rng.normal(size=n))
    if kind == "weights 0 or 1e6":
        w = np.where(rng.random(n) < 0.1, rng.choice([1e-6, 1e6, 0.0], n), 1.0)
    if kind == "row x 1000":
        X[rng.integers(n)] *= 1000
    eta = np.clip(X @ rng.normal(size=(p, K)) / np.sqrt(p / 3), -6, 6)
    y = np.argmax(eta + rng.gumbel(size=(n, K)), axis=1)
    if kind == "rare class":
        y = np.where(y == K - 1, 0, y)
        y[np.flatnonzero(group == 0)[:3]] = K - 1
        y[np.flatnonzero(group == 1)[0]] = K - 1
    y[rng.permutation(n)[:K]] = np.arange(K)
    intercept = kind != "rare class" and seed % 2 == 1
    alpha = np.full(p, 1e-3 if kind == "weak penalty" else 0.1)
    return kind, X, y, w, group, alpha, intercept, K


def attack(seed, refit=None):
    """[folds, beyond, of these proved, missed, without an answer], proved, errors reported and
    true, of one problem.
    """
    kind, X, y, w, group, alpha, intercept, K = problem(seed)
    n = len(y)
    fit = lo.fit(
        lo.GLM(X, y, "multinomial", lo.penalties.Ridge(alpha), sample_weight=w, intercept=intercept)
    )
    design = np.c_[X, np.ones(n)] if intercept else X
    alpha = np.r_[alpha, 0.0] if intercept else alpha
    full, _ = newton(design, y, w, alpha, np.zeros((K, design.shape[1])))
    counts, proved, told, true_error = np.zeros(5, int), [], [], []
    se = float(np.std(value(design @ full.T, y))) / np.sqrt(n)
    plans = [lo.leave_one_out(n), lo.groups(group), lo.bootstrap(n, 6, rng=seed)]
    for plan in plans:
        cv = lo.cross_validate(fit, plan, *([] if refit is None else [refit]))
        flagged = set(cv.flagged().tolist())
        for k in range(plan.num_refits):
            entries = slice(plan.indptr[k], plan.indptr[k + 1])
            units, held = plan.index[entries], plan.held[entries]
            rest = w.copy()
            rest[units] *= plan.weight[entries]
            theta, reached = newton(design, y, rest, alpha, full)
            out = units[held]
            # then there is no minimiser
            if not reached or (intercept and len(np.unique(y[rest > 0])) < K):
                continue
            counts[0] += 1
            losses, error = cv.losses[entries][held], cv.error[k]
            if not np.isfinite(losses).all():
                counts[4] += 1
                continue
            true = value(design[out] @ theta.T, y[out])
            off = np.abs(losses - true).sum()
            beyond = off > error * (1 + 1e-6) + 1e-8 * (1 + np.abs(true).sum())
            counts[1:3] += [beyond, beyond and cv.proved[k]]
            counts[3] += off > 0.1 * se * len(out) + 1e-6 and off > 2 * error and k not in flagged
            proved.append(bool(cv.proved[k]))
            told.append(error)
            true_error.append(off)
    return kind, counts, np.array(proved), np.array(told), np.array(true_error)


@pytest.mark.parametrize("seed", [0, 3, 5, 7])
def test_no_refit_is_beyond_what_is_proved(seed):
    _, (folds, beyond, _, missed, silent), proved, *_ = attack(seed)
    assert folds > 60 and beyond == missed == silent == 0 and proved.all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 30))
def test_no_refit_of_many_problems_is(seed):
    _, (folds, beyond, _, missed, _), *_ = attack(seed)
    assert folds and beyond == missed == 0


def test_arithmetic_of_softmax():
    """Curvatures between ratios of probabilities, their changes by the range of a move, the reach
    of the loss, at random.
    """
    rng = np.random.default_rng(0)
    eta, at, s = rng.normal(size=(3, 300, 4)) * rng.choice([0.1, 1.0, 8.0], (3, 300, 1))
    y = rng.integers(4, size=300)
    loss, slope, W = L.derivatives(eta, y, (0, 1, 2))
    with jax.enable_x64(True):
        for got, by in ((loss, L), (slope, jax.grad(L)), (W, jax.hessian(L))):
            np.testing.assert_allclose(got, jax.jit(jax.vmap(by))(eta, y.astype(float)), atol=1e-13)
    B = L.roots(eta)
    np.testing.assert_allclose(B @ B.swapaxes(1, 2), W, atol=1e-15)
    spread = np.ptp(s, axis=1)
    fall, rise = L.within(eta, y, spread)
    moved = L.derivatives(eta + s, y, (0,))[0] - loss
    assert np.all(moved <= rise * (1 + 1e-9) + 1e-12) and np.all(
        -moved <= fall * (1 + 1e-9) + 1e-12
    )
    low, high = L.ratios(eta, at)
    v = rng.normal(size=(10, 300, 4))
    of = lambda M: np.einsum("vnk,nkl,vnl->vn", v, M, v)
    here, there = of(W), of(L.derivatives(at, y, (2,))[0])
    assert np.all(low * there <= here * (1 + 1e-6) + 1e-12) and np.all(
        here <= high * there * (1 + 1e-6) + 1e-12
    )
    nodes, weights = np.polynomial.legendre.leggauss(30)
    secant = sum(
        0.5 * c * of(L.derivatives(eta + 0.5 * (1 + t) * s, y, (2,))[0])
        for t, c in zip(nodes, weights, strict=True)
    )
    assert np.all(here * -np.expm1(-spread) / spread <= secant * (1 + 1e-6) + 1e-12)
    assert np.all(secant <= here * np.expm1(spread) / spread * (1 + 1e-6) + 1e-12)
    assert np.isfinite(L.derivatives(eta * 1e3, y, (0, 1, 2))[0]).all()


def test_corrected_predictors_have_the_losses_that_are_asked_for():
    rng = np.random.default_rng(0)
    eta, y = rng.normal(size=(300, 4)) * rng.choice([0.1, 1.0, 8.0], (300, 1)), np.arange(300) % 4
    (loss,) = L.derivatives(eta, y, (0,))
    change, error = loss * rng.uniform(-0.9, 2.0, 300), 10 ** rng.uniform(-6, 0, 300)
    moved, spread = L.corrected(eta, y, change, error)
    np.testing.assert_allclose(L.derivatives(moved, y, (0,))[0], loss + change, rtol=1e-9)
    np.testing.assert_allclose(L.within(moved, y, spread)[1], error, rtol=1e-9)
    unmoved, unknown = L.corrected(eta, y, -2 * loss, error)
    assert np.array_equal(unmoved, eta) and np.isinf(unknown).all()


def hard(n=60, **options):
    rng = np.random.default_rng(1)
    X, offset, weight = rng.normal(size=(n, 3)), rng.normal(size=(n, 3)), rng.uniform(0.2, 3, n)
    y = np.argmax(X @ rng.normal(size=(3, 3)) + offset + rng.gumbel(size=(n, 3)), axis=1)
    penalty = options.pop("penalty", lo.penalties.Ridge(0.3))
    make = lambda rows: lo.GLM(
        X[rows],
        y[rows],
        "multinomial",
        penalty,
        sample_weight=weight[rows],
        offset=offset[rows],
        **options,
    )
    return X, y, offset, make


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"class_weight": "balanced"},
        {"penalty": lo.penalties.per_weight(lo.penalties.Ridge(0.01))},
    ],
    ids=["plain", "balanced", "by weight"],
)
def test_weights_of_its_own(options):
    """Offsets, weights, class weights and penalties that follow the fold.

    Refits of the rest from scratch are as told.
    """
    X, y, offset, make = hard(**dict(options))
    fit, plan = lo.fit(make(np.arange(60))), lo.kfold(60, 6, rng=0)
    found = lo.cross_validate(fit, plan), lo.cross_validate(fit, plan, strategy=lo.Exact())
    for k in range(plan.num_refits):
        out = plan.index[plan.indptr[k] : plan.indptr[k + 1]]
        refit = lo.fit(make(np.setdiff1d(np.arange(60), out))).parameters
        want = value(X[out] @ refit["coef"].T + refit["intercept"] + offset[out], y[out])
        for cv, slack in zip(found, (0.0, 1e-7), strict=True):
            assert cv.proved[k]
            off = np.abs(cv.losses[plan.indptr[k] : plan.indptr[k + 1]] - want).sum()
            assert off <= cv.error[k] + 1e-8 and (not slack or off <= slack)


@pytest.mark.parametrize(
    "refit", [lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.NewtonStep(), lo.Certified(0.1)]
)
def test_every_strategy_tells_how_far_it_is(refit):
    *_, make = hard()
    fit = lo.fit(make(np.arange(60)))
    for plan in (lo.leave_one_out(60), lo.kfold(60, 5, rng=0), lo.bootstrap(60, 5, rng=0)):
        exact, cv = (
            lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12)),
            lo.cross_validate(fit, plan, strategy=refit),
        )
        true = np.bincount(
            plan.refit[plan.held], np.abs(cv.losses - exact.losses)[plan.held], plan.num_refits
        )
        assert np.all(true <= cv.error + exact.error + 1e-9)
        assert not cv.audit.beyond.any() and np.isfinite(cv.error).all()


def test_predictions_parameters_and_measures():
    X, y, offset, make = hard()
    fit, plan = lo.fit(make(np.arange(60))), lo.leave_one_out(60)
    exact = np.asarray(lo.cross_predict(fit, plan, strategy=lo.Exact(1e-12), kind="link"))
    found = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-12))
    np.testing.assert_allclose(
        np.einsum("nkq,nq->nk", found["coef"], X) + found["intercept"] + offset, exact, atol=1e-9
    )
    p = np.asarray(lo.cross_predict(fit, plan))
    np.testing.assert_allclose(p.sum(1), 1)
    cv = lo.cross_validate(fit, plan, metric=("accuracy", "brier"))
    np.testing.assert_allclose(-np.log(p[np.arange(60), y]), cv.losses, atol=1e-3)
    assert np.isfinite(cv.metrics.loc[list(cv.measured), "error"]).all()
    own = lambda held, seen, at: value(
        X[held] @ at["coef"].T + at["intercept"] + offset[held], y[held]
    )
    asked = lo.cross_validate(fit, plan, evaluate=own)
    true = value(exact, y)
    assert (
        np.all(np.abs(asked.losses - true) <= asked.error + 1e-8) and np.isfinite(asked.error).all()
    )


def test_a_common_shift_of_the_intercepts_changes_nothing():
    *_, make = hard()
    fit, plan = lo.fit(make(np.arange(60))), lo.kfold(60, 5, rng=0)
    moved = lo.anchor(
        fit.objective, fit.parameters | {"intercept": fit.parameters["intercept"] + 3.0}
    )
    for refit in (lo.Certified(), lo.Exact()):
        one, other = (lo.cross_validate(at, plan, strategy=refit) for at in (fit, moved))
        np.testing.assert_allclose(other.losses, one.losses, atol=1e-9)
        assert other.proved.all()


def test_a_class_that_is_left_out_whole():
    """Without a penalty on its intercept no refit exists, and none is told."""
    _, y, _, make = hard()
    fit = lo.fit(make(np.arange(60)))
    cv = lo.cross_validate(fit, lo.groups((y == 2) * 1))
    assert np.isnan(cv.losses[cv.plan.refit == 1]).all() and not cv.proved[1] and 1 in cv.flagged()


def weighted_fit():
    rng = np.random.default_rng(1)
    X, y, w = rng.normal(size=(80, 3)), rng.integers(0, 3, 80), np.exp(0.5 * rng.normal(size=80))
    X[0] *= 3
    return lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(1.0), sample_weight=w)), w


def test_the_next_term_is_the_sum_it_says(monkeypatch):
    """−½ bᵀU_j A_j⁻¹ Σ_i U_iᵀ ∇³ℓ_i[U_iu_j, U_iu_j], b the slope of the row's loss."""
    monkeypatch.setattr(linear.single_rows, "SIZES", (32, 20_000))
    (fit, w), plan = weighted_fit(), lo.leave_one_out(80)
    anchor, state = (
        linear.linear_cache(fit),
        linear.first_look(fit, next(iter(plan._batches(10**9, 4, 1, 1, True))).rows),
    )
    look, move = linear.one_row(fit, np.arange(80), np.zeros(80)), np.zeros(80)
    y = anchor.model.y.astype(int)
    before, slope = L.derivatives(look.center, y, (0, 1))
    x, inverse = anchor.model.design.base.x, anchor.root.T @ anchor.root
    p = np.exp(anchor.eta) / np.exp(anchor.eta).sum(1, keepdims=True)
    for j in range(80):
        own = np.kron(np.eye(3), x[j])
        across = slope[j] @ np.linalg.solve(
            np.eye(3) - own @ inverse @ own.T @ (w[j] * anchor.curvature[j]), own @ inverse
        )
        for i in np.delete(np.arange(80), j):
            other = np.kron(np.eye(3), x[i])
            s = other @ (state.candidates.u[j] @ anchor.root)
            third = w[i] * p[i] * ((s - p[i] @ s) ** 2 - p[i] @ (s - p[i] @ s) ** 2)
            move[j] -= 0.5 * across @ other.T @ third
    np.testing.assert_allclose(
        linear.single_rows.next_term(anchor, look, None).move, move, atol=1e-5 * abs(move).max()
    )
    with monkeypatch.context() as patch:
        patch.setattr(linear.single_rows, "SINGLE_PRECISION_LOSS", 0.0)  # float64
        for size in (7, 512):
            patch.setattr(linear.single_rows, "REFITS_AT_A_TIME", size)
            np.testing.assert_allclose(
                linear.single_rows.next_term(anchor, look, None).move, move, atol=1e-12
            )
    sample = linear.single_rows.next_term(anchor, look, 20_000)
    assert (np.abs(sample.move - move) <= 5 * sample.spread + 1e-12).all()
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12)).losses
    assert np.median(np.abs(before + move - exact)) < np.median(np.abs(before - exact)) / 5


def test_samples_are_estimates_and_honest(monkeypatch):
    monkeypatch.setattr(linear, "_budget", lambda step: 0.0)
    monkeypatch.setattr(linear.single_rows, "SIZES", (32, 64))
    fit, _ = weighted_fit()
    plan = lo.leave_one_out(80)
    true = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12), audit=0)
    for refit in (lo.Certified(0.1), lo.Certified(0.01), lo.Certified(0.001), lo.NewtonStep()):
        cv = lo.cross_validate(fit, plan, strategy=refit, audit=0)
        assert (np.abs(cv.losses - true.losses) <= cv.error * (1 + 1e-6) + 1e-9).all()
        assert 0 < cv.proved.sum() < 80


@pytest.mark.parametrize("gone", [1.0, 0.4, -1.0])
def test_one_step_of_single_rows_is_newton_s(gone):
    """Predictors, the length of the step and the least eigenvalue, in matrices of outputs and by
    the fold's own Hessian; from a θ that is not quite the minimiser, its classes shifted
    together."""
    fit, w = weighted_fit()
    rng = np.random.default_rng(0)
    shifted = {k: v + 1e-4 * rng.normal(size=v.shape) + 1e-3 for k, v in fit.parameters.items()}
    fit = lo.anchor(fit.objective, shifted, throw=False)
    anchor, unit = linear.linear_cache(fit), np.arange(5, 80, 7)
    look, model = linear.one_row(fit, unit, np.full(len(unit), 1 - gone)), anchor.model
    root = np.linalg.inv(np.linalg.cholesky(fit.hessian + anchor.flat))
    for k, j in enumerate(unit):
        own = np.kron(np.eye(3), model.design.base.x[j])
        hessian = fit.hessian + anchor.flat - gone * w[j] * own.T @ anchor.curvature[j] @ own
        gradient = fit.gradient - gone * w[j] * own.T @ anchor.slope[j]
        step = np.linalg.solve(hessian, gradient)
        np.testing.assert_allclose(look.center[k], anchor.eta[j] - own @ step, atol=1e-10)
        np.testing.assert_allclose(look.step_length[k], np.sqrt(gradient @ step), rtol=1e-9)
        np.testing.assert_allclose(
            look.kept_share[k], min(1.0, np.linalg.eigvalsh(root @ hessian @ root.T)[0]), rtol=1e-9
        )


@pytest.mark.parametrize("outputs, features", [(2, 1), (3, 4), (4, 40)])
def test_extents_are_the_largest_of_moves_of_length_one(outputs, features):
    """Ranges, shares of curvature and lengths, from whitened rows.

    Common shifts are hardly held, as by a small penalty.
    """
    rng = np.random.default_rng(2)
    design, size = (
        MultiOutputDesign(DenseDesign(rng.normal(size=(30, features))), outputs),
        outputs * features,
    )
    half = rng.normal(size=(size, size)) / 10
    shift = np.kron(np.eye(outputs) - 1 / outputs, np.eye(features))
    metric = shift @ half @ half.T @ shift + 0.1 * shift + 1e-6 * np.eye(size)
    root = np.linalg.inv(np.linalg.cholesky(metric))
    scale = np.sqrt(np.diag(metric)).reshape(outputs, -1)
    B = L.roots(rng.normal(size=(30, outputs)))
    norm, share, length, inner = design.extent(root, B)
    for n in range(30):
        z = np.kron(np.eye(outputs), design.base.x[n]) @ root.T
        apart = np.linalg.norm(z[:, None] - z[None, :], axis=-1)
        rest = z - z.mean(0)
        np.testing.assert_allclose(inner[n], rest @ rest.T, atol=1e-9 * norm[n] ** 2)
        np.testing.assert_allclose(norm[n], apart.max(), rtol=1e-9)
        np.testing.assert_allclose(share[n], np.linalg.norm(B[n].T @ z, 2) ** 2, rtol=1e-9)
        longest = np.linalg.norm(rest, axis=1).max()
        assert longest * (1 - 1e-9) <= length[n] <= 2 * longest * (1 + 1e-9)
        assert (np.abs(design.base.x[n]) <= length[n] * scale).all()


@pytest.mark.parametrize("block", [200, 2**20])
@pytest.mark.parametrize("count", [1, 7])
def test_sums_over_rows_and_forms_of_them(monkeypatch, block, count):
    """One by one, or together by products of two columns each, in blocks of rows."""
    monkeypatch.setattr(_design, "DENSE_BLOCK", block)
    rng = np.random.default_rng(0)
    rows, weight, matrices = (
        DenseDesign(rng.normal(size=(50, 4))),
        rng.normal(size=(count, 50)),
        rng.normal(size=(count, 4, 4)),
    )
    np.testing.assert_allclose(
        rows.products(weight), np.einsum("rn,np,nq->rpq", weight, rows.x, rows.x), atol=1e-12
    )
    np.testing.assert_allclose(
        rows.forms(matrices), np.einsum("np,rpq,nq->nr", rows.x, matrices, rows.x), atol=1e-12
    )
    several, C = (
        MultiOutputDesign(rows, 3),
        L.derivatives(rng.normal(size=(50, 3)), rng.integers(3, size=50), (2,))[0],
    )
    whole = np.einsum("rn,nkl,np,nq->rkplq", weight, C, rows.x, rows.x, optimize=True).reshape(
        count, 12, 12
    )
    np.testing.assert_allclose(several.gram(weight, C[None]), whole, atol=1e-12)
    blocks = np.einsum("rkpkq->rkpq", whole.reshape(count, 3, 4, 3, 4))
    np.testing.assert_allclose(several.blocks(weight[0], C), blocks[0], atol=1e-12)
    alike = np.einsum("rn,kl,np,nq->rkplq", weight, C[0], rows.x, rows.x, optimize=True).reshape(
        count, 12, 12
    )
    own = np.einsum("kpkq->kpq", alike[0].reshape(3, 4, 3, 4))
    np.testing.assert_allclose(
        several.blocks(weight[0], np.broadcast_to(C[0], C.shape)), own, atol=1e-12
    )
    np.testing.assert_allclose(
        several.gram(weight, np.broadcast_to(C[0], (1, *C.shape))), alike, atol=1e-12
    )


def test_shifts_of_all_classes_are_no_repeated_columns(monkeypatch):
    """Only a weak ridge has curvature along them, and no refit moves there.

    Rounding is bounded on the other moves.
    """
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4000, 4)), rng.integers(0, 4, 4000)
    fit = lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(1e-2)))
    # nothing is measured by whitening all rows
    monkeypatch.setattr(_anchor, "whitening_error", None)
    anchor = linear.linear_cache(fit)
    penalty, design = anchor.model.bending(anchor.theta[None])[0], anchor.model.design
    scale = np.linalg.norm(np.asarray(fit.quadratic.factor), axis=1)
    assert anchor.rounding.root < 100 and anchor.floor < 1e-6
    assert factor_error(condition(anchor.root, scale), 4000, len(anchor.root)) > _anchor.CONDITION
    x, wide = design.base.x.astype(np.longdouble), anchor.root.astype(np.longdouble)
    curved = (
        np.einsum("nkl,np,nq->kplq", anchor.curvature, x, x).reshape(penalty.shape)
        + penalty
        + anchor.flat
    )
    off = np.asarray(wide @ curved @ wide.T, float) - np.eye(len(wide))
    basis = np.linalg.svd(design.without_shifts(np.eye(len(wide))))[0][:, :15]
    moves = np.linalg.qr(np.linalg.solve(anchor.root.T, basis))[0]
    assert np.linalg.norm(moves.T @ off @ moves, 2) <= anchor.floor / 4
    assert np.linalg.norm(moves.T @ off @ moves, 2) < 1e-2 * np.linalg.norm(off, 2)
    # the gradient, whose rounding does not grow as the ridge goes to zero
    theta = fit.vector.astype(np.longdouble).reshape(4, -1)
    probability = np.exp(x @ theta.T)
    probability /= probability.sum(1, keepdims=True)
    gradient = ((probability - np.eye(4)[y]).T @ x).ravel() + penalty @ theta.ravel()
    off = moves.T @ np.asarray(wide @ gradient - anchor.leftover, float)
    weak = lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(1e-6)))
    assert np.linalg.norm(off) <= anchor.noise < linear.linear_cache(weak).noise < 1e-8
    # classes penalised unlike
    assert design.shifts_apart(penalty) and not design.shifts_apart(np.diag(np.arange(20.0)))
