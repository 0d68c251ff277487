"""The linear systems of leakage.

Rows against enumeration, the proof in rational arithmetic, solvers against closed forms.
"""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
import scipy.optimize
from scipy import stats

from leaveout import leakage
from leaveout.extensions.leakage._solve import System, differences, nonincreasing, right_inverse
from leaveout.leakage import binomial_matrix, residual_profile, solve_curve, stratified_matrix

RNG = np.random.default_rng(0)


def law(p, n):
    return [comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(n + 1)]


def test_binomial_rows_by_enumeration_of_all_samples():
    A = binomial_matrix([0.0, 0.3, 1.0], 5)
    every = list(product([0, 1], repeat=5))
    for row, p in zip(A, (0.0, 0.3, 1.0), strict=True):
        counts = np.zeros(6)
        for leaked in every:
            counts[sum(leaked)] += np.prod([p if one else 1 - p for one in leaked])
        np.testing.assert_allclose(row, counts, atol=1e-15)


@pytest.mark.parametrize("pools", [{}, {"pool_train": 12, "pool_test": 10}])
def test_stratified_rows_by_enumeration(pools):
    n, levels, p, q = 4, [0, 1, 3], 0.25, 0.2
    A = stratified_matrix(levels, n, p, q, **pools)
    for row, j in zip(A, levels, strict=True):
        if pools:  # 3 of 12 in T̂ are the test clusters', 8 of 10 in V̂
            one = [comb(3, c) * comb(9, n - j - c) / comb(12, n - j) for c in range(n - j + 1)]
            two = [
                comb(8, c) * comb(2, j - c) / comb(10, j) if j - c <= 2 else 0.0
                for c in range(j + 1)
            ]
        else:
            one, two = law(p, n - j), law(1 - q, j)
        expected = np.zeros(n + 1)
        for a, b in product(range(len(one)), range(len(two))):
            expected[a + b] += one[a] * two[b]
        np.testing.assert_allclose(row, expected, atol=1e-14)


def test_one_direction_is_injected_plus_binomial_and_whole_samples_hold_every_leak():
    A = stratified_matrix([0, 2, 7], 10, 0.1)
    for row, j in zip(A, (0, 2, 7), strict=True):
        np.testing.assert_allclose(
            row[j:], stats.binom.pmf(np.arange(11 - j), 10 - j, 0.1), atol=1e-15
        )
        assert not row[:j].any()
    whole = stratified_matrix([0, 5], 40, 0.1, pool_train=40, pool_test=20)
    assert whole[0, 4] == pytest.approx(1.0) and whole[0].sum() == pytest.approx(1.0)
    assert not whole[1, :5].any()  # five of T̂ gave way, at most four of them leaked, and five came


def test_rows_between_two_whole_numbers_are_their_mixture():
    low, high = (stratified_matrix([0], 6, k / 10, pool_train=10)[0] for k in (2, 3))
    np.testing.assert_allclose(
        stratified_matrix([0], 6, 0.23, pool_train=10)[0], 0.7 * low + 0.3 * high, atol=1e-14
    )


