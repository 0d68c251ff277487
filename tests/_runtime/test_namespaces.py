"""What is said of names that the package lacks."""

import pytest

import leaveout as lo
from leaveout._runtime.namespaces import words

NAMES = words()["names"]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("cooks_distance", "lo.diagnostics.cooks_distance"),
        ("validate", "lo.clinical.validate"),
        ("cross_val_score", "lo.sklearn.cross_val_score"),
        ("Ridge", "lo.penalties.Ridge"),
        ("Poisson", "lo.losses.Poisson"),
        ("hmm", "lo.HMM"),
        ("cross_validated", "lo.cross_validate"),
        *NAMES.items(),
    ],
)
def test_names_of_other_places_are_pointed_to(name, place):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': it is ") as error:
        getattr(lo, name)
    assert place in str(error.value)


@pytest.mark.parametrize("answer", NAMES.values())
def test_what_is_pointed_to_exists(answer):
    for call in answer.split("lo.")[1:]:
        value = lo
        for part in call.partition("(")[0].split(" ")[0].rstrip(",").split("."):
            value = getattr(value, part)


def test_nothing_is_said_of_what_is_like_nothing():
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        lo.zzz
