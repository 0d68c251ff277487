"""elpd of sampled models: against closed forms, and against normalisers by importance sampling; time against NUTS.

`python benchmarks/posteriors.py > benchmarks/results/posteriors.md` prints three tables. Draws are NumPyro's
(`leaveout[numpyro]`), by seeds that stand here. The truth of a fold is log Z − log Z_o, each by importance sampling from a
multivariate t at the mode of the model with its effects integrated out, in NumPy, with common random numbers. Seconds are
processor time.
"""

import os
import time
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import scipy
from jax.scipy.special import gammaln
from numpyro.infer import MCMC, NUTS
from scipy import stats

import leaveout as lo

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore")
RUNS = 400


def log_normaliser(F, mean, root, z, log_q):
    """Log ∫ exp(−F) from draws z of a standard t, mapped by a mean and a root of the covariance."""
    theta = mean + z @ root.T
    value = -F(theta) - log_q + np.linalg.slogdet(root)[1]
    return value.max() + np.log(np.mean(np.exp(value - value.max())))


def minimum(F, start):
    """Mode and inverse root of the Hessian, by differences."""
    at = scipy.optimize.minimize(lambda v: F(v[None])[0], start, method="BFGS").x
    size, step = len(at), 1e-4 * np.eye(len(at))
    every = np.array([at + a + b for a in (*step, *-step) for b in (*step, *-step)])
    values = F(every).reshape(2 * size, 2 * size)
    hessian = (values[:size, :size] - values[:size, size:] - values[size:, :size] + values[size:, size:]) / (4e-8)
    return at, np.linalg.inv(np.linalg.cholesky((hessian + hessian.T) / 2)).T


def truth(losses, prior, start, folds, draws=20_000):
    """log p(y_o | y_−o) of every fold from losses [draws, units] and a log prior, both functions of many θ."""
    rng, size = np.random.default_rng(99), len(start)
    z = rng.standard_normal((draws, size)) * np.sqrt(7 / rng.chisquare(7, draws))[:, None]
    log_q = np.reshape(stats.multivariate_t(np.zeros(size), np.eye(size), 7).logpdf(z), draws)

    def of(keep, start):
        F = lambda theta: losses(theta)[:, keep].sum(1) - prior(theta)
        at, root = minimum(F, start)
        return at, log_normaliser(F, at, root, z, log_q)

    n = losses(start[None]).shape[1]
    mode, whole = of(np.arange(n), start)
    return np.array([whole - of(np.setdiff1d(np.arange(n), fold), mode)[1] for fold in folds])


def nuts(model, *args, draws=1000):
    """Draws of four chains, and the processor time of a chain set when everything is compiled."""
    kernel = NUTS(model, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_warmup=1000, num_samples=draws, num_chains=4, chain_method="sequential", progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), *args)
    start = time.process_time()
    mcmc.run(jax.random.PRNGKey(1), *args)
    return mcmc, time.process_time() - start


def report(name, posterior, plan, true, seconds):
    """One row of the table of models."""
    lo.elpd(posterior, plan)
    for computed in ("block_losses", "value", "mode"):
        vars(posterior).pop(computed, None)
    start = time.process_time()
    found = lo.elpd(posterior, plan)
    spent = (time.process_time() - start) / plan.num_refits
    good = np.setdiff1d(np.arange(plan.num_refits), found.flagged())
    error = -found.losses - true
    se = np.sqrt(len(true)) * true.std(ddof=1)
    row = [
        name,
        f"{plan.num_refits}",
        f"{np.mean(found.raw_k > 0.7):.0%}",
        f"{np.mean(found.pareto_k > 0.7):.0%}",
        f"{len(found.flagged())}",
        f"{true.sum():.2f} ± {se:.1f}",
        f"{found.elpd:.2f} ± {found.sampling_error:.2g}",
        f"{abs(error[good].sum()) / se:.4f}",
        f"{np.abs(error[good]).max(initial=0):.3f}",
        f"{spent:.3f}",
        f"{seconds:.1f}",
        f"{seconds / spent:.0f}",
    ]
    print("| " + " | ".join(row) + " |", flush=True)
    return found


