"""Problems whose proofs rounding could break, and the check of every proved refit by ball
arithmetic (`verify/`).

A kind is a design and a loss. Each draw has rows, groups or a bootstrap left out, by `Certified()`,
`Exact()`, or as one of the ridges of `lo.path`.
"""

import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import scipy
from leaveout_verify import parse, verify
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

import leaveout as lo
from leaveout.linalg import mapped_design
from leaveout.validation.certificate_file import certify

Array = np.ndarray
VERIFIER = Path(__file__).parents[2] / "verify"


class Draw(NamedTuple):
    """Data of a problem; `alpha` is a ridge, none if it is zero."""

    X: Array
    alpha: float = 0.1
    weight: Array | None = None
    offset: Array | None = None
    intercept: bool = False
    signal: float = 1.0
    form: Any = np.asarray  # what the model is given in the place of X


def mapped(X: Array) -> Array:
    """A memory-mapped file, in float32."""
    with tempfile.NamedTemporaryFile() as file:  # the pages stay after the file has lost its name
        out = np.memmap(file, np.float32, "w+", shape=X.shape)
        out[:] = X
    return out


def scaled(X: Array, column: int, by: float) -> Array:
    X[:, column] *= by
    return X


def beside(X: Array, by: float) -> Array:
    """A column that repeats another but for a share."""
    X[:, 1] = X[:, 0] + by * X[:, 1]
    return X


def once(X: Array, row: int) -> Array:
    X[:, 0] = np.arange(len(X)) == row
    return X


def heavy(X: Array, row: int, by: float) -> Array:
    X[row] *= by
    return X


DESIGNS = {
    "plain": lambda rng, X: Draw(X),
    "no penalty": lambda rng, X: Draw(X, 0.0, intercept=True),
    "heavy tails": lambda rng, X: Draw(rng.standard_t(2, X.shape)),
    "weak penalty": lambda rng, X: Draw(X, 1e-8),
    "strong penalty": lambda rng, X: Draw(X, 1e4),
    "collinear 1e-4": lambda rng, X: Draw(beside(X, 1e-4)),
    "collinear 1e-8": lambda rng, X: Draw(beside(X, 1e-8)),
    "collinear 1e-12, weak penalty": lambda rng, X: Draw(beside(X, 1e-12), 1e-6),
    "columns 1e±6": lambda rng, X: Draw(X * 10.0 ** np.linspace(-6, 6, X.shape[1])),
    "shifted columns": lambda rng, X: Draw(X + 1e5, 1e-3, intercept=True),
    "row x 1000": lambda rng, X: Draw(heavy(X, int(rng.integers(len(X))), 1000.0)),
    "level once": lambda rng, X: Draw(once(X, int(rng.integers(len(X)))), 0.0, intercept=True),
    "leverage one": lambda rng, X: Draw(
        np.r_[X[:1], X[1:] * np.r_[1e-4, np.ones(X.shape[1] - 1)]], 1e-6
    ),
    "near p": lambda rng, X: Draw(rng.normal(size=(13, 10)), 0.0, intercept=True),
    "p > n": lambda rng, X: Draw(rng.normal(size=(20, 30)), 0.5),
    "few rows twice": lambda rng, X: Draw(np.repeat(X[:20], 3, axis=0)),
    "weights sd 3": lambda rng, X: Draw(X, weight=np.exp(3 * rng.normal(size=len(X)))),
    "weights 0, 1e6": lambda rng, X: Draw(
        X, weight=rng.choice([0.0, 1.0, 1e6], len(X), p=[0.2, 0.75, 0.05])
    ),
    "offset 1e6": lambda rng, X: Draw(
        np.c_[X, -np.ones(len(X))], 1e-9, offset=np.full(len(X), 1e6)
    ),
    "separable": lambda rng, X: Draw(X, signal=12.0),
    "sparse": lambda rng, X: Draw(
        X * (rng.random(X.shape) < 0.3), 1e-3, intercept=True, form=scipy.sparse.csr_array
    ),
    "sparse, columns 1e±4": lambda rng, X: Draw(
        X * (rng.random(X.shape) < 0.4) * 10.0 ** np.linspace(-4, 4, X.shape[1]),
        form=scipy.sparse.csr_array,
    ),
    "mapped, in float32": lambda rng, X: Draw(
        np.float32(X + 3.0).astype(float), 1e-3, intercept=True, form=mapped
    ),
}
LOSSES: dict[str, tuple[Any, Any]] = {  # the loss, and draws of a response with linear predictors η
    "squared": ("squared", lambda rng, eta: eta + rng.normal(size=len(eta))),
    "logistic": (
        "logistic",
        lambda rng, eta: 1.0 * (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))),
    ),
    "probit": ("probit", lambda rng, eta: 1.0 * (eta + rng.normal(size=len(eta)) > 0)),
    "cloglog": (
        "cloglog",
        lambda rng, eta: 1.0 * (rng.random(len(eta)) < -np.expm1(-np.exp(np.clip(eta, -5, 2)))),
    ),
    "poisson": ("poisson", lambda rng, eta: 1.0 * rng.poisson(np.exp(np.clip(eta, -6, 3)))),
    "gamma": (
        lo.losses.Gamma(2.0),
        lambda rng, eta: 1e-8 + rng.gamma(2.0, np.exp(np.clip(eta, -6, 3)) / 2),
    ),
    "negative binomial": (
        lo.losses.NegativeBinomial(0.5),
        lambda rng, eta: 1.0 * rng.poisson(np.exp(np.clip(eta, -6, 3))),
    ),
    "tweedie": (
        lo.losses.Tweedie(1.5),
        lambda rng, eta: 1.3 * rng.poisson(np.exp(np.clip(eta, -6, 3))),
    ),
    "pseudo-huber": (
        lo.losses.PseudoHuber(1.0),
        lambda rng, eta: eta + rng.standard_t(1.5, len(eta)),
    ),
}
# fits of scikit-learn: least squares of any rank, centred columns, averages and sums of losses
HOSTS = {
    "least squares 20 x 30": (lambda: LinearRegression(), 20, 30),
    "least squares 20 x 19": (lambda: LinearRegression(fit_intercept=False), 20, 19),
    "least squares 14 x 10": (lambda: LinearRegression(), 14, 10),
    "ridge 1e-8": (lambda: Ridge(1e-8, solver="svd"), 20, 20),
    "ridge 1": (lambda: Ridge(1.0), 60, 4),
    "logistic regression": (lambda: LogisticRegression(C=0.7, tol=1e-8, max_iter=2000), 60, 4),
}
KINDS = [
    *((design, loss) for design in DESIGNS for loss in LOSSES),
    *((host, "scikit-learn") for host in HOSTS),
]


