"""The tests' objectives, and the toy hidden Markov model that keeps the core from being shaped for
GLMs alone.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp

import leaveout as lo
from leaveout.objectives.objective import ravel


@eqx.filter_jit
def _compiled(function, *args):
    return function(*args)


def call(function, *args):
    """A method of an objective in double precision, compiled once for data of one shape."""
    # whose arrays are arguments too
    own = [function.__self__] if hasattr(function, "__self__") else []
    function = getattr(function, "__func__", function)
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, _compiled(function, *own, *jax.tree.map(jnp.asarray, args)))


class ToyHMM(lo.developer.AbstractObjective):
    """A two-state Gaussian chain, `x` `[T]`. A weight multiplies its step's log emission, so zero
    means unseen.
    """

    x: np.ndarray

    @property
    def num_units(self):
        return len(self.x)

    @property
    def units(self):
        return lo.developer.models.Units(serial=True)

    @property
    def parameters(self):
        return lo.developer.models.Parameters(start=self._start)

    def _parts(self, theta, weights):
        transition = jax.nn.log_sigmoid(jnp.stack([theta["stay"], -theta["stay"]], 1))
        transition = jnp.stack([transition[0], transition[1][::-1]])
        emission = -0.5 * (jnp.asarray(self.x)[:, None] - theta["mean"]) ** 2 - 0.5 * jnp.log(
            2 * jnp.pi
        )
        return transition, emission, weights[:, None] * emission

    def _forward(self, transition, seen):
        def step(a, e):
            predicted = logsumexp(a[:, None] + transition, axis=0)
            return predicted + e, predicted

        first = jnp.full(2, jnp.log(0.5))
        last, predicted = jax.lax.scan(step, first + seen[0], seen[1:])
        return last, jnp.concatenate([first[None], predicted])

    def loss(self, theta, weights):
        transition, _, seen = self._parts(theta, weights)
        last, _ = self._forward(transition, seen)
        prior = 0.5 * jnp.sum(theta["mean"] ** 2) / 9 + 0.5 * jnp.sum((theta["stay"] - 1) ** 2)
        return -logsumexp(last) + prior

    def score(self, theta, weights, index, held):
        transition, emission, seen = self._parts(theta, weights)
        _, predicted = self._forward(transition, seen)

        def back(b, e):
            b = logsumexp(transition + (b + e)[None], axis=1)
            return b, b

        _, rest = jax.lax.scan(back, jnp.zeros(2), seen[1:][::-1])
        state = predicted + jnp.concatenate([rest[::-1], jnp.zeros((1, 2))])
        state = state - logsumexp(state, axis=-1, keepdims=True)
        return -logsumexp(state + emission, axis=-1).at[index].get(mode="clip")

    def _start(self, seed):
        spread = np.random.default_rng(seed).uniform(0.5, 2.0)
        return {"mean": np.array([-spread, spread]), "stay": np.ones(2)}


def toy_hmm(n: int = 60, seed: int = 0) -> ToyHMM:
    rng = np.random.default_rng(seed)
    state = np.cumsum(rng.random(n) < 0.1) % 2
    return ToyHMM(rng.standard_normal(n) + np.where(state, 1.6, -1.6))


def rows(n: int = 60, p: int = 3, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return rng, X, X @ rng.uniform(-1, 1, p)


def glm(
    loss, penalty=None, *, n: int = 60, p: int = 3, seed: int = 0, weights: bool = False, **kwargs
) -> lo.GLM:
    """A small model of any loss, with data drawn from something like it."""
    rng, X, eta = rows(n, p, seed)
    name = loss if isinstance(loss, str) else type(loss).__name__
    binary = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    y = {
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(eta) / 2),
        "multinomial": np.argmax(np.c_[eta, X[:, 0], -X[:, 1]] + rng.gumbel(size=(n, 3)), axis=1),
        "squared": eta + rng.standard_normal(n),
        "huber": eta + rng.standard_t(2, n),
        "pseudo_huber": eta + rng.standard_t(2, n),
        "InverseGaussian": rng.wald(np.exp(eta / 2), 3.0),
        "Tweedie": np.where(rng.random(n) < 0.3, 0.0, rng.gamma(2.0, np.exp(eta) / 2)),
        "Gamma": rng.gamma(2.0, np.exp(eta) / 2),
    }.get(name, binary)
    if weights:
        kwargs |= {"sample_weight": rng.gamma(2.0, 0.5, n), "offset": rng.standard_normal(n) / 3}
    return lo.GLM(X, y, loss, penalty, **kwargs)


def sample_mean(n: int = 40) -> lo.Separable:
    """The mean and log scale of a Gaussian, by its author's single-unit function."""
    x = np.random.default_rng(3).standard_normal(n) * 2 + 1

    def unit_loss(theta, x):
        return 0.5 * ((x - theta["mean"]) * jnp.exp(-theta["log_scale"])) ** 2 + theta["log_scale"]

    return lo.Separable(unit_loss, x, theta0={"mean": np.zeros(()), "log_scale": np.zeros(())})


