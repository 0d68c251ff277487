"""Groups of rows beyond memory, left out whole: against exact refits of all rows in memory."""

import joblib
import numpy as np
import pyarrow.parquet as pq
import pytest

import leaveout as lo
from leaveout.extensions.out_of_core import batches, group_refits, pass_runner
from tests.extensions.out_of_core.test_scan import NAMES, RIDGE, N, P, parquet, table

SHOPS = np.random.default_rng(1).integers(30, size=N)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts of 250 rows, read 80 at a time: every shop is in many."""
    monkeypatch.setattr(batches, "PART_ROWS", 250)
    monkeypatch.setattr(batches, "DENSE_BLOCK", 80 * (P + 1))


def in_memory(frame, loss, shops=SHOPS, **options):
    fit = lo.fit(lo.GLM(frame[NAMES], frame.y, loss, RIDGE, **options))
    return lo.cross_validate(fit, lo.groups(shops), strategy=lo.Exact())


def assert_within_errors(found, exact):
    losses = exact.per_unit().to_numpy()
    assert np.isfinite(found.error).all() and found.lost == 0
    assert (np.abs(found.losses - losses) <= found.error + 1e-7 * (1 + losses)).all()
    assert abs(found.mean - exact.mean) <= found.approximation_error + exact.approximation_error
    assert found.se == pytest.approx(exact.se, rel=1e-2)


@pytest.mark.parametrize("loss", ["logistic", "squared", "poisson", "huber"])
def test_losses_are_those_of_exact_refits(loss):
    frame = table(loss)
    options = {"sample_weight": frame.w.to_numpy(), "offset": frame.o.to_numpy()}
    found = lo.scan(
        frame[NAMES].to_numpy(), frame.y.to_numpy(), loss, RIDGE, groups=SHOPS, **options
    )
    assert_within_errors(found, in_memory(frame, loss, **options))
    assert found.groups.tolist() == list(range(30))
    assert found.proved.all() or loss == "huber"
    assert len(found.audit) == 5 and not found.audit.beyond.any()
    assert "SE over 30 groups" in str(found) and "5 groups refitted to the end" in str(found)
    if loss == "squared":
        assert found.error.max() < 1e-8


@pytest.mark.parametrize("kind", ["names", "days"])
def test_wherever_the_rows_are(kind, tmp_path, monkeypatch):
    """In files, in Dask's partitions, by workers; with sums of few groups at a time."""
    labels = np.array([f"shop {k:02}" for k in SHOPS])
    if kind == "days":
        labels = np.datetime64("2024-02-20", "D") + SHOPS
    frame = table().assign(shop=labels)
    ask = ("y", "logistic", RIDGE)
    name = parquet(tmp_path, frame)
    found = lo.scan(name, *ask, columns=NAMES, groups="shop")
    assert_within_errors(found, in_memory(frame, "logistic"))
    assert set(found.audit.group) <= set(np.unique(labels)) and len(found.groups) == 30
    x, y = frame[NAMES].to_numpy(), frame.y.to_numpy()
    there = lo.scan(x, y, "logistic", RIDGE, groups=labels)
    np.testing.assert_allclose(there.losses, found.losses, rtol=1e-9)
    passes = found.passes
    monkeypatch.setattr(group_refits, "GROUP_NUMBERS", 10 * (P + 1) ** 2)
    few = lo.scan(name, *ask, columns=NAMES, groups="shop")
    assert few.passes == passes + 2
    np.testing.assert_array_equal(few.losses, found.losses)
    with joblib.parallel_config("threading", n_jobs=2):
        other = lo.scan(name, *ask, columns=NAMES, groups="shop")
    np.testing.assert_array_equal(other.losses, found.losses)
    dask_frame = pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)
    dask = lo.scan(dask_frame, *ask, columns=NAMES, groups="shop")
    np.testing.assert_allclose(dask.losses, found.losses, rtol=1e-9)


def test_groups_of_most_of_the_information_are_refitted(monkeypatch):
    """Two of three rows are of one group, which one step does not settle."""
    shops = np.where(np.arange(N) % 3 > 0, 0, SHOPS)
    frame = table("logistic")
    x, y = frame[NAMES].to_numpy(), frame.y.to_numpy()
    found = lo.scan(x, y, "logistic", RIDGE, groups=shops)
    assert_within_errors(found, in_memory(frame, "logistic", shops))
    assert found.error[shops == 0].max() < 1e-6
    monkeypatch.setattr(group_refits, "MAX_FAR_REFITS", 0)
    step = lo.scan(x, y, "logistic", RIDGE, groups=shops, audit=0)
    assert step.audit is None and step.lost == 1 and np.isinf(step.error[shops == 0]).all()
    assert "not certified" in str(step) and "nothing is known of their refits" in str(step)


