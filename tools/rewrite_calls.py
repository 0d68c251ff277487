"""Rewrite calls of leaveout in the words that it takes now.

    python tools/rewrite_calls.py PATH ...          # rewrite files, or all in folders, in place
    python tools/rewrite_calls.py --check PATH ...  # print what would change; status 1 if anything

Files of Python are read by their syntax trees: calls of public names, however they are imported,
get their new keywords, and arguments that stood by position a name where they are taken by name
alone. Examples in docstrings and in the fenced blocks of Markdown are rewritten alike, and names
that moved to another namespace wherever `lo.NAME` stands. What the program can't decide, such as
arguments after a star, is printed with its line and left as it is.
"""

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# what a plan is called, and what makes one
PLAN_NAMES = ("plan", "folds", "splits", "resamples")
PLAN_MAKERS = (
    *("blocks", "bootstrap", "contiguous", "from_splits", "groups", "kfold", "leave_future_out"),
    *("leave_one_out", "nearest_neighbour_matched", "neighbourhoods", "purged", "random_subsets"),
    *("rolling", "stratified", "jk1", "jkn", "brr", "fay"),
)
STRATEGIES = ("Certified", "Exact", "InfinitesimalJackknife", "NewtonStep", "NoUpdate")


class Signature(NamedTuple):
    """The arguments of a function that stand by position, before and now, and renamed keywords."""

    before: tuple[str, ...] = ()
    now: tuple[str, ...] = ()
    renamed: Mapping[str, str] = {}


def signature(before: str = "", now: str | None = None, **renamed: str) -> Signature:
    """Read a signature: positional names separated by blanks, `now` those of today."""
    names = tuple(before.split())
    if now is None:
        current = tuple(renamed.get(name, name) for name in names)
    else:
        current = tuple(now.split())
    return Signature(names, current, renamed)


