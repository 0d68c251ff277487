"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib import import_module as _import
from importlib.metadata import version as _version
from warnings import warn as _warn

from ._runtime.namespaces import attach as _attach
from ._runtime.providers import provide as _provide

# modules are imported when one of their names is used
_found, __dir__, __all__ = _attach(__name__, __file__)
__version__ = _version("leaveout")
_provide(  # what the core calls of later rooms and of extensions
    clinical_page=lambda: _import(".extensions.clinical.page", __name__),
    leakage_page=lambda: _import(".extensions.leakage._page", __name__),
    posterior_influence=lambda: _import(".extensions.bayes.posterior_influence", __name__),
    plot=lambda: _import(".plot", __name__),
    report=lambda: _import(".reporting.report", __name__),
    no_model=lambda: _import(".validation.no_model", __name__),
    nested=lambda: _import(".validation.nested", __name__),
)

_MOVED = {  # names that moved from the root, by their new module
    "leakage": "InjectedSplits Injection LeakageReport LeakageResult Linkage RecordLeakage SplitLeakage "
    "binomial_block_bootstrap binomial_matrix largest_leakage_share leakage_corrected leakage_report leakage_slope_test "
    "residual_profile solve_curve stratified_matrix",
    "models": "AbstractClosedForm AbstractLinearPredictor Units Parameters Costs External Free Dirichlet entities entity_f1 "
    "token_accuracy",
    "tuning": "Path PerTarget Smoothing Trial Tuning curves mean_interval",
    "validation": "CHECKS Check Comparison",
    "penalties": "per_row per_weight",
}


def __getattr__(name: str) -> object:
    # cross-validation follows a fit, so its modules are loaded early
    if name in ("fit", "anchor", "from_sklearn"):
        _import(".validation.cross_validate", __name__)
    try:
        return _found(name)
    except AttributeError:
        place = next((place for place, names in _MOVED.items() if name in names.split()), None)
        if place is None:
            raise
    _warn(f"leaveout.{name} is now leaveout.{place}.{name}", DeprecationWarning, stacklevel=2)
    return getattr(_found(place), name)
