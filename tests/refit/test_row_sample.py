"""Samples of rows estimate what single rows leave out only where they meet enough others."""

import numpy as np

import leaveout as lo
from tests.linalg.test_sparse_design import RIDGE, table


def test_rows_of_few_entries_are_not_told_by_a_sample_that_misses_their_neighbours():
    """Two rows of one and of three entries, of the longest steps of 20,000, against fits of the
    data without them.
    """
    n, p = 20_000, 250
    X, _ = table(1, n, p, 0.01)
    y = (np.random.default_rng(1).random(n) < 1 / (1 + np.exp(-X.sum(1)))).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", RIDGE))
    cv = lo.cross_validate(fit, lo.leave_one_out(n), audit=0)
    for row in (4228, 13428):
        seen = np.arange(n) != row
        alone = lo.fit(lo.GLM(X[seen], y[seen], "logistic", RIDGE), fit.parameters).parameters
        eta = float((X[[row]] @ alone["coef"])[0] + alone["intercept"])
        assert abs(np.logaddexp(0, eta) - y[row] * eta - cv.losses[row]) <= cv.error[row] + 1e-9
