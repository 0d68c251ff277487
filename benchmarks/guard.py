"""Whether a change made the library slower: about thirty calls.

    python benchmarks/guard.py [row ...]
        # each against an opponent or a floor in the same process; prints the ratios
    python benchmarks/guard.py --against COMMIT [row ...]
        # each against the same call of the library at COMMIT; prints the ratios, and exits with 1
        # if a call is more than a tenth slower now

A row is the least processor time of a warm call. The two take turns, on one thread. Rows whose
opponent is not installed are left out, and named. The rows of the last block are processes of their
own.

COMMIT is checked out as a temporary worktree. One process a tree times the rows of this file, in
turns row by row, in three runs; what counts is the sum of the three. Run it with nothing else on
the machine: processor times vary by a few per cent then, and by a tenth if another program uses the
caches. A ratio to an opponent differs between processors by up to a half, so none is kept.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import argparse
import contextlib
import functools
import importlib.util
import itertools
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy
from sklearn import linear_model, metrics
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize

import leaveout as lo

ROOT = Path(__file__).resolve().parents[1]
SLOWER = 1.1  # ratio to another commit from which a row is called slower
RUNS = 3  # comparisons of two commits, whose times are summed
SECONDS = 4.0  # processor time after which a row is not repeated
Call = Callable[[], Any]
ROWS: dict[str, tuple[str, Callable[[], tuple[Call, Call]]]] = {}
MISSING: dict[str, str] = {}  # rows that are left out, and the packages that they need


def row(
    opponent: str, needs: str = ""
) -> Callable[[Callable[[], tuple[Call, Call]]], Callable[[], tuple[Call, Call]]]:
    """Register a function that returns our call and the opponent's, under its name in words."""

    def register(make: Callable[[], tuple[Call, Call]]) -> Callable[[], tuple[Call, Call]]:
        name = make.__name__.replace("_", " ")
        if not needs or importlib.util.find_spec(needs):
            ROWS[name] = opponent, make
        else:
            MISSING[name] = needs
        return make

    return register


def logistic(n: int, p: int) -> tuple[np.ndarray, np.ndarray, lo.Fit]:
    """Binary responses, and the fit with the penalty ½ ‖β‖²."""
    random = np.random.default_rng(0)
    X = random.standard_normal((n, p))
    y = (random.random(n) < scipy.special.expit(X @ random.standard_normal(p) / np.sqrt(p))) * 1.0
    return X, y, lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))


def one_step(X: np.ndarray, y: np.ndarray, fit: lo.Fit) -> np.ndarray:
    """Leave-one-out by hand: one Newton step a row, all in two matrix products."""
    rows = np.column_stack([X, np.ones(len(X))])
    theta = np.append(fit.parameters["coef"], fit.parameters["intercept"])
    eta = rows @ theta
    mean = scipy.special.expit(eta)
    curvature = mean * (1 - mean)
    hessian = (rows.T * curvature) @ rows + np.diag(np.append(np.ones(X.shape[1]), 0))
    whitened = scipy.linalg.solve_triangular(np.linalg.cholesky(hessian), rows.T, lower=True)
    leverage = np.einsum("pn,pn->n", whitened, whitened)
    held = eta + leverage * (mean - y) / (1 - curvature * leverage)
    return np.logaddexp(0, held) - y * held


def leave_one_out(n: int, p: int, refit: lo.developer.AbstractRefit) -> tuple[Call, Call]:
    X, y, fit = logistic(n, p)
    plan = lo.leave_one_out(n)
    return lambda: lo.cross_validate(fit, plan, strategy=refit), lambda: one_step(X, y, fit)


@row("by hand")
def leave_one_out_1000_x_5_newton() -> tuple[Call, Call]:
    return leave_one_out(1000, 5, lo.NewtonStep())


@row("by hand")
def leave_one_out_10000_x_50_newton() -> tuple[Call, Call]:
    return leave_one_out(10_000, 50, lo.NewtonStep())


