"""Additive models: smooth functions of columns beside linear terms, in a predictor of any loss of
the linear models.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + Σ_j f_j(x_n), y_n) + ½ Σ_j λ_j βᵀS_jβ

It is a `lo.GLM` under a quadratic penalty: its design has the bases of the terms, its penalty is
their roughness, and its refits have the same proofs.
"""

import itertools
from typing import Any, Self

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import (
    Array,
    NamedNumbers,
    Strings,
    TwoCounts,
    float64,
    is_traced,
    jnp,
    numpy_of,
    record,
    static,
)
from ...data import Names, index_of, is_default_index, stateful_remark
from ..glm import GLM, losses, penalties
from .terms import BoundTerm, Smooth, bind, column, frame_of, parse

Strengths = ArrayLike | NamedNumbers


class Roughness(penalties.AbstractPenalty):
    """Penalty `½ Σ_j λ_j coefᵀS_jcoef`, in which S_j acts on a range of coefficients, from
    `spans`.
    """

    strengths: Float[ndarray, " smooths"]
    matrices: tuple[Float[ndarray, "_ _"], ...]
    spans: tuple[TwoCounts, ...] = static(default=())

    def __call__(self, coef: Array) -> Array:
        parts = [coef[..., a:b] for a, b in self.spans]
        forms = [jnp.sum(c * (c @ matrix)) for c, matrix in zip(parts, self.matrices, strict=True)]
        return sum(
            (0.5 * s * part for s, part in zip(self.strengths, forms, strict=True)), jnp.zeros(())
        )

    def second(self, features: int) -> ndarray:
        xp = numpy_of(self.strengths)
        total = xp.zeros((features, features))
        for strength, matrix, (a, b) in zip(self.strengths, self.matrices, self.spans, strict=True):
            total += strength * xp.pad(xp.asarray(matrix), ((a, features - b),) * 2)
        return total

    quadratic = True

    def __repr__(self) -> str:
        return f"Roughness({np.array2string(np.asarray(self.strengths), precision=4)})"


@record
class Reader:
    """Columns of a design from a table: linear terms by formulaic, then the smooth terms."""

    linear: Any
    smooths: tuple[BoundTerm, ...]

    def __call__(self, data: Any) -> pd.DataFrame:
        frame = frame_of(data, "X_new")
        return self.join(frame, [term.design(frame) for term in self.smooths])

    def join(self, frame: pd.DataFrame, designs: list[Float[ndarray, "rows _"]]) -> pd.DataFrame:
        """Join the linear columns and designs of the smooth terms."""
        names = [
            f"{term.label}.{k + 1}"
            for term, x in zip(self.smooths, designs, strict=True)
            for k in range(x.shape[1])
        ]
        smooth = pd.DataFrame(np.hstack(designs), index=frame.index, columns=names)
        if self.linear is None:
            return smooth
        linear = pd.DataFrame(self.linear.get_model_matrix(frame, na_action="raise"))
        return pd.concat(
            [linear.drop(columns="Intercept", errors="ignore").astype(float), smooth], axis=1
        )

    @property
    def spans(self) -> list[TwoCounts]:
        """First and last place of the coefficients of each smooth term.

        The first term follows the linear columns.
        """
        names = () if self.linear is None else self.linear.column_names
        first = sum(name != "Intercept" for name in names)
        ends = np.cumsum([first, *(len(term.basis.penalties[0]) for term in self.smooths)]).tolist()
        return list(itertools.pairwise(ends))


