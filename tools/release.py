"""Is it ready to be released? Built, checked, and tried in clean environments with the oldest and
the newest dependencies.

    python tools/release.py [--python 3.11 3.12 3.13] [--wheel FILE] [--tests tests/plans …]
        [--licences docs/licences.md] [--final] [--out out/release]

The source archive is built, the wheel from it; what the wheel holds is held against `src`, its
page of a package index against links that lead nowhere. For every interpreter (a version, or a path
where `uv` would not find it) and for the newest and the lowest direct versions of all dependencies
that pyproject.toml allows, the wheel is installed without extras: its dependencies agree, the first
lines of the README run, and so do the tests of `tests/smoke.txt`. `--tests` are run with the oldest
dependencies of the extra `test`, under the first interpreter. The public names' types are looked at
by pyright. `--wheel` tries a wheel that was built elsewhere, and nothing else; `--licences` writes
the page of licences; `--final` refuses placeholders and versions without their tag. What is printed
is Markdown; the exit code is 1 if a row failed. It needs `pip install "leaveout[release]"`.
"""

import argparse
import email
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLACEHOLDER = "https://example.org/"
MAX_MB = 273  # of `pip install leaveout` with its dependencies, newest, without bytecode
SHOWN = (
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "narwhals",
    "joblib",
    "jaxtyping",
    "rich",
    "typer",
)
# extras of those who work on leaveout, whose packages users do not get
INTERNAL = ("bench", "dev", "docs", "release", "test")
SMOKE = "@tests/smoke.txt"
SMOKE_NEEDS = ("hypothesis", "pytest")
# what old dependencies use of new ones is not ours
LENIENT = ("-W", "ignore::DeprecationWarning")
FAULTS = "FAIL", "NO", "above"  # in a row: a program, dependencies, space
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run(
    *command: str | Path, cwd: Path = ROOT, check: bool = True
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if check and result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}")
    return result


def tool(
    name: str, *arguments: str | Path, cwd: Path = ROOT, check: bool = True
) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", name, *arguments, cwd=cwd, check=check)


def say(text: str = "") -> None:
    print(text, flush=True)


def megabytes(files: Sequence[Path]) -> float:
    return sum(file.stat().st_size for file in files) / 1e6


def build(out: Path) -> Path:
    """The wheel, built from the source archive; what it holds and what twine says are printed."""
    tool("build", "--outdir", out)
    wheel, sdist = (max(out.glob(kind), key=os.path.getmtime) for kind in ("*.whl", "*.tar.gz"))
    say(
        f"Built {sdist.name} ({megabytes([sdist]):.2f} MB), and {wheel.name} ({megabytes([wheel]):.2f} MB) from it.\n"
    )
    report = COLOUR.sub("", tool("twine", "check", "--strict", wheel, sdist).stdout)
    outcome = " ".join(line.replace(f"{out}/", "") for line in report.split())
    say(f"`twine check --strict`: {outcome}\n")
    return wheel


def check_contents(wheel: Path) -> str:
    """Hold the wheel against the sources; the text of its page of an index is returned."""
    tracked = run("git", "ls-files", "src/leaveout").stdout.split()
    expected = {name.removeprefix("src/") for name in tracked}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        described = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(described))
    for stray in sorted(names ^ expected):
        say(f"- {stray}: in {'the wheel' if stray in names else 'src'} alone")
    if names != expected:
        sys.exit("The wheel holds other files than src.")
    kinds = sorted({Path(name).suffix or Path(name).name for name in names})
    say(
        f"The wheel holds the {len(names)} files of `src/leaveout` ({', '.join(kinds)}), no others.\n"
    )
    page = str(metadata.get_payload())
    for link in re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', page):
        if not "".join(link).startswith(("https://", "#")):
            sys.exit(f"README links to {''.join(link)}, which an index's page does not have.")
    return page


def check_final(page: str) -> None:
    """Refuse placeholders, and a version that is not the tag of the commit."""
    tags = run("git", "tag", "--points-at", "HEAD").stdout.split()
    if PLACEHOLDER in page or any(PLACEHOLDER in url for url in PROJECT["urls"].values()):
        sys.exit(f"{PLACEHOLDER} stands for the project's address in pyproject.toml: replace it.")
    if f"v{PROJECT['version']}" not in tags:
        sys.exit(f"version {PROJECT['version']} of pyproject.toml; tags of this commit: {tags}.")


