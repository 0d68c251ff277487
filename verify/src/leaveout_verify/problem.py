"""The problem that a certificate and its data state: F(θ, w) = Σ_i w_i ℓ(x_iᵀθ + o_i, y_i) + κ ½ θᵀPθ, and the claims."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .losses import Loss, named

Array = np.ndarray


class Fold(NamedTuple):
    """A refit: the rows whose weights it changes, these weights, κ, and the claim on the losses of the rows `held`."""

    rows: Array
    weights: Array
    times: float
    held: Array
    losses: Array
    error: float


class Problem(NamedTuple):
    X: Array  # [rows, columns], the column of ones last if there is an intercept
    y: Array
    weight: Array
    offset: Array
    penalty: Array  # P, [columns, columns]
    times: float  # κ of the fit to all rows
    loss: Loss
    squared: bool
    intercept: bool
    theta: Array  # a hint at where the fit to all rows is
    folds: list[Fold]

    def weights(self, fold: Fold) -> Array:
        """Weights of all rows in a refit."""
        out = self.weight.copy()
        out[fold.rows] = fold.weights
        return out


def digest(X: Array, y: Array, weight: Array, offset: Array) -> str:
    """Return the SHA-256 of the numbers of the data, row by row in little-endian float64."""
    parts = (np.ascontiguousarray(part, "<f8").tobytes() for part in (X, y, weight, offset))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def table(path: str | Path) -> dict[str, Array]:
    """Read the columns of a file: .parquet, .npz or .csv."""
    path = Path(path)
    if path.suffix == ".npz":
        with np.load(path) as found:
            return {name: found[name] for name in found.files}
    if path.suffix == ".csv":
        found = np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8", deletechars="", replace_space=" ")
        return {name: found[name] for name in found.dtype.names}
    import pyarrow.parquet

    found = pyarrow.parquet.read_table(path)
    return {name: found[name].to_numpy() for name in found.column_names}


def columns(found: Mapping[str, Array], data: Mapping[str, Any]) -> tuple[Array, Array, Array, Array]:
    """Pick X, y, the weights and the offsets among the columns of a file, by the names that the certificate gives."""
    taken = [name for name in (*data["features"], data["weight"], data["offset"]) if name]
    if missing := [name for name in taken if name not in found]:
        raise ValueError(f"the data have no column {missing[0]!r}; they have {', '.join(found)}.")
    others = [name for name in found if name not in taken]
    response = data["response"] if data["response"] in found else others[0] if len(others) == 1 else None
    if response is None:
        raise ValueError(f"the response could be any of the columns {', '.join(others)}: keep one.")
    y = np.asarray(found[response])
    if data["labels"]:
        y = np.array([[str(label) for label in data["labels"]].index(str(value)) for value in y])
    X = np.stack([np.asarray(found[name], float) for name in data["features"]], axis=1)
    of = lambda name, level: np.asarray(found[name], float) if name else np.full(len(y), level)
    return X, y.astype(float), of(data["weight"], 1.0), of(data["offset"], 0.0)


def read(certificate: str | Path, file: str | Path) -> Problem:
    """Read a certificate and the data that it is about from files."""
    return parse(json.loads(Path(certificate).read_text()), table(file))


def parse(says: Mapping[str, Any], found: Mapping[str, Array]) -> Problem:
    """Make the problem from what a certificate says and the columns of the data.

    Raises ValueError if the data are not those whose hash the certificate has.
    """
    X, y, weight, offset = columns(found, says["data"])
    own = digest(X, y, weight, offset)
    if own != says["data"]["sha256"] and says["data"]["center"]:  # the fit is to columns less some constants
        X = X - np.array(says["data"]["center"])
        own = digest(X, y, weight, offset)
    if own != says["data"]["sha256"]:
        raise ValueError(f"the certificate is of other data: their SHA-256 is {own[:12]}…, not {says['data']['sha256'][:12]}…")
    X = np.column_stack([X, np.ones(len(X))]) if says["intercept"] else X
    whole = lambda values: np.array(values, int).reshape(-1)
    numbers = lambda values: np.array(values, float).reshape(-1)
    folds = [
        Fold(
            whole(fold["rows"]), numbers(fold["weights"]), float(fold["times"]),
            whole(fold["held"]), numbers(fold["losses"]), float(fold["error"]),
        )
        for fold in says["folds"]
    ]  # fmt: skip
    penalty = np.array(says["penalty"], float)
    penalty = penalty if penalty.ndim == 2 else np.diag(penalty)
    squared = says["loss"]["name"] == "squared"
    data, hint = (X, y, weight, offset, penalty, float(says["times"])), numbers(says["theta"])
    return Problem(*data, named(**says["loss"]), squared, says["intercept"], hint, folds)
