"""Losses through the mean: exponential families and quasi-likelihoods, with any link.

With dispersion φ fixed, the minimiser does not depend on φ; the losses do.
"""

import abc
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy import ndarray

from ..._runtime import AnyPair, Array, Arrays, jnp, jspecial, numpy_of, static
from ...objectives import LOG_DENSITY
from . import distributions, links
from .distributions import Formulas, domain, exponential
from .loss import (
    AbstractLoss,
    AbstractMeanLoss,
    Convex,
    Number,
    members_of,
    positive,
    probability,
    within,
)

SMALLEST_PREDICTOR = 1e-50  # least positive predictor, whose inverse third power does not overflow


class AbstractFamilyLoss(AbstractMeanLoss):
    """−log of the density of a family, whose own parameter, if it has one, is given and held
    fixed.
    """

    family: ClassVar[distributions.Family]

    @property
    def parameter_and_log(self) -> AnyPair:
        """The parameter of the family and its logarithm."""
        if not self.family.parameter:
            return 1.0, 0.0
        value = getattr(self, self.family.parameter)
        if isinstance(value, ndarray):
            value = float(value)
        return value, numpy_of(value).log(value)

    def of_mean(self, mean: Array, log_mean: Array, y: Array) -> Array:
        return self.family.loss(mean, log_mean, *self.parameter_and_log, y)

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        link = self.link_name
        if link != self.family.link:
            return self._formulas_under(link, eta, y)
        parameters = self.parameter_and_log
        functions = self.family.formulas(eta, *parameters, y)
        value = functions[0]
        functions[0] = lambda: value() + self.family.constant(*parameters, y)
        return functions

    def _formulas_under(self, link: str, eta: ndarray, y: ndarray) -> Formulas:
        """Return `formulas` under a link that is not that of the family."""
        return {}

    def terms(self, order, size, eta, y):
        if self.link_name == self.family.link:
            return self.family.terms(order, size, eta, *self.parameter_and_log, y)
        # the terms under a link of powers are, but for constants, y and powers of η times
        # logarithms of η
        power = 1 + np.abs(eta) + np.abs(1 / np.where(eta == 0, 1.0, eta))
        if order > 1:
            return size
        phi, tau = self.parameter_and_log
        total = size + (1 + float(phi)) * (1 + np.abs(y)) * power**2
        if order == 0:
            total = total + np.abs(
                self.family.constant(phi, tau, np.maximum(y, SMALLEST_PREDICTOR))
            )
        return total

    (check,) = members_of("family", "check")

    def variance(self, mean: Arrays) -> Arrays:
        return self.family.variance(mean, self.parameter_and_log[0])

    def scale(self, y: ndarray) -> str:
        if self.family.scale == LOG_DENSITY:  # the parameter is given, not estimated
            return f"−log density of {self.family.parameter} {float(self.parameter_and_log[0]):g}"
        return probability(y, f"{self.family.title} loss of numbers that are not whole")


class Squared(AbstractMeanLoss):
    """Half the squared error, `½ (y − μ)²`.

    Parameters
    ----------
    link : str or link of lo.losses.links, default: "identity"
        Link between the mean and the linear predictor.

    See Also
    --------
    GaussianScale : Gaussian density whose standard deviation is estimated.

    Examples
    --------
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 3.0, 5.0]), lo.losses.Squared())
    ... )
    >>> fit.parameters["coef"].round(3)
    array([2.])
    """

    family = distributions.GAUSSIAN
    scale_name = "half the squared error"
    has_dispersion = True
    convex_links: ClassVar[Convex] = {"identity": 0.0}
    fourth = 0.0

    def __init__(self, link: str | links.AbstractLink = "identity"):
        self.link = links.resolve(link)

    def of_mean(self, mean: Array, log_mean: Array, y: Array) -> Array:
        return 0.5 * (y - mean) ** 2

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        if not self.convex:
            return {}
        return self.family.formulas(eta, 1.0, 0.0, y)

    def start(self, y: ndarray, weight: ndarray) -> Any:
        if self.convex:
            return float(np.average(y, weights=weight))
        return super().start(y, weight)

    def variance(self, mean: Arrays) -> Arrays:
        return numpy_of(mean).ones_like(mean)

    @property
    def ceiling(self) -> float:
        return 1.0 if self.convex else np.inf


