"""The public names of plot."""

from .extensions.bayes.plot import pit as pit
from .extensions.clinical.plot import (
    calibration as calibration,
    decision_curve as decision_curve,
    precision_recall as precision_recall,
    roc as roc,
    stability as stability,
)
from .extensions.leakage._plot import (
    leakage as leakage,
    leakage_report as leakage_report,
)
from .reporting.plot import (
    against_exact as against_exact,
    agreement as agreement,
    comparison as comparison,
    estimates as estimates,
    field as field,
    folds as folds,
    forest as forest,
    influence as influence,
    leverage as leverage,
    losses as losses,
    path as path,
    smooth as smooth,
    states as states,
    tuning as tuning,
)
