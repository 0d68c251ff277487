"""A table of pandas with lines above it."""

from collections.abc import Sequence
from typing import ClassVar

import pandas as pd

from .results import TABLE_FLOAT, lines_as_html, lines_as_text, text_within


class HeadedTable(pd.DataFrame):
    """A DataFrame with lines above its numbers that say what they are.

    What is picked or rounded of it keeps them.
    """

    _metadata: ClassVar[list[str]] = ["heading"]
    heading: Sequence[tuple[str, str]] = ()

    @property
    def _constructor(self) -> "type[pd.DataFrame]":
        return HeadedTable

    def __repr__(self) -> str:
        names = list(self.columns)
        return f"{self.heading_text}\n{text_within(self, [name for name in names if name not in ('dof', 'error')], [], 4)[0]}"

    @property
    def heading_text(self) -> str:
        """The lines above the numbers."""
        return lines_as_text(self.heading or (), 18)

    def _repr_html_(self) -> str:
        return lines_as_html(self.heading or ()) + pd.DataFrame(self).to_html(
            float_format=TABLE_FLOAT
        )
