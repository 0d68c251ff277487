"""Results of two commits are compared to the last digit."""

import frozen
import numpy as np


def test_frozen_losses_are_compared_to_the_last_digit():
    before = dict(frozen.computed("ridge"))
    assert frozen.compared("ridge", before, dict(before))
    other = before | {"ridge/one/exact/losses": np.nextafter(before["ridge/one/exact/losses"], 9.0)}
    assert not frozen.compared("ridge", before, other)
    assert not frozen.compared("ridge", before, {})