class Poisson(AbstractFamilyLoss):
    """Poisson loss, `μ − y log μ + log y!`: −log of the Poisson density of mean μ.

    Responses y are zero or more; they need not be whole.

    Parameters
    ----------
    link : str or link of lo.losses.links, default: "log"
        Link between the mean and the linear predictor.

    See Also
    --------
    NegativeBinomial, QuasiPoisson, Tweedie

    Examples
    --------
    >>> import leaveout as lo
    >>> loss, slope = lo.losses.Poisson().derivatives(
    ...     np.zeros(3), np.array([0.0, 1.0, 2.0]), (0, 1)
    ... )
    >>> loss.round(3), slope
    (array([1.   , 1.   , 1.693]), array([ 1.,  0., -1.]))
    """

    family = distributions.POISSON
    # ℓ″ = e^η; y/η²; 2 + 2y/η²
    convex_links: ClassVar[Convex] = {"log": 1.0, "identity": None, "sqrt": None}
    fourth = 1.0

    def __init__(self, link: str | links.AbstractLink = "log"):
        self.link = links.resolve(link)

    def _formulas_under(self, link: str, eta: ndarray, y: ndarray) -> Formulas:
        constant = lambda: scipy.special.gammaln(y + 1.0)
        if link == "sqrt":
            x = np.copysign(np.maximum(np.abs(eta), SMALLEST_PREDICTOR), eta)
            return {
                0: lambda: eta**2 - 2 * scipy.special.xlogy(y, np.abs(eta)) + constant(),
                1: lambda: 2 * (eta - y / x),
                2: lambda: 2 * (1 + y / x**2),
                3: lambda: -4 * y / x**3,
            }
        if link == "identity":
            x = np.maximum(eta, SMALLEST_PREDICTOR)
            formulas = {0: lambda: x - y * np.log(x) + constant(), 1: lambda: 1 - y / x}
            return within(eta > 0, formulas | {2: lambda: y / x**2, 3: lambda: -2 * y / x**3})
        return {}


class Gamma(AbstractFamilyLoss):
    """Gamma loss, `ν (y/μ + log μ) − (ν − 1) log y − ν log ν + log Γ(ν)`: −log of the gamma density
    of mean μ and shape ν.

    The variance of y is μ²/ν. Responses are positive.

    Parameters
    ----------
    shape : float, default: 1.0
        Shape ν, which is held fixed.
    link : str or link of lo.losses.links, default: "log"
        Link between the mean and the linear predictor. "inverse" is canonical.

    Raises
    ------
    ValueError
        If the shape is not positive.

    See Also
    --------
    GammaShape : Gamma density whose shape is estimated.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.Gamma(2.0).derivatives(np.zeros(2), np.array([0.5, 2.0]), (0, 1))[0].round(3)
    array([0.307, 1.921])
    """

    shape: Number
    link: links.AbstractLink
    family = distributions.GAMMA
    has_dispersion = True
    convex_links: ClassVar[Convex] = {"log": 1.0, "inverse": None}  # ℓ″ = νy e^{−η}; ν/η²
    fourth = 1.0

    def __init__(self, shape: float = 1.0, link: str | links.AbstractLink = "log"):
        self.shape = positive("Gamma: shape", shape)
        self.link = links.resolve(link)

    def _formulas_under(self, link: str, eta: ndarray, y: ndarray) -> Formulas:
        if link != "inverse":
            return {}
        nu, tau = self.parameter_and_log
        x = np.maximum(eta, SMALLEST_PREDICTOR)
        formulas = {
            0: lambda: nu * (y * x - np.log(x)) + self.family.constant(nu, tau, y),
            1: lambda: nu * (y - 1 / x),
            2: lambda: nu / x**2,
            3: lambda: -2 * nu / x**3,
        }
        return within(eta > 0, formulas)


