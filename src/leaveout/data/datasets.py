"""Data for examples, tests and experiments: bundled with the library or a dependency, or fetched
once and checked.

A file is looked for in the folder named by the environment variable `LEAVEOUT_DATA`, else in the
user's cache, else downloaded from its original source. Its SHA-256 is checked wherever it comes
from.
"""

import gzip
import hashlib
import importlib.util
import os
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pooch

from .._runtime import log, pd
from .conll import Corpus, Tagged, parse, read_conll

__all__ = [
    "Areas",
    "BlockBootstraps",
    "Corpus",
    "Dodgers",
    "MotionCapture",
    "Tagged",
    "adult",
    "b3_bootstraps",
    "breast_cancer",
    "diabetes",
    "dodgers",
    "earthquakes",
    "heart_failure",
    "heart_uci",
    "mocap6",
    "path",
    "philadelphia",
    "read_conll",
    "st_louis",
    "ud_english",
    "wnut17",
]
__dir__ = __all__.copy

HOSPITALS = "cleveland", "hungarian", "switzerland", "va"
# marks files that cannot be fetched, as their source has another form
DERIVATION_MARK = "derived from"
TABLES = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text("utf-8"))
REGISTRY = TABLES["files"]  # file: (SHA-256, source)


class Areas(NamedTuple):
    """Table of areas, and the pairs of its rows that are neighbours.

    Attributes
    ----------
    areas : pandas.DataFrame
        One row an area.
    edges : array of int, shape (edges, 2)
        Neighbouring rows, each pair once.

    Examples
    --------
    >>> import leaveout as lo
    >>> areas, edges = lo.datasets.st_louis()
    >>> len(areas), len(edges)
    (78, 199)
    """

    areas: "pd.DataFrame"
    edges: "np.ndarray"  # [edges, 2]


class Dodgers(NamedTuple):
    """Traffic counts, and the games that explain some of them.

    Attributes
    ----------
    counts : pandas.DataFrame
        Columns `time` and `count`.
    events : pandas.DataFrame
        Columns `begin`, `end`, `attendance`, `opponent` and `score`.

    Examples
    --------
    >>> import leaveout as lo
    >>> data = lo.datasets.dodgers()
    >>> len(data.counts), len(data.events)
    (50400, 81)
    """

    counts: "pd.DataFrame"  # time, count
    events: "pd.DataFrame"  # begin, end, attendance, opponent, score


class MotionCapture(NamedTuple):
    """Frames of all motion-capture sequences, one after another, and the length of each sequence.

    Attributes
    ----------
    frames : pandas.DataFrame
        Columns `sequence`, `step`, twelve channels, and `action`.
    lengths : list of int
        Number of frames of each sequence.

    Examples
    --------
    >>> import leaveout as lo
    >>> len(lo.datasets.mocap6().lengths)
    6
    """

    frames: "pd.DataFrame"  # sequence, step, twelve channels, action
    lengths: list[int]


class BlockBootstraps(NamedTuple):
    """Linear systems that the authors of the binomial block bootstrap solved, one a trial.

    Attributes
    ----------
    A : array of float, shape (levels, counts)
        Matrix of the systems.
    losses : array of float, shape (levels, trials)
        Losses at each level of leakage.
    truth : array of float, shape (counts, trials)
        Loss by number of leaked records.
    p0 : float
        Leakage of the data themselves.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.datasets.b3_bootstraps("synthetic").A.shape
    (30, 16)
    """

    A: "np.ndarray"  # [levels, counts]
    losses: "np.ndarray"  # [levels, trials]
    truth: "np.ndarray"  # [counts, trials], the loss by number of leaked records
    p0: float


def adult() -> "pd.DataFrame":
    """Persons of the 1994 US census: 32,561 rows of 14 columns and `income`, `<=50K` or `>50K`.

    Missing values, `?` in the file, are NaN. The training part of the UCI Adult data (Becker &
    Kohavi 1996), CC BY 4.0.

    Returns
    -------
    pandas.DataFrame
        One row a person.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.datasets.adult().shape
    (32561, 15)
    """
    names = TABLES["columns"]["adult"]
    return pd.read_csv(
        path("adult/adult.data"), header=None, names=names, skipinitialspace=True, na_values="?"
    )


