"""Loss of several classes, with one linear predictor for each."""

import numpy as np
from numpy import ndarray
from scipy import special

from ..._runtime import Array, Arrays, TwoArrays, jax, silence, special_of
from ...objectives import LOG_PROBABILITY
from .distributions import Formulas
from .loss import AbstractLoss


class Multinomial(AbstractLoss):
    """Multinomial loss, `log Σ_k e^{η_k} − η_y`: −log probability of class y, with one linear
    predictor for each class.

    A common shift of all η changes nothing.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.Multinomial().derivatives(np.zeros((2, 3)), np.array([0.0, 2.0]), (0,))[0].round(
    ...     3
    ... )
    array([1.099, 1.099])
    """

    scale_name = LOG_PROBABILITY
    self_concordance = 1.0  # |E[(s − s̄)(v − v̄)²]| ≤ (max s − min s) Var v

    def __call__(self, eta: Array, y: Array) -> Array:
        return jax.nn.logsumexp(eta) - eta[y.astype(int)]

    def inverse_link(self, eta: Arrays) -> Arrays:
        return special_of(eta).softmax(eta, axis=-1)

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        """Return the loss ℓ, p − e_y and diag(p) − p pᵀ, in NumPy.

        Where a probability is close to one, its difference from one is computed as a sum of the
        others.

        Parameters
        ----------
        eta : array of float, shape (..., classes)
            Linear predictors.
        y : array of float, shape (...)
            Numbers of the classes.

        Returns
        -------
        dict of callable
            Functions that compute the value and the derivatives, by order.
        """
        # classes one after another, like predictors
        hot = np.moveaxis(np.equal.outer(np.arange(eta.shape[-1]), y), 0, -1)
        top = eta.max(-1, keepdims=True)
        e = np.exp(eta - top)
        total = e.sum(-1, keepdims=True)
        other_sum = np.where(hot, 0.0, e).sum(-1, keepdims=True)
        response_eta = np.where(hot, eta - top, 0.0).sum(-1, keepdims=True)

        def second() -> ndarray:  # diag(p) − p pᵀ
            p = e / total
            complement = e @ (1 - np.eye(e.shape[-1])) / total
            out = -p[..., :, None] * p[..., None, :]
            k = np.arange(p.shape[-1])
            out[..., k, k] = p * complement
            return out

        return {
            0: lambda: np.where(
                response_eta == 0, np.log1p(other_sum), np.log(total) - response_eta
            )[..., 0],
            1: lambda: np.where(hot, -other_sum, e) / total,
            2: second,
        }

    def terms(self, order, size, eta, y):
        # η less its maximum is rounded before it is an exponent
        amplification = 1 + np.abs(eta).max(-1)
        return size * amplification.reshape(
            amplification.shape + (1,) * (size.ndim - amplification.ndim)
        )

    def roots(self, eta: ndarray) -> ndarray:
        """Compute the root diag(√p) − p √pᵀ of the second derivative.

        Parameters
        ----------
        eta : array of float, shape (..., classes)
            Linear predictors.

        Returns
        -------
        array of float, shape (..., classes, classes)
            Root R, where ℓ″ = R Rᵀ.
        """
        e = _exponentials(eta)
        total = e.sum(-1, keepdims=True)
        p = e / total
        k = np.arange(e.shape[-1])
        root = -p[..., :, None] * np.sqrt(p)[..., None, :]
        root[..., k, k] = np.sqrt(p) * (e @ (1 - np.eye(len(k))) / total)
        return root

    def third(self, eta: ndarray, along: ndarray, across: ndarray) -> TwoArrays:
        """Compute third derivatives, Σ_k p_k (s_k − s̄)² (d_k − d̄), along directions s twice and d
        once.

        Parameters
        ----------
        eta : array of float, shape (..., classes)
            Linear predictors.
        along, across : array of float, shape (..., classes - 1, directions)
            Directions s and d less their last entries, which are overwritten.

        Returns
        -------
        tuple of array of float, shape (..., directions)
            The derivatives, and the sums of the sizes of their terms.
        """
        p = _exponentials(eta)[..., None, :]
        p /= p.sum(-1, keepdims=True)
        others = p[..., :-1]
        means = others @ along, others @ across
        along -= means[0]
        across -= means[1]
        across *= np.square(along, out=along)
        last = p[..., -1:] * means[0] ** 2 * means[1]
        derivative = others @ across - last
        size = others @ np.abs(across, out=across) + np.abs(last)
        return derivative[..., 0, :], size[..., 0, :]

    def ratios(self, eta: ndarray, at: ndarray) -> TwoArrays:
        """Bound how ℓ″ changes between two linear predictors, by the ratios of their probabilities.

        Since vᵀ∇²ℓ v = min over m of Σ_k p_k (v_k − m)², ℓ″ at `eta` lies between `low` and `high`
        times that at `at`.

        Parameters
        ----------
        eta, at : array of float, shape (..., classes)
            Linear predictors.

        Returns
        -------
        tuple of array of float, shape (...)
            `low` and `high`: the least and the largest ratio of the probabilities at `eta` to those
            at `at`.
        """
        change = special.log_softmax(eta, axis=-1) - special.log_softmax(at, axis=-1)
        return np.exp(change.min(-1)), np.exp(np.minimum(change.max(-1), 700.0))

    def within(self, eta: ndarray, y: ndarray, spread: ndarray) -> TwoArrays:
        """Bound the change of the loss within a spread of the linear predictors.

        ℓ(η + s) − ℓ(η) = log Σ_k p_k e^{s_k − s_y} lies between log(p_y + (1 − p_y) e^{∓spread}).

        Parameters
        ----------
        eta : array of float, shape (..., classes)
            Linear predictors.
        y : array of float, shape (...)
            Numbers of the classes.
        spread : array of float, shape (...)
            Largest difference between two entries of s.

        Returns
        -------
        tuple of array of float, shape (...)
            Bounds on the fall and on the rise of the loss.
        """
        hot = np.asarray(y)[..., None] == np.arange(eta.shape[-1])
        complement = np.where(hot, 0.0, special.softmax(eta, axis=-1)).sum(-1)
        capped = np.minimum(spread, 50.0)
        rise = np.log1p(complement * np.expm1(capped)) + (spread - capped)
        with silence("divide"):
            return np.minimum(
                spread, -np.log1p(np.maximum(complement * np.expm1(-spread), -1.0))
            ), rise

    def corrected(self, eta: ndarray, y: ndarray, change: ndarray, error: ndarray) -> TwoArrays:
        """Move the predictor of class y until the loss has changed.

        Parameters
        ----------
        eta : array of float, shape (..., classes)
            Linear predictors.
        y : array of float, shape (...)
            Numbers of the classes.
        change, error : array of float, shape (...)
            Change of the loss, and a bound of its error.

        Returns
        -------
        eta : array of float, shape (..., classes)
            The predictors.
        spread : array of float, shape (...)
            Largest difference between two entries of a move that raises the loss by the error;
            infinite where the loss would not be positive.
        """
        loss = self.formulas(eta, y)[0]()
        hot = y[..., None] == np.arange(eta.shape[-1])
        with silence("divide", "invalid", "over"):
            complement = -np.expm1(-loss - change)
            move = np.log(-np.expm1(-loss) / complement) - change
            spread = np.log1p(np.expm1(error) / complement)
        good = (complement > 0) & (loss > 0)
        return eta + hot * np.where(good, move, 0.0)[..., None], np.where(good, spread, np.inf)


def _exponentials(eta: ndarray) -> ndarray:
    """Compute the probabilities up to their sum."""
    e = eta - eta.max(-1, keepdims=True)
    return np.exp(e, out=e)