def normal(x, scale):
    return -0.5 * (x / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)


def roaches():
    d = pd.read_csv(os.path.join(os.environ["LEAVEOUT_DATA"], "cv_reference", "roaches.csv"))
    X = np.column_stack([np.ones(len(d)), np.sqrt(d.roach1), d.treatment, d.senior])
    y, offset = d.y.to_numpy(float), np.log(d.exposure2.to_numpy())
    scale = np.array([5.0, 2.5, 2.5, 2.5])

    def model(X, offset, y):
        beta = numpyro.sample("beta", dist.Normal(0, scale).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(X @ beta + offset)), obs=y)

    def losses(theta):
        eta = theta @ X.T + offset
        return np.exp(eta) - y * eta + scipy.special.gammaln(y + 1)

    def unit_loss(theta, row):
        eta = row["x"] @ theta["beta"] + row["offset"]
        return jnp.exp(eta) - row["y"] * eta + gammaln(row["y"] + 1)

    mcmc, seconds = nuts(model, X, offset, y)
    log_prior = lambda theta: jnp.sum(-0.5 * (theta["beta"] / scale) ** 2)
    data = {"x": X, "offset": offset, "y": y}
    posterior = lo.from_posterior(mcmc.get_samples(group_by_chain=True), unit_loss, data, log_prior=log_prior)
    prior = lambda theta: normal(theta, scale).sum(1)
    for name, folds in (
        ("rows", np.arange(262)[:, None]),
        ("26 random groups", np.array_split(np.random.default_rng(0).permutation(262), 26)),
    ):
        code = np.empty(262, int)
        for k, fold in enumerate(folds):
            code[fold] = k
        plan = lo.leave_one_out(262) if len(folds) == 262 else lo.groups(code)
        report(
            f"roaches, Poisson, {name}", posterior, plan, truth(losses, prior, np.array([3.0, 0.1, -0.5, -0.3]), folds), seconds
        )


