"""Data on a device: computed with there, to the numbers of NumPy, and proved as there.

This machine's processor stands for a device where its memory counts as foreign; in a process of its
own it is two devices.
"""

import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import leaveout as lo
from leaveout._runtime import lazy_jax as _jax
from leaveout.data import arrays as _read
from leaveout.linalg import device_design as _resident

N, P = 120, 5
RIDGE = lo.penalties.Ridge(0.7)


@pytest.fixture
def there(monkeypatch):
    """A device is wherever arrays are.

    Few rows count as many, and are looked at in blocks of fifty.
    """
    for module in (_jax, _read):
        monkeypatch.setattr(module, "foreign", lambda device: device)
    monkeypatch.setattr(_resident, "CHEAP_COPY_ENTRIES", 0)
    monkeypatch.setattr(_resident, "DEVICE_BLOCK", 50 * (P + 1))


def table(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, P)).astype(np.float32)
    eta = X @ rng.standard_normal(P)
    return X, {
        "logistic": (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(float),
        "squared": eta + rng.standard_normal(N),
        "poisson": rng.poisson(np.exp(0.3 * eta)),
        "multinomial": np.digitize(eta + rng.standard_normal(N), [-1, 1]),
        "negative_binomial": rng.poisson(rng.gamma(2.0, size=N) * np.exp(0.3 * eta)),
    }


def put(X):
    with jax.enable_x64(True):
        return jnp.asarray(X)


def alike(a, b, tol=1e-9):
    np.testing.assert_allclose(np.asarray(b, float), np.asarray(a, float), rtol=tol, atol=tol)


def test_products_are_those_of_numpy(there):
    """All that a design is asked for, of as many rows as are no whole number of blocks, and of no
    refits at all.
    """
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, P)).astype(np.float32)
    units, roots, weight = (
        rng.integers(0, N, (3, 7)),
        rng.standard_normal((3, P + 1, P + 1)),
        rng.standard_normal((3, N)),
    )
    theta, images = (
        rng.standard_normal((3, P + 1)),
        rng.standard_normal((P + 1, 2)).astype(np.float32),
    )
    one = lo.GLM(X.astype(float), weight[0], "squared").lines
    other = lo.GLM(put(X), weight[0], "squared").lines
    assert isinstance(other, _resident.Resident) and other.source.dtype == np.float32
    for some in (slice(0), slice(3)):
        alike(one.predictors(theta[some]), other.predictors(theta[some]), 1e-13)
        alike(one.pull(weight[some]), other.pull(weight[some]), 1e-13)
        alike(one.products(weight[some]), other.products(weight[some]), 1e-13)
        alike(
            one.unit_predictors(units[some], theta[some]),
            other.unit_predictors(units[some], theta[some]),
            1e-13,
        )
        alike(one.forms(roots[some]), other.forms(roots[some]), 1e-13)
    alike(one.extents(roots, None).size, other.extents(roots, None).size, 1e-13)
    lower = np.tril(roots[0])
    alike(one.extent(lower, None).norm, other.extent(lower, None).norm, 1e-13)
    alike(one.whiten(units, lower), other.whiten(units, lower), 1e-13)
    alike(one.take(units[0]).predictors(theta), other.take(units[0]).predictors(theta), 1e-13)
    alike(one.take(slice(5, 9)).rows(slice(None)), other.take(slice(5, 9))[:])
    alike(one.below(roots[0]).rows(slice(None)), other.below(roots[0]), 1e-13)
    alike(one.lengths, other.lengths, 1e-13)
    alike(one.single().predictors(theta), other.single().predictors(theta), 1e-5)
    assert (
        other.single().predictors(theta).dtype
        == other.multiply(units[0], images).dtype
        == np.float32
    )
    alike(one.multiply(units[0], images), other.multiply(units[0], images), 1e-5)
    assert other.take(units[0]).source.devices() == other.source.devices()


SLOW = [
    pytest.param(*kind, marks=pytest.mark.slow)
    for kind in (("poisson", np.float64), ("multinomial", np.float32))
]


@pytest.mark.parametrize(("loss", "kind"), [("logistic", np.float32), *SLOW])
def test_every_plan_and_strategy_gives_the_numbers_of_memory(there, loss, kind):
    X, y = table()
    R = lo.penalties.PseudoHuber(0.5, 0.3) if loss == "poisson" else RIDGE
    one, other = (
        lo.fit(lo.GLM(x, y[loss], loss, R)) for x in (X.astype(float), put(X.astype(kind)))
    )
    assert isinstance(other.objective.design, _resident.Resident) and "on cpu" in other._settings
    alike(one.vector, other.vector)
    plans = {"loo": lo.leave_one_out(N), "folds": lo.kfold(N, 3), "bootstrap": lo.bootstrap(N, 4)}
    for name, refit in (
        ("loo", lo.Certified()),
        ("folds", lo.NewtonStep()),
        ("bootstrap", lo.Exact()),
    ):
        a, b = (lo.cross_validate(fit, plans[name], strategy=refit) for fit in (one, other))
        alike(a.losses, b.losses), alike(a.error, b.error, 1e-5)
        assert (a.proved == b.proved).all(), (name, refit)


