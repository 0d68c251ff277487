"""Compare the results of well-posed problems before and after a change of the code, to the last
digit.

A fixed set of small, well-posed problems (MODELS) is fitted, and cross-validated under every plan
that suits it and every strategy. Losses, errors and result codes are kept in one file and compared
with those of another commit:

    git worktree add ../before COMMIT
    PYTHONPATH=../before/src python tools/frozen.py save before.npz
    python tools/frozen.py compare before.npz [model ...]

Kernels of BLAS, NumPy and XLA for other processors sum in another order; what differs then is held
against the reported errors:

    export OPENBLAS_CORETYPE=Prescott XLA_FLAGS=--xla_cpu_max_isa=SSE4_2
    python tools/frozen.py compare --within-errors here.npz

`compare` prints one line a model: how many losses there are, how many differ, the largest
difference in units in the last place and in absolute terms, the same of errors (which may grow on
purpose), and how many result codes differ. It exits with status 1 if any loss differs, or can no
longer be computed. Losses are bit-reproducible on one machine under one version of NumPy, SciPy and
JAX: BLAS is held to one thread, JAX to the CPU.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is most of the time

import jax.numpy as jnp
import numpy as np
import threadpoolctl

import leaveout as lo

Ridge = lo.penalties.Ridge
STRATEGIES = {
    "no update": lo.NoUpdate(),
    "jackknife": lo.InfinitesimalJackknife(),
    "newton step": lo.NewtonStep(),
    "exact": lo.Exact(),
    "certified": lo.Certified(),
}


def table(seed: int, n: int = 40, p: int = 3) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Rows, and a linear predictor of them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return rng, X, X @ rng.uniform(-1, 1, p)


def binary(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)


def linear(
    loss: str,
    penalty: lo.penalties.AbstractPenalty | None = None,
    *,
    weights: bool = False,
    p: int = 3,
) -> lo.GLM:
    rng, X, eta = table(1, p=p)
    y = {
        "squared": lambda: eta + rng.standard_normal(40),
        "logistic": lambda: binary(rng, eta),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "gamma": lambda: rng.gamma(2.0, np.exp(eta) / 2),
        "huber": lambda: eta + rng.standard_t(3, 40),
        "multinomial": lambda: np.argmax(
            np.c_[eta, X[:, 0], -X[:, 1]] + rng.gumbel(size=(40, 3)), axis=1
        ),
    }[loss]()
    more = (
        {"sample_weight": rng.gamma(4.0, 0.25, 40), "offset": rng.standard_normal(40) / 3}
        if weights
        else {}
    )
    return lo.GLM(X, y, loss, penalty, **more)


def cox() -> lo.Cox:
    rng, X, eta = table(2)
    return lo.Cox(X, np.ceil(4 * rng.exponential(np.exp(-eta))), rng.random(40) < 0.8, Ridge(0.3))


def additive() -> lo.Additive:
    rng, X, eta = table(3)
    data = {"x": X[:, 0], "z": X[:, 1], "y": rng.poisson(np.exp(np.sin(eta)))}
    return lo.Additive(
        [lo.terms.s("x", k=5), lo.terms.s("z", k=4, bs="cr")], data, "y", "poisson", smoothing=0.5
    )


def mixed(family: str, drop: str = "row") -> lo.Mixed:
    rng, X, eta = table(4, 60, 1)
    group = rng.integers(0, 10, 60)
    eta = 0.4 + eta + rng.standard_normal(10)[group]
    y = {
        "gaussian": eta + rng.standard_normal(60),
        "binomial": binary(rng, eta),
        "poisson": rng.poisson(np.exp(eta)) * 1.0,
    }
    return lo.Mixed(X, y[family], family, groups={"group": group}, drop=drop)


def on_grid(
    make: Callable[..., lo.developer.AbstractObjective], *more, **options
) -> lo.developer.AbstractObjective:
    """Counts at the sites of a grid, higher in one corner."""
    rng, at = np.random.default_rng(6), np.arange(20).reshape(4, 5)
    y = rng.poisson(2 + 8 * (np.add.outer(np.arange(4), np.arange(5)) > 4).ravel())
    edges = np.r_[
        np.c_[at[:, :-1].ravel(), at[:, 1:].ravel()], np.c_[at[:-1].ravel(), at[1:].ravel()]
    ]
    return make(y, edges, *more, **options)


def process() -> lo.GaussianProcess:
    rng, X, _ = table(7, 30, 2)
    return lo.GaussianProcess(X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(30))


def series(emission: lo.emissions.AbstractEmission, **options) -> lo.HMM:
    rng = np.random.default_rng(8)
    state = np.cumsum(rng.random(60) < 0.1) % 2
    x = (
        rng.standard_normal(60) + 3 * state
        if isinstance(emission, lo.emissions.Gaussian)
        else rng.poisson(2 + 8 * state)
    )
    return lo.HMM(x, emission, 2, **options)


def tags() -> lo.CRF:
    rng = np.random.default_rng(10)
    lengths = rng.integers(1, 6, 30)
    scores = rng.standard_normal((lengths.sum(), 2))
    labels = (scores[:, 0] + rng.logistic(size=len(scores)) < scores[:, 1]).astype(int)
    return lo.CRF(labels, lengths, scores=scores, penalty=Ridge(0.5))


def dispersed() -> lo.Regression:
    rng, X, eta = table(11, 60)
    y = rng.negative_binomial(2, 2 / (2 + np.exp(eta + 1)))
    return lo.Regression(X, y, "negative_binomial", Ridge(0.5))


def separable() -> lo.Separable:
    x = np.random.default_rng(12).standard_normal(40) * 2 + 1
    unit = lambda theta, x: (
        0.5 * ((x - theta["mean"]) * jnp.exp(-theta["log_scale"])) ** 2 + theta["log_scale"]
    )
    return lo.Separable(unit, x, theta0={"mean": np.zeros(()), "log_scale": np.zeros(())})


def objective() -> lo.Objective:
    x = np.random.default_rng(13).standard_t(3, 40)
    F = lambda theta, w: w @ jnp.log1p((x - theta) ** 2 / 3) + 0.05 * theta**2
    return lo.Objective(
        F,
        40,
        lambda theta, w, index: jnp.log1p((jnp.asarray(x)[index] - theta) ** 2 / 3),
        dependence="independent",
    )


ROWS, CHAIN = ("one", "kfold", "groups", "bootstrap"), ("one", "kfold", "blocks")
# and the plans that suit it
MODELS: dict[str, tuple[Callable[[], lo.developer.AbstractObjective], tuple[str, ...]]] = {
    "linear": (lambda: linear("squared"), ROWS),
    "linear, weights and offset": (lambda: linear("squared", weights=True), ROWS),
    "ridge": (lambda: linear("squared", Ridge(0.7)), ROWS),
    "ridge, 60 columns": (lambda: linear("squared", Ridge(5.0), p=60), ROWS),
    "logistic": (lambda: linear("logistic", Ridge(0.5)), ROWS),
    "logistic, weights and offset": (lambda: linear("logistic", Ridge(0.5), weights=True), ROWS),
    "poisson": (lambda: linear("poisson"), ROWS),
    "gamma": (lambda: linear("gamma"), ROWS),
    "huber": (lambda: linear("huber"), ROWS),
    "multinomial": (lambda: linear("multinomial", Ridge(0.5)), ROWS),
    "lasso": (lambda: linear("squared", lo.penalties.Lasso(3.0), p=8), ROWS),
    "elastic net, logistic": (
        lambda: linear("logistic", lo.penalties.ElasticNet(1.0, 0.5), p=8),
        ROWS,
    ),
    "group lasso": (
        lambda: linear("squared", lo.penalties.GroupLasso(2.0, [0, 0, 0, 1, 1, 2, 2, 2]), p=8),
        ROWS,
    ),
    "negative binomial, its dispersion": (dispersed, ROWS),
    "Cox": (cox, ROWS[:3]),
    "additive": (additive, ROWS),
    "mixed, gaussian": (lambda: mixed("gaussian"), ROWS[:3]),
    "mixed, binomial, clusters": (lambda: mixed("binomial", "group"), ("one", "kfold")),
    "mixed, poisson": (lambda: mixed("poisson"), ROWS[:3]),
    "Gaussian field": (lambda: on_grid(lo.GaussianField, structure="leroux"), ("one", "kfold")),
    "Gaussian process": (process, ROWS[:3]),
    "hidden Markov, gaussian": (lambda: series(lo.emissions.Gaussian()), CHAIN),
    "hidden Markov, poisson, sequences": (
        lambda: series(lo.emissions.Poisson(), lengths=[10] * 6, drop="sequence"),
        CHAIN[:1],
    ),
    "hidden Markov, poisson, steps": (lambda: series(lo.emissions.Poisson(), drop="step"), CHAIN),
    "Markov random field": (
        lambda: on_grid(lo.MRF, lo.emissions.Poisson(), 2, coupling=0.5, drop="site"),
        ("one", "kfold"),
    ),
    "conditional random field": (tags, ROWS),
    "separable": (separable, ROWS),
    "objective": (objective, ROWS),
}
PLANS: dict[str, Callable[[int], lo.Plan]] = {
    "one": lo.leave_one_out,
    "kfold": lambda n: lo.kfold(n, 5, rng=1),
    "groups": lambda n: lo.groups(np.arange(n) % 7),
    "blocks": lambda n: lo.blocks(n, 8, buffer=1),
    "bootstrap": lambda n: lo.bootstrap(n, 12, rng=2),
}


def computed(name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Losses, errors and codes of one model under all its plans and strategies, by name."""
    make, plans = MODELS[name]
    start = np.zeros(()) if name == "objective" else None
    fit = lo.fit(make(), start)
    for plan in plans:
        for strategy, refit in STRATEGIES.items():
            cv = lo.cross_validate(fit, PLANS[plan](fit.objective.num_units), strategy=refit)
            for part in ("losses", "error", "result"):
                yield f"{name}/{plan}/{strategy}/{part}", np.asarray(getattr(cv, part))
            yield f"{name}/{plan}/{strategy}/refit", cv.plan.refit


