"""Functions that make rows of matches, with columns in any form that a job's API accepts."""

from __future__ import annotations

from collections.abc import Callable

from pe_agent.datasource.schemas import Columns, as_arrow_schema
from streambroker_core.cep.engine import outputs


class MatchFunction(outputs.MatchFunction):
    """Makes rows of the matches of rules that name it. They go to an output of its name."""

    __slots__ = ()

    def __init__(
        self,
        *,
        schema: Columns,
        matched: Callable[[outputs.MatchedEvents], outputs.FunctionResult],
        timed_out: Callable[[outputs.MatchedEvents], outputs.FunctionResult] | None = None,
    ) -> None:
        """Define the function.

        Args:
            schema: columns of the rows, as DDL, StructType or Arrow schema; ``rule`` and
                ``version`` are put before them.
            matched: called with each match; returns a row, rows, or None.
            timed_out: called with each timed-out partial match; None sends them to ``timeouts``.

        Raises:
            SchemaError, PatternArgumentError: the columns cannot be used.
        """
        super().__init__(schema=as_arrow_schema(schema), matched=matched, timed_out=timed_out)
