"""elpd of sampled models: against closed forms, and against normalisers by importance sampling;
time against NUTS.

`python benchmarks/posteriors.py > benchmarks/results/posteriors.md` prints the tables; names such
as `radon` or `calibration` select parts. Draws are NumPyro's (`leaveout[numpyro]`), by seeds that
stand here. The truth of a fold is log Z − log Z_o by importance sampling from a multivariate t, in
NumPy, with common random numbers, the effects integrated out: about the mode of the whole
posterior, or of the fold's where fewer than a tenth of its draws are worth something. Data are
those of posteriordb (kidiq, wells_data, radon_mn, mcycle_gp, unpacked; BSD-3) and of rstanarm
(roaches) in the folder LEAVEOUT_DATA. Seconds are processor time.
"""

import json
import os
import sys
import time
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jax.scipy.special import gammaln
from numpyro.infer import MCMC, NUTS
from scipy import optimize, special, stats
from scipy.sparse import csr_array

import leaveout as lo
from leaveout.objectives.objective import unravel

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore")
RUNS = 400


def minimum(F, start):
    """Mode and inverse root of the Hessian, by differences."""
    at = optimize.minimize(lambda v: F(v[None])[0], start, method="BFGS").x
    size, step = len(at), 1e-4 * np.eye(len(at))
    every = np.array([at + a + b for a in (*step, *-step) for b in (*step, *-step)])
    values = F(every).reshape(2 * size, 2 * size)
    hessian = (
        values[:size, :size] - values[:size, size:] - values[size:, :size] + values[size:, size:]
    ) / (4e-8)
    return at, np.linalg.inv(np.linalg.cholesky((hessian + hessian.T) / 2)).T


def log_mean(each):
    return each.max() + np.log(np.mean(np.exp(each - each.max())))


def truth(F, leave, start, draws=20_000):
    """log p(y_o | y_−o) of every fold, from F(θ, 1) and F(θ, 1) − F(θ, w) `[draws, folds]`,
    functions of many θ.
    """
    rng, size = np.random.default_rng(99), len(start)
    z = rng.standard_normal((draws, size)) * np.sqrt(7 / rng.chisquare(7, draws))[:, None]
    log_q = np.reshape(stats.multivariate_t(np.zeros(size), np.eye(size), 7).logpdf(z), draws)

    def near(F, start):
        mode, root = minimum(F, start)
        theta = mode + z @ root.T
        return mode, theta, -F(theta) - log_q + np.linalg.slogdet(root)[1]

    mode, theta, log_weights = near(F, start)
    whole, found = log_mean(log_weights), []
    for k, gone in enumerate(leave(theta).T):
        own = log_weights + gone
        if np.exp(2 * log_mean(own) - log_mean(2 * own)) < 0.1:
            own = near(lambda theta, k=k: F(theta) - leave(theta)[:, k], mode)[2]
        found.append(whole - log_mean(own))
    return np.array(found)


def nuts(model, *args, draws=1000, **kernel):
    """Draws of four chains, and the processor time of a chain set when everything is compiled."""
    start = kernel.pop("start", None)
    sampler = NUTS(model, target_accept_prob=0.95, **kernel)
    mcmc = MCMC(
        sampler,
        num_warmup=1000,
        num_samples=draws,
        num_chains=4,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.PRNGKey(0), *args, init_params=start)
    before = time.process_time()
    mcmc.run(jax.random.PRNGKey(1), *args, init_params=start)
    return mcmc, time.process_time() - before


def report(name, posterior, plan, true, seconds):
    """One row of the table of models."""
    lo.bayes.elpd(posterior, plan)
    for computed in ("block_losses", "value", "mode"):
        vars(posterior).pop(computed, None)
    start = time.process_time()
    found = lo.bayes.elpd(posterior, plan)
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
        f"{true[good].sum():.2f} ± {se:.1f}",
        f"{found.elpd:.2f} ± {found.sampling_error:.2g}",
        f"{abs(error[good].sum()) / se:.4f}",
        f"{np.abs(error[good]).max(initial=0):.3f}",
        f"{spent:.3f}",
        f"{seconds:.1f}",
        f"{seconds / spent:.0f}",
    ]
    print("| " + " | ".join(row) + " |", flush=True)
    return found