def everything(names: list[str]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name in names:
        began = time.process_time()
        try:
            found |= computed(name)
        except Exception as refused:
            print(f"{name}: {type(refused).__name__}: {refused}", file=sys.stderr)
        print(f"{name}: {time.process_time() - began:.1f} s", file=sys.stderr)
    return found


def share_of_errors(case: str, before: dict[str, np.ndarray], now: dict[str, np.ndarray]) -> float:
    """The largest share of both reported errors that the losses of a refit differ by, beyond 1e-12
    of themselves.
    """
    old, new, refit = before[f"{case}/losses"], now[f"{case}/losses"], now[f"{case}/refit"]
    if len(refit) != len(old):  # one loss a refit
        refit = np.arange(len(old))
    difference = np.nan_to_num(np.abs(new - old), nan=0.0)
    difference[(old != old) != (new != new)] = np.inf
    allowed = (
        before[f"{case}/error"]
        + now[f"{case}/error"]
        + 1e-12 * np.bincount(refit, np.abs(np.nan_to_num(old)))
    )
    return float(np.max(np.bincount(refit, difference) / np.maximum(allowed, 1e-300), initial=0.0))


def compared(
    name: str,
    before: dict[str, np.ndarray],
    now: dict[str, np.ndarray],
    within_errors: bool = False,
) -> bool:
    """Print the line of one model, and return whether its losses are unchanged, or differ by less
    than their errors.
    """
    count, differing, ulps, apart, errors, codes, gone, share = 0, 0, 0.0, 0.0, 0.0, 0, 0, 0.0
    for key in (key for key in before if key.startswith(f"{name}/")):
        old, new, (case, part) = before[key], now.get(key), key.rsplit("/", 1)
        if part == "refit":
            share = max(
                share, share_of_errors(case, before, now) if f"{case}/losses" in now else np.inf
            )
            continue
        if new is None or new.shape != old.shape:
            gone += 1
            continue
        other = ~((old == new) | ((old != old) & (new != new)))
        off = np.nan_to_num(np.abs(new - old)[other], nan=np.inf)
        if part == "losses":
            count, differing = count + len(old), differing + int(other.sum())
            ulps = max(
                ulps,
                np.max(off / np.spacing(np.abs(np.nan_to_num(old[other], nan=1.0))), initial=0.0),
            )
            apart = max(apart, np.max(off, initial=0.0))
        elif part == "error":
            errors = max(errors, np.max(off, initial=0.0))
        else:
            codes += int(other.sum())
    fine = not gone and count > 0 and (share <= 1 and not codes if within_errors else not differing)
    line = f"{count:7d} {differing:9d} {ulps:9.3g} {apart:9.2g} {errors:9.2g} {share:9.2g} {codes:6d} {gone:5d}"
    print(f"{'same  ' if fine else 'OTHER '} {name:36s}{line}")
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["save", "compare"])
    parser.add_argument("file")
    parser.add_argument("models", nargs="*", metavar="model", help=f"any of: {'; '.join(MODELS)}")
    parser.add_argument(
        "--within-errors",
        action="store_true",
        help="losses may differ by their errors: of other kernels",
    )
    args = parser.parse_args()
    if unknown := set(args.models) - MODELS.keys():
        parser.error(f"no such model: {', '.join(unknown)}")
    warnings.simplefilter("ignore")
    names = args.models or list(MODELS)
    print(f"leaveout of {lo.__path__[0]}", file=sys.stderr)
    with threadpoolctl.threadpool_limits(1):
        now = everything(names)
    if args.what == "save":
        np.savez_compressed(args.file, **now)
        print(f"{len(now)} arrays of {len(names)} models, {time.process_time():.0f} s")
        return
    with np.load(args.file) as kept:
        before = dict(kept)
    print(f"{'':43s} losses differing      ulps   largest    errors     share  codes  gone")
    fine = [compared(name, before, now, args.within_errors) for name in names]
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
