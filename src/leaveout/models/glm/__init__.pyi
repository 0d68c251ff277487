"""What the other rooms take from this one, by subject."""

from .absorbed import (
    AbsorbedGLM as AbsorbedGLM,
)
from .active_coefficients import (
    ActiveCox as ActiveCox,
    ActiveGLM as ActiveGLM,
    FullCox as FullCox,
    FullModel as FullModel,
    PerPlace as PerPlace,
    Places as Places,
    kinks as kinks,
)
from .banded import (
    BandedRidge as BandedRidge,
)
from .distributions import (
    BERNOULLI as BERNOULLI,
    NEGATIVE_BINOMIAL as NEGATIVE_BINOMIAL,
)
from .dual import (
    DualGLM as DualGLM,
    ridge_strengths as ridge_strengths,
)
from .glm import (
    GLM as GLM,
    PRODUCTS_FROM as PRODUCTS_FROM,
    AbstractRegression as AbstractRegression,
    Regression as Regression,
)
from .loss import (
    AbstractMeanLoss as AbstractMeanLoss,
)
from .losses import (
    AbstractLoss as AbstractLoss,
    Binomial as Binomial,
    Squared as Squared,
    name_among as name_among,
)
from .orthogonal import (
    OrthogonalGLM as OrthogonalGLM,
    is_least_squares as is_least_squares,
    orthogonal_form as orthogonal_form,
)
from .penalties import (
    AbstractPenalty as AbstractPenalty,
    ElasticNet as ElasticNet,
    GroupLasso as GroupLasso,
    Lasso as Lasso,
    PerWeight as PerWeight,
    Ridge as Ridge,
    Zero as Zero,
    resolve as resolve,
)
from .rows import (
    all_finite as all_finite,
    column as column,
    design as design,
    new_rows as new_rows,
)
