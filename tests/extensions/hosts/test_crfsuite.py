"""CRFsuite as a host: its weights, its marginals and labels, its own refits.

Labels of new sentences; wrong labels found.
"""

import functools
import re

import numpy as np
import pytest
import scipy.sparse
import sklearn_crfsuite

import leaveout as lo
from leaveout.models.crf.tags import counts

LABELS = ["B-x", "I-x", "O"]
TIGHT = {"max_iterations": 10000, "epsilon": 1e-12, "period": 10**6, "delta": 1e-14}


@functools.cache
def corpus(n=30, seed=0):
    """Sentences whose words, in each of the ways that CRFsuite reads attributes, tell of their
    labels.
    """
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        labels = rng.integers(0, 3, rng.integers(1, 7))
        word = lambda k: "abcdefgh"[(2 * k + rng.integers(0, 4)) % 8]
        X.append(
            [
                {
                    "w": word(k),
                    "bias": True,
                    "size": float(rng.uniform()),
                    "is": {"cap": bool(k == 2)},
                }
                for k in labels
            ]
        )
        y.append([LABELS[k] for k in labels])
    return X, y


def trained(X, y, every=True, **more):
    given = {
        "c2": 0.4,
        "all_possible_states": every,
        "all_possible_transitions": every,
        **TIGHT,
    } | more
    return sklearn_crfsuite.CRF(**given).fit(X, y)


@functools.cache
def fitted(every=True, drop="sequence"):
    model = trained(*corpus(), every)
    return model, lo.from_crfsuite(model, *corpus(), drop=drop)


def weights(model, host):
    """A model's weights, in the order of another's attributes; zero where it has none."""
    own, known = model.tagger_.info(), host.tagger_.info()
    rows = {name: k for k, name in enumerate(known.attributes)}
    out = np.zeros((len(rows), 3))
    for (name, label), value in own.state_features.items():
        out[rows[name], LABELS.index(label)] = value
    return out


@pytest.mark.parametrize("every", [True, False])
def test_its_weights_are_stationary_and_its_answers_ours(every):
    model, fit = fitted(every)
    info = model.tagger_.info()
    assert fit.decrement < 1e-4 and fit.num_params == len(info.state_features) + len(
        info.transitions
    )
    np.testing.assert_allclose(fit.parameters["weights"], weights(model, model), atol=1e-6)
    assert (fit.parameters["start"] == 0).all() and (fit.parameters["end"] == 0).all()
    X = corpus(10, seed=5)[0]
    assert (fit.objective.predict(fit, features=X) == np.concatenate(model.predict(X))).all()
    theirs = [
        [step[label] for label in LABELS]
        for sentence in model.predict_marginals(X)
        for step in sentence
    ]
    np.testing.assert_allclose(
        fit.objective.predict(fit, features=X, kind="state"), theirs, atol=1e-5
    )


def test_exact_refits_are_its_own():
    """With all weights; where it has those of its training data only, a refit of ours keeps those
    of the whole.
    """
    (X, y), (model, fit) = corpus(), fitted()
    found = lo.fold_parameters(fit, lo.leave_one_out(), strategy=lo.Exact(1e-10))["weights"]
    for k in (0, 11):
        refit = trained(X[:k] + X[k + 1 :], y[:k] + y[k + 1 :])
        np.testing.assert_allclose(found[k], weights(refit, model), atol=2e-5)
        assert np.abs(found[k] - fit.parameters["weights"]).max() > 1e-3
    cv = lo.cross_validate(fit, lo.leave_one_out())
    refit = trained(X[1:], y[1:])
    p = [step[label] for step, label in zip(refit.predict_marginals(X[:1])[0], y[0], strict=True)]
    if len(p) == 1:  # of one step the marginal is the whole
        assert cv.losses[0] == pytest.approx(-np.log(p[0]), abs=1e-4 + cv.error[0])


@pytest.mark.slow
def test_held_out_probabilities_of_tokens_find_a_wrong_label():
    X, y = corpus(60, seed=3)
    y = [list(labels) for labels in y]
    for sentence, labels in zip(X, y, strict=True):  # make it easy, but for one
        for step, label in zip(sentence, labels, strict=True):
            step["clue"] = label
    wrong = next(k for k, labels in enumerate(y) if len(labels) > 3)
    y[wrong][2] = LABELS[(LABELS.index(y[wrong][2]) + 1) % 3]
    fit = lo.from_crfsuite(trained(X, y), X, y)
    crf = fit.objective
    p = crf.join(lo.cross_predict(fit, lo.leave_one_out(len(X)), kind="state"))
    np.testing.assert_allclose(p.sum(1), 1)
    table = crf.label_errors(p)
    first = table.iloc[0]
    assert (
        table.index[0] == sum(map(len, y[:wrong])) + 2
        and first["sequence"] == wrong
        and first["label"] == y[wrong][2]
    )
    assert (
        first["its probability"] > 0.5 > first["probability"]
        and table["probability"].is_monotonic_increasing
    )
    with pytest.raises(ValueError, match="needs the probability of every label"):
        crf.label_errors(p[:, :2])


