"""What a call needs is said before it is computed, with a way out."""

import numpy as np
import pytest

import leaveout as lo
from leaveout._runtime import memory

X = np.random.default_rng(0).standard_normal((200, 3))
FIT = lo.fit(lo.GLM(X, X[:, 0] ** 2, "squared"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: lo.random_subsets(10**6, 0.5, 10**7),
            r"random_subsets: the 5,000,000,000,000 units .* fewer refits",
        ),
        (lambda: lo.contiguous(10**6, 0.5, 10**7), "contiguous: .* 170,000.0 GB"),
        (lambda: lo.bootstrap(10**6, 10**7), "bootstrap: .* fewer refits"),
        (lambda: lo.leave_future_out(10**6, 2), "a plan of origins: .* fewer refits"),
        (lambda: lo.leave_one_out(200).matrix(), "Plan.matrix: .* `index` and `weight`"),
        (
            lambda: lo.fold_parameters(FIT, 50),
            "fold_parameters: 4 parameters of 50 refits .* plan.some takes some",
        ),
        (
            lambda: lo.fit(FIT.objective),
            "fit: the Hessian of 4 parameters .* curvature='products' forms none",
        ),
        (
            lambda: lo.anchor(FIT.objective, FIT.parameters),
            "anchor: the Hessian of 4 parameters .* curvature='products'",
        ),
        (lambda: lo.GLM(X, X[:, 0], "squared"), "X: 200 rows of 3 columns .* lo.scan reads rows"),
    ],
)
def test_what_does_not_fit_is_said_first(call, said, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 100.0)
    monkeypatch.setattr(memory, "ASKED_FROM", 0)
    with pytest.raises(MemoryError, match=said):
        call()


def test_what_is_free_is_less_than_all():
    free = memory.free_memory()
    assert free == np.inf or 2**20 < free < 2**50


def test_what_a_container_uses_is_not_free_but_for_its_page_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert memory._free_of_group() == np.inf
    for name, text in {
        "max": "1000000\n",
        "current": "900000\n",
        "stat": "anon 1\nactive_file 7\ninactive_file 50000\n",
    }.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory._free_of_group() == 150_000
    assert memory.free_memory() <= 150_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._free_of_group() == np.inf
