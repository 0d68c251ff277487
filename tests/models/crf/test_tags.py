"""Conditional random fields in use: refits from scratch, samples instead of gradients, decoding,
other libraries' layers, bad input."""

import functools
import types

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

import leaveout as lo
from tests.helpers import flat
from tests.models.crf.test_crf import RIDGE, call, log_sums, paths, problem


def drawn(n, seed=0, K=2, spread=1.0):
    """Sentences of one to six steps whose labels depend on frozen scores and on one another."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, n)
    scores = spread * rng.standard_normal((lengths.sum(), K))
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    labels[:K] = np.arange(K)
    return labels, lengths, scores


@functools.cache
def fitted(drop):
    """One fit of each style for all tests: a model of another shape takes seconds to compile."""
    labels, lengths, scores = drawn(24, seed=2, K=3)
    return lo.fit(lo.CRF(labels, lengths, scores=scores, drop=drop, penalty=RIDGE))


@pytest.mark.parametrize("drop", ["sequence", pytest.param("label", marks=pytest.mark.slow)])
def test_refits_are_those_of_the_partial_likelihood(drop):
    """By enumeration, minimised by SciPy alone.

    The likelihood without the sentences, or with unknown labels.
    """
    lengths = [4, 3, 4]
    labels, scores, _, _ = problem(2, lengths, seed=3)
    crf = lo.CRF(labels, lengths, scores=scores, drop=drop, penalty=RIDGE)
    held = np.array([1]) if drop == "sequence" else np.array([1, 2, 9])
    kept = np.ones(11, bool) if drop == "sequence" else ~np.isin(np.arange(11), held)
    weights = np.array([1, 0, 1]) if drop == "sequence" else np.ones(3)
    unpack = lambda v: {"end": v[:2], "start": v[2:4], "transition": v[4:].reshape(2, 2)}

    def objective(v):
        sums = lambda which: log_sums(unpack(v), scores, lengths, labels, which)
        return weights @ (sums(np.zeros(11, bool)) - sums(kept)) + 0.35 * v @ v

    want = scipy.optimize.minimize(objective, np.zeros(8), tol=1e-12, options={"gtol": 1e-7}).x
    plan = lo.Plan(
        np.array([0, len(held)]), held, np.zeros(len(held)), np.ones(len(held), bool), crf.num_units
    )
    found = lo.fold_parameters(lo.fit(crf), plan, strategy=lo.Exact(1e-10))
    np.testing.assert_allclose(
        flat({name: value[0] for name, value in found.items()}), want, atol=1e-5
    )


@pytest.mark.slow
def test_a_sample_tells_what_gradients_of_all_units_would(monkeypatch):
    monkeypatch.setattr("leaveout.refit._descent.SIZES", (64, 100))
    monkeypatch.setattr("leaveout.refit._descent.MIN_SCREENED_REFITS", 50)
    labels, lengths, scores = drawn(400, spread=0.5)
    fit = lo.fit(lo.CRF(labels, lengths, scores=scores, penalty=RIDGE))
    plan = lo.leave_one_out(400)
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10)).losses
    certified = lo.cross_validate(fit, plan, strategy=lo.Certified(0.01))
    off = np.abs(certified.losses - exact)
    assert off.mean() < 0.01 * np.std(exact) / np.sqrt(400)
    assert np.mean(off > certified.error + 1e-10) < 0.02 and len(certified.flagged()) == 0
    # whose own error is told by the same sample
    ij = lo.cross_validate(fit, plan, strategy=lo.InfinitesimalJackknife())
    assert off.mean() < np.abs(ij.losses - exact).mean() < np.abs(ij.baseline - exact).mean() / 10
    assert np.mean(np.abs(ij.losses - exact) > ij.error + 1e-10) < 0.02


@pytest.mark.slow
def test_without_a_penalty_flat_directions_are_projected_out():
    labels, lengths, scores = drawn(40, seed=1)
    crf = lo.CRF(labels, lengths, scores=scores, penalty=None)
    flats = crf.parameters.symmetries(crf.parameters.start(0))
    assert flats.shape == (4, 8)
    theta = np.random.default_rng(0).standard_normal(8)
    at = lambda v: call(
        crf.loss, {"end": v[:2], "start": v[2:4], "transition": v[4:].reshape(2, 2)}, np.ones(40)
    )
    for direction in flats:
        assert at(theta + 3 * direction) == pytest.approx(at(theta), rel=1e-12)
    fit = lo.fit(crf)
    assert np.abs(flats @ flat(fit.theta)).max() < 1e-9 and fit.decrement < 1e-6
    cv = lo.cross_validate(fit, lo.leave_one_out(40), strategy=lo.InfinitesimalJackknife())
    assert np.isfinite(cv.losses).all() and cv.mean > cv.baseline.mean()
    inside = ~np.isin(np.arange(len(labels)), np.cumsum(lengths) - lengths)
    # 1 never follows anything: its weights run away
    with pytest.raises((RuntimeError, ValueError), match="penalty"):
        lo.fit(lo.CRF(np.where(inside, 0, labels), lengths, scores=scores, penalty=None))


def test_decode_by_enumeration():
    lengths = [4, 1, 3, 2]
    labels, scores, X, theta = problem(3, lengths, seed=5, features=2)
    crf = lo.CRF(labels, lengths, scores=scores, features=scipy.sparse.csr_array(X), num_labels=3)
    best = [
        z[np.argmax(score)] for z, score in paths(theta, scores + X @ theta["weights"], lengths)
    ]
    np.testing.assert_array_equal(crf.decode(theta), np.concatenate(best))
    np.testing.assert_array_equal(crf.decode(theta, [2, 1]), np.concatenate([best[2], best[1]]))
    np.testing.assert_array_equal(crf.labels_of([2, 1]), np.concatenate([labels[5:8], labels[4:5]]))
    with pytest.raises(ValueError, match="from 0 to 3"):
        crf.decode(theta, [4])
    with pytest.raises(ValueError, match=r"transition must have shape \[3, 3\]"):
        crf.decode({**theta, "transition": np.zeros((2, 2))})
    with pytest.raises(ValueError, match="parameters are"):
        crf.decode({"start": theta["start"]})


@pytest.mark.slow
def test_held_out_labels_and_metrics():
    fit, plan = fitted("sequence"), lo.kfold(24, 4)
    crf, lengths, ij = fit.objective, fit.objective.lengths, lo.InfinitesimalJackknife()
    predicted = crf.join(lo.cross_predict(fit, plan, strategy=ij, kind="label"))
    folds = lo.fold_parameters(fit, plan, strategy=ij)
    for k in range(4):
        own, held = {name: value[k] for name, value in folds.items()}, plan.index[plan.refit == k]
        want = np.concatenate([predicted[crf._steps(n)] for n in held])
        np.testing.assert_array_equal(crf.decode(own, held), want)
    errors = lambda held, seen, found: np.mean(crf.decode(found, held) != crf.labels_of(held))
    cv = lo.cross_validate(fit, plan, strategy=ij, evaluate=errors)
    steps = [lengths[plan.index[plan.refit == k]].sum() for k in range(4)]
    assert 1 - lo.developer.models.token_accuracy(crf.labels_of(), predicted) == pytest.approx(
        np.average(cv.losses, weights=steps)
    )
    tags = np.array(["B-x", "I-x", "O"], object)
    assert 0 < lo.developer.models.entity_f1(tags[crf.labels_of()], tags[predicted], lengths) < 1
    with pytest.raises(ValueError, match="some NaN"):
        crf.join(np.full(crf.slots.shape, np.nan))
    with pytest.raises(ValueError, match="kind must be one of 'label', 'state'; got 'response'"):
        lo.cross_predict(fit, plan, kind="response")


@pytest.mark.slow
def test_probabilities_of_held_out_labels():
    fit = fitted("label")
    labels, ij = fit.objective.codes, lo.InfinitesimalJackknife()
    plan = lo.kfold(len(labels), 6, rng=0)
    states = np.asarray(lo.cross_predict(fit, plan, strategy=ij, kind="state"))
    np.testing.assert_allclose(states.sum(1), 1.0)
    own = {name: value[2] for name, value in lo.fold_parameters(fit, plan, strategy=ij).items()}
    held, everyone = (plan.refit == 2), np.arange(len(labels))
    weights = np.where(np.isin(everyone, plan.index[held]), 0.0, 1.0)
    scores = call(fit.objective.score, own, weights, everyone, 1 - weights)
    want = -np.log(states[everyone, labels])
    np.testing.assert_allclose(scores[weights == 0], want[weights == 0], rtol=1e-9)


@pytest.mark.parametrize(
    "tags, want",
    [  # conlleval's reading: I after O or another type begins an entity
        (["B-a", "I-a", "O"], [(0, 1, "a")]),
        (["O", "I-a", "I-a"], [(1, 2, "a")]),
        (["B-a", "B-a", "I-b"], [(0, 0, "a"), (1, 1, "a"), (2, 2, "b")]),
        (["B-a", "O", "I-a"], [(0, 0, "a"), (2, 2, "a")]),
        (["I-a-b", "I-a-b", "B-c"], [(0, 1, "a-b"), (2, 2, "c")]),
    ],
)
def test_entities(tags, want):
    assert lo.developer.models.entities(tags, [3]) == want
    assert lo.developer.models.entities(tags * 2, [3, 3]) == want + [
        (a + 3, b + 3, kind) for a, b, kind in want
    ]
    split = lo.developer.models.entities(tags, [1, 2])  # no entity crosses the end of a sentence
    assert all((a < 1) == (b < 1) for a, b, _ in split)


def test_f1_and_accuracy():
    known = ["B-a", "I-a", "O", "B-b", "O", "B-a"]
    found = ["B-a", "I-a", "O", "B-a", "O", "O"]
    assert lo.developer.models.entity_f1(known, found, [4, 2]) == pytest.approx(2 * 1 / (3 + 2))
    assert lo.developer.models.token_accuracy(known, found) == pytest.approx(4 / 6)
    assert lo.developer.models.entity_f1(["O"], ["O"], [1]) == 0.0
    with pytest.raises(ValueError, match="'X'"):
        lo.developer.models.entities(["X"], [1])
    with pytest.raises(ValueError, match="add up to 2"):
        lo.developer.models.entities(["O"], [2])
    with pytest.raises(ValueError, match="one label and one prediction a step"):
        lo.developer.models.token_accuracy(["O"], ["O", "O"])


class Tensor:
    """What a torch tensor offers."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.array


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_layer_of_pytorch_crf(batch_first):
    labels, lengths, scores = drawn(24, seed=2, K=3)
    fit = fitted("sequence")
    found = fit.parameters
    mask = np.arange(6) < lengths[:, None]
    emissions, tags = np.zeros((24, 6, 3)), np.full((24, 6), -1)
    emissions[mask], tags[mask] = scores, labels
    order = (lambda a: a) if batch_first else lambda a: np.swapaxes(a, 0, 1)
    layer = types.SimpleNamespace(
        start_transitions=Tensor(found["start"]),
        end_transitions=Tensor(found["end"]),
        transitions=Tensor(found["transition"]),
        batch_first=batch_first,
    )
    args = [Tensor(order(a)) for a in (emissions, tags, mask)]
    same = lo.from_pytorch_crf(layer, *args, penalty=RIDGE)
    assert same.decrement < 1e-8 and float(same.value) == pytest.approx(float(fit.value))
    np.testing.assert_allclose(same.hessian, fit.hessian, rtol=1e-9, atol=1e-12)
    layer.transitions = Tensor((found["transition"] + 0.02).astype(np.float32) * np.float32(1.05))
    with pytest.warns(UserWarning, match="the decrement"):
        lo.from_pytorch_crf(layer, *args, penalty=RIDGE)
    layer.transitions = Tensor(found["transition"] + np.eye(3))
    with pytest.raises(ValueError, match="throw=False"):
        lo.from_pytorch_crf(layer, *args, penalty=RIDGE)
    with pytest.warns(UserWarning, match="the decrement"):
        lo.from_pytorch_crf(layer, *args, penalty=RIDGE, throw=False)
    with pytest.raises(ValueError, match="ones followed by zeros"):
        lo.from_pytorch_crf(layer, args[0], args[1], Tensor(order(~mask)))
    with pytest.raises(ValueError, match="mask must have the shape"):
        lo.from_pytorch_crf(layer, args[0], args[1], mask[:3])
    with pytest.raises(ValueError, match=r"emissions must be \[steps, batch, labels\]"):
        lo.from_pytorch_crf(layer, args[1], args[1])
    with pytest.raises(TypeError, match="start_transitions"):
        lo.from_pytorch_crf(types.SimpleNamespace(), *args)


