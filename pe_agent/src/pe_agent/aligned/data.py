"""Frames of a stream: rows, the output of an operator, and control rows apart from rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pe_agent.aligned.runtime.frames import CONTROL, PROGRESS, ROWS, SEQ, mixed_schema
from pe_agent.aligned.runtime.packer import REFUSE
from pe_agent.aligned.runtime.unpacker import OutputDataReader, OutputRowsReader
from pe_agent.datasource.schemas import spark_to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

HIDDEN_COLUMNS = (SEQ, CONTROL)


@dataclass(frozen=True, kw_only=True)
class RowsFrame:
    """A frame of rows.

    Attributes:
        frame: the user's columns, ``_seq``, and ``_control`` if the frame is mixed.
        mixed: whether control rows are among the rows.
        ranks: number of frames of which it is a union.
        row_filter: filter of the rows that an operator on them has to see; None for all.
    """

    frame: DataFrame
    mixed: bool = False
    ranks: int = 1
    row_filter: str | None = None

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.frame.drop(*HIDDEN_COLUMNS).schema

    def without_control(self) -> DataFrame:
        """Return the rows alone, with the user's columns."""
        frame = self.frame.where(f"{CONTROL} IS NULL") if self.mixed else self.frame
        return frame.drop(*HIDDEN_COLUMNS)


@dataclass(frozen=True, kw_only=True)
class OutputFrame:
    """The rows and control tuples of one output of an operator."""

    frame: DataFrame
    output: str
    columns: StructType

    def select_output(self) -> DataFrame:
        """Return the frame of this output, including progress rows."""
        from pyspark.sql import functions

        return self.frame.where(
            (functions.col("output") == self.output) | (functions.col("kind") == PROGRESS)
        )

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.columns

    def rows(self) -> RowsFrame:
        """Return the output as rows with control rows among them."""
        read = OutputRowsReader(output=self.output, schema=spark_to_arrow(self.columns))
        frame = self.select_output().mapInArrow(read, mixed_schema(self.columns))
        return RowsFrame(frame=frame, mixed=True)

    def without_control(self) -> DataFrame:
        """Return the rows alone, with the user's columns."""
        from pyspark.sql import functions

        rows = self.frame.where(
            (functions.col("output") == self.output) & (functions.col("kind") == ROWS)
        )
        read = OutputDataReader(output=self.output, schema=spark_to_arrow(self.columns))
        return rows.mapInArrow(read, self.columns)


@dataclass(frozen=True, kw_only=True)
class ControlFrame:
    """A frame of control rows, separate from the frame of rows.

    Attributes:
        frame: the column ``_control``, and ``_seq`` if the control rows were among rows.
        immediate: how ``IMMEDIATE`` tuples in it are handled.
    """

    frame: DataFrame
    immediate: str = REFUSE

    def with_positions(self) -> DataFrame:
        """Return the columns ``_seq`` and ``_control``."""
        from pyspark.sql import functions

        if SEQ in self.frame.columns:
            return self.frame.select(SEQ, CONTROL)
        return self.frame.select(functions.lit(0).cast("bigint").alias(SEQ), CONTROL)
