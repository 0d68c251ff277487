"""Results of two commits are compared to the last digit."""

import frozen
import numpy as np


def test_frozen_losses_are_compared_to_the_last_digit():
    before = dict(frozen.computed("ridge"))
    assert frozen.compared("ridge", before, dict(before))
    other = before | {"ridge/one/exact/losses": np.nextafter(before["ridge/one/exact/losses"], 9.0)}
    assert not frozen.compared("ridge", before, other)
    assert not frozen.compared("ridge", before, {})


def test_kernels_may_differ_by_the_reported_errors():
    before = dict(frozen.computed("ridge"))
    error, name = before["ridge/kfold/newton step/error"], "ridge/kfold/newton step/losses"
    for times, within in ((0.1, True), (10.0, False)):
        other = before | {name: before[name] + times * error.min() / 8}
        assert frozen.compared("ridge", before, other, within_errors=True) == within
        assert not frozen.compared("ridge", before, other)
    codes = before | {"ridge/one/exact/result": before["ridge/one/exact/result"] + 1}
    assert not frozen.compared("ridge", before, codes, within_errors=True)
