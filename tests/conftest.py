# ruff: noqa: E402
import ctypes
import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

# compiling is most of the time of these tests
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# stages of it, a third less time, and one part a program, half the pages; an XLA that knows no such
# flags ends the process
FEWER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1" and "PYTEST_XDIST_WORKER" not in os.environ:
    # beside those of the caller, such as another processor's
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FEWER}".strip()
    probe = [sys.executable, "-c", "import jax; jax.devices()"]
    if (
        subprocess.run(
            probe, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, check=False
        ).returncode
        == 0
    ):
        os.environ["XLA_FLAGS"] = flags  # of workers too
# shared by processes side by side
os.environ.setdefault("LEAVEOUT_CACHE", str(Path(__file__).parents[1] / ".pytest_cache"))

import jax
import jaxtyping
import numpy as np
import pytest
import threadpoolctl

from tests import shapes

# a core a worker: threads that wait for one another's take many times as long
if "PYTEST_XDIST_WORKER" in os.environ:
    threadpoolctl.threadpool_limits(1, "blas")  # of what is loaded, and
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # what will be

SOURCE = Path(__file__).parents[1] / "src" / "leaveout"
ELSEWHERE = {"cli", "out_of_core", "sklearn"}  # rooms whose annotations carry no shapes
# modules that warn in their caller's name, which the check's own frames would hide, or carry no
# shapes
UNCHECKED = {
    "data.datasets",
    "leakage._estimate",
    "reporting.plot",
}
CHECKED = [
    path.relative_to(SOURCE)
    for path in SOURCE.rglob("*.py")
    if path.stem != "__init__" and path.parent != SOURCE
]
MODULES = {
    ".".join(path.with_suffix("").parts) for path in CHECKED if path.parts[0] not in ELSEWHERE
}
if not os.environ.get("LEAVEOUT_UNCHECKED"):
    jaxtyping.jaxtyped = shapes.checked  # the decorator that the hook puts at every function
    jaxtyping.install_import_hook(
        [f"leaveout.{module}" for module in sorted(MODULES - UNCHECKED)], "beartype.beartype"
    )

import leaveout as lo
from leaveout._runtime import jax as _jax

# every test traces: that checks shapes, and sees what it puts in the place of constants
_jax.KEEPING = False

jax.config.update("jax_numpy_dtype_promotion", "standard")


