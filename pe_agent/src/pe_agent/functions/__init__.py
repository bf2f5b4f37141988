"""The functions of IBM Streams for running jobs, with their codes.

::

    0 DONE       accepted and durable; of a getter: confirmed by the broker just now
    1 NO_PORT    no such port, or one of the wrong kind
    2 INVALID    an argument cannot be read, or can never work; nothing was changed
    3 UNKNOWN    not done, or not known to be done; of a getter: the last known value

They take the PE as first argument. None of them raises, because a
job calls them in the middle of its work. A setter takes at most its ``timeout``, and a getter two
seconds; an agent that hangs can add ten. The setters of ``pe.imports[…]`` and ``pe.exports[…]`` do
the same and raise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pe_agent.functions.typed_properties import as_properties
from pe_agent.job.agent.view_cache import KnownPort
from pe_agent.job.applied import NotAppliedError
from pe_agent.job.arguments import ArgumentError, seconds
from pe_agent.job.context import Job
from pe_agent.job.port_client import PortClient
from pe_agent.job.ports import Change, ExportPort, ImportPort, drop_null_fields
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_client.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    ChangeRefusedError,
    UnknownPortError,
    WrongKindError,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.matching import canonical_filter
from streambroker_core.model import is_port_name
from streambroker_core.model.durations import Duration
from streambroker_core.model.properties import Value

DONE, NO_PORT, INVALID, UNKNOWN = 0, 1, 2, 3
PROGRAMMED = "programmed"

_PAUSE_SECONDS = 0.02
_MAX_SECONDS = 1e9
_NO_ROUTES: Mapping[str, Any] = MappingProxyType({"kept": [], "added": [], "cut": []})
_T = TypeVar("_T")

log = logging.getLogger("pe_agent")


class Outcome(int):
    """Result of a setter: its code, with details as attributes.

    Attributes:
        accepted: whether the change is durable. With code 3 it is, if only the wait for the
            exporters timed out.
        generation: generation of the resource, None if no change is known.
        routes: ``kept``, ``added`` and ``cut`` routes; those cut have a ``reason``.
        reason: code word of the error, empty for none.
        message: a sentence with the location and the remedy, empty for none.
    """

    accepted: bool
    generation: int | None
    routes: Mapping[str, Any]
    reason: str
    message: str

    def __new__(
        cls, code: int, change: Change | None = None, error: BaseException | None = None
    ) -> Outcome:
        """Return the outcome of a change, or of the error that occurred instead."""
        outcome = super().__new__(cls, code)
        outcome.accepted = change is not None
        outcome.generation = None if change is None else change.generation
        outcome.routes = _NO_ROUTES if change is None else change.routes
        outcome.reason = "" if error is None else str(getattr(error, "code", type(error).__name__))
        outcome.message = "" if error is None else str(error)
        return outcome

    @property
    def code(self) -> int:
        """0, 1, 2 or 3."""
        return int(self)

    def __repr__(self) -> str:
        return f"Outcome({self.code}, generation={self.generation}, reason={self.reason!r})"


@dataclass(frozen=True, slots=True)
class Known(Generic[_T]):
    """Result of a getter; ``value, code = get_import_filter(pe, "trades")`` works, too.

    Attributes:
        value: the broker's value; with code 3 the last known one, None if none is known.
        code: 0, 1 or 3.
        stale: whether the broker did not confirm the value.
        message: why the value is missing or not confirmed; empty with code 0.
    """

    value: _T | None
    code: int
    stale: bool = False
    message: str = ""

    def __iter__(self) -> Iterator[Any]:
        yield self.value
        yield self.code


# ---- imports -----------------------------------------------------------------------------------


def set_import_subscription(
    pe: Job, port: str, subscription: str, *, wait: str | None = None, timeout: Duration = 30.0
) -> Outcome:
    """Replace the subscription of an import by subscription; filter and scope stay.

    Args:
        pe: the PE.
        port: name of the import.
        subscription: an expression over properties; blank matches nothing.
        wait: None, or ``programmed`` to wait until the exporters apply it.
        timeout: a duration above 0, for the broker and then the exporters.

    Returns:
        0; 1 also for an import by name; 2; 3.
    """

    def change(at: ImportPort) -> Change:
        return at.set_subscription(subscription, keep_kind=True)

    return _set(ImportPort, pe, port, change, wait, timeout)


def set_import_filter(
    pe: Job,
    port: str,
    filter: str,  # noqa: A002 - the word of the API
    *,
    wait: str | None = None,
    timeout: Duration = 30.0,
) -> Outcome:
    """Replace the filter of an import; an empty one lets every row through.

    Args:
        pe: the PE.
        port: name of the import.
        filter: an expression over the columns of a row.
        wait: None, or ``programmed`` to wait until the exporters apply it.
        timeout: a duration above 0, for the broker and then the exporters.

    Returns:
        0; 1; 2 also if it fits no connected export; 3.
    """
    return _set(ImportPort, pe, port, lambda at: at.set_filter(filter), wait, timeout)


def set_import_streams(
    pe: Job,
    port: str,
    streams: Sequence[Mapping[str, str]],
    *,
    wait: str | None = None,
    timeout: Duration = 30.0,
) -> Outcome:
    """Import by these names instead of a subscription; filter and scope stay.

    Args:
        pe: the PE.
        port: name of the import.
        streams: ``[{"applicationName": …, "streamId": …}]``; an empty list matches nothing.
        wait: None, or ``programmed`` to wait until the exporters apply it.
        timeout: a duration above 0, for the broker and then the exporters.

    Returns:
        0; 1; 2; 3.
    """
    return _set(ImportPort, pe, port, lambda at: at.set_streams(streams), wait, timeout)


def get_import_subscription(pe: Job, port: str) -> Known[str]:
    """Return the subscription of an import; empty if none is set yet.

    Returns:
        Code 0; 1 also for an import by name; 3 with the last known one.
    """
    return _get(
        PortClient(pe.context, "import", port),
        "subscription",
        lambda body: {"subscription": body["subscription"]},
        lambda known: known["subscription"] or "",
    )


def get_import_filter(pe: Job, port: str) -> Known[str]:
    """Return the filter of an import in its canonical text; empty for none.

    Returns:
        Code 0; 1; 3 with the last known one.
    """
    return _get(
        PortClient(pe.context, "import", port),
        "filter",
        lambda body: {"filter": canonical_filter(body["filter"])},
        lambda known: known["filter"] or "",
    )


def get_import_streams(pe: Job, port: str) -> Known[list[dict[str, str]]]:
    """Return the names that an import selects; an empty list if none are set yet.

    Returns:
        Code 0; 1 also for an import by subscription; 3 with the last known ones.
    """

    def read(body: Mapping[str, Any]) -> KnownPort:
        if body.get("subscription") is not None:
            raise WrongKindError(409, {"detail": f"{port} imports by subscription, not by name."})
        return {"streams": body.get("streams", []), "subscription": None}

    return _get(
        PortClient(pe.context, "import", port),
        "streams",
        read,
        lambda known: drop_null_fields(known["streams"]),
    )


# ---- exports -----------------------------------------------------------------------------------


def set_export_properties(
    pe: Job, port: str, properties: object, *, wait: str | None = None, timeout: Duration = 30.0
) -> Outcome:
    """Replace all properties of an export at once.

    Args:
        pe: the PE.
        port: name of the export.
        properties: a mapping, a dataclass or named tuple, or (name, value, type) triples, with
            the types int64, float64, rstring, boolean and list<…> of them; empty matches nothing.
        wait: None, or ``programmed`` to wait until the exporter applies it.
        timeout: a duration above 0, for the broker and then the exporters.

    Returns:
        0; 1 also for an export by name; 2; 3.
    """

    def change(at: ExportPort) -> Change:
        return at.set_properties(as_properties(properties))

    return _set(ExportPort, pe, port, change, wait, timeout)


def get_export_properties(pe: Job, port: str) -> Known[dict[str, Value]]:
    """Return all properties of an export.

    Returns:
        Code 0; 1 also for an export by name; 3 with the last known ones.
    """
    return _get(
        PortClient(pe.context, "export", port),
        "properties",
        lambda body: {"properties": body},
        lambda known: dict(known["properties"]),
    )


# ---- codes -------------------------------------------------------------------------------------

_P = TypeVar("_P", ImportPort, ExportPort)


def _set(
    kind: type[_P],
    pe: Job,
    name: str,
    change: Callable[[_P], Change],
    wait: str | None,
    timeout: Duration,
) -> Outcome:
    if not _is_name(name):
        return Outcome(NO_PORT, error=_name_error(name))
    limit = _to_seconds(timeout)
    if wait not in (None, PROGRAMMED) or limit is None:
        wrong = f"wait is {wait!r} for {timeout!r}; pass {PROGRAMMED!r} or None, and a duration."
        return Outcome(INVALID, error=ValueError(wrong))
    deadline = time.monotonic() + limit
    try:
        applied = change(kind(pe.context, name, deadline=deadline))
    except Exception as error:
        return Outcome(_code_for(error), error=error)
    if wait is None or _wait_programmed(applied, deadline):
        return Outcome(DONE, applied)
    late = NotAppliedError(
        f"generation {applied.generation} of {kind.kind} {name} is accepted, but not confirmed as"
        f" applied after {limit:g} s."
    )
    return Outcome(UNKNOWN, applied, late)


def _to_seconds(timeout: Duration) -> float | None:
    """Return a duration above 0 in seconds; None for anything else."""
    try:
        limit = min(seconds(timeout, "timeout"), _MAX_SECONDS)
    except ArgumentError:
        return None
    return limit if limit > 0 else None


def _wait_programmed(change: Change, deadline: float) -> bool:
    """Wait until a change is applied; errors, as of an agent of another release, mean not yet."""
    while True:
        try:
            if change.applied():
                return True
        except Exception as error:
            log.debug("cannot check whether a change is applied: %s", error)
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_SECONDS)


def _code_for(error: Exception) -> int:
    if isinstance(error, UnknownPortError | WrongKindError):
        return NO_PORT
    if isinstance(error, BrokerUnavailableError | AgentUnreachableError):
        return UNKNOWN
    if isinstance(error, BrokerRefusedError):
        return INVALID if isinstance(error, ChangeRefusedError) else UNKNOWN
    if isinstance(error, StreambrokerError | TypeError | ValueError | AttributeError):
        return INVALID
    log.error("a change failed with an unexpected error", exc_info=error)
    return UNKNOWN


def _get(
    port: PortClient,
    subresource: str,
    parse_fields: Callable[[Any], KnownPort],
    pick_value: Callable[[KnownPort], _T],
) -> Known[_T]:
    """Return a part of a port from the broker, or else from the cached view."""
    if not _is_name(port.name):
        return Known(None, NO_PORT, message=str(_name_error(port.name)))
    try:
        return Known(pick_value(port.get(subresource, parse_fields)), DONE)
    except (UnknownPortError, WrongKindError) as error:
        return Known(None, NO_PORT, message=str(error))
    except Exception as error:
        return Known(_cached_value(port, pick_value), UNKNOWN, stale=True, message=str(error))


def _cached_value(port: PortClient, pick_value: Callable[[KnownPort], _T]) -> _T | None:
    known = port.cached_port()
    try:
        return None if known is None else pick_value(known)
    except (LookupError, TypeError):
        return None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and is_port_name(name)


def _name_error(name: object) -> Exception:
    return ValueError(f"{name!r} cannot name a port.")
