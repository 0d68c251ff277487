"""Leave-one-out of linear predictors by the programs of this field, against refits of every row:
who is how far off?

    python benchmarks/peers.py [predictors links measures] [--only LOSS]

predictors
one table of programs, on eleven problems: squared, logistic, probit, cloglog, Poisson with an
offset, gamma with a
             log link; with and without an intercept, with weights, with a ridge penalty. --only
             takes the problems of one loss
links        links that are not canonical, against statsmodels' three influence measures
measures
influence measures of statsmodels and ours: leverage, Cook's distance, dfbetas, studentised
residuals

In `predictors` each program gives the linear predictor of every row from the fit without it:

leaveout      Certified(), and NewtonStep(), which is ALO
refitting     n fits by scikit-learn, where it has the model
statsmodels   params − d_params of its influence measures, one fit
RidgeCV       its leave-one-out predictions at the one alpha
MAPIE
the residuals of CrossConformalRegressor with LeaveOneOut, which refits; their sign is taken from
the truth RandALO
its leave-one-out predictions (`evaluate_bks`) and, for the optimism, its risk (`evaluate`), each
from 100
              products with its Jacobian, as by default; float32, randomised; the intercept is a
              column. It needs PyTorch, and is used where it can be imported

The truth is a refit of each row by Newton's method in NumPy to the floor. *error* is ‖η − η_true‖ /
‖η_true − η̂‖, so that keeping the full fit has error one; *optimism* is the share of (held-out −
training loss) that is found; *worst* is the largest error of a row over the root mean square of
η_true − η̂; *fits* is the time over one fit by scikit-learn or statsmodels of the same model. A
program that lacks the model, or part of it, "cannot".

In `links` the truth is a refit by SciPy's root finder, with sample weights, offsets and an
unpenalised intercept; errors are relative as above. In `measures` the truth is written out over
statsmodels' own refits without each row, the measures those of docs/regression.md; errors are
relative to the root mean square of the truth.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.special
import scipy.stats
import statsmodels.api as sm
from sklearn.base import clone
from sklearn.linear_model import (
    GammaRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeCV,
)
from sklearn.model_selection import LeaveOneOut
from speed.common import main, show
from statsmodels.genmod.families import links
from statsmodels.stats.outliers_influence import OLSInfluence

import leaveout as lo

N, P = 150, 12
log_normal = scipy.special.log_ndtr
# name: loss, dℓ/dη, d²ℓ/dη², written here from the densities
hazard = lambda e: np.exp(-0.5 * e**2 - 0.5 * np.log(2 * np.pi) - log_normal(e))
LOSSES: dict[str, tuple[Callable, Callable, Callable]] = {
    "squared": (lambda e, y: 0.5 * (y - e) ** 2, lambda e, y: e - y, lambda e, y: np.ones_like(e)),
    "logistic": (
        lambda e, y: np.logaddexp(0, e) - y * e,
        lambda e, y: scipy.special.expit(e) - y,
        lambda e, y: scipy.special.expit(e) * scipy.special.expit(-e),
    ),
    "probit": (
        lambda e, y: -y * log_normal(e) - (1 - y) * log_normal(-e),
        lambda e, y: (1 - y) * hazard(-e) - y * hazard(e),
        lambda e, y: (1 - y) * hazard(-e) * (hazard(-e) - e) + y * hazard(e) * (hazard(e) + e),
    ),
    "cloglog": (
        lambda e, y: (1 - y) * np.exp(e) - y * np.log(-np.expm1(-np.exp(e))),
        lambda e, y: (1 - y) * np.exp(e) - y * np.exp(e) / np.expm1(np.exp(e)),
        lambda e, y: (1 - y) * np.exp(e) - y * _cloglog_slope(np.exp(e)),
    ),
    "poisson": (lambda e, y: np.exp(e) - y * e, lambda e, y: np.exp(e) - y, lambda e, y: np.exp(e)),
    "gamma": (
        lambda e, y: e + y * np.exp(-e),
        lambda e, y: 1 - y * np.exp(-e),
        lambda e, y: y * np.exp(-e),
    ),
}
FAMILIES = {
    "squared": sm.families.Gaussian,
    "logistic": sm.families.Binomial,
    "probit": lambda: sm.families.Binomial(links.Probit()),
    "cloglog": lambda: sm.families.Binomial(links.CLogLog()),
    "poisson": sm.families.Poisson,
    "gamma": lambda: sm.families.Gamma(links.Log()),
}


def _cloglog_slope(m: np.ndarray) -> np.ndarray:
    """d/dη of e^η / (e^{e^η} − 1), m = e^η."""
    return m / np.expm1(m) - m**2 * np.exp(m) / np.expm1(m) ** 2


class Problem:
    """Data, a penalty and its truth."""

    def __init__(
        self,
        loss: str,
        *,
        intercept: bool = True,
        weighted: bool = False,
        offset: bool = False,
        ridge: float = 0.0,
    ):
        rng = np.random.default_rng(0)
        self.loss, self.intercept, self.ridge = loss, intercept, ridge
        self.X = rng.standard_normal((N, P))
        self.offset = 0.5 * rng.standard_normal(N) if offset else np.zeros(N)
        self.weight = rng.gamma(4.0, 0.25, N) if weighted else np.ones(N)
        eta = self.X @ rng.standard_normal(P) / np.sqrt(P) + self.offset + 0.3 * intercept
        mean = {"probit": scipy.special.ndtr(eta), "cloglog": -np.expm1(-np.exp(eta))}.get(
            loss, scipy.special.expit(eta)
        )
        self.y = {
            "squared": eta + rng.standard_normal(N),
            "poisson": rng.poisson(np.exp(eta)).astype(float),
            "gamma": rng.gamma(2.0, np.exp(eta) / 2),
        }.get(loss, (rng.random(N) < mean).astype(float))
        self.design = np.c_[self.X, np.ones(N)] if intercept else self.X
        self.eta = (
            self.design @ self._solve(np.ones(N), np.zeros(self.design.shape[1])) + self.offset
        )
        start = np.linalg.lstsq(self.design, self.eta - self.offset, rcond=None)[0]
        self.truth = np.array(
            [
                self.design[i] @ self._solve(np.arange(N) != i, start) + self.offset[i]
                for i in range(N)
            ]
        )

    def __str__(self) -> str:
        parts = [
            "" if self.intercept else "no intercept",
            f"ridge {self.ridge:g}" if self.ridge else "",
        ]
        parts += [
            "weights" if (self.weight != 1).any() else "",
            "offset" if self.offset.any() else "",
        ]
        return ", ".join(filter(None, (self.loss, *parts)))

    def _solve(self, keep: np.ndarray, theta: np.ndarray) -> np.ndarray:
        _, first, second = LOSSES[self.loss]
        penalty = self.ridge * np.r_[np.ones(P), np.zeros(self.design.shape[1] - P)]
        for _ in range(100):
            eta, s = self.design @ theta + self.offset, self.weight * keep
            gradient = self.design.T @ (s * first(eta, self.y)) + penalty * theta
            step = np.linalg.solve(
                (self.design.T * (s * second(eta, self.y))) @ self.design + np.diag(penalty),
                gradient,
            )
            theta = theta - step / max(1.0, np.abs(self.design @ step).max() / 2)
            if np.abs(step).max() < 1e-12:
                break
        return theta

    def losses(self, eta: np.ndarray) -> np.ndarray:
        return LOSSES[self.loss][0](eta, self.y)


class Cannot(Exception):
    """Why a program has no answer."""


def leaveout(problem: Problem, refit: lo.developer.AbstractRefit) -> np.ndarray:
    extra = {
        "offset": problem.offset if problem.offset.any() else None,
        "sample_weight": problem.weight if (problem.weight != 1).any() else None,
    }
    penalty = lo.penalties.Ridge(problem.ridge) if problem.ridge else None
    model = lo.GLM(
        problem.X, problem.y, problem.loss, penalty, intercept=problem.intercept, **extra
    )
    return lo.cross_predict(lo.fit(model), lo.leave_one_out(), strategy=refit, kind="link")


def host(problem: Problem) -> Any:
    if problem.offset.any():
        raise Cannot("no offsets")
    alpha, more = problem.ridge, {"fit_intercept": problem.intercept}
    tight = {"solver": "newton-cholesky", "tol": 1e-10, "max_iter": 1000}
    if problem.loss == "squared":
        return Ridge(alpha, **more) if alpha else LinearRegression(**more)
    if problem.loss == "logistic":
        return LogisticRegression(C=1 / alpha if alpha else np.inf, **more, **tight)
    if problem.loss in ("poisson", "gamma") and not alpha:
        return {"poisson": PoissonRegressor, "gamma": GammaRegressor}[problem.loss](
            alpha=0.0, **more, **tight
        )
    raise Cannot(f"no {problem.loss}")


def linear(model: Any, X: np.ndarray) -> np.ndarray:
    return np.ravel(X @ np.ravel(model.coef_) + model.intercept_)


def refitting(problem: Problem) -> np.ndarray:
    model, weight, out = host(problem), problem.weight, np.empty(N)
    for i in range(N):
        keep = np.arange(N) != i
        out[i] = linear(
            clone(model).fit(problem.X[keep], problem.y[keep], weight[keep]), problem.X[[i]]
        )[0]
    return out


def one_fit(problem: Problem) -> None:
    try:
        host(problem).fit(problem.X, problem.y, problem.weight)
    except Cannot:
        glm(problem)


def glm(problem: Problem) -> Any:
    family = FAMILIES[problem.loss]()
    return sm.GLM(
        problem.y, problem.design, family, offset=problem.offset, var_weights=problem.weight
    ).fit(tol=1e-12)


def statsmodels(problem: Problem) -> np.ndarray:
    if problem.ridge:
        raise Cannot("no influence of regularised fits")
    if problem.loss == "squared":
        fitted = sm.WLS(problem.y, problem.design, weights=problem.weight).fit()
        return np.sum(problem.design * (fitted.params - OLSInfluence(fitted).dfbeta), 1)
    fitted = glm(problem)
    return (
        np.sum(problem.design * (fitted.params - fitted.get_influence().d_params), 1)
        + problem.offset
    )


def ridge_cv(problem: Problem) -> np.ndarray:
    if problem.loss != "squared" or not problem.ridge:
        raise Cannot("squared loss with a penalty only")
    model = RidgeCV(
        [problem.ridge],
        fit_intercept=problem.intercept,
        store_cv_results=True,
        scoring="neg_mean_squared_error",
    )
    model.fit(problem.X, problem.y, problem.weight)
    return np.ravel(model.cv_results_)


def mapie(problem: Problem) -> np.ndarray:
    from mapie.regression import CrossConformalRegressor

    if problem.loss in ("logistic", "probit", "cloglog"):
        raise Cannot("no leave-one-out of classifiers")
    if (problem.weight != 1).any():
        raise Cannot("weights are not held out with their rows")
    conformal = CrossConformalRegressor(host(problem), method="base", cv=LeaveOneOut())
    conformal.fit_conformalize(problem.X, problem.y)
    size = np.ravel(conformal._mapie_regressor.conformity_scores_)
    mean = problem.truth if problem.loss == "squared" else np.exp(problem.truth)
    found = problem.y - np.sign(problem.y - mean) * size
    return found if problem.loss == "squared" else np.log(np.maximum(found, 1e-12))


def randalo(problem: Problem) -> tuple[np.ndarray, float]:
    try:
        import torch
        from randalo import RandALO
    except ImportError as error:
        raise Cannot(
            f"not installed, no {error.name}: pip install torch randalo 'torch-linops<0.2' cvxpy"
        ) from None
    if problem.loss not in ("squared", "logistic") or (problem.weight != 1).any():
        raise Cannot("squared and logistic without weights only")
    if problem.intercept and problem.ridge:
        raise Cannot("its Jacobian has no intercept, nor a column without penalty")
    if problem.loss == "squared":
        model: Any = (
            Ridge(problem.ridge, fit_intercept=False)
            if problem.ridge
            else LinearRegression(fit_intercept=False)
        )
    else:  # of the fit it reads the penalty's old name
        model = LogisticRegression(
            penalty=None, fit_intercept=False, solver="newton-cholesky", tol=1e-10, max_iter=1000
        )
    program = RandALO.from_sklearn(model.fit(problem.design, problem.y), problem.design, problem.y)
    program._rng.manual_seed(0)
    seen: list[Any] = []
    program.evaluate_bks(lambda y, left: seen.append(left) or 0.0, 100)
    loss = {
        "squared": lambda y, eta: 0.5 * (y - eta) ** 2,
        "logistic": lambda y, eta: torch.nn.functional.softplus(-y * eta),
    }
    risk = program.evaluate(lambda y, left: loss[problem.loss](y, left).mean(), 100)
    return np.ravel(seen[-1].numpy()).astype(float), float(risk)


PROGRAMS: dict[str, Callable[[Problem], Any]] = {
    "leaveout, Certified": lambda problem: leaveout(problem, lo.Certified()),
    "leaveout, NewtonStep": lambda problem: leaveout(problem, lo.NewtonStep()),
    "refitting, scikit-learn": refitting,
    "statsmodels influence": statsmodels,
    "RidgeCV": ridge_cv,
    "MAPIE residuals": mapie,
    "RandALO": randalo,
}
PROBLEMS: list[Callable[[], Problem]] = [
    lambda: Problem("squared"),
    lambda: Problem("squared", ridge=3.0, intercept=False),
    lambda: Problem("squared", ridge=3.0, weighted=True),
    lambda: Problem("logistic"),
    lambda: Problem("logistic", ridge=1.0, weighted=True),
    lambda: Problem("probit"),
    lambda: Problem("cloglog", intercept=False),
    lambda: Problem("poisson", offset=True),
    lambda: Problem("poisson", weighted=True),
    lambda: Problem("gamma"),
    lambda: Problem("gamma", weighted=True, intercept=False),
]


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """The faster of two runs, so that nothing is compiled in it."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        found = run()
        times.append(time.perf_counter() - start)
    return min(times), found


