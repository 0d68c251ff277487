"""What an experiment prints, kept for the pages of docs/reproductions: tables as JSON, pictures as
small PNG.

With `--save` among an experiment's arguments, each table goes to docs/reproductions/results with
the command, the date and the seconds since the program began, and each picture to
docs/reproductions. `reproductions.py` makes the pages of them.
"""

import argparse
import io
import json
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reproductions"
RESULTS = PAGES / "results"
BEGUN = time.time()


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--save", action="store_true", help="keep tables and pictures for docs/reproductions"
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
        if argument not in ("--save", "--out") and not folder
    ]
    return shlex.join(
        ["python", f"{program.parent.name or 'experiments'}/{program.name}", *arguments]
    )


def save(name: str, rows: list[dict[str, Any]] | pd.DataFrame, **told: Any) -> None:
    """One table, and whatever else is to be told with it."""
    if not wanted():
        return
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    record = {
        "command": command(),
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(time.time() - BEGUN),
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
