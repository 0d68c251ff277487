"""Names of losses."""

import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from leaveout import losses


@pytest.mark.parametrize(
    ("word", "loss"),
    [
        ("gaussian", "squared"),
        ("Normal", "squared"),
        ("binomial", "logistic"),
        ("log-loss", "logistic"),
        ("quasipoisson", "quasi_poisson"),
        ("softmax", "multinomial"),
    ],
)
def test_a_distribution_and_its_loss_are_one_word(word, loss):
    assert repr(losses.resolve(word)) == repr(losses.resolve(loss))


def test_families_and_losses_take_the_same_words():
    y = np.arange(6.0)
    assert type(losses.resolve_shared("squared")) is type(losses.resolve_shared("normal"))
    edges = np.stack([np.arange(5), np.arange(1, 6)], axis=1)
    assert lo.GaussianField(y, edges, family="squared").family == "gaussian"
    table = pd.DataFrame({"y": y > 2, "x": y, "group": [0, 0, 1, 1, 2, 2]})
    fits = [
        lo.fit(lo.Mixed("y ~ x + (1 | group)", table, family)).value
        for family in ("logistic", "bernoulli")
    ]
    assert fits[0] == fits[1]