def judged(problem: Problem, program: Callable[[Problem], Any], once: float) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seconds, answer = timed(lambda: program(problem))
    except Cannot as reason:
        return {"error": "cannot", "optimism": "", "worst": "", "fits": "", "why": str(reason)}
    except Exception as error:
        return {
            "error": "cannot",
            "optimism": "",
            "worst": "",
            "fits": "",
            "why": f"{type(error).__name__}: {error}"[:60],
        }
    eta, risk = answer if isinstance(answer, tuple) else (answer, None)
    moved = problem.truth - problem.eta
    gap = np.average(
        problem.losses(problem.truth) - problem.losses(problem.eta), weights=problem.weight
    )
    before = np.average(problem.losses(problem.eta), weights=problem.weight)
    found = (
        np.average(problem.losses(eta), weights=problem.weight) if risk is None else risk
    ) - before
    return {
        "error": f"{np.linalg.norm(eta - problem.truth) / np.linalg.norm(moved):.1e}",
        "optimism": f"{found / gap:.4f}",
        "worst": f"{np.abs(eta - problem.truth).max() / np.sqrt(np.mean(moved**2)):.1e}",
        "fits": f"{seconds / once:.1f}",
        "why": "",
    }


gaussian = scipy.stats.norm
ratio = lambda eta: np.exp(gaussian.logpdf(eta) - gaussian.logcdf(eta))
# dℓ/dη, written here from the densities
SLOPES = {
    "probit": lambda eta, y: (1 - y) * ratio(-eta) - y * ratio(eta),
    "cloglog": lambda eta, y: (1 - y) * np.exp(eta) - y * np.exp(eta) / np.expm1(np.exp(eta)),
    "gamma": lambda eta, y: 1 - y * np.exp(-eta),
}


