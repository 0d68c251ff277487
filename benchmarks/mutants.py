"""Do the quick tests notice small faults? Each is made in a copy of the library, and the nearest quick tests are run on it.

    python benchmarks/mutants.py [word ...]      those whose name or file holds one of the words; all by default

A fault is a row of FAULTS: the file, the text as it is (found exactly once, or this stops), the text with the fault, and the
nearest tests. The tests must pass without it, and fail with it: "killed". What survives wants a test.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED = 0, 1  # exit statuses of pytest


class Fault(NamedTuple):
    """`old` becomes `new` in `src/leaveout/<file>`; `tests` are files of `tests/`, space between."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = (
    Fault(
        "labels for frames that have none",
        "_read.py",
        "        index = index_of(value)\n",
        "        value = pandas_of(caller, name, value)\n        index = index_of(value)\n",
        "test_frames.py",
    ),
    Fault(
        "rows of a file from 0",
        "cli/_files.py",
        "pd.RangeIndex(1, len(frame) + 1)",
        "pd.RangeIndex(len(frame))",
        "test_cli_glm.py",
    ),
    Fault(
        "levels of a category but the first",
        "cli/_data.py",
        "({count + 1} levels)",
        "({count} levels)",
        "test_cli_help.py",
    ),
    Fault(
        "transformers that saw the test rows",
        "sklearn/_folds.py",
        "refitted(self.host, rows)",
        "refitted(self.host, self.data)",
        "test_sklearn.py",
    ),
    Fault("a second moment for a variance", "models/_scaled.py", "total - mean**2", "total", "test_sklearn.py"),
    Fault(
        "a constant column with no penalty",
        "models/_scaled.py",
        "xp.where(constant, 1.0,",
        "xp.where(constant, 0.0,",
        "test_sklearn.py",
    ),
    Fault(
        "the error of a score shrinks twice with its rows",
        "sklearn/_scoring.py",
        "weight.max() / weight.sum()",
        "weight.max() / weight.sum() ** 2",
        "test_sklearn.py",
    ),
    Fault(
        "two directions, taken at their word",
        "_asked.py",
        "2: 3.0}",
        "2: 0.01}",
        "test_sklearn.py",
    ),
    Fault(
        "half a squared error as if it were whole",
        "sklearn/_search.py",
        "known.score(2 * mean",
        "known.score(mean",
        "test_sklearn.py",
    ),
    Fault(
        "a penalty of SGD that does not shrink", "interop/sklearn.py", '"rows": per_row}', '"rows": resolve}', "test_interop.py"
    ),
    Fault("half the penalty of a GAM", "interop/statsmodels.py", "Quadratic(2.0 *", "Quadratic(1.0 *", "test_statsmodels.py"),
    Fault(
        "a flat refit is as near as a steep one",
        "refit/_conjugate.py",
        "CAUTION * size / np.where(told, self.least, 1.0)",
        "CAUTION * size",
        "test_theorem.py",
    ),
    Fault(
        "a Newton step forgets what curvature differs by",
        "refit/_conjugate.py",
        "image = own + anchor.back(",
        "image = own + 0 * anchor.back(",
        "test_theorem.py",
    ),
    Fault("products of narrow rows by all cores", "_walk.py", "params <= NARROW", "params <= 0", "test_progress.py"),
    Fault(
        "products in float32 lose as little as others",
        "refit/_anchor.py",
        "return 2.0**29 * float(",
        "return float(",
        "test_proved.py",
    ),
    Fault(
        "what a step leaves does not grow with its length",
        "refit/_enclosure.py",
        "np.repeat(beside, TOLD)[: len(lanes)] * length,",
        "np.repeat(beside, TOLD)[: len(lanes)] * length[-1],",
        "test_proved.py",
    ),
    Fault(
        "an estimate is the least change of the losses",
        "refit/_descent.py",
        "np.inf, changes.max(1))",
        "np.inf, changes.min(1))",
        "test_descent.py",
    ),
    Fault(
        "an estimate from any curvature",
        "refit/_descent.py",
        "np.where((q < REFUSED) & (left <= self.first[lanes]), left, np.inf)",
        "left",
        "test_descent.py test_certificate.py",
    ),
    Fault(
        "Woodbury's rows lose their signs",
        "refit/_metric.py",
        "np.eye(count) + (curvature @ gram)",
        "np.eye(count) - (curvature @ gram)",
        "test_descent.py",
    ),
    Fault(
        "steps that did not shrink count as taken",
        "refit/_descent.py",
        "share[:, None] * (step - plain), ~stuck)",
        "share[:, None] * (step - plain), stuck)",
        "test_descent.py test_certificate.py",
    ),
    Fault("what is learnt, its sign", "_bfgs.py", "(1 + y @ turned / change)", "(1 - y @ turned / change)", "test_bfgs.py"),
    Fault("a solve as if nothing were flat", "_bfgs.py", "(max(least, 1e-300) * length)", "length", "test_bfgs.py"),
    Fault(
        "a first step over a hill",
        "_bfgs.py",
        "1.0 if self.count else min(1.0, promised**-0.5)",
        "1.0",
        "test_bfgs.py test_certificate.py",
    ),
    Fault("buffers are scored", "_plan.py", "< len(fold)) for row", "< len(row)) for row", "test_plan.py"),
    Fault(
        "a buffer one unit short",
        "_plan.py",
        "np.r_[max(0, s - buffer) : s",
        "np.r_[max(0, s - buffer + 1) : s",
        "test_plan.py",
    ),
    Fault("a buffer on one side", "_plan.py", "min(s + size + buffer, n)]", "min(s + size, n)]", "test_plan.py"),
    Fault(
        "a neighbourhood's buffer is scored", "_plan.py", "<= radius + 1] for", "<= radius + buffer + 1] for", "test_plan.py"
    ),
    Fault(
        "a horizon one too long",
        "_plan.py",
        "folds = [np.arange(t, min(t + horizon, n))",
        "folds = [np.arange(t, min(t + horizon + 1, n))",
        "test_plan.py",
    ),
    Fault("padding is held", "_plan.py", "held = real & self.held[place]", "held = self.held[place]", "test_plan.py"),
    Fault("padding has a weight", "_plan.py", "np.where(real, self.weight[place], 1.0)", "self.weight[place]", "test_plan.py"),
    Fault(
        "refits are wider than there are units",
        "_plan.py",
        "few = np.minimum(_few_sizes(widths), self.num_units)",
        "few = _few_sizes(widths)",
        "test_lengths.py",
    ),
    Fault(
        "steps behind the end are places of steps",
        "inference/chain.py",
        "place = np.where(step < total, step, room)",
        "place = np.minimum(step, room)",
        "test_lengths.py",
    ),
    Fault(
        "padding has an entry",
        "_plan.py",
        "place = np.where(real, entry, -1)",
        "place = np.where(real, entry, 0)",
        "test_plan.py",
    ),
    Fault(
        "padding is a unit",
        "_plan.py",
        "np.where(real, self.index[place], n)",
        "self.index[place]",
        "test_plan.py",
    ),
    Fault(
        "a bootstrap's counts are lost",
        "_plan.py",
        "counts[index].astype(float)",
        "1.0 * (counts[index] > 0)",
        "test_plan.py",
    ),
    Fault(
        "what a split drops is scored",
        "_plan.py",
        "_departures(counts, np.isin(np.arange(n), test))",
        "_departures(counts, counts == 0)",
        "test_plan.py",
    ),
    Fault(
        "groups are no clusters", "_plan.py", "clusters=found.astype(np.int64)", "clusters=None", "test_plan.py test_errors.py"
    ),
    Fault("too few blocks are enough", "_errors.py", "FEWEST = 20", "FEWEST = 10", "test_errors.py"),
    Fault(
        "blocks one unit too long",
        "_errors.py",
        "np.arange(seen.sum()) // length, count",
        "np.arange(seen.sum()) // (length + 1), count",
        "test_errors.py",
    ),
    Fault("blocks of three correlation times", "_errors.py", "np.ceil(max(6 * tau", "np.ceil(max(3 * tau", "test_errors.py"),
    Fault("blocks of the square root", "_errors.py", "n ** (1 / 3)", "n ** (1 / 2)", "test_errors.py"),
    Fault("a window of the correlations too short", "_errors.py", ">= 5 * time", ">= time", "test_errors.py"),
    Fault("no correction of degrees of freedom", "_errors.py", "count / (count - 1) * np.sum", "np.sum", "test_errors.py"),
    Fault(
        "a standard error about the plain mean",
        "_errors.py",
        "pull = weight * (losses - np.average(losses, weights=weight))",
        "pull = weight * (losses - losses.mean())",
        "test_errors.py",
    ),
    Fault(
        "a weight twice in the standard error",
        "_errors.py",
        "pull = weight * (losses",
        "pull = weight**2 * (losses",
        "test_errors.py",
    ),
    Fault(
        "blocks of neighbours are left aside",
        "_errors.py",
        "plan.blocks if plan.clusters is None else plan.clusters",
        "plan.clusters",
        "test_errors.py",
    ),
    Fault("the Monte-Carlo scale", "_estimate.py", "np.sqrt((refits - 1) * np.mean(", "np.sqrt(np.mean(", "test_estimate.py"),
    Fault(
        "a unit of one refit only stays in the mean",
        "_estimate.py",
        "(mass - np.bincount(refit, lost, refits))",
        "mass",
        "test_estimate.py",
    ),
    Fault("folds with buffers are thought to be drawn", "_estimate.py", "< 2 or dropped:", "< 2:", "test_estimate.py"),
    Fault(
        "a sum where a unit is scored several times",
        "_estimate.py",
        "np.where(times > 0, total / np.maximum(times, 1), np.nan)",
        "np.where(times > 0, total, np.nan)",
        "test_estimate.py",
    ),
    Fault(
        "what is not scored is in the mean",
        "_estimate.py",
        "np.isfinite(losses) & self._at.held, len",
        "np.isfinite(losses), len",
        "test_estimate.py",
    ),
    Fault(
        "a plain mean of the errors of refits",
        "_estimate.py",
        "/ max(scored.sum(), 1))",
        "/ max(np.sum(scored > 0), 1))",
        "test_estimate.py",
    ),
    Fault("errors without sample weights", "_estimate.py", "(self.error * heaviest)", "self.error", "test_estimate.py"),
    Fault(
        "the next fold's error in the table",
        "_estimate.py",
        '"error": self.error[refit]',
        '"error": np.roll(self.error, 1)[refit]',
        "test_estimate.py",
    ),
    Fault(
        "flagged refits are not told",
        "_estimate.py",
        "*of_refits(self.flagged(), self.result)]",
        "*of_refits(self.flagged()[:0], self.result)]",
        "test_estimate.py",
    ),
    Fault(
        "copies that their fold leaves out too are told",
        "_checks.py",
        "(size[label[plan.index]] > out)",
        "(size[label[plan.index]] > 1)",
        "test_checks.py",
    ),
    Fault(
        "copies by chance are told",
        "_checks.py",
        "leaks.size <= NATURAL * _by_chance(columns, own)",
        "not leaks.size",
        "test_checks.py",
    ),
    Fault(
        "powers of one column are copies",
        "_checks.py",
        "max(math.prod(alike), together)",
        "math.prod(alike)",
        "test_checks.py",
    ),
    Fault(
        "rows that a curve misses are of one unit",
        "_checks.py",
        "max(near, 0.0) > SURER * math.hypot(error, off) and alike > LEAST * near",
        "0.0 > SURER * error",
        "test_checks.py",
    ),
    Fault(
        "rows of a design are of one unit", "_checks.py", "or _alike_share(label) <= NATURAL * chance:", ":", "test_checks.py"
    ),
    Fault("other functions are one score", "_compare.py", "or len(set(unknown.values())) > 1:", "or False:", "test_scores.py"),
    Fault(
        "one function of other data is another score",
        "_evaluate.py",
        "fingerprint(evaluate, data=False)",
        "fingerprint(evaluate)",
        "test_scores.py",
    ),
    Fault("dates are those of London", "_report.py", "[time.isoformat()", "[time.date().isoformat()", "test_report.py"),
    Fault("a path takes its fits along", "_penalised.py", '"chosen", "fit"))', '"chosen"))', "test_pickles.py"),
    Fault(
        "a scorer is not told of weights",
        "sklearn/_scoring.py",
        '{"sample_weight": rows.score_weight}',
        "{}",
        "test_sklearn.py",
    ),
    Fault("an id by its name alone", "_checks.py", "len(_whole(column)) >= IDS]", "len(column) >= IDS]", "test_checks.py"),
    Fault(
        "time order without residuals that correlate",
        "_checks.py",
        "if not correlation > SURE / math.sqrt(plan.num_units):",
        "if not correlation > -1:",
        "test_checks.py",
    ),
    Fault(
        "time order under folds that see one side",
        "_checks.py",
        "return sees(unit - 1) & sees(unit + 1)",
        "return sees(unit - 1) | sees(unit + 1)",
        "test_checks.py",
    ),
    Fault(
        "muted for good",
        "_estimate.py",
        'mute=(*self.mute, *known("muted", codes))',
        'mute=known("muted", codes)',
        "test_checks.py",
    ),
    Fault("a page that does not escape", "_page.py", "autoescape=True", "autoescape=False", "test_report.py"),
    Fault("numbers that browsers cannot read", "_page.py", "if np.isfinite(value) else None", "", "test_report.py"),
    Fault(
        "models of other scores are compared",
        "_compare.py",
        "if len(set(scores.values())) > 1:",
        "if len(set(scores.values())) > 9:",
        "test_scores.py",
    ),
    Fault(
        "the variance of all rows, also of those that leave",
        "models/_distribution.py",
        "squares = whole - np.sum(left * own**2, axis=1)",
        "squares = 1.0 * whole",
        "test_scores.py",
    ),
    Fault(
        "a series is taken for rows",
        "_intervals.py",
        "if plan.serial or plan.blocks is not None else",
        "if plan.blocks is not None else",
        "test_intervals.py",
    ),
    Fault(
        "refits too coarse for another score stay",
        "_evaluate.py",
        "wide = self.found.flagged()",
        "wide = self.found.flagged()[:0]",
        "test_scores.py",
    ),
    Fault(
        "an unpaired difference",
        "_compare.py",
        "estimate._standard_error(difference)",
        "estimate._standard_error(values[name])",
        "test_estimate.py",
    ),
    Fault(
        "the best model's error is left out",
        "_compare.py",
        "estimate.approximation_error + estimates[best].approximation_error",
        "estimate.approximation_error",
        "test_estimate.py",
    ),
    Fault(
        "the distance of a ball not divided by one less its share",
        "_proved.py",
        "distance = slope / (1 - below)",
        "distance = 1.0 * slope",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "a radius ten times what the gaps were taken over",
        "refit/_enclosure.py",
        "reference, share, size[some], radius)",
        "reference, share, size[some], 10 * radius)",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "curvature above the reference is not counted",
        "_proved.py",
        "Gaps(below, np.maximum(below, beyond, out=beyond))",
        "Gaps(below, below)",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "gaps over half the reach",
        "_proved.py",
        "0.5 * np.asarray(loss.self_concordance) * reach",
        "0.25 * np.asarray(loss.self_concordance) * reach",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "the table's ball around a candidate is as wide as around the anchor",
        "_proved.py",
        "(self.RADII[at] - start[some]) * root[some]",
        "self.RADII[at] * root[some]",
        "test_theorem.py",
    ),
    Fault(
        "tables of several anchors are all that of the first",
        "_proved.py",
        "np.multiply(anchor, len(self.RADII))",
        "np.multiply(anchor, 0)",
        "test_path.py",
    ),
    Fault(
        "rows are in their own next terms along a path",
        "refit/_stacked.py",
        "cube[own, place[index[own]]] = 0.0",
        "cube[own, place[index[own]]] *= 1.0",
        "test_path.py",
    ),
    Fault(
        "rows without which nothing is determined take gradients along a path",
        "refit/_stacked.py",
        "self.stack.look.determined[lanes], max(",
        "np.ones(len(lanes), bool), max(",
        "test_path.py",
    ),
    Fault(
        "rows without which nothing is determined have a next term",
        "refit/_sampled.py",
        "look.determined & (_far",
        "(_far",
        "test_path.py",
    ),
    Fault(
        "losses of refits beside an undetermined one are made again from where one step led",
        "refit/_undetermined.py",
        "return rows._replace(held=held), done",
        "return rows._replace(held=held), replace(done, scores=None)",
        "test_rank.py",
    ),
    Fault(
        "curvature next to nothing is as good as none where nothing else is",
        "_proved.py",
        "ratio.max(-1) * part",
        "ratio.max(-1)",
        "test_theorem.py test_rank.py",
    ),
    Fault(
        "audits of refits that do not exist",
        "_audit.py",
        "refits = np.flatnonzero(exists)",
        "refits = np.arange(len(exists))",
        "test_path.py",
    ),
    Fault(
        "rows keep all of their weight in the gradients of a path",
        "refit/_stacked.py",
        "*= 1 - self._share()",
        "*= 1.0",
        "test_path.py",
    ),
    Fault(
        "a path's candidates are taken to be half as far away",
        "refit/_stacked.py",
        "moved = np.linalg.norm(self.u, axis=1)",
        "moved = 0.5 * np.linalg.norm(self.u, axis=1)",
        "test_path.py",
    ),
    Fault(
        "curvature at a candidate is that at the anchor",
        "_proved.py",
        "TWICE = 3 ",
        "TWICE = 1 ",
        "test_theorem.py",
    ),
    Fault(
        "no loss falls further than its rise",
        "_proved.py",
        "if reported is not center:",
        "if reported is None:",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "a ball may leave the domain of a loss",
        "models/_loss.py",
        "OUTSIDE = -1e100",
        "OUTSIDE = 0.0",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "a pole of a loss between the ends is not seen",
        "_proved.py",
        "ends.append(np.clip(peak, *ends))",
        "ends.append(center)",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "a hill of the curvature elsewhere than it is",
        "models/losses.py",
        "EXTREME_PEAK = 0.62",
        "EXTREME_PEAK = 0.92",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "what has left stays in the norms of the table",
        "_proved.py",
        "        root = np.sqrt(kept)\n",
        "        root = np.ones_like(kept)\n",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "rounding is no error of one row",
        "refit/_linear.py",
        "return lost + anchor.blur",
        "return anchor.blur",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "the row left out stays in its own Hessian",
        "refit/_linear.py",
        "kept = 1 - lost * row.share\n",
        "kept = np.ones(len(unit))\n",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "the gradient that the fit left is dropped for one row",
        "refit/_linear.py",
        "anchor.common[at] if rest else 0.0",
        "0.0",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "weights do not pull",
        "refit/_enclosure.py",
        "pull(pulled) + kappa[:, None]",
        "pull(slope) + kappa[:, None]",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "a held row's norm does not grow with what leaves",
        "refit/_linear.py",
        "half = np.where(determined, row.norm / root * after",
        "half = np.where(determined, row.norm * after",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "rows of a penalty do not weigh what it does",
        "models/penalties.py",
        "np.broadcast_to(self.alpha * self.delta**2, features)",
        "np.broadcast_to(self.alpha * self.delta, features)",
        "test_proved.py",
    ),
    Fault(
        "the penalty is no part of a fold's Hessian",
        "refit/_anchor.py",
        "own += kappa[:, None, None] * anchor.model.penalty + anchor.flat",
        "own += anchor.flat",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "the penalty is no part of a candidate's Hessian",
        "refit/_newton.py",
        "self.kappa[which, None, None] * model.penalty + anchor.flat",
        "anchor.flat",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "an estimate says proved",
        "refit/_enclosure.py",
        "self.proved[lanes] = False",
        "self.proved[lanes] = True",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "an estimate of one row says proved",
        "refit/_linear.py",
        "middle[good], left[good], False",
        "middle[good], left[good], True",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "the next refit's error",
        "refit/_linear.py",
        "np.bincount(refit, each, len(center)), np.inf)",
        "np.roll(np.bincount(refit, each, len(center)), 1), np.inf)",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "the next term of all rows has the row's own",
        "refit/_cubic.py",
        " - (look.lost * third * anchor.size[unit] ** 2)[:, None] * z",
        "",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "what the next term leaves ends with the third derivative",
        "refit/_cubic.py",
        "beyond = fourth / 6 * reach",
        "beyond = 0.0 * reach",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "where one step stays off is not told of the next term",
        "refit/_cubic.py",
        "rest + np.abs(along) * length * off / root",
        "rest",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "samples drawn without their probabilities",
        "refit/_sampled.py",
        "/ (chance * (size or 1))",
        "/ ((size or 1) / len(anchor.eta))",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "the next term without its half",
        "refit/_sampled.py",
        "Term(-0.5 * sums[0]",
        "Term(-1.0 * sums[0]",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "its own row in the sum over others",
        "refit/_sampled.py",
        "term[itself[mine] - start, place[mine]] = 0.0\n",
        "pass\n",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "several outputs: a row's own curvature is added",
        "refit/_linear.py",
        "np.eye(inner.shape[1]) - inner @ bend",
        "np.eye(inner.shape[1]) + inner @ bend",
        "test_multinomial.py",
    ),
    Fault(
        "several outputs: a common shift has no length",
        "_design.py",
        " + np.sqrt(np.maximum(common, 0.0))",
        "",
        "test_multinomial.py",
    ),
    Fault(
        "several outputs: a sample's own row is in the sum over others",
        "refit/_sampled.py",
        "bend[itself[both] - mine.start, place[both]] = 0.0",
        "pass",
        "test_multinomial.py",
    ),
    Fault(
        "runs: the score's slope has the other sign",
        "refit/_expansion.py",
        "fit.whiten(fit.gradient) - joint_slopes.T",
        "fit.whiten(fit.gradient) + joint_slopes.T",
        "test_runs.py",
    ),
    Fault(
        "Cox: a death's own time is left with those that die beside it",
        "models/_partial.py",
        "efron(m - 1, at_risk - risk, dying - risk)",
        "efron(m - 1, at_risk, dying - risk)",
        "test_cox.py",
    ),
    Fault(
        "Cox: what is nothing at weights of one is taken to have no derivatives",
        "models/cox.py",
        "some = self.tied if ones else slice(None)",
        "some = self.tied",
        "test_cox.py",
    ),
    Fault(
        "Cox: running sums go on over the strata",
        "models/_partial.py",
        "total = jnp.where(x[1], x[0], total + x[0])",
        "total = total + x[0]",
        "test_cox.py",
    ),
    Fault(
        "a path: the least penalty within a standard error",
        "_penalised.py",
        "return max(near, key",
        "return min(near, key",
        "test_path.py",
    ),
    Fault(
        "an audit ends at the first short gradient",
        "_audit.py",
        "np.linalg.norm(step) <= REACHED",
        "size <= REACHED",
        "test_proved.py",
    ),
    Fault(
        "a refit that nothing is known of has converged",
        "refit/_newton.py",
        "far | ~np.isfinite(new) | (floor & ~np.isfinite(after))",
        "far | ~np.isfinite(new)",
        "test_rank.py",
    ),
    Fault(
        "an audit compares a refit with itself",
        "_audit.py",
        "fit.at(u[None])",
        "fit.at(0 * u[None])",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "what an audit finds is not flagged",
        "_evaluate.py",
        "[table.beyond.to_numpy(bool)]",
        "[table.beyond.to_numpy(bool) & False]",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "few directions stand for all",
        "_asked.py",
        "np.sqrt(squares * rank / count)",
        "np.sqrt(squares / count)",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "an area whose units' shares are not scaled",
        "_metrics.py",
        "return value + (beaten - value) / share",
        "return value + (beaten - value)",
        "test_theorem.py test_proved.py",
    ),
    Fault(
        "predictions of refits are exact",
        "_influence/_verb.py",
        "reach(fit, done, values, self.watched)}",
        "0 * values}",
        "test_carries.py",
    ),
    Fault(
        "what masks is compared with one of the two",
        "_influence/_pairs.py",
        "alone = single.length[i] + single.length[j]",
        "alone = single.length[i]",
        "test_carries.py",
    ),
    Fault(
        "pairs are looked for among what moves the fit alone",
        "_influence/_pairs.py",
        "        keys.append(leverage(fit)[plan.index])",
        "        pass",
        "test_carries.py",
    ),
    Fault(
        "degrees of freedom of what is left out",
        "_influence/_measures.py",
        "free = weights @ counted(fit) - _effective(fit)",
        "free = counted(fit).sum() - _effective(fit) + 0 * weights.sum(1)",
        "test_carries.py",
    ),
    Fault(
        "a unit that is scored often has a larger share",
        "_influence/_verb.py",
        "size = summed(own * np.abs(loss) / times)",
        "size = summed(own * np.abs(loss))",
        "test_carries.py",
    ),
    Fault(
        "weights of lags end too soon",
        "_covariance.py",
        "1 - lag / ((maxlags or 0) + 1)",
        "1 - lag / (maxlags or 0)",
        "test_covariance.py",
    ),
    Fault("groups are corrected as rows", "_covariance.py", "(units - 1) / _left", "units / _left", "test_covariance.py"),
    Fault(
        "steps of a chain have scores",
        "_covariance.py",
        "if not apart <= AFFINE * size:",
        "if not apart <= size + apart:",
        "test_covariance.py",
    ),
    Fault("figures nobody shows", "plot.py", "    if ax is None:\n", "    if ax is not None:\n", "test_pictures.py"),
    Fault(
        "nested intervals are not corrected for the refits' fewer rows",
        "_nested.py",
        "share = 2 - 2 / num_folds",
        "share = 1 - 2 / num_folds",
        "test_intervals.py",
    ),
    Fault(
        "pairs of folds count for the fold that they score",
        "_nested.py",
        "num_folds + which - fold[first, inner.plan.index]",
        "num_folds + fold[first, inner.plan.index]",
        "test_intervals.py",
    ),
    Fault(
        "the rank of an end is rounded down",
        "_prediction.py",
        "int(np.ceil(self.level / self.weight[0] * (1 - ROUNDING)))",
        "int(np.floor(self.level / self.weight[0] * (1 - ROUNDING)))",
        "test_prediction.py",
    ),
    Fault(
        "ends know nothing of what the refits' own rows may be off",
        "_prediction.py",
        "- own.value) + own.off)",
        "- own.value))",
        "test_prediction.py",
    ),
    Fault(
        "how far a refit was left from where it is proved to be does not widen an end",
        "_prediction.py",
        "return radius + np.linalg.norm(",
        "return radius + 0 * np.linalg.norm(",
        "test_prediction.py",
    ),
    Fault(
        "rows of large groups weigh as much as those of small ones",
        "_prediction.py",
        "weight = 1 / (len(size) + 1) / size[group]",
        "weight = 1 / (len(size) + 1) / size.mean() + 0 * group",
        "test_prediction.py",
    ),
    Fault(
        "rows without a refit are not far off",
        "_prediction.py",
        "return np.where(np.isnan(values), np.inf, values)",
        "return np.nan_to_num(values)",
        "test_prediction.py",
    ),
    Fault(
        "new rows are read by position",
        "models/_rows.py",
        "X[[X.columns[columns.index(name)] for name in names]]",
        "X.iloc[:, : len(names)]",
        "test_prediction.py",
    ),
    Fault(
        "rows that leave do not turn the slope of a criterion",
        "_hyper.py",
        "[:, 0] + self.turn",
        "[:, 0]",
        "test_tune.py",
    ),
    Fault(
        "a slope in hyperparameters forgets that the fit moves",
        "_hyper.py",
        "self.fit.solve(c) - self.pull @ root",
        "-self.pull @ root",
        "test_tune.py",
    ),
    Fault(
        "slopes that JAX derives forget that the fit moves",
        "_hyper.py",
        "return by_rho - np.asarray(last[0])",
        "return by_rho + 0 * np.asarray(last[0])",
        "test_tune.py",
    ),
    Fault(
        "steps of the gradient as long as the range",
        "_search.py",
        "np.maximum(low, x - LONGEST), np.minimum(high, x + LONGEST)",
        "low, high",
        "test_tune.py",
    ),
    Fault(
        "a descent that begins in a tail ends there",
        "_search.py",
        "least = min(se, steepest / SMALL[0] / 10) / unit",
        "least = se / unit",
        "test_tune.py",
    ),
    Fault(
        "trials of other losses are compared",
        "_search.py",
        "if not alike or (self.metric is None and own != score):",
        "if not alike:",
        "test_tune.py",
    ),
    Fault(
        "a bound from the fit alone where rows are dropped unscored",
        "_search.py",
        "alike = plan.held.all() and not",
        "alike = not",
        "test_tune.py",
    ),
    Fault(
        "the optimism is that of the trials that are best on the group itself",
        "_tune.py",
        "self._least(told, label != g) for g",
        "self._least(told, label == g) for g",
        "test_tune.py",
    ),
    Fault(
        "steps are taken as they are found",
        "_checkpoint.py",
        "if digest != self._digest(blob):",
        "if not digest:",
        "test_checkpoint.py",
    ),
    Fault(
        "a checkpoint of anything will do", "_checkpoint.py", "        if other:", "        if not there:", "test_checkpoint.py"
    ),
    Fault(
        "what a function closes over is no part of it",
        "_fingerprint.py",
        "*map(_content, value.__closure__ or ())",
        "*map(_content, ())",
        "test_checkpoint.py",
    ),
    Fault(
        "a run goes on with batches for the cores that are here",
        "_walk.py",
        "least = self.parts if",
        "least = self.workers if",
        "test_checkpoint.py",
    ),
    Fault(
        "of a run that was stopped all refits seem to be made",
        "_evaluate.py",
        "np.inf, False, RESULTS.interrupted",
        "np.inf, False, RESULTS.successful",
        "test_checkpoint.py",
    ),
    Fault(
        "Ctrl-C waits for compiled programs",
        "_stopping.py",
        "is not threading.main_thread()",
        "is not None",
        "test_checkpoint.py",
    ),
    Fault(
        "a criterion that goes on has no losses",
        "_hyper.py",
        'FILLED = "losses", "result", "elsewhere"',
        'FILLED = "result", "elsewhere"',
        "test_checkpoint.py",
    ),
    Fault(
        "objectives of another build will do",
        "_checkpoint.py",
        "journal.check(own, {name: str(digest) for name, digest in told.items()})",
        "journal.check(own, own)",
        "test_checkpoint.py",
    ),
    Fault(
        "a fit goes on without the starts that it had not made",
        "_starts.py",
        "rest = range(len(runs), len(starts))",
        "rest = range(len(runs) and len(starts), len(starts))",
        "test_checkpoint.py",
    ),
    Fault(
        "nested goes on with other folds",
        "_nested.py",
        "known(fit, single, refit, evaluate=evaluate)",
        "known(fit, num_folds, refit, evaluate=evaluate)",
        "test_checkpoint.py",
    ),
    Fault(
        "what refits do to a fit is that of another estimate",
        "_influence/_verb.py",
        "estimate=parts, prediction=prediction",
        "estimate=None, prediction=prediction",
        "test_checkpoint.py",
    ),
    Fault(
        "a fold that failed is forgotten",
        "sklearn/_folds.py",
        'if (why := str(told["failed"])) and k not in self.made:',
        'if (why := str(told["failed"])) and k in self.made:',
        "test_checkpoint.py",
    ),
    Fault(
        "Ctrl-C finds all draws of one fold and none of another",
        "leakage/_run.py",
        "                for k in due:\n",
        "                for k in due[:1]:\n",
        "test_checkpoint.py",
    ),
    Fault(
        "pairs of one bad record are independent evidence",
        "leakage/_blocks.py",
        "PULL = 0.2 ",
        "PULL = 2.0 ",
        "test_linkage.py",
    ),
    Fault(
        "pairs on two cycles that share a record are one block",
        "leakage/_blocks.py",
        "np.flatnonzero(np.array(least) < above)",
        "np.flatnonzero(np.array(least) <= above)",
        "test_linkage.py",
    ),
    Fault(
        "bonds that were not drawn do not count",
        "leakage/_chain.py",
        "(chains.weight[pairs] + np.log1p(-bond))[across]",
        "chains.weight[pairs][across]",
        "test_linkage.py",
    ),
    Fault(
        "a cluster may fall apart",
        "leakage/_chain.py",
        "ready = (pieces == 1)",
        "ready = (pieces >= 1)",
        "test_linkage.py",
    ),
    Fault(
        "halves of an entity are nobody's",
        "leakage/_linkage.py",
        "fewer[there <= here]",
        "fewer[there < here]",
        "test_linkage.py",
    ),
    Fault("two probabilities for one pair", "leakage/_tables.py", "AGREE = 1e-9", "AGREE = 1.0", "test_linkage.py"),
    Fault(
        "labels that are drawn are the labels",
        "leakage/_labelled.py",
        "else rng.integers(0, count, count)",
        "else np.arange(count)",
        "test_linkage.py",
    ),
    Fault(
        "a sample without its design",
        "leakage/_labelled.py",
        "return weight / weight.mean()",
        "return np.ones(len(frame))",
        "test_linkage.py",
    ),
    Fault(
        "positives that a threshold takes in move no precision below it",
        "leakage/_score.py",
        "share - value + gained",
        "share - value",
        "test_leakage_scores.py",
    ),
    Fault(
        "a score that falls with leakage",
        "leakage/_solve.py",
        "sign = -1.0 if rising else 1.0",
        "sign = 1.0",
        "test_leakage_results.py",
    ),
    Fault(
        "other clusters' records are taken out of too little",
        "leakage/_run.py",
        "mass = (1 + mixture) *",
        "mass = 1.0 *",
        "test_leakage_results.py",
    ),
    Fault(
        "an assurance where injection shows nothing",
        "leakage/_shown.py",
        "LARGEST = 0.25",
        "LARGEST = 1.0",
        "test_leakage_results.py",
    ),
    Fault(
        "pairs of folds, squared",
        "_errors.py",
        "np.sum(C * C.T)",
        "np.sum(C * C)",
        "test_leakage_results.py",
    ),
    Fault(
        "the leakage is taken for certain",
        "leakage/_result.py",
        "self.se_mc**2 + self.se_p**2",
        "self.se_mc**2",
        "test_leakage_results.py",
    ),
    Fault(
        "a checkpoint knows how many draws were wanted",
        "leakage/_run.py",
        "replace(injection, num_boot=None, tolerance=1.0)",
        "injection",
        "test_leakage_results.py",
    ),
    Fault(
        "records that left a training set stay in its sums",
        "leakage/_chains.py",
        "came.T @ came - left.T @ left",
        "came.T @ came",
        "test_leakage_fits.py",
    ),
    Fault(
        "steps end too soon",
        "leakage/_chains.py",
        "FINAL = 1e-11",
        "FINAL = 1e-3",
        "test_leakage_fits.py",
    ),
    Fault(
        "controls that lose mates as well",
        "leakage/_splits.py",
        "rng.permutation(train[~drop[train]])",
        "rng.permutation(train)",
        "test_leakage_report.py",
    ),
    Fault(
        "corrections by what stays exposed",
        "leakage/_study.py",
        "part = self.removed(point.exposed) * self.listed.estimate",
        "part = self.listed.estimate",
        "test_leakage_report.py",
    ),
    Fault(
        "lists of duplicates that lack some are believed",
        "leakage/_unlisted.py",
        "TOLERATED = 0.1",
        "TOLERATED = 1.0",
        "test_leakage_report.py",
    ),
    Fault(
        "clusters move where few of their rows are",
        "leakage/_splits.py",
        "votes.argmax(axis=1)",
        "votes.argmin(axis=1)",
        "test_leakage_report.py",
    ),
    Fault(
        "joins by the unlikeliest pairs first",
        "leakage/_splits.py",
        "np.lexsort((b, a, -probability))",
        "np.lexsort((b, a, probability))",
        "test_leakage_report.py",
    ),
    Fault(
        "folds of any size weigh alike",
        "leakage/_study.py",
        "of_fold * len(fold.test) for fold",
        "of_fold * size / len(folds) for fold",
        "test_leakage_report.py",
    ),
    Fault(
        "one fit's predictions of other rows",
        "leakage/_work.py",
        "digest_size=16).digest() for rows in ask)",
        "digest_size=16).digest() for rows in ask[:1])",
        "test_leakage_report.py",
    ),
    Fault(
        "purged rows keep their first predictions",
        "leakage/_answers.py",
        "out[part.fold][place[part.rows]] = own",
        "out[part.fold][place[part.rows]] *= 1.0",
        "test_leakage_report.py",
    ),
)


