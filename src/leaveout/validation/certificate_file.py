"""Certificates: files that state what is proved of each fold, for a program that shares no code
with this one to check.

`verify/` has that program, `leaveout_verify`. Its README states the theorem; the format is what its
`problem.py` reads.
"""

import hashlib
import importlib.metadata
import json
import os
import zipfile
from pathlib import Path

import numpy as np

from .._runtime import NamedValues, NumpyArray, pd
from ..linalg import DenseDesign, Predictors, SourcedDesign, SparseDesign
from ..models.glm import GLM, kinks, losses
from ..optimize import Fit
from ..plans import Plan

CLAIM = "In each fold, the sum over its held-out rows of |loss - loss of the exact refit| is at most its error."


def named_loss(loss: losses.AbstractLoss) -> NamedValues | None:
    """Return the name and the parameters of a loss as a certificate has them, or None if the
    verifier does not know it.
    """
    link = getattr(loss, "link_name", None)
    if isinstance(loss, losses.Binomial):
        name = {"logit": "logistic", "probit": "probit", "cloglog": "cloglog"}.get(loss.link)
        return None if name is None else {"name": name}
    if isinstance(loss, losses.Squared):
        return {"name": "squared"} if link == "identity" else None
    if isinstance(loss, losses.PseudoHuber):
        return {"name": "pseudo_huber", "delta": float(loss.delta)}
    if link != "log":
        return None
    if isinstance(loss, losses.Poisson):
        return {"name": "poisson"}
    if isinstance(loss, losses.Gamma):
        return {"name": "gamma", "shape": float(loss.shape)}
    if isinstance(loss, losses.NegativeBinomial):
        return {"name": "negative_binomial", "dispersion": float(loss.dispersion)}
    if isinstance(loss, losses.Tweedie) and loss.kind == "compound":
        return {"name": "tweedie", "power": float(loss.power), "dispersion": float(loss.dispersion)}
    return None


def certify(
    fit: Fit | None, plan: Plan, values: NumpyArray, error: NumpyArray, proved: NumpyArray
) -> "tuple[dict, pd.DataFrame]":
    """Return what a certificate says, and the table of the data that it is about."""
    if fit is None:
        raise ValueError(
            "certificate: this estimate has no fit and no data, as `without_data` leaves it; make it again."
        )
    model = fit.quadratic.predictors
    objective = fit.objective
    kinked = None
    if isinstance(objective, GLM):
        objective = objective.as_given
        kinked = kinks(objective)
    if kinked is not None:
        model = kinked.whole.smooth if kinked.whole.norms is None else None
    loss = named_loss(objective.loss_function) if isinstance(objective, GLM) else None
    is_supported = (
        model is not None
        and model.norms is None
        and isinstance(model.design, DenseDesign | SparseDesign | SourcedDesign)
        and model.design.shape[0] == len(model.y)
    )
    if model is None or not isinstance(objective, GLM) or loss is None or not is_supported:
        raise ValueError(
            "certificate: the verifier knows a GLM of one output with a quadratic or l1 penalty, or bounds, and a squared, "
            "logistic, probit, cloglog, Poisson, gamma, negative binomial, Tweedie or pseudo-Huber loss of its usual link; "
            f"this is {getattr(objective, 'shown', type(objective).__name__)} with the loss "
            f"{type(getattr(objective, 'loss_function', None)).__name__} and the penalty "
            f"{type(getattr(objective, 'penalty', None)).__name__}."
        )
    if not proved.any():
        raise ValueError(
            "certificate: no error is proved; take Certified() or Exact(), whose errors are."
        )
    n = len(model.y)
    features = objective.num_features
    labels = None
    if len(objective.labels.classes) == 2:
        labels = [str(label) for label in objective.labels.classes]
    X = np.asarray(objective.lines.rows(np.arange(n)), float)[:, :features]
    base, times = model.full_weights
    offset = np.broadcast_to(np.asarray(model.offset, float), n)
    *names, response, weight_name, offset_name = _distinct(
        [*map(str, objective.names[:features]), "y", "weight", "offset"]
    )
    table = pd.DataFrame(X, columns=names)
    if labels is None:
        table[response] = model.y
    else:
        table[response] = np.array(labels)[np.asarray(model.y, int)]
    weighted = bool((base != 1).any())
    shifted = bool(offset.any())
    if weighted:
        table[weight_name] = base
    if shifted:
        table[offset_name] = offset
    parts = (np.ascontiguousarray(part, "<f8").tobytes() for part in (X, model.y, base, offset))
    data = {
        "sha256": hashlib.sha256(b"".join(parts)).hexdigest(),
        "rows": n,
        "features": names,
        "response": response,
        "weight": weight_name if weighted else None,
        "offset": offset_name if shifted else None,
        "center": None,
        "labels": labels,
    }
    penalty = model.penalty
    if not isinstance(penalty, NumpyArray):
        penalty = penalty.toarray()
    diagonal = np.diag(penalty)
    if np.array_equal(penalty, np.diag(diagonal)):
        penalty = diagonal
    folds = _folds(model, plan, values, error, proved)
    statement = {
        "format": 2,
        "version": importlib.metadata.version("leaveout"),
        "claim": CLAIM,
        "plan": {"folds": plan.num_refits, "proved": len(folds)},
        "data": data,
        "intercept": bool(objective.intercept),
        "loss": loss,
        "penalty": penalty.tolist(),
        "times": float(times),
        "l1": None,
        "bounds": None,
        "theta": np.asarray(objective.parameters.unconstrained(fit.parameters)).tolist(),
        "folds": folds,
    }
    if kinked is not None:
        limits = [
            [value if np.isfinite(value) else None for value in bound.tolist()]
            for bound in kinked.whole.bounds
        ]
        statement |= {"l1": kinked.whole.slope.tolist(), "bounds": limits}
    text = json.dumps(statement, sort_keys=True).encode()
    return statement | {"sha256": hashlib.sha256(text).hexdigest()}, table