@pytest.mark.slow
def test_labels_are_left_out_of_a_host_too():
    _, fit = fitted(drop="label")
    cv = lo.cross_validate(fit, lo.kfold(k=5), strategy=lo.Exact())
    assert fit.objective.drop == "label" and np.isfinite(cv.losses).all()


@pytest.mark.slow
def test_free_entries_are_a_model_of_their_own():
    """Refitted from scratch by SciPy in the whole model's likelihood, the held entries at zero."""
    import jax
    import scipy.optimize

    rng = np.random.default_rng(1)
    lengths, K = [3, 4, 2, 5], 3
    labels, x = rng.integers(0, K, 14), rng.standard_normal((14, 2))
    labels[:K] = np.arange(K)
    free = {
        "transition": ~np.eye(K, dtype=bool),
        "weights": rng.random((2, K)) < 0.7,
        "end": np.zeros(K, bool),
    }
    penalty = lo.penalties.Ridge(0.3)
    part = lo.CRF(labels, lengths, features=x, penalty=penalty, free=free)
    whole = lo.CRF(labels, lengths, features=x, penalty=penalty)
    fit = lo.fit(part)
    mask = {
        "end": free["end"],
        "start": np.ones(K, bool),
        "transition": free["transition"],
        "weights": free["weights"],
    }
    kept = np.concatenate([mask[name].ravel() for name in sorted(mask)])
    weights = np.array([1.0, 0.0, 1.0, 1.0])
    with jax.enable_x64(True):
        flat, back = jax.flatten_util.ravel_pytree(whole.parameters.start(0))
        place = lambda v: jax.numpy.zeros(flat.shape).at[np.flatnonzero(kept)].set(v)
        both = jax.jit(jax.value_and_grad(lambda v: whole.loss(back(place(v)), weights)))
        want = scipy.optimize.minimize(
            lambda v: [np.asarray(a) for a in both(v)],
            np.zeros(kept.sum()),
            jac=True,
            tol=1e-12,
            options={"gtol": 1e-8},
        ).x
    found = lo.fold_parameters(
        fit,
        lo.Plan(np.array([0, 1]), np.array([1]), np.zeros(1), np.ones(1, bool), 4),
        strategy=lo.Exact(1e-10),
    )
    own = np.concatenate([found[name][0].ravel() for name in sorted(mask)])
    np.testing.assert_allclose(own[kept], want, atol=1e-6)
    assert (own[~kept] == 0).all() and len(part.parameters.names()) == kept.sum() == fit.num_params


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda X, y: lo.from_crfsuite(3, X, y), TypeError, "give a fitted sklearn_crfsuite.CRF"),
        (lambda X, y: lo.from_crfsuite(sklearn_crfsuite.CRF(), X, y), TypeError, "not fitted"),
        (lambda X, y: lo.from_crfsuite(trained(X, y, c1=0.1), X, y), ValueError, "c1 is not zero"),
        (lambda X, y: lo.from_crfsuite(trained(X, y, c2=0.0), X, y), ValueError, "c2 must be positive"),
        (lambda X, y: lo.from_crfsuite(fitted()[0].tagger_, X, y), ValueError, "c2 must be positive, and be told"),
        (lambda X, y: lo.from_crfsuite(fitted()[0], X, y[:-1]), ValueError, "the same sentences"),
        (lambda X, y: lo.from_crfsuite(fitted()[0], X, [["?"] * len(labels) for labels in y]), ValueError, "no label '\\?'"),
        (lambda X, y: lo.from_crfsuite(fitted()[0], "text", y), TypeError, "X must be sentences"),
        (lambda X, y: lo.from_crfsuite(fitted()[0], [*X[:-1], []], [*y[:-1], []]), ValueError, "sentence 29 is empty"),
        (
            lambda X, y: lo.from_crfsuite(
                sklearn_crfsuite.CRF(algorithm="ap", all_possible_states=True).fit(X, y), X, y
            ),
            TypeError,
            "'ap' minimises no likelihood",
        ),
        (lambda X, y: lo.CRF([0, 1], [1, 1], free={"start": [True]}), ValueError, "free tells"),
        (lambda X, y: lo.CRF([0, 1], [1, 1], free={"start": np.zeros(2, bool)}, penalty=None), ValueError, "a penalty"),
        (lambda X, y: fitted()[1].objective.predict(fitted()[1], lengths=[2]), ValueError, "need what the model was fitted on"),
        (lambda X, y: fitted()[1].objective.predict(fitted()[1], features=X, kind="odd"), ValueError, "kind"),
        (
            lambda X, y: lo.anchor(fitted(False)[1].objective, fitted(True)[1].parameters),
            ValueError,
            "must be zero where it is not free|shape",
        ),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(*corpus())


def test_a_tagger_tells_all_but_the_penalty():
    model, fit = fitted()
    same = lo.from_crfsuite(model.tagger_, *corpus(), c2=0.4)
    np.testing.assert_array_equal(same.vector, fit.vector)