class Moments(lo.developer.models.AbstractClosedForm):
    """The same by its author's functions of many refits, without JAX."""

    x: np.ndarray

    @property
    def num_units(self):
        return len(self.x)

    @property
    def units(self):
        return lo.developer.models.Units(serial=False)

    @property
    def parameters(self):
        natural = lambda theta: {"log_scale": theta[1], "mean": theta[0]}
        inverse = lambda named: np.array([named["mean"], named["log_scale"]], float).T
        return lo.developer.models.Parameters(natural, inverse, lambda seed: np.zeros(2))

    def _each(self, theta):
        z = (self.x - theta[:, :1]) * np.exp(-theta[:, 1:])
        return z, 0.5 * z**2 + theta[:, 1:]

    def look(self, theta, weights, state=None):
        z, each = self._each(theta)
        slopes = -z * np.exp(-theta[:, 1:]), 1 - z**2
        return (weights * each).sum(1), np.stack([(weights * s).sum(1) for s in slopes], axis=1), z

    def losses(self, theta, weights, index, held, state=None):
        return np.take_along_axis(
            self._each(theta)[1], np.minimum(index, self.num_units - 1), axis=1
        )


def regression(loss, *, n: int = 60, seed: int = 0) -> lo.Regression:
    """A small model whose loss has parameters of its own; counts with weights and offsets."""
    rng, X, eta = rows(n, 3, seed)
    if loss == "ordinal":
        return lo.Regression(
            X, np.digitize(eta + rng.logistic(size=n), [-0.7, 0.6]), loss, lo.penalties.Ridge(0.5)
        )
    y = rng.negative_binomial(2, 2 / (2 + np.exp(eta + 1)))
    more = {"sample_weight": rng.gamma(4.0, 0.25, n), "offset": rng.standard_normal(n) / 3}
    return lo.Regression(X, y, loss, lo.penalties.Ridge(0.5), **more)


def cox(ties: str = "efron", n: int = 50) -> lo.Cox:
    """Survival times with many ties, censoring and two strata."""
    rng, X, eta = rows(n, 3, 4)
    time, event = np.ceil(4 * rng.exponential(np.exp(-eta))), rng.random(n) < 0.8
    return lo.Cox(X, time, event, lo.penalties.Ridge(0.3), ties=ties, strata=np.arange(n) % 2)


