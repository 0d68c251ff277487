"""Refits in batches: the strategies, the rungs that they use, and the error of each refit against
the exact one.
"""

from ._anchor import is_narrow as is_narrow
from ._expansion import expandable as expandable
from ._kinks import refit_active_set as refit_active_set
from ._refit_batch import (
    RefitBatch as RefitBatch,
    distance_of_fit as distance_of_fit,
    distances as distances,
    fill_undetermined as fill_undetermined,
    inverse_root as inverse_root,
    lengths as lengths,
    lengths_of_moves as lengths_of_moves,
    refit_across as refit_across,
    undetermined_directions as undetermined_directions,
)
from ._strategies import (
    AbstractRefit as AbstractRefit,
    Certified as Certified,
    Exact as Exact,
    InfinitesimalJackknife as InfinitesimalJackknife,
    NewtonStep as NewtonStep,
    NoUpdate as NoUpdate,
    refits_by_class as refits_by_class,
)
