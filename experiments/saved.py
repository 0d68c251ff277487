"""What an experiment prints, kept for the pages of docs/reproductions: tables as JSON, pictures as
small PNG.

With `--save` among an experiment's arguments, each table goes to docs/reproductions/results with
the command, the date, the commit, and the seconds that it took by the clock and of processors, and
each picture to docs/reproductions. `reproductions.py` makes the pages of them. With `--quick`
besides, tables and pictures go to out/quick.

What `part` returns is kept in out/parts, with `--save`. If the program is started again at the same
commit, or at one with the same library and experiments, it is read back; `--afresh` computes
it again.
"""

import argparse
import functools
import io
import json
import pickle
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
QUICK = "--quick" in sys.argv
PAGES = ROOT / "out" / "quick" if QUICK else ROOT / "docs" / "reproductions"
RESULTS = PAGES / "results"
PARTS = ROOT / "out" / "parts"
CODE = ("src", ":(glob)experiments/*.py")
BEGUN = time.time()


class Cost(NamedTuple):
    """Seconds by the clock, and of the processors of this process and its children."""

    seconds: float
    processor: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds - other.seconds, self.processor - other.processor)


class Part(NamedTuple):
    """What a part of an experiment computed, where, and at what cost."""

    value: Any
    commit: str
    cost: Cost


COSTS: dict[str, list[Cost]] = {}  # of the parts of each table


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--save", action="store_true", help="keep tables and pictures for docs/reproductions"
    )
    parser.add_argument(
        "--afresh", action="store_true", help="compute again what an earlier run has kept"
    )


def wanted() -> bool:
    return "--save" in sys.argv


def command() -> str:
    """As it was called, but for where pictures go."""
    program = Path(sys.argv[0])
    after_out = [False, *(argument == "--out" for argument in sys.argv[1:])]
    arguments = [
        argument
        for argument, folder in zip(sys.argv[1:], after_out, strict=False)
        if argument not in ("--save", "--out", "--afresh") and not folder
    ]
    return shlex.join(
        ["python", f"{program.parent.name or 'experiments'}/{program.name}", *arguments]
    )


def clock() -> Cost:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Cost(time.time(), sum(usage.ru_utime + usage.ru_stime for usage in usages))


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@functools.cache
def commit() -> str:
    """The commit, and whether the library or the experiments differ from it."""
    short = git("rev-parse", "--short=8", "HEAD").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", *CODE).returncode
    return f"{short} and changes" if changed else short


@functools.cache
def is_current(commit: str) -> bool:
    """Whether the library and the experiments are those of a commit."""
    return git("diff", "--quiet", commit, "--", *CODE).returncode == 0


def part(name: str, key: str, compute: Callable[[], Any]) -> Any:
    """What `compute` returns, or returned before; its cost is counted to the table `name`."""
    label = re.sub(r"[^\w.()-]+", "_", f"{key}_quick" if QUICK else key)
    file = PARTS / name / f"{label}.pickle"
    if wanted() and "--afresh" not in sys.argv and file.exists():
        part = pickle.loads(file.read_bytes())
        if is_current(part.commit):
            print(f"{name}, {key}: read back, computed in {part.cost.seconds:.0f} s", flush=True)
            COSTS.setdefault(name, []).append(part.cost)
            return part.value
    start = clock()
    value = compute()
    part = Part(value, commit(), clock() - start)
    COSTS.setdefault(name, []).append(part.cost)
    if wanted():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_bytes(pickle.dumps(part))
        unfinished.replace(file)
    return value


def cost(name: str) -> Cost:
    """That of a table's parts, or of the program up to now."""
    if name in COSTS:
        return Cost(*(sum(amounts) for amounts in zip(*COSTS[name], strict=True)))
    return clock() - Cost(BEGUN, 0.0)


def save(name: str, rows: list[dict[str, Any]] | pd.DataFrame, **told: Any) -> None:
    """One table, and whatever else is to be told with it."""
    if not wanted():
        return
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    record: dict[str, Any] = {
        "command": command(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "seconds": round(cost(name).seconds),
        "processor seconds": round(cost(name).processor),
    }
    record |= {
        "told": plain(told),
        "rows": [
            {key: plain(value) for key, value in row.items()} for row in table.to_dict("records")
        ],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def kept(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """As JSON knows it, to six digits; what is not a number is null."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def picture(figure: Any, name: str, dpi: int = 90, colours: int = 48) -> None:
    """The figure, if it is to be kept."""
    if wanted():
        palette(figure, name, dpi, colours)


def palette(figure: Any, name: str, dpi: int = 90, colours: int = 48) -> None:
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    small(drawn, name, colours)


def small(drawn: io.BytesIO | Path, name: str, colours: int = 48) -> None:
    """A picture in few colours: below 100 kB."""
    from PIL import Image

    PAGES.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(colours).save(PAGES / f"{name}.png", optimize=True)