def fit_of(kind: tuple[str, str], seed: int) -> lo.Fit:
    """Draw a problem of a kind and fit it."""
    rng = np.random.default_rng([seed, *(ord(letter) for letter in "".join(kind))])
    if kind[1] == "scikit-learn":
        make, n, p = HOSTS[kind[0]]
        X = rng.normal(size=(n, p)) + 10.0 * rng.normal(size=p)
        y = rng.normal(size=n) if "logistic" not in kind[0] else 1.0 * (rng.random(n) < 0.4)
        return lo.from_sklearn(make().fit(X, y), X, y)
    drawn, (loss, response) = DESIGNS[kind[0]](rng, rng.normal(size=(60, 5))), LOSSES[kind[1]]
    spread = np.std(drawn.X, axis=0)
    scale = np.where(spread > 0, spread, np.inf)
    eta = (
        drawn.X
        @ (rng.normal(size=drawn.X.shape[1]) / scale)
        / np.sqrt(drawn.X.shape[1])
        * drawn.signal
    )
    eta -= eta.mean()
    penalty = lo.penalties.Ridge(drawn.alpha) if drawn.alpha else None
    beside = {"sample_weight": drawn.weight, "offset": drawn.offset, "intercept": drawn.intercept}
    with mock.patch.object(mapped_design, "CHEAP_COPY_ENTRIES", 0):  # else few rows are copied
        return lo.fit(lo.GLM(drawn.form(drawn.X), response(rng, eta), loss, penalty, **beside))


def plans(n: int, seed: int) -> list[lo.Plan]:
    return [lo.leave_one_out(n), lo.groups(np.arange(n) % 6), lo.bootstrap(n, 12, rng=seed)]


def estimates(seed: int) -> Iterator[tuple[tuple[str, str], lo.Estimate]]:
    """Cross-validate draws of all kinds in turn, each by one plan and one strategy.

    What has no minimiser is passed over.
    """
    rng = np.random.default_rng(seed)
    while True:
        for k in rng.permutation(len(KINDS)).tolist():
            kind, draw, which = KINDS[k], int(rng.integers(2**31)), int(rng.integers(3))
            # a strong ridge would leave predictors of 1e6, where a probit loss is 1e12
            strategy = (lo.Certified(), lo.Exact(), None)[
                int(rng.integers(2 if kind[0] == "offset 1e6" else 3))
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    fit = fit_of(kind, draw)
                    plan = plans(fit.objective.num_units, draw)[which]
                    if strategy is None:
                        points = lo.path(
                            fit.objective, 10.0 ** rng.uniform(-6, 3, 3), plan, audit=0
                        ).points
                        found = points[int(rng.integers(3))].estimate
                    else:
                        found = lo.cross_validate(fit, plan, strategy=strategy, audit=0)
                except (RuntimeError, TypeError, ValueError, np.linalg.LinAlgError):
                    continue
            yield kind, found


def check_proofs(
    count: int, seed: int = 0
) -> tuple[Counter, dict[tuple[str, str], Counter], list[tuple]]:
    """Verify `count` proved refits of fresh problems.

    All verdicts, those of each kind, and what is rejected.
    """
    total, by_kind, rejected = Counter[str](), dict[tuple[str, str], Counter](), list[tuple]()
    for kind, cv in estimates(seed):
        if not cv.proved.any():
            total["unproved"] += len(cv.error)
            continue
        says, table = certify(cv.fit, cv.plan, cv.losses, cv.error, cv.proved)
        problem = parse(says, {name: table[name].to_numpy() for name in table})
        verdicts = verify(problem)
        own = Counter(verdict.status for verdict in verdicts) + Counter(
            unproved=len(cv.error) - len(verdicts)
        )
        total, by_kind[kind] = total + own, by_kind.get(kind, Counter()) + own
        rejected += [
            (kind, cv.plan.call, fold["fold"], verdict.beyond, fold["error"])
            for fold, verdict in zip(says["folds"], verdicts, strict=True)
            if verdict.status == "rejected"
        ]
        if total["accepted"] + total["rejected"] + total["undecided"] >= count:
            break
    return total, by_kind, rejected
