"""Calls of a formula that learn knots, means or spreads from all rows, which a refit of the same columns does not leave out."""

import re

# functions of patsy and formulaic that learn from the rows
STATEFUL = "bs|cr|cc|cs|te|scale|standardize|center|poly|hashed|qcut"
CALL = re.compile(
    rf"(?<![\w.])(?:pd\.)?({STATEFUL})\(|(?:\.|\bnp\.)(mean|median|std|var|min|max|sum|quantile|percentile|rank)\("
)


def stateful_remark(formula: str) -> str:
    """Describe the calls of a formula that learn from all rows; empty if there are none."""
    names = dict.fromkeys(f"{name}(...)" for call in CALL.finditer(formula) if (name := _of(formula, call)))
    if not names:
        return ""
    return f"the formula's {', '.join(names)} stays as made of all rows: what it learned is not left out"


def _of(formula: str, call: re.Match[str]) -> str:
    """Return the name of a call; empty if its arguments leave nothing to learn."""
    depth, end = 1, call.end()
    while end < len(formula) and depth:
        depth += {"(": 1, ")": -1}.get(formula[end], 0)
        end += 1
    given = formula[call.end() : end]
    fixed = all(f"{word}=" in given.replace(" ", "") for word in ("knots", "lower_bound", "upper_bound"))
    return "" if fixed else call[1] or call[2]
