"""The public names of leakage."""

from ._binomial import (
    binomial_matrix as binomial_matrix,
    residual_profile as residual_profile,
    stratified_matrix as stratified_matrix,
)
from ._document import (
    BlockBootstrap as BlockBootstrap,
    binomial_block_bootstrap as binomial_block_bootstrap,
    solve_unsquared as solve_unsquared,
)
from ._estimate import leakage_corrected as leakage_corrected
from ._injection import InjectedSplits as InjectedSplits, Injection as Injection
from ._leakage_report import leakage_report as leakage_report
from ._linkage import Linkage as Linkage
from ._models import RecordLeakage as RecordLeakage, SplitLeakage as SplitLeakage
from ._report_result import LeakageReport as LeakageReport
from ._result import LeakageResult as LeakageResult
from ._slope import (
    SlopeTest as SlopeTest,
    largest_leakage_share as largest_leakage_share,
    leakage_slope_test as leakage_slope_test,
)
from ._solve import Curve as Curve, solve_curve as solve_curve