def separated():
    """A logistic regression whose classes are nearly separated, under a weak prior."""
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(25), rng.standard_t(3, (25, 4))])
    y = (rng.logistic(size=25) < X @ np.array([0.0, 2.0, -1.5, 1.0, 0.0])).astype(float)

    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(0, 2.5 * np.ones(5)).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)

    losses = lambda theta: np.logaddexp(0, -(2 * y - 1) * (theta @ X.T))
    prior = lambda theta: normal(theta, 2.5).sum(1)
    mcmc, seconds = nuts(model, X, y)
    posterior = lo.from_numpyro(model, mcmc)
    code = np.random.default_rng(0).permutation(np.arange(25) // 5)
    folds = [np.flatnonzero(code == k) for k in range(5)]
    report(
        "logistic, separated, rows",
        posterior,
        lo.leave_one_out(25),
        truth(losses, prior, np.zeros(5), np.arange(25)[:, None]),
        seconds,
    )
    report("logistic, separated, 5 groups", posterior, lo.groups(code), truth(losses, prior, np.zeros(5), folds), seconds)


def radon():
    """Forty groups of ten rows with a random intercept, two of them odd, sampled in non-centred effects."""
    rng = np.random.default_rng(5)
    group, x = np.repeat(np.arange(40), 10), rng.uniform(size=400)
    effect = 0.7 * rng.standard_normal(40)
    effect[:2] = 2.8, -2.5
    y = 1.0 - 0.7 * x + effect[group] + 0.8 * rng.standard_normal(400)

    def model(x, group, y):
        b = numpyro.sample("b", dist.Normal(0, 5 * np.ones(2)).to_event(1))
        tau, sigma = numpyro.sample("tau", dist.HalfNormal(1)), numpyro.sample("sigma", dist.HalfNormal(1))
        z = numpyro.sample("z", dist.Normal(0, np.ones(40)))
        numpyro.sample("y", dist.Normal(b[0] + b[1] * x + tau * z[group], sigma), obs=y)

    def of_rows(theta, rows):
        """−log density of the rows of a group, the effect integrated out; zero of no row."""
        m, t2, s2 = len(rows), np.exp(2 * theta[:, 2]), np.exp(2 * theta[:, 3])
        r = y[rows] - theta[:, :1] - theta[:, 1:2] * x[rows]
        v = s2 + m * t2
        square = (r**2).sum(1) / s2 - t2 / (s2 * v) * r.sum(1) ** 2
        return 0.5 * (square + (m - 1) * np.log(s2) + np.log(v) + m * np.log(2 * np.pi)) if m else 0 * s2

    losses = lambda theta: np.stack([of_rows(theta, np.flatnonzero(group == g)) for g in range(40)], axis=1)
    half = lambda t: -0.5 * np.exp(2 * t) + t + np.log(2 / np.sqrt(2 * np.pi))
    prior = lambda theta: normal(theta[:, :2], 5.0).sum(1) + half(theta[:, 2]) + half(theta[:, 3])
    start = np.array([1.0, -0.5, -0.5, -0.2])
    true = truth(losses, prior, start, np.arange(40)[:, None])
    mcmc, seconds = nuts(model, x, group, y)
    report(
        "radon-like, groups, effects integrated",
        lo.from_numpyro(model, mcmc, integrate={"z": group}),
        lo.groups(group),
        true,
        seconds,
    )
    report("radon-like, groups, effects sampled", lo.from_numpyro(model, mcmc), lo.groups(group), true, seconds)


def schools():
    y, scale = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def model(y, scale):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        z = numpyro.sample("z", dist.Normal(0, np.ones(8)))
        numpyro.sample("y", dist.Normal(mu + tau * z, scale), obs=y)

    losses = lambda theta: -normal(y - theta[:, :1], np.sqrt(scale**2 + np.exp(2 * theta[:, 1:])))
    prior = lambda theta: normal(theta[:, 0], 5.0) - np.log1p((np.exp(theta[:, 1]) / 5) ** 2) + theta[:, 1]
    true = truth(losses, prior, np.array([5.0, 1.5]), np.arange(8)[:, None], draws=200_000)
    mcmc, seconds = nuts(model, y, scale)
    report("eight schools, effects sampled", lo.from_numpyro(model, mcmc), lo.leave_one_out(8), true, seconds)
    integrated = lo.from_numpyro(model, mcmc, integrate={"z": np.arange(8)})
    report("eight schools, effects integrated", integrated, lo.leave_one_out(8), true, seconds)


def conjugate(p):
    """A regression of variance one under N(0, I): its rows and independent draws, with the elpd in closed form."""

    def make(seed):
        rng = np.random.default_rng(seed)
        X = np.ones((20, 1)) if p == 1 else rng.normal(size=(20, p))
        y = X @ rng.normal(size=p) + rng.normal(size=20)
        cov = np.linalg.inv(np.eye(p) + X.T @ X)
        draws = cov @ X.T @ y + rng.normal(size=(4, 500, p)) @ np.linalg.cholesky(cov).T
        A, r = np.linalg.inv(cov), X.T @ y
        own = [np.linalg.inv(A - np.outer(x, x)) for x in X]
        true = [
            stats.norm.logpdf(y[i], X[i] @ own[i] @ (r - X[i] * y[i]), np.sqrt(1 + X[i] @ own[i] @ X[i])) for i in range(20)
        ]
        return lo.from_posterior(draws, lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0), intercept=False)), sum(true)

    return make


def binomial_loss(theta, row):
    log_ways = gammaln(row["n"] + 1) - gammaln(row["y"] + 1) - gammaln(row["n"] - row["y"] + 1)
    return -row["y"] * jnp.log(theta["p"]) - (row["n"] - row["y"]) * jnp.log1p(-theta["p"]) - log_ways


def binomial_prior(theta):
    return jnp.log(theta["p"]) + jnp.log1p(-theta["p"])  # Beta(2, 2)


