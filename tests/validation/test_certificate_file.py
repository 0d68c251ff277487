"""Certificates, and the program that checks them: true claims are accepted, and whatever is false is rejected."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
from leaveout_verify import parse, verify
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
    cv = lo.cross_validate(fit, lo.leave_one_out(n) if plan is None else plan, strategy or lo.Certified())
    return frame.assign(y=fit.objective.y), cv


def claims(cv):
    says, table = certify(cv.fit, cv.plan, cv.losses, cv.error, cv.proved)
    return json.loads(json.dumps(says)), {name: table[name].to_numpy() for name in table}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("strategy", [lo.Certified(), lo.Exact()], ids=["certified", "exact"])
def test_what_is_proved_is_true(loss, strategy):
    rng = np.random.default_rng(0)
    beside = {"sample_weight": rng.uniform(0.5, 2, 40), "offset": 0.1 * rng.normal(size=40)}
    for plan in (lo.leave_one_out(40), lo.kfold(40, 5, seed=0), lo.bootstrap(40, 5, seed=1)):
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
    cv = lo.cross_validate(fit, lo.leave_one_out(40))
    assert {verdict.status for verdict in verify(parse(*claims(cv)))} == {"accepted"}


def corrupt(rng, says, table):
    """Change one thing: a loss, an error, a weight, a row, a sign, a fold's rows, the penalty or the loss's name."""
    says, table = copy.deepcopy(says), {name: column.copy() for name, column in table.items()}
    fold = says["folds"][int(rng.integers(len(says["folds"])))]
    k = int(rng.integers(len(fold["losses"])))
    kind = ("loss", "error", "weight", "row", "sign", "rows", "penalty", "response", "name")[int(rng.integers(9))]
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
    return kind, says, table


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_corruptions_are_rejected(count):
    rng = np.random.default_rng(count)
    says, table = claims(written(plan=lo.kfold(40, 8, seed=0))[1])
    for _ in range(count):
        kind, other, data = corrupt(rng, says, table)
        try:
            verdicts = verify(parse(other, data))
        except ValueError as error:  # data of another hash
            assert kind in ("row", "response") and "SHA-256" in str(error)
            continue
        assert any(verdict.status == "rejected" for verdict in verdicts), kind


def test_a_refit_that_rows_determine_in_part_is_not_proved():
    """A level that one fold has alone: its row has no loss, and the others of that fold come from Newton's steps."""
    rng = np.random.default_rng(0)
    X, plan = np.c_[np.arange(60) == 5, rng.normal(size=(60, 4))] * 1.0, lo.groups(np.arange(60) % 6)
    cv = lo.cross_validate(lo.fit(lo.GLM(X, rng.normal(size=60), "squared")), plan, lo.Exact())
    assert cv.proved.tolist() == [True] * 5 + [False] and np.isnan(cv.per_unit()[5])
    verdicts = verify(parse(*claims(cv)))
    assert [verdict.status for verdict in verdicts] == ["accepted"] * 5


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz"])
def test_the_command_reads_files(tmp_path, capsys, kind):
    frame, cv = written()
    assert cv.certificate(tmp_path / "a.json", data=tmp_path / f"a.{kind}") == tmp_path / "a.json"
    assert main([str(tmp_path / "a.json"), str(tmp_path / f"a.{kind}")]) == 0
    assert capsys.readouterr().out.startswith("40 accepted, 0 rejected, 0 undecided; ")
    frame.rename(columns={"y": "died"}).to_parquet(tmp_path / "own.parquet")  # a table of one's own
    assert main([str(tmp_path / "a.json"), str(tmp_path / "own.parquet")]) == 0
    frame.assign(dose=0.0).to_parquet(tmp_path / "other.parquet")
    assert main([str(tmp_path / "a.json"), str(tmp_path / "other.parquet")]) == 1
    assert "SHA-256" in capsys.readouterr().err
    assert main([]) == 2


def test_labels_and_centred_columns_are_those_of_the_data(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"dose": rng.normal(size=40), "well": np.where(rng.random(40) < 0.5, "no", "yes")})
    fit = lo.fit(lo.GLM("well ~ dose", frame, "logistic"))
    lo.cross_validate(fit, lo.leave_one_out(40)).certificate(tmp_path / "a.json")
    frame.to_parquet(tmp_path / "a.parquet")
    assert main([str(tmp_path / "a.json"), str(tmp_path / "a.parquet")]) == 0
    from sklearn.linear_model import LinearRegression

    X, y = pd.DataFrame(rng.normal(size=(30, 2)) + 1e6, columns=["a", "b"]), rng.normal(size=30)
    fit = lo.from_sklearn(LinearRegression().fit(X, y), X, y)
    lo.cross_validate(fit, lo.leave_one_out(30)).certificate(tmp_path / "b.json")
    X.assign(y=y).to_parquet(tmp_path / "b.parquet")
    assert main([str(tmp_path / "b.json"), str(tmp_path / "b.parquet")]) == 0


def test_what_cannot_be_certified_says_so(tmp_path):
    fit = written()[1].fit
    cv = lo.cross_validate(fit, lo.leave_one_out(40), evaluate="squared_error")
    with pytest.raises(ValueError, match="no error is proved"):
        cv.certificate(tmp_path / "a.json")
    rng = np.random.default_rng(0)
    fit = lo.fit(lo.GLM(rng.normal(size=(30, 2)), rng.integers(0, 3, 30), "multinomial", lo.penalties.Ridge(1.0)))
    with pytest.raises(ValueError, match="the verifier knows"):
        lo.cross_validate(fit, lo.leave_one_out(30)).certificate(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"must end with \.parquet"):
        written()[1].certificate(tmp_path / "a.json", data=tmp_path / "a.txt")


@pytest.mark.parametrize("count", [600, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_proof_of_a_fresh_problem_is_false(count):
    total, _, rejected = check_proofs(count, seed=count)
    assert not rejected and total["undecided"] <= 0.02 * count
