"""What a user says of a side input: where its rows come from, and its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pe_agent.aligned.runtime.frames import spark_to_arrow
from pe_agent.side.tables.store import Table
from pe_agent.streams.stream import Stream
from streambroker_core.model.durations import FORMS, in_microseconds
from streambroker_core.side.definition import SideInput, SideKind
from streambroker_core.side.errors import SideDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEFINITION_FIELDS: Final = ("name", "kind", "schema", "static")
_POLICIES: Final = tuple(
    one.name for one in fields(SideInput) if one.name not in _DEFINITION_FIELDS
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A side input that has no name yet; made by ``side_map`` and its like.

    Attributes:
        source: a stream, a streaming DataFrame or a table.
        kind: what functions see.
        settings: attributes of ``SideInput``.
    """

    source: Stream | Table | DataFrame
    kind: SideKind
    settings: Mapping[str, Any] = field(default_factory=dict)

    def stream(self, name: str) -> Stream | None:
        """Return its rows; None of a table.

        Raises:
            SideDefinitionError: the source is neither a stream nor a table.
        """
        from pe_agent.aligned import stream

        source = self.source
        if isinstance(source, Table):
            return None
        if isinstance(source, Stream):
            if source.data is None:
                raise SideDefinitionError(
                    name, "a stream of control tuples alone", "give it a stream of rows"
                )
            return replace(source, key=())
        if not getattr(source, "isStreaming", False):
            raise SideDefinitionError(
                name,
                f"its rows are a {type(source).__name__}, and no stream",
                "make it a table, with TableStore(…).frame(lambda: …)",
            )
        return stream(source)

    def define(self, name: str, stream: Stream | None) -> SideInput:
        """Return its definition.

        Args:
            name: its name at the operator.
            stream: its rows; None of a table.

        Raises:
            SideDefinitionError: a setting is not known.
        """
        unknown = [one for one in self.settings if one not in _POLICIES]
        if unknown:
            raise SideDefinitionError(
                name, f"{unknown[0]} is no setting", f"there are: {', '.join(_POLICIES)}"
            )
        told = {**self.settings, "key": _as_tuple(self.settings.get("key"))}
        if not isinstance(told.get("value"), str | None):
            told["value"] = tuple(told["value"])
        if isinstance(told.get("timeout"), str | timedelta):
            micros = in_microseconds(told["timeout"])
            if micros is None:
                raise SideDefinitionError(name, f"{told['timeout']!r} is no timeout", FORMS)
            told["timeout"] = micros / 1_000_000
        if stream is None:
            assert isinstance(self.source, Table)  # noqa: S101 - what has no stream
            schema = self.source.schema
        else:
            schema = spark_to_arrow(stream.schema())
            if stream.event_time is not None:
                told.setdefault("event_time", stream.event_time[0])
        return SideInput(name=name, kind=self.kind, schema=schema, static=stream is None, **told)


def _as_tuple(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def side_singleton(source: Stream | Table | DataFrame, **settings: Any) -> Given:
    """One value that all rows see.

    Args:
        source: an aligned stream, a streaming DataFrame or a table.
        settings: ``value``, ``update`` (``replace``, ``refuse`` or ``latest``), ``ready``,
            ``default``, ``timeout`` and other attributes of ``SideInput``.
    """
    return Given(source=source, kind="singleton", settings=settings)


def side_list(source: Stream | Table | DataFrame, **settings: Any) -> Given:
    """All values, in the order in which they came.

    Args:
        source: as for ``side_singleton``.
        settings: as there; ``update`` is ``append`` or ``replace``.
    """
    return Given(source=source, kind="list", settings=settings)


def side_map(
    source: Stream | Table | DataFrame, *, key: str | Sequence[str], **settings: Any
) -> Given:
    """One value for each key.

    Args:
        source: as for ``side_singleton``.
        key: the columns that are the key.
        settings: as there; with ``keyed=True`` its rows lie with the main rows of their key.
    """
    return Given(source=source, kind="map", settings={"key": key, **settings})


def side_multimap(
    source: Stream | Table | DataFrame, *, key: str | Sequence[str], **settings: Any
) -> Given:
    """Any number of values for each key.

    Args:
        source: as for ``side_singleton``.
        key: the columns that are the key.
        settings: as for ``side_map``; ``update`` is ``append`` or ``replace``.
    """
    return Given(source=source, kind="multimap", settings={"key": key, **settings})
