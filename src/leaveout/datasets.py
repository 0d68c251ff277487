"""Data for examples, tests and experiments: bundled with us or a dependency, or fetched once and checked.

A file is looked for in the folder named by the environment variable `LEAVEOUT_DATA`, else in the user's
cache, else downloaded from its original source. Its SHA-256 is checked wherever it comes from.
"""

import importlib.util
import os
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pooch

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

TRAFFIC = "https://raw.githubusercontent.com/ShubhamDalvi1999/Traffic_Analysis_On_Match_Days/ef65600"
BNPY = "https://raw.githubusercontent.com/bnpy/bnpy/ffc2242/bnpy/datasets"
PARTICLES = "https://github.com/cecilia-balocchi/particle-optimization"
DERIVED = "derived from"  # such files cannot be fetched: their source has another form

# file: (SHA-256, source)
REGISTRY = {
    "dodgers/Dodgers.data": (
        "62c3853294fd97d229a92bb321b2cc91b4141c8956d6e77ce88ce8eed9e8d46d",
        f"{TRAFFIC}/Dodgers.data",
    ),
    "dodgers/Dodgers.events": (
        "6e5ad47fb132e01e9e98bb89869830147676972a06bc86521e60cf7c41318199",
        f"{TRAFFIC}/Dodgers.events",
    ),
    "heart_failure/heart.csv": (
        "948420b084d8a3a0ca42b8419fce9aee175879e43f8aedf712377899a67aa49b",
        "https://raw.githubusercontent.com/Lineax17/r-heart-disease/6319a92/data/heart.csv",
    ),
    "philly_crime/philly_counts.csv": (
        "33929a00fd36929b3dd8ada2a81cc0525063033f91f76b08f821487ac3d0176c",
        f"{DERIVED} crime_tract2019.rdata in {PARTICLES}",
    ),
    "philly_crime/philly_edges.csv": (
        "48b73e7eb0c7dabfabea9fa981ca60e47484097341d920198728c1af8abf1f6d",
        f"{DERIVED} A_block_density.csv in {PARTICLES}",
    ),
    "mocap6/sensor_data_per_tstep.csv": (
        "d5c3feaa8898dd673ddca1878afef25fde9b0c5fa628c0dc8abbb7834a617568",
        f"{BNPY}/mocap6/sensor_data_per_tstep.csv",
    ),
    "mocap6/actions_per_tstep.csv": (
        "7dc8c35237ccc3b45d86ce976f5a38edddedc1fd88eab3957832e0a9be8410d8",
        f"{BNPY}/mocap6/actions_per_tstep.csv",
    ),
}


class Areas(NamedTuple):
    """A table of areas, and the pairs of rows that are neighbours, each pair once."""

    areas: "pd.DataFrame"
    edges: "np.ndarray"  # [edges, 2]


class Dodgers(NamedTuple):
    """Traffic counts, and the games that explain some of them."""

    counts: "pd.DataFrame"  # time, count
    events: "pd.DataFrame"  # begin, end, attendance, opponent, score


class MotionCapture(NamedTuple):
    """Frames of all sequences, one after the other, and the length of each sequence."""

    frames: "pd.DataFrame"  # sequence, step, twelve channels, action
    lengths: list[int]


def breast_cancer() -> tuple["pd.DataFrame", "pd.Series"]:
    """569 tumours, 30 measurements; target 1 is benign. From scikit-learn (Wolberg et al. 1995, CC BY 4.0)."""
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(return_X_y=True, as_frame=True)


