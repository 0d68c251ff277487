"""Sums over all configurations of a field on any graph, from potentials.

    log Z = log Σ_z exp(Σ_s φ_s(z_s) + Σ_{(s,t)} φ_st(z_s, z_t))
    ∂ log Z/∂φ_s(k) = p(z_s = k),      ∂ log Z/∂φ_st(j, k) = p(z_s = j, z_t = k)

Potentials are `[..., sites, states]` and `[..., edges, states, states]`, with any axes before. The
passes over the tree of cliques are NumPy (`passes`). They are given to JAX as two primitives: sums,
whose derivatives are marginals, and the tangents of marginals, a linear map that is its own
transpose. So gradients, Hessians and derivatives of marginals work under `jit` and `vmap`; third
derivatives do not.

A `pure_callback` would hand its arrays to JAX again: it deadlocks if the program runs on all
threads, and rounds the arrays to single precision in threads with that setting.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike

from .._runtime import AnyFunction, ArrayList, Shape
from .loopy import Messages, messages
from .passes import MEMORY, Passes, passes

__all__ = [
    "best",
    "draw",
    "log_partition",
    "marginals",
    "pair_marginals",
    "tree",
]
__dir__ = __all__.copy

# [lanes, sites, states], where lanes, any number of axes, broadcast
Sites = Float[Array | ndarray, "..."]
Edges = Float[Array | ndarray, "..."]  # [lanes, edges, states, states]
Sums = Passes | Messages


def tree(
    num_sites: int,
    edges: Int[ndarray, "edges 2"],
    num_states: int,
    memory: float = MEMORY,
    inference: str = "exact",
) -> Sums:
    """Prepare exact or approximate sums over the configurations of a graph.

    Parameters
    ----------
    num_sites : int
        The number of sites.
    edges : array of int, `[edges, 2]`
        The two sites of each edge.
    num_states : int
        The number of states of a site.
    memory : float, optional
        The bytes that exact sums may take.
    inference : {"exact", "bethe", "trw"}, default "exact"
        Exact sums over a tree of cliques, loopy belief propagation, or tree-reweighted belief
        propagation.

    Returns
    -------
    Passes or Messages
        The sums, as the functions of this module take them.

    Raises
    ------
    ValueError
        If exact sums need more than `memory` bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import clique
    >>> type(clique.tree(3, np.array([[0, 1], [1, 2]]), 2)).__name__
    'Passes'
    """
    graph = num_sites, np.ascontiguousarray(edges, int).tobytes(), num_states
    if inference == "exact":
        return passes(*graph, memory)
    return messages(*graph, inference)


def log_partition(sites: Sites, edges: Edges, tree: Sums) -> Float[Array, "..."]:
    """Compute log Z, whose gradient is the marginals.

    Parameters
    ----------
    sites : array, `[..., sites, states]`
        The log-potentials of the sites.
    edges : array, `[..., edges, states, states]`
        The log-potentials of the edges.
    tree : Passes or Messages
        The sums over the graph, from `tree`.

    Returns
    -------
    array, `[...]`
        log Z.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from leaveout.inference import clique
    >>> graph = clique.tree(3, np.array([[0, 1], [1, 2]]), 2)
    >>> sites = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    >>> edges = np.stack([np.eye(2), np.eye(2)])
    >>> with jax.enable_x64(True):
    ...     round(float(clique.log_partition(sites, edges, graph)), 3)
    3.94
    """
    return _sums(sites, edges, tree, 0)[0]


def marginals(sites: Sites, edges: Edges, tree: Sums) -> Float[Array, "... sites states"]:
    """Compute the marginals p(z_s = k) of every site.

    Parameters
    ----------
    sites : array, `[..., sites, states]`
        The log-potentials of the sites.
    edges : array, `[..., edges, states, states]`
        The log-potentials of the edges.
    tree : Passes or Messages
        The sums over the graph, from `tree`.

    Returns
    -------
    array, `[..., sites, states]`
        The marginals.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from leaveout.inference import clique
    >>> graph = clique.tree(3, np.array([[0, 1], [1, 2]]), 2)
    >>> sites = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    >>> edges = np.stack([np.eye(2), np.eye(2)])
    >>> with jax.enable_x64(True):
    ...     clique.marginals(sites, edges, graph).round(2).tolist()
    [[0.73, 0.27], [0.61, 0.39], [0.55, 0.45]]
    """
    return _sums(sites, edges, tree, 1)[1]


def pair_marginals(
    sites: Sites, edges: Edges, tree: Sums
) -> tuple[Float[Array, "... sites states"], Float[Array, "... edges states states"]]:
    """Compute the marginals p(z_s = k) of every site and p(z_s = j, z_t = k) of every edge.

    Parameters
    ----------
    sites : array, `[..., sites, states]`
        The log-potentials of the sites.
    edges : array, `[..., edges, states, states]`
        The log-potentials of the edges.
    tree : Passes or Messages
        The sums over the graph, from `tree`.

    Returns
    -------
    of_sites : array, `[..., sites, states]`
        The marginals of the sites.
    of_edges : array, `[..., edges, states, states]`
        The marginals of the edges.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from leaveout.inference import clique
    >>> graph = clique.tree(3, np.array([[0, 1], [1, 2]]), 2)
    >>> sites = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    >>> edges = np.stack([np.eye(2), np.eye(2)])
    >>> with jax.enable_x64(True):
    ...     clique.pair_marginals(sites, edges, graph)[1].shape
    (2, 2, 2)
    """
    _, of_sites, of_edges = _sums(sites, edges, tree, 2)
    return of_sites, of_edges


def draw(
    sites: Float[ndarray, "sites states"],
    edges: Float[ndarray, "edges states states"],
    tree: Sums,
    num_draws: int,
    rng: np.random.Generator,
) -> Int[ndarray, "draws sites"]:
    """Draw configurations.

    Parameters
    ----------
    sites : ndarray, `[sites, states]`
        The log-potentials of the sites.
    edges : ndarray, `[edges, states, states]`
        The log-potentials of the edges.
    tree : Passes or Messages
        The sums over the graph, from `tree`.
    num_draws : int
        The number of draws.
    rng : numpy.random.Generator
        The random numbers.

    Returns
    -------
    array of int, `[draws, sites]`
        The state of each site in each draw.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import clique
    >>> graph = clique.tree(3, np.array([[0, 1], [1, 2]]), 2)
    >>> sites = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    >>> edges = np.stack([np.eye(2), np.eye(2)])
    >>> clique.draw(sites, edges, graph, 4, np.random.default_rng(0)).shape
    (4, 3)
    """
    return tree.walk(_column(sites, edges), num_draws, rng)


def best(
    sites: Float[ndarray, "sites states"],
    edges: Float[ndarray, "edges states states"],
    tree: Sums,
) -> Int[ndarray, " sites"]:
    """Find the most probable configuration.

    Parameters
    ----------
    sites : ndarray, `[sites, states]`
        The log-potentials of the sites.
    edges : ndarray, `[edges, states, states]`
        The log-potentials of the edges.
    tree : Passes or Messages
        The sums over the graph, from `tree`.

    Returns
    -------
    array of int, `[sites]`
        The state of each site.

    Examples
    --------
    >>> import numpy as np
    >>> from leaveout.inference import clique
    >>> graph = clique.tree(3, np.array([[0, 1], [1, 2]]), 2)
    >>> sites = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    >>> edges = np.stack([np.eye(2), np.eye(2)])
    >>> clique.best(sites, edges, graph).tolist()
    [0, 0, 0]
    """
    return tree.walk(_column(sites, edges), 1, np.random.default_rng(0), best=True)[0]


def _column(sites: ndarray, edges: ndarray) -> Float[ndarray, "numbers 1"]:
    return np.concatenate([sites.ravel(), edges.ravel()])[:, None]


def _sums(sites: ArrayLike, edges: ArrayLike, tree: Sums, level: int) -> list[Array]:
    sites = jnp.asarray(sites, float)
    edges = jnp.asarray(edges, float)
    of_sites, of_edges = _shapes((), tree)
    if sites.shape[-2:] != of_sites or edges.shape[-3:] != of_edges:
        raise ValueError(
            f"log_partition: potentials must be [..., sites, states] = {_shape_text(of_sites)} "
            "and [..., edges, states, states] = "
            f"{_shape_text(of_edges)}; got shapes {list(sites.shape)} and {list(edges.shape)}."
        )
    if sites.dtype != np.float64 or edges.dtype != np.float64:
        raise TypeError(
            "log_partition: potentials must be float64; call it within jax.enable_x64(True)."
        )
    lanes = max(sites.ndim - 2, edges.ndim - 3)
    sites = sites.reshape(*[1] * (lanes + 2 - sites.ndim), *sites.shape)
    edges = edges.reshape(*[1] * (lanes + 3 - edges.ndim), *edges.shape)
    return sums_p.bind(sites, edges, tree=tree, level=level)


def _shape_text(shape: Shape) -> str:
    return f"[..., {', '.join(map(str, shape))}]"


# log Z and, from level 1 on, the marginals of sites, at level 2 those of edges too
sums_p: Primitive = Primitive("field_sums")
# dq, de = ∇² log Z (dφ_sites, dφ_edges); those of edges may be left out on either side
tangents_p: Primitive = Primitive("field_tangents")
sums_p.multiple_results = tangents_p.multiple_results = True


def _lanes(sites: Any, edges: Any, *changes: Any) -> Shape:
    """Lanes of potentials, and of changes of them, that broadcast against one another."""
    shapes = sites.shape[:-2], edges.shape[:-3]
    num_axes = len(shapes[0])
    sizes = zip(*shapes, *(change.shape[:num_axes] for change in changes), strict=True)
    return tuple(max(axis) if min(axis) else 0 for axis in sizes)


def _shapes(lanes: Shape, tree: Sums) -> tuple[Shape, Shape]:
    K = tree.num_states
    return (*lanes, tree.num_sites, K), (*lanes, tree.num_edges, K, K)


# NumPy


def _numbers_first(sites: ndarray, edges: ndarray | None, lanes: Shape, tree: Sums) -> ndarray:
    """Potentials as `[numbers, lanes]`."""
    out = np.empty((tree.edges.stop, *lanes))
    out[tree.sites] = np.moveaxis(sites.reshape(*sites.shape[:-2], -1), -1, 0)
    if edges is None:
        out[tree.edges] = 0.0
    else:
        out[tree.edges] = np.moveaxis(edges.reshape(*edges.shape[:-3], -1), -1, 0)
    return out.reshape(tree.edges.stop, -1)


def _lanes_first(marginals: ndarray, lanes: Shape, tree: Sums, edges: bool) -> ArrayList:
    parts = [marginals[tree.sites]]
    if edges:
        parts.append(marginals[tree.edges])
    shapes = _shapes(lanes, tree)
    return [
        np.ascontiguousarray(np.moveaxis(part, 0, -1)).reshape(s)
        for part, s in zip(parts, shapes, strict=False)
    ]


def _chunks(count: int, size: int) -> list[slice]:
    """Split `count` items into slices of nearly one size, at most `size`."""
    bounds = np.linspace(0, count, -(-count // size) + 1).astype(int).tolist()
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def _sums_by_passes(sites: ndarray, edges: ndarray, *, tree: Sums, level: int) -> ArrayList:
    lanes = _lanes(sites, edges)
    potentials = _numbers_first(sites, edges, lanes, tree)
    count = potentials.shape[1]
    total = np.empty(count)
    beliefs = np.empty((tree.edges.stop, count if level else 0))
    for chunk in _chunks(count, tree.lanes):
        chunk_potentials = np.ascontiguousarray(potentials[:, chunk])
        if level:
            up, down = tree.run(chunk_potentials, edges=level == 2)
            total[chunk] = up.log_partition
            beliefs[:, chunk] = down.marginals
        else:
            total[chunk] = tree.log_partition(chunk_potentials)
    return [
        total.reshape(lanes),
        *(_lanes_first(beliefs, lanes, tree, level == 2) if level else ()),
    ]


def _tangents_by_passes(
    sites: ndarray,
    edges: ndarray,
    *changes: ndarray,
    tree: Sums,
    edges_in: bool,
    edges_out: bool,
) -> ArrayList:
    """Tangents of the marginals along changes of the potentials.

    Axes along which only the change is long are tangents, which share the passes of the potentials.
    """
    potential_lanes = _lanes(sites, edges)
    lanes = _lanes(sites, edges, *changes)
    # lanes first, tangents last
    order = sorted(
        range(len(potential_lanes)), key=lambda axis: potential_lanes[axis] == 1 < lanes[axis]
    )
    potentials = _numbers_first(sites, edges, potential_lanes, tree)
    count = potentials.shape[1]
    change = _numbers_first(changes[0], changes[1] if edges_in else None, lanes, tree).reshape(
        -1, *lanes
    )
    change = change.transpose(0, *(1 + axis for axis in order)).reshape(len(potentials), count, -1)
    tangents = np.empty_like(change)
    up: Any  # the messages of the tree
    for chunk in _chunks(count, tree.lanes):
        up, down = tree.run(np.ascontiguousarray(potentials[:, chunk]), edges=False)
        for columns in _chunks(change.shape[2], max(1, tree.lanes // (chunk.stop - chunk.start))):
            tangents[:, chunk, columns] = tree.tangents(
                up, down, change[:, chunk, columns], edges=edges_out
            )
    ordered = tangents.reshape(-1, *(lanes[axis] for axis in order)).transpose(
        0, *(1 + position for position in np.argsort(order))
    )
    return _lanes_first(ordered, lanes, tree, edges_out)


# JAX


def _eager(function: Callable[..., ArrayList]) -> Callable[..., list[Array]]:
    """Make a function of NumPy arrays one of JAX's, outside of compiled programs."""
    return lambda *args, **params: [
        jnp.asarray(part) for part in function(*map(np.asarray, args), **params)
    ]