# Names at the root that stand in a namespace now.
MOVED = {
    name: namespace
    for namespace, names in {
        "clinical": "calibration decision_curve internal_external stability validate",
        "bayes": "elpd from_numpyro from_posterior from_pymc from_stan",
        "diagnostics": "Influence auto_groups cooks_distance dfbetas functional leverage "
        "studentized_residuals",
        "terms": "s te ti",
        "survey": "replicates",
        "validation": "CHECKS Check Comparison IndefiniteHessianError Interrupted "
        "nearest_neighbour_matched nested",
        "developer": "AbstractObjective AbstractRefit inference models",
        "developer.models": "AbstractClosedForm AbstractLinearPredictor Costs Dirichlet External "
        "Free Parameters Units entities entity_f1 token_accuracy",
        "leakage": "InjectedSplits Injection LeakageReport LeakageResult Linkage RecordLeakage "
        "SplitLeakage binomial_block_bootstrap binomial_matrix largest_leakage_share "
        "leakage_corrected leakage_report leakage_slope_test residual_profile solve_curve "
        "stratified_matrix",
        "penalties": "per_row per_weight",
        "tuning": "Path PerTarget Smoothing Trial Tuning curves mean_interval",
    }.items()
    for name in names.split()
}
SHOWN = {"named": "num_named"}
BY_STRATEGY = signature("fit strategy", "fit")
FOLDS = {"repeats": "num_repeats"}
# Functions by their public names; what moved stands without its namespace.
CALLS = {
    "calibration": signature("cv smoother", "estimate", cv="estimate", at="predictions"),
    "cooks_distance": BY_STRATEGY,
    "covariance": signature("fit cov_type", cov_type="kind"),
    "cross_predict": signature("fit plan strategy kind", "fit plan"),
    "cross_validate": signature("fit plan strategy", "fit plan"),
    "decision_curve": signature("cv thresholds", cv="estimate"),
    "dfbetas": BY_STRATEGY,
    "fold_parameters": signature("fit plan strategy", "fit plan"),
    "functional": signature("fit f plan", "fit plan f"),
    "groups": signature("labels k", **FOLDS),
    "influence": signature("estimate strategy", "estimate", pairs="num_pairs"),
    "interval": signature("fit X_new level method", "fit X_new"),
    "kfold": signature("num_units k", **FOLDS),
    "leakage.leakage_report": signature("estimator X y", draws="num_draws"),
    "nested": signature("fit level", "fit", **FOLDS),
    "path": signature("objective penalties plan strategy", "objective penalties plan"),
    "plot.against_exact": signature("fit estimate ax", sample="num_sampled"),
    "plot.calibration": signature("found ax", found="calibration"),
    "plot.decision_curve": signature("found ax", found="curve"),
    "plot.estimates": signature("found ax", found="estimates"),
    "plot.field": signature("fit coordinates estimate ax", **SHOWN),
    "plot.folds": signature("fit plan f ax", shown="num_shown"),
    "plot.influence": signature("found ax", found="influence", **SHOWN),
    "plot.leverage": signature("fit estimate ax", **SHOWN),
    "plot.losses": signature("estimate ax", **SHOWN),
    "plot.path": signature("found ax", found="path"),
    "plot.pit": signature("found ax", found="predictions"),
    "plot.precision_recall": signature("cv ax", cv="estimate"),
    "plot.roc": signature("cv ax", cv="estimate"),
    "plot.smooth": signature("found term ax", found="fit"),
    "plot.stability": signature("found ax", found="stability", most="num_points"),
    "plot.states": signature("fit estimate ax", **SHOWN),
    "plot.tuning": signature("found ax", found="tuning"),
    "purged": signature("times k embargo", test_blocks="num_test_blocks"),
    "report": signature("found path", found="estimate", B="num_resamples"),
    "stability": signature("fit B groups plan", "fit plan", B="num_resamples"),
    "stratified": signature("y k", **FOLDS),
    "studentized_residuals": BY_STRATEGY,
    "survey.bootstrap": signature("strata clusters replicates", replicates="num_replicates"),
    "tune": signature(
        "build space plan strategy sampler",
        "build space plan",
        trials="num_trials",
        nested="num_outer_folds",
    ),
    "tuning.curves": signature("fit plan level", "fit plan", points="num_points"),
    "tuning.mean_interval": signature("fit X_new plan level", "fit X_new"),
    "validate": signature(
        "fit method B groups plan", "fit plan", B="num_resamples", curves="num_curves"
    ),
}
# Functions whose strategy was called `refit` in early drafts.
REFITTED = (
    *("cooks_distance", "covariance", "cross_predict", "cross_validate", "dfbetas"),
    *("fold_parameters", "functional", "influence", "interval", "nested", "path", "tune"),
    *("internal_external", "replicates", "stability", "studentized_residuals", "validate"),
    *("sklearn.cross_val_predict", "sklearn.cross_val_score", "sklearn.cross_validate"),
)
# Keywords of methods, on whatever they are called.
METHODS = {
    "partitions": {"num": "num_partitions", "seed": "rng"},
    "plot": SHOWN,
    "predict": {"seed": "rng"},
    "simulate": {"seed": "rng"},
    "top": {"count": "num_rows"},
}
# Dictionaries of an estimate that are columns of its table of metrics.
METRICS = {
    "metrics": "value",
    "metric_se": "standard_error",
    "metric_error": "error",
    "metric_how": "averaged",
}
# What refits need of a fit, which is one object beside it.
QUADRATIC = [
    "at",
    "back",
    "coordinates",
    "factor",
    "flat",
    "influence",
    "learned_inverse",
    "null_space",
    "predictor_data",
    "predictors",
    "raw",
    "root",
    "scaling",
    "unwhiten",
    "whiten",
    "whitener",
]
# Calls whose arrays are Series and DataFrames under labels now: those that have moved since, and
# those that have not.
LABELLED = ("leverage", "cooks_distance", "studentized_residuals")
LABELLED_IN_PLACE = ("cross_predict", "per_unit")
ARRAY_METHODS = ("reshape", "flatten", "ravel")
METRIC_COLUMNS = (*METRICS.values(), "lower", "upper")
EVERYWHERE = {"seed": "rng"}
NAMESPACES = ("clinical", "bayes", "diagnostics", "terms", "survey", "validation", "developer")
ROOTS = ("lo", "leaveout")
ROOT_FITS = ("lo.fit", "leaveout.fit")
PRINTED_NAME = re.compile(r"(?<!from )(?<!import )\b(lo|leaveout)\.(\w+)\b(?!\.py)")
FENCE = re.compile(r"^(?P<indent> *)```(?:python|py|pycon)[^\n]*\n(?P<code>.*?)^ *```", re.M | re.S)
PROMPT = re.compile(r"^(?P<indent>\s*)(?:>>>|\.\.\.)(?: |$)")
QUOTED = re.compile(r"(?<!`)(`{1,2})([^`\n]+)\1(?!`)")