def b3_bootstraps(name: str) -> BlockBootstraps:
    """Bootstrap losses saved by the authors of the binomial block bootstrap.

    Barnes & Dubrawski, MIT. The synthetic ones draw 15 records at 30 levels, the others 100 at 200.

    Parameters
    ----------
    name : {"synthetic", "census", "heart"}
        Which data.

    Returns
    -------
    BlockBootstraps
        The linear systems, one a trial.

    Raises
    ------
    ValueError
        If the name is another.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.datasets.b3_bootstraps("synthetic").A.shape
    (30, 16)
    """
    from scipy.io import loadmat

    if f"b3_bootstraps/{name}.mat" not in REGISTRY:
        raise ValueError(
            f"b3_bootstraps: name must be 'synthetic', 'census' or 'heart'; got {name!r}."
        )
    stored = loadmat(path(f"b3_bootstraps/{name}.mat"))
    return BlockBootstraps(stored["A"], stored["B"], stored["s_true"], float(stored["p0"].item()))


def breast_cancer() -> tuple["pd.DataFrame", "pd.Series"]:
    """Tumours: 569 rows of 30 measurements; target 1 is benign.

    From scikit-learn (Wolberg et al. 1995, CC BY 4.0).

    Returns
    -------
    X : pandas.DataFrame
        Measurements.
    y : pandas.Series
        1 if the tumour is benign, else 0.

    Examples
    --------
    >>> import leaveout as lo
    >>> X, y = lo.datasets.breast_cancer()
    >>> X.shape, int(y.sum())
    ((569, 30), 357)
    """
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(return_X_y=True, as_frame=True)


def diabetes() -> tuple["pd.DataFrame", "pd.Series"]:
    """Diabetes patients: 442 rows of 10 standardised measurements, and the progression of the
    disease.

    From scikit-learn (Efron et al. 2004).

    Returns
    -------
    X : pandas.DataFrame
        Measurements.
    y : pandas.Series
        Disease progression after a year.

    Examples
    --------
    >>> import leaveout as lo
    >>> X, y = lo.datasets.diabetes()
    >>> X.shape
    (442, 10)
    """
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True, as_frame=True)


def dodgers() -> Dodgers:
    """Cars on a ramp near the Dodgers' stadium, every five minutes of 25 weeks of 2005, and the 81
    home games.

    There are 50,400 counts, 2,903 of them missing (NaN); every time is there. The UCI loop sensor
    data (Ihler, Hutchins & Smyth 2006; measured by PeMS), CC BY 4.0.

    Returns
    -------
    Dodgers
        Counts and events.

    Examples
    --------
    >>> import leaveout as lo
    >>> int(lo.datasets.dodgers().counts["count"].isna().sum())
    2903
    """
    counts = pd.read_csv(path("dodgers/Dodgers.data"), header=None, names=["time", "count"])
    counts["time"] = pd.to_datetime(counts["time"], format="%m/%d/%Y %H:%M")
    counts["count"] = counts["count"].astype(float).where(counts["count"] >= 0)
    names = ["date", "begin", "end", "attendance", "opponent", "score"]
    events = pd.read_csv(
        path("dodgers/Dodgers.events"), header=None, names=names, encoding="latin1"
    )
    for edge in ("begin", "end"):
        events[edge] = pd.to_datetime(
            events["date"] + " " + events[edge], format="%m/%d/%y %H:%M:%S"
        )
    events["score"] = events["score"].str.strip()
    return Dodgers(counts, events.drop(columns="date"))


def earthquakes() -> "pd.DataFrame":
    """Yearly counts of earthquakes of magnitude 7 or more, 1900 to 2006: 107 rows of `year` and
    `count`. Bundled.

    From the U.S. Geological Survey, as in Zucchini & MacDonald (2009); the numbers as printed in
    hmmlearn (BSD-3).

    Returns
    -------
    pandas.DataFrame
        One row a year.

    Examples
    --------
    >>> import leaveout as lo
    >>> frame = lo.datasets.earthquakes()
    >>> len(frame), int(frame["count"].max())
    (107, 41)
    """
    return pd.read_csv(Path(__file__).with_name("earthquakes.csv"))


def heart_failure() -> "pd.DataFrame":
    """Patients of five hospitals: 918 rows of 11 features and `HeartDisease`, which 508 have.

    Zeros in `Cholesterol` mean missing. The UCI heart-disease data without duplicates, as put
    together on Kaggle (fedesoriano, 2021), ODbL 1.0.

    Returns
    -------
    pandas.DataFrame
        One row a patient.

    Examples
    --------
    >>> import leaveout as lo
    >>> int(lo.datasets.heart_failure()["HeartDisease"].sum())
    508
    """
    return pd.read_csv(path("heart_failure/heart.csv"))


