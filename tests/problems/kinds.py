"""Kinds of problem that were made to break the certificate: each has a fit, its plans, and the
oracle of its refits.

The fits and the plans are the library's, so this module is no oracle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import leaveout as lo
from tests import oracles
from tests.oracles import likelihoods


@dataclass(frozen=True)
class Problem:
    fit: lo.Fit
    plans: list[lo.Plan]
    oracle: Any
    start: np.ndarray  # θ̂, as the oracle has it


class Kind(NamedTuple):
    """How a problem is drawn, how often in a full run, and whether its folds are linear predictors
    at n ≤ 200, p ≤ 10.
    """

    make: Callable[[np.random.Generator], Problem]
    times: int
    small: bool = False


def hinge(eta, y):
    return 0.5 * jnp.maximum(1 - y * eta, 0.0) ** 2


class SquaredHinge(lo.losses.AbstractLoss):
    """The same, its ℓ″ declared: one up to the margin, and none beyond."""

    def __call__(self, eta, y):
        return hinge(eta, y)

    def peak(self, y):
        return -np.inf * y


def student_loss(theta, datum):
    return 2.0 * jnp.log1p((datum[1] - datum[0] @ theta) ** 2 / 3.0)


HOSTS = {  # name: what the library is told, what the oracle computes
    "logistic": ("logistic", oracles.LOGISTIC),
    "poisson": ("poisson", oracles.POISSON),
    "gamma": (lo.losses.Gamma(2.0), oracles.gamma(2.0)),
    "negative binomial": (lo.losses.NegativeBinomial(0.5), oracles.negative_binomial(0.5)),
    "probit": ("probit", oracles.PROBIT),
    "cloglog": ("cloglog", oracles.CLOGLOG),
    "huber": ("huber", oracles.huber()),
    "pseudo-huber": ("pseudo_huber", oracles.pseudo_huber()),
    "squared hinge": (hinge, oracles.SQUARED_HINGE),
    "squared hinge, declared": (SquaredHinge(), oracles.SQUARED_HINGE),
}


def response(rng: np.random.Generator, loss: str, eta: np.ndarray) -> np.ndarray:
    """Data that are something like the model's."""
    rate = np.exp(np.clip(eta, -6, 3))
    if loss in ("logistic", "probit", "cloglog") or "squared hinge" in loss:
        y = (rng.random(len(eta)) < 1 / (1 + np.exp(-np.clip(eta, -30, 30)))) * 1.0
        return 2 * y - 1 if "squared hinge" in loss else y
    if loss in ("huber", "pseudo-huber"):
        return eta + rng.standard_t(1.5, len(eta))
    if loss == "gamma":
        return np.maximum(rng.gamma(2.0, rate / 2), 1e-8)
    return 1.0 * (
        rng.poisson(rate) if loss == "poisson" else rng.negative_binomial(2, 2 / (2 + rate))
    )


def three_plans(rng: np.random.Generator, n: int, resamples: int = 60) -> list[lo.Plan]:
    """Leave-one-out, six groups of one size and a bootstrap."""
    labels = rng.permutation(np.arange(n) % 6)
    return [
        lo.leave_one_out(n),
        lo.groups(labels),
        lo.bootstrap(n, resamples, rng=int(rng.integers(2**31))),
    ]


def some(folds: list[np.ndarray], n: int) -> lo.Plan:
    """A plan of a few folds only."""
    return lo.from_splits([(np.setdiff1d(np.arange(n), fold), fold) for fold in folds], n)


def rows(
    rng,
    X,
    loss="logistic",
    *,
    y=None,
    scale=1.0,
    alpha=0.1,
    weight=None,
    offset=None,
    plans=None,
    **host,
) -> Problem:
    """A generalised linear model without an intercept, a ridge penalty unless told otherwise."""
    n, p = X.shape
    if y is None:
        y = response(
            rng,
            loss,
            X @ rng.normal(size=p) * scale * np.sqrt(6 / p) + (0 if offset is None else offset),
        )
    penalty, known = host.pop("penalty", (lo.penalties.Ridge(alpha), oracles.ridge(alpha)))
    extra = {name: host.pop(name) for name in ("weigh", "times") if name in host}
    model = lo.GLM(
        X, y, HOSTS[loss][0], penalty, sample_weight=weight, offset=offset, intercept=False, **host
    )
    fit = lo.fit(model)
    more = {
        "weight": 1.0 if weight is None else weight,
        "offset": 0.0 if offset is None else offset,
    } | extra
    oracle = oracles.Rows(X, y, HOSTS[loss][1], known, **more)
    return Problem(
        fit,
        three_plans(rng, n) if plans is None else plans,
        oracle,
        np.asarray(fit.parameters["coef"]),
    )