def test_new_sentences_of_scores_and_features():
    """By enumeration of one sentence of two steps."""
    rng = np.random.default_rng(2)
    labels, lengths = rng.integers(0, 2, 12), [4, 4, 4]
    labels[:2] = 0, 1
    scores, x = rng.standard_normal((12, 2)), scipy.sparse.csr_array(rng.standard_normal((12, 3)))
    crf = lo.CRF(labels, lengths, scores=scores, features=x, penalty=lo.penalties.Ridge(1.0))
    fit = lo.fit(crf)
    new, own = rng.standard_normal((2, 2)), rng.standard_normal((2, 3))
    found = crf.predict(fit, lengths=[2], scores=new, features=own, kind="state")
    theta = fit.parameters
    e = new + own @ theta["weights"]
    table = np.exp(
        (theta["start"] + e[0])[:, None] + theta["transition"] + (e[1] + theta["end"])[None]
    )
    np.testing.assert_allclose(
        found, [table.sum(1) / table.sum(), table.sum(0) / table.sum()], rtol=1e-10
    )
    best = np.unravel_index(table.argmax(), table.shape)
    assert tuple(crf.predict(fit, lengths=[2], scores=new, features=own)) == best


def test_entities_of_other_schemes_are_the_same():
    """One sentence in BIO, BIOES and BILOU."""
    bio = ["B-x", "I-x", "O", "B-y", "B-y", "I-y", "I-y", "B-x"]
    want = lo.developer.models.entities(bio, [8])
    assert want == [(0, 1, "x"), (3, 3, "y"), (4, 6, "y"), (7, 7, "x")]
    bioes = ["B-x", "E-x", "O", "S-y", "B-y", "I-y", "E-y", "S-x"]
    bilou = [re.sub("^E", "L", re.sub("^S", "U", tag)) for tag in bioes]
    assert (
        lo.developer.models.entities(bioes, [8]) == lo.developer.models.entities(bilou, [8]) == want
    )
    assert lo.developer.models.entities(["E-x", "I-x", "S-x", "E-x"], [4]) == [
        (0, 0, "x"),
        (1, 1, "x"),
        (2, 2, "x"),
        (3, 3, "x"),
    ]


def test_documents_are_kept():
    lines = ["-DOCSTART- O", "", "a O", "", "b O", "c O", "", "-DOCSTART- O", "", "d O"]
    tagged = lo.datasets.read_conll(lines)
    assert tagged.documents == [1, 1, 2] and tagged.lengths == [1, 2, 1]
    assert lo.datasets.read_conll(["a O", "", "b O"]).documents is None


def test_a_label_that_only_one_sentence_has_is_flagged_where_that_is_left_out():
    """The host's refit does not know it.

    Its probability is zero there, and a finite loss is none of the host's.
    """
    X, y = corpus()
    y = [
        ["rare" if (n, t) == (4, 0) else label for t, label in enumerate(labels)]
        for n, labels in enumerate(y)
    ]
    assert "rare" not in trained(X[:4] + X[5:], y[:4] + y[5:]).classes_
    fit = lo.from_crfsuite(trained(X, y), X, y)
    assert lo.cross_validate(fit, lo.leave_one_out(), audit=0).flagged().tolist() == [4]
    assert counts(fit.objective).sum(1).tolist() == [len(labels) for labels in y]


@pytest.mark.slow
def test_a_label_that_only_one_step_has_is_flagged_where_that_is_hidden():
    X, y = corpus()
    y = [
        ["rare" if (n, t) == (4, 0) else label for t, label in enumerate(labels)]
        for n, labels in enumerate(y)
    ]
    step = sum(map(len, y[:4]))
    fit = lo.from_crfsuite(trained(X, y), X, y, drop="label")
    every = np.arange(sum(map(len, y)))
    found = lo.cross_validate(
        fit,
        lo.from_splits([(every[every != t], [t]) for t in (step, step + 1)], len(every)),
        audit=0,
    )
    assert 0 in found.flagged() and 1 not in found.flagged()


def test_a_hessian_that_does_not_fit_is_not_formed():
    """Of thousands of features each has a weight of a label or two.

    H of these would fit, but not its making of all.
    """
    rng = np.random.default_rng(0)
    y = [[str(k) for k in rng.integers(0, 16, 3)] for _ in range(120)]
    X = [
        [{f"r{n} {t} {k}": 1.0 for k in range(7)} | {label: 1.0} for t, label in enumerate(own)]
        for n, own in enumerate(y)
    ]
    fit = lo.from_crfsuite(trained(X, y, every=False, epsilon=1e-6), X, y)
    assert (
        fit.num_params <= 12_000
        and fit.objective.costs.formed > 2**33
        and fit.quadratic.factor is None
    )
    found = lo.cross_validate(fit, lo.from_splits([(np.arange(1, 120), [0])], 120), audit=0)
    assert np.isfinite(found.mean)
