"""The public names of leakage."""

from .extensions.leakage._binomial import (
    binomial_matrix as binomial_matrix,
    residual_profile as residual_profile,
    stratified_matrix as stratified_matrix,
)
from .extensions.leakage._document import (
    BlockBootstrap as BlockBootstrap,
    binomial_block_bootstrap as binomial_block_bootstrap,
    solve_unsquared as solve_unsquared,
)
from .extensions.leakage._estimate import leakage_corrected as leakage_corrected
from .extensions.leakage._injection import InjectedSplits as InjectedSplits, Injection as Injection
from .extensions.leakage._leakage_report import leakage_report as leakage_report
from .extensions.leakage._linkage import Linkage as Linkage
from .extensions.leakage._mixture import Mixture as Mixture, mixture as mixture
from .extensions.leakage._models import RecordLeakage as RecordLeakage, SplitLeakage as SplitLeakage
from .extensions.leakage._report_result import LeakageReport as LeakageReport
from .extensions.leakage._result import LeakageResult as LeakageResult
from .extensions.leakage._slope import (
    SlopeTest as SlopeTest,
    largest_leakage_share as largest_leakage_share,
    leakage_slope_test as leakage_slope_test,
)
from .extensions.leakage._solve import Curve as Curve, solve_curve as solve_curve