@row("by hand")
def leave_one_out_1000_x_5_certified() -> tuple[Call, Call]:
    return leave_one_out(1000, 5, lo.Certified())


@row("by hand")
def leave_one_out_10000_x_50_certified() -> tuple[Call, Call]:
    return leave_one_out(10_000, 50, lo.Certified())


@row("by hand")
def leave_one_out_2000_x_400_certified() -> tuple[Call, Call]:
    return leave_one_out(2000, 400, lo.Certified())


@row("without class weights")
def leave_one_out_of_balanced_classes_6000_x_100() -> tuple[Call, Call]:
    X, y, fit = logistic(6000, 100)
    balanced = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0), class_weight="balanced"))
    plan = lo.leave_one_out(6000)
    return lambda: lo.cross_validate(balanced, plan), lambda: lo.cross_validate(fit, plan)


@row("by hand, from the matrix of the rows")
def leave_one_out_600_x_20000_sparse() -> tuple[Call, Call]:
    random = np.random.default_rng(0)
    X = scipy.sparse.random_array((600, 20_000), density=0.004, rng=random, format="csr")
    X = normalize(X)  # as texts are
    y = (random.random(600) < 0.4) * 1.0
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    eta = X @ fit.parameters["coef"] + fit.parameters["intercept"]

    def by_hand() -> np.ndarray:
        mean = scipy.special.expit(eta)
        curvature = mean * (1 - mean)
        # an intercept that is next to free
        inverse = np.linalg.inv((X @ X.T).toarray() + 1e6 + np.diag(1 / curvature))
        leverage = 1 / curvature - np.diag(inverse) / curvature**2
        held = eta + leverage * (mean - y) / (1 - curvature * leverage)
        return np.logaddexp(0, held) - y * held

    plan = lo.leave_one_out(600)
    return lambda: lo.cross_validate(fit, plan), by_hand


@row("scikit-learn's fit")
def fit_10000_x_50() -> tuple[Call, Call]:
    X, y, _ = logistic(10_000, 50)
    host = linear_model.LogisticRegression(C=1.0)
    return lambda: lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0))), lambda: host.fit(X, y)


def folds_of_host(X: np.ndarray, y: np.ndarray, plan: lo.Plan, weighted: bool = False) -> Call:
    """Refit scikit-learn's logistic regression for every row of a plan, warm."""

    def run() -> None:
        host = linear_model.LogisticRegression(C=1.0, warm_start=True, tol=1e-6)
        host.fit(X, y)
        for start, stop in zip(plan.indptr[:-1], plan.indptr[1:], strict=True):
            weight = np.ones(len(X))
            weight[plan.index[start:stop]] = plan.weight[start:stop]
            seen = weight > 0
            host.fit(X[seen], y[seen], sample_weight=weight[seen] if weighted else None)

    return run


@row("scikit-learn's ten fits")
def ten_folds_20000_x_50_exact() -> tuple[Call, Call]:
    X, y, fit = logistic(20_000, 50)
    plan = lo.kfold(len(X), 10, rng=0)
    return lambda: lo.cross_validate(fit, plan, strategy=lo.Exact()), folds_of_host(X, y, plan)


@row("scikit-learn's ten fits")
def ten_folds_1000_x_10_certified() -> tuple[Call, Call]:
    X, y, fit = logistic(1000, 10)
    plan = lo.kfold(len(X), 10, rng=0)
    return lambda: lo.cross_validate(fit, plan), folds_of_host(X, y, plan)


@row("scikit-learn's fits, warm")
def bootstrap_200_of_2000_x_20() -> tuple[Call, Call]:
    X, y, fit = logistic(2000, 20)
    plan = lo.bootstrap(len(X), 200, rng=0)
    return lambda: lo.cross_validate(fit, plan), folds_of_host(X, y, plan, weighted=True)


