"""The public names of leakage."""

from .extensions.leakage import *  # noqa: F403
