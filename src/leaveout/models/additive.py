"""Additive models: smooth functions of columns beside linear terms, in a predictor of any loss of the linear models.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + Σ_j f_j(x_n), y_n) + ½ Σ_j λ_j βᵀS_jβ

It is `lo.GLM` under a quadratic penalty: its design holds the bases of the terms, its penalty their roughness, and whatever is
proved of refits of that is proved here.
"""

import itertools
from typing import Any, Self

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._jax import Array, float64, followed, jnp, numpy_of, static
from .._learned import learned
from .._read import Names, counted, index_of
from . import losses, penalties
from ._terms import Bound, Smooth, bound, column, frame_of, parsed
from .linear import GLM

Strengths = ArrayLike | dict[str, float]


class Roughness(penalties.AbstractPenalty):
    """`½ Σ_j λ_j coefᵀS_jcoef`, every S_j of the coefficients from one to another, of `spans`."""

    strengths: Float[np.ndarray, " smooths"]
    matrices: tuple[Float[np.ndarray, "_ _"], ...]
    spans: tuple[tuple[int, int], ...] = static(default=())

    def __call__(self, coef: Array) -> Array:
        parts = [coef[..., a:b] for a, b in self.spans]
        each = [jnp.sum(c * (c @ matrix)) for c, matrix in zip(parts, self.matrices, strict=True)]
        return sum((0.5 * s * part for s, part in zip(self.strengths, each, strict=True)), jnp.zeros(()))

    def second(self, features: int) -> np.ndarray:
        xp = numpy_of(self.strengths)
        total = xp.zeros((features, features))
        for strength, matrix, (a, b) in zip(self.strengths, self.matrices, self.spans, strict=True):
            total = total + strength * xp.pad(xp.asarray(matrix), ((a, features - b),) * 2)
        return total

    @property
    def quadratic(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Roughness({np.array2string(np.asarray(self.strengths), precision=4)})"


class Reader:
    """The columns of a design by a table: linear terms as formulaic makes them, then the smooth ones."""

    def __init__(self, linear: Any, smooths: tuple[Bound, ...]):
        self.linear, self.smooths = linear, smooths

    def __call__(self, data: Any) -> pd.DataFrame:
        frame = frame_of(data, "X_new")
        return self.joined(frame, [term.design(frame) for term in self.smooths])

    def joined(self, frame: pd.DataFrame, designs: list[Float[np.ndarray, "rows _"]]) -> pd.DataFrame:
        """The linear columns beside designs of the smooth terms."""
        names = [f"{term.label}.{k + 1}" for term, x in zip(self.smooths, designs, strict=True) for k in range(x.shape[1])]
        smooth = pd.DataFrame(np.hstack(designs), index=frame.index, columns=names)
        if self.linear is None:
            return smooth
        linear = pd.DataFrame(self.linear.get_model_matrix(frame, na_action="raise"))
        return pd.concat([linear.drop(columns="Intercept", errors="ignore").astype(float), smooth], axis=1)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where the coefficients of each smooth term stand, the first after those of the linear columns."""
        first = 0 if self.linear is None else sum(name != "Intercept" for name in self.linear.column_names)
        ends = np.cumsum([first, *(len(term.basis.penalties[0]) for term in self.smooths)]).tolist()
        return list(itertools.pairwise(ends))


class Additive(GLM):
    """An additive model as an objective: smooth functions of columns beside linear terms.

    `terms` is a formula, `"y ~ s(x) + te(a, b) + z"` (`pip install 'leaveout[formula]'`), or a list of `lo.s(...)`,
    `lo.te(...)` and pieces of a formula, with `y` the name of a column or an array. `data` is a table (pandas, Polars, a dict);
    `loss`, `sample_weight`, `offset` are as in `lo.GLM`, the latter also names of columns. `smoothing` is a λ for each
    penalty, in the order of `strengths` or by these names, or one for all: `lo.smooth` chooses them. A λ counts in units in
    which one is neither much nor little for a loss whose second derivative is one.

    Terms sum to zero over the rows, but for random effects and those that numbers multiply. New rows are tables
    with the same columns: `lo.interval(fit, new)`, `lo.predict(fit, new)`.

    Raises ValueError on missing values, terms that columns do not bear, and whatever `lo.GLM` refuses; KeyError on columns
    that are not there.
    """

    strengths: tuple[str, ...] = static(default=())

    @float64
    def __init__(
        self,
        terms: str | Smooth | list[str | Smooth],
        data: Any,
        y: str | ArrayLike | None = None,
        loss: str | losses.AbstractLoss = "squared",
        *,
        smoothing: Strengths = 1.0,
        sample_weight: str | ArrayLike | None = None,
        offset: str | ArrayLike | None = None,
    ):
        formula, frame = parsed(terms), frame_of(data)
        y = formula.response if y is None else y
        if y is None or (formula.response is not None and y is not formula.response):
            got = "neither" if y is None else f"{formula.response!r} and y={y if isinstance(y, str) else '...'!r}"
            raise ValueError(
                f"Additive: name the response once, on the left of the formula or as y=; got {got}. Losses go by loss=."
            )
        if not formula.smooths:
            raise ValueError("Additive: there is no smooth term; that is lo.GLM.")
        given = {"y": y, "sample_weight": sample_weight, "offset": offset}
        y, sample_weight, offset = (column(frame, of) if isinstance(of, str) else of for of in given.values())
        smooths, designs = zip(*(part for term in formula.smooths for part in bound(term, frame)), strict=True)
        read = Reader(_linear(formula.rest, frame), smooths)
        matrices = tuple(matrix for term in smooths for matrix in term.basis.penalties)
        spans = tuple(span for term, span in zip(smooths, read.spans, strict=True) for _ in term.basis.penalties)
        self.strengths = tuple(name for term in smooths for name in term.strengths)
        penalty = Roughness(_values(self.strengths, smoothing), matrices, spans)
        resolve = lambda y: (losses.resolve(loss), y, ())
        self._bind(
            read.joined(frame, list(designs)),
            y,
            resolve,
            penalty,
            sample_weight,
            offset,
            formula.intercept,
            None,
            learned(formula.rest or ""),
        )
        if self.classes:
            raise TypeError("Additive: the multinomial loss has several predictors; give one with one.")
        own = self.labels.index
        vars(self)["labels"] = Names(None if index_of(data) is None and counted(own) else own, read)

    @property
    def smoothing(self) -> dict[str, float]:
        """λ of each penalty, by name."""
        assert isinstance(self.penalty, Roughness)
        return dict(zip(self.strengths, np.asarray(self.penalty.strengths).tolist(), strict=True))

    @property
    def smooths(self) -> dict[str, tuple[Bound, slice]]:
        """The smooth terms by name, each with the place of its coefficients."""
        read: Any = self.labels.read
        return {term.label: (term, slice(*span)) for term, span in zip(read.smooths, read.spans, strict=True)}

    @float64
    def smoothed(self, smoothing: Strengths | None = None, **named: Any) -> Self:
        """The same model under other λ: an array, a dict, or by their names, as `lo.tune` has them."""
        assert isinstance(self.penalty, Roughness)
        values = _values(self.strengths, named if smoothing is None else smoothing)
        return self.under(Roughness(values, self.penalty.matrices, self.penalty.spans))


def _values(names: tuple[str, ...], given: Any) -> Any:
    """λ in the order of their names."""
    if isinstance(given, dict):
        if {*given} != {*names}:
            raise ValueError(f"Additive: smoothing is a λ for each of {', '.join(names)}; got {', '.join(map(str, given))}.")
        given = [given[name] for name in names]
    if followed(given):
        return jnp.asarray(given)
    try:
        values = np.broadcast_to(np.asarray(given, np.float64), len(names)).copy()
    except ValueError:
        raise ValueError(f"Additive: smoothing is one λ or {len(names)}: {', '.join(names)}; got {given!r}.") from None
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f"Additive: every λ must be finite and not negative; got {given!r}.")
    return values


def _linear(rest: str, frame: pd.DataFrame) -> Any:
    """How formulaic makes the columns of the linear terms of a table; None where there are none."""
    if not rest:
        return None
    from formulaic import model_matrix
    from formulaic.errors import FormulaicError

    try:
        return model_matrix(rest, frame, na_action="raise").model_spec
    except (FormulaicError, KeyError, ValueError, SyntaxError, TypeError, NameError) as error:
        raise ValueError(f"Additive: {rest!r} could not be used ({error}).") from error
