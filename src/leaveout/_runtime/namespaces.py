"""Modules of public names, which are imported when they are used."""

import ast
import difflib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# names of other libraries, and what is written for them
WORDS = {
    "loo": "lo.leave_one_out(), or lo.bayes.elpd of draws",
    "waic": "lo.bayes.elpd of draws",
    "LeaveOneOut": "lo.leave_one_out()",
    "LeavePOut": "lo.random_subsets(fraction=..., num_folds=...)",
    "leave_p_out": "lo.random_subsets(fraction=..., num_folds=...)",
    "KFold": "lo.kfold(k=5)",
    "RepeatedKFold": "lo.kfold(k=5, num_repeats=10)",
    "repeated_kfold": "lo.kfold(k=5, num_repeats=10)",
    "StratifiedKFold": "lo.stratified(k=5)",
    "stratified_kfold": "lo.stratified(k=5)",
    "GroupKFold": "lo.groups(labels, k=5)",
    "group_kfold": "lo.groups(labels, k=5)",
    "LeaveOneGroupOut": "lo.groups(labels)",
    "leave_one_group_out": "lo.groups(labels)",
    "TimeSeriesSplit": "lo.leave_future_out(start=...) or lo.rolling(window=...)",
    "time_series_split": "lo.leave_future_out(start=...) or lo.rolling(window=...)",
    "calibrate": "lo.clinical.calibration(estimate)",
    "conformal": "lo.interval(fit, X_new) or lo.prediction_sets(fit, X_new)",
    "predict_interval": "lo.interval(fit, X_new)",
    "GridSearchCV": "lo.sklearn.OneFitSearchCV, or scikit-learn's with cv=lo.stratified(k=5)",
    "lasso_path": "lo.path(model, penalties, plan)",
    "LinearRegression": "lo.GLM(X, y, 'squared')",
    "LogisticRegression": "lo.GLM(X, y, 'logistic'), or lo.from_sklearn of a fitted one",
    "ols": "lo.GLM('y ~ x', table, 'squared')",
    "glm": "lo.GLM('y ~ x', table, 'logistic')",
    "plot_losses": "lo.plot.losses(estimate)",
}
# rooms whose names a user may look for at the root; the last one that has a name is named
ROOMS = (
    *("developer", "emissions", "losses", "penalties", "sklearn", "terms", "survey"),
    *("validation", "bayes", "clinical", "diagnostics"),
)

NEEDS_JAX = (
    "Random fields, conditional random fields, lo.Regression, lo.tune by gradients, and functions and emissions of your own "
    "need JAX, which is not installed: pip install 'leaveout[jax]'."
)


def nearest(word: str, answers: Mapping[str, str]) -> str:
    """Return the answer to the nearest word, empty if none is near."""
    words = difflib.get_close_matches(word, answers, 1, 0.75)
    return "".join(answers[word] for word in words)


def place_of(name: str, room_of: Callable[[str], Any], names: list[str]) -> str:
    """Say where a name stands that the root lacks, or which of its `names` is near."""
    places = {word: f"lo.{room}.{word}" for room in ROOMS for word in room_of(room).__all__}
    places |= {word: f"lo.{word}" for word in names} | WORDS
    return nearest(
        name.lower(), {word.lower(): f": it is {place}" for word, place in places.items()}
    )


def attach(module: str, file: str, for_users: bool = True) -> Any:
    """Return `__getattr__`, `__dir__` and `__all__` of a module, by the imports of its stub.

    What it hands out for users has signatures that can be read. No name is that of a module beside
    the stub, unless it is that module.
    """
    path = Path(file)
    package = module
    if path.stem != "__init__":
        package = module.rpartition(".")[0]
    homes = {
        alias.name: "." * node.level + (node.module or "")
        for node in ast.parse(path.with_suffix(".pyi").read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = sorted(homes)

    def hand_out(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = _import(homes[name], package)
        if name in vars(home):
            value = vars(home)[name]
        else:
            value = _import(f"{home.__name__}.{name}")
        if for_users:
            from .signatures import readable  # once a name is used, for it imports NumPy

            readable(value)
        vars(sys.modules[module])[name] = value
        return value

    return hand_out, names.copy, names


def _import(name: str, package: str | None = None) -> ModuleType:
    """Import a module; ImportError that says what to install if it needs JAX, which is missing."""
    try:
        return import_module(name, package)
    except ModuleNotFoundError as error:
        check_missing(error)
        raise


def check_missing(error: ModuleNotFoundError) -> None:
    """Raise ImportError that says what to install, if JAX is what is missing."""
    if (error.name or "").partition(".")[0] in ("jax", "jaxlib", "equinox"):
        raise ImportError(NEEDS_JAX) from None
