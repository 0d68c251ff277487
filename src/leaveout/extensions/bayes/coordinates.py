"""Draws as callers have them, and their unconstrained coordinates.

A parameter x on an interval or a simplex has an unconstrained coordinate u, x = c(u), whose
posterior density is that of x times |det c′(u)|. The logarithm of this factor belongs to −F.

| transform | x | u | log |det c′(u)| |
|---|---|---|---|
| identity | any number | x | 0 |
| log | positive | log x | u |
| logit | between 0 and 1 | log x − log(1 − x) | log x + log(1 − x) |
| softmax, stick_breaking | last axis sums to one | log of x over its last entry | Σ log x |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from ...developer import (
    Array,
    NamedArrays,
    NamedValues,
    Shape,
    TwoTexts,
    UnaryFunction,
    jax,
    jnp,
    numbers,
)

# draws below which the tail of weights, a fifth of them, has too few to be smoothed
MIN_DRAWS = 100


class Transform(NamedTuple):
    """A transform: x from u, in JAX; u from x, in NumPy; log |det c′(u)|, in JAX.

    And which values x may have.
    """

    constrain: UnaryFunction
    unconstrain: UnaryFunction
    log_jacobian: UnaryFunction
    inside: UnaryFunction
    domain: str


def _with_last(u: Any):
    return jnp.concatenate([u, jnp.zeros((*u.shape[:-1], 1))], -1)


SIMPLEX = Transform(
    lambda u: jax.nn.softmax(_with_last(u)),
    lambda x: np.log(x[..., :-1]) - np.log(x[..., -1:]),
    lambda u: jnp.sum(jax.nn.log_softmax(_with_last(u))),
    # simplexes are stored in single precision too
    lambda x: (x > 0).all(-1) & (np.abs(x.sum(-1) - 1) < 1e-6),
    "positive and sum to one along the last axis",
)
TRANSFORMS = {
    "identity": Transform(lambda u: u, lambda x: x, lambda u: 0.0, np.isfinite, "finite"),
    "log": Transform(
        lambda u: jnp.exp(u), np.log, lambda u: jnp.sum(u), lambda x: x > 0, "positive"
    ),
    "logit": Transform(
        lambda u: jax.nn.sigmoid(u),
        scipy.special.logit,
        lambda u: jnp.sum(jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)),
        lambda x: (x > 0) & (x < 1),
        "between 0 and 1",
    ),
    "softmax": SIMPLEX,
    "stick_breaking": SIMPLEX,
}


def by_column(data: Any) -> Any:
    """Return a frame whose columns have names as a dict of them; all else as it is."""
    has_names = isinstance(data, pd.DataFrame) and all(
        isinstance(name, str) for name in data.columns
    )
    return dict(data.items()) if has_names else data


class NamedDraws(NamedTuple):
    """Draws by name, `[draws, ...]`, the draws of one chain after those of another.

    One array has the name "".
    """

    arrays: NamedArrays
    chains: int


def read_draws(caller: str, draws: Any) -> NamedDraws:
    """Read draws of ArviZ, a Dataset, a frame, a sampler of NumPyro, a dict of arrays, or an array.

    An array is `[chains, draws, params]` or `[draws, params]`.

    Arrays of a dict are `[draws, ...]`, or `[chains, draws, ...]` if all have these two axes and
    chains are fewer than draws.
    """
    if hasattr(draws, "get_samples"):
        draws = draws.get_samples(group_by_chain=True)
    posterior = by_column(getattr(draws, "posterior", draws))
    if (
        posterior is draws
        and not isinstance(draws, Mapping | np.ndarray)
        and hasattr(draws, "children")
        and "posterior" in draws
    ):
        posterior = draws["posterior"]
    if hasattr(posterior, "data_vars"):
        if not {"chain", "draw"} <= set(posterior.dims):
            raise ValueError(
                f"{caller}: draws need the dimensions chain and draw; got {', '.join(map(str, posterior.dims))}."
            )
        arrays = {
            str(name): posterior[name].transpose("chain", "draw", ...).to_numpy()
            for name in posterior.data_vars
        }
        by_chain = True
    elif isinstance(posterior, Mapping):
        arrays = {
            str(name): numbers(caller, f"draws[{name!r}]", value)
            for name, value in posterior.items()
        }
        shapes = {array.shape[:2] for array in arrays.values()}
        by_chain = len(shapes) == 1 and len(min(shapes)) == 2 and min(shapes)[0] < min(shapes)[1]
    else:
        array = np.asarray(numbers(caller, "draws", posterior))
        if array.ndim not in (2, 3):
            raise ValueError(
                f"{caller}: draws must be [chains, draws, params] or [draws, params]; got shape {array.shape}."
            )
        arrays = {"": array}
        by_chain = array.ndim == 3
    if not arrays:
        raise ValueError(f"{caller}: draws have no parameter.")
    if min(array.ndim for array in arrays.values()) < 1 + by_chain:
        raise ValueError(
            f"{caller}: draws of each parameter need an axis of draws; got a single number."
        )
    chains = 1
    if by_chain:
        chains = next(iter(arrays.values())).shape[0]
    flat = {
        name: np.asarray(a, float).reshape(-1, *a.shape[1 + by_chain :])
        for name, a in arrays.items()
    }
    sizes = {name: len(array) for name, array in flat.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{caller}: all parameters must have one number of draws; got {sizes}.")
    size = min(sizes.values())
    if size < MIN_DRAWS:
        raise ValueError(
            f"{caller}: {size} draws are too few to weigh; give {MIN_DRAWS} or more, better some thousands."
        )
    for name, array in flat.items():
        if not np.isfinite(array).all():
            suffix = f" of {name!r}" if name else ""
            raise ValueError(
                f"{caller}: draws{suffix} hold {np.sum(~np.isfinite(array))} values that are NaN or infinite."
            )
    return NamedDraws(flat, chains)


def listed(names: Iterable[str]) -> str:
    """List names of parameters for a message."""
    return ", ".join(name or "one array" for name in sorted(names)) or "none"


def pick_draws(caller: str, draws: NamedArrays, shapes: Mapping[str, Shape]) -> NamedArrays:
    """Return the draws of a model's parameters.

    ValueError if some are missing or have another shape than the model's.
    """
    if missing := shapes.keys() - draws.keys():
        raise ValueError(
            f"{caller}: draws of {listed(missing)} are missing; the model has {listed(shapes)}, the draws {listed(draws)}."
        )
    for name, shape in shapes.items():
        if draws[name].shape[1:] != shape:
            suffix = f" of {name!r}" if name else ""
            raise ValueError(
                f"{caller}: draws{suffix} have the shape {draws[name].shape[1:]}; the model's is {shape}."
            )
    return {name: draws[name] for name in shapes}


@dataclass(frozen=True)
class DrawCoordinates:
    """Unconstrained coordinates of draws.

    `kinds` are the names of parameters with their transforms, all others have none.
    """

    kinds: tuple[TwoTexts, ...]

    @classmethod
    def read(
        cls, caller: str, names: Iterable[str], transforms: Mapping[str, str]
    ) -> "DrawCoordinates":
        """Read transforms by name; ValueError if a transform or a name is unknown."""
        if not isinstance(transforms, Mapping):
            raise TypeError(
                f"{caller}: transforms are given by the names of parameters, as {{'sigma': 'log'}}; got {transforms!r}."
            )
        unknown = {str(kind) for kind in transforms.values() if kind not in TRANSFORMS}
        if unknown:
            raise ValueError(
                f"{caller}: transforms are {', '.join(TRANSFORMS)}; got {', '.join(sorted(unknown))}."
            )
        parameters = sorted(set(names) - {""})
        if wrong := [name for name in transforms if name not in parameters]:
            advice = "parameters of one array have none: give draws by name"
            if parameters:
                advice = f"the parameters are {', '.join(parameters)}"
            raise ValueError(f"{caller}: transforms name {wrong[0]!r}; {advice}.")
        return cls(tuple(transforms.items()))

    def _transform(self, name: str) -> Transform:
        return TRANSFORMS[dict(self.kinds).get(name, "identity")]

    def unconstrain(self, caller: str, draws: NamedArrays) -> NamedArrays:
        """Convert draws to coordinates; ValueError if some are outside their domain."""
        for name, kind in self.kinds:
            outside = int(np.sum(~self._transform(name).inside(draws[name])))
            if outside:
                raise ValueError(
                    f"{caller}: by the transform {kind!r}, values are {self._transform(name).domain}; "
                    f"{outside} draws of {name!r} are not."
                )
        return {name: self._transform(name).unconstrain(array) for name, array in draws.items()}

    def constrain(self, u: NamedValues) -> NamedValues:
        """Convert coordinates of one draw to parameters, in JAX."""
        return {name: self._transform(name).constrain(value) for name, value in u.items()}

    def log_jacobian(self, u: NamedValues) -> Array | float:
        """Compute log |det c′(u)| of one draw, in JAX."""
        return sum((self._transform(name).log_jacobian(u[name]) for name, _ in self.kinds), 0.0)


def coordinate_names(like: NamedValues) -> list[str]:
    """Name the entries of unconstrained variables by name."""
    places = [
        (name or "theta", index)
        for name in sorted(like)
        for index in np.ndindex(np.shape(like[name]))
    ]
    return [f"{name}{list(index) if index else ''}".replace(" ", "") for name, index in places]
