"""What the other rooms take from this one, by subject."""

from .graph import (
    Edges as Edges,
    adjacency as adjacency,
    blocks as blocks,
    read_edges as read_edges,
)
from .plan import (
    CAPACITY as CAPACITY,
    Batch as Batch,
    Plan as Plan,
    RefitRows as RefitRows,
    few_more as few_more,
    few_size as few_size,
    groups as groups,
    kfold as kfold,
    leave_one_out as leave_one_out,
    plan_of_entries as plan_of_entries,
)
from .reading import (
    PlanLike as PlanLike,
    PlanReader as PlanReader,
)
from .survey import (
    ReplicateWeights as ReplicateWeights,
    check_scales as check_scales,
    jk1 as jk1,
    jkn as jkn,
)
