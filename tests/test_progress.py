"""The bar for what takes long."""

import io
import time

import pytest
from rich.console import Console

from leaveout import _progress
from leaveout._progress import Slow


@pytest.fixture
def terminal(monkeypatch):
    seen = io.StringIO()
    monkeypatch.setattr(_progress, "PATIENCE", 0.05)
    monkeypatch.setattr(_progress, "Console", lambda **_: Console(file=seen, force_terminal=True, width=100))
    return seen


def test_a_long_first_step_is_seen_and_cleared_away(terminal):
    with Slow("refits", 7) as bar:
        time.sleep(0.3)
        assert "refits" in terminal.getvalue() and "0/7" in terminal.getvalue()
        bar.advance(3)
        time.sleep(0.3)
        assert "3/7" in terminal.getvalue()
    end = terminal.getvalue()
    time.sleep(0.2)
    assert terminal.getvalue() == end and end.endswith("\x1b[2K")  # the line is empty again, and stays so


def test_what_is_quick_says_nothing_and_there_is_one_bar_at_a_time(terminal):
    with Slow("starts", 3) as bar:
        bar.advance()
    time.sleep(0.2)
    assert terminal.getvalue() == ""
    with Slow("levels", 3), Slow("refits", 3) as inner:
        time.sleep(0.3)
        inner.advance()
    assert "levels" in terminal.getvalue() and "refits" not in terminal.getvalue()
    with pytest.raises(KeyError), Slow("draws", 2):
        raise KeyError
    with Slow("draws", 2):  # an error has ended the bar before
        time.sleep(0.3)
    assert "draws" in terminal.getvalue()
