"""Log densities in ArviZ's own form, of version 1 and of those before it."""

import numpy as np
import pandas as pd
import pytest

from leaveout.validation.arviz import elpd_data


@pytest.mark.filterwarnings("ignore")  # ArviZ's, of what it will change
def test_arviz_compares_and_prints_them():
    az = pytest.importorskip("arviz")
    rng = np.random.default_rng(0)
    losses = rng.gamma(2.0, 1.0, 120)
    of = lambda each, k: elpd_data(
        each, each - 0.01, pd.RangeIndex(120), each.std() / 120**0.5, suspect=False, k=k, draws=4000
    )
    ours = of(losses, rng.uniform(0, 0.6, 120))
    elpd, pointwise = (
        (ours.elpd, ours.elpd_i) if hasattr(ours, "elpd_i") else (ours["elpd_loo"], ours["loo_i"])
    )
    assert np.isclose(elpd, -losses.sum()) and np.array_equal(np.asarray(pointwise), -losses)
    assert (
        f"{elpd:.2f}" in str(ours)
        and "120 (100" not in str(of(losses, None))
        and "Pareto k" in str(ours)
    )
    table = az.compare({"b": of(losses + 0.1, None), "a": ours})
    assert table.index.tolist() == ["a", "b"] and np.isclose(abs(table.loc["b", "elpd_diff"]), 12.0)
