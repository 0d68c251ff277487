"""The loss on new clusters where the clusters are only known noisily: inject more leakage, and extrapolate to none."""

from ._binomial import binomial_matrix as binomial_matrix
from ._binomial import residual_profile as residual_profile
from ._binomial import stratified_matrix as stratified_matrix
from ._document import BlockBootstrap as BlockBootstrap
from ._document import binomial_block_bootstrap as binomial_block_bootstrap
from ._document import solve_unsquared as solve_unsquared
from ._estimate import leakage_corrected as leakage_corrected
from ._injection import InjectedSplits as InjectedSplits
from ._injection import Injection as Injection
from ._models import RecordLeakage as RecordLeakage
from ._models import SplitLeakage as SplitLeakage
from ._result import LeakageResult as LeakageResult
from ._share import largest_leakage_share as largest_leakage_share
from ._slope import SlopeTest as SlopeTest
from ._slope import leakage_slope_test as leakage_slope_test
from ._solve import Curve as Curve
from ._solve import solve_curve as solve_curve