def links_table(n: int = 120, p: int = 5, seeds: int = 10) -> list[dict]:
    """Medians over data sets, for a weak and a strong signal, and NewtonStep's worst."""
    rows = []
    for name in SLOPES:
        for signal in (0.5, 1.0):
            errors = pd.DataFrame(
                [link_errors(name, *link_data(name, n, p, signal, seed)) for seed in range(seeds)]
            )
            numbers = errors.apply(pd.to_numeric, errors="coerce")
            middle = {
                c: numbers[c].median() if numbers[c].notna().any() else errors[c][0] for c in errors
            }
            rows.append(
                {"link": name, "sd of Xθ": signal}
                | middle
                | {"NewtonStep, worst": numbers["NewtonStep"].max()}
            )
    return rows


def link_data(name: str, n: int, p: int, signal: float, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    X, weight, offset = (
        rng.standard_normal((n, p)),
        rng.gamma(4.0, 0.25, n),
        0.3 * rng.standard_normal(n),
    )
    eta = signal * X @ rng.standard_normal(p) / np.sqrt(p) + offset
    if name == "gamma":
        return X, rng.gamma(2.0, np.exp(eta) / 2.0), weight, offset
    mean = gaussian.cdf(eta) if name == "probit" else -np.expm1(-np.exp(eta))
    return X, (rng.random(n) < mean).astype(float), weight, offset


def link_errors(
    name: str, X: np.ndarray, y: np.ndarray, weight: np.ndarray, offset: np.ndarray
) -> dict[str, float | str]:
    """The relative error of each way to the left-out linear predictors, or why it has none."""
    n = len(y)
    design = np.c_[X, np.ones(n)]

    def solve(s, start):
        equations = lambda theta: design.T @ (s * SLOPES[name](design @ theta + offset, y))
        return scipy.optimize.root(equations, start, tol=1e-13).x

    full = solve(weight, np.zeros(design.shape[1]))
    refits = np.stack([solve(np.where(np.arange(n) == i, 0.0, weight), full) for i in range(n)])
    eta, exact = design @ full + offset, np.sum(design * refits, 1) + offset
    fit, plan = lo.fit(lo.GLM(X, y, name, sample_weight=weight, offset=offset)), lo.leave_one_out(n)
    ours = (lo.NewtonStep(), lo.InfinitesimalJackknife(), lo.Exact())
    found = {
        type(refit).__name__: lo.cross_predict(fit, plan, strategy=refit, kind="link")
        for refit in ours
    }
    found |= dict(statsmodels_links(name, design, y, weight, offset))
    distance = np.linalg.norm(exact - eta)
    return {
        k: v if isinstance(v, str) else np.linalg.norm(v - exact) / distance
        for k, v in found.items()
    }


def statsmodels_links(
    name: str, design: np.ndarray, y: np.ndarray, weight: np.ndarray, offset: np.ndarray
) -> Iterator[tuple]:
    """Its left-out linear predictors, by params − d_params of its three influence measures.

    Or why there are none.
    """
    import statsmodels.api as sm
    from statsmodels.stats.outliers_influence import MLEInfluence

    family = {
        "probit": lambda: sm.families.Binomial(sm.families.links.Probit()),
        "cloglog": lambda: sm.families.Binomial(sm.families.links.CLogLog()),
        "gamma": lambda: sm.families.Gamma(sm.families.links.Log()),
    }[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = sm.GLM(y, design, family, offset=offset, var_weights=weight).fit(tol=1e-12)
        for label, measure in (
            ("sm get_influence()", lambda: fitted.get_influence()),
            ("sm observed=False", lambda: fitted.get_influence(observed=False)),
            ("sm MLEInfluence", lambda: MLEInfluence(fitted)),
        ):
            try:
                yield label, np.sum(design * (fitted.params - measure().d_params), 1) + offset
            except Exception as error:
                yield label, f"cannot: {type(error).__name__}"


ROWS = 60
rng = np.random.default_rng(0)
DATA = np.c_[np.ones(ROWS), rng.standard_normal((ROWS, 3))]
ETA = DATA @ [0.3, 0.6, -0.4, 0.2]
WEIGHT = rng.gamma(4.0, 0.25, ROWS)
BINARY = (rng.random(ROWS) < 1 / (1 + np.exp(-ETA))).astype(float)
F = sm.families
MODELS: dict[str, Callable[[Any], Any]] = {
    "OLS": lambda k: sm.OLS((ETA + rng_noise)[k], DATA[k]).fit(),
    "WLS": lambda k: sm.WLS((ETA + rng_noise)[k], DATA[k], weights=WEIGHT[k]).fit(),
    "Poisson": lambda k: sm.GLM(COUNT[k], DATA[k], F.Poisson()).fit(tol=1e-13),
    "logistic": lambda k: sm.GLM(BINARY[k], DATA[k], F.Binomial()).fit(tol=1e-13),
    "probit": lambda k: sm.GLM(BINARY[k], DATA[k], F.Binomial(links.Probit())).fit(tol=1e-13),
    "gamma, log": lambda k: sm.GLM(POSITIVE[k], DATA[k], F.Gamma(links.Log())).fit(tol=1e-13),
    "gamma, log, weights": lambda k: sm.GLM(
        POSITIVE[k], DATA[k], F.Gamma(links.Log()), var_weights=WEIGHT[k]
    ).fit(tol=1e-13),
}
rng_noise, COUNT, POSITIVE = (
    rng.standard_normal(ROWS),
    rng.poisson(np.exp(ETA)).astype(float),
    rng.gamma(2.0, np.exp(ETA) / 2),
)


def measures_truth(host: Callable[[Any], Any]) -> dict[str, np.ndarray]:
    """The measures from refits, with the observed information by statsmodels' own Hessian."""
    whole = host(slice(None))
    linear = not hasattr(whole.model, "family")
    weight = whole.model.weights if linear else whole.model.iweights
    information = (
        DATA.T @ (np.asarray(weight)[:, None] * DATA)
        if linear
        else -whole.model.hessian(whole.params, scale=1.0, observed=True)
    )
    known = not linear and type(whole.model.family).__name__ in ("Poisson", "Binomial")
    curvature = (
        np.asarray(weight)
        if linear
        else whole.model.hessian_factor(whole.params, scale=1.0, observed=True)
    )
    inverse = np.linalg.inv(information)
    h = np.abs(curvature) * np.einsum("np,pq,nq->n", DATA, inverse, DATA)
    out: dict[str, list] = {"cook": [], "dfbetas": [], "studentised": []}
    for i in range(ROWS):
        again = host(np.arange(ROWS) != i)
        step = again.params - whole.params
        scale, left = (1.0, 1.0) if known else (whole.scale, again.scale)
        mean = DATA[i] @ again.params if linear else again.predict(DATA[[i]])[0]
        variance = 1.0 if linear else float(whole.model.family.variance(mean))
        out["cook"].append(step @ information @ step / (DATA.shape[1] * scale))
        out["dfbetas"].append(-step / np.sqrt(left * np.diag(inverse)))
        spread = left * variance / (1 - h[i])
        out["studentised"].append(
            np.sqrt(np.broadcast_to(weight, ROWS)[i] / spread) * (whole.model.endog[i] - mean)
        )
    return {"leverage": h} | {name: np.array(values) for name, values in out.items()}


def their_measures(whole: Any) -> dict[str, Callable[[], np.ndarray]]:
    linear = not hasattr(whole.model, "family")
    # WLS has no get_influence of its own
    influence = OLSInfluence(whole) if linear else whole.get_influence()
    return {
        "leverage": lambda: influence.hat_matrix_diag,
        "cook": lambda: influence.cooks_distance[0],
        "dfbetas": lambda: influence.dfbetas,
        "studentised": lambda: (
            influence.resid_studentized_external if linear else influence.resid_studentized
        ),
    }


def our_measures(whole: Any) -> dict[str, Callable[[], np.ndarray]]:
    fit = lo.from_statsmodels(whole)
    return {
        "leverage": lambda: lo.diagnostics.leverage(fit),
        "cook": lambda: lo.diagnostics.cooks_distance(fit),
        "dfbetas": lambda: lo.diagnostics.dfbetas(fit).to_numpy(),
        "studentised": lambda: lo.diagnostics.studentized_residuals(fit),
    }


def predictors(only: str) -> None:
    """The table of programs."""
    rows = []
    for make in PROBLEMS:
        problem = make()
        if only and problem.loss != only:
            continue
        once = timed(lambda problem=problem: one_fit(problem))[0]
        for name, program in PROGRAMS.items():
            rows.append({"problem": str(problem), "program": name} | judged(problem, program, once))
    print(
        f"{N} rows, {P} columns; one fit is scikit-learn's, or statsmodels' where scikit-learn lacks the model\n"
    )
    print(pd.DataFrame(rows).to_string(index=False), flush=True)


def other_links() -> None:
    """Left-out linear predictors for links that are not canonical."""
    title = "links: relative error of the change of left-out predictors, n = 120, p = 5, medians of 10 data sets"
    show(f"{title}; NewtonStep: target 0.03", links_table())


def measures() -> None:
    """The largest relative error of each measure."""
    rows = []
    for name, host in MODELS.items():
        want = measures_truth(host)
        for program, make in (("statsmodels", their_measures), ("leaveout", our_measures)):
            row: dict[str, Any] = {"model": name, "program": program}
            found = make(host(slice(None)))
            for measure, value in want.items():
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        error = np.abs(np.asarray(found[measure]()) - value).max() / np.sqrt(
                            np.mean(value**2)
                        )
                    row[measure] = f"{error:.1e}"
                except Exception as reason:
                    row[measure] = type(reason).__name__
            rows.append(row)
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main({"predictors": predictors, "links": other_links, "measures": measures}, __doc__, only="")
