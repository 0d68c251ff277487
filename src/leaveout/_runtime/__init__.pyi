"""What the other rooms take from this one, by subject."""

from .arrays import (
    HALF_LOG_TAU as HALF_LOG_TAU,
    AnyFlags as AnyFlags,
    AnyFunction as AnyFunction,
    AnyPair as AnyPair,
    AnyTuple as AnyTuple,
    ArrayFunction as ArrayFunction,
    ArrayList as ArrayList,
    ArrayTuple as ArrayTuple,
    BoolArray as BoolArray,
    EntryIndex as EntryIndex,
    EntryValues as EntryValues,
    FloatArray as FloatArray,
    Indices as Indices,
    IntArray as IntArray,
    LaneEntries as LaneEntries,
    ListedUnits as ListedUnits,
    ListedValues as ListedValues,
    MakeArray as MakeArray,
    NamedArrays as NamedArrays,
    NamedNumbers as NamedNumbers,
    NamedValues as NamedValues,
    NumberAndArray as NumberAndArray,
    NumpyArray as NumpyArray,
    ParamColumns as ParamColumns,
    ParamRows as ParamRows,
    PerDirection as PerDirection,
    PerRefitRow as PerRefitRow,
    PerRow as PerRow,
    RowCoefficients as RowCoefficients,
    RowFlags as RowFlags,
    RowNumbers as RowNumbers,
    SequenceLengths as SequenceLengths,
    Shape as Shape,
    StepNumbers as StepNumbers,
    Strings as Strings,
    SubsetValues as SubsetValues,
    Texts as Texts,
    ThreeArrayFunction as ThreeArrayFunction,
    ThreeArrays as ThreeArrays,
    ThreeNumbers as ThreeNumbers,
    TwoArrays as TwoArrays,
    TwoCounts as TwoCounts,
    TwoNumbers as TwoNumbers,
    TwoTexts as TwoTexts,
    UnaryFunction as UnaryFunction,
    UnitFlags as UnitFlags,
    UnitNumbers as UnitNumbers,
    UnitVectors as UnitVectors,
    join as join,
    largest_first as largest_first,
    level_numbers as level_numbers,
    members_by_label as members_by_label,
    silence as silence,
    slices as slices,
)
from .checkpoint import (
    ArrayRecord as ArrayRecord,
    File as File,
    StepResult as StepResult,
    depends as depends,
    keeping as keeping,
    read_or_make as read_or_make,
)
from .conventions import (
    Rng as Rng,
    conventional as conventional,
    log as log,
    warn as warn,
)
from .headed_table import (
    HeadedTable as HeadedTable,
)
from .interrupt import (
    Interrupted as Interrupted,
    stoppable as stoppable,
)
from .lazy_jax import (
    NUMPY as NUMPY,
    Array as Array,
    Arrays as Arrays,
    Module as Module,
    PyTree as PyTree,
    Scalar as Scalar,
    branches_of as branches_of,
    cached_on as cached_on,
    call_traced as call_traced,
    compile_static as compile_static,
    ensure_jax as ensure_jax,
    float64 as float64,
    foreign as foreign,
    function_name as function_name,
    is_traced as is_traced,
    jax as jax,
    jnp as jnp,
    jspecial as jspecial,
    make_on_first_call as make_on_first_call,
    numpy_of as numpy_of,
    resident as resident,
    select_lanes as select_lanes,
    special_of as special_of,
    static as static,
)
from .memory import (
    require_memory as require_memory,
)
from .pandas import (
    is_pandas as is_pandas,
    pd as pd,
)
from .parallel import (
    single_threaded as single_threaded,
    steps as steps,
    workers as workers,
)
from .progress import (
    Slow as Slow,
)
from .providers import (
    optional as optional,
    provided as provided,
)
from .results import (
    NO_REFIT_CODES as NO_REFIT_CODES,
    RESULTS as RESULTS,
    TERMINAL_WIDTH as TERMINAL_WIDTH,
    AbstractPosterior as AbstractPosterior,
    Lines as Lines,
    PagedResult as PagedResult,
    PrintedResult as PrintedResult,
    PrintedTable as PrintedTable,
    SettledBy as SettledBy,
    among as among,
    kind_of as kind_of,
    record as record,
    text_within as text_within,
)
from .signatures import (
    readable as readable,
)