LABELS, GIVEN = [0, 1, 1, 0], np.zeros((4, 2))


@pytest.mark.parametrize(
    "labels, lengths, options, message",
    [
        ([0, 1, 2, 0], [2, 2], {"num_labels": 2}, "label 2 at step 2 is outside 0, …, 1"),
        ([0, -1, 1, 0], [2, 2], {}, "label -1 at step 1 is outside"),
        ([0, 0, 0, 0], [2, 2], {}, "at least two labels"),
        (["a", "a", "a", "a"], [2, 2], {}, "all are 'a'"),
        ([], [], {}, "one label a step"),
        (np.zeros((2, 2), int), [2, 2], {}, r"got shape \(2, 2\)"),
        (LABELS, [2, 0, 2], {}, "sequence 1 has length 0"),
        (LABELS, [2, -2, 4], {}, "sequence 1 has length -2"),
        (LABELS, [2, 3], {}, "add up to 5, but there are 4 labels"),
        (LABELS, [2.0, 2.0], {}, "lengths must be whole numbers"),
        (LABELS, [4], {}, "needs several sequences"),
        (LABELS, [2, 2], {"drop": "step"}, "drop must be one of 'sequence', 'label'"),
        (LABELS, [2, 2], {"num_labels": 1}, "num_labels must be a whole number of 2 or more"),
        (LABELS, [2, 2], {"scores": np.zeros((3, 2))}, "with 4 steps; got shape"),
        (
            LABELS,
            [2, 2],
            {"scores": np.where(np.arange(8).reshape(4, 2) == 3, np.nan, 0.0)},
            "NaN or .inf, the first at step 1",
        ),
        (
            LABELS,
            [2, 2],
            {"scores": np.where(np.arange(8).reshape(4, 2) == 3, np.inf, 0.0)},
            "NaN or .inf, the first at step 1",
        ),
        (
            LABELS,
            [2, 2],
            {"scores": np.where(np.arange(8).reshape(4, 2) == 5, -np.inf, 0.0)},
            r"step 2 \(sequence 1\) has score",
        ),
        (
            LABELS,
            [2, 2],
            {"scores": GIVEN, "num_labels": 3},
            "scores have 2 columns, but num_labels is 3",
        ),
        (LABELS, [2, 2], {"features": np.zeros((4, 0))}, "features must be"),
        (LABELS, [2, 2], {"features": np.full((4, 1), np.nan)}, "the first at step 0, feature 0"),
        (
            LABELS,
            [2, 2],
            {"features": scipy.sparse.csr_array(np.full((4, 1), np.inf))},
            "features hold NaN or infinite",
        ),
        (LABELS, [2, 2], {"features": scipy.sparse.csr_array(np.ones((5, 1)))}, "with 4 steps"),
        (LABELS, [2, 2], {"num_labels": 3, "penalty": None}, "label 2 never occurs"),
        (
            LABELS,
            [2, 2],
            {"features": np.ones((4, 1)), "penalty": None},
            "weights of features are not determined",
        ),
        (LABELS, [1, 1, 1, 1], {"penalty": None}, "every sequence has length one"),
        (LABELS, [2, 2], {"penalty": lo.penalties.Ridge(np.ones(3))}, "alpha must be a number"),
    ],
)
def test_bad_input(labels, lengths, options, message):
    with pytest.raises(ValueError, match=message):
        lo.CRF(labels, lengths, **options)


