"""The public names of sklearn."""

from .extensions.sklearn import *  # noqa: F403
