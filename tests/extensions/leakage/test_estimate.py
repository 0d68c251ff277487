"""The loss on new clusters.

Against closed forms, repeated, resumed, refused, and on wrong input.
"""

import matplotlib

matplotlib.use("agg")
import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app
from leaveout.extensions.leakage import _run
from leaveout.leakage import (
    Injection,
    RecordLeakage,
    SplitLeakage,
    binomial_block_bootstrap,
    largest_leakage_share,
    leakage_corrected,
    leakage_slope_test,
)

QUIET = pytest.mark.filterwarnings("ignore:leakage_corrected:UserWarning")
SMALL = Injection(num_boot=12, num_levels=6)
APART = 2.0  # between the means of the two sides


def two_sides(seed=0, size=400, p_train=0.1, p_test=0.0):
    """y ~ N(0, 1) in T, N(2, 1) in V; a share of either is filed under the other."""
    rng = np.random.default_rng(seed)
    side = np.repeat([0, 1], size)
    true = side.copy()
    true[: round(p_train * size)] = 1
    true[size : size + round(p_test * size)] = 0
    y = APART * true + rng.normal(size=2 * size)
    return (
        np.zeros((2 * size, 1)),
        y,
        side,
        [(np.flatnonzero(side == 0), np.flatnonzero(side == 1))],
    )


def clusters(seed=0, number=16, size=12):
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(number), size)
    X = 2 * rng.normal(size=(number, 2))[label] + 0.5 * rng.normal(size=(len(label), 2))
    return (
        X,
        X @ [1.0, -1.0] + rng.normal(size=number)[label] + 0.2 * rng.normal(size=len(label)),
        label,
    )


@QUIET
@pytest.mark.parametrize("p_test", [0.0, 0.15])
def test_the_loss_of_a_mean_has_a_closed_form(p_test):
    """Trained on n records, c of them V's, the mean is off by 2 (1 − c/n).

    e_c = 1 + 1/n + 4 (1 − c/n)².
    """
    n, found, naive = 50, [], []
    for seed in range(6):
        X, y, side, cv = two_sides(seed, p_test=p_test)
        result = leakage_corrected(
            LinearRegression(), X, y, groups=side, leakage=RecordLeakage(0.1, p_test), loss="mse",
            injection=Injection(num_boot=60, train_size=n), cv=cv, rng=seed,
        )  # fmt: skip
        found.append(result.solved.estimate)
        naive.append(result.naive)
    truth = 1 + 1 / n + APART**2
    assert (
        abs(np.mean(found) - truth) < 4 * np.std(found) / np.sqrt(6) + 0.02 and np.std(found) < 0.4
    )
    assert np.mean(naive) < truth - 0.5


@QUIET
def test_with_no_leakage_the_levels_are_the_curve():
    X, y, side, cv = two_sides(p_train=0.0)
    injection = Injection(num_boot=40, num_levels=31, train_size=30, top=30)
    arguments = {
        "groups": side,
        "leakage": RecordLeakage(0.0),
        "loss": "squared",
        "injection": injection,
        "cv": cv,
    }
    result = leakage_corrected(LinearRegression(), X, y, **arguments)
    np.testing.assert_allclose(result.pooled.A, np.eye(31), atol=1e-12)
    exact = 0.5 * (1 + 1 / 30 + (APART * (1 - np.arange(31) / 30)) ** 2)
    np.testing.assert_allclose(result.pooled.b, exact, atol=0.25)
    assert result.naive == pytest.approx(result.lower) and result.pooled.unseen == 1.0


