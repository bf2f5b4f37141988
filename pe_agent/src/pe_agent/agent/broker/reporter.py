"""Status reports of the agent to the broker, for ``streambroker top``.

No other function depends on them. A thread of their own sends them, so that a slow broker never
delays a poll.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from streambroker_core.model import port_of
from streambroker_core.wire.encoding.canonical import JsonObject, without_none
from streambroker_core.wire.reports.schema_status import SchemaStatus, write_schema_status
from streambroker_core.wire.reports.storage_status import MAX_ERROR, StorageStatus, write_storage

log = logging.getLogger("pe_agent")

MAX_INTERVAL_SECONDS = 30.0
SPACING_SECONDS = 1.0
"""Minimum time between two reports."""
MAX_REPORT_BYTES = 60_000
"""Maximum bytes of a report; the broker accepts 64 KiB."""
MAX_DAMAGED_SEGMENTS = 10
"""Maximum number of damaged segments in a report."""
_READER_LIMITS = (1_000, 300, 100, 30, 10, 0)
_RECEIVED_FIELDS = ("lagEpochs", "duplicates", "successors")
_COPIED_FIELDS = (
    "lagRows",
    "congestion",
    "sentRows",
    "sentBytes",
    "plannedSince",
    "releasedPlans",
)


def build_report(status: Mapping[str, Any], limit: int = MAX_REPORT_BYTES) -> dict[str, Any]:
    """Build the report from an agent's status, at most ``limit`` bytes as JSON.

    It is cut until it fits: readers that are away first, side inputs with the fewest waiting rows,
    rules with the least time.
    """
    report: dict[str, Any] = {}
    sides = sorted(status.get("sides", ()), key=lambda side: -side["waitingRows"])
    for count in _READER_LIMITS:
        report = {
            "exports": {
                port_of(key): _report_export(export, count)
                for key, export in status["exports"].items()
            },
            "imports": _report_imports(status["imports"]["readers"], count),
            **({"sides": sides[:count]} if sides else {}),
            **_report_rules(status, count),
            **({"patterns": status["patterns"]} if "patterns" in status else {}),
            **({"health": _report_health(status["health"], count)} if "health" in status else {}),
        }
        if len(json.dumps(report)) <= limit:
            break
    return report


def _report_health(health: Mapping[str, Any], limit: int) -> dict[str, Any]:
    return {
        kind: {port: {**state, "message": state["message"][: limit + 50]} for port, state in ports}
        for kind, ports in ((kind, by_port.items()) for kind, by_port in health.items())
    }


def _report_rules(status: Mapping[str, Any], limit: int) -> dict[str, Any]:
    metrics = sorted(status.get("ruleFigures", ()), key=lambda one: -one["nanoseconds"])[:limit]
    waiting = [one for one in status.get("ruleWaiting", ()) if one["rows"]]
    waiting = sorted(waiting, key=lambda one: -one["rows"])[:limit]
    parts = {"ruleFigures": metrics, "ruleWaiting": waiting}
    return {name: values for name, values in parts.items() if values}


def _report_export(export: Mapping[str, Any], limit: int) -> dict[str, Any]:
    streams = export["streams"].values()
    readers = [_report_reader(id_, reader) for id_, reader in export["readers"].items()]
    readers.sort(key=lambda r: (not r["alive"], -r["lagBytes"]))
    return {
        "streams": len(streams),
        "epochs": sum(s["retained"] for s in streams),
        "bytes": sum(s["bytes"] for s in streams),
        "rows": sum(s["rows"] for s in streams),
        "ended": export["ended"],
        "held": export["held"],
        "limit": export["limit"],
        "waitingFor": list(dict.fromkeys(export["waiting_for"]))[:limit],
        "waitingSince": export["waitingSince"],
        "waitedSeconds": int(export["waitedSeconds"]),
        "gaps": export["gaps"],
        "damaged": export["damaged"][:MAX_DAMAGED_SEGMENTS],
        "readers": readers[:limit],
        **_report_storage(export["storage"], limit),
        **without_none(schemaVersion=_report_schema(streams)),
    }


def _report_schema(streams: Iterable[Mapping[str, Any]]) -> JsonObject | None:
    """Return the newest version with published rows, without its columns."""
    versions = [one for stream in streams for one in stream["schemaVersions"]]
    published = [one for one in versions if one["firstEpoch"] is not None]
    if not published:
        return None
    newest = published[-1]
    return write_schema_status(SchemaStatus(number=newest["version"], since=newest["since"]))


def _report_storage(storage: Mapping[str, Any] | None, limit: int) -> dict[str, Any]:
    if storage is None:
        return {}
    error, most = storage["error"] or "", min(MAX_ERROR, limit + 50)
    status = StorageStatus(
        bytes=storage["bytes"],
        seconds=int(storage["seconds"]),
        error=error if len(error) <= most else f"{error[: most - 1]}…",
        superseded=storage["superseded"],
    )
    return {"storage": write_storage(status)}


def mask_reader_id(reader: str) -> str:
    """Return a pseudonym of a reader: knowledge of the id itself allows reading its plan."""
    return hashlib.sha256(reader.encode()).hexdigest()[:16]


def _report_reader(id_: str, reader: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "import": reader["import"],
        "reader": mask_reader_id(id_),
        "policy": reader["policy"],
        "alive": reader["alive"],
        "lagEpochs": reader["lag"][0],
        "lagBytes": reader["lag"][1],
        "delivered": reader["delivered"],
        "filtered": reader["filtered"],
        "droppedRows": reader["dropped"][1],
        "lostEpochs": reader["lost"][0],
        "lostRows": reader["lost"][1],
        "duplicateRows": reader["duplicates"][1],
        "lagSeconds": int(reader["lagSeconds"]),
        "stalledSeconds": int(reader["stalledSeconds"]),
        "blockedSeconds": int(reader["blockedSeconds"]),
        "throttledSeconds": reader.get("throttledSeconds", 0),
        **{name: reader[name] for name in _COPIED_FIELDS},
    }


def _report_imports(readers: Mapping[str, Mapping[str, Any]], limit: int) -> dict[str, Any]:
    ports: dict[str, Any] = {}
    ordered = sorted(readers.items(), key=lambda item: not item[1]["alive"])
    for id_, reader in ordered[:limit]:
        pinned = reader["pinned"]
        port = ports.setdefault(port_of(reader["import"]), {"readers": []})
        port["readers"].append(
            {
                "reader": mask_reader_id(id_),
                **{name: reader[name] for name in _RECEIVED_FIELDS},
                "alive": reader["alive"],
                "filter": pinned.get("filter"),
                "generation": pinned.get("generation"),
                "refused": reader["refused"],
                "dropped": reader["dropped"],
                "lost": reader["lost"],
            }
        )
    return ports


class StatusReporter:
    """Sends reports: one after the first poll, then at the interval that the broker sets.

    A failed report is dropped; the next one follows the next poll.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        send: Callable[[dict[str, Any]], Any],
        set_rates: Callable[[float | None, float | None], None] = lambda reader, job: None,
    ) -> None:
        self._status = status
        self._send = send
        self._set_rates = set_rates
        self._polled = threading.Event()
        self._closed = threading.Event()
        self._report_requested = threading.Event()

    def start(self) -> None:
        """Start the thread; it sends nothing before the first poll."""
        threading.Thread(target=self._run, daemon=True, name="broker reports").start()

    def on_poll(self) -> None:
        """Note that the broker answered a poll."""
        self._polled.set()

    def report_soon(self) -> None:
        """Report soon: the report has changes that users wait for."""
        self._report_requested.set()

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._polled.set()
        self._report_requested.set()

    def _run(self) -> None:
        while self._polled.wait() and not self._closed.is_set():
            pause = self.report()
            if self._report_requested.wait(pause):
                self._report_requested.clear()
                self._closed.wait(min(pause, SPACING_SECONDS))

    def report(self) -> float:
        """Send one report; return the seconds until the next one."""
        try:
            response = self._send(build_report(self._status()))
            rates = response.get("rates") or {}
            self._set_rates(rates.get("reader"), rates.get("job"))
            return min(MAX_INTERVAL_SECONDS, max(0.5, float(response["again"])))
        except Exception as error:
            # Reports are informational: no error may disturb anything else.
            log.debug("report not accepted: %s", error)
            self._polled.clear()
            return MAX_INTERVAL_SECONDS if getattr(error, "status", 0) else 0.5
