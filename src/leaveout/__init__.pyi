"""The public names, and where they are: what type checkers see, and `__init__` loads by."""

from . import (
    inference as inference,
    interop as interop,
    leakage as leakage,
    models as models,
    refit as refit,
    sklearn as sklearn,
)
from ._runtime.codes import RESULTS as RESULTS
from ._runtime.interrupt import Interrupted as Interrupted
from .data import datasets as datasets
from .diagnostics import (
    Influence as Influence,
    cooks_distance as cooks_distance,
    dfbetas as dfbetas,
    influence as influence,
    leverage as leverage,
    studentized_residuals as studentized_residuals,
)
from .diagnostics.auto_groups import auto_groups as auto_groups
from .diagnostics.covariance import covariance as covariance
from .diagnostics.prediction_intervals import interval as interval, predict as predict
from .interop.crfsuite import from_crfsuite as from_crfsuite
from .interop.glum import from_glum as from_glum
from .interop.hmmlearn import from_hmmlearn as from_hmmlearn
from .interop.pytorch_crf import from_pytorch_crf as from_pytorch_crf
from .interop.skglm import from_skglm as from_skglm
from .interop.sklearn import from_sklearn as from_sklearn
from .interop.statsmodels import from_statsmodels as from_statsmodels
from .leakage import (
    InjectedSplits as InjectedSplits,
    Injection as Injection,
    LeakageReport as LeakageReport,
    LeakageResult as LeakageResult,
    Linkage as Linkage,
    RecordLeakage as RecordLeakage,
    SplitLeakage as SplitLeakage,
    binomial_block_bootstrap as binomial_block_bootstrap,
    binomial_matrix as binomial_matrix,
    largest_leakage_share as largest_leakage_share,
    leakage_corrected as leakage_corrected,
    leakage_report as leakage_report,
    leakage_slope_test as leakage_slope_test,
    residual_profile as residual_profile,
    solve_curve as solve_curve,
    stratified_matrix as stratified_matrix,
)
from .models import emissions as emissions
from .models.crf.crf import CRF as CRF
from .models.crf.tagging import entities as entities, entity_f1 as entity_f1, token_accuracy as token_accuracy
from .models.glm import losses as losses, penalties as penalties
from .models.glm.banded import BandedRidge as BandedRidge
from .models.glm.glm import GLM as GLM, Regression as Regression
from .models.glm.penalties import per_row as per_row, per_weight as per_weight
from .models.hidden.hmm import HMM as HMM
from .models.hidden.mrf import MRF as MRF
from .models.hidden.potentials import External as External, Free as Free
from .models.hidden.states import Dirichlet as Dirichlet
from .models.latent.field import GaussianField as GaussianField
from .models.latent.gaussian_process import GaussianProcess as GaussianProcess
from .models.latent.mixed import Mixed as Mixed
from .models.smooth.additive import Additive as Additive
from .models.smooth.terms import s as s, te as te, ti as ti
from .models.survival.cox import Cox as Cox
from .objectives.closed_form import AbstractClosedForm as AbstractClosedForm
from .objectives.objective import (
    AbstractLinearPredictor as AbstractLinearPredictor,
    AbstractObjective as AbstractObjective,
    Costs as Costs,
    Objective as Objective,
    Parameters as Parameters,
    Separable as Separable,
    Units as Units,
)
from .optimize.banded_ridge import PerTarget as PerTarget
from .optimize.fit import Fit as Fit, anchor as anchor, fit as fit
from .optimize.hessian_factor import IndefiniteHessianError as IndefiniteHessianError
from .out_of_core import Scan as Scan, scan as scan
from .plans.plan import (
    Plan as Plan,
    blocks as blocks,
    bootstrap as bootstrap,
    contiguous as contiguous,
    from_splits as from_splits,
    groups as groups,
    kfold as kfold,
    leave_future_out as leave_future_out,
    leave_one_out as leave_one_out,
    neighbourhoods as neighbourhoods,
    random_subsets as random_subsets,
)
from .refit import (
    AbstractRefit as AbstractRefit,
    Certified as Certified,
    Exact as Exact,
    InfinitesimalJackknife as InfinitesimalJackknife,
    NewtonStep as NewtonStep,
    NoUpdate as NoUpdate,
)
from .reporting import plot as plot
from .reporting.report import report as report
from .tuning.curves import curves as curves, mean_interval as mean_interval
from .tuning.path import Path as Path, path as path
from .tuning.search import Trial as Trial
from .tuning.smooth import Smoothing as Smoothing, smooth as smooth
from .tuning.tune import Tuning as Tuning, tune as tune
from .validation.checks import CHECKS as CHECKS, Check as Check
from .validation.compare import Comparison as Comparison, compare as compare
from .validation.cross_validate import (
    cross_predict as cross_predict,
    cross_validate as cross_validate,
    fold_parameters as fold_parameters,
)
from .validation.estimate import Estimate as Estimate
from .validation.nested import nested as nested

__version__: str
