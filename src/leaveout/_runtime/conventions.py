"""What every public function does alike.

Random numbers by `rng`, names of arguments, kinds of tables, warnings.
"""

import functools
import inspect
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Literal, ParamSpec, TypeVar, cast

import numpy as np

from .namespaces import nearest
from .pandas import is_pandas, pd

P = ParamSpec("P")
T = TypeVar("T")

Rng = int | np.random.Generator | None
# functions that make tables of columns, by their library
TABLES = {"polars": "DataFrame", "pyarrow": "table"}
_chosen = {"output": "pandas"}

WORDS = {  # words of other libraries, and what is written for them
    "C": "a penalty is an object, such as penalty=lo.penalties.Ridge(1 / C)",
    "alpha": "a penalty is an object, such as penalty=lo.penalties.Ridge(alpha)",
    "cv": "the plan or the number of folds stands second, cross_validate(fit, 5); lo.sklearn.cross_validate takes cv=",
    "data": "a formula and its table stand first, such as GLM('y ~ x', table, 'squared')",
    "family": "the loss is named, such as loss='logistic' for the binomial family",
    "fit_intercept": "it is intercept=",
    "formula": "a formula and its table stand first, such as GLM('y ~ x', table, 'squared')",
    "l1_ratio": "a penalty is an object, such as penalty=lo.penalties.ElasticNet(alpha, l1_ratio)",
    "link": "it is one of the loss, such as loss=lo.losses.Poisson(link='identity')",
    "max_iter": "fits iterate until they are at the minimum",
    "n_jobs": "processes come from `with joblib.parallel_config(n_jobs=...)` around the call",
    "n_splits": "the number of folds has no name, cross_validate(fit, 5), or is k, kfold(k=5)",
    "shuffle": "kfold shuffles, by rng=; successive folds are blocks(k=5)",
    "random_state": "the plan draws the folds, such as kfold(k=5, rng=0)",
    "seed": "the plan draws the folds, such as kfold(k=5, rng=0)",
    "solver": "the way to the minimum follows from the model",
    "tol": "fits iterate until they are at the minimum, and refits by strategy=, such as lo.Exact(rtol)",
    "scoring": "it is metric=; lo.sklearn.cross_validate takes scoring=",
}
EXAMPLES = {"plan": ", such as lo.leave_one_out() or 5", "loss": ", such as 'squared'"}
SYNONYMS = {  # words of other libraries for arguments of ours
    "B": "num_resamples",
    "n_resamples": "num_resamples",
    "alpha": "level",
    "confidence": "level",
    "cov_type": "kind",
    "method": "kind",
    "type": "kind",
    "cluster": "groups",
    "clusters": "groups",
    "n_splits": "k",
    "n_folds": "k",
    "n_repeats": "num_repeats",
    "repeats": "num_repeats",
    "n_trials": "num_trials",
    "n_components": "num_states",
    "n_states": "num_states",
    "random_state": "rng",
    "seed": "rng",
}
# attributes of the results of other libraries, and what they are here
ATTRIBUTES = {
    "Fit": {
        "params": "coef",
        "coef_": "coef",
        "coefficients": "coef",
        "bse": "summary()",
        "pvalues": "summary()",
        "conf_int": "summary(level)",
        "confint": "summary(level)",
        "cov_params": "covariance()",
        "vcov": "covariance()",
        "aic": "lo.cross_validate(fit, lo.leave_one_out())",
        "resid": "lo.diagnostics.studentized_residuals(fit)",
        "cooks_distance": "lo.diagnostics.cooks_distance(fit)",
        "get_influence": "lo.diagnostics, such as lo.diagnostics.leverage(fit)",
        "get_prediction": "lo.interval(fit, X_new)",
        "predict_interval": "lo.interval(fit, X_new)",
        "predict_proba": "predict(X_new)",
    },
    "Estimate": {
        "elpd": "mean, a unit's, with the other sign; to_arviz() has the sum",
        "looic": "mean, a unit's; to_arviz() has the sum",
        "loss": "mean, or per_unit()",
        "mean_loss": "mean",
        "pointwise": "per_unit()",
        "plot_losses": "plot()",
        "scores": "per_unit(), or metrics",
        "se_mean": "se",
        "std_error": "se",
        "conf_int": "interval(level)",
        "confint": "interval(level)",
        "predictions": "lo.cross_predict(fit, plan)",
        "to_frame": "table()",
    },
}

log = logging.getLogger("leaveout")

SEEDS = 2**31  # seeds drawn from a generator are below: scikit-learn and optuna take no larger ones


