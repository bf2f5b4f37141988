"""Imports with control tuples: opened when it is known who reads them.

An operator reads its import packed for its buckets, as the data source gives it, so its rows are
packed once. Whatever else comes first reads rows with control rows among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from pe_agent.aligned.errors import AlignedError
from pe_agent.aligned.runtime.frames import as_nullable, mixed_schema, spark_to_arrow
from pe_agent.aligned.runtime.unpacker import PackedRowsReader
from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.options import SOURCE_FIELD, format_ddl
from streambroker_core.control.runtime.buckets import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pe_agent.pe import PE
    from pe_agent.streams.stream import RowsFrame, Stream


@dataclass(frozen=True, eq=False, kw_only=True)
class Import:
    """One import.

    Attributes:
        port: its name.
        ddl: its columns.
        load: opens a frame of packed rows, given the options that say how they are spread.
        source: the column ``_source`` is one more.
        rules_file: control file with rules that it carries, as the option ``rulesFile`` has it.
    """

    port: str
    ddl: str
    load: Callable[[Mapping[str, str]], DataFrame]
    source: bool = False
    rules_file: str | None = None
    _row_frames: dict[tuple[int, bool], DataFrame] = field(default_factory=dict, repr=False)

    def stream(self, spark: SparkSession, pe: PE, *, log: bool) -> Stream:
        """Return it as a stream; with ``log`` tuples from the agent's control log come by it."""
        from pe_agent.streams.stream import Stream

        carrier = self if log else None
        return Stream(spark=spark, pe=pe, data=ImportFrame(imports=(self,)), carrier=carrier)

    def schema(self) -> StructType:
        """Return its columns."""
        return as_nullable(parse_struct(f"{self.ddl}, {SOURCE_FIELD}" if self.source else self.ddl))

    def open_packed(self, rank: int, *, log: bool, **options: str) -> DataFrame:
        """Open it, packed.

        Args:
            rank: which of the frames of the input it is.
            log: tuples from the control log come by it.
            options: options of the data source.
        """
        told = {"columns": self.ddl, "rank": str(rank), "controlLog": str(log).lower()}
        carried = {} if self.rules_file is None else {"rulesFile": self.rules_file}
        return self.load({**told, **carried, **options})

    def with_rules(self, path: str) -> Import:
        """Return it as one that carries the rules in a control file, and is not open yet."""
        return replace(self, rules_file=path, _row_frames={})

    def open_rows(self, rank: int, *, log: bool) -> DataFrame:
        """Open it as rows with control rows among them; the same frame for the same question."""
        if (rank, log) not in self._row_frames:
            schema = self.schema()
            read = PackedRowsReader(schema=spark_to_arrow(schema))
            packed = self.open_packed(rank, log=log, buckets="1", apart="true")
            frame = packed.mapInArrow(read, mixed_schema(schema))
            self._row_frames[rank, log] = frame
        return self._row_frames[rank, log]


@dataclass(frozen=True, kw_only=True)
class ImportFrame:
    """Imports, the rows of the first before those of the next; they have the same columns."""

    imports: tuple[Import, ...]

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.imports[0].schema()

    def open_rows(self, carrier: Import | None) -> RowsFrame:
        """Open them as rows; the control log comes by ``carrier``."""
        from pe_agent.streams.stream import RowsFrame

        frames = [
            one.open_rows(at, log=self._carries_log(at, carrier)) for at, one in self._with_ranks()
        ]
        return RowsFrame(frame=_union(frames), mixed=True, ranks=len(frames))

    def open_packed(
        self, layout: Layout, event_time: str | None, carrier: Import | None
    ) -> DataFrame:
        """Open them packed for an operator's input.

        Args:
            layout: how their rows are spread.
            event_time: column with the event time; None for none.
            carrier: by which the control log comes.
        """
        columns = self.schema()
        key = type(columns)([columns[name] for name, _ in layout.key])
        more = {
            "input": layout.port,
            "buckets": str(layout.buckets),
            "broadcast": str(layout.broadcast).lower(),
            "nulls": str(layout.nulls).lower(),
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


def choose_carrier(streams: Sequence[Stream]) -> tuple[list[Stream], Import | None]:
    """Let the control log come by one import of several streams that become one query.

    By the one that is open already; if there is none, by the first that may.

    Returns:
        The streams, and the import.

    Raises:
        AlignedError: two that are open bring it.
    """
    found = list(streams)
    opened = {
        id(one.carrier): one.carrier
        for one in found
        if one.carrier is not None and not isinstance(one.data, ImportFrame)
    }
    if len(opened) > 1:
        first, second, *_ = opened.values()
        raise AlignedError(
            f"the imports {first.port} and {second.port} of one query both bring the control log,"
            " so each tuple of send_control would come twice: subscribe to one of them with"
            " control_log=False."
        )
    keep = next(iter(opened.values()), None)
    for at, one in enumerate(found):
        if one.carrier is not None and isinstance(one.data, ImportFrame):
            if keep is None:
                keep = one.carrier
            else:
                found[at] = one.without_control_log()
    return found, keep


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)
