"""The loss of no model: the intercept alone, refitted without the same folds; of Cox models no
coefficients, θ = 0.

For a mean μ without offsets, the intercept of every refit has a closed form, whatever the link:
with s the sample weights,

    μ_k = Σ_n w_kn s_n y_n / Σ_n w_kn s_n.
"""

import copy
from typing import Any, cast

import numpy as np

from .._runtime import FloatArray, NamedValues, silence
from ..models.glm import (
    GLM,
    AbstractMeanLoss,
    AbstractRegression,
    ActiveCox,
    ActiveGLM,
    Binomial,
    Regression,
    Ridge,
)
from ..models.survival.cox import Cox
from ..optimize.fit import fit as fit_model
from ..plans import Plan
from ..refit import Certified, Exact
from .cross_validate import cross_validate
from .scoring import SCORES, NamedScore

# units up to which refits of the intercept are exact; beyond, their errors are below 1e-6
EXACT_UNITS = 2_000


def losses_without_model(model: Any, plan: Plan, evaluate: Any) -> FloatArray | None:
    """Compute the losses of a plan without a model, in the order of an estimate's.

    None for models without a null.
    """
    if isinstance(evaluate, NamedScore):
        if model.units.inverse is not None:
            return None  # in units of a response that the null does not know
        evaluate = next(
            (name for name, score in SCORES.items() if score.title == evaluate.title),
            "squared_error",
        )
    elif evaluate is not None:
        return None  # a function of the parameters of this model
    model = getattr(model, "original", model)
    if isinstance(model, ActiveGLM | ActiveCox):
        model = model.whole.model
    if isinstance(model, Cox):
        null = copy.copy(model.under(Ridge(1.0)))
        vars(null)["design"] = np.zeros_like(null.design)
        return cross_validate(fit_model(null), plan, strategy=Certified(), evaluate=evaluate).losses
    if not isinstance(model, AbstractRegression) or not (
        model.loss_function.intercept or model.own
    ):
        return None
    loss = model.loss_function
    is_mean = (
        isinstance(loss, AbstractMeanLoss | Binomial)
        and model.offset is None
        and model.class_code is None
    )
    if is_mean and evaluate is None and isinstance(model, GLM):
        return _of_means(model, plan)
    ones = np.ones((model.num_units, 1))
    kind: Any = GLM
    options: NamedValues = {}
    if isinstance(model, Regression):
        kind = Regression
    elif model.class_code is not None:
        options["class_weight"] = "balanced"
    if not loss.intercept:  # thresholds alone
        ones = 0 * ones
        options["penalty"] = Ridge(1.0)
    options |= {"sample_weight": model.sample_weight, "offset": model.offset, "intercept": False}
    intercept = fit_model(kind(ones, np.asarray(model.y), loss, **options))
    strategy = Exact() if len(ones) <= EXACT_UNITS else Certified()
    return cross_validate(intercept, plan, strategy=strategy, evaluate=evaluate).losses


def _of_means(model: GLM, plan: Plan) -> FloatArray:
    """Compute the losses of the mean of what each refit sees."""
    y = np.asarray(model.y)
    loss = cast(Any, model.loss_function)
    weight = np.asarray(model.row_weights)
    change = weight[plan.index] * (plan.weight - 1)
    total = weight.sum() + np.bincount(plan.refit, change, plan.num_refits)
    with silence("divide", "invalid"):
        mean = (
            weight @ y + np.bincount(plan.refit, change * y[plan.index], plan.num_refits)
        ) / total
        if isinstance(loss, Binomial):  # the loss of a probability is the same under every link
            loss = Binomial("logit")
            eta = np.log(mean / (1 - mean))
        else:
            eta = np.asarray(loss.link(mean))
        return loss.derivatives(eta[plan.refit], y[plan.index], (0,))[0]
