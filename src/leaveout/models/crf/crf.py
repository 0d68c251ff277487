"""Linear-chain conditional random fields: leave whole sequences out, or labels within them.

    log p(y | x; θ) = s(y) − log Σ_z exp s(z),
    s(z) = start[z_1] + Σ_t e_t(z_t) + Σ_t transition[z_{t−1}, z_t] + end[z_T]

    "sequence"   F(θ, w) = −Σ_n w_n log p(y_n | x_n; θ) + penalty(θ)
    "label"      F(θ, w) = Σ_n (log Z_n − M_n(θ, w)) + penalty(θ)

with e_t(k) = scores[t, k] + Σ_f x_t[f] weights[f, k]. Ghosh et al. (2020), "Approximate
cross-validation for structured models", algorithms 3 and 4 (style C, equation 13). At weights 0 and
1 M is the logarithm of the sum over the labels of weight zero, M = log Σ exp s(z) over the z that
agree with y where w = 1; between them it is multilinear in w:

    M(w) = s(y) + Σ over runs i, …, j of successive labels
    w_{i−1} (1 − w_i) ⋯ (1 − w_j) w_{j+1} Γ(i, j),

where Γ is the increase of the logarithm by the sum over the run's labels, given its neighbours. For
one label that is the printed path w_t s + (1 − w_t) log Σ exp s. A run of three or more labels with
weights *between* 0 and 1 lacks its own term, of third order in 1 − w: derivatives at w = 1 are
those of M up to the second.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import (
    AnyFunction,
    Arrays as Arrays,
    Indices,
    NamedValues,
    PyTree,
    Scalar,
    SequenceLengths,
    Shape,
    StepNumbers,
    cached_on,
    static,
)
from ...data import Names, match_labels
from ...inference.moments import memory
from ...inference.sparse import SparseFeatures
from ...objectives import (
    LOG_PROBABILITY,
    AbstractObjective,
    Costs,
    Hessian,
    Parameters,
    PerListed,
    UnitIndex,
    Units,
    UnitWeights,
    float64,
    ravel,
)
from ..glm import penalties
from ..hidden.hidden import GivenParameters, read_lengths, read_parameters
from . import lattice as _lattice, tags as _tags
from .lattice import SequenceBlock
from .sparse_features import Indicators

RIDGE = penalties.Ridge(1.0)

STYLES = {
    "sequence": "whole sequences are left out",
    "label": "a held-out label is unknown, its step stays: the fit sums over it",
}


class CRF(AbstractObjective):
    """Linear-chain conditional random field.

        log p(y | x) = start_{y_1} + Σ_t transition_{y_{t−1}, y_t} + Σ_t (scores_t + x_tᵀ
        weights)_{y_t} + end_{y_T} − log Z(x)

    `fit(...).parameters` is `{"start": [K], "end": [K], "transition": [K, K] (from row to column)}`
    and, with features, `"weights": [features, K]`.

    Parameters
    ----------
    labels : array, shape (steps,)
        Labels: codes 0, …, `num_labels` − 1, or text, which is coded in alphabetical order.
    lengths : array of int, shape (sequences,)
        Lengths of the sequences, one after another.
    scores : array, shape (steps, labels), optional
        Emission scores that are held fixed, such as those of a neural network; −inf excludes a
        label at a step.
    features : array or sparse matrix, shape (steps, features), optional
        Features, which have weights of their own.
    num_labels : int, optional
        Number of labels K, if labels are codes. The default is that of the scores or the data.
    drop : {"sequence", "label"}, default: "sequence"
        Unit that is left out: a sequence, or a label, whose step stays.
    penalty : penalty of lo.penalties, callable or None, default: Ridge(1.0)
        Penalty on all parameters as one vector (end, start, transition, weights). With None,
        directions in which no probability changes are projected out.
    free : dict of array of bool, optional
        True for the entries of a parameter that are free, by its name. Other entries are held at
        zero.

    Raises
    ------
    ValueError
        If labels are outside the set, lengths do not add up, sequences are empty, values are NaN,
        or the data have probability zero.
    TypeError
        If labels are neither codes nor text, or the penalty has kinks.

    See Also
    --------
    HMM, entities, token_accuracy

    Examples
    --------
    >>> import leaveout as lo
    >>> model = lo.CRF(["O", "B-X", "O", "O", "B-X"], [3, 2])
    >>> model.num_units, model.num_labels
    (2, 2)
    """

    block: SequenceBlock
    # places of each sequence in the layout; −1 is padding
    slots: Int[ndarray, "sequences longest"]
    codes: StepNumbers
    lengths: SequenceLengths
    # the free entries of parameters of which only some are free
    free: dict[str, Int[ndarray, " free"]]
    sequence: StepNumbers
    penalty: penalties.AbstractPenalty
    drop: str = static()
    num_labels: int = static()
    num_features: int = static()
    names: _tags.LabelNames = static()
    steps: Names = static()

    @float64
    def __init__(
        self,
        labels: ArrayLike,
        lengths: ArrayLike,
        *,
        scores: ArrayLike | None = None,
        features: Any = None,
        num_labels: int | None = None,
        drop: Literal["sequence", "label"] = "sequence",
        penalty: AnyFunction | None = RIDGE,
        free: Mapping[str, ArrayLike] | None = None,
    ):
        if drop not in STYLES:
            raise ValueError(
                f"CRF: drop must be one of {', '.join(map(repr, STYLES))}; got {drop!r}."
            )
        self.steps, labels, scores, features = match_labels(
            "CRF", labels=labels, scores=scores, features=features
        )
        shape = np.shape(scores)
        columns = shape[1] if len(shape) == 2 else None
        self.codes, self.num_labels, self.names = _tags.read_labels(labels, num_labels, columns)
        self.lengths = read_lengths(
            "CRF", lengths, len(self.codes), f"there are {len(self.codes)} labels"
        )
        if drop == "sequence" and len(self.lengths) < 2:
            raise ValueError(
                'CRF: drop="sequence" needs several sequences; got one. Leave its labels out: drop="label".'
            )
        self.drop = drop
        if scores is not None:
            scores = _tags.read_scores(scores, self.codes, self.lengths)
        if features is not None:
            features = _tags.read_features(features, len(self.codes))
        self.num_features = 0 if features is None else features.shape[1]
        self.free = _tags.read_free(free or {}, self._shapes)
        self.penalty = self._check_penalty(penalty)
        self.sequence = np.repeat(np.arange(len(self.lengths)), self.lengths).astype(np.int32)
        self.block, self.slots = _lattice.lay_out(
            self.codes, self.lengths, self.num_labels, scores, features
        )

    def _check_penalty(self, penalty: object) -> penalties.AbstractPenalty:
        if penalty is not None and not callable(penalty):
            raise TypeError(
                f"CRF: penalty must be None or one of lo.penalties, such as Ridge(1.0); got {penalty!r}."
            )
        smooth_penalty = penalties.smooth("CRF", penalty)
        if isinstance(smooth_penalty, penalties.PerWeight):
            raise TypeError(
                "CRF: per_weight is for hosts that average the loss; a CRF's loss is a sum. Give the penalty itself."
            )
        smooth_penalty.check(self._size)
        if isinstance(smooth_penalty, penalties.Zero):
            seen = np.bincount(self.codes, minlength=self.num_labels)
            if (seen == 0).any():
                name = self.names.label(int(np.argmin(seen)))
                raise ValueError(
                    f"CRF: label {name} never occurs; without a penalty its weights have no finite optimum. "
                    "Give a penalty such as lo.penalties.Ridge(1.0), or fewer labels."
                )
            if self.free:
                raise ValueError(
                    "CRF: where some parameters are not free a penalty is needed, such as lo.penalties.Ridge(1.0)."
                )
            if self.num_features:
                raise ValueError(
                    "CRF: without a penalty the weights of features are not determined: the same shift for all labels changes "
                    "nothing. Give one, such as lo.penalties.Ridge(1.0)."
                )
            if self.lengths.max() == 1:
                raise ValueError(
                    "CRF: every sequence has length one, so there are no transitions: give a penalty."
                )
        return smooth_penalty

    # θ

    @property
    def _shapes(self) -> dict[str, Shape]:
        K = self.num_labels
        shapes = {"end": (K,), "start": (K,), "transition": (K, K)}
        if self.num_features:
            shapes["weights"] = self.num_features, K
        return shapes

    @property
    def _free_shapes(self) -> dict[str, Shape]:
        """Shapes of the free parameters."""
        return {
            name: (len(self.free[name]),) if name in self.free else shape
            for name, shape in self._shapes.items()
        }

    @property
    def _size(self) -> int:
        return sum(int(np.prod(shape)) for shape in self._free_shapes.values())

    @property
    def _entries(self) -> Int[Array, " params"]:
        """Places of the free parameters among all."""
        sizes = {name: int(np.prod(shape)) for name, shape in self._shapes.items()}
        starts = np.cumsum([0, *sizes.values()])
        entries = [
            start + self.free.get(name, np.arange(sizes[name]))
            for name, start in zip(sizes, starts, strict=False)
        ]
        return jnp.concatenate(entries)

    def _full_parameters(self, theta: PyTree) -> PyTree:
        """Put the free parameters into all parameters, in their shapes."""
        if not self.free:
            return theta
        parameters = dict(theta)
        for name, entries in self.free.items():
            shape = self._shapes[name]
            zeros = jnp.zeros(int(np.prod(shape)))
            parameters[name] = zeros.at[entries].set(theta[name]).reshape(shape)
        return parameters

    def _read_parameters(self, parameters: GivenParameters) -> PyTree:
        """Put a fit or natural parameters into all parameters, in their shapes."""
        return self._full_parameters(jax.tree.map(jnp.asarray, self._to_unconstrained(parameters)))

    def _part(self, matrix: Array) -> Array:
        """Take the free parameters' part of a matrix of all parameters."""
        if self.free:
            return matrix[self._entries][:, self._entries]
        return matrix

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=self._start,
            names=self._names,
            symmetries=self._symmetries,
            # a refit without a step of a label does not determine it
            shares=lambda theta: _tags.counts(self),
            penalty_curvature=self._penalty_curvature,
            warning=self._warning,
        )

    def _natural(self, theta):
        parameters = self._full_parameters(theta)
        return {name: parameters[name] for name in self._shapes}

    @float64
    def _to_unconstrained(self, parameters):
        free_parameters = read_parameters("CRF", parameters, self._shapes)
        for name, entries in self.free.items():
            values = free_parameters[name].ravel()
            nonzero = np.flatnonzero(np.delete(values, entries))
            if nonzero.size:
                raise ValueError(
                    f"CRF: {name} must be zero where it is not free; {nonzero.size} of its entries are not."
                )
            free_parameters[name] = values[entries]
        return free_parameters

    def _start(self, seed):
        # F(·, 1) is convex
        return {name: np.zeros(shape) for name, shape in self._free_shapes.items()}

    def _penalty_curvature(self, theta):
        return penalties.curvature(self.penalty, ravel(theta))

    def _symmetries(self, theta):
        if not isinstance(self.penalty, penalties.Zero):
            return np.zeros((0, self._size))
        return _lattice.flat_directions(self.num_labels)

    def _names(self) -> list[str]:
        labels = [self.names.label(k) for k in range(self.num_labels)]
        names = [f"{which}[{k}]" for which in ("end", "start") for k in labels]
        names += [f"transition[{j}, {k}]" for j in labels for k in labels]
        names += [f"weights[{f}, {k}]" for f in range(self.num_features) for k in labels]
        if self.free:
            return [names[place] for place in np.asarray(self._entries)]
        return names

    # F

    @property
    def num_units(self) -> int:
        if self.drop == "sequence":
            return len(self.lengths)
        return len(self.codes)

    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        parameters = self._full_parameters(theta)
        if self.drop == "sequence":
            value = _lattice.losses(parameters, self.block, _lattice.per_place(self.block, weights))
        else:
            value = _lattice.log_normaliser(parameters, self.block) - _lattice.known_score(
                parameters, self.block, self._lay_out(weights)
            )
        # otherwise a sum has underflowed, far from any minimum
        value = jnp.where(value > -jnp.inf, value, jnp.inf)
        return value + self.penalty(ravel(theta))

    def _lay_out(self, weights: Arrays) -> Float[Array, "rows lanes"]:
        """Lay out the weights of labels."""
        return self.block.layout.arrange(weights, fill=1.0)

    def _is_short(self, index: Arrays) -> bool:
        """Tell whether the sequences of the listed units, padded to the longest, have fewer steps
        than all sequences.
        """
        part = len(index)
        return part != self.num_units and part * self.slots.shape[1] < len(self.codes)

    def _dense(self, index: Arrays, delta: Array) -> Float[Array, " units"]:
        return jnp.zeros(self.num_units).at[index].add(delta, mode="drop")

    def _sequences(self, index: Arrays) -> UnitIndex:
        """Return the sequences of the listed units; padding gets the number of sequences."""
        if self.drop == "sequence":
            return index
        return jnp.asarray(self.sequence).at[index].get(mode="fill", fill_value=len(self.lengths))

    def _gather(self, sequences: UnitIndex) -> tuple[SequenceBlock, Int[Array, "rows width"]]:
        """Gather the listed sequences, one in each lane, with their places among all."""
        slots = jnp.asarray(self.slots).at[sequences].get(mode="clip").T
        inside = (slots >= 0) & (sequences < len(self.lengths))
        take = lambda leaf: jnp.where(
            inside.reshape(-1, *[1] * (leaf.ndim - 1)), jnp.asarray(leaf)[slots.reshape(-1)], 0
        )
        laid = lambda leaf: take(leaf.reshape(-1, *leaf.shape[2:])).reshape(
            *slots.shape, *leaf.shape[2:]
        )
        layout = self.block.layout.side_by_side(inside)
        unit = jnp.broadcast_to(jnp.arange(len(sequences)), slots.shape)
        scores = None if self.block.scores is None else laid(self.block.scores)
        return SequenceBlock(
            layout,
            laid(self.block.labels),
            laid(self.block.ends) > 0,
            unit,
            scores,
            jax.tree.map(take, self.block.features),
        ), slots

    def _gather_labels(self, index: Arrays, delta: Array) -> tuple[SequenceBlock, Array, Array]:
        """Return the sequences of the listed labels, one lane for each label, `1 + δ` laid out, and
        what each lane counts.

        The first lane of a sequence has all its weights, and is the only one that counts.
        """
        sequences = self._sequences(index)
        block, _ = self._gather(sequences)
        lane = jnp.argmax(sequences[:, None] == sequences, 1)
        row = jnp.where(index < self.num_units, self._row(index), len(block.labels))
        weights = jnp.ones(block.labels.shape).at[row, lane].add(delta, mode="drop")
        counts = (lane == jnp.arange(len(index))) & (index < self.num_units)
        return block, weights, counts * 1.0

    def _row(self, index: Arrays) -> UnitIndex:
        """Return the place of a label within its sequence."""
        first = jnp.cumsum(jnp.asarray(self.lengths)) - self.lengths
        return index - first.at[self._sequences(index)].get(mode="clip")

    def _listed(
        self, index: Arrays, delta: Arrays
    ) -> tuple[SequenceBlock, Array | None, Float[Array, " sequences"]]:
        """Return sequences that hold the listed units, of which `1 + δ` are the weights: those of
        labels, laid out, if these are units, and what each sequence counts.
        """
        delta = jnp.where(index < self.num_units, delta, 0.0)
        short = self._is_short(index)
        if self.drop == "sequence":
            if short:
                return self._gather(index)[0], None, delta
            return self.block, None, self._dense(index, delta)
        if short:
            return self._gather_labels(index, delta)
        weights = self._lay_out(1 + self._dense(index, delta))
        return self.block, weights, jnp.ones(len(self.lengths))

    def perturbation(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Scalar:
        theta = self._full_parameters(theta)
        block, weights, worth = self._listed(index, delta)
        places = _lattice.per_place(block, worth)
        if weights is None:
            return _lattice.losses(theta, block, places)
        path = _lattice.path(theta, block, _lattice.emission(theta, block))
        return jnp.sum(places * path) - _lattice.known_score(theta, block, weights, places)

    def hessian(self, theta: PyTree, weights: UnitWeights) -> Hessian:
        penalty_curvature = jax.hessian(self.penalty)(ravel(theta))
        ones = jnp.ones(len(self.lengths))
        theta = self._full_parameters(theta)
        if self.drop == "sequence":
            return self._part(_lattice.spread(theta, self.block, weights)) + penalty_curvature
        label_part = _lattice.known_hessian(theta, self.block, self._lay_out(weights), ones)
        return self._part(_lattice.spread(theta, self.block, ones) - label_part) + penalty_curvature

    def hessian_change(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Hessian:
        theta = self._full_parameters(theta)
        block, weights, worth = self._listed(index, delta)
        if weights is None:
            return self._part(_lattice.spread(theta, block, worth))
        return -self._part(_lattice.known_hessian(theta, block, weights, worth))

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: UnitIndex,
        held: PerListed,
    ) -> Array:
        theta = self._full_parameters(theta)
        if self.drop == "label":
            states = self._hidden_probabilities(theta, weights, index, held)
            codes = jnp.asarray(self.codes).at[index].get(mode="clip")
            return -jnp.log(jnp.take_along_axis(states, codes[:, None], 1)[:, 0])
        short = self._is_short(index)
        block = self._gather(index)[0] if short else self.block
        steps = _lattice.chain(theta, block).log_normaliser - _lattice.path(
            theta, block, _lattice.emission(theta, block)
        )
        if short:
            return steps.sum(0)
        return (
            jnp.zeros(self.num_units + 1).at[block.unit].add(steps)[:-1].at[index].get(mode="clip")
        )

    def _hidden_probabilities(
        self, theta: PyTree, weights: Arrays, index: Arrays, held: Arrays
    ) -> Float[Array, "width labels"]:
        """Compute `p(z_t = k | kept labels, x)` of the listed steps, whose held labels are
        unseen.
        """
        seen = self._lay_out(
            jnp.asarray(weights).at[index].min(jnp.where(held > 0, 0.0, jnp.inf), mode="drop")
        )
        if not self._is_short(index):
            states = self.block.layout.restore(_lattice.chain(theta, self.block, seen).states)
            return states.at[index].get(mode="clip")
        block, slots = self._gather(self._sequences(index))
        states = _lattice.chain(theta, block, seen.reshape(-1)[slots]).states
        return states.at[self._row(index), jnp.arange(len(index))].get(mode="clip")

    def predict(
        self,
        theta: PyTree,
        weights: UnitWeights | None = None,
        index: UnitIndex | None = None,
        kind: str = "label",
        *,
        lengths: ArrayLike | None = None,
        scores: ArrayLike | None = None,
        features: Any = None,
    ) -> Array:
        """Predict labels, or their probabilities.

        Parameters
        ----------
        theta : array of float, Fit or dict
            Parameters; for new sequences a `Fit` or natural parameters.
        weights : array of float, optional
            Weights of the units that are seen, for units of the model.
        index : array of int, optional
            Units of the model.
        kind : {"label", "state"}, default: "label"
            Most probable labels, or the probabilities `p(z_t = k | x)` of labels.
        lengths : array of int, optional
            Lengths of new sequences; not needed for features of another library, which know them.
        scores : array of float, optional
            Scores of new sequences.
        features : array or list, optional
            Features of new sequences; in the form of another library, if the model came from there.

        Returns
        -------
        array
            Labels `[steps]`, or probabilities `[steps, labels]`; for units of the model in the
            shape of these.
        """
        if not (lengths is None and scores is None and features is None):
            return cast(Array, self._of_new(theta, lengths, scores, features, kind))
        theta = self._full_parameters(theta)
        listed = cast(Array, index)
        if self.drop == "label":
            states = self._hidden_probabilities(
                theta, cast(Array, weights), listed, jnp.ones(len(listed))
            )
            return states if kind == "state" else jnp.argmax(states, -1) * 1.0
        block, _ = self._gather(listed)
        return (
            _lattice.shares(theta, block) if kind == "state" else _lattice.paths(theta, block) * 1.0
        )

    def jacobian(self, theta: PyTree) -> Float[Arrays, "units params"]:
        if self.drop == "label":  # of which many share a sequence
            return super().jacobian(theta)

        # F is linear in each weight
        unit_gradient = lambda unit: ravel(
            jax.grad(self.perturbation)(theta, unit[None], jnp.ones(1))
        )
        return jax.lax.map(unit_gradient, jnp.arange(self.num_units), batch_size=self.costs.lanes)

    def subset(self, units: Indices) -> "AbstractObjective | None":
        if self.drop == "label" or self.num_features or self.free or not self.penalty.quadratic:
            return None
        steps = self._steps(units)
        K = self.num_labels
        scores = self.block.scores
        if scores is not None:
            scores = scores.reshape(-1, K)[self.block.layout.inverse[steps]]
        return CRF(self.codes[steps], self.lengths[units], scores=scores, num_labels=K)

    def _steps(self, sequences: ArrayLike) -> Indices:
        first = np.cumsum(self.lengths) - self.lengths
        return np.concatenate(
            [first[n] + np.arange(self.lengths[n]) for n in np.atleast_1d(sequences)]
        )

    def with_labels(
        self, labels: Sequence[str], read: Callable[[Any], tuple[Any, ndarray]]
    ) -> Self:
        """Copy the model for a host that names its labels, and reads its features and lengths
        itself.

        Parameters
        ----------
        labels : sequence of str
            Names of the labels.
        read : callable
            Function from the host's data to features and lengths.

        Returns
        -------
        CRF
            The model.
        """
        out = copy.copy(self)
        vars(out).update(names=_tags.named_labels(labels), steps=Names(self.steps.index, read))
        return out

    # the contract of an objective

    @property
    def convex(self) -> bool:
        return not isinstance(self.penalty, penalties.Custom)

    @property
    def units(self) -> Units:
        facts: NamedValues = {
            "kinds": ("label", "state"),
            "response": self.codes,
            "score": LOG_PROBABILITY,
            "predict_new": self._predict_new,
        }
        if self.drop == "label":
            return Units(self.steps.index, serial=True, **facts)
        return Units(
            **facts,
            rows=np.repeat(np.arange(len(self.lengths)), self.lengths),
            row_names=self.steps.index,
        )

    def _predict_new(self, fit, features, kind, offset):
        """Predict the labels of a host's new sentences, or their probabilities."""
        if offset is not None:
            raise ValueError("predict: a CRF has no offset, but one was given.")
        if self.steps.read is None:
            raise TypeError(
                "predict: new sequences of this CRF need lengths, and scores or features: "
                "fit.objective.predict(fit, lengths=..., features=...)."
            )
        prediction = self.predict(fit, kind=kind, features=features)
        if kind == "state":
            return pd.DataFrame(
                prediction, columns=list(self.names.labels(np.arange(self.num_labels)))
            )
        return pd.Series(prediction, name="prediction")

    @property
    def costs(self) -> Costs:
        crf_scan_entries = 2**12  # numbers that a step of the scan carries along, by measurement
        lanes = int(
            np.clip(crf_scan_entries // (self.block.labels.shape[1] * self.num_labels), 1, 256)
        )
        formed = memory(
            self.block.labels.shape[1], len(self.lengths), self.num_labels, self.num_features
        )
        return Costs(lanes=lanes, arrays=_arrays(self), formed=formed)

    @property
    def note(self) -> str:
        penalty = f"Penalty: {type(self.penalty).__name__}"
        alpha = getattr(self.penalty, "alpha", None)
        if isinstance(self.penalty, penalties.Zero):
            penalty = "No penalty"
        elif alpha is not None and not np.ndim(alpha):
            penalty += f"({float(alpha):g})"
        return f'drop="{self.drop}": {STYLES[self.drop]}. {penalty}.'

    def _warning(self, theta):
        """Name transitions that are not in the data, and whose weights diverge without a
        penalty.
        """
        if not isinstance(self.penalty, penalties.Zero):
            return ""
        table = np.asarray(self._full_parameters(theta)["transition"])
        # a weight so far below the others marks an impossible transition
        impossible_transition = 15.0
        pairs = np.argwhere(
            ~_tags.seen_pairs(self.codes, self.lengths, self.num_labels)
            & (table < np.median(table) - impossible_transition)
        )
        if not len(pairs):
            return ""
        names = ", ".join(f"{self.names.label(j)} → {self.names.label(k)}" for j, k in pairs[:3])
        return (
            f"CRF: the data never have the transitions {names}{', …' if len(pairs) > 3 else ''} ({len(pairs)} in all), whose "
            "weights run towards −∞. Give a penalty, such as lo.penalties.Ridge(0.1)."
        )

    # for users

    @float64
    def decode(self, parameters: GivenParameters, sequences: ArrayLike | None = None) -> ndarray:
        """Find the most probable labels, by the Viterbi algorithm.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.
        sequences : array of int, optional
            Numbers of the sequences; all by default.

        Returns
        -------
        array
            Labels of the sequences, one after another.

        Raises
        ------
        ValueError
            If there is no sequence of such a number.
        """
        theta = self._read_parameters(parameters)
        if sequences is None:
            return self.names.labels(np.asarray(_lattice.decode(theta, self.block)))
        index = np.atleast_1d(np.asarray(sequences, int))
        if index.size == 0 or index.min() < 0 or index.max() >= len(self.lengths):
            raise ValueError(
                f"CRF: sequences must be numbers from 0 to {len(self.lengths) - 1}; got {sequences!r}."
            )
        path = np.asarray(_lattice.paths(theta, self._gather(index)[0]))
        return self.names.labels(path[path >= 0])

    @float64
    def _of_new(
        self, parameters: GivenParameters, lengths: Any, scores: Any, features: Any, kind: str
    ) -> ndarray:
        if kind not in ("label", "state"):
            raise ValueError(
                f'CRF: predictions of new sequences are of kind "label" or "state"; got {kind!r}.'
            )
        theta = self._read_parameters(parameters)
        if self.steps.read is not None and lengths is None:
            features, lengths = self.steps.read(features)
        if (features is None) != (not self.num_features) or (scores is None) != (
            self.block.scores is None
        ):
            raise ValueError(
                "CRF: new sequences need what the model was fitted on, scores, features or both, and lengths."
            )
        if scores is None:
            likely = np.zeros(np.shape(features)[0], int)
        else:
            likely = np.argmax(np.nan_to_num(np.asarray(scores)), 1)
        new = CRF(
            likely,
            lengths,
            scores=scores,
            features=features,
            num_labels=self.num_labels,
            drop="label",
        )
        if new.num_features != self.num_features:
            raise ValueError(
                f"CRF: new sequences need {self.num_features} features; got {new.num_features}."
            )
        if kind == "state":
            return np.asarray(_lattice.marginals(theta, new.block))
        return self.names.labels(np.asarray(_lattice.decode(theta, new.block)))

    def join(self, parts: ArrayLike) -> ndarray:
        """Put predictions by sequence one after another.

        Parameters
        ----------
        parts : array, shape (sequences, longest) or (sequences, longest, labels)
            Result of `lo.cross_predict(fit, plan, kind="label")`, or of `kind="state"`.

        Returns
        -------
        array, shape (steps,) or (steps, labels)
            Labels, or probabilities of the labels.

        Raises
        ------
        ValueError
            If the predictions are not those of every sequence.
        """
        parts = np.asarray(parts)
        if parts.shape[:2] == self.slots.shape:
            predictions = parts[self.slots >= 0]
        else:
            predictions = np.full(1, np.nan)
        if not np.isfinite(predictions).all():
            raise ValueError(
                f"CRF: join needs what was predicted of every sequence, {self.slots.shape}; got {parts.shape}"
                f"{', some NaN: does the plan leave every sequence out?' if len(predictions) > 1 else ''}."
            )
        if predictions.ndim == 1:
            return self.names.labels(predictions.astype(int))
        return predictions

    def label_errors(self, probabilities: ArrayLike) -> _tags.Table:
        """Rank the steps by the probability of their label, the least probable first.

        Northcutt, Jiang and Chuang (2021) find label errors in this way.

        Parameters
        ----------
        probabilities : array, shape (steps, labels)
            Result of `lo.cross_predict(fit, plan, kind="state")` for a plan that leaves every label
            out; for plans of whole sequences the result of `join`.

        Returns
        -------
        DataFrame
            A row for each step: the probability of its label, and the most probable other label.

        Raises
        ------
        ValueError
            If the shape of the probabilities is not that of the data.
        """
        return _tags.rank_steps(
            np.asarray(probabilities), self.codes, self.sequence, self.names, self.steps.index
        )

    def labels_of(self, sequences: ArrayLike | None = None) -> ndarray:
        """Return the labels of sequences, as they were given.

        Parameters
        ----------
        sequences : array of int, optional
            Numbers of the sequences; all by default.

        Returns
        -------
        array
            Labels of the sequences, one after another.
        """
        codes = self.codes
        if sequences is not None:
            codes = codes[self._steps(sequences)]
        return self.names.labels(codes)


def _arrays(crf: CRF) -> Callable[[], Indicators] | None:
    """Return F in array code, for sequences with sparse features under a ridge penalty if no label
    is impossible.
    """
    plain = isinstance(crf.penalty, penalties.Ridge) and not crf.block.layout.zeros
    sparse = crf.drop == "sequence" and isinstance(crf.block.features, SparseFeatures)
    if plain and sparse:
        return functools.partial(_make_indicators, crf)
    return None


@cached_on
def _make_indicators(crf: CRF) -> Indicators:
    block = crf.block
    place = block.layout.inverse
    assert isinstance(block.features, SparseFeatures)
    scores = block.scores
    if scores is not None:
        scores = np.reshape(scores, (-1, crf.num_labels))[place]
    return Indicators(
        crf.codes,
        crf.lengths,
        (block.features.compressed_rows(place), scores),
        crf._shapes,
        (np.asarray(crf._entries), np.asarray(crf.penalty.diagonal(crf._size))),
    )