# Tests of some seconds whose code shorter tests run too. They are slow, as are those that say so
# where they stand.
LONG = {
    "tests/_runtime/test_parallel.py::test_two_make_the_numbers_of_one[starts]",
    "tests/cli/test_console.py::test_steps_are_named_by_a_column_of_times",
    "tests/cli/test_files.py::test_labels_stay_as_they_are_written[hmm-1]",
    "tests/cli/test_files.py::test_rows_of_a_series_go_by_their_times",
    "tests/cli/test_options.py::test_the_examples_run[report]",
    "tests/diagnostics/test_covariance.py::test_whole_sequences_of_a_hidden_markov_model",
    "tests/diagnostics/test_influence.py::test_steps_of_a_hidden_markov_model",
    "tests/inference/test_chain.py::test_sums_in_parts_are_those_of_one[True]",
    "tests/inference/test_compiled.py::test_enumeration[four states-0]",
    "tests/interop/test_count_losses.py::test_counts_left_out_are_the_hosts_refits[zinb]",
    "tests/interop/test_count_losses.py::test_counts_left_out_are_the_hosts_refits[zip, design]",
    "tests/interop/test_count_losses.py::test_counts_left_out_are_the_hosts_refits[zip]",
    "tests/interop/test_sklearn.py::test_exact_is_the_hosts_own_refit[HuberRegressor, no intercept-True]",
    "tests/linalg/test_group_norms.py::test_every_refit_is_that_of_proximal_gradients[squared-0]",
    "tests/linalg/test_sparse_design.py::test_every_plan_and_strategy_gives_the_numbers_of_dense_rows[logistic-averaged]",
    "tests/models/emissions/test_base.py::test_derivatives[gaussian, diagonal]",
    "tests/models/emissions/test_base.py::test_derivatives[gaussian, full]",
    "tests/models/emissions/test_base.py::test_derivatives[negative binomial, two channels]",
    "tests/models/glm/test_glm.py::test_self_concordance[Tweedie]",
    "tests/models/hidden/test_compiled_passes.py::test_estimates_are_the_same",
    "tests/models/hidden/test_hidden_chain.py::test_padding_says_nothing[one sequence-observation]",
    "tests/models/hidden/test_hidden_field.py::test_without_edges_it_is_a_multinomial_regression",
    "tests/models/hidden/test_hmm.py::test_edges_are_told_from_scales[tied]",
    "tests/models/hidden/test_information.py::test_hessian_by_parts[autoregressive-sequence-8]",
    "tests/models/hidden/test_mrf.py::test_fit_learns_the_coupling",
    "tests/models/latent/test_field.py::test_a_refit_whose_sites_leave_a_coefficient_open_has_no_loss[gaussian-refit1]",
    "tests/models/latent/test_field.py::test_a_refit_whose_sites_leave_a_coefficient_open_has_no_loss[poisson-refit1]",
    "tests/models/latent/test_field.py::test_a_refit_whose_sites_leave_a_coefficient_open_has_no_loss[poisson-refit3]",
    "tests/models/survival/test_cox.py::test_weights_and_entry_times_by_enumeration_and_by_refits[entry-breslow]",
    "tests/models/survival/test_cox.py::test_weights_and_entry_times_by_enumeration_and_by_refits[sample_weight-breslow]",
    "tests/models/survival/test_cox.py::test_weights_and_entry_times_by_enumeration_and_by_refits[strata entry-efron]",
    "tests/objectives/test_contiguous_folds.py::test_one_pass_says_what_a_pass_of_each_fold_says[single steps]",
    "tests/refit/test_active_cox.py::test_refits_are_minima_over_all_coefficients[penalty3-kind3]",
    "tests/refit/test_active_cox.py::test_refits_are_minima_over_all_coefficients[penalty5-kind5]",
    "tests/refit/test_linear.py::test_errors_of_proportions_are_estimated[probit]",
    "tests/reporting/test_report.py::test_it_fits_the_screen[1200-one]",
    "tests/reporting/test_report.py::test_it_fits_the_screen[1200-several]",
    "tests/reporting/test_report.py::test_it_fits_the_screen[1200-wild]",
    "tests/reporting/test_report.py::test_it_fits_the_screen[390-several]",
    "tests/reporting/test_report.py::test_it_is_done_again_by_the_code_of_the_page[lasso]",
    "tests/reporting/test_report.py::test_joint_losses_and_series",
    "tests/reporting/test_report.py::test_steps_are_at_their_times[numbers]",
    "tests/sklearn/test_validation.py::test_scores_are_those_of_scikit_learns_own_refits[Huber]",
    "tests/test_laws.py::test_perturbation_and_hessian_change_equal_their_defaults[gamma]",
    "tests/test_laws.py::test_perturbation_and_hessian_change_equal_their_defaults[logistic]",
    "tests/test_laws.py::test_perturbation_and_hessian_change_equal_their_defaults[pseudo-huber, penalty not quadratic]",
    "tests/test_laws.py::test_weight_zero_is_deletion_and_weight_two_is_duplication[logistic]",
    "tests/tools/test_docstrings.py::test_examples_run[inference/chain.py]",
    "tests/tools/test_docstrings.py::test_examples_run[inference/moments.py]",
    "tests/tools/test_docstrings.py::test_examples_run[interop/hmmlearn.py]",
    "tests/tools/test_docstrings.py::test_examples_run[interop/skglm.py]",
    "tests/tools/test_docstrings.py::test_examples_run[reporting/plot.py]",
    "tests/tools/test_docstrings.py::test_examples_run[reporting/report.py]",
    "tests/tools/test_house.py::test_every_goal_is_met",  # which `make lint` says too
    "tests/tools/test_house.py::test_the_table_in_contributing_is_what_the_program_prints",
    "tests/validation/test_cross_validate.py::test_what_a_fit_says_of_its_states_is_computed_once",
    "tests/validation/test_scorers.py::test_scikit_learns_names_give_its_values[--roc_auc_ovo]",
    "tests/validation/test_scoring.py::test_a_models_own_density_is_its_own_loss",
    "tests/validation/test_scoring.py::test_responses_of_chains_and_survival_times[survival times]",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid in LONG:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    # modules and tests stay to the end: no collection of garbage looks through them again
    gc.freeze()


@pytest.fixture(autouse=True)
def untouched():
    """The caller's JAX setting is what it was, after every test."""
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before


@pytest.fixture(autouse=True)
def same_draws():
    """Hosts without a random_state draw from NumPy's global generator.

    Every test begins with the same one.
    """
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    yield
    np.random.set_state(before)  # noqa: NPY002


STATM, MAPS = Path("/proc/self/statm"), Path("/proc/self/maps")
MAX_RESIDENT = 1_200  # MB of a worker above which compiled programs go
MAX_GROWTH = 300  # MB by which it grows before they go again
# mapped pages: Linux allows 65,530, beyond which XLA crashes. Counting takes time
MAX_PAGES = 40_000
ENDED = itertools.count()  # tests
cleared = [0.0]  # MB after programs went last


def resident():
    """MB of memory that this process holds."""
    return (
        int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        if STATM.exists()
        else 0.0
    )


@pytest.fixture(autouse=True)
def few_programs():
    """Every compiled program keeps memory and mapped pages."""
    yield
    much = resident() > max(MAX_RESIDENT, cleared[0] + MAX_GROWTH)
    if much or (
        next(ENDED) % 10 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MAX_PAGES
    ):
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # free memory goes back
        cleared[0] = resident()


@pytest.fixture(autouse=True)
def no_pictures():
    """Pyplot keeps figures until they are closed."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def heart():
    """The heart-failure data, where they are to be had."""
    folder = os.environ.get("LEAVEOUT_DATA", "")
    if not os.path.exists(os.path.join(folder, "heart_failure/heart.csv")):
        pytest.skip("needs heart_failure/heart.csv in the folder named by LEAVEOUT_DATA")
    return lo.datasets.heart_failure()
