"""Compiled programs are kept for other processes, where the user wants them."""

import os
import subprocess
import sys

import numpy as np
import pytest

WHERE = "import jax; from leaveout._runtime import jax as _jax; _jax.ensure_jax(); print(jax.config.jax_compilation_cache_dir)"
FIT = """
import numpy as np, leaveout as lo
x = np.arange(20.0) % 7
print(lo.fit(lo.Separable(lambda theta, x: (x - theta) ** 2 + (x - theta) ** 4, x, theta0=np.zeros(()))).theta)
"""


def answer(program, **environment):
    """What a fresh process prints."""
    rest = {name: value for name, value in os.environ.items() if name not in ("LEAVEOUT_CACHE", "JAX_COMPILATION_CACHE_DIR")}
    done = subprocess.run([sys.executable, "-c", program], env=rest | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_another_process_compiles_nothing_anew(tmp_path):
    programs = lambda: {path.name for path in tmp_path.rglob("*-cache")}
    kept = {"LEAVEOUT_CACHE": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    first = answer(FIT, **kept)
    known = programs()
    assert known
    assert answer(FIT, **kept) == first
    assert programs() == known


@pytest.mark.parametrize("wanted", ["off", "/dev/null/nowhere"], ids=["off", "not to be written to"])
def test_no_folder_no_cache(wanted):
    assert answer(WHERE, LEAVEOUT_CACHE=wanted) == "None"


def test_a_folder_of_the_callers_own_is_left(tmp_path):
    assert answer(WHERE, JAX_COMPILATION_CACHE_DIR=str(tmp_path)) == str(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="the user's cache is named by XDG_CACHE_HOME on Linux")
def test_by_default_it_lies_in_the_users_cache(tmp_path):
    assert answer(WHERE, XDG_CACHE_HOME=str(tmp_path)).startswith(str(tmp_path / "leaveout" / "programs"))


WITHOUT_JAX = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "equinox"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import numpy as np, leaveout as lo
random = np.random.default_rng(0)
X, y, group = random.normal(size=(40, 2)), random.poisson(2.0, 40).astype(float), np.repeat(np.arange(10), 4)
"""


@pytest.mark.parametrize(
    "call",
    [
        "lo.cross_validate(lo.fit(lo.GLM(X, y, 'poisson')), lo.leave_one_out(40))",
        "lo.cross_validate(lo.fit(lo.GLM(X, y, 'poisson')), lo.kfold(40, 5), lo.InfinitesimalJackknife(2))",
        "lo.cross_validate(lo.fit(lo.GLM(X, group % 3, 'multinomial', lo.penalties.Ridge(1.0))), lo.kfold(40, 5))",
        "lo.cross_validate(lo.fit(lo.Mixed(X, y, groups=group, family='poisson')), lo.groups(group))",
    ],
)
def test_without_jax_linear_and_mixed_models_work(call):
    assert np.isfinite(float(answer(f"{WITHOUT_JAX}print({call}.mean)")))


@pytest.mark.parametrize(
    "call",
    [
        "lo.HMM(y, lo.emissions.Poisson(), 2)",
        "lo.CRF",
        "lo.emissions",
        "lo.Cox",
        "lo.from_hmmlearn",
        "lo.fit(lo.GLM(X, y, lambda eta, y: (eta - y) ** 2))",
    ],
)
def test_without_jax_the_error_says_what_to_install(call):
    told = answer(f"{WITHOUT_JAX}\ntry: {call}\nexcept ImportError as error: print(error)")
    assert told.endswith("need JAX, which is not installed: pip install 'leaveout[jax]'.")