sums_p.def_impl(_eager(_sums_by_passes))
tangents_p.def_impl(_eager(_tangents_by_passes))


@sums_p.def_abstract_eval
def _sums_abstract(
    sites: ShapedArray, edges: ShapedArray, *, tree: Sums, level: int
) -> list[ShapedArray]:
    lanes = _lanes(sites, edges)
    return [
        ShapedArray(shape, sites.dtype) for shape in (lanes, *_shapes(lanes, tree))[: level + 1]
    ]


@tangents_p.def_abstract_eval
def _tangents_abstract(
    sites: Any, edges: Any, *changes: Any, tree: Sums, edges_in: bool, edges_out: bool
) -> list[ShapedArray]:
    shapes = _shapes(_lanes(sites, edges, *changes), tree)
    return [ShapedArray(shape, sites.dtype) for shape in shapes[: 1 + edges_out]]


def _on_host(function: Callable[..., ArrayList]) -> AnyFunction:
    """Lowering that calls a function of NumPy arrays from a compiled program.

    Doubles come back as pairs of integers, which no thread's setting can round to single precision.
    """

    def lower(ctx, *args, **params) -> list[Any]:
        def call(*arrays: ndarray) -> ArrayList:
            return [
                part.reshape(*part.shape, 1).view(np.uint32)
                for part in function(*map(np.asarray, arrays), **params)
            ]

        pairs = [ShapedArray((*aval.shape, 2), np.uint32) for aval in ctx.avals_out]
        ctx_of_pairs = ctx.replace(avals_out=pairs)
        results: Any  # one value for each array
        results, _, _ = mlir.emit_python_callback(
            ctx_of_pairs,
            call,
            None,
            list(args),
            ctx.avals_in,
            pairs,
            has_side_effect=False,
            returns_token=False,
        )
        kinds = [ir.RankedTensorType.get(aval.shape, ir.F64Type.get()) for aval in ctx.avals_out]
        return [
            stablehlo.bitcast_convert(kind, result)
            for kind, result in zip(kinds, results, strict=True)
        ]

    return lower


