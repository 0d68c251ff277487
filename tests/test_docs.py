"""Every Python block of the README and of docs/ runs as it stands."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


QUICK = ("README.md", "index.md", "choosing.md")


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=() if p.name in QUICK else pytest.mark.slow, id=p.name) for p in PAGES if blocks(p)],
)
def test_the_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared: dict = {}
    for block in blocks(page):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, page.name, "exec"), shared)


def test_the_first_example_is_short_and_prints_what_the_readme_says():
    text = (ROOT / "README.md").read_text()
    first = blocks(ROOT / "README.md")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(first, "README.md", "exec"), {})
    shown = re.search(r"```\n(model .*?)```", text, re.DOTALL)
    assert shown is not None
    for line in shown.group(1).splitlines():
        if line.startswith(("refits", "no update", "checks")):  # the rest may move in its last digit
            assert line.rstrip() in out.getvalue()


def test_the_demo_runs(tmp_path):
    from typer.testing import CliRunner

    from leaveout.cli import app

    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert list(tmp_path.glob("*.png"))
    for word in ("Certified", "Exact", "scikit-learn"):
        assert word in result.output
