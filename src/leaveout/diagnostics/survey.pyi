"""The public names of survey."""

from ..plans.survey import (
    ReplicateWeights as ReplicateWeights,
    bootstrap as bootstrap,
    brr as brr,
    fay as fay,
    jk1 as jk1,
    jkn as jkn,
    read as read,
)
from .replicates import replicates as replicates
