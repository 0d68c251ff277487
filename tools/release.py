"""Is it ready to be released? Built, checked, installed into clean environments with the oldest and
the newest dependencies.

    python tools/release.py [--python 3.11 3.12 3.13] [--tests tests/test_plan.py …]
        [--out out/release]

For every interpreter (a version, or a path where `uv` would not find it) and for the newest and the
lowest direct versions of all dependencies that pyproject.toml allows: the wheel is installed, its
dependencies agree, and the first lines of the README run. `--tests` are run with the oldest
dependencies of the extra `test`, under the first interpreter. The public names' types are looked at
by pyright. What is printed is Markdown. It needs `pip install "leaveout[release]"`.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = (
    "jax",
    "jaxlib",
    "equinox",
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "narwhals",
    "joblib",
    "rich",
    "typer",
)


def run(
    *command: str | Path, cwd: Path = ROOT, check: bool = True
) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if check and found.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{found.stdout}")
    return found


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def tool(
    name: str, *arguments: str | Path, cwd: Path = ROOT, check: bool = True
) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", name, *arguments, cwd=cwd, check=check)


def say(text: str = "") -> None:
    print(text, flush=True)


def built(out: Path) -> Path:
    """The wheel; what was built and what twine says of it are printed."""
    tool("build", "--outdir", out)
    wheel, sdist = (max(out.glob(kind), key=os.path.getmtime) for kind in ("*.whl", "*.tar.gz"))
    say(
        f"Built {wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB) and {sdist.name} ({sdist.stat().st_size / 1e6:.2f} MB).\n"
    )
    said = COLOUR.sub("", tool("twine", "check", "--strict", wheel, sdist).stdout)
    outcome = " ".join(line.replace(f"{out}/", "") for line in said.split())
    say(f"`twine check --strict`: {outcome}\n")
    return wheel


def environment(place: Path, python: str, resolution: str, wheel: Path, *more: str) -> Path | None:
    """Create a clean environment with the wheel in it, and return its interpreter; None if there is
    no such Python.

    Dependencies are named in the call, as `lowest-direct` applies to those only. Nothing is
    compiled, so the oldest version is the oldest that has a wheel for this Python.
    """
    if tool(
        "uv",
        "venv",
        "--quiet",
        "--clear",
        "--python",
        python,
        "--no-python-downloads",
        place,
        check=False,
    ).returncode:
        return None
    own = place / "bin" / "python"
    direct = ["--only-binary", ":all:", "--resolution", resolution, "-r", "pyproject.toml", *more]
    tool("uv", "pip", "install", "--quiet", "--python", own, *direct, wheel)
    return own


def installed(own: Path) -> dict[str, str]:
    lines = tool("uv", "pip", "freeze", "--python", own).stdout.splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line)


def size(place: Path) -> float:
    return (
        sum(
            file.stat().st_size
            for file in place.rglob("*")
            if file.is_file() and not file.is_symlink()
        )
        / 1e6
    )


def example() -> str:
    """The first lines of code of the README."""
    found = re.search(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert found
    return found[1]


def try_out(out: Path, wheel: Path, pythons: Sequence[str]) -> None:
    say("| Python | dependencies | installed | packages | MB | agree | README's lines | seconds |")
    say("|---|---|---|---|---|---|---|---|")
    for python in pythons:
        for resolution in ("highest", "lowest-direct"):
            place = out / f"env-{Path(python).parts[-3] if '/' in python else python}-{resolution}"
            own = environment(place, python, resolution, wheel)
            if own is None:
                say(f"| {python} | – | no such interpreter here | | | | | |")
                break
            version = run(
                own, "-c", "import platform; print(platform.python_version())"
            ).stdout.strip()
            have = installed(own)
            agree = tool("uv", "pip", "check", "--python", own, check=False).returncode == 0
            start = time.perf_counter()
            tried = run(
                own,
                "-W",
                "error::DeprecationWarning:leaveout",
                "-c",
                example(),
                cwd=place,
                check=False,
            )
            spent, good = (
                time.perf_counter() - start,
                tried.returncode == 0 and "held-out loss" in tried.stdout,
            )
            versions = ", ".join(f"{name} {have[name]}" for name in SHOWN if name in have)
            outcome = (
                "run"
                if good
                else "FAIL: " + (tried.stdout.strip().splitlines() or ["nothing printed"])[-1]
            )
            packages = place / "lib" / f"python{'.'.join(version.split('.')[:2])}" / "site-packages"
            say(
                f"| {version} | {'newest' if resolution == 'highest' else 'oldest'} | {versions} | {len(have)} "
                f"| {size(packages):.0f} | {'yes' if agree else 'NO'} | {outcome} | {spent:.1f} |"
            )
    own_size = size(packages / "leaveout")
    say(
        f"\n`pip install leaveout` adds {own_size:.1f} MB of its own (bytecode included); the rest is dependencies.\n"
    )


def tested(out: Path, wheel: Path, python: str, tests: Sequence[str]) -> None:
    own = environment(out / "env-tests", python, "lowest-direct", wheel, "--extra", "test")
    if own is None:
        say(f"No {python} here to test with.\n")
        return
    start = time.perf_counter()
    # what old dependencies use of new ones is not ours
    lenient = ["-W", "ignore::DeprecationWarning"]
    found = run(
        own,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        *lenient,
        "-m",
        "not slow",
        *tests,
        check=False,
    )
    (out / "tests.log").write_text(found.stdout, encoding="utf-8")
    last = [line for line in found.stdout.splitlines() if line.strip()][-1].strip("= ")
    say(
        f'Oldest dependencies, `pytest -m "not slow" {" ".join(tests)}`: {last}; {time.perf_counter() - start:.0f} s in all.\n'
    )
    for line in found.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            say(f"- {line}")
    say()


def typed(out: Path, wheel: Path) -> None:
    own = environment(out / "env-types", sys.executable, "highest", wheel)
    assert own is not None
    os.environ |= {
        "VIRTUAL_ENV": str(own.parents[1]),
        "PATH": f"{own.parent}{os.pathsep}{os.environ['PATH']}",
    }
    found = tool(
        "pyright", "--verifytypes", "leaveout", "--ignoreexternal", cwd=out, check=False
    ).stdout
    (out / "types.log").write_text(found, encoding="utf-8")
    summary = (
        found[found.find("Symbols exported") :].strip()
        if "Symbols exported" in found
        else found.strip()
    )
    say(f"`pyright --verifytypes leaveout --ignoreexternal`:\n\n```\n{summary}\n```")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    wheel = built(out)
    try_out(out, wheel, given.python)
    if given.tests:
        tested(out, wheel, given.python[0], given.tests)
    typed(out, wheel)


if __name__ == "__main__":
    main()