class Additive(GLM):
    """Additive model: smooth functions of columns beside linear terms, under any loss of the linear
    models.

        F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + Σ_j f_j(x_n), y_n) + ½ Σ_j λ_j βᵀS_jβ

    A smooth term sums to zero over the rows, unless it is a random effect or is multiplied by a
    column of numbers. New rows are tables with the same columns: `lo.interval(fit, new)`,
    `lo.predict(fit, new)`.

    Parameters
    ----------
    terms : str or list
        Formula such as "y ~ s(x) + te(a, b) + z", which needs `pip install 'leaveout[formula]'`; or
        a list of `lo.terms.s(...)`, `lo.terms.te(...)`, `lo.terms.ti(...)` and pieces of a formula.
    data : DataFrame, Polars frame or dict
        Table with the columns.
    y : str or array, shape (units,), optional
        Response, as the name of a column or as an array, if the formula does not name it.
    loss : str or loss of lo.losses, default: "squared"
        Loss, as in `GLM`. The multinomial loss is not supported.
    smoothing : float, array or dict, default: 1.0
        Smoothing parameter λ of each penalty, in the order of `strengths` or by these names, or one
        for all. A λ of one is neither much nor little for a loss whose second derivative is one.
        `lo.smooth` chooses them.
    sample_weight : str or array, shape (units,), optional
        Weights of the rows.
    offset : str or array, shape (units,), optional
        Constants that are added to the linear predictors.

    Raises
    ------
    ValueError
        If values are missing, there is no smooth term, a term does not fit its columns, or `GLM`
        refuses the data.
    KeyError
        If a column is not in the table.
    TypeError
        If the loss is multinomial.

    See Also
    --------
    s, te, ti : Smooth terms.
    smooth : Choice of the smoothing parameters.

    Examples
    --------
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=60)
    >>> data = {"x": x, "y": np.sin(6 * x) + 0.1 * rng.normal(size=60)}
    >>> model = lo.Additive([lo.terms.s("x", bs="cr")], data, "y", smoothing=0.1)
    >>> model.smoothing
    {'s(x)': 0.1}
    """

    strengths: Strings = static(default=())

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
        formula = parse(terms)
        frame = frame_of(data)
        if y is None:
            y = formula.response
        if y is None or (formula.response is not None and y is not formula.response):
            got = "neither"
            if y is not None:
                got = f"{formula.response!r} and y={y if isinstance(y, str) else '...'!r}"
            raise ValueError(
                f"Additive: name the response once, on the left of the formula or as y=; got {got}. Losses go by loss=."
            )
        if not formula.smooths:
            raise ValueError("Additive: there is no smooth term; that is lo.GLM.")
        y, sample_weight, offset = (
            column(frame, argument) if isinstance(argument, str) else argument
            for argument in (y, sample_weight, offset)
        )
        smooths, designs = zip(
            *(part for term in formula.smooths for part in bind(term, frame)), strict=True
        )
        reader = Reader(_linear(formula.linear, frame), smooths)
        matrices = tuple(matrix for term in smooths for matrix in term.basis.penalties)
        spans = tuple(
            span
            for term, span in zip(smooths, reader.spans, strict=True)
            for _ in term.basis.penalties
        )
        self.strengths = tuple(name for term in smooths for name in term.strengths)
        penalty = Roughness(_values(self.strengths, smoothing), matrices, spans)
        resolve = lambda y: (losses.resolve(loss), y, ())
        self._bind(
            reader.join(frame, list(designs)),
            y,
            resolve,
            penalty,
            sample_weight,
            offset,
            formula.intercept,
            None,
            stateful_remark(formula.linear or ""),
        )
        if self.classes:
            raise TypeError(
                "Additive: the multinomial loss has several predictors; give one with one."
            )
        index = self.labels.index
        if index_of(data) is None and is_default_index(index):
            index = None
        vars(self)["labels"] = Names(index, reader, table=frame, name=self.labels.name)

    @property
    def smoothing(self) -> NamedNumbers:
        """Smoothing parameter λ of each penalty, by name."""
        assert isinstance(self.penalty, Roughness)
        return dict(zip(self.strengths, np.asarray(self.penalty.strengths).tolist(), strict=True))

    @property
    def smooths(self) -> dict[str, tuple[BoundTerm, slice]]:
        """Smooth terms by name, each with the place of its coefficients."""
        read: Any = self.labels.read
        return {
            term.label: (term, slice(*span))
            for term, span in zip(read.smooths, read.spans, strict=True)
        }

    @float64
    def smoothed(self, smoothing: Strengths | None = None, **named: Any) -> Self:
        """Copy the model with other smoothing parameters λ.

        Parameters
        ----------
        smoothing : float, sequence of float or dict, optional
            The λ, as the constructor takes them.
        **named : float
            The λ by their names, as `lo.tune` passes them.

        Returns
        -------
        Additive
            The model, which shares its data with this one.
        """
        assert isinstance(self.penalty, Roughness)
        values = _values(self.strengths, named if smoothing is None else smoothing)
        return self.under(Roughness(values, self.penalty.matrices, self.penalty.spans))


def _values(names: Strings, smoothing):
    """Return λ in the order of their names."""
    if isinstance(smoothing, dict):
        if {*smoothing} != {*names}:
            raise ValueError(
                f"Additive: smoothing is a λ for each of {', '.join(names)}; got {', '.join(map(str, smoothing))}."
            )
        smoothing = [smoothing[name] for name in names]
    if is_traced(smoothing):
        return jnp.asarray(smoothing)
    try:
        values = np.broadcast_to(np.asarray(smoothing, float), len(names)).copy()
    except ValueError:
        raise ValueError(
            f"Additive: smoothing is one λ or {len(names)}: {', '.join(names)}; got {smoothing!r}."
        ) from None
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f"Additive: every λ must be finite and not negative; got {smoothing!r}.")
    return values


def _linear(formula: str, frame: pd.DataFrame):
    """Return formulaic's specification of the columns of the linear terms.

    None if there are none.
    """
    if not formula:
        return None
    from formulaic import model_matrix
    from formulaic.errors import FormulaicError

    try:
        return model_matrix(formula, frame, na_action="raise").model_spec
    except (FormulaicError, KeyError, ValueError, SyntaxError, TypeError, NameError) as error:
        raise ValueError(f"Additive: {formula!r} could not be used ({error}).") from error
