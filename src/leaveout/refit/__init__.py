"""Refits: a batch of them, the rungs down, how far each is from the exact one, and the strategies that choose among these."""

from ._metric import is_narrow as is_narrow
from ._refitted import Refitted as Refitted
from ._strategies import (
    AbstractRefit as AbstractRefit,
)
from ._strategies import (
    Certified as Certified,
)
from ._strategies import (
    Exact as Exact,
)
from ._strategies import (
    InfinitesimalJackknife as InfinitesimalJackknife,
)
from ._strategies import (
    NewtonStep as NewtonStep,
)
from ._strategies import (
    NoUpdate as NoUpdate,
)
from ._undetermined import completed as completed
