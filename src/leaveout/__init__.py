"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib import import_module as _import
from importlib.metadata import version as _version

import lazy_loader as _lazy

from ._runtime.provided import provide as _provide

_found, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)  # modules are imported when a name of theirs is used
__version__ = _version("leaveout")
_provide(  # results draw themselves, and know nothing of pictures
    plot=lambda: _import(".reporting.plot", __name__),
    report=lambda: _import(".reporting.report", __name__),
    nested=lambda: _import(".validation.nested", __name__),
)


def __getattr__(name: str) -> object:
    if name in ("fit", "anchor", "from_sklearn"):  # a fit is to be cross-validated: the first call need not wait for modules
        _import(".validation.cross_validate", __name__)
    return _found(name)