@pytest.mark.parametrize(
    "labels, options, message",
    [
        ([0.0, 1.0, 1.0, 0.0], {}, "text or whole numbers"),
        (["a", None, "b", "a"], {}, "all text"),
        (["a", "b", "b", "a"], {"scores": GIVEN}, "with scores, labels must be whole numbers"),
        (LABELS, {"scores": GIVEN.astype(str)}, "scores must hold numbers"),
        (LABELS, {"features": GIVEN.astype(str)}, "features must hold numbers"),
        (LABELS, {"penalty": 1.0}, "penalty must be None or one of lo.penalties"),
        (LABELS, {"penalty": lo.penalties.per_weight(lo.penalties.Ridge(1.0))}, "per_weight"),
    ],
)
def test_wrong_types(labels, options, message):
    with pytest.raises(TypeError, match=message):
        lo.CRF(labels, [2, 2], **options)


def test_sentences_of_length_one_and_labels_never_seen_are_legal_with_a_penalty():
    scores = np.arange(12.0).reshape(4, 3)
    crf = lo.CRF([0, 1, 1, 0], [1, 1, 1, 1], scores=scores, penalty=RIDGE)
    got = call(crf.score, crf.parameters.start(0), np.ones(4), np.arange(4), np.ones(4))
    np.testing.assert_allclose(
        got, np.logaddexp.reduce(scores, 1) - scores[np.arange(4), [0, 1, 1, 0]]
    )
    # there are no transitions
    assert (call(crf.jacobian, crf.parameters.start(0))[:, 6:] == 0).all()


