"""The public names of tuning that are not at the package's root."""

from ..models.glm.banded import BandedRidge as BandedRidge
from .path import Path as Path
from .smooth import Smoothing as Smoothing
from .smooth_curves import curves as curves, mean_interval as mean_interval
from .tune import PerTarget as PerTarget, Trial as Trial, Tuning as Tuning