class Edit(NamedTuple):
    """A piece of a source text, from byte to byte, and what stands in its place."""

    start: int
    end: int
    text: str
    moves: bool = False  # an argument that changes its place


class Source:
    """A piece of Python: its text, its tree, and where public names are imported.

    `modules` has the dotted public name of each local name: `lo` is "", `plot` may be "plot".
    """

    def __init__(self, text: str, modules: Mapping[str, str] = {}, file: str = "") -> None:
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        starts = [0]
        for line in self.data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        self.modules = {"lo": "", "leaveout": "", **modules}
        self.file = file
        self.undecided: list[str] = []

    def span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """Return the first byte of a node, and the byte after it."""
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr | ast.keyword) -> str:
        """Return what stands at a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def public_name(self, node: ast.expr) -> str | None:
        """Return the public name that an expression is, without `lo.`; None if it is none."""
        if isinstance(node, ast.Name):
            return self.modules.get(node.id)
        if isinstance(node, ast.Attribute):
            above = self.public_name(node.value)
            if above is not None:
                return f"{above}.{node.attr}".lstrip(".")
        return None

    def rewritten(self) -> str:
        """Return the text in today's words."""
        edits: list[Edit] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                edits += self._imports(node)
            elif isinstance(node, ast.Call):
                edits += [*self._call(node), *self._by_position(node)]
            elif isinstance(node, ast.Attribute):
                edits += self._moved(node)
                edits += [*self._values(node), *self._quadratic(node)]
            elif isinstance(node, ast.Subscript):
                edits += self._metric(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                edits += self._program(node)
        data = self.data
        whole = [edit for edit in edits if edit.moves]
        for edit in sorted(set(edits), reverse=True):
            if any(outer.start <= edit.start < outer.end and not edit.moves for outer in whole):
                continue
            data = data[: edit.start] + edit.text.encode() + data[edit.end :]
        return data.decode()

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Edit]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "leaveout" and alias.asname:
                    self.modules[alias.asname] = alias.name.partition(".")[2]
            return
        module = self._module(node)
        if module is None:
            return
        for alias in node.names:
            self.modules[alias.asname or alias.name] = public(module, alias.name)
        if module or node.level:
            return
        moved = [alias for alias in node.names if alias.name in MOVED]
        if not moved:
            return
        by_namespace: dict[str, list[str]] = {}
        for alias in node.names:
            line = alias.name + (f" as {alias.asname}" if alias.asname else "")
            by_namespace.setdefault(MOVED.get(alias.name, ""), []).append(line)
        lines = [
            f"from {f'leaveout.{namespace}'.rstrip('.')} import {', '.join(names)}"
            for namespace, names in sorted(by_namespace.items())
        ]
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        yield Edit(start, end, f"\n{' ' * node.col_offset}".join(lines))

    def _module(self, node: ast.ImportFrom) -> str | None:
        """Return the module of the package that names are imported from; None for another's."""
        module = node.module or ""
        if not node.level:
            package, _, module = module.partition(".")
            return module if package == "leaveout" else None
        above = Path(self.file).parts[: -node.level]
        if "leaveout" not in above:
            return None
        package = above[above.index("leaveout") + 1 :]
        return ".".join([*package, *filter(None, [module])])

    def _moved(self, node: ast.Attribute) -> Iterator[Edit]:
        """Yield the namespace of a name that stood at the root."""
        if node.attr in MOVED and self.public_name(node.value) == "" and not self._is_bound(node):
            start = self.span(node.value)[1]
            yield Edit(start, start, f".{MOVED[node.attr]}")

    def _is_bound(self, node: ast.Attribute) -> bool:
        """Say whether `lo` is a bound of an interval here, such as `lo.s`, and no module."""
        return isinstance(node.value, ast.Name) and any(
            isinstance(name, ast.Name)
            and name.id == node.value.id
            and isinstance(name.ctx, ast.Store)
            for name in ast.walk(self.tree)
        )

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        name = self.public_name(node.func)
        if name is None:
            if isinstance(node.func, ast.Attribute):
                yield from self._keywords(node, METHODS.get(node.func.attr, {}))
            return
        if name == "interval":
            yield from self._interval(node)
        plain = name
        for namespace in NAMESPACES:
            if name.partition(".")[0] == namespace and name.partition(".")[2] in MOVED:
                plain = name.partition(".")[2]
        if f"{MOVED.get(plain)}.{plain}" in CALLS:
            plain = f"{MOVED[plain]}.{plain}"
        shape = CALLS.get(plain, Signature())
        renamed = {**EVERYWHERE, **shape.renamed}
        if plain in REFITTED:
            renamed["refit"] = "strategy"
        yield from self._keywords(node, renamed)
        yield from self._positions(node, plain, shape)

    def _program(self, node: ast.Constant) -> Iterator[Edit]:
        """Yield a program that stands as text, for another process."""
        start, end = self.span(node)
        quoted = self.data[start:end].decode()
        if "lo." not in node.value or ">>>" in node.value or quoted.count(node.value) != 1:
            return
        try:
            new = Source(node.value, self.modules, self.file).rewritten()
        except (SyntaxError, ValueError):
            return
        if new != node.value:
            yield Edit(start, end, quoted.replace(node.value, new))

    def _quoted(self, word: str, node: ast.expr) -> str:
        """Quote a word, by other marks than those of an f-string around it."""
        above: ast.AST | None = node
        while above is not None and not isinstance(above, ast.JoinedStr):
            above = self._parents.get(above)
        if above is None or "'" in self.text(above).lstrip("frFR")[:1]:
            return f'"{word}"'
        return f"'{word}'"

    def _values(self, node: ast.Attribute) -> Iterator[Edit]:
        """Yield the column of the values of all metrics, where they were a dictionary."""
        above = self._parents.get(node)
        if node.attr not in METRICS or isinstance(above, ast.Subscript):
            return
        if isinstance(node.value, ast.Name) and node.value.id in ("sklearn", "leaveout"):
            return
        end = self.span(node)[1]
        start = end - len(node.attr)
        column = f"metrics[{self._quoted(METRICS[node.attr], node)}]"
        if not isinstance(above, ast.Attribute) or above.attr in ("get", "items", "keys"):
            yield Edit(start, end, column)
        elif above.attr == "values":
            yield Edit(start, self.span(above)[1], f"{column}.to_list")

    def _quadratic(self, node: ast.Attribute) -> Iterator[Edit]:
        """Yield the place beside the fit of what refits need of it."""
        if node.attr not in QUADRATIC:
            return
        receiver = self.text(node.value)
        makers = tuple(f"{root}.{verb}(" for root in ROOTS for verb in ("fit", "anchor"))
        is_call = isinstance(node.value, ast.Call) and receiver.startswith(makers)
        if is_call or (re.search(r"(^|\.)(fit|fitted)$", receiver) and receiver not in ROOT_FITS):
            start = self.span(node)[1] - len(node.attr)
            yield Edit(start, start, "quadratic.")

    def _by_position(self, node: ast.Call) -> Iterator[Edit]:
        """Yield the array of a result that has labels now, where places of it are asked for."""
        name = self.public_name(node.func)
        if name is None and isinstance(node.func, ast.Attribute):
            name = node.func.attr if node.func.attr == "per_unit" else None
        if name not in LABELLED + LABELLED_IN_PLACE:
            return
        uses = [self._parents.get(node)]
        place = [node]
        if isinstance(uses[0], ast.Tuple):
            place.append(uses[0])
            uses = [self._parents.get(uses[0])]
        if isinstance(uses[0], ast.Assign):
            (target,) = uses[0].targets[:1]
            if len(place) == 2 and isinstance(target, ast.Tuple):
                target = target.elts[place[1].elts.index(node)]
            uses = [
                self._parents.get(other)
                for other in ast.walk(self.tree)
                if isinstance(target, ast.Name)
                and isinstance(other, ast.Name)
                and other.id == target.id
            ]
        if any(self._takes_places(use, name in LABELLED) for use in uses):
            end = self.span(node)[1]
            yield Edit(end, end, ".to_numpy()")

    @staticmethod
    def _takes_places(use: ast.AST | None, by_names: bool) -> bool:
        """Say whether an array is asked for places; variables may be places or labels."""
        if isinstance(use, ast.Attribute):
            return use.attr in ARRAY_METHODS
        if not isinstance(use, ast.Subscript):
            return False
        if isinstance(use.slice, ast.Name):
            return by_names
        is_text = isinstance(use.slice, ast.Constant) and isinstance(use.slice.value, str)
        return not is_text and not isinstance(use.slice, ast.JoinedStr | ast.List)

    def _metric(self, node: ast.Subscript) -> Iterator[Edit]:
        """Yield the place of a metric in the table of an estimate."""
        target = node.value
        is_column = isinstance(node.slice, ast.List) or (
            isinstance(node.slice, ast.Constant) and node.slice.value in METRIC_COLUMNS
        )
        if isinstance(target, ast.Attribute) and target.attr in METRICS and not is_column:
            start, end = self.span(target)[1] - len(target.attr), self.span(node)[1]
            column = self._quoted(METRICS[target.attr], node)
            entry = f"metrics.loc[{self.text(node.slice)}, {column}]"
            yield Edit(start, end, entry)
        is_call = isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute)
        if is_call and target.func.attr == "metric_interval":
            arguments = [self.text(part) for part in [*target.args, *target.keywords]]
            text = ", ".join([*arguments, f"metric={self.text(node.slice)}"])
            start = self.span(target.func)[1] - len("metric_interval")
            yield Edit(start, self.span(node)[1], f"interval({text})")

    def _keywords(self, node: ast.Call, renamed: Mapping[str, str]) -> Iterator[Edit]:
        for keyword in node.keywords:
            if keyword.arg in renamed:
                start, _ = self.span(keyword)
                yield Edit(start, start + len(keyword.arg.encode()), renamed[keyword.arg])

    def _positions(self, node: ast.Call, name: str, shape: Signature) -> Iterator[Edit]:
        if not shape.before or shape.before == shape.now:
            return
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            if len(node.args) > 1 or len(shape.before) > len(shape.now):
                self.undecided.append(f"{self.file}:{node.lineno}: {name}(*...)")
            return
        names = [shape.renamed.get(before, before) for before in shape.before[: len(node.args)]]
        arguments = list(zip(names, node.args, strict=False))
        comes_second = shape.now[1:2] == ("plan",) != shape.before[1:2]
        if comes_second and len(node.args) > 1 and self._is_plan(node.args[1]):
            return  # it is in today's order
        if sorted(names) == sorted(shape.now[: len(names)]) and names != list(shape.now):
            for (_, argument), now in zip(arguments, shape.now, strict=False):
                other = node.args[names.index(now)]
                if other is not argument:
                    text = Source(self.text(other), self.modules).rewritten()
                    yield Edit(*self.span(argument), text, moves=True)
            return
        by_name = False
        for position, (argument_name, argument) in enumerate(arguments):
            if name == "influence" and position == 1 and not self._is_strategy(argument):
                continue
            by_name = by_name or shape.now[position : position + 1] != (argument_name,)
            if by_name:
                start, _ = self.span(argument)
                yield Edit(start, start, f"{argument_name}=")

    def _interval(self, node: ast.Call) -> Iterator[Edit]:
        """Yield the call of two quantiles, or of sets of classes, that an interval was."""
        start = self.span(node.func)[1] - len("interval")
        end = start + len("interval")
        if node.args and isinstance(node.args[0], ast.Tuple):
            yield Edit(start, end, "quantile_interval")
            first, last = self.span(node.args[0])
            low, high = node.args[0].elts
            yield Edit(first, last, f"{self.text(low)}, {self.text(high)}", moves=True)
        keywords = {keyword.arg for keyword in node.keywords}
        if keywords & {"score", "raps", "seed", "rng"}:
            yield Edit(start, end, "prediction_sets")
        if keywords & {"seed", "rng"}:
            place = self.span(node)[1] - 1
            yield Edit(place, place, ", randomized=True")

    def _is_plan(self, node: ast.expr) -> bool:
        """Say whether an argument is a plan, by what makes it or by its name."""
        text = self.text(node)
        return text in PLAN_NAMES or any(f"{maker}(" in text for maker in PLAN_MAKERS)

    def _is_strategy(self, node: ast.expr) -> bool:
        text = self.text(node)
        return text in ("refit", "strategy") or any(f"lo.{name}" in text for name in STRATEGIES)