def _folds(
    model: Predictors, plan: Plan, values: NumpyArray, error: NumpyArray, proved: NumpyArray
) -> list[NamedValues]:
    """Return the claim on each proved refit.

    Rows, weights, the held-out rows with their losses, and the error.
    """
    out = []
    n = len(model.y)
    base, _ = model.full_weights
    for k in np.flatnonzero(proved & np.isfinite(error)):
        entries = slice(plan.indptr[k], plan.indptr[k + 1])
        # others have no loss
        rows = plan.index[entries]
        held = plan.held[entries] & np.isfinite(values[entries])
        if not held.any():
            continue
        weight = np.ones(n)
        weight[rows] = plan.weight[entries]
        (omega,), (times,) = model.weigh(weight[None])
        # weights of classes that are balanced change everywhere
        changed = np.union1d(rows, np.flatnonzero(omega != base))
        fold = {
            "fold": int(k),
            "rows": changed.tolist(),
            "weights": omega[changed].tolist(),
            "times": float(times),
            "held": rows[held].tolist(),
            "losses": values[entries][held].tolist(),
            "error": float(error[k]),
        }
        out.append(fold)
    return out


def _distinct(names: list[str]) -> list[str]:
    """Put names in brackets until no earlier column has them."""
    out = list[str]()
    for name in names:
        while name in out:
            name = f"({name})"
        out.append(name)
    return out


def write(
    path: str | os.PathLike[str],
    statement: dict,
    table: "pd.DataFrame",
    data: str | os.PathLike[str] | None,
) -> None:
    """Write a certificate and, if `data` names a file, the data."""
    Path(path).write_text(json.dumps(statement))
    if data is None:
        return
    kind = Path(data).suffix
    if kind == ".parquet":
        table.to_parquet(data)
    elif kind == ".csv":
        table.to_csv(data, index=False, float_format="%.17g")
    elif kind == ".npz":
        with zipfile.ZipFile(data, "w") as archive:
            for name in table:
                with archive.open(f"{name}.npy", "w") as file:
                    np.save(file, np.array(table[name].tolist()))
    else:
        raise ValueError(f"certificate: data= must end with .parquet, .csv or .npz; got {data}.")
