"""The pages of docs/reproductions, from what experiments have kept and printed; nothing is computed
anew.

    python experiments/reproductions.py        (or `make reproductions`)
        # lists the programs with their times, and makes the pages

`pages/*.md` are the texts, with calls of the functions below in {{ }}. A kept table is
docs/reproductions/results/NAME.json, written by an experiment's `--save`; a printed one is a block
of benchmarks/results/*.md. Every table is followed by the command that made it, the date, and the
seconds that it took, where they were kept.
"""

import re
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from b3_settings import synthetic
from saved import PAGES, RESULTS, kept, palette, small

ROOT = Path(__file__).resolve().parents[1]
TEXTS = Path(__file__).with_name("pages")
SHORT = {
    "InfinitesimalJackknife": "IJ",
    "NoUpdate": "no update",
    "NewtonStep": "Newton step",
    "nan": "",
}


def made(name: str) -> str:
    record = kept(name)
    words = f"*`{record['command']}`, {record['date']}, {record['seconds']} s"
    if "commit" in record:
        words += f" ({record['processor seconds']} s of processors), commit {record['commit']}"
    return f"{words}.*"


def told(name: str, *keys: str) -> Any:
    value = kept(name)["told"]
    for key in keys:
        value = value[key]
    return value


def cell(value: Any, form: str) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        whole = float(value).is_integer() and (isinstance(value, int) or abs(value) < 1e4)
        return f"{value:,.0f}" if whole else format(value, form)
    return SHORT.get(str(value), str(value)).replace("|", "\\|")


def markdown(frame: pd.DataFrame, form: str = ".3g", forms: dict[str, str] | None = None) -> str:
    own = forms or {}
    lines = [
        " | ".join(cell(str(c), "") for c in frame.columns),
        "|".join(["---"] * len(frame.columns)),
    ]
    lines += [
        " | ".join(cell(row[c], own.get(c, form)) for c in frame.columns)
        for row in frame.to_dict("records")
    ]
    return "\n".join(f"| {line} |" for line in lines)


def table(
    name: str,
    columns: list[str] | dict[str, str] | None = None,
    where: dict[str, Any] | None = None,
    form: str = ".3g",
    forms: dict[str, str] | None = None,
    part: str | None = None,
) -> str:
    """A kept table, some of its columns (under other names) and rows.

    `part` is one of those told beside it.
    """
    frame = pd.DataFrame(kept(name)["rows"] if part is None else told(name, part))
    for column, values in (where or {}).items():
        frame = frame[frame[column].isin(values if isinstance(values, list) else [values])]
    if columns is not None:
        names = columns if isinstance(columns, dict) else {column: column for column in columns}
        frame = frame[[column for column in names if column in frame]].rename(columns=names)
    return (
        f"{markdown(frame.astype(object).where(frame.notna(), None), form, forms)}\n\n{made(name)}"
    )


def exists(name: str) -> bool:
    """Whether an experiment has kept this table."""
    return (RESULTS / f"{name}.json").exists()


def field(name: str, column: str, **where: Any) -> Any:
    """One number of a kept table, of the first row with these values."""
    rows = kept(name)["rows"]
    return next(
        row[column] for row in rows if all(row[key] == value for key, value in where.items())
    )


def errors(name: str) -> str:
    """Table 1: mean relative errors of the losses of points and of folds, ± two standard deviations
    over folds.
    """
    labels = {
        "InfinitesimalJackknife": "IJ",
        "NoUpdate": "no update",
        "NewtonStep": "Newton step",
        "Certified": "Certified",
    }
    rows = []
    for row in kept(name)["rows"]:
        shown = {key: row[key] for key in ("from", "folds") if key in row}
        shown |= {"left out": f"{row['left out']:.0%}", "IJ, the document": spread(row, "paper")}
        for level in ("points", "folds"):
            for strategy, label in labels.items():
                shown[f"{level}: {label}"] = spread(row, f"{strategy}, {level}")
        rows.append(shown)
    return f"{markdown(pd.DataFrame(rows))}\n\n{made(name)}"


def spread(row: dict[str, Any], key: str) -> str:
    if row[key] is None:
        return ""
    return f"{row[key]:.2g} ± {row[f'{key}, ± 2 SD'] or 0:.1g}"


