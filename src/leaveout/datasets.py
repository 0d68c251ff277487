"""Data for examples, tests and experiments: bundled with a dependency, or fetched once and checked.

A file is looked for in the folder named by the environment variable `LEAVEOUT_DATA`, else in the user's
cache, else downloaded from its original source. Its SHA-256 is checked wherever it comes from.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pooch

if TYPE_CHECKING:
    import pandas as pd

# file: (SHA-256, original source)
REGISTRY = {
    "heart_failure/heart.csv": (
        "948420b084d8a3a0ca42b8419fce9aee175879e43f8aedf712377899a67aa49b",
        "https://raw.githubusercontent.com/Lineax17/r-heart-disease/6319a92/data/heart.csv",
    ),
}


def breast_cancer() -> tuple["pd.DataFrame", "pd.Series"]:
    """569 tumours, 30 measurements; target 1 is benign. From scikit-learn (Wolberg et al. 1995, CC BY 4.0)."""
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(return_X_y=True, as_frame=True)


def diabetes() -> tuple["pd.DataFrame", "pd.Series"]:
    """442 patients, 10 standardised measurements, disease progression. From scikit-learn (Efron et al. 2004)."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True, as_frame=True)


def heart_failure() -> "pd.DataFrame":
    """918 patients of five hospitals, 11 features and `HeartDisease` (508 have it). Zeros in `Cholesterol` mean missing.

    The UCI heart-disease data without duplicates, as put together on Kaggle (fedesoriano, 2021), ODbL 1.0.
    """
    import pandas as pd

    return pd.read_csv(path("heart_failure/heart.csv"))


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
    try:
        target = pooch.os_cache("leaveout") / name
        return Path(pooch.retrieve(url, known_hash=f"sha256:{digest}", fname=target.name, path=target.parent))
    except Exception as error:
        raise FileNotFoundError(
            f"datasets: {name} is neither in LEAVEOUT_DATA ({folder or 'not set'}) nor in the cache, and could not be fetched "
            f"from {url}: {error}. Put it in a folder, and name that folder in LEAVEOUT_DATA."
        ) from error