def test_a_group_that_the_others_do_not_determine_has_no_loss():
    frame = table("squared").assign(alone=0.0)
    frame.loc[SHOPS == 7, "alone"] = 1.0
    x, y = frame[[*NAMES, "alone"]].to_numpy(), frame.y.to_numpy()
    found = lo.scan(x, y, "squared", groups=SHOPS)
    assert np.array_equal(np.isnan(found.losses), SHOPS == 7)
    assert np.isinf(found.error[SHOPS == 7]).all() and not found.proved[SHOPS == 7].any()
    assert found.lost == 1 and "1 group is not in the mean: the others do not" in str(found)
    rest = lo.cross_validate(
        lo.fit(lo.GLM(x, y, "squared", lo.penalties.Ridge(1e-9))), lo.groups(SHOPS)
    )
    assert found.mean == pytest.approx(np.average(rest.per_unit()[SHOPS != 7]), rel=1e-4)


def test_losses_go_to_files_and_a_state_goes_on(tmp_path, monkeypatch):
    frame = table().assign(shop=SHOPS)
    name = parquet(tmp_path, frame)
    options = {"columns": NAMES, "groups": "shop"}
    here = lo.scan(name, "y", "logistic", RIDGE, **options)
    options |= {"out": tmp_path / "losses", "checkpoint": tmp_path / "state"}
    look, calls = pass_runner.PassRunner.over_rows, []

    def stopped(self, *arguments):
        for part in look(self, *arguments):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(pass_runner.PassRunner, "over_rows", stopped)
        with pytest.raises(KeyboardInterrupt):
            lo.scan(name, "y", "logistic", RIDGE, **options)
    found = lo.scan(name, "y", "logistic", RIDGE, **options)
    written = pq.read_table(tmp_path / "losses").to_pandas()
    np.testing.assert_array_equal(written.loss, here.losses)
    np.testing.assert_array_equal(written.error, here.error)
    assert written.row.tolist() == list(range(N)) and found.losses is None
    assert found.mean == here.mean and found.passes == here.passes


def test_what_are_no_groups(tmp_path):
    frame = table().assign(shop=[f"s{k}" for k in SHOPS])
    x, y = frame[NAMES].to_numpy(), frame.y.to_numpy()
    with pytest.raises(ValueError, match="groups has 1 label; at least two"):
        lo.scan(x, y, "logistic", groups=np.zeros(N))
    with pytest.raises(ValueError, match="groups must have one number for each of the 900 rows"):
        lo.scan(x, y, "logistic", groups=np.zeros(3))
    with pytest.raises(TypeError, match="groups must be the name of a column"):
        lo.scan(parquet(tmp_path, frame), "y", "logistic", columns=NAMES, groups=SHOPS)
    with pytest.raises(ValueError, match="have no columns 'market'"):
        lo.scan(parquet(tmp_path, frame), "y", "logistic", columns=NAMES, groups="market")
    frame.loc[321, "shop"] = None
    with pytest.raises(ValueError, match=r"the group in row 321 \(row 21 of batch 3.* is missing"):
        lo.scan(parquet(tmp_path, frame), "y", "logistic", columns=NAMES, groups="shop")
    assert (
        "shop"
        not in lo.scan(
            parquet(tmp_path, table().assign(shop=SHOPS)), "y", "logistic", RIDGE, groups="shop"
        ).parameters
    )


@pytest.mark.parametrize("every", [2, 80, 250])
def test_a_number_and_its_text_are_not_one_group(every):
    """Side by side in a block, and in blocks or parts of one type each."""
    frame = table()
    text = np.arange(N) // every % 2 == 1
    labels = np.array(
        [str(k) if is_text else k for k, is_text in zip(SHOPS, text, strict=True)], object
    )
    with pytest.raises(ValueError, match=r"scan: .*groups .* type"):
        lo.scan(frame[NAMES].to_numpy(), frame.y.to_numpy(), "squared", groups=labels)


def test_numbers_in_a_column_of_objects_are_numbers():
    frame = table()
    ask = (frame[NAMES].to_numpy(), frame.y.to_numpy(), "squared", RIDGE)
    found, want = (lo.scan(*ask, groups=groups) for groups in (SHOPS.astype(object), SHOPS))
    assert found.groups.tolist() == want.groups.tolist() and found.mean == want.mean


def test_masked_labels_are_missing():
    frame = table()
    masked = np.ma.array(SHOPS, mask=np.arange(N) == 7)
    with pytest.raises(ValueError, match=r"the group in row 7 .* is missing"):
        lo.scan(frame[NAMES].to_numpy(), frame.y.to_numpy(), "squared", groups=masked)