def environment(place: Path, python: str, resolution: str, *arguments: str | Path) -> Path | None:
    """Create a clean environment, and return its interpreter; None if there is no such Python.

    Dependencies are named in the call, as `lowest-direct` applies to those only. Nothing is
    compiled, so the oldest version is the oldest that has a wheel for this Python.
    """
    options = ["--quiet", "--clear", "--python", python, "--no-python-downloads"]
    if tool("uv", "venv", *options, place, check=False).returncode:
        return None
    interpreter = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    install(interpreter, "--resolution", resolution, *arguments)
    return interpreter


def install(interpreter: Path, *arguments: str | Path) -> None:
    options = ["--quiet", "--only-binary", ":all:", "--python", interpreter]
    tool("uv", "pip", "install", *options, *arguments)


def installed(interpreter: Path) -> dict[str, str]:
    lines = tool("uv", "pip", "freeze", "--python", interpreter).stdout.splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line)


def size(place: Path) -> float:
    """MB of the packages of an environment."""
    packages = next(place.rglob("site-packages"))
    return megabytes(
        [file for file in packages.rglob("*") if file.is_file() and not file.is_symlink()]
    )


def example() -> str:
    """The first lines of code of the README."""
    block = re.search(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert block
    return block[1]


def outcome_of(result: subprocess.CompletedProcess[str], word: str) -> str:
    """The word, if the program ended well, else the last line of what it printed."""
    if result.returncode == 0:
        return word
    return f"{FAULTS[0]}: " + (result.stdout.strip().splitlines() or ["nothing printed"])[-1]


def try_wheel(out: Path, wheel: Path, pythons: Sequence[str]) -> bool:
    """Print a row for each Python and newest and oldest dependencies, and say if all are well."""
    well = True
    say(
        "| Python | dependencies | installed | packages | MB | agree | README's lines | seconds | smoke tests |"
    )
    say("|---|---|---|---|---|---|---|---|---|")
    for python in pythons:
        for resolution in ("highest", "lowest-direct"):
            label = Path(python).parts[-3] if "/" in python else python
            place = out / f"env-{label}-{resolution}"
            interpreter = environment(place, python, resolution, "-r", "pyproject.toml", wheel)
            if interpreter is None:
                say(f"| {python} | – | no such interpreter here | | | | | | |")
                break
            row = try_environment(place, interpreter, resolution)
            well &= not any(word in row for word in FAULTS)
            say(f"| {row} |")
    say()
    return well


def try_environment(place: Path, interpreter: Path, resolution: str) -> str:
    """The cells of a row: README's lines and the smoke tests, from the wheel in the environment."""
    version = run(interpreter, "-c", "import platform; print(platform.python_version())").stdout
    packages = installed(interpreter)
    space = size(place)
    mb = f"{space:.0f}"
    if resolution == "highest" and round(space) > MAX_MB:
        mb += f" {FAULTS[2]} {MAX_MB}"
    agree = tool("uv", "pip", "check", "--python", interpreter, check=False).returncode == 0
    start = time.perf_counter()
    strict = ["-W", "error::DeprecationWarning:leaveout"]
    lines = run(interpreter, *strict, "-c", example(), cwd=place, check=False)
    seconds = time.perf_counter() - start
    if lines.returncode == 0:
        assert "held-out loss" in lines.stdout
    install(interpreter, *SMOKE_NEEDS)
    tests = run(interpreter, "-m", "pytest", *LENIENT, "-v", SMOKE, check=False)
    (place / "smoke.log").write_text(tests.stdout, encoding="utf-8")
    last = tests.stdout.strip().splitlines()[-1].strip("= ")
    cells = [
        version.strip(),
        "newest" if resolution == "highest" else "oldest",
        ", ".join(f"{name} {packages[name]}" for name in SHOWN),
        str(len(packages)),
        mb,
        "yes" if agree else FAULTS[1],
        outcome_of(lines, "run"),
        f"{seconds:.1f}",
        outcome_of(tests, last.partition(",")[0]),
    ]
    return " | ".join(cells)


def licences(out: Path, wheel: Path, python: str, page: Path) -> None:
    """Write the licences of what `pip install leaveout` brings, and of what its extras name."""
    required = environment(out / "env-licences", python, "highest", wheel)
    extras = {
        re.match(r"[\w.-]+", line)[0]
        for extra, lines in PROJECT["optional-dependencies"].items()
        if extra not in INTERNAL
        for line in lines
    } - {"leaveout"}
    optional = environment(out / "env-extras", python, "highest", "--no-deps", *sorted(extras))
    assert required and optional
    tables = [licence_table(interpreter) for interpreter in (required, optional)]
    page.write_text(
        "# Licences\n\nleaveout itself is under the Apache License 2.0. These are the licences of what it "
        "installs, as the packages name them;\n`python tools/release.py --licences docs/licences.md` wrote "
        "the page.\n\n## What `pip install leaveout` brings\n\n"
        f"{tables[0]}\n## What the extras name\n\nEach comes only with the extra that names it. What it "
        "brings in turn is not listed. Where the licence is a form of the GPL, as of\nscikit-survival, whoever "
        f"passes the package on has duties that leaveout's own licence does not bring.\n\n{tables[1]}",
        encoding="utf-8",
    )
    say(f"Wrote {page}.\n")


def licence_table(interpreter: Path) -> str:
    """Packages of an environment with the first lines of their licences."""
    options = ["--format=json", "--from=mixed", "--order=name", "--ignore-packages", "leaveout"]
    packages = json.loads(
        tool("piplicenses", "--python", interpreter, *options).stdout,
    )
    lines = ["| package | version | licence |", "|---|---|---|"]
    for package in packages:
        licence = package["License"].splitlines()[0]
        lines.append(f"| {package['Name']} | {package['Version']} | {licence} |")
    return "\n".join(lines) + "\n"


def run_tests(out: Path, wheel: Path, python: str, tests: Sequence[str]) -> None:
    """Run tests with the oldest dependencies of the extra `test`."""
    place = out / "env-tests"
    extra = ["-r", "pyproject.toml", "--extra", "test"]
    interpreter = environment(place, python, "lowest-direct", *extra, wheel)
    if interpreter is None:
        say(f"No {python} here to test with.\n")
        return
    start = time.perf_counter()
    options = ["-p", "no:cacheprovider", *LENIENT, "-m", "not slow"]
    result = run(interpreter, "-m", "pytest", *options, *tests, check=False)
    (out / "tests.log").write_text(result.stdout, encoding="utf-8")
    last = [line for line in result.stdout.splitlines() if line.strip()][-1].strip("= ")
    say(
        f'Oldest dependencies, `pytest -m "not slow" {" ".join(tests)}`: {last}; {time.perf_counter() - start:.0f} s in all.\n'
    )
    for line in result.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            say(f"- {line}")
    say()


def check_types(out: Path, wheel: Path) -> None:
    interpreter = environment(out / "env-types", sys.executable, "highest", wheel)
    assert interpreter is not None
    os.environ |= {
        "VIRTUAL_ENV": str(interpreter.parents[1]),
        "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
    }
    report = tool(
        "pyright", "--verifytypes", "leaveout", "--ignoreexternal", cwd=out, check=False
    ).stdout
    (out / "types.log").write_text(report, encoding="utf-8")
    summary = report[max(report.find("Symbols exported"), 0) :].strip()
    say(f"`pyright --verifytypes leaveout --ignoreexternal`:\n\n```\n{summary}\n```")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--licences", type=Path)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.wheel:
        sys.exit(not try_wheel(out, options.wheel.resolve(), options.python))
    wheel = build(out)
    page = check_contents(wheel)
    if options.final:
        check_final(page)
    if options.licences:
        licences(out, wheel, options.python[0], options.licences)
        return
    well = try_wheel(out, wheel, options.python)
    if options.tests:
        run_tests(out, wheel, options.python[0], options.tests)
    check_types(out, wheel)
    sys.exit(not well)


if __name__ == "__main__":
    main()