def data_of(name):
    with open(os.path.join(os.environ["LEAVEOUT_DATA"], "posteriordb", f"{name}.json")) as file:
        return {key: np.asarray(value) for key, value in json.load(file).items()}


def of_both(name, posterior, losses, prior, start, count, seconds, draws=20_000):
    """Rows, and random groups of them, of units that are independent given θ."""
    n = len(losses(start[None])[0])
    code = np.random.default_rng(0).permutation(np.arange(n) % count)
    F = lambda theta: losses(theta).sum(1) - prior(theta)
    groups = lambda theta: losses(theta) @ np.eye(count)[code]
    report(f"{name}, rows", posterior, lo.leave_one_out(n), truth(F, losses, start, draws), seconds)
    report(
        f"{name}, {count} random groups",
        posterior,
        lo.groups(code),
        truth(F, groups, start, draws),
        seconds,
    )


def normal(x, scale):
    return -0.5 * (x / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)


def roaches():
    d = pd.read_csv(os.path.join(os.environ["LEAVEOUT_DATA"], "cv_reference", "roaches.csv"))
    X = np.column_stack([np.ones(len(d)), np.sqrt(d.roach1), d.treatment, d.senior])
    y, offset = d.y.to_numpy(float), np.log(d.exposure2.to_numpy())
    scale = np.array([5.0, 2.5, 2.5, 2.5])

    def poisson(X, offset, y):
        beta = numpyro.sample("beta", dist.Normal(0, scale).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(X @ beta + offset)), obs=y)

    def negative_binomial(X, offset, y):
        beta = numpyro.sample("beta", dist.Normal(0, scale).to_event(1))
        phi = numpyro.sample("phi", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(X @ beta + offset), phi), obs=y)

    def of_poisson(theta):
        eta = theta @ X.T + offset
        return np.exp(eta) - y * eta + special.gammaln(y + 1)

    def of_both_counts(theta):
        eta, phi = theta[:, :4] @ X.T + offset, np.exp(theta[:, 4:])
        ways = special.gammaln(y + phi) - special.gammaln(phi) - special.gammaln(y + 1)
        return (phi + y) * np.log(phi + np.exp(eta)) - phi * np.log(phi) - y * eta - ways

    prior = lambda theta: normal(theta[:, :4], scale).sum(1)
    prior_of_both = lambda theta: prior(theta) + normal(theta[:, 4], 1.0)
    start = np.array([3.0, 0.1, -0.5, -0.3])
    mcmc, seconds = nuts(poisson, X, offset, y)
    of_both(
        "roaches, Poisson",
        lo.bayes.from_numpyro(poisson, mcmc),
        of_poisson,
        prior,
        start,
        26,
        seconds,
    )
    mcmc, seconds = nuts(negative_binomial, X, offset, y)
    found = lo.bayes.from_numpyro(negative_binomial, mcmc)
    of_both(
        "roaches, negative binomial",
        found,
        of_both_counts,
        prior_of_both,
        np.append(start, -1.0),
        26,
        seconds,
    )


def regression(name, X, y, scale, spread, code=None):
    """A normal regression: rows, and groups that are given or random."""
    p = X.shape[1]

    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(0, scale * np.ones(p)).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(spread))
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)

    losses = lambda theta: -normal(y - theta[:, :p] @ X.T, np.exp(theta[:, p:]))
    prior = lambda theta: normal(theta[:, :p], scale).sum(1) + half_normal(theta[:, p], spread)
    start = np.append(np.linalg.lstsq(X, y, rcond=None)[0], np.log(y.std()))
    mcmc, seconds = nuts(model, X, y)
    found = lo.bayes.from_numpyro(model, mcmc)
    of_both(name, found, losses, prior, start, 20, seconds)
    if code is not None:
        F = lambda theta: losses(theta).sum(1) - prior(theta)
        true = truth(F, lambda theta: losses(theta) @ np.eye(code.max() + 1)[code], start)
        report(f"{name}, {code.max() + 1} counties", found, lo.groups(code), true, seconds)