def plain(loss="logistic", n=120, p=6, **how) -> Callable:
    return lambda rng: rows(rng, rng.normal(size=(n, p)), loss, **how)


def weighted(spread: float) -> Callable:
    return lambda rng: rows(
        rng, rng.normal(size=(120, 6)), weight=np.exp(spread * rng.normal(size=120))
    )


def nothing_or_a_million(rng):
    return rows(
        rng, rng.normal(size=(120, 6)), weight=rng.choice([0.0, 1.0, 1e6], 120, p=[0.2, 0.75, 0.05])
    )


def outlying_row(rng):
    X = rng.normal(size=(120, 6))
    X[rng.integers(120)] *= 1000.0
    return rows(rng, X)


def heavy_tails(rng):
    return rows(rng, rng.standard_t(2, (120, 6)))


def rare_category(rng):
    """25 rows have the category, 24 of them in the first fold."""
    X, labels = rng.normal(size=(120, 6)), 1 + rng.permutation(np.arange(120) % 5)
    has = rng.permutation(120)[:25]
    X[:, 0] = 0.0
    X[has, 0], labels[has[:24]] = 1.0, 0
    return rows(rng, X, alpha=0.01, plans=[lo.leave_one_out(120), lo.groups(labels)])


def resampled(rng):
    plan = lo.bootstrap(120, 200, rng=int(rng.integers(2**31)))
    return rows(
        rng, rng.normal(size=(120, 6)), ("logistic", "poisson")[rng.integers(2)], plans=[plan]
    )


def leverage_one(rng):
    X = rng.normal(size=(120, 6))
    X[1:, 0] *= 1e-4
    X[0] = np.r_[1.0, np.zeros(5)]
    return rows(rng, X, alpha=1e-6)


def thousand(rng):
    n, p = 1500, 1000
    few = some([*rng.permutation(n)[:12, None], *np.array_split(rng.permutation(n), 8)[:4]], n)
    return rows(rng, rng.normal(size=(n, p)), alpha=5.0, plans=[few])


def weights_and_offset(rng):
    X = rng.normal(size=(120, 6)) / 2
    return rows(rng, X, "gamma", weight=rng.gamma(2.0, 0.5, 120), offset=rng.normal(size=120) / 3)


def bent_penalty(rng):
    penalty = lo.penalties.PseudoHuber(20.0, 0.05), oracles.pseudo_huber_penalty(20.0, 0.05)
    return rows(rng, rng.normal(size=(120, 6)), penalty=penalty)


def averaged(rng):
    penalty = lo.penalties.per_weight(lo.penalties.Ridge(0.05)), oracles.ridge(0.05)
    weight = rng.gamma(2.0, 0.5, 120)
    return rows(
        rng,
        rng.normal(size=(120, 6)),
        "poisson",
        weight=weight,
        penalty=penalty,
        times=lambda w: w.sum(1),
    )


def balanced(rng):
    X = rng.normal(size=(120, 6))
    y = response(rng, "logistic", X @ rng.normal(size=6) - 1)

    def weigh(w):
        ones = (w * y).sum(1, keepdims=True)
        return (
            w
            * w.sum(1, keepdims=True)
            / 2
            / np.where(y > 0.5, ones, w.sum(1, keepdims=True) - ones)
        )

    return rows(rng, X, y=y, weigh=weigh, class_weight="balanced")


def unconverged(rng):
    made = plain()(rng)
    moved = made.start + 0.05 * rng.normal(size=6)
    fit = lo.anchor(made.fit.objective, {"coef": moved, "intercept": 0.0}, throw=False)
    return Problem(fit, made.plans, made.oracle, moved)


def student(rng):
    """A third of the responses lie about another line: two minima."""
    n = 100
    X = np.c_[np.ones(n), rng.normal(size=n)]
    y = X @ rng.normal(size=2) + 0.5 * rng.normal(size=n) + 12.0 * (rng.random(n) < 0.33)
    model = lo.Separable(student_loss, (X, y), penalty=half_square, theta0=np.zeros(2))
    fit = lo.fit(model)
    oracle = oracles.Rows(X, y, oracles.student(3.0), oracles.ridge(0.1), convex=False)
    plans = [lo.leave_one_out(n), lo.kfold(n, 5, rng=int(rng.integers(2**31)))]
    return Problem(fit, plans, oracle, np.asarray(fit.parameters))


def half_square(theta):
    return 0.05 * theta @ theta


