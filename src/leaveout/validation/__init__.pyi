"""The public names of validation that are not at the package's root."""

from .._runtime.interrupt import Interrupted as Interrupted
from ..optimize.hessian_factor import IndefiniteHessianError as IndefiniteHessianError
from ..plans.plan import nearest_neighbour_matched as nearest_neighbour_matched
from .checks import CHECKS as CHECKS, Check as Check, is_identifier as is_identifier
from .compare import Comparison as Comparison
from .nested_intervals import nested as nested
from .target import Target as Target
