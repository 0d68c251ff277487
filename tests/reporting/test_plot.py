"""Pictures appear: in pyplot, where a notebook and `plt.show()` find them.

And say what they show.
"""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from leaveout.reporting import plot
from tests.helpers import fitted


@pytest.fixture(scope="module")
def cv():
    return lo.cross_validate(fitted("logistic"), lo.leave_one_out())


@pytest.fixture(scope="module")
def random_folds():
    return lo.cross_validate(fitted("logistic"), lo.random_subsets(60, 0.2, 12, rng=0))


def pictures(cv):
    fit = fitted("logistic")
    folds, step = (
        lo.cross_validate(fit, lo.kfold(k=6)),
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NewtonStep()),
    )
    path = lo.path(fit.objective, [0.1, 1.0, 10.0], lo.leave_one_out())
    found = lo.influence(cv, num_pairs=0)
    return {
        "losses": cv.plot,
        "path": path.plot,
        "agreement": lambda ax=None: lo.plot.agreement(step, cv, ax),
        "comparison": lambda ax=None: lo.plot.comparison(
            {"a": path.estimates[0], "b": path.estimates[2]}, ax
        ),
        "leverage": lambda ax=None: lo.plot.leverage(fit, cv, ax),
        "against_exact": lambda ax=None: lo.plot.against_exact(fit, cv, ax, num_sampled=5),
        "influence": found.plot,
        "of a fit": lambda ax=None: lo.plot.influence(fit, ax),
        "estimates": lambda ax=None: lo.plot.estimates({"a": cv, "b": folds}, ax),
    }


@pytest.mark.filterwarnings("ignore:compare")
def test_every_picture_appears_and_draws_where_it_is_told(cv, tmp_path, monkeypatch):
    before, shown = dict(mpl.rcParams), []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(plt.get_fignums()))
    for name, draw in pictures(cv).items():
        ax = draw()
        figure = ax.get_figure(root=True)
        assert plt.get_fignums() == [figure.number], name
        plt.show()
        assert shown.pop() == figure.number and plt.gcf() is figure
        figure.savefig(tmp_path / f"{name}.png")
        plt.close(figure)
        other = mpl.figure.Figure().subplots()
        assert draw(ax=other) is other and plt.get_fignums() == [], name  # nothing else is opened
        assert other.has_data() and (tmp_path / f"{name}.png").stat().st_size > 5000
    assert dict(mpl.rcParams) == before


def test_the_inline_backend_shows_it(cv):
    """What notebooks do at the end of a cell: show every figure of pyplot's, and close them."""
    inline = pytest.importorskip("matplotlib_inline.backend_inline")
    pytest.importorskip("IPython")
    sent = []
    used = mpl.get_backend()
    try:
        plt.switch_backend("module://matplotlib_inline.backend_inline")
        cv.plot()
        display, inline.display = inline.display, lambda figure, **more: sent.append(figure)
        inline.show(close=True)
        inline.display = display
    finally:
        plt.switch_backend(used)
    assert len(sent) == 1 and plt.get_fignums() == []


def test_axes_say_what_a_loss_is(cv, random_folds):
    for ax in (cv.plot(), lo.plot.estimates({"a": cv}), lo.plot.leverage(fitted("logistic"), cv)):
        assert "−log probability" in ax.get_xlabel() + ax.get_ylabel()
    brier = lo.cross_validate(fitted("logistic"), lo.kfold(k=5), evaluate="squared_error")
    assert (
        brier.score in brier.plot().get_ylabel()
        and brier.score in lo.plot.estimates({"b": brier}).get_xlabel()
    )
    assert "other scores" in lo.plot.estimates({"a": cv, "b": brier}).get_xlabel()


def test_both_errors_are_drawn(cv, random_folds):
    ax = lo.plot.estimates({"rows": cv, "random fifths": random_folds})
    labels = ax.get_legend_handles_labels()[1]
    assert {"standard error (data)", "another draw of folds (Monte Carlo)"} <= set(labels)
    parts = [
        part
        for c in ax.containers
        for line in c.lines[2]
        for part in line.get_segments()
        if len(part)
    ]
    widths = [np.ptp(part[:, 0]) / 2 for part in parts]
    for size in (cv.se, random_folds.se, random_folds.monte_carlo_error):
        assert np.isclose(widths, size).any()
    title = random_folds.plot().get_title()
    assert (
        f"± {random_folds.se:.2g} (data) ± {random_folds.monte_carlo_error:.2g} (random folds)"
        in title
    )
    assert "(data)" not in cv.plot().get_title()


def test_labels_are_the_datas():
    years = np.arange(1950, 1980)
    frame = pd.DataFrame(
        {"x": np.random.default_rng(0).standard_normal(30)}, index=years
    ).rename_axis("year")
    y = frame["x"] + 0.1 * np.arange(30)
    cv = lo.cross_validate(lo.fit(lo.GLM(frame, y, "squared")), lo.leave_one_out())
    ax = lo.influence(cv, num_pairs=0).plot()
    assert (
        ax.get_xlabel() == "year"
        and ax.get_xlim()[0] > 1940
        and ax.texts[0].get_text() in map(str, years)
    )


def test_pictures_of_risks_take_an_estimate_and_forests_any_names(cv):
    drawn = lo.plot.calibration(cv)
    assert (
        f"slope {lo.clinical.calibration(cv).table.loc['slope', 'estimate']:.2f}"
        in drawn.get_title()
    )
    assert drawn.get_xlabel() == "predicted risk"
    benefit = lo.plot.decision_curve(cv)
    np.testing.assert_array_equal(
        benefit.lines[-1].get_ydata(), lo.clinical.decision_curve(cv).table["net_benefit"]
    )
    table = pd.DataFrame(
        {"estimate": [1.0, np.nan], "low": [0.5, np.nan], "high": [2.0, np.nan]},
        index=["$x$" * 99, "none"],
    )
    ax = lo.plot.forest(table.assign(weight=0.0))
    assert [text.get_text() for text in ax.texts] == ["1 (0.5 to 2)", "not known"]
    assert len(ax.get_yticklabels()[0].get_text().replace("\\", "")) == 40


def test_times_stand_at_their_local_times():
    hours = pd.date_range("2001-03-30 22:00", periods=5, freq="h")
    for index in (hours, hours.tz_localize("+02:00"), hours.to_period("h")):
        np.testing.assert_array_equal(plot.positions(index), hours.to_numpy())
    np.testing.assert_array_equal(plot.positions(pd.Index(["a", "b"])), [0, 1])