@row("a loop of Newton's method from the fit")
def covariance_of_100_clusters_10000_x_20() -> tuple[Call, Call]:
    from covariances import clustered, newton_loop

    X, y, label = clustered(10_000, 20, 100)
    fit = lo.fit(lo.GLM(X, y, "logistic"))
    return lambda: lo.covariance(fit, "CRV3", groups=label), lambda: newton_loop(
        X, y, label, fit.vector
    )


@row("scikit-learn's fit")
def multinomial_3000_x_20_leave_one_out() -> tuple[Call, Call]:
    random = np.random.default_rng(0)
    X = random.standard_normal((3000, 20))
    y = np.argmax(X @ random.standard_normal((20, 5)) + random.gumbel(size=(3000, 5)), axis=1)
    fit = lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(1.0)))
    host = linear_model.LogisticRegression(C=1.0)
    return lambda: lo.cross_validate(fit, lo.leave_one_out(3000)), lambda: host.fit(X, y)


@row("scikit-learn's fit")
def lasso_2000_x_20_leave_one_out() -> tuple[Call, Call]:
    random = np.random.default_rng(0)
    X = random.standard_normal((2000, 20))
    y = X[:, :5].sum(1) + random.standard_normal(2000)
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(100.0)))
    host = linear_model.Lasso(100.0 / 2000, tol=1e-8)
    return lambda: lo.cross_validate(fit, lo.leave_one_out(2000)), lambda: host.fit(X, y)


@row("one step of all rows by hand, twelve times")
def path_of_twelve_ridges_569_x_30() -> tuple[Call, Call]:
    X, y, fit = logistic(569, 30)
    penalties, plan = np.geomspace(0.1, 100, 12), lo.leave_one_out(569)
    return lambda: lo.path(fit.objective, penalties, plan), lambda: [
        one_step(X, y, fit) for _ in penalties
    ]


@row("bbai", "bbai")
def penalty_by_leave_one_out_569_x_30() -> tuple[Call, Call]:
    return penalty_by_leave_one_out(569, 30)


@row("bbai", "bbai")
def penalty_by_leave_one_out_20000_x_50() -> tuple[Call, Call]:
    return penalty_by_leave_one_out(20_000, 50)


def penalty_by_leave_one_out(rows: int, columns: int) -> tuple[Call, Call]:
    from bbai.glm import LogisticRegression

    X, y, fit = logistic(rows, columns)
    build = lambda l2: fit.objective.under(lo.penalties.Ridge(l2))
    ours = lambda: lo.tune(build, {"l2": (1e-3, 1e3)}, lo.leave_one_out(rows), num_outer_folds=0)
    return ours, lambda: LogisticRegression().fit(X, y)


@row("scikit-learn's")
def pipeline_of_scikit_learn_five_folds() -> tuple[Call, Call]:
    X, y, _ = logistic(5000, 20)
    host = make_pipeline(StandardScaler(), linear_model.LogisticRegression())
    return lambda: lo.sklearn.cross_val_score(host, X, y, cv=5), lambda: cross_val_score(
        host, X, y, cv=5
    )


def chain() -> tuple[np.ndarray, lo.Fit, Call]:
    """Counts of a chain of 20,000 steps and two states, its fit, and one forward–backward pass of
    hmmlearn.
    """
    from hmmlearn import _hmmc

    random = np.random.default_rng(0)
    states = np.cumsum(random.random(20_000) < 0.02) % 2
    counts = random.poisson(np.array([2.0, 9.0])[states])
    likelihood = scipy.stats.poisson.pmf(counts[:, None], [2.0, 9.0])
    start, moves = np.full(2, 0.5), np.array([[0.98, 0.02], [0.02, 0.98]])

    def passes() -> None:
        _, _, scaling = _hmmc.forward_scaling(start, moves, likelihood)
        _hmmc.backward_scaling(start, moves, likelihood, scaling)

    return counts, lo.fit(lo.HMM(counts, lo.emissions.Poisson(), 2)), passes


