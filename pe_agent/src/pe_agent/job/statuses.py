"""What a job reads of its agent: routes, exports, readers, control tuples, as frozen dataclasses.

Each is also the dictionary that the agent sent: ``status["exports"]``, ``route["filter"]``. It has
numbers for which there is no attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streambroker_core.wire.encoding.status import Status


@dataclass(frozen=True, eq=False)
class Route(Status):
    """A connection between an export and an import.

    Attributes:
        peer: key of the port at the other end, ``namespace/job/pe/port``.
        filter: the importer's filter in its canonical text, None for all rows.
        policy: ``wait`` or ``drop``.
        location: address of the exporter's agent; None at the exporter, and while it is unknown.
    """

    peer: str
    filter: str | None
    policy: str
    location: str | None

    @classmethod
    def from_json(cls, route: Mapping[str, Any]) -> Route:
        """Return a route of an agent's view."""
        return cls._made(
            route,
            peer=route.get("export") or route["import"],
            filter=route.get("filter"),
            policy=route.get("policy", "wait"),
            location=route.get("location"),
        )


@dataclass(frozen=True, eq=False)
class ReaderStatus(Status):
    """An import that reads an export, as the exporter's agent sees it.

    Attributes:
        import_: key of the import, ``namespace/job/pe/port``.
        alive: whether its agent has renewed its lease.
        policy: ``wait`` or ``drop``, as it is now.
        lag_rows: published rows that it has not finished.
        lag_seconds: age of the oldest of them; 0 if there are none.
        congestion: share of the export's buffer that it holds, in percent.
        delivered_rows: rows sent to it, before its filter.
        dropped_rows: rows dropped for it by policy.
        lost_rows: rows lost for it without its consent.
    """

    import_: str
    alive: bool
    policy: str
    lag_rows: int
    lag_seconds: float
    congestion: int
    delivered_rows: int
    dropped_rows: int
    lost_rows: int

    @classmethod
    def from_json(cls, reader: Mapping[str, Any]) -> ReaderStatus:
        """Return a reader of an export's status."""
        return cls._made(
            reader,
            import_=reader["import"],
            alive=reader.get("alive", False),
            policy=reader.get("policy", "wait"),
            lag_rows=reader.get("lagRows", 0),
            lag_seconds=reader.get("lagSeconds", 0.0),
            congestion=reader.get("congestion", 0),
            delivered_rows=reader.get("delivered", 0),
            dropped_rows=reader.get("dropped", (0, 0))[1],
            lost_rows=reader.get("lost", (0, 0))[1],
        )


@dataclass(frozen=True, eq=False)
class ExportStatus(Status):
    """An export at its agent.

    Attributes:
        published_rows: rows published since the agent started.
        held_bytes: bytes held for readers.
        limit_bytes: limit of the buffer in bytes.
        waiting_for: keys of the imports that the export waits for.
        ended: whether no more rows follow.
        readers: its readers by id.
    """

    published_rows: int
    held_bytes: int
    limit_bytes: int
    waiting_for: tuple[str, ...]
    ended: bool
    readers: Mapping[str, ReaderStatus]

    @classmethod
    def from_json(cls, export: Mapping[str, Any]) -> ExportStatus:
        """Return an export of an agent's status."""
        return cls._made(
            export,
            published_rows=export.get("publishedRows", 0),
            held_bytes=export.get("held", 0),
            limit_bytes=export.get("limit", 0),
            waiting_for=tuple(export.get("waiting_for", ())),
            ended=export.get("ended", False),
            readers={
                id_: ReaderStatus.from_json(r) for id_, r in export.get("readers", {}).items()
            },
        )


@dataclass(frozen=True, eq=False)
class ImportStatus(Status):
    """A reader of an import: one query, at the importing agent.

    Attributes:
        import_: key of the import, ``namespace/job/pe/port``.
        alive: whether the query has asked for rows lately.
        ended: whether all exports have ended and everything is read.
        refused: why exporters refuse it, by export.
        dropped_rows: rows that exporters dropped for it by policy.
        lost_rows: rows lost for it without its consent.
    """

    import_: str
    alive: bool
    ended: bool
    refused: Mapping[str, str]
    dropped_rows: int
    lost_rows: int

    @classmethod
    def from_json(cls, reader: Mapping[str, Any]) -> ImportStatus:
        """Return a reader of an agent's status."""
        return cls._made(
            reader,
            import_=reader["import"],
            alive=reader.get("alive", False),
            ended=reader.get("ended", False),
            refused=reader.get("refused", {}),
            dropped_rows=reader.get("dropped", (0, 0))[1],
            lost_rows=reader.get("lost", (0, 0))[1],
        )


@dataclass(frozen=True, eq=False)
class PeStatus(Status):
    """A PE as its agent reports it.

    Attributes:
        pe: its key, ``namespace/job/pe``.
        view: version of its routes, None while none are known.
        exports: its exports by port.
        imports: the readers of its imports, by id; several queries may read one port.
        away: why an exporter's agent does not answer, by its address.
    """

    pe: str
    view: str | None
    exports: Mapping[str, ExportStatus]
    imports: Mapping[str, ImportStatus]
    away: Mapping[str, str]

    @classmethod
    def from_json(cls, status: Mapping[str, Any]) -> PeStatus:
        """Return the status of an agent."""
        return cls._made(
            status,
            pe=status["pe"],
            view=status.get("view"),
            exports={
                key.rpartition("/")[2]: ExportStatus.from_json(export)
                for key, export in status.get("exports", {}).items()
            },
            imports={
                id_: ImportStatus.from_json(reader)
                for id_, reader in status.get("imports", {}).get("readers", {}).items()
            },
            away=status.get("imports", {}).get("away", {}),
        )


@dataclass(frozen=True, eq=False)
class ControlStatus(Status):
    """A control tuple that was sent.

    Attributes:
        id: its identity.
        seq: its number in the log that it is sent by.
        applied: whether all readers have finished a window with it; False without readers.
        readers: whether each reader has, by reader id.
        stream: stream of the export that it is in; None before its first stream, and for the job's
            own operators.
        epoch: epoch of that stream.
    """

    id: str
    seq: int
    applied: bool
    readers: Mapping[str, bool]
    stream: str | None
    epoch: int | None

    @classmethod
    def from_json(cls, sent: Mapping[str, Any]) -> ControlStatus:
        """Return the state of a sent tuple."""
        return cls._made(
            sent,
            id=str(sent["id"]),
            seq=sent["seq"],
            applied=sent["applied"],
            readers={one["reader"]: one["applied"] for one in sent.get("readers", ())},
            stream=sent.get("stream"),
            epoch=sent.get("epoch"),
        )