def multinomial(rng):
    X = rng.normal(size=(120, 5))
    y = np.argmax(X @ rng.normal(size=(5, 3)) + rng.gumbel(size=(120, 3)), axis=1)
    fit = lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(0.5), intercept=False))
    plans = [lo.leave_one_out(120), lo.kfold(120, 6, rng=int(rng.integers(2**31)))]
    return Problem(fit, plans, oracles.Classes(X, y, 0.5), np.ravel(fit.parameters["coef"]))


def cox(rng):
    X = rng.normal(size=(100, 4))
    time, event = rng.exponential(np.exp(-X @ rng.normal(size=4) / 2)), rng.random(100) < 0.7
    order = np.argsort(-time)
    fit = lo.fit(
        lo.Cox(X[order], time[order], event[order], lo.penalties.Ridge(0.5), ties="breslow")
    )
    data = X[order], event[order].astype(float), 0.5
    oracle = oracles.Written(likelihoods.cox, None, data, convex=True)
    return Problem(
        fit,
        [lo.leave_one_out(100), lo.kfold(100, 5, rng=1)],
        oracle,
        np.asarray(fit.parameters["coef"]),
    )


def regression(rng, X, y, loss, own: str, unconstrained, weight=None, score=None) -> Problem:
    """A regression with parameters of its own, and an intercept but for thresholds.

    Coefficients have a ridge of ½.
    """
    fit = lo.fit(lo.Regression(X, y, loss, lo.penalties.Ridge(0.5), sample_weight=weight))
    known, alpha = fit.parameters, np.full(X.shape[1], 0.5)
    coef, design = np.asarray(known["coef"]), X
    if loss != "ordinal":
        coef, design, alpha = (
            np.r_[coef, known["intercept"]],
            np.c_[X, np.ones(len(X))],
            np.r_[alpha, 0.0],
        )
    data = (design, y, alpha) if weight is None else (design, y, alpha, weight)
    oracle = oracles.Written(
        getattr(likelihoods, loss), getattr(likelihoods, f"{loss}_score"), data
    )
    plans = [lo.leave_one_out(len(X)), lo.kfold(len(X), 5, rng=1)]
    return Problem(fit, plans, oracle, np.r_[coef, unconstrained(np.asarray(known[own]))])


def ordinal(rng):
    X = rng.normal(size=(100, 3))
    y = np.digitize(X @ rng.normal(size=3) + rng.logistic(size=100), [-0.7, 0.6])
    return regression(
        rng, X, y, "ordinal", "thresholds", lambda cut: np.r_[cut[0], np.log(np.diff(cut))]
    )


def dispersed(rng):
    X = rng.normal(size=(100, 3))
    y = 1.0 * rng.negative_binomial(2, 2 / (2 + np.exp(np.clip(X @ rng.normal(size=3) + 1, -4, 4))))
    return regression(
        rng, X, y, "negative_binomial", "dispersion", np.log, weight=rng.gamma(4.0, 0.25, 100)
    )


def proportion(rng):
    X = rng.normal(size=(100, 3))
    mean = 1 / (1 + np.exp(-X @ rng.normal(size=3) / 2))
    y = np.clip(rng.beta(5 * mean, 5 * (1 - mean)), 1e-3, 1 - 1e-3)
    return regression(rng, X, y, "beta", "precision", np.log)


def _states(rng, n):
    return np.cumsum(rng.random(n) < 0.1) % 2


def _ratios(fit: lo.Fit) -> np.ndarray:
    """Log-ratios against the last state."""
    initial, transition = (np.asarray(fit.parameters[name]) for name in ("initial", "transition"))
    return np.r_[np.log(initial[0] / initial[1]), np.log(transition[:, 0] / transition[:, 1])]


def _serial_plans(rng, n):
    return [
        lo.leave_one_out(n),
        lo.blocks(n, 6),
        lo.random_subsets(n, 0.1, 20, rng=int(rng.integers(2**31))),
    ]


def gaussian_chain(rng):
    state = _states(rng, 60)
    x = np.where(state, 1.5, -1.0) + np.where(state, 0.6, 1.0) * rng.normal(size=60)
    prior = {"mean": (0.0, 3.0), "covariance": (1.0, 0.2)}
    fit = lo.fit(lo.HMM(x, lo.emissions.Gaussian(prior=prior), 2))
    start = np.r_[
        _ratios(fit),
        np.ravel(fit.parameters["mean"]),
        np.log(np.ravel(fit.parameters["covariance"])),
    ]
    written = likelihoods.gaussian_chain, likelihoods.gaussian_chain_score
    return Problem(
        fit, _serial_plans(rng, 60), oracles.Written(*written, (x, 0.0, 3.0, 1.0, 0.2)), start
    )