def beta_binomial(seed):
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 15, 20)
    y = rng.binomial(n, rng.beta(2, 2))
    a, b = 2 + y.sum(), 2 + (n - y).sum()
    true = stats.betabinom.logpmf(y, n, a - y, b - (n - y)).sum()
    data = {"y": y.astype(float), "n": n.astype(float)}
    draws = {"p": rng.beta(a, b, (4, 500))}
    return lo.from_posterior(draws, binomial_loss, data, log_prior=binomial_prior, transforms={"p": "logit"}), true


def calibration():
    print(f"## Stated and actual Monte-Carlo errors, {RUNS} data sets each\n")
    print(
        "elpd of twenty rows left out one by one, from 2,000 independent draws. 'Within' counts errors below 1.96 stated "
        "ones.\n"
    )
    print("| model | within | mean of z | SD of z | largest k̂ | flagged folds |\n|---|---|---|---|---|---|")
    for name, make in (
        ("normal mean", conjugate(1)),
        ("linear regression, 3 columns", conjugate(3)),
        ("beta–binomial", beta_binomial),
    ):
        z, k, flagged = [], [], 0
        for seed in range(RUNS):
            posterior, true = make(seed)
            found = lo.elpd(posterior, lo.leave_one_out(20))
            z.append((found.elpd - true) / found.sampling_error)
            k.append(found.pareto_k.max())
            flagged += len(found.flagged())
        z = np.array(z)
        row = f"{np.mean(np.abs(z) < 1.96):.1%} | {z.mean():.2f} | {z.std():.2f} | {max(k):.2f} | {flagged}"
        print(f"| {name} | {row} |", flush=True)


def against_arviz():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = X @ np.ones(3) + rng.normal(size=500)
    cov = np.linalg.inv(np.eye(3) + X.T @ X)
    draws = cov @ X.T @ y + rng.normal(size=(4, 1000, 3)) @ np.linalg.cholesky(cov).T
    posterior = lo.from_posterior(draws, lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0), intercept=False))
    plan, spent = lo.leave_one_out(500), np.zeros((5, 2))
    for k in range(5):
        vars(posterior).pop("block_losses", None)
        start = time.process_time()
        ours = lo.elpd(posterior, plan)
        middle = time.process_time()
        log_likelihood = -posterior.unit_losses.reshape(4, 1000, 500) - 0.5 * np.log(2 * np.pi)
        data = az.from_dict(posterior={"beta": draws}, log_likelihood={"y": log_likelihood})
        theirs = az.loo(data)
        spent[k] = middle - start, time.process_time() - middle
    ratio = np.median(spent[:, 0] / spent[:, 1])
    print("\n## Where draws are good as they are\n")
    print(
        f"A regression of 500 rows, 4,000 draws, largest k̂ {ours.raw_k.max():.2f}: elpd {ours.elpd:.4f} ± "
        f"{ours.sampling_error:.2g} (Monte Carlo); "
    )
    print(f"ArviZ's `loo` {theirs.elpd_loo:.4f}. Processor time, ours over ArviZ's, median of five in turns: {ratio:.2f}.")


def main():
    print("# Posteriors: leave rows and groups out of one set of draws\n\nPrinted by `python benchmarks/posteriors.py`.\n")
    print("## Models\n")
    print(
        "4,000 draws of four chains by NUTS. The truth is by normalisers. |Δ| / SE is the error of the sum over folds that are "
        "not"
    )
    print(
        "flagged, in standard errors of the elpd; max |Δ| that of a fold. A refit is NUTS again, compiled, with its warmup.\n"
    )
    head = [
        "model",
        "folds",
        "k̂ > 0.7 as drawn",
        "as estimated",
        "flagged",
        "truth",
        "elpd ± Monte Carlo",
        "Δ / SE",
        "max Δ",
        "s a fold",
        "s a refit",
        "times",
    ]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for case in (schools, separated, radon, roaches):
        case()
    print()
    calibration()
    against_arviz()


if __name__ == "__main__":
    main()