mlir.register_lowering(sums_p, _on_host(_sums_by_passes), cacheable=False)
mlir.register_lowering(tangents_p, _on_host(_tangents_by_passes), cacheable=False)


def _batching_rule(primitive: Primitive) -> AnyFunction:
    """Batching rule: add a leading axis of lanes, of length one for operands that are not
    batched.
    """

    def rule(operands, axes, **params) -> tuple[list[Array], list[int]]:
        led = [
            jnp.expand_dims(x, 0) if axis is None else jnp.moveaxis(x, axis, 0)
            for x, axis in zip(operands, axes, strict=True)
        ]
        out = primitive.bind(*led, **params)
        return out, [0] * len(out)

    return rule


batching.primitive_batchers[sums_p] = _batching_rule(sums_p)
batching.primitive_batchers[tangents_p] = _batching_rule(tangents_p)


def _sums_jvp(primals, changes, *, tree: Sums, level: int) -> tuple[list[Array], list[Any]]:
    sites, edges = primals
    edges_in = not isinstance(changes[1], ad.Zero)
    changes = [ad.instantiate_zeros(changes[0]), *([changes[1]] if edges_in else [])]
    sums = sums_p.bind(sites, edges, tree=tree, level=max(level, 2 if edges_in else 1))
    tangent = jnp.sum(sums[1] * changes[0], (-2, -1))
    if edges_in:
        tangent += jnp.sum(sums[2] * changes[1], (-3, -2, -1))
    out = [tangent]
    if level:
        out += tangents_p.bind(
            sites, edges, *changes, tree=tree, edges_in=edges_in, edges_out=level == 2
        )
    return sums[: level + 1], out


