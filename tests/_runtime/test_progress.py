"""The bar for what takes long."""

import io
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import threadpoolctl
from rich.console import Console

import leaveout as lo
from leaveout._runtime import progress as _progress
from leaveout._runtime.progress import Slow


@pytest.fixture
def terminal(monkeypatch):
    seen = io.StringIO()
    monkeypatch.setattr(_progress, "SECONDS_BEFORE_BAR", 0.05)
    monkeypatch.setattr(
        _progress, "_console", lambda: Console(file=seen, force_terminal=True, width=100)
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    return seen


def appears(terminal, *words):
    """Whether a bar with these words is drawn within seconds: it is drawn ten times a second."""
    end = time.monotonic() + 5
    while not (drawn := all(word in terminal.getvalue() for word in words)):
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    return drawn


def test_a_long_first_step_is_seen_and_cleared_away(terminal):
    with Slow("refits", 7) as bar:
        assert appears(terminal, "refits", "0/7", "left")
        bar.advance(3)
        assert appears(terminal, "3/7")
    end = terminal.getvalue()
    time.sleep(0.2)
    # the line is empty again, and stays so
    assert terminal.getvalue() == end and end.endswith("\x1b[2K")


@pytest.mark.parametrize("there", [True, False])
def test_in_a_notebook_it_needs_widgets(monkeypatch, there):
    """Rich would warn at every bar."""
    monkeypatch.setitem(sys.modules, "IPython", sys)
    monkeypatch.setattr(_progress, "_console", lambda: Console(force_jupyter=True))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: sys if there else None)
    assert _progress._has_viewer() == there


def test_in_a_file_there_is_nothing(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(_progress, "SECONDS_BEFORE_BAR", 0.05)
    monkeypatch.setattr(_progress, "_console", lambda: Console(file=file, force_jupyter=False))
    monkeypatch.setattr(_progress.sys, "stderr", file)
    with Slow("refits", 7) as bar:
        time.sleep(0.2)
        bar.advance(7)
    assert file.getvalue() == ""


def test_what_is_quick_says_nothing_and_there_is_one_bar_at_a_time(terminal):
    with Slow("starts", 3) as bar:
        bar.advance()
    time.sleep(0.2)
    assert terminal.getvalue() == ""
    with Slow("levels", 3), Slow("refits", 3) as inner:
        assert appears(terminal, "levels")
        inner.advance()
    assert "refits" not in terminal.getvalue()
    with pytest.raises(KeyError), Slow("draws", 2):
        raise KeyError
    with Slow("draws", 2):  # an error has ended the bar before
        assert appears(terminal, "draws")


def test_a_bar_ends_with_an_error_in_what_is_done_with_the_refits(terminal):
    fit = lo.fit(
        lo.Separable(lambda theta, x: (x - theta) ** 2, np.array([1.0, 2.0, 4.0]), theta0=0.0)
    )
    calls = []

    def evaluate(held, seen, theta):
        calls.append(theta)
        if len(calls) < 5:  # the baseline, of three refits and one to see its shape, comes first
            return 0.0
        assert appears(terminal, "refits")
        raise KeyError

    with pytest.raises(KeyError) as error:
        lo.cross_validate(fit, lo.leave_one_out(3), evaluate=evaluate)
    assert len(calls) == 5
    end = terminal.getvalue()
    time.sleep(0.3)  # the error, and with it every frame, is still held
    assert error.value is not None and terminal.getvalue() == end and end.endswith("\x1b[2K")


def test_starts_have_a_line_each(terminal):
    """With F and the gradients that it took, and what became of it."""

    def slowly(theta, weights):
        jax.debug.callback(lambda: time.sleep(0.02))
        return jnp.sum(weights) * (theta["x"] ** 2 - 1) ** 2

    fit = lo.fit(lo.Objective(slowly, 5), {"x": np.asarray(0.7)}, num_starts=2)
    assert abs(fit.parameters["x"]) == pytest.approx(1, abs=1e-6)
    for part in ("start 1: F = ", " gradients", "start 1: a minimum, F = ", "1/2", "start 2: "):
        assert part in terminal.getvalue()


@pytest.mark.parametrize("columns, threads", [(3, {1}), (501, {2})])
def test_narrow_products_take_one_thread_and_leave_the_callers_setting(columns, threads):
    found, rng = [], np.random.default_rng(0)
    asked = lambda train, test, theta: found.append(_threads()) or np.zeros(len(train))
    model = lo.GLM(
        rng.normal(size=(12, columns)), rng.normal(size=12), "squared", lo.penalties.Ridge(1.0)
    )
    fit = lo.fit(model, curvature="dense")
    with threadpoolctl.threadpool_limits(2):
        lo.cross_validate(fit, lo.kfold(k=3), evaluate=asked)
        assert set().union(*found) == threads and _threads() == {2}


def _threads():
    """Of NumPy's and SciPy's libraries; others bring their own."""
    ours = [
        each for each in threadpoolctl.threadpool_info() if "scipy_openblas" in each["filepath"]
    ]
    return {
        each["num_threads"]
        for each in ours or threadpoolctl.threadpool_info()
        if each["user_api"] == "blas"
    }
