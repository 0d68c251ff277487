"""Gaussian fields on graphs: responses of sites, whose linear predictors depend on those of their
neighbours.

    y_s ~ p(y | η_s),   η_s = α + x_sᵀβ + log exposure_s + u_s,   u ~ N(0, Q(ψ)⁻¹)

F is the marginal likelihood by Laplace's method (`laplace`), exact for Gaussian responses. Unlike
that of `MRF`, its cost does not depend on cliques. A held-out site's loss is −log p(y_s |
everything seen): its likelihood, integrated over the posterior of η_s given the seen sites.
"""

from functools import cached_property, partial
from typing import Any, Literal, cast, get_args

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from ..._runtime import (
    Indices,
    ListedUnits,
    ListedValues,
    NumpyArray,
    RowNumbers,
    Strings,
    ThreeArrays,
    TwoArrays,
    conventional,
    static,
)
from ...data import Names, floats, match_labels
from ...objectives import (
    LOG_DENSITY,
    LOG_PROBABILITY,
    Costs,
    Parameters,
    Points,
    State,
    Units,
    Weights,
    as_stored,
    float64,
    one_by_one,
)
from ...plans import Edges, blocks, read_edges
from ..glm import name_among
from .base import AbstractLatentModel
from .laplace import Incidence, LaplaceEngine, LaplaceMode, Latent
from .leave_one_out import MAX_COVARIANCE_ROWS, RowsAlone, alone, rings
from .precisions import STRUCTURES, AbstractStructure, natural_of, prior_of, unconstrained_of
from .responses import FAMILIES, ResponseRows, ways

PerSite = Float[NumpyArray, " sites"]

Family = Literal["poisson", "binomial", "gaussian"]
Structure = Literal["bym2", "leroux", "car", "icar", "matern"]


