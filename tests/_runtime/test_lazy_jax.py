"""Compiled programs are kept for other processes where the user wants it, found by what they are
made of, and say the same.
"""

import contextlib
import copy
import gc
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import weakref

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from scipy import sparse

import leaveout as lo
from leaveout._runtime import lazy_jax as _jax
from leaveout._runtime.fingerprint import Foreign, fingerprint
from leaveout.models.hidden.complete_data import DerivedData, _tables

WHERE = "import jax; from leaveout._runtime import lazy_jax as _jax; _jax.ensure_jax(); print(jax.config.jax_compilation_cache_dir)"
FIT = """
import numpy as np, leaveout as lo
x = np.arange(20.0) % 7
print(lo.fit(lo.Separable(lambda theta, x: (x - theta) ** 2 + (x - theta) ** 4, x, theta0=np.zeros(()))).theta)
"""


def answer(program, **environment):
    """What a fresh process prints."""
    rest = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LEAVEOUT_CACHE", "JAX_COMPILATION_CACHE_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=rest | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_another_process_compiles_nothing_anew(tmp_path):
    programs = lambda: {path.name for path in tmp_path.rglob("*-cache")}
    kept = {"LEAVEOUT_CACHE": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    first = answer(FIT, **kept)
    known = programs()
    assert known
    assert answer(FIT, **kept) == first
    assert programs() == known


@pytest.mark.parametrize(
    "wanted", ["off", "/dev/null/nowhere"], ids=["off", "not to be written to"]
)
def test_no_folder_no_cache(wanted, monkeypatch):
    """Only who wanted one hears of it."""
    monkeypatch.setenv("LEAVEOUT_CACHE", wanted)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    word = (
        contextlib.nullcontext()
        if wanted == "off"
        else pytest.warns(UserWarning, match="nowhere.* cannot be written")
    )
    try:
        with word:
            assert _jax._set_up_cache.__wrapped__() is None
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_folder_of_the_callers_own_is_left(tmp_path):
    assert answer(WHERE, JAX_COMPILATION_CACHE_DIR=str(tmp_path)) == str(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(
    sys.platform != "linux", reason="the user's cache is named by XDG_CACHE_HOME on Linux"
)
def test_by_default_it_lies_in_the_users_cache(tmp_path):
    assert answer(WHERE, XDG_CACHE_HOME=str(tmp_path)).startswith(
        str(tmp_path / "leaveout" / "programs")
    )


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
CHAINS = """
emissions = lo.emissions
models = [
    (X[:, 0], emissions.Gaussian()), (X, emissions.Gaussian("full")), (y, emissions.Poisson(covariates=X)),
    (X[:, 0], emissions.Autoregressive(1)), (X[:, 0], emissions.NeuralAutoregressive(1, 2)),
    (y, emissions.NegativeBinomial(exposure=np.full(40, 2.0))), (1e5 * y, emissions.NegativeBinomial()),
    (y, emissions.Binomial(9)), (y % 3, emissions.Categorical(3)), (y, emissions.EventCounts(np.arange(40) % 2)),
]
for x, emission in models:
    fit = lo.fit(lo.HMM(x, emission, 2), num_starts=2)
    estimate = lo.cross_validate(fit, lo.kfold(k=5))
    assert lo.cross_predict(fit, lo.kfold(k=5)).shape[0] == 40 and fit.covariance() is not None
    print(estimate.mean)
lo.report(estimate, {page!r})
"""


def test_hidden_markov_models_import_no_jax(tmp_path):
    """Of every emission of the library."""
    page = str(tmp_path / "page.html")
    code = WITHOUT_JAX + CHAINS.replace("{page!r}", repr(page))
    assert np.isfinite([float(line) for line in answer(code).split("\n")]).tolist() == [True] * 10


def test_without_jax_models_in_closed_form_work_and_others_say_what_to_install():
    calls = [
        "lo.cross_validate(lo.fit(lo.GLM(X, y, 'poisson')), lo.leave_one_out(40)).mean",
        "lo.cross_validate(lo.fit(lo.Cox(X, y, group > 2)), lo.leave_one_out(40)).mean",
        "lo.influence(lo.cross_validate(lo.fit(lo.Cox(X, y, group > 2)), lo.kfold(40, 5))).table()['moved'].mean()",
        "lo.cross_validate(lo.fit(lo.GLM(X, y, 'poisson')), lo.kfold(40, 5), strategy=lo.InfinitesimalJackknife(2)).mean",
        "lo.fit(lo.GLM(X, y, 'squared')).summary().iloc[0, 1]",
        "lo.fit(lo.GLM(X, y, 'poisson')).summary().iloc[0, 1]",
        "lo.influence(lo.cross_validate(lo.fit(lo.GLM(X, y, 'squared')), lo.kfold(40, 5))).table()['moved'].mean()",
        "lo.diagnostics.studentized_residuals(lo.fit(lo.GLM(X, y, 'squared'))).mean()",
        "lo.diagnostics.leverage(lo.fit(lo.GLM(X, group % 3, 'multinomial', lo.penalties.Ridge(1.0)))).sum()",
        "lo.cross_validate(lo.fit(lo.GLM(X, group % 3, 'multinomial', lo.penalties.Ridge(1.0))), lo.kfold(40, 5)).mean",
        "lo.cross_validate(lo.fit(lo.Mixed(X, y, groups=group, family='poisson')), lo.groups(group)).mean",
    ]
    others = [
        "lo.CRF",
        "lo.MRF",
        "lo.developer.inference.clique",
        "lo.fit(lo.GLM(X, y, lambda eta, y: (eta - y) ** 2))",
        "lo.tune(lambda a: lo.GLM(X, y, 'squared', lo.penalties.Ridge(a)), {'a': (0.1, 9.0)}, lo.leave_one_out())",
    ]
    lines = [f"print({call})" for call in calls]
    lines += [f"try: {call}\nexcept ImportError as error: print(error)" for call in others]
    told = answer("\n".join([WITHOUT_JAX, *lines])).split("\n")
    assert len(told) == len(lines) and all(np.isfinite(float(line)) for line in told[: len(calls)])
    for call, line in zip(others, told[len(calls) :], strict=True):
        assert line.endswith("need JAX, which is not installed: pip install 'leaveout[jax]'."), call


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_jax, "KEEPING", True)
    return tmp_path / "traced"


def chain(x, states=2, **more):
    emission = lo.emissions.Poisson(**more)
    return DerivedData(lo.HMM(np.asarray(x, float), emission, states)).model


def called(program, *args):
    return program(*jax.tree.flatten((args, {})))


def asked(program, model):
    """As a process would that has just begun: nothing is known but what the folder holds."""
    thetas = np.linspace(0.1, 1.0, model.like["rate"].size)[None]
    with jax.enable_x64(True):
        return float(np.asarray(called(program, model, thetas)).sum())


def fresh(folder):
    return _jax.Program(_tables.__wrapped__.__wrapped__, lambda: folder)


X = np.arange(12) % 5


class Mine(lo.emissions.Poisson):
    """An emission of a user, which JAX derives."""


def test_the_compiler_knows_the_options_for_quick_compilation():
    assert _jax._quick_compilation() == _jax.QUICK_COMPILATION


def test_what_is_found_says_what_was_compiled(folder, monkeypatch):
    first = asked(fresh(folder), chain(X))
    kept = list(folder.iterdir())
    assert len(kept) == 1
    monkeypatch.setattr(_jax.Program, "_export", lambda *args: pytest.fail("traced again"))
    monkeypatch.setattr(_jax.Program, "jitted", property(lambda self: pytest.fail("traced again")))
    assert asked(fresh(folder), chain(X)) == first
    other = asked(fresh(folder), chain(X[::-1].copy()))  # data of the same shapes
    monkeypatch.undo()
    monkeypatch.setattr(_jax, "KEEPING", False)
    traced = asked(fresh(folder), chain(X)), asked(fresh(folder), chain(X[::-1].copy()))
    # another program: its sums may be in another order
    np.testing.assert_allclose(traced, (first, other), rtol=1e-13)
    assert list(folder.iterdir()) == kept


def test_results_do_not_depend_on_whether_programs_are_kept(folder, monkeypatch):
    kept = asked(fresh(folder), chain(X))
    monkeypatch.setattr(
        _jax.Program, "jitted", property(lambda self: pytest.fail("compiled in another way"))
    )
    assert asked(fresh(None), chain(X)) == kept


def test_programs_under_one_anothers_names_are_made_anew(folder):
    right = [asked(fresh(folder), chain(X, states)) for states in (2, 3)]
    one, other = folder.iterdir()
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])
    for states, value in zip((2, 3), right, strict=True):
        with pytest.warns(
            UserWarning, match="does not hold the compiled program that it is named after"
        ):
            assert asked(fresh(folder), chain(X, states)) == value
        assert asked(fresh(folder), chain(X, states)) == value  # without a word