@pytest.mark.slow
def test_what_is_proved_holds_for_refits_from_scratch(there):
    """Rows in float32, on a scale that makes float32's sums of them useless, and coefficients of
    1e3; by SciPy's own way.
    """
    rng = np.random.default_rng(2)
    X = (1e4 + rng.standard_normal((N, 3))).astype(np.float32)
    y = (rng.random(N) < 1 / (1 + np.exp(-(X[:, 0] - 1e4)))).astype(float)
    fit, plan = (
        lo.fit(lo.GLM(put(X), y, "logistic", lo.penalties.Ridge(0.1))),
        lo.kfold(N, 6, rng=1),
    )
    found, z = lo.cross_validate(fit, plan), np.c_[X.astype(float) - 1e4, np.ones(N)]
    assert found.proved.all()

    def loss(beta, seen):  # an intercept takes what the shift of the columns makes of it
        eta = z[seen] @ beta
        return np.logaddexp(0, eta) - y[seen] * eta

    for k in range(6):
        held = plan.index[plan.refit == k]
        seen = np.setdiff1d(np.arange(N), held)
        total = lambda beta, seen=seen: loss(beta, seen).sum() + 0.05 * beta[:3] @ beta[:3]
        beta = scipy.optimize.minimize(total, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
        mine = found.losses[plan.refit == k]
        assert abs(mine.sum() - loss(beta, held).sum()) <= found.error[k] + 1e-6


@pytest.mark.slow
def test_every_verb_takes_them(there):
    X, y = table()
    plan, loo = lo.kfold(N, 5), lo.leave_one_out(N)
    weight = np.random.default_rng(1).random(N) + 0.5
    given = {"sample_weight": weight}
    a, b = (
        lo.fit(lo.GLM(x, y["squared"], "squared", RIDGE, **given))
        for x in (X.astype(float), put(X))
    )
    alike(lo.cross_predict(a, loo), lo.cross_predict(b, loo))
    alike(lo.fold_parameters(a, plan)["coef"], lo.fold_parameters(b, plan)["coef"])
    alike(lo.interval(a, X[:7].astype(float)), lo.interval(b, put(X[:7])))
    alike(lo.covariance(a), lo.covariance(b))
    alike(lo.diagnostics.leverage(a), lo.diagnostics.leverage(b))
    alike(
        *(
            lo.influence(lo.cross_validate(fit, loo)).table().select_dtypes("number")
            for fit in (a, b)
        )
    )
    # the second is for coordinate descent, which wants a copy
    for R in (lo.penalties.Ridge, lo.penalties.Lasso):
        models = (lo.GLM(x, y["squared"], "squared") for x in (X.astype(float), put(X)))
        alike(*(lo.path(model, [R(0.1), R(1.0)], loo).table()["mean"] for model in models))
    rows = put(X)  # of a model that is made inside of a program
    build = lambda alpha: lo.GLM(rows, y["squared"], "squared", lo.penalties.Ridge(alpha))
    own = lambda alpha: lo.GLM(X.astype(float), y["squared"], "squared", lo.penalties.Ridge(alpha))
    alike(
        *(
            lo.tune(make, {"alpha": (0.01, 100.0)}, loo).best.hyper["alpha"]
            for make in (own, build)
        ),
        1e-6,
    )
    again = pickle.loads(pickle.dumps(b))
    assert again.objective.design.source.dtype == np.float32
    alike(lo.fit(again.objective).vector, a.vector)


@pytest.mark.slow
def test_what_jax_derives_sees_them_there(there):
    X, y = table()
    models = [
        lo.Regression(x, y["negative_binomial"], "negative_binomial", RIDGE)
        for x in (X.astype(float), put(X))
    ]
    assert isinstance(models[1].design, _resident.Resident)
    a, b = map(lo.fit, models)
    alike(a.vector, b.vector)
    alike(*(lo.cross_validate(fit, lo.kfold(k=4)).losses for fit in (a, b)))
    assert isinstance(
        lo.GLM(put(X), y["squared"], "squared", lo.penalties.Lasso(1.0)).design, np.ndarray
    )


def ridge(theta):
    return 0.5 * jnp.sum(theta["b"] ** 2) + 0.5 * theta["c"] ** 2


def bent(theta, datum):
    """Logistic, of rows that may be in float32, with an exponential of them."""
    x, y = datum
    eta = x @ theta["b"] + theta["c"] * jnp.exp(x[0] / 3)
    return jnp.logaddexp(0.0, eta) - y * eta


def test_separable_data_stay_and_count_in_float64(there):
    X, y = table()
    start = {"b": np.zeros(P), "c": np.zeros(())}
    make = lambda x: lo.Separable(bent, (x, y["logistic"]), ridge, start)
    one, other = make(X.astype(float)), make(put(X))
    assert isinstance(other.data[0], jax.Array) and other.data[0].dtype == np.float32
    a, b = (lo.fit(model, num_starts=1) for model in (one, other))
    alike(a.vector, b.vector)
    assert all(
        isinstance(leaf, np.ndarray)
        for leaf in jax.tree.leaves(pickle.loads(pickle.dumps(other)).data)
    )


def test_what_cannot_be_is_said(there):
    X, y = table()

    class Elsewhere:
        """As PyTorch or CuPy tell of an array on a GPU that JAX does not have."""

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **more):
            raise RuntimeError("no CUDA here")

    with pytest.raises(
        TypeError, match=r"GLM: X is on a device that JAX does not see here .* \.cpu\(\)"
    ):
        lo.GLM(Elsewhere(), y["squared"], "squared")
    X[113, 2] = np.nan
    with pytest.raises(ValueError, match=r"columns \[2\], the first in row 113"):
        lo.GLM(put(X), y["squared"], "squared")
    with pytest.raises(ValueError, match="1 values that are NaN"):
        lo.Separable(bent, (put(X), y["squared"]))
    with pytest.raises(TypeError, match="complex"):
        lo.GLM(put(X).astype(complex), y["squared"], "squared")


