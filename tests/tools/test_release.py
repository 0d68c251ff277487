"""What a release says of itself in several files is the same in all of them."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_versions_agree():
    version = PROJECT["version"]
    assert re.search(r"^version: (.*)$", text("CITATION.cff"), re.MULTILINE)[1] == version
    assert re.search(r'set version = "(.*)"', text("recipe/meta.yaml"))[1] == version
    assert f"## {version}" in text("CHANGELOG.md")


def test_the_recipe_runs_with_the_same_dependencies():
    run = text("recipe/meta.yaml").partition("  run:\n")[2].partition("\n\n")[0]
    found = {line.strip(" -").replace(" ", "") for line in run.splitlines()}
    assert found == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}


def test_every_reference_of_the_paper_is_there_and_cited():
    cited = set(re.findall(r"@([a-z]+\d{4}[a-z]*)", text("paper/paper.md")))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", text("paper/paper.bib"), re.MULTILINE))
