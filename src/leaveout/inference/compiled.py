"""Forward and backward passes over the steps of chains in their order, by loops that numba compiles
where it is installed.

A step waits for the one before, so that one chain leaves most of a processor idle. Several refits,
the lanes, go side by side: for few states the two functions below are written out for each state
and lane, and fill vector registers. They are templates:

    x<k>, a<jk>, w<>
    a number for each state k, each pair of states, none, and in every case for each lane
    table[row + <k>]            the entries of an array, in the same order
    x<k> = sum j: f<j> * a<jk>  a sum over states

Steps with equal observations share a row of a table of likelihoods, none above one. A weight is
zero or one. No transition may be impossible. Probabilities are normalised at every step t for which
`t & mask == mask`.
"""

import functools
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from re import findall, search, sub
from typing import Any, NamedTuple

import numpy as np

Routine = Callable[..., None]

# states up to which loops over them are written out; code for more takes ten seconds to compile
WRITTEN_OUT = 8
# a normaliser that underflows makes log Z infinite; products below `SMALL` become logarithms
LEAST = 1e-300
SMALL = 1e-100
# log Z, and the filtered probabilities up to factors of each step; `top` are the logarithms of
# factors of the table's rows
FORWARD = """
def forward(initial, transition, starts, code, weight, table, top, mask, states, log_z):
    p<>, z<>, small = 1.0, 0.0, 1.0
    f<k> = 1.0 / STATES
    a<jk> = transition[<jk>]
    for t in range(len(code)):
        row, at = code[t] * WIDTH, t * WIDTH
        w<> = weight[t * LANES + <>]
        z<> += w<> * top[code[t] * LANES + <>]
        if starts[t]:
            s<> = sum k: f<k>
            p<> *= s<>
            x<k> = initial[<k>]
        else:
            x<k> = sum j: f<j> * a<jk>
        f<k> = x<k> * (w<> * table[row + <k>] + (1.0 - w<>))
        if t & mask == mask:
            s<> = sum k: f<k>
            small = 1.0
            small = min(small, p<> * s<>)
            if small < SMALL:
                z<> += np.log(p<>) + np.log(s<>)
                p<> = 1.0
            else:
                p<> *= s<>
            s<> = 1.0 / max(s<>, LEAST)
            f<k> *= s<>
        states[at + <k>] = f<k>
    s<> = sum k: f<k>
    log_z[<>] = z<> + np.log(p<> * s<>)
"""
# the likelihood of each step's observation given the others, Σ_k p(z_t = k | seen) e_t(k), which
# `plain` holds, and the expected counts: observations of each row in each state, moves, and first
# states
BACKWARD = """
def backward(transition, starts, code, weight, table, plain, mask, states, mixed, seen, moves, first):
    a<jk> = transition[<jk>]
    m<jk> = 0.0
    e<k> = 1.0
    last = len(code) - 1
    for r in range(len(code)):
        t = last - r
        row, at = code[t] * WIDTH, t * WIDTH
        f<k> = states[at + <k>]
        w<> = weight[t * LANES + <>]
        cut = t == last or starts[t + 1]
        if cut:
            b<k> = 1.0
        else:
            b<j> = sum k: a<jk> * e<k>
        g<k> = f<k> * b<k>
        s<> = sum k: g<k>
        s<> = 1.0 / max(s<>, LEAST)
        g<k> *= s<>
        if not cut:
            h<k> = f<k> * s<>
            m<jk> += h<j> * e<k>
        q<> = sum k: g<k> * plain[row + <k>]
        mixed[t * LANES + <>] = q<>
        u<k> = seen[row + <k>] + w<> * g<k>
        e<k> = (w<> * table[row + <k>] + (1.0 - w<>)) * b<k>
        seen[row + <k>] = u<k>
        if starts[t]:
            first[<k>] += g<k>
        if t & mask == mask:
            s<> = sum k: e<k>
            s<> = 1.0 / max(s<>, LEAST)
            e<k> *= s<>
    moves[<jk>] = m<jk> * a<jk>
"""


class Loops(NamedTuple):
    """Compiled loops for one number of states, and how many refits they take side by side.

    Parameters
    ----------
    lanes : int
        Number of refits, the last axis of all arrays but `starts` and `code`, which are one for
        all. Arrays are flattened.
    forward : callable
        Function as in `FORWARD`.
    backward : callable
        Function as in `BACKWARD`.
    """

    lanes: int
    forward: Routine
    backward: Routine


