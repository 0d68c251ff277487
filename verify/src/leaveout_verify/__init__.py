"""Checks certificates of leaveout: whether every claimed loss is within its claimed error of the
exact refit's.

The README states the theorem, its proof, and what is taken for granted. `proof` has the theorem,
`losses` the losses, `problem` what the file says. Nothing here comes from leaveout.
"""

from .problem import Fold, Problem, Rejected, parse, read, seal
from .proof import Verdict, verify

__all__ = ["Fold", "Problem", "Rejected", "Verdict", "parse", "read", "seal", "verify"]
