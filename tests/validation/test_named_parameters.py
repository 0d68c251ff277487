"""Refits that leave some parameters open.

These are NaN, and the others are those of least squares without the open columns.
"""

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

RNG = np.random.default_rng(7)
STATE = np.repeat(np.arange(5), 6)
X = RNG.normal(size=(30, 2))
Y = X[:, 0] + RNG.normal(size=5)[STATE] + RNG.normal(size=30)
DATA = pd.DataFrame({"x": X[:, 0], "z": X[:, 1], "y": Y, "state": STATE.astype(str)})
FIT = lo.fit(lo.GLM("y ~ x + z + C(state)", DATA, "squared"))
PLAN = lo.groups(DATA.state)


def without(state):
    """Coefficients of x, z, dummies 1 to 4 and the intercept without one state, by dropping its
    column.
    """
    kept, columns = state != STATE, [k for k in range(1, 5) if k != state]
    design = np.column_stack([X, *(k == STATE for k in columns), np.ones(30)])[kept].astype(float)
    solution = np.linalg.lstsq(design, Y[kept])[0]
    squares = np.sum((Y[kept] - design @ solution) ** 2)
    out = np.full(7, np.nan)
    if state:
        out[[0, 1, *(1 + k for k in columns), 6]] = solution
    else:  # the intercept is that of the state of reference
        out[:2] = solution[:2]
    return out, squares / (kept.sum() - np.linalg.matrix_rank(design))


TRUTH = np.array([without(state)[0] for state in range(5)])


def test_parameters_of_folds_that_leave_a_level_whole():
    found = lo.fold_parameters(FIT, PLAN)
    assert set(found) == set(FIT.parameters)
    np.testing.assert_allclose(found["coef"], TRUTH[:, :6], atol=1e-9)
    np.testing.assert_allclose(found["intercept"], TRUTH[:, 6], atol=1e-9)


def test_influence_of_levels_is_that_on_what_is_determined():
    cv = lo.cross_validate(FIT, PLAN)
    moved = lo.influence(cv, num_pairs=0).parameters
    now = np.append(FIT.parameters["coef"], FIT.parameters["intercept"])
    design = np.column_stack([X, *(k == STATE for k in range(1, 5)), np.ones(30)]).astype(float)
    spread = np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    phi = np.array([without(state)[1] for state in range(5)])
    np.testing.assert_allclose(moved, (TRUTH - now) / spread / np.sqrt(phi)[:, None], atol=1e-8)


def test_a_mean_of_no_loss_has_no_error_and_predictions_say_what_is_missing():
    cv = lo.cross_validate(FIT, PLAN)
    assert np.isnan(cv.mean) and np.isnan(cv.approximation_error)
    assert "not available: no held-out loss exists" in str(cv) and "approximation" not in str(cv)
    assert "lo.Mixed('… + (1 | group)')" in str(cv)
    with pytest.warns(
        UserWarning,
        match=r"30 of 30 held-out predictions are missing, such as that of 0: .* lo\.Mixed",
    ):
        assert np.isnan(lo.cross_predict(FIT, PLAN)).all()


def test_single_rows_that_alone_are_a_level():
    data = DATA.assign(state=np.where(np.arange(30) == 3, "alone", DATA.state))
    fit = lo.fit(lo.GLM("y ~ x + z + C(state)", data, "squared"))
    found = lo.diagnostics.dfbetas(fit)
    assert found.columns[found.iloc[3].isna()].tolist() == ["C(state)[T.alone]"] and found.drop(
        index=3
    ).notna().all(axis=None)
    # its row is fitted exactly: it moves nothing else
    np.testing.assert_allclose(found.iloc[3].dropna(), 0.0, atol=1e-9)