def diabetes() -> tuple["pd.DataFrame", "pd.Series"]:
    """442 patients, 10 standardised measurements, disease progression. From scikit-learn (Efron et al. 2004)."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True, as_frame=True)


def dodgers() -> Dodgers:
    """Cars on a ramp near the Dodgers' stadium, every five minutes of 25 weeks of 2005, and the 81 home games.

    50,400 counts, 2,903 of them missing (NaN); every time is there. The UCI loop sensor data (Ihler, Hutchins & Smyth
    2006; measured by PeMS), CC BY 4.0.
    """
    import pandas as pd

    counts = pd.read_csv(path("dodgers/Dodgers.data"), header=None, names=["time", "count"])
    counts["time"] = pd.to_datetime(counts["time"], format="%m/%d/%Y %H:%M")
    counts["count"] = counts["count"].astype(float).where(counts["count"] >= 0)
    names = ["date", "begin", "end", "attendance", "opponent", "score"]
    events = pd.read_csv(path("dodgers/Dodgers.events"), header=None, names=names, encoding="latin1")
    for edge in ("begin", "end"):
        events[edge] = pd.to_datetime(events["date"] + " " + events[edge], format="%m/%d/%y %H:%M:%S")
    events["score"] = events["score"].str.strip()
    return Dodgers(counts, events.drop(columns="date"))


def earthquakes() -> "pd.DataFrame":
    """107 yearly counts of earthquakes of magnitude 7 or more, 1900 to 2006: `year`, `count`. Bundled.

    From the U.S. Geological Survey, as in Zucchini & MacDonald (2009); the numbers as printed in hmmlearn (BSD-3).
    """
    import pandas as pd

    with as_file(files("leaveout") / "data" / "earthquakes.csv") as file:
        return pd.read_csv(file)


def heart_failure() -> "pd.DataFrame":
    """918 patients of five hospitals, 11 features and `HeartDisease` (508 have it). Zeros in `Cholesterol` mean missing.

    The UCI heart-disease data without duplicates, as put together on Kaggle (fedesoriano, 2021), ODbL 1.0.
    """
    import pandas as pd

    return pd.read_csv(path("heart_failure/heart.csv"))


def mocap6() -> MotionCapture:
    """Six sequences of exercises in twelve joint angles and heights, ten frames a second, 2,058 frames.

    Each channel is about its mean; `action` is the true state, one of 12 exercises. From mocap.cs.cmu.edu (free use) by
    Fox et al. (2014) and M. C. Hughes (BSD-2), as in bnpy.
    """
    import pandas as pd

    frames = pd.read_csv(path("mocap6/sensor_data_per_tstep.csv"))
    frames["action"] = pd.read_csv(path("mocap6/actions_per_tstep.csv"))["action_name"]
    frames = frames.rename(columns={"seq_id": "sequence", "tstep_id": "step"})
    return MotionCapture(frames, frames.groupby("sequence").size().tolist())


def philadelphia() -> Areas:
    """Crimes in the 384 census tracts of Philadelphia, 2006 to 2018, and the 1,153 pairs of tracts that touch.

    `violent_YEAR` and `nonviolent_YEAR`, `GEOID10` and the land area. Police incidents of OpenDataPhilly as counted by
    Balocchi, Deshpande, George & Jensen (2019), whose repository states no licence: the two tables made of it are looked for
    in the folder named by `LEAVEOUT_DATA`.
    """
    import pandas as pd

    edges = pd.read_csv(path("philly_crime/philly_edges.csv")).to_numpy()
    return Areas(pd.read_csv(path("philly_crime/philly_counts.csv"), dtype={"GEOID10": str}), edges)


def st_louis() -> Areas:
    """Homicides in 78 counties around St. Louis in three periods, and the 199 pairs of counties that touch.

    `HC7984`, `HC8488`, `HC8893` are counts, `PO7984`, … person-years at risk in the same periods, `NAME` the county. From
    libpysal (Messner et al. 1999; BSD-3), which is not imported for it; `pip install 'leaveout[spatial]'`.
    """
    import numpy as np
    import pandas as pd

    found = importlib.util.find_spec("libpysal")
    if found is None or found.origin is None:
        raise ImportError("datasets.st_louis: its files come with libpysal: pip install 'leaveout[spatial]'")
    folder = Path(found.origin).parent / "examples" / "stl"
    areas = pd.read_csv(folder / "stl_hom.csv").drop(columns="WKT")
    lines = [line.split() for line in (folder / "stl.gal").read_text().splitlines()[1:]]
    pairs = [(int(site[0]) - 1, int(near) - 1) for site, row in zip(lines[::2], lines[1::2], strict=True) for near in row]
    return Areas(areas, np.array([pair for pair in pairs if pair[0] < pair[1]]))


def path(name: str) -> Path:
    """Where the file is, fetched and checked if need be."""
    digest, url = REGISTRY[name]
    folder = os.environ.get("LEAVEOUT_DATA")
    if folder and (Path(folder) / name).exists():
        found = Path(folder) / name
        if pooch.file_hash(str(found)) != digest:
            raise ValueError(
                f"datasets: {found} is not the file we know (its SHA-256 differs); remove it to fetch the original."
            )
        return found
    if url.startswith(DERIVED):
        raise FileNotFoundError(
            f"datasets: {name} is not in LEAVEOUT_DATA ({folder or 'not set'}) and cannot be fetched: it is {url}. Put it in a "
            "folder, and name that folder in LEAVEOUT_DATA."
        )
    try:
        target = pooch.os_cache("leaveout") / name
        return Path(pooch.retrieve(url, known_hash=f"sha256:{digest}", fname=target.name, path=target.parent))
    except Exception as error:
        raise FileNotFoundError(
            f"datasets: {name} is neither in LEAVEOUT_DATA ({folder or 'not set'}) nor in the cache, and could not be fetched "
            f"from {url}: {error}. Put it in a folder, and name that folder in LEAVEOUT_DATA."
        ) from error
