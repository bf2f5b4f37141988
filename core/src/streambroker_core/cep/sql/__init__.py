"""Patterns in SQL: the row-pattern subset of MATCH_RECOGNIZE, and MATCH_RECOGNIZE_DYNAMIC.

A text becomes the same rule that Python or a document would make. What is outside of the subset is
refused by its name.
"""

from streambroker_core.cep.sql.parser import (
    DynamicRowPattern,
    Measure,
    RowPattern,
    read_row_pattern,
)

__all__ = ["DynamicRowPattern", "Measure", "RowPattern", "read_row_pattern"]