def public(module: str, name: str) -> str:
    """Return the public name of a name that a module of the package defines."""
    namespace = module.rpartition(".")[2]
    dotted = f"{namespace}.{name}"
    if module.startswith("extensions.leakage"):
        dotted = f"leakage.{name}"
    elif module.startswith(("reporting.plot", "extensions.clinical.plot")):
        dotted = f"plot.{name}"
    elif module.startswith("extensions.sklearn") or module == "sklearn":
        return f"sklearn.{name}"
    elif module.startswith("tuning.smooth_curves"):
        dotted = f"tuning.{name}"
    elif module.startswith("extensions.cli"):
        return dotted
    if dotted in CALLS or not module or module in NAMESPACES:
        return dotted.lstrip(".")
    return name if name in CALLS or name in MOVED else dotted


def rewrite_python(text: str, file: str = "") -> tuple[str, list[str]]:
    """Return a module in today's words, and what could not be decided."""
    source = Source(text, file=file)
    text = source.rewritten()
    undecided = source.undecided
    text, more = rewrite_examples(text, source.modules, file)
    return rewrite_prose(text), undecided + more


def rewrite_examples(text: str, modules: Mapping[str, str], file: str) -> tuple[str, list[str]]:
    """Rewrite what stands behind prompts, a block of lines at a time."""
    lines = text.splitlines(keepends=True)
    undecided: list[str] = []
    known = dict(modules)
    first = 0
    while first < len(lines):
        prompt = PROMPT.match(lines[first])
        if prompt is None or ">>>" not in lines[first]:
            first += 1
            continue
        last = first + 1
        while (
            last < len(lines)
            and PROMPT.match(lines[last])
            and "..." in lines[last][: len(prompt["indent"]) + 3]
        ):
            last += 1
        indent = prompt["indent"]
        code = "".join(line[len(indent) + 4 :] or "\n" for line in lines[first:last])
        try:
            source = Source(code, known, f"{file}:{first + 1}")
        except SyntaxError:
            undecided.append(f"{file}:{first + 1}: an example that is no Python by itself")
            first = last
            continue
        new = source.rewritten()
        known.update(source.modules)
        undecided += source.undecided
        if new != code:
            rows = new.splitlines()
            lines[first:last] = [
                f"{indent}{'>>>' if row == 0 else '...'} {line}".rstrip() + "\n"
                for row, line in enumerate(rows)
            ]
            last = first + len(rows)
        first = last
    return "".join(lines), undecided


