"""The tagger of the first source document: losses of its CRF layer, batches of its sentences."""

from pathlib import Path

import jax
import numpy as np
import pytest

import leaveout as lo

ROOT = Path(__file__).parents[2]
LENGTHS, K = [3, 1, 9, 5], 4


@pytest.fixture
def network(monkeypatch):
    for name in ("equinox", "optax"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import crf_network

    return crf_network


@pytest.fixture
def sentences():
    rng = np.random.default_rng(0)
    codes = np.r_[np.arange(K), rng.integers(K, size=sum(LENGTHS) - K)]
    layer = {"end": rng.normal(size=K), "start": rng.normal(size=K)}
    return (
        codes,
        rng.normal(size=(len(codes), K)),
        layer | {"transition": rng.normal(size=(K, K))},
    )


def test_losses_are_those_of_a_crf(network, sentences):
    codes, scores, parameters = sentences
    model = lo.CRF(codes, LENGTHS, scores=scores, penalty=None)
    padded = network.padded((scores,), codes, LENGTHS)
    with jax.enable_x64(True):
        losses = network.losses(
            network.Layer(**parameters), *padded.inputs, padded.labels, padded.inside
        )
        truth = [
            float(model.loss(model.parameters.unconstrained(parameters), one)) for one in np.eye(4)
        ]
    np.testing.assert_allclose(losses, truth, rtol=1e-10)


def test_scores_of_words_do_not_depend_on_the_batch(network, sentences):
    codes, *_ = sentences
    letters = np.random.default_rng(1).integers(1, 96, size=(len(codes), network.LONGEST_WORD))
    padded = network.padded((codes % 3, letters), codes, LENGTHS)
    tagger = network.Network(3, K, jax.random.key(0))
    scores, loss = network.evaluated(tagger, padded)
    ends = np.cumsum(LENGTHS)
    losses = []
    for k, (start, end) in enumerate(zip(ends - LENGTHS, ends, strict=True)):
        single, value = network.scored(tagger, padded.rows(np.array([k])), None)
        np.testing.assert_allclose(single[0][: end - start], scores[start:end], atol=1e-6)
        losses.append(float(value[0]))
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_every_sentence_is_in_one_batch(network):
    codes = np.zeros(200, int)
    padded = network.padded((codes,), codes, [4] * 25 + [2] * 50)
    chosen = np.concatenate(list(network.batches(padded, np.random.default_rng(0))))
    np.testing.assert_array_equal(np.sort(chosen), np.arange(75))
