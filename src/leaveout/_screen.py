"""Accepting refits by samples of units, without gradients of their own, where those of all would be too dear."""

import numpy as np

from . import _certificate as certificate
from . import _sampling as sampling
from ._certificate import FIRST_SAFETY
from ._descent import State, loss_error, padded, take
from ._fit import Fit
from ._plan import Rows


def screen_by_sample(fit: Fit, rows: Rows, state: State, allowed: np.ndarray) -> None:
    """One more step with what the units that leave say, and accept where samples of the others say that little is left."""
    state.step = np.zeros_like(state.u)
    for size in range(len(sampling.SIZES)):
        lanes = np.flatnonzero(~state.finished)
        if not lanes.size:
            return
        lanes = padded(lanes, len(state.u), 64)
        found = sampling.bent(fit, take(rows, lanes), state.u[lanes], size)
        change = np.array(certificate.steps(fit, state.metric, found.gradient))
        length = np.linalg.norm(change, axis=1)
        ratio = length / np.maximum(state.first[lanes], 1e-300)
        q = np.minimum(FIRST_SAFETY * ratio, 0.95)
        near = ratio < 0.5
        state.move(lanes[near], change[near])
        state.step[lanes] = -change
        left = np.where(near, length * q / (1 - q), np.inf)
        state.error[lanes] = loss_error(fit, rows, state, lanes, left) + found.error
        state.finished[lanes] = near & (state.error[lanes] <= allowed[lanes])
