"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib import import_module as _import
from importlib.metadata import version as _version

import lazy_loader as _lazy

_found, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)  # modules are imported when a name of theirs is used
__version__ = _version("leaveout")


def __getattr__(name: str) -> object:
    if name in ("fit", "anchor", "from_sklearn"):  # a fit is to be cross-validated: the first call need not wait for modules
        _import("._evaluate", __name__)
    return _found(name)