def heart_uci() -> "pd.DataFrame":
    """Patients of four hospitals: 920 rows of `hospital`, 13 measurements, and `num`, 0 without
    heart disease.

    Missing values are NaN; zeros in `chol` mean missing too. The UCI heart-disease data (Janosi,
    Steinbrunn, Pfisterer & Detrano 1989), CC BY 4.0.

    Returns
    -------
    pandas.DataFrame
        One row a patient.

    Examples
    --------
    >>> import leaveout as lo
    >>> len(lo.datasets.heart_uci())
    920
    """
    names = TABLES["columns"]["heart_uci"]
    parts = []
    for hospital in HOSPITALS:
        frame = pd.read_csv(
            path(f"heart_uci/processed.{hospital}.data"), header=None, names=names, na_values="?"
        )
        parts.append(frame.assign(hospital=hospital)[["hospital", *names]])
    return pd.concat(parts, ignore_index=True)


def mocap6() -> MotionCapture:
    """Six sequences of exercises: twelve joint angles and heights, ten frames a second, 2,058
    frames.

    Each channel is centred; `action` is the true state, one of 12 exercises. From mocap.cs.cmu.edu
    (free use) by Fox et al. (2014) and M. C. Hughes (BSD-2), as in bnpy.

    Returns
    -------
    MotionCapture
        Frames and lengths of the sequences.

    Examples
    --------
    >>> import leaveout as lo
    >>> len(lo.datasets.mocap6().frames)
    2058
    """
    frames = pd.read_csv(path("mocap6/sensor_data_per_tstep.csv"))
    frames["action"] = pd.read_csv(path("mocap6/actions_per_tstep.csv"))["action_name"]
    frames = frames.rename(columns={"seq_id": "sequence", "tstep_id": "step"})
    return MotionCapture(frames, frames.groupby("sequence").size().tolist())


def ud_english() -> Corpus:
    """English sentences from the web with one of 17 parts of speech a word (UPOS): 12,544, 2,001
    and 2,077 sentences.

    Universal Dependencies, English Web Treebank (Silveira et al. 2014), CC BY-SA 4.0.

    Returns
    -------
    Corpus
        Training, development and test sentences.

    Examples
    --------
    >>> import leaveout as lo
    >>> len(lo.datasets.ud_english().dev.lengths)
    2001
    """
    files = (f"ud_ewt/en_ewt-ud-{part}.conllu" for part in ("train", "dev", "test"))
    return Corpus(*(parse(_text(file).splitlines(), file, 1, 3) for file in files))


def wnut17() -> Corpus:
    """Tweets and other short texts with rare and new entities of six kinds, in BIO tags.

    There are 3,394, 1,009 and 1,287 sentences. The shared task of WNUT 2017 (Derczynski et al.
    2017), CC BY 4.0.

    Returns
    -------
    Corpus
        Training, development and test sentences.

    Examples
    --------
    >>> import leaveout as lo
    >>> len(lo.datasets.wnut17().dev.lengths)
    1009
    """
    files = (
        "wnut17/wnut17train.conll",
        "wnut17/emerging.dev.conll",
        "wnut17/emerging.test.annotated",
    )
    return Corpus(*(parse(_text(file).splitlines(), file, 0, -1) for file in files))


def _text(name: str) -> str:
    """Read a file as text. In the folder named by `LEAVEOUT_DATA` it may be compressed."""
    packed = Path(os.environ.get("LEAVEOUT_DATA") or ".") / f"{name}.gz"
    if os.environ.get("LEAVEOUT_DATA") and packed.exists():
        content = gzip.decompress(packed.read_bytes())
        if hashlib.sha256(content).hexdigest() != REGISTRY[name][0]:
            raise ValueError(
                f"datasets: {packed} does not hold the file we know (its SHA-256 differs); remove it."
            )
        return content.decode()
    return path(name).read_text(encoding="utf-8")