def test_compiled_code_under_another_programs_name_is_made_anew(tmp_path):
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    steps = {
        "up": lambda arrays: arrays[0] + 1,
        "down": lambda arrays: arrays[0] - 1,
        "both": lambda arrays: (2 * arrays[0], arrays[0]),
    }
    ones = [np.ones(3, np.float32)]
    programs = {name: jax.export.export(jax.jit(step))(ones) for name, step in steps.items()}
    compiled = lambda name: np.asarray(_jax._compile(programs[name], name, ones)(ones)).tolist()
    files = lambda: [next(tmp_path.glob(f"jit_{name}-*-cache")) for name in steps]
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        right = {name: compiled(name) for name in steps}
        contents = [file.read_bytes() for file in files()]
        for file, content in zip(files(), contents[1:] + contents[:1], strict=True):
            file.write_bytes(content)
        for name in steps:
            with pytest.warns(
                UserWarning, match="does not hold the compiled program that it is named after"
            ):
                assert compiled(name) == right[name]
            assert compiled(name) == right[name]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def test_another_shape_constant_setting_or_source_is_another_program(folder, monkeypatch):
    asked(fresh(folder), chain(X))
    asked(fresh(folder), chain(X, states=3))
    assert len(list(folder.iterdir())) == 2
    with jax.default_matmul_precision("float32"):
        asked(fresh(folder), chain(X))
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(_jax, "_surroundings", lambda: ["another source"])
    asked(fresh(folder), chain(X))
    assert len(list(folder.iterdir())) == 4


