"""What the columns are called that a host's transformers make."""

from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline


def named(model: Any, estimator: Any) -> Any:
    """A regression of a host, just made, its columns called as the host's transformers call them."""
    names, own = _names(estimator), model.num_features
    if names and len(names) in (own, own - 1) and len(set(names)) == len(names):
        vars(model)["names"] = (*names, *model.names[len(names) :])
    return model


def _names(estimator: Any) -> list[str]:
    """Those of a pipeline's `get_feature_names_out`; none where there are no transformers, or one does not tell."""
    if hasattr(estimator, "best_estimator_"):
        return _names(estimator.best_estimator_)
    if not isinstance(estimator, Pipeline) or len(estimator.steps) < 2:
        return []
    try:
        return [str(name) for name in estimator[:-1].get_feature_names_out()]
    except (AttributeError, ValueError, TypeError, NotFittedError):
        return []
