"""Patterns in SQL: a subset of MATCH_RECOGNIZE, and MATCH_RECOGNIZE_DYNAMIC.

A statement yields the same rule as Python or a document. The parser refuses constructs outside of
the subset by name.
"""

from streambroker_core.cep.sql.parser import (
    DynamicRowPattern,
    Measure,
    RowPattern,
    read_row_pattern,
)

__all__ = ["DynamicRowPattern", "Measure", "RowPattern", "read_row_pattern"]
