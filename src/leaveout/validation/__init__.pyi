"""The public names of validation that are not at the package's root."""

from .checks import CHECKS as CHECKS, Check as Check
from .compare import Comparison as Comparison