def one_fold_of_a_chain(refit: lo.developer.AbstractRefit) -> tuple[Call, Call]:
    _, fit, passes = chain()
    plan = lo.random_subsets(20_000, 0.1, 4, rng=0)
    return lambda: lo.cross_validate(fit, plan, strategy=refit, audit=0), lambda: [
        passes() for _ in range(4)
    ]


@row("hmmlearn's passes, one a fold", "hmmlearn")
def chain_of_20000_by_the_jackknife() -> tuple[Call, Call]:
    return one_fold_of_a_chain(lo.InfinitesimalJackknife())


@row("hmmlearn's passes, one a fold", "hmmlearn")
def chain_of_20000_certified() -> tuple[Call, Call]:
    return one_fold_of_a_chain(lo.Certified())


@row("hmmlearn's passes, one a fold", "hmmlearn")
def chain_of_20000_exact() -> tuple[Call, Call]:
    return one_fold_of_a_chain(lo.Exact())


@row("hmmlearn's EM from the truth", "hmmlearn")
def fit_of_a_chain_of_20000() -> tuple[Call, Call]:
    from hmmlearn.hmm import PoissonHMM

    counts, fit, _ = chain()

    def em() -> None:
        host = PoissonHMM(2, init_params="", n_iter=100, tol=1e-4)
        host.startprob_, host.transmat_ = np.full(2, 0.5), np.array([[0.98, 0.02], [0.02, 0.98]])
        host.lambdas_ = np.array([[2.0], [9.0]])
        host.fit(counts[:, None])

    return lambda: lo.fit(fit.objective, num_starts=1), em


@row("a pass over its cliques in NumPy")
def field_of_64_sites_eight_folds() -> tuple[Call, Call]:
    from leaveout.inference import clique

    random, side = np.random.default_rng(0), 8
    number = np.arange(side**2).reshape(side, side)
    edges = np.concatenate(
        [
            np.stack([a.ravel(), b.ravel()], 1)
            for a, b in ((number[:, :-1], number[:, 1:]), (number[:-1], number[1:]))
        ]
    )
    x = np.where(number.ravel() % side < 4, 0, 3) + random.standard_normal(side**2)
    fit = lo.fit(lo.MRF(x, edges, lo.emissions.Gaussian(), 2, coupling=0.5))
    tree = clique.tree(side**2, edges, 2)
    potentials = random.standard_normal((side**2 * 2 + len(edges) * 4, 1))
    return lambda: lo.cross_validate(fit, lo.kfold(side**2, 8, rng=0)), lambda: tree.log_partition(
        potentials
    )


@row("crfsuite's fit", "sklearn_crfsuite")
def crf_of_200_sequences() -> tuple[Call, Call]:
    from sklearn_crfsuite import CRF

    random = np.random.default_rng(0)
    labels = random.integers(0, 3, (200, 10))
    features = np.eye(3)[labels] + 0.7 * random.standard_normal((200, 10, 3))
    fit = lo.fit(lo.CRF(labels.ravel(), np.full(200, 10), features=features.reshape(-1, 3)))
    words = [
        [{"a": float(a), "b": float(b), "c": float(c)} for a, b, c in sequence]
        for sequence in features
    ]
    texts = [[str(label) for label in sequence] for sequence in labels]
    host = lambda: CRF(c2=0.5, max_iterations=100).fit(words, texts)
    return lambda: lo.cross_validate(fit, lo.leave_one_out(200)), host


