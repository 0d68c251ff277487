"""Functions shared by `hmm` and `mrf`.

Numbers of states, emissions, and models that are fitted and cross-validated in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from re import fullmatch
from typing import Annotated, Any

import numpy as np

import leaveout as lo

from ._console import TABLES, fail, warnings_as_notes
from ._options import FoldOptions, option
from ._table import Heading, compare_table, findings

pd = lo.developer.pd

CRITERIA: dict[str, Heading] = TABLES["criteria"]


@dataclass(frozen=True)
class StateSearch(FoldOptions):
    """Options of models over numbers of states, which are fitted from several starts and
    cross-validated.

    Attributes
    ----------
    seed
        Of the starts, and of random folds.
    states
        Numbers of states to compare: 2,3,4 or 2-4.
    """

    seed: int = 0
    states: str = "2"
    starts: Annotated[int, option("Starts of each fit.", least=1)] = 5

    @property
    def numbers(self) -> list[int]:
        """The numbers of states, from `2,3,4` or `2-4`."""
        text = self.states.replace(" ", "")
        counts = (
            sorted({int(part) for part in text.split(",")})
            if fullmatch(r"\d+(,\d+)*", text)
            else []
        )
        if span := fullmatch(r"(\d+)-(\d+)", text):
            counts = list(range(int(span[1]), int(span[2]) + 1))
        if not counts or min(counts) < 1:
            fail(
                f"--states {self.states}: give numbers of states, 1 or more, such as 2,3,4 or 2-4."
            )
        return counts


def emission_of(
    name: str,
    x: np.ndarray,
    choices: tuple[str, ...],
    **command_emissions: Callable[[], lo.emissions.AbstractEmission],
) -> lo.emissions.AbstractEmission:
    """Return an emission by its name, including those of the command."""
    largest = np.nanmax(x, initial=1)
    make = {
        "gaussian": lo.emissions.Gaussian,
        "poisson": lo.emissions.Poisson,
        "negative-binomial": lo.emissions.NegativeBinomial,
        "categorical": lambda: lo.emissions.Categorical(int(min(largest, 2**20)) + 1),
    }
    name = name.lower().replace("_", "-")
    if name not in choices:
        fail(f"--emission {name}: it must be one of {', '.join(choices)}.")
    return (make | command_emissions)[name]()


@dataclass
class FittedModels:
    """Models that could be fitted: their fits, estimates and table by name, and remarks.

    And what became of the others.
    """

    fits: dict[str, lo.Fit] = field(default_factory=dict)
    estimates: dict[str, lo.Estimate] = field(default_factory=dict)
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def fit_models(
    models: Mapping[str, lo.HMM | lo.MRF],
    folds: lo.Plan,
    search: StateSearch,
    columns: Callable[[Any, lo.Fit], dict[str, Any]],
) -> FittedModels:
    """Fit every model from seeded random starts, and cross-validate it; end the command if none can
    be fitted.

    The table begins with the `columns` of each model and its fit.
    """
    outcome = FittedModels()
    for number, (name, model) in enumerate(models.items(), 1):
        with warnings_as_notes() as notes:
            try:
                outcome.fits[name] = lo.fit(model, num_starts=search.starts, rng=search.seed)
                outcome.estimates[name] = search.cross_validate(outcome.fits[name], folds, number)
            except (ValueError, TypeError, RuntimeError) as error:
                outcome.failures.append(f"{name}: {error}")
        outcome.notes += (
            findings(name, outcome.estimates[name]) if name in outcome.estimates else []
        )
        outcome.notes += [f"{name}: {note}" for note in notes]
    if not outcome.estimates:
        fail(outcome.failures[0])
    pairs = {name: (models[name], outcome.fits[name]) for name in outcome.estimates}
    before = {name: columns(*pair) for name, pair in pairs.items()}
    after = {
        name: {"aic": model.aic(fit), "bic": model.bic(fit)} for name, (model, fit) in pairs.items()
    }
    outcome.table, remarks = compare_table(outcome.estimates, before, after)
    outcome.notes += remarks
    return outcome
