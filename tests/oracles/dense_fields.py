"""Gaussian fields written out again with dense covariances. Nothing of the library is used.

y_s ~ p(y | η_s),   η = Xβ + log exposure + L z,   z ~ N(0, I),   L Lᵀ the field's covariance

F = Σ w ℓ(η) + ½ zᵀz + ½ log|I + Lᵀ diag(w ℓ″) L| − log p(ψ)     at the mode of z
"""

import numpy as np
import scipy.optimize
from scipy.special import expit, gammaln, logit
from scipy.stats import beta, gamma

SHARES = ("rho", "mixing")
HYPER = {
    "car": ("sd", "rho"),
    "leroux": ("sd", "mixing"),
    "icar": ("sd",),
    "bym2": ("sd", "mixing"),
    "matern": ("sd", "range"),
}


def laplacian(edges, n):
    A = np.zeros((n, n))
    A[edges[:, 0], edges[:, 1]] = A[edges[:, 1], edges[:, 0]] = 1
    return np.diag(A.sum(1)) - A


def scaled_inverse(R):
    """Of the intrinsic field.

    The pseudo-inverse, its variances of geometric mean one on each component.
    """
    out, left = np.zeros_like(R), set(range(len(R)))
    while left:
        own = {left.pop()}
        while True:
            more = own | set(np.flatnonzero((R[list(own)] != 0).any(0)))
            if more == own:
                break
            own = more
        left -= own
        at = np.ix_(*2 * [sorted(own)])
        inverse = np.linalg.pinv(R[at], hermitian=True) if len(own) > 1 else np.ones((1, 1))
        out[at] = inverse / np.exp(np.log(np.diag(inverse)).mean())
    return out


def covariance(structure, edges, n, sd, other=None):
    R, eye = laplacian(edges, n), np.eye(n)
    if structure == "car":
        D = np.diag(np.diag(R))
        return sd**2 * np.linalg.inv(D - other * (D - R))
    if structure == "leroux":
        return sd**2 * np.linalg.inv(other * R + (1 - other) * eye)
    if structure == "matern":
        square = 8 / other**2
        return sd**2 * 4 * np.pi * square * np.linalg.inv((square * eye + R) @ (square * eye + R))
    intrinsic = scaled_inverse(R)
    return sd**2 * (intrinsic if structure == "icar" else (1 - other) * eye + other * intrinsic)


def loss(family, y, eta, trials=1.0, noise=1.0):
    """−log p(y | η), and two derivatives."""
    if family == "poisson":
        return np.exp(eta) - y * eta + gammaln(y + 1), np.exp(eta) - y, np.exp(eta)
    if family == "binomial":
        p, ways = expit(eta), gammaln(trials + 1) - gammaln(y + 1) - gammaln(trials - y + 1)
        return trials * np.logaddexp(0, eta) - y * eta - ways, trials * p - y, trials * p * (1 - p)
    z = (eta - y) / noise
    return 0.5 * z**2 + np.log(noise * np.sqrt(2 * np.pi)), z / noise, np.full_like(eta, noise**-2)


class Dense:
    """One field; θ is β, then logarithms and logits of what `HYPER` lists, and the logarithm of
    noise.
    """

    def __init__(
        self,
        y,
        edges,
        X,
        family="poisson",
        structure="bym2",
        exposure=None,
        trials=None,
        prior=True,
    ):
        self.y, self.edges, self.X, self.n = y, edges, X, len(y)
        self.family, self.structure, self.prior = family, structure, prior
        self.offset = np.zeros(self.n) if exposure is None else np.log(exposure)
        self.trials = np.ones(self.n) if trials is None else trials
        self.names = HYPER[structure] + (("noise_sd",) if family == "gaussian" else ())
        self.scale = np.std(y) if family == "gaussian" else 1.0

    def parts(self, theta):
        k = self.X.shape[1]
        natural = [
            expit(v) if name in SHARES else np.exp(v)
            for name, v in zip(self.names, theta[k:], strict=True)
        ]
        return self.offset + self.X @ theta[:k], dict(zip(self.names, natural, strict=True))

    def losses(self, eta, known):
        return loss(self.family, self.y, eta, self.trials, known.get("noise_sd", 1.0))

    def posterior(self, theta, w):
        """Means and covariance of η, and F."""
        fixed, known = self.parts(theta)
        field = [known[name] for name in HYPER[self.structure]]
        values, vectors = np.linalg.eigh(covariance(self.structure, self.edges, self.n, *field))
        keep = values > 1e-10 * values[-1]
        L = vectors[:, keep] * np.sqrt(values[keep])
        z = np.zeros(L.shape[1])
        inner = lambda z: w @ self.losses(fixed + L @ z, known)[0] + 0.5 * z @ z
        for _ in range(200):
            _, slope, bend = self.losses(fixed + L @ z, known)
            H = np.eye(len(z)) + L.T @ ((w * bend)[:, None] * L)
            step, share = np.linalg.solve(H, L.T @ (w * slope) + z), 1.0
            while inner(z - share * step) > inner(z) + 1e-10 and share > 1e-8:
                share /= 2
            z = z - share * step
            if np.abs(step).max() < 1e-11:
                break
        F = inner(z) + 0.5 * np.linalg.slogdet(H)[1]
        return (
            fixed + L @ z,
            L @ np.linalg.inv(H) @ L.T,
            F - (self.log_prior(known) if self.prior else 0.0),
            known,
        )

    def log_prior(self, known):
        total = 0.0
        for name, value in known.items():
            if name in SHARES:
                total += beta(2, 2).logpdf(value) - np.log(6)
            elif name == "range":
                total += -2 * np.log(value) - 6 / value
            else:
                rate = 2 / self.scale
                total += gamma(2, scale=1 / rate).logpdf(value) - 2 * np.log(rate)
        return total

    def value(self, theta, w):
        return self.posterior(theta, w)[2]

    def refit(self, start, w):
        """The minimiser, from differences of F alone."""

        def slope(theta):
            steps = 1e-4 * np.eye(len(theta))
            return np.array(
                [(self.value(theta + s, w) - self.value(theta - s, w)) / 2e-4 for s in steps]
            )

        return scipy.optimize.minimize(
            self.value, start, args=(w,), jac=lambda v, w: slope(v), options={"gtol": 1e-6}
        ).x

    def score(self, theta, w, site):
        """−log p(y_site | what is seen), by integration on a fine grid."""
        mean, C, _, known = self.posterior(theta, w)
        sd = np.sqrt(C[site, site])
        eta = np.linspace(mean[site] - 12 * sd, mean[site] + 12 * sd, 20001)
        value = loss(self.family, self.y[site], eta, self.trials[site], known.get("noise_sd", 1.0))[
            0
        ]
        density = np.exp(-value - 0.5 * ((eta - mean[site]) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        return -np.log(np.sum(density) * (eta[1] - eta[0]))


def unconstrained(p, names):
    """θ of the dense model by natural parameters."""
    return np.array(
        [
            float(p["intercept"]),
            *np.ravel(p["coef"]),
            *(logit(p[n]) if n in SHARES else np.log(p[n]) for n in names),
        ]
    )
