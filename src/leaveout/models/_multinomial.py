"""The loss of several classes: one linear predictor each."""

import numpy as np
import scipy

from .._jax import jax, special_of
from .._objective import LOG_PROBABILITY
from ._loss import AbstractLoss


class Multinomial(AbstractLoss):
    """`log Σ_k e^{η_k} − η_y`: one linear predictor a class, y the class's number. A common shift of all η is flat."""

    self_concordance = 1.0  # |E[(s − s̄)(v − v̄)²]| ≤ (max s − min s) Var v

    def __call__(self, eta, y):
        return jax.nn.logsumexp(eta) - eta[y.astype(int)]

    def inverse_link(self, eta):
        return special_of(eta).softmax(eta, axis=-1)

    def scale(self, y):
        return LOG_PROBABILITY

    def formulas(self, eta, y):
        """ℓ, p − e_y and diag(p) − p pᵀ; what is left of one beside a p near it is summed, never subtracted."""
        hot = np.moveaxis(np.equal.outer(np.arange(eta.shape[-1]), y), 0, -1)  # a class after another, as predictors are
        top = eta.max(-1, keepdims=True)
        e = np.exp(eta - top)
        total, others = e.sum(-1, keepdims=True), np.where(hot, 0.0, e).sum(-1, keepdims=True)
        own = np.where(hot, eta - top, 0.0).sum(-1, keepdims=True)
        return {
            0: lambda: np.where(own == 0, np.log1p(others), np.log(total) - own)[..., 0],
            1: lambda: np.where(hot, -others, e) / total,
            2: lambda: _covariance(e / total, e @ (1 - np.eye(e.shape[-1])) / total),
        }

    def roots(self, eta):
        """diag(√p) − p √pᵀ."""
        e = _exponentials(eta)
        total = e.sum(-1, keepdims=True)
        p, k = e / total, np.arange(e.shape[-1])
        root = -p[..., :, None] * np.sqrt(p)[..., None, :]
        root[..., k, k] = np.sqrt(p) * (e @ (1 - np.eye(len(k))) / total)
        return root

    def third(self, eta, move):
        """p_k ((s_k − s̄)² − Var s)."""
        p = _exponentials(eta)
        p /= p.sum(-1, keepdims=True)
        apart = move - np.einsum("...k,...k->...", p, move)[..., None]
        apart *= apart
        apart -= np.einsum("...k,...k->...", p, apart)[..., None]
        apart *= p
        return apart

    def ratios(self, eta, at):
        """Of the probabilities: vᵀ∇²ℓ v = min over m of Σ_k p_k (v_k − m)²."""
        change = scipy.special.log_softmax(eta, axis=-1) - scipy.special.log_softmax(at, axis=-1)
        return np.exp(change.min(-1)), np.exp(np.minimum(change.max(-1), 700.0))

    def within(self, eta, y, spread):
        """ℓ(η + s) − ℓ(η) = log Σ_k p_k e^{s_k − s_y} between log(p_y + (1 − p_y) e^{∓spread})."""
        hot = np.asarray(y)[..., None] == np.arange(eta.shape[-1])
        other = np.where(hot, 0.0, scipy.special.softmax(eta, axis=-1)).sum(-1)
        near = np.minimum(spread, 50.0)
        rise = np.log1p(other * np.expm1(near)) + (spread - near)
        with np.errstate(divide="ignore"):
            return np.minimum(spread, -np.log1p(np.maximum(other * np.expm1(-spread), -1.0))), rise


def _exponentials(eta: np.ndarray) -> np.ndarray:
    """The probabilities, but for their sum."""
    e = eta - eta.max(-1, keepdims=True)
    return np.exp(e, out=e)


def _covariance(p: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """diag(p) − p pᵀ, `rest` being 1 − p."""
    out, k = -p[..., :, None] * p[..., None, :], np.arange(p.shape[-1])
    out[..., k, k] = p * rest
    return out