def test_a_bootstrap_of_labels_is_refused():
    fit = fitted("label")
    with pytest.raises(ValueError, match="not a second copy"):
        lo.cross_validate(fit, lo.bootstrap(fit.objective.num_units, 3))


def test_impossible_labels_have_no_probability():
    lengths = [4, 1, 3]
    labels, scores, _, theta = problem(3, lengths, zeros=True)
    crf = lo.CRF(labels, lengths, scores=scores, drop="label", penalty=RIDGE)
    states = call(lambda *args: crf.predict(*args, "state"), theta, np.zeros(8), np.arange(8))
    assert (states[np.isneginf(scores)] == 0).all() and np.isfinite(states).all()
    assert np.isfinite(call(crf.hessian, theta, np.ones(8))).all()


def test_scores_far_apart_do_not_underflow():
    """A path that only logarithms can hold against one that is 900 above it at a step."""
    scores = np.array([[0.0, 900.0], [900.0, 0.0], [0.0, 0.0], [1.0, 2.0]])
    theta = {
        "start": np.zeros(2),
        "end": np.zeros(2),
        "transition": np.array([[0.3, 0.1], [-0.2, 0.4]]),
    }
    crf = lo.CRF([0, 0, 1, 0], [2, 2], scores=scores, penalty=RIDGE)
    whole = log_sums(theta, scores, [2, 2], np.zeros(4), np.zeros(4, bool))
    own = log_sums(theta, scores, [2, 2], np.array([0, 0, 1, 0]), np.ones(4, bool))
    got = call(crf.score, theta, np.ones(2), np.arange(2), np.ones(2))
    np.testing.assert_allclose(got, whole - own, rtol=1e-12)


def test_names_do_not_change_what_is_computed():
    labels, lengths, scores = drawn(15)
    named = lo.CRF(np.array(["no", "yes"])[labels], lengths, features=scores, penalty=RIDGE)
    coded = lo.CRF(labels, lengths, features=scores, penalty=RIDGE)
    start = coded.parameters.start(0)
    assert call(named.loss, start, np.ones(15)) == call(coded.loss, start, np.ones(15))
    assert set(named.decode(start)) <= {"no", "yes"}
    assert (
        named.parameters.names()[:2] == ["end[no]", "end[yes]"]
        and len(named.parameters.names()) == 12
    )
    assert named.note == 'drop="sequence": whole sequences are left out. Penalty: Ridge(0.7).'