def rewrite_prose(text: str) -> str:
    """Rewrite names and calls that stand between backticks, and moved names in messages."""

    def quoted(match: re.Match[str]) -> str:
        code = match[2]
        try:
            source = Source(code)
            new = source.rewritten()
        except (SyntaxError, ValueError):
            new = code
        return f"{match[1]}{new}{match[1]}"

    def name(match: re.Match[str]) -> str:
        namespace = MOVED.get(match[2])
        if namespace is None or len(match[2]) < 3:
            return match[0]
        return f"{match[1]}.{namespace}.{match[2]}"

    return PRINTED_NAME.sub(name, QUOTED.sub(quoted, text))


def rewrite_markdown(text: str, file: str = "") -> tuple[str, list[str]]:
    """Return a page in today's words, and what could not be decided."""
    undecided: list[str] = []
    modules: dict[str, str] = {}

    def block(match: re.Match[str]) -> str:
        code = textwrap.dedent(match["code"])
        if ">>>" in code:
            new, more = rewrite_examples(code, modules, file)
            undecided.extend(more)
        else:
            try:
                source = Source(code, modules, file)
            except SyntaxError:
                undecided.append(f"{file}: a block that is no Python: {code[:40]!r}")
                return match[0]
            new = source.rewritten()
            modules.update(source.modules)
            undecided.extend(source.undecided)
        if new == code:
            return match[0]
        indented = textwrap.indent(new, match["indent"])
        return match[0].replace(match["code"], indented)

    return rewrite_prose(FENCE.sub(block, text)), undecided


def rewrite(path: Path) -> tuple[str, str, list[str]]:
    """Return the text of a file, the text in today's words, and what could not be decided."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        new, undecided = rewrite_python(text, str(path))
    else:
        new, undecided = rewrite_markdown(text, str(path))
    return text, new, undecided


def files(paths: list[str]) -> Iterator[Path]:
    """Yield the files of Python and Markdown at some paths."""
    for path in map(Path, paths):
        if path.is_dir():
            for suffix in ("*.py", "*.md"):
                yield from sorted(path.rglob(suffix))
        else:
            yield path


def main(arguments: list[str]) -> int:
    """Rewrite files, or print what would change."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    changed = 0
    for path in files(options.paths):
        text, new, undecided = rewrite(path)
        for line in undecided:
            print(f"left as it is: {line}")
        if new != text:
            changed += 1
            print(path)
            if not options.check:
                path.write_text(new, "utf-8")
    print(f"{changed} files {'would change' if options.check else 'changed'}")
    return int(options.check and changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
