"""Imports with control tuples; each is opened when its reader is known.

An operator reads its import from the data source already packed for the operator's buckets, so
rows are packed only once. Any other reader gets rows with control rows among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from pe_agent.aligned.data import RowsFrame
from pe_agent.aligned.runtime.frames import mixed_schema
from pe_agent.aligned.runtime.unpacker import PackedRowsReader
from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.options import SOURCE_FIELD, format_ddl
from pe_agent.datasource.schemas import as_nullable, spark_to_arrow
from streambroker_core.control.runtime.buckets import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, eq=False, kw_only=True)
class Import:
    """One import.

    Attributes:
        ddl: columns of the rows.
        load: opens a frame of packed rows; takes the data source options that set the layout.
        source: whether rows also have the column ``_source``.
        rules_file: control file whose rules the import carries (option ``rulesFile``).
    """

    port: str
    ddl: str
    load: Callable[[Mapping[str, str]], DataFrame]
    source: bool = False
    rules_file: str | None = None
    _row_frames: dict[tuple[int, bool], DataFrame] = field(default_factory=dict, repr=False)

    def schema(self) -> StructType:
        """Return the columns, including ``_source`` if it is set."""
        return as_nullable(parse_struct(f"{self.ddl}, {SOURCE_FIELD}" if self.source else self.ddl))

    def open_packed(self, rank: int, *, log: bool, **options: str) -> DataFrame:
        """Open the import as packed rows; ``rank`` is its position among the input's frames."""
        read_options = {"columns": self.ddl, "rank": str(rank), "controlLog": str(log).lower()}
        rules_option = {} if self.rules_file is None else {"rulesFile": self.rules_file}
        return self.load({**read_options, **rules_option, **options})

    def with_rules(self, path: str) -> Import:
        """Return an unopened copy of the import that carries the rules of a control file."""
        return replace(self, rules_file=path, _row_frames={})

    def open_rows(self, rank: int, *, log: bool) -> DataFrame:
        """Open the import as rows with control rows among them; cached by ``rank`` and ``log``."""
        if (rank, log) not in self._row_frames:
            schema = self.schema()
            read = PackedRowsReader(schema=spark_to_arrow(schema))
            packed = self.open_packed(rank, log=log, buckets="1", apart="true")
            frame = packed.mapInArrow(read, mixed_schema(schema))
            self._row_frames[rank, log] = frame
        return self._row_frames[rank, log]


@dataclass(frozen=True, kw_only=True)
class ImportFrame:
    """Imports with the same columns; rows of an earlier import precede those of a later one."""

    imports: tuple[Import, ...]

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.imports[0].schema()

    def open_rows(self, carrier: Import | None) -> RowsFrame:
        """Open the imports as rows; ``carrier`` brings the control log."""
        frames = [
            one.open_rows(at, log=self._carries_log(at, carrier)) for at, one in self._with_ranks()
        ]
        return RowsFrame(frame=_union(frames), mixed=True, ranks=len(frames))

    def open_packed(
        self, layout: Layout, event_time: str | None, carrier: Import | None, *, slots: bool
    ) -> DataFrame:
        """Open the imports packed for an operator; ``carrier`` brings the control log.

        With ``slots`` packed rows have the slots of their buckets.
        """
        columns = self.schema()
        key = type(columns)([columns[name] for name, _ in layout.key])
        more = {
            "input": layout.port,
            "buckets": str(layout.buckets),
            "broadcast": str(layout.broadcast).lower(),
            "nulls": str(layout.nulls).lower(),
            **({"slots": "true"} if slots else {}),
            **({"key": format_ddl(key)} if layout.key else {}),
            **({"eventTime": event_time} if event_time else {}),
        }
        return _union(
            [
                one.open_packed(at, log=self._carries_log(at, carrier), **more)
                for at, one in self._with_ranks()
            ]
        )

    def _with_ranks(self) -> enumerate[Import]:
        return enumerate(self.imports)

    def _carries_log(self, rank: int, carrier: Import | None) -> bool:
        return self.imports[rank] is carrier and carrier not in self.imports[:rank]


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)
