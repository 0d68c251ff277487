"""What the other rooms take from this one, by subject."""

from .bounds import (
    Box as Box,
    Vector as Vector,
    excess as excess,
    gates as gates,
    leaving_signs as leaving_signs,
    resting as resting,
    segments as segments,
    solve_box as solve_box,
)
from .conjugate_gradients import (
    solve as solve,
)
from .curvature import (
    Curvature as Curvature,
    cholesky as cholesky,
    solve_each as solve_each,
)
from .design import (
    DENSE_BLOCK as DENSE_BLOCK,
    EVERYONE as EVERYONE,
    AnyShape as AnyShape,
    DenseDesign as DenseDesign,
    Directions as Directions,
    Extent as Extent,
    Loss as Loss,
    LossOfSeveral as LossOfSeveral,
    MultiOutputDesign as MultiOutputDesign,
    PerRow as PerRow,
    PerUnit as PerUnit,
    Predictors as Predictors,
    RefitMatrices as RefitMatrices,
    RefitPoints as RefitPoints,
    RefitUnits as RefitUnits,
    RowUnits as RowUnits,
    StackedLoss as StackedLoss,
    apply_curvature as apply_curvature,
    scale_units as scale_units,
    weight_terms as weight_terms,
)
from .device_design import (
    Resident as Resident,
    device_copy as device_copy,
    is_finite as is_finite,
)
from .enclosure_theorem import (
    Ball as Ball,
    CurvatureBounds as CurvatureBounds,
    PenaltyShare as PenaltyShare,
    RadiusTable as RadiusTable,
    ball as ball,
    change as change,
    gaps as gaps,
)
from .group_norms import (
    Norms as Norms,
    Reach as Reach,
    descend_by_groups as descend_by_groups,
)
from .iteration import (
    MAX_LOOKS as MAX_LOOKS,
    SMALLEST_SHARE as SMALLEST_SHARE,
    VALUE_ROUNDING as VALUE_ROUNDING,
    Accept as Accept,
    Lanes as Lanes,
    LaneState as LaneState,
    Proposal as Proposal,
    Propose as Propose,
    SharedFactors as SharedFactors,
    anywhere as anywhere,
    decrements as decrements,
    descends as descends,
    everyone_or as everyone_or,
    iterate as iterate,
    without_values as without_values,
)
from .mapped_design import (
    MappedDesign as MappedDesign,
    SourcedDesign as SourcedDesign,
    elsewhere as elsewhere,
)
from .rounding import (
    FUNCTION as FUNCTION,
    UNIT as UNIT,
    UP as UP,
    Rounding as Rounding,
    bounded as bounded,
    condition as condition,
    factor_error as factor_error,
)
from .sparse_cholesky import (
    FrontalFactor as FrontalFactor,
    Pattern as Pattern,
    pattern as pattern,
)
from .sparse_design import (
    SparseDesign as SparseDesign,
)
