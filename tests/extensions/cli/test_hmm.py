"""Plans of `leaveout hmm` are read from their names."""

import pytest

from leaveout.extensions.cli._console import Unusable
from leaveout.extensions.cli.hmm import _plan


def test_numbers_of_a_plan_may_have_an_exponent():
    assert _plan("contiguous:1e-1x1e3", 100, 0).num_refits == 1000
    with pytest.raises(Unusable, match="it must be contiguous"):
        _plan("contiguous:1.2.3x10", 100, 0)