def test_the_numbers_repeat_and_do_not_depend_on_who_fits():
    X, y, label = clusters()
    arguments = {
        "groups": label,
        "leakage": RecordLeakage(0.02, 0.05),
        "loss": "mse",
        "injection": SMALL,
    }
    once = leakage_corrected(DecisionTreeRegressor(max_features=1), X, y, **arguments, rng=4)
    again = leakage_corrected(
        DecisionTreeRegressor(max_features=1), X, y, **arguments, rng=4, n_jobs=1
    )
    np.testing.assert_array_equal(once.pooled.b, again.pooled.b)
    assert once.table().equals(again.table())
    other = leakage_corrected(DecisionTreeRegressor(max_features=1), X, y, **arguments, rng=5)
    assert other.naive != once.naive
    batched = leakage_corrected(Ridge(), X, y, **arguments)
    frame = leakage_corrected(Ridge(), pd.DataFrame(X), pd.Series(y), **arguments)
    np.testing.assert_allclose(batched.pooled.b, frame.pooled.b)


def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    X, y, label = clusters()
    monkeypatch.setattr(_run, "FIT_BATCH_ENTRIES", 40_000)  # a few draws at a time
    arguments = {
        "groups": label,
        "leakage": RecordLeakage(0.02, 0.05),
        "loss": "mse",
        "injection": SMALL,
        "bins": [0, 1, 4, 99],
    }
    whole = leakage_corrected(Ridge(), X, y, **arguments)
    file, one_piece, calls = tmp_path / "run.npz", _run.one_piece, []

    def killed(*words):
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return one_piece(*words)

    monkeypatch.setattr(_run, "one_piece", killed)
    with pytest.raises(KeyboardInterrupt):
        leakage_corrected(Ridge(), X, y, **arguments, checkpoint=file)
    assert file.exists()
    resumed = []
    monkeypatch.setattr(_run, "one_piece", lambda *words: resumed.append(1) or one_piece(*words))
    rest = leakage_corrected(Ridge(), X, y, **arguments, checkpoint=file)
    once = len(resumed)
    leakage_corrected(Ridge(), X, y, **arguments)
    assert 1 <= once == len(resumed) - once - 4  # four were there
    assert rest.table().equals(whole.table()) and rest.histogram.equals(whole.histogram)
    assert rest.per_cluster.equals(whole.per_cluster)
    with pytest.raises(ValueError, match="is of another run"):
        leakage_corrected(Ridge(2.0), X, y, **arguments, checkpoint=file)


def test_what_a_result_holds():
    X, y, label = clusters()
    result = leakage_corrected(
        KNeighborsRegressor(3), X, y, groups=label, leakage=RecordLeakage.from_pairwise(0.9, 0.9), loss="mse",
        injection=SMALL, bins=[0, 0.5, 2, 1000],
    )  # fmt: skip
    by_hand = 1 - np.sqrt(0.9)
    inside = np.array([len(np.unique(label[part.fold.test])) for part in result.plan])
    np.testing.assert_allclose(result.shares.p_test, by_hand * (16 - inside) / 15)
    np.testing.assert_allclose(result.shares.p_train, result.shares.p_test * inside / (16 - inside))
    assert sorted(result.per_cluster.index) == list(range(16))
    assert list(result.per_cluster.columns) == ["records", "naive", "estimate", "se_mc", "se_data"]
    assert np.average(
        result.per_cluster["naive"], weights=result.per_cluster["records"]
    ) == pytest.approx(result.naive, rel=0.02)
    assert result.histogram["naive"].sum() == pytest.approx(1) and result.histogram[
        "estimate"
    ].sum() == pytest.approx(1)
    sensitivity = result.sensitivity()
    assert sensitivity["estimate"].is_monotonic_increasing  # more leakage, more to correct
    given = result.sensitivity([result.table()["value"]["p_train"]])["estimate"][0]
    assert given == pytest.approx(result.solved.estimate)
    assert result.iid < result.naive and result.se_mc > 0 and result.se_data > 0
    assert set(result.extrapolants) == {"trend filter", "linear", "quadratic"}
    for word in ("naive", "Monte Carlo", "slope test", "verdict", "extrapolants", "at least"):
        assert word in str(result)
    assert "LeakageResult(estimate=" in repr(result)
    axes = result.plot()
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any(text.startswith("naive") for text in shown)
    assert {f"± {result.se_mc:.2g}, Monte Carlo", f"± {result.se_data:.2g}, data"} <= set(shown)
    assert result.largest_p(result.solved.estimate) > 0 and np.isnan(result.largest_p(1e9))


