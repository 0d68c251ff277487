"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib.metadata import version as _version

from . import datasets as datasets, plot as plot
from ._estimate import Estimate as Estimate, compare as compare
from ._evaluate import (
    cross_predict as cross_predict,
    cross_validate as cross_validate,
    fold_parameters as fold_parameters,
)
from ._fit import Fit as Fit, IndefiniteHessianError as IndefiniteHessianError, anchor as anchor, fit as fit
from ._objective import (
    AbstractLinearPredictor as AbstractLinearPredictor,
    AbstractObjective as AbstractObjective,
    Objective as Objective,
    Separable as Separable,
)
from ._plan import (
    Plan as Plan,
    blocks as blocks,
    bootstrap as bootstrap,
    contiguous as contiguous,
    from_splits as from_splits,
    groups as groups,
    kfold as kfold,
    leave_future_out as leave_future_out,
    leave_one_out as leave_one_out,
    random_subsets as random_subsets,
)
from ._refit import (
    AbstractRefit as AbstractRefit,
    Certified as Certified,
    Exact as Exact,
    InfinitesimalJackknife as InfinitesimalJackknife,
    NewtonStep as NewtonStep,
    NoUpdate as NoUpdate,
)
from ._results import RESULTS as RESULTS
from .interop.sklearn import from_sklearn as from_sklearn
from .models import losses as losses, penalties as penalties
from .models.glm import GLM as GLM
from .models.penalties import per_weight as per_weight

__version__ = _version("leaveout")
