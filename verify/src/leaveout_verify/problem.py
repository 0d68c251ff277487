"""The problem that a certificate and its data state, and the claims.

    F(θ, w) = Σ_i w_i ℓ(x_iᵀθ + o_i, y_i) + κ (½ θᵀPθ + Σ_j a_j |θ_j|)

Coefficients may have bounds. Whatever is unknown, missing, of another type or not finite is
`Rejected`, in words.
"""

import csv
import hashlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .losses import DOMAINS, NAMED, Loss, named

Array = np.ndarray
FORMAT = 2
CLAIM = "In each fold, the sum over its held-out rows of |loss - loss of the exact refit| is at most its error."
KEYS = {
    "format", "version", "claim", "plan", "data", "intercept", "loss", "penalty", "times", "l1", "bounds", "theta", "folds",
    "sha256",
}  # fmt: skip
DATA_KEYS = {"sha256", "rows", "features", "response", "weight", "offset", "center", "labels"}
FOLD_KEYS = {"fold", "rows", "weights", "times", "held", "losses", "error"}
ROUNDING = 1e-12  # share of the largest eigenvalue of P by which one may be negative


class Rejected(ValueError):
    """What a certificate or its data say that cannot be so, in words."""


class Fold(NamedTuple):
    """A refit: the rows whose weights it changes, these weights, κ, and the claim on the losses of
    the rows `held`.
    """

    rows: Array
    weights: Array
    times: float
    held: Array
    losses: Array
    error: float
    number: int = 0


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
    slope: Array  # a, [columns]
    low: Array
    high: Array
    planned: int  # folds of the plan, whether or not the certificate has them

    exponential: bool = True  # whether derivatives of the loss are exponentials of predictors

    def weights(self, fold: Fold) -> Array:
        """Weights of all rows in a refit."""
        out = self.weight.copy()
        out[fold.rows] = fold.weights
        return out

    @property
    def kinked(self) -> bool:
        """Whether coefficients have a term a |θ| or a bound."""
        return bool(self.slope.any() or np.isfinite(self.low).any() or np.isfinite(self.high).any())


