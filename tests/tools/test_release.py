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


PAPER = text("paper/paper.md").split("---\n", 2)[2]
# those of the author guide of the Journal of Open Source Software (January 2026)
SECTIONS = [
    "Summary",
    "Statement of need",
    "State of the field",
    "Software design",
    "Research impact statement",
    "AI usage disclosure",
    "Acknowledgements",
    "References",
]


def test_every_reference_of_the_paper_is_there_and_cited():
    cited = set(re.findall(r"@([a-z]+\d{4}[a-z]*)", PAPER))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", text("paper/paper.bib"), re.MULTILINE))


def test_the_paper_has_its_journals_sections_and_length():
    assert re.findall("^# (.*)$", PAPER, re.MULTILINE) == SECTIONS
    assert 750 <= len(PAPER.split()) <= 1750


def test_the_pictures_of_the_paper_are_there():
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAPER)
    assert pictures
    assert all((ROOT / "paper" / picture).exists() for picture in pictures)
