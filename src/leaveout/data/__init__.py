"""Readers of arguments and files: arrays, frames and labels; CoNLL files; data sets."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, ["datasets"])
