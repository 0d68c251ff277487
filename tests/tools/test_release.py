"""What a release says of itself in several files is the same in all of them."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = CONFIGURATION["project"]
ADDRESS = PROJECT["urls"]["Source"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SUPPORTED = [
    words[-1] for words in map(str.split, PROJECT["classifiers"]) if "." in words[-1]
]  # of Programming Language :: Python :: 3.11


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read(name: str) -> dict:
    # `on:` is the key True for YAML 1.1
    return yaml.safe_load(text(name))


def jobs():
    for workflow in WORKFLOWS:
        for job in read(workflow)["jobs"].values():
            yield workflow.name, job


def steps():
    for name, job in jobs():
        for step in job["steps"]:
            yield name, step


def index_page() -> str:
    """README as a package index shows it."""
    page = text("README.md")
    hook = CONFIGURATION["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for substitution in hook["substitutions"]:
        page = re.sub(substitution["pattern"], substitution["replacement"], page)
    return page


def test_versions_agree():
    version = PROJECT["version"]
    assert read("CITATION.cff")["version"] == version
    assert read("recipe/recipe.yaml")["context"]["version"] == version
    assert f"## {version}" in text("CHANGELOG.md")


def test_the_recipe_has_the_same_dependencies():
    recipe = read("recipe/recipe.yaml")
    least = recipe["context"]["python_min"]
    assert PROJECT["requires-python"] == f">={least}"
    build = CONFIGURATION["build-system"]["requires"]
    for section, expected in (("run", PROJECT["dependencies"]), ("host", ["pip", *build])):
        python, *others = recipe["requirements"][section]
        assert python.startswith("python") and "${{ python_min }}" in python
        assert sorted(line.replace(" ", "") for line in others) == sorted(expected)


def test_the_address_is_the_same_everywhere():
    """It is a placeholder yet, to be replaced everywhere at once."""
    recipe = read("recipe/recipe.yaml")["about"]
    assert {recipe["homepage"], recipe["repository"]} == {ADDRESS}
    assert read("CITATION.cff")["repository-code"] == ADDRESS
    assert all(url.startswith(ADDRESS) for url in PROJECT["urls"].values())
    addresses = re.findall(r"https://[^\s)\"]*HFPR_VERSION[^\s)\"]*", index_page())
    assert len(addresses) > 20 and all(url.startswith(f"{ADDRESS}/") for url in addresses)


def test_the_page_of_the_index_has_no_link_into_the_repository():
    """Where every file to which README leads is one."""
    page = index_page()
    links = re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', page)
    for link in map("".join, links):
        assert link.startswith(("https://", "#")), link
        path = link.partition("$HFPR_VERSION/")[2].partition("#")[0]
        assert (ROOT / path).exists(), link


def test_the_pythons_are_the_same_everywhere():
    least = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    versions = [tuple(map(int, version.split("."))) for version in SUPPORTED]
    assert versions == [(3, least[1] + minor) for minor in range(len(versions))]
    matrix = read(".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == SUPPORTED and len(matrix["system"]) == 3
    for name, step in steps():
        if "release-check" in step.get("run", ""):
            assert re.findall(r"\d\.\d+", step["run"]) == SUPPORTED, name
        for version in str(step.get("with", {}).get("python-version", "")).split():
            assert "matrix" in version or version.strip("${}") in ("", *SUPPORTED), name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_do_no_more_than_they_must(workflow):
    assert read(workflow)["permissions"] == {}
    for job in read(workflow)["jobs"].values():
        write = {name for name, access in job["permissions"].items() if access == "write"}
        assert write <= {"id-token", "pages"} and job["timeout-minutes"]


def test_actions_are_pinned_by_their_commits():
    """SPEC 8: with the version in a comment, one commit an action."""
    pinned = {}
    for workflow in WORKFLOWS:
        for line in re.findall(r"uses: (.*)", workflow.read_text(encoding="utf-8")):
            action, commit = re.fullmatch(
                r"([\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line
            ).groups()
            assert pinned.setdefault(action, commit) == commit, workflow.name


def test_workflows_call_what_there_is():
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    for name, step in steps():
        assert set(re.findall(r"^make ([a-z-]+)", step.get("run", ""))) <= targets, name
        for file in re.findall(r"@(tests/\S+)", step.get("run", "")):
            tests = [line for line in text(file).splitlines() if line.startswith("tests/")]
            assert tests and all((ROOT / test).exists() for test in tests), name


@pytest.mark.parametrize("form", ["fault", "wish"])
def test_forms_ask_for_what_a_report_needs(form):
    questions = read(f".github/ISSUE_TEMPLATE/{form}.yml")
    assert questions["name"] and questions["description"]
    fields = [field for field in questions["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


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
