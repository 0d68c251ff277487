"""The contract of extensions, by subject. Each name has its docstring where it is defined."""

# rooms and bases of models of one's own
from . import inference as inference, models as models

# names of types of arrays
from ._runtime.arrays import (
    HALF_LOG_TAU as HALF_LOG_TAU,
    AnyFunction as AnyFunction,
    AnyPair as AnyPair,
    AnyTuple as AnyTuple,
    ArrayFunction as ArrayFunction,
    ArrayList as ArrayList,
    ArrayTuple as ArrayTuple,
    BoolArray as BoolArray,
    FloatArray as FloatArray,
    Indices as Indices,
    IntArray as IntArray,
    LaneEntries as LaneEntries,
    MakeArray as MakeArray,
    NamedArrays as NamedArrays,
    NamedCounts as NamedCounts,
    NamedNumbers as NamedNumbers,
    NamedValues as NamedValues,
    NumberAndArray as NumberAndArray,
    NumpyArray as NumpyArray,
    PerRow as PerRow,
    RowFlags as RowFlags,
    RowNumbers as RowNumbers,
    Shape as Shape,
    Strings as Strings,
    Texts as Texts,
    ThreeNumbers as ThreeNumbers,
    TwoArrays as TwoArrays,
    TwoCounts as TwoCounts,
    TwoNumbers as TwoNumbers,
    TwoTexts as TwoTexts,
    UnaryFunction as UnaryFunction,
    UnitNumbers as UnitNumbers,
    join as join,
    largest_first as largest_first,
    level_numbers as level_numbers,
    members_by_label as members_by_label,
    silence as silence,
    slices as slices,
)

# steps that a file keeps, for a call that continues
from ._runtime.checkpoint import (
    File as File,
    StepResult as StepResult,
    keep as keep,
    keeping as keeping,
    making as making,
    num_saved_steps as num_saved_steps,
    read_or_make as read_or_make,
    read_step as read_step,
)

# conventions of public functions, and warnings that point at the caller
from ._runtime.conventions import Rng as Rng, conventional as conventional, warn as warn

# hashes of what a result depends on
from ._runtime.fingerprint import fingerprint as fingerprint

# Ctrl-C
from ._runtime.interrupt import stoppable as stoppable

# JAX, imported when it is used, and compiled programs
from ._runtime.lazy_jax import (
    Array as Array,
    Arrays as Arrays,
    PyTree as PyTree,
    Scalar as Scalar,
    cached_on as cached_on,
    call_traced as call_traced,
    compile_static as compile_static,
    float64 as float64,
    jax as jax,
    jnp as jnp,
    jspecial as jspecial,
    numpy_of as numpy_of,
    static as static,
)

# pandas, imported at its first use
from ._runtime.pandas import pd as pd

# steps in other processes
from ._runtime.parallel import (
    describe_rows as describe_rows,
    map_rows as map_rows,
    over as over,
    steps as steps,
    workers as workers,
)

# progress bars
from ._runtime.progress import Slow as Slow

# modules that are registered, and optional libraries
from ._runtime.providers import optional as optional, provided as provided

# codes of refits, and results that print
from ._runtime.results import (
    NO_REFIT_CODES as NO_REFIT_CODES,
    AbstractPosterior as AbstractPosterior,
    Lines as Lines,
    PagedResult as PagedResult,
    PrintedResult as PrintedResult,
    PrintedTable as PrintedTable,
    among as among,
    kind_of as kind_of,
    record as record,
)

# what callers hand in: numbers, labels, frames
from .data.arrays import (
    Names as Names,
    TransformedResponse as TransformedResponse,
    codes as codes,
    count as count,
    flags as flags,
    floats as floats,
    generator as generator,
    index_of as index_of,
    is_default_index as is_default_index,
    label_texts as label_texts,
    match_labels as match_labels,
    numbers as numbers,
    pandas_of as pandas_of,
    share as share,
)