def documented(name: str) -> list[dict[str, Any]]:
    """The rows of a kept table to which the document prints a figure."""
    return [row for row in kept(name)["rows"] if row["paper"] is not None]


def span(name: str, column: str, over: str | None = None) -> str:
    """The least and the most of a column, or of its ratio to another, in the document's own
    cells.
    """
    rows = [row for row in documented(name) if None not in (row[column], row[over or column])]
    values = [row[column] / (row[over] if over else 1.0) for row in rows]
    return f"{min(values):.2g} to {max(values):.2g}"


def share(name: str, column: str, refit: str = "IJ", of: str = "NoUpdate", **where: str) -> str:
    """A strategy's error in that of another.

    The least and the most of the rows whose columns begin as told.
    """
    rows = [
        row
        for row in kept(name)["rows"]
        if all(str(row[key]).startswith(value) for key, value in where.items())
    ]
    one, other = ([row[column] for row in rows if row["refit"] == each] for each in (refit, of))
    shares = [100 * a / b for a, b in zip(one, other, strict=True)]
    return " to ".join(dict.fromkeys([f"{min(shares):.0f}", f"{max(shares):.0f}"])) + " %"


def orders(*names: str) -> str:
    """Figure 6: one row an order, from one or several runs over the same sequences."""
    rows, commands = [], []
    for name in names:
        frame = pd.DataFrame(kept(name)["rows"])
        commands.append(made(name))
        for model, of_model in frame.groupby("model", sort=False):
            by = of_model.set_index("refit")
            row = {"model": model, "D": int(by["D"].iloc[0])}
            for kind in ("NoUpdate", "IJ", "Certified", "refits"):
                if kind in by.index:
                    row[f"loss, {SHORT.get(kind, kind)}"] = loss_of(by.loc[kind])
            if "test loss a step" in by:
                tested = by.iloc[0]
                row["test set"] = with_error(tested["test loss a step"], tested.get("test SE"))
            for kind in ("NoUpdate", "IJ"):
                row[f"error, {SHORT.get(kind, kind)}"] = by["mean |error|"][kind]
            row |= {"fit, s": by["fit, s"].iloc[0], "IJ, s": by["seconds"]["IJ"]}
            rows.append(row | {"refits, s": by["seconds"]["refits"]})
    frame = pd.DataFrame(rows)
    frame = frame.astype(object).where(frame.notna(), None)
    table = markdown(frame, ".4g", {"error, no update": ".2g", "error, IJ": ".2g"})
    return "\n\n".join([table, *commands])


def loss_of(row: pd.Series) -> str:
    """A held-out loss with its jackknife standard error, and of how many folds if of a few."""
    text = with_error(row["loss a step"], row.get("SE"))
    if row.name == "refits":
        text += f" ({row['folds']} folds)"
    return text


def with_error(value: float, error: float | None) -> str:
    if error is None or error != error:
        return f"{value:.4g}"
    return f"{value:.4g} ± {error:.2g}"


def least(name: str, column: str, refit: str) -> str:
    """The model whose number in a column is the least of those of one way to refit."""
    rows = [row for row in kept(name)["rows"] if row["refit"] == refit and row[column] is not None]
    return min(rows, key=lambda row: row[column])["model"]


def fewer(name: str, column: str, than: str) -> int:
    """In how many rows a column is below another."""
    return sum(row[column] < row[than] for row in kept(name)["rows"] if row[than] is not None)


def gap(name: str, one: str, other: str) -> str:
    """The largest difference of two columns."""
    return f"{max(abs(row[one] - row[other]) for row in kept(name)['rows']):.1g}"


def block(file: str, start: str) -> list[str]:
    """The lines of a printed result from one that begins with `start` to the next blank one."""
    lines = (ROOT / "benchmarks" / file).read_text(encoding="utf-8").splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith(start))
    end = next(
        k
        for k in range(first + 1, len(lines))
        if not lines[k].strip() or lines[k].startswith("```")
    )
    return lines[first:end]


def printed(file: str, start: str, date: str, command: str) -> str:
    text = "\n".join(block(file, start)).replace(" so far", "")
    return f"```text\n{text}\n```\n\n*`{command}`, {date}; also in `benchmarks/{file}`.*"


