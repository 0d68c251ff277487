"""Which way folds are refitted, and what scikit-learn checks in them."""

import pytest
from sklearn import get_config
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import leaveout as lo
from leaveout.extensions.sklearn._route import checked_once


@pytest.mark.parametrize(
    ("estimator", "scoring", "skips"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()), "accuracy", True),
        (make_pipeline(StandardScaler(), LogisticRegression(C=-1.0)), None, False),
        (make_pipeline(FunctionTransformer(lambda X: X), LogisticRegression()), None, False),
        (GridSearchCV(LogisticRegression(), {"C": [1.0, -1.0]}), None, False),
        (LogisticRegression(), lambda host, X, y: 0.0, False),
        (LogisticRegression, None, False),
    ],
)
def test_parameters_are_checked_in_every_fold_unless_all_are_scikit_learn_s_and_hold(
    estimator, scoring, skips
):
    with checked_once(estimator, [scoring]):
        assert get_config()["skip_parameter_validation"] is skips
    assert not get_config()["skip_parameter_validation"]


def test_a_parameter_that_does_not_hold_raises_as_in_scikit_learn():
    X, y = lo.datasets.diabetes()
    with pytest.raises(ValueError, match="'alpha' parameter"):
        lo.sklearn.cross_validate(Ridge(alpha=-1.0), X, y, cv=3, error_score="raise")
