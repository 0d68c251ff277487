"""Certificates, and the program that checks them.

True claims are accepted, and whatever is false is rejected.
"""

import copy
import json
import time

import numpy as np
import pandas as pd
import pytest
from leaveout_verify import Rejected, parse, read, seal, verify
from leaveout_verify.__main__ import main

import leaveout as lo
from leaveout.validation.certificate_file import certify
from tests.problems.proofs import LOSSES, check_proofs


def written(n=40, p=3, loss="logistic", alpha=0.5, plan=None, strategy=None, **beside):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, p))
    kind, response = LOSSES[loss]
    frame = pd.DataFrame(X, columns=["dose", "age", "level"][:p])
    penalty = lo.penalties.Ridge(alpha) if alpha else None
    fit = lo.fit(lo.GLM(frame, response(rng, X.sum(1)), kind, penalty, **beside))
    cv = lo.cross_validate(
        fit, lo.leave_one_out(n) if plan is None else plan, strategy=strategy or lo.Certified()
    )
    return frame.assign(y=fit.objective.y), cv


def claims(cv):
    says, table = certify(cv.fit, cv.plan, cv.losses, cv.error, cv.proved)
    return json.loads(json.dumps(says)), {name: table[name].to_numpy() for name in table}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("strategy", [lo.Certified(), lo.Exact()], ids=["certified", "exact"])
def test_what_is_proved_is_true(loss, strategy):
    rng = np.random.default_rng(0)
    beside = {"sample_weight": rng.uniform(0.5, 2, 40), "offset": 0.1 * rng.normal(size=40)}
    for plan in (lo.leave_one_out(40), lo.kfold(40, 5, rng=0), lo.bootstrap(40, 5, rng=1)):
        _, cv = written(loss=loss, plan=plan, strategy=strategy, **beside)
        verdicts = verify(parse(*claims(cv)))
        assert cv.proved.all() and len(verdicts) == plan.num_refits
        assert {verdict.status for verdict in verdicts} == {"accepted"}


def test_weights_of_classes_and_penalties_that_average():
    """Weights that depend on what is left out, everywhere, and κ."""
    for beside in ({"class_weight": "balanced"}, {"alpha": 0.0}):
        _, cv = written(**beside)
        assert {verdict.status for verdict in verify(parse(*claims(cv)))} == {"accepted"}
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), (rng.random(40) < 0.5) * 1.0
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.per_weight(lo.penalties.Ridge(0.1))))
    cv = lo.cross_validate(fit, lo.leave_one_out())
    assert {verdict.status for verdict in verify(parse(*claims(cv)))} == {"accepted"}


def corrupt(rng, says, table):
    """Change one thing: a loss, an error, a weight, a row, a sign, a fold's rows, the penalty or
    the loss's name.
    """
    says, table = copy.deepcopy(says), {name: column.copy() for name, column in table.items()}
    fold = says["folds"][int(rng.integers(len(says["folds"])))]
    k = int(rng.integers(len(fold["losses"])))
    kind = ("loss", "error", "weight", "row", "sign", "rows", "penalty", "response", "name")[
        int(rng.integers(9))
    ]
    if kind == "loss":
        fold["losses"][k] += 2.5 * fold["error"] * rng.choice([-1, 1])
    elif kind == "error":
        fold["error"] = -fold["error"]
    elif kind == "weight":
        fold["weights"][k] += 0.5
    elif kind == "row":
        table["dose"][int(rng.integers(len(table["dose"])))] += 1e-9
    elif kind == "sign":
        fold["losses"][k] = -fold["losses"][k]
    elif kind == "rows":
        fold["rows"] = [(row + 1) % says["data"]["rows"] for row in fold["rows"]]
    elif kind == "penalty":
        says["penalty"] = [1.01 * value for value in says["penalty"]]
    elif kind == "response":
        table["y"][0] = 1 - table["y"][0]
    else:
        says["loss"] = {"name": "squared"}
    return kind, says | {"sha256": seal(says)}, table


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_corruptions_are_rejected(count):
    rng = np.random.default_rng(count)
    says, table = claims(written(plan=lo.kfold(40, 8, rng=0))[1])
    for _ in range(count):
        kind, other, data = corrupt(rng, says, table)
        try:
            verdicts = verify(parse(other, data))
        except Rejected as error:  # data of another hash, and what no certificate says
            words = {
                "row": "SHA-256",
                "response": "SHA-256",
                "error": "0 or more",
                "rows": "changes",
                "sign": "",
                "name": "",
            }
            assert words[kind] in str(error)
            continue
        assert any(verdict.status == "rejected" for verdict in verdicts), kind


