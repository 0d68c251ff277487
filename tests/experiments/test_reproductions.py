"""The pages of docs/reproductions are what their texts and the saved results make.

Pictures are small, and described.
"""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reproductions"


@pytest.fixture
def program(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import reproductions
    import saved

    for module in (reproductions, saved):
        monkeypatch.setattr(module, "PAGES", tmp_path)
    yield reproductions
    for name in ("reproductions", "saved", "hmm_dodgers", "b3_settings"):
        sys.modules.pop(name, None)


def test_pages_are_made_anew_as_they_stand(program, tmp_path, monkeypatch):
    monkeypatch.setattr("saved.palette", lambda *args: None)  # pictures are drawn, and not written
    program.main()
    made = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.glob("*.md")}
    assert made == {page.name: page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")}


def test_pictures_are_there_small_and_described():
    shown = [
        pair
        for page in PAGES.glob("*.md")
        for pair in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text(encoding="utf-8"))
    ]
    assert shown and all(len(words.split()) > 5 for words, _ in shown)
    assert {(PAGES / name).resolve() for _, name in shown} == {
        file.resolve() for file in PAGES.glob("*.png")
    }
    assert max(file.stat().st_size for file in PAGES.glob("*.png")) < 100_000


def test_no_command_names_a_folder_of_this_machine():
    for file in (PAGES / "results").glob("*.json"):
        assert "/home" not in file.read_text(encoding="utf-8") and "--out" not in file.read_text(
            encoding="utf-8"
        ), file.name


@pytest.mark.parametrize(
    ("given", "shown"),
    [(0.0312, "0.0312"), (12.0, "12"), (1234567, "1,234,567"), (None, ""), ("|a|", "\\|a\\|")],
)
def test_cells(program, given, shown):
    assert program.cell(given, ".3g") == shown
