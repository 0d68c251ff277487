"""Puts the root of the repository on the module search path, so that programs find `tests.oracles` and `tests.problems`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