def parsed(file: str, start: str) -> pd.DataFrame:
    """A printed table whose rows begin with a label, as numbers under its header."""
    _, header, *lines = block(file, start)
    names = header.split()
    rows = {}
    for line in lines:
        label, *numbers = re.split(r"\s{2,}|\s(?=-?\d+\.\d{4})", line.strip())
        rows[label] = [float(number) for number in numbers if number]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names)


def beside(ours: str, theirs: str, date: str) -> str:
    """Means and RMSE of one experiment's estimators from our draws, and from the losses that the
    document's authors saved.
    """
    file = "results/leakage.md"
    mine, saved = parsed(file, ours), parsed(file, theirs)
    names = {"LOCO (no correction)": "LOCO"} | {
        f"T{q}{m}, squared norms": f"T{q}{m}" for q in (2, 3, 4) for m in ("", " M")
    }
    saved = saved.rename(index=names)
    frame = pd.DataFrame(
        {"estimator": mine.index, "mean, theirs": saved["mean"].reindex(mine.index).to_numpy()}
    )
    frame["mean, ours"] = mine["mean"].to_numpy()
    frame["RMSE, theirs"] = saved["RMSE"].reindex(mine.index).to_numpy()
    frame["RMSE, ours"] = mine["RMSE"].to_numpy()
    shown = frame.astype(object).where(frame.notna(), None)
    command = "LEAVEOUT_DATA=… python experiments/b3_document.py --replicates 2"
    return f"{markdown(shown, '.4g')}\n\n*`{command}`, {date}; `benchmarks/{file}`.*"


def curves(name: str, date: str, *others: str) -> str:
    """The loss by leaked records, theirs and ours, and under other readings."""
    lines = block("results/leakage.md", name)
    rows = []
    shown = {"the authors' saved": "the authors' saved losses", "as the authors' programs": "ours"}
    for label in (*shown, *others):
        line = next(line for line in lines if line.startswith(label))
        rows.append(
            [
                shown.get(label, f"ours, {label}"),
                *(float(part) for part in line[len(label) :].split()[:5]),
            ]
        )
    frame = pd.DataFrame(rows, columns=["", "e₀", "e₁", "e₁₀", "e₅₀", "e₁₀₀"])
    command = "LEAVEOUT_DATA=… python experiments/b3_readings.py --draws 1000"
    return f"{markdown(frame, '.4f')}\n\n*`{command}`, {date}; `benchmarks/results/leakage.md`.*"


def times() -> pd.DataFrame:
    """Seconds of 1,000 folds of a tenth, and the document's hours."""
    frame = pd.DataFrame(kept("dodgers_table2")["rows"])
    return frame.assign(hours=frame["the document, hours"])


def table2() -> str:
    """Table 2 of the whole series, one ratio a row."""
    frame = times()
    whole = frame[frame["T"] == frame["T"].max()]
    rows = []
    for row in whole.astype(object).where(whole.notna(), None).to_dict("records"):
        shown = {"folds": row["folds"], "refit": row["refit"], "folds run": row["folds run"]}
        shown |= {"seconds": row["seconds"], "seconds of processors": row["processor"]}
        shown |= {"times Exact": row["times Exact"], "the document": hours(row["hours"])}
        shown |= {"off the optimum": row["off the optimum"], "at most": row["largest"]}
        rows.append(shown | {"diverged": row.get("diverged")})
    return f"{markdown(pd.DataFrame(rows))}\n\n{made('dodgers_table2')}"


def hours(value: float | None) -> str:
    if value is None:
        return ""
    if value < 1:
        return f"{value * 60:.1f} min"
    return f"{value:.1f} h"


def table2_panels() -> str:
    frame, forms = times(), {"InfinitesimalJackknife": "C3", "NewtonStep": "C1", "Exact": "C2"}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for ax, scheme in zip(axes, ("i.i.d.", "contiguous"), strict=True):
        for refit, colour in forms.items():
            own = frame[(frame["folds"] == scheme) & (frame["refit"] == refit)]
            label = SHORT.get(refit, "exact")
            ax.plot(own["T"], own["seconds"], f"{colour}o-", label=label)
            ax.plot(
                own["T"],
                own["hours"] * 3600,
                f"{colour}o:",
                mfc="none",
                label=f"{label}, the document",
            )
        ax.set(
            xscale="log",
            yscale="log",
            title=f"{scheme}, 10 %",
            xlabel="T",
            xticks=[5000, 10000, 50400],
        )
        ax.set_xticklabels(["5,000", "10,000", "50,400"])
        ax.minorticks_off()
    axes[0].set_ylabel("seconds for 1,000 folds")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    palette(figure, "dodgers_times")
    plt.close(figure)
    return "dodgers_times.png"