class InverseGaussian(AbstractFamilyLoss):
    """Inverse Gaussian loss, `λ (y − μ)² / (2 μ² y) + ½ log(2π y³ / λ)`: −log of the density of
    mean μ and shape λ.

    The variance of y is μ³/λ. Responses are positive.

    Parameters
    ----------
    shape : float, default: 1.0
        Shape λ, which is held fixed.
    link : str or link of lo.losses.links, default: "log"
        Link between the mean and the linear predictor. "inverse_squared" is canonical.

    Raises
    ------
    ValueError
        If the shape is not positive.

    Examples
    --------
    >>> import leaveout as lo
    >>> loss = lo.losses.InverseGaussian(link="inverse_squared")
    >>> loss.derivatives(np.ones(2), np.array([1.0, 2.0]), (0,))[0].round(3)
    array([0.919, 2.209])
    """

    shape: Number
    link: links.AbstractLink
    family = distributions.INVERSE_GAUSSIAN
    has_dispersion = True
    convex_links: ClassVar[Convex] = {"inverse_squared": None}  # ℓ″ = λ/4 η^{−3/2}

    def __init__(self, shape: float = 1.0, link: str | links.AbstractLink = "log"):
        self.shape = positive("InverseGaussian: shape", shape)
        self.link = links.resolve(link)

    def _formulas_under(self, link: str, eta: ndarray, y: ndarray) -> Formulas:
        if link != "inverse_squared":
            return {}
        half = float(self.shape) / 2
        x = np.maximum(eta, SMALLEST_PREDICTOR)
        formulas = {
            0: lambda: half * (y * x - 2 * np.sqrt(x) + 1 / y) + 0.5 * np.log(np.pi * y**3 / half),
            1: lambda: half * (y - x**-0.5),
            2: lambda: half / 2 * x**-1.5,
            3: lambda: -0.75 * half * x**-2.5,
        }
        return within(eta > 0, formulas)


class NegativeBinomial(AbstractFamilyLoss):
    """Negative binomial loss of a fixed dispersion: −log of the density of mean μ and variance `μ +
    α μ²`.

    Parameters
    ----------
    dispersion : float, default: 1.0
        Dispersion α, which is held fixed.
    link : str or link of lo.losses.links, default: "log"
        Link between the mean and the linear predictor.

    Raises
    ------
    ValueError
        If the dispersion is not positive.

    See Also
    --------
    NegativeBinomialDispersion : Loss whose dispersion is estimated, for `lo.Regression`.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.NegativeBinomial(0.5).derivatives(np.zeros(3), np.array([0.0, 1.0, 2.0]), (0,))[
    ...     0
    ... ].round(3)
    array([0.811, 1.216, 1.91 ])
    """

    dispersion: Number
    link: links.AbstractLink
    family = distributions.NEGATIVE_BINOMIAL
    convex_links: ClassVar[Convex] = {"log": 1.0}  # ℓ″ = (y + 1/α) p (1 − p), p = αμ / (1 + αμ)
    fourth = 1.0

    def __init__(self, dispersion: float = 1.0, link: str | links.AbstractLink = "log"):
        self.dispersion = positive("NegativeBinomial: dispersion", dispersion)
        self.link = links.resolve(link)

    def check(self, y: ndarray) -> None:
        domain(y, y >= 0, "negative binomial", "not negative")


