"""What the other rooms take from this one, by subject."""

from ._anchor import (
    GROUP as GROUP,
    OWN_HESSIAN_BELOW as OWN_HESSIAN_BELOW,
    PASS as PASS,
    is_narrow as is_narrow,
    linear_cache as linear_cache,
)
from ._descent import (
    Descent as Descent,
    begin as begin,
)
from ._enclosure import (
    CertifiedBatch as CertifiedBatch,
    first_look as first_look,
)
from ._expansion import (
    expandable as expandable,
)
from ._kinks import (
    refit_active_set as refit_active_set,
)
from ._linear import (
    losses as losses,
    unit_losses as unit_losses,
)
from ._penalty_stack import (
    Leaving as Leaving,
    PathRefit as PathRefit,
    PerPenalty as PerPenalty,
    Stack as Stack,
    groups as groups,
)
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
    NewtonStep as NewtonStep,
    refits_by_class as refits_by_class,
)
from ._wide import (
    by_probes as by_probes,
    held_losses as held_losses,
)
