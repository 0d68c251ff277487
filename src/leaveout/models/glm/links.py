"""Links `η = g(μ)` between a mean and its linear predictor, for the losses that take one.

identity, log, inverse (1/μ), sqrt, inverse_squared (1/μ²), Power(p): μ^p, cloglog: log(−log(1 −
μ)), NegativeBinomial(α): log(αμ / (1 + αμ))
"""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from ..._runtime import Arrays, Module, numpy_of, static

__all__ = [
    "AbstractLink",
    "ComplementaryLogLog",
    "Identity",
    "Log",
    "NegativeBinomialLink",
    "Power",
]
__dir__ = __all__.copy


class AbstractLink(Module):
    """Link: `link(mean)` is the linear predictor.

    `inverse` is NaN outside the domain of η. Arrays are of NumPy or JAX.
    """

    @abstractmethod
    def __call__(self, mean: Arrays) -> Arrays:
        """Compute `g(μ)`."""

    @abstractmethod
    def inverse(self, eta: Arrays) -> Arrays:
        """Compute `μ = g⁻¹(η)`.

        Parameters
        ----------
        eta : array
            Linear predictors.

        Returns
        -------
        array
            Means.
        """

    def log_inverse(self, eta: Arrays) -> Arrays:
        """Compute `log μ`, for links with μ > 0.

        Parameters
        ----------
        eta : array
            Linear predictors.

        Returns
        -------
        array
            Logarithms of means.
        """
        return numpy_of(eta).log(self.inverse(eta))

    @property
    def inside(self) -> float:
        """Return a linear predictor inside the domain."""
        return -1.0


class Identity(AbstractLink):
    """`η = μ`.

    Examples
    --------
    >>> lo.losses.links.Identity()(np.array([0.5])).round(3)
    array([0.5])
    """

    def __call__(self, mean: Arrays) -> Arrays:
        return mean

    def inverse(self, eta: Arrays) -> Arrays:
        return eta

    inside = 1.0


class Log(AbstractLink):
    """`η = log μ`.

    Examples
    --------
    >>> lo.losses.links.Log()(np.array([1.0, 2.0])).round(3)
    array([0.   , 0.693])
    """

    def __call__(self, mean: Arrays) -> Arrays:
        return numpy_of(mean).log(mean)

    def inverse(self, eta: Arrays) -> Arrays:
        return numpy_of(eta).exp(eta)

    def log_inverse(self, eta: Arrays) -> Arrays:
        return eta


class Power(AbstractLink):
    """`η = μ^p`, p not zero.

    η must be positive, except for p = ½, when its sign does not matter.

    Parameters
    ----------
    exponent : float
        Power p.

    Raises
    ------
    ValueError
        If p is zero or not finite.

    Examples
    --------
    >>> lo.losses.links.Power(-1.0)(np.array([2.0, 4.0])).round(3)
    array([0.5 , 0.25])
    """

    exponent: Float[ndarray, ""]
    even: bool = static()

    def __init__(self, exponent: float):
        if not np.isfinite(exponent) or exponent == 0:
            raise ValueError(
                f"Power: the exponent must be finite and not zero; got {exponent}. Use the link 'log' for zero."
            )
        self.exponent = np.asarray(exponent, float)
        self.even = exponent == 0.5

    def __call__(self, mean: Arrays) -> Arrays:
        return mean**self.exponent

    def inverse(self, eta: Arrays) -> Arrays:
        if self.even:
            return eta**2
        return numpy_of(eta).exp(self.log_inverse(eta))

    def log_inverse(self, eta: Arrays) -> Arrays:
        log = numpy_of(eta).log
        if self.even:
            return log(eta**2)
        return log(eta) / self.exponent

    inside = 1.0


class NegativeBinomialLink(AbstractLink):
    """`η = log(αμ / (1 + αμ))`, canonical for the negative binomial; η must be negative.

    Parameters
    ----------
    dispersion : float, default: 1.0
        Dispersion α, positive.

    Raises
    ------
    ValueError
        If α is not positive and finite.

    Examples
    --------
    >>> lo.losses.links.NegativeBinomialLink()(np.array([1.0, 2.0])).round(3)
    array([-0.693, -0.405])
    """

    dispersion: Float[ndarray, ""]

    def __init__(self, dispersion: float = 1.0):
        if not (np.isfinite(dispersion) and dispersion > 0):
            raise ValueError(
                f"NegativeBinomial: the link's dispersion must be positive; got {dispersion}."
            )
        self.dispersion = np.asarray(dispersion, float)

    def __call__(self, mean: Arrays) -> Arrays:
        return numpy_of(mean).log(mean * self.dispersion / (1 + mean * self.dispersion))

    def inverse(self, eta: Arrays) -> Arrays:
        return numpy_of(eta).exp(self.log_inverse(eta))

    def log_inverse(self, eta: Arrays) -> Arrays:
        xp = numpy_of(eta)
        return eta - xp.log(-xp.expm1(eta)) - xp.log(self.dispersion)


class ComplementaryLogLog(AbstractLink):
    """`η = log(−log(1 − μ))`, of a mean between 0 and 1.

    Examples
    --------
    >>> lo.losses.links.ComplementaryLogLog()(np.array([0.5])).round(3)
    array([-0.367])
    """

    def __call__(self, mean: Arrays) -> Arrays:
        xp = numpy_of(mean)
        return xp.log(-xp.log1p(-mean))

    def inverse(self, eta: Arrays) -> Arrays:
        xp = numpy_of(eta)
        return -xp.expm1(-xp.exp(eta))


NAMED: dict[str, Callable[[], AbstractLink]] = {
    "identity": Identity,
    "log": Log,
    "inverse": lambda: Power(-1.0),
    "sqrt": lambda: Power(0.5),
    "inverse_squared": lambda: Power(-2.0),
    "cloglog": ComplementaryLogLog,
}


def resolve(link: str | AbstractLink) -> AbstractLink:
    """Return a link from its name or from an object of `lo.losses.links`."""
    if isinstance(link, AbstractLink):
        return link
    if not isinstance(link, str) or link not in NAMED:
        raise ValueError(
            f"link must be one of {', '.join(NAMED)}, or an object of lo.losses.links; got {link!r}."
        )
    return NAMED[link]()


def name_of(link: AbstractLink) -> str:
    """Name of the link in `NAMED`, for links that have closed forms.

    "" for others, and for a power that is being traced.
    """
    if isinstance(link, Power):
        names = {-1.0: "inverse", 0.5: "sqrt", -2.0: "inverse_squared", 1.0: "identity"}
        if isinstance(link.exponent, ndarray):
            return names.get(float(link.exponent), "")
        return ""
    return {Identity: "identity", Log: "log"}.get(type(link), "")
