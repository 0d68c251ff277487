"""One fit, every fold: cross-validation of smooth models without refitting them fold by fold."""

from importlib.metadata import version as _version

from . import datasets as datasets
from . import plot as plot
from ._definite import IndefiniteHessianError as IndefiniteHessianError
from ._estimate import Estimate as Estimate
from ._estimate import compare as compare
from ._evaluate import (
    cross_predict as cross_predict,
)
from ._evaluate import (
    cross_validate as cross_validate,
)
from ._evaluate import (
    fold_parameters as fold_parameters,
)
from ._fit import Fit as Fit
from ._fit import anchor as anchor
from ._fit import fit as fit
from ._objective import (
    AbstractLinearPredictor as AbstractLinearPredictor,
)
from ._objective import (
    AbstractObjective as AbstractObjective,
)
from ._objective import (
    Costs as Costs,
)
from ._objective import (
    Objective as Objective,
)
from ._objective import (
    Parameters as Parameters,
)
from ._objective import (
    Separable as Separable,
)
from ._objective import (
    Units as Units,
)
from ._plan import (
    Plan as Plan,
)
from ._plan import (
    blocks as blocks,
)
from ._plan import (
    bootstrap as bootstrap,
)
from ._plan import (
    contiguous as contiguous,
)
from ._plan import (
    from_splits as from_splits,
)
from ._plan import (
    groups as groups,
)
from ._plan import (
    kfold as kfold,
)
from ._plan import (
    leave_future_out as leave_future_out,
)
from ._plan import (
    leave_one_out as leave_one_out,
)
from ._plan import (
    neighbourhoods as neighbourhoods,
)
from ._plan import (
    random_subsets as random_subsets,
)
from ._results import RESULTS as RESULTS
from .influence import cooks_distance as cooks_distance
from .influence import dfbetas as dfbetas
from .influence import leverage as leverage
from .influence import studentized_residuals as studentized_residuals
from .interop.glum import from_glum as from_glum
from .interop.hmmlearn import from_hmmlearn as from_hmmlearn
from .interop.pytorch_crf import from_pytorch_crf as from_pytorch_crf
from .interop.sklearn import from_sklearn as from_sklearn
from .interop.statsmodels import from_statsmodels as from_statsmodels
from .leakage import (
    InjectedSplits as InjectedSplits,
)
from .leakage import (
    Injection as Injection,
)
from .leakage import (
    LeakageResult as LeakageResult,
)
from .leakage import (
    RecordLeakage as RecordLeakage,
)
from .leakage import (
    SplitLeakage as SplitLeakage,
)
from .leakage import (
    binomial_block_bootstrap as binomial_block_bootstrap,
)
from .leakage import (
    binomial_matrix as binomial_matrix,
)
from .leakage import (
    largest_leakage_share as largest_leakage_share,
)
from .leakage import (
    leakage_corrected as leakage_corrected,
)
from .leakage import (
    leakage_slope_test as leakage_slope_test,
)
from .leakage import (
    residual_profile as residual_profile,
)
from .leakage import (
    solve_curve as solve_curve,
)
from .leakage import (
    stratified_matrix as stratified_matrix,
)
from .models import emissions as emissions
from .models import losses as losses
from .models import penalties as penalties
from .models._states import Dirichlet as Dirichlet
from .models.cox import Cox as Cox
from .models.crf import CRF as CRF
from .models.hmm import HMM as HMM
from .models.linear import GLM as GLM
from .models.linear import Regression as Regression
from .models.mrf import MRF as MRF
from .models.mrf import Free as Free
from .models.penalties import per_row as per_row
from .models.penalties import per_weight as per_weight
from .models.tagging import entities as entities
from .models.tagging import entity_f1 as entity_f1
from .models.tagging import token_accuracy as token_accuracy
from .refit import (
    AbstractRefit as AbstractRefit,
)
from .refit import (
    Certified as Certified,
)
from .refit import (
    Exact as Exact,
)
from .refit import (
    InfinitesimalJackknife as InfinitesimalJackknife,
)
from .refit import (
    NewtonStep as NewtonStep,
)
from .refit import (
    NoUpdate as NoUpdate,
)

__version__ = _version("leaveout")