@functools.cache
def loops(num_states: int) -> Loops | None:
    """Return the loops for a number of states.

    None without numba, or if its compiler makes a mistake.
    """
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    # what fits into registers
    if num_states < 4:
        lanes = 8
    else:
        lanes = 4 if num_states == 4 else 1
    plain = [_function(template, num_states, lanes) for template in (FORWARD, BACKWARD)]
    compiled = [
        numba.njit(nogil=True, error_model="numpy", fastmath={"contract"}, cache=True)(function)
        for function in plain
    ]
    settings: Any = numba.config
    # else lanes are not put into vector registers
    usual = settings.SLP_VECTORIZE
    settings.SLP_VECTORIZE = 1
    try:  # they are compiled at the first call
        expected, actual = (_short_chain(num_states, lanes, *pair) for pair in (plain, compiled))
    finally:
        settings.SLP_VECTORIZE = usual
    if np.allclose(actual, expected, rtol=1e-9, atol=1e-12):
        return Loops(lanes, *compiled)
    return None


def _function(template: str, states: int, lanes: int) -> Routine:
    """Make a template the function for a number of states and lanes."""
    lines = list(
        _written_out(template, states, lanes) if states <= WRITTEN_OUT else _looped(template)
    )
    namespace = {
        **globals(),
        "STATES": states,
        "LANES": lanes,
        "WIDTH": states * lanes,
    }
    lines[0] = sub(r"def (\w+)", rf"def \1_{states}_{lanes}", lines[0])
    # numba keeps what it compiles by this file and the name
    exec(compile("\n".join(lines), __file__, "exec"), namespace)  # noqa: S102 (text of this file)
    return namespace[findall(r"\w+", lines[0])[1]]


def _placed(text: str, states: int, lanes: int, lane: int, indices: dict[str, int]) -> str:
    """Fill in the names of numbers and the places of entries, at given states."""
    number = lambda axes: functools.reduce(
        lambda place, axis: place * states + indices[axis], axes, 0
    )
    text = sub(r"(\w)<(\w*)>", lambda match: f"{match[1]}{number(match[2])}_{lane}", text)
    return sub(r"<(\w*)>", lambda match: str(number(match[1]) * lanes + lane), text)


def _lines(template: str) -> Iterator[tuple[str, list[str], str, str]]:
    """Yield each line up to its sum, the axes of that part, the axis of the sum, and the term."""
    for line in template.strip().splitlines():
        target, _, summand = line.partition("sum ")
        axis, _, term = summand.partition(": ")
        yield target, sorted(set("".join(findall(r"<(\w*)>", target)))), axis, term


def _written_out(template: str, states: int, lanes: int) -> Iterator[str]:
    """Write a template out for every state and lane."""
    for target, axes, axis, term in _lines(template):
        for values in itertools.product(range(states), repeat=len(axes)):
            indices = dict(zip(axes, values, strict=True))
            for lane in range(lanes if search(r"<\w*>", target) else 1):
                terms = (
                    _placed(term, states, lanes, lane, indices | {axis: k})
                    for k in range(states if axis else 0)
                )
                yield _placed(target, states, lanes, lane, indices) + " + ".join(terms)


def _looped(template: str) -> Iterator[str]:
    """Write a template with loops over the states, of one lane."""
    place = lambda axes: (
        " + ".join(f"{axis} * STATES ** {len(axes) - k}" for k, axis in enumerate(axes, 1)) or "0"
    )
    fill = lambda text: sub(
        r"(\w?)<(\w*)>", lambda m: f"{m[1]}[{place(m[2])}]" if m[1] else place(m[2]), text
    )
    arrays = [
        f"{name} = np.empty(STATES ** {len(axes)})"
        for name, axes in findall(r"(\w)<(\w*)>", template)
    ]
    for target, axes, axis, term in _lines(template):
        indent, text = findall(r"( *)(.*)", target)[0]
        adding = [axis, *axes], text.replace(" = ", " += ") + term
        for inner, statement in ((axes, text + "0.0"), adding) if axis else ((axes, text),):
            for depth, index in enumerate(inner):
                yield f"{indent}{' ' * depth}for {index} in range(STATES):"
            yield f"{indent}{' ' * len(inner)}{fill(statement)}"
        yield from (f"    {array}" for array in sorted(set(arrays)) if text.startswith("def "))


def _short_chain(states: int, lanes: int, forward: Routine, backward: Routine) -> np.ndarray:
    """Return all results of the passes over a short chain of two sequences."""
    rng = np.random.default_rng(0)
    steps = 7
    width = states * lanes
    code = rng.integers(0, 3, steps).astype(np.int32)
    starts = np.arange(steps) % 5 == 0
    initial, transition, table, top = (
        rng.uniform(0.1, 1.0, size) for size in (width, states * width, 3 * width, 3 * lanes)
    )
    weight = rng.integers(0, 2, steps * lanes).astype(float)
    out = [
        np.zeros(size)
        for size in (lanes, steps * width, steps * lanes, 3 * width, states * width, width)
    ]
    forward(initial, transition, starts, code, weight, table, top, 3, out[1], out[0])
    backward(transition, starts, code, weight, table, table, 3, *out[1:])
    return np.concatenate(out)
