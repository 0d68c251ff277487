"""Gaussian fields on graphs: every site left out, certified; against refits from scratch by a dense implementation.

    python benchmarks/latent_fields.py [philadelphia] [cells] [groups]

Philadelphia: violent crimes of 2018 in 384 tracts, exposure their mean of 2006–2017, BYM2. Cells: 3,000 of a grid of 50 by 60,
Poisson counts of a Leroux field (φ = 0.9, τ = 4), exposures uniform on (1, 8). Times are processor seconds of one thread, and
of the wall: on a busy machine these differ.
"""

import sys
import time

import numpy as np
from dense_fields import Dense, unconstrained

import leaveout as lo
from leaveout.data.datasets import philadelphia


def clocked(run):
    cpu, wall = time.process_time(), time.perf_counter()
    found = run()
    return found, f"{time.process_time() - cpu:.1f} s processor, {time.perf_counter() - wall:.1f} s wall"


def tracts():
    areas, edges = philadelphia()
    exposure = areas[[f"violent_{year}" for year in range(2006, 2018)]].mean(axis=1).to_numpy() + 0.5
    return areas["violent_2018"].to_numpy(float), edges, exposure


def cells(a=50, b=60):
    i, n, rng = np.arange(a * b).reshape(a, b), a * b, np.random.default_rng(0)
    edges = np.r_[np.c_[i[:, :-1].ravel(), i[:, 1:].ravel()], np.c_[i[:-1].ravel(), i[1:].ravel()]]
    R = np.zeros((n, n))
    R[edges[:, 0], edges[:, 1]] = R[edges[:, 1], edges[:, 0]] = -1
    R -= np.diag(R.sum(1))
    u = np.linalg.solve(np.linalg.cholesky(4 * (0.9 * R + 0.1 * np.eye(n))).T, rng.standard_normal(n))
    exposure = rng.uniform(1, 8, n)
    return rng.poisson(exposure * np.exp(0.2 + u)).astype(float), edges, exposure


def left_out(name, y, edges, exposure, **more):
    fit, told = clocked(lambda: lo.fit(lo.GaussianField(y, edges, exposure=exposure, structure="bym2"), **more))
    print(f"{name}: fit {told}, {fit.parameters}", flush=True)
    cv, told = clocked(lambda: lo.cross_validate(fit, lo.leave_one_out(len(y))))
    print(f"{name}: leave-one-site-out, certified, {told}\n{cv}", flush=True)
    return fit, cv


def against_scratch(fit, cv, y, edges, exposure):
    dense = Dense(y, edges, np.ones((len(y), 1)), "poisson", "bym2", exposure=exposure)
    at, off = unconstrained(fit.parameters, dense.names), []
    tight = lo.cross_validate(fit, lo.leave_one_out(len(y)), lo.Certified(1e-3), audit=0)
    for site in np.random.default_rng(0).choice(len(y), 20, replace=False):
        w = np.ones(len(y))
        w[site] = 0
        exact = dense.score(dense.refit(at, w), w, site)
        off.append((abs(cv.losses[site] - exact), abs(tight.losses[site] - exact), cv.error[site]))
        print(f"  site {site}: {exact:.6f}, off by {off[-1][0]:.1e}, {off[-1][1]:.1e}, said {cv.error[site]:.1e}", flush=True)
    worst = np.max(off, axis=0)
    print(f"20 sites against refits from scratch: off by at most {worst[0]:.1e}, of rtol=0.001 {worst[1]:.1e}")


def groups():
    y, edges, exposure = tracts()
    for structure in ("bym2", "leroux", "matern"):
        fit = lo.fit(lo.GaussianField(y, edges, exposure=exposure, structure=structure), num_starts=1)
        plan, told = clocked(lambda fit=fit: lo.auto_groups(fit, 10))
        print(f"{structure}: groups of ten in {told}")
        for name, of in (("one site", lo.leave_one_out(len(y))), ("its group", plan)):
            cv, told = clocked(lambda fit=fit, of=of: lo.cross_validate(fit, of, lo.NewtonStep(), audit=0))
            print(f"  {name} left out: {cv.mean:.4f}, {told}", flush=True)


if __name__ == "__main__":
    asked = sys.argv[1:] or ["philadelphia", "cells", "groups"]
    if "philadelphia" in asked:
        data = tracts()
        against_scratch(*left_out("Philadelphia", *data), *data)
    if "cells" in asked:
        left_out("3,000 cells", *cells(), num_starts=1)
    if "groups" in asked:
        groups()
