"""Log densities of held-out units in the form that ArviZ's `compare` takes."""

import dataclasses
import importlib
from typing import Any

import numpy as np

from .._runtime import FloatArray, pd


def elpd_data(
    losses: FloatArray,
    baseline: FloatArray,
    names: "pd.Index",
    se: float,
    *,
    suspect: bool,
    k: FloatArray | None = None,
    draws: int = 1,
) -> Any:
    """Build ArviZ's `ELPDData` from the held-out and no-update −log densities of the units.

    `se` is the standard error of the mean. ArviZ takes sums over units, so means are multiplied by
    n. `p` is the sum of the differences between held-out and no-update losses. `k` is Pareto's of
    each unit, if draws were weighed.
    """
    elpd_class = _elpd_class()
    n = len(losses)
    import xarray

    pointwise = xarray.DataArray(-losses, dims="unit", coords={"unit": np.asarray(names)})
    details = {
        "se": n * se,
        "n_samples": draws,
        "n_data_points": n,
        "warning": suspect,
        "scale": "log",
    }
    elpd = -float(losses.sum())
    p = float(np.sum(losses - baseline))
    if k is not None:
        details |= {
            "good_k": 0.7,
            "pareto_k": xarray.DataArray(k, dims="unit", coords=pointwise.coords),
        }
    if dataclasses.is_dataclass(elpd_class):
        constructor: Any = elpd_class
        kind = {}
        if "kind" in {field.name for field in dataclasses.fields(elpd_class)}:
            kind = {"kind": "loo"}
        return constructor(**kind, elpd=elpd, p=p, elpd_i=pointwise, **{"good_k": None, **details})
    # in ArviZ's own order, by which it prints
    entries = {
        "elpd_loo": elpd,
        "se": details.pop("se"),
        "p_loo": p,
        **details,
        "loo_i": pointwise.rename("loo_i"),
    }
    return elpd_class(data=list(entries.values()), index=list(entries))


def _elpd_class() -> Any:
    # from version 1.3 on, from version 1 on, and before
    for module, name in (
        ("arviz_stats.utils", "ELPDDataLOO"),
        ("arviz_stats.utils", "ELPDData"),
        ("arviz", "ELPDData"),
    ):
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError("to_arviz needs ArviZ: pip install 'leaveout[arviz]'.")