def mixed(
    drop: str,
    family: str = "binomial",
    *,
    crossed: bool = False,
    n: int = 120,
    seed: int = 2,
    **more,
) -> lo.Mixed:
    """Random intercepts of patients, and of hospitals across them where `crossed`.

    In rows that are not sorted.
    """
    rng = np.random.default_rng(seed)
    patient, hospital, x = rng.integers(0, 20, n), rng.integers(0, 6, n), rng.standard_normal(n)
    eta = (
        0.4
        + 0.6 * x
        + rng.standard_normal(20)[patient]
        + 0.8 * rng.standard_normal(6)[hospital] * crossed
    )
    y = {
        "binomial": lambda: (rng.logistic(size=n) < 1.5 * eta).astype(float),
        "gaussian": lambda: eta + 0.7 * rng.standard_normal(n),
        "negative_binomial": lambda: rng.negative_binomial(2, 2 / (2 + np.exp(eta + 1))).astype(
            float
        ),
    }[family]()
    groups = {"patient": patient} | ({"hospital": hospital} if crossed else {})
    return lo.Mixed(x[:, None], y, family, groups=groups, drop=drop, **more)


OBJECTIVES = {
    "ridge": lambda: glm("squared", lo.penalties.Ridge(0.7)),
    "logistic": lambda: glm("logistic", lo.penalties.Ridge(0.5)),
    "logistic, weights, offset, no intercept": lambda: glm(
        "logistic", lo.penalties.Ridge(0.5), weights=True, intercept=False
    ),
    "logistic, balanced": lambda: glm("logistic", lo.penalties.Ridge(0.5), class_weight="balanced"),
    "probit": lambda: glm("probit", lo.penalties.Ridge(0.1)),
    "cloglog": lambda: glm("cloglog", lo.penalties.Ridge(0.1)),
    "additive": lambda: additive(),
    "poisson, mean loss": lambda: glm(
        "poisson", lo.penalties.per_weight(lo.penalties.Ridge(0.1)), weights=True
    ),
    "gamma": lambda: glm("gamma", None, weights=True),
    "multinomial": lambda: glm("multinomial", lo.penalties.Ridge(0.5)),
    "pseudo-huber, penalty not quadratic": lambda: glm(
        "pseudo_huber", lo.penalties.PseudoHuber(2.0, 0.1)
    ),
    "negative binomial, its dispersion": lambda: regression("negative_binomial"),
    "ordinal": lambda: regression("ordinal"),
    "Cox": cox,
    "separable": sample_mean,
    "two functions": lambda: two_functions(),
    "closed form": lambda: Moments(sample_mean().data),
    "mixed, clusters": lambda: mixed("patient", quadrature=7),
    "mixed, rows": lambda: mixed("row"),
    "mixed, crossed": lambda: mixed("patient", "gaussian", crossed=True),
    "mixed, restricted": lambda: mixed("patient", "gaussian", method="REML", seed=11),
    "mixed, crossed rows": lambda: mixed("row", "negative_binomial", crossed=True, n=60, seed=3),
    "Gaussian field": lambda: gaussian_field(),
    "hidden Markov": toy_hmm,
    "conditional random field, sequences": lambda: crf("sequence", 40),
    "conditional random field, labels": lambda: crf("label", 12),
}


def crf(drop: str, sequences: int) -> lo.CRF:
    """Two labels that depend on frozen scores and on one another."""
    rng = np.random.default_rng(4)
    lengths = rng.integers(1, 6, sequences)
    scores = rng.standard_normal((lengths.sum(), 2))
    labels = (scores[:, 0] + rng.logistic(size=len(scores)) < scores[:, 1]).astype(int)
    return lo.CRF(labels, lengths, scores=scores, drop=drop, penalty=lo.penalties.Ridge(0.5))


def additive() -> lo.Additive:
    """Smooth functions of two columns, of counts."""
    rng, X, eta = rows(60, 2)
    data = {"x": X[:, 0], "z": X[:, 1], "y": rng.poisson(np.exp(np.sin(eta)))}
    return lo.Additive(
        [lo.terms.s("x", k=5), lo.terms.s("z", k=4, bs="cr")], data, "y", "poisson", smoothing=0.5
    )


