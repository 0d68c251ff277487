"""The public names of validation that are not at the package's root."""

from .checks import CHECKS as CHECKS, Check as Check, is_identifier as is_identifier
from .compare import Comparison as Comparison