def test_entities_cut_in_two():
    naive, estimate = [], []
    for seed in range(8):
        X, y, label = clusters(seed, 30)
        filed = label.copy()
        for k in range(8):
            filed[np.flatnonzero(label == k)[:6]] = 100 + k
        arguments = {"loss": "mse", "injection": SMALL, "rng": seed}
        model = SplitLeakage(8 / 30)
        result = leakage_corrected(
            KNeighborsRegressor(3), X, y, groups=filed, leakage=model, **arguments
        )
        right = leakage_corrected(
            KNeighborsRegressor(3), X, y, groups=label, leakage=SplitLeakage(0.0), **arguments
        )
        naive.append(result.naive - right.naive)
        estimate.append(result.solved.estimate - right.naive)
    assert np.mean(naive) < -0.2 and abs(np.mean(estimate)) < 0.4 * abs(np.mean(naive))
    assert result.plan[
        0
    ].mechanism == "split" and "has the other half of its cluster in T̂ (split)" in str(result)
    part = result.plan[0]
    inside = len(np.unique(filed[part.fold.test]))
    assert result.shares.exposed[0] == pytest.approx(8 / 30 * (38 - inside) / 37)


def test_zero_one_losses_stay_within_their_bound():
    X, y, label = clusters(2)
    result = leakage_corrected(
        KNeighborsClassifier(1), X, y > np.median(y), groups=label, leakage=RecordLeakage(0.3, 0.2), loss="zero_one",
        injection=SMALL,
    )  # fmt: skip
    assert np.all((result.solved.values <= 1 + 1e-9) & (result.solved.values >= 0))
    assert "p at most" not in str(result) or result.largest_p(1.0) < 1


@QUIET
def test_a_drop_that_cannot_be_seen_is_refused():
    """Experiment I: x within ±1 and ±10. One leaked record tells the slope, and a tenth of a
    hundred has ten.
    """
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1, 1, 900), rng.uniform(-10, 10, 1100)])
    y = x * np.repeat([1.0, 2.0], [900, 1100]) + rng.normal(0, 0.5, 2000)
    side = np.repeat([0, 1], 1000)
    arguments = {
        "groups": side,
        "leakage": RecordLeakage(0.1),
        "loss": "mse",
        "cv": [(np.arange(1000), np.arange(1000, 2000))],
    }
    model = LinearRegression(fit_intercept=False)
    result = leakage_corrected(
        model, x[:, None], y, injection=Injection(train_size=100, num_boot=100), **arguments
    )
    assert np.isnan(result.estimate) and result.verdict.startswith("cannot be corrected: P(no leak")
    assert "extrapolants part" in result.verdict and "none: see verdict" in str(result)
    assert any("cannot be corrected" in flag for flag in result.flags)
    assert result.per_cluster["estimate"].isna().all()
    small = leakage_corrected(
        model, x[:, None], y, injection=Injection(train_size=10, num_boot=400), **arguments
    )
    # of ten records a third of the sets are clean
    assert not small.refusal and small.estimate > 3 * result.naive


def test_the_slope_test():
    X, y, label = clusters(0, 50)
    test = leakage_slope_test(
        KNeighborsRegressor(3), X, y - X @ [1.0, -1.0], groups=label, loss="mse"
    )
    assert (
        test.exploits is True and test.fall > 0 and test.low > 0 and "exploits leakage" in str(test)
    )
    rng = np.random.default_rng(0)
    nothing = leakage_slope_test(
        Ridge(),
        rng.normal(size=(200, 2)),
        rng.normal(size=200),
        groups=np.arange(200) // 10,
        loss="mse",
    )
    assert nothing.exploits is None and "no sign that nothing leaks" in nothing.verdict
    assert "dependence allowed for" in nothing.kind


