"""Cross-validation: batches of refits, scores, metrics, standard errors, intervals, audit,
comparison, checks.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
