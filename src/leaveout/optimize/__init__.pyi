"""What the other rooms take from this one, by subject."""

from .active_set import (
    CANCELLED_PRODUCT as CANCELLED_PRODUCT,
    TIE_DISTANCE as TIE_DISTANCE,
    NoMinimiser as NoMinimiser,
    at_rest as at_rest,
    at_zeros as at_zeros,
    minimise_with_kinks as minimise_with_kinks,
    without as without,
)
from .banded_ridge import (
    PerTarget as PerTarget,
    candidates as candidates,
    descend_penalties as descend_penalties,
)
from .bfgs import (
    BFGS as BFGS,
    curves_down as curves_down,
    newton_step as newton_step,
)
from .fit import (
    DOUBTFUL as DOUBTFUL,
    SCALAR as SCALAR,
    Fit as Fit,
    HostErrors as HostErrors,
    anchored_at as anchored_at,
    uncached as uncached,
)
from .hessian_factor import (
    IndefiniteHessianError as IndefiniteHessianError,
)
from .hessian_products import (
    COARSE as COARSE,
    ROUGH as ROUGH,
    NystromPreconditioner as NystromPreconditioner,
    Solve as Solve,
    sketch as sketch,
    solve_once as solve_once,
)
from .newton import (
    LARGE_NUM_PARAMETERS as LARGE_NUM_PARAMETERS,
    minimise as minimise,
)
from .null_space import (
    zero_combinations as zero_combinations,
)
from .quadratic import (
    LocalQuadratic as LocalQuadratic,
)
from .starts import (
    SAME_MINIMUM as SAME_MINIMUM,
    START_ROUNDING as START_ROUNDING,
    cores as cores,
)