def rank(rows):
    rows, found = [list(row) for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((k for k in range(found, len(rows)) if rows[k][column] != 0), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for k in range(found + 1, len(rows)):
            ratio = rows[k][column] / rows[found][column]
            rows[k] = [a - ratio * b for a, b in zip(rows[k], rows[found], strict=True)]
        found += 1
    return found


def exact_matrix(p0, n, injected):
    return [law(p0 + (1 - p0) * p, n) for p in injected]


@pytest.mark.parametrize("n", [2, 5])
def test_all_leakage_matrices_have_one_column_space_in_rational_arithmetic(n):
    injected = [Fraction(k, 2 * n) for k in range(2 * n + 1)]
    zero = exact_matrix(Fraction(0), n, injected)
    for p0 in (Fraction(1, 10), Fraction(1, 3), Fraction(19, 20)):
        A = exact_matrix(p0, n, injected)
        S = [[Fraction(0)] * k + law(p0, n - k) for k in range(n + 1)]
        product_ = [
            [
                sum(a * s for a, s in zip(row, column, strict=True))
                for column in zip(*S, strict=True)
            ]
            for row in zero
        ]
        assert product_ == A  # A(p₀) = A(0) S(p₀), to the last digit
        assert all(S[k][k] == (1 - p0) ** (n - k) for k in range(n + 1))
        both = [a + b for a, b in zip(A, zero, strict=True)]
        assert rank(A) == rank(zero) == rank(both) == n + 1
        np.testing.assert_allclose(
            np.array(S, float), stratified_matrix(np.arange(n + 1), n, float(p0)), atol=1e-15
        )


@pytest.mark.parametrize("n, order", [(4, 2), (9, 3), (15, 4), (12, 1)])
def test_the_map_between_leakages_keeps_monotone_losses_and_shrinks_every_penalty(n, order):
    D = differences(n + 1, order)
    for p in (0.05, 0.3, 0.8):
        S = stratified_matrix(np.arange(n + 1), n, p)
        lesser = stratified_matrix(np.arange(n + 1 - order), n - order, p)
        np.testing.assert_allclose(D @ S, (1 - p) ** order * lesser @ D, atol=1e-12)
        for _ in range(20):
            e = np.cumsum(RNG.exponential(size=n + 1))[::-1]
            assert np.all(np.diff(S @ e) <= 1e-12) and np.all(S @ e >= 0)
            free = RNG.normal(size=n + 1)
            assert np.linalg.norm(D @ S @ free) <= np.linalg.norm(D @ free) * (1 + 1e-12)


@pytest.mark.parametrize("lam, monotone", [(0.0, True), (0.1, False), (0.1, True), (10.0, True)])
def test_the_search_for_p_never_leaves_zero_on_any_losses(lam, monotone):
    levels = np.linspace(0, 1, 13)
    for trial in range(6):
        b = RNG.normal(size=13) if trial % 2 else np.exp(-3 * levels) + 0.05 * RNG.normal(size=13)
        found = residual_profile(levels, b, 6, np.linspace(0, 0.9, 7), lam=lam, monotone=monotone)
        assert np.all(np.diff(found["objective"]) >= -1e-9 * (1 + found["objective"].iloc[0]))


def test_the_unregularised_residual_is_flat_though_the_losses_came_from_a_leakage():
    e, levels = np.exp(-np.arange(7) / 2.0), np.linspace(0, 1, 15)
    b = binomial_matrix(0.2 + 0.8 * levels, 6) @ e
    found = residual_profile(levels, b, 6, [0.0, 0.1, 0.2, 0.4])
    assert found["objective"].max() < 1e-20
    assert (
        found["estimate"].iloc[2] == pytest.approx(e[0], rel=1e-6)
        and found["estimate"].iloc[0] < 0.9
    )


@pytest.mark.parametrize("lam, monotone", [(0.0, False), (0.0, True), (0.1, False), (10.0, True)])
def test_the_search_both_ways_never_leaves_zero_on_any_losses(lam, monotone):
    train, test = np.linspace(0, 1, 8), np.linspace(0, 1, 6)
    for p, q in ((0.1, 0.0), (0.0, 0.3), (0.2, 0.2), (0.3, 0.2)):
        S, R = stratified_matrix(np.arange(6), 5, p, q), stratified_matrix(np.arange(5), 4, q, p)
        for levels, n, share, mean in ((train, 5, p, S), (test, 4, q, R)):
            leaked = binomial_matrix(share + (1 - p - q) * levels, n)
            np.testing.assert_allclose(binomial_matrix(levels, n) @ mean, leaked, atol=1e-12)
        E = RNG.normal(size=(6, 5))
        for order in (1, 2, 3):
            assert np.linalg.norm(np.diff(S @ E @ R.T, order, 0)) <= np.linalg.norm(
                np.diff(E, order, 0)
            ) * (1 + 1e-12)
            assert np.linalg.norm(np.diff(S @ E @ R.T, order, 1)) <= np.linalg.norm(
                np.diff(E, order, 1)
            ) * (1 + 1e-12)
        leaked_losses = binomial_matrix(p + (1 - p - q) * train, 5) @ np.abs(E) @ leaked.T
        b = leaked_losses + 0.3 * RNG.normal(size=(8, 6))
        found = residual_profile(
            (train, test),
            b,
            (5, 4),
            [(0, 0), (p, q), (0.1, 0.1), (0.6, 0.0)],
            lam=lam,
            monotone=monotone,
        )
        assert list(found) == ["p_train", "p_test", "objective", "estimate"]
        assert np.all(found["objective"] >= found["objective"][0] * (1 - 1e-9))
        if lam == 0 and not monotone:
            np.testing.assert_allclose(found["objective"], found["objective"][0], rtol=1e-8)
            exact = residual_profile((train, test), leaked_losses, (5, 4), [(p, q)])
            assert exact["estimate"][0] == pytest.approx(abs(E[0, 0]), rel=1e-6)


def test_the_right_inverse_of_differences():
    for order in (1, 2, 3, 4):
        np.testing.assert_allclose(
            differences(9, order) @ right_inverse(9, order), np.eye(9 - order), atol=1e-9
        )


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("lam", [1e-3, 1.0, 1e3])
def test_the_linear_solution_is_that_of_the_normal_equations(order, lam):
    A, b = binomial_matrix(np.linspace(0.1, 1, 9), 14), RNG.normal(size=9)
    D = differences(15, order)
    inverse = np.linalg.solve(A.T @ A + lam * D.T @ D, A.T)
    curve = solve_curve(A, b, order=order, lam=lam, monotone=False)
    np.testing.assert_allclose(curve.values, inverse @ b, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(curve.weights, inverse[0], rtol=1e-6, atol=1e-6)
    assert curve.residual == pytest.approx(np.linalg.norm(A @ inverse @ b - b), rel=1e-6)


def test_the_constrained_solution_is_the_quadratic_programmes():
    A = binomial_matrix(np.linspace(0.1, 1, 8), 7)
    D, lam = differences(8, 2), 0.01
    for trial in range(5):
        b = np.linspace(1, 0.4, 8) + 0.3 * np.random.default_rng(trial).normal(size=8)
        for upper in (None, 0.9):
            ours = solve_curve(A, b, lam=lam, upper=upper).values
            value = lambda e, b=b: np.sum((A @ e - b) ** 2) + lam * np.sum((D @ e) ** 2)
            slope = lambda e, b=b: 2 * A.T @ (A @ e - b) + 2 * lam * D.T @ (D @ e)
            rules = [{"type": "ineq", "fun": lambda e: np.append(-np.diff(e), e[-1])}]
            if upper is not None:
                rules.append({"type": "ineq", "fun": lambda e, upper=upper: upper - e[0]})
            start = np.linspace(0.8, 0.1, 8)
            peer = scipy.optimize.minimize(
                value, start, jac=slope, constraints=rules, options={"maxiter": 500, "ftol": 1e-14}
            )
            assert value(ours) <= value(peer.x) * (1 + 1e-6) + 1e-10
            assert (
                np.all(np.diff(ours) <= 1e-12)
                and ours[-1] >= 0
                and (upper is None or ours[0] <= upper + 1e-12)
            )


def test_upre_is_the_formula_and_takes_the_smoothest_of_what_it_cannot_tell_apart():
    A, order = stratified_matrix([0, 1, 3, 6, 10], 10, 0.2), 2
    b = A @ np.exp(-np.arange(11) / 4) + 0.01 * RNG.normal(size=5)
    root = 0.01 * RNG.normal(size=(5, 5))
    noise = root @ root.T
    chosen = solve_curve(A, b, noise, order=order).lam
    D = differences(11, order)

    def risk(lam):
        H = np.linalg.pinv(np.vstack([A, np.sqrt(lam) * D]))[:, :5]
        return np.sum((A @ H @ b - b) ** 2) + 2 * np.trace(A @ H @ noise)

    U = System(A, order).parts["U"]
    close = 0.5 * np.sqrt(2 * np.sum(np.einsum("ij,ik,kj->j", U, noise, U) ** 2))
    least = min(risk(lam) for lam in np.geomspace(1e-8, 1e6, 200))
    assert risk(chosen) <= 1.01 * (least + close)
    assert risk(30 * chosen) > 0.99 * (least + close)


def test_two_directions_without_their_kronecker_product():
    train, test = (
        binomial_matrix(np.linspace(0.1, 1, 9), 6),
        binomial_matrix(np.linspace(0.2, 1, 7), 4),
    )
    own, alien = np.exp(-np.arange(7) / 3.0), 0.2 + 0.01 * np.arange(7)
    d = np.arange(5) / 4
    E = np.outer(own, 1 - d) + np.outer(alien, d)
    whole = np.kron(train, test)
    b = (whole @ E.ravel()).reshape(9, 7)
    np.testing.assert_allclose(train @ E @ test.T, b, atol=1e-14)
    for monotone in (False, True):
        curve = solve_curve((train, test), b, lam=1e-13, monotone=monotone)
        np.testing.assert_allclose(curve.values, E, atol=2e-4)
    free = solve_curve((train, test), b, lam=1e-14, monotone=False, linear=False)
    assert (
        free.values.shape == (7, 5)
        and free.estimate == pytest.approx(own[0], rel=1e-3)
        and free.residual < 1e-6
    )


def test_norms_that_are_not_squared():
    A, b = binomial_matrix(np.linspace(0.1, 1, 10), 8), np.linspace(1, 0.2, 10) ** 2
    D, lam = differences(9, 2), 0.3
    curve = leakage.solve_unsquared(A, b, 2, lam, False)
    value = lambda e: np.linalg.norm(A @ e - b) + lam * np.linalg.norm(D @ e)
    for _ in range(200):
        assert value(curve.values + 1e-3 * RNG.normal(size=9)) >= value(curve.values) - 1e-9


def test_steps_down_where_nothing_constrains():
    M = np.diag([3.0, 2.0, 1.0])
    np.testing.assert_allclose(
        nonincreasing(M, np.array([9.0, 4.0, 1.0])), [3.0, 2.0, 1.0], atol=1e-12
    )
    assert np.all(nonincreasing(np.eye(3), -np.ones(3)) == 0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: binomial_matrix([0.5, 1.2], 3), r"binomial_matrix: p must be probabilities.*1\.2"),
        (lambda: binomial_matrix([0.5], 0), "n must be a whole number"),
        (lambda: stratified_matrix([0], 5, 1.0), r"p_train must lie in \[0, 1\)"),
        (lambda: stratified_matrix([0], 5, 0.6, 0.5), "p_train . p_test must be below 1"),
        (lambda: stratified_matrix([6], 5, 0.1), "levels must be whole numbers from 0 to n = 5"),
        (
            lambda: stratified_matrix([0], 5, 0.1, pool_train=4),
            "pool_train = 4 holds fewer than the 5",
        ),
        (lambda: residual_profile([0, 1], [1.0, np.nan], 3), "one finite loss a level"),
        (
            lambda: residual_profile([0, 1], [1.0, 0.5], 3, [1.0]),
            r"candidates must lie in \[0, 1\)",
        ),
        (
            lambda: residual_profile(([0, 1], [0, 1]), [1.0, 0.5], (3, 3)),
            r"shape \(2, 2\); got \(2,\)",
        ),
        (
            lambda: residual_profile(([0, 1], [0, 1]), np.ones((2, 2)), (3, 3), [0.1]),
            "must be pairs",
        ),
        (
            lambda: residual_profile(([0, 1], [0, 1]), np.ones((2, 2)), (3, 3), [(0.5, 0.5)]),
            "with a sum in",
        ),
        (lambda: solve_curve(np.eye(4), np.ones(3), lam=1.0), "one loss a row of A, 4; got 3"),
        (lambda: solve_curve(np.eye(4), [1, 2, np.inf, 3], lam=1.0), "b must be finite"),
        (lambda: solve_curve(np.eye(4), np.ones(4)), "give covariance="),
        (lambda: solve_curve(np.eye(4), np.ones(4), np.eye(3)), "covariance must be symmetric"),
        (
            lambda: solve_curve(np.eye(4), np.ones(4), lam=-1.0),
            "lam must be finite and not negative",
        ),
        (
            lambda: solve_curve(np.eye(4), np.ones(4), lam=1.0, order=5),
            "order must be 1, 2, 3 or 4",
        ),
        (lambda: solve_curve(np.eye(2), np.ones(2), lam=1.0), "needs 3 levels or more; got 2"),
        (lambda: solve_curve(np.ones((4, 4)), np.ones(4), lam=1.0), "too alike to tell a trend"),
        (
            lambda: solve_curve((np.eye(4), np.eye(4)), np.ones((4, 4))),
            "two directions lam= is needed",
        ),
        (
            lambda: solve_curve((np.eye(4), np.eye(4)), np.ones((4, 3)), lam=1.0),
            r"b must be \(4, 4\)",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