def conventional(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: `rng` is what SPEC 7 says, and a table of the kind that `config`
    names.

    The function gets a whole number as its `rng`, so that a result can name what repeats it: one
    that a generator draws; None draws one that differs from call to call.
    """
    name = function.__qualname__.removesuffix(".__init__")
    parameters = inspect.signature(function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    is_open = inspect.Parameter.VAR_KEYWORD in kinds
    by_position = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    named = [name for name in parameters if name not in by_position]
    num_positions = len(by_position)
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and "*" not in str(parameter)
    ]
    form = f"{name}({', '.join(by_position).removeprefix('self, ')})"
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        num_positions = sys.maxsize

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        arguments: dict[str, Any] = kwargs  # names are checked here, types by the function
        for word in arguments:
            if word not in parameters and not is_open:
                raise TypeError(f"{name}: it takes no {word}=: {_answer(word, parameters)}.")
        if len(args) > num_positions:
            names = ", ".join(f"{name}=" for name in named)
            ways = f"name the others, such as {names}"
            if hasattr(args[0], "get_params"):
                ways = "lo.from_sklearn(estimator, X, y) makes a fit of an estimator, lo.sklearn.cross_validate takes it"
            elif name == "compare":
                ways = "estimates have names, compare({'a': first, 'b': second})"
            raise TypeError(
                f"{name}: {len(args)} arguments stand by position, where {form} has {num_positions}; {ways}."
            )
        lacking = [word for word in required[len(args) :] if word not in arguments]
        if lacking:
            example = EXAMPLES.get(lacking[0], "")
            raise TypeError(
                f"{name}: {' and '.join(lacking)} must be given{example}, as in {form}."
            )
        if "rng" in arguments:
            rng = arguments["rng"]
            try:
                if not isinstance(rng, int | np.integer):
                    arguments["rng"] = int(np.random.default_rng(rng).integers(SEEDS))
            except (TypeError, ValueError):
                raise TypeError(
                    f"{name}: rng must be a whole number, a NumPy Generator or None; got {rng!r}."
                ) from None
        result = function(*args, **kwargs)
        if _chosen["output"] != "pandas" and is_pandas(result, "DataFrame", "Series"):
            frame: Any = inspect.currentframe()
            if not _is_ours(frame.f_back):
                return cast(T, _table(result))
        return result

    return call


def _answer(word: str, parameters: Iterable[str]) -> str:
    """Say what stands for an argument that a function does not take."""
    answers = WORDS | {
        word: f"it is {name}=" for word, name in SYNONYMS.items() if name in parameters
    }
    answers |= {name: f"it is {name}=" for name in parameters}
    return nearest(word, answers) or f"there are {', '.join(f'{name}=' for name in parameters)}"


def lacking_attribute(kind: type, name: str) -> AttributeError:
    """Return the error of an attribute that results of a kind lack, with what stands for it."""
    answers = {word: f": it is {word}" for word in dir(kind) if word[0] != "_"}
    for part in kind.__mro__:
        words = ATTRIBUTES.get(part.__name__, {})
        answers |= {word: f": it is {answer}" for word, answer in words.items()}
    return AttributeError(
        f"{kind.__name__!r} object has no attribute {name!r}{nearest(name, answers)}"
    )


def _table(table: "pd.DataFrame | pd.Series") -> Any:
    """Convert a table to the kind that `config` names. Labels of rows become its first columns."""
    columns: dict[str, Any] = {}
    if table.index.names != [None] or not is_pandas(table.index, "RangeIndex"):
        levels = table.index.to_frame().items()
        columns = {
            name if isinstance(name, str) else f"label{name or ''}": level for name, level in levels
        }
    frame = table
    if is_pandas(table, "Series"):
        name = "value" if table.name is None else table.name
        frame = table.to_frame(name)
    columns |= {
        " ".join(map(str, key)) if isinstance(key, tuple) else str(key): part
        for key, part in frame.items()
    }
    make = getattr(import_module(_chosen["output"]), TABLES[_chosen["output"]])
    return make({name: part.to_list() for name, part in columns.items()})


class config:
    """Choose the kind of the tables that results give, until it is changed or to the end of a
    `with` block.

    Functions and methods that return a DataFrame, such as `compare`, `Estimate.table` and
    `interval`, then return a table of the library that is named. It has the labels of rows as its
    first column. Tables that are fields of a result, such as `Estimate.audit`, stay as they are.

    Parameters
    ----------
    output : {"pandas", "polars", "pyarrow"}
        Library of the tables. Frames of all three are taken as data, whatever it is.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.eye(6)[:, :1], np.arange(6.0), "squared"))
    >>> with lo.config(output="polars"):
    ...     table = lo.cross_validate(fit, lo.leave_one_out()).table()
    >>> type(table).__module__.partition(".")[0], table.shape
    ('polars', (6, 6))
    """

    def __init__(self, *, output: Literal["pandas", "polars", "pyarrow"]):
        if output not in ("pandas", *TABLES):
            raise ValueError(
                f"config: output must be 'pandas', {', '.join(map(repr, TABLES))}; got {output!r}."
            )
        self._before = _chosen["output"]
        _chosen["output"] = output

    def __enter__(self) -> "config":
        return self

    def __exit__(self, *_: object) -> None:
        _chosen["output"] = self._before


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning, unless it is empty, that points at the line outside the library that called
    it.
    """
    depth = 1
    level = 1
    frame = inspect.currentframe()
    while frame is not None:
        depth, level = depth + 1, depth if _is_ours(frame) else level
        frame = frame.f_back
    if message:
        warnings.warn(message, category, stacklevel=level + 1)


def _is_ours(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]
