"""What a job reads of its agent: routes, exports, readers, control tuples, as frozen dataclasses.

Each is also the dictionary that the agent sent: ``status["exports"]``, ``route["filter"]``. It has
numbers for which there is no attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from streambroker_core.model import port_of
from streambroker_core.wire.encoding.status import Status, member

_S = TypeVar("_S", bound=Status)


def _by_key(form: type[_S], name: Callable[[str], str] = str) -> Callable[[Any], dict[str, _S]]:
    """Return what reads an object as statuses by the names of its keys."""
    return lambda json: {name(key): form.from_json(one) for key, one in dict(json).items()}


def _applied(readers: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    return {one["reader"]: one["applied"] for one in readers}


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
        status = cls(
            peer=route.get("export") or route["import"],
            filter=route.get("filter"),
            policy=route.get("policy", "wait"),
            location=route.get("location"),
        )
        status.update(route)
        return status


@dataclass(frozen=True, eq=False, kw_only=True)
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
    alive: bool = False
    policy: str = "wait"
    lag_rows: int = 0
    lag_seconds: float = 0.0
    congestion: int = 0
    delivered_rows: int = member("delivered", 0)
    dropped_rows: int = member("dropped", (0, 0), read=itemgetter(1))
    lost_rows: int = member("lost", (0, 0), read=itemgetter(1))


@dataclass(frozen=True, eq=False, kw_only=True)
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

    published_rows: int = 0
    held_bytes: int = member("held", 0)
    limit_bytes: int = member("limit", 0)
    waiting_for: tuple[str, ...] = member("waiting_for", ())
    ended: bool = False
    readers: Mapping[str, ReaderStatus] = member("", (), read=_by_key(ReaderStatus))


@dataclass(frozen=True, eq=False, kw_only=True)
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
    alive: bool = False
    ended: bool = False
    refused: Mapping[str, str] = member("", (), read=dict)
    dropped_rows: int = member("dropped", (0, 0), read=itemgetter(1))
    lost_rows: int = member("lost", (0, 0), read=itemgetter(1))


@dataclass(frozen=True, eq=False, kw_only=True)
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
    view: str | None = None
    exports: Mapping[str, ExportStatus] = member("", (), read=_by_key(ExportStatus, port_of))
    imports: Mapping[str, ImportStatus] = member("imports.readers", (), read=_by_key(ImportStatus))
    away: Mapping[str, str] = member("imports.away", (), read=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
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

    id: str = member(read=str)
    seq: int
    applied: bool
    readers: Mapping[str, bool] = member("", (), read=_applied)
    stream: str | None = None
    epoch: int | None = None
