"""R's reference figures of clinical models, and plans of the resamples that R drew."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

FOLDER = Path(os.environ.get("LEAVEOUT_DATA", "nowhere")) / "reference" / "clinical"
needs_reference = pytest.mark.skipif(
    not FOLDER.exists(), reason="needs reference/clinical in the folder named by LEAVEOUT_DATA"
)


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv")


def entries(name: str) -> dict:
    """The fields of a `Plan` whose weights are R's counts, `[rows, resamples]`."""
    counts = read(name).to_numpy().T.astype(float)
    refit, index = np.nonzero(counts != 1)
    weight = counts[refit, index]
    indptr = np.r_[0, np.cumsum(np.bincount(refit, minlength=len(counts)))]
    return {
        "indptr": indptr,
        "index": index,
        "weight": weight,
        "held": weight == 0,
        "num_units": counts.shape[1],
    }
