"""Rooms import from rooms above them, no two modules import each other, and the package loads no
more than it needs.
"""

import ast
import dataclasses
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import equinox as eqx
import house
import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout import developer
from leaveout.extensions.cli import COMMANDS
from tests.helpers import OBJECTIVES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "leaveout"
# The table of rooms in CONTRIBUTING, in the order in which they may import one another.
ROOMS = re.findall(
    r"^\| `([\w/]+)` \| ",
    (ROOT / "CONTRIBUTING.md").read_text().split("## Rooms")[1].split("\n## ")[0],
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def library():
    return house.Library()


@pytest.fixture(scope="module")
def imports(library):
    return {
        module: library.imports(module)
        for module, path in library.modules.items()
        if path.parent != SOURCE and module != ("extensions",)
    }


def room(module):
    """The room that a module stands in: a folder of the package, or of `extensions`."""
    return "/".join(module[: 2 if module[0] == "extensions" else 1])


def test_every_room_stands_in_the_table(imports):
    assert {room(module) for module in imports} == set(ROOMS)


def test_rooms_import_from_rooms_above(imports):
    wrong = defaultdict(set)
    for module, names in imports.items():
        below = ROOMS[ROOMS.index(room(module)) + 1 :]
        wrong[".".join(module)] |= {".".join(name) for name in names if room(name) in below}
    assert not {module: names for module, names in wrong.items() if names}


def test_the_core_imports_no_extension(imports):
    for module, names in imports.items():
        if module[0] != "extensions":
            assert not [name for name in names if name[0] == "extensions"], module


def test_extensions_import_public_names_and_the_contract(imports):
    """The command line imports public names alone."""
    public = {(name,) for name in (*lo.__all__, "models", "inference")}
    for module, names in imports.items():
        if module[0] == "extensions":
            core = {name for name in names if name[0] != "extensions"} - public
            assert core <= ({("developer",)} if module[1] != "cli" else set()), (module, core)


@pytest.fixture(scope="module")
def from_imports(library):
    """The statements `from ... import ...` of each file."""
    return {
        path: [node for node in nodes if isinstance(node, ast.ImportFrom)]
        for path, nodes in library.nodes.items()
    }


def test_the_contract_is_what_extensions_import(from_imports):
    """Each name has its docstring where it is defined, and none is without a use.

    Two rooms are there for models of one's own.
    """
    used = {"inference", "models"}
    for path, nodes in from_imports.items():
        for node in nodes if path.is_relative_to(SOURCE / "extensions") else ():
            if (node.module or "").endswith("developer"):
                used |= {alias.name for alias in node.names}
    assert used == set(developer.__all__)
    for name in developer.__all__:
        value = getattr(developer, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), name


LISTED = (
    *("_runtime", "data", "linalg", "plans", "objectives", "models/glm", "optimize"),
    "refit",
)


@pytest.mark.parametrize("room", LISTED)
def test_the_list_of_a_room_is_what_others_import(room, from_imports):
    """Each name is there, and none is without a use."""
    face = importlib.import_module(f"leaveout.{room.replace('/', '.')}")
    files = {path.stem for path in (SOURCE / room).glob("*.py")}
    used = set()
    for path, nodes in from_imports.items():
        for node in nodes:
            if node.level:
                place = path.parents[node.level - 1] / (node.module or "").replace(".", "/")
                if place == SOURCE / room:
                    used |= {alias.name for alias in node.names} - files
    assert used == set(face.__all__)
    assert all(hasattr(face, name) for name in used)


def test_no_modules_import_each_other(library):
    assert library.circles() == 0


def test_an_objective_has_few_members():
    own = [name for name in vars(lo.developer.AbstractObjective) if not name.startswith("_")]
    assert len(own) <= 18, own


def test_records_are_no_leaves():
    for name in ("logistic", "hidden Markov", "separable"):
        objective = OBJECTIVES[name]()
        before = jax.tree.structure(objective)
        assert objective.units and objective.parameters and objective.costs is not None
        assert jax.tree.structure(objective) == before and all(
            isinstance(leaf, np.ndarray) or callable(leaf) for leaf in jax.tree.leaves(objective)
        )


HEAVY = ("jax", "equinox", "sklearn", "scipy.linalg", "pandas", "matplotlib")


def imported(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of some modules are there after a program of its own."""
    asked = f"{code}\nimport sys\nprint(*(name for name in {names} if name in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return done.stderr.split()


def test_nothing_heavy_is_imported_before_it_is_used():
    assert imported("import leaveout; assert leaveout.__version__", HEAVY) == []


def test_the_list_of_commands_imports_no_command():
    """What `leaveout --help` prints is also what each command says of itself."""
    shown = "from typer.testing import CliRunner; from leaveout.extensions.cli import app; CliRunner().invoke(app, ['--help'])"
    assert imported(shown, (*HEAVY, "numpy", "leaveout.extensions.cli.glm")) == []
    for name, summary in COMMANDS.items():
        function = getattr(importlib.import_module(f"leaveout.extensions.cli.{name}"), name)
        assert " ".join(function.__doc__.partition("\n\n")[0].split()) == summary


def test_linear_models_need_no_compiler():
    """Of every loss in closed form, and of what the command line imports."""
    code = """
import warnings
import numpy as np, leaveout as lo, leaveout.extensions.cli.glm
rng = np.random.default_rng(0)
X, plan = rng.standard_normal((40, 2)), lo.kfold(40, 5)
y = {"squared": X[:, 0], "multinomial": np.arange(40) % 3, "gamma": rng.gamma(2.0, size=40), "poisson": rng.poisson(2.0, 40)}
for loss in ("squared", "logistic", "probit", "multinomial", "poisson", "gamma", "pseudo_huber"):
    fit = lo.fit(lo.GLM(X, y.get(loss, np.arange(40) % 2), loss, lo.penalties.Ridge(0.1)))
    print(fit.parameters, lo.cross_validate(fit, lo.leave_one_out(40)), lo.cross_predict(fit, plan))
    lo.cross_validate(fit, plan, strategy=lo.InfinitesimalJackknife())
    lo.cross_validate(fit, plan, strategy=lo.Exact(), metric="mse" if loss != "multinomial" else ())
repeated = lo.fit(lo.GLM(np.c_[X, X[:, 0]], y["poisson"], "poisson"))
lo.cross_validate(repeated, plan)
"""
    assert imported(code, ("jax", "equinox")) == []


def test_double_precision_begins_where_jax_is_imported():
    """A model in closed form, then what needs JAX, in one process that had not imported it.

    Its setting is left alone.
    """
    code = """
import numpy as np, leaveout as lo
X = np.random.default_rng(0).standard_normal((30, 2))
fit = lo.fit(lo.GLM(X, X[:, 0] > 0.3 * X[:, 1], "logistic", lo.penalties.Ridge(1.0)))
found = lo.diagnostics.leverage(fit)
assert float(fit.objective.loss(fit.theta, np.ones(30))) > 0
import jax
assert not jax.config.jax_enable_x64 and jax.numpy.ones(1).dtype == np.float32
assert jax.tree.leaves(fit)[0].dtype == np.float64
rows = np.c_[X, np.ones(30)]
share = 1 / (1 + np.exp(-rows @ np.append(fit.parameters["coef"], fit.parameters["intercept"])))
curvature = share * (1 - share)
inverse = np.linalg.inv(rows.T @ (curvature[:, None] * rows) + np.diag([1.0, 1.0, 0.0]))
assert np.allclose(found, curvature * np.sum((rows @ inverse) * rows, axis=1), rtol=1e-12, atol=0)
"""
    assert imported(code, ("jax", "equinox")) == ["jax"]


def test_a_class_of_ones_own_is_frozen():
    class Normal(lo.developer.AbstractObjective):
        x: np.ndarray
        scale: float = 1.0

        @property
        def num_units(self):
            return len(self.x)

        def loss(self, theta, weights):
            return weights @ (self.x - theta) ** 2 / self.scale

    model = Normal(np.arange(3.0))
    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"{name!r} of Normal"):
            setattr(model, name, np.zeros(3))
    assert dataclasses.replace(model, scale=2.0).scale == 2.0 and model.scale == 1.0
    assert pickle.loads(pickle.dumps(lo.losses.Gamma(2.0))).shape == 2.0
    assert repr(lo.Exact()) == "Exact()" and repr(lo.Exact(0.1)) == "Exact(tol=0.1)"
    with pytest.raises(TypeError, match="write __init__ or __post_init__"):

        class Converted(lo.developer.AbstractRefit):
            steps: int = eqx.field(converter=int)


def test_the_table_of_contents_is_true():
    for name in lo.__all__:
        assert getattr(lo, name) is not None, name
    assert set(lo.__all__) <= set(dir(lo))


def test_names_that_never_were_are_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        lo.no_such_name