TWO = """
import collections
import jax, jax.numpy as jnp, numpy as np
import leaveout as lo
from leaveout.linalg import device_design as _resident

_resident.CHEAP_COPY_ENTRIES = 0
second, sent = jax.devices()[1], collections.Counter()
jax.config.update("jax_transfer_guard_host_to_device", "disallow")  # what is not asked for
own = jax.device_put

def counted(parts, *where):
    if isinstance(parts, list):
        assert where == (second,), where
        sent.update(part.size for part in parts if isinstance(part, np.ndarray))
    return own(parts, *where)

jax.device_put = counted
n, rng = 600, np.random.default_rng(0)
X = rng.standard_normal((n, 3)).astype(np.float32)
y = (rng.random(n) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)

def unit(theta, datum):
    x, y = datum
    return jnp.logaddexp(0.0, x @ theta) - y * (x @ theta)

# 37 × 17 numbers of left-out rows are not n
plan, ridge = lo.kfold(n, 37, rng=0), lambda theta: 0.5 * jnp.sum(theta**2)
model = lo.Separable(unit, (own(X, second), y), ridge, np.zeros(3))
assert model.data[0].devices() == {second} and isinstance(model.data[1], np.ndarray)
fit = lo.fit(model, num_starts=1)
assert sent.pop(n) <= 1 + 2 * 5, sent  # y, and the weights of one for each function of them that is made, not for each look
found = lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0)
assert sent[n] <= 3 and 3 * n not in sent, sent  # of one F with weights of one, for curvatures at refits
with jax.default_device(second):  # of data in memory, from starts side by side
    sent.clear()
    chosen = lo.fit(lo.Separable(unit, (X, y), ridge, np.zeros(3)), num_starts=3)
    assert sent[3 * n] == 1, sent
glm = lo.GLM(own(X, second), y, "logistic", lo.penalties.Ridge(1.0), intercept=False)
sent.clear()
linear = lo.fit(glm)
loo = lo.cross_validate(linear, lo.leave_one_out(n))
assert glm.design.source.devices() == glm.design.take(np.arange(4)).source.devices() == {second}
assert 3 * n not in sent, sent
assert isinstance(found.losses, np.ndarray) and isinstance(linear.theta, np.ndarray) and isinstance(fit.theta, np.ndarray)

jax.config.update("jax_transfer_guard_host_to_device", "allow")
memory = lo.fit(lo.GLM(X.astype(float), y, "logistic", lo.penalties.Ridge(1.0), intercept=False))
for a, b in (
    (fit.vector, chosen.vector),
    (found.losses, lo.cross_validate(memory, plan, strategy=lo.Exact()).losses),
    (loo.losses, lo.cross_validate(memory, lo.leave_one_out(n)).losses),
):
    assert np.nanmax(np.abs(a - b)) < 1e-9
assert loo.proved.all()
print("stayed")
"""


def test_nothing_leaves_the_second_of_two_devices():
    """Sent are the data once, and of each batch numbers of refits and parameters.

    Not the data again, and to no other place.
    """
    env = os.environ | {
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    }
    done = subprocess.run(
        [sys.executable, "-c", TWO], capture_output=True, text=True, env=env, check=False
    )
    assert done.stdout.split() == ["stayed"], done.stderr[-3000:]


def test_on_an_accelerator():
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no accelerator here")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 30)).astype(np.float32)
    y = (rng.random(100_000) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    a, b = (lo.fit(lo.GLM(x, y, "logistic", RIDGE)) for x in (X, jax.device_put(X, device)))
    assert isinstance(b.objective.design, _resident.Resident)
    alike(a.vector, b.vector)
    for plan in (lo.leave_one_out(100_000), lo.kfold(100_000, 5)):
        one, other = (lo.cross_validate(fit, plan) for fit in (a, b))
        alike(one.losses, other.losses)
        assert (one.proved == other.proved).mean() > 0.999