def poisson_chain(rng):
    x = 1.0 * rng.poisson(np.where(_states(rng, 60), 6.0, 2.0))
    fit = lo.fit(lo.HMM(x, lo.emissions.Poisson(prior={"rate": (2.0, 0.5)}), 2))
    start = np.r_[_ratios(fit), np.log(np.ravel(fit.parameters["rate"]))]
    written = likelihoods.poisson_chain, likelihoods.poisson_chain_score
    return Problem(fit, _serial_plans(rng, 60), oracles.Written(*written, (x, 2.0, 0.5)), start)


def field(rng):
    """A grid of three by four sites, its coupling learned; all 4,096 configurations are listed."""
    site = np.arange(12).reshape(3, 4)
    edges = np.r_[
        np.c_[site[:, :-1].ravel(), site[:, 1:].ravel()], np.c_[site[:-1].ravel(), site[1:].ravel()]
    ]
    x = np.where(site.ravel() % 4 < 2, -1.2, 1.2) + rng.normal(size=12)
    emission = lo.emissions.Gaussian(covariance=1.0, prior={"mean": (0.0, 2.0)})
    fit = lo.fit(lo.MRF(x, edges, emission, 2, coupling=lo.developer.models.Free(0.5)))
    every = likelihoods.configurations(12)
    data = x, every, 1.0 * (every[:, edges[:, 0]] == every[:, edges[:, 1]]).sum(1), 0.0, 2.0
    start = np.r_[fit.parameters["coupling"], np.ravel(fit.parameters["mean"])]
    plans = [lo.leave_one_out(12), lo.random_subsets(12, 0.25, 12, rng=int(rng.integers(2**31)))]
    return Problem(
        fit, plans, oracles.Written(likelihoods.field, likelihoods.field_score, data), start
    )


def sequences(rng):
    features = rng.normal(size=(40, 4, 2))
    labels = (features[..., 0] + rng.logistic(size=(40, 4)) > 0).astype(int)
    flat = features.reshape(160, 2)
    fit = lo.fit(
        lo.CRF(labels.ravel(), np.full(40, 4), features=flat, penalty=lo.penalties.Ridge(0.5))
    )
    start = np.concatenate(
        [np.ravel(fit.parameters[name]) for name in ("start", "end", "transition", "weights")]
    )
    data = features, labels, likelihoods.configurations(4), 0.5
    oracle = oracles.Written(likelihoods.sequences, likelihoods.sequences_score, data, convex=True)
    return Problem(fit, [lo.leave_one_out(40), lo.kfold(40, 5, rng=1)], oracle, start)


KINDS: dict[str, Kind] = {
    "logistic": Kind(plain(), 30, True),
    **{f"weights, sd {sd}": Kind(weighted(sd), 30, True) for sd in (1, 2, 3)},
    "weights 0 and 1e6": Kind(nothing_or_a_million, 30, True),
    "a row x 1,000": Kind(outlying_row, 30, True),
    "nearly separable": Kind(plain(scale=6.0, alpha=1e-3), 30, True),
    "heavy tails": Kind(heavy_tails, 30, True),
    "rare category": Kind(rare_category, 30, True),
    "bootstrap": Kind(resampled, 30, True),
    "leverage 1": Kind(leverage_one, 30, True),
    "p = n/3": Kind(plain(n=150, p=50, alpha=1.0), 4),
    "p near n": Kind(plain(n=60, p=45), 8),
    "p = 1,000": Kind(thousand, 1),
    "poisson": Kind(plain("poisson"), 30, True),
    "gamma, weights, offset": Kind(weights_and_offset, 30, True),
    "negative binomial": Kind(plain("negative binomial"), 30, True),
    "probit": Kind(plain("probit"), 30, True),
    "cloglog": Kind(plain("cloglog"), 30, True),
    "huber": Kind(plain("huber"), 30, True),
    "pseudo-huber": Kind(plain("pseudo-huber"), 30, True),
    "squared hinge": Kind(plain("squared hinge"), 30, True),
    "squared hinge, declared": Kind(plain("squared hinge, declared"), 30, True),
    "pseudo-huber penalty": Kind(bent_penalty, 30, True),
    "mean loss": Kind(averaged, 30, True),
    "balanced classes": Kind(balanced, 30, True),
    "unconverged": Kind(unconverged, 30, True),
    "student, two minima": Kind(student, 4),
    "multinomial": Kind(multinomial, 4),
    "cox": Kind(cox, 3),
    "ordinal": Kind(ordinal, 3),
    "negative binomial, own": Kind(dispersed, 3),
    "beta": Kind(proportion, 3),
    "gaussian chain": Kind(gaussian_chain, 3),
    "poisson chain": Kind(poisson_chain, 3),
    "field": Kind(field, 4),
    "sequences": Kind(sequences, 3),
}
