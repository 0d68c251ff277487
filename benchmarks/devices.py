"""Leave-one-out and ten folds of data on a device against the same in memory: seconds of the first call, compiling included,
and of the next; how far losses are apart.

    python benchmarks/devices.py [linear separable] [--quick]

The device is the last that JAX has; where that is the processor, there is nothing to measure. `linear` is a logistic `lo.GLM`
of rows in float32 and in float64, in memory by NumPy; `separable` the same as one writes it in JAX, by folds alone.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from linear import logistic_data, main, show

import leaveout as lo

SIZES = {False: ((100_000, 50), (1_000_000, 100)), True: ((20_000, 120),)}


def elsewhere() -> Any:
    """The device, if it is none of the processor's own memory."""
    device = jax.devices()[-1]
    return None if device == jax.devices("cpu")[0] else device


def put(X: np.ndarray, device: Any) -> jax.Array:
    with jax.enable_x64(True):
        return jax.device_put(X, device)


def timed(run: Callable[[], lo.Estimate]) -> tuple[lo.Estimate, float, float]:
    """What came of it, and seconds of the first call and of the next."""
    times = [time.perf_counter()]
    for _ in range(2):
        found = run()
        times.append(time.perf_counter())
    return found, *np.diff(times).tolist()


def against(name: str, there: Callable[[], lo.Estimate], here: Callable[[], lo.Estimate], size: tuple[int, int]) -> dict:
    """One row of the table."""
    (a, first, again), (b, _, memory) = timed(there), timed(here)
    apart = float(np.nanmax(np.abs(a.losses - b.losses)))
    proved = {"proved": a.proved.mean(), "proved here": b.proved.mean()}
    return {"n": size[0], "p": size[1], "of": name, "first": first, "again": again, "here": memory} | {"apart": apart} | proved


def linear(quick: bool, out: Path) -> None:
    """A GLM."""
    del out
    device, rows = elsewhere(), []
    for size in SIZES[quick] if device is not None else ():
        X, y = logistic_data(*size)
        plans = {"leave-one-out": lo.leave_one_out(size[0]), "10 folds": lo.kfold(size[0], 10, seed=0)}
        for kind in (np.float32, np.float64):
            own = X.astype(kind)
            sent = put(own, device)
            run = lambda data, plan, y=y: lo.cross_validate(lo.fit(lo.GLM(data, y, "logistic", lo.penalties.Ridge(1.0))), plan)
            for name, plan in plans.items():
                calls = (functools.partial(run, data, plan) for data in (sent, own.astype(float)))
                rows.append(against(f"{name}, {kind.__name__}", *calls, size))
    told("lo.GLM, logistic, fit and refits: seconds", device, rows)


def unit_loss(theta: jax.Array, datum: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = datum
    eta = x @ theta
    return jnp.logaddexp(0.0, eta) - y * eta


def separable(quick: bool, out: Path) -> None:
    """A model of one's own."""
    del out
    device, rows = elsewhere(), []
    for size in SIZES[quick] if device is not None else ():
        X, y = logistic_data(*size)
        penalty, plan = lambda theta: 0.5 * jnp.sum(theta**2), lo.kfold(size[0], 10, seed=0)

        def run(X: Any, place: Any, y=y, penalty=penalty, plan=plan) -> lo.Estimate:
            with jax.default_device(place):
                fit = lo.fit(lo.Separable(unit_loss, (X, y), penalty, np.zeros(X.shape[1])), num_starts=1)
                return lo.cross_validate(fit, plan)

        calls = functools.partial(run, put(X, device), device), functools.partial(run, X, jax.devices("cpu")[0])
        rows.append(against("10 folds, float64", *calls, size))
    told("lo.Separable, fit and refits: seconds", device, rows)


def told(title: str, device: Any, rows: list[dict]) -> None:
    if device is None:
        print("no accelerator here")
    else:
        show(f"{title} on {device.device_kind}, and here", rows)


if __name__ == "__main__":
    main({"linear": linear, "separable": separable}, __doc__)