def two_functions() -> lo.Objective:
    """A robust location by a bare weighted loss: no score, so a fold's loss is one joint number."""
    x = np.random.default_rng(5).standard_t(3, 50)
    return lo.Objective(
        lambda theta, w: (
            w @ jnp.log1p((x - theta["location"]) ** 2 / 3) + 0.05 * theta["location"] ** 2
        ),
        50,
    )


def gaussian_field() -> lo.GaussianField:
    """Counts on a grid."""
    rng, at = np.random.default_rng(6), np.arange(42).reshape(6, 7)
    edges = np.r_[
        np.c_[at[:, :-1].ravel(), at[:, 1:].ravel()], np.c_[at[:-1].ravel(), at[1:].ravel()]
    ]
    y = rng.poisson(
        3 * np.exp(np.add.outer(np.sin(np.arange(6)), np.cos(np.arange(7))).ravel() / 2)
    ).astype(float)
    return lo.GaussianField(
        y, edges, rng.standard_normal(42), structure="leroux", exposure=rng.uniform(1, 3, 42)
    )


SLOW = (  # in tests of every objective
    "ordinal",
    "probit",
    "cloglog",
    "conditional random field, sequences",
    "conditional random field, labels",
    "negative binomial, its dispersion",
    "mixed, crossed",
    "mixed, crossed rows",
    "Gaussian field",
)
_fits: dict[str, lo.Fit] = {}


def fitted(name: str) -> lo.Fit:
    """The fit of one of OBJECTIVES, made once."""
    if name not in _fits:
        start = {"location": np.zeros(())} if name == "two functions" else None
        _fits[name] = lo.fit(OBJECTIVES[name](), start)
    return _fits[name]


def minimiser(objective: lo.developer.AbstractObjective, theta, weights: np.ndarray) -> np.ndarray:
    """argmin F(·, w) by SciPy's BFGS from θ, ended by Newton steps.

    The oracle, which shares nothing with the strategies.
    """
    import scipy.optimize

    if isinstance(objective, lo.developer.models.AbstractClosedForm):
        return _by_differences(objective, ravel(theta), weights)
    with jax.enable_x64(True):
        start, weights = ravel_pytree(jax.tree.map(jnp.asarray, theta))[0], jnp.asarray(weights)
        look = lambda order, v: np.asarray(_derivative(order, objective, theta, v, weights))
        flat = objective.parameters.symmetries(theta)
        outside = lambda v: np.nan_to_num(look(0, v), nan=1e100)  # of the domain of a link
        v = scipy.optimize.minimize(
            outside, np.asarray(start), jac=lambda v: look(1, v), method="BFGS"
        ).x
        for _ in range(6):
            v = v - np.linalg.solve(look(2, v) + flat.T @ flat, look(1, v))
        return v


@eqx.filter_jit
def _derivative(
    order: int, objective: lo.developer.AbstractObjective, like, v: jax.Array, weights: jax.Array
) -> jax.Array:
    """F(·, w), its gradient or its Hessian: compiled once for all weights."""
    F = lambda v: objective.loss(ravel_pytree(like)[1](v), weights)
    return (F, jax.grad(F), jax.hessian(F))[order](v)


def _by_differences(objective, start: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The same of an objective by NumPy, whose Hessians are differences of slopes."""
    import scipy.optimize

    F = lambda v: tuple(part[0] for part in objective.look(v[None], weights[None])[:2])
    v = scipy.optimize.minimize(F, start, jac=True, method="BFGS").x
    for _ in range(6):
        hessian = np.array(
            [(F(v + step)[1] - F(v - step)[1]) / 2e-4 for step in 1e-4 * np.eye(len(v))]
        )
        v = v - np.linalg.solve((hessian + hessian.T) / 2, F(v)[1])
    return v


def flat(theta) -> np.ndarray:
    from jax.flatten_util import ravel_pytree

    with jax.enable_x64(True):
        return np.asarray(ravel_pytree(jax.tree.map(jnp.asarray, theta))[0])