def test_a_learner_that_does_not_exploit_the_leak_is_told():
    """Each cluster is a pair of opposite records, so that the neighbour from the same cluster
    misleads.
    """
    label = np.repeat(np.arange(100), 2)
    X = np.random.default_rng(0).normal(size=(100, 2))[label]
    X += 1e-3 * np.random.default_rng(1).normal(size=X.shape)
    y = np.tile([1.0, -1.0], 100)
    injection = Injection(num_boot=30, num_levels=6)
    arguments = {
        "groups": label,
        "leakage": RecordLeakage(0.01),
        "loss": "mse",
        "injection": injection,
    }
    result = leakage_corrected(KNeighborsRegressor(1), X, y, **arguments)
    assert result.slope_test.exploits is False and "does not exploit the leak" in result.verdict
    assert any("does not exploit" in flag for flag in result.flags)


def test_a_glm_of_ours():
    X, y, label = clusters()
    arguments = {
        "groups": label,
        "leakage": RecordLeakage(0.02, 0.05),
        "loss": "mse",
        "injection": Injection(num_boot=2, num_levels=4),
    }
    host = Ridge(1.0).fit(X, y)
    ours = leakage_corrected(lo.from_sklearn(host, X, y), X, y, **arguments)
    theirs = leakage_corrected(Ridge(1.0), X, y, **arguments)
    np.testing.assert_allclose(ours.pooled.b, theirs.pooled.b, rtol=1e-6)
    assert "refitted by Exact" in str(ours)


def test_the_largest_share_that_could_leak():
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(10), 60)
    far = rng.normal(size=(600, 3)) + 3 * (label >= 8)[:, None]
    cv = [(np.flatnonzero(label < 8), np.flatnonzero(label >= 8))]
    leaked = far.copy()
    leaked[:48] = rng.normal(size=(48, 3)) + 3  # a tenth of T̂
    clean, tenth = (
        largest_leakage_share(X, groups=label, cv=cv)["p_train"][0] for X in (far, leaked)
    )
    assert clean < 0.06 and 0.09 < tenth < 0.2
    alike = largest_leakage_share(rng.normal(size=(600, 3)), groups=label, cv=cv)
    assert alike["p_train"][0] > 0.5 and abs(alike["auc"][0] - 0.5) < 0.15


def test_the_documents_bootstrap():
    X, y, _side, cv = two_sides(3, p_train=0.0)
    found = binomial_block_bootstrap(
        LinearRegression(), X, y, *cv[0], p_train=0.0, size=12, levels=25, num_boot=300, loss="mse"
    )
    e = 1 + 1 / 12 + (APART * (1 - np.arange(13) / 12)) ** 2
    np.testing.assert_allclose(
        found.losses, found.A @ e, atol=5 * np.sqrt(found.variance.max() / 300) + 0.2
    )
    assert found.solve(order=3, lam=1e-3).estimate == pytest.approx(e[0], rel=0.1)
    assert found.solve(order=3, lam=0.1, squared=False).estimate > found.losses[0] * 0.9
    tested = binomial_block_bootstrap(
        LinearRegression(),
        X,
        y,
        *cv[0],
        p_test=0.2,
        direction="test",
        size=12,
        levels=9,
        num_boot=100,
        loss="mse",
    )
    line = tested.solve()
    np.testing.assert_allclose(np.diff(line.values, 2), 0, atol=1e-9)
    both = binomial_block_bootstrap(
        LinearRegression(),
        X,
        y,
        *cv[0],
        direction="both",
        size=8,
        levels=9,
        num_boot=200,
        loss="mse",
    )
    assert both.losses.shape == (9, 9) and both.A[0].shape == both.A[1].shape == (9, 9)
    assert both.solve(order=2, lam=1e-4).estimate == pytest.approx(1 + 1 / 8 + APART**2, rel=0.1)
    with pytest.raises(ValueError, match="must be 'train', 'test' or 'both'"):
        binomial_block_bootstrap(Ridge(), X, y, *cv[0], direction="up")
    with pytest.raises(ValueError, match="none in common"):
        binomial_block_bootstrap(Ridge(), X, y, cv[0][0], cv[0][0])


