"""What the agent tells the broker of its readers, for ``streambroker top``.

Figures for people: nothing waits for them and nothing depends on them. They are sent by a
thread of their own, so a broker that is slow at taking them never delays a poll.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streambroker_core.model import port_of

log = logging.getLogger("pe_agent")

MAX_INTERVAL_SECONDS = 30.0
SPACING_SECONDS = 1.0
"""Between two reports at least, however much there is to tell."""
MAX_REPORT_BYTES = 60_000
"""Bytes of a report; the broker takes 64 KiB."""
MAX_DAMAGED_SEGMENTS = 10
"""Damaged segments that are named."""
MAX_REASON = 200
"""Characters of why a fellow does not answer."""
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
    """Return the report of an agent's status.

    Args:
        status: as the agent's action ``status`` returns it.
        limit: bytes of the report as JSON; readers are left out until it fits, those that
            are away first, side inputs for which least rows wait, and rules on which least time
            was spent.
    """
    found: dict[str, Any] = {}
    for most in _READER_LIMITS:
        found = {
            "exports": {
                port_of(key): _report_export(export, most)
                for key, export in status["exports"].items()
            },
            "imports": _report_imports(status["imports"]["readers"], most),
            "fellows": _report_shard_agents(status.get("fellows", {})),
            **({"sides": _report_sides(status["sides"], most)} if status.get("sides") else {}),
            **_report_rules(status, most),
            **({"patterns": status["patterns"]} if "patterns" in status else {}),
        }
        if len(json.dumps(found)) <= limit:
            break
    return found


def _report_sides(sides: Sequence[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """Return side inputs, those that most rows wait for first."""
    return sorted(sides, key=lambda side: -side["waitingRows"])[:limit]


def _report_rules(status: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return figures of rules, those that took most time first, and operators that wait."""
    figures = sorted(status.get("ruleFigures", ()), key=lambda one: -one["nanoseconds"])[:limit]
    waiting = [one for one in status.get("ruleWaiting", ()) if one["rows"]]
    waiting = sorted(waiting, key=lambda one: -one["rows"])[:limit]
    told = {"ruleFigures": figures, "ruleWaiting": waiting}
    return {name: each for name, each in told.items() if each}


def _report_shard_agents(shard_agents: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "pe": pe,
            "active": fellow["active"],
            "away": None if fellow["away"] is None else fellow["away"][:MAX_REASON],
        }
        for pe, fellow in sorted(shard_agents.items())
    ]


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
    }


def mask_reader_id(reader: str) -> str:
    """Return a name for a reader that tells it from others, and is not its id.

    Whoever knows the id reads what it has planned; who may read a report is another matter.
    """
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
        "blockedSeconds": int(reader["blockedSeconds"]),
        **{name: reader[name] for name in _COPIED_FIELDS},
    }


def _report_imports(readers: Mapping[str, Mapping[str, Any]], limit: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ordered = sorted(readers.items(), key=lambda item: not item[1]["alive"])
    for id_, reader in ordered[:limit]:
        pinned = reader["pinned"]
        port = found.setdefault(port_of(reader["import"]), {"readers": []})
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
    return found


class StatusReporter:
    """Sends reports: one after the first poll, then as often as the broker says.

    A report that fails is forgotten; the next follows after the next poll.

    Args:
        status: the agent's status.
        send: puts a report to the broker and returns its answer's body.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        send: Callable[[dict[str, Any]], Any],
    ) -> None:
        self._status = status
        self._send = send
        self._polled = threading.Event()
        self._closed = threading.Event()
        self._report_requested = threading.Event()

    def start(self) -> None:
        """Begin; nothing is sent before the first poll."""
        threading.Thread(target=self._run, daemon=True, name="broker reports").start()

    def on_poll(self) -> None:
        """The broker answered a poll."""
        self._polled.set()

    def report_soon(self) -> None:
        """Report soon: there is something that people wait for."""
        self._report_requested.set()

    def close(self) -> None:
        """Stop."""
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
        """Send one report; return after how many seconds the next is due."""
        try:
            answer = self._send(build_report(self._status()))
            return min(MAX_INTERVAL_SECONDS, max(0.5, float(answer["again"])))
        except Exception as error:
            # Whatever it was: figures for people must not disturb anything.
            log.debug("report not taken: %s", error)
            self._polled.clear()
            return MAX_INTERVAL_SECONDS if getattr(error, "status", 0) else 0.5
