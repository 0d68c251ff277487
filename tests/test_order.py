"""The law that catches every wrong derivative: weights of a few units go 1 → 1 − t, and halving t
divides the error against the exact refit by 2, 2², 2³, 2² for no update, IJ(1), IJ(2) and a Newton
step, by 2^(k+1) for k chord steps."""

import equinox as eqx
import numpy as np
import pytest

import leaveout as lo
from leaveout.refit import RefitBatch
from leaveout.refit._descent import begin
from tests.helpers import OBJECTIVES, SLOW, fitted, flat, minimiser


class Chord(lo.developer.AbstractRefit):
    """So many steps `θ ← θ − H⁻¹∇F(θ, w)`, each as `Exact` makes them."""

    steps: int = eqx.field(static=True)

    def __call__(self, fit, rows, *, judge=True):
        none = np.zeros(len(rows.index))
        batch = begin(fit, rows, u=np.zeros((len(none), fit.num_params)))
        u, lanes = batch.candidates.u, batch.candidates.lanes
        for _ in range(self.steps):
            u = u - batch.gradient(u, lanes)
        return RefitBatch(
            lambda: fit.quadratic.at(u), none + np.inf, none.astype(int), step_length=none
        )


ORDERS = {
    "NoUpdate": 1,
    "InfinitesimalJackknife(1)": 2,
    "InfinitesimalJackknife(2)": 3,
    "NewtonStep": 2,
    "one chord step": 2,
    "two chord steps": 3,
}
REFITS = {
    "one chord step": Chord(1),
    "two chord steps": Chord(2),
    "NoUpdate": lo.NoUpdate(),
    "InfinitesimalJackknife(1)": lo.InfinitesimalJackknife(1),
    "InfinitesimalJackknife(2)": lo.InfinitesimalJackknife(2),
    "NewtonStep": lo.NewtonStep(),
}
STEPS = (0.2, 0.1, 0.05)
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in OBJECTIVES
]


def tempered(units: int, width: int) -> tuple[lo.Plan, np.ndarray]:
    """Three refits that take the weights of units 10, …, 10 + width − 1 down by t."""
    index = np.tile(np.arange(10, 10 + width), len(STEPS))
    weight = np.repeat(1.0 - np.array(STEPS), width)
    indptr = np.arange(len(STEPS) + 1) * width
    return lo.Plan(indptr, index, weight, np.zeros(len(index), bool), units), weight


_oracle: dict[tuple[str, int], np.ndarray] = {}


def oracle(name: str, width: int) -> np.ndarray:
    if (name, width) not in _oracle:
        fit = fitted(name)
        plan, _ = tempered(fit.objective.num_units, width)
        _oracle[name, width] = np.array(
            [minimiser(fit.objective, fit.theta, w) for w in plan.matrix()]
        )
    return _oracle[name, width]


@pytest.mark.parametrize("width", [pytest.param(1, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("refit", REFITS)
@pytest.mark.parametrize("name", NAMES)
def test_order_of_accuracy(name, refit, width):
    fit = fitted(name)
    plan, _ = tempered(fit.objective.num_units, width)
    parameters = lo.fold_parameters(fit, plan, strategy=REFITS[refit])
    got = np.array(
        [
            flat(fit.objective.parameters.unconstrained(_row(parameters, k)))
            for k in range(len(STEPS))
        ]
    )
    errors = np.linalg.norm(got - oracle(name, width), axis=1)
    if errors[-1] < 1e-9:  # exact but for rounding: a quadratic F, or a step too small to tell
        return
    slope = np.log2(errors[:-1] / errors[1:])
    assert abs(slope[-1] - ORDERS[refit]) < 0.35 or slope[-1] > ORDERS[refit], (errors, slope)


QUICK = ("logistic", "ridge", "two functions", "separable", "gamma")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in OBJECTIVES]
)
def test_exact_is_the_refit(name):
    fit = fitted(name)
    plan = lo.random_subsets(fit.objective.num_units, 0.1, 4, rng=1)
    got = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
    for k, weights in enumerate(plan.matrix()):
        want = minimiser(fit.objective, fit.theta, weights)
        np.testing.assert_allclose(
            flat(fit.objective.parameters.unconstrained(_row(got, k))), want, atol=2e-7, rtol=1e-7
        )


def _row(parameters, k):
    import jax

    return jax.tree.map(lambda leaf: np.asarray(leaf)[k], parameters)