def two_parts() -> str:
    """Figure 2 of the block bootstrap: a subsample of Experiment I's data."""
    setting, rng = synthetic(0), np.random.default_rng(0)
    figure, ax = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    for name, rows, colour in (
        ("training part, slope 1", setting.train, "C0"),
        ("testing part, slope 2", setting.test, "C3"),
    ):
        some = rng.choice(rows, 150, replace=False)
        ax.plot(setting.learner.X[some, 0], setting.y[some], ".", color=colour, label=name)
    ax.set(xlabel="x", ylabel="y")
    ax.legend(frameon=False)
    palette(figure, "leakage_data")
    plt.close(figure)
    return "leakage_data.png"


def copied(name: str) -> str:
    """A picture of benchmarks/results."""
    small(ROOT / "benchmarks" / "results" / f"{name}.png", name)
    return f"{name}.png"


def estimators(name: str) -> str:
    """Means and RMSE of one experiment's estimators from our draws, and from the losses that the
    document's authors saved.
    """
    ours, theirs = (
        pd.DataFrame(kept(f"b3_{name}{side}")["rows"]).set_index("estimator")
        for side in ("", "_theirs")
    )
    names = {"LOCO (no correction)": "LOCO"} | {
        f"T{q}{m}, squared norms": f"T{q}{m}" for q in (2, 3, 4) for m in ("", " M")
    }
    theirs = theirs.rename(index=names).reindex(ours.index)
    columns = {
        f"{column}, {side}": frame[column]
        for column in ("mean", "RMSE")
        for side, frame in (("theirs", theirs), ("ours", ours))
    }
    frame = pd.DataFrame(columns).reset_index()
    shown = frame.astype(object).where(frame.notna(), None)
    return f"{markdown(shown, '.4g')}\n\n{made(f'b3_{name}')}"


def readings(name: str, *others: str) -> str:
    """The loss by leaked records, theirs and ours, and under other readings."""
    frame = pd.DataFrame(kept(f"b3_readings_{name}")["rows"]).set_index("reading")
    labels = {
        "the authors' saved": "the authors' saved losses",
        "as the authors' programs": "ours",
    }
    labels |= {label: f"ours, {label}" for label in others}
    points = {"e0": "e₀", "e1": "e₁", "e10": "e₁₀", "e50": "e₅₀", "e100": "e₁₀₀"}
    shown = frame.loc[list(labels), list(points)].rename(index=labels, columns=points)
    return f"{markdown(shown.reset_index(names=''), '.4f')}\n\n{made(f'b3_readings_{name}')}"


def programs() -> str:
    """The commands that made the kept results, when, and how long they took."""
    longest: dict[str, dict[str, Any]] = {}
    for file in sorted(RESULTS.glob("*.json")):
        record = kept(file.stem)
        if record["seconds"] >= longest.get(record["command"], {"seconds": -1})["seconds"]:
            longest[record["command"]] = record
    rows = [
        f"{record['seconds']:>7,} s  {record['date']}  {record.get('commit', ''):<8}  {command} --save"
        for command, record in sorted(longest.items())
    ]
    return "\n".join(["seconds, date and commit of the last run, and its command:", *rows])


def main() -> None:
    print(programs())
    loader = jinja2.FileSystemLoader(TEXTS)
    pages = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    own = (
        table,
        errors,
        printed,
        beside,
        estimators,
        readings,
        curves,
        table2,
        table2_panels,
        two_parts,
        copied,
        made,
        told,
        kept,
        exists,
        span,
        share,
        fewer,
        orders,
        gap,
        field,
        least,
        documented,
    )
    pages.globals |= {function.__name__: function for function in own}
    for text in sorted(TEXTS.glob("*.md")):
        (PAGES / text.name).write_text(pages.get_template(text.name).render(), encoding="utf-8")
        print(PAGES / text.name)


if __name__ == "__main__":
    main()
