"""What a job reads of its agent: routes, exports, readers, control tuples, as frozen dataclasses.

Each is also the mapping that the agent sent: ``status["exports"]``, ``route["filter"]``. Numbers
that have no attribute are there.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, eq=False)
class Status(Mapping[str, Any]):
    """A status with attributes, and the JSON that it was read from.

    Attributes:
        json: the whole status as the agent sent it.
    """

    json: Mapping[str, Any] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the status as the agent sent it."""
        return dict(self.json)

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def _repr_html_(self) -> str:
        """Return a table of the attributes, for notebooks."""
        rows = "".join(
            f"<tr><th>{html.escape(one.name)}</th><td>{_cell(getattr(self, one.name))}</td></tr>"
            for one in fields(self)
            if one.repr
        )
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"


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
        return cls(
            json=route,
            peer=route.get("export") or route["import"],
            filter=route.get("filter"),
            policy=route["policy"],
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
        return cls(
            json=reader,
            import_=reader["import"],
            alive=reader["alive"],
            policy=reader["policy"],
            lag_rows=reader["lagRows"],
            lag_seconds=reader["lagSeconds"],
            congestion=reader["congestion"],
            delivered_rows=reader["delivered"],
            dropped_rows=reader["dropped"][1],
            lost_rows=reader["lost"][1],
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
        return cls(
            json=export,
            published_rows=export["publishedRows"],
            held_bytes=export["held"],
            limit_bytes=export["limit"],
            waiting_for=tuple(export["waiting_for"]),
            ended=export["ended"],
            readers={id_: ReaderStatus.from_json(r) for id_, r in export["readers"].items()},
        )


@dataclass(frozen=True, eq=False)
class PeStatus(Status):
    """A PE as its agent reports it.

    Attributes:
        pe: its key, ``namespace/job/pe``.
        view: version of its routes, None while none are known.
        exports: its exports by port.
        away: why an exporter's agent does not answer, by its address.
    """

    pe: str
    view: str | None
    exports: Mapping[str, ExportStatus]
    away: Mapping[str, str]

    @classmethod
    def from_json(cls, status: Mapping[str, Any]) -> PeStatus:
        """Return the status of an agent."""
        return cls(
            json=status,
            pe=status["pe"],
            view=status["view"],
            exports={
                key.rpartition("/")[2]: ExportStatus.from_json(export)
                for key, export in status["exports"].items()
            },
            away=status["imports"]["away"],
        )


@dataclass(frozen=True, eq=False)
class ControlStatus(Status):
    """A control tuple that was sent.

    Attributes:
        id: its identity.
        applied: whether all readers have finished a window with it; False without readers.
        readers: whether each reader has, by reader id.
        stream: stream of the export that it is in; None before its first stream, and for the job's
            own operators.
        epoch: epoch of that stream.
    """

    id: str
    applied: bool
    readers: Mapping[str, bool]
    stream: str | None
    epoch: int | None

    @classmethod
    def from_json(cls, sent: Mapping[str, Any]) -> ControlStatus:
        """Return the state of a sent tuple."""
        return cls(
            json=sent,
            id=str(sent["id"]),
            applied=sent["applied"],
            readers={one["reader"]: one["applied"] for one in sent["readers"]},
            stream=sent.get("stream"),
            epoch=sent.get("epoch"),
        )


def _cell(value: Any) -> str:
    if isinstance(value, Status):
        return value._repr_html_()
    if isinstance(value, Mapping):
        return "".join(f"<div>{html.escape(str(k))}: {_cell(v)}</div>" for k, v in value.items())
    return html.escape(str(value))