def test_a_refit_that_rows_determine_in_part_is_not_proved():
    """A level that one fold has alone.

    Its row has no loss, and the others of that fold come from Newton's steps.
    """
    rng = np.random.default_rng(0)
    X, plan = (
        np.c_[np.arange(60) == 5, rng.normal(size=(60, 4))] * 1.0,
        lo.groups(np.arange(60) % 6),
    )
    cv = lo.cross_validate(
        lo.fit(lo.GLM(X, rng.normal(size=60), "squared")), plan, strategy=lo.Exact()
    )
    assert cv.proved.tolist() == [True] * 5 + [False] and np.isnan(cv.per_unit()[5])
    verdicts = verify(parse(*claims(cv)))
    assert [verdict.status for verdict in verdicts] == ["accepted"] * 5


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz"])
def test_the_command_reads_files(tmp_path, capsys, kind):
    frame, cv = written()
    assert cv.certificate(tmp_path / "a.json", data=tmp_path / f"a.{kind}") == tmp_path / "a.json"
    assert main([str(tmp_path / "a.json"), str(tmp_path / f"a.{kind}")]) == 0
    printed = capsys.readouterr().out
    assert (
        printed.startswith("40 accepted, 0 rejected, 0 undecided; ")
        and "40 of the 40 folds of the plan" in printed
    )
    frame.rename(columns={"y": "died"}).to_parquet(tmp_path / "own.parquet")  # a table of one's own
    assert main([str(tmp_path / "a.json"), str(tmp_path / "own.parquet")]) == 0
    frame.assign(dose=0.0).to_parquet(tmp_path / "other.parquet")
    assert main([str(tmp_path / "a.json"), str(tmp_path / "other.parquet")]) == 1
    assert "SHA-256" in capsys.readouterr().err
    assert main([]) == 2


PENALTIES = {
    "nonnegative": lo.penalties.Box(),
    "box": lo.penalties.Box(-0.1, 0.1),
    "box and ridge": lo.penalties.Ridge(1.0) + lo.penalties.Box(-0.2, 0.3),
    "lasso": lo.penalties.Lasso(2.0),
    "elastic net": lo.penalties.ElasticNet(3.0, 0.5),
    "all at zero": lo.penalties.Lasso(50.0),
    "per weight": lo.penalties.per_weight(lo.penalties.Lasso(0.05)),
}


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_kinks_and_bounds_are_part_of_the_problem(penalty, loss):
    rng = np.random.default_rng(20)
    X = rng.normal(size=(40, 3))
    y = X @ [1.0, -0.5, 0.1] + rng.normal(size=40)
    fit = lo.fit(lo.GLM(X, (y > 0) * 1.0 if loss == "logistic" else y, loss, penalty))
    cv = lo.cross_validate(fit, lo.kfold(k=4))
    says, table = claims(cv)
    assert len(says["data"]["features"]) == 3 and len(says["folds"]) == cv.proved.sum() > 0
    assert {verdict.status for verdict in verify(parse(says, table))} == {"accepted"}
    free = says | {"l1": None, "bounds": None}  # the regression that the bounds and kinks change
    free |= {"sha256": seal(free)}
    assert any(verdict.status == "rejected" for verdict in verify(parse(free, table)))


