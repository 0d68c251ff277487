"""Least squares on columns far from zero, or nearly collinear: the same F in coordinates where
float64 loses no digits.

    Z = X B,      coef = B θ,      X with the intercept's column of ones at its end

Without a penalty the columns of √s Z are orthonormal, B = R⁻¹ of √s X = QR; under a penalty B only
centres columns. Products with B are sums of products of slices of numbers, each without rounding
(K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, Error-free transformations of matrix multiplication,
2012), so that entries of Z are off by a unit of their last place, whatever cancels. `Rounding`
counts this as a further column.
"""

import copy
import math
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from jaxtyping import Float
from numpy import linalg

from ..._runtime import NumpyArray, UnitFlags, static
from ...linalg import UNIT
from ...objectives import Matrix, PerUnit, Units, as_stored
from . import losses, penalties
from .glm import GLM

RowColumns = Float[NumpyArray, "rows columns"]
SLICES = 5  # slices of a number: 100 bits, so that 10¹³ may cancel
# mean by standard deviation, from which a column beside others that span the constant is centred
CENTRED_FROM = 100
DEPENDENT = 1e-11  # pivot of columns of length one, below which one depends on those before


class OrthogonalGLM(GLM):
    """A `GLM` in other coordinates.

    Natural parameters are of the columns as given, which `as_given` has.
    """

    shown = "GLM"
    further_columns: ClassVar[int] = 1  # rounding of entries, which proofs count as a column
    original: GLM = static()
    basis: Matrix  # B
    is_shift: bool = static()  # whether B only centres columns

    def __init__(self, original: GLM, basis: Matrix, is_shift: bool):
        vars(self).update(vars(original))
        vars(self).update({"original": original, "basis": as_stored(basis), "is_shift": is_shift})
        vars(self)["design"] = as_stored(self.coordinates(original.design))

    @property
    def as_given(self) -> GLM:
        return self.original

    def coordinates(self, rows: Any) -> Float[NumpyArray, "rows params"]:
        if not self.is_shift:
            return product(rows, self.basis)[0]
        centred = np.array(rows, float)
        centred[:, :-1] += self.basis[-1, :-1]
        return centred

    def under(self, penalty: penalties.PenaltyLike) -> Any:
        model = self.original.under(penalty)
        if self.is_shift:
            return OrthogonalGLM(model, self.basis, True)
        return model

    def relearn(self, seen: UnitFlags) -> Self:
        model = copy.copy(self)
        vars(model)["design"] = as_stored(self.coordinates(self.original.relearn(seen).design))
        return model

    def _natural(self, theta):
        return super()._natural(theta @ self.basis.T)

    def _to_unconstrained(self, parameters):
        return linalg.solve(self.basis, super()._to_unconstrained(parameters))

    @property
    def units(self) -> Units:
        return replace(super().units, features=self.original.units.features)


def orthogonal_form(model: Any) -> OrthogonalGLM | None:
    """Return a model in coordinates where its columns are orthogonal, or else centred.

    None where neither is to be had.
    """
    if type(model) is not GLM or model.classes or not isinstance(model.design, NumpyArray):
        return None
    weight = model.row_weights
    plain = is_least_squares(model) and isinstance(model.penalty, penalties.Zero) and not model.cut
    basis = None
    if plain:
        basis = _orthogonal_basis(model, weight)
    if basis is not None:
        return OrthogonalGLM(model, basis, False)
    if not (model.intercept or plain):
        return None
    x = model.design[:, : model.num_features]
    basis = np.eye(model.design.shape[1])
    mean = weight @ x / weight.sum()
    off_centre = np.abs(mean) > (1 if model.intercept else CENTRED_FROM) * np.sqrt(
        weight @ (x - mean) ** 2 / weight.sum()
    )
    places = np.array([-1])
    constant = np.ones(1)
    if not model.intercept:  # columns near zero, such as those of a factor, may span the constant
        off_centre &= np.ptp(x, 0) > 0
        places = np.flatnonzero(~off_centre)
        constant = linalg.lstsq(x[:, places], np.ones(len(x)))[0]
        if not np.allclose(x[:, places] @ constant, 1, rtol=0, atol=DEPENDENT):
            return None
    basis[np.ix_(places, np.flatnonzero(off_centre))] = -np.outer(constant, mean[off_centre])
    if off_centre.any():
        return OrthogonalGLM(model, basis, model.intercept)
    return None


def is_least_squares(model: Any) -> bool:
    """Tell whether the loss is half the squared error of the linear predictor."""
    loss = getattr(model, "loss_function", None)
    return isinstance(loss, losses.Squared) and loss.link_name == "identity"


def _orthogonal_basis(model: GLM, weight: PerUnit) -> Matrix | None:
    """Return B; None if columns depend on one another, or so much cancels that entries of Z would
    lose digits.
    """
    x = np.asarray(model.design)
    count = model.num_features
    rows = np.sqrt(weight)[:, None] * (np.roll(x, 1, axis=1) if model.intercept else x)
    length = linalg.norm(rows, axis=0)
    if not (np.isfinite(length).all() and length.all()) or len(x) < x.shape[1]:
        return None
    triangle = linalg.qr(rows / length, mode="r")
    if np.abs(np.diag(triangle)).min() < DEPENDENT:
        return None
    basis = scipy.linalg.solve_triangular(triangle, np.eye(len(triangle))) / length[:, None]
    if model.intercept:
        basis = np.roll(basis, -1, axis=(0, 1))
        basis[:, -1] = np.eye(len(basis))[-1]
    z, error = product(x, basis)
    norm = linalg.norm(z[:, :count], axis=1) + (
        1 / np.sqrt(weight.sum()) if model.intercept else 0.0
    )
    if np.all(error[:, :count] <= 0.25 * UNIT * norm[:, None]):
        return basis
    return None


def product(
    rows: Float[NumpyArray, "rows inner"], basis: Float[NumpyArray, "inner columns"]
) -> tuple[RowColumns, RowColumns]:
    """Compute a product whose entries are off by a unit of their last place and the second
    array.
    """
    inner = rows.shape[1]
    # sums of products of slices are whole numbers below 2⁵³
    bits = (53 - math.ceil(math.log2(inner + 1))) // 2
    scale = 2.0 ** np.frexp(np.abs(rows).max(0))[1]
    left = _slices(rows / scale, 1, bits)
    right = _slices(basis * scale[:, None], 0, bits)
    high, low, sizes = (np.zeros((len(rows), basis.shape[1])) for _ in range(3))
    for level in range(SLICES):
        for k in range(level + 1):
            part = left[k] @ right[level - k]
            total = high + part
            change = total - high
            low += (high - (total - change)) + (part - change)
            high = total
            sizes += np.abs(total)
    largest = np.abs(rows / scale).max(1)[:, None] * np.abs(basis * scale[:, None]).max(0)
    error = 16 * UNIT**2 * sizes + 8 * inner * (SLICES + 1) * 2.0 ** (-bits * SLICES) * largest
    return high + low, error


def _slices(numbers: RowColumns, axis: int, bits: int) -> list[RowColumns]:
    """Cut numbers into slices of so many bits, counted from the largest along an axis."""
    slices = []
    for _ in range(SLICES):
        grid = np.ldexp(1.5, np.frexp(np.abs(numbers).max(axis, keepdims=True))[1] + 52 - bits)
        slices.append((numbers + grid) - grid)
        numbers = numbers - slices[-1]
    return slices