# formulas
from .data.formulas import (
    FormulaReader as FormulaReader,
    frame_of as frame_of,
    join_remarks as join_remarks,
    stateful_remark as stateful_remark,
)

# factors, and whether a matrix has one
from .linalg.curvature import Curvature as Curvature, solve_each as solve_each

# rows of linear predictors, and their losses
from .linalg.design import (
    DENSE_BLOCK as DENSE_BLOCK,
    AnyShape as AnyShape,
    DenseDesign as DenseDesign,
    Loss as Loss,
    MultiOutputDesign as MultiOutputDesign,
    Predictors as Predictors,
    RefitUnits as RefitUnits,
    StackedLoss as StackedLoss,
    weight_terms as weight_terms,
)

# the theorem that proves how near a refit is
from .linalg.enclosure_theorem import RadiusTable as RadiusTable, change as change

# the loop of all steps
from .linalg.iteration import (
    Lanes as Lanes,
    LaneState as LaneState,
    Proposal as Proposal,
    SharedFactors as SharedFactors,
    anywhere as anywhere,
    decrements as decrements,
    everyone_or as everyone_or,
    iterate as iterate,
    without_values as without_values,
)

# arrays that are mapped from a file
from .linalg.mapped_design import is_mapped as is_mapped

# bounds of rounding
from .linalg.rounding import (
    Rounding as Rounding,
    bounded as bounded,
    condition as condition,
    factor_error as factor_error,
)

# sparse rows
from .linalg.sparse_design import SparseDesign as SparseDesign

# emissions
from .models.emissions.gaussian import inverse as inverse

# linear models in other coordinates, and how models read their columns
from .models.glm.active_coefficients import ActiveGLM as ActiveGLM, kinks as kinks
from .models.glm.orthogonal import OrthogonalGLM as OrthogonalGLM
from .models.glm.rows import column as column, design as design, new_rows as new_rows

# effects of a formula
from .models.latent.effects import EffectBlock as EffectBlock

# F of a batch of refits
from .objectives.batch_functions import (
    ONE as ONE,
    function as function,
    functions as functions,
    weights_of as weights_of,
    whole as whole,
)

# objectives in NumPy
from .objectives.closed_form import (
    GRADIENT_DIFFERENCE as GRADIENT_DIFFERENCE,
    AbstractSolved as AbstractSolved,
    State as State,
    ValueAndGradient as ValueAndGradient,
    Weights as Weights,
)

# parameters as trees and as vectors, and names of losses
# bases of objectives and of strategies
from .objectives.objective import (
    LOG_DENSITY as LOG_DENSITY,
    LOG_LIKELIHOOD as LOG_LIKELIHOOD,
    LOG_PROBABILITY as LOG_PROBABILITY,
    AbstractObjective as AbstractObjective,
    Hessian as Hessian,
    Matrix as Matrix,
    PerLane as PerLane,
    PerListed as PerListed,
    PerUnit as PerUnit,
    Points as Points,
    RefitFlags as RefitFlags,
    RefitPoints as RefitPoints,
    UnitIndex as UnitIndex,
    Vector as Vector,
    as_stored as as_stored,
    display_name as display_name,
    leaves_of as leaves_of,
    map_arrays as map_arrays,
    ravel as ravel,
    unflatten as unflatten,
    unravel as unravel,
)

# weights of units
from .objectives.unit_weights import (
    UnitWeights as UnitWeights,
    plan_reader as plan_reader,
    unit_weights as unit_weights,
)

# minimisers
from .optimize.active_set import NoMinimiser as NoMinimiser, look as look

# fits at parameters that another program has found
from .optimize.fit import (
    REFUSE as REFUSE,
    WARN as WARN,
    HostErrors as HostErrors,
    describe_distance as describe_distance,
    standing as standing,
)

# factors
from .optimize.hessian_factor import cholesky as cholesky

# Newton's method
from .optimize.newton import NewtonResult as NewtonResult, newton as newton

# plans, cut into batches
from .plans.plan import CAPACITY as CAPACITY, Batch as Batch, RefitRows as RefitRows

