"""Odd files and tables.

Labels that look like numbers, two conventions in one file, categories, missing rows.
"""

import csv
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import repository  # noqa: F401  puts the tests in reach
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GroupKFold, LeaveOneOut, cross_val_predict, cross_validate
from tests.problems.tally import Tally, holds, told, value

import leaveout as lo

Array = np.ndarray
Generator = np.random.Generator


def command(*words: Any) -> Any:
    from typer.testing import CliRunner

    from leaveout.extensions.cli import app

    return CliRunner().invoke(app, list(map(str, words)))


def tabled(
    rows: dict[str, list[str]], *words: Any, delimiter: str = ",", name: str = ""
) -> tuple[pd.DataFrame | None, str]:
    """What a command writes about the rows of a file, None where it fails.

    And what it prints. Cells are text as given.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "rows.csv", Path(folder) / "losses.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(rows)
            writer.writerows(zip(*rows.values(), strict=True))
        result = command("glm", path, *words, "--refit", "exact", "--out", out)
        if result.exit_code and not isinstance(result.exception, SystemExit | type(None)):
            raise result.exception
        table = pd.read_csv(out) if result.exit_code == 0 else None
        return table, result.output


def number(v: float) -> str:
    return repr(float(v))


LABELS = (  # not "NA", which most files mean as a missing value
    ["1", "01", "001", "0001"],
    ["1e2", "100", "10e1", "1E2"],
    ["12345678901234567", "12345678901234568", "12345678901234569", "12345678901234570"],
    ["7", "7.0", "7.00", "+7"],
    ["True", "TRUE", "true", "1"],
    ["0x10", "16", "1_6", "016"],
    ["a", "A", "b", "B"],
)


def labels(rng: Generator, n: int) -> Array:
    """Four labels that are one, or missing, if they are read as numbers, or as a spreadsheet
    would.
    """
    return rng.permutation(np.resize(LABELS[int(rng.integers(len(LABELS)))], n))


def labels_as_groups(rng: Generator) -> Tally:
    site, x = labels(rng, 24), rng.standard_normal(24)
    y = x + (site == site[0]) + rng.standard_normal(24)
    rows = {"site": list(site), "x": list(map(number, x)), "y": list(map(number, y))}
    table, output = tabled(rows, "--target", "y", "--features", "x", "--plan", "groups:site")
    if table is None:
        return (
            holds("groups", False, output)
            if "rror" in output
            else Tally(1, refused=1, notes=[f"refused groups {set(site)}: {output[-200:]}"])
        )
    residual = y - cross_val_predict(
        LinearRegression(), x[:, None], y, groups=site, cv=GroupKFold(4)
    )
    return value(
        f"losses by {sorted(set(site))}",
        table.set_index("row").loc[np.arange(1, 25), "loss"],
        residual**2 / 2,
        1e-8,
    )


def labels_as_categories(rng: Generator) -> Tally:
    site, x = labels(rng, 24), rng.standard_normal(24)
    y = x + (site == site[0]) + rng.standard_normal(24)
    rows = {"site": list(site), "x": list(map(number, x)), "y": list(map(number, y))}
    table, output = tabled(rows, "--target", "y", "--features", "x,site", "--categorical", "site")
    if table is None:
        return Tally(1, refused=1, notes=[f"refused categories {set(site)}: {output[-200:]}"])
    X = np.c_[x, (site[:, None] == sorted(set(site))[1:]).astype(float)]
    residual = y - cross_val_predict(LinearRegression(), X, y, cv=LeaveOneOut())
    return value(
        f"losses by {sorted(set(site))}",
        table.set_index("row").loc[np.arange(1, 25), "loss"],
        residual**2 / 2,
        1e-6,
    )


def labels_as_classes(rng: Generator) -> Tally:
    kind, x = labels(rng, 24), rng.standard_normal(24)
    rows = {"kind": list(kind), "x": list(map(number, x))}
    table, output = tabled(
        rows, "--target", "kind", "--features", "x", "--loss", "multinomial", "--l2", "1"
    )
    if table is None:
        return Tally(1, refused=1, notes=[f"refused classes {set(kind)}: {output[-200:]}"])
    host = LogisticRegression(tol=1e-11, max_iter=10_000)
    p = cross_val_predict(host, x[:, None], kind, cv=LeaveOneOut(), method="predict_proba")
    truth = -np.log(p[np.arange(24), np.unique(kind, return_inverse=True)[1]])
    return value(
        f"losses by {sorted(set(kind))}",
        table.set_index("row").loc[np.arange(1, 25), "loss"],
        truth,
        1e-4,
    )


def ids_beside_a_gap(rng: Generator) -> Tally:
    """Identifiers of 17 digits, one of them missing, as float64 would merge them."""
    ids = np.array([str(12345678901234560 + int(k)) for k in np.resize(np.arange(6), 24)])
    x = rng.standard_normal(24)
    y = x + rng.standard_normal(24)
    cells = [*ids[:-1], ""]
    rows = {"patient": cells, "x": list(map(number, x)), "y": list(map(number, y))}
    table, output = tabled(
        rows, "--target", "y", "--features", "x", "--plan", "groups:patient", "--drop-missing"
    )
    if table is None:
        return Tally(1, refused=1, notes=[f"refused ids: {output[-200:]}"])
    used = np.arange(23)
    residual = y[used] - cross_val_predict(
        LinearRegression(), x[used, None], y[used], groups=ids[used], cv=GroupKFold(6)
    )
    return value("losses", table.set_index("row").loc[used + 1, "loss"], residual**2 / 2, 1e-8)


def thousands(rng: Generator) -> Tally:
    """Points that part thousands beside commas that part decimals.

    Read so, or refused by name, never a thousandth.
    """
    x, y = rng.random(16).round(3) + 0.0001, rng.integers(20_000, 90_000, 16)
    german = lambda v: f"{v:,}".translate(str.maketrans(",.", ".,"))
    consistent = rng.random() < 0.5  # some amounts of millions cannot be decimals
    if consistent:
        y = y * 100
    rows = {"x": [german(round(float(v), 4)) for v in x], "salary": [german(int(v)) for v in y]}
    table, output = tabled(rows, "--target", "salary", "--features", "x", delimiter=";")
    if table is None:
        named = any(word in output for word in ("--decimal", "thousands"))
        return holds("thousands", named, output)
    exact = np.array([float(cell.replace(",", ".")) for cell in rows["x"]])[:, None]
    residual = y - cross_val_predict(LinearRegression(), exact, y.astype(float), cv=LeaveOneOut())
    return value(
        "losses", table.set_index("row").loc[np.arange(1, 17), "loss"], residual**2 / 2, 1e-8
    )


def decimal_commas(rng: Generator) -> Tally:
    """A file of one convention, commas throughout, is read by it."""
    x, y = rng.standard_normal(16).round(4) + 0.00005, rng.standard_normal(16).round(4) + 0.00005
    comma = lambda v: [f"{float(each):.5f}".replace(".", ",") for each in v]
    rows = {"x": comma(x), "y": comma(y)}
    table, output = tabled(rows, "--target", "y", "--features", "x", delimiter=";")
    if table is None:
        return Tally(1, refused=1, notes=[f"refused commas: {output[-200:]}"])
    x, y = (np.array([float(cell.replace(",", ".")) for cell in rows[name]]) for name in ("x", "y"))
    residual = y - cross_val_predict(LinearRegression(), x[:, None], y, cv=LeaveOneOut())
    return value(
        "losses", table.set_index("row").loc[np.arange(1, 17), "loss"], residual**2 / 2, 1e-8
    )


def spaced_classes(rng: Generator) -> Tally:
    """ "yes" and "yes " are one answer: merged, refused, or said."""
    x = rng.standard_normal(24)
    cells = np.where(x + rng.standard_normal(24) > 0, "yes", "no").astype(object)
    cells[int(rng.integers(24))] = "yes "
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_text(
            "ill,x\n" + "\n".join(f"{cell},{number(v)}" for cell, v in zip(cells, x, strict=True))
        )
        result = command("report", path, Path(folder) / "page.html", "--target", "ill", "--l2", 1)
    return holds(
        "classes",
        "multinomial" not in result.output.lower() or "space" in result.output.lower(),
        result.output,
    )


# tables


def digits_as_categories(rng: Generator) -> Tally:
    """pd.Categorical([0, 1, 2]) is no number: coded by its levels, or refused."""
    codes, z = rng.integers(0, 3, 30), rng.standard_normal(30)
    y = np.array([0.0, 3.0, 1.0])[codes] + z + rng.standard_normal(30)
    level = codes if rng.random() < 0.5 else codes.astype(str)
    frame = pd.DataFrame({"kind": pd.Categorical(level), "z": z})
    try:
        fit = lo.fit(lo.GLM(frame, y, "squared"))
    except (TypeError, ValueError):
        return Tally(1)
    X = np.c_[np.eye(3)[codes][:, 1:], z]
    residual = y - cross_val_predict(LinearRegression(), X, y, cv=LeaveOneOut())
    return value("losses", lo.cross_validate(fit, lo.leave_one_out()).losses, residual**2 / 2, 1e-6)


def digits_of_a_host(rng: Generator) -> Tally:
    """What scikit-learn takes for numbers, digits as text or categories, by its own call.

    Its scores, or a refusal by name.
    """
    codes, z = rng.integers(0, 3, 30), rng.standard_normal(30)
    y = codes + z + rng.standard_normal(30)
    kind = codes.astype(str).astype(object) if rng.random() < 0.5 else pd.Categorical(codes)
    frame = pd.DataFrame({"kind": kind, "z": z})
    call = {"cv": 5, "scoring": "neg_mean_squared_error"}
    truth = cross_validate(LinearRegression(), frame, y, **call)["test_score"]
    try:
        ours, said = told(lambda: lo.sklearn.cross_validate(LinearRegression(), frame, y, **call))
    except TypeError as refused:
        return holds("a refusal by name", "'kind'" in str(refused), refused)
    return value("scores", ours["test_score"], truth, 1e-8, said=bool(said))


def dropped_rows(rng: Generator) -> Tally:
    """A formula drops rows with missing values; groups are those of the whole table, by label."""
    import statsmodels.formula.api as smf

    index = [f"p{k:02d}" for k in range(48)]
    table = pd.DataFrame(
        {"clinic": np.repeat(list("ABCDEF"), 8), "x": rng.standard_normal(48)}, index=index
    )
    table["y"] = 1 + table.x + rng.standard_normal(48)
    table.loc[rng.choice(index, 4, replace=False), rng.choice(["x", "y"])] = np.nan
    used = table.dropna()
    fit = lo.from_statsmodels(smf.ols("y ~ x", table).fit())
    ours, _ = told(lambda: lo.cross_predict(fit, lo.groups(table["clinic"]), strategy=lo.Exact()))
    plain = LinearRegression()
    truth = cross_val_predict(plain, used[["x"]], used.y, groups=used.clinic, cv=GroupKFold(6))
    return value("predictions", ours, truth, 1e-8)


def learned_by_a_formula(rng: Generator) -> Tally:
    """Knots, means and levels that a formula takes from all rows: refitted by fold, or said."""
    import statsmodels.formula.api as smf

    table = pd.DataFrame({"x": np.sort(rng.exponential(size=40)), "c": np.resize(list("aab"), 40)})
    table["y"] = np.sin(3 * table.x) + 0.3 * rng.standard_normal(40)
    formula = "y ~ " + str(
        rng.choice(["bs(x, df=6, lower_bound=0, upper_bound=20)", "cr(x, df=5)", "scale(x) + C(c)"])
    )
    fold = np.arange(40) % 5
    splits = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(5)]
    loss = np.zeros(40)
    for train, test in splits:
        loss[test] = (
            table.y - smf.ols(formula, table.iloc[train]).fit().predict(table)
        ).to_numpy()[test] ** 2 / 2
    fit = lo.from_statsmodels(smf.ols(formula, table).fit())
    cv, said = told(lambda: lo.cross_validate(fit, lo.from_splits(splits, 40), strategy=lo.Exact()))
    text = (str(cv) + said).lower()
    return value(
        formula,
        cv.mean,
        loss.mean(),
        1e-8,
        said=any(word in text for word in ("formula", "knots", "as fitted")),
    )


KINDS: dict[str, Callable[[Generator], Tally]] = {
    "labels as groups": labels_as_groups,
    "labels as categories": labels_as_categories,
    "labels as classes": labels_as_classes,
    "ids beside a gap": ids_beside_a_gap,
    "thousands": thousands,
    "decimal commas": decimal_commas,
    "classes that differ by a space": spaced_classes,
    "digits as categories": digits_as_categories,
    "digits of a host": digits_of_a_host,
    "rows dropped by a formula": dropped_rows,
    "knots learned by a formula": learned_by_a_formula,
}