def test_what_describes_the_free_coefficients_alone_is_refused():
    rng = np.random.default_rng(0)
    fit = lo.fit(
        lo.GLM(rng.normal(size=(30, 3)), rng.normal(size=30), "squared", lo.penalties.Box())
    )
    with pytest.raises(TypeError, match=r"^leverage: it is not there for an l1 penalty or bounds"):
        lo.diagnostics.leverage(fit)
    with pytest.raises(
        TypeError, match=r"^auto_groups: it is not there for an l1 penalty or bounds"
    ):
        lo.diagnostics.auto_groups(fit, 3)


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz"])
def test_labels_and_odd_names_are_written_as_they_are_read(tmp_path, kind):
    rng = np.random.default_rng(0)
    names = ["a,b", 'say "c"', "two\nlines", "y", "(y)", "file", "weight"]
    frame = pd.DataFrame(rng.normal(size=(40, 7)), columns=names)
    for labels in (("ill", "well, or so"), ("2", "1.5"), (True, False)):
        outcome = np.where(rng.random(40) < 0.5, *labels)
        fit = lo.fit(
            lo.GLM(
                frame,
                outcome,
                "logistic",
                lo.penalties.Ridge(1.0),
                sample_weight=rng.uniform(1, 2, 40),
            )
        )
        cv = lo.cross_validate(fit, lo.kfold(k=4))
        cv.certificate(tmp_path / "a.json", data=tmp_path / f"a.{kind}")
        assert {
            verdict.status for verdict in verify(read(tmp_path / "a.json", tmp_path / f"a.{kind}"))
        } == {"accepted"}


def paths(value, path=()):
    """Every place in a tree of JSON."""
    yield path
    below = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in below:
        yield from paths(each, (*path, key))


def altered(says, path, change):
    """Put something else at a place; `None` as change deletes it."""
    says = copy.deepcopy(says)
    if not path:
        return change
    at = says
    for key in path[:-1]:
        at = at[key]
    if change is None:
        del at[path[-1]]
    else:
        at[path[-1]] = change(at[path[-1]]) if callable(change) else change
    return says


CHANGES = [
    None, float("nan"), float("inf"), -1.0, 1e300, 10**400, "text", [], {}, True, [[1.0]], -(10**9), 0,
    lambda value: [value, value], lambda value: value + 0.25 if isinstance(value, float) else [value],
]  # fmt: skip


@pytest.mark.parametrize("sealed", [False, True])
def test_nothing_that_is_altered_is_accepted_or_ends_raw(sealed):
    """Every entry of a certificate is deleted, or is another number, text or kind of thing.

    `sealed` by who knows the hash.
    """
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(12, 2)), columns=["a", "b"])
    y = np.where(X["a"] + rng.normal(size=12) > 0, "ill", "well")
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    says, table = claims(lo.cross_validate(fit, lo.kfold(k=3)))
    assert {verdict.status for verdict in verify(parse(says, table))} == {"accepted"}
    places = [
        path for path in paths(says) if not ("folds" in path[:1] and path[1:2] not in ((), (0,)))
    ]
    for path in places:
        for change in CHANGES:
            other = altered(says, path, change)
            if sealed and isinstance(other, dict):
                other["sha256"] = seal(other)
                if path == ("sha256",):
                    continue
            try:
                verdicts = verify(parse(other, table))
            except Rejected as error:
                assert str(error)
                continue
            if {verdict.status for verdict in verdicts} != {"accepted"}:
                continue
            # the same claim, a weaker one, or a hint at the minimiser
            weaker = path[-1] == "error" and other["folds"][0]["error"] >= says["folds"][0]["error"]
            # or what no fold rests on: the name of the only column that is left, κ of the fit to
            # all rows
            harmless = path[0] in ("theta", "version", "plan", "times") or path == (
                "data",
                "response",
            )
            same = other | {"sha256": ""} == says | {"sha256": ""}
            assert same or (sealed and (harmless or weaker)), (path, change)


