"""The public modules of inference."""

from . import chain as chain, clique as clique, moments as moments
