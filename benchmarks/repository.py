"""Puts the root of the repository on the module search path, so that programs find `tests.oracles`
and `tests.problems`.

The program that checks certificates (`verify/`) is found too.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "verify" / "src")]
