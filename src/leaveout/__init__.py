"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib.metadata import version as _version

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)  # modules are imported when a name of theirs is used
__version__ = _version("leaveout")
