"""Clinical prediction models: validation by resamples and across centres, calibration, net benefit,
stability.
"""

from ._runtime.namespaces import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__)
