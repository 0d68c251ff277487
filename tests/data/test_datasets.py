"""The data are what their descriptions say.

Those that are not bundled need the folder named by LEAVEOUT_DATA.
"""

import gzip
import os

import numpy as np
import pytest

import leaveout as lo


def needs(name):
    found = os.path.exists(os.path.join(os.environ.get("LEAVEOUT_DATA", ""), name))
    return pytest.mark.skipif(
        not found, reason=f"needs {name} in the folder named by LEAVEOUT_DATA"
    )


def test_earthquakes():
    data = lo.datasets.earthquakes()
    assert list(data.columns) == ["year", "count"]
    assert data["year"].tolist() == list(range(1900, 2007))
    assert data["count"].sum() == 2072 and data["count"].max() == 41
    assert data["count"].head(3).tolist() == [13, 14, 8]


@needs("dodgers/Dodgers.data")
def test_dodgers():
    counts, events = lo.datasets.dodgers()
    assert list(counts.columns) == ["time", "count"] and len(counts) == 25 * 7 * 288
    assert (
        counts["count"].isna().sum() == 2903
        and counts["count"].min() == 0
        and counts["count"].max() == 90
    )
    assert (counts["time"].diff().dropna().dt.total_seconds() == 300).all()
    assert len(events) == 81 and (events["end"] > events["begin"]).all()
    assert events["score"].str.fullmatch(r"[WL] \d+-\d+( \(\d+\))?").mean() > 0.9


@needs("mocap6/sensor_data_per_tstep.csv")
def test_mocap6():
    frames, lengths = lo.datasets.mocap6()
    assert lengths == [382, 205, 251, 446, 387, 387] and len(frames) == sum(lengths)
    assert list(frames.columns[:2]) == ["sequence", "step"] and frames.columns[-1] == "action"
    assert frames.shape[1] == 15 and frames["action"].nunique() == 12
    assert np.isfinite(frames.iloc[:, 2:14].to_numpy()).all()


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "dodgers").mkdir()
    (tmp_path / "dodgers/Dodgers.data").write_text("4/10/2005 0:00,-1\n")
    monkeypatch.setenv("LEAVEOUT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="is not the file we know"):
        lo.datasets.dodgers()


@needs("wnut17/wnut17train.conll")
def test_wnut17():
    corpus = lo.datasets.wnut17()
    assert [len(part.lengths) for part in corpus] == [3394, 1009, 1287]
    assert [len(part.words) for part in corpus] == [62730, 15733, 23394]
    assert [len(lo.developer.models.entities(part.labels, part.lengths)) for part in corpus] == [
        1975,
        836,
        1079,
    ]
    assert len(set(corpus.train.labels)) == 13


@needs("ud_ewt/en_ewt-ud-train.conllu.gz")
def test_ud_english():
    corpus = lo.datasets.ud_english()
    assert [len(part.lengths) for part in corpus] == [12544, 2001, 2077]
    assert [len(part.words) for part in corpus] == [204577, 25147, 25094]
    assert len(set(corpus.train.labels)) == 17 and list(corpus.dev.words[:3]) == [
        "From",
        "the",
        "AP",
    ]


@needs("ud_ewt/en_ewt-ud-train.conllu.gz")
def test_a_changed_packed_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "ud_ewt").mkdir()
    (tmp_path / "ud_ewt/en_ewt-ud-train.conllu.gz").write_bytes(gzip.compress(b"1\ta\ta\tX"))
    monkeypatch.setenv("LEAVEOUT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="does not hold the file we know"):
        lo.datasets.ud_english()


@needs("adult/adult.data")
def test_adult():
    data = lo.datasets.adult()
    assert data.shape == (32_561, 15) and data["income"].value_counts().to_dict() == {
        "<=50K": 24_720,
        ">50K": 7_841,
    }
    assert data.isna().any(axis=1).sum() == 2_399 and data["native_country"].nunique() == 41


@needs("heart_uci/processed.va.data")
def test_heart_uci():
    data = lo.datasets.heart_uci()
    assert data["hospital"].value_counts().to_dict() == {
        "cleveland": 303,
        "hungarian": 294,
        "va": 200,
        "switzerland": 123,
    }
    counts = data.groupby("hospital")["num"].value_counts()
    assert counts["cleveland"].sort_index().tolist() == [164, 55, 36, 35, 13]
    assert counts["hungarian"].to_dict() == {0: 188, 1: 106}


@needs("b3_bootstraps/heart.mat")
def test_the_saved_bootstraps_hold_binomial_matrices():
    for name, levels, size in (("synthetic", 30, 15), ("census", 200, 100), ("heart", 200, 100)):
        A, losses, truth, p0 = lo.datasets.b3_bootstraps(name)
        assert (
            A.shape == (levels, size + 1)
            and losses.shape == (levels, 10)
            and truth.shape == (size + 1, 10)
            and p0 == 0.1
        )
        np.testing.assert_allclose(
            A, lo.leakage.binomial_matrix(np.linspace(p0, 1, levels), size), atol=1e-9
        )
    with pytest.raises(ValueError, match="must be 'synthetic', 'census' or 'heart'"):
        lo.datasets.b3_bootstraps("mushrooms")