def clusters() -> tuple[pd.DataFrame, Callable[[int], lo.Mixed]]:
    """A logistic mixed model of 200 clusters of ten rows."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.standard_normal(2000), "g": np.repeat(np.arange(200), 10)})
    eta = 0.5 * frame.x + random.standard_normal(200)[frame.g]
    frame["y"] = (random.random(2000) < scipy.special.expit(eta)) * 1.0
    return frame, lambda nodes: lo.Mixed(
        "y ~ x + (1 | g)", frame, "binomial", drop="g", quadrature=nodes
    )


def fit_of_clusters(nodes: int) -> tuple[Call, Call]:
    import glmm

    frame, model = clusters()
    return lambda: lo.fit(model(nodes)), lambda: glmm.fit(
        frame, "y ~ x + (1 | g)", "binomial", nagq=nodes
    )


@row("glmm's fit", "glmm")
def mixed_model_of_200_clusters_laplace() -> tuple[Call, Call]:
    return fit_of_clusters(1)


@row("glmm's fit", "glmm")
def mixed_model_of_200_clusters_25_nodes() -> tuple[Call, Call]:
    return fit_of_clusters(25)


@row("glmm's fit", "glmm")
def mixed_model_200_clusters_left_out() -> tuple[Call, Call]:
    _, model = clusters()
    fit, (_, theirs) = lo.fit(model(1)), fit_of_clusters(1)
    return lambda: lo.cross_validate(fit, lo.leave_one_out(200)), theirs


@row("glmm's fit", "glmm")
def crossed_effects_3000_rows() -> tuple[Call, Call]:
    import glmm

    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": random.standard_normal(3000),
            "a": random.integers(0, 100, 3000),
            "b": random.integers(0, 40, 3000),
        }
    )
    eta = (
        0.3 * frame.x
        + 0.4 * random.standard_normal(100)[frame.a]
        + 0.3 * random.standard_normal(40)[frame.b]
    )
    frame["y"] = random.poisson(np.exp(eta))
    formula = "y ~ x + (1 | a) + (1 | b)"
    return lambda: lo.fit(lo.Mixed(formula, frame, "poisson")), lambda: glmm.fit(
        frame, formula, "poisson"
    )


@row("scikit-learn's fit")
def gaussian_process_of_150() -> tuple[Call, Call]:
    random = np.random.default_rng(0)
    x = np.sort(random.random(150))[:, None] * 6
    y = np.sin(x[:, 0]) + 0.3 * random.standard_normal(150)
    host = GaussianProcessRegressor(
        kernels.ConstantKernel() * kernels.RBF() + kernels.WhiteKernel()
    )
    return lambda: lo.cross_validate(
        lo.fit(lo.GaussianProcess(x, y)), lo.leave_one_out(150)
    ), lambda: host.fit(x, y)


@row("twenty penalised solves")
def additive_model_of_500() -> tuple[Call, Call]:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.random(500), "z": random.random(500)})
    frame["y"] = np.sin(6 * frame.x) + frame.z**2 + 0.3 * random.standard_normal(500)
    model = lo.Additive("y ~ s(x) + s(z)", frame)
    basis = random.standard_normal((500, 20))
    solves = lambda: [
        np.linalg.solve(basis.T @ basis + k * np.eye(20), basis.T @ frame.y) for k in range(20)
    ]
    return lambda: lo.smooth(model, lo.leave_one_out(500)), solves


@row("statsmodels' fit", "statsmodels")
def cox_200_rows_left_out() -> tuple[Call, Call]:
    from statsmodels.duration.hazard_regression import PHReg

    random = np.random.default_rng(0)
    X = random.standard_normal((200, 3))
    time_, event = random.exponential(np.exp(-X[:, 0])), random.random(200) < 0.7
    fit = lo.fit(lo.Cox(X, time_, event))
    return lambda: lo.cross_validate(fit, lo.leave_one_out(200)), lambda: PHReg(
        time_, X, event
    ).fit()


@row("scikit-learn's fits, with area and Brier")
def bootstrap_validations_2000_x_20() -> tuple[Call, Call]:
    X, y, _ = logistic(2000, 20)
    fit, plan = lo.fit(lo.GLM(X, y, "logistic")), lo.bootstrap(2000, 60)
    host = linear_model.LogisticRegression(C=np.inf, max_iter=1000)

    def loop() -> None:
        for weights in plan.matrix().astype(int):
            rows = np.repeat(np.arange(2000), weights)
            host.fit(X[rows], y[rows])
            for own in (rows, slice(None)):
                p = host.predict_proba(X[own])[:, 1]
                metrics.roc_auc_score(y[own], p)
                metrics.brier_score_loss(y[own], p)

    return lambda: lo.clinical.validate(fit, plan=plan, num_curves=0), loop


@row("scikit-learn's fits, as many")
def leakage_by_forty_draws() -> tuple[Call, Call]:
    X, y, _ = logistic(400, 4)
    groups = np.repeat(np.arange(80), 5)
    injection = lo.leakage.Injection(num_levels=4, num_boot=10)
    host = linear_model.LogisticRegression()
    ours = lambda: lo.leakage.leakage_corrected(
        host,
        X,
        y,
        groups=groups,
        leakage=lo.leakage.RecordLeakage(0.05),
        loss="logistic",
        injection=injection,
    )
    return ours, lambda: [host.fit(X[k % 5 :], y[k % 5 :]) for k in range(200)]


@row("the cross-validation itself")
def influence_of_1000_rows() -> tuple[Call, Call]:
    _, _, fit = logistic(1000, 10)
    plan = lo.leave_one_out(1000)
    estimate = lo.cross_validate(fit, plan)
    return lambda: lo.influence(estimate), lambda: lo.cross_validate(fit, plan)


IN_PROCESSES = {  # code of ours and of the opponent, each in a process of its own
    "import leaveout": ("import leaveout", "import numpy"),
    "leaveout --help": (
        "import sys; sys.argv = ['leaveout', '--help']; from leaveout.extensions.cli import app; app()",
        "import typer",
    ),
    "first leave-one-out": (
        "import numpy as np, leaveout as lo; g = np.random.default_rng(0); X = g.normal(size=(200, 5)); y = X[:, 0] > 0\n"
        "lo.cross_validate(lo.fit(lo.GLM(X, y * 1.0, 'logistic', lo.penalties.Ridge(1.0))), lo.leave_one_out(200))",
        "import numpy as np; from sklearn.linear_model import LogisticRegression as L\n"
        "g = np.random.default_rng(0); X = g.normal(size=(200, 5)); L().fit(X, X[:, 0] > 0)",
    ),
}


def seconds_of_process(code: str) -> float:
    """Processor time of a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_of_servers() -> float:
    """Processor time so far of child processes that live on, such as the server that computes for
    bbai; zero beside Linux.
    """
    own = (
        pid
        for file in Path("/proc/self/task").glob("*/children")
        for pid in file.read_text().split()
    )
    spent = (file for pid in own for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in spent) / 1e9