def flipped(content: bytes) -> bytes:
    """Change one bit in the middle, where it is the text of the program."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGES = {
    "empty": lambda content: b"",
    "no program": lambda content: b"damaged",
    "cut": lambda content: content[: len(content) // 2],
    "one bit": flipped,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(folder, damage):
    first = asked(fresh(folder), chain(X))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(DAMAGES[damage](whole))
    with pytest.warns(UserWarning, match="does not hold"):
        assert asked(fresh(folder), chain(X)) == first
    assert len(file.read_bytes()) > len(whole) // 2


def test_code_of_others_is_never_kept(folder):
    model = DerivedData(lo.HMM(X.astype(float), Mine(), 2)).model
    assert np.isfinite(asked(fresh(folder), model))
    program = _jax.Program(lambda scale, x: scale(x), lambda: folder)
    assert called(program, lambda x: 2 * x, np.ones(2)).tolist() == [2, 2]
    assert not folder.exists()


def test_code_that_calls_back_is_not_kept_and_not_traced_twice(folder, monkeypatch):
    def double(x):
        return jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct((2,), np.float32), x)

    monkeypatch.setattr(_jax, "TRUSTED_MODULES", (*_jax.TRUSTED_MODULES, __name__))
    ones = np.ones(2, np.float32)
    assert called(_jax.Program(double, lambda: folder), ones).tolist() == [2, 2]
    monkeypatch.setattr(_jax.Program, "_export", lambda *args: pytest.fail("traced again"))
    assert called(_jax.Program(double, lambda: folder), ones).tolist() == [2, 2]


def test_functions_that_share_a_name_are_told_apart():
    def lambdas():
        return (lambda x: x + 1, lambda x: x - 1)

    trusted = {"builtins", __name__.split(".")[0]}
    assert len({fingerprint(each, trusted=trusted) for each in lambdas()}) == 2
    assert fingerprint(lambdas()[0], trusted=trusted) == fingerprint(lambdas()[0], trusted=trusted)
    with pytest.raises(Foreign, match="lambdas"):
        fingerprint(lambdas()[0], trusted={"builtins"})
    with pytest.raises(Foreign):
        fingerprint(
            type("Active", (lo.emissions.Poisson,), {"__module__": "leaveout"}),
            trusted={"builtins", "leaveout"},
        )


def test_the_programs_used_longest_ago_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(_jax, "MAX_EXPORTED_BYTES", 25)
    for k in range(4):
        (tmp_path / str(k)).write_bytes(b"0123456789")
        os.utime(tmp_path / str(k), (k, k))
    _jax.forget_programs(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"2", "3"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_forked_child_of_a_process_that_used_jax_is_told_so():
    """It would hang at the first program. What needs none goes on."""
    jax.numpy.zeros(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            said += (
                f"{lo.fit(lo.GLM(np.eye(6)[:, :1], np.arange(6.0), 'squared')).vector.tolist()} "
            )
            lo.fit(lo.HMM(X.astype(float), Mine(), 2))
        except BaseException as error:
            said += f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 60)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = os.read(reader, 10_000).decode() if ready else "it hangs"
    os.close(reader)
    assert re.match(r"\[-?[\d.]+, [\d.]+\] RuntimeError: .*forked.*spawn", said), said


def test_a_caller_who_debugs_gets_what_is_traced(folder):
    with jax.debug_nans(True):
        asked(fresh(folder), chain(X))
    assert not folder.exists()
    assert _jax._set_up_cache() is not None


def test_a_program_within_another_has_the_options_of_the_other():
    inner = _jax.compile_static(lambda x: 2 * x)
    outer = _jax.compile_static(lambda x: inner(x) + 1)
    assert float(outer(np.array(3.0))) == 7.0


@pytest.mark.parametrize("kind", ["lasso", "ridge", "wide", "series"])
def test_a_fit_is_freed_with_what_was_cached_for_it(kind):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 4))
    y = X[:, 0] + rng.standard_normal(40)
    models = {
        "lasso": lambda: lo.GLM(X, y, "squared", lo.penalties.Lasso(8.0)),
        "ridge": lambda: lo.GLM(X, y > 0, "logistic", lo.penalties.Ridge(1.0)),
        "wide": lambda: lo.GLM(
            sparse.random_array((30, 3000), density=0.01, rng=rng, format="csr"),
            y[:30],
            "squared",
            lo.penalties.Ridge(1.0),
        ),
        "series": lambda: lo.HMM(y, lo.emissions.Gaussian(), 2),
    }
    fit = lo.fit(models[kind]())
    plan = lo.blocks(size=10) if kind == "series" else lo.leave_one_out()
    mean = lo.cross_validate(fit, plan).mean
    alive = [weakref.ref(part) for part in (fit, fit.objective, fit.quadratic)]
    del fit
    gc.collect()
    assert np.isfinite(mean) and [part() for part in alive] == [None] * 3


def test_a_copy_has_none_of_what_was_cached():
    @_jax.cached_on
    def size(model):
        return model.penalty.alpha

    model = lo.GLM(np.eye(4), np.arange(4.0), "squared", lo.penalties.Ridge(1.0))
    assert size(model) == 1.0
    other = copy.copy(model)
    vars(other)["penalty"] = lo.penalties.Ridge(2.0)
    sent = pickle.loads(pickle.dumps(other))
    assert (size(other), size(sent), size(model)) == (2.0, 2.0, 1.0)