def half_normal(log_x, scale):
    """Log density of log x, where x is half normal."""
    return -0.5 * np.exp(2 * log_x) / scale**2 + log_x + np.log(2 / np.sqrt(2 * np.pi) / scale)


def kidiq():
    d = data_of("kidiq")
    iq = (d["mom_iq"] - 100) / 15
    X = np.column_stack([np.ones(len(iq)), d["mom_hs"], iq, iq * d["mom_hs"]]).astype(float)
    regression("kidiq", X, d["kid_score"].astype(float), 50.0, 50.0)


def wells():
    d = data_of("wells_data")
    X = np.column_stack(
        [np.ones(len(d["dist"])), d["dist"] / 100, d["arsenic"], d["educ"] / 4, d["assoc"]]
    ).astype(float)
    y = d["switched"].astype(float)

    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(0, 2.5 * np.ones(5)).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)

    losses = lambda theta: np.logaddexp(0, -(2 * y - 1) * (theta @ X.T))
    mcmc, seconds = nuts(model, X, y)
    prior = lambda theta: normal(theta, 2.5).sum(1)
    of_both(
        "wells",
        lo.bayes.from_numpyro(model, mcmc),
        losses,
        prior,
        np.zeros(5),
        30,
        seconds,
        draws=5_000,
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
    mcmc, seconds = nuts(model, X, y)
    prior = lambda theta: normal(theta, 2.5).sum(1)
    of_both(
        "logistic, separated",
        lo.bayes.from_numpyro(model, mcmc),
        losses,
        prior,
        np.zeros(5),
        5,
        seconds,
    )


def radon():
    """919 houses in 85 counties of Minnesota.

    Slopes that are pooled, and intercepts that vary, sampled and integrated out.
    """
    d = data_of("radon_mn")
    y, county = d["log_radon"].astype(float), d["county_idx"].astype(int) - 1
    X = np.column_stack([np.ones(len(y)), d["floor_measure"], d["log_uppm"]]).astype(float)
    regression("radon, pooled", X, y, 5.0, 2.0, county)

    def model(X, county, y):
        b = numpyro.sample("b", dist.Normal(0, 5 * np.ones(3)).to_event(1))
        tau, sigma = (
            numpyro.sample("tau", dist.HalfNormal(1)),
            numpyro.sample("sigma", dist.HalfNormal(1)),
        )
        z = numpyro.sample("z", dist.Normal(0, np.ones(85)))
        numpyro.sample("y", dist.Normal(X @ b + tau * z[county], sigma), obs=y)

    def of_rows(theta, rows):
        """−log density of rows of one county, its effect integrated out; zero of no row."""
        m, t2, s2 = len(rows), np.exp(2 * theta[:, 3]), np.exp(2 * theta[:, 4])
        r = y[rows] - theta[:, :3] @ X[rows].T
        v = s2 + m * t2
        square = (r**2).sum(1) / s2 - t2 / (s2 * v) * r.sum(1) ** 2
        return (
            0.5 * (square + (m - 1) * np.log(s2) + np.log(v) + m * np.log(2 * np.pi))
            if m
            else 0 * s2
        )

    some = np.sort(np.random.default_rng(0).choice(len(y), 100, replace=False))
    members = [np.flatnonzero(county == g) for g in range(85)]
    counties = lambda theta: np.stack([of_rows(theta, own) for own in members], axis=1)
    without = lambda theta, i: of_rows(theta, np.setdiff1d(members[county[i]], [i]))
    rows = lambda theta: np.stack(
        [of_rows(theta, members[county[i]]) - without(theta, i) for i in some], axis=1
    )
    prior = lambda theta: (
        normal(theta[:, :3], 5.0).sum(1)
        + half_normal(theta[:, 3], 1.0)
        + half_normal(theta[:, 4], 1.0)
    )
    F, start = (
        lambda theta: counties(theta).sum(1) - prior(theta),
        np.array([1.5, -0.6, 0.7, -1.5, -0.3]),
    )
    mcmc, seconds = nuts(model, X, county, y)
    sampled, integrated = (
        lo.bayes.from_numpyro(model, mcmc),
        lo.bayes.from_numpyro(model, mcmc, integrate={"z": county}),
    )
    for name, plan, leave in (
        ("100 of the rows", lo.leave_one_out(len(y)).some(some), rows),
        ("85 counties", lo.groups(county), counties),
    ):
        true = truth(F, leave, start, draws=40_000)
        report(f"radon, effects integrated, {name}", integrated, plan, true, seconds)
        report(f"radon, effects sampled, {name}", sampled, plan, true, seconds)


def schools():
    y, scale = (
        np.array([28.0, 8, -3, 7, -1, 1, 18, 12]),
        np.array([15.0, 10, 16, 11, 9, 11, 10, 18]),
    )

    def noncentred(y, scale):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        z = numpyro.sample("z", dist.Normal(0, np.ones(8)))
        numpyro.sample("y", dist.Normal(mu + tau * z, scale), obs=y)

    def centred(y, scale):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        effect = numpyro.sample("effect", dist.Normal(mu * np.ones(8), tau))
        numpyro.sample("y", dist.Normal(effect, scale), obs=y)

    losses = lambda theta: -normal(y - theta[:, :1], np.sqrt(scale**2 + np.exp(2 * theta[:, 1:])))
    prior = lambda theta: (
        normal(theta[:, 0], 5.0) - np.log1p((np.exp(theta[:, 1]) / 5) ** 2) + theta[:, 1]
    )
    F = lambda theta: losses(theta).sum(1) - prior(theta)
    pairs = lambda theta: losses(theta) @ np.eye(4)[np.arange(8) // 2]
    for form, model in (("not centred", noncentred), ("centred", centred)):
        mcmc, seconds = nuts(model, y, scale)
        for name, plan, leave in (
            ("rows", lo.leave_one_out(8), losses),
            ("pairs", lo.groups(np.arange(8) // 2), pairs),
        ):
            true = truth(F, leave, np.array([5.0, 1.5]), draws=200_000)
            report(
                f"eight schools, {form}, {name}",
                lo.bayes.from_numpyro(model, mcmc),
                plan,
                true,
                seconds,
            )
            if model is noncentred:
                integrated = lo.bayes.from_numpyro(model, mcmc, integrate={"z": np.arange(8)})
                report(
                    f"eight schools, effects integrated, {name}", integrated, plan, true, seconds
                )


def of_fit(name, fit, code, potential, draws):
    """A model of the library, whose F in JAX is sampled; the truth integrates F."""
    n = fit.objective.num_units
    jitter = 0.1 * np.random.default_rng(0).standard_normal((4, len(fit.vector)))
    mcmc, seconds = nuts(None, potential_fn=potential(fit), start=jnp.asarray(fit.vector + jitter))
    sampled = np.asarray(mcmc.get_samples(group_by_chain=True))
    posterior = lo.bayes.from_posterior(sampled, fit)
    F = lambda theta: posterior.values(theta, np.ones(n))
    assert np.allclose(
        F(sampled[0, :20]), [potential(fit)(u) for u in sampled[0, :20]], rtol=0, atol=1e-8
    )
    for kind, plan, folds in (
        ("rows", lo.leave_one_out(n), np.arange(n)[:, None]),
        (
            f"{code.max() + 1} blocks",
            lo.groups(code),
            [np.flatnonzero(code == k) for k in range(code.max() + 1)],
        ),
    ):
        away = csr_array(np.stack([np.isin(np.arange(n), fold).astype(float) for fold in folds]))
        leave = lambda theta, away=away: F(theta)[:, None] - posterior.values_without(theta, away).T
        report(
            f"{name}, {kind}", posterior, plan, truth(F, leave, fit.vector, draws=draws), seconds
        )


def of_chain(fit):
    """Forward pass of a chain of counts with two states, and its priors."""
    x = jnp.asarray(fit.objective.x[:, 0])
    prior = fit.objective.emission.prior["rate"]

    def normalised(ratios):
        zero = jnp.zeros((*ratios.shape[:-1], 1))
        return jax.nn.log_softmax(jnp.concatenate([ratios, zero], -1))

    def potential(u):
        theta = unravel(u, fit.theta)
        initial, moves = normalised(theta["initial"]), normalised(theta["transition"])
        log_rate = theta["rate"].ravel()
        counts = x[:, None] * log_rate - jnp.exp(log_rate) - gammaln(x + 1)[:, None]

        def forward(before, count):
            return jax.nn.logsumexp(before[:, None] + moves, 0) + count, None

        last, _ = jax.lax.scan(forward, initial + counts[0], counts[1:])
        of_rates = (prior.shape - 1) * log_rate - prior.rate * jnp.exp(log_rate)
        return -jax.nn.logsumexp(last) - initial.sum() - moves.sum() - of_rates.sum()

    return potential


def of_process(fit):
    """Marginal likelihood of a process of one length with Matérn's kernel, and its priors."""
    X, y = fit.objective.X, fit.objective.y
    apart, rates = (
        np.sqrt(5 * ((X[:, None] - X) ** 2).sum(-1)),
        np.array([2 / y.std(), 1 / fit.objective.spread[0], 2 / y.std()]),
    )

    def potential(u):
        r = apart * jnp.exp(-u[2])
        K = jnp.exp(2 * u[1]) * (1 + r + r**2 / 3) * jnp.exp(-r) + jnp.exp(2 * u[3]) * jnp.eye(
            len(y)
        )
        factor = jnp.linalg.cholesky(K)
        z = jax.scipy.linalg.solve_triangular(factor, y - u[0], lower=True)
        prior = jnp.sum(rates * jnp.exp(u[1:]) - u[1:])
        return (
            0.5 * z @ z + jnp.log(jnp.diag(factor)).sum() + 0.5 * len(y) * np.log(2 * np.pi) + prior
        )

    return potential


def earthquakes():
    counts = lo.datasets.earthquakes()["count"].to_numpy()
    of_fit(
        "earthquakes, Poisson HMM of two states",
        lo.fit(lo.HMM(counts, lo.emissions.Poisson(), 2)),
        np.arange(107) // 10,
        of_chain,
        30_000,
    )


def process(n):
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 6, (n, 1)), axis=0)
    return lo.fit(lo.GaussianProcess(x, np.sin(x[:, 0]) + 0.3 * rng.normal(size=n)))


def gaussian_process():
    of_fit("Gaussian process, simulated", process(30), np.arange(30) // 5, of_process, 200_000)


def large_process():
    n, count, rng = 300, 8_000, np.random.default_rng(0)
    fit = process(n)
    z = rng.standard_normal((count, 4)) * np.sqrt(7 / rng.chisquare(7, count))[:, None]
    theta, log_q = fit.quadratic.at(z), stats.multivariate_t(np.zeros(4), np.eye(4), 7).logpdf(z)
    values = fit.objective.values(theta, np.concatenate([np.ones((1, n)), 1 - np.eye(n)]))
    log_z = [log_mean(each) for each in (-values - log_q[:, None]).T]
    weight = np.exp(-values[:, 0] - log_q - log_z[0])
    posterior = lo.bayes.from_posterior(
        theta[rng.choice(count, 4000, p=weight / weight.sum())], fit
    )
    start = time.process_time()
    found = lo.bayes.elpd(posterior, lo.leave_one_out())
    spent = (time.process_time() - start) / n
    mcmc = MCMC(
        NUTS(potential_fn=of_process(fit), target_accept_prob=0.95),
        num_warmup=1000,
        num_samples=1000,
        progress_bar=False,
    )
    start = time.process_time()
    mcmc.run(jax.random.PRNGKey(0), init_params=jnp.asarray(fit.vector))
    jax.block_until_ready(mcmc.get_samples())
    chain = time.process_time() - start
    true = log_z[0] * n - sum(log_z[1:])
    print("\n## A Gaussian process of 300 rows\n")
    print("4,000 draws of a t at the mode by their weights; rows left out one by one.")
    print(
        f"elpd {found.elpd:.3f} ± {found.sampling_error:.2g} (Monte Carlo), truth {true:.3f}; {len(found.flagged())} flagged; "
        f"{spent:.2f} s a fold.\nOne chain of NUTS takes {chain:.0f} s, and a refit four: {4 * chain / spent:.0f} times."
    )


def conjugate(p):
    """A regression of variance one under N(0, I).

    Its rows and independent draws, with the elpd in closed form.
    """

    def make(seed):
        rng = np.random.default_rng(seed)
        X = np.ones((20, 1)) if p == 1 else rng.normal(size=(20, p))
        y = X @ rng.normal(size=p) + rng.normal(size=20)
        cov = np.linalg.inv(np.eye(p) + X.T @ X)
        draws = cov @ X.T @ y + rng.normal(size=(4, 500, p)) @ np.linalg.cholesky(cov).T
        A, r = np.linalg.inv(cov), X.T @ y
        own = [np.linalg.inv(A - np.outer(x, x)) for x in X]
        true = [
            stats.norm.logpdf(
                y[i], X[i] @ own[i] @ (r - X[i] * y[i]), np.sqrt(1 + X[i] @ own[i] @ X[i])
            )
            for i in range(20)
        ]
        return lo.bayes.from_posterior(
            draws, lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0), intercept=False)
        ), sum(true)

    return make


def binomial_loss(theta, row):
    log_ways = gammaln(row["n"] + 1) - gammaln(row["y"] + 1) - gammaln(row["n"] - row["y"] + 1)
    return (
        -row["y"] * jnp.log(theta["p"]) - (row["n"] - row["y"]) * jnp.log1p(-theta["p"]) - log_ways
    )


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
    return lo.bayes.from_posterior(
        draws, binomial_loss, data, log_prior=binomial_prior, transforms={"p": "logit"}
    ), true


def calibration():
    print(f"## Stated and actual Monte-Carlo errors, {RUNS} data sets each\n")
    print(
        "elpd of twenty rows left out one by one, from 2,000 independent draws. 'Within' counts errors below 1.96 stated "
        "ones.\n"
    )
    print(
        "| model | within | mean of z | SD of z | largest k̂ | flagged folds |\n|---|---|---|---|---|---|"
    )
    for name, make in (
        ("normal mean", conjugate(1)),
        ("linear regression, 3 columns", conjugate(3)),
        ("beta–binomial", beta_binomial),
    ):
        z, k, flagged = [], [], 0
        for seed in range(RUNS):
            posterior, true = make(seed)
            found = lo.bayes.elpd(posterior, lo.leave_one_out())
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
    posterior = lo.bayes.from_posterior(
        draws, lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0), intercept=False)
    )
    plan, spent = lo.leave_one_out(500), np.zeros((5, 2))
    for k in range(5):
        vars(posterior).pop("block_losses", None)
        start = time.process_time()
        ours = lo.bayes.elpd(posterior, plan)
        middle = time.process_time()
        log_likelihood = -posterior.unit_losses.reshape(4, 1000, 500)
        data = az.from_dict(posterior={"beta": draws}, log_likelihood={"y": log_likelihood})
        theirs = az.loo(data)
        spent[k] = middle - start, time.process_time() - middle
    ratio = np.median(spent[:, 0] / spent[:, 1])
    print("\n## Where draws are good as they are\n")
    print(
        f"A regression of 500 rows, 4,000 draws, largest k̂ {ours.raw_k.max():.2f}: elpd {ours.elpd:.4f} ± "
        f"{ours.sampling_error:.2g} (Monte Carlo); "
    )
    print(
        f"ArviZ's `loo` {theirs.elpd_loo:.4f}. Processor time, ours over ArviZ's, median of five in turns: {ratio:.2f}."
    )


MODELS = (schools, separated, kidiq, wells, roaches, radon, earthquakes, gaussian_process)


def main():
    chosen = sys.argv[1:]
    print(
        "# Posteriors: leave rows and groups out of one set of draws\n\nPrinted by `python benchmarks/posteriors.py`.\n"
    )
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
    for case in MODELS:
        if not chosen or case.__name__ in chosen:
            case()
    print()
    for part in (calibration, against_arviz, large_process):
        if not chosen or part.__name__ in chosen:
            part()


if __name__ == "__main__":
    main()