# plans as callers write them
from .plans.reading import PlanLike as PlanLike

# steps of refits, without single rows too, and their errors
from .refit._anchor import (
    OWN_HESSIAN_BELOW as OWN_HESSIAN_BELOW,
    curvature_error as curvature_error,
    gradient_error as gradient_error,
)
from .refit._linear import within as within
from .refit._refit_batch import RefitBatch as RefitBatch
from .refit._single_rows import (
    OneRow as OneRow,
    Row as Row,
    RowSample as RowSample,
    estimated_half as estimated_half,
    is_short as is_short,
    next_term as next_term,
    sherman_morrison_step as sherman_morrison_step,
)
from .refit._strategies import AbstractRefit as AbstractRefit

# pages
from .reporting.page import (
    Figure as Figure,
    Page as Page,
    PageTable as PageTable,
    row_bars as row_bars,
)

# pictures
from .reporting.plot import (
    DASHED as DASHED,
    DRAWN_POINTS as DRAWN_POINTS,
    axes_of as axes_of,
    band as band,
    legend as legend,
    legend_above as legend_above,
)

# what a page asks and answers
from .reporting.questions import Card as Card

# lengths of tables and pictures
from .reporting.report import DRAWN_BARS as DRAWN_BARS, TABLE_ROWS as TABLE_ROWS

# results of ArviZ
from .validation.arviz import elpd_data as elpd_data

# audits
from .validation.audit import PROGRAM_ROUNDING as PROGRAM_ROUNDING, REASONS as REASONS

# batches of refits, each refitted and read
from .validation.batches import (
    Collected as Collected,
    CollectedColumns as CollectedColumns,
    one_thread as one_thread,
    over_refits as over_refits,
)

# checks
from .validation.checks import reader_of as reader_of

# results that can be compared, and the tails of numbers
from .validation.compare import (
    AbstractComparable as AbstractComparable,
    fit_pareto as fit_pareto,
    probability_of_worse as probability_of_worse,
)

# refits by a fit and a plan
from .validation.cross_validate import (
    EstimateBuilder as EstimateBuilder,
    cache_key as cache_key,
    fold_thetas as fold_thetas,
    held_out as held_out,
    objective_of as objective_of,
    reader_for as reader_for,
    strategy_of as strategy_of,
    strategy_of_predictions as strategy_of_predictions,
)

# printed estimates
from .validation.estimate import PrintedTexts as PrintedTexts

# held-out predictions
from .validation.held_out_predictions import (
    PredictionColumns as PredictionColumns,
    Predictions as Predictions,
    predictions_of as predictions_of,
)

# intervals of a mean
from .validation.mean_intervals import Interval as Interval

# measures of predictions
from .validation.metrics import (
    LEAST_PROBABILITY as LEAST_PROBABILITY,
    LOSSES as LOSSES,
    METRICS as METRICS,
    NO_MIXTURE as NO_MIXTURE,
    Called as Called,
    Concordance as Concordance,
    Mean as Mean,
    Measure as Measure,
    Needs as Needs,
    Ranking as Ranking,
    Ranks as Ranks,
    areas as areas,
    dot as dot,
    squares as squares,
    surprise as surprise,
    thresholds as thresholds,
)

# names of parameters
from .validation.named_parameters import name_parameters as name_parameters

# plans of random folds and of their pairs
from .validation.repeated_folds import paired_folds as paired_folds

# scikit-learn's scorers
from .validation.scorers import (
    LabelFunction as LabelFunction,
    Picklable as Picklable,
    function_name as function_name,
    of_scorer as of_scorer,
)

# losses and predictions of a batch
from .validation.scoring import (
    HeldOutLoss as HeldOutLoss,
    NamedScore as NamedScore,
    natural as natural,
    predictions as predictions,
)

# standard errors
from .validation.standard_errors import (
    StandardError as StandardError,
    average_by_unit as average_by_unit,
    naive as naive,
    standard_error as standard_error,
)