def seconds_of_call(call: Call, servers: Callable[[], float] = float) -> float:
    """Processor time of a call, with that of servers, which may also spend some while they wait for
    the next call.
    """
    start = time.process_time() + servers()
    call()
    return time.process_time() + servers() - start


def least(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """Least times of two calls, which take turns at least three times."""
    times: list[tuple[float, float]] = []
    while len(times) < 3 or (np.sum(times) < SECONDS and len(times) < 25):
        times.append((first(), second()))
    return min(time for time, _ in times), min(time for _, time in times)


def against_opponents(names: list[str]) -> None:
    """Print the times of rows, and their ratios to those of the opponents."""
    print(f"{'':42} {'ours, ms':>10} {'ratio':>9}  opponent")
    for name in names:
        if name in ROWS:
            opponent, make = ROWS[name]
            calls = make()
            for call in calls:
                call()
            # its server spins on when other rows are measured
            servers = seconds_of_servers if opponent == "bbai" else float
            ours, theirs = least(
                functools.partial(seconds_of_call, calls[0]),
                functools.partial(seconds_of_call, calls[1], servers),
            )
        else:
            codes = IN_PROCESSES[name]
            opponent = codes[1].splitlines()[0][:40]
            ours, theirs = least(
                functools.partial(seconds_of_process, codes[0]),
                functools.partial(seconds_of_process, codes[1]),
            )
        print(f"{name:42} {1000 * ours:10.1f} {ours / theirs:9.3g}  {opponent}", flush=True)


def answers(lines: Iterable[str]) -> Iterator[str]:
    """Time our calls, as another process asks for it.

    The name of a row makes its call, and is answered by what is wrong, or nothing; an empty line is
    answered by the seconds of one more call.
    """
    seconds: Callable[[], float] = float
    for line in lines:
        name, answer = line.strip(), ""
        if not name:
            answer = repr(seconds())
        elif name in IN_PROCESSES:
            seconds = functools.partial(seconds_of_process, IN_PROCESSES[name][0])
        else:
            try:
                call = ROWS[name][1]()[0]
                call()
            except Exception as error:  # a row may be of what a commit lacks
                answer = repr(error).replace("\n", " ")
            else:
                seconds = functools.partial(seconds_of_call, call)
        yield answer


def serve() -> None:
    """Say which library is timed, then answer lines of standard input."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # what else is printed is no answer
        for answer in itertools.chain([str(lo.__file__)], answers(sys.stdin)):
            print(answer, file=out, flush=True)


@contextlib.contextmanager
def timer(tree: Path) -> Iterator[Callable[[str], str]]:
    """A process that times the rows of this file with the library of a source tree: a function from
    a line to its answer.
    """
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, __file__, "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:

        def ask(line: str) -> str:
            print(line, file=process.stdin, flush=True)
            return answer()

        def answer() -> str:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError(f"the process that times the library of {tree} ended.")
            return line.strip()

        try:
            library = answer()
            if not Path(library).is_relative_to(tree):
                raise RuntimeError(f"Python imports {library}, not the library of {tree}.")
            yield ask
        finally:
            process.kill()


def seconds_of_answer(ask: Callable[[str], str]) -> float:
    """Processor time of one call of the row that a timer was asked for last."""
    return float(ask(""))


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A temporary folder in which a commit is checked out."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def against_commit(commit: str, names: list[str]) -> list[str]:
    """Print the ratios of the times of rows to those at a commit; return the rows that became
    slower.
    """
    times = {name: np.zeros(2) for name in names}
    untimed: dict[str, str] = {}
    with worktree(commit) as tree:
        for _ in range(RUNS):
            with timer(ROOT) as ask_now, timer(tree) as ask_before:
                for name in names:
                    untimed[name] = ask_now(name) or ask_before(name)
                    if not untimed[name]:
                        times[name] += least(
                            functools.partial(seconds_of_answer, ask_now),
                            functools.partial(seconds_of_answer, ask_before),
                        )
    print(f"{'sums of three runs':42} {'now, ms':>10} {'before, ms':>10} {'ratio':>9}")
    slower = []
    for name, (now, before) in times.items():
        if untimed[name]:
            print(f"{name:42} not timed: {untimed[name]}")
        else:
            print(f"{name:42} {1000 * now:10.1f} {1000 * before:10.1f} {now / before:9.3g}")
            if now > SLOWER * before:
                slower.append(f"{name} ({now / before:.3g})")
    return slower


def main() -> None:
    """Measure the rows, against opponents or against a commit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "row", nargs="*", help="rows to measure, by a part of their names; all by default"
    )
    parser.add_argument(
        "--against", metavar="COMMIT", help="compare with the library at this commit"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.serve:
        serve()
        return
    for name, package in MISSING.items():
        print(f"left out, as {package} is not installed: {name}")
    names = [
        name
        for name in [*ROWS, *IN_PROCESSES]
        if not options.row or any(part in name for part in options.row)
    ]
    if options.against is None:
        against_opponents(names)
    elif slower := against_commit(options.against, names):
        sys.exit(f"more than a tenth slower than at {options.against}: {'; '.join(slower)}")


if __name__ == "__main__":
    main()
