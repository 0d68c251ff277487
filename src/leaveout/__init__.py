"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib import import_module as _import

from ._runtime.namespaces import attach as _attach, place_of as _place_of
from ._runtime.providers import provide as _provide

# modules are imported when one of their names is used
_found, __dir__, __all__ = _attach(__name__)
_provide(  # what the core calls of later rooms and of extensions
    clinical_page="leaveout.extensions.clinical.page",
    leakage_page="leaveout.extensions.leakage._page",
    posterior_influence="leaveout.extensions.bayes.posterior_influence",
    plot="leaveout.plot",
    report="leaveout.reporting.report",
    no_model="leaveout.validation.no_model",
    bca="leaveout.validation.bca",
    target="leaveout.validation.target",
    nested="leaveout.validation.nested_intervals",
    fit_answers="leaveout.diagnostics.fit_answers",
    covariance="leaveout.diagnostics.covariance",
    predict="leaveout.diagnostics.prediction_intervals",
)


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _import("importlib.metadata").version("leaveout")
    # cross-validation follows a fit, so its modules are loaded early
    if name in ("fit", "anchor", "from_sklearn"):
        _import(".validation.cross_validate", __name__)
    if name not in __all__ and not name.startswith("_"):
        place = _place_of(name, _found, __all__)
        raise AttributeError(f"module 'leaveout' has no attribute {name!r}{place}")
    return _found(name)