class Tweedie(AbstractMeanLoss):
    """Tweedie loss: half the unit deviance of variance `φ μ^p`, divided by φ.

        ½ d(y, μ) / φ,      d/dμ ½d = (μ − y) / μ^p

    For 1 < p < 2 this is −log of the compound Poisson-gamma density up to a term of y, p and φ
    alone. Differences of losses of models that share p and φ are therefore differences of log
    densities. p = 0, 1, 2, 3 are the squared, Poisson, gamma and inverse Gaussian deviances.

    Parameters
    ----------
    power : float, default: 1.5
        Power p of the variance, which is held fixed; not between 0 and 1.
    dispersion : float, default: 1.0
        Dispersion φ, which is held fixed.
    link : str or link of lo.losses.links, default: "log"
        Link between the mean and the linear predictor.

    Raises
    ------
    ValueError
        If the power lies between 0 and 1, or the dispersion is not positive.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.Tweedie(1.5).derivatives(np.zeros(3), np.array([0.0, 1.0, 4.0]), (0,))[0].round(3)
    array([2., 0., 2.])
    """

    power: Number
    dispersion: Number
    link: links.AbstractLink
    kind: str = static()
    has_dispersion = True

    def __init__(
        self, power: float = 1.5, dispersion: float = 1.0, link: str | links.AbstractLink = "log"
    ):
        if not np.isfinite(power) or 0 < power < 1:
            raise ValueError(f"Tweedie: no distribution has a power between 0 and 1; got {power}.")
        self.power = np.asarray(power, float)
        self.link = links.resolve(link)
        self.dispersion = positive("Tweedie: dispersion", dispersion)
        kind = {0.0: "normal", 1.0: "Poisson", 2.0: "gamma"}.get(float(power), "extreme")
        if 1 < power < 2:
            kind = "compound"
        elif power > 2:
            kind = "positive"
        self.kind = kind

    def of_mean(self, mean: Array, log_mean: Array, y: Array) -> Array:
        p = self.power
        if self.kind == "normal":
            half = 0.5 * (y - mean) ** 2
        elif self.kind == "Poisson":
            half = jspecial.xlogy(y, y) - y * log_mean - y + mean
        elif self.kind == "gamma":
            half = y * jnp.exp(-log_mean) - 1 + log_mean - jnp.log(y)
        else:
            reference = jnp.maximum(y, 0.0) ** (2 - p) / ((1 - p) * (2 - p))
            half = (
                reference
                - y * jnp.exp((1 - p) * log_mean) / (1 - p)
                + jnp.exp((2 - p) * log_mean) / (2 - p)
            )
        return half / self.dispersion

    def _powers(self, eta, y):
        """Return p, φ, y μ^{1−p} / φ and μ^{2−p} / φ."""
        p = float(self.power)
        phi = float(self.dispersion)
        return p, phi, y * exponential((1 - p) * eta) / phi, exponential((2 - p) * eta) / phi

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        if self.link_name != "log" or self.kind != "compound":
            return {}
        p, phi, first, second = self._powers(eta, y)
        return {
            0: lambda: (
                np.maximum(y, 0.0) ** (2 - p) / ((1 - p) * (2 - p) * phi)
                + first / (p - 1)
                + second / (2 - p)
            ),
            1: lambda: second - first,
            2: lambda: (p - 1) * first + (2 - p) * second,
            3: lambda: (2 - p) ** 2 * second - (p - 1) ** 2 * first,
        }

    def terms(self, order, size, eta, y):
        p, phi, first, second = self._powers(eta, y)
        amplification = 1 + np.abs(eta)  # (1 − p)η is rounded before it is an exponent
        if order == 0:
            reference = y
            if self.kind == "compound":
                reference = np.maximum(y, 0.0) ** (2 - p) / (
                    phi * np.maximum(np.abs((1 - p) * (2 - p)), 1e-300)
                )
            return (
                size + reference + first / max(abs(p - 1), 1e-3) + second / max(abs(2 - p), 1e-3)
            ) * amplification
        return (size + first + second) * amplification

    def check(self, y: ndarray) -> None:
        if self.kind in ("Poisson", "compound"):
            domain(y, y >= 0, f"Tweedie ({self.power:g})", "not negative")
        elif self.kind in ("gamma", "positive"):
            domain(y, y > 0, f"Tweedie ({self.power:g})", "positive")

    def variance(self, mean: Arrays) -> Arrays:
        return self.dispersion * mean**self.power

    def scale(self, y: ndarray) -> str:
        return f"half the Tweedie deviance of power {float(self.power):g} over {float(self.dispersion):g}"

    @property
    def self_concordance(self) -> float | Number | None:
        if self.kind == "normal" or not self.convex:
            return 0.0 if self.convex else None
        # ℓ″ = (p − 1) y e^{(1−p)η} + (2 − p) e^{(2−p)η}
        return np.maximum(self.power - 1, 2 - self.power)

    @property
    def fourth(self) -> float | Number | None:
        if self.self_concordance is None:
            return None
        return self.self_concordance**2

    @property
    def convex(self) -> bool:
        if self.kind == "normal":
            return self.link_name == "identity"
        return self.link_name == "log" and self.kind in ("Poisson", "gamma", "compound")

    remark = "the loss is half the Tweedie deviance over φ; compare it with models of the same power and φ"