def test_chosen_folds_are_counted(tmp_path, capsys):
    _, cv = written(plan=lo.kfold(40, 8, rng=0))
    cv.certificate(tmp_path / "a.json", data=tmp_path / "a.csv")
    says = json.loads((tmp_path / "a.json").read_text())
    for folds, stated, code in (
        (says["folds"][:3], 8, 1),
        (says["folds"][:3], 3, 2),
        ([], 0, 1),
        ([says["folds"][0]] * 2, 2, 1),
    ):
        other = says | {"folds": folds, "plan": {"folds": 8, "proved": stated}}
        (tmp_path / "b.json").write_text(json.dumps(other | {"sha256": seal(other)}))
        assert main([str(tmp_path / "b.json"), str(tmp_path / "a.csv")]) == code
    printed = capsys.readouterr()
    assert (
        "claims on 3 of the 8 folds of the plan" in printed.out
        and "states 8 folds of 8, and has 3" in printed.err
    )
    (tmp_path / "b.json").write_text("[" * 10_000)
    assert main([str(tmp_path / "b.json"), str(tmp_path / "a.csv")]) == 1
    (tmp_path / "a.parquet").write_bytes(b"no table")
    (tmp_path / "a.npz").write_bytes(b"no table")
    for data in ("a.parquet", "a.npz"):
        assert main([str(tmp_path / "a.json"), str(tmp_path / data)]) == 1


def test_a_certificate_of_many_folds_is_rejected_within_a_second():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 2))
    fit = lo.fit(lo.GLM(X, X[:, 0] + rng.normal(size=20_000), "squared"))
    says, table = claims(lo.cross_validate(fit, lo.leave_one_out(), audit=0))
    says["folds"][-1]["held"] = [0]  # which it does not leave out
    says["sha256"] = seal(says)
    began = time.process_time()
    with pytest.raises(Rejected, match="a fold must hold out rows whose weights it changes"):
        parse(says, table)
    assert time.process_time() - began < 0.8


def test_labels_and_centred_columns_are_those_of_the_data(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"dose": rng.normal(size=40), "well": np.where(rng.random(40) < 0.5, "no", "yes")}
    )
    fit = lo.fit(lo.GLM("well ~ dose", frame, "logistic"))
    lo.cross_validate(fit, lo.leave_one_out()).certificate(tmp_path / "a.json")
    frame.to_parquet(tmp_path / "a.parquet")
    assert main([str(tmp_path / "a.json"), str(tmp_path / "a.parquet")]) == 0
    from sklearn.linear_model import LinearRegression

    X, y = pd.DataFrame(rng.normal(size=(30, 2)) + 1e6, columns=["a", "b"]), rng.normal(size=30)
    fit = lo.from_sklearn(LinearRegression().fit(X, y), X, y)
    lo.cross_validate(fit, lo.leave_one_out()).certificate(tmp_path / "b.json")
    X.assign(y=y).to_parquet(tmp_path / "b.parquet")
    assert main([str(tmp_path / "b.json"), str(tmp_path / "b.parquet")]) == 0


def test_what_cannot_be_certified_says_so(tmp_path):
    fit = written()[1].fit
    cv = lo.cross_validate(fit, lo.leave_one_out(), evaluate="squared_error")
    with pytest.raises(ValueError, match="no error is proved"):
        cv.certificate(tmp_path / "a.json")
    rng = np.random.default_rng(0)
    fit = lo.fit(
        lo.GLM(
            rng.normal(size=(30, 2)), rng.integers(0, 3, 30), "multinomial", lo.penalties.Ridge(1.0)
        )
    )
    with pytest.raises(ValueError, match="the verifier knows"):
        lo.cross_validate(fit, lo.leave_one_out(30)).certificate(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"must end with \.parquet"):
        written()[1].certificate(tmp_path / "a.json", data=tmp_path / "a.txt")


@pytest.mark.parametrize("count", [600, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_proof_of_a_fresh_problem_is_false(count):
    total, _, rejected = check_proofs(count, seed=count)
    assert not rejected and total["undecided"] <= 0.02 * count
