"""Mixed models of statsmodels: MixedLM by maximum likelihood as it was fitted, and the data of its Bayesian mixed GLMs.

MixedLM of one grouping, with random effects `re_formula`, is `lo.Mixed` with a Gaussian response; REML is another objective.
BinomialBayesMixedGLM and PoissonBayesMixedGLM find a posterior, not a maximum: their data are read, and fitted by maximum
likelihood.
"""

from typing import Any

import numpy as np
import pandas as pd

from ..models.latent.effects import EffectBlock
from ..models.latent.mixed import Mixed
from ..optimize.fit import Fit, fit
from ._fit_at_host import fit_at_host

FAMILIES = {"BinomialBayesMixedGLM": "binomial", "PoissonBayesMixedGLM": "poisson"}


def linear(results: Any, drop: str) -> Fit:
    """Fit from the results of a MixedLM."""
    model = results.model
    if model.reml:
        raise ValueError(
            "from_statsmodels: this MixedLM was fitted by REML, whose objective is another than the likelihood: fit it by "
            "maximum likelihood, model.fit(reml=False)."
        )
    if model.exog_vc.names:
        raise TypeError(
            "from_statsmodels: MixedLM with variance components (vc_formula) is not supported. Write them as effects: "
            "lo.Mixed('y ~ x + (1 | group) + (1 | group:other)', data)."
        )
    effects = np.asarray(model.exog_re, np.float64)
    given = list(getattr(model.data, "exog_re_names", None) or [])
    names = ["Intercept" if name == "Group" else str(name) for name in given]
    names = names if len(names) == effects.shape[1] else [f"z{j}" for j in range(effects.shape[1])]
    code, levels = pd.factorize(np.asarray(model.groups), sort=True)
    block = EffectBlock("group", tuple(names), effects, (len(names),))
    X = _frame_of(model.exog, model.exog_names)
    objective = Mixed.of(X, model.endog, "gaussian", (block,), {"group": (code, np.asarray(levels))}, drop=drop)
    parameters = {
        "coef": np.asarray(results.fe_params),
        "covariance[group]": np.asarray(results.cov_re),
        "scale": np.sqrt(float(results.scale)),
    }
    stopped = lambda: not getattr(results, "converged", True)
    return fit_at_host("from_statsmodels", objective, parameters, stopped, "raise maxiter or scale the columns")


def bayesian(results: Any, drop: str) -> Fit:
    """Fit by maximum likelihood to the data of a Bayesian mixed GLM."""
    model = getattr(results, "model", results)
    columns, blocks, known = model.exog_vc.tocsc(), [], {}
    for k, name in enumerate(model.vcp_names):
        own = columns[:, np.flatnonzero(np.asarray(model.ident) == k)].tocsr()
        if (np.diff(own.indptr) > 1).any():
            raise TypeError(
                f"from_statsmodels: rows of the component {name!r} have several effects that share a variance, which are no "
                "levels of a factor. Write the model as a formula of lo.Mixed."
            )
        code, value = np.zeros(own.shape[0], np.int64), np.zeros(own.shape[0])
        here = np.diff(own.indptr) == 1
        code[here], value[here] = own.indices, own.data
        used, code = np.unique(code, return_inverse=True)
        levels = np.asarray(model.vc_names)[np.asarray(model.ident) == k][used]
        blocks.append(EffectBlock(str(name), (str(name),), value[:, None], (1,)))
        known[str(name)] = (code, levels)
    X, family = _frame_of(model.exog, model.fep_names), FAMILIES[type(model).__name__]
    return fit(Mixed.of(X, model.endog, family, tuple(blocks), known, drop=drop))


def _frame_of(exog: Any, names: Any) -> pd.DataFrame:
    return pd.DataFrame(np.asarray(exog, np.float64), columns=list(map(str, names)))
