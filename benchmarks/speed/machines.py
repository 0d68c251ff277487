"""One core against two, and an accelerator against memory: the same job on other machines.

    LEAVEOUT_DATA=… python benchmarks/speed/machines.py [cores linear separable] [--quick]

cores
the main job of each pillar in fresh processes that may use one core, and all there are. Seconds are
those of the
            first call of the process and the median of three more, of a fresh `Fit` each. Programs
            are in the cache from before, as a user has them: each job is run once, untimed, in a
            process of its own
linear
a logistic `lo.GLM` of rows in float32 and in float64 on the device, against the same in memory by
NumPy:
            leave-one-out and ten folds, seconds of the first call, compiling included, and of the
            next; how far losses are apart
separable   the same model as one writes it in JAX, by folds alone

The device is the last that JAX has; where that is the processor, `linear` and `separable` have
nothing to measure.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import fresh_process, logistic_data, main, show

import leaveout as lo

START = """
import os, json, time
os.sched_setaffinity(0, range({cores}))
import numpy as np, leaveout as lo
from leaveout.optimize.fit import uncached
"""
END = """
times = []
for lap in range(4):
    start = time.perf_counter(); job(); times.append(time.perf_counter() - start)
print(json.dumps({"first": times[0], "warm": float(np.median(times[1:]))}))
"""
LINEAR = """
from common import logistic_data, logistic_fit
X, y = logistic_data({n}, {p})
fit, plan = logistic_fit(X, y), {plan}
job = lambda: lo.cross_validate(uncached(fit), plan)
"""
CHAIN = """
cars = lo.datasets.dodgers().counts[:10_000]
event = lo.emissions.EventCounts(cars["time"].dt.day_of_week.to_numpy())
fit = lo.fit(lo.HMM(cars["count"].to_numpy(), event, 2, initial=[0.5, 0.5]), num_starts=1)
"""
STATES = """
rng = np.random.default_rng(0)
path = np.cumsum(rng.random(20_000) < 0.1) % 8
x = 2.0 * path[:, None] + rng.standard_normal((20_000, 1))
job = lambda: lo.fit(lo.HMM(x, lo.emissions.Gaussian(), 8), num_starts=4)
"""
FIELD = """
import fields
x, edges = fields.city()
fit = lo.fit(lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=0.5, drop="site"))
job = lambda: lo.cross_validate(uncached(fit), lo.leave_one_out(len(x)))
"""
LEAKAGE = """
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
rng = np.random.default_rng(0)
entity = np.repeat(np.arange(200), 10)
X, y = rng.normal(size=(200, 6))[entity] + rng.normal(size=(2000, 6)), rng.normal(size=200)[entity] + rng.normal(size=2000)
known = dict(groups=entity, leakage=lo.leakage.RecordLeakage(0.05), loss="mse")
"""
ROUGH = LEAKAGE + (
    "job = lambda: lo.leakage.leakage_corrected(RandomForestRegressor(20), X, y, "
    "injection=lo.leakage.Injection(num_boot=4), n_jobs=-1, **known)"
)
JOBS = {
    "rows: logistic, 100,000 x 100 left out one by one": LINEAR.format(
        n=100_000, p=100, plan="lo.leave_one_out(100_000)"
    ),
    "rows: 1,000 resamples of 2,000 x 20": LINEAR.format(
        n=2_000, p=20, plan="lo.bootstrap(2_000, 1_000, rng=0)"
    ),
    "chain: 10,000 event counts left out one by one": CHAIN
    + "job = lambda: lo.cross_validate(uncached(fit), lo.leave_one_out(10_000))",
    "chain: 100 folds of a tenth": CHAIN
    + "job = lambda: lo.cross_validate(uncached(fit), lo.random_subsets(10_000, 0.1, 100, rng=0))",
    "chain: fit of eight states, four starts, T = 20,000": STATES,
    "field: every site of Philadelphia": FIELD,
    "leakage: ridge, default draws": LEAKAGE
    + "job = lambda: lo.leakage.leakage_corrected(Ridge(), X, y, **known)",
    "leakage: forests, four draws": ROUGH,
}


def cores() -> None:
    rows = []
    for name, job in JOBS.items():
        fresh_process(START.format(cores=os.cpu_count()) + job + "\njob()\nprint('{}')")
        one, two = (
            fresh_process(START.format(cores=cores) + job + END) for cores in (1, os.cpu_count())
        )
        row = {
            "job": name,
            "one core, first": one["first"],
            "warm": one["warm"],
            "two, first": two["first"],
        }
        rows.append(row | {"two, warm": two["warm"], "one / two": one["warm"] / two["warm"]})
        print(rows[-1], flush=True)
    show(f"one core against {os.cpu_count()}, seconds", rows)


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


def against(
    name: str,
    there: Callable[[], lo.Estimate],
    here: Callable[[], lo.Estimate],
    size: tuple[int, int],
) -> dict:
    """One row of the table."""
    (a, first, again), (b, _, memory) = timed(there), timed(here)
    apart = float(np.nanmax(np.abs(a.losses - b.losses)))
    proved = {"proved": a.proved.mean(), "proved here": b.proved.mean()}
    return (
        {"n": size[0], "p": size[1], "of": name, "first": first, "again": again, "here": memory}
        | {"apart": apart}
        | proved
    )


def linear(quick: bool) -> None:
    """A GLM."""
    device, rows = elsewhere(), []
    for size in SIZES[quick] if device is not None else ():
        X, y = logistic_data(*size)
        plans = {
            "leave-one-out": lo.leave_one_out(size[0]),
            "10 folds": lo.kfold(size[0], 10, rng=0),
        }
        for kind in (np.float32, np.float64):
            own = X.astype(kind)
            sent = put(own, device)
            run = lambda data, plan, y=y: lo.cross_validate(
                lo.fit(lo.GLM(data, y, "logistic", lo.penalties.Ridge(1.0))), plan
            )
            for name, plan in plans.items():
                calls = (functools.partial(run, data, plan) for data in (sent, own.astype(float)))
                rows.append(against(f"{name}, {kind.__name__}", *calls, size))
    told("lo.GLM, logistic, fit and refits: seconds", device, rows)


def unit_loss(theta: jax.Array, datum: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = datum
    eta = x @ theta
    return jnp.logaddexp(0.0, eta) - y * eta


def separable(quick: bool) -> None:
    """A model of one's own."""
    device, rows = elsewhere(), []
    for size in SIZES[quick] if device is not None else ():
        X, y = logistic_data(*size)
        penalty, plan = lambda theta: 0.5 * jnp.sum(theta**2), lo.kfold(size[0], 10, rng=0)

        def run(X: Any, place: Any, y=y, penalty=penalty, plan=plan) -> lo.Estimate:
            with jax.default_device(place):
                fit = lo.fit(
                    lo.Separable(unit_loss, (X, y), penalty, np.zeros(X.shape[1])), num_starts=1
                )
                return lo.cross_validate(fit, plan)

        calls = (
            functools.partial(run, put(X, device), device),
            functools.partial(run, X, jax.devices("cpu")[0]),
        )
        rows.append(against("10 folds, float64", *calls, size))
    told("lo.Separable, fit and refits: seconds", device, rows)


def told(title: str, device: Any, rows: list[dict]) -> None:
    if device is None:
        print("no accelerator here")
    else:
        show(f"{title} on {device.device_kind}, and here", rows)


PARTS = {"cores": cores, "linear": linear, "separable": separable}

if __name__ == "__main__":
    main(PARTS, __doc__, quick=False)
