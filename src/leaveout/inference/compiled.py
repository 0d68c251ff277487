"""Forward and backward passes over the steps of chains in their order, by loops that numba compiles where it is installed.

Both recursions run side by side, as neither waits for the other, on probabilities that are normalised at every step, by the
factor of the step before, which is known already. No transition may be impossible. Steps with equal observations share a row of
a table of likelihoods, none above one: e_t(k)^{w_t} = table[code_t, k]^{w_t}.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Loops(NamedTuple):
    """Compiled loops for one number of states.

    Parameters
    ----------
    recursions : callable
        Function of (initial, transition, starts, code, weight, table, top, forward, back) that fills in the filtered
        probabilities and the likelihoods of what follows, up to factors of each step, and returns log Z. The logarithms `top`
        of factors of the table's rows are added.
    counts : callable
        Function of (transition, starts, code, weight, forward, back, seen, moves, first) that adds up the expected counts:
        observations of each row in each state, moves, and first states.
    losses : callable
        Function of (code, forward, back, table, top, index, held, out) that fills in −log Σ_k p(z_t = k | the rest) e_t(k) of
        the listed steps that are held out.
    """

    recursions: Callable[..., float]
    counts: Callable[..., None]
    losses: Callable[..., None]


@functools.cache
def loops(num_states: int) -> Loops | None:
    """Return the loops for a number of states, which is a constant in them; None without numba."""
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    K, least = num_states, 1e-300  # a normaliser that underflows makes log Z infinite
    compiled: Any = numba.njit(nogil=True, error_model="numpy", cache=True)

    @compiled
    def recursions(initial, transition, starts, code, weight, table, top, forward, back):
        T, log_z, product, scale, ahead_scale = len(code), 0.0, 1.0, 1.0, 1.0
        ahead = np.empty(K)
        for t in range(T):
            row, w, total, first = code[t], weight[t], 0.0, starts[t]
            for k in range(K):
                x = 0.0
                if first:
                    x, scale = initial[k], 1.0
                else:
                    for j in range(K):
                        x += forward[t - 1, j] * transition[j, k]
                x *= scale * (table[row, k] if w == 1.0 else table[row, k] ** w)
                forward[t, k] = x
                total += x
            log_z += w * top[row]
            scale = 1.0 / max(total, least)  # of the step before, which the next one need not wait for
            if total < 1e-100:
                log_z += np.log(total)
            else:
                product *= total
            if product < 1e-100 or t == T - 1:  # a logarithm of many steps
                log_z += np.log(product)
                product = 1.0
            s = T - 1 - t
            if s == T - 1 or starts[s + 1]:
                ahead_scale = 1.0
                for j in range(K):
                    back[s, j] = 1.0
                continue
            row, w, total = code[s + 1], weight[s + 1], 0.0
            for k in range(K):
                ahead[k] = back[s + 1, k] * (ahead_scale * (table[row, k] if w == 1.0 else table[row, k] ** w))
            for j in range(K):
                x = 0.0
                for k in range(K):
                    x += transition[j, k] * ahead[k]
                back[s, j] = x
                total += x
            ahead_scale = 1.0 / max(total, least)
        return log_z

    @compiled
    def counts(transition, starts, code, weight, forward, back, seen, moves, first):
        states, sums = np.empty(K), np.zeros((K, K))
        for t in range(len(code)):
            total = 0.0
            for k in range(K):
                states[k] = forward[t, k] * back[t, k]
                total += states[k]
            scale = 1.0 / max(total, least)
            for k in range(K):
                states[k] *= scale
                seen[code[t], k] += weight[t] * states[k]
                if starts[t]:
                    first[k] += states[k]
                    continue
                before = 0.0
                for j in range(K):
                    before += forward[t - 1, j] * transition[j, k]
                share = states[k] / before
                for j in range(K):
                    sums[j, k] += forward[t - 1, j] * share
        for j in range(K):
            for k in range(K):
                moves[j, k] = sums[j, k] * transition[j, k]

    @compiled
    def losses(code, forward, back, table, top, index, held, out):
        for n in range(len(index)):
            if not held[n]:
                continue
            t, total, mixed = index[n], 0.0, 0.0
            for k in range(K):
                state = forward[t, k] * back[t, k]
                total += state
                mixed += state * table[code[t], k]
            out[n] = -np.log(mixed / total) - top[code[t]]

    return Loops(recursions, counts, losses)
