"""Least squares of many targets on the same columns, which come in bands, each with a ridge penalty
of its own.

    F_t(θ, w) = Σ_n w_n s_n ½ (y_nt − x_nᵀβ_t − μ_t)² + Σ_b α_tb/2 ‖β_tb‖²,
    b the bands, t the targets

Every target is a model of its own. The targets share the columns, and so a factor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from ..._runtime import AnyTuple, NumpyArray, Strings
from ...data import Names, codes, floats, match_labels
from .rows import column, design


@dataclass(frozen=True, eq=False, init=False)
class BandedRidge:
    """Linear regression of many targets with a ridge penalty for each band of columns (banded ridge
    regression).

        F_t(θ, w) = Σ_n w_n s_n ½ (y_nt − x_nᵀβ_t − μ_t)² + Σ_b α_tb/2 ‖β_tb‖²,
        b the bands, t the targets

    `lo.path(model, alphas, plan)` cross-validates candidates of penalties, `lo.tune(model, (low,
    high), plan)` descends the gradient in their logarithms. The intercept is not penalised.

    Parameters
    ----------
    X : array or mapping of arrays, shape (units, features)
        Columns; or matrices of the same units by the names of bands.
    Y : array, shape (units, targets) or (units,)
        Targets.
    bands : sequence, shape (features,), optional
        Label of the band of each column. The default is one band, or those of a mapping.
    sample_weight : array, shape (units,), optional
        Weights s, positive.
    intercept : bool, default: True
        Whether there is an intercept.
    shared : bool, default: False
        Whether penalties are the same for all targets; otherwise each target has its own.

    Raises
    ------
    ValueError
        If values are missing or infinite, lengths differ, or weights are not positive.
    TypeError
        If an argument holds no numbers, or X is sparse.

    Examples
    --------
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> lo.tuning.BandedRidge(
    ...     {"a": rng.normal(size=(9, 2)), "b": rng.normal(size=(9, 3))}, rng.normal(size=(9, 4))
    ... )
    BandedRidge(9 units, 4 targets; bands a: 2, b: 3)
    """

    design: Float[NumpyArray, "units features"]
    y: Float[NumpyArray, "units targets"]
    band: Int[NumpyArray, " features"]
    bands: AnyTuple
    names: Strings
    targets: AnyTuple
    sample_weight: Float[NumpyArray, " units"] | None
    intercept: bool
    shared: bool
    labels: Names

    def __init__(
        self,
        X: ArrayLike | Mapping[Any, ArrayLike],
        Y: ArrayLike,
        bands: Sequence[Any] | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        intercept: bool = True,
        shared: bool = False,
    ):
        if isinstance(X, Mapping) and bands is not None:
            raise ValueError(
                "BandedRidge: a mapping of matrices names the bands: give no `bands` beside it."
            )
        matrices = X if isinstance(X, Mapping) else {"all": X}
        if not matrices:
            raise ValueError("BandedRidge: X holds no band.")
        labels, *parts, y, weight = match_labels(
            "BandedRidge",
            **{f"X{k}": part for k, part in enumerate(matrices.values())},
            Y=Y,
            w=sample_weight,
        )
        designs = [design("BandedRidge", part, False) for part in parts]
        if any(not isinstance(x, NumpyArray) for x, _ in designs):
            raise TypeError("BandedRidge: X must be dense; give X.toarray().")
        if len({len(x) for x, _ in designs}) > 1:
            raise ValueError(
                f"BandedRidge: the bands have {[len(x) for x, _ in designs]} rows; they must be of the same units."
            )
        x = np.concatenate([np.asarray(x, float) for x, _ in designs], 1)
        code = np.repeat(np.arange(len(designs)), [x.shape[1] for x, _ in designs])
        band_labels = tuple(matrices)
        if bands is not None:
            if len(bands) != x.shape[1]:
                raise ValueError(
                    f"BandedRidge: bands must be one label a column, {x.shape[1]} of them; got {len(bands)}."
                )
            code, levels = codes("BandedRidge", "bands", bands)
            band_labels = tuple(levels.tolist())
        targets = _targets(y, len(x))
        if weight is not None:
            weight = column("BandedRidge", "sample_weight", weight, len(x))
            if (weight <= 0).any():
                raise ValueError(
                    "BandedRidge: sample_weight must be positive: leave other rows out of the data."
                )
        vars(self).update(
            design=x,
            y=targets,
            band=np.asarray(code, int),
            bands=band_labels,
            names=tuple(name for _, columns in designs for name in columns),
            targets=tuple(getattr(y, "columns", range(targets.shape[1]))),
            sample_weight=weight,
            intercept=bool(intercept),
            shared=bool(shared),
            labels=labels,
        )

    @property
    def num_units(self) -> int:
        """Number of units, the rows of X."""
        return len(self.design)

    def __repr__(self) -> str:
        sizes = np.bincount(self.band, minlength=len(self.bands))
        shown = ", ".join(
            f"{name}: {size}" for name, size in zip(self.bands[:6], sizes, strict=False)
        )
        ellipsis = ", …" if len(self.bands) > 6 else ""
        return f"BandedRidge({self.num_units} units, {self.y.shape[1]} targets; bands {shown}{ellipsis})"


def _targets(Y, n: int) -> Float[NumpyArray, "units targets"]:
    y = floats("BandedRidge", "Y", Y)
    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2 or len(y) != n or not y.shape[1]:
        raise ValueError(
            f"BandedRidge: Y must be [units, targets], of the {n} rows of X; got shape {np.shape(Y)}."
        )
    wrong = np.flatnonzero(~np.isfinite(y).all(0))
    if wrong.size:
        raise ValueError(
            f"BandedRidge: Y holds NaN or infinite values, in {wrong.size} targets, the first {wrong[:5].tolist()}; drop these."
        )
    return y
