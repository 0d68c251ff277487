"""The public names of clinical."""

from .extensions.clinical.calibration import calibration as calibration
from .extensions.clinical.decision_curve import decision_curve as decision_curve
from .extensions.clinical.internal_external import internal_external as internal_external
from .extensions.clinical.internal_validation import validate as validate
from .extensions.clinical.recalibrate import recalibrate as recalibrate, threshold as threshold
from .extensions.clinical.stability import stability as stability