def copied(fault: Fault | None, folder: Path) -> Path:
    """A copy of `src` in `folder`, with the fault."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        path = source / "leaveout" / fault.file
        path.write_text(faulty(fault, path.read_text()))
    return source


def faulty(fault: Fault, text: str) -> str:
    """The text with the fault; raises where what it changes is not there exactly once."""
    found = text.count(fault.old)
    if found != 1 or fault.old == fault.new:
        raise LookupError(f"{fault.file}: {fault.name}: {fault.old!r} must occur once and be changed; it occurs {found} times.")
    return text.replace(fault.old, fault.new)


def outcome(tests: str, fault: Fault | None = None) -> tuple[int, str]:
    """The exit status of the quick tests on a copy, and what they printed."""
    with tempfile.TemporaryDirectory() as folder:
        source = copied(fault, Path(folder))
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        where = [sys.executable, "-c", "import leaveout; print(leaveout.__file__)"]
        asked = subprocess.run(where, cwd=ROOT, env=environment, capture_output=True, text=True)
        if not asked.stdout.startswith(str(source)):
            raise RuntimeError(f"the copy is not what is imported: {asked.stdout}{asked.stderr}")
        options = ["-m", "pytest", "-x", "-q", "-m", "not slow", "-n", "0", "-p", "no:cacheprovider"]
        files = [f"tests/{name}" for name in tests.split()]
        run = subprocess.run([sys.executable, *options, *files], cwd=ROOT, env=environment, capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the name or the file of a fault")
    words = parser.parse_args().words
    chosen = [fault for fault in FAULTS if not words or any(word in f"{fault.file} {fault.name}" for word in words)]
    for tests in dict.fromkeys(fault.tests for fault in chosen):
        status, printed = outcome(tests)
        if status != PASSED:
            raise SystemExit(f"{printed}\n{tests} must pass without a fault.")
    survived = 0
    for fault in chosen:
        began = time.monotonic()
        status, printed = outcome(fault.tests, fault)
        if status not in (PASSED, FAILED):
            raise SystemExit(f"{printed}\n{fault.file}: {fault.name}: the tests could not be run.")
        survived += status == PASSED
        verdict = "killed  " if status == FAILED else "SURVIVED"
        print(f"{verdict}  {time.monotonic() - began:5.1f} s  {fault.file}: {fault.name}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} faults killed")
    raise SystemExit(survived > 0)


if __name__ == "__main__":
    main()
