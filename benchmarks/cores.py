"""One core against two: the main job of each pillar, in fresh processes that may use one core, and all there are.

    LEAVEOUT_DATA=… python benchmarks/cores.py

Seconds: the first call of the process and the median of three more, of a fresh `Fit` each. Programs are in the cache from
before, as a user has them: each job is run once, untimed, in a process of its own.
"""

import os

import fresh
from linear import show

START = """
import os, json, time, dataclasses
os.sched_setaffinity(0, range({cores}))
import numpy as np, leaveout as lo
"""
END = """
times = []
for lap in range(4):
    start = time.perf_counter(); job(); times.append(time.perf_counter() - start)
print(json.dumps({"first": times[0], "warm": float(np.median(times[1:]))}))
"""
LINEAR = """
from linear import logistic_data, logistic_fit
X, y = logistic_data({n}, {p})
fit, plan = logistic_fit(X, y), {plan}
job = lambda: lo.cross_validate(dataclasses.replace(fit), plan)
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
job = lambda: lo.cross_validate(dataclasses.replace(fit), lo.leave_one_out(len(x)))
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
    "rows: logistic, 100,000 x 100 left out one by one": LINEAR.format(n=100_000, p=100, plan="lo.leave_one_out(100_000)"),
    "rows: 1,000 resamples of 2,000 x 20": LINEAR.format(n=2_000, p=20, plan="lo.bootstrap(2_000, 1_000, seed=0)"),
    "chain: 10,000 event counts left out one by one": CHAIN
    + "job = lambda: lo.cross_validate(dataclasses.replace(fit), lo.leave_one_out(10_000))",
    "chain: 100 folds of a tenth": CHAIN
    + "job = lambda: lo.cross_validate(dataclasses.replace(fit), lo.random_subsets(10_000, 0.1, 100, seed=0))",
    "chain: fit of eight states, four starts, T = 20,000": STATES,
    "field: every site of Philadelphia": FIELD,
    "leakage: ridge, default draws": LEAKAGE + "job = lambda: lo.leakage.leakage_corrected(Ridge(), X, y, **known)",
    "leakage: forests, four draws": ROUGH,
}


def main() -> None:
    rows = []
    for name, job in JOBS.items():
        fresh.run(START.format(cores=os.cpu_count()) + job + "\njob()\nprint('{}')")
        one, two = (fresh.run(START.format(cores=cores) + job + END) for cores in (1, os.cpu_count()))
        row = {"job": name, "one core, first": one["first"], "warm": one["warm"], "two, first": two["first"]}
        rows.append(row | {"two, warm": two["warm"], "one / two": one["warm"] / two["warm"]})
        print(rows[-1], flush=True)
    show(f"one core against {os.cpu_count()}, seconds", rows)


if __name__ == "__main__":
    main()