def auc(y, p):
    return 1 - roc_auc_score(y, p)


class Unclonable:
    def __init__(self, *words):
        self.words = words

    def fit(self, X, y):
        return self

    def get_params(self, deep=True):
        return {"other": 1}


X0, Y0, LABEL = clusters()
GOOD = {"groups": LABEL, "leakage": RecordLeakage(0.02), "loss": "mse", "injection": SMALL}


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"leakage": None}, ValueError, "cannot be learned from the losses.*Linkage.from_pairs"),
        (
            {"leakage": 0.1},
            TypeError,
            "must be a Linkage, RecordLeakage or SplitLeakage; got float",
        ),
        (
            {"groups": LABEL[:-1]},
            ValueError,
            r"groups must have one label a record, shape \(192,\)",
        ),
        ({"groups": np.where(LABEL == 3, np.nan, LABEL)}, ValueError, "groups contain NaN"),
        ({"groups": np.zeros(192)}, ValueError, "at least two clusters"),
        ({"cv": 17}, ValueError, "cv must be from 2 to the 16 clusters"),
        (
            {"cv": [(np.arange(96), np.arange(90, 192))]},
            ValueError,
            "on both sides; leave whole clusters out",
        ),
        ({"leakage": RecordLeakage([0.1, 0.2])}, ValueError, "one for each of 5 folds; got 2"),
        (
            {"injection": Injection(top=60)},
            ValueError,
            "V̂ is too small for the top level: fold 0 tests on",
        ),
        (
            {"injection": Injection(train_size=190)},
            ValueError,
            "train_size = 190 needs at least 191",
        ),
        (
            {"injection": Injection(mechanism="split")},
            ValueError,
            "injects halves of clusters, but RecordLeakage",
        ),
        (
            {"estimator_or_fit": Ridge},
            TypeError,
            "Ridge cannot be cloned; give an estimator object",
        ),
        ({"estimator_or_fit": Unclonable()}, TypeError, "Unclonable cannot be cloned"),
        (
            {"estimator_or_fit": LogisticRegression()},
            TypeError,
            "is for regression; LogisticRegression is a classifier",
        ),
        ({"loss": "zero_one"}, TypeError, "needs a classifier; got Ridge"),
        ({"loss": "cubic"}, ValueError, "no loss is called 'cubic'"),
        ({"loss": 3}, TypeError, "must be a name or a function"),
        ({"loss": lambda y, p: np.ones((2, 2))}, ValueError, "one number a record"),
        ({"loss": lambda y, p: np.where(p > 0, np.nan, 1.0)}, ValueError, "is not finite for"),
        ({"response": "scores"}, ValueError, "response must be"),
        ({"y": np.where(LABEL == 0, np.nan, Y0)}, ValueError, "y holds NaN"),
        ({"y": Y0[:-1]}, ValueError, "X has 192 records, y has 191"),
        ({"y": Y0.astype(str)}, ValueError, "needs numbers"),
        ({"X": np.where(X0 > 3, np.inf, X0)}, ValueError, "X holds infinite"),
        ({"bins": [0, 1]}, ValueError, "three or more rising edges"),
        ({"checkpoint": "/nowhere/at/all.npz"}, ValueError, "no folder /nowhere/at"),
    ],
)
@QUIET
def test_bad_input(changed, error, message):
    arguments = {"estimator_or_fit": Ridge(), "X": X0, "y": Y0, **GOOD, **changed}
    with pytest.raises(error, match=message):
        leakage_corrected(
            arguments.pop("estimator_or_fit"), arguments.pop("X"), arguments.pop("y"), **arguments
        )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: RecordLeakage(1.0), r"p_train must lie in \[0, 1\); got 1"),
        (lambda: RecordLeakage(0.1, -0.1), r"p_test must lie in \[0, 1\); got -0.1"),
        (lambda: RecordLeakage(np.nan), "p_train must lie"),
        (
            lambda: RecordLeakage([0.1, 0.6, 0.7], [0.1, 0.5, 0.1]),
            "below 1 in folds 1; got 0.6 . 0.5",
        ),
        (lambda: SplitLeakage(1.0), r"rate must lie in \[0, 1\)"),
        (lambda: RecordLeakage.from_pairwise(1.1, 0.9), r"precision must lie in \(0, 1\]"),
        (lambda: SplitLeakage.from_pairwise(1.0, 0.0), r"recall must lie in \(0, 1\]"),
        (lambda: SplitLeakage.from_pairwise(1.0, 0.5), r"rate must lie in \[0, 1\); got 1"),
        (lambda: RecordLeakage.from_match_probabilities([(0, 0, 0.5)]), "names one record twice"),
        (lambda: RecordLeakage.from_match_probabilities([(0, 1, 1.5)]), r"must lie in \[0, 1\]"),
        (lambda: RecordLeakage.from_match_probabilities([(0, 1)]), "two names and a probability"),
        (lambda: largest_leakage_share(X0, groups=LABEL, cv=8), "40 records or more"),
    ],
)
def test_bad_leakage(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_metric_of_the_whole_test_set_only_without_leakage_into_it():
    y = (np.median(Y0) < Y0) * 1
    arguments = {
        "groups": LABEL,
        "loss": auc,
        "response": "predict_proba",
        "injection": SMALL,
        "cv": 2,
    }
    result = leakage_corrected(
        LogisticRegression(), X0, y, leakage=RecordLeakage(0.02), **arguments
    )
    assert 0 <= result.naive <= 1 and np.isnan(result.se_data)
    with pytest.raises(ValueError, match="per_cluster: auc is not a mean over records"):
        result.per_cluster
    with pytest.raises(ValueError, match="auc: T̂'s records in V̂"):
        leakage_corrected(
            LogisticRegression(), X0, y, leakage=RecordLeakage(0.02, 0.1), **arguments
        )
    with pytest.raises(ValueError, match="takes no sample_weight, which mechanism='split' needs"):
        leakage_corrected(LogisticRegression(), X0, y, leakage=SplitLeakage(0.1), **arguments)


def test_warnings():
    with pytest.warns(
        UserWarning, match="precision 0.99 is far above recall 0.7: entities are cut in two"
    ):
        model = RecordLeakage.from_pairwise(0.99, 0.7)
    with pytest.warns(UserWarning, match="large entities cut in two.*SplitLeakage.from_pairwise"):
        leakage_corrected(DummyRegressor(), X0, Y0, **{**GOOD, "leakage": model})
    with pytest.warns(UserWarning, match="far below recall.*merged, which leak nothing"):
        RecordLeakage.from_pairwise(0.5, 0.9)
    with pytest.warns(UserWarning, match="not only splits are at work"):
        SplitLeakage.from_pairwise(0.7, 0.9)
    cv = [(np.flatnonzero(LABEL > 2), np.flatnonzero(LABEL <= 2))]
    with pytest.warns(UserWarning, match="it tests on 3 clusters, fewer than 8") as caught:
        leakage_corrected(Ridge(), X0, Y0, **{**GOOD, "cv": cv})
    assert all(str(warning.filename).endswith("test_estimate.py") for warning in caught)
    small = leakage_corrected(
        Ridge(), X0, Y0, **{**GOOD, "injection": Injection(num_boot=5, num_levels=5, train_size=40)}
    )
    assert any("this is the loss of a learner of that size" in flag for flag in small.flags)


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "records.csv"
    frame = pd.DataFrame(X0, columns=["a", "b"]).assign(
        kind=np.where(X0[:, 0] > 0, "u", "v"), y=Y0, who=LABEL
    )
    frame.assign(high=np.where(Y0 > 0, "yes", "no"), gap=np.where(Y0 > 2, np.nan, 1)).to_csv(
        file, index=False
    )
    frame.to_csv(tmp_path / "numbers.csv", index=False)
    frame.assign(y=np.where(Y0 > 0, "yes", "no")).to_csv(tmp_path / "classes.csv", index=False)
    return tmp_path


def run(*words):
    return CliRunner().invoke(app, ["leakage", *map(str, words)])


OPTIONS = ["--target", "y", "--cluster", "who", "--precision", 0.95, "--recall", 0.93]


def test_the_command_line(table):
    few = ["--draws", 5, "--levels", 5]
    picture, out = table / "p.png", table / "out.csv"
    result = run(
        table / "numbers.csv", *OPTIONS, *few, "--model", "knn", "--plot", picture, "--out", out
    )
    assert result.exit_code == 0, result.output
    for part in ("naive", "verdict", "slope test", "were p instead", "5 nearest neighbours"):
        assert part in result.output
    assert picture.stat().st_size > 1000 and len(pd.read_csv(out)) == 16
    result = run(
        table / "classes.csv", *OPTIONS, *few, "--model", "logistic", "--mechanism", "split"
    )
    assert (
        result.exit_code == 0
        and "logistic regression, batched" in result.output
        and "(split)" in result.output
    )


@pytest.mark.parametrize(
    "file, words, message",
    [
        ("none.csv", OPTIONS, "there is no such file"),
        ("records.csv", OPTIONS, "missing values in gap ("),
        (
            "numbers.csv",
            [*OPTIONS[:2], "--cluster", "whom", *OPTIONS[4:]],
            "no column 'whom'; it has a, b",
        ),
        ("numbers.csv", [*OPTIONS, "--model", "svm"], "--model svm: it must be one of ridge"),
        ("numbers.csv", [*OPTIONS, "--model", "logistic"], "too many for classes"),
        ("classes.csv", [*OPTIONS, "--model", "ridge"], "predicts numbers"),
        ("numbers.csv", [*OPTIONS, "--mechanism", "both"], "it must be one of record, split"),
        ("numbers.csv", [*OPTIONS, "--folds", 40], "cv must be from 2"),
        ("numbers.csv", [*OPTIONS, "--plot", "/nowhere/at/all.png"], "no folder /nowhere/at"),
        ("numbers.csv", [*OPTIONS[:-1], 1.2], r"recall must lie in"),
    ],
)
def test_wrong_words_are_one_line(table, file, words, message):
    result = run(table / file, *words)
    assert (
        result.exit_code == 2
        and message in result.stderr
        and len(result.stderr.strip().splitlines()) == 1
    )


def test_the_block_bootstrap_prints_the_loss_with_no_leak():
    levels = np.linspace(0, 1, 6)
    A = lo.leakage.binomial_matrix(0.1 + 0.9 * levels, 4)
    losses = A @ np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    run = lo.leakage.BlockBootstrap(levels, losses, np.full(6, 0.5), A, 20)
    D = np.diff(np.eye(5), 2, axis=0)
    weights = np.linalg.solve(A.T @ A + 0.1 * D.T @ D, A.T)[0]
    text = str(run)
    assert (
        f"5 ± {np.sqrt(np.sum(weights**2 * 0.5) / 20):.2g} (Monte Carlo)" in text
        and len(text.splitlines()) == 4
    )
    assert "0 of 4: 5, 1 of 4: 4, 2 of 4: 3, 3 of 4: 2, 4 of 4: 1" in text