def _tangents_jvp(primals, changes, **params) -> tuple[list[Array], list[Array]]:
    """Derivative of the tangents, which are linear in the changes.

    The derivative in the potentials would be a third one.
    """
    if not all(isinstance(change, ad.Zero) for change in changes[:2]):
        raise NotImplementedError(
            "Fields have first and second derivatives only: InfinitesimalJackknife(order=2) and other third derivatives are "
            "not available. Use InfinitesimalJackknife(order=1), NewtonStep(), Certified() or Exact()."
        )
    out = tangents_p.bind(*primals, **params)
    return out, tangents_p.bind(*primals[:2], *map(ad.instantiate_zeros, changes[2:]), **params)


def _tangents_transpose(
    cotangents, *operands, tree: Sums, edges_in: bool, edges_out: bool
) -> list[Any]:
    """Transpose of the tangents, which are a Hessian and hence symmetric."""
    sites, edges = operands[:2]
    edge_cotangent = edges_out and not isinstance(cotangents[1], ad.Zero)
    cotangent_parts = [
        ad.instantiate_zeros(cotangents[0]),
        *([cotangents[1]] if edge_cotangent else []),
    ]
    out = tangents_p.bind(
        sites, edges, *cotangent_parts, tree=tree, edges_in=edge_cotangent, edges_out=edges_in
    )
    shapes = [operand.aval.shape for operand in operands[2:]]
    return [
        None,
        None,
        *(_sum_repeats(part, shape) for part, shape in zip(out, shapes, strict=True)),
    ]


def _sum_repeats(array: Array, shape: Shape) -> Array:
    """Sum over the axes along which an operand of this shape was repeated."""
    axes = tuple(
        axis
        for axis, (size, length) in enumerate(zip(array.shape, shape, strict=True))
        if length == 1 < size
    )
    if axes:
        return jnp.sum(array, axes, keepdims=True)
    return array


ad.primitive_jvps[sums_p] = _sums_jvp
ad.primitive_jvps[tangents_p] = _tangents_jvp
ad.primitive_transposes[tangents_p] = _tangents_transpose
