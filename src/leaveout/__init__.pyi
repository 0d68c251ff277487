"""The public names, and where they are: what type checkers see, and `__init__` loads by."""

from . import (
    bayes as bayes,
    clinical as clinical,
    developer as developer,
    diagnostics as diagnostics,
    leakage as leakage,
    plot as plot,
    sklearn as sklearn,
    tuning as tuning,
    validation as validation,
)
from ._runtime.conventions import config as config
from ._runtime.results import RESULTS as RESULTS
from .data import datasets as datasets
from .diagnostics import survey as survey
from .diagnostics.covariance import covariance as covariance
from .diagnostics.influence import influence as influence
from .diagnostics.prediction_intervals import (
    interval as interval,
    predict as predict,
    prediction_sets as prediction_sets,
    quantile_interval as quantile_interval,
)
from .extensions.hosts.crfsuite import from_crfsuite as from_crfsuite
from .extensions.hosts.glum import from_glum as from_glum
from .extensions.hosts.hmmlearn import from_hmmlearn as from_hmmlearn
from .extensions.hosts.lifelines import from_lifelines as from_lifelines
from .extensions.hosts.nemos import from_nemos as from_nemos
from .extensions.hosts.pyfixest import from_pyfixest as from_pyfixest
from .extensions.hosts.pytorch_crf import from_pytorch_crf as from_pytorch_crf
from .extensions.hosts.skglm import from_skglm as from_skglm
from .extensions.hosts.sklearn import from_sklearn as from_sklearn
from .extensions.hosts.sksurv import from_sksurv as from_sksurv
from .extensions.hosts.statsmodels import from_statsmodels as from_statsmodels
from .extensions.out_of_core.scan import scan as scan
from .models import emissions as emissions
from .models.crf.crf import CRF as CRF
from .models.glm import losses as losses, penalties as penalties
from .models.glm.glm import GLM as GLM, Regression as Regression
from .models.hidden.hmm import HMM as HMM
from .models.hidden.mrf import MRF as MRF
from .models.latent.field import GaussianField as GaussianField
from .models.latent.gaussian_process import GaussianProcess as GaussianProcess
from .models.latent.mixed import Mixed as Mixed
from .models.smooth import terms as terms
from .models.smooth.additive import Additive as Additive
from .models.survival.cox import Cox as Cox
from .objectives.objective import Objective as Objective, Separable as Separable
from .optimize.fit import Fit as Fit, anchor as anchor, fit as fit
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
    purged as purged,
    random_subsets as random_subsets,
    rolling as rolling,
    stratified as stratified,
)
from .refit._strategies import (
    Certified as Certified,
    Exact as Exact,
    InfinitesimalJackknife as InfinitesimalJackknife,
    NewtonStep as NewtonStep,
    NoUpdate as NoUpdate,
)
from .reporting.citations import cite as cite
from .reporting.report import report as report
from .tuning.path import path as path
from .tuning.smooth import smooth as smooth
from .tuning.tune import tune as tune
from .validation.compare import compare as compare
from .validation.cross_validate import (
    cross_predict as cross_predict,
    cross_validate as cross_validate,
    fold_parameters as fold_parameters,
)
from .validation.estimate import Estimate as Estimate
from .validation.merge import merge as merge

__version__: str