def philadelphia() -> Areas:
    """Crimes in the 384 census tracts of Philadelphia, 2006 to 2018, and the 1,153 pairs of tracts
    that touch.

    Columns are `violent_YEAR`, `nonviolent_YEAR`, `GEOID10` and the land area. Police incidents of
    OpenDataPhilly as counted by Balocchi, Deshpande, George & Jensen (2019), whose repository
    states no licence. The two tables derived from it are looked for in the folder named by
    `LEAVEOUT_DATA`.

    Returns
    -------
    Areas
        Tracts and neighbours.

    Examples
    --------
    >>> import leaveout as lo
    >>> areas, edges = lo.datasets.philadelphia()
    >>> len(areas), len(edges)
    (384, 1153)
    """
    return Areas(
        pd.read_csv(path("philly_crime/philly_counts.csv"), dtype={"GEOID10": str}),
        pd.read_csv(path("philly_crime/philly_edges.csv")).to_numpy(),
    )


def st_louis() -> Areas:
    """Homicides in 78 counties around St. Louis in three periods, and the 199 pairs of counties
    that touch.

    `HC7984`, `HC8488`, `HC8893` are counts; `PO7984`, … person-years at risk in the same periods;
    `RDAC80`, … an index of deprivation; `NAME` is the county, `longitude` and `latitude` its
    middle. From libpysal (Messner et al. 1999; BSD-3), which is not imported for it; `pip install
    'leaveout[spatial]'`.

    Returns
    -------
    Areas
        Counties and neighbours.

    Raises
    ------
    ImportError
        If libpysal is not installed.

    Examples
    --------
    >>> import leaveout as lo
    >>> areas, edges = lo.datasets.st_louis()
    >>> len(areas), len(edges)
    (78, 199)
    """
    spec = importlib.util.find_spec("libpysal")
    if spec is None or spec.origin is None:
        raise ImportError(
            "datasets.st_louis: its files come with libpysal: pip install 'leaveout[spatial]'"
        )
    folder = Path(spec.origin).parent / "examples" / "stl"
    areas = pd.read_csv(folder / "stl_hom.csv")
    corners = areas.pop("WKT").str.extractall(r"(-?[\d.]+) (-?[\d.]+)").astype(float)
    areas[["longitude", "latitude"]] = corners.groupby(level=0).agg(
        lambda c: (c.min() + c.max()) / 2
    )
    lines = [line.split() for line in (folder / "stl.gal").read_text().splitlines()[1:]]
    pairs = [
        (int(site[0]) - 1, int(neighbour) - 1)
        for site, row in zip(lines[::2], lines[1::2], strict=True)
        for neighbour in row
    ]
    return Areas(areas, np.array([pair for pair in pairs if pair[0] < pair[1]]))


def path(name: str) -> Path:
    """Path of a file of the data sets; the file is fetched and checked if need be.

    Parameters
    ----------
    name : str
        Name of the file, a key of `REGISTRY`.

    Returns
    -------
    pathlib.Path
        Where the file is.

    Raises
    ------
    FileNotFoundError
        If it is nowhere and cannot be fetched.
    ValueError
        If the file found is not the one with the known SHA-256.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.datasets.path("heart_failure/heart.csv").name
    'heart.csv'
    """
    digest, url = REGISTRY[name]
    folder = os.environ.get("LEAVEOUT_DATA")
    if folder and (Path(folder) / name).exists():
        file = Path(folder) / name
        if pooch.file_hash(str(file)) != digest:
            raise ValueError(
                f"datasets: {file} is not the file we know (its SHA-256 differs); remove it to fetch the original."
            )
        return file
    if url.startswith(DERIVATION_MARK):
        raise FileNotFoundError(
            f"datasets: {name} is not in LEAVEOUT_DATA ({folder or 'not set'}) and cannot be fetched: it is {url}. Put it in a "
            "folder, and name that folder in LEAVEOUT_DATA."
        )
    try:
        target = pooch.os_cache("leaveout") / name
        log.info(
            "datasets: %s is looked for in %s, and fetched from %s otherwise",
            name,
            target.parent,
            url,
        )
        return Path(
            pooch.retrieve(
                url, known_hash=f"sha256:{digest}", fname=target.name, path=target.parent
            )
        )
    except Exception as error:
        raise FileNotFoundError(
            f"datasets: {name} is neither in LEAVEOUT_DATA ({folder or 'not set'}) nor in the cache, and could not be fetched "
            f"from {url}: {error}. Put it in a folder, and name that folder in LEAVEOUT_DATA."
        ) from error
