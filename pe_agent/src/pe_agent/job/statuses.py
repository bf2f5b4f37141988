"""What a job reads of its agent: routes, exports, readers, control tuples, as frozen dataclasses.

Each is also the dictionary that the agent sent: ``status["exports"]``, ``route["filter"]``. It has
numbers for which there is no attribute.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

_S = TypeVar("_S", bound="Status")


class Status(dict[str, Any]):
    """A status with attributes, which are read from the JSON that it is."""

    def to_json(self) -> dict[str, Any]:
        """Return the status as the agent sent it."""
        return dict(self)

    def _repr_html_(self) -> str:
        """Return a table of the attributes, for notebooks."""
        names = [one.name for one in fields(self)]  # type: ignore[arg-type]  # a dataclass
        return attribute_table(type(self).__name__, {name: getattr(self, name) for name in names})


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
        return _made(
            cls,
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
        return _made(
            cls,
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
        return _made(
            cls,
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
        return _made(
            cls,
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
        return _made(
            cls,
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
        return _made(
            cls,
            sent,
            id=str(sent["id"]),
            seq=sent["seq"],
            applied=sent["applied"],
            readers={one["reader"]: one["applied"] for one in sent.get("readers", ())},
            stream=sent.get("stream"),
            epoch=sent.get("epoch"),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Status):
    """Why ports are connected or not, the nearest pair first.

    Attributes:
        matched: number of connected pairs.
        text: the explanation in lines.
    """

    matched: int
    text: str

    @classmethod
    def from_json(cls, explained: Mapping[str, Any]) -> Explanation:
        """Return an explanation of the broker."""
        return _made(cls, explained, matched=explained["matched"], text=explained["text"])

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


def _made(kind: type[_S], json: Mapping[str, Any], **attributes: Any) -> _S:
    """Return a status with its attributes and the JSON that they were read from."""
    status = kind(**attributes)
    status.update(json)
    return status


def attribute_table(caption: str, values: Mapping[str, Any]) -> str:
    """Return an HTML table with a row per attribute; texts are escaped."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>"
        for name, value in values.items()
    )
    return f"<table><caption>{html.escape(caption)}</caption>{rows}</table>"


def row_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table with a header; a sentence in its place if it has no rows."""
    body = "".join(f"<tr>{''.join(f'<td>{_cell(v)}</td>' for v in row)}</tr>" for row in rows)
    if not body:
        return f"<p>{html.escape(caption)}: none.</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    return f"<table><caption>{html.escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if hasattr(value, "_repr_html_"):
        return str(value._repr_html_())
    if isinstance(value, Mapping):
        return "".join(f"<div>{html.escape(str(k))}: {_cell(v)}</div>" for k, v in value.items())
    return "" if value is None else html.escape(str(value))