def digest(X: Array, y: Array, weight: Array, offset: Array) -> str:
    """Return the SHA-256 of the numbers of the data, row by row in little-endian float64."""
    parts = (np.ascontiguousarray(part, "<f8").tobytes() for part in (X, y, weight, offset))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def seal(says: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all that a certificate says.

    Of its JSON, its keys sorted, without the entry of this hash.
    """
    text = json.dumps(
        {key: value for key, value in says.items() if key != "sha256"}, sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


def table(path: str | Path) -> dict[str, Array]:
    """Read the columns of a file: .parquet, .npz or .csv."""
    path = Path(path)
    if path.suffix == ".npz":
        with np.load(path) as found:
            return {name: found[name] for name in found.files}
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            names, *lines = (line for line in csv.reader(file) if line)
        if len({*names}) < len(names) or any(len(line) != len(names) for line in lines):
            raise Rejected(f"{path} has two columns of one name, or lines of other lengths.")
        return {
            name: _numbers_or_texts(values)
            for name, values in zip(names, zip(*lines, strict=True), strict=True)
        }
    import pyarrow.parquet

    found = pyarrow.parquet.read_table(path)
    if len({*found.column_names}) < len(found.column_names):
        raise Rejected(f"{path} has two columns of one name.")
    return {name: found[name].to_numpy() for name in found.column_names}


def _numbers_or_texts(values: Sequence[str]) -> Array:
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array(values)


def column(found: Mapping[str, Array], name: str) -> Array:
    """Return a column of finite numbers."""
    try:
        out = np.asarray(found[name], float)
    except (TypeError, ValueError):
        raise Rejected(f"the column {name!r} of the data holds other than numbers.") from None
    if out.ndim != 1 or not np.isfinite(out).all():
        raise Rejected(f"the column {name!r} of the data is not one of finite numbers.")
    return out


def number_of(label: Any) -> float:
    """Return the number that a label stands for; NaN if it is a text."""
    try:
        return float(label)
    except (TypeError, ValueError):
        return float("nan")


def columns(
    found: Mapping[str, Array], data: Mapping[str, Any]
) -> tuple[Array, Array, Array, Array]:
    """Pick X, y, the weights and the offsets among the columns of a file, by the names that the
    certificate gives.
    """
    taken = [
        name for name in (*data["features"], data["weight"], data["offset"]) if name is not None
    ]
    if missing := [name for name in taken if name not in found]:
        raise Rejected(f"the data have no column {missing[0]!r}; they have {', '.join(found)}.")
    others = [name for name in found if name not in taken]
    response = (
        data["response"] if data["response"] in others else others[0] if len(others) == 1 else None
    )
    if response is None:
        raise Rejected(f"the response could be any of the columns {', '.join(others)}: keep one.")
    n = data["rows"]
    if wrong := [name for name in (*taken, response) if np.shape(found[name]) != (n,)]:
        raise Rejected(
            f"the column {wrong[0]!r} of the data has the shape {np.shape(found[wrong[0]])}, for {n} rows."
        )
    y = np.asarray(found[response])
    if data["labels"] is None:
        y = column(found, response)
    else:
        by_text = {label: k for k, label in enumerate(data["labels"])}
        by_number = {number_of(label): k for label, k in by_text.items()}
        classes = [by_text.get(str(value), by_number.get(number_of(value))) for value in y]
        if None in classes:
            raise Rejected(
                f"the response is {str(y[classes.index(None)])!r} in a row, which is none of {data['labels']}."
            )
        y = np.array(classes, float)
    X = np.stack([np.ones(n), *(column(found, name) for name in data["features"])], axis=1)[:, 1:]
    of = lambda name, level: np.full(n, level) if name is None else column(found, name)
    return X, y, of(data["weight"], 1.0), of(data["offset"], 0.0)


def read(certificate: str | Path, file: str | Path) -> Problem:
    """Read a certificate and the data that it is about from files.

    `Rejected` if they cannot be read.
    """
    try:
        says = json.loads(Path(certificate).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{certificate} is no JSON: {error}.") from error
    try:
        found = table(file)
    except (OSError, ImportError, Rejected):
        raise
    except Exception as error:  # of three readers, whose errors have no class in common
        raise Rejected(f"{file} cannot be read as a table: {error}.") from error
    return parse(says, found)


@np.errstate(all="ignore")
def parse(says: Any, found: Mapping[str, Array]) -> Problem:
    """Make the problem from what a certificate says and the columns of the data.

    Raises `Rejected`, a ValueError, if it says anything else than a certificate does, or the data
    have another hash.
    """
    _record(says, KEYS, "the certificate", says.get("format") if isinstance(says, dict) else None)
    if says["claim"] != CLAIM:
        raise Rejected(
            f"the claim is {says['claim']!r}; the only one that is checked is {CLAIM!r}."
        )
    if says["sha256"] != seal(says):
        raise Rejected("the certificate was altered after it was written: it has another SHA-256.")
    _require(isinstance(says["version"], str), "version must be a text")
    _require(isinstance(says["intercept"], bool), "intercept must be true or false")
    data, plan = _data(says["data"]), _record(says["plan"], {"folds", "proved"}, "plan")
    _require(isinstance(says["folds"], list) and len(says["folds"]) > 0, "it has no folds")
    planned, proved = (_whole(plan[key], key, 2**62) for key in ("folds", "proved"))
    _require(
        proved == len(says["folds"]) <= planned,
        f"it states {proved} folds of {planned}, and has {len(says['folds'])}",
    )
    X, y, weight, offset = columns(found, data)
    fingerprint = digest(X, y, weight, offset)
    # the fit is to columns less some constants
    if fingerprint != data["sha256"] and data["center"] is not None:
        X = X - np.array(data["center"], float)
        fingerprint = digest(X, y, weight, offset)
    if fingerprint != data["sha256"]:
        raise Rejected(
            f"the certificate is of other data: their SHA-256 is {fingerprint[:12]}…, not {data['sha256'][:12]}…"
        )
    X = np.column_stack([X, np.ones(len(X))]) if says["intercept"] else X
    p = X.shape[1]
    loss = _loss(says["loss"], y)
    _require(bool((weight >= 0).all()), "weights must be 0 or more")
    folds = [_fold(fold, weight, planned) for fold in says["folds"]]
    _require(len({fold.number for fold in folds}) == len(folds), "a fold occurs twice")
    slope = np.zeros(p) if says["l1"] is None else _numbers(says["l1"], "l1", p, 0.0)
    low, high = np.full(p, -np.inf), np.full(p, np.inf)
    if says["bounds"] is not None:
        _require(
            isinstance(says["bounds"], list) and len(says["bounds"]) == 2,
            "bounds must be two lists",
        )
        low, high = (
            _bounds(each, p, fill)
            for each, fill in zip(says["bounds"], (-np.inf, np.inf), strict=True)
        )
        _require(bool((low <= high).all()), "bounds leave a coefficient no place")
    penalty, times = _penalty(says["penalty"], p), _number(says["times"], "times", 0.0)
    hint, name = _numbers(says["theta"], "theta", p), says["loss"]["name"]
    parts = (
        X,
        y,
        weight,
        offset,
        penalty,
        times,
        loss,
        name == "squared",
        says["intercept"],
        hint,
        folds,
        slope,
        low,
        high,
    )
    return Problem(*parts, planned, name not in ("squared", "pseudo_huber"))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Rejected(f"the certificate is not one: {what}.")


def _record(value: Any, keys: set[str], what: str, format: Any = FORMAT) -> dict[str, Any]:
    """Return an object that has these entries and no others."""
    _require(isinstance(value, dict), f"{what} must be an object")
    if type(format) is not int or format != FORMAT:
        raise Rejected(
            f"its format is {format!r}; this program reads format {FORMAT}. Write the certificate again."
        )
    for words, names in (
        ("lacks", keys - value.keys()),
        ("has an unknown entry", value.keys() - keys),
    ):
        _require(not names, f"{what} {words} {', '.join(sorted(names))}")
    return value


def _number(value: Any, what: str, least: float = -np.inf) -> float:
    if type(value) is float and abs(value) <= sys.float_info.max and value >= least:
        return value  # without a message for each of many
    real = isinstance(value, int | float) and not isinstance(value, bool)
    _require(real and abs(value) <= sys.float_info.max, f"{what} must be a finite number")
    _require(value >= least, f"{what} must be {least:g} or more")
    return float(value)


def _numbers(value: Any, what: str, length: int | None = None, least: float = -np.inf) -> Array:
    _require(
        isinstance(value, list) and length in (None, len(value)),
        f"{what} must be a list of {length or 'some'} numbers",
    )
    return np.array([_number(each, what, least) for each in value], float)


def _whole(value: Any, what: str, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise Rejected(f"the certificate is not one: {what} must be a whole number below {limit}.")
    return value


def _rows(value: Any, what: str, limit: int) -> Array:
    _require(isinstance(value, list), f"{what} must be a list of rows")
    for each in value:
        _whole(each, what, limit)
    _require(len({*value}) == len(value), f"{what} has a row twice")
    return np.array(value, int)


def _bounds(value: Any, length: int, fill: float) -> Array:
    _require(
        isinstance(value, list) and len(value) == length,
        f"bounds must be lists of {length} numbers",
    )
    return np.array([fill if each is None else _number(each, "a bound") for each in value], float)


def _penalty(value: Any, p: int) -> Array:
    """Return P, from a diagonal or rows; it must be symmetric and positive semidefinite."""
    _require(
        isinstance(value, list) and len(value) == p,
        f"penalty must be a list of {p} numbers or rows",
    )
    if not any(isinstance(row, list) for row in value):
        return np.diag(_numbers(value, "penalty", p, 0.0))
    out = np.stack([_numbers(row, "penalty", p) for row in value])
    _require(np.array_equal(out, out.T), "penalty must be symmetric")
    eigenvalues = np.linalg.eigvalsh(out)
    _require(
        eigenvalues[0] >= -ROUNDING * p * abs(eigenvalues).max(),
        "penalty has a negative eigenvalue",
    )
    return out


def _loss(value: Any, y: Array) -> Loss:
    _require(isinstance(value, dict), "loss must be an object")
    name = value.get("name")
    if not isinstance(name, str) or name not in NAMED:
        raise Rejected(f"the certificate has the loss {name!r}; known are {', '.join(NAMED)}.")
    parameters = (
        _record(value, {"name", *inspect.signature(NAMED[name]).parameters}, f"the loss {name}")
        | {}
    )
    del parameters["name"]
    for key, each in parameters.items():
        _require(_number(each, key) > 0, f"{key} of the loss must be above 0")
    if name == "tweedie":
        _require(1 < parameters["power"] < 2, "power of the loss must be between 1 and 2")
    low, high = DOMAINS[name]
    _require(
        bool(((low <= y) & (y <= high)).all()), f"the response leaves the domain of the loss {name}"
    )
    return named(name, **parameters)


def _data(value: Any) -> dict[str, Any]:
    data = _record(value, DATA_KEYS, "data")
    _require(isinstance(data["sha256"], str), "data.sha256 must be a text")
    _whole(data["rows"], "data.rows", 2**62)
    _require(isinstance(data["features"], list), "data.features must be a list of names")
    names = [
        *data["features"],
        data["response"],
        *(data[key] for key in ("weight", "offset") if data[key] is not None),
    ]
    _require(all(isinstance(name, str) for name in names), "names of columns must be texts")
    _require(len({*names}) == len(names), "two columns of the data have one name")
    if data["center"] is not None:
        _numbers(data["center"], "data.center", len(data["features"]))
    if data["labels"] is not None:
        labels = data["labels"]
        texts = (
            isinstance(labels, list)
            and len(labels) == 2
            and all(isinstance(label, str) for label in labels)
        )
        _require(texts and labels[0] != labels[1], "data.labels must be two texts")
    return data


def _fold(value: Any, weight: Array, planned: int) -> Fold:
    fold, n = _record(value, FOLD_KEYS, "a fold"), len(weight)
    rows, held = (
        _rows(fold["rows"], "rows of a fold", n),
        _rows(fold["held"], "held rows of a fold", n),
    )
    weights = _numbers(fold["weights"], "weights of a fold", len(rows), 0.0)
    losses = _numbers(fold["losses"], "losses of a fold", len(held))
    changed = dict(zip(fold["rows"], weights.tolist(), strict=True))
    _require(
        len(held) > 0 and changed.keys() >= {*fold["held"]},
        "a fold must hold out rows whose weights it changes",
    )
    before, now = weight[held], [changed[row] for row in fold["held"]]
    _require(
        bool(((now < before) | (before == 0)).all()),
        "a fold keeps the weight of a row that it holds out",
    )
    times, error = (
        _number(fold["times"], "times of a fold", 0.0),
        _number(fold["error"], "error of a fold", 0.0),
    )
    return Fold(rows, weights, times, held, losses, error, _whole(fold["fold"], "fold", planned))