class GaussianField(AbstractLatentModel):
    """Responses of the sites of a graph whose linear predictors form a Gaussian field.

        y_s ~ p(y | η_s),   η_s = α + x_sᵀβ + log exposure_s + u_s,   u ~ N(0, Q(ψ)⁻¹)

    A unit is a site. F is the marginal likelihood by Laplace's method, exact for Gaussian
    responses. `fit(...).parameters` is `{"intercept", "coef", "sd"}` and what the structure has:
    "mixing" (the spatial share), "rho" or "range" (in edges); and "noise_sd" for a Gaussian
    response. Default priors are σ ~ Gamma(2, 2) on the scale of the linear predictor (for a
    Gaussian response, of y), shares ~ Beta(2, 2), and a range of more than two edges with
    probability 0.95. The prior of the coefficients is flat.

    Parameters
    ----------
    y : array, shape (sites,)
        Responses; NaN is missing.
    edges : array, sparse matrix, graph or GeoDataFrame
        Edges `[edges, 2]`, a symmetric adjacency matrix, a networkx or libpysal graph, or a
        GeoDataFrame whose areas are neighbours where they touch.
    X : array or DataFrame, shape (sites, features), optional
        Covariates.
    family : {"poisson", "binomial", "gaussian"}, default: "poisson"
        Distribution of the response.
    structure : {"bym2", "leroux", "car", "icar", "matern"}, default: "bym2"
        Structure of the field. "bym2" has a part that depends on neighbours and one that does not.
    exposure : array, shape (sites,), optional
        Population at risk or expected counts, for "poisson".
    trials : array, shape (sites,), optional
        Number of trials of each y, for "binomial"; the default is one.
    prior : {"default"} or None, default: "default"
        Priors of the standard deviations, shares and range; None is flat.

    Raises
    ------
    ValueError
        If responses lie outside their domain, exposures are not positive, covariates are constant,
        or the graph has loops, duplicate or one-sided edges.

    See Also
    --------
    MRF : Hidden states of the sites of a graph.

    Examples
    --------
    >>> import leaveout as lo
    >>> y = np.array([3.0, 4.0, 2.0, 7.0, 9.0, 8.0])
    >>> model = lo.GaussianField(y, np.c_[np.arange(5), np.arange(1, 6)], structure="icar")
    >>> model.num_units, model.graph.names
    (6, ('sd',))
    """

    y: PerSite
    observed: Bool[NumpyArray, " sites"]
    rows: Float[NumpyArray, "sites columns"]  # a column of ones, and standardised covariates
    center: Float[NumpyArray, " features"]
    scale: Float[NumpyArray, " features"]
    offset: PerSite
    trials: PerSite
    edges: Edges
    block: Int[NumpyArray, " sites"]
    family: str = static()
    structure: str = static()
    flat: bool = static()  # whether there is no prior
    columns: Strings = static()
    labels: Names = static()

    @float64
    def __init__(
        self,
        y: ArrayLike,
        edges: Any,
        X: ArrayLike | None = None,
        *,
        family: Family = "poisson",
        structure: Structure = "bym2",
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        prior: Literal["default"] | None = "default",
    ):
        if isinstance(family, str):
            family = cast(Family, name_among(family, get_args(Family)))
        _check_choice("family", family, get_args(Family))
        _check_choice("structure", structure, tuple(STRUCTURES))
        if not (prior is None or (isinstance(prior, str) and prior == "default")):
            raise ValueError(f"GaussianField: prior must be 'default' or None; got {prior!r}.")
        self.labels, y, X, exposure, trials = match_labels(
            "GaussianField", y=y, X=X, exposure=exposure, trials=trials
        )
        self.y, self.observed = _response(y)
        count = len(self.y)
        self.trials = _sizes("trials", trials, family == "binomial", count)
        self.offset = as_stored(np.log(_sizes("exposure", exposure, family == "poisson", count)))
        _check_response(family, self.y[self.observed], self.trials[self.observed])
        self.columns = tuple(map(str, getattr(X, "columns", ())))
        self.rows, self.center, self.scale = _covariates(X, self.observed)
        self.edges, _, _ = read_edges("GaussianField", _area_graph(edges), count, self.labels.index)
        self.family = family
        self.structure = structure
        self.flat = prior is None
        min_field_blocks = 20  # least number of blocks of sites for standard errors
        self.block = blocks(
            self.edges, count, max(1, min(max(min_field_blocks, round(count**0.5)), count // 2))
        )
        self.graph.terms  # noqa: B018  raises for a graph that the structure does not support

    @cached_property
    def graph(self) -> AbstractStructure:
        """Precision of the field."""
        return STRUCTURES[self.structure](self.edges, len(self.y))

    @cached_property
    def engine(self) -> LaplaceEngine:
        y = np.where(self.observed, self.y, 0.0)
        if self.family == "binomial":
            fixed = ways(y, self.trials) / self.trials
        else:
            fixed = np.zeros(len(y))
        data = ResponseRows(
            self.rows, self.offset, y / self.trials, self.trials, fixed, FAMILIES[self.family]()
        )
        field = self.graph.field(None if self.flat else self._prior)
        sites = np.arange(self.num_units)
        incidence = Incidence(sites[None], [scipy.sparse.csr_array(term) for term in field.terms])
        return LaplaceEngine(
            Latent(data, incidence, field), np.where(self.observed, sites, -1), self.num_units
        )

    def predictions(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        kind: str,
        state: State = None,
    ) -> ListedValues:
        means = super().predictions(theta, weights, index, kind, state)
        if kind == "link":
            return means
        return self.trials[np.minimum(index, self.num_units - 1)] * means

    @property
    def costs(self) -> Costs:
        return self.engine.costs._replace(
            runs=self._runs if self.num_units <= MAX_COVARIANCE_ROWS else None
        )

    def _runs(self, like, first: NumpyArray, length: NumpyArray):
        """Return the pass over the data that computes the changes by leaving out each single
        unit.
        """
        if (length > 1).any():
            return None
        ones = np.ones((1, self.num_units))
        mode = self.engine.full_mode(np.asarray(like))
        ring = rings(mode, np.asarray(first, int), partial(self._alone, mode))
        start = mode.starts(self.engine.keeps_factors)
        if ring is None:
            return None

        def unit_changes(theta: NumpyArray) -> TwoArrays:
            changes = alone(self.engine.mode(np.reshape(theta, (1, -1)), ones, start), ring)
            return changes.losses[:, None], changes.joint

        return one_by_one(unit_changes)

    def _alone(self, mode: LaplaceMode, sites: Indices) -> RowsAlone:
        """Leave out each of some units, one by one."""
        weights = np.ones((len(sites), self.num_units))
        weights[np.arange(len(sites)), sites] = 0.0
        theta = np.repeat(mode.refits.theta, len(sites), axis=0)
        start = np.repeat(mode.starts(False), len(sites), axis=0)
        index = sites[:, None]
        losses = self.losses(theta, weights, index, index >= 0, start)[:, 0]
        return RowsAlone(losses, mode.value[0] - self.engine.mode(theta, weights, start).value)

    @property
    def _hyper(self) -> Strings:
        """Names of the parameters that follow the coefficients, as logarithms and logits."""
        return (*self.graph.names, *(("noise_sd",) if self.family == "gaussian" else ()))

    @property
    def _spread(self) -> float:
        """Scale of the linear predictor."""
        if self.family == "gaussian":
            return float(np.std(self.y[self.observed]))
        return 1.0

    def _prior(self, hyper: Float[NumpyArray, "lanes hyper"]) -> TwoArrays:
        parts = [
            prior_of(name, value, self._spread)
            for name, value in zip(self._hyper, hyper.T, strict=True)
        ]
        values, slopes = zip(*parts, strict=True)
        return np.sum(values, 0), np.stack(slopes, 1)

    @property
    def num_units(self) -> int:
        return len(self.y)

    @property
    def _row_units(self) -> RowNumbers:
        return self.engine.unit

    @property
    def units(self) -> Units:
        score = LOG_PROBABILITY
        if self.family == "gaussian":
            score = LOG_DENSITY
        return Units(
            names=self.labels.index,
            serial=True,
            blocks=self.block,
            observed=self.observed,
            target=np.where(self.observed, self.y, np.nan),
            score=score,
        )

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=self._start,
            names=lambda: ["intercept", *self.names, *self._hyper],
            undetermined=self._undetermined,
            warning=self._warning,
        )

    @property
    def names(self) -> Strings:
        """Names of the covariates."""
        return self.columns or tuple(f"x{k}" for k in range(len(self.center)))

    def _natural(self, theta):
        first = 1 + len(self.center)
        coef = theta[1:first] / self.scale
        parameters = {"intercept": np.asarray(theta[0] - coef @ self.center), "coef": coef}
        return parameters | {
            name: np.asarray(natural_of(name, v))
            for name, v in zip(self._hyper, theta[first:], strict=True)
        }

    def _to_unconstrained(self, names_by_key):
        missing = [name for name in ("intercept", "coef", *self._hyper) if name not in names_by_key]
        if missing:
            raise ValueError(
                f"GaussianField: parameters need {', '.join(map(repr, missing))}; got {sorted(names_by_key)}."
            )
        coef = np.reshape(np.asarray(names_by_key["coef"], float), -1)
        intercept = float(np.asarray(names_by_key["intercept"])) + coef @ self.center
        hyper = [
            float(unconstrained_of(name, np.asarray(names_by_key[name], float)))
            for name in self._hyper
        ]
        return np.array([intercept, *(coef * self.scale), *hyper])

    def _start(self, seed):
        y, offset, trials = (part[self.observed] for part in (self.y, self.offset, self.trials))
        mean = {
            "poisson": lambda: np.log(y.sum() / np.exp(offset).sum()),
            "binomial": lambda: np.log((y.sum() + 0.5) / (trials.sum() - y.sum() + 0.5)),
            "gaussian": lambda: y.mean(),
        }[self.family]()
        deviation = np.log(0.5 * self._spread)
        usual = {"sd": deviation, "noise_sd": deviation, "range": np.log(6.0)}
        return np.array(
            [mean, *np.zeros(len(self.center)), *(usual.get(name, 0.0) for name in self._hyper)]
        )

    def _warning(self, theta):
        share = dict(zip(self._hyper, theta[1 + len(self.center) :], strict=True))
        if share["sd"] < np.log(1e-3 * self._spread):
            return (
                "GaussianField: the field's standard deviation came out at about zero: the sites do not differ by more than "
                "the response does by itself. prior='default' keeps it off zero."
            )
        return ""

    @conventional
    def smoothed(self, fit: Any) -> pd.DataFrame:
        """Return the smoothed results of every site.

        Parameters
        ----------
        fit : Fit
            Fit of this model.

        Returns
        -------
        pandas.DataFrame
            A row for each site: its `effect` u_s and the standard deviation `sd` of it (about the
            mode, parameters held), the `linear_predictor` without exposure, and the `mean` of the
            response with it.
        """
        theta = np.asarray(fit.theta)[None]
        ones = np.ones((1, self.num_units))
        mode = self.engine.mode(theta, ones)
        sites = np.arange(self.num_units)[None]
        columns = {
            "effect": mode.u[0, : self.num_units],
            "sd": np.sqrt(mode.variance[0]),
            "linear_predictor": mode.eta[0] - self.offset,
            "mean": self.predictions(theta, ones, sites, "response")[0],
        }
        return pd.DataFrame(columns, index=self.labels.index)

    @property
    def note(self) -> str:
        missing = int(np.sum(~self.observed))
        if missing:
            return f"{missing} sites without an observation are predicted, and not scored"
        return ""


def _check_choice(name: str, value: object, facts: Strings) -> None:
    if value not in facts:
        raise ValueError(
            f"GaussianField: {name} must be one of {', '.join(map(repr, facts))}; got {value!r}."
        )


def _area_graph(edges: Any):
    """Build the graph of the areas of a GeoDataFrame that touch."""
    if not (hasattr(edges, "geometry") and hasattr(edges, "crs")):
        return edges
    try:
        from libpysal.graph import Graph
    except ImportError:
        raise ImportError(
            "GaussianField: areas need libpysal: pip install 'leaveout[spatial]'"
        ) from None
    return Graph.build_contiguity(edges, rook=False)


def _response(y) -> tuple[PerSite, Bool[NumpyArray, " sites"]]:
    y = floats("GaussianField", "y", y)
    if y.ndim != 1 or len(y) < 3:
        raise ValueError(
            f"GaussianField: y must be [sites], three at least; got shape {list(y.shape)}."
        )
    if np.isinf(y).any():
        raise ValueError(
            f"GaussianField: y holds {np.isinf(y).sum()} infinite values; NaN is missing."
        )
    observed = ~np.isnan(y)
    if observed.sum() < 3:
        raise ValueError(
            f"GaussianField: y has {observed.sum()} observations; three are needed at least."
        )
    return as_stored(y), observed


def _sizes(name: str, value, request: bool, sites: int) -> PerSite:
    if value is None:
        return np.ones(sites)
    if not request:
        family = "binomial"
        if name == "exposure":
            family = "poisson"
        raise ValueError(f"GaussianField: {name} goes with family={family!r}.")
    array = floats("GaussianField", name, value)
    if array.shape != (sites,) or not np.isfinite(array).all() or not (array > 0).all():
        raise ValueError(
            f"GaussianField: {name} must be [{sites}], positive and finite; got shape {list(array.shape)}."
        )
    return as_stored(array)


def _check_response(family: str, y: NumpyArray, trials: NumpyArray) -> None:
    if family == "gaussian":
        if np.ptp(y) == 0:
            raise ValueError(
                "GaussianField: all values of y are the same; there is no deviation to estimate."
            )
        return
    wrong = (y < 0) | (y != np.round(y))
    if wrong.any():
        raise ValueError(
            f"GaussianField: family={family!r} needs counts 0, 1, 2, …; got {y[wrong][0]}."
        )
    above = y > trials
    if family == "binomial" and above.any():
        raise ValueError(
            f"GaussianField: y must not be above trials; got {y[above][0]:g} of {trials[above][0]:g}."
        )
    if (y == 0).all() or (family == "binomial" and (y == trials).all()):
        raise ValueError(
            "GaussianField: every y is at the end of its range, so that the intercept has no finite estimate."
        )


def _covariates(X, observed: NumpyArray) -> ThreeArrays:
    """Read the covariates.

    A column of ones and the standardised columns, with their means and deviations.
    """
    count = len(observed)
    if X is None:
        return np.ones((count, 1)), np.zeros(0), np.ones(0)
    X = floats("GaussianField", "X", X)
    if X.ndim == 1:
        X = X[:, None]
    if X.shape[:1] != (count,) or X.ndim != 2 or not np.isfinite(X).all():
        raise ValueError(
            f"GaussianField: X must be [{count}, features] and finite; got shape {list(X.shape)}."
        )
    center = X[observed].mean(0)
    scale = X[observed].std(0)
    flat = scale <= 1e-12 * np.abs(X).max(0)
    if flat.any():
        raise ValueError(
            f"GaussianField: column {int(np.argmax(flat))} of X is constant; the intercept is there already."
        )
    rows = np.c_[np.ones(count), (X - center) / scale]
    if np.linalg.matrix_rank(rows[observed]) < rows.shape[1]:
        raise ValueError("GaussianField: columns of X repeat one another; drop some.")
    return as_stored(rows), as_stored(center), as_stored(scale)
