"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib import import_module as _import

from ._runtime.namespaces import attach as _attach, place_of as _place_of
from ._runtime.providers import provide as _provide

# modules are imported when one of their names is used
_found, __dir__, __all__ = _attach(__name__, __file__)
_provide(  # what the core calls of later rooms and of extensions
    clinical_page=lambda: _import(".extensions.clinical.page", __name__),
    leakage_page=lambda: _import(".extensions.leakage._page", __name__),
    posterior_influence=lambda: _import(".extensions.bayes.posterior_influence", __name__),
    plot=lambda: _import(".plot", __name__),
    report=lambda: _import(".reporting.report", __name__),
    no_model=lambda: _import(".validation.no_model", __name__),
    bca=lambda: _import(".validation.bca", __name__),
    target=lambda: _import(".validation.target", __name__),
    nested=lambda: _import(".validation.nested_intervals", __name__),
    fit_answers=lambda: _import(".diagnostics.fit_answers", __name__),
    covariance=lambda: _import(".diagnostics.covariance", __name__),
    predict=lambda: _import(".diagnostics.prediction_intervals", __name__),
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