class AbstractQuasiLoss(AbstractLoss):
    """Half the deviance of another loss, divided by a dispersion φ; the fit is that of the other
    loss.

    The loss specifies a mean and a variance. It is not a −log density: compare it with models of
    the same φ only.

    Parameters
    ----------
    dispersion : float
        Dispersion φ.
    likelihood : AbstractLoss
        The other loss.
    """

    dispersion: Number
    likelihood: AbstractLoss
    has_dispersion = True
    remark = "a quasi-likelihood: the loss is half the deviance over φ, no −log density; compare it with the same family and φ"

    @abc.abstractmethod
    def least(self, y: Arrays, special: Any) -> Arrays:
        """Compute the least value that the other loss can have.

        Parameters
        ----------
        y : array of float
            Responses.
        special : module
            Special functions, those of SciPy or of JAX.

        Returns
        -------
        array of float
            The least value for each response.
        """

    def __call__(self, eta: Array, y: Array) -> Array:
        return (self.likelihood(eta, y) - self.least(y, jspecial)) / self.dispersion

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        functions = self.likelihood.formulas(eta, y)
        least = lambda k: 0.0 if k else self.least(y, scipy.special)
        return {
            k: lambda k=k: (functions[k]() - least(k)) / float(self.dispersion) for k in functions
        }

    def terms(self, order, size, eta, y):
        phi = float(self.dispersion)
        total = self.likelihood.terms(order, phi * size, eta, y)
        if order == 0:
            total = total + 4 * np.abs(self.least(y, scipy.special)) + y
        return total / phi

    @property
    def ceiling(self) -> float:
        return self.likelihood.ceiling / float(self.dispersion)

    def variance(self, mean: Arrays) -> Arrays:
        return self.dispersion * self.likelihood.variance(mean)

    def scale(self, y: ndarray) -> str:
        return f"half the {type(self.likelihood).__name__} deviance over {float(self.dispersion):g}"

    def peak(self, y: ndarray) -> ndarray | None:
        return self.likelihood.peak(y)

    inverse_link, check, start, inside, self_concordance, fourth, convex = members_of(
        "likelihood",
        "inverse_link",
        "check",
        "start",
        "inside",
        "self_concordance",
        "fourth",
        "convex",
    )


class QuasiPoisson(AbstractQuasiLoss):
    """Quasi-Poisson loss, `(y log(y/μ) − (y − μ)) / φ`: half the Poisson deviance, divided by φ.

    It specifies the variance φμ. The fit is the Poisson one, and y need not be whole. It is not a
    −log density: compare it with models of the same φ only.

    Parameters
    ----------
    dispersion : float, default: 1.0
        Dispersion φ.
    link : str or link of lo.losses.links, default: "log"
        Link between the mean and the linear predictor.

    Raises
    ------
    ValueError
        If the dispersion is not positive.

    See Also
    --------
    Poisson, NegativeBinomial

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.QuasiPoisson(2.0).derivatives(np.zeros(3), np.array([0.0, 1.0, 2.0]), (0,))[
    ...     0
    ... ].round(3)
    array([0.5  , 0.   , 0.193])
    """

    dispersion: Number
    likelihood: Poisson

    def __init__(self, dispersion: float = 1.0, link: str | links.AbstractLink = "log"):
        self.dispersion = positive("QuasiPoisson: dispersion", dispersion)
        self.likelihood = Poisson(link)

    def least(self, y: Arrays, special: Any) -> Arrays:
        return y - special.xlogy(y, y) + special.gammaln(y + 1.0)

    def check(self, y: ndarray) -> None:
        domain(y, y >= 0, "quasi-Poisson", "not negative")
